//! A topic of Kafka.
//!
//! ```text
//!  batch ─▶ by partition (murmur2 of the MQTT topic, as Kafka's own clients do) ─▶ what is there already? ─▶ produce, acks=all
//! ```
//!
//! # What is promised
//!
//! A batch is taken when all in-sync replicas have it (`acks=all`). The key of a record is the MQTT topic, so that the messages of
//! one topic stay in one partition and in their order.
//!
//! Nothing is stored twice, as far as the log can be read back. A batch whose end is not known is looked for behind the offset at
//! which the batch before it ended, and only what is not there is produced again: messages that are alike in two batches are two
//! messages. Records are known by key, value, and `tidegate-id`, or without one by the time in nanoseconds at which this node received
//! them, which outlives the process with the message.
//!
//! After a start, and after the session that messages come from broke off, it is not known what of the last batches was acknowledged.
//! Then the tail of each partition is read before anything is produced there, as many records back as this sink can have had under
//! way. Messages that come again are looked for in it, as are those with a `tidegate-id`, which an uplink may send again; all others were
//! never handed over before. Other producers of the topic do not harm that, unless they write as many records meanwhile. Of messages
//! without `tidegate-id` that are alike to the nanosecond, one that was acknowledged may then be taken for one that comes again.
//!
//! Kafka refuses records by their time: those further ahead of the broker's clock than the topic allows (an hour by default), and those
//! that are older. Neither is a message's fault, so no message is refused for it. Records that Kafka refuses so are sent with the time of
//! now, as an outage may have been longer than the topic allows; the header keeps when they were received. Where that is refused as
//! well, the clock of this node or of the broker is wrong, and the batch waits.
//!
//! A request that Kafka carries out only after the log was read back makes a record twice all the same; then `tidegate-id` in its
//! header tells.

mod hash;
mod ledger;

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use rskafka::{
    BackoffConfig,
    chrono::{DateTime, Utc},
    client::{
        Client, ClientBuilder, Credentials, SaslConfig,
        error::{Error, ProtocolError},
        partition::{Compression as Codec, OffsetAt, PartitionClient, UnknownTopicHandling},
    },
    record::Record as KafkaRecord,
    topic::Topic,
};
use rustls::ClientConfig;
use tidegate_message::{ID_PROPERTY, Instant, Secret, TIME_PROPERTY};
use tidegate_process::clock;

use self::{
    hash::partition_of,
    ledger::{Ledger, Mark, Tail, digest},
};
use super::{Batch, Destination, Record, Refusal, Trouble};

/// The header that says when this node received a message: nanoseconds since the Unix epoch, in decimal.
pub const RECEIVED_HEADER: &str = "tidegate-received";
/// Bytes of records that are produced at a time, before they are compressed: half of what brokers take by default.
const PRODUCE_BYTES: usize = 512 << 10;
/// Bytes that are read back at a time.
const FETCH_BYTES: i32 = 8 << 20;
/// How long a broker may wait for what is read back, in milliseconds.
const FETCH_MILLIS: i32 = 1000;
/// How often in a row a broker has to find nothing before a try fails for it.
const FETCHES_EMPTY_MAX: u32 = 3;
/// Tries in a row that fail for it before it is believed.
const TRIES_EMPTY_MAX: u32 = 3;
/// How long Kafka may take to make a topic.
const CREATE_MILLIS: i32 = 10_000;
/// How often it is looked whether it has, and after which pause each time.
const CREATE_LOOKS: u32 = 50;
const CREATE_PAUSE: Duration = Duration::from_millis(100);

/// Which topic, and how Kafka is reached.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// Brokers to begin with, as host and port.
    pub brokers: Vec<String>,
    /// The topic there.
    pub topic: String,
    /// Whether it is made where there is none, as the brokers make topics by default.
    pub create: bool,
    /// How records are compressed.
    pub compression: Compression,
    /// User name and password (SASL, SCRAM-SHA-512).
    pub login: Option<(String, Secret)>,
    /// The trusted authorities, where TLS is used.
    pub tls: Option<Arc<ClientConfig>>,
    /// Messages that the sink has under way at most.
    pub under_way_max: u32,
}

/// Two are the same by what was configured, whatever files said that were read for it.
impl PartialEq for KafkaSettings {
    fn eq(&self, other: &Self) -> bool {
        let of = |settings: &Self| {
            let Self { brokers, topic, create, compression, login, tls, under_way_max } =
                settings.clone();
            (brokers, topic, create, compression, login, tls.is_some(), under_way_max)
        };
        of(self) == of(other)
    }
}

/// How records are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// zstd.
    #[default]
    Zstd,
    /// Snappy.
    Snappy,
    /// gzip.
    Gzip,
    /// Not at all.
    None,
}

impl Compression {
    fn codec(self) -> Codec {
        match self {
            Self::Zstd => Codec::Zstd,
            Self::Snappy => Codec::Snappy,
            Self::Gzip => Codec::Gzip,
            Self::None => Codec::NoCompression,
        }
    }
}

/// The destination.
#[derive(Debug)]
pub(super) struct Kafka {
    settings: KafkaSettings,
    cluster: Option<Cluster>,
    /// The ledgers of the partitions that were looked at, by number.
    ledgers: BTreeMap<i32, Ledger>,
    /// Whether a try has begun and not taken its batch: some of it may be there.
    is_open: bool,
    /// Tries in a row that failed because Kafka showed no records.
    tries_empty: u32,
    /// Whether it was reported that Kafka refuses the times of messages.
    told_times: bool,
}

/// The time of records there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stamp {
    /// When this node received the message. Not when it was measured: a topic forgets by this time, and refuses some.
    Received,
    /// When it is sent.
    Sent,
}

/// A connection, and what is known of the topic.
struct Cluster {
    /// Kept for the connections that it has.
    _client: Client,
    /// All of the topic, by number.
    partitions: Vec<PartitionClient>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("partitions", &self.partitions.len()).finish()
    }
}

impl Kafka {
    pub(super) fn new(settings: KafkaSettings) -> Self {
        let (cluster, ledgers) = (None, BTreeMap::new());
        Self { settings, cluster, ledgers, is_open: false, tries_empty: 0, told_times: false }
    }

    async fn connect(&self) -> Result<Cluster, Trouble> {
        let settings = &self.settings;
        let failed = |error: Error| Trouble::of("no connection to Kafka", error);
        // Nothing is tried twice by the library: the outcome of the first try decides what is read back.
        let once = BackoffConfig { deadline: Some(Duration::ZERO), ..BackoffConfig::default() };
        let mut builder =
            ClientBuilder::new(settings.brokers.clone()).client_id("tidegate").backoff_config(once);
        if let Some(tls) = &settings.tls {
            builder = builder.tls_config(tls.clone());
        }
        if let Some((user, password)) = &settings.login {
            let password = String::from_utf8_lossy(password).into_owned();
            let credentials = Credentials::new(user.clone(), password);
            builder = builder.sasl_config(SaslConfig::ScramSha512(credentials));
        }
        let client = builder.build().await.map_err(failed)?;
        let numbers = self.partitions(&client).await?;
        let mut partitions = Vec::new();
        for (expected, number) in (0..).zip(numbers) {
            if number != expected {
                let what = format!("{:?} has no partition {expected}", settings.topic);
                return Err(Trouble::new(what));
            }
            let handling = UnknownTopicHandling::Error;
            let client = client.partition_client(&settings.topic, number, handling).await;
            partitions.push(client.map_err(failed)?);
        }
        Ok(Cluster { _client: client, partitions })
    }

    /// The numbers of the topic's partitions, in order; the topic is made if need be.
    async fn partitions(&self, client: &Client) -> Result<Vec<i32>, Trouble> {
        let topic = &self.settings.topic;
        let failed = |error: Error| Trouble::of("Kafka does not tell its topics", error);
        let found = |topics: Vec<Topic>| -> Option<Vec<i32>> {
            let found = topics.into_iter().find(|found| found.name == *topic)?;
            Some(found.partitions.into_iter().collect())
        };
        if let Some(found) = found(client.list_topics().await.map_err(failed)?) {
            return Ok(found);
        }
        if !self.settings.create {
            return Err(Trouble::new(format!("Kafka has no topic {topic:?}")));
        }
        let controller = client.controller_client().map_err(failed)?;
        // How many partitions and replicas, the brokers' own configuration says.
        match controller.create_topic(topic, -1, -1, CREATE_MILLIS).await {
            Ok(()) => {}
            Err(error) if protocol(&error) == Some(ProtocolError::TopicAlreadyExists) => {}
            Err(error) => {
                return Err(Trouble::of(format!("the topic {topic:?} cannot be made"), error));
            }
        }
        // A new topic is known to all brokers some moments later.
        for _ in 0..CREATE_LOOKS {
            tokio::time::sleep(CREATE_PAUSE).await;
            if let Some(found) = found(client.list_topics().await.map_err(failed)?) {
                return Ok(found);
            }
        }
        Err(Trouble::new(format!("Kafka has made the topic {topic:?} and does not show it yet")))
    }

    async fn deliver_to(
        &mut self,
        cluster: &Cluster,
        batch: &Batch,
    ) -> Result<Vec<Refusal>, Trouble> {
        let records = batch.records();
        let count = i32::try_from(cluster.partitions.len()).unwrap_or(i32::MAX);
        let mut by_partition: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for (place, record) in records.iter().enumerate() {
            let number = partition_of(record.topic.as_bytes(), count);
            by_partition.entry(number).or_default().push(place);
        }
        let is_retry = std::mem::replace(&mut self.is_open, true);
        self.ledgers.values_mut().for_each(Ledger::begin);
        let mut refusals = Vec::new();
        for (number, mut missing) in by_partition {
            let client = &cluster.partitions[number as usize];
            let mut since = self.look(client, is_retry, batch).await?;
            let ledger = self.ledgers.get_mut(&number).expect("it was just looked at");
            missing.retain(|place| !ledger.has(&records[*place], &mut since));
            let (refused, end) = self.produce(client, batch, &missing).await?;
            refusals.extend(refused);
            if let Some(end) = end {
                let ledger = self.ledgers.get_mut(&number).expect("it was just looked at");
                ledger.reach(end);
            }
        }
        // Not before: when one partition fails, what others took of the batch comes again.
        self.ledgers.values_mut().for_each(Ledger::commit);
        (self.is_open, self.tries_empty) = (false, 0);
        refusals.sort_by_key(|refusal: &Refusal| refusal.place);
        Ok(refusals)
    }

    /// Reads the records in a partition behind the batches that were taken: those that earlier tries wrote of this one. At the
    /// first look that is
    /// nothing, and what may be met again is noted.
    async fn look(
        &mut self,
        client: &PartitionClient,
        is_retry: bool,
        batch: &Batch,
    ) -> Result<Tail, Trouble> {
        let number = client.partition();
        let next = self.ledgers.get(&number).map(Ledger::next);
        if next.is_some() && !is_retry {
            return Ok(Tail::new());
        }
        let end = client.get_offset(OffsetAt::Latest).await.map_err(unread)?;
        let under_way_max = i64::from(self.settings.under_way_max);
        // A topic that was deleted and made again begins at 0, and what an earlier try of this batch wrote there lies before `next`.
        let start = match next {
            Some(next) if next <= end => next,
            Some(_) => 0,
            None => end.saturating_sub(under_way_max),
        };
        let found = self.read_back(client, start..end, batch).await?;
        if let Some(ledger) = self.ledgers.get_mut(&number) {
            ledger.reach(end);
            return Ok(found);
        }
        self.ledgers.insert(number, Ledger::new(end, found));
        Ok(Tail::new())
    }

    /// The records at those offsets, as far as they are still kept.
    async fn read_back(
        &mut self,
        client: &PartitionClient,
        offsets: Range<i64>,
        batch: &Batch,
    ) -> Result<Tail, Trouble> {
        let begin = client.get_offset(OffsetAt::Earliest).await.map_err(unread)?;
        let (mut offset, end) = (offsets.start.max(begin), offsets.end);
        let (mut tail, mut empty) = (Tail::new(), 0);
        while offset < end {
            let fetched = client.fetch_records(offset, 1..FETCH_BYTES, FETCH_MILLIS).await;
            let (records, _) = fetched.map_err(unread)?;
            batch.step();
            let Some(last) = records.last().map(|record| record.offset) else {
                empty += 1;
                if empty == FETCHES_EMPTY_MAX {
                    self.note_empty(client.partition(), offset..end)?;
                    break;
                }
                continue;
            };
            empty = 0;
            for found in records.iter().filter(|found| (offset..end).contains(&found.offset)) {
                *tail.entry(mark_of(&found.record)).or_default() += 1;
            }
            offset = offset.max(last + 1);
        }
        Ok(tail)
    }

    /// Kafka shows no records where there should be some. It may have been slow, and what is not read back is stored twice: the try
    /// fails. But these offsets may also belong to nothing, such as the marks of transactions, and then no answer will ever hold
    /// a record: after some tries it is believed.
    fn note_empty(&mut self, partition: i32, offsets: Range<i64>) -> Result<(), Trouble> {
        let topic = &self.settings.topic;
        let Range { start, end } = offsets;
        if self.tries_empty < TRIES_EMPTY_MAX {
            self.tries_empty += 1;
            return Err(Trouble::new(format!(
                "Kafka shows no records from {start} to {end} in partition {partition} of {topic:?}"
            )));
        }
        tracing::warn!(%topic, partition, start, end,
            "Kafka shows no records there, however often it is asked; hidden ones may be stored twice");
        Ok(())
    }

    /// Produces those messages; returns those that Kafka refuses, and the offset behind the last one that it took, if
    /// any.
    async fn produce(
        &mut self,
        client: &PartitionClient,
        batch: &Batch,
        places: &[usize],
    ) -> Result<(Vec<Refusal>, Option<i64>), Trouble> {
        let records = batch.records();
        let (mut refusals, mut end) = (Vec::new(), None);
        // The last is the next one, so that records keep their order.
        let pieces = pieces(places, |place| records[*place].weight() as usize + 100);
        let mut parts: Vec<_> =
            pieces.into_iter().rev().map(|part| (part, Stamp::Received)).collect();
        while let Some((part, stamp)) = parts.pop() {
            let now = clock::to_wall(clock::now());
            let of = |record: &Record| match stamp {
                Stamp::Received => record.time,
                Stamp::Sent => now,
            };
            let chosen = places[part.clone()].iter().map(|place| &records[*place]);
            let produced = chosen.map(|record| kafka_record(record, of(record))).collect();
            let answered = client.produce(produced, self.settings.compression.codec()).await;
            batch.step();
            match answered {
                Ok(offsets) => end = offsets.last().map(|last| last + 1).or(end),
                Err(error) if protocol(&error) == Some(ProtocolError::InvalidTimestamp) => {
                    self.note_times(stamp, now, error)?;
                    parts.push((part, Stamp::Sent));
                }
                Err(error) if is_records(&error) => {
                    if part.len() == 1 {
                        refusals.push(Refusal::new(places[part.start], error.to_string()));
                    } else {
                        let middle = part.start + part.len() / 2;
                        parts.extend([(middle..part.end, stamp), (part.start..middle, stamp)]);
                    }
                }
                Err(error) => return Err(Trouble::of("Kafka did not take a batch", error)),
            }
        }
        Ok((refusals, end))
    }

    /// Kafka refuses records for such times. Other times may do; where it refuses that of `now`, a clock has to be set first.
    fn note_times(&mut self, stamp: Stamp, now: Instant, error: Error) -> Result<(), Trouble> {
        let topic = &self.settings.topic;
        if stamp == Stamp::Sent {
            let what = format!(
                "Kafka refuses records of {topic:?} with the time of this moment, {now} s since 1970: the clock of this node or of the broker \
                 is wrong, or message.timestamp.after.max.ms and message.timestamp.before.max.ms of the topic allow too little"
            );
            return Err(Trouble::of(what, error));
        }
        if !std::mem::replace(&mut self.told_times, true) {
            tracing::warn!(%topic,
                "Kafka refuses the times at which messages were received (the topic's message.timestamp.before.max.ms and after.max.ms): \
                 their records have the time at which they are sent, and the header tidegate-received says the other");
        }
        Ok(())
    }
}

#[async_trait]
impl Destination for Kafka {
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble> {
        // Taken out while it is used: after a try whose end is not known, its connections are gone.
        let cluster = match self.cluster.take() {
            Some(cluster) => cluster,
            None => self.connect().await?,
        };
        let refusals = self.deliver_to(&cluster, batch).await?;
        self.cluster = Some(cluster);
        Ok(refusals)
    }

    fn begin_anew(&mut self) {
        // Messages that come again may be of batches that were taken, and come in others.
        self.ledgers.clear();
        self.is_open = false;
    }
}

fn unread(error: Error) -> Trouble {
    Trouble::of("Kafka's topic cannot be read back", error)
}

/// Pieces of at most [`PRODUCE_BYTES`], or of one message that is larger.
fn pieces(places: &[usize], bytes: impl Fn(&usize) -> usize) -> Vec<Range<usize>> {
    let (mut pieces, mut start, mut sum) = (Vec::new(), 0, 0);
    for (at, place) in places.iter().enumerate() {
        let bytes = bytes(place);
        if at > start && sum + bytes > PRODUCE_BYTES {
            pieces.push(start..at);
            (start, sum) = (at, 0);
        }
        sum += bytes;
    }
    if start < places.len() {
        pieces.push(start..places.len());
    }
    pieces
}

fn kafka_record(record: &Record, stamp: Instant) -> KafkaRecord {
    let received = record.time.as_nanos().to_string().into_bytes();
    let mut headers = BTreeMap::from([(RECEIVED_HEADER.to_owned(), received)]);
    if let Some(id) = &record.id {
        headers.insert(ID_PROPERTY.to_owned(), id.as_bytes().to_vec());
    }
    if let Some(measured) = record.measured {
        headers.insert(TIME_PROPERTY.to_owned(), measured.as_nanos().to_string().into_bytes());
    }
    let timestamp: DateTime<Utc> = DateTime::from_timestamp_nanos(stamp.as_nanos());
    KafkaRecord {
        key: Some(record.topic.as_bytes().to_vec()),
        value: Some(record.payload.to_vec()),
        headers,
        timestamp,
    }
}

/// The [mark](ledger::mark) of the message that became this record.
fn mark_of(record: &KafkaRecord) -> Mark {
    let part = |part: &Option<Vec<u8>>| part.clone().unwrap_or_default();
    let header = |name: &str| record.headers.get(name).map(Vec::as_slice);
    let which = header(ID_PROPERTY).or_else(|| header(RECEIVED_HEADER)).unwrap_or_default();
    digest(&part(&record.key), &part(&record.value), which)
}

fn protocol(error: &Error) -> Option<ProtocolError> {
    match error {
        Error::ServerError { protocol_error, .. } => Some(*protocol_error),
        _ => None,
    }
}

/// Whether Kafka refuses the records, and would refuse them again.
fn is_records(error: &Error) -> bool {
    matches!(
        protocol(error),
        Some(
            ProtocolError::MessageTooLarge
                | ProtocolError::RecordListTooLarge
                | ProtocolError::InvalidRecord
        )
    )
}

#[cfg(test)]
mod tests {
    use rskafka::client::error::RequestContext;

    use super::{ledger::mark, *};

    #[test]
    fn pieces_are_as_large_as_they_may_be() {
        let places = [0, 1, 2, 3, 4];
        let sizes = [300 << 10, 200 << 10, 100 << 10, 900 << 10, 1];
        let found = pieces(&places, |place| sizes[*place]);
        assert_eq!(found, [0..2, 2..3, 3..4, 4..5]);
        assert!(pieces(&[], |_| 1).is_empty());
    }

    #[test]
    fn refused_time_is_a_clock_to_be_set_and_no_messages_fault() {
        let mut kafka = Kafka::new(KafkaSettings {
            brokers: Vec::new(),
            topic: "t".to_owned(),
            create: true,
            compression: Compression::None,
            login: None,
            tls: None,
            under_way_max: 1,
        });
        let refused = || Error::ServerError {
            protocol_error: ProtocolError::InvalidTimestamp,
            error_message: None,
            request: RequestContext::Partition("t".to_owned(), 0),
            response: None,
            is_virtual: false,
        };
        assert!(!is_records(&refused()));
        let now = Instant::from_nanos(1_769_903_999_000_000_000);
        assert!(kafka.note_times(Stamp::Received, now, refused()).is_ok(), "another time may do");
        let trouble = kafka.note_times(Stamp::Sent, now, refused()).unwrap_err();
        assert!(trouble.what.contains("clock") && trouble.what.contains("1769903999"), "{trouble}");
    }

    #[test]
    fn a_record_is_known_by_what_it_is() {
        let record =
            |payload: &str, nanos| Record::new("a", payload.to_owned(), Instant::from_nanos(nanos));
        let kafka_record = |record: &Record| super::kafka_record(record, Instant::from_nanos(1));
        assert_eq!(mark(&record("x", 7)), mark_of(&kafka_record(&record("x", 7))));
        assert_ne!(mark(&record("x", 7)), mark(&record("x", 8)));
        // One that an uplink named is the same whenever it comes.
        let named = |id: &str, nanos| Record { id: Some(id.into()), ..record("x", nanos) };
        assert_eq!(mark(&named("n/up/1/5", 7)), mark_of(&kafka_record(&named("n/up/1/5", 8))));
        assert_ne!(mark(&named("n/up/1/5", 7)), mark(&named("n/up/1/6", 7)));
    }
}

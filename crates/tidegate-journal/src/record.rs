//! The records of a journal, to and from bytes.
//!
//! A record is a byte of the version, a byte of the kind, its fields, and what is left is its payload. Numbers are in groups of
//! seven bits, the least first, as MQTT has its lengths; texts and lists begin with their length; instants are eight bytes.
//!
//! Always true: decoding takes any bytes without a panic, and takes no more memory than they do, by a small factor.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_message::{
    Identity, IdentityKind, Instant, Payload, Reader, Unreadable, check_topic_filter,
    check_topic_name, split_shared, varint,
};
use tidegate_wire::mqtt::{PacketId, QoS, Version};

/// The version of all records.
const VERSION: u8 = 1;
/// In addition to the retain flag of a waiting message: the name of a shared subscription follows.
const IN_GROUP: u8 = 2;
/// In addition to the retain flag of a message: a peer published it.
const FROM_PEER: u8 = 2;
/// In place of the mark that a client follows: the client and its user follow.
const HAS_SOURCE: u8 = 2;

/// One thing that is so from now on. Sessions and messages have numbers that their shard gives, from 1 and never again.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A session has begun, or a client has come back to it.
    Opened(Opened),
    /// A session has no connection any more.
    Closed {
        /// The session.
        session: u64,
        /// How long it outlives its connection; none forever.
        expiry: Option<Duration>,
        /// When it ends, if ever by itself.
        ends_at: Option<Instant>,
        /// A will that waits, and when that ends.
        will: Option<(StoredWill, Instant)>,
    },
    /// A session is over.
    Ended {
        /// The session.
        session: u64,
    },
    /// It has that subscription.
    Subscribed {
        /// The session.
        session: u64,
        /// The filter, `$share/GROUP/` included.
        filter: Box<str>,
        /// How.
        options: Options,
    },
    /// It has it no more.
    Unsubscribed {
        /// The session.
        session: u64,
        /// The filter.
        filter: Box<str>,
    },
    /// A message came.
    Message(StoredMessage),
    /// A session waits for a message that another record has: only at checkpoints.
    Queued {
        /// The message.
        number: u64,
        /// The session, and how it waits.
        waiting: Waiting,
    },
    /// A message is sent with that identifier: one of QoS 2 after this, one of QoS 1 at once.
    Begun {
        /// The session.
        session: u64,
        /// The message.
        number: u64,
        /// The identifier.
        id: PacketId,
    },
    /// PUBREC came: from now on only the identifier matters.
    Accepted {
        /// The session.
        session: u64,
        /// The identifier.
        id: PacketId,
    },
    /// A session waits for a message no longer.
    Done {
        /// The session.
        session: u64,
        /// The message.
        number: u64,
    },
    /// PUBCOMP came.
    Completed {
        /// The session.
        session: u64,
        /// The identifier.
        id: PacketId,
    },
    /// A QoS 2 message came from the session's client, under that identifier.
    Noted {
        /// The session.
        session: u64,
        /// The identifier.
        id: PacketId,
    },
    /// PUBREL came.
    Released {
        /// The session.
        session: u64,
        /// The identifier.
        id: PacketId,
    },
    /// This shard has what another one sent under that number.
    Seen {
        /// The other shard.
        shard: u8,
        /// The number.
        number: u64,
        /// And all before it.
        and_before: bool,
    },
    /// Another shard has all that was sent there up to that number.
    Confirmed {
        /// The other shard.
        shard: u8,
        /// The number.
        number: u64,
    },
    /// A checkpoint that makes up for records that found no room: once it is complete, no record before its beginning counts.
    Checkpoint {
        /// Whether it ends here; else it begins.
        is_complete: bool,
    },
}

/// A session and who has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    /// The session.
    pub session: u64,
    /// The client's name. Empty for what a session has left that has ended: messages for shared subscriptions, which wait until
    /// another member has them. Its subscriptions and all else of it are gone.
    pub client_id: Arc<str>,
    /// How its user was established.
    pub kind: IdentityKind,
    /// The user.
    pub user: Arc<str>,
    /// The groups.
    pub groups: Vec<Arc<str>>,
    /// The version that it spoke last.
    pub version: Version,
    /// How long it outlives its connection; none forever.
    pub expiry: Option<Duration>,
    /// The connection's will.
    pub will: Option<StoredWill>,
    /// From where an anonymous client came, which tells it from others. Records of earlier versions do not say, and those of other
    /// clients need not.
    pub from: Option<CameFrom>,
    /// The number of its policy for messages of QoS 1 and 2 that find no place, which the broker gives. Records of earlier versions do not
    /// say.
    pub overflow: Option<u8>,
    /// Whether messages leave by it for another member of the fabric. Records of earlier versions have none such.
    pub is_peer: bool,
}

/// Comes before the policy; no [`CameFrom`] begins so.
const OVERFLOW: u8 = 8;
/// Stands for a peer session; neither a [`CameFrom`] nor a policy begins so.
const PEER: u8 = 9;

/// From where a client came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CameFrom {
    /// This machine, over no network.
    Machine,
    /// An address.
    Address(IpAddr),
}

/// By number, from 0; they stay.
const KINDS: [IdentityKind; 5] = [
    IdentityKind::Anonymous,
    IdentityKind::User,
    IdentityKind::Certificate,
    IdentityKind::Node,
    IdentityKind::Internal,
];
/// The same, by protocol level from 3.
const VERSIONS: [Version; 3] = [Version::V3, Version::V4, Version::V5];

/// A will.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredWill {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its payload.
    pub payload: Bytes,
    /// Properties that are forwarded, encoded.
    pub forwarded: Bytes,
    /// Its quality of service.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Its delay.
    pub delay: Duration,
    /// Message Expiry Interval in seconds.
    pub expiry: Option<u32>,
}

/// Options of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most that messages come with.
    pub qos: QoS,
    /// Whether the client's own messages do not come back.
    pub no_local: bool,
    /// Whether messages keep their retain flag.
    pub retain_as_published: bool,
    /// Subscription Identifier; 0 for none.
    pub id: u32,
}

/// A message and all that it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// Its number; 0 if no session of this shard waits for it.
    pub number: u64,
    /// The shard that it came from, and under which number.
    pub origin: Option<(u8, u64)>,
    /// The session and identifier that it came under, with QoS 2.
    pub noted: Option<(u64, PacketId)>,
    /// Of a topic that this shard owns: it is retained, or clears what was.
    pub retained: Option<RetainedAs>,
    /// Sessions of this shard that wait for it.
    pub waiting: Vec<Waiting>,
    /// The parts for other shards.
    pub sent: Vec<(u8, u64, Sent)>,
    /// Quality of service that it was published with.
    pub qos: QoS,
    /// Whether it was published to be retained.
    pub retain: bool,
    /// Whether a peer published it: it came from another member of the fabric, and goes to none.
    pub is_from_peer: bool,
    /// When it loses its worth.
    pub expires: Option<Instant>,
    /// When it was received.
    pub received: Instant,
    /// Topic.
    pub topic: Arc<str>,
    /// Properties that are forwarded, encoded.
    pub forwarded: Bytes,
    /// Payload.
    pub payload: Payload,
}

impl StoredMessage {
    /// Whether it changes what is retained, on this shard or another.
    fn is_to_be_retained(&self) -> bool {
        let is_there = |(_, _, sent): &(u8, u64, Sent)| matches!(sent, Sent::Retained(_));
        self.retained.is_some() || self.sent.iter().any(is_there)
    }
}

/// How a message is retained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedAs {
    /// The last of a topic is the one of the highest number.
    pub sequence: u64,
    /// The client that published it.
    pub client: Option<Arc<str>>,
    /// The publisher whose right was asked for; never without its client.
    pub source: Option<Source>,
}

/// The user that published a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// How the user was established.
    pub kind: IdentityKind,
    /// The user.
    pub user: Arc<str>,
    /// The groups.
    pub groups: Arc<[Arc<str>]>,
}

impl From<&Identity> for Source {
    fn from(identity: &Identity) -> Self {
        let Identity { kind, name, groups, .. } = identity;
        Self { kind: *kind, user: name.clone(), groups: groups.clone() }
    }
}

impl Source {
    /// The same, through the program `client`; the address is that of a connection, which is gone.
    pub fn identity(&self, client: &Arc<str>) -> Identity {
        Identity {
            kind: self.kind,
            name: self.user.clone(),
            groups: self.groups.clone(),
            client: client.clone(),
            address: None,
            until: None,
        }
    }
}

/// A session that waits for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The session.
    pub session: u64,
    /// The number under which the message waits there, where that is not its own: of a session that gets it twice, by a plain
    /// subscription and by a shared one. Else 0.
    pub again: u64,
    /// With which quality of service it is sent.
    pub qos: QoS,
    /// With which retain flag.
    pub retain: bool,
    /// Subscription identifiers.
    pub ids: Vec<u32>,
    /// The identifier of its exchange, if that has begun.
    pub begun: Option<PacketId>,
    /// The shared subscription that it came by, `$share/GROUP/` included.
    pub group: Option<Arc<str>>,
}

/// The role of a message at another shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// For all its sessions that subscribe.
    Plain,
    /// For a member of that shared subscription.
    Group(Box<str>),
    /// To be kept as the retained one of its topic.
    Retained(RetainedAs),
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Of a later version of this program.
    #[error("a record of version {version}, where this program knows {VERSION}")]
    Version {
        /// Its version.
        version: u8,
    },
    /// Of a kind that is not known.
    #[error("a record of the unknown kind {kind}")]
    Kind {
        /// Its kind.
        kind: u8,
    },
    /// A field is cut off or out of its range, or something follows the last one.
    #[error("a record whose {field} is wrong")]
    Field {
        /// Which.
        field: &'static str,
    },
}

impl Record {
    /// Moves its times by so many nanoseconds.
    pub(crate) fn shift(&mut self, nanos: i64) {
        let shift = |at: &mut Instant| {
            *at = Instant::from_nanos(at.as_nanos().saturating_add(nanos));
        };
        match self {
            Self::Closed { ends_at, will, .. } => {
                ends_at.iter_mut().for_each(shift);
                will.iter_mut().for_each(|(_, at)| shift(at));
            }
            Self::Message(message) => {
                shift(&mut message.received);
                message.expires.iter_mut().for_each(shift);
            }
            _ => {}
        }
    }

    /// Appends the record to `out`, but for the payload of a message, which follows it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        let mut put = Put(out);
        match self {
            Self::Opened(opened) => {
                put.u8(1);
                put.number(opened.session);
                put.text(&opened.client_id);
                put.user(opened.kind, &opened.user, &opened.groups);
                let level = VERSIONS.iter().position(|version| *version == opened.version);
                put.u8(level.expect("each has its place") as u8 + 3);
                put.time(opened.expiry);
                put.option(opened.will.as_ref(), Put::will);
                // Records of versions that knew no addresses, no policies, or no peers, end here.
                if let Some(from) = opened.from {
                    put.from(from);
                }
                if let Some(overflow) = opened.overflow {
                    put.u8(OVERFLOW);
                    put.u8(overflow);
                }
                if opened.is_peer {
                    put.u8(PEER);
                }
            }
            Self::Closed { session, expiry, ends_at, will } => {
                put.u8(2);
                put.number(*session);
                put.time(*expiry);
                put.option(ends_at.as_ref(), |put, at| put.instant(*at));
                put.option(will.as_ref(), |put, (will, at)| {
                    put.will(will);
                    put.instant(*at);
                });
            }
            Self::Ended { session } => {
                put.u8(3);
                put.number(*session);
            }
            Self::Subscribed { session, filter, options } => {
                put.u8(4);
                put.number(*session);
                put.text(filter);
                put.u8(options.qos as u8);
                put.flag(options.no_local);
                put.flag(options.retain_as_published);
                put.number(options.id.into());
            }
            Self::Unsubscribed { session, filter } => {
                put.u8(5);
                put.number(*session);
                put.text(filter);
            }
            Self::Message(message) => {
                put.u8(6);
                put.message(message);
            }
            Self::Queued { number, waiting } => {
                put.u8(7);
                put.number(*number);
                put.waiting(waiting);
            }
            Self::Begun { session, number, id } => {
                put.u8(8);
                put.number(*session);
                put.number(*number);
                put.id(*id);
            }
            Self::Accepted { session, id } => put.exchange(9, *session, *id),
            Self::Done { session, number } => {
                put.u8(10);
                put.number(*session);
                put.number(*number);
            }
            Self::Completed { session, id } => put.exchange(11, *session, *id),
            Self::Noted { session, id } => put.exchange(12, *session, *id),
            Self::Released { session, id } => put.exchange(13, *session, *id),
            Self::Seen { shard, number, and_before } => {
                put.u8(14);
                put.u8(*shard);
                put.number(*number);
                put.flag(*and_before);
            }
            Self::Confirmed { shard, number } => {
                put.u8(15);
                put.u8(*shard);
                put.number(*number);
            }
            Self::Checkpoint { is_complete } => {
                put.u8(16);
                put.flag(*is_complete);
            }
        }
    }

    /// Whether it is of what no subscriber takes away by receiving it.
    #[inline]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Opened(_) | Self::Closed { .. } | Self::Subscribed { .. } => true,
            Self::Message(message) => message.retained.is_some() && !message.payload.is_empty(),
            _ => false,
        }
    }

    /// How many exchanges of QoS 2 with subscribers it begins, so that more records are to come of each, and how many with publishers, or
    /// wills.
    #[inline]
    pub fn begins(&self) -> (usize, usize) {
        let is_twice = |waiting: &&Waiting| waiting.qos == QoS::ExactlyOnce;
        match self {
            Self::Message(message) => {
                let exchanges = message.waiting.iter().filter(is_twice).count();
                (exchanges, usize::from(message.noted.is_some()))
            }
            Self::Queued { waiting, .. } => (usize::from(waiting.qos == QoS::ExactlyOnce), 0),
            Self::Noted { .. } => (0, 1),
            // That its will is not to come is said in a record, too.
            Self::Opened(opened) => (0, usize::from(opened.will.is_some())),
            Self::Closed { will, .. } => (0, usize::from(will.is_some())),
            _ => (0, 0),
        }
    }

    /// Whether it makes more room than it takes: it clears what is retained, or takes an exchange of QoS 2 to its end.
    #[inline]
    pub fn makes_room(&self) -> bool {
        match self {
            Self::Message(message) => message.payload.is_empty() && message.is_to_be_retained(),
            Self::Begun { .. }
            | Self::Accepted { .. }
            | Self::Completed { .. }
            | Self::Released { .. } => true,
            _ => false,
        }
    }

    /// The payload after the record's head.
    #[inline]
    pub fn payload(&self) -> Payload {
        match self {
            Self::Message(message) => message.payload.clone(),
            _ => Payload::default(),
        }
    }

    /// The record that `bytes` are, head and payload; the latter stays where it is.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: &Bytes) -> Result<Self, RecordError> {
        let mut take = Take { whole: bytes, rest: Reader::new(bytes) };
        let version = take.u8("version")?;
        if version != VERSION {
            return Err(RecordError::Version { version });
        }
        let kind = take.u8("kind")?;
        let record = match kind {
            1 => Self::Opened(take.opened()?),
            2 => Self::Closed {
                session: take.number("session")?,
                expiry: take.time("expiry")?,
                ends_at: take.option(|take| take.instant("end"))?,
                will: take.option(|take| Ok((take.will()?, take.instant("end of a will")?)))?,
            },
            3 => Self::Ended { session: take.number("session")? },
            4 => Self::Subscribed {
                session: take.number("session")?,
                filter: take.filter()?,
                options: Options {
                    qos: take.qos()?,
                    no_local: take.flag("option")?,
                    retain_as_published: take.flag("option")?,
                    id: take.u32("subscription identifier")?,
                },
            },
            5 => Self::Unsubscribed { session: take.number("session")?, filter: take.filter()? },
            6 => return Ok(Self::Message(take.message()?)),
            7 => Self::Queued { number: take.number("message")?, waiting: take.waiting()? },
            8 => Self::Begun {
                session: take.number("session")?,
                number: take.number("message")?,
                id: take.id()?,
            },
            10 => Self::Done { session: take.number("session")?, number: take.number("message")? },
            9 | 11 | 12 | 13 => {
                let (session, id) = (take.number("session")?, take.id()?);
                match kind {
                    9 => Self::Accepted { session, id },
                    11 => Self::Completed { session, id },
                    12 => Self::Noted { session, id },
                    _ => Self::Released { session, id },
                }
            }
            14 => Self::Seen {
                shard: take.u8("shard")?,
                number: take.number("message")?,
                and_before: take.flag("mark")?,
            },
            15 => Self::Confirmed { shard: take.u8("shard")?, number: take.number("message")? },
            16 => Self::Checkpoint { is_complete: take.flag("mark")? },
            kind => return Err(RecordError::Kind { kind }),
        };
        if take.rest.is_empty() { Ok(record) } else { Err(RecordError::Field { field: "end" }) }
    }
}

struct Put<'a>(&'a mut Vec<u8>);

impl Put<'_> {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn flag(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    fn number(&mut self, value: u64) {
        varint::put(self.0, value);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn id(&mut self, id: PacketId) {
        self.0.extend_from_slice(&id.get().to_le_bytes());
    }

    fn instant(&mut self, at: Instant) {
        self.0.extend_from_slice(&at.as_nanos().to_le_bytes());
    }

    /// A duration, or none.
    fn time(&mut self, time: Option<Duration>) {
        let nanos = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.option(time.as_ref(), |put, time| put.number(nanos(time)));
    }

    fn option<T>(&mut self, value: Option<&T>, put: impl FnOnce(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn exchange(&mut self, kind: u8, session: u64, id: PacketId) {
        self.u8(kind);
        self.number(session);
        self.id(id);
    }

    fn will(&mut self, will: &StoredWill) {
        self.text(&will.topic);
        self.bytes(&will.payload);
        self.bytes(&will.forwarded);
        self.u8(will.qos as u8);
        self.flag(will.retain);
        self.time(Some(will.delay));
        self.option(will.expiry.as_ref(), |put, seconds| put.number((*seconds).into()));
    }

    fn from(&mut self, from: CameFrom) {
        match from {
            CameFrom::Machine => self.u8(0),
            CameFrom::Address(IpAddr::V4(address)) => {
                self.u8(4);
                self.0.extend_from_slice(&address.octets());
            }
            CameFrom::Address(IpAddr::V6(address)) => {
                self.u8(6);
                self.0.extend_from_slice(&address.octets());
            }
        }
    }

    fn retained(&mut self, retained: &RetainedAs) {
        self.number(retained.sequence);
        // Records of versions that knew no source have a mark of 0 or 1.
        let (Some(client), Some(source)) = (&retained.client, &retained.source) else {
            return self.option(retained.client.as_ref(), |put, client| put.text(client));
        };
        self.u8(HAS_SOURCE);
        self.text(client);
        self.user(source.kind, &source.user, &source.groups);
    }

    fn user(&mut self, kind: IdentityKind, user: &str, groups: &[Arc<str>]) {
        let kind = KINDS.iter().position(|known| *known == kind);
        self.u8(kind.expect("each has its place") as u8);
        self.text(user);
        self.number(groups.len() as u64);
        for group in groups {
            self.text(group);
        }
    }

    fn waiting(&mut self, waiting: &Waiting) {
        self.number(waiting.session);
        self.number(waiting.again);
        self.u8(waiting.qos as u8);
        // Records of versions that knew no groups here have the lower bit alone.
        let group = if waiting.group.is_some() { IN_GROUP } else { 0 };
        self.u8(u8::from(waiting.retain) | group);
        if let Some(group) = &waiting.group {
            self.text(group);
        }
        self.number(waiting.ids.len() as u64);
        for id in &waiting.ids {
            self.number((*id).into());
        }
        self.option(waiting.begun.as_ref(), |put, id| put.id(*id));
    }

    fn message(&mut self, message: &StoredMessage) {
        self.number(message.number);
        self.option(message.origin.as_ref(), |put, (shard, number)| {
            put.u8(*shard);
            put.number(*number);
        });
        self.option(message.noted.as_ref(), |put, (session, id)| {
            put.number(*session);
            put.id(*id);
        });
        self.option(message.retained.as_ref(), Put::retained);
        self.number(message.waiting.len() as u64);
        for waiting in &message.waiting {
            self.waiting(waiting);
        }
        self.number(message.sent.len() as u64);
        for (shard, number, sent) in &message.sent {
            self.u8(*shard);
            self.number(*number);
            match sent {
                Sent::Plain => self.u8(0),
                Sent::Group(name) => {
                    self.u8(1);
                    self.text(name);
                }
                Sent::Retained(retained) => {
                    self.u8(2);
                    self.retained(retained);
                }
            }
        }
        self.u8(message.qos as u8);
        // Records of versions that knew no peers have the lower bit alone.
        let from_peer = if message.is_from_peer { FROM_PEER } else { 0 };
        self.u8(u8::from(message.retain) | from_peer);
        self.option(message.expires.as_ref(), |put, at| put.instant(*at));
        self.instant(message.received);
        self.text(&message.topic);
        self.bytes(&message.forwarded);
    }
}

struct Take<'a> {
    whole: &'a Bytes,
    rest: Reader<'a>,
}

impl From<Unreadable> for RecordError {
    fn from(Unreadable { field }: Unreadable) -> Self {
        Self::Field { field }
    }
}

type Taken<T> = Result<T, RecordError>;

impl<'a> Take<'a> {
    fn u8(&mut self, field: &'static str) -> Taken<u8> {
        Ok(self.rest.u8(field)?)
    }

    fn flag(&mut self, field: &'static str) -> Taken<bool> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(RecordError::Field { field }),
        }
    }

    fn number(&mut self, field: &'static str) -> Taken<u64> {
        Ok(self.rest.varint(field)?)
    }

    fn u32(&mut self, field: &'static str) -> Taken<u32> {
        u32::try_from(self.number(field)?).map_err(|_| RecordError::Field { field })
    }

    /// A length of what follows, of which each part has at least a byte.
    fn count(&mut self, field: &'static str) -> Taken<usize> {
        let count = self.number(field)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= self.rest.rest().len());
        count.ok_or(RecordError::Field { field })
    }

    fn bytes(&mut self, field: &'static str) -> Taken<Bytes> {
        let count = self.count(field)?;
        Ok(self.whole.slice_ref(self.rest.bytes(count, field)?))
    }

    fn text(&mut self, field: &'static str) -> Taken<&'a str> {
        let count = self.count(field)?;
        let text = std::str::from_utf8(self.rest.bytes(count, field)?);
        text.map_err(|_| RecordError::Field { field })
    }

    fn topic(&mut self, field: &'static str) -> Taken<Arc<str>> {
        let topic = self.text(field)?;
        check_topic_name(topic, usize::MAX).map_err(|_| RecordError::Field { field })?;
        Ok(topic.into())
    }

    fn filter(&mut self) -> Taken<Box<str>> {
        let wrong = |_| RecordError::Field { field: "filter" };
        let filter = self.text("filter")?;
        let inner = split_shared(filter).map_err(wrong)?.map_or(filter, |shared| shared.filter);
        check_topic_filter(inner, usize::MAX).map_err(wrong)?;
        Ok(filter.into())
    }

    fn instant(&mut self, field: &'static str) -> Taken<Instant> {
        Ok(Instant::from_nanos(self.rest.i64_le(field)?))
    }

    fn id(&mut self) -> Taken<PacketId> {
        let id = self.rest.u16_le("packet identifier")?;
        PacketId::new(id).ok_or(RecordError::Field { field: "packet identifier" })
    }

    fn qos(&mut self) -> Taken<QoS> {
        match self.u8("QoS")? {
            0 => Ok(QoS::AtMostOnce),
            1 => Ok(QoS::AtLeastOnce),
            2 => Ok(QoS::ExactlyOnce),
            _ => Err(RecordError::Field { field: "QoS" }),
        }
    }

    fn option<T>(&mut self, take: impl FnOnce(&mut Self) -> Taken<T>) -> Taken<Option<T>> {
        if self.flag("mark")? { take(self).map(Some) } else { Ok(None) }
    }

    fn time(&mut self, field: &'static str) -> Taken<Option<Duration>> {
        self.option(|take| take.number(field).map(Duration::from_nanos))
    }

    fn list<T>(
        &mut self,
        field: &'static str,
        mut take: impl FnMut(&mut Self) -> Taken<T>,
    ) -> Taken<Vec<T>> {
        let count = self.count(field)?;
        (0..count).map(|_| take(self)).collect()
    }

    fn opened(&mut self) -> Taken<Opened> {
        Ok(Opened {
            session: self.number("session")?,
            client_id: self.text("client identifier")?.into(),
            kind: self.kind()?,
            user: self.text("user")?.into(),
            groups: self.groups()?,
            version: {
                let level = self.u8("protocol level")?;
                let version = VERSIONS.get(usize::from(level.wrapping_sub(3)));
                *version.ok_or(RecordError::Field { field: "protocol level" })?
            },
            expiry: self.time("expiry")?,
            will: self.option(Self::will)?,
            from: match self.rest.rest().first() {
                None | Some(&(OVERFLOW | PEER)) => None,
                Some(_) => Some(self.from()?),
            },
            overflow: match self.rest.rest().first() {
                Some(&OVERFLOW) => {
                    self.u8("overflow")?;
                    Some(self.u8("overflow")?)
                }
                _ => None,
            },
            is_peer: match self.rest.rest().first() {
                Some(&PEER) => self.u8("peer")? == PEER,
                _ => false,
            },
        })
    }

    fn from(&mut self) -> Taken<CameFrom> {
        match self.u8("address")? {
            0 => Ok(CameFrom::Machine),
            4 => Ok(CameFrom::Address(IpAddr::from(self.rest.array::<4>("address")?))),
            6 => Ok(CameFrom::Address(IpAddr::from(self.rest.array::<16>("address")?))),
            _ => Err(RecordError::Field { field: "address" }),
        }
    }

    fn will(&mut self) -> Taken<StoredWill> {
        Ok(StoredWill {
            topic: self.topic("topic of a will")?,
            payload: self.bytes("payload of a will")?,
            forwarded: self.bytes("properties of a will")?,
            qos: self.qos()?,
            retain: self.flag("retain flag")?,
            delay: self.time("delay of a will")?.unwrap_or_default(),
            expiry: self.option(|take| take.u32("expiry of a will"))?,
        })
    }

    fn kind(&mut self) -> Taken<IdentityKind> {
        let kind = self.u8("kind of user")?;
        let kind = KINDS.get(usize::from(kind));
        kind.copied().ok_or(RecordError::Field { field: "kind of user" })
    }

    fn groups(&mut self) -> Taken<Vec<Arc<str>>> {
        self.list("groups", |take| take.text("group").map(Arc::from))
    }

    fn retained(&mut self) -> Taken<RetainedAs> {
        let sequence = self.number("sequence")?;
        let mark = self.u8("mark")?;
        let client = match mark {
            0 => None,
            1 | HAS_SOURCE => Some(self.text("client identifier")?.into()),
            _ => return Err(RecordError::Field { field: "mark" }),
        };
        let source = match mark {
            HAS_SOURCE => Some(Source {
                kind: self.kind()?,
                user: self.text("user")?.into(),
                groups: self.groups()?.into(),
            }),
            _ => None,
        };
        Ok(RetainedAs { sequence, client, source })
    }

    fn waiting(&mut self) -> Taken<Waiting> {
        let (session, again, qos) = (self.number("session")?, self.number("message")?, self.qos()?);
        let flags = self.u8("retain flag")?;
        if flags & !(IN_GROUP | 1) != 0 {
            return Err(RecordError::Field { field: "retain flag" });
        }
        let group = if flags & IN_GROUP != 0 { Some(self.text("group")?.into()) } else { None };
        Ok(Waiting {
            session,
            again,
            qos,
            retain: flags & 1 != 0,
            group,
            ids: self
                .list("subscription identifiers", |take| take.u32("subscription identifier"))?,
            begun: self.option(Self::id)?,
        })
    }

    fn message(&mut self) -> Taken<StoredMessage> {
        let number = self.number("message")?;
        let origin =
            self.option(|take| Ok((take.u8("shard")?, take.number("number of a shard")?)))?;
        let noted = self.option(|take| Ok((take.number("session")?, take.id()?)))?;
        let retained = self.option(Self::retained)?;
        let waiting = self.list("sessions", Self::waiting)?;
        let sent = self.list("shards", |take| {
            let (shard, number) = (take.u8("shard")?, take.number("number of a shard")?);
            let sent = match take.u8("kind")? {
                0 => Sent::Plain,
                1 => Sent::Group(take.text("group")?.into()),
                2 => Sent::Retained(take.retained()?),
                _ => return Err(RecordError::Field { field: "kind" }),
            };
            Ok((shard, number, sent))
        })?;
        let qos = self.qos()?;
        let flags = self.u8("retain flag")?;
        if flags & !(FROM_PEER | 1) != 0 {
            return Err(RecordError::Field { field: "retain flag" });
        }
        Ok(StoredMessage {
            number,
            origin,
            noted,
            retained,
            waiting,
            sent,
            qos,
            retain: flags & 1 != 0,
            is_from_peer: flags & FROM_PEER != 0,
            expires: self.option(|take| take.instant("expiry"))?,
            received: self.instant("time")?,
            topic: self.topic("topic")?,
            forwarded: self.bytes("properties")?,
            payload: Payload::from(self.whole.slice_ref(self.rest.rest())),
        })
    }
}

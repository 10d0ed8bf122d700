//! Another MQTT broker.
//!
//! ```text
//!  batch ─▶ PUBLISH, QoS 1, as many as the broker takes at a time ─▶ broker
//!    ▲                                                                 │
//!    └── taken, or refused for good ◀──────────── PUBACK ◀─────────────┘
//! ```
//!
//! # What is promised
//!
//! A message is taken when the broker has acknowledged it: at least once, and as durable as it is there. The sink keeps no session at
//! the broker: after a break the batch comes again, in its order. A message is refused for good when PUBACK says so, when it is longer
//! than the broker takes, or when the broker ends the connection for it: messages then go one by one until a batch was taken, so that it
//! is known which it was. A broker that says no reason, as in MQTT 3.1.1, has to close [`CLOSES_MAX`] connections in a row on which that
//! message alone was under way. A broker that has no room for now (reason 0x97) is asked again later.
//!
//! Properties of a message and what is left of its expiry go with it, to brokers of MQTT 5. As a bridge does, the sink adds this node to
//! the nodes that a message passed, and does not send one back to where it came from ([`tidegate_wire::mqtt::path`]): such a message counts
//! as taken.

use std::{
    fmt,
    io::{self, ErrorKind},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use rustls::ClientConfig;
use tidegate_bus::seconds_left;
use tidegate_message::Secret;
use tidegate_process::{
    clock,
    http::{self, Stream},
};
use tidegate_wire::mqtt::{
    Connect, PublishProperties, QoS, ReasonCode, Version,
    client::{Client, ClientError, Config, Event, Publication, PublishError, ReceiveBuffer},
    path::{Direction, Stamps},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};

use super::{Batch, Destination, Record, Refusal, Trouble};

/// Messages that are under way at a time, if the broker takes as many.
const WINDOW: NonZeroU16 = NonZeroU16::new(1024).expect("not zero");
/// Bytes that are written before it is looked whether an answer has come.
const WRITE_BYTES: usize = 64 << 10;
/// Longest wait for the connection and for CONNACK.
const GREETING: Duration = Duration::from_secs(10);
/// Connections that a broker has to close without a word, all while the same message was under way by itself, to have refused it.
const CLOSES_MAX: u32 = 3;

/// Which broker, and who comes.
#[derive(Clone, Debug)]
pub struct MqttSettings {
    /// The broker's host.
    pub host: String,
    /// And port.
    pub port: u16,
    /// The trusted authorities, where TLS is used.
    pub tls: Option<Arc<ClientConfig>>,
    /// The sink's name at the broker.
    pub client_id: String,
    /// User name there.
    pub username: Option<String>,
    /// Password there.
    pub password: Option<Secret>,
    /// The name of this node among those that a message passed.
    pub node: String,
}

/// Two are the same by what was configured, whatever files said that were read for it.
impl PartialEq for MqttSettings {
    fn eq(&self, other: &Self) -> bool {
        let of = |settings: &Self| {
            let Self { host, port, client_id, username, password, node, .. } = settings.clone();
            (host, port, settings.tls.is_some(), client_id, username, password, node)
        };
        of(self) == of(other)
    }
}

/// The destination.
#[derive(Debug)]
pub(super) struct Mqtt {
    settings: MqttSettings,
    stamps: Stamps,
    connection: Option<Connection>,
    /// A connection seems to end for the sake of a message: until a batch was taken they go one by one.
    one_by_one: bool,
    /// Tries of a batch that ended so, without a word.
    closes: u32,
}

/// Why messages of a batch are still to be sent.
#[derive(Debug)]
enum Broken {
    /// The connection is no more.
    Ended(Trouble),
    /// The broker closed it without a word.
    Closed,
    /// The broker said so.
    Disconnected(ReasonCode),
    /// The broker takes nothing for now.
    NoRoom,
}

/// How far a batch is.
struct Progress<'a> {
    batch: &'a Batch,
    /// Which messages are taken or refused.
    is_settled: Vec<bool>,
    refusals: Vec<Refusal>,
}

impl Mqtt {
    pub(super) fn new(settings: MqttSettings) -> Self {
        Self {
            stamps: Stamps::new(&settings.node),
            settings,
            connection: None,
            one_by_one: false,
            closes: 0,
        }
    }
}

#[async_trait]
impl Destination for Mqtt {
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble> {
        let mut progress = Progress {
            batch,
            is_settled: vec![false; batch.records().len()],
            refusals: Vec::new(),
        };
        let mut closed_at = (0, 0);
        loop {
            let (mut connection, was_kept) = match self.connection.take() {
                Some(connection) => (connection, true),
                None => (Connection::connect(&self.settings).await?, false),
            };
            let window = if self.one_by_one { 1 } else { usize::from(WINDOW.get()) };
            let before = progress.settled();
            let broken = match connection.carry(&self.stamps, &mut progress, window).await {
                Ok(()) => {
                    self.connection = Some(connection);
                    (self.one_by_one, self.closes) = (false, 0);
                    progress.refusals.sort_by_key(|refusal| refusal.place);
                    return Ok(progress.refusals);
                }
                Err(broken) => broken,
            };
            // The places of those that the broker has not answered.
            let under_way: Vec<usize> = connection.client.tokens().copied().collect();
            let has_moved = progress.settled() > before;
            match broken {
                Broken::Disconnected(reason) if is_for_message(reason) && under_way.len() == 1 => {
                    let reason = format!("the broker ended the connection for it: {reason}");
                    progress.settle(under_way[0], Some(reason));
                    continue;
                }
                Broken::Disconnected(reason) if is_for_message(reason) && !self.one_by_one => {
                    self.one_by_one = true;
                    continue;
                }
                // It may have ended since the last batch.
                _ if was_kept && !has_moved => continue,
                Broken::Closed if self.one_by_one && under_way.len() == 1 => {
                    let place = under_way[0];
                    let before = if closed_at.0 == place { closed_at.1 } else { 0 };
                    closed_at = (place, before + 1);
                    if closed_at.1 == CLOSES_MAX {
                        let text = "the broker closed each connection on which it was sent";
                        progress.settle(place, Some(text.to_owned()));
                    }
                    continue;
                }
                Broken::Closed if !under_way.is_empty() => {
                    self.closes += 1;
                    // Once, it may have been for anything.
                    self.one_by_one = self.closes > 1;
                    return Err(of(Broken::Closed));
                }
                broken => return Err(of(broken)),
            }
        }
    }
}

/// Whether a broker ends a connection so for the sake of one message.
fn is_for_message(reason: ReasonCode) -> bool {
    [
        ReasonCode::MALFORMED_PACKET,
        ReasonCode::TOPIC_NAME_INVALID,
        ReasonCode::PACKET_TOO_LARGE,
        ReasonCode::PAYLOAD_FORMAT_INVALID,
    ]
    .contains(&reason)
}

impl Progress<'_> {
    fn settled(&self) -> usize {
        self.is_settled.iter().filter(|is_settled| **is_settled).count()
    }

    fn settle(&mut self, place: usize, refused: Option<String>) {
        self.is_settled[place] = true;
        self.refusals.extend(refused.map(|reason| Refusal::new(place, reason)));
        self.batch.step();
    }

    /// The first message from `place` on that is to be sent.
    fn next(&self, place: usize) -> Option<usize> {
        let left = self.is_settled.get(place..)?;
        left.iter().position(|is_settled| !is_settled).map(|ahead| place + ahead)
    }
}

/// Why there is no connection.
#[derive(Debug)]
struct NotOpen {
    trouble: Trouble,
    /// Whether it may be for the version that was spoken.
    is_for_version: bool,
}

impl From<Trouble> for NotOpen {
    fn from(trouble: Trouble) -> Self {
        Self { trouble, is_for_version: false }
    }
}

/// A connection that was accepted.
struct Connection {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    /// Each message with its place in the batch.
    client: Client<usize>,
    input: ReceiveBuffer,
    output: Vec<u8>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("version", &self.client.version())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects in MQTT 5, or in 3.1.1 if the broker seems not to know that.
    async fn connect(settings: &MqttSettings) -> Result<Self, Trouble> {
        match Self::open(settings, Version::V5).await {
            Err(NotOpen { trouble, is_for_version: true }) => {
                let second = Self::open(settings, Version::V4).await;
                second.map_err(|error| if error.is_for_version { trouble } else { error.trouble })
            }
            first => first.map_err(|error| error.trouble),
        }
    }

    async fn open(settings: &MqttSettings, version: Version) -> Result<Self, NotOpen> {
        let opened = tokio::time::timeout(GREETING, Self::greet(settings, version)).await;
        opened.unwrap_or_else(|_| {
            let text = format!("the broker did not answer CONNECT within {GREETING:?}");
            Err(Trouble::new(text).into())
        })
    }

    async fn greet(settings: &MqttSettings, version: Version) -> Result<Self, NotOpen> {
        let MqttSettings { host, port, tls, .. } = settings;
        let stream = http::dial(host, *port, tls.as_ref()).await.map_err(|error| {
            Trouble::of(format!("no connection to the broker at {host}:{port}"), error)
        })?;
        let (reader, writer) = tokio::io::split(stream);
        let config = Config {
            inflight_max: WINDOW,
            packet_bytes_max: ANSWER_BYTES_MAX,
            ..Config::default()
        };
        let (client, input) = (Client::new(config), ReceiveBuffer::default());
        let mut connection = Self { reader, writer, client, input, output: Vec::new() };
        let connect = Connect {
            username: settings.username.clone(),
            password: settings.password.as_deref().map(<[u8]>::to_vec),
            // Without keep alive: a broker that has gone silently is found out by the next batch.
            ..Connect::new(version, settings.client_id.clone())
        };
        let begun = connection.client.connect(clock::now(), &connect);
        begun.map_err(|error| Trouble::of("CONNECT cannot be encoded", error))?;
        let ended =
            |broken| NotOpen { trouble: of(broken), is_for_version: version == Version::V5 };
        connection.write().await.map_err(ended)?;
        loop {
            let mut input = connection.input.bytes();
            let received = connection.client.receive(&mut input);
            let event = received.map_err(|error| match error {
                ClientError::Refused { reason, .. } => NotOpen {
                    trouble: Trouble::new(format!("the broker refuses the connection: {reason}")),
                    is_for_version: reason == ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
                },
                error => ended(Broken::Ended(Trouble::of(NO_CONNACK, error))),
            })?;
            let is_welcome = event.is_some();
            let left = input.len();
            connection.input.keep(left);
            if is_welcome {
                break;
            }
            connection.read().await.map_err(ended)?;
        }
        if connection.client.limits().qos_max == QoS::AtMostOnce {
            let text = "the broker takes messages of QoS 0 alone, which it does not acknowledge: a sink needs QoS 1";
            return Err(Trouble::new(text).into());
        }
        Ok(connection)
    }

    /// Sends what is to be sent, and takes the answers, until nothing is left of either.
    async fn carry(
        &mut self,
        stamps: &Stamps,
        progress: &mut Progress<'_>,
        window: usize,
    ) -> Result<(), Broken> {
        let mut next = progress.next(0);
        loop {
            while let Some(place) = next
                && self.has_room(window)
                && self.client.output_bytes() < WRITE_BYTES
            {
                self.put(stamps, progress, place);
                next = progress.next(place + 1);
            }
            self.write().await?;
            let goes_on = next.is_some() && self.has_room(window);
            if !goes_on && self.client.unacknowledged() == 0 {
                return Ok(());
            }
            self.take_answers(progress)?;
            if goes_on {
                // Bytes that have come are read, and no others are waited for.
                tokio::select! {
                    biased;
                    read = self.read() => read?,
                    () = std::future::ready(()) => {}
                }
            } else if self.client.unacknowledged() > 0 {
                self.read().await?;
            }
            self.take_answers(progress)?;
        }
    }

    fn has_room(&self, window: usize) -> bool {
        self.client.unacknowledged() < window && self.client.room() > 0
    }

    /// Sends one message, unless it is refused or does not go there.
    fn put(&mut self, stamps: &Stamps, progress: &mut Progress<'_>, place: usize) {
        let Record { topic, payload, forwarded, expires, .. } = &progress.batch.records()[place];
        let properties = PublishProperties::decode(forwarded).ok();
        let may_go = properties
            .is_none_or(|properties| stamps.passes(Direction::Out, properties.user_properties()));
        if !may_go {
            progress.batch.pass_over(1);
            return progress.settle(place, None);
        }
        let now = clock::now();
        if expires.is_some_and(|at| at <= now) {
            // No subscriber there would be sent it.
            return progress.settle(place, None);
        }
        let message = Publication {
            topic,
            payload,
            qos: QoS::AtLeastOnce,
            message_expiry: seconds_left(*expires, now),
            forwarded: &[forwarded, stamps.property(Direction::Out)].concat(),
            ..Publication::default()
        };
        let refused = match self.client.publish(&message, place) {
            Ok(_) => return,
            Err(PublishError::TooLarge { packet_bytes, maximum }) => {
                format!("a packet of {packet_bytes} bytes; the broker takes {maximum} at most")
            }
            Err(error) => error.to_string(),
        };
        progress.settle(place, Some(refused));
    }

    fn take_answers(&mut self, progress: &mut Progress<'_>) -> Result<(), Broken> {
        let mut input = self.input.bytes();
        while let Some(event) = self.client.receive(&mut input)? {
            let Event::Acknowledged { token, reason, reason_string, .. } = event else {
                // Nothing was subscribed to.
                let text = "the broker sent a message, although the sink has no subscription";
                return Err(Broken::Ended(Trouble::new(text)));
            };
            if reason == ReasonCode::QUOTA_EXCEEDED {
                return Err(Broken::NoRoom);
            }
            let said = reason_string.map(|text| format!(" ({text})")).unwrap_or_default();
            let refused = reason.is_failure().then(|| format!("the broker answers {reason}{said}"));
            progress.settle(token, refused);
        }
        let left = input.len();
        self.input.keep(left);
        Ok(())
    }

    /// # Cancel safety
    /// Nothing is lost.
    async fn read(&mut self) -> Result<(), Broken> {
        match self.reader.read_buf(self.input.spare()).await {
            Ok(0) => Err(Broken::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(broke(error)),
        }
    }

    async fn write(&mut self) -> Result<(), Broken> {
        if self.client.transmit(clock::now(), &mut self.output) {
            self.writer.write_all(&self.output).await.map_err(broke)?;
            self.writer.flush().await.map_err(broke)?;
            self.output.clear();
        }
        Ok(())
    }
}

/// Longest packet that is an answer.
const ANSWER_BYTES_MAX: u32 = 64 << 10;
const NO_CONNACK: &str = "the broker did not answer CONNECT with a valid CONNACK";

fn broke(error: io::Error) -> Broken {
    if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) {
        return Broken::Closed;
    }
    Broken::Ended(Trouble::of("the connection to the broker broke", error))
}

impl From<ClientError> for Broken {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Disconnected { reason, .. } => Self::Disconnected(reason),
            error => Self::Ended(Trouble::of("the broker broke the protocol", error)),
        }
    }
}

/// Reason why a batch is tried again later.
fn of(broken: Broken) -> Trouble {
    match broken {
        Broken::Ended(trouble) => trouble,
        Broken::Closed => Trouble::new("the broker closed the connection"),
        Broken::Disconnected(reason) => {
            Trouble::new(format!("the broker ended the connection: {reason}"))
        }
        Broken::NoRoom => Trouble::new("the broker has no room for a message now (0x97)"),
    }
}

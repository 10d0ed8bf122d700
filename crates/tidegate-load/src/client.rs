//! One blocking connection to a broker, for the command line and for tests.
//!
//! ```text
//!  Client::connect ─▶ subscribe ─▶ receive … ─▶ disconnect
//!                  └▶ publish, back when the broker has acknowledged it
//! ```
//!
//! Always true: messages that arrive while an answer is waited for are kept for [`Client::receive`], up to a bound; a message of
//! QoS 2 is given out once per exchange; nothing waits longer than its timeout; every error names the broker.

mod error;
mod link;

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate_wire::mqtt::{
    AckKind, Connack, Connect, ConnectProperties, Disconnect, FixedHeader, ForwardedProperties,
    Packet, PacketId, Publish, PublishHead, QoS, ReasonCode, Subscribe, SubscribeFilter,
    Unsubscribe, UserProperties, Version, Will, encode_ack,
};

pub use self::error::{ClientError, Peer};
use self::link::Link;
pub(crate) use self::link::dial;

/// Messages kept for [`Client::receive`] while an answer is waited for.
const WAITING_MAX: usize = 1 << 16;

/// How to connect.
#[derive(Clone)]
pub struct Options {
    /// Host name or address. Default `127.0.0.1`.
    pub host: String,
    /// Port. Default 1883.
    pub port: u16,
    /// Version of the protocol. Default 5.
    pub version: Version,
    /// The client's name; empty, the default, lets the broker choose.
    pub client_id: String,
    /// Whether a session of that name is discarded. Default true.
    pub clean_start: bool,
    /// Keep alive in seconds, 0 for none. Default 60. Kept by [`Client::receive`], which has to be called often enough.
    pub keep_alive: u16,
    /// Seconds that the session outlives the connection, in MQTT 5. Default none: it does not.
    pub session_expiry: Option<u32>,
    /// Messages of QoS 1 and 2 that the broker may leave unacknowledged, in MQTT 5. Default none: 65,535.
    pub receive_maximum: Option<std::num::NonZeroU16>,
    /// User name. Default none.
    pub username: Option<String>,
    /// Password. Default none.
    pub password: Option<Vec<u8>>,
    /// What is published when the connection ends without a word. Default none.
    pub will: Option<Will>,
    /// User properties of CONNECT, in MQTT 5. Default none.
    pub user_properties: UserProperties,
    /// Largest packet that is taken, in bytes. Default 256 MiB, the protocol's own.
    pub packet_bytes_max: usize,
    /// For the connection and for each answer. Default 10 s.
    pub timeout: Duration,
    /// TLS, with whom to trust. Default none.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The path of a WebSocket, such as [`crate::url::PATH`]. Default none: no WebSocket.
    pub websocket: Option<String>,
}

/// Says nothing of the password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("version", &self.version)
            .field("client_id", &self.client_id)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 1883,
            version: Version::V5,
            client_id: String::new(),
            clean_start: true,
            keep_alive: 60,
            session_expiry: None,
            receive_maximum: None,
            username: None,
            password: None,
            will: None,
            user_properties: Vec::new(),
            packet_bytes_max: 256 << 20,
            timeout: Duration::from_secs(10),
            tls: None,
            websocket: None,
        }
    }
}

impl Options {
    /// The first packet of a connection.
    pub(crate) fn greeting(&self) -> Connect {
        Connect {
            version: self.version,
            bridge: false,
            clean_start: self.clean_start,
            keep_alive: self.keep_alive,
            client_id: self.client_id.clone(),
            will: self.will.clone(),
            username: self.username.clone(),
            password: self.password.clone(),
            properties: ConnectProperties {
                session_expiry: self.session_expiry,
                receive_maximum: self.receive_maximum,
                user_properties: self.user_properties.clone(),
                ..ConnectProperties::default()
            },
        }
    }
}

/// A message to publish.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
    /// Quality of service.
    pub qos: QoS,
    /// Whether the broker keeps it for later subscribers.
    pub retain: bool,
    /// Message Expiry Interval in seconds, in MQTT 5.
    pub message_expiry: Option<u32>,
    /// User properties, in MQTT 5.
    pub user_properties: &'a [(String, String)],
}

/// A message received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// Quality of service it came with.
    pub qos: QoS,
    /// Whether the broker had kept it.
    pub retain: bool,
    /// Whether it may have been sent before.
    pub dup: bool,
    /// Message Expiry Interval left, in seconds.
    pub message_expiry: Option<u32>,
    /// User properties.
    pub user_properties: UserProperties,
}

/// A connection to a broker.
#[derive(Debug)]
pub struct Client {
    link: Link,
    options: Options,
    connack: Connack,
    keep_alive: Duration,
    input: Vec<u8>,
    /// Bytes of `input` that have been handled.
    used: usize,
    out: Vec<u8>,
    waiting: VecDeque<Message>,
    /// Exchanges of QoS 2 whose message has been given out.
    held: HashSet<PacketId>,
    last_id: u16,
    wrote_at: Instant,
    /// When PINGREQ was sent, while its answer has not come.
    pinged_at: Option<Instant>,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Connack,
    Ack(AckKind, PacketId),
    Suback(PacketId),
    Unsuback(PacketId),
    /// A message for the caller.
    Message,
}

/// What was waited for.
enum Answer {
    Connack(Box<Connack>),
    Reason(ReasonCode),
    Reasons(Vec<ReasonCode>),
    Message,
}

impl Client {
    /// Connects and waits for the broker's welcome.
    ///
    /// # Errors
    /// Any of [`ClientError`], but `Publish` and `Subscribe`.
    pub fn connect(options: Options) -> Result<Self, ClientError> {
        let link = Link::open(&options)?;
        let connect = options.greeting();
        let mut client = Self {
            link,
            connack: Connack::default(),
            keep_alive: Duration::from_secs(u64::from(options.keep_alive)),
            input: Vec::new(),
            used: 0,
            out: Vec::new(),
            waiting: VecDeque::new(),
            held: HashSet::new(),
            last_id: 0,
            wrote_at: Instant::now(),
            pinged_at: None,
            options,
        };
        client.send(&Packet::Connect(Box::new(connect)))?;
        let Answer::Connack(connack) = client.answer(Wanted::Connack, "CONNACK")? else {
            unreachable!("only CONNACK answers CONNECT");
        };
        if connack.reason.is_failure() {
            return Err(ClientError::Refused {
                peer: client.peer(),
                reason: connack.reason,
                reason_string: connack.properties.reason_string.clone(),
            });
        }
        if let Some(seconds) = connack.properties.server_keep_alive {
            client.keep_alive = Duration::from_secs(u64::from(seconds));
        }
        client.connack = *connack;
        Ok(client)
    }

    /// What the broker said to the connection: whether it kept a session, and its limits.
    pub fn connack(&self) -> &Connack {
        &self.connack
    }

    /// Subscribes, and returns the reason for each filter: the QoS granted, or why not.
    ///
    /// # Errors
    /// Any of [`ClientError`], but `Publish`. A filter refused is no error.
    pub fn subscribe(
        &mut self,
        filters: &[SubscribeFilter],
    ) -> Result<Vec<ReasonCode>, ClientError> {
        let packet_id = self.packet_id();
        self.send(&Packet::Subscribe(Subscribe {
            packet_id,
            subscription_id: None,
            user_properties: Vec::new(),
            filters: filters.to_vec(),
        }))?;
        match self.answer(Wanted::Suback(packet_id), "SUBACK")? {
            Answer::Reasons(reasons) => Ok(reasons),
            _ => unreachable!("only SUBACK answers SUBSCRIBE"),
        }
    }

    /// Unsubscribes, and returns the reason for each filter; before MQTT 5 there is none.
    ///
    /// # Errors
    /// Any of [`ClientError`], but `Publish` and `Subscribe`.
    pub fn unsubscribe(&mut self, filters: &[&str]) -> Result<Vec<ReasonCode>, ClientError> {
        let packet_id = self.packet_id();
        self.send(&Packet::Unsubscribe(Unsubscribe {
            packet_id,
            user_properties: Vec::new(),
            filters: filters.iter().map(|&filter| filter.to_owned()).collect(),
        }))?;
        match self.answer(Wanted::Unsuback(packet_id), "UNSUBACK")? {
            Answer::Reasons(reasons) => Ok(reasons),
            _ => unreachable!("only UNSUBACK answers UNSUBSCRIBE"),
        }
    }

    /// Publishes a message and, with QoS 1 and 2, waits until the broker has it. Returns its reason: success, or that nobody
    /// subscribes.
    ///
    /// # Errors
    /// Any of [`ClientError`]; `Publish` if the broker does not take it.
    pub fn publish(&mut self, message: &Outgoing<'_>) -> Result<ReasonCode, ClientError> {
        let packet_id = (message.qos != QoS::AtMostOnce).then(|| self.packet_id());
        self.write_publish(message, packet_id)?;
        self.flush()?;
        let Some(packet_id) = packet_id else { return Ok(ReasonCode::SUCCESS) };
        let first = if message.qos == QoS::AtLeastOnce { AckKind::Puback } else { AckKind::Pubrec };
        let reason = self.acknowledged(first, packet_id)?;
        if reason.is_failure() {
            let topic = message.topic.to_owned();
            return Err(ClientError::Publish { peer: self.peer(), topic, reason });
        }
        if message.qos == QoS::ExactlyOnce {
            encode_ack(
                self.version(),
                AckKind::Pubrel,
                packet_id,
                ReasonCode::SUCCESS,
                &mut self.out,
            );
            self.flush()?;
            self.acknowledged(AckKind::Pubcomp, packet_id)?;
        }
        Ok(reason)
    }

    /// The next message; none if there is none within `timeout`. Keeps the connection alive.
    ///
    /// # Errors
    /// `Tls`, `Frame`, `Io`, `Closed`, `Disconnected`, `Packet`, `Unexpected` and `Silent`.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Message>, ClientError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return Ok(Some(message));
            }
            match self.wait(Wanted::Message, until)? {
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Says farewell and ends the connection; no will is published.
    ///
    /// # Errors
    /// `Io`, if the farewell could not be written.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        self.send(&Packet::Disconnect(Disconnect::default()))?;
        self.link.end();
        Ok(())
    }

    /// Ends the connection without a word, so that the will is published.
    pub fn abort(self) {
        self.link.abort();
    }

    fn version(&self) -> Version {
        self.options.version
    }

    pub(crate) fn peer(&self) -> Peer {
        self.link.peer().clone()
    }

    /// One exchange runs at a time, so that any identifier but the last is free.
    fn packet_id(&mut self) -> PacketId {
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        PacketId::new(self.last_id).expect("it starts over at 1")
    }

    fn write_publish(
        &mut self,
        message: &Outgoing<'_>,
        packet_id: Option<PacketId>,
    ) -> Result<(), ClientError> {
        let topic = message.topic;
        if topic.is_empty() || topic.len() > 0xFFFF || topic.contains(['+', '#', '\0']) {
            return Err(ClientError::Topic { topic: topic.to_owned() });
        }
        let mut forwarded = Vec::new();
        let properties = message.user_properties.iter();
        ForwardedProperties {
            user_properties: properties.map(|(name, value)| (&**name, &**value)).collect(),
            ..ForwardedProperties::default()
        }
        .encode(&mut forwarded)?;
        let head = PublishHead {
            dup: false,
            qos: message.qos,
            retain: message.retain,
            topic,
            packet_id,
            topic_alias: None,
            message_expiry: message.message_expiry,
            subscription_ids: &[],
            forwarded: &forwarded,
            payload_bytes: message.payload.len(),
        };
        let packet_bytes = head.packet_bytes(self.version());
        let maximum = self.connack.properties.maximum_packet_size.unwrap_or(u32::MAX) as usize;
        if packet_bytes > maximum.min(256 << 20) {
            return Err(ClientError::TooLarge { peer: self.peer(), packet_bytes, maximum });
        }
        head.encode(self.version(), &mut self.out);
        self.out.extend_from_slice(message.payload);
        Ok(())
    }

    fn acknowledged(&mut self, kind: AckKind, id: PacketId) -> Result<ReasonCode, ClientError> {
        match self.answer(Wanted::Ack(kind, id), "an acknowledgement")? {
            Answer::Reason(reason) => Ok(reason),
            _ => unreachable!("only an acknowledgement is taken for one"),
        }
    }

    fn send(&mut self, packet: &Packet<'_>) -> Result<(), ClientError> {
        packet.encode(self.options.version, &mut self.out)?;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ClientError> {
        if self.out.is_empty() {
            return Ok(());
        }
        let written = self.link.write(&self.out);
        self.out.clear();
        self.wrote_at = Instant::now();
        written
    }

    fn answer(&mut self, wanted: Wanted, name: &'static str) -> Result<Answer, ClientError> {
        let timeout = self.options.timeout;
        self.wait(wanted, Instant::now() + timeout)?.ok_or_else(|| ClientError::TimedOut {
            peer: self.peer(),
            wanted: name,
            timeout,
        })
    }

    /// Handles packets until `wanted` is among them; none if it is not until `until`.
    fn wait(&mut self, wanted: Wanted, until: Instant) -> Result<Option<Answer>, ClientError> {
        loop {
            while let Some(header) = self.whole_packet()? {
                let begin = self.used + header.header_bytes;
                self.used = begin + header.body_bytes;
                let input = std::mem::take(&mut self.input);
                let came = self.handle(header.first, &input[begin..self.used], wanted);
                self.input = input;
                if let Some(answer) = came? {
                    self.flush()?;
                    return Ok(Some(answer));
                }
            }
            self.flush()?;
            let now = Instant::now();
            if now >= until {
                return Ok(None);
            }
            let look_at = until.min(self.ping(now)?);
            self.link.read(&mut self.input, look_at - now)?;
        }
    }

    /// Pings if it is time, and returns when to look again.
    fn ping(&mut self, now: Instant) -> Result<Instant, ClientError> {
        const SOONEST: Duration = Duration::from_millis(1);
        if self.keep_alive.is_zero() {
            return Ok(now + self.options.timeout);
        }
        if let Some(pinged_at) = self.pinged_at {
            let until = pinged_at + self.options.timeout;
            if now >= until {
                return Err(ClientError::Silent { peer: self.peer() });
            }
            return Ok(until.max(now + SOONEST));
        }
        let due = self.wrote_at + self.keep_alive / 2;
        if now < due {
            return Ok(due.max(now + SOONEST));
        }
        self.pinged_at = Some(now);
        self.send(&Packet::Pingreq)?;
        Ok(now + self.options.timeout)
    }

    fn whole_packet(&mut self) -> Result<Option<FixedHeader>, ClientError> {
        let rest = &self.input[self.used..];
        let header = FixedHeader::decode(rest, self.options.packet_bytes_max)
            .map_err(|source| ClientError::Packet { peer: self.peer(), source })?;
        let whole = header.filter(|header| rest.len() >= header.packet_bytes());
        if whole.is_none() && self.used > 0 {
            self.input.drain(..self.used);
            self.used = 0;
        }
        Ok(whole)
    }

    /// Handles one packet; returns what was `wanted`, if it is that.
    fn handle(
        &mut self,
        first: u8,
        body: &[u8],
        wanted: Wanted,
    ) -> Result<Option<Answer>, ClientError> {
        let version = self.version();
        let packet = Packet::decode(version, first, body)
            .map_err(|source| ClientError::Packet { peer: self.peer(), source })?;
        let answer = match (packet, wanted) {
            (Packet::Connack(connack), Wanted::Connack) => Answer::Connack(connack),
            (Packet::Puback(ack), Wanted::Ack(AckKind::Puback, id))
            | (Packet::Pubrec(ack), Wanted::Ack(AckKind::Pubrec, id))
            | (Packet::Pubcomp(ack), Wanted::Ack(AckKind::Pubcomp, id))
                if ack.packet_id == id =>
            {
                Answer::Reason(ack.reason)
            }
            (Packet::Suback(answer), Wanted::Suback(id))
            | (Packet::Unsuback(answer), Wanted::Unsuback(id))
                if answer.packet_id == id =>
            {
                Answer::Reasons(answer.reasons)
            }
            (Packet::Publish(publish), wanted) => {
                self.accept(&publish)?;
                return Ok(if wanted == Wanted::Message && !self.waiting.is_empty() {
                    Some(Answer::Message)
                } else {
                    None
                });
            }
            (Packet::Pubrel(ack), _) => {
                self.held.remove(&ack.packet_id);
                let reason = ReasonCode::SUCCESS;
                encode_ack(version, AckKind::Pubcomp, ack.packet_id, reason, &mut self.out);
                return Ok(None);
            }
            // Of an exchange of an earlier connection, or one given up.
            (
                Packet::Puback(_) | Packet::Pubcomp(_) | Packet::Suback(_) | Packet::Unsuback(_),
                _,
            ) => {
                return Ok(None);
            }
            (Packet::Pubrec(ack), _) => {
                let (kind, reason) = (AckKind::Pubrel, ReasonCode::PACKET_IDENTIFIER_NOT_FOUND);
                encode_ack(version, kind, ack.packet_id, reason, &mut self.out);
                return Ok(None);
            }
            (Packet::Pingresp, _) => {
                self.pinged_at = None;
                return Ok(None);
            }
            (Packet::Disconnect(disconnect), _) => {
                return Err(ClientError::Disconnected {
                    peer: self.peer(),
                    reason: disconnect.reason,
                    reason_string: disconnect.reason_string,
                });
            }
            _ => return Err(ClientError::Unexpected { peer: self.peer(), first }),
        };
        Ok(Some(answer))
    }

    fn accept(&mut self, publish: &Publish<'_>) -> Result<(), ClientError> {
        let again = match (publish.qos, publish.packet_id) {
            (QoS::ExactlyOnce, Some(id)) => !self.held.insert(id),
            _ => false,
        };
        if !again {
            if self.waiting.len() >= WAITING_MAX {
                return Err(ClientError::TooManyWaiting {
                    peer: self.peer(),
                    maximum: WAITING_MAX,
                });
            }
            let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            self.waiting.push_back(Message {
                topic: publish.topic.to_owned(),
                payload: publish.payload.to_vec(),
                qos: publish.qos,
                retain: publish.retain,
                dup: publish.dup,
                message_expiry: publish.properties.message_expiry,
                user_properties: publish.properties.user_properties().map(text).collect(),
            });
        }
        let kind = match publish.qos {
            QoS::AtMostOnce => return Ok(()),
            QoS::AtLeastOnce => AckKind::Puback,
            QoS::ExactlyOnce => AckKind::Pubrec,
        };
        if let Some(id) = publish.packet_id {
            encode_ack(self.version(), kind, id, ReasonCode::SUCCESS, &mut self.out);
        }
        Ok(())
    }
}

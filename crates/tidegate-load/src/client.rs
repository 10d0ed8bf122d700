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

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use tidegate_message::Instant;
use tidegate_sys::clock::monotonic_nanos;
use tidegate_wire::mqtt::{
    Connack, Connect, ConnectProperties, Disconnect, ForwardedProperties, PACKET_BYTES_MAX, QoS,
    ReasonCode, SubscribeFilter, UserProperties, Version, Will,
    client::{self as mqtt, Event, Publication, ReceiveBuffer},
};

pub use self::error::{ClientError, Peer, refusal_code};
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
    /// Message that is published when the connection ends without DISCONNECT. Default none.
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
            clean_start: self.clean_start,
            keep_alive: self.keep_alive,
            will: self.will.clone(),
            username: self.username.clone(),
            password: self.password.clone(),
            properties: ConnectProperties {
                session_expiry: self.session_expiry,
                receive_maximum: self.receive_maximum,
                user_properties: self.user_properties.clone(),
                ..ConnectProperties::default()
            },
            ..Connect::new(self.version, self.client_id.clone())
        }
    }

    /// The bounds of a connection.
    pub(crate) fn config(&self) -> mqtt::Config {
        mqtt::Config {
            packet_bytes_max: u32::try_from(self.packet_bytes_max).unwrap_or(PACKET_BYTES_MAX),
            answer_timeout: self.timeout,
            ..mqtt::Config::default()
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
    /// Calls are numbered: the answer to one that was given up is none to the next.
    machine: mqtt::Client<u64>,
    calls: u64,
    timeout: Duration,
    connack: Connack,
    input: ReceiveBuffer,
    out: Vec<u8>,
    waiting: VecDeque<Message>,
}

impl Client {
    /// Connects and waits for the broker's welcome.
    ///
    /// # Errors
    /// Any of [`ClientError`], but `Publish` and `Subscribe`.
    pub fn connect(options: Options) -> Result<Self, ClientError> {
        let link = Link::open(&options)?;
        let mut client = Self {
            link,
            machine: mqtt::Client::new(options.config()),
            calls: 0,
            timeout: options.timeout,
            connack: Connack::default(),
            input: ReceiveBuffer::default(),
            out: Vec::new(),
            waiting: VecDeque::new(),
        };
        client.machine.connect(now(), &options.greeting())?;
        client.connack = client.answer("CONNACK", |event| match event {
            Event::Connected { connack, .. } => Some(*connack),
            _ => None,
        })?;
        Ok(client)
    }

    /// The broker's answer to the connection: whether it kept a session, and its limits.
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
        let call = self.call();
        let asked = self.machine.subscribe(filters.to_vec(), None, call);
        asked.map_err(|error| ClientError::of_request(self.peer(), error))?;
        self.answer("SUBACK", |event| match event {
            Event::Subscribed { token, reasons } if token == call => Some(reasons),
            _ => None,
        })
    }

    /// Unsubscribes, and returns the reason for each filter; before MQTT 5 there is none.
    ///
    /// # Errors
    /// Any of [`ClientError`], but `Publish` and `Subscribe`.
    pub fn unsubscribe(&mut self, filters: &[&str]) -> Result<Vec<ReasonCode>, ClientError> {
        let call = self.call();
        let filters = filters.iter().map(|&filter| filter.to_owned()).collect();
        let asked = self.machine.unsubscribe(filters, call);
        asked.map_err(|error| ClientError::of_request(self.peer(), error))?;
        self.answer("UNSUBACK", |event| match event {
            Event::Unsubscribed { token, reasons } if token == call => Some(reasons),
            _ => None,
        })
    }

    /// Publishes a message and, with QoS 1 and 2, waits until the broker has it. Returns its reason: success, or that nobody
    /// subscribes.
    ///
    /// # Errors
    /// Any of [`ClientError`]; `Publish` if the broker does not take it.
    pub fn publish(&mut self, message: &Outgoing<'_>) -> Result<ReasonCode, ClientError> {
        let mut forwarded = Vec::new();
        let properties = message.user_properties.iter();
        ForwardedProperties {
            user_properties: properties.map(|(name, value)| (&**name, &**value)).collect(),
            ..ForwardedProperties::default()
        }
        .encode(&mut forwarded)?;
        let &Outgoing { topic, payload, qos, retain, message_expiry, .. } = message;
        let topic_alias = None;
        let forwarded = &forwarded;
        let publication =
            Publication { topic, payload, qos, retain, message_expiry, topic_alias, forwarded };
        let call = self.call();
        let published = self.machine.publish(&publication, call);
        let packet_id = published.map_err(|error| ClientError::of_publish(self.peer(), error))?;
        self.flush()?;
        if packet_id.is_none() {
            return Ok(ReasonCode::SUCCESS);
        }
        let reason = self.answer("an acknowledgement", |event| match event {
            Event::Acknowledged { token, reason, .. } if token == call => Some(reason),
            _ => None,
        })?;
        if reason.is_failure() {
            let topic = message.topic.to_owned();
            return Err(ClientError::Publish { peer: self.peer(), topic, reason });
        }
        Ok(reason)
    }

    /// The next message; none if there is none within `timeout`. Keeps the connection alive.
    ///
    /// # Errors
    /// `Tls`, `Frame`, `Io`, `Closed`, `Disconnected`, `Packet`, `Unexpected` and `Silent`.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Message>, ClientError> {
        let until = now() + timeout;
        if self.waiting.is_empty() {
            self.wait(until, |event| matches!(event, Event::Message(_)).then_some(()))?;
        }
        Ok(self.waiting.pop_front())
    }

    /// Says farewell and ends the connection; no will is published.
    ///
    /// # Errors
    /// `Io`, if the farewell could not be written.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        self.machine.disconnect(Disconnect::default())?;
        self.flush()?;
        self.link.end();
        Ok(())
    }

    /// Ends the connection without a word, so that the will is published.
    pub fn abort(self) {
        self.link.abort();
    }

    pub(crate) fn peer(&self) -> Peer {
        self.link.peer().clone()
    }

    fn call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    fn flush(&mut self) -> Result<(), ClientError> {
        if !self.machine.transmit(now(), &mut self.out) {
            return Ok(());
        }
        let written = self.link.write(&self.out);
        self.out.clear();
        written
    }

    fn answer<A>(
        &mut self,
        wanted: &'static str,
        pick: impl Fn(Event<'_, u64>) -> Option<A>,
    ) -> Result<A, ClientError> {
        let timeout = self.timeout;
        let answer = self.wait(now() + timeout, pick)?;
        answer.ok_or_else(|| ClientError::TimedOut { peer: self.peer(), wanted, timeout })
    }

    /// Handles packets until `pick` finds what it looks for among the events; none if it does not until `until`.
    fn wait<A>(
        &mut self,
        until: Instant,
        pick: impl Fn(Event<'_, u64>) -> Option<A>,
    ) -> Result<Option<A>, ClientError> {
        // A read with no time is one without end.
        const SHORTEST: Duration = Duration::from_millis(1);
        loop {
            let answer = self.take(&pick)?;
            self.flush()?;
            let now = now();
            if answer.is_some() || now >= until {
                return Ok(answer);
            }
            let timed = self.machine.handle_timeout(now);
            timed.map_err(|error| ClientError::of_machine(self.peer(), error))?;
            self.flush()?;
            let wake_at = self.machine.poll_timeout().map_or(until, |at| at.min(until));
            self.link.read(self.input.spare(), wake_at.since(now).max(SHORTEST))?;
        }
    }

    /// Handles the packets that are there, until `pick` finds something.
    fn take<A>(
        &mut self,
        pick: impl Fn(Event<'_, u64>) -> Option<A>,
    ) -> Result<Option<A>, ClientError> {
        let mut answer = None;
        let mut input = self.input.bytes();
        while answer.is_none() {
            let event = self.machine.receive(&mut input);
            let event =
                event.map_err(|error| ClientError::of_machine(self.link.peer().clone(), error))?;
            let Some(event) = event else { break };
            if let Event::Message(message) = &event {
                if self.waiting.len() >= WAITING_MAX {
                    let (peer, maximum) = (self.link.peer().clone(), WAITING_MAX);
                    return Err(ClientError::TooManyWaiting { peer, maximum });
                }
                self.waiting.push_back(Message::of(message));
            }
            answer = pick(event);
        }
        let left = input.len();
        self.input.keep(left);
        Ok(answer)
    }
}

impl Message {
    fn of(message: &mqtt::Message<'_>) -> Self {
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            topic: message.topic.clone().into_owned(),
            payload: message.payload.to_vec(),
            qos: message.qos,
            retain: message.retain,
            dup: message.dup,
            message_expiry: message.properties.message_expiry,
            user_properties: message.properties.user_properties().map(text).collect(),
        }
    }
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_nanos())
}

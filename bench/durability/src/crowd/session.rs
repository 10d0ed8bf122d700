//! One client's session: the state machine, what it connects with, and owned events.

use std::{collections::VecDeque, num::NonZeroU16, time::Instant as Moment};

use tidegate_message::Instant;
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, Disconnect, QoS, ReasonCode, SubscribeFilter, Version,
    client::{self, Client, ClientError, Config, Publication, ReceiveBuffer, SubscribeError},
};

/// Exchanges that are under way at a time, if the broker takes as many.
const INFLIGHT_MAX: NonZeroU16 = NonZeroU16::new(1024).expect("not zero");
/// Exchanges that a broker before MQTT 5, which names no limit, is trusted with at a time.
const INFLIGHT_MAX_V4: NonZeroU16 = NonZeroU16::new(64).expect("not zero");

/// Identity and properties of the client's connection.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Version of the protocol. Default 5.
    pub version: Version,
    /// The client's name. Default empty, which only a session of one connection may have.
    pub client_id: String,
    /// Seconds that the session outlives a connection; before MQTT 5, whether it does at all. Default 0.
    pub session_expiry: u32,
    /// Messages of QoS 1 and 2 that the broker may leave unacknowledged, in MQTT 5. Default none: 65,535.
    pub receive_maximum: Option<NonZeroU16>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        let (version, client_id) = (Version::V5, String::new());
        Self { version, client_id, session_expiry: 0, receive_maximum: None }
    }
}

/// An event that the received bytes brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The broker let the client in.
    Connected {
        /// Whether it has the session.
        session_present: bool,
        /// Whether it should have: it was there before, and was to outlive the connection.
        was_expected: bool,
    },
    /// The broker did not let the client in, or said goodbye. Nothing follows on this connection.
    Refused(ReasonCode),
    /// The answer to a subscription: a reason for each filter.
    Subscribed(Vec<ReasonCode>),
    /// The exchange of the message that was published with that number is over.
    Acknowledged {
        /// As given to [`Session::publish`].
        number: u64,
        /// Success, that nothing subscribes, or why it was refused.
        reason: ReasonCode,
    },
    /// A message.
    Message(Message),
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
    /// The name by which two copies are known as one, if it has one (`tidegate-id`).
    pub name: Option<String>,
}

/// A client and its session.
#[derive(Debug)]
pub struct Session {
    client: Client<u64>,
    connect: Connect,
    input: ReceiveBuffer,
    events: VecDeque<Event>,
    began: Moment,
}

impl Session {
    /// A client that was never connected.
    #[must_use]
    pub fn new(options: SessionOptions) -> Self {
        let SessionOptions { version, client_id, session_expiry, receive_maximum } = options;
        let lasts = session_expiry > 0;
        let inflight_max = if version == Version::V5 { INFLIGHT_MAX } else { INFLIGHT_MAX_V4 };
        Self {
            client: Client::new(Config { inflight_max, ..Config::default() }),
            connect: Connect {
                clean_start: !lasts,
                properties: ConnectProperties {
                    session_expiry: lasts.then_some(session_expiry),
                    receive_maximum,
                    ..ConnectProperties::default()
                },
                ..Connect::new(version, client_id)
            },
            input: ReceiveBuffer::default(),
            events: VecDeque::new(),
            began: Moment::now(),
        }
    }

    fn now(&self) -> Instant {
        Instant::EPOCH + self.began.elapsed()
    }

    /// Whether the broker let it in and has not said goodbye.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// How many more messages of QoS 1 and 2 the broker takes now; 0 without connection.
    #[must_use]
    pub fn room(&self) -> usize {
        self.client.room()
    }

    /// Messages published with QoS 1 and 2 that were not acknowledged to the end.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.client.unacknowledged()
    }

    /// Begins on a new connection; what was of the former one is gone.
    pub fn begin(&mut self) {
        self.end();
        self.client.connect(self.now(), &self.connect).expect("a client's name is short");
    }

    /// The connection is gone. Events that were not polled are lost.
    pub fn end(&mut self) {
        self.client.closed();
        self.input.clear();
        self.events.clear();
    }

    /// Says goodbye.
    pub fn disconnect(&mut self) {
        self.client.disconnect(Disconnect::default()).expect("it is short");
    }

    /// Publishes a message that its acknowledgement will name by `number`. With QoS 0 there is none, and without connection the
    /// message is lost.
    ///
    /// # Panics
    /// With QoS 1 and 2, if there is no [`Session::room`]; if the broker does not take such a message.
    pub fn publish(&mut self, number: u64, topic: &str, payload: &[u8], qos: QoS, retain: bool) {
        if qos == QoS::AtMostOnce && !self.is_connected() {
            return;
        }
        let message = Publication { topic, payload, qos, retain, ..Publication::default() };
        self.client.publish(&message, number).expect("the broker takes it");
    }

    /// Subscribes; [`Event::Subscribed`] answers. Without connection nothing happens.
    ///
    /// # Errors
    /// A filter that cannot be encoded, or that the broker does not take.
    pub fn subscribe(&mut self, filters: Vec<SubscribeFilter>) -> Result<(), SubscribeError> {
        if !self.is_connected() {
            return Ok(());
        }
        self.client.subscribe(filters, None, 0).map(drop)
    }

    /// Moves what is to be sent to the end of `out`.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) {
        self.client.transmit(self.now(), out);
    }

    /// The next event that the received bytes brought, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes bytes from the broker, however they were cut.
    ///
    /// # Errors
    /// The broker broke the protocol; the connection is of no more use.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.input.extend(bytes);
        let mut input = self.input.bytes();
        loop {
            match self.client.receive(&mut input) {
                Ok(Some(event)) => self.events.extend(Event::of(event)),
                Ok(None) => break,
                Err(
                    ClientError::Refused { reason, .. } | ClientError::Disconnected { reason, .. },
                ) => {
                    self.events.push_back(Event::Refused(reason));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        let left = input.len();
        self.input.keep(left);
        Ok(())
    }
}

impl Event {
    fn of(event: client::Event<'_, u64>) -> Option<Self> {
        Some(match event {
            client::Event::Connected { connack, was_expected } => {
                Self::Connected { session_present: connack.session_present, was_expected }
            }
            client::Event::Message(message) => Self::Message(Message {
                topic: message.topic.into_owned(),
                payload: message.payload.to_vec(),
                qos: message.qos,
                retain: message.retain,
                dup: message.dup,
                name: message
                    .properties
                    .user_properties()
                    .find(|(name, _)| *name == "tidegate-id")
                    .map(|(_, value)| value.to_owned()),
            }),
            client::Event::Acknowledged { token, reason, .. } => {
                Self::Acknowledged { number: token, reason }
            }
            client::Event::Subscribed { reasons, .. } => Self::Subscribed(reasons),
            client::Event::Received { .. } | client::Event::Unsubscribed { .. } => return None,
        })
    }
}

//! A client whose session outlives its connections, without a socket: what it still owes the broker and is owed by it.
//!
//! ```text
//!  begin ─▶ poll_transmit ─▶ bytes ─▶ broker ─▶ bytes ─▶ receive ─▶ poll_event
//!    ▲                                                                │
//!    └──────────────── the connection broke: begin again ◀────────────┘
//! ```
//!
//! [`crate::client`] is a connection and forgets with it; a [`Session`] keeps to MQTT's delivery protocol (section 4.3) whatever
//! becomes of connections, so that a broker that is killed can be held to what it acknowledged.
//!
//! Always true: what was not acknowledged to the end is sent again in its order when the session is resumed (MQTT-4.4.0-1), with
//! its identifier (MQTT-2.2.1-6); a PUBREL is sent again instead of the message it released; a message of QoS 2 is given out once
//! per exchange; where the broker says that it has no session, this one is forgotten too (MQTT-3.2.2-5), and the event tells.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashSet, VecDeque},
    num::NonZeroU16,
};

use tidegate_wire::mqtt::{
    AckKind, Connack, Connect, ConnectProperties, DecodeError, Disconnect, EncodeError,
    FixedHeader, Packet, PacketId, Publish, PublishHead, QoS, ReasonCode, Subscribe,
    SubscribeFilter, Version, encode_ack,
};

/// Exchanges that a broker before MQTT 5 is trusted with at a time.
const WINDOW: usize = 64;

/// Who the client is.
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
        Self {
            version: Version::V5,
            client_id: String::new(),
            session_expiry: 0,
            receive_maximum: None,
        }
    }
}

/// What came of the bytes received.
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
    /// The answer to the oldest subscription that had none: a reason for each filter.
    Subscribed(Vec<ReasonCode>),
    /// The exchange of the message that was published with that number is over: PUBACK or PUBCOMP came, or a refusal.
    Acknowledged {
        /// As given to [`Session::publish`].
        number: u64,
        /// Success, that nobody subscribes, or why it was refused; of PUBCOMP, that its PUBREL was not known.
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
}

/// A client and its session.
#[derive(Debug)]
pub struct Session {
    options: SessionOptions,
    // Of the session.
    pending: VecDeque<Pending>,
    received: HashSet<PacketId>,
    last_id: u16,
    /// The broker let it in once, so that it has the session from then on.
    is_known: bool,
    // Of the connection.
    state: State,
    input: Vec<u8>,
    output: Vec<u8>,
    events: VecDeque<Event>,
    subscribing: VecDeque<PacketId>,
    receive_maximum: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no connection, or it has ended.
    Apart,
    /// CONNECT is under way.
    Greeting,
    Connected,
}

/// A message of QoS 1 or 2 that was not acknowledged to the end.
#[derive(Debug)]
struct Pending {
    id: PacketId,
    number: u64,
    topic: String,
    payload: Vec<u8>,
    qos: QoS,
    retain: bool,
    /// PUBREC came.
    is_released: bool,
}

impl Session {
    /// A client that was never connected.
    #[must_use]
    pub fn new(options: SessionOptions) -> Self {
        Self {
            options,
            pending: VecDeque::new(),
            received: HashSet::new(),
            last_id: 0,
            is_known: false,
            state: State::Apart,
            input: Vec::new(),
            output: Vec::new(),
            events: VecDeque::new(),
            subscribing: VecDeque::new(),
            receive_maximum: WINDOW,
        }
    }

    /// Whether the broker let it in and has not said goodbye.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// How many more messages of QoS 1 and 2 the broker takes now; 0 without connection.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.is_connected() {
            self.receive_maximum.saturating_sub(self.pending.len())
        } else {
            0
        }
    }

    /// Messages published with QoS 1 and 2 that were not acknowledged to the end.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Begins on a new connection, with a CONNECT; what was of the former one is gone.
    pub fn begin(&mut self) {
        self.end();
        if self.options.session_expiry == 0 {
            self.forget();
        }
        let Self { options, output, .. } = self;
        let lasts = options.session_expiry > 0;
        let connect = Connect {
            version: options.version,
            bridge: false,
            clean_start: !lasts,
            keep_alive: 0,
            client_id: options.client_id.clone(),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties {
                session_expiry: lasts.then_some(options.session_expiry),
                receive_maximum: options.receive_maximum,
                ..ConnectProperties::default()
            },
        };
        let encoded = Packet::Connect(Box::new(connect)).encode(options.version, output);
        encoded.expect("a client's name is short");
        self.state = State::Greeting;
    }

    /// The connection is gone: what was of it is forgotten. Events that were not polled are lost.
    pub fn end(&mut self) {
        self.state = State::Apart;
        self.input.clear();
        self.output.clear();
        self.events.clear();
        self.subscribing.clear();
    }

    /// Says goodbye. Nothing may follow but [`Session::end`].
    pub fn disconnect(&mut self) {
        let goodbye = Packet::Disconnect(Disconnect::default());
        goodbye.encode(self.options.version, &mut self.output).expect("it is short");
    }

    /// Publishes a message that its acknowledgement will name by `number`. With QoS 0 there is none, and without connection the
    /// message is lost.
    ///
    /// # Panics
    /// With QoS 1 and 2, if there is no [`Session::room`]; if the topic is longer than 65,535 bytes.
    pub fn publish(&mut self, number: u64, topic: &str, payload: &[u8], qos: QoS, retain: bool) {
        if qos == QoS::AtMostOnce {
            if self.is_connected() {
                self.send(None, topic, payload, qos, retain, false);
            }
            return;
        }
        assert!(self.room() > 0, "the broker takes no more messages now");
        let id = self.free_id();
        self.send(Some(id), topic, payload, qos, retain, false);
        self.pending.push_back(Pending {
            id,
            number,
            topic: topic.to_owned(),
            payload: payload.to_vec(),
            qos,
            retain,
            is_released: false,
        });
    }

    /// Subscribes; [`Event::Subscribed`] answers. Without connection nothing happens.
    ///
    /// # Errors
    /// A filter that cannot be encoded.
    pub fn subscribe(&mut self, filters: Vec<SubscribeFilter>) -> Result<(), EncodeError> {
        if !self.is_connected() {
            return Ok(());
        }
        let packet_id = self.free_id();
        let subscribe =
            Subscribe { packet_id, subscription_id: None, user_properties: Vec::new(), filters };
        Packet::Subscribe(subscribe).encode(self.options.version, &mut self.output)?;
        self.subscribing.push_back(packet_id);
        Ok(())
    }

    /// Moves what is to be sent to the end of `out`.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// What came of the bytes received, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes bytes from the broker, however they were cut.
    ///
    /// # Errors
    /// The broker broke the protocol; the connection is of no more use.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some(header) = FixedHeader::decode(rest, usize::MAX)? {
            let Some(packet) = rest.get(..header.packet_bytes()) else { break };
            rest = &rest[header.packet_bytes()..];
            let body = &packet[header.header_bytes..];
            let packet = Packet::decode(self.options.version, header.first, body)?;
            self.handle(packet)?;
        }
        self.input = rest.to_vec();
        Ok(())
    }

    fn handle(&mut self, packet: Packet<'_>) -> Result<(), SessionError> {
        match (self.state, packet) {
            (State::Greeting, Packet::Connack(connack)) => self.welcomed(&connack),
            (State::Connected, Packet::Publish(publish)) => self.arrived(&publish),
            (State::Connected, Packet::Puback(ack)) => {
                self.finish(ack.packet_id, QoS::AtLeastOnce, false, ack.reason)?;
            }
            (State::Connected, Packet::Pubrec(ack)) => self.recorded(ack.packet_id, ack.reason)?,
            (State::Connected, Packet::Pubcomp(ack)) => {
                self.finish(ack.packet_id, QoS::ExactlyOnce, true, ack.reason)?;
            }
            (State::Connected, Packet::Pubrel(ack)) => {
                self.received.remove(&ack.packet_id);
                self.acknowledge(AckKind::Pubcomp, ack.packet_id);
            }
            (State::Connected, Packet::Suback(ack)) => {
                if self.subscribing.pop_front() != Some(ack.packet_id) {
                    return Err(SessionError::Unasked { what: "SUBACK", id: ack.packet_id });
                }
                self.events.push_back(Event::Subscribed(ack.reasons));
            }
            (State::Connected, Packet::Disconnect(goodbye)) => {
                self.state = State::Apart;
                self.events.push_back(Event::Refused(goodbye.reason));
            }
            (state, packet) => {
                let packet = format!("{packet:?}").chars().take(80).collect();
                return Err(SessionError::Unexpected {
                    packet,
                    greeting: state == State::Greeting,
                });
            }
        }
        Ok(())
    }

    fn welcomed(&mut self, connack: &Connack) {
        if connack.reason.is_failure() {
            self.state = State::Apart;
            return self.events.push_back(Event::Refused(connack.reason));
        }
        self.state = State::Connected;
        let maximum = connack.properties.receive_maximum.map_or(WINDOW, |count| count.get().into());
        self.receive_maximum = maximum;
        let (session_present, was_expected) = (connack.session_present, self.is_known);
        self.is_known = self.options.session_expiry > 0;
        if session_present {
            let pending = std::mem::take(&mut self.pending);
            for Pending { id, topic, payload, qos, retain, is_released, .. } in &pending {
                if *is_released {
                    self.acknowledge(AckKind::Pubrel, *id);
                } else {
                    self.send(Some(*id), topic, payload, *qos, *retain, true);
                }
            }
            self.pending = pending;
        } else {
            self.forget();
            self.is_known = self.options.session_expiry > 0;
        }
        self.events.push_back(Event::Connected { session_present, was_expected });
    }

    fn arrived(&mut self, publish: &Publish<'_>) {
        let is_new = match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(id)) => {
                self.acknowledge(AckKind::Puback, id);
                true
            }
            (QoS::ExactlyOnce, Some(id)) => {
                self.acknowledge(AckKind::Pubrec, id);
                self.received.insert(id)
            }
            _ => true,
        };
        if is_new {
            self.events.push_back(Event::Message(Message {
                topic: publish.topic.to_owned(),
                payload: publish.payload.to_vec(),
                qos: publish.qos,
                retain: publish.retain,
                dup: publish.dup,
            }));
        }
    }

    /// PUBREC came: the message is the broker's, or was refused.
    fn recorded(&mut self, id: PacketId, reason: ReasonCode) -> Result<(), SessionError> {
        if reason.is_failure() {
            return self.finish(id, QoS::ExactlyOnce, false, reason);
        }
        let found = self.pending.iter_mut().find(|one| one.id == id && one.qos == QoS::ExactlyOnce);
        let one = found.ok_or(SessionError::Unasked { what: "PUBREC", id })?;
        one.is_released = true;
        self.acknowledge(AckKind::Pubrel, id);
        Ok(())
    }

    fn finish(
        &mut self,
        id: PacketId,
        qos: QoS,
        is_released: bool,
        reason: ReasonCode,
    ) -> Result<(), SessionError> {
        let is_it =
            |one: &Pending| one.id == id && one.qos == qos && one.is_released == is_released;
        let what = match (qos, is_released) {
            (QoS::ExactlyOnce, true) => "PUBCOMP",
            (QoS::ExactlyOnce, false) => "PUBREC",
            _ => "PUBACK",
        };
        let at = self.pending.iter().position(is_it).ok_or(SessionError::Unasked { what, id })?;
        if let Some(done) = self.pending.remove(at) {
            self.events.push_back(Event::Acknowledged { number: done.number, reason });
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.pending.clear();
        self.received.clear();
        self.is_known = false;
    }

    fn free_id(&mut self) -> PacketId {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = PacketId::new(self.last_id).expect("it starts over at 1");
            if !self.pending.iter().any(|one| one.id == id) && !self.subscribing.contains(&id) {
                return id;
            }
        }
    }

    fn acknowledge(&mut self, kind: AckKind, id: PacketId) {
        encode_ack(self.options.version, kind, id, ReasonCode::SUCCESS, &mut self.output);
    }

    fn send(
        &mut self,
        packet_id: Option<PacketId>,
        topic: &str,
        payload: &[u8],
        qos: QoS,
        retain: bool,
        dup: bool,
    ) {
        let head = PublishHead {
            dup,
            qos,
            retain,
            topic,
            packet_id,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            forwarded: &[],
            payload_bytes: payload.len(),
        };
        head.encode(self.options.version, &mut self.output);
        self.output.extend_from_slice(payload);
    }
}

/// How a broker broke the protocol.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Bytes that are no packet.
    #[error("the broker sent what is no packet")]
    Packet(#[from] DecodeError),
    /// An answer to what was not asked.
    #[error("the broker sent {what} for {id}, which is not under way")]
    Unasked {
        /// The packet.
        what: &'static str,
        /// Its identifier.
        id: PacketId,
    },
    /// A packet that has no place.
    #[error("the broker sent {packet} {}", if *.greeting { "before CONNACK" } else { "out of place" })]
    Unexpected {
        /// The beginning of it.
        packet: String,
        /// Whether CONNACK had not come.
        greeting: bool,
    },
}

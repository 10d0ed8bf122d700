//! One connection to this node's broker, without its socket: messages in, acknowledgements out.
//!
//! ```text
//!  publish(message, ticket) ─▶ output() ─▶ the loopback socket ─▶ broker
//!  events ◀─ Acknowledged { ticket, reason } ◀─ receive(bytes) ◀──┘
//! ```
//!
//! Always true: at most [`WINDOW`] exchanges are open; each ticket comes back once, or with the connection never.

use std::{
    collections::{HashMap, hash_map::Entry},
    num::NonZeroU16,
    sync::Arc,
};

use bytes::Bytes;
use tidegate_message::{Instant, TIME_PROPERTY};
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, DecodeError, Disconnect, EncodeError, FixedHeader,
    ForwardedProperties, Packet, PublishHead, QoS, ReasonCode, RetainHandling, Subscribe,
    SubscribeFilter, Unsubscribe, Version, put_user_property,
};

/// Exchanges that are open at a time.
pub(super) const WINDOW: usize = 1024;

/// A message on its way to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) topic: Box<str>,
    pub(super) payload: Bytes,
    pub(super) retain: bool,
    /// What the payload is, as a media type; messages of one request share it.
    pub(super) content_type: Option<Arc<str>>,
    /// User properties, encoded, that come first; messages of one request share them.
    pub(super) passed: Bytes,
    /// User properties, encoded.
    pub(super) user: Vec<u8>,
}

impl Message {
    /// Its bytes beside its topic, as they travel.
    pub(super) fn bytes(&self) -> usize {
        let content_type = self.content_type.as_deref().map_or(0, str::len);
        self.payload.len() + content_type + self.passed.len() + self.user.len()
    }
}

/// The user properties of a message that was measured then, if it says so, encoded.
pub(super) fn user_properties(at: Option<Instant>) -> Vec<u8> {
    let mut user = Vec::new();
    if let Some(at) = at {
        put_time(at, &mut user);
    }
    user
}

/// Appends the user property that says when a value was measured.
pub(super) fn put_time(at: Instant, user: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    let nanos = digits.format(at.as_nanos());
    put_user_property(TIME_PROPERTY, nanos, user).expect("a number is a short text");
}

/// What the broker said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event<T> {
    /// The connection is open.
    Connected,
    /// The answer to a message, a subscription or its end.
    Answered { ticket: T, reason: ReasonCode },
    /// A message for a subscription of this connection.
    Arrived(Message),
}

/// Why the connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub(super) enum InletError {
    #[error("the broker refuses the connection: {0}")]
    Refused(ReasonCode),
    #[error("the broker ended the connection: {0}")]
    Ended(ReasonCode),
    #[error("the broker sent what is no packet")]
    Decode(#[from] DecodeError),
    #[error("the broker sent an acknowledgement that nobody waits for")]
    Stray,
}

/// The state of a connection; made anew for each.
#[derive(Debug)]
pub(super) struct Inlet<T> {
    input: Vec<u8>,
    output: Vec<u8>,
    /// How much of `output` was written.
    written: usize,
    open: HashMap<NonZeroU16, T>,
    last_id: u16,
    packet_bytes_max: usize,
}

impl<T> Inlet<T> {
    /// A connection that begins, as the client of that name.
    pub(super) fn new(client_id: &str, packet_bytes_max: usize) -> Self {
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive: 0,
            client_id: client_id.to_owned(),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties::default(),
        };
        let mut inlet = Self {
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            open: HashMap::new(),
            last_id: 0,
            packet_bytes_max,
        };
        inlet.put(&Packet::Connect(Box::new(connect))).expect("a name of a listener is short");
        inlet
    }

    /// Exchanges that may still be opened.
    pub(super) fn room(&self) -> usize {
        WINDOW - self.open.len().min(WINDOW)
    }

    /// What is to be written.
    pub(super) fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// So much of it was.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
            // What one large message needed is not kept for ever.
            self.output.shrink_to(256 << 10);
        }
    }

    /// Sends a message of QoS 1.
    ///
    /// # Panics
    /// If there is no [`room`](Self::room), or the topic or payload is longer than MQTT has them.
    pub(super) fn publish(&mut self, message: &Message, ticket: T) {
        let id = self.open(ticket);
        let mut properties = Vec::new();
        if let Some(content_type) = message.content_type.as_deref() {
            let content_type = ForwardedProperties {
                content_type: Some(content_type),
                ..ForwardedProperties::default()
            };
            content_type.encode(&mut properties).expect("a media type is short");
        }
        properties.extend_from_slice(&message.passed);
        properties.extend_from_slice(&message.user);
        encode(&mut self.output, message, QoS::AtLeastOnce, Some(id), &properties);
    }

    /// Asks for the messages of a filter, and for what is retained.
    ///
    /// # Errors
    /// A filter that is too long.
    pub(super) fn subscribe(&mut self, filter: &str, ticket: T) -> Result<(), EncodeError> {
        let packet_id = self.open(ticket);
        let filter = SubscribeFilter {
            filter: filter.to_owned(),
            maximum_qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        self.put(&Packet::Subscribe(Subscribe {
            packet_id,
            subscription_id: None,
            user_properties: Vec::new(),
            filters: vec![filter],
        }))
    }

    /// Asks for them no more.
    ///
    /// # Errors
    /// A filter that is too long.
    pub(super) fn unsubscribe(&mut self, filter: &str, ticket: T) -> Result<(), EncodeError> {
        let packet_id = self.open(ticket);
        let filters = vec![filter.to_owned()];
        let user_properties = Vec::new();
        self.put(&Packet::Unsubscribe(Unsubscribe { packet_id, user_properties, filters }))
    }

    /// Says goodbye.
    pub(super) fn disconnect(&mut self) {
        self.put(&Packet::Disconnect(Disconnect::default())).expect("it holds nothing");
    }

    /// Bytes from the broker; what they say is appended to `events`.
    ///
    /// # Errors
    /// [`InletError`]; the connection has ended then.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<Event<T>>,
    ) -> Result<(), InletError> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some(header) = FixedHeader::decode(rest, self.packet_bytes_max)? {
            let Some(packet) = rest.get(..header.packet_bytes()) else { break };
            let body = &packet[header.header_bytes..];
            let packet = Packet::decode(Version::V5, header.first, body)?;
            self.received(packet, events)?;
            rest = &rest[header.packet_bytes()..];
        }
        self.input = rest.to_vec();
        Ok(())
    }

    fn received(
        &mut self,
        packet: Packet<'_>,
        events: &mut Vec<Event<T>>,
    ) -> Result<(), InletError> {
        let (id, reason) = match packet {
            Packet::Connack(connack) if connack.reason == ReasonCode::SUCCESS => {
                events.push(Event::Connected);
                return Ok(());
            }
            Packet::Connack(connack) => return Err(InletError::Refused(connack.reason)),
            Packet::Disconnect(disconnect) => return Err(InletError::Ended(disconnect.reason)),
            Packet::Publish(publish) => {
                events.push(Event::Arrived(Message {
                    topic: publish.topic.into(),
                    payload: Bytes::copy_from_slice(publish.payload),
                    retain: publish.retain,
                    content_type: publish.properties.content_type().map(Into::into),
                    passed: Bytes::new(),
                    user: Vec::new(),
                }));
                return Ok(());
            }
            Packet::Puback(ack) => (ack.packet_id, ack.reason),
            Packet::Suback(ack) | Packet::Unsuback(ack) => {
                let reason = ack.reasons.first().copied();
                (ack.packet_id, reason.unwrap_or(ReasonCode::UNSPECIFIED_ERROR))
            }
            _ => return Ok(()),
        };
        let ticket = self.open.remove(&id).ok_or(InletError::Stray)?;
        events.push(Event::Answered { ticket, reason });
        Ok(())
    }

    fn open(&mut self, ticket: T) -> NonZeroU16 {
        assert!(self.open.len() < WINDOW, "whoever publishes looks for room first");
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            let Some(id) = NonZeroU16::new(self.last_id) else { continue };
            if let Entry::Vacant(place) = self.open.entry(id) {
                place.insert(ticket);
                return id;
            }
        }
    }

    fn put(&mut self, packet: &Packet<'_>) -> Result<(), EncodeError> {
        packet.encode(Version::V5, &mut self.output)
    }
}

/// Appends a PUBLISH.
fn encode(
    out: &mut Vec<u8>,
    message: &Message,
    qos: QoS,
    packet_id: Option<NonZeroU16>,
    forwarded: &[u8],
) {
    let head = PublishHead {
        dup: false,
        qos,
        retain: message.retain,
        topic: &message.topic,
        packet_id,
        topic_alias: None,
        message_expiry: None,
        subscription_ids: &[],
        forwarded,
        payload_bytes: message.payload.len(),
    };
    head.encode(Version::V5, out);
    out.extend_from_slice(&message.payload);
}

#[cfg(test)]
mod tests {
    use tidegate_wire::mqtt::{Ack, Connack};

    use super::*;

    fn message(topic: &str) -> Message {
        let payload = Bytes::from_static(b"21.5");
        let (passed, user) = (Bytes::new(), Vec::new());
        Message { topic: topic.into(), payload, retain: false, content_type: None, passed, user }
    }

    fn connected() -> Inlet<u32> {
        let mut inlet = Inlet::new("x", 1 << 20);
        inlet.wrote(inlet.output().len());
        let mut bytes = Vec::new();
        Packet::Connack(Box::<Connack>::default()).encode(Version::V5, &mut bytes).unwrap();
        let mut events = Vec::new();
        inlet.receive(&bytes, &mut events).unwrap();
        assert_eq!(events, [Event::Connected]);
        inlet
    }

    #[test]
    fn a_ticket_comes_back_with_its_acknowledgement_however_it_is_cut() {
        let mut inlet = connected();
        inlet.publish(&message("a"), 1);
        inlet.publish(&message("b"), 2);
        let mut bytes = Vec::new();
        for (id, reason) in [(2, ReasonCode::NOT_AUTHORIZED), (1, ReasonCode::SUCCESS)] {
            let ack = Ack::new(NonZeroU16::new(id).unwrap(), reason);
            Packet::Puback(ack).encode(Version::V5, &mut bytes).unwrap();
        }
        let mut events = Vec::new();
        for byte in bytes {
            inlet.receive(&[byte], &mut events).unwrap();
        }
        let answered = |ticket, reason| Event::Answered { ticket, reason };
        let expected = [answered(2, ReasonCode::NOT_AUTHORIZED), answered(1, ReasonCode::SUCCESS)];
        assert_eq!(events, expected);
        assert_eq!(inlet.room(), WINDOW);
    }

    #[test]
    fn there_is_room_for_a_window_and_identifiers_come_round() {
        let mut inlet = connected();
        let (mut bytes, mut events) = (Vec::new(), Vec::new());
        for round in 0..70 {
            for _ in 0..WINDOW {
                inlet.publish(&message("a"), round);
            }
            assert_eq!(inlet.room(), 0);
            inlet.wrote(inlet.output().len());
            let open: Vec<_> = inlet.open.keys().copied().collect();
            for id in open {
                let ack = Ack::new(id, ReasonCode::SUCCESS);
                Packet::Puback(ack).encode(Version::V5, &mut bytes).unwrap();
            }
            inlet.receive(&bytes, &mut events).unwrap();
            let reason = ReasonCode::SUCCESS;
            assert_eq!(events, vec![Event::Answered { ticket: round, reason }; WINDOW]);
            bytes.clear();
            events.clear();
        }
    }

    #[test]
    fn an_acknowledgement_of_nothing_and_a_farewell_end_it() {
        let mut bytes = Vec::new();
        let ack = Ack::new(NonZeroU16::new(7).unwrap(), ReasonCode::SUCCESS);
        Packet::Puback(ack).encode(Version::V5, &mut bytes).unwrap();
        let ended = connected().receive(&bytes, &mut Vec::new()).unwrap_err();
        assert!(matches!(ended, InletError::Stray), "{ended}");
        let mut bytes = Vec::new();
        let farewell = Disconnect { reason: ReasonCode::SERVER_BUSY, ..Disconnect::default() };
        Packet::Disconnect(farewell).encode(Version::V5, &mut bytes).unwrap();
        let ended = connected().receive(&bytes, &mut Vec::new()).unwrap_err();
        assert!(matches!(ended, InletError::Ended(ReasonCode::SERVER_BUSY)), "{ended}");
    }
}

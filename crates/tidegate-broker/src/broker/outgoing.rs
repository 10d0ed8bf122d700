//! A message as one subscriber is sent it, and when it may be in flight.

use tidegate_message::Instant;
use tidegate_wire::mqtt::{PublishHead, QoS, stamp::unstamped};

use crate::{
    connection::Connection,
    message::{Body, MessageRef, seconds_left},
    reach::Reach,
    session::Session,
};

/// A message as one subscriber is sent it.
pub(super) struct Outgoing<'a> {
    pub(super) message: &'a MessageRef<'a>,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) dup: bool,
    pub(super) ids: &'a [u32],
}

impl Outgoing<'_> {
    fn head(&self, connection: &Connection, now: Instant) -> PublishHead<'_> {
        let MessageRef { forwarded, retain, .. } = *self.message;
        let is_for_node = matches!(connection.reach, Reach::Own | Reach::Leaf(_));
        PublishHead {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: self.message.topic,
            packet_id: None,
            topic_alias: None,
            message_expiry: seconds_left(self.message.expires, now),
            subscription_ids: self.ids,
            forwarded: if retain && !is_for_node { unstamped(forwarded) } else { forwarded },
            payload_bytes: self.message.payload.len(),
        }
    }

    /// Whether the client takes it (MQTT-3.1.2-24).
    pub(super) fn fits(&self, connection: &Connection, now: Instant) -> bool {
        connection.outbox.hands_out()
            || self.packet_bytes(connection, now) <= connection.packet_bytes_max as usize
    }

    /// Length of the whole packet, without an alias.
    fn packet_bytes(&self, connection: &Connection, now: Instant) -> usize {
        let packet_id = (self.qos > QoS::AtMostOnce).then_some(std::num::NonZeroU16::MIN);
        PublishHead { packet_id, ..self.head(connection, now) }.packet_bytes(connection.version)
    }

    /// Appends the packet up to its payload.
    #[inline]
    pub(super) fn encode_head(
        &self,
        connection: &mut Connection,
        now: Instant,
        packet_id: Option<std::num::NonZeroU16>,
        out: &mut Vec<u8>,
    ) {
        let mut head = PublishHead { packet_id, ..self.head(connection, now) };
        let aliased = PublishHead { topic_alias: Some(std::num::NonZeroU16::MIN), ..head };
        if connection.aliases_out.max > 0
            && aliased.packet_bytes(connection.version) <= connection.packet_bytes_max as usize
            && let Some((alias, known)) = connection.aliases_out.of(self.message.topic)
        {
            head.topic_alias = Some(alias);
            if known {
                head.topic = "";
            }
        }
        head.encode(connection.version, out);
    }
}

/// Appends a payload.
#[inline]
pub(super) fn append(body: &Body<'_>, out: &mut Vec<u8>) {
    match body {
        Body::Read(bytes) => out.extend_from_slice(bytes),
        Body::Held(payload) => {
            for segment in payload.segments() {
                out.extend_from_slice(segment);
            }
        }
    }
}

/// Whether another QoS 1 or 2 message may be in flight (section 4.9, and our own window of bytes). Large ones leave half of
/// the places to small ones.
pub(super) fn may_begin(
    connection: &Connection,
    session: &Session,
    bytes: usize,
    is_large: bool,
) -> bool {
    let places = connection.receive_maximum;
    let inflight = &session.inflight;
    connection.unacknowledged < places
        && (!is_large || inflight.large() < usize::from(places / 2).max(1))
        && (inflight.bytes() == 0 || inflight.bytes() + bytes as u64 <= inflight_window(connection))
}

/// Bytes of QoS 1 and 2 messages that may be in flight: those of its own window, or what its path holds.
pub(super) fn inflight_window(connection: &Connection) -> u64 {
    let link = &connection.link;
    let path = link.delivery_rate.saturating_mul(link.rtt.as_micros() as u64) / 500_000;
    connection.inflight_bytes_max.max(path)
}

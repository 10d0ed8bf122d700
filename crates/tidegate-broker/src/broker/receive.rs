//! Bytes of one connection, packet by packet.

use tidegate_journal::Record;
use tidegate_message::Instant;
use tidegate_wire::mqtt::{
    Ack, AckKind, DecodeError, FixedHeader, Packet, PacketId, Publish, QoS, ReasonCode, Version,
    encode_ack,
};

use super::{
    Broker, ConnectionKey,
    conversation::Conversation,
    mark_dirty,
    publish::{Fault, allowed_route, check_topic},
};
use crate::{
    budget::PartialCharge,
    connection::{PassedOver, Receiving},
    inflight::Awaits,
    message::charge_bytes,
    queue::Held,
    slab::Key,
};

/// A PUBLISH longer than this is received into segments instead of being waited for.
const STREAMED_BYTES: usize = 64 << 10;
/// Longest packet other than PUBLISH, SUBSCRIBE and UNSUBSCRIBE, and longest head of one of these.
pub const CONTROL_BYTES_MAX: usize = 256 << 10;

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 10;
/// Of the first byte of a PUBLISH, its QoS.
const QOS_BITS: u8 = 0b0110;

impl Broker {
    /// Takes whole packets, and what it can use of a large PUBLISH, from the front of `input`; how many bytes that was. The
    /// caller keeps the rest and puts what comes next behind it, or gives it again at [`Output::Resume`](super::Output::Resume); but for what comes behind
    /// many filters, that is never more than [`CONTROL_BYTES_MAX`] bytes, unless it is a
    /// SUBSCRIBE or UNSUBSCRIBE of [`SessionConfig::packet_bytes_max`](crate::SessionConfig) at most, for which the caller needs
    /// [memory](Self::charge_partial).
    pub fn receive(&mut self, now: Instant, key: ConnectionKey, input: &[u8]) -> usize {
        let mut taken = 0;
        match self.connections.get_mut(key) {
            Some(connection) => connection.last_heard = now,
            None => return input.len(),
        }
        while taken < input.len() {
            match self.step(now, key, &input[taken..]) {
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(fault) => {
                    if self.admission.is_some() {
                        // Earlier publications are answered first.
                        self.admit(now, key);
                    }
                    self.end_by(key, &fault);
                    taken = input.len();
                }
            }
        }
        self.end_received(now, key);
        self.statistics.stream_bytes_received += taken as u64;
        taken
    }

    /// Ends a connection for what came over it.
    pub(super) fn end_by(&mut self, key: Key, fault: &Fault) {
        tracing::debug!(connection = key.slot, reason = %fault.reason, text = %fault.text, "connection ended");
        self.disconnect(key, fault.reason, Some(&fault.text));
    }

    /// All input read at once was handled.
    pub(super) fn end_received(&mut self, now: Instant, key: Key) {
        if self.admission.is_some() {
            self.admit(now, key);
        }
        self.acknowledge_through(key);
        if self.connections.get(key).is_some_and(|connection| connection.is_blocked) {
            self.charge_output(key);
        }
    }

    /// Takes one packet or part of a large one; 0 if more input is needed.
    fn step(&mut self, now: Instant, key: Key, input: &[u8]) -> Result<usize, Fault> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(input.len()) };
        if connection.is_closing || connection.session.is_none() {
            return Ok(input.len());
        }
        if connection.filters.is_some() {
            // It is answered first.
            return Ok(0);
        }
        let version = connection.version;
        if connection.receiving.is_some() {
            return self.receive_part(now, key, input);
        }
        let received_bytes_max = connection.received_bytes_max as usize;
        let Some(header) = FixedHeader::decode(input, received_bytes_max)? else { return Ok(0) };
        let (first, packet_bytes) = (header.first, header.packet_bytes());
        let Some(body) = input.get(header.header_bytes..packet_bytes) else {
            if header.packet_type() != PUBLISH {
                // The client knows the maximum packet size, and filters can be many.
                let has_filters = matches!(header.packet_type(), SUBSCRIBE | UNSUBSCRIBE);
                return if packet_bytes > CONTROL_BYTES_MAX && !has_filters {
                    Err(Fault::new(
                        ReasonCode::PACKET_TOO_LARGE,
                        format!("packet of {packet_bytes} bytes exceeds {CONTROL_BYTES_MAX}"),
                    ))
                } else {
                    Ok(0)
                };
            }
            if packet_bytes <= STREAMED_BYTES {
                return Ok(0);
            }
            let prefix = &input[header.header_bytes..];
            let head = Publish::decode_head(version, first, prefix, header.body_bytes)?;
            let Some((publish, head_bytes)) = head else {
                if prefix.len() < CONTROL_BYTES_MAX - header.header_bytes {
                    return Ok(0);
                }
                let text = format!("properties of a message exceed {CONTROL_BYTES_MAX} bytes");
                return Err(Fault::new(ReasonCode::PACKET_TOO_LARGE, text));
            };
            refuse_subscription_ids(&publish)?;
            Self::check_features(connection, publish.qos, publish.retain)?;
            self.begin_receiving(now, key, &publish, header.body_bytes - head_bytes)?;
            self.statistics.packets_received += 1;
            return Ok(header.header_bytes + head_bytes);
        };
        self.statistics.packets_received += 1;
        if header.packet_type() == PUBLISH {
            if connection.drains && first & QOS_BITS != 0 {
                // Nothing may be accepted before what was not (MQTT-4.6.0-5 of 3.1.1).
                self.statistics.received += 1;
                self.statistics.refused += 1;
                return Ok(packet_bytes);
            }
            let last = connection.recent.first().filter(|recent| recent.allowed);
            let last = last.map(|recent| recent.route.clone());
            let known = last.as_ref().map_or("", |route| &*route.topic);
            let publish = Publish::decode_known(version, first, body, known)?;
            refuse_subscription_ids(&publish)?;
            Self::check_features(connection, publish.qos, publish.retain)?;
            self.received_publish(now, key, &publish, last.as_ref())?;
            return Ok(packet_bytes);
        }
        if header.packet_type() == CONNECT {
            // Not read: an error in it, such as its version, has no reason in DISCONNECT.
            return Err(Fault::new(
                ReasonCode::PROTOCOL_ERROR,
                "a second CONNECT on one connection (MQTT-3.1.0-2)",
            ));
        }
        if packet_bytes > CONTROL_BYTES_MAX {
            check_many_filters(version, first, body, self.shared.config().subscriptions_max)?;
        }
        let packet = Packet::decode(version, first, body)?;
        if self.admission.is_some() {
            // Earlier publications go first.
            self.admit(now, key);
        }
        self.received_packet(now, key, packet)?;
        Ok(packet_bytes)
    }

    fn begin_receiving(
        &mut self,
        now: Instant,
        key: Key,
        publish: &Publish<'_>,
        payload_bytes: usize,
    ) -> Result<(), Fault> {
        let topic = self.topic_of(key, publish)?;
        let from = Conversation::of(&mut self.connections, &mut self.sessions, key);
        check_topic(&from.session.config, &topic)?;
        let mut forwarded = Vec::new();
        publish.properties.forwarded(&mut forwarded);
        // Its payload is charged as it comes: a large announcement alone holds no memory. Whether its publisher may send it is asked
        // before room is reserved.
        let bytes = charge_bytes(topic.len(), 0, forwarded.len(), publish.retain);
        let (routes, outputs) = (&mut self.routes, &mut self.outputs);
        let charge = if allowed_route(from, &topic, routes, &self.shared, outputs)?.is_none() {
            Err(PassedOver::Denied)
        } else if bytes + payload_bytes as u64 > self.shared.receiving().limit() {
            // There never is room for it, so no session has to release any.
            Err(PassedOver::NoRoom)
        } else {
            self.charge_more(key, 0, bytes)
        };
        if charge.is_err() {
            forwarded = Vec::new();
        }
        let refusals = self.shared.refusals();
        self.met_mut(key).connection.receiving = Some(Box::new(Receiving {
            topic,
            qos: publish.qos,
            retain: publish.retain,
            packet_id: publish.packet_id,
            forwarded,
            message_expiry: publish.properties.message_expiry,
            charge,
            looked_at: now,
            refusals,
            segments: Vec::new(),
            segment: None,
            left: payload_bytes,
        }));
        self.watch_silence(key);
        Ok(())
    }

    /// More of a large PUBLISH, as far as there is memory for it; the rest is passed over. How much was taken.
    fn receive_part(&mut self, now: Instant, key: Key, input: &[u8]) -> Result<usize, Fault> {
        let mut taken = 0;
        while taken < input.len() {
            let Some(connection) = self.connections.get_mut(key) else { return Ok(input.len()) };
            let Some(receiving) = &mut connection.receiving else { break };
            let wanted = receiving.wants() as u64;
            if wanted > 0 {
                let own = receiving.charge.as_ref().map_or(0, PartialCharge::bytes);
                let more = self.charge_more(key, own, wanted);
                // The session that made room may be this one.
                let connection = self.connections.get_mut(key);
                let Some(receiving) = connection.and_then(|c| c.receiving.as_mut()) else {
                    return Ok(input.len());
                };
                match more {
                    Ok(more) => receiving.extend(more, self.shared.segments()),
                    Err(why) => receiving.pass_over(why),
                }
                continue;
            }
            taken += receiving.take(&input[taken..]);
            if receiving.left == 0
                && let Some(mut received) = connection.receiving.take()
            {
                if connection.drains && received.qos > QoS::AtMostOnce && received.charge.is_ok() {
                    // Nothing may be accepted before what was not (MQTT-4.6.0-5 of 3.1.1).
                    received.pass_over(PassedOver::NoRoom);
                }
                self.received_whole(now, key, *received)?;
                break;
            }
        }
        Ok(taken)
    }

    fn received_packet(&mut self, now: Instant, key: Key, packet: Packet<'_>) -> Result<(), Fault> {
        match packet {
            Packet::Puback(ack) => {
                self.check_kind(key, &ack, &[Awaits::Puback])?;
                self.ended(now, key, &ack, Awaits::Puback);
                Ok(())
            }
            Packet::Pubrec(ack) => {
                // It may come again.
                self.check_kind(key, &ack, &[Awaits::Pubrec, Awaits::Pubcomp])?;
                self.accepted(now, key, &ack)
            }
            Packet::Pubrel(ack) => {
                self.released(key, &ack);
                Ok(())
            }
            Packet::Pubcomp(ack) => {
                self.check_kind(key, &ack, &[Awaits::Pubcomp])?;
                self.ended(now, key, &ack, Awaits::Pubcomp);
                Ok(())
            }
            Packet::Subscribe(packet) => self.subscribe(now, key, packet),
            Packet::Unsubscribe(packet) => self.unsubscribe(now, key, packet),
            Packet::Pingreq => {
                self.answer(key, |version, out| {
                    Packet::Pingresp.encode(version, out).expect("two bytes");
                });
                Ok(())
            }
            Packet::Disconnect(packet) => {
                self.leave(now, key, &packet);
                Ok(())
            }
            Packet::Auth(auth) => self.received_auth(key, auth),
            Packet::Publish(_) | Packet::Connect(_) => unreachable!("taken before"),
            Packet::Connack(_) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Pingresp => {
                Err(Fault::new(ReasonCode::PROTOCOL_ERROR, "a packet that only a server may send"))
            }
        }
    }

    /// Whether an acknowledgement is one of those that its exchange waits for, if there is such an exchange: QoS 1 is answered with
    /// PUBACK, QoS 2 with PUBREC and PUBCOMP (MQTT-4.3.2-4, MQTT-4.3.3-8), and another answer is a protocol error (MQTT-4.13.1-1; 4.8.0-1
    /// of 3.1.1). To one that is not known nothing is done.
    fn check_kind(&self, key: Key, ack: &Ack, expected: &[Awaits]) -> Result<(), Fault> {
        match self.met(key).session.inflight.awaits(ack.packet_id) {
            Some(awaits) if !expected.contains(&awaits) => {
                let text = format!(
                    "message {} is acknowledged as one of another QoS is; {awaits:?} is awaited",
                    ack.packet_id
                );
                Err(Fault::new(ReasonCode::PROTOCOL_ERROR, text))
            }
            _ => Ok(()),
        }
    }

    /// PUBACK and PUBCOMP: the exchange has ended.
    pub(super) fn ended(&mut self, now: Instant, key: Key, ack: &Ack, awaits: Awaits) {
        let Conversation { connection, session, .. } =
            Conversation::of(&mut self.connections, &mut self.sessions, key);
        let Some(kept) = session.inflight.end(ack.packet_id, awaits) else {
            // Nothing is to be done about it; the specification names no answer to either.
            tracing::debug!(client = %session.client_id, id = ack.packet_id, "acknowledges what is not in flight");
            return;
        };
        if let Some(keeper) = &mut self.keeper
            && session.number > 0
        {
            if awaits == Awaits::Pubcomp {
                let (session, id) = (session.number, ack.packet_id);
                keeper.append(&Record::Completed { session, id });
            } else {
                keeper.done(session.number, kept.as_ref().map_or(0, |queued| queued.number));
            }
        }
        if let Some(Held::Memory(message)) = kept.map(|queued| queued.message) {
            self.message_pool.put(message);
        }
        if !connection.resend.iter().any(|resend| resend.id == ack.packet_id) {
            connection.unacknowledged = connection.unacknowledged.saturating_sub(1);
        }
        let mut next_query = None;
        if connection.query.is_some_and(|query| query.id == ack.packet_id) {
            let query = connection.query.take().expect("looked at above");
            if let Some(left) = query.left {
                connection.schedule.answered(now, now.since(left));
            }
            next_query = connection.schedule.query_at();
        }
        if let Some(timed) = connection.timed.take_if(|timed| timed.id == ack.packet_id)
            && let Some(left) = timed.left
        {
            connection.schedule.observed(now, now.since(left), timed.bytes);
        }
        if !session.queue.is_empty() || !connection.resend.is_empty() {
            mark_dirty(key, connection, &mut self.dirty);
        }
        if let Some(at) = next_query {
            self.wake_at(key, at.max(now));
        }
        self.end_drained(key);
    }

    /// Ends a connection of whose messages one was not accepted, once nothing waits for it or half of the memory is free.
    pub(super) fn end_drained(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key).filter(|c| c.drains) else { return };
        let session = connection.session.and_then(|session| self.sessions.get(session));
        let budget = self.shared.budget();
        if budget.used() <= budget.limit() / 2 || !session.is_some_and(|s| s.has_backlog()) {
            let text = "a message was not accepted";
            self.disconnect(key, ReasonCode::QUOTA_EXCEEDED, Some(text));
        }
    }

    /// PUBREC: the subscriber has the message, or does not want it.
    fn accepted(&mut self, now: Instant, key: Key, ack: &Ack) -> Result<(), Fault> {
        if ack.reason.is_failure() {
            self.ended(now, key, ack, Awaits::Pubrec); // MQTT-4.4.0-2
            return Ok(());
        }
        let Conversation { session, .. } = self.met_mut(key);
        let (session, found) = (session.number, session.inflight.release(ack.packet_id));
        if found
            && session > 0
            && let Some(keeper) = &mut self.keeper
        {
            let id = ack.packet_id;
            keeper.append(&Record::Accepted { session, id });
        }
        let reason =
            if found { ReasonCode::SUCCESS } else { ReasonCode::PACKET_IDENTIFIER_NOT_FOUND };
        self.acknowledge(key, AckKind::Pubrel, ack.packet_id, reason);
        Ok(())
    }

    /// PUBREL: the publisher has let go of a packet identifier.
    fn released(&mut self, key: Key, ack: &Ack) {
        let Conversation { session, .. } =
            Conversation::of(&mut self.connections, &mut self.sessions, key);
        let at = session.received.iter().position(|id| *id == ack.packet_id);
        if let Some(at) = at {
            let (number, id) = (session.number, ack.packet_id);
            if let Some(keeper) = self.keeper.as_mut().filter(|_| number > 0)
                && keeper.append(&Record::Released { session: number, id }).is_none()
            {
                // After a restart, the next message with that identifier would be taken for this one and lost. A client whose
                // connection ended sends PUBREL again (MQTT-4.4.0-1).
                let text = "the disk has no room to note that your message is complete";
                return self.disconnect(key, ReasonCode::QUOTA_EXCEEDED, Some(text));
            }
            session.received.remove(at);
        }
        let reason = if at.is_some() {
            ReasonCode::SUCCESS
        } else {
            ReasonCode::PACKET_IDENTIFIER_NOT_FOUND
        };
        self.acknowledge(key, AckKind::Pubcomp, ack.packet_id, reason);
    }

    #[inline]
    pub(super) fn acknowledge(
        &mut self,
        key: Key,
        kind: AckKind,
        packet_id: PacketId,
        reason: ReasonCode,
    ) {
        if kind == AckKind::Puback
            && let Some(connection) = self.connections.get_mut(key)
            && connection.acknowledges_through
        {
            let worst =
                connection.through.map(|(_, worst)| worst).filter(|worst| worst.is_failure());
            connection.through = Some((packet_id, worst.unwrap_or(reason)));
            return;
        }
        self.promise(key, |version, out| encode_ack(version, kind, packet_id, reason, out));
    }

    /// Acknowledges what is yet to be acknowledged by one PUBACK for all of it.
    pub(super) fn acknowledge_through(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (through, denied) = (connection.through.take(), connection.denied.take());
        if let Some((id, reason)) = through {
            self.depend_on_all();
            self.promise(key, |version, out| match denied {
                Some(topic) if version == Version::V5 => {
                    let reason_string = Some(topic.into());
                    let ack = Ack { reason_string, ..Ack::new(id, reason) };
                    Packet::Puback(ack).encode(version, out).expect("a topic is a short text");
                }
                _ => encode_ack(version, AckKind::Puback, id, reason, out),
            });
        }
    }

    /// Appends one packet that overtakes all that has not begun.
    #[inline]
    pub(super) fn answer(&mut self, key: Key, encode: impl FnOnce(Version, &mut Vec<u8>)) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_closing {
            return; // MQTT-3.14.4-1
        }
        let packet_bytes_max = connection.packet_bytes_max as usize;
        let out = connection.outbox.control(&mut self.buffers);
        let start = out.len();
        encode(connection.version, out);
        if out.len() - start > packet_bytes_max {
            out.truncate(start); // MQTT-3.1.2-24
            let text = "the answer is larger than this client takes";
            return self.disconnect(key, ReasonCode::PACKET_TOO_LARGE, Some(text));
        }
        self.statistics.packets_sent += 1;
        mark_dirty(key, connection, &mut self.dirty);
    }
}

/// Whether a long SUBSCRIBE or UNSUBSCRIBE takes no more memory than a small multiple of its length, decoded: each filter and each
/// property is then a value of its own. The decoder reports malformed input.
fn check_many_filters(
    version: Version,
    first: u8,
    body: &[u8],
    filters_max: usize,
) -> Result<(), Fault> {
    let mut rest = body.get(2..).unwrap_or_default();
    if version == Version::V5 {
        let Some((bytes, count)) = variable(rest) else { return Ok(()) };
        if bytes > CONTROL_BYTES_MAX {
            let text = format!("properties of {bytes} bytes exceed {CONTROL_BYTES_MAX}");
            return Err(Fault::new(ReasonCode::PACKET_TOO_LARGE, text));
        }
        rest = rest.get(count + bytes..).unwrap_or_default();
    }
    let options = usize::from(first >> 4 == SUBSCRIBE);
    let mut count = 0;
    while let Some((length, _)) = rest.split_first_chunk::<2>() {
        count += 1;
        if count > filters_max {
            let text = format!("more filters than the {filters_max} that a session may have");
            return Err(Fault::new(ReasonCode::QUOTA_EXCEEDED, text));
        }
        let bytes = 2 + usize::from(u16::from_be_bytes(*length)) + options;
        rest = rest.get(bytes..).unwrap_or_default();
    }
    Ok(())
}

/// A variable byte integer and its own length.
fn variable(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Subscription identifiers are for servers to send (MQTT-3.3.4-6).
#[inline]
fn refuse_subscription_ids(publish: &Publish<'_>) -> Result<(), Fault> {
    if publish.properties.all_forwarded || publish.properties.subscription_ids().next().is_none() {
        return Ok(());
    }
    Err(Fault::new(
        ReasonCode::PROTOCOL_ERROR,
        "a client's PUBLISH has a subscription identifier (MQTT-3.3.4-6)",
    ))
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self { reason: error.reason(), text: error.to_string() }
    }
}

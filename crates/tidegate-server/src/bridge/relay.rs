//! From the packets of one broker to the packets of the other, without I/O.
//!
//! ```text
//!  local input ─┬▶ PUBLISH: topic, loop, new head ──▶ payload as it comes ──┬▶ remote output
//!               ├▶ PUBACK, PUBREC, PUBREL, PUBCOMP with the same identifier ┤
//!               └▶ others ─▶ the local client   the remote client ──────────┘
//! ```
//!
//! Each side has an MQTT client ([`tidegate_wire::mqtt::client`]), which connects, subscribes, pings and leaves. The packets of messages
//! pass it by: a message that a client takes whole would be as much memory, and the exchange would be with the bridge.
//!
//! Packet identifiers pass unchanged: those of one way are given by the broker that sends and known to the broker that receives,
//! and so both carry out the exchanges of QoS 1 and 2 with each other, as if there were no bridge between them.
//!
//! Always true: a packet that was begun on one side is finished before another goes there; of a payload no more is held than
//! was read at once.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_message::Instant;
use tidegate_wire::mqtt::{
    Ack, AckKind, DecodeError, FixedHeader, PACKET_BYTES_MAX, Packet, PacketId, Publish,
    PublishHead, QoS, ReasonCode, Version,
    client::{Client, ClientError, Config, Event},
    encode_ack,
    path::{Direction, Stamps},
};

use super::topics::Topics;

/// Longest packet other than PUBLISH, and longest head of a PUBLISH.
const PACKET_BYTES: usize = 1 << 20;
/// Identifiers that are freed at once.
const FREED_AT_ONCE: u32 = 1024;

/// One side of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Local,
    Remote,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Local => "this node's broker",
            Self::Remote => "the remote broker",
        })
    }
}

/// Counts of a bridge since it began.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) messages: [AtomicU64; 2],
    pub(super) bytes: [AtomicU64; 2],
    pub(super) looped: AtomicU64,
    pub(super) unmapped: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) too_large: AtomicU64,
    pub(super) connects: AtomicU64,
}

/// One of the two connections, without its socket.
#[derive(Debug)]
pub(super) struct End {
    /// The client of the broker there. Its identifiers are the last ones, those of passing messages begin with 1.
    pub(super) client: Client<()>,
    /// Largest packet that the broker there takes, if it does not say so itself.
    pub(super) packet_bytes_max: usize,
    /// Bytes that came and are not used up.
    pub(super) input: Vec<u8>,
    /// The rest of a payload whose head has been dealt with.
    payload: Option<Rest>,
    /// Bytes that go there, whole packets but for a payload that is on its way.
    pub(super) output: Vec<u8>,
    /// Whether it was asked for subscriptions, and has not answered.
    pub(super) is_asked: bool,
    /// Whether it had no room for one of them.
    pub(super) lacks_room: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    bytes: usize,
    is_passed: bool,
}

impl End {
    fn new(answer_timeout: Duration) -> Self {
        let config = Config {
            packet_bytes_max: PACKET_BYTES as u32,
            ids_from_the_end: true,
            answer_timeout,
            ..Config::default()
        };
        Self {
            client: Client::new(config),
            packet_bytes_max: PACKET_BYTES_MAX as usize,
            input: Vec::new(),
            payload: None,
            output: Vec::new(),
            is_asked: false,
            lacks_room: false,
        }
    }

    /// Drops what the last connection left.
    pub(super) fn reset(&mut self) {
        self.client.closed();
        self.input = Vec::new();
        self.payload = None;
        self.output = Vec::new();
        self.is_asked = false;
        self.lacks_room = false;
    }
}

/// One way through the bridge.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) topics: Topics,
    pub(super) direction: Direction,
    /// Which identifiers the receiving broker may hold from a session that the sending one no longer knows, by thousands.
    stale: Option<Box<[bool; 64]>>,
    /// Waits for the end of a packet identifier's exchange, the last of some thousand.
    awaits: Option<(PacketId, PacketId)>,
}

impl Way {
    pub(super) fn new(topics: Topics, direction: Direction) -> Self {
        Self { topics, direction, stale: None, awaits: None }
    }

    /// A connection begins: is the sender's session a new one, has the receiver kept its own?
    pub(super) fn begin(&mut self, sender_is_new: bool, receiver_is_new: bool) {
        self.awaits = None;
        if receiver_is_new {
            self.stale = None;
        } else if sender_is_new {
            self.stale = Some(Box::new([true; 64]));
        }
    }

    /// Has the receiver forget the identifiers around this one; true if it had before.
    ///
    /// A broker that lost its sessions counts from 1 again; the other one may still hold such an identifier since a message of
    /// QoS 2 came with it, and would take a new message for that one.
    fn is_free(&mut self, id: PacketId, version: Version, out: &mut Vec<u8>) -> bool {
        let Some(stale) = &self.stale else { return true };
        let block = u32::from(id.get()) / FREED_AT_ONCE;
        if !stale[block as usize] {
            return true;
        }
        if self.awaits.is_none() {
            let ids = block * FREED_AT_ONCE..(block + 1) * FREED_AT_ONCE;
            let ids = ids.filter_map(|id| PacketId::new(u16::try_from(id).ok()?));
            let (mut first, mut last) = (None, id);
            for id in ids {
                encode_ack(version, AckKind::Pubrel, id, ReasonCode::SUCCESS, out);
                first.get_or_insert(id);
                last = id;
            }
            self.awaits = Some((first.unwrap_or(last), last));
        }
        false
    }

    /// A PUBCOMP from the receiver; true if it answers what [`Way::is_free`] sent.
    fn is_freed(&mut self, id: PacketId) -> bool {
        let Some((first, last)) = self.awaits else { return false };
        if !(first..=last).contains(&id) {
            return false;
        }
        if id == last {
            self.awaits = None;
            if let Some(stale) = &mut self.stale {
                stale[usize::from(id.get()) / FREED_AT_ONCE as usize] = false;
                if stale.iter().all(|stale| !stale) {
                    self.stale = None;
                }
            }
        }
        true
    }
}

/// Why a bridge's connections end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0} sent bytes that are not an MQTT packet")]
    Packet(Side, #[source] DecodeError),
    #[error("{0} sent a packet that is not allowed at this time, with the first byte {1:#04x}")]
    Unexpected(Side, u8),
    #[error("the connection to {0} ended")]
    Client(Side, #[source] ClientError),
    #[error("{0} has no room for a message now (0x97): the message waits and is sent again")]
    NoRoom(Side),
}

/// Both ends and both ways.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) local: End,
    pub(super) remote: End,
    pub(super) out: Way,
    pub(super) back: Way,
    stamps: Stamps,
    keeps_retain: bool,
    topic: String,
    forwarded: Vec<u8>,
    /// The topic of the first message that was not passed on because it came round.
    pub(super) looped: Option<String>,
}

impl Relay {
    /// `answer_timeout` is how long an answer to PINGREQ may take.
    pub(super) fn new(
        out: Way,
        back: Way,
        stamps: Stamps,
        keeps_retain: bool,
        answer_timeout: Duration,
    ) -> Self {
        Self {
            local: End::new(answer_timeout),
            remote: End::new(answer_timeout),
            out,
            back,
            stamps,
            keeps_retain,
            topic: String::new(),
            forwarded: Vec::new(),
            looped: None,
        }
    }

    pub(super) fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Local => &mut self.local,
            Side::Remote => &mut self.remote,
        }
    }

    /// The way from that side.
    pub(super) fn way(&mut self, side: Side) -> &mut Way {
        match side {
            Side::Local => &mut self.out,
            Side::Remote => &mut self.back,
        }
    }

    /// Whether what came from that side waits for an answer of the other.
    pub(super) fn is_held(&mut self, side: Side) -> bool {
        self.way(side).awaits.is_some()
    }

    /// Whether no packet to that side is unfinished.
    pub(super) fn is_between(&mut self, side: Side) -> bool {
        !self.end(side.other()).payload.is_some_and(|rest| rest.is_passed)
    }

    /// Takes what the client of that side has to send, unless a payload is on its way there.
    pub(super) fn fill(&mut self, side: Side, now: Instant) {
        if self.is_between(side) {
            let end = self.end(side);
            end.client.transmit(now, &mut end.output);
        }
    }

    /// Deals with what came from that side, as far as it can.
    pub(super) fn take(
        &mut self,
        side: Side,
        now: Instant,
        counters: &Counters,
    ) -> Result<(), Fault> {
        let mut input = std::mem::take(&mut self.end(side).input);
        let mut used = 0;
        let result = loop {
            match self.step(side, now, &input[used..], counters) {
                Ok(0) => break Ok(()),
                Ok(count) => used += count,
                Err(fault) => break Err(fault),
            }
        };
        input.drain(..used);
        self.end(side).input = input;
        result
    }

    /// Takes one packet or part of a PUBLISH; 0 if that must wait.
    fn step(
        &mut self,
        side: Side,
        now: Instant,
        input: &[u8],
        counters: &Counters,
    ) -> Result<usize, Fault> {
        if let Some(rest) = self.end(side).payload {
            let count = rest.bytes.min(input.len());
            if rest.is_passed {
                self.end(side.other()).output.extend_from_slice(&input[..count]);
            }
            let bytes = rest.bytes - count;
            self.end(side).payload = (bytes > 0).then_some(Rest { bytes, ..rest });
            if bytes == 0 {
                self.fill(side.other(), now);
            }
            return Ok(count);
        }
        let wrong = |error| Fault::Packet(side, error);
        let header = FixedHeader::decode(input, PACKET_BYTES_MAX as usize).map_err(wrong)?;
        let Some(header) = header else { return Ok(0) };
        let version = self.end(side).client.version();
        let body = &input[header.header_bytes..];
        if header.packet_type() == 3 {
            let head = Publish::decode_head(version, header.first, body, header.body_bytes);
            let Some((publish, head_bytes)) = head.map_err(wrong)? else {
                return if body.len() > PACKET_BYTES {
                    Err(Fault::Unexpected(side, header.first))
                } else {
                    Ok(0)
                };
            };
            let payload_bytes = header.body_bytes - head_bytes;
            if !self.publish(side, &publish, payload_bytes, counters) {
                return Ok(0);
            }
            return Ok(header.header_bytes + head_bytes);
        }
        if header.packet_bytes() > PACKET_BYTES {
            return Err(Fault::Unexpected(side, header.first));
        }
        let Some(body) = body.get(..header.body_bytes) else { return Ok(0) };
        match Packet::decode(version, header.first, body).map_err(wrong)? {
            Packet::Puback(ack) => self.acknowledge(side, AckKind::Puback, &ack, counters)?,
            Packet::Pubrec(ack) => self.acknowledge(side, AckKind::Pubrec, &ack, counters)?,
            Packet::Pubrel(ack) => self.acknowledge(side, AckKind::Pubrel, &ack, counters)?,
            Packet::Pubcomp(ack) if self.way(side.other()).is_freed(ack.packet_id) => {}
            Packet::Pubcomp(ack) => self.acknowledge(side, AckKind::Pubcomp, &ack, counters)?,
            _ => {
                let handled = self.end(side).client.handle(header.first, body);
                let event = handled.map_err(|error| Fault::Client(side, error))?;
                if let Some(Event::Subscribed { reasons, .. }) = event {
                    self.end(side).is_asked = false;
                    self.subscribed(side, &reasons);
                }
            }
        }
        Ok(header.packet_bytes())
    }

    /// The head of a message; false if it must wait.
    fn publish(
        &mut self,
        side: Side,
        publish: &Publish<'_>,
        payload_bytes: usize,
        counters: &Counters,
    ) -> bool {
        let Self { local, remote, out, back, stamps, keeps_retain, topic, forwarded, looped } =
            self;
        let (from, to, way) = match side {
            Side::Local => (local, remote, out),
            Side::Remote => (remote, local, back),
        };
        if let (QoS::ExactlyOnce, Some(id)) = (publish.qos, publish.packet_id)
            && !way.is_free(id, to.client.version(), &mut to.output)
        {
            return false;
        }
        let mut head = PublishHead {
            dup: publish.dup,
            qos: publish.qos,
            retain: publish.retain && *keeps_retain && to.client.limits().retains,
            topic: "",
            packet_id: publish.packet_id,
            topic_alias: None,
            message_expiry: publish.properties.message_expiry,
            subscription_ids: &[],
            forwarded: &[],
            payload_bytes,
        };
        let add = |counter: &AtomicU64, count: usize| {
            counter.fetch_add(count as u64, Ordering::Relaxed);
        };
        let is_passed = if !way.topics.map(publish.topic, topic) {
            add(&counters.unmapped, 1);
            false
        } else if !stamps.passes(way.direction, publish.properties.user_properties()) {
            add(&counters.looped, 1);
            looped.get_or_insert_with(|| publish.topic.to_owned());
            false
        } else {
            forwarded.clear();
            publish.properties.forwarded(forwarded);
            forwarded.extend_from_slice(stamps.property(way.direction));
            head.topic = topic;
            head.forwarded = forwarded;
            let packet_bytes_max = to.client.limits().packet_bytes_max.min(to.packet_bytes_max);
            let fits = head.packet_bytes(to.client.version()) <= packet_bytes_max;
            if !fits {
                tracing::warn!(%topic, payload_bytes, packet_bytes_max,
                    "a message is longer than {} takes", side.other());
                add(&counters.too_large, 1);
            }
            fits
        };
        if is_passed {
            head.encode(to.client.version(), &mut to.output);
            add(&counters.messages[side as usize], 1);
            add(&counters.bytes[side as usize], payload_bytes);
        }
        from.payload = (payload_bytes > 0).then_some(Rest { bytes: payload_bytes, is_passed });
        if let Some(id) = publish.packet_id.filter(|_| !is_passed) {
            from.client.answer(publish.qos, id, ReasonCode::SUCCESS);
        }
        true
    }

    fn acknowledge(
        &mut self,
        side: Side,
        kind: AckKind,
        ack: &Ack,
        counters: &Counters,
    ) -> Result<(), Fault> {
        if ack.reason.is_failure() && matches!(kind, AckKind::Puback | AckKind::Pubrec) {
            // Later there may be room; until then the message waits where it came from.
            if ack.reason == ReasonCode::QUOTA_EXCEEDED {
                return Err(Fault::NoRoom(side));
            }
            tracing::warn!(reason = %ack.reason, "{side} refused a message");
            counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        let to = self.end(side.other());
        encode_ack(to.client.version(), kind, ack.packet_id, ack.reason, &mut to.output);
        Ok(())
    }

    fn subscribed(&mut self, side: Side, reasons: &[ReasonCode]) {
        for (filter, reason) in self.way(side).topics.filters().iter().zip(reasons) {
            if reason.is_failure() {
                tracing::error!(filter, %reason, "{side} refused a subscription of the bridge");
            }
        }
        self.end(side).lacks_room = reasons.contains(&ReasonCode::QUOTA_EXCEEDED);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::mqtt::{Connect, Disconnect, RetainHandling, Suback, SubscribeFilter};

    use super::*;

    const NOW: Instant = Instant::EPOCH;

    fn relay(pattern: &str) -> Relay {
        let patterns = [pattern.to_owned()];
        let out = Way::new(Topics::new(&patterns, "", "r/", None), Direction::Out);
        let back = Way::new(Topics::new(&patterns, "r/", "", Some("$SYS/")), Direction::In);
        let mut relay = Relay::new(out, back, Stamps::new("n"), true, Duration::from_secs(10));
        for side in [Side::Local, Side::Remote] {
            connect(&mut relay, side, Version::V5);
        }
        relay
    }

    /// That side's broker lets its client in.
    fn connect(relay: &mut Relay, side: Side, version: Version) {
        let end = relay.end(side);
        end.client.connect(NOW, &Connect::new(version, "c")).unwrap();
        let connack = encoded(version, &Packet::Connack(Box::default()));
        assert!(end.client.receive(&mut &connack[..]).unwrap().is_some());
        let mut sent = Vec::new();
        assert!(end.client.transmit(NOW, &mut sent), "CONNECT");
    }

    fn publish<'a>(topic: &'a str, qos: QoS, id: u16, payload: &'a [u8]) -> Packet<'a> {
        Packet::Publish(Publish {
            dup: false,
            qos,
            retain: true,
            topic,
            packet_id: PacketId::new(id),
            properties: Default::default(),
            payload,
        })
    }

    fn encoded(version: Version, packet: &Packet<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        packet.encode(version, &mut out).unwrap();
        out
    }

    fn packets(version: Version, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while let Some(header) = FixedHeader::decode(bytes, usize::MAX).unwrap() {
            let (packet, rest) = bytes.split_at(header.packet_bytes());
            Packet::decode(version, packet[0], &packet[header.header_bytes..]).unwrap();
            found.push(packet.to_vec());
            bytes = rest;
        }
        found
    }

    #[test]
    fn a_payload_in_pieces_goes_on_as_it_comes_and_is_not_broken_into() {
        let mut relay = relay("#");
        let counters = Counters::default();
        let payload = vec![7; 100_000];
        let message = encoded(Version::V5, &publish("a", QoS::AtLeastOnce, 5, &payload));
        for (at, piece) in message.chunks(1000).enumerate() {
            relay.local.input.extend_from_slice(piece);
            relay.take(Side::Local, NOW, &counters).unwrap();
            assert!(relay.local.input.is_empty());
            if at == 3 {
                relay.remote.client.ping();
                relay.fill(Side::Remote, NOW);
            }
        }
        let out = packets(Version::V5, &relay.remote.output);
        assert_eq!(out.len(), 2);
        let Ok(Packet::Publish(passed)) = Packet::decode(Version::V5, out[0][0], &out[0][4..])
        else {
            panic!("no PUBLISH")
        };
        assert_eq!((passed.topic, passed.payload), ("r/a", &*payload));
        assert_eq!(passed.packet_id, PacketId::new(5));
        assert!(passed.retain);
        assert_eq!(
            passed.properties.user_properties().collect::<Vec<_>>(),
            [("tidegate-bridge", "out/n")]
        );
        assert_eq!(out[1], [0xc0, 0]);
        assert!(relay.local.output.is_empty(), "nothing is acknowledged before the remote has");
        let ack = Packet::Puback(Ack::new(PacketId::new(5).unwrap(), ReasonCode::SUCCESS));
        relay.remote.input = encoded(Version::V5, &ack);
        relay.take(Side::Remote, NOW, &counters).unwrap();
        assert_eq!(relay.local.output, encoded(Version::V5, &ack));
    }

    #[test]
    fn what_does_not_pass_is_acknowledged_here() {
        let mut relay = relay("a/#");
        connect(&mut relay, Side::Remote, Version::V4);
        let counters = Counters::default();
        relay.remote.input = encoded(Version::V4, &publish("b", QoS::ExactlyOnce, 9, b"x"));
        relay.take(Side::Remote, NOW, &counters).unwrap();
        relay.fill(Side::Remote, NOW);
        assert_eq!(relay.remote.output, [0x50, 2, 0, 9]);
        assert!(relay.local.output.is_empty());
        assert_eq!(counters.unmapped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn packets_of_the_connection_are_the_clients() {
        let mut relay = relay("#");
        let counters = Counters::default();
        let filter = SubscribeFilter {
            filter: "r/#".to_owned(),
            maximum_qos: QoS::ExactlyOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::Send,
        };
        // A message of the other broker's has the identifier 1; the client's own are the last ones.
        relay.local.input = encoded(Version::V5, &publish("a", QoS::AtLeastOnce, 1, b"x"));
        relay.take(Side::Local, NOW, &counters).unwrap();
        let asked = relay.remote.client.subscribe(vec![filter], None, ()).unwrap();
        assert_eq!(asked, PacketId::MAX);
        relay.remote.client.ping();
        relay.fill(Side::Remote, NOW);
        let kinds = packets(Version::V5, &relay.remote.output);
        assert_eq!(kinds.iter().map(|packet| packet[0] >> 4).collect::<Vec<_>>(), [3, 8, 12]);
        let suback = Suback {
            packet_id: asked,
            reason_string: None,
            user_properties: Vec::new(),
            reasons: vec![ReasonCode::SUCCESS],
        };
        relay.remote.input = encoded(Version::V5, &Packet::Suback(suback.clone()));
        relay.remote.input.extend_from_slice(&[0xd0, 0]);
        relay.take(Side::Remote, NOW, &counters).unwrap();
        assert!(relay.local.output.is_empty(), "they do not pass");
        let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::SERVER_BUSY));
        for (packet, expected) in [
            (Packet::Suback(suback), "SUBACK for packet identifier 65535"),
            (disconnect, "Server busy"),
        ] {
            relay.remote.input = encoded(Version::V5, &packet);
            let Err(Fault::Client(Side::Remote, error)) = relay.take(Side::Remote, NOW, &counters)
            else {
                panic!("{expected}")
            };
            assert!(error.to_string().contains(expected), "{error}");
            connect(&mut relay, Side::Remote, Version::V5);
        }
    }

    #[test]
    fn a_new_session_frees_the_identifiers_of_the_old_one_first() {
        let mut relay = relay("#");
        let counters = Counters::default();
        relay.out.begin(true, false);
        relay.local.input = encoded(Version::V5, &publish("a", QoS::ExactlyOnce, 3, b"x"));
        relay.take(Side::Local, NOW, &counters).unwrap();
        assert!(relay.is_held(Side::Local));
        let asked = packets(Version::V5, &std::mem::take(&mut relay.remote.output));
        assert_eq!(asked.len(), 1023, "of the first thousand, zero is none");
        assert!(asked.iter().all(|packet| packet[0] == 0x62));
        for packet in &asked {
            let id = PacketId::new(u16::from_be_bytes([packet[2], packet[3]])).unwrap();
            let answer = Ack::new(id, ReasonCode::PACKET_IDENTIFIER_NOT_FOUND);
            relay.remote.input.extend(encoded(Version::V5, &Packet::Pubcomp(answer)));
        }
        relay.take(Side::Remote, NOW, &counters).unwrap();
        assert!(relay.local.output.is_empty(), "this broker did not ask");
        assert!(!relay.is_held(Side::Local));
        relay.take(Side::Local, NOW, &counters).unwrap();
        assert_eq!(packets(Version::V5, &relay.remote.output).len(), 1);
    }

    #[test]
    fn what_the_server_says_of_itself_is_not_made_by_others() {
        let mut relay = relay("#");
        let counters = Counters::default();
        relay.remote.input = encoded(Version::V5, &publish("r/$SYS/x", QoS::AtMostOnce, 0, b"x"));
        relay.take(Side::Remote, NOW, &counters).unwrap();
        assert!(relay.local.output.is_empty());
    }
}

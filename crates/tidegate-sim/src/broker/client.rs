//! A client that keeps to its side of the protocol, whatever happens to its connections.
//!
//! Always true: it acknowledges in the order in which it received (MQTT-4.6.0-2); it sends again what was not acknowledged, in
//! order, when its session is resumed (MQTT-4.4.0-1); it forgets its own state when the broker has none (MQTT-3.2.2-5).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZeroU16,
    time::Duration,
};

use rand::{RngExt, rngs::SmallRng, seq::IndexedRandom};
use tidegate_message::Instant;
use tidegate_wire::mqtt::{
    Ack, Connack, Connect, ConnectProperties, Disconnect, FixedHeader, Packet, PacketId, Publish,
    PublishProperties, QoS, ReasonCode, Subscribe, SubscribeFilter, Unsubscribe, Version, Will,
};

use super::{
    oracle::{Delivery, HEAD_BYTES, Oracle, number, payload},
    plan::{ClientPlan, QUERIES, TOPICS},
    trail::Trail,
};

#[derive(Debug)]
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) plan: ClientPlan,
    /// The name that puts it on its shard.
    pub(super) name: String,
    /// Packets to be sent.
    pub(super) output: Vec<u8>,
    /// The connection it uses.
    pub(super) link: Option<usize>,
    /// CONNACK has come on it.
    pub(super) is_connected: bool,
    /// It has ended its side, and only listens.
    pub(super) is_leaving: bool,
    /// It reads nothing before that time.
    pub(super) deaf_until: Instant,
    /// When its next acknowledgement is due, as the site knows.
    pub(super) wakes_at: Option<Instant>,
    /// Its next connection begins without what was.
    pub(super) starts_clean: bool,
    pub(super) will: Option<u64>,
    /// Its session outlives the connection.
    is_kept: bool,
    input: Vec<u8>,
    // Of the session.
    pending: VecDeque<Outgoing>,
    received: BTreeSet<PacketId>,
    last_id: u16,
    // Of the connection.
    answers: VecDeque<(Instant, Packet<'static>)>,
    asked: BTreeMap<PacketId, Asked>,
    /// Subscriptions that are to be asked for again.
    refused: Vec<SubscribeFilter>,
    open: BTreeSet<PacketId>,
    aliases_in: BTreeMap<u16, String>,
    aliases_out: BTreeMap<usize, u16>,
    aliases_out_max: u16,
    receive_maximum: usize,
    is_over: bool,
    /// The retained messages it was sent, by topic; for the observer at the end.
    pub(super) retained: BTreeMap<String, Vec<u8>>,
}

/// A message of QoS 1 or 2 that was not acknowledged to the end.
#[derive(Debug)]
struct Outgoing {
    id: PacketId,
    number: u64,
    topic: usize,
    qos: QoS,
    bytes: usize,
    is_released: bool,
}

#[derive(Debug)]
enum Asked {
    Subscribe(Vec<SubscribeFilter>),
    Unsubscribe(String),
}

impl Client {
    pub(super) fn new(number: usize, plan: ClientPlan, name: String) -> Self {
        Self {
            number,
            plan,
            name,
            output: Vec::new(),
            link: None,
            is_connected: false,
            is_leaving: false,
            deaf_until: Instant::MIN,
            wakes_at: None,
            starts_clean: false,
            will: None,
            is_kept: true,
            input: Vec::new(),
            pending: VecDeque::new(),
            received: BTreeSet::new(),
            last_id: 0,
            answers: VecDeque::new(),
            asked: BTreeMap::new(),
            refused: Vec::new(),
            open: BTreeSet::new(),
            aliases_in: BTreeMap::new(),
            aliases_out: BTreeMap::new(),
            aliases_out_max: 0,
            receive_maximum: 0,
            is_over: false,
            retained: BTreeMap::new(),
        }
    }

    /// Whether nothing is owed in either direction.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_connected
            && !self.is_leaving
            && self.pending.is_empty()
            && self.answers.is_empty()
            && self.asked.is_empty()
    }

    // ---- connections

    /// Begins a connection: its CONNECT.
    pub(super) fn connect(&mut self, link: usize, oracle: &mut Oracle) {
        if self.starts_clean {
            self.forget();
        }
        self.link = Some(link);
        let plan = &self.plan;
        let is_5 = plan.version == Version::V5;
        self.will =
            plan.will.map(|_| oracle.will(self.number, &self.will_topic(), QoS::ExactlyOnce));
        let will = self.will.map(|number| Will {
            topic: self.will_topic(),
            payload: payload(number, false, 0),
            qos: QoS::ExactlyOnce,
            retain: false,
            delay: plan.will.filter(|_| is_5).unwrap_or(0),
            message_expiry: None,
            forwarded: Vec::new(),
        });
        let is_clean = self.starts_clean || (!is_5 && plan.expiry == 0);
        self.is_kept = if is_5 { plan.expiry > 0 } else { !is_clean };
        let connect = Connect {
            version: plan.version,
            bridge: false,
            clean_start: is_clean,
            keep_alive: plan.keep_alive,
            client_id: self.name.clone(),
            will,
            username: None,
            password: None,
            properties: ConnectProperties {
                session_expiry: Some(plan.expiry),
                receive_maximum: plan.receive_maximum,
                topic_alias_maximum: plan.alias_maximum,
                ..ConnectProperties::default()
            },
        };
        self.put(&Packet::Connect(Box::new(connect)));
    }

    fn will_topic(&self) -> String {
        format!("x/{}", self.number)
    }

    /// It uses that connection no more. A session of that connection alone ends with it (MQTT-3.1.2-6 of 3.1.1).
    pub(super) fn abandon(&mut self) {
        if !self.is_kept {
            self.forget();
        }
        self.link = None;
        self.is_connected = false;
        self.is_leaving = false;
        self.is_over = false;
        self.input.clear();
        self.output.clear();
        self.answers.clear();
        self.asked.clear();
        self.open.clear();
        self.aliases_in.clear();
        self.aliases_out.clear();
    }

    /// Forgets its session.
    fn forget(&mut self) {
        self.refused.clear();
        self.pending.clear();
        self.received.clear();
    }

    /// An ordinary goodbye, or one that asks for its will.
    pub(super) fn leave(&mut self, keeps_will: bool) {
        let reason = match keeps_will && self.plan.version == Version::V5 {
            true => ReasonCode::DISCONNECT_WITH_WILL,
            false => ReasonCode::SUCCESS,
        };
        self.put(&Packet::Disconnect(Disconnect::new(reason)));
        if reason == ReasonCode::SUCCESS {
            self.will = None;
        }
        self.is_leaving = true;
    }

    pub(super) fn ping(&mut self) {
        self.put(&Packet::Pingreq);
    }

    fn put(&mut self, packet: &Packet<'_>) {
        if !self.is_leaving {
            packet
                .encode(self.plan.version, &mut self.output)
                .expect("packets of clients are short");
        }
    }

    // ---- publishing and subscribing

    /// Does something of its own: publishes mostly.
    pub(super) fn act(
        &mut self,
        oracle: &mut Oracle,
        trail: &mut Trail,
        at: Duration,
        random: &mut SmallRng,
    ) {
        if !self.is_connected || self.is_leaving {
            return;
        }
        if !self.refused.is_empty() && self.asked.is_empty() && random.random_ratio(1, 4) {
            let refused = std::mem::take(&mut self.refused);
            return self.subscribe(refused, oracle);
        }
        if random.random_ratio(1, 40) {
            return self.change(oracle, random);
        }
        let Some(qos_max) = self.plan.publishes else { return };
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][random.random_range(0..3)];
        let qos = qos.min(qos_max);
        if qos > QoS::AtMostOnce && self.pending.len() >= self.receive_maximum {
            return;
        }
        let topic = random.random_range(0..TOPICS.len());
        let retain = TOPICS[topic].starts_with('r');
        let sizes = [20, 20, 20, 300, 5_000, 12_000, 70_000];
        let bytes = *sizes.choose(random).expect("not empty");
        let bytes = bytes.min(self.plan.payload_bytes_max).min(if retain { 3_000 } else { 70_000 });
        let number = oracle.publish(self.number, TOPICS[topic], qos, retain, bytes);
        trail.note(at, self.number, "publishes", [number, bytes as u64]);
        let id = match qos {
            QoS::AtMostOnce => PacketId::MIN,
            _ => self.fresh_id(),
        };
        let outgoing = Outgoing { id, number, topic, qos, bytes, is_released: false };
        self.send(&outgoing, false, oracle);
        if qos > QoS::AtMostOnce {
            self.pending.push_back(outgoing);
        }
    }

    /// Ends or renews one of its subscriptions.
    fn change(&mut self, oracle: &mut Oracle, random: &mut SmallRng) {
        let Some(options) = self.plan.filters.choose(random).cloned() else { return };
        // That one ended may find no room in the journal, and then it is back.
        if random.random() || self.plan.may_be_refused || !self.asked.is_empty() {
            return self.subscribe(vec![options], oracle);
        }
        let packet_id = self.fresh_id();
        oracle.unasked(self.number, &options.filter);
        let filters = vec![options.filter.clone()];
        self.put(&Packet::Unsubscribe(Unsubscribe {
            packet_id,
            user_properties: Vec::new(),
            filters,
        }));
        self.asked.insert(packet_id, Asked::Unsubscribe(options.filter));
    }

    pub(super) fn subscribe(&mut self, filters: Vec<SubscribeFilter>, oracle: &mut Oracle) {
        if filters.is_empty() || !self.asked.is_empty() {
            return;
        }
        let packet_id = self.fresh_id();
        for options in &filters {
            oracle.asked(self.number, options);
        }
        let subscribe = Subscribe {
            packet_id,
            subscription_id: self.plan.subscription_id.filter(|_| self.plan.version == Version::V5),
            user_properties: Vec::new(),
            filters: filters.clone(),
        };
        self.put(&Packet::Subscribe(subscribe));
        self.asked.insert(packet_id, Asked::Subscribe(filters));
    }

    fn fresh_id(&mut self) -> PacketId {
        loop {
            self.last_id = self.last_id % 300 + 1;
            let id = NonZeroU16::new(self.last_id).expect("from 1");
            let is_used = self.pending.iter().any(|outgoing| outgoing.id == id);
            if !is_used && !self.asked.contains_key(&id) {
                return id;
            }
        }
    }

    fn send(&mut self, outgoing: &Outgoing, dup: bool, oracle: &mut Oracle) {
        let Outgoing { id, number, topic, qos, bytes, is_released } = *outgoing;
        if is_released {
            return self.put(&Packet::Pubrel(Ack::new(id, ReasonCode::SUCCESS)));
        }
        oracle.sent(number);
        let mut raw = Vec::new();
        let mut text = TOPICS[topic];
        let alias = topic as u16 + 1;
        if self.plan.uses_aliases && alias <= self.aliases_out_max {
            raw.extend([0x23, 0, alias as u8]);
            if self.aliases_out.insert(topic, alias).is_some() {
                text = "";
            }
        }
        let payload = payload(number, false, bytes);
        self.put(&Packet::Publish(Publish {
            dup,
            qos,
            retain: TOPICS[topic].starts_with('r'),
            topic: text,
            packet_id: (qos > QoS::AtMostOnce).then_some(id),
            properties: PublishProperties { raw: &raw, ..PublishProperties::NONE },
            payload: &payload,
        }));
    }

    /// Clears what is retained.
    pub(super) fn clear(&mut self, topic: &str) {
        self.put(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: true,
            topic,
            packet_id: None,
            properties: PublishProperties::NONE,
            payload: &[],
        }));
    }

    // ---- what comes

    /// Sends the acknowledgements whose time has come; when the next has.
    pub(super) fn answer(&mut self, now: Instant, oracle: &mut Oracle) -> Option<Instant> {
        if self.is_leaving {
            return None;
        }
        while let Some((_, packet)) = self.answers.pop_front_if(|(at, _)| *at <= now) {
            if let Packet::Puback(ack) | Packet::Pubrec(ack) | Packet::Pubcomp(ack) = &packet {
                oracle.answered(self.number, ack.packet_id);
                if !matches!(packet, Packet::Pubrec(_)) {
                    self.open.remove(&ack.packet_id);
                }
            }
            self.put(&packet);
        }
        self.answers.front().map(|(at, _)| *at)
    }

    fn answer_later(&mut self, now: Instant, packet: Packet<'static>, random: &mut SmallRng) {
        let lag = self.plan.answer_lag.as_millis() as u64;
        let at = now + Duration::from_millis(random.random_range(0..=lag));
        let after = self.answers.back().map_or(at, |(last, _)| at.max(*last));
        self.answers.push_back((after, packet));
    }

    /// Bytes came.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        at: Duration,
        bytes: &[u8],
        oracle: &mut Oracle,
        trail: &mut Trail,
        random: &mut SmallRng,
    ) {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some(header) = FixedHeader::decode(rest, usize::MAX).expect("a header") {
            let Some(packet) = rest.get(..header.packet_bytes()) else { break };
            rest = &rest[header.packet_bytes()..];
            assert!(!self.is_over, "a packet after DISCONNECT (MQTT-3.14.4-1)");
            let body = &packet[header.header_bytes..];
            let decoded =
                Packet::decode(self.plan.version, header.first, body).expect("it decodes");
            let (what, value) = match &decoded {
                Packet::Publish(p) if p.payload.len() >= HEAD_BYTES => ("gets", number(p.payload)),
                _ => ("receives", packet.len() as u64),
            };
            trail.note(at, self.number, what, [value, header.first.into()]);
            let packet = decoded;
            self.received(now, packet, oracle, random);
        }
        self.input = rest.to_vec();
    }

    fn received(
        &mut self,
        now: Instant,
        packet: Packet<'_>,
        oracle: &mut Oracle,
        random: &mut SmallRng,
    ) {
        let is_connack = matches!(packet, Packet::Connack(_));
        assert!(self.is_connected != is_connack, "CONNACK comes first, once (MQTT-3.2.0-1)");
        match packet {
            Packet::Connack(connack) => self.connected(&connack, oracle),
            Packet::Publish(publish) => self.published(now, &publish, oracle, random),
            Packet::Puback(ack) => self.acknowledged(&ack, QoS::AtLeastOnce, oracle),
            Packet::Pubrec(ack) => {
                self.acknowledged(&ack, QoS::ExactlyOnce, oracle);
                if !ack.reason.is_failure() {
                    let ack = Ack::new(ack.packet_id, ReasonCode::SUCCESS);
                    self.answer_later(now, Packet::Pubrel(ack), random);
                }
            }
            Packet::Pubcomp(ack) => {
                let at = self.pending.iter().position(|o| o.id == ack.packet_id && o.is_released);
                self.pending.remove(at.expect("PUBCOMP answers a PUBREL"));
            }
            Packet::Pubrel(ack) => {
                self.received.remove(&ack.packet_id);
                let ack = Ack::new(ack.packet_id, ReasonCode::SUCCESS);
                self.answer_later(now, Packet::Pubcomp(ack), random);
            }
            Packet::Suback(ack) => {
                let Some(Asked::Subscribe(filters)) = self.asked.remove(&ack.packet_id) else {
                    panic!("SUBACK without SUBSCRIBE");
                };
                for (options, reason) in filters.iter().zip(&ack.reasons) {
                    if reason.is_failure() {
                        assert!(self.plan.may_be_refused, "{}", options.filter);
                        self.refused.push(options.clone());
                        continue;
                    }
                    assert_eq!(reason.0, options.maximum_qos as u8, "{}", options.filter);
                    oracle.granted(self.number, &options.filter);
                }
            }
            Packet::Unsuback(ack) => {
                let Some(Asked::Unsubscribe(filter)) = self.asked.remove(&ack.packet_id) else {
                    panic!("UNSUBACK without UNSUBSCRIBE");
                };
                oracle.ended(self.number, &filter);
            }
            Packet::Pingresp => {}
            Packet::Disconnect(_) => {
                assert_eq!(
                    self.plan.version,
                    Version::V5,
                    "servers say no DISCONNECT before MQTT 5"
                );
                self.is_over = true;
            }
            packet => panic!("a server does not send {packet:?}"),
        }
    }

    fn connected(&mut self, connack: &Connack, oracle: &mut Oracle) {
        self.is_connected = true;
        if connack.reason.is_failure() {
            // No room for its will; it comes again.
            let reasons = [ReasonCode::QUOTA_EXCEEDED, ReasonCode::SERVER_UNAVAILABLE];
            assert!(reasons.contains(&connack.reason), "{connack:?}");
            self.is_leaving = true;
            return;
        }
        let properties = &connack.properties;
        self.aliases_out_max = properties.topic_alias_maximum;
        // Before MQTT 5 it does not learn it; two is what every broker of these runs takes.
        let maximum = properties.receive_maximum.map_or(2, |count| usize::from(count.get()));
        self.receive_maximum = maximum;
        if connack.session_present {
            assert!(!self.starts_clean, "a session after Clean Start (MQTT-3.1.2-4)");
            let pending = std::mem::take(&mut self.pending);
            for outgoing in &pending {
                self.send(outgoing, true, oracle);
            }
            self.pending = pending;
        } else {
            self.forget();
        }
        self.starts_clean = false;
        if !connack.session_present || !self.plan.is_lasting() {
            self.subscribe(self.plan.filters.clone(), oracle);
        }
    }

    /// PUBACK or PUBREC.
    fn acknowledged(&mut self, ack: &Ack, qos: QoS, oracle: &mut Oracle) {
        let same = |o: &Outgoing| o.id == ack.packet_id && o.qos == qos && !o.is_released;
        let at = self.pending.iter().position(same).expect("it answers a PUBLISH");
        let number = self.pending[at].number;
        if ack.reason.is_failure() {
            assert_eq!(ack.reason, ReasonCode::QUOTA_EXCEEDED);
            oracle.refused(number);
        } else {
            oracle.accepted(number, ack.reason);
        }
        if qos == QoS::ExactlyOnce && !ack.reason.is_failure() {
            self.pending[at].is_released = true;
        } else {
            self.pending.remove(at);
        }
    }

    fn published(
        &mut self,
        now: Instant,
        publish: &Publish<'_>,
        oracle: &mut Oracle,
        random: &mut SmallRng,
    ) {
        let mut topic = publish.topic.to_owned();
        if let Some(alias) = publish.properties.topic_alias.map(NonZeroU16::get) {
            assert!(alias <= self.plan.alias_maximum, "MQTT-3.1.2-26");
            if topic.is_empty() {
                topic = self.aliases_in.get(&alias).expect("an alias that was defined").clone();
            } else {
                self.aliases_in.insert(alias, topic.clone());
            }
        }
        let mut is_new = true;
        if let Some(id) = publish.packet_id {
            assert!(self.open.insert(id), "identifier {id} is in use (MQTT-2.2.1-4)");
            let most = self.plan.receive_maximum.map_or(usize::MAX, |count| count.get().into());
            let most = if self.plan.version == Version::V5 { most } else { usize::MAX };
            assert!(self.open.len() <= most, "more than Receive Maximum (MQTT-3.3.4-9)");
            let ack = Ack::new(id, ReasonCode::SUCCESS);
            let answer = if publish.qos == QoS::AtLeastOnce {
                Packet::Puback(ack)
            } else {
                is_new = self.received.insert(id);
                Packet::Pubrec(ack)
            };
            self.answer_later(now, answer, random);
        }
        if publish.retain && !publish.payload.is_empty() {
            self.retained.insert(topic.clone(), publish.payload.to_vec());
        }
        let is_message = topic != QUERIES && !topic.starts_with('$') && !publish.payload.is_empty();
        if is_new && is_message {
            let Publish { qos, retain, dup, payload, .. } = *publish;
            oracle.deliver(self.number, &Delivery { topic: &topic, payload, qos, retain, dup });
        }
    }
}

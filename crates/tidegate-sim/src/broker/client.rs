//! A client that does things at random and takes its time to answer, around the state machine of [`tidegate_wire::mqtt::client`].
//!
//! Always true: it acknowledges in the order in which it received (MQTT-4.6.0-2); the oracle learns of messages from the packets
//! themselves, in both directions, so that the machine is judged as the broker is.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZeroU16,
    time::Duration,
};

use rand::{RngExt, rngs::SmallRng, seq::IndexedRandom};
use tidegate_message::Instant;
use tidegate_wire::mqtt::{
    Connack, Connect, ConnectProperties, Disconnect, FixedHeader, Packet, PacketId, QoS,
    ReasonCode, SubscribeFilter, Version, Will,
    client::{self as machine, ClientError, Config, Event, Publication},
};

use super::{
    oracle::{Delivery, HEAD_BYTES, Oracle, number, payload},
    plan::{ClientPlan, QUERIES, TOPICS},
};
use crate::trail::Trail;

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
    machine: machine::Client<Asked>,
    input: Vec<u8>,
    // Of the connection.
    answers: VecDeque<(Instant, Answer)>,
    /// Subscriptions that are to be asked for again.
    refused: Vec<SubscribeFilter>,
    open: BTreeSet<PacketId>,
    /// SUBSCRIBE or UNSUBSCRIBE is not answered.
    is_asking: bool,
    is_over: bool,
    /// The retained messages it was sent, by topic; for the observer at the end.
    pub(super) retained: BTreeMap<String, Vec<u8>>,
}

/// A message or a request that the broker is to answer.
#[derive(Debug)]
enum Asked {
    Message(u64, QoS),
    Subscribe(Vec<SubscribeFilter>),
    Unsubscribe(String),
}

/// An answer of the client's, sent after its lag.
#[derive(Debug)]
enum Answer {
    /// PUBACK or PUBREC.
    Acknowledge(PacketId, QoS),
    /// The machine's own answer: PUBREC again, or PUBREL.
    Bytes(PacketId, Vec<u8>),
    /// PUBCOMP, which frees the identifier.
    Complete(PacketId, Vec<u8>),
}

/// Exchanges that are open at a time. Before MQTT 5 a client does not learn Receive Maximum; two is what every broker of these runs
/// takes.
fn inflight_max(version: Version) -> NonZeroU16 {
    NonZeroU16::new(if version == Version::V5 { 150 } else { 2 }).expect("not zero")
}

impl Client {
    pub(super) fn new(number: usize, plan: ClientPlan, name: String) -> Self {
        let inflight_max = inflight_max(plan.version);
        let config = Config { inflight_max, acknowledges: false, ..Config::default() };
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
            machine: machine::Client::new(config),
            input: Vec::new(),
            answers: VecDeque::new(),
            refused: Vec::new(),
            open: BTreeSet::new(),
            is_asking: false,
            is_over: false,
            retained: BTreeMap::new(),
        }
    }

    /// Whether nothing is owed in either direction.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_connected
            && !self.is_leaving
            && self.machine.tokens().next().is_none()
            && self.answers.is_empty()
    }

    // ---- connections

    /// Begins a connection: its CONNECT.
    pub(super) fn connect(&mut self, link: usize, oracle: &mut Oracle) {
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
        let connect = Connect {
            clean_start: self.starts_clean || (!is_5 && plan.expiry == 0),
            keep_alive: plan.keep_alive,
            will,
            properties: ConnectProperties {
                session_expiry: Some(plan.expiry),
                receive_maximum: plan.receive_maximum,
                topic_alias_maximum: plan.alias_maximum,
                ..ConnectProperties::default()
            },
            ..Connect::new(plan.version, self.name.clone())
        };
        self.machine.connect(STILL, &connect).expect("packets of clients are short");
    }

    fn will_topic(&self) -> String {
        format!("x/{}", self.number)
    }

    /// It uses that connection no more. A session of that connection alone ends with it (MQTT-3.1.2-6 of 3.1.1).
    pub(super) fn abandon(&mut self) {
        self.machine.closed();
        self.link = None;
        self.is_connected = false;
        self.is_leaving = false;
        self.is_over = false;
        self.is_asking = false;
        self.input.clear();
        self.output.clear();
        self.answers.clear();
        self.open.clear();
    }

    /// An ordinary goodbye, or one that asks for its will.
    pub(super) fn leave(&mut self, keeps_will: bool) {
        let reason = match keeps_will && self.plan.version == Version::V5 {
            true => ReasonCode::DISCONNECT_WITH_WILL,
            false => ReasonCode::SUCCESS,
        };
        self.machine.disconnect(Disconnect::new(reason)).expect("packets of clients are short");
        self.machine.transmit(STILL, &mut self.output);
        if reason == ReasonCode::SUCCESS {
            self.will = None;
        }
        self.is_leaving = true;
    }

    /// PINGREQ, whether or not the one before was answered.
    pub(super) fn ping(&mut self) {
        if !self.is_leaving {
            self.machine.transmit(STILL, &mut self.output);
            self.output.extend_from_slice(&[0xc0, 0]);
        }
    }

    /// Sends bytes of the machine's, and notes the messages in them, sent for the first time or again.
    fn put(&mut self, bytes: &[u8], oracle: &mut Oracle) {
        let mut rest = bytes;
        while let Some(header) = FixedHeader::decode(rest, usize::MAX).expect("a header") {
            let (packet, after) = rest.split_at(header.packet_bytes());
            rest = after;
            let body = &packet[header.header_bytes..];
            if let Ok(Packet::Publish(publish)) =
                Packet::decode(self.plan.version, header.first, body)
                && publish.payload.len() >= HEAD_BYTES
            {
                oracle.sent(number(publish.payload));
            }
        }
        self.output.extend_from_slice(bytes);
    }

    /// Sends the bytes that the machine has ready, unless the client has left.
    fn flush(&mut self, oracle: &mut Oracle) {
        let mut bytes = Vec::new();
        self.machine.transmit(STILL, &mut bytes);
        if !self.is_leaving {
            self.put(&bytes, oracle);
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
        if !self.machine.is_connected() || self.is_leaving {
            return;
        }
        if !self.refused.is_empty() && !self.is_asking && random.random_ratio(1, 4) {
            let refused = std::mem::take(&mut self.refused);
            return self.subscribe(refused, oracle);
        }
        if random.random_ratio(1, 40) {
            return self.change(oracle, random);
        }
        let Some(qos_max) = self.plan.publishes else { return };
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][random.random_range(0..3)];
        let qos = qos.min(qos_max);
        if qos > QoS::AtMostOnce && self.machine.room() == 0 {
            return;
        }
        let topic = random.random_range(0..TOPICS.len());
        let retain = TOPICS[topic].starts_with('r');
        let sizes = [20, 20, 20, 300, 5_000, 12_000, 70_000];
        let bytes = *sizes.choose(random).expect("not empty");
        let bytes = bytes.min(self.plan.payload_bytes_max).min(if retain { 3_000 } else { 70_000 });
        let number = oracle.publish(self.number, TOPICS[topic], qos, retain, bytes);
        trail.note(at, self.number, "publishes", [number, bytes as u64]);
        let limits = self.machine.limits();
        let alias = NonZeroU16::new(topic as u16 + 1).expect("at least 1");
        let takes_alias = self.plan.uses_aliases && alias.get() <= limits.topic_alias_max;
        let message = Publication {
            topic: TOPICS[topic],
            payload: &payload(number, false, bytes),
            qos,
            retain,
            topic_alias: takes_alias.then_some(alias),
            ..Publication::default()
        };
        let published = self.machine.publish(&message, Asked::Message(number, qos));
        published.expect("the broker takes it");
    }

    /// Ends or renews one of its subscriptions.
    fn change(&mut self, oracle: &mut Oracle, random: &mut SmallRng) {
        let Some(options) = self.plan.filters.choose(random).cloned() else { return };
        // That one ended may find no room in the journal, and then it is back.
        if random.random() || self.plan.may_be_refused || self.is_asking {
            return self.subscribe(vec![options], oracle);
        }
        oracle.unasked(self.number, &options.filter);
        let filters = vec![options.filter.clone()];
        let asked = self.machine.unsubscribe(filters, Asked::Unsubscribe(options.filter));
        asked.expect("there is room for one");
        self.is_asking = true;
    }

    pub(super) fn subscribe(&mut self, filters: Vec<SubscribeFilter>, oracle: &mut Oracle) {
        if filters.is_empty() || self.is_asking {
            return;
        }
        for options in &filters {
            oracle.asked(self.number, options);
        }
        let subscription_id =
            self.plan.subscription_id.filter(|_| self.plan.version == Version::V5);
        let asked = Asked::Subscribe(filters.clone());
        let asked = self.machine.subscribe(filters, subscription_id, asked);
        asked.expect("there is room for one");
        self.is_asking = true;
    }

    /// Clears what is retained.
    pub(super) fn clear(&mut self, topic: &str) {
        let message = Publication { topic, retain: true, ..Publication::default() };
        let cleared = self.machine.publish(&message, Asked::Message(0, QoS::AtMostOnce));
        cleared.expect("it is connected");
    }

    // ---- what comes

    /// Sends the acknowledgements whose time has come; when the next has.
    pub(super) fn answer(&mut self, now: Instant, oracle: &mut Oracle) -> Option<Instant> {
        self.flush(oracle);
        if self.is_leaving {
            return None;
        }
        while let Some((_, answer)) = self.answers.pop_front_if(|(at, _)| *at <= now) {
            match answer {
                Answer::Acknowledge(id, qos) => {
                    oracle.answered(self.number, id);
                    if qos == QoS::AtLeastOnce {
                        self.open.remove(&id);
                    }
                    self.machine.acknowledge(id, ReasonCode::SUCCESS);
                    self.flush(oracle);
                }
                Answer::Bytes(id, bytes) => {
                    // PUBREL is no answer to a message of the broker's.
                    if bytes[0] == PUBREC {
                        oracle.answered(self.number, id);
                    }
                    self.put(&bytes, oracle);
                }
                Answer::Complete(id, bytes) => {
                    oracle.answered(self.number, id);
                    self.open.remove(&id);
                    self.put(&bytes, oracle);
                }
            }
        }
        self.answers.front().map(|(at, _)| *at)
    }

    fn answer_later(&mut self, now: Instant, answer: Answer, random: &mut SmallRng) {
        let lag = self.plan.answer_lag.as_millis() as u64;
        let at = now + Duration::from_millis(random.random_range(0..=lag));
        let after = self.answers.back().map_or(at, |(last, _)| at.max(*last));
        self.answers.push_back((after, answer));
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
        let mut input = std::mem::take(&mut self.input);
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
            self.received(now, &decoded, (header.first, body), oracle, random);
        }
        let used = input.len() - rest.len();
        input.drain(..used);
        self.input = input;
    }

    /// Hands a packet to the machine, and keeps its answer for later.
    fn received(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        (first, body): (u8, &[u8]),
        oracle: &mut Oracle,
        random: &mut SmallRng,
    ) {
        let is_connack = matches!(packet, Packet::Connack(_));
        assert!(self.is_connected != is_connack, "CONNACK comes first, once (MQTT-3.2.0-1)");
        if let Packet::Publish(publish) = packet
            && let Some(id) = publish.packet_id
        {
            assert!(self.open.insert(id), "identifier {id} is in use (MQTT-2.2.1-4)");
            // Until PUBCOMP is sent; the machine frees an identifier once it has PUBREL.
            let most = self.plan.receive_maximum.filter(|_| self.plan.version == Version::V5);
            let most = most.map_or(usize::MAX, |count| count.get().into());
            assert!(self.open.len() <= most, "more than Receive Maximum (MQTT-3.3.4-9)");
        }
        self.flush(oracle);
        match self.machine.handle(first, body) {
            Ok(Some(event)) => self.happened(event, oracle),
            Ok(None) => {
                let is_pubrec = matches!(packet, Packet::Pubrec(_));
                assert!(!is_pubrec, "PUBREC once for a message (MQTT-4.3.3)");
            }
            Err(ClientError::Refused { reason, .. }) => {
                // No room for its will; it comes again.
                let reasons = [ReasonCode::QUOTA_EXCEEDED, ReasonCode::SERVER_UNAVAILABLE];
                assert!(reasons.contains(&reason), "{reason}");
                self.is_connected = true;
                self.is_leaving = true;
            }
            Err(ClientError::Disconnected { .. }) => self.is_over = true,
            Err(error) => panic!("{error}"),
        }
        let mut said = Vec::new();
        match packet {
            Packet::Publish(publish) => {
                let Some(id) = publish.packet_id else { return };
                let is_answered = self.machine.transmit(STILL, &mut said);
                let answer = match is_answered {
                    true => Answer::Bytes(id, said),
                    false => Answer::Acknowledge(id, publish.qos),
                };
                self.answer_later(now, answer, random);
            }
            // After a refusal the machine may send a message again that had to wait for it; that is no answer.
            Packet::Pubrec(ack)
                if !ack.reason.is_failure() && self.machine.transmit(STILL, &mut said) =>
            {
                self.answer_later(now, Answer::Bytes(ack.packet_id, said), random);
            }
            Packet::Pubrel(ack) if self.machine.transmit(STILL, &mut said) => {
                self.answer_later(now, Answer::Complete(ack.packet_id, said), random);
            }
            _ => {}
        }
    }

    fn happened(&mut self, event: Event<'_, Asked>, oracle: &mut Oracle) {
        match event {
            Event::Connected { connack, .. } => self.connected(&connack, oracle),
            Event::Message(message) => self.delivered(&message, oracle),
            Event::Received { packet_id, reason } => {
                let Some(Asked::Message(number, _)) = self.machine.token(packet_id) else {
                    panic!("PUBREC without PUBLISH");
                };
                oracle.accepted(*number, reason);
            }
            Event::Acknowledged { token: Asked::Message(number, qos), reason, .. } => {
                if reason.is_failure() {
                    assert_eq!(reason, ReasonCode::QUOTA_EXCEEDED);
                    oracle.refused(number);
                } else if qos == QoS::AtLeastOnce {
                    oracle.accepted(number, reason);
                }
            }
            Event::Subscribed { token: Asked::Subscribe(filters), reasons } => {
                self.is_asking = false;
                for (options, reason) in filters.iter().zip(&reasons) {
                    if reason.is_failure() {
                        assert!(self.plan.may_be_refused, "{}", options.filter);
                        self.refused.push(options.clone());
                        continue;
                    }
                    assert_eq!(reason.0, options.maximum_qos as u8, "{}", options.filter);
                    oracle.granted(self.number, &options.filter);
                }
            }
            Event::Unsubscribed { token: Asked::Unsubscribe(filter), .. } => {
                self.is_asking = false;
                oracle.ended(self.number, &filter);
            }
            event => panic!("an answer to something else: {event:?}"),
        }
    }

    fn connected(&mut self, connack: &Connack, oracle: &mut Oracle) {
        self.is_connected = true;
        self.starts_clean = false;
        if !connack.session_present {
            self.refused.clear();
        }
        if !connack.session_present || !self.plan.is_lasting() {
            self.subscribe(self.plan.filters.clone(), oracle);
        }
    }

    fn delivered(&mut self, message: &machine::Message<'_>, oracle: &mut Oracle) {
        let machine::Message { topic, payload, qos, retain, dup, .. } = message;
        let topic: &str = topic;
        if *retain && !payload.is_empty() {
            self.retained.insert(topic.to_owned(), payload.to_vec());
        }
        if topic != QUERIES && !topic.starts_with('$') && !payload.is_empty() {
            let (qos, retain, dup) = (*qos, *retain, *dup);
            oracle.deliver(self.number, &Delivery { topic, payload, qos, retain, dup });
        }
    }
}

const PUBREC: u8 = 0x50;
/// The machine's time: the site decides when PINGREQ is due, so the machine's own keep alive is never asked.
const STILL: Instant = Instant::EPOCH;

//! Promises to publishers and deliveries to subscribers: the judge of a run in which the broker was killed.
//!
//! A *flow* is one topic of one publisher, all of one QoS; its messages are numbered from 0. MQTT orders what one publisher sends to
//! one topic with one QoS (section 4.6), so order is judged by flow, by each message's first delivery: that QoS 1 repeats messages
//! is allowed, that a message first comes after a later one is not.

use tidegate_wire::mqtt::{QoS, ReasonCode};

use crate::crowd::Message;

/// Of all finds, those that are kept in words.
const WORDS_MAX: usize = 40;
/// Flow and number at the beginning of each payload.
pub const HEAD_BYTES: usize = 8;

/// Promises and deliveries.
#[derive(Debug, Default)]
pub struct Ledger {
    flows: Vec<Flow>,
    /// By subscriber, then by flow.
    seen: Vec<Vec<Seen>>,
    /// Messages that subscribers are to have, and those that each has had.
    published: u64,
    had: Vec<u64>,
    /// The findings while it ran.
    pub found: Found,
    /// When it is: the run's own words, for finds.
    pub moment: String,
}

/// One topic of one publisher.
#[derive(Debug)]
pub struct Flow {
    /// Topic.
    pub topic: String,
    /// Quality of service.
    pub qos: QoS,
    /// Whether each message replaces the one before.
    pub retain: bool,
    /// By message, what became of it at its publisher.
    states: Vec<State>,
    /// The newest that was acknowledged.
    pub acknowledged: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Published,
    Acknowledged,
    Refused,
}

#[derive(Debug, Default)]
struct Seen {
    /// By message, how often it came.
    times: Vec<u8>,
    /// The latest message so far, and whether it came as one that may have been sent before.
    newest: Option<(u32, bool)>,
    /// The last delivery of this connection, likewise.
    last: Option<(u32, bool)>,
}

/// Promises that were broken.
#[derive(Debug, Default)]
pub struct Found {
    /// First deliveries behind a later message of their flow, where neither may have been sent before.
    pub disordered: u64,
    /// The same, where one of the two was in flight when the broker was killed: it came with DUP. And steps over a message on one
    /// connection from or to one with DUP.
    pub disordered_in_flight: u64,
    /// Retained messages that were older than one that had been acknowledged, or were not there.
    pub retained_old: u64,
    /// Sessions that the broker had forgotten.
    pub sessions_lost: u64,
    /// Messages that are not as they were published, and broken rules of the protocol.
    pub altered: u64,
    /// Messages that the broker refused to take. No promise is broken.
    pub refused: u64,
    /// The first of them.
    pub words: Vec<String>,
}

/// The totals at the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages that were acknowledged, by QoS less one.
    pub acknowledged: [u64; 2],
    /// Of those, deliveries that never happened.
    pub lost: [u64; 2],
    /// Deliveries beyond the first.
    pub repeated: [u64; 2],
}

impl Ledger {
    /// Without publishers yet, and with so many subscribers that have nothing.
    #[must_use]
    pub fn new(subscribers: usize) -> Self {
        let seen = (0..subscribers).map(|_| Vec::new()).collect();
        Self { seen, had: vec![0; subscribers], ..Self::default() }
    }

    /// A new flow; returns its number.
    pub fn flow(&mut self, topic: String, qos: QoS, retain: bool) -> usize {
        self.flows.push(Flow { topic, qos, retain, states: Vec::new(), acknowledged: None });
        for seen in &mut self.seen {
            seen.push(Seen::default());
        }
        self.flows.len() - 1
    }

    /// All flows.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// The next message of a flow, of `bytes`, 8 at least; returns what names it and its payload.
    pub fn publish(&mut self, flow: usize, bytes: usize) -> (u64, Vec<u8>) {
        let number = u32::try_from(self.flows[flow].states.len()).expect("a run is short");
        self.flows[flow].states.push(State::Published);
        self.published += u64::from(!self.flows[flow].retain);
        (name(flow, number), payload(flow as u32, number, bytes))
    }

    /// The publisher heard of the message of that name for the last time.
    pub fn acknowledged(&mut self, name: u64, reason: ReasonCode) {
        let (flow, number) = ((name >> 32) as usize, name as u32);
        let flow = &mut self.flows[flow];
        // A PUBREL that is not known is of an exchange that had ended: its message was taken.
        if reason.is_failure() && reason != ReasonCode::PACKET_IDENTIFIER_NOT_FOUND {
            flow.states[number as usize] = State::Refused;
            self.found.refused += 1;
        } else {
            flow.states[number as usize] = State::Acknowledged;
            flow.acknowledged = flow.acknowledged.max(Some(number));
        }
    }

    /// A subscriber has a new connection.
    pub fn connected(&mut self, subscriber: usize) {
        for seen in &mut self.seen[subscriber] {
            seen.last = None;
        }
    }

    /// A subscriber had a message.
    pub fn delivered(&mut self, subscriber: usize, message: &Message) {
        let Some((at, number)) = self.read(message) else {
            let words =
                format!("{} B on {} are not as published", message.payload.len(), message.topic);
            self.found.altered += 1;
            return self.say(words);
        };
        let seen = &mut self.seen[subscriber][at];
        let index = number as usize;
        if seen.times.len() <= index {
            seen.times.resize(index + 1, 0);
        }
        seen.times[index] = seen.times[index].saturating_add(1);
        let times = seen.times[index];
        self.had[subscriber] += u64::from(times == 1);
        let (newest, last) = (seen.newest, seen.last.replace((number, message.dup)));
        if newest.is_none_or(|(newest, _)| number > newest) {
            seen.newest = Some((number, message.dup));
        }
        let mark = |dup| if dup { " (DUP)" } else { "" };
        let came =
            format!("subscriber {subscriber}: {} {number}{}", message.topic, mark(message.dup));
        if let Some((newest, dup)) = newest
            && times == 1
            && number < newest
        {
            match message.dup || dup {
                true => self.found.disordered_in_flight += 1,
                false => self.found.disordered += 1,
            }
            self.say(format!("{came} first came after {newest}{}", mark(dup)));
        } else if let Some((last, dup)) = last
            && (message.dup || dup)
            && number > last + 1
        {
            self.found.disordered_in_flight += 1;
            self.say(format!("{came} came right after {last}{}", mark(dup)));
        }
        if times > 1 && message.qos == QoS::ExactlyOnce {
            self.say(format!("{came}, QoS 2, came {times} times"));
        }
    }

    /// The newest message of each retained flow that was acknowledged, by flow.
    #[must_use]
    pub fn promised(&self) -> Vec<Option<u32>> {
        self.flows.iter().map(|flow| flow.acknowledged.filter(|_| flow.retain)).collect()
    }

    /// The broker's retained message of a flow, which must be at least what `promised` said before it was asked for; returns the
    /// flow.
    pub fn retained(&mut self, message: &Message, promised: &[Option<u32>]) -> Option<usize> {
        let Some((flow, number)) = self.read(message) else {
            self.found.altered += 1;
            self.say(format!("the retained message on {} is not as published", message.topic));
            return None;
        };
        if let Some(promised) = promised[flow].filter(|promised| number < *promised) {
            self.found.retained_old += 1;
            self.say(format!("{} is {number}, and {promised} was acknowledged", message.topic));
        }
        Some(flow)
    }

    /// The broker has no retained message of a flow of which one was acknowledged.
    pub fn not_retained(&mut self, flow: usize) {
        self.found.retained_old += 1;
        self.say(format!("nothing is retained on {}", self.flows[flow].topic));
    }

    /// The broker had forgotten a session.
    pub fn session_lost(&mut self, who: usize) {
        self.found.sessions_lost += 1;
        self.say(format!("the session of client {who} is lost"));
    }

    /// The broker broke the protocol.
    pub fn fault(&mut self, words: String) {
        self.found.altered += 1;
        self.say(words);
    }

    /// How many messages the slowest subscriber is behind.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.published - self.had.iter().copied().min().unwrap_or(self.published)
    }

    /// Deliveries that are still to come.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.totals().lost.iter().sum()
    }

    /// Counts all; a message missing now is lost.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (at, flow) in self.flows.iter().enumerate().filter(|(_, flow)| !flow.retain) {
            let qos = flow.qos as usize - 1;
            let of = |state: State| flow.states.iter().filter(|it| **it == state).count() as u64;
            totals.acknowledged[qos] += of(State::Acknowledged);
            for seen in &self.seen {
                let times = &seen[at].times;
                for (number, state) in flow.states.iter().enumerate() {
                    let times = u64::from(times.get(number).copied().unwrap_or(0));
                    totals.lost[qos] += u64::from(*state == State::Acknowledged && times == 0);
                    totals.repeated[qos] += times.saturating_sub(1);
                }
            }
        }
        totals
    }

    /// The first acknowledged messages that a subscriber never had, in words.
    #[must_use]
    pub fn lost_words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (subscriber, seen) in self.seen.iter().enumerate() {
            for (flow, seen) in self.flows.iter().zip(seen).filter(|(flow, _)| !flow.retain) {
                let is_lost = |number: usize| {
                    flow.states[number] == State::Acknowledged
                        && seen.times.get(number).is_none_or(|times| *times == 0)
                };
                let lost: Vec<usize> =
                    (0..flow.states.len()).filter(|number| is_lost(*number)).collect();
                if let [first, .., last] | [first @ last] = lost[..] {
                    let count = lost.len();
                    words.push(format!(
                        "subscriber {subscriber}: {} lacks {count} from {first} to {last} of {}",
                        flow.topic,
                        flow.states.len()
                    ));
                }
            }
        }
        words
    }

    fn read(&self, message: &Message) -> Option<(usize, u32)> {
        let head = message.payload.get(..HEAD_BYTES)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (flow, number) = (word(0), word(4));
        let at = flow as usize;
        let is_whole = self.flows.get(at).is_some_and(|known| {
            known.topic == message.topic
                && known.qos == message.qos
                && (number as usize) < known.states.len()
        });
        (is_whole && message.payload == payload(flow, number, message.payload.len()))
            .then_some((at, number))
    }

    fn say(&mut self, words: String) {
        if self.found.words.len() < WORDS_MAX {
            self.found.words.push(format!("{}: {words}", self.moment));
        }
    }
}

fn name(flow: usize, number: u32) -> u64 {
    (flow as u64) << 32 | u64::from(number)
}

/// Its flow and its number, and bytes that follow from both.
fn payload(flow: u32, number: u32, bytes: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(bytes);
    payload.extend_from_slice(&flow.to_le_bytes());
    payload.extend_from_slice(&number.to_le_bytes());
    let fill = number.wrapping_mul(31).wrapping_add(flow) as u8;
    payload.resize(bytes.max(HEAD_BYTES), fill);
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow of `count` messages that were all acknowledged.
    fn published(qos: QoS, retain: bool, count: u32) -> (Ledger, usize) {
        let mut ledger = Ledger::new(1);
        let flow = ledger.flow("k/0".to_owned(), qos, retain);
        for _ in 0..count {
            let (name, _) = ledger.publish(flow, 20);
            ledger.acknowledged(name, ReasonCode::SUCCESS);
        }
        (ledger, flow)
    }

    fn message(flow: usize, number: u32, qos: QoS, dup: bool) -> Message {
        let payload = payload(flow as u32, number, 20);
        Message { topic: "k/0".to_owned(), payload, qos, retain: false, dup, name: None }
    }

    #[test]
    fn loss_repetition_and_order_are_told_apart() {
        const N: bool = false;
        const D: bool = true;
        /// Deliveries of 0 to 3, and whether they came with DUP.
        type Deliveries = &'static [(u32, bool)];
        let (one, two) = (QoS::AtLeastOnce, QoS::ExactlyOnce);
        // Then lost, repeated, disordered, disordered in flight.
        let cases: [(QoS, Deliveries, [u64; 4]); 10] = [
            (one, &[(0, N), (1, N), (2, N), (3, N)], [0, 0, 0, 0]),
            (one, &[(0, N), (1, N), (0, D), (1, D), (2, N), (3, N)], [0, 2, 0, 0]), // as section 4.6 allows
            (one, &[(0, N), (2, N), (3, N)], [1, 0, 0, 0]),
            (one, &[(0, N), (2, N), (1, N), (3, N)], [0, 0, 1, 0]),
            (one, &[(0, N), (2, N), (1, D), (3, N)], [0, 0, 0, 2]), // 1 comes late, and 3 right after it
            (one, &[(0, D), (2, D), (1, D), (2, D), (3, N)], [0, 1, 0, 2]),
            (one, &[(0, N), (1, N), (2, N), (2, D), (1, D), (3, N)], [0, 2, 0, 1]),
            (one, &[(0, N), (1, N), (2, N), (1, N), (2, N), (3, N)], [0, 2, 0, 0]), // the publisher's repetition
            (two, &[(0, N), (0, N), (1, N), (3, N)], [1, 1, 0, 0]),
            (two, &[], [4, 0, 0, 0]),
        ];
        for (qos, deliveries, [lost, repeated, disordered, in_flight]) in cases {
            let (mut ledger, flow) = published(qos, false, 4);
            for (number, dup) in deliveries {
                ledger.delivered(0, &message(flow, *number, qos, *dup));
            }
            let totals = ledger.totals();
            let at = qos as usize - 1;
            assert_eq!(totals.acknowledged[at], 4);
            assert_eq!((totals.lost[at], totals.repeated[at]), (lost, repeated), "{deliveries:?}");
            assert_eq!((ledger.missing(), ledger.backlog()), (lost, lost));
            assert_eq!(ledger.lost_words().is_empty(), lost == 0);
            let Found { disordered: is, disordered_in_flight: is_in_flight, .. } = ledger.found;
            assert_eq!((is, is_in_flight), (disordered, in_flight), "{deliveries:?}");
        }
    }

    #[test]
    fn a_new_connection_begins_where_the_broker_has_no_acknowledgement() {
        let (mut ledger, flow) = published(QoS::AtLeastOnce, false, 4);
        let deliver = |ledger: &mut Ledger, number, dup| {
            ledger.delivered(0, &message(flow, number, QoS::AtLeastOnce, dup));
        };
        for number in 0..3 {
            deliver(&mut ledger, number, false);
        }
        deliver(&mut ledger, 0, true); // as if 1 had been acknowledged on another connection
        ledger.connected(0);
        deliver(&mut ledger, 2, true);
        deliver(&mut ledger, 3, false);
        assert_eq!((ledger.found.disordered_in_flight, ledger.missing()), (0, 0));
    }

    #[test]
    fn only_what_was_acknowledged_can_be_lost() {
        let (mut ledger, flow) = published(QoS::AtLeastOnce, false, 1);
        let (_, _) = ledger.publish(flow, 20);
        let (name, _) = ledger.publish(flow, 20);
        ledger.acknowledged(name, ReasonCode::QUOTA_EXCEEDED);
        assert_eq!((ledger.missing(), ledger.found.refused), (1, 1));
        ledger.delivered(0, &message(flow, 0, QoS::AtLeastOnce, false));
        assert_eq!(ledger.missing(), 0);
    }

    #[test]
    fn what_is_retained_is_at_least_what_was_promised() {
        let (mut ledger, flow) = published(QoS::AtLeastOnce, true, 3);
        let promised = ledger.promised();
        assert_eq!(promised, [Some(2)]);
        assert_eq!(ledger.retained(&message(flow, 2, QoS::AtLeastOnce, false), &promised), Some(0));
        assert_eq!(ledger.found.retained_old, 0);
        ledger.retained(&message(flow, 1, QoS::AtLeastOnce, false), &promised);
        ledger.not_retained(flow);
        assert_eq!(ledger.found.retained_old, 2);
        assert_eq!(ledger.missing(), 0, "retained flows are judged by what is retained");
    }

    #[test]
    fn a_byte_that_differs_is_seen() {
        let (mut ledger, flow) = published(QoS::AtLeastOnce, false, 1);
        let mut broken = message(flow, 0, QoS::AtLeastOnce, false);
        broken.payload[15] ^= 1;
        ledger.delivered(0, &broken);
        ledger.delivered(0, &message(flow, 0, QoS::ExactlyOnce, false));
        ledger.delivered(0, &message(flow, 7, QoS::AtLeastOnce, false));
        assert_eq!((ledger.found.altered, ledger.missing()), (3, 1));
    }
}

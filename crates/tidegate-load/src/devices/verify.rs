//! Whether what arrives is what was sent: byte for byte, and in order of each topic.
//!
//! Payloads do not say which message they are of: one that arrives is the oldest of its topic that was sent, has not arrived, and has
//! the same bytes; the next in order is tried first. A payload that fits none has come before, or was altered on the way.
//!
//! Always true: a message is known here before it can arrive; what waits for its arrival holds no more than [`WAITING_BYTES_MAX`].

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hasher as _},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, TryRecvError},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tidegate_sys::clock::monotonic_nanos;
use tidegate_wire::mqtt::{RetainHandling, SubscribeFilter};

use super::SensorSpec;
use crate::{
    client::{Client, ClientError, Options},
    meter,
};

/// Most that messages which have not arrived hold, with 64 bytes for each in addition to its payload.
const WAITING_BYTES_MAX: usize = 1 << 30;
const WAITING_BYTES_EACH: usize = 64;
/// Messages of a topic that one is compared with, before and behind where it is expected.
const COMPARED_MAX: usize = 1000;
/// Arrivals of a topic that are remembered, to tell what comes again.
const REMEMBERED: usize = 8;
/// How soon it is noticed that all was sent.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long what comes twice has to come, once all has arrived.
const LINGER: Duration = Duration::from_millis(300);

/// Messages that are about to be written.
#[derive(Debug, Default)]
pub(super) struct Batch {
    messages: Vec<BatchMessage>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct BatchMessage {
    workload: usize,
    due: i64,
    topic_bytes: usize,
    payload_bytes: usize,
}

impl Batch {
    pub(super) fn push(&mut self, workload: usize, due: i64, topic: &[u8], payload: &[u8]) {
        self.bytes.extend_from_slice(topic);
        self.bytes.extend_from_slice(payload);
        let (topic_bytes, payload_bytes) = (topic.len(), payload.len());
        self.messages.push(BatchMessage { workload, due, topic_bytes, payload_bytes });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// Findings about one workload.
#[derive(Debug)]
pub(super) struct Found {
    /// Messages that arrived, each once.
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) out_of_order: u64,
    /// On topics of ours, with bytes that were not sent.
    pub(super) altered: u64,
    pub(super) latencies: Histogram<u64>,
}

/// Messages that were sent and have not arrived.
#[derive(Debug)]
pub(super) struct Ledger {
    topics: HashMap<Box<str>, Topic>,
    workloads: Vec<Found>,
    waiting: u64,
    waiting_bytes: usize,
    received: u64,
    /// On topics of no device.
    foreign: u64,
}

#[derive(Debug)]
struct Topic {
    workload: usize,
    /// Number of the next message, by order of sending.
    next: u32,
    /// One past the highest that arrived.
    expected: u32,
    waiting: VecDeque<Waiting>,
    /// Hashes of what arrived last.
    arrived: VecDeque<u64>,
}

#[derive(Debug)]
struct Waiting {
    number: u32,
    due: i64,
    payload: Box<[u8]>,
}

impl Ledger {
    pub(super) fn new(workloads: usize) -> Self {
        let found = || Found {
            received: 0,
            received_bytes: 0,
            lost: 0,
            duplicated: 0,
            out_of_order: 0,
            altered: 0,
            latencies: meter::histogram(),
        };
        Self {
            topics: HashMap::new(),
            workloads: std::iter::repeat_with(found).take(workloads).collect(),
            waiting: 0,
            waiting_bytes: 0,
            received: 0,
            foreign: 0,
        }
    }

    /// # Errors
    /// `TooMuch` of [`VerifyError`].
    fn sent(&mut self, batch: &Batch) -> Result<(), VerifyError> {
        let mut rest = &batch.bytes[..];
        for message in &batch.messages {
            let (topic, behind) = rest.split_at(message.topic_bytes);
            let (payload, behind) = behind.split_at(message.payload_bytes);
            rest = behind;
            let name = std::str::from_utf8(topic).expect("topics of sensors are ASCII");
            if !self.topics.contains_key(name) {
                let topic = Topic {
                    workload: message.workload,
                    next: 0,
                    expected: 0,
                    waiting: VecDeque::new(),
                    arrived: VecDeque::new(),
                };
                self.topics.insert(name.into(), topic);
            }
            let topic = self.topics.get_mut(name).expect("it has just been put there");
            let number = topic.next;
            topic.next += 1;
            topic.waiting.push_back(Waiting { number, due: message.due, payload: payload.into() });
            self.waiting += 1;
            self.waiting_bytes += payload.len() + WAITING_BYTES_EACH;
        }
        if self.waiting_bytes > WAITING_BYTES_MAX {
            return Err(VerifyError::TooMuch { messages: self.waiting });
        }
        Ok(())
    }

    fn arrived(&mut self, name: &str, payload: &[u8], now: i64) {
        let Some(topic) = self.topics.get_mut(name) else {
            self.foreign += 1;
            return;
        };
        let found = &mut self.workloads[topic.workload];
        let mut hasher = DefaultHasher::new();
        hasher.write(payload);
        let hash = hasher.finish();
        let Some(place) = topic.find(payload) else {
            if topic.arrived.contains(&hash) {
                found.duplicated += 1;
            } else {
                found.altered += 1;
            }
            return;
        };
        let Some(Waiting { number, due, .. }) = topic.waiting.remove(place) else { return };
        if topic.arrived.len() == REMEMBERED {
            topic.arrived.pop_front();
        }
        topic.arrived.push_back(hash);
        if number < topic.expected {
            found.out_of_order += 1;
        } else {
            topic.expected = number + 1;
        }
        found.received += 1;
        found.received_bytes += payload.len() as u64;
        found.latencies.saturating_record(u64::try_from(now - due).unwrap_or(0));
        self.waiting -= 1;
        self.waiting_bytes -= payload.len() + WAITING_BYTES_EACH;
        self.received += 1;
    }

    fn finish(mut self) -> (Vec<Found>, u64) {
        for topic in self.topics.values() {
            self.workloads[topic.workload].lost += topic.waiting.len() as u64;
        }
        (self.workloads, self.foreign)
    }
}

impl Topic {
    /// Where the message with that payload waits: after all that arrived, if there is one.
    fn find(&self, payload: &[u8]) -> Option<usize> {
        let is_it = |waiting: &Waiting| *waiting.payload == *payload;
        let expected = self.waiting.partition_point(|waiting| waiting.number < self.expected);
        let ahead = self.waiting.range(expected..).take(COMPARED_MAX).position(is_it);
        ahead.map(|ahead| expected + ahead).or_else(|| {
            let behind = self.waiting.range(..expected).rev().take(COMPARED_MAX).position(is_it);
            behind.map(|behind| expected - 1 - behind)
        })
    }
}

/// A client that is sent what devices send.
///
/// # Errors
/// Any of [`ClientError`], but `Publish`.
pub(super) fn subscribe(options: &Options, spec: &SensorSpec) -> Result<Client, ClientError> {
    let client_id = format!("sensors-{}-v", std::process::id());
    let mut client = Client::connect(Options { client_id, ..options.clone() })?;
    let filter = |workload: &crate::sensors::Workload| SubscribeFilter {
        filter: format!("{}/#", workload.level()),
        maximum_qos: spec.qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    };
    let filters: Vec<_> = spec.workloads.iter().map(filter).collect();
    let reasons = client.subscribe(&filters)?;
    if let Some((filter, &reason)) =
        filters.iter().zip(&reasons).find(|(_, reason)| reason.is_failure())
    {
        let (peer, filter) = (client.peer(), filter.filter.clone());
        return Err(ClientError::Subscribe { peer, filter, reason });
    }
    Ok(client)
}

/// Takes what was sent and what arrives until nothing more comes of either: `drain` after the last arrival at the latest.
///
/// # Errors
/// Any of [`VerifyError`].
pub(super) fn run(
    mut client: Client,
    mut ledger: Ledger,
    batches: &Receiver<Batch>,
    drain: Duration,
    received: &AtomicU64,
) -> Result<(Vec<Found>, u64), VerifyError> {
    let mut is_all_sent = false;
    let mut quiet_since = Instant::now();
    loop {
        let message = client.receive(LOOK_EVERY)?;
        let now = monotonic_nanos();
        // After the receipt: each received message had been announced before.
        while !is_all_sent {
            match batches.try_recv() {
                Ok(batch) => {
                    ledger.sent(&batch)?;
                    quiet_since = Instant::now();
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => is_all_sent = true,
            }
        }
        if let Some(message) = message {
            ledger.arrived(&message.topic, &message.payload, now);
            received.store(ledger.received, Ordering::Relaxed);
            quiet_since = Instant::now();
        } else if is_all_sent {
            let patience = if ledger.waiting == 0 { LINGER.min(drain) } else { drain };
            if quiet_since.elapsed() >= patience {
                break;
            }
        }
    }
    client.disconnect()?;
    Ok(ledger.finish())
}

/// Why it cannot be verified what arrives.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The broker, or the way there.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// More is on the way, or lost, than can be kept in mind.
    #[error(
        "{messages} messages have not arrived, more than {WAITING_BYTES_MAX} bytes may hold; send for a shorter time or at a lower \
         --rate"
    )]
    TooMuch {
        /// How many.
        messages: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of one topic as they were sent and as they arrived; then received, lost, duplicated, out of order, altered.
    fn verified(sent: &str, arrived: &str) -> [u64; 5] {
        let mut ledger = Ledger::new(2);
        let mut batch = Batch::default();
        assert!(batch.is_empty());
        for (at, payload) in sent.chars().enumerate() {
            batch.push(1, at as i64, b"t", payload.to_string().as_bytes());
            batch.push(0, at as i64, b"other", b"x");
        }
        ledger.sent(&batch).unwrap();
        for payload in arrived.chars() {
            ledger.arrived("t", payload.to_string().as_bytes(), 1_000_000);
        }
        ledger.arrived("nobody's", b"x", 0);
        let waiting = ledger.waiting;
        let (found, foreign) = ledger.finish();
        let [other, one] = &found[..] else { panic!() };
        assert_eq!((foreign, other.received, other.lost), (1, 0, sent.len() as u64));
        assert_eq!(one.received + one.lost, sent.len() as u64);
        assert_eq!(waiting, one.lost + other.lost);
        assert_eq!(one.latencies.len(), one.received);
        [one.received, one.lost, one.duplicated, one.out_of_order, one.altered]
    }

    #[test]
    fn arrivals_are_told_apart_by_their_bytes() {
        for (sent, arrived, expected) in [
            ("abcd", "abcd", [4, 0, 0, 0, 0]),
            ("abcd", "", [0, 4, 0, 0, 0]),
            ("abcd", "acd", [3, 1, 0, 0, 0]),
            ("abcd", "acbd", [4, 0, 0, 1, 0]),
            ("abcd", "dcba", [4, 0, 0, 3, 0]),
            ("abcd", "aabcdd", [4, 0, 2, 0, 0]),
            ("abcd", "abxd", [3, 1, 0, 0, 1]),
            ("aaaa", "aaaa", [4, 0, 0, 0, 0]), // the same bytes again are the next message
            ("aaaa", "aaaaa", [4, 0, 1, 0, 0]),
            ("abab", "abab", [4, 0, 0, 0, 0]),
            ("abab", "bab", [3, 1, 0, 0, 0]),
        ] {
            assert_eq!(verified(sent, arrived), expected, "{sent} as {arrived}");
        }
    }

    #[test]
    fn what_was_lost_does_not_make_what_arrives_slow_to_find() {
        let mut ledger = Ledger::new(1);
        let mut batch = Batch::default();
        (0..50_000_u32).for_each(|number| batch.push(0, 0, b"t", &number.to_le_bytes()));
        ledger.sent(&batch).unwrap();
        // Every other is lost.
        for number in (0..50_000_u32).step_by(2) {
            ledger.arrived("t", &number.to_le_bytes(), 1);
        }
        let (found, _) = ledger.finish();
        assert_eq!((found[0].received, found[0].lost, found[0].out_of_order), (25_000, 25_000, 0));
    }

    #[test]
    fn what_waits_has_a_bound() {
        let mut ledger = Ledger::new(1);
        let mut batch = Batch::default();
        batch.push(0, 0, b"t", &vec![0; WAITING_BYTES_MAX / 4]);
        for _ in 0..3 {
            ledger.sent(&batch).unwrap();
        }
        let error = ledger.sent(&batch).unwrap_err().to_string();
        assert!(
            error.contains("4 messages have not arrived") && error.contains("--rate"),
            "{error}"
        );
    }
}

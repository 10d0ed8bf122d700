//! Messages as a sink has them.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use bytestring::ByteString;
use tidegate_message::Instant;
use tidegate_wire::mqtt::{PacketId, QoS};

/// A message on its way to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Topic name.
    pub topic: ByteString,
    /// Payload.
    pub payload: Bytes,
    /// Quality of service that it was received with here, 1 where it was published with 2.
    pub qos: QoS,
    /// When this node received it.
    pub time: Instant,
    /// When it was measured, if a property says so ([`TIME_PROPERTY`](tidegate_message::TIME_PROPERTY)).
    pub measured: Option<Instant>,
    /// The name by which it is known wherever it comes, if it has one: a repetition has the same, but for messages that the
    /// uplink below sends again in its next life.
    pub id: Option<ByteString>,
    /// Whether it may have been handed over before.
    pub is_repeated: bool,
    /// Properties that are forwarded unaltered, encoded as in PUBLISH without their length; empty where the destination has no use
    /// for them.
    pub forwarded: Bytes,
    /// When it loses its worth, if ever.
    pub expires: Option<Instant>,
    /// Of its exchange; none for QoS 0.
    pub(super) packet_id: Option<PacketId>,
}

impl Record {
    /// A message without an acknowledgement.
    pub fn new(topic: &str, payload: impl Into<Bytes>, time: Instant) -> Self {
        let (topic, payload) = (topic.into(), payload.into());
        let (qos, is_repeated) = (QoS::AtMostOnce, false);
        Self {
            topic,
            payload,
            qos,
            time,
            measured: None,
            id: None,
            is_repeated,
            forwarded: Bytes::new(),
            expires: None,
            packet_id: None,
        }
    }

    /// Bytes that it counts with.
    pub(super) fn weight(&self) -> u64 {
        (self.topic.len() + self.payload.len()) as u64
    }
}

/// Messages that are handed over together, in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    records: Vec<Record>,
    bytes: u64,
    progress: Progress,
}

/// Steps that a destination has gone with a batch, and messages that it passed over. No part of what the batch is.
#[derive(Debug, Default)]
struct Progress {
    steps: AtomicU64,
    looped: AtomicU64,
}

impl Clone for Progress {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Progress {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Progress {}

impl Batch {
    /// The messages, in order.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Bytes of topics and payloads.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// A destination that takes it in several exchanges has ended one: its time limit starts over.
    pub fn step(&self) {
        self.progress.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Exchanges so far.
    pub(super) fn steps(&self) -> u64 {
        self.progress.steps.load(Ordering::Relaxed)
    }

    /// So many of its messages were at the destination before, and count as taken without being sent there, of all tries so far.
    pub fn pass_over(&self, count: u64) {
        self.progress.looped.fetch_add(count, Ordering::Relaxed);
    }

    /// Messages that were passed over since it was asked last.
    pub(super) fn take_passed_over(&self) -> u64 {
        self.progress.looped.swap(0, Ordering::Relaxed)
    }

    /// One more message.
    pub fn push(&mut self, record: Record) {
        self.bytes += record.weight();
        self.records.push(record);
    }

    pub(super) fn into_records(self) -> Vec<Record> {
        self.records
    }
}

impl FromIterator<Record> for Batch {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> Self {
        let mut batch = Self::default();
        records.into_iter().for_each(|record| batch.push(record));
        batch
    }
}

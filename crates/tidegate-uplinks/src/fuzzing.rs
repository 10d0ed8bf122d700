//! Entry points of fuzz targets into an uplink: its ends with records and bytes in them, without links and brokers.

use bytes::Bytes;
use tidegate_compress::{DecoderConfig, Message};
use tidegate_message::Instant;
use tidegate_wire::{
    CriticalPart, SensorBatch, UplinkOpen, UplinkReady,
    mqtt::{Publish, QoS},
};

use super::{
    critical::{self, Critical},
    incoming::{self, Incoming},
    message,
};

/// Batches that may wait at a receiver, and their bytes; the ones that are expected may be more.
pub const BATCHES_MAX: usize = incoming::AHEAD_MAX;
/// As [`BATCHES_MAX`].
pub const BATCH_BYTES_MAX: usize = incoming::AHEAD_BYTES_MAX;
/// Longest critical message in one piece.
pub const CRITICAL_BYTES_MAX: usize = incoming::CRITICAL_BYTES_MAX;

/// The properties of a message besides topic and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// Quality of service.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Seconds until it expires.
    pub expiry: Option<u32>,
    /// Properties that are forwarded unaltered, encoded.
    pub forwarded: &'a [u8],
    /// Whether it has a name.
    pub is_named: bool,
}

impl<'a> Attributes<'a> {
    /// Those that `bytes` are; none if they are none.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let found = message::Attributes::of(bytes).ok()?;
        let is_named = found.is_named();
        let message::Attributes { qos, retain, expiry, forwarded } = found;
        Some(Self { qos, retain, expiry, forwarded, is_named })
    }

    /// Appends those of a message that was read.
    pub fn put(publish: &Publish<'_>, out: &mut Vec<u8>) {
        message::Attributes::put(publish, out);
    }
}

/// The parts in which critical messages are sent, numbered from 0; each message is within the limits of the codec.
pub fn critical_parts(messages: &[Message<'_>]) -> Vec<CriticalPart> {
    let mut critical = Critical::new(Instant::EPOCH, 1 << 40);
    critical.connected(None).expect("it expects nothing");
    for message in messages {
        critical.take(Instant::EPOCH, *message, None);
    }
    let mut parts = Vec::new();
    while let Some(part) = critical.poll_part(Instant::EPOCH) {
        if !part.more {
            critical.acknowledge(part.number + 1, |_| ()).expect("it was sent");
            critical.batches(0, false);
        }
        parts.push(part);
    }
    parts
}

/// The critical message that is `whole`; none if it is none.
pub fn critical_message(whole: &[u8]) -> Option<Message<'_>> {
    critical::take(whole)
}

/// The receiving half of an uplink.
#[derive(Debug)]
pub struct Receiver(Incoming);

/// The memory of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Batches that wait.
    pub batches: usize,
    /// Their bytes.
    pub batch_bytes: u64,
    /// Bytes of a critical message that has not come whole.
    pub part_bytes: usize,
    /// Topics that are known.
    pub topics: usize,
}

impl Receiver {
    /// One that may hold that much.
    pub fn new(limits: DecoderConfig) -> Self {
        Self(Incoming::new(limits))
    }

    /// A connection begins: the answer; none if it is refused.
    pub fn open(&mut self, open: &UplinkOpen) -> Option<UplinkReady> {
        self.0.open(open, u64::MAX).ok()
    }

    /// A batch came; false if the connection must end.
    pub fn batch(&mut self, record: SensorBatch, body: Bytes) -> bool {
        self.0.batch(record, body).is_ok()
    }

    /// Gives `take` about `about` messages of one batch, fewer than twice as many, with their numbers. How many they were, 0 if the next batch has not come;
    /// none if the connection must end.
    pub fn poll(&mut self, about: usize, mut take: impl FnMut(u64, Message<'_>)) -> Option<usize> {
        let Some(fresh) = self.0.poll(about).ok()? else { return Some(0) };
        let mut count = 0;
        for message in fresh.iter() {
            take(fresh.first.wrapping_add(count), message);
            count += 1;
        }
        Some(count as usize)
    }

    /// A critical message, or a part of one, came: calls `publish` if it is whole and new. False if the connection must end.
    pub fn critical(
        &mut self,
        part: &CriticalPart,
        publish: impl FnOnce(u64, Message<'_>),
    ) -> bool {
        self.0.critical(part, publish).is_ok()
    }

    /// The memory it holds now.
    pub fn held(&self) -> Held {
        let (topics, _) = self.0.state();
        let (_, batch_bytes) = self.0.waiting();
        let (batches, part_bytes) = (self.0.batches(), self.0.part_bytes());
        Held { batches, batch_bytes, part_bytes, topics }
    }
}

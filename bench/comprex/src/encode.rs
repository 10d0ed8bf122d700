//! From messages to batches and corrections.

use std::collections::{HashMap, HashSet};

use super::{BYTES_MAX, FULL, REGIONS, REGIONS_MAX, TooLong, UNKEPT, key, table::Seeded};
use crate::varint;

/// Messages after which what never differed is static.
const LEARNED_AFTER: u32 = 5;

/// A topic without static regions is looked at again after so many messages, then after twice as many, and so on …
const RETRY_FIRST: u32 = 5;

/// … until so many would pass: then never.
const RETRY_LAST: u32 = 5 << 6;

/// Comparisons after which dynamic bytes that were the same in all of them may become static …
const STEADY_AFTER: u32 = 64;

/// … if at least so many bytes are saved of a message of which something differs in each region, and a quarter of it.
const SAVED_BYTES_MIN: usize = 8;

/// How an encoder works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComprexConfig {
    /// Most messages between two comparisons of a topic; 0 compares each.
    pub max_n: u32,
    /// Most messages of a topic that are stored for a correction. Below `max_n` is a switch that allows loss.
    pub max_store: u32,
    /// Bytes of a batch: 1,500 in the paper.
    pub batch_bytes: usize,
    /// Most topics; messages of those beyond it are sent in full, without a number.
    pub topics_max: usize,
    /// Whether a topic of which a static byte has changed is learned from the beginning, as in the paper; false. Earlier changes are
    /// otherwise remembered, which is better for decimals.
    pub forgets: bool,
}

impl Default for ComprexConfig {
    fn default() -> Self {
        Self { max_n: 10, max_store: 10, batch_bytes: 1500, topics_max: 1 << 20, forgets: false }
    }
}

/// Counts of an encoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComprexCounts {
    /// Messages that were sent as regions.
    pub compressed: u64,
    /// Messages that were sent in full.
    pub full: u64,
    /// Comparisons of static regions.
    pub comparisons: u64,
    /// Messages that were sent again, in full, by the critical queue.
    pub corrected: u64,
    /// Messages that came out wrong and were not stored any more.
    pub lost: u64,
    /// Topics whose key another topic has.
    pub collisions: u64,
}

/// Takes messages, gives batches.
#[derive(Debug)]
pub struct ComprexEncoder {
    config: ComprexConfig,
    topics: HashMap<Box<[u8]>, Entry, Seeded>,
    /// Which keys are taken.
    keys: HashSet<u32>,
    batch: Vec<u8>,
    critical: Vec<u8>,
    counts: ComprexCounts,
}

#[derive(Debug)]
struct Entry {
    key: u32,
    /// Whether another topic has the key: then nothing is ever compressed.
    collides: bool,
    /// Messages of this topic before the next.
    number: u64,
    last: Vec<u8>,
    /// Which bytes have differed, until all have or the length changes.
    dynamic: Vec<bool>,
    /// Whether `dynamic` was learned before, of messages of this length: then one message more is enough.
    is_known: bool,
    /// Messages that were compared since learning began.
    seen: u32,
    regions: Vec<(u16, u16)>,
    /// A message that was compared, which bytes of others that were compared since differ from it, and how many these are with it.
    base: Vec<u8>,
    unsteady: Vec<bool>,
    looks: u32,
    /// Whether the decoder knows the regions.
    is_learned: bool,
    /// Messages to let pass before the next comparison, and how many passed.
    n: u32,
    passed: u32,
    /// Messages of the length of the last, one after the other.
    stored: Vec<u8>,
    /// Messages after which a topic without static regions is tried again; 0 for never.
    retry: u32,
    wait: u32,
}

impl ComprexEncoder {
    /// An encoder that knows no topic.
    pub fn new(config: ComprexConfig) -> Self {
        Self {
            config,
            topics: HashMap::default(),
            keys: HashSet::new(),
            batch: Vec::new(),
            critical: Vec::new(),
            counts: ComprexCounts::default(),
        }
    }

    /// Adds a message to the batch. Returns the batch before it if this one does not fit.
    ///
    /// # Errors
    ///
    /// [`TooLong`]: nothing was taken.
    pub fn push(&mut self, topic: &[u8], payload: &[u8]) -> Result<Option<Vec<u8>>, TooLong> {
        for (what, bytes) in [("topic", topic.len()), ("payload", payload.len())] {
            if bytes > BYTES_MAX {
                return Err(TooLong { what, bytes });
            }
        }
        let begin = self.batch.len();
        self.encode(topic, payload);
        if begin == 0 || self.batch.len() <= self.config.batch_bytes {
            return Ok(None);
        }
        let rest = self.batch.split_off(begin);
        Ok(Some(std::mem::replace(&mut self.batch, rest)))
    }

    fn encode(&mut self, topic: &[u8], payload: &[u8]) {
        let counts = &mut self.counts;
        let Some(entry) = self.topics.get_mut(topic) else {
            counts.full += 1;
            if self.topics.len() >= self.config.topics_max {
                return put_parts(&mut self.batch, UNKEPT, topic, 0, payload);
            }
            let key = key(topic);
            let collides = key >= UNKEPT || !self.keys.insert(key);
            counts.collisions += u64::from(collides);
            self.topics.insert(topic.into(), Entry::new(key, collides, payload));
            return put_full(&mut self.batch, topic, 0, payload);
        };
        let number = entry.number;
        entry.number += 1;
        if entry.collides || !entry.is_learned || entry.last.len() != payload.len() {
            if entry.is_learned {
                entry.flush(topic, number, &self.config, &mut self.critical, counts);
            }
            counts.full += 1;
            put_full(&mut self.batch, topic, number, payload);
            entry.learn(payload, &mut self.batch, counts);
            return;
        }
        let mut is_spread = false;
        if entry.passed >= entry.n {
            counts.comparisons += 1;
            if !entry.holds(payload) || !entry.all_stored_hold() {
                entry.flush(topic, number, &self.config, &mut self.critical, counts);
                counts.full += 1;
                put_full(&mut self.batch, topic, number, payload);
                entry.learn(payload, &mut self.batch, counts);
                return;
            }
            entry.stored.clear();
            entry.passed = 0;
            entry.n = (entry.n + 1).min(self.config.max_n);
            is_spread = !self.config.forgets && entry.is_spread(payload);
        } else {
            entry.passed += 1;
            entry.stored.extend_from_slice(payload);
            if entry.stored.len() / payload.len() > self.config.max_store as usize {
                counts.lost += u64::from(!entry.holds(&entry.stored[..payload.len()]));
                entry.stored.drain(..payload.len());
            }
        }
        counts.compressed += 1;
        let batch = &mut self.batch;
        batch.extend_from_slice(&entry.key.to_le_bytes());
        let at = batch.len();
        batch.extend_from_slice(&[0, 0]);
        let mut mask = 0u16;
        for (index, &(begin, end)) in entry.regions.iter().enumerate() {
            let region = usize::from(begin)..usize::from(end);
            if entry.last[region.clone()] != payload[region.clone()] {
                mask |= 1 << index;
                batch.extend_from_slice(&payload[region.clone()]);
                entry.last[region.clone()].copy_from_slice(&payload[region]);
            }
        }
        batch[at..at + 2].copy_from_slice(&mask.to_le_bytes());
        if is_spread {
            // All that was sent has been compared: both ends have the same static bytes.
            entry.dynamic.clone_from(&entry.unsteady);
            entry.put_regions(batch);
        }
    }

    /// Compares what is stored of all topics, as if the next message of each had come: nothing wrong is left but what is lost.
    pub fn settle(&mut self) {
        for (topic, entry) in &mut self.topics {
            if !entry.stored.is_empty() {
                self.counts.comparisons += 1;
                if entry.all_stored_hold() {
                    entry.stored.clear();
                } else {
                    let number = entry.number;
                    entry.flush(topic, number, &self.config, &mut self.critical, &mut self.counts);
                }
            }
        }
    }

    /// The rest of the batch; empty if there is none.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.batch)
    }

    /// The batch for the critical queue; empty if there is none.
    ///
    /// It corrects messages that were pushed before, some of which may be in the batch that is being filled, and must not overtake them:
    /// hand it to [`ComprexDecoder::correct`](super::ComprexDecoder::correct)'s side only with or after the batches of all messages that were pushed before this call, the
    /// one that [`ComprexEncoder::finish`] gives included.
    pub fn take_critical(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.critical)
    }

    /// The counts so far.
    pub fn counts(&self) -> ComprexCounts {
        self.counts
    }
}

impl Entry {
    fn new(key: u32, collides: bool, payload: &[u8]) -> Self {
        Self {
            key,
            collides,
            number: 1,
            last: payload.to_vec(),
            dynamic: vec![false; payload.len()],
            is_known: false,
            seen: 1,
            regions: Vec::new(),
            base: Vec::new(),
            unsteady: Vec::new(),
            looks: 0,
            is_learned: false,
            n: 0,
            passed: 0,
            stored: Vec::new(),
            retry: RETRY_FIRST,
            wait: 0,
        }
    }

    /// Whether the static bytes are those of the last message.
    fn holds(&self, payload: &[u8]) -> bool {
        let mut at = 0;
        for &(begin, end) in &self.regions {
            if self.last[at..usize::from(begin)] != payload[at..usize::from(begin)] {
                return false;
            }
            at = usize::from(end);
        }
        self.last[at..] == payload[at..]
    }

    /// The same of all that are stored.
    fn all_stored_hold(&self) -> bool {
        // An empty entry has no static byte, and is not stored.
        self.stored.chunks_exact(self.last.len().max(1)).all(|stored| self.holds(stored))
    }

    /// Notes a message that was compared; returns whether regions are much shorter without bytes that have been the same for long.
    fn is_spread(&mut self, payload: &[u8]) -> bool {
        if self.looks == 0 {
            self.base.clear();
            self.base.extend_from_slice(payload);
            self.unsteady.clear();
            self.unsteady.resize(payload.len(), false);
        }
        // Not with the message before: a change once in a hundred messages would seldom be seen.
        note_changes(&mut self.unsteady, &self.base, payload);
        self.looks += 1;
        if self.looks < STEADY_AFTER {
            return false;
        }
        self.looks = 0;
        let bytes = |regions: &mut dyn Iterator<Item = &(u16, u16)>| -> usize {
            regions.map(|(begin, end)| usize::from(end - begin)).sum()
        };
        let is_used = |(begin, end): &&(u16, u16)| {
            self.unsteady[usize::from(*begin)..usize::from(*end)].contains(&true)
        };
        let saved = bytes(&mut self.regions.iter().filter(is_used))
            .saturating_sub(bytes(&mut regions(&self.unsteady).iter()));
        saved >= SAVED_BYTES_MIN.max(payload.len() / 4)
    }

    /// Compares a message that is sent in full, and tells the regions once they are learned.
    fn learn(&mut self, payload: &[u8], batch: &mut Vec<u8>, counts: &mut ComprexCounts) {
        if self.collides || self.retry == 0 {
            return;
        }
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        if self.seen == 0 && !self.is_known || self.last.len() != payload.len() {
            // Where the length differs, every byte does: a topic that keeps changing it is compared less, like noise.
            self.dynamic.clear();
            self.dynamic.resize(payload.len(), self.seen > 0);
            self.is_known = false;
        } else {
            counts.comparisons += 1;
            note_changes(&mut self.dynamic, &self.last, payload);
        }
        self.last.clear();
        self.last.extend_from_slice(payload);
        self.seen += 1;
        if self.seen < LEARNED_AFTER && !self.is_known {
            return;
        }
        self.seen = 0;
        if self.dynamic.iter().all(|dynamic| *dynamic) {
            self.is_known = false;
            self.wait = self.retry;
            self.retry = if self.retry >= RETRY_LAST { 0 } else { self.retry * 2 };
            return;
        }
        self.is_learned = true;
        (self.n, self.passed, self.retry, self.looks) = (0, 0, RETRY_FIRST, 0);
        self.put_regions(batch);
    }

    /// Tells the decoder of regions in which all that is dynamic lies.
    fn put_regions(&mut self, batch: &mut Vec<u8>) {
        self.regions = regions(&self.dynamic);
        batch.extend_from_slice(&REGIONS.to_le_bytes());
        batch.extend_from_slice(&self.key.to_le_bytes());
        batch.push(self.regions.len() as u8);
        for &(begin, end) in &self.regions {
            varint::put(batch, u64::from(begin));
            varint::put(batch, u64::from(end));
        }
    }

    /// Sends again whatever may be wrong, up to the message `number`; bytes that differ in it are dynamic from now on, unless all is
    /// learned again.
    fn flush(
        &mut self,
        topic: &[u8],
        number: u64,
        config: &ComprexConfig,
        critical: &mut Vec<u8>,
        counts: &mut ComprexCounts,
    ) {
        let stored = (self.stored.len() / self.last.len().max(1)) as u64;
        counts.corrected += stored;
        for (index, payload) in self.stored.chunks_exact(self.last.len().max(1)).enumerate() {
            put_full(critical, topic, number - stored + index as u64, payload);
            note_changes(&mut self.dynamic, &self.last, payload);
        }
        self.stored.clear();
        self.is_learned = false;
        (self.is_known, self.seen, self.passed, self.wait) = (!config.forgets, 0, 0, 0);
    }
}

/// Notes which bytes differ.
fn note_changes(dynamic: &mut [bool], last: &[u8], payload: &[u8]) {
    for ((dynamic, last), byte) in dynamic.iter_mut().zip(last).zip(payload) {
        *dynamic |= last != byte;
    }
}

/// Dynamic bytes as at most [`REGIONS_MAX`] regions: those with the smallest gaps between them are joined.
pub(super) fn regions(dynamic: &[bool]) -> Vec<(u16, u16)> {
    let mut regions: Vec<(u16, u16)> = Vec::new();
    for (at, _) in dynamic.iter().enumerate().filter(|(_, dynamic)| **dynamic) {
        match regions.last_mut() {
            Some((_, end)) if usize::from(*end) == at => *end += 1,
            _ => regions.push((at as u16, at as u16 + 1)),
        }
    }
    while regions.len() > REGIONS_MAX {
        let narrowest = (1..regions.len())
            .min_by_key(|index| regions[*index].0 - regions[*index - 1].1)
            .expect("there are more than one");
        regions[narrowest - 1].1 = regions[narrowest].1;
        regions.remove(narrowest);
    }
    regions
}

pub(super) fn put_full(out: &mut Vec<u8>, topic: &[u8], number: u64, payload: &[u8]) {
    put_parts(out, FULL, topic, number, payload);
}

pub(super) fn put_parts(out: &mut Vec<u8>, mark: u32, topic: &[u8], number: u64, payload: &[u8]) {
    out.extend_from_slice(&mark.to_le_bytes());
    for value in [number, topic.len() as u64, payload.len() as u64] {
        varint::put(out, value);
    }
    out.extend_from_slice(topic);
    out.extend_from_slice(payload);
}

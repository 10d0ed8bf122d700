//! The scheme of the paper: static and dynamic regions of bytes, for messages of fixed layout.
//!
//! Oliveira and Gavrilovska, "In-Network Compression for Accelerating IoT Analytics at Scale", section IV. It is here beside
//! [`crate::Encoder`] for comparison, and for fixed binary layouts, where copying from fixed offsets is all there is to do.
//!
//! ```text
//!  first five messages   all bytes are dynamic; what never differs becomes static, the rest at most 16 regions
//!  then                  4-byte key of the topic, 16-bit mask of regions that differ from the last message, those regions
//!  every nth message     is compared in its static regions: if they hold, n grows by one, up to `max_n`;
//!                        if not, the stored messages go out in full by the critical queue, and what differed is dynamic
//! ```
//!
//! Between two comparisons a change of a static byte goes unseen and the decoder puts the old byte in its place. The encoder stores
//! what it has sent since the last comparison, up to `max_store` messages; a comparison also looks at these, and if one has changed,
//! they are sent again as a *correction*. With `max_n` ≤ `max_store` all is right in the end. Above, messages that leave the store
//! before a comparison stay wrong if they had changed, and are counted as lost.
//!
//! What the paper leaves open is decided here so: regions with the smallest gaps between them are joined until there are 16; a topic
//! whose key another topic has is sent in full; `n` begins at 0, comparing every message; a change that was taken back before the
//! comparison is found as well.
//!
//! One thing departs from the paper, where a change "resets the metadata for the given topic" and the process starts over: here what was
//! known to be dynamic stays so after a static byte has changed, and the message that goes out in full is all that learning takes. To begin
//! anew with five sends most messages of decimals in full for ever: each new digit undoes what was learned of the others.
//! [`ComprexConfig::forgets`] does as the paper says. What stays is forgotten where it costs much: bytes that were the same in many comparisons
//! become static again if regions then are shorter by a quarter of the message, so that one odd message does not spoil its topic.
//!
//! Always true: every message comes out with its topic and, where the topic is kept, its number within it; after [`ComprexEncoder::settle`] and its
//! corrections each is the message that went in, but for those that are counted as lost.

use std::collections::{HashMap, HashSet};

use self::table::{Seeded, Table};
use crate::{
    number::{LOWEST, WORD},
    varint,
};

mod table;

#[cfg(test)]
mod tests;

/// Regions that a mask has bits for.
const REGIONS_MAX: usize = 16;

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

/// Stands in the place of a key where a message is in full.
const FULL: u32 = u32::MAX;

/// Stands in the place of a key where regions are told.
const REGIONS: u32 = u32::MAX - 1;

/// Stands in the place of a key where a message is in full whose topic neither end keeps.
const UNKEPT: u32 = u32::MAX - 2;

/// Longest topic and longest payload.
pub const BYTES_MAX: usize = 4096;

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
    /// Whether a topic of which a static byte has changed is learned from the beginning, as in the paper; false. What changed before is
    /// known otherwise, which is better for decimals.
    pub forgets: bool,
}

impl Default for ComprexConfig {
    fn default() -> Self {
        Self { max_n: 10, max_store: 10, batch_bytes: 1500, topics_max: 1 << 20, forgets: false }
    }
}

/// What an encoder has done.
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

    /// What is left of the batch; empty if nothing is.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.batch)
    }

    /// What is to go out by the critical queue; empty if nothing is.
    ///
    /// It corrects messages that were pushed before, some of which may be in the batch that is being filled, and must not overtake them:
    /// hand it to [`ComprexDecoder::correct`]'s side only with or after the batches of all messages that were pushed before this call, the
    /// one that [`ComprexEncoder::finish`] gives included.
    pub fn take_critical(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.critical)
    }

    /// What was done.
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
        // What is empty has no static byte, and is not stored.
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
        // Not with the message before: what changes once in a hundred messages would seldom be seen.
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
            // Where the length differs, every byte does: what keeps changing it is compared less, like noise.
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

    /// Sends again what may be wrong, up to the message `number`; what differs in it is dynamic from now on, unless all is learned anew.
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
fn regions(dynamic: &[bool]) -> Vec<(u16, u16)> {
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

/// FNV-1a: the paper does not say which hash.
fn key(topic: &[u8]) -> u32 {
    topic.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn put_full(out: &mut Vec<u8>, topic: &[u8], number: u64, payload: &[u8]) {
    put_parts(out, FULL, topic, number, payload);
}

fn put_parts(out: &mut Vec<u8>, mark: u32, topic: &[u8], number: u64, payload: &[u8]) {
    out.extend_from_slice(&mark.to_le_bytes());
    for value in [number, topic.len() as u64, payload.len() as u64] {
        varint::put(out, value);
    }
    out.extend_from_slice(topic);
    out.extend_from_slice(payload);
}

/// What a decoder holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComprexDecoderConfig {
    /// Most topics, each of at most [`BYTES_MAX`] bytes and a payload of as many; 2²⁰. An encoder may have no more
    /// ([`ComprexConfig::topics_max`]), and those whose key another has count as well.
    pub topics_max: usize,
}

impl Default for ComprexDecoderConfig {
    fn default() -> Self {
        Self { topics_max: 1 << 20 }
    }
}

/// Turns batches back into messages.
#[derive(Debug, Default)]
pub struct ComprexDecoder {
    config: ComprexDecoderConfig,
    entries: Vec<Known>,
    /// Where in `entries` each key is.
    table: Table,
    /// The entry after that of the last message, which is often that of the next: devices tend to take turns.
    next: usize,
    /// A message that is being put together.
    message: Vec<u8>,
}

/// A topic and its last message, in one piece of memory.
#[derive(Debug)]
struct Known {
    key: u32,
    topic_len: u16,
    /// Whether there are regions, and how many.
    is_learned: bool,
    count: u8,
    number: u64,
    /// Topic and payload, and room for a word.
    whole: Vec<u8>,
    /// Where each region begins in the payload, and how long it is.
    regions: [(u16, u16); REGIONS_MAX],
}

impl Known {
    fn new(key: u32, topic: &[u8], len: usize) -> Self {
        let mut whole = Vec::with_capacity(len + WORD);
        whole.extend_from_slice(topic);
        Self {
            key,
            topic_len: topic.len() as u16,
            is_learned: false,
            count: 0,
            number: 0,
            whole,
            regions: [(0, 0); REGIONS_MAX],
        }
    }

    #[inline]
    fn topic(&self) -> &[u8] {
        &self.whole[..usize::from(self.topic_len)]
    }

    /// Takes a message in full; no regions are known from then on.
    fn set(&mut self, number: u64, whole: &[u8]) {
        self.whole.clear();
        // No room for more: what topics that take turns need then lies close together.
        self.whole.reserve_exact(whole.len() + WORD);
        self.whole.extend_from_slice(whole);
        self.whole.extend_from_slice(&[0; WORD]);
        (self.number, self.is_learned) = (number, false);
    }

    /// Appends the next message to `log`: the last one, but for the regions that `mask` names, which are at the front of `bytes`.
    ///
    /// The last is copied before it is patched, and both are: a copy of memory that was just written in pieces waits for each of them.
    #[inline]
    fn take(
        &mut self,
        mut mask: u16,
        bytes: &mut &[u8],
        log: &mut Vec<u8>,
    ) -> Result<(), ComprexError> {
        if u32::from(mask) >> self.count != 0 {
            return Err(ComprexError::Regions);
        }
        let begin = log.len();
        log.extend_from_slice(&self.whole);
        let topic_len = usize::from(self.topic_len);
        let (new, last) = (&mut log[begin + topic_len..], &mut self.whole[topic_len..]);
        while mask != 0 {
            let (begin, len) = self.regions[mask.trailing_zeros() as usize];
            mask &= mask - 1;
            let (begin, len) = (usize::from(begin), usize::from(len));
            let (new, last) = (&mut new[begin..], &mut last[begin..]);
            if len <= WORD
                && let Some(from) = bytes.first_chunk()
                && let Some(to) = new.first_chunk_mut()
                && let Some(last) = last.first_chunk_mut()
            {
                // What stands after the region stays.
                let told = LOWEST[len];
                let word = u64::from_le_bytes(*last) & !told | u64::from_le_bytes(*from) & told;
                (*to, *last) = (word.to_le_bytes(), word.to_le_bytes());
                *bytes = &bytes[len..];
                continue;
            }
            let (region, rest) = bytes.split_at_checked(len).ok_or(ComprexError::Truncated)?;
            *bytes = rest;
            for to in [&mut new[..len], &mut last[..len]] {
                match (region.first_chunk::<WORD>(), region.last_chunk::<WORD>()) {
                    // Its two ends, which may overlap.
                    (Some(first), Some(end)) if len <= 2 * WORD => {
                        to[..WORD].copy_from_slice(first);
                        to[len - WORD..].copy_from_slice(end);
                    }
                    _ => to.copy_from_slice(region),
                }
            }
        }
        log.truncate(log.len() - WORD);
        Ok(())
    }
}

impl ComprexDecoder {
    /// A decoder that knows no topic.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with other limits.
    pub fn with_config(config: ComprexDecoderConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// How many topics are known.
    pub fn topics(&self) -> usize {
        self.entries.len()
    }

    /// Calls `with` for each message of a batch: its topic, its number within the topic (0 for each of a topic that is not kept), and
    /// its payload.
    ///
    /// # Errors
    ///
    /// [`ComprexError`]: the messages before the damage were given out; the decoder must begin anew with its encoder.
    pub fn decode(
        &mut self,
        batch: &[u8],
        mut with: impl FnMut(&[u8], u64, &[u8]),
    ) -> Result<(), ComprexError> {
        let mut message = std::mem::take(&mut self.message);
        let result = self.each(batch, &mut message, |message, topic_len, number| {
            let (topic, payload) = message.split_at(topic_len);
            with(topic, number, payload);
            message.clear();
        });
        self.message = message;
        result
    }

    /// Appends the messages of a batch to `log`, each its topic and then its payload, and calls `with` once each is there: with the
    /// length of its topic, its number as [`ComprexDecoder::decode`] tells it, and where it ends in `log`.
    ///
    /// A message is copied once, and changed where it then stands.
    ///
    /// # Errors
    ///
    /// [`ComprexError`]: the messages before the damage are in `log`, and nothing else; the decoder must begin anew with its encoder.
    pub fn decode_into(
        &mut self,
        batch: &[u8],
        log: &mut Vec<u8>,
        mut with: impl FnMut(usize, u64, usize),
    ) -> Result<(), ComprexError> {
        self.each(batch, log, |log, topic_len, number| with(topic_len, number, log.len()))
    }

    /// The same, with `log` for `with` to change.
    #[inline]
    fn each(
        &mut self,
        mut batch: &[u8],
        log: &mut Vec<u8>,
        mut with: impl FnMut(&mut Vec<u8>, usize, u64),
    ) -> Result<(), ComprexError> {
        let bytes = &mut batch;
        while !bytes.is_empty() {
            match take_key(bytes)? {
                mark @ (FULL | UNKEPT) => {
                    let full = Full::take(bytes)?;
                    log.extend_from_slice(full.whole);
                    with(log, full.topic_len, full.number);
                    if mark == FULL {
                        self.note(&full)?;
                    }
                }
                REGIONS => {
                    let key = take_key(bytes)?;
                    let (&count, rest) = bytes.split_first().ok_or(ComprexError::Truncated)?;
                    *bytes = rest;
                    let known = self.find(key)?;
                    take_regions(bytes, usize::from(count), known)?;
                }
                key => {
                    let known = self.find(key)?;
                    if !known.is_learned {
                        return Err(ComprexError::UnknownKey { key });
                    }
                    let (mask, rest) = bytes.split_first_chunk().ok_or(ComprexError::Truncated)?;
                    *bytes = rest;
                    let number = known.number.checked_add(1).ok_or(ComprexError::Number)?;
                    let begin = log.len();
                    if let Err(error) = known.take(u16::from_le_bytes(*mask), bytes, log) {
                        log.truncate(begin);
                        return Err(error);
                    }
                    known.number = number;
                    with(log, usize::from(known.topic_len), number);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn find(&mut self, key: u32) -> Result<&mut Known, ComprexError> {
        let mut index = self.next;
        if self.entries.get(index).is_none_or(|known| known.key != key) {
            index = self.table.find(key).ok_or(ComprexError::UnknownKey { key })?;
        }
        self.next = index + 1;
        Ok(&mut self.entries[index])
    }

    /// Calls `with` for each message of a correction: it takes the place of the one with its number.
    ///
    /// A correction is to be taken only after the batches that hold its messages (see [`ComprexEncoder::take_critical`]). Nothing is kept of
    /// the numbers that were given out, so one that comes before is given out as well, and the wrong message after it.
    ///
    /// # Errors
    ///
    /// [`ComprexError`]: those before the damage were given out.
    pub fn correct(
        &self,
        mut critical: &[u8],
        mut with: impl FnMut(&[u8], u64, &[u8]),
    ) -> Result<(), ComprexError> {
        while !critical.is_empty() {
            if take_key(&mut critical)? != FULL {
                return Err(ComprexError::Regions);
            }
            let full = Full::take(&mut critical)?;
            let (topic, payload) = full.parts();
            with(topic, full.number, payload);
        }
        Ok(())
    }

    fn note(&mut self, full: &Full<'_>) -> Result<(), ComprexError> {
        let (topic, _) = full.parts();
        let mut index = self.next;
        if self.entries.get(index).is_none_or(|known| known.topic() != topic) {
            let key = key(topic);
            index = match self.table.find(key) {
                Some(index) => index,
                None if self.entries.len() >= self.config.topics_max => {
                    return Err(ComprexError::Topics { max: self.config.topics_max });
                }
                None => {
                    self.table.insert(key, self.entries.len());
                    self.entries.push(Known::new(key, topic, full.whole.len()));
                    self.entries.len() - 1
                }
            };
        }
        let known = &mut self.entries[index];
        // Of two topics with one key the first has it; the encoder sends the other in full.
        if known.topic() == topic {
            known.set(full.number, full.whole);
            self.next = index + 1;
        }
        Ok(())
    }
}

fn take_key(bytes: &mut &[u8]) -> Result<u32, ComprexError> {
    let (key, rest) = bytes.split_first_chunk().ok_or(ComprexError::Truncated)?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*key))
}

/// A message in full, as it stands in a batch.
struct Full<'a> {
    number: u64,
    topic_len: usize,
    /// Topic and payload.
    whole: &'a [u8],
}

impl<'a> Full<'a> {
    fn take(bytes: &mut &'a [u8]) -> Result<Self, ComprexError> {
        let number = varint::take(bytes).ok_or(ComprexError::Truncated)?;
        let mut len = || {
            let len = varint::take(bytes).ok_or(ComprexError::Truncated)?;
            let len = usize::try_from(len).ok().filter(|len| *len <= BYTES_MAX);
            len.ok_or(ComprexError::Length)
        };
        let (topic_len, payload_len) = (len()?, len()?);
        let (whole, rest) =
            bytes.split_at_checked(topic_len + payload_len).ok_or(ComprexError::Truncated)?;
        *bytes = rest;
        Ok(Self { number, topic_len, whole })
    }

    fn parts(&self) -> (&'a [u8], &'a [u8]) {
        self.whole.split_at(self.topic_len)
    }
}

fn take_regions(bytes: &mut &[u8], count: usize, known: &mut Known) -> Result<(), ComprexError> {
    if count > REGIONS_MAX {
        return Err(ComprexError::Regions);
    }
    let len = (known.whole.len() - usize::from(known.topic_len) - WORD) as u64;
    // None hold until all are taken.
    known.is_learned = false;
    let mut at = 0;
    for place in &mut known.regions[..count] {
        let begin = varint::take(bytes).ok_or(ComprexError::Truncated)?;
        let end = varint::take(bytes).ok_or(ComprexError::Truncated)?;
        if begin < at || end <= begin || end > len {
            return Err(ComprexError::Regions);
        }
        *place = (begin as u16, (end - begin) as u16);
        at = end;
    }
    (known.is_learned, known.count) = (true, count as u8);
    Ok(())
}

/// A message that cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {bytes} bytes, at most {BYTES_MAX} can be sent")]
pub struct TooLong {
    /// Which part.
    pub what: &'static str,
    /// Its bytes.
    pub bytes: usize,
}

/// Why a batch makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ComprexError {
    /// It ends too early.
    #[error("the batch ends within a part of it")]
    Truncated,
    /// A part is longer than any may be.
    #[error("a topic or a payload is longer than {BYTES_MAX} bytes")]
    Length,
    /// It names a topic that was not sent in full, or of which no regions are known.
    #[error("key {key:#010x} is not known")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// It brings more topics than are taken.
    #[error("more than {max} topics, the most that are taken")]
    Topics {
        /// Most that are taken.
        max: usize,
    },
    /// A topic has more messages than can be counted.
    #[error("a message's number is beyond 64 bits")]
    Number,
    /// Regions are not within the message, or not in order, or a mask names one that there is not.
    #[error("regions that are not within the message")]
    Regions,
}

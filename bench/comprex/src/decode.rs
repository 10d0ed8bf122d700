//! From batches and corrections to messages.

use super::{BYTES_MAX, ComprexError, FULL, REGIONS, REGIONS_MAX, UNKEPT, key, table::Table};
use crate::varint;

/// Bytes of a word, in which short regions are copied.
const WORD: usize = 8;

/// A mask of as many of a word's lowest bytes.
const LOWEST: [u64; WORD + 1] = {
    let mut masks = [u64::MAX; WORD + 1];
    let mut len = 0;
    while len < WORD {
        masks[len] = (1 << (8 * len)) - 1;
        len += 1;
    }
    masks
};

/// Limits of a decoder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComprexDecoderConfig {
    /// Most topics, each of at most [`BYTES_MAX`] bytes and a payload of as many; 2²⁰. An encoder may have no more
    /// ([`ComprexConfig::topics_max`](super::ComprexConfig::topics_max)), and those whose key another has count as well.
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
        // No room for more: the bytes of topics that take turns then lie close together.
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
                // Bytes after the region stay.
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
    /// [`ComprexError`]: the messages before the damage were given out; the decoder must start over with its encoder.
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
    /// [`ComprexError`]: the messages before the damage are in `log`, and nothing else; the decoder must start over with its encoder.
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
    /// A correction is to be taken only after the batches that hold its messages (see [`ComprexEncoder::take_critical`](super::ComprexEncoder::take_critical)). Nothing is kept of
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

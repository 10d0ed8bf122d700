//! From messages to datagrams, at the edge.
//!
//! ```text
//!  u64  number of the first message      u32  messages       u32  number of the datagram
//!  u16  epoch of the codec               u16  datagrams of the same batch that follow       u8   kind
//!  ...  messages, each framed by two lengths of two bytes; or a batch of a codec, or a part of it; or comprex's corrections
//! ```
//!
//! Always true: a batch holds messages with numbers in a row, and is closed when it is full or its first message has waited for
//! [`BATCH_AGE`].

use std::time::Duration;

use anyhow::Context as _;
use bench_comprex::{ComprexConfig, ComprexEncoder};
use tidegate_compress::{Encoder, EncoderConfig, Message};

use super::Way;

/// Longest time that a message waits for others.
pub const BATCH_AGE: Duration = Duration::from_millis(20);
/// Bytes of a datagram that holds several messages, but for those of our codec: the paper's.
const BATCH_BYTES: usize = 1500;
/// Bytes of a datagram that holds a batch of our codec, or a part of it: less than IPv4 carries.
pub const DATAGRAM_BYTES_MAX: usize = 60_000;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the first message.
    pub first: u64,
    /// Messages of the batch.
    pub count: u32,
    /// Number of the datagram.
    pub number: u32,
    /// How often the codec has started over.
    pub epoch: u16,
    /// Datagrams of the same batch that follow.
    pub follow: u16,
    /// Whether it holds comprex's corrections of messages that were sent before.
    pub corrects: bool,
}

/// Bytes of a [`Header`].
pub const HEADER_BYTES: usize = 21;

impl Header {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.follow.to_le_bytes());
        out.push(u8::from(self.corrects));
    }

    /// Takes a header from the front of a datagram.
    pub fn take(datagram: &mut &[u8]) -> Option<Self> {
        let (head, rest) = datagram.split_first_chunk::<HEADER_BYTES>()?;
        let two = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let four = |at: usize| u32::from(two(at)) | u32::from(two(at + 2)) << 16;
        let header = Self {
            first: u64::from(four(0)) | u64::from(four(4)) << 32,
            count: four(8),
            number: four(12),
            epoch: two(16),
            follow: two(18),
            corrects: head[20] != 0,
        };
        *datagram = rest;
        Some(header)
    }
}

/// Datagrams one after the other, in one piece of memory.
#[derive(Debug, Default)]
pub struct Datagrams {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Datagrams {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| &self.bytes[std::mem::replace(&mut start, *end)..*end])
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All of them at once, and their length if all have the same.
    pub fn whole(&self) -> (&[u8], Option<usize>) {
        let length = self.ends.first().copied().unwrap_or_default();
        let is_same = self.ends.iter().enumerate().all(|(index, end)| *end == (index + 1) * length);
        (&self.bytes, is_same.then_some(length))
    }

    /// Forgets them, and keeps the room.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Makes datagrams as one of the ways wants them.
#[derive(Debug)]
pub struct Packer {
    form: Form,
    /// The batch that is being filled: its first message, how many it has, and since when.
    first: u64,
    count: u32,
    opened: i64,
    epoch: u16,
    number: u32,
    datagrams: Datagrams,
}

#[derive(Debug)]
enum Form {
    /// Each by itself.
    Single,
    /// Together, as they are.
    Together(Vec<u8>),
    Comprex(Box<ComprexEncoder>),
    /// Our codec's rows, with room for a batch.
    Rows(Box<Encoder>, Vec<u8>),
}

impl Form {
    fn new(way: Way, epoch: u16) -> Self {
        match way {
            Way::Baseline | Way::Flow => Self::Single,
            Way::BaselineBatch | Way::FlowBatch => Self::Together(Vec::with_capacity(BATCH_BYTES)),
            Way::FlowComprex => {
                let batch_bytes = BATCH_BYTES - HEADER_BYTES;
                let config = ComprexConfig { batch_bytes, ..ComprexConfig::default() };
                Self::Comprex(Box::new(ComprexEncoder::new(config)))
            }
            Way::Ours => {
                let encoder = Encoder::new(EncoderConfig::default(), u64::from(epoch), 99);
                Self::Rows(Box::new(encoder), Vec::new())
            }
        }
    }
}

impl Packer {
    /// A packer without messages.
    pub fn new(way: Way) -> Self {
        Self {
            form: Form::new(way, 0),
            first: 0,
            count: 0,
            opened: 0,
            epoch: 0,
            number: 0,
            datagrams: Datagrams::default(),
        }
    }

    /// Has the codec start over, since its other end has lost something. Waiting messages go with the epoch before.
    pub fn restart(&mut self, way: Way, epoch: u16) {
        self.close();
        self.epoch = epoch;
        self.form = Form::new(way, epoch);
    }

    /// Adds a message.
    ///
    /// # Errors
    /// It is too long for a codec.
    pub fn push(
        &mut self,
        number: u64,
        topic: &[u8],
        payload: &[u8],
        now: i64,
    ) -> anyhow::Result<()> {
        match &mut self.form {
            Form::Single => {
                (self.first, self.count) = (number, 1);
                self.begin(0, false);
                put_frame(topic, payload, &mut self.datagrams.bytes);
                self.end();
                self.count = 0;
                return Ok(());
            }
            Form::Together(batch) => {
                let bytes = HEADER_BYTES + batch.len() + 4 + topic.len() + payload.len();
                if self.count > 0 && bytes > BATCH_BYTES {
                    self.close();
                }
                self.open(number, now);
                if let Form::Together(batch) = &mut self.form {
                    put_frame(topic, payload, batch);
                }
            }
            Form::Comprex(encoder) => {
                let full = encoder.push(topic, payload).context("comprex takes the message")?;
                let corrections = encoder.take_critical();
                if let Some(batch) = full {
                    self.send(&batch);
                    self.count = 0;
                }
                self.open(number, now);
                self.correct(&corrections);
            }
            Form::Rows(encoder, _) => {
                encoder.push(Message { topic, attributes: &[], payload })?;
                let is_due = encoder.is_due();
                self.open(number, now);
                if is_due {
                    self.close();
                }
            }
        }
        Ok(())
    }

    /// Closes the batch if it is old enough.
    #[inline]
    pub fn poll(&mut self, now: i64) {
        if self.count > 0 && now - self.opened >= BATCH_AGE.as_nanos() as i64 {
            self.close();
        }
    }

    /// Closes the batch that is being filled.
    pub fn close(&mut self) {
        if self.count == 0 {
            return;
        }
        match &mut self.form {
            Form::Single => {}
            Form::Together(batch) => {
                let mut full = std::mem::take(batch);
                self.send(&full);
                full.clear();
                self.form = Form::Together(full);
            }
            Form::Comprex(encoder) => {
                let batch = encoder.finish();
                self.send(&batch);
            }
            Form::Rows(encoder, batch) => {
                let mut full = std::mem::take(batch);
                full.clear();
                encoder.finish(&mut full);
                self.send(&full);
                if let Form::Rows(_, batch) = &mut self.form {
                    *batch = full;
                }
            }
        }
        self.count = 0;
    }

    /// Closes the batch and has comprex correct what is still wrong: no more messages come.
    pub fn finish(&mut self) {
        self.close();
        if let Form::Comprex(encoder) = &mut self.form {
            encoder.settle();
            let corrections = encoder.take_critical();
            self.correct(&corrections);
        }
    }

    /// The datagrams to send; the caller clears them.
    pub fn datagrams(&mut self) -> &mut Datagrams {
        &mut self.datagrams
    }

    fn open(&mut self, number: u64, now: i64) {
        if self.count == 0 {
            (self.first, self.opened) = (number, now);
        }
        self.count += 1;
    }

    /// Sends the batch's messages.
    fn send(&mut self, body: &[u8]) {
        let bytes =
            if matches!(self.form, Form::Rows(..)) { DATAGRAM_BYTES_MAX } else { BATCH_BYTES };
        self.send_parts(body, bytes, false);
    }

    fn correct(&mut self, corrections: &[u8]) {
        self.send_parts(corrections, BATCH_BYTES, true);
    }

    /// Sends a body in as many datagrams of `bytes` as it takes.
    fn send_parts(&mut self, body: &[u8], bytes: usize, corrects: bool) {
        let parts = body.chunks(bytes - HEADER_BYTES);
        let count = parts.len();
        for (index, part) in parts.enumerate() {
            self.begin((count - 1 - index) as u16, corrects);
            self.datagrams.bytes.extend_from_slice(part);
            self.end();
        }
    }

    fn begin(&mut self, follow: u16, corrects: bool) {
        let (first, epoch, number) = (self.first, self.epoch, self.number);
        let count = if corrects { 0 } else { self.count };
        Header { first, count, number, epoch, follow, corrects }.put(&mut self.datagrams.bytes);
        self.number = self.number.wrapping_add(1);
    }

    fn end(&mut self) {
        self.datagrams.ends.push(self.datagrams.bytes.len());
    }
}

fn put_frame(topic: &[u8], payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(topic.len() as u16).to_le_bytes());
    out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    out.extend_from_slice(topic);
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(way: Way, messages: u64) -> Packer {
        let mut packer = Packer::new(way);
        for number in 0..messages {
            let payload = format!("{number:08},{:04}", number * 7 % 9999);
            packer.push(number, b"a/topic", payload.as_bytes(), 0).unwrap();
        }
        packer
    }

    #[test]
    fn batches_hold_all_messages_in_a_row() {
        for way in Way::ALL {
            let mut packer = packed(way, 20_000);
            packer.finish();
            let mut expected = 0;
            for (index, mut datagram) in packer.datagrams().iter().enumerate() {
                let most = if way == Way::Ours { DATAGRAM_BYTES_MAX } else { BATCH_BYTES };
                assert!(datagram.len() <= most, "{way:?}: {} B", datagram.len());
                let header = Header::take(&mut datagram).unwrap();
                assert_eq!(header.number as usize, index, "{way:?}");
                if header.follow == 0 && !header.corrects {
                    assert_eq!(header.first, expected, "{way:?}");
                    expected += u64::from(header.count);
                }
            }
            assert_eq!(expected, 20_000, "{way:?}");
        }
    }

    #[test]
    fn one_by_one_all_datagrams_are_of_one_length() {
        let mut packer = packed(Way::Flow, 5);
        let (bytes, length) = packer.datagrams().whole();
        assert_eq!(length, Some(bytes.len() / 5));
        let mut packer = packed(Way::FlowBatch, 500);
        packer.close();
        assert_eq!(packer.datagrams().whole().1, None, "the last is shorter");
    }

    #[test]
    fn a_batch_is_closed_by_its_age() {
        let age = BATCH_AGE.as_nanos() as i64;
        for way in [Way::BaselineBatch, Way::FlowComprex, Way::Ours] {
            let mut packer = packed(way, 3);
            packer.poll(age - 1);
            assert!(packer.datagrams().is_empty(), "{way:?}");
            packer.poll(age);
            assert!(!packer.datagrams().is_empty(), "{way:?}");
        }
    }

    #[test]
    fn headers_come_back() {
        let header = Header {
            first: 1 << 40 | 7,
            count: 300,
            number: 9,
            epoch: 513,
            follow: 514,
            corrects: true,
        };
        let mut bytes = Vec::new();
        header.put(&mut bytes);
        assert_eq!(bytes.len(), HEADER_BYTES);
        bytes.push(1);
        let mut datagram = &bytes[..];
        assert_eq!((Header::take(&mut datagram), datagram), (Some(header), &[1][..]));
        assert_eq!(Header::take(&mut &bytes[..5]), None);
    }
}

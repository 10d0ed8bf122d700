//! The messages of a batch.

use super::DecodeError;
use crate::{batch::Header, kept::Kept};

/// The messages of a batch, one after the other in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct Decoded {
    /// Bytes beyond `len` have no meaning: they are room that can be written to in pieces of a fixed size.
    bytes: Vec<u8>,
    len: usize,
    spans: Vec<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    end: u32,
    topic_len: u16,
    attributes_len: u16,
}

impl Decoded {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The messages, in the order in which they were pushed.
    pub fn iter(&self) -> impl Iterator<Item = crate::Message<'_>> {
        let mut start = 0;
        self.spans.iter().map(move |span| {
            let whole = &self.bytes[start..span.end as usize];
            start = span.end as usize;
            let (topic, rest) = whole.split_at(usize::from(span.topic_len));
            let (attributes, payload) = rest.split_at(usize::from(span.attributes_len));
            crate::Message { topic, attributes, payload }
        })
    }

    /// All bytes: of each message its topic, its attributes and its payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.spans.clear();
    }

    /// Expects so many messages.
    pub(super) fn reserve(&mut self, messages: usize) {
        self.spans.reserve(messages);
    }

    /// Whether it holds at most what its batch says.
    #[inline]
    pub(super) fn is_within(&self, header: &Header) -> bool {
        self.len <= header.message_bytes as usize && self.spans.len() <= header.messages as usize
    }

    /// Appends a part of a message.
    pub(super) fn put(&mut self, part: &[u8]) {
        self.room(part.len())[..part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    /// Where to append, with room for at least `bytes`.
    #[inline]
    pub(super) fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.len < bytes {
            self.grow(bytes);
        }
        &mut self.bytes[self.len..]
    }

    #[cold]
    fn grow(&mut self, bytes: usize) {
        self.bytes.resize((self.len + bytes).max(2 * self.bytes.len()), 0);
    }

    /// Notes that `bytes` of the room were used.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        self.len += bytes;
    }

    /// How many bytes there are.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.len
    }

    /// The bytes appended from `start` on.
    #[inline]
    pub(super) fn since(&self, start: usize) -> &[u8] {
        &self.bytes[start..self.len]
    }

    /// The bytes appended last are a message of this topic.
    #[inline]
    pub(super) fn end_message(&mut self, kept: &Kept) {
        self.spans.push(Span {
            end: self.len as u32,
            topic_len: kept.topic_len(),
            attributes_len: kept.attributes_len(),
        });
    }

    /// Compares what came out of `packed` with what its header says.
    pub(super) fn check(&self, header: &Header, packed: &[u8]) -> Result<(), DecodeError> {
        let is_whole = self.spans.len() == header.messages as usize
            && self.len == header.message_bytes as usize
            && crc32c::crc32c_append(crc32c::crc32c(self.bytes()), packed) == header.checksum;
        if is_whole { Ok(()) } else { Err(DecodeError::Mismatch) }
    }
}

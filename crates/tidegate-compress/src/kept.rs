//! The stored state of a topic: its name, its attributes and its last payload, in one block of memory.
//!
//! ```text
//!  | topic | attributes | lengths of fields or codes | last payload, as text or packed | room |
//! ```

use crate::form::{self, Form, LENS_MAX};

/// Bytes that a kept topic counts beyond its own, on both sides and on every machine, so that both come to the same
/// sum.
pub(crate) const OVERHEAD_BYTES: u64 = 64;

/// Most that a topic counts beyond its name, attributes and payload.
pub(crate) const COST_BEYOND_BYTES_MAX: u64 = OVERHEAD_BYTES + LENS_MAX as u64;

/// Blocks have sizes of which this is a divisor, and at first as much room at their end: so all of a payload can be read and copied in
/// pieces of one size.
pub(crate) const BLOCK_STEP: usize = 16;

/// A topic and its last payload.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    block: Box<[u8]>,
    topic_len: u16,
    attributes_len: u16,
    /// Bytes of the last payload as it is kept, and as text.
    data_len: u16,
    text_len: u16,
    /// How its payloads are cut: the number of a schema.
    pub(crate) schema: u16,
    /// The batch that used it last: its number's lower half.
    pub(crate) batch: u32,
    /// Lengths of fields, or codes of which [`PACKED`] is the sign.
    lens_len: u8,
    /// Bits of its owner's own.
    pub(crate) flags: u8,
}

/// Of [`Kept`]'s number of lengths: they are codes.
const PACKED: u8 = 0x80;

const _: () = assert!(LENS_MAX < PACKED as usize);

impl Kept {
    /// Topic and attributes are of at most 65,535 bytes each, the payload of 4,096.
    pub(crate) fn new(topic: &[u8], attributes: &[u8], schema: u16, form: Form<'_>) -> Self {
        let name_len = topic.len() + attributes.len();
        let mut kept = Self {
            block: block(name_len + form.lens.len() + form.data.len()),
            topic_len: topic.len() as u16,
            attributes_len: attributes.len() as u16,
            data_len: 0,
            text_len: 0,
            schema,
            batch: 0,
            flags: 0,
            lens_len: 0,
        };
        kept.block[..topic.len()].copy_from_slice(topic);
        kept.block[topic.len()..name_len].copy_from_slice(attributes);
        kept.set(form);
        kept
    }

    #[inline]
    pub(crate) fn topic(&self) -> &[u8] {
        &self.block[..usize::from(self.topic_len)]
    }

    #[inline]
    pub(crate) fn attributes(&self) -> &[u8] {
        &self.block[usize::from(self.topic_len)..self.name_len()]
    }

    /// The topic, and the attributes after it.
    #[inline]
    pub(crate) fn name(&self) -> &[u8] {
        &self.block[..self.name_len()]
    }

    #[inline]
    pub(crate) fn topic_len(&self) -> u16 {
        self.topic_len
    }

    #[inline]
    pub(crate) fn attributes_len(&self) -> u16 {
        self.attributes_len
    }

    /// Topic, attributes and what stands after them.
    #[inline]
    pub(crate) fn whole(&self) -> &[u8] {
        &self.block
    }

    /// The last payload as it is kept.
    #[inline]
    pub(crate) fn form(&self) -> Form<'_> {
        let (lens, data) =
            self.block[self.name_len()..self.end()].split_at(usize::from(self.lens_len & !PACKED));
        Form { lens, data, text_len: usize::from(self.text_len), is_packed: self.is_packed() }
    }

    /// The last payload, where it is kept as text.
    #[inline]
    pub(crate) fn payload(&self) -> &[u8] {
        self.form().data
    }

    #[inline]
    pub(crate) fn is_packed(&self) -> bool {
        self.lens_len & PACKED != 0
    }

    /// Whether a next payload of `text_len` bytes that is packed where this one is takes no more memory than it may.
    #[inline]
    pub(crate) fn is_worth(&self, text_len: usize) -> bool {
        form::is_worth(usize::from(self.lens_len & !PACKED), usize::from(self.data_len), text_len)
    }

    /// Lengths or codes, and the payload with some room after it, to be changed where they stand.
    #[inline]
    pub(crate) fn parts_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        let start = self.name_len();
        self.block[start..].split_at_mut(usize::from(self.lens_len & !PACKED))
    }

    /// Notes how long the payload is that was written to [`Kept::parts_mut`].
    #[inline]
    pub(crate) fn set_text_len(&mut self, len: usize) {
        self.text_len = len as u16;
    }

    /// Takes the topic's next payload, as text, and the lengths of those of its fields that have others.
    #[inline]
    pub(crate) fn set_text(&mut self, payload: &[u8], changed: &[(u8, u8)]) {
        let (start, lens_len) = (self.name_len(), usize::from(self.lens_len));
        if lens_len > 0 {
            for &(field, len) in changed {
                self.block[start + usize::from(field)] = len;
            }
        }
        let end = start + lens_len + payload.len();
        if end > self.block.len() || self.block.len() > 2 * end + 4 * BLOCK_STEP {
            self.resize(end);
        }
        self.block[start + lens_len..end].copy_from_slice(payload);
        (self.data_len, self.text_len) = (payload.len() as u16, payload.len() as u16);
    }

    /// Takes the topic's next payload.
    pub(crate) fn set(&mut self, form: Form<'_>) {
        let end = self.name_len() + form.lens.len() + form.data.len();
        // A payload that was long once does not keep its room forever.
        if end > self.block.len() || self.block.len() > 2 * end + 4 * BLOCK_STEP {
            self.resize(end);
        }
        self.lens_len = form.lens.len() as u8 | if form.is_packed { PACKED } else { 0 };
        (self.data_len, self.text_len) = (form.data.len() as u16, form.text_len as u16);
        let (lens, data) = self.parts_of_mut();
        lens.copy_from_slice(form.lens);
        data.copy_from_slice(form.data);
    }

    fn parts_of_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        let (start, end) = (self.name_len(), self.end());
        self.block[start..end].split_at_mut(usize::from(self.lens_len & !PACKED))
    }

    #[cold]
    fn resize(&mut self, len: usize) {
        let mut other = block(len);
        let kept = self.name_len() + usize::from(self.lens_len & !PACKED);
        other[..kept].copy_from_slice(&self.block[..kept]);
        self.block = other;
    }

    /// Its cost against a limit of state: its bytes and [`OVERHEAD_BYTES`].
    #[inline]
    pub(crate) fn cost(&self) -> u64 {
        OVERHEAD_BYTES
            + u64::from(self.topic_len)
            + u64::from(self.attributes_len)
            + u64::from(self.lens_len & !PACKED)
            + u64::from(self.text_len)
    }

    /// Bytes of memory that its block takes.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block.len()
    }

    #[inline]
    pub(crate) fn name_len(&self) -> usize {
        usize::from(self.topic_len) + usize::from(self.attributes_len)
    }

    /// Where the room begins.
    #[inline]
    fn end(&self) -> usize {
        self.name_len() + usize::from(self.lens_len & !PACKED) + usize::from(self.data_len)
    }
}

// One half of a cache line.
const _: () = assert!(size_of::<Kept>() <= 32);

/// Memory for `len` bytes and the room after them.
fn block(len: usize) -> Box<[u8]> {
    vec![0; (len + BLOCK_STEP).next_multiple_of(BLOCK_STEP)].into()
}

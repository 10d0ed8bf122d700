//! What is kept of a topic: its name, its attributes and its last payload, in one block of memory.
//!
//! ```text
//!  | topic | attributes | lengths of fields | last payload | room |
//! ```

/// What a kept topic counts beyond its bytes, on both sides and on every machine, so that both come to the same sum.
pub(crate) const OVERHEAD_BYTES: u64 = 64;

/// Most that a topic counts beyond its name, attributes and payload.
pub(crate) const COST_BEYOND_BYTES_MAX: u64 = OVERHEAD_BYTES + LENS_MAX as u64;

/// Most fields whose lengths are kept; those of a payload with more are found again when they are needed.
const LENS_MAX: usize = 40;

/// Blocks have sizes of which this is a divisor.
const BLOCK_STEP: usize = 16;

/// A topic and its last payload.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    block: Box<[u8]>,
    topic_len: u16,
    attributes_len: u16,
    payload_len: u16,
    /// How its payloads are cut: the number of a schema.
    pub(crate) schema: u16,
    /// The batch that used it last: its number's lower half.
    pub(crate) batch: u32,
    lens_len: u8,
    /// Bits of its owner's own.
    pub(crate) flags: u8,
}

impl Kept {
    /// Lengths are at most 65,535 each; `lens` are those of the payload's fields, none if it is not cut.
    pub(crate) fn new(
        topic: &[u8],
        attributes: &[u8],
        schema: u16,
        lens: &[u8],
        payload: &[u8],
    ) -> Self {
        let lens = if lens.len() <= LENS_MAX { lens } else { &[] };
        let mut kept = Self {
            block: block(topic.len() + attributes.len() + lens.len() + payload.len()),
            topic_len: topic.len() as u16,
            attributes_len: attributes.len() as u16,
            payload_len: payload.len() as u16,
            schema,
            batch: 0,
            flags: 0,
            lens_len: lens.len() as u8,
        };
        let mut at = 0;
        for part in [topic, attributes, lens, payload] {
            kept.block[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
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

    /// Lengths of the last payload's fields; none if they are not kept.
    #[inline]
    pub(crate) fn lens(&self) -> &[u8] {
        let start = self.name_len();
        &self.block[start..start + usize::from(self.lens_len)]
    }

    #[inline]
    pub(crate) fn payload(&self) -> &[u8] {
        let start = self.name_len() + usize::from(self.lens_len);
        &self.block[start..start + usize::from(self.payload_len)]
    }

    /// The last payload, and the lengths of its fields, to be changed where their number stays.
    #[inline]
    pub(crate) fn lens_mut(&mut self) -> &mut [u8] {
        let start = self.name_len();
        &mut self.block[start..start + usize::from(self.lens_len)]
    }

    /// Takes the topic's next payload, whose fields are as many as those of the last.
    #[inline]
    pub(crate) fn set_payload(&mut self, payload: &[u8]) {
        let start = self.name_len() + usize::from(self.lens_len);
        let end = start + payload.len();
        // A payload that was long once does not keep its room for ever.
        if end > self.block.len() || self.block.len() > 2 * end + 4 * BLOCK_STEP {
            self.resize(end);
        }
        self.block[start..end].copy_from_slice(payload);
        self.payload_len = payload.len() as u16;
    }

    #[cold]
    fn resize(&mut self, len: usize) {
        let mut other = block(len);
        let kept = self.name_len() + usize::from(self.lens_len);
        other[..kept].copy_from_slice(&self.block[..kept]);
        self.block = other;
    }

    /// What it counts against a limit of state: its bytes and [`OVERHEAD_BYTES`].
    #[inline]
    pub(crate) fn cost(&self) -> u64 {
        OVERHEAD_BYTES
            + u64::from(self.topic_len)
            + u64::from(self.attributes_len)
            + u64::from(self.lens_len)
            + u64::from(self.payload_len)
    }

    /// Bytes of memory that its block takes.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block.len()
    }

    #[inline]
    fn name_len(&self) -> usize {
        usize::from(self.topic_len) + usize::from(self.attributes_len)
    }
}

// One half of a cache line.
const _: () = assert!(size_of::<Kept>() <= 32);

/// Memory for `len` bytes and a few more digits.
fn block(len: usize) -> Box<[u8]> {
    vec![0; (len + 2).next_multiple_of(BLOCK_STEP)].into()
}

//! Bytes that arrived and are no whole packet yet.

/// Holds the input of a [`Client`](super::Client) between two reads.
///
/// ```text
///  read into spare() ─▶ let mut input = bytes(); receive(&mut input) … ─▶ keep(input.len())
/// ```
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    bytes: Vec<u8>,
    /// How many of them were used.
    used: usize,
}

/// Memory that one long packet needed is given back from here on.
const KEPT_BYTES: usize = 256 << 10;

impl ReceiveBuffer {
    /// What was not used.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Only the last `count` bytes were not used.
    pub fn keep(&mut self, count: usize) {
        self.used = self.bytes.len() - count.min(self.bytes.len());
    }

    /// Where more is appended. What was used is gone from it.
    pub fn spare(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.used);
        self.used = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEPT_BYTES);
        }
        &mut self.bytes
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.spare().extend_from_slice(bytes);
    }

    /// Drops all of them.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.used = 0;
    }
}

//! Bytes between a client and its transport: those that arrived and are no whole packet yet, and those that it has not taken.

use tidegate_message::Instant;

use super::Client;

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
    /// Bytes that were not used.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Only the last `count` bytes were not used.
    pub fn keep(&mut self, count: usize) {
        self.used = self.bytes.len() - count.min(self.bytes.len());
    }

    /// The buffer to append to. Used bytes are gone from it.
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

/// Holds the output of a [`Client`] while its transport takes less than all of it.
///
/// ```text
///  fill(&mut client, now) ─▶ write bytes() ─▶ wrote(count)
/// ```
#[derive(Debug, Default)]
pub struct SendBuffer {
    bytes: Vec<u8>,
    /// How many of them were written.
    written: usize,
}

impl SendBuffer {
    /// Takes what the client has to send, once all before was written.
    pub fn fill<T>(&mut self, client: &mut Client<T>, now: Instant) {
        if self.is_empty() {
            client.transmit(now, &mut self.bytes);
        }
    }

    /// The bytes to write.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// So many bytes were written.
    pub fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written >= self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            self.written = 0;
        }
    }
}

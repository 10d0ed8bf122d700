//! A hash with a secret, for keys that a peer chooses.
//!
//! Multiplies 64 by 64 bits and folds the halves of the product, as wyhash does, from a state that
//! only this process knows: a fraction of SipHash's time on the short keys here. Not for anything
//! that must withstand an attacker who sees the hashes.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers that share one secret.
#[derive(Clone)]
pub(crate) struct Seeded {
    start: u64,
    factor: u64,
}

impl Seeded {
    /// With a secret from the system. No result depends on it but the order within a table.
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        Self { start: random.hash_one(0), factor: random.hash_one(1) | 1 }
    }
}

impl std::fmt::Debug for Seeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seeded(..)") // a secret
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;

    #[inline]
    fn build_hasher(&self) -> Folding {
        Folding { state: self.start, factor: self.factor, pending: 0 }
    }
}

/// See the module.
pub(crate) struct Folding {
    state: u64,
    factor: u64,
    /// A `u32` that waits for the next one: a pair of them takes one multiplication.
    pending: u64,
}

impl Hasher for Folding {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.write_u64(u64::from_le_bytes(word.try_into().expect("a chunk of 8")));
        }
        let mut last = [0; 8];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        // Fewer than 8 bytes leave the highest one free for their number.
        last[7] = rest.len() as u8;
        self.write_u64(u64::from_le_bytes(last));
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        // Ends a text. `write` has hashed its length already.
        self.state ^= u64::from(byte);
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.pending = self.pending << 32 | u64::from(number);
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.state = fold(self.state ^ number, self.factor);
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.state ^ self.pending, self.factor)
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

//! The place of a key's entry: a table of twice as many places and more, seeded so that a sender cannot choose keys that fall on
//! one place.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Keys and numbers of entries.
#[derive(Debug)]
pub(super) struct Table {
    /// Of each key its number plus one, at its hash or the next free place after it; zeros where there is none.
    places: Box<[(u32, u32)]>,
    len: usize,
    seed: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self { places: vec![(0, 0); 64].into(), len: 0, seed: seed() }
    }
}

impl Table {
    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<usize> {
        let mask = self.places.len() - 1;
        let mut at = self.home(key);
        loop {
            match self.places[at & mask] {
                (_, 0) => return None,
                (found, number) if found == key => return Some(number as usize - 1),
                _ => at += 1,
            }
        }
    }

    /// Adds a key that there is not.
    pub(super) fn insert(&mut self, key: u32, number: usize) {
        if 2 * (self.len + 1) > self.places.len() {
            let places = vec![(0, 0); 2 * self.places.len()].into();
            for (key, number) in std::mem::replace(&mut self.places, places) {
                if number != 0 {
                    self.put(key, number);
                }
            }
        }
        self.len += 1;
        self.put(key, number as u32 + 1);
    }

    fn put(&mut self, key: u32, number: u32) {
        let mask = self.places.len() - 1;
        let mut at = self.home(key) & mask;
        while self.places[at].1 != 0 {
            at = (at + 1) & mask;
        }
        self.places[at] = (key, number);
    }

    /// The upper bits of a product with a secret, of which the lower ones are known if the key is.
    #[inline]
    fn home(&self, key: u32) -> usize {
        let mixed = (u64::from(key) ^ self.seed >> 32).wrapping_mul(self.seed | 1);
        (mixed >> 32) as usize & (self.places.len() - 1)
    }
}

/// Hashes topics by the same means as the encoder that this scheme is compared with.
#[derive(Clone, Debug)]
pub(super) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Self(seed())
    }
}

impl BuildHasher for Seeded {
    type Hasher = Hash;

    fn build_hasher(&self) -> Hash {
        Hash { seed: self.0, state: 0 }
    }
}

/// A hash in the making.
#[derive(Debug)]
pub(super) struct Hash {
    seed: u64,
    state: u64,
}

impl Hasher for Hash {
    fn write(&mut self, bytes: &[u8]) {
        self.state = hash(self.seed ^ self.state, bytes);
    }

    // A length, which is hashed with the bytes that follow.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.state
    }
}

fn seed() -> u64 {
    RandomState::new().hash_one(())
}

/// Eight bytes at a time, multiplied by a secret into twice their width and folded.
#[inline]
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |one: u64, other: u64| {
        let product = u128::from(one) * u128::from(other);
        product as u64 ^ (product >> 64) as u64
    };
    let mut state = seed ^ (bytes.len() as u64).wrapping_mul(ODD);
    let mut words = bytes.chunks_exact(8);
    for word in words.by_ref() {
        let word = u64::from_le_bytes(word.try_into().expect("a chunk has eight bytes"));
        state = fold(state ^ word, seed | 1) ^ state.rotate_left(23);
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    let state = fold(state ^ u64::from_le_bytes(last), seed.rotate_left(32) | 1);
    let state = fold(state, ODD);
    state ^ state >> 32
}

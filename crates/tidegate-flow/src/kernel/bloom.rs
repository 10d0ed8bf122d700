//! A Bloom filter: a set that may take strangers for members, and never a member for a stranger.
//!
//! Of n values that it is made for and a share p of strangers let in, it has m = -n ln p / (ln 2)² bits, rounded up to whole words,
//! and k = m/n ln 2 places for each value. Place i of a value with hash h is (h + i h') m / 2^64, where h' is h mixed again and odd.

use super::{Context, hash_of};
use crate::{batch::Column, hash, spec::KeepValues};

/// Most bits: 512 MiB of them.
pub(crate) const BITS_MAX: u64 = 1 << 32;

/// Keeps values that are in the set, or those that are not.
#[derive(Debug)]
pub(crate) struct Bloom {
    pub(crate) input: Column,
    pub(crate) keep: KeepValues,
    learn: bool,
    expected: u64,
    bits: u64,
    pub(crate) places: u32,
    /// The number of values, then the bits.
    words: Vec<u64>,
}

impl Bloom {
    /// Bits and places for `expected` values.
    pub(crate) fn size(expected: u64, false_positive: f64) -> (u64, u32) {
        let ln2 = std::f64::consts::LN_2;
        let exact = -(expected as f64) * false_positive.ln() / (ln2 * ln2);
        let bits = (exact.ceil().max(1.0) as u64).next_multiple_of(64);
        let places = (bits as f64 / expected as f64 * ln2).round().clamp(1.0, 32.0);
        (bits, places as u32)
    }

    pub(crate) fn new(
        input: Column,
        keep: KeepValues,
        learn: bool,
        expected: u64,
        false_positive: f64,
    ) -> Self {
        let (bits, places) = Self::size(expected, false_positive);
        let words = vec![0; 1 + (bits / 64) as usize];
        Self { input, keep, learn, expected, bits, places, words }
    }

    /// Puts a value in.
    pub(crate) fn insert(&mut self, value: u64) {
        self.words[0] += 1;
        for place in places(value, self.bits, self.places) {
            self.words[1 + (place / 64) as usize] |= 1 << (place % 64);
        }
    }

    fn holds(&self, value: u64) -> bool {
        places(value, self.bits, self.places)
            .all(|place| self.words[1 + (place / 64) as usize] >> (place % 64) & 1 == 1)
    }

    /// Bytes of its bits.
    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// The learned state; empty if it does not learn.
    pub(super) fn learned(&self) -> &[u64] {
        if self.learn { &self.words } else { &[] }
    }

    /// Puts in what a filter of the same bits and places had learned: a member of either is one from now on.
    ///
    /// How many values that makes is known where that filter holds all that is in this one; else it follows from the share of bits
    /// that are set, as -m/k ln(1 - set/m) (Swamidass and Baldi, 2007).
    pub(super) fn take_up(&mut self, learned: &[u64]) {
        let (Some((count, bits)), Some((learned_count, learned))) =
            (self.words.split_first_mut(), learned.split_first())
        else {
            return;
        };
        let (mut set, mut has_more) = (0, false);
        for (word, learned) in bits.iter_mut().zip(learned) {
            has_more |= *word & !learned != 0;
            *word |= learned;
            set += u64::from(word.count_ones());
        }
        if !has_more {
            *count = *learned_count;
            return;
        }
        let share = set as f64 / self.bits as f64;
        let values = self.bits as f64 / f64::from(self.places) * -(-share).ln_1p();
        let (least, most) = ((*count).max(*learned_count), count.saturating_add(*learned_count));
        *count = (values.round() as u64).clamp(least, most);
    }

    pub(super) fn run(&mut self, context: &mut Context<'_, '_>) {
        let before = context.batch.alive.len();
        let mut alive = context.batch.alive.clone();
        alive.retain(|row| {
            let Some(value) = hash_of(context, self.input, row) else { return false };
            let is_known = self.holds(value);
            if !is_known && self.learn {
                if self.words[0] < self.expected {
                    self.insert(value);
                } else {
                    context.stats.unlearned += 1;
                }
            }
            is_known == (self.keep == KeepValues::Known)
        });
        context.batch.alive = alive;
        context.stats.filtered += (before - context.batch.alive.len()) as u64;
    }
}

fn places(value: u64, bits: u64, count: u32) -> impl Iterator<Item = u64> {
    let step = hash::finish(value) | 1;
    (0..u64::from(count)).map(move |place| {
        let spread = value.wrapping_add(place.wrapping_mul(step));
        ((u128::from(spread) * u128::from(bits)) >> 64) as u64
    })
}

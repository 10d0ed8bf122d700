//! Sketches: how many values differ, and how unevenly they are spread, in a state that does not grow.

use super::{Context, hash_of, states};
use crate::{batch::Column, hash};

/// Roughly how many values differ: HyperLogLog (Flajolet, Fusy, Gandouet, Meunier 2007) over 64-bit hashes.
///
/// The first p bits of a hash choose one of m = 2^p registers, which keeps the most leading zeros of the rest, plus 1. The estimate
/// is α m² / Σ 2^-M, and m ln (m / V) where that is at most 2.5 m and V registers are still 0. Its standard error is 1.04 / √m.
#[derive(Debug)]
pub(crate) struct Distinct {
    pub(crate) input: Column,
    pub(crate) into: usize,
    pub(crate) precision: u32,
    pub(crate) at: usize,
}

/// Words before the registers: Σ 2^-M as a number of 2^-64, which 128 bits hold exactly, and V.
const HEAD: usize = 3;

impl Distinct {
    fn registers(&self) -> usize {
        1 << self.precision
    }

    pub(super) fn initial(&self) -> Vec<u64> {
        let sum = (self.registers() as u128) << 64;
        let mut words = vec![sum as u64, (sum >> 64) as u64, self.registers() as u64];
        words.resize(HEAD + self.registers() / 8, 0);
        words
    }

    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let alive = context.batch.alive.clone();
        for row in alive.iter() {
            let hash = hash_of(context, self.input, row);
            let row = usize::from(row);
            let start = context.batch.states[row];
            let count = HEAD + self.registers() / 8;
            let state = states(context.words, start, self.at, count);
            if let Some(hash) = hash {
                self.add(state, hash);
            }
            context.batch.numbers[self.into][row] = self.estimate(state);
        }
    }

    fn add(&self, state: &mut [u64], hash: u64) {
        let [low, high, zeros, registers @ ..] = state else { return };
        let index = (hash >> (64 - self.precision)) as usize;
        let rank = (hash << self.precision).leading_zeros().min(64 - self.precision) + 1;
        let (word, shift) = (index / 8, index % 8 * 8);
        let old = (registers[word] >> shift & 0xff) as u32;
        if rank <= old {
            return;
        }
        registers[word] = registers[word] & !(0xff << shift) | u64::from(rank) << shift;
        let part = |rank: u32| 1_u128 << (64 - rank.min(64));
        let sum = u128::from(*high) << 64 | u128::from(*low);
        let sum = sum.wrapping_sub(part(old)).wrapping_add(part(rank));
        (*low, *high) = (sum as u64, (sum >> 64) as u64);
        *zeros = zeros.wrapping_sub(u64::from(old == 0));
    }

    fn estimate(&self, state: &[u64]) -> f64 {
        let [low, high, zeros, ..] = state else { return f64::NAN };
        let count = self.registers() as f64;
        let alpha = match self.precision {
            4 => 0.673,
            5 => 0.697,
            6 => 0.709,
            _ => 0.7213 / (1.0 + 1.079 / count),
        };
        let sum = u128::from(*high) << 64 | u128::from(*low);
        let harmonic = sum as f64 / 2_f64.powi(64);
        let raw = alpha * count * count / harmonic;
        if raw <= 2.5 * count && *zeros > 0 { count * (count / *zeros as f64).ln() } else { raw }
    }
}

/// The second frequency moment F₂ = Σ f², f being how often each value was seen (Alon, Matias, Szegedy 1996, section 2.2).
///
/// Each counter goes up or down by 1 with each value, as a hash of the value says, so that the expectation of its square is F₂.
/// `averages` squares are averaged, and of `groups` averages the median is taken. One bit of the value's hash under the group's seed
/// is one counter's sign.
#[derive(Debug)]
pub(crate) struct Moment {
    pub(crate) input: Column,
    pub(crate) into: usize,
    pub(crate) averages: usize,
    pub(crate) groups: usize,
    pub(crate) at: usize,
}

/// Most groups.
pub(crate) const GROUPS_MAX: usize = 15;

impl Moment {
    pub(super) fn initial(&self) -> Vec<u64> {
        vec![0; self.averages * self.groups]
    }

    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let alive = context.batch.alive.clone();
        for row in alive.iter() {
            let value = hash_of(context, self.input, row);
            let row = usize::from(row);
            let start = context.batch.states[row];
            let state = states(context.words, start, self.at, self.averages * self.groups);
            if let Some(value) = value {
                for (group, counters) in (1..).zip(state.chunks_exact_mut(self.averages)) {
                    let signs = hash::word(group, value);
                    for (bit, counter) in counters.iter_mut().enumerate() {
                        // 1 goes up, 0 down.
                        let step = (signs >> bit & 1).wrapping_mul(2).wrapping_sub(1);
                        *counter = counter.wrapping_add(step);
                    }
                }
            }
            context.batch.numbers[self.into][row] = self.estimate(state);
        }
    }

    fn estimate(&self, state: &[u64]) -> f64 {
        let mut means = [0.0; GROUPS_MAX];
        let means = &mut means[..self.groups];
        for (mean, counters) in means.iter_mut().zip(state.chunks_exact(self.averages)) {
            let square = |counter: &u64| (counter.cast_signed() as f64).powi(2);
            *mean = counters.iter().map(square).sum::<f64>() / self.averages as f64;
        }
        means.sort_unstable_by(f64::total_cmp);
        means[self.groups / 2]
    }
}

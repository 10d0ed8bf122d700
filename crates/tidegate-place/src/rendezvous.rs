//! The weighted rendezvous hash, in whole numbers.
//!
//! Each member has a cost for a bucket, and the lowest wins (Thaler and Ravishankar 1998): a member that goes leaves the order of the
//! others as it was. The cost is `−log₂(h) / weight` with `h` a hash of both, spread evenly over 0 to 1: an exponential variable whose
//! rate is the weight, so that a member is first with the probability `weight / all weights` (Efraimidis and Spirakis 2006).
//!
//! `f64::ln` may differ by its last bit between two machines, and then two nodes would disagree about an owner. The logarithm is a table
//! that the compiler makes by squaring, with straight lines between its entries: it rises everywhere, and near `h = 1`, where the winners
//! are, the cost is right within 0.2 %.

use std::num::NonZero;

use crate::bucket::Bucket;

/// The part of a hash that is a member's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u64);

impl Seed {
    pub(crate) fn of(id: &[u8]) -> Self {
        Self(hash_of_bytes(0, id))
    }

    /// The cost of a member for a bucket; of two members the one with the lower cost comes first.
    pub(crate) fn cost(self, weight: NonZero<u16>, bucket: Bucket) -> u64 {
        exponential(mix(self.0 ^ mix(bucket.to_u64()))) / u64::from(weight.get())
    }
}

/// Takes a value into a hash.
pub(crate) fn join(hash: u64, value: u64) -> u64 {
    mix(hash ^ mix(value))
}

/// Takes bytes into a hash, with their number.
pub(crate) fn hash_of_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(join(hash, bytes.len() as u64), join)
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014): written out, so that no release places buckets differently.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Bits behind the point of a logarithm.
const FRACTION_BITS: u32 = 56;
/// Bits of a number by which the table is looked up.
const TABLE_BITS: u32 = 8;
/// `log₂(1 + i / 256)`.
static LOGARITHMS: [u64; (1 << TABLE_BITS) + 1] = logarithms();

const fn logarithms() -> [u64; (1 << TABLE_BITS) + 1] {
    let mut table = [0; (1 << TABLE_BITS) + 1];
    let mut entry = 0;
    while entry < 1 << TABLE_BITS {
        // A number from 1 to 2 with 63 bits behind the point. Squaring it doubles its logarithm: the next digit is whether it reached 2.
        let mut number = (1_u128 << 63) + ((entry as u128) << (63 - TABLE_BITS));
        let mut digit = FRACTION_BITS;
        while digit > 0 {
            digit -= 1;
            number = (number * number) >> 63;
            if number >> 64 != 0 {
                number >>= 1;
                table[entry] |= 1 << digit;
            }
        }
        entry += 1;
    }
    table[entry] = 1 << FRACTION_BITS;
    table
}

/// `−log₂(hash / 2⁶⁴)`, above 0 and at most 64, with [`FRACTION_BITS`] behind the point. It never rises with the hash.
fn exponential(hash: u64) -> u64 {
    let hash = hash.max(1);
    let zeros = hash.leading_zeros();
    let mantissa = hash << zeros << 1;
    let entry = (mantissa >> (64 - TABLE_BITS)) as usize;
    let (low, high) = (LOGARITHMS[entry], LOGARITHMS[entry + 1]);
    let rest = u128::from(mantissa << TABLE_BITS);
    let between = ((u128::from(high - low) * rest) >> 64) as u64;
    ((u64::from(zeros) + 1) << FRACTION_BITS) - low - between
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of_float(hash: u64) -> f64 {
        64.0 - (hash as f64).log2()
    }

    #[test]
    fn known_costs_stay_what_they_are() {
        for (hash, expected) in [
            (0, 64 << 56),
            (1, 64 << 56),
            (2, 63 << 56),
            (1 << 63, 1 << 56),
            (3 << 62, 29_906_603_633_551_737),
            (0x0123_4567_89AB_CDEF, 563_042_393_921_790_636),
            (u64::MAX, 1),
        ] {
            assert_eq!(exponential(hash), expected, "{hash:#x}");
        }
    }

    #[test]
    fn a_cost_is_never_nothing_and_fits() {
        let [least, most] = [u64::MAX, 0].map(exponential);
        assert!(least > 0 && most == 64 << FRACTION_BITS, "{least} {most}");
    }

    proptest! {
        #[test]
        fn costs_are_those_of_a_logarithm(hash in 1..=u64::MAX) {
            let (cost, float) = (exponential(hash) as f64 / (1_u64 << FRACTION_BITS) as f64, of_float(hash));
            prop_assert!((cost - float).abs() < 3e-6, "{hash:#x}: {cost} {float}");
        }

        #[test]
        fn winners_have_the_right_cost(below in 1_u64..1 << 56) {
            // As ln(1 − x) it needs no digits that a float has lost.
            let float = -(-(below as f64 / 2_f64.powi(64))).ln_1p() / 2_f64.ln();
            let cost = exponential(u64::MAX - below + 1) as f64 / 2_f64.powi(56);
            // A cost is a whole number, so that one unit is lost at the most.
            prop_assert!((cost - float).abs() <= float * 0.002 + 2_f64.powi(-56), "{below:#x}: {cost} {float}");
        }

        #[test]
        fn a_higher_hash_never_costs_more(hash: u64, more: u64) {
            let more = hash.saturating_add(more >> (more % 64));
            prop_assert!(exponential(more) <= exponential(hash));
        }
    }
}

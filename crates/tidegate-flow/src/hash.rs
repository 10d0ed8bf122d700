//! The hashes of this crate: of keys, and of the values that sketches count.
//!
//! Words of 8 bytes, little-endian, the last one filled up with zeros, are mixed in one after the other, and the length goes into the
//! beginning. Of sketches it is fixed, since snapshots hold them. Of the texts of keys the words are also multiplied with a secret,
//! unknown to those who choose keys: texts that fall together whatever is mixed in before them would make one place of the table hold
//! them all.

const MULTIPLIER: u64 = 0xff51_afd7_ed55_8ccd;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of `bytes` under `seed`.
#[inline]
pub(crate) fn bytes(seed: u64, bytes: &[u8]) -> u64 {
    mixed(seed, bytes, absorb)
}

/// The hash of a key's text under a secret `seed`.
#[inline]
pub(crate) fn text(seed: u64, bytes: &[u8]) -> u64 {
    let secret = finish(seed ^ GOLDEN) | 1;
    mixed(seed, bytes, |state, word| {
        let product = u128::from(state ^ word) * u128::from(secret);
        (product as u64) ^ ((product >> 64) as u64) ^ state.rotate_left(23)
    })
}

/// The hash of a value that a sketch or filter counts. Without a seed it is the fixed one of [`bytes`]; with one, values that fall
/// together cannot be chosen without knowing it.
#[inline]
pub(crate) fn value(seed: u64, value: &[u8]) -> u64 {
    if seed == 0 { bytes(0, value) } else { text(seed, value) }
}

#[inline]
fn mixed(seed: u64, bytes: &[u8], absorb: impl Fn(u64, u64) -> u64) -> u64 {
    let mut state = seed ^ (bytes.len() as u64).wrapping_mul(GOLDEN);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = absorb(state, u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        state = absorb(state, u64::from_le_bytes(last));
    }
    finish(state)
}

/// The hash of the 8 bytes of `word`, little-endian.
#[inline(always)]
pub(crate) fn word(seed: u64, word: u64) -> u64 {
    finish(absorb(seed ^ 8_u64.wrapping_mul(GOLDEN), word))
}

#[inline(always)]
fn absorb(state: u64, word: u64) -> u64 {
    let mixed = (state ^ word).wrapping_mul(MULTIPLIER);
    mixed ^ (mixed >> 32)
}

/// A bijection in which each bit of what comes out hangs on each that went in.
#[inline(always)]
pub(crate) fn finish(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_hashes_as_its_bytes() {
        for value in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(word(7, value), bytes(7, &value.to_le_bytes()));
        }
    }

    /// Pairs of bits that cancel each other in [`bytes`] whatever the seed is, about every second time.
    #[test]
    fn texts_that_fall_together_in_the_fixed_hash_do_not_as_keys() {
        let pairs = 12;
        for seed in [1, 0x1234_5678_9abc_def0, u64::MAX / 3] {
            let mut all = std::collections::BTreeSet::new();
            for choice in 0..1_u32 << pairs {
                let mut key = vec![b'a'; 16 * pairs];
                for pair in (0..pairs).filter(|pair| choice >> pair & 1 == 1) {
                    for at in [7, 11, 15] {
                        key[16 * pair + at] = b'!';
                    }
                }
                all.insert(text(seed, &key));
            }
            assert_eq!(all.len(), 1 << pairs, "seed {seed}");
        }
    }

    #[test]
    fn length_seed_and_place_all_count() {
        let all = [
            bytes(0, b""),
            bytes(0, b"\0"),
            bytes(0, b"\0\0"),
            bytes(1, b""),
            bytes(0, b"abcdefgh1"),
            bytes(0, b"1abcdefgh"),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{index}");
        }
    }
}

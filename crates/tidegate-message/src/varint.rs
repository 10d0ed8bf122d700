//! Integers in as few bytes as they need: seven bits a byte, the lowest first (LEB128), signs folded into the lowest bit.

/// Most bytes of one integer.
pub const BYTES_MAX: usize = 10;

/// Appends `value`.
#[inline]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes `value` at `at`, and nothing if it is zero; returns where it ends. The byte after it has no meaning then.
#[inline]
pub fn put_at(out: &mut [u8], at: usize, value: u64) -> usize {
    if value >= 1 << 14 {
        return put_long_at(out, at, value);
    }
    // Which of the three lengths it is, is hard to foresee, so that nothing depends on it.
    let has_second = u16::from(value >= 0x80);
    let both = (value & 0x7f | (value >> 7) << 8) as u16 | has_second << 7;
    out[at..at + 2].copy_from_slice(&both.to_le_bytes());
    at + usize::from(value > 0) + usize::from(has_second)
}

fn put_long_at(out: &mut [u8], mut at: usize, mut value: u64) -> usize {
    while value >= 0x80 {
        out[at] = value as u8 | 0x80;
        (value, at) = (value >> 7, at + 1);
    }
    out[at] = value as u8;
    at + 1
}

/// Takes an integer from the front of `bytes`; `None` if they end within it or it does not fit 64 bits.
#[inline(always)] // Else its result goes by way of memory.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    *bytes = rest;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    let (&second, rest) = bytes.split_first()?;
    if second < 0x80 {
        *bytes = rest;
        return Some(u64::from(second) << 7 | u64::from(first & 0x7f));
    }
    take_more(bytes, u64::from(first & 0x7f))
}

#[cold]
fn take_more(bytes: &mut &[u8], mut value: u64) -> Option<u64> {
    for index in 1..BYTES_MAX as u32 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        // The tenth byte holds the 64th bit and nothing else.
        if index == BYTES_MAX as u32 - 1 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// How many bytes [`put`] writes for `value`.
#[inline]
pub fn len(value: u64) -> u32 {
    (64 - (value | 1).leading_zeros()).div_ceil(7)
}

/// Folds the sign into the lowest bit, so that small magnitudes are small: 0, -1, 1, -2 become 0, 1, 2, 3.
#[inline]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The number that [`zigzag`] was given.
#[inline]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_integer_comes_back_and_takes_the_bytes_that_were_told() {
        let widths = (1..64).flat_map(|bits| [(1 << bits) - 1, 1 << bits]);
        for value in widths.chain([0, u64::MAX, 0x1234_5678_9abc_def0, 0x5a_5a5a_5a5a_5a5a]) {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out.len() as u32, len(value), "{value}");
            let mut rest = out.as_slice();
            assert_eq!(take(&mut rest), Some(value));
            assert!(rest.is_empty());
            let mut line = [0xff; 3 + BYTES_MAX];
            let end = put_at(&mut line, 3, value);
            let written: &[u8] = if value == 0 { &[] } else { &out };
            assert_eq!(&line[3..end], written, "{value}");
        }
    }

    #[test]
    fn truncated_or_too_large_bytes_are_not_an_integer() {
        for (bytes, note) in [
            (&[][..], "nothing"),
            (&[0x80][..], "one byte that promises another"),
            (&[0xff; 10][..], "ten bytes that promise another"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02][..], "a 65th bit"),
        ] {
            assert_eq!(take(&mut { bytes }), None, "{note}");
        }
    }

    proptest! {
        #[test]
        fn signs_come_back(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }

        #[test]
        fn any_bytes_are_an_integer_or_none(bytes: Vec<u8>) {
            let mut rest = bytes.as_slice();
            while take(&mut rest).is_some() {}
        }
    }
}

//! The little of DER (X.690) that `webpki` does not read of certificates and revocation lists.
//!
//! Always true: bytes of others reach no panic; unreadable bytes give none.

use tidegate_message::{CivilDate, Instant};

pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
/// The tag of an object identifier.
pub const OBJECT_IDENTIFIER: u8 = 0x06;
/// The tag of a sequence.
pub const SEQUENCE: u8 = 0x30;
/// The tag of a set.
pub const SET: u8 = 0x31;
/// The first explicitly tagged field of a sequence: the version of a certificate, the extensions of a revocation list.
pub(crate) const CONTEXT_0: u8 = 0xa0;
pub(crate) const UTC_TIME: u8 = 0x17;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;

/// Tag, content and what follows of the first DER element.
pub fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ` of 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
pub(crate) fn time(tag: u8, text: &[u8]) -> Option<Instant> {
    let digits = text.strip_suffix(b"Z")?;
    let all: Option<Vec<i64>> =
        digits.iter().map(|digit| char::from(*digit).to_digit(10).map(i64::from)).collect();
    let all = all?;
    let (year, rest) = match (tag, all.as_slice()) {
        (UTC_TIME, [a, b, rest @ ..]) => {
            let year = a * 10 + b;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        (GENERALIZED_TIME, [a, b, c, d, rest @ ..]) => (a * 1000 + b * 100 + c * 10 + d, rest),
        _ => return None,
    };
    let [month, day, hour, minute, second] = rest
        .chunks_exact(2)
        .map(|pair| pair[0] * 10 + pair[1])
        .collect::<Vec<i64>>()
        .try_into()
        .ok()?;
    if rest.len() != 10 || !(1..=12).contains(&month) {
        return None;
    }
    let days = CivilDate { year, month, day }.days();
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    // Beyond what an instant holds is as good as never.
    Some(Instant::from_nanos(seconds.saturating_mul(1_000_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (tag, text, seconds) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "000229120000Z", Some(951_825_600)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(-631_152_000)),
            (GENERALIZED_TIME, "20380119031408Z", Some(2_147_483_648)),
            (GENERALIZED_TIME, "380119031408Z", None),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "700101000000", None),
            (SEQUENCE, "700101000000Z", None),
        ] {
            let expected = seconds.map(|seconds: i64| Instant::from_nanos(seconds * 1_000_000_000));
            assert_eq!(time(tag, text.as_bytes()), expected, "{text}");
        }
    }
}

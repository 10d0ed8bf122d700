//! Quantities with their units: `100ms`, `256MiB`, `200Mbit`.
//!
//! A quantity is a number without a sign, such as `1`, `1.5` or `1e3`, and a unit, with blanks between them or not. A number alone
//! is refused: `100` may mean milliseconds or seconds. Parts of the smallest unit are left out.

use std::{fmt, str::FromStr, time::Duration};

/// A number of bytes, written with a unit of 1000 (`kB MB GB`, `KB` as well) or 1024 (`KiB MiB GiB`), or `B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

type Units = [(&'static str, u64)];

/// A unit that another one ends with comes after that.
const BYTES: &Units = &[
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("kB", 1000),
    ("B", 1),
];

const BITS: &Units = &[("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1000), ("bit", 1)];

/// In nanoseconds.
const TIMES: &Units = &[
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
    ("s", 1_000_000_000),
];

/// A duration such as `100ms`, `1.5s`, `2min` or `1d`; none is longer than 584 years.
///
/// # Errors
/// [`QuantityError::Duration`] for anything else, a number without a unit included.
pub fn duration(text: &str) -> Result<Duration, QuantityError> {
    let nanos = quantity(text, TIMES).ok_or_else(|| QuantityError::Duration(text.into()))?;
    Ok(Duration::from_nanos(nanos))
}

/// Bits in a second, written with `bit`, `kbit`, `Mbit` or `Gbit`, `/s` allowed.
///
/// # Errors
/// [`QuantityError::Rate`] for anything else.
pub fn bits_per_second(text: &str) -> Result<u64, QuantityError> {
    quantity(text.strip_suffix("/s").unwrap_or(text), BITS)
        .ok_or_else(|| QuantityError::Rate(text.into()))
}

impl FromStr for ByteCount {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        quantity(text, BYTES).map(Self).ok_or_else(|| QuantityError::Bytes(text.into()))
    }
}

/// The shortest text that [`duration`] reads back.
pub fn show_duration(duration: Duration) -> String {
    show(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), TIMES)
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.0, BYTES))
    }
}

fn quantity(text: &str, units: &Units) -> Option<u64> {
    let of_unit = |(unit, factor): &(&str, u64)| Some((text.strip_suffix(unit)?, *factor));
    let (number, factor) = units.iter().find_map(of_unit)?;
    let number = number.trim_end();
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse().ok()?),
        None => (number, 0_i32),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, fraction].concat();
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value = digits.parse::<u128>().ok()?.checked_mul(factor.into())?;
    let places = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_u128.checked_pow(places.unsigned_abs())?;
    let value = if places < 0 { value / power } else { value.checked_mul(power)? };
    u64::try_from(value).ok()
}

/// In the largest unit that leaves a whole number.
fn show(value: u64, units: &Units) -> String {
    let fits =
        |&&(_, factor): &&(&str, u64)| value.is_multiple_of(factor) && value > 0 || factor == 1;
    let largest = units.iter().filter(fits).max_by_key(|(_, factor)| *factor);
    let (unit, factor) = largest.expect("each kind has a unit of one");
    format!("{}{unit}", value / factor)
}

/// A text that is not a quantity of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a duration.
    #[error("{0:?} is not a duration: a number with ns, us, ms, s, min, h or d, such as 100ms")]
    Duration(Box<str>),
    /// Not a number of bytes.
    #[error("{0:?} is not a size: a number with B, kB, MB, GB, KiB, MiB or GiB, such as 256MiB")]
    Bytes(Box<str>),
    /// Not a rate.
    #[error("{0:?} is not a rate: a number with bit, kbit, Mbit or Gbit, such as 200Mbit")]
    Rate(Box<str>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_need_their_unit() {
        for (text, expected) in [
            ("100ms", Some(100_000_000)),
            ("1.5s", Some(1_500_000_000)),
            ("0.001s", Some(1_000_000)),
            ("2min", Some(120_000_000_000)),
            ("10 min", Some(600_000_000_000)),
            ("1d", Some(86_400_000_000_000)),
            ("0ms", Some(0)),
            ("7us", Some(7000)),
            ("1e3ms", Some(1_000_000_000)),
            ("1.5E-3s", Some(1_500_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("1.9ns", Some(1)),
            ("18446744073709551615ns", Some(u64::MAX)),
            ("18446744073709551616ns", None),
            ("0.1234567890123456789s", Some(123_456_789)),
            ("100", None),
            ("-1s", None),
            ("+1s", None),
            ("ms", None),
            (".s", None),
            ("1.2.3s", None),
            ("1es", None),
            ("1e99d", None),
            ("1e-99d", None),
            ("NaNs", None),
            ("infs", None),
            ("100MS", None),
            ("1 0s", None),
            ("\u{661}s", None), // a digit, but no ASCII one
            ("9999999999999h", None),
            ("", None),
        ] {
            let nanos = duration(text).ok().map(|duration| duration.as_nanos());
            assert_eq!(nanos, expected.map(u128::from), "{text:?}");
        }
        for (text, expected) in [
            ("256MiB", Some(256 << 20)),
            ("1.5GB", Some(1_500_000_000)),
            ("10kB", Some(10_000)),
            ("10KB", Some(10_000)),
            ("64KiB", Some(65_536)),
            ("7B", Some(7)),
            ("256", None),
            ("1mB", None),
        ] {
            assert_eq!(text.parse().ok(), expected.map(ByteCount), "{text:?}");
        }
        assert_eq!(bits_per_second("200Mbit/s"), Ok(200_000_000));
        assert_eq!(bits_per_second("1.5 Gbit"), Ok(1_500_000_000));
        assert!(bits_per_second("200MB").is_err());
    }

    #[test]
    fn an_error_names_the_text_and_the_way_out() {
        assert_eq!(
            duration("100").unwrap_err().to_string(),
            "\"100\" is not a duration: a number with ns, us, ms, s, min, h or d, such as 100ms"
        );
    }

    #[test]
    fn shown_in_the_largest_unit_and_read_back() {
        for (nanos, expected) in [
            (0, "0ns"),
            (1, "1ns"),
            (1_500_000_000, "1500ms"),
            (60_000_000_000, "1min"),
            (604_800_000_000_000, "7d"),
            (u64::MAX, "18446744073709551615ns"),
        ] {
            let shown = show_duration(Duration::from_nanos(nanos));
            assert_eq!(shown, expected);
            assert_eq!(duration(&shown), Ok(Duration::from_nanos(nanos)));
        }
        for (bytes, expected) in
            [(0, "0B"), (1 << 30, "1GiB"), (1_000_000, "1MB"), (3000, "3kB"), (1025, "1025B")]
        {
            assert_eq!(ByteCount(bytes).to_string(), expected);
            assert_eq!(expected.parse(), Ok(ByteCount(bytes)));
        }
    }
}

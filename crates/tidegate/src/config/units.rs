//! Quantities with their units: `100ms`, `256MiB`, `200Mbit`.
//!
//! A number alone is refused: nobody can tell whether `100` means milliseconds or seconds.

use std::{fmt, str::FromStr, time::Duration};

/// A number of bytes, written with a unit of 1000 (`kB MB GB`) or 1024 (`KiB MiB GiB`), or `B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

/// A rate of bits in a second, written with `bit`, `kbit`, `Mbit` or `Gbit`, `/s` allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

const BYTES: &[(&str, u64)] = &[
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
    ("B", 1),
];

const BITS: &[(&str, u64)] =
    &[("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1000), ("bit", 1)];

/// In nanoseconds.
const TIMES: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

impl FromStr for ByteCount {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        quantity(text, BYTES).map(Self).ok_or(UnitError::Bytes)
    }
}

impl FromStr for BitRate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        quantity(text.strip_suffix("/s").unwrap_or(text), BITS).map(Self).ok_or(UnitError::Rate)
    }
}

/// A duration such as `100ms`, `1.5s` or `2min`; none is longer than 584 years.
///
/// # Errors
/// [`UnitError::Duration`] for anything else, a number without a unit included.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    quantity(text, TIMES).map(Duration::from_nanos).ok_or(UnitError::Duration)
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

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.0, BITS))
    }
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    match number.split_once('.') {
        None => number.parse::<u64>().ok()?.checked_mul(*factor),
        Some((whole, fraction)) if !whole.is_empty() && (1..=9).contains(&fraction.len()) => {
            let scale = 10u64.pow(u32::try_from(fraction.len()).ok()?);
            let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(*factor);
            let whole = whole.parse::<u64>().ok()?.checked_mul(*factor)?;
            whole.checked_add(u64::try_from(part / u128::from(scale)).ok()?)
        }
        Some(_) => None,
    }
}

/// In the largest unit that leaves a whole number.
fn show(value: u64, units: &[(&str, u64)]) -> String {
    let fits = |&&(_, factor): &&(&str, u64)| value != 0 && value.is_multiple_of(factor);
    let largest = units.iter().filter(fits).max_by_key(|(_, factor)| *factor);
    let (unit, factor) = largest.unwrap_or(&units[units.len() - 1]);
    format!("{}{unit}", value / factor)
}

/// A text that is no quantity of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// No duration.
    #[error("a duration is a number with ns, us, ms, s, min or h, such as 100ms")]
    Duration,
    /// No number of bytes.
    #[error("a size is a number with B, kB, MB, GB, KiB, MiB or GiB, such as 256MiB")]
    Bytes,
    /// No rate.
    #[error("a rate is a number with bit, kbit, Mbit or Gbit, such as 200Mbit")]
    Rate,
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
            ("2 min", Some(120_000_000_000)),
            ("0ms", Some(0)),
            ("100", None),
            ("-1s", None),
            ("ms", None),
            (".5s", None),
            ("1.s", None),
            ("1.2.3s", None),
            ("1e3ms", None),
            ("100MS", None),
            ("9999999999999h", None),
            ("", None),
        ] {
            let nanos = duration(text).ok().map(|duration| duration.as_nanos());
            assert_eq!(nanos, expected, "{text:?}");
        }
        assert_eq!("256MiB".parse(), Ok(ByteCount(256 << 20)));
        assert_eq!("1.5GB".parse(), Ok(ByteCount(1_500_000_000)));
        assert_eq!("256".parse::<ByteCount>(), Err(UnitError::Bytes));
        assert_eq!("200Mbit/s".parse(), Ok(BitRate(200_000_000)));
        assert_eq!("200MB".parse::<BitRate>(), Err(UnitError::Rate));
    }

    #[test]
    fn shown_in_the_largest_unit_and_read_back() {
        for (nanos, expected) in
            [(0, "0ns"), (1, "1ns"), (1_500_000_000, "1500ms"), (60_000_000_000, "1min")]
        {
            let shown = show_duration(Duration::from_nanos(nanos));
            assert_eq!(shown, expected);
            assert_eq!(duration(&shown), Ok(Duration::from_nanos(nanos)));
        }
        for (bytes, expected) in [(1 << 30, "1GiB"), (1_000_000, "1MB"), (1025, "1025B")] {
            assert_eq!(ByteCount(bytes).to_string(), expected);
            assert_eq!(expected.parse(), Ok(ByteCount(bytes)));
        }
        assert_eq!(BitRate(20_000_000).to_string(), "20Mbit");
    }
}

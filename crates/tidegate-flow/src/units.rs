//! Quantities with their units in configuration: `100ms`, `64KiB`.
//!
//! A number alone is refused: nobody can tell whether `100` means milliseconds or seconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};

/// In nanoseconds.
const TIMES: &[(&str, f64)] = &[
    ("min", 60e9),
    ("ms", 1e6),
    ("us", 1e3),
    ("ns", 1.0),
    ("d", 86_400e9),
    ("h", 3600e9),
    ("s", 1e9),
];

const BYTES: &[(&str, f64)] = &[
    ("GiB", (1_u64 << 30) as f64),
    ("MiB", (1_u64 << 20) as f64),
    ("KiB", 1024.0),
    ("GB", 1e9),
    ("MB", 1e6),
    ("kB", 1e3),
    ("B", 1.0),
];

/// A duration such as `100ms`, `1.5s`, `2min` or `1d`; none for anything else.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    quantity(text, TIMES).map(Duration::from_nanos)
}

/// For `serde(deserialize_with)`.
pub(crate) fn time_from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    duration_from(deserializer).map(|time| time.unwrap_or_default())
}

/// For `serde(deserialize_with)`.
pub(crate) fn duration_from<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match duration(&text) {
        Some(duration) => Ok(Some(duration)),
        None => Err(D::Error::custom(format!(
            "{text:?} is no duration; write a number and ns, us, ms, s, min, h or d, such as \"10min\""
        ))),
    }
}

/// For `serde(deserialize_with)`.
pub(crate) fn bytes_from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    quantity(&text, BYTES).ok_or_else(|| {
        D::Error::custom(format!(
            "{text:?} is no size; write a number and B, kB, MB, GB, KiB, MiB or GiB, such as \"64KiB\""
        ))
    })
}

fn quantity(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (number, scale) =
        units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    let number = number.trim_end();
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value = number.parse::<f64>().ok()? * scale;
    // 2^63 nanoseconds are 292 years.
    (value < 9.2e18 && value.fract() == 0.0).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_with_their_units() {
        for (text, expected) in [
            ("100ms", Some(100_000_000)),
            ("1.5s", Some(1_500_000_000)),
            ("10 min", Some(600_000_000_000)),
            ("1d", Some(86_400_000_000_000)),
            ("100", None),
            ("ms", None),
            ("-1s", None),
            ("1e99d", None),
            ("NaNs", None),
        ] {
            assert_eq!(duration(text), expected.map(Duration::from_nanos), "{text:?}");
        }
        assert_eq!(quantity("64KiB", BYTES), Some(65_536));
        assert_eq!(quantity("64", BYTES), None);
    }
}

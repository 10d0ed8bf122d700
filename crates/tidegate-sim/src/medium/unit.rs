//! Quantities as a scenario writes them: `200Mbit`, `5ms`, `256KiB`, `0.5%`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};
use tidegate_message::quantity::{self, ByteCount};

/// A quantity that is written as a number and a unit.
pub trait FromText: Sized {
    /// The form of such a text, for errors.
    const EXPECTED: &'static str;

    /// The quantity in text form, `None` if the text is no such quantity.
    fn from_text(text: &str) -> Option<Self>;

    /// As [`FromText::from_text`], with an error that says what was expected.
    ///
    /// # Errors
    /// [`UnitError`] if the text is no such quantity.
    fn parse_text(text: &str) -> Result<Self, UnitError> {
        Self::from_text(text)
            .ok_or_else(|| UnitError { text: text.into(), expected: Self::EXPECTED })
    }
}

/// A text that is no quantity of the kind wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct UnitError {
    /// The text.
    pub text: String,
    /// The expected form.
    pub expected: &'static str,
}

/// A rate in bits per second; text such as `200Mbit` or `1.5Gbit/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl Rate {
    /// The rate of that many million bits per second.
    pub const fn mbit(mbit: u64) -> Self {
        Self(mbit * 1_000_000)
    }

    /// The rate times a factor.
    pub fn scaled(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor).round() as u64)
    }

    /// Time that `bytes` need at this rate, `None` at rate zero.
    pub fn time_of(self, bytes: usize) -> Option<Duration> {
        let nanos = (bytes as u128 * 8_000_000_000).checked_div(u128::from(self.0))?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bits if bits >= 1_000_000 => write!(f, "{}Mbit", bits as f64 / 1e6),
            bits if bits >= 1_000 => write!(f, "{}kbit", bits as f64 / 1e3),
            bits => write!(f, "{bits}bit"),
        }
    }
}

impl FromText for Rate {
    const EXPECTED: &'static str = "a rate: a number with bit, kbit, Mbit or Gbit, as \"200Mbit\"";

    fn from_text(text: &str) -> Option<Self> {
        let bits = quantity::bits_per_second(text).ok()?;
        // A terabit per second is beyond anything a scenario can mean.
        (bits <= 1_000_000_000_000).then_some(Self(bits))
    }
}

impl FromText for Duration {
    const EXPECTED: &'static str =
        "a duration: a number with ns, us, ms, s, min, h or d, at most a day, as \"5ms\"";

    fn from_text(text: &str) -> Option<Self> {
        quantity::duration(text).ok().filter(|time| time.as_secs_f64() <= 86_400.0)
    }
}

impl FromText for ByteCount {
    const EXPECTED: &'static str = "a byte count: a number with B, kB, MB, GB, KiB, MiB or GiB, at most 4096MiB, as \"256KiB\"";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().filter(|bytes| *bytes <= Self(4 << 30))
    }
}

/// A probability from 0 to 1; text such as `0.5%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Probability(f64);

impl Probability {
    /// It never happens.
    pub const NEVER: Self = Self(0.0);

    /// The probability as a share from 0 to 1, `None` outside.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self(share))
    }

    /// The share from 0 to 1.
    pub const fn share(self) -> f64 {
        self.0
    }
}

impl FromText for Probability {
    const EXPECTED: &'static str = "a share from \"0%\" to \"100%\"";

    fn from_text(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?.trim_end();
        let is_plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
        Self::new(number.parse::<f64>().ok().filter(|_| is_plain)? * 0.01)
    }
}

/// Deserializes a quantity from its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<Q>(pub(crate) Q);

impl<'de, Q: FromText> Deserialize<'de> for Text<Q> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Q::parse_text(&text).map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_with_their_unit_only() {
        for (text, rate) in [
            ("200Mbit", Some(200_000_000)),
            ("1.5 Gbit/s", Some(1_500_000_000)),
            ("64kbit", Some(64_000)),
            ("0bit", Some(0)),
            ("200", None),
            ("-1Mbit", None),
            ("NaNMbit", None),
            ("Mbit", None),
            ("9999Gbit", None),
        ] {
            assert_eq!(Rate::from_text(text), rate.map(Rate), "{text}");
        }
        for (text, nanos) in [
            ("5ms", Some(5_000_000)),
            ("100us", Some(100_000)),
            ("1.5s", Some(1_500_000_000)),
            ("2min", Some(120_000_000_000)),
            ("5", None),
            ("1e3ms", Some(1_000_000_000)),
            ("24h", Some(86_400_000_000_000)),
            ("25h", None),
            ("2000min", None),
        ] {
            assert_eq!(Duration::from_text(text), nanos.map(Duration::from_nanos), "{text}");
        }
        assert_eq!(ByteCount::from_text("256KiB"), Some(ByteCount(262_144)));
        assert_eq!(ByteCount::from_text("256KB"), Some(ByteCount(256_000)));
        assert_eq!(Probability::from_text("5%").map(Probability::share), Some(0.05));
        assert_eq!(Probability::from_text("101%"), None);
        assert_eq!(
            Rate::parse_text("fast").unwrap_err().to_string(),
            "\"fast\" is not a rate: a number with bit, kbit, Mbit or Gbit, as \"200Mbit\""
        );
    }

    #[test]
    fn a_packet_takes_its_bits_over_the_rate() {
        assert_eq!(Rate::mbit(12).time_of(1500), Some(Duration::from_millis(1)));
        assert_eq!(Rate(0).time_of(1500), None);
    }
}

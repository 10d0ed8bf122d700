//! A point in time.

use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

/// Nanoseconds since the Unix epoch, as an `i64` (years 1677 to 2262).
///
/// Capture times, deadlines and receive times all use it. Cores are handed the current instant as
/// `now` and never read a clock. Arithmetic saturates: a hostile timestamp cannot overflow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(i64);

impl Instant {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The earliest instant that can be named.
    pub const MIN: Self = Self(i64::MIN);
    /// The latest instant that can be named.
    pub const MAX: Self = Self(i64::MAX);

    /// The instant `nanos` nanoseconds after the Unix epoch.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The instant `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Nanoseconds from `other` to `self`, negative if `other` is later.
    pub const fn nanos_since(self, other: Self) -> i64 {
        self.0.saturating_sub(other.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self)
    }
}

/// Seconds since the epoch with nine decimals: `1700000000.250000000`.
impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let nanos = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
        assert_eq!(Instant::MIN - Duration::MAX, Instant::MIN);
        assert_eq!(Instant::from_millis(1).since(Instant::from_millis(2)), Duration::ZERO);
        assert_eq!(Instant::MAX.nanos_since(Instant::MIN), i64::MAX);
    }

    #[test]
    fn shows_seconds_with_nine_decimals() {
        assert_eq!(Instant::from_nanos(1_500_000_001).to_string(), "1.500000001");
        assert_eq!(Instant::from_nanos(-1).to_string(), "-0.000000001");
    }
}

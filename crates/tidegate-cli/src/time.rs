//! Points in time as people write them.

use std::time::Duration;

use tidegate_message::{CivilTime, Instant, quantity};

/// A point in time: absolute, or before or after now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TimePoint {
    /// As it is.
    At(Instant),
    /// This long before now.
    Ago(Duration),
    /// This long after now.
    Ahead(Duration),
}

impl TimePoint {
    /// The instant, seen from `now`.
    pub(crate) fn resolve(self, now: Instant) -> Instant {
        match self {
            Self::At(at) => at,
            Self::Ago(time) => now - time,
            Self::Ahead(time) => now + time,
        }
    }
}

/// Reads `-30s`, `+1min`, `now`, `2026-05-04T13:05:06.789Z` (or with an offset such as `+02:00`), seconds with
/// nine decimals as commands print them, or nanoseconds since 1970.
///
/// # Errors
/// [`TimeError`] for anything else.
pub(crate) fn parse(text: &str) -> Result<TimePoint, TimeError> {
    if text == "now" {
        return Ok(TimePoint::Ago(Duration::ZERO));
    }
    if let Some(rest) = text.strip_prefix('-') {
        return quantity::duration(rest).map(TimePoint::Ago).map_err(|_| TimeError);
    }
    if let Some(rest) = text.strip_prefix('+') {
        return quantity::duration(rest).map(TimePoint::Ahead).map_err(|_| TimeError);
    }
    absolute(text).map(TimePoint::At).ok_or(TimeError)
}

fn absolute(text: &str) -> Option<Instant> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().map(Instant::from_nanos);
    }
    if let Some((seconds, nanos)) = text.split_once('.')
        && nanos.len() == 9
        && [seconds, nanos].iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()))
    {
        let seconds: i64 = seconds.parse().ok()?;
        return seconds
            .checked_mul(1_000_000_000)?
            .checked_add(nanos.parse().ok()?)
            .map(Instant::from_nanos);
    }
    civil(text)
}

/// A date and a time of day with its zone: without one, people may mean another than a computer does.
fn civil(text: &str) -> Option<Instant> {
    let time = CivilTime::parse(text.as_bytes()).filter(|time| time.has_zone)?;
    i64::try_from(time.nanos).ok().map(Instant::from_nanos)
}

/// A text that is no point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a time is written -30s, now, 2026-05-04T13:05:06Z, or as nanoseconds since 1970")]
pub(crate) struct TimeError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_times_in_many_ways() {
        let at = |nanos| Ok(TimePoint::At(Instant::from_nanos(nanos)));
        for (text, expected) in [
            ("now", Ok(TimePoint::Ago(Duration::ZERO))),
            ("-30s", Ok(TimePoint::Ago(Duration::from_secs(30)))),
            ("+1min", Ok(TimePoint::Ahead(Duration::from_secs(60)))),
            ("1700000000000000000", at(1_700_000_000_000_000_000)),
            ("1700000000.250000000", at(1_700_000_000_250_000_000)),
            ("1970-01-01T00:00:00Z", at(0)),
            ("2023-11-14T22:13:20Z", at(1_700_000_000_000_000_000)),
            ("2023-11-14t23:13:20.25+01:00", at(1_700_000_000_250_000_000)),
            ("2024-02-29 12:00:00Z", at(1_709_208_000_000_000_000)),
            ("2023-02-29T12:00:00Z", Err(TimeError)),
            ("2023-00-01T12:00:00Z", Err(TimeError)),
            ("2023-11-14T24:13:20Z", Err(TimeError)),
            ("2023-11-14T22:13:20", Err(TimeError)),
            ("2023-11-14T22:13:20.Z", Err(TimeError)),
            ("2023-11-14T22:13:20+1:00", Err(TimeError)),
            ("-30", Err(TimeError)),
            ("é023-11-14T22:13:20Z", Err(TimeError)),
            ("", Err(TimeError)),
            ("99999999999999999999", Err(TimeError)),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
        let now = Instant::from_millis(10_000);
        assert_eq!(parse("-3s").unwrap().resolve(now), Instant::from_millis(7000));
    }
}

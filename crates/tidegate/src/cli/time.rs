//! Points in time as people write them.

use std::time::Duration;

use tidegate_message::Instant;

use crate::config::units;

/// A point in time: absolute, or before or after now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TimePoint {
    /// As it is.
    At(Instant),
    /// This long before now.
    Ago(Duration),
    /// This long after now.
    Ahead(Duration),
}

impl TimePoint {
    /// The instant, seen from `now`.
    pub(super) fn resolve(self, now: Instant) -> Instant {
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
pub(super) fn parse(text: &str) -> Result<TimePoint, TimeError> {
    if text == "now" {
        return Ok(TimePoint::Ago(Duration::ZERO));
    }
    if let Some(rest) = text.strip_prefix('-') {
        return units::duration(rest).map(TimePoint::Ago).map_err(|_| TimeError);
    }
    if let Some(rest) = text.strip_prefix('+') {
        return units::duration(rest).map(TimePoint::Ahead).map_err(|_| TimeError);
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
    rfc3339(text)
}

/// RFC 3339, section 5.6, without leap seconds.
fn rfc3339(text: &str) -> Option<Instant> {
    let number = |range: std::ops::Range<usize>, max: i64| -> Option<i64> {
        let part = text.get(range).filter(|part| part.bytes().all(|b| b.is_ascii_digit()))?;
        part.parse().ok().filter(|&number| number <= max)
    };
    let mark = |at: usize, among: &str| text.get(at..=at).filter(|mark| among.contains(*mark));
    let (year, month, day) = (number(0..4, 9999)?, number(5..7, 12)?, number(8..10, 31)?);
    let (hour, minute, second) = (number(11..13, 23)?, number(14..16, 59)?, number(17..19, 59)?);
    for (at, among) in [(4, "-"), (7, "-"), (10, "Tt "), (13, ":"), (16, ":")] {
        mark(at, among)?;
    }
    if month == 0 || day == 0 || day > days_of(year, month) {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 || digits > 9 {
            return None;
        }
        nanos = format!("{:0<9}", &fraction[..digits]).parse().ok()?;
        rest = &fraction[digits..];
    }
    let offset_seconds = match rest {
        "Z" | "z" => 0,
        _ => {
            let at = text.len() - rest.len();
            let sign = if mark(at, "+-")? == "+" { 1 } else { -1 };
            mark(at + 3, ":")?;
            if rest.len() != 6 {
                return None;
            }
            sign * (number(at + 1..at + 3, 23)? * 3600 + number(at + 4..at + 6, 59)? * 60)
        }
    };
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    (seconds - offset_seconds)
        .checked_mul(1_000_000_000)?
        .checked_add(nanos)
        .map(Instant::from_nanos)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01; counted in years that begin in March, so that the leap day is the last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    // 719468 days lie between 0000-03-01 and 1970-01-01.
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

/// A text that is no point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a time is written -30s, now, 2026-05-04T13:05:06Z, or as nanoseconds since 1970")]
pub(super) struct TimeError;

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

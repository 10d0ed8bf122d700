//! Times in payloads: numbers of a unit since the Unix epoch, or text such as `2013-01-13T23:36:00.5+01:00`.

use crate::{
    number::{self, NumberError},
    spec::TimeUnit,
};

/// Seconds since the Unix epoch, as `text` says: a number of `unit`, or the form of RFC 3339, in which the seconds, the zone
/// (UTC then) and the `T` (a blank then) may be left out.
///
/// # Errors
/// As for a number, also for a date that there is not.
pub(crate) fn parse(text: &[u8], unit: TimeUnit) -> Result<f64, NumberError> {
    let text = text.trim_ascii();
    // Four digits: `1.2e-5` is a number.
    if text.get(4) == Some(&b'-') && text[..4].iter().all(u8::is_ascii_digit) {
        return calendar(text).ok_or(NumberError::Form);
    }
    number::parse(text).map(|value| value / unit.per_second())
}

fn calendar(text: &[u8]) -> Option<f64> {
    let mut rest = text;
    let year = digits(&mut rest, 4)?;
    expect(&mut rest, b'-')?;
    let month = digits(&mut rest, 2)?;
    expect(&mut rest, b'-')?;
    let day = digits(&mut rest, 2)?;
    if !(1..=12).contains(&month) || !(1..=days_of(year, month)).contains(&day) {
        return None;
    }
    let mut seconds = days_since_epoch(year, month, day) as f64 * 86_400.0;
    if rest.is_empty() {
        return Some(seconds);
    }
    if !matches!(rest[0], b'T' | b't' | b' ') {
        return None;
    }
    rest = &rest[1..];
    let hour = digits(&mut rest, 2)?;
    expect(&mut rest, b':')?;
    let minute = digits(&mut rest, 2)?;
    // A leap second is the first of the next minute.
    let second = if expect(&mut rest, b':').is_some() { digits(&mut rest, 2)? } else { 0 };
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    seconds += (hour * 3600 + minute * 60 + second) as f64;
    if expect(&mut rest, b'.').is_some() {
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (fraction, after) = rest.split_at(count);
        // More than nanoseconds say nothing.
        let fraction = &fraction[..count.min(9)];
        let value = number::parse(fraction).ok()?;
        seconds += value / 10_f64.powi(fraction.len() as i32);
        rest = after;
    }
    seconds -= zone_seconds(rest)? as f64;
    Some(seconds)
}

fn zone_seconds(mut rest: &[u8]) -> Option<i64> {
    let sign = match rest {
        [] | [b'Z' | b'z'] => return Some(0),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return None,
    };
    rest = &rest[1..];
    let hours = digits(&mut rest, 2)?;
    expect(&mut rest, b':')?;
    let minutes = digits(&mut rest, 2)?;
    (rest.is_empty() && hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn digits(rest: &mut &[u8], count: usize) -> Option<i64> {
    let (taken, after) = rest.split_at_checked(count)?;
    *rest = after;
    taken.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
    })
}

fn expect(rest: &mut &[u8], byte: u8) -> Option<()> {
    *rest = rest.strip_prefix(&[byte])?;
    Some(())
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the Gregorian calendar, counted in years that begin in March, so that leap days stand at their end.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_or_refused() {
        let form = Err(NumberError::Form);
        for (text, unit, expected) in [
            ("1422748800000", TimeUnit::Millis, Ok(1_422_748_800.0)),
            ("1422748800", TimeUnit::Seconds, Ok(1_422_748_800.0)),
            ("1422748800.5", TimeUnit::Seconds, Ok(1_422_748_800.5)),
            ("1970-01-01", TimeUnit::Millis, Ok(0.0)),
            ("2013-01-13 23:36:00", TimeUnit::Seconds, Ok(1_358_120_160.0)),
            ("2013-01-13T23:36Z", TimeUnit::Seconds, Ok(1_358_120_160.0)),
            ("2013-01-14T00:36:00.250+01:00", TimeUnit::Seconds, Ok(1_358_120_160.25)),
            ("2000-02-29", TimeUnit::Seconds, Ok(951_782_400.0)),
            ("1969-12-31T23:59:59Z", TimeUnit::Seconds, Ok(-1.0)),
            ("1900-02-29", TimeUnit::Seconds, form), // no leap year
            ("2013-13-01", TimeUnit::Seconds, form),
            ("2013-01-13T24:00:00", TimeUnit::Seconds, form),
            ("2013-01-13T10:00:00+25:00", TimeUnit::Seconds, form),
            ("2013-1-13", TimeUnit::Seconds, form),
            ("2013-01-13T10:00:00x", TimeUnit::Seconds, form),
            ("1.2e-5", TimeUnit::Seconds, Ok(1.2e-5)),
            ("12e5-", TimeUnit::Seconds, form),
            ("yesterday", TimeUnit::Seconds, form),
            ("1e309", TimeUnit::Seconds, Err(NumberError::Range)),
        ] {
            assert_eq!(parse(text.as_bytes(), unit), expected, "{text:?}");
        }
    }
}

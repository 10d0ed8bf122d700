//! Times in payloads: numbers of a unit since the Unix epoch, or text such as `2013-01-13T23:36:00.5+01:00`.

use std::io::Write as _;

use tidegate_message::CivilTime;

use crate::{
    number::{self, NumberError},
    spec::TimeUnit,
};

/// Seconds since the Unix epoch, as `text` says: a number of `unit`, or a [`CivilTime`].
///
/// # Errors
/// As for a number, also for a date that there is not.
pub(crate) fn parse(text: &[u8], unit: TimeUnit) -> Result<f64, NumberError> {
    let text = text.trim_ascii();
    // Four digits: `1.2e-5` is a number.
    if text.get(4) == Some(&b'-') && text[..4].iter().all(u8::is_ascii_digit) {
        let CivilTime { nanos, .. } = CivilTime::parse(text).ok_or(NumberError::Form)?;
        // Of years of four digits, so that seconds fit.
        let (seconds, part) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
        return Ok(seconds as f64 + part as f64 / 1e9);
    }
    number::parse(text).map(|value| value / unit.per_second())
}

/// The most digits of a number that [`billionths`] reads: 10^27 of them, 10^9 each, fit 127 bits.
const DIGITS_MAX: usize = 28;

/// A decimal number in text times 10^9; none if it has more than nine digits behind its point, an exponent, or no end.
pub(crate) fn billionths(text: &[u8]) -> Option<i128> {
    let text = text.trim_ascii();
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let (mut value, mut behind, mut count) = (0_i128, None, 0);
    for byte in digits {
        match byte {
            b'0'..=b'9' if count < DIGITS_MAX => {
                value = value * 10 + i128::from(byte - b'0');
                count += 1;
                behind = behind.map(|digits: u32| digits + 1);
            }
            b'.' if behind.is_none() => behind = Some(0),
            _ => return None,
        }
    }
    let value = value * 10_i128.pow(9_u32.checked_sub(behind.unwrap_or(0))?);
    (count > 0).then_some(if digits.len() < text.len() { -value } else { value })
}

/// Nanoseconds since the Unix epoch, as [`parse`] reads them; none if they are no whole number, or too many.
pub(crate) fn nanos(text: &[u8], unit: TimeUnit) -> Option<i64> {
    match CivilTime::parse(text.trim_ascii()) {
        Some(CivilTime { nanos, .. }) => i64::try_from(nanos).ok(),
        None => nanos_of(billionths(text)?, unit),
    }
}

/// Nanoseconds since the Unix epoch of a number of `unit`, times 10^9; none if they are no whole number, or too many.
pub(crate) fn nanos_of(billionths: i128, unit: TimeUnit) -> Option<i64> {
    let per_second = unit.per_second() as i128;
    let is_whole = billionths % per_second == 0;
    i64::try_from(billionths / per_second).ok().filter(|_| is_whole)
}

/// Seconds since the Unix epoch as a decimal number, with the digits that there are or `decimals`, rounded to the nearest and half to the
/// even one, as floats are.
pub(crate) fn write(nanos: i64, decimals: Option<usize>, out: &mut Vec<u8>) {
    let kept = decimals.unwrap_or(9).min(9);
    let step = 10_u64.pow(9 - kept as u32);
    let (mut steps, rest) = (nanos.unsigned_abs() / step, nanos.unsigned_abs() % step);
    let is_odd = u64::from(!steps.is_multiple_of(2));
    steps += u64::from(rest * 2 + is_odd > step);
    let per_second = 10_u64.pow(kept as u32);
    if nanos < 0 {
        out.push(b'-');
    }
    drop(write!(out, "{}", steps / per_second));
    if kept > 0 {
        drop(write!(out, ".{:0kept$}", steps % per_second));
    }
    match decimals {
        Some(decimals) => out.resize(out.len() + decimals - kept, b'0'),
        None => {
            let end = out.iter().rposition(|byte| *byte != b'0').map_or(0, |at| at + 1);
            out.truncate(end);
            out.pop_if(|byte| *byte == b'.');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written_to_the_nanosecond() {
        use TimeUnit::{Micros, Millis, Nanos, Seconds};
        for (text, unit, nanos, expected) in [
            ("1700000000123456789", Nanos, Some(1_700_000_000_123_456_789), "1700000000.123456789"),
            (
                "1700000000.123456789",
                Seconds,
                Some(1_700_000_000_123_456_789),
                "1700000000.123456789",
            ),
            (" 1700000000123456.7 ", Micros, Some(1_700_000_000_123_456_700), "1700000000.1234567"),
            ("1422748800000", Millis, Some(1_422_748_800_000_000_000), "1422748800"),
            ("-1", Nanos, Some(-1), "-0.000000001"),
            ("0", Nanos, Some(0), "0"),
            (
                "2023-11-14T22:13:20.123456789Z",
                Millis,
                Some(1_700_000_000_123_456_789),
                "1700000000.123456789",
            ),
            ("9223372036854775807", Nanos, Some(i64::MAX), "9223372036.854775807"),
            // Finer than it counts, too far, or no plain number.
            ("1700000000123456789.5", Nanos, None, ""),
            ("1.0000000001", Seconds, None, ""),
            ("9223372036854775808", Nanos, None, ""),
            ("9999-12-31", Nanos, None, ""),
            ("1e9", Seconds, None, ""),
            ("12345678901234567890123456789", Nanos, None, ""),
            ("", Nanos, None, ""),
            (".", Nanos, None, ""),
        ] {
            assert_eq!(super::nanos(text.as_bytes(), unit), nanos, "{text}");
            let mut out = Vec::new();
            nanos.into_iter().for_each(|nanos| write(nanos, None, &mut out));
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn times_are_rounded_as_floats_are() {
        for seconds in [0.0_f64, 0.5, 1.5, 2.5, -0.5, 12.25, 12.75, 999.5, 0.125, -3.75, 7.0] {
            for decimals in 0..=17 {
                let mut out = Vec::new();
                write((seconds * 1e9) as i64, Some(decimals), &mut out);
                let expected = format!("{seconds:.decimals$}");
                assert_eq!(String::from_utf8(out).unwrap(), expected, "{seconds} {decimals}");
            }
        }
    }

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

//! Times in traces: numbers of a unit since whenever, or dates such as `2013-01-13T23:36:00.5+01:00`.
//!
//! Always true: what is written exactly is read exactly, to the nanosecond.

use clap::ValueEnum;
use tidegate_message::CivilTime;

/// How times are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimeUnit {
    /// Numbers of seconds.
    S,
    /// Numbers of milliseconds.
    Ms,
    /// Numbers of microseconds.
    Us,
    /// Numbers of nanoseconds.
    Ns,
    /// Dates (ISO 8601, RFC 3339), such as 2013-01-13T23:36:00.5+01:00; without a zone they are UTC.
    Iso,
}

impl TimeUnit {
    /// Nanoseconds of one; without meaning for dates.
    fn nanos(self) -> i64 {
        match self {
            Self::S => 1_000_000_000,
            Self::Ms => 1_000_000,
            Self::Us => 1000,
            Self::Ns | Self::Iso => 1,
        }
    }

    /// For sentences.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::S => "in seconds",
            Self::Ms => "in milliseconds",
            Self::Us => "in microseconds",
            Self::Ns => "in nanoseconds",
            Self::Iso => "such as 2013-01-13T23:36:00Z",
        }
    }
}

/// Why a text is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeFault {
    /// It is written in another way.
    Form,
    /// It does not fit 64 bits of nanoseconds: 292 years before and after 1970.
    Range,
}

/// The time in nanoseconds.
pub(crate) fn parse(text: &[u8], unit: TimeUnit) -> Result<i64, TimeFault> {
    let text = text.trim_ascii();
    let nanos = match unit {
        TimeUnit::Iso => CivilTime::parse(text).ok_or(TimeFault::Form)?.nanos,
        _ => decimal(text, unit.nanos())?,
    };
    nanos.try_into().map_err(|_| TimeFault::Range)
}

/// How a time is written: a date as it looks, a number by its size, which is that of a time since 1970. Small numbers are seconds.
pub(crate) fn recognise(text: &[u8]) -> Option<TimeUnit> {
    let text = text.trim_ascii();
    if CivilTime::parse(text).is_some() {
        return Some(TimeUnit::Iso);
    }
    let whole = decimal(text, 1).ok()?.unsigned_abs();
    Some(match whole {
        0..100_000_000_000 => TimeUnit::S,
        100_000_000_000..100_000_000_000_000 => TimeUnit::Ms,
        100_000_000_000_000..100_000_000_000_000_000 => TimeUnit::Us,
        _ => TimeUnit::Ns,
    })
}

/// Whether it looks like a time between 1990 and 2100, and like nothing else.
pub(crate) fn is_plausible(text: &[u8]) -> bool {
    const YEARS: std::ops::Range<i64> = 631_152_000_000_000_000..4_102_444_800_000_000_000;
    let Some(unit) = recognise(text) else { return false };
    parse(text, unit).is_ok_and(|nanos| unit == TimeUnit::Iso || YEARS.contains(&nanos))
}

/// A number of a unit in nanoseconds: a sign, digits with a point among them, an exponent. Digits below nanoseconds are left
/// out.
fn decimal(text: &[u8], unit_nanos: i64) -> Result<i128, TimeFault> {
    let (is_negative, mut rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let whole = digits(&mut rest);
    let mut part: &[u8] = b"";
    if let [b'.', after @ ..] = rest {
        rest = after;
        part = digits(&mut rest);
    }
    if whole.is_empty() && part.is_empty() {
        return Err(TimeFault::Form);
    }
    if let [b'e' | b'E', after @ ..] = rest {
        let mut exponent = after.strip_prefix(b"-").or(after.strip_prefix(b"+")).unwrap_or(after);
        if digits(&mut exponent).is_empty() || !exponent.is_empty() {
            return Err(TimeFault::Form);
        }
        let text = std::str::from_utf8(text).map_err(|_| TimeFault::Form)?;
        let nanos = text.parse::<f64>().map_err(|_| TimeFault::Form)? * unit_nanos as f64;
        return if nanos.abs() < 1e30 { Ok(nanos as i128) } else { Err(TimeFault::Range) };
    }
    if !rest.is_empty() {
        return Err(TimeFault::Form);
    }
    let mut nanos = 0_i128;
    for digit in whole {
        let more = nanos.checked_mul(10).and_then(|nanos| nanos.checked_add((digit - b'0').into()));
        nanos = more.ok_or(TimeFault::Range)?;
    }
    nanos = nanos.checked_mul(unit_nanos.into()).ok_or(TimeFault::Range)?;
    let mut place = i128::from(unit_nanos);
    for digit in part.iter().take(9) {
        place /= 10;
        nanos += i128::from(digit - b'0') * place;
    }
    Ok(if is_negative { -nanos } else { nanos })
}

fn digits<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (taken, after) = rest.split_at(count);
    *rest = after;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly_or_refused() {
        let (form, range) = (Err(TimeFault::Form), Err(TimeFault::Range));
        for (text, unit, expected) in [
            ("0", TimeUnit::S, Ok(0)),
            ("-1.5", TimeUnit::S, Ok(-1_500_000_000)),
            (" +2 ", TimeUnit::Ms, Ok(2_000_000)),
            ("1422748800000", TimeUnit::Ms, Ok(1_422_748_800_000_000_000)),
            ("1422748800.123456789", TimeUnit::S, Ok(1_422_748_800_123_456_789)),
            ("1422748800.1234567899", TimeUnit::S, Ok(1_422_748_800_123_456_789)),
            ("1422748800123456789", TimeUnit::Ns, Ok(1_422_748_800_123_456_789)),
            ("0.5", TimeUnit::Ns, Ok(0)), // finer than what is kept
            (".5", TimeUnit::S, Ok(500_000_000)),
            ("5.", TimeUnit::S, Ok(5_000_000_000)),
            ("1.5e3", TimeUnit::Ms, Ok(1_500_000_000)),
            ("9223372036.854775807", TimeUnit::S, Ok(i64::MAX)),
            ("9223372036.854775808", TimeUnit::S, range),
            ("1e309", TimeUnit::S, range),
            ("-1e309", TimeUnit::Ns, range),
            ("1e20", TimeUnit::S, range),
            ("99999999999999999999999999999999999999999", TimeUnit::Ns, range),
            ("NaN", TimeUnit::S, form),
            ("inf", TimeUnit::S, form),
            ("", TimeUnit::S, form),
            (".", TimeUnit::S, form),
            ("-", TimeUnit::S, form),
            ("1e", TimeUnit::S, form),
            ("0x10", TimeUnit::S, form),
            ("1_000", TimeUnit::S, form),
            ("1,5", TimeUnit::S, form),
            ("5 5", TimeUnit::S, form),
            ("\u{664}", TimeUnit::S, form), // a digit, but no ASCII one
            ("2013-01-13", TimeUnit::S, form),
            ("2013-01-13", TimeUnit::Iso, Ok(1_358_035_200_000_000_000)),
            ("2013-01-13 23:36:00", TimeUnit::Iso, Ok(1_358_120_160_000_000_000)),
            ("2013-01-13T23:36Z", TimeUnit::Iso, Ok(1_358_120_160_000_000_000)),
            ("2013-01-14T00:36:00.25+01:00", TimeUnit::Iso, Ok(1_358_120_160_250_000_000)),
            ("2013-01-14T00:36:00,25+0100", TimeUnit::Iso, Ok(1_358_120_160_250_000_000)),
            ("2013-01-13T22:36:00.123456789123-01", TimeUnit::Iso, Ok(1_358_120_160_123_456_789)),
            ("2000-02-29", TimeUnit::Iso, Ok(951_782_400_000_000_000)),
            ("1969-12-31T23:59:59Z", TimeUnit::Iso, Ok(-1_000_000_000)),
            ("9999-01-01", TimeUnit::Iso, range),
            ("1900-02-29", TimeUnit::Iso, form), // no leap year
            ("2013-13-01", TimeUnit::Iso, form),
            ("2013-01-13T24:00:00", TimeUnit::Iso, form),
            ("2013-01-13T10:00:00.", TimeUnit::Iso, form),
            ("2013-01-13T10:00:00+25:00", TimeUnit::Iso, form),
            ("1422748800", TimeUnit::Iso, form),
            ("yesterday", TimeUnit::Iso, form),
        ] {
            assert_eq!(parse(text.as_bytes(), unit), expected, "{text:?} {unit:?}");
        }
    }

    #[test]
    fn units_are_recognised_by_size() {
        for (text, expected, plausible) in [
            ("0", Some(TimeUnit::S), false),
            ("0.02", Some(TimeUnit::S), false),
            ("1422748800", Some(TimeUnit::S), true),
            ("1422748800.5", Some(TimeUnit::S), true),
            ("1422748800000", Some(TimeUnit::Ms), true),
            ("1422748800000000", Some(TimeUnit::Us), true),
            ("1422748800000000000", Some(TimeUnit::Ns), true),
            ("2013-01-13 23:36:00", Some(TimeUnit::Iso), true),
            ("00000001", Some(TimeUnit::S), false), // a number of a meter
            ("46.1927629", Some(TimeUnit::S), false),
            ("ci4lr75sl000802ypo4qrcjda23", None, false),
            ("NaN", None, false),
            ("", None, false),
        ] {
            assert_eq!(recognise(text.as_bytes()), expected, "{text:?}");
            assert_eq!(is_plausible(text.as_bytes()), plausible, "{text:?}");
        }
    }
}

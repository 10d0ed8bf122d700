//! Times in payloads: numbers of a unit since the Unix epoch, or text such as `2013-01-13T23:36:00.5+01:00`.

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

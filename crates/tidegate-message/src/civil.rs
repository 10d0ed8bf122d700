//! Points in time as calendars and clocks write them.

use std::fmt;

/// A point in time that a text names by its date: ISO 8601 in the form of RFC 3339 (section 5.6), in which the time of day, its
/// seconds, its zone and the colon in that may be left out, and the `T` may be a blank and the fraction's point a comma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime {
    /// Nanoseconds since the Unix epoch, of years 0 to 9999; finer digits are dropped. A leap second is the first of the next minute.
    pub nanos: i128,
    /// Whether the text says its zone; it was taken as UTC if not.
    pub has_zone: bool,
}

impl CivilTime {
    /// Parses `text`; none if it is written in another way, or names a date or a time that does not exist.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut rest = text;
        let year = number(&mut rest, 4)?;
        expect(&mut rest, b'-')?;
        let month = number(&mut rest, 2)?;
        expect(&mut rest, b'-')?;
        let day = number(&mut rest, 2)?;
        if !(1..=12).contains(&month) || !(1..=days_of(year, month)).contains(&day) {
            return None;
        }
        let midnight = CivilDate { year, month, day }.days() * 86_400;
        if rest.is_empty() {
            return Some(Self { nanos: i128::from(midnight) * 1_000_000_000, has_zone: false });
        }
        let [b'T' | b't' | b' ', after @ ..] = rest else { return None };
        rest = after;
        let hour = number(&mut rest, 2)?;
        expect(&mut rest, b':')?;
        let minute = number(&mut rest, 2)?;
        let second = if expect(&mut rest, b':').is_some() { number(&mut rest, 2)? } else { 0 };
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let mut nanos = 0;
        if let [b'.' | b',', after @ ..] = rest {
            let count = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (fraction, after) = after.split_at(count);
            if fraction.is_empty() {
                return None;
            }
            rest = after;
            let mut place = 100_000_000;
            for digit in fraction.iter().take(9) {
                nanos += i128::from(digit - b'0') * place;
                place /= 10;
            }
        }
        let has_zone = !rest.is_empty();
        let seconds = midnight + hour * 3600 + minute * 60 + second - zone_seconds(rest)?;
        Some(Self { nanos: i128::from(seconds) * 1_000_000_000 + nanos, has_zone })
    }
}

fn zone_seconds(mut rest: &[u8]) -> Option<i64> {
    let sign = match rest {
        [] | [b'Z' | b'z'] => return Some(0),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return None,
    };
    rest = &rest[1..];
    let hours = number(&mut rest, 2)?;
    let _ = expect(&mut rest, b':');
    let minutes = if rest.is_empty() { 0 } else { number(&mut rest, 2)? };
    (rest.is_empty() && hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn number(rest: &mut &[u8], digits: usize) -> Option<i64> {
    let (taken, after) = rest.split_at_checked(digits)?;
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

/// A day of the Gregorian calendar, also before there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilDate {
    /// The year; 0 is the one before year 1.
    pub year: i64,
    /// The month, 1 to 12.
    pub month: i64,
    /// The day of the month, from 1.
    pub day: i64,
}

/// Days between 0000-03-01 and 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;

// Years begin in March here, so that leap days stand at their end.
impl CivilDate {
    /// The day that many days after 1970-01-01.
    pub fn of_days(days: i64) -> Self {
        let days = days + EPOCH_DAYS;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (more, month) = if month < 10 { (0, month + 3) } else { (1, month - 9) };
        Self { year: 400 * era + year + more, month, day }
    }

    /// Days after 1970-01-01.
    pub fn days(self) -> i64 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let day_of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
            - EPOCH_DAYS
    }
}

/// As ISO 8601 has it: `2026-01-31`.
impl fmt::Display for CivilDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day } = self;
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_484, "2026-01-31"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"), // no leap year
            (-719_469, "0000-02-29"),
            (-719_529, "-001-12-31"),
            (2_932_896, "9999-12-31"),
        ] {
            let date = CivilDate::of_days(days);
            assert_eq!((date.to_string().as_str(), date.days()), (expected, days));
        }
        // Every day of 400 years is one after the day before it, and comes back.
        for days in -73_000..73_097 {
            let (before, date) = (CivilDate::of_days(days - 1), CivilDate::of_days(days));
            assert_eq!(date.days(), days);
            let begins = CivilDate { day: 1, ..date };
            match date.day {
                1 => assert_eq!(before.day, days_of(before.year, before.month), "{date}"),
                day => assert_eq!(before, CivilDate { day: day - 1, ..begins }, "{date}"),
            }
        }
    }

    #[test]
    fn dates_are_read_exactly_or_refused() {
        for (text, expected) in [
            ("1970-01-01", Some((0, false))),
            ("2013-01-13", Some((1_358_035_200_000_000_000, false))),
            ("2013-01-13 23:36:00", Some((1_358_120_160_000_000_000, false))),
            ("2013-01-13T23:36", Some((1_358_120_160_000_000_000, false))),
            ("2013-01-13T23:36Z", Some((1_358_120_160_000_000_000, true))),
            ("2013-01-14t00:36:00.25+01:00", Some((1_358_120_160_250_000_000, true))),
            ("2013-01-14T00:36:00,25+0100", Some((1_358_120_160_250_000_000, true))),
            ("2013-01-13T22:36:00.123456789123-01", Some((1_358_120_160_123_456_789, true))),
            ("2016-12-31T23:59:60Z", Some((1_483_228_800_000_000_000, true))),
            ("2000-02-29", Some((951_782_400_000_000_000, false))),
            ("1969-12-31T23:59:59z", Some((-1_000_000_000, true))),
            ("0000-03-01", Some((-62_162_035_200_000_000_000, false))),
            ("9999-12-31T23:59:59Z", Some((253_402_300_799_000_000_000, true))),
            ("1900-02-29", None), // no leap year
            ("2013-13-01", None),
            ("2013-00-01", None),
            ("2013-01-00", None),
            ("2013-04-31", None),
            ("2013-1-13", None),
            ("2013-01-13T", None),
            ("2013-01-13T24:00:00", None),
            ("2013-01-13T23:60:00", None),
            ("2013-01-13T23:36:61", None),
            ("2013-01-13T10:00:00.", None),
            ("2013-01-13T10:00:00.Z", None),
            ("2013-01-13T10:00:00+25:00", None),
            ("2013-01-13T10:00:00+1:00", None),
            ("2013-01-13T10:00:00x", None),
            ("2013-01-13T10:00:00Zx", None),
            ("1422748800", None),
            ("\u{662}013-01-13", None), // a digit, but no ASCII one
            ("", None),
        ] {
            let found = CivilTime::parse(text.as_bytes());
            assert_eq!(found.map(|time| (time.nanos, time.has_zone)), expected, "{text:?}");
        }
    }
}

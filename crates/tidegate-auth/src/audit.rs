//! The audit log: one line of JSON for each administrative act and each refusal.
//!
//! ```text
//! {"at":"2026-01-31T12:00:00.000Z","result":"refused","who":"user ada","client":"c1","from":"192.0.2.7",
//!  "door":"mqtt","what":"publish","target":"home/safe","rule":"rules.toml:7: role guest: deny publish home/safe"}
//! ```
//!
//! Always true: a line holds no secret and ends with the only line feed in it; texts from elsewhere are cut to
//! [`TEXT_BYTES_MAX`]; the memory for what was said of late is bounded.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use serde_json::{Map, Value};
use tidegate_message::{Identity, Instant};

/// Longest text of a field, in bytes; what is longer is cut.
pub const TEXT_BYTES_MAX: usize = 512;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time of day.
    pub at: Instant,
    /// What came of it.
    pub outcome: Outcome,
    /// Kind and name, such as `user ada`; of whoever was not let in, the name that was claimed.
    pub who: String,
    /// The program it came through, empty if it told none.
    pub client: String,
    /// Where it came from.
    pub from: Option<IpAddr>,
    /// Where it came in: `mqtt`, `api`, `link`, `process`.
    pub door: &'static str,
    /// What was asked for: an action, `login` or `reload`.
    pub what: String,
    /// Of what.
    pub target: String,
    /// The rule that decided, or what was wrong.
    pub rule: String,
}

/// What came of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was refused.
    Refused,
    /// It was allowed and did not work out.
    Failed,
}

impl Outcome {
    const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl Entry {
    /// An entry about somebody who is known.
    pub fn of(at: Instant, door: &'static str, identity: &Identity, outcome: Outcome) -> Self {
        let who = match &*identity.name {
            "" => identity.kind.word().to_owned(),
            name => format!("{} {name}", identity.kind.word()),
        };
        Self {
            at,
            outcome,
            who,
            client: identity.client.to_string(),
            from: identity.address,
            door,
            what: String::new(),
            target: String::new(),
            rule: String::new(),
        }
    }

    /// The line, with its end. `repeated` is how many like it were left out since the last one.
    pub fn line(&self, repeated: u64) -> String {
        let mut members = Map::new();
        let mut put = |key: &str, text: &str| {
            if !text.is_empty() {
                members.insert(key.to_owned(), cut(text).into());
            }
        };
        put("at", &rfc3339(self.at));
        put("result", self.outcome.word());
        put("who", &self.who);
        put("client", &self.client);
        put("from", &self.from.map(|from| from.to_string()).unwrap_or_default());
        put("door", self.door);
        put("what", &self.what);
        put("target", &self.target);
        put("rule", &self.rule);
        if repeated > 0 {
            members.insert("repeated".to_owned(), repeated.into());
        }
        format!("{}\n", Value::Object(members))
    }
}

fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// As RFC 3339 writes it, in UTC with milliseconds.
pub fn rfc3339(at: Instant) -> String {
    let millis = at.as_nanos().div_euclid(1_000_000);
    let (days, millis) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    // Days since 0000-03-01, in eras of 400 years; the leap day is the last of such a year.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        ..10 => (400 * era + year, month + 3),
        _ => (400 * era + year + 1, month - 9),
    };
    let (second, milli) = (millis / 1000, millis % 1000);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Refusals of late, so that one who asks again and again does not fill the disk: of those that are alike but for their time and
/// rule one is written in [`QUIET`], and the next one says how many were left out.
#[derive(Debug, Default)]
pub struct Recent {
    /// By what is alike: when the last was written, and how many were left out since.
    written: HashMap<Alike, (Instant, u64)>,
}

type Alike = (String, Option<IpAddr>, String, String);

/// How long those that are alike are left out.
pub const QUIET: Duration = Duration::from_secs(60);
/// Most kinds of entries that are remembered; beyond that nothing is left out.
const RECENT_MAX: usize = 1024;

impl Recent {
    /// What to write of `entry`; none if a refusal like it was written a moment ago.
    pub fn line(&mut self, entry: &Entry) -> Option<String> {
        if entry.outcome != Outcome::Refused {
            return Some(entry.line(0));
        }
        let Entry { at, who, from, what, target, .. } = entry;
        let alike = (cut(who), *from, cut(what), cut(target));
        match self.written.get_mut(&alike) {
            Some((last, repeated)) if at.since(*last) < QUIET => {
                *repeated += 1;
                None
            }
            Some((last, repeated)) => {
                *last = *at;
                Some(entry.line(std::mem::take(repeated)))
            }
            None => {
                if self.written.len() >= RECENT_MAX {
                    self.written.retain(|_, (last, _)| at.since(*last) < QUIET);
                }
                if self.written.len() < RECENT_MAX {
                    self.written.insert(alike, (*at, 0));
                }
                Some(entry.line(0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::IdentityKind;

    use super::*;

    fn entry(millis: i64) -> Entry {
        let ada = Identity::new(IdentityKind::User, "ada", "c1");
        let ada = Identity { address: Some([192, 0, 2, 7].into()), ..ada };
        Entry {
            what: "publish".to_owned(),
            target: "home/safe".to_owned(),
            rule: "rules:7: no".to_owned(),
            ..Entry::of(Instant::from_millis(millis), "mqtt", &ada, Outcome::Refused)
        }
    }

    #[test]
    fn a_line_is_one_object() {
        let line = Entry { target: "a\n\"b".to_owned(), ..entry(0) }.line(3);
        assert_eq!(line.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&line).unwrap();
        for (key, expected) in [
            ("at", "1970-01-01T00:00:00.000Z"),
            ("result", "refused"),
            ("who", "user ada"),
            ("client", "c1"),
            ("from", "192.0.2.7"),
            ("door", "mqtt"),
            ("what", "publish"),
            ("target", "a\n\"b"),
            ("rule", "rules:7: no"),
        ] {
            assert_eq!(value[key], expected, "{key}");
        }
        assert_eq!(value["repeated"], 3);
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        let line = Entry { target: "é".repeat(10_000), ..entry(0) }.line(0);
        assert!(line.len() < TEXT_BYTES_MAX + 300, "{}", line.len());
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000Z"),
            (1_740_787_200, "2025-03-01T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"), // 2100 has no leap day
            (-1, "1969-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(rfc3339(Instant::from_millis(seconds * 1000)), expected);
        }
    }

    #[test]
    fn what_is_alike_is_written_once_in_a_while() {
        let mut recent = Recent::default();
        assert!(recent.line(&entry(0)).is_some());
        assert!(recent.line(&entry(1)).is_none());
        assert!(recent.line(&entry(2)).is_none());
        let other = Entry { target: "other".to_owned(), ..entry(3) };
        assert!(recent.line(&other).is_some(), "another target is another entry");
        let again = recent.line(&entry(60_000)).unwrap();
        assert!(again.contains("\"repeated\":2"), "{again}");
        let done = Entry { outcome: Outcome::Done, ..entry(60_001) };
        assert!(recent.line(&done).is_some() && recent.line(&done).is_some());
    }

    #[test]
    fn a_flood_stays_bounded_and_is_written() {
        let mut recent = Recent::default();
        for number in 0..3 * RECENT_MAX {
            let entry = Entry { target: number.to_string(), ..entry(0) };
            assert!(recent.line(&entry).is_some());
        }
        assert_eq!(recent.written.len(), RECENT_MAX);
    }
}

//! The audit log: one line of JSON for each administrative act and each refusal.
//!
//! ```text
//! {"at":"2026-01-31T12:00:00.000Z","result":"refused","who":"user ada","client":"c1","from":"192.0.2.7",
//!  "front":"mqtt","what":"publish","target":"home/safe","rule":"rules.toml:7: role guest: deny publish home/safe"}
//! ```
//!
//! Always true: a line holds no secret and ends with the only line feed in it, and no letter in it steers a terminal; texts from
//! elsewhere are cut to [`TEXT_BYTES_MAX`]; the memory for what was said of late is bounded. Refusals are written one by one as long
//! as there are few of them, of one address and in all; the rest are summed up, so that a flood of them washes out nothing that was
//! written before.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use serde_json::{Map, Value};
use tidegate_message::{CivilDate, Identity, Instant};

use crate::{attempts::network, escape};

/// Longest text of a field, in bytes; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 512;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time of day.
    pub at: Instant,
    /// The result.
    pub outcome: Outcome,
    /// Kind and name, such as `user ada`; for a rejected client, the name that it claimed.
    pub who: String,
    /// The program that the client says it is, empty if it named none.
    pub client: String,
    /// Where it came from.
    pub from: Option<IpAddr>,
    /// Where it came in: `mqtt`, `api`, `link`, `process`.
    pub front: &'static str,
    /// The action, `login` or `reload`.
    pub what: String,
    /// Of what.
    pub target: String,
    /// The rule that decided, or what was wrong.
    pub rule: String,
}

/// The result of an action or a login.
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
    /// An entry about a known identity.
    pub fn of(at: Instant, front: &'static str, identity: &Identity, outcome: Outcome) -> Self {
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
            front,
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
        put("from", &self.from.map(|from| from.to_canonical().to_string()).unwrap_or_default());
        put("front", self.front);
        put("what", &self.what);
        put("target", &self.target);
        put("rule", &self.rule);
        if repeated > 0 {
            members.insert("repeated".to_owned(), repeated.into());
        }
        // JSON escapes the control characters of ASCII alone.
        format!("{}\n", escape::json(&Value::Object(members).to_string()))
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
    let date = CivilDate::of_days(days);
    let (second, milli) = (millis / 1000, millis % 1000);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Refusals of late, so that who asks again and again does not fill the disk: of those that are alike but for their time and rule
/// one is written in [`QUIET`], and the next one says how many were left out. Those that differ are written as well, as far as the
/// [`Allowance`] of their address and that of all go; how many were beyond is [summed up](Self::summary).
#[derive(Debug, Default)]
pub struct Recent {
    /// By what is alike: when the last was written, and how many were left out since.
    written: HashMap<Alike, (Instant, u64)>,
    all: Option<Allowance>,
    addresses: HashMap<Option<IpAddr>, Allowance>,
    /// When room was last made among them.
    swept_at: Option<Instant>,
    /// When the first entry was left out that no summary has counted yet.
    left_out_since: Option<Instant>,
    left_out: u64,
}

type Alike = (String, Option<IpAddr>, String, String);

/// How long those that are alike are left out, and how often those beyond the allowances are summed up.
pub const QUIET: Duration = Duration::from_secs(60);
/// Most kinds of entries, and most addresses, that are remembered.
const RECENT_MAX: usize = 1024;
/// How often room is made for other addresses: a flood from ever new ones must not look through all of them for each.
const SWEEPS_EVERY: Duration = Duration::from_secs(1);
/// Refusals of one address that are written at once; one more every [`ADDRESS_EARNS`].
const ADDRESS_MAX: u32 = 60;
const ADDRESS_EARNS: Duration = Duration::from_secs(60);
/// Refusals of all addresses that are written at once; one more every [`ALL_EARN`]: 3 MB a day.
const ALL_MAX: u32 = 600;
const ALL_EARN: Duration = Duration::from_secs(10);

/// How many refusals may be written now.
#[derive(Debug)]
struct Allowance {
    /// When it was full, had nothing been spent since.
    full_at: Instant,
    left_out: u64,
}

impl Allowance {
    fn new(at: Instant) -> Self {
        Self { full_at: at, left_out: 0 }
    }

    /// Spends one of `most`, if there is one; each comes back after `earns`.
    fn spend(&mut self, at: Instant, most: u32, earns: Duration) -> bool {
        // A clock that was set back takes nothing away for longer than it takes to earn all.
        let spent = self.full_at.max(at).min(at + earns * most) + earns;
        if spent.since(at) > earns * most {
            self.left_out += 1;
            return false;
        }
        self.full_at = spent;
        true
    }
}

impl Recent {
    /// The line to write for `entry`; none if a refusal like it was written a moment ago, or too many others were.
    pub fn line(&mut self, entry: &Entry) -> Option<String> {
        if entry.outcome != Outcome::Refused {
            return Some(entry.line(0));
        }
        let Entry { at, who, from, what, target, .. } = entry;
        let alike = (cut(who), from.map(|from| from.to_canonical()), cut(what), cut(target));
        if let Some((last, repeated)) = self.written.get_mut(&alike)
            && at.since(*last) < QUIET
        {
            *repeated += 1;
            return None;
        }
        if !self.may_write(*at, *from) {
            self.left_out += 1;
            self.left_out_since.get_or_insert(*at);
            return None;
        }
        if let Some((last, repeated)) = self.written.get_mut(&alike) {
            *last = *at;
            return Some(entry.line(std::mem::take(repeated)));
        }
        if self.written.len() >= RECENT_MAX {
            self.written.retain(|_, (last, _)| at.since(*last) < QUIET);
        }
        if self.written.len() < RECENT_MAX {
            self.written.insert(alike, (*at, 0));
        }
        Some(entry.line(0))
    }

    fn may_write(&mut self, at: Instant, from: Option<IpAddr>) -> bool {
        let from = from.map(network);
        let is_due = self.swept_at.is_none_or(|last| at < last || at.since(last) >= SWEEPS_EVERY);
        if is_due && self.addresses.len() >= RECENT_MAX && !self.addresses.contains_key(&from) {
            self.swept_at = Some(at);
            // Those that could write as much as one that is not there.
            self.addresses.retain(|_, allowance| allowance.full_at > at || allowance.left_out > 0);
        }
        let own = match self.addresses.len() < RECENT_MAX || self.addresses.contains_key(&from) {
            true => Some(self.addresses.entry(from).or_insert_with(|| Allowance::new(at))),
            false => None,
        };
        own.is_none_or(|own| own.spend(at, ADDRESS_MAX, ADDRESS_EARNS))
            && self.all.get_or_insert_with(|| Allowance::new(at)).spend(at, ALL_MAX, ALL_EARN)
    }

    /// How many refusals were beyond the allowances and are not written, as an entry to be written; none while there are none, or
    /// the first of them is younger than [`QUIET`]. With `is_last`, whatever its age.
    pub fn summary(&mut self, now: Instant, is_last: bool) -> Option<Entry> {
        let since = self.left_out_since?;
        if !is_last && now.since(since) < QUIET {
            return None;
        }
        self.left_out_since = None;
        let count = std::mem::take(&mut self.left_out);
        let most = self.addresses.iter().max_by_key(|(_, allowance)| allowance.left_out);
        let most = most.filter(|(_, allowance)| allowance.left_out > 0);
        let most = most.map(|(from, allowance)| {
            let from = from.map_or("nowhere in particular".to_owned(), |from| from.to_string());
            format!(", most of them ({}) from {from}", allowance.left_out)
        });
        for allowance in self.addresses.values_mut() {
            allowance.left_out = 0;
        }
        Some(Entry {
            at: now,
            outcome: Outcome::Refused,
            who: "several".to_owned(),
            client: String::new(),
            from: None,
            front: "process",
            what: "refusals".to_owned(),
            target: String::new(),
            rule: format!(
                "{count} refusals since {} are not written one by one{}",
                rfc3339(since),
                most.unwrap_or_default()
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

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
            ("front", "mqtt"),
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
    fn similar_entries_are_written_once_in_a_while() {
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
    fn letters_that_steer_a_terminal_are_escaped() {
        let steers = "a\u{1b}[2J\n\u{7f}\u{9b}31m\u{202e}b\u{2028}";
        let entry = Entry {
            who: steers.to_owned(),
            client: steers.to_owned(),
            rule: steers.to_owned(),
            ..entry(0)
        };
        let line = entry.line(0);
        assert!(!line.trim_end_matches('\n').contains(escape::steers), "{line:?}");
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["client"], steers, "it is read unchanged");
    }

    /// Made-up names, tokens, topics; from one address, from one network, from many.
    #[test]
    fn a_flood_of_refusals_is_summed_up() {
        let v6 = |host: u128| IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8 << 96) | host));
        let one: &dyn Fn(u32) -> IpAddr = &|_| [192, 0, 2, 7].into();
        let network: &dyn Fn(u32) -> IpAddr = &|number| v6(number.into());
        let many: &dyn Fn(u32) -> IpAddr = &|number| IpAddr::V4(number.into());
        for (kind, from, most) in [
            ("one", one, ADDRESS_MAX),
            ("network", network, ADDRESS_MAX),
            ("many", many, ALL_MAX + 2),
        ] {
            let mut recent = Recent::default();
            let mut written = 0;
            // In 12 s.
            for number in 0..53_344u32 {
                let entry = Entry {
                    who: format!("token {number}"),
                    from: Some(from(number)),
                    ..entry(i64::from(number) * 12_000 / 53_344)
                };
                written += u32::from(recent.line(&entry).is_some());
            }
            assert!((1..=most).contains(&written), "{kind}: {written}");
            assert!(recent.written.len() <= RECENT_MAX && recent.addresses.len() <= RECENT_MAX);
            assert!(recent.summary(Instant::from_millis(12_000), false).is_none(), "not yet");
            let summary = recent.summary(Instant::from_millis(72_000), false).unwrap();
            let count = format!("{} refusals since 1970-01-01", 53_344 - written);
            assert!(summary.rule.starts_with(&count), "{kind}: {}", summary.rule);
            assert!(recent.summary(Instant::from_millis(200_000), true).is_none(), "said once");
            // Successful actions are written whatever other clients do, and refusals are again after a while.
            let done = Entry { outcome: Outcome::Done, ..entry(12_000) };
            assert!(recent.line(&done).is_some());
            let later = Entry { from: Some(from(0)), ..entry(200_000) };
            assert!(recent.line(&later).is_some(), "{kind}");
        }
    }

    /// A listener on `[::]` sees clients of IPv4 by addresses of IPv6 that begin alike (RFC 4291 section 2.5.5.2).
    #[test]
    fn clients_of_ipv4_at_a_listener_of_ipv6_are_each_their_own() {
        let mapped = |number| IpAddr::from(Ipv4Addr::new(192, 0, 2, number).to_ipv6_mapped());
        let mut recent = Recent::default();
        for number in 0..10 * ADDRESS_MAX {
            let from = Some(mapped(1));
            let _ = recent.line(&Entry { who: format!("user {number}"), from, ..entry(0) });
        }
        let line = recent.line(&Entry { from: Some(mapped(2)), ..entry(0) });
        let line = line.expect("another has its own allowance");
        assert!(line.contains(r#""from":"192.0.2.2""#), "{line}");
        // And it is the same one on both ways.
        let plain = Entry { from: Some([192, 0, 2, 2].into()), ..entry(0) };
        assert!(recent.line(&plain).is_none());
    }

    #[test]
    fn a_flood_from_one_address_hides_no_refusal_of_another() {
        let mut recent = Recent::default();
        for number in 0..10_000 {
            recent.line(&Entry { who: format!("user {number}"), ..entry(0) });
        }
        let other = Entry { from: Some([192, 0, 2, 8].into()), ..entry(1) };
        assert!(recent.line(&other).is_some());
        let summary = recent.summary(Instant::from_millis(2), true).unwrap();
        assert!(summary.rule.contains("from 192.0.2.7"), "{}", summary.rule);
    }
}

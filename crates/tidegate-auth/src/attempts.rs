//! Failed attempts, by address and user: each makes the next wait longer.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use tidegate_message::{Instant, Refusal};

/// Failures within [`WINDOW`] that cost nothing.
const FREE: u32 = 4;
/// Failures are forgotten this long after the first, or after the last wait.
const WINDOW: Duration = Duration::from_secs(60);
/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Most pairs of address and user that are kept: about a third of a megabyte.
const ENTRIES_MAX: usize = 4096;

/// The failed attempts of late.
///
/// Always true: at most [`ENTRIES_MAX`] are kept; where one more fails, the one with the fewest failures is
/// forgotten, so that a flood of names does not wash away the names that are being guessed at.
#[derive(Debug)]
pub(crate) struct Attempts {
    entries: HashMap<Key, Failures>,
    hasher: RandomState,
}

/// An address, or the network of 64 bits that an IPv6 host has to itself, and a user by its hash.
pub(crate) type Key = (Option<IpAddr>, u64);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    first: Instant,
    blocked_until: Instant,
}

impl Failures {
    fn forgotten(&self, now: Instant) -> bool {
        now >= self.first.max(self.blocked_until) + WINDOW
    }

    fn strike(&mut self, now: Instant) {
        self.count = self.count.saturating_add(1);
        if self.count > FREE {
            let wait = Duration::from_secs(1 << (self.count - FREE - 1).min(6)).min(WAIT_MAX);
            self.blocked_until = now + wait;
        }
    }
}

impl Attempts {
    pub(crate) fn new() -> Self {
        Self { entries: HashMap::new(), hasher: RandomState::new() }
    }

    pub(crate) fn key(&self, address: Option<IpAddr>, user: &str) -> Key {
        (address.map(network), self.hasher.hash_one(user))
    }

    /// Whether a check would be refused now.
    pub(crate) fn is_blocked(&self, key: Key, now: Instant) -> bool {
        self.entries
            .get(&key)
            .is_some_and(|failures| !failures.forgotten(now) && now < failures.blocked_until)
    }

    /// Before a check; returns whether it was counted already. Where one failed before, this one counts as failed
    /// until it ends well: otherwise many at once would all pass before the first ends.
    pub(crate) fn begin(&mut self, key: Key, now: Instant) -> Result<bool, Refusal> {
        let Some(failures) = self.entries.get_mut(&key) else { return Ok(false) };
        if failures.forgotten(now) {
            self.entries.remove(&key);
            return Ok(false);
        }
        if now < failures.blocked_until {
            return Err(Refusal::TooMany);
        }
        failures.strike(now);
        Ok(true)
    }

    /// After a check that [`begin`](Self::begin) let pass and `counted` or not.
    pub(crate) fn end(&mut self, key: Key, counted: bool, right: bool, now: Instant) {
        if right {
            self.entries.remove(&key);
        } else if !counted {
            if !self.entries.contains_key(&key) && self.entries.len() >= ENTRIES_MAX {
                self.make_room(now);
            }
            let new = Failures { count: 0, first: now, blocked_until: now };
            self.entries.entry(key).or_insert(new).strike(now);
        }
    }

    fn make_room(&mut self, now: Instant) {
        self.entries.retain(|_, failures| !failures.forgotten(now));
        if self.entries.len() >= ENTRIES_MAX {
            let least =
                self.entries.iter().min_by_key(|(_, failures)| (failures.count, failures.first));
            if let Some((&key, _)) = least {
                self.entries.remove(&key);
            }
        }
    }
}

/// The network that is counted as one host: an address of IPv4, 64 bits of IPv6.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        IpAddr::V4(address) => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(1_700_000_000_000);

    fn fail(attempts: &mut Attempts, key: Key, now: Instant) -> bool {
        attempts.begin(key, now).map(|counted| attempts.end(key, counted, false, now)).is_ok()
    }

    #[test]
    fn waits_double_up_to_a_minute_and_end() {
        let (mut attempts, start) = (Attempts::new(), START);
        let key = attempts.key(None, "alice");
        for _ in 0..4 {
            assert!(fail(&mut attempts, key, start));
        }
        let mut now = start;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            assert!(fail(&mut attempts, key, now), "{wait}");
            now = now + Duration::from_secs(wait);
            assert_eq!(
                attempts.begin(key, now - Duration::from_millis(1)),
                Err(Refusal::TooMany),
                "{wait}"
            );
        }
        assert_eq!(attempts.begin(key, now + WINDOW), Ok(false), "all is forgotten");
    }

    #[test]
    fn failures_far_apart_cost_nothing() {
        let (mut attempts, start) = (Attempts::new(), START);
        let key = attempts.key(None, "alice");
        for minute in 0..20 {
            assert!(fail(&mut attempts, key, start + minute * WINDOW / 3));
        }
    }

    #[test]
    fn many_at_once_pass_no_more_than_in_a_row() {
        let (mut attempts, now) = (Attempts::new(), START);
        let key = attempts.key(None, "alice");
        assert!(fail(&mut attempts, key, now));
        let passed = (0..100).filter(|_| attempts.begin(key, now).is_ok()).count();
        assert_eq!(passed, 4);
    }

    #[test]
    fn flood_of_names_stays_bounded_and_forgets_the_least() {
        let (mut attempts, now) = (Attempts::new(), START);
        let guessed = attempts.key(None, "alice");
        for _ in 0..5 {
            fail(&mut attempts, guessed, now);
        }
        for number in 0..2 * ENTRIES_MAX {
            let key = attempts.key(None, &number.to_string());
            fail(&mut attempts, key, now);
        }
        assert_eq!(attempts.entries.len(), ENTRIES_MAX);
        assert_eq!(attempts.begin(guessed, now), Err(Refusal::TooMany));
    }

    #[test]
    fn hosts_are_distinguished_and_their_many_addresses_are_not() {
        let attempts = Attempts::new();
        let key = |address: &str, user| attempts.key(Some(address.parse().unwrap()), user);
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8::1", "2001:db8::2:3", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(key(one, "alice") == key(other, "alice"), same, "{one} {other}");
        }
        assert_ne!(key("192.0.2.1", "alice"), key("192.0.2.1", "bob"));
    }
}

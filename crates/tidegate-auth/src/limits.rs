//! Limits on one identity's use, counted over all its connections together.
//!
//! Always true: a connection counts from [`Meter::enter`] until its [`Lease`] is dropped; an identity that spends more than
//! it earned learns when it will have earned it, and nothing is lost.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_message::{Identity, IdentityKind, Instant, Refusal};

use crate::attempts::network;

/// Entries of [`Meters`] after which unused ones are discarded, at the least.
const SWEEP_MIN: usize = 1024;
/// Stands for a limit that is not set.
const NO_LIMIT: u64 = u64::MAX;

/// Limits of one identity; none for unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, and streams of the API.
    pub connections_max: Option<u64>,
    /// Messages that it may publish a second, and a second's worth at once.
    pub messages_per_second: Option<u64>,
    /// Bytes that it may send a second, and a second's worth at once.
    pub bytes_per_second: Option<u64>,
}

impl Limits {
    /// No limit at all.
    pub const NONE: Self =
        Self { connections_max: None, messages_per_second: None, bytes_per_second: None };

    /// Each limit of `self`, or where it has none that of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            connections_max: self.connections_max.or(other.connections_max),
            messages_per_second: self.messages_per_second.or(other.messages_per_second),
            bytes_per_second: self.bytes_per_second.or(other.bytes_per_second),
        }
    }

    /// The higher of each limit that is set.
    #[must_use]
    pub fn wider(self, other: Self) -> Self {
        // None is less than any number.
        Self {
            connections_max: self.connections_max.max(other.connections_max),
            messages_per_second: self.messages_per_second.max(other.messages_per_second),
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
        }
    }
}

/// The unit of counting: a name of a kind; without a name, the address (of IPv6 the network of 64 bits).
type Key = (IdentityKind, Arc<str>, Option<IpAddr>);

/// The meters of all identities that have a connection.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    by_identity: HashMap<Key, (Identity, Weak<Meter>)>,
    /// Entries at which it is swept next.
    sweep_at: usize,
}

impl Meters {
    /// The meter of `identity`, the same one while anybody holds it.
    pub(crate) fn meter(
        &mut self,
        identity: &Identity,
        limits: impl FnOnce() -> Limits,
    ) -> Arc<Meter> {
        let address = match identity.kind {
            IdentityKind::Anonymous => identity.address.map(network),
            _ => None,
        };
        let key = (identity.kind, identity.name.clone(), address);
        if let Some(meter) = self.by_identity.get(&key).and_then(|(_, meter)| meter.upgrade()) {
            return meter;
        }
        if self.by_identity.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.by_identity.retain(|_, (_, meter)| meter.strong_count() > 0);
            self.sweep_at = 2 * self.by_identity.len();
        }
        let meter = Arc::new(Meter::new(limits()));
        self.by_identity.insert(key, (identity.clone(), Arc::downgrade(&meter)));
        meter
    }

    /// Other limits, for those who are there as well.
    pub(crate) fn exchange(&self, limits: impl Fn(&Identity) -> Limits) {
        for (identity, meter) in self.by_identity.values() {
            if let Some(meter) = meter.upgrade() {
                meter.set_limits(limits(identity));
            }
        }
    }
}

/// The use of one identity.
#[derive(Debug)]
pub struct Meter {
    /// In the order of [`Limits`]; [`NO_LIMIT`] for none. Read for each batch of messages, by every thread of the data path.
    limits: [AtomicU64; 3],
    connections: AtomicU64,
    /// When all messages so far would have been sent at the rate that is allowed, in nanoseconds as of [`Instant`].
    messages_earned: AtomicI64,
    /// The same for bytes.
    bytes_earned: AtomicI64,
}

impl Meter {
    /// The meter of an identity that has used nothing.
    pub fn new(limits: Limits) -> Self {
        let meter = Self {
            limits: Default::default(),
            connections: AtomicU64::new(0),
            messages_earned: AtomicI64::new(i64::MIN),
            bytes_earned: AtomicI64::new(i64::MIN),
        };
        meter.set_limits(limits);
        meter
    }

    fn set_limits(&self, limits: Limits) {
        let Limits { connections_max, messages_per_second, bytes_per_second } = limits;
        let limits = [connections_max, messages_per_second, bytes_per_second];
        for (place, limit) in self.limits.iter().zip(limits) {
            place.store(limit.unwrap_or(NO_LIMIT), Ordering::Relaxed);
        }
    }

    fn limit(&self, place: usize) -> Option<u64> {
        Some(self.limits[place].load(Ordering::Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// One connection more.
    ///
    /// # Errors
    /// [`Refusal::Connections`] if there are as many as may be.
    pub fn enter(self: &Arc<Self>) -> Result<Lease, Refusal> {
        let max = self.limit(0).unwrap_or(u64::MAX);
        let count = |now: u64| (now < max).then_some(now + 1);
        match self.connections.fetch_update(Ordering::AcqRel, Ordering::Acquire, count) {
            Ok(_) => Ok(Lease { meter: Arc::clone(self) }),
            Err(_) => Err(Refusal::Connections),
        }
    }

    /// Spends messages and bytes; returns when they will have been earned, if that is later than `now`.
    pub fn spend(&self, now: Instant, messages: u64, bytes: u64) -> Option<Instant> {
        let until = [
            (&self.messages_earned, self.limit(1), messages),
            (&self.bytes_earned, self.limit(2), bytes),
        ]
        .map(|(earned, rate, amount)| rate.map(|rate| spend(earned, now, rate, amount)));
        until.into_iter().flatten().max().filter(|until| *until > now)
    }

    /// Connections now.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }
}

/// Allowance older than a second is forgotten: a second's worth is the largest burst.
fn spend(earned: &AtomicI64, now: Instant, rate: u64, amount: u64) -> Instant {
    let nanos = u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1));
    let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    let oldest = now - Duration::from_secs(1);
    let after = |at: i64| Instant::from_nanos(at).max(oldest) + cost;
    let next = |at: i64| Some(after(at).as_nanos());
    match earned.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
        Ok(before) | Err(before) => after(before),
    }
}

/// One connection of an identity; it counts until this is dropped.
#[derive(Debug)]
pub struct Lease {
    meter: Arc<Meter>,
}

impl Lease {
    /// The meter of its identity.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.meter.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: i64) -> Instant {
        Instant::from_millis(1_700_000_000_000 + millis)
    }

    #[test]
    fn connections_count_until_they_are_dropped() {
        let limits = Limits { connections_max: Some(2), ..Limits::NONE };
        let meter = Arc::new(Meter::new(limits));
        let (one, _two) = (meter.enter().unwrap(), meter.enter().unwrap());
        assert_eq!(meter.enter().unwrap_err(), Refusal::Connections);
        drop(one);
        assert!(meter.enter().is_ok());
        assert_eq!(meter.connections(), 1);
    }

    #[test]
    fn a_rate_holds_over_all_that_is_spent() {
        let limits =
            Limits { messages_per_second: Some(10), bytes_per_second: Some(1000), ..Limits::NONE };
        let meter = Meter::new(limits);
        for (at, messages, bytes, until) in [
            (0, 10, 0, None), // a second's worth at once
            (0, 1, 0, Some(100)),
            (0, 1, 0, Some(200)),
            (200, 0, 0, None),
            (200, 0, 1500, Some(700)), // bytes are a second bucket
            (700, 1, 100, Some(800)),
            (10_000, 10, 1000, None), // what was not used is no more than a second's worth
            (10_000, 1, 1, Some(10_100)),
        ] {
            let got = meter.spend(millis(at), messages, bytes);
            assert_eq!(got, until.map(millis), "{at} {messages} {bytes}");
        }
        assert_eq!(Meter::new(Limits::NONE).spend(millis(0), u64::MAX, u64::MAX), None);
        assert!(meter.spend(millis(0), u64::MAX, u64::MAX).is_some(), "no overflow");
    }

    #[test]
    fn one_name_has_one_meter_and_strangers_have_one_for_each_address() {
        let mut meters = Meters::default();
        let mut meter = |kind, name: &str, address: [u8; 4]| {
            let address = Some(address.into());
            let identity = Identity { address, ..Identity::new(kind, name, "c") };
            meters.meter(&identity, || Limits::NONE)
        };
        use IdentityKind::{Anonymous, Certificate, User};
        let (here, there) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let ada = meter(User, "ada", here);
        assert!(Arc::ptr_eq(&ada, &meter(User, "ada", there)));
        assert!(!Arc::ptr_eq(&ada, &meter(Certificate, "ada", here)));
        let stranger = meter(Anonymous, "", here);
        assert!(Arc::ptr_eq(&stranger, &meter(Anonymous, "", here)));
        assert!(!Arc::ptr_eq(&stranger, &meter(Anonymous, "", there)));
    }

    #[test]
    fn unused_meters_are_discarded() {
        let mut meters = Meters::default();
        for number in 0..3 * SWEEP_MIN {
            let identity = Identity::new(IdentityKind::User, &number.to_string(), "c");
            meters.meter(&identity, || Limits::NONE);
        }
        assert!(meters.by_identity.len() <= SWEEP_MIN + 1, "{}", meters.by_identity.len());
    }

    #[test]
    fn an_exchange_reaches_those_who_are_there() {
        let mut meters = Meters::default();
        let ada = Identity::new(IdentityKind::User, "ada", "c");
        let meter = meters.meter(&ada, || Limits::NONE);
        let _lease = meter.enter().unwrap();
        meters.exchange(|_| Limits { connections_max: Some(1), ..Limits::NONE });
        assert_eq!(meter.enter().unwrap_err(), Refusal::Connections);
    }
}

//! File descriptors of network connections: fronts stop taking them before the process has none left.
//!
//! A process that has no descriptor left cannot open a file either, nor answer `/healthz`. So a part of them is kept for all
//! that is no connection, and no front takes the part of the others.
//!
//! Always true: connections that hold a [`Descriptor`] are at most those that their front may have, and all together leave the
//! reserve.

use std::{
    io,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The part of all open files of a process that is kept for files and the rest: an eighth, within these bounds.
const RESERVED_MIN: usize = 64;
const RESERVED_MAX: usize = 1024;

/// The limit of open files is raised to this, where the system allows more: the default maximum of Linux.
const RAISED_MAX: u64 = 1 << 20;

/// Lets this process open as many files as the system allows it at most (the hard limit). The usual limit, 1024, is for programs that
/// call select(2); none of ours does, nor any that we start. To be called before the first connection is taken.
///
/// # Errors
/// The kernel's: the limit is as it was.
pub fn raise_limit() -> io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    match raised(limit.current, limit.maximum) {
        None => Ok(()),
        wanted => {
            limit.current = wanted;
            Ok(setrlimit(Resource::Nofile, limit)?)
        }
    }
}

/// The raised limit for one of `current` where `maximum` is allowed; none stands for no limit, and if there is nothing to
/// raise.
fn raised(current: Option<u64>, maximum: Option<u64>) -> Option<u64> {
    let wanted = maximum.map_or(RAISED_MAX, |maximum| maximum.min(RAISED_MAX));
    current.is_some_and(|current| current < wanted).then_some(wanted)
}

/// The fronts that accept connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// MQTT: the most, for devices are many.
    Mqtt,
    /// The API.
    Api,
    /// HTTP and WebSocket of ingest.
    Ingest,
    /// Links over TCP.
    Link,
    /// Detection for programs that know no login.
    Vision,
}

impl Front {
    /// Its word in the log.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Api => "api",
            Self::Ingest => "ingest",
            Self::Link => "link",
            Self::Vision => "vision",
        }
    }
}

/// The right to one connection; given back when dropped.
#[derive(Debug)]
pub struct Descriptor(&'static Ledger, Front);

/// How many each front has.
#[derive(Debug)]
struct Ledger {
    most: usize,
    taken: [AtomicUsize; 5],
}

/// The right to one more connection at `front`; none if it has its part, or if too few descriptors are left.
pub fn take(front: Front) -> Option<Descriptor> {
    static LEDGER: LazyLock<Ledger> = LazyLock::new(|| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Ledger::new(
            limit.current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        )
    });
    LEDGER.take(front).then(|| Descriptor(&LEDGER, front))
}

impl Ledger {
    /// Of a process that may open `limit` files.
    fn new(limit: usize) -> Self {
        let reserved = (limit / 8).clamp(RESERVED_MIN, RESERVED_MAX);
        Self { most: limit.saturating_sub(reserved), taken: Default::default() }
    }

    /// The most that this front may have: the rest is for the others.
    fn most_of(&self, front: Front) -> usize {
        match front {
            Front::Mqtt => self.most / 8 * 6,
            Front::Api | Front::Ingest | Front::Link | Front::Vision => self.most / 4,
        }
    }

    fn take(&self, front: Front) -> bool {
        let most = self.most_of(front);
        let more = |count: usize| (count < most).then_some(count + 1);
        let own = &self.taken[front as usize];
        if own.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return false;
        }
        let all: usize = self.taken.iter().map(|count| count.load(Ordering::Acquire)).sum();
        if all > self.most {
            own.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        true
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.taken[self.1 as usize].fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_front_takes_the_part_of_another_nor_the_reserve() {
        for limit in [256, 1024, 65_536] {
            let ledger = Ledger::new(limit);
            let all_of = |front| {
                let mut count = 0;
                while ledger.take(front) {
                    count += 1;
                }
                count
            };
            let api = all_of(Front::Api);
            let mqtt = all_of(Front::Mqtt);
            let rest = all_of(Front::Ingest) + all_of(Front::Link) + all_of(Front::Vision);
            assert!(api <= limit / 4 && mqtt >= limit / 2, "{limit}: {api} {mqtt}");
            assert!(api + mqtt + rest <= limit - RESERVED_MIN, "{limit}: {api} {mqtt} {rest}");
        }
    }

    #[test]
    fn a_limit_is_raised_as_far_as_the_system_allows() {
        for (current, maximum, expected) in [
            (Some(1024), Some(524_288), Some(524_288)),
            (Some(1024), Some(1 << 30), Some(RAISED_MAX)),
            (Some(1024), None, Some(RAISED_MAX)),
            (Some(1024), Some(1024), None),
            (Some(1 << 30), Some(1 << 30), None), // never lowered
            (None, None, None),
        ] {
            assert_eq!(raised(current, maximum), expected, "{current:?} of {maximum:?}");
        }
    }

    #[test]
    fn returned_places_can_be_taken_again() {
        let ledger: &'static Ledger = Box::leak(Box::new(Ledger::new(100)));
        let mut held = Vec::new();
        while ledger.take(Front::Api) {
            held.push(Descriptor(ledger, Front::Api));
        }
        assert!(!held.is_empty());
        held.pop();
        assert!(ledger.take(Front::Api));
    }
}

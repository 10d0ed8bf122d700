//! When something is to be looked at again.

use std::collections::BTreeSet;

use tidegate_message::Instant;

use crate::slab::Key;

/// The work of a timer. The setter of one notes when, and cancels it when its subject ends: peers can make timers that are
/// due in days as fast as they can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A connection has been silent for too long.
    Silence(Key),
    /// A connection's large message or query.
    Wake(Key),
    /// A session ends.
    SessionEnd(Key),
    /// A will's delay ends.
    Will(Key),
    /// A session that is full has not fetched its messages for long.
    Idle(Key),
    /// Messages of a session expire.
    Lapse(Key),
    /// The messages of an ended session go to others.
    HandOn(Key),
    /// More of the filters of a SUBSCRIBE or UNSUBSCRIBE.
    Filters(Key),
    /// A SUBACK that is held leaves.
    Suback(u64),
    /// Retained messages expire.
    Retained,
    /// `$SYS`.
    Sys,
    /// The journal is written again, or tried again.
    Journal,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    set: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Instant, timer: Timer) {
        self.set.insert((at, timer));
    }

    /// Takes back a timer that was set for `at`, if it was.
    pub(crate) fn cancel(&mut self, at: Option<Instant>, timer: Timer) {
        if let Some(at) = at {
            self.set.remove(&(at, timer));
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.set.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }

    pub(crate) fn due(&mut self, now: Instant) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.set.pop_first().map(|(_, timer)| timer)
    }
}

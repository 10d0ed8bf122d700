//! When something is to be looked at again.

use std::{cmp::Reverse, collections::BinaryHeap};

use tidegate_message::Instant;

use crate::slab::Key;

/// What is looked at. A timer may be early or about something that is gone: whoever is called checks.
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
    /// `$SYS`.
    Sys,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Timer)>>,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Instant, timer: Timer) {
        self.heap.push(Reverse((at, timer)));
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn due(&mut self, now: Instant) -> Option<Timer> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, timer))| timer)
    }
}

//! Which of two retained values of a topic is the newer, where nodes are one broker.
//!
//! A value gets a [`Stamp`] at the node where it is published, and so does the message that clears it. The stamp is a user property, the last
//! one of the message, and so it is in queues and journals and on the way to other nodes. Clients are not sent it, and one that they name so is
//! taken out: only peers are believed.
//!
//! A stamp is a hybrid logical clock: milliseconds of the clock of its node, and a counter. Clocks of nodes may be hours apart, so two rules
//! hold:
//!
//! - **A value is newer than each that its node had when it was published**, whatever the clocks say: its stamp is above that of the value,
//!   or of the mark of one that was cleared, which the node holds of the topic.
//! - Of two values of which neither node had the other one, the one of the later clock is the newer, also where that clock is wrong. All
//!   nodes decide alike.
//!
//! So a clock that is hours ahead decides between values that were published at two nodes during a cut, and no later than that.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_message::Instant;
use tidegate_wire::mqtt::stamp::Stamp;

/// Bits of a counter.
const COUNTER: u32 = 16;
/// So far ahead of ours the clock of a peer may be for ours to follow it. Values of those that are further ahead count for their topics alone.
const AHEAD_MAX: Duration = Duration::from_secs(3600);

/// The clock of a node, for all of its shards.
#[derive(Debug)]
pub(crate) struct Clock {
    node: u64,
    /// Of the last stamp that was given, or seen and not too far ahead.
    last: AtomicU64,
    /// Of the last stamp that was given above one that is too far ahead.
    ahead: AtomicU64,
}

impl Clock {
    /// That of a node, by the first bytes of its identifier.
    pub(crate) fn new(node: u64) -> Self {
        Self { node, last: AtomicU64::new(0), ahead: AtomicU64::new(0) }
    }

    /// A stamp above `held`, which is that of the topic now, and above all that it gave for the topic.
    pub(crate) fn give(&self, now: Instant, held: Option<Stamp>) -> Stamp {
        let time = next(&self.last, time_of(now));
        let above = held.map_or(0, |held| held.time + 1);
        let time = if time < above { next(&self.ahead, above) } else { time };
        Stamp { time, node: self.node }
    }

    /// The stamp of a value that was retained at that time without one: below all that are given, and above those of earlier ones.
    pub(crate) fn before_all(&self, at: Instant) -> Stamp {
        Stamp { time: time_of(at) >> COUNTER, node: self.node }
    }

    /// Follows a stamp of another node, or of an earlier process, unless that is too far ahead.
    pub(crate) fn see(&self, now: Instant, stamp: Stamp) {
        if stamp.time <= time_of(now + AHEAD_MAX) {
            self.last.fetch_max(stamp.time, Ordering::Relaxed);
        }
    }
}

/// The greater one of `least` and what follows the last; that is the last from now on.
fn next(last: &AtomicU64, least: u64) -> u64 {
    let above = |last: u64| least.max(last + 1);
    let former = last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| Some(above(it)));
    above(former.expect("there is always a next"))
}

fn time_of(at: Instant) -> u64 {
    let millis = u64::try_from(at.as_nanos() / 1_000_000).unwrap_or(0);
    millis << COUNTER
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(1_700_000_000_000);

    #[test]
    fn a_later_cause_is_newer_whatever_the_clocks_say() {
        let (here, there) = (Clock::new(1), Clock::new(2));
        for hours_ahead in [0, 1, 5, 24 * 365 * 100] {
            let ahead = NOW + Duration::from_secs(hours_ahead * 3600);
            let theirs = there.give(ahead, None);
            here.see(NOW, theirs);
            let ours = here.give(NOW, Some(theirs));
            assert!(ours > theirs, "{hours_ahead}");
            // Two at once differ, and the next is above both.
            assert!(here.give(NOW, Some(theirs)) > ours, "{hours_ahead}");
            assert!(there.give(ahead, Some(ours)) > ours, "{hours_ahead}");
        }
        // A stamp that is too far ahead counts for its topic alone.
        assert!(here.give(NOW, None).time <= time_of(NOW + 2 * AHEAD_MAX));
    }

    #[test]
    fn stamps_of_a_clock_rise_though_its_time_does_not() {
        let clock = Clock::new(1);
        let mut last = clock.give(NOW, None);
        for back in 0..100_000 {
            let stamp = clock.give(Instant::from_millis(NOW.as_nanos() / 1_000_000 - back), None);
            assert!(stamp > last);
            last = stamp;
        }
    }
}

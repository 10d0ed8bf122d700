//! The node's clock: monotonic, anchored to wall time when the program starts; and what the wall clock says by now.
//!
//! Time that is ordered or measured inside goes by [`now`]. Time that is written outside (points and rows of sinks, names of files by
//! date, the time in a message that a flow publishes, the plausibility of a time that a device sends) follows the wall clock, by
//! [`to_wall`].
//! Only a step of the wall clock parts the two: the kernel slews both alike.
//!
//! Always true: [`now`] never goes backwards and never jumps, whatever is done to the wall clock meanwhile. Two programs on one
//! machine agree on it but for what the wall clock was corrected between their starts. One instant is the same wall time each time
//! that it is asked for, unless the wall clock was stepped in between.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tidegate_message::Instant;
use tidegate_sys::clock::{monotonic_nanos, realtime_nanos};

/// The current instant.
pub fn now() -> Instant {
    at(monotonic_nanos())
}

/// The instant of a reading of `CLOCK_MONOTONIC`.
pub fn at(monotonic: i64) -> Instant {
    Instant::from_nanos(monotonic.saturating_add(anchor()))
}

/// Nanoseconds that the wall clock was ahead of `CLOCK_MONOTONIC` when the program started.
fn anchor() -> i64 {
    static ANCHOR: OnceLock<i64> = OnceLock::new();
    *ANCHOR.get_or_init(|| realtime_nanos().saturating_sub(monotonic_nanos()))
}

/// A wall clock that is off by less was not stepped: the two clocks are read one after the other.
const STEP_NANOS_MIN: i64 = 100_000_000;

/// Nanoseconds that the wall clock is ahead of [`now`], because it was stepped since the program started; negative if it is behind.
pub fn wall_ahead() -> i64 {
    static STEPS: Steps = Steps(AtomicI64::new(0));
    STEPS.follow(monotonic_nanos(), realtime_nanos(), monotonic_nanos, anchor())
}

/// The wall time of an instant of this clock, as the wall clock goes now.
pub fn to_wall(at: Instant) -> Instant {
    shifted(at, wall_ahead())
}

/// The latest time that an instant may be taken for: the wall time, or what that would be, had the wall clock not been set back since the
/// program started. For ends that must not be put off by a clock.
pub fn latest_wall(at: Instant) -> Instant {
    to_wall(at).max(at)
}

/// The instant of this clock at a wall time, as the wall clock goes now.
pub fn from_wall(at: Instant) -> Instant {
    shifted(at, wall_ahead().saturating_neg())
}

/// An instant that is so many nanoseconds later, or earlier if they are negative.
pub fn shifted(at: Instant, nanos: i64) -> Instant {
    Instant::from_nanos(at.as_nanos().saturating_add(nanos))
}

/// The steps of the wall clock since the start, in all.
struct Steps(AtomicI64);

impl Steps {
    /// Their sum, after readings of the monotonic clock, the wall clock and the monotonic clock again.
    fn follow(&self, before: i64, wall: i64, after: impl Fn() -> i64, anchor: i64) -> i64 {
        let known = self.0.load(Ordering::Relaxed);
        let ahead = wall.saturating_sub(before).saturating_sub(anchor);
        let was_stepped = ahead.saturating_sub(known).saturating_abs() >= STEP_NANOS_MIN;
        // A thread that was held up between two readings looks again with the next message.
        if !was_stepped || after().saturating_sub(before) >= STEP_NANOS_MIN / 10 {
            return known;
        }
        let exchanged = self.0.compare_exchange(known, ahead, Ordering::Relaxed, Ordering::Relaxed);
        if exchanged.is_ok() {
            let by_seconds = ahead.saturating_sub(known) as f64 / 1e9;
            tracing::warn!(
                by_seconds,
                "the system clock was set; times written to sinks and messages follow it, internal order does not"
            );
        }
        exchanged.map_or_else(|newer| newer, |_| ahead)
    }
}

/// A wall clock before this was never set.
const SET_SINCE: Instant = Instant::from_millis(1_704_067_200_000);

/// Whether the wall clock shows a time before this program was made: the machine has no battery for its clock, and waits for the
/// network's time.
pub fn is_unset() -> bool {
    realtime_nanos() < SET_SINCE.as_nanos()
}

/// Sleeps until that instant; at once if it has passed, forever without one.
pub async fn sleep_until(at: Option<Instant>) {
    match at {
        // A deadline that is due is due: sleeping a whole timer tick would be late already.
        Some(at) => {
            let left = at.since(now());
            if left > Duration::ZERO {
                tokio::time::sleep(left).await;
            }
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_wall_clock_are_followed_and_nothing_else_is() {
        const SECOND: i64 = 1_000_000_000;
        let steps = Steps(AtomicI64::new(0));
        let anchor = 1_700_000_000 * SECOND;
        for (at, wall_off, took, expected) in [
            (10, 0, 0, 0),
            // The two are not read at once.
            (11, 400, 900, 0),
            (12, 1_800 * SECOND, 0, 1_800 * SECOND),
            (13, 1_800 * SECOND + 700, 0, 1_800 * SECOND),
            // Held up between the readings: nothing is known.
            (14, 1_801 * SECOND, SECOND, 1_800 * SECOND),
            (15, -1_800 * SECOND, 0, -1_800 * SECOND),
            (16, 0, 0, 0),
            // From 1970 on, and back.
            (17, 50 * 365 * 86_400 * SECOND, 0, 50 * 365 * 86_400 * SECOND),
            (18, -anchor, 0, -anchor),
        ] {
            let before = at * SECOND;
            let ahead = steps.follow(before, anchor + before + wall_off, || before + took, anchor);
            assert_eq!(ahead, expected, "at {at} s");
        }
    }

    #[test]
    fn an_instant_is_the_same_wall_time_each_time() {
        let at = now();
        let wall = to_wall(at);
        assert!((0..10_000).all(|_| to_wall(at) == wall));
    }

    #[test]
    fn never_goes_backwards() {
        let mut last = now();
        for _ in 0..1000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }
}

//! The two clocks of a node.
//!
//! The wall clock is off, drifts, and is set while the node runs. The monotonic clock drifts as much, begins at zero when the machine
//! does, is never set, and stands still while the machine sleeps (`CLOCK_MONOTONIC` of Linux).

use tidegate_message::Instant;

const MILLION: i128 = 1_000_000;

/// The readings of a node's clocks, by the time of the world.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// The world's time at which the clocks showed the two below.
    since: Instant,
    monotonic: Instant,
    wall: Instant,
    /// Nanoseconds that both gain in a millisecond.
    drift_ppm: i32,
}

impl Clock {
    /// Of a machine that begins at `now` and whose wall clock is so far ahead.
    pub(super) fn new(now: Instant, ahead_nanos: i64, drift_ppm: i32) -> Self {
        let wall = moved(now, ahead_nanos.into());
        Self { since: now, monotonic: Instant::EPOCH, wall, drift_ppm }
    }

    /// Time since the machine began, while it was awake, from the epoch on.
    pub(super) fn monotonic(&self, now: Instant) -> Instant {
        moved(self.monotonic, self.gone(now))
    }

    pub(super) fn wall(&self, now: Instant) -> Instant {
        moved(self.wall, self.gone(now))
    }

    /// The world's time at which the monotonic clock shows `at`; `now` if it has shown that.
    pub(super) fn when(&self, now: Instant, at: Instant) -> Instant {
        let left = i128::from(at.nanos_since(self.monotonic));
        // Rounded up: a timer is never early.
        let nanos = (left * MILLION).div_euclid(MILLION + i128::from(self.drift_ppm)) + 1;
        moved(self.since, nanos).max(now)
    }

    /// Sets the wall clock ahead, or back.
    pub(super) fn set(&mut self, now: Instant, nanos: i64) {
        self.keep(now);
        self.wall = moved(self.wall, nanos.into());
    }

    /// Drifts from now on by so many nanoseconds a millisecond.
    pub(super) fn drift(&mut self, now: Instant, drift_ppm: i32) {
        self.keep(now);
        self.drift_ppm = drift_ppm;
    }

    /// The machine slept from `from` until now.
    pub(super) fn slept(&mut self, from: Instant, now: Instant) {
        let monotonic = self.monotonic(from);
        self.keep(now);
        self.monotonic = monotonic;
    }

    /// The machine begins again.
    pub(super) fn boot(&mut self, now: Instant) {
        self.keep(now);
        self.monotonic = Instant::EPOCH;
    }

    fn keep(&mut self, now: Instant) {
        (self.monotonic, self.wall) = (self.monotonic(now), self.wall(now));
        self.since = now;
    }

    fn gone(&self, now: Instant) -> i128 {
        let nanos = i128::from(now.nanos_since(self.since));
        nanos + nanos * i128::from(self.drift_ppm) / MILLION
    }
}

fn moved(at: Instant, nanos: i128) -> Instant {
    let moved = i128::from(at.as_nanos()) + nanos;
    Instant::from_nanos(moved.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000_000;

    fn at(seconds: i64) -> Instant {
        Instant::from_millis(1_000_000_000_000 + seconds * 1_000)
    }

    #[test]
    fn setting_the_wall_clock_leaves_the_monotonic_one() {
        let mut clock = Clock::new(at(0), 3 * HOUR, 0);
        assert_eq!(clock.wall(at(0)).nanos_since(at(0)), 3 * HOUR);
        let monotonic = clock.monotonic(at(10));
        clock.set(at(10), -5 * HOUR);
        assert_eq!(clock.wall(at(10)).nanos_since(at(10)), -2 * HOUR);
        assert_eq!(clock.monotonic(at(10)), monotonic);
        assert_eq!(clock.monotonic(at(11)).nanos_since(monotonic), 1_000_000_000);
    }

    #[test]
    fn a_clock_drifts_from_when_it_is_made_to() {
        let mut clock = Clock::new(at(0), 0, 0);
        clock.drift(at(1_000), 200);
        assert_eq!(clock.wall(at(1_000)), at(1_000));
        assert_eq!(clock.wall(at(2_000)).nanos_since(at(2_000)), 200_000_000);
        clock.drift(at(2_000), -200);
        assert_eq!(clock.wall(at(3_000)), at(3_000));
    }

    #[test]
    fn a_timer_is_never_early_and_late_by_nanoseconds() {
        for drift in [-500, -1, 0, 7, 500] {
            let clock = Clock::new(at(0), 0, drift);
            for nanos in [1, 999, 1_000_003, 3_333_333_333] {
                let asked = Instant::from_nanos(nanos);
                let when = clock.when(at(0), asked);
                assert!(clock.monotonic(when) >= asked, "drift {drift}, {nanos} ns");
                let late = clock.monotonic(when).nanos_since(asked);
                assert!(late <= 2, "drift {drift}, {nanos} ns: {late} ns late");
            }
        }
    }

    #[test]
    fn a_sleeping_machine_counts_no_time_and_one_that_begins_again_from_zero() {
        let mut clock = Clock::new(at(0), 0, 0);
        clock.slept(at(10), at(100));
        assert_eq!(clock.monotonic(at(100)), Instant::from_millis(10_000));
        assert_eq!(clock.wall(at(100)), at(100));
        clock.boot(at(120));
        assert_eq!(clock.monotonic(at(121)), Instant::from_millis(1_000));
        assert_eq!(clock.wall(at(121)), at(121));
    }
}

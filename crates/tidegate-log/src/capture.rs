//! Capture times that no clock setting can freeze.
//!
//! A camera stamps its frames with wall time, so that frames of several cameras can be compared, but it
//! reads the wall clock only once. From then on it adds the count of the monotonic clock: setting the wall
//! clock, backwards or forwards, moves no capture time of a running camera.
//!
//! A restart reads the wall clock again, and that may have been set backwards in between. Each start
//! therefore has its own epoch, and a holder of earlier stamps sees from the two [`CaptureStamp`]s that
//! this is a restart and not a late frame.
//!
//! Always true: the times of one clock strictly increase; nothing here reads a clock.

use std::time::Duration;

use tidegate_message::{Code, Instant};

/// The three readings, taken together, that a capture clock starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureAnchor {
    /// The wall clock.
    pub wall: Instant,
    /// The monotonic clock, in nanoseconds.
    pub monotonic_nanos: i64,
    /// The kernel's id of its current boot.
    pub boot_id: [u8; 16],
}

impl CaptureAnchor {
    fn epoch(&self) -> u64 {
        let Self { wall, monotonic_nanos, boot_id } = self;
        let readings = [monotonic_nanos.to_le_bytes(), wall.as_nanos().to_le_bytes()];
        // FNV-1a, 64 bits: the boot id is random already, this only spreads it.
        boot_id.iter().chain(readings.as_flattened()).fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// Turns monotonic time into capture times.
///
/// ```
/// # use tidegate_log::{CaptureAnchor, CaptureClock};
/// # use tidegate_message::Instant;
/// let wall = Instant::from_millis(1_700_000_000_000);
/// let mut clock =
///     CaptureClock::new(CaptureAnchor { wall, monotonic_nanos: 5_000, boot_id: [7; 16] });
/// assert_eq!(clock.at(5_200), Instant::from_nanos(wall.as_nanos() + 200));
/// ```
#[derive(Clone, Debug)]
pub struct CaptureClock {
    anchor: CaptureAnchor,
    limits: TimestampLimits,
    epoch: u64,
    last: Option<Instant>,
}

/// How far a timestamp from outside may lie from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampLimits {
    /// How far ahead a stamp may be: the tolerated difference between the clocks of source and node. Default 1 s.
    pub future_max: Duration,
    /// How far behind: the longest that a source may take to hand a frame over. Default 60 s.
    pub past_max: Duration,
}

impl Default for TimestampLimits {
    fn default() -> Self {
        Self { future_max: Duration::from_secs(1), past_max: Duration::from_secs(60) }
    }
}

impl CaptureClock {
    /// A clock that starts at `anchor`, with default limits for timestamps from outside.
    pub fn new(anchor: CaptureAnchor) -> Self {
        Self::with_limits(anchor, TimestampLimits::default())
    }

    /// A clock that starts at `anchor`.
    pub fn with_limits(anchor: CaptureAnchor, limits: TimestampLimits) -> Self {
        Self { anchor, limits, epoch: anchor.epoch(), last: None }
    }

    /// A clock that continues that of an earlier process, whose newest stamp was `before`: it keeps its epoch, and its times are
    /// later. To be used only where no stamp of that clock can be later than the anchor.
    pub fn continuing(
        anchor: CaptureAnchor,
        limits: TimestampLimits,
        before: CaptureStamp,
    ) -> Self {
        Self { anchor, limits, epoch: before.epoch, last: Some(before.at) }
    }

    /// The capture time of a frame that was taken when the monotonic clock showed `monotonic_nanos`.
    ///
    /// Later than every time before, by a nanosecond if the clock has not moved.
    pub fn at(&mut self, monotonic_nanos: i64) -> Instant {
        let now = self.now(monotonic_nanos);
        let at = match self.last {
            Some(last) if now <= last => last + Duration::from_nanos(1),
            _ => now,
        };
        self.last = Some(at);
        at
    }

    /// Accepts the timestamp that a source gave its frame, as the frame's capture time.
    ///
    /// # Errors
    /// It lies too far ahead of or behind the present, or is not later than the capture time before.
    pub fn admit(
        &mut self,
        claimed: Instant,
        monotonic_nanos: i64,
    ) -> Result<Instant, TimestampError> {
        let now = self.now(monotonic_nanos);
        let TimestampLimits { future_max, past_max } = self.limits;
        if claimed > now + future_max {
            return Err(TimestampError::Future { claimed, now, future_max });
        }
        if claimed < now - past_max {
            return Err(TimestampError::Past { claimed, now, past_max });
        }
        match self.last {
            Some(last) if claimed <= last => Err(TimestampError::NotLater { claimed, last }),
            _ => {
                self.last = Some(claimed);
                Ok(claimed)
            }
        }
    }

    /// The present by this clock: wall time at the start and what has passed since.
    pub fn now(&self, monotonic_nanos: i64) -> Instant {
        let passed = monotonic_nanos.saturating_sub(self.anchor.monotonic_nanos);
        Instant::from_nanos(self.anchor.wall.as_nanos().saturating_add(passed))
    }

    /// Nanoseconds by which the wall clock, set or disciplined since the start, is now ahead of this one.
    pub fn wall_ahead_nanos(&self, wall: Instant, monotonic_nanos: i64) -> i64 {
        wall.nanos_since(self.now(monotonic_nanos))
    }

    /// Names this start of this clock: another one for each start and each boot, unless it [continues](Self::continuing) one.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The newest capture time with the epoch of this clock, if there is one.
    pub fn stamp(&self) -> Option<CaptureStamp> {
        self.last.map(|at| CaptureStamp { epoch: self.epoch(), at })
    }
}

/// A capture time together with the clock that it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CaptureStamp {
    /// [`CaptureClock::epoch`] of that clock.
    pub epoch: u64,
    /// The capture time.
    pub at: Instant,
}

/// How one stamp of a camera relates to the stamp received before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// The same clock, later.
    Continues,
    /// The same clock, but not later: a repeated or late frame.
    Repeats,
    /// The camera has restarted, and its time is later: its log can be continued.
    Restarted,
    /// The camera has restarted with its wall clock set backwards. This is no late frame: later
    /// frames belong in a new log.
    SteppedBack {
        /// How far before the stamp received last.
        by: Duration,
    },
}

impl CaptureStamp {
    /// How this stamp relates to the one that was received `before` it.
    pub fn follows(self, before: Self) -> Continuity {
        match (self.epoch == before.epoch, self.at > before.at) {
            (true, true) => Continuity::Continues,
            (true, false) => Continuity::Repeats,
            (false, true) => Continuity::Restarted,
            (false, false) => Continuity::SteppedBack { by: before.at.since(self.at) },
        }
    }
}

/// Why a timestamp from outside is no capture time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    /// It lies in the future.
    #[error(
        "timestamp {claimed} is ahead of the present {now} by more than {future_max:?}; \
         set the source's clock, or let the camera stamp its frames"
    )]
    Future {
        /// The timestamp.
        claimed: Instant,
        /// The present.
        now: Instant,
        /// How far ahead is allowed.
        future_max: Duration,
    },
    /// It lies too far in the past.
    #[error(
        "timestamp {claimed} is behind the present {now} by more than {past_max:?}; \
         set the source's clock, or let the camera stamp its frames"
    )]
    Past {
        /// The timestamp.
        claimed: Instant,
        /// The present.
        now: Instant,
        /// How far behind is allowed.
        past_max: Duration,
    },
    /// It is not later than that of the frame before.
    #[error("timestamp {claimed} is not later than {last}, that of the frame before")]
    NotLater {
        /// The timestamp.
        claimed: Instant,
        /// The capture time of the frame before.
        last: Instant,
    },
}

impl TimestampError {
    /// The stable code of this error.
    pub fn code(&self) -> Code {
        Code::FRAME_TIMESTAMP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Instant = Instant::from_millis(1_700_000_000_000);
    const ANCHOR: CaptureAnchor =
        CaptureAnchor { wall: WALL, monotonic_nanos: 1_000, boot_id: [1; 16] };

    fn after(nanos: i64) -> Instant {
        Instant::from_nanos(WALL.as_nanos() + nanos)
    }

    #[test]
    fn times_strictly_increase_whatever_the_monotonic_clock_shows() {
        let mut clock = CaptureClock::new(ANCHOR);
        for (monotonic, passed) in
            [(1_000, 0), (1_000, 1), (1_500, 500), (900, 501), (i64::MIN, 502), (1_503, 503)]
        {
            assert_eq!(clock.at(monotonic), after(passed), "at {monotonic}");
        }
        assert_eq!(clock.at(i64::MAX), Instant::from_nanos(i64::MAX));
    }

    #[test]
    fn a_step_of_the_wall_clock_is_reported_and_moves_no_capture() {
        let mut clock = CaptureClock::new(ANCHOR);
        let second = 1_000_000_000;
        assert_eq!(clock.wall_ahead_nanos(after(-3600 * second), 1_000), -3600 * second);
        assert_eq!(clock.at(1_000 + second), after(second));
        assert_eq!(clock.wall_ahead_nanos(after(7 * second), 1_000 + 2 * second), 5 * second);
        assert_eq!(clock.at(1_000 + 2 * second), after(2 * second));
    }

    #[test]
    fn a_restart_with_the_wall_clock_set_backwards_is_recognised() {
        let mut clock = CaptureClock::new(ANCHOR);
        clock.at(5_000);
        let before = clock.stamp().unwrap();
        let restart = |wall, monotonic_nanos, boot_id| {
            let mut clock = CaptureClock::new(CaptureAnchor { wall, monotonic_nanos, boot_id });
            clock.at(monotonic_nanos);
            clock.stamp().unwrap().follows(before)
        };
        let same_boot = ANCHOR.boot_id;
        assert_eq!(restart(after(9_000), 10_000, same_boot), Continuity::Restarted);
        assert_eq!(restart(after(9_000), 10, [2; 16]), Continuity::Restarted);
        let by = Duration::from_nanos(4_000 + 500);
        assert_eq!(restart(after(-500), 10_000, same_boot), Continuity::SteppedBack { by });
        assert_eq!(restart(after(-500), 10, [2; 16]), Continuity::SteppedBack { by });

        clock.at(6_000);
        let later = clock.stamp().unwrap();
        assert_eq!(later.follows(before), Continuity::Continues);
        assert_eq!(before.follows(later), Continuity::Repeats);
    }

    #[test]
    fn a_clock_that_continues_another_keeps_its_epoch_and_goes_on_after_it() {
        let mut clock = CaptureClock::new(ANCHOR);
        clock.at(5_000);
        let before = clock.stamp().unwrap();
        let anchor = CaptureAnchor { wall: after(4_000), monotonic_nanos: 5_000, ..ANCHOR };
        let mut next = CaptureClock::continuing(anchor, TimestampLimits::default(), before);
        assert_eq!(next.at(5_000), after(4_001), "not the time that was given before");
        let stamp = next.stamp().unwrap();
        assert_eq!((stamp.epoch, stamp.follows(before)), (before.epoch, Continuity::Continues));
        assert_ne!(CaptureClock::new(anchor).epoch(), before.epoch);
    }

    #[test]
    fn timestamps_from_outside_are_held_against_now_and_against_the_last() {
        let limits = TimestampLimits {
            future_max: Duration::from_nanos(10),
            past_max: Duration::from_nanos(100),
        };
        let mut clock = CaptureClock::with_limits(ANCHOR, limits);
        let now = 2_000;
        let present = after(1_000);
        let mut admit = |passed| clock.admit(after(passed), now);
        assert_eq!(
            admit(1_011),
            Err(TimestampError::Future {
                claimed: after(1_011),
                now: present,
                future_max: limits.future_max
            })
        );
        assert_eq!(
            admit(899),
            Err(TimestampError::Past {
                claimed: after(899),
                now: present,
                past_max: limits.past_max
            })
        );
        assert_eq!(admit(900), Ok(after(900)));
        assert_eq!(
            admit(900),
            Err(TimestampError::NotLater { claimed: after(900), last: after(900) })
        );
        assert_eq!(admit(1_010), Ok(after(1_010)));
        assert_eq!(clock.at(now), after(1_011), "own stamps continue after admitted ones");
    }

    #[test]
    fn no_timestamp_overflows() {
        let mut clock = CaptureClock::new(ANCHOR);
        assert!(matches!(clock.admit(Instant::MAX, 0), Err(TimestampError::Future { .. })));
        assert!(matches!(clock.admit(Instant::MIN, 0), Err(TimestampError::Past { .. })));
    }
}

//! When the next frame of a paced source is due.
//!
//! Due times form a grid: the phase plus a whole number of periods since the Unix epoch. A late reader of the grid is
//! not late forever: times that passed are skipped, and the grid does not move. Because the grid is tied to the epoch, two
//! cameras whose clocks agree are staggered by their phases alone.
//!
//! Always true: due times never decrease; between two of them lies at least half a period, also when the phase or the
//! rate changes; at a steady phase and rate the k-th follows the first by k periods, to the nanosecond.

use std::time::Duration;

use tidegate_message::Instant;

use super::Rate;

/// The schedule of a paced source.
#[derive(Clone, Debug)]
pub struct Pace {
    rate: Rate,
    phase_nanos: i128,
    /// The due time that was taken last.
    last: Option<i128>,
    start: i128,
}

/// 10^12 over millihertz is the period in nanoseconds.
const SCALE: i128 = 1_000_000_000_000;

impl Pace {
    /// A schedule whose first frame is due at `start`.
    pub fn new(rate: Rate, start: Instant) -> Self {
        let start = i128::from(start.as_nanos());
        let mut pace = Self { rate, phase_nanos: 0, last: None, start };
        // The phase is what start is past the grid's latest line.
        pace.phase_nanos = start - pace.line(pace.index_at_or_before(start));
        pace
    }

    /// When the next frame is due.
    pub fn due(&self) -> Instant {
        to_instant(self.line(self.next_index()))
    }

    /// Takes the frame that is due and returns how many due times had passed unused before it.
    ///
    /// `now` earlier than [`Self::due`] takes that frame early.
    pub fn take(&mut self, now: Instant) -> u64 {
        let first = self.next_index();
        let latest = self.index_at_or_before(i128::from(now.as_nanos())).max(first);
        self.last = Some(self.line(latest));
        u64::try_from(latest - first).unwrap_or(0)
    }

    /// Leaves out the due times that have passed before `now`, as if there had been no frame for them.
    pub fn resume(&mut self, now: Instant) {
        self.start = self.earliest().max(i128::from(now.as_nanos()));
        self.last = None;
    }

    /// Moves the grid so that its lines lie `phase` after whole periods since the Unix epoch.
    pub fn set_phase(&mut self, phase: Duration) {
        let period = SCALE / i128::from(self.rate.millihertz());
        self.phase_nanos = i128::try_from(phase.as_nanos()).unwrap_or(0) % period.max(1);
    }

    /// Moves the grid later by `shift`. Whole periods have no effect.
    pub fn delay(&mut self, shift: Duration) {
        let phase = Duration::from_nanos(u64::try_from(self.phase_nanos).unwrap_or(0));
        self.set_phase(phase.saturating_add(shift));
    }

    /// How far the grid's lines lie after whole periods since the Unix epoch.
    pub fn phase(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.phase_nanos).unwrap_or(0))
    }

    /// Frames per second.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Changes the rate; the phase stays, reduced to the new period.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
        self.set_phase(self.phase());
    }

    /// No frame is due before.
    fn earliest(&self) -> i128 {
        match self.last {
            None => self.start,
            Some(last) => last + SCALE / i128::from(self.rate.millihertz()) / 2,
        }
    }

    fn next_index(&self) -> i128 {
        let earliest = self.earliest();
        let index = self.index_at_or_before(earliest);
        if self.line(index) < earliest { index + 1 } else { index }
    }

    fn index_at_or_before(&self, nanos: i128) -> i128 {
        let index =
            ((nanos - self.phase_nanos) * i128::from(self.rate.millihertz())).div_euclid(SCALE);
        // Lines are rounded down, so the next one may already be reached.
        if self.line(index + 1) <= nanos { index + 1 } else { index }
    }

    fn line(&self, index: i128) -> i128 {
        self.phase_nanos + (index * SCALE).div_euclid(i128::from(self.rate.millihertz()))
    }
}

fn to_instant(nanos: i128) -> Instant {
    Instant::from_nanos(i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOON: i64 = 1_700_000_000_123_456_789;

    fn start() -> Instant {
        Instant::from_nanos(NOON)
    }

    #[test]
    fn an_absence_is_not_made_up_for() {
        let mut pace = Pace::new(Rate::new(5.0).unwrap(), start());
        assert_eq!(pace.take(start()), 0);
        let back = start() + Duration::from_secs(3600) + Duration::from_millis(30);
        pace.resume(back);
        assert_eq!(pace.due(), start() + Duration::from_millis(3_600_200), "the grid is the same");
        assert_eq!(pace.take(pace.due()), 0);
        // At once after a frame, it changes nothing.
        let next = pace.due();
        pace.resume(start());
        assert_eq!(pace.due(), next);
    }

    #[test]
    fn cadences_are_exact_over_an_hour() {
        for (per_second, frames) in
            [(5.0, 18_000), (15.0, 54_000), (30.0, 108_000), (29.97, 107_892)]
        {
            let mut pace = Pace::new(Rate::new(per_second).unwrap(), start());
            for index in 0..frames {
                let offset = pace.due().nanos_since(start());
                let exact = f64::from(index) / per_second * 1e9;
                assert!(
                    (offset as f64 - exact).abs() <= 2.0,
                    "{per_second} fps, frame {index}: {offset}"
                );
                assert_eq!(pace.take(pace.due()), 0);
            }
            assert!(
                pace.due().since(start()) >= Duration::from_secs(3600) - Duration::from_nanos(2)
            );
        }
    }

    #[test]
    fn a_late_reader_skips_and_the_grid_stays() {
        let mut pace = Pace::new(Rate::new(10.0).unwrap(), start());
        let at = |millis: u64| start() + Duration::from_millis(millis);
        assert_eq!(pace.take(at(0)), 0);
        assert_eq!(pace.take(at(199)), 0, "99 ms late is late, but nothing was skipped");
        assert_eq!(pace.due(), at(200));
        assert_eq!(pace.take(at(455)), 2, "200 and 300 passed; this is the frame of 400");
        assert_eq!(pace.due(), at(500));
    }

    #[test]
    fn two_cameras_are_staggered_by_their_phases() {
        let rate = Rate::new(5.0).unwrap();
        let mut first = Pace::new(rate, start());
        let mut second = Pace::new(rate, start() + Duration::from_millis(731));
        first.set_phase(Duration::from_millis(10));
        second.set_phase(Duration::from_millis(50));
        for pace in [&mut first, &mut second] {
            (0..10).for_each(|_| assert_eq!(pace.take(pace.due()), 0));
        }
        let apart = second.due().nanos_since(first.due()).rem_euclid(200_000_000);
        assert_eq!(apart, 40_000_000);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { late: u64 },
        Phase(u64),
        Delay(u64),
        Rate(f64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..500_000_000).prop_map(|late| Step::Take { late }),
            1 => (0u64..2_000_000_000).prop_map(Step::Phase),
            1 => (0u64..2_000_000_000).prop_map(Step::Delay),
            1 => (0.5..60.0).prop_map(Step::Rate),
        ]
    }

    proptest! {
        #[test]
        fn frames_are_never_closer_than_half_a_period(steps in prop::collection::vec(step(), 1..60)) {
            let mut pace = Pace::new(Rate::DEFAULT, start());
            let mut last_due = None;
            for step in steps {
                match step {
                    Step::Phase(nanos) => pace.set_phase(Duration::from_nanos(nanos)),
                    Step::Delay(nanos) => pace.delay(Duration::from_nanos(nanos)),
                    Step::Rate(per_second) => pace.set_rate(Rate::new(per_second).unwrap()),
                    Step::Take { late } => {
                        let due = pace.due();
                        if let Some(last) = last_due {
                            let half = pace.rate().period() / 2;
                            prop_assert!(due.since(last) + Duration::from_nanos(2) >= half, "{:?} {:?}", due.since(last), half);
                        }
                        let skipped = pace.take(due + Duration::from_nanos(late));
                        prop_assert!(skipped as f64 <= late as f64 / 1e9 * pace.rate().per_second() + 1.0);
                        last_due = Some(due);
                    }
                }
            }
        }

        #[test]
        fn a_new_phase_holds_within_one_and_a_half_periods(phase in 0u64..200_000_000, before in 0u32..20) {
            let mut pace = Pace::new(Rate::DEFAULT, start());
            (0..=before).for_each(|_| { pace.take(pace.due()); });
            let last = pace.due() - Duration::from_millis(200);
            pace.set_phase(Duration::from_nanos(phase));
            let gap = pace.due().since(last);
            prop_assert!(gap >= Duration::from_millis(100) && gap <= Duration::from_millis(300));
            prop_assert_eq!(pace.due().as_nanos().rem_euclid(200_000_000), i64::try_from(phase).unwrap());
        }
    }
}

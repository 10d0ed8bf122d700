//! The joint budget of network and detector: what the detector needs is measured, and the network's bound is the rest.
//!
//! ```text
//!  capture ├──────── network ────────┤├─ detector, p95 of the last seconds ─┤ published
//!          └──────────────── bound of the application ──────────────────────┘
//! ```
//!
//! A state machine without I/O and clock. The application names one bound, from capture to the detection; a bound of the network alone
//! is no use to it. The detector's time is that from a frame to its detection, waits for a program included, so that a detector that is
//! shared by more cameras leaves less to each network.
//!
//! Times can be learned from frames alone, and a bound of the network that is too short lets none come: once none were looked at for a
//! while, what is known is forgotten, and the network has the bound of the beginning again.
//!
//! Always true: the network is asked for a tenth of the bound at least, so that a slow detector does not spoil pictures for nothing; a bound
//! that is asked for is one that can be asked for.

use std::{collections::VecDeque, time::Duration};

use tidegate_message::{Bounds, Instant};

/// The part of the detector's times that is within what it is given.
const PERCENTILE: f64 = 0.95;
/// Times older than this say nothing about now.
const WINDOW: Duration = Duration::from_secs(10);
/// Times that are kept however old they are: a slow camera gives no more.
const TIMES_MIN: usize = 20;
/// Times that are kept at most.
const TIMES_MAX: usize = 256;
/// Without a frame for this many times as long as the last ones were apart, and for [`WINDOW`] at least, the times are forgotten: a
/// slow camera is not taken for one whose frames are all late.
const SILENCE_GAPS: u32 = 3;
/// Fewer times are no reason to say that no budget is left: the first are those of a program that begins.
const TIMES_FOR_VERDICT: usize = 8;
/// The network's part of the bound at least.
const NETWORK_PART_MIN: u32 = 10;
/// Between one change and the next to a shorter bound, and to a longer one: a bound that is too long is late at once, one that is too
/// short costs quality alone.
const SHORTER_AFTER: Duration = Duration::from_millis(200);
const LONGER_AFTER: Duration = Duration::from_secs(2);
/// Changes of less than this part of the bound are not worth an update.
const STEP_PART: u32 = 20;

/// The budget of one camera's frames.
#[derive(Debug)]
pub struct Budget {
    bound: Duration,
    times: VecDeque<(Instant, Duration)>,
    /// When the last frame was looked at, and the last waits from one to the next, which outlast the times.
    looked_at: Option<Instant>,
    gaps: [Duration; 2],
    asked: Duration,
    changed_at: Option<Instant>,
    is_spent: bool,
    /// Whether a frame was looked at: the first also waits for the program to make ready for the camera.
    is_warm: bool,
}

/// The detector alone takes too long for the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Its time, at the 95th percentile.
    pub detector: Duration,
    /// The least that the network would have to have.
    pub network: Duration,
    /// The bound.
    pub bound: Duration,
}

impl Budget {
    /// For a bound from capture to the detection. Before anything is measured the network has half of it.
    pub fn new(bound: Duration) -> Self {
        Self {
            bound,
            times: VecDeque::new(),
            looked_at: None,
            gaps: [Duration::ZERO; 2],
            asked: askable(bound / 2),
            changed_at: None,
            is_spent: false,
            is_warm: false,
        }
    }

    /// The bound of the application.
    pub const fn bound(&self) -> Duration {
        self.bound
    }

    /// The bound that the network was asked for.
    pub const fn asked(&self) -> Duration {
        self.asked
    }

    /// The detector took that long for a frame, waits included. The first time is not counted: it is no measure of those to come.
    pub fn took(&mut self, now: Instant, time: Duration) {
        let gap = self.looked_at.replace(now).map_or(Duration::ZERO, |before| now.since(before));
        self.gaps = [self.gaps[1], gap];
        if !std::mem::replace(&mut self.is_warm, true) {
            return;
        }
        self.times.push_back((now, time));
        while self.times.len() > TIMES_MAX
            || (self.times.len() > TIMES_MIN && now.since(self.times[0].0) > WINDOW)
        {
            self.times.pop_front();
        }
    }

    /// The detector's time at the 95th percentile; none before the first frame.
    pub fn detector(&self) -> Option<Duration> {
        let mut times: Vec<Duration> = self.times.iter().map(|(_, time)| *time).collect();
        times.sort_unstable();
        // The nearest rank.
        let rank = (times.len() as f64 * PERCENTILE).ceil() as usize;
        times.get(rank.saturating_sub(1)).copied()
    }

    /// The bound of the network that leaves the detector its time; before anything is measured, half of the whole.
    pub fn network(&self) -> Duration {
        let Some(detector) = self.detector() else { return askable(self.bound / 2) };
        askable(self.bound.saturating_sub(detector).max(self.network_min()))
    }

    /// A bound of the network to ask for now, if it is worth a change.
    pub fn poll(&mut self, now: Instant) -> Option<Duration> {
        if self.times.back().is_some_and(|(at, _)| now.since(*at) > self.silence()) {
            self.times.clear();
        }
        let wanted = self.network();
        let step = (self.bound / STEP_PART).max(Bounds::LATENCY_MIN);
        let wait = if wanted < self.asked { SHORTER_AFTER } else { LONGER_AFTER };
        let is_due = self.changed_at.is_none_or(|at| now.since(at) >= wait);
        (is_due && wanted.abs_diff(self.asked) >= step).then_some(wanted)
    }

    /// The network is asked for this bound from now on.
    pub fn ask(&mut self, now: Instant, bound: Duration) {
        (self.asked, self.changed_at) = (bound, Some(now));
    }

    /// Whether a budget is left, if that is another answer than before.
    pub fn poll_spent(&mut self) -> Option<Option<Spent>> {
        let detector = self.detector().filter(|_| self.times.len() >= TIMES_FOR_VERDICT)?;
        let left = self.bound.saturating_sub(self.network_min());
        // Times at the edge are not said to be over it and under it in turns.
        let limit = if self.is_spent { left - left / STEP_PART } else { left };
        let is_spent = detector > limit;
        if is_spent == self.is_spent {
            return None;
        }
        self.is_spent = is_spent;
        let (network, bound) = (self.network_min(), self.bound);
        Some(is_spent.then_some(Spent { detector, network, bound }))
    }

    /// How long no frame may be looked at before the times say nothing any more. A single long wait counts for nothing.
    fn silence(&self) -> Duration {
        let gap = self.gaps[0].min(self.gaps[1]);
        WINDOW.max(gap.saturating_mul(SILENCE_GAPS))
    }

    fn network_min(&self) -> Duration {
        self.bound / NETWORK_PART_MIN
    }
}

/// The nearest bound that can be asked for, in whole milliseconds.
fn askable(bound: Duration) -> Duration {
    let millis = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(millis).clamp(Bounds::LATENCY_MIN, Bounds::LATENCY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: i64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Asks whenever it is worth it; the bounds that were asked for, with their times.
    fn run(budget: &mut Budget, from: i64, times: &[u32]) -> Vec<(i64, u128)> {
        let mut asked = Vec::new();
        for (step, time) in times.iter().enumerate() {
            let millis = from + 100 * step as i64;
            budget.took(at(millis), *time * MS);
            if let Some(bound) = budget.poll(at(millis)) {
                budget.ask(at(millis), bound);
                asked.push((millis, bound.as_millis()));
            }
        }
        asked
    }

    #[test]
    fn the_network_has_what_the_detector_leaves() {
        let mut budget = Budget::new(200 * MS);
        assert_eq!(budget.asked(), 100 * MS, "half, before anything is known");
        assert_eq!(budget.poll(at(0)), None);
        let mut times = [60; 30];
        times[0] = 900; // a program that begins
        assert_eq!(run(&mut budget, 0, &times), [(100, 140)]);
        // It slows down: with more than one time in twenty above, the network gives way at once.
        let asked = run(&mut budget, 3000, &[90; 30]);
        let (first, bound) = asked[0];
        assert!(first <= 3200 && bound == 110, "{asked:?}");
        // And gets it back once the slow ones are out of the window, not before.
        let asked = run(&mut budget, 6000, &[60; 200]);
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert!((15_000..=16_500).contains(&asked[0].0) && asked[0].1 == 140, "{asked:?}");
    }

    #[test]
    fn one_slow_frame_in_forty_changes_nothing() {
        let mut budget = Budget::new(200 * MS);
        let times: Vec<u32> = (0..400).map(|step| if step % 40 == 39 { 150 } else { 60 }).collect();
        assert_eq!(run(&mut budget, 0, &times), [(100, 140)]);
    }

    #[test]
    fn a_detector_that_leaves_nothing_is_said_once_and_again_when_it_does() {
        let mut budget = Budget::new(200 * MS);
        run(&mut budget, 0, &[400; 7]);
        assert_eq!(budget.poll_spent(), None, "a program that begins is slow");
        run(&mut budget, 700, &[190; 20]);
        let spent = Spent { detector: 400 * MS, network: 20 * MS, bound: 200 * MS };
        assert_eq!(budget.poll_spent(), Some(Some(spent)));
        assert_eq!(budget.asked(), 20 * MS, "a tenth is the least");
        assert_eq!(budget.poll_spent(), None);
        run(&mut budget, 20_000, &[178; 30]);
        assert_eq!(budget.poll_spent(), None, "just within is not yet well within");
        run(&mut budget, 40_000, &[60; 30]);
        assert_eq!(budget.poll_spent(), Some(None));
    }

    #[test]
    fn without_frames_the_network_has_the_bound_of_the_beginning_again() {
        let mut budget = Budget::new(200 * MS);
        run(&mut budget, 0, &[190; 30]);
        assert_eq!(budget.asked(), 20 * MS);
        assert!(matches!(budget.poll_spent(), Some(Some(_))));
        // All frames are late for so short a bound: none is looked at, and nothing new is learned.
        let mut asked = Vec::new();
        for millis in (3000..60_000).step_by(500) {
            if let Some(bound) = budget.poll(at(millis)) {
                budget.ask(at(millis), bound);
                asked.push((millis, bound.as_millis()));
            }
        }
        assert_eq!(asked, [(13_000, 100)], "ten seconds after the last, once");
        // Frames come again, to a detector that has recovered.
        assert_eq!(run(&mut budget, 60_000, &[60; 30]), [(60_000, 140)]);
        assert_eq!(budget.poll_spent(), Some(None));
    }

    #[test]
    fn a_slow_camera_is_not_taken_for_one_whose_frames_are_late() {
        let mut budget = Budget::new(200 * MS);
        for frame in 0..20 {
            budget.took(at(30_000 * frame), 150 * MS);
            for millis in (30_000 * frame..30_000 * (frame + 1)).step_by(500) {
                if let Some(bound) = budget.poll(at(millis)) {
                    budget.ask(at(millis), bound);
                }
            }
            // The waits between the first frames are not known yet.
            assert!(frame < 3 || budget.asked() == 50 * MS, "{frame}: {:?}", budget.asked());
        }
    }

    #[test]
    fn bounds_that_are_asked_for_can_be() {
        for bound in [2 * MS, 7 * MS, Duration::from_secs(60)] {
            let mut budget = Budget::new(bound);
            for time in [Duration::ZERO, bound / 2, 3 * bound] {
                budget.took(at(0), time);
                assert!(Bounds::new(budget.network(), 0.5).is_ok(), "{bound:?} {time:?}");
            }
        }
    }

    #[test]
    fn times_are_bounded_and_the_last_of_a_slow_camera_stay() {
        let mut budget = Budget::new(200 * MS);
        for step in 0..100_000 {
            budget.took(at(step), 60 * MS);
        }
        assert_eq!(budget.times.len(), TIMES_MAX);
        for step in 0..30 {
            budget.took(at(1_000_000 + 60_000 * step), 60 * MS);
        }
        assert_eq!(budget.times.len(), TIMES_MIN);
    }
}

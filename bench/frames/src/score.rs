//! From the arrivals of one camera at one subscriber to the figures that bounds are judged by.
//!
//! Captured is what the clip's cadence amounts to over the time that counts, so that a frame which a camera never took up
//! is lost as well; a late frame is lost; an `unchanged` marker within the bound is delivered.

use std::ops::Range;

use bench_harness::percentile;

use crate::watch::{Arrival, Watched};

/// The reference for a camera's frames.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Frames a second.
    pub fps: u32,
    /// The latency bound in milliseconds.
    pub bound_ms: f64,
}

/// The figures of one camera at one subscriber.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Capture to callback of all that arrived, the late ones included.
    pub p95_ms: f64,
    /// In time, of all captured, in per cent.
    pub delivered: f64,
    /// Mean of what the table promises of the frames in time.
    pub accuracy: f64,
    /// Mean size of the frames in time, in kilobytes.
    pub kilobytes: f64,
}

impl Score {
    /// Judges `arrivals` of the frames captured in `window`.
    #[must_use]
    pub fn of(arrivals: &[Arrival], window: &Range<i64>, held: Held) -> Self {
        let captured = (window.end - window.start) as f64 / 1e9 * f64::from(held.fps);
        let latencies: Vec<f64> = arrivals.iter().map(|arrival| arrival.latency_ms).collect();
        let in_time: Vec<&Arrival> = in_time(arrivals, held).collect();
        let frames: Vec<&Arrival> =
            in_time.iter().copied().filter(|arrival| arrival.knobs.is_some()).collect();
        let mean = |of: &dyn Fn(&Arrival) -> f64| {
            frames.iter().map(|arrival| of(arrival)).sum::<f64>() / frames.len() as f64
        };
        Self {
            p95_ms: percentile(&latencies, 0.95),
            // The ends of the window may hold one frame more than the cadence amounts to.
            delivered: (in_time.len() as f64 / captured.floor().max(1.0) * 100.0).min(100.0),
            accuracy: mean(&|arrival| arrival.accuracy),
            kilobytes: mean(&|arrival| arrival.bytes as f64 / 1e3),
        }
    }

    /// The worst of each figure over several cameras: the highest p95, the lowest delivered and accuracy; sizes are averaged.
    #[must_use]
    pub fn worst(scores: &[Self]) -> Self {
        let fold = |of: fn(&Self) -> f64, pick: fn(f64, f64) -> f64| {
            // A missing number stays missing: a camera without a frame must not be left out.
            let all = scores.iter().map(of);
            all.reduce(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { pick(a, b) })
                .unwrap_or(f64::NAN)
        };
        Self {
            p95_ms: fold(|s| s.p95_ms, f64::max),
            delivered: fold(|s| s.delivered, f64::min),
            accuracy: fold(|s| s.accuracy, f64::min),
            kilobytes: fold(|s| s.kilobytes, |a, b| a + b) / scores.len() as f64,
        }
    }

    /// The worst camera of a run with one subscriber each.
    #[must_use]
    pub fn worst_camera(watched: &Watched, held: Held) -> Self {
        let window = watched.began..watched.ended;
        let first = watched.cameras.iter().filter_map(|subscribers| subscribers.first());
        let scores: Vec<Self> = first.map(|arrivals| Self::of(arrivals, &window, held)).collect();
        Self::worst(&scores)
    }
}

fn in_time(arrivals: &[Arrival], held: Held) -> impl Iterator<Item = &Arrival> {
    arrivals.iter().filter(move |arrival| arrival.latency_ms <= held.bound_ms)
}

/// Seconds from `step` to the capture of the first frame that begins one second in bound, before `until`; infinite if there is
/// none. A gap of one frame in the cadence of those in time is a frame out of bound.
#[must_use]
pub fn settled(arrivals: &[Arrival], step: i64, until: i64, held: Held) -> f64 {
    const SECOND: i64 = 1_000_000_000;
    let gap_max = SECOND * 3 / 2 / i64::from(held.fps);
    let mut times: Vec<i64> = in_time(arrivals, held)
        .map(|arrival| arrival.captured)
        .filter(|captured| (step..until).contains(captured))
        .collect();
    times.sort_unstable();
    let begins = |first: usize| {
        let end = times[first] + SECOND;
        let within = times[first..].iter().take_while(|time| **time < end);
        // The end of the second closes the row of gaps: a row that breaks off is a gap as well.
        let mut row: Vec<i64> = within.copied().collect();
        row.push(end);
        end <= until && row.windows(2).all(|pair| pair[1] - pair[0] <= gap_max)
    };
    let found = (0..times.len()).find(|index| begins(*index));
    found.map_or(f64::INFINITY, |index| (times[index] - step) as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use tidegate_client::Stages;

    use super::*;

    const HELD: Held = Held { fps: 5, bound_ms: 100.0 };

    fn arrival(captured_ms: i64, latency_ms: f64) -> Arrival {
        Arrival {
            captured: captured_ms * 1_000_000,
            latency_ms,
            stages: Stages::default(),
            bytes: 1000,
            accuracy: 0.96,
            knobs: Some("q60".into()),
        }
    }

    #[test]
    fn late_and_absent_frames_are_lost_and_markers_are_delivered() {
        let mut arrivals: Vec<Arrival> = (0..8).map(|n| arrival(n * 200, 50.0)).collect();
        arrivals[3].latency_ms = 101.0;
        arrivals[4].knobs = None;
        arrivals[4].bytes = 0;
        let score = Score::of(&arrivals, &(0..2_000_000_000), HELD);
        assert_eq!(score.delivered, 70.0, "7 in time of the 10 that two seconds hold");
        assert_eq!(score.p95_ms, 101.0);
        assert_eq!(score.kilobytes, 1.0, "a marker has no size");
    }

    #[test]
    fn settled_is_the_first_frame_that_begins_a_second_in_bound() {
        for (late, expected) in [
            (vec![], 0.0),
            (vec![0, 1], 0.4),
            (vec![0, 4], 1.0), // the second after frame 1 is broken by frame 4
            ((0..40).collect(), f64::INFINITY),
        ] {
            let arrivals: Vec<Arrival> = (0..40)
                .map(|n| arrival(n * 200, if late.contains(&n) { 150.0 } else { 50.0 }))
                .collect();
            assert_eq!(settled(&arrivals, 0, 8_000_000_000, HELD), expected, "{late:?}");
            let without: Vec<Arrival> =
                arrivals.into_iter().filter(|arrival| arrival.latency_ms < 100.0).collect();
            assert_eq!(settled(&without, 0, 8_000_000_000, HELD), expected, "{late:?} reset");
        }
    }

    #[test]
    fn a_second_that_the_run_does_not_hold_settles_nothing() {
        let arrivals: Vec<Arrival> = (0..4).map(|n| arrival(n * 200, 50.0)).collect();
        assert_eq!(settled(&arrivals, 0, 800_000_000, HELD), f64::INFINITY);
    }

    #[test]
    fn a_camera_without_frames_is_not_left_out_of_the_worst() {
        let good = Score { p95_ms: 50.0, delivered: 99.0, accuracy: 0.97, kilobytes: 9.0 };
        let none = Score::of(&[], &(0..1_000_000_000), HELD);
        let worst = Score::worst(&[good, none]);
        assert!(worst.p95_ms.is_nan());
        assert_eq!(worst.delivered, 0.0);
    }
}

//! The default controller: a byte budget for each frame.
//!
//! The time a frame has is its latency bound, less what has passed since capture, less what encoding, the
//! way and delivery will take. What the measured capacity carries in that time, less what is already on
//! the way, is the frame's budget; it gets the most accurate rung that fits and keeps the accuracy bound.
//! A second limit is the camera's part of the link: a burst sees the whole link, five cameras do not.
//!
//! The aim is three quarters of the bound, and less while the capacity fluctuates, so that the 95th
//! percentile and not the median keeps it.

use std::time::Duration;

use tidegate_message::{ControllerKind, Instant};

use super::{Choice, Controller, Infeasible, Observation, Situation, most_accurate, smallest};

/// Settings of `budget`.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetConfig {
    /// Part of the latency bound that is aimed for, 0 to 1. Default 0.75.
    pub aim: f64,
    /// Most that the aim is cut by when the capacity fluctuates, 0 to 1. Default 0.4.
    pub deviation_max: f64,
    /// Part of the share (or of the capacity, if the edge node gave none) that is used, 0 to 1.
    /// Default 0.8.
    pub duty: f64,
    /// How much smaller than its budget a rung above the present one must be. Default 1.15.
    pub upgrade: f64,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self { aim: 0.75, deviation_max: 0.4, duty: 0.8, upgrade: 1.15 }
    }
}

/// The controller itself; it needs no memory beside the estimator's.
#[derive(Clone, Debug)]
pub struct Budget {
    config: BudgetConfig,
}

impl Budget {
    /// A controller with those settings.
    pub fn new(config: BudgetConfig) -> Self {
        Self { config }
    }
}

impl Controller for Budget {
    fn kind(&self) -> ControllerKind {
        ControllerKind::Budget
    }

    fn observe(&mut self, _now: Instant, _observation: &Observation) {}

    fn choose(&mut self, _now: Instant, s: &Situation<'_>) -> Choice {
        let accurate = |rung: &super::Rung| rung.accuracy >= s.bounds.accuracy();
        let enough = s.rungs.iter().enumerate().filter(|(_, rung)| accurate(rung));
        let least = smallest(enough.clone());
        let Some(capacity) = s.capacity else {
            // Nothing was measured yet: the smallest frame that is good enough measures it.
            let rung = least.or_else(|| smallest(s.rungs.iter().enumerate())).unwrap_or(0);
            return Choice::Rung { rung, bytes_max: f64::INFINITY };
        };

        let rate = capacity.bytes_per_second;
        let aim = self.config.aim * (1.0 - capacity.deviation.min(self.config.deviation_max));
        let overhead = s.encode + s.one_way + s.delivery;
        let seconds = s.bounds.latency().as_secs_f64() * aim - overhead.as_secs_f64();
        let sustained = self.config.duty * s.share.unwrap_or(rate) * s.period.as_secs_f64();
        // With nothing else on the way and the frame just captured, and as things are.
        let fresh = (rate * seconds).max(0.0);
        let now = rate * (seconds - s.elapsed.as_secs_f64()) - s.outstanding_bytes as f64;

        let fits = |index: usize, rung: &super::Rung, budget: f64| {
            let upgrade = s.current.is_some_and(|current| rung.bytes > s.rungs[current].bytes);
            let margin =
                if upgrade && s.current != Some(index) { self.config.upgrade } else { 1.0 };
            rung.bytes * margin <= budget && rung.bytes * rung.kept * margin <= sustained
        };
        let best = enough.clone().filter(|(index, rung)| fits(*index, rung, now));
        if let Some(rung) = most_accurate(best) {
            return Choice::Rung { rung, bytes_max: now };
        }
        if enough.clone().any(|(_, r)| r.bytes <= fresh && r.bytes * r.kept <= sustained) {
            return Choice::Wait;
        }
        let best = s.rungs.iter().enumerate().filter(|(index, rung)| fits(*index, rung, now));
        let by_latency = most_accurate(best);
        let waiting = s.rungs.iter().any(|r| r.bytes <= fresh && r.bytes * r.kept <= sustained);
        if by_latency.is_none() && waiting && now < fresh * 0.9 {
            return Choice::Wait;
        }
        Choice::Infeasible(Infeasible {
            by_latency,
            by_accuracy: least.map(|rung| {
                let bytes = s.rungs[rung].bytes;
                // The time that sending takes, or the period that the share allows, if that is longer.
                let sending = bytes / rate;
                let sharing = bytes * s.rungs[rung].kept / (sustained / s.period.as_secs_f64());
                let seconds = (sending / aim.max(0.1)).max(sharing).min(3600.0);
                (rung, overhead + Duration::from_secs_f64(seconds))
            }),
            bytes_max: now.max(0.0),
        })
    }
}

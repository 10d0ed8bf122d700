//! The default controller: a byte budget for each frame.
//!
//! The time a frame has is its latency bound, less what has passed since capture, less what encoding, the
//! way and delivery will take. The bytes that the measured capacity carries in that time, less those
//! already on the way, are the frame's budget; it gets the most accurate rung that fits and keeps the
//! accuracy bound. A second limit is the camera's part of the link, kept on average over a few frames: a
//! burst sees the whole link, five cameras do not. Without shares from a coordinator, frames that are lost
//! again and again, though the capacity seemed to carry them, show that others use the link too, and lower
//! that limit.
//!
//! The aim is three quarters of the bound, and less while the capacity fluctuates, so that the 95th
//! percentile and not the median keeps it. The aim is a margin and no bound: where it leaves nothing that is accurate
//! enough, the smallest frame that is, is still sent if the bound itself leaves the time.

use std::time::Duration;

use tidegate_message::{ControllerKind, Instant};

use super::{
    Choice, Controller, Infeasible, Observation, Rung, Situation, most_accurate, smallest,
};

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

/// Part of the bound that a frame may take whole where the aim leaves nothing.
const STRAINED: f64 = 0.95;
/// Frames over which unused bytes of the share are kept.
const CREDIT_FRAMES: f64 = 4.0;
/// Weight of a frame in the smoothed part of lost ones.
const LOSS_WEIGHT: f64 = 1.0 / 16.0;
/// Smoothed part of lost frames above which the limit is lowered: one loss alone stays below it.
const LOSS_MAX: f64 = 0.08;
/// The factor for the limit then.
const LIMIT_DOWN: f64 = 0.7;
/// Part by which it grows with a frame in time, and frames in time after which that part has doubled.
const LIMIT_UP: f64 = 0.004;
const LIMIT_UP_FRAMES: f64 = 100.0;

/// The controller itself.
#[derive(Clone, Debug)]
pub struct Budget {
    config: BudgetConfig,
    /// Bytes of the share that earlier frames left.
    credit_bytes: f64,
    chosen_last: Option<Instant>,
    /// Smoothed size of the frames chosen.
    frame_bytes: f64,
    loss: f64,
    /// Bytes a frame, learned from losses.
    limit_bytes: Option<f64>,
    /// Frames in time since the last loss.
    in_time: f64,
    /// Whether the last choice was thought to keep both bounds, so that a loss is a surprise.
    confident: bool,
}

impl Budget {
    /// A controller with those settings.
    pub fn new(config: BudgetConfig) -> Self {
        Self {
            config,
            credit_bytes: 0.0,
            chosen_last: None,
            frame_bytes: 0.0,
            loss: 0.0,
            limit_bytes: None,
            in_time: 0.0,
            confident: false,
        }
    }

    /// Bytes a frame may have on average.
    ///
    /// The limit learned from losses never forbids frames of `floor` bytes: only the capacity and the
    /// share decide that the bounds cannot be kept.
    fn sustained(&mut self, s: &Situation<'_>, rate: f64, floor: f64) -> f64 {
        let largest = s.rungs.iter().map(|rung| rung.bytes).fold(0.0, f64::max);
        let limit = self.limit_bytes.filter(|limit| *limit < largest);
        self.limit_bytes = limit.map(|limit| limit.max(floor));
        let share = self.config.duty * s.share.unwrap_or(rate) * s.period.as_secs_f64();
        self.limit_bytes.map_or(share, |limit| limit.min(share))
    }

    fn spend(&mut self, rung: &Rung) {
        self.credit_bytes = (self.credit_bytes - rung.bytes * rung.kept).max(0.0);
        self.frame_bytes += (rung.bytes - self.frame_bytes) / 8.0;
    }
}

impl Controller for Budget {
    fn kind(&self) -> ControllerKind {
        ControllerKind::Budget
    }

    fn observe(&mut self, _now: Instant, observation: &Observation) {
        let lost = !matches!(observation, Observation::Delivered { on_time: true, .. });
        if !lost {
            self.loss -= LOSS_WEIGHT * self.loss;
            self.in_time += 1.0;
            let grow = 1.0 + LIMIT_UP * (1.0 + self.in_time / LIMIT_UP_FRAMES);
            self.limit_bytes = self.limit_bytes.map(|limit| limit * grow);
            return;
        }
        self.in_time = 0.0;
        if !self.confident {
            return;
        }
        self.loss += LOSS_WEIGHT * (1.0 - self.loss);
        if self.loss > LOSS_MAX {
            let limit = self.limit_bytes.unwrap_or(f64::INFINITY).min(self.frame_bytes);
            self.limit_bytes = Some(limit * LIMIT_DOWN);
            self.loss = 0.0;
        }
    }

    fn choose(&mut self, time: Instant, s: &Situation<'_>) -> Choice {
        let accurate = |rung: &Rung| rung.accuracy >= s.bounds.accuracy();
        let enough = s.rungs.iter().enumerate().filter(|(_, rung)| accurate(rung));
        let least = smallest(enough.clone());
        let deviation = s.capacity.map_or(0.0, |capacity| capacity.deviation);
        let aim = self.config.aim * (1.0 - deviation.min(self.config.deviation_max));
        let overhead = s.encode + s.one_way + s.delivery;
        let seconds = s.bounds.latency().as_secs_f64() * aim - overhead.as_secs_f64();
        let Some(capacity) = s.capacity else {
            // Nothing was measured yet: the smallest frame that is good enough measures it. Where that one is too small to, a larger one
            // does, as soon as the path is known to carry it.
            let left = seconds - s.elapsed.as_secs_f64();
            let carried = enough.filter(|(_, rung)| rung.bytes <= s.at_least * left);
            let rung = most_accurate(carried).or(least);
            let rung = rung.or_else(|| smallest(s.rungs.iter().enumerate())).unwrap_or(0);
            return Choice::Rung { rung, bytes_max: f64::INFINITY };
        };

        let rate = capacity.bytes_per_second;
        let floor = least.map_or(0.0, |rung| s.rungs[rung].bytes * s.rungs[rung].kept);
        let sustained = self.sustained(s, rate, floor);
        let since = self.chosen_last.replace(time).map_or(s.period, |last| time.since(last));
        let periods = since.as_secs_f64() / s.period.as_secs_f64().max(1e-3);
        self.credit_bytes =
            (self.credit_bytes + sustained * periods).min(sustained * CREDIT_FRAMES);
        let average = sustained.max(self.credit_bytes);
        // With nothing else on the way and the frame just captured, and as things are.
        let fresh = (rate * seconds).max(0.0);
        let now = rate * (seconds - s.elapsed.as_secs_f64()) - s.outstanding_bytes as f64;
        let carries =
            |bytes: f64, budget: f64| bytes <= budget && capacity.carries(bytes, budget / rate);

        let fits = |index: usize, rung: &Rung, budget: f64| {
            let upgrade = s.current.is_some_and(|current| rung.bytes > s.rungs[current].bytes);
            let margin =
                if upgrade && s.current != Some(index) { self.config.upgrade } else { 1.0 };
            carries(rung.bytes * margin, budget) && rung.bytes * rung.kept <= average
        };
        let best = enough.clone().filter(|(index, rung)| fits(*index, rung, now));
        if let Some(rung) = most_accurate(best) {
            self.spend(&s.rungs[rung]);
            self.confident = true;
            return Choice::Rung { rung, bytes_max: now };
        }
        // Without a margin, neither of the time nor of the share: for a frame just captured, and as things are.
        let bound = s.bounds.latency().as_secs_f64() * STRAINED - overhead.as_secs_f64();
        let strained = rate * (bound - s.elapsed.as_secs_f64()) - s.outstanding_bytes as f64;
        let just_fits = |rung: usize, budget: f64, average: f64| {
            let rung = &s.rungs[rung];
            carries(rung.bytes, budget) && rung.bytes * rung.kept <= average / self.config.duty
        };
        let clear = least.is_some_and(|rung| just_fits(rung, rate * bound, sustained));
        if let Some(rung) = least.filter(|&rung| just_fits(rung, strained, average))
            && (!clear || s.outstanding_bytes == 0)
        {
            self.confident = false;
            self.spend(&s.rungs[rung]);
            return Choice::Rung { rung, bytes_max: strained };
        }
        if clear {
            return Choice::Wait;
        }
        self.confident = false;
        let best = s.rungs.iter().enumerate().filter(|(index, rung)| fits(*index, rung, now));
        let smallest =
            smallest(s.rungs.iter().enumerate()).filter(|&rung| just_fits(rung, strained, average));
        let by_latency = most_accurate(best).or(smallest);
        if let Some(rung) = by_latency {
            self.spend(&s.rungs[rung]);
        }
        let waiting = s.rungs.iter().any(|r| r.bytes <= fresh && r.bytes * r.kept <= sustained);
        if by_latency.is_none() && waiting && now < fresh * 0.9 {
            return Choice::Wait;
        }
        Choice::Infeasible(Infeasible {
            by_latency,
            by_accuracy: least.map(|rung| {
                let bytes = s.rungs[rung].bytes;
                // The time that sending takes, or the period that the share allows, if that is longer.
                let sending = (overhead.as_secs_f64() + bytes / rate) / STRAINED;
                let shared = sustained / self.config.duty / s.period.as_secs_f64();
                let sharing = overhead.as_secs_f64() + bytes * s.rungs[rung].kept / shared;
                (rung, Duration::from_secs_f64(sending.max(sharing).min(3600.0)))
            }),
            bytes_max: strained.max(0.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::quiet, *};
    use crate::{capacity::Capacity, knob::KnobSetting};

    #[test]
    fn frames_lost_again_and_again_lower_the_limit_although_others_waited_meanwhile() {
        let rung = |bytes, accuracy| Rung {
            row: 0,
            setting: KnobSetting::ORIGINAL,
            bytes,
            accuracy,
            kept: 1.0,
        };
        let rungs = [rung(20_000.0, 0.96), rung(60_000.0, 0.98)];
        let situation = |outstanding_bytes| Situation {
            capacity: Some(Capacity {
                bytes_per_second: 2_500_000.0,
                long: 2_500_000.0,
                deviation: 0.0,
                head_bytes: 1200.0,
                recent_bytes: 60_000.0,
                burst_bytes: 60_000.0,
                short: 0,
            }),
            outstanding_bytes,
            one_way: Duration::from_millis(1),
            encode: Duration::from_millis(5),
            delivery: Duration::from_millis(2),
            ..quiet(&rungs)
        };
        let mut budget = Budget::new(BudgetConfig::default());
        let mut now = Instant::from_millis(0);
        let mut large = Vec::new();
        for _ in 0..40 {
            let choice = budget.choose(now, &situation(0));
            let Choice::Rung { rung, .. } = choice else { panic!("{choice:?}") };
            large.push(rung == 1);
            // The next frame waits behind it, and then it is lost.
            let waits = budget.choose(now, &situation(10_000_000));
            assert!(matches!(waits, Choice::Wait), "{waits:?}");
            let lost = Duration::from_millis(100);
            budget.observe(now, &Observation::Lost { waited: lost, expected: lost });
            now = now + situation(0).period;
        }
        assert!(large[..2].iter().all(|&large| large), "the capacity seems to carry it");
        assert!(large[30..].iter().filter(|&&large| large).count() < 5, "{large:?}");
    }
}

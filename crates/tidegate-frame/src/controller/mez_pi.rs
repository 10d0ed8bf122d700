//! The paper's controller: proportional-integral on the latency (Mez, section 4.2, Algorithm 1).
//!
//! A linear model of latency over size, measured beforehand, gives the nominal size for the latency bound.
//! While the sampled latency exceeds the bound by more than a threshold, the size is the nominal one
//! corrected by the error and its integral; the size gives an accuracy, the accuracy the knobs. Sizes are
//! looked up from below: the largest row that is no larger, or the smallest row there is.
//!
//! Read as written, the loop acts on latencies that are too high and on no others. That the published
//! runs stayed at rows of a quarter of the latency bound (their Table 3) says that it was so.

use std::time::Duration;

use tidegate_message::{ControllerKind, Instant};

use super::{Choice, Controller, Infeasible, Observation, Rung, Situation};

/// Settings of `mez-pi`. One set serves all six of the paper's tables.
#[derive(Clone, Debug, PartialEq)]
pub struct MezPiConfig {
    /// Latency over size, as `characterize --link` measures it. Default: the fit to the paper's Table 1.
    pub model: LinkModel,
    /// K1: bytes of correction per millisecond of error; negative. Default -6,000.
    pub k1_bytes_per_ms: f64,
    /// K2: bytes of correction per millisecond of error held for a second; negative. Default -250.
    pub k2_bytes_per_ms_second: f64,
    /// An error up to this one is let be. Default 20 ms.
    pub threshold: Duration,
    /// Time over which latency is averaged. Default 4 s.
    pub interval: Duration,
}

impl Default for MezPiConfig {
    fn default() -> Self {
        Self {
            model: LinkModel::paper(),
            k1_bytes_per_ms: -6_000.0,
            k2_bytes_per_ms_second: -250.0,
            threshold: Duration::from_millis(20),
            interval: Duration::from_secs(4),
        }
    }
}

/// Latency as a linear function of frame size, fitted by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkModel {
    /// Milliseconds per byte.
    pub slope_ms_per_byte: f64,
    /// Milliseconds of an empty frame; negative where a queue builds only above some size.
    pub intercept_ms: f64,
    /// Part of the variance that the line explains, 0 to 1.
    pub r2: f64,
}

/// Sizes (KB) and 95th percentile latencies (ms) with five cameras: the paper's Table 1.
const TABLE_1: [(f64, f64); 6] = [
    (610.0, 150.28),
    (760.0, 164.56),
    (970.0, 262.43),
    (1390.0, 382.47),
    (1670.0, 606.98),
    (1740.0, 617.16),
];

impl LinkModel {
    /// The line through `samples` of (bytes, latency) with the least squared error.
    ///
    /// # Errors
    /// [`LinkModelError::Samples`] under two different sizes, [`LinkModelError::Slope`] if larger frames
    /// were not slower, so that no size follows from a latency.
    pub fn fit(samples: &[(f64, Duration)]) -> Result<Self, LinkModelError> {
        let count = samples.len() as f64;
        let points =
            || samples.iter().map(|(bytes, latency)| (*bytes, latency.as_secs_f64() * 1e3));
        let (sum_x, sum_y) = points().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
        let (mean_x, mean_y) = (sum_x / count, sum_y / count);
        let sums = points().map(|(x, y)| (x - mean_x, y - mean_y));
        let (sxx, sxy, syy) =
            sums.fold((0.0, 0.0, 0.0), |(xx, xy, yy), (x, y)| (xx + x * x, xy + x * y, yy + y * y));
        if !(sxx.is_finite() && sxx > 0.0) {
            return Err(LinkModelError::Samples { count: samples.len() });
        }
        let slope = sxy / sxx;
        if slope <= 0.0 {
            return Err(LinkModelError::Slope { ms_per_megabyte: slope * 1e6 });
        }
        Ok(Self {
            slope_ms_per_byte: slope,
            intercept_ms: mean_y - slope * mean_x,
            r2: sxy * sxy / (sxx * syy),
        })
    }

    /// The fit to the paper's Table 1, five cameras: 0.43 ms per KB less 148 ms.
    pub fn paper() -> Self {
        let samples = TABLE_1.map(|(kb, ms)| (kb * 1e3, Duration::from_secs_f64(ms / 1e3)));
        Self::fit(&samples).expect("the published sizes differ and the larger ones are slower")
    }

    /// Predicted latency of a frame, never below zero.
    pub fn latency(&self, bytes: f64) -> Duration {
        let ms = self.intercept_ms + self.slope_ms_per_byte * bytes;
        Duration::from_secs_f64(ms.clamp(0.0, 3.6e6) / 1e3)
    }

    /// Size in bytes whose predicted latency is that one, never below zero.
    pub fn bytes(&self, latency: Duration) -> f64 {
        ((latency.as_secs_f64() * 1e3 - self.intercept_ms) / self.slope_ms_per_byte).max(0.0)
    }
}

/// Why no line could be fitted.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LinkModelError {
    /// Too few sizes.
    #[error("{count} samples do not span two frame sizes; measure at least two, better ten")]
    Samples {
        /// How many there were.
        count: usize,
    },
    /// Larger frames were not slower.
    #[error(
        "latency does not grow with size ({ms_per_megabyte:.3} ms per MB); measure a wider range"
    )]
    Slope {
        /// The slope that was found.
        ms_per_megabyte: f64,
    },
}

/// The controller itself.
#[derive(Clone, Debug)]
pub struct MezPi {
    config: MezPiConfig,
    integral_ms_seconds: f64,
    correction_bytes: f64,
    interval_began: Option<Instant>,
    latency_sum_ms: f64,
    latencies: u32,
    target: Option<Duration>,
}

impl MezPi {
    /// A controller at its nominal size.
    pub fn new(config: MezPiConfig) -> Self {
        Self {
            config,
            integral_ms_seconds: 0.0,
            correction_bytes: 0.0,
            interval_began: None,
            latency_sum_ms: 0.0,
            latencies: 0,
            target: None,
        }
    }

    /// Ends the sampling interval if it is over, and acts on its mean latency.
    fn sample(&mut self, now: Instant, target: Duration) {
        if self.target.replace(target) != Some(target) {
            // Another bound has another nominal size; the correction learned for the old one is void.
            (self.integral_ms_seconds, self.correction_bytes) = (0.0, 0.0);
            (self.latency_sum_ms, self.latencies) = (0.0, 0);
            self.interval_began = Some(now);
        }
        let began = *self.interval_began.get_or_insert(now);
        if now.since(began) < self.config.interval || self.latencies == 0 {
            return;
        }
        let latency_ms = self.latency_sum_ms / f64::from(self.latencies);
        (self.latency_sum_ms, self.latencies, self.interval_began) = (0.0, 0, Some(now));
        let error_ms = latency_ms - target.as_secs_f64() * 1e3;
        if error_ms <= self.config.threshold.as_secs_f64() * 1e3 {
            return;
        }
        self.integral_ms_seconds += error_ms * self.config.interval.as_secs_f64();
        self.correction_bytes = self.config.k1_bytes_per_ms * error_ms
            + self.config.k2_bytes_per_ms_second * self.integral_ms_seconds;
    }
}

/// The first lookup: the accuracy of the largest row no larger than `bytes`, else of the smallest row.
fn accuracy_of(rungs: &[Rung], bytes: f64) -> f64 {
    let by_size = |a: &&Rung, b: &&Rung| a.bytes.total_cmp(&b.bytes);
    let below = rungs.iter().filter(|rung| rung.bytes <= bytes).max_by(by_size);
    below.or_else(|| rungs.iter().min_by(by_size)).map_or(0.0, |rung| rung.accuracy)
}

/// The second lookup: the row of that accuracy, the smallest if several have it.
fn knobs_of(rungs: &[Rung], accuracy: f64) -> usize {
    let same = rungs.iter().enumerate().filter(|(_, rung)| rung.accuracy == accuracy);
    super::smallest(same).unwrap_or(0)
}

impl Controller for MezPi {
    fn kind(&self) -> ControllerKind {
        ControllerKind::MezPi
    }

    fn observe(&mut self, _now: Instant, observation: &Observation) {
        let latency = match observation {
            Observation::Delivered { latency, .. } => latency,
            Observation::Lost { expected, .. } => expected,
        };
        self.latency_sum_ms += latency.as_secs_f64() * 1e3;
        self.latencies += 1;
    }

    fn choose(&mut self, now: Instant, s: &Situation<'_>) -> Choice {
        let target = s.bounds.latency();
        self.sample(now, target);
        let size = (self.config.model.bytes(target) + self.correction_bytes).max(0.0);
        let accuracy = accuracy_of(s.rungs, size);
        let rung = knobs_of(s.rungs, accuracy);
        if accuracy >= s.bounds.accuracy() {
            return Choice::Rung { rung, bytes_max: f64::INFINITY };
        }
        let enough = s.rungs.iter().enumerate().filter(|(_, r)| r.accuracy >= s.bounds.accuracy());
        Choice::Infeasible(Infeasible {
            by_latency: Some(rung),
            by_accuracy: super::smallest(enough)
                .map(|rung| (rung, self.config.model.latency(s.rungs[rung].bytes).max(target))),
            bytes_max: size,
        })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::Bounds;

    use super::{super::quiet, *};
    use crate::knob::KnobSetting;

    const TARGET: Duration = Duration::from_millis(100);

    fn rungs() -> Vec<Rung> {
        let rung = |(row, (bytes, accuracy)): (u32, &(f64, f64))| Rung {
            row,
            setting: KnobSetting::ORIGINAL,
            bytes: *bytes,
            accuracy: *accuracy,
            kept: 1.0,
        };
        let rows = [(100e3, 0.96), (300e3, 0.97), (310e3, 0.94), (600e3, 0.97), (900e3, 1.0)];
        (0..).zip(&rows).map(rung).collect()
    }

    /// Tells one latency for each of the seconds and gives what is chosen after the last.
    fn choice(controller: &mut MezPi, begin: Instant, latencies_ms: &[u64]) -> Choice {
        let rungs = rungs();
        let situation = Situation { bounds: Bounds::new(TARGET, 0.95).unwrap(), ..quiet(&rungs) };
        let mut now = begin;
        let mut last = controller.choose(now, &situation);
        for latency in latencies_ms {
            let latency = Duration::from_millis(*latency);
            controller.observe(now, &Observation::Delivered { latency, bytes: 1, on_time: true });
            now = now + controller.config.interval;
            last = controller.choose(now, &situation);
        }
        last
    }

    fn rung(choice: Choice) -> usize {
        match choice {
            Choice::Rung { rung, .. } => rung,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_published_latencies_are_linear_and_give_the_nominal_size() {
        let model = LinkModel::paper();
        assert!((model.slope_ms_per_byte * 1e3 - 0.430).abs() < 0.001, "{model:?}");
        assert!((model.intercept_ms + 148.0).abs() < 1.0, "{model:?}");
        assert!(model.r2 > 0.95, "{model:?}");
        assert!((model.bytes(TARGET) - 577e3).abs() < 2e3, "{}", model.bytes(TARGET));
        assert_eq!(model.latency(0.0), Duration::ZERO);
        assert!((model.latency(577e3).as_secs_f64() - 0.1).abs() < 0.001);
    }

    #[test]
    fn a_line_through_exact_points_is_found_and_nonsense_is_refused() {
        let sample = |bytes: f64| (bytes, Duration::from_secs_f64(0.005 + bytes * 1e-7));
        let samples: Vec<_> = (1..=10).map(|step| sample(f64::from(step) * 50e3)).collect();
        let model = LinkModel::fit(&samples).unwrap();
        assert!((model.intercept_ms - 5.0).abs() < 1e-6 && model.r2 > 0.999_999, "{model:?}");
        assert_eq!(LinkModel::fit(&[]), Err(LinkModelError::Samples { count: 0 }));
        assert_eq!(LinkModel::fit(&[sample(1.0); 3]), Err(LinkModelError::Samples { count: 3 }));
        let falling = [(1e6, Duration::ZERO), (1e3, TARGET)];
        assert!(matches!(LinkModel::fit(&falling), Err(LinkModelError::Slope { .. })));
    }

    #[test]
    fn it_acts_on_latencies_above_the_threshold_only() {
        let begin = Instant::from_millis(0);
        let mut controller = MezPi::new(MezPiConfig::default());
        // Nominal 577 KB: the largest row below is of 310 KB, too inaccurate.
        assert!(matches!(choice(&mut controller, begin, &[10, 119, 100]), Choice::Infeasible(_)));
        // An error of 60 ms for 4 s: 577 - 6 * 60 - 0.25 * 60 * 4 = 157 KB.
        let mut controller = MezPi::new(MezPiConfig::default());
        assert_eq!(rung(choice(&mut controller, begin, &[160])), 0);
        assert_eq!(rung(choice(&mut controller, begin, &[10, 10])), 0, "it never goes back up");
    }

    #[test]
    fn rows_of_one_accuracy_are_the_smallest_of_them() {
        let model = LinkModel { slope_ms_per_byte: 1e-4, intercept_ms: 40.0, r2: 1.0 };
        let config = MezPiConfig { model, ..MezPiConfig::default() };
        // 600 KB has the accuracy of 300 KB, which is what the second lookup finds.
        let mut controller = MezPi::new(config);
        assert_eq!(rung(choice(&mut controller, Instant::EPOCH, &[])), 1);
    }
}

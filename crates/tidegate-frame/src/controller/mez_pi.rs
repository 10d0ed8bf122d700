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
    /// K1: bytes of correction per millisecond of error; negative. Default -8,000.
    pub k1_bytes_per_ms: f64,
    /// K2: bytes of correction per millisecond of error held for a second; negative. Default -400.
    pub k2_bytes_per_ms_second: f64,
    /// An error up to this one is let be. Default 10 ms.
    pub threshold: Duration,
    /// Time over which latency is averaged. Default 1 s.
    pub interval: Duration,
}

impl Default for MezPiConfig {
    fn default() -> Self {
        Self {
            model: LinkModel::paper(),
            k1_bytes_per_ms: -8_000.0,
            k2_bytes_per_ms_second: -400.0,
            threshold: Duration::from_millis(10),
            interval: Duration::from_secs(1),
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
            // Another bound has another nominal size; what was learned about the old one is void.
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
            Observation::Lost { waited } => waited,
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

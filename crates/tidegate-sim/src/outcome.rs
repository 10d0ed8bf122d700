//! The fate of every frame, and its meaning for the bounds.
//!
//! Meanings, the same everywhere: a frame is delivered if it arrived within its latency bound or was
//! explicitly marked unchanged within it; one that came late counts as lost. Percentiles are over all
//! frames that arrived, the late ones included. A run has settled after a step with the first frame
//! captured after it that begins one second of delivered frames.

use std::time::Duration;

use tidegate_frame::transfer::{Report, SendHeader};
use tidegate_message::{Bounds, DropReason};

/// The fate of one frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It arrived whole.
    Delivered {
        /// From capture to the application's callback.
        latency: Duration,
        /// The header that travelled with it.
        header: SendHeader,
    },
    /// Differencing found nothing new and said so.
    Unchanged {
        /// From capture to the application's callback.
        latency: Duration,
    },
    /// It was given up.
    Dropped {
        /// Why.
        why: DropReason,
    },
    /// The run ended before it had another.
    Unfinished,
}

/// One captured frame.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameOutcome {
    /// Which camera.
    pub camera: usize,
    /// When it was captured, from the beginning of the run.
    pub captured: Duration,
    /// Its fate.
    pub fate: Fate,
}

/// All frames of a run, by camera and capture time.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The bounds of each camera.
    pub bounds: Vec<Bounds>,
    /// How long cameras captured.
    pub length: Duration,
    /// The frames.
    pub frames: Vec<FrameOutcome>,
    /// The reports of the transfers: camera, time, report.
    pub reports: Vec<(usize, Duration, Report)>,
}

/// The figures of one camera or of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Captured frames.
    pub captured: usize,
    /// Part of them that was delivered, 0 to 1.
    pub delivered: f64,
    /// Median latency of the frames that arrived.
    pub p50: Duration,
    /// Their 95th percentile.
    pub p95: Duration,
    /// The longest.
    pub max: Duration,
    /// Mean normalized F1 that the table promises of the delivered frames.
    pub accuracy: f64,
    /// Mean size of the delivered frames in bytes.
    pub bytes: f64,
}

impl Outcome {
    /// The figures of all cameras together.
    pub fn summary(&self) -> Summary {
        self.summary_where(|_| true)
    }

    /// The figures of one camera.
    pub fn summary_of(&self, camera: usize) -> Summary {
        self.summary_where(|frame| frame.camera == camera)
    }

    /// The figures of the frames that `wanted` picks.
    pub fn summary_where(&self, wanted: impl Fn(&FrameOutcome) -> bool) -> Summary {
        let frames: Vec<&FrameOutcome> = self.frames.iter().filter(|frame| wanted(frame)).collect();
        let delivered = frames.iter().filter(|frame| self.delivered(frame)).count();
        let mut latencies: Vec<Duration> = frames.iter().filter_map(|f| f.fate.latency()).collect();
        latencies.sort();
        let percentile = |part: f64| {
            let rank = (latencies.len() as f64 * part).ceil() as usize;
            latencies.get(rank.max(1) - 1).copied().unwrap_or(Duration::ZERO)
        };
        let headers: Vec<&SendHeader> = frames
            .iter()
            .filter(|frame| self.delivered(frame))
            .filter_map(|frame| match &frame.fate {
                Fate::Delivered { header, .. } => Some(header),
                _ => None,
            })
            .collect();
        let mean = |value: &dyn Fn(&SendHeader) -> f64| {
            headers.iter().map(|header| value(header)).sum::<f64>() / headers.len().max(1) as f64
        };
        Summary {
            captured: frames.len(),
            delivered: delivered as f64 / frames.len().max(1) as f64,
            p50: percentile(0.5),
            p95: percentile(0.95),
            max: percentile(1.0),
            accuracy: mean(&|header| header.accuracy),
            bytes: mean(&|header| f64::from(header.bytes)),
        }
    }

    /// Whether a frame counts as delivered.
    pub fn delivered(&self, frame: &FrameOutcome) -> bool {
        frame.fate.latency().is_some_and(|latency| latency <= self.bounds[frame.camera].latency())
    }

    /// Time from `step` to the first frame of `camera` that begins one second of delivered frames;
    /// nothing if there is none before the end.
    pub fn settled(&self, camera: usize, step: Duration) -> Option<Duration> {
        let second = Duration::from_secs(1);
        let frames = || self.frames.iter().filter(|f| f.camera == camera && f.captured >= step);
        let begins = |first: &&FrameOutcome| {
            first.captured + second <= self.length
                && frames()
                    .filter(|f| {
                        f.captured >= first.captured && f.captured < first.captured + second
                    })
                    .all(|frame| self.delivered(frame))
        };
        frames().find(begins).map(|frame| frame.captured - step)
    }
}

impl Fate {
    /// From capture to the application, if it got there.
    pub fn latency(&self) -> Option<Duration> {
        match self {
            Self::Delivered { latency, .. } | Self::Unchanged { latency } => Some(*latency),
            Self::Dropped { .. } | Self::Unfinished => None,
        }
    }
}

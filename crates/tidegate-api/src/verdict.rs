//! Verdicts on captured frames.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_message::{CameraName, Instant};

use crate::event::Stages;

/// The verdict on one frame that a transfer took up.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The camera.
    pub camera: CameraName,
    /// The transfer, unique within the camera.
    pub transfer: u64,
    /// When the frame was captured.
    pub captured_at: Instant,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes that were sent; 0 if none.
    pub sent_bytes: u64,
    /// Bytes of the original.
    pub original_bytes: u64,
    /// The knob setting in the words of the table; `original` if untouched.
    pub knobs: Arc<str>,
    /// Row of the characterization table, counted from 0; none where the frame travelled as captured.
    pub row: Option<u32>,
    /// Estimated normalized F1, 0 to 1.
    pub accuracy: f64,
    /// Whether the estimate keeps the accuracy bound.
    pub accuracy_kept: bool,
    /// Where the time went.
    pub stages: Stages,
    /// The latency bound it was held against.
    pub bound: Duration,
    /// Estimated capacity of the link for this camera, in bytes a second; 0 while not known.
    pub capacity_bytes_per_second: u64,
    /// Why the setting differs from the one before, in one sentence; none if it does not.
    pub reason: Option<Arc<str>>,
}

/// How a captured frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Delivered within the bound.
    Kept,
    /// Delivered after the bound.
    Late,
    /// Not sent because nothing moved; counts as delivered.
    Unchanged,
    /// Given up because a newer frame was ready.
    Overtaken,
    /// Reset in flight at its deadline.
    Reset,
    /// Held back because no setting kept the bounds.
    Withheld,
    /// Lost with the link.
    Lost,
    /// Its picture is damaged: it cannot be read, or not covered as it must be.
    Damaged,
}

impl Outcome {
    /// The word used in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Late => "late",
            Self::Unchanged => "unchanged",
            Self::Overtaken => "overtaken",
            Self::Reset => "reset",
            Self::Withheld => "withheld",
            Self::Lost => "lost",
            Self::Damaged => "damaged",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

//! The work that an engine gives to the encoder of its camera, and the results.

use bytes::Bytes;
use tidegate_message::{FrameSize, Instant, transfer::TransferId};

use crate::knob::{FrameError, KnobSetting};

/// One frame to be changed.
#[derive(Clone, Debug)]
pub struct Job {
    /// The transfer that it is for.
    pub transfer: TransferId,
    /// Its capture time.
    pub frame: Instant,
    /// The frame as it was captured.
    pub jpeg: Bytes,
    /// How to change it.
    pub setting: KnobSetting,
}

/// A [`Job`] that is done.
#[derive(Debug)]
pub struct Done {
    /// The job's.
    pub transfer: TransferId,
    /// The job's.
    pub frame: Instant,
    /// When the encoder began with it.
    pub started: Instant,
    /// When it was done.
    pub ended: Instant,
    /// The result; an error if the frame cannot be used.
    pub outcome: Result<Outcome, FrameError>,
}

/// A frame that could be changed.
#[derive(Debug)]
pub enum Outcome {
    /// It is to be sent.
    Encoded {
        /// The JPEG image.
        body: Bytes,
        /// Its pixels.
        size: FrameSize,
    },
    /// It does not differ from the frame last sent for its transfer, as far as the setting asks.
    Unchanged {
        /// The part of it that differs, 0 to 1.
        changed: f32,
    },
}

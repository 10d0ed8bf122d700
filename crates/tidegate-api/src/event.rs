//! Events of a subscription, in order.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_message::{FrameSize, Instant};

/// One event of a subscription. Cloning shares the image and the texts.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A frame.
    Frame(Frame),
    /// Nothing moved since an earlier frame, so this one was not sent. Counts as delivered.
    Unchanged(Unchanged),
    /// Frames that were captured and are not delivered.
    Missed(Missed),
    /// No setting keeps both bounds at the capacity there is.
    Infeasible(Infeasible),
    /// Both bounds can be kept again.
    Feasible,
    /// The camera cannot be reached; the sentence says why.
    CameraOffline(Arc<str>),
    /// The camera is back: it is reached again, or gives frames again.
    CameraOnline,
    /// The camera is reached, and its source gives no frames that it can take; the sentence says why.
    NoFrames(Arc<str>),
    /// The setting of the frames changed.
    KnobsChanged(KnobsChanged),
    /// The controller failed; frames travel as captured from now on. The sentence says how.
    ControllerFailed(Arc<str>),
    /// The accuracies of the frames are a default's, or none is known: no table was made for this camera and
    /// detector. The sentence says what is used.
    AccuracyAssumed(Arc<str>),
    /// Nothing follows.
    Ended(EndReason),
}

/// One delivered frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Unique and increasing within one epoch of a camera.
    pub captured_at: Instant,
    /// Names the start of the camera's clock that `captured_at` counts from. A camera that restarts has
    /// another one, and its capture times may then be earlier than those before. Epochs have no order.
    pub epoch: u64,
    /// Size of the delivered image as it is seen: turned as its EXIF data says.
    pub size: FrameSize,
    /// Size of the original as it is seen; a box in the image, multiplied by the ratio of the two, is that in the original. None where
    /// a camera node of an earlier version does not tell it.
    pub source_size: Option<FrameSize>,
    /// Bytes of the original.
    pub original_bytes: u64,
    /// The knob setting in the words of the table; `original` if untouched.
    pub knobs: Arc<str>,
    /// Estimated normalized F1 by the characterization table, 0 to 1.
    pub accuracy: f64,
    /// Whether the estimate keeps the accuracy bound.
    pub accuracy_kept: bool,
    /// From the past or a filled gap: its latency bound counts from sending.
    pub replayed: bool,
    /// Where the time went, up to `handed_at`; at the client, up to the application.
    pub stages: Stages,
    /// When the node handed the frame to the call, by the node's clock.
    pub handed_at: Instant,
    /// One JPEG image.
    pub jpeg: Bytes,
}

/// Where the time of one frame went. The sum is its latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Capture to the camera's log.
    pub capture: Duration,
    /// Applying the knobs.
    pub encode: Duration,
    /// Waiting for the encoder and for the link.
    pub queue: Duration,
    /// First byte sent to last byte received.
    pub network: Duration,
    /// Received by the node to handed to the call; at the client, to the application.
    pub delivery: Duration,
}

impl Stages {
    /// Capture to the application.
    pub fn total(&self) -> Duration {
        let stages = [self.capture, self.encode, self.queue, self.network, self.delivery];
        stages.into_iter().fold(Duration::ZERO, Duration::saturating_add)
    }
}

/// A captured frame that looks like one delivered before.
#[derive(Clone, Debug, PartialEq)]
pub struct Unchanged {
    /// When it was captured.
    pub captured_at: Instant,
    /// The epoch of `captured_at` and `same_as`, as in [`Frame`].
    pub epoch: u64,
    /// The delivered frame that still shows the scene.
    pub same_as: Instant,
    /// From the past or a filled gap.
    pub replayed: bool,
    /// Where the time of the marker went.
    pub stages: Stages,
    /// When the node handed the marker to the call, by the node's clock.
    pub handed_at: Instant,
}

/// Frames that were captured and are not delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct Missed {
    /// None of them was captured before this.
    pub from: Instant,
    /// None of them was captured after this.
    pub to: Instant,
    /// How many; 0 if that is not known.
    pub count: u64,
    /// Why.
    pub why: MissedWhy,
}

/// Why frames were not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissedWhy {
    /// A newer frame was ready before this one was sent.
    Overtaken,
    /// The deadline passed before it was through.
    Late,
    /// The log wrapped before the subscriber read it.
    LogWrapped,
    /// The subscriber did not read. Counts also those that were missed for another reason, where it was too
    /// slow to learn which.
    SlowSubscriber,
    /// The link to the camera was down.
    LinkDown,
    /// No setting kept the bounds, and the subscription prefers none to such frames.
    Infeasible,
    /// Their pictures are damaged: they cannot be read, or not covered as they must be.
    Damaged,
}

/// The closest that is possible while both bounds cannot be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Infeasible {
    /// Shortest latency at the accuracy asked for, and at `frames_per_second` where there is one; none if no setting is accurate enough,
    /// or if that frame rate alone is enough.
    pub latency_at_accuracy: Option<Duration>,
    /// Highest accuracy at the latency asked for; none if nothing fits.
    pub accuracy_at_latency: Option<f64>,
    /// Frames a second at which the accuracy could be kept by a subscription that asks for so many, within `latency_at_accuracy`, or,
    /// without one, within the latency asked for; none if it is not the frame rate that is too high.
    pub frames_per_second: Option<f64>,
    /// The whole in one sentence.
    pub sentence: Arc<str>,
}

/// A change of the knob setting.
#[derive(Clone, Debug, PartialEq)]
pub struct KnobsChanged {
    /// Capture time of the first frame with the new setting.
    pub captured_at: Instant,
    /// The setting before.
    pub from: Arc<str>,
    /// The setting from now on.
    pub to: Arc<str>,
    /// Why, in one sentence.
    pub reason: Arc<str>,
}

/// Why a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The end of the asked time range is reached.
    Complete,
    /// Unsubscribe was called.
    Unsubscribed,
    /// The camera was unregistered.
    CameraUnregistered,
    /// The node stops.
    Shutdown,
}

impl EndReason {
    /// The reason as a word for programs, as it stands in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Unsubscribed => "unsubscribed",
            Self::CameraUnregistered => "camera_unregistered",
            Self::Shutdown => "shutdown",
        }
    }
}

impl fmt::Display for MissedWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overtaken => "a newer frame was ready",
            Self::Late => "the deadline passed",
            Self::LogWrapped => "the log wrapped",
            Self::SlowSubscriber => "the subscriber did not read",
            Self::LinkDown => "the link was down",
            Self::Infeasible => "no setting kept the bounds",
            Self::Damaged => "their pictures are damaged",
        })
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Complete => "the time range is complete",
            Self::Unsubscribed => "unsubscribed",
            Self::CameraUnregistered => "the camera was unregistered",
            Self::Shutdown => "the node stops",
        })
    }
}

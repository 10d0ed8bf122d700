//! A transfer, one adapted stream of one camera: asked for, carried, acknowledged, reported on. `tidegate-wire` carries these between two
//! nodes, and a camera's engine in `tidegate-frame` takes and gives them.

use std::{fmt, time::Duration};

use crate::{Code, Demand, DropReason, FrameSize, Instant};

/// Names a transfer on its link; chosen by the edge node, never reused on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// Asks a camera node for a stream of its frames.
#[derive(Clone, Debug, PartialEq)]
pub struct StartTransfer {
    /// The name of the new transfer.
    pub transfer: TransferId,
    /// The demand on its frames.
    pub demand: Demand,
    /// First capture time wanted, from the camera's log if it is in the past; `None` means from now.
    pub from: Option<Instant>,
    /// Last capture time wanted; `None` means until stopped.
    pub to: Option<Instant>,
    /// Continue a transfer that a link failure cut, or another that its subscriber leaves: frames captured after this
    /// instant were not received.
    pub resume_after: Option<Instant>,
    /// Hints for the choice of the characterization table.
    pub hints: TransferHints,
}

/// Facts by which a camera node chooses a characterization table. Empty texts mean "yours".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferHints {
    /// The detector that will look at the frames: `person`.
    pub detector: String,
    /// The detector's input size: `640x360`.
    pub detector_input: String,
    /// The class of scene: `complex`.
    pub scene: String,
    /// A table by name, which overrides the other hints.
    pub table: String,
}

/// Changes what a running transfer must keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateTransfer {
    /// The transfer.
    pub transfer: TransferId,
    /// The demand on its frames from now on.
    pub demand: Demand,
}

/// Ends a transfer; answered by [`TransferEnded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopTransfer {
    /// The transfer.
    pub transfer: TransferId,
}

/// A transfer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferStarted {
    /// The transfer.
    pub transfer: TransferId,
    /// Capture time of the first frame that it considers; later than asked for if the log begins later.
    pub first: Instant,
}

/// Why a transfer is not served; [`TransferEnded`] with [`EndReason::Failed`] follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferRefused {
    /// The transfer.
    pub transfer: TransferId,
    /// A [`Code`] as text; a newer peer may send one that this version does not know.
    pub code: String,
    /// Why, and the way out.
    pub text: String,
}

impl TransferRefused {
    /// A refusal of the given code.
    pub fn new(transfer: TransferId, code: Code, text: impl Into<String>) -> Self {
        Self { transfer, code: code.as_str().to_owned(), text: text.into() }
    }

    /// The code, if this version knows it.
    pub fn code(&self) -> Option<Code> {
        Code::named(&self.code)
    }
}

/// A transfer is over; nothing of it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferEnded {
    /// The transfer.
    pub transfer: TransferId,
    /// Why.
    pub reason: EndReason,
}

/// How one transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// It was stopped by `StopTransfer`.
    Stopped,
    /// Its last capture time has passed.
    Complete,
    /// The camera's source has ended or failed.
    SourceEnded,
    /// It could not be started or went wrong; a [`TransferRefused`] or a [`CameraReport`] said why.
    Failed,
}

/// A part of the medium for the camera that receives it; soft state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Sustained bytes per second that the camera may use; 0 lifts the limit.
    pub bytes_per_second: u64,
    /// Time by which the camera should delay its captures, once; zero leaves them.
    pub shift: Duration,
    /// For how long this holds unless it is renewed; afterwards the camera's safe default returns.
    pub valid_for: Duration,
}

/// The frame captured at `at` does not differ from the one before and is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unchanged {
    /// The transfer.
    pub transfer: TransferId,
    /// Capture time of the frame.
    pub at: Instant,
}

/// Announces a frame; its body follows.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameHeader {
    /// The transfer that the frame belongs to.
    pub transfer: TransferId,
    /// Capture time, which names the frame.
    pub at: Instant,
    /// Length of the body, in bytes.
    pub bytes: u64,
    /// Pixels of the body as it is seen: turned as its EXIF data says.
    pub size: FrameSize,
    /// Length of the frame as captured.
    pub original_bytes: u64,
    /// The row of the characterization table that chose the knobs.
    pub row: u32,
    /// The knob setting, for people: `scale 1/2 quality 60`.
    pub setting: String,
    /// Estimated normalized F1 of the frame, 0 to 1.
    pub accuracy: f64,
    /// Whether the estimate keeps the accuracy bound.
    pub accuracy_kept: bool,
    /// Whether the frame comes from the past or from a filled gap: its latency counts from sending.
    pub replayed: bool,
    /// From capture to the start of encoding.
    pub encode_started: Duration,
    /// From capture to the end of encoding.
    pub encode_ended: Duration,
    /// From capture to the hand-over to the link.
    pub sent: Duration,
    /// Pixels of the frame as captured, as it is seen; none if that is not known, as of a camera node before version 1.4.
    pub source_size: Option<FrameSize>,
}

impl FrameHeader {
    /// Of a live frame of `bytes` that travels as it was captured and took no time on the way here.
    pub fn untouched(transfer: TransferId, at: Instant, size: FrameSize, bytes: u64) -> Self {
        Self {
            transfer,
            at,
            bytes,
            size,
            original_bytes: bytes,
            row: 0,
            setting: "original".into(),
            accuracy: 1.0,
            accuracy_kept: true,
            replayed: false,
            encode_started: Duration::ZERO,
            encode_ended: Duration::ZERO,
            sent: Duration::ZERO,
            source_size: Some(size),
        }
    }
}

/// The parts that a receiver has of one frame; newer ones replace older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The transfer.
    pub transfer: TransferId,
    /// Capture time of the frame.
    pub frame: Instant,
    /// Bytes of the body received so far.
    pub received: u64,
    /// Length of the body, in bytes.
    pub total: u64,
    /// When the first byte came; receiver's clock.
    pub first_at: Instant,
    /// When the last of the bytes so far came; receiver's clock.
    pub last_at: Instant,
    /// Whether the frame is whole.
    pub complete: bool,
    /// Whether the frame was seen to be reset; it will not become whole.
    pub reset_seen: bool,
}

impl Ack {
    /// Whether no newer one will follow.
    pub const fn is_final(&self) -> bool {
        self.complete || self.reset_seen
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Asks for the untouched frame captured at `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchOriginal {
    /// Names the question; the answer repeats it.
    pub request: u64,
    /// Capture time of the frame.
    pub at: Instant,
}

/// Answer to [`FetchOriginal`], always sent as bulk: with [`OriginalOutcome::Found`] its body is the frame,
/// otherwise it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Original {
    /// The question's name.
    pub request: u64,
    /// Capture time of the frame.
    pub at: Instant,
    /// Whether the frame is there.
    pub outcome: OriginalOutcome,
}

/// Whether an original is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalOutcome {
    /// It is, and follows.
    Found {
        /// Length of the body, in bytes.
        bytes: u64,
    },
    /// It is not in the camera's log.
    Missing {
        /// Capture time of the oldest frame that is.
        oldest: Option<Instant>,
        /// Capture time of the newest frame that is.
        newest: Option<Instant>,
    },
}

/// A report from the camera node.
#[derive(Clone, Debug, PartialEq)]
pub struct CameraReport {
    /// The transfer; 0 if it is about the camera.
    pub transfer: TransferId,
    /// When it happened, or the capture time of the last frame concerned; sender's clock.
    pub at: Instant,
    /// Capacity of the link for this transfer as the camera estimates it, in bytes a second; `None` if it does not know or does not say.
    pub capacity_bytes_per_second: Option<u64>,
    /// Why, in one sentence; empty where nothing needs to be said.
    pub text: String,
    /// The subject of the report.
    pub what: Reported,
}

/// Subject of a [`CameraReport`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reported {
    /// No knob setting keeps both bounds now.
    Infeasible {
        /// Latency that could be kept at the accuracy asked for.
        latency_at_accuracy: Option<Duration>,
        /// Accuracy that could be kept at the latency asked for, 0 to 1.
        accuracy_at_latency: Option<f64>,
        /// Frames a second at which both could be kept, if it is the frame rate that is too high.
        frames_per_second: Option<f64>,
    },
    /// Both bounds can be kept again.
    Feasible,
    /// Another knob setting is in use.
    KnobsChanged,
    /// Frames were not delivered, of which the last was captured at [`CameraReport::at`].
    FramesDropped {
        /// Why; `None` if a newer camera has a reason that this version does not know.
        why: Option<DropReason>,
        /// How many; 0 if that is not known.
        count: u64,
        /// From the capture of the first to that of the last.
        span: Duration,
    },
    /// The controller failed and was replaced by `fixed`.
    ControllerFailed,
    /// No table fits; the transfer runs with the safe default.
    TableMissing,
    /// The transfer could not be started or has failed.
    Failed,
    /// The camera lives, and its source gives nothing: a heartbeat in place of a frame.
    Idle,
    /// Of the camera, not of a transfer (transfer 0): its source gives no frames that it can take, for the reason in the text; with no
    /// text it does again.
    NoFrames,
    /// Of the camera, not of a transfer (transfer 0): its frames are timed by another clock than they should be, as the text says; with no
    /// text by a sound one.
    CaptureClock,
    /// A newer camera reports something that this version has no name for.
    Other(u16),
}

//! One adapted stream of one camera: asked for, carried, acknowledged, reported on.

use std::{fmt, time::Duration};

use bytes::BytesMut;
use tidegate_message::{
    AdaptationProfile, Bounds, Code, ControllerKind, Delivery, Demand, FrameRate, FrameSize,
    Instant, WhenInfeasible,
};

use crate::{
    code::{DecodeError, Field, Input, choice, fields},
    limits::FRAME_BYTES_MAX,
};

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
    /// It could not be started or went wrong; a [`TransferRefused`] or a [`CameraReport`](crate::CameraReport) said why.
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
    /// Length of the body, at most [`FRAME_BYTES_MAX`].
    pub bytes: u64,
    /// Pixels of the body.
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
    /// Length of the body.
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

impl Field for TransferId {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        u64::take(input).map(Self)
    }
}

choice!(EndReason { Stopped = 1, Complete = 2, SourceEnded = 3, Failed = 4 });
choice!(ControllerKind { Budget = 1, MezPi = 2, Aimd = 3, Fixed = 4 });
choice!(Delivery { Latest = 1, Every = 2 });
choice!(WhenInfeasible { KeepLatency = 1, KeepAccuracy = 2, Pause = 3 });
choice!(AdaptationProfile { Jpeg = 1, Mez = 2 });

fields!(TransferHints { detector, detector_input, scene, table });

// Demands are followed by other fields: the fields added to them by version 1.2 end the records.
impl Field for StartTransfer {
    fn put(&self, out: &mut BytesMut) {
        self.transfer.put(out);
        put_demand(&self.demand, out);
        self.from.put(out);
        self.to.put(out);
        self.resume_after.put(out);
        self.hints.put(out);
        self.demand.frame_rate.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let transfer = input.field("transfer")?;
        let demand = take_demand(input)?;
        let (from, to) = (input.field("from")?, input.field("to")?);
        let (resume_after, hints) = (input.field("resume_after")?, input.field("hints")?);
        let demand = Demand { frame_rate: take_frame_rate(input)?, ..demand };
        Ok(Self { transfer, demand, from, to, resume_after, hints })
    }
}

impl Field for UpdateTransfer {
    fn put(&self, out: &mut BytesMut) {
        self.transfer.put(out);
        put_demand(&self.demand, out);
        self.demand.frame_rate.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let transfer = input.field("transfer")?;
        let demand = take_demand(input)?;
        Ok(Self { transfer, demand: Demand { frame_rate: take_frame_rate(input)?, ..demand } })
    }
}

fn put_demand(demand: &Demand, out: &mut BytesMut) {
    demand.bounds.put(out);
    demand.controller.put(out);
    demand.delivery.put(out);
    demand.when_infeasible.put(out);
    demand.profile.put(out);
}

fn take_demand(input: &mut Input<'_>) -> Result<Demand, DecodeError> {
    Ok(Demand {
        bounds: input.field("bounds")?,
        controller: input.field("controller")?,
        delivery: input.field("delivery")?,
        when_infeasible: input.field("when_infeasible")?,
        profile: input.field("profile")?,
        frame_rate: None,
    })
}

/// A peer before version 1.2 has none.
fn take_frame_rate(input: &mut Input<'_>) -> Result<Option<FrameRate>, DecodeError> {
    if input.is_empty() { Ok(None) } else { input.field("frame_rate") }
}

impl Field for FrameRate {
    fn put(&self, out: &mut BytesMut) {
        self.frames_per_second().put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let rate = f64::take(input)?;
        Self::new(rate).map_err(|error| DecodeError::invalid(input.field, error))
    }
}

fields!(StopTransfer { transfer });
fields!(TransferStarted { transfer, first });
fields!(TransferRefused { transfer, code, text });
fields!(TransferEnded { transfer, reason });
fields!(Share { bytes_per_second, shift, valid_for });
fields!(Unchanged { transfer, at });
fields!(Ack { transfer, frame, received, total, first_at, last_at, complete, reset_seen });

impl Field for Bounds {
    fn put(&self, out: &mut BytesMut) {
        self.latency().put(out);
        self.accuracy().put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let latency = input.field("latency")?;
        let accuracy = input.field("accuracy")?;
        Self::new(latency, accuracy).map_err(|error| DecodeError::invalid("bounds", error))
    }
}

impl Field for FrameHeader {
    fn put(&self, out: &mut BytesMut) {
        self.transfer.put(out);
        self.at.put(out);
        self.bytes.put(out);
        self.size.put(out);
        self.original_bytes.put(out);
        self.row.put(out);
        self.setting.put(out);
        self.accuracy.put(out);
        self.accuracy_kept.put(out);
        self.replayed.put(out);
        self.encode_started.put(out);
        self.encode_ended.put(out);
        self.sent.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let header = Self {
            transfer: input.field("transfer")?,
            at: input.field("at")?,
            bytes: input.field("bytes")?,
            size: input.field("size")?,
            original_bytes: input.field("original_bytes")?,
            row: input.field("row")?,
            setting: input.field("setting")?,
            accuracy: input.field("accuracy")?,
            accuracy_kept: input.field("accuracy_kept")?,
            replayed: input.field("replayed")?,
            encode_started: input.field("encode_started")?,
            encode_ended: input.field("encode_ended")?,
            sent: input.field("sent")?,
        };
        if header.bytes > FRAME_BYTES_MAX {
            let (count, limit) = (header.bytes, FRAME_BYTES_MAX);
            return Err(DecodeError::TooLong { field: "frame", count, limit });
        }
        if !(0.0..=1.0).contains(&header.accuracy) {
            return Err(DecodeError::invalid("accuracy", header.accuracy));
        }
        Ok(header)
    }
}

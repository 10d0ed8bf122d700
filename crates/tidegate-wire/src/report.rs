//! Reports of a camera node: frames that are not delivered, what a transfer can keep, and that the camera lives.
//!
//! ```text
//!  from 1.3  kind 34  transfer · at · capacity · text · code (u16) · the fields of that code
//!  to 1.2    kind 32  transfer · at · code (u16) · text · numbers by name          (`by_name`)
//! ```
//!
//! A peer of version 1.2 or older is written the second form, and what it writes is read: [`Record::encode_for`](crate::Record::encode_for)
//! is told the version of the peer.
//!
//! Always true: a report means the same in both forms.

mod by_name;

use std::time::Duration;

use bytes::BytesMut;
use tidegate_message::{DropReason, Instant};

pub(crate) use self::by_name::{put as put_by_name, take as take_by_name};
use crate::{
    code::{DecodeError, Field, Input},
    transfer::TransferId,
};

/// Kind of a report to and from peers before [`TYPED_SINCE`].
pub(crate) const BY_NAME_KIND: u8 = 32;
/// The minor version from which on reports have typed fields.
pub(crate) const TYPED_SINCE: u8 = 3;

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
    /// A newer camera reports something that this version has no name for.
    Other(u16),
}

impl Reported {
    const fn code(&self) -> u16 {
        match self {
            Self::Infeasible { .. } => 1,
            Self::Feasible => 2,
            Self::KnobsChanged => 3,
            Self::FramesDropped { .. } => 4,
            Self::ControllerFailed => 5,
            Self::TableMissing => 6,
            Self::Failed => 7,
            Self::Idle => 8,
            Self::NoFrames => 9,
            Self::Other(code) => *code,
        }
    }

    /// The subject that a code without fields stands for.
    const fn of_code(code: u16) -> Self {
        match code {
            2 => Self::Feasible,
            3 => Self::KnobsChanged,
            5 => Self::ControllerFailed,
            6 => Self::TableMissing,
            7 => Self::Failed,
            8 => Self::Idle,
            9 => Self::NoFrames,
            code => Self::Other(code),
        }
    }
}

impl Field for CameraReport {
    fn put(&self, out: &mut BytesMut) {
        self.transfer.put(out);
        self.at.put(out);
        self.capacity_bytes_per_second.put(out);
        self.text.put(out);
        // Fields of a code come last: a later minor version appends to them.
        self.what.code().put(out);
        match self.what {
            Reported::Infeasible {
                latency_at_accuracy,
                accuracy_at_latency,
                frames_per_second,
            } => {
                latency_at_accuracy.put(out);
                finite(accuracy_at_latency).put(out);
                finite(frames_per_second).put(out);
            }
            Reported::FramesDropped { why, count, span } => {
                why.map_or(0, reason_byte).put(out);
                count.put(out);
                span.put(out);
            }
            _ => {}
        }
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let transfer = input.field("transfer")?;
        let at = input.field("at")?;
        let capacity_bytes_per_second = input.field("capacity_bytes_per_second")?;
        let text = input.field("text")?;
        let what = match input.field("code")? {
            1 => Reported::Infeasible {
                latency_at_accuracy: input.field("latency_at_accuracy")?,
                accuracy_at_latency: input.field("accuracy_at_latency")?,
                frames_per_second: input.field("frames_per_second")?,
            },
            4 => Reported::FramesDropped {
                why: reason_of(input.field("why")?),
                count: input.field("count")?,
                span: input.field("span")?,
            },
            code => Reported::of_code(code),
        };
        Ok(Self { transfer, at, capacity_bytes_per_second, text, what })
    }
}

/// A number that is not finite would be refused by the peer.
fn finite(number: Option<f64>) -> Option<f64> {
    number.filter(|number| number.is_finite())
}

const fn reason_byte(reason: DropReason) -> u8 {
    match reason {
        DropReason::Overtaken => 1,
        DropReason::Late => 2,
        DropReason::Deadline => 3,
        DropReason::Infeasible => 4,
        DropReason::Paused => 5,
        DropReason::EncodeFailed => 6,
        DropReason::LinkDown => 7,
        DropReason::QueueFull => 8,
        DropReason::LogWrapped => 9,
        DropReason::Damaged => 10,
    }
}

fn reason_of(byte: u8) -> Option<DropReason> {
    DropReason::ALL.into_iter().find(|&reason| reason_byte(reason) == byte)
}

#[cfg(test)]
mod tests;

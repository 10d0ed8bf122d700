//! Reports of a camera node: frames that are not delivered, what a transfer can keep, and that the camera lives.
//!
//! ```text
//!  from 1.3  kind 34  transfer · at · capacity · text · code (u16) · the fields of that code
//!  to 1.2    kind 32  transfer · at · code (u16) · text · numbers by name          (`by_name`)
//! ```
//!
//! A peer of version 1.2 or older is written the second form, and what it writes is read: [`Record::encode_for`](crate::Record::encode_for)
//! is given the version of the peer.
//!
//! Always true: a report means the same in both forms.

mod by_name;

use bytes::BytesMut;
use tidegate_message::{
    DropReason,
    transfer::{CameraReport, Reported},
};

pub(crate) use self::by_name::{put as put_by_name, take as take_by_name};
use crate::code::{DecodeError, Field, Input};

/// Kind of a report to and from peers before [`TYPED_SINCE`].
pub(crate) const BY_NAME_KIND: u8 = 32;
/// The minor version from which on reports have typed fields.
pub(crate) const TYPED_SINCE: u8 = 3;

/// The code of a subject.
const fn code_of(what: &Reported) -> u16 {
    match what {
        Reported::Infeasible { .. } => 1,
        Reported::Feasible => 2,
        Reported::KnobsChanged => 3,
        Reported::FramesDropped { .. } => 4,
        Reported::ControllerFailed => 5,
        Reported::TableMissing => 6,
        Reported::Failed => 7,
        Reported::Idle => 8,
        Reported::NoFrames => 9,
        Reported::CaptureClock => 10,
        Reported::Other(code) => *code,
    }
}

/// The subject that a code without fields stands for.
const fn of_code(code: u16) -> Reported {
    match code {
        2 => Reported::Feasible,
        3 => Reported::KnobsChanged,
        5 => Reported::ControllerFailed,
        6 => Reported::TableMissing,
        7 => Reported::Failed,
        8 => Reported::Idle,
        9 => Reported::NoFrames,
        10 => Reported::CaptureClock,
        code => Reported::Other(code),
    }
}

impl Field for CameraReport {
    fn put(&self, out: &mut BytesMut) {
        self.transfer.put(out);
        self.at.put(out);
        self.capacity_bytes_per_second.put(out);
        self.text.put(out);
        // Fields of a code come last: a later minor version appends to them.
        code_of(&self.what).put(out);
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
            code => of_code(code),
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

//! Reports as versions up to 1.2 of the link have them: a code, and numbers by name.

use std::time::Duration;

use bytes::BytesMut;
use tidegate_message::{DropReason, Instant, transfer::TransferId};

use super::{CameraReport, Reported, code_of, finite, of_code};
use crate::{
    code::{DecodeError, Field, Input, put_text},
    limits::{NAME_BYTES_MAX, NUMBERS_MAX},
};

const CAPACITY: &str = "capacity_bytes_per_second";
const LATENCY: &str = "latency_at_accuracy_ms";
const ACCURACY: &str = "accuracy_at_latency";
const RATE: &str = "frames_per_second";
const WHY: &str = "why";
const COUNT: &str = "count";
const SECONDS: &str = "seconds";

/// Reasons in the order of version 1.2, in which a reason is its place as a number.
const REASONS: [DropReason; 10] = [
    DropReason::Overtaken,
    DropReason::Late,
    DropReason::Deadline,
    DropReason::Infeasible,
    DropReason::Paused,
    DropReason::EncodeFailed,
    DropReason::LinkDown,
    DropReason::QueueFull,
    DropReason::LogWrapped,
    DropReason::Damaged,
];

/// Appends a report as version 1.2 reads it, without its kind.
pub(crate) fn put(report: &CameraReport, out: &mut BytesMut) {
    let mut numbers = Vec::new();
    let mut number = |name, value: Option<f64>| {
        numbers.extend(finite(value).map(|value| (name, value)));
    };
    number(CAPACITY, report.capacity_bytes_per_second.map(|capacity| capacity as f64));
    match report.what {
        Reported::Infeasible { latency_at_accuracy, accuracy_at_latency, frames_per_second } => {
            number(LATENCY, latency_at_accuracy.map(|latency| latency.as_secs_f64() * 1e3));
            number(ACCURACY, accuracy_at_latency);
            number(RATE, frames_per_second);
        }
        Reported::FramesDropped { why, count, span } => {
            let place = why.and_then(|why| REASONS.iter().position(|&reason| reason == why));
            number(WHY, place.map(|place| place as f64));
            if count != 1 {
                number(COUNT, Some(count as f64));
                number(SECONDS, Some(span.as_secs_f64()));
            }
        }
        _ => {}
    }
    report.transfer.put(out);
    report.at.put(out);
    code_of(&report.what).put(out);
    report.text.put(out);
    u8::try_from(numbers.len()).expect("they are four at most").put(out);
    for (name, value) in numbers {
        put_text(name, NAME_BYTES_MAX, out);
        value.put(out);
    }
}

/// Reads a report of version 1.2, behind its kind. Numbers that are not known are passed over.
pub(crate) fn take(input: &mut Input<'_>) -> Result<CameraReport, DecodeError> {
    let transfer: TransferId = input.field("transfer")?;
    let at: Instant = input.field("at")?;
    let code = input.field("code")?;
    let text = input.field("text")?;
    let count = usize::from(input.field::<u8>("numbers")?);
    if count > NUMBERS_MAX {
        let (count, limit) = (count as u64, NUMBERS_MAX as u64);
        return Err(DecodeError::TooLong { field: "numbers", count, limit });
    }
    let number = |_| Ok((input.text(NAME_BYTES_MAX)?, f64::take(input)?));
    let numbers: Vec<_> = (0..count).map(number).collect::<Result<_, DecodeError>>()?;
    let number = |name| numbers.iter().find(|(known, _)| known == name).map(|&(_, value)| value);
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).ok();
    let whole = |value: f64| value.max(0.0) as u64;
    let what = match code {
        1 => Reported::Infeasible {
            latency_at_accuracy: number(LATENCY).and_then(|ms| seconds(ms / 1e3)),
            accuracy_at_latency: number(ACCURACY),
            frames_per_second: number(RATE),
        },
        4 => Reported::FramesDropped {
            why: number(WHY).and_then(|place| REASONS.get(place as usize).copied()),
            count: number(COUNT).map_or(1, whole),
            span: number(SECONDS).and_then(seconds).unwrap_or_default(),
        },
        code => of_code(code),
    };
    Ok(CameraReport {
        transfer,
        at,
        capacity_bytes_per_second: number(CAPACITY).map(whole),
        text,
        what,
    })
}

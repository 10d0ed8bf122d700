//! Events of a subscription as JSON: `type` names each, as the calls of gRPC do; times are integers in nanoseconds, durations milliseconds.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_api::{ApiError, Event, Frame, Stages, SubscriptionId, Verdict};
use tidegate_message::Demand;

/// The subscription has begun, or keeps other bounds from now on.
pub(crate) fn bounds(word: &str, id: SubscriptionId, demand: &Demand) -> Value {
    json!({
        "type": word,
        "subscription": id.0,
        "latency_ms": millis(demand.bounds.latency()),
        "accuracy": demand.bounds.accuracy(),
        "fps": demand.frame_rate.map(|rate| rate.frames_per_second()),
    })
}

/// An event; of a frame all but its picture. `reason` says why the frame has its setting, where that is known.
pub(crate) fn event(event: &Event, reason: Option<&str>) -> Value {
    match event {
        Event::Frame(found) => frame(found, reason),
        Event::Unchanged(marker) => json!({
            "type": "unchanged",
            "captured_at": marker.captured_at.as_nanos(),
            "epoch": marker.epoch,
            "same_as": marker.same_as.as_nanos(),
            "replayed": marker.replayed,
            "stages": stages(&marker.stages),
            "latency_ms": millis(marker.stages.total()),
        }),
        Event::Missed(missed) => json!({
            "type": "missed",
            "from": missed.from.as_nanos(),
            "to": missed.to.as_nanos(),
            "count": missed.count,
            "text": missed.why.to_string(),
        }),
        Event::Infeasible(closest) => json!({
            "type": "infeasible",
            "latency_at_accuracy_ms": closest.latency_at_accuracy.map(millis),
            "accuracy_at_latency": closest.accuracy_at_latency,
            "fps": closest.frames_per_second,
            "text": &*closest.sentence,
        }),
        Event::Feasible => json!({ "type": "feasible" }),
        Event::CameraOffline(why) => json!({ "type": "camera_offline", "text": &**why }),
        Event::CameraOnline => json!({ "type": "camera_online" }),
        Event::NoFrames(why) => json!({ "type": "no_frames", "text": &**why }),
        Event::KnobsChanged(changed) => json!({
            "type": "knobs_changed",
            "captured_at": changed.captured_at.as_nanos(),
            "from": &*changed.from,
            "to": &*changed.to,
            "text": &*changed.reason,
        }),
        Event::ControllerFailed(why) => json!({ "type": "controller_failed", "text": &**why }),
        Event::AccuracyAssumed(why) => json!({ "type": "accuracy_assumed", "text": &**why }),
        Event::Ended(why) => json!({ "type": "ended", "text": why.to_string() }),
    }
}

fn frame(frame: &Frame, reason: Option<&str>) -> Value {
    json!({
        "type": "frame",
        "captured_at": frame.captured_at.as_nanos(),
        "epoch": frame.epoch,
        "size": [frame.size.width, frame.size.height],
        "source_size": frame.source_size.map(|size| [size.width, size.height]),
        "bytes": frame.jpeg.len(),
        "original_bytes": frame.original_bytes,
        "knobs": &*frame.knobs,
        "accuracy": frame.accuracy,
        "accuracy_kept": frame.accuracy_kept,
        "replayed": frame.replayed,
        "stages": stages(&frame.stages),
        "latency_ms": millis(frame.stages.total()),
        "reason": reason,
    })
}

/// A verdict on a captured frame, delivered or not.
pub(crate) fn verdict(verdict: &Verdict) -> Value {
    json!({
        "type": "verdict",
        "captured_at": verdict.captured_at.as_nanos(),
        "outcome": verdict.outcome.as_str(),
        "bytes": verdict.sent_bytes,
        "original_bytes": verdict.original_bytes,
        "knobs": &*verdict.knobs,
        "row": verdict.row,
        "accuracy": verdict.accuracy,
        "accuracy_kept": verdict.accuracy_kept,
        "stages": stages(&verdict.stages),
        "latency_ms": millis(verdict.stages.total()),
        "bound_ms": millis(verdict.bound),
        "capacity_bytes_per_second": verdict.capacity_bytes_per_second,
        "reason": verdict.reason.as_deref(),
    })
}

/// A failure, beside others that go on.
pub(crate) fn failure(error: &ApiError) -> Value {
    json!({ "type": "error", "code": error.code().as_str(), "message": error.chain() })
}

fn stages(stages: &Stages) -> Value {
    json!({
        "capture_ms": millis(stages.capture),
        "encode_ms": millis(stages.encode),
        "queue_ms": millis(stages.queue),
        "network_ms": millis(stages.network),
        "delivery_ms": millis(stages.delivery),
    })
}

/// In milliseconds, to the microsecond.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

//! Events of a subscription as JSON, for all that prints or sends them so: `type` names each, as the calls of gRPC do; times are integers in
//! nanoseconds since 1970, durations milliseconds.

pub mod fabric;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tidegate_message::Demand;

use crate::{ApiError, Event, Frame, Place, Stages, SubscriptionId, Verdict};

/// The subscription has begun (`started`), or keeps other bounds from now on (`updated`).
pub fn bounds(word: &str, id: SubscriptionId, demand: &Demand) -> Value {
    json!({
        "type": word,
        "subscription": id.0,
        "latency_ms": millis(demand.bounds.latency()),
        "accuracy": demand.bounds.accuracy(),
        "fps": demand.frame_rate.map(|rate| rate.frames_per_second()),
    })
}

/// The events of one subscription, in their order.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Why the frames have their setting, where that is known.
    reason: Option<Arc<str>>,
}

impl Events {
    /// The next event; of a frame all but its picture, and why it has its setting.
    pub fn next(&mut self, event: &Event) -> Value {
        if let Event::KnobsChanged(changed) = event {
            self.reason = Some(changed.reason.clone());
        }
        match event {
            Event::Frame(found) => frame(found, self.reason.as_deref()),
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
            Event::Ended(why) => {
                json!({ "type": "ended", "reason": why.as_str(), "text": why.to_string() })
            }
        }
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
pub fn verdict(verdict: &Verdict) -> Value {
    json!({
        "type": "verdict",
        "camera": verdict.camera.as_str(),
        "transfer": verdict.transfer,
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
pub fn failure(error: &ApiError) -> Value {
    let mut failure = reason(error);
    failure["type"] = json!("error");
    failure
}

/// The code and the sentence of a failure, and the node that serves what was asked for, if another one does.
pub fn reason(error: &ApiError) -> Value {
    let mut reason = json!({ "code": error.code().as_str(), "message": error.chain() });
    if let Some(Place { node, addresses }) = error.place() {
        reason["node"] = json!(node);
        reason["addresses"] = json!(addresses);
    }
    reason
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_message::{FrameSize, Instant};

    use super::*;
    use crate::{EndReason, Infeasible, KnobsChanged, Missed, MissedWhy, Unchanged, proto};

    fn frame() -> Event {
        Event::Frame(Frame {
            captured_at: Instant::from_nanos(1_777_000_000_000_000_001),
            epoch: 7,
            size: FrameSize { width: 320, height: 180 },
            source_size: Some(FrameSize { width: 640, height: 360 }),
            original_bytes: 90,
            knobs: "1/2 q60".into(),
            accuracy: 0.97,
            accuracy_kept: true,
            replayed: false,
            stages: Stages { encode: Duration::from_micros(1500), ..Stages::default() },
            handed_at: Instant::from_nanos(2),
            jpeg: Bytes::from_static(b"jpeg"),
        })
    }

    fn changed() -> Event {
        let (from, to) = ("original".into(), "1/2 q60".into());
        let captured_at = Instant::from_nanos(1);
        Event::KnobsChanged(KnobsChanged { captured_at, from, to, reason: "less room".into() })
    }

    #[test]
    fn each_event_has_the_name_that_it_has_in_grpc() {
        let missed = Missed {
            from: Instant::from_millis(1),
            to: Instant::from_millis(3),
            count: 2,
            why: MissedWhy::Late,
        };
        let infeasible = Infeasible {
            latency_at_accuracy: Some(Duration::from_micros(393_500)),
            accuracy_at_latency: None,
            frames_per_second: Some(2.1),
            sentence: "cannot be kept".into(),
        };
        let unchanged = Unchanged {
            captured_at: Instant::from_nanos(3),
            epoch: 7,
            same_as: Instant::from_nanos(2),
            replayed: false,
            stages: Stages::default(),
            handed_at: Instant::from_nanos(4),
        };
        let names = String::from_utf8_lossy(proto::FILE_DESCRIPTOR_SET);
        for (event, name) in [
            (frame(), "frame"),
            (Event::Unchanged(unchanged), "unchanged"),
            (Event::Missed(missed), "missed"),
            (Event::Infeasible(infeasible), "infeasible"),
            (Event::Feasible, "feasible"),
            (Event::CameraOffline("gone".into()), "camera_offline"),
            (Event::CameraOnline, "camera_online"),
            (Event::NoFrames("dark".into()), "no_frames"),
            (changed(), "knobs_changed"),
            (Event::ControllerFailed("broken".into()), "controller_failed"),
            (Event::AccuracyAssumed("no table".into()), "accuracy_assumed"),
            (Event::Ended(EndReason::Complete), "ended"),
        ] {
            assert_eq!(Events::default().next(&event)["type"], name);
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn a_frame_has_its_figures_and_the_reason_of_its_setting() {
        let mut events = Events::default();
        let first = events.next(&frame());
        assert_eq!(first["captured_at"], 1_777_000_000_000_000_001_i64);
        assert_eq!(
            (&first["size"], &first["source_size"]),
            (&json!([320, 180]), &json!([640, 360]))
        );
        assert_eq!((&first["bytes"], &first["latency_ms"]), (&json!(4), &json!(1.5)));
        assert_eq!(first["reason"], Value::Null);
        assert_eq!(events.next(&changed())["text"], "less room");
        assert_eq!(events.next(&frame())["reason"], "less room");
    }

    #[test]
    fn programs_read_the_reason_of_an_end_and_people_its_sentence() {
        for (why, reason, text) in [
            (EndReason::Complete, "complete", "the time range is complete"),
            (EndReason::Unsubscribed, "unsubscribed", "unsubscribed"),
            (EndReason::CameraUnregistered, "camera_unregistered", "the camera was unregistered"),
            (EndReason::Shutdown, "shutdown", "the node stops"),
        ] {
            let told = Events::default().next(&Event::Ended(why));
            assert_eq!(told, json!({ "type": "ended", "reason": reason, "text": text }));
        }
    }
}

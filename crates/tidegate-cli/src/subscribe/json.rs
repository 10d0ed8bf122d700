//! The events of a subscription, as an object a line.

use serde_json::{Value, json};
use tidegate_api::{Event, Stages, Verdict};
use tidegate_message::CameraName;

/// An event of that camera's subscription; a frame without its picture.
pub(super) fn event(camera: &CameraName, event: &Event) -> Value {
    let mut object = match event {
        Event::Frame(frame) => json!({
            "event": "frame",
            "captured_at": frame.captured_at.as_nanos(),
            "epoch": frame.epoch,
            "width": frame.size.width,
            "height": frame.size.height,
            "source_width": frame.source_size.map(|size| size.width),
            "source_height": frame.source_size.map(|size| size.height),
            "bytes": frame.jpeg.len(),
            "original_bytes": frame.original_bytes,
            "knobs": &*frame.knobs,
            "accuracy": frame.accuracy,
            "accuracy_kept": frame.accuracy_kept,
            "replayed": frame.replayed,
            "stages": stages(&frame.stages),
        }),
        Event::Unchanged(marker) => json!({
            "event": "unchanged",
            "captured_at": marker.captured_at.as_nanos(),
            "epoch": marker.epoch,
            "same_as": marker.same_as.as_nanos(),
            "replayed": marker.replayed,
            "stages": stages(&marker.stages),
        }),
        Event::Missed(missed) => json!({
            "event": "missed",
            "from": missed.from.as_nanos(),
            "to": missed.to.as_nanos(),
            "count": missed.count,
            "why": missed.why.to_string(),
        }),
        Event::Infeasible(infeasible) => json!({
            "event": "infeasible",
            "latency_at_accuracy_ms":
                infeasible.latency_at_accuracy.map(|latency| latency.as_secs_f64() * 1e3),
            "accuracy_at_latency": infeasible.accuracy_at_latency,
            "frames_per_second": infeasible.frames_per_second,
            "text": &*infeasible.sentence,
        }),
        Event::Feasible => json!({ "event": "feasible" }),
        Event::CameraOffline(why) => json!({ "event": "camera-offline", "text": &**why }),
        Event::NoFrames(why) => json!({ "event": "no-frames", "text": &**why }),
        Event::CameraOnline => json!({ "event": "camera-online" }),
        Event::KnobsChanged(changed) => json!({
            "event": "knobs-changed",
            "captured_at": changed.captured_at.as_nanos(),
            "from": &*changed.from,
            "to": &*changed.to,
            "reason": &*changed.reason,
        }),
        Event::ControllerFailed(why) => json!({ "event": "controller-failed", "text": &**why }),
        Event::AccuracyAssumed(why) => json!({ "event": "accuracy-assumed", "text": &**why }),
        Event::Ended(reason) => json!({ "event": "ended", "text": reason.to_string() }),
    };
    object["camera"] = camera.as_str().into();
    object
}

/// The verdict on a captured frame.
pub(super) fn verdict(verdict: &Verdict) -> Value {
    json!({
        "event": "verdict",
        "camera": verdict.camera.as_str(),
        "transfer": verdict.transfer,
        "captured_at": verdict.captured_at.as_nanos(),
        "outcome": verdict.outcome.to_string(),
        "bytes": verdict.sent_bytes,
        "original_bytes": verdict.original_bytes,
        "knobs": &*verdict.knobs,
        "accuracy": verdict.accuracy,
        "accuracy_kept": verdict.accuracy_kept,
        "stages": stages(&verdict.stages),
        "bound_ms": verdict.bound.as_secs_f64() * 1e3,
    })
}

fn stages(stages: &Stages) -> Value {
    let millis = |stage: std::time::Duration| stage.as_secs_f64() * 1e3;
    json!({
        "capture_ms": millis(stages.capture),
        "encode_ms": millis(stages.encode),
        "queue_ms": millis(stages.queue),
        "network_ms": millis(stages.network),
        "delivery_ms": millis(stages.delivery),
        "total_ms": millis(stages.total()),
    })
}

#[cfg(test)]
mod tests {
    use tidegate_api::{EndReason, Infeasible, Missed, MissedWhy};
    use tidegate_message::Instant;

    use super::*;

    #[test]
    fn bounds_that_could_be_had_are_numbers() {
        let infeasible = Infeasible {
            latency_at_accuracy: Some(std::time::Duration::from_micros(393_500)),
            accuracy_at_latency: None,
            frames_per_second: Some(2.1),
            sentence: "cannot be kept".into(),
        };
        let object = event(&"north".parse().unwrap(), &Event::Infeasible(infeasible));
        assert_eq!(object["latency_at_accuracy_ms"], 393.5);
        assert_eq!(object["frames_per_second"], 2.1);
        assert!(object["accuracy_at_latency"].is_null());
    }

    #[test]
    fn every_object_names_its_camera_and_its_event() {
        let camera = "north".parse().unwrap();
        let missed = Missed {
            from: Instant::from_millis(1),
            to: Instant::from_millis(3),
            count: 2,
            why: MissedWhy::Late,
        };
        for (what, word) in [
            (Event::Missed(missed), "missed"),
            (Event::Feasible, "feasible"),
            (Event::CameraOnline, "camera-online"),
            (Event::CameraOffline("gone\n".into()), "camera-offline"),
            (Event::Ended(EndReason::Complete), "ended"),
        ] {
            let object = event(&camera, &what);
            assert_eq!((&object["camera"], &object["event"]), (&"north".into(), &word.into()));
            assert!(!object.to_string().contains('\n'), "{object}");
        }
    }
}

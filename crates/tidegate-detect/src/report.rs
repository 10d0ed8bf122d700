//! The messages of a detector: a detection, or the reason why there is none.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tidegate_api::{
    Missed, Stages,
    boxes::{self, Prediction, Sides},
};
use tidegate_message::{CameraName, FrameSize, Instant};
use tokio::time;

use crate::budget::Spent;

/// A message about one camera.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The findings in the newest frame.
    Detection(Box<Detection>),
    /// Nothing moved since an earlier frame: its findings still hold.
    Unchanged {
        /// When the frame was captured that looks like the earlier one.
        captured_at: Instant,
        /// The epoch of both.
        epoch: u64,
        /// The earlier one.
        same_as: Instant,
    },
    /// Frames that were captured and did not come within the bounds.
    Missed(Missed),
    /// The bounds cannot be kept.
    Infeasible(Infeasible),
    /// They can be kept again, as far as the same party is concerned.
    Feasible(Party),
    /// The camera is not reached; the sentence says why.
    CameraOffline(Arc<str>),
    /// The camera is back.
    CameraOnline,
    /// The camera is reached and gives no frames; the sentence says why.
    NoFrames(Arc<str>),
    /// No table was made for this camera and detector: accuracies are a default's. The sentence says which.
    AccuracyAssumed(Arc<str>),
    /// A program of the detector ended and is started again.
    WorkerRestarted {
        /// How often programs were started again so far.
        restarts: u64,
        /// Why the last one ended, if it said so.
        error: Option<Arc<str>>,
    },
    /// As many images wait for the programs as may; frames until then are not looked at.
    Busy {
        /// Images that wait.
        waiting: usize,
        /// When a place is likely.
        retry_after: Duration,
    },
    /// The detector cannot be had, or failed over a frame.
    DetectorFailed {
        /// How.
        error: Arc<str>,
        /// When it is tried again.
        retry_after: Duration,
    },
    /// The detector cannot use a frame.
    Refused {
        /// Which.
        captured_at: Instant,
        /// Its words.
        error: Arc<str>,
    },
    /// The untouched frame of a detection.
    Original {
        /// When it was captured.
        captured_at: Instant,
        /// The JPEG as the camera made it.
        jpeg: Bytes,
    },
    /// It cannot be had.
    OriginalMissing {
        /// When it was captured.
        captured_at: Instant,
        /// Why.
        error: Arc<str>,
    },
}

/// The findings in one frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// When the frame was captured.
    pub captured_at: Instant,
    /// The epoch of that time.
    pub epoch: u64,
    /// Size of the frame that was looked at, as it is seen.
    pub frame: FrameSize,
    /// Size of the original. Boxes and poses are in its pixels.
    pub source: FrameSize,
    /// The knob setting of the frame.
    pub knobs: Arc<str>,
    /// Its estimated accuracy.
    pub accuracy: f64,
    /// Boxes.
    pub boxes: Vec<tidegate_message::Detection>,
    /// Classes of the whole image, with their scores.
    pub classes: Vec<(f64, String)>,
    /// People, each as its points: x, y, score.
    pub poses: Vec<Vec<[f64; 3]>>,
    /// Where the time went up to the detector.
    pub stages: Stages,
    /// From there until the detector looked, and from its answer to [`Self::measured_until`].
    pub wait: Duration,
    /// Decoding.
    pub decode: Duration,
    /// Looking.
    pub infer: Duration,
    /// The application's bound.
    pub bound: Duration,
    /// Whether the frame keeps the bound of accuracy.
    pub accuracy_kept: bool,
    /// The end of the times: at first when the answer came, then when the detection left.
    pub measured_until: time::Instant,
    /// Whether the detection keeps both bounds, as of [`Self::measured_until`].
    pub kept: bool,
    /// Frames that came since the last detection and were not looked at, because a newer one was there.
    pub skipped: u64,
}

/// A report on its way to the bus or the screen, which nothing can be read of before it leaves: until then its times grow.
#[derive(Clone, Debug)]
pub struct Pending(Report);

impl From<Report> for Pending {
    fn from(report: Report) -> Self {
        Self(report)
    }
}

impl Pending {
    /// The report, which leaves now; to be called just before.
    pub fn leave(self, now: time::Instant) -> Report {
        let Self(mut report) = self;
        if let Report::Detection(found) = &mut report {
            found.leave(now);
        }
        report
    }
}

impl Detection {
    /// It leaves now: the time since its answer counts, too, and with it whether the bounds are kept.
    pub(crate) fn leave(&mut self, now: time::Instant) {
        let age = now.saturating_duration_since(self.measured_until);
        self.wait = self.wait.saturating_add(age);
        self.measured_until = now;
        self.kept = self.accuracy_kept && self.total() <= self.bound;
    }

    /// From capture to the detection.
    pub fn total(&self) -> Duration {
        let stages = [self.stages.total(), self.wait, self.decode, self.infer];
        stages.into_iter().fold(Duration::ZERO, Duration::saturating_add)
    }
}

/// A party that the bounds are shared between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The detector.
    Detector,
    /// The network, with the camera's encoder.
    Network,
}

impl Party {
    const fn word(self) -> &'static str {
        match self {
            Self::Detector => "detector",
            Self::Network => "network",
        }
    }
}

/// Why the bounds cannot be kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Infeasible {
    /// The detector alone takes too long.
    Detector(Spent),
    /// Not within what the detector leaves.
    Network {
        /// The time that it leaves.
        bound: Duration,
        /// The node's sentence, which says what could be kept.
        sentence: Arc<str>,
    },
}

impl Infeasible {
    /// The party that cannot.
    pub const fn by(&self) -> Party {
        match self {
            Self::Detector(_) => Party::Detector,
            Self::Network { .. } => Party::Network,
        }
    }

    /// The whole in one sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::Detector(Spent { detector, network, bound }) => format!(
                "the detector takes {} ms at the 95th percentile and leaves less than {} ms of {} ms to the network; ask for {} ms, or have \
                 it look at fewer frames",
                detector.as_millis(),
                network.as_millis(),
                bound.as_millis(),
                // With the same part for the network.
                (*detector * 10 / 9).as_millis() + 1,
            ),
            Self::Network { bound, sentence } => {
                format!("within the {} ms that the detector leaves: {sentence}", bound.as_millis())
            }
        }
    }
}

/// The detector and the camera that a message is about.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// Name of the detector: of the section.
    pub detector: &'a str,
    /// Name of its model or program.
    pub model: &'a str,
    /// The camera.
    pub camera: &'a CameraName,
}

impl Report {
    /// Its type in messages.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Detection(_) => "detection",
            Self::Unchanged { .. } => "unchanged",
            Self::Missed(_) => "missed",
            Self::Infeasible(_) => "infeasible",
            Self::Feasible(_) => "feasible",
            Self::CameraOffline(_) => "camera_offline",
            Self::CameraOnline => "camera_online",
            Self::NoFrames(_) => "no_frames",
            Self::AccuracyAssumed(_) => "accuracy_assumed",
            Self::WorkerRestarted { .. } => "worker_restarted",
            Self::Busy { .. } => "busy",
            Self::DetectorFailed { .. } => "detector_failed",
            Self::Refused { .. } => "refused",
            Self::Original { .. } => "original",
            Self::OriginalMissing { .. } => "original_missing",
        }
    }

    /// The message. Times are in milliseconds, capture times in nanoseconds, corners in pixels of the original. A picture is not in it.
    pub fn json(&self, about: About<'_>) -> Value {
        let own = match self {
            Self::Detection(found) => found.json(about),
            Self::Unchanged { captured_at, epoch, same_as } => json!({
                "captured_at": captured_at.as_nanos(),
                "epoch": epoch,
                "same_as": same_as.as_nanos(),
            }),
            Self::Missed(missed) => json!({
                "from": missed.from.as_nanos(),
                "to": missed.to.as_nanos(),
                "count": missed.count,
                "text": missed.why.to_string(),
            }),
            Self::Infeasible(infeasible) => {
                let mut own = json!({
                    "by": infeasible.by().word(),
                    "text": infeasible.sentence(),
                });
                match infeasible {
                    Infeasible::Detector(spent) => {
                        own["detector_ms"] = millis(spent.detector);
                        own["bound_ms"] = millis(spent.bound);
                    }
                    Infeasible::Network { bound, .. } => own["network_bound_ms"] = millis(*bound),
                }
                own
            }
            Self::Feasible(by) => json!({ "by": by.word() }),
            Self::CameraOffline(text) | Self::NoFrames(text) | Self::AccuracyAssumed(text) => {
                json!({ "text": &**text })
            }
            Self::CameraOnline => json!({}),
            Self::WorkerRestarted { restarts, error } => {
                json!({ "restarts": restarts, "text": error.as_deref() })
            }
            Self::Busy { waiting, retry_after } => {
                json!({ "waiting": waiting, "retry_after_ms": millis(*retry_after) })
            }
            Self::DetectorFailed { error, retry_after } => {
                json!({ "text": &**error, "retry_after_ms": millis(*retry_after) })
            }
            Self::Refused { captured_at, error } | Self::OriginalMissing { captured_at, error } => {
                json!({ "captured_at": captured_at.as_nanos(), "text": &**error })
            }
            Self::Original { captured_at, jpeg } => {
                json!({ "captured_at": captured_at.as_nanos(), "bytes": jpeg.len() })
            }
        };
        let mut message = Map::new();
        message.insert("type".to_owned(), self.word().into());
        message.insert("detector".to_owned(), about.detector.into());
        message.insert("camera".to_owned(), about.camera.as_str().into());
        if let Value::Object(own) = own {
            message.extend(own);
        }
        Value::Object(message)
    }
}

impl Detection {
    fn json(&self, about: About<'_>) -> Value {
        let size = |size: FrameSize| json!({ "width": size.width, "height": size.height });
        let sides = Sides::Hundredths;
        let boxes = self.boxes.iter().map(|found| boxes::listed(found, sides));
        let predictions = self.boxes.iter().map(|found| Prediction::new(found, sides));
        let mut message = json!({
            "model": about.model,
            "captured_at": self.captured_at.as_nanos(),
            "epoch": self.epoch,
            "frame": size(self.frame),
            "source": size(self.source),
            // Its name where `supervision` and Roboflow's clients look for it.
            "image": size(self.source),
            "knobs": &*self.knobs,
            "accuracy": self.accuracy,
            "boxes": boxes.collect::<Vec<_>>(),
            "predictions": predictions.collect::<Vec<_>>(),
            "times": {
                "capture_ms": millis(self.stages.capture),
                "encode_ms": millis(self.stages.encode),
                "queue_ms": millis(self.stages.queue),
                "network_ms": millis(self.stages.network),
                "delivery_ms": millis(self.stages.delivery),
                "wait_ms": millis(self.wait),
                "decode_ms": millis(self.decode),
                "infer_ms": millis(self.infer),
                "total_ms": millis(self.total()),
            },
            "bound_ms": millis(self.bound),
            "kept": self.kept,
            "skipped": self.skipped,
            "original": format!(
                "cameras/{}/snapshot.jpg?at={}", about.camera, self.captured_at.as_nanos()
            ),
        });
        // They are of models that have them.
        if !self.classes.is_empty() {
            message["classes"] = json!(self.classes);
        }
        if !self.poses.is_empty() {
            message["poses"] = json!(self.poses);
        }
        message
    }
}

/// One line for people, without the camera.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detection(found) => found.fmt(f),
            Self::Unchanged { captured_at, same_as, .. } => {
                write!(f, "{captured_at}  nothing moved since {same_as}")
            }
            Self::Missed(missed) => {
                write!(f, "{}  {} frames missed: {}", missed.to, missed.count, missed.why)
            }
            Self::Infeasible(infeasible) => {
                write!(f, "the bounds cannot be kept: {}", infeasible.sentence())
            }
            Self::Feasible(by) => {
                write!(f, "the bounds can be kept again, as far as the {} goes", by.word())
            }
            Self::CameraOffline(why) => write!(f, "the camera is away: {why}"),
            Self::CameraOnline => f.write_str("the camera is back"),
            Self::NoFrames(why) => write!(f, "no frames: {why}"),
            Self::AccuracyAssumed(why) => f.write_str(why),
            Self::WorkerRestarted { restarts, error } => {
                write!(f, "the detector was started again, {restarts} times so far")?;
                error.as_ref().map_or(Ok(()), |error| write!(f, ": {error}"))
            }
            Self::Busy { waiting, retry_after } => write!(
                f,
                "{waiting} images wait for the detector; the next try is in {} ms",
                retry_after.as_millis()
            ),
            Self::DetectorFailed { error, .. } => write!(f, "the detector fails: {error}"),
            Self::Refused { captured_at, error } => write!(f, "{captured_at}  refused: {error}"),
            Self::Original { captured_at, jpeg } => {
                write!(f, "{captured_at}  original of {} bytes", jpeg.len())
            }
            Self::OriginalMissing { captured_at, error } => {
                write!(f, "{captured_at}  no original: {error}")
            }
        }
    }
}

/// `1700000000.250000000  1 dog, 2 person  185 ms of 200 (network 101, wait 4, detector 80)  1/2 q60 0.97`.
impl fmt::Display for Detection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for found in &self.boxes {
            *counts.entry(&found.label).or_default() += 1;
        }
        let counts = counts.into_iter().map(|(label, count)| format!("{count} {label}"));
        let classes = self.classes.iter().map(|(score, label)| format!("{label} {score:.2}"));
        let poses = (!self.poses.is_empty()).then(|| format!("{} poses", self.poses.len()));
        let all: Vec<String> = counts.chain(classes).chain(poses).collect();
        write!(
            f,
            "{}  {}  {} ms of {}{} (network {}, wait {}, detector {})  {} {:.2}",
            self.captured_at,
            if all.is_empty() { "nothing".to_owned() } else { all.join(", ") },
            self.total().as_millis(),
            self.bound.as_millis(),
            if self.kept { "" } else { ", not kept" },
            self.stages.total().as_millis(),
            self.wait.as_millis(),
            (self.decode + self.infer).as_millis(),
            self.knobs,
            self.accuracy,
        )
    }
}

/// Milliseconds with three decimals.
fn millis(duration: Duration) -> Value {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    (micros as f64 / 1000.0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn detection() -> Detection {
        let rect = tidegate_message::Rect::new(10.0, 20.0, 30.125, 60.0).unwrap();
        Detection {
            captured_at: Instant::from_nanos(1_700_000_000_000_000_001),
            epoch: 7,
            frame: FrameSize { width: 960, height: 540 },
            source: FrameSize { width: 1920, height: 1080 },
            knobs: "1/2 q60".into(),
            accuracy: 0.97,
            boxes: vec![tidegate_message::Detection { rect, score: 0.5, label: "person".into() }],
            classes: Vec::new(),
            poses: Vec::new(),
            stages: Stages {
                capture: MS,
                encode: 2 * MS,
                queue: 3 * MS,
                network: 4 * MS,
                delivery: 5 * MS,
            },
            wait: 6 * MS,
            decode: 7 * MS,
            infer: Duration::from_micros(8250),
            bound: 200 * MS,
            accuracy_kept: true,
            measured_until: time::Instant::now(),
            kept: true,
            skipped: 2,
        }
    }

    #[test]
    fn a_detection_is_one_line_for_people() {
        let mut found = detection();
        found
            .boxes
            .push(tidegate_message::Detection { label: "dog".into(), ..found.boxes[0].clone() });
        found.boxes.push(found.boxes[0].clone());
        let expected = "1700000000.000000001  1 dog, 2 person  36 ms of 200 (network 15, wait 6, detector 15)  1/2 q60 0.97";
        assert_eq!(found.to_string(), expected);
        (found.kept, found.boxes) = (false, Vec::new());
        let text = Report::Detection(Box::new(found)).to_string();
        assert!(text.contains("  nothing  36 ms of 200, not kept ("), "{text}");
    }

    #[test]
    fn a_detection_that_leaves_late_does_not_keep_its_bound() {
        let begin = detection();
        let leaves_after = |millis: u32| {
            let pending = Pending::from(Report::Detection(Box::new(begin.clone())));
            match pending.leave(begin.measured_until + millis * MS) {
                Report::Detection(found) => (found.wait, found.kept),
                other => panic!("{other:?}"),
            }
        };
        // Its times sum up to 36.25 ms.
        assert_eq!(leaves_after(0), (6 * MS, true));
        assert_eq!(leaves_after(163), (169 * MS, true));
        assert_eq!(leaves_after(164), (170 * MS, false));
        let mut found = begin.clone();
        found.leave(begin.measured_until + 100 * MS);
        found.leave(begin.measured_until + 163 * MS);
        assert_eq!((found.wait, found.kept), (169 * MS, true), "no time is counted twice");
        found.accuracy_kept = false;
        found.leave(found.measured_until);
        assert!(!found.kept);
    }

    #[test]
    fn a_detection_is_written_as_documented() {
        let camera: CameraName = "cam1".parse().unwrap();
        let about = About { detector: "people", model: "person", camera: &camera };
        let expected = json!({
            "type": "detection", "detector": "people", "model": "person", "camera": "cam1",
            "captured_at": 1_700_000_000_000_000_001_i64, "epoch": 7,
            "frame": { "width": 960, "height": 540 }, "source": { "width": 1920, "height": 1080 },
            "image": { "width": 1920, "height": 1080 },
            "knobs": "1/2 q60", "accuracy": 0.97,
            "boxes": [[10.0, 20.0, 30.13, 60.0, 0.5, "person"]],
            "predictions": [{
                "x": 20.06, "y": 40.0, "width": 20.13, "height": 40.0,
                "confidence": 0.5, "class": "person", "class_id": 1_402_450_560,
            }],
            "times": {
                "capture_ms": 1.0, "encode_ms": 2.0, "queue_ms": 3.0, "network_ms": 4.0,
                "delivery_ms": 5.0, "wait_ms": 6.0, "decode_ms": 7.0, "infer_ms": 8.25,
                "total_ms": 36.25,
            },
            "bound_ms": 200.0, "kept": true, "skipped": 2,
            "original": "cameras/cam1/snapshot.jpg?at=1700000000000000001",
        });
        assert_eq!(Report::Detection(Box::new(detection())).json(about), expected);
    }

    #[test]
    fn each_message_says_its_type_and_whose_it_is() {
        let camera: CameraName = "cam1".parse().unwrap();
        let about = About { detector: "people", model: "person", camera: &camera };
        let spent = Spent { detector: 230 * MS, network: 20 * MS, bound: 200 * MS };
        for (report, expected) in [
            (
                Report::Infeasible(Infeasible::Detector(spent)),
                json!({
                    "type": "infeasible", "by": "detector", "detector_ms": 230.0, "bound_ms": 200.0,
                    "text": "the detector takes 230 ms at the 95th percentile and leaves less than 20 ms of 200 ms to the network; ask \
                             for 256 ms, or have it look at fewer frames",
                }),
            ),
            (Report::Feasible(Party::Network), json!({ "type": "feasible", "by": "network" })),
            (
                Report::CameraOffline("its link is down".into()),
                json!({ "type": "camera_offline", "text": "its link is down" }),
            ),
            (
                Report::Busy { waiting: 256, retry_after: 40 * MS },
                json!({ "type": "busy", "waiting": 256, "retry_after_ms": 40.0 }),
            ),
            (
                Report::WorkerRestarted { restarts: 3, error: None },
                json!({ "type": "worker_restarted", "restarts": 3, "text": null }),
            ),
        ] {
            let mut expected = expected;
            expected["detector"] = "people".into();
            expected["camera"] = "cam1".into();
            assert_eq!(report.json(about), expected);
        }
    }
}

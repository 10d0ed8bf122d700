//! Answers about images: one value, with its JSON and its message of gRPC.

use std::time::Duration;

use serde::{Serialize, Serializer, ser::SerializeSeq as _};
use tidegate_api::{
    boxes::{self, Prediction, Sides},
    proto,
};
use tidegate_message::FrameSize;
use tidegate_ports::{Outcome, Times};

/// The findings in an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Detected {
    /// The model that looked.
    pub model: String,
    /// Size of the image as it is seen, in whose pixels boxes are.
    pub size: FrameSize,
    /// Boxes, classes and poses, with the times by stage; `total` is from the whole request to its answer.
    pub outcome: Outcome,
}

/// `{"model", "image", "predictions", "boxes", "classes", "poses", "times", "id"?}`.
#[derive(Serialize)]
struct Answer<'a> {
    model: &'a str,
    image: Size,
    predictions: Predictions<'a>,
    boxes: Boxes<'a>,
    classes: &'a [(f64, String)],
    poses: &'a [Vec<[f64; 3]>],
    times: TimesMs,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
}

#[derive(Serialize)]
struct Size {
    width: u16,
    height: u16,
}

/// As Roboflow's clients and `supervision` read them: middle, width and height.
struct Predictions<'a>(&'a Outcome);

/// Left, top, right, bottom, score, label.
struct Boxes<'a>(&'a Outcome);

/// Times in milliseconds, to the microsecond.
#[derive(Serialize)]
struct TimesMs {
    queue_ms: f64,
    decode_ms: f64,
    infer_ms: f64,
    total_ms: f64,
}

impl Serialize for Predictions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.boxes.len()))?;
        for found in &self.0.boxes {
            list.serialize_element(&Prediction::new(found, Sides::Exact))?;
        }
        list.end()
    }
}

impl Serialize for Boxes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.boxes.len()))?;
        for found in &self.0.boxes {
            list.serialize_element(&boxes::listed(found, Sides::Exact))?;
        }
        list.end()
    }
}

impl Detected {
    /// The answer as JSON, with the id of its request where it has one.
    pub fn json(&self, id: Option<u64>) -> String {
        let Outcome { classes, poses, times, .. } = &self.outcome;
        let FrameSize { width, height } = self.size;
        let answer = Answer {
            model: &self.model,
            image: Size { width, height },
            predictions: Predictions(&self.outcome),
            boxes: Boxes(&self.outcome),
            classes,
            poses,
            times: times_ms(times),
            id,
        };
        serde_json::to_string(&answer).expect("checked numbers and texts are JSON")
    }

    /// The answer as a message of `tidegate.v1.Detect`.
    pub(crate) fn message(self) -> proto::Detected {
        let Outcome { boxes: found, classes, poses, times, .. } = self.outcome;
        let classes =
            classes.into_iter().map(|(score, label)| proto::DetectedClass { score, label });
        let point = |[x, y, score]: [f64; 3]| proto::DetectedPoint { x, y, score };
        let pose = |points: Vec<[f64; 3]>| proto::DetectedPose {
            points: points.into_iter().map(point).collect(),
        };
        let (width, height) = (self.size.width.into(), self.size.height.into());
        proto::Detected {
            boxes: found.iter().map(boxes::message).collect(),
            poses: poses.into_iter().map(pose).collect(),
            image: Some(proto::FrameSize { width, height }),
            times: Some(proto::DetectTimes {
                queue_nanos: nanoseconds(times.queue),
                decode_nanos: nanoseconds(times.decode),
                infer_nanos: nanoseconds(times.infer),
                total_nanos: nanoseconds(times.total),
            }),
            classes: classes.collect(),
            model: self.model,
        }
    }
}

fn times_ms(times: &Times) -> TimesMs {
    TimesMs {
        queue_ms: milliseconds(times.queue),
        decode_ms: milliseconds(times.decode),
        infer_ms: milliseconds(times.infer),
        total_ms: milliseconds(times.total),
    }
}

/// Milliseconds, to the microsecond.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Nanoseconds, of as long a time as fits.
fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use tidegate_api::boxes::class_id;

    use super::*;
    use crate::tests::outcome;

    #[test]
    fn an_answer_is_written_as_documented() {
        let size = FrameSize { width: 640, height: 480 };
        let detected = Detected { model: "face".to_owned(), size, outcome: outcome() };
        let expected = r#"{"model":"face","image":{"width":640,"height":480},"predictions":[{"x":25.0,"y":40.0,"width":30.0,"height":40.0,"confidence":0.75,"class":"face","class_id":292255708}],"boxes":[[10.0,20.0,40.0,60.0,0.75,"face"]],"classes":[[0.5,"cat"]],"poses":[[[1.0,2.0,0.25]]],"times":{"queue_ms":2.998,"decode_ms":0.001,"infer_ms":0.002,"total_ms":3.001},"id":7}"#;
        assert_eq!(detected.json(Some(7)), expected);
        assert_eq!(detected.json(None), expected.replace(",\"id\":7", ""));
        assert_eq!(class_id("face"), 292_255_708);
    }

    #[test]
    fn message_of_grpc_has_all_that_was_found() {
        let size = FrameSize { width: 640, height: 480 };
        let detected = Detected { model: "face".to_owned(), size, outcome: outcome() };
        let (score, label) = (0.75, "face".to_owned());
        let found =
            proto::DetectedBox { left: 10.0, top: 20.0, right: 40.0, bottom: 60.0, score, label };
        let points = vec![proto::DetectedPoint { x: 1.0, y: 2.0, score: 0.25 }];
        let expected = proto::Detected {
            boxes: vec![found],
            poses: vec![proto::DetectedPose { points }],
            image: Some(proto::FrameSize { width: 640, height: 480 }),
            times: Some(proto::DetectTimes {
                queue_nanos: 2_998_000,
                decode_nanos: 1000,
                infer_nanos: 2000,
                total_nanos: 3_001_000,
            }),
            classes: vec![proto::DetectedClass { score: 0.5, label: "cat".to_owned() }],
            model: "face".to_owned(),
        };
        assert_eq!(detected.message(), expected);
        assert_eq!(nanoseconds(Duration::MAX), i64::MAX);
    }
}

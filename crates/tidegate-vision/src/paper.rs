//! The questions that the paper's server answers, and its answers, as its clients read them.
//!
//! Always true: `success` is a text, times are texts in milliseconds, and a space follows each comma and colon, as Python writes JSON.

use std::{io, time::Duration};

use bytes::Bytes;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Value, json, ser::Formatter};
use tidegate_identity::access::Identity;
use tidegate_message::Detection;
use tidegate_ports::{DetectError, Image};
use tokio::time::Instant;

use crate::{Detected, Vision, VisionSettings, refused::Refused};

/// The model that learns faces.
pub(crate) const LEARNS: &str = "recognize";

/// A kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Face,
    Recognize,
    Pose,
    Object,
}

/// The paths of each question, without the slash at their end.
pub(crate) const CALLS: [(&str, Call); 4] = [
    ("/detector/detect", Call::Face),
    ("/recognizer/predict", Call::Recognize),
    ("/openpose/detect", Call::Pose),
    ("/object/detect", Call::Object),
];

/// How a question came: the time of the answer is with decoding, or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Rest,
    Stream,
}

/// Members of an object, in their order.
#[derive(Clone)]
pub(crate) struct Members(pub(crate) Vec<(&'static str, Item)>);

#[derive(Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum Item {
    Value(Value),
    List(Vec<Members>),
}

impl<V: Into<Value>> From<V> for Item {
    fn from(value: V) -> Self {
        Self::Value(value.into())
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Members {
    /// As Python's `json.dumps` writes it.
    pub(crate) fn text(&self) -> String {
        let mut bytes = Vec::new();
        let mut writer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
        self.serialize(&mut writer).expect("texts, numbers and lists are JSON");
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }
}

/// A space behind each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

impl Call {
    /// The model that is asked.
    pub(crate) fn model(self, settings: &VisionSettings) -> &str {
        match self {
            Self::Face => &settings.face_model,
            Self::Recognize => LEARNS,
            Self::Pose => "pose",
            Self::Object => "object",
        }
    }

    /// By the number of the persistent protocol.
    pub(crate) fn of_opcode(opcode: u32) -> Option<Self> {
        match opcode {
            1 => Some(Self::Face),
            2 => Some(Self::Recognize),
            3 => Some(Self::Pose),
            4 => Some(Self::Object),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Face => "Face detection",
            Self::Recognize => "Face recognition",
            Self::Pose => "OpenPose",
            Self::Object => "Object detection",
        }
    }

    /// The findings, as the paper's server writes them.
    pub(crate) fn answer(self, detected: &Detected, way: Way) -> Members {
        let time: (_, Item) = ("server_processing_time", elapsed(detected, way).into());
        let boxes = &detected.outcome.boxes;
        let found = |more: Vec<(&'static str, Item)>| {
            Members([vec![("success", "true".into()), time.clone()], more].concat())
        };
        let nothing = || vec![("success", "false".into()), time.clone()];
        let gpu = ("gpu_support", false.into());
        match self {
            Self::Face if boxes.is_empty() => Members(nothing()),
            Self::Face => found(vec![("rects", rects(boxes).into())]),
            Self::Recognize => match largest(boxes) {
                None => Members(nothing()),
                Some(face) => recognized(face, &face.label, time.1.clone()),
            },
            Self::Pose if detected.outcome.poses.is_empty() => Members(nothing()),
            Self::Pose => {
                let rounded = |value: f64| (value * 1e6).round() / 1e6;
                let poses = detected.outcome.poses.iter();
                let poses: Vec<Vec<_>> = poses
                    .map(|pose| pose.iter().map(|point| point.map(rounded)).collect())
                    .collect();
                found(vec![("poses", json!(poses).into())])
            }
            Self::Object if boxes.is_empty() => Members([nothing(), vec![gpu]].concat()),
            Self::Object => {
                let object = |found: &Detection| {
                    Members(vec![
                        ("rect", json!(truncated(found)).into()),
                        ("class", (*found.label).into()),
                        ("confidence", format!("{:.2}", found.score).into()),
                    ])
                };
                let objects = Item::List(boxes.iter().map(object).collect());
                found(vec![gpu, ("objects", objects)])
            }
        }
    }
}

pub(crate) fn recognized(face: &Detection, subject: &str, time: Item) -> Members {
    Members(vec![
        ("success", "true".into()),
        ("subject", subject.into()),
        ("confidence", format!("{:.3}", face.score).into()),
        ("server_processing_time", time),
        ("rect", json!(truncated(face)).into()),
    ])
}

/// The time of the server in milliseconds, with three digits.
pub(crate) fn elapsed(detected: &Detected, way: Way) -> String {
    let times = &detected.outcome.times;
    let time = match way {
        Way::Rest => times.infer,
        Way::Stream => times.decode + times.infer,
    };
    in_milliseconds(time)
}

fn in_milliseconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

pub(crate) fn rects(boxes: &[Detection]) -> Value {
    boxes.iter().map(|found| json!(truncated(found))).collect()
}

fn truncated(found: &Detection) -> [i64; 4] {
    found.rect.corners().map(|side| side as i64)
}

pub(crate) fn largest(boxes: &[Detection]) -> Option<&Detection> {
    boxes.iter().max_by(|one, other| one.rect.area().total_cmp(&other.rect.area()))
}

/// A failure, for the ways that have no status.
pub(crate) fn failure(error: &str) -> String {
    Members(vec![
        ("success", "false".into()),
        ("error", error.into()),
        ("server_processing_time", 0.into()),
    ])
    .text()
}

/// The answer to an image that came over a WebSocket or a connection of the persistent protocol.
pub(crate) async fn streamed(
    vision: &Vision,
    identity: &Identity,
    call: Call,
    image: Bytes,
    since: Instant,
) -> Result<String, Refused> {
    match vision.look(identity, call.model(&vision.0.settings), Image::Encoded(image), since).await
    {
        Ok(detected) => Ok(call.answer(&detected, Way::Stream).text()),
        Err(Refused::Detect(DetectError::UnknownModel { .. })) => {
            Ok(failure(&format!("{} not supported", call.name())))
        }
        Err(refused) => Err(refused),
    }
}

/// The same for a refusal.
pub(crate) fn refused_text(refused: &Refused) -> String {
    failure(&refused.message())
}

/// The answer to a text on a WebSocket: the text.
pub(crate) fn echo(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok()
}

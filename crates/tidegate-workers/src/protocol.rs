//! The detector protocol, versions 1 and 2: messages to and from bytes (`docs/src/detector-protocol.md`).
//!
//! A message is two big-endian 32-bit lengths, a JSON object of the first length, and a payload of the second.

use std::{io, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use tidegate_message::{Detection, FrameSize, Rect, RectError};

/// The newest version that we speak.
pub const VERSION: u32 = 2;
/// Largest JSON object that is accepted from a program, in bytes.
pub const JSON_BYTES_MAX: usize = 1 << 20;
/// Most boxes in one answer.
pub const BOXES_MAX: usize = 10_000;
/// Longest label or name, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// Most requests in flight that a program may ask for.
pub const IN_FLIGHT_MAX: usize = 64;
/// Most scenes that a program may keep.
pub const SCENES_MAX: usize = 256;

/// A program's first message.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Hello {
    /// The protocol version that it speaks.
    pub protocol: u32,
    /// Its name: one word, used in tables and reports.
    pub detector: String,
    /// Whether it learns a background from the frames of a scene.
    #[serde(default)]
    pub background: bool,
    /// Whether it reads images from shared memory.
    #[serde(default)]
    pub memory: bool,
    /// Requests that it takes before it has answered the first.
    #[serde(default = "one")]
    pub in_flight: usize,
    /// Requests that it answers together.
    #[serde(default = "one")]
    pub batch: usize,
    /// Scenes that it keeps.
    #[serde(default = "one")]
    pub scenes: usize,
    /// Its models, where a request may name one; the first is used where none is named.
    #[serde(default)]
    pub models: Vec<Model>,
}

const fn one() -> usize {
    1
}

/// A model of a program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Model {
    /// Its name, by which requests ask for it.
    pub name: String,
    /// Its kind in the program's words: `detection`, `classification`, `pose`, `recognition`.
    #[serde(default)]
    pub kind: String,
}

/// A request, without the id that the sender adds and without its payload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Ask<'a> {
    /// Map the memory whose descriptor comes along.
    Memory {
        /// Its size.
        bytes: u64,
    },
    /// Begin a scene, and forget the one of that number.
    Scene {
        /// Its number.
        scene: u64,
        /// Width and height of the camera's frames.
        source: [u16; 2],
    },
    /// Learn the image as background.
    Background {
        /// Of that scene.
        scene: u64,
        /// The image.
        #[serde(flatten)]
        image: Where,
    },
    /// Find boxes in the image.
    Detect {
        /// By this model.
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<&'a str>,
        /// In the picture of this scene.
        #[serde(skip_serializing_if = "Option::is_none")]
        scene: Option<u64>,
        /// The image.
        #[serde(flatten)]
        image: Where,
        /// Another request of the same batch follows.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// Load a model, and try it.
    Load {
        /// Its name.
        name: &'a str,
        /// Its file, next to the description of its input and output.
        path: &'a str,
    },
    /// Forget a loaded model.
    Unload {
        /// Its name.
        name: &'a str,
    },
    /// Learn a face from the image.
    Train {
        /// The model that learns.
        model: &'a str,
        /// The person whose face it is.
        subject: &'a str,
        /// The image.
        #[serde(flatten)]
        image: Where,
    },
}

/// Where the bytes of an image are, and what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Where {
    /// In shared memory, from here; in the payload if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// So many of them there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    /// Pixels, as height, width and channels (1 gray, 3 BGR), row-major; an encoded image if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<[u32; 3]>,
}

#[derive(Serialize)]
struct Numbered<'a> {
    id: u64,
    #[serde(flatten)]
    ask: &'a Ask<'a>,
}

/// The bytes of a request that come before its payload.
///
/// # Errors
/// [`MessageError::TooLarge`] for a payload of 4 GiB or more.
pub fn head(id: u64, ask: &Ask<'_>, payload_bytes: usize) -> Result<Vec<u8>, MessageError> {
    let json = serde_json::to_vec(&Numbered { id, ask }).map_err(MessageError::Json)?;
    let length = |bytes: usize| u32::try_from(bytes).map_err(|_| MessageError::TooLarge { bytes });
    let mut head = Vec::with_capacity(8 + json.len());
    head.extend(length(json.len())?.to_be_bytes());
    head.extend(length(payload_bytes)?.to_be_bytes());
    head.extend(json);
    Ok(head)
}

/// Left, top, right, bottom, score, label.
type WireBox = (f64, f64, f64, f64, f64, String);

/// An answer as it arrived, its fields unchecked.
#[derive(Debug, Deserialize)]
pub struct Reply {
    /// The request that is answered.
    pub id: u64,
    /// Why the request cannot be carried out.
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    input: Option<[u32; 2]>,
    #[serde(default)]
    size: Option<[u32; 2]>,
    #[serde(default)]
    boxes: Option<Vec<WireBox>>,
    #[serde(default)]
    classes: Vec<(f64, String)>,
    #[serde(default)]
    poses: Vec<Vec<[f64; 3]>>,
    #[serde(default)]
    took_ms: f64,
    #[serde(default)]
    decode_ms: f64,
    /// How many images a model has learned from.
    #[serde(default)]
    pub images: Option<u64>,
}

/// An answer about one image, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Boxes, in pixels of the scene's source, or of the image as it is seen.
    pub boxes: Vec<Detection>,
    /// Classes of the whole image, with their scores.
    pub classes: Vec<(f64, String)>,
    /// People, each as its points: x, y, score.
    pub poses: Vec<Vec<[f64; 3]>>,
    /// Size of the image as it is seen, where the program says it.
    pub size: Option<FrameSize>,
    /// How long the program decoded, by its own clock.
    pub decode: Duration,
    /// How long it looked, decoding included, by its own clock.
    pub took: Duration,
}

impl Reply {
    /// Reads the JSON object of an answer.
    ///
    /// # Errors
    /// [`MessageError::Shape`] if it says which request it answers, and its other fields are not of the types that the protocol has;
    /// [`MessageError::Json`] if it is no answer.
    pub fn parse(json: &[u8]) -> Result<Self, MessageError> {
        #[derive(Deserialize)]
        struct Id {
            id: u64,
        }
        serde_json::from_slice(json).map_err(|source| match serde_json::from_slice(json) {
            Ok(Id { id }) => MessageError::Shape { id, source },
            Err(_) => MessageError::Json(source),
        })
    }

    /// The size that the detector looks at.
    ///
    /// # Errors
    /// [`MessageError::Field`] if it is missing or a side is out of range.
    pub fn input(&self) -> Result<FrameSize, MessageError> {
        self.input.and_then(size).ok_or(MessageError::Field { field: "input", expected: SIDES })
    }

    /// The findings in an image.
    ///
    /// # Errors
    /// [`MessageError`] if boxes are missing, too many or no boxes, or another field is out of range.
    pub fn found(self) -> Result<Found, MessageError> {
        let boxes = self.boxes.ok_or(MessageError::Field {
            field: "boxes",
            expected: "a list, empty if nothing was found",
        })?;
        for (field, count) in [("boxes", boxes.len()), ("classes", self.classes.len())] {
            at_most(field, count)?;
        }
        at_most("poses", self.poses.iter().map(|points| points.len().max(1)).sum())?;
        let label = |label: &str| match label.len() {
            0..=LABEL_BYTES_MAX => Ok(()),
            _ => Err(MessageError::Field { field: "label", expected: "at most 64 bytes" }),
        };
        let finite = |field, value: f64| {
            let expected = "finite numbers";
            if value.is_finite() { Ok(()) } else { Err(MessageError::Field { field, expected }) }
        };
        let detection = |(x1, y1, x2, y2, score, name): WireBox| {
            label(&name)?;
            finite("scores", score)?;
            Ok(Detection { rect: Rect::new(x1, y1, x2, y2)?, score, label: name.into() })
        };
        let boxes = boxes.into_iter().map(detection).collect::<Result<Vec<_>, MessageError>>()?;
        for (score, name) in &self.classes {
            label(name)?;
            finite("scores", *score)?;
        }
        for value in self.poses.iter().flatten().flatten() {
            finite("poses", *value)?;
        }
        let outside = MessageError::Field { field: "size", expected: SIDES };
        let seen = self.size.map(|sides| size(sides).ok_or(outside)).transpose()?;
        Ok(Found {
            boxes,
            classes: self.classes,
            poses: self.poses,
            size: seen,
            decode: milliseconds("decode_ms", self.decode_ms)?,
            took: milliseconds("took_ms", self.took_ms)?,
        })
    }
}

const SIDES: &str = "[width, height], each 1 to 65535";

fn size(sides: [u32; 2]) -> Option<FrameSize> {
    let [width, height] = sides.map(|side| u16::try_from(side).ok().filter(|side| *side > 0));
    Some(FrameSize { width: width?, height: height? })
}

fn at_most(field: &'static str, count: usize) -> Result<(), MessageError> {
    let expected = "at most 10000 of them";
    if count > BOXES_MAX { Err(MessageError::Field { field, expected }) } else { Ok(()) }
}

fn milliseconds(field: &'static str, value: f64) -> Result<Duration, MessageError> {
    let expected = "a time in milliseconds";
    Duration::try_from_secs_f64(value / 1e3).map_err(|_| MessageError::Field { field, expected })
}

/// Reads the JSON object of a program's first message.
///
/// # Errors
/// [`MessageError`] if it is none, or of a version that we do not speak, or a field is out of range.
pub fn parse_hello(json: &[u8]) -> Result<Hello, MessageError> {
    let mut hello: Hello = serde_json::from_slice(json).map_err(MessageError::Json)?;
    if !(1..=VERSION).contains(&hello.protocol) {
        return Err(MessageError::Version { found: hello.protocol });
    }
    let expected = "1 to 64 letters, digits, '.', '_' or '-'";
    if !is_name(&hello.detector) {
        return Err(MessageError::Field { field: "detector", expected });
    }
    if !hello.models.iter().all(|model| is_name(&model.name)) {
        return Err(MessageError::Field { field: "models", expected: "names of one word each" });
    }
    if hello.protocol == 1 {
        // Version 1 knows one request at a time.
        (hello.memory, hello.in_flight, hello.batch, hello.scenes) = (false, 1, 1, 1);
    }
    for (field, value, most, expected) in [
        ("in_flight", hello.in_flight, IN_FLIGHT_MAX, "1 to 64"),
        ("batch", hello.batch, hello.in_flight, "1 to in_flight"),
        ("scenes", hello.scenes, SCENES_MAX, "1 to 256"),
    ] {
        if !(1..=most).contains(&value) {
            return Err(MessageError::Field { field, expected });
        }
    }
    Ok(hello)
}

/// Whether it may name a detector or a model: 1 to 64 letters, digits, `.`, `_` or `-`.
pub fn is_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.len() <= LABEL_BYTES_MAX && name.chars().all(word)
}

/// Receives the JSON of one message.
pub(crate) async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Vec<u8>, MessageError> {
    let (json, payload) = (stream.read_u32().await? as usize, stream.read_u32().await? as usize);
    // A program has no payload for us: one here means that its lengths are not where they belong.
    if json > JSON_BYTES_MAX || payload > 0 {
        return Err(MessageError::TooLarge { bytes: json.saturating_add(payload) });
    }
    let mut bytes = vec![0; json];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Problems of a message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The connection broke.
    #[error("the connection ended inside the exchange")]
    Io(#[from] io::Error),
    /// The message is too large.
    #[error(
        "a message of {bytes} bytes is over the limit; a program sends at most 1 MiB of JSON and no payload"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The message is not the JSON that it should be.
    #[error("a message is not the JSON object that the protocol describes")]
    Json(#[source] serde_json::Error),
    /// An answer that says which request it is of, and not in the form of one.
    #[error("the answer to request {id} has a field of another type than the protocol describes")]
    Shape {
        /// The request.
        id: u64,
        /// The first such field.
        #[source]
        source: serde_json::Error,
    },
    /// A version that we do not speak.
    #[error("the program speaks version {found} of the protocol, we speak 1 to {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// An answer to something else.
    #[error(
        "an answer carries the id {found}, which waits for none; answer each request once, with its id"
    )]
    Order {
        /// The answer.
        found: u64,
    },
    /// A field that is missing or out of range.
    #[error("{field} must be {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// Corners that are no box.
    #[error("a box is not valid")]
    Box(#[from] RectError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_written_as_documented() {
        let inline = Where::default();
        let memory = Where { offset: Some(4096), bytes: Some(9), shape: None };
        for (ask, json) in [
            (Ask::Memory { bytes: 64 }, r#"{"id":7,"type":"memory","bytes":64}"#),
            (
                Ask::Scene { scene: 2, source: [640, 480] },
                r#"{"id":7,"type":"scene","scene":2,"source":[640,480]}"#,
            ),
            (
                Ask::Background { scene: 2, image: inline },
                r#"{"id":7,"type":"background","scene":2}"#,
            ),
            (
                Ask::Detect { model: Some("face"), scene: None, image: memory, more: true },
                r#"{"id":7,"type":"detect","model":"face","offset":4096,"bytes":9,"more":true}"#,
            ),
            (
                Ask::Detect {
                    model: None,
                    scene: Some(1),
                    image: Where { shape: Some([2, 3, 1]), ..inline },
                    more: false,
                },
                r#"{"id":7,"type":"detect","scene":1,"shape":[2,3,1]}"#,
            ),
            (Ask::Unload { name: "m" }, r#"{"id":7,"type":"unload","name":"m"}"#),
        ] {
            let bytes = head(7, &ask, 5).unwrap();
            assert_eq!(&bytes[..4], (json.len() as u32).to_be_bytes(), "{json}");
            assert_eq!(&bytes[4..8], 5_u32.to_be_bytes());
            assert_eq!(std::str::from_utf8(&bytes[8..]).unwrap(), json);
        }
    }

    #[test]
    fn hellos_are_checked() {
        let one = parse_hello(br#"{"protocol": 1, "detector": "a", "in_flight": 9}"#).unwrap();
        assert_eq!((one.in_flight, one.batch, one.scenes, one.memory), (1, 1, 1, false));
        let two =
            br#"{"protocol": 2, "detector": "a", "in_flight": 9, "batch": 4, "memory": true}"#;
        let two = parse_hello(two).unwrap();
        assert_eq!((two.in_flight, two.batch, two.scenes, two.memory), (9, 4, 1, true));
        for (json, part) in [
            (r#"{"protocol": 3, "detector": "a"}"#, "version 3"),
            (r#"{"protocol": 2, "detector": "a b"}"#, "detector must be"),
            (r#"{"protocol": 2, "detector": "a", "in_flight": 65}"#, "in_flight must be"),
            (r#"{"protocol": 2, "detector": "a", "batch": 2}"#, "batch must be"),
            (r#"{"protocol": 2, "detector": "a", "scenes": 0}"#, "scenes must be"),
            (r#"{"protocol": 2, "detector": "a", "models": [{"name": ""}]}"#, "models must be"),
            (r#"[]"#, "JSON"),
        ] {
            let error = parse_hello(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn results_are_checked() {
        let many = format!(r#"{{"id":1,"boxes":[{}]}}"#, ["[1,1,2,2,1,\"a\"]"; 10_001].join(","));
        for (json, part) in [
            (r#"{"id":1}"#, "boxes must be"),
            (r#"{"id":1,"boxes":[[5,5,1,9,1,"a"]]}"#, "a box is not valid"),
            (r#"{"id":1,"boxes":[[1,1,1e7,9,1,"a"]]}"#, "a box is not valid"),
            (r#"{"id":1,"boxes":[],"size":[70000,1]}"#, "size must be"),
            (r#"{"id":1,"boxes":[],"size":[0,1]}"#, "size must be"),
            (r#"{"id":1,"boxes":[],"took_ms":-1}"#, "took_ms must be"),
            (r#"{"id":1,"boxes":[],"decode_ms":-1}"#, "decode_ms must be"),
            (many.as_str(), "boxes must be at most"),
        ] {
            let error = Reply::parse(json.as_bytes()).unwrap().found().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        // JSON has no such numbers, and neither has an answer.
        for json in [r#"{"id":1,"boxes":[[NaN,1,2,2,1,"a"]]}"#, r#"{"boxes":[]}"#, "[]"] {
            assert!(matches!(Reply::parse(json.as_bytes()), Err(MessageError::Json(_))), "{json}");
        }
        for json in [r#"{"id":1,"boxes":[[1,1]]}"#, r#"{"id":1,"boxes":[],"size":[-1,1]}"#] {
            let error = Reply::parse(json.as_bytes()).unwrap_err();
            assert!(matches!(error, MessageError::Shape { id: 1, .. }), "{json}: {error}");
        }
        for json in [r#"{"id":1}"#, r#"{"id":1,"input":[70000,1]}"#] {
            let error = Reply::parse(json.as_bytes()).unwrap().input().unwrap_err().to_string();
            assert!(error.contains("input must be"), "{error}");
        }
        let all = br#"{"id":1,"boxes":[[1,2,3,4,0.5,"a"]],"classes":[[0.75,"cat"]],
            "poses":[[[1,2,0.5]]],"size":[8,6],"took_ms":2,"decode_ms":1.5}"#;
        let found = Reply::parse(all).unwrap().found().unwrap();
        assert_eq!(found.classes, [(0.75, "cat".to_owned())]);
        assert_eq!(found.poses, [[[1.0, 2.0, 0.5]]]);
        assert_eq!(found.size, Some(FrameSize { width: 8, height: 6 }));
        assert_eq!(found.decode, Duration::from_micros(1500));
    }
}

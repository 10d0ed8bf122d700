//! The detector protocol, version 1: messages to and from bytes (`docs/src/detector-protocol.md`).
//!
//! A message is two big-endian 32-bit lengths, a JSON object of the first length, and a payload of the second.

use std::{io, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use tidegate_frame::score::{Detection, Rect, RectError};
use tidegate_message::FrameSize;

use super::Detections;

/// The version that we speak.
pub(super) const VERSION: u32 = 1;
/// Largest JSON object that is accepted from a program, in bytes.
const JSON_BYTES_MAX: usize = 1 << 20;
/// Most boxes in one answer.
const BOXES_MAX: usize = 10_000;
/// Longest label, in bytes.
const LABEL_BYTES_MAX: usize = 64;

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
}

/// A request, without the id that the sender adds and without its payload.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Ask {
    /// Forget the last scene.
    Scene {
        /// Width and height of the camera's frames.
        source: [u16; 2],
    },
    /// Learn the payload, a JPEG image, as background.
    Background,
    /// Find boxes in the payload, a JPEG image.
    Detect,
}

#[derive(Serialize)]
struct Numbered {
    id: u64,
    #[serde(flatten)]
    ask: Ask,
}

/// Left, top, right, bottom, score, label.
type WireBox = (f64, f64, f64, f64, f64, String);

/// An answer as it arrived, its fields unchecked.
#[derive(Debug, Deserialize)]
pub struct Reply {
    id: u64,
    #[serde(default)]
    pub(super) error: Option<String>,
    #[serde(default)]
    input: Option<[u16; 2]>,
    #[serde(default)]
    boxes: Option<Vec<WireBox>>,
    #[serde(default)]
    took_ms: f64,
}

impl Reply {
    /// Reads the JSON object of the answer to request `id`.
    ///
    /// # Errors
    /// It is none, or the answer to another.
    pub fn parse(json: &[u8], id: u64) -> Result<Self, MessageError> {
        let reply: Self = serde_json::from_slice(json).map_err(MessageError::Json)?;
        if reply.id != id {
            return Err(MessageError::Order { wanted: id, found: reply.id });
        }
        Ok(reply)
    }

    /// The size that the detector looks at.
    ///
    /// # Errors
    /// It is missing or empty.
    pub fn input(&self) -> Result<FrameSize, MessageError> {
        match self.input {
            Some([width, height]) if width > 0 && height > 0 => Ok(FrameSize { width, height }),
            _ => Err(MessageError::Field {
                field: "input",
                expected: "[width, height], both positive",
            }),
        }
    }

    /// The boxes.
    ///
    /// # Errors
    /// They are missing, too many, or not boxes.
    pub fn detections(self) -> Result<Detections, MessageError> {
        let boxes = self.boxes.ok_or(MessageError::Field {
            field: "boxes",
            expected: "a list, empty if nothing was found",
        })?;
        if boxes.len() > BOXES_MAX {
            return Err(MessageError::Field { field: "boxes", expected: "at most 10000 of them" });
        }
        let detection = |(x1, y1, x2, y2, score, label): WireBox| {
            if label.len() > LABEL_BYTES_MAX {
                return Err(MessageError::Field { field: "label", expected: "at most 64 bytes" });
            }
            Ok(Detection { rect: Rect::new(x1, y1, x2, y2)?, score, label: label.into() })
        };
        let boxes = boxes.into_iter().map(detection).collect::<Result<Vec<_>, _>>()?;
        let took = Duration::try_from_secs_f64(self.took_ms / 1e3).map_err(|_| {
            MessageError::Field { field: "took_ms", expected: "a time in milliseconds" }
        })?;
        Ok(Detections { boxes, took })
    }
}

/// Sends a request.
pub(super) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    id: u64,
    ask: Ask,
    payload: &[u8],
) -> Result<(), MessageError> {
    let json = serde_json::to_vec(&Numbered { id, ask }).map_err(MessageError::Json)?;
    let length = |bytes: usize| u32::try_from(bytes).map_err(|_| MessageError::TooLarge { bytes });
    let mut head = Vec::with_capacity(8 + json.len());
    head.extend(length(json.len())?.to_be_bytes());
    head.extend(length(payload.len())?.to_be_bytes());
    head.extend(json);
    stream.write_all(&head).await?;
    stream.write_all(payload).await?;
    Ok(stream.flush().await?)
}

/// Receives the answer to request `id`.
pub(super) async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    id: u64,
) -> Result<Reply, MessageError> {
    Reply::parse(&receive_json(stream).await?, id)
}

/// Receives the first message.
pub(super) async fn receive_hello(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Hello, MessageError> {
    let json = receive_json(stream).await?;
    let hello: Hello = serde_json::from_slice(&json).map_err(MessageError::Json)?;
    if hello.protocol != VERSION {
        return Err(MessageError::Version { found: hello.protocol });
    }
    let name = &hello.detector;
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > LABEL_BYTES_MAX || !name.chars().all(word) {
        let expected = "1 to 64 letters, digits, '.', '_' or '-'";
        return Err(MessageError::Field { field: "detector", expected });
    }
    Ok(hello)
}

async fn receive_json(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, MessageError> {
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
    /// A version that we do not speak.
    #[error("the program speaks version {found} of the protocol, we speak {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// An answer to something else.
    #[error(
        "the answer to request {wanted} carries the id {found}; answer in order, with the request's id"
    )]
    Order {
        /// The request.
        wanted: u64,
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

//! The reasons for which a request is not answered with boxes, and their form over HTTP.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use serde_json::json;
use tidegate_api::ApiError;
use tidegate_message::{Code, error_chain};
use tidegate_ports::DetectError;
use tidegate_rpc::BodyError;
use tidegate_workers::NotLoaded;

use crate::{budget::NoRoom, image::ImageError};

/// How soon a request that found no room is worth another try.
const ROOM_RETRY: Duration = Duration::from_secs(1);

/// Why a request is refused, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The caller may not do it, or is known no longer.
    #[error(transparent)]
    Denied(ApiError),
    /// The body is larger than an image may be.
    #[error("a request of this kind has at most {bytes_max} bytes; send a smaller image")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// The form of the body is not known.
    #[error(
        "a body of type {found:?} is not taken; send image/jpeg, image/png, multipart/form-data with a field image, \
         application/x-www-form-urlencoded or application/json with an image in base64"
    )]
    Type {
        /// As the request has it.
        found: String,
    },
    /// The request lacks something.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The image is not looked at.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The body stopped coming.
    #[error("nothing more of the request came for {} s", .after.as_secs())]
    Slow {
        /// How long.
        after: Duration,
    },
    /// The body did not come whole: the connection ended, or the API refused more of it.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// There is no memory for the request now.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// As many connections as may be are open.
    #[error("{sockets_max} WebSockets are open, which is the most; try again later")]
    Sockets {
        /// The limit.
        sockets_max: usize,
    },
    /// The request is not that of a WebSocket.
    #[error(
        "here is a WebSocket; send Upgrade: websocket, Connection: Upgrade, Sec-WebSocket-Version: 13 and Sec-WebSocket-Key"
    )]
    Upgrade,
    /// The pool of workers has no answer.
    #[error(transparent)]
    Detect(#[from] DetectError),
    /// The model is not loaded from the folder of models.
    #[error(transparent)]
    Model(#[from] NotLoaded),
    /// A model has no such version.
    #[error(
        "the model {model} has no version {version:?}; it has version 1, which need not be named"
    )]
    Version {
        /// Which.
        model: String,
        /// As the request has it.
        version: String,
    },
    /// A program lacks the model.
    #[error("the model {model} is not ready: {why}")]
    NotReady {
        /// Which.
        model: String,
        /// The program's words.
        why: String,
    },
}

impl Refused {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Denied(error) => error.code(),
            Self::TooLarge { .. } => Code::IMAGE_TOO_LARGE,
            Self::Type { .. } => Code::IMAGE_TYPE,
            Self::Request(_) | Self::Slow { .. } | Self::Upgrade => Code::DETECT_INVALID,
            Self::Body(error) => match error {
                BodyError::Slow | BodyError::Broken => Code::DETECT_INVALID,
                BodyError::Full => Code::LIMIT_REACHED,
                BodyError::TooLong { .. } => Code::IMAGE_TOO_LARGE,
            },
            Self::Image(error) => match error {
                ImageError::Kind { .. } => Code::IMAGE_TYPE,
                ImageError::Pixels { .. } => Code::IMAGE_TOO_LARGE,
                ImageError::Unread => Code::DETECTOR_UNAVAILABLE,
                _ => Code::IMAGE_INVALID,
            },
            Self::NoRoom(_) | Self::Sockets { .. } => Code::LIMIT_REACHED,
            Self::Version { .. } => Code::MODEL_UNKNOWN,
            Self::NotReady { .. } => Code::DETECTOR_UNAVAILABLE,
            Self::Model(error) => match error {
                NotLoaded::NoFolder | NotLoaded::File(_) => Code::MODEL_REFUSED,
                NotLoaded::Start { .. } => Code::DETECTOR_UNAVAILABLE,
                NotLoaded::Program(error) => code_of(error),
            },
            Self::Detect(error) => code_of(error),
        }
    }

    /// The status of HTTP.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied(error) => match error.code() {
                Code::IDENTITY_REFUSED | Code::IDENTITY_REVOKED => StatusCode::UNAUTHORIZED,
                Code::ACTION_DENIED => StatusCode::FORBIDDEN,
                Code::LIMIT_REACHED => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Slow { .. } | Self::Body(BodyError::Slow) => StatusCode::REQUEST_TIMEOUT,
            Self::Request(_) | Self::Body(BodyError::Broken) => StatusCode::BAD_REQUEST,
            Self::Upgrade => StatusCode::UPGRADE_REQUIRED,
            _ => match self.code() {
                Code::IMAGE_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
                Code::IMAGE_TYPE => StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Code::MODEL_UNKNOWN => StatusCode::NOT_FOUND,
                Code::LIMIT_REACHED => StatusCode::TOO_MANY_REQUESTS,
                Code::DETECTOR_UNAVAILABLE => StatusCode::SERVICE_UNAVAILABLE,
                Code::DETECTOR_FAILED => StatusCode::BAD_GATEWAY,
                _ => StatusCode::UNPROCESSABLE_ENTITY,
            },
        }
    }

    /// When another try is worth its while, where that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoRoom(_) | Self::Body(BodyError::Full) | Self::Sockets { .. } => {
                Some(ROOM_RETRY)
            }
            Self::Detect(
                DetectError::Busy { retry_after, .. } | DetectError::NoWorker { retry_after, .. },
            ) => Some(*retry_after),
            Self::Detect(
                DetectError::Superseded
                | DetectError::Overdue
                | DetectError::NoneReady
                | DetectError::Closed,
            ) => Some(ROOM_RETRY),
            Self::Model(NotLoaded::Start { .. }) => Some(ROOM_RETRY),
            Self::Denied(error) if error.code() == Code::LIMIT_REACHED => Some(ROOM_RETRY),
            _ => None,
        }
    }

    /// The sentence, with its causes.
    pub fn message(&self) -> String {
        error_chain(self)
    }

    /// As JSON: `{"code", "message", "retry_after_ms"?}`.
    pub(crate) fn json(&self) -> serde_json::Value {
        let mut error = json!({ "code": self.code().as_str(), "message": self.message() });
        if let Some(after) = self.retry_after() {
            error["retry_after_ms"] = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).into();
        }
        error
    }

    /// Gives an answer of this status the header fields that belong to it.
    pub(crate) fn adorn(&self, answer: &mut Response<Body>) {
        let headers = answer.headers_mut();
        if let Some(after) = self.retry_after() {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        match self {
            Self::Upgrade => {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            }
            // The rest of a body that was not read would be taken for the next request.
            Self::TooLarge { .. } | Self::Slow { .. } | Self::Body(_) | Self::NoRoom(_) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
    }
}

fn code_of(error: &DetectError) -> Code {
    match error {
        DetectError::Busy { .. } | DetectError::Superseded | DetectError::Overdue => {
            Code::LIMIT_REACHED
        }
        DetectError::NoWorker { .. } | DetectError::NoneReady | DetectError::Closed => {
            Code::DETECTOR_UNAVAILABLE
        }
        DetectError::Refused { .. } | DetectError::Pixels { .. } => Code::IMAGE_INVALID,
        DetectError::ImageTooLarge { .. } => Code::IMAGE_TOO_LARGE,
        DetectError::UnknownModel { .. } => Code::MODEL_UNKNOWN,
        DetectError::ModelRefused { .. } | DetectError::NeedsScene => Code::MODEL_REFUSED,
        DetectError::Answer { .. } | DetectError::Worker { .. } => Code::DETECTOR_FAILED,
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response<Body> {
        let mut answer = json_answer(self.status(), &json!({ "error": self.json() }));
        self.adorn(&mut answer);
        answer
    }
}

/// An answer of JSON.
pub(crate) fn json_answer(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    let text = serde_json::to_vec(value).expect("texts, numbers and lists are JSON");
    bytes_answer(status, "application/json", text)
}

pub(crate) fn bytes_answer(
    status: StatusCode,
    kind: &'static str,
    bytes: impl Into<Body>,
) -> Response<Body> {
    let mut answer = Response::new(bytes.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// The problem with a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no image.
    #[error("the request has no image; name its field or part: image")]
    NoImage,
    /// There is no subject.
    #[error("the request has no field {name}")]
    NoField {
        /// Its name.
        name: &'static str,
    },
    /// The body is not the JSON that it says it is.
    #[error("the body is not a JSON object such as {{\"image\": \"BASE64\"}}")]
    Json(#[source] serde_json::Error),
    /// The text is not base64.
    #[error("the image is not base64")]
    Base64(#[source] base64::DecodeSliceError),
    /// A percent sign without two digits.
    #[error("the form has a percent sign without two hexadecimal digits behind it")]
    Escape,
    /// The parts have no boundary.
    #[error("multipart/form-data needs boundary=TEXT of 1 to 70 characters")]
    Boundary,
    /// The parts are not as their type says.
    #[error("the body is not made of parts that its boundary divides, or is cut off")]
    Part,
    /// The id before an image is missing.
    #[error("a message has 8 bytes of id before its image; {found} bytes came")]
    Id {
        /// How many bytes the message has.
        found: usize,
    },
    /// A text where an image is expected.
    #[error("a text came; images are sent as binary messages")]
    Text,
    /// A parameter of the query that is missing or wrong.
    #[error("the parameter {name} must be {bound}")]
    Parameter {
        /// Which.
        name: &'static str,
        /// The allowed values.
        bound: &'static str,
    },
    /// A tensor that cannot be used.
    #[error("the input is not usable: {problem}")]
    Tensor {
        /// The problem and the way out.
        problem: &'static str,
    },
}

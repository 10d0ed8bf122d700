//! A failure as an answer of HTTP: a status, and JSON with the stable code and a sentence.
//!
//! ```json
//! {"error": {"code": "frames.camera.unknown", "message": "no camera cam9 is registered"}}
//! ```
//!
//! That of a camera at another node has `"node"` and `"addresses"` as well.

use std::{error::Error, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;
use tidegate_api::{ApiError, http_status, json};
use tidegate_message::Code;

/// Why a request of HTTP is answered with an error.
#[derive(Debug)]
pub struct Failure {
    error: ApiError,
    status: StatusCode,
    retry_after: Option<Duration>,
}

impl Failure {
    /// A failure with the status that its code has.
    pub fn new(error: ApiError) -> Self {
        let status = StatusCode::from_u16(http_status(error.code()));
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after =
            (status == StatusCode::TOO_MANY_REQUESTS).then_some(Duration::from_secs(1));
        Self { error, status, retry_after }
    }

    /// A request that is malformed, as the sentence says.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ApiError::new(Code::REQUEST_INVALID, message))
    }

    /// A body that did not come whole: too long, too slow, broken off, or without room for it.
    pub fn of_body(error: &(dyn Error + 'static)) -> Self {
        let error = BodyError::of(error);
        let failure = |code| Self::new(ApiError::new(code, error.to_string()));
        match error {
            BodyError::Slow => {
                failure(Code::LIMIT_REACHED).with_status(StatusCode::REQUEST_TIMEOUT)
            }
            BodyError::Full => failure(Code::LIMIT_REACHED),
            BodyError::TooLong { .. } => failure(Code::FRAME_TOO_LARGE),
            BodyError::Broken => failure(Code::REQUEST_INVALID),
        }
    }

    /// The same with another status than that of its code.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        let retry_after = self.retry_after.filter(|_| status == StatusCode::TOO_MANY_REQUESTS);
        Self { status, retry_after, ..self }
    }

    /// The same with the time after which the request may succeed, as `Retry-After` says it in whole seconds.
    #[must_use]
    pub fn after(self, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The failure itself.
    pub fn error(&self) -> &ApiError {
        &self.error
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::new(error)
    }
}

/// The sentence of an answer, for a layer that gives it another form.
#[derive(Clone, Debug)]
pub(crate) struct Sentence(pub(crate) String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let text = json!({ "error": json::reason(&self.error) }).to_string();
        let mut answer = Response::new(Body::from(text));
        answer.extensions_mut().insert(Sentence(self.error.chain()));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        answer
    }
}

/// Why a body of a known caller is not read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It comes too slowly.
    #[error("the body came too slowly; send it again on a faster line, or a smaller one")]
    Slow,
    /// This connection, caller or node holds as much as it may.
    #[error("too much is being received at the same time; send it again later")]
    Full,
    /// It is longer than it may be.
    #[error("the body is longer than this node takes, which is {bytes_max} bytes")]
    TooLong {
        /// The limit.
        bytes_max: u64,
    },
    /// The connection, or the stream, ended within it.
    #[error("the body broke off before its end")]
    Broken,
}

impl BodyError {
    /// The reason among the causes of an error of a body; [`BodyError::Broken`] where none of them is ours.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<Self>() {
                return *error;
            }
            cause = error.source();
        }
        Self::Broken
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tidegate_api::Place;

    use super::*;

    #[tokio::test]
    async fn a_failure_is_json_with_the_code_and_the_whole_sentence() {
        let error = ApiError::new(Code::CAMERA_UNKNOWN, "no camera \"a\nb\"");
        let answer = Failure::new(error.caused_by("it was removed")).into_response();
        assert_eq!(answer.status(), 404);
        assert_eq!(answer.headers()["content-type"], "application/json");
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["error"]["code"], "frames.camera.unknown");
        assert_eq!(json["error"]["message"], "no camera \"a\nb\": it was removed");
    }

    #[tokio::test]
    async fn failure_of_a_camera_elsewhere_names_its_node() {
        let addresses = vec!["10.0.0.7:7080".to_owned()];
        let place = Place { node: "yard".to_owned(), addresses };
        let camera = "cam1".parse().unwrap();
        let answer = Failure::new(ApiError::elsewhere(&camera, place)).into_response();
        assert_eq!(answer.status(), 421);
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let expected = json!({
            "code": "frames.camera.elsewhere",
            "message": "camera cam1 is at node yard; ask it at 10.0.0.7:7080",
            "node": "yard",
            "addresses": ["10.0.0.7:7080"],
        });
        assert_eq!(json["error"], expected);
    }

    #[test]
    fn a_body_that_did_not_come_whole_says_why() {
        for (error, status) in [
            (axum::Error::new(BodyError::Slow), 408),
            (axum::Error::new(BodyError::Full), 429),
            (axum::Error::new(BodyError::TooLong { bytes_max: 9 }), 413),
            (axum::Error::new(std::io::Error::other("reset")), 400),
        ] {
            assert_eq!(Failure::of_body(&error).status(), status, "{error}");
        }
        let busy = ApiError::new(Code::LIMIT_REACHED, "busy");
        let answer = Failure::new(busy).after(Duration::from_millis(1500)).into_response();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["retry-after"]),
            (429, &"2".parse().unwrap())
        );
    }
}

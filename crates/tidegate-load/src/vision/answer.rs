//! Meaning of an answer, in whichever of the two shapes it is.

use serde_json::Value;
use tidegate_client::proto::{DetectResponse, Detected, detect_response::Result as Outcome};

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// The server looked at the image.
    Seen {
        /// Whether it found anything.
        found: bool,
        /// Milliseconds that it says it took.
        server_ms: Option<f64>,
    },
    /// It did not, and says why.
    Refused { reason: String },
    /// It says nothing that is known.
    Unreadable,
}

/// Lists of findings that [`Answer::Seen`] may hold beside boxes in our own shape.
const FINDINGS: [&str; 5] = ["predictions", "boxes", "classes", "poses", "outputs"];

impl Answer {
    /// Reads the answer to a call.
    pub(super) fn of_call(answer: &DetectResponse) -> Self {
        match &answer.result {
            None => Self::Unreadable,
            Some(Outcome::Refused(refusal)) => Self::Refused { reason: refusal.code.clone() },
            Some(Outcome::Detected(Detected { boxes, classes, poses, times, .. })) => Self::Seen {
                found: !(boxes.is_empty() && classes.is_empty() && poses.is_empty()),
                server_ms: times.as_ref().map(|times| times.total_nanos as f64 / 1e6),
            },
        }
    }

    /// Reads the JSON of an answer; `status` is that of HTTP, 200 without it.
    pub(super) fn read(status: u16, text: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(text).unwrap_or(Value::Null);
        let error = value.get("error").and_then(|error| {
            let code = error.get("code").unwrap_or(error);
            code.as_str().map(str::to_owned)
        });
        if status != 200 {
            let reason = match error {
                Some(error) => format!("{status} {error}"),
                None => status.to_string(),
            };
            return Self::Refused { reason };
        }
        if let Some(reason) = error {
            return Self::Refused { reason };
        }
        // `success` is a string there, as times are; numbers and truth values are taken as well.
        if let Some(success) = value.get("success") {
            let found = success == true || success == "true";
            let server_ms = value.get("server_processing_time").and_then(number);
            return Self::Seen { found, server_ms };
        }
        let server_ms = value.pointer("/times/total_ms").and_then(number);
        let lists: Vec<_> = FINDINGS.iter().filter_map(|name| value.get(name)).collect();
        if lists.is_empty() && server_ms.is_none() {
            return Self::Unreadable;
        }
        let some = |list: &&Value| list.as_array().is_some_and(|list| !list.is_empty());
        Self::Seen { found: lists.iter().any(some), server_ms }
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).filter(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_are_read() {
        let seen = |found, server_ms| Answer::Seen { found, server_ms };
        let refused = |reason: &str| Answer::Refused { reason: reason.to_owned() };
        for (status, text, expected) in [
            (
                200,
                r#"{"success": "true", "server_processing_time": "3.477", "rects": [[1, 2, 3, 4]]}"#,
                seen(true, Some(3.477)),
            ),
            (
                200,
                r#"{"success": "false", "server_processing_time": "0.500"}"#,
                seen(false, Some(0.5)),
            ),
            (
                200,
                r#"{"success": "false", "error": "Unsupported opcode: 9", "server_processing_time": 0}"#,
                refused("Unsupported opcode: 9"),
            ),
            (501, r#"{"success": "false", "error": "no poses"}"#, refused("501 no poses")),
            (
                200,
                r#"{"model": "face", "boxes": [], "predictions": [{"x": 1}], "times": {"total_ms": 4}}"#,
                seen(true, Some(4.0)),
            ),
            (200, r#"{"boxes": [], "classes": []}"#, seen(false, None)),
            (
                429,
                r#"{"error": {"code": "vision.busy", "message": "…"}}"#,
                refused("429 vision.busy"),
            ),
            (404, "<h1>Not Found</h1>", refused("404")),
            (200, "Valid GET Request to server", Answer::Unreadable),
            (200, r#"{"bytes_read": 3}"#, Answer::Unreadable),
        ] {
            assert_eq!(Answer::read(status, text.as_bytes()), expected, "{text}");
        }
    }
}

//! The failure of a call, and the one table from stable codes to gRPC and to exit statuses.

use std::error::Error;

use tidegate_message::{BoundsError, CameraNameError, Code, FrameSizeError, UnknownWord};
use tonic::metadata::MetadataValue;

/// Metadata key of the stable code in a failed call.
pub const CODE_METADATA: &str = "tidegate-code";

/// Why a call failed: a stable code for programs, a sentence for people.
///
/// Prints only its own sentence; what caused it is the `source`, printed once at the edge. Over the wire
/// the whole chain travels as one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    code: Code,
    message: String,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ApiError {
    /// A failure that names the thing, the bound and the way out.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), source: None }
    }

    /// The same failure with what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The stable code.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The sentence, without its cause.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The sentence and its causes, joined by colons.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut next = self.source();
        while let Some(error) = next {
            text.push_str(": ");
            text.push_str(&error.to_string());
            next = error.source();
        }
        text
    }

    /// Whether the same call may succeed later without a change: the peer or the camera was away.
    pub fn is_transient(&self) -> bool {
        matches!(self.code, Code::LINK_DOWN | Code::CAMERA_OFFLINE | Code::LIMIT_REACHED)
    }
}

/// What a code is called in gRPC and what the program exits with.
struct Mapping(Code, tonic::Code, u8);

/// The table. Exit statuses are grouped by what the caller can do: 2 fix the request, 3 name something
/// that exists, 4 try again later, 5 get the right, 6 ask for less, 7 look at the disk, 1 report a bug.
const TABLE: &[Mapping] = &[
    Mapping(Code::BOUND_INVALID, tonic::Code::InvalidArgument, 2),
    Mapping(Code::BOUND_INFEASIBLE, tonic::Code::FailedPrecondition, 6),
    Mapping(Code::CAMERA_UNKNOWN, tonic::Code::NotFound, 3),
    Mapping(Code::CAMERA_OFFLINE, tonic::Code::Unavailable, 4),
    Mapping(Code::CAMERA_TAKEN, tonic::Code::AlreadyExists, 4),
    Mapping(Code::FRAME_INVALID, tonic::Code::InvalidArgument, 2),
    Mapping(Code::FRAME_TOO_LARGE, tonic::Code::InvalidArgument, 2),
    Mapping(Code::FRAME_TIMESTAMP, tonic::Code::InvalidArgument, 2),
    Mapping(Code::FRAME_MISSING, tonic::Code::NotFound, 3),
    Mapping(Code::RANGE_INVALID, tonic::Code::InvalidArgument, 2),
    Mapping(Code::SUBSCRIPTION_UNKNOWN, tonic::Code::NotFound, 3),
    Mapping(Code::TABLE_INVALID, tonic::Code::FailedPrecondition, 2),
    Mapping(Code::TABLE_MISSING, tonic::Code::FailedPrecondition, 3),
    Mapping(Code::CONTROLLER_FAILED, tonic::Code::Internal, 1),
    Mapping(Code::DETECTOR_FAILED, tonic::Code::Internal, 1),
    Mapping(Code::IDENTITY_REFUSED, tonic::Code::Unauthenticated, 5),
    Mapping(Code::IDENTITY_REVOKED, tonic::Code::Unauthenticated, 5),
    Mapping(Code::ACTION_DENIED, tonic::Code::PermissionDenied, 5),
    Mapping(Code::LINK_PROTOCOL, tonic::Code::Internal, 1),
    Mapping(Code::INGEST_INVALID, tonic::Code::InvalidArgument, 2),
    Mapping(Code::INGEST_TOO_LARGE, tonic::Code::InvalidArgument, 2),
    Mapping(Code::LINK_DOWN, tonic::Code::Unavailable, 4),
    Mapping(Code::CONFIG_INVALID, tonic::Code::FailedPrecondition, 2),
    Mapping(Code::STORAGE_FAILED, tonic::Code::Internal, 7),
    Mapping(Code::STORAGE_FULL, tonic::Code::ResourceExhausted, 7),
    Mapping(Code::LIMIT_REACHED, tonic::Code::ResourceExhausted, 4),
    Mapping(Code::INTERNAL, tonic::Code::Internal, 1),
];

fn mapping(code: Code) -> &'static Mapping {
    let found = TABLE.iter().find(|mapping| mapping.0 == code);
    found.unwrap_or(&TABLE[TABLE.len() - 1]) // `internal`; a test keeps the table whole
}

/// The gRPC status of a code.
pub fn grpc_code(code: Code) -> tonic::Code {
    mapping(code).1
}

/// The exit status of the program for a code, 1 to 7.
pub fn exit_status(code: Code) -> u8 {
    mapping(code).2
}

impl From<ApiError> for tonic::Status {
    fn from(error: ApiError) -> Self {
        let mut status = Self::new(grpc_code(error.code), error.chain());
        let code = MetadataValue::from_static(error.code.as_str());
        status.metadata_mut().insert(CODE_METADATA, code);
        status
    }
}

/// What the peer said, or, where no Tidegate server answered, what the connection says.
impl From<tonic::Status> for ApiError {
    fn from(status: tonic::Status) -> Self {
        let named = status.metadata().get(CODE_METADATA).and_then(|value| value.to_str().ok());
        let code = named.and_then(Code::named).unwrap_or_else(|| match status.code() {
            tonic::Code::Unavailable | tonic::Code::Cancelled | tonic::Code::DeadlineExceeded => {
                Code::LINK_DOWN
            }
            tonic::Code::Unauthenticated => Code::IDENTITY_REFUSED,
            tonic::Code::PermissionDenied => Code::ACTION_DENIED,
            tonic::Code::ResourceExhausted => Code::LIMIT_REACHED,
            tonic::Code::OutOfRange => Code::FRAME_TOO_LARGE,
            // A connection that breaks in the middle of a message surfaces as one of these.
            tonic::Code::Unknown | tonic::Code::Internal if status.source().is_some() => {
                Code::LINK_DOWN
            }
            tonic::Code::Unimplemented => Code::LINK_PROTOCOL,
            _ => Code::INTERNAL,
        });
        let message = match status.message() {
            "" => format!("the call ended with {:?}", status.code()),
            text => text.to_owned(),
        };
        Self { code, message, source: deepest(&status).map(Into::into) }
    }
}

/// The innermost cause of a status: the layers between only say "transport error".
fn deepest(status: &tonic::Status) -> Option<String> {
    let mut cause = status.source()?;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Some(cause.to_string())
}

impl From<BoundsError> for ApiError {
    fn from(error: BoundsError) -> Self {
        Self::new(Code::BOUND_INVALID, error.to_string())
    }
}

impl From<UnknownWord> for ApiError {
    fn from(error: UnknownWord) -> Self {
        Self::new(Code::BOUND_INVALID, error.to_string())
    }
}

/// No camera can be called that.
impl From<CameraNameError> for ApiError {
    fn from(error: CameraNameError) -> Self {
        Self::new(Code::CAMERA_UNKNOWN, error.to_string())
    }
}

impl From<FrameSizeError> for ApiError {
    fn from(error: FrameSizeError) -> Self {
        Self::new(Code::FRAME_INVALID, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_row() {
        for code in Code::ALL {
            assert_eq!(mapping(*code).0, *code);
            assert!((1..=7).contains(&exit_status(*code)));
        }
    }

    #[test]
    fn code_and_chain_survive_the_wire() {
        for code in Code::ALL {
            let error = ApiError::new(*code, "frame not written")
                .caused_by(std::io::Error::other("no space left"));
            assert_eq!(error.to_string(), "frame not written");
            let back = ApiError::from(tonic::Status::from(error));
            assert_eq!(back.code(), *code);
            assert_eq!(back.chain(), "frame not written: no space left");
        }
    }

    #[test]
    fn a_status_without_our_code_is_read_by_its_kind() {
        let code = |status: tonic::Status| ApiError::from(status).code();
        assert_eq!(code(tonic::Status::unavailable("refused")), Code::LINK_DOWN);
        assert_eq!(code(tonic::Status::permission_denied("no")), Code::ACTION_DENIED);
        assert_eq!(code(tonic::Status::data_loss("?")), Code::INTERNAL);
    }
}

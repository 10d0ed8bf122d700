//! The failure of a call, and the one table from stable codes to statuses of gRPC and to exit statuses.

use std::error::Error;

use tidegate_message::{
    BoundsError, CameraName, CameraNameError, Code, FrameSizeError, UnknownWord, error_chain,
};

/// Metadata key of the stable code in a failed call.
pub const CODE_METADATA: &str = "tidegate-code";
/// Metadata key of the node that serves what was asked for, in a call that failed with [`Code::CAMERA_ELSEWHERE`].
pub const NODE_METADATA: &str = "tidegate-place-node";
/// Metadata key of an address of that node's API, once for each, the best first.
pub const ADDRESS_METADATA: &str = "tidegate-place-address";

/// Metadata key by which a caller has a node fetch from other members what these have: `1`.
pub const RELAY_METADATA: &str = "tidegate-relay";
/// Metadata key by which a member names the caller on whose behalf it asks another one.
pub const BEHALF_METADATA: &str = "tidegate-behalf-bin";

/// A node that serves what was asked for at another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub node: String,
    /// The addresses of its API, `host:port`, the best first.
    pub addresses: Vec<String>,
}

/// Why a call failed: a stable code for programs, a sentence for people.
///
/// Prints only its own sentence; the cause is the `source`, printed once at the edge. Over the wire
/// the whole chain travels as one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    code: Code,
    message: String,
    /// Boxed, for hardly any failure has one.
    place: Option<Box<Place>>,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ApiError {
    /// A failure that names the thing, the bound and the way out.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), place: None, source: None }
    }

    /// That another node serves a camera: [`Code::CAMERA_ELSEWHERE`].
    pub fn elsewhere(camera: &CameraName, place: Place) -> Self {
        let Place { node, addresses } = &place;
        let mut text = format!("camera {camera} is at node {node}");
        if !addresses.is_empty() {
            text = format!("{text}; ask it at {}", addresses.join(" or "));
        }
        Self::new(Code::CAMERA_ELSEWHERE, text).at(place)
    }

    /// The same failure with the node that serves what was asked for.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(Box::new(place));
        self
    }

    /// The node that serves what was asked for, if another one does.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_deref()
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
        error_chain(self)
    }
}

/// Statuses of gRPC by their numbers, as its specification lists them.
mod grpc {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const ALREADY_EXISTS: i32 = 6;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// The status of gRPC that a code travels as, and what the program exits with.
struct Mapping(Code, i32, u8);

/// The table. Exit statuses are grouped by what the caller can do: 2 fix the request, 3 name something
/// that exists, 4 try again later, 5 get the right, 6 ask for less, 7 look at the disk, 1 report a bug.
const TABLE: &[Mapping] = &[
    Mapping(Code::BOUND_INVALID, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::BOUND_INFEASIBLE, grpc::FAILED_PRECONDITION, 6),
    Mapping(Code::CAMERA_UNKNOWN, grpc::NOT_FOUND, 3),
    Mapping(Code::CAMERA_OFFLINE, grpc::UNAVAILABLE, 4),
    Mapping(Code::CAMERA_TAKEN, grpc::ALREADY_EXISTS, 4),
    Mapping(Code::CAMERA_ELSEWHERE, grpc::FAILED_PRECONDITION, 3),
    Mapping(Code::FRAME_INVALID, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::FRAME_TOO_LARGE, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::FRAME_TIMESTAMP, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::FRAME_MISSING, grpc::NOT_FOUND, 3),
    Mapping(Code::RANGE_INVALID, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::SUBSCRIPTION_UNKNOWN, grpc::NOT_FOUND, 3),
    Mapping(Code::TABLE_INVALID, grpc::FAILED_PRECONDITION, 2),
    Mapping(Code::TABLE_MISSING, grpc::FAILED_PRECONDITION, 3),
    Mapping(Code::CONTROLLER_FAILED, grpc::INTERNAL, 1),
    Mapping(Code::DETECTOR_FAILED, grpc::INTERNAL, 1),
    Mapping(Code::DETECTOR_UNAVAILABLE, grpc::UNAVAILABLE, 4),
    Mapping(Code::IMAGE_INVALID, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::IMAGE_TYPE, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::IMAGE_TOO_LARGE, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::MODEL_UNKNOWN, grpc::NOT_FOUND, 3),
    Mapping(Code::MODEL_REFUSED, grpc::FAILED_PRECONDITION, 2),
    Mapping(Code::DETECT_INVALID, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::IDENTITY_REFUSED, grpc::UNAUTHENTICATED, 5),
    Mapping(Code::IDENTITY_REVOKED, grpc::UNAUTHENTICATED, 5),
    Mapping(Code::ACTION_DENIED, grpc::PERMISSION_DENIED, 5),
    Mapping(Code::FABRIC_OFF, grpc::FAILED_PRECONDITION, 2),
    Mapping(Code::MEMBER_UNKNOWN, grpc::NOT_FOUND, 3),
    Mapping(Code::MEMBER_HERE, grpc::FAILED_PRECONDITION, 2),
    Mapping(Code::LINK_PROTOCOL, grpc::INTERNAL, 1),
    Mapping(Code::INGEST_INVALID, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::INGEST_TOO_LARGE, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::REQUEST_INVALID, grpc::INVALID_ARGUMENT, 2),
    Mapping(Code::PATH_UNKNOWN, grpc::NOT_FOUND, 3),
    Mapping(Code::LINK_DOWN, grpc::UNAVAILABLE, 4),
    Mapping(Code::CONFIG_INVALID, grpc::FAILED_PRECONDITION, 2),
    Mapping(Code::STORAGE_FAILED, grpc::INTERNAL, 7),
    Mapping(Code::STORAGE_FULL, grpc::RESOURCE_EXHAUSTED, 7),
    Mapping(Code::LIMIT_REACHED, grpc::RESOURCE_EXHAUSTED, 4),
    Mapping(Code::INTERNAL, grpc::INTERNAL, 1),
];

fn mapping(code: Code) -> &'static Mapping {
    let found = TABLE.iter().find(|mapping| mapping.0 == code);
    found.unwrap_or(&TABLE[TABLE.len() - 1]) // `internal`; a test keeps the table whole
}

/// The number of the gRPC status that a code travels as.
pub fn grpc_status(code: Code) -> i32 {
    mapping(code).1
}

/// The status of HTTP that a code travels as.
pub fn http_status(code: Code) -> u16 {
    match code {
        Code::FRAME_TOO_LARGE | Code::INGEST_TOO_LARGE => 413,
        Code::STORAGE_FULL => 507,
        Code::CAMERA_ELSEWHERE => 421, // Misdirected Request, RFC 9110, section 15.5.20
        Code::FABRIC_OFF => 404,       // there is nothing to be seen at this node
        Code::MEMBER_HERE => 409,
        // The others as gRPC's own gateways have them.
        code => match grpc_status(code) {
            grpc::INVALID_ARGUMENT | grpc::FAILED_PRECONDITION => 400,
            grpc::UNAUTHENTICATED => 401,
            grpc::PERMISSION_DENIED => 403,
            grpc::NOT_FOUND => 404,
            grpc::ALREADY_EXISTS => 409,
            grpc::RESOURCE_EXHAUSTED => 429,
            grpc::UNAVAILABLE => 503,
            _ => 500,
        },
    }
}

/// The exit status of the program for a code, 1 to 7.
pub fn exit_status(code: Code) -> u8 {
    mapping(code).2
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
            assert!((400..=599).contains(&http_status(*code)));
        }
    }

    #[test]
    fn camera_elsewhere_says_where_as_far_as_it_is_known() {
        let camera = "cam1".parse().expect("a name");
        let place = |addresses: &[&str]| Place {
            node: "yard".to_owned(),
            addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
        };
        let error = ApiError::elsewhere(&camera, place(&["10.0.0.7:7080", "yard.local:7080"]));
        let json = crate::json::failure(&error).to_string();
        assert!(json.contains("\"node\":\"yard\"") && json.contains("yard.local:7080"), "{json}");
        let text = "camera cam1 is at node yard; ask it at 10.0.0.7:7080 or yard.local:7080";
        assert_eq!(error.to_string(), text);
        let bare = ApiError::elsewhere(&camera, place(&[]));
        assert_eq!(bare.to_string(), "camera cam1 is at node yard");
        let other = crate::json::failure(&ApiError::new(Code::INTERNAL, "a mistake"));
        assert_eq!(
            other.to_string(),
            r#"{"code":"internal","message":"a mistake","type":"error"}"#
        );
    }

    #[test]
    fn the_sentence_stands_alone_and_the_chain_has_its_causes() {
        let error = ApiError::new(Code::STORAGE_FULL, "frame not written")
            .caused_by(std::io::Error::other("no space left"));
        assert_eq!(error.to_string(), "frame not written");
        assert_eq!(error.chain(), "frame not written: no space left");
        assert_eq!((grpc_status(error.code()), exit_status(error.code())), (8, 7));
    }
}

//! The failure that a status of gRPC stands for.

use std::error::Error;

use tidegate_api::{ADDRESS_METADATA, ApiError, CODE_METADATA, NODE_METADATA, Place};
use tidegate_message::Code;

/// The failure behind the status of a call, for those who make calls by the stubs of [`proto`](crate::proto) themselves.
///
/// It is what the node said or, where no Tidegate node answered, what the connection says. A handshake that a certificate broke is
/// told apart from a node that is away.
pub fn failure(status: tonic::Status) -> ApiError {
    // HTTP/2 keeps of an error of TLS only its text; these two are rustls's own, and a test holds them.
    const REFUSALS: [&str; 2] = ["received fatal alert", "invalid peer certificate"];
    let error = plain(status);
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    if error.code() == Code::LINK_DOWN && cause.contains("received fatal alert: CertificateRevoked")
    {
        let message =
            "the certificate that was shown is revoked; a new one comes by `tidegate invite`";
        return ApiError::new(Code::IDENTITY_REVOKED, message).caused_by(cause);
    }
    if error.code() == Code::LINK_DOWN && REFUSALS.iter().any(|text| cause.contains(text)) {
        let message = "the peers do not accept each other's certificates; both must come from the same \
                       `tidegate init`";
        return ApiError::new(Code::IDENTITY_REFUSED, message).caused_by(cause);
    }
    error
}

/// The status of gRPC that a code travels as.
pub fn grpc_code(code: Code) -> tonic::Code {
    tonic::Code::from_i32(tidegate_api::grpc_status(code))
}

/// The node that serves what was asked for, if the one that was asked names it.
fn place(metadata: &tonic::metadata::MetadataMap) -> Option<Place> {
    let node = metadata.get(NODE_METADATA)?.to_str().ok()?.to_owned();
    let addresses = metadata.get_all(ADDRESS_METADATA).iter();
    let addresses = addresses.filter_map(|text| text.to_str().ok()).map(str::to_owned).collect();
    Some(Place { node, addresses })
}

fn plain(status: tonic::Status) -> ApiError {
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
    let mut error = ApiError::new(code, message);
    if let Some(place) = place(status.metadata()) {
        error = error.at(place);
    }
    match deepest(&status) {
        Some(cause) => error.caused_by(cause),
        None => error,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_our_code_is_read_by_its_kind() {
        let code = |status: tonic::Status| failure(status).code();
        assert_eq!(code(tonic::Status::unavailable("refused")), Code::LINK_DOWN);
        assert_eq!(code(tonic::Status::permission_denied("no")), Code::ACTION_DENIED);
        assert_eq!(code(tonic::Status::data_loss("?")), Code::INTERNAL);
    }

    #[test]
    fn every_code_has_a_status_of_grpc() {
        for code in Code::ALL {
            assert!(!matches!(grpc_code(*code), tonic::Code::Ok | tonic::Code::Unknown), "{code}");
        }
        assert_eq!(grpc_code(Code::CAMERA_UNKNOWN), tonic::Code::NotFound);
        assert_eq!(grpc_code(Code::IDENTITY_REFUSED), tonic::Code::Unauthenticated);
    }
}

//! A failure as a status of gRPC.

use tidegate_api::{ApiError, CODE_METADATA, grpc_status};
use tonic::{Code, Status, metadata::MetadataValue};

/// The status that a failure travels as: its code in the metadata, its sentence and causes as one text.
pub(super) fn status(error: impl Into<ApiError>) -> Status {
    let error = error.into();
    let mut status = Status::new(Code::from_i32(grpc_status(error.code())), error.chain());
    let code = MetadataValue::from_static(error.code().as_str());
    status.metadata_mut().insert(CODE_METADATA, code);
    status
}

/// Outcome of a call, with its failure as a status.
pub(super) trait OrStatus<T> {
    /// The value, or the status of the failure.
    fn or_status(self) -> Result<T, Status>;
}

impl<T, E: Into<ApiError>> OrStatus<T> for Result<T, E> {
    fn or_status(self) -> Result<T, Status> {
        self.map_err(status)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::Code;

    use super::*;

    #[test]
    fn code_and_chain_survive_the_wire() {
        for code in Code::ALL {
            let error = ApiError::new(*code, "frame not written")
                .caused_by(std::io::Error::other("no space left"));
            assert_eq!(error.to_string(), "frame not written");
            let back = tidegate_client::failure(status(error));
            assert_eq!(back.code(), *code);
            assert_eq!(back.chain(), "frame not written: no space left");
        }
    }
}

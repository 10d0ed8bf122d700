//! A failure as a status of gRPC.

use tidegate_api::{ADDRESS_METADATA, ApiError, CODE_METADATA, NODE_METADATA, grpc_status};
use tonic::{Code, Status, metadata::MetadataValue};

/// The status that a failure travels as: its code in the metadata, and the node that serves what was asked for, if another one does; its
/// sentence and causes as one text.
pub(super) fn status(error: impl Into<ApiError>) -> Status {
    let error = error.into();
    let mut status = Status::new(Code::from_i32(grpc_status(error.code())), error.chain());
    let code = MetadataValue::from_static(error.code().as_str());
    status.metadata_mut().insert(CODE_METADATA, code);
    if let Some(place) = error.place() {
        // Names and addresses of nodes are ASCII. One that could be no header is in the sentence all the same.
        let node = MetadataValue::try_from(&place.node).ok();
        node.map(|node| status.metadata_mut().insert(NODE_METADATA, node));
        for address in place.addresses.iter().filter_map(|text| text.parse().ok()) {
            status.metadata_mut().append(ADDRESS_METADATA, address);
        }
    }
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
    use tidegate_api::Place;
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
            assert_eq!(back.place(), None);
        }
    }

    #[test]
    fn place_of_a_camera_survives_the_wire() {
        let place = |addresses: &[&str]| Place {
            node: "yard-2".to_owned(),
            addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
        };
        let camera = "cam1".parse().expect("a name");
        for place in [place(&["10.0.0.7:7080", "[fe80::1]:7080"]), place(&[])] {
            let back =
                tidegate_client::failure(status(ApiError::elsewhere(&camera, place.clone())));
            assert_eq!((back.code(), back.place()), (Code::CAMERA_ELSEWHERE, Some(&place)));
        }
    }
}

//! Failures of a relayed call, with the name of the member that they are of.

use tidegate_api::{ApiError, Place};
use tidegate_message::{CameraName, Code};

use crate::Member;

/// The member as callers are told where a camera is.
pub(crate) fn place(member: &Member) -> Place {
    Place { node: member.name.clone(), addresses: member.addresses.clone() }
}

/// A call about a camera at a member failed there, or on the way.
pub(crate) fn of_member(member: &Member, camera: &CameraName, error: ApiError) -> ApiError {
    let node = &member.name;
    let (code, text) = match error.code() {
        // The certificates are those of both nodes: the caller can do nothing about them, nor is it signed out by them.
        Code::LINK_DOWN | Code::IDENTITY_REFUSED | Code::IDENTITY_REVOKED => {
            let addresses = member.addresses.join(" or ");
            let text = format!(
                "camera {camera} is at node {node}, which this node does not reach at {addresses}"
            );
            (Code::LINK_DOWN, text)
        }
        Code::MEMBER_UNKNOWN => {
            let text = format!(
                "camera {camera} is at node {node}, which does not know this node as a member yet: try again in a moment"
            );
            (Code::LINK_DOWN, text)
        }
        Code::CAMERA_ELSEWHERE => {
            let text = format!(
                "node {node} has camera {camera} no more, and what is relayed is not relayed again: try again in a moment"
            );
            (Code::CAMERA_ELSEWHERE, text)
        }
        code => (code, format!("node {node} refuses what was asked of camera {camera}")),
    };
    let told = ApiError::new(code, text);
    let told = match error.place() {
        Some(place) => told.at(place.clone()),
        None => told.at(place(member)),
    };
    told.caused_by(error.chain())
}

/// The member with that camera names no address of its API.
pub(crate) fn without_address(member: &Member, refusal: ApiError) -> ApiError {
    let text = format!(
        "node {} names no address of its API, so that nothing is relayed from it: fabric.api_advertise there names one",
        member.name
    );
    refusal.caused_by(text)
}

/// As much is relayed as may be.
pub(crate) fn full() -> ApiError {
    let text = format!(
        "this node relays {} streams of other nodes, and no more; ask the node of the camera itself, or try again later",
        crate::STREAMS_MAX
    );
    ApiError::new(Code::LIMIT_REACHED, text)
}

//! The other members of the fabric, as the relay of cameras asks for them.

use std::sync::Arc;

use tidegate_fabric::members::Presence;
use tidegate_message::CameraName;
use tidegate_nodes::{Seen, SeenMember};
use tidegate_relay::{Member, Members};
use tidegate_wire::NodeId;
use tokio::sync::watch;

/// The members, as this node sees them now.
pub(super) struct Others(watch::Receiver<Arc<Seen>>);

impl Others {
    pub(super) fn new(seen: watch::Receiver<Arc<Seen>>) -> Self {
        Self(seen)
    }

    /// Whether the node of that key is one: then it may ask on behalf of its callers.
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.find(node).is_some()
    }

    fn seen(&self) -> Arc<Seen> {
        self.0.borrow().clone()
    }
}

impl Members for Others {
    fn with_camera(&self, camera: &CameraName) -> Option<Member> {
        self.seen().member_with(camera).filter(|member| !member.is_me).map(member)
    }

    fn present(&self) -> Vec<Member> {
        let seen = self.seen();
        let others = seen.members.iter();
        others.filter(|one| !one.is_me && !one.presence.is_gone()).map(member).collect()
    }

    fn find(&self, node: NodeId) -> Option<Member> {
        let seen = self.seen();
        // One that is lost may be reached all the same.
        let has_left =
            |one: &SeenMember| matches!(one.presence, Presence::Left | Presence::Forgotten);
        let mut others = seen.members.iter().filter(|one| !one.is_me && !has_left(one));
        others.find(|one| one.record.node == node).map(member)
    }
}

fn member(seen: &SeenMember) -> Member {
    Member {
        node: seen.record.node,
        name: seen.record.name.clone(),
        addresses: seen.record.api_addresses.clone(),
        is_doubted: seen.presence == Presence::Doubted,
        has_cameras: !seen.cameras.is_empty(),
        round_trip: seen.round_trip,
    }
}

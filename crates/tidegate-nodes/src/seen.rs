//! The fabric as this node sees it, for whoever looks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tidegate_api::Place;
use tidegate_fabric::members::{Counts, Members, Presence};
use tidegate_message::CameraName;
use tidegate_wire::{MemberRecord, NodeId};

/// The fabric at one moment.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// All members that are known, this node among them, by their keys.
    pub members: Vec<SeenMember>,
    /// The same at all nodes that have the same view.
    pub view_hash: u64,
    /// Numbers for people.
    pub counts: Counts,
    /// All that is wrong, a sentence each.
    pub problems: Vec<String>,
    /// Why this node is of no use as a member, until a person mends it.
    pub fault: Option<String>,
    /// Filters that this node offers to others.
    pub offered: usize,
    /// Times that a subscription waited for a member in vain.
    pub missed: u64,
    /// Each with its place and that of its member among `members`.
    cameras: BTreeMap<CameraName, (usize, Place)>,
}

/// A member at one moment.
#[derive(Clone, Debug)]
pub struct SeenMember {
    /// Its record.
    pub record: MemberRecord,
    /// How it stands.
    pub presence: Presence,
    /// Whether it is this node.
    pub is_me: bool,
    /// Whether this node has a link to it.
    pub is_linked: bool,
    /// How many other members miss it.
    pub missed_by: usize,
    /// The cameras at it.
    pub cameras: Vec<CameraName>,
    /// Filters that it wants messages for.
    pub filters: Arc<[Arc<str>]>,
    /// Round trip on the link to it.
    pub round_trip: Option<Duration>,
}

impl Seen {
    pub(crate) fn new(
        members: &Members,
        filters: impl Fn(NodeId) -> Arc<[Arc<str>]>,
        round_trip: impl Fn(NodeId) -> Option<Duration>,
        mut problems: Vec<String>,
        fault: Option<String>,
        (offered, missed): (usize, u64),
    ) -> Self {
        let seen: Vec<SeenMember> = members
            .members()
            .map(|member| SeenMember {
                record: member.record.clone(),
                presence: member.presence,
                is_me: member.is_me,
                is_linked: member.is_linked,
                missed_by: member.missed_by,
                cameras: member.cameras.to_vec(),
                filters: filters(member.record.node),
                round_trip: round_trip(member.record.node),
            })
            .collect();
        let mut cameras: BTreeMap<CameraName, (usize, Place)> = BTreeMap::new();
        let mut twice = BTreeSet::new();
        // Of two members that have a camera of one name the one that is here comes first.
        let mut by_presence: Vec<(usize, &SeenMember)> = seen.iter().enumerate().collect();
        by_presence.sort_by_key(|(_, member)| member.presence);
        for (index, member) in by_presence {
            let record = &member.record;
            for camera in &member.cameras {
                if let Some((_, place)) = cameras.get(camera) {
                    if !member.presence.is_gone() && place.node != record.name {
                        twice.insert(format!(
                            "a camera called {camera} is at {} and at {}: give one of them another name",
                            place.node, record.name
                        ));
                    }
                    continue;
                }
                if !member.is_me && member.presence.is_gone() {
                    continue;
                }
                let (node, addresses) = (record.name.clone(), record.api_addresses.clone());
                cameras.insert(camera.clone(), (index, Place { node, addresses }));
            }
        }
        let mut by_name: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
        for member in seen.iter().filter(|member| !member.presence.is_gone()) {
            by_name.entry(&member.record.name).or_default().push(member.record.node);
        }
        for (name, nodes) in by_name.iter().filter(|(_, nodes)| nodes.len() > 1) {
            let nodes: Vec<String> = nodes.iter().map(|node| format!("{node:?}")).collect();
            twice.insert(format!(
                "{} members are called {name} ({}): give all but one another name and certificate",
                nodes.len(),
                nodes.join(", ")
            ));
        }
        problems.extend(twice);
        let (view_hash, counts) = (members.view_hash(), members.counts());
        Self { members: seen, view_hash, counts, problems, fault, offered, missed, cameras }
    }

    /// This node's member.
    pub fn me(&self) -> Option<&SeenMember> {
        self.members.iter().find(|member| member.is_me)
    }

    /// The place of a camera.
    pub fn camera(&self, name: &CameraName) -> Option<&Place> {
        self.cameras.get(name).map(|(_, place)| place)
    }

    /// The member at which a camera is.
    pub fn member_with(&self, name: &CameraName) -> Option<&SeenMember> {
        self.cameras.get(name).and_then(|(index, _)| self.members.get(*index))
    }
}

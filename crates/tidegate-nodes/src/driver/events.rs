//! Events of the members: what is told, to whom, and what follows.

use tidegate_fabric::members::{Event, Presence, Target};
use tidegate_wire::NodeId;
use tokio::sync::mpsc;

use super::{Driver, Held, SAME_KEY};

impl Driver {
    pub(super) fn happened(&mut self, event: Event, tell_held: &mpsc::Sender<Held>) {
        self.state.is_shown_old = true;
        let tell = |what: &'static str, node: NodeId| {
            let name = self.name_of(node);
            tracing::info!(member = name, id = %node, "{what}");
            (self.audit)(what, format!("{name} {node}"));
        };
        match event {
            Event::Joined(node) => {
                tell("a member joined", node);
                let name = self.name_of(node);
                self.open_topic(node, &name, tell_held);
                self.reach(node);
            }
            Event::Changed(node) => self.reach(node),
            Event::Cameras(_) => {}
            Event::Doubted(node) => {
                tracing::info!(member = self.name_of(node), "a member is doubted");
            }
            Event::Lost(node) => tell("a member is lost", node),
            Event::Returned(node) => {
                tell("a member is back", node);
                let name = self.name_of(node);
                self.open_topic(node, &name, tell_held);
                self.reach(node);
            }
            Event::Left(node) => {
                tell("a member has left", node);
                self.end_topic(node);
            }
            Event::Forgotten(node) => {
                tell("a member is forgotten", node);
                self.forget_topic(node);
            }
            Event::Dropped(node) => {
                self.state.unreached.remove(&Target::Member(node));
                self.state.revoked_at.remove(&Target::Member(node));
                self.forget_topic(node);
            }
            Event::Revoked(node) => {
                tell("a member's certificate is revoked", node);
                self.end_topic(node);
                if let Some(peer) = self.state.peers.get(&node) {
                    peer.carrier.close(1, "the certificate of this member is revoked");
                }
            }
            Event::Revocations { authority, .. } => {
                tracing::info!(%authority, "the members have a newer list of revoked certificates");
                self.state.writes_lists = true;
            }
            Event::SameName { name, nodes: [one, other] } => {
                let text = format!(
                    "two members are called {name} ({one:?} and {other:?}): give one of them another name and certificate"
                );
                tracing::warn!("{text}");
            }
            Event::Restored => {
                tracing::warn!(
                    "records of this node are newer than its own state: its folder was restored or lost, and it has a new start"
                );
            }
            Event::SameKey => {
                let text = "another process uses the key of this node, as when its folder was copied to a second machine: give one of them a \
                            certificate of its own (`tidegate invite`)";
                tracing::error!("{text}");
                self.state.problems.insert(SAME_KEY.to_owned(), text.to_owned());
            }
            Event::SameKeyOver => {
                tracing::info!("the other process with the key of this node is not seen any more");
                self.state.problems.remove(SAME_KEY);
            }
            Event::Missed => {
                // The events that were missed come to this.
                let topics: Vec<NodeId> = self.state.topics.keys().copied().collect();
                for node in topics {
                    let presence = self.members.member(node).map(|member| member.presence);
                    if presence.is_none_or(|it| matches!(it, Presence::Left | Presence::Forgotten))
                    {
                        self.forget_topic(node);
                    }
                }
                self.open_topics(tell_held);
            }
        }
    }
}

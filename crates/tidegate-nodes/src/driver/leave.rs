//! Leaving: messages that wait here for members that are reached are sent first, then the members are told.
//!
//! ```text
//!  order ─▶ nothing is queued for reached members, 10 s at most ─▶ all are told, and have acknowledged, 5 s at most ─▶ links end, the answer
//! ```
//!
//! A node whose clients go on to publish always has messages on their way. So the first step looks at the queues alone; with the second no more
//! messages come to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tidegate_api::Left;
use tidegate_bus::{Bus, part_id};
use tidegate_message::Instant;
use tidegate_process::clock;
use tidegate_wire::NodeId;
use tokio::{sync::oneshot, task::JoinError, time};

use super::Driver;
use crate::topics::{PEERS, node_of};

/// Longest wait until messages for members that are reached are on their way.
const HAND_OVER_MAX: Duration = Duration::from_secs(10);
/// Longest wait until all members are told, and have acknowledged the messages.
const TELL_MAX: Duration = Duration::from_secs(5);
/// How often the sessions of members are looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A node that leaves.
#[derive(Debug)]
pub(super) struct Leaving {
    /// When the members have had time enough to be told; none before the second step.
    until: Option<Instant>,
    /// The messages that stay, once the second step is over.
    left: Option<Left>,
    answers: Vec<oneshot::Sender<Left>>,
}

impl Leaving {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        // The messages that stay are known at that time, or soon after.
        self.until.filter(|_| self.left.is_some())
    }
}

/// Messages for a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    queued: u64,
    on_their_way: u64,
}

/// For each member, by the digits of its key.
pub(super) type AllWait = BTreeMap<String, Waits>;

impl Driver {
    /// This node is to leave.
    pub(super) fn leave(&mut self, now: Instant, answer: oneshot::Sender<Left>) {
        if let Some(leaving) = &mut self.state.leaving {
            return leaving.answers.push(answer);
        }
        self.state.leaving = Some(Leaving { until: None, left: None, answers: vec![answer] });
        self.wait_for(now + HAND_OVER_MAX, |waits| waits.queued == 0);
    }

    /// Whether the members are told that this node leaves: no more messages are to be queued for them.
    pub(super) fn is_leaving(&self) -> bool {
        self.state.leaving.as_ref().is_some_and(|leaving| leaving.until.is_some())
    }

    /// Has [`Driver::handed_over`] called once `is_done` was true of each member that is reached, or at that time.
    fn wait_for(&mut self, until: Instant, is_done: fn(&Waits) -> bool) {
        let reached: BTreeSet<String> = self.state.peers.keys().map(NodeId::to_string).collect();
        let bus = self.bus.clone().filter(|_| self.topic_links.is_some());
        self.state.hand_overs.spawn(async move {
            let Some(bus) = bus else { return AllWait::new() };
            let mut done = BTreeSet::new();
            loop {
                let waits = all_wait(&bus).await;
                let is_sent = |node: &&String| waits.get(*node).is_none_or(is_done);
                done.extend(reached.iter().filter(is_sent).cloned());
                if done.len() == reached.len() || clock::now() >= until {
                    return waits;
                }
                time::sleep(LOOK_EVERY).await;
            }
        });
    }

    /// A step is over.
    pub(super) fn handed_over(&mut self, now: Instant, waits: Result<AllWait, JoinError>) {
        let waits = waits.unwrap_or_else(|error| {
            tracing::error!(%error, "messages for other members may stay here: handing over failed");
            AllWait::new()
        });
        let left = self.is_leaving().then(|| self.stays(&waits));
        let Some(leaving) = &mut self.state.leaving else { return };
        if left.is_some() {
            leaving.left = left;
            return;
        }
        leaving.until = Some(now + TELL_MAX);
        self.members.leave(now);
        // No more messages come to those for which nothing is queued. For another member a message that is critical is known by its filters alone,
        // so these stay.
        self.state.generation += 1;
        for (node, topic) in &mut self.state.topics {
            let is_queued = waits.get(&node.to_string()).is_some_and(|waits| waits.queued > 0);
            if self.state.peers.contains_key(node) && !is_queued {
                topic.link.set(self.state.generation, Arc::default());
            }
        }
        self.wait_for(now + TELL_MAX, |waits| waits.queued + waits.on_their_way == 0);
    }

    /// The messages that stay here, and the members that they are for.
    fn stays(&self, waits: &AllWait) -> Left {
        let mut left = Left::default();
        for (node, waits) in waits {
            let count = waits.queued + waits.on_their_way;
            if count > 0 {
                let known = self.members.members().find(|it| it.record.node.to_string() == *node);
                left.unsent += count;
                left.unsent_to
                    .push(known.map_or_else(|| node.clone(), |it| it.record.name.clone()));
            }
        }
        left.unsent_to.sort_unstable();
        if left.unsent > 0 {
            tracing::warn!(
                messages = left.unsent,
                members = left.unsent_to.join(", "),
                "this node leaves, and messages for members that it does not reach, or that are slow, stay here until it is started again"
            );
        }
        left
    }

    /// Ends the links of a node that has left once all have its word, or have had time enough.
    pub(super) fn end_leaving(&mut self, now: Instant) {
        let is_spread = self.members.is_leave_spread();
        let is_over = |leaving: &mut Leaving| {
            let is_late = leaving.until.is_some_and(|until| until <= now);
            leaving.left.is_some() && (is_spread || is_late)
        };
        let Some(Leaving { left: Some(left), answers, .. }) = self.state.leaving.take_if(is_over)
        else {
            return;
        };
        // Their writers send what they have, and end the links. Topic links stay: messages that wait are sent while the members are reached.
        self.state.peers.clear();
        for answer in answers {
            // The asking side may be gone.
            let _ = answer.send(left.clone());
        }
    }
}

async fn all_wait(bus: &Bus) -> AllWait {
    let is_for_member = |client_id: &str, _: &_| node_of(client_id).is_some();
    let mut all = AllWait::new();
    for session in bus.sessions(&part_id(PEERS, ""), usize::MAX, is_for_member).await {
        let Some(node) = node_of(&session.client_id) else { continue };
        let waits = all.entry(node.to_owned()).or_default();
        waits.queued += session.queued as u64;
        waits.on_their_way += session.inflight as u64;
    }
    all
}

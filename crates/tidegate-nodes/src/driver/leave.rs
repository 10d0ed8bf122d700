//! Leaving: messages that wait here for members that are reached are sent first, then the members are told.
//!
//! ```text
//!  order ─▶ handing over, 10 s at most ─▶ said, 5 s at most ─▶ links end, the answer
//! ```

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

/// Longest wait until messages for members that are reached have been sent.
const HAND_OVER_MAX: Duration = Duration::from_secs(10);
/// How often the sessions of members are looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest wait for the word that this node leaves to be taken by all.
const SAY_MAX: Duration = Duration::from_secs(5);

/// A node that leaves.
#[derive(Debug)]
pub(super) struct Leaving {
    /// When the members have had time enough; none while it hands over.
    until: Option<Instant>,
    left: Left,
    answers: Vec<oneshot::Sender<Left>>,
}

impl Leaving {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.until
    }
}

/// Messages that wait for members, by the digits of their keys.
pub(super) type Unsent = BTreeMap<String, u64>;

impl Driver {
    /// This node is to leave.
    pub(super) fn leave(&mut self, now: Instant, answer: oneshot::Sender<Left>) {
        if let Some(leaving) = &mut self.state.leaving {
            return leaving.answers.push(answer);
        }
        self.state.leaving =
            Some(Leaving { until: None, left: Left::default(), answers: vec![answer] });
        match self.bus.clone().filter(|_| self.topic_links.is_some()) {
            Some(bus) => {
                let reached = self.state.peers.keys().map(NodeId::to_string).collect();
                self.state.hand_overs.spawn(hand_over(bus, reached, now + HAND_OVER_MAX));
            }
            None => self.handed_over(now, Ok(Unsent::new())),
        }
    }

    /// The messages that could be sent are.
    pub(super) fn handed_over(&mut self, now: Instant, unsent: Result<Unsent, JoinError>) {
        let unsent = unsent.unwrap_or_else(|error| {
            tracing::error!(%error, "messages for other members may stay here: handing over failed");
            Unsent::new()
        });
        let mut left = Left { unsent: unsent.values().sum(), unsent_to: Vec::new() };
        if left.unsent > 0 {
            let members = self.members.members().filter(|member| {
                unsent.get(&member.record.node.to_string()).is_some_and(|count| *count > 0)
            });
            left.unsent_to = members.map(|member| member.record.name.clone()).collect();
            left.unsent_to.sort_unstable();
            tracing::warn!(
                messages = left.unsent,
                members = left.unsent_to.join(", "),
                "this node leaves, and messages for members that it does not reach, or that are slow, stay here until it is started again"
            );
        }
        self.members.leave(now);
        if let Some(leaving) = &mut self.state.leaving {
            (leaving.until, leaving.left) = (Some(now + SAY_MAX), left);
        }
    }

    /// Ends the links of a node that has left once all have its word, or have had time enough.
    pub(super) fn end_leaving(&mut self, now: Instant) {
        let is_spread = self.members.is_leave_spread();
        let is_over =
            |leaving: &mut Leaving| leaving.until.is_some_and(|until| until <= now || is_spread);
        let Some(Leaving { left, answers, .. }) = self.state.leaving.take_if(is_over) else {
            return;
        };
        // Their writers send what they have, and end the links.
        self.state.peers.clear();
        // Messages that wait stay, and are sent while the members are reached; no more come.
        self.state.generation += 1;
        for topic in self.state.topics.values_mut() {
            topic.link.set(self.state.generation, Arc::default());
        }
        for answer in answers {
            // The asking side may be gone.
            let _ = answer.send(left.clone());
        }
    }
}

/// Waits until each session for the members `reached` was seen empty, so that all that waited when this began is sent: a node whose clients
/// go on to publish is never without messages on their way. The messages that wait then.
async fn hand_over(bus: Bus, reached: BTreeSet<String>, until: Instant) -> Unsent {
    let mut empty = BTreeSet::new();
    loop {
        let is_for_member = |client_id: &str, _: &_| node_of(client_id).is_some();
        let sessions = bus.sessions(&part_id(PEERS, ""), usize::MAX, is_for_member).await;
        let mut unsent = Unsent::new();
        let mut is_done = true;
        for session in &sessions {
            let Some(node) = node_of(&session.client_id) else { continue };
            let waits = session.queued.saturating_add(session.inflight);
            if waits == 0 {
                empty.insert(session.client_id.clone());
            }
            let is_sent = empty.contains(&session.client_id);
            is_done &= is_sent || !reached.contains(node);
            if !is_sent {
                *unsent.entry(node.to_owned()).or_default() += waits as u64;
            }
        }
        if is_done || clock::now() >= until {
            return unsent;
        }
        time::sleep(LOOK_EVERY).await;
    }
}

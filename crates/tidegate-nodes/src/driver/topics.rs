//! Topics of the driver: which filters other members are told, and which they want.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidegate_bus::Subscription;
use tidegate_fabric::members::{Event, Passage, Presence};
use tidegate_message::Instant;
use tidegate_process::clock;
use tidegate_wire::NodeId;
use tokio::{sync::mpsc, task::JoinError};

use super::{Driver, FILTERS_EVERY, Held, Peer, Topic};
use crate::{
    audience::{Source, Waiter},
    topics::{TopicPeer, is_own, node_of},
};

/// The filters that sessions here have, by whom they are told to.
#[derive(Debug, Default)]
pub(super) struct Looked {
    changes: u64,
    /// For members: those of clients here and of leaves.
    members: Vec<Arc<str>>,
    /// For each leaf: those of all others.
    leaves: Vec<(NodeId, Vec<Arc<str>>)>,
}

impl Driver {
    /// Topic links to all members that an earlier process knew: messages wait for them from the start.
    pub(super) fn open_topics(&mut self, tell_held: &mpsc::Sender<Held>) {
        let known: Vec<(NodeId, String)> = (self.members.members())
            .filter(|member| !member.is_me)
            .filter(|member| !is_over(member.presence))
            .map(|member| (member.record.node, member.record.name.clone()))
            .collect();
        known.into_iter().for_each(|(node, name)| self.open_topic(node, &name, tell_held));
    }

    /// Members that are not to be waited for: those that had left or were forgotten, and those that were revoked while this node was down.
    pub(super) fn gone_meanwhile(&mut self, tell_held: &mpsc::Sender<Held>) -> BTreeSet<NodeId> {
        let mut gone = BTreeSet::new();
        while let Some(event) = self.members.poll_event() {
            if let Event::Revoked(node) = event {
                gone.insert(node);
            }
            self.happened(event, tell_held);
        }
        let members = self.members.members();
        gone.extend(members.filter(|member| is_over(member.presence)).map(|it| it.record.node));
        gone
    }

    /// Ends what a former process left in the broker for members that are gone. For nodes of which nothing is known, since this node's folder
    /// was lost or their record no longer holds, messages wait for a time: such a node may exist.
    pub(super) fn settle_sessions(
        &self,
        gone: &BTreeSet<NodeId>,
    ) -> impl Future<Output = ()> + use<> {
        let gone: BTreeSet<String> = gone.iter().map(NodeId::to_string).collect();
        let known = self.members.members().map(|member| member.record.node.to_string());
        let (known, bus): (BTreeSet<String>, _) = (known.collect(), self.bus.clone());
        async move {
            let Some(bus) = bus else { return };
            let is_gone =
                move |client_id: &str| node_of(client_id).is_some_and(|it| gone.contains(it));
            let ended = bus.end_sessions(move |client_id, _| is_gone(client_id)).await;
            if ended > 0 {
                tracing::info!(ended, "sessions of members that are gone end");
            }
            let is_unknown =
                move |client_id: &str| node_of(client_id).is_some_and(|it| !known.contains(it));
            bus.mark_unknown_members(move |client_id, _| is_unknown(client_id)).await;
        }
    }

    pub(super) fn open_topic(&mut self, node: NodeId, name: &str, tell_held: &mpsc::Sender<Held>) {
        let Some(links) = self.topic_links.as_ref() else { return };
        if self.state.topics.contains_key(&node) {
            return self.reach(node);
        }
        let passage = self.passage(node);
        let is_leaf = passage == Passage::Leaf;
        let link = links.clone().open(TopicPeer { node, name: name.to_owned(), is_leaf });
        let (mut held, tell) = (link.held(), tell_held.clone());
        self.state.helds.spawn(async move {
            while held.changed().await.is_ok() {
                let generation = *held.borrow_and_update();
                if tell.send((node, generation)).await.is_err() {
                    return;
                }
            }
        });
        // Tasks of topic links that are over.
        while self.state.helds.try_join_next().is_some() {}
        let mut topic = Topic { link };
        // Its filters may have come before its record.
        if passage == Passage::Apart {
            topic.link.set(self.state.generation, Arc::default());
        } else if let Some(peer) = self.state.peers.get(&node)
            && peer.side.is_told()
        {
            topic.link.set(self.state.generation, peer.side.filters.clone());
        }
        self.state.topics.insert(node, topic);
        self.reach(node);
    }

    /// How messages pass between this node and another one. A node whose record has not come has no relay, as far as is known.
    pub(super) fn passage(&self, node: NodeId) -> Passage {
        let is_leaf = || !self.members.own_settings().via.is_empty();
        let unknown = || if is_leaf() { Passage::Apart } else { Passage::Direct };
        self.state.passages.get(&node).copied().unwrap_or_else(unknown)
    }

    /// Members may name other relays than before.
    pub(super) fn look_at_passages(&mut self, tell_held: &mpsc::Sender<Held>) {
        let new: BTreeMap<NodeId, Passage> = self.members.passages().collect();
        if new == self.state.passages {
            return;
        }
        let was: BTreeMap<NodeId, Passage> =
            new.keys().map(|node| (*node, self.passage(*node))).collect();
        self.state.passages = new;
        for (node, was) in was {
            let passage = self.passage(node);
            if passage != was {
                self.pass(node, [was, passage], tell_held);
            }
        }
        self.state.is_shown_old = true;
    }

    /// Messages pass otherwise than before.
    fn pass(&mut self, node: NodeId, [was, passage]: [Passage; 2], tell_held: &mpsc::Sender<Held>) {
        if self.state.peers.contains_key(&node) {
            self.state.audiences.leave(node);
            self.enter(node);
        }
        if (was == Passage::Leaf) != (passage == Passage::Leaf)
            && self.state.topics.remove(&node).is_some()
        {
            // Its sessions stay, and are of the other kind once they are attached again.
            let name = self.name_of(node);
            self.open_topic(node, &name, tell_held);
        }
        let Some(topic) = self.state.topics.get_mut(&node) else { return };
        let told = self.state.peers.get(&node).filter(|peer| peer.side.is_told());
        let filters = match passage {
            Passage::Apart => Some(Arc::default()),
            _ => told.map(|peer| peer.side.filters.clone()),
        };
        if let Some(filters) = filters {
            self.state.generation += 1;
            topic.link.set(self.state.generation, filters);
        }
        self.reach(node);
    }

    /// A node is linked: it is told the filters for which it is to send messages.
    pub(super) fn enter(&mut self, node: NodeId) {
        let passage = self.passage(node);
        if passage == Passage::Apart {
            return;
        }
        let is_leaf = passage == Passage::Leaf;
        self.state.audiences.enter(node, is_leaf);
        if is_leaf {
            // Those of before are to be known.
            (self.state.changes, self.state.look_at) = (None, None);
        }
    }

    /// Why this node, or one that names it, exchanges no messages by way of a relay.
    pub(super) fn relay_problems(&self) -> Vec<String> {
        let own = match self.members.relay() {
            Err(error) => Some(format!("the relay of this node (fabric.via): {error}")),
            Ok(Some(relay)) if !self.state.peers.contains_key(&relay) => Some(format!(
                "the relay of this node (fabric.via), member {}, is not reached: messages from here and for here wait, and go no other way",
                self.name_of(relay)
            )),
            Ok(_) => None,
        };
        let in_vain = self.members.leaves_in_vain().map(|leaf| {
            format!(
                "member {} names this node for its relay, which has a relay itself (fabric.via), and messages pass one at most: name another one there",
                self.name_of(leaf)
            )
        });
        own.into_iter().chain(in_vain).collect()
    }

    /// A member is not to be waited for any more, unless it is linked, as where another member had it forgotten: then it comes back at once.
    pub(super) fn forget_topic(&mut self, node: NodeId) {
        if self.state.peers.contains_key(&node) {
            return;
        }
        self.end_topic(node);
    }

    pub(super) fn end_topic(&mut self, node: NodeId) {
        if let Some(topic) = self.state.topics.remove(&node) {
            topic.link.forget();
        }
    }

    /// Tells a topic link where its member can be dialled: nowhere while there is no link to it, for then a dial would wait in vain.
    pub(super) fn reach(&mut self, node: NodeId) {
        let passage = self.passage(node);
        let Some(topic) = self.state.topics.get_mut(&node) else { return };
        let Some(peer) = self.state.peers.get(&node) else { return };
        let record = self.members.member(node).map(|member| member.record);
        let mut addresses = record.map(|record| record.addresses.clone()).unwrap_or_default();
        // One that names no address may have been named by the network, and whether it is the member its key says.
        let found = self.members.found_at(clock::now(), node).map(|at| at.to_string());
        for at in [peer.dialled_at.clone(), found].into_iter().flatten() {
            if !addresses.contains(&at) {
                addresses.push(at);
            }
        }
        // Without an address of its own this node is not dialled.
        let own = &self.members.own_settings().addresses;
        let fetches = own.is_empty() && passage != Passage::Apart;
        topic.link.fetch(if fetches { addresses.clone() } else { Vec::new() });
        topic.link.reach(addresses);
    }

    /// Members that want messages and name no address at which they could be sent.
    pub(super) fn out_of_reach(&self) -> Vec<NodeId> {
        let is_it = |(node, peer): &(&NodeId, &Peer)| {
            let record = self.members.member(**node).map(|member| member.record);
            let is_fetched =
                self.state.topics.get(node).is_some_and(|topic| topic.link.is_fetched());
            peer.dialled_at.is_none()
                && !is_fetched
                && self.members.found_at(clock::now(), **node).is_none()
                && !peer.side.filters.is_empty()
                && self.passage(**node) != Passage::Apart
                && record.is_some_and(|record| record.addresses.is_empty())
        };
        self.state.peers.iter().filter(is_it).map(|(node, _)| *node).collect()
    }

    pub(super) fn wants(
        &mut self,
        now: Instant,
        node: NodeId,
        record: tidegate_wire::Interests,
    ) -> Result<(), tidegate_fabric::interest::WantedError> {
        let (passage, is_leaving) = (self.passage(node), self.is_leaving());
        let Some(peer) = self.state.peers.get_mut(&node) else { return Ok(()) };
        // One count for all topic links: what an ended one held says nothing of the next to the same member.
        self.state.generation += 1;
        let ours = self.state.generation;
        let (waiter, before) = (Arc::<Waiter>::default(), peer.side.filters.clone());
        let Some(filters) = peer.side.handle(record, ours, &waiter)? else { return Ok(()) };
        self.state.is_shown_old = true;
        if passage == Passage::Apart || is_leaving {
            // Others send it what it wants: by another way, or without this node.
            peer.side.handle_held(ours);
            return Ok(());
        }
        let source = match passage {
            Passage::Leaf => Some(Source::Leaf(node)),
            Passage::Direct => Some(Source::Member),
            Passage::Relay | Passage::Apart => None,
        };
        if let Some(source) = source {
            let is_new = |filter: &&Arc<str>| before.binary_search(filter).is_err();
            let new: Vec<Arc<str>> = filters.iter().filter(is_new).cloned().collect();
            self.came_filters(now, &new, source, &waiter);
        }
        let Some(peer) = self.state.peers.get_mut(&node) else { return Ok(()) };
        match self.state.topics.get_mut(&node) {
            Some(topic) => topic.link.set(ours, filters),
            // This node serves no MQTT, and has nothing to send.
            None if self.topic_links.is_none() => peer.side.handle_held(ours),
            // Its record is yet to come: it is held once there is a topic link.
            None => {}
        }
        Ok(())
    }

    pub(super) fn subscribed(&mut self, now: Instant, subscription: Subscription) {
        let filters = subscription.filters.clone();
        self.came_filters(now, &filters, Source::Here, &Waiter::of(subscription));
    }

    fn came_filters(
        &mut self,
        now: Instant,
        filters: &[Arc<str>],
        source: Source,
        waiter: &Arc<Waiter>,
    ) {
        if !self.state.looks.is_empty() {
            let came = filters.iter().map(|filter| (source, filter.clone()));
            self.state.came_since.extend(came);
        }
        self.state.audiences.add(now, filters, source, waiter);
    }

    /// Looks at the filters of all clients, if they have changed.
    pub(super) fn look(&mut self, now: Instant) {
        let Some(bus) = &self.bus else { return };
        if self.state.look_at.is_some_and(|at| at > now) || !self.state.looks.is_empty() {
            return;
        }
        self.state.look_at = Some(now + FILTERS_EVERY);
        if self.state.changes != Some(bus.filter_changes()) {
            let bus = bus.clone();
            self.state.came_since.clear();
            let passages = self.state.passages.iter();
            // Those of leaves that are away as well: messages for them come here, and wait.
            let of_leaves: BTreeSet<String> = passages
                .filter(|(_, passage)| **passage == Passage::Leaf)
                .map(|(node, _)| node.to_string())
                .collect();
            let linked: Vec<NodeId> = self.state.audiences.leaves().collect();
            self.state.looks.spawn(async move {
                let is_here = move |client_id: &str, identity: &_| {
                    let is_of_leaf = |node: &str| of_leaves.contains(node);
                    is_own(client_id, identity) || node_of(client_id).is_some_and(is_of_leaf)
                };
                let found = bus.filters_of(is_here).await;
                let (changes, members) = (found.changes, found.filters);
                let mut looked = Looked { changes, members, ..Looked::default() };
                for leaf in linked {
                    let own = leaf.to_string();
                    let is_other = move |client_id: &str, _: &_| node_of(client_id) != Some(&own);
                    looked.leaves.push((leaf, bus.filters_of(is_other).await.filters));
                }
                looked
            });
        }
    }

    pub(super) fn looked(&mut self, found: Result<Looked, JoinError>) {
        let Ok(Looked { changes, members, leaves }) = found else { return };
        self.state.changes = Some(changes);
        // Those that came meanwhile may not be among them.
        let came = std::mem::take(&mut self.state.came_since);
        let came_of = |is_meant: &dyn Fn(Source) -> bool| -> Vec<Arc<str>> {
            let meant = came.iter().filter(|(source, _)| is_meant(*source));
            meant.map(|(_, filter)| filter.clone()).collect()
        };
        let audiences = &mut self.state.audiences;
        let came = came_of(&|source| source != Source::Member);
        audiences.set_members(members.iter().chain(&came).map(|filter| &**filter));
        for (leaf, filters) in leaves {
            let came = came_of(&|source| source != Source::Leaf(leaf));
            audiences.set_leaf(leaf, filters.iter().chain(&came).map(|filter| &**filter));
        }
        if audiences.lacks_filters() {
            (self.state.changes, self.state.look_at) = (None, None);
        }
        self.state.is_shown_old = true;
    }
}

/// Whether nothing waits for a member.
fn is_over(presence: Presence) -> bool {
    matches!(presence, Presence::Left | Presence::Forgotten)
}

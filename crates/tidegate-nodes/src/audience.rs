//! The nodes that are told the filters here, and the subscriptions that wait for them.
//!
//! ```text
//!  clients, leaves ─▶ members: all members without a relay; of a leaf its relay alone
//!  clients, members, other leaves ─▶ each leaf that this node relays for
//! ```
//!
//! Always true: a leaf is told no filter of its own, so that it sends none of its messages to get them back.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use tidegate_bus::Subscription;
use tidegate_fabric::interest::{Offered, Waiting};
use tidegate_message::Instant;
use tidegate_wire::{Interests, NodeId};

/// A filter's clients are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// At this node.
    Here,
    /// At a leaf of it.
    Leaf(NodeId),
    /// At another member, or behind it.
    Member,
}

/// The end of a wait for other nodes: dropped, it releases the SUBACK of a client here, if that is what waits.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    _suback: Option<Subscription>,
}

impl Waiter {
    /// A SUBACK that waits.
    pub(crate) fn of(subscription: Subscription) -> Arc<Self> {
        Arc::new(Self { _suback: Some(subscription) })
    }
}

/// Nodes that are told the same.
#[derive(Debug)]
struct Audience {
    offered: Offered,
    waiting: Waiting<Arc<Waiter>>,
    /// Whether the filters of before are known. Until then none is told, or the leaf would send nothing for a time.
    is_known: bool,
}

impl Audience {
    fn new(generation: u64, is_known: bool) -> Self {
        let offered = Offered::from_generation(generation);
        Self { offered, waiting: Waiting::default(), is_known }
    }

    fn linked(&mut self, node: NodeId) {
        self.offered.linked(node);
        self.waiting.linked(node);
    }

    fn add(&mut self, now: Instant, filters: &[Arc<str>], waiter: &Arc<Waiter>) {
        let generation = self.offered.add_all(filters);
        self.waiting.wait(now, generation, waiter.clone());
    }
}

/// The nodes that are told filters.
#[derive(Debug)]
pub(crate) struct Audiences {
    members: Audience,
    /// Those that are linked.
    leaves: BTreeMap<NodeId, Audience>,
    /// Leaves that there were. The generations of each are above those of all before, as a word about those may come late.
    begun: u64,
    /// Waits in vain for leaves that are no more.
    missed: u64,
}

impl Default for Audiences {
    fn default() -> Self {
        Self { members: Audience::new(1, true), leaves: BTreeMap::new(), begun: 0, missed: 0 }
    }
}

impl Audiences {
    /// A node is there that sends what matches.
    pub(crate) fn enter(&mut self, node: NodeId, is_leaf: bool) {
        if is_leaf {
            self.begun += 1;
            let mut leaf = Audience::new((self.begun << 32) + 1, false);
            leaf.linked(node);
            self.leaves.insert(node, leaf);
        } else {
            self.members.linked(node);
        }
    }

    /// A node is gone, or sends nothing any more.
    pub(crate) fn leave(&mut self, node: NodeId) {
        // Waiters that wait for it alone are released.
        self.missed += self.leaves.remove(&node).map_or(0, |leaf| leaf.waiting.missed());
        self.members.offered.unlinked(node);
        self.members.waiting.unlinked(node);
    }

    /// The leaves that are there.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = NodeId> {
        self.leaves.keys().copied()
    }

    /// Whether the filters for some leaf are not known yet.
    pub(crate) fn lacks_filters(&self) -> bool {
        self.leaves.values().any(|leaf| !leaf.is_known)
    }

    /// Filters are new: `waiter` is dropped once all who are to send what matches do.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        filters: &[Arc<str>],
        source: Source,
        waiter: &Arc<Waiter>,
    ) {
        if filters.is_empty() {
            return;
        }
        if source != Source::Member {
            self.members.add(now, filters, waiter);
        }
        let others = self.leaves.iter_mut().filter(|(node, _)| source != Source::Leaf(**node));
        others.for_each(|(_, leaf)| leaf.add(now, filters, waiter));
    }

    /// All filters for members are these.
    pub(crate) fn set_members<'a>(&mut self, filters: impl IntoIterator<Item = &'a str>) {
        self.members.offered.set(filters);
    }

    /// All filters for a leaf are these.
    pub(crate) fn set_leaf<'a>(
        &mut self,
        node: NodeId,
        filters: impl IntoIterator<Item = &'a str>,
    ) {
        if let Some(leaf) = self.leaves.get_mut(&node) {
            leaf.offered.set(filters);
            leaf.is_known = true;
        }
    }

    /// The next record for a node; none if it has been told all.
    pub(crate) fn poll_transmit(&mut self, node: NodeId) -> Option<Interests> {
        let audience = self.of(node);
        if audience.is_known { audience.offered.poll_transmit(node) } else { None }
    }

    /// A node sends what matches, up to a generation.
    pub(crate) fn held(&mut self, node: NodeId, generation: u64) {
        let audience = self.of(node);
        if generation <= audience.offered.generation() {
            audience.waiting.held(node, generation);
        }
    }

    fn of(&mut self, node: NodeId) -> &mut Audience {
        self.leaves.get_mut(&node).unwrap_or(&mut self.members)
    }

    /// When [`Audiences::handle_timeout`] is to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.all().filter_map(|audience| audience.waiting.poll_timeout()).min()
    }

    /// Releases what has waited for the longest time that it may.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let all = self.leaves.values_mut().chain([&mut self.members]);
        all.for_each(|audience| audience.waiting.handle_timeout(now));
    }

    /// Nodes that do not answer.
    pub(crate) fn silent(&self) -> impl Iterator<Item = NodeId> {
        self.all().flat_map(|audience| audience.waiting.silent())
    }

    /// Times that a node was waited for in vain.
    pub(crate) fn missed(&self) -> u64 {
        self.missed + self.all().map(|audience| audience.waiting.missed()).sum::<u64>()
    }

    /// Filters that members are told.
    pub(crate) fn len(&self) -> usize {
        self.members.offered.len()
    }

    /// The fewest levels to which filters are cut.
    pub(crate) fn levels_max(&self) -> Option<usize> {
        self.all().filter_map(|audience| audience.offered.levels_max()).min()
    }

    /// Filters that some of the nodes are not told.
    pub(crate) fn left_out(&self) -> usize {
        self.all().map(|audience| audience.offered.left_out()).max().unwrap_or(0)
    }

    fn all(&self) -> impl Iterator<Item = &Audience> {
        self.leaves.values().chain([&self.members])
    }
}

/// Whether nothing is waited for any more.
pub(crate) fn is_over(waiter: &Weak<Waiter>) -> bool {
    waiter.strong_count() == 0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId([number; 32])
    }

    fn filters(texts: &[&str]) -> Vec<Arc<str>> {
        texts.iter().map(|text| (*text).into()).collect()
    }

    /// All that a node is told, each with its generation.
    fn told(audiences: &mut Audiences, to: u8) -> Option<(u64, Vec<String>)> {
        let record = audiences.poll_transmit(node(to))?;
        assert!(!record.more);
        Some((record.generation, record.added))
    }

    #[test]
    fn leaf_is_told_all_filters_but_its_own_and_members_those_of_clients_and_leaves() {
        let mut audiences = Audiences::default();
        audiences.enter(node(1), false);
        for leaf in [2, 3] {
            audiences.enter(node(leaf), true);
            assert_eq!(told(&mut audiences, leaf), None, "those of before are not known");
            audiences.set_leaf(node(leaf), []);
        }
        let now = Instant::EPOCH;
        for (source, filter) in
            [(Source::Here, "here"), (Source::Member, "member"), (Source::Leaf(node(2)), "leaf")]
        {
            audiences.add(now, &filters(&[filter]), source, &Arc::default());
        }
        for (to, expected) in [
            (1, &["here", "leaf"][..]),
            (2, &["here", "member"][..]),
            (3, &["here", "leaf", "member"][..]),
        ] {
            let (_, told) = told(&mut audiences, to).expect("it is told");
            assert_eq!(told, expected, "to {to}");
        }
    }

    #[test]
    fn subscription_waits_for_members_and_for_each_leaf_but_its_own() {
        let mut audiences = Audiences::default();
        audiences.enter(node(1), false);
        for leaf in [2, 3] {
            audiences.enter(node(leaf), true);
            audiences.set_leaf(node(leaf), []);
        }
        let (now, waiter) = (Instant::EPOCH, Arc::new(Waiter::default()));
        audiences.add(now, &filters(&["a"]), Source::Leaf(node(2)), &waiter);
        let waits = Arc::downgrade(&waiter);
        drop(waiter);
        for at in [1, 3] {
            assert!(!is_over(&waits), "it waits for {at}");
            let (generation, _) = told(&mut audiences, at).expect("it is told");
            // A word about filters of before, or of the other kind, says nothing.
            audiences.held(node(at), generation.wrapping_add(1 << 33));
            audiences.held(node(at), generation - 1);
            assert!(!is_over(&waits), "it waits for {at}");
            audiences.held(node(at), generation);
        }
        assert!(is_over(&waits));
        // A leaf that hangs is waited for once.
        let waiter = Arc::new(Waiter::default());
        audiences.add(now, &filters(&["b"]), Source::Here, &waiter);
        let waits = Arc::downgrade(&waiter);
        drop(waiter);
        let (generation, _) = told(&mut audiences, 1).expect("it is told");
        audiences.held(node(1), generation);
        audiences.leave(node(3));
        assert!(!is_over(&waits));
        audiences.handle_timeout(now + Duration::from_secs(1));
        assert!(is_over(&waits));
        assert_eq!(
            (audiences.missed(), audiences.silent().collect::<Vec<_>>()),
            (1, vec![node(2)])
        );
        audiences.leave(node(2));
        assert_eq!((audiences.missed(), audiences.silent().count()), (1, 0));
    }
}

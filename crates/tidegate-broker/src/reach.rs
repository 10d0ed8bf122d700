//! Which subscribers a message is for, where nodes are one broker.

use std::num::NonZeroU64;

/// The part of a topic's subscribers that a message is for, by where it was published.
///
/// A route is made for one of them, so that a message costs the same whether there are peers or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It was published here: for all of them.
    All,
    /// A peer published it: for those of this node, and for no peer session. Each member has its own link to each other one, so that a
    /// second hop would bring the message twice. For no shared subscription either: the node where it was published chooses a member of
    /// each.
    Own,
    /// A peer published it, and this node was chosen for the shared subscription of that number: for one of its members here. Where none
    /// is left, for one of those at other nodes, or it would be lost.
    Group(u64),
    /// That leaf published it: for all but the leaf, peer sessions among them, for this node alone brings it to others. For no shared
    /// subscription: the leaf chooses a member of each, and counts this node and all behind it as one.
    Leaf(NonZeroU64),
    /// That leaf published it, and chose this node for the shared subscription of that number: for one of its members that is not the
    /// leaf, at whichever node. Where none is left, for the leaf.
    LeafGroup(u64, NonZeroU64),
}

impl Reach {
    /// Another number for most.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::All => 0,
            Self::Own => 1,
            Self::Group(number) => number.wrapping_add(2),
            Self::Leaf(leaf) => leaf.get(),
            Self::LeafGroup(number, leaf) => leaf.get().rotate_left(32).wrapping_add(number),
        }
    }

    /// The leaf that published it.
    pub(crate) fn leaf(self) -> Option<NonZeroU64> {
        match self {
            Self::Leaf(leaf) | Self::LeafGroup(_, leaf) => Some(leaf),
            Self::All | Self::Own | Self::Group(_) => None,
        }
    }

    /// Whether a peer published it.
    pub(crate) fn is_of_peers(self) -> bool {
        matches!(self, Self::Own | Self::Group(_))
    }

    /// The number of the shared subscription that it is for alone.
    pub(crate) fn group(self) -> Option<u64> {
        match self {
            Self::Group(number) | Self::LeafGroup(number, _) => Some(number),
            Self::All | Self::Own | Self::Leaf(_) => None,
        }
    }
}

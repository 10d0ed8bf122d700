//! Messages of this node's broker for the other members, by filters that they want.
//!
//! ```text
//!  Interests of a member ─▶ Wanted ─▶ TopicLink::set ─▶ held ─▶ InterestsHeld
//! ```
//!
//! A topic link stays while its member is away, and messages for it wait in its session, within the limits of that session. It ends with a
//! member that has left or that a person has forgotten.

use std::sync::{Arc, LazyLock, Weak};

use tidegate_bus::part_id;
use tidegate_fabric::interest::{Wanted, WantedError, WantedFilters};
use tidegate_message::Identity;
use tidegate_wire::{Interests, NodeId};
use tokio::sync::watch;

use crate::audience::{Waiter, is_over};

/// Another member, for whoever carries messages to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPeer {
    /// The hash of its key.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Whether this node relays for it: then it counts as a client of this node.
    pub is_leaf: bool,
}

/// Carries messages to members: a port, which `tidegate-uplinks` is behind.
pub trait TopicLinks: Send + Sync + 'static {
    /// A topic link to a member; at first with the filters that its session had in an earlier process.
    fn open(self: Arc<Self>, peer: TopicPeer) -> Box<dyn TopicLink>;
}

/// The topic link to a member.
pub trait TopicLink: Send {
    /// Messages for these filters go to the member from now on, and for no others.
    fn set(&mut self, generation: u64, filters: Arc<[Arc<str>]>);

    /// The member can be dialled there, host and port each; an empty list while it is away.
    fn reach(&mut self, addresses: Vec<String>);

    /// The member does not dial this node, which fetches from there what the member has for it: host and port each, none while it is away, or
    /// where others dial this node.
    fn fetch(&mut self, addresses: Vec<String>);

    /// Whether the member has a link here to fetch what is for it.
    fn is_fetched(&self) -> bool;

    /// The generation whose filters this node's broker has subscriptions for; 0 before the first.
    fn held(&self) -> watch::Receiver<u64>;

    /// The member is not to be waited for any more: what waits for it is given up.
    fn forget(self: Box<Self>);
}

/// The kind of part whose sessions are for other members: `part_id(PEERS, …)` is the client identifier of one.
pub const PEERS: &str = "fabric";

/// Whether a session is of a client or part of this node, not one for another member. Parts are among them: a sink at one member archives what
/// is published at all.
pub(crate) fn is_own(client_id: &str, _: &Identity) -> bool {
    !client_id.starts_with(&*PEERS_PREFIX)
}

/// The member that a session is for, by the digits of its key; none of another session.
pub(crate) fn node_of(client_id: &str) -> Option<&str> {
    client_id.strip_prefix(&*PEERS_PREFIX)?.split('/').next()
}

static PEERS_PREFIX: LazyLock<String> = LazyLock::new(|| part_id(PEERS, ""));

/// The filters that a member wants, and how far it has been told that it gets what matches them.
#[derive(Debug, Default)]
pub(crate) struct Side {
    wanted: Wanted,
    /// The member's generation of each of ours that is not held yet, in order, and what other nodes are waited for by.
    open: std::collections::VecDeque<(u64, u64, Weak<Waiter>)>,
    /// Ours that the broker has subscriptions for.
    held: u64,
    is_told: bool,
    /// The filters that it wants.
    pub(crate) filters: Arc<[Arc<str>]>,
}

/// Changes of one member that are not held yet; of more the oldest are told with the next.
const OPEN_MAX: usize = 64;

impl Side {
    /// A record has come; what the topic link is to be set to, if a change is whole.
    ///
    /// # Errors
    /// [`WantedError`]: the link is to be ended.
    pub(crate) fn handle(
        &mut self,
        record: Interests,
        ours: u64,
        waiter: &Arc<Waiter>,
    ) -> Result<Option<Arc<[Arc<str>]>>, WantedError> {
        let Some(WantedFilters { generation, filters }) = self.wanted.handle(record)? else {
            return Ok(None);
        };
        self.is_told = true;
        self.filters = filters.clone();
        if self.open.len() >= OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((ours, generation, Arc::downgrade(waiter)));
        Ok(Some(filters))
    }

    /// The broker has subscriptions for that generation of ours.
    pub(crate) fn handle_held(&mut self, ours: u64) {
        self.held = self.held.max(ours);
    }

    /// Whether a list of filters has come whole.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// The generation to tell the member of: the broker holds it, and so do the nodes that this one relays it to.
    pub(crate) fn poll_held(&mut self) -> Option<u64> {
        let (mut told, held) = (None, self.held);
        let is_held =
            |(ours, _, waiter): &mut (u64, u64, Weak<Waiter>)| *ours <= held && is_over(waiter);
        while let Some((_, theirs, _)) = self.open.pop_front_if(is_held) {
            told = Some(theirs);
        }
        told
    }
}

//! What a client has at the broker, with and without a connection.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_message::{Action, Authorize, Identity, Instant, Target};
use tidegate_wire::mqtt::{PacketId, QoS, Version};

use crate::{
    budget::Charge,
    config::SessionConfig,
    connection::WillMessage,
    inflight::Inflight,
    message::Message,
    queue::Queue,
    retained::Cursor,
    shared::Shared,
    slab::{Key, USES},
};

/// Names a session on a node: its shard, its slot there, and which use of the slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(u64);

impl SessionKey {
    pub(crate) fn new(shard: u8, key: Key) -> Self {
        debug_assert!(key.use_count < USES);
        Self(u64::from(shard) << 56 | u64::from(key.use_count) << 32 | u64::from(key.slot))
    }

    /// The shard that it lives on.
    pub fn shard(self) -> usize {
        (self.0 >> 56) as usize
    }

    pub(crate) fn key(self) -> Key {
        Key { slot: self.0 as u32, use_count: (self.0 >> 32) as u32 & (USES - 1) }
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key();
        write!(f, "{}.{}.{}", self.shard(), key.slot, key.use_count)
    }
}

/// What of a subscription matters to each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubscriptionOptions {
    /// Most that messages come with.
    pub qos: QoS,
    /// Whether the client's own messages do not come back.
    pub no_local: bool,
    /// Whether messages keep their retain flag.
    pub retain_as_published: bool,
    /// Whether it is of a session that is written down.
    pub is_written: bool,
    /// Subscription Identifier; 0 for none.
    pub id: u32,
}

/// Bytes of filters that each session may have beside the node's budget.
pub(crate) const FILTERS_OWN_BYTES: u64 = 8 << 10;

/// What a subscription costs: its filter, and its places here and in the index.
pub(crate) fn filter_bytes(filter: &str) -> u64 {
    2 * filter.len() as u64 + 96
}

/// Retained messages that a new subscription is still owed.
#[derive(Debug)]
pub(crate) struct RetainedScan {
    pub(crate) filter: Box<str>,
    pub(crate) cursor: Option<Cursor>,
    pub(crate) options: SubscriptionOptions,
    pub(crate) since: Instant,
    /// Whether the cursor has come to the end.
    pub(crate) is_done: bool,
    /// Found, and not yet in the queue.
    pub(crate) found: VecDeque<Arc<Message>>,
}

/// What other shards see of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionState {
    /// Whether it has a connection.
    pub(crate) connected: AtomicBool,
    /// Whether its queue is over half full; then a shared subscription looks for somebody else.
    pub(crate) behind: AtomicBool,
    /// Whose it is, where a shared subscription is among its own: other shards pass over a member that may not have the message.
    pub(crate) identity: RwLock<Option<Box<Identity>>>,
}

impl SessionState {
    pub(crate) fn is_ready(&self) -> bool {
        self.connected.load(Ordering::Relaxed) && !self.behind.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    /// Its number in the shard's journal; 0 if it is not written down.
    pub(crate) number: u64,
    pub(crate) client_id: Arc<str>,
    /// Changed by [`Session::set_identity`] only.
    pub(crate) identity: Identity,
    /// Generation of the rules that allowed all that waits in `queue`; none if some of it is to be asked for once more.
    pub(crate) allowed_by: Option<u64>,
    pub(crate) config: Arc<SessionConfig>,
    pub(crate) version: Version,
    /// How long it outlives its connection; none for ever.
    pub(crate) expiry: Option<Duration>,
    pub(crate) connection: Option<Key>,
    /// By filter, whose text the index shares.
    pub(crate) subscriptions: HashMap<Arc<str>, SubscriptionOptions>,
    /// Of all filters, as [`filter_bytes`] counts them.
    pub(crate) filter_bytes: u64,
    /// Of the node's budget, what they take beyond [`FILTERS_OWN_BYTES`].
    pub(crate) filter_charge: Option<Charge>,
    pub(crate) retained: VecDeque<RetainedScan>,
    pub(crate) queue: Queue,
    pub(crate) inflight: Inflight,
    /// QoS 2 packet identifiers that were received and not released.
    pub(crate) received: Vec<PacketId>,
    pub(crate) state: Arc<SessionState>,
    /// A will that waits for its delay, and when that ends.
    pub(crate) will: Option<(Box<WillMessage>, Instant)>,
    /// When it ends, if nobody comes.
    pub(crate) ends_at: Option<Instant>,
    pub(crate) dropped: Dropped,
    /// A message that found no place was kept under [`Overflow::Disconnect`](crate::Overflow), and more than half of what may
    /// wait still does. Under that policy it takes no more until then.
    pub(crate) is_full: bool,
    /// The disk did not take what it was to give back, and has taken nothing of it since.
    pub(crate) cannot_spill: bool,
    /// What it could give back when its shard last took note of it.
    pub(crate) noted_gives: u64,
    /// Publishers that are not read from because this session's queue is full.
    pub(crate) blocks: Vec<SessionKey>,
    /// Connections of this session that other sessions' queues block: how many of those.
    pub(crate) blocked_by: u32,
}

/// Messages that did not reach a subscriber, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The oldest or newest, because the subscriber's queue was full.
    pub queue_full: u64,
    /// The subscriber's queue was full, and the disk took nothing.
    pub spill_full: u64,
    /// The disk did not give it back.
    pub spill_lost: u64,
    /// A newer one of the topic came, under `latest`.
    pub conflated: u64,
    /// The node's budget for payloads was full.
    pub budget_full: u64,
    /// Expired before it could be sent.
    pub expired: u64,
    /// Larger than the subscriber takes.
    pub too_large: u64,
    /// The right to it was taken away while it waited.
    pub not_allowed: u64,
}

impl Dropped {
    /// All together.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }

    /// Each reason with its count.
    pub fn by_reason(&self) -> [(&'static str, u64); 8] {
        let &Self {
            queue_full,
            spill_full,
            spill_lost,
            conflated,
            budget_full,
            expired,
            too_large,
            not_allowed,
        } = self;
        [
            ("queue_full", queue_full),
            ("spill_full", spill_full),
            ("spill_lost", spill_lost),
            ("conflated", conflated),
            ("budget_full", budget_full),
            ("expired", expired),
            ("too_large", too_large),
            ("not_allowed", not_allowed),
        ]
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.queue_full += other.queue_full;
        self.spill_full += other.spill_full;
        self.spill_lost += other.spill_lost;
        self.conflated += other.conflated;
        self.budget_full += other.budget_full;
        self.expired += other.expired;
        self.too_large += other.too_large;
        self.not_allowed += other.not_allowed;
    }
}

impl Session {
    /// Whether messages must be kept until acknowledged: only where the session outlives its connection.
    pub(crate) fn is_kept(&self) -> bool {
        self.expiry != Some(Duration::ZERO)
    }

    /// Whether it is of that user, whatever groups he is in and whatever the client calls itself.
    pub(crate) fn is_of(&self, identity: &Identity) -> bool {
        (self.identity.kind, &self.identity.name) == (identity.kind, &identity.name)
    }

    /// Makes it `identity`'s; whether that is another than before, under which other messages may be allowed.
    pub(crate) fn set_identity(&mut self, identity: Identity) -> bool {
        if self.identity == identity {
            return false;
        }
        self.identity = identity;
        self.allowed_by = None;
        if self.state.identity.read().expect("no panic while it is set").is_some() {
            self.share_identity();
        }
        true
    }

    /// Shows other shards whose it is.
    pub(crate) fn share_identity(&self) {
        let identity = Some(Box::new(self.identity.clone()));
        *self.state.identity.write().expect("no panic while it is set") = identity;
    }

    /// Notes that a message which rules of that generation allowed may be put into the queue.
    #[inline]
    pub(crate) fn note_allowed(&mut self, generation: u64) {
        if self.allowed_by != Some(generation) {
            self.allowed_by = self.queue.is_empty().then_some(generation);
        }
    }

    /// Whether it may still be sent a message that waited since rules allowed it. They are asked where they, or its owner's
    /// groups, have changed since.
    #[inline]
    pub(crate) fn may_still_have(&self, authorize: &dyn Authorize, topic: &str) -> bool {
        self.allowed_by == Some(authorize.generation()) || self.may_have(authorize, topic)
    }

    /// Whether rules let it be sent messages of a topic.
    pub(crate) fn may_have(&self, authorize: &dyn Authorize, topic: &str) -> bool {
        authorize.receives_all() || may_receive(authorize, &self.identity, topic)
    }

    /// Whether more than half of what may wait does; told to the other shards. `own` is its name.
    pub(crate) fn note_behind(&mut self, shared: &Shared, own: SessionKey) -> bool {
        let behind = self.queue.spilled() > 0
            || self.queue.bytes() > self.config.queue_bytes_max / 2
            || self.queue.len() > self.config.queue_messages_max / 2;
        self.state.behind.store(behind, Ordering::Relaxed);
        if self.is_full && !behind {
            self.is_full = false;
            shared.forget_full(own);
        }
        behind
    }

    /// Bytes of memory that it could give back for others: what may be dropped or go to disk, or all that waits if it ends with
    /// its connection.
    pub(crate) fn gives(&self) -> u64 {
        if self.connection.is_some() && !self.is_kept() {
            self.queue.bytes()
        } else {
            let spillable_bytes = if self.cannot_spill { 0 } else { self.queue.spillable_bytes() };
            self.queue.droppable_bytes() + spillable_bytes
        }
    }

    /// Whether messages wait for it or for its acknowledgement.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.queue.is_empty() || self.inflight.kept_bytes() > 0
    }

    pub(crate) fn is_received(&self, id: PacketId) -> bool {
        self.received.contains(&id)
    }
}

/// Whether rules let somebody be sent messages of a topic.
pub(crate) fn may_receive(authorize: &dyn Authorize, who: &Identity, topic: &str) -> bool {
    authorize.decide(who, Action::Receive, Target::Topic(topic)).allow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_parts() {
        let key = Key { slot: u32::MAX - 1, use_count: USES - 1 };
        let session = SessionKey::new(255, key);
        assert_eq!((session.shard(), session.key()), (255, key));
        assert_eq!(size_of::<SubscriptionOptions>(), 8);
    }
}

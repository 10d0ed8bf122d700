//! The state of a client at the broker, with and without a connection.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering},
    },
    time::Duration,
};

use tidegate_message::{Action, Authorize, Identity, IdentityKind, Instant, Target};
use tidegate_wire::mqtt::{PacketId, QoS, Version};

use crate::{
    accounts::Account,
    budget::Charge,
    config::{Overflow, SessionConfig},
    connection::WillMessage,
    inflight::Inflight,
    queue::{Queue, Queued},
    scans::RetainedScans,
    shared::Shared,
    slab::{Key, USES},
    spill::NoPlace,
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

/// The options of a subscription that matter to each message.
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

/// Bytes of filters that each session may have outside the node's budget.
pub(crate) const FILTERS_OWN_BYTES: u64 = 8 << 10;

/// Bytes of a subscription: its filter, and its places here and in the index.
pub(crate) fn filter_bytes(filter: &str) -> u64 {
    2 * filter.len() as u64 + 96
}

/// The part of a session that all shards see, and by which they reserve places in its queue.
///
/// A publisher's QoS 1 or 2 message is acknowledged before the shard of a subscriber has seen it. Its shard therefore reserves
/// a place first: messages on their way are counted here until the subscriber's shard has taken them, and are never more than
/// there is room for.
#[derive(Debug)]
pub(crate) struct SessionState {
    /// Whether it has a connection.
    pub(crate) connected: AtomicBool,
    /// Whether it is of a part of this program.
    is_part: AtomicBool,
    /// Whether its queue is over half full; then a shared subscription chooses another member.
    pub(crate) behind: AtomicBool,
    /// Its identity: other shards, too, ask the rules whether it may have a message before they ask it for a place.
    identity: RwLock<Arc<Identity>>,
    /// Whether it takes no QoS 1 or 2 message until half of its queue is gone, unless their policy lets it drop some.
    full: AtomicBool,
    /// In whose share counts what waits for it, if that is in any.
    pub(crate) account: RwLock<Option<Arc<Account>>>,
    /// The policy for QoS 1 and 2 messages whose topic has none of its own ([`Overflow`]).
    overflow: AtomicU8,
    /// Whether it was full and away for so long that its oldest messages go, whatever their policy says.
    is_idle: AtomicBool,
    /// Whether a message waits for it.
    waits: AtomicBool,
    /// Messages, and bytes of them, that may come from other shards; below zero where more wait than may.
    room_messages: AtomicI64,
    room_bytes: AtomicI64,
    /// Messages, and bytes of them, that are on their way to its shard.
    coming_messages: AtomicI64,
    coming_bytes: AtomicI64,
}

/// The answer to another shard that asked for a place in a session's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// There is one.
    Place,
    /// There is none, and this message is kept all the same: the session is full from now on.
    Last,
    /// There is none.
    None,
}

impl SessionState {
    pub(crate) fn new(overflow: Overflow, identity: Arc<Identity>) -> Self {
        Self {
            connected: AtomicBool::new(false),
            is_part: AtomicBool::new(identity.kind == IdentityKind::Internal),
            behind: AtomicBool::new(false),
            identity: RwLock::new(identity),
            full: AtomicBool::new(false),
            account: RwLock::new(None),
            overflow: AtomicU8::new(overflow as u8),
            is_idle: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            room_messages: AtomicI64::new(i64::MAX),
            room_bytes: AtomicI64::new(i64::MAX),
            coming_messages: AtomicI64::new(0),
            coming_bytes: AtomicI64::new(0),
        }
    }

    /// Its identity.
    pub(crate) fn identity(&self) -> Arc<Identity> {
        self.identity.read().expect("no panic while it is set").clone()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.connected.load(Ordering::Relaxed) && !self.behind.load(Ordering::Relaxed)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Whether there is room for one more than what is on its way.
    pub(crate) fn has_room(&self) -> bool {
        !self.behind.load(Ordering::Relaxed)
            && self.coming_messages.load(Ordering::Acquire)
                < self.room_messages.load(Ordering::Acquire)
            && self.coming_bytes.load(Ordering::Acquire) < self.room_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Records that it is full, or is no longer; returns the former value.
    pub(crate) fn set_full(&self, is_full: bool) -> bool {
        self.full.swap(is_full, Ordering::AcqRel)
    }

    pub(crate) fn set_overflow(&self, overflow: Overflow) {
        self.overflow.store(overflow as u8, Ordering::Relaxed);
    }

    /// The policy for QoS 1 and 2 messages of a topic with that exception.
    pub(crate) fn overflow(&self, exception: Option<Overflow>) -> Overflow {
        if self.is_idle.load(Ordering::Acquire) {
            return Overflow::DropOldest;
        }
        let usual = || {
            let number = self.overflow.load(Ordering::Relaxed);
            Overflow::of_number(number).expect("it was one's")
        };
        exception.unwrap_or_else(usual).for_part(self.is_part())
    }

    /// Whether it is of a part of this program.
    pub(crate) fn is_part(&self) -> bool {
        self.is_part.load(Ordering::Relaxed)
    }

    /// Whether a QoS 1 or 2 message of a topic with that exception finds no place and must not be dropped.
    pub(crate) fn refuses(&self, exception: Option<Overflow>) -> bool {
        self.is_full() && !self.overflow(exception).yields()
    }

    /// Counts a message that is on its way, whether or not there is room for it.
    pub(crate) fn expect(&self, bytes: u64) {
        self.coming_messages.fetch_add(1, Ordering::AcqRel);
        self.coming_bytes.fetch_add(bytes as i64, Ordering::AcqRel);
    }

    /// Reserves a place for a message of another shard. All but [`Reserved::None`] are followed by [`SessionState::arrived`].
    pub(crate) fn reserve(&self, exception: Option<Overflow>, bytes: u64) -> Reserved {
        if self.refuses(exception) {
            return Reserved::None;
        }
        let coming_messages = self.coming_messages.fetch_add(1, Ordering::AcqRel) + 1;
        let coming_bytes = self.coming_bytes.fetch_add(bytes as i64, Ordering::AcqRel);
        let reserved =
            self.place(exception, coming_messages, coming_bytes.saturating_add(bytes as i64));
        if reserved == Reserved::None {
            self.arrived(bytes);
        }
        reserved
    }

    /// Whether its own shard has a place for a message of its own, in addition to those on their way from others.
    #[inline]
    pub(crate) fn admit(&self, exception: Option<Overflow>, bytes: u64) -> Reserved {
        let (messages, coming_bytes) = self.coming();
        if messages == 0 {
            return if self.refuses(exception) { Reserved::None } else { Reserved::Place };
        }
        if self.refuses(exception) {
            return Reserved::None;
        }
        self.place(exception, messages + 1, coming_bytes.saturating_add(bytes as i64))
    }

    /// Whether there is a place for the last of so many messages that come, and of so many bytes.
    fn place(&self, exception: Option<Overflow>, messages: i64, bytes: i64) -> Reserved {
        let is_first = messages == 1 && !self.waits.load(Ordering::Acquire);
        let has_place = messages <= self.room_messages.load(Ordering::Acquire);
        let fits = match self.overflow(exception) {
            // One may always wait, or what is larger than all that may could never be sent.
            Overflow::Disconnect => {
                is_first || has_place && bytes <= self.room_bytes.load(Ordering::Acquire)
            }
            Overflow::SpillDisconnect => is_first || has_place,
            // Its publishers are not read from any more; the others drop something.
            Overflow::BlockPublisher
            | Overflow::DropOldest
            | Overflow::DropNewest
            | Overflow::Latest
            | Overflow::Spill => true,
        };
        match fits {
            true => Reserved::Place,
            false if !self.set_full(true) => Reserved::Last,
            false => Reserved::None,
        }
    }

    /// A message that was on its way is in the queue, or came to nothing.
    pub(crate) fn arrived(&self, bytes: u64) {
        self.coming_messages.fetch_sub(1, Ordering::AcqRel);
        self.coming_bytes.fetch_sub(bytes as i64, Ordering::AcqRel);
    }

    /// Messages, and their bytes, on their way to its shard.
    #[inline]
    pub(crate) fn coming(&self) -> (i64, i64) {
        (self.coming_messages.load(Ordering::Acquire), self.coming_bytes.load(Ordering::Acquire))
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    /// Its number in the shard's journal; 0 if it is not written down.
    pub(crate) number: u64,
    pub(crate) client_id: Arc<str>,
    /// Changed by [`Session::set_identity`] only.
    pub(crate) identity: Arc<Identity>,
    /// Generation of the rules that allowed all that waits in `queue`; none if some of it is to be asked for once more.
    pub(crate) allowed_by: Option<u64>,
    /// In whose share it counts, with what waits for it.
    pub(crate) account: Option<Arc<Account>>,
    /// Whether it counts there as one without a connection.
    pub(crate) is_left_behind: bool,
    pub(crate) config: Arc<SessionConfig>,
    pub(crate) version: Version,
    /// How long it outlives its connection; none forever.
    pub(crate) expiry: Option<Duration>,
    pub(crate) connection: Option<Key>,
    /// By filter, whose text the index shares.
    pub(crate) subscriptions: HashMap<Arc<str>, SubscriptionOptions>,
    /// Of all filters, as [`filter_bytes`] counts them.
    pub(crate) filter_bytes: u64,
    /// Of the node's budget, what they take beyond [`FILTERS_OWN_BYTES`].
    pub(crate) filter_charge: Option<Charge>,
    pub(crate) retained: RetainedScans,
    pub(crate) queue: Queue,
    pub(crate) inflight: Inflight,
    /// QoS 2 packet identifiers that were received and not released.
    pub(crate) received: Vec<PacketId>,
    pub(crate) state: Arc<SessionState>,
    /// A will that waits for its delay, and when that ends.
    pub(crate) will: Option<(Box<WillMessage>, Instant)>,
    /// Whether a will is to be published after a restart, by the newest of its records that says so or not.
    pub(crate) will_is_written: bool,
    /// When it ends, if no client comes.
    pub(crate) ends_at: Option<Instant>,
    /// Since when it has no connection, if it has none.
    pub(crate) away_since: Option<Instant>,
    /// When that is too long for one that is full.
    pub(crate) idles_at: Option<Instant>,
    /// It was full and away for so long that its oldest messages go.
    pub(crate) is_idle: bool,
    /// That is so since its identity had its share, and until a client connects or nothing waits.
    pub(crate) gives_way: bool,
    /// When it is looked at whether something of its queue has expired.
    pub(crate) lapses_at: Option<Instant>,
    pub(crate) dropped: Dropped,
    /// A message that found no place was kept here under [`Overflow::Disconnect`], for which its connection ended, and more than
    /// half of what may wait still does.
    pub(crate) is_full: bool,
    /// Its oldest messages were dropped under [`Overflow::Spill`], which the log says, and more than half of what may wait still
    /// does.
    pub(crate) is_losing: bool,
    /// QoS 1 and 2 messages, and bytes of them, that its connection lets be in flight; 0 without one.
    pub(crate) window: (u16, u64),
    /// The disk did not take what it was to give back, and has taken nothing of it since.
    pub(crate) cannot_spill: bool,
    /// The bytes that it could release when its shard last recorded them.
    pub(crate) noted_gives: u64,
    /// It is of a part of the node that is configured no longer: see `broker::parts`.
    pub(crate) is_gone: bool,
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
    /// It waited, or was not acknowledged, when its session ended, and no other member of a shared subscription took it.
    pub session_ended: u64,
    /// A message of QoS 1 or 2 for a shared subscription: all members that may have it were away, and keep nothing meanwhile,
    /// since they subscribe with QoS 0.
    pub members_away: u64,
}

impl Dropped {
    /// All together.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }

    /// Each reason with its count.
    pub fn by_reason(&self) -> [(&'static str, u64); 10] {
        let &Self {
            queue_full,
            spill_full,
            spill_lost,
            conflated,
            budget_full,
            expired,
            too_large,
            not_allowed,
            session_ended,
            members_away,
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
            ("session_ended", session_ended),
            ("members_away", members_away),
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
        self.session_ended += other.session_ended;
        self.members_away += other.members_away;
    }
}

impl Session {
    /// Whether messages must be kept until acknowledged: only where the session outlives its connection.
    pub(crate) fn is_kept(&self) -> bool {
        self.expiry != Some(Duration::ZERO)
    }

    /// Messages that went to it and were dropped, but for those in whose place newer ones came and those that expired.
    pub(crate) fn missed(&self) -> u64 {
        self.dropped.total() - self.dropped.conflated - self.dropped.expired
    }

    /// Whether it is of that user, whatever groups he is in and whatever the client calls itself.
    pub(crate) fn is_of(&self, identity: &Identity) -> bool {
        (self.identity.kind, &self.identity.name) == (identity.kind, &identity.name)
    }

    /// Makes it `identity`'s; whether that is another than before, under which other messages may be allowed.
    pub(crate) fn set_identity(&mut self, identity: Identity) -> bool {
        if *self.identity == identity {
            return false;
        }
        self.identity = Arc::new(identity);
        self.allowed_by = None;
        // The former one may not have been allowed to have what this one is.
        self.retained.send_all();
        self.state.is_part.store(self.identity.kind == IdentityKind::Internal, Ordering::Relaxed);
        *self.state.identity.write().expect("no panic while it is set") = self.identity.clone();
        true
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

    /// Whether more than half of what may wait does, which the other shards then see, and how much room is left.
    pub(crate) fn note_behind(&mut self, shared: &Shared) -> bool {
        let behind = self.queue.spilled() > 0
            || self.queue.bytes() > self.config.queue_bytes_max / 2
            || self.queue.len() > self.config.queue_messages_max / 2
            || self.is_idle && self.gives_way && self.queue.firm_bytes() > 0;
        self.state.behind.store(behind, Ordering::Relaxed);
        self.note_room();
        if !behind {
            self.set_idle(self.is_gone);
            self.is_full = false;
            self.is_losing = false;
            shared.forget_full(&self.state);
        }
        behind
    }

    /// Says in the log that its oldest messages are dropped, once until it has caught up.
    #[cold]
    pub(crate) fn note_losing(&mut self, cause: &NoPlace) {
        if !std::mem::replace(&mut self.is_losing, true) {
            tracing::warn!(client = %self.client_id, identity = %self.identity.name, messages = self.queue.len(), bytes_on_disk = self.queue.spilled_bytes(), %cause,
                "the client does not read what waits for it: its oldest messages are dropped from now on, and counted");
        }
    }

    /// Whether more than half of what may wait does.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.behind.load(Ordering::Relaxed)
    }

    /// Whether publishers are refused, or not read from, because its queue is full.
    pub(crate) fn holds_up(&self) -> bool {
        self.state.is_full() || !self.blocks.is_empty()
    }

    /// Records that it was full and away for so long that its oldest messages go, or that this is over; returns the
    /// former value.
    pub(crate) fn set_idle(&mut self, is_idle: bool) -> bool {
        self.state.is_idle.store(is_idle, Ordering::Release);
        let was_idle = std::mem::replace(&mut self.is_idle, is_idle);
        self.gives_way &= is_idle;
        if was_idle != is_idle {
            self.count_in_share();
        }
        was_idle
    }

    /// Whether the places that are left for such a message are reserved for those on their way from other shards, which were
    /// promised them.
    pub(crate) fn is_reserved(&self, queued: &Queued, bytes: u64) -> bool {
        let (messages, coming_bytes) = self.state.coming();
        if messages <= 0 {
            return false;
        }
        let is_over = self.queue.len() + messages as usize >= self.config.queue_messages_max;
        match queued.overflow {
            Overflow::Disconnect => {
                let bytes = self.queue.bytes().saturating_add(bytes);
                is_over || bytes.saturating_add(coming_bytes as u64) > self.config.queue_bytes_max
            }
            Overflow::SpillDisconnect => is_over,
            _ => false,
        }
    }

    /// Records how much may come from other shards: the free room of the queue, and the allowance past an empty one.
    pub(crate) fn note_room(&self) {
        let is_empty = self.queue.is_empty();
        let (messages, bytes) = if is_empty { self.window } else { (0, 0) };
        let room = |max: u64, taken: u64, window: u64| {
            (max.min(1 << 62) + window.min(1 << 61)) as i64 - taken as i64
        };
        let config = &self.config;
        let state = &self.state;
        let (queue, messages_max) = (&self.queue, config.queue_messages_max as u64);
        let room_messages = room(messages_max, queue.len() as u64, u64::from(messages));
        let room_bytes = room(config.queue_bytes_max, queue.bytes(), bytes);
        state.room_messages.store(room_messages, Ordering::Release);
        state.room_bytes.store(room_bytes, Ordering::Release);
        state.waits.store(!is_empty, Ordering::Release);
    }

    /// Bytes of memory that it could release for others: messages that may be dropped or go to disk, or all that wait if it
    /// ends with its connection.
    pub(crate) fn gives(&self) -> u64 {
        if self.is_idle || self.connection.is_some() && !self.is_kept() {
            self.queue.bytes()
        } else {
            let queue = &self.queue;
            let bytes =
                if self.cannot_spill { queue.yielding_bytes() } else { queue.spillable_bytes() };
            queue.droppable_bytes() + bytes
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

/// Whether the rules allow an identity to receive messages of a topic.
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

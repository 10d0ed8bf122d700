//! The state of a client at the broker, with and without a connection.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_message::{Authorize, Identity, Instant};
use tidegate_schedule::Policy;
use tidegate_wire::mqtt::{PacketId, Version};

use crate::{
    accounts::Account,
    budget::Charge,
    config::{Overflow, SessionConfig},
    connection::WillMessage,
    dropped::Dropped,
    inflight::Inflight,
    queue::{Queue, Queued},
    scans::{RetainedScan, RetainedScans},
    session_state::{SessionKey, SessionState, may_receive},
    shared::Shared,
    slab::Key,
    spill::NoPlace,
    subscription::SubscriptionOptions,
};

/// The last connection of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    pub(crate) at: Instant,
    /// Whether it wanted no session of before.
    pub(crate) is_clean: bool,
}

#[derive(Debug)]
pub(crate) struct Session {
    /// Its number in the shard's journal; 0 if it is not written down.
    pub(crate) number: u64,
    pub(crate) client_id: Arc<str>,
    /// Its connection, of now or the last; none of a client that comes to no other node.
    pub(crate) began: Option<Began>,
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
    /// Its settings before that, for when it is there again.
    pub(crate) before_grace: Option<Arc<SessionConfig>>,
    /// Publishers that are not read from because this session's queue is full.
    pub(crate) blocks: Vec<SessionKey>,
    /// Connections of this session that other sessions' queues block: how many of those.
    pub(crate) blocked_by: u32,
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

    /// The same of a peer session, with those that expired: the other node may still retain what was there before them.
    pub(crate) fn missed_of_peer(&self) -> u64 {
        self.dropped.total() - self.dropped.conflated
    }

    /// Owes all subscriptions all that is retained and matches.
    pub(crate) fn owe_retained(&mut self, now: Instant) {
        let missed = self.missed();
        for (filter, options) in &self.subscriptions {
            if !filter.starts_with("$share/") {
                let scan = RetainedScan::new(filter, *options, now, u64::MAX, missed);
                self.retained.begin(scan);
            }
        }
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
        self.state.set_identity(self.identity.clone());
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

    /// Whether a payload is in the large class; its topic may say from how many bytes on.
    pub(crate) fn is_large(&self, bytes: usize, large_bytes: Option<u32>) -> bool {
        let usual = self.config.large_bytes;
        self.config.policy != Policy::None && bytes > large_bytes.unwrap_or(usual) as usize
    }

    /// Whether messages wait for it or for its acknowledgement.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.queue.is_empty() || self.inflight.kept_bytes() > 0
    }

    pub(crate) fn is_received(&self, id: PacketId) -> bool {
        self.received.contains(&id)
    }
}

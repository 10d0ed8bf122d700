//! The part of a session that all shards see, and its name.

use std::{
    fmt,
    num::NonZeroU64,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering},
    },
};

use tidegate_message::{Action, Authorize, Identity, IdentityKind, Target};

use crate::{
    accounts::Account,
    config::{Overflow, SessionConfig},
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

/// The part of a session that all shards see, and by which they reserve places in its queue.
///
/// A publisher's QoS 1 or 2 message is acknowledged before the shard of a subscriber has seen it. Its shard therefore reserves
/// a place first: messages on their way are counted here until the subscriber's shard has taken them, and are never more than
/// there is room for.
#[derive(Debug)]
pub(crate) struct SessionState {
    /// Whether it has a connection.
    pub(crate) connected: AtomicBool,
    /// Whether its client, a part of this program, reaches nobody to hand messages to: a shared subscription chooses another member then.
    pub(crate) is_away: AtomicBool,
    /// Whether it is of a part of this program.
    pub(crate) is_part: AtomicBool,
    /// Whether it is of another member of the fabric.
    is_peer: AtomicBool,
    /// The number of the leaf that it is of, or 0.
    leaf: AtomicU64,
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
    pub(crate) is_idle: AtomicBool,
    /// Whether a message waits for it.
    pub(crate) waits: AtomicBool,
    /// Messages, and bytes of them, that may come from other shards; below zero where more wait than may.
    pub(crate) room_messages: AtomicI64,
    pub(crate) room_bytes: AtomicI64,
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
    pub(crate) fn new(config: &SessionConfig, identity: Arc<Identity>) -> Self {
        Self {
            connected: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            is_part: AtomicBool::new(identity.kind == IdentityKind::Internal),
            is_peer: AtomicBool::new(config.is_peer),
            leaf: AtomicU64::new(config.leaf.map_or(0, NonZeroU64::get)),
            behind: AtomicBool::new(false),
            identity: RwLock::new(identity),
            full: AtomicBool::new(false),
            account: RwLock::new(None),
            overflow: AtomicU8::new(config.overflow as u8),
            is_idle: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            room_messages: AtomicI64::new(i64::MAX),
            room_bytes: AtomicI64::new(i64::MAX),
            coming_messages: AtomicI64::new(0),
            coming_bytes: AtomicI64::new(0),
        }
    }

    /// It is of that identity from now on.
    pub(crate) fn set_identity(&self, identity: Arc<Identity>) {
        self.is_part.store(identity.kind == IdentityKind::Internal, Ordering::Relaxed);
        *self.identity.write().expect("no panic while it is set") = identity;
    }

    /// Its identity.
    pub(crate) fn identity(&self) -> Arc<Identity> {
        self.identity.read().expect("no panic while it is set").clone()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_there() && !self.behind.load(Ordering::Relaxed)
    }

    /// Whether it has a connection, and its client reaches those whom messages are for.
    pub(crate) fn is_there(&self) -> bool {
        self.is_connected() && !self.is_away.load(Ordering::Relaxed)
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

    /// Whether it is of another member of the fabric.
    pub(crate) fn is_peer(&self) -> bool {
        self.is_peer.load(Ordering::Relaxed)
    }

    /// The leaf that it is of.
    pub(crate) fn leaf(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.leaf.load(Ordering::Relaxed))
    }

    /// Records both; whether one was otherwise, so that routes no longer hold.
    pub(crate) fn set_peer(&self, config: &SessionConfig) -> bool {
        let leaf = config.leaf.map_or(0, NonZeroU64::get);
        let was_peer = self.is_peer.swap(config.is_peer, Ordering::Relaxed);
        let was_of = self.leaf.swap(leaf, Ordering::Relaxed);
        (was_peer, was_of) != (config.is_peer, leaf)
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
    }
}

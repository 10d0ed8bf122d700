//! Where a message waits on disk: the disk, as a trait, and the part of the message that stays.
//!
//! Always true: a message recorded as on disk was written whole; a place is given back once, when nothing refers to it.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tidegate_journal::Record;
use tidegate_message::{Code, Instant, Payload};

use super::{Body, Message, MessageRef};
use crate::{
    accounts::{Account, Holders},
    budget::Charge,
    session_state::SessionKey,
};

/// Bytes that a message on disk takes from the budget: for itself, and a place in one queue.
pub const SPILLED_BYTES: u64 = 256;

/// Where messages go that find no room in memory. The shell has it; all shards use it, each from its thread.
pub trait Spill: Send + Sync + fmt::Debug {
    /// Writes a message: its head, then its payload, which may be empty. That is to take no longer than a copy of it.
    ///
    /// # Errors
    /// It is not there.
    fn write(&self, head: &[u8], payload: &Payload) -> Result<Place, SpillError>;

    /// A message is not needed any more.
    fn forget(&self, place: Place);

    /// Begins to read messages, without waiting for them. The answer, with one result for each in order, goes to
    /// [`Broker::handle_fetched`](crate::Broker::handle_fetched) of that shard.
    fn read(&self, shard: usize, wanted: Wanted);

    /// Reads a message, and waits for it: before the node runs.
    ///
    /// # Errors
    /// It does not come back.
    fn read_now(&self, place: Place) -> Result<Bytes, SpillError>;

    /// Bytes that it takes.
    fn bytes(&self) -> u64;

    /// Bytes that it may take.
    fn bytes_max(&self) -> u64;
}

/// Where a message is on disk; the [`Spill`] gives the position its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Where it begins.
    pub position: u64,
    /// How long it is.
    pub bytes: u32,
}

/// Messages that are to be read, and for whom.
#[derive(Debug)]
pub struct Wanted {
    pub(crate) by: WantedBy,
    pub(crate) messages: Vec<Arc<Spilled>>,
}

/// The results of reading messages, one for each in order.
pub type Answers = Vec<Result<Bytes, SpillError>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedBy {
    /// A class of a session's queue: whether it is the large one.
    Queue(SessionKey, bool),
    /// The journal, to write them again.
    Checkpoint,
}

impl Wanted {
    /// Where they are.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.messages.iter().map(|spilled| spilled.place)
    }
}

/// Why a message is not on disk, or does not come back.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpillError {
    /// There is no disk for it.
    #[error("there is no disk for messages that wait; mqtt.spill_bytes gives them room")]
    None,
    /// All that they may take is taken.
    #[error(
        "the messages that wait on disk take all of the {limit} bytes that mqtt.spill_bytes gives them"
    )]
    Bound {
        /// The limit on their bytes.
        limit: u64,
    },
    /// The identity of the session has its share of that.
    #[error(
        "the messages that wait on disk for {identity} take its share (mqtt.identity_share) of the {limit} bytes that mqtt.spill_bytes gives to all"
    )]
    Share {
        /// The identity.
        identity: String,
        /// The limit on the bytes of all.
        limit: u64,
    },
    /// The disk has no room.
    #[error("the disk has no room for messages that wait")]
    Full(#[source] Arc<std::io::Error>),
    /// The disk failed.
    #[error("the disk for messages that wait failed")]
    Failed(#[source] Arc<std::io::Error>),
}

impl SpillError {
    /// From the system's error.
    pub fn of(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        let is_full = matches!(error.kind(), StorageFull | QuotaExceeded);
        if is_full { Self::Full(Arc::new(error)) } else { Self::Failed(Arc::new(error)) }
    }

    /// The stable code of this error.
    pub fn code(&self) -> Code {
        match self {
            Self::None | Self::Bound { .. } | Self::Share { .. } | Self::Full(_) => {
                Code::STORAGE_FULL
            }
            Self::Failed(_) => Code::STORAGE_FAILED,
        }
    }
}

/// A message on disk, and what of it matters before it is back.
#[derive(Debug)]
pub(crate) struct Spilled {
    pub(crate) topic: Arc<str>,
    pub(crate) expires: Option<Instant>,
    pub(crate) payload_bytes: usize,
    /// Its charge to the budget in memory.
    pub(crate) charged: u64,
    place: Place,
    /// It could not be read.
    is_lost: AtomicBool,
    /// The session that fetched it first shares it with the others.
    in_memory: Mutex<Weak<Message>>,
    /// The accounts that it counts in.
    holders: Mutex<Holders>,
    disk: Arc<dyn Spill>,
    _charge: Charge,
}

impl Spilled {
    /// A message that was written there; `charge` is for what stays of it.
    pub(crate) fn new(
        message: &Arc<Message>,
        place: Place,
        disk: Arc<dyn Spill>,
        charge: Charge,
    ) -> Self {
        Self {
            topic: message.topic.clone(),
            expires: message.expires,
            payload_bytes: message.payload.len(),
            charged: message.charged(),
            place,
            is_lost: AtomicBool::new(false),
            in_memory: Mutex::new(Arc::downgrade(message)),
            holders: Mutex::default(),
            disk,
            _charge: charge,
        }
    }

    /// Whether it waits for a session of that account.
    pub(crate) fn counts_in(&self, account: &Arc<Account>) -> bool {
        self.holders().has(account)
    }

    /// The message, if it is in memory.
    pub(crate) fn in_memory(&self) -> Option<Arc<Message>> {
        self.shared().upgrade()
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It waits for a session of that account, once more.
    pub(crate) fn hold_for(&self, account: &Arc<Account>) {
        if self.holders().add(account) {
            account.add_spilled(self.charged);
        }
    }

    /// The same, once less.
    pub(crate) fn release_for(&self, account: &Arc<Account>) {
        if self.holders().remove(account) {
            account.subtract_spilled(self.charged);
        }
    }

    fn shared(&self) -> MutexGuard<'_, Weak<Message>> {
        self.in_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// It does not come back.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }

    /// The payload on disk.
    #[cfg(test)]
    pub(crate) fn payload_on_disk(&self) -> Vec<u8> {
        let bytes = self.disk.read_now(self.place).expect("it is there");
        let Ok(Record::Message(stored)) = Record::decode(&bytes) else { panic!("a message") };
        stored.payload.to_contiguous().to_vec()
    }

    /// The message, back from `bytes`, under a charge.
    pub(crate) fn restored(
        self: &Arc<Self>,
        bytes: &Bytes,
        charge: Charge,
    ) -> Option<Arc<Message>> {
        let Ok(Record::Message(stored)) = Record::decode(bytes) else { return None };
        let message = MessageRef::stored(&self.topic, Body::Held(&stored.payload), &stored);
        let message = message.hold_charged(charge);
        // A message on disk already is not written again.
        let known = message.spilled.set(self.clone());
        debug_assert!(known.is_ok(), "it was just made");
        *self.shared() = Arc::downgrade(&message);
        Some(message)
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        self.disk.forget(self.place);
    }
}

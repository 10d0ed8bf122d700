//! Messages that wait on disk, where they find no room in memory.
//!
//! ```text
//!  queue: memory memory memory │ disk disk disk ◀── write, at once: Spill::write
//!                              ▲      │
//!         Broker::handle_fetched ◀────┴── Spill::read, answered later
//! ```
//!
//! A message is written once, however many subscribers wait for it, and stays on disk until none does. A waiting session keeps
//! its place: only the payload is elsewhere. Nothing here outlives the process: promised messages are in the journal.
//!
//! Always true: a message recorded as on disk was written whole; a place is given back once, when nothing refers to it.

pub mod simulated;

use std::{
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tidegate_message::{Code, Instant, Payload};

use crate::{
    accounts::{Account, Holders},
    budget::{Budget, Charge},
    message::{Body, Incoming, Message},
    session::{Dropped, SessionKey},
    shared::Shared,
};
use tidegate_journal::{Record, StoredMessage};

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

/// Why a message has no place in a queue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPlace {
    /// As many wait as may.
    #[error("as many wait as mqtt.queue_messages_max lets")]
    Messages,
    /// The memory of the queue is full, and its client was disconnected for that: it has the disk again once nothing of it is there.
    #[error("the client was disconnected since its queue was full, and that still is")]
    Disconnected,
    /// The memory of the queue is full, and the disk takes nothing of it.
    #[error(transparent)]
    Disk(#[from] SpillError),
}

impl NoPlace {
    pub(crate) fn count(&self, dropped: &mut Dropped) {
        match self {
            Self::Messages => dropped.queue_full += 1,
            Self::Disconnected | Self::Disk(_) => dropped.spill_full += 1,
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
        let message = Incoming {
            topic: &self.topic,
            payload: Body::Held(&stored.payload),
            forwarded: &stored.forwarded,
            qos: stored.qos,
            retain: stored.retain,
            expires: stored.expires,
            received: stored.received,
            publisher: None,
        };
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

/// A shard's way to the disk.
#[derive(Debug)]
pub(crate) struct Spilling {
    pub(crate) disk: Option<Arc<dyn Spill>>,
    budget: Budget,
    scratch: Vec<u8>,
    /// It took nothing when it was tried last.
    is_failing: bool,
    pub(crate) counts: SpillCounts,
}

/// A shard's counts of messages on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpillCounts {
    /// Written, each once however many wait for it.
    pub(crate) written: u64,
    pub(crate) failures: u64,
}

impl Spilling {
    pub(crate) fn new(budget: Budget) -> Self {
        Self {
            disk: None,
            budget,
            scratch: Vec::new(),
            is_failing: false,
            counts: SpillCounts::default(),
        }
    }

    /// Whether the node's memory is so full that messages that may wait on disk go there: the rest is for those that may not,
    /// and for those on their way.
    pub(crate) fn is_called_for(&self) -> bool {
        self.budget.used() > self.budget.limit() / 4 * 3
    }

    /// Puts a message on disk for a session of that account, as [`Spilling::write`] does, if its share has room.
    ///
    /// # Errors
    /// Also [`SpillError::Share`], which is the identity's matter and no failure of the disk.
    pub(crate) fn write_for(
        &mut self,
        shared: &Shared,
        account: Option<&Arc<Account>>,
        message: &Arc<Message>,
    ) -> Result<Arc<Spilled>, SpillError> {
        if let (Some(account), Some(disk)) = (account, &self.disk) {
            let counts = |spilled: &Arc<Spilled>| spilled.holders().has(account);
            let (bytes, limit) = (message.charged(), disk.bytes_max());
            if !message.spilled.get().is_some_and(counts)
                && !shared.disk_share_allows(account, bytes, disk.bytes(), limit)
            {
                return Err(SpillError::Share { identity: account.name(), limit });
            }
        }
        self.write(message)
    }

    /// Puts a message on disk, unless it is there.
    ///
    /// # Errors
    /// [`SpillError`], which is counted, and logged once until the disk takes something again.
    pub(crate) fn write(&mut self, message: &Arc<Message>) -> Result<Arc<Spilled>, SpillError> {
        if let Some(spilled) = message.spilled.get() {
            return Ok(spilled.clone());
        }
        let written = self.write_new(message);
        match &written {
            Ok(_) => {
                self.counts.written += 1;
                if mem::take(&mut self.is_failing) {
                    tracing::info!("messages that find no room in memory wait on disk again");
                }
            }
            Err(error) => {
                self.counts.failures += 1;
                if !mem::replace(&mut self.is_failing, true) {
                    let cause = std::error::Error::source(error).map(ToString::to_string);
                    tracing::error!(code = %error.code(), %error, cause,
                        "messages that find no room in memory cannot wait on disk");
                }
            }
        }
        written
    }

    fn write_new(&mut self, message: &Arc<Message>) -> Result<Arc<Spilled>, SpillError> {
        let disk = self.disk.clone().ok_or(SpillError::None)?;
        self.scratch.clear();
        Record::Message(StoredMessage::from(&**message)).encode(&mut self.scratch);
        let place = disk.write(&self.scratch, &message.payload)?;
        // It frees more than that.
        let charge = self.budget.charge_beyond(SPILLED_BYTES);
        let spilled = Spilled {
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
        };
        // Another shard may have been quicker.
        Ok(message.spilled.get_or_init(|| Arc::new(spilled)).clone())
    }
}

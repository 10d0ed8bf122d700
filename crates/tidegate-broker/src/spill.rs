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

use std::{mem, sync::Arc};

use tidegate_journal::{Record, StoredMessage};

pub use crate::message::disk::{Answers, Place, SPILLED_BYTES, Spill, SpillError, Wanted};
pub(crate) use crate::message::disk::{Spilled, WantedBy};
use crate::{
    accounts::Account, budget::Budget, dropped::Dropped, message::Message, shared::Shared,
};

/// Why a message has no place in a queue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPlace {
    /// As many wait as may.
    #[error("as many wait as mqtt.queue_messages_max lets")]
    Messages,
    /// The memory of the queue is full, and its client was disconnected for that: it has the disk again once nothing of it is there.
    #[error("the client was disconnected since its queue was full, and that still is")]
    Disconnected,
    /// The memory of the queue is full, and the disk was found to take nothing.
    #[error("the memory for them is full, and the disk takes none")]
    Memory,
    /// The memory of the queue is full, and the disk takes nothing of it.
    #[error(transparent)]
    Disk(#[from] SpillError),
}

impl NoPlace {
    pub(crate) fn count(&self, dropped: &mut Dropped) {
        match self {
            Self::Messages => dropped.queue_full += 1,
            Self::Disconnected | Self::Memory | Self::Disk(_) => dropped.spill_full += 1,
        }
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
            let counts = |spilled: &Arc<Spilled>| spilled.counts_in(account);
            let (bytes, limit) = (message.charged(), disk.bytes_max());
            if !message.spilled.get().is_some_and(counts)
                && !shared.disk_share_allows(account, bytes, limit)
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
        let spilled = Spilled::new(message, place, disk, charge);
        // Another shard may have been quicker.
        Ok(message.spilled.get_or_init(|| Arc::new(spilled)).clone())
    }
}

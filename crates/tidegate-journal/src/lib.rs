//! The records by which a shard's promises outlive the process.
//!
//! ```text
//!  Broker ── Record ──▶ Journal (the shell's: a log in files) ──▶ at the next start: Replay ──▶ Recovered ──▶ Broker::restore
//!     ▲                      │
//!     └── Broker::durable ◀──┘ what was written before a position is as durable as it was to be
//! ```
//!
//! Sessions that outlive their connections are written down, and what waits for them; retained messages are, by the shard that
//! owns their topic. A message is one record of a shard, however many of its sessions it waits for. A message for another shard
//! too stays in the sender's record until that shard has it in its own journal: so an acknowledgement waits for one journal
//! alone, the identifier of a QoS 2 message and the message become durable together, and messages that were on their way
//! between two shards when the process ended are handed over at the next start, once.
//!
//! Always true: a message that goes only to sessions that end with their connections is not written down; an acknowledgement
//! that promises something leaves after the record that keeps it is durable; so does each packet that advances a QoS 2
//! exchange.

mod record;
mod replay;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use tidegate_message::{Code, Payload, Position};

pub use self::{
    record::{
        CameFrom, Opened, Options, Record, RecordError, RetainedAs, Sent, Source, StoredMessage,
        StoredWill, Waiting,
    },
    replay::{
        Found, Order, Recovered, RecoveredQueued, RecoveredRetained, RecoveredSession, Replay,
    },
};

/// Where a shard's records go, in order. The shell has it.
pub trait Journal: Send + fmt::Debug {
    /// Sees to it that records of so many bytes in all can be appended.
    ///
    /// # Errors
    /// They cannot: nothing more is to be promised.
    fn ensure(&mut self, bytes: usize) -> Result<(), JournalError>;

    /// Appends a record: its head, then its payload, which may be empty. Returns its position.
    ///
    /// # Errors
    /// It was not appended.
    fn append(&mut self, head: &[u8], payload: &Payload) -> Result<Position, JournalError>;

    /// Whether one more record of so many bytes can be appended that may use the reserve, though none may find room after it.
    ///
    /// # Errors
    /// It cannot.
    fn ensure_last(&mut self, bytes: usize) -> Result<(), JournalError> {
        self.ensure(bytes)
    }

    /// Bytes of records that surely find room where they may take what is [held in reserve](Self::use_reserve), each counted with what
    /// a journal adds to it.
    fn room(&mut self) -> u64 {
        u64::MAX
    }

    /// Bytes of records that find room as far as the journal's own limit goes, what is held in reserve aside.
    fn free(&mut self) -> u64 {
        u64::MAX
    }

    /// Whether records may take what is held in reserve where there is no other room: those that let go of more than they take.
    fn use_reserve(&mut self, _may: bool) {}

    /// Asks for room in reserve for records of so many bytes, without which [`Journal::ensure`] does not succeed.
    fn want_reserve(&mut self, _bytes: u64) {}

    /// Gives back room on the disk that has no records and is not held in reserve: the journal of another shard lacks it.
    fn give_way(&mut self) {}

    /// The position that the next record gets.
    fn end(&self) -> Position;

    /// Records before this position are as durable as they are to be.
    fn durable(&self) -> Position;

    /// Why nothing more becomes durable, if that is so.
    fn failure(&self) -> Option<JournalError>;

    /// Whether a record becomes durable only later, rather than by being appended.
    fn is_gated(&self) -> bool;

    /// Lets go of the records before `position`: others say by now what they said.
    ///
    /// # Errors
    /// They are still there.
    fn release(&mut self, position: Position) -> Result<(), JournalError>;

    /// Bytes of the records that are kept.
    fn bytes(&self) -> u64;

    /// Bytes that it may hold by its own limit, what is held in reserve included.
    fn bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// Makes all that was appended survive a loss of power, whatever is asked of records, and waits for that.
    ///
    /// # Errors
    /// It may not.
    fn flush(&mut self) -> Result<(), JournalError>;
}

/// Why a journal does not keep a record.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// There is no room: of the disk, or of what the journal may take.
    #[error("the journal of the MQTT sessions has no room for more")]
    Full(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The disk failed.
    #[error("the journal of the MQTT sessions cannot be written")]
    Failed(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl JournalError {
    /// The stable code of this error.
    #[inline]
    pub fn code(&self) -> Code {
        match self {
            Self::Full(_) => Code::STORAGE_FULL,
            Self::Failed(_) => Code::STORAGE_FAILED,
        }
    }
}

/// Bytes of a record in the journal besides its texts and its payload, at most.
pub const RECORD_ADDS: u64 = 160;

/// Bytes of a user and the groups that it is in, in a record: about, and not less.
pub fn user_bytes(user: &str, groups: &[Arc<str>]) -> u64 {
    let groups: usize = groups.iter().map(|group| group.len() + 8).sum();
    (user.len() + groups) as u64
}

/// Counts of a shard's journals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalCounts {
    /// Records that were appended.
    pub records: u64,
    /// Records that could not be.
    pub failures: u64,
    /// Messages that were refused because they could not be kept.
    pub refused: u64,
    /// How often the live state was written again, so that older records could go.
    pub checkpoints: u64,
    /// Bytes of the records that are kept now.
    pub bytes: u64,
}

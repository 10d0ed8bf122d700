//! A shard's journal in files, and one in their place where the disk takes none.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tidegate_journal::{Journal, JournalError};
use tidegate_log::{AppendError, Durability, Journal as RecordLog, StorageError};
use tidegate_message::{Code, Payload, Position};
use tidegate_process::clock;

use super::JournalStartError;

/// A shard's journal in files.
pub(super) struct ShardJournal {
    pub(super) log: RecordLog,
    /// Whether its generation counts: before, nothing is promised.
    pub(super) is_named: Arc<AtomicBool>,
}

impl std::fmt::Debug for ShardJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardJournal").field("end", &self.log.end()).finish_non_exhaustive()
    }
}

impl Journal for ShardJournal {
    fn ensure(&mut self, bytes: usize) -> Result<(), JournalError> {
        if !self.is_named.load(Ordering::Acquire) {
            return Err(JournalError::Failed(Arc::new(JournalStartError::Unnamed)));
        }
        self.log.ensure(clock::now(), bytes).map_err(refused)
    }

    fn room(&mut self) -> u64 {
        self.log.room()
    }

    fn ensure_last(&mut self, bytes: usize) -> Result<(), JournalError> {
        if !self.is_named.load(Ordering::Acquire) {
            return Err(JournalError::Failed(Arc::new(JournalStartError::Unnamed)));
        }
        self.log.ensure_last(bytes).map_err(refused)
    }

    fn free(&mut self) -> u64 {
        self.log.free()
    }

    fn use_reserve(&mut self, may: bool) {
        self.log.use_reserve(may);
    }

    fn want_reserve(&mut self, bytes: u64) {
        self.log.want_reserve(bytes);
    }

    fn give_way(&mut self) {
        self.log.give_way();
    }

    fn append(&mut self, head: &[u8], payload: &Payload) -> Result<Position, JournalError> {
        let segments = payload.segments().iter().map(|segment| &segment[..]);
        self.log.append(clock::now(), std::iter::once(head).chain(segments)).map_err(refused)
    }

    fn end(&self) -> Position {
        self.log.end()
    }

    fn durable(&self) -> Position {
        self.log.durable()
    }

    fn failure(&self) -> Option<JournalError> {
        self.log.failure().map(|error| JournalError::Failed(error))
    }

    fn is_gated(&self) -> bool {
        self.log.durability() == Durability::Disk
    }

    fn release(&mut self, position: Position) -> Result<(), JournalError> {
        self.log.release(position).map(drop).map_err(storage)
    }

    fn bytes(&self) -> u64 {
        self.log.bytes()
    }

    fn bytes_max(&self) -> u64 {
        self.log.bytes_max()
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        self.log.flush().map(drop).map_err(storage)
    }
}

fn refused(error: AppendError) -> JournalError {
    if error.code() == Code::STORAGE_FULL {
        JournalError::Full(Arc::new(error))
    } else {
        JournalError::Failed(Arc::new(error))
    }
}

fn storage(error: StorageError) -> JournalError {
    JournalError::Failed(Arc::new(error))
}

/// Where nothing can be written.
#[derive(Clone, Debug)]
pub(super) struct NoJournal(pub(super) Arc<JournalStartError>);

impl NoJournal {
    fn error(&self) -> JournalError {
        if self.0.code() == Code::STORAGE_FULL {
            JournalError::Full(self.0.clone())
        } else {
            JournalError::Failed(self.0.clone())
        }
    }
}

impl Journal for NoJournal {
    fn ensure(&mut self, _: usize) -> Result<(), JournalError> {
        Err(self.error())
    }

    fn append(&mut self, _: &[u8], _: &Payload) -> Result<Position, JournalError> {
        Err(self.error())
    }

    fn end(&self) -> Position {
        Position(0)
    }

    fn durable(&self) -> Position {
        Position(0)
    }

    fn failure(&self) -> Option<JournalError> {
        Some(self.error())
    }

    fn is_gated(&self) -> bool {
        false
    }

    fn release(&mut self, _: Position) -> Result<(), JournalError> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        Err(self.error())
    }
}

//! A journal as a disk keeps it.
//!
//! The model has the promises that the log proves by itself: appended records survive the process; durable ones survive the
//! power; of the rest some do, and some do not.

use std::{
    io::ErrorKind,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use rand::{RngExt, rngs::SmallRng};
use tidegate_broker::journal::{Journal, JournalError, Replay};
use tidegate_message::{Payload, Position};

/// The journal of a shard. Clones are the same.
#[derive(Clone, Debug)]
pub struct Tape {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// None for those that are gone.
    records: Vec<Option<Bytes>>,
    durable: usize,
    is_gated: bool,
    bytes: usize,
    /// Bytes that it may hold, if they are bounded: then a large record finds no room where a small one does.
    bytes_max: Option<usize>,
    failures: u64,
}

/// Bytes that [`Journal::ensure`] leaves to records that are appended without it.
const RESERVE_BYTES: usize = 1_000;

impl Tape {
    /// `is_gated` if records become durable only later.
    pub fn new(is_gated: bool) -> Self {
        let state = State {
            records: Vec::new(),
            durable: 0,
            is_gated,
            bytes: 0,
            bytes_max: None,
            failures: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Has room for so many bytes more, and then for none; for all that comes if that is none.
    pub fn limit(&self, bytes: Option<usize>) {
        let mut state = self.state();
        state.bytes_max = bytes.map(|bytes| state.bytes + bytes);
    }

    /// Records that found no room.
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// The end of the records that wait to become durable, if there are any.
    pub fn waits(&self) -> Option<usize> {
        let state = self.state();
        (state.durable < state.records.len()).then_some(state.records.len())
    }

    /// Records appended before `end`, by number, are durable.
    pub fn flushed(&self, end: usize) {
        let mut state = self.state();
        state.durable = state.durable.max(end);
    }

    /// The power goes.
    pub fn lose_power(&self, random: &mut SmallRng) {
        let mut state = self.state();
        let durable = state.durable;
        for record in &mut state.records[durable..] {
            if random.random() {
                *record = None;
            }
        }
        state.count();
    }

    /// Its content.
    ///
    /// # Panics
    /// If what was written cannot be read.
    pub fn replay(&self) -> Replay {
        let mut replay = Replay::default();
        for record in self.state().records.iter().flatten() {
            replay.read(record).expect("a written record can be read");
        }
        replay
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }
}

impl State {
    fn count(&mut self) {
        self.bytes = self.records.iter().flatten().map(Bytes::len).sum();
    }

    fn find_room(&self, bytes: usize) -> Result<(), JournalError> {
        match self.bytes_max {
            Some(most) if self.bytes + bytes > most => {
                Err(JournalError::Full(Arc::new(std::io::Error::from(ErrorKind::StorageFull))))
            }
            _ => Ok(()),
        }
    }
}

impl Journal for Tape {
    fn ensure(&mut self, bytes: usize) -> Result<(), JournalError> {
        self.state().find_room(bytes + RESERVE_BYTES)
    }

    fn append(&mut self, head: &[u8], payload: &Payload) -> Result<Position, JournalError> {
        let mut state = self.state();
        let record = [head, &payload.to_contiguous()].concat();
        state.find_room(record.len()).inspect_err(|_| state.failures += 1)?;
        state.bytes += record.len();
        state.records.push(Some(record.into()));
        if !state.is_gated {
            state.durable = state.records.len();
        }
        Ok(Position(state.records.len() as u64 - 1))
    }

    fn end(&self) -> Position {
        Position(self.state().records.len() as u64)
    }

    fn durable(&self) -> Position {
        Position(self.state().durable as u64)
    }

    fn failure(&self) -> Option<JournalError> {
        None
    }

    fn is_gated(&self) -> bool {
        self.state().is_gated
    }

    fn release(&mut self, position: Position) -> Result<(), JournalError> {
        let mut state = self.state();
        state.records[..position.0 as usize].fill(None);
        state.count();
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.state().bytes as u64
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        let mut state = self.state();
        state.durable = state.records.len();
        Ok(())
    }
}

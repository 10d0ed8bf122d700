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
use tidegate_journal::{Journal, JournalError, Replay};
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
    /// Records before it, by number, were released.
    released: usize,
    durable: usize,
    is_gated: bool,
    bytes: usize,
    /// Bytes that it may hold with its reserve, if they are bounded: then a large record finds no room where a small one does.
    bytes_max: Option<usize>,
    /// Bytes that are held in reserve, and that are to be.
    reserve: usize,
    wanted: usize,
    may_use_reserve: bool,
    failures: u64,
}

/// Bytes that [`Journal::ensure`] leaves to records that are appended without it.
const SPARE_BYTES: usize = 1_000;

impl Tape {
    /// `is_gated` if records become durable only later.
    pub fn new(is_gated: bool) -> Self {
        let state = State {
            records: Vec::new(),
            released: 0,
            durable: 0,
            is_gated,
            bytes: 0,
            bytes_max: None,
            reserve: 0,
            wanted: 0,
            may_use_reserve: false,
            failures: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Has room for so many bytes more besides what is held in reserve, and then for none; for all that comes if that is none.
    pub fn limit(&self, bytes: Option<usize>) {
        let mut state = self.state();
        state.bytes_max = bytes.map(|bytes| state.bytes + state.reserve + bytes);
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
        state.bytes = state.records.iter().flatten().map(Bytes::len).sum();
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
    /// Bytes that are left besides the reserve.
    fn free(&self) -> usize {
        let most = self.bytes_max.unwrap_or(usize::MAX);
        most.saturating_sub(self.bytes + self.reserve)
    }

    fn find_room(&self, bytes: usize) -> Result<(), JournalError> {
        if bytes > self.free() {
            return Err(JournalError::Full(Arc::new(std::io::Error::from(ErrorKind::StorageFull))));
        }
        Ok(())
    }
}

impl Journal for Tape {
    fn ensure(&mut self, bytes: usize) -> Result<(), JournalError> {
        let mut state = self.state();
        let lacks = state.wanted.saturating_sub(state.reserve);
        state.find_room(lacks)?;
        state.reserve += lacks;
        state.find_room(bytes + SPARE_BYTES)
    }

    fn ensure_last(&mut self, bytes: usize) -> Result<(), JournalError> {
        let state = self.state();
        state.find_room(bytes.saturating_sub(state.reserve))
    }

    fn room(&mut self) -> u64 {
        self.state().reserve as u64
    }

    fn free(&mut self) -> u64 {
        self.state().free() as u64
    }

    fn use_reserve(&mut self, may: bool) {
        self.state().may_use_reserve = may;
    }

    fn want_reserve(&mut self, bytes: u64) {
        let mut state = self.state();
        state.wanted = bytes as usize;
        state.reserve = state.reserve.min(state.wanted);
    }

    fn append(&mut self, head: &[u8], payload: &Payload) -> Result<Position, JournalError> {
        let mut state = self.state();
        let record = [head, &payload.to_contiguous()].concat();
        if let Err(full) = state.find_room(record.len()) {
            let left = state.reserve.checked_sub(record.len()).filter(|_| state.may_use_reserve);
            let Some(left) = left else {
                state.failures += 1;
                return Err(full);
            };
            state.reserve = left;
        }
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
        let released = position.0 as usize;
        for at in std::mem::replace(&mut state.released, released)..released {
            let record = state.records[at].take();
            state.bytes -= record.map_or(0, |record| record.len());
        }
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

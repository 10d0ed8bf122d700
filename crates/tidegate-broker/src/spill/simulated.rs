//! A disk for waiting messages that is in memory, for simulations and tests: it answers when it is asked to, and fails on demand.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tidegate_message::Payload;

use super::{Answers, Place, Spill, SpillError, Wanted};

/// The disk.
#[derive(Debug, Default)]
pub struct SimulatedSpill {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<u64, Bytes>,
    next: u64,
    bytes: u64,
    writes: u64,
    bytes_max: u64,
    is_failing: bool,
    is_deaf: bool,
    /// Whether what is forgotten takes its room until that is no longer so.
    is_late: bool,
    late_bytes: u64,
    asked: VecDeque<(usize, Wanted)>,
}

impl SimulatedSpill {
    /// A disk of so many bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self { state: Mutex::new(State { bytes_max, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it takes and gives nothing from now on.
    pub fn set_failing(&self, is_failing: bool) {
        self.state().is_failing = is_failing;
    }

    /// Whether it answers nothing from now on; requests in the meantime are answered later.
    pub fn set_deaf(&self, is_deaf: bool) {
        self.state().is_deaf = is_deaf;
    }

    /// Whether messages that are forgotten take their room until this is called again: files give theirs back later than messages go.
    pub fn set_late(&self, is_late: bool) {
        let mut state = self.state();
        state.is_late = is_late;
        if !is_late {
            state.bytes -= std::mem::take(&mut state.late_bytes);
        }
    }

    /// How much it may take from now on.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.state().bytes_max = bytes_max;
    }

    /// Messages that were ever written.
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// The first request, its shard, and the answer.
    pub fn answer(&self) -> Option<(usize, Wanted, Answers)> {
        let mut state = self.state();
        if state.is_deaf {
            return None;
        }
        let (shard, wanted) = state.asked.pop_front()?;
        let answers = wanted.places().map(|place| state.read(place)).collect();
        Some((shard, wanted, answers))
    }
}

impl State {
    fn read(&self, place: Place) -> Result<Bytes, SpillError> {
        if self.is_failing {
            return Err(SpillError::of(io::Error::other("the simulated disk fails")));
        }
        Ok(self.records.get(&place.position).expect("the wanted record is there").clone())
    }
}

impl Spill for SimulatedSpill {
    fn write(&self, head: &[u8], payload: &Payload) -> Result<Place, SpillError> {
        let mut state = self.state();
        if state.is_failing {
            return Err(SpillError::of(io::ErrorKind::StorageFull.into()));
        }
        let record = Bytes::from([head, &payload.to_contiguous()].concat());
        let bytes = record.len() as u64;
        if state.bytes + bytes > state.bytes_max {
            return Err(SpillError::Bound { limit: state.bytes_max });
        }
        let position = state.next;
        state.next += 1;
        state.bytes += bytes;
        state.writes += 1;
        state.records.insert(position, record);
        Ok(Place { position, bytes: bytes as u32 })
    }

    fn forget(&self, place: Place) {
        let mut state = self.state();
        let record = state.records.remove(&place.position).expect("a place is given back once");
        let bytes = record.len() as u64;
        if state.is_late {
            state.late_bytes += bytes;
        } else {
            state.bytes -= bytes;
        }
    }

    fn read(&self, shard: usize, wanted: Wanted) {
        self.state().asked.push_back((shard, wanted));
    }

    fn read_now(&self, place: Place) -> Result<Bytes, SpillError> {
        self.state().read(place)
    }

    fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn bytes_max(&self) -> u64 {
        self.state().bytes_max
    }
}

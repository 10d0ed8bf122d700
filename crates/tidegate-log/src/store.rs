//! A storage that is memory, or files with a little memory for when the disk takes nothing.
//!
//! ```text
//!  create ── the disk takes it ──▶ file segment
//!     │  └── it is full, and older entries can make room ──▶ refused: the log drops its oldest and asks again
//!     └───── it fails, or was suspended ──▶ memory segment, of which few are kept
//! ```
//!
//! Live data outranks the disk: an entry that the disk does not take is kept in memory, for who reads along, and counted as not
//! stored. Each new segment asks the disk again. Entries that have to be on the disk are refused meanwhile, see
//! [`Storage::admit`].
//!
//! Always true: a file segment is given up only as the oldest of the log; memory in addition to the files
//! stays below [`ASIDE_BYTES_MAX`], or three segments if they are larger.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::Position;
use tidegate_sys::folder::Folder;

use crate::{
    disk::Disk,
    entry::{Durability, SegmentId, Slot},
    files::Files,
    memory::{Memory, MemorySegment},
    segment::FileSegment,
    storage::{
        Begin, Framing, Recovered, RecoveredSegment, Segment, SegmentInfo, Storage, StorageError,
        StoredSlots, Written,
    },
};

/// Memory that takes the place of a disk that takes nothing, in bytes.
pub const ASIDE_BYTES_MAX: usize = 64 << 20;
/// File segments that a log keeps although the disk has no room for more.
const KEPT_MIN: usize = 4;
/// Marks a memory segment: no file has such an id.
const ASIDE: u64 = 1 << 63;

/// Memory, or files with memory to fall back on.
pub struct Store<D: Disk = Folder> {
    files: Option<Files<D>>,
    memory: Memory,
    /// The file segments, oldest first.
    kept: VecDeque<SegmentId>,
    /// The memory segments that stand in for files, oldest first.
    aside: VecDeque<SegmentId>,
    aside_max: usize,
    /// Whether the segment that is being filled is one of those.
    is_aside: bool,
    health: Health,
}

impl<D: Disk> Store<D> {
    /// Outlives nothing.
    pub fn memory() -> Self {
        Self::new(None)
    }

    /// Outlives the process in `files`, as long as the disk takes it.
    pub fn files(files: Files<D>) -> Self {
        Self::new(Some(files))
    }

    fn new(files: Option<Files<D>>) -> Self {
        Self {
            files,
            memory: Memory::new(),
            kept: VecDeque::new(),
            aside: VecDeque::new(),
            aside_max: 0,
            is_aside: false,
            health: Health::default(),
        }
    }

    /// How its disk does, to be asked from anywhere.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Where a segment is, and what it is called there.
    fn place(&mut self, segment: SegmentId) -> (Place<'_, D>, SegmentId) {
        match &mut self.files {
            Some(files) if segment.0 & ASIDE == 0 => (Place::Files(files), segment),
            _ => (Place::Memory(&mut self.memory), SegmentId(segment.0 & !ASIDE)),
        }
    }

    /// A segment in memory because there is none in a file, and why that is.
    fn create_aside(
        &mut self,
        len: usize,
        begin: Begin,
        why: Option<StorageError>,
    ) -> Result<(SegmentId, StoreSegment), StorageError> {
        self.health.fail(why);
        self.aside_max = (ASIDE_BYTES_MAX / len.max(1)).max(3);
        let (id, segment) = self.memory.create(len, begin)?;
        let id = SegmentId(id.0 | ASIDE);
        self.aside.push_back(id);
        self.is_aside = true;
        Ok((id, StoreSegment::Memory(segment)))
    }
}

enum Place<'a, D: Disk> {
    Files(&'a mut Files<D>),
    Memory(&'a mut Memory),
}

/// Has either do what is said of `it`, with the name that the segment has there.
macro_rules! with {
    ($store:expr, $segment:expr, |$it:ident, $id:ident| $done:expr) => {{
        let (place, $id) = $store.place($segment);
        match place {
            Place::Files($it) => $done,
            Place::Memory($it) => $done,
        }
    }};
}

impl<D: Disk> Storage for Store<D> {
    type Segment = StoreSegment;

    fn framing(&self) -> Framing {
        // One for all segments: the part that a file needs stays empty in memory.
        self.files.as_ref().map_or(Framing::NONE, Files::framing)
    }

    fn recover(&mut self) -> Recovered<StoreSegment> {
        let Some(files) = &mut self.files else {
            return Recovered { segments: Vec::new(), next: Position(0), last: None };
        };
        let Recovered { segments, next, last } = files.recover();
        let kept = |found: RecoveredSegment<FileSegment>| RecoveredSegment {
            id: found.id,
            segment: StoreSegment::File(found.segment),
            first: found.first,
            count: found.count,
            bytes: found.bytes,
            end: found.end,
            times: found.times,
            slots: found.slots,
        };
        let segments: Vec<_> = segments.into_iter().map(kept).collect();
        self.kept = segments.iter().map(|segment| segment.id).collect();
        Recovered { segments, next, last }
    }

    fn create(
        &mut self,
        len: usize,
        begin: Begin,
    ) -> Result<(SegmentId, StoreSegment), StorageError> {
        let Some(files) = &mut self.files else {
            let (id, segment) = self.memory.create(len, begin)?;
            return Ok((id, StoreSegment::Memory(segment)));
        };
        if self.health.is_suspended() {
            return self.create_aside(len, begin, None);
        }
        match files.create(len, begin) {
            Ok((id, segment)) => {
                self.kept.push_back(id);
                self.is_aside = false;
                self.health.recover();
                Ok((id, StoreSegment::File(segment)))
            }
            Err(error @ StorageError::Full { .. }) if self.gives_way() => {
                self.health.shrink();
                Err(error)
            }
            Err(error) => self.create_aside(len, begin, Some(error)),
        }
    }

    fn gives_way(&self) -> bool {
        let Some(files) = &self.files else { return false };
        let oldest = self.kept.front().filter(|_| self.kept.len() > KEPT_MIN);
        oldest.is_some_and(|&oldest| files.bytes_removable(oldest) > 0)
    }

    fn surplus(&self) -> Option<SegmentId> {
        self.aside.front().filter(|_| self.aside.len() > self.aside_max).copied()
    }

    fn hands_newest(&self) -> bool {
        self.files.is_some()
    }

    fn write_at(
        &mut self,
        segment: SegmentId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), StorageError> {
        with!(self, segment, |it, id| it.write_at(id, offset, bytes))
    }

    fn buffer(
        &mut self,
        segment: SegmentId,
        range: Range<usize>,
    ) -> Result<&mut [u8], StorageError> {
        with!(self, segment, |it, id| it.buffer(id, range))
    }

    fn prepare(&mut self, segment: SegmentId, range: Range<usize>) {
        with!(self, segment, |it, id| it.prepare(id, range));
    }

    fn publish(&mut self, segment: SegmentId, entry: &Written) -> Result<(), StorageError> {
        with!(self, segment, |it, id| it.publish(id, entry))?;
        if self.is_aside {
            self.health.count(entry.slot.bytes() as u64);
        }
        Ok(())
    }

    fn is_broken(&self, segment: SegmentId) -> bool {
        match &self.files {
            Some(files) if segment.0 & ASIDE == 0 => {
                self.health.is_suspended() || files.is_broken(segment)
            }
            _ => false,
        }
    }

    fn seal(&mut self, segment: SegmentId) -> Result<(), StorageError> {
        with!(self, segment, |it, id| it.seal(id))
    }

    fn flush(&mut self, segment: SegmentId, range: Range<usize>) -> Result<usize, StorageError> {
        with!(self, segment, |it, id| it.flush(id, range))
    }

    fn is_stored(&self, segment: SegmentId) -> bool {
        self.files.as_ref().is_some_and(|files| files.is_stored(segment))
    }

    fn admit(&self, asked: Durability) -> Result<(), StorageError> {
        match &self.files {
            None => self.memory.admit(asked),
            Some(_) if self.is_aside && asked > Durability::Memory => {
                let cause = self.health.counts().failure;
                Err(StorageError::Aside { cause: cause.unwrap_or_else(|| Arc::new(slow())) })
            }
            Some(files) => files.admit(asked),
        }
    }

    fn request(&mut self, end: Position, bytes: u64) {
        if let Some(files) = self.files.as_mut().filter(|_| !self.is_aside) {
            files.request(end, bytes);
        }
    }

    fn list(&self) -> Result<Vec<SegmentInfo>, StorageError> {
        let Some(files) = &self.files else { return self.memory.list() };
        let aside = |info: SegmentInfo| SegmentInfo { id: SegmentId(info.id.0 | ASIDE), ..info };
        let mut all = files.list()?;
        all.extend(self.memory.list()?.into_iter().map(aside));
        Ok(all)
    }

    fn remove(&mut self, segment: SegmentId) -> Result<(), StorageError> {
        with!(self, segment, |it, id| it.remove(id))?;
        self.kept.retain(|&id| id != segment);
        self.aside.retain(|&id| id != segment);
        Ok(())
    }

    fn bytes_held(&mut self) -> u64 {
        self.files.as_mut().map_or(0, Files::bytes_held) + self.memory.bytes_held()
    }

    fn bytes_removable(&self, segment: SegmentId) -> u64 {
        match &self.files {
            Some(files) if segment.0 & ASIDE == 0 => files.bytes_removable(segment),
            _ => self.memory.bytes_removable(SegmentId(segment.0 & !ASIDE)),
        }
    }
}

/// The readers' end of a segment of a [`Store`].
#[derive(Clone)]
pub enum StoreSegment {
    /// In memory.
    Memory(MemorySegment),
    /// In a file.
    File(FileSegment),
}

impl Segment for StoreSegment {
    fn slice(&self, range: Range<usize>) -> Result<Bytes, StorageError> {
        match self {
            Self::Memory(segment) => segment.slice(range),
            Self::File(segment) => segment.slice(range),
        }
    }

    fn read(&self, position: Position, slot: &Slot) -> Result<Bytes, StorageError> {
        match self {
            Self::Memory(segment) => segment.read(position, slot),
            Self::File(segment) => segment.read(position, slot),
        }
    }

    fn slots(&self) -> StoredSlots {
        match self {
            Self::Memory(segment) => segment.slots(),
            Self::File(segment) => segment.slots(),
        }
    }
}

/// How the disk of a [`Store`] does: cheap to clone, used from any thread.
#[derive(Clone, Default)]
pub struct Health {
    shared: Arc<Mutex<HealthCounts>>,
}

/// Counts of a [`Store`].
#[derive(Clone, Debug, Default)]
pub struct HealthCounts {
    /// Why what is appended now is not stored; none if it is.
    pub failure: Option<Arc<StorageError>>,
    /// Times that the disk refused a new segment, or was suspended.
    pub failures: u64,
    /// Entries that were kept in memory only.
    pub not_stored: u64,
    /// Their bytes, meta and body.
    pub not_stored_bytes: u64,
    /// Segments that were dropped because the disk was full, before the log had reached its size.
    pub shrunk: u64,
    /// Whether nothing is to be given to the disk for now.
    pub is_suspended: bool,
}

impl Health {
    /// The counts.
    pub fn counts(&self) -> HealthCounts {
        self.state().clone()
    }

    /// Gives the disk nothing more until [`Health::resume`], because an append took so long.
    pub fn suspend(&self, took: Duration) {
        let mut state = self.state();
        state.is_suspended = true;
        state.failures += 1;
        state.failure = Some(Arc::new(StorageError::Slow { took }));
    }

    /// Gives the disk the next new segment again.
    pub fn resume(&self) {
        self.state().is_suspended = false;
    }

    fn is_suspended(&self) -> bool {
        self.state().is_suspended
    }

    fn fail(&self, why: Option<StorageError>) {
        if let Some(why) = why {
            let mut state = self.state();
            state.failures += 1;
            state.failure = Some(Arc::new(why));
        }
    }

    fn recover(&self) {
        self.state().failure = None;
    }

    fn shrink(&self) {
        self.state().shrunk += 1;
    }

    fn count(&self, bytes: u64) {
        let mut state = self.state();
        state.not_stored += 1;
        state.not_stored_bytes += bytes;
    }

    fn state(&self) -> MutexGuard<'_, HealthCounts> {
        // Plain values are whole at any time, even if a holder panicked.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slow() -> StorageError {
    StorageError::Slow { took: Duration::ZERO }
}

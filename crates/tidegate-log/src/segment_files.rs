//! The files of segments, by name and by state, as the storage in files, its flusher and recovery have them.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidegate_message::{Instant, Position};

use crate::{
    commit::Commits,
    disk::{Disk, DiskFile, DiskMap},
    entry::{SegmentId, Slot},
    format::Proof,
    segment::FileSegment,
    storage::StorageError,
};

/// Of files that hold room in reserve.
const RESERVE_SUFFIX: &str = ".reserve";

/// The map of a file of a disk.
pub(crate) type Map<D> = <<D as Disk>::File as DiskFile>::Map;

/// State that storage and flusher share.
pub(crate) struct Shared<D: Disk> {
    pub(crate) disk: D,
    pub(crate) commits: Commits,
    pub(crate) state: Mutex<State<D>>,
    /// Held while a thread syncs and seals, so that one does at a time.
    pub(crate) working: Mutex<()>,
    /// A new file for the next segment. Held while a thread makes one, so that another waits for it instead of making it,
    /// too.
    pub(crate) ready: Mutex<Option<Kept<D>>>,
    pub(crate) settle_after: Duration,
}

pub(crate) struct State<D: Disk> {
    /// The segment that was begun last, even if it is gone since: the next position follows from it.
    pub(crate) newest: Option<(SegmentId, Arc<D::File>)>,
    /// To be synced and sealed, oldest first.
    pub(crate) full: VecDeque<Full<D>>,
    /// The one of them that is being sealed, and its size.
    pub(crate) busy: Option<(SegmentId, u64)>,
    /// Sealed, or left as they are after a failure of the disk.
    pub(crate) kept: BTreeMap<SegmentId, (Kept<D>, IsStored)>,
    pub(crate) removed: Vec<Kept<D>>,
    /// The next segment and its size, if it will need a new file soon.
    pub(crate) wanted: Option<(SegmentId, u64)>,
    /// Names were changed since the folder was synced last.
    pub(crate) is_renamed: bool,
    /// The newest segment that is known to be on the disk.
    pub(crate) newest_synced: Option<SegmentId>,
}

/// Whether the slots of a segment can be read from its file.
type IsStored = bool;

/// The file of a segment that is not being filled.
pub(crate) struct Kept<D: Disk> {
    pub(crate) id: SegmentId,
    pub(crate) map: Map<D>,
    /// Closed once there is nothing to be synced: a log may have more segments than a process may have open files.
    pub(crate) file: Option<Arc<D::File>>,
    pub(crate) len: u64,
}

/// A segment to which nothing is added, and which is not sealed yet.
pub(crate) struct Full<D: Disk> {
    pub(crate) kept: Kept<D>,
    pub(crate) segment: FileSegment,
    pub(crate) proof: Proof,
    pub(crate) base: Position,
    /// Position after its last entry.
    pub(crate) next: Position,
    /// Offset after its last record.
    pub(crate) end: usize,
    pub(crate) slots: Slots,
    /// When the flusher saw it first.
    pub(crate) since: Option<Instant>,
}

/// Where the slots of a full segment are.
#[derive(PartialEq, Eq)]
pub(crate) enum Slots {
    /// To be had by going from record to record.
    InRecords,
    /// The slots that a scan has found.
    Found(Vec<Slot>),
    /// In the file.
    Stored,
    /// In the log's index only: the file has no room.
    Unfit,
}

impl<D: Disk> Shared<D> {
    pub(crate) fn ready(&self) -> MutexGuard<'_, Option<Kept<D>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what an earlier process left in its newest segment reach the disk, so that its older files can go. A failure is kept by
    /// the commits.
    pub(crate) fn sync_newest(&self, newest: SegmentId) {
        let synced = self.disk.open(&file_name(newest)).and_then(|file| file.sync());
        match synced.and_then(|()| self.disk.sync()) {
            Ok(()) => {
                let mut state = self.state();
                state.newest_synced = Some(newest);
                state.is_renamed = false;
            }
            Err(source) => drop(self.commits.fail(StorageError::Sync { source })),
        }
    }

    /// A new file for a segment.
    pub(crate) fn new_file(&self, id: SegmentId, len: u64) -> io::Result<Kept<D>> {
        let name = file_name(id);
        let file = self.disk.create(&name, len)?;
        match file.map() {
            Ok(map) => Ok(Kept { id, map, file: Some(Arc::new(file)), len }),
            Err(error) => {
                // The first error is the one to report; the file that is left has nothing in it, which the next start
                // sees.
                let _ = self.disk.remove(&name);
                Err(error)
            }
        }
    }

    /// A removed file without a reader, and that is not needed to know the next position, which segment `next` begins with.
    pub(crate) fn take_unused(
        &self,
        next: SegmentId,
        wanted: impl Fn(&Kept<D>) -> bool,
    ) -> Option<Kept<D>> {
        let mut state = self.state();
        let synced = state.newest_synced;
        // The one proves what was said to be durable, the other all that this process has appended.
        let is_needed = |id: SegmentId| Some(id) == synced || id.0 + 1 == next.0;
        // The oldest first: files left at the end of the process are then without a gap, where nothing forbids it.
        state.removed.sort_unstable_by_key(|kept| kept.id);
        let mut removed = state.removed.iter_mut();
        let found =
            removed.position(|kept| !is_needed(kept.id) && wanted(kept) && kept.map.reset())?;
        Some(state.removed.remove(found))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<D>> {
        // Every change of the state is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of the file of a segment.
pub(crate) fn file_name(id: SegmentId) -> String {
    format!("{:016x}.segment", id.0)
}

/// The name of a file that holds room in reserve.
pub(crate) fn reserve_name(number: u32) -> String {
    format!("{number:08}{RESERVE_SUFFIX}")
}

/// Whether a file of that name holds room in reserve: it has nothing to be read.
pub fn is_reserve(name: &str) -> bool {
    name.strip_suffix(RESERVE_SUFFIX)
        .is_some_and(|number| number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

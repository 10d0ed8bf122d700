//! Making what was appended durable, off the append path.

use std::sync::{Arc, PoisonError};

use tidegate_message::{Instant, Position};
use tidegate_sys::folder::Folder;

use crate::{
    disk::{Disk, DiskFile, DiskMap},
    entry::Slot,
    format::{DATA_START, RecordHead, SLOT_BYTES, Trailer, align, encode_slot, slots_start},
    segment_files::{Full, Shared, Slots},
    storage::StorageError,
};

/// Syncs what was asked to be durable, and takes care of full segments: their slots go to the file at once, so that memory need not
/// hold them; the file is synced and sealed when that is asked for, or after a while. A segment that wraps before was never synced
/// at all, and its pages have stayed dirty, mapped and without a fault.
///
/// It runs on a thread that its owner gives it, next to the writer and the readers, and ends when the storage is
/// dropped.
pub struct Flusher<D: Disk = Folder> {
    shared: Arc<Shared<D>>,
}

impl<D: Disk> Flusher<D> {
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Self {
        Self { shared }
    }

    /// Works until the storage is dropped or [stopped](crate::Commits::stop), then flushes a last time.
    ///
    /// `clock` is any clock that runs forward.
    pub fn run(mut self, clock: impl Fn() -> Instant) {
        let commits = self.shared.commits.clone();
        while !commits.is_stopped() {
            let wake_at = self.turn(&clock);
            commits.rest(wake_at.map(|at| at.since(clock())));
        }
        // Flushes without waiting: requested entries become durable now. A failure is kept by the commits.
        let _ = self.shared.flush(commits.wanted());
    }

    /// Does all that is due. Returns when it is to be called again, if nothing is asked of it before.
    pub fn turn(&mut self, clock: &impl Fn() -> Instant) -> Option<Instant> {
        let _working = self.shared.working.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock();
        while self.shared.store_next(now) {}
        // A failure is kept by the commits, and ends all syncing.
        while let Some(end) = self.shared.commits.poll_flush(clock()) {
            self.shared.sync_all().ok()?;
            self.shared.commits.handle_flushed(clock(), end);
        }
        self.shared.make_ready();
        loop {
            let settle_at = self.shared.settle_at();
            if settle_at.is_none_or(|at| at > now) {
                return [settle_at, self.shared.commits.poll_timeout()].into_iter().flatten().min();
            }
            self.shared.settle_next().ok()?;
        }
    }
}

impl<D: Disk> Drop for Flusher<D> {
    fn drop(&mut self) {
        self.shared.commits.end();
    }
}

impl<D: Disk> Shared<D> {
    /// Makes all durable that was appended, which is all before `appended`.
    pub(crate) fn flush(&self, appended: Position) -> Result<(), Arc<StorageError>> {
        let _working = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        self.sync_all()?;
        self.commits.advance(appended);
        Ok(())
    }

    /// Has the oldest full segment that does not keep its slots yet keep them. Returns whether there was one.
    fn store_next(&self, now: Instant) -> bool {
        let Some(mut full) = self.take(|full| full.slots != Slots::Stored) else {
            return false;
        };
        store(&mut full);
        full.since.get_or_insert(now);
        let mut state = self.state();
        match state.busy.take() {
            Some((id, _)) => {
                let number = state.full.partition_point(|other| other.kept.id < id);
                state.full.insert(number, full);
            }
            // It was removed meanwhile.
            None => state.removed.push(full.kept),
        }
        true
    }

    /// Makes a file for the next segment, pages and all, if one was asked for.
    fn make_ready(&self) {
        let Some((id, len)) = self.state().wanted.take() else { return };
        let mut ready = self.ready();
        // The writer may have begun it long ago, and its name be free again.
        if self.state().newest.as_ref().is_some_and(|(newest, _)| *newest >= id) {
            return;
        }
        // A full disk is the writer's to meet, if it comes to need the file; and it may have begun the segment meanwhile.
        let Ok(kept) = self.new_file(id, len) else { return };
        if let Ok(len) = usize::try_from(len) {
            // Where the kernel refuses, the writes fault.
            let _ = kept.map.region().populate(0..len);
        }
        *ready = Some(kept);
    }

    /// When the oldest full segment is to be synced, unless that is requested earlier.
    fn settle_at(&self) -> Option<Instant> {
        let state = self.state();
        let since = state.full.front()?.since?;
        self.commits.failure().is_none().then(|| since + self.settle_after)
    }

    /// Syncs the oldest full segment and seals it. Returns whether there was one.
    fn settle_next(&self) -> Result<bool, Arc<StorageError>> {
        if let Some(failure) = self.commits.failure() {
            return Err(failure);
        }
        let Some(mut full) = self.take(|_| true) else { return Ok(false) };
        store(&mut full);
        let is_renamed = std::mem::take(&mut self.state().is_renamed);
        let synced = match full.kept.file.take() {
            Some(file) => self.sync(&file, is_renamed),
            None => Ok(()),
        };
        if synced.is_ok() {
            seal(&mut full);
        }
        let (id, next, is_stored) = (full.kept.id, full.next, full.slots == Slots::Stored);
        let mut state = self.state();
        if synced.is_ok() {
            state.newest_synced = state.newest_synced.max(Some(id));
        }
        // If it was removed meanwhile, the mark is gone.
        match state.busy.take() {
            Some(_) => drop(state.kept.insert(id, (full.kept, is_stored))),
            None => state.removed.push(full.kept),
        }
        drop(state);
        synced?;
        self.commits.advance(next);
        Ok(true)
    }

    /// Takes the oldest full segment of that kind to work on.
    fn take(&self, wanted: impl Fn(&Full<D>) -> bool) -> Option<Full<D>> {
        let mut state = self.state();
        let number = state.full.iter().position(wanted)?;
        let full = state.full.remove(number)?;
        state.busy = Some((full.kept.id, full.kept.len));
        Some(full)
    }

    /// Syncs all files that anything was appended to since they were synced.
    fn sync_all(&self) -> Result<(), Arc<StorageError>> {
        loop {
            while self.settle_next()? {}
            let mut state = self.state();
            if !state.full.is_empty() {
                // The writer has just begun another one, which must not be synced before it.
                continue;
            }
            let newest = state.newest.clone();
            let is_renamed = std::mem::take(&mut state.is_renamed);
            drop(state);
            let Some((id, file)) = newest else { return Ok(()) };
            self.sync(&file, is_renamed)?;
            let mut state = self.state();
            state.newest_synced = state.newest_synced.max(Some(id));
            return Ok(());
        }
    }

    fn sync(&self, file: &D::File, is_renamed: bool) -> Result<(), Arc<StorageError>> {
        if let Some(failure) = self.commits.failure() {
            return Err(failure);
        }
        let names = || if is_renamed { self.disk.sync() } else { Ok(()) };
        let synced = file.sync().and_then(|()| names());
        synced.map_err(|source| self.commits.fail(StorageError::Sync { source }))
    }
}

/// Writes the slots of a segment to its file, if they fit, so that memory need not hold them.
fn store<D: Disk>(full: &mut Full<D>) {
    let slots = match std::mem::replace(&mut full.slots, Slots::Unfit) {
        Slots::Stored => {
            full.slots = Slots::Stored;
            return;
        }
        Slots::Unfit => return,
        Slots::Found(slots) => slots,
        Slots::InRecords => walk(full),
    };
    let (Some(first), Some(last)) = (slots.first(), slots.last()) else { return };
    let len = usize::try_from(full.kept.len).unwrap_or(usize::MAX);
    let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    let start = slots_start(len, count, full.proof.tail_bytes());
    let Some(start) = start.filter(|&start| start >= full.end) else { return };
    let map = &mut full.kept.map;
    let slots_end = start + slots.len() * SLOT_BYTES;
    let Ok(room) = map.buffer(start..slots_end) else { return };
    for (room, slot) in room.chunks_exact_mut(SLOT_BYTES).zip(&slots) {
        room.copy_from_slice(&encode_slot(slot));
    }
    let trailer = Trailer {
        segment: full.kept.id,
        base: full.base,
        count,
        end: u32::try_from(full.end).expect("a segment is below 4 GiB"),
        first_at: first.at,
        last_at: last.at,
        bytes: slots.iter().map(|slot| slot.bytes() as u64).sum(),
        slots_crc: crc32c::crc32c_append(full.proof.seed, room),
    };
    let mac = full.proof.slots_mac(room);
    let mac = mac.as_ref().map_or(&[][..], |mac| mac);
    if map.write(slots_end, mac).is_ok()
        && map.publish(slots_end + mac.len()).is_ok()
        && !map.is_damaged()
    {
        full.segment.store(trailer, start);
        full.slots = Slots::Stored;
    }
}

/// Writes the trailer of a segment that was synced, if its slots fitted.
fn seal<D: Disk>(full: &mut Full<D>) {
    let Some(trailer) = full.segment.trailer() else { return };
    let map = &mut full.kept.map;
    // It is only for the next start, which scans what has none.
    let _ = map.write(map.published(), &full.proof.end(trailer));
}

/// The slots of a segment that this process has filled, from its records.
fn walk<D: Disk>(full: &Full<D>) -> Vec<Slot> {
    let bytes = full.kept.map.region().slice(0..full.end).unwrap_or_default();
    let count = full.next.0.saturating_sub(full.base.0);
    let mut slots = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    let mut offset = DATA_START;
    while let Some(head) = bytes.get(offset..).and_then(|bytes| full.proof.head(bytes)) {
        let Ok(start) = u32::try_from(offset + full.proof.head_bytes()) else { break };
        let RecordHead { at, meta_bytes, body_bytes, .. } = head;
        let slot = Slot { at, start, meta_bytes, body_bytes };
        offset = align(slot.end());
        slots.push(slot);
    }
    slots
}

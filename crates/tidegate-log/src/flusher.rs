//! Making what was appended durable, off the append path.

use std::sync::{Arc, PoisonError};

use tidegate_message::{Instant, Position};
use tidegate_sys::folder::Folder;

use crate::{
    disk::{Disk, DiskFile, DiskMap},
    files::{Full, Kept, Shared},
    format::{
        DATA_START, RECORD_HEAD_BYTES, RecordHead, SLOT_BYTES, Trailer, align, encode_slot,
        slots_start,
    },
    index::Slot,
    storage::StorageError,
};

/// Syncs what was asked to be durable, and seals full segments.
///
/// It runs on a thread that its owner gives it, beside the writer and the readers, and ends when the storage is dropped.
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
        // Waits for nobody: what was asked for becomes durable now. A failure is kept by the commits.
        let _ = self.shared.flush(commits.wanted());
    }

    /// Does all that is due. Returns when it is to be called again, if nothing is asked of it before.
    pub fn turn(&mut self, clock: &impl Fn() -> Instant) -> Option<Instant> {
        let _working = self.shared.working.lock().unwrap_or_else(PoisonError::into_inner);
        // A failure is kept by the commits, and ends all work.
        while let Ok(true) = self.shared.seal_next() {}
        while let Some(end) = self.shared.commits.poll_flush(clock()) {
            if self.shared.sync_all().is_err() {
                return None;
            }
            self.shared.commits.handle_flushed(clock(), end);
        }
        self.shared.commits.poll_timeout()
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
        while self.seal_next()? {}
        self.sync_all()?;
        self.commits.advance(appended);
        Ok(())
    }

    /// Syncs and seals the oldest full segment. Returns whether there was one.
    fn seal_next(&self) -> Result<bool, Arc<StorageError>> {
        if let Some(failure) = self.commits.failure() {
            return Err(failure);
        }
        let mut state = self.state();
        let Some(mut full) = state.full.pop_front() else { return Ok(false) };
        state.busy = Some((full.kept.id, full.kept.len));
        let is_renamed = std::mem::take(&mut state.is_renamed);
        drop(state);
        let synced = self.sync(std::iter::once(&full.kept.file), is_renamed);
        let is_sealed = synced.is_ok() && seal(&mut full);
        let next = full.next;
        self.put_back(full.kept, is_sealed, synced.is_ok());
        synced?;
        self.commits.advance(next);
        Ok(true)
    }

    fn put_back(&self, kept: Kept<D>, is_sealed: bool, is_synced: bool) {
        let mut state = self.state();
        if is_synced {
            state.newest_synced = state.newest_synced.max(Some(kept.id));
        }
        // Whoever removed it meanwhile has taken the mark.
        match state.busy.take() {
            Some(_) => drop(state.kept.insert(kept.id, (kept, is_sealed))),
            None => state.removed.push(kept),
        }
    }

    /// Syncs all files that anything was appended to since they were synced.
    fn sync_all(&self) -> Result<(), Arc<StorageError>> {
        let mut state = self.state();
        let newest = state.newest.clone();
        let full = state.full.iter().map(|full| Arc::clone(&full.kept.file));
        let files: Vec<_> = full.chain(newest.iter().map(|(_, file)| Arc::clone(file))).collect();
        let is_renamed = std::mem::take(&mut state.is_renamed);
        drop(state);
        self.sync(files.iter(), is_renamed)?;
        let mut state = self.state();
        state.newest_synced = state.newest_synced.max(newest.map(|(id, _)| id));
        Ok(())
    }

    fn sync<'a>(
        &self,
        mut files: impl Iterator<Item = &'a Arc<D::File>>,
        is_renamed: bool,
    ) -> Result<(), Arc<StorageError>> {
        if let Some(failure) = self.commits.failure() {
            return Err(failure);
        }
        let names = || if is_renamed { self.disk.sync() } else { Ok(()) };
        files
            .try_for_each(|file| file.sync())
            .and_then(|()| names())
            .map_err(|source| self.commits.fail(StorageError::Sync { source }))
    }
}

/// Writes slots and trailer of a segment that was synced. Returns whether they fit.
fn seal<D: Disk>(full: &mut Full<D>) -> bool {
    let slots = full.slots.take().unwrap_or_else(|| walk(full));
    let (Some(first), Some(last)) = (slots.first(), slots.last()) else { return false };
    let len = usize::try_from(full.kept.len).unwrap_or(usize::MAX);
    let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    let Some(start) = slots_start(len, count).filter(|&start| start >= full.end) else {
        return false;
    };
    let map = &mut full.kept.map;
    let slots_end = start + slots.len() * SLOT_BYTES;
    let Ok(room) = map.buffer(start..slots_end) else { return false };
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
        slots_crc: crc32c::crc32c_append(full.seed, room),
    };
    let written =
        map.write(slots_end, &trailer.encode(full.seed)).is_ok() && map.publish(len).is_ok();
    if written && !map.is_damaged() {
        full.segment.seal(trailer);
        return true;
    }
    false
}

/// The slots of a segment that this process has filled, from its records.
fn walk<D: Disk>(full: &Full<D>) -> Vec<Slot> {
    let bytes = full.kept.map.region().slice(0..full.end).unwrap_or_default();
    let count = full.next.0.saturating_sub(full.base.0);
    let mut slots = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    let mut offset = DATA_START;
    while let Some(head) = bytes.get(offset..).and_then(RecordHead::decode) {
        let Ok(start) = u32::try_from(offset + RECORD_HEAD_BYTES) else { break };
        let RecordHead { at, meta_bytes, body_bytes, .. } = head;
        let slot = Slot { at, start, meta_bytes, body_bytes };
        offset = align(slot.end());
        slots.push(slot);
    }
    slots
}

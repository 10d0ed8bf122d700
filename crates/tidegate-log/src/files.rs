//! Segments in mapped files, which outlive the process and, once flushed, the loss of power.
//!
//! ```text
//!            append (stores to the map)              flusher, on a thread of its own
//!  LogWriter ───────────────▶ filling ──full──▶ full ── slots ─┬─ sync, trailer ──▶ sealed ──removed──▶ unused
//!                                ▲                             └────────────────────removed─────────────▶ │
//!                                └────────────── renamed, header written again ◀───────────────────────────┘
//! ```
//!
//! **The cost of one append.** Meta and body are copied to the map once and read once for the checksum, a head of 32 bytes
//! goes before them; no system call. Against a write per message that saves the call; a page that is new to the page cache
//! costs a fault all the same, so once the log has wrapped, segments are used again, pages, blocks and all.
//!
//! **Durability.** A store to a shared map is in the kernel's page cache: it survives the end of the process, however that ends
//! (`page`). The kernel writes pages back in any order, so nothing is said of a loss of power before the flusher has synced the
//! file and, for a new name, the folder (`disk`). A segment is synced before its trailer is written: a trailer proves that all of
//! its records were.
//!
//! **No position that was said to be durable is given twice.** The newest segment on the disk knows the next one, by its records or
//! its header's base. So its file is neither used again nor removed before a later one is on the disk; the newest that a process
//! finds is synced first of all.
//!
//! Always true: every file is in one state of the picture; a record counts only with its head, which is stored last; an error of
//! the disk while syncing stays, see [`commit`](crate::Commits).

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex},
};

use tidegate_message::{Instant, Position};
use tidegate_sys::{folder::Folder, region::RegionError};

use crate::{
    commit::{CommitConfig, Commits},
    disk::{Disk, DiskFile, DiskMap},
    entry::{Durability, SegmentId, Slot},
    flusher::Flusher,
    format::{
        DATA_START, Header, Proof, RECORD_ALIGN, RecordHead, SLOT_BYTES, WRAPS, align, head_bytes,
        seed, tail_bytes,
    },
    recovery::{OpenError, Report, Zeros, recover},
    seal::{NodeKeys, Sealer},
    segment::FileSegment,
    segment_files::{Full, Kept, Shared, Slots, State, file_name, reserve_name},
    storage::{Begin, Framing, Recovered, SegmentInfo, Storage, StorageError, Written},
};

/// A storage in the files of a folder.
pub struct Files<D: Disk = Folder> {
    shared: Arc<Shared<D>>,
    config: FilesConfig,
    filling: Option<Filling<D>>,
    next_id: u64,
    reserve: Reserve,
    /// Entries before it were appended.
    appended: Position,
    recovered: Option<Recovered<FileSegment>>,
    /// An entry of a sealed segment until it is sealed; its first byte is the first that is not published.
    staged: Vec<u8>,
}

/// The configuration of a storage in files.
#[derive(Clone, Debug)]
pub struct FilesConfig {
    /// Which log this is: a hash of its name, say. Segments of another log in the folder are left alone.
    pub log_id: u64,
    /// When it was opened, by the wall clock; new segments carry it for who looks into them.
    pub opened: Instant,
    /// How flushes are grouped.
    pub commit: CommitConfig,
    /// Seals every segment, so that nothing of an entry but its position, time and lengths is ever on the disk in clear text.
    /// `None` writes clear text.
    pub keys: Option<NodeKeys>,
}

/// A storage in files, and what belongs to it.
pub struct Opened<D: Disk = Folder> {
    /// The storage, for [`Log::open`](crate::Log::open).
    pub files: Files<D>,
    /// The flusher that makes it durable: to be [run](Flusher::run) on a thread of its own.
    pub flusher: Flusher<D>,
    /// Tells what is durable.
    pub commits: Commits,
    /// The report on the files found.
    pub report: Report,
}

struct Filling<D: Disk> {
    kept: Kept<D>,
    segment: FileSegment,
    proof: Proof,
    /// `None` writes clear text.
    sealer: Option<Sealer>,
    base: Position,
    /// Whether the log still takes new files, and the next one was not asked for yet.
    grows: bool,
}

/// Files that hold room on the disk for when it is full.
#[derive(Clone, Copy, Default)]
struct Reserve {
    /// How many there are, numbered from 0.
    count: u32,
    /// Bytes of each.
    len: u64,
}

impl<D: Disk> Files<D> {
    /// Opens the log in the folder `disk`, which may be empty.
    ///
    /// Takes time by the number of segments; only those that were not sealed are read.
    ///
    /// # Errors
    /// The folder cannot be read, or a later version of this program wrote to it. Damage of files is no error, but reported.
    pub fn open(disk: D, config: FilesConfig) -> Result<Opened<D>, OpenError> {
        Self::open_with(disk, config, Zeros::OneIsReady)
    }

    pub(crate) fn open_with(
        disk: D,
        config: FilesConfig,
        zeros: Zeros,
    ) -> Result<Opened<D>, OpenError> {
        let found = recover(&disk, config.log_id, config.keys.as_ref(), zeros)?;
        let next = found.recovered.next;
        let first_unsealed = found.full.first().map_or(next, |full| full.base);
        let commits = Commits::new(config.commit.clone(), first_unsealed);
        let state = State {
            newest: None,
            newest_synced: None,
            full: found.full.into(),
            busy: None,
            kept: found.sealed.into_iter().map(|(id, kept)| (id, (kept, true))).collect(),
            removed: found.unused,
            wanted: None,
            is_renamed: true,
        };
        let newest = found.newest;
        if !state.full.is_empty() {
            commits.wake();
        }
        let shared = Arc::new(Shared {
            disk,
            commits: commits.clone(),
            state: Mutex::new(state),
            working: Mutex::default(),
            ready: Mutex::new(None),
            settle_after: config.commit.settle_after,
        });
        if let Some(newest) = newest {
            shared.sync_newest(newest);
        }
        let files = Self {
            shared: Arc::clone(&shared),
            config,
            filling: None,
            next_id: found.next_id,
            reserve: Reserve::default(),
            appended: next,
            recovered: Some(found.recovered),
            staged: Vec::new(),
        };
        let flusher = Flusher::new(shared);
        Ok(Opened { files, flusher, commits, report: found.report })
    }

    fn filling(
        &mut self,
        segment: SegmentId,
        operation: &'static str,
    ) -> Result<&mut Filling<D>, StorageError> {
        let filling = self.filling.as_mut().filter(|filling| filling.kept.id == segment);
        filling.ok_or(StorageError::Missing { segment, operation })
    }

    /// A file for the next segment: the one that was made ready, one that is not used any more, or a new one; and whether the log
    /// grows by it.
    fn take_file(&mut self, id: SegmentId, len: u64) -> io::Result<(Kept<D>, bool)> {
        let mut ready = self.shared.ready();
        let disk = &self.shared.disk;
        let name = file_name(id);
        if let Some(kept) = ready.take_if(|ready| ready.id == id) {
            if kept.len == len {
                // The log has just wrapped if there is something to be used again.
                return Ok((kept, self.shared.state().removed.is_empty()));
            }
            drop(kept);
            disk.remove(&name)?;
        }
        // One that could only be read keeps what is written to itself.
        let is_fit = |kept: &Kept<D>| kept.len == len && !kept.map.is_private();
        let Some(mut kept) = self.shared.take_unused(id, is_fit) else {
            return Ok((self.shared.new_file(id, len)?, true));
        };
        if let Err(error) = disk.rename(&file_name(kept.id), &name) {
            self.shared.state().removed.push(kept);
            return Err(error);
        }
        kept.id = id;
        match disk.open(&name) {
            Ok(file) => Ok((Kept { file: Some(Arc::new(file)), ..kept }, false)),
            Err(error) => {
                self.shared.state().removed.push(kept);
                Err(error)
            }
        }
    }

    /// Has so many files of `len` bytes hold room on the disk for [`Storage::create_reserved`].
    ///
    /// # Errors
    /// The disk has no room for all of them, or failed.
    pub(crate) fn hold_in_reserve(&mut self, count: u32, len: u64) -> Result<(), StorageError> {
        if self.reserve.len != len {
            self.drop_reserve(0);
            self.reserve.len = len;
        }
        self.drop_reserve(count);
        while self.reserve.count < count {
            let name = reserve_name(self.reserve.count);
            let file = self.with_room(|files| files.shared.disk.create(&name, len).map(drop));
            file.map_err(|source| not_created(len as usize, source))?;
            self.reserve.count += 1;
        }
        Ok(())
    }

    /// Does what needs room on the disk; where that is full, files that are kept to be used again go first.
    pub(crate) fn with_room<T>(
        &mut self,
        work: impl Fn(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        match work(self) {
            Err(error) if is_full(&error) => {
                self.tidy(0);
                // Removed files are free at the latest once their removal is on the disk.
                if !std::mem::take(&mut self.shared.state().is_renamed) {
                    return Err(error);
                }
                if self.shared.disk.sync().is_err() {
                    // The next call that makes entries durable meets it, too.
                    self.shared.state().is_renamed = true;
                    return Err(error);
                }
                work(self)
            }
            done => done,
        }
    }

    /// Removes files that are kept to be used again, and the one that was made for the next segment.
    pub(crate) fn give_way(&mut self) {
        self.tidy(0);
        let mut ready = self.shared.ready();
        if let Some(kept) = ready.take() {
            let name = file_name(kept.id);
            match self.shared.disk.remove(&name) {
                Ok(()) => self.shared.state().is_renamed = true,
                // Then it is for the next segment, still.
                Err(_) => *ready = Some(kept),
            }
        }
    }

    /// Bytes that the disk has left, those of files that are kept to be used again included.
    pub(crate) fn free(&self) -> io::Result<u64> {
        let kept: u64 = self.shared.state().removed.iter().map(|kept| kept.len).sum();
        let ready = self.shared.ready().as_ref().map_or(0, |kept| kept.len);
        Ok(self.shared.disk.free()?.saturating_add(kept + ready))
    }

    /// Bytes that are held in reserve.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        u64::from(self.reserve.count) * self.reserve.len
    }

    /// Removes what is held in reserve but for so many files.
    pub(crate) fn drop_reserve(&mut self, count: u32) {
        while self.reserve.count > count {
            if self.shared.disk.remove(&reserve_name(self.reserve.count - 1)).is_err() {
                return;
            }
            self.reserve.count -= 1;
        }
    }

    /// The file of a segment, out of the reserve.
    fn take_reserved(&mut self, id: SegmentId) -> io::Result<Kept<D>> {
        let Reserve { count, len } = self.reserve;
        let name = file_name(id);
        let disk = &self.shared.disk;
        disk.rename(&reserve_name(count - 1), &name)?;
        self.reserve.count -= 1;
        let file = disk.open(&name)?;
        let map = file.map()?;
        Ok(Kept { id, map, file: Some(Arc::new(file)), len })
    }

    /// Begins a segment in a file.
    fn begin(
        &mut self,
        mut kept: Kept<D>,
        begin: Begin,
        grows: bool,
    ) -> Result<(SegmentId, FileSegment), StorageError> {
        let id = kept.id;
        let header = Header {
            len: u32::try_from(kept.len).expect("a segment is below 4 GiB"),
            log_id: self.config.log_id,
            segment: id,
            base: begin.position,
            before: begin.last,
            created: self.config.opened,
            kept: begin.kept,
            is_sealed: self.config.keys.is_some(),
        }
        .encode();
        kept.map.write(0, &header).map_err(|error| refused(id, "write", error))?;
        let seed = seed(self.config.log_id, id);
        let sealer = match &self.config.keys {
            Some(keys) => {
                let no_key =
                    |source| StorageError::Segment { segment: id, operation: "seal", source };
                let (sealer, key) = Sealer::generate().map_err(no_key)?;
                let wrap = keys.rewrap(&key, &header, seed).map_err(no_key)?;
                for offset in WRAPS {
                    kept.map.write(offset, &wrap).map_err(|error| refused(id, "write", error))?;
                }
                Some(sealer)
            }
            None => None,
        };
        let proof = match &sealer {
            Some(sealer) => Proof::sealed(seed, sealer.key()),
            None => Proof::clear(seed),
        };
        let segment = FileSegment::filling(id, kept.map.region(), proof.clone());
        let mut state = self.shared.state();
        state.newest = kept.file.clone().map(|file| (id, file));
        state.is_renamed = true;
        drop(state);
        let base = begin.position;
        let filling = Filling { kept, segment: segment.clone(), proof, sealer, base, grows };
        self.filling = Some(filling);
        self.next_id += 1;
        self.tidy(1);
        Ok((id, segment))
    }

    /// Removes files that are not needed, the `spare` newest aside.
    fn tidy(&mut self, spare: usize) {
        while self.shared.state().removed.len() > spare {
            let next = SegmentId(self.next_id);
            let Some(kept) = self.shared.take_unused(next, |_| true) else { return };
            if self.shared.disk.remove(&file_name(kept.id)).is_err() {
                self.shared.state().removed.push(kept);
                return;
            }
            self.shared.state().is_renamed = true;
        }
    }
}

impl<D: Disk> Storage for Files<D> {
    type Segment = FileSegment;

    fn framing(&self) -> Framing {
        Framing {
            segment_head: DATA_START,
            segment_tail: tail_bytes(self.config.keys.is_some()),
            entry_head: head_bytes(self.config.keys.is_some()),
            entry_slot: SLOT_BYTES,
            entry_align: RECORD_ALIGN,
        }
    }

    fn recover(&mut self) -> Recovered<FileSegment> {
        let none = Recovered { segments: Vec::new(), next: self.appended, last: None };
        self.recovered.take().unwrap_or(none)
    }

    fn create(
        &mut self,
        len: usize,
        begin: Begin,
    ) -> Result<(SegmentId, FileSegment), StorageError> {
        let id = SegmentId(self.next_id);
        let taken = self.with_room(|files| files.take_file(id, len as u64));
        let (kept, grows) = taken.map_err(|source| not_created(len, source))?;
        self.begin(kept, begin, grows)
    }

    fn secure(&mut self, len: usize) -> Result<(), StorageError> {
        let id = SegmentId(self.next_id);
        let taken = self.with_room(|files| files.take_file(id, len as u64));
        let (kept, _) = taken.map_err(|source| not_created(len, source))?;
        *self.shared.ready() = Some(kept);
        Ok(())
    }

    fn create_reserved(
        &mut self,
        begin: Begin,
    ) -> Result<Option<(SegmentId, FileSegment, usize)>, StorageError> {
        if self.reserve.count == 0 {
            return Ok(None);
        }
        let len = self.reserve.len as usize;
        let kept = self.take_reserved(SegmentId(self.next_id));
        let kept = kept.map_err(|source| not_created(len, source))?;
        let (id, segment) = self.begin(kept, begin, false)?;
        Ok(Some((id, segment, len)))
    }

    fn write_at(
        &mut self,
        segment: SegmentId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), StorageError> {
        let filling = self.filling(segment, "write")?;
        if filling.sealer.is_none() {
            let written = filling.kept.map.write(offset, bytes);
            return written.map_err(|error| refused(segment, "write", error));
        }
        let range = offset..offset.saturating_add(bytes.len());
        self.buffer(segment, range)?.copy_from_slice(bytes);
        Ok(())
    }

    fn buffer(
        &mut self,
        segment: SegmentId,
        range: Range<usize>,
    ) -> Result<&mut [u8], StorageError> {
        let filling = self.filling.as_mut().filter(|filling| filling.kept.id == segment);
        let filling = filling.ok_or(StorageError::Missing { segment, operation: "write" })?;
        let from = filling.kept.map.published();
        let room = filling.kept.map.buffer(range.clone());
        let room = room.map_err(|error| refused(segment, "write", error))?;
        if filling.sealer.is_none() {
            return Ok(room);
        }
        // The kernel writes pages of the map back whenever it likes, so clear text never gets there.
        Ok(staged(&mut self.staged, range.start - from..range.end - from))
    }

    fn prepare(&mut self, segment: SegmentId, range: Range<usize>) {
        let Ok(filling) = self.filling(segment, "prepare") else { return };
        // Where the kernel refuses, the write faults.
        let _ = filling.kept.map.region().populate(range);
    }

    fn publish(&mut self, segment: SegmentId, entry: &Written) -> Result<(), StorageError> {
        let Written { position, slot } = *entry;
        let filling = self.filling.as_mut().filter(|filling| filling.kept.id == segment);
        let filling = filling.ok_or(StorageError::Missing { segment, operation: "publish" })?;
        let map = &mut filling.kept.map;
        let refused = |error| refused(segment, "publish", error);
        let Slot { at, start, meta_bytes, body_bytes } = slot;
        let start = start as usize;
        let head = RecordHead { meta_bytes, body_bytes, position, at };
        let seed = filling.proof.seed;
        let head = match &mut filling.sealer {
            Some(sealer) => {
                let from = map.published();
                let content = staged(&mut self.staged, start - from..slot.end() - from);
                let seal = sealer.seal(&head.authenticated(true), content);
                map.write(start, content).map_err(refused)?;
                map.write(start - seal.len(), &seal).map_err(refused)?;
                head.encode(seed, Some(&seal), content)
            }
            None => head.encode(seed, None, map.buffer(start..slot.end()).map_err(refused)?),
        };
        let head_at = start - filling.proof.head_bytes();
        map.write(head_at, &head).map_err(refused)?;
        if map.is_damaged() {
            // If it was not this part that broke, the record must not be found here: its position is given again.
            map.write(head_at, &vec![0; head.len()]).map_err(refused)?;
            let source = io::Error::other(
                "part of the file is out of reach: it was cut, or its disk failed",
            );
            return Err(StorageError::Segment { segment, operation: "write", source });
        }
        let end = align(slot.end());
        map.publish(end).map_err(refused)?;
        let len = filling.kept.len;
        if end as u64 > len / 2 && std::mem::take(&mut filling.grows) {
            self.shared.state().wanted = Some((SegmentId(self.next_id), len));
            self.shared.commits.wake();
        }
        self.appended = position.next();
        Ok(())
    }

    fn is_broken(&self, segment: SegmentId) -> bool {
        let filling = self.filling.as_ref().filter(|filling| filling.kept.id == segment);
        filling.is_some_and(|filling| filling.kept.map.is_damaged())
    }

    fn seal(&mut self, segment: SegmentId) -> Result<(), StorageError> {
        self.filling(segment, "seal")?;
        let Some(filling) = self.filling.take() else { return Ok(()) };
        let end = filling.kept.map.published();
        let full = Full {
            kept: filling.kept,
            segment: filling.segment,
            proof: filling.proof,
            base: filling.base,
            next: self.appended,
            end,
            slots: Slots::InRecords,
            since: None,
        };
        let mut state = self.shared.state();
        state.full.push_back(full);
        drop(state);
        self.shared.commits.wake();
        Ok(())
    }

    fn flush(&mut self, segment: SegmentId, range: Range<usize>) -> Result<usize, StorageError> {
        let is_synced = matches!(self.shared.state().kept.get(&segment), Some((_, true)));
        if !is_synced {
            self.shared.flush(self.appended).map_err(|first| StorageError::NotDurable { first })?;
        }
        Ok(range.end)
    }

    fn is_stored(&self, segment: SegmentId) -> bool {
        let state = self.shared.state();
        match state.kept.get(&segment) {
            Some(&(_, is_stored)) => is_stored,
            None => {
                state.full.iter().any(|full| full.kept.id == segment && full.slots == Slots::Stored)
            }
        }
    }

    fn admit(&self, asked: Durability) -> Result<(), StorageError> {
        match self.shared.commits.failure() {
            Some(first) if asked == Durability::Disk => Err(StorageError::NotDurable { first }),
            _ => Ok(()),
        }
    }

    fn request(&mut self, end: Position, bytes: u64) {
        self.shared.commits.request(end, bytes);
    }

    fn list(&self) -> Result<Vec<SegmentInfo>, StorageError> {
        let state = self.shared.state();
        let info = |kept: &Kept<D>| SegmentInfo {
            id: kept.id,
            len: usize::try_from(kept.len).unwrap_or(usize::MAX),
            published: kept.map.published(),
        };
        let kept = state.kept.values().map(|(kept, _)| info(kept));
        let full = state.full.iter().map(|full| info(&full.kept));
        let filling = self.filling.iter().map(|filling| info(&filling.kept));
        Ok(kept.chain(full).chain(filling).collect())
    }

    fn remove(&mut self, segment: SegmentId) -> Result<(), StorageError> {
        let mut state = self.shared.state();
        if let Some((kept, _)) = state.kept.remove(&segment) {
            state.removed.push(kept);
        } else if let Some(found) = state.full.iter().position(|full| full.kept.id == segment) {
            let full = state.full.remove(found).expect("it was found there");
            state.removed.push(full.kept);
        } else if self.filling.as_ref().is_some_and(|filling| filling.kept.id == segment) {
            state.removed.extend(self.filling.take().map(|filling| filling.kept));
        } else if state.busy.take_if(|(id, _)| *id == segment).is_none() {
            // If it is busy, the flusher finds that it is kept no longer.
            return Err(StorageError::Missing { segment, operation: "remove" });
        }
        drop(state);
        // The newest is for the next segment; a start before that finds it before the others, without a gap.
        self.tidy(1);
        Ok(())
    }

    fn bytes_held(&mut self) -> u64 {
        let state = self.shared.state();
        let kept = state.kept.values().map(|(kept, _)| kept.len);
        let full = state.full.iter().map(|full| full.kept.len);
        let busy = state.busy.iter().map(|&(_, len)| len);
        let filling = self.filling.iter().map(|filling| filling.kept.len);
        // One handle is the segment's own, if anyone still has that.
        let pinned = state.removed.iter().filter(|kept| kept.map.is_pinned_beyond(0));
        let held = kept.chain(full).chain(busy).chain(filling).sum::<u64>();
        held + pinned.map(|kept| kept.len).sum::<u64>() + self.reserve_bytes()
    }

    fn bytes_removable(&self, segment: SegmentId) -> u64 {
        let state = self.shared.state();
        let full = || state.full.iter().map(|full| &full.kept).find(|kept| kept.id == segment);
        let kept = state.kept.get(&segment).map(|(kept, _)| kept).or_else(full);
        match (kept, state.busy) {
            // The log's index holds one handle and drops it with the segment.
            (Some(kept), _) if !kept.map.is_pinned_beyond(1) => kept.len,
            (None, Some((id, len))) if id == segment => len,
            _ => 0,
        }
    }
}

impl<D: Disk> Drop for Files<D> {
    fn drop(&mut self) {
        self.shared.commits.stop();
    }
}

/// A range of what is staged, which grows as needed and is used again.
fn staged(staged: &mut Vec<u8>, range: Range<usize>) -> &mut [u8] {
    if staged.len() < range.end {
        staged.resize(range.end, 0);
    }
    &mut staged[range]
}

fn not_created(bytes: usize, source: io::Error) -> StorageError {
    match is_full(&source) {
        true => StorageError::Full { bytes, source },
        false => StorageError::Create { bytes, source },
    }
}

/// Whether the disk has no room, or a user or project has no more of it.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(crate) fn refused(
    segment: SegmentId,
    operation: &'static str,
    error: RegionError,
) -> StorageError {
    let source = io::Error::new(io::ErrorKind::InvalidInput, error);
    StorageError::Segment { segment, operation, source }
}

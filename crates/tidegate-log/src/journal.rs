//! A log that nothing leaves before it is released, with records of any length.
//!
//! ```text
//!  record ──▶ one entry, or several that follow each other ──▶ Log in Files ──release──▶ gone, by whole segments
//! ```
//!
//! Where [`Log`] is a ring that keeps what is new, this keeps what its owner still needs: it refuses when it is full. Its owner writes
//! the live state again and releases older records. So that it can do so on a disk that others have filled, some room is held in
//! reserve.
//!
//! Always true: a record is read whole or not at all; a record that was not released is kept.

use std::{io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tidegate_message::{Instant, Position};
use tidegate_sys::folder::Folder;

use crate::{
    commit::Commits,
    config::LogConfig,
    disk::Disk,
    entry::Durability,
    files::{Files, FilesConfig, Opened},
    flusher::Flusher,
    log::{Log, LogError, ReadError, just_after},
    recovery::{Finding, OpenError, Report, Zeros},
    storage::{Storage, StorageError},
    writer::{AppendError, LogWriter},
};

/// Flag of an entry: it continues the record of the entry before.
const CONTINUES: u8 = 1;
/// Flag of an entry: its record continues in the next.
const IS_CONTINUED: u8 = 2;
/// Of an entry: the record that the entry before begins was given up by its writer, who said so to whom it was from.
const GIVES_UP: u8 = 4;

/// Segments that [`Journal::ensure`] leaves to [`Journal::append`].
const RESERVE_SEGMENTS: u64 = 2;
/// A file that holds room in reserve is this part of a segment.
const RESERVE_PART: u64 = 8;
/// Its bytes at least.
const RESERVE_FILE_BYTES_MIN: u64 = 64 << 10;
/// At most this part of the journal is held in reserve.
const RESERVE_PART_MAX: u64 = 2;
/// A reserve that the disk had no room for is tried again after so long: to find that out, files are made and removed.
const RESERVE_RETRY: Duration = Duration::from_millis(500);
/// Bytes of a record in addition to its content, at most, if it is one entry.
const ENTRY_BYTES: u64 = 128;

/// The one writer of a journal.
pub struct Journal<D: Disk = Folder> {
    writer: LogWriter<Files<D>>,
    log: Log<Files<D>>,
    commits: Commits,
    durability: Durability,
    config: LogConfig,
    /// Bytes that can be appended surely, as far as was looked.
    credit: u64,
    next: Position,
    /// Records before it were released: the process ended before all of their files were gone.
    released: Position,
    /// Files that are to hold room on the disk.
    reserve_files: u32,
    /// The last time that the disk had no room for those that were missing.
    reserve_refused: Option<ReserveRefused>,
    /// The last entry begins a record whose rest found no room.
    has_given_up: bool,
}

/// The disk had no room for the reserve.
#[derive(Clone, Copy, Debug)]
struct ReserveRefused {
    at: Instant,
    /// Files that were missing then.
    missing: u32,
    file_bytes: usize,
    kind: io::ErrorKind,
}

impl ReserveRefused {
    /// Whether so many files more would most likely find no room either, a moment later.
    fn holds(&self, now: Instant, missing: u32) -> bool {
        missing > 0 && missing >= self.missing && (self.at..self.at + RESERVE_RETRY).contains(&now)
    }

    fn error(&self) -> AppendError {
        StorageError::Full { bytes: self.file_bytes, source: self.kind.into() }.into()
    }
}

/// The configuration of a journal.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// Of its files.
    pub files: FilesConfig,
    /// How much it may hold, and in which pieces.
    pub log: LogConfig,
    /// How durable a record is to be.
    pub durability: Durability,
}

/// A journal, and what belongs to it.
pub struct OpenedJournal<D: Disk = Folder> {
    /// The journal.
    pub journal: Journal<D>,
    /// The flusher that makes it durable: to be [run](Flusher::run) on a thread of its own.
    pub flusher: Flusher<D>,
    /// Tells what is durable.
    pub commits: Commits,
    /// The report on the files found.
    pub report: Report,
}

impl<D: Disk> Journal<D> {
    /// Opens the journal in the folder `disk`, which may be empty.
    ///
    /// # Errors
    /// The folder cannot be read, or the sizes do not fit each other. Damage is no error, but reported.
    pub fn open(disk: D, config: JournalConfig) -> Result<OpenedJournal<D>, OpenJournalError> {
        let JournalConfig { files, log: config, durability } = config;
        let Opened { files, flusher, commits, mut report } =
            Files::open_with(disk, files, Zeros::AreSecured)?;
        let released = report.behind_missing.unwrap_or_default();
        // Released records are not lost.
        report
            .findings
            .retain(|finding| !matches!(finding, Finding::Lost { to, .. } if *to <= released));
        let (mut writer, log) = Log::open(config.clone(), files)?;
        writer.keep_all();
        let next = log.end();
        let journal = Self {
            writer,
            log,
            commits: commits.clone(),
            durability,
            config,
            credit: 0,
            next,
            released,
            reserve_files: 1,
            reserve_refused: None,
            has_given_up: false,
        };
        Ok(OpenedJournal { journal, flusher, commits, report })
    }

    /// Appends a record that consists of those parts. Returns its position, the last one where it takes several entries.
    ///
    /// `now` is when; entries have later times than those before, whatever the clock says.
    ///
    /// # Errors
    /// There is no room, or the disk failed: the record is not there.
    pub fn append<'a>(
        &mut self,
        now: Instant,
        parts: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    ) -> Result<Position, AppendError> {
        let parts = parts.into_iter();
        let bytes: usize = parts.clone().map(<[u8]>::len).sum();
        // So that each fits into what is held in reserve.
        let most = self.entry_bytes_max();
        let mut parts = Parts { rest: &[], parts };
        let mut left = bytes;
        let mut flags = if self.has_given_up { GIVES_UP } else { 0 };
        loop {
            let count = left.min(most);
            left -= count;
            flags |= if left > 0 { IS_CONTINUED } else { 0 };
            let at = self.writer.last_at().map_or(now, |last| now.max(just_after(last)));
            let appended = self.writer.append_with(at, &[flags], count, |room| parts.fill(room));
            let position = match appended {
                Ok(position) => position,
                Err(error) => {
                    self.has_given_up |= flags & CONTINUES != 0;
                    return Err(error);
                }
            };
            self.has_given_up = false;
            self.credit = self.credit.saturating_sub(count as u64 + ENTRY_BYTES);
            self.next = position.next();
            if left == 0 {
                if self.durability == Durability::Disk {
                    self.writer.request(position.next(), bytes as u64)?;
                }
                return Ok(position);
            }
            flags = CONTINUES;
        }
    }

    /// Sees to it that records of so many bytes can be appended, and some more for what must be appended all the same. `now` is when:
    /// where the disk had no room for the reserve, it is asked for no more of it for half a second, or until the next
    /// [`Journal::release`].
    ///
    /// # Errors
    /// There is no room, or the disk failed.
    pub fn ensure(&mut self, now: Instant, bytes: usize) -> Result<(), AppendError> {
        self.hold_in_reserve(now)?;
        let needed = bytes as u64 + ENTRY_BYTES;
        if self.credit < needed {
            let held = self.writer.bytes_held();
            let LogConfig { bytes_max, segment_bytes } = self.config;
            // The rest of a segment that the record does not fit in does not count.
            let reserve = (RESERVE_SEGMENTS + 1) * segment_bytes;
            let free = bytes_max.saturating_sub(held + reserve);
            // No more than half a segment at a time: the bytes of heads, and rests that no record fits in, show only as segments
            // are used.
            self.credit = free.min(needed.max(segment_bytes / 2));
            if self.credit < needed {
                return Err(AppendError::Full { held, bytes_max });
            }
        }
        let entry = bytes.min(self.entry_bytes_max()) + 1;
        self.writer.ensure(entry)
    }

    /// Whether a record of so many bytes can be appended that [may use the reserve](Journal::use_reserve), though nothing more is left then
    /// for what must be appended all the same.
    ///
    /// # Errors
    /// There is no room, or the disk failed.
    pub fn ensure_last(&mut self, bytes: usize) -> Result<(), AppendError> {
        let entry = bytes.min(self.entry_bytes_max()) + 1;
        let may_use = self.writer.use_reserve(true);
        let ensured = self.writer.ensure(entry);
        self.writer.use_reserve(may_use);
        ensured
    }

    /// Asks for a reserve in which records of so many bytes in all find room, whatever else fills the disk: it is there once
    /// [`Journal::ensure`] succeeds. Half of the journal at most. Until the next [`Journal::release`] it may be more than was asked for
    /// last, so that files do not come and go.
    pub fn want_reserve(&mut self, bytes: u64) {
        // See `room`.
        let files = bytes.div_ceil(self.entry_bytes_max() as u64).max(1).saturating_mul(2) - 1;
        let most = self.config.bytes_max / RESERVE_PART_MAX / self.reserve_file_bytes();
        let files = u32::try_from(files.min(most)).unwrap_or(u32::MAX);
        self.reserve_files = self.reserve_files.max(files);
    }

    /// Whether [`Journal::append`] may take what is held in reserve, where there is no other room: for what then lets go of more.
    pub fn use_reserve(&mut self, may: bool) {
        self.writer.use_reserve(may);
    }

    /// Bytes of records, each with some [`ENTRY_BYTES`] beside, that can be appended surely by whoever
    /// [may use the reserve](Journal::use_reserve), whatever fills the disk.
    pub fn room(&mut self) -> u64 {
        // The end of a file is left where the next entry does not fit: of two files that follow each other, more is used than one has.
        let files = self.writer.storage_mut().reserve_bytes() / self.reserve_file_bytes();
        let in_reserve = files.div_ceil(2) * self.entry_bytes_max() as u64;
        in_reserve.max(self.writer.room() as u64)
    }

    /// Bytes of records that can be appended without the reserve, as far as the journal's own limit and the disk go, each counted with what
    /// [`Journal::room`] says. Others may fill the disk meanwhile.
    pub fn free(&mut self) -> u64 {
        let LogConfig { bytes_max, segment_bytes } = self.config;
        let allowed = bytes_max.saturating_sub(self.writer.bytes_held());
        // Where the disk does not say, it shows as it is written to.
        let left = self.writer.storage_mut().free().unwrap_or(u64::MAX);
        // Segments get smaller where the disk has not room for one of the usual size.
        let free = (allowed / segment_bytes * segment_bytes).min(left);
        // Where records are large, the last quarter of a segment may be left.
        free / 4 * 3
    }

    /// Removes files that are there only so that the next segment begins sooner: others lack the room.
    pub fn give_way(&mut self) {
        self.writer.storage_mut().give_way();
    }

    /// Bytes of a record in one entry at most.
    fn entry_bytes_max(&mut self) -> usize {
        let bytes = self.reserve_file_bytes() as usize;
        self.writer.storage_mut().framing().entry_bytes_max(bytes) - 1
    }

    fn reserve_file_bytes(&self) -> u64 {
        let LogConfig { segment_bytes, .. } = self.config;
        (segment_bytes / RESERVE_PART).max(RESERVE_FILE_BYTES_MIN).min(segment_bytes)
    }

    fn hold_in_reserve(&mut self, now: Instant) -> Result<(), AppendError> {
        let len = self.reserve_file_bytes();
        let before = (self.writer.storage_mut().reserve_bytes() / len) as u32;
        let missing = self.reserve_files.saturating_sub(before);
        if let Some(refused) = self.reserve_refused.filter(|refused| refused.holds(now, missing)) {
            // A caller that asks for less may have it.
            self.reserve_files = before.max(1);
            return Err(refused.error());
        }
        let lacking = u64::from(missing) * len;
        let held = if lacking > 0 { self.writer.bytes_held() } else { 0 };
        let bytes_max = self.config.bytes_max;
        let holding = if held + lacking > bytes_max {
            Err(AppendError::Full { held, bytes_max })
        } else {
            let held = self.writer.storage_mut().hold_in_reserve(self.reserve_files, len);
            if let Err(StorageError::Full { source, .. }) = &held {
                let (file_bytes, kind) = (len as usize, source.kind());
                self.reserve_refused = Some(ReserveRefused { at: now, missing, file_bytes, kind });
            }
            held.map_err(AppendError::from)
        };
        if holding.is_err() {
            // A caller that asks for less may have it.
            self.reserve_files = before.max(1);
            self.writer.storage_mut().drop_reserve(before);
        }
        holding
    }

    /// Lets go of the records before `position`, by whole segments.
    ///
    /// # Errors
    /// The storage failed; segments released before stay released.
    pub fn release(&mut self, position: Position) -> Result<usize, StorageError> {
        self.credit = 0;
        self.reserve_files = 1;
        self.reserve_refused = None;
        self.writer.release(position)
    }

    /// Bytes that it may hold, the reserve included.
    pub fn bytes_max(&self) -> u64 {
        self.config.bytes_max
    }

    /// When the newest record was appended, also by a former process; none if there was none.
    pub fn last_at(&self) -> Option<Instant> {
        self.writer.last_at()
    }

    /// The position that the next record gets, at least.
    pub fn end(&self) -> Position {
        self.next
    }

    /// Records before this position are as durable as they are to be.
    pub fn durable(&self) -> Position {
        match self.durability {
            Durability::Memory | Durability::Page => self.next,
            Durability::Disk => self.commits.durable(),
        }
    }

    /// How durable records are to be.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Why nothing more becomes durable, if that is so and was to be.
    pub fn failure(&self) -> Option<Arc<StorageError>> {
        match self.durability {
            Durability::Memory | Durability::Page => None,
            Durability::Disk => self.commits.failure(),
        }
    }

    /// Bytes of the records that are kept.
    pub fn bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// Makes all that was appended survive a loss of power, and waits for that.
    ///
    /// # Errors
    /// The disk failed.
    pub fn flush(&mut self) -> Result<Position, StorageError> {
        self.writer.flush()
    }

    /// Calls `each` with every record that was not released, oldest first. A record is a slice of its segment where it is one entry. Returns how many
    /// could not be read.
    pub fn read_all(&self, mut each: impl FnMut(Bytes)) -> u64 {
        let mut lost = 0;
        let mut open: Option<BytesMut> = None;
        for entry in self.log.range(..) {
            let entry = match entry {
                Ok(entry) if entry.position < self.released => continue,
                Ok(entry) => entry,
                Err(ReadError::Overtaken(missed)) if missed.missed_to <= self.released => continue,
                Err(error) => {
                    lost += match &error {
                        ReadError::Overtaken(missed) => missed.missed(),
                        _ => 1,
                    };
                    open = None;
                    continue;
                }
            };
            let flags = entry.meta.first().copied().unwrap_or(0);
            let is_last = flags & IS_CONTINUED == 0;
            if flags & CONTINUES == 0 {
                // A record begun before it has no end.
                lost += u64::from(open.take().is_some() && flags & GIVES_UP == 0);
                if is_last {
                    each(entry.body);
                } else {
                    open = Some(BytesMut::from(&entry.body[..]));
                }
            } else if let Some(mut record) = open.take() {
                record.extend_from_slice(&entry.body);
                if is_last {
                    each(record.freeze());
                } else {
                    open = Some(record);
                }
            } else {
                lost += u64::from(is_last);
            }
        }
        lost + u64::from(open.is_some())
    }
}

/// Why a journal was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenJournalError {
    /// Its files.
    #[error(transparent)]
    Files(#[from] OpenError),
    /// Its sizes.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Parts that are copied one after the other.
struct Parts<'a, I> {
    rest: &'a [u8],
    parts: I,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Parts<'a, I> {
    /// Copies the next bytes, of which there are enough.
    fn fill(&mut self, mut room: &mut [u8]) {
        while !room.is_empty() {
            if self.rest.is_empty() {
                match self.parts.next() {
                    Some(part) => self.rest = part,
                    None => return,
                }
            }
            let count = room.len().min(self.rest.len());
            let (now, later) = self.rest.split_at(count);
            room[..count].copy_from_slice(now);
            self.rest = later;
            room = &mut room[count..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{commit::CommitConfig, simulated::SimulatedDisk};

    const NOW: Instant = Instant::from_millis(1_700_000_000_000);

    fn open(disk: &SimulatedDisk, durability: Durability) -> OpenedJournal<SimulatedDisk> {
        let commit = CommitConfig::default();
        let files = FilesConfig { log_id: 7, opened: NOW, commit, keys: None };
        let log = LogConfig { bytes_max: 16 * (16 << 10), segment_bytes: 16 << 10 };
        Journal::open(disk.clone(), JournalConfig { files, log, durability }).unwrap()
    }

    fn all(journal: &Journal<SimulatedDisk>) -> (Vec<Vec<u8>>, u64) {
        let mut records = Vec::new();
        let lost = journal.read_all(|record| records.push(record.to_vec()));
        (records, lost)
    }

    fn record(number: u8, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| number.wrapping_add(at as u8)).collect()
    }

    #[test]
    fn records_of_any_length_come_back() {
        let disk = SimulatedDisk::new(1);
        let mut opened = open(&disk, Durability::Page);
        let mut written = Vec::new();
        for (number, bytes) in [0, 1, 100, 11_000, 50_000, 3, 90_000].into_iter().enumerate() {
            let record = record(number as u8, bytes);
            let (head, tail) = record.split_at(bytes / 3);
            // A clock that stands still.
            opened.journal.append(NOW, [head, tail]).unwrap();
            written.push(record);
            assert_eq!(opened.journal.durable(), opened.journal.end());
        }
        assert_eq!(all(&opened.journal), (written.clone(), 0));
        drop(opened);
        disk.end_process();
        let mut opened = open(&disk, Durability::Page);
        assert_eq!(all(&opened.journal), (written.clone(), 0));
        opened.journal.append(Instant::EPOCH, [&b"more"[..]]).unwrap();
        written.push(b"more".to_vec());
        assert_eq!(all(&opened.journal), (written, 0));
    }

    #[test]
    fn a_record_that_was_not_finished_is_not_there() {
        let disk = SimulatedDisk::new(2);
        let mut opened = open(&disk, Durability::Page);
        let journal = &mut opened.journal;
        journal.append(NOW, [&b"whole"[..]]).unwrap();
        // As if the process had ended between two entries.
        let at = just_after(journal.writer.last_at().unwrap());
        journal.writer.append(at, &[IS_CONTINUED], b"half").unwrap();
        assert_eq!(all(journal), (vec![b"whole".to_vec()], 1));
        journal.append(NOW, [&b"next"[..]]).unwrap();
        assert_eq!(all(journal), (vec![b"whole".to_vec(), b"next".to_vec()], 1));
    }

    #[test]
    fn unreleased_records_are_kept_and_a_full_journal_says_so() {
        let disk = SimulatedDisk::new(3);
        let mut opened = open(&disk, Durability::Page);
        let journal = &mut opened.journal;
        let mut written = 0_u64;
        let mut ends = Vec::new();
        let error = loop {
            match journal.ensure(NOW, 1_000) {
                Ok(()) => ends.push(journal.append(NOW, [&[written as u8; 1_000][..]]).unwrap()),
                Err(error) => break error,
            }
            written += 1;
        };
        assert_eq!(error.code().as_str(), "storage.full");
        assert!(written > 100, "{written}");
        // Records that must be written still can be.
        for _ in 0..20 {
            journal.append(NOW, [&[7; 1_000][..]]).unwrap();
        }
        let error = loop {
            if let Err(error) = journal.append(NOW, [&[7; 1_000][..]]) {
                break error;
            }
        };
        assert_eq!(error.code().as_str(), "storage.full");
        let (records, lost) = all(journal);
        assert_eq!((records[0][0], lost), (0, 0), "the oldest is there");
        // Most of it is let go of.
        assert!(journal.release(ends[90]).unwrap() >= 4);
        journal.ensure(NOW, 1_000).unwrap();
        journal.append(NOW, [&[8; 1_000][..]]).unwrap();
        let (records, _) = all(journal);
        assert!(records[0][0] <= 90 && records.last().unwrap()[0] == 8);
    }

    #[test]
    fn released_records_do_not_come_back_with_any_leftover_files() {
        let disk = SimulatedDisk::new(4);
        let mut opened = open(&disk, Durability::Page);
        let mut positions = Vec::new();
        for number in 0..40 {
            positions.push(opened.journal.append(NOW, [&record(number, 3_000)[..]]).unwrap());
        }
        let name = |id: u64| crate::segment_files::file_name(crate::SegmentId(id));
        let first = disk.bytes_of(&name(0)).unwrap();
        opened.journal.release(positions[20]).unwrap();
        let (kept, _) = all(&opened.journal);
        assert!((20..40).contains(&kept.len()));
        drop(opened);
        disk.end_process();
        // The first is still there, although what came after it is gone.
        assert!(disk.bytes_of(&name(1)).is_none());
        disk.put(&name(0), first);
        let opened = open(&disk, Durability::Page);
        // One segment that was released may be there for the next: nothing is missing behind it.
        let (found, lost) = all(&opened.journal);
        assert!(found.ends_with(&kept) && found.len() < kept.len() + 10 && lost == 0);
        assert!(!found.contains(&record(0, 3_000)));
        assert!(opened.report.findings.is_empty(), "{:?}", opened.report.findings);
    }

    #[test]
    fn entries_reported_durable_survive_the_power() {
        for seed in 0..50 {
            let disk = SimulatedDisk::new(seed);
            let mut opened = open(&disk, Durability::Disk);
            let mut count = 0_u8;
            for _ in 0..1 + seed % 40 {
                opened.journal.append(NOW, [&record(count, 900)[..]]).unwrap();
                count += 1;
            }
            assert!(opened.journal.durable() <= opened.journal.end());
            let durable = opened.journal.flush().unwrap();
            assert_eq!((durable, opened.journal.durable()), (opened.journal.end(), durable));
            opened.journal.append(NOW, [&b"maybe lost"[..]]).unwrap();
            assert!(opened.journal.durable() < opened.journal.end());
            disk.cut_power_after(0);
            drop(opened);
            disk.lose_power();
            let (records, _) = all(&open(&disk, Durability::Disk).journal);
            assert!(records.len() >= usize::from(count), "seed {seed}");
            for (number, found) in records.iter().take(usize::from(count)).enumerate() {
                assert_eq!(*found, record(number as u8, 900), "seed {seed}");
            }
        }
    }

    /// A journal of larger segments, and room for `bytes` on its disk.
    fn on_small_disk(bytes: u64) -> (SimulatedDisk, OpenedJournal<SimulatedDisk>) {
        let disk = SimulatedDisk::new(5);
        disk.set_capacity(bytes);
        let commit = CommitConfig::default();
        let files = FilesConfig { log_id: 7, opened: NOW, commit, keys: None };
        let log = LogConfig { bytes_max: 1 << 30, segment_bytes: 1 << 20 };
        let config = JournalConfig { files, log, durability: Durability::Page };
        let mut opened = Journal::open(disk.clone(), config).unwrap();
        opened.journal.want_reserve(1);
        (disk, opened)
    }

    #[test]
    fn on_a_disk_that_is_full_the_reserve_takes_what_lets_go_of_the_rest() {
        for kilobytes in [700, 1_500, 5_000, 5_555] {
            let (disk, mut opened) = on_small_disk(kilobytes << 10);
            let journal = &mut opened.journal;
            let mut appended = 0_u64;
            let refused = loop {
                if let Err(error) = journal.ensure(NOW, 900) {
                    break error;
                }
                journal.append(NOW, [&[1; 900][..]]).unwrap();
                appended += 1;
            };
            assert_eq!(refused.code().as_str(), "storage.full", "{kilobytes}");
            // Segments got smaller, so that most of the disk was used, the reserve aside.
            assert!(appended * 950 > (kilobytes << 10) * 2 / 5, "{kilobytes}: {appended}");
            // Records of deliveries fill the rest, and find no room then.
            while journal.append(NOW, [&[2; 30][..]]).is_ok() {}
            assert!(journal.append(NOW, [&[2; 30][..]]).is_err());
            let start = journal.end();
            assert!(journal.room() >= 50_000, "{kilobytes}: {}", journal.room());
            journal.use_reserve(true);
            for _ in 0..40 {
                journal.append(NOW, [&[3; 1_000][..]]).unwrap();
            }
            journal.use_reserve(false);
            journal.release(start).unwrap();
            assert!(journal.ensure(NOW, 900).is_ok(), "{kilobytes}: it takes records again");
            journal.append(NOW, [&[4; 900][..]]).unwrap();
            let (records, lost) = all(journal);
            let kinds: Vec<u8> = records.iter().map(|record| record[0]).collect();
            assert!(kinds.ends_with(&[3, 3, 4]) && lost == 0, "{kilobytes}: {kinds:?}");
            assert_eq!(kinds.iter().filter(|&&kind| kind == 3).count(), 40);
            // The next process finds no reserve to read, and nothing damaged.
            drop(opened);
            disk.end_process();
            let opened = open(&disk, Durability::Page);
            assert!(opened.report.findings.is_empty(), "{:?}", opened.report.findings);
            assert_eq!(all(&opened.journal).0.last().unwrap()[0], 4);
        }
    }

    #[test]
    fn what_is_said_to_have_room_finds_it_in_the_reserve_whatever_fills_the_disk() {
        for seed in 0..60_u64 {
            let (disk, mut opened) = on_small_disk(20 << 20);
            let journal = &mut opened.journal;
            let wanted = 50_000 * (seed % 7 + 1);
            journal.want_reserve(wanted);
            journal.ensure(NOW, 900).unwrap();
            journal.append(NOW, [&[1; 900][..]]).unwrap();
            disk.set_capacity(0);
            while journal.append(NOW, [&[2; 900][..]]).is_ok() {}
            assert!(journal.room() >= wanted, "seed {seed}: {}", journal.room());
            journal.use_reserve(true);
            let (mut left, mut random) = (journal.room(), seed);
            loop {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let most = [100, 70_000, 130_000, 300_000][seed as usize % 4];
                let bytes = (random >> 33) % most;
                let Some(rest) = left.checked_sub(bytes + ENTRY_BYTES) else { break };
                left = rest;
                let appended = journal.append(NOW, [&vec![3; bytes as usize][..]]);
                assert!(appended.is_ok(), "seed {seed}: {bytes} bytes, {left} left");
            }
        }
    }

    #[test]
    fn more_is_not_held_in_reserve_than_the_journal_may_hold() {
        let disk = SimulatedDisk::new(6);
        let mut opened = open(&disk, Durability::Page);
        let journal = &mut opened.journal;
        journal.want_reserve(u64::MAX);
        journal.ensure(NOW, 100).unwrap();
        let held = journal.writer.bytes_held();
        assert!(held <= journal.config.bytes_max / 2 + journal.config.segment_bytes, "{held}");
        let mut appended = Vec::new();
        while journal.ensure(NOW, 1_000).is_ok() {
            appended.push(journal.append(NOW, [&[1; 1_000][..]]).unwrap());
        }
        assert!(appended.len() > 40, "{} are few", appended.len());
        // It is less again once others need less; what finds no room within the limit is refused.
        journal.release(appended[appended.len() - 1]).unwrap();
        journal.want_reserve(1);
        journal.ensure(NOW, 1_000).unwrap();
        while journal.ensure(NOW, 1_000).is_ok() {
            journal.append(NOW, [&[1; 1_000][..]]).unwrap();
        }
        journal.ensure_last(1_000).unwrap();
        journal.want_reserve(u64::MAX);
        assert!(journal.ensure(NOW, 1).is_err());
        assert!(journal.writer.bytes_held() <= journal.config.bytes_max);
    }

    #[test]
    fn room_that_has_no_records_is_given_back_for_others() {
        let disk = SimulatedDisk::new(7);
        let mut opened = open(&disk, Durability::Page);
        let journal = &mut opened.journal;
        let mut last = Position(0);
        for _ in 0..60 {
            last = journal.append(NOW, [&[1; 1_000][..]]).unwrap();
        }
        journal.release(last).unwrap();
        let segments = || {
            let found = disk.list().unwrap();
            found.iter().filter(|found| found.name.ends_with(".segment")).count()
        };
        let before = segments();
        journal.give_way();
        assert!(segments() < before, "{before}");
        journal.ensure(NOW, 1_000).unwrap();
        for _ in 0..60 {
            journal.append(NOW, [&[2; 1_000][..]]).unwrap();
        }
        assert_eq!(all(journal).1, 0);
    }

    #[test]
    fn a_disk_that_others_filled_and_freed_is_used_again() {
        let (disk, mut opened) = on_small_disk(10 << 10);
        let journal = &mut opened.journal;
        assert!(journal.ensure(NOW, 900).is_err() && journal.append(NOW, [&[1; 900][..]]).is_err());
        disk.set_capacity(300 << 10);
        let later = NOW + RESERVE_RETRY;
        journal.ensure(later, 900).expect("segments are smaller than usual");
        journal.append(NOW, [&[1; 900][..]]).unwrap();
        while journal.ensure(NOW, 900).is_ok() {
            journal.append(NOW, [&[1; 900][..]]).unwrap();
        }
        disk.set_capacity(30 << 20);
        for _ in 0..10_000 {
            journal.ensure(NOW, 900).unwrap();
            journal.append(NOW, [&[1; 900][..]]).unwrap();
        }
    }

    #[test]
    fn a_journal_begins_with_a_segment_as_small_as_may_be() {
        let (_disk, mut opened) = on_small_disk(3 << 20);
        let journal = &mut opened.journal;
        let held = |journal: &mut Journal<_>| journal.writer.bytes_held();
        journal.append(NOW, [&[1; 100][..]]).unwrap();
        // Another one beside it finds room to begin, too.
        assert!(held(journal) <= 64 << 10, "{}", held(journal));
        let usual = journal.config.segment_bytes;
        while held(journal) <= 64 << 10 {
            journal.append(NOW, [&[1; 900][..]]).unwrap();
        }
        assert_eq!(held(journal), (64 << 10) + usual);
    }

    #[test]
    fn a_reserve_that_the_disk_had_no_room_for_is_tried_again_after_a_while() {
        let (disk, mut opened) = on_small_disk(3 << 20);
        let journal = &mut opened.journal;
        journal.ensure(NOW, 900).unwrap();
        journal.want_reserve(10 << 20);
        assert!(journal.ensure(NOW, 900).is_err());
        // Less is there still, and can be had at once.
        journal.ensure(NOW, 900).unwrap();
        let files = || disk.list().unwrap().len();
        let before = files();
        disk.set_capacity(100 << 20);
        let a_moment_later = NOW + Duration::from_millis(499);
        journal.want_reserve(10 << 20);
        let refused = journal.ensure(a_moment_later, 900).unwrap_err();
        assert_eq!((refused.code().as_str(), files()), ("storage.full", before));
        journal.want_reserve(200_000);
        journal.ensure(a_moment_later, 900).unwrap();
        assert!(files() > before, "less than was refused is tried at once");
        disk.set_capacity(3 << 20);
        journal.want_reserve(10 << 20);
        assert!(journal.ensure(NOW, 900).is_err());
        disk.set_capacity(100 << 20);
        journal.want_reserve(10 << 20);
        journal.ensure(NOW + RESERVE_RETRY, 900).unwrap();
        // A clock that was put back does not put the next try off.
        disk.set_capacity(3 << 20);
        journal.want_reserve(30 << 20);
        assert!(journal.ensure(NOW, 900).is_err());
        disk.set_capacity(100 << 20);
        journal.want_reserve(30 << 20);
        journal.ensure(Instant::EPOCH, 900).unwrap();
    }

    #[test]
    fn a_refused_reserve_holds_nothing_up_where_none_is_missing() {
        let kind = io::ErrorKind::StorageFull;
        for (then, missing, holds) in [(0, 0, false), (2, 0, false), (2, 1, false), (2, 2, true)] {
            let refused = ReserveRefused { at: NOW, missing: then, file_bytes: 1, kind };
            assert_eq!(refused.holds(NOW, missing), holds, "{then} then, {missing} now");
        }
    }

    #[test]
    fn files_that_are_kept_make_room_where_a_quota_is_reached() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let tried = std::cell::Cell::new(0);
            let (_disk, mut opened) = on_small_disk(20 << 20);
            let journal = &mut opened.journal;
            journal.ensure(NOW, 900).unwrap();
            journal.append(NOW, [&[1; 900][..]]).unwrap();
            let done = journal.writer.storage_mut().with_room(|_| {
                tried.set(tried.get() + 1);
                if tried.get() == 1 { Err(kind.into()) } else { Ok(()) }
            });
            assert!(done.is_ok() && tried.get() == 2, "{kind:?}: {done:?}");
        }
    }

    #[test]
    fn a_record_that_found_no_room_half_way_is_no_damage() {
        let (_disk, mut opened) = on_small_disk(600 << 10);
        let journal = &mut opened.journal;
        journal.append(NOW, [&[1; 900][..]]).unwrap();
        let error = journal.append(NOW, [&vec![2; 3 << 20][..]]).unwrap_err();
        assert_eq!(error.code().as_str(), "storage.full");
        let before = all(journal);
        assert_eq!(before.0.len(), 1);
        journal.use_reserve(true);
        journal.append(NOW, [&[3; 90][..]]).unwrap();
        let (records, lost) = all(journal);
        assert_eq!((records.len(), records[1][0], lost), (2, 3, 0));
    }
}

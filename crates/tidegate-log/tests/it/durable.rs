//! Logs in real folders: recovery after the process, damaged files, foreign ones, full disks.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
};

use bytes::Bytes;
use proptest::prelude::*;
use tidegate_log::{
    AppendError, Commits, Damage, Disk, Durability, Entry, Files, FilesConfig, Finding, Flusher,
    Log, LogConfig, LogWriter, OpenError, Opened, ReadError, Report, StorageError,
    simulated::SimulatedDisk,
};
use tidegate_message::{Code, Instant, Position};
use tidegate_sys::folder::Folder;

use crate::support::{Scratch, at, bytes_of};

const SEGMENT_BYTES: u64 = 16 << 10;

/// A log that is open, with everything that belongs to it.
struct Running<D: Disk> {
    writer: LogWriter<Files<D>>,
    log: Log<Files<D>>,
    flusher: Flusher<D>,
    commits: Commits,
    report: Report,
}

fn open<D: Disk>(disk: D, segments: u64) -> Running<D> {
    let Opened { files, flusher, commits, report } = Files::open(disk, files_config(7)).unwrap();
    let (writer, log) = Log::open(log_config(segments), files).unwrap();
    Running { writer, log, flusher, commits, report }
}

fn open_folder(path: &Path) -> Running<Folder> {
    open(Folder::open(path).unwrap(), 1000)
}

fn files_config(log_id: u64) -> FilesConfig {
    FilesConfig { log_id, opened: at(5), commit: Default::default(), keys: None }
}

fn log_config(segments: u64) -> LogConfig {
    LogConfig { bytes_max: segments * SEGMENT_BYTES, segment_bytes: SEGMENT_BYTES }
}

impl<D: Disk> Running<D> {
    /// Appends entries at the next positions, each of about `bytes`, at ten times their position.
    fn append(&mut self, count: u64, bytes: usize) {
        for _ in 0..count {
            let number = self.log.end().0;
            let (meta, body) = content(number, bytes);
            let time = at(number as i64 * 10);
            let position = self.writer.append_durably(Durability::Page, time, &meta, &body);
            assert_eq!(position.unwrap(), Position(number));
        }
    }

    fn flush(&mut self) {
        assert_eq!(self.writer.flush().unwrap(), self.log.end());
    }
}

fn content(number: u64, bytes: usize) -> (Vec<u8>, Vec<u8>) {
    (bytes_of(number, (number % 9) as usize), bytes_of(number + 1, bytes))
}

fn assert_entry(entry: &Entry, bytes: usize) {
    let number = entry.position.0;
    let (meta, body) = content(number, bytes);
    assert_eq!(entry.at, at(number as i64 * 10));
    assert_eq!((&entry.meta[..], &entry.body[..]), (&meta[..], &body[..]), "entry {number}");
}

/// Reads all there is: positions that were read, that were damaged, and that were missing.
fn read_all<D: Disk>(log: &Log<Files<D>>, bytes: usize) -> (Vec<u64>, Vec<u64>, Vec<(u64, u64)>) {
    let (mut read, mut damaged, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    let mut reader = log.reader_at(Position(0));
    loop {
        match reader.next() {
            Ok(None) => return (read, damaged, missing),
            Ok(Some(entry)) => {
                assert_entry(&entry, bytes);
                read.push(entry.position.0);
            }
            Err(ReadError::Overtaken(gap)) => missing.push((gap.missed_from.0, gap.missed_to.0)),
            Err(ReadError::Storage { position, source }) => {
                assert!(matches!(source, StorageError::Damaged { .. }), "{source:?}");
                damaged.push(position.0);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The segment files of a folder, oldest first.
fn segments(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "segment");
    let mut found: Vec<PathBuf> = entries.filter(is_segment).collect();
    found.sort();
    found
}

#[test]
fn appended_entries_outlive_their_process() {
    let scratch = Scratch::new("outlives");
    for (run, sealed) in [(0, false), (1, true), (2, false)] {
        let mut running = open_folder(&scratch.path("log"));
        assert!(running.report.findings.is_empty(), "{:?}", running.report);
        assert_eq!(running.report.entries, run * 200);
        assert_eq!(read_all(&running.log, 300).0, (0..run * 200).collect::<Vec<_>>());
        assert_eq!(running.log.last_at().is_some(), run > 0);
        running.append(200, 300);
        if sealed {
            running.flush();
        }
        assert_eq!(read_all(&running.log, 300).0, (0..(run + 1) * 200).collect::<Vec<_>>());
    }
    let running = open_folder(&scratch.path("log"));
    let before = running.log.last_at().unwrap();
    let mut writer = running.writer;
    let late = writer.append(before, b"", b"");
    assert!(matches!(late, Err(AppendError::Timestamp { .. })), "{late:?}");
}

#[test]
fn every_key_is_found_in_segments_that_keep_their_own_index() {
    let scratch = Scratch::new("keys");
    let mut running = open_folder(&scratch.path("log"));
    running.append(300, 200);
    running.flush();
    // Some slots are in memory, some in files.
    running.append(50, 200);
    for _ in 0..2 {
        let log = &running.log;
        for key in -1..3502_i64 {
            let after = (key.max(0) + 9) / 10;
            let exact = (key % 10 == 0 && (0..350).contains(&after)).then_some(after as u64);
            let before = (key >= 0).then_some((key / 10).min(349) as u64);
            let after = (after < 350).then_some(after as u64);
            let position = |entry: Option<Entry>| entry.map(|entry| entry.position.0);
            assert_eq!(position(log.entry_at(at(key)).unwrap()), exact, "at {key}");
            assert_eq!(position(log.nearest_before(at(key)).unwrap()), before, "before {key}");
            assert_eq!(position(log.nearest_after(at(key)).unwrap()), after, "after {key}");
            let from = log.reader_from(at(key)).next().unwrap();
            assert_eq!(from.map(|entry| entry.position.0), after, "from {key}");
        }
        let times = at(155)..=at(2990);
        let range: Vec<u64> = log.range(times).map(|entry| entry.unwrap().position.0).collect();
        assert_eq!(range, (16..300).collect::<Vec<_>>());
        assert_eq!((log.entries(), log.end()), (350, Position(350)));
        assert!(log.entry(Position(350)).unwrap().is_none());
        let mut newest = log.reader_newest();
        assert_eq!(newest.next().unwrap().unwrap().position, Position(349));
        drop((running, newest));
        running = open_folder(&scratch.path("log"));
    }
}

#[test]
fn the_oldest_files_are_used_again_and_the_limit_holds() {
    let scratch = Scratch::new("wrap");
    let path = scratch.path("log");
    let mut running = open(Folder::open(&path).unwrap(), 6);
    for round in 0..40 {
        running.append(20, 1000);
        if round % 2 == 0 {
            running.flush();
        }
        assert!(running.writer.bytes_held() <= 6 * SEGMENT_BYTES);
        assert!(segments(&path).len() <= 6 + 7, "those that wait for the disk aside");
    }
    running.flush();
    running.append(40, 1000);
    assert!(segments(&path).len() <= 6 + 3);
    let (read, damaged, missing) = read_all(&running.log, 1000);
    assert_eq!((read.last(), damaged.len(), missing.len()), (Some(&839), 0, 1));
    let first = read[0];
    assert_eq!(read, (first..840).collect::<Vec<_>>());
    drop(running);
    let running = open(Folder::open(&path).unwrap(), 6);
    let (read, damaged, _) = read_all(&running.log, 1000);
    assert!(read[0] <= first && damaged.is_empty());
    assert_eq!(read, (read[0]..840).collect::<Vec<_>>());
}

#[test]
fn the_next_file_is_made_ready_while_the_log_grows_and_not_after() {
    let scratch = Scratch::new("ready");
    let path = scratch.path("log");
    let mut running = open(Folder::open(&path).unwrap(), 6);
    running.append(3, 1000);
    running.flusher.turn(&|| at(1));
    assert_eq!(segments(&path).len(), 1, "less than half of it is used");
    running.append(5, 1000);
    running.flusher.turn(&|| at(1));
    let files = segments(&path);
    assert_eq!(files.len(), 2);
    let ready = fs::read(&files[1]).unwrap();
    assert!(ready.len() == SEGMENT_BYTES as usize && ready.iter().all(|&byte| byte == 0));
    running.append(8, 1000);
    assert_eq!(segments(&path), files, "it is used");
    for _ in 0..30 {
        running.append(5, 1000);
        running.flusher.turn(&|| at(1));
    }
    assert!(segments(&path).len() <= 6 + 2, "{}", segments(&path).len());
    assert!(running.writer.bytes_held() <= 6 * SEGMENT_BYTES);
    let inodes = || {
        let inode = |path: &PathBuf| fs::metadata(path).unwrap().ino();
        segments(&path).iter().map(inode).collect::<BTreeSet<u64>>()
    };
    let before = inodes();
    running.append(200, 1000);
    running.flusher.turn(&|| at(1));
    assert_eq!(inodes(), before, "the same files, used again");
    let entries = running.log.end().0;
    drop(running);
    let running = open(Folder::open(&path).unwrap(), 6);
    assert!(running.report.findings.is_empty(), "{:?}", running.report);
    assert_eq!(running.log.end(), Position(entries));
}

#[test]
fn a_reader_keeps_its_entry_while_files_are_used_again() {
    let scratch = Scratch::new("pinned");
    let mut running = open(Folder::open(&scratch.path("log")).unwrap(), 6);
    running.append(1, 1000);
    let held = running.log.entry(Position(0)).unwrap().unwrap();
    for _ in 0..10 {
        running.append(30, 1000);
        running.flush();
        assert_entry(&held, 1000);
    }
    let all: Vec<Entry> = running.log.range(..).map(Result::unwrap).collect();
    let refused = loop {
        let number = running.log.end().0;
        match running.writer.append(at(number as i64 * 10), b"", &[0; 1000]) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::Pinned { .. }), "{refused:?}");
    drop(all);
    running.writer.append(at(1_000_000), b"", &[0; 1000]).unwrap();
    assert_entry(&held, 1000);
}

#[test]
fn entries_expire_by_age_and_are_released_by_position() {
    let scratch = Scratch::new("expire");
    let mut running = open_folder(&scratch.path("log"));
    running.append(100, 1000);
    running.flush();
    assert_eq!(running.writer.expire(at(0)).unwrap(), 0);
    assert!(running.writer.expire(at(500)).unwrap() >= 3);
    let first = read_all(&running.log, 1000).0[0];
    assert!((30..=50).contains(&first), "whole segments before 50: {first}");
    running.writer.release(Position(80)).unwrap();
    let first = read_all(&running.log, 1000).0[0];
    assert!((60..=80).contains(&first), "{first}");
    running.writer.release(Position(1000)).unwrap();
    assert!(!read_all(&running.log, 1000).0.is_empty(), "the one being filled stays");
    running.append(100, 1000);
    drop(running);
    let running = open_folder(&scratch.path("log"));
    assert_eq!(running.log.end(), Position(200), "no position is given twice");
}

#[test]
fn many_producers_share_a_flush() {
    let scratch = Scratch::new("group");
    let running = open_folder(&scratch.path("log"));
    let Running { writer, flusher, commits, log, .. } = running;
    let start = std::time::Instant::now();
    let clock = move || Instant::from_nanos(start.elapsed().as_nanos() as i64);
    let flushing = thread::spawn(move || flusher.run(clock));
    let writer = std::sync::Mutex::new(writer);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let mut writer = writer.lock().unwrap();
                    let time = at(log.end().0 as i64);
                    let appended = writer.append_durably(Durability::Disk, time, b"", b"entry");
                    drop(writer);
                    let position = appended.unwrap();
                    commits.wait(position).unwrap();
                    assert!(commits.durable() > position);
                }
            });
        }
    });
    let flushes = commits.counts().flushes;
    assert!((1..=160).contains(&flushes), "{flushes} flushes for 320 entries");
    drop(writer);
    flushing.join().unwrap();
    assert!(commits.wait(Position(1 << 40)).is_err(), "there is no flusher any more");
}

#[test]
fn a_full_segment_is_synced_after_a_while_or_when_asked_for() {
    let mut running = open(SimulatedDisk::new(5), 100);
    running.append(100, 1000);
    let start = at(1_000_000);
    let settles = running.flusher.turn(&|| start).unwrap();
    assert_eq!((running.commits.counts().flushes, running.commits.durable()), (0, Position(0)));
    assert_eq!(settles, start + std::time::Duration::from_secs(10));
    assert!(running.flusher.turn(&|| settles).is_none(), "nothing else is full");
    let durable = running.commits.durable();
    assert!(Position(80) < durable && durable < Position(100), "all but the newest: {durable}");
    running.append(1, 1000);
    let asked = running.writer.append_durably(Durability::Disk, at(1 << 40), b"", b"x").unwrap();
    let flush_at = running.flusher.turn(&|| settles).unwrap();
    assert!(flush_at < settles + std::time::Duration::from_millis(10));
    assert!(running.commits.poll(asked).is_none());
    running.flusher.turn(&|| flush_at);
    assert!(running.commits.poll(asked).unwrap().is_ok());
}

#[test]
fn a_failed_sync_stays_and_reading_and_page_go_on() {
    let disk = SimulatedDisk::new(3);
    let mut running = open(disk.clone(), 6);
    let append = |running: &mut Running<SimulatedDisk>, durability| {
        let time = at(running.log.end().0 as i64);
        running.writer.append_durably(durability, time, b"", &[1; 500])
    };
    let kept = append(&mut running, Durability::Disk).unwrap();
    running.flush();
    assert!(running.commits.wait(kept).is_ok());
    disk.fail_syncs(true);
    let lost = append(&mut running, Durability::Disk).unwrap();
    assert!(running.writer.flush().is_err());
    assert_eq!(running.commits.wait(lost).unwrap_err().position, lost);
    disk.fail_syncs(false);
    assert!(running.writer.flush().is_err(), "a later success does not restore lost entries");
    running.flusher.turn(&|| at(1 << 40));
    assert!(running.commits.wait(lost).is_err());
    let refused = append(&mut running, Durability::Disk).unwrap_err();
    assert_eq!(refused.code(), Code::STORAGE_FAILED);
    assert!(matches!(refused, AppendError::Storage(StorageError::NotDurable { .. })));
    for _ in 0..500 {
        append(&mut running, Durability::Page).unwrap();
    }
    assert!(running.log.last().unwrap().is_some());
    assert_eq!(running.commits.counts().failures, 1);
    assert!(running.writer.bytes_held() <= 6 * SEGMENT_BYTES);
}

#[test]
fn a_full_disk_refuses_and_goes_on_serving() {
    let disk = SimulatedDisk::new(4);
    disk.set_capacity(3 * SEGMENT_BYTES);
    let mut running = open(disk.clone(), 100);
    let refused = loop {
        let number = running.log.end().0;
        let (meta, body) = content(number, 1000);
        match running.writer.append(at(number as i64 * 10), &meta, &body) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::Storage(StorageError::Full { .. })), "{refused:?}");
    assert_eq!(refused.code(), Code::STORAGE_FULL);
    assert_eq!(
        refused.to_string() + ": " + &std::error::Error::source(&refused).unwrap().to_string(),
        "the storage of the log failed: the disk has no room for a new segment of 16384 bytes; \
         free some, or allow the log less"
    );
    let entries = running.log.entries();
    assert_eq!(read_all(&running.log, 1000).0, (0..entries).collect::<Vec<_>>());
    running.flush();
    assert!(running.writer.append(at(1 << 40), b"", &[0; 1000]).is_err());
    disk.set_capacity(u64::MAX);
    running.append(100, 1000);
    drop(running);
    let running = open(disk, 100);
    assert_eq!(read_all(&running.log, 1000).0, (0..entries + 100).collect::<Vec<_>>());
}

#[test]
fn memory_promises_nothing() {
    let (mut writer, _log) = crate::support::log_of(8, 4096);
    writer.append_durably(Durability::Memory, at(1), b"", b"x").unwrap();
    for asked in [Durability::Page, Durability::Disk] {
        let refused = writer.append_durably(asked, at(2), b"", b"x").unwrap_err();
        assert!(matches!(
            refused,
            AppendError::Storage(StorageError::Durability { given: Durability::Memory, .. })
        ));
    }
    assert_eq!(writer.last_at(), Some(at(1)), "nothing was appended");
}

/// A log of three small segments: sealed, sealed, and one that was being filled.
fn small_log(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut running = open_folder(path);
    running.append(70, 300);
    running.flush();
    running.append(20, 300);
    drop(running);
    let files = segments(path);
    assert_eq!(files.len(), 3);
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    };
    files.iter().map(read).collect()
}

fn disk_of(files: &[(String, Vec<u8>)]) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    for (name, bytes) in files {
        disk.put(name, bytes.clone());
    }
    disk
}

#[test]
fn each_byte_flipped_costs_one_entry_at_most() {
    let scratch = Scratch::new("flipped");
    let files = small_log(&scratch.path("log"));
    let all: Vec<u64> = (0..90).collect();
    let mut untouched = 0;
    for (number, (name, bytes)) in files.iter().enumerate() {
        for offset in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[offset] ^= 1 << (offset % 8);
            let mut files = files.clone();
            files[number] = (name.clone(), flipped);
            let running = open(disk_of(&files), 1000);
            let (read, damaged, missing) = read_all(&running.log, 300);
            let lost: Vec<u64> = all.iter().copied().filter(|n| !read.contains(n)).collect();
            assert!(lost.len() <= 1, "{name} byte {offset}: {lost:?} {:?}", running.report);
            untouched += u64::from(lost.is_empty());
            match lost[..] {
                // The last of all has none after it that would tell of it.
                [89] => assert_eq!(running.log.end(), Position(89)),
                [lost] => assert!(damaged == [lost] || missing == [(lost, lost + 1)]),
                _ => assert_eq!((damaged.len(), missing.len()), (0, 0), "{name} byte {offset}"),
            }
        }
    }
    assert!(untouched > 3 * 4096, "headers, slots and room: {untouched}");
}

#[test]
fn a_file_cut_at_any_length_gives_what_is_whole() {
    let scratch = Scratch::new("cut");
    let files = small_log(&scratch.path("log"));
    for number in 0..3 {
        let (name, bytes) = &files[number];
        let mut most = 0;
        for len in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
            let mut files = files.clone();
            files[number] = (name.clone(), bytes[..len].to_vec());
            let running = open(disk_of(&files), 1000);
            let (read, damaged, missing) = read_all(&running.log, 300);
            assert!(damaged.is_empty(), "{damaged:?}");
            assert!(missing.len() <= 1 && read.is_sorted());
            assert!(read.len() >= most, "{name} cut to {len} gives {} of {most}", read.len());
            most = read.len();
        }
        assert_eq!(most, 90, "only the trailer was cut");
    }
}

proptest! {
    // A failing case prints its seed and what was changed.
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_damage_makes_up_an_entry_or_keeps_the_log_from_going_on(
        changes in prop::collection::vec((0..3_usize, 0..SEGMENT_BYTES as usize, any::<u8>()), 0..30),
        cut in (0..3_usize, 0..2 * SEGMENT_BYTES as usize),
        swapped in prop::option::of((0..3_usize, 0..3_usize)),
        copied in prop::option::of((0..3_usize, 0..6_u64)),
    ) {
        static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
        let files = FILES.get_or_init(|| small_log(&Scratch::new("damaged").path("log")));
        let mut files = files.clone();
        for (file, offset, value) in changes {
            files[file].1[offset] = value;
        }
        files[cut.0].1.truncate(cut.1);
        if let Some((one, other)) = swapped {
            let bytes = files[one].1.clone();
            files[one].1 = std::mem::replace(&mut files[other].1, bytes);
        }
        if let Some((from, to)) = copied {
            let copy = files[from].1.clone();
            files.push((format!("{to:016x}.segment"), copy));
        }
        let disk = disk_of(&files);
        let mut end = 0;
        for _ in 0..2 {
            let mut running = open(disk.clone(), 1000);
            let (read, ..) = read_all(&running.log, 300);
            prop_assert!(read.is_sorted() && running.log.end().0 >= end);
            running.append(40, 300);
            running.flush();
            end = running.log.end().0;
        }
        let (read, ..) = read_all(&open(disk, 1000).log, 300);
        prop_assert!(read.ends_with(&(end - 80..end).collect::<Vec<_>>()));
    }
}

#[test]
fn files_of_zeros_are_set_aside_where_entries_are_missing() {
    let scratch = Scratch::new("zeros");
    let whole = small_log(&scratch.path("log"));
    let zeros = |bytes: &[u8]| vec![0; bytes.len()];
    let number = |number: u64, bytes: Vec<u8>| (format!("{number:016x}.segment"), bytes);
    // Which of the three files are zeros, which other files of zeros there are, and which are set aside.
    for (emptied, beside, expected) in [
        (&[][..], &[][..], &[][..]),
        (&[0, 1, 2], &[], &[0, 1, 2]),
        (&[0, 1, 2], &[3], &[0, 1, 2, 3]),
        (&[1], &[], &[1]),
        (&[0], &[], &[0]),
        // The next one was made ready; the newest one with it is two.
        (&[], &[3], &[]),
        (&[2], &[3], &[2, 3]),
        // No entry is missing behind the last.
        (&[2], &[], &[]),
    ] {
        let mut files = whole.clone();
        for &at in emptied {
            files[at].1 = zeros(&files[at].1);
        }
        files.extend(beside.iter().map(|&id| number(id, zeros(&whole[0].1))));
        let disk = disk_of(&files);
        let note = format!("{emptied:?} {beside:?}");
        let mut running = open(disk.clone(), 1000);
        let found: Vec<&str> = running
            .report
            .findings
            .iter()
            .filter_map(|finding| match finding {
                Finding::SetAside { name, to: Ok(_), why: Damage::Zeros } => Some(name.as_str()),
                _ => None,
            })
            .collect();
        let names: Vec<_> = expected.iter().map(|&id| number(id, Vec::new()).0).collect();
        assert_eq!(found, names, "{note}");
        running.append(40, 300);
        running.flush();
        drop(running);
        for name in names {
            let aside = disk.bytes_of(&name.replace(".segment", ".damaged"));
            assert!(aside.is_some_and(|bytes| !bytes.is_empty()), "{note}");
        }
        // A second start has nothing more to say of them.
        let running = open(disk, 1000);
        let aside = |finding: &Finding| matches!(finding, Finding::SetAside { .. });
        assert!(!running.report.findings.iter().any(aside), "{note}: {:?}", running.report);
        let (read, ..) = read_all(&running.log, 300);
        assert!(read.len() >= 40, "{note}");
    }
}

#[test]
fn entries_of_a_file_that_was_emptied_are_missing_also_where_it_is_the_oldest() {
    let scratch = Scratch::new("emptied");
    let whole = small_log(&scratch.path("log"));
    for (emptied, expected) in [(None, 0), (Some(0), 1), (Some(1), 1)] {
        let mut files = whole.clone();
        if let Some(at) = emptied {
            files[at as usize].1.clear();
        }
        let running = open(disk_of(&files), 1000);
        let lost = |finding: &&Finding| matches!(finding, Finding::Lost { .. });
        let found = running.report.findings.iter().filter(lost).count();
        assert_eq!(found, expected, "{emptied:?}: {:?}", running.report);
    }
}

#[test]
fn a_log_that_was_damaged_goes_on() {
    let scratch = Scratch::new("goes-on");
    let mut files = small_log(&scratch.path("log"));
    files[1].1.fill(0xff);
    let disk = disk_of(&files);
    let mut running = open(disk.clone(), 1000);
    assert!(
        matches!(
            &running.report.findings[..],
            [Finding::SetAside { to: Ok(to), why: Damage::Unreadable, .. }, Finding::Lost { .. }]
                if to == "0000000000000001.damaged"
        ),
        "{:?}",
        running.report
    );
    running.append(50, 300);
    running.flush();
    drop(running);
    let running = open(disk.clone(), 1000);
    let (read, _, missing) = read_all(&running.log, 300);
    assert_eq!((read.last(), missing.len()), (Some(&139), 1));
    assert!(disk.bytes_of("0000000000000001.damaged").is_some(), "nothing is thrown away");
    assert!(
        matches!(&running.report.findings[..], [Finding::Foreign { .. }, Finding::Lost { .. }]),
        "{:?}",
        running.report
    );
}

#[test]
fn foreign_files_are_left_alone_and_named() {
    let scratch = Scratch::new("foreign");
    let path = scratch.path("log");
    small_log(&path);
    let other = scratch.path("other");
    let Opened { files, .. } = Files::open(Folder::open(&other).unwrap(), files_config(8)).unwrap();
    let (mut writer, _log) = Log::open(log_config(9), files).unwrap();
    writer.append(at(1), b"", b"theirs").unwrap();
    drop((writer, _log));
    let theirs = fs::read(&segments(&other)[0]).unwrap();
    fs::write(path.join("0000000000000020.segment"), &theirs).unwrap();
    fs::set_permissions(path.join("0000000000000020.segment"), fs::Permissions::from_mode(0o600))
        .unwrap();
    fs::write(path.join("notes.txt"), b"keep").unwrap();
    fs::create_dir(path.join("0000000000000021.segment")).unwrap();
    fs::write(scratch.path("target"), [0; 8192]).unwrap();
    symlink(scratch.path("target"), path.join("0000000000000022.segment")).unwrap();
    fs::write(path.join("0000000000000023.segment"), [0; 8192]).unwrap();
    fs::set_permissions(path.join("0000000000000023.segment"), fs::Permissions::from_mode(0o666))
        .unwrap();

    let mut running = open_folder(&path);
    let mut named: Vec<String> = Vec::new();
    for finding in &running.report.findings {
        match finding {
            Finding::Foreign { name } => named.push(format!("foreign {name}")),
            Finding::Untrusted { name } => named.push(format!("untrusted {name}")),
            other => panic!("{other:?}"),
        }
    }
    named.sort();
    assert_eq!(
        named,
        [
            "foreign 0000000000000020.segment",
            "foreign notes.txt",
            "untrusted 0000000000000021.segment",
            "untrusted 0000000000000022.segment",
            "untrusted 0000000000000023.segment",
        ]
    );
    running.append(200, 300);
    running.flush();
    assert_eq!(read_all(&running.log, 300).0, (0..290).collect::<Vec<_>>());
    assert_eq!(fs::read(path.join("0000000000000020.segment")).unwrap(), theirs);
    assert_eq!(fs::read(path.join("notes.txt")).unwrap(), b"keep");
    assert_eq!(fs::read(scratch.path("target")).unwrap(), [0; 8192]);
}

#[test]
fn a_later_format_is_refused_and_nothing_is_touched() {
    let scratch = Scratch::new("versions");
    let files = small_log(&scratch.path("log"));
    for (offset, value, note) in [(8, 2, "a later major"), (12, 2, "a feature to be known")] {
        let mut files = files.clone();
        let header = &mut files[1].1;
        header[offset] = value;
        let crc = crc32c::crc32c(&header[..76]);
        header[76..80].copy_from_slice(&crc.to_le_bytes());
        let disk = disk_of(&files);
        let error = Files::open(disk.clone(), files_config(7)).err().expect(note);
        assert!(
            matches!(
                error,
                OpenError::Major { major: 2, .. } | OpenError::Features { features: 2, .. }
            ),
            "{note}: {error}"
        );
        for (name, bytes) in &files {
            assert_eq!(disk.bytes_of(name).as_ref(), Some(bytes), "{note}");
        }
    }
    let mut files = files;
    let header = &mut files[1].1;
    header[10] = 9;
    header[16] = 0x80;
    let crc = crc32c::crc32c(&header[..76]);
    header[76..80].copy_from_slice(&crc.to_le_bytes());
    let running = open(disk_of(&files), 1000);
    assert_eq!(read_all(&running.log, 300).0.len(), 90, "a later minor is read");
}

#[test]
fn a_file_cut_under_a_running_log_costs_its_entries_and_not_the_process() {
    let scratch = Scratch::new("cut-live");
    let path = scratch.path("log");
    let mut running = open_folder(&path);
    running.append(60, 300);
    running.flush();
    running.append(5, 300);
    let files = segments(&path);
    for file in [&files[0], &files[1]] {
        fs::OpenOptions::new().write(true).open(file).unwrap().set_len(4096).unwrap();
    }
    let (read, damaged, _) = read_all(&running.log, 300);
    assert!(!damaged.is_empty() && !read.contains(&0), "{read:?} {damaged:?}");
    // The segment that was being filled is left, the next append begins another.
    let mut failed = 0;
    for number in 65..200 {
        let (meta, body) = content(running.log.end().0, 300);
        let appended = running.writer.append(at(running.log.end().0 as i64 * 10), &meta, &body);
        failed += u64::from(appended.is_err());
        assert!(failed <= 1, "{number}: {appended:?}");
    }
    drop(running);
    let running = open_folder(&path);
    assert!(read_all(&running.log, 300).0.len() >= 130);
}

#[test]
fn entries_that_cannot_be_stored_are_offered_again_or_reported_missing() {
    for is_offered_again in [true, false] {
        let scratch = Scratch::new(if is_offered_again { "offer-again" } else { "offer-skip" });
        let path = scratch.path("log");
        let mut running = open_folder(&path);
        running.append(5, 300);
        let mut live = running.log.reader_next();
        let mut behind = running.log.reader_at(Position(5));
        let newest = segments(&path).pop().unwrap();
        let (meta, body) = content(5, 300);
        let body = Bytes::from(body);
        let offer = |running: &mut Running<Folder>| {
            running.writer.offer(Durability::Page, at(50), &meta, &body)
        };
        offer(&mut running).unwrap();
        assert_eq!(live.next().unwrap().unwrap().body, body);
        fs::OpenOptions::new().write(true).open(newest).unwrap().set_len(0).unwrap();
        running.writer.store().expect_err("the file is gone under it");
        let log = running.log.clone();
        assert_eq!((log.end(), log.last_at()), (Position(5), Some(at(40))));
        assert!(behind.next().unwrap().is_none(), "it is not there");
        if is_offered_again {
            assert_eq!(offer(&mut running).unwrap(), Position(5));
            running.writer.store().unwrap();
            assert_eq!(behind.next().unwrap().unwrap().body, body);
        } else {
            running.writer.skip().unwrap();
            assert_eq!(log.end(), Position(6));
        }
        assert!(live.next().unwrap().is_none(), "it is not read twice");
        running.append(3, 300);
        if !is_offered_again {
            let Err(ReadError::Overtaken(missed)) = behind.next() else {
                panic!("a gap is reported")
            };
            assert_eq!((missed.missed_from, missed.missed_to), (Position(5), Position(6)));
        }
        for reader in [&mut live, &mut behind] {
            for position in 6..9 {
                assert_eq!(reader.next().unwrap().unwrap().position, Position(position));
            }
        }
        // Readers hold the folder.
        drop((running, log, live, behind));
        let running = open_folder(&path);
        assert_eq!(running.log.end(), Position(9));
        let read = read_all(&running.log, 300).0;
        assert_eq!(read, if is_offered_again { vec![5, 6, 7, 8] } else { vec![6, 7, 8] });
    }
}

//! Files with memory to fall back on: a disk that is full, fails or is slow stops no live reader.

use std::time::Duration;

use bytes::Bytes;
use tidegate_log::{
    AppendError, Durability, Files, FilesConfig, Flusher, Health, Log, LogConfig, LogWriter,
    NodeKey, NodeKeys, Opened, ReadError, Storage, Store, simulated::SimulatedDisk,
};
use tidegate_message::{Code, Position};

use crate::support::{at, bytes_of};

type Stored = Store<SimulatedDisk>;

struct Running {
    writer: LogWriter<Stored>,
    log: Log<Stored>,
    health: Health,
    flusher: Flusher<SimulatedDisk>,
}

fn open(disk: &SimulatedDisk, keys: Option<NodeKeys>, size: LogConfig) -> Running {
    let config = FilesConfig { log_id: 7, opened: at(5), commit: Default::default(), keys };
    let Opened { files, flusher, .. } = Files::open(disk.clone(), config).unwrap();
    let store = Store::files(files);
    let health = store.health();
    let (writer, log) = Log::open(size, store).unwrap();
    Running { writer, log, health, flusher }
}

fn size(segments: u64, segment_bytes: u64) -> LogConfig {
    LogConfig { bytes_max: segments * segment_bytes, segment_bytes }
}

impl Running {
    /// Appends one more entry, as durably as asked.
    fn append(&mut self, durability: Durability, bytes: usize) -> Result<Position, AppendError> {
        let number = self.log.end().0;
        let body = Bytes::from(bytes_of(number, bytes));
        self.writer.append_shared(durability, at(number as i64 * 10), b"meta", &body)
    }

    /// As live data is appended: on the disk if that takes it, in memory if not.
    fn append_live(&mut self, bytes: usize) {
        let stored = self.append(Durability::Page, bytes);
        if stored.is_err() {
            self.append(Durability::Memory, bytes).unwrap();
        }
    }

    /// The positions that can be read, each with its content, and the gaps between.
    fn read_all(&self, bytes: usize) -> (Vec<u64>, Vec<(u64, u64)>) {
        let (mut read, mut gaps) = (Vec::new(), Vec::new());
        let mut reader = self.log.reader_at(Position(0));
        loop {
            match reader.next() {
                Ok(None) => return (read, gaps),
                Ok(Some(entry)) => {
                    assert_eq!(entry.body, bytes_of(entry.position.0, bytes));
                    assert_eq!(entry.at, at(entry.position.0 as i64 * 10));
                    read.push(entry.position.0);
                }
                Err(ReadError::Overtaken(gap)) => gaps.push((gap.missed_from.0, gap.missed_to.0)),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn on_a_full_disk_the_log_keeps_less_and_loses_nothing_new() {
    const SEGMENT: u64 = 16 << 10;
    let disk = SimulatedDisk::new(1);
    disk.set_capacity(9 * SEGMENT);
    let mut running = open(&disk, None, size(100, SEGMENT));
    for _ in 0..500 {
        running.append(Durability::Page, 1000).unwrap();
        running.flusher.turn(&|| at(1));
    }
    let counts = running.health.counts();
    assert_eq!(counts.not_stored, 0);
    assert!(counts.failure.is_none() && counts.shrunk > 10, "{counts:?}");
    let (read, gaps) = running.read_all(1000);
    assert!(read.len() > 50, "most of the disk is used: {}", read.len());
    assert_eq!((read.last(), gaps.len()), (Some(&499), 1), "{gaps:?}");
    assert_eq!(read, (read[0]..500).collect::<Vec<_>>());
    // Once there is room, it takes its size again.
    disk.set_capacity(u64::MAX);
    for _ in 0..500 {
        running.append(Durability::Page, 1000).unwrap();
    }
    let before = read[0];
    assert_eq!(running.health.counts().shrunk, counts.shrunk);
    let (read, _) = running.read_all(1000);
    assert!(read.len() > 500 && read[0] >= before, "{}", read.len());
    drop(running);
    disk.end_process();
    let running = open(&disk, None, size(100, SEGMENT));
    assert_eq!(running.read_all(1000).0, read);
}

#[test]
fn a_disk_that_takes_nothing_is_replaced_by_little_memory() {
    const SEGMENT: u64 = 8 << 20;
    let disk = SimulatedDisk::new(2);
    disk.set_capacity(0);
    let mut running = open(&disk, None, size(100, SEGMENT));
    let refused = running.append(Durability::Disk, 10).unwrap_err();
    assert_eq!(refused.code(), Code::STORAGE_FULL);
    assert!(running.append(Durability::Page, 10).is_err());
    assert_eq!(running.log.end(), Position(0), "a refused entry was not appended");
    for _ in 0..40 {
        running.append_live(3 << 20);
    }
    assert!(running.writer.bytes_held() <= 10 * SEGMENT, "{}", running.writer.bytes_held());
    let counts = running.health.counts();
    assert_eq!((counts.not_stored, counts.not_stored_bytes), (40, 40 * ((3 << 20) + 4)));
    assert!(counts.failure.is_some());
    let (read, gaps) = running.read_all(3 << 20);
    assert_eq!((read.last(), gaps.len()), (Some(&39), 1));
    // Each new segment asks the disk again.
    disk.set_capacity(u64::MAX);
    for _ in 0..3 {
        running.append_live(3 << 20);
    }
    let counts = running.health.counts();
    assert!(counts.failure.is_none() && counts.not_stored < 43, "{counts:?}");
    let stored = running.append(Durability::Disk, 10).unwrap();
    running.writer.flush().unwrap();
    drop(running);
    disk.end_process();
    let running = open(&disk, None, size(100, SEGMENT));
    assert_eq!(running.log.end(), stored.next());
    assert_eq!(running.log.last().unwrap().unwrap().body, bytes_of(stored.0, 10));
}

#[test]
fn stored_entries_stay_while_memory_stands_in_and_the_gap_is_reported() {
    const SEGMENT: u64 = 32 << 20;
    let disk = SimulatedDisk::new(3);
    let mut running = open(&disk, None, size(100, SEGMENT));
    for _ in 0..4 {
        running.append(Durability::Page, 12 << 20).unwrap();
    }
    running.health.suspend(Duration::from_secs(1));
    let refused = running.append(Durability::Page, 10).unwrap_err();
    assert_eq!(refused.code(), Code::STORAGE_FAILED);
    for _ in 0..10 {
        running.append_live(12 << 20);
    }
    let (read, gaps) = running.read_all(12 << 20);
    // Three segments of memory, with two entries each.
    assert_eq!((read, gaps), (vec![0, 1, 2, 3, 8, 9, 10, 11, 12, 13], vec![(4, 8)]));
    // A reader that begins within the gap learns of it, too.
    let within = running.log.reader_from(at(55));
    assert_eq!(within.missing_at_start(), Some((at(55), at(80))));
    assert_eq!(running.log.reader_from(at(80)).missing_at_start(), None);
    running.health.resume();
    for _ in 0..3 {
        running.append_live(12 << 20);
    }
    assert!(running.health.counts().failure.is_none());
    drop(running);
    disk.end_process();
    let running = open(&disk, None, size(100, SEGMENT));
    let (read, gaps) = running.read_all(12 << 20);
    assert_eq!((read[..4].to_vec(), gaps.len()), (vec![0, 1, 2, 3], 1), "{read:?} {gaps:?}");
    assert_eq!(read.last(), Some(&16));
}

#[test]
fn the_newest_entry_is_handed_on_as_it_was_given() {
    let keys = NodeKeys { current: NodeKey::from_bytes([1; 32]), older: Vec::new() };
    for keys in [None, Some(keys)] {
        let mut running = open(&SimulatedDisk::new(4), keys, size(100, 64 << 10));
        let given = Bytes::from(bytes_of(0, 5000));
        let mut live = running.log.reader_next();
        let appended = running.writer.append_shared(Durability::Page, at(0), b"meta", &given);
        let live = live.next().unwrap().unwrap();
        assert_eq!(
            (live.position, live.at, &live.meta[..]),
            (appended.unwrap(), at(0), &b"meta"[..])
        );
        assert_eq!(live.body.as_ptr(), given.as_ptr());
        for found in [running.log.last(), running.log.entry_at(at(0)), running.log.first()] {
            assert_eq!(found.unwrap().unwrap(), live);
        }
        running.append(Durability::Page, 10).unwrap();
        let read = running.log.entry(Position(0)).unwrap().unwrap();
        assert_eq!(read, live);
        assert_ne!(read.body.as_ptr(), given.as_ptr());
    }
    let (mut writer, log) = Log::create(size(8, 4096), Stored::memory()).unwrap();
    let given = Bytes::from_static(b"given");
    writer.append_shared(Durability::Memory, at(0), b"", &given).unwrap();
    assert_ne!(log.last().unwrap().unwrap().body.as_ptr(), given.as_ptr(), "it is sliced anyway");
}

#[test]
fn in_memory_alone_it_is_memory() {
    let store = Stored::memory();
    assert!(store.admit(Durability::Page).is_err());
    let (mut writer, log) = Log::create(size(4, 4096), store).unwrap();
    for number in 0..100 {
        writer.append(at(number), b"", &[number as u8; 500]).unwrap();
    }
    assert!(log.entries() > 10 && log.entries() < 33);
    assert!(writer.bytes_held() <= 4 * 4096);
    assert_eq!(log.first_at(), Some(at(100 - log.entries() as i64)));
    assert_eq!(log.time_of(Position(99)), Some(at(99)));
    assert_eq!(log.time_of(Position(3)), None);
}

#[test]
fn what_is_offered_is_read_before_it_is_stored() {
    let disk = SimulatedDisk::new(5);
    let keys = NodeKeys { current: NodeKey::from_bytes([1; 32]), older: Vec::new() };
    let mut running = open(&disk, Some(keys.clone()), size(100, 64 << 10));
    let mut live = running.log.reader_next();
    for number in 0..100 {
        let body = Bytes::from(bytes_of(number, 3000));
        let offered = running.writer.offer(Durability::Page, at(number as i64), b"meta", &body);
        assert_eq!(offered.unwrap(), Position(number));
        let read = live.next().unwrap().unwrap();
        assert_eq!((read.at, &read.meta[..], &read.body), (at(number as i64), &b"meta"[..], &body));
        assert_eq!(read.body.as_ptr(), body.as_ptr());
        let log = &running.log;
        for found in [log.last(), log.entry_at(read.at), log.entry(Position(number))] {
            assert_eq!(found.unwrap().as_ref(), Some(&read));
        }
        assert_eq!((log.entries(), log.last_at()), (number + 1, Some(read.at)));
        running.writer.store().unwrap();
        running.writer.store().expect("it is stored once");
    }
    let body = Bytes::from_static(b"never stored");
    running.writer.offer(Durability::Page, at(100), b"", &body).unwrap();
    assert_eq!(live.next().unwrap().unwrap().body, body);
    drop(running);
    disk.end_process();
    let running = open(&disk, Some(keys), size(100, 64 << 10));
    assert_eq!(running.log.end(), Position(100));
    for number in 0..100 {
        let entry = running.log.entry(Position(number)).unwrap().unwrap();
        assert_eq!(entry.body, bytes_of(number, 3000));
    }
}

#[test]
#[should_panic(expected = "an offered entry is stored before another")]
fn one_at_a_time_is_offered() {
    let mut running = open(&SimulatedDisk::new(6), None, size(100, 64 << 10));
    let body = Bytes::from_static(b"one");
    running.writer.offer(Durability::Page, at(0), b"", &body).unwrap();
    let _ = running.writer.offer(Durability::Page, at(1), b"", &body);
}

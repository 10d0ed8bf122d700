//! Logs in folders: recovery, and faults that keep a log from its folder without keeping the node from running.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use tempfile::TempDir;
use tidegate_log::NodeKey;
use tidegate_message::Code;

use super::*;

const SIZE: LogConfig = LogConfig { bytes_max: 1 << 20, segment_bytes: 64 << 10 };

fn config(data_dir: &Path, keys: Option<NodeKeys>) -> FrameLogSettings {
    let place = Place::Files {
        data_dir: data_dir.to_owned(),
        durability: Durability::Page,
        keys: keys.map(Arc::new),
    };
    FrameLogSettings { size: SIZE, age: None, place }
}

fn keys(byte: u8) -> NodeKeys {
    NodeKeys { current: NodeKey::from_bytes([byte; 32]), older: Vec::new() }
}

fn name() -> LogName {
    LogName::Camera("cam1".parse().unwrap())
}

fn open(data_dir: &TempDir) -> FrameLog {
    FrameLog::open(&config(data_dir.path(), None), &name()).unwrap()
}

fn append(opened: &mut FrameLog, at: Instant) -> Kept {
    opened.writer.append(at, b"meta", &Bytes::from(vec![7; 1000])).unwrap()
}

fn times(log: &Log) -> Vec<Instant> {
    log.range(..).map(|entry| entry.unwrap().at).collect()
}

/// Whether frames are stored.
fn is_stored(opened: &mut FrameLog) -> bool {
    append(opened, clock::now()).durability == Durability::Page
}

fn folder(data_dir: &TempDir) -> PathBuf {
    data_dir.path().join("log/camera/cam1")
}

#[test]
fn frames_are_there_again_in_a_folder_of_their_own() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut opened = open(&data_dir);
        assert_eq!(times(&opened.log), all);
        for _ in 0..200 {
            all.push(clock::now());
            assert_eq!(append(&mut opened, *all.last().unwrap()).durability, Durability::Page);
        }
        assert_eq!(times(&opened.log), all);
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = folder(&data_dir);
    for path in [&folder, folder.parent().unwrap(), &data_dir.path().join("log")] {
        assert_eq!(mode(path), 0o700, "{}", path.display());
    }
    for entry in fs::read_dir(&folder).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}

#[test]
fn a_folder_that_cannot_be_trusted_keeps_no_camera_from_running() {
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil); 5] = [
        ("a link out", |data_dir| {
            let elsewhere = data_dir.join("elsewhere");
            fs::create_dir_all(&elsewhere).unwrap();
            fs::create_dir_all(data_dir.join("log/camera")).unwrap();
            symlink(&elsewhere, data_dir.join("log/camera/cam1")).unwrap();
        }),
        ("a link out above", |data_dir| {
            let elsewhere = data_dir.join("elsewhere");
            fs::create_dir_all(&elsewhere).unwrap();
            symlink(&elsewhere, data_dir.join("log")).unwrap();
        }),
        ("a file", |data_dir| {
            fs::create_dir_all(data_dir.join("log/camera")).unwrap();
            fs::write(data_dir.join("log/camera/cam1"), "x").unwrap();
        }),
        ("open to others", |data_dir| {
            let folder = data_dir.join("log/camera/cam1");
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        }),
        ("open to others above", |data_dir| {
            let folder = data_dir.join("log/camera");
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        }),
    ];
    for (what, spoil) in cases {
        let data_dir = tempfile::tempdir().unwrap();
        spoil(data_dir.path());
        let mut opened = open(&data_dir);
        assert!(!is_stored(&mut opened), "{what}");
        assert_eq!(opened.log.entries(), 1, "{what}: it is delivered from memory");
        let elsewhere = fs::read_dir(data_dir.path().join("elsewhere"));
        assert!(
            elsewhere.is_ok_and(|mut entries| entries.next().is_none()) || !what.contains("link")
        );
    }
}

#[test]
fn one_process_has_a_log_and_another_goes_on_in_memory() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut first = open(&data_dir);
    assert!(is_stored(&mut first));
    let mut second = open(&data_dir);
    assert!(!is_stored(&mut second) && is_stored(&mut first));
    drop(first);
    assert!(is_stored(&mut open(&data_dir)), "it is free at once");
}

#[test]
fn a_sealed_log_opens_with_its_key_alone() {
    let data_dir = tempfile::tempdir().unwrap();
    let open = |keys| FrameLog::open(&config(data_dir.path(), keys), &name()).unwrap();
    let mut opened = open(Some(keys(1)));
    let at = clock::now();
    append(&mut opened, at);
    drop(opened);
    let segment = fs::read(folder(&data_dir).join("0000000000000000.segment")).unwrap();
    assert!(!segment.windows(100).any(|bytes| bytes == [7; 100]), "nothing is in clear text");
    for wrong in [Some(keys(2)), None] {
        let mut opened = open(wrong);
        assert_eq!(opened.log.entries(), 0);
        assert!(!is_stored(&mut opened), "nothing is written over it");
    }
    let rotated = NodeKeys { older: vec![keys(1).current], ..keys(2) };
    for right in [keys(1), rotated, keys(2)] {
        let opened = open(Some(right));
        assert_eq!(times(&opened.log), [at]);
    }
}

#[test]
fn damaged_and_foreign_files_cost_their_own_frames_alone() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut opened = open(&data_dir);
    let first = clock::now();
    for number in 0..300_u64 {
        append(&mut opened, first + Duration::from_nanos(number));
    }
    drop(opened);
    super::finish();
    let folder = folder(&data_dir);
    let segment = |number: u32| folder.join(format!("{number:016x}.segment"));
    fs::write(folder.join("notes.txt"), "not ours").unwrap();
    fs::write(segment(1), vec![9; 64 << 10]).unwrap();
    let mut bytes = fs::read(segment(2)).unwrap();
    bytes[10_000] ^= 1;
    fs::write(segment(2), bytes).unwrap();
    let mut opened = open(&data_dir);
    let mut reader = opened.log.reader_from(Instant::MIN);
    let (mut read, mut damaged, mut missed) = (Vec::new(), 0, 0);
    loop {
        match reader.next() {
            Ok(Some(entry)) => read.push(entry.at),
            Ok(None) => break,
            Err(tidegate_log::ReadError::Overtaken(gap)) => missed += gap.missed(),
            Err(error) => {
                assert!(error.is_lost(), "{error}");
                damaged += 1;
            }
        }
    }
    assert!(read.is_sorted());
    assert_eq!((damaged, read.len() as u64 + damaged + missed), (1, 300));
    assert!((50..70).contains(&missed), "{missed} of one segment");
    assert!(folder.join("0000000000000001.damaged").exists() && folder.join("notes.txt").exists());
    assert!(is_stored(&mut opened));
}

#[test]
fn what_lies_ahead_of_a_clock_that_was_set_back_is_put_beside() {
    let data_dir = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    let ahead = clock::now() + hour;
    for round in 0..2 {
        let mut opened = open(&data_dir);
        assert_eq!((opened.log.entries(), opened.earlier.len()), (0, round));
        append(&mut opened, ahead + hour * round as u32);
    }
    let mut opened = open(&data_dir);
    let earlier: Vec<Vec<Instant>> = opened.earlier.iter().map(times).collect();
    assert_eq!(earlier, [vec![ahead + hour], vec![ahead]], "newest first");
    let now = clock::now();
    append(&mut opened, now);
    drop(opened);
    let opened = open(&data_dir);
    assert_eq!((times(&opened.log), opened.earlier.len()), (vec![now], 2));
}

#[test]
fn what_is_too_old_goes() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut opened = open(&data_dir);
    let long_ago = clock::now() - Duration::from_secs(100);
    for number in 0..300_u64 {
        append(&mut opened, long_ago + Duration::from_nanos(number));
    }
    let before = opened.log.entries();
    append(&mut opened, clock::now());
    drop(opened);
    let age = Some(Duration::from_secs(50));
    let config = FrameLogSettings { age, ..config(data_dir.path(), None) };
    let opened = FrameLog::open(&config, &name()).unwrap();
    // The newest segment stays.
    assert!(opened.log.entries() < 70 && before == 300, "{}", opened.log.entries());
}

#[test]
fn a_slow_disk_is_given_nothing_for_a_while() {
    let data_dir = tempfile::tempdir().unwrap();
    let mut opened = open(&data_dir);
    assert!(is_stored(&mut opened));
    opened.writer.writing().health.suspend(Duration::from_secs(1));
    opened.writer.writing().resume_at = Some(clock::now() + Duration::from_secs(3600));
    assert!(!is_stored(&mut opened));
    let health = opened.writer.health();
    assert_eq!((health.not_stored, health.failures), (1, 1));
    assert_eq!(health.failure.map(|failure| failure.code()), Some(Code::STORAGE_FAILED));
    opened.writer.writing().resume_at = Some(clock::now());
    // With the next segment it is asked again.
    let stored = (0..200).position(|_| is_stored(&mut opened)).expect("it is stored again");
    assert!(stored > 10, "{stored}");
    assert!(opened.writer.health().failure.is_none());
}

#[test]
fn frames_that_are_stored_beside_their_way_are_all_there() {
    let data_dir = tempfile::tempdir().unwrap();
    let open = || FrameLog::open(&config(data_dir.path(), Some(keys(1))), &name()).unwrap();
    // Small ones, and such as another thread stores.
    let body = |number: usize| Bytes::from(vec![number as u8; 1 + number % 2 * 40_000]);
    let FrameLog { writer, log, .. } = open();
    let mut live = log.reader_next();
    let mut all = Vec::new();
    for number in 0..15 {
        let at = clock::now();
        writer.offer(at, b"meta", &body(number)).unwrap();
        writer.store_beside();
        let read = live.next().unwrap().expect("readers have it at once");
        assert_eq!((read.at, &read.body), (at, &body(number)));
        all.push(at);
    }
    assert_eq!(writer.health().not_stored, 0);
    let at = clock::now();
    writer.offer(at, b"meta", &body(15)).unwrap();
    all.push(at);
    drop((writer, log, live));
    let opened = open();
    assert_eq!(times(&opened.log), all, "the last was stored when no other came after it");
    for (number, entry) in opened.log.range(..).enumerate() {
        assert_eq!(entry.unwrap().body, body(number));
    }
}

#[test]
fn a_frame_whose_file_breaks_while_it_is_on_its_way_is_kept_elsewhere() {
    let data_dir = tempfile::tempdir().unwrap();
    let FrameLog { writer, log, .. } = open(&data_dir);
    let mut live = log.reader_next();
    let body = Bytes::from(vec![7; 1000]);
    let times = [clock::now(), clock::now(), clock::now()];
    writer.append(times[0], b"meta", &body).unwrap();
    writer.offer(times[1], b"meta", &body).unwrap();
    assert_eq!([live.next(), live.next()].map(|read| read.unwrap().unwrap().at), times[..2]);
    for entry in fs::read_dir(folder(&data_dir)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some() {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
        }
    }
    writer.store().unwrap();
    let found = log.entry_at(times[1]).unwrap().expect("it is kept");
    assert_eq!(found.body, body);
    writer.append(times[2], b"meta", &body).unwrap();
    assert_eq!(live.next().unwrap().unwrap().at, times[2], "none comes twice");
    assert!(log.entry_at(times[0]).is_err(), "its file is gone");
}

//! Sealed logs: bytes on the disk, recovery, errors.

use std::{fs, path::Path};

use tidegate_log::{
    Damage, Durability, Files, FilesConfig, Finding, Flusher, KeyError, KeyFile, Log, LogConfig,
    LogWriter, NodeKey, NodeKeys, OpenError, Opened, PassphraseCost, ReadError, Report,
    StorageError,
    simulated::{MARKER, SimulatedDisk, lose_power_sealed},
};
use tidegate_message::Position;
use tidegate_sys::folder::Folder;

use crate::support::{Scratch, at};

const SEGMENT_BYTES: u64 = 8 << 10;

fn keys(byte: u8) -> NodeKeys {
    NodeKeys { current: NodeKey::from_bytes([byte; 32]), older: Vec::new() }
}

fn rotated(byte: u8, older: u8) -> NodeKeys {
    NodeKeys { older: vec![keys(older).current], ..keys(byte) }
}

fn config(keys: Option<NodeKeys>) -> FilesConfig {
    FilesConfig { log_id: 7, opened: at(5), commit: Default::default(), keys }
}

fn log_config() -> LogConfig {
    LogConfig { bytes_max: 100 * SEGMENT_BYTES, segment_bytes: SEGMENT_BYTES }
}

type Sealed = Files<SimulatedDisk>;

fn open(disk: &SimulatedDisk, keys: NodeKeys) -> (LogWriter<Sealed>, Log<Sealed>, Report) {
    let (writer, log, report, _) = open_with_flusher(disk, keys);
    (writer, log, report)
}

type WithFlusher = (LogWriter<Sealed>, Log<Sealed>, Report, Flusher<SimulatedDisk>);

fn open_with_flusher(disk: &SimulatedDisk, keys: NodeKeys) -> WithFlusher {
    let Opened { files, report, flusher, .. } =
        Files::open(disk.clone(), config(Some(keys))).unwrap();
    let (writer, log) = Log::open(log_config(), files).unwrap();
    (writer, log, report, flusher)
}

fn refused(disk: &SimulatedDisk, keys: Option<NodeKeys>) -> OpenError {
    match Files::open(disk.clone(), config(keys)) {
        Ok(_) => panic!("it opens"),
        Err(error) => error,
    }
}

fn body(number: u64) -> Vec<u8> {
    [MARKER, &[number as u8; 300]].concat()
}

fn append(writer: &mut LogWriter<Sealed>, log: &Log<Sealed>, count: u64) {
    for _ in 0..count {
        let number = log.end().0;
        let time = at(number as i64 * 10);
        writer.append_durably(Durability::Page, time, MARKER, &body(number)).unwrap();
    }
}

/// Entries that can be read, and those that cannot because they are damaged or were tampered with.
fn read_all(log: &Log<Sealed>) -> (Vec<u64>, Vec<u64>) {
    let (mut read, mut refused) = (Vec::new(), Vec::new());
    let mut reader = log.reader_at(Position(0));
    loop {
        match reader.next() {
            Ok(None) => return (read, refused),
            Ok(Some(entry)) => {
                let number = entry.position.0;
                assert_eq!((entry.at, &entry.meta[..]), (at(number as i64 * 10), MARKER));
                assert_eq!(entry.body, body(number));
                read.push(number);
            }
            Err(ReadError::Overtaken(_)) => {}
            Err(ReadError::Storage { position, source }) => {
                assert!(matches!(
                    source,
                    StorageError::Damaged { .. } | StorageError::Tampered { .. }
                ));
                refused.push(position.0);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A log of three small segments: with an end, with an end, and one that was being filled.
fn small_log() -> Vec<(String, Vec<u8>)> {
    let disk = SimulatedDisk::new(1);
    let (mut writer, log, _, flusher) = open_with_flusher(&disk, keys(1));
    append(&mut writer, &log, 18);
    writer.flush().unwrap();
    append(&mut writer, &log, 5);
    writer.flush().unwrap();
    assert!(!disk.holds(MARKER));
    drop((writer, log, flusher));
    let names = (0..3).map(|number| format!("{number:016x}.segment"));
    let files: Vec<_> = names.map(|name| (disk.bytes_of(&name).unwrap(), name)).collect();
    files.into_iter().map(|(bytes, name)| (name, bytes)).collect()
}

fn disk_of(files: &[(String, Vec<u8>)]) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    for (name, bytes) in files {
        disk.put(name, bytes.clone());
    }
    disk
}

#[test]
fn a_sealed_log_comes_back_and_its_files_hold_no_clear_text() {
    let scratch = Scratch::new("sealed");
    let path = scratch.path("log");
    for run in 0..3_u64 {
        let folder = Folder::open(&path).unwrap();
        let Opened { files, report, flusher, .. } =
            Files::open(folder, config(Some(keys(1)))).unwrap();
        assert!(report.findings.is_empty() && report.rewrapped == 0, "{report:?}");
        let (mut writer, log) = Log::open(log_config(), files).unwrap();
        assert_eq!(log.end(), Position(run * 100));
        for number in run * 100..(run + 1) * 100 {
            let time = at(number as i64 * 10);
            let body = body(number);
            if number % 2 == 0 {
                writer.append(time, MARKER, &body).unwrap();
            } else {
                let fill = |room: &mut [u8]| room.copy_from_slice(&body);
                writer.append_with(time, MARKER, body.len(), fill).unwrap();
            }
            assert!(!is_in(&path, MARKER), "entry {number}");
        }
        if run == 1 {
            writer.flush().unwrap();
        }
        let read: Vec<_> = log.range(..).map(Result::unwrap).collect();
        assert_eq!(read.len() as u64, (run + 1) * 100);
        assert!(read.iter().all(|entry| entry.body == body(entry.position.0)));
        drop(flusher);
    }
}

fn is_in(folder: &Path, bytes: &[u8]) -> bool {
    let files = fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    files.into_iter().any(|file| file.windows(bytes.len()).any(|window| window == bytes))
}

#[test]
fn each_bit_that_is_flipped_costs_its_entry_or_its_segment_and_no_other() {
    let files = small_log();
    let whole = read_all(&open(&disk_of(&files), keys(1)).1).0;
    assert_eq!(whole, (0..23).collect::<Vec<_>>());
    let segments: [Vec<u64>; 3] = std::array::from_fn(|number| {
        let (_, log, _) = open(&disk_of(&files[number..=number]), keys(1));
        read_all(&log).0
    });
    let (mut entries, mut headers, mut none) = (0, 0, 0);
    for (number, (name, bytes)) in files.iter().enumerate() {
        for offset in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[offset] ^= 1 << (offset % 8);
            let mut files = files.clone();
            files[number] = (name.clone(), flipped);
            let (_, log, report) = open(&disk_of(&files), keys(1));
            let (read, _) = read_all(&log);
            let lost: Vec<u64> = whole.iter().copied().filter(|n| !read.contains(n)).collect();
            match lost.len() {
                0 => none += 1,
                1 => entries += 1,
                _ => {
                    assert!(offset < 80 && lost == segments[number], "{name} byte {offset}");
                    assert!(!report.findings.is_empty());
                    headers += 1;
                }
            }
            assert!(lost.iter().all(|lost| segments[number].contains(lost)));
        }
    }
    assert!(
        entries > 23 * 300 && headers == 3 * 80 && none > 3 * 3900,
        "{entries} {headers} {none}"
    );
}

/// Corrects checksums after a change, as an attacker who knows the format does.
fn mend_record(bytes: &mut [u8], segment: u64, start: usize) {
    let number = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
    let end = start + 56 + number(start + 4) + number(start + 8);
    let crc = crc32c::crc32c_append(seed(segment), &bytes[start + 4..end]);
    bytes[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

fn seed(segment: u64) -> u32 {
    crc32c::crc32c(&[7_u64.to_le_bytes(), segment.to_le_bytes()].concat())
}

#[test]
fn what_was_tampered_with_is_refused_and_told_and_the_rest_is_read() {
    let files = small_log();
    let tampered = |number: usize, change: &dyn Fn(&mut Vec<u8>)| {
        let mut files = files.clone();
        change(&mut files[number].1);
        let (_, log, report) = open(&disk_of(&files), keys(1));
        let (read, refused) = read_all(&log);
        (read, refused, report)
    };
    // A record in a segment with an end is looked at when it is read.
    let (read, refused, report) = tampered(0, &|bytes| {
        bytes[4096 + 100] ^= 1;
        mend_record(bytes, 0, 4096);
    });
    assert_eq!((read, refused), ((1..23).collect(), vec![0]));
    assert!(report.findings.is_empty());
    // One in a segment without an end, when the log opens.
    let (read, _, report) = tampered(2, &|bytes| {
        bytes[4096 + 100] ^= 1;
        mend_record(bytes, 2, 4096);
    });
    assert_eq!(read.len(), 22);
    assert!(
        matches!(&report.findings[..], [Finding::Tampered { entries: 1, .. }, ..]),
        "{report:?}"
    );
    // An end that says less than there is.
    let (read, _, report) = tampered(1, &|bytes| {
        let end = bytes.len() - 64;
        bytes[end + 48] ^= 1;
        let crc = crc32c::crc32c_append(seed(1), &bytes[end..end + 60]);
        bytes[end + 60..].copy_from_slice(&crc.to_le_bytes());
    });
    assert_eq!(read, (0..23).collect::<Vec<_>>());
    assert!(matches!(&report.findings[..], [Finding::Tampered { entries: 0, .. }]), "{report:?}");
    // A header, and one that says that nothing is sealed.
    let mend_header = |bytes: &mut Vec<u8>| {
        let crc = crc32c::crc32c(&bytes[..76]);
        bytes[76..80].copy_from_slice(&crc.to_le_bytes());
    };
    let (read, _, report) = tampered(1, &|bytes| {
        bytes[56] ^= 1;
        mend_header(bytes);
    });
    assert!(read.len() < 20 && read.contains(&0) && read.contains(&22), "{read:?}");
    assert!(
        matches!(&report.findings[..], [Finding::SetAside { why: Damage::Tampered, .. }, ..]),
        "{report:?}"
    );
    let (rest, _, report) = tampered(1, &|bytes| {
        bytes[12] = 0;
        mend_header(bytes);
    });
    assert_eq!(rest, read);
    assert!(matches!(&report.findings[..], [Finding::Clear { .. }, ..]), "{report:?}");
}

#[test]
fn a_segment_in_clear_text_is_no_part_of_a_sealed_log() {
    let disk = SimulatedDisk::new(1);
    let files = Files::open(disk.clone(), config(None)).unwrap().files;
    let (mut writer, log) = Log::open(log_config(), files).unwrap();
    append(&mut writer, &log, 5);
    drop((writer, log));
    let (_, log, report) = open(&disk, keys(1));
    assert!(read_all(&log).0.is_empty());
    assert!(matches!(&report.findings[..], [Finding::Clear { .. }]), "{report:?}");
    assert!(log.end() >= Position(5), "no position is given twice");
    assert!(disk.holds(MARKER), "it was left alone");
}

#[test]
fn the_wrong_key_is_told_from_tampering_and_harms_nothing() {
    let disk = disk_of(&small_log());
    let error = refused(&disk, Some(keys(2)));
    let id = keys(1).current.id();
    assert!(matches!(&error, OpenError::OtherKey { key, .. } if *key == id), "{error}");
    assert!(error.to_string().contains(&id.to_string()), "{error}");
    let error = refused(&disk, None);
    assert!(matches!(error, OpenError::Sealed { .. }), "{error}");
    assert_eq!(read_all(&open(&disk, keys(1)).1).0.len(), 23);
}

#[test]
fn a_new_node_key_takes_over_without_rewriting_data() {
    let files = small_log();
    let disk = disk_of(&files);
    let (writer, log, report) = open(&disk, rotated(2, 1));
    assert_eq!((report.rewrapped, report.findings.len()), (3, 0));
    assert_eq!(read_all(&log).0.len(), 23);
    drop((writer, log));
    for (name, before) in &files[..2] {
        assert_eq!(before[4096..], disk.bytes_of(name).unwrap()[4096..], "{name}");
    }
    let error = refused(&disk, Some(keys(1)));
    assert!(matches!(error, OpenError::OtherKey { .. }), "the old one opens nothing: {error}");
    let (mut writer, log, report) = open(&disk, keys(2));
    assert_eq!((report.rewrapped, report.findings.len()), (0, 0));
    append(&mut writer, &log, 5);
    assert_eq!(read_all(&log).0.len(), 28);
}

#[test]
fn a_rotation_that_is_cut_short_anywhere_loses_nothing() {
    let files = small_log();
    for seed in 0..300 {
        let disk = SimulatedDisk::new(seed);
        for (name, bytes) in &files {
            disk.put(name, bytes.clone());
        }
        disk.cut_power_after(seed % 60);
        // It fails, or has findings, or is done before.
        drop(Files::open(disk.clone(), config(Some(rotated(2, 1)))));
        disk.lose_power();
        let (_, log, report) = open(&disk, rotated(2, 1));
        assert_eq!(read_all(&log).0.len(), 23, "seed {seed}: {report:?}");
    }
}

#[test]
fn no_loss_of_power_takes_what_was_durable_from_a_sealed_log() {
    let seeds = match std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..2_000_u64,
    };
    let (mut durable, mut power_losses) = (0, 0);
    for seed in seeds.clone() {
        let outcome =
            lose_power_sealed(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        durable += outcome.durable;
        power_losses += outcome.power_losses;
    }
    if seeds.end - seeds.start > 1 {
        assert!(durable > 20_000 && power_losses > 2_000, "{durable} {power_losses}");
    }
}

#[test]
fn a_key_file_gives_its_key_again() {
    let scratch = Scratch::new("keys-of-node");
    let path = scratch.path("node.key");
    let made = KeyFile::create(&path).unwrap();
    assert!(matches!(KeyFile::create(&path), Err(KeyError::File(_))), "it is not replaced");
    match KeyFile::read(&path).unwrap() {
        KeyFile::Key(read) => assert_eq!(read.id(), made.id()),
        other => panic!("{other:?}"),
    }
    let path = scratch.path("passphrase.key");
    let cost = PassphraseCost { memory_kib: 256, passes: 1, lanes: 1 };
    let made = KeyFile::create_for_passphrase(&path, b"correct horse", cost).unwrap();
    let KeyFile::Passphrase(file) = KeyFile::read(&path).unwrap() else { panic!("it is a key") };
    assert_eq!(file.open(b"correct horse").unwrap().id(), made.id());
    assert!(matches!(file.open(b"battery"), Err(KeyError::Passphrase)));
    fs::write(&path, "tidegate-node-key 1\n").unwrap();
    assert!(matches!(KeyFile::read(&path), Err(KeyError::Format)));
}

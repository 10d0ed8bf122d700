//! Reports of a survey of files, after any change to them.

use tidegate_log::{
    Durability, Files, FilesConfig, Log, LogConfig, NodeKey, NodeKeys, Opened, SegmentState,
    Survey, segment_named, simulated::SimulatedDisk, survey,
};
use tidegate_message::Position;

use crate::support::{at, bytes_of};

const SEGMENT: u64 = 8 << 10;
const LOG_ID: u64 = 7;
const RECORDS: u64 = 20;

fn keys(byte: u8) -> NodeKeys {
    NodeKeys { current: NodeKey::from_bytes([byte; 32]), older: Vec::new() }
}

/// The files of a log of so many records: all but the last are finished.
fn files(keys: Option<NodeKeys>) -> Vec<(String, Vec<u8>)> {
    let disk = SimulatedDisk::new(5);
    let config = FilesConfig { log_id: LOG_ID, opened: at(5), commit: Default::default(), keys };
    let Opened { files, mut flusher, .. } = Files::open(disk.clone(), config).unwrap();
    let size = LogConfig { bytes_max: 100 * SEGMENT, segment_bytes: SEGMENT };
    let (mut writer, _log) = Log::open(size, files).unwrap();
    for number in 0..RECORDS {
        let body = bytes_of(number, 500);
        writer.append_durably(Durability::Page, at(number as i64), b"meta", &body).unwrap();
    }
    flusher.turn(&|| at(1));
    writer.flush().unwrap();
    let names = (0..100).map(|id| format!("{id:016x}.segment"));
    names.filter_map(|name| disk.bytes_of(&name).map(|bytes| (name, bytes))).collect()
}

fn look(name: &str, bytes: &[u8], keys: Option<&NodeKeys>) -> Survey {
    survey(LOG_ID, segment_named(name).expect("the name of a segment"), bytes, keys)
}

#[test]
fn a_whole_log_is_told_record_by_record() {
    for sealing in [None, Some(keys(1))] {
        let files = files(sealing.clone());
        assert!(files.len() >= 2, "{}", files.len());
        let mut next = 0;
        let mut states = Vec::new();
        for (name, bytes) in &files {
            // Without the key, checksums are looked at.
            let unopened = look(name, bytes, None);
            let seen = look(name, bytes, sealing.as_ref());
            assert_eq!(seen, unopened);
            assert_eq!((seen.lost, seen.tampered, seen.is_index_damaged), (0, 0, false));
            states.push(seen.state);
            if seen.state == SegmentState::Empty {
                // Made ready for the next segment, and not begun.
                continue;
            }
            assert_eq!((seen.log_id, seen.created), (Some(LOG_ID), Some(at(5))));
            assert_eq!(seen.is_sealed, sealing.is_some());
            assert_eq!(seen.key, sealing.as_ref().map(|keys| keys.current.id()));
            let Some((first, end)) = seen.positions else { continue };
            assert_eq!((first, end), (Position(next), Position(next + seen.records)));
            assert_eq!(seen.times, Some((at(next as i64), at(end.0 as i64 - 1))));
            next = end.0;
        }
        assert_eq!(next, RECORDS);
        assert_eq!(states[0], SegmentState::Finished, "{states:?}");
        assert!(states.contains(&SegmentState::Unfinished), "{states:?}");
    }
}

#[test]
fn a_flipped_byte_is_told_wherever_it_is() {
    for sealing in [None, Some(keys(1))] {
        let (name, whole) = files(sealing.clone()).swap_remove(0);
        let before = look(&name, &whole, sealing.as_ref());
        let tail = if sealing.is_some() { 128 } else { 64 };
        let slots_start = whole.len() - tail - 24 * before.records as usize;
        for (what, range) in [
            ("header", 0..80),
            ("records", 4096..slots_start - 1000),
            ("slots", slots_start..whole.len() - tail),
            ("trailer", whole.len() - 64..whole.len()),
        ] {
            for offset in range.step_by(3) {
                let mut bytes = whole.clone();
                bytes[offset] ^= 0x20;
                let seen = look(&name, &bytes, sealing.as_ref());
                let is_told = match what {
                    "header" if sealing.is_some() => seen.state == SegmentState::KeyDamaged,
                    "header" => seen.log_id.is_none() && seen.records == before.records,
                    "records" => seen.lost == 1 && seen.records == before.records - 1,
                    "slots" => seen.is_index_damaged && seen.records == before.records,
                    // As if the power had gone before it was written.
                    _ => seen.state == SegmentState::Unfinished && seen.records == before.records,
                };
                // Between two records nothing is written.
                let is_unused = whole[offset] == 0 && seen == before;
                assert!(is_told || (what == "records" && is_unused), "{what} {offset}: {seen:?}");
            }
        }
    }
}

#[test]
fn keys_and_foreign_bytes_are_told() {
    let (name, sealed) = files(Some(keys(1))).swap_remove(0);
    let other = look(&name, &sealed, Some(&keys(2)));
    assert_eq!((other.state, other.key), (SegmentState::OtherKey, Some(keys(1).current.id())));
    assert!(other.records > 0 && other.lost == 0, "its checksums hold: {other:?}");
    let rotated = NodeKeys { older: vec![keys(1).current], ..keys(2) };
    assert_eq!(look(&name, &sealed, Some(&rotated)).state, SegmentState::Finished);

    let mut no_key = sealed.clone();
    no_key[512..4096].fill(0);
    assert_eq!(look(&name, &no_key, Some(&keys(1))).state, SegmentState::KeyDamaged);
    // A header that was changed on purpose, checksum and all.
    let mut changed = sealed.clone();
    changed[56] ^= 1;
    let crc = crc32c::crc32c(&changed[..76]);
    changed[76..80].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(look(&name, &changed, Some(&keys(1))).state, SegmentState::Tampered);

    let (name, clear) = files(None).swap_remove(0);
    let id = segment_named(&name).unwrap();
    assert_eq!(survey(LOG_ID + 1, id, &clear, None).state, SegmentState::Foreign);
    let mut newer = clear.clone();
    newer[8] = 2;
    let crc = crc32c::crc32c(&newer[..76]);
    newer[76..80].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(look(&name, &newer, None).state, SegmentState::Newer);
    assert_eq!(look(&name, &[], None).state, SegmentState::Empty);
    assert_eq!(look(&name, &[0; 8192], None).state, SegmentState::Empty);
    assert_eq!(look(&name, &clear[..100], None).state, SegmentState::Damaged);
    assert_eq!(look(&name, &bytes_of(3, 8192), None).state, SegmentState::Damaged);
}

//! A storage that fails gives typed errors and takes nothing that was there.

use bytes::Bytes;
use tidegate_log::{AppendError, Durability, Log, LogConfig, LogError, LogWriter, ReadError};
use tidegate_message::{Code, Position};

use crate::{
    faulty::{Call, Faults, Faulty},
    support::{at, bytes_of},
};

const SEGMENT_BYTES: u64 = 256;

fn faulty_log() -> (LogWriter<Faulty>, Log<Faulty>, Faults) {
    let storage = Faulty::default();
    let faults = storage.faults.clone();
    let config = LogConfig { bytes_max: 5 * SEGMENT_BYTES, segment_bytes: SEGMENT_BYTES };
    let (writer, log) = Log::create(config, storage).unwrap();
    (writer, log, faults)
}

/// Appends entry `number` of 50 bytes at time `number`.
fn append(writer: &mut LogWriter<Faulty>, number: u64) -> Result<Position, AppendError> {
    writer.append(at(number as i64), &bytes_of(number, 10), &bytes_of(number, 40))
}

fn assert_reads(log: &Log<Faulty>, numbers: std::ops::Range<u64>) {
    let entries: Vec<_> = log.range(..).map(Result::unwrap).collect();
    let kept: Vec<u64> = entries.iter().map(|entry| entry.position.0).collect();
    assert_eq!(kept, numbers.collect::<Vec<_>>());
    for entry in entries {
        let number = entry.position.0;
        assert_eq!(entry.at, at(number as i64));
        assert_eq!(entry.meta, bytes_of(number, 10));
        assert_eq!(entry.body, bytes_of(number, 40));
    }
}

#[test]
fn a_failed_append_leaves_the_log_as_it_was_and_can_be_repeated() {
    // The first segment ends with its 4 index slots, the second with its 256 bytes: entries 0, 4 and 9
    // start a segment, entry 2 joins others.
    for (failing, before) in [
        (Call::Write, 2),
        (Call::Publish, 2),
        (Call::Create, 0),
        (Call::Create, 4),
        (Call::Seal, 4),
        (Call::Create, 9),
        (Call::Seal, 9),
        (Call::Write, 9),
        (Call::Publish, 9),
    ] {
        let (mut writer, log, faults) = faulty_log();
        for number in 0..before {
            append(&mut writer, number).unwrap();
        }
        faults.fail(failing);
        for _ in 0..3 {
            let error = append(&mut writer, before).unwrap_err();
            assert!(matches!(error, AppendError::Storage(_)), "{failing:?}: {error:?}");
            assert_eq!(error.code(), Code::STORAGE_FAILED);
            assert_reads(&log, 0..before);
        }
        faults.clear();
        assert_eq!(append(&mut writer, before).unwrap(), Position(before));
        assert_reads(&log, 0..before + 1);
    }
}

#[test]
fn a_position_that_is_given_up_is_told_as_missing_and_shifts_no_other() {
    // The entry joins others, or begins a segment; the segment can be ended at once, or not before the next entry.
    for (before, ending) in [(2, None), (2, Some(Call::Seal)), (4, None), (4, Some(Call::Remove))] {
        let (mut writer, log, faults) = faulty_log();
        for number in 0..before {
            append(&mut writer, number).unwrap();
        }
        let mut reader = log.reader_at(Position(before));
        let body = Bytes::from_static(b"lost");
        writer.offer(Durability::Memory, at(before as i64), b"", &body).unwrap();
        faults.fail(Call::Publish);
        writer.store().unwrap_err();
        assert_reads(&log, 0..before);
        if let Some(ending) = ending {
            faults.fail(ending);
        }
        assert_eq!(writer.skip().is_err(), ending.is_some(), "{before} {ending:?}");
        faults.clear();
        for number in before + 1..before + 7 {
            assert_eq!(append(&mut writer, number).unwrap(), Position(number));
        }
        let Err(ReadError::Overtaken(missed)) = reader.next() else { panic!("a gap is reported") };
        assert_eq!((missed.missed_from.0, missed.missed_to.0), (before, before + 1));
        for number in before + 1..before + 7 {
            let entry = reader.next().unwrap().expect("it is there");
            assert_eq!((entry.position.0, entry.at), (number, at(number as i64)));
            assert_eq!(entry.body, bytes_of(number, 40));
        }
    }
}

#[test]
fn a_failure_at_the_wrap_keeps_what_was_not_dropped() {
    for failing in [Call::Remove, Call::Create, Call::Seal, Call::Write, Call::Publish] {
        let (mut writer, log, faults) = faulty_log();
        let first = || log.end().0 - log.entries();
        let mut failures_after_wrap = 0;
        for number in 0..60 {
            faults.fail(failing);
            let failed = append(&mut writer, number).is_err();
            faults.clear();
            if failed {
                assert_reads(&log, first()..number);
                append(&mut writer, number).unwrap();
                failures_after_wrap += u64::from(first() > 0);
            }
            assert_reads(&log, first()..number + 1);
        }
        assert!(failures_after_wrap > 5, "{failing:?} failed {failures_after_wrap} times");
    }
}

#[test]
fn a_failed_read_is_named_and_can_be_repeated() {
    let (mut writer, log, faults) = faulty_log();
    append(&mut writer, 0).unwrap();
    append(&mut writer, 1).unwrap();
    let mut reader = log.reader_at(Position(0));
    reader.next().unwrap();
    faults.fail(Call::Slice);
    let error = log.entry_at(at(0)).unwrap_err();
    assert!(matches!(error, ReadError::Storage { position: Position(0), .. }), "{error:?}");
    assert_eq!(error.to_string(), "the entry at position 0 could not be read");
    assert_eq!(error.code(), Code::STORAGE_FAILED);
    assert!(reader.next().is_err());
    let range: Vec<_> = log.range(..).collect();
    assert_eq!(range.len(), 1, "a range ends with its failure");
    assert_eq!(append(&mut writer, 2).unwrap(), Position(2), "appending continues");
    faults.clear();
    let unread: Vec<_> =
        std::iter::from_fn(|| reader.next().unwrap()).map(|entry| entry.position.0).collect();
    assert_eq!(unread, [1, 2]);
}

#[test]
fn a_failed_reservation_appends_nothing() {
    let (mut writer, log, faults) = faulty_log();
    append(&mut writer, 0).unwrap();
    faults.fail(Call::Buffer);
    let filled = writer.append_with(at(1), b"", 40, |_| panic!("there is no buffer to fill"));
    assert!(matches!(filled, Err(AppendError::Storage(_))));
    faults.clear();
    assert_reads(&log, 0..1);
    append(&mut writer, 1).unwrap();
    assert_reads(&log, 0..2);
}

#[test]
fn flush_says_which_entries_are_durable() {
    let mut storage = Faulty::default();
    storage.durable_max = 120;
    let faults = storage.faults.clone();
    let config = LogConfig { bytes_max: 5 * SEGMENT_BYTES, segment_bytes: SEGMENT_BYTES };
    let (mut writer, log) = Log::create(config, storage).unwrap();
    assert_eq!(writer.flush().unwrap(), Position(0));
    append(&mut writer, 0).unwrap();
    assert_eq!(writer.flush().unwrap(), Position(1));
    for number in 1..5 {
        append(&mut writer, number).unwrap();
    }
    assert_eq!(writer.flush().unwrap(), Position(2), "two entries of 50 bytes end by byte 120");
    faults.fail(Call::Flush);
    assert!(writer.flush().is_err());
    assert_reads(&log, 0..5);
}

#[test]
fn a_log_starts_in_an_empty_storage_only() {
    use tidegate_log::{Begin, Storage};

    let config = LogConfig { bytes_max: 1024, segment_bytes: 256 };
    let storage = Faulty::default();
    storage.faults.fail(Call::List);
    assert!(matches!(Log::create(config.clone(), storage), Err(LogError::Storage(_))));
    let mut storage = Faulty::default();
    storage.create(256, Begin { position: Position(0), last: None, kept: Position(0) }).unwrap();
    let error = Log::create(config, storage).err().unwrap();
    assert_eq!(error.to_string(), "the storage is not empty: it has 1 segments");
}

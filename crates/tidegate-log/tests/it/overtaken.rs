//! A reader that the wrap overtakes learns exactly what it missed.

use tidegate_log::{Overtaken, ReadError};
use tidegate_message::{Code, Instant, Position};

use crate::support::{at, log_of};

/// Appends `numbers` at times of ten each, in segments of four.
fn append(writer: &mut tidegate_log::LogWriter, numbers: std::ops::Range<u64>) {
    for number in numbers {
        writer.append(at(number as i64 * 10), b"", &[number as u8; 64]).unwrap();
    }
}

fn overtaken(result: Result<Option<tidegate_log::Entry>, ReadError>) -> Overtaken {
    match result {
        Err(ReadError::Overtaken(overtaken)) => overtaken,
        other => panic!("expected to be overtaken, got {other:?}"),
    }
}

#[test]
fn missed_ranges_adjoin_the_entries_read_before_and_after() {
    let (mut writer, log) = log_of(8, 256);
    append(&mut writer, 0..10);
    let mut reader = log.reader_at(Position(0));
    for number in 0..3 {
        assert_eq!(reader.next().unwrap().unwrap().position, Position(number));
    }
    append(&mut writer, 10..100);
    let first = log.first().unwrap().unwrap();
    assert!(first.position > Position(3));
    let missed = overtaken(reader.next());
    assert_eq!((missed.missed_from, missed.missed_to), (Position(3), first.position));
    assert_eq!(missed.missed_time, (at(21), first.at));
    assert_eq!(missed.missed(), first.position.0 - 3);
    let error = ReadError::from(missed);
    assert_eq!(error.code(), Code::FRAME_MISSING);
    assert!(error.to_string().starts_with("entries 3 up to "), "{error}");
    let rest: Vec<u64> =
        std::iter::from_fn(|| reader.next().unwrap()).map(|e| e.position.0).collect();
    assert_eq!(rest, (first.position.0..100).collect::<Vec<_>>());
}

#[test]
fn a_reader_of_one_position_that_is_gone_is_told_from_there() {
    let (mut writer, log) = log_of(8, 256);
    append(&mut writer, 0..100);
    let first = log.first().unwrap().unwrap();
    let missed = overtaken(log.reader_at(Position(7)).next());
    assert_eq!((missed.missed_from, missed.missed_to), (Position(7), first.position));
    assert_eq!(missed.missed_time, (Instant::MIN, first.at));
    let error = log.entry(Position(7)).unwrap_err();
    assert!(
        matches!(error, ReadError::Expired { wanted: Position(7), oldest } if oldest == first.position)
    );
    assert!(log.entry(Position(100)).unwrap().is_none(), "not yet is no error");
}

#[test]
fn a_reader_from_a_time_that_is_gone_says_what_it_cannot_give() {
    let (mut writer, log) = log_of(8, 256);
    append(&mut writer, 0..100);
    let first = log.first().unwrap().unwrap();
    for (from, missing) in [
        (at(55), Some((at(55), first.at))),
        (Instant::MIN, Some((Instant::MIN, first.at))),
        (at(first.at.as_nanos() - 10), Some((at(first.at.as_nanos() - 10), first.at))),
        (at(first.at.as_nanos() - 9), None), // between two entries, of which the later is kept
        (first.at, None),
        (at(10_000), None),
    ] {
        let mut reader = log.reader_from(from);
        assert_eq!(reader.missing_at_start(), missing, "from {from}");
        let expected = (from <= at(990)).then_some(first.position);
        assert_eq!(reader.next().unwrap().map(|entry| entry.position), expected, "from {from}");
    }
    let within = log.range(at(30)..at(60));
    assert_eq!(within.missing_at_start(), Some((at(30), at(60))));
    assert_eq!(within.count(), 0);
    assert_eq!(log.range(first.at..).missing_at_start(), None);
}

#[test]
fn a_range_that_is_overtaken_is_told_no_more_than_it_asked_for() {
    let (mut writer, log) = log_of(8, 256);
    append(&mut writer, 0..12);
    let mut range = log.range(at(0)..at(40));
    assert_eq!(range.next().unwrap().unwrap().position, Position(0));
    append(&mut writer, 12..200);
    let missed = overtaken(range.next().unwrap().map(Some));
    assert_eq!((missed.missed_from, missed.missed_to), (Position(1), Position(4)));
    assert_eq!(missed.missed_time, (at(1), at(40)));
    assert!(range.next().is_none());
}

#[test]
fn a_reader_of_the_newest_may_skip_what_lies_between() {
    let (mut writer, log) = log_of(16, 256);
    let mut newest = log.reader_newest();
    let mut coming = log.reader_next();
    append(&mut writer, 0..5);
    assert_eq!((newest.behind(), newest.skip_to_newest()), (5, 4));
    assert_eq!(newest.next().unwrap().unwrap().position, Position(4));
    assert_eq!(newest.skip_to_newest(), 0);
    assert!(newest.next().unwrap().is_none());
    assert_eq!(coming.next().unwrap().unwrap().position, Position(0));
    assert_eq!(log.reader_newest().next().unwrap().unwrap().position, Position(4));
    let mut coming = log.reader_next();
    assert!(coming.next().unwrap().is_none());
    append(&mut writer, 5..6);
    assert_eq!(coming.next().unwrap().unwrap().position, Position(5));
    // Skipping over a gap leaves nothing to report: the reader chose it.
    let mut slow = log.reader_at(Position(0));
    append(&mut writer, 6..200);
    assert_eq!(slow.skip_to_newest(), 199);
    assert_eq!(slow.next().unwrap().unwrap().position, Position(199));
}

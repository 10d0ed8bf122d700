//! The log stays under its limit, and pinned entries stay as they are.

use std::{collections::VecDeque, thread};

use tidegate_log::{AppendError, Entry, Log, LogConfig, LogError, Memory, ReadError};
use tidegate_message::{Code, Instant, Position};

use crate::support::{at, bytes_of, frame_time, log_of};

#[test]
fn an_idle_log_holds_nothing() {
    let (mut writer, log) = Log::create(LogConfig::default(), Memory::new()).unwrap();
    assert_eq!(writer.bytes_held(), 0);
    assert_eq!((log.entries(), log.bytes(), log.end()), (0, 0, Position(0)));
    assert!(log.first().unwrap().is_none() && log.last().unwrap().is_none());
    writer.append(at(1), b"", b"first").unwrap();
    assert!(writer.bytes_held() < 32 << 10, "one page and one index: {}", writer.bytes_held());
}

/// Frames of 500 KB at 5 fps, and of sizes around it; bodies that are never filled take no real memory.
#[test]
fn the_default_keeps_seven_minutes_at_5_fps() {
    for spread in [0, 50_000, 200_000] {
        let (mut writer, log) = Log::create(LogConfig::default(), Memory::new()).unwrap();
        for number in 0..9_000 {
            // Sizes average 500 KB over every ten frames.
            let bytes = (500_000 + number * 7 % 10 * 2 * spread / 9 - spread) as usize;
            let at = frame_time(number, 5);
            writer.append_with(at, b"", bytes, |_| ()).unwrap();
            if log.first().unwrap().unwrap().position > Position(0) || number > 2_200 {
                let kept = at.since(log.first().unwrap().unwrap().at);
                assert!(kept.as_secs() >= 7 * 60, "{kept:?} kept at frame {number}, {spread}");
            }
        }
        assert!(writer.bytes_held() <= LogConfig::default().bytes_max);
    }
}

#[test]
fn entries_share_the_logs_memory() {
    let (mut writer, log) = log_of(8, 1 << 20);
    let body = bytes_of(1, 600_000);
    writer.append(at(1), b"meta", &body).unwrap();
    let found = log.entry_at(at(1)).unwrap().unwrap();
    let again = log.range(..).next().unwrap().unwrap();
    assert_eq!(found.body, body);
    assert_eq!(found.body.as_ptr(), again.body.as_ptr(), "two reads, one place");
    assert_eq!(found.meta.as_ptr().wrapping_add(4), found.body.as_ptr(), "meta and body adjoin");
    drop((writer, log));
    assert_eq!(found.body, body, "an entry outlives its log");
}

#[test]
fn a_body_is_assembled_in_place() {
    let (mut writer, log) = log_of(8, 256);
    let mut reservation = writer.reserve(b"head", 6).unwrap();
    reservation.body().unwrap()[3..].copy_from_slice(b"def");
    let place = reservation.body().unwrap().as_ptr();
    assert!(log.last().unwrap().is_none(), "not before it is committed");
    reservation.body().unwrap()[..3].copy_from_slice(b"abc");
    reservation.commit(at(1)).unwrap();
    let entry = log.last().unwrap().unwrap();
    assert_eq!((&entry.meta[..], &entry.body[..]), (&b"head"[..], &b"abcdef"[..]));
    assert_eq!(entry.body.as_ptr(), place);

    writer.reserve(b"given up", 100).unwrap().body().unwrap().fill(7);
    let late = writer.reserve(b"", 1).unwrap().commit(at(1)).unwrap_err();
    assert!(matches!(late, AppendError::Timestamp { .. }));
    assert_eq!(log.entries(), 1);
    assert_eq!(writer.append_with(at(2), b"", 2, |body| body.fill(9)).unwrap(), Position(1));
    assert_eq!(log.last().unwrap().unwrap().body, &[9, 9][..]);
}

#[test]
fn a_refused_entry_is_told_why() {
    let (mut writer, log) = log_of(8, 256);
    writer.append(at(20), b"", &[0; 256]).unwrap();
    for time in [20, 19, i64::MIN] {
        let error = writer.append(at(time), b"", b"x").unwrap_err();
        assert!(
            matches!(error, AppendError::Timestamp { at: a, last } if a == at(time) && last == at(20))
        );
        assert_eq!(error.code(), Code::FRAME_TIMESTAMP);
    }
    let error = writer.append(at(21), b"m", &[0; 256]).unwrap_err();
    assert!(matches!(error, AppendError::TooLarge { bytes: 257, bytes_max: 256 }));
    assert_eq!(error.code(), Code::FRAME_TOO_LARGE);
    assert!(matches!(writer.reserve(b"m", usize::MAX), Err(AppendError::TooLarge { .. })));
    assert_eq!(log.entries(), 1);
    writer.append(Instant::MAX, b"", b"").unwrap();
    assert!(writer.append(Instant::MAX, b"", b"").is_err(), "there is no later time");
    assert_eq!(log.range(..).count(), 2);
    assert_eq!(log.range(..=Instant::MAX).count(), 2);
    assert_eq!(log.range(..Instant::MAX).count(), 1);
}

#[test]
fn sizes_that_do_not_fit_each_other_are_refused() {
    for (bytes_max, segment_bytes, accepted) in [
        (1024, 256, true),
        (1023, 256, false),
        (1024, 0, false),
        (u64::MAX, 1 << 32, false),
        (u64::MAX, u64::from(u32::MAX), true),
        (0, 1, false),
    ] {
        let config = LogConfig { bytes_max, segment_bytes };
        assert_eq!(Log::create(config.clone(), Memory::new()).is_ok(), accepted, "{config:?}");
    }
    let error = Log::create(LogConfig::bounded(10), Memory::new()).err().unwrap();
    assert!(matches!(error, LogError::SegmentBytes { segment_bytes: 0 }), "{error}");
}

#[test]
fn one_pinned_entry_costs_its_segment_and_no_more() {
    let (mut writer, log) = log_of(10, 1024);
    let mut unpinned = 0;
    for pinned in [false, true] {
        let (start, mut held) = (log.end().0, None);
        for number in start..start + 200 {
            writer.append(at(number as i64), b"", &bytes_of(number, 512)).unwrap();
            if pinned && held.is_none() {
                held = log.last().unwrap();
            }
            assert!(writer.bytes_held() <= 10 * 1024);
        }
        if let Some(entry) = held {
            assert_eq!(entry.body, bytes_of(start, 512), "overwritten while it was held");
            assert_eq!(log.entries(), unpinned - 2, "entries of one segment fewer");
        }
        unpinned = log.entries();
    }
}

#[test]
fn a_log_that_readers_pin_whole_refuses_appends_until_they_let_go() {
    let (mut writer, log) = log_of(6, 1024);
    let mut number = 0;
    let mut held = Vec::new();
    let error = loop {
        match writer.append(at(number), b"", &[number as u8; 400]) {
            Ok(position) => held.push(log.entry(position).unwrap().unwrap()),
            Err(error) => break error,
        }
        number += 1;
        assert!(number < 100, "the limit was not kept");
    };
    assert!(matches!(error, AppendError::Pinned { bytes_max: 6144, .. }), "{error:?}");
    assert_eq!(error.code(), Code::LIMIT_REACHED);
    assert_eq!(log.entries(), held.len() as u64, "nothing was dropped in vain");
    assert!(writer.append(at(number), b"", &[0; 400]).is_err());
    // The two entries of the newest segment: to use that again, all before it go, pinned or not.
    let kept: Vec<_> = held.drain(..held.len() - 2).collect();
    held.clear();
    assert_eq!(writer.append(at(number), b"", &[7; 400]).unwrap().0, number as u64);
    assert_eq!(log.entries(), 1);
    for (i, entry) in kept.iter().enumerate() {
        assert!(entry.body.iter().all(|&byte| byte == i as u8), "entry {i} changed while held");
    }
    drop(kept);
    for number in number + 1..number + 9 {
        writer.append(at(number), b"", &[0; 400]).unwrap();
    }
    assert_eq!(log.entries(), 9);
}

/// Readers in other threads hold a few entries each, while the writer laps the ring many times.
#[test]
fn entries_that_are_held_never_change_while_the_writer_laps_them() {
    const ENTRIES: u64 = 4_000;
    let (mut writer, log) = log_of(32, 1 << 12);
    thread::scope(|scope| {
        for held_max in [1, 3, 6] {
            let log = &log;
            scope.spawn(move || {
                let mut reader = log.reader_at(Position(0));
                let mut held: VecDeque<Entry> = VecDeque::new();
                while reader.position() < Position(ENTRIES) {
                    match reader.next() {
                        Ok(Some(entry)) => held.push_back(entry),
                        Ok(None) => thread::yield_now(),
                        Err(ReadError::Overtaken(_)) => continue,
                        Err(error) => panic!("{error}"),
                    }
                    if held.len() > held_max {
                        let entry = held.pop_front().unwrap();
                        assert_eq!(entry.body, bytes_of(entry.position.0, 1_000));
                    }
                }
            });
        }
        for number in 0..ENTRIES {
            let body = bytes_of(number, 1_000);
            assert_eq!(writer.append(at(number as i64), b"", &body).unwrap(), Position(number));
            if number % 32 == 0 {
                thread::yield_now();
            }
        }
    });
    assert!(log.entries() < ENTRIES / 10, "the ring was lapped");
}

#[test]
fn logs_and_readers_go_from_thread_to_thread() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    fn sent<T: Send>(_: &T) {}
    let (writer, log) = log_of(8, 256);
    shared(&log);
    sent(&writer);
    sent(&log.reader_newest());
    sent(&log.range(..));
}

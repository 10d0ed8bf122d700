//! Frames at exact cadences reach every reader exactly once, while the writer continues.

use std::thread;

use tidegate_log::{Log, LogWriter, ReadError};
use tidegate_message::{Instant, Position};

use crate::support::{bytes_of, frame_time, log_of};

const FRAMES: u64 = 3_000;

fn frame_bytes(number: u64) -> usize {
    600 + (number % 7) as usize * 100
}

fn append_frames(writer: &mut LogWriter, frames: std::ops::Range<u64>, fps: u64) {
    for number in frames {
        let meta = number.to_le_bytes();
        let body = bytes_of(number, frame_bytes(number));
        assert_eq!(writer.append(frame_time(number, fps), &meta, &body).unwrap(), Position(number));
        if number % 16 == 0 {
            thread::yield_now();
        }
    }
}

/// Reads until the last frame, and returns which numbers came and which ranges were missed.
fn read_all(log: &Log, from: Instant, fps: u64) -> (Vec<u64>, Vec<std::ops::Range<u64>>) {
    let mut reader = log.reader_from(from);
    let (mut delivered, mut missed) = (Vec::new(), Vec::new());
    while delivered.last() != Some(&(FRAMES - 1)) {
        match reader.next() {
            Ok(Some(entry)) => {
                let number = u64::from_le_bytes(entry.meta[..].try_into().unwrap());
                assert_eq!(entry.position, Position(number));
                assert_eq!(entry.at, frame_time(number, fps));
                assert_eq!(entry.body, bytes_of(number, frame_bytes(number)));
                delivered.push(number);
            }
            Ok(None) => thread::yield_now(),
            Err(ReadError::Overtaken(overtaken)) => {
                missed.push(overtaken.missed_from.0..overtaken.missed_to.0);
            }
            Err(error) => panic!("{error}"),
        }
    }
    (delivered, missed)
}

#[test]
fn every_frame_of_an_exact_cadence_is_delivered_exactly_once() {
    for fps in [5, 15, 30] {
        let (mut writer, log) = log_of(64, 1 << 16);
        append_frames(&mut writer, 0..FRAMES / 2, fps);
        thread::scope(|scope| {
            // From the start, from a frame in the past, from between two, from the seam, from the future.
            let midway = Instant::from_nanos(frame_time(700, fps).as_nanos() - 1);
            for (from, first) in [
                (Instant::MIN, 0),
                (frame_time(700, fps), 700),
                (midway, 700),
                (frame_time(FRAMES / 2 - 1, fps), FRAMES / 2 - 1),
                (frame_time(FRAMES / 2, fps), FRAMES / 2),
            ] {
                let log = &log;
                scope.spawn(move || {
                    let (delivered, missed) = read_all(log, from, fps);
                    assert_eq!(delivered, (first..FRAMES).collect::<Vec<_>>(), "{fps} fps");
                    assert!(missed.is_empty());
                });
            }
            append_frames(&mut writer, FRAMES / 2..FRAMES, fps);
        });
    }
}

#[test]
fn a_reader_overtaken_again_and_again_gets_or_is_told_each_frame_once() {
    for fps in [5, 15, 30] {
        // Room for some thirty frames: the writer laps a reader that pauses.
        let (mut writer, log) = log_of(8, 1 << 12);
        thread::scope(|scope| {
            for _ in 0..2 {
                let log = &log;
                scope.spawn(move || {
                    let (delivered, missed) = read_all(log, Instant::MIN, fps);
                    let mut accounted: Vec<u64> =
                        delivered.into_iter().chain(missed.into_iter().flatten()).collect();
                    accounted.sort_unstable();
                    // Entries that the wrap dropped before the reader was placed are no miss of the reader's.
                    let first = accounted[0];
                    assert_eq!(accounted, (first..FRAMES).collect::<Vec<_>>(), "{fps} fps");
                });
            }
            append_frames(&mut writer, 0..FRAMES, fps);
        });
    }
}

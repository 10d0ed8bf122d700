//! The log of a camera's frames, as its engine reads it.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_frame::engine::{FrameLog, FrameReader, LoggedFrame, Unread};
use tidegate_log::ReadError;
use tidegate_message::Instant;

use super::capture;
use crate::frame_log::{Log, Reader};

/// The log of a camera's frames.
#[derive(Clone)]
pub(super) struct CameraLog {
    pub(super) log: Log,
    /// Logs from before its clock was set back, newest first.
    pub(super) earlier: Arc<[Log]>,
}

/// A reader of it.
pub(super) struct CameraReader {
    log: Log,
    reader: Reader,
}

impl FrameLog for CameraLog {
    type Reader = CameraReader;

    fn reader_next(&self) -> CameraReader {
        CameraReader { log: self.log.clone(), reader: self.log.reader_next() }
    }

    fn reader_from(&self, at: Instant) -> CameraReader {
        CameraReader { log: self.log.clone(), reader: self.log.reader_from(at) }
    }

    fn first_at(&self) -> Option<Instant> {
        self.log.first_at()
    }

    fn last_at(&self) -> Option<Instant> {
        self.log.last_at()
    }

    fn original(&self, at: Instant) -> Option<Bytes> {
        let logs = std::iter::once(&self.log).chain(self.earlier.iter());
        let mut failed = None;
        for log in logs {
            match log.entry_at(at) {
                Ok(Some(entry)) => return Some(entry.body),
                Ok(None) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            tracing::error!(
                error = tidegate_message::error_chain(&error),
                "camera log not readable"
            );
        }
        None
    }
}

impl FrameReader for CameraReader {
    fn next(&mut self) -> Result<Option<LoggedFrame>, Unread> {
        let error = match self.reader.next() {
            Ok(entry) => {
                return Ok(entry.map(|entry| {
                    let (size, seen) = (capture::size_of(&entry), capture::seen_size_of(&entry));
                    LoggedFrame { at: entry.at, size, seen, body: entry.body }
                }));
            }
            Err(ReadError::Overtaken(overtaken)) => {
                let ((first, until), count) = (overtaken.missed_time, overtaken.missed());
                return Err(Unread::Overwritten { first, until, count });
            }
            Err(error) => error,
        };
        tracing::error!(error = tidegate_message::error_chain(&error), "camera log not readable");
        Err(match &error {
            ReadError::Storage { position, .. } if error.is_lost() => {
                Unread::Damaged { at: self.log.time_of(*position) }
            }
            _ => Unread::Unavailable,
        })
    }

    fn missing_at_start(&self) -> Option<(Instant, Instant)> {
        self.reader.missing_at_start()
    }

    fn behind(&self) -> u64 {
        self.reader.behind()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_log::{LogConfig, LogWriter, Store};
    use tidegate_message::FrameSize;

    use super::*;

    const SIZE: FrameSize = FrameSize { width: 640, height: 480 };

    fn log(bytes: u64) -> (LogWriter<Store>, CameraLog) {
        let (writer, log) = Log::create(LogConfig::bounded(bytes), Store::memory()).unwrap();
        (writer, CameraLog { log, earlier: Arc::default() })
    }

    fn at(millis: i64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn a_reader_gives_frames_with_their_sizes_and_counts_those_that_were_overwritten() {
        let (mut writer, frames) = log(256 << 10);
        let mut append = |millis| {
            writer.append(at(millis), &capture::encode_size(SIZE), &[7; 10_000]).unwrap();
        };
        append(0);
        let mut reader = frames.reader_from(at(0));
        let first = reader.next().unwrap().expect("it was appended");
        assert_eq!((first.at, first.size, first.body.len()), (at(0), Some(SIZE), 10_000));
        (1..=100).for_each(append);
        let Err(Unread::Overwritten { until, count, .. }) = reader.next() else {
            panic!("the log holds no more than 26 frames");
        };
        assert_eq!(Some(until), frames.first_at());
        assert_eq!(at(1 + count as i64), until, "frames 1 to {count} are gone");
        let next = reader.next().unwrap().expect("the rest is kept");
        assert_eq!((next.at, reader.behind()), (until, 99 - count));
        let late = frames.reader_from(at(5));
        assert_eq!(late.missing_at_start(), Some((at(5), until)));
    }

    #[test]
    fn an_original_is_found_in_logs_from_before_the_clock_was_set_back() {
        let (mut writer, mut frames) = log(1 << 20);
        writer.append(at(0), b"", b"own").unwrap();
        let (mut writer, earlier) = log(1 << 20);
        writer.append(at(3_600_000), b"", b"earlier").unwrap();
        frames.earlier = Arc::from([earlier.log]);
        let original = |at| frames.original(at);
        assert_eq!(original(at(0)).as_deref(), Some(&b"own"[..]));
        assert_eq!(original(at(3_600_000)).as_deref(), Some(&b"earlier"[..]));
        assert_eq!(original(at(1)), None);
        assert_eq!(frames.last_at(), Some(at(0)), "those of before are no part of the log");
    }
}

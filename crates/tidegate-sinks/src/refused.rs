//! Messages that a destination refused for good and that lie in no dead letter topic: they are kept in a file, a line of JSON each.
//!
//! ```text
//!  refused ─▶ NAME.refused ─▶ `tidegate sinks replay NAME` renames it ─▶ NAME.replay ─▶ the sink gives them to its destination again
//!                  ▲                                                                                    │
//!                  └──────────────────────────── refused again ─────────────────────────────────────────┘
//! ```
//!
//! The sink alone writes these files, and the command only renames one: so they need no lock, and their owner stays that of the node,
//! whoever runs the command.
//!
//! Always true: a message is acknowledged only after its line is on the disk; a file that has reached its bound takes no more, and the
//! sink waits then.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::{Deserialize, Serialize};
use tidegate_message::Instant;
use tidegate_process::clock;
use tidegate_sys::{files, regular};
use tidegate_wire::mqtt::QoS;

use super::{Batch, Record};

/// Of messages that were refused.
const REFUSED: &str = "refused";
/// Of those that are given to the destination again.
const REPLAY: &str = "replay";

/// The file of a sink's refused messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedFile {
    /// Without an ending.
    path: PathBuf,
    /// From so many bytes on it takes no more: it is longer by one message at most.
    bytes_max: u64,
}

/// A message that was refused, as it is kept.
#[derive(Debug)]
pub struct Refused {
    /// The message.
    pub record: Record,
    /// Why it was refused.
    pub reason: String,
}

/// A sink of which messages are kept.
#[derive(Debug)]
pub struct Kept {
    /// The sink.
    pub sink: String,
    /// Bytes of those that wait for a command.
    pub refused_bytes: u64,
    /// Bytes of those that are given to the destination again.
    pub replay_bytes: u64,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    /// When this node received it: nanoseconds since the Unix epoch.
    received: i64,
    topic: String,
    reason: String,
    qos: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<i64>,
    /// When it loses its worth, by the wall clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<i64>,
    /// Properties that are forwarded, as in PUBLISH, in Base64 (RFC 4648, 4).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    properties: String,
    /// In Base64.
    payload: String,
}

impl RefusedFile {
    /// That of the sink called `sink` in `folder`, of `bytes_max` bytes at most and one message.
    pub fn new(folder: &Path, sink: &str, bytes_max: u64) -> Self {
        Self { path: folder.join(sink), bytes_max }
    }

    fn named(&self, ending: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".");
        path.push(ending);
        path.into()
    }

    /// Where messages wait for a command.
    pub fn refused(&self) -> PathBuf {
        self.named(REFUSED)
    }

    /// Where those lie that are given to the destination again.
    pub fn replay(&self) -> PathBuf {
        self.named(REPLAY)
    }

    /// Writes messages with their reasons, in order, and returns how many there was room for; they are on the disk then.
    pub(super) fn append<'a>(
        &self,
        refused: impl Iterator<Item = (&'a Record, &'a str)>,
    ) -> io::Result<usize> {
        let path = self.refused();
        if let Some(folder) = path.parent() {
            files::folder(folder, files::PRIVATE_FOLDER)?;
        }
        let mut file = files::append(&path, files::PRIVATE)?;
        let before = file.metadata()?.len();
        let written = self.write(&mut file, before, refused).and_then(|count| {
            file.sync_data()?;
            Ok(count)
        });
        if written.is_err() {
            // A line that is cut would be no message; where that is refused as well, the reader passes over it.
            file.set_len(before)?;
        }
        written
    }

    fn write<'a>(
        &self,
        file: &mut File,
        before: u64,
        refused: impl Iterator<Item = (&'a Record, &'a str)>,
    ) -> io::Result<usize> {
        let (mut bytes, mut count) = (Vec::new(), 0);
        if before > 0 {
            let mut last = [0];
            // A handle that appends cannot read.
            regular::open(&self.refused())?.read_exact_at(&mut last, before - 1)?;
            // The rest of a line that a loss of power cut off.
            bytes.extend((last != *b"\n").then_some(b'\n'));
        }
        for (record, reason) in refused {
            if before + bytes.len() as u64 >= self.bytes_max {
                break;
            }
            serde_json::to_writer(&mut bytes, &Line::of(record, reason))?;
            bytes.push(b'\n');
            count += 1;
        }
        file.write_all(&bytes)?;
        Ok(count)
    }
}

impl Line {
    fn of(record: &Record, reason: &str) -> Self {
        Self {
            received: record.time.as_nanos(),
            topic: record.topic.to_string(),
            reason: reason.to_owned(),
            qos: record.qos as u8,
            id: record.id.as_ref().map(ToString::to_string),
            measured: record.measured.map(Instant::as_nanos),
            expires: record.expires.map(|at| clock::to_wall(at).as_nanos()),
            properties: BASE64_STANDARD.encode(&record.forwarded),
            payload: BASE64_STANDARD.encode(&record.payload),
        }
    }

    /// The message, if each of its parts is one.
    fn message(self) -> Option<Refused> {
        let qos = if self.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let payload = BASE64_STANDARD.decode(&self.payload).ok()?;
        let record = Record {
            qos,
            id: self.id.map(Into::into),
            measured: self.measured.map(Instant::from_nanos),
            expires: self.expires.map(|at| clock::from_wall(Instant::from_nanos(at))),
            forwarded: BASE64_STANDARD.decode(&self.properties).ok()?.into(),
            // A replay that was broken off begins again.
            is_repeated: true,
            ..Record::new(&self.topic, payload, Instant::from_nanos(self.received))
        };
        Some(Refused { record, reason: self.reason })
    }
}

/// The messages of a file, in order. A line that is none, such as one that a loss of power cut off, is passed over: it was never
/// acknowledged.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Refused>> + use<>> {
    let lines = BufReader::new(regular::open(path)?).split(b'\n');
    Ok(lines.filter_map(|line| match line {
        Ok(line) => serde_json::from_slice::<Line>(&line).ok().and_then(Line::message).map(Ok),
        Err(error) => Some(Err(error)),
    }))
}

/// The sinks of which messages are kept in `folder`, by name.
///
/// # Errors
/// The folder cannot be read.
pub fn kept(folder: &Path) -> io::Result<Vec<Kept>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = std::collections::BTreeMap::<String, (u64, u64)>::new();
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let (Some(name), Some(ending)) =
            (path.file_stem().and_then(OsStr::to_str), path.extension().and_then(OsStr::to_str))
        else {
            continue;
        };
        let bytes = entry.metadata()?.len();
        match ending {
            REFUSED => found.entry(name.to_owned()).or_default().0 = bytes,
            REPLAY => found.entry(name.to_owned()).or_default().1 = bytes,
            _ => {}
        }
    }
    let kept = |(sink, (refused_bytes, replay_bytes))| Kept { sink, refused_bytes, replay_bytes };
    Ok(found.into_iter().map(kept).collect())
}

/// Messages on their way to the destination again.
#[derive(Debug)]
pub(super) struct Replay {
    path: PathBuf,
    lines: BufReader<File>,
    /// Where those begin that were read last.
    settled: u64,
    /// And where they end.
    read: u64,
}

impl Replay {
    /// If a command asked for one.
    pub(super) fn open(file: &RefusedFile) -> io::Result<Option<Self>> {
        let path = file.replay();
        match regular::open(&path) {
            Ok(file) => Ok(Some(Self { path, lines: BufReader::new(file), settled: 0, read: 0 })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next messages; those of before are settled. None at the end, where the file goes.
    pub(super) fn next(&mut self, messages_max: u32, bytes_max: u64) -> io::Result<Option<Batch>> {
        self.settled = self.read;
        let (mut batch, mut line) = (Batch::default(), Vec::new());
        while batch.records().len() < messages_max as usize && batch.bytes() < bytes_max {
            line.clear();
            let count = self.lines.by_ref().read_until(b'\n', &mut line)?;
            if count == 0 {
                break;
            }
            self.read += count as u64;
            match serde_json::from_slice::<Line>(&line).ok().and_then(Line::message) {
                Some(message) => batch.push(message.record),
                None => {
                    tracing::warn!(file = %self.path.display(), "a line that is no message is passed over");
                }
            }
        }
        if batch.is_empty() {
            fs::remove_file(&self.path)?;
            return Ok(None);
        }
        Ok(Some(batch))
    }

    /// The messages that were read last come again: they were not settled.
    pub(super) fn step_back(&mut self) -> io::Result<()> {
        self.lines.seek(SeekFrom::Start(self.settled))?;
        self.read = self.settled;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: usize) -> Record {
        Record {
            qos: if number.is_multiple_of(2) { QoS::AtMostOnce } else { QoS::AtLeastOnce },
            id: (number > 1).then(|| format!("edge/up/1/{number}").into()),
            measured: (number > 2).then(|| Instant::from_nanos(7)),
            forwarded: if number > 3 { b"\x26\0\x01a\0\x01b"[..].into() } else { [][..].into() },
            is_repeated: true,
            ..Record::new("größe/\"a\"", vec![0xff, 0, b'\n', number as u8], Instant::from_nanos(9))
        }
    }

    fn write(file: &RefusedFile, records: &[Record]) -> usize {
        file.append(records.iter().map(|record| (record, "it is \"odd\"\n"))).unwrap()
    }

    #[test]
    fn refused_messages_come_back_unchanged_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = RefusedFile::new(&folder.path().join("state/sinks"), "a.b", 1 << 20);
        let records: Vec<Record> = (0..6).map(record).collect();
        assert_eq!(write(&file, &records[..2]), 2);
        // A loss of power cut off a line.
        let mut cut = files::append(&file.refused(), files::PRIVATE).unwrap();
        cut.write_all(b"{\"received\":9,\"topic\":\"a").unwrap();
        assert_eq!(write(&file, &records[2..]), 4);
        let found: Vec<Refused> = read(&file.refused()).unwrap().map(Result::unwrap).collect();
        assert!(found.iter().all(|refused| refused.reason == "it is \"odd\"\n"));
        assert_eq!(found.into_iter().map(|refused| refused.record).collect::<Vec<_>>(), records);
        let kept = kept(&folder.path().join("state/sinks")).unwrap();
        assert_eq!((kept.len(), &*kept[0].sink, kept[0].replay_bytes), (1, "a.b", 0));

        // They are given to the destination in batches, the last one again where it was not settled.
        assert!(Replay::open(&file).unwrap().is_none());
        fs::rename(file.refused(), file.replay()).unwrap();
        let mut replay = Replay::open(&file).unwrap().unwrap();
        let mut next = || replay.next(4, 1 << 20).unwrap().map(Batch::into_records);
        assert_eq!(next(), Some(records[..4].to_vec()));
        assert_eq!(next(), Some(records[4..].to_vec()));
        replay.step_back().unwrap();
        let mut next = || replay.next(4, 1 << 20).unwrap().map(Batch::into_records);
        assert_eq!(next(), Some(records[4..].to_vec()));
        assert_eq!(next(), None);
        assert!(!file.replay().exists());
    }

    #[test]
    fn full_file_takes_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let file = RefusedFile::new(folder.path(), "a", 300);
        let records: Vec<Record> = (0..6).map(record).collect();
        let first = write(&file, &records);
        assert!((1..6).contains(&first), "{first}");
        let bytes = fs::metadata(file.refused()).unwrap().len();
        assert_eq!((write(&file, &records[first..]), bytes >= 300), (0, true));
        assert_eq!(fs::metadata(file.refused()).unwrap().len(), bytes);
        // A message is taken however long it is, as long as the bound is not reached.
        fs::remove_file(file.refused()).unwrap();
        let long = Record::new("a", vec![0; 10_000], Instant::from_nanos(1));
        assert_eq!(write(&file, &[long]), 1);
    }
}

//! Logs of frames, file by file.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tidegate_camera::frame_log::log_id;
use tidegate_config::words::AtRest;
use tidegate_log::{NodeKeys, SegmentId, SegmentState, Survey, segment_named, survey};
use tidegate_message::{Instant, Position};

use super::{Examination, files};

/// One log.
#[derive(Debug, Default, Serialize)]
pub struct LogSummary {
    /// Kind and name, such as `camera/cam1`.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Whether a node has it open; then it changes while it is looked at.
    pub in_use: bool,
    /// Segments with frames.
    pub segments: u64,
    /// Of these, those that are not finished: the newest, and after a loss of power some before it.
    pub unfinished: u64,
    /// Frames that prove themselves.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of the first frame, in nanoseconds since the Unix epoch.
    pub oldest: Option<i64>,
    /// Time of the last one.
    pub newest: Option<i64>,
    /// Frames that are damaged or missing between others.
    pub lost: u64,
    /// Frames that were changed on purpose.
    pub tampered: u64,
    /// Segments that are sealed.
    pub sealed: u64,
    /// The keys that seal them.
    pub keys: Vec<String>,
    /// Files that a node has set aside because they are damaged.
    pub set_aside: Vec<String>,
}

pub(super) fn examine(
    found: &mut Examination,
    folder: &Path,
    at_rest: AtRest,
    keys: Option<&NodeKeys>,
) {
    if !folder.exists() {
        // No node has run here with logs in files.
        return;
    }
    let parent = folder.parent().unwrap_or(folder);
    if !files::entries(found, parent).iter().any(|(name, ..)| name == "log")
        || !files::folder(found, folder)
    {
        return;
    }
    for (kind, entry, metadata) in files::entries(found, folder) {
        if !metadata.is_dir() {
            found.note(entry.path(), "this is not a folder of logs");
            continue;
        }
        files::owned(found, &entry.path(), &metadata);
        if kind == "mqtt" {
            journals(found, &entry.path());
            continue;
        }
        for (name, entry, metadata) in files::entries(found, &entry.path()) {
            if metadata.is_dir() {
                files::owned(found, &entry.path(), &metadata);
                log(found, (&kind, &name), &entry.path(), at_rest, keys);
            } else {
                found.note(entry.path(), "this is not a folder of a log");
            }
        }
    }
}

/// The journals of the MQTT sessions, which are no logs of frames: a start reads them, and sets aside what it cannot read.
fn journals(found: &mut Examination, folder: &Path) {
    for (name, entry, metadata) in files::entries(found, folder) {
        if name.contains(".aside") {
            found.problem(
                entry.path(),
                "a node has set it aside, because something in it could not be read: sessions, retained messages or messages that \
                 waited may be missing; bring it back from a copy, or look into it and move it elsewhere",
            );
        } else if metadata.is_dir() {
            files::owned(found, &entry.path(), &metadata);
        } else {
            found.note(entry.path(), "this is not a journal of the MQTT sessions");
        }
    }
}

fn log(
    found: &mut Examination,
    (kind, name): (&str, &str),
    folder: &Path,
    at_rest: AtRest,
    keys: Option<&NodeKeys>,
) {
    let mut summary = LogSummary {
        name: format!("{kind}/{name}"),
        folder: folder.to_owned(),
        in_use: is_in_use(folder),
        ..LogSummary::default()
    };
    let id = log_id(kind, name);
    let mut key_ids = BTreeSet::new();
    let mut next: Option<Position> = None;
    // Files of zeros: whether entries are missing there shows by what is behind them.
    let mut zeros: Vec<PathBuf> = Vec::new();
    let mut is_begun = false;
    for (name, entry, metadata) in files::entries(found, folder) {
        let path = entry.path();
        if !metadata.is_file() {
            found.problem(
                &path,
                "this is not a plain file, and the log does not know it: a node leaves it alone",
            );
            continue;
        }
        let is_trusted = files::owned(found, &path, &metadata);
        let Some(segment) = segment_named(&name) else {
            if name.contains(".damaged") {
                found.problem(
                    &path,
                    "a node has set it aside because it is damaged; look into it, then move it elsewhere",
                );
                summary.set_aside.push(name);
            } else {
                found.note(&path, "this is not a file of the log");
            }
            continue;
        };
        if !is_trusted {
            continue;
        }
        match fs::read(&path) {
            Ok(bytes) => {
                let seen = survey(id, segment, &bytes, keys);
                key_ids.extend(seen.key.map(|key| key.to_string()));
                summary.add(&seen);
                tell(found, &path, segment, &seen, at_rest, keys.is_some());
                if seen.is_zero() {
                    zeros.push(path);
                    continue;
                }
                is_begun = true;
                if let Some((first, end)) = seen.positions {
                    let is_gap = next.is_none_or(|next| next < first);
                    emptied(found, zeros.drain(..), is_gap);
                    if let Some(next) = next.filter(|&next| next < first) {
                        let missing = first.0 - next.0;
                        found.note(
                            &path,
                            format!("{missing} frames before it were not stored, or are lost"),
                        );
                    }
                    next = Some(end);
                }
            }
            // The node that has the log open has let go of it meanwhile.
            Err(error) if summary.in_use && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => found.problem(&path, format!("it cannot be read: {error}")),
        }
    }
    // One is made ready behind a segment that was begun, and the very first is being made.
    let is_ready = zeros.len() == 1 && (is_begun || summary.in_use);
    emptied(found, zeros.drain(..), !is_ready);
    summary.keys = key_ids.into_iter().collect();
    found.logs.push(summary);
}

/// Says of files of zeros that something was in them, if `is_loss`.
fn emptied(found: &mut Examination, files: impl Iterator<Item = PathBuf>, is_loss: bool) {
    for path in files.filter(|_| is_loss) {
        found.problem(
            &path,
            "it holds nothing but zeros, and what was in it is lost; a node sets it aside when it starts",
        );
    }
}

fn is_in_use(folder: &Path) -> bool {
    // Shared, and gone with the handle: a node that starts at this very moment is refused once.
    let locked = File::open(folder).map(|folder| folder.try_lock_shared());
    matches!(locked, Ok(Err(TryLockError::WouldBlock)))
}

impl LogSummary {
    fn add(&mut self, seen: &Survey) {
        let Some((first, last)) = seen.times else { return };
        self.segments += 1;
        self.unfinished += u64::from(seen.state == SegmentState::Unfinished);
        self.sealed += u64::from(seen.is_sealed);
        self.frames += seen.records;
        self.bytes += seen.bytes;
        self.lost += seen.lost;
        self.tampered += seen.tampered;
        let nanos = |at: Instant| Some(at.as_nanos());
        self.oldest = self.oldest.min(nanos(first)).or(nanos(first));
        self.newest = self.newest.max(nanos(last));
    }
}

/// The problem of one segment.
fn tell(
    found: &mut Examination,
    path: &Path,
    segment: SegmentId,
    seen: &Survey,
    at_rest: AtRest,
    has_keys: bool,
) {
    let key = || seen.key.map(|key| format!(" {key}")).unwrap_or_default();
    match seen.state {
        SegmentState::Finished | SegmentState::Unfinished | SegmentState::Empty => {}
        SegmentState::Damaged => {
            found.problem(path, "nothing in it can be read; a node sets it aside when it starts");
        }
        SegmentState::KeyDamaged => {
            found
                .problem(path, "its header or key is damaged, and with it all its frames are lost");
        }
        SegmentState::OtherKey => {
            let text = format!(
                "it is sealed with the key{}, which is not among those configured; name that in log.key_file, or in log.older_key_file",
                key()
            );
            found.problem(path, text);
        }
        SegmentState::Tampered => found.problem(path, "its header or key was tampered with"),
        SegmentState::Foreign => {
            found.problem(
                path,
                format!("segment {segment} of another log; put it back there, or elsewhere"),
            );
        }
        SegmentState::Newer => {
            found.problem(path, "a later version of this program has written it; use that one");
        }
    }
    if matches!(seen.state, SegmentState::Finished | SegmentState::Unfinished) {
        if seen.log_id.is_none() {
            found.problem(path, "its header is damaged; its frames can be read");
        }
        match (at_rest, seen.is_sealed) {
            (AtRest::Sealed, false) => {
                found.problem(
                    path,
                    "it is in clear text, and log.at_rest is sealed: a node does not serve it",
                );
            }
            (AtRest::Clear, true) => {
                let text = format!(
                    "it is sealed with the key{}, and log.at_rest is clear: a node does not open this log",
                    key()
                );
                found.problem(path, text);
            }
            (AtRest::Sealed, true) if !has_keys => {
                found
                    .note(path, "its checksums were looked at, and not its seals: there is no key");
            }
            _ => {}
        }
    }
    if seen.lost > 0 {
        found.problem(path, format!("{} frames in it are damaged or missing", seen.lost));
    }
    if seen.tampered > 0 {
        found.problem(path, format!("{} frames in it were tampered with", seen.tampered));
    }
    if seen.is_index_damaged {
        found.problem(path, "its index is damaged; its frames are found by a scan");
    }
}

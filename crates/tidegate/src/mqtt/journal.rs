//! The journals of the shards, in files.
//!
//! ```text
//!  data_dir/log/mqtt/00000007/000, 001, …   one log for each shard, as this process found it
//!  data_dir/log/mqtt/00000008.new/…         what was found, written anew; named 00000008 once all of it is on the disk
//!  data_dir/log/mqtt/00000007.aside         an earlier one of which something could not be read
//! ```
//!
//! A start reads all journals there are, however many shards wrote them, and begins new ones with what they said: so it does not
//! matter how many shards there are now, and whatever was damaged is behind us. What cannot be read is named in the node's log and
//! left in its folder; the node starts in any case.
//!
//! Always true: the folder of the former process is not touched before all that it said is on the disk in the next one.

#[cfg(test)]
mod tests;

use std::{
    fs, io, mem,
    num::NonZero,
    panic,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    thread,
    time::Duration,
};

use tidegate_broker::{
    Broker,
    journal::{Journal, JournalError, Recovered, Replay},
};
use tidegate_log::{
    AppendError, CommitConfig, Commits, Durability, FilesConfig, Finding, Flusher,
    Journal as RecordLog, JournalConfig, LogConfig, OpenedJournal, Report, StorageError,
};
use tidegate_message::{Code, Instant, Payload, Position};
use tidegate_sys::folder::{Folder, FolderError};

use crate::clock;

/// Largest segment of a journal, and smallest.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Segments of a journal at least.
const SEGMENTS: u64 = 16;
/// Least bytes of all journals, for as many shards as there may be.
pub const BYTES_MIN: u64 = 256 * SEGMENTS * SEGMENT_BYTES_MIN;

/// How sessions and retained messages are kept.
#[derive(Clone, Debug)]
pub struct JournalSettings {
    /// Where; made if it is missing.
    pub folder: PathBuf,
    /// Whether what is acknowledged survives a loss of power, or the end of the process.
    pub is_on_disk: bool,
    /// Bytes of all journals at most.
    pub bytes_max: u64,
    /// How long an acknowledgement may wait for others, to share a write to the disk.
    pub commit_delay: Duration,
}

/// What messages outlive that are to be kept; see [`Durability`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqttDurability(pub Durability);

impl MqttDurability {
    const WORDS: [(&str, Durability); 3] =
        [("memory", Durability::Memory), ("page", Durability::Page), ("disk", Durability::Disk)];

    /// Its word in configuration.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, class)| *class == self.0).expect("each has its word").0
    }
}

impl FromStr for MqttDurability {
    type Err = UnknownDurability;

    fn from_str(text: &str) -> Result<Self, UnknownDurability> {
        let found = Self::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, class)| Self(*class)).ok_or_else(|| UnknownDurability(text.to_owned()))
    }
}

/// A word that names no class of durability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no durability; choose memory, page or disk")]
pub struct UnknownDurability(pub String);

/// What runs beside the shards.
pub(super) struct Running {
    /// By shard, what makes its journal durable.
    pub(super) flushers: Vec<(Flusher, Commits)>,
    /// Locks the folder.
    pub(super) folder: Folder,
}

/// Why there are no journals.
#[derive(Debug, thiserror::Error)]
pub enum JournalStartError {
    /// The folder cannot be had.
    #[error("the folder of the MQTT journals cannot be used")]
    Folder(#[from] FolderError),
    /// Something in it cannot.
    #[error("{path} cannot be {operation}")]
    Io {
        /// What.
        path: PathBuf,
        /// How.
        operation: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A journal cannot be begun or written.
    #[error("a new journal of the MQTT sessions cannot be written")]
    Begin(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl JournalStartError {
    /// The stable code of this error.
    pub fn code(&self) -> Code {
        let is_full =
            |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        match self {
            Self::Io { source, .. } if is_full(source.kind()) => Code::STORAGE_FULL,
            _ => Code::STORAGE_FAILED,
        }
    }
}

/// Brings the shards back to what the journals say, and has them write on.
///
/// # Errors
/// The folder cannot be had at all: another process has it, or others may write there. Where new journals cannot be written,
/// the shards serve what was found, refuse what is to be kept, and the former journals stay as they are.
pub(super) fn open(
    settings: &JournalSettings,
    shards: &mut [Broker],
    now: Instant,
) -> Result<Running, JournalStartError> {
    fs::create_dir_all(&settings.folder).map_err(failed(&settings.folder, "made"))?;
    let folder = Folder::open(&settings.folder)?;
    let began = clock::now();
    let generations = Generations::of(&settings.folder)?;
    let former = generations.complete.last().copied();
    let mut found = match former {
        Some(former) => Former::read(&generation(&settings.folder, former, "")),
        None => Former::default(),
    };
    let recovered = Recovered::join(mem::take(&mut found.replays));
    let counts = recovered.found;
    Broker::restore_all(shards, now, recovered);
    let next = former.unwrap_or(0) + 1;
    let begun = begin(settings, next, shards);
    let took = clock::now().since(began);
    tracing::info!(
        sessions = counts.sessions,
        retained = counts.retained,
        waiting = counts.waiting,
        handed_over = counts.handed_over,
        ?took,
        "MQTT sessions and retained messages are back"
    );
    let flushers = match begun.and_then(|flushers| {
        let path = generation(&settings.folder, next, "");
        fs::rename(generation(&settings.folder, next, ".new"), &path)
            .and_then(|()| folder.sync())
            .map_err(failed(&path, "named"))?;
        Ok(flushers)
    }) {
        Ok(flushers) => flushers,
        Err(error) => {
            let error = Arc::new(error);
            tracing::error!(code = %error.code(), error = %crate::error_chain(&*error),
                "MQTT messages that are to be kept are refused: nothing can be written");
            for shard in shards {
                shard.keep(Box::new(NoJournal(error.clone())));
            }
            return Ok(Running { flushers: Vec::new(), folder });
        }
    };
    for number in generations.complete {
        let path = generation(&settings.folder, number, "");
        if Some(number) == former && found.lacks > 0 {
            let aside = generation(&settings.folder, number, ".aside");
            tracing::warn!(folder = %aside.display(), unread = found.lacks,
                "what could not be read of the MQTT journals is kept there");
            report(fs::rename(&path, &aside).map_err(failed(&path, "set aside")));
        } else {
            report(fs::remove_dir_all(&path).map_err(failed(&path, "removed")));
        }
    }
    Ok(Running { flushers, folder })
}

/// Begins the journals of the next generation with what the shards have.
fn begin(
    settings: &JournalSettings,
    number: u64,
    shards: &mut [Broker],
) -> Result<Vec<(Flusher, Commits)>, JournalStartError> {
    let path = generation(&settings.folder, number, ".new");
    fs::create_dir(&path).map_err(failed(&path, "made"))?;
    let begin_failed =
        |error: Box<dyn std::error::Error + Send + Sync>| JournalStartError::Begin(error);
    let mut flushers = Vec::new();
    let mut journals = Vec::new();
    for shard in 0..shards.len() {
        let folder = Folder::open(&path.join(shard_name(shard)))?;
        let config = config(settings, shards.len(), shard);
        let opened = RecordLog::open(folder, config).map_err(|error| begin_failed(error.into()))?;
        let OpenedJournal { journal, flusher, commits, .. } = opened;
        flushers.push((flusher, commits));
        journals.push(journal);
    }
    // All at once: each writes all that its shard has, and waits for the disk.
    let written: Vec<Result<(), JournalError>> = thread::scope(|scope| {
        let write = |(shard, log): (&mut Broker, RecordLog)| {
            shard.keep(Box::new(ShardJournal { log }));
            shard.flush_journal()
        };
        let writing: Vec<_> =
            shards.iter_mut().zip(journals).map(|of| scope.spawn(move || write(of))).collect();
        writing.into_iter().map(joined).collect()
    });
    for written in written {
        written.map_err(|error| begin_failed(error.into()))?;
    }
    Folder::open(&path)?.sync().map_err(failed(&path, "synced"))?;
    Ok(flushers)
}

fn config(settings: &JournalSettings, shards: usize, shard: usize) -> JournalConfig {
    let bytes_max = (settings.bytes_max / shards as u64).max(SEGMENTS * SEGMENT_BYTES_MIN);
    let segment_bytes = (bytes_max / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    JournalConfig {
        files: FilesConfig {
            log_id: shard as u64,
            opened: clock::now(),
            commit: CommitConfig { delay_max: settings.commit_delay, ..CommitConfig::default() },
            keys: None,
        },
        log: LogConfig { bytes_max, segment_bytes },
        durability: if settings.is_on_disk { Durability::Disk } else { Durability::Page },
    }
}

/// What the former process left.
#[derive(Default)]
struct Former {
    replays: Vec<Replay>,
    /// Things that could not be read.
    lacks: u64,
}

impl Former {
    /// Reads the journals of a generation, as many at once as there are processors.
    fn read(path: &Path) -> Self {
        let path = |shard: usize| path.join(shard_name(shard));
        let count = (0..).take_while(|shard| path(*shard).is_dir()).count();
        let mut all = Self::default();
        let shards: Vec<usize> = (0..count).collect();
        let at_once = thread::available_parallelism().map_or(1, NonZero::get);
        for shards in shards.chunks(at_once) {
            let read = |shard: usize| {
                let (path, mut former, mut replay) =
                    (path(shard), Self::default(), Replay::default());
                if let Err(error) = former.read_shard(&path, shard, &mut replay) {
                    former.lacks += 1;
                    tracing::error!(folder = %path.display(), error = %crate::error_chain(&*error), "a journal of the MQTT sessions cannot be read");
                }
                former.replays.push(replay);
                former
            };
            let read: Vec<Self> = thread::scope(|scope| {
                let reading: Vec<_> =
                    shards.iter().map(|shard| scope.spawn(|| read(*shard))).collect();
                reading.into_iter().map(joined).collect()
            });
            for former in read {
                all.replays.extend(former.replays);
                all.lacks += former.lacks;
            }
        }
        all
    }

    fn read_shard(
        &mut self,
        path: &Path,
        shard: usize,
        replay: &mut Replay,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let settings = JournalSettings {
            folder: PathBuf::new(),
            is_on_disk: false,
            // As it was: a log takes segments of any size that it finds.
            bytes_max: u64::MAX / 2,
            commit_delay: Duration::ZERO,
        };
        let config = config(&settings, 1, shard);
        let OpenedJournal { journal, report, .. } = RecordLog::open(Folder::open(path)?, config)?;
        self.note(path, &report);
        let mut wrong = 0;
        let lost = journal.read_all(|record| {
            if let Err(error) = replay.read(&record) {
                wrong += 1;
                tracing::warn!(folder = %path.display(), %error, "a record of the MQTT sessions is not taken");
            }
        });
        if lost > 0 {
            tracing::warn!(folder = %path.display(), lost, "records of the MQTT sessions are damaged");
        }
        self.lacks += lost + wrong;
        Ok(())
    }

    fn note(&mut self, path: &Path, report: &Report) {
        for finding in &report.findings {
            // The last segment of a process that was killed has no end; nothing of it is missing.
            if let Finding::Repaired { .. } = finding {
                tracing::info!(folder = %path.display(), ?finding, "found in a journal of the MQTT sessions");
            } else {
                self.lacks += 1;
                tracing::warn!(folder = %path.display(), ?finding, "found in a journal of the MQTT sessions");
            }
        }
    }
}

/// The generations in a folder.
struct Generations {
    /// Their numbers, least first.
    complete: Vec<u64>,
}

impl Generations {
    /// What there is; those that were never finished are removed.
    fn of(folder: &Path) -> Result<Self, JournalStartError> {
        let mut complete = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed(folder, "read"))? {
            let entry = entry.map_err(failed(folder, "read"))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(number) = number(name) {
                complete.push(number);
            } else if name.strip_suffix(".new").and_then(number).is_some() {
                fs::remove_dir_all(entry.path()).map_err(failed(&entry.path(), "removed"))?;
            }
        }
        complete.sort_unstable();
        Ok(Self { complete })
    }
}

/// What a thread of this start came to.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

fn number(name: &str) -> Option<u64> {
    (name.len() >= 8 && name.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| name.parse().ok())?
}

fn generation(folder: &Path, number: u64, suffix: &str) -> PathBuf {
    folder.join(format!("{number:08}{suffix}"))
}

fn shard_name(shard: usize) -> String {
    format!("{shard:03}")
}

fn failed<'a>(
    path: &'a Path,
    operation: &'static str,
) -> impl Fn(io::Error) -> JournalStartError + use<'a> {
    move |source| JournalStartError::Io { path: path.to_owned(), operation, source }
}

fn report(result: Result<(), JournalStartError>) {
    if let Err(error) = result {
        tracing::warn!(error = %crate::error_chain(&error), "an old journal of the MQTT sessions stays");
    }
}

/// A shard's journal in files.
struct ShardJournal {
    log: RecordLog,
}

impl std::fmt::Debug for ShardJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardJournal").field("end", &self.log.end()).finish_non_exhaustive()
    }
}

impl Journal for ShardJournal {
    fn ensure(&mut self, bytes: usize) -> Result<(), JournalError> {
        self.log.ensure(bytes).map_err(refused)
    }

    fn append(&mut self, head: &[u8], payload: &Payload) -> Result<Position, JournalError> {
        let segments = payload.segments().iter().map(|segment| &segment[..]);
        self.log.append(clock::now(), std::iter::once(head).chain(segments)).map_err(refused)
    }

    fn end(&self) -> Position {
        self.log.end()
    }

    fn durable(&self) -> Position {
        self.log.durable()
    }

    fn failure(&self) -> Option<JournalError> {
        self.log.failure().map(|error| JournalError::Failed(error))
    }

    fn is_gated(&self) -> bool {
        self.log.durability() == Durability::Disk
    }

    fn release(&mut self, position: Position) -> Result<(), JournalError> {
        self.log.release(position).map(drop).map_err(storage)
    }

    fn bytes(&self) -> u64 {
        self.log.bytes()
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        self.log.flush().map(drop).map_err(storage)
    }
}

fn refused(error: AppendError) -> JournalError {
    if error.code() == Code::STORAGE_FULL {
        JournalError::Full(Arc::new(error))
    } else {
        JournalError::Failed(Arc::new(error))
    }
}

fn storage(error: StorageError) -> JournalError {
    JournalError::Failed(Arc::new(error))
}

/// Where nothing can be written.
#[derive(Clone, Debug)]
struct NoJournal(Arc<JournalStartError>);

impl NoJournal {
    fn error(&self) -> JournalError {
        if self.0.code() == Code::STORAGE_FULL {
            JournalError::Full(self.0.clone())
        } else {
            JournalError::Failed(self.0.clone())
        }
    }
}

impl Journal for NoJournal {
    fn ensure(&mut self, _: usize) -> Result<(), JournalError> {
        Err(self.error())
    }

    fn append(&mut self, _: &[u8], _: &Payload) -> Result<Position, JournalError> {
        Err(self.error())
    }

    fn end(&self) -> Position {
        Position(0)
    }

    fn durable(&self) -> Position {
        Position(0)
    }

    fn failure(&self) -> Option<JournalError> {
        Some(self.error())
    }

    fn is_gated(&self) -> bool {
        false
    }

    fn release(&mut self, _: Position) -> Result<(), JournalError> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        Err(self.error())
    }
}

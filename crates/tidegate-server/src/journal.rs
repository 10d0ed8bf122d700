//! The journals of the shards, in files.
//!
//! ```text
//!  data_dir/log/mqtt/00000007/000, 001, …   one log for each shard, as this process found it
//!  data_dir/log/mqtt/00000008.new/…         the state that was found, written again; named 00000008 once all of it is on the disk
//!  data_dir/log/mqtt/00000007.aside         an earlier one of which something could not be read
//! ```
//!
//! In each stands `generation`, which says how many shards it is of and how far each had come when it was begun: so what is missing of
//! it is known, whole shards and emptied files included.
//!
//! A start reads all journals there are, however many shards wrote them, and begins new ones with what they said: so it does not
//! matter how many shards there are now, and whatever was damaged is behind us. Unreadable records are named in the node's log and
//! left in their folder, under another name; the node starts in any case. Of several folders the newest whole one counts.
//!
//! Where the disk takes no new journals, the node serves what was found, refuses what is to be kept, and tries again.
//!
//! Always true: nothing of the former process that has records is touched before all that it said is on the disk in the next one. Unreadable
//! folders are not removed, [`ASIDES_MAX`] at most.

mod clock_note;
mod contents;
mod former;
mod generations;
mod mark;
mod shard_journal;
#[cfg(test)]
mod tests;

use std::{
    fs, io, mem, panic,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tidegate_broker::Broker;
use tidegate_journal::{Journal, JournalError, Record, Recovered};
use tidegate_log::{
    CommitConfig, Commits, Durability, FilesConfig, Flusher, Journal as RecordLog, JournalConfig,
    LogConfig, OpenedJournal,
};
use tidegate_message::{Code, Instant, Position};
use tidegate_process::clock;
use tidegate_sys::{
    files,
    folder::{Folder, FolderError},
};

pub(super) use self::clock_note::ClockKeeper;
use self::{
    generations::Generations,
    mark::Mark,
    shard_journal::{NoJournal, ShardJournal},
};

/// Largest segment of a journal, and smallest.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Segments of a journal at least.
const SEGMENTS: u64 = 16;
/// Least bytes of all journals, for as many shards as there may be.
pub const BYTES_MIN: u64 = 256 * SEGMENTS * SEGMENT_BYTES_MIN;

/// Where the disk took no journal, it is asked again after this time, then after twice as long, at most after that.
const LATER_MIN: Duration = Duration::from_secs(1);
const LATER_MAX: Duration = Duration::from_secs(8);

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

/// The parts that run next to the shards.
pub(super) struct Running {
    /// By shard, what makes its journal durable.
    pub(super) flushers: Vec<(Flusher, Commits)>,
    /// Locks the folder.
    pub(super) folder: Folder,
    /// Begins the journals later, where the disk takes none now.
    pub(super) later: Option<Later>,
    /// Notes what becomes of the clock by which they are written.
    pub(super) clock: ClockKeeper,
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
        /// The path.
        path: PathBuf,
        /// How.
        operation: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// It is being begun.
    #[error("the new journal of the MQTT sessions is not complete yet")]
    Unnamed,
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
/// the shards serve what was found, refuse what is to be kept, and the former journals stay as they are until [`Later`] succeeds.
pub(super) fn open(
    settings: &JournalSettings,
    shards: &mut [Broker],
    now: Instant,
) -> Result<Running, JournalStartError> {
    let made = files::folder(&settings.folder, files::PRIVATE_FOLDER);
    made.map_err(failed(&settings.folder, "made"))?;
    let folder = Folder::open(&settings.folder)?;
    let began = clock::now();
    let mut found = Generations::read(&settings.folder)?;
    let recovered = Recovered::join(mem::take(&mut found.replays));
    let counts = recovered.found;
    Broker::restore_all(shards, now, recovered);
    let count = shards.len();
    found.free_reserves();
    let begun = Begun::write(settings, &found, count, |journals| write_at_once(shards, journals));
    let begun = begun.and_then(|begun| begun.finish(settings, &folder, &found));
    // The records that were read are needed no more, and may be several times what is held.
    tidegate_sys::memory::give_back();
    let took = clock::now().since(began);
    tracing::info!(
        sessions = counts.sessions,
        retained = counts.retained,
        waiting = counts.waiting,
        handed_over = counts.handed_over,
        took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        "MQTT sessions and retained messages are back"
    );
    let clock = ClockKeeper { folder: generation(&settings.folder, found.next, "") };
    match begun {
        Ok(flushers) => Ok(Running { flushers, folder, later: None, clock }),
        Err(error) => {
            let error = Arc::new(error);
            tracing::error!(code = %error.code(), error = %tidegate_message::error_chain(&*error),
                "MQTT messages that are to be kept are refused until the disk takes a journal");
            for shard in shards {
                shard.keep(Box::new(NoJournal(error.clone())));
            }
            let later = Later { settings: settings.clone(), folder: folder.clone(), found, error };
            Ok(Running { flushers: Vec::new(), folder, later: Some(later), clock })
        }
    }
}

/// Has all shards write all that they have, at once, and waits for the disk.
fn write_at_once(shards: &mut [Broker], journals: Vec<ShardJournal>) -> Vec<Written> {
    thread::scope(|scope| {
        let write = |(shard, journal): (&mut Broker, ShardJournal)| {
            shard.keep(Box::new(journal));
            shard.flush_journal()
        };
        let writing: Vec<_> =
            shards.iter_mut().zip(journals).map(|of| scope.spawn(move || write(of))).collect();
        writing.into_iter().map(joined).collect()
    })
}

/// Whether a shard has written all that it has.
pub(super) type Written = Result<(), JournalError>;

/// The journals of the next generation, with all that the shards have.
struct Begun {
    number: u64,
    flushers: Vec<(Flusher, Commits)>,
    is_named: Arc<AtomicBool>,
}

impl Begun {
    /// Makes the journals, and has `write` hand one to each of so many shards. A folder that was begun is removed if
    /// that fails.
    fn write(
        settings: &JournalSettings,
        former: &Generations,
        shards: usize,
        write: impl FnOnce(Vec<ShardJournal>) -> Vec<Written>,
    ) -> Result<Self, JournalStartError> {
        let path = generation(&settings.folder, former.next, ".new");
        let remove = || match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %path.display(), %error, "an unfinished journal could not be removed");
            }
            _ => {}
        };
        // A folder that this process could not rename.
        remove();
        let begun = Self::write_in(settings, &path, (former, shards), write);
        if begun.is_err() {
            remove();
        }
        begun
    }

    fn write_in(
        settings: &JournalSettings,
        path: &Path,
        (former, shards): (&Generations, usize),
        write: impl FnOnce(Vec<ShardJournal>) -> Vec<Written>,
    ) -> Result<Self, JournalStartError> {
        files::folder(path, files::PRIVATE_FOLDER).map_err(failed(path, "made"))?;
        let begin_failed =
            |error: Box<dyn std::error::Error + Send + Sync>| JournalStartError::Begin(error);
        let is_named = Arc::new(AtomicBool::new(false));
        let number = former.next;
        let mut begun = Self { number, flushers: Vec::new(), is_named: is_named.clone() };
        let mut journals = Vec::new();
        for shard in 0..shards {
            let folder = Folder::open(&path.join(shard_name(shard)))?;
            let config = config(settings, shards, shard);
            let opened =
                RecordLog::open(folder, config).map_err(|error| begin_failed(error.into()))?;
            let OpenedJournal { mut journal, flusher, commits, .. } = opened;
            // One record at least, so that a journal whose files lost their content is distinguished from an empty one.
            let mut first = Vec::new();
            Record::Seen { shard: 0, number: 0, and_before: true }.encode(&mut first);
            let appended = journal.append(clock::now(), [&first[..]]);
            appended.map_err(|error| begin_failed(error.into()))?;
            begun.flushers.push((flusher, commits));
            journals.push(ShardJournal { log: journal, is_named: is_named.clone() });
        }
        let ends: Vec<Position> = journals.iter().map(|journal| journal.log.end()).collect();
        for written in write(journals) {
            written.map_err(|error| begin_failed(error.into()))?;
        }
        let made_from = former.superseded.iter().filter_map(|path| path.file_name()?.to_str());
        let mark = Mark { ends, made_from: made_from.map(str::to_owned).collect() };
        mark.write(path).map_err(failed(path, "marked"))?;
        Folder::open(path)?.sync().map_err(failed(path, "synced"))?;
        Ok(begun)
    }

    /// Gives the generation its name, from which on it counts, and does away with those before it.
    fn finish(
        self,
        settings: &JournalSettings,
        folder: &Folder,
        former: &Generations,
    ) -> Result<Vec<(Flusher, Commits)>, JournalStartError> {
        let path = generation(&settings.folder, self.number, "");
        let new = generation(&settings.folder, self.number, ".new");
        let named = fs::rename(&new, &path).and_then(|()| {
            // So that it can be tried again; the error to report is the first.
            folder.sync().inspect_err(|_| drop(fs::rename(&path, &new)))
        });
        named.map_err(failed(&path, "named"))?;
        self.is_named.store(true, Ordering::Release);
        former.retire(&settings.folder);
        Ok(self.flushers)
    }
}

/// A try takes at most so small a part of the time.
const LATER_PART: u32 = 20;

/// Begins the journals of a node that runs without, as soon as the disk takes them.
pub(super) struct Later {
    settings: JournalSettings,
    folder: Folder,
    found: Generations,
    error: Arc<JournalStartError>,
}

impl Later {
    /// Tries now and then until it succeeds, or `stop` receives a message or is closed. `hand` has each shard keep its journal from now on and write
    /// all that it has, and waits for that; `none` takes the journals from them again.
    pub(super) fn run(
        self,
        shards: usize,
        stop: &mpsc::Receiver<()>,
        hand: impl Fn(Vec<Box<dyn Journal>>) -> Vec<Written>,
    ) -> Option<Vec<(Flusher, Commits)>> {
        let Self { settings, folder, found, error } = self;
        let mut pause = LATER_MIN;
        while let Err(mpsc::RecvTimeoutError::Timeout) = stop.recv_timeout(pause) {
            pause = (2 * pause).min(LATER_MAX);
            let began = clock::now();
            let boxed = |journal: ShardJournal| Box::new(journal) as Box<dyn Journal>;
            let begun = Begun::write(&settings, &found, shards, |journals| {
                let written = hand(journals.into_iter().map(boxed).collect());
                if written.iter().any(Result::is_err) {
                    let none = |_| Box::new(NoJournal(error.clone())) as Box<dyn Journal>;
                    // The shards learn that nothing can be written.
                    drop(hand((0..shards).map(none).collect()));
                }
                written
            });
            match begun.and_then(|begun| begun.finish(&settings, &folder, &found)) {
                Ok(flushers) => {
                    tracing::info!("the disk takes journals of the MQTT sessions again");
                    return Some(flushers);
                }
                Err(error) => tracing::debug!(error = %tidegate_message::error_chain(&error),
                    "there is no journal of the MQTT sessions yet"),
            }
            // A state that takes long to write is not written most of the time.
            pause = pause.max(clock::now().since(began) * LATER_PART);
        }
        None
    }
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

/// The result of a thread of this start.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

fn generation(folder: &Path, number: u64, suffix: &str) -> PathBuf {
    folder.join(format!("{number:08}{suffix}"))
}

/// Shards that a node may have, whatever is configured now. Folders of greater numbers are no shard's.
const SHARDS_MAX: usize = 255;

fn shard_name(shard: usize) -> String {
    format!("{shard:03}")
}

fn failed<'a>(
    path: &'a Path,
    operation: &'static str,
) -> impl Fn(io::Error) -> JournalStartError + use<'a> {
    move |source| JournalStartError::Io { path: path.to_owned(), operation, source }
}

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

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    fs, io, mem,
    num::NonZero,
    panic,
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
use tidegate_journal::{Journal, JournalError, Record, Recovered, Replay};
use tidegate_log::{
    AppendError, CommitConfig, Commits, Durability, FilesConfig, Finding, Flusher,
    Journal as RecordLog, JournalConfig, LogConfig, OpenedJournal, Report, StorageError,
};
use tidegate_message::{Code, Instant, Payload, Position};
use tidegate_process::clock;
use tidegate_sys::{
    folder::{Folder, FolderError},
    regular,
};

/// Largest segment of a journal, and smallest.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Segments of a journal at least.
const SEGMENTS: u64 = 16;
/// Least bytes of all journals, for as many shards as there may be.
pub const BYTES_MIN: u64 = 256 * SEGMENTS * SEGMENT_BYTES_MIN;

/// Shards that a node may have, whatever is configured now. Folders of greater numbers are no shard's.
const SHARDS_MAX: usize = 255;
/// Folders that are set aside at most.
const ASIDES_MAX: usize = 16;
/// Where the disk took no journal, it is asked again after this time, then after twice as long, at most after that.
const LATER_MIN: Duration = Duration::from_secs(1);
const LATER_MAX: Duration = Duration::from_secs(8);
/// The file that identifies each generation, and its first line.
const MARK_FILE: &str = "generation";
const MARK: &str = "tidegate MQTT journals 1";
/// How far the wall clock was set since the start, and how often that is looked at.
const CLOCK_FILE: &str = "clock";
const CLOCK_PART_FILE: &str = "clock.part";
const CLOCK: Duration = Duration::from_secs(1);
/// Records that are later than now by less are of a clock that was corrected.
const LATER_THAN_NOW: Duration = Duration::from_secs(1);
const MARK_BYTES_MAX: u64 = 64 << 10;

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
    fs::create_dir_all(&settings.folder).map_err(failed(&settings.folder, "made"))?;
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
        fs::create_dir(path).map_err(failed(path, "made"))?;
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

/// Notes in the folder of the generation how far the wall clock was set since the process started: its journals have times by a clock
/// that never jumps, and the next process begins with another one.
pub(super) struct ClockKeeper {
    folder: PathBuf,
}

impl ClockKeeper {
    /// Looks now and then until `stop` receives a message or is closed.
    pub(super) fn run(self, stop: &mpsc::Receiver<()>) {
        let mut noted = 0;
        loop {
            let stops = !matches!(stop.recv_timeout(CLOCK), Err(mpsc::RecvTimeoutError::Timeout));
            let ahead = clock::wall_ahead();
            if ahead != noted {
                match note_clock(&self.folder, ahead) {
                    Ok(()) => noted = ahead,
                    Err(error) => {
                        tracing::debug!(%error, "that the clock was set is not noted yet");
                    }
                }
            }
            if stops {
                return;
            }
        }
    }
}

fn note_clock(folder: &Path, ahead: i64) -> io::Result<()> {
    let part = folder.join(CLOCK_PART_FILE);
    let mut file = fs::File::create(&part)?;
    io::Write::write_all(&mut file, format!("wall clock ahead by {ahead} ns\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(part, folder.join(CLOCK_FILE))
}

/// The note that [`note_clock`] has written; 0 if the clock was never set.
fn read_clock(folder: &Path) -> Result<i64, MarkError> {
    let path = folder.join(CLOCK_FILE);
    match regular::read_at_most(&path, MARK_BYTES_MAX) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let ahead = text.strip_prefix("wall clock ahead by ");
            let ahead = ahead.and_then(|rest| rest.strip_suffix(" ns\n")?.parse().ok());
            ahead.ok_or(MarkError::Unknown { path })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(MarkError::Io { path, source }),
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

/// The journals of the former process.
#[derive(Default)]
struct Former {
    replays: Vec<Replay>,
    /// Records that were read.
    records: u64,
    /// Things that could not be read.
    lacks: u64,
    /// Things that no version of this program puts there.
    foreign: usize,
    /// When the newest of those records was written, by the clock of now.
    newest: Option<Instant>,
    /// Its mark.
    mark: Option<Mark>,
}

impl Former {
    /// Reads the journals of a generation.
    ///
    /// Where they were written later than now, the clock is wrong that was right then, or the other way round: times are as far from now as
    /// they were from the newest record.
    fn read(path: &Path) -> Self {
        let former = Self::read_by(path, 0);
        let now = clock::now();
        let Some(newest) = former.newest.filter(|newest| *newest > now + LATER_THAN_NOW) else {
            return former;
        };
        tracing::warn!(folder = %path.display(), by_seconds = newest.since(now).as_secs(),
            "the journals of the MQTT sessions are later than the system clock, which may not be set yet; their times are moved");
        // The records that were read hold the folders.
        drop(former);
        Self::read_by(path, now.nanos_since(newest))
    }

    /// Reads them, as many at once as there are processors, and moves their times by so many nanoseconds.
    fn read_by(path: &Path, moved: i64) -> Self {
        let mut all = Self::default();
        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            // A link may lead to what another node has.
            all.lack(path, &*Box::<dyn std::error::Error>::from("it is not a folder"));
            return all;
        }
        all.mark = Mark::read(path).unwrap_or_else(|error| {
            all.lack(path, &error);
            None
        });
        let ends = all.mark.as_ref().map(|mark| mark.ends.clone());
        let behind = read_clock(path).unwrap_or_else(|error| {
            all.lack(path, &error);
            0
        });
        let behind = behind.saturating_add(moved);
        let shards = match Contents::read(path) {
            Ok(Contents { shards: found, foreign }) => {
                all.foreign = foreign.len();
                report_foreign(path, &foreign);
                let count = found.last().map_or(0, |last| last + 1);
                let count = ends.as_ref().map_or(count, |ends| count.max(ends.len()));
                for missing in (0..count).filter(|shard| !found.contains(shard)) {
                    let error = format!("the folder {} of a shard is missing", shard_name(missing));
                    all.lack(path, &*Box::<dyn std::error::Error>::from(error));
                }
                found
            }
            Err(error) => {
                all.lack(path, &error);
                Vec::new()
            }
        };
        if shards.is_empty() && all.lacks == 0 {
            all.lack(path, &*Box::<dyn std::error::Error>::from("there is no journal in it"));
        }
        let at_once = thread::available_parallelism().map_or(1, NonZero::get);
        for shards in shards.chunks(at_once) {
            let read = |shard: usize| {
                let path = path.join(shard_name(shard));
                let (mut former, mut replay) = (Self::default(), Replay::of_clock_behind(behind));
                let end = ends.as_ref().and_then(|ends| ends.get(shard)).copied();
                match former.read_shard(&path, (shard, end), &mut replay) {
                    Ok(newest) => {
                        former.newest = newest.map(|at| clock::shifted(at, behind));
                    }
                    Err(error) => former.lack(&path, &*error),
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
                all.newest = all.newest.max(former.newest);
                all.records += former.records;
                all.lacks += former.lacks;
            }
        }
        all
    }

    /// Something cannot be read.
    fn lack(&mut self, path: &Path, error: &dyn std::error::Error) {
        self.lacks += 1;
        tracing::error!(folder = %path.display(), error = %tidegate_message::error_chain(error),
            "a journal of the MQTT sessions cannot be read");
    }

    fn read_shard(
        &mut self,
        path: &Path,
        (shard, end): (usize, Option<Position>),
        replay: &mut Replay,
    ) -> Result<Option<Instant>, Box<dyn std::error::Error + Send + Sync>> {
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
        if end.is_some_and(|end| journal.end() < end) || report.ends_finished {
            self.lack(path, &*Box::<dyn std::error::Error>::from("its newest records are missing"));
        }
        let (mut wrong, mut records) = (0, 0);
        let lost = journal.read_all(|record| {
            records += 1;
            if let Err(error) = replay.read(&record) {
                wrong += 1;
                tracing::warn!(folder = %path.display(), %error, "a record of the MQTT sessions is not taken");
            }
        });
        if lost > 0 {
            tracing::warn!(folder = %path.display(), lost, "records of the MQTT sessions are damaged");
        }
        self.records += records;
        self.lacks += lost + wrong;
        Ok(journal.last_at())
    }

    fn note(&mut self, path: &Path, report: &Report) {
        for finding in &report.findings {
            // The last segment of a process that was killed has no end; nothing of it is missing.
            if let Finding::Repaired { .. } = finding {
                tracing::info!(folder = %path.display(), %finding, "found in a journal of the MQTT sessions");
            } else {
                self.lacks += 1;
                tracing::warn!(folder = %path.display(), %finding, "found in a journal of the MQTT sessions");
            }
        }
    }
}

/// The generations in a folder.
#[derive(Default)]
struct Generations {
    /// The content of the one that counts.
    replays: Vec<Replay>,
    /// The number of the next.
    next: u64,
    /// Those that the next one says again, or that were followed by one that did.
    superseded: Vec<PathBuf>,
    /// Those of which something could not be read, and those before one of them.
    aside: Vec<PathBuf>,
}

impl Generations {
    /// Reads the newest that is whole; if none is, the newest of which something can be read.
    ///
    /// One that was begun and never finished is removed where there is what it was made from.
    fn read(folder: &Path) -> Result<Self, JournalStartError> {
        let mut numbered = Vec::new();
        let mut unfinished = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed(folder, "read"))? {
            let entry = entry.map_err(failed(folder, "read"))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(number) = number(name) {
                numbered.push((number, entry.path()));
            } else if let Some(number) = name.strip_suffix(".new").and_then(number) {
                unfinished.push((number, entry.path()));
            }
        }
        numbered.sort_unstable();
        let newest = numbered.iter().chain(&unfinished).map(|(number, _)| *number).max();
        let mut all = Self { next: newest.unwrap_or(0) + 1, ..Self::default() };
        let is_only = numbered.len() == 1;
        let mut partial: Option<Former> = None;
        let mut found: Option<Mark> = None;
        for (_, path) in numbered.into_iter().rev() {
            if let Some(mark) = &found {
                // The one that counts says what it says again, unless it was put here since.
                let holds_foreign = || {
                    let foreign = Contents::read(&path).map(|contents| contents.foreign);
                    foreign.is_ok_and(|foreign| {
                        report_foreign(&path, &foreign);
                        !foreign.is_empty()
                    })
                };
                match mark.is_made_from(&path) && !holds_foreign() {
                    true => all.superseded.push(path),
                    false => all.aside.push(path),
                }
                continue;
            }
            // Nor is an older one to be brought back in place of what is known of a newer one.
            if partial.is_some() {
                all.aside.push(path);
                continue;
            }
            let former = Former::read(&path);
            // An earlier version left no mark: then only what it says proves that nothing is missing, or that there is no other.
            if former.lacks == 0 && (former.mark.is_some() || former.records > 0 || is_only) {
                all.replays = former.replays;
                // Foreign files in it are not for this program to remove.
                match former.foreign {
                    0 => all.superseded.push(path),
                    _ => all.aside.push(path),
                }
                found = Some(former.mark.unwrap_or_default());
                continue;
            }
            if former.records > 0 {
                partial = Some(former);
            }
            all.aside.push(path);
        }
        if let Some(former) = partial {
            all.replays = former.replays;
        }
        for (_, path) in unfinished {
            let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
            // One that is damaged may lack what this one was made from.
            let has_source = !all.superseded.is_empty();
            let is_needless = || match Contents::read(&path) {
                Ok(contents) => {
                    contents.foreign.is_empty() && (has_source || !contents.holds_records(&path))
                }
                Err(_) => false,
            };
            if is_folder && is_needless() {
                report(fs::remove_dir_all(&path).map_err(failed(&path, "removed")));
            } else {
                tracing::error!(folder = %path.display(),
                    "a journal of the MQTT sessions is not a folder, holds foreign files, or was not finished and its source is missing or damaged");
                all.aside.push(path);
            }
        }
        Ok(all)
    }

    /// Removes what the journals that the next one is made from hold in reserve: it has no records, and the next one needs the room.
    fn free_reserves(&self) {
        for path in &self.superseded {
            let Ok(Contents { shards, .. }) = Contents::read(path) else { continue };
            for shard in shards {
                let shard = path.join(shard_name(shard));
                let entries = fs::read_dir(&shard).into_iter().flatten().flatten();
                for entry in entries.filter(|entry| {
                    entry.file_name().to_str().is_some_and(tidegate_log::is_reserve)
                }) {
                    report(fs::remove_file(entry.path()).map_err(failed(&entry.path(), "removed")));
                }
            }
        }
    }

    /// Removes those that are said again elsewhere, and gives those that could not be read another name.
    fn retire(&self, folder: &Path) {
        for path in &self.superseded {
            report(fs::remove_dir_all(path).map_err(failed(path, "removed")));
        }
        let mut asides = asides(folder);
        for path in &self.aside {
            if asides.len() >= ASIDES_MAX {
                tracing::error!(folder = %path.display(), most = ASIDES_MAX,
                    "unreadable MQTT journals stay where they are: as many folders as there may be were set aside already; look into those whose names have .aside in them, and move them away");
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.strip_suffix(".new").unwrap_or(&name);
            let is_free = |to: &PathBuf| to.symlink_metadata().is_err();
            let numbered = (2..).map(|number| folder.join(format!("{name}.aside-{number}")));
            let mut to = std::iter::once(folder.join(format!("{name}.aside"))).chain(numbered);
            let to = to.find(is_free).expect("there are names without end");
            match fs::rename(path, &to) {
                Ok(()) => {
                    tracing::error!(folder = %to.display(),
                        "unreadable MQTT journals were set aside; sessions, retained messages or messages that waited may be missing: bring the folder back from a copy, or look into it and then move it away");
                    asides.push(to);
                }
                Err(error) => tracing::error!(folder = %path.display(), %error,
                    "unreadable MQTT journals stay where they are"),
            }
        }
    }
}

/// The shard whose folder in that of a generation has that name.
fn shard_of(name: &str) -> Option<usize> {
    let shard = name.parse::<usize>().ok().filter(|shard| *shard < SHARDS_MAX)?;
    (shard_name(shard) == name).then_some(shard)
}

/// Folders that were set aside.
fn asides(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_aside = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.split_once(".aside").is_some_and(|(head, _)| number(head).is_some())
    };
    entries.map(|entry| entry.path()).filter(is_aside).collect()
}

/// The content of the folder of a generation, its mark aside.
struct Contents {
    /// The shards whose folders are in it, in order.
    shards: Vec<usize>,
    /// Names of what is none of it.
    foreign: Vec<OsString>,
}

impl Contents {
    fn read(path: &Path) -> io::Result<Self> {
        let mut all = Self { shards: Vec::new(), foreign: Vec::new() };
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            match name.to_str().and_then(shard_of) {
                Some(shard) => all.shards.push(shard),
                None if name == MARK_FILE || name == CLOCK_FILE || name == CLOCK_PART_FILE => {}
                None => all.foreign.push(name),
            }
        }
        all.shards.sort_unstable();
        Ok(all)
    }

    /// Whether any of the shards' folders has a file.
    fn holds_records(&self, path: &Path) -> bool {
        self.shards.iter().any(|shard| {
            let entries = fs::read_dir(path.join(shard_name(*shard)));
            entries.is_ok_and(|mut entries| entries.next().is_some())
        })
    }
}

/// Names what is in the folder of a generation and is none of it.
fn report_foreign(path: &Path, foreign: &[OsString]) {
    for name in foreign {
        tracing::error!(path = %path.join(name).display().to_string().escape_debug(),
            "this is no part of the journal of the MQTT sessions in whose folder it is: its parts are `{MARK_FILE}`, `{CLOCK_FILE}` and the folders 000 to {:03}; the journal is read without it, and its folder is set aside and not removed", SHARDS_MAX - 1);
    }
}

/// A generation's description of itself, in a file of its folder.
#[derive(Debug, Default)]
struct Mark {
    /// By shard, which position its journal had reached when it was begun.
    ends: Vec<Position>,
    /// The folders that it says again.
    made_from: Vec<String>,
}

impl Mark {
    fn write(&self, path: &Path) -> io::Result<()> {
        let ends = self.ends.iter().map(|end| format!("shard ends at {}\n", end.0));
        let made_from = self.made_from.iter().map(|name| format!("made from {name}\n"));
        let text = std::iter::once(format!("{MARK}\n")).chain(ends).chain(made_from);
        let mut file = fs::File::create(path.join(MARK_FILE))?;
        io::Write::write_all(&mut file, text.collect::<String>().as_bytes())?;
        file.sync_all()
    }

    /// That of a generation; nothing if an earlier version of this program wrote it.
    fn read(path: &Path) -> Result<Option<Self>, MarkError> {
        let path = path.join(MARK_FILE);
        let is_mark = |metadata: fs::Metadata| {
            // A pipe in its place would be waited for.
            metadata.is_file() && metadata.len() <= MARK_BYTES_MAX
        };
        let text = match path.symlink_metadata().map(is_mark) {
            Ok(true) => {
                fs::read(&path).map_err(|source| MarkError::Io { path: path.clone(), source })?
            }
            Ok(false) => return Err(MarkError::Unknown { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MarkError::Io { path, source }),
        };
        let mark = Self::parse(&String::from_utf8_lossy(&text));
        mark.map(Some).ok_or(MarkError::Unknown { path })
    }

    fn parse(text: &str) -> Option<Self> {
        let lines = text.strip_suffix('\n')?.strip_prefix(MARK)?;
        let mut mark = Self::default();
        for line in lines.lines().skip(1) {
            match (line.strip_prefix("shard ends at "), line.strip_prefix("made from ")) {
                (Some(end), _) => mark.ends.push(Position(end.parse().ok()?)),
                (_, Some(name)) => mark.made_from.push(name.to_owned()),
                _ => return None,
            }
        }
        let is_known = (1..=SHARDS_MAX).contains(&mark.ends.len());
        (lines.starts_with('\n') && is_known).then_some(mark)
    }

    fn is_made_from(&self, path: &Path) -> bool {
        self.made_from.iter().any(|name| path.file_name().is_some_and(|of| of == name.as_str()))
    }
}

/// Why it is not known what a generation is to have.
#[derive(Debug, thiserror::Error)]
enum MarkError {
    #[error("{path} cannot be read")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is damaged, or a later version of this program has written it")]
    Unknown { path: PathBuf },
}

/// The result of a thread of this start.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

fn number(name: &str) -> Option<u64> {
    // Below the greatest, so that there is a next.
    (name.len() >= 8 && name.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| name.parse().ok().filter(|number| *number < u64::MAX))?
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
        tracing::warn!(error = %tidegate_message::error_chain(&error), "an old journal of the MQTT sessions could not be removed");
    }
}

/// A shard's journal in files.
struct ShardJournal {
    log: RecordLog,
    /// Whether its generation counts: before, nothing is promised.
    is_named: Arc<AtomicBool>,
}

impl std::fmt::Debug for ShardJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardJournal").field("end", &self.log.end()).finish_non_exhaustive()
    }
}

impl Journal for ShardJournal {
    fn ensure(&mut self, bytes: usize) -> Result<(), JournalError> {
        if !self.is_named.load(Ordering::Acquire) {
            return Err(JournalError::Failed(Arc::new(JournalStartError::Unnamed)));
        }
        self.log.ensure(clock::now(), bytes).map_err(refused)
    }

    fn room(&mut self) -> u64 {
        self.log.room()
    }

    fn ensure_last(&mut self, bytes: usize) -> Result<(), JournalError> {
        if !self.is_named.load(Ordering::Acquire) {
            return Err(JournalError::Failed(Arc::new(JournalStartError::Unnamed)));
        }
        self.log.ensure_last(bytes).map_err(refused)
    }

    fn free(&mut self) -> u64 {
        self.log.free()
    }

    fn use_reserve(&mut self, may: bool) {
        self.log.use_reserve(may);
    }

    fn want_reserve(&mut self, bytes: u64) {
        self.log.want_reserve(bytes);
    }

    fn give_way(&mut self) {
        self.log.give_way();
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

    fn bytes_max(&self) -> u64 {
        self.log.bytes_max()
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

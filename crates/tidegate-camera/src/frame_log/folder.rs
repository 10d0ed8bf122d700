//! Logs in the folders of a node: their names, what is found in them, and the threads that sync them.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use sha2::{Digest, Sha256};
use tidegate_log::{
    CommitConfig, Commits, Files, FilesConfig, Finding, Health, LogError, LogWriter, NodeKeys,
    OpenError, Opened, Report, StorageError, Store,
};
use tidegate_message::{CameraName, Code, Instant};
use tidegate_process::clock;
use tidegate_sys::{
    clock::monotonic_nanos,
    folder::{Folder, FolderError},
};

use super::{FrameLogSettings, Log};

/// Longest wait for a part of this process to let go of a folder.
const RELEASE_MAX: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest wait for logs to be synced when the program ends.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// Parts the name of a log from the number of one that it has followed. No name of a camera has it.
const EARLIER: char = '~';

/// Names a log of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogName {
    /// The frames that a camera captured.
    Camera(CameraName),
    /// The frames that serve one demand for a camera.
    Stream(CameraName),
}

impl LogName {
    /// Names of its folder below the folder of the node's data.
    fn folders(&self) -> [String; 3] {
        let (kind, name) = match self {
            Self::Camera(camera) => ("camera", camera.to_string()),
            Self::Stream(camera) => ("stream", camera.to_string()),
        };
        ["log".to_owned(), kind.to_owned(), name]
    }
}

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, kind, name] = self.folders();
        write!(f, "{kind}/{name}")
    }
}

/// The log id in the segments of folder `kind`/`name`, whose number as an earlier one does not count.
pub fn log_id(kind: &str, name: &str) -> u64 {
    let name = name.split(EARLIER).next().unwrap_or(name);
    let hash = Sha256::digest(format!("{kind}/{name}"));
    u64::from_le_bytes(*hash.first_chunk().expect("a hash is longer"))
}

/// A log that is open in its folder.
pub(super) struct OpenLog {
    pub(super) writer: LogWriter<Store>,
    pub(super) health: Health,
    pub(super) log: Log,
    pub(super) earlier: Vec<Log>,
}

/// Opens the log in its folder. With `now`, nothing in it is later than that.
pub(super) fn open(
    config: &FrameLogSettings,
    name: &LogName,
    data_dir: &Path,
    keys: Option<&NodeKeys>,
    now: Option<Instant>,
) -> Result<OpenLog, OpenFailed> {
    let (mut folder, mut opened) = open_folder(name, &name.folders(), data_dir, keys)?;
    if let (Some(last), Some(now)) = (opened.report.last_at, now)
        && last >= now
    {
        drop(opened);
        put_beside(name, &folder, config.size.bytes_max)?;
        (folder, opened) = open_folder(name, &name.folders(), data_dir, keys)?;
    }
    let earlier = match now {
        Some(_) => open_earlier(config, name, data_dir, keys),
        None => Vec::new(),
    };
    let Opened { files, flusher, commits, .. } = opened;
    let store = Store::files(files);
    let health = store.health();
    let (mut writer, log) = Log::open(config.size.clone(), store).map_err(OpenFailed::Sizes)?;
    let clock = || Instant::from_nanos(monotonic_nanos());
    let thread = thread::Builder::new()
        .name("tidegate-flush".into())
        .spawn(move || flusher.run(clock))
        .map_err(|source| OpenFailed::Thread { source })?;
    flushers().push(Flushing { folder, commits, thread });
    if let Some(age) = config.age {
        let expired = writer.expire(clock::now() - age);
        expired.map_err(|source| OpenFailed::Expire { source })?;
    }
    Ok(OpenLog { writer, health, log, earlier })
}

fn open_folder(
    name: &LogName,
    folders: &[String; 3],
    data_dir: &Path,
    keys: Option<&NodeKeys>,
) -> Result<(PathBuf, Opened), OpenFailed> {
    let names = folders.each_ref().map(String::as_str);
    let path: PathBuf = data_dir.join(names.iter().collect::<PathBuf>());
    let folder = lock(data_dir, &names, &path)?;
    let files = FilesConfig {
        log_id: log_id(names[1], names[2]),
        opened: clock::now(),
        commit: CommitConfig::default(),
        keys: keys.cloned(),
    };
    let opened = Files::open(folder, files)?;
    tell(name, &path, &opened.report);
    Ok((path, opened))
}

/// Says what was found in the folder of a log.
fn tell(name: &LogName, path: &Path, report: &Report) {
    let Report { segments, entries, scanned, rewrapped, findings, .. } = report;
    let folder = path.display();
    if *segments > 0 {
        tracing::info!(log = %name, segments, frames = entries, scanned, rewrapped, "frames of an earlier run are there");
    }
    for finding in findings {
        let (text, is_harmless) = told(finding);
        if is_harmless {
            tracing::info!(log = %name, %folder, "{text}");
        } else {
            let code = Code::STORAGE_FAILED;
            tracing::error!(log = %name, %folder, %code, "{text}");
        }
    }
}

/// One finding in one sentence, and whether it costs nothing.
fn told(finding: &Finding) -> (String, bool) {
    match finding {
        Finding::Foreign { name } if name.contains(".damaged") => {
            (format!("{name} was set aside before; look into it or remove it"), true)
        }
        Finding::Foreign { name } => {
            (format!("{name} is not a file of this log and was left alone"), true)
        }
        Finding::Untrusted { name } => (
            format!(
                "{name} is a link, a folder, or open to others' writing, and was left alone; its frames are missing"
            ),
            false,
        ),
        Finding::Unreadable { name, error } => {
            (format!("{name} could not be read: {error}; its frames are missing"), false)
        }
        Finding::SetAside { name, to, why } => match to {
            Ok(to) => (format!("{name} was renamed to {to}: {}", why.as_str()), false),
            Err(error) => {
                (format!("{name} could not be renamed ({error}): {}", why.as_str()), false)
            }
        },
        Finding::Repaired { name } => {
            (format!("header or end of {name} was damaged; its frames were found"), true)
        }
        Finding::Tampered { name, entries } => {
            (format!("{name} was tampered with: {entries} frames are not served"), false)
        }
        Finding::OtherKey { name, key } => (
            format!(
                "{name} is sealed with the key {key}, which is not here; its frames are missing"
            ),
            false,
        ),
        Finding::Clear { name } => (
            format!(
                "{name} is in clear text in a sealed log and was left alone; its frames are missing"
            ),
            false,
        ),
        Finding::NotRewrapped { name, error } => (
            format!(
                "{name} could not be taken over by the current key: {error}; keep the older one"
            ),
            false,
        ),
        Finding::Lost { from, to } => {
            (format!("{} frames are missing, from position {from} on", to.0 - from.0), true)
        }
    }
}

/// Logs that this one has followed, newest first. One that cannot be opened is reported and left out.
fn open_earlier(
    config: &FrameLogSettings,
    name: &LogName,
    data_dir: &Path,
    keys: Option<&NodeKeys>,
) -> Vec<Log> {
    let [log, kind, own] = name.folders();
    let parent = data_dir.join(&log).join(&kind);
    let mut numbers = earlier_numbers(&parent, &own);
    numbers.reverse();
    let mut earlier = Vec::new();
    for number in numbers {
        let folders = [log.clone(), kind.clone(), format!("{own}{EARLIER}{number}")];
        let opened = open_folder(name, &folders, data_dir, keys).and_then(|(_, opened)| {
            let store = Store::files(opened.files);
            Log::open(config.size.clone(), store).map_err(OpenFailed::Sizes)
        });
        match opened {
            // Its writer goes at once: nothing is added to it.
            Ok((_, log)) => earlier.push(log),
            Err(failed) => {
                let (code, error) = (failed.code(), tidegate_message::error_chain(&failed));
                tracing::error!(log = %name, number, %code, error, "frames from before the clock was set back cannot be read");
            }
        }
    }
    earlier
}

/// The numbers of the logs that `own` has followed, in order.
fn earlier_numbers(parent: &Path, own: &str) -> Vec<u64> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix(own)?.strip_prefix(EARLIER)?.parse().ok()
    };
    let mut numbers: Vec<u64> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Puts a log whose times lie ahead aside, next to the one that is to begin. All that were put aside take at most `bytes_max`: the
/// oldest go.
fn put_beside(name: &LogName, folder: &Path, bytes_max: u64) -> Result<(), OpenFailed> {
    let failed = |source| OpenFailed::PutBeside { path: folder.to_owned(), source };
    let (Some(parent), [_, _, own]) = (folder.parent(), name.folders()) else { return Ok(()) };
    let numbers = earlier_numbers(parent, &own);
    let next = numbers.last().map_or(1, |last| last + 1);
    let beside = |number: u64| parent.join(format!("{own}{EARLIER}{number}"));
    fs::rename(folder, beside(next)).map_err(failed)?;
    tracing::warn!(
        log = %name, to = %beside(next).display(),
        "the clock was set back since frames were stored: they can be fetched, and a new log begins"
    );
    let mut held: Vec<(u64, u64)> = numbers
        .into_iter()
        .chain([next])
        .map(|number| (number, bytes_in(&beside(number))))
        .collect();
    while held.len() > 1 && held.iter().map(|(_, bytes)| bytes).sum::<u64>() > bytes_max {
        let (oldest, _) = held.remove(0);
        fs::remove_dir_all(beside(oldest)).map_err(failed)?;
        tracing::warn!(log = %name, folder = %beside(oldest).display(), "an older log of a camera was removed to make room");
    }
    Ok(())
}

/// The folders of a log: its own, and those of logs that it has followed.
pub(super) fn folders_of(data_dir: &Path, name: &LogName) -> Vec<PathBuf> {
    let [log, kind, own] = name.folders();
    let parent = data_dir.join(log).join(kind);
    let earlier = earlier_numbers(&parent, &own);
    let earlier = earlier.into_iter().map(|number| parent.join(format!("{own}{EARLIER}{number}")));
    earlier.chain([parent.join(&own)]).collect()
}

/// Bytes of the files in a folder.
pub(super) fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// A thread that syncs a log until its writer has gone.
struct Flushing {
    folder: PathBuf,
    commits: Commits,
    thread: JoinHandle<()>,
}

/// Those of this process.
fn flushers() -> MutexGuard<'static, Vec<Flushing>> {
    static FLUSHERS: Mutex<Vec<Flushing>> = Mutex::new(Vec::new());
    FLUSHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens and locks a folder. One that this process is about to let go of is waited for.
fn lock(data_dir: &Path, names: &[&str], path: &Path) -> Result<Folder, FolderError> {
    let mut left = RELEASE_MAX;
    loop {
        let opened = Folder::open_below(data_dir, names);
        let mut flushers = flushers();
        flushers.retain(|flushing| !flushing.thread.is_finished());
        let is_in_use = flushers
            .iter()
            .any(|flushing| flushing.folder == path && !flushing.commits.is_stopped());
        drop(flushers);
        match opened {
            Err(FolderError::Locked { .. }) if !is_in_use && !left.is_zero() => {
                thread::sleep(LOOK_EVERY);
                left = left.saturating_sub(LOOK_EVERY);
            }
            opened => return opened,
        }
    }
}

/// Has all logs that are open synced and closed, for the end of the program. Waits a few seconds at most: appended frames are in
/// the page cache already.
pub fn finish() {
    let mut flushers = std::mem::take(&mut *flushers());
    for flushing in &flushers {
        flushing.commits.stop();
    }
    let mut left = FINISH_MAX;
    while !flushers.is_empty() && !left.is_zero() {
        flushers.retain(|flushing| !flushing.thread.is_finished());
        if !flushers.is_empty() {
            thread::sleep(LOOK_EVERY);
            left = left.saturating_sub(LOOK_EVERY);
        }
    }
    for Flushing { folder, .. } in flushers {
        tracing::warn!(folder = %folder.display(), "the log of a camera was not synced yet when the program ended");
    }
}

/// Why a log could not be opened in its folder.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenFailed {
    #[error("its folder cannot be used")]
    Folder(#[from] FolderError),
    #[error("its files cannot be used")]
    Files(#[from] OpenError),
    #[error("the log's sizes do not fit")]
    Sizes(#[source] LogError),
    #[error("{path} could not be put aside for a new log")]
    PutBeside {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("its thread could not be started")]
    Thread {
        #[source]
        source: io::Error,
    },
    #[error("old frames could not be dropped")]
    Expire {
        #[source]
        source: StorageError,
    },
}

impl OpenFailed {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Sizes(_) => Code::CONFIG_INVALID,
            Self::Expire { source } => source.code(),
            _ => Code::STORAGE_FAILED,
        }
    }
}

//! The cost of durability and its benefit. Each module measures one group and adds its rows to one report.
//!
//! ```text
//!  append, commit, open, sealing ──▶ Running: a log on the disk under test, its flusher on a thread
//!  power ──▶ tidegate-log's simulated disk, by seeds
//!  kill, recovery, soak ──▶ node: processes of the program; crowd: MQTT sessions that outlive their connections
//!  doors ──▶ a node process that is attacked while healthy clients continue
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use tidegate_log::{
    CommitConfig, Commits, Durability, Files, FilesConfig, Log, LogConfig, LogWriter, NodeKeys,
    Opened,
};
use tidegate_message::{Instant, Position};
use tidegate_sys::{
    clock::{monotonic_nanos, process_cpu_nanos},
    folder::Folder,
};

pub mod append;
pub mod commit;
pub mod crowd;
pub mod doors;
pub mod kill;
pub mod node;
pub mod open;
pub mod power;
pub mod recovery;
pub mod sealing;
pub mod soak;

/// How long and how often a group measures, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shorter runs.
    pub quick: bool,
    /// Runs that each figure is the median of.
    pub runs: usize,
    /// A folder on the disk under test.
    pub folder: PathBuf,
}

/// A log in files and the thread that flushes it. The files go with it.
pub struct Running {
    writer: Option<LogWriter<Files>>,
    log: Option<Log<Files>>,
    commits: Commits,
    flushing: Option<JoinHandle<()>>,
    path: PathBuf,
    time: i64,
    /// Whether the files stay.
    keeps: bool,
}

impl Running {
    /// Opens the log in `path`, made if it is not there.
    ///
    /// # Errors
    /// It does not open, or has damage that no one did.
    pub fn open(
        path: &Path,
        config: LogConfig,
        commit: CommitConfig,
        keys: Option<NodeKeys>,
    ) -> anyhow::Result<Self> {
        let disk = Folder::open(path).with_context(|| format!("opening {}", path.display()))?;
        let files = FilesConfig { log_id: 1, opened: Instant::EPOCH, commit, keys };
        let Opened { files, flusher, commits, report } = Files::open(disk, files)?;
        ensure!(report.findings.is_empty(), "the log is damaged: {:?}", report.findings);
        let clock = || Instant::from_nanos(monotonic_nanos());
        let flushing = std::thread::spawn(move || flusher.run(clock));
        let (writer, log) = Log::open(config, files)?;
        let time = log.last_at().map_or(0, Instant::as_nanos);
        Ok(Self {
            writer: Some(writer),
            log: Some(log),
            commits,
            flushing: Some(flushing),
            path: path.to_owned(),
            time,
            keeps: false,
        })
    }

    /// Leaves the files where they are.
    #[must_use]
    pub fn keeping(mut self) -> Self {
        self.keeps = true;
        self
    }

    /// Its reading end.
    pub fn log(&self) -> &Log<Files> {
        self.log.as_ref().expect("until it is dropped")
    }

    /// Reports when an entry is durable.
    pub fn commits(&self) -> &Commits {
        &self.commits
    }

    /// Appends `body`, at the next nanosecond.
    ///
    /// # Errors
    /// The log's.
    pub fn append(&mut self, durability: Durability, body: &[u8]) -> anyhow::Result<Position> {
        self.time += 1;
        let at = Instant::from_nanos(self.time);
        let writer = self.writer.as_mut().expect("until it is dropped");
        Ok(writer.append_durably(durability, at, b"", body)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The flusher ends with the last who holds the files.
        (self.writer, self.log) = (None, None);
        if let Some(flushing) = self.flushing.take()
            && flushing.join().is_err()
        {
            eprintln!("bench-durability: the flusher panicked");
        }
        if !self.keeps
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            eprintln!("bench-durability: {} stays: {error}", self.path.display());
        }
    }
}

/// Processor time of this process so far, all threads.
///
/// # Errors
/// The system does not say.
pub fn process_cpu() -> anyhow::Result<Duration> {
    let nanos = process_cpu_nanos(std::process::id()).map_err(|error| anyhow!("{error}"))?;
    Ok(Duration::from_nanos(nanos.try_into().context("processor time is never negative")?))
}

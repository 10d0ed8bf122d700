//! The audit log on disk: a file of lines that only its owner may read, moved aside when it is full.
//!
//! ```text
//!  who acts or is refused ──try_send──▶ entries (1024) ──▶ thread ──▶ audit.log ──full──▶ audit.log.1 ──▶ … ──▶ gone
//! ```
//!
//! Always true: no login waits for the disk; entries without room are counted, and a line says how many once a minute. Refusals
//! have half of the room, so that acts find some while refusals pour in.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
};

pub use tidegate_auth::audit::{Entry, Outcome};
use tidegate_auth::audit::{QUIET, Recent};
use tidegate_message::Instant;
use tidegate_sys::files;

/// Entries that may wait for the disk; those beyond are counted and left out.
const ENTRIES_MAX: usize = 1024;

/// Where the audit log is kept, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// The file that is written to; older ones are next to it, with a number behind their names.
    pub path: PathBuf,
    /// Size at which it is moved aside, in bytes.
    pub bytes_max: u64,
    /// Files that are kept in all, 1 at the least.
    pub files_max: u32,
}

/// Takes entries; cheap to clone. Without a file it forgets them.
#[derive(Clone, Debug, Default)]
pub struct Audit(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    /// None once it is dropped, so that the thread ends.
    entries: Option<SyncSender<Entry>>,
    left_out: Arc<LeftOut>,
    thread: Option<JoinHandle<()>>,
}

/// Counts that do not wait for the disk.
#[derive(Debug, Default)]
struct LeftOut {
    /// Entries that found no room.
    count: AtomicU64,
    /// Refusals that have some.
    refusals: AtomicU64,
}

impl Audit {
    /// An audit log that writes to a file, which is made with the first entry.
    ///
    /// # Errors
    /// The system's, if it gives no thread.
    pub fn start(config: AuditSettings) -> io::Result<Self> {
        let (entries, waiting) = sync_channel(ENTRIES_MAX);
        let left_out = Arc::new(LeftOut::default());
        let counter = left_out.clone();
        let thread = thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(&waiting, &counter, Rotating::new(config)))?;
        let thread = Some(thread);
        Ok(Self(Some(Arc::new(Shared { entries: Some(entries), left_out, thread }))))
    }

    /// Takes an entry; never waits.
    pub fn tell(&self, entry: impl FnOnce() -> Entry) {
        let Some(shared) = &self.0 else { return };
        let Some(entries) = &shared.entries else { return };
        let entry = entry();
        let is_refusal = entry.outcome == Outcome::Refused;
        let refusals = &shared.left_out.refusals;
        // With other threads it may be one too many, which does no harm.
        let has_room = !is_refusal || refusals.load(Ordering::Relaxed) < ENTRIES_MAX as u64 / 2;
        if has_room && is_refusal {
            refusals.fetch_add(1, Ordering::Relaxed);
        }
        if !has_room || entries.try_send(entry).is_err() {
            shared.left_out.count.fetch_add(1, Ordering::Relaxed);
            if has_room && is_refusal {
                refusals.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.entries = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the audit log panicked");
        }
    }
}

fn write(waiting: &Receiver<Entry>, left_out: &LeftOut, mut file: Rotating) {
    let mut recent = Recent::default();
    let mut said_at = None;
    loop {
        let received = waiting.recv_timeout(QUIET);
        let is_last = matches!(received, Err(RecvTimeoutError::Disconnected));
        let now = crate::auth::now().wall;
        if let Ok(entry) = received {
            if entry.outcome == Outcome::Refused {
                left_out.refusals.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(line) = recent.line(&entry) {
                file.put(&line);
            }
        }
        if is_last || said_at.is_none_or(|at| now.since(at) >= QUIET || now < at) {
            let lost = left_out.count.swap(0, Ordering::Relaxed);
            if lost > 0 {
                file.put(&overflow(now, lost).line(0));
                said_at = Some(now);
            }
        }
        if let Some(summary) = recent.summary(now, is_last) {
            file.put(&summary.line(0));
        }
        if is_last {
            return;
        }
    }
}

fn overflow(at: Instant, lost: u64) -> Entry {
    Entry {
        at,
        outcome: Outcome::Failed,
        who: "internal".to_owned(),
        client: String::new(),
        from: None,
        front: "process",
        what: "audit".to_owned(),
        target: String::new(),
        rule: format!(
            "{lost} entries of late, refusals most likely, came faster than they could be looked at, and are left out"
        ),
    }
}

/// A file that is moved aside when it is full.
#[derive(Debug)]
struct Rotating {
    config: AuditSettings,
    open: Option<(File, u64)>,
    /// Whether the last write failed, so that it is said once.
    fails: bool,
}

impl Rotating {
    fn new(config: AuditSettings) -> Self {
        Self { config, open: None, fails: false }
    }

    /// Writes a line; says it in the program's log where that fails.
    fn put(&mut self, line: &str) {
        match self.try_put(line) {
            Ok(()) => self.fails = false,
            Err(error) => {
                self.open = None;
                if !self.fails {
                    tracing::error!(%error, path = %self.config.path.display(), "the audit log cannot be written");
                }
                self.fails = true;
            }
        }
    }

    fn try_put(&mut self, line: &str) -> io::Result<()> {
        let bytes = line.len() as u64;
        if self.open.as_ref().is_some_and(|(_, size)| size + bytes > self.config.bytes_max) {
            self.open = None;
        }
        if self.open.is_none() {
            let (file, size) = open(&self.config.path)?;
            let is_full = size > 0 && size + bytes > self.config.bytes_max;
            self.open = if is_full {
                drop(file);
                move_aside(&self.config)?;
                Some(open(&self.config.path)?)
            } else {
                Some((file, size))
            };
        }
        let Some((file, size)) = &mut self.open else { return Ok(()) };
        file.write_all(line.as_bytes())?;
        *size += bytes;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        files::folder(folder, files::PRIVATE_FOLDER)?;
    }
    let file = files::append(path, files::PRIVATE)?;
    // One that was there may be open to others.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// `audit.log.1` is the newest of those that are full.
fn move_aside(config: &AuditSettings) -> io::Result<()> {
    let numbered = |number: u32| {
        let mut name = config.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{number}"));
        config.path.with_file_name(name)
    };
    let kept = config.files_max.saturating_sub(1);
    if kept == 0 {
        return fs::remove_file(&config.path);
    }
    for number in (1..kept).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(&config.path, numbered(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: usize) -> Entry {
        Entry {
            what: "unregister".into(),
            target: number.to_string(),
            ..overflow(Instant::EPOCH, 0)
        }
    }

    fn files(folder: &Path) -> Vec<(String, usize)> {
        let mut files: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
                let lines = fs::read_to_string(&path).unwrap().lines().count();
                (path.file_name().unwrap().to_string_lossy().into_owned(), lines)
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn entries_are_in_the_file_once_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/audit.log");
        let config = AuditSettings { path: path.clone(), bytes_max: 1 << 20, files_max: 2 };
        let audit = Audit::start(config).unwrap();
        assert!(!path.exists(), "nothing was said yet");
        for number in 0..9 {
            audit.clone().tell(|| entry(number));
        }
        drop(audit);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 9);
        assert!(text.lines().all(|line| line.contains("\"what\":\"unregister\"")), "{text}");
    }

    /// From the fronts to the disk: neither lines nor notes of those without room fill it.
    #[test]
    fn a_flood_of_refusals_washes_nothing_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let config = AuditSettings { path: path.clone(), bytes_max: 64 << 10, files_max: 2 };
        let audit = Audit::start(config).unwrap();
        audit.tell(|| entry(0));
        for number in 0..53_344u32 {
            audit.tell(|| Entry {
                at: crate::auth::now().wall,
                outcome: Outcome::Refused,
                who: format!("token {number}"),
                from: Some([192, 0, 2, 7].into()),
                what: "login".to_owned(),
                ..entry(0)
            });
            if number % 5_000 == 0 {
                audit.tell(|| entry(1));
            }
        }
        drop(audit);
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().next().unwrap().contains("\"what\":\"unregister\""),
            "the first entry is there"
        );
        let count = |word: &str| text.lines().filter(|line| line.contains(word)).count();
        assert!(count("\"what\":\"login\"") <= 61, "{}", count("login"));
        assert!(
            (1..=4).contains(&(count("\"what\":\"refusals\"") + count("\"what\":\"audit\""))),
            "{text}"
        );
        assert!(!path.with_file_name("audit.log.1").exists(), "nothing was moved aside");
    }

    #[test]
    fn a_full_file_is_moved_aside_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let line = entry(0).line(0);
        for (files_max, expected) in
            [(3, vec![("log", 1), ("log.1", 2), ("log.2", 2)]), (1, vec![("log", 1)])]
        {
            let folder = folder.path().join(files_max.to_string());
            fs::create_dir(&folder).unwrap();
            let bytes_max = 2 * line.len() as u64;
            let config = AuditSettings { path: folder.join("log"), bytes_max, files_max };
            let mut file = Rotating::new(config.clone());
            for _ in 0..6 {
                file.put(&line);
            }
            // A writer after a restart continues with the existing files.
            Rotating::new(config).put(&line);
            let expected: Vec<_> =
                expected.into_iter().map(|(name, lines)| (name.to_owned(), lines)).collect();
            assert_eq!(files(&folder), expected, "{files_max}");
        }
    }
}

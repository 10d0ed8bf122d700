//! The state of flows on the disk: one file for each, written whole next to the last one and put in its place.
//!
//! ```text
//!  magic 8 │ major 2 │ minor 2 │ snapshots: count 4, { length 8, a snapshot of tidegate-flow }       (all little-endian)
//! ```
//!
//! Each part of a flow is a snapshot with a checksum of its own; how many there are hangs on the shards of the node that wrote them.
//!
//! Always true: a file is whole or not there; a file that cannot be read is put aside under a name of its own, and
//! reported.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidegate_flow::{SnapshotError, State};
use tidegate_sys::{files, regular};

use super::engine::{Flows, Running};

const MAGIC: [u8; 8] = *b"TGFLOWS\0";
const MAJOR: u16 = 1;
const MINOR: u16 = 0;
/// Most snapshots in a file.
const SNAPSHOTS_MAX: u32 = 256;
/// Places of a table that are copied under one lock: a fraction of a millisecond, in which a shard may wait.
const BLOCKS_AT_A_TIME: u32 = 2048;
/// How often it is looked at whose turn it is.
const LOOK: Duration = Duration::from_millis(500);

/// Writes the state of flows now and then, and at the end; it ends when dropped.
#[derive(Debug)]
pub struct Keeper {
    flows: Arc<Flows>,
    folder: PathBuf,
    ends: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Keeps the state of `flows` in `folder`, which is made.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn start(flows: Arc<Flows>, folder: PathBuf) -> Result<Self, KeepError> {
        files::folder(&folder, files::PRIVATE_FOLDER)
            .map_err(|source| KeepError::Folder { path: folder.clone(), source })?;
        let ends = Arc::new((Mutex::new(false), Condvar::new()));
        let (seen, of, place) = (ends.clone(), flows.clone(), folder.clone());
        let thread = thread::Builder::new()
            .name("flow-state".to_owned())
            .spawn(move || run(&of, &place, &seen))
            .map_err(KeepError::Thread)?;
        Ok(Self { flows, folder, ends, thread: Some(thread) })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes the state of all flows.
    ///
    /// # Errors
    /// [`KeepError`] of the last that could not be written.
    pub fn write_all(&self) -> Result<(), KeepError> {
        let mut result = Ok(());
        for running in &self.flows.current().flows {
            if running.state != State::None
                && let Err(error) = write(&self.folder, &running.name, &snapshots(running))
            {
                result = Err(error);
            }
        }
        result
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.ends.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ends.1.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that keeps the state of flows panicked");
        }
        if let Err(error) = self.write_all() {
            tracing::warn!(error = %tidegate_message::error_chain(&error), "the last state of flows is not on the disk");
        }
    }
}

fn run(flows: &Flows, folder: &Path, ends: &(Mutex<bool>, Condvar)) {
    // When each was written last, and how many messages it had seen by then.
    let mut written: HashMap<Arc<str>, (Instant, u64)> = HashMap::new();
    loop {
        let ended = ends.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = ends
            .1
            .wait_timeout_while(ended, LOOK, |ended| !*ended)
            .unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return;
        }
        drop(ended);
        let set = flows.current();
        written.retain(|name, _| set.find(name).is_some());
        for running in set.flows.iter().filter(|running| running.state != State::None) {
            let now = Instant::now();
            let (at, messages) = *written.entry(running.name.clone()).or_insert((now, 0));
            if now.duration_since(at) < running.state_interval {
                continue;
            }
            let seen = running.stats().messages;
            written.insert(running.name.clone(), (now, seen));
            if seen == messages {
                continue;
            }
            if let Err(error) = write(folder, &running.name, &snapshots(running)) {
                tracing::warn!(flow = %running.name, error = %tidegate_message::error_chain(&error),
                    "the state of a flow is not on the disk; the next try is after state_interval");
            }
        }
    }
}

/// A snapshot of each part, a few keys under each lock. Keys are independent of one another, so that each may be of its own moment.
fn snapshots(running: &Running) -> Vec<Vec<u8>> {
    let mut all = Vec::with_capacity(running.parts());
    for index in 0..running.parts() {
        let Some(mut snapshot) = running.part(index).as_ref().map(|flow| flow.begin_snapshot())
        else {
            continue;
        };
        loop {
            let part = running.part(index);
            let more = part
                .as_ref()
                .is_some_and(|flow| flow.extend_snapshot(&mut snapshot, BLOCKS_AT_A_TIME));
            drop(part);
            if !more {
                break;
            }
        }
        all.push(snapshot.finish());
    }
    all
}

fn path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.state"))
}

/// Writes the snapshots of a flow in place of the last ones.
pub(super) fn write(folder: &Path, name: &str, snapshots: &[Vec<u8>]) -> Result<(), KeepError> {
    let path = path(folder, name);
    let failed = |source| KeepError::Write { path: path.clone(), source };
    // A flow that was exchanged while it was being looked at: the one in its place is written next.
    if snapshots.is_empty() {
        return Ok(());
    }
    let mut head = Vec::new();
    head.extend(MAGIC);
    head.extend(MAJOR.to_le_bytes());
    head.extend(MINOR.to_le_bytes());
    head.extend((snapshots.len() as u32).to_le_bytes());
    let put = files::put_with(&path, files::PRIVATE, |file| {
        file.write_all(&head)?;
        snapshots.iter().try_for_each(|snapshot| {
            file.write_all(&(snapshot.len() as u64).to_le_bytes())?;
            file.write_all(snapshot)
        })
    });
    put.map_err(failed)
}

/// The snapshots of a flow; none where there are none, or where they cannot be read, which is said.
pub(super) fn read(folder: &Path, name: &str) -> Option<Vec<Vec<u8>>> {
    let path = path(folder, name);
    let mut bytes = Vec::new();
    match regular::open(&path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            set_aside(folder, name, &error);
            return None;
        }
    }
    match parse(&bytes) {
        Some(snapshots) => Some(snapshots.into_iter().map(<[u8]>::to_vec).collect()),
        None => {
            set_aside(folder, name, &SnapshotError::Cut);
            None
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (major, rest) = rest.split_first_chunk::<2>()?;
    let (_minor, rest) = rest.split_first_chunk::<2>()?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count);
    if u16::from_le_bytes(*major) != MAJOR || count > SNAPSHOTS_MAX {
        return None;
    }
    let mut snapshots = Vec::new();
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (snapshot, after) = after.split_at_checked(length)?;
        snapshots.push(snapshot);
        rest = after;
    }
    rest.is_empty().then_some(snapshots)
}

/// Gives a file that cannot be used another name, so that it is neither read nor written over.
pub(super) fn set_aside(folder: &Path, name: &str, error: &dyn std::error::Error) {
    let from = path(folder, name);
    let mut number = 0;
    let to = loop {
        let to = from.with_extension(format!("state.damaged-{number}"));
        if !to.exists() || number == 99 {
            break to;
        }
        number += 1;
    };
    match fs::rename(&from, &to) {
        Ok(()) => tracing::warn!(flow = name, kept_as = %to.display(), %error,
            "the stored state of a flow cannot be used: the flow starts over"),
        Err(cause) => tracing::warn!(flow = name, path = %from.display(), %error, %cause,
            "the stored state of a flow can neither be used nor set aside: the flow starts over"),
    }
}

/// Why state is not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// There is no folder for it.
    #[error("the folder {} for the state of flows cannot be made", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system gives no thread.
    #[error("the thread that keeps the state of flows cannot be started")]
    Thread(#[source] io::Error),
    /// A file cannot be written.
    #[error("the state file {} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

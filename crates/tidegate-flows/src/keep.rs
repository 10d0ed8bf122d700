//! Writes the state of flows to their files while they run, and at the end.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidegate_flow::State;
use tidegate_sys::files;

use super::{
    engine::{Flows, Running},
    state_file::{KeepError, write},
};

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

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
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use tidegate_flow::SnapshotError;
use tidegate_sys::{files, regular};

const MAGIC: [u8; 8] = *b"TGFLOWS\0";
const MAJOR: u16 = 1;
const MINOR: u16 = 0;
/// Most snapshots in a file.
const SNAPSHOTS_MAX: u32 = 256;

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

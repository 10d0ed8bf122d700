//! The lock of a folder, which the folder, its files and their maps hold.
//!
//! Always true: the table has the inodes of those files of which a [`MapHold`] exists.

use std::{
    collections::HashSet,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A folder that this process has locked, until the last that holds it is dropped.
pub(crate) struct Lock {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
    pub(crate) readable_by_others: bool,
    /// Inodes of files that are mapped.
    mapped: Mutex<HashSet<u64>>,
}

impl Lock {
    /// Of a folder without mapped files, whose descriptor `fd` has the lock.
    pub(crate) fn new(fd: OwnedFd, path: PathBuf, readable_by_others: bool) -> Self {
        Self { fd, path, readable_by_others, mapped: Mutex::default() }
    }

    /// Inodes of files that are mapped; none is mapped or let go while this is held.
    pub(crate) fn mapped(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock that the map of a file is to hold; nothing if the file is mapped already.
    pub(crate) fn hold(self: &Arc<Self>, inode: u64) -> Option<MapHold> {
        let is_first = self.mapped().insert(inode);
        is_first.then(|| MapHold { lock: Arc::clone(self), inode })
    }
}

/// Held by a map: keeps the folder locked, and its file from being mapped again.
pub(crate) struct MapHold {
    lock: Arc<Lock>,
    inode: u64,
}

impl Drop for MapHold {
    fn drop(&mut self) {
        self.lock.mapped().remove(&self.inode);
    }
}

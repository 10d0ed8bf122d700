//! What other threads tell a shard.

use std::{
    io,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use mio::Waker;

/// Notes for one shard, and what wakes it. Notes are bounded by what causes them: connections, what was read from them in one turn of
/// another shard's loop, and the bundles that a part of the program may have under way.
#[derive(Debug)]
pub(super) struct Inbox<N> {
    notes: Mutex<Vec<N>>,
    is_woken: AtomicBool,
    waker: Waker,
}

impl<N> Inbox<N> {
    pub(super) fn new(waker: Waker) -> Self {
        Self { notes: Mutex::default(), is_woken: AtomicBool::new(false), waker }
    }

    /// Leaves notes; the shard is woken once until it reads them.
    pub(super) fn put(&self, notes: impl IntoIterator<Item = N>) {
        self.notes.lock().expect("no panic while notes are moved").extend(notes);
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            // A shard that cannot be woken has ended.
            if let Err(error) = self.waker.wake() {
                tracing::debug!(%error, "a shard cannot be woken");
            }
        }
    }

    /// Moves all notes into `notes`.
    pub(super) fn take(&self, notes: &mut Vec<N>) {
        self.is_woken.store(false, Ordering::Release);
        std::mem::swap(notes, &mut self.notes.lock().expect("no panic while notes are moved"));
    }
}

/// A waker of that poll.
pub(super) fn waker(poll: &mio::Poll, token: mio::Token) -> io::Result<Waker> {
    Waker::new(poll.registry(), token)
}

//! Commands from other threads to a shard.

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
///
/// A shard is woken only where it sleeps, once for all that comes meanwhile: one that is at work looks here before it sleeps.
#[derive(Debug)]
pub(super) struct Inbox<N> {
    notes: Mutex<Vec<N>>,
    /// The shard waits for the kernel, or is about to, and has not been woken since.
    is_asleep: AtomicBool,
    waker: Waker,
}

impl<N> Inbox<N> {
    /// Of a shard that has not looked yet.
    pub(super) fn new(waker: Waker) -> Self {
        Self { notes: Mutex::default(), is_asleep: AtomicBool::new(true), waker }
    }

    /// Leaves notes, and wakes the shard if it sleeps.
    pub(super) fn put(&self, notes: impl IntoIterator<Item = N>) {
        if self.leave(notes) {
            self.wake();
        }
    }

    /// Leaves notes; whether the shard sleeps, which the caller then wakes, or does its work for it.
    #[must_use]
    pub(super) fn leave(&self, notes: impl IntoIterator<Item = N>) -> bool {
        self.notes.lock().expect("no panic while notes are moved").extend(notes);
        // A sleep announced before these came is seen here, by the lock; one announced later sees them.
        self.is_asleep.swap(false, Ordering::AcqRel)
    }

    /// Has the shard's thread look.
    pub(super) fn wake(&self) {
        // A shard that cannot be woken has ended.
        if let Err(error) = self.waker.wake() {
            tracing::debug!(%error, "a shard cannot be woken");
        }
    }

    /// Says that the shard is about to sleep; false if there are notes, so that it must not.
    pub(super) fn may_sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::Release);
        self.notes.lock().expect("no panic while notes are moved").is_empty()
    }

    /// The shard is awake. Moves all notes into `notes`, which is empty.
    pub(super) fn take(&self, notes: &mut Vec<N>) {
        self.is_asleep.store(false, Ordering::Release);
        std::mem::swap(notes, &mut self.notes.lock().expect("no panic while notes are moved"));
    }
}

/// A waker of that poll.
pub(super) fn waker(poll: &mio::Poll, token: mio::Token) -> io::Result<Waker> {
    Waker::new(poll.registry(), token)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use mio::{Events, Poll, Token};

    use super::*;

    fn is_woken(poll: &mut Poll) -> bool {
        let mut events = Events::with_capacity(4);
        poll.poll(&mut events, Some(Duration::ZERO)).expect("a poll");
        !events.is_empty()
    }

    #[test]
    fn only_a_shard_that_sleeps_is_woken_and_once() {
        let mut poll = Poll::new().expect("a poll");
        let inbox = Inbox::new(waker(&poll, Token(0)).expect("a waker"));
        let mut notes = Vec::new();
        // One that has not looked yet may be asleep.
        inbox.put([1]);
        assert!(is_woken(&mut poll));
        inbox.put([2]);
        assert!(!is_woken(&mut poll), "it was woken before");
        assert!(!inbox.may_sleep(), "there are notes");
        inbox.take(&mut notes);
        assert_eq!(notes, [1, 2]);
        notes.clear();
        inbox.put([3]);
        assert!(!is_woken(&mut poll), "it is awake");
        inbox.take(&mut notes);
        notes.clear();
        assert!(inbox.may_sleep());
        inbox.put([4]);
        inbox.put([5]);
        assert!(is_woken(&mut poll) && !is_woken(&mut poll));
        inbox.take(&mut notes);
        assert_eq!(notes, [4, 5]);
    }

    #[test]
    fn no_note_waits_for_a_shard_that_sleeps() {
        const NOTES: u32 = 50_000;
        let mut poll = Poll::new().expect("a poll");
        let inbox = Arc::new(Inbox::new(waker(&poll, Token(0)).expect("a waker")));
        let sender = thread::spawn({
            let inbox = inbox.clone();
            move || (0..NOTES).for_each(|note| inbox.put([note]))
        });
        let (mut events, mut notes) = (Events::with_capacity(4), Vec::new());
        let mut next = 0;
        while next < NOTES {
            if inbox.may_sleep() {
                poll.poll(&mut events, Some(Duration::from_secs(30))).expect("a poll");
                assert!(!events.is_empty(), "note {next} came and woke nothing");
            }
            inbox.take(&mut notes);
            for note in notes.drain(..) {
                assert_eq!(note, next);
                next += 1;
            }
        }
        sender.join().expect("it sent them all");
    }
}

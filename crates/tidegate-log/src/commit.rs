//! When what was appended is durable.
//!
//! ```text
//!  producers: append ─ request ─┐                          ┌─ wait, callback ◀── durable up to …
//!                               ▼                          │
//!                          GroupCommit ── poll_flush ──▶ Flusher: sync ── handle_flushed
//! ```
//!
//! One flush answers all producers that asked before it began. [`GroupCommit`] decides when it begins: as late as the configured
//! delay allows, judging by how long the last flushes took, so that as many as can be share it.
//!
//! **After a failure.** A kernel that failed to write a page forgets that it was dirty, so a later sync that succeeds says nothing
//! of it (LWN, "PostgreSQL's fsync surprise"). The first failure therefore stays: nothing after the last durable position is ever
//! reported as durable, and new durable entries are refused, until the log is opened again and has read the disk.
//!
//! Always true: the durable position only moves up; a flush is never tried again after one that failed.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidegate_message::{Instant, Position};

use crate::storage::StorageError;

/// How flushes are grouped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitConfig {
    /// How long an entry may take from being asked for to being durable; longer only if the disk itself takes longer. Default
    /// 10 ms. A longer delay lets more entries share a flush.
    pub delay_max: Duration,
    /// A flush begins as soon as this many bytes wait for it. Default 1 MiB.
    pub bytes_max: u64,
    /// How long a full segment waits to be synced unless a sync is requested. Entries since then are scanned at the next start,
    /// and may be lost with the power. Default 10 s.
    pub settle_after: Duration,
}

impl Default for CommitConfig {
    fn default() -> Self {
        Self {
            delay_max: Duration::from_millis(10),
            bytes_max: 1 << 20,
            settle_after: Duration::from_secs(10),
        }
    }
}

/// Decides when to flush. Reads no clock: `now` is any clock that runs forward.
#[derive(Debug)]
pub struct GroupCommit {
    config: CommitConfig,
    /// Entries before it are durable.
    durable: Position,
    /// Entries before it are to be.
    wanted: Position,
    bytes: u64,
    /// When the first of those waiting was seen, or an earlier time.
    since: Option<Instant>,
    flushing: Option<Instant>,
    /// How long the last flushes took.
    took: VecDeque<Duration>,
}

/// How many flushes an estimate looks back.
const TOOK_MAX: usize = 8;

impl GroupCommit {
    /// Nothing waits; entries before `durable` are durable.
    pub fn new(config: CommitConfig, durable: Position) -> Self {
        Self {
            config,
            durable,
            wanted: durable,
            bytes: 0,
            since: None,
            flushing: None,
            took: VecDeque::with_capacity(TOOK_MAX),
        }
    }

    /// Entries before this position are durable.
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// Asks that entries before `end` become durable, the last of which has so many `bytes`. Returns whether a flush has become
    /// worth a look: it is the first to wait, or enough wait.
    pub fn request(&mut self, end: Position, bytes: u64) -> bool {
        let is_first = self.wanted <= self.durable;
        let before = self.bytes;
        self.wanted = self.wanted.max(end);
        self.bytes = self.bytes.saturating_add(bytes);
        is_first || (before < self.config.bytes_max && self.bytes >= self.config.bytes_max)
    }

    /// Up to which position to flush now, if it is time. The caller then flushes and says what came of it.
    pub fn poll_flush(&mut self, now: Instant) -> Option<Position> {
        if self.wanted <= self.durable || self.flushing.is_some() {
            return None;
        }
        self.since.get_or_insert(now);
        let due = self.poll_timeout()?;
        if now < due && self.bytes < self.config.bytes_max {
            return None;
        }
        self.flushing = Some(now);
        self.since = None;
        self.bytes = 0;
        Some(self.wanted)
    }

    /// When to ask again, if anything waits that was looked at.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let took = self.took.iter().max().copied().unwrap_or_default();
        let left = self.config.delay_max.saturating_sub(took);
        // An entry that comes while a flush runs waits for the rest of that and for the whole of the next, either of which may take
        // longer than those before: so more than half of the time left is kept in reserve. With three quarters instead of three
        // eighths one entry in a hundred took 23 ms of 10 where a flush mostly takes a fraction of one.
        self.since.map(|since| since + left / 8 * 3)
    }

    /// The flush that began last has succeeded: entries before `end` are durable.
    pub fn handle_flushed(&mut self, now: Instant, end: Position) {
        if let Some(began) = self.flushing.take() {
            if self.took.len() == TOOK_MAX {
                self.took.pop_front();
            }
            self.took.push_back(now.since(began));
            // Entries that wait now came while it ran; the exact time is unknown.
            self.since = (self.wanted > end).then_some(began);
        }
        self.advance(end);
    }

    /// Entries before `end` have become durable by another way.
    pub fn advance(&mut self, end: Position) {
        self.durable = self.durable.max(end);
        self.wanted = self.wanted.max(self.durable);
        if self.wanted == self.durable {
            self.since = None;
        }
    }
}

/// Tells what is durable: cheap to clone, used from any thread.
#[derive(Clone)]
pub struct Commits {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// The flusher waits here for something to do.
    work: Condvar,
    /// Producers wait here for their position.
    reached: Condvar,
    callbacks: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

struct State {
    group: GroupCommit,
    failed: Option<Arc<StorageError>>,
    /// Something was asked of the flusher since it last looked.
    is_woken: bool,
    is_stopped: bool,
    flushes: u64,
    failures: u64,
}

/// Counts of the commits of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitCounts {
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Failures of the disk while something was to be made durable.
    pub failures: u64,
}

impl Commits {
    pub(crate) fn new(config: CommitConfig, durable: Position) -> Self {
        let state = State {
            group: GroupCommit::new(config, durable),
            failed: None,
            is_woken: false,
            is_stopped: false,
            flushes: 0,
            failures: 0,
        };
        let shared = Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            reached: Condvar::new(),
            callbacks: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Entries before this position are durable.
    pub fn durable(&self) -> Position {
        self.state().group.durable
    }

    /// Waits until the entry at `position` is durable.
    ///
    /// # Errors
    /// The disk failed before it was, or the flusher has ended.
    pub fn wait(&self, position: Position) -> Result<(), NotDurable> {
        let mut state = self.state();
        loop {
            if let Some(result) = state.outcome(position) {
                return result;
            }
            state = self.shared.reached.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the entry at `position` is durable; `None` if that is open.
    pub fn poll(&self, position: Position) -> Option<Result<(), NotDurable>> {
        self.state().outcome(position)
    }

    /// Has `callback` called, by the flusher's thread, whenever the durable position has moved or will move no more. It is to be
    /// quick: to wake the task that then asks [`Commits::poll`].
    pub fn on_change(&self, callback: impl Fn() + Send + 'static) {
        self.callbacks().push(Box::new(callback));
    }

    /// The counts.
    pub fn counts(&self) -> CommitCounts {
        let state = self.state();
        CommitCounts { flushes: state.flushes, failures: state.failures }
    }

    /// Ends the flusher after one last flush.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        self.shared.work.notify_all();
    }

    /// Asks that the entries before `end` become durable.
    pub(crate) fn request(&self, end: Position, bytes: u64) {
        let mut state = self.state();
        if state.group.request(end, bytes) {
            state.is_woken = true;
            drop(state);
            self.shared.work.notify_one();
        }
    }

    /// Has the flusher look for something to do.
    pub(crate) fn wake(&self) {
        self.state().is_woken = true;
        self.shared.work.notify_one();
    }

    /// Why nothing more becomes durable, if that is so.
    pub(crate) fn failure(&self) -> Option<Arc<StorageError>> {
        self.state().failed.clone()
    }

    /// Entries before it were asked to be durable.
    pub(crate) fn wanted(&self) -> Position {
        self.state().group.wanted
    }

    /// Whether the flusher has ended, or is to.
    pub fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    pub(crate) fn poll_flush(&self, now: Instant) -> Option<Position> {
        let mut state = self.state();
        if state.failed.is_some() { None } else { state.group.poll_flush(now) }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.state().group.poll_timeout()
    }

    /// A flush that [`Commits::poll_flush`] asked for has succeeded.
    pub(crate) fn handle_flushed(&self, now: Instant, end: Position) {
        let mut state = self.state();
        state.flushes += 1;
        state.group.handle_flushed(now, end);
        drop(state);
        self.tell();
    }

    /// Entries before `end` have become durable.
    pub(crate) fn advance(&self, end: Position) {
        let mut state = self.state();
        if end <= state.group.durable {
            return;
        }
        state.flushes += 1;
        state.group.advance(end);
        drop(state);
        self.tell();
    }

    /// The disk has failed: nothing more becomes durable.
    pub(crate) fn fail(&self, error: StorageError) -> Arc<StorageError> {
        let mut state = self.state();
        state.failures += 1;
        let error = Arc::clone(state.failed.get_or_insert_with(|| Arc::new(error)));
        drop(state);
        self.tell();
        error
    }

    /// The flusher has ended.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        if state.failed.is_none() {
            state.failed = Some(Arc::new(StorageError::Stopped));
        }
        drop(state);
        self.tell();
    }

    /// Waits until something was asked of the flusher, at most for `longest`.
    pub(crate) fn rest(&self, longest: Option<Duration>) {
        let mut state = self.state();
        let is_idle = |state: &mut State| !state.is_woken && !state.is_stopped;
        state = match longest {
            None => self.shared.work.wait_while(state, is_idle),
            Some(longest) => self
                .shared
                .work
                .wait_timeout_while(state, longest, is_idle)
                .map(|(state, _)| state)
                .map_err(|poisoned| PoisonError::new(poisoned.into_inner().0)),
        }
        .unwrap_or_else(PoisonError::into_inner);
        state.is_woken = false;
    }

    fn tell(&self) {
        self.shared.reached.notify_all();
        for callback in self.callbacks().iter() {
            callback();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete before anything can panic.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callbacks(&self) -> MutexGuard<'_, Vec<Box<dyn Fn() + Send>>> {
        self.shared.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn outcome(&self, position: Position) -> Option<Result<(), NotDurable>> {
        if position < self.group.durable {
            return Some(Ok(()));
        }
        let source = Arc::clone(self.failed.as_ref()?);
        Some(Err(NotDurable { position, source }))
    }
}

/// An entry was appended, and whether it survives a loss of power is not known.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the entry at position {position} may not survive a loss of power")]
pub struct NotDurable {
    /// Its position.
    pub position: Position,
    /// The error of the disk.
    #[source]
    pub source: Arc<StorageError>,
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        thread,
    };

    use super::*;

    const MILLI: i64 = 1_000_000;

    fn at(millis: i64) -> Instant {
        Instant::from_nanos(millis * MILLI)
    }

    fn group() -> GroupCommit {
        let config = CommitConfig {
            delay_max: Duration::from_millis(16),
            bytes_max: 1000,
            ..CommitConfig::default()
        };
        GroupCommit::new(config, Position(5))
    }

    #[test]
    fn a_flush_waits_for_others_and_ends_within_the_delay() {
        let mut group = group();
        assert_eq!((group.poll_flush(at(0)), group.poll_timeout()), (None, None));
        assert!(group.request(Position(6), 100), "the first to wait");
        assert_eq!(group.poll_flush(at(0)), None);
        assert_eq!(group.poll_timeout(), Some(at(6)), "nothing is known of the disk");
        assert!(!group.request(Position(7), 100));
        assert_eq!(group.poll_flush(at(5)), None);
        assert_eq!(group.poll_flush(at(6)), Some(Position(7)));
        assert_eq!(group.poll_flush(at(7)), None, "one at a time");
        assert!(!group.request(Position(8), 100), "the flusher looks after this flush anyway");
        group.handle_flushed(at(8), Position(7));
        assert_eq!(group.durable(), Position(7));
        let due = Instant::from_nanos(11_250_000);
        assert_eq!(group.poll_timeout(), Some(due), "came after 6, and a flush takes 2");
        assert_eq!(group.poll_flush(at(11)), None);
        assert_eq!(group.poll_flush(due), Some(Position(8)));
        group.handle_flushed(at(13), Position(8));
        assert_eq!(group.poll_timeout(), None);
    }

    #[test]
    fn enough_bytes_or_a_slow_disk_do_not_wait() {
        let mut group = group();
        group.request(Position(6), 600);
        assert_eq!(group.poll_flush(at(0)), None);
        assert!(group.request(Position(7), 400), "enough");
        assert_eq!(group.poll_flush(at(0)), Some(Position(7)));
        group.handle_flushed(at(30), Position(7));
        group.request(Position(8), 1);
        assert_eq!(group.poll_flush(at(31)), Some(Position(8)), "30 ms are above the delay");
    }

    #[test]
    fn the_durable_position_only_moves_up() {
        let mut group = group();
        group.advance(Position(9));
        group.advance(Position(3));
        assert_eq!(group.durable(), Position(9));
        group.request(Position(8), 1);
        assert_eq!(group.poll_flush(at(50)), None, "is durable already");
    }

    #[test]
    fn a_slow_flush_is_forgotten_after_eight() {
        let mut group = group();
        let mut now = 0;
        for (number, took) in [9, 1, 1, 1, 1, 1, 1, 1, 1].into_iter().enumerate() {
            group.request(Position(6 + number as u64), 1000);
            let end = group.poll_flush(at(now)).unwrap();
            group.handle_flushed(at(now + took), end);
            now += took;
        }
        group.request(Position(100), 1);
        assert_eq!(group.poll_flush(at(now)), None);
        assert_eq!(group.poll_timeout(), Some(Instant::from_nanos(now * MILLI + 5_625_000)));
    }

    #[test]
    fn waiters_get_their_position_or_the_failure() {
        let commits = Commits::new(CommitConfig::default(), Position(0));
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        commits.on_change(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let waiting: Vec<_> = [0, 1, 7]
            .map(|position| {
                let commits = commits.clone();
                thread::spawn(move || commits.wait(Position(position)))
            })
            .into_iter()
            .collect();
        commits.request(Position(2), 10);
        assert!(commits.poll(Position(1)).is_none());
        commits.handle_flushed(at(1), Position(2));
        commits.fail(StorageError::Stopped);
        commits.advance(Position(2));
        let results: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(results[0].is_ok() && results[1].is_ok());
        assert_eq!(results[2].as_ref().unwrap_err().position, Position(7));
        assert!(commits.poll_flush(at(99)).is_none(), "nothing is flushed after a failure");
        assert_eq!(commits.counts(), CommitCounts { flushes: 1, failures: 1 });
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}

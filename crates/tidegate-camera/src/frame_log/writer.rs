//! The writing end of a log of frames: frames that the disk does not take are kept in memory, counted and reported.
//!
//! ```text
//!  frame ─▶ offer ─▶ readers have it: it is on its way
//!              └───▶ store: copied, sealed if configured, and written meanwhile
//! ```
//!
//! Always true: a frame that was offered is stored before the next is.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak,
        mpsc::{self, Sender},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use tidegate_log::{AppendError, Durability, Health, HealthCounts, LogWriter, StorageError, Store};
use tidegate_message::{Instant, Position};
use tidegate_process::clock;
use tidegate_sys::{clock::monotonic_nanos, sched};

use super::LogName;

/// A smaller frame is stored sooner than another thread is awake.
const BESIDE_MIN: usize = 32 << 10;
/// An append that takes longer has waited for something, and the frame's readers with it.
const HELD_UP_AFTER: Duration = Duration::from_millis(50);
/// The time that appends may be held up for, beyond a quarter of the time. Once is chance, and other programs slow us down, too:
/// frames that
/// are not stored are a high price for that.
const HELD_UP_MAX: Duration = Duration::from_secs(2);
/// How long a disk that holds us up for more is given nothing.
const SUSPENDED_FOR: Duration = Duration::from_secs(10);
/// How often a trouble that lasts is reported again.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// How often old frames are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// The one writer of a log of frames.
pub struct FrameWriter {
    shared: Arc<Mutex<Writing>>,
}

/// State that the storing thread shares with the writer of a log.
pub(super) struct Writing {
    /// `None` once the writer is gone: the storing thread may still hold the rest.
    writer: Option<LogWriter<Store>>,
    pub(super) health: Health,
    durability: Durability,
    offered: Option<Offered>,
    age: Option<Duration>,
    name: String,
    /// Frames that are in the page cache and were to be on the disk.
    not_durable: u64,
    pub(super) resume_at: Option<Instant>,
    expire_at: Option<Instant>,
    held_up: HeldUp,
    told: Told,
}

/// A frame that readers have and the log has not.
struct Offered {
    at: Instant,
    meta: Vec<u8>,
    body: Bytes,
    durability: Durability,
    /// How long it took to find room for it.
    took: Duration,
}

/// How long appends were held up lately: a bucket that a quarter of the time drains.
#[derive(Debug, Default)]
struct HeldUp {
    time: Duration,
    at: Option<Instant>,
}

impl HeldUp {
    /// An append has taken so long. Returns whether that is too much; then it is forgotten.
    fn add(&mut self, now: Instant, took: Duration) -> bool {
        let passed = self.at.replace(now).map_or(Duration::ZERO, |at| now.since(at));
        self.time = self.time.saturating_sub(passed / 4);
        if took > HELD_UP_AFTER {
            self.time += took;
        }
        let is_too_much = self.time > HELD_UP_MAX;
        if is_too_much {
            self.time = Duration::ZERO;
        }
        is_too_much
    }
}

/// The last report to the operator.
#[derive(Default)]
struct Told {
    is_failing: bool,
    not_stored: u64,
    not_durable: u64,
    shrunk: u64,
    at: Option<Instant>,
}

/// The outcome of an appended frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it is in the log.
    pub position: Position,
    /// The failures that it survives. [`Durability::Disk`] holds once the log's flusher has come to it, ten milliseconds
    /// later or so.
    pub durability: Durability,
}

impl FrameWriter {
    pub(super) fn new(
        writer: LogWriter<Store>,
        health: Health,
        durability: Durability,
        age: Option<Duration>,
        name: &LogName,
    ) -> Self {
        let writing = Writing {
            writer: Some(writer),
            health,
            durability,
            offered: None,
            age,
            name: name.to_string(),
            not_durable: 0,
            resume_at: None,
            expire_at: None,
            held_up: HeldUp::default(),
            told: Told::default(),
        };
        Self { shared: Arc::new(Mutex::new(writing)) }
    }

    /// Whether frames are kept in files, as far as the disk takes them.
    pub fn is_in_files(&self) -> bool {
        self.writing().durability != Durability::Memory
    }

    /// Appends a frame. A frame that the disk does not take is kept in memory, for live readers.
    ///
    /// # Errors
    /// [`AppendError`], but never for the disk.
    pub fn append(&self, at: Instant, meta: &[u8], body: &Bytes) -> Result<Kept, AppendError> {
        let mut writing = self.writing();
        let position = writing.offer(at, meta, body)?;
        let durability = writing.store()?;
        Ok(Kept { position, durability })
    }

    /// Lets readers have a frame, which is then to be stored: by [`FrameWriter::store`] or [`FrameWriter::store_beside`], and at the
    /// latest when the next frame comes or this is dropped.
    ///
    /// # Errors
    /// As [`FrameWriter::append`].
    pub fn offer(&self, at: Instant, meta: &[u8], body: &Bytes) -> Result<Position, AppendError> {
        self.writing().offer(at, meta, body)
    }

    /// Stores the frame that was offered last, if it is not yet, and [`FrameWriter::store_beside`] was not asked to.
    ///
    /// # Errors
    /// As [`FrameWriter::append`]: readers may have had the frame, and it is not kept.
    pub fn store(&self) -> Result<(), AppendError> {
        self.writing().store().map(drop)
    }

    /// Has another thread store the frame that was offered last. It is stored here if it is small, or there is no other thread.
    pub fn store_beside(&self) {
        let mut writing = self.writing();
        let is_small =
            writing.offered.as_ref().is_none_or(|offered| offered.body.len() < BESIDE_MIN);
        let storing = storing().filter(|_| !is_small);
        let sent = storing.is_some_and(|logs| logs.send(Arc::downgrade(&self.shared)).is_ok());
        if !sent {
            writing.store_or_tell();
        }
    }

    /// Gets ready for a frame of up to `bytes`, and lets go of old ones: to be called when there is time. Returns false, and does
    /// nothing, while a frame is being stored.
    pub fn prepare(&self, bytes: usize) -> bool {
        let mut writing = match self.shared.try_lock() {
            Ok(writing) => writing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if writing.offered.is_some() {
            return false;
        }
        writing.log().prepare(bytes);
        writing.expire();
        true
    }

    /// How its disk does.
    pub fn health(&self) -> HealthCounts {
        self.writing().health.counts()
    }

    pub(super) fn writing(&self) -> MutexGuard<'_, Writing> {
        lock(&self.shared)
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        let mut writing = self.writing();
        writing.store_or_tell();
        // With it go its files and their lock.
        writing.writer = None;
    }
}

/// The thread that stores what was offered, for all logs of the process. It waits its turn: other work for the frame goes
/// first. It has the usual priority, for the next frame may have to wait for it.
fn storing() -> Option<&'static Sender<Weak<Mutex<Writing>>>> {
    static STORING: OnceLock<Option<Sender<Weak<Mutex<Writing>>>>> = OnceLock::new();
    let start = || {
        let (sender, logs) = mpsc::channel::<Weak<Mutex<Writing>>>();
        let store = move || {
            if let Err(error) = sched::usual_turns() {
                tracing::debug!(%error, "storing competes with sending");
            }
            for log in logs {
                if let Some(writing) = log.upgrade() {
                    lock(&writing).store_or_tell();
                }
            }
        };
        match thread::Builder::new().name("frame-store".to_owned()).spawn(store) {
            Ok(_) => Some(sender),
            Err(error) => {
                tracing::warn!(%error, "frames are stored before they are sent");
                None
            }
        }
    };
    STORING.get_or_init(start).as_ref()
}

fn lock(shared: &Mutex<Writing>) -> MutexGuard<'_, Writing> {
    // Nothing in there panics; should it, going on is better than to lose all frames that are to come.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writing {
    fn log(&mut self) -> &mut LogWriter<Store> {
        self.writer.as_mut().expect("it goes with the end that offers")
    }

    fn offer(&mut self, at: Instant, meta: &[u8], body: &Bytes) -> Result<Position, AppendError> {
        self.store_or_tell();
        let began = clock::at(monotonic_nanos());
        if self.resume_at.take_if(|resume_at| *resume_at <= began).is_some() {
            self.health.resume();
        }
        let (position, durability) = self.offer_as(self.durability, at, meta, body)?;
        let took = clock::at(monotonic_nanos()).since(began);
        let (meta, body) = (meta.to_vec(), body.clone());
        self.offered = Some(Offered { at, meta, body, durability, took });
        Ok(position)
    }

    /// Offers a frame with the most that can be had, up to `durability`.
    fn offer_as(
        &mut self,
        mut durability: Durability,
        at: Instant,
        meta: &[u8],
        body: &Bytes,
    ) -> Result<(Position, Durability), AppendError> {
        loop {
            let refused = match self.log().offer(durability, at, meta, body) {
                Ok(position) => return Ok((position, durability)),
                Err(AppendError::Storage(refused)) if durability > Durability::Memory => refused,
                Err(error) => return Err(error),
            };
            durability = self.less(durability, &refused);
        }
    }

    /// The durability to ask for instead, of a disk that refuses: a segment that broke is not used again.
    fn less(&mut self, durability: Durability, refused: &StorageError) -> Durability {
        let only_syncing =
            matches!(refused, StorageError::NotDurable { .. } | StorageError::Stopped);
        if durability == Durability::Disk && only_syncing {
            self.not_durable += 1;
            Durability::Page
        } else {
            Durability::Memory
        }
    }

    /// Stores what was offered, if anything is. Returns what it survives.
    fn store(&mut self) -> Result<Durability, AppendError> {
        let Some(offered) = self.offered.take() else { return Ok(self.durability) };
        let began = clock::at(monotonic_nanos());
        let stored = self.store_as(&offered);
        if self.durability > Durability::Memory {
            let now = clock::at(monotonic_nanos());
            let took = offered.took + now.since(began);
            let is_on_disk = stored.as_ref().is_ok_and(|kept| *kept > Durability::Memory);
            if self.held_up.add(now, took) && is_on_disk {
                self.health.suspend(took);
                self.resume_at = Some(now + SUSPENDED_FOR);
            }
            self.tell(now);
        }
        self.expire();
        stored
    }

    fn store_as(&mut self, offered: &Offered) -> Result<Durability, AppendError> {
        let Offered { at, meta, body, .. } = offered;
        let mut durability = offered.durability;
        loop {
            let Err(refused) = self.log().store() else { return Ok(durability) };
            let error = if durability > Durability::Memory {
                durability = self.less(durability, &refused);
                match self.offer_as(durability, *at, meta, body) {
                    Ok((_, now)) => {
                        durability = now;
                        continue;
                    }
                    Err(error) => error,
                }
            } else {
                AppendError::Storage(refused)
            };
            self.log().skip()?;
            return Err(error);
        }
    }

    /// Stores the offered frame; no caller waits to hear where it cannot be kept.
    fn store_or_tell(&mut self) {
        if let Err(error) = self.store() {
            let (code, error) = (error.code(), tidegate_message::error_chain(&error));
            tracing::error!(log = self.name, %code, error, "a frame was delivered but not stored");
        }
    }

    fn expire(&mut self) {
        let Some(age) = self.age else { return };
        let now = clock::now();
        if self.expire_at.is_some_and(|at| now < at) {
            return;
        }
        self.expire_at = Some(now + EXPIRE_EVERY);
        if let Err(error) = self.log().expire(now - age) {
            let error = tidegate_message::error_chain(&error);
            tracing::error!(log = self.name, error, "old frames could not be dropped");
        }
    }

    /// Tells the operator what is new about the disk.
    fn tell(&mut self, now: Instant) {
        let HealthCounts { failure, not_stored, not_stored_bytes, shrunk, .. } =
            self.health.counts();
        let log = &self.name;
        let told = &mut self.told;
        let is_due = told.at.is_none_or(|at| now.since(at) >= TELL_EVERY);
        match &failure {
            Some(error) if !told.is_failing || (is_due && not_stored > told.not_stored) => {
                let (code, error) = (error.code(), tidegate_message::error_chain(error));
                tracing::error!(log, %code, error, not_stored, not_stored_bytes, "frames are not stored; they are delivered from memory");
                (told.is_failing, told.not_stored, told.at) = (true, not_stored, Some(now));
            }
            None if told.is_failing => {
                tracing::warn!(log, not_stored, not_stored_bytes, "frames are stored again");
                (told.is_failing, told.not_stored, told.at) = (false, not_stored, Some(now));
            }
            _ => {}
        }
        if shrunk > told.shrunk && is_due {
            let segments = shrunk - told.shrunk;
            tracing::warn!(log, segments, code = %tidegate_message::Code::STORAGE_FULL, "the disk is full: the log drops its oldest frames before it reaches its size");
            (told.shrunk, told.at) = (shrunk, Some(now));
        }
        if self.not_durable > told.not_durable && is_due {
            let not_durable = self.not_durable;
            tracing::error!(log, not_durable, code = %tidegate_message::Code::STORAGE_FAILED, "the disk has failed to sync: frames survive this process, and not a loss of power, until the node is restarted");
            (told.not_durable, told.at) = (not_durable, Some(now));
        }
    }
}

impl fmt::Debug for FrameWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameWriter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_slow_if_it_holds_up_again_and_again_or_for_long() {
        let millis = Duration::from_millis;
        for (what, every, took, expected) in [
            ("at once", millis(200), millis(1), None),
            ("now and then", millis(2000), millis(400), None),
            ("by other programs", millis(200), millis(45), None),
            ("again and again", millis(200), millis(150), Some(20)),
            ("each time", millis(1000), millis(900), Some(3)),
            ("once for long", millis(3000), millis(2500), Some(1)),
        ] {
            let mut held_up = HeldUp::default();
            let mut now = Instant::EPOCH;
            let slow = (1..1000).find(|_| {
                now = now + every;
                held_up.add(now, took)
            });
            assert_eq!(slow, expected, "{what}");
        }
    }
}

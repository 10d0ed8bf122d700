//! The writing end of a log of frames: what the disk does not take is kept in memory, counted and told.

use std::{fmt, time::Duration};

use bytes::Bytes;
use tidegate_log::{AppendError, Durability, Health, HealthCounts, LogWriter, StorageError, Store};
use tidegate_message::{Instant, Position};
use tidegate_sys::clock::monotonic_nanos;

use super::LogName;
use crate::clock;

/// An append that takes longer has waited for something, and with it whoever waits for the frame.
const HELD_UP_AFTER: Duration = Duration::from_millis(50);
/// What appends may be held up for, beyond a quarter of the time. Once is chance, and other programs slow us down, too: frames that
/// are not stored are a high price for that.
const HELD_UP_MAX: Duration = Duration::from_secs(2);
/// How long a disk that holds us up for more is given nothing.
const SUSPENDED_FOR: Duration = Duration::from_secs(10);
/// How often a trouble that lasts is told again.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// How often old frames are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// The one writer of a log of frames.
pub struct FrameWriter {
    writer: LogWriter<Store>,
    pub(super) health: Health,
    durability: Durability,
    age: Option<Duration>,
    name: String,
    /// Frames that are in the page cache and were to be on the disk.
    not_durable: u64,
    pub(super) resume_at: Option<Instant>,
    expire_at: Option<Instant>,
    held_up: HeldUp,
    told: Told,
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

/// What the operator was told last.
#[derive(Default)]
struct Told {
    is_failing: bool,
    not_stored: u64,
    not_durable: u64,
    shrunk: u64,
    at: Option<Instant>,
}

/// What became of a frame that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it is in the log.
    pub position: Position,
    /// What it survives. [`Durability::Disk`] holds once the log's flusher has come to it, ten milliseconds later or so.
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
        Self {
            writer,
            health,
            durability,
            age,
            name: name.to_string(),
            not_durable: 0,
            resume_at: None,
            expire_at: None,
            held_up: HeldUp::default(),
            told: Told::default(),
        }
    }

    /// Appends a frame. What the disk does not take is kept in memory, for who reads along.
    ///
    /// # Errors
    /// [`AppendError`], but never for the disk.
    pub fn append(&mut self, at: Instant, meta: &[u8], body: &Bytes) -> Result<Kept, AppendError> {
        let began = clock::at(monotonic_nanos());
        if self.resume_at.take_if(|resume_at| *resume_at <= began).is_some() {
            self.health.resume();
        }
        let mut durability = self.durability;
        let mut appended = self.writer.append_shared(durability, at, meta, body);
        if let Err(AppendError::Storage(error)) = &appended
            && durability > Durability::Memory
        {
            // In memory, or at least in the page cache: of a segment that broke nothing is used again.
            if matches!(error, StorageError::NotDurable { .. } | StorageError::Stopped) {
                self.not_durable += 1;
                durability = Durability::Page;
            } else {
                durability = Durability::Memory;
            }
            appended = self.writer.append_shared(durability, at, meta, body);
            if durability == Durability::Page && matches!(appended, Err(AppendError::Storage(_))) {
                durability = Durability::Memory;
                appended = self.writer.append_shared(durability, at, meta, body);
            }
        }
        if self.durability > Durability::Memory {
            let now = clock::at(monotonic_nanos());
            let took = now.since(began);
            if self.held_up.add(now, took) && durability > Durability::Memory {
                self.health.suspend(took);
                self.resume_at = Some(now + SUSPENDED_FOR);
            }
            self.tell(now);
        }
        self.expire();
        appended.map(|position| Kept { position, durability })
    }

    /// Gets ready for a frame of up to `bytes`, and lets go of old ones: to be called when there is time.
    pub fn prepare(&mut self, bytes: usize) {
        self.writer.prepare(bytes);
        self.expire();
    }

    fn expire(&mut self) {
        let Some(age) = self.age else { return };
        let now = clock::now();
        if self.expire_at.is_some_and(|at| now < at) {
            return;
        }
        self.expire_at = Some(now + EXPIRE_EVERY);
        if let Err(error) = self.writer.expire(now - age) {
            let error = crate::error_chain(&error);
            tracing::error!(log = self.name, error, "old frames could not be dropped");
        }
    }

    /// Time of the newest frame ever appended.
    pub fn last_at(&self) -> Option<Instant> {
        self.writer.last_at()
    }

    /// How its disk does.
    pub fn health(&self) -> HealthCounts {
        self.health.counts()
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
                let (code, error) = (error.code(), crate::error_chain(error));
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
            tracing::warn!(log, segments, code = %tidegate_message::Code::STORAGE_FULL, "the disk is full: the log drops its oldest frames before it has its size");
            (told.shrunk, told.at) = (shrunk, Some(now));
        }
        if self.not_durable > told.not_durable && is_due {
            let not_durable = self.not_durable;
            tracing::error!(log, not_durable, code = %tidegate_message::Code::STORAGE_FAILED, "the disk has failed to sync: frames survive this process, and not a loss of power, until the node is started anew");
            (told.not_durable, told.at) = (not_durable, Some(now));
        }
    }
}

impl fmt::Debug for FrameWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameWriter").field("name", &self.name).finish_non_exhaustive()
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

//! The writing end of a log of frames: what the disk does not take is kept in memory, counted and told.

use std::{fmt, time::Duration};

use bytes::Bytes;
use tidegate_log::{AppendError, Durability, Health, HealthCounts, LogWriter, StorageError, Store};
use tidegate_message::{Instant, Position};
use tidegate_sys::clock::monotonic_nanos;

use super::LogName;
use crate::clock;

/// An append that took longer has waited for the disk, and with it whoever waits for the frame.
const SLOW_AFTER: Duration = Duration::from_millis(250);
/// How long such a disk is given nothing.
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
    told: Told,
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
            if took > SLOW_AFTER && durability > Durability::Memory {
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

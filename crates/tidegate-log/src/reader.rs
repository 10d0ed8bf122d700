//! Reading a log from one entry to the next.

use tidegate_message::{Code, Instant, Position};

use crate::{
    entry::Entry,
    index::{Next, is_lost},
    log::{Log, just_after},
    memory::Memory,
    storage::{Storage, StorageError},
};

/// Goes through a log entry by entry, from where it was placed on into the future.
///
/// A reader holds a position and no bytes: however far it is behind, it costs the log nothing, and the
/// wrap may overtake it. Then the next read says which range was missed, and the one after it continues
/// with the oldest kept entry. Past and future are one sequence, so there is no seam to lose an entry at.
pub struct Reader<S: Storage = Memory> {
    log: Log<S>,
    /// The entry to be read next.
    cursor: Position,
    /// That entry is not earlier than this.
    from: Instant,
    missing_at_start: Option<(Instant, Instant)>,
}

impl<S: Storage> Reader<S> {
    pub(crate) fn new(
        log: Log<S>,
        cursor: Position,
        from: Instant,
        missing_at_start: Option<(Instant, Instant)>,
    ) -> Self {
        Self { log, cursor, from, missing_at_start }
    }

    /// The next entry; `None` if this reader has caught up with the writer.
    ///
    /// # Errors
    /// [`ReadError::Overtaken`]: the wrap dropped entries that were not read; the next call continues after them.
    /// [`ReadError::Storage`]: the entry is kept but could not be read; the next call tries again, or continues after it if it is
    /// [damaged](StorageError::Damaged).
    #[expect(clippy::should_implement_trait, reason = "`None` is not the end, only the present")]
    pub fn next(&mut self) -> Result<Option<Entry>, ReadError> {
        let index = self.log.index();
        let (found, last) = (index.next_from(self.cursor), index.last_at());
        drop(index);
        match found {
            Next::Ahead => Ok(None),
            Next::Gone(to, at) => {
                let until = at.or(last.map(just_after)).unwrap_or(Instant::MIN);
                let missed_from = std::mem::replace(&mut self.cursor, to);
                let missed_time = (std::mem::replace(&mut self.from, until), until);
                Err(Overtaken { missed_from, missed_to: to, missed_time }.into())
            }
            Next::Kept(located) => {
                let position = located.position;
                let read = located.read();
                match &read {
                    Ok(entry) => self.from = just_after(entry.at),
                    // It is damaged for good.
                    Err(ReadError::Storage { source, .. }) if is_lost(source) => {}
                    Err(_) => return read.map(Some),
                }
                self.cursor = position.next();
                read.map(Some)
            }
        }
    }

    /// The position of the entry to be read next.
    pub fn position(&self) -> Position {
        self.cursor
    }

    /// How many kept entries are still unread.
    pub fn behind(&self) -> u64 {
        let index = self.log.index();
        index.next().0.saturating_sub(self.cursor.max(index.first()).0)
    }

    /// Continues with the newest kept entry, unless that was read already. Returns how many entries were
    /// skipped, kept or dropped.
    pub fn skip_to_newest(&mut self) -> u64 {
        let index = self.log.index();
        let newest = index.locate_before(index.next()).map(|located| located.position);
        drop(index);
        let Some(newest) = newest.filter(|&newest| newest > self.cursor) else { return 0 };
        let skipped = newest.0 - self.cursor.0;
        self.from = self.log.start_of(newest);
        self.cursor = newest;
        skipped
    }

    /// The span of time that this reader was asked to start in and whose entries, in part or all, had
    /// been dropped before: from its start (included) to its first kept entry (excluded).
    pub fn missing_at_start(&self) -> Option<(Instant, Instant)> {
        self.missing_at_start
    }
}

/// The entries of a span of time; see [`Log::range`].
pub struct Entries<S: Storage = Memory> {
    reader: Reader<S>,
    until: Position,
    until_at: Option<Instant>,
    failed: bool,
}

impl<S: Storage> Entries<S> {
    pub(crate) fn new(reader: Reader<S>, until: Position, until_at: Option<Instant>) -> Self {
        Self { reader, until, until_at, failed: false }
    }

    /// As [`Reader::missing_at_start`].
    pub fn missing_at_start(&self) -> Option<(Instant, Instant)> {
        let (from, to) = self.reader.missing_at_start?;
        let to = self.until_at.map_or(to, |until| until.min(to));
        (from < to).then_some((from, to))
    }
}

impl<S: Storage> Iterator for Entries<S> {
    type Item = Result<Entry, ReadError>;

    /// Ends after a failure of the storage, and continues after an entry that is damaged.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.cursor >= self.until {
            return None;
        }
        match self.reader.next() {
            Ok(entry) => entry.map(Ok),
            Err(ReadError::Overtaken(mut missed)) => {
                missed.missed_to = missed.missed_to.min(self.until);
                if let Some(until) = self.until_at {
                    missed.missed_time.1 = missed.missed_time.1.min(until);
                }
                Some(Err(missed.into()))
            }
            Err(error) => {
                self.failed =
                    !matches!(&error, ReadError::Storage { source, .. } if is_lost(source));
                Some(Err(error))
            }
        }
    }
}

/// The entries that a reader missed because the wrap overtook it, or because a segment was lost. Both ranges are half open, and
/// end where the reader continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "entries {missed_from} up to {missed_to}, of times {} up to {}, were dropped before they \
     were read",
    missed_time.0, missed_time.1
)]
pub struct Overtaken {
    /// Position of the first entry missed.
    pub missed_from: Position,
    /// Position after the last entry missed: the oldest kept.
    pub missed_to: Position,
    /// A span that holds the times of all entries missed and of no other: from just after the entry read
    /// last (or where the reader was placed; [`Instant::MIN`] if at a position dropped before), up to the
    /// oldest kept. Asking another log for this range fills the gap.
    pub missed_time: (Instant, Instant),
}

impl Overtaken {
    /// How many entries were missed.
    pub fn missed(&self) -> u64 {
        self.missed_to.0 - self.missed_from.0
    }
}

/// Why a read gave no entry.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The wrap dropped entries that this reader had not read.
    #[error(transparent)]
    Overtaken(#[from] Overtaken),
    /// The entry was dropped.
    #[error("position {wanted} is not kept any more; the next that is, is {oldest}")]
    Expired {
        /// The position asked for.
        wanted: Position,
        /// The oldest position after it that can be had.
        oldest: Position,
    },
    /// The entry is kept, but the storage failed to give it.
    #[error("the entry at position {position} could not be read")]
    Storage {
        /// Its position.
        position: Position,
        /// Why not.
        #[source]
        source: StorageError,
    },
}

impl ReadError {
    /// Whether the entry can never be read, so that a reader has gone on after it.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Storage { source, .. } if is_lost(source))
    }

    /// The stable code of this error.
    pub fn code(&self) -> Code {
        match self {
            Self::Overtaken(_) | Self::Expired { .. } => Code::FRAME_MISSING,
            Self::Storage { source, .. } => source.code(),
        }
    }
}

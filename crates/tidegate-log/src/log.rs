//! The shared end of a log.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use tidegate_message::{Code, Instant, Position};

use crate::{
    config::LogConfig,
    entry::Entry,
    index::{Index, Located, Next, Shared, is_lost},
    memory::Memory,
    storage::{Recovered, Segment, Storage, StorageError},
    writer::LogWriter,
};

/// A log as its readers share it: cheap to clone, used from any thread.
///
/// ```
/// use tidegate_log::{Log, LogConfig, Memory};
/// use tidegate_message::Instant;
///
/// let (mut writer, log) = Log::create(LogConfig::default(), Memory::new())?;
/// let mut reader = log.reader_from(Instant::EPOCH);
/// writer.append(Instant::from_millis(200), b"camera 1", b"a frame")?;
/// let entry = reader.next()?.expect("one entry is unread");
/// assert_eq!((&entry.meta[..], &entry.body[..]), (&b"camera 1"[..], &b"a frame"[..]));
/// assert!(reader.next()?.is_none(), "caught up");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Log<S: Storage = Memory> {
    shared: Arc<Shared<S::Segment>>,
}

impl<S: Storage> Log<S> {
    /// A new, empty log in `storage`, and its one writer. Takes no room before the first append.
    ///
    /// # Errors
    /// The sizes of `config` do not fit each other, or the storage is not empty or failed.
    pub fn create(config: LogConfig, storage: S) -> Result<(LogWriter<S>, Self), LogError> {
        let segments = storage.list().map_err(LogError::Storage)?.len();
        if segments > 0 {
            return Err(LogError::NotEmpty { segments });
        }
        Self::open(config, storage)
    }

    /// The log that an earlier process has left in `storage`, which may be empty, and its one writer.
    ///
    /// Takes time by the number of segments, not of entries.
    ///
    /// # Errors
    /// The sizes of `config` do not fit each other.
    pub fn open(config: LogConfig, mut storage: S) -> Result<(LogWriter<S>, Self), LogError> {
        let LogConfig { bytes_max, segment_bytes } = config;
        let bytes = u32::try_from(segment_bytes).map_or(0, |bytes| bytes as usize);
        if storage.framing().entry_bytes_max(bytes) == 0 {
            return Err(LogError::SegmentBytes { segment_bytes });
        }
        if bytes_max / segment_bytes < 4 {
            return Err(LogError::BytesMax { bytes_max, segment_bytes });
        }
        let Recovered { segments, next, last } = storage.recover();
        let mut index = Index::new(next, last);
        for segment in segments {
            index.push_recovered(segment);
        }
        let shared = Arc::new(Shared::new(index));
        let log = Self { shared: Arc::clone(&shared) };
        Ok((LogWriter::new(config, storage, shared), log))
    }

    /// The entry of exactly that time, if it is kept.
    ///
    /// # Errors
    /// The storage failed.
    pub fn entry_at(&self, at: Instant) -> Result<Option<Entry>, ReadError> {
        Ok(self.nearest_after(at)?.filter(|entry| entry.at == at))
    }

    /// The entry at that position; `None` if it has not been appended yet.
    ///
    /// # Errors
    /// The entry was dropped, or the storage failed.
    pub fn entry(&self, position: Position) -> Result<Option<Entry>, ReadError> {
        let found = self.index().next_from(position);
        match found {
            Next::Kept(located) => located.read().map(Some),
            Next::Gone(oldest, _) => Err(ReadError::Expired { wanted: position, oldest }),
            Next::Ahead => Ok(None),
        }
    }

    /// The latest kept entry at or before that time.
    ///
    /// # Errors
    /// The storage failed.
    pub fn nearest_before(&self, at: Instant) -> Result<Option<Entry>, ReadError> {
        let after = self.position_from(at);
        if self.start_of(after) == at
            && let Some(entry) = self.read(|index| index.locate(after))?
        {
            return Ok(Some(entry));
        }
        self.read(|index| index.locate_before(after))
    }

    /// The earliest kept entry at or after that time.
    ///
    /// # Errors
    /// The storage failed.
    pub fn nearest_after(&self, at: Instant) -> Result<Option<Entry>, ReadError> {
        let after = self.position_from(at);
        self.read(|index| match index.next_from(after) {
            Next::Kept(located) => Some(located),
            // The writer has dropped it meanwhile.
            Next::Gone(oldest, _) => index.locate(oldest),
            Next::Ahead => None,
        })
    }

    /// The oldest kept entry.
    ///
    /// # Errors
    /// The storage failed.
    pub fn first(&self) -> Result<Option<Entry>, ReadError> {
        self.read(|index| index.locate(index.first()))
    }

    /// The newest kept entry.
    ///
    /// # Errors
    /// The storage failed.
    pub fn last(&self) -> Result<Option<Entry>, ReadError> {
        self.read(|index| index.locate_before(index.next()))
    }

    /// The position that the next entry gets: one above the newest.
    pub fn end(&self) -> Position {
        self.index().next()
    }

    /// Time of the newest entry ever appended, kept or not.
    pub fn last_at(&self) -> Option<Instant> {
        self.index().last_at()
    }

    /// Time of the oldest kept entry, which is not read for that.
    pub fn first_at(&self) -> Option<Instant> {
        let index = self.index();
        let first = index.locate(index.first());
        drop(index);
        first.map(|entry| entry.slot().at)
    }

    /// Time of the entry at `position`, if it is kept. It is not read for that.
    pub fn time_of(&self, position: Position) -> Option<Instant> {
        let found = self.index().locate(position);
        found.map(|entry| entry.slot().at)
    }

    /// Bytes of all kept entries, meta and body.
    pub fn bytes(&self) -> u64 {
        self.index().bytes()
    }

    /// How many entries are kept.
    pub fn entries(&self) -> u64 {
        self.index().entries()
    }

    /// Position of the first kept entry at or after `at`; that of the next entry if there is none.
    pub(crate) fn position_from(&self, at: Instant) -> Position {
        let found = self.index().at_or_after(at);
        found.finish()
    }

    /// The earliest time that the entry at `position` has or can get.
    pub(crate) fn start_of(&self, position: Position) -> Instant {
        let index = self.index();
        let (located, last) = (index.locate(position), index.last_at());
        drop(index);
        match (located, last) {
            (Some(located), _) => located.slot().at,
            (None, Some(last)) => just_after(last),
            (None, None) => Instant::MIN,
        }
    }

    /// Finds an entry under the lock and slices it outside.
    fn read(
        &self,
        find: impl FnOnce(&Index<S::Segment>) -> Option<Located<S::Segment>>,
    ) -> Result<Option<Entry>, ReadError> {
        let located = find(&self.index());
        located.map(Located::read).transpose()
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index<S::Segment>> {
        self.shared.index()
    }
}

impl<S: Storage> Clone for Log<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<G: Segment> Located<G> {
    /// Slices meta and body, which share one pin.
    pub(crate) fn read(mut self) -> Result<Entry, ReadError> {
        if let Some(entry) = self.entry.take() {
            return Ok(entry);
        }
        let slot = self.slot();
        let Self { position, segment, .. } = self;
        let bytes = segment
            .read(position, &slot)
            .map_err(|source| ReadError::Storage { position, source })?;
        let mut body = bytes;
        let meta = body.split_to(slot.meta_bytes as usize);
        Ok(Entry { position, at: slot.at, meta, body })
    }
}

/// The next nanosecond.
pub(crate) fn just_after(at: Instant) -> Instant {
    at + Duration::from_nanos(1)
}

/// Why a log was not created.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A segment without room for an entry, or of 4 GiB and more.
    #[error(
        "a segment has room for an entry and at most {} bytes; {segment_bytes} do not fit that",
        u32::MAX
    )]
    SegmentBytes {
        /// The size asked for.
        segment_bytes: u64,
    },
    /// Too few segments for the log to keep anything while it fills the newest.
    #[error(
        "a log holds at least 4 segments, so {bytes_max} bytes are too few for segments of \
         {segment_bytes}; allow more, or make the segments smaller"
    )]
    BytesMax {
        /// The limit asked for.
        bytes_max: u64,
        /// The size of a segment asked for.
        segment_bytes: u64,
    },
    /// The storage has segments of another log.
    #[error("the storage is not empty: it has {segments} segments")]
    NotEmpty {
        /// How many.
        segments: usize,
    },
    /// The storage failed.
    #[error("the storage of a log could not be opened")]
    Storage(#[source] StorageError),
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

//! The shared end of a log.

use std::{
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::{Instant, Position};

use crate::{
    index::{Index, Located, Slot},
    memory::Memory,
    reader::{Entries, ReadError, Reader},
    storage::{Segment, Storage, StorageError},
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

/// What the writer and all readers of one log share.
pub(crate) struct Shared<G> {
    index: Mutex<Index<G>>,
}

/// How much a log keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The most bytes that the log holds of storage and index together, entries that readers pin
    /// included. At least all but the last two segments' worth is entries. Default 1 GiB: 7 minutes and
    /// more at 5 frames of 500 KB a second.
    pub bytes_max: u64,
    /// Size of a segment in bytes: the largest entry, the granule in which old entries are dropped, and
    /// what one pinned entry keeps in memory. Default 8 MiB; at most a quarter of `bytes_max`, and less
    /// than 4 GiB.
    pub segment_bytes: u64,
}

impl LogConfig {
    /// A log of at most `bytes_max` bytes, in segments of a sixteenth of that, 8 MiB at most.
    pub fn bounded(bytes_max: u64) -> Self {
        Self { bytes_max, segment_bytes: (bytes_max / 16).min(8 << 20) }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self::bounded(1 << 30)
    }
}

/// One entry, shared with its log and not copied.
///
/// `meta` and `body` pin their segment: its memory stays taken, and counts against the log's limit,
/// until all clones and slices of both are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands in its log.
    pub position: Position,
    /// Its time.
    pub at: Instant,
    /// What the writer gave beside the body.
    pub meta: Bytes,
    /// The message itself, in one piece.
    pub body: Bytes,
}

impl<S: Storage> Log<S> {
    /// A new, empty log in `storage`, and its one writer. Takes no room before the first append.
    ///
    /// # Errors
    /// The sizes of `config` do not fit each other, or the storage is not empty or failed.
    pub fn create(config: LogConfig, storage: S) -> Result<(LogWriter<S>, Self), LogError> {
        let LogConfig { bytes_max, segment_bytes } = config;
        if segment_bytes == 0 || u32::try_from(segment_bytes).is_err() {
            return Err(LogError::SegmentBytes { segment_bytes });
        }
        if bytes_max / segment_bytes < 4 {
            return Err(LogError::BytesMax { bytes_max, segment_bytes });
        }
        let segments = storage.list().map_err(LogError::Storage)?.len();
        if segments > 0 {
            return Err(LogError::NotEmpty { segments });
        }
        let shared = Arc::new(Shared { index: Mutex::new(Index::new()) });
        let log = Self { shared: Arc::clone(&shared) };
        Ok((LogWriter::new(config, storage, shared), log))
    }

    /// The entry of exactly that time, if it is kept.
    ///
    /// # Errors
    /// The storage failed.
    pub fn entry_at(&self, at: Instant) -> Result<Option<Entry>, ReadError> {
        self.read(|index| {
            index.locate(index.at_or_after(at)).filter(|located| located.slot.at == at)
        })
    }

    /// The entry at that position; `None` if it has not been appended yet.
    ///
    /// # Errors
    /// The entry was dropped, or the storage failed.
    pub fn entry(&self, position: Position) -> Result<Option<Entry>, ReadError> {
        let mut oldest = Position(0);
        let found = self.read(|index| {
            oldest = index.first();
            index.locate(position)
        })?;
        match found {
            None if position < oldest => Err(ReadError::Expired { wanted: position, oldest }),
            found => Ok(found),
        }
    }

    /// The latest kept entry at or before that time.
    ///
    /// # Errors
    /// The storage failed.
    pub fn nearest_before(&self, at: Instant) -> Result<Option<Entry>, ReadError> {
        self.read(|index| {
            let after = index.at_or_after(at);
            if index.at(after) == Some(at) {
                return index.locate(after);
            }
            index.locate(Position(after.0.checked_sub(1)?))
        })
    }

    /// The earliest kept entry at or after that time.
    ///
    /// # Errors
    /// The storage failed.
    pub fn nearest_after(&self, at: Instant) -> Result<Option<Entry>, ReadError> {
        self.read(|index| index.locate(index.at_or_after(at)))
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
        self.read(|index| index.locate(Position(index.next().0.checked_sub(1)?)))
    }

    /// The entries whose times lie in `times`, oldest first, of those appended before this call.
    ///
    /// Each is sliced when its turn comes, so that a long range pins no more than the entries that are
    /// held; what the wrap overtakes meanwhile is told. An empty or reversed range has no entries.
    pub fn range(&self, times: impl RangeBounds<Instant>) -> Entries<S> {
        let start = match times.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => just_after(at),
            Bound::Unbounded => Instant::MIN,
        };
        // Times are whole nanoseconds, so every end is the exclusive end of some range; only what lies
        // at `Instant::MAX` itself needs the unbounded case.
        let end = match times.end_bound() {
            Bound::Included(&Instant::MAX) | Bound::Unbounded => None,
            Bound::Included(&at) => Some(just_after(at)),
            Bound::Excluded(&at) => Some(at),
        };
        let index = self.index();
        let (cursor, missing) = begin(&index, start);
        let until = end.map_or(index.next(), |at| index.at_or_after(at));
        drop(index);
        let reader = Reader::new(self.clone(), cursor, start, missing);
        Entries::new(reader, until, end)
    }

    /// A reader that starts with the first entry at or after `at` and goes on into the future.
    ///
    /// If entries of that time were dropped already, [`Reader::missing_at_start`] says so.
    pub fn reader_from(&self, at: Instant) -> Reader<S> {
        let (cursor, missing) = begin(&self.index(), at);
        Reader::new(self.clone(), cursor, at, missing)
    }

    /// A reader that starts at `position`, which may lie in the future; if it was dropped already, the
    /// first read says so.
    pub fn reader_at(&self, position: Position) -> Reader<S> {
        let index = self.index();
        let from = if position < index.first() { Instant::MIN } else { start_of(&index, position) };
        drop(index);
        Reader::new(self.clone(), position, from, None)
    }

    /// A reader that starts with the newest kept entry, or with the next to come if there is none.
    pub fn reader_newest(&self) -> Reader<S> {
        let index = self.index();
        let newest = Position(index.next().0.saturating_sub(1)).max(index.first());
        let from = start_of(&index, newest);
        drop(index);
        Reader::new(self.clone(), newest, from, None)
    }

    /// A reader of what is appended from now on.
    pub fn reader_next(&self) -> Reader<S> {
        let index = self.index();
        let (next, from) = (index.next(), start_of(&index, index.next()));
        drop(index);
        Reader::new(self.clone(), next, from, None)
    }

    /// The position that the next entry gets: one above the newest.
    pub fn end(&self) -> Position {
        self.index().next()
    }

    /// Time of the newest entry ever appended, kept or not.
    pub fn last_at(&self) -> Option<Instant> {
        self.index().last_at()
    }

    /// Bytes of all kept entries, meta and body.
    pub fn bytes(&self) -> u64 {
        self.index().bytes()
    }

    /// How many entries are kept.
    pub fn entries(&self) -> u64 {
        let index = self.index();
        index.next().0 - index.first().0
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

impl<G> Shared<G> {
    pub(crate) fn index(&self) -> MutexGuard<'_, Index<G>> {
        // Every change of the index is complete before anything in it can panic, so what a panicking
        // thread leaves behind is sound to go on with.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G: Segment> Located<G> {
    /// Slices meta and body, which share one pin.
    pub(crate) fn read(self) -> Result<Entry, ReadError> {
        let Self { position, slot, segment } = self;
        let Slot { at, start, meta_bytes, .. } = slot;
        let bytes = segment
            .slice(start as usize..slot.end())
            .map_err(|source| ReadError::Storage { position, source })?;
        let mut body = bytes;
        let meta = body.split_to(meta_bytes as usize);
        Ok(Entry { position, at, meta, body })
    }
}

/// Position of the first kept entry at or after `at`, and the span from `at` up to it if any entry of
/// that span was dropped.
fn begin<G: Segment>(index: &Index<G>, at: Instant) -> (Position, Option<(Instant, Instant)>) {
    let cursor = index.at_or_after(at);
    let missing = index.dropped_at().is_some_and(|dropped| dropped >= at);
    (cursor, missing.then(|| (at, start_of(index, cursor))))
}

/// The earliest time that the entry at `position` has or can get.
pub(crate) fn start_of<G: Segment>(index: &Index<G>, position: Position) -> Instant {
    match (index.at(position), index.last_at()) {
        (Some(at), _) => at,
        (None, Some(last)) => just_after(last),
        (None, None) => Instant::MIN,
    }
}

/// The next nanosecond.
pub(crate) fn just_after(at: Instant) -> Instant {
    at + Duration::from_nanos(1)
}

/// Why a log was not created.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A segment of no bytes, or of 4 GiB and more.
    #[error("a segment has 1 to {} bytes, not {segment_bytes}", u32::MAX)]
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

//! Where the bytes of a log are kept.

use std::{io, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_message::{Code, Instant, Position};

use crate::{
    entry::{Durability, SegmentId, Slot},
    format::{SLOT_BYTES, decode_slot},
};

/// The segments of one log: created empty, filled from the start, removed whole.
///
/// The log's writer owns its storage, so these methods take `&mut self` and need no lock; readers hold
/// [`Segment`]s. Any call may fail at any time: the log then keeps what it had. [`Memory`](crate::Memory)
/// keeps segments in memory regions, [`Files`](crate::Files) in mapped files; tests fail them on demand.
///
/// A segment is filled like this: [`write_at`](Storage::write_at) or [`buffer`](Storage::buffer) put bytes
/// above what is published, as often as needed; [`publish`](Storage::publish) makes them readable and
/// final; when no more fits, [`seal`](Storage::seal) ends its filling. One segment is filled at a time.
pub trait Storage: Send + 'static {
    /// A segment as its readers hold it.
    type Segment: Segment;

    /// The bytes of a segment that the storage takes for itself. Always the same for one storage.
    fn framing(&self) -> Framing {
        Framing::NONE
    }

    /// The remains of an earlier process, to be asked for once. A storage that outlives nothing has nothing.
    fn recover(&mut self) -> Recovered<Self::Segment> {
        Recovered { segments: Vec::new(), next: Position(0), last: None }
    }

    /// Takes a new, empty segment of `len` bytes, with an id above all before.
    ///
    /// # Errors
    /// There is no room for it.
    fn create(
        &mut self,
        len: usize,
        begin: Begin,
    ) -> Result<(SegmentId, Self::Segment), StorageError>;

    /// Gets ready what the next segment of `len` bytes needs, so that [`create`](Storage::create) finds room. The segment that is
    /// being filled is not touched.
    ///
    /// # Errors
    /// There is no room for it.
    fn secure(&mut self, _len: usize) -> Result<(), StorageError> {
        Ok(())
    }

    /// Takes a new, empty segment out of the room that the storage holds in reserve, and tells its length in bytes; nothing if
    /// there is no reserve.
    ///
    /// # Errors
    /// The medium failed.
    fn create_reserved(
        &mut self,
        _begin: Begin,
    ) -> Result<Option<(SegmentId, Self::Segment, usize)>, StorageError> {
        Ok(None)
    }

    /// Whether the oldest segment is to make room where the medium has none for a new one. If not, the new one is refused.
    fn gives_way(&self) -> bool {
        false
    }

    /// A segment that is to be dropped although it is not the oldest, if there is one.
    fn surplus(&self) -> Option<SegmentId> {
        None
    }

    /// Whether an entry costs more than a slice to be read, so that the newest is best handed to readers as it was given.
    fn hands_newest(&self) -> bool {
        false
    }

    /// Copies `bytes` to `offset`, above what is published.
    ///
    /// # Errors
    /// No such segment, not its bytes to write, or the medium failed. Nothing became readable.
    fn write_at(
        &mut self,
        segment: SegmentId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), StorageError>;

    /// The bytes of `range`, above what is published, to be filled in place.
    ///
    /// They hold whatever the segment's memory held before.
    ///
    /// # Errors
    /// As [`Storage::write_at`].
    fn buffer(
        &mut self,
        segment: SegmentId,
        range: Range<usize>,
    ) -> Result<&mut [u8], StorageError>;

    /// Gets ready for `range`, above what is published, to be written, so that writing it is quicker. A hint: a
    /// storage that has nothing to get ready, or cannot, does nothing.
    fn prepare(&mut self, _segment: SegmentId, _range: Range<usize>) {}

    /// Makes all bytes up to the end of `entry` readable and final; meta and body were written before.
    ///
    /// # Errors
    /// As [`Storage::write_at`].
    fn publish(&mut self, segment: SegmentId, entry: &Written) -> Result<(), StorageError>;

    /// Whether what is written to the segment from now on is lost, so that another one is to be begun.
    fn is_broken(&self, _segment: SegmentId) -> bool {
        false
    }

    /// Ends the filling of a segment and gives back the room above what is published.
    ///
    /// # Errors
    /// No such segment, or the medium failed; the segment then stays as it was.
    fn seal(&mut self, segment: SegmentId) -> Result<(), StorageError>;

    /// Asks that the published bytes in `range` outlive the process, and returns below which offset they
    /// now do: 0 in a storage that outlives nothing.
    ///
    /// # Errors
    /// No such segment, or the medium failed: then nothing of the range is to be relied on.
    fn flush(&mut self, segment: SegmentId, range: Range<usize>) -> Result<usize, StorageError>;

    /// Whether the segment's slots can be read [from itself](Segment::slots), so that the log need not hold them.
    fn is_stored(&self, _segment: SegmentId) -> bool {
        false
    }

    /// Whether what is appended now can get as durable as that.
    ///
    /// # Errors
    /// The storage cannot, or cannot any more.
    fn admit(&self, asked: Durability) -> Result<(), StorageError> {
        match asked {
            Durability::Memory => Ok(()),
            _ => Err(StorageError::Durability { asked, given: Durability::Memory }),
        }
    }

    /// Asks that all entries before `end` survive a loss of power soon; the last of them has so many bytes.
    fn request(&mut self, _end: Position, _bytes: u64) {}

    /// Every segment there is, oldest first.
    ///
    /// # Errors
    /// The medium failed.
    fn list(&self) -> Result<Vec<SegmentInfo>, StorageError>;

    /// Gives a segment up. Its room is free as soon as no reader pins it.
    ///
    /// # Errors
    /// No such segment, or the medium failed; the segment then stays.
    fn remove(&mut self, segment: SegmentId) -> Result<(), StorageError>;

    /// Bytes that all segments take now, including removed ones that readers still pin.
    fn bytes_held(&mut self) -> u64;

    /// Bytes that removing this segment would free at once: 0 while a reader pins it.
    fn bytes_removable(&self, segment: SegmentId) -> u64;
}

/// A segment as its readers hold it: shared and cheap to clone. Every clone pins the segment.
pub trait Segment: Clone + Send + Sync + 'static {
    /// The published bytes in `range`, pinning the segment until dropped.
    ///
    /// # Errors
    /// The range is not published, or the medium failed.
    fn slice(&self, range: Range<usize>) -> Result<Bytes, StorageError>;

    /// Meta and body of the entry at `position`, in one piece.
    ///
    /// # Errors
    /// As [`Segment::slice`], or the bytes are not those that were appended.
    fn read(&self, _position: Position, slot: &Slot) -> Result<Bytes, StorageError> {
        self.slice(slot.start as usize..slot.end())
    }

    /// The slots of a segment that [is stored](Storage::is_stored); else none.
    fn slots(&self) -> StoredSlots {
        StoredSlots(Bytes::new())
    }
}

/// Bytes that a storage takes for itself in every segment. Offsets that the log names leave room for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Before the first entry.
    pub segment_head: usize,
    /// After all else.
    pub segment_tail: usize,
    /// Before the meta of each entry.
    pub entry_head: usize,
    /// For each entry, anywhere. 0 says that the log holds the index of the segment for as long as there is the segment.
    pub entry_slot: usize,
    /// Bytes after an entry begin at a multiple of this.
    pub entry_align: usize,
}

impl Framing {
    /// Takes nothing.
    pub const NONE: Self =
        Self { segment_head: 0, segment_tail: 0, entry_head: 0, entry_slot: 0, entry_align: 1 };

    /// The largest entry of a segment of `segment_bytes`, meta and body together.
    pub fn entry_bytes_max(&self, segment_bytes: usize) -> usize {
        let around = self.segment_head + self.segment_tail + self.entry_head + self.entry_slot;
        segment_bytes.saturating_sub(around + self.entry_align - 1)
    }

    /// Whether the index of a segment is held by the log as long as there is the segment, and counts against its limit. Else only few
    /// segments have theirs in memory, and each has slots for all the entries that fit it: memory that is not written is not taken.
    pub(crate) fn log_keeps_slots(&self) -> bool {
        self.entry_slot == 0
    }

    /// The most entries of a segment of `segment_bytes`, if they are empty.
    pub(crate) fn entries_max(&self, segment_bytes: usize) -> usize {
        let room = segment_bytes.saturating_sub(self.segment_head + self.segment_tail);
        room / (self.entry_head + self.entry_slot).max(1)
    }
}

/// Where a new segment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Position of its first entry.
    pub position: Position,
    /// Time of the newest entry before it.
    pub last: Option<Instant>,
    /// The oldest position that the log keeps.
    pub kept: Position,
}

/// An entry whose meta and body were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its position.
    pub position: Position,
    /// Its time and place.
    pub slot: Slot,
}

/// The state that a storage has from an earlier process.
pub struct Recovered<G> {
    /// The segments, oldest first, none of them empty, their positions and times increasing.
    pub segments: Vec<RecoveredSegment<G>>,
    /// The position that the next entry gets: after all that was ever appended, as far as is known.
    pub next: Position,
    /// Time of the newest entry ever appended, as far as is known.
    pub last: Option<Instant>,
}

/// One segment of an earlier process.
pub struct RecoveredSegment<G> {
    /// Its name.
    pub id: SegmentId,
    /// Its readers' end.
    pub segment: G,
    /// Position of its first entry.
    pub first: Position,
    /// How many positions it has.
    pub count: u64,
    /// Bytes of its entries, meta and body.
    pub bytes: u64,
    /// Offset after the last of them.
    pub end: usize,
    /// Times of the first and the last entry.
    pub times: (Instant, Instant),
    /// Its slots, if they [cannot be read](Storage::is_stored) from itself.
    pub slots: Option<Vec<Slot>>,
}

/// The slots of a segment as its file has them, 24 bytes each.
#[derive(Clone, Debug)]
pub struct StoredSlots(pub(crate) Bytes);

impl StoredSlots {
    /// The slot of that number within its segment.
    pub(crate) fn get(&self, number: usize) -> Option<Slot> {
        self.0.as_chunks::<SLOT_BYTES>().0.get(number).map(decode_slot)
    }

    /// How many slots have times before `at`.
    pub(crate) fn before(&self, at: Instant) -> usize {
        self.0.as_chunks().0.partition_point(|slot| decode_slot(slot).at < at)
    }
}

/// A storage's description of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its name.
    pub id: SegmentId,
    /// Its size in bytes.
    pub len: usize,
    /// How many bytes from its start are published.
    pub published: usize,
}

/// Why a storage did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// There is no segment of that id.
    #[error("there is no segment {segment} to {operation}")]
    Missing {
        /// The segment named.
        segment: SegmentId,
        /// The operation that failed.
        operation: &'static str,
    },
    /// The segment exists but refused, or its medium failed.
    #[error("{operation} of segment {segment} failed")]
    Segment {
        /// The segment named.
        segment: SegmentId,
        /// The operation that failed.
        operation: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A new segment could not be had.
    #[error("a new segment of {bytes} bytes could not be created")]
    Create {
        /// Its size.
        bytes: usize,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The disk has no room for a new segment. Existing entries can still be read.
    #[error(
        "the disk has no room for a new segment of {bytes} bytes; free some, or allow the log less"
    )]
    Full {
        /// The segment's size.
        bytes: usize,
        /// The disk's error.
        #[source]
        source: io::Error,
    },
    /// The entry is not what was appended.
    #[error("the entry at position {position} in segment {segment} is damaged")]
    Damaged {
        /// The segment named.
        segment: SegmentId,
        /// The position of the entry.
        position: Position,
    },
    /// The entry was changed on purpose: its checksum holds, its seal does not.
    #[error("the entry at position {position} in sealed segment {segment} was tampered with")]
    Tampered {
        /// The segment named.
        segment: SegmentId,
        /// The position of the entry.
        position: Position,
    },
    /// The storage keeps nothing that long.
    #[error("the storage has durability `{given:?}`, not `{asked:?}`")]
    Durability {
        /// The requested durability.
        asked: Durability,
        /// The most that can be had.
        given: Durability,
    },
    /// The disk failed to make entries durable, and since then none are; reading still works.
    #[error(
        "the disk has failed to keep entries before, and none are durable since; see to the disk, \
         then start again"
    )]
    NotDurable {
        /// The first failure.
        #[source]
        first: Arc<StorageError>,
    },
    /// The disk refuses writes for now; new entries are kept in memory.
    #[error("the disk refuses writes for now, and entries are kept in memory only")]
    Aside {
        /// The last error of the disk.
        #[source]
        cause: Arc<StorageError>,
    },
    /// The disk held an append up.
    #[error("the disk held an append up for {took:?}")]
    Slow {
        /// How long.
        took: Duration,
    },
    /// Files could not be made durable.
    #[error("appended entries could not be made durable")]
    Sync {
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The flusher has stopped.
    #[error("the flusher of the log has ended")]
    Stopped,
    /// The segments could not be listed.
    #[error("the segments could not be listed")]
    List {
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl StorageError {
    /// The stable code of this error.
    pub fn code(&self) -> Code {
        match self {
            Self::Full { .. } => Code::STORAGE_FULL,
            Self::Aside { cause } => cause.code(),
            _ => Code::STORAGE_FAILED,
        }
    }
}

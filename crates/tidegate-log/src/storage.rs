//! Where the bytes of a log are kept.

use std::{fmt, io, ops::Range};

use bytes::Bytes;

/// The segments of one log: created empty, filled from the start, removed whole.
///
/// The log's writer owns its storage, so these methods take `&mut self` and need no lock; readers hold
/// [`Segment`]s. Any call may fail at any time: the log then keeps what it had. [`Memory`](crate::Memory)
/// keeps segments in memory regions; tests fail them on demand.
///
/// A segment is filled like this: [`write_at`](Storage::write_at) or [`buffer`](Storage::buffer) put bytes
/// above what is published, as often as needed; [`publish`](Storage::publish) makes them readable and
/// final; when no more fits, [`seal`](Storage::seal) ends its filling. One segment is filled at a time.
pub trait Storage: Send + 'static {
    /// A segment as its readers hold it.
    type Segment: Segment;

    /// Takes a new, empty segment of `len` bytes, with an id above all before.
    ///
    /// # Errors
    /// There is no room for it.
    fn create(&mut self, len: usize) -> Result<(SegmentId, Self::Segment), StorageError>;

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

    /// Makes the bytes below `end` readable and final.
    ///
    /// # Errors
    /// As [`Storage::write_at`].
    fn publish(&mut self, segment: SegmentId, end: usize) -> Result<(), StorageError>;

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
}

/// Names a segment of one storage; later segments have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a storage says of one segment.
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
        /// What was to be done with it.
        operation: &'static str,
    },
    /// The segment exists but refused, or its medium failed.
    #[error("{operation} of segment {segment} failed")]
    Segment {
        /// The segment named.
        segment: SegmentId,
        /// What was to be done with it.
        operation: &'static str,
        /// What it answered.
        #[source]
        source: io::Error,
    },
    /// A new segment could not be had.
    #[error("a new segment of {bytes} bytes could not be had")]
    Create {
        /// Its size.
        bytes: usize,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The segments could not be listed.
    #[error("the segments could not be listed")]
    List {
        /// Why not.
        #[source]
        source: io::Error,
    },
}

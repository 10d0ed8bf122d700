//! An entry of a log, where it lies, and what it survives.

use std::fmt;

use bytes::Bytes;
pub use tidegate_message::words::Durability;
use tidegate_message::{Instant, Position};

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
    /// The writer's metadata, kept apart from the body.
    pub meta: Bytes,
    /// The message itself, in one piece.
    pub body: Bytes,
}

/// Time and place of one entry within its segment: meta first, then the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its time.
    pub at: Instant,
    /// Offset of its meta; 0 in a storage with [framing](crate::Framing) says that the entry is lost.
    pub start: u32,
    /// Bytes of its meta.
    pub meta_bytes: u32,
    /// Bytes of its body.
    pub body_bytes: u32,
}

impl Slot {
    pub(crate) const BYTES: usize = size_of::<Self>();

    /// Offset after the entry.
    pub fn end(&self) -> usize {
        self.start as usize + self.bytes()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.meta_bytes as usize + self.body_bytes as usize
    }
}

/// Names a segment of one storage; later segments have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

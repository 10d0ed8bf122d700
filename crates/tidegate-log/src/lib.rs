//! Append-only circular logs of timed entries, read by position or time.
//!
//! ```text
//!              LogWriter ── append(at, meta, body) ──┐ one copy
//!                                                    ▼
//!   dropped   ┌─ segment ─┐┌─ segment ─┐┌─ segment ─────────┐
//!  ◀───────── │ e4 e5 e6  ││ e7 e8     ││ e9 e10 ░░░░░░░░░░ │    Storage: bytes
//!             └───────────┘└───────────┘└───────────────────┘
//!   [at, start, lengths] of each entry, by position                Index: under one short lock
//!                │                 │            │
//!             Entry            Reader        Reader (caught up)
//! ```
//!
//! One [`LogWriter`] appends to the newest segment; when that is full it starts another and, at the
//! limit, drops the oldest whole. A [`Log`] is the shared end: it finds entries by position or time in
//! O(log n) and hands out [`Reader`]s that go from any point of the past on into the future. Entries are
//! read as slices of the segment, never copies, and keep that segment's memory until they are dropped.
//!
//! **Locking.** The index is one mutex, because its critical sections are a few hundred nanoseconds of searching and counting: no copy, no drop of a segment and
//! no system call happens under it, and no allocation but for the list of segments while that still grows. The writer copies before it takes the lock and drops
//! after it has let go, so it is delayed at worst by one such search, however slow a reader is with what it found. A lock-free index would only save the case
//! that the scheduler stops a reader inside those nanoseconds.
//!
//! **Where the bytes are.** In a [`Storage`]: [`Memory`] outlives nothing; [`Files`] are mapped segment files that outlive the process
//! and, once a [`Flusher`] on a thread of its own has synced them, a loss of power. How long an entry is to last is named where it is
//! appended ([`Durability`]), and [`Commits`] tells when it does. The segments of files keep their own index, so that memory does not
//! grow with the log, and opening takes time by the number of segments.
//!
//! A [`Store`] is either, and files of it have memory to fall back on where live data must not wait for a disk.
//!
//! **Journals.** A [`Journal`] is a log whose entries go when they are released and not before, so that it can be full; its records
//! may be longer than a segment.
//!
//! **Encryption.** [`NodeKeys`] seal the segments of files: content is sealed before it gets to the map, so that nothing of it is ever
//! on the disk in clear text, and opened for each reader who reads it, into memory of its own.
//!
//! **The cost of one append.** One copy of meta and body into the segment, one index slot of 24 bytes;
//! no allocation once the log has wrapped. Reading an entry takes one small allocation (the count of its
//! slices).
//!
//! Always true:
//! - times and positions strictly increase from each entry to the next; no position is given twice that was said to be durable, or
//!   whose process has merely ended;
//! - the kept entries are one contiguous run of positions, as long as no file of it is lost or damaged, which readers
//!   learn;
//! - storage and index together hold at most [`LogConfig::bytes_max`], entries pinned by readers
//!   included; an idle log in memory holds nothing; files that are ready for the next segment or tell the next position,
//!   three at most, come on top;
//! - an entry that was seen once never changes while anyone holds it, unless another program changes its file;
//! - after a failure of the storage, all that was appended before can still be read.

mod capture;
mod commit;
mod config;
mod disk;
mod entry;
mod files;
mod flusher;
mod format;
mod index;
mod journal;
mod key_file;
mod log;
mod memory;
mod reader;
mod recovery;
mod scan;
mod seal;
mod segment;
mod segment_files;
pub mod simulated;
mod storage;
mod store;
mod survey;
mod writer;

pub use capture::{
    CaptureAnchor, CaptureClock, CaptureStamp, Continuity, TimestampError, TimestampLimits,
};
pub use commit::{CommitConfig, CommitCounts, Commits, GroupCommit, NotDurable};
pub use config::LogConfig;
pub use disk::{Disk, DiskEntry, DiskFile, DiskMap};
pub use entry::{Durability, Entry, SegmentId, Slot};
pub use files::{Files, FilesConfig, Opened};
pub use flusher::Flusher;
pub use journal::{Journal, JournalConfig, OpenJournalError, OpenedJournal};
pub use key_file::{KeyError, KeyFile, PassphraseCost, PassphraseKey};
pub use log::{Log, LogError, Overtaken, ReadError};
pub use memory::{Memory, MemorySegment};
pub use reader::{Entries, Reader};
pub use recovery::{Damage, Finding, OpenError, Report};
pub use seal::{KeyId, NodeKey, NodeKeys};
pub use segment::FileSegment;
pub use segment_files::is_reserve;
pub use storage::{
    Begin, Framing, Recovered, RecoveredSegment, Segment, SegmentInfo, Storage, StorageError,
    StoredSlots, Written,
};
pub use store::{ASIDE_BYTES_MAX, Health, HealthCounts, Store, StoreSegment};
pub use survey::{SegmentState, Survey, segment_named, survey};
pub use writer::{AppendError, LogWriter, Reservation};

//! How an engine reads the frames that were captured: from a log that its caller has.

use bytes::Bytes;
use tidegate_message::{FrameSize, Instant};

/// A captured frame, as a log keeps it.
#[derive(Clone, Debug)]
pub struct LoggedFrame {
    /// When it was captured, which names it.
    pub at: Instant,
    /// Its pixels. A frame whose log does not know them is not sent.
    pub size: Option<FrameSize>,
    /// Its pixels as it is seen, turned as its EXIF data says; none if that is not known.
    pub seen: Option<FrameSize>,
    /// The JPEG image; as long as it is held, so is its memory in the log.
    pub body: Bytes,
}

/// The log of a camera's frames, in the order of their capture. Where it cannot be read it reports that itself, to its operator.
pub trait FrameLog {
    /// Its readers.
    type Reader: FrameReader;

    /// A reader of the frames that are captured from now on.
    fn reader_next(&self) -> Self::Reader;

    /// A reader that begins with the first kept frame captured at `at` or later.
    fn reader_from(&self, at: Instant) -> Self::Reader;

    /// Capture time of the oldest kept frame; none if there is none.
    fn first_at(&self) -> Option<Instant>;

    /// Capture time of the newest frame, kept or not; none before the first.
    fn last_at(&self) -> Option<Instant>;

    /// The image captured at `at`, as it was captured; none if it is not kept or cannot be read.
    fn original(&self, at: Instant) -> Option<Bytes>;
}

/// A place in a log of frames.
pub trait FrameReader {
    /// The next frame; `None` if all were read that have been captured.
    ///
    /// # Errors
    /// [`Unread`].
    fn next(&mut self) -> Result<Option<LoggedFrame>, Unread>;

    /// The span of time in which this reader was to begin and whose frames are gone, in part or all: from its start (included) to the
    /// first kept frame (excluded).
    fn missing_at_start(&self) -> Option<(Instant, Instant)>;

    /// How many kept frames it has not read.
    fn behind(&self) -> u64;
}

/// Why a reader gave no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The log overwrote frames before they were read; the reader continues with the oldest kept one.
    #[error(
        "{count} frames captured from {first} up to {until} were overwritten before they were read"
    )]
    Overwritten {
        /// Capture time of the first, at the earliest.
        first: Instant,
        /// Capture time of the oldest kept frame.
        until: Instant,
        /// How many.
        count: u64,
    },
    /// A frame is kept and can never be read; the reader continues behind it.
    #[error("a frame is damaged and cannot be read")]
    Damaged {
        /// Its capture time, if that is known.
        at: Option<Instant>,
    },
    /// The storage does not give the frame now; the next call tries again.
    #[error("the storage gives no frame now")]
    Unavailable,
}

//! Capture: frames from a source, stamped and appended to the camera's log.
//!
//! Always true: capture times increase strictly, whatever the wall clock does; a frame that cannot be
//! carried is refused with its reason, counted, and changes nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidegate_client::ApiError;
use tidegate_frame::knob::{FrameError, FrameLimits, inspect};
use tidegate_log::{
    AppendError, CaptureAnchor, CaptureClock, Entry, Log, LogWriter, TimestampError,
    TimestampLimits,
};
use tidegate_message::{Code, FrameSize, Instant};
use tidegate_sys::clock::{boot_id, monotonic_nanos};
use tokio::sync::watch;

use crate::clock;

/// What a capture has counted and last seen; shared with whoever reports.
#[derive(Debug, Default)]
pub(super) struct CaptureCounts {
    pub(super) captured: AtomicU64,
    pub(super) refused: AtomicU64,
    bytes: AtomicU64,
    size: AtomicU64,
}

/// The writing side of a camera's log.
pub(super) struct Capture {
    writer: LogWriter,
    limits: FrameLimits,
    clock: CaptureClock,
    counts: Arc<CaptureCounts>,
    changed: watch::Sender<u64>,
}

/// Why a frame was not captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It is no frame that can be carried.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The log refused it.
    #[error("the camera's log refused the frame")]
    Log(#[from] AppendError),
    /// Its capture time cannot be one.
    #[error(transparent)]
    Timestamp(#[from] TimestampError),
}

impl CaptureError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Frame(FrameError::TooLarge { .. }) => Code::FRAME_TOO_LARGE,
            Self::Frame(_) => Code::FRAME_INVALID,
            Self::Log(error) => error.code(),
            Self::Timestamp(error) => error.code(),
        }
    }
}

impl From<CaptureError> for ApiError {
    fn from(error: CaptureError) -> Self {
        let code = error.code();
        let message = error.to_string();
        match std::error::Error::source(&error) {
            Some(source) => Self::new(code, message).caused_by(source.to_string()),
            None => Self::new(code, message),
        }
    }
}

impl Capture {
    pub(super) fn new(
        writer: LogWriter,
        limits: FrameLimits,
        future_max: Duration,
        counts: Arc<CaptureCounts>,
    ) -> (Self, watch::Receiver<u64>) {
        let (changed, receiver) = watch::channel(0);
        let monotonic_nanos = monotonic_nanos();
        let anchor = CaptureAnchor {
            wall: clock::at(monotonic_nanos),
            monotonic_nanos,
            // Without a boot id, the readings of the two clocks tell this start from others.
            boot_id: boot_id().unwrap_or_default(),
        };
        let timestamps = TimestampLimits { future_max, ..TimestampLimits::default() };
        let clock = CaptureClock::with_limits(anchor, timestamps);
        (Self { writer, limits, clock, counts, changed }, receiver)
    }

    /// Names this start of the camera's clock.
    pub(super) fn epoch(&self) -> u64 {
        self.clock.epoch()
    }

    /// Appends a frame captured at `at`, or now. Returns its capture time, which names it.
    ///
    /// # Errors
    /// [`CaptureError`]; the frame is then counted as refused.
    pub(super) fn frame(
        &mut self,
        at: Option<Instant>,
        jpeg: &Bytes,
    ) -> Result<Instant, CaptureError> {
        let appended = self.append(at, jpeg);
        let counted = if appended.is_ok() { &self.counts.captured } else { &self.counts.refused };
        counted.fetch_add(1, Ordering::Relaxed);
        if appended.is_ok() {
            self.changed.send_modify(|count| *count += 1);
        }
        appended
    }

    /// Gets the log ready for the next frame, when there is time.
    pub(super) fn prepare(&mut self) {
        let last = self.counts.bytes.load(Ordering::Relaxed);
        self.writer.prepare(usize::try_from(last + last / 4).unwrap_or(0));
    }

    fn append(&mut self, at: Option<Instant>, jpeg: &Bytes) -> Result<Instant, CaptureError> {
        let info = inspect(jpeg, &self.limits)?;
        let at = match at {
            Some(claimed) => self.clock.admit(claimed, monotonic_nanos())?,
            None => self.clock.at(monotonic_nanos()),
        };
        self.writer.append(at, &encode_size(info.size), jpeg)?;
        self.counts.bytes.store(jpeg.len() as u64, Ordering::Relaxed);
        let packed = u64::from(u32::from_le_bytes(encode_size(info.size)));
        self.counts.size.store(packed, Ordering::Relaxed);
        Ok(at)
    }
}

impl CaptureCounts {
    /// Size of the newest frame; none before the first.
    pub(super) fn size(&self) -> Option<FrameSize> {
        let packed = u32::try_from(self.size.load(Ordering::Relaxed)).unwrap_or(0);
        (packed != 0).then(|| decode_size(packed.to_le_bytes()))
    }
}

pub(super) fn encode_size(size: FrameSize) -> [u8; 4] {
    let ([a, b], [c, d]) = (size.width.to_le_bytes(), size.height.to_le_bytes());
    [a, b, c, d]
}

fn decode_size([a, b, c, d]: [u8; 4]) -> FrameSize {
    FrameSize { width: u16::from_le_bytes([a, b]), height: u16::from_le_bytes([c, d]) }
}

/// Width and height of a frame in a camera's log, from its meta part.
pub(super) fn size_of(entry: &Entry) -> Option<FrameSize> {
    entry.meta[..].try_into().ok().map(decode_size)
}

/// The log's frame rate over its newest entries, 0 if there are fewer than two.
pub(super) fn frames_per_second(log: &Log) -> f64 {
    const FRAMES: u64 = 16;
    let end = log.end();
    let first = tidegate_message::Position(end.0.saturating_sub(FRAMES));
    let oldest = log.entry(first).ok().flatten();
    let (Some(oldest), Some(newest)) = (oldest, log.last_at()) else { return 0.0 };
    let seconds = newest.since(oldest.at).as_secs_f64();
    if seconds > 0.0 { (end.0 - first.0 - 1) as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use tidegate_log::{LogConfig, Memory};

    use super::*;

    fn capture() -> (Capture, Log, Arc<CaptureCounts>) {
        let (writer, log) = Log::create(LogConfig::bounded(1 << 20), Memory::new()).unwrap();
        let counts = Arc::new(CaptureCounts::default());
        let second = Duration::from_secs(1);
        let (capture, _) = Capture::new(writer, FrameLimits::default(), second, counts.clone());
        (capture, log, counts)
    }

    #[test]
    fn what_is_no_frame_is_refused_and_counted() {
        let (mut capture, log, counts) = capture();
        let error = capture.frame(None, &Bytes::from_static(b"not a picture")).unwrap_err();
        assert_eq!(error.code(), Code::FRAME_INVALID);
        assert_eq!(counts.refused.load(Ordering::Relaxed), 1);
        assert_eq!(log.entries(), 0);
    }

    #[test]
    fn sizes_survive_the_log() {
        let size = FrameSize { width: 1920, height: 1080 };
        assert_eq!(decode_size(encode_size(size)), size);
    }
}

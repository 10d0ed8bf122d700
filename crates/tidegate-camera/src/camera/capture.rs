//! Capture: frames from a source, stamped and appended to the camera's log.
//!
//! Each entry has, next to the size of its frame, the start of the clock that it was captured in. A process that finds the log
//! of an earlier one continues that one's epoch if no capture time can have been later than its own are: within one boot of the
//! machine, and unless the clock was set back. To an edge node it is then the same camera behind a link that broke, and what was
//! captured before fills the gap.
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
use tidegate_api::ApiError;
use tidegate_frame::knob::{FrameError, FrameInfo, FrameLimits, inspect};
use tidegate_log::{
    AppendError, CaptureAnchor, CaptureClock, CaptureStamp, Entry, TimestampError, TimestampLimits,
};
use tidegate_message::{Code, FrameSize, Instant};
use tidegate_process::clock;
use tidegate_sys::clock::{boot_id, monotonic_nanos};
use tokio::sync::watch;

use crate::frame_log::{FrameWriter, Log};

/// The counts and the last state of a capture; shared with its reporters.
#[derive(Debug, Default)]
pub(super) struct CaptureCounts {
    pub(super) captured: AtomicU64,
    pub(super) refused: AtomicU64,
    bytes: AtomicU64,
    size: AtomicU64,
}

/// The writing side of a camera's log.
pub(super) struct Capture {
    writer: FrameWriter,
    limits: FrameLimits,
    clock: CaptureClock,
    start: Start,
    counts: Arc<CaptureCounts>,
    changed: watch::Sender<u64>,
}

/// When a frame was captured.
#[derive(Clone, Copy, Debug)]
enum When {
    /// At a time given by the caller.
    At(Instant),
    /// So long ago, by our own clock.
    Ago(Duration),
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
    /// Captures to a log, whose newest entry was `last`.
    pub(super) fn new(
        writer: FrameWriter,
        last: Option<&Entry>,
        limits: FrameLimits,
        future_max: Duration,
        counts: Arc<CaptureCounts>,
    ) -> (Self, watch::Receiver<u64>) {
        let (changed, receiver) = watch::channel(0);
        let monotonic_nanos = monotonic_nanos();
        let wall = clock::at(monotonic_nanos);
        // Without a boot id, the readings of the two clocks tell this start from others.
        let boot_id = boot_id().unwrap_or_default();
        let anchor = CaptureAnchor { wall, monotonic_nanos, boot_id };
        let timestamps = TimestampLimits { future_max, ..TimestampLimits::default() };
        let offset_nanos = wall.as_nanos().saturating_sub(monotonic_nanos);
        let before = last.and_then(|last| Some((last.at, Start::of(last)?)));
        let before =
            before.filter(|(at, start)| *at < wall && start.goes_on(boot_id, offset_nanos));
        let (clock, start) = match before {
            Some((at, Start { epoch, began, .. })) => {
                let stamp = CaptureStamp { epoch, at };
                let clock = CaptureClock::continuing(anchor, timestamps, stamp);
                (clock, Start { epoch, boot_id, offset_nanos, began })
            }
            None => {
                let clock = CaptureClock::with_limits(anchor, timestamps);
                let epoch = clock.epoch();
                (clock, Start { epoch, boot_id, offset_nanos, began: wall })
            }
        };
        (Self { writer, limits, clock, start, counts, changed }, receiver)
    }

    /// Names this start of the camera's clock.
    pub(super) fn epoch(&self) -> u64 {
        self.clock.epoch()
    }

    /// No frame of this epoch was captured earlier.
    pub(super) fn began(&self) -> Instant {
        self.start.began
    }

    /// Appends a frame captured at `at`, or now. Returns its capture time, which names it, once the log has it; its readers have it
    /// before.
    ///
    /// # Errors
    /// [`CaptureError`]; the frame is then counted as refused, unless its readers had it and the log could not keep it.
    pub(super) fn frame(
        &mut self,
        at: Option<Instant>,
        jpeg: &Bytes,
    ) -> Result<Instant, CaptureError> {
        let at = self.offer(at.map_or(When::Ago(Duration::ZERO), When::At), jpeg)?;
        self.writer.store()?;
        Ok(at)
    }

    /// As [`Capture::frame`], for a frame that was captured `age` ago; the log stores it asynchronously, on another
    /// thread.
    ///
    /// # Errors
    /// As [`Capture::frame`].
    pub(super) fn frame_beside(
        &mut self,
        age: Duration,
        jpeg: &Bytes,
    ) -> Result<Instant, CaptureError> {
        let at = self.offer(When::Ago(age), jpeg)?;
        self.writer.store_beside();
        Ok(at)
    }

    fn offer(&mut self, when: When, jpeg: &Bytes) -> Result<Instant, CaptureError> {
        let offered = self.stamp_and_offer(when, jpeg);
        let counted = if offered.is_ok() { &self.counts.captured } else { &self.counts.refused };
        counted.fetch_add(1, Ordering::Relaxed);
        if offered.is_ok() {
            self.changed.send_modify(|count| *count += 1);
        }
        offered
    }

    /// How many frames were taken.
    pub(super) fn captured(&self) -> u64 {
        self.counts.captured.load(Ordering::Relaxed)
    }

    /// Whether its log is in files.
    pub(super) fn is_in_files(&self) -> bool {
        self.writer.is_in_files()
    }

    /// Gets the log ready for the next frame, when there is time. Returns false if it has to be tried again.
    pub(super) fn prepare(&mut self) -> bool {
        let last = self.counts.bytes.load(Ordering::Relaxed);
        self.writer.prepare(usize::try_from(last + last / 4).unwrap_or(0))
    }

    fn stamp_and_offer(&mut self, when: When, jpeg: &Bytes) -> Result<Instant, CaptureError> {
        let info = inspect(jpeg, &self.limits)?;
        // Our own sources put one there. A publisher whose frame has none has most likely lost the rest of it on the way.
        if !info.ended {
            return Err(FrameError::NoEnd.into());
        }
        let at = match when {
            When::At(claimed) => self.clock.admit(claimed, monotonic_nanos())?,
            When::Ago(age) => {
                let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
                self.clock.at(monotonic_nanos().saturating_sub(age))
            }
        };
        self.writer.offer(at, &encode(&info, &self.start), jpeg)?;
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

/// Which start of a camera's clock a frame was captured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    /// Names the clock.
    epoch: u64,
    /// The kernel's id of its boot; all zero if there is none.
    boot_id: [u8; 16],
    /// Wall clock less monotonic clock, when the process began.
    offset_nanos: i64,
    /// When the epoch began.
    began: Instant,
}

/// The difference of two readings of an offset that has not changed. Less than a process takes to start again.
const OFFSET_JITTER_NANOS: i64 = 5_000_000;
const SIZE_BYTES: usize = 4;
const START_END: usize = SIZE_BYTES + 8 + 16 + 8 + 8;
const META_BYTES: usize = START_END + 1;

impl Start {
    /// Whether all capture times of a process that begins now, in that boot and with that offset, are later than all of this start.
    fn goes_on(&self, boot_id: [u8; 16], offset_nanos: i64) -> bool {
        let is_known = boot_id != [0; 16];
        let least = self.offset_nanos.saturating_sub(OFFSET_JITTER_NANOS);
        is_known && boot_id == self.boot_id && offset_nanos >= least
    }

    fn of(entry: &Entry) -> Option<Self> {
        let meta: &[u8; START_END] = entry.meta.first_chunk()?;
        let (epoch, rest) = meta[SIZE_BYTES..].split_first_chunk()?;
        let (&boot_id, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        Some(Self {
            epoch: u64::from_le_bytes(*epoch),
            boot_id,
            offset_nanos: i64::from_le_bytes(*offset),
            began: Instant::from_nanos(i64::from_le_bytes(*rest.first_chunk()?)),
        })
    }
}

/// The meta part of an entry of a camera's log: width, height (2 bytes each), epoch (8), boot id (16), offset of the clocks (8), begin of
/// the epoch (8) and whether it is seen after a quarter turn (1), all little endian.
fn encode(info: &FrameInfo, start: &Start) -> [u8; META_BYTES] {
    let mut meta = [0; META_BYTES];
    let is_turned = info.seen_size() != info.size;
    let parts: [&[u8]; 6] = [
        &encode_size(info.size),
        &start.epoch.to_le_bytes(),
        &start.boot_id,
        &start.offset_nanos.to_le_bytes(),
        &start.began.as_nanos().to_le_bytes(),
        &[u8::from(is_turned)],
    ];
    let mut rest = &mut meta[..];
    for part in parts {
        let (room, left) = rest.split_at_mut(part.len());
        room.copy_from_slice(part);
        rest = left;
    }
    meta
}

pub(super) fn encode_size(size: FrameSize) -> [u8; SIZE_BYTES] {
    let ([a, b], [c, d]) = (size.width.to_le_bytes(), size.height.to_le_bytes());
    [a, b, c, d]
}

fn decode_size([a, b, c, d]: [u8; SIZE_BYTES]) -> FrameSize {
    FrameSize { width: u16::from_le_bytes([a, b]), height: u16::from_le_bytes([c, d]) }
}

/// Width and height of a frame in a camera's log, from its meta part.
pub(super) fn size_of(entry: &Entry) -> Option<FrameSize> {
    entry.meta.first_chunk().copied().map(decode_size)
}

/// Width and height of a frame in a camera's log as it is seen; none of an entry that an earlier version wrote, which does not say it.
pub(super) fn seen_size_of(entry: &Entry) -> Option<FrameSize> {
    let size = size_of(entry)?;
    entry.meta.get(START_END).map(|&turned| if turned == 0 { size } else { size.turned() })
}

/// The log's frame rate over its newest entries, 0 if there are fewer than two.
pub(super) fn frames_per_second(log: &Log) -> f64 {
    const FRAMES: u64 = 16;
    let end = log.end();
    let first = tidegate_message::Position(end.0.saturating_sub(FRAMES));
    let (Some(oldest), Some(newest)) = (log.time_of(first), log.last_at()) else { return 0.0 };
    let seconds = newest.since(oldest).as_secs_f64();
    if seconds > 0.0 { (end.0 - first.0 - 1) as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use tidegate_frame::knob::Subsampling;
    use tidegate_jpeg::Orientation;
    use tidegate_log::LogConfig;

    use super::*;
    use crate::frame_log::{FrameLog, LogName};

    fn capture() -> (Capture, Log, Arc<CaptureCounts>) {
        let name = LogName::Camera("cam1".parse().unwrap());
        let FrameLog { writer, log, .. } =
            FrameLog::open(&LogConfig::bounded(1 << 20).into(), &name).unwrap();
        let counts = Arc::new(CaptureCounts::default());
        let second = Duration::from_secs(1);
        let limits = FrameLimits::default();
        let (capture, _) = Capture::new(writer, None, limits, second, counts.clone());
        (capture, log, counts)
    }

    #[test]
    fn invalid_frames_are_refused_and_counted() {
        let (mut capture, log, counts) = capture();
        let error = capture.frame(None, &Bytes::from_static(b"not a picture")).unwrap_err();
        assert_eq!(error.code(), Code::FRAME_INVALID);
        assert_eq!(counts.refused.load(Ordering::Relaxed), 1);
        assert_eq!(log.entries(), 0);
    }

    const START: Start =
        Start { epoch: 7, boot_id: [3; 16], offset_nanos: 1 << 40, began: Instant::EPOCH };

    #[test]
    fn sizes_and_starts_survive_the_log() {
        let size = FrameSize { width: 1920, height: 1080 };
        for (orientation, seen) in [(1, size), (3, size), (6, size.turned())] {
            let info = FrameInfo {
                size,
                components: 3,
                subsampling: Subsampling::S420,
                progressive: false,
                orientation: Orientation::new(orientation).expect("one of eight"),
                ended: true,
            };
            let meta = Bytes::copy_from_slice(&encode(&info, &START));
            let (position, at) = (tidegate_message::Position(0), Instant::EPOCH);
            let entry = Entry { position, at, meta, body: Bytes::new() };
            assert_eq!((size_of(&entry), Start::of(&entry)), (Some(size), Some(START)));
            assert_eq!(seen_size_of(&entry), Some(seen));
            let older = Entry { meta: entry.meta.slice(..START_END), ..entry.clone() };
            assert_eq!((seen_size_of(&older), Start::of(&older)), (None, Some(START)));
            let short = Entry { meta: entry.meta.slice(..SIZE_BYTES), ..entry };
            assert_eq!((size_of(&short), Start::of(&short)), (Some(size), None));
        }
    }

    #[test]
    fn an_epoch_goes_on_only_where_no_time_of_it_can_lie_ahead() {
        let second = 1_000_000_000;
        for (boot_id, offset, expected) in [
            ([3; 16], START.offset_nanos, true),
            ([3; 16], START.offset_nanos - 1_000, true), // two readings of one clock
            ([3; 16], START.offset_nanos + second, true),
            ([3; 16], START.offset_nanos - second, false), // set back
            ([4; 16], START.offset_nanos, false),          // frames may have gone with the power
        ] {
            assert_eq!(START.goes_on(boot_id, offset), expected, "{boot_id:?} {offset}");
        }
        let unknown = Start { boot_id: [0; 16], ..START };
        assert!(!unknown.goes_on([0; 16], START.offset_nanos));
    }
}

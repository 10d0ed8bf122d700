//! A stream: the frames of one transfer, kept in a log of its own and read by sessions.
//!
//! ```text
//!  link ──frame──▶ append ──▶ log ◀── reader ── session
//!  link ──report─▶ notice ──▶ broadcast ──────▶ session
//! ```
//!
//! Always true: appending never waits for a session; frames that a session has not read stay in the log
//! until the wrap or, if the log starts over, as long as a session reads it; a notice that a session was
//! too slow for is dropped and counted.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tidegate_api::{ApiError, Event, KnobsChanged, Missed, MissedWhy};
use tidegate_camera::frame_log::{FrameLog, FrameLogSettings, FrameWriter, Log, LogName};
use tidegate_log::{AppendError, Entry, LogError};
use tidegate_message::{CameraName, Code, Demand, Instant, Position};
use tidegate_wire::{EndReason, TransferHints, TransferId};
use tokio::sync::{broadcast, watch};

use super::entry::{self, Arrival, Epoch, Meta};

/// Notices kept for a slow reader; older ones are dropped.
const NOTICES_MAX: usize = 256;
/// Replaced logs whose entries can still be counted.
const REPLACED_MAX: usize = 8;

/// One adapted stream of one camera.
pub(super) struct Stream {
    pub(super) camera: CameraName,
    pub(super) transfer: TransferId,
    pub(super) hints: TransferHints,
    /// First and last capture time that were asked for; no first one means from then on.
    pub(super) range: (Option<Instant>, Option<Instant>),
    demand: Mutex<Demand>,
    tail: Mutex<Tail>,
    /// Counts appends and ends; sessions wait on it.
    changed: watch::Sender<u64>,
    notices: broadcast::Sender<Notice>,
    sessions: AtomicUsize,
    /// Those of them that asked for the past.
    from_past: AtomicUsize,
    /// Whether it has caught up with the present.
    live: AtomicBool,
    capacity_bytes_per_second: AtomicU64,
}

struct Tail {
    log: Log,
    writer: FrameWriter,
    /// Grows when the log is replaced because the camera's clock started over.
    generation: u64,
    /// The camera's life that the newest entry comes from; before the first, the one it was asked of.
    life: Epoch,
    /// Where the newest frame is that is no marker.
    picture: Option<Position>,
    setting: Option<Arc<str>>,
    reason: Option<Arc<str>>,
    ended: Option<EndReason>,
    refused: Option<(Code, Arc<str>)>,
    infeasible: Option<Event>,
    /// That no accuracy was measured, if so.
    assumed: Option<Event>,
    /// That no frames come, because the camera is not reached or its source gives none.
    absence: Option<Event>,
    /// Frames reported as missed.
    missed: u64,
    /// Capture time of the first entry of the log.
    began_at: Option<Instant>,
    /// Before the first entry: frames captured up to then are no part of the stream.
    after: Option<(Epoch, Instant)>,
    /// Logs that were replaced, newest last.
    replaced: VecDeque<Replaced>,
    meta: BytesMut,
    log_config: FrameLogSettings,
}

/// A log that has made room for that of a later life.
struct Replaced {
    generation: u64,
    /// Capture times of its first and its last entry.
    times: (Instant, Instant),
    entries: u64,
}

/// The part of a stream that a session reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// Frames from now on.
    Present,
    /// Frames captured from some time in the past on, gaps of the link included.
    Past,
}

/// Where a session begins to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    /// First and last capture time wanted of a stream of its own; no first one means from now on.
    pub(super) range: (Option<Instant>, Option<Instant>),
    /// How far another stream has brought it, in which epoch of the camera: later frames belong to the new one,
    /// although they are of the past, like those that a broken link left out.
    pub(super) after: Option<(Epoch, Instant)>,
    /// The part that it reads.
    pub(super) reads: Reads,
}

/// Notices of a stream to its sessions, besides frames.
#[derive(Clone, Debug)]
pub(super) enum Notice {
    /// Passed on as it is.
    Event(Event),
    /// A frame that the camera did not deliver, and how many were reported before it.
    Missed(Missed, u64),
}

/// The parts that a session needs to read a stream.
pub(super) struct Subscribed {
    pub(super) log: Log,
    /// The camera's life that its newest entry comes from.
    pub(super) life: Epoch,
    pub(super) generation: u64,
    pub(super) changed: watch::Receiver<u64>,
    pub(super) notices: broadcast::Receiver<Notice>,
    /// Frames reported as missed so far.
    pub(super) missed: u64,
    /// Reports that still hold: that accuracies are assumed, that the bounds are infeasible, that no frames come.
    pub(super) standing: Vec<Event>,
}

impl Stream {
    pub(super) fn new(
        camera: CameraName,
        life: Epoch,
        transfer: TransferId,
        demand: Demand,
        hints: TransferHints,
        range: (Option<Instant>, Option<Instant>),
        log_config: FrameLogSettings,
    ) -> Result<Self, LogError> {
        let FrameLog { writer, log, .. } = open(&log_config, &camera)?;
        Ok(Self {
            camera,
            transfer,
            hints,
            range,
            demand: Mutex::new(demand),
            tail: Mutex::new(Tail {
                log,
                writer,
                generation: 0,
                life,
                picture: None,
                setting: None,
                reason: None,
                ended: None,
                refused: None,
                infeasible: None,
                assumed: None,
                absence: None,
                missed: 0,
                began_at: None,
                after: None,
                replaced: VecDeque::new(),
                meta: BytesMut::with_capacity(256),
                log_config,
            }),
            changed: watch::Sender::new(0),
            notices: broadcast::Sender::new(NOTICES_MAX),
            sessions: AtomicUsize::new(0),
            from_past: AtomicUsize::new(0),
            live: AtomicBool::new(range.0.is_none()),
            capacity_bytes_per_second: AtomicU64::new(0),
        })
    }

    pub(super) fn demand(&self) -> Demand {
        *self.demand.lock().expect("no panic while a demand is copied")
    }

    pub(super) fn set_demand(&self, demand: Demand) {
        let mut current = self.demand.lock().expect("no panic while a demand is copied");
        if current.profile != demand.profile {
            // Another table: the camera says so if its accuracies are assumed, too.
            self.tail().assumed = None;
        }
        *current = demand;
    }

    /// The camera is asked again: it says again what it has to say of its table.
    pub(super) fn asked_again(&self) {
        self.tail().assumed = None;
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().expect("no panic while a frame is appended")
    }

    /// Appends a frame or marker that arrived whole.
    ///
    /// If the camera node has restarted with an earlier clock, the log starts over: sessions read the old one
    /// to its end and continue with the new one, instead of waiting until its clock has caught up.
    ///
    /// # Errors
    /// [`AppendFailed`]; a timestamp that is not later than the last of the same life is refused, and so is
    /// what a link left over from an earlier life brings.
    pub(super) fn append(
        &self,
        at: Instant,
        arrival: Arrival,
        meta: &Meta,
        body: &Bytes,
    ) -> Result<(), AppendFailed> {
        let mut tail = self.tail();
        if arrival.life < tail.life {
            return Err(AppendFailed::EarlierLife);
        }
        let newest = tail.log.last_at().filter(|_| arrival.life > tail.life);
        let began_anew = newest.filter(|&newest| at <= newest);
        if let Some(newest) = began_anew {
            let times = (tail.began_at.take().unwrap_or(newest), newest);
            let (generation, entries) = (tail.generation, tail.log.end().0);
            if tail.replaced.len() == REPLACED_MAX {
                tail.replaced.pop_front();
            }
            tail.replaced.push_back(Replaced { generation, times, entries });
            let FrameLog { writer, log, .. } = open(&tail.log_config, &self.camera)?;
            tail.writer = writer;
            tail.log = log;
            tail.generation += 1;
            tail.picture = None;
        }
        tail.life = arrival.life;
        if matches!(meta, Meta::Frame(header) if !header.replayed) {
            self.live.store(true, Ordering::Release);
        }
        let Tail { writer, meta: encoded, .. } = &mut *tail;
        entry::encode(encoded, arrival, meta);
        let position = writer.offer(at, encoded, body)?;
        if matches!(meta, Meta::Frame(_)) {
            tail.picture = Some(position);
        }
        tail.began_at.get_or_insert(at);
        self.wake();
        // Sessions wait for no copy, and for no seal.
        tail.writer.store_beside();
        drop(tail);
        Ok(())
    }

    /// Gets the log ready for a frame of about `bytes`, when there is time. Returns false if it has to be tried again.
    pub(super) fn prepare(&self, bytes: usize) -> bool {
        let tail = self.tail();
        let bytes = tail.meta.len() + bytes + bytes / 4;
        tail.writer.prepare(bytes)
    }

    /// The newest frame that is no marker, unless the wrap took it.
    pub(super) fn picture(&self) -> Option<Entry> {
        let tail = self.tail();
        tail.picture.and_then(|position| tail.log.entry(position).ok().flatten())
    }

    /// Whether it delivers the present from now on and without an end, so that others may read it, too.
    pub(super) fn is_open(&self) -> bool {
        self.live.load(Ordering::Acquire) && self.range.1.is_none() && self.ended().is_none()
    }

    /// Counts a session in.
    pub(super) fn enter(&self, reads: Reads) {
        self.sessions.fetch_add(1, Ordering::AcqRel);
        if reads == Reads::Past {
            self.from_past.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts a session out; true if it was the last.
    pub(super) fn exit(&self, reads: Reads) -> bool {
        if reads == Reads::Past {
            self.from_past.fetch_sub(1, Ordering::AcqRel);
        }
        self.sessions.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// How many sessions read it.
    pub(super) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Acquire)
    }

    /// Whether a session that asked for the past reads it, and so wants what a broken link leaves out.
    pub(super) fn fills_gaps(&self) -> bool {
        self.from_past.load(Ordering::Acquire) > 0
    }

    /// Whether the frame captured at `at` was kept before.
    pub(super) fn holds(&self, at: Instant) -> bool {
        let log = self.tail().log.clone();
        log.last_at() == Some(at) || log.entry_at(at).is_ok_and(|entry| entry.is_some())
    }

    /// Capture time of the newest entry.
    pub(super) fn newest(&self) -> Option<Instant> {
        self.tail().log.last_at()
    }

    /// How far the stream has come, and in which life of its camera: up to its newest entry, or before the first
    /// one up to where it begins, if that is known.
    pub(super) fn reached(&self) -> (Epoch, Option<Instant>) {
        let tail = self.tail();
        match (tail.log.last_at(), tail.after) {
            (None, Some((life, after))) => (life, Some(after)),
            (newest, _) => (tail.life, newest),
        }
    }

    /// Lets the stream begin with what was captured later than `after`, in the past if need be: it is not open to others
    /// before it has caught up.
    pub(super) fn begin_after(&self, life: Epoch, after: Instant) {
        self.tail().after = Some((life, after));
        self.live.store(false, Ordering::Release);
    }

    /// The camera has begun to serve it with the frame captured at `first`, or the next.
    pub(super) fn began(&self, life: Epoch, first: Instant) {
        // A stream that begins at a requested time begins there again.
        if self.range.0.is_none() {
            self.tail().after.get_or_insert((life, first - Duration::from_nanos(1)));
        }
    }

    /// Capture time of the oldest entry.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.tail().log.first_at()
    }

    /// The camera does not serve it; it ends at once.
    pub(super) fn refuse(&self, code: Code, sentence: Arc<str>) {
        self.tail().refused.get_or_insert((code, sentence));
        self.end(EndReason::Failed);
    }

    /// Why the camera does not serve it, if it said so.
    pub(super) fn refused(&self) -> Option<ApiError> {
        let tail = self.tail();
        tail.refused.as_ref().map(|(code, sentence)| ApiError::new(*code, sentence.as_ref()))
    }

    pub(super) fn end(&self, reason: EndReason) {
        self.tail().ended.get_or_insert(reason);
        self.wake();
    }

    pub(super) fn ended(&self) -> Option<EndReason> {
        self.tail().ended
    }

    /// The log and its generation, which a session compares with the one it reads.
    pub(super) fn log(&self) -> (Log, u64) {
        let tail = self.tail();
        (tail.log.clone(), tail.generation)
    }

    pub(super) fn subscribe(&self) -> Subscribed {
        let tail = self.tail();
        Subscribed {
            log: tail.log.clone(),
            life: tail.life,
            generation: tail.generation,
            changed: self.changed.subscribe(),
            notices: self.notices.subscribe(),
            missed: tail.missed,
            standing: [&tail.assumed, &tail.infeasible, &tail.absence]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
        }
    }

    /// Why the next setting differs from the last, in one sentence.
    pub(super) fn set_reason(&self, reason: Arc<str>) {
        self.tail().reason = Some(reason);
    }

    pub(super) fn reason(&self) -> Option<Arc<str>> {
        self.tail().reason.clone()
    }

    /// Tells the sessions if the setting of the frame differs from that of the one before.
    pub(super) fn tell_setting(&self, captured_at: Instant, setting: &str) {
        let mut tail = self.tail();
        if tail.setting.as_deref() == Some(setting) {
            return;
        }
        let to: Arc<str> = setting.into();
        let from = tail.setting.replace(to.clone()).unwrap_or_else(|| "".into());
        // The report and the frame travel apart: a report that is late explains the next change.
        let reason = tail.reason.take().unwrap_or_else(|| "".into());
        drop(tail);
        self.tell(Event::KnobsChanged(KnobsChanged { captured_at, from, to, reason }));
    }

    pub(super) fn tell(&self, event: Event) {
        // Under the lock, so that a new subscriber is notified once.
        let mut tail = self.tail();
        match &event {
            Event::Infeasible(_) => tail.infeasible = Some(event.clone()),
            Event::Feasible => tail.infeasible = None,
            Event::AccuracyAssumed(_) => tail.assumed = Some(event.clone()),
            Event::CameraOffline(_) | Event::NoFrames(_) => tail.absence = Some(event.clone()),
            Event::CameraOnline => tail.absence = None,
            _ => {}
        }
        let _ = self.notices.send(Notice::Event(event));
    }

    /// Frames were not delivered. One that has come all the same, after its camera gave it up, is not missed: each session says of it
    /// whether it was in time.
    pub(super) fn tell_missed(&self, missed: Missed) {
        if missed.count == 1 && self.holds(missed.to) {
            return;
        }
        let mut tail = self.tail();
        let before = tail.missed;
        tail.missed = tail.missed.saturating_add(missed.count);
        let _ = self.notices.send(Notice::Missed(missed, before));
    }

    /// How many frames were reported as missed, if `notices` holds no word of them any more.
    pub(super) fn missed_if_read(&self, notices: &broadcast::Receiver<Notice>) -> Option<u64> {
        // Under the lock, so that nothing is reported between the look and the count.
        let tail = self.tail();
        notices.is_empty().then_some(tail.missed)
    }

    /// The frames of logs that came after that of generation `read` and before that of `next`.
    pub(super) fn replaced_between(&self, read: u64, next: u64) -> Vec<Missed> {
        let tail = self.tail();
        let mut expected = read + 1;
        let between = tail.replaced.iter().filter(|log| (read + 1..next).contains(&log.generation));
        between
            .map(|log| {
                // Not known where logs before this one were forgotten.
                let count = if log.generation == expected { log.entries } else { 0 };
                expected = log.generation + 1;
                let (from, to) = log.times;
                Missed { from, to, count, why: MissedWhy::SlowSubscriber }
            })
            .collect()
    }

    pub(super) fn set_capacity(&self, bytes_per_second: u64) {
        self.capacity_bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity_bytes_per_second.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

/// Why a frame could not be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum AppendFailed {
    #[error("the stream log refused the frame")]
    Append(#[from] AppendError),
    #[error("it was captured before the camera restarted")]
    EarlierLife,
    #[error("the stream log could not start over")]
    Begin(#[from] LogError),
}

/// The log of a stream, which is in memory: a stream ends with its last session, and what it brought is in its camera's log.
fn open(config: &FrameLogSettings, camera: &CameraName) -> Result<FrameLog, LogError> {
    FrameLog::open_remote(config, &LogName::Stream(camera.clone()))
}

//! A session: one Subscribe call, reading one stream's log at its own pace.
//!
//! Always true: a session holds a position and at most the entry it hands over, of which it keeps a copy where the subscriber
//! does not wait for it: so one that does not read costs two frames of memory, and keeps none of the log from being used again;
//! a live frame is handed over only while its latency bound is still kept (`latest`), or in order and late if need be
//! (`every`); each frame not handed over is reported as missed, but for those under way to a `latest` session when it moved to
//! another stream.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidegate_api::{
    ApiError, EndReason, Event, Frame, KnobsChanged, Missed, MissedWhy, Outcome, Unchanged,
};
use tidegate_camera::frame_log::{Log, Reader};
use tidegate_log::{Entry, ReadError};
use tidegate_message::{Code, Delivery, Demand, Instant};
use tidegate_process::clock;
use tidegate_wire::FrameHeader;
use tokio::sync::{
    broadcast::{
        self,
        error::{RecvError, TryRecvError},
    },
    mpsc, oneshot, watch,
};
use tokio_util::sync::CancellationToken;

use super::{
    entry::{self, Arrival, Epoch, Meta, shared},
    stream::{Notice, Stream, Subscribed},
    verdict::{self, Verdicts},
};

/// Longest wait for a subscriber to take the last event.
const ENDED_MAX: Duration = Duration::from_secs(5);

/// Counts of a session; read by Unsubscribe.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) delivered: AtomicU64,
    pub(super) missed: AtomicU64,
}

/// The wishes of a subscription: capture times, and the bounds to keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// First capture time wanted; `None` for what comes from now on.
    pub(super) from: Option<Instant>,
    /// Capture time before which it ends; `None` never.
    pub(super) to: Option<Instant>,
    /// Where a subscription left off in an earlier epoch of the camera; frames of that one captured after
    /// it are gone.
    pub(super) forgotten: Option<Instant>,
    /// The demand that every frame must keep; the stream may keep more than that.
    pub(super) demand: Demand,
}

pub(super) struct Session {
    stream: Arc<Stream>,
    counts: Arc<Counts>,
    wanted: Wanted,
    out: mpsc::Sender<Result<Event, ApiError>>,
    /// Set while the other end of `out` waits.
    awaited: Arc<AtomicBool>,
    verdicts: Arc<Verdicts>,
    stop: CancellationToken,
    switches: mpsc::Receiver<Switch>,
    reader: Reader,
    generation: u64,
    changed: watch::Receiver<u64>,
    notices: broadcast::Receiver<Notice>,
    /// Frames of the stream that were reported as missed and whose notices were read, or began before us.
    missed_read: u64,
    /// Capture time of the last of them.
    missed_at: Instant,
    /// Notices were dropped because we were too slow, and their content is not reported yet.
    lagged: bool,
    setting: Option<Arc<str>>,
    /// The last frame of the stream, if it was handed over: markers refer to it.
    last_frame: Option<(Epoch, Instant)>,
    /// Whether it began in the past.
    from_past: bool,
    /// Notified when the stream, which began in the past, has caught up: a capture time that was reached.
    caught_up: Option<oneshot::Sender<Instant>>,
    /// The last entry that was taken up, handed over or not.
    position: Option<(Epoch, Instant)>,
    /// Frames captured before this count from sending: they were the past when the session began.
    began: Instant,
    reason: Option<Arc<str>>,
    /// Events of the stream before this session read it, which are still pending.
    pending: Vec<Event>,
}

/// The new demand of a running session.
pub(super) struct Switch {
    /// The demand on its frames from now on.
    demand: Demand,
    /// Another stream, which suits that.
    to: Option<Next>,
}

/// A stream that a session is about to read, since the switch was asked for: nothing of it is missed meanwhile.
struct Next {
    stream: Arc<Stream>,
    subscribed: Subscribed,
    /// For a session that has taken up nothing yet.
    reader: Reader,
}

impl Switch {
    /// The same stream under another demand.
    pub(super) const fn demand(demand: Demand) -> Self {
        Self { demand, to: None }
    }

    /// Another stream.
    pub(super) fn stream(stream: Arc<Stream>, demand: Demand) -> Self {
        let subscribed = stream.subscribe();
        let reader = subscribed.log.reader_next();
        Self { demand, to: Some(Next { stream, subscribed, reader }) }
    }
}

/// Why a session ends before its range is complete.
enum Gone {
    /// The application ended the call, or the session was asked to stop.
    Told(EndReason),
    /// The camera does not serve it.
    Failed(ApiError),
}

impl Session {
    pub(super) fn new(
        stream: Arc<Stream>,
        wanted: Wanted,
        (out, awaited): (mpsc::Sender<Result<Event, ApiError>>, Arc<AtomicBool>),
        verdicts: Arc<Verdicts>,
        counts: Arc<Counts>,
        stop: CancellationToken,
        switches: mpsc::Receiver<Switch>,
    ) -> Self {
        let Subscribed { log, life: _, generation, changed, notices, missed, standing } =
            stream.subscribe();
        let began = clock::now();
        let reader = match wanted.from {
            Some(from) => log.reader_from(from),
            None => log.reader_next(),
        };
        Self {
            stream,
            counts,
            wanted,
            out,
            awaited,
            verdicts,
            stop,
            switches,
            reader,
            generation,
            changed,
            notices,
            missed_read: missed,
            missed_at: wanted.from.unwrap_or(began),
            lagged: false,
            setting: None,
            last_frame: None,
            from_past: wanted.from.is_some(),
            caught_up: None,
            position: None,
            began,
            reason: None,
            pending: standing,
        }
    }

    /// The session, which tells once that a stream from the past has caught up.
    pub(super) fn telling(self, caught_up: oneshot::Sender<Instant>) -> Self {
        Self { caught_up: Some(caught_up), ..self }
    }

    /// Serves until the range is complete, the application hangs up, or the session is stopped.
    pub(super) async fn run(mut self) {
        let last = match self.serve().await {
            Ok(reason) | Err(Gone::Told(reason)) => Ok(Event::Ended(reason)),
            Err(Gone::Failed(error)) => Err(error),
        };
        // There may be no reader; one that is slow still gets it.
        let told = self.out.send(last);
        let _ = tokio::time::timeout(ENDED_MAX, told).await;
    }

    async fn serve(&mut self) -> Result<EndReason, Gone> {
        if let Some(at) = self.wanted.forgotten {
            let why = MissedWhy::LinkDown;
            self.missed(Missed { from: at, to: at, count: 0, why }).await?;
        }
        if let Some((from, until)) = self.reader.missing_at_start() {
            self.missed(wrapped(from, until, 0)).await?;
        }
        loop {
            for event in std::mem::take(&mut self.pending) {
                self.send(event).await?;
            }
            self.changed.borrow_and_update();
            let ended = self.stream.ended();
            if let ControlFlow::Break(reason) = self.drain(None).await? {
                return Ok(reason);
            }
            if let Ok(switch) = self.switches.try_recv() {
                if let ControlFlow::Break(reason) = self.switch(switch).await? {
                    return Ok(reason);
                }
                continue;
            }
            if let Some(reason) = ended {
                self.read_notices().await?;
                return match reason {
                    tidegate_wire::EndReason::SourceEnded | tidegate_wire::EndReason::Stopped => {
                        Ok(EndReason::CameraUnregistered)
                    }
                    tidegate_wire::EndReason::Complete => Ok(EndReason::Complete),
                    tidegate_wire::EndReason::Failed => Err(Gone::Failed(self.failure())),
                };
            }
            // A camera that knows the end says when it has sent all; a shared stream has no end of its own.
            let own_end = self.stream.range.1.is_some();
            let past_end = self.wanted.to.filter(|_| !own_end).map(|to| self.wait_past(to));
            tokio::select! {
                () = self.stop.cancelled() => return Err(Gone::Told(EndReason::Unsubscribed)),
                () = self.out.closed() => return Err(Gone::Told(EndReason::Unsubscribed)),
                _ = self.changed.changed() => {}
                notice = self.notices.recv() => self.pass_on(notice).await?,
                Some(switch) = self.switches.recv() => {
                    if let ControlFlow::Break(reason) = self.switch(switch).await? {
                        return Ok(reason);
                    }
                }
                () = tokio::time::sleep(past_end.unwrap_or(Duration::MAX)), if past_end.is_some() => {
                    return Ok(EndReason::Complete);
                }
            }
        }
    }

    fn failure(&self) -> ApiError {
        self.stream.refused().unwrap_or_else(|| {
            let text = format!("camera {} gave the transfer up without a word", self.stream.camera);
            ApiError::new(Code::INTERNAL, text)
        })
    }

    /// Continues with another demand and the stream for it, after all frames that the old one holds by now.
    async fn switch(&mut self, switch: Switch) -> Result<ControlFlow<EndReason>, Gone> {
        let Switch { demand, to } = switch;
        self.wanted.demand = demand;
        let Some(Next { stream, subscribed, reader }) = to else {
            return Ok(ControlFlow::Continue(()));
        };
        // Not the frames that come meanwhile: a slow subscriber would never move.
        let held = match self.stream.reached() {
            (life, Some(newest)) => Some((life, newest)),
            (_, None) => None,
        };
        if let Some(held) = held
            && let ControlFlow::Break(reason) = self.drain(Some(held)).await?
        {
            return Ok(ControlFlow::Break(reason));
        }
        self.read_notices().await?;
        let Subscribed { log, life, generation, changed, notices, missed, standing } = subscribed;
        self.reader = match self.position.or(held) {
            Some((of, last)) if of == life => {
                let reader = log.reader_from(last + Duration::from_nanos(1));
                if let Some((from, until)) = reader.missing_at_start() {
                    self.missed(wrapped(from, until, 0)).await?;
                }
                reader
            }
            // The times of two epochs cannot be compared: frames that were taken up are skipped one by one.
            Some(_) => log.reader_from(Instant::MIN),
            None => reader,
        };
        self.generation = generation;
        self.changed = changed;
        self.notices = notices;
        self.missed_read = missed;
        self.pending = standing;
        self.stream = stream;
        // Its markers refer to frames of its own.
        self.last_frame = None;
        Ok(ControlFlow::Continue(()))
    }

    /// How long until no frame before `to` can still come within its bound.
    fn wait_past(&self, to: Instant) -> Duration {
        let bound = self.wanted.demand.bounds.latency();
        let grace = bound.max(Duration::from_secs(1));
        (to + grace).since(clock::now())
    }

    /// Continues with the log that has replaced the one that was read to its end.
    async fn begin_anew(&mut self, log: Log, generation: u64) -> Result<(), Gone> {
        let read = std::mem::replace(&mut self.generation, generation);
        self.reader = log.reader_from(Instant::MIN);
        // Reached by the camera's old clock, it is behind the new one, whatever that says.
        if self.position.is_some() {
            self.wanted.from = None;
        }
        for missed in self.stream.replaced_between(read, generation) {
            self.missed(missed).await?;
        }
        Ok(())
    }

    /// Hands over all that the log has, until there is a switch; or all up to the entry captured at `until`.
    async fn drain(
        &mut self,
        until: Option<(Epoch, Instant)>,
    ) -> Result<ControlFlow<EndReason>, Gone> {
        loop {
            let enough = match until {
                Some(until) => self.position.is_some_and(|position| position >= until),
                None => !self.switches.is_empty(),
            };
            if enough {
                return Ok(ControlFlow::Continue(()));
            }
            // Looked at before the read: nothing is appended to a log that has been replaced.
            let (log, generation) = self.stream.log();
            match self.reader.next() {
                Ok(None) if generation != self.generation => {
                    self.begin_anew(log, generation).await?;
                }
                Ok(None) => return Ok(ControlFlow::Continue(())),
                Ok(Some(entry)) => {
                    if self.wanted.to.is_some_and(|to| entry.at >= to) {
                        return Ok(ControlFlow::Break(EndReason::Complete));
                    }
                    if self.wanted.from.is_none_or(|from| entry.at >= from) {
                        self.hand_over(entry).await?;
                    }
                }
                Err(ReadError::Overtaken(overtaken)) => {
                    self.last_frame = None;
                    let (from, until) = overtaken.missed_time;
                    self.missed(wrapped(from, until, overtaken.missed())).await?;
                }
                Err(error) => {
                    let chain = tidegate_message::error_chain(&error);
                    tracing::error!(camera = %self.stream.camera, error = chain, "stream log not readable");
                    let (ReadError::Storage { position, .. }, true) = (&error, error.is_lost())
                    else {
                        return Ok(ControlFlow::Continue(()));
                    };
                    self.last_frame = None;
                    if let Some(at) = log.time_of(*position) {
                        let why = MissedWhy::LogWrapped;
                        self.missed(Missed { from: at, to: at, count: 1, why }).await?;
                    }
                }
            }
        }
    }

    async fn hand_over(&mut self, entry: Entry) -> Result<(), Gone> {
        let Some((arrival, meta)) = entry::decode(&entry) else {
            tracing::error!(camera = %self.stream.camera, at = %entry.at, "stream log entry not readable");
            return Ok(());
        };
        // The entry that pins the log is dropped before anything is waited for.
        let Entry { at, meta: header, body, .. } = entry;
        drop(header);
        let position = (arrival.life, at);
        if self.position.is_some_and(|last| position <= last) {
            return Ok(());
        }
        self.position = Some(position);
        if let Meta::Frame(header) = &meta
            && let Some(failed) = self.present_or_past(header, at)
        {
            drop(body);
            self.last_frame = None;
            return self.missed(failed).await;
        }
        match meta {
            Meta::Frame(header) => self.hand_over_frame(at, body, &arrival, header).await,
            Meta::Unchanged(marker) => {
                drop(body);
                let shown = |last: Option<(Epoch, Instant)>| {
                    last.filter(|&(life, _)| life == arrival.life).map(|(_, at)| at)
                };
                if shown(self.last_frame).is_none() {
                    self.show_picture_before(at, arrival.life).await?;
                }
                let Some(same_as) = shown(self.last_frame) else {
                    let (from, to, why) = (at, at, MissedWhy::LogWrapped);
                    return self.missed(Missed { from, to, count: 1, why }).await;
                };
                let replayed = at < self.began && self.wanted.from.is_some();
                let handed_at = clock::now();
                let stages = tidegate_api::Stages {
                    network: arrival.last_at.since(arrival.local(marker.at)),
                    delivery: handed_at.since(arrival.last_at),
                    ..Default::default()
                };
                self.counts.delivered.fetch_add(1, Ordering::Relaxed);
                self.tell_unsent(at, Outcome::Unchanged);
                let event = Unchanged {
                    captured_at: at,
                    epoch: arrival.life.epoch,
                    same_as,
                    replayed,
                    stages,
                    handed_at,
                };
                self.send(Event::Unchanged(event)).await
            }
        }
    }

    /// Notes that the stream has caught up if the frame is of the present; one from the past is missed where
    /// only the present is wanted, as of a stream that it shares with a session from the past.
    fn present_or_past(&mut self, header: &FrameHeader, at: Instant) -> Option<Missed> {
        if !header.replayed {
            if let Some(caught_up) = self.caught_up.take() {
                // It is not waited for any more where the node stops.
                let _ = caught_up.send(at);
            }
            return None;
        }
        let wanted = self.from_past || self.wanted.demand.delivery == Delivery::Every;
        let why = MissedWhy::LinkDown;
        (!wanted).then_some(Missed { from: at, to: at, count: 1, why })
    }

    /// Hands over the picture that a marker at `at` refers to, to a subscriber who has not got it: this session began when the
    /// scene was still already, or the picture was late.
    async fn show_picture_before(&mut self, at: Instant, life: Epoch) -> Result<(), Gone> {
        let picture = self.stream.picture().filter(|picture| picture.at < at);
        if let Some(entry) = picture
            && let Some((arrival, Meta::Frame(header))) = entry::decode(&entry)
            && arrival.life == life
        {
            let header = FrameHeader { replayed: true, ..header };
            self.hand_over_frame(entry.at, entry.body, &arrival, header).await?;
        }
        Ok(())
    }

    async fn hand_over_frame(
        &mut self,
        at: Instant,
        mut jpeg: Bytes,
        arrival: &Arrival,
        mut header: FrameHeader,
    ) -> Result<(), Gone> {
        if !self.awaited.load(Ordering::Relaxed) {
            jpeg = Bytes::copy_from_slice(&jpeg);
        }
        // Wait for room before looking at the clock: the bound must hold when the application gets it.
        let permit = tokio::select! {
            permit = self.out.clone().reserve_owned() => permit.map_err(|_| Gone::Told(EndReason::Unsubscribed))?,
            () = self.stop.cancelled() => return Err(Gone::Told(EndReason::Unsubscribed)),
        };
        // Frames that the log already held when the session began are the past to this subscriber.
        let past = self.wanted.from.is_some() || header.replayed;
        let from_log = past && arrival.last_at < self.began;
        header.replayed |= from_log;
        let handed_at = clock::now();
        let mut stages = entry::stages(&header, arrival, handed_at);
        if from_log {
            stages.delivery = Duration::ZERO;
        }
        let demand = self.wanted.demand;
        let late = stages.total() > demand.bounds.latency();
        if late && demand.delivery == Delivery::Latest && !header.replayed {
            drop(permit);
            self.last_frame = None;
            let why = if stages.total() - stages.delivery > demand.bounds.latency() {
                MissedWhy::Late
            } else {
                MissedWhy::SlowSubscriber
            };
            self.tell_verdict(&header, stages, Outcome::Late);
            return self.tell_missed(Missed { from: at, to: at, count: 1, why }).await;
        }
        let knobs = match &self.setting {
            Some(setting) if **setting == *header.setting => setting.clone(),
            _ => shared(&header.setting),
        };
        self.setting = Some(knobs.clone());
        self.last_frame = Some((arrival.life, at));
        self.counts.delivered.fetch_add(1, Ordering::Relaxed);
        self.tell_verdict(&header, stages, if late { Outcome::Late } else { Outcome::Kept });
        permit.send(Ok(Event::Frame(Frame {
            captured_at: at,
            epoch: arrival.life.epoch,
            size: header.size,
            source_size: header.source_size,
            original_bytes: header.original_bytes,
            knobs,
            accuracy: header.accuracy,
            accuracy_kept: header.accuracy_kept,
            replayed: header.replayed,
            stages,
            handed_at,
            jpeg,
        })));
        Ok(())
    }

    fn tell_verdict(
        &mut self,
        header: &FrameHeader,
        stages: tidegate_api::Stages,
        outcome: Outcome,
    ) {
        let bound = self.wanted.demand.bounds.latency();
        let (stream, reason) = (&self.stream, &mut self.reason);
        self.verdicts.tell(|| verdict::sent(stream, header, stages, outcome, bound, reason.take()));
    }

    async fn pass_on(&mut self, notice: Result<Notice, RecvError>) -> Result<(), Gone> {
        match notice {
            Ok(Notice::Event(event)) => {
                if let Event::KnobsChanged(KnobsChanged { reason, .. }) = &event {
                    self.reason = Some(reason.clone());
                }
                self.send(event).await?;
            }
            Ok(Notice::Missed(missed, before)) => {
                self.tell_unread(before, missed.from).await?;
                self.missed_read = before.saturating_add(missed.count);
                self.missed_at = missed.to;
                let wanted = self.wanted.from.is_none_or(|from| missed.to >= from)
                    && self.wanted.to.is_none_or(|to| missed.from < to);
                if wanted {
                    self.missed(missed).await?;
                }
            }
            // Notices that were dropped because this subscriber is slow; its frames are in the log.
            Err(RecvError::Lagged(count)) => {
                tracing::debug!(camera = %self.stream.camera, count, "slow subscriber missed notices");
                self.lagged = true;
            }
            Err(RecvError::Closed) => return Err(Gone::Told(EndReason::Shutdown)),
        }
        let read = if self.lagged { self.stream.missed_if_read(&self.notices) } else { None };
        if let Some(told) = read {
            self.lagged = false;
            let newest = self.stream.newest().unwrap_or(self.missed_at);
            self.tell_unread(told, newest).await?;
        }
        Ok(())
    }

    /// Passes on all notices that wait.
    async fn read_notices(&mut self) -> Result<(), Gone> {
        loop {
            let notice = match self.notices.try_recv() {
                Ok(notice) => Ok(notice),
                Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Ok(()),
            };
            self.pass_on(notice).await?;
        }
    }

    /// Reports the frames whose notices were dropped: of the stream's first `told`, those not read of.
    async fn tell_unread(&mut self, told: u64, until: Instant) -> Result<(), Gone> {
        let count = told.saturating_sub(self.missed_read);
        if count == 0 {
            return Ok(());
        }
        self.missed_read = told;
        let from = self.missed_at.min(until);
        self.missed(Missed { from, to: until, count, why: MissedWhy::SlowSubscriber }).await
    }

    fn tell_unsent(&self, at: Instant, outcome: Outcome) {
        let bound = self.wanted.demand.bounds.latency();
        self.verdicts.tell(|| verdict::unsent(&self.stream, at, outcome, bound));
    }

    /// Frames of which nothing came.
    async fn missed(&mut self, missed: Missed) -> Result<(), Gone> {
        // A verdict is about one frame.
        if missed.count == 1 {
            self.tell_unsent(missed.to, verdict::outcome(missed.why));
        }
        self.tell_missed(missed).await
    }

    async fn tell_missed(&mut self, missed: Missed) -> Result<(), Gone> {
        self.counts.missed.fetch_add(missed.count, Ordering::Relaxed);
        self.send(Event::Missed(missed)).await
    }

    async fn send(&mut self, event: Event) -> Result<(), Gone> {
        tokio::select! {
            sent = self.out.send(Ok(event)) => sent.map_err(|_| Gone::Told(EndReason::Unsubscribed)),
            () = self.stop.cancelled() => Err(Gone::Told(EndReason::Unsubscribed)),
        }
    }
}

/// Frames from `from` up to but not including `until` that the wrap took; `count` 0 if it is not known.
fn wrapped(from: Instant, until: Instant, count: u64) -> Missed {
    let to = (until - Duration::from_nanos(1)).max(from);
    Missed { from, to, count, why: MissedWhy::LogWrapped }
}

#[cfg(test)]
mod tests;

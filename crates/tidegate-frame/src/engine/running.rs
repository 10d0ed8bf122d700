//! One transfer of a camera: its state machine, what it reads of the log, and what it holds of each frame.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::{
    Delivery, Demand, DropReason, FrameRate, FrameSize, Instant,
    transfer::{Ack, CameraReport, FrameHeader, Reported, StartTransfer, TransferId, Unchanged},
};

use super::{Action, Done, EngineConfig, FrameLog, FrameReader, Job, LoggedFrame, Outcome, Unread};
use crate::{
    knob::KnobSetting,
    transfer::{Command, Input, Report, SendHeader, Transfer},
};

/// Time after a transfer's end within which what was captured before it has come: then it is over also where no later frame
/// comes.
const CAPTURED_BY: Duration = Duration::from_secs(1);

/// A transfer and its frames.
pub(super) struct Running<R> {
    transfer: Transfer,
    /// Whether no frame may leave as it was captured.
    covers: bool,
    /// Where it reads the log while it is behind; none while it takes frames as they come.
    cursor: Option<R>,
    /// Frames captured before this are from the past.
    began: Instant,
    /// First capture time wanted.
    from: Option<Instant>,
    /// Capture time before which it ends.
    to: Option<Instant>,
    /// When to look whether that was the end.
    ends: Option<Instant>,
    complete: bool,
    frames: HashMap<Instant, Work>,
    /// Sent, and neither whole at the other end nor given up.
    in_flight: BTreeSet<Instant>,
    /// Markers that wait for frames before them, so that the other end sees both in order.
    markers: VecDeque<Marker>,
    /// The frame sent last, unless it is known to be lost: differencing compares with it.
    reference: Option<Instant>,
    thinning: Thinning,
}

/// A frame that looks like `same_as`, which was sent.
#[derive(Clone, Copy)]
struct Marker {
    at: Instant,
    same_as: Instant,
}

/// Leaves out frames that come faster than they are wanted: the rest have that rate at most, and are spread evenly.
#[derive(Debug, Default)]
struct Thinning {
    /// Capture time from which the next frame is wanted.
    due: Option<Instant>,
}

/// A frame may come before its time by this part of the interval: cameras are not that regular.
const EARLY_PART: u32 = 8;

impl Thinning {
    /// Whether a frame captured at `at` is wanted; frames come in the order of their capture.
    fn takes(&mut self, at: Instant, rate: Option<FrameRate>) -> bool {
        let Some(interval) = rate.map(FrameRate::interval) else {
            self.due = None;
            return true;
        };
        // One that is further away is of a lower rate before, and what a pause left out is not made up for.
        let holds = |due: &Instant| *due <= at + 2 * interval && at <= *due + interval;
        let due = self.due.filter(holds).unwrap_or(at);
        if at + interval / EARLY_PART < due {
            return false;
        }
        self.due = Some(due + interval);
        true
    }
}

/// A frame from its capture until it is whole at the other end, marked or dropped.
struct Work {
    captured: Bytes,
    size: FrameSize,
    /// Its size as it is seen.
    seen: Option<FrameSize>,
    encode_started: Option<Instant>,
    encoded: Option<Encoded>,
}

struct Encoded {
    body: Bytes,
    size: FrameSize,
    ended: Instant,
}

impl<R: FrameReader> Running<R> {
    /// A transfer as asked for at `now`; says where in the log it begins.
    pub(super) fn new(
        now: Instant,
        start: &StartTransfer,
        transfer: Transfer,
        config: &EngineConfig,
        log: &impl FrameLog<Reader = R>,
        actions: &mut VecDeque<Action>,
    ) -> (Self, Instant) {
        // The least time is all of this epoch: frames of earlier ones went to others, or to those who ask by time.
        let of_epoch = |at: Instant| if at == Instant::MIN { config.began } else { at };
        let (asked_from, resume_after) = (
            start.from.map(of_epoch),
            start.resume_after.map(|after| match after {
                Instant::MIN => config.began,
                after => after + Duration::from_nanos(1),
            }),
        );
        let after = resume_after;
        let from = match (start.demand.delivery, asked_from, after) {
            // Frames of a gap that were not received are sent only to a subscription that wants every frame or asked
            // for the past.
            (Delivery::Every, from, Some(after)) | (_, from @ Some(_), Some(after)) => {
                Some(after.max(from.unwrap_or(Instant::MIN)))
            }
            (Delivery::Every, None, None) => Some(now),
            (_, from, _) => from,
        };
        if let (None, Some(after)) = (from, after) {
            let mut gap = log.reader_from(after);
            // Frames of the gap that the log itself has lost cannot be counted.
            let count = if gap.missing_at_start().is_some() { 0 } else { gap.behind() };
            if let (Ok(Some(first)), Some(last)) = (gap.next(), log.last_at()) {
                let lost = Lost { first: first.at, last, count, why: DropReason::LinkDown };
                actions.push_back(lost.told(start.transfer));
            }
        }
        let cursor = from.map(|from| log.reader_from(from));
        let wrapped = cursor.as_ref().and_then(R::missing_at_start);
        if let Some((first, last)) = wrapped {
            let lost = Lost { first, last, count: 0, why: DropReason::LogWrapped };
            actions.push_back(lost.told(start.transfer));
        }
        let first = wrapped.map_or(from.unwrap_or(now), |(_, until)| until);
        let running = Self {
            transfer,
            covers: config.covers,
            cursor,
            began: now,
            from: asked_from,
            to: start.to,
            ends: start.to.map(|to| to + CAPTURED_BY),
            complete: false,
            frames: HashMap::new(),
            in_flight: BTreeSet::new(),
            markers: VecDeque::new(),
            reference: None,
            thinning: Thinning::default(),
        };
        (running, first)
    }

    /// Whether it takes frames as they are captured.
    pub(super) fn is_live(&self) -> bool {
        self.cursor.is_none()
    }

    /// Whether everything that was asked for is over.
    pub(super) fn is_over(&self) -> bool {
        self.complete && self.is_idle()
    }

    /// The frames it holds.
    pub(super) fn frames(&self) -> impl Iterator<Item = Instant> {
        self.frames.keys().copied()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.transfer.poll_timeout().into_iter().chain(self.ends).min()
    }

    pub(super) fn handle(&mut self, now: Instant, input: Input) {
        self.transfer.handle(now, input);
    }

    /// The subscription was changed.
    pub(super) fn handle_demand(
        &mut self,
        now: Instant,
        demand: Demand,
        log: &impl FrameLog<Reader = R>,
    ) {
        // Every frame from now on, in order: read from the log, one at a time.
        if demand.delivery == Delivery::Every && self.cursor.is_none() {
            self.cursor = Some(log.reader_next());
        }
        self.transfer.handle(now, Input::Demand(demand));
    }

    /// The edge node's word about a frame.
    pub(super) fn handle_ack(&mut self, now: Instant, ack: &Ack, actions: &mut VecDeque<Action>) {
        let bytes = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        self.transfer.handle(
            now,
            Input::Ack {
                frame: ack.frame,
                received: bytes(ack.received),
                total: bytes(ack.total),
                first_at: ack.first_at,
                last_at: ack.last_at,
                complete: ack.complete,
            },
        );
        if ack.complete {
            self.frames.remove(&ack.frame);
            self.over(ack.transfer, ack.frame, actions);
        }
        // A reset that the transfer wants must be done before the frame is forgotten.
        self.advance(now, ack.transfer, actions);
    }

    /// The encoder is done with a frame.
    pub(super) fn handle_encoded(&mut self, now: Instant, done: Done) {
        let Some(work) = self.frames.get_mut(&done.frame) else { return };
        let (frame, took) = (done.frame, done.ended.since(done.started));
        let input = match done.outcome {
            Ok(Outcome::Encoded { body, size }) => {
                work.encode_started.get_or_insert(done.started);
                let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
                work.encoded = Some(Encoded { body, size, ended: done.ended });
                Input::Encoded { frame, bytes, took }
            }
            Ok(Outcome::Unchanged { changed }) => Input::Unchanged { frame, changed, took },
            Err(_) => Input::EncodeFailed { frame, is_damaged: true },
        };
        self.transfer.handle(now, input);
    }

    /// Takes a frame, unless its size is not known or it is not wanted.
    pub(super) fn take_up(&mut self, now: Instant, frame: LoggedFrame, from_log: bool) {
        let LoggedFrame { at, size: Some(size), seen, body: captured } = frame else { return };
        if self.complete || self.to.is_some_and(|to| at >= to) {
            self.complete = true;
            return;
        }
        if self.from.is_some_and(|from| at < from) {
            return;
        }
        if !self.thinning.takes(at, self.transfer.demand().frame_rate) {
            return;
        }
        let bytes = u32::try_from(captured.len()).unwrap_or(u32::MAX);
        // Until a transfer of the newest frames has caught up, what it reads is all from the past to it.
        let replayed =
            from_log && (at < self.began || self.transfer.demand().delivery == Delivery::Latest);
        let work = Work { captured, size, seen, encode_started: None, encoded: None };
        self.frames.insert(at, work);
        self.transfer.handle(now, Input::Captured { at, bytes, size, replayed });
    }

    fn is_idle(&self) -> bool {
        self.frames.is_empty() && self.in_flight.is_empty()
    }

    /// A frame that was sent is over: markers that waited for it may go.
    fn over(&mut self, id: TransferId, frame: Instant, actions: &mut VecDeque<Action>) {
        self.in_flight.remove(&frame);
        while let Some(&Marker { at, .. }) = self.markers.front() {
            if self.in_flight.first().is_some_and(|&earlier| earlier < at) {
                return;
            }
            self.markers.pop_front();
            actions.push_back(Action::Unchanged(Unchanged { transfer: id, at }));
        }
    }

    /// A frame will not arrive: one that was found to look like it has not been shown either.
    fn lose(
        &mut self,
        id: TransferId,
        frame: Instant,
        why: DropReason,
        actions: &mut VecDeque<Action>,
    ) {
        actions.push_back(Lost::one(frame, why).told(id));
        if self.reference == Some(frame) {
            self.reference = None;
            actions.push_back(Action::Lost(id));
        }
        self.markers.retain(|marker| {
            let shown = marker.same_as != frame;
            if !shown {
                actions.push_back(Lost::one(marker.at, why).told(id));
            }
            shown
        });
    }

    /// Feeds what the log has while the transfer is behind, one frame at a time: frames travel on streams
    /// of their own, and what is to arrive in order must not overtake.
    fn pump(&mut self, now: Instant, id: TransferId, actions: &mut VecDeque<Action>) {
        while !self.complete && self.is_idle() && self.transfer.wants_replay() {
            let Some(cursor) = &mut self.cursor else { return };
            match cursor.next() {
                Ok(Some(frame)) => self.take_up(now, frame, true),
                Ok(None) => {
                    self.complete = self.to.is_some_and(|to| now >= to);
                    if self.transfer.demand().delivery == Delivery::Latest {
                        self.cursor = None;
                    }
                    return;
                }
                Err(Unread::Overwritten { first, until, count }) => {
                    let (first, last) = (first.max(self.from.unwrap_or(first)), until);
                    let lost = Lost { first, last, count, why: DropReason::LogWrapped };
                    actions.push_back(lost.told(id));
                }
                Err(Unread::Damaged { at }) => {
                    let lost = at.map(|at| Lost::one(at, DropReason::LogWrapped).told(id));
                    actions.extend(lost);
                }
                Err(Unread::Unavailable) => return,
            }
        }
    }

    pub(super) fn advance(&mut self, now: Instant, id: TransferId, actions: &mut VecDeque<Action>) {
        if self.ends.take_if(|ends| *ends <= now).is_some() {
            // It still reads the frames that it is behind.
            self.complete |= self.cursor.is_none();
        }
        loop {
            self.pump(now, id, actions);
            let Some(command) = self.transfer.poll_command(now) else { return };
            self.obey(now, id, command, actions);
        }
    }

    fn obey(
        &mut self,
        now: Instant,
        id: TransferId,
        command: Command,
        actions: &mut VecDeque<Action>,
    ) {
        match command {
            Command::Encode { frame, setting, .. } => self.encode(now, id, frame, setting, actions),
            Command::Send { frame, deadline, header } => {
                self.send(now, id, frame, deadline, header, actions);
            }
            Command::SendUnchanged { frame } => {
                self.frames.remove(&frame);
                match self.reference {
                    Some(same_as) => {
                        self.markers.push_back(Marker { at: frame, same_as });
                        self.over(id, frame, actions);
                    }
                    // The encoder compared before it heard that the picture was lost.
                    None => actions.push_back(Lost::one(frame, DropReason::Deadline).told(id)),
                }
            }
            Command::Reset { frame } => actions.push_back(Action::Reset { transfer: id, frame }),
            Command::Drop { frame, why } => {
                self.frames.remove(&frame);
                self.lose(id, frame, why, actions);
                self.over(id, frame, actions);
                actions.push_back(Action::Over { transfer: id, frame });
            }
            Command::Report(report) => {
                let capacity = self.transfer.capacity().map(|c| c.bytes_per_second);
                actions.push_back(Action::Report(camera_report(id, now, &report, capacity)));
            }
        }
    }

    fn encode(
        &mut self,
        now: Instant,
        id: TransferId,
        frame: Instant,
        setting: KnobSetting,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(work) = self.frames.get_mut(&frame) else {
            return self.transfer.handle(now, Input::EncodeFailed { frame, is_damaged: false });
        };
        if setting.is_original() && setting.difference().is_none() && !self.covers {
            // The log's own bytes travel; nothing is copied.
            let body = work.captured.clone();
            let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
            work.encode_started.get_or_insert(now);
            work.encoded = Some(Encoded { body, size: work.size, ended: now });
            return self
                .transfer
                .handle(now, Input::Encoded { frame, bytes, took: Duration::ZERO });
        }
        let jpeg = work.captured.clone();
        actions.push_back(Action::Encode(Job { transfer: id, frame, jpeg, setting }));
    }

    fn send(
        &mut self,
        now: Instant,
        id: TransferId,
        frame: Instant,
        deadline: Instant,
        header: SendHeader,
        actions: &mut VecDeque<Action>,
    ) {
        // The frame is kept until it is over: one that is reset may be taken back and encoded smaller.
        let work = self.frames.get_mut(&frame);
        let taken = work.and_then(|work| Some((work.encoded.take()?, work)));
        let Some((encoded, Work { captured, size, seen, encode_started, .. })) = taken else {
            tracing::error!(%frame, "a frame was to be sent that is not encoded");
            return;
        };
        let setting = header.setting;
        let source_size = *seen;
        let is_turned = source_size.is_some_and(|seen| seen != *size);
        // The encoder has not seen what travels as it was captured, and cannot compare with it.
        let seen = !setting.is_original() || setting.difference().is_some();
        let header = FrameHeader {
            transfer: id,
            at: frame,
            bytes: encoded.body.len() as u64,
            size: if is_turned { encoded.size.turned() } else { encoded.size },
            original_bytes: captured.len() as u64,
            row: header.row,
            setting: setting.to_string(),
            accuracy: header.accuracy,
            accuracy_kept: header.accuracy_kept,
            replayed: header.replayed,
            encode_started: encode_started.unwrap_or(encoded.ended).since(frame),
            encode_ended: encoded.ended.since(frame),
            sent: now.since(frame),
            source_size,
        };
        let live = !header.replayed;
        self.in_flight.insert(frame);
        self.reference = Some(frame);
        actions.push_back(Action::Frame { header, body: encoded.body, deadline, live });
        actions.push_back(if seen { Action::Sent(id) } else { Action::Lost(id) });
    }
}

/// Frames that are not delivered.
#[derive(Clone, Copy)]
struct Lost {
    /// Capture time of the first, at the earliest.
    first: Instant,
    /// Capture time of the last, at the latest.
    last: Instant,
    /// 0 if that is not known.
    count: u64,
    why: DropReason,
}

impl Lost {
    fn one(at: Instant, why: DropReason) -> Self {
        Self { first: at, last: at, count: 1, why }
    }

    fn told(self, transfer: TransferId) -> Action {
        let Self { first, last, count, why } = self;
        let report = CameraReport {
            transfer,
            at: last,
            capacity_bytes_per_second: None,
            text: why.to_string(),
            what: Reported::FramesDropped { why: Some(why), count, span: last.since(first) },
        };
        Action::Report(report)
    }
}

/// A transfer's report on itself, with the capacity that it counts on, in bytes a second.
fn camera_report(
    transfer: TransferId,
    at: Instant,
    report: &Report,
    capacity: Option<f64>,
) -> CameraReport {
    let what = match *report {
        Report::Knobs { .. } => Reported::KnobsChanged,
        Report::Infeasible {
            latency_at_accuracy, accuracy_at_latency, frames_per_second, ..
        } => Reported::Infeasible { latency_at_accuracy, accuracy_at_latency, frames_per_second },
        Report::Feasible => Reported::Feasible,
        Report::ControllerFailed { .. } => Reported::ControllerFailed,
        Report::TableAssumed { .. } | Report::TableMissing { .. } => Reported::TableMissing,
    };
    let capacity_bytes_per_second = capacity.map(|capacity| capacity.max(0.0) as u64);
    CameraReport { transfer, at, capacity_bytes_per_second, text: report.to_string(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_frames_of_a_camera_as_many_are_taken_as_are_wanted() {
        for (made, wanted, jitter, expected) in [
            (10.0, 10.0, 0, 300),
            (10.0, 10.0, 5, 300),
            (10.0, 3.0, 5, 90),
            (10.0, 7.5, 0, 225),
            (10.0, 0.5, 5, 15),
            (10.0, 100.0, 5, 300),
            (25.0, 10.0, 3, 300),
            // A camera that is a little faster than is wanted.
            (10.1, 10.0, 3, 300),
        ] {
            let rate = FrameRate::new(wanted).ok();
            let mut thinning = Thinning::default();
            let mut taken = Vec::new();
            let frames = (made * 30.0) as i64;
            for frame in 0..frames {
                let millis =
                    (frame as f64 * 1e3 / made) as i64 + (frame * 7) % (2 * jitter + 1) - jitter;
                if thinning.takes(Instant::from_millis(millis), rate) {
                    taken.push(millis);
                }
            }
            let case = format!("{wanted} of {made}, {jitter} ms off");
            assert!((taken.len() as i64 - expected).abs() <= 2, "{case}: {}", taken.len());
            let even = 1e3 / wanted + 1e3 / made + 2.0 * jitter as f64;
            let longest = taken.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(longest as f64 <= even + 1.0, "{case}: {longest} ms between two");
        }
    }

    #[test]
    fn pauses_and_other_rates_begin_anew() {
        let mut thinning = Thinning::default();
        let rate = |frames| FrameRate::new(frames).ok();
        let mut takes = |millis, rate| thinning.takes(Instant::from_millis(millis), rate);
        assert!(takes(0, rate(1.0)) && !takes(100, rate(1.0)));
        // After a pause there is no burst.
        let after: Vec<i64> =
            (0..19).map(|n| 60_000 + n * 100).filter(|at| takes(*at, rate(1.0))).collect();
        assert_eq!(after.len(), 2, "{after:?}");
        assert!(takes(70_000, rate(0.1)) && !takes(70_500, rate(0.1)));
        assert!(takes(71_100, rate(5.0)), "no longer as rare as before");
        assert!(takes(71_101, None) && takes(71_102, None));
    }
}

//! The engine of a camera node: transfers fed from the camera's log, without I/O of its own.
//!
//! ```text
//!  captured, records, acks, encoded ──▶ Engine::handle_* ──▶ Transfer ──▶ Action ──▶ link, encoder, source
//! ```
//!
//! A transfer reads the log through a cursor while it is behind (frames from the past, gaps that a broken
//! link left, and always with `every`), and takes frames as they are captured otherwise.
//!
//! Always true: a frame taken up by a transfer holds its log entry until it is over; what
//! the link has broken off is forgotten with it, for the edge node asks again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_frame::{
    knob::KnobSetting,
    table::{TableSet, Wanted},
    transfer::{Command, DropReason, Input, Report, SendHeader, Transfer, TransferConfig},
};
use tidegate_log::{Entry, Log, ReadError, Reader};
use tidegate_message::{Delivery, FrameSize, Instant};
use tidegate_wire::{
    Ack, EndReason, Event, EventCode, FetchOriginal, FrameHeader, Original, OriginalOutcome,
    Record, StartTransfer, TransferEnded, TransferHints, TransferId, TransferStarted, Unchanged,
};

use super::{
    capture,
    encoder::{Done, Job, Outcome},
};

/// Transfers that one camera serves at a time.
pub(super) const TRANSFERS_MAX: usize = 64;

/// What the shell is to do.
#[derive(Debug)]
pub(super) enum Action {
    /// Send a record.
    Record(Record),
    /// Send a frame; live ones go before those from the past.
    Frame { header: FrameHeader, body: Bytes, deadline: Instant, live: bool },
    /// Stop sending a frame.
    Reset { transfer: TransferId, frame: Instant },
    /// A frame is over, however it ended.
    Over { transfer: TransferId, frame: Instant },
    /// Send an untouched frame, or word that it is gone.
    Original { original: Original, body: Bytes },
    /// Give a frame to the encoder.
    Encode(Job),
    /// The frame last encoded for a transfer was sent.
    Sent(TransferId),
    /// A transfer is gone.
    Forget(TransferId),
    /// Delay captures by this, once.
    Shift(Duration),
}

/// The transfers of one camera over one link.
pub(super) struct Engine {
    log: Log,
    captures: Reader,
    tables: Arc<TableSet>,
    config: TransferConfig,
    transfers: BTreeMap<TransferId, Running>,
    actions: VecDeque<Action>,
    next: u32,
}

struct Running {
    transfer: Transfer,
    /// Where it reads the log while it is behind; none while it takes frames as they come.
    cursor: Option<Reader>,
    /// Frames captured before this are from the past.
    began: Instant,
    /// First capture time wanted.
    from: Option<Instant>,
    /// Capture time before which it ends.
    to: Option<Instant>,
    complete: bool,
    frames: HashMap<Instant, Work>,
    /// Sent, and neither whole at the other end nor given up.
    in_flight: BTreeSet<Instant>,
    /// Markers that wait for frames before them, so that the other end sees both in order.
    markers: VecDeque<Instant>,
}

/// A frame from its capture until it is whole at the other end, marked or dropped.
struct Work {
    entry: Entry,
    size: FrameSize,
    encode_started: Option<Instant>,
    encoded: Option<Encoded>,
}

struct Encoded {
    body: Bytes,
    size: FrameSize,
    ended: Instant,
}

impl Engine {
    pub(super) fn new(log: Log, tables: Arc<TableSet>, config: TransferConfig) -> Self {
        let captures = log.reader_next();
        Self {
            log,
            captures,
            tables,
            config,
            transfers: BTreeMap::new(),
            actions: VecDeque::new(),
            next: 0,
        }
    }

    /// What is to be done next, if anything.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`Engine::handle_timeout`] although nothing happened.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.transfers.values().filter_map(|running| running.transfer.poll_timeout()).min()
    }

    /// Time has passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.advance_all(now);
    }

    /// Frames were appended to the log.
    pub(super) fn handle_captured(&mut self, now: Instant) {
        loop {
            match self.captures.next() {
                Ok(None) => break,
                Ok(Some(entry)) => {
                    let Some(size) = capture::size_of(&entry) else { continue };
                    for running in self.transfers.values_mut().filter(|r| r.cursor.is_none()) {
                        running.take_up(now, entry.clone(), size, false);
                    }
                }
                // Live transfers want the newest; what the wrap took is no loss to them.
                Err(ReadError::Overtaken(_)) => {}
                Err(error) => {
                    tracing::error!(%error, "camera log not readable");
                    break;
                }
            }
        }
        self.advance_all(now);
    }

    /// A record came from the edge node.
    pub(super) fn handle_record(&mut self, now: Instant, record: Record) {
        match record {
            Record::StartTransfer(start) => self.start(now, start),
            Record::UpdateTransfer(update) => {
                if let Some(running) = self.transfers.get_mut(&update.transfer) {
                    // Every frame from now on, in order: read from the log, one at a time.
                    if update.demand.delivery == Delivery::Every && running.cursor.is_none() {
                        running.cursor = Some(self.log.reader_next());
                    }
                    running.transfer.handle(now, Input::Demand(update.demand));
                }
            }
            Record::StopTransfer(stop) => self.end(stop.transfer, EndReason::Stopped),
            Record::Share(share) => {
                // A camera's share is the camera's: its transfers split it.
                let split = self.transfers.len().max(1) as f64;
                let whole = (share.bytes_per_second > 0).then_some(share.bytes_per_second as f64);
                let bytes_per_second = whole.map(|whole| whole / split);
                let valid_for = share.valid_for;
                for running in self.transfers.values_mut() {
                    running.transfer.handle(now, Input::Share { bytes_per_second, valid_for });
                }
                if !share.shift.is_zero() {
                    self.actions.push_back(Action::Shift(share.shift));
                }
            }
            Record::FetchOriginal(fetch) => self.fetch(fetch),
            other => tracing::debug!(record = other.name(), "record not meant for a camera"),
        }
        self.advance_all(now);
    }

    /// The edge node's word about a frame.
    pub(super) fn handle_ack(&mut self, now: Instant, ack: &Ack) {
        if let Some(running) = self.transfers.get_mut(&ack.transfer) {
            let bytes = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
            running.transfer.handle(
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
                running.frames.remove(&ack.frame);
                running.over(ack.transfer, ack.frame, &mut self.actions);
            }
            // What the transfer wants reset must be reset before the frame is forgotten.
            running.advance(now, ack.transfer, &mut self.actions);
        }
        // A frame that was reset may be sent again, smaller; the transfer says when it gives it up.
        if ack.complete {
            let (transfer, frame) = (ack.transfer, ack.frame);
            self.actions.push_back(Action::Over { transfer, frame });
        }
        self.advance_all(now);
    }

    /// What the link knows of its path.
    pub(super) fn handle_path(
        &mut self,
        now: Instant,
        rtt: Duration,
        rtt_min: Duration,
        in_flight: u64,
    ) {
        for running in self.transfers.values_mut() {
            running.transfer.handle(now, Input::Path { rtt, rtt_min, in_flight });
        }
    }

    /// The link took the first byte of a frame.
    pub(super) fn handle_started(&mut self, now: Instant, transfer: TransferId, frame: Instant) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.transfer.handle(now, Input::Started { frame });
        }
    }

    /// The encoder is done with a frame.
    pub(super) fn handle_encoded(&mut self, now: Instant, done: Done) {
        let Some(running) = self.transfers.get_mut(&done.transfer) else { return };
        let Some(work) = running.frames.get_mut(&done.frame) else { return };
        let (frame, took) = (done.frame, done.ended.since(done.started));
        let input = match done.outcome {
            Ok(Outcome::Encoded { body, size }) => {
                work.encode_started.get_or_insert(done.started);
                let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
                work.encoded = Some(Encoded { body, size, ended: done.ended });
                Input::Encoded { frame, bytes, took }
            }
            Ok(Outcome::Unchanged { changed }) => Input::Unchanged { frame, changed, took },
            Err(error) => {
                tracing::warn!(%frame, %error, "frame could not be changed");
                Input::EncodeFailed { frame }
            }
        };
        running.transfer.handle(now, input);
        self.advance_all(now);
    }

    /// The encoder could not take up a frame.
    pub(super) fn handle_encode_failed(
        &mut self,
        now: Instant,
        transfer: TransferId,
        frame: Instant,
    ) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.transfer.handle(now, Input::EncodeFailed { frame });
        }
        self.advance_all(now);
    }

    fn start(&mut self, now: Instant, start: StartTransfer) {
        let transfer = start.transfer;
        if self.transfers.len() >= TRANSFERS_MAX {
            let text = format!("this camera already serves its limit of {TRANSFERS_MAX} transfers");
            return self.refuse(now, transfer, text);
        }
        let wanted = match wanted(&start.hints) {
            Ok(wanted) => wanted,
            Err(text) => return self.refuse(now, transfer, text),
        };
        let config = TransferConfig { wanted, ..self.config.clone() };
        self.next = self.next.wrapping_add(1);
        let from = match (start.demand.delivery, start.from, start.resume_after) {
            // What was not received of a gap is wanted only by who wants every frame or asked for the past.
            (Delivery::Every, from, Some(after)) | (_, from @ Some(_), Some(after)) => {
                Some((after + Duration::from_nanos(1)).max(from.unwrap_or(Instant::MIN)))
            }
            (Delivery::Every, None, None) => Some(now),
            (_, from, _) => from,
        };
        let cursor = from.map(|from| self.log.reader_from(from));
        let first = match &cursor {
            Some(reader) => {
                reader.missing_at_start().map_or(from.unwrap_or(now), |(_, until)| until)
            }
            None => now,
        };
        let running = Running {
            transfer: Transfer::new(now, self.next, start.demand, config, self.tables.clone()),
            cursor,
            began: now,
            from: start.from,
            to: start.to,
            complete: false,
            frames: HashMap::new(),
            in_flight: BTreeSet::new(),
            markers: VecDeque::new(),
        };
        self.transfers.insert(transfer, running);
        self.actions.push_back(Action::Record(TransferStarted { transfer, first }.into()));
    }

    fn refuse(&mut self, at: Instant, transfer: TransferId, text: String) {
        let event = Event { transfer, at, code: EventCode::Failed, text, numbers: Vec::new() };
        self.actions.push_back(Action::Record(event.into()));
        let ended = TransferEnded { transfer, reason: EndReason::Failed };
        self.actions.push_back(Action::Record(ended.into()));
    }

    fn end(&mut self, transfer: TransferId, reason: EndReason) {
        let Some(running) = self.transfers.remove(&transfer) else { return };
        for &frame in running.frames.keys() {
            self.actions.push_back(Action::Reset { transfer, frame });
            self.actions.push_back(Action::Over { transfer, frame });
        }
        self.actions.push_back(Action::Forget(transfer));
        self.actions.push_back(Action::Record(TransferEnded { transfer, reason }.into()));
    }

    fn fetch(&mut self, fetch: FetchOriginal) {
        let FetchOriginal { request, at } = fetch;
        let found = self.log.entry_at(at).unwrap_or_else(|error| {
            tracing::error!(%error, "camera log not readable");
            None
        });
        let (outcome, body) = match found {
            Some(entry) => (OriginalOutcome::Found { bytes: entry.body.len() as u64 }, entry.body),
            None => {
                let oldest = self.log.first().ok().flatten().map(|entry| entry.at);
                (OriginalOutcome::Missing { oldest, newest: self.log.last_at() }, Bytes::new())
            }
        };
        self.actions
            .push_back(Action::Original { original: Original { request, at, outcome }, body });
    }

    fn advance_all(&mut self, now: Instant) {
        let mut complete = Vec::new();
        for (&id, running) in &mut self.transfers {
            running.advance(now, id, &mut self.actions);
            if running.complete && running.is_idle() {
                complete.push(id);
            }
        }
        for id in complete {
            self.end(id, EndReason::Complete);
        }
    }
}

impl Running {
    fn take_up(&mut self, now: Instant, entry: Entry, size: FrameSize, from_log: bool) {
        if self.complete || self.to.is_some_and(|to| entry.at >= to) {
            self.complete = true;
            return;
        }
        if self.from.is_some_and(|from| entry.at < from) {
            return;
        }
        let at = entry.at;
        let bytes = u32::try_from(entry.body.len()).unwrap_or(u32::MAX);
        // Until a transfer of the newest frames has caught up, what it reads is all from the past to it.
        let replayed =
            from_log && (at < self.began || self.transfer.demand().delivery == Delivery::Latest);
        self.frames.insert(at, Work { entry, size, encode_started: None, encoded: None });
        self.transfer.handle(now, Input::Captured { at, bytes, size, replayed });
    }

    fn is_idle(&self) -> bool {
        self.frames.is_empty() && self.in_flight.is_empty()
    }

    /// A frame that was sent is over: markers that waited for it may go.
    fn over(&mut self, id: TransferId, frame: Instant, actions: &mut VecDeque<Action>) {
        self.in_flight.remove(&frame);
        while let Some(&at) = self.markers.front() {
            if self.in_flight.first().is_some_and(|&earlier| earlier < at) {
                return;
            }
            self.markers.pop_front();
            actions.push_back(Action::Record(Unchanged { transfer: id, at }.into()));
        }
    }

    /// Feeds what the log has while the transfer is behind, one frame at a time: frames travel on streams
    /// of their own, and what is to arrive in order must not overtake.
    fn pump(&mut self, now: Instant) {
        while !self.complete && self.is_idle() && self.transfer.wants_replay() {
            let Some(cursor) = &mut self.cursor else { return };
            match cursor.next() {
                Ok(Some(entry)) => {
                    if let Some(size) = capture::size_of(&entry) {
                        self.take_up(now, entry, size, true);
                    }
                }
                Ok(None) => {
                    self.complete = self.to.is_some_and(|to| now >= to);
                    if self.transfer.demand().delivery == Delivery::Latest {
                        self.cursor = None;
                    }
                    return;
                }
                Err(ReadError::Overtaken(overtaken)) => {
                    tracing::warn!(
                        missed = overtaken.missed(),
                        "the camera log wrapped past a transfer"
                    );
                }
                Err(error) => {
                    tracing::error!(%error, "camera log not readable");
                    return;
                }
            }
        }
    }

    fn advance(&mut self, now: Instant, id: TransferId, actions: &mut VecDeque<Action>) {
        loop {
            self.pump(now);
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
                self.markers.push_back(frame);
                self.over(id, frame, actions);
            }
            Command::Reset { frame } => actions.push_back(Action::Reset { transfer: id, frame }),
            Command::Drop { frame, why } => {
                self.frames.remove(&frame);
                self.over(id, frame, actions);
                actions.push_back(Action::Over { transfer: id, frame });
                actions.push_back(Action::Record(dropped(id, frame, why).into()));
            }
            Command::Report(report) => {
                let capacity = self.transfer.capacity().map(|c| c.bytes_per_second);
                actions.push_back(Action::Record(event(id, now, &report, capacity).into()));
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
            return self.transfer.handle(now, Input::EncodeFailed { frame });
        };
        if setting.is_original() && setting.difference().is_none() {
            // The log's own bytes travel; nothing is copied.
            let body = work.entry.body.clone();
            let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
            work.encode_started.get_or_insert(now);
            work.encoded = Some(Encoded { body, size: work.size, ended: now });
            return self
                .transfer
                .handle(now, Input::Encoded { frame, bytes, took: Duration::ZERO });
        }
        let jpeg = work.entry.body.clone();
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
        let Some((encoded, Work { entry, encode_started, .. })) = taken else {
            tracing::error!(%frame, "a frame was to be sent that is not encoded");
            return;
        };
        let header = FrameHeader {
            transfer: id,
            at: frame,
            bytes: encoded.body.len() as u64,
            size: encoded.size,
            original_bytes: entry.body.len() as u64,
            row: header.row,
            setting: header.setting.to_string(),
            accuracy: header.accuracy,
            accuracy_kept: header.accuracy_kept,
            replayed: header.replayed,
            encode_started: encode_started.unwrap_or(encoded.ended).since(frame),
            encode_ended: encoded.ended.since(frame),
            sent: now.since(frame),
        };
        let live = !header.replayed;
        self.in_flight.insert(frame);
        actions.push_back(Action::Frame { header, body: encoded.body, deadline, live });
        actions.push_back(Action::Sent(id));
    }
}

fn wanted(hints: &TransferHints) -> Result<Wanted, String> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let detector_input = match some(&hints.detector_input) {
        None => None,
        Some(text) => {
            Some(text.parse().map_err(|error| format!("detector input {text:?}: {error}"))?)
        }
    };
    Ok(Wanted { detector: some(&hints.detector), detector_input, scene: some(&hints.scene) })
}

fn dropped(transfer: TransferId, at: Instant, why: DropReason) -> Event {
    let index = DropReason::ALL.iter().position(|&reason| reason == why).unwrap_or(0);
    Event {
        transfer,
        at,
        code: EventCode::FrameDropped,
        text: why.to_string(),
        numbers: vec![("why".into(), index as f64)],
    }
}

fn event(transfer: TransferId, at: Instant, report: &Report, capacity: Option<f64>) -> Event {
    let mut numbers = Vec::new();
    let mut number = |name: &str, value: Option<f64>| {
        numbers.extend(value.map(|value| (name.to_owned(), value)));
    };
    number("capacity_bytes_per_second", capacity);
    let code = match report {
        Report::Knobs { .. } => EventCode::KnobsChanged,
        Report::Infeasible { latency_at_accuracy, accuracy_at_latency, .. } => {
            number("latency_at_accuracy_ms", latency_at_accuracy.map(|l| l.as_secs_f64() * 1e3));
            number("accuracy_at_latency", *accuracy_at_latency);
            EventCode::Infeasible
        }
        Report::Feasible => EventCode::Feasible,
        Report::ControllerFailed { .. } => EventCode::ControllerFailed,
        Report::TableAssumed { .. } | Report::TableMissing { .. } => EventCode::TableMissing,
    };
    Event { transfer, at, code, text: report.to_string(), numbers }
}

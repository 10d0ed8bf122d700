//! The engine of a camera node: transfers fed from the camera's log, without I/O of its own.
//!
//! ```text
//!  captured, records, acks, encoded ──▶ Engine::handle_* ──▶ Transfer ──▶ Action ──▶ link, encoder, source
//! ```
//!
//! A transfer (`running`) reads the log through a cursor while it is behind (frames from the past, gaps that a broken
//! link left, and always with `every`), and takes frames as they are captured otherwise.
//!
//! Always true: a frame taken up by a transfer holds its log entry until it is over; a frame that
//! the link broke off is forgotten with it, for the edge node asks again.

mod heartbeat;
mod running;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_frame::{
    table::{TableSet, Wanted},
    transfer::{Input, Transfer, TransferConfig},
};
use tidegate_log::{Entry, ReadError};
use tidegate_message::{Code, Instant};
use tidegate_wire::{
    Ack, CameraReport, EndReason, FetchOriginal, FrameHeader, Original, OriginalOutcome, Record,
    Reported, StartTransfer, TransferEnded, TransferHints, TransferId, TransferRefused,
    TransferStarted,
};

use self::{heartbeat::Heartbeat, running::Running};
use super::{
    capture,
    encoder::{Done, Job},
};
use crate::frame_log::{Log, Reader};

/// Transfers that one camera serves at a time.
pub(super) const TRANSFERS_MAX: usize = 64;

/// Actions for the shell.
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
    /// The frame last sent for a transfer did not arrive.
    Lost(TransferId),
    /// A transfer is gone.
    Forget(TransferId),
    /// Delay captures by this, once.
    Shift(Duration),
}

/// The log of a camera's frames.
#[derive(Clone)]
pub(super) struct CameraLog {
    pub(super) log: Log,
    /// Logs from before its clock was set back, newest first.
    pub(super) earlier: Arc<[Log]>,
    /// When its clock's epoch began. The log may have frames of earlier ones before.
    pub(super) began: Instant,
}

impl CameraLog {
    /// The frame captured at `at`.
    fn entry_at(&self, at: Instant) -> Result<Option<Entry>, ReadError> {
        let logs = std::iter::once(&self.log).chain(self.earlier.iter());
        let mut failed = None;
        for log in logs {
            match log.entry_at(at) {
                Ok(Some(entry)) => return Ok(Some(entry)),
                Ok(None) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

/// The transfers of one camera over one link.
pub(super) struct Engine {
    frames: CameraLog,
    captures: Reader,
    tables: Arc<TableSet>,
    config: TransferConfig,
    /// Whether no frame may leave as it was captured.
    covers: bool,
    transfers: BTreeMap<TransferId, Running>,
    actions: VecDeque<Action>,
    next: u32,
    heartbeat: Heartbeat,
}

impl Engine {
    pub(super) fn new(
        frames: CameraLog,
        tables: Arc<TableSet>,
        config: TransferConfig,
        covers: bool,
    ) -> Self {
        let captures = frames.log.reader_next();
        Self {
            frames,
            captures,
            tables,
            config,
            covers,
            transfers: BTreeMap::new(),
            actions: VecDeque::new(),
            next: 0,
            heartbeat: Heartbeat::default(),
        }
    }

    /// The next action, if any.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`Engine::handle_timeout`] although nothing happened.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let transfers = self.transfers.values().filter_map(|running| running.poll_timeout());
        let is_live = self.transfers.values().any(|running| running.is_live());
        transfers.chain(self.heartbeat.due().filter(|_| is_live)).min()
    }

    /// Time has passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.heartbeat.beat(now) {
            for (&transfer, _) in self.transfers.iter().filter(|(_, running)| running.is_live()) {
                let idle = CameraReport {
                    transfer,
                    at: now,
                    capacity_bytes_per_second: None,
                    text: String::new(),
                    what: Reported::Idle,
                };
                self.actions.push_back(Action::Record(idle.into()));
            }
        }
        self.advance_all(now);
    }

    /// Frames were appended to the log.
    pub(super) fn handle_captured(&mut self, now: Instant) {
        loop {
            match self.captures.next() {
                Ok(None) => break,
                Ok(Some(entry)) => {
                    self.heartbeat.captured(now, entry.at);
                    let Some(size) = capture::size_of(&entry) else { continue };
                    for running in self.transfers.values_mut().filter(|r| r.is_live()) {
                        running.take_up(now, entry.clone(), size, false);
                    }
                }
                // Live transfers want the newest; frames overwritten in the ring are no loss to them.
                Err(ReadError::Overtaken(_)) => {}
                Err(error) => {
                    tracing::error!(
                        error = tidegate_message::error_chain(&error),
                        "camera log not readable"
                    );
                    if !error.is_lost() {
                        break;
                    }
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
                    running.handle_demand(now, update.demand, &self.frames.log);
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
                    running.handle(now, Input::Share { bytes_per_second, valid_for });
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
            running.handle_ack(now, ack, &self.frames.log, &mut self.actions);
        }
        // A frame that was reset may be sent again, smaller; the transfer says when it gives it up.
        if ack.complete {
            let (transfer, frame) = (ack.transfer, ack.frame);
            self.actions.push_back(Action::Over { transfer, frame });
        }
        self.advance_all(now);
    }

    /// The link's measurements of its path.
    pub(super) fn handle_path(
        &mut self,
        now: Instant,
        rtt: Duration,
        rtt_min: Duration,
        in_flight: u64,
    ) {
        for running in self.transfers.values_mut() {
            running.handle(now, Input::Path { rtt, rtt_min, in_flight });
        }
    }

    /// The link took the first byte of a frame.
    pub(super) fn handle_started(&mut self, now: Instant, transfer: TransferId, frame: Instant) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.handle(now, Input::Started { frame });
        }
    }

    /// The encoder is done with a frame.
    pub(super) fn handle_encoded(&mut self, now: Instant, done: Done) {
        let Some(running) = self.transfers.get_mut(&done.transfer) else { return };
        running.handle_encoded(now, done);
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
            running.handle(now, Input::EncodeFailed { frame, is_damaged: false });
        }
        self.advance_all(now);
    }

    /// The link could not take up a frame.
    pub(super) fn handle_not_sent(&mut self, now: Instant, transfer: TransferId, frame: Instant) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.handle(now, Input::NotSent { frame });
        }
        self.advance_all(now);
    }

    fn start(&mut self, now: Instant, start: StartTransfer) {
        let transfer = start.transfer;
        if self.transfers.len() >= TRANSFERS_MAX {
            let text = format!("this camera already serves its limit of {TRANSFERS_MAX} transfers");
            return self.refuse(transfer, Code::LIMIT_REACHED, text);
        }
        let wanted = match wanted(&start.hints) {
            Ok(wanted) => wanted,
            Err(text) => return self.refuse(transfer, Code::TABLE_MISSING, text),
        };
        let config = TransferConfig { wanted, ..self.config.clone() };
        self.next = self.next.wrapping_add(1);
        let machine = Transfer::new(now, self.next, start.demand, config, self.tables.clone());
        let covers = self.covers;
        let (running, first) =
            Running::new(now, &start, machine, covers, &self.frames, &mut self.actions);
        self.transfers.insert(transfer, running);
        self.actions.push_back(Action::Record(TransferStarted { transfer, first }.into()));
    }

    fn refuse(&mut self, transfer: TransferId, code: Code, text: String) {
        let refused = TransferRefused::new(transfer, code, text);
        self.actions.push_back(Action::Record(refused.into()));
        let ended = TransferEnded { transfer, reason: EndReason::Failed };
        self.actions.push_back(Action::Record(ended.into()));
    }

    fn end(&mut self, transfer: TransferId, reason: EndReason) {
        let Some(running) = self.transfers.remove(&transfer) else { return };
        for frame in running.frames() {
            self.actions.push_back(Action::Reset { transfer, frame });
            self.actions.push_back(Action::Over { transfer, frame });
        }
        self.actions.push_back(Action::Forget(transfer));
        self.actions.push_back(Action::Record(TransferEnded { transfer, reason }.into()));
    }

    fn fetch(&mut self, fetch: FetchOriginal) {
        let FetchOriginal { request, at } = fetch;
        let found = self.frames.entry_at(at).unwrap_or_else(|error| {
            tracing::error!(%error, "camera log not readable");
            None
        });
        let (outcome, body) = match found {
            Some(entry) => (OriginalOutcome::Found { bytes: entry.body.len() as u64 }, entry.body),
            None => {
                let log = &self.frames.log;
                let (oldest, newest) = (log.first_at(), log.last_at());
                (OriginalOutcome::Missing { oldest, newest }, Bytes::new())
            }
        };
        self.actions
            .push_back(Action::Original { original: Original { request, at, outcome }, body });
    }

    fn advance_all(&mut self, now: Instant) {
        let mut complete = Vec::new();
        for (&id, running) in &mut self.transfers {
            running.advance(now, id, &self.frames.log, &mut self.actions);
            if running.is_over() {
                complete.push(id);
            }
        }
        for id in complete {
            self.end(id, EndReason::Complete);
        }
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

#[cfg(test)]
mod tests;

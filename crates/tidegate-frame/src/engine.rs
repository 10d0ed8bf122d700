//! The engine of a camera node: transfers fed from the camera's log, without I/O of its own.
//!
//! ```text
//!  captured, requests, acks, encoded ──▶ Engine::handle_* ──▶ Transfer ──▶ Action ──▶ link, encoder, source
//! ```
//!
//! Call a `handle_*` for each event, then take [actions](Engine::poll_action) until there are none, then wait for the next event, until
//! [`Engine::poll_timeout`] at the longest.
//!
//! A transfer (`running`) reads the log through a cursor while it is behind (frames from the past, gaps that a broken
//! link left, and always with `every`), and takes frames as they are captured otherwise.
//!
//! Always true: a frame taken up by a transfer holds its log entry until it is over; a frame that
//! the link broke off is forgotten with it, for the edge node asks again.

mod encoding;
mod frames;
mod heartbeat;
mod running;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::{
    Code, Instant,
    transfer::{
        Ack, CameraReport, EndReason, FetchOriginal, FrameHeader, Original, OriginalOutcome,
        Reported, Share, StartTransfer, StopTransfer, TransferEnded, TransferHints, TransferId,
        TransferRefused, TransferStarted, Unchanged, UpdateTransfer,
    },
};

pub use self::{
    encoding::{Done, Job, Outcome},
    frames::{FrameLog, FrameReader, LoggedFrame, Unread},
};
use self::{heartbeat::Heartbeat, running::Running};
use crate::{
    table::{TableSet, Wanted},
    transfer::{Input, Transfer, TransferConfig},
};

/// Transfers that one camera serves at a time.
pub const TRANSFERS_MAX: usize = 64;

/// How often a camera whose source gives nothing says that it lives.
pub const HEARTBEAT: Duration = Duration::from_millis(500);

/// Actions for the shell, to be taken in order.
#[derive(Debug)]
pub enum Action {
    /// Say that a transfer runs.
    Started(TransferStarted),
    /// Say why a transfer is not served.
    Refused(TransferRefused),
    /// Say that a transfer is over.
    Ended(TransferEnded),
    /// Send a report.
    Report(CameraReport),
    /// Say that a frame looks like the one before.
    Unchanged(Unchanged),
    /// Send a frame.
    Frame {
        /// Its announcement.
        header: FrameHeader,
        /// The image.
        body: Bytes,
        /// When it is no longer of use.
        deadline: Instant,
        /// Whether it goes before frames from the past.
        live: bool,
    },
    /// Stop sending a frame.
    Reset {
        /// Its transfer.
        transfer: TransferId,
        /// Its capture time.
        frame: Instant,
    },
    /// A frame is over, however it ended.
    Over {
        /// Its transfer.
        transfer: TransferId,
        /// Its capture time.
        frame: Instant,
    },
    /// Send an untouched frame, or say that it is gone.
    Original {
        /// The answer.
        original: Original,
        /// The image; empty if it is gone.
        body: Bytes,
    },
    /// Give a frame to the encoder; answered by [`Engine::handle_encoded`] or [`Engine::handle_encode_failed`].
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

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Those of its transfers.
    pub transfer: TransferConfig,
    /// Whether no frame may leave as it was captured, so that the encoder sees each.
    pub covers: bool,
    /// When the epoch of the camera's clock began. The log may have frames of earlier ones before.
    pub began: Instant,
}

/// The transfers of one camera over one link.
pub struct Engine<L: FrameLog> {
    log: L,
    captures: L::Reader,
    tables: Arc<TableSet>,
    config: EngineConfig,
    transfers: BTreeMap<TransferId, Running<L::Reader>>,
    actions: VecDeque<Action>,
    next: u32,
    heartbeat: Heartbeat,
}

impl<L: FrameLog> Engine<L> {
    /// Without transfers; live ones get the frames that are captured from now on.
    pub fn new(log: L, tables: Arc<TableSet>, config: EngineConfig) -> Self {
        let captures = log.reader_next();
        Self {
            log,
            captures,
            tables,
            config,
            transfers: BTreeMap::new(),
            actions: VecDeque::new(),
            next: 0,
            heartbeat: Heartbeat::default(),
        }
    }

    /// The next action, if any.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`Engine::handle_timeout`] although nothing happened.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let transfers = self.transfers.values().filter_map(|running| running.poll_timeout());
        let is_live = self.transfers.values().any(|running| running.is_live());
        transfers.chain(self.heartbeat.due().filter(|_| is_live)).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.heartbeat.beat(now) {
            for (&transfer, _) in self.transfers.iter().filter(|(_, running)| running.is_live()) {
                let idle = CameraReport {
                    transfer,
                    at: now,
                    capacity_bytes_per_second: None,
                    text: String::new(),
                    what: Reported::Idle,
                };
                self.actions.push_back(Action::Report(idle));
            }
        }
        self.advance_all(now);
    }

    /// Frames were appended to the log.
    pub fn handle_captured(&mut self, now: Instant) {
        loop {
            match self.captures.next() {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    self.heartbeat.captured(now, frame.at);
                    for running in self.transfers.values_mut().filter(|r| r.is_live()) {
                        running.take_up(now, frame.clone(), false);
                    }
                }
                // Live transfers want the newest; frames that are gone are no loss to them.
                Err(Unread::Overwritten { .. } | Unread::Damaged { .. }) => {}
                Err(Unread::Unavailable) => break,
            }
        }
        self.advance_all(now);
    }

    /// The edge node asks for a transfer.
    pub fn handle_start(&mut self, now: Instant, start: StartTransfer) {
        self.start(now, start);
        self.advance_all(now);
    }

    /// The edge node wants something else of a transfer.
    pub fn handle_update(&mut self, now: Instant, update: UpdateTransfer) {
        if let Some(running) = self.transfers.get_mut(&update.transfer) {
            running.handle_demand(now, update.demand, &self.log);
        }
        self.advance_all(now);
    }

    /// The edge node wants no more of a transfer.
    pub fn handle_stop(&mut self, now: Instant, stop: StopTransfer) {
        self.end(stop.transfer, EndReason::Stopped);
        self.advance_all(now);
    }

    /// The edge node gives the camera a part of the medium, which its transfers split.
    pub fn handle_share(&mut self, now: Instant, share: Share) {
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
        self.advance_all(now);
    }

    /// The edge node asks for a frame as it was captured.
    pub fn handle_fetch(&mut self, FetchOriginal { request, at }: FetchOriginal) {
        let (outcome, body) = match self.log.original(at) {
            Some(body) => (OriginalOutcome::Found { bytes: body.len() as u64 }, body),
            None => {
                let (oldest, newest) = (self.log.first_at(), self.log.last_at());
                (OriginalOutcome::Missing { oldest, newest }, Bytes::new())
            }
        };
        self.actions
            .push_back(Action::Original { original: Original { request, at, outcome }, body });
    }

    /// The edge node's word about a frame.
    pub fn handle_ack(&mut self, now: Instant, ack: &Ack) {
        if let Some(running) = self.transfers.get_mut(&ack.transfer) {
            running.handle_ack(now, ack, &mut self.actions);
        }
        // A frame that was reset may be sent again, smaller; the transfer says when it gives it up.
        if ack.complete {
            let (transfer, frame) = (ack.transfer, ack.frame);
            self.actions.push_back(Action::Over { transfer, frame });
        }
        self.advance_all(now);
    }

    /// The link's measurements of its path.
    pub fn handle_path(&mut self, now: Instant, rtt: Duration, rtt_min: Duration, in_flight: u64) {
        for running in self.transfers.values_mut() {
            running.handle(now, Input::Path { rtt, rtt_min, in_flight });
        }
    }

    /// The link took the first byte of a frame.
    pub fn handle_started(&mut self, now: Instant, transfer: TransferId, frame: Instant) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.handle(now, Input::Started { frame });
        }
    }

    /// The encoder is done with a frame.
    pub fn handle_encoded(&mut self, now: Instant, done: Done) {
        let Some(running) = self.transfers.get_mut(&done.transfer) else { return };
        running.handle_encoded(now, done);
        self.advance_all(now);
    }

    /// The encoder could not take up a frame.
    pub fn handle_encode_failed(&mut self, now: Instant, transfer: TransferId, frame: Instant) {
        if let Some(running) = self.transfers.get_mut(&transfer) {
            running.handle(now, Input::EncodeFailed { frame, is_damaged: false });
        }
        self.advance_all(now);
    }

    /// The link could not take up a frame.
    pub fn handle_not_sent(&mut self, now: Instant, transfer: TransferId, frame: Instant) {
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
        let config = TransferConfig { wanted, ..self.config.transfer.clone() };
        self.next = self.next.wrapping_add(1);
        let machine = Transfer::new(now, self.next, start.demand, config, self.tables.clone());
        let (running, first) =
            Running::new(now, &start, machine, &self.config, &self.log, &mut self.actions);
        self.transfers.insert(transfer, running);
        self.actions.push_back(Action::Started(TransferStarted { transfer, first }));
    }

    fn refuse(&mut self, transfer: TransferId, code: Code, text: String) {
        let refused = TransferRefused::new(transfer, code, text);
        self.actions.push_back(Action::Refused(refused));
        let ended = TransferEnded { transfer, reason: EndReason::Failed };
        self.actions.push_back(Action::Ended(ended));
    }

    fn end(&mut self, transfer: TransferId, reason: EndReason) {
        let Some(running) = self.transfers.remove(&transfer) else { return };
        for frame in running.frames() {
            self.actions.push_back(Action::Reset { transfer, frame });
            self.actions.push_back(Action::Over { transfer, frame });
        }
        self.actions.push_back(Action::Forget(transfer));
        self.actions.push_back(Action::Ended(TransferEnded { transfer, reason }));
    }

    fn advance_all(&mut self, now: Instant) {
        let mut complete = Vec::new();
        for (&id, running) in &mut self.transfers {
            running.advance(now, id, &mut self.actions);
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

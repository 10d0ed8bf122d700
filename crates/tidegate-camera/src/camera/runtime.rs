//! The shell around a camera's engine: one task that joins capture, encoder and link.
//!
//! ```text
//!  source ─▶ Capture ─▶ log ─▶┐
//!  link.recv ────────────────▶│ Engine ─▶ actions ─▶ link, encoder, source
//!  encoder ──────────────────▶┘
//! ```

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use tidegate_frame::{
    engine::{Action, Done, Engine, EngineConfig, Outcome},
    knob::FrameLimits,
    table::TableSet,
};
use tidegate_link::{
    carrier::{Carrier, Down, Incoming, Sent},
    link::FrameSending,
};
use tidegate_message::{Code, Instant};
use tidegate_process::clock;
use tidegate_wire::{
    CameraAnnounce, CameraInfo, CameraInfoRequest, CameraReport, FrameHeader, Original,
    OriginalOutcome, Record, Reported, TransferId,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Privacy,
    capture::{self, CaptureCounts},
    encoder::{Encoder, Finished},
    frames::CameraLog,
    refusals::{NoFrames, Refusals},
};
use crate::source::{CaptureClock, SourceControl};

/// Everything of a camera apart from its link; survives reconnects.
pub struct Camera {
    /// Names this life of the camera: an edge node tells a restart from a broken link by it.
    pub epoch: u64,
    pub(crate) announce: CameraAnnounce,
    pub(super) frames: CameraLog,
    pub(super) log_bytes_max: u64,
    pub(super) counts: Arc<CaptureCounts>,
    pub(super) captured: watch::Receiver<u64>,
    /// Why it gives no frames, if so.
    pub(super) supplied: watch::Receiver<Option<NoFrames>>,
    pub(super) tables: Arc<TableSet>,
    pub(super) config: EngineConfig,
    pub(super) limits: FrameLimits,
    pub(super) privacy: Privacy,
    /// Moves the capture times; none where frames are given from outside.
    pub(super) source: Option<SourceControl>,
}

/// One link's worth of work.
struct Served<'camera> {
    camera: &'camera Camera,
    engine: Engine<CameraLog>,
    carrier: Carrier,
    encoder: Encoder,
    damages: Refusals,
    sending: HashMap<(TransferId, Instant), FrameSending>,
    originals: tokio::task::JoinSet<()>,
}

/// Originals on their way; more are not sent, and who asked for them hears of it by a time-out.
const ORIGINALS_MAX: usize = 32;

impl Camera {
    /// The announcement, with what has been seen of the frames since.
    pub fn announced(&self) -> CameraAnnounce {
        let measured = capture::frames_per_second(&self.frames.log);
        CameraAnnounce {
            size: self.counts.size().or(self.announce.size),
            frames_per_second: if measured > 0.0 {
                measured
            } else {
                self.announce.frames_per_second
            },
            ..self.announce.clone()
        }
    }

    /// Serves one link until it breaks or `stop`.
    ///
    /// # Errors
    /// Why the link broke.
    pub async fn serve(&self, carrier: Carrier, stop: &CancellationToken) -> Result<(), Down> {
        let (encoder, encoded) = Encoder::start(self.limits, self.privacy.clone())
            .map_err(|error| Down { why: format!("no encoder thread: {error}") })?;
        let engine = Engine::new(self.frames.clone(), self.tables.clone(), self.config.clone());
        let served = Served {
            camera: self,
            engine,
            carrier,
            encoder,
            damages: Refusals::new("frame damaged", "frames are whole again"),
            sending: HashMap::new(),
            originals: Default::default(),
        };
        served.run(encoded, self.captured.clone(), self.supplied.clone(), stop).await
    }
}

impl Served<'_> {
    async fn run(
        mut self,
        mut encoded: mpsc::Receiver<Finished>,
        mut captured: watch::Receiver<u64>,
        mut supplied: watch::Receiver<Option<NoFrames>>,
        stop: &CancellationToken,
    ) -> Result<(), Down> {
        // Where frames are given from outside, their times are, too.
        let mut clocks = self
            .camera
            .source
            .as_ref()
            .map_or_else(|| watch::channel(None).1, SourceControl::clocks);
        // This link does not know the state before it.
        if supplied.borrow().is_some() {
            supplied.mark_changed();
        }
        if clocks.borrow().is_some_and(|clock| !clock.is_sound()) {
            clocks.mark_changed();
        }
        loop {
            self.act().await?;
            let wake_at = self.engine.poll_timeout();
            tokio::select! {
                // Acknowledgements first: decisions about a new frame should know them.
                biased;
                () = stop.cancelled() => return Ok(()),
                incoming = self.carrier.recv() => self.receive(incoming?).await?,
                Some(finished) = encoded.recv() => match finished {
                    Finished::Frame(done) => self.encoded(done),
                    Finished::Original(original, body) => self.send_original(original, body),
                },
                Ok(()) = supplied.changed() => {
                    let none = supplied.borrow_and_update().clone();
                    self.carrier.send(no_frames(none).into()).await?;
                }
                Ok(()) = clocks.changed() => {
                    let clock = *clocks.borrow_and_update();
                    self.carrier.send(capture_clock(clock).into()).await?;
                }
                Ok(()) = captured.changed() => {
                    captured.borrow_and_update();
                    self.tell_path();
                    self.engine.handle_captured(clock::now());
                }
                () = clock::sleep_until(wake_at), if wake_at.is_some() => {
                    self.engine.handle_timeout(clock::now());
                }
            }
        }
    }

    fn tell_path(&mut self) {
        if let Some(path) = self.carrier.path() {
            self.engine.handle_path(clock::now(), path.rtt, path.rtt_min, path.in_flight);
        }
    }

    async fn receive(&mut self, incoming: Incoming) -> Result<(), Down> {
        match incoming {
            Incoming::Ack(ack) => {
                self.tell_path();
                self.engine.handle_ack(clock::now(), &ack);
            }
            Incoming::Record(Record::CameraInfoRequest(CameraInfoRequest { request })) => {
                let log = &self.camera.frames.log;
                let info = CameraInfo {
                    request,
                    camera: self.camera.announced(),
                    oldest: log.first_at(),
                    newest: log.last_at(),
                    frames: log.entries(),
                    bytes: log.bytes(),
                    bytes_max: self.camera.log_bytes_max,
                };
                self.carrier.send(info.into()).await?;
            }
            Incoming::Record(record) => self.ask(record),
            Incoming::Frame { .. } | Incoming::FrameReset { .. } | Incoming::Bulk { .. } => {
                tracing::debug!("an edge node sent a body that a camera has no use for");
            }
        }
        Ok(())
    }

    /// The edge node wants something of the camera.
    fn ask(&mut self, record: Record) {
        let now = clock::now();
        match record {
            Record::StartTransfer(start) => self.engine.handle_start(now, start),
            Record::UpdateTransfer(update) => self.engine.handle_update(now, update),
            Record::StopTransfer(stop) => self.engine.handle_stop(now, stop),
            Record::Share(share) => self.engine.handle_share(now, share),
            Record::FetchOriginal(fetch) => self.engine.handle_fetch(fetch),
            other => tracing::debug!(record = other.name(), "record not meant for a camera"),
        }
    }

    fn encoded(&mut self, done: Done) {
        let now = clock::now();
        match &done.outcome {
            Ok(Outcome::Encoded { .. }) => _ = self.damages.worked(now),
            Ok(Outcome::Unchanged { .. }) => {}
            Err(error) => _ = self.damages.failed(now, Some(Code::FRAME_INVALID), error),
        }
        self.engine.handle_encoded(now, done);
    }

    async fn act(&mut self) -> Result<(), Down> {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Started(started) => self.carrier.send(started.into()).await?,
                Action::Refused(refused) => self.carrier.send(refused.into()).await?,
                Action::Ended(ended) => self.carrier.send(ended.into()).await?,
                Action::Report(report) => self.carrier.send(report.into()).await?,
                Action::Unchanged(unchanged) => self.carrier.send(unchanged.into()).await?,
                Action::Frame { header, body, deadline, live } => {
                    self.send_frame(header, body, deadline, live).await?;
                }
                Action::Reset { transfer, frame } => {
                    if let Some(sending) = self.sending.remove(&(transfer, frame)) {
                        sending.reset();
                    }
                }
                Action::Over { transfer, frame } => {
                    self.sending.remove(&(transfer, frame));
                }
                Action::Original { original, body } => {
                    let found = matches!(original.outcome, OriginalOutcome::Found { .. });
                    if !found || !self.camera.privacy.covers_originals() {
                        self.send_original(original, body);
                    } else if let Err(busy) = self.encoder.cover(original, body) {
                        tracing::warn!(%busy, "the privacy regions of an original were not covered, and it is not sent");
                    }
                }
                Action::Encode(job) => {
                    let (transfer, frame) = (job.transfer, job.frame);
                    if let Err(busy) = self.encoder.encode(job) {
                        tracing::warn!(%transfer, %frame, %busy, "frame not encoded");
                        self.engine.handle_encode_failed(clock::now(), transfer, frame);
                    }
                }
                Action::Sent(transfer) => self.encoder.sent(transfer),
                Action::Lost(transfer) => self.encoder.lost(transfer),
                Action::Forget(transfer) => {
                    self.encoder.forget(transfer);
                    self.sending.retain(|(of, _), sending| {
                        if *of == transfer {
                            sending.reset();
                        }
                        *of != transfer
                    });
                }
                Action::Shift(shift) => {
                    // A live camera sets its own cadence; then only chance staggers it.
                    if let Some(source) = &self.camera.source {
                        source.delay(shift);
                    }
                }
            }
        }
        Ok(())
    }

    fn send_original(&mut self, original: Original, body: Bytes) {
        // Bulk waits behind frames; frames must not wait behind bulk.
        while self.originals.try_join_next().is_some() {}
        if self.originals.len() >= ORIGINALS_MAX {
            tracing::warn!(at = %original.at, "too many originals asked for at once");
            return;
        }
        let sender = self.carrier.sender();
        self.originals.spawn(async move {
            // A link that is down is noticed by the loop.
            let _ = sender.send_bulk(original.into(), body).await;
        });
    }

    async fn send_frame(
        &mut self,
        header: FrameHeader,
        body: Bytes,
        deadline: Instant,
        live: bool,
    ) -> Result<(), Down> {
        let (transfer, frame) = (header.transfer, header.at);
        match self.carrier.send_frame(header, body, deadline, live).await? {
            Sent::UnderWay(sending) => {
                self.engine.handle_started(clock::now(), transfer, frame);
                self.sending.insert((transfer, frame), sending);
            }
            Sent::Whole(ack) => {
                self.engine.handle_started(clock::now(), transfer, frame);
                self.engine.handle_ack(clock::now(), &ack);
            }
            Sent::Refused => self.engine.handle_not_sent(clock::now(), transfer, frame),
        }
        Ok(())
    }
}

/// Word of the clock by which a camera's frames are timed.
fn capture_clock(clock: Option<CaptureClock>) -> CameraReport {
    let wrong = clock.filter(|clock| !clock.is_sound());
    CameraReport {
        transfer: TransferId(0),
        at: clock::now(),
        capacity_bytes_per_second: None,
        text: wrong.map_or_else(String::new, |clock| clock.to_string()),
        what: Reported::CaptureClock,
    }
}

/// Word of a camera that gives no frames, or gives some again.
fn no_frames(none: Option<NoFrames>) -> CameraReport {
    let text = none.map_or_else(String::new, |none| none.sentence.as_ref().to_owned());
    CameraReport {
        transfer: TransferId(0),
        at: clock::now(),
        capacity_bytes_per_second: None,
        text,
        what: Reported::NoFrames,
    }
}

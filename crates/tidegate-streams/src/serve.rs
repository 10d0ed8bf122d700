//! Serving one camera's link: records become entries, notices and answers.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_api::{ApiError, Event, Infeasible, Missed, MissedWhy, Outcome};
use tidegate_camera::camera::PREPARE_AFTER;
use tidegate_link::carrier::{Carrier, Down, Incoming};
use tidegate_message::{Code, FrameRate, Instant};
use tidegate_process::clock;
use tidegate_wire::{
    CameraAnnounce, CameraReport, FrameHeader, Original, Record, Reported, TransferId, Unchanged,
};
use tokio_util::sync::CancellationToken;

use super::{
    NodeState,
    cameras::{Attachment, Camera, Owner},
    entry::{self, Arrival, Epoch, Meta, shared},
    rhythm::{Rhythm, TimeOut},
    stream::{AppendFailed, Stream},
    verdict,
};

/// How often the clock offset is read and the camera's share sent again.
const TICK: Duration = Duration::from_millis(500);

/// Serves a camera's link until it breaks.
///
/// # Errors
/// The camera is refused: another holds its name.
pub(super) async fn serve(
    node: Arc<NodeState>,
    carrier: Carrier,
    announce: CameraAnnounce,
    owner: Owner,
    epoch: u64,
    stop: &CancellationToken,
) -> Result<(), ApiError> {
    let transport = carrier.transport().to_owned();
    let (camera, attachment) = node.cameras.attach(announce, owner, epoch, transport)?;
    // Its own node has come: the camera published here under its name ends.
    node.hosted.displace(&camera.name);
    serve_attached(node, carrier, camera, attachment, stop).await;
    Ok(())
}

/// Serves the link of a camera that is attached already, until it breaks.
pub(super) async fn serve_attached(
    node: Arc<NodeState>,
    carrier: Carrier,
    camera: Arc<Camera>,
    mut attachment: Attachment,
    stop: &CancellationToken,
) {
    tracing::info!(camera = %camera.name, transport = carrier.transport(), "camera online");
    let life = attachment.life;
    let serving =
        Serving { node: node.clone(), camera: camera.clone(), life, carrier, rhythms: Vec::new() };
    let ended = serving.run(&mut attachment, stop).await;
    let why = match ended {
        Ok(()) => "the node stops, or the camera has a newer link".to_owned(),
        Err(Down { why }) => why,
    };
    tracing::info!(camera = %camera.name, why, "camera offline");
    camera.detach(attachment.id, &why);
    node.shares().left(clock::now(), &camera.name);
}

fn ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

struct Serving {
    node: Arc<NodeState>,
    camera: Arc<Camera>,
    /// Frames over this link were captured in this one.
    life: Epoch,
    carrier: Carrier,
    /// Of the streams with readers.
    rhythms: Vec<(Arc<Stream>, Rhythm)>,
}

impl Serving {
    async fn run(
        mut self,
        attachment: &mut Attachment,
        stop: &CancellationToken,
    ) -> Result<(), Down> {
        // Independent of each other, so that a full output never stops the input: a camera in this process may wait for
        // us to receive before it receives.
        let out = self.carrier.sender();
        let (node, camera) = (self.node.clone(), self.camera.clone());
        let sending = async {
            let mut tick = ticks();
            loop {
                tokio::select! {
                    record = attachment.records.recv() => match record {
                        Some(record) => out.send(record).await?,
                        // A newer link of the same camera has taken over.
                        None => return Ok(()),
                    },
                    _ = tick.tick() => {
                        let share = node.shares().take(clock::now(), &camera.name);
                        if let Some(share) = share {
                            out.send(share.into()).await?;
                        }
                    }
                }
            }
        };
        let receiving = async {
            let mut tick = ticks();
            // The streams that have got a frame, and its length.
            let mut fed: Vec<(Arc<Stream>, usize)> = Vec::new();
            loop {
                let overdue_at = self.overdue_at();
                tokio::select! {
                    incoming = self.carrier.recv() => {
                        if let Some((stream, bytes)) = self.receive(incoming?) {
                            fed.retain(|(other, _)| !Arc::ptr_eq(other, &stream));
                            fed.push((stream, bytes));
                        }
                    }
                    _ = tick.tick() => {
                        self.camera.set_clock_offset(self.carrier.clock_offset());
                        self.rhythms.retain(|(stream, _)| stream.sessions() > 0);
                    }
                    () = clock::sleep_until(overdue_at), if overdue_at.is_some() => self.tell_overdue(),
                    () = tokio::time::sleep(PREPARE_AFTER), if !fed.is_empty() => {
                        fed.retain(|(stream, bytes)| !stream.prepare(*bytes));
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = sending => ended,
            ended = receiving => ended,
        }
    }

    /// Takes what comes; for a frame that is kept, gives its stream and its length.
    fn receive(&mut self, incoming: Incoming) -> Option<(Arc<Stream>, usize)> {
        match incoming {
            Incoming::Frame { header, body, first_at, last_at } => {
                self.heard(header.transfer, Some(header.at).filter(|_| !header.replayed));
                let arrival = self.arrival(first_at, last_at);
                let kept = self.frame(header, arrival, &body);
                return kept.map(|stream| (stream, body.len()));
            }
            Incoming::Record(record) => self.record(record),
            Incoming::Bulk { record: Record::Original(original), body } => {
                self.original(original, body);
            }
            Incoming::FrameReset { header, received, .. } => tracing::debug!(
                camera = %self.camera.name, frame = %header.at, received, "frame reset by the camera"
            ),
            Incoming::Bulk { record, .. } => {
                tracing::debug!(record = record.name(), "body not meant for a node");
            }
            Incoming::Ack(_) => {}
        }
        None
    }

    fn arrival(&self, first_at: Instant, last_at: Instant) -> Arrival {
        let offset_nanos = self.camera.clock_offset().map_or(0, |(offset, _)| offset);
        Arrival { life: self.life, first_at, last_at, offset_nanos }
    }

    /// Keeps a frame in its stream, which is returned.
    fn frame(&self, header: FrameHeader, arrival: Arrival, body: &Bytes) -> Option<Arc<Stream>> {
        let stream = self.camera.stream(header.transfer)?;
        if stream.holds(header.at) {
            // The camera took it back to send it smaller, but it had already come.
            return None;
        }
        let source = || self.camera.announce().and_then(|announce| announce.size);
        self.node.shares().frame(clock::now(), &self.camera.name, &header, &arrival, source);
        let at = header.at;
        let meta = Meta::Frame(header);
        if let Err(error) = stream.append(at, arrival, &meta, body) {
            self.not_kept(&stream, at, &error);
            return None;
        }
        let Meta::Frame(header) = meta else { return None };
        self.camera.verdicts.tell(|| {
            let stages = entry::stages(&header, &arrival, clock::now());
            let bound = stream.demand().bounds.latency();
            let outcome = if stages.total() > bound { Outcome::Late } else { Outcome::Kept };
            verdict::sent(&stream, &header, stages, outcome, bound, stream.reason())
        });
        stream.tell_setting(at, &header.setting);
        Some(stream)
    }

    /// A sign of life of a stream's camera: of a frame captured at that time of its clock, or of none.
    fn heard(&mut self, transfer: TransferId, captured_at: Option<Instant>) {
        let Some(stream) = self.camera.stream(transfer).filter(|stream| stream.is_open()) else {
            return;
        };
        let now = clock::now();
        let at = self.rhythms.iter().position(|(other, _)| Arc::ptr_eq(other, &stream));
        let at = at.unwrap_or_else(|| {
            self.rhythms.push((stream.clone(), Rhythm::default()));
            self.rhythms.len() - 1
        });
        let rhythm = &mut self.rhythms[at].1;
        let was_overdue = match captured_at {
            Some(captured_at) => {
                let (offset, _) = self.camera.clock_offset().unwrap_or_default();
                let nanos = captured_at.as_nanos().saturating_add(offset);
                rhythm.frame(now, Instant::from_nanos(nanos).min(now))
            }
            None => rhythm.beat(now),
        };
        if was_overdue {
            stream.tell(Event::CameraOnline);
        }
    }

    fn time_out(&self, stream: &Stream, rhythm: &Rhythm) -> Option<TimeOut> {
        let rtt = self.carrier.path().map_or(Duration::ZERO, |path| path.rtt);
        let demanded = stream.demand().frame_rate.map(FrameRate::interval).unwrap_or_default();
        rhythm.time_out(demanded, rtt, self.carrier.idle_timeout())
    }

    /// When the first stream is overdue.
    fn overdue_at(&self) -> Option<Instant> {
        let bytes_at = self.carrier.frame_bytes_at();
        let due = |(stream, rhythm): &(Arc<Stream>, Rhythm)| {
            self.time_out(stream, rhythm).map(|time_out| rhythm.due(time_out, bytes_at))
        };
        self.rhythms.iter().filter_map(due).min()
    }

    fn tell_overdue(&mut self) {
        let (now, bytes_at) = (clock::now(), self.carrier.frame_bytes_at());
        for at in 0..self.rhythms.len() {
            let (stream, rhythm) = &self.rhythms[at];
            let time_out = self.time_out(stream, rhythm);
            let is_due = |out: &TimeOut| rhythm.due(*out, bytes_at) <= now;
            let Some(time_out) = time_out.filter(is_due) else { continue };
            let ms = |duration: Duration| duration.as_millis();
            let why = format!(
                "nothing came for {} ms, which is twice the time between two frames ({} ms), with {} ms of latency and {} ms for what was lost",
                ms(time_out.total()),
                ms(time_out.gaps),
                ms(time_out.latency),
                ms(time_out.mending),
            );
            tracing::info!(camera = %self.camera.name, transfer = %stream.transfer, why, "frames are overdue");
            stream.tell(Event::CameraOffline(why.into()));
            self.rhythms[at].1.told();
        }
    }

    fn record(&mut self, record: Record) {
        match record {
            Record::Unchanged(marker) => {
                self.heard(marker.transfer, Some(marker.at));
                self.unchanged(marker);
            }
            Record::CameraReport(report) => {
                match report.what {
                    Reported::FramesDropped { .. } => self.heard(report.transfer, Some(report.at)),
                    Reported::Idle => return self.heard(report.transfer, None),
                    Reported::NoFrames => return self.no_frames(&report.text),
                    Reported::CaptureClock => return self.capture_clock(&report.text),
                    _ => {}
                }
                if let Some(stream) = self.camera.stream(report.transfer) {
                    self.report(&stream, &report);
                }
            }
            Record::TransferRefused(refused) => {
                if let Some(stream) = self.camera.stream(refused.transfer) {
                    // A code of a newer camera: the sentence says what it is about.
                    let code = refused.code().unwrap_or(Code::INTERNAL);
                    tracing::info!(camera = %self.camera.name, %code, text = refused.text, "transfer refused");
                    stream.refuse(code, shared(&refused.text));
                }
            }
            Record::TransferEnded(ended) => {
                if let Some(stream) = self.camera.stream(ended.transfer) {
                    stream.end(ended.reason);
                }
            }
            Record::TransferStarted(started) => {
                let (transfer, first) = (started.transfer, started.first);
                tracing::debug!(camera = %self.camera.name, %transfer, %first, "transfer started");
                if let Some(stream) = self.camera.stream(transfer) {
                    stream.began(self.life, first);
                }
            }
            Record::CameraInfo(info) => self.camera.answer_info(info),
            other => tracing::debug!(record = other.name(), "record not meant for a node"),
        }
    }

    /// The camera gives no frames, for that reason; without one, it does again.
    fn no_frames(&self, why: &str) {
        let why = (!why.is_empty()).then(|| shared(why));
        if !self.camera.set_no_frames(why.clone()) {
            return;
        }
        match why {
            Some(why) => tracing::warn!(camera = %self.camera.name, %why, "camera gives no frames"),
            None => tracing::info!(camera = %self.camera.name, "camera gives frames again"),
        }
    }

    /// The camera's frames are timed by another clock than they should be, as that says; without a word by a sound one.
    fn capture_clock(&self, said: &str) {
        let said = (!said.is_empty()).then(|| shared(said));
        if !self.camera.set_capture_clock(said.clone()) {
            return;
        }
        match said {
            Some(said) => {
                tracing::warn!(camera = %self.camera.name, %said, "capture times of the camera");
            }
            None => {
                tracing::info!(camera = %self.camera.name, "capture times of the camera are by its clock");
            }
        }
    }

    fn unchanged(&self, marker: Unchanged) {
        let Some(stream) = self.camera.stream(marker.transfer) else { return };
        let now = clock::now();
        let arrival = self.arrival(now, now);
        let at = marker.at;
        match stream.append(at, arrival, &Meta::Unchanged(marker), &Bytes::new()) {
            Ok(()) => self.tell_unsent(&stream, at, Outcome::Unchanged),
            Err(error) => self.not_kept(&stream, at, &error),
        }
    }

    /// A frame or marker came after a newer one: each travels for itself.
    fn not_kept(&self, stream: &Stream, at: Instant, error: &AppendFailed) {
        tracing::debug!(camera = %self.camera.name, %at, error = %tidegate_message::error_chain(error), "frame not kept");
        self.tell_unsent(stream, at, Outcome::Overtaken);
        stream.tell_missed(Missed { from: at, to: at, count: 1, why: MissedWhy::Overtaken });
    }

    fn report(&self, stream: &Stream, report: &CameraReport) {
        if let Some(capacity) = report.capacity_bytes_per_second {
            stream.set_capacity(capacity);
        }
        let sentence = shared(&report.text);
        match report.what {
            Reported::Infeasible {
                latency_at_accuracy,
                accuracy_at_latency,
                frames_per_second,
            } => stream.tell(Event::Infeasible(Infeasible {
                latency_at_accuracy,
                accuracy_at_latency,
                frames_per_second,
                sentence,
            })),
            Reported::Feasible => stream.tell(Event::Feasible),
            Reported::KnobsChanged => stream.set_reason(sentence),
            Reported::FramesDropped { why, count, span } => {
                let (why, outcome) = verdict::missed(why);
                // A verdict is about one frame.
                if count == 1 {
                    self.tell_unsent(stream, report.at, outcome);
                }
                let (from, to) = (report.at - span, report.at);
                stream.tell_missed(Missed { from, to, count, why });
            }
            Reported::ControllerFailed => stream.tell(Event::ControllerFailed(sentence)),
            Reported::TableMissing => stream.tell(Event::AccuracyAssumed(sentence)),
            Reported::Idle | Reported::NoFrames | Reported::CaptureClock => {} // heard before
            Reported::Failed | Reported::Other(_) => {
                tracing::info!(camera = %self.camera.name, text = report.text, "camera reports");
            }
        }
    }

    fn tell_unsent(&self, stream: &Stream, at: Instant, outcome: Outcome) {
        let bound = || stream.demand().bounds.latency();
        self.camera.verdicts.tell(|| verdict::unsent(stream, at, outcome, bound()));
    }

    fn original(&self, original: Original, body: Bytes) {
        self.camera.answer_original(original, body);
    }
}

//! One section: its cameras, each with a watch of its own, and what they report, on the bus.
//!
//! ```text
//!  cameras that match ─▶ Watch, a task each ─▶ reports ─▶ TOPIC             JSON
//!                                                    ├──▶ TOPIC/original    JPEG, or a file
//!                                                    └──▶ Home Assistant
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_api::{ApiError, CameraInfo};
use tidegate_bus::{
    Attached, Attachment, BusError, Deliveries, Publication, Publisher, filter_of, part_id,
};
use tidegate_message::{
    Backoff, CameraName, Identity, IdentityKind, Instant, LogLimiter, error_chain,
};
use tidegate_wire::mqtt::{QoS, ReasonCode, SubscribeFilter};
use tidegate_workers::SharedPool;
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::{self, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use crate::{
    DetectSettings, Originals, Shared, Stop,
    detector::{Detector, PoolDetector},
    home_assistant::{HomeAssistant, Retained},
    report::{About, Pending, Report},
    store::Folder,
    topic::ORIGINAL,
    watch::Watch,
};

/// Reports on their way to the bus; a watch waits for room.
const REPORTS_MAX: usize = 64;
/// Originals on their way to the disk; one that finds no room is not kept, and said so.
const ORIGINALS_MAX: usize = 8;
/// How long the end of a section waits for the disk.
const STORE_END_MAX: Duration = Duration::from_secs(2);
/// How often a section that names cameras by a pattern looks which there are.
const LIST_EVERY: Duration = Duration::from_secs(2);
/// How often states for Home Assistant are looked at: whether they still hold, and are to be said again.
const STATES_EVERY: Duration = Duration::from_secs(1);
/// Waits between tries to reach the broker.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Runs a section until `stop`.
pub(crate) async fn run(shared: Shared, settings: DetectSettings, stop: Stop) {
    let mut retry = Backoff::new(RETRY.0, RETRY.1);
    while !stop.now.is_cancelled() {
        match serve(&shared, &settings, &stop, &mut retry).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(
                    detector = settings.name,
                    error = error_chain(&error),
                    "the detector has no broker"
                );
            }
        }
        let wait = retry.next_wait();
        tokio::select! {
            () = stop.now.cancelled() => return,
            () = time::sleep(wait) => {}
        }
    }
}

async fn serve(
    shared: &Shared,
    settings: &DetectSettings,
    stop: &Stop,
    retry: &mut Backoff,
) -> Result<(), BusError> {
    let name = format!("detect {}", settings.name);
    let identity = Identity::new(IdentityKind::Internal, &name, &name);
    let home_assistant = settings.home_assistant.clone().map(|prefix| {
        let labels = settings.watch.labels.iter().flatten().cloned().collect();
        let publishes = matches!(settings.originals, Originals::Publish);
        let node = shared.kept.as_ref().map(|kept| kept.node.clone());
        let rate = settings.watch.frame_rate;
        HomeAssistant::new(prefix, node, settings.name.clone(), labels, publishes, rate)
    });
    let announced = home_assistant.iter().map(|entities| SubscribeFilter {
        maximum_qos: QoS::AtMostOnce,
        // Only what was retained before is of interest.
        retain_as_published: false,
        ..filter_of(entities.announced())
    });
    let attachment = Attachment {
        name,
        filters: announced.collect(),
        ..Attachment::new(identity, part_id("detect", &settings.name))
    };
    let Attached { publisher, mut deliveries, .. } = shared.bus.attach(attachment).await?;
    retry.reset();
    let pool = match &settings.program {
        Some(program) => SharedPool::new(program.clone()),
        None => shared.pool.clone(),
    };
    let detector = Arc::new(PoolDetector::new(pool, settings.model.clone()));
    let (reports, mut reported) = mpsc::channel(REPORTS_MAX);
    let mut cameras = Cameras {
        shared,
        settings,
        detector: detector.clone(),
        reports,
        watched: BTreeMap::new(),
        tasks: JoinSet::new(),
        stop: stop.now.child_token(),
    };
    let mut speaker = Speaker {
        settings,
        detector,
        publisher,
        home_assistant,
        store: settings
            .originals
            .folder()
            .map(|(path, bytes)| Store::begin(path.to_owned(), bytes)),
        began: time::Instant::now(),
        refused: LogLimiter::default(),
    };
    let mut look = time::interval(LIST_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut states = time::interval(STATES_EVERY);
    states.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let looks = settings.cameras.iter().any(|pattern| pattern.exact().is_none());
    // In a task of its own: a camera that does not answer holds up no report.
    let mut listing: JoinSet<Result<Vec<CameraInfo>, ApiError>> = JoinSet::new();
    let mut changed = cameras.exchange(Vec::new());
    let served = loop {
        if let Err(error) = speaker.exchanged(&std::mem::take(&mut changed)).await {
            break Err(error);
        }
        tokio::select! {
            () = stop.now.cancelled() => break Ok(()),
            _ = look.tick(), if looks && listing.is_empty() => {
                let frames = shared.frames.clone();
                listing.spawn(async move { frames.cameras().await });
            }
            Some(listed) = listing.join_next() => match listed {
                Ok(Ok(there)) => changed = cameras.exchange(there),
                Ok(Err(error)) => {
                    tracing::debug!(detector = settings.name, error = error.chain(), "cameras cannot be listed now");
                }
                Err(error) => tracing::error!(detector = settings.name, %error, "listing cameras failed"),
            },
            ready = deliveries.ready() => {
                let heard = match ready {
                    Ok(()) => speaker.hear(&mut deliveries).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = heard {
                    break Err(error);
                }
            }
            _ = states.tick(), if speaker.home_assistant.is_some() => {
                if let Err(error) = speaker.tick().await {
                    break Err(error);
                }
            }
            Some((camera, report)) = reported.recv() => {
                // Of a camera that is no longer watched nothing more is said.
                if cameras.watched.contains_key(&camera)
                    && let Err(error) = speaker.say(&camera, report).await
                {
                    break Err(error);
                }
            }
            Some(ended) = cameras.tasks.join_next() => {
                if let Err(error) = ended && !error.is_cancelled() {
                    tracing::error!(detector = settings.name, %error, "a watch ended by a panic; the others continue");
                }
            }
        }
    };
    cameras.stop.cancel();
    drop(reported);
    while cameras.tasks.join_next().await.is_some() {}
    if served.is_ok() {
        speaker.leave(stop.for_good.is_cancelled()).await;
    }
    // The folder may be that of the next section.
    if let Some(store) = speaker.store {
        store.end().await;
    }
    served
}

/// Cameras that are watched from now on, and that are no longer.
#[derive(Default)]
struct Change {
    come: Vec<CameraName>,
    gone: Vec<CameraName>,
}

/// The cameras that are watched.
struct Cameras<'a> {
    shared: &'a Shared,
    settings: &'a DetectSettings,
    detector: Arc<PoolDetector>,
    reports: mpsc::Sender<(CameraName, Pending)>,
    watched: BTreeMap<CameraName, CancellationToken>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Cameras<'_> {
    /// Watches the cameras that are named, and those that are `there` and meant.
    fn exchange(&mut self, there: Vec<CameraInfo>) -> Change {
        let patterns = &self.settings.cameras;
        let mut wanted: Vec<CameraName> =
            patterns.iter().filter_map(|pattern| pattern.exact()).collect();
        let meant = there.into_iter().filter(|camera| {
            let main = camera.substream_of.as_ref();
            patterns.iter().any(|pattern| pattern.means(&camera.name, main))
        });
        wanted.extend(meant.map(|camera| camera.name));
        wanted.sort();
        wanted.dedup();
        let gone: Vec<CameraName> =
            self.watched.keys().filter(|name| !wanted.contains(name)).cloned().collect();
        for camera in &gone {
            if let Some(stop) = self.watched.remove(camera) {
                stop.cancel();
            }
        }
        wanted.retain(|name| !self.watched.contains_key(name));
        for camera in &wanted {
            let stop = self.stop.child_token();
            let watch = Watch {
                camera: camera.clone(),
                settings: Arc::new(self.settings.watch.clone()),
                frames: self.shared.frames.clone(),
                detector: self.detector.clone(),
                reports: self.reports.clone(),
            };
            self.tasks.spawn(watch.run(stop.clone()));
            self.watched.insert(camera.clone(), stop);
        }
        Change { come: wanted, gone }
    }
}

/// Publishes what is reported.
struct Speaker<'a> {
    settings: &'a DetectSettings,
    detector: Arc<PoolDetector>,
    publisher: Publisher,
    home_assistant: Option<HomeAssistant>,
    store: Option<Store>,
    began: time::Instant,
    refused: LogLimiter,
}

impl Speaker<'_> {
    fn topic(&self, camera: &CameraName) -> String {
        self.settings.topic.of(&self.settings.name, camera)
    }

    async fn exchanged(&mut self, Change { come, gone }: &Change) -> Result<(), BusError> {
        let topics: Vec<String> = come.iter().map(|camera| self.topic(camera)).collect();
        let Some(entities) = &mut self.home_assistant else { return Ok(()) };
        let mut out: Vec<Retained> = gone.iter().flat_map(|camera| entities.end(camera)).collect();
        for (camera, topic) in come.iter().zip(topics) {
            out.extend(entities.begin(camera, topic));
        }
        self.retain(out).await
    }

    async fn say(&mut self, camera: &CameraName, report: Pending) -> Result<(), BusError> {
        let topic = self.topic(camera);
        let report = report.leave(time::Instant::now());
        if let Report::Original { captured_at, jpeg } = &report {
            return match &self.store {
                Some(store) => {
                    store.keep(camera, *captured_at, jpeg);
                    Ok(())
                }
                None => {
                    // Retained, so that a page that is opened shows the last one.
                    let is_retained = self.home_assistant.is_some();
                    self.publish(&format!("{topic}/{ORIGINAL}"), jpeg, is_retained).await
                }
            };
        }
        let model = self.detector.name();
        let about = About { detector: &self.settings.name, model: &model, camera };
        let message = report.json(about).to_string();
        self.publish(&topic, message.as_bytes(), false).await?;
        let now = self.now();
        let out = self.home_assistant.as_mut().map(|it| it.report(now, camera, &report));
        self.retain(out.unwrap_or_default()).await
    }

    /// Reads what an earlier start announced.
    async fn hear(&mut self, deliveries: &mut Deliveries) -> Result<(), BusError> {
        let mut out = Vec::new();
        while let Some(message) = deliveries.next_message()? {
            if let Some(entities) = self.home_assistant.as_mut().filter(|_| message.retain()) {
                out.extend(entities.earlier(message.topic(), &message.payload()));
            }
        }
        self.retain(out).await
    }

    async fn tick(&mut self) -> Result<(), BusError> {
        let now = self.now();
        let out = self.home_assistant.as_mut().map(|entities| entities.tick(now));
        self.retain(out.unwrap_or_default()).await
    }

    fn now(&self) -> Instant {
        Instant::EPOCH + self.began.elapsed()
    }

    /// The section ends: its cameras are no longer watched.
    async fn leave(&mut self, for_good: bool) {
        let entities = self.home_assistant.as_mut();
        let out = entities.map(|entities| entities.leave(for_good)).unwrap_or_default();
        // A broker that stops takes it no more.
        if let Err(error) = self.retain(out).await {
            tracing::debug!(
                detector = self.settings.name,
                error = error_chain(&error),
                "the last states were not published"
            );
        }
        if let Err(error) = self.publisher.detach(ReasonCode::SUCCESS) {
            tracing::debug!(
                detector = self.settings.name,
                error = error_chain(&error),
                "the broker has ended before the detector"
            );
        }
    }

    async fn retain(&mut self, messages: Vec<Retained>) -> Result<(), BusError> {
        for Retained { topic, payload, expires_after } in messages {
            let seconds = |after: Duration| u32::try_from(after.as_secs()).unwrap_or(u32::MAX);
            let message_expiry = expires_after.map(seconds);
            let (topic, payload) = (&*topic, &*payload);
            let state = Publication { topic, payload, message_expiry, ..Publication::default() };
            self.send(Publication { retain: true, ..state }).await?;
        }
        Ok(())
    }

    async fn publish(&mut self, topic: &str, payload: &[u8], retain: bool) -> Result<(), BusError> {
        self.send(Publication { topic, payload, retain, ..Publication::default() }).await
    }

    async fn send(&mut self, publication: Publication<'_>) -> Result<(), BusError> {
        let publication = Publication { qos: self.settings.qos, ..publication };
        match self.publisher.send(&publication).await {
            Ok(_) => Ok(()),
            // The next may find room.
            Err(error @ (BusError::Message { .. } | BusError::Publish(_))) => {
                if let Some(count) = self.refused.add(self.now(), 1) {
                    tracing::warn!(
                        detector = self.settings.name,
                        count,
                        error = error_chain(&error),
                        "messages were not published"
                    );
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// A thread that keeps originals in a folder.
struct Store {
    originals: mpsc::Sender<(CameraName, Instant, Bytes)>,
    /// It ends once the sender is dropped, and what was sent is written.
    thread: JoinHandle<()>,
}

impl Store {
    fn begin(path: std::path::PathBuf, bytes_max: u64) -> Self {
        let (originals, mut received) =
            mpsc::channel::<(CameraName, Instant, Bytes)>(ORIGINALS_MAX);
        let thread = spawn_blocking(move || {
            let mut folder: Option<Folder> = None;
            while let Some((camera, at, jpeg)) = received.blocking_recv() {
                let kept = (|| {
                    let folder = match &mut folder {
                        Some(folder) => folder,
                        None => folder.insert(Folder::open(&path, bytes_max)?),
                    };
                    folder.keep(&camera, at, &jpeg)
                })();
                if let Err(error) = kept {
                    tracing::error!(%camera, path = %path.display(), %error, "an original is not kept");
                    // It is looked at again: others may have changed it.
                    folder = None;
                }
            }
        });
        Self { originals, thread }
    }

    /// Waits until all originals are written; not for ever.
    async fn end(self) {
        drop(self.originals);
        match time::timeout(STORE_END_MAX, self.thread).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "keeping originals ended by a panic"),
            Err(_) => {
                tracing::warn!("the last originals are still being written: the disk is too slow");
            }
        }
    }

    fn keep(&self, camera: &CameraName, at: Instant, jpeg: &Bytes) {
        if self.originals.try_send((camera.clone(), at, jpeg.clone())).is_err() {
            tracing::warn!(%camera, "an original is not kept: the disk is too slow");
        }
    }
}

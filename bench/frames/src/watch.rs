//! The application of the live benches: subscribes, notes when each frame arrives, fetches originals afterwards.
//!
//! Latency is one clock, `CLOCK_MONOTONIC`: a frame's capture time is a reading of it, moved by the camera's anchor (wall
//! time less monotonic time when the camera started); the arrival is a reading of it in the application. The anchor is
//! read here as well. The kernel corrects both clocks at one rate, so the anchors of two processes differ only if someone has
//! stepped the wall clock between their starts: the anchor is read before and after, and a run in which it moved is refused.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use futures::StreamExt as _;
use tidegate_camera::detector::Pair;
use tidegate_client::{Client, Credentials, Event, Stages, SubscribeRequest, Subscription};
use tidegate_identity::pki::NODE_SERVER_NAME;
use tidegate_message::{CameraName, Demand, Instant};
use tidegate_sys::clock::{monotonic_nanos, realtime_nanos};
use tokio::time;

use crate::site::Site;

/// Longest wait for the nodes to come up.
const READY_MAX: Duration = Duration::from_secs(30);
/// How long frames may still arrive after the last that counts was captured; later than any bound here.
const GRACE: Duration = Duration::from_millis(700);
/// Most that two readings of the anchor may differ, in nanoseconds: the time of a reading on a busy machine, and no
/// step.
const ANCHOR_SLACK: i64 = 500_000;

/// An application's demand.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Of every camera.
    pub demand: Demand,
    /// How many subscribers each camera has.
    pub subscribers: usize,
    /// How long frames are counted.
    pub length: Length,
    /// Frames of each camera that are kept beside their originals.
    pub pairs: usize,
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// So long after all have subscribed.
    For(Duration),
    /// So long after the medium's schedule began.
    UntilSchedule(Duration),
}

/// A frame or a marker, as it reached the application.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When it was captured, in nanoseconds of `CLOCK_MONOTONIC`.
    pub captured: i64,
    /// Capture to callback, in milliseconds.
    pub latency_ms: f64,
    /// Where the time went, as the nodes report it.
    pub stages: Stages,
    /// Size of the frame; 0 for a marker.
    pub bytes: usize,
    /// The accuracy that the table promises.
    pub accuracy: f64,
    /// The knob setting; none for a marker.
    pub knobs: Option<Arc<str>>,
}

/// The results of one run.
#[derive(Debug)]
pub struct Watched {
    /// Frames captured from here on count, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began: i64,
    /// Frames captured before this count.
    pub ended: i64,
    /// Arrivals by camera, then by subscriber.
    pub cameras: Vec<Vec<Vec<Arrival>>>,
    /// Delivered frames of each camera and their originals, in order of capture.
    pub pairs: Vec<Vec<Pair>>,
    /// Other events of the first subscribers, and how often; of missed frames, how many.
    pub told: Told,
}

/// Events of subscribers besides frames and markers, and how often.
pub type Told = BTreeMap<String, u64>;

/// Runs an application against a site.
///
/// # Errors
/// The nodes do not come up, a subscription fails, or the wall clock was stepped.
pub fn watch(site: &mut Site, asked: &Asked) -> anyhow::Result<Watched> {
    let until = match asked.length {
        Length::For(_) => None,
        Length::UntilSchedule(after) => Some(site.began() + nanos(after)),
    };
    let (endpoint, pki, names) = (site.endpoint(), site.pki(), site.names());
    let watched = site.within_app(|| block_on(run(&endpoint, &pki, &names, asked, until))?);
    watched.map_err(|error| site.explain(error))
}

/// Runs a future to its end on this thread.
///
/// # Errors
/// There is no runtime to be had.
pub fn block_on<F: Future>(future: F) -> anyhow::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("starting a runtime")?.block_on(future))
}

async fn run(
    endpoint: &str,
    pki: &Path,
    names: &[String],
    asked: &Asked,
    until: Option<i64>,
) -> anyhow::Result<Watched> {
    let anchor = anchor();
    let client = ready(endpoint, pki, names.len()).await?;
    let mut subscriptions = Vec::new();
    for name in names {
        for _ in 0..asked.subscribers {
            let request = SubscribeRequest::with_demand(name.parse()?, asked.demand);
            subscriptions.push(client.subscribe(request).await?);
        }
    }
    let began = monotonic_nanos();
    let ended = match asked.length {
        Length::For(length) => began + nanos(length),
        Length::UntilSchedule(_) => until.context("a schedule has a beginning")?,
    };
    let length =
        Duration::from_nanos(u64::try_from(ended - began).context("the schedule is over")?);
    let deadline = time::Instant::now() + length + GRACE;
    let window = began..ended;
    // Frames to keep, at most twice as many as wanted: the cadence is not known here.
    let every = if asked.pairs == 0 { usize::MAX } else { keep_every(length, asked.pairs) };
    let mut tasks = Vec::new();
    for (index, subscription) in subscriptions.into_iter().enumerate() {
        let keep = if index % asked.subscribers == 0 { every } else { usize::MAX };
        let window = window.clone();
        tasks.push(tokio::spawn(follow(subscription, window, anchor, deadline, keep)));
    }
    let mut cameras: Vec<Vec<Vec<Arrival>>> = Vec::new();
    let (mut kept, mut told) = (Vec::new(), Told::new());
    for (index, task) in tasks.into_iter().enumerate() {
        let followed = task.await.context("a subscriber panicked")??;
        if index % asked.subscribers == 0 {
            cameras.push(Vec::new());
            kept.push(followed.kept);
            for (what, count) in followed.told {
                *told.entry(what).or_default() += count;
            }
        }
        cameras.last_mut().context("each camera has a first subscriber")?.push(followed.arrivals);
    }
    let moved = self::anchor() - anchor;
    ensure!(
        moved.abs() <= ANCHOR_SLACK,
        "the wall clock was stepped by {:.1} ms during the run: capture times cannot be compared",
        moved as f64 / 1e6
    );
    let mut pairs = Vec::new();
    for (name, frames) in names.iter().zip(kept) {
        pairs.push(originals(&client, &name.parse()?, frames, asked.pairs).await?);
    }
    Ok(Watched { began, ended, cameras, pairs, told })
}

/// A client, once the node answers and every camera has captured.
///
/// # Errors
/// They do not come up in time; the last problem is named.
pub async fn ready(endpoint: &str, pki: &Path, cameras: usize) -> anyhow::Result<Client> {
    let began = time::Instant::now();
    loop {
        let state = async {
            let client = connect(endpoint, pki).await?;
            let known = client.cameras().await?;
            let up = known.iter().filter(|c| c.online && c.newest_at.is_some()).count();
            anyhow::Ok((client, up))
        };
        let problem = match state.await {
            Ok((client, up)) if up == cameras => return Ok(client),
            Ok((_, up)) => format!("{up} of {cameras} cameras are online"),
            Err(error) => format!("{error:#}"),
        };
        if began.elapsed() > READY_MAX {
            bail!("the nodes did not come up within {} s: {problem}", READY_MAX.as_secs());
        }
        time::sleep(Duration::from_millis(100)).await;
    }
}

/// A client with the application's certificate.
///
/// # Errors
/// The node does not answer or refuses.
pub async fn connect(endpoint: &str, pki: &Path) -> anyhow::Result<Client> {
    let file = |name: &str| pki.join(name);
    let credentials =
        Credentials::load(file("ca.pem"), file("application.pem"), file("application.key"))?;
    Ok(Client::connect(endpoint, credentials.server_name(NODE_SERVER_NAME)).await?)
}

type Kept = Vec<(Instant, Bytes)>;

/// The deliveries of one subscriber.
#[derive(Default)]
struct Followed {
    arrivals: Vec<Arrival>,
    kept: Kept,
    told: Told,
}

async fn follow(
    mut subscription: Subscription,
    window: std::ops::Range<i64>,
    anchor: i64,
    deadline: time::Instant,
    keep: usize,
) -> anyhow::Result<Followed> {
    let Followed { mut arrivals, mut kept, mut told } = Followed::default();
    while let Ok(event) = time::timeout_at(deadline, subscription.next()).await {
        let now = monotonic_nanos();
        let event = event.context("a subscription ended by itself")??;
        let (captured_at, stages, frame) = match event {
            Event::Frame(frame) if !frame.replayed => {
                (frame.captured_at, frame.stages, Some(frame))
            }
            Event::Unchanged(marker) if !marker.replayed => {
                (marker.captured_at, marker.stages, None)
            }
            Event::Ended(why) => bail!("a subscription ended: {why}"),
            other => {
                if let Some((what, count)) = remark(&other) {
                    *told.entry(what).or_default() += count;
                }
                continue;
            }
        };
        let captured = captured_at.as_nanos() - anchor;
        if !window.contains(&captured) {
            continue;
        }
        let latency_ms = (now - captured) as f64 / 1e6;
        let (bytes, accuracy, knobs) = match frame {
            Some(frame) => {
                if arrivals.len() % keep == 0 && keep != usize::MAX {
                    kept.push((captured_at, frame.jpeg.clone()));
                }
                (frame.jpeg.len(), frame.accuracy, Some(frame.knobs))
            }
            None => (0, 1.0, None),
        };
        arrivals.push(Arrival { captured, latency_ms, stages, bytes, accuracy, knobs });
    }
    Ok(Followed { arrivals, kept, told })
}

/// The remark of an event that explains a run's figures.
fn remark(event: &Event) -> Option<(String, u64)> {
    match event {
        Event::Missed(missed) => Some((format!("missed, {}", missed.why), missed.count.max(1))),
        Event::Infeasible(infeasible) => {
            Some((format!("bounds infeasible: {}", infeasible.sentence), 1))
        }
        Event::CameraOffline(why) => Some((format!("camera offline: {why}"), 1)),
        Event::ControllerFailed(how) => Some((format!("controller failed: {how}"), 1)),
        Event::AccuracyAssumed(how) => Some((how.to_string(), 1)),
        _ => None,
    }
}

/// Keeps enough of a stream of five frames a second or more to pick `pairs` from.
fn keep_every(length: Duration, pairs: usize) -> usize {
    const FPS_MIN: f64 = 5.0;
    ((length.as_secs_f64() * FPS_MIN / pairs as f64) as usize).max(1)
}

async fn originals(
    client: &Client,
    camera: &CameraName,
    kept: Kept,
    count: usize,
) -> anyhow::Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    let step = kept.len().div_ceil(count.max(1)).max(1);
    for (captured_at, delivered) in kept.into_iter().step_by(step) {
        let original = client
            .fetch_original(camera, captured_at)
            .await
            .with_context(|| format!("fetching an original of {camera}"))?;
        pairs.push(Pair { original: original.jpeg, delivered });
    }
    Ok(pairs)
}

/// Wall time less monotonic time, from the tightest of some readings.
fn anchor() -> i64 {
    let read = || {
        let (before, wall, after) = (monotonic_nanos(), realtime_nanos(), monotonic_nanos());
        (after - before, wall - (before + (after - before) / 2))
    };
    (0..16).map(|_| read()).min_by_key(|(took, _)| *took).map_or(0, |(_, anchor)| anchor)
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

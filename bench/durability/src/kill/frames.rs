//! The applications beside a run in which nodes are killed: one subscribes to every frame of a camera, one publishes frames of its
//! own.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures::StreamExt as _;
use tidegate_client::{
    ApiError, CameraName, Client, Delivery, Event, Instant, Registration, SubscribeRequest,
    Subscription,
};
use tidegate_sys::clock::realtime_nanos;
use tokio::time;

use crate::node;

/// The camera that an application publishes into.
const DOOR: &str = "door";
/// Between two frames of that application.
const PACE: Duration = Duration::from_millis(50);
/// Between two attempts at a node that is down.
const RETRY: Duration = Duration::from_millis(50);
/// For what is still under way when the last node was started.
const CATCH_UP: Duration = Duration::from_secs(180);
/// The bound of every frame; the other bound is that of the look back, so that no transfer is shared.
const BOUND: Duration = Duration::from_secs(2);
const BOUND_BACK: Duration = Duration::from_secs(1);

/// Applications on a thread of their own.
#[derive(Debug)]
pub struct Applications {
    thread: JoinHandle<anyhow::Result<Frames>>,
    ends: Arc<AtomicBool>,
    delivered: Arc<AtomicU64>,
}

/// The fate of frames.
#[derive(Debug, Default)]
pub struct Frames {
    /// Delivered to the subscriber.
    pub delivered: usize,
    /// In the camera's log between the first and the last, and never delivered.
    pub lost: usize,
    /// Delivered twice or behind a later one.
    pub repeated: usize,
    /// Delivered, and not in the camera's log.
    pub forgotten: usize,
    /// Frames of the application that the node acknowledged.
    pub acknowledged: usize,
    /// Of those, not in the node's log.
    pub acknowledged_lost: usize,
    /// Frames of that log that stand there twice.
    pub published_twice: usize,
    /// How often a subscription ended and was made again by the application.
    pub renewed: u64,
}

impl Applications {
    /// Starts both against the node at `endpoint`, which may still be down.
    #[must_use]
    pub fn start(endpoint: String, pki: PathBuf, camera: &'static str) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let delivered = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (ends, delivered) = (ends.clone(), delivered.clone());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.context("starting a runtime")?;
                runtime.block_on(run(&endpoint, &pki, camera, &ends, &delivered))
            }
        });
        Self { thread, ends, delivered }
    }

    /// Frames delivered so far.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Whether they have ended, as they do only when something failed.
    #[must_use]
    pub fn have_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Lets them catch up with nodes that stay up now, and counts.
    ///
    /// # Errors
    /// The nodes do not answer, or frames of now do not come.
    pub fn finish(self) -> anyhow::Result<Frames> {
        self.ends.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(frames) => frames,
            Err(_) => bail!("the applications panicked"),
        }
    }
}

async fn run(
    endpoint: &str,
    pki: &Path,
    camera: &str,
    ends: &Arc<AtomicBool>,
    delivered: &AtomicU64,
) -> anyhow::Result<Frames> {
    let client = node::connect(endpoint, pki).await?;
    let mut seen = Vec::new();
    let mut frames = Frames::default();
    let mut subscription = subscribe(&client, camera, None).await?;
    let jpeg = loop {
        match subscription.next().await {
            Some(Ok(Event::Frame(frame))) => {
                seen.push(frame.captured_at);
                break frame.jpeg;
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => subscription = subscribe(&client, camera, None).await?,
        }
    };
    let publishing = tokio::spawn(publish(client.clone(), jpeg, ends.clone()));
    let mut until = None;
    loop {
        if until.is_none() && ends.load(Ordering::Relaxed) {
            until = Some((now(), time::Instant::now() + CATCH_UP));
        }
        if until.is_some_and(|(_, deadline)| time::Instant::now() > deadline) {
            bail!("frames of now did not come within {} s", CATCH_UP.as_secs());
        }
        let next = time::timeout(Duration::from_millis(200), subscription.next());
        let Ok(event) = next.await else { continue };
        match event {
            Some(Ok(Event::Frame(frame))) => seen.push(frame.captured_at),
            Some(Ok(Event::Unchanged(marker))) => seen.push(marker.captured_at),
            Some(Ok(Event::Ended(_)) | Err(_)) | None => {
                frames.renewed += 1;
                let from = seen.last().map(|last| *last + Duration::from_nanos(1));
                subscription = subscribe(&client, camera, from).await?;
            }
            Some(Ok(_)) => {}
        }
        delivered.store(seen.len() as u64, Ordering::Relaxed);
        if let (Some((until, _)), Some(last)) = (until, seen.last())
            && *last >= until
        {
            break;
        }
    }
    drop(subscription);
    let acknowledged = publishing.await.context("the publishing application panicked")??;
    let captured = look_back(&client, camera, &seen).await?;
    frames.delivered = seen.len();
    frames.repeated = seen.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    frames.lost = missing(&captured, &seen);
    frames.forgotten = missing(&seen, &captured);
    frames.acknowledged = acknowledged.len();
    let kept = look_back(&client, DOOR, &acknowledged).await?;
    frames.acknowledged_lost = missing(&acknowledged, &kept);
    frames.published_twice = kept.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    Ok(frames)
}

/// How many of `wanted` are not in `there`.
fn missing(wanted: &[Instant], there: &[Instant]) -> usize {
    let there: std::collections::BTreeSet<_> = there.iter().collect();
    wanted.iter().filter(|time| !there.contains(time)).count()
}

fn request(camera: &str, bound: Duration) -> anyhow::Result<SubscribeRequest> {
    let mut request = SubscribeRequest::new(camera, bound, 0.5)?;
    request.demand.delivery = Delivery::Every;
    Ok(request)
}

/// Subscribes as soon as the node knows the camera.
async fn subscribe(
    client: &Client,
    camera: &str,
    from: Option<Instant>,
) -> anyhow::Result<Subscription> {
    let request = SubscribeRequest { from, ..request(camera, BOUND)? };
    let began = time::Instant::now();
    loop {
        match client.subscribe(request.clone()).await {
            Ok(subscription) => return Ok(subscription),
            Err(error) if began.elapsed() > CATCH_UP => {
                return Err(error).with_context(|| format!("subscribing to {camera}"));
            }
            Err(_) => time::sleep(RETRY).await,
        }
    }
}

/// Publishes until it is stopped; returns the times of the frames that were acknowledged.
async fn publish(
    client: Client,
    jpeg: Bytes,
    ends: Arc<AtomicBool>,
) -> anyhow::Result<Vec<Instant>> {
    let camera: CameraName = DOOR.parse()?;
    let mut acknowledged = Vec::new();
    while !ends.load(Ordering::Relaxed) || acknowledged.is_empty() {
        // Every error here is a node that was killed, or has not met its cameras yet.
        let published: Result<(), ApiError> = async {
            let registration =
                Registration { camera: camera.clone(), size: None, frames_per_second: None };
            client.register(registration).await?;
            let mut publisher = client.publish(camera.clone()).await?;
            while !ends.load(Ordering::Relaxed) {
                acknowledged.push(publisher.publish(None, jpeg.clone()).await?);
                time::sleep(PACE).await;
            }
            Ok(())
        }
        .await;
        if published.is_err() {
            time::sleep(RETRY).await;
        }
    }
    Ok(acknowledged)
}

/// The entries of a log from the first to the last of these.
async fn look_back(
    client: &Client,
    camera: &str,
    times: &[Instant],
) -> anyhow::Result<Vec<Instant>> {
    let [first, .., last] = times else { bail!("too few frames of {camera} came") };
    let to = *last + Duration::from_nanos(1);
    let request =
        SubscribeRequest { from: Some(*first), to: Some(to), ..request(camera, BOUND_BACK)? };
    let mut subscription = client.subscribe(request).await?;
    let mut kept = Vec::new();
    let all = async {
        while let Some(event) = subscription.next().await {
            match event? {
                Event::Frame(frame) => kept.push(frame.captured_at),
                Event::Unchanged(marker) => kept.push(marker.captured_at),
                _ => {}
            }
        }
        anyhow::Ok(())
    };
    let looked = time::timeout(3 * CATCH_UP, all).await;
    looked.with_context(|| format!("the past of {camera} does not come to its end"))??;
    Ok(kept)
}

fn now() -> Instant {
    Instant::from_nanos(realtime_nanos())
}

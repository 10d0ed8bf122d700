//! The application of the demo: subscribes to every camera, shows how the bounds are kept, samples frames.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use tidegate_api::{ApiError, SubscribeRequest};
use tidegate_camera::detector::Pair;
use tidegate_client::{Client, ConnectOptions, Credentials};
use tidegate_identity::pki::NODE_SERVER_NAME;
use tidegate_message::{CameraName, Code, Demand, Instant};
use tidegate_process::clock;
use tokio::{sync::mpsc, time};
use tokio_util::sync::CancellationToken;

use super::{
    screen::Screen,
    stage::ClientOptions,
    watched::{Seen, Watched},
};

/// Longest wait for the node and its cameras to come up.
const READY_MAX: Duration = Duration::from_secs(30);

/// The observations.
pub(super) struct All {
    /// When watching began.
    pub(super) began: Instant,
    pub(super) cameras: Vec<Watched>,
}

/// A delivered frame with its original.
pub(super) struct Sampled {
    pub(super) pair: Pair,
    /// The accuracy that the table promised.
    pub(super) promised: f64,
    /// The knob setting.
    pub(super) setting: String,
}

/// Watches every camera for `duration`. Runs on the calling thread, whose namespace its sockets are in.
pub(super) fn run(
    options: &ClientOptions,
    names: &[String],
    demand: Demand,
    duration: Duration,
    stop: &CancellationToken,
) -> Result<All, ApiError> {
    runtime()?.block_on(async {
        let client = ready(options, names, stop).await?;
        let (seen, events) = mpsc::channel(256);
        let mut tasks = tokio::task::JoinSet::new();
        for (index, name) in names.iter().enumerate() {
            let request = SubscribeRequest::with_demand(name.parse()?, demand);
            let (client, seen) = (client.clone(), seen.clone());
            tasks.spawn(async move { follow(client, request, index, seen).await });
        }
        drop(seen);
        let watched = watch(names, demand, duration, events, stop).await;
        tasks.shutdown().await;
        watched
    })
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime, ApiError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| super::failed("no runtime", error))
}

pub(super) async fn connect(options: &ClientOptions) -> Result<Client, ApiError> {
    Client::connect(&options.endpoint, credentials(options)?).await
}

/// A client that does not go to the node that another one names.
pub(super) async fn connect_here(options: &ClientOptions) -> Result<Client, ApiError> {
    let here = ConnectOptions { max_reconnects: 0, follow: false, ..ConnectOptions::default() };
    Client::connect_with(&options.endpoint, credentials(options)?, here).await
}

fn credentials(options: &ClientOptions) -> Result<Credentials, ApiError> {
    let file = |name: &str| options.pki.join(name);
    let credentials =
        Credentials::load(file("ca.pem"), file("application.pem"), file("application.key"))?;
    Ok(credentials.server_name(NODE_SERVER_NAME))
}

/// A client, once the node answers and every camera has captured.
async fn ready(
    options: &ClientOptions,
    names: &[String],
    stop: &CancellationToken,
) -> Result<Client, ApiError> {
    let waited = clock::now() + READY_MAX;
    loop {
        let state = async {
            let client = connect(options).await?;
            let cameras = client.cameras().await?;
            let up = cameras.iter().filter(|c| c.online && c.newest_at.is_some()).count();
            Ok::<_, ApiError>((client, up))
        };
        let problem = match state.await {
            Ok((client, up)) if up == names.len() => return Ok(client),
            Ok((_, up)) => format!("{up} of {} cameras are online", names.len()),
            Err(error) => error.chain(),
        };
        if clock::now() > waited {
            let text =
                format!("the nodes did not come up within {} s: {problem}", READY_MAX.as_secs());
            return Err(ApiError::new(Code::LINK_DOWN, text));
        }
        tokio::select! {
            () = stop.cancelled() => return Err(ApiError::new(Code::LINK_DOWN, "interrupted")),
            () = time::sleep(Duration::from_millis(200)) => {}
        }
    }
}

async fn follow(
    client: Client,
    request: SubscribeRequest,
    index: usize,
    seen: mpsc::Sender<(usize, Seen)>,
) {
    let mut subscription = match client.subscribe(request).await {
        Ok(subscription) => subscription,
        Err(error) => {
            // There is no reader any more when the run is over.
            let _ = seen.send((index, Seen::Failed(error))).await;
            return;
        }
    };
    while let Some(event) = subscription.next().await {
        let at = clock::now();
        let seen_now = match event {
            Ok(event) => Seen::Event(event, at),
            Err(error) => Seen::Failed(error),
        };
        if seen.send((index, seen_now)).await.is_err() {
            return;
        }
    }
}

async fn watch(
    names: &[String],
    demand: Demand,
    duration: Duration,
    mut events: mpsc::Receiver<(usize, Seen)>,
    stop: &CancellationToken,
) -> Result<All, ApiError> {
    let began = clock::now();
    let end = time::sleep(duration);
    tokio::pin!(end);
    let mut screen = Screen::new(names, demand.bounds);
    let mut redraw = time::interval(Duration::from_secs(1));
    let mut watched: Vec<Watched> = names.iter().map(|name| Watched::new(name)).collect();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Err(ApiError::new(Code::LINK_DOWN, "interrupted")),
            () = &mut end => break,
            Some((index, seen)) = events.recv() => {
                screen.seen(index, &seen);
                if let Seen::Event(event, at) = seen {
                    watched[index].take(event, at, began);
                }
            }
            _ = redraw.tick() => screen.draw(clock::now().since(began), &watched),
        }
    }
    screen.end();
    Ok(All { began, cameras: watched })
}

/// Fetches the originals of up to `count` frames of each camera, spread over the run.
pub(super) fn fetch(
    options: &ClientOptions,
    watched: &[Watched],
    count: usize,
    stop: &CancellationToken,
) -> Result<Vec<Sampled>, ApiError> {
    runtime()?.block_on(async {
        let client = connect(options).await?;
        let mut pairs = Vec::new();
        let mut lost: BTreeMap<&str, String> = BTreeMap::new();
        for camera in watched {
            let name: CameraName = camera.name.parse()?;
            let step = camera.kept.len().div_ceil(count.max(1)).max(1);
            for kept in camera.kept.iter().step_by(step) {
                if stop.is_cancelled() {
                    return Err(ApiError::new(Code::LINK_DOWN, "interrupted"));
                }
                match client.fetch_original(&name, kept.captured_at).await {
                    Ok(original) => pairs.push(Sampled {
                        pair: Pair { original: original.jpeg, delivered: kept.jpeg.clone() },
                        promised: kept.promised,
                        setting: kept.setting.clone(),
                    }),
                    // After a long run the camera's log has only the newest.
                    Err(error) if error.code() == Code::FRAME_MISSING => {}
                    // A camera that has died fails the verdict by itself; the others' frames still count.
                    Err(error) => {
                        lost.insert(&camera.name, error.chain());
                        break;
                    }
                }
            }
        }
        for (camera, why) in lost {
            println!("{camera}: originals cannot be fetched: {why}");
        }
        Ok(pairs)
    })
}

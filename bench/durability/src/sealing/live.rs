//! The cost of sealing to camera nodes that send their frames: processor time, and latency from capture to the
//! application.
//!
//! ```text
//!  pictures in a folder ─▶ 5 camera nodes ─▶ edge node ─▶ an application      once with logs in clear text, once with sealed ones
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target, Tolerance, percentile};
use futures::StreamExt as _;
use tidegate_client::{Client, Delivery, Event, SubscribeRequest, Subscription};
use tidegate_sys::clock::realtime_nanos;
use tokio::time;

use super::ADDED_PERCENT_MAX;
use crate::{
    Plan,
    node::{self, Running, Site},
};

const CAMERAS: usize = 5;
const FPS: f64 = 15.0;
const SCENE: &str = "scene:street?size=1920x1080&fps=5&people=10&quality=95&seed=1";
/// Pictures of the clip.
const PICTURES: usize = 15;
const LOG: &str = "32MiB";
/// For a log to go around once at six megabytes a second, after which its pages are there.
const SETTLE: Duration = Duration::from_secs(8);
const LENGTH: Duration = Duration::from_secs(20);
const LENGTH_QUICK: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(60);
/// Of latencies: the difference of two runs of one setting here.
const LATENCY_TIE_MS: f64 = 0.1;

/// Measures both, taking turns, and adds their rows.
///
/// # Errors
/// Nodes do not start, or frames do not come.
pub(super) fn live(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("starting a runtime")?;
    let clip = plan.folder.join("clip");
    let bytes = runtime.block_on(film(plan, &clip))?;
    let length = if plan.quick { LENGTH_QUICK } else { LENGTH };
    report.configuration(
        "sealing, live",
        format!(
            "{CAMERAS} camera nodes of {FPS} fps, frames of {:.0} KB as captured (accuracy 1), logs of {LOG}, {} s after {} s; \
             clear text and sealed in turn; processor of the camera nodes; latency from capture to the application, one clock",
            bytes / 1e3,
            length.as_secs(),
            SETTLE.as_secs()
        ),
    );
    let mut taken = [const { Vec::new() }; 2];
    for run in 0..plan.runs {
        for which in if run % 2 == 0 { [0, 1] } else { [1, 0] } {
            taken[which].push(runtime.block_on(measure(plan, &clip, which == 1, length))?);
        }
    }
    let [clear, sealed] = &taken;
    let of = |taken: &[Taken], pick: fn(&Taken) -> f64| taken.iter().map(pick).collect::<Vec<_>>();
    let pair = |name: &str, unit: &str, pick: fn(&Taken) -> f64| {
        let figure =
            Figure::new(format!("sealing, {CAMERAS} camera nodes at {FPS} fps, {name}"), unit);
        figure.ours(of(sealed, pick)).peer(of(clear, pick)).peer_name("in clear text")
    };
    let frames: Vec<String> =
        sealed.iter().map(|taken| taken.latencies.len().to_string()).collect();
    report.figure(
        pair("processor, of one core", "%", |taken| taken.cpu_percent)
            .note(format!("frames delivered by run: {}", frames.join(", "))),
    );
    let added =
        sealed.iter().zip(clear).map(|(sealed, clear)| sealed.cpu_percent - clear.cpu_percent);
    report.figure(
        Figure::new(
            format!("sealing, {CAMERAS} camera nodes at {FPS} fps, added, of one core"),
            "%",
        )
        .ours(added)
        .target(Target::AtMost(ADDED_PERCENT_MAX)),
    );
    for (name, at) in [("p50", 0.5), ("p99", 0.99)] {
        let added: Vec<f64> = sealed
            .iter()
            .zip(clear)
            .map(|(sealed, clear)| {
                percentile(&sealed.latencies, at) - percentile(&clear.latencies, at)
            })
            .collect();
        let clear: Vec<String> =
            clear.iter().map(|taken| format!("{:.2}", percentile(&taken.latencies, at))).collect();
        let figure =
            Figure::new(format!("sealing, latency to the application, added to {name}"), "ms");
        let figure =
            figure.ours(added).note(format!("in clear text by run: {} ms", clear.join(", ")));
        // A tail of a machine that does other things is shown for what it says.
        report.figure(if at > 0.5 {
            figure
        } else {
            figure.target(Target::AtMost(0.0)).tolerance(Tolerance::Absolute(LATENCY_TIE_MS))
        });
    }
    let append = pair("p50 of capture to the log and the encoder", "ms", |taken| {
        percentile(&taken.captures, 0.5)
    });
    report.figure(append);
    for (name, taken) in [("clear", clear), ("sealed", sealed)] {
        for taken in taken {
            report.samples(format!("sealing, {name}, latency ms"), taken.latencies.iter().copied());
        }
    }
    Ok(())
}

/// The result of one run.
struct Taken {
    /// Of all camera nodes.
    cpu_percent: f64,
    /// Capture to the application, in ms.
    latencies: Vec<f64>,
    /// Capture until the frame is in the log and taken up, in ms.
    captures: Vec<f64>,
}

/// Draws the clip; returns the mean size of its pictures.
async fn film(plan: &Plan, clip: &Path) -> anyhow::Result<f64> {
    fs::create_dir(clip).with_context(|| format!("making {}", clip.display()))?;
    let (site, _node) = site(plan, 1, false)?;
    let _camera = site.start_camera(&name(0), SCENE)?;
    let client = node::connect(&site.endpoint(), &site.path("data/pki")).await?;
    let mut subscription = subscribe(&client, 0, 0.5, Delivery::Every).await?;
    let (mut pictures, mut bytes) = (0, 0);
    while pictures < PICTURES {
        let event = time::timeout(PATIENCE, subscription.next()).await.context("no frame comes")?;
        let Event::Frame(frame) = event.context("the subscription ended")?? else { continue };
        let original = client.fetch_original(&name(0).parse()?, frame.captured_at).await?;
        bytes += original.jpeg.len();
        fs::write(clip.join(format!("{pictures:03}.jpg")), &original.jpeg)?;
        pictures += 1;
    }
    Ok(bytes as f64 / pictures as f64)
}

async fn measure(
    plan: &Plan,
    clip: &Path,
    is_sealed: bool,
    length: Duration,
) -> anyhow::Result<Taken> {
    let (site, mut node) = site(plan, CAMERAS, is_sealed)?;
    let source = format!("folder:{}?fps={FPS}&loop=1&prepare=1", clip.display());
    let cameras: Vec<Running> = (0..CAMERAS)
        .map(|camera| site.start_camera(&name(camera), &source))
        .collect::<anyhow::Result<_>>()?;
    let client = node::connect(&site.endpoint(), &site.path("data/pki")).await?;
    let mut subscriptions = Vec::new();
    for camera in 0..CAMERAS {
        subscriptions.push(subscribe(&client, camera, 1.0, Delivery::Latest).await?);
    }
    let mut events = futures::stream::select_all(subscriptions);
    // Frames are read meanwhile, or their way would be stopped up.
    let mut drain = async |length: Duration| -> anyhow::Result<Taken> {
        let mut taken = Taken { cpu_percent: 0.0, latencies: Vec::new(), captures: Vec::new() };
        let end = time::Instant::now() + length;
        while let Ok(event) = time::timeout_at(end, events.next()).await {
            let Event::Frame(frame) = event.context("all subscriptions ended")?? else { continue };
            let nanos = realtime_nanos().saturating_sub(frame.captured_at.as_nanos());
            taken.latencies.push(nanos as f64 / 1e6);
            taken.captures.push(frame.stages.capture.as_secs_f64() * 1e3);
        }
        Ok(taken)
    };
    drain(SETTLE).await?;
    let used = || -> anyhow::Result<Duration> {
        cameras.iter().map(|camera| Ok(camera.usage()?.cpu)).sum()
    };
    let (before, begun) = (used()?, time::Instant::now());
    let mut taken = drain(length).await?;
    let cpu = used()?.saturating_sub(before);
    taken.cpu_percent = 100.0 * cpu.as_secs_f64() / begun.elapsed().as_secs_f64();
    node.check()?;
    let expected = CAMERAS as f64 * FPS * length.as_secs_f64();
    let came = taken.latencies.len() as f64;
    ensure!(came > 0.8 * expected, "{came} of {expected} frames came: too little processor here");
    Ok(taken)
}

fn name(camera: usize) -> String {
    format!("cam{}", camera + 1)
}

fn site(plan: &Plan, cameras: usize, is_sealed: bool) -> anyhow::Result<(Site, Running)> {
    let names: Vec<String> = (0..cameras).map(name).collect();
    let key = plan.folder.join("node.key");
    let at_rest = match is_sealed {
        true => format!("at_rest = \"sealed\"\nkey_file = {key:?}\n"),
        false => String::new(),
    };
    let site = Site::new(
        &plan.folder,
        &names,
        &format!(
            "durability = \"memory\"\n\n[log]\ncamera_bytes = \"{LOG}\"\nstream_bytes = \"64MiB\"\n{at_rest}\n\
             [frames]\nframe_bytes_max = \"2MB\"\n"
        ),
    )?;
    make_key(&site, &key)?;
    let mut node = site.start(&[])?;
    node.wait_for(site.mqtt)?;
    Ok((site, node))
}

fn make_key(site: &Site, key: &PathBuf) -> anyhow::Result<()> {
    if key.exists() {
        return Ok(());
    }
    let made = site.command()?.arg("key").arg(key).output().context("making a key")?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
    Ok(())
}

/// Subscribes as soon as the node knows the camera.
async fn subscribe(
    client: &Client,
    camera: usize,
    accuracy: f64,
    delivery: Delivery,
) -> anyhow::Result<Subscription> {
    let mut request = SubscribeRequest::new(&name(camera), Duration::from_secs(1), accuracy)?;
    request.demand.delivery = delivery;
    let began = time::Instant::now();
    loop {
        match client.subscribe(request.clone()).await {
            Ok(subscription) => return Ok(subscription),
            Err(error) if began.elapsed() > PATIENCE => {
                return Err(error).with_context(|| format!("subscribing to {}", name(camera)));
            }
            Err(_) => time::sleep(Duration::from_millis(50)).await,
        }
    }
}

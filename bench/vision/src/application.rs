//! Live detection for an application that allows 200 ms from capture to boxes, with a detector of 60 ms, while the camera's line swings tenfold.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Owned, Report, Target, percentile};
use tidegate_load::client::{Client, Options};
use tidegate_sim::medium::Scenario;
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::{
    Plan, images,
    node::{Node, NodeConfig, Workers, program},
    site::{self, Place, is_valid},
};

const DETECTOR_MS: f64 = 60.0;
const BOUND_MS: f64 = 200.0;
/// Least part of what was captured that has an answer within the bound.
const DELIVERED_MIN: f64 = 0.97;
const FPS: [u32; 2] = [5, 10];
/// Each is as long as some others together.
const RUNS_MAX: usize = 2;
/// The swing of the line, and how long the run is: whole periods of it.
const PERIOD: Duration = Duration::from_secs(20);
const EDGE: &str = "server";
const CAMERA: &str = "client";
/// For the camera to be connected and the detector to be started.
const WARM_UP: Duration = Duration::from_secs(6);

/// Kept at p95, and delivered.
///
/// # Errors
/// There is no lab without root, or the node does not serve.
pub fn application(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (periods, rates, runs) = match plan.quick {
        true => (1, &FPS[1..], 1),
        false => (2, &FPS[..], plan.runs.min(RUNS_MAX)),
    };
    let length = PERIOD * periods;
    report.configuration(
        "application",
        format!(
            "one camera of 1280 x 720 and some 250 KB across 5 ms each way, 200 and 20 Mbit/s for 10 s in turn; [detect.bench] with a bound of \
             {BOUND_MS} ms and the bench's detector of {DETECTOR_MS} ms; {} s; delivered: answers within the bound, of what was captured",
            length.as_secs()
        ),
    );
    for &fps in rates {
        let (mut p95, mut delivered) = (Vec::new(), Vec::new());
        let mut late = false;
        for run in 0..runs {
            let made = run_once(fps, length, run as u64 + 1)?;
            late |= !made.is_valid;
            let captured = f64::from(fps) * length.as_secs_f64();
            let within = made.totals_ms.iter().filter(|ms| **ms <= BOUND_MS).count();
            p95.push(percentile(&made.totals_ms, 0.95));
            delivered.push(within as f64 / captured);
            report.samples(
                format!("application, {fps} fps, run {run}, capture to answer, ms"),
                made.totals_ms,
            );
        }
        let note = |figure: Figure| match late {
            true => figure.note("the emulator was late in a run"),
            false => figure,
        };
        report.figure(note(
            Figure::new(format!("application, {fps} fps, capture to answer, p95"), "ms")
                .ours(p95)
                .target(Target::AtMost(BOUND_MS)),
        ));
        report.figure(note(
            Figure::new(format!("application, {fps} fps, delivered"), "")
                .ours(delivered)
                .target(Target::AtLeast(DELIVERED_MIN)),
        ));
    }
    Ok(())
}

struct Made {
    /// From capture to the answer, of each answer, as it says itself.
    totals_ms: Vec<f64>,
    is_valid: bool,
}

fn run_once(fps: u32, length: Duration, seed: u64) -> anyhow::Result<Made> {
    let text = format!(
        "seed = {seed}\n\n[[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"200Mbit\"\ndelay = \"5ms\"\nqueue = \"256KiB\"\nloop = \
         \"20s\"\nstep = [\n  {{ at = \"0s\", rate = \"200Mbit\" }},\n  {{ at = \"10s\", rate = \"20Mbit\" }},\n]\nport = [\n  {{ node = \
         \"{EDGE}\", address = \"10.79.1.1/24\", default_route = true }},\n  {{ node = \"{CAMERA}\", address = \"10.79.1.2/24\", \
         default_route = true }},\n]\n"
    );
    let scenario = Scenario::parse(&text, std::path::Path::new(""))?;
    let lab = site::up(&scenario)?;
    let pictures = tempfile::tempdir().context("making a folder for pictures")?;
    for number in 0..10 {
        let made = images::jpeg_of(&images::noise(1280, 720, 40.0, number + 1), 250_000)?;
        fs::write(pictures.path().join(format!("{number}.jpg")), made)?;
    }
    let config = NodeConfig {
        workers: Workers::Bench(DETECTOR_MS),
        cameras: vec!["cam1".to_owned()],
        more: format!(
            "[frames]\nframe_bytes_max = \"1MiB\"\n\n[log]\ncamera_bytes = \"64MiB\"\nstream_bytes = \"64MiB\"\n\n[detect.bench]\ncameras = \
             \"cam1\"\nmodel = \"person\"\nlatency = \"{BOUND_MS}ms\"\n"
        ),
        ..NodeConfig::default()
    };
    let node = Node::start(Place::In(&lab, EDGE), &config)?;
    let camera = start_camera(&lab, &node, pictures.path(), fps)?;
    let totals_ms = Place::In(&lab, EDGE).within(|| answers(node.mqtt(), length))?;
    ensure!(!totals_ms.is_empty(), "no detection was published; {}", node.last_words());
    drop((camera, node));
    Ok(Made { totals_ms, is_valid: is_valid(&lab.finish()?) })
}

fn start_camera(
    lab: &tidegate_netlab::Lab,
    node: &Node,
    pictures: &std::path::Path,
    fps: u32,
) -> anyhow::Result<Owned> {
    let mut command = std::process::Command::new(program()?);
    command.current_dir(node.folder()).args([
        "--config",
        "tidegate.toml",
        "camera",
        "--name",
        "cam1",
    ]);
    command.args(["--source", &format!("folder:{}?fps={fps}&loop=1", pictures.display())]);
    command.args(["--edge", "10.79.1.1:7443"]);
    let log = fs::File::create(node.folder().join("camera.log")).context("writing a log")?;
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).stderr(log);
    Place::In(lab, CAMERA).spawn(command)
}

/// The times from capture to answer of what is published in so long, behind the warm-up.
fn answers(port: u16, length: Duration) -> anyhow::Result<Vec<f64>> {
    let options = Options { host: "127.0.0.1".to_owned(), port, ..Options::default() };
    let mut client = Client::connect(options).context("connecting to the broker")?;
    let filter = SubscribeFilter {
        filter: "detections/#".to_owned(),
        maximum_qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    client.subscribe(&[filter]).context("subscribing")?;
    let began = Instant::now();
    let mut totals = Vec::new();
    loop {
        let left = (WARM_UP + length).saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(totals);
        }
        let Some(message) = client.receive(left).context("reading detections")? else { continue };
        if began.elapsed() < WARM_UP {
            continue;
        }
        let value: serde_json::Value =
            serde_json::from_slice(&message.payload).context("reading a detection")?;
        if value["type"] == "detection" {
            totals.extend(value.pointer("/times/total_ms").and_then(serde_json::Value::as_f64));
        }
    }
}

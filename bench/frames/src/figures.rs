//! From what each group measured to its rows.

use std::path::PathBuf;

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, machine, median, percentile};
use tidegate_sim::medium::Scenario;

use crate::{
    Plan, SCENARIO, calibrate,
    knobs::{self, KnobBench, KnobRow},
    log::{self, LogBench},
    nats::{self, NatsBench, Place},
};

/// Append of 1.74 MB ≤ 0.16 ms, copy included, ring warm; the first lap and a range read next to it.
///
/// # Errors
/// As [`log::run`].
pub fn log(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = LogBench::default();
    if plan.quick {
        bench.warm_laps = 1;
        bench.range_reads = 50;
    }
    report.configuration("log ring, bytes", bench.log.bytes_max);
    let mut warm = Vec::new();
    let mut warm_p95 = Vec::new();
    let mut uncached = Vec::new();
    let mut first_lap = Vec::new();
    let mut range = Vec::new();
    for run in 0..plan.runs {
        let samples = log::run(&bench)?;
        let of = |nanos: &[u64]| nanos.iter().map(|nanos| *nanos as f64 / 1e6).collect::<Vec<_>>();
        for (name, nanos, medians) in [
            ("append warm", &samples.append_warm_nanos, &mut warm),
            ("append warm uncached", &samples.append_warm_uncached_nanos, &mut uncached),
            ("append first lap", &samples.append_first_lap_nanos, &mut first_lap),
            ("range read", &samples.range_read_nanos, &mut range),
        ] {
            let millis = of(nanos);
            medians.push(median(&millis));
            report.samples(format!("log, {name}, run {run}, ms"), millis);
        }
        warm_p95.push(percentile(&of(&samples.append_warm_nanos), 0.95));
    }
    let name = format!("log append {:.2} MB, copy included", bench.append_bytes as f64 / 1e6);
    let reach = Figure::new(format!("{name}, ring warm, p50"), "ms");
    report.figure(reach.ours(warm).target(Target::AtMost(0.16)));
    report.figure(Figure::new(format!("{name}, ring warm, p95"), "ms").ours(warm_p95));
    report.figure(Figure::new(format!("{name}, source in no cache, p50"), "ms").ours(uncached));
    report.figure(Figure::new(format!("{name}, first lap, p50"), "ms").ours(first_lap));
    let read = format!(
        "log range read, {} frames of {} KB, p50",
        bench.range_frames,
        bench.range_frame_bytes / 1000
    );
    report.figure(
        Figure::new(read, "ms")
            .ours(range)
            .note("no byte is copied: two reads of one entry give one address, or the group fails"),
    );
    Ok(())
}

/// Every knob row against OpenCV: ratio ≤ 0.7, p95 ≤ 10 ms on a 400 KB frame.
///
/// # Errors
/// As [`knobs::run`].
pub fn knobs(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("making a folder for the peer's frames")?;
    let script = plan.root.join("bench/frames/peers/opencv_knobs.py");
    let python = opencv_python();
    if let Some(python) = &python {
        let asked = ["-c", "import cv2; print(cv2.__version__)"];
        report.version("opencv", machine::said(&python.display().to_string(), &asked));
    }
    let peer = python.clone().map(|python| (python, script));
    let mut bench = KnobBench::new(folder.path().to_owned(), peer);
    // The first round warms up; each further one is a run.
    bench.rounds = plan.runs + 1;
    if plan.quick {
        bench.frames = 3;
    }
    report.configuration("knobs, frames", bench.frames);
    report.configuration("knobs, frame bytes", bench.frame_bytes);
    for row in knobs::run(&bench)? {
        report.samples(format!("knobs, {}, ours, ms", row.setting), row.ours_ms.clone());
        report.samples(format!("knobs, {}, opencv, ms", row.setting), row.peer_ms.clone());
        knob_figures(&row, bench.frames, python.is_some(), report);
    }
    Ok(())
}

fn knob_figures(row: &KnobRow, frames: usize, has_peer: bool, report: &mut Report) {
    let by_run = |millis: &[f64], of: &dyn Fn(&[f64]) -> f64| {
        millis.chunks(frames).map(of).collect::<Vec<_>>()
    };
    let p95 = by_run(&row.ours_ms, &|millis| percentile(millis, 0.95));
    let bytes: Vec<f64> = row.ours_bytes.iter().map(|bytes| *bytes as f64 / 1000.0).collect();
    let mut time = Figure::new(format!("knob {}, p50 of thread time", row.setting), "ms")
        .ours(by_run(&row.ours_ms, &median))
        .peer(by_run(&row.peer_ms, &median))
        .peer_name("OpenCV");
    // The original is handed on: there is nothing for the peer to do the same.
    if row.setting != "original" {
        time = time.target(Target::RatioAtMost(0.7)).note(format!(
            "{:.0} KB a frame, OpenCV's {:.0} KB",
            median(&bytes),
            median(&row.peer_bytes.iter().map(|bytes| *bytes as f64 / 1000.0).collect::<Vec<_>>()),
        ));
        if !has_peer {
            time = time.note("no Python with OpenCV here: run workers/detector/setup.sh");
        }
    }
    report.figure(time);
    report.figure(
        Figure::new(format!("knob {}, p95 of thread time", row.setting), "ms")
            .ours(p95)
            .target(Target::AtMost(10.0)),
    );
}

/// The Python of the detectors' environment, if it has OpenCV.
fn opencv_python() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = || {
        let cache = folder("XDG_CACHE_HOME").or(folder("HOME").map(|home| home.join(".cache")))?;
        Some(cache.join("tidegate/worker-venv"))
    };
    let python = folder("TIDEGATE_WORKER_VENV").or_else(cache)?.join("bin/python");
    let has_opencv =
        !machine::said(&python.display().to_string(), &["-c", "import cv2; print(1)"]).is_empty();
    has_opencv.then_some(python)
}

/// The medium of the live benches against the paper's Table 1, cell by cell: 15 % is the aim.
///
/// # Errors
/// The scenario cannot be read.
pub fn medium(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let scenario = Scenario::load(&plan.root.join(SCENARIO))?;
    for cameras in [1, calibrate::CAMERAS] {
        for (kilobytes, alone, crowded) in calibrate::TABLE_1 {
            let paper = if cameras == 1 { alone } else { crowded };
            let ours = calibrate::latency_p95(&scenario, cameras, kilobytes * 1000);
            let ours = ours.as_secs_f64() * 1e3;
            let cell = format!("medium, {cameras} cameras, {kilobytes} KB");
            let p95 = Figure::new(format!("{cell}, p95 without control"), "ms").ours([ours]);
            report.figure(p95.peer([paper]).peer_name("paper"));
            let off = Figure::new(format!("{cell}, off by"), "%");
            report.figure(
                off.ours([(ours / paper - 1.0).abs() * 100.0]).target(Target::AtMost(15.0)),
            );
        }
    }
    Ok(())
}

/// Publish to callback through NATS on loopback: the peer's latency where nothing is scarce.
///
/// # Errors
/// There is no server on this machine (it takes Go to build one), or a program of a run failed.
pub fn nats(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let seconds = if plan.quick { 3.0 } else { 10.0 };
    let here = Place::default();
    let bench = NatsBench::start(&plan.root, &here, "127.0.0.1")?;
    report.version("nats-server", bench.server_version());
    let mut alone = Vec::new();
    for subscribers in [1, 8] {
        let mut p95 = Vec::new();
        for run in 0..plan.runs {
            let camera = nats::Camera {
                place: here.clone(),
                subject: format!("cam-{subscribers}-{run}"),
                frames: nats::Frames::Bytes(400_000),
                fps: 15.0,
            };
            let received = bench.run(&here, &[camera], subscribers, seconds)?;
            let latencies: Vec<f64> =
                received.iter().flat_map(|camera| camera.latencies_ms()).collect();
            p95.push(percentile(&latencies, 0.95));
            report.samples(format!("nats, {subscribers} subscribers, run {run}, ms"), latencies);
        }
        let figure = Figure::new(
            format!("NATS on loopback, {subscribers} subscribers, 400 KB at 15 fps, p95"),
            "ms",
        );
        report.figure(figure.peer(p95.clone()).peer_name("NATS"));
        if subscribers == 1 {
            alone = p95;
        } else {
            let ratios: Vec<f64> = p95.iter().zip(&alone).map(|(many, one)| many / one).collect();
            report.figure(
                Figure::new("NATS on loopback, p95 of 8 subscribers over that of 1", "")
                    .peer(ratios)
                    .peer_name("NATS"),
            );
        }
    }
    Ok(())
}

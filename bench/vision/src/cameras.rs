//! 32 cameras of 720p in one node's configuration that are watched by no one: the processor and the memory that they take, and whether adding one
//! disturbs the others.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target};
use tidegate_load::camera::{Camera, Clip, Coding, Options};
use tidegate_sys::clock::realtime_nanos;

use crate::{
    Plan, images,
    mjpeg_camera::MjpegCamera,
    node::{Node, NodeConfig, program},
    site::Place,
};

const CAMERAS: usize = 32;
const FPS: f64 = 5.0;
/// Bytes of a picture by HTTP.
const BYTES: usize = 100_000;
/// Most of a core, in per cent, and of memory beside the logs, in MB.
const CPU_MAX: f64 = 10.0;
const MEMORY_MAX: f64 = 60.0;
/// A camera that is not disturbed has a frame of its last two periods.
const AGE_MAX_MS: f64 = 2.0 * 1e3 / FPS;
/// For all cameras to have frames, and for one that is added: ffmpeg takes its time to start as often as that.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time for what a start leaves to do.
const SETTLE: Duration = Duration::from_secs(4);
/// Seconds of the clip that the camera by RTSP repeats.
const CLIP_SECONDS: f64 = 30.0;

/// A camera of this bench, which all sections name.
enum Source {
    /// A stream of JPEG images by HTTP.
    Mjpeg(MjpegCamera),
    /// H.264 by RTSP, which an ffmpeg for each section decodes.
    Rtsp(Camera),
}

impl Source {
    fn mjpeg() -> anyhow::Result<Self> {
        let images = (1..=10)
            .map(|seed| images::jpeg_of(&images::noise(1280, 720, 12.0, seed), BYTES))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self::Mjpeg(MjpegCamera::start(images, Duration::from_secs_f64(1.0 / FPS))?))
    }

    fn rtsp() -> anyhow::Result<Self> {
        // Twice 640 x 360 is 720p.
        let clip = Clip::make_scaled(Coding::H264, FPS, (CLIP_SECONDS * FPS) as u16, 2);
        let clip = clip.context("making a clip by ffmpeg")?;
        Ok(Self::Rtsp(Camera::start(clip, Options::default()).context("starting a camera")?))
    }

    fn url(&self) -> String {
        match self {
            Self::Mjpeg(camera) => camera.url(),
            Self::Rtsp(camera) => format!("rtsp://{}/live", camera.address()),
        }
    }
}

/// Processor, memory, and an addition by SIGHUP, with cameras by HTTP and by RTSP.
///
/// # Errors
/// The node does not serve, or a camera gives no frames.
pub fn cameras(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 6 } else { 15 });
    report.configuration(
        "cameras",
        format!(
            "{CAMERAS} sections [camera.NAME] of one camera of 1280 x 720 and {FPS} frames a second: MJPEG by HTTP with some {} KB a picture, \
             and H.264 by RTSP, decoded by an ffmpeg for each section; logs of 16 MiB in files; {} s",
            BYTES / 1000,
            length.as_secs()
        ),
    );
    for (name, source) in [("MJPEG by HTTP", Source::mjpeg()), ("RTSP", Source::rtsp())] {
        eprintln!("bench-vision: cameras, {name}");
        let measured = source.and_then(|source| {
            (0..plan.runs).map(|_| run(&source, length)).collect::<anyhow::Result<Vec<Run>>>()
        });
        rows(report, name, measured);
    }
    Ok(())
}

struct Run {
    /// Of a core, in per cent.
    node: f64,
    /// Of the programs that it started, in per cent of a core.
    below: f64,
    memory_mb: f64,
    oldest_before_ms: f64,
    oldest_ms: f64,
}

fn run(source: &Source, length: Duration) -> anyhow::Result<Run> {
    let more = |count: usize| {
        let mut text =
            "[log]\ncamera_bytes = \"16MiB\"\n\n[frames]\nframe_bytes_max = \"1MiB\"\n".to_owned();
        for number in 0..count {
            let _ = write!(text, "\n[camera.cam{number:02}]\nsource = {:?}\n", source.url());
        }
        text
    };
    let config = NodeConfig { more: more(CAMERAS), ..NodeConfig::default() };
    let mut node = Node::start(Place::Here, &config)?;
    await_cameras(&node, CAMERAS)?;
    thread::sleep(SETTLE);
    let (before, began) = (node.cpu()?, Instant::now());
    thread::sleep(length);
    let (after, seconds) = (node.cpu()?, began.elapsed().as_secs_f64());
    let memory_mb = beside_logs(node.id(), &node.data())? / 1e6;
    let oldest_before_ms = oldest_newest(&node, CAMERAS)?;
    node.reconfigure(&NodeConfig { more: more(CAMERAS + 1), ..config })?;
    let oldest_ms = oldest_newest(&node, CAMERAS + 1)?;
    node.check()?;
    let percent = |after: f64, before: f64| (after - before) / seconds * 100.0;
    Ok(Run {
        node: percent(after.own, before.own),
        below: percent(after.below, before.below),
        memory_mb,
        oldest_before_ms,
        oldest_ms,
    })
}

fn rows(report: &mut Report, source: &str, measured: anyhow::Result<Vec<Run>>) {
    let (runs, failed) = match measured {
        Ok(runs) => (runs, None),
        Err(error) => (Vec::new(), Some(format!("not measured: {error:#}"))),
    };
    let name = format!("cameras, {CAMERAS} by {source}");
    let beside = bench_harness::median(&runs.iter().map(|run| run.below).collect::<Vec<_>>());
    let before: Vec<f64> = runs.iter().map(|run| run.oldest_before_ms).collect();
    let before = bench_harness::median(&before);
    let note = match (&failed, beside > 0.0) {
        (None, true) => {
            Some(format!("the programs that it started, beside: {beside:.0} % of a core"))
        }
        _ => failed.clone(),
    };
    let figures = [
        (
            Figure::new(format!("{name}, {FPS} fps, of a core"), "%")
                .ours(runs.iter().map(|run| run.node))
                .target(Target::AtMost(CPU_MAX)),
            note,
        ),
        (
            Figure::new(format!("{name}, resident beside logs"), "MB")
                .ours(runs.iter().map(|run| run.memory_mb))
                .target(Target::AtMost(MEMORY_MAX)),
            failed.clone(),
        ),
        (
            Figure::new(format!("{name}, oldest newest frame while one is added"), "ms")
                .ours(runs.iter().map(|run| run.oldest_ms))
                .target(Target::AtMost(AGE_MAX_MS)),
            failed.or_else(|| {
                let how = "as `tidegate cameras` tells it, with the time that it takes";
                Some(format!("{before:.0} ms in the second before; {how}"))
            }),
        ),
    ];
    for (figure, note) in figures {
        report.figure(match note {
            Some(note) => figure.note(note),
            None => figure,
        });
    }
}

/// The newest frame of each camera that has one, in nanoseconds of wall time.
fn newest(node: &Node) -> anyhow::Result<BTreeMap<String, i64>> {
    let mut command = Command::new(program()?);
    command.arg("--config").arg(node.config()).args(["cameras", "-o", "json"]);
    let output =
        command.current_dir(node.folder()).output().context("running `tidegate cameras`")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`tidegate cameras`: {}", said.trim());
    let found: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let cameras = found.as_array().context("a list of cameras")?;
    let newest = cameras.iter().filter(|camera| camera["online"] == true).filter_map(|camera| {
        Some((camera["name"].as_str()?.to_owned(), camera["newest_at"].as_i64()?))
    });
    Ok(newest.collect())
}

fn await_cameras(node: &Node, count: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let there = newest(node)?.len();
        if there == count {
            return Ok(());
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "{there} of {count} cameras have frames; {}",
            node.last_words()
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// The largest age in ms of the newest frame of any of the first [`CAMERAS`], from now until `count` of them have been there for a second.
fn oldest_newest(node: &Node, count: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut since = None;
    let mut oldest = 0.0_f64;
    loop {
        let cameras = newest(node)?;
        // Behind the answer: the time of the question counts against the camera.
        let answered = realtime_nanos();
        for number in 0..CAMERAS {
            let name = format!("cam{number:02}");
            let newest = cameras.get(&name).with_context(|| format!("{name} is gone"))?;
            oldest = oldest.max((answered - newest) as f64 / 1e6);
        }
        if cameras.len() >= count {
            let since = *since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_secs(1) {
                return Ok(oldest);
            }
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "the camera that was added has no frames; {}",
            node.last_words()
        );
    }
}

/// Resident bytes of a process without the pages of its logs, which belong to the system: it takes them back when it needs them.
fn beside_logs(process: u32, data: &Path) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/smaps");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    Ok(beside(&text, &data.join("log").display().to_string()))
}

/// The sum of `Rss` of the mappings that are of no file below `logs`, in bytes.
fn beside(smaps: &str, logs: &str) -> f64 {
    let (mut bytes, mut is_log) = (0.0, false);
    for line in smaps.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.contains('-') {
            is_log = line.contains(logs);
        } else if name == "Rss" && !is_log {
            let kilobytes = value.trim().trim_end_matches(" kB").parse::<f64>();
            bytes += kilobytes.unwrap_or(0.0) * 1024.0;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_logs_are_left_out() {
        let smaps = "\
7f00-7f10 r--p 00000000 08:01 5 /usr/bin/tidegate\nSize: 64 kB\nRss:     40 kB\nPss: 4 kB\n\
7f20-7f30 rw-s 00000000 08:01 6 /tmp/a/data/log/cam01/0.seg\nRss:     1000 kB\n\
7f40-7f50 rw-p 00000000 00:00 0\nRss:     2 kB\nVmFlags: rd\n";
        assert_eq!(beside(smaps, "/tmp/a/data/log"), 42.0 * 1024.0);
    }
}

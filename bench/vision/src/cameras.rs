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
use tidegate_sys::clock::realtime_nanos;

use crate::{
    Plan, images,
    node::{Node, NodeConfig, program},
    site::Place,
};

const CAMERAS: usize = 32;
const FPS: f64 = 5.0;
/// Most of a core, in per cent, and of memory beside the logs, in MB.
const CPU_MAX: f64 = 10.0;
const MEMORY_MAX: f64 = 60.0;
/// A camera that is not disturbed has a frame of its last two periods.
const AGE_MAX_MS: f64 = 2.0 * 1e3 / FPS;
/// For all cameras to have frames, and for one that is added.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for what a start leaves to do.
const SETTLE: Duration = Duration::from_secs(4);

/// Processor, memory, and an addition by SIGHUP.
///
/// # Errors
/// The node does not serve, or a camera gives no frames.
pub fn cameras(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 8 } else { 30 });
    let folder = tempfile::tempdir().context("making a folder for pictures")?;
    let mut bytes = 0;
    for number in 0..10 {
        let made = images::jpeg_of(&images::noise(1280, 720, 12.0, number + 1), 100_000)?;
        bytes += made.len();
        fs::write(folder.path().join(format!("{number}.jpg")), made)?;
    }
    report.configuration(
        "cameras",
        format!(
            "{CAMERAS} sections [camera.NAME] of a folder of ten JPEG images of 1280 x 720 and {} KB, {FPS} frames a second, logs of 16 MiB \
             in files; no ffmpeg runs; {} s",
            bytes / 10_000,
            length.as_secs()
        ),
    );
    let (mut cpu, mut memory, mut ages) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.runs {
        let more = |count: usize| {
            let mut text =
                "[log]\ncamera_bytes = \"16MiB\"\n\n[frames]\nframe_bytes_max = \"1MiB\"\n"
                    .to_owned();
            for number in 0..count {
                let source = format!("folder:{}?fps={FPS}&loop=1", folder.path().display());
                let _ = write!(text, "\n[camera.cam{number:02}]\nsource = {source:?}\n");
            }
            text
        };
        let config = NodeConfig { more: more(CAMERAS), ..NodeConfig::default() };
        let mut node = Node::start(Place::Here, &config)?;
        await_cameras(&node, CAMERAS)?;
        thread::sleep(SETTLE);
        let (before, began) = (node.cpu()?, Instant::now());
        thread::sleep(length);
        let used = node.cpu()?.own - before.own;
        cpu.push(used / began.elapsed().as_secs_f64() * 100.0);
        memory.push(beside_logs(node.id(), &node.data())? / 1e6);
        node.reconfigure(&NodeConfig { more: more(CAMERAS + 1), ..config })?;
        ages.push(oldest_while_adding(&node)?);
        node.check()?;
    }
    report.figure(
        Figure::new(format!("cameras, {CAMERAS} at {FPS} fps, of a core"), "%")
            .ours(cpu)
            .target(Target::AtMost(CPU_MAX)),
    );
    report.figure(
        Figure::new(format!("cameras, {CAMERAS}, resident beside logs"), "MB")
            .ours(memory)
            .target(Target::AtMost(MEMORY_MAX)),
    );
    report.figure(
        Figure::new("cameras, oldest newest frame while one is added", "ms")
            .ours(ages)
            .target(Target::AtMost(AGE_MAX_MS))
            .note("as `tidegate cameras` tells it, time and again, with the time that it takes"),
    );
    Ok(())
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

/// The largest age in ms of the newest frame of a camera that was there before, from now until the new one has been there for a second.
fn oldest_while_adding(node: &Node) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut since = None;
    let mut oldest = 0.0_f64;
    loop {
        let cameras = newest(node)?;
        // Behind the answer: the time of the question counts against the camera.
        let answered = realtime_nanos();
        let old = (0..CAMERAS).map(|number| format!("cam{number:02}"));
        for name in old {
            let newest = cameras.get(&name).with_context(|| format!("{name} is gone"))?;
            oldest = oldest.max((answered - newest) as f64 / 1e6);
        }
        if cameras.len() > CAMERAS {
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

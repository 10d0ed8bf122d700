//! An edge node and a camera that no one subscribes to: the processor they use, and the memory beside their logs.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use bench_harness::{Figure, Report, Target};
use tidegate_sys::clock::process_cpu_nanos;

use crate::{
    Plan,
    live::{Studio, runs},
    site::{Site, SiteConfig},
    watch::{block_on, connect, ready},
};

/// Most that an idle node may use of a core, in per cent.
const CPU_MAX: f64 = 0.5;
/// Most memory beside logs, in megabytes.
const MEMORY_MAX: f64 = 40.0;
/// Time for what a start leaves to do.
const SETTLE: Duration = Duration::from_secs(2);
/// A camera's log: at 2.4 MB a second its first lap takes less than [`FIRST_LAP`].
const LOG: &str = "32MiB";
/// A node runs for weeks and is in the first lap of its log, where each page is new, for minutes: the two are told apart.
const FIRST_LAP: Duration = Duration::from_secs(16);

/// < 0.5 % of a core and < 40 MB beside its logs, for both.
///
/// # Errors
/// A node did not start, or its figures cannot be read.
pub fn idle(plan: &Plan, studio: &Studio, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 8 } else { 20 });
    let mut cpu = [Vec::new(), Vec::new()];
    let mut first_lap = Vec::new();
    let mut memory = [Vec::new(), Vec::new()];
    for _ in 0..runs(plan) {
        // The clip is read picture by picture: a camera has no loop in its memory.
        let sources = vec![studio.slow.source(false)];
        let config =
            SiteConfig { sources, camera_log: LOG, frame: "2MB", ..studio.site(&studio.slow, 1) };
        let site = Site::start(&config, None)?;
        let client = block_on(ready(&site.endpoint(), &site.pki(), 1))??;
        drop(client);
        let began = Instant::now();
        thread::sleep(SETTLE);
        let processes = site.processes();
        first_lap.push(used_percent(&processes, length.min(FIRST_LAP / 2))?[1]);
        thread::sleep(FIRST_LAP.saturating_sub(began.elapsed()));
        let used = used_percent(&processes, length)?;
        let resident: Vec<f64> =
            processes.iter().map(|(_, id)| resident_bytes(*id)).collect::<Result<_, _>>()?;
        let cameras = block_on(async {
            let client = connect(&site.endpoint(), &site.pki()).await?;
            anyhow::Ok(client.cameras().await?)
        })??;
        let log = cameras.first().context("the camera is gone")?.log_bytes as f64;
        for (cpu, used) in cpu.iter_mut().zip(used) {
            cpu.push(used);
        }
        // The edge node has a log for each transfer, hence none.
        memory[0].push(resident[0] / 1e6);
        memory[1].push((resident[1] - log) / 1e6);
        site.finish()?;
    }
    for ((name, cpu), memory) in ["edge node", "camera at 5 fps"].into_iter().zip(cpu).zip(memory) {
        report.figure(
            Figure::new(format!("idle, {name}, of a core"), "%")
                .ours(cpu)
                .target(Target::AtMost(CPU_MAX)),
        );
        report.figure(
            Figure::new(format!("idle, {name}, resident beside logs"), "MB")
                .ours(memory)
                .target(Target::AtMost(MEMORY_MAX)),
        );
    }
    report.figure(
        Figure::new("idle, camera at 5 fps, first lap of its log, of a core", "%").ours(first_lap),
    );
    Ok(())
}

/// The use of a core by an edge node and a camera meanwhile, in per cent.
fn used_percent(processes: &[(String, u32)], length: Duration) -> anyhow::Result<[f64; 2]> {
    let [(_, node), (_, camera)] = processes else { bail!("one edge node and one camera run") };
    let (node_before, camera_before) = (cpu_seconds(*node)?, cpu_seconds(*camera)?);
    let began = Instant::now();
    thread::sleep(length);
    let percent = 100.0 / began.elapsed().as_secs_f64();
    Ok([
        (cpu_seconds(*node)? - node_before) * percent,
        (cpu_seconds(*camera)? - camera_before) * percent,
    ])
}

/// Processor time of a process and its threads, in seconds.
fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    let nanos = process_cpu_nanos(process)
        .with_context(|| format!("reading the processor time of process {process}"))?;
    Ok(nanos as f64 / 1e9)
}

fn resident_bytes(process: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes = kilobytes.with_context(|| format!("{path} has no VmRSS"))?;
    Ok(kilobytes.parse::<f64>().with_context(|| format!("reading {path}"))? * 1024.0)
}

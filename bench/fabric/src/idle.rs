//! The cost of a member of sixteen that has nothing to do, beside the same node alone.

use std::{fs, thread, time::Duration};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, median};

use crate::{
    Plan,
    site::{Settings, Site},
};

const NODES: usize = 16;
/// Of an IPv4 packet with TCP and its time stamps: links of members are TCP alone.
const HEADERS: u64 = 52;

/// One site of sixteen and one node alone, both at rest.
///
/// # Errors
/// Namespaces take root; a node does not start.
pub fn idle(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 10 } else { 60 });
    report.configuration("idle", format!("{NODES} nodes, {} s each", length.as_secs()));
    let line = Some(Duration::from_millis(1));
    let alone = Settings { nodes: 1, line, is_fabric: false, ..Settings::default() };
    let alone = at_rest(&alone, length)?;
    let member = at_rest(&Settings { nodes: NODES, line, ..Settings::default() }, length)?;
    report.figure(
        Figure::new(format!("idle member of {NODES}, processor time"), "%")
            .ours([member.cpu_percent])
            .target(Target::AtMost(0.5))
            .note(format!("a node alone: {:.2} %", alone.cpu_percent)),
    );
    report.figure(
        Figure::new(format!("idle member of {NODES}, memory on top"), "MB")
            .ours([member.megabytes - alone.megabytes])
            .target(Target::AtMost(4.0))
            .note(format!(
                "{:.1} MB; a node alone: {:.1} MB; the program's own pages are {:.1} MB of the difference",
                member.megabytes,
                alone.megabytes,
                member.program_megabytes - alone.program_megabytes
            )),
    );
    let links = (NODES - 1) as f64;
    report.figure(
        Figure::new(format!("idle member of {NODES}, sent and received on each link"), "B/s")
            .ours([member.bytes_a_second / links])
            .target(Target::AtMost(200.0))
            .note("payload of TCP"),
    );
    Ok(())
}

/// The median node's.
struct AtRest {
    cpu_percent: f64,
    megabytes: f64,
    /// Of these the pages of files: the program and its libraries, as far as it has used them.
    program_megabytes: f64,
    bytes_a_second: f64,
}

struct Sample {
    cpu: Duration,
    resident_bytes: u64,
    program_bytes: u64,
    /// Payload that passed its line, both ways.
    payload_bytes: u64,
}

fn at_rest(settings: &Settings, length: Duration) -> anyhow::Result<AtRest> {
    let site = Site::start(settings)?;
    // The links measure their paths at first, more often than later.
    thread::sleep(Duration::from_secs(15));
    let all = || 0..site.len();
    let before: Vec<_> = all().map(|node| sample(&site, node)).collect::<anyhow::Result<_>>()?;
    thread::sleep(length);
    let after: Vec<_> = all().map(|node| sample(&site, node)).collect::<anyhow::Result<_>>()?;
    let of = |pick: &dyn Fn(usize) -> f64| median(&all().map(pick).collect::<Vec<_>>());
    let seconds = length.as_secs_f64();
    Ok(AtRest {
        cpu_percent: of(&|node| {
            (after[node].cpu - before[node].cpu).as_secs_f64() / seconds * 100.0
        }),
        megabytes: of(&|node| after[node].resident_bytes as f64 / 1e6),
        program_megabytes: of(&|node| after[node].program_bytes as f64 / 1e6),
        bytes_a_second: of(&|node| {
            (after[node].payload_bytes - before[node].payload_bytes) as f64 / seconds
        }),
    })
}

fn sample(site: &Site, node: usize) -> anyhow::Result<Sample> {
    let usage = site.usage(node)?;
    let text = site.within(node, || fs::read_to_string("/proc/thread-self/net/dev"))??;
    let name = site.name(node);
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:")));
    let line = line.with_context(|| format!("{name} has no line"))?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let (bytes, packets) = (fields[0] + fields[8], fields[1] + fields[9]);
    let status = fs::read_to_string(format!("/proc/{}/status", site.process(node)?))?;
    let of_files = status.lines().find_map(|line| line.strip_prefix("RssFile:"));
    let kibibytes =
        of_files.and_then(|said| said.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(Sample {
        cpu: usage.cpu,
        resident_bytes: usage.resident_bytes,
        program_bytes: 1024
            * kibibytes.context("the kernel does not say which memory is of files")?,
        payload_bytes: bytes.saturating_sub(HEADERS * packets),
    })
}

//! Benches of sensor streams: each group measures some figures and adds their rows to one report.
//!
//! ```text
//!  bench-sensors [--quick] [--only GROUP]… [--data FOLDER] ──▶ groups in turn ──▶ Report ──▶ table, folder, exit status
//! ```

use std::{path::PathBuf, process::ExitCode};

use bench_harness::Report;
use bench_sensors::{Plan, chain, co_running, codec, cold, endure, memory, oil, udp, urgent, ways};
use clap::{Parser, ValueEnum};

/// Measures how sensor messages are received, encoded and carried, and exits 0 only if no figure is short.
#[derive(Parser)]
struct Options {
    /// Shorter runs: enough to see a regression, not enough to quote.
    #[arg(long)]
    quick: bool,
    /// Only these groups.
    #[arg(long, value_name = "GROUP")]
    only: Vec<Group>,
    /// Runs that each figure is the median of [default: 5, or 2 with --quick].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Seed of the generator.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder with RIoTBench's sample rows, which are reported beside what is made up [default: $TIDEGATE_DATA].
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

/// Groups that can be measured on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Memory of ten million topics; before the others, whose memory it would be given.
    Memory,
    /// Ratio and speed of the codec beside general compressors.
    Codec,
    /// Decoding from cold beside Snappy, and the paper's interval between comparisons.
    Cold,
    /// Datagrams per second of the receiving thread.
    Udp,
    /// The oil-anomaly flow in memory, and its alarms from datagrams.
    Oil,
    /// Messages per second from an edge to a host in the paper's six ways, and when subscribers know; takes some
    /// twelve minutes even when short, and root or sockets of 4 MiB.
    Ways,
    /// Latency of four applications at one edge beside that of each alone.
    CoRunning,
    /// Processor time of what stands above, per message, beside one MQTT message each.
    Chain,
    /// Latency of alarms while all else is carried as well.
    Urgent,
    /// Losses while the link is cut and the upper node killed; takes root and ten minutes.
    Endure,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let runs =
        options.runs.map_or(if options.quick { 2 } else { bench_harness::RUNS }, usize::from);
    let data = options.data.or_else(|| std::env::var_os("TIDEGATE_DATA").map(PathBuf::from));
    let plan = Plan { quick: options.quick, runs, seed: options.seed, data };
    let mut report = Report::new(if plan.quick { "sensors-quick" } else { "sensors" });
    report.configuration("runs", plan.runs);
    report.configuration("quick", plan.quick);
    report.configuration("seed", plan.seed);
    if !report.is_optimized() {
        eprintln!("bench-sensors: built without optimization; these figures mean nothing");
    }
    for group in Group::value_variants() {
        if !options.only.is_empty() && !options.only.contains(group) {
            continue;
        }
        eprintln!("bench-sensors: {group:?}");
        let measured = match group {
            Group::Codec => codec::codec(&plan, &mut report),
            Group::Cold => cold::cold(&plan, &mut report),
            Group::Memory => memory::memory(&plan, &mut report),
            Group::Udp => udp::udp(&plan, &mut report),
            Group::Oil => oil::oil(&plan, &mut report),
            Group::Ways => ways::ways(&plan, &mut report),
            Group::CoRunning => co_running::co_running(&plan, &mut report),
            Group::Chain => chain::chain(&plan, &mut report),
            Group::Urgent => urgent::urgent(&plan, &mut report),
            Group::Endure => endure::endure(&plan, &mut report),
        };
        report.group(&format!("{group:?}"), measured);
    }
    report.finish()
}

//! Benches of many nodes as one: each group measures some figures and adds their rows to one report.
//!
//! ```text
//!  bench-fabric [--quick] [--only GROUP]… [--runs N] [--seed N] ──▶ groups in turn ──▶ Report ──▶ table, folder, exit status
//! ```

use std::process::ExitCode;

use bench_fabric::{Plan, faults, filters, idle, messages, places, site, soak, subscribe};
use bench_harness::{Report, machine};
use clap::{Parser, ValueEnum};

/// Measures every figure of many nodes as one, beside bridges and routed servers of others, and exits 0 only if none is short.
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
    /// Chooses the faults of the soak.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Groups that can be measured on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// How soon the end of a process, a node that hangs and a cut line are seen.
    Faults,
    /// From node to node: latency and processor time of each message, beside bridges and routed servers.
    Messages,
    /// How soon a subscription is known to eight nodes, and what one that hangs costs.
    Subscribe,
    /// Processor time, memory and traffic of a member of sixteen that has nothing to do.
    Idle,
    /// Memory that the filters of other members take.
    Filters,
    /// How evenly members share the data of a place, and which of it a loss moves: computed.
    Places,
    /// Five nodes under traffic that are killed and cut off.
    Soak,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let runs =
        options.runs.map_or(if options.quick { 2 } else { bench_harness::RUNS }, usize::from);
    let plan =
        Plan { quick: options.quick, runs, seed: options.seed, root: machine::root("fabric")? };
    let mut report = Report::new(if plan.quick { "fabric-quick" } else { "fabric" });
    report.configuration("runs", plan.runs);
    report.configuration("quick", plan.quick);
    report.configuration("seed", plan.seed);
    if !report.is_optimized() {
        eprintln!("bench-fabric: built without optimization; these figures mean nothing");
    }
    site::watch_signals()?;
    for group in Group::value_variants() {
        if !options.only.is_empty() && !options.only.contains(group) {
            continue;
        }
        eprintln!("bench-fabric: {group:?}");
        let measured = match group {
            Group::Faults => faults::faults(&plan, &mut report),
            Group::Messages => messages::messages(&plan, &mut report),
            Group::Subscribe => subscribe::subscribe(&plan, &mut report),
            Group::Idle => idle::idle(&plan, &mut report),
            Group::Filters => filters::filters(&plan, &mut report),
            Group::Places => places::places(&plan, &mut report),
            Group::Soak => soak::soak(&plan, &mut report),
        };
        report.group(&format!("{group:?}"), measured);
    }
    report.finish()
}

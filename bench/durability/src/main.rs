//! Benches of durability: each group measures some figures and adds their rows to one report.
//!
//! ```text
//!  bench-durability [--quick] [--only GROUP]… [--folder FOLDER] ──▶ groups in turn ──▶ Report ──▶ table, folder, exit status
//! ```

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use bench_durability::{Plan, append, commit, doors, kill, open, power, recovery, sealing, soak};
use bench_harness::Report;
use clap::{Parser, ValueEnum};

/// Measures what durability costs and keeps, and exits 0 only if no figure is short.
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
    /// A folder on the disk to measure; 12 GiB must be free [default: one of its own in the working directory].
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// Groups that can be measured on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Appends of class `page` beside a write for each message.
    Append,
    /// Group commit beside a sync for each message.
    Commit,
    /// Opening a large log.
    Open,
    /// The cost of sealing.
    Sealing,
    /// Power lost on the simulated disk, by seeds.
    Power,
    /// A node under load that is killed again and again, class `page`.
    KillPage,
    /// The same, class `disk`.
    KillDisk,
    /// How long a large site's state takes to come back.
    Recovery,
    /// A day of a site in half an hour.
    Soak,
    /// Attempts to get into a node, and what they cost those who may.
    Doors,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let runs =
        options.runs.map_or(if options.quick { 2 } else { bench_harness::RUNS }, usize::from);
    let below = match &options.folder {
        Some(folder) => folder.clone(),
        None => std::env::current_dir().context("the working directory is gone")?,
    };
    let own = tempfile::Builder::new().prefix("bench-durability-").tempdir_in(&below);
    let own = own.with_context(|| format!("making a folder in {}", below.display()))?;
    let plan = Plan { quick: options.quick, runs, folder: own.path().to_owned() };
    let mut report = Report::new(if plan.quick { "durability-quick" } else { "durability" });
    report.configuration("runs", plan.runs);
    report.configuration("quick", plan.quick);
    if !report.is_optimized() {
        eprintln!("bench-durability: built without optimization; these figures mean nothing");
    }
    for group in Group::value_variants() {
        if !options.only.is_empty() && !options.only.contains(group) {
            continue;
        }
        eprintln!("bench-durability: {group:?}");
        let measured = match group {
            Group::Append => append::append(&plan, &mut report),
            Group::Commit => commit::commit(&plan, &mut report),
            Group::Open => open::open(&plan, &mut report),
            Group::Sealing => sealing::sealing(&plan, &mut report),
            Group::Power => power::power(&plan, &mut report),
            Group::KillPage => kill::kill(&plan, "page", &mut report),
            Group::KillDisk => kill::kill(&plan, "disk", &mut report),
            Group::Recovery => recovery::recovery(&plan, &mut report),
            Group::Soak => soak::soak(&plan, &mut report),
            Group::Doors => doors::doors(&plan, &mut report),
        };
        report.group(&format!("{group:?}"), measured);
    }
    report.finish()
}

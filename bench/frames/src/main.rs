//! Benches of the frame path: each group measures some figures of the frame path and adds their rows to one report.
//!
//! ```text
//!  bench-frames [--quick] [--only GROUP]… [--runs N] ──▶ groups in turn ──▶ Report ──▶ table, folder, exit status
//! ```

use std::process::ExitCode;

use anyhow::Context as _;
use bench_frames::{
    Plan, SCENARIO, age, calibrate, control, fanout, figures, idle, infeasible, live::Studio,
    stages, steps, wifi,
};
use bench_harness::{Report, machine};
use clap::{Parser, Subcommand, ValueEnum};

/// Measures every figure of the frame path, beside NATS and OpenCV, and exits 0 only if none is short.
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
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Fits the Wi-Fi-like medium to the paper's Table 1 again and rewrites its scenario.
    Calibrate,
}

/// Groups that can be measured on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// The camera log: append and range read.
    Log,
    /// The knobs, beside OpenCV.
    Knobs,
    /// The Wi-Fi-like medium against the latencies it was calibrated on.
    Medium,
    /// A network camera whose pictures show a clock: their real age, and the reported one.
    Age,
    /// Frames through NATS on loopback, for 1 to 8 subscribers.
    Nats,
    /// The controllers side by side in virtual time, and the paper's own experiment.
    Controllers,
    /// One camera on a line that steps between 200 and 20 Mbit/s.
    Steps,
    /// One to five cameras on the Wi-Fi-like medium, beside `fixed` and NATS.
    Wifi,
    /// One camera with one and with eight subscribers.
    Fanout,
    /// Where the time of a frame goes with five cameras.
    Stages,
    /// Processor and memory of nodes that no one asks for anything.
    Idle,
    /// Bounds that a path does not carry, by the program itself: told, and what is offered had.
    Infeasible,
}

/// Measures a group of real nodes in a studio that is opened for the first of them.
fn live(
    studio: &mut Option<Studio>,
    plan: &Plan,
    report: &mut Report,
    group: fn(&Plan, &Studio, &mut Report) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let studio = match studio {
        Some(studio) => studio,
        none => none.insert(Studio::open(plan, report)?),
    };
    group(plan, studio, report)
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let runs =
        options.runs.map_or(if options.quick { 2 } else { bench_harness::RUNS }, usize::from);
    let plan = Plan { quick: options.quick, runs, root: machine::root("frames")? };
    if let Some(Task::Calibrate) = options.task {
        let path = plan.root.join(SCENARIO);
        let fit = calibrate::write(&path).with_context(|| format!("writing {}", path.display()))?;
        println!("{}: furthest cell {:.1} % off", path.display(), fit.worst().abs() * 100.0);
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::new(if plan.quick { "frames-quick" } else { "frames" });
    report.configuration("runs", plan.runs);
    report.configuration("quick", plan.quick);
    if !report.is_optimized() {
        eprintln!("bench-frames: built without optimization; these figures mean nothing");
    }
    let mut studio = None;
    for group in Group::value_variants() {
        if !options.only.is_empty() && !options.only.contains(group) {
            continue;
        }
        eprintln!("bench-frames: {group:?}");
        let measured = match group {
            Group::Log => figures::log(&plan, &mut report),
            Group::Knobs => figures::knobs(&plan, &mut report),
            Group::Medium => figures::medium(&plan, &mut report),
            Group::Age => age::age(&plan, &mut report),
            Group::Nats => figures::nats(&plan, &mut report),
            Group::Controllers => control::controllers(&mut report),
            Group::Steps => live(&mut studio, &plan, &mut report, steps::steps),
            Group::Wifi => live(&mut studio, &plan, &mut report, wifi::wifi),
            Group::Fanout => live(&mut studio, &plan, &mut report, fanout::fanout),
            Group::Stages => live(&mut studio, &plan, &mut report, stages::stages),
            Group::Idle => live(&mut studio, &plan, &mut report, idle::idle),
            Group::Infeasible => infeasible::infeasible(&plan, &mut report),
        };
        report.group(&format!("{group:?}"), measured);
    }
    report.finish()
}

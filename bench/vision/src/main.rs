//! Benches of the endpoints for images and pictures: each group measures some figures and adds their rows to one report.
//!
//! ```text
//!  bench-vision [--quick] [--only GROUP]… [--runs N] ──▶ groups in turn ──▶ Report ──▶ table, folder, exit status
//!  bench-vision worker ──▶ a detector for the node under test
//!  bench-vision echo ──▶ the endpoints with a detector in their process
//! ```

use std::{process::ExitCode, time::Duration};

use bench_harness::Report;
use bench_vision::{
    Plan, application, cameras, clients, echo, latency, mjpeg, overhead, root, sdk, site, worker,
};
use clap::{Parser, Subcommand, ValueEnum};

/// Measures the endpoints for images and pictures beside a Django server, and exits 0 only if no figure is short.
#[derive(Parser)]
struct Options {
    /// Shorter runs: enough to see a regression, not enough to quote.
    #[arg(long)]
    quick: bool,
    /// Only these groups.
    #[arg(long, value_name = "GROUP")]
    only: Vec<Group>,
    /// Runs that each figure is the median of [default: 3, or 1 with --quick; long ones have fewer].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Is a detector that finds one box in every image, for a node that starts it.
    Worker {
        /// Milliseconds that it takes for an image.
        #[arg(long, default_value_t = 0.0)]
        milliseconds: f64,
    },
    /// Serves images by the program's endpoints, with a detector of no cost in this process.
    Echo {
        /// Port of HTTP.
        #[arg(long)]
        http: u16,
        /// Port of the persistent protocol.
        #[arg(long)]
        tcp: u16,
    },
}

/// Runs of a figure: what most of them vary by is within a run, whose samples are kept.
const RUNS: usize = 3;

/// Groups that can be measured on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Full process, network only and server time over lines of 5 to 320 ms and one like 4G, in each way to send an image.
    Latency,
    /// The endpoints' own cost on loopback, with a detector that does nothing.
    Overhead,
    /// 1 to 64 clients of one detector: throughput, and how equally they are served.
    Clients,
    /// Live detection within 200 ms, with a detector of 60 ms, on a line whose capacity swings tenfold.
    Application,
    /// Nine cameras as MJPEG to 20 viewers, and to one more that does not read.
    Mjpeg,
    /// 32 cameras in one node's configuration that are watched by no one.
    Cameras,
    /// A frame of 500 KB by the Python package beside a bare stream of grpcio.
    Sdk,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    match options.task {
        None => {}
        Some(Task::Worker { milliseconds }) => {
            worker::serve(Duration::from_secs_f64(milliseconds.max(0.0) / 1e3))?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Task::Echo { http, tcp }) => {
            echo::serve(http, tcp)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    site::watch_signals()?;
    let runs = options.runs.map_or(if options.quick { 1 } else { RUNS }, usize::from);
    let plan = Plan { quick: options.quick, runs, root: root() };
    let mut report = Report::new(if plan.quick { "vision-quick" } else { "vision" });
    report.configuration("runs", plan.runs);
    report.configuration("quick", plan.quick);
    if !report.is_optimized() {
        eprintln!("bench-vision: built without optimization; these figures mean nothing");
    }
    for group in Group::value_variants() {
        if !options.only.is_empty() && !options.only.contains(group) {
            continue;
        }
        eprintln!("bench-vision: {group:?}");
        let measured = match group {
            Group::Latency => latency::latency(&plan, &mut report),
            Group::Overhead => overhead::overhead(&plan, &mut report),
            Group::Clients => clients::clients(&plan, &mut report),
            Group::Application => application::application(&plan, &mut report),
            Group::Mjpeg => mjpeg::mjpeg(&plan, &mut report),
            Group::Cameras => cameras::cameras(&plan, &mut report),
            Group::Sdk => sdk::sdk(&plan, &mut report),
        };
        report.group(&format!("{group:?}"), measured);
    }
    report.finish()
}

//! Benches of the MQTT broker: each group measures some figures and adds their rows to one report.
//!
//! ```text
//!  bench-mqtt [--quick] [--only GROUP]… [--runs N] ──▶ groups in turn ──▶ Report ──▶ table, folder, exit status
//! ```

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
};

use bench_harness::{Report, machine};
use bench_mqtt::{
    Plan, broker::Programs, congestion, connects, core, idle, paper, quiet, relay, simulator, site,
    sparse, stalled, throughput,
};
use clap::{Parser, Subcommand, ValueEnum};

/// Measures every figure of the MQTT broker, beside mosquitto, rumqttd, NATS and mochi, and exits 0 only if none is short.
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
    /// Holds connections for the bench that started it.
    #[command(hide = true)]
    Hold { target: SocketAddr, count: u32, source: Ipv4Addr },
    /// Sends on what it receives, for the bench that started it.
    #[command(hide = true)]
    Relay { engine: relay::Engine },
}

/// Groups that can be measured on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Messages per second and per processor second, and latency with QoS 1, over loopback.
    Throughput,
    /// Messages per processor second where thousands of connections send one now and then.
    Sparse,
    /// Few messages a second, each by itself, as most nodes see them: CPU and latency of each.
    Quiet,
    /// Connections a second, plain, by TLS and with a password, and a fleet that comes back at once.
    Connects,
    /// Memory of connections that only ping, and how many fit into one broker.
    Idle,
    /// The core without sockets: a million subscriptions, a hundred thousand sessions.
    Core,
    /// 75 subscribers that never read.
    Stalled,
    /// The paper's policies in virtual time.
    Simulator,
    /// Small and large messages over 10 Mbit/s, by policy, loss and congestion control.
    Congestion,
    /// The paper's Tables 1 and 2; not with --quick.
    #[value(name = "paper-1")]
    Paper1,
    /// The paper's Table 3; not with --quick.
    #[value(name = "paper-2")]
    Paper2,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    match options.task {
        Some(Task::Hold { target, count, source }) => {
            idle::holder(target, count, source)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Task::Relay { engine }) => {
            relay::relay(engine)?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    let runs =
        options.runs.map_or(if options.quick { 2 } else { bench_harness::RUNS }, usize::from);
    let plan = Plan { quick: options.quick, runs, root: machine::root("mqtt")? };
    let mut report = Report::new(if plan.quick { "mqtt-quick" } else { "mqtt" });
    report.configuration("runs", plan.runs);
    report.configuration("quick", plan.quick);
    if !report.is_optimized() {
        eprintln!("bench-mqtt: built without optimization; these figures mean nothing");
    }
    site::watch_signals()?;
    let programs = Programs::find(&plan.root)?;
    let contenders = programs.contenders(&mut report);
    for group in Group::value_variants() {
        if !options.only.is_empty() && !options.only.contains(group) {
            continue;
        }
        eprintln!("bench-mqtt: {group:?}");
        let measured = match group {
            Group::Throughput => throughput::throughput(&plan, &programs, &contenders, &mut report),
            Group::Sparse => sparse::sparse(&plan, &programs, &contenders, &mut report),
            Group::Quiet => quiet::quiet(&plan, &programs, &contenders, &mut report),
            Group::Connects => connects::connects(&plan, &programs, &contenders, &mut report),
            Group::Idle => idle::idle(&plan, &programs, &contenders, &mut report),
            Group::Core => core::core(&plan, &mut report),
            Group::Stalled => stalled::stalled(&plan, &programs, &contenders, &mut report),
            Group::Simulator => {
                simulator::simulator(&mut report);
                Ok(())
            }
            Group::Congestion => congestion::congestion(&plan, &programs, &mut report),
            Group::Paper1 | Group::Paper2 if plan.quick => Ok(()),
            Group::Paper1 => paper::first(&programs, &mut report),
            Group::Paper2 => paper::second(&plan, &programs, &mut report),
        };
        report.group(&format!("{group:?}"), measured);
    }
    report.finish()
}

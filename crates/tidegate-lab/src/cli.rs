//! The command line.
//!
//! ```text
//!  tidegate-lab COMMAND
//! ```
//!
//! Always true: as of `tidegate`, a failure is printed once, with its causes, and its stable code decides the exit status.

mod bench;
mod demo;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidegate_api::ApiError;
use tidegate_cli::program;
use tokio_util::sync::CancellationToken;

pub use self::{
    bench::{BenchArgs, BenchCommand, MqttBenchArgs, SensorBenchArgs, VisionBenchArgs},
    demo::{DemoArgs, DemoFabricArgs, DemoSensorsArgs},
    sim::{MqttSimArgs, SimArgs, SimCommand},
};

/// Shows Tidegate on emulated links, computes published figures again, and loads brokers.
#[derive(Debug, Parser)]
#[command(name = "tidegate-lab", version, max_term_width = 100, after_help = EXIT_STATUSES)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_STATUSES: &str = "\
Exit status: 0 done, 1 a fault of the program or a report that is not whole, 2 wrong request, 4 not
reachable (try again), 5 not allowed, 6 a verdict that is not met, 7 a file cannot be written.
TIDEGATE_LOG sets what is logged, such as debug.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show it: cameras on an emulated Wi-Fi whose capacity swings tenfold, with a verdict at the end
    Demo(DemoArgs),
    /// Show it for sensors: four applications, alarms at the edge, a narrow link that breaks, an archive; with a verdict
    DemoSensors(DemoSensorsArgs),
    /// Show many nodes as one: eight in two regions, of which one is killed, hung, cut off, revoked; with a verdict
    DemoFabric(DemoFabricArgs),
    /// Recompute published figures with the policies as they are shipped
    Sim(SimArgs),
    /// Load a broker or a detector and report rates and latencies
    Bench(BenchArgs),
}

/// Runs the program and returns its exit status.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = program::begin() {
        return program::finish(Err(error));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    program::run(runtime, |stop| run(cli.command, stop))
}

async fn run(command: Command, stop: CancellationToken) -> Result<(), ApiError> {
    match command {
        Command::Demo(args) => demo::run(args, stop).await,
        Command::DemoSensors(args) => demo::sensors(args, stop).await,
        Command::DemoFabric(args) => demo::fabric(args, stop).await,
        Command::Sim(args) => program::until(stop, sim::run(args)).await,
        Command::Bench(args) => bench::run(args, stop).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_is_golden() {
        let help = Cli::command().term_width(100).render_long_help().to_string();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/help.txt");
        if std::env::var_os("TIDEGATE_GOLDEN").is_some() {
            std::fs::write(golden, &help).unwrap();
        }
        assert_eq!(help, std::fs::read_to_string(golden).unwrap(), "TIDEGATE_GOLDEN=1 rewrites it");
    }

    #[test]
    fn arguments_are_checked_with_a_way_out() {
        for (line, expected) in [
            ("tidegate-lab demo --latency 100", "\"100\" is not a duration: a number with ns, us"),
            ("tidegate-lab demo --controller pid", "budget mez-pi aimd fixed"),
            ("tidegate-lab demo --cameras 17", "1..=16"),
            ("tidegate-lab sim mqtt --seeds 0", "1..=1000"),
            ("tidegate-lab bench vision -s h -c udp", "rest-base64, websocket, tcp"),
        ] {
            let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}

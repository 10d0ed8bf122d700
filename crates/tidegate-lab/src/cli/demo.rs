//! `tidegate-lab demo`, `demo-sensors` and `demo-fabric`: the demonstrations, and their verdicts as exit status.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use tidegate_api::ApiError;
use tidegate_cli::program::print;
use tidegate_message::{Bounds, Code, ControllerKind, quantity};
use tokio_util::sync::CancellationToken;

use crate::{
    demo::{self, DemoOptions, fabric::FabricDemoOptions, sensors::SensorDemoOptions},
    program,
};

/// Arguments of `tidegate-lab demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// The clip the cameras show [default: that of the folder TIDEGATE_DATA, or ../shared/data, if
    /// there is one, else a generated scene]
    #[arg(long, value_name = "FILE")]
    pub clip: Option<PathBuf>,
    /// How many cameras
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub cameras: u16,
    /// The controller of the knobs: budget, mez-pi, aimd or fixed
    #[arg(long, default_value_t)]
    pub controller: ControllerKind,
    /// Longest time from capture to the application
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = quantity::duration)]
    pub latency: Duration,
    /// Least accuracy of the detector on delivered frames, against their originals
    #[arg(long, value_name = "F1", default_value_t = 0.95)]
    pub accuracy: f64,
    /// How long to run
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = quantity::duration)]
    pub duration: Duration,
    /// The program that nodes run [default: `tidegate` next to this program, or in $PATH]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "tidegate-demo.html")]
    pub report: PathBuf,
}

/// Arguments of `tidegate-lab demo-sensors`.
#[derive(Args, Clone, Debug)]
pub struct DemoSensorsArgs {
    /// Messages a second of each of the four applications
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,
    /// How long devices send
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = quantity::duration)]
    pub duration: Duration,
    /// The program that nodes run [default: `tidegate` next to this program, or in $PATH]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Seed of the devices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Arguments of `tidegate-lab demo-fabric`.
#[derive(Args, Clone, Debug)]
pub struct DemoFabricArgs {
    /// The program that nodes run [default: `tidegate` next to this program, or in $PATH]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Keep the folders and logs of the nodes here, a folder that is empty or not there yet
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
}

pub(super) async fn run(args: DemoArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let options = DemoOptions {
        program: program::find(args.program.as_deref())?,
        clip: args.clip,
        cameras: args.cameras,
        controller: args.controller,
        bounds: Bounds::new(args.latency, args.accuracy)?,
        duration: args.duration,
        report: args.report,
    };
    let report = options.report.display().to_string();
    // The demo makes runtimes of its own, inside namespaces.
    let ran = tokio::task::spawn_blocking(move || demo::run(&options, &stop)).await;
    let run = ran.map_err(|error| {
        ApiError::new(Code::INTERNAL, "the demo ended by a fault of the program").caused_by(error)
    })??;
    let mut text = String::from("\n");
    for check in run.checks() {
        let word = if check.met { "met  " } else { "SHORT" };
        text.push_str(&format!(
            "{word} {}: {} (asked {})\n",
            check.what, check.value, check.target
        ));
    }
    text.push_str(&format!("report: {report}\n{}\n", run.verdict()));
    print(&text)?;
    if run.met() {
        return Ok(());
    }
    Err(ApiError::new(Code::BOUND_INFEASIBLE, "the verdict is not met; the report shows where"))
}

/// `tidegate-lab demo-sensors`: the same for sensors.
pub(super) async fn sensors(
    args: DemoSensorsArgs,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let DemoSensorsArgs { rate, duration, program, seed } = args;
    let program = program::find(program.as_deref())?;
    let options = SensorDemoOptions { program, rate, duration, seed };
    let ran = tokio::task::spawn_blocking(move || demo::sensors::run(&options, &stop)).await;
    let run = ran.map_err(|error| {
        ApiError::new(Code::INTERNAL, "the demo ended by a fault of the program").caused_by(error)
    })??;
    told(&run.checks, "the output differs from the input")
}

/// `tidegate-lab demo-fabric`: the same for many nodes.
pub(super) async fn fabric(args: DemoFabricArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let DemoFabricArgs { program, keep } = args;
    let options = FabricDemoOptions { program: program::find(program.as_deref())?, keep };
    let ran = tokio::task::spawn_blocking(move || demo::fabric::run(&options, &stop)).await;
    let run = ran.map_err(|error| {
        ApiError::new(Code::INTERNAL, "the demo ended by a fault of the program").caused_by(error)
    })??;
    told(&run.checks, "something of the above does not hold")
}

/// Prints the verdict.
///
/// # Errors
/// [`Code::BOUND_INFEASIBLE`] with that text if one does not hold.
fn told(checks: &[(&str, String, bool)], short: &str) -> Result<(), ApiError> {
    let mut text = String::from("\n");
    for (what, found, met) in checks {
        let word = if *met { "met  " } else { "SHORT" };
        text.push_str(&format!("{word} {what}: {found}\n"));
    }
    print(&text)?;
    match checks.iter().all(|(_, _, met)| *met) {
        true => Ok(()),
        false => Err(ApiError::new(Code::BOUND_INFEASIBLE, short)),
    }
}

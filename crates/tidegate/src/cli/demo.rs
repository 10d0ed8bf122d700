//! `tidegate demo`: the demonstration, and its verdict as exit status.

use tidegate_api::ApiError;
use tidegate_message::{Bounds, Code};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "sink-parquet")]
use super::args::DemoSensorsArgs;
use super::{args::DemoArgs, print};
#[cfg(feature = "sink-parquet")]
use crate::demo::sensors::SensorDemoOptions;
use crate::demo::{self, DemoOptions};

pub(super) async fn run(args: DemoArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let options = DemoOptions {
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

/// `tidegate demo-sensors`: the same for sensors.
#[cfg(feature = "sink-parquet")]
pub(super) async fn sensors(
    args: DemoSensorsArgs,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let DemoSensorsArgs { rate, duration, seed } = args;
    let options = SensorDemoOptions { rate, duration, seed };
    let ran = tokio::task::spawn_blocking(move || demo::sensors::run(&options, &stop)).await;
    let run = ran.map_err(|error| {
        ApiError::new(Code::INTERNAL, "the demo ended by a fault of the program").caused_by(error)
    })??;
    let mut text = String::from("\n");
    for (what, found, met) in &run.checks {
        let word = if *met { "met  " } else { "SHORT" };
        text.push_str(&format!("{word} {what}: {found}\n"));
    }
    print(&text)?;
    if run.met() {
        return Ok(());
    }
    Err(ApiError::new(Code::BOUND_INFEASIBLE, "what came out is not what went in"))
}

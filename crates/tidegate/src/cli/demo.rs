//! `tidegate demo`: the demonstration, and its verdict as exit status.

use tidegate_client::ApiError;
use tidegate_message::{Bounds, Code};
use tokio_util::sync::CancellationToken;

use super::{args::DemoArgs, print};
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

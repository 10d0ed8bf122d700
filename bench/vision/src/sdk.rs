//! The cost of a frame of 500 KB to the Python package, beside a bare stream of grpcio: `scripts/sdk-python bench`, as rows.

use std::{fs, process::Command};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target};

use crate::{Plan, node::program};

/// Most processor time of the package, as a multiple of the bare stream's.
const RATIO_MAX: f64 = 1.2;

/// Processor time of a frame, and frames per second.
///
/// # Errors
/// There is no Python with the package's needs here, or the bench in Python fails.
pub fn sdk(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("making a folder")?;
    let json = folder.path().join("runs.json");
    let (frames, rounds) = if plan.quick { (60, 2) } else { (150, 5) };
    report.configuration(
        "sdk",
        format!("{frames} frames in each of {rounds} turns, 30 a second, 500 KB"),
    );
    let mut command = Command::new(plan.root.join("scripts/sdk-python"));
    command.args(["bench", "--frames", &frames.to_string(), "--rounds", &rounds.to_string()]);
    command.arg("--json").arg(&json).env("TIDEGATE_PROGRAM", program()?);
    let output = command.output().context("running scripts/sdk-python")?;
    // It ends with 1 where the ratio is short, which the row below says as well.
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        json.is_file(),
        "scripts/sdk-python bench ended with {}: {}",
        output.status,
        said.trim()
    );
    let found: serde_json::Value = serde_json::from_slice(&fs::read(&json)?)?;
    let of = |way: &str, key: &str| -> anyhow::Result<Vec<f64>> {
        let runs = found["runs"][way].as_array().with_context(|| format!("no runs of {way}"))?;
        let values: Vec<f64> = runs.iter().filter_map(|run| run[key].as_f64()).collect();
        ensure!(!values.is_empty(), "no {key} of {way}");
        Ok(values)
    };
    for (name, way, bare, target) in [
        ("blocking", "sdk", "bare", Target::RatioAtMost(RATIO_MAX)),
        ("asyncio", "aio-sdk", "aio-bare", Target::Shown),
    ] {
        report.figure(
            Figure::new(format!("sdk, {name}, processor time of a frame of 500 KB"), "us")
                .ours(of(way, "cpu_us")?)
                .peer(of(bare, "cpu_us")?)
                .peer_name("bare grpcio")
                .target(target),
        );
        report.figure(
            Figure::new(format!("sdk, {name}, frames per second"), "1/s")
                .ours(of(way, "fps")?)
                .peer(of(bare, "fps")?)
                .peer_name("bare grpcio"),
        );
    }
    Ok(())
}

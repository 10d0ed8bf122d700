//! `cargo xtask dist`: the program as it is handed out, and whether it is small enough.
//!
//! ```text
//!  cargo build --profile dist ─▶ target/dist/tidegate ─▶ its size, at most BYTES_MAX
//! ```

use std::{
    path::PathBuf,
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::cargo::cargo;

/// Largest program, with every feature that is on by default.
const BYTES_MAX: u64 = 30_000_000;

/// A line of cargo's report of a build, as far as it names programs.
#[derive(Debug, Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
}

/// Builds it; `arguments` go to `cargo build` (`--no-default-features`, for example).
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let mut build = cargo();
    build.args(["build", "--profile", "dist", "--package", "tidegate", "--bin", "tidegate"]);
    build.args(["--message-format", "json-render-diagnostics"]).args(arguments);
    let output = build.stderr(Stdio::inherit()).output().context("starting cargo")?;
    ensure!(output.status.success(), "the build failed");
    let report = String::from_utf8(output.stdout).context("reading the report of the build")?;
    let program = program(&report).context("the build made no program")?;
    let bytes = program.metadata().with_context(|| format!("{}", program.display()))?.len();
    println!("{}", program.display());
    Ok(crate::verdict("dist", &format!("{bytes} bytes"), &violations(bytes)))
}

/// The last program that a build made.
fn program(report: &str) -> Option<PathBuf> {
    let artifacts = report.lines().filter_map(|line| serde_json::from_str(line).ok());
    artifacts.filter_map(|Artifact { executable }| executable).next_back()
}

fn violations(bytes: u64) -> Vec<String> {
    let violation = format!(
        "the program has {bytes} bytes, and {BYTES_MAX} are allowed: look for what grew with `nm --size-sort`, or raise BYTES_MAX in \
         xtask/src/dist.rs and say why"
    );
    if bytes > BYTES_MAX { vec![violation] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_build_is_found_and_measured() {
        let report = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
             {\"reason\":\"compiler-artifact\",\"executable\":\"/t/dist/tidegate\"}\n\
             {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(program(report), Some(PathBuf::from("/t/dist/tidegate")));
        assert_eq!(program("{\"reason\":\"build-finished\",\"success\":true}\n"), None);
        assert!(violations(BYTES_MAX).is_empty());
        assert!(violations(BYTES_MAX + 1)[0].contains("30000001 bytes"));
    }
}

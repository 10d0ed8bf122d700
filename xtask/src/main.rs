//! Tasks on the sources, run as `cargo xtask TASK`; `make` calls them.
//!
//! Always true: a task exits 0 only if all it looked at is in order, and each violation is named with its file and the way out.

mod cargo;
mod dist;
mod house;
mod layers;
mod licences;
mod lines;
mod metadata;
mod modules;
mod test;
mod test_code;
mod words;
mod writers;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask TASK

  test [ARGUMENTS]   every test of the workspace, of the workers and of the SDK; ARGUMENTS go to `cargo test`
  dist [ARGUMENTS]   the program as it is handed out, and its size; ARGUMENTS go to `cargo build`
  check              layers, licences, house, words and tests
  layers             which crate and which module may use which, that cores read no clock, and how large a crate may be
  licences           licences, sources and banned crates of all dependencies, by deny.toml
  house              no machine's own paths in tracked files; shell and Python scripts parse
  words              comments, messages and documents: no sentence begins with what, who or nobody in the place of its subject
  tests              where tests live, and that none sleeps until something has probably happened
  sizes              tracked source files over 700 lines
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    let outcome = match task.as_str() {
        "test" => test::run(&arguments.collect::<Vec<_>>()),
        "dist" => dist::run(&arguments.collect::<Vec<_>>()),
        "check" => check(),
        "layers" => layers::run(),
        "licences" => licences::run(),
        "house" => house::run(),
        "words" => words::run(),
        "tests" => test_code::run(),
        "sizes" => house::sizes(),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("xtask: no task named {task:?}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask {task}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// All checks, each of which shows what it finds before the next begins.
fn check() -> anyhow::Result<ExitCode> {
    let outcomes =
        [layers::run()?, licences::run()?, house::run()?, words::run()?, test_code::run()?];
    let is_well = outcomes.iter().all(|outcome| *outcome == ExitCode::SUCCESS);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what is wrong, or the one line that says all is well.
fn verdict(task: &str, well: &str, violations: &[String]) -> ExitCode {
    if violations.is_empty() {
        println!("{task}: {well}");
        return ExitCode::SUCCESS;
    }
    for violation in violations {
        eprintln!("{task}: {violation}");
    }
    eprintln!("{task}: {} violations", violations.len());
    ExitCode::FAILURE
}

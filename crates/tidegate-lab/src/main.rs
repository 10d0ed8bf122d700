//! The `tidegate-lab` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_lab::cli::main()
}

//! The `tidegate` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TIDEGATE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,tidegate=info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    tidegate::cli::main()
}

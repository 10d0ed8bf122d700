//! Parts that the commands of every program of ours share: how they begin, run under signals, print, and end.

use std::{
    error::Error,
    future::Future,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use clap::ValueEnum;
use tidegate_api::{ApiError, exit_status};
use tidegate_config::problems::Problems;
use tidegate_message::Code;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

pub use crate::stop::INTERRUPTED;
use crate::{arguments, logging, stop};

/// Blocking threads are waited for so long, once all is done.
const BLOCKED_MAX: Duration = Duration::from_secs(1);

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// First step of a program: the log begins, and secrets among the arguments are written over.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] for a filter of the log that is wrong.
pub fn begin() -> Result<(), ApiError> {
    logging::begin().map_err(|error| {
        ApiError::new(Code::CONFIG_INVALID, "nothing is begun with a wrong filter").caused_by(error)
    })?;
    match arguments::hide_secrets() {
        Ok(true) => tracing::warn!(
            "an argument held a password or the like; others could see it as the program started: use --password-file"
        ),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(%error, "an argument that is secret cannot be hidden from other users");
        }
    }
    Ok(())
}

/// Runs a command to its end, and says how the program ends. The command is told to stop on the first interrupt or termination.
pub fn run<F: Future<Output = Result<(), ApiError>>>(
    runtime: io::Result<Runtime>,
    command: impl FnOnce(CancellationToken) -> F,
) -> ExitCode {
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = ApiError::new(Code::INTERNAL, "the runtime cannot be started");
            return finish(Err(failure.caused_by(error)));
        }
    };
    let stop = CancellationToken::new();
    // Signals first: they are waited for before the command says that it is ready.
    let result = stop::on_signals(stop.clone()).and_then(|()| runtime.block_on(command(stop)));
    // A thread that still reads what never answers is not waited for.
    runtime.shutdown_timeout(BLOCKED_MAX);
    finish(result)
}

/// A command that leaves nothing behind: the first interrupt ends it as the shell expects.
///
/// # Errors
/// Those of the command.
pub async fn until(
    stop: CancellationToken,
    command: impl Future<Output = Result<(), ApiError>>,
) -> Result<(), ApiError> {
    tokio::select! {
        result = command => result,
        () = stop.cancelled() => std::process::exit(INTERRUPTED),
    }
}

/// Runs what blocks on a thread of its own; it looks at its argument, which is set when the program is to stop.
///
/// # Errors
/// Those of the work; [`Code::INTERNAL`] if it panicked.
pub async fn aside(
    stop: CancellationToken,
    work: impl FnOnce(&AtomicBool) -> Result<(), ApiError> + Send + 'static,
) -> Result<(), ApiError> {
    let stops = Arc::new(AtomicBool::new(false));
    let seen = stops.clone();
    let watch = tokio::spawn(async move {
        stop.cancelled().await;
        stops.store(true, Ordering::Relaxed);
    });
    let result = tokio::task::spawn_blocking(move || work(&seen)).await;
    watch.abort();
    result.map_err(|error| {
        ApiError::new(Code::INTERNAL, "the command ended by a fault of the program")
            .caused_by(error)
    })?
}

/// Runs a load that shows its progress in one line, if the output is a terminal.
pub fn shown<R>(run: impl FnOnce(&mut dyn FnMut(&str)) -> R) -> R {
    let shows = io::stderr().is_terminal();
    let result = run(&mut |line| {
        if shows {
            // A line that cannot be shown is no reason to stop.
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
    });
    if shows {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    result
}

/// Writes to the standard output, all or nothing.
///
/// # Errors
/// [`Code::STORAGE_FAILED`] if it cannot be written.
pub fn print(text: &str) -> Result<(), ApiError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unprinted)
}

/// The failure of a write to the standard output.
pub fn unprinted(error: io::Error) -> ApiError {
    ApiError::new(Code::STORAGE_FAILED, "the standard output cannot be written").caused_by(error)
}

/// A table for people: each column as wide as its widest cell.
pub fn aligned<const COLUMNS: usize>(
    head: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> String {
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Text from elsewhere without what would steer a terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Prints a failure once, and returns the exit status. A closed pipe on the standard output is no failure.
pub fn finish(result: Result<(), ApiError>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    if cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    // If the standard error is closed as well, the exit status still tells.
    let _ = io::stderr().lock().write_all(report(&error).as_bytes());
    ExitCode::from(exit_status(error.code()))
}

/// A failure and its causes, one a line, then its code.
fn report(error: &ApiError) -> String {
    let mut text = format!("error: {}\n", plain(&error.to_string()));
    let mut next = error.source();
    while let Some(cause) = next {
        match cause.downcast_ref::<Problems>() {
            Some(problems) => {
                for problem in problems.iter() {
                    let problem = plain(&problem.to_string());
                    text.push_str(&format!("  because: {problem}\n"));
                }
            }
            None => text.push_str(&format!("  because: {}\n", plain(&cause.to_string()))),
        }
        next = cause.source();
    }
    text.push_str(&format!("  code: {}\n", error.code()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_printed_once_with_its_causes_and_code() {
        let cause = io::Error::other("no\x1bspace");
        let error = ApiError::new(Code::STORAGE_FAILED, "x.jpg cannot be written").caused_by(cause);
        assert_eq!(
            report(&error),
            "error: x.jpg cannot be written\n  because: no\u{fffd}space\n  code: storage.failed\n"
        );
    }
}

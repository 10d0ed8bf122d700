//! `tidegate pub` and `tidegate sub`.

use std::io;

use async_recursion::async_recursion as boxed;
use tidegate_api::ApiError;
use tidegate_cli::program::{aside, unprinted};
use tidegate_load::command::{CommandError, PubArgs, SubArgs};
use tidegate_message::Code;
use tokio_util::sync::CancellationToken;

/// Publishes, until all is acknowledged.
///
/// # Errors
/// Why not all was published.
#[boxed(?Send)]
pub async fn publish(args: PubArgs, stop: CancellationToken) -> Result<(), ApiError> {
    aside(stop, move |_| args.run(io::stdin().lock()).map(drop).map_err(command_error)).await
}

/// Prints what comes, until `stop` or as many messages as asked for.
///
/// # Errors
/// Why it ended before.
#[boxed(?Send)]
pub async fn subscribe(args: SubArgs, stop: CancellationToken) -> Result<(), ApiError> {
    aside(stop, move |stop| args.run(io::stdout().lock(), stop).map(drop).map_err(command_error))
        .await
}

fn command_error(error: CommandError) -> ApiError {
    let code = match error {
        // A closed pipe, as behind `tidegate sub | head`, has to be seen as one at the end of the program.
        CommandError::Output { source } => return unprinted(source),
        CommandError::Client(ref client) => client.code(),
        CommandError::NoMessage | CommandError::Connect(_) => Code::CONFIG_INVALID,
        CommandError::File { .. } | CommandError::Input { .. } => Code::STORAGE_FAILED,
    };
    failure(code, &error)
}

/// An error and what caused it, with its code.
pub(crate) fn failure(code: Code, error: &dyn std::error::Error) -> ApiError {
    let failure = ApiError::new(code, error.to_string());
    match error.source() {
        Some(cause) => failure.caused_by(tidegate_message::error_chain(cause)),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use std::{error::Error, process::ExitCode};

    use tidegate_cli::program::finish;

    use super::*;

    #[test]
    fn a_reader_that_has_enough_is_no_failure() {
        for (kind, expected) in [
            (io::ErrorKind::BrokenPipe, ExitCode::SUCCESS),
            (io::ErrorKind::StorageFull, ExitCode::from(7)),
        ] {
            let error = command_error(CommandError::Output { source: kind.into() });
            assert!(error.source().is_some_and(<dyn Error>::is::<io::Error>), "{error:?}");
            assert_eq!(format!("{:?}", finish(Err(error))), format!("{expected:?}"), "{kind}");
        }
    }
}

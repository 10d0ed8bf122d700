//! The end of a command, whatever hangs.
//!
//! Signals are waited for on a thread of their own: a step that blocks the thread which runs the command, such as a read from a server
//! of files that is gone, does not keep it from being ended. The first interrupt or termination asks the command to stop. If it has not
//! within [`STOPS_WITHIN`], the process ends all the same, and says at which step it hung. It leaves the same state as a process that
//! is killed: acknowledged messages are in the journals. The second signal ends the process at once.

use std::{
    io::{self, Write as _},
    process, thread,
    time::Duration,
};

use tidegate_api::{ApiError, exit_status};
use tidegate_message::Code;
use tidegate_process::step;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};
use tokio_util::sync::CancellationToken;

/// The exit status that shells report for a program that an interrupt ended.
pub const INTERRUPTED: i32 = 130;

/// From the first signal to the end of the process at most. Those who stop in order take less, 5 s of it for clients that hold on.
const STOPS_WITHIN: Duration = Duration::from_millis(9_500);

/// Cancels the token on the first interrupt or termination, from now on.
///
/// # Errors
/// Signals cannot be received.
pub(crate) fn on_signals(stop: CancellationToken) -> Result<(), ApiError> {
    let failed =
        |error| ApiError::new(Code::INTERNAL, "signals cannot be received").caused_by(error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let (ready, is_ready) = oneshot::channel();
    let waits = move || {
        runtime.block_on(async {
            let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
            let signals = kinds.map(signal);
            let [interrupt, terminate] = match signals {
                [Ok(interrupt), Ok(terminate)] => {
                    // The command continues only once they are.
                    let _ = ready.send(Ok(()));
                    [interrupt, terminate]
                }
                [Err(error), _] | [_, Err(error)] => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            ends(stop, interrupt, terminate).await;
        });
    };
    thread::Builder::new().name("signals".to_owned()).spawn(waits).map_err(failed)?;
    match is_ready.blocking_recv() {
        Ok(ready) => ready.map_err(failed),
        Err(_) => Err(failed(io::Error::other("the thread that waits for them has ended"))),
    }
}

async fn ends(stop: CancellationToken, mut interrupt: Signal, mut terminate: Signal) {
    let mut next = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    next().await;
    stop.cancel();
    tokio::select! {
        () = next() => process::exit(INTERRUPTED),
        () = tokio::time::sleep(STOPS_WITHIN) => {}
    }
    let text = format!(
        "error: stopping took longer than {} s and was given up; it hung at this step: {}\n  code: {}\n",
        STOPS_WITHIN.as_secs_f64(),
        step::current(),
        Code::INTERNAL,
    );
    // If the standard error is closed as well, the exit status still tells.
    let _ = io::stderr().lock().write_all(text.as_bytes());
    process::exit(i32::from(exit_status(Code::INTERNAL)));
}

//! `tidegate worker`: a program of the pool, which looks at images by the user's ONNX models.

use std::{env, os::unix::net::UnixStream, path::PathBuf, sync::Arc};

use clap::Args;
use tidegate_api::ApiError;
use tidegate_message::Code;
use tidegate_onnx::{Runtime, SOCKET_VARIABLE};

/// Arguments of `worker`.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// ONNX Runtime's library [default: $ORT_DYLIB_PATH, then the system's, then that of an onnxruntime package of Python]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
}

/// Serves until the other side closes the socket that the environment names.
pub(super) fn run(args: &WorkerArgs) -> Result<(), ApiError> {
    let socket = env::var_os(SOCKET_VARIABLE).ok_or_else(|| {
        let text = format!(
            "{SOCKET_VARIABLE} names no socket: a node starts this program itself where workers.runtime is native"
        );
        ApiError::new(Code::REQUEST_INVALID, text)
    })?;
    // Ctrl-C reaches every process of the terminal; this one ends when the socket closes, after its last answer.
    let interrupted = Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted).map_err(|error| {
        ApiError::new(Code::INTERNAL, "interrupts cannot be ignored").caused_by(error)
    })?;
    let environments = tidegate_workers::locate::environments();
    let runtime = Runtime::load(args.library.as_deref(), &environments).map_err(|error| {
        let text = "the worker has no ONNX Runtime";
        ApiError::new(Code::DETECTOR_UNAVAILABLE, text).caused_by(error)
    })?;
    let failed = |text: &str| ApiError::new(Code::DETECTOR_FAILED, text);
    let stream = UnixStream::connect(&socket).map_err(|error| {
        failed(&format!("the socket {} cannot be reached", socket.display())).caused_by(error)
    })?;
    tidegate_onnx::serve(stream, &runtime)
        .map_err(|error| failed("the node cannot be served").caused_by(error))
}

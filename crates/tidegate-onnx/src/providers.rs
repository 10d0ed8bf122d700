//! Execution providers of ONNX Runtime, by the names that they have there.

use ort::{
    ep::{self, ExecutionProvider, ExecutionProviderDispatch},
    session::builder::SessionBuilder,
};

struct Known {
    name: &'static str,
    is_available: fn() -> ort::Result<bool>,
    build: fn() -> ExecutionProviderDispatch,
}

macro_rules! known {
    ($($provider:ident),+ $(,)?) => {
        &[$(Known {
            name: <ep::$provider as ExecutionProvider>::NAME,
            is_available: <ep::$provider as ExecutionProvider>::is_available,
            build: || ep::$provider::default().build(),
        }),+]
    };
}

/// Those of Linux. The last is always used where the others cannot compute something.
const KNOWN: &[Known] =
    known!(TensorRT, CUDA, MIGraphX, ROCm, OpenVINO, OneDNN, QNN, CANN, XNNPACK, Azure, CPU);

/// The providers of these names.
///
/// # Errors
/// The first that the library does not have.
pub(crate) fn of_names(names: &[String]) -> Result<Vec<ExecutionProviderDispatch>, NoProvider> {
    // One that cannot be asked about is not available.
    let available = |known: &&Known| (known.is_available)().unwrap_or(false);
    let find = |name: &String| {
        let known = KNOWN.iter().find(|known| known.name == *name).filter(available);
        known.map(|known| (known.build)()).ok_or_else(|| NoProvider {
            wanted: name.clone(),
            there: KNOWN.iter().filter(available).map(|known| known.name).collect(),
        })
    };
    names.iter().map(find).collect()
}

/// Adds them to a session that is to be. One that does not start, such as that of a GPU that is not there, is left out with a line at standard
/// error, and the next ones compute in its place.
pub(crate) fn register(providers: &[ExecutionProviderDispatch], builder: &mut SessionBuilder) {
    for provider in providers {
        if let Err(error) = provider.register(builder) {
            eprintln!("{} does not start and is left out: {error}", provider.name());
        }
    }
}

/// The library has no such provider.
#[derive(Debug, thiserror::Error)]
#[error("this onnxruntime has no {wanted}; it has: {}", .there.join(" "))]
pub(crate) struct NoProvider {
    wanted: String,
    there: Vec<&'static str>,
}

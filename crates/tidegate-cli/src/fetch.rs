//! `tidegate fetch`: an untouched frame.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use async_recursion::async_recursion as boxed;
use clap::Args;
use tidegate_api::ApiError;
use tidegate_config::Config;
use tidegate_message::{CameraName, Code};
use tidegate_process::clock;

use crate::{
    program::{print, unprinted},
    remote::RemoteArgs,
    time::{self, TimePoint},
};

/// Arguments of `tidegate fetch`.
#[derive(Args, Debug)]
pub struct FetchArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// The camera
    camera: CameraName,
    /// Capture time of the frame, as `subscribe` saves and prints it
    #[arg(value_name = "TIMESTAMP", allow_hyphen_values = true, value_parser = time::parse)]
    captured_at: TimePoint,
    /// Where to write the JPEG; `-` is the standard output [default: CAMERA-TIMESTAMP.jpg]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Fetches an untouched frame into a file, or to the standard output.
///
/// # Errors
/// Those of the call, and of the file.
#[boxed(?Send)]
pub async fn run(config: &Config, args: &FetchArgs) -> Result<(), ApiError> {
    let client = args.remote.connect(config).await?;
    let captured_at = args.captured_at.resolve(clock::now());
    let original = client.fetch_original(&args.camera, captured_at).await?;
    let usual = || format!("{}-{}.jpg", args.camera, original.captured_at.as_nanos()).into();
    let path = args.output.clone().unwrap_or_else(usual);
    if path == Path::new("-") {
        let mut out = io::stdout().lock();
        return out.write_all(&original.jpeg).and_then(|()| out.flush()).map_err(unprinted);
    }
    write_whole(&path, &original.jpeg)?;
    print(&format!("{} ({} bytes)\n", path.display(), original.jpeg.len()))
}

/// Writes a file that is either whole or not there.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ApiError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let write = || -> io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(".tidegate-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(bytes)?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|error| {
        let message = format!("{} cannot be written", path.display());
        ApiError::new(Code::STORAGE_FAILED, message).caused_by(error)
    })
}

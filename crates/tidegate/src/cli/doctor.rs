//! `tidegate doctor` and `tidegate key`: the files of a node, and the keys that seal them.

use std::path::PathBuf;

use clap::Args;
use tidegate_api::ApiError;
use tidegate_camera::frame_log;
use tidegate_cli::program::{Output, print};
use tidegate_config::{Config, ConfigError};
use tidegate_doctor::examine;
use tidegate_log::{KeyError, KeyFile, NodeKey, PassphraseCost};
use tidegate_message::Code;

/// Arguments of `tidegate doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// How to print what is found
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
    /// As --output json
    #[arg(long, hide = true)]
    pub json: bool,
}

/// Arguments of `tidegate key`.
#[derive(Args, Clone, Debug)]
pub struct KeyArgs {
    /// Where to write the key; a file that is there is not replaced
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Make the key from the passphrase in this file, instead of random numbers: FILE is then of no use without it
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

/// The exit status that shells take for a failed test.
const PROBLEMS: i32 = 1;

/// Looks and tells; ends the program with status 1 if there are problems.
pub(super) fn run(config: Result<Config, ConfigError>, args: &DoctorArgs) -> Result<(), ApiError> {
    let found = examine(config.map_err(ApiError::from));
    let text = if args.json || args.output == Output::Json {
        let json = serde_json::to_string_pretty(&found);
        json.map_err(|error| ApiError::new(Code::INTERNAL, "no JSON").caused_by(error))? + "\n"
    } else {
        found.to_string()
    };
    print(&text)?;
    if found.has_problems() {
        std::process::exit(PROBLEMS);
    }
    Ok(())
}

/// Makes a key file.
pub(super) fn key(args: &KeyArgs) -> Result<(), ApiError> {
    let made: Result<NodeKey, KeyError> = match &args.passphrase_file {
        None => KeyFile::create(&args.file),
        Some(path) => {
            let passphrase = frame_log::passphrase_in(path).map_err(|error| {
                let text = format!("{} gives no passphrase", path.display());
                ApiError::new(Code::CONFIG_INVALID, text)
                    .caused_by(tidegate_message::error_chain(&error))
            })?;
            if passphrase.is_empty() {
                let text = format!("{} is empty; write the passphrase into it", path.display());
                return Err(ApiError::new(Code::CONFIG_INVALID, text));
            }
            KeyFile::create_for_passphrase(&args.file, &passphrase, PassphraseCost::default())
        }
    };
    let key = made.map_err(|error| {
        let text = format!("no key was written to {}", args.file.display());
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(tidegate_message::error_chain(&error))
    })?;
    print(&format!("key {} in {}\n", key.id(), args.file.display()))
}

//! `tidegate config`: print it, check it, have a node read it again, translate Mosquitto's.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use tidegate_api::ApiError;
use tidegate_cli::program::{Output, print};
use tidegate_import::import_file;
use tidegate_message::Code;
use tidegate_sys::{files, regular};

use super::check::{CheckArgs, ReloadArgs};

/// Arguments of `tidegate config`.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// Something else than to print the configuration.
    #[command(subcommand)]
    pub what: Option<ConfigCommand>,
    /// How to print it: as TOML with the place of each setting, or as JSON
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// Other subcommands on configurations.
#[derive(Subcommand, Clone, Debug)]
pub enum ConfigCommand {
    /// List every mistake in the configuration and the files that it names, as a start would; writes nothing
    ///
    /// Each mistake is a line that begins with its file and line. Exit status 0 if a start takes it, 2 if not, 4 if only a server
    /// was not reached.
    Check(CheckArgs),
    /// Have a node read its configuration again: it accepts all of it, or nothing and lists every mistake
    ///
    /// Needs the right `admin` on the node.
    Reload(ReloadArgs),
    /// Translate a mosquitto.conf; lines that are not translated are named on the standard error
    ///
    /// Exit status 3 if anything was lost: a line without a counterpart, or one with which Mosquitto would not start.
    ImportMosquitto {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Folder for the passwords of bridges, a file each that only its owner may read
        #[arg(long, value_name = "DIR", default_value = ".")]
        secrets_dir: PathBuf,
    },
}

/// The exit status of an import that lost part of a configuration.
const IMPORTED_LESS: i32 = 3;

pub(super) fn import(file: &Path, secrets_dir: &Path) -> Result<(), ApiError> {
    let failed = |path: &Path, what: &str, error: io::Error| {
        let text = format!("{} cannot be {what}", path.display());
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
    };
    // The node may run elsewhere.
    let folder =
        std::path::absolute(secrets_dir).map_err(|error| failed(secrets_dir, "found", error))?;
    let imported = import_file(file, &folder).map_err(|error| {
        let text = error.to_string();
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error.source)
    })?;
    for secret in &imported.secrets {
        keep_secret(&secret.path, &secret.text)
            .map_err(|error| failed(&secret.path, "written", error))?;
    }
    let mut report = String::new();
    for line in &imported.untranslated {
        let kind = if line.is_lost { "" } else { "not needed: " };
        let at = format!("{}:{}", line.file.display(), line.line);
        report.push_str(&format!(
            "{at}: {}: {kind}{}\n",
            tidegate_cli::program::plain(&line.text),
            line.why
        ));
    }
    for secret in &imported.secrets {
        report.push_str(&format!("note: a password is in {} now\n", secret.path.display()));
    }
    for warning in &imported.warnings {
        report.push_str(&format!("note: {}\n", tidegate_cli::program::plain(warning)));
    }
    // The report is for people; the translation does not depend on it.
    let _ = io::stderr().lock().write_all(report.as_bytes());
    print(&imported.toml)?;
    if imported.is_less() { std::process::exit(IMPORTED_LESS) } else { Ok(()) }
}

/// Puts a password into a file of its own, which is not to be another's: the same import may be repeated.
fn keep_secret(path: &Path, text: &str) -> io::Result<()> {
    let text = format!("{text}\n");
    match regular::read(path) {
        Ok(there) if there == text.as_bytes() => Ok(()),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is another one already; move it away, or name another folder with --secrets-dir",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            files::create(path, text.as_bytes(), files::PRIVATE)
        }
        Err(error) => Err(error),
    }
}

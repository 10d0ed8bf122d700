//! `tidegate pub`, `sub`, `passwd` and `config import-mosquitto`.

use std::{
    fs,
    io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use tidegate_api::ApiError;
use tidegate_cli::program::{INTERRUPTED, Output, aside, print};
use tidegate_identity::auth::{password, scram::Credentials};
use tidegate_import::import_file;
use tidegate_load::command::{CommandError, PubArgs, SubArgs};
use tidegate_message::Code;
use tidegate_sys::{regular, terminal};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::check::{CheckArgs, ReloadArgs};

/// Arguments of `tidegate passwd`.
#[derive(Args, Clone, Debug)]
pub struct PasswdArgs {
    /// Password file, made if it does not exist
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// User name
    #[arg(value_name = "USER")]
    pub user: String,
    /// Take the user out
    #[arg(long)]
    pub delete: bool,
    /// Keep what SCRAM-SHA-256 needs (MQTT 5's extended authentication); plain passwords work as well
    #[arg(long, conflicts_with = "delete")]
    pub scram: bool,
}

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

pub(super) async fn publish(args: PubArgs, stop: CancellationToken) -> Result<(), ApiError> {
    aside(stop, move |_| args.run(io::stdin().lock()).map(drop).map_err(command_error)).await
}

pub(super) async fn subscribe(args: SubArgs, stop: CancellationToken) -> Result<(), ApiError> {
    aside(stop, move |stop| args.run(io::stdout().lock(), stop).map(drop).map_err(command_error))
        .await
}

fn command_error(error: CommandError) -> ApiError {
    let code = match &error {
        CommandError::Client(client) => client.code(),
        CommandError::NoMessage | CommandError::Connect(_) => Code::CONFIG_INVALID,
        CommandError::File { .. } | CommandError::Input { .. } | CommandError::Output { .. } => {
            Code::STORAGE_FAILED
        }
    };
    failure(code, &error)
}

/// An error and what caused it, with its code.
pub(super) fn failure(code: Code, error: &dyn std::error::Error) -> ApiError {
    let failure = ApiError::new(code, error.to_string());
    match error.source() {
        Some(cause) => failure.caused_by(tidegate_message::error_chain(cause)),
        None => failure,
    }
}

pub(super) async fn passwd(args: &PasswdArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let path = &args.file;
    let text = match regular::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !args.delete => String::new(),
        Err(error) => {
            let text = format!("{} cannot be read", path.display());
            return Err(ApiError::new(Code::STORAGE_FAILED, text).caused_by(error));
        }
    };
    let text = if args.delete {
        password::remove_user(&text, &args.user).ok_or_else(|| {
            let text = format!("{} has no user {:?}", path.display(), args.user);
            ApiError::new(Code::CONFIG_INVALID, text)
        })?
    } else {
        let password = ask(&args.user, stop).await?;
        let failed = |error| {
            ApiError::new(Code::INTERNAL, "the system's random number generator failed")
                .caused_by(error)
        };
        let secret = if args.scram {
            Credentials::new(&password).map_err(failed)?.encode()
        } else {
            password::hash(&password).map_err(failed)?
        };
        password::set_user(&text, &args.user, &secret).map_err(|error| {
            let text = format!("{:?} cannot be a user", args.user);
            ApiError::new(Code::CONFIG_INVALID, text)
                .caused_by(tidegate_message::error_chain(&error))
        })?
    };
    replace(path, &text).map_err(|error| {
        let text = format!("{} cannot be written", path.display());
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
    })
}

/// A password from the standard input: its first line. A person is asked for it twice, and nothing that is typed is shown.
pub(super) async fn ask(
    user: &str,
    stop: CancellationToken,
) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let invalid = |text: &str| Err(ApiError::new(Code::CONFIG_INVALID, text));
    if !io::stdin().is_terminal() {
        let mut bytes = Zeroizing::default();
        io::stdin().lock().take(64 << 10).read_to_end(&mut bytes).map_err(unread)?;
        return match first_line(bytes) {
            password if password.is_empty() => {
                invalid("the password is empty; give one on the standard input")
            }
            password => Ok(password),
        };
    }
    let password = typed(&format!("Password for {user}: "), &stop).await?;
    if password.is_empty() {
        return invalid("the password is empty; nothing was changed");
    }
    if typed("Once more: ", &stop).await? != password {
        return invalid("the two passwords differ; nothing was changed");
    }
    Ok(password)
}

/// A line that a person types unseen. An interrupt ends the program, with the terminal as it was.
async fn typed(prompt: &str, stop: &CancellationToken) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let silenced = terminal::silence(io::stdin()).map_err(unread)?;
    // The prompt is a courtesy.
    let _ = write!(io::stderr(), "{prompt}");
    let line = tokio::task::spawn_blocking(|| {
        let mut line = Zeroizing::default();
        io::stdin().lock().read_until(b'\n', &mut line).map(|_| line)
    });
    tokio::select! {
        line = line => {
            let line = line.map_err(|error| {
                ApiError::new(Code::INTERNAL, "the standard input was not read").caused_by(error)
            })?;
            Ok(first_line(line.map_err(unread)?))
        }
        () = stop.cancelled() => {
            drop(silenced);
            std::process::exit(INTERRUPTED);
        }
    }
}

fn unread(error: io::Error) -> ApiError {
    ApiError::new(Code::STORAGE_FAILED, "the standard input cannot be read").caused_by(error)
}

/// The text before the first end of a line.
fn first_line(mut bytes: Zeroizing<Vec<u8>>) -> Zeroizing<Vec<u8>> {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    bytes.truncate(end);
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    bytes
}

/// Replaces a file whole, readable by its owner alone.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
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
    let imported =
        import_file(file, &folder).map_err(|error| failed(&error.path, "read", error.source))?;
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(path, &text),
        Err(error) => Err(error),
    }
}

//! `tidegate passwd`, and passwords that a person types.

use std::{
    io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _},
    path::PathBuf,
};

use async_recursion::async_recursion as boxed;
use clap::Args;
use tidegate_api::ApiError;
use tidegate_cli::program::{INTERRUPTED, print};
use tidegate_identity::auth::{password, scram::Credentials};
use tidegate_message::Code;
use tidegate_sys::{files, regular, terminal};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

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

/// Sets a password in a file, or takes a user out of it.
///
/// # Errors
/// Why the file stays as it was.
#[boxed(?Send)]
pub async fn passwd(args: &PasswdArgs, stop: CancellationToken) -> Result<(), ApiError> {
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
        let rest = password::remove_user(&text, &args.user).ok_or_else(|| {
            let text = format!("{} has no user {:?}", path.display(), args.user);
            ApiError::new(Code::CONFIG_INVALID, text)
        })?;
        if !password::has_user(&rest) {
            let text = format!(
                "{:?} is the last user of {}, and a node refuses a file without users; set another user before, or take the file away and out of the configuration",
                args.user,
                path.display()
            );
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        rest
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
    files::put(path, text.as_bytes(), files::PRIVATE).map_err(|error| {
        let text = format!("{} cannot be written", path.display());
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
    })?;
    print(&format!(
        "{} is written; a running node reads it by `tidegate config reload` or SIGHUP, and says whether it takes it\n",
        path.display()
    ))
}

/// A password from the standard input: its first line. A person is asked for it twice, and nothing that is typed is shown.
///
/// # Errors
/// Why there is none.
pub async fn ask(user: &str, stop: CancellationToken) -> Result<Zeroizing<Vec<u8>>, ApiError> {
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

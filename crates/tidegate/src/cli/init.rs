//! `tidegate init`: certificates, a configuration and a user to begin with.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use tidegate_api::ApiError;
use tidegate_cli::program::print;
use tidegate_config::{Config, write::with_setting};
use tidegate_identity::{
    auth::password,
    pki::{self, InitRequest, Kind, PkiError},
};
use tidegate_message::Code;
use tidegate_sys::{files, regular};
use zeroize::Zeroizing;

use crate::run::users::{ADMINISTRATOR, users_file};

/// Arguments of `tidegate init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Name of a node; may be repeated [default: node.name of the configuration]
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    /// Name of a camera; may be repeated [default: cam1]
    #[arg(long = "camera", value_name = "NAME")]
    cameras: Vec<String>,
    /// Name of an application; may be repeated [default: application]
    #[arg(long = "application", value_name = "NAME")]
    applications: Vec<String>,
    /// Host name or address under which nodes are reached, in addition to this machine's own names; may be repeated
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// How many days the certificates last
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    days: u32,
    /// Make these certificates alone, with the authority that is there, and fail if one of them is there already
    #[arg(long)]
    add: bool,
}

/// Makes missing files; existing ones stay as they are. `file` is the configuration's, with what `set` says if there is none yet.
pub(super) fn run(
    config: &Config,
    file: &Path,
    set: &[String],
    args: &InitArgs,
) -> Result<(), ApiError> {
    if args.add {
        let made = wanted(args).into_iter().map(|(kind, name)| add(config, args, kind, name));
        return print(&made.collect::<Result<String, _>>()?);
    }
    let text = template(file, set)?;
    let administrator = Administrator::of(config)?;
    print(&certificates(config, args)?)?;
    print(&match write_new(file, &text)? {
        true => format!("configuration in {}\n", file.display()),
        false => {
            let unwritten = match set {
                [] => String::new(),
                set => format!("; {} was not written into it", set.join(", ")),
            };
            format!("configuration in {}, as it was{unwritten}\n", file.display())
        }
    })?;
    print(&administrator.make()?)
}

/// The certificates that are requested by name.
fn wanted(args: &InitArgs) -> Vec<(Kind, &str)> {
    let kinds = [
        (Kind::Node, &args.nodes),
        (Kind::Camera, &args.cameras),
        (Kind::Application, &args.applications),
    ];
    kinds
        .into_iter()
        .flat_map(|(kind, names)| names.iter().map(move |name| (kind, name.as_str())))
        .collect()
}

/// Makes one more certificate, and says where.
fn add(config: &Config, args: &InitArgs, kind: Kind, name: &str) -> Result<String, ApiError> {
    let folder = config.pki_dir();
    pki::add(&folder, kind, name, &args.hosts, valid_for(args)).map_err(failed)?;
    Ok(format!("{}\n", folder.join(format!("{name}.pem")).display()))
}

fn valid_for(args: &InitArgs) -> Duration {
    Duration::from_secs(u64::from(args.days) * 86_400)
}

/// Makes the authority and the first certificates; where there is an authority, those that are asked for and missing.
fn certificates(config: &Config, args: &InitArgs) -> Result<String, ApiError> {
    let folder = config.pki_dir();
    let is_there = |file: &str| fs::symlink_metadata(folder.join(file)).is_ok();
    let or = |given: &[String], usual: &str| match given {
        [] => vec![usual.to_owned()],
        given => given.to_vec(),
    };
    if !is_there("ca.pem") {
        let request = InitRequest {
            nodes: or(&args.nodes, config.node.name.as_str()),
            cameras: or(&args.cameras, "cam1"),
            applications: or(&args.applications, "application"),
            hosts: args.hosts.clone(),
            valid_for: valid_for(args),
        };
        pki::init(&folder, &request).map_err(failed)?;
        return Ok(format!("certificates in {}\n", folder.display()));
    }
    // A node cannot start without its own, which may have another name than at first.
    let mut wanted = wanted(args);
    if args.nodes.is_empty() {
        wanted.insert(0, (Kind::Node, config.node.name.as_str()));
    }
    let mut text = String::new();
    for (kind, name) in wanted {
        if is_there(&format!("{name}.pem")) {
            let there = folder.join(format!("{name}.pem"));
            text.push_str(&format!("certificate of {name} in {}, as it was\n", there.display()));
        } else {
            text.push_str(&format!("certificate of {name} in {}", add(config, args, kind, name)?));
        }
    }
    Ok(text)
}

/// The commented defaults, with what flags say in their places. It is read once, so that nothing is written that no start takes.
fn template(file: &Path, set: &[String]) -> Result<String, ApiError> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut text = Config::template();
    for flag in set {
        text = with_setting(&text, flag, folder)?;
    }
    Config::parse(file, &text)?;
    Ok(text)
}

/// The message for a site whose users are kept elsewhere.
fn no_administrator(path: &Path) -> String {
    let path = path.display();
    format!(
        "no user {ADMINISTRATOR} was made: users are kept in {path}, as `mqtt.password_file` says; \
         `tidegate passwd {path} {ADMINISTRATOR}` makes one\n"
    )
}

/// The user that a site begins with.
enum Administrator {
    /// There is none yet.
    Missing {
        path: PathBuf,
        /// The file of users as it is.
        users: Zeroizing<String>,
    },
    /// The user is in this file already.
    There(PathBuf),
    /// The configuration names a password file, which the operator owns.
    Elsewhere(PathBuf),
}

impl Administrator {
    /// The administrator to make, if any.
    ///
    /// # Errors
    /// [`Code::STORAGE_FAILED`].
    fn of(config: &Config) -> Result<Self, ApiError> {
        if let Some(path) = &config.mqtt.password_file {
            return Ok(Self::Elsewhere(path.clone()));
        }
        let path = users_file(config);
        let users = match regular::read_to_string(&path) {
            Ok(users) => Zeroizing::new(users),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Zeroizing::default(),
            Err(error) => {
                let text = format!("{} cannot be read", path.display());
                return Err(ApiError::new(Code::STORAGE_FAILED, text).caused_by(error));
            }
        };
        Ok(match password::remove_user(&users, ADMINISTRATOR) {
            Some(_) => Self::There(path),
            None => Self::Missing { path, users },
        })
    }

    /// Makes the user if there is none, and says the password, of which only a hash is kept.
    fn make(self) -> Result<Zeroizing<String>, ApiError> {
        let (path, users) = match self {
            Self::Missing { path, users } => (path, users),
            Self::There(path) => {
                let path = path.display();
                return Ok(Zeroizing::new(format!(
                    "user {ADMINISTRATOR} in {path}, as it was; `tidegate passwd {path} {ADMINISTRATOR}` sets another password\n"
                )));
            }
            Self::Elsewhere(path) => return Ok(Zeroizing::new(no_administrator(&path))),
        };
        let failed = |error| {
            ApiError::new(Code::INTERNAL, "the system's random number generator failed")
                .caused_by(error)
        };
        let secret = new_password().map_err(failed)?;
        let hash = password::hash(secret.as_bytes()).map_err(failed)?;
        let users = password::set_user(&users, ADMINISTRATOR, &hash);
        let users = users.expect("the name and the hash are ours");
        let path_text = path.display();
        files::put(&path, users.as_bytes(), files::PRIVATE).map_err(|error| {
            let text = format!(
                "there is no user {ADMINISTRATOR}: {path_text} cannot be written; \
                 `tidegate passwd {path_text} {ADMINISTRATOR}` makes one"
            );
            ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
        })?;
        Ok(Zeroizing::new(format!(
            "user {ADMINISTRATOR} in {path_text}, with this password, which is not shown again:\n  {}\n\
             `tidegate passwd {path_text} {ADMINISTRATOR}` sets another\n",
            *secret
        )))
    }
}

/// Letters and digits that are not taken for each other.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// A hundred random bits, in four groups that can be typed.
fn new_password() -> Result<Zeroizing<String>, password::RandomError> {
    let random = Zeroizing::new(password::random::<20>()?);
    let mut password = Zeroizing::new(String::with_capacity(23));
    for (place, byte) in random.iter().enumerate() {
        if place > 0 && place % 5 == 0 {
            password.push('-');
        }
        password.push(char::from(LETTERS[usize::from(byte % 32)]));
    }
    Ok(password)
}

/// Writes a file and its folder unless it is there already.
pub(super) fn write_new(path: &Path, text: &str) -> Result<bool, ApiError> {
    let unwritten = |error: io::Error| {
        let message = format!("{} cannot be written", path.display());
        ApiError::new(Code::STORAGE_FAILED, message).caused_by(error)
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        files::folder(folder, files::READABLE_FOLDER).map_err(unwritten)?;
    }
    match files::create(path, text.as_bytes(), files::READABLE) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(unwritten(error)),
    }
}

fn failed(error: PkiError) -> ApiError {
    let code = match error {
        PkiError::Write { .. } => Code::STORAGE_FAILED,
        _ => Code::CONFIG_INVALID,
    };
    ApiError::new(code, "the certificates cannot be made").caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_long_plain_and_never_the_same() {
        let (one, other) = (new_password().unwrap(), new_password().unwrap());
        assert_ne!(*one, *other);
        let groups: Vec<&str> = one.split('-').collect();
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [5; 4]);
        assert!(groups.concat().bytes().all(|letter| LETTERS.contains(&letter)), "{}", *one);
    }

    #[test]
    fn the_administrator_is_made_once_beside_others_and_only_the_hash_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.node.data_dir = folder.path().to_owned();
        let path = users_file(&config);
        fs::write(&path, "ada:$6$c2FsdA==$aGFzaA==\n").unwrap();
        let said = Administrator::of(&config).unwrap().make().unwrap();
        let secret = said.lines().nth(1).unwrap().trim();
        let users = fs::read_to_string(&path).unwrap();
        assert!(users.starts_with("ada:") && users.contains("\nadmin:$argon2id$"), "{users}");
        assert!(!users.contains(secret));
        let again = Administrator::of(&config).unwrap().make().unwrap();
        assert!(again.contains("as it was") && again.contains("tidegate passwd"), "{}", *again);
        assert_eq!(fs::read_to_string(&path).unwrap(), users);
        // A configured password file keeps the users.
        let said = no_administrator(&path);
        assert!(
            said.contains(path.to_str().unwrap()) && said.contains("tidegate passwd"),
            "{said}"
        );
        config.mqtt.password_file = Some(path);
        assert!(matches!(Administrator::of(&config).unwrap(), Administrator::Elsewhere(_)));
    }
}

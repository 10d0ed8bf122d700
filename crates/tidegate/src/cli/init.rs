//! `tidegate init`: certificates, a configuration and a user to begin with.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use tidegate_client::ApiError;
use tidegate_message::Code;
use zeroize::Zeroizing;

use super::{mqtt::replace, print};
use crate::{
    auth::{self, ADMINISTRATOR, password},
    config::{self, Config},
    pki::{self, InitRequest, Kind, PkiError},
};

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
    /// Host name or address under which nodes are reached, beside this machine's own names; may be repeated
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// How many days the certificates last
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    days: u32,
    /// Make more certificates with the authority that is there
    #[arg(long)]
    add: bool,
}

pub(super) fn run(config: &Config, args: &InitArgs) -> Result<(), ApiError> {
    let pki_dir = config.pki_dir();
    let valid_for = Duration::from_secs(u64::from(args.days) * 86_400);
    let mut text = String::new();
    if args.add {
        let kinds = [
            (Kind::Node, &args.nodes),
            (Kind::Camera, &args.cameras),
            (Kind::Application, &args.applications),
        ];
        let all =
            kinds.iter().flat_map(|(kind, names)| names.iter().map(move |name| (*kind, name)));
        for (kind, name) in all {
            pki::add(&pki_dir, kind, name, &args.hosts, valid_for).map_err(failed)?;
            text.push_str(&format!("{}\n", pki_dir.join(format!("{name}.pem")).display()));
        }
        return print(&text);
    }
    let or = |given: &[String], usual: &str| match given {
        [] => vec![usual.to_owned()],
        given => given.to_vec(),
    };
    let request = InitRequest {
        nodes: or(&args.nodes, config.node.name.as_str()),
        cameras: or(&args.cameras, "cam1"),
        applications: or(&args.applications, "application"),
        hosts: args.hosts.clone(),
        valid_for,
    };
    let administrator = Administrator::of(config)?;
    pki::init(&pki_dir, &request).map_err(failed)?;
    text.push_str(&format!("certificates in {}\n", pki_dir.display()));
    if write_template(Path::new(config::FILE))? {
        text.push_str(&format!("configuration in {}\n", config::FILE));
    }
    print(&text)?;
    match (administrator, &config.mqtt.password_file) {
        (Some(administrator), _) => print(&administrator.make()?),
        (None, Some(path)) => print(&no_administrator(path)),
        (None, None) => Ok(()),
    }
}

/// What is said where somebody keeps the users elsewhere.
fn no_administrator(path: &Path) -> String {
    let path = path.display();
    format!(
        "no user {ADMINISTRATOR} was made: users are kept in {path}, as `mqtt.password_file` says; \
         `tidegate passwd {path} {ADMINISTRATOR}` makes one\n"
    )
}

/// The user that a site begins with.
struct Administrator {
    path: PathBuf,
    /// The file of users as it is.
    users: Zeroizing<String>,
}

impl Administrator {
    /// Who is to be made; none where the configuration names a password file, which is somebody's own.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] if there is one already, [`Code::STORAGE_FAILED`].
    fn of(config: &Config) -> Result<Option<Self>, ApiError> {
        if config.mqtt.password_file.is_some() {
            return Ok(None);
        }
        let path = auth::users_file(config);
        let users = match fs::read_to_string(&path) {
            Ok(users) => Zeroizing::new(users),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Zeroizing::default(),
            Err(error) => {
                let text = format!("{} cannot be read", path.display());
                return Err(ApiError::new(Code::STORAGE_FAILED, text).caused_by(error));
            }
        };
        if password::remove_user(&users, ADMINISTRATOR).is_some() {
            let path = path.display();
            let text = format!(
                "{path} has the user {ADMINISTRATOR} already, who keeps the password; \
                 `tidegate passwd {path} {ADMINISTRATOR}` sets another"
            );
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        Ok(Some(Self { path, users }))
    }

    /// Makes the user, and says the password, of which only a hash is kept.
    fn make(self) -> Result<Zeroizing<String>, ApiError> {
        let Self { path, users } = self;
        let failed = |error| {
            ApiError::new(Code::INTERNAL, "the system gives no random bytes").caused_by(error)
        };
        let secret = new_password().map_err(failed)?;
        let hash = password::hash(secret.as_bytes()).map_err(failed)?;
        let users = password::set_user(&users, ADMINISTRATOR, &hash);
        let users = users.expect("the name and the hash are ours");
        let path_text = path.display();
        replace(&path, &users).map_err(|error| {
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

/// Writes the commented defaults unless there is a configuration already.
fn write_template(path: &Path) -> Result<bool, ApiError> {
    let file = fs::OpenOptions::new().write(true).create_new(true).open(path);
    match file.and_then(|mut file| file.write_all(Config::template().as_bytes())) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => {
            let message = format!("{} cannot be written", path.display());
            Err(ApiError::new(Code::STORAGE_FAILED, message).caused_by(error))
        }
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
        let path = auth::users_file(&config);
        fs::write(&path, "ada:$6$c2FsdA==$aGFzaA==\n").unwrap();
        let said = Administrator::of(&config).unwrap().expect("nobody is there").make().unwrap();
        let secret = said.lines().nth(1).unwrap().trim();
        let users = fs::read_to_string(&path).unwrap();
        assert!(users.starts_with("ada:") && users.contains("\nadmin:$argon2id$"), "{users}");
        assert!(!users.contains(secret));
        let again = Administrator::of(&config).map(|_| ()).unwrap_err();
        assert!(again.message().contains("tidegate passwd"), "{again}");
        assert_eq!(fs::read_to_string(&path).unwrap(), users);
        // Who names a file keeps users there.
        let said = no_administrator(&path);
        assert!(
            said.contains(path.to_str().unwrap()) && said.contains("tidegate passwd"),
            "{said}"
        );
        config.mqtt.password_file = Some(path);
        assert!(Administrator::of(&config).unwrap().is_none());
    }
}

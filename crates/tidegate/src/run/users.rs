//! Authentication and rules of a node from its configuration: files are read here, and their content is judged by
//! `tidegate-auth`.
//!
//! ```text
//!  [mqtt] password_file, acl_file ─┐     without a password file: DATA_DIR/users, from `tidegate init`
//!  [auth] roles_file, token_… ─────┼──▶ Sources ──▶ Authenticator
//!  DATA_DIR/state: doors.key ──────┘                  ▲
//!       token-keys-….json ◀── keys (fetched) ─────────┘
//! ```
//!
//! Always true: files are read as a whole before anything is exchanged; a file that is missing or broken changes nothing.

use std::{
    fs, io,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};
use tidegate_api::ApiError;
use tidegate_auth::{
    Authenticator, AuthenticatorError, Rules, Source, Sources, TokenSource, acl,
    keys::{KEY_SET_BYTES_MAX, KeySet},
    password::{self, DecoyKey},
    roles,
    token::TokenConfig,
};
use tidegate_config::{Config, Purpose, problems::Problems};
use tidegate_identity::{
    auth::{
        audit::AuditSettings,
        departed::{Departed, Gone},
        fetch::Fetcher,
    },
    pki::servers,
};
use tidegate_message::{Code, Instant};
use tidegate_sys::regular;
use zeroize::Zeroizing;

use super::kept::kept_random;

/// Largest password file, ACL file or roles file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// In the folder of the node's state, from the first start with users on: see [`DecoyKey`].
const DECOY_KEY_FILE: &str = "doors.key";

/// The authenticator that `config` describes; warns of problems that an operator should look at.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] if a file cannot be read or a line of it is wrong, [`Code::STORAGE_FAILED`] if the key that
/// hides unknown users cannot be kept.
pub fn open(config: &Config) -> Result<Authenticator, ApiError> {
    let sources = sources(config)?;
    for warning in warnings(config) {
        tracing::warn!("{warning}");
    }
    Authenticator::new(sources).map_err(|error| unread(&error))
}

/// The sources of the authenticator, as `config` names them.
///
/// # Errors
/// As for [`open`].
pub fn sources(config: &Config) -> Result<Sources, ApiError> {
    let mqtt = &config.mqtt;
    let source = |path: &Option<PathBuf>| {
        path.as_deref().map(read).transpose().map_err(|error| unread(&error))
    };
    let passwords = password_file(config);
    let decoy_key = if passwords.is_some() {
        let key = kept_random(&config.state_dir(), DECOY_KEY_FILE, Purpose::Run);
        key.map(DecoyKey).map_err(|error| {
            let text = "node.data_dir cannot keep the state of authentication";
            ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
        })?
    } else {
        DecoyKey([0; 32]) // there is no user to distinguish it from
    };
    Ok(Sources {
        passwords: source(&passwords)?,
        acl: source(&mqtt.acl_file)?,
        roles: source(&config.auth.roles_file)?,
        tokens: tokens(config)?,
        // Each listener decides that for itself.
        allow_anonymous: true,
        administrator: administrator(config),
        decoy_key,
    })
}

/// The same for an authenticator in use: a missing file does not take away the node's own users.
///
/// # Errors
/// As for [`open`]; [`Code::CONFIG_INVALID`] as well if no file of users is left where there was one.
pub fn sources_again(config: &Config, authenticator: &Authenticator) -> Result<Sources, ApiError> {
    let sources = sources(config)?;
    if sources.passwords.is_none() && authenticator.has_own_users(&users_file(config)) {
        let path = users_file(config);
        let text = format!(
            "{} is gone, which says who the users are; restore it, or start the node without it",
            path.display()
        );
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    Ok(sources)
}

/// The user that `tidegate init` makes.
pub const ADMINISTRATOR: &str = "admin";

/// The file of users that `tidegate init` begins. It is used unless `mqtt.password_file` names another.
pub fn users_file(config: &Config) -> PathBuf {
    config.node.data_dir.join("users")
}

fn password_file(config: &Config) -> Option<PathBuf> {
    // A file that exists and cannot be read, such as a link that leads nowhere, is an error and does not mean a node
    // without users.
    let is_there = |path: &PathBuf| {
        let found = fs::symlink_metadata(path);
        !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let own = || Some(users_file(config)).filter(is_there);
    config.mqtt.password_file.clone().or_else(own)
}

/// The user that may do everything without a roles file: of our own file alone, since another may have had a user of that
/// name before.
fn administrator(config: &Config) -> Option<Box<str>> {
    config.mqtt.password_file.is_none().then(|| ADMINISTRATOR.into())
}

/// The rules alone, without users and keys: for questions about them. Leaves nothing behind.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] if a file cannot be read or a line of it is wrong.
pub fn rules(config: &Config) -> Result<Rules, ApiError> {
    let source = |path: &Option<PathBuf>| {
        path.as_deref().map(read).transpose().map_err(|error| unread(&error))
    };
    let sources = Sources {
        passwords: None,
        acl: source(&config.mqtt.acl_file)?,
        roles: source(&config.auth.roles_file)?,
        tokens: None,
        allow_anonymous: true,
        administrator: administrator(config),
        decoy_key: DecoyKey([0; 32]),
    };
    Rules::new(sources).map_err(|error| unread(&error))
}

pub(super) fn unread(error: &dyn std::error::Error) -> ApiError {
    ApiError::new(Code::CONFIG_INVALID, "users and rules cannot be read")
        .caused_by(tidegate_message::error_chain(error))
}

/// All that is wrong with the files of users, rules and keys; nothing is written.
pub(super) fn problems(config: &Config) -> Problems {
    let mut problems = Problems::default();
    type Look = fn(&Source) -> Vec<String>;
    let files: [(&str, Option<PathBuf>, Look); 3] = [
        ("mqtt.password_file", password_file(config), |source| {
            texts(password::Passwords::problems(&source.path, &source.text))
        }),
        ("mqtt.acl_file", config.mqtt.acl_file.clone(), |source| {
            texts(acl::Acl::problems(&source.path, &source.text))
        }),
        ("auth.roles_file", config.auth.roles_file.clone(), |source| {
            texts(roles::Roles::problems(&source.path, &source.text))
        }),
    ];
    for (key, path, look) in files {
        let Some(path) = path else { continue };
        match read(&path) {
            Ok(source) => {
                for text in look(&source) {
                    problems.say(Code::CONFIG_INVALID, text);
                }
            }
            Err(error) => {
                let text = format!("{key}: {}", tidegate_message::error_chain(&error));
                problems.say(Code::CONFIG_INVALID, text);
            }
        }
    }
    problems.take(tokens(config));
    problems
}

/// That more than half of the users are gone from the password file, if they are. Nothing is written.
pub(super) fn vanished(config: &Config) -> Option<String> {
    let path = password_file(config)?;
    let source = read(&path).ok()?;
    let users = password::Passwords::parse(&path, &source.text, DecoyKey([0; 32])).ok()?.users();
    let mut departed = Departed::read(&config.state_dir(), Instant::EPOCH).ok()?;
    let gone = departed.look(Instant::EPOCH, users).filter(Gone::is_many)?;
    Some(format!(
        "{}: {} of {} users are gone: {}; bring it back from a copy if that was not meant",
        path.display(),
        gone.users.len(),
        gone.of,
        gone.users.join(", ")
    ))
}

fn texts<E: std::error::Error>(errors: Vec<E>) -> Vec<String> {
    errors.iter().map(|error| tidegate_message::error_chain(error)).collect()
}

/// The token settings of `[auth]`.
fn tokens(config: &Config) -> Result<Option<TokenSource>, ApiError> {
    let section = &config.auth;
    let wrong = |text: &str| Err(ApiError::new(Code::CONFIG_INVALID, text));
    let keys = match (&section.token_keys_file, &section.token_keys_url) {
        (None, None) => {
            if section.token_audience.is_some() || section.token_issuer.is_some() {
                return wrong(
                    "auth.token_audience and auth.token_issuer mean nothing without keys; \
                              set token_keys_file or token_keys_url",
                );
            }
            return Ok(None);
        }
        (Some(_), Some(_)) => {
            return wrong(
                "auth.token_keys_file and auth.token_keys_url exclude each other; name one",
            );
        }
        (Some(path), None) => Some(key_set(path).map_err(|error| {
            let text = format!("auth.token_keys_file: {}", error.chain());
            ApiError::new(Code::CONFIG_INVALID, text)
        })?),
        // The keys fetched before the last stop, until newer ones come.
        (None, Some(url)) => {
            let path = keys_path(config, url.expose());
            match key_set(&path) {
                Ok(keys) => Some(keys),
                Err(_) if !path.exists() => None,
                Err(error) => {
                    let error = tidegate_message::error_chain(&error);
                    tracing::warn!(%error, "kept keys of tokens are not used");
                    None
                }
            }
        }
    };
    let Some(audience) = &section.token_audience else {
        return wrong(
            "auth.token_audience must be set: without it, a token for another service of the same issuer \
                      would open this node",
        );
    };
    let token_config = TokenConfig {
        issuer: section.token_issuer.clone(),
        audience: audience.clone(),
        leeway: section.token_leeway,
        name_claim: section.token_name_claim.clone(),
        groups_claim: section.token_groups_claim.clone(),
    };
    let renewed_from = section.token_keys_url.as_ref().map(|url| url.expose().to_owned());
    Ok(Some(TokenSource { config: token_config, keys, renewed_from }))
}

/// Where keys that were fetched from `url` are kept for the next start. They are public. Those of another address are others'.
fn keys_path(config: &Config, url: &str) -> PathBuf {
    let digest = Sha256::digest(url);
    let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    config.node.data_dir.join(format!("state/token-keys-{name}.json"))
}

/// The fetcher of the keys of tokens, as `[auth]` says; none if no keys are fetched.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key.
pub(super) fn fetcher(config: &Config) -> Result<Option<Fetcher>, ApiError> {
    let section = &config.auth;
    let Some(url) = &section.token_keys_url else { return Ok(None) };
    let tls = || servers::client_tls("auth.token_keys_ca", section.token_keys_ca.as_deref());
    Fetcher::new(url.expose(), tls, keys_path(config, url.expose()), section.token_keys_refresh)
        .map(Some)
}

/// Where the audit log is; none if there is to be none.
pub(super) fn audit(config: &Config) -> Option<AuditSettings> {
    let section = &config.auth;
    let usual = || config.node.data_dir.join("state/audit.log");
    section.audit.then(|| AuditSettings {
        path: section.audit_file.clone().unwrap_or_else(usual),
        bytes_max: section.audit_bytes_max.0,
        files_max: section.audit_files_max,
    })
}

fn key_set(path: &Path) -> Result<KeySet, ApiError> {
    let invalid = |error: &dyn std::error::Error| {
        ApiError::new(Code::CONFIG_INVALID, tidegate_message::error_chain(error))
    };
    let text = read_bounded(path, KEY_SET_BYTES_MAX as u64).map_err(|error| invalid(&error))?;
    let failed = |error| AuthenticatorError::Keys { path: path.to_owned(), error };
    KeySet::parse(text.as_bytes()).map_err(failed).map_err(|error| invalid(&error))
}

fn read(path: &Path) -> Result<Source, FileError> {
    Ok(Source { path: path.to_owned(), text: read_bounded(path, FILE_BYTES_MAX)? })
}

fn read_bounded(path: &Path, bytes_max: u64) -> Result<Zeroizing<String>, FileError> {
    let unreadable = |source| FileError::Read { path: path.to_owned(), source };
    let file = regular::open(path).map_err(unreadable)?;
    let mut text = Zeroizing::default();
    let bytes = file.take(bytes_max + 1).read_to_string(&mut text).map_err(unreadable)?;
    if bytes as u64 > bytes_max {
        return Err(FileError::TooLarge { path: path.to_owned(), bytes_max });
    }
    Ok(text)
}

/// Warnings for an operator: a password file that every user of the machine can read, rules that they can write.
pub fn warnings(config: &Config) -> Vec<String> {
    let mode = |path: &PathBuf| fs::metadata(path).map(|metadata| metadata.mode()).unwrap_or(0);
    let open_to_all = password_file(config).into_iter().filter(|path| mode(path) & 0o007 != 0);
    let open_to_all = open_to_all.map(|path| {
        format!("{0} can be read by every user of this machine; run: chmod o= {0}", path.display())
    });
    let users = users_file(config);
    let is_gone =
        password_file(config).is_none() && config.state_dir().join(DECOY_KEY_FILE).exists();
    let gone = is_gone.then(|| {
        format!(
            "{} is gone, the file of users: no client can log in by a password; restore it, or remove {DECOY_KEY_FILE} \
             next to it in `state` if it is to stay away",
            users.display()
        )
    });
    let rules = [&config.mqtt.acl_file, &config.auth.roles_file, &config.auth.token_keys_file];
    let writable = rules.into_iter().flatten().filter(|path| mode(path) & 0o002 != 0);
    open_to_all
        .chain(gone)
        .chain(writable.map(|path| {
            let path = path.display();
            format!("{path} can be written by every user of this machine; run: chmod o-w {path}")
        }))
        .collect()
}

/// Why a file of users or rules is not used.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("{} cannot be read", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than {} KiB; is it the right file?", .path.display(), .bytes_max >> 10)]
    TooLarge { path: PathBuf, bytes_max: u64 },
}

#[cfg(test)]
mod tests;

//! The invitations of a site, in a file that only its owner may read.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tidegate_sys::{files, regular};

use super::token::{ID_BYTES, SECRET_BYTES, Token};
use crate::{
    auth::password::random,
    pki::{Kind, PkiError},
};

/// Invitations that may be open at a time.
const OPEN_MAX: usize = 10_000;
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The purpose of an invitation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Invitation {
    /// The name in the certificate.
    pub name: String,
    /// The kind of its owner.
    #[serde(with = "kind")]
    pub kind: Kind,
    /// Host names and addresses of a node.
    pub hosts: Vec<String>,
    /// How long the certificate lasts, in seconds.
    pub valid_for_s: u64,
}

#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
struct Open {
    id: String,
    secret_sha256: String,
    /// Seconds since the Unix epoch.
    expires_s: u64,
    #[serde(flatten)]
    invitation: Invitation,
}

/// The open invitations of a site.
#[derive(Clone, Debug)]
pub struct Invitations {
    path: PathBuf,
}

/// Why an invitation cannot be made or redeemed.
#[derive(Debug, thiserror::Error)]
pub enum InvitationError {
    /// There is none of that name and secret. It does not say whether there ever was.
    #[error(
        "there is no such invitation: it was redeemed, has expired or never was; make another with `tidegate invite`"
    )]
    Unknown,
    /// Too many wait.
    #[error("{OPEN_MAX} invitations are open; let them expire, or remove {path}")]
    TooMany {
        /// Their file.
        path: PathBuf,
    },
    /// The name or a host cannot be one.
    #[error(transparent)]
    Name(#[from] PkiError),
    /// The file cannot be read or written, or is none of ours.
    #[error("the invitations in {path} cannot be used")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Invitations {
    /// Those in `invitations.json` of `folder`.
    pub fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join("invitations.json") }
    }

    /// Makes one that can be redeemed for `open_for`.
    ///
    /// # Errors
    /// [`InvitationError`].
    pub fn invite(
        &self,
        invitation: Invitation,
        open_for: Duration,
        address: String,
        authority: [u8; 32],
    ) -> Result<Token, InvitationError> {
        // Once it is redeemed it is spent, whatever the certificate cannot have in it.
        crate::pki::checked_name(&invitation.name)?;
        crate::pki::check_hosts(&invitation.hosts)?;
        let failed =
            |error: crate::auth::password::RandomError| self.failed(io::Error::other(error));
        let id: [u8; ID_BYTES] = random().map_err(failed)?;
        let secret: [u8; SECRET_BYTES] = random().map_err(failed)?;
        let token = Token { address, authority, id, secret };
        let open = Open {
            id: BASE64.encode(id),
            secret_sha256: BASE64.encode(Sha256::digest(secret)),
            expires_s: now_s().saturating_add(open_for.as_secs()),
            invitation,
        };
        self.change(|all| {
            if all.len() >= OPEN_MAX {
                return Err(InvitationError::TooMany { path: self.path.clone() });
            }
            all.push(open);
            Ok(())
        })?;
        Ok(token)
    }

    /// Takes an invitation out, so that it cannot be redeemed again.
    ///
    /// # Errors
    /// [`InvitationError::Unknown`], [`InvitationError::File`].
    pub fn redeem(&self, id: &[u8], secret: &[u8]) -> Result<Invitation, InvitationError> {
        let id = BASE64.encode(id);
        let secret = BASE64.encode(Sha256::digest(secret));
        self.change(|all| {
            let is_it = |open: &Open| {
                open.id == id && bool::from(open.secret_sha256.as_bytes().ct_eq(secret.as_bytes()))
            };
            let at = all.iter().position(is_it).ok_or(InvitationError::Unknown)?;
            Ok(all.swap_remove(at).invitation)
        })
    }

    /// Changes the list under a lock that commands and the node share; the file is the old one or the new one, never half of it.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Vec<Open>) -> Result<T, InvitationError>,
    ) -> Result<T, InvitationError> {
        let failed = |source| self.failed(source);
        if let Some(folder) = self.path.parent() {
            files::folder(folder, files::PRIVATE_FOLDER).map_err(failed)?;
        }
        let lock = files::append(&self.path.with_extension("lock"), files::PRIVATE);
        let lock = lock.map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut all = self.read().map_err(failed)?;
        let now = now_s();
        all.retain(|open| open.expires_s > now);
        let changed = change(&mut all)?;
        let text = serde_json::to_vec_pretty(&all).map_err(|error| failed(error.into()))?;
        files::put(&self.path, &text, files::PRIVATE).map_err(failed)?;
        Ok(changed)
    }

    fn read(&self) -> io::Result<Vec<Open>> {
        let file = match regular::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    }

    fn failed(&self, source: io::Error) -> InvitationError {
        InvitationError::File { path: self.path.clone(), source }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A kind by its word.
mod kind {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use crate::pki::Kind;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
    pub(super) fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        let word = String::deserialize(from)?;
        word.parse()
            .map_err(|()| D::Error::custom(format!("{word:?} is not a kind of certificate")))
    }
}

//! `[auth]`.

use std::{path::PathBuf, time::Duration};

use tidegate_message::Confidential;

use super::seconds;
use crate::ByteCount;

section! {
    /// `[auth]`: authentication and rules of this node, for all ways in.
    AuthSection {
        /// Roles, who has them, and limits of users; see the chapter on rights. Default none.
        roles_file: Option<PathBuf> = None,
        /// Public keys (JWKS) that tokens (JWT) are checked with, in a file. Default none: no tokens are taken.
        token_keys_file: Option<PathBuf> = None,
        /// The same, to be fetched from an https:// address. Default none.
        token_keys_url: Option<Confidential> = None
            => "an https:// address, without a user name and password in it"
                if |it, _| it.token_keys_url.as_ref().is_none_or(|url| is_without_secret(url.expose())),
        /// Authorities of that address's certificate, PEM. Default none: those of the system.
        token_keys_ca: Option<PathBuf> = None,
        /// How often keys are fetched again; a token with an unknown key has it done at once. Default `1h`.
        token_keys_refresh: Duration = Duration::from_secs(3600)
            => "from 1min to 168h"
                if |it, _| (seconds(60)..=seconds(7 * 86_400)).contains(&it.token_keys_refresh),
        /// The required issuer of a token (`iss`). Default none: any owner of one of the keys.
        token_issuer: Option<String> = None,
        /// The required audience of a token (`aud`); must be set where tokens are accepted. Default none.
        token_audience: Option<String> = None,
        /// How far the clocks of issuer and node may differ. Default `1min`.
        token_leeway: Duration = Duration::from_secs(60)
            => "at most 10min" if |it, _| it.token_leeway <= seconds(600),
        /// The claim that holds the user's name; points lead into objects. Default `sub`.
        token_name_claim: String = "sub".to_owned(),
        /// The claim that holds the user's groups. Default `groups`.
        token_groups_claim: String = "groups".to_owned(),
        /// Whether refusals and what administrators do are written down. Default true.
        audit: bool = true; fixed,
        /// Where. Default none: `state/audit.log` in `node.data_dir`.
        audit_file: Option<PathBuf> = None; fixed,
        /// Size at which that file is moved aside. Default `16MiB`.
        audit_bytes_max: ByteCount = ByteCount(16 << 20); fixed
            => "at least 64KiB" if |it, _| it.audit_bytes_max.0 >= 64 << 10,
        /// Files that are kept in all. Default 4.
        audit_files_max: u32 = 4; fixed
            => "from 1 to 1000" if |it, _| (1..=1000).contains(&it.audit_files_max),
    }
}

/// A printed URL must hold no secret.
fn is_without_secret(url: &str) -> bool {
    url.starts_with("https://") && !url.contains('@')
}

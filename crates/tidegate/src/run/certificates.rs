//! Certificates that this node shows, and the revocation lists that it goes by, while it runs.

use std::{fs, path::Path, time::Duration};

use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_api::ApiError;
use tidegate_config::Config;
use tidegate_identity::{
    access::{self, Access},
    auth::{
        self,
        audit::{Audit, Entry, Outcome},
    },
    pki::{
        self, Credentials, Kind, PkiError, Revocations, files,
        revocation::{RevocationError, Shown},
    },
};
use tidegate_message::{CameraName, Code, Identity, IdentityKind};
use tidegate_process::health::Condition;
use tidegate_server::server::Server;

use super::this_node;

/// The certificate called `name`, with its key.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the file and the command that makes it.
pub(super) fn credentials(
    config: &Config,
    kind: Kind,
    name: &str,
) -> Result<Credentials, ApiError> {
    let folder = config.pki_dir();
    pki::load(&folder, name).map_err(|error| {
        let key = if kind == Kind::Node { "node.name: " } else { "" };
        let text = format!("{key}no usable certificate for the {kind} {name}");
        let way_out = match &error {
            PkiError::Missing { .. } => {
                format!("; {}", config.how_to_certify(&kind.to_string(), name))
            }
            _ => String::new(),
        };
        ApiError::new(Code::CONFIG_INVALID, text + &way_out)
            .caused_by(tidegate_message::error_chain(&error))
    })
}

/// The certificate of a listener: the two files that are named, or the node's own.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key and the file.
pub(super) fn certificate(
    config: &Config,
    key_of: &dyn Fn(&str) -> String,
    named: (Option<&Path>, Option<&Path>),
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ApiError> {
    let own = |extension: &str| {
        config.pki_dir().join(format!("{}.{extension}", config.node.name.as_str()))
    };
    let (certificate, key) = match named {
        (Some(certificate), Some(key)) => (certificate.to_owned(), key.to_owned()),
        (None, None) => (own("pem"), own("key")),
        _ => {
            let text = format!("{} and key go together; name both", key_of("certificate"));
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
    };
    let chain = files::certificates(&key_of("certificate"), &certificate).map_err(|error| {
        let is_own = named.0.is_none() && fs::symlink_metadata(&certificate).is_err();
        match is_own {
            true => {
                let way_out = config.how_to_certify("node", config.node.name.as_str());
                let text = format!(
                    "{}: the node has no certificate of its own; {way_out}",
                    key_of("certificate")
                );
                ApiError::new(Code::CONFIG_INVALID, text).caused_by(error.chain())
            }
            false => error,
        }
    })?;
    let key = files::private_key(&key_of("key"), &key)?;
    Ok((chain, key))
}

/// Goes by the newest revocation list that a former start knew of, and says so where the file has an older one or none.
pub(super) fn keep_revocations(config: &Config, access: &Access) -> Result<(), ApiError> {
    let kept = access.revocations.keep_in(&config.state_dir());
    let wrong = kept.map_err(|error| revocations_unknown(&error))?;
    for error in wrong {
        let error = tidegate_message::error_chain(&error);
        tracing::error!(%error, "the revocation list of the last start stays in use");
        access.audit.tell(|| Entry {
            what: "revocation-lists".to_owned(),
            rule: error,
            ..Entry::of(auth::now().wall, "process", &this_node(), Outcome::Failed)
        });
    }
    Ok(())
}

pub(super) fn revocations_unknown(error: &RevocationError) -> ApiError {
    let text = "it cannot be known which certificates were revoked; restore the file, or remove it once its authority's newest list is in place";
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(error))
}

/// How often a certificate is looked at: it may expire, or be renewed.
const CERTIFICATE_LOOKED_AT: Duration = Duration::from_secs(60);

/// Says whether the certificate called `name` is one to serve with.
pub(super) async fn watch_certificate(
    condition: Condition,
    config: Config,
    kind: Kind,
    name: CameraName,
) {
    let mut ticks = tokio::time::interval(CERTIFICATE_LOOKED_AT);
    loop {
        ticks.tick().await;
        match credentials(&config, kind, name.as_str()) {
            Ok(_) => condition.holds(),
            Err(error) => condition.fails(tidegate_message::error_chain(&error)),
        }
    }
}

/// A function that notes in the audit log each revoked certificate that is shown.
pub(super) fn write_shown(audit: Audit) -> impl Fn(&Shown) + Send + Sync {
    move |shown| {
        let Shown { peer, serial, reason } = shown;
        let named = peer.as_ref().map(|peer| access::Identity::of_peer(peer, None));
        let nobody = || Identity::new(IdentityKind::Certificate, "", "");
        let identity = named.map_or_else(nobody, |named| named.who().clone());
        audit.tell(|| Entry {
            what: "login".to_owned(),
            rule: format!("certificate {serial} was revoked: {reason}"),
            ..Entry::of(auth::now().wall, "tls", &identity, Outcome::Refused)
        });
    }
}

/// Goes by the newest revocation lists, and ends connections of MQTT whose certificates are on them; links and calls look for
/// themselves. `again` reads files also that are the same, and so says once more what is wrong with them.
pub(super) fn refresh_revocations(access: &Access, server: Option<&Server>, again: bool) {
    let refresh = |lists: &Revocations| {
        let refreshed = if again { lists.reread() } else { lists.refresh() };
        let (outcome, rule) = match &refreshed {
            Ok(false) => return false,
            Ok(true) => (Outcome::Done, format!("{} certificates revoked", lists.count())),
            Err(error) => {
                let error = tidegate_message::error_chain(error);
                tracing::error!(%error, "the revocation lists in use are kept");
                (Outcome::Failed, error)
            }
        };
        access.audit.tell(|| Entry {
            what: "revocation-lists".to_owned(),
            rule,
            ..Entry::of(auth::now().wall, "process", &this_node(), outcome)
        });
        refreshed.unwrap_or(false)
    };
    let changed = refresh(&access.revocations);
    if let Some(server) = server
        && (server.refresh_revocations(&refresh) | changed)
    {
        server.kick_revoked();
    }
}

//! Access control at the API and at node links: each act is decided by the current rules, and refusals and
//! administration are written to the audit log.
//!
//! Always true: a client whose proof is no longer valid, such as an expired token, is refused from then on, also in the
//! middle of a stream; of a caller on whose behalf a node asks, both need the right.

mod behalf;

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use sha2::{Digest as _, Sha256};
use tidegate_api::ApiError;
use tidegate_message::{Action, Authorize as _, Code, IdentityKind, Target};
use tidegate_wire::NodeId;

use crate::{
    auth::{
        self, Admitted, Authenticator, Sources,
        audit::{Audit, Entry, Outcome},
        password::DecoyKey,
    },
    pki::{Kind, PeerIdentity, Revocations, Serial, revocation::Revoked},
};

/// How often a stream checks whether it may continue.
const LOOK: Duration = Duration::from_secs(1);

/// The caller.
#[derive(Clone, Debug)]
pub struct Identity {
    /// As rules name it, and what it showed.
    pub admitted: Admitted,
    /// The purpose of its certificate; none for a password or a token.
    pub certificate: Option<Kind>,
    /// The number of its certificate; none for any other proof.
    pub serial: Option<Serial>,
    /// Tells those who hold cameras apart: the hash of the key, or of the name of a user.
    pub key: NodeId,
    /// The node that asks on its behalf; none where it asks itself.
    pub through: Option<Arc<Identity>>,
}

impl Identity {
    /// Of a peer whose certificate was verified.
    pub fn of_peer(peer: &PeerIdentity, address: Option<IpAddr>) -> Self {
        let kind = kind_of(peer.kind);
        let identity = tidegate_message::Identity {
            address,
            ..tidegate_message::Identity::new(kind, &peer.name, "")
        };
        Self {
            admitted: Admitted::by_certificate(identity),
            certificate: Some(peer.kind),
            serial: Some(peer.serial.clone()),
            key: peer.node,
            through: None,
        }
    }

    /// The identity of a caller with a password or a token.
    pub fn of_user(admitted: Admitted) -> Self {
        // No key of a certificate hashes to it, since no public key begins so.
        let name = format!("user {}", admitted.identity.name);
        let key = NodeId(Sha256::digest(name).into());
        Self { admitted, certificate: None, serial: None, key, through: None }
    }

    /// As rules name it.
    pub fn who(&self) -> &tidegate_message::Identity {
        &self.admitted.identity
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.who().name
    }

    /// Whether both are the same name of the same kind, and ask by the same way.
    pub fn is(&self, other: &Self) -> bool {
        let by_the_same_way = match (&self.through, &other.through) {
            (Some(one), Some(other)) => one.is(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let (one, other) = (self.who(), other.who());
        by_the_same_way && (one.kind, &one.name) == (other.kind, &other.name)
    }
}

/// How rules name the owner of a certificate of the site.
pub fn kind_of(kind: Kind) -> IdentityKind {
    match kind {
        Kind::Node | Kind::Camera => IdentityKind::Node,
        Kind::Application => IdentityKind::Certificate,
    }
}

/// `application counter`, `user ada`, `user ada through node yard`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.certificate.map_or("user", Kind::as_str);
        write!(f, "{kind} {}", self.name())?;
        match &self.through {
            Some(node) => write!(f, " through {node}"),
            None => Ok(()),
        }
    }
}

/// Access control for the API and links; cheap to clone.
#[derive(Clone, Debug)]
pub struct Access {
    /// Authenticates clients and decides their rights.
    pub authenticator: Arc<Authenticator>,
    /// The revoked certificates.
    pub revocations: Arc<Revocations>,
    /// Where it is written down.
    pub audit: Audit,
}

/// Certificates alone, and what they may do without any file: for tests and demonstrations.
impl Default for Access {
    fn default() -> Self {
        let sources = Sources {
            passwords: None,
            acl: None,
            roles: None,
            tokens: None,
            allow_anonymous: false,
            administrator: None,
            decoy_key: DecoyKey([0; 32]),
        };
        let authenticator =
            Authenticator::new(sources).expect("there is no text that could be wrong");
        let revocations = Arc::new(Revocations::none());
        Self { authenticator: Arc::new(authenticator), revocations, audit: Audit::default() }
    }
}

impl Access {
    /// Lets `identity` do that, or says which rule does not. Denials are written down.
    ///
    /// # Errors
    /// [`Code::ACTION_DENIED`] by the rule, [`Code::IDENTITY_REFUSED`] if what it showed no longer holds,
    /// [`Code::IDENTITY_REVOKED`] if that was a certificate that is revoked.
    pub fn may(
        &self,
        front: &'static str,
        identity: &Identity,
        action: Action,
        target: Target<'_>,
    ) -> Result<(), ApiError> {
        let refused = self.look(identity, action, target);
        if let Err(error) = &refused {
            self.tell(front, identity, Outcome::Refused, action.word(), target, error.message());
        }
        refused
    }

    /// Whether it may, without a word to the audit log.
    pub fn allows(&self, identity: &Identity, action: Action, target: Target<'_>) -> bool {
        self.look(identity, action, target).is_ok()
    }

    /// Fails if the credentials of `identity` are no longer valid.
    ///
    /// # Errors
    /// [`Code::IDENTITY_REVOKED`] for a certificate that is revoked, [`Code::IDENTITY_REFUSED`] for anything else.
    pub fn still_holds(&self, identity: &Identity) -> Result<(), ApiError> {
        if let Some(node) = &identity.through {
            self.still_holds(node)?;
        }
        if let Some(serial) = &identity.serial
            && let Some(Revoked { reason, .. }) = self.revocations.find_serial(serial)
        {
            let text = format!("the certificate {serial} of {identity} was revoked: {reason}");
            return Err(ApiError::new(Code::IDENTITY_REVOKED, text));
        }
        if !self.authenticator.is_current(&identity.admitted, auth::now()) {
            let text = format!(
                "the credentials of {identity} are no longer valid; connect again with valid ones"
            );
            return Err(ApiError::new(Code::IDENTITY_REFUSED, text));
        }
        Ok(())
    }

    fn look(
        &self,
        identity: &Identity,
        action: Action,
        target: Target<'_>,
    ) -> Result<(), ApiError> {
        self.still_holds(identity)?;
        if let Some(node) = &identity.through {
            // Nothing else is asked for on behalf of others: a member has no part in what its clients administer.
            if !matches!(action, Action::Frames | Action::FetchOriginal) {
                let text =
                    format!("{identity} may see frames and originals, and not {}", action.word());
                return Err(ApiError::new(Code::ACTION_DENIED, text));
            }
            self.look(node, action, target)?;
        }
        let decision = self.authenticator.decide(identity.who(), action, target);
        if decision.allow {
            return Ok(());
        }
        let action = action.word();
        let text = format!("{identity} may not {action} {target}: {}", decision.rule);
        Err(ApiError::new(Code::ACTION_DENIED, text))
    }

    /// Writes down an act.
    pub fn tell(
        &self,
        front: &'static str,
        identity: &Identity,
        outcome: Outcome,
        what: &str,
        target: Target<'_>,
        rule: &str,
    ) {
        self.audit.tell(|| Entry {
            what: what.to_owned(),
            target: target.to_string(),
            rule: rule.to_owned(),
            ..Entry::of(auth::now().wall, front, identity.who(), outcome)
        });
    }

    /// Waits until `identity` may no longer do that, and says why.
    ///
    /// # Cancel safety
    /// Cancel safe: it keeps nothing.
    pub async fn lost(
        &self,
        front: &'static str,
        identity: &Identity,
        action: Action,
        target: Target<'_>,
    ) -> ApiError {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Err(error) = self.may(front, identity, action, target) {
                return error;
            }
        }
    }
}

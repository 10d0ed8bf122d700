//! The caller of a request of HTTP: by the certificate of the connection, or by the credentials of the call.
//!
//! ```text
//!  authorization: Bearer TOKEN ─────────┐
//!  authorization: Basic USER:PASSWORD ──┼─▶ Authenticator ─▶ Identity
//!  certificate of the connection ───────┘
//! ```
//!
//! Always true: the credentials of a call count before the certificate of its connection, and wrong ones are not made good by
//! a certificate; no error and no log holds any of them.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};
use tidegate_api::ApiError;
use tidegate_message::{Code, LogLimiter, Proof, Refusal};
use tidegate_process::clock;
use tokio::sync::oneshot;

use crate::{
    access::{Access, Identity},
    auth::{
        self, Admitted, Rejected,
        audit::{Entry, Outcome},
        checks::{Turn, checks},
        limits::Lease,
        token::TOKEN_BYTES_MAX,
    },
};

/// How long a call waits for its password to be checked.
const CHECK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Calls with no credentials or wrong ones: anyone who reaches a port.
static REFUSED: LogLimiter = LogLimiter::of_strangers();
/// Longest `authorization`: a token with the word before it.
const AUTHORIZATION_BYTES_MAX: usize = TOKEN_BYTES_MAX + 16;

/// The other end of a connection.
#[derive(Debug)]
pub struct Peer {
    address: SocketAddr,
    certificate: Option<Arc<Identity>>,
    /// The digest of the password that came with the last call, and who it was: checking one takes long.
    last: Mutex<Option<([u8; 32], Arc<Identity>)>>,
    /// Whether a call over it has authenticated.
    has_proved: AtomicBool,
}

impl Peer {
    /// The peer at `address`, which has shown `certificate` if it has shown one.
    pub fn new(address: SocketAddr, certificate: Option<Arc<Identity>>) -> Self {
        let has_proved = AtomicBool::new(certificate.is_some());
        Self { address, certificate, last: Mutex::default(), has_proved }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has shown a certificate.
    pub fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }

    /// Whether a call over this connection has authenticated.
    pub fn has_proved(&self) -> bool {
        self.has_proved.load(Ordering::Acquire)
    }
}

/// Finds out who calls.
#[derive(Debug)]
pub struct Callers {
    access: Access,
    front: &'static str,
}

impl Callers {
    /// Authenticates by `access`; `front` is the name of this front in the audit log.
    pub fn new(access: Access, front: &'static str) -> Self {
        Self { access, front }
    }

    /// The caller of a request over the connection of `peer` that comes with `authorization`.
    ///
    /// # Errors
    /// [`Code::IDENTITY_REFUSED`] if it showed nothing, or nothing valid; [`Code::LIMIT_REACHED`] after too many that were not.
    pub async fn known(
        &self,
        peer: &Peer,
        authorization: Option<&[u8]>,
    ) -> Result<Arc<Identity>, ApiError> {
        if let Some(identity) = self.by_authorization(peer, authorization).await? {
            peer.has_proved.store(true, Ordering::Release);
            return Ok(identity);
        }
        self.by_certificate(peer)
    }

    /// Takes a call for one of `identity`, which authenticated when its session began, if what it showed then still holds.
    ///
    /// # Errors
    /// [`Code::IDENTITY_REFUSED`] and [`Code::IDENTITY_REVOKED`] if it does not.
    pub fn by_session(&self, peer: &Peer, identity: &Identity) -> Result<(), ApiError> {
        self.access.still_holds(identity).inspect_err(|error| {
            let (why, user) = (error.message().to_owned(), identity.name());
            self.access.audit.tell(|| refused_login(self.front, peer.address.ip(), user, why));
        })?;
        peer.has_proved.store(true, Ordering::Release);
        Ok(())
    }

    /// The caller by a certificate that is still valid.
    fn by_certificate(&self, peer: &Peer) -> Result<Arc<Identity>, ApiError> {
        let shown = peer.certificate.clone();
        let shown = shown.ok_or_else(|| self.refused(peer, "", Refusal::ProofRequired.into()))?;
        // It may have been revoked since the handshake.
        self.access.still_holds(&shown).inspect_err(|error| {
            let why = error.message().to_owned();
            self.access.audit.tell(|| refused_login(self.front, peer.address.ip(), "", why));
        })?;
        Ok(shown)
    }

    /// The caller, if it has shown a certificate or a token. A password, which takes long to check by design, is for calls that
    /// do something.
    ///
    /// # Errors
    /// [`Code::IDENTITY_REFUSED`], as for any call.
    pub fn may_look(
        &self,
        peer: &Peer,
        authorization: Option<&[u8]>,
    ) -> Result<Arc<Identity>, ApiError> {
        match proof_of(authorization, peer.address.ip())? {
            None => self.by_certificate(peer),
            Some(proof) if proof.token.is_some() => {
                let admitted = self.access.authenticator.authenticate(&proof, auth::now());
                let admitted = admitted.map_err(|rejected| self.refused(peer, "", rejected))?;
                peer.has_proved.store(true, Ordering::Release);
                Ok(Arc::new(Identity::of_user(admitted)))
            }
            Some(_) => {
                let text = "reflection takes a certificate or a token, and no password";
                Err(ApiError::new(Code::IDENTITY_REFUSED, text))
            }
        }
    }

    /// Fails if what `identity` showed is no longer valid, for a call that stays open.
    ///
    /// # Errors
    /// Those of [`Access::still_holds`].
    pub fn still_holds(&self, identity: &Identity) -> Result<(), ApiError> {
        self.access.still_holds(identity)
    }

    /// The caller by that proof; none if there is none.
    ///
    /// # Errors
    /// [`Code::IDENTITY_REFUSED`] if it is no good, [`Code::LIMIT_REACHED`] after too many that were not.
    pub async fn by_authorization(
        &self,
        peer: &Peer,
        authorization: Option<&[u8]>,
    ) -> Result<Option<Arc<Identity>>, ApiError> {
        let Some(proof) = proof_of(authorization, peer.address.ip())? else { return Ok(None) };
        if proof.token.is_some() {
            let admitted = self.access.authenticator.authenticate(&proof, auth::now());
            let admitted = admitted.map_err(|rejected| self.refused(peer, "", rejected))?;
            return Ok(Some(Arc::new(Identity::of_user(admitted))));
        }
        self.by_password(peer, proof).await.map(Some)
    }

    async fn by_password(&self, peer: &Peer, proof: Proof) -> Result<Arc<Identity>, ApiError> {
        let user = proof.username.clone().unwrap_or_default();
        let digest: [u8; 32] = Sha256::new()
            .chain_update(user.as_bytes())
            .chain_update([0])
            .chain_update(proof.password.as_deref().unwrap_or_default())
            .finalize()
            .into();
        let last = peer.last.lock().expect("no panic while it is looked at").clone();
        if let Some((_, identity)) = last.filter(|(last, _)| *last == digest)
            && self.access.authenticator.is_current(&identity.admitted, auth::now())
        {
            return Ok(identity);
        }
        let checked = match self.access.authenticator.recall(&proof, auth::now()) {
            Some(known) => known,
            None => self.check(peer, &user, proof).await?,
        };
        let admitted = checked.map_err(|rejected| self.refused(peer, &user, rejected))?;
        let identity = Arc::new(Identity::of_user(admitted));
        *peer.last.lock().expect("no panic while it is set") = Some((digest, identity.clone()));
        Ok(identity)
    }

    /// Has a password checked when its turn comes. A call that is cancelled is not checked any more.
    async fn check(
        &self,
        peer: &Peer,
        user: &str,
        proof: Proof,
    ) -> Result<Result<Admitted, Rejected>, ApiError> {
        let authenticator = self.access.authenticator.clone();
        let (answer, checked) = oneshot::channel();
        let check = move |turn| {
            if turn == Turn::Check {
                // A caller that has disconnected needs no answer.
                let _ = answer.send(authenticator.authenticate(&proof, auth::now()));
            }
        };
        let until = clock::now() + CHECK_WAIT_MAX;
        let waiting = checks().push(Some(peer.address.ip()), user, until, check);
        let _waiting = waiting.map_err(|error| {
            ApiError::new(Code::INTERNAL, "a password could not be checked").caused_by(error)
        })?;
        checked.await.map_err(|_| {
            let text = "more passwords wait to be checked than can be; try again in some seconds";
            ApiError::new(Code::LIMIT_REACHED, text)
        })
    }

    /// A stream more of an identity.
    ///
    /// # Errors
    /// [`Code::LIMIT_REACHED`] if it has as many as it may.
    pub fn enter(&self, identity: &Identity) -> Result<Lease, ApiError> {
        self.access.authenticator.meter(identity.who()).enter().map_err(|refusal| {
            ApiError::new(Code::LIMIT_REACHED, format!("{identity} is refused: {refusal}"))
        })
    }

    fn refused(&self, peer: &Peer, user: &str, rejected: Rejected) -> ApiError {
        let why = tidegate_message::error_chain(&rejected);
        if let Some(calls) = REFUSED.add(clock::now(), 1) {
            tracing::info!(peer = %peer.address, %user, error = why, calls, front = self.front, "a call was refused");
        }
        self.access.audit.tell(|| refused_login(self.front, peer.address.ip(), user, why.clone()));
        let code = match rejected.refusal {
            Refusal::TooMany | Refusal::KeysAwaited | Refusal::Connections => Code::LIMIT_REACHED,
            _ => Code::IDENTITY_REFUSED,
        };
        match rejected.refusal {
            Refusal::ProofRequired => {
                let text = "no credentials were sent: a certificate of the site, a token or a user name with its password is needed";
                ApiError::new(code, text)
            }
            _ => ApiError::new(code, why),
        }
    }
}

/// A client that was refused.
pub fn refused_login(front: &'static str, from: IpAddr, user: &str, why: String) -> Entry {
    Entry {
        at: auth::now().wall,
        outcome: Outcome::Refused,
        who: if user.is_empty() { String::new() } else { format!("user {user}") },
        client: String::new(),
        from: Some(from),
        front,
        what: "login".to_owned(),
        target: String::new(),
        rule: why,
    }
}

/// The proof in a call; none if there is none.
fn proof_of(authorization: Option<&[u8]>, from: IpAddr) -> Result<Option<Proof>, ApiError> {
    let Some(bytes) = authorization else { return Ok(None) };
    let malformed = || {
        let text = "the authorization is neither Bearer with a token nor Basic with a user name and password";
        ApiError::new(Code::IDENTITY_REFUSED, text)
    };
    if bytes.len() > AUTHORIZATION_BYTES_MAX {
        return Err(malformed());
    }
    let text = str::from_utf8(bytes).map_err(|_| malformed())?;
    let (scheme, rest) = text.split_once(' ').ok_or_else(malformed)?;
    let rest = rest.trim_start();
    let proof = Proof { address: Some(from), ..Proof::default() };
    // RFC 9110 section 11.1: the scheme in any case.
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Ok(Some(Proof { token: Some(rest.into()), ..proof })),
        "basic" => {
            let decoded: tidegate_message::Secret =
                STANDARD.decode(rest).map_err(|_| malformed())?.into();
            let colon = decoded.iter().position(|byte| *byte == b':').ok_or_else(malformed)?;
            let user = str::from_utf8(&decoded[..colon]).map_err(|_| malformed())?;
            let password = Some(decoded[colon + 1..].to_vec().into());
            Ok(Some(Proof { username: Some(user.to_owned()), password, ..proof }))
        }
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorizations_are_read_or_refused() {
        let long = format!("Bearer {}", "x".repeat(AUTHORIZATION_BYTES_MAX));
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        for (text, expected) in [
            ("Bearer a.b.c".to_owned(), Ok("token a.b.c")),
            ("bEARER  a.b.c".to_owned(), Ok("token a.b.c")),
            (basic("ada:tide:pool"), Ok("ada tide:pool")),
            (basic("ada:"), Ok("ada ")),
            (basic(":x"), Ok(" x")),
            (basic("ada"), Err(())),
            ("Basic !".to_owned(), Err(())),
            ("Basic".to_owned(), Err(())),
            ("Digest x".to_owned(), Err(())),
            (String::new(), Err(())),
            (long, Err(())),
        ] {
            let got = proof_of(Some(text.as_bytes()), [192, 0, 2, 1].into());
            let shown = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let got = got.map(Option::unwrap).map(|proof| match (&proof.token, &proof.username) {
                (Some(token), None) => format!("token {}", shown(token)),
                (None, Some(user)) => format!("{user} {}", shown(&proof.password.clone().unwrap())),
                _ => panic!("{proof:?}"),
            });
            match (got, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected),
                (Err(error), Err(())) => assert_eq!(error.code(), Code::IDENTITY_REFUSED),
                (got, _) => panic!("{text}: {got:?}"),
            }
        }
        assert!(proof_of(None, [192, 0, 2, 1].into()).unwrap().is_none());
    }
}

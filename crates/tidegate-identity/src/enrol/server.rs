//! The node's side: redeems invitations with the authority's key.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use async_recursion::async_recursion as boxed;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use tidegate_message::{LogLimiter, error_chain};
use tidegate_process::{arrivals::Arrivals, clock};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

use super::{Answer, InvitationError, Invitations, LINE_BYTES_MAX, PROTOCOL, Question, proof_of};
use crate::pki::{self, Authority, Credentials, PkiError};

/// Machines that join at a time, and of one address; beyond them the one that takes longest gives way, so that those which say nothing keep
/// none out.
const JOINING_MAX: usize = 128;
const JOINING_OF_ADDRESS_MAX: usize = 32;
/// For the whole of it.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// A wrong secret costs so long.
const WRONG_COSTS: Duration = Duration::from_secs(1);
/// Wrong secrets: of anyone who reaches the port.
static REFUSED: LogLimiter = LogLimiter::of_strangers();

/// Redeems invitations on one address.
pub struct Enrolment {
    listener: TcpListener,
    tls: TlsAcceptor,
    redeemer: Arc<Redeemer>,
}

struct Redeemer {
    invitations: Invitations,
    authority: Authority,
}

/// Why invitations cannot be redeemed here.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The address is taken or not ours.
    #[error("node.enrol_listen: {address} cannot be listened on")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The authority's key is not here, or a certificate cannot be used.
    #[error("node.enrol_listen: invitations need the authority's key")]
    Pki(#[from] PkiError),
}

impl Enrolment {
    /// Listens on `address`; certificates are made with the authority in `pki_dir`.
    ///
    /// # Errors
    /// [`EnrolError`].
    pub async fn bind(
        address: SocketAddr,
        credentials: &Credentials,
        pki_dir: &std::path::Path,
        invitations: Invitations,
    ) -> Result<Self, EnrolError> {
        let authority = Authority::load(pki_dir)?;
        let tls = TlsAcceptor::from(Arc::new(credentials.open_server_tls(PROTOCOL)?));
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| EnrolError::Listen { address, source })?;
        Ok(Self { listener, tls, redeemer: Arc::new(Redeemer { invitations, authority }) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    #[boxed]
    pub async fn serve(self) {
        let mut joining = JoinSet::new();
        let mut arrivals: Arrivals<AbortHandle> =
            Arrivals::new(JOINING_MAX, JOINING_OF_ADDRESS_MAX);
        loop {
            let accepted = tokio::select! {
                Some(ended) = joining.join_next() => {
                    arrivals.over(ended);
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "connections to join cannot be accepted");
                    tokio::time::sleep(WRONG_COSTS).await;
                    continue;
                }
            };
            let (tls, redeemer) = (self.tls.clone(), self.redeemer.clone());
            let number = arrivals.next();
            let handle = joining.spawn(async move {
                redeemer.greet(tls, socket, peer).await;
                number
            });
            if let Some(gone) = arrivals.begin(peer.ip(), handle) {
                tracing::debug!(newcomer = %peer, "the machine that takes longest to join gives way");
                gone.abort();
            }
        }
    }
}

impl Redeemer {
    /// Lets a machine join, within its time.
    async fn greet(&self, tls: TlsAcceptor, socket: TcpStream, peer: SocketAddr) {
        match tokio::time::timeout(JOIN_TIMEOUT, self.answer(tls, socket)).await {
            Ok(Ok(Some(name))) => tracing::info!(%peer, name, "an invitation was redeemed"),
            Ok(Ok(None)) => {
                if let Some(times) = REFUSED.add(clock::now(), 1) {
                    tracing::warn!(%peer, times, "an invitation was refused");
                }
            }
            Ok(Err(error)) => tracing::debug!(%peer, %error, "joining failed"),
            Err(_) => tracing::debug!(%peer, "joining took too long"),
        }
    }

    /// The name that a certificate was made for, none if it was refused.
    async fn answer(&self, tls: TlsAcceptor, socket: TcpStream) -> io::Result<Option<String>> {
        let mut stream = BufReader::new(tls.accept(socket).await?);
        let mut line = String::new();
        (&mut stream).take(LINE_BYTES_MAX).read_line(&mut line).await?;
        let (answer, name) = match self.redeem(&line) {
            Ok((answer, name)) => (answer, Some(name)),
            Err(why) => {
                tokio::time::sleep(WRONG_COSTS).await;
                (Answer::Refused { why }, None)
            }
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        stream.write_all(&text).await?;
        stream.shutdown().await?;
        Ok(name)
    }

    fn redeem(&self, line: &str) -> Result<(Answer, String), String> {
        let malformed = |what: &str| format!("the question is malformed: {what}");
        let question: Question =
            serde_json::from_str(line).map_err(|error| malformed(&error.to_string()))?;
        let bytes = |text: &str| BASE64.decode(text).map_err(|_| malformed("no base64"));
        let (id, secret) = (bytes(&question.id)?, bytes(&question.secret)?);
        let (key, proof) = (bytes(&question.public_key)?, bytes(&question.proof)?);
        if !pki::signed(&key, &proof_of(&id, &secret), &proof) {
            return Err(malformed("the proof does not go with the public key"));
        }
        let invitation = self.invitations.redeem(&id, &secret).map_err(|error| match error {
            unknown @ InvitationError::Unknown => unknown.to_string(),
            error => {
                tracing::error!(error = error_chain(&error), "invitations cannot be redeemed");
                "the node cannot redeem invitations now; its log says why".to_owned()
            }
        })?;
        let (kind, name) = (invitation.kind, invitation.name.clone());
        let valid_for = Duration::from_secs(invitation.valid_for_s);
        let made = self.authority.issue(kind, &name, &invitation.hosts, valid_for, &key);
        let certificate = made.map_err(|error| {
            tracing::error!(
                error = error_chain(&error),
                name,
                "an invitation was redeemed and no certificate made"
            );
            "the certificate cannot be made; the node's log says why".to_owned()
        })?;
        let authority = self.authority.pem().to_owned();
        let kind = kind.as_str().to_owned();
        Ok((Answer::Welcome { kind, name: name.clone(), certificate, authority }, name))
    }
}

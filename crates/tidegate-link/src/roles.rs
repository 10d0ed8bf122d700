//! The links of a node: one listener, and for each role of the other end the service that serves it.
//!
//! ```text
//!  Listener ─▶ Hello ─▶ role ─▶ Serve::serve ─▶ Welcome ─▶ whatever the role is for
//!                        │                 └──▶ Refused, with the reason
//!                        └ none serves it ────▶ Refused
//! ```
//!
//! Always true: each link has a task of its own, whose panic ends that link alone; a peer that says nothing, or whose role no service
//! here serves, is told why and let go.

use std::{collections::HashMap, fmt, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use tidegate_api::ApiError;
use tidegate_identity::{
    access::Identity,
    auth::audit::Audit,
    pki::{Credentials, PeerIdentity, revocation::Revoked},
};
use tidegate_message::Code;
use tidegate_process::{
    clock,
    tasks::{self, Tasks},
    threads::TaskThreads,
};
use tidegate_wire::{BootId, Features, Hello, MINOR, Record, Refused, Role, Welcome};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    carrier::{Carrier, Down, Incoming},
    link::{Link, LinkError, LinkSettings, Listener},
};

/// Longest wait for a peer's introduction.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// How long links may take to end after a stop.
const GRACE: Duration = Duration::from_secs(5);
/// For the reason of a refusal to leave before its link is dropped.
const LAST_WORD: Duration = Duration::from_millis(200);

/// The service of a link, to its end; why the link was not served, or no longer is.
pub type Serving = Pin<Box<dyn Future<Output = Result<(), ApiError>> + Send>>;

/// Serves the links of a role.
pub trait Serve: Send + Sync {
    /// Welcomes a peer, or turns it away, and serves it until its link ends or [`Visit::stop`].
    fn serve(self: Arc<Self>, visit: Visit) -> Serving;
}

/// A peer that has introduced itself, and is neither welcomed nor turned away yet.
pub struct Visit {
    /// Its introduction.
    pub hello: Hello,
    /// As whom rules judge it.
    pub identity: Identity,
    /// The link, to receive by.
    pub carrier: Carrier,
    /// The same link.
    pub link: Link,
    /// The node stops.
    pub stop: CancellationToken,
    host: Arc<Host>,
}

/// The node, as it introduces itself.
#[derive(Debug)]
struct Host {
    credentials: Credentials,
    /// One start of this node; peers tell a restart of ours by it.
    epoch: u64,
}

/// The listener for links of other nodes and of cameras.
pub struct Links {
    listener: Listener,
    /// For links of other nodes; the threads end after the links.
    threads: Arc<TaskThreads>,
    host: Arc<Host>,
    roles: HashMap<Role, Arc<dyn Serve>>,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links")
            .field("address", &self.local_address())
            .field("roles", &self.roles.keys())
            .finish_non_exhaustive()
    }
}

impl Links {
    /// Listens; peers that are refused before they introduce themselves are written to `audit`.
    ///
    /// # Errors
    /// Those of [`Listener::bind`].
    pub async fn bind(
        address: SocketAddr,
        credentials: Credentials,
        settings: LinkSettings,
        audit: Audit,
    ) -> Result<Self, LinkError> {
        let threads = Arc::new(TaskThreads::for_links("links"));
        let weak = Arc::downgrade(&threads);
        let listener = Listener::bind_with(address, &credentials, settings, audit, weak).await?;
        let epoch = u64::try_from(clock::now().as_nanos()).unwrap_or(1);
        let host = Arc::new(Host { credentials, epoch });
        Ok(Self { listener, threads, host, roles: HashMap::new() })
    }

    /// Has `service` serve the links of a role from now on.
    pub fn serve(&mut self, role: Role, service: Arc<dyn Serve>) {
        self.roles.insert(role, service);
    }

    /// Where peers dial.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Takes links until `stop`, and then waits a little for those that there are.
    pub async fn run(self, stop: CancellationToken) {
        let (tasks, owner) = tasks::tasks();
        let threads = self.threads.clone();
        let accepting = self.accept(tasks, stop.clone());
        let accepting = async {
            tokio::select! {
                () = accepting => {}
                () = stop.cancelled() => {}
            }
        };
        tokio::join!(accepting, owner.run(stop.cancelled(), GRACE));
        // Links that end have a last word, for which their threads are waited for.
        let ended = tokio::task::spawn_blocking(move || drop(threads)).await;
        if let Err(error) = ended {
            tracing::error!(%error, "the threads of links ended by a fault");
        }
    }

    async fn accept(mut self, tasks: Tasks, stop: CancellationToken) {
        let roles = Arc::new(self.roles);
        loop {
            let link = match self.listener.accept().await {
                Ok(link) => link,
                Err(error) => {
                    tracing::error!(error = %tidegate_message::error_chain(&error), "no more nodes can connect");
                    return;
                }
            };
            let (roles, host, stop) = (roles.clone(), self.host.clone(), stop.clone());
            tasks.spawn("node link", async move {
                let (peer, runtime) = (link.peer().clone(), link.runtime().clone());
                let visited = runtime.spawn(async move { visit(&roles, host, link, stop).await });
                let ended = AbortOnDropHandle::new(visited).await.unwrap_or_else(|error| {
                    Err(ApiError::new(Code::INTERNAL, "the link's task ended by a fault")
                        .caused_by(error))
                });
                if let Err(error) = ended {
                    let code = error.code();
                    tracing::warn!(%peer, %code, error = error.chain(), "link not served");
                }
            });
        }
    }
}

/// Hears a peer's introduction, and has the service of its role serve it.
async fn visit(
    roles: &HashMap<Role, Arc<dyn Serve>>,
    host: Arc<Host>,
    link: Link,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let mut carrier = Carrier::Link(link.clone());
    let refuse = |code: Code, text: &str| ApiError::new(code, text);
    let hello = match tokio::time::timeout(HELLO_MAX, carrier.recv()).await {
        Ok(Ok(Incoming::Record(Record::Hello(hello)))) => hello,
        Ok(Ok(_)) => return Err(refuse(Code::LINK_PROTOCOL, "peer sent no Hello record first")),
        Ok(Err(Down { why })) => return Err(refuse(Code::LINK_DOWN, &why)),
        Err(_) => return Err(refuse(Code::LINK_PROTOCOL, "peer sent no Hello record in time")),
    };
    let identity = Identity::of_peer(link.peer(), Some(link.peer_address().ip()));
    let service = roles.get(&hello.role).cloned();
    let visit = Visit { hello, identity, carrier, link, stop, host };
    match service {
        Some(service) => service.serve(visit).await,
        None => {
            let text =
                format!("this node has no service for links of the role {}", visit.hello.role);
            visit.turn_away(refuse(Code::LINK_PROTOCOL, &text)).await
        }
    }
}

impl Visit {
    /// The peer, by its certificate.
    pub fn peer(&self) -> &PeerIdentity {
        self.link.peer()
    }

    /// Tells the peer that it is served.
    ///
    /// # Errors
    /// The link is down.
    pub async fn welcome(&self) -> Result<(), ApiError> {
        let welcome = Welcome {
            minor: MINOR,
            node: self.host.credentials.identity().node,
            epoch: self.host.epoch,
            boot: BootId(tidegate_sys::clock::boot_id().unwrap_or_default()),
            features: Features::KNOWN,
            now: clock::now(),
        };
        let sent = self.carrier.send(welcome.into()).await;
        sent.map_err(|Down { why }| ApiError::new(Code::LINK_DOWN, why))
    }

    /// Tells the peer why it is not served, or no longer is.
    ///
    /// # Errors
    /// `error`, always.
    pub async fn turn_away(&self, error: ApiError) -> Result<(), ApiError> {
        // The peer may be gone already; then there is no one to notify.
        let _ = self.carrier.send(Refused::new(error.code(), error.chain()).into()).await;
        tokio::time::sleep(LAST_WORD).await;
        Err(error)
    }

    /// The result of `serving`, unless the peer's certificate is revoked before it is there.
    ///
    /// # Errors
    /// Those of `serving`; the revocation, by which the link was closed.
    pub async fn unless_revoked(
        &self,
        serving: impl Future<Output = Result<(), ApiError>>,
    ) -> Result<(), ApiError> {
        let peer = self.peer();
        tokio::select! {
            served = serving => served,
            Revoked { reason, .. } = self.host.credentials.revocations().revoked(&peer.serial) => {
                let text = format!("the certificate of {peer} was revoked: {reason}");
                self.link.close(1, &text);
                Err(ApiError::new(Code::IDENTITY_REVOKED, text))
            }
        }
    }
}

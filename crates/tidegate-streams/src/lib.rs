//! The edge node: cameras come in over links, applications over the API.
//!
//! ```text
//!  link ─▶ serve ─▶ stream log ◀─ session ─▶ API           one stream for each transfer,
//!           │           │                                  one session for each subscription
//!           └─ notices ─┴──────▶
//! ```
//!
//! Always true: a camera or a subscriber that dies ends its own task and nothing else; a node that stops
//! tells its sessions, then lets go.

mod cameras;
mod entry;
mod frames;
mod hosted;
mod own;
mod rhythm;
mod serve;
mod session;
mod shares;
mod stream;
mod tasks;
mod verdict;

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use tidegate_api::{ApiError, ReloadedConfiguration, SubscriptionId};
use tidegate_camera::{
    camera::{self, CameraSettings},
    frame_log::FrameLogSettings,
};
use tidegate_frame::{
    coordinator::CoordinatorConfig,
    table::{TableError, TableSet},
};
use tidegate_identity::{
    access::{Access, Identity},
    pki::{Credentials, Kind, PkiError, revocation::Revoked},
};
use tidegate_link::{
    carrier::{Carrier, Down, Incoming},
    link::{Link, LinkError, LinkSettings, Listener},
};
use tidegate_message::{Action, Code, Target};
use tidegate_process::clock;
use tidegate_rpc::{Detection, Frames, Plain, Router, ServerConfig, ServerError};
use tidegate_uplinks::Receivers;
use tidegate_wire::{
    BootId, CameraAnnounce, Features, MINOR, Record, Refused, Role, TransferHints, Welcome,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::own::{CAMERAS_MAX, OwnCamera};
use self::{
    cameras::{Cameras, Owner},
    frames::Live,
    hosted::Hosted,
    own::OwnNames,
    shares::Shares,
    tasks::Tasks,
};

/// Longest wait for a camera's introduction.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// How long tasks may take to end after a stop.
const GRACE: Duration = Duration::from_secs(5);
/// How often an uplink is sent its share: a share holds for longer.
const SHARES_TOLD_EVERY: Duration = Duration::from_millis(500);

/// The options of an edge node.
#[derive(Clone)]
pub struct NodeSettings {
    /// Where the API listens; port 0 takes a free one.
    pub api_listen: SocketAddr,
    /// Where cameras dial, UDP and TCP.
    pub link_listen: SocketAddr,
    /// The node's certificate.
    pub credentials: Credentials,
    /// Settings of links.
    pub link: LinkSettings,
    /// The log of each stream.
    pub stream_log: FrameLogSettings,
    /// The options of cameras hosted for publishers; name, size and rate come from Register.
    pub hosted: CameraSettings,
    /// The cameras that the node runs itself, now and after each change.
    pub cameras: watch::Receiver<Vec<OwnCamera>>,
    /// The detector and scene of a subscription that names none.
    pub hints: TransferHints,
    /// How the one medium that all cameras and uplinks share is divided; none where each has a link of its own.
    pub medium: Option<CoordinatorConfig>,
    /// Access control.
    pub access: Access,
    /// Receivers of other nodes' uplinks.
    pub uplinks: Arc<Receivers>,
    /// Requests to read the configuration again; none where that is not possible.
    pub reloads: Option<Reloads>,
}

/// Asks for the configuration to be read again: the result is sent to the caller. One waits while one is read, and others
/// are refused.
pub type Reloads = mpsc::Sender<oneshot::Sender<Result<ReloadedConfiguration, ApiError>>>;

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The node link cannot listen.
    #[error("the node link cannot listen; free its address or set `listen` in [link]")]
    Link(#[from] LinkError),
    /// The API cannot serve.
    #[error("the API cannot be served")]
    Api(#[from] ServerError),
    /// The certificate does not serve.
    #[error("the node's certificate cannot be used")]
    Credentials(#[from] PkiError),
    /// A table cannot be read.
    #[error("a characterization table cannot be read")]
    Table(#[from] TableError),
}

impl NodeError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Link(_) | Self::Api(_) => Code::CONFIG_INVALID,
            Self::Credentials(_) => Code::IDENTITY_REFUSED,
            Self::Table(_) => Code::TABLE_INVALID,
        }
    }
}

/// Everything a node shares between its tasks.
pub(crate) struct NodeState {
    cameras: Cameras,
    subscriptions: Mutex<HashMap<SubscriptionId, Live>>,
    hosted: Hosted,
    own: OwnNames,
    hosted_options: CameraSettings,
    stream_log: FrameLogSettings,
    hints: TransferHints,
    shares: Mutex<Shares>,
    access: Access,
    uplinks: Arc<Receivers>,
    reloads: Option<Reloads>,
    tasks: Tasks,
    stop: CancellationToken,
    this: Weak<NodeState>,
}

impl NodeState {
    #[allow(clippy::too_many_arguments)] // one for each part
    fn new(
        hosted_options: CameraSettings,
        stream_log: FrameLogSettings,
        hints: TransferHints,
        shares: Shares,
        access: Access,
        uplinks: Arc<Receivers>,
        reloads: Option<Reloads>,
        tasks: Tasks,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            cameras: Cameras::default(),
            subscriptions: Mutex::default(),
            hosted: Hosted::new(&hosted_options.log),
            own: OwnNames::default(),
            hosted_options,
            stream_log,
            hints,
            shares: Mutex::new(shares),
            access,
            uplinks,
            reloads,
            tasks,
            stop,
            this: this.clone(),
        })
    }

    fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("a node's state is only used from within its Arc")
    }

    fn subscriptions(&self) -> MutexGuard<'_, HashMap<SubscriptionId, Live>> {
        self.subscriptions.lock().expect("no panic while subscriptions are looked up")
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().expect("no panic while shares are reckoned")
    }
}

/// A node that listens and does not serve yet.
pub struct Node {
    listener: Listener,
    server: tidegate_rpc::Server,
    options: NodeSettings,
    tables: Arc<TableSet>,
    /// Services that wait for the node's frames.
    served: Vec<oneshot::Sender<Arc<dyn Frames>>>,
}

impl Node {
    /// Listens on both addresses.
    ///
    /// # Errors
    /// [`NodeError`], which names the address.
    #[boxed]
    pub async fn bind(mut options: NodeSettings) -> Result<Self, NodeError> {
        // Clients accepted by these credentials are judged by their lists from then on.
        options.access.revocations = options.credentials.revocations().clone();
        let tables = Arc::new(camera::tables(options.hosted.tables.as_deref())?);
        let audit = options.access.audit.clone();
        let listener =
            Listener::bind(options.link_listen, &options.credentials, options.link.clone(), audit)
                .await?;
        let server = tidegate_rpc::Server::bind(ServerConfig {
            listen: options.api_listen,
            node: options.credentials.identity().name.clone(),
            frame_bytes_max: options.hosted.limits.bytes_max as u64,
            tls: Arc::new(options.credentials.server_tls(tidegate_rpc::server::ALPN)?),
            tls_open: Arc::new(options.credentials.server_tls_open(tidegate_rpc::server::ALPN)?),
            access: options.access.clone(),
            web: Router::new(),
            web_public: Router::new(),
        })
        .await?;
        Ok(Self { listener, server, options, tables, served: Vec::new() })
    }

    /// The node's frames for another of its services, which come once it serves.
    pub fn frames(&mut self) -> oneshot::Receiver<Arc<dyn Frames>> {
        let (sender, receiver) = oneshot::channel();
        self.served.push(sender);
        receiver
    }

    /// The same with paths of HTTP beside gRPC: `web` for callers that are known, `web_public` for everybody.
    #[must_use]
    pub fn with_web(self, web: Router, web_public: Router) -> Self {
        Self { server: self.server.with_web(web, web_public), ..self }
    }

    /// The same with detection on the API, whose images have at most `image_bytes_max` bytes.
    #[must_use]
    pub fn with_detection(self, detection: Arc<dyn Detection>, image_bytes_max: usize) -> Self {
        Self { server: self.server.with_detection(detection, image_bytes_max), ..self }
    }

    /// The same with a listener without TLS for some paths of HTTP.
    #[must_use]
    pub fn with_plain(self, plain: Plain) -> Self {
        Self { server: self.server.with_plain(plain), ..self }
    }

    /// Where the API listens.
    pub fn api_address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Where cameras dial.
    pub fn link_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Serves until `stop`.
    ///
    /// # Errors
    /// [`NodeError`] if the API fails as a whole.
    #[boxed]
    pub async fn serve(self, stop: CancellationToken) -> Result<(), NodeError> {
        let (tasks, owner) = tasks::tasks();
        let NodeSettings {
            hosted,
            cameras,
            stream_log,
            hints,
            credentials,
            medium,
            access,
            uplinks,
            reloads,
            ..
        } = self.options;
        let shares = Shares::new(clock::now(), self.tables, medium);
        let state = NodeState::new(
            hosted,
            stream_log,
            hints,
            shares,
            access,
            uplinks,
            reloads,
            tasks,
            stop.clone(),
        );
        for service in self.served {
            // One that waits no longer needs none.
            let _ = service.send(state.clone());
        }
        let node_key = credentials.identity().node;
        // Before the first link comes.
        state.own.reserve(&cameras.borrow());
        state.tasks.spawn("cameras", own::run(state.clone(), node_key, cameras));
        let accepting = accept(self.listener, state.clone(), credentials);
        let (served, (), ()) = tokio::join!(
            self.server.serve(state, stop.clone()),
            async {
                tokio::select! {
                    () = accepting => {}
                    () = stop.cancelled() => {}
                }
            },
            owner.run(stop.cancelled(), GRACE),
        );
        Ok(served?)
    }
}

async fn accept(mut listener: Listener, state: Arc<NodeState>, credentials: Credentials) {
    // One life of this node; cameras tell a restart of ours by it.
    let epoch = u64::try_from(clock::now().as_nanos()).unwrap_or(1);
    loop {
        let link = match listener.accept().await {
            Ok(link) => link,
            Err(error) => {
                tracing::error!(error = %tidegate_message::error_chain(&error), "no more nodes can connect");
                return;
            }
        };
        let (node, own) = (state.clone(), credentials.clone());
        state.tasks.spawn("node link", async move {
            let peer = link.peer().clone();
            if let Err(error) = welcome(node, link, &own, epoch).await {
                let code = error.code();
                tracing::warn!(%peer, %code, error = error.chain(), "link not served");
            }
        });
    }
}

/// Sends an uplink its share next to cameras again and again, for as long as it is served.
async fn tell_share(node: &NodeState, link: &Link) -> Infallible {
    struct Counted<'a>(&'a NodeState);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.shares().uplink_left();
        }
    }
    node.shares().uplink_came();
    let _counted = Counted(node);
    let mut ticks = tokio::time::interval(SHARES_TOLD_EVERY);
    loop {
        ticks.tick().await;
        let share = node.shares().of_uplink(clock::now());
        // One that is not renewed expires. A link that is down is noticed where it is read.
        if let Some(share) = share {
            let _ = link.send(share).await;
        }
    }
}

/// Hears a camera's or an uplink's introduction, answers it, and serves.
async fn welcome(
    node: Arc<NodeState>,
    link: Link,
    credentials: &Credentials,
    epoch: u64,
) -> Result<(), ApiError> {
    let peer = link.peer().clone();
    let mut carrier = Carrier::Link(link.clone());
    let refuse = |code: Code, text: String| ApiError::new(code, text);
    let hello = match tokio::time::timeout(HELLO_MAX, carrier.recv()).await {
        Ok(Ok(Incoming::Record(Record::Hello(hello)))) => hello,
        Ok(Ok(_)) => {
            return Err(refuse(Code::LINK_PROTOCOL, "it did not introduce itself first".into()));
        }
        Ok(Err(Down { why })) => return Err(refuse(Code::LINK_DOWN, why)),
        Err(_) => return Err(refuse(Code::LINK_PROTOCOL, "it did not introduce itself".into())),
    };
    if hello.role == Role::Uplink && peer.kind != Kind::Node {
        let text = format!("the certificate of {peer} is not a node's, which an uplink needs");
        return turn_away(&carrier, refuse(Code::IDENTITY_REFUSED, text)).await;
    }
    let announce = match hello.role {
        Role::Uplink => None,
        Role::Camera | Role::Edge => match introduced(&peer, hello.camera) {
            Ok(announce) => announce,
            Err(error) => return turn_away(&carrier, error).await,
        },
    };
    let welcome = Welcome {
        minor: MINOR,
        node: credentials.identity().node,
        epoch,
        boot: BootId(tidegate_sys::clock::boot_id().unwrap_or_default()),
        features: Features::KNOWN,
        now: clock::now(),
    };
    let down = |Down { why }| refuse(Code::LINK_DOWN, why);
    let stop = node.stop.clone();
    let identity = Identity::of_peer(&peer, Some(link.peer_address().ip()));
    let Some(announce) = announce else {
        carrier.send(welcome.into()).await.map_err(down)?;
        return tokio::select! {
            served = node.uplinks.serve(&link, &identity, &stop), if hello.role == Role::Uplink => {
                match served {
                    Err(error) => turn_away(&carrier, error).await,
                    Ok(()) => {
                        link.close(0, "the node stops, or a newer link has taken over");
                        Ok(())
                    }
                }
            }
            never = tell_share(&node, &link), if hello.role == Role::Uplink => match never {},
            probed = probed(&mut carrier, &stop), if hello.role != Role::Uplink => probed,
            Revoked { reason, .. } = node.access.revocations.revoked(&peer.serial) => {
                let text = format!("the certificate of {peer} was revoked: {reason}");
                link.close(1, &text);
                Err(refuse(Code::IDENTITY_REVOKED, text))
            }
        };
    };
    let target = Target::Camera(announce.name.as_str());
    if let Err(error) = node.access.may("link", &identity, Action::Publish, target) {
        return turn_away(&carrier, error).await;
    }
    let owner = Owner::new(&identity, &announce.name);
    let may = node.own.refuse(&announce.name);
    if let Err(error) = may.and_then(|()| node.cameras.may_attach(&announce.name, owner)) {
        return turn_away(&carrier, error).await;
    }
    carrier.send(welcome.into()).await.map_err(down)?;
    let (access, name) = (node.access.clone(), announce.name.clone());
    let target = Target::Camera(name.as_str());
    let over = stop.child_token();
    let mut serving = pin!(serve::serve(node, carrier, announce, owner, hello.epoch, &over));
    let served = tokio::select! {
        served = &mut serving => served,
        error = access.lost("link", &identity, Action::Publish, target) => {
            // To its end: the camera is offline then, and its subscribers hear of it.
            over.cancel();
            serving.await.and(Err(error))
        }
    };
    match &served {
        Err(error) if error.code() == Code::IDENTITY_REVOKED => link.close(1, error.message()),
        _ => link.close(0, "the node stops, or a newer link has taken over"),
    }
    served
}

/// Serves a link that offers no camera until it closes: `characterize --link` measures with frames of no transfer, which the
/// link itself acknowledges.
async fn probed(carrier: &mut Carrier, stop: &CancellationToken) -> Result<(), ApiError> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            incoming = carrier.recv() => if incoming.is_err() { return Ok(()) },
        }
    }
}

/// The camera that a peer says it is, if its certificate lets it; none if it offers none.
fn introduced(
    peer: &tidegate_identity::pki::PeerIdentity,
    announce: Option<CameraAnnounce>,
) -> Result<Option<CameraAnnounce>, ApiError> {
    let refuse = |text: String| Err(ApiError::new(Code::IDENTITY_REFUSED, text));
    if peer.kind != Kind::Camera {
        return refuse(format!("the certificate of {peer} is not a camera's"));
    }
    match announce {
        Some(announce) if announce.name.as_str() == peer.name => Ok(Some(announce)),
        Some(announce) => refuse(format!(
            "the certificate of {peer} does not allow it to be camera {}",
            announce.name
        )),
        None => Ok(None),
    }
}

/// Tells a peer why it is not served.
async fn turn_away(carrier: &Carrier, error: ApiError) -> Result<(), ApiError> {
    // The peer may be gone already; then there is no one to notify.
    let _ = carrier.send(Refused::new(error.code(), error.chain()).into()).await;
    // Time for the record to leave before the link is dropped with its last handle.
    tokio::time::sleep(Duration::from_millis(200)).await;
    Err(error)
}

#[cfg(test)]
mod tests;

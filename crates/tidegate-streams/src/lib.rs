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
mod links;
mod own;
mod rhythm;
mod serve;
mod session;
mod shares;
mod stream;
mod verdict;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use tidegate_api::SubscriptionId;
use tidegate_camera::{
    camera::{self, CameraSettings},
    frame_log::FrameLogSettings,
};
use tidegate_frame::{coordinator::CoordinatorConfig, table::TableError};
use tidegate_identity::{
    access::Access,
    pki::{Credentials, PkiError},
};
use tidegate_link::{medium::Medium, roles::Serve};
use tidegate_message::Code;
use tidegate_process::{
    clock,
    tasks::{self, Tasks},
};
use tidegate_rpc::{Admin, Detection, Frames, Plain, Router, ServerConfig, ServerError};
use tidegate_wire::{NodeId, TransferHints};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::own::{CAMERAS_MAX, OwnCamera};
use self::{cameras::Cameras, frames::Live, hosted::Hosted, own::OwnNames, shares::Shares};

/// How long tasks may take to end after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// The options of an edge node.
#[derive(Clone)]
pub struct NodeSettings {
    /// Where the API listens; port 0 takes a free one.
    pub api_listen: SocketAddr,
    /// The node's certificate.
    pub credentials: Credentials,
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
}

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
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
            Self::Api(_) => Code::CONFIG_INVALID,
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
    server: tidegate_rpc::Server,
    state: Arc<NodeState>,
    tasks: tasks::Owner,
    node_key: NodeId,
    cameras: watch::Receiver<Vec<OwnCamera>>,
    stop: CancellationToken,
    /// Services that wait for the node's frames.
    served: Vec<oneshot::Sender<Arc<dyn Frames>>>,
}

impl Node {
    /// Listens for calls of the API.
    ///
    /// # Errors
    /// [`NodeError`], which names the address.
    #[boxed]
    pub async fn bind(settings: NodeSettings) -> Result<Self, NodeError> {
        let NodeSettings {
            api_listen,
            credentials,
            stream_log,
            hosted,
            cameras,
            hints,
            medium,
            mut access,
        } = settings;
        // Clients accepted by these credentials are judged by their lists from then on.
        access.revocations = credentials.revocations().clone();
        let tables = Arc::new(camera::tables(hosted.tables.as_deref())?);
        let server = tidegate_rpc::Server::bind(ServerConfig {
            listen: api_listen,
            node: credentials.identity().name.clone(),
            frame_bytes_max: hosted.limits.bytes_max as u64,
            tls: Arc::new(credentials.server_tls(tidegate_rpc::server::ALPN)?),
            tls_open: Arc::new(credentials.server_tls_open(tidegate_rpc::server::ALPN)?),
            access: access.clone(),
            web: Router::new(),
            web_public: Router::new(),
        })
        .await?;
        let (handle, tasks) = tasks::tasks();
        let (stop, shares) = (CancellationToken::new(), Shares::new(clock::now(), tables, medium));
        let state = NodeState::new(hosted, stream_log, hints, shares, access, handle, stop.clone());
        // Before the first link comes.
        state.own.reserve(&cameras.borrow());
        let node_key = credentials.identity().node;
        Ok(Self { server, state, tasks, node_key, cameras, stop, served: Vec::new() })
    }

    /// Serves links of cameras, and those that offer none: the roles [`Role::Camera`](tidegate_wire::Role) and `Edge`.
    pub fn links(&self) -> Arc<dyn Serve> {
        self.state.clone()
    }

    /// How the medium is divided between cameras and uplinks.
    pub fn medium(&self) -> Arc<dyn Medium> {
        self.state.clone()
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

    /// Serves until `stop`, and operators by `admin`.
    ///
    /// # Errors
    /// [`NodeError`] if the API fails as a whole.
    #[boxed]
    pub async fn serve(
        self,
        admin: Arc<dyn Admin>,
        stop: CancellationToken,
    ) -> Result<(), NodeError> {
        let Self { server, state, tasks, node_key, cameras, stop: own_stop, served } = self;
        for service in served {
            // One that waits no longer needs none.
            let _ = service.send(state.clone());
        }
        state.tasks.spawn("cameras", own::run(state.clone(), node_key, cameras));
        let stopping = async {
            stop.cancelled().await;
            own_stop.cancel();
        };
        let (served, (), ()) = tokio::join!(
            server.serve(state, admin, stop.clone()),
            stopping,
            tasks.run(stop.cancelled(), GRACE),
        );
        Ok(served?)
    }
}

#[cfg(test)]
mod tests;

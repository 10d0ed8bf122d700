//! Streams of frames: cameras come in over links, applications subscribe over the API.
//!
//! ```text
//!  link ─▶ serve ─▶ stream log ◀─ session ─▶ API           one stream for each transfer,
//!           │           │                                  one session for each subscription
//!           └─ notices ─┴──────▶
//! ```
//!
//! Always true: a camera or a subscriber that dies ends its own task and nothing else; streams that stop
//! say so to their sessions first.

mod cameras;
mod elsewhere;
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
    sync::{Arc, Mutex, MutexGuard, OnceLock, Weak},
    time::Duration,
};

use tidegate_api::SubscriptionId;
use tidegate_camera::{
    camera::{self, CameraSettings},
    frame_log::FrameLogSettings,
};
use tidegate_frame::{coordinator::CoordinatorConfig, table::TableError};
use tidegate_identity::access::Access;
use tidegate_link::{medium::Medium, roles::Serve};
use tidegate_process::{
    clock,
    tasks::{self, Tasks},
};
use tidegate_wire::{NodeId, TransferHints};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{cameras::Cameras, frames::Live, hosted::Hosted, own::OwnNames, shares::Shares};
pub use self::{
    elsewhere::{Elsewhere, Reached},
    own::{CAMERAS_MAX, OwnCamera},
};

/// How long tasks may take to end after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// The options of a node's streams.
#[derive(Clone)]
pub struct StreamsSettings {
    /// The node, as its certificate names it.
    pub node: NodeId,
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

/// Everything a node shares between its tasks.
pub(crate) struct NodeState {
    cameras: Cameras,
    /// Where cameras are that are not here; nothing is known of them while none was given.
    elsewhere: OnceLock<Arc<Elsewhere>>,
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
            elsewhere: OnceLock::new(),
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

/// The streams of a node, which begin with [`run`](Self::run).
pub struct Streams {
    state: Arc<NodeState>,
    tasks: tasks::Owner,
    node: NodeId,
    cameras: watch::Receiver<Vec<OwnCamera>>,
    stop: CancellationToken,
}

impl Streams {
    /// Streams that do not run yet.
    ///
    /// # Errors
    /// [`TableError`] if a characterization table cannot be read.
    pub fn new(settings: StreamsSettings) -> Result<Self, TableError> {
        let StreamsSettings { node, stream_log, hosted, cameras, hints, medium, access } = settings;
        let tables = Arc::new(camera::tables(hosted.tables.as_deref())?);
        let (handle, tasks) = tasks::tasks();
        let (stop, shares) = (CancellationToken::new(), Shares::new(clock::now(), tables, medium));
        let state = NodeState::new(hosted, stream_log, hints, shares, access, handle, stop.clone());
        // Before the first link comes.
        state.own.reserve(&cameras.borrow());
        Ok(Self { state, tasks, node, cameras, stop })
    }

    /// Serves links of cameras, and those that offer none: the roles [`Role::Camera`](tidegate_wire::Role) and `Edge`.
    pub fn links(&self) -> Arc<dyn Serve> {
        self.state.clone()
    }

    /// How the medium is divided between cameras and uplinks.
    pub fn medium(&self) -> Arc<dyn Medium> {
        self.state.clone()
    }

    /// The cameras, for the API and other services.
    pub fn cameras(&self) -> Arc<dyn tidegate_rpc::Cameras> {
        self.state.clone()
    }

    /// The cameras that this node reaches.
    pub fn reached(&self) -> Reached {
        Reached::new(&self.state)
    }

    /// Has calls for a camera that this node does not reach be answered with the node that does. The first one to be given stays.
    pub fn look_elsewhere(&self, elsewhere: Arc<Elsewhere>) {
        // A second one would be of the same fabric.
        let _ = self.state.elsewhere.set(elsewhere);
    }

    /// Runs the node's own cameras and all streams until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let Self { state, tasks, node, cameras, stop: own_stop } = self;
        state.tasks.spawn("cameras", own::run(state.clone(), node, cameras));
        let stopping = async {
            stop.cancelled().await;
            own_stop.cancel();
        };
        tokio::join!(stopping, tasks.run(stop.cancelled(), GRACE));
    }
}

#[cfg(test)]
mod tests;

//! Many nodes as one: this node as a member of a fabric.
//!
//! ```text
//!  MemberLinks, Dialler ─▶ links ─▶ driver: Members, Offered, Waiting, Clients (tidegate-fabric) ─▶ topic links, Seen
//! ```
//!
//! Members know of each other by records that each seals with its key and that spread over their links; nothing is asked of a leader. Each
//! tells the others which filters its clients have, and they send what matches, in one hop. Cameras at any member are found at each.
//! The state machines are those of `tidegate-fabric`; here are the tasks around them.

mod audience;
mod discover;
mod driver;
mod keep;
mod links;
mod report;
mod seal;
mod seen;
mod topics;

use std::{path::PathBuf, sync::Arc};

use tidegate_api::{ApiError, Left, Place};
use tidegate_bus::Bus;
use tidegate_fabric::{
    clients::Clients,
    members::{ForgetError, MemberSettings, Members},
};
use tidegate_identity::{
    access::Access,
    auth::audit::{Entry, Outcome},
    pki::Credentials,
};
use tidegate_link::{link::LinkSettings, roles::Serve};
use tidegate_message::{CameraName, Code, Identity, IdentityKind, error_chain};
use tidegate_process::{clock, random::random_bytes};
use tidegate_wire::NodeId;
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

pub use tidegate_fabric::members::OwnSettings;

pub use self::{
    discover::DiscoverSettings,
    report::Reports,
    seal::Join,
    seen::{Seen, SeenMember},
    topics::{PEERS, TopicLink, TopicLinks, TopicPeer},
};
use self::{
    discover::Discovery,
    driver::{Command, Driver},
    keep::Kept,
    links::{Dialler, Hub, MemberLinks},
    seal::Keys,
};

/// News of links on their way to the driver; links wait while there are more.
const NEWS_MAX: usize = 256;
/// Commands that wait; whoever gives one more waits.
const COMMANDS_MAX: usize = 16;

/// The settings of a member.
#[derive(Clone)]
pub struct NodesSettings {
    /// Its identity, and the nodes that it dials.
    pub member: MemberSettings,
    /// Owners of each bucket, where there are as many members.
    pub replicas: usize,
    /// The nodes that may be members.
    pub join: Join,
    /// The folder in which its state is kept.
    pub folder: PathBuf,
    /// As other links of this node have it; how soon a silent one ends is the members' own.
    pub link: LinkSettings,
    /// Where it names itself to the local networks and hears of others; none if it does neither.
    pub discover: Option<DiscoverSettings>,
}

/// The rest of the node, as a member uses it.
pub struct NodePorts {
    /// How others know this node.
    pub credentials: Credentials,
    /// The node's broker; none where no MQTT is served.
    pub bus: Option<Bus>,
    /// Carries messages to other members; none where no MQTT is served.
    pub topics: Option<Arc<dyn TopicLinks>>,
    /// The audit log.
    pub access: Access,
}

/// This node as a member. It ends with [`Nodes::stop`]; dropped, it ends without its last state on the disk.
pub struct Nodes {
    links: Arc<MemberLinks>,
    commands: mpsc::Sender<Command>,
    seen: watch::Receiver<Arc<Seen>>,
    bus: Option<Bus>,
    replicas: usize,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Nodes {
    /// Begins to be a member.
    ///
    /// # Errors
    /// [`Code::IDENTITY_REFUSED`] if the node's key signs no records, [`Code::INTERNAL`] if the system gives no random bytes.
    pub fn start(settings: NodesSettings, ports: NodePorts) -> Result<Self, ApiError> {
        let NodesSettings { member, replicas, join, folder, link, discover } = settings;
        let NodePorts { credentials, bus, topics, access } = ports;
        credentials.seal(b"").map_err(|error| {
            let text = "this node cannot be a member of a fabric";
            ApiError::new(Code::IDENTITY_REFUSED, text).caused_by(error_chain(&error))
        })?;
        let draw = random_bytes().map(u64::from_ne_bytes).map_err(|error| {
            let text = "the system gives no random bytes";
            ApiError::new(Code::INTERNAL, text).caused_by(error)
        })?;
        let (kept, me) = (Kept::new(&folder), member.me);
        let saved = kept.read().unwrap_or_else(|error| {
            let error = error_chain(&error);
            tracing::warn!(
                error,
                "the state of the fabric is not read: this node takes a new start"
            );
            None
        });
        let keys = Keys { credentials: credentials.clone(), join: join.clone() };
        let wall_seconds =
            u64::try_from(tidegate_sys::clock::realtime_nanos()).unwrap_or(0) / 1_000_000_000;
        let members = Members::new(clock::now(), member, Box::new(keys), saved, draw, wall_seconds);
        let (to_driver, inbox) = mpsc::channel(NEWS_MAX);
        let (commands, ordered) = mpsc::channel(COMMANDS_MAX);
        let (shown, seen) = watch::channel(Arc::default());
        let (room, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let hub = Hub::new(to_driver, room.clone());
        if let Some(bus) = &bus {
            tell_in_sys(bus, seen.clone());
        }
        let own_bus = bus.clone();
        let driver = Driver {
            members,
            clients: Clients::new(me, draw),
            join,
            kept,
            credentials: credentials.clone(),
            dialler: Dialler { hub: hub.clone(), credentials, settings: link },
            room,
            bus,
            topic_links: topics,
            shown,
            audit: Box::new(move |what, rule| {
                let who = Identity::new(IdentityKind::Internal, "fabric", "fabric");
                access.audit.tell(|| Entry {
                    what: what.to_owned(),
                    rule,
                    ..Entry::of(tidegate_identity::auth::now().wall, "fabric", &who, Outcome::Done)
                });
            }),
            state: driver::State::default(),
        };
        let discovery = discover.map(|settings| Discovery::start(settings, me));
        let task = tokio::spawn(driver.run(inbox, ordered, discovery, stop.clone()));
        Ok(Self {
            links: Arc::new(MemberLinks { hub, me }),
            commands,
            seen,
            bus: own_bus,
            replicas,
            stop,
            task,
        })
    }

    /// Serves the links of the role [`Member`](tidegate_wire::Role::Member).
    pub fn links(&self) -> Arc<dyn Serve> {
        self.links.clone()
    }

    /// The fabric as this node sees it now, and after each change.
    pub fn seen(&self) -> watch::Receiver<Arc<Seen>> {
        self.seen.clone()
    }

    /// Where a camera is that another member has.
    pub fn elsewhere(&self) -> impl Fn(&CameraName) -> Option<Place> + Send + Sync + 'static {
        let seen = self.seen.clone();
        move |camera| {
            let seen = seen.borrow().clone();
            let place = seen.camera(camera)?;
            let is_here = seen.me().is_some_and(|me| me.record.name == place.node);
            (!is_here).then(|| place.clone())
        }
    }

    /// A handle by which it is told what to do.
    pub fn orders(&self) -> Orders {
        Orders { commands: self.commands.clone() }
    }

    /// The fabric as operators are shown it.
    pub fn reports(&self) -> Reports {
        let (seen, orders, bus) = (self.seen.clone(), self.orders(), self.bus.clone());
        Reports { seen, orders, bus, replicas: self.replicas }
    }

    /// Ends it: links end, and its state is on the disk.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task of the fabric failed");
        }
    }
}

/// Tells a member what to do.
#[derive(Clone, Debug)]
pub struct Orders {
    commands: mpsc::Sender<Command>,
}

impl Orders {
    /// These cameras are reached by this node.
    pub async fn set_cameras(&self, cameras: Vec<CameraName>) {
        // A member that has ended tells none.
        let _ = self.commands.send(Command::Cameras(cameras)).await;
    }

    /// This node says otherwise of itself.
    ///
    /// # Errors
    /// [`Code::LIMIT_REACHED`] while as many orders wait as may.
    pub fn try_set_own(&self, own: OwnSettings) -> Result<(), ApiError> {
        use mpsc::error::TrySendError;
        match self.commands.try_send(Command::Own(Box::new(own))) {
            // A member that has ended says nothing of itself.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(_)) => {
                let text = format!(
                    "{COMMANDS_MAX} orders wait for the fabric, and no more may: reload again"
                );
                Err(ApiError::new(Code::LIMIT_REACHED, text))
            }
        }
    }

    /// All members are to forget one.
    ///
    /// # Errors
    /// [`Code::MEMBER_UNKNOWN`] or [`Code::MEMBER_HERE`], and [`Code::FABRIC_OFF`] once this one has ended.
    pub async fn forget(&self, node: NodeId) -> Result<(), ApiError> {
        let (answer, answered) = oneshot::channel();
        self.order(Command::Forget(node, answer)).await?;
        match answered.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let code = match error {
                    ForgetError::Unknown(_) => Code::MEMBER_UNKNOWN,
                    ForgetError::Myself(_) | ForgetError::Linked(_) => Code::MEMBER_HERE,
                };
                Err(ApiError::new(code, error.to_string()))
            }
            Err(_) => Err(ended()),
        }
    }

    /// This node leaves: it sends what waits for the members that it reaches, for ten seconds at most, and is done once they have its word, or
    /// five seconds later.
    ///
    /// # Errors
    /// [`Code::FABRIC_OFF`] once this one has ended.
    pub async fn leave(&self) -> Result<Left, ApiError> {
        let (answer, answered) = oneshot::channel();
        self.order(Command::Leave(answer)).await?;
        answered.await.map_err(|_| ended())
    }

    async fn order(&self, command: Command) -> Result<(), ApiError> {
        self.commands.send(command).await.map_err(|_| ended())
    }
}

fn ended() -> ApiError {
    ApiError::new(Code::FABRIC_OFF, "this node is no longer a member: it stops")
}

/// Publishes counts in `$SYS/broker/fabric/`.
fn tell_in_sys(bus: &Bus, seen: watch::Receiver<Arc<Seen>>) {
    bus.tell_in_sys("fabric", move || {
        let is_over = seen.has_changed().is_err();
        let seen = seen.borrow().clone();
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let doubted = seen
            .members
            .iter()
            .filter(|member| member.presence == tidegate_fabric::members::Presence::Doubted);
        (!is_over).then(|| {
            vec![
                ("members", count(seen.counts.present)),
                ("gone", count(seen.counts.gone)),
                ("doubted", count(doubted.count())),
                ("links", count(seen.counts.links)),
                ("filters", count(seen.offered)),
                ("records/taken", seen.counts.taken),
                ("records/refused", seen.counts.refused),
                ("suback/missed", seen.missed),
                ("problems", count(seen.problems.len())),
            ]
        })
    });
}

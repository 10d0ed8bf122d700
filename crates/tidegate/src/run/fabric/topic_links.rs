//! The topic links of a member, behind which uplinks are.

use std::sync::Arc;

use tidegate_api::ApiError;
use tidegate_bus::{Bus, Overflow, SessionConfig};
use tidegate_config::Config;
use tidegate_identity::pki::Credentials;
use tidegate_message::{Code, Identity, IdentityKind};
use tidegate_nodes::{TopicLink, TopicLinks, TopicPeer};
use tidegate_process::threads::{TaskThread, Turns};
use tidegate_uplinks::{
    Course, FetchLinks, Fetching, Home, Peer, Reach, Receivers, Topics, Uplink, UplinkSettings,
    Visits,
};
use tidegate_wire::NodeId;
use tokio::sync::watch;

use crate::run::{broker::usual_session, link_settings, node_name::node_of_paths};

/// Carries this node's messages to other members, on one thread, and fetches what they have for it where they do not dial it.
pub(super) struct MemberUplinks {
    /// Messages of other members come in by them.
    receivers: Arc<Receivers>,
    /// The links of members that fetch.
    fetches: Arc<FetchLinks>,
    home: Home,
    session: SessionConfig,
    /// Filters of the topics whose messages travel at once.
    critical: Vec<String>,
    thread: TaskThread,
}

impl MemberUplinks {
    /// Those of the node that `config` describes, whose broker is behind `bus`.
    ///
    /// # Errors
    /// [`ApiError`]: `fabric.critical` has no filters, the name of the node among those that a message passed is not kept, or there is no thread.
    pub(super) fn new(
        config: &Config,
        bus: &Bus,
        credentials: &Credentials,
        receivers: Arc<Receivers>,
    ) -> Result<Self, ApiError> {
        let home = Home {
            node: node_of_paths(config, false)?.into(),
            bus: bus.clone(),
            credentials: credentials.clone(),
            link: link_settings(config),
        };
        let usual = usual_session(config)?;
        let overflow = match config.mqtt.spill_bytes.0 {
            0 => usual.overflow,
            _ => Overflow::Spill,
        };
        let thread = TaskThread::start("members".to_owned(), Turns::Usual).map_err(|error| {
            ApiError::new(
                Code::INTERNAL,
                "the system gives no thread for messages to other members",
            )
            .caused_by(error)
        })?;
        let session = SessionConfig { overflow, overflow_qos0: overflow, ..usual };
        let critical = super::critical(config)?;
        let fetches = Arc::default();
        receivers.await_members();
        Ok(Self { receivers, fetches, home, session, critical, thread })
    }

    /// Serves the links of the role [`Fetch`](tidegate_wire::Role::Fetch).
    pub(super) fn fetches(&self) -> Arc<FetchLinks> {
        self.fetches.clone()
    }
}

impl TopicLinks for MemberUplinks {
    fn open(self: Arc<Self>, peer: TopicPeer) -> Box<dyn TopicLink> {
        let TopicPeer { node, name, is_leaf } = peer;
        self.receivers.set_leaf(node, is_leaf);
        let identity = Identity::new(IdentityKind::Node, &name, "");
        let peer = Peer { is_leaf, ..Peer::new(node, identity) };
        let settings = UplinkSettings {
            critical: self.critical.clone(),
            ..UplinkSettings::to_member(peer, &self.session)
        };
        // Until there are others, those that its session has from before.
        let (topics, new_topics) = watch::channel(Topics::default());
        let (reach, new_reach) = watch::channel(Reach::default());
        let visits = self.fetches.of(node);
        let course = Course { topics: new_topics, reach: new_reach, visits: visits.clone() };
        let retry_max = settings.retry_max;
        let uplink = Uplink::start_on(&self.thread, settings, self.home.clone(), course);
        let fetching = Fetching::start(node, self.receivers.clone(), &self.home, retry_max);
        let fetches = self.fetches.clone();
        Box::new(MemberUplink { node, topics, reach, uplink, visits, fetching, fetches })
    }
}

struct MemberUplink {
    node: NodeId,
    visits: Visits,
    fetching: Fetching,
    fetches: Arc<FetchLinks>,
    topics: watch::Sender<Topics>,
    reach: watch::Sender<Reach>,
    uplink: Uplink,
}

impl TopicLink for MemberUplink {
    fn set(&mut self, generation: u64, filters: Arc<[Arc<str>]>) {
        self.topics.send_replace(Topics { generation, filters });
    }

    fn reach(&mut self, addresses: Vec<String>) {
        self.reach.send_if_modified(|reach| {
            let reached = Reach { addresses: addresses.into() };
            let is_other = *reach != reached;
            *reach = reached;
            is_other
        });
    }

    fn fetch(&mut self, addresses: Vec<String>) {
        self.fetching.reach(Reach { addresses: addresses.into() });
    }

    fn is_fetched(&self) -> bool {
        self.visits.is_visited()
    }

    fn held(&self) -> watch::Receiver<u64> {
        self.uplink.held()
    }

    fn forget(self: Box<Self>) {
        self.fetches.forget(self.node);
        self.uplink.forget();
    }
}

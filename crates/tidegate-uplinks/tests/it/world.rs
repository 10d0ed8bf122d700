//! A site of nodes, each with a broker in memory and a listener for links.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tempfile::TempDir;
use tidegate_bus::{
    Attached, Attachment, Bus, Publication, SessionConfig,
    memory::{self, Received},
};
use tidegate_compress::EncoderConfig;
use tidegate_identity::pki::{self, Credentials, InitRequest};
use tidegate_link::{
    link::{LinkSettings, Transport},
    medium::Unshared,
    roles::Links,
};
use tidegate_message::{Identity, IdentityKind};
use tidegate_process::threads::{TaskThread, Turns};
use tidegate_uplinks::{
    Course, FetchLinks, Home, Peer, Reach, Receivers, Topics, Uplink, UplinkLinks, UplinkSettings,
    Visits,
};
use tidegate_wire::{
    Role,
    mqtt::{PublishProperties, QoS, ReasonCode},
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::poll_async::poll;

/// Longest wait for something that comes.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// Certificates of one site.
pub(crate) struct Site(TempDir);

impl Site {
    pub(crate) fn new(nodes: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let nodes = nodes.iter().map(|name| (*name).to_owned()).collect();
        pki::init(folder.path(), &InitRequest { nodes, ..InitRequest::default() })
            .expect("certificates");
        Self(folder)
    }

    pub(crate) fn credentials(&self, name: &str) -> Credentials {
        pki::load(self.0.path(), name).expect("a certificate")
    }
}

/// A node whose broker outlives what serves links.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) broker: memory::Node,
    pub(crate) credentials: Credentials,
    /// Of uplinks to other members.
    thread: TaskThread,
    /// Links by which members fetch what is for them.
    pub(crate) fetches: Arc<FetchLinks>,
}

impl Node {
    pub(crate) fn new(site: &Site, name: &'static str) -> Self {
        Self::with(site, name, memory::Node::default())
    }

    pub(crate) fn with(site: &Site, name: &'static str, broker: memory::Node) -> Self {
        let thread = TaskThread::start("members".to_owned(), Turns::Usual).expect("a thread");
        let (credentials, fetches) = (site.credentials(name), Arc::default());
        Self { name, broker, credentials, thread, fetches }
    }

    pub(crate) fn bus(&self) -> Bus {
        self.broker.bus()
    }

    /// Serves links from now on, with no state of an uplink.
    pub(crate) async fn serve(&self, at: SocketAddr) -> Serving {
        let receivers = Arc::new(Receivers::new(1 << 30));
        receivers.serve_by(self.bus(), self.name);
        // The port of the one before may be let go of a moment later.
        let bound = poll(LONGEST, async || {
            let links = Links::bind(
                at,
                self.credentials.clone(),
                LinkSettings::default(),
                Default::default(),
            );
            links.await.ok()
        });
        let mut links = bound.await.expect("the port is free");
        let service = UplinkLinks::new(receivers.clone(), Arc::new(Unshared));
        links.serve(Role::Uplink, Arc::new(service));
        links.serve(Role::Fetch, self.fetches.clone());
        let (address, stop) = (links.local_address(), CancellationToken::new());
        let task = tokio::spawn(links.run(stop.clone()));
        Serving { address, receivers, stop, task }
    }

    pub(crate) fn home(&self) -> Home {
        Home {
            node: self.name.into(),
            bus: self.bus(),
            credentials: self.credentials.clone(),
            link: LinkSettings::default(),
        }
    }

    pub(crate) fn uplink(&self, settings: UplinkSettings, topics: Topics) -> Running {
        let reach = Reach::at([&*settings.to]);
        Running::begin(topics, reach, Visits::default(), |course| {
            Uplink::start(settings, self.home(), course).expect("a thread")
        })
    }

    pub(crate) fn peer(&self, idle_max: Duration) -> Peer {
        let identity = Identity::new(IdentityKind::Node, self.name, "");
        Peer { idle_max, ..Peer::new(self.credentials.identity().node, identity) }
    }

    /// An uplink to another member of the fabric.
    pub(crate) fn member(&self, settings: UplinkSettings, topics: Topics, reach: Reach) -> Running {
        let visits = settings.peer.as_ref().map(|peer| self.fetches.of(peer.node));
        Running::begin(topics, reach, visits.unwrap_or_default(), |course| {
            Uplink::start_on(&self.thread, settings, self.home(), course)
        })
    }

    pub(crate) async fn client(&self, name: &str, filters: &[&str]) -> Client {
        let identity = Identity::new(IdentityKind::User, name, name);
        let attachment = Attachment {
            session: SessionConfig { queue_messages_max: 1 << 20, ..SessionConfig::default() },
            ..Attachment::new(identity, name)
        };
        let attachment = filters.iter().fold(attachment, |all, filter| all.subscribe(*filter));
        Client(self.bus().attach(attachment).await.expect("the client is let in"))
    }
}

/// The listener of a node and its receivers, until it is stopped.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    pub(crate) receivers: Arc<Receivers>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Serving {
    /// Ends as a killed process does, as far as the other end sees: all links go, and all state of uplinks.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        self.stop.cancel();
    }
}

/// An uplink and its topics.
pub(crate) struct Running {
    pub(crate) topics: watch::Sender<Topics>,
    pub(crate) reach: watch::Sender<Reach>,
    pub(crate) visits: Visits,
    pub(crate) uplink: Uplink,
}

impl Running {
    fn begin(
        topics: Topics,
        reach: Reach,
        visits: Visits,
        begin: impl FnOnce(Course) -> Uplink,
    ) -> Self {
        let ((topics, new_topics), (reach, new_reach)) =
            (watch::channel(topics), watch::channel(reach));
        let uplink = begin(Course { topics: new_topics, reach: new_reach, visits: visits.clone() });
        Self { topics, reach, visits, uplink }
    }

    /// Has it carry these from now on, and waits until its broker has subscribed for them.
    pub(crate) async fn set(&self, generation: u64, filters: &[&str]) {
        self.topics.send_replace(Topics { generation, ..Topics::fixed(filters) });
        self.held(generation).await;
    }

    pub(crate) async fn held(&self, generation: u64) {
        let mut held = self.uplink.held();
        let held = tokio::time::timeout(LONGEST, held.wait_for(|held| *held >= generation));
        held.await.expect("it subscribes").expect("it runs");
    }
}

/// A client of a node's broker.
pub(crate) struct Client(Attached);

impl Client {
    pub(crate) async fn publish(&mut self, topic: &str, payload: &str) {
        let (payload, qos) = (payload.as_bytes(), QoS::AtLeastOnce);
        let message = Publication { topic, payload, qos, ..Publication::default() };
        let answer = self.0.publisher.send(&message).await.expect("it is taken");
        assert!(
            [ReasonCode::SUCCESS, ReasonCode::NO_MATCHING_SUBSCRIBERS].contains(&answer.reason),
            "{answer:?}"
        );
    }

    /// The next message, which must come; it is acknowledged.
    pub(crate) async fn next(&mut self) -> Received {
        let next = async {
            loop {
                if let Some(message) = self.0.deliveries.next_message().expect("the broker serves")
                {
                    let received = Received {
                        topic: message.topic().to_owned(),
                        payload: message.payload().into_owned(),
                        forwarded: message.forwarded().to_vec(),
                    };
                    let id = message.packet_id();
                    self.0.deliveries.acknowledge(id);
                    return received;
                }
                self.0.deliveries.ready().await.expect("the broker serves");
            }
        };
        tokio::time::timeout(LONGEST, next).await.expect("a message comes")
    }

    pub(crate) async fn next_topic(&mut self) -> String {
        self.next().await.topic
    }
}

/// The name of a message.
pub(crate) fn name_of(message: &Received) -> Option<String> {
    let properties = PublishProperties::decode(&message.forwarded).expect("properties");
    let mut names = properties.user_properties().filter(|(name, _)| *name == "tidegate-id");
    names.next().map(|(_, value)| value.to_owned())
}

pub(crate) fn settings(to: SocketAddr) -> UplinkSettings {
    UplinkSettings {
        name: "up".to_owned(),
        to: to.to_string(),
        transport: Transport::Tcp,
        topics: Vec::new(),
        critical: Vec::new(),
        critical_bytes_per_second: 1 << 20,
        batch_age: Duration::from_millis(5),
        batch_bytes: 64 << 10,
        window_bytes_max: 1 << 20,
        flight_bytes_max: 1 << 20,
        encoder: EncoderConfig { state_bytes_max: 1 << 20, ..EncoderConfig::default() },
        names_messages: true,
        session: SessionConfig { queue_messages_max: 1 << 20, ..SessionConfig::default() },
        retry_max: Duration::from_millis(200),
        peer: None,
    }
}

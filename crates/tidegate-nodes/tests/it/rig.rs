//! A site of nodes, each with what a member needs and no more.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddrV4, TcpListener},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use tempfile::TempDir;
use tidegate_bus::memory;
use tidegate_fabric::members::{MemberSettings, OwnSettings, Presence};
use tidegate_identity::{
    access::Access,
    auth::audit::Audit,
    pki::{self, Credentials, InitRequest},
};
use tidegate_link::{
    introduce,
    link::{LinkSettings, Transport},
    roles::Links,
};
use tidegate_nodes::{
    DiscoverSettings, Join, NodePorts, Nodes, NodesSettings, Seen, SeenMember, TopicLink,
    TopicLinks, TopicPeer,
};
use tidegate_wire::Role;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// Longest wait for anything.
const LONGEST: Duration = Duration::from_secs(60);

/// The certificates of a site, and a folder for each node.
pub(crate) struct Site {
    folder: TempDir,
}

/// A node.
pub(crate) struct Rig {
    pub(crate) nodes: Nodes,
    pub(crate) address: String,
    pub(crate) credentials: Credentials,
    pub(crate) broker: memory::Node,
    pub(crate) topics: Arc<Carried>,
    folder: PathBuf,
    seen: watch::Receiver<Arc<Seen>>,
    stop: CancellationToken,
    _links: AbortOnDropHandle<()>,
}

impl Site {
    pub(crate) fn new(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let nodes = names.iter().map(|name| (*name).to_owned()).collect();
        pki::init(&folder.path().join("pki"), &InitRequest { nodes, ..InitRequest::default() })
            .expect("certificates");
        Self { folder }
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.folder.path().join("pki")
    }

    pub(crate) fn free_address(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("its address").to_string()
    }

    pub(crate) async fn start(&self, name: &str, seeds: &[String]) -> Rig {
        self.start_at(name, "127.0.0.1:0", seeds, Join::Certificate).await
    }

    /// Starts a node that knows no other, says no address of its own, and is named to the network of this machine, of this process alone.
    pub(crate) async fn start_unknown(&self, name: &str) -> Rig {
        let own = std::process::id().to_be_bytes();
        let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, own[2], own[3]), 7445);
        let broker = memory::Node::default();
        self.start_with(name, "127.0.0.1:0", &[], Join::Certificate, Some(group), broker, "").await
    }

    pub(crate) async fn start_at(
        &self,
        name: &str,
        address: &str,
        seeds: &[String],
        join: Join,
    ) -> Rig {
        self.start_with(name, address, seeds, join, None, memory::Node::default(), "").await
    }

    /// With a broker that has what a former process left there.
    pub(crate) async fn start_on(
        &self,
        name: &str,
        address: &str,
        seeds: &[String],
        broker: memory::Node,
    ) -> Rig {
        self.start_with(name, address, seeds, Join::Certificate, None, broker, "").await
    }

    /// A leaf of that relay.
    pub(crate) async fn start_via(&self, name: &str, seeds: &[String], via: &str) -> Rig {
        let (address, broker) = ("127.0.0.1:0", memory::Node::default());
        self.start_with(name, address, seeds, Join::Certificate, None, broker, via).await
    }

    #[expect(clippy::too_many_arguments, reason = "the ones above are for tests")]
    async fn start_with(
        &self,
        name: &str,
        address: &str,
        seeds: &[String],
        join: Join,
        discover: Option<SocketAddrV4>,
        broker: memory::Node,
        via: &str,
    ) -> Rig {
        let folder = self.folder.path().join(name);
        if !folder.exists() {
            copy(&self.pki(), &folder.join("pki"));
        }
        let credentials = pki::load(&folder.join("pki"), name).expect("credentials");
        let settings = LinkSettings::default();
        let address = address.parse().expect("an address");
        let mut links =
            Links::bind(address, credentials.clone(), settings.clone(), Audit::default())
                .await
                .expect("a port");
        let listen = links.local_address();
        let address = listen.to_string();
        let identity = credentials.identity();
        let topics = Arc::<Carried>::default();
        let settings = NodesSettings {
            member: MemberSettings {
                me: identity.node,
                name: identity.name.clone(),
                seeds: seeds.to_vec(),
                retry_max: Duration::from_secs(1),
                own: OwnSettings {
                    addresses: discover.is_none().then(|| address.clone()).into_iter().collect(),
                    api_addresses: vec!["192.0.2.1:7080".to_owned()],
                    via: via.to_owned(),
                    ..OwnSettings::default()
                },
            },
            replicas: 3,
            join,
            folder: folder.join("fabric"),
            link: settings,
            discover: discover.map(|group| DiscoverSettings { group, listen }),
        };
        let ports = NodePorts {
            credentials: credentials.clone(),
            bus: Some(broker.bus()),
            topics: Some(topics.clone()),
            access: Access::default(),
        };
        let nodes = Nodes::start(settings, ports).expect("a member");
        links.serve(Role::Member, nodes.links());
        let stop = CancellationToken::new();
        let running = AbortOnDropHandle::new(tokio::spawn(links.run(stop.clone())));
        let seen = nodes.seen();
        Rig { nodes, address, credentials, broker, topics, folder, seen, stop, _links: running }
    }
}

impl Rig {
    pub(crate) fn seen(&self) -> Arc<Seen> {
        self.seen.borrow().clone()
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.folder.join("pki")
    }

    /// The fabric as the node sees it once it is as expected.
    pub(crate) async fn until(&mut self, is_so: impl Fn(&Seen) -> bool) -> Arc<Seen> {
        let waiting = self.seen.wait_for(|seen| is_so(seen));
        let found =
            tokio::time::timeout(LONGEST, waiting).await.map(|seen| seen.expect("it runs").clone());
        found.unwrap_or_else(|_| panic!("it is never so: {:#?}", self.seen.borrow()))
    }

    /// A member once it is as expected.
    pub(crate) async fn until_of(
        &mut self,
        name: &str,
        is_so: impl Fn(&SeenMember) -> bool,
    ) -> SeenMember {
        let of = |seen: &Seen| seen.members.iter().find(|one| one.record.name == name).cloned();
        let seen = self.until(|seen| of(seen).is_some_and(|member| is_so(&member))).await;
        of(&seen).expect("it was there")
    }

    /// Why another node does not take a link of this one.
    pub(crate) async fn dialled_in_vain(&self, to: &str) -> String {
        let role = (Role::Member, 1);
        let settings = LinkSettings::default();
        match introduce::visit(to, &self.credentials, settings, Transport::Tcp, role).await {
            Ok(_) => "it is welcome".to_owned(),
            Err(error) => tidegate_message::error_chain(&error),
        }
    }

    pub(crate) async fn stop(self) {
        self.nodes.stop().await;
        self.stop.cancel();
    }
}

/// The names of the members that are here, in order.
pub(crate) fn names_here(seen: &Seen) -> Vec<&str> {
    let here = seen.members.iter().filter(|member| member.presence == Presence::Here);
    let mut names: Vec<&str> = here.map(|member| &*member.record.name).collect();
    names.sort_unstable();
    names
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("it is a folder") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// The orders of a node to carry messages, by the names of the others.
#[derive(Default)]
pub(crate) struct Carried {
    of: Mutex<BTreeMap<String, watch::Sender<Asked>>>,
    /// Whether a change of filters takes effect at once.
    holds_back: std::sync::atomic::AtomicBool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) filters: Vec<String>,
    pub(crate) addresses: Vec<String>,
    pub(crate) fetched_at: Vec<String>,
    pub(crate) is_forgotten: bool,
    pub(crate) is_leaf: bool,
    generation: u64,
}

struct Carrying {
    carried: Arc<Carried>,
    name: String,
    held: watch::Sender<u64>,
}

impl Carried {
    /// From now on no change of filters takes effect.
    pub(crate) fn hold_back(&self) {
        self.holds_back.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// The order for a node once that is as expected.
    pub(crate) async fn until(&self, name: &str, is_so: impl Fn(&Asked) -> bool) -> Asked {
        let mut asked = self.of(name).subscribe();
        let found = tokio::time::timeout(LONGEST, asked.wait_for(|asked| is_so(asked))).await;
        found.unwrap_or_else(|_| panic!("it is never so")).expect("it is kept").clone()
    }

    fn of(&self, name: &str) -> watch::Sender<Asked> {
        self.of.lock().expect("no panic").entry(name.to_owned()).or_default().clone()
    }
}

impl TopicLinks for Carried {
    fn open(self: Arc<Self>, peer: TopicPeer) -> Box<dyn TopicLink> {
        self.of(&peer.name).send_modify(|asked| {
            (asked.is_forgotten, asked.is_leaf) = (false, peer.is_leaf);
        });
        Box::new(Carrying { carried: self, name: peer.name, held: watch::Sender::new(0) })
    }
}

impl TopicLink for Carrying {
    fn set(&mut self, generation: u64, filters: Arc<[Arc<str>]>) {
        self.carried.of(&self.name).send_modify(|asked| {
            asked.filters = filters.iter().map(|filter| filter.to_string()).collect();
            asked.generation = generation;
        });
        if !self.carried.holds_back.load(std::sync::atomic::Ordering::Relaxed) {
            self.held.send_replace(generation);
        }
    }

    fn reach(&mut self, addresses: Vec<String>) {
        self.carried.of(&self.name).send_modify(|asked| asked.addresses = addresses);
    }

    fn fetch(&mut self, addresses: Vec<String>) {
        self.carried.of(&self.name).send_modify(|asked| asked.fetched_at = addresses);
    }

    fn is_fetched(&self) -> bool {
        false
    }

    fn held(&self) -> watch::Receiver<u64> {
        self.held.subscribe()
    }

    fn forget(self: Box<Self>) {
        self.carried.of(&self.name).send_modify(|asked| asked.is_forgotten = true);
    }
}

//! Nodes of the program that are one: on loopback, or each in a namespace of its own whose line can be cut.
//!
//! Always true: a process ends with its [`Site`], and so do the namespaces, also when the bench is interrupted.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use bench_harness::{Owned, end_on_signals};
use tempfile::TempDir;
use tidegate_api::{Member, MembersPage, Standing};
use tidegate_client::{Client, ConnectOptions, Credentials};
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::{
    client::{self, Options},
    process::{Usage, usage},
};
use tidegate_netlab::{Lab, sweep, sweep_prefix};
use tidegate_sim::medium::{Change, Scenario};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter, Version};

/// For all nodes to be linked to all.
const FORM_MAX: Duration = Duration::from_secs(60);
/// For a node to serve MQTT after its start.
const START_MAX: Duration = Duration::from_secs(30);
/// Longest wait for an answer of a node, which may hang.
const ANSWER_MAX: Duration = Duration::from_secs(1);

static LABS: AtomicU32 = AtomicU32::new(0);

/// From now on a signal to stop ends all processes and removes all namespaces before this process.
///
/// # Errors
/// Signals cannot be caught, or what a bench before has left cannot be removed.
pub fn watch_signals() -> anyhow::Result<()> {
    for left in sweep()? {
        eprintln!("bench-fabric: removed {left}, left behind by a process that is gone");
    }
    end_on_signals("bench-fabric", || {
        if let Err(error) = sweep_prefix(&prefix()) {
            eprintln!("bench-fabric: namespaces stay behind: {error}");
        }
    })
}

fn prefix() -> String {
    format!("tglab-{}-", std::process::id())
}

/// The program, which is beside this one.
///
/// # Errors
/// It is not there.
pub fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    let program = own.with_file_name("tidegate");
    ensure!(program.is_file(), "{} is not there; build it", program.display());
    Ok(program)
}

/// An address on loopback that is free for UDP and TCP.
///
/// # Errors
/// There is none.
pub fn free() -> anyhow::Result<SocketAddr> {
    for _ in 0..64 {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?;
        let address = udp.local_addr()?;
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port is free for UDP and TCP")
}

/// Settings of all nodes of a site.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many.
    pub nodes: usize,
    /// `mqtt.durability`.
    pub durability: &'static str,
    /// One way on the line of a node; none for nodes on loopback.
    pub line: Option<Duration>,
    /// Whether they are one; else each is alone.
    pub is_fabric: bool,
    /// Topics that the first node sends to the second one by a bridge.
    pub bridge: Option<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { nodes: 2, durability: "memory", line: None, is_fabric: true, bridge: None }
    }
}

/// Nodes that run.
#[derive(Debug)]
pub struct Site {
    program: PathBuf,
    // Before the folder and the namespaces: processes end first.
    nodes: Vec<Node>,
    lab: Option<Arc<Lab>>,
    folder: TempDir,
}

#[derive(Debug)]
struct Node {
    name: String,
    link: SocketAddr,
    api: SocketAddr,
    mqtt: SocketAddr,
    child: Option<Owned>,
}

impl Site {
    /// Starts all nodes and waits until each serves and is linked to all.
    ///
    /// # Errors
    /// Namespaces take root; a node does not start, or does not find the others.
    pub fn start(settings: &Settings) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for nodes")?;
        let lab = settings.line.map(|delay| lab(settings.nodes, delay)).transpose()?.map(Arc::new);
        let names: Vec<String> = (1..=settings.nodes).map(|number| format!("n{number}")).collect();
        let request = InitRequest { nodes: names.clone(), ..InitRequest::default() };
        pki::init(&folder.path().join("pki"), &request).context("making certificates")?;
        let mut nodes = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            let own = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let (link, api, mqtt) = match &lab {
                Some(_) => ((address(index), 7443).into(), own(7080), own(1883)),
                None => (free()?, free()?, free()?),
            };
            nodes.push(Node { name, link, api, mqtt, child: None });
        }
        let mut site = Self { program: program()?, nodes, lab, folder };
        for index in 0..settings.nodes {
            site.configure(index, settings)?;
            site.spawn(index)?;
        }
        for index in 0..settings.nodes {
            site.wait_to_serve(index)?;
        }
        if settings.is_fabric {
            site.wait_linked()?;
        }
        Ok(site)
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn configure(&self, index: usize, settings: &Settings) -> anyhow::Result<()> {
        let Node { name, link, api, mqtt, .. } = &self.nodes[index];
        let data = self.folder.path().join(name).join("data");
        let home = data.join("pki");
        fs::create_dir_all(&home).context("making a node's folder")?;
        for file in ["ca.pem".to_owned(), format!("{name}.pem"), format!("{name}.key")] {
            fs::copy(self.pki().join(&file), home.join(&file))
                .with_context(|| format!("copying {file}"))?;
        }
        let mut text = format!(
            "[node]\nname = \"{name}\"\ndata_dir = {data:?}\napi_listen = \"{api}\"\n\n\
             [link]\nlisten = \"{link}\"\nreconnect_backoff_max = \"1s\"\n\n\
             [mqtt]\ndurability = \"{}\"\nallow_anonymous = true\nshards = 1\n\n\
             [mqtt.listener.bench]\nlisten = \"{mqtt}\"\n",
            settings.durability
        );
        if settings.is_fabric {
            text += &format!("\n[fabric]\nenabled = true\nseeds = \"{}\"\n", self.nodes[0].link);
        }
        if let (0, Some(topics)) = (index, settings.bridge) {
            let remote = self.nodes[1].mqtt;
            text += &format!(
                "\n[mqtt.bridge.next]\nremote = \"{remote}\"\ntopics_out = \"{topics}\"\n"
            );
        }
        fs::write(self.config(index), text).context("writing a configuration")
    }

    fn config(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{}.toml", self.nodes[index].name))
    }

    fn pki(&self) -> PathBuf {
        self.folder.path().join("pki")
    }

    /// Starts a node, also again; it need not serve yet.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&mut self, index: usize) -> anyhow::Result<()> {
        let log = self.folder.path().join(format!("{}.log", self.nodes[index].name));
        let log = File::options().create(true).append(true).open(log).context("writing a log")?;
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.config(index)).arg("node");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).env("NO_COLOR", "1");
        let node = &mut self.nodes[index];
        let child = match &self.lab {
            Some(lab) => lab.exec(&node.name, command)?,
            None => command.spawn().context("starting a node")?,
        };
        node.child = Some(Owned::new(child));
        Ok(())
    }

    /// Ends a node with SIGKILL.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].child = None;
    }

    /// Stops a node where it stands (`STOP`), or lets it continue (`CONT`).
    ///
    /// # Errors
    /// It is not there.
    pub fn signal(&self, index: usize, signal: &str) -> anyhow::Result<()> {
        self::signal(&self.process(index)?.to_string(), signal)
    }

    /// Takes the line of a node down, or up again.
    ///
    /// # Errors
    /// There is none.
    pub fn cut(&self, index: usize, is_cut: bool) -> anyhow::Result<()> {
        let lab = self.lab.as_ref().context("a line is of a site with namespaces")?;
        let factor = if is_cut { 0 } else { 1 };
        let change: Change = format!("{} factor={factor}", self.nodes[index].name).parse()?;
        Ok(lab.apply(change)?)
    }

    /// The process of a node.
    ///
    /// # Errors
    /// It does not run.
    pub fn process(&self, index: usize) -> anyhow::Result<u32> {
        let node = &self.nodes[index];
        let child = node.child.as_ref().with_context(|| format!("{} does not run", node.name))?;
        Ok(child.0.id())
    }

    /// The use of resources of a node.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self, index: usize) -> anyhow::Result<Usage> {
        usage(self.process(index)?).with_context(|| self.last_words(index))
    }

    /// Processor time that all nodes have used.
    ///
    /// # Errors
    /// One is gone.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        (0..self.len()).map(|index| Ok(self.usage(index)?.cpu)).sum()
    }

    /// Where a node serves MQTT; in its namespace, where it has one.
    #[must_use]
    pub fn mqtt(&self, index: usize) -> SocketAddr {
        self.nodes[index].mqtt
    }

    /// Runs `work` where the node is: sockets that it makes are in the node's namespace.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn within<R: Send>(
        &self,
        index: usize,
        work: impl FnOnce() -> R + Send,
    ) -> anyhow::Result<R> {
        self.place(index).within(work)
    }

    /// Where a node is, also while the site changes.
    #[must_use]
    pub fn place(&self, index: usize) -> Place {
        Place { lab: self.lab.clone(), node: self.nodes[index].name.clone() }
    }

    /// A client of MQTT 5 at a node.
    ///
    /// # Errors
    /// The node has no room for it, or is not there.
    pub fn client(&self, index: usize, id: &str) -> anyhow::Result<client::Client> {
        let at = self.mqtt(index);
        let options = Options {
            host: at.ip().to_string(),
            port: at.port(),
            version: Version::V5,
            client_id: id.to_owned(),
            ..Options::default()
        };
        let connected = self.within(index, || client::Client::connect(options))?;
        connected.with_context(|| format!("connecting to {}", self.nodes[index].name))
    }

    /// Waits until a node that was started serves MQTT.
    ///
    /// # Errors
    /// It has ended, or does not.
    pub fn wait_to_serve(&mut self, index: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match self.client(index, "bench-first") {
                Ok(client) => return Ok(client.disconnect()?),
                Err(error) => {
                    let name = self.nodes[index].name.clone();
                    let child = self.nodes[index].child.as_mut();
                    let ended = child.is_none_or(|child| !matches!(child.0.try_wait(), Ok(None)));
                    if ended || began.elapsed() > START_MAX {
                        bail!("{name} does not serve: {error:#}; {}", self.last_words(index));
                    }
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Looks at the members as a node shows them until `is_so`; after how long that was, none if not within `most`. `pause` is between two
    /// looks.
    ///
    /// # Errors
    /// Certificates cannot be read. A node that does not answer is asked again.
    pub fn look(
        &self,
        index: usize,
        most: Duration,
        pause: Duration,
        is_so: impl Fn(&[Member]) -> bool + Send + Sync,
    ) -> anyhow::Result<Option<Duration>> {
        let (endpoint, pki) = (format!("https://{}", self.nodes[index].api), self.pki());
        self.within(index, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let began = Instant::now();
                let mut client: Option<Client> = None;
                while began.elapsed() < most {
                    let asked = tokio::time::timeout(ANSWER_MAX, async {
                        let asked = match client.take() {
                            Some(asked) => asked,
                            None => connect(&endpoint, &pki).await?,
                        };
                        let page = MembersPage { after: String::new(), limit: 1000 };
                        anyhow::Ok((asked.members(page).await?, asked))
                    });
                    if let Ok(Ok((members, asked))) = asked.await {
                        client = Some(asked);
                        if is_so(&members) {
                            return Ok(Some(began.elapsed()));
                        }
                    }
                    tokio::time::sleep(pause).await;
                }
                Ok(None)
            })
        })?
    }

    /// Waits until every node shows links to all others.
    ///
    /// # Errors
    /// One does not.
    pub fn wait_linked(&self) -> anyhow::Result<()> {
        let others = self.len() - 1;
        let pause = Duration::from_millis(20);
        for index in 0..self.len() {
            let seen = self.look(index, FORM_MAX, pause, |members| links(members) >= others)?;
            ensure!(
                seen.is_some(),
                "{} is not linked to all others within {} s; {}",
                self.nodes[index].name,
                FORM_MAX.as_secs(),
                self.last_words(index)
            );
        }
        Ok(())
    }

    /// The name of a node.
    #[must_use]
    pub fn name(&self, index: usize) -> &str {
        &self.nodes[index].name
    }

    /// The end of a node's log.
    #[must_use]
    pub fn last_words(&self, index: usize) -> String {
        let path = self.folder.path().join(format!("{}.log", self.nodes[index].name));
        let said = fs::read_to_string(path).unwrap_or_default();
        let mut last: Vec<&str> = said.lines().rev().take(4).collect();
        last.reverse();
        format!("its last words: {}", last.join(" / "))
    }
}

/// Where a node is.
#[derive(Clone, Debug)]
pub struct Place {
    lab: Option<Arc<Lab>>,
    node: String,
}

impl Place {
    /// Runs `work` there: sockets that it makes are in the node's namespace.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn within<R: Send>(&self, work: impl FnOnce() -> R + Send) -> anyhow::Result<R> {
        Ok(match &self.lab {
            Some(lab) => lab.within(&self.node, work)?,
            None => work(),
        })
    }
}

/// Sends a signal to a process.
///
/// # Errors
/// It is not there.
pub fn signal(process: &str, signal: &str) -> anyhow::Result<()> {
    let status = Command::new("kill").args(["-s", signal, process]).status()?;
    ensure!(status.success(), "process {process} cannot be sent {signal}");
    Ok(())
}

/// Members to which the node that was asked has a link.
#[must_use]
pub fn links(members: &[Member]) -> usize {
    members.iter().filter(|one| one.is_linked && one.standing == Standing::Here).count()
}

async fn connect(endpoint: &str, pki: &Path) -> anyhow::Result<Client> {
    let file = |name: &str| pki.join(name);
    let credentials =
        Credentials::load(file("ca.pem"), file("application.pem"), file("application.key"))?;
    let options = ConnectOptions { max_reconnects: 0, ..ConnectOptions::default() };
    Ok(Client::connect_with(endpoint, credentials, options).await?)
}

/// A subscription with QoS 1.
#[must_use]
pub fn filter(filter: &str) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}

/// The address of a node at its line.
fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 84, u8::try_from(index + 1).unwrap_or(u8::MAX), 2)
}

/// A namespace for each node, each at a line of its own to a router.
fn lab(nodes: usize, delay: Duration) -> anyhow::Result<Lab> {
    let mut text = "seed = 17\n".to_owned();
    for index in 0..nodes {
        let name = format!("n{}", index + 1);
        let [a, b, c, _] = address(index).octets();
        text += &format!(
            "[[medium]]\nname = \"{name}\"\nkind = \"wan\"\nrate = \"200Mbit\"\ndelay = \"{}us\"\nqueue = \"256KiB\"\nport = [\n\
             {{ node = \"hub\", address = \"{a}.{b}.{c}.1/24\" }},\n\
             {{ node = \"{name}\", address = \"{a}.{b}.{c}.2/24\", default_route = true }},\n]\n",
            delay.as_micros()
        );
    }
    let scenario = Scenario::parse(&text, Path::new(""))?;
    let number = LABS.fetch_add(1, Ordering::Relaxed);
    let options = tidegate_netlab::Options {
        prefix: Some(format!("{}{number}-", prefix())),
        ..tidegate_netlab::Options::default()
    };
    Ok(Lab::up(&scenario, &options)?)
}

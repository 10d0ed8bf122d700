//! Two nodes of the program itself, one at the edge and one above: configured by files, started, looked at, killed.
//!
//! ```text
//!  Site: folder, certificates, addresses ──configure, start──▶ Node: one process ──kill, end──▶ Site …
//! ```
//!
//! Always true: a process ends with its [`Node`], by its own handle; a site's addresses stay the same over all its processes.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::{
    client::{Client, Options},
    process::{Usage, usage},
};
use tidegate_netlab::Lab;
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

/// For a node to listen, and to end with all that it holds handed over.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where devices are.
    Edge,
    /// Where messages go.
    Core,
}

impl Place {
    /// Its name, also as a node of a lab.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Core => "core",
        }
    }

    /// The processor that it has for itself, as far as there are two: each side has one.
    fn processor(self) -> usize {
        let all = thread::available_parallelism().map_or(1, usize::from);
        match self {
            Self::Edge => 0,
            Self::Core => all - 1,
        }
    }
}

/// A folder and addresses of two nodes.
#[derive(Debug)]
pub struct Site {
    folder: TempDir,
    /// Where each serves MQTT.
    edge: SocketAddr,
    core: SocketAddr,
    /// Where the upper one takes links.
    pub link: SocketAddr,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    child: Child,
    log: PathBuf,
    address: SocketAddr,
}

impl Site {
    /// A site on loopback, or in a lab whose node `core` has the address `core`.
    ///
    /// # Errors
    /// No folder, certificates or ports can be had.
    pub fn new(core: Option<Ipv4Addr>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for nodes")?;
        let nodes = ["edge", "core"].map(str::to_owned).to_vec();
        let at_edge = folder.path().join("edge/data/pki");
        pki::init(&at_edge, &InitRequest { nodes, ..InitRequest::default() })
            .context("making certificates")?;
        copy(&at_edge, &folder.path().join("core/data/pki")).context("copying certificates")?;
        let [edge, above, link] = [free()?, free()?, free()?];
        let (above, link) = match core {
            Some(core) => ((core, 1883).into(), (core, 7443).into()),
            None => (above, link),
        };
        Ok(Self { folder, edge, core: above, link })
    }

    /// Where a node serves MQTT.
    #[must_use]
    pub fn address(&self, place: Place) -> SocketAddr {
        match place {
            Place::Edge => self.edge,
            Place::Core => self.core,
        }
    }

    /// A path in a node's folder.
    #[must_use]
    pub fn path(&self, place: Place, name: &str) -> PathBuf {
        self.folder.path().join(place.name()).join(name)
    }

    /// Writes a node's configuration: the common part of these benches, `mqtt` as keys of that section, and `more`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn configure(&self, place: Place, mqtt: &str, more: &str) -> anyhow::Result<()> {
        let link = match place {
            Place::Edge => free()?,
            Place::Core => self.link,
        };
        let text = format!(
            "[node]\nname = \"{}\"\ndata_dir = {:?}\napi_listen = \"127.0.0.1:0\"\n\n[link]\nlisten = \"{link}\"\n\n\
             [mqtt]\nshards = 1\nallow_anonymous = true\nsys_interval = \"500ms\"\n{mqtt}\n\n\
             [mqtt.listener.bench]\nlisten = \"{}\"\n\n{more}",
            place.name(),
            self.path(place, "data"),
            self.address(place),
        );
        let path = self.path(place, "tidegate.toml");
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Starts a node on its processor, in its namespace if there is a lab, and waits until it serves.
    ///
    /// # Errors
    /// There is no program beside this one, or it does not serve within a minute.
    pub fn start(&self, place: Place, lab: Option<&Lab>) -> anyhow::Result<Node> {
        let own = std::env::current_exe().context("finding this program")?;
        let program = own.with_file_name("tidegate");
        ensure!(program.is_file(), "{} is not there; build it", program.display());
        let log = self.path(place, "log");
        let out = File::options().create(true).append(true).open(&log);
        let out = out.with_context(|| format!("writing {}", log.display()))?;
        let mut command = Command::new("taskset");
        command.args(["-c", &place.processor().to_string()]).arg(program);
        command.current_dir(self.path(place, "")).arg("--config").arg("tidegate.toml").arg("node");
        command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
        let child = match lab {
            Some(lab) => lab.exec(place.name(), command)?,
            None => command.spawn().context("starting a node")?,
        };
        let mut node = Node { child, log, address: self.address(place) };
        let began = Instant::now();
        loop {
            let answers = || Ok::<_, anyhow::Error>(TcpStream::connect(node.address).is_ok());
            let answers = match lab {
                Some(lab) => lab.within(place.name(), answers)??,
                None => answers()?,
            };
            if answers {
                return Ok(node);
            }
            node.check()?;
            ensure!(
                began.elapsed() < PATIENCE,
                "a node does not serve at {}; {}",
                node.address,
                node.last_words()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Node {
    /// Waits until its log says something.
    ///
    /// # Errors
    /// It ended, or does not say it within a minute.
    pub fn wait_for(&mut self, words: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.said()?.contains(words) {
            self.check()?;
            ensure!(
                began.elapsed() < PATIENCE,
                "a node never said {words:?}; {}",
                self.last_words()
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Its use of resources.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        usage(self.child.id()).with_context(|| self.last_words())
    }

    /// A client of it, subscribed to `filter`. Must be called within its namespace.
    ///
    /// # Errors
    /// It does not let it in.
    pub fn reader(&self, filter: &str) -> anyhow::Result<Client> {
        reader(self.address, filter)
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// It had ended by itself.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.check()?;
        self.child.kill().context("killing a node")?;
        self.child.wait().context("waiting for a node that was killed")?;
        Ok(())
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// It had ended by itself, or does not end within a minute.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.check()?;
        tidegate_sys::process::terminate(self.child.id()).context("ending a node")?;
        let began = Instant::now();
        while self.child.try_wait().context("looking at a node")?.is_none() {
            ensure!(began.elapsed() < PATIENCE, "a node does not end; {}", self.last_words());
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// An error if it has ended by itself.
    fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("looking at a node")? {
            None => Ok(()),
            Some(status) => bail!("a node ended with {status}; {}", self.last_words()),
        }
    }

    fn said(&self) -> anyhow::Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("reading {}", self.log.display()))
    }

    fn last_words(&self) -> String {
        let said = self.said().unwrap_or_default();
        let mut last: Vec<&str> = said.lines().rev().take(4).collect();
        last.reverse();
        format!("its last words: {:?}", last.join(" / "))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and need not be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of the broker at `address`, subscribed to `filter`.
///
/// # Errors
/// It does not let it in.
pub fn reader(address: SocketAddr, filter: &str) -> anyhow::Result<Client> {
    let options =
        Options { host: address.ip().to_string(), port: address.port(), ..Options::default() };
    let mut client = Client::connect(options)?;
    client.subscribe(&[SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }])?;
    Ok(client)
}

/// An address on loopback that is free for UDP and TCP.
fn free() -> anyhow::Result<SocketAddr> {
    for _ in 0..16 {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?;
        let address = udp.local_addr().context("finding a free port")?;
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port is free for UDP and TCP")
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

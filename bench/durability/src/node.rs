//! Nodes of the program itself, in a folder on the disk under test: started, looked at, killed.
//!
//! ```text
//!  Site: folder, ports, certificates, tidegate.toml ──start──▶ Running: one process ──kill──▶ Site …
//! ```
//!
//! Always true: a process ends with its [`Running`], by its own handle; a site's ports stay the same over all its processes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;
use tidegate_client::{Client, ConnectOptions, Credentials};
use tidegate_load::{
    client::Options,
    process::{Usage, usage},
};

/// The name of the camera that a site may have.
pub const CAMERA: &str = "cam1";
/// For a node to listen after its start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A folder in which nodes run, one after the other.
#[derive(Debug)]
pub struct Site {
    folder: TempDir,
    /// Where MQTT is served.
    pub mqtt: SocketAddr,
    api: SocketAddr,
    link: SocketAddr,
}

/// A node's process.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
    /// When it was started.
    pub started: Instant,
}

impl Site {
    /// A site below `folder` whose configuration file ends with `more`, which may begin with keys of `[mqtt]`. `cameras` get a
    /// certificate each.
    ///
    /// # Errors
    /// There is no program beside this one, or its certificates cannot be made.
    pub fn new(folder: &Path, cameras: &[String], more: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir_in(folder).context("making a folder for nodes")?;
        let [mqtt, api, link] = [free_address()?, free_address()?, free_address()?];
        let text = format!(
            "[node]\nname = \"edge\"\ndata_dir = {:?}\napi_listen = \"{api}\"\n\n\
             [link]\nlisten = \"{link}\"\nedge = \"{link}\"\nreconnect_backoff_max = \"250ms\"\n\n\
             [mqtt.listener.bench]\nlisten = \"{mqtt}\"\n\n[mqtt]\nallow_anonymous = true\n{more}",
            folder.path().join("data"),
        );
        let site = Self { folder, mqtt, api, link };
        fs::write(site.path("tidegate.toml"), text).context("writing a configuration")?;
        let mut init = site.command()?;
        init.args(["init", "--node", "edge"]);
        for camera in cameras {
            init.args(["--camera", camera]);
        }
        let made = init.output().context("making certificates")?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
        Ok(site)
    }

    /// A path in the site's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// How a client of MQTT connects.
    #[must_use]
    pub fn options(&self) -> Options {
        Options { host: self.mqtt.ip().to_string(), port: self.mqtt.port(), ..Options::default() }
    }

    /// Where applications find the node.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("https://{}", self.api)
    }

    /// Starts the edge node and does not wait; `settings` are given to `--set`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&self, settings: &[String]) -> anyhow::Result<Running> {
        let mut command = self.command()?;
        for setting in settings {
            command.args(["--set", setting]);
        }
        command.arg("node");
        self.spawn(command, "edge")
    }

    /// Starts a camera node.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_camera(&self, name: &str, source: &str) -> anyhow::Result<Running> {
        let mut command = self.command()?;
        command.args(["camera", "--name", name, "--source", source]);
        command.args(["--edge", &self.link.to_string()]);
        self.spawn(command, name)
    }

    fn spawn(&self, mut command: Command, name: &str) -> anyhow::Result<Running> {
        let log = self.path(&format!("{name}.log"));
        let err = File::options().create(true).append(true).open(&log);
        let err = err.with_context(|| format!("writing {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(err).env("NO_COLOR", "1");
        let started = Instant::now();
        let child = command.spawn().context("starting a node")?;
        Ok(Running { child, log, started })
    }

    /// The program, with the site's configuration.
    ///
    /// # Errors
    /// It is not there.
    pub fn command(&self) -> anyhow::Result<Command> {
        let own = std::env::current_exe().context("finding this program")?;
        let program = own.with_file_name("tidegate");
        ensure!(program.is_file(), "{} is not there; build it", program.display());
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).arg("--config").arg(self.path("tidegate.toml"));
        Ok(command)
    }

    /// Bytes on the disk of what is below the data folder, as allocated.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        disk_bytes(&self.path("data"))
    }
}

impl Running {
    /// Waits until `address` takes connections.
    ///
    /// # Errors
    /// The node ended, or does not listen within a minute.
    pub fn wait_for(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        while TcpStream::connect(address).is_err() {
            self.check()?;
            if self.started.elapsed() > START_TIMEOUT {
                bail!("a node does not listen at {address}; {}", self.last_words());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// An error if the process has ended by itself.
    ///
    /// # Errors
    /// It has.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("looking at a node")? {
            None => Ok(()),
            Some(status) => bail!("a node ended with {status}; {}", self.last_words()),
        }
    }

    /// Its use of resources.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        usage(self.child.id()).with_context(|| self.last_words())
    }

    /// The file descriptors that it has open, by what they are: a kind, or the folder of a file.
    ///
    /// # Errors
    /// It is gone.
    pub fn descriptors(&self) -> anyhow::Result<BTreeMap<String, usize>> {
        let path = format!("/proc/{}/fd", self.child.id());
        let mut kinds = BTreeMap::new();
        for entry in fs::read_dir(&path).with_context(|| format!("reading {path}"))? {
            // One that was closed meanwhile is not there.
            let Ok(target) = fs::read_link(entry?.path()) else { continue };
            let kind = match target.parent().and_then(Path::to_str) {
                Some("" | "/") | None => {
                    let name = target.to_string_lossy().into_owned();
                    name.split(":[").next().unwrap_or_default().to_owned()
                }
                Some(folder) => folder.to_owned(),
            };
            *kinds.entry(kind).or_default() += 1;
        }
        Ok(kinds)
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

    fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let mut last: Vec<&str> = said.lines().rev().take(4).collect();
        last.reverse();
        format!("its last words: {:?}", last.join(" / "))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and need not be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of the node at `endpoint` with the application's certificate, once it answers. Its calls try again for as long as a node
/// may be down.
///
/// # Errors
/// The certificates cannot be read, or the node refuses.
pub async fn connect(endpoint: &str, pki: &Path) -> anyhow::Result<Client> {
    const RETRY: Duration = Duration::from_millis(50);
    let file = |name: &str| pki.join(name);
    let credentials =
        Credentials::load(file("ca.pem"), file("application.pem"), file("application.key"))?;
    let options = ConnectOptions {
        max_reconnects: 100_000,
        backoff: RETRY,
        backoff_max: 2 * RETRY,
        ..ConnectOptions::default()
    };
    Ok(Client::connect_with(endpoint, credentials, options).await?)
}

/// An address on loopback below the range from which connections get theirs: while a node is down, none of its clients may take its
/// port, or connect to itself.
fn free_address() -> anyhow::Result<SocketAddr> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Apart from those of another run beside this one.
    let own = (std::process::id() % u32::from(COUNT / 16)) as u16 * 16;
    for _ in 0..COUNT {
        let offset = own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let address = SocketAddr::from(([127, 0, 0, 1], FIRST + offset));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port from {FIRST} to {} is free", FIRST + COUNT - 1)
}

fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    // A file that goes during the look is not there.
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

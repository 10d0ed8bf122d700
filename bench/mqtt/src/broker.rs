//! Brokers as processes: ours and the peers, each on a port of its own with the settings that are fair to it.
//!
//! Always true: a broker ends with its [`Broker`], by its own handle; one that cannot be started is an error of its own rows.

use std::{
    fs::{self, File},
    io::Write as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use bench_harness::{Owned, Report, machine};
use tempfile::TempDir;
use tidegate_load::{
    client::{Client, Options},
    process::{Usage, usage},
};
use tidegate_netlab::Lab;
use tidegate_wire::mqtt::Version;

/// For a broker to answer after its start.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// Where a broker listens in a namespace of its own.
const LAB_PORT: u16 = 1883;

/// The contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Ours.
    Tidegate,
    /// Debian's, the one that targets are relative to.
    Mosquitto,
    /// From crates.io.
    Rumqttd,
    /// With its MQTT listener and JetStream.
    Nats,
    /// The Go library, in a program of ours.
    Mochi,
}

impl Kind {
    /// All, ours first.
    pub const ALL: [Self; 5] =
        [Self::Tidegate, Self::Mosquitto, Self::Rumqttd, Self::Nats, Self::Mochi];

    /// Its name in rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Mosquitto => "mosquitto",
            Self::Rumqttd => "rumqttd",
            Self::Nats => "nats-server",
            Self::Mochi => "mochi",
        }
    }

    /// Its settings, for the report.
    fn settings(self) -> &'static str {
        match self {
            Self::Tidegate => {
                "class memory, else defaults, and what the row says; one shard but where it says so"
            }
            Self::Mosquitto => {
                "no log, no persistence, set_tcp_nodelay, 65,535 messages in flight, no limit on queued ones; 1,000 in \
                 flight and queued as by default where its memory or its order is measured"
            }
            Self::Rumqttd => {
                "its own example: segments of 100 MB, 10 of a filter, 65,535 connections, 500 in flight"
            }
            Self::Nats => "MQTT and JetStream in memory, max_ack_pending 65,535",
            Self::Mochi => "65,535 messages in flight, 65,536 waiting for a subscriber",
        }
    }
}

/// How clients come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Anonymous, without TLS.
    #[default]
    Plain,
    /// Anonymous, by TLS 1.3 with an ECDSA certificate.
    Tls,
    /// Without TLS, each with a password that the broker keeps as its own tool writes it.
    Password,
}

/// Users of brokers with [`Access::Password`]: `user0` and so on, all with [`PASSWORD`].
pub const USERS: u32 = 3_000;
/// Of all of them.
pub const PASSWORD: &str = "a password of a bench";

/// The settings of a broker that a row chooses.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Ours: its policy for large messages.
    pub policy: &'static str,
    /// Ours: threads.
    pub shards: usize,
    /// Whether a peer's limits are raised for a closed loop, rather than left at its defaults.
    pub raised: bool,
    /// Ours: the overflow policy for messages with QoS 1 for a subscriber that is full.
    pub overflow: &'static str,
    /// Ours: `mqtt.durability`.
    pub durability: &'static str,
    /// How clients come in. TLS and passwords: ours and mosquitto alone.
    pub access: Access,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            policy: "deadline",
            shards: 1,
            raised: true,
            overflow: "spill",
            durability: "memory",
            access: Access::Plain,
        }
    }
}

/// The programs that are there.
#[derive(Clone, Debug)]
pub struct Programs {
    ours: PathBuf,
    cache: PathBuf,
    root: PathBuf,
}

/// How our broker is started.
impl Programs {
    /// Finds them: ours beside this program.
    ///
    /// # Errors
    /// This program has no place.
    pub fn find(root: &Path) -> anyhow::Result<Self> {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let own = std::env::current_exe().context("finding this program")?;
        let ours = own.with_file_name("tidegate");
        let cache = folder("TIDEGATE_CACHE").unwrap_or_else(|| {
            let home = || folder("HOME").unwrap_or_default().join(".cache");
            folder("XDG_CACHE_HOME").unwrap_or_else(home).join("tidegate")
        });
        Ok(Self { ours, cache, root: root.to_owned() })
    }

    /// Notes the systems that take part, with versions and settings; returns those that are installed.
    pub fn contenders(&self, report: &mut Report) -> Vec<Kind> {
        let mut there = Vec::new();
        for kind in Kind::ALL {
            let version = self.version(kind);
            report.configuration(kind.name(), kind.settings());
            if version.is_empty() {
                report.version(kind.name(), "missing");
                eprintln!("bench-mqtt: no {} here", kind.name());
            } else {
                report.version(kind.name(), version);
                there.push(kind);
            }
        }
        there
    }

    /// The program of a contender, whether it is there or not.
    #[must_use]
    pub fn program(&self, kind: Kind) -> PathBuf {
        let versioned = |name: &str, file: &str| {
            let version = fs::read_to_string(self.root.join("bench/peers").join(file));
            self.cache.join(format!("{name}-{}", version.unwrap_or_default().trim()))
        };
        match kind {
            Kind::Tidegate => self.ours.clone(),
            Kind::Mosquitto => {
                // Debian has it where only root's path leads.
                let usual = PathBuf::from("/usr/sbin/mosquitto");
                if usual.exists() { usual } else { "mosquitto".into() }
            }
            Kind::Rumqttd => versioned("rumqttd", "rumqttd/VERSION").join("bin/rumqttd"),
            Kind::Nats => versioned("nats", "nats/SERVER_VERSION").join("nats-server"),
            Kind::Mochi => self.cache.join("mochi/mochi"),
        }
    }

    /// Empty if the program is not there.
    fn version(&self, kind: Kind) -> String {
        let program = self.program(kind);
        let said = |arguments: &[&str]| machine::said(&program.display().to_string(), arguments);
        match kind {
            Kind::Mosquitto => said(&["-h"]),
            Kind::Tidegate | Kind::Rumqttd | Kind::Nats | Kind::Mochi => said(&["--version"]),
        }
    }

    /// Starts a broker on a free port of loopback.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub fn start(&self, kind: Kind, setup: &Setup) -> anyhow::Result<Broker> {
        let free = TcpListener::bind("127.0.0.1:0").context("finding a free port")?;
        let port = free.local_addr().context("finding a free port")?.port();
        drop(free);
        self.start_on(kind, setup, port)
    }

    /// Starts a broker on that port of loopback, which is free.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub fn start_on(&self, kind: Kind, setup: &Setup, port: u16) -> anyhow::Result<Broker> {
        self.start_at(kind, setup, None, "127.0.0.1", port)
    }

    /// Starts a broker on all addresses of a node of a lab.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub fn start_in(
        &self,
        kind: Kind,
        setup: &Setup,
        lab: &Lab,
        node: &str,
    ) -> anyhow::Result<Broker> {
        self.start_at(kind, setup, Some((lab, node)), "0.0.0.0", LAB_PORT)
    }

    fn start_at(
        &self,
        kind: Kind,
        setup: &Setup,
        place: Option<(&Lab, &str)>,
        address: &str,
        port: u16,
    ) -> anyhow::Result<Broker> {
        let folder = tempfile::tempdir().context("making a folder for a broker")?;
        let listen = format!("{address}:{port}");
        let mut command = self.command(kind, setup, folder.path(), &listen)?;
        let tls = self.admit(kind, setup.access, folder.path(), &mut command)?;
        let log = folder.path().join("log");
        let out = File::create(&log).with_context(|| format!("writing {}", log.display()))?;
        command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        let child = match place {
            Some((lab, node)) => lab.exec(node, command)?,
            None => {
                let program = command.get_program().to_owned();
                command.spawn().with_context(|| format!("starting {}", program.display()))?
            }
        };
        let mut broker =
            Broker { kind, port, child: Owned::new(child), folder, tls, access: setup.access };
        let began = Instant::now();
        loop {
            let asked = || Client::connect(broker.options("bench-first"));
            let answered = match place {
                Some((lab, node)) => lab.within(node, asked)?,
                None => asked(),
            };
            match answered {
                Ok(client) => {
                    client.disconnect()?;
                    return Ok(broker);
                }
                Err(error) => {
                    let ended = broker.child.0.try_wait()?;
                    if ended.is_some() || began.elapsed() > START_TIMEOUT {
                        bail!("{} does not serve: {error}; {}", kind.name(), broker.last_words());
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn command(
        &self,
        kind: Kind,
        setup: &Setup,
        folder: &Path,
        listen: &str,
    ) -> anyhow::Result<Command> {
        let mut command = Command::new(self.program(kind));
        let write = |name: &str, text: String| -> anyhow::Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            Ok(path)
        };
        let (address, port) = listen.rsplit_once(':').expect("an address with a port");
        match kind {
            Kind::Tidegate => {
                let file = write("node.toml", node_config(setup, folder)?)?;
                let made = Command::new(&self.ours)
                    .current_dir(folder)
                    .arg("--config")
                    .arg(&file)
                    .args(["init", "--node", "bench"])
                    .output()
                    .context("making certificates")?;
                ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
                command.arg("--config").arg(file);
                command
                    .arg("--set")
                    .arg(format!("mqtt.listener.bench.listen={listen}"))
                    .arg("node");
            }
            Kind::Mosquitto => {
                let limits = if setup.raised {
                    "max_inflight_messages 65535\nmax_queued_messages 0\n"
                } else {
                    ""
                };
                let text = format!(
                    "listener {port} {address}\nallow_anonymous true\npersistence false\nlog_dest none\n\
                     set_tcp_nodelay true\n{limits}"
                );
                command.arg("-c").arg(write("mosquitto.conf", text)?);
            }
            Kind::Rumqttd => {
                command.arg("-q").arg("-c").arg(write("rumqttd.toml", rumqttd_config(listen))?);
            }
            Kind::Nats => {
                let text = format!(
                    "server_name: bench\nlisten: \"127.0.0.1:-1\"\njetstream {{ store_dir: {:?}, max_memory_store: 4GB }}\n\
                     mqtt {{ host: \"{address}\", port: {port}, max_ack_pending: 65535 }}\nmax_payload: 64MB\n\
                     max_pending: 1GB\nwrite_deadline: \"60s\"\nmax_connections: 100000\n",
                    folder.join("jetstream")
                );
                command.arg("-c").arg(write("nats.conf", text)?);
            }
            Kind::Mochi => {
                command.arg(listen);
            }
        }
        Ok(command)
    }

    /// Adds to `command`, and to the file that it names, how clients come in; returns their TLS.
    fn admit(
        &self,
        kind: Kind,
        access: Access,
        folder: &Path,
        command: &mut Command,
    ) -> anyhow::Result<Option<Arc<rustls::ClientConfig>>> {
        let is_ours = kind == Kind::Tidegate;
        if access == Access::Plain {
            return Ok(None);
        }
        ensure!(
            is_ours || kind == Kind::Mosquitto,
            "{} is measured without TLS and passwords alone",
            kind.name()
        );
        let (certificate, key) = (folder.join("tls.pem"), folder.join("tls.key"));
        let passwords = folder.join("passwords");
        let mut tls = None;
        let lines = match access {
            Access::Plain => unreachable!("looked at above"),
            Access::Tls => {
                let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
                fs::write(&certificate, made.cert.pem()).context("writing a certificate")?;
                fs::write(&key, made.signing_key.serialize_pem()).context("writing a key")?;
                let mut roots = rustls::RootCertStore::empty();
                roots.add(made.cert.der().clone())?;
                let mut config = rustls::ClientConfig::builder()
                    .with_root_certificates(roots)
                    .with_no_client_auth();
                // Each connection makes a whole handshake.
                config.resumption = rustls::client::Resumption::disabled();
                tls = Some(Arc::new(config));
                format!("certfile {}\nkeyfile {}\n", certificate.display(), key.display())
            }
            Access::Password => {
                self.write_passwords(kind, &passwords)?;
                format!("password_file {}\n", passwords.display())
            }
        };
        if !is_ours {
            let path = folder.join("mosquitto.conf");
            let mut text = fs::read_to_string(&path).context("reading a broker's settings")?;
            if access == Access::Password {
                text = text.replace("allow_anonymous true", "allow_anonymous false");
            }
            // It gives root up before it reads these files.
            fs::write(&path, format!("user root\n{text}{lines}"))
                .context("writing a broker's settings")?;
            return Ok(tls);
        }
        // Settings stand before the command.
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut changed = Command::new(&self.ours);
        changed.args(&words[..words.len() - 1]);
        let set = |changed: &mut Command, key: &str, value: &dyn std::fmt::Display| {
            changed.arg("--set").arg(format!("{key}={value}"));
        };
        match access {
            Access::Plain => unreachable!("looked at above"),
            Access::Tls => {
                set(&mut changed, "mqtt.listener.bench.protocol", &"tls");
                set(&mut changed, "mqtt.listener.bench.certificate", &certificate.display());
                set(&mut changed, "mqtt.listener.bench.key", &key.display());
            }
            Access::Password => {
                set(&mut changed, "mqtt.password_file", &passwords.display());
                set(&mut changed, "mqtt.allow_anonymous", &false);
            }
        }
        changed.args(&words[words.len() - 1..]);
        *command = changed;
        Ok(tls)
    }

    /// A file of [`USERS`] users. Each has the same record: it is made once, as the broker's own tool makes it.
    fn write_passwords(&self, kind: Kind, path: &Path) -> anyhow::Result<()> {
        let mut tool = match kind {
            Kind::Tidegate => {
                let mut tool = Command::new(&self.ours);
                tool.arg("passwd").arg(path).arg("user0").stdin(Stdio::piped());
                tool
            }
            _ => {
                let mut tool = Command::new("mosquitto_passwd");
                tool.args(["-b", "-c"]).arg(path).args(["user0", PASSWORD]).stdin(Stdio::null());
                tool
            }
        };
        let mut child = tool
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting what writes passwords")?;
        if let Some(mut stdin) = child.stdin.take() {
            writeln!(stdin, "{PASSWORD}").context("giving it the password")?;
        }
        ensure!(child.wait()?.success(), "no password was written for {}", kind.name());
        let first = fs::read_to_string(path).context("reading the password file")?;
        let line = first.lines().find(|line| line.starts_with("user0:"));
        let record = line.context("the user is in the file")?.trim_start_matches("user0");
        let all: String = (0..USERS).map(|user| format!("user{user}{record}\n")).collect();
        fs::write(path, all).context("writing the password file")
    }
}

/// The file of `tidegate node` with nothing but MQTT.
fn node_config(setup: &Setup, folder: &Path) -> anyhow::Result<String> {
    let api = TcpListener::bind("127.0.0.1:0").context("finding a free port")?;
    let link = TcpListener::bind("127.0.0.1:0").context("finding a free port")?;
    Ok(format!(
        "[node]\nname = \"bench\"\ndata_dir = {:?}\napi_listen = \"{}\"\n\n[link]\nlisten = \"{}\"\n\n[mqtt]\nshards = {}\n\
         policy = \"{}\"\noverflow = \"{}\"\ndurability = \"{}\"\nallow_anonymous = true\n",
        folder.join("data"),
        api.local_addr()?,
        link.local_addr()?,
        setup.shards,
        setup.policy,
        setup.overflow,
        setup.durability,
    ))
}

fn rumqttd_config(listen: &str) -> String {
    format!(
        "id = 0\n\n[router]\nid = 0\nmax_connections = 65535\nmax_outgoing_packet_count = 200\nmax_segment_size = 104857600\n\
         max_segment_count = 10\n\n[v4.1]\nname = \"v4-1\"\nlisten = \"{listen}\"\nnext_connection_delay_ms = 0\n\n\
         [v4.1.connections]\nconnection_timeout_ms = 60000\nmax_payload_size = 268435455\nmax_inflight_count = 500\n\
         dynamic_filters = true\n"
    )
}

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    kind: Kind,
    port: u16,
    child: Owned,
    folder: TempDir,
    /// With whom clients trust, if they come by TLS.
    tls: Option<Arc<rustls::ClientConfig>>,
    access: Access,
}

impl Broker {
    /// The contender.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address on loopback.
    #[must_use]
    pub fn target(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A client of its on loopback, with what it takes to come in. MQTT 3.1.1, which all speak.
    #[must_use]
    pub fn options(&self, client: &str) -> Options {
        Options {
            port: self.port,
            version: Version::V4,
            client_id: client.to_owned(),
            // A ping that waits behind a large message for longer than a client's patience would end its connection; rumqttd
            // refuses clients that never ping.
            keep_alive: if self.kind == Kind::Rumqttd { 60 } else { 0 },
            tls: self.tls.clone(),
            username: (self.access == Access::Password).then(|| "user0".to_owned()),
            password: (self.access == Access::Password).then(|| PASSWORD.into()),
            ..Options::default()
        }
    }

    /// Its use of resources.
    ///
    /// # Errors
    /// It is gone.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        usage(self.process()).with_context(|| self.last_words())
    }

    /// The end of its log.
    #[must_use]
    pub fn last_words(&self) -> String {
        let said = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let last: Vec<&str> = said.lines().rev().take(4).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!("its last words: {:?}", last.join(" / "))
    }
}

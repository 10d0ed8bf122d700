//! Brokers of others, from node to node: two mosquittos with a bridge, three NATS servers with routes.

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use bench_harness::Owned;
use bench_mqtt::broker::{Kind, Programs};
use tempfile::TempDir;
use tidegate_load::{
    client::{Client, Options},
    process::usage,
};
use tidegate_wire::mqtt::Version;

/// For all servers to serve, with the election of their leader.
const START_MAX: Duration = Duration::from_secs(60);

/// Servers that pass messages to each other.
#[derive(Debug)]
pub struct Peer {
    servers: Vec<Owned>,
    mqtt: Vec<SocketAddr>,
    folder: TempDir,
}

impl Peer {
    /// Two, the first of which sends what is published below `topic` to the second by a bridge.
    ///
    /// # Errors
    /// There is no mosquitto, or it does not serve.
    pub fn mosquitto(programs: &Programs, topic: &str) -> anyhow::Result<Self> {
        let mut peer = Self::new(2)?;
        let program = programs.program(Kind::Mosquitto);
        let limits = "allow_anonymous true\npersistence false\nlog_dest none\nset_tcp_nodelay true\n\
                      max_inflight_messages 65535\nmax_queued_messages 0\n";
        for (index, name) in [(1, "second"), (0, "first")] {
            let mut text = format!("listener {} 127.0.0.1\n{limits}", peer.mqtt[index].port());
            if index == 0 {
                text += &format!(
                    "connection next\naddress {}\ntopic {topic} out 1\nbridge_protocol_version mqttv311\nnotifications false\n",
                    peer.mqtt[1]
                );
            }
            let file = peer.write(&format!("{name}.conf"), &text)?;
            peer.spawn(Command::new(&program).arg("-c").arg(file), name)?;
        }
        peer.wait()?;
        Ok(peer)
    }

    /// Three with routes to each other. JetStream is there, as their MQTT needs it, with one replica.
    ///
    /// # Errors
    /// There is no NATS server, or one does not serve.
    pub fn nats(programs: &Programs) -> anyhow::Result<Self> {
        let program = programs.program(Kind::Nats);
        ensure!(program.is_file(), "no nats-server at {}; scripts/build-nats", program.display());
        let mut peer = Self::new(3)?;
        let routes = [free()?, free()?, free()?];
        let all: Vec<String> = routes.iter().map(|at| format!("\"nats://{at}\"")).collect();
        for (index, (mqtt, route)) in peer.mqtt.clone().iter().zip(&routes).enumerate() {
            let text = format!(
                "server_name: n{index}\nlisten: \"127.0.0.1:-1\"\n\
                 jetstream {{ store_dir: {:?}, max_memory_store: 1GB }}\n\
                 cluster {{ name: bench, listen: \"{route}\", routes: [{}] }}\n\
                 mqtt {{ host: \"127.0.0.1\", port: {}, max_ack_pending: 65535, stream_replicas: 1, consumer_replicas: 1 }}\n\
                 max_pending: 1GB\nwrite_deadline: \"60s\"\n",
                peer.folder.path().join(format!("jetstream-{index}")),
                all.join(", "),
                mqtt.port()
            );
            let name = format!("nats-{index}");
            let file = peer.write(&format!("{name}.conf"), &text)?;
            peer.spawn(Command::new(&program).arg("-c").arg(file), &name)?;
        }
        peer.wait()?;
        Ok(peer)
    }

    fn new(servers: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for a peer")?;
        let mqtt = (0..servers).map(|_| free()).collect::<anyhow::Result<_>>()?;
        Ok(Self { servers: Vec::new(), mqtt, folder })
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    fn spawn(&mut self, command: &mut Command, name: &str) -> anyhow::Result<()> {
        let log = self.folder.path().join(format!("{name}.log"));
        let log = File::create(&log).with_context(|| format!("writing {}", log.display()))?;
        command.stdin(Stdio::null()).stderr(log.try_clone()?).stdout(log);
        let program = command.get_program().display().to_string();
        let child = command.spawn().with_context(|| format!("starting {program}"))?;
        self.servers.push(Owned::new(child));
        Ok(())
    }

    fn wait(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        for (index, at) in self.mqtt.iter().enumerate() {
            let options = || Options {
                host: at.ip().to_string(),
                port: at.port(),
                version: Version::V4,
                client_id: format!("bench-first-{index}"),
                ..Options::default()
            };
            while let Err(error) = Client::connect(options()).and_then(Client::disconnect) {
                if began.elapsed() > START_MAX {
                    bail!("a peer does not serve at {at}: {error}");
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Where they serve MQTT.
    #[must_use]
    pub fn mqtt(&self) -> &[SocketAddr] {
        &self.mqtt
    }

    /// Processor time that all have used.
    ///
    /// # Errors
    /// One is gone.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        self.servers.iter().map(|server| Ok(usage(server.0.id())?.cpu)).sum()
    }
}

fn free() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("finding a free port")?;
    listener.local_addr().context("finding a free port")
}

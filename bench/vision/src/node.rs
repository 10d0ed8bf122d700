//! A node of the program with its endpoints: configured by a file, started, looked at, reloaded.
//!
//! Always true: the process ends with its [`Node`], by its own handle.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bench_harness::Owned;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest, NODE_SERVER_NAME};
use tidegate_load::{connect::TlsArgs, vision::Target};

use crate::{
    root,
    site::{self, Cpu, Place, cpu_seconds, free_port, last_words},
};

/// Where both servers find faces.
pub const ENDPOINT: &str = "/detector/detect/";

/// Detectors of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Workers {
    /// None.
    None,
    /// The one that comes with the program, in Python.
    Own,
    /// The Django server's, `peer/haar.py`, by that Python.
    Peers(PathBuf),
    /// That of this bench, which takes so many milliseconds.
    Bench(f64),
}

/// Configuration of a node beyond its addresses.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Detectors. There is one process of them.
    pub workers: Workers,
    /// Whether it has plain listeners for images.
    pub endpoints: bool,
    /// Whether it has a listener without TLS for pictures.
    pub pictures: bool,
    /// Cameras elsewhere that get a certificate.
    pub cameras: Vec<String>,
    /// More sections.
    pub more: String,
}

impl Default for NodeConfig {
    fn default() -> Self {
        let (cameras, more) = (Vec::new(), String::new());
        Self { workers: Workers::None, endpoints: false, pictures: false, cameras, more }
    }
}

/// Where a node listens.
#[derive(Clone, Copy, Debug)]
struct Ports {
    api: u16,
    link: u16,
    mqtt: u16,
    http: u16,
    tcp: u16,
    pictures: u16,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    process: Owned,
    ports: Ports,
    folder: TempDir,
}

/// The `tidegate` program beside this one.
///
/// # Errors
/// There is none.
pub fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("this program cannot find its own file")?;
    let program = own.with_file_name("tidegate");
    ensure!(program.is_file(), "there is no {}; scripts/bench-vision builds it", program.display());
    Ok(program)
}

impl Node {
    /// Starts it there and waits until all that it is to have listens.
    ///
    /// # Errors
    /// There is no program beside this one, or it does not listen within a minute.
    pub fn start(place: Place<'_>, config: &NodeConfig) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for the node")?;
        let ports = match place {
            Place::Here => Ports {
                api: free_port()?,
                link: free_port()?,
                mqtt: free_port()?,
                http: free_port()?,
                tcp: free_port()?,
                pictures: free_port()?,
            },
            // The peer has the usual ones for images.
            Place::In(..) => {
                Ports { api: 7080, link: 7443, mqtt: 1883, http: 9008, tcp: 9011, pictures: 7081 }
            }
        };
        let request = InitRequest { cameras: config.cameras.clone(), ..InitRequest::default() };
        pki::init(&folder.path().join("data/pki"), &request).context("making certificates")?;
        write(folder.path(), ports, config)?;
        let log = folder.path().join("log");
        let out = File::create(&log).context("writing the node's log")?;
        let mut command = Command::new(program()?);
        command.current_dir(folder.path()).args(["--config", "tidegate.toml", "node"]);
        command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
        let mut process = place.spawn(command)?;
        let said = || format!("the node; {}", last_words(&log));
        let mut awaited = vec![ports.api, ports.mqtt];
        if config.endpoints {
            awaited.extend([ports.http, ports.tcp]);
        }
        if config.pictures {
            awaited.push(ports.pictures);
        }
        place.await_ports(&mut process, &awaited, said)?;
        Ok(Self { process, ports, folder })
    }

    /// Where it takes images: by TLS with the certificate of an application, or plain.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn target(&self, host: &str, is_tcp: bool, is_tls: bool) -> anyhow::Result<Target> {
        let pki = |name: &str| Some(self.data().join("pki").join(name));
        let certificates = TlsArgs {
            cafile: pki("ca.pem"),
            cert: pki("application.pem"),
            key: pki("application.key"),
        };
        let tls =
            if is_tls { certificates.config().context("reading certificates")? } else { None };
        Ok(Target {
            host: host.to_owned(),
            port: match (is_tls, is_tcp) {
                (true, _) => self.ports.api,
                (false, true) => self.ports.tcp,
                (false, false) => self.ports.http,
            },
            tls: tls.map(Arc::new),
            server_name: Some(NODE_SERVER_NAME.to_owned()),
            timeout: Duration::from_secs(30),
        })
    }

    /// Where it gives pictures: by TLS with the certificate of an application, or plain.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn pictures(&self, host: &str, is_tls: bool) -> anyhow::Result<Target> {
        let target = self.target(host, false, is_tls)?;
        Ok(match is_tls {
            true => target,
            false => Target { port: self.ports.pictures, ..target },
        })
    }

    /// Where it serves MQTT.
    #[must_use]
    pub fn mqtt(&self) -> u16 {
        self.ports.mqtt
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Its folder, its data and its configuration.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where certificates and logs are.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The file that it was started with.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("tidegate.toml")
    }

    /// Processor time of it and of its detectors.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu(&self) -> anyhow::Result<Cpu> {
        cpu_seconds(&self.process).with_context(|| self.last_words())
    }

    /// Writes another configuration and has it read.
    ///
    /// # Errors
    /// It cannot be written, or the node is gone.
    pub fn reconfigure(&self, config: &NodeConfig) -> anyhow::Result<()> {
        write(self.folder.path(), self.ports, config)?;
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        let pid = pid.context("a process has a number")?;
        kill_process(pid, Signal::HUP).with_context(|| self.last_words())
    }

    /// An error if it has ended by itself.
    ///
    /// # Errors
    /// It has.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let said = self.last_words();
        site::check(&mut self.process).with_context(|| format!("the node; {said}"))
    }

    /// The end of its log.
    #[must_use]
    pub fn last_words(&self) -> String {
        last_words(&self.folder.path().join("log"))
    }
}

fn write(folder: &Path, ports: Ports, config: &NodeConfig) -> anyhow::Result<()> {
    let path = folder.join("tidegate.toml");
    let text = text(folder, ports, config)?;
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

fn text(folder: &Path, ports: Ports, config: &NodeConfig) -> anyhow::Result<String> {
    let Ports { api, link, mqtt, http, tcp, pictures } = ports;
    let workers = match &config.workers {
        Workers::None => String::new(),
        Workers::Own => "[workers]\ncount = 1\n\n".to_owned(),
        Workers::Peers(python) => {
            let script = root().join("bench/vision/peer/haar.py");
            let command = format!("'{}' '{}'", python.display(), script.display());
            format!("[workers]\ncount = 1\ncommand = {command:?}\n\n")
        }
        Workers::Bench(milliseconds) => {
            let own = std::env::current_exe().context("this program cannot find its own file")?;
            let command = format!("'{}' worker --milliseconds {milliseconds}", own.display());
            format!("[workers]\ncount = 1\ncommand = {command:?}\n\n")
        }
    };
    // Our own program looks for faces as the peer does: one cascade, in steps as large.
    let face_model = match config.workers {
        Workers::Own => "frontal_face",
        Workers::None | Workers::Peers(_) | Workers::Bench(_) => "face",
    };
    let endpoints = match config.endpoints {
        false => String::new(),
        true => format!(
            "[vision]\nlisten = \"0.0.0.0:{http}\"\ntcp_listen = \"0.0.0.0:{tcp}\"\nuser = \"bench\"\nface_model = {face_model:?}\n\n"
        ),
    };
    let web = match config.pictures {
        false => String::new(),
        true => {
            format!("[web]\nplain = \"127.0.0.1:{pictures}\"\nplain_identity = \"user:bench\"\n\n")
        }
    };
    let data = folder.join("data");
    let more = &config.more;
    Ok(format!(
        "[node]\nname = \"edge\"\ndata_dir = {data:?}\napi_listen = \"0.0.0.0:{api}\"\n\n[link]\nlisten = \
         \"0.0.0.0:{link}\"\n\n[mqtt]\nallow_anonymous = true\n\n[mqtt.listener.bench]\nlisten = \"127.0.0.1:{mqtt}\"\n\n\
         {workers}{endpoints}{web}{more}"
    ))
}

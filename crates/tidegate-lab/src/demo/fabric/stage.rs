//! The nodes of the demonstration, and the faults that befall them.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tidegate_api::ApiError;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::process::usage;
use tidegate_message::Code;
use tidegate_netlab::Lab;
use tidegate_sim::medium::Change;

use super::{AUTHORITY, CAMERA, CAMERA_AT, NODES, Node};
use crate::demo::{
    failed, lab_failed,
    network::{free, loopback},
    stage::ClientOptions,
    storage,
};

/// The camera: a picture for the eye, and little work.
const SOURCE: &str = "scene:street?size=320x240&fps=5&people=2&seconds=3&seed=1";
/// Longest run of a command.
const COMMAND_MAX: Duration = Duration::from_secs(20);

/// The addresses of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    link: SocketAddr,
    /// For applications at the node, which may administer it, and for those elsewhere.
    api: SocketAddr,
    api_elsewhere: SocketAddr,
    pub(super) mqtt: SocketAddr,
}

/// The running nodes; ended when dropped.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    program: &'a Path,
    lab: Option<&'a Lab>,
    folder: PathBuf,
    at: [At; NODES.len()],
    children: [Option<Child>; NODES.len()],
}

impl<'a> Stage<'a> {
    /// Makes certificates and configurations below `folder` and starts all nodes.
    ///
    /// # Errors
    /// A file cannot be written, or a node not be started.
    pub(super) fn set(
        program: &'a Path,
        lab: Option<&'a Lab>,
        folder: &Path,
    ) -> Result<Self, ApiError> {
        let pki = folder.join("pki");
        let names = NODES.map(|node| node.name.to_owned()).to_vec();
        let request = InitRequest { nodes: names, ..InitRequest::default() };
        pki::init(&pki, &request).map_err(|error| {
            ApiError::new(Code::STORAGE_FAILED, "the certificates cannot be made")
                .caused_by(tidegate_message::error_chain(&error))
        })?;
        let mut at = Vec::new();
        for node in &NODES {
            at.push(match lab {
                Some(_) => At {
                    link: (node.address(), 7443).into(),
                    api: loopback(7080),
                    api_elsewhere: (node.address(), 7080).into(),
                    mqtt: loopback(1883),
                },
                None => {
                    let api = free()?;
                    At { link: free()?, api, api_elsewhere: api, mqtt: free()? }
                }
            });
        }
        let at: [At; NODES.len()] = at.try_into().expect("one for each node");
        let children = NODES.map(|_| None);
        let mut stage = Self { program, lab, folder: folder.to_owned(), at, children };
        let written = |error| storage("the configuration cannot be written", error);
        for (index, node) in NODES.iter().enumerate() {
            let home = folder.join(node.name).join("data/pki");
            fs::create_dir_all(&home).map_err(written)?;
            for entry in fs::read_dir(&pki).map_err(written)? {
                let entry = entry.map_err(written)?;
                let name = entry.file_name();
                let own = name.to_string_lossy();
                // The key of the authority is at one node, as at a site.
                let is_own = own == "ca.pem"
                    || own.strip_suffix(".pem").or(own.strip_suffix(".key")) == Some(node.name);
                if is_own || index == AUTHORITY {
                    fs::copy(entry.path(), home.join(&name)).map_err(written)?;
                }
            }
            fs::write(stage.config(index), stage.config_text(index)).map_err(written)?;
            stage.start(index)?;
        }
        Ok(stage)
    }

    fn config(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{}.toml", NODES[index].name))
    }

    fn config_text(&self, index: usize) -> String {
        let Node { name, position, .. } = NODES[index];
        let At { link, api, api_elsewhere, mqtt } = self.at[index];
        let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, api.port()));
        // One of each region: a node finds all others by any that it reaches.
        let seeds = format!("{}, {}", self.at[0].link, self.at[NODES.len() / 2].link);
        let data = self.folder.join(name).join("data");
        let mut text = format!(
            "[node]\nname = \"{name}\"\ndata_dir = {data:?}\napi_listen = \"{listen}\"\n\n\
             [link]\nlisten = \"{link}\"\nreconnect_backoff_max = \"1s\"\n\n\
             [fabric]\nenabled = true\nseeds = \"{seeds}\"\napi_advertise = \"{api_elsewhere}\"\n\
             position = \"{position}\"\n\n\
             [mqtt]\ndurability = \"page\"\n\n[mqtt.listener.demo]\nlisten = \"{mqtt}\"\n"
        );
        if index == CAMERA_AT {
            text += &format!("\n[camera.{CAMERA}]\nsource = \"{SOURCE}\"\n");
        }
        text
    }

    /// Starts a node, also again.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(&mut self, index: usize) -> Result<(), ApiError> {
        let log = self.log(index)?;
        let mut command = self.command(index);
        command.arg("node").stdout(Stdio::null()).stderr(log);
        self.children[index] = Some(self.spawn(index, command)?);
        Ok(())
    }

    fn log(&self, index: usize) -> Result<File, ApiError> {
        let path = self.folder.join(format!("{}.log", NODES[index].name));
        let log = File::options().create(true).append(true).open(path);
        log.map_err(|error| storage("a log cannot be written", error))
    }

    fn command(&self, index: usize) -> Command {
        let mut command = Command::new(self.program);
        command.arg("--config").arg(self.config(index)).stdin(Stdio::null());
        command
    }

    fn spawn(&self, index: usize, mut command: Command) -> Result<Child, ApiError> {
        match self.lab {
            Some(lab) => lab.exec(NODES[index].name, command).map_err(lab_failed),
            None => command.spawn().map_err(|error| failed("a program cannot be started", error)),
        }
    }

    /// SIGKILL: without a farewell.
    ///
    /// # Errors
    /// It has ended by itself.
    pub(super) fn kill(&mut self, index: usize) -> Result<(), ApiError> {
        let Some(mut child) = self.children[index].take() else { return Ok(()) };
        let ended = child.kill().and_then(|()| child.wait());
        ended.map(drop).map_err(|error| failed("a node cannot be killed", error))
    }

    /// Stops a node where it stands (`STOP`), or lets it continue (`CONT`).
    ///
    /// # Errors
    /// There is no program `kill`, or no such process.
    pub(super) fn signal(&self, index: usize, signal: &str) -> Result<(), ApiError> {
        let id = self.children[index].as_ref().map(|child| child.id().to_string());
        let status = Command::new("kill").args(["-s", signal]).args(id).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(ApiError::new(Code::INTERNAL, "a node cannot be stopped where it stands")),
            Err(error) => Err(failed("the program `kill` cannot be run", error)),
        }
    }

    /// Takes a node's line down, or up again.
    ///
    /// # Errors
    /// The medium is not emulated any more.
    pub(super) fn cut(&self, index: usize, is_cut: bool) -> Result<(), ApiError> {
        let Some(lab) = self.lab else { return Ok(()) };
        let factor = if is_cut { 0 } else { 1 };
        let change = format!("{} factor={factor}", NODES[index].name);
        let change: Change = change.parse().expect("a change in the documented form");
        lab.apply(change).map_err(lab_failed)
    }

    /// The command that revokes the certificate of a node where the authority is; the list is nowhere else. [`finished`] waits for it.
    ///
    /// # Errors
    /// The command cannot be started.
    pub(super) fn revoke(&self, index: usize) -> Result<Child, ApiError> {
        let mut command = self.command(AUTHORITY);
        command.args(["revoke", NODES[index].name]);
        command.stdout(self.log(AUTHORITY)?).stderr(self.log(AUTHORITY)?);
        self.spawn(AUTHORITY, command)
    }

    /// Where the client of a node connects.
    pub(super) fn mqtt(&self) -> [SocketAddr; NODES.len()] {
        self.at.map(|at| at.mqtt)
    }

    /// How an application reaches the API of each node.
    pub(super) fn apis(&self) -> [ClientOptions; NODES.len()] {
        self.at.map(|at| ClientOptions {
            endpoint: format!("https://{}", at.api),
            pki: self.folder.join("pki"),
        })
    }

    /// Processor time that all nodes have used.
    pub(super) fn used(&self) -> Duration {
        let running = self.children.iter().flatten();
        running.map(|child| usage(child.id()).map(|usage| usage.cpu).unwrap_or_default()).sum()
    }

    /// The name of a node that has ended by itself, with its last words.
    pub(super) fn ended(&mut self) -> Option<String> {
        let has_ended = |child: &mut Option<_>| {
            let child: Option<&mut Child> = child.as_mut();
            child.is_some_and(|child| matches!(child.try_wait(), Ok(Some(_)) | Err(_)))
        };
        let index = self.children.iter_mut().position(has_ended)?;
        Some(format!("{}: {}", NODES[index].name, self.last_words(index)))
    }

    fn last_words(&self, index: usize) -> String {
        let path = self.folder.join(format!("{}.log", NODES[index].name));
        let said = fs::read_to_string(path).unwrap_or_default();
        let mut last: Vec<&str> = said.lines().rev().take(4).collect();
        last.reverse();
        last.join(" / ")
    }

    /// Ends the nodes, and shows what they logged as errors.
    pub(super) fn end(self) {
        let folder = self.folder.clone();
        drop(self);
        for node in &NODES {
            let text = fs::read_to_string(folder.join(format!("{}.log", node.name)));
            for line in text.unwrap_or_default().lines().filter(|line| line.contains(" ERROR ")) {
                println!("{}: {line}", node.name);
            }
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // A node that has ended already cannot be killed, and need not be.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for the end of a command.
///
/// # Errors
/// It fails, or takes too long.
pub(super) fn finished(mut command: Child) -> Result<(), ApiError> {
    let began = Instant::now();
    let status = loop {
        match command.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < COMMAND_MAX => thread::sleep(Duration::from_millis(10)),
            _ => {
                // One that has ended already cannot be killed, and need not be.
                let _ = command.kill();
                let _ = command.wait();
                return Err(ApiError::new(Code::INTERNAL, "a command of the demo does not end"));
            }
        }
    };
    match status.success() {
        true => Ok(()),
        false => {
            let text =
                format!("a command of the demo failed: {status}; the log of its node says why");
            Err(ApiError::new(Code::INTERNAL, text))
        }
    }
}

//! The Django server beside which the endpoints are measured, as a process.

use std::{
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bench_harness::Owned;
use tempfile::TempDir;
use tidegate_load::vision::Target;

use crate::{
    Plan,
    site::{Cpu, Place, cpu_seconds, free_port, last_words},
};

/// How the peer finds boxes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detector {
    /// Haar's cascade.
    Haar,
    /// One box in whatever it is given, after so many milliseconds, one image at a time.
    Echo(f64),
}

/// A running peer; it ends when dropped.
#[derive(Debug)]
pub struct Peer {
    process: Owned,
    http: u16,
    tcp: u16,
    _folder: TempDir,
}

/// The Python with the peer's packages, which is made on first use.
///
/// # Errors
/// It cannot be made here.
pub fn python(plan: &Plan) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(plan.root.join("scripts/vision-peer"));
    let output = command.arg("python").output().context("running scripts/vision-peer")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "there is no peer: {}", said.trim());
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

impl Peer {
    /// Starts it there and waits until it listens.
    ///
    /// # Errors
    /// It cannot be had on this machine, or does not listen.
    pub fn start(plan: &Plan, place: Place<'_>, detector: Detector) -> anyhow::Result<Self> {
        let python = python(plan)?;
        let folder = tempfile::tempdir().context("making a folder for the peer")?;
        let log = folder.path().join("log");
        let out = File::create(&log).context("writing the peer's log")?;
        let (http, tcp) = match place {
            Place::Here => (free_port()?, free_port()?),
            Place::In(..) => (8008, 8011),
        };
        let mut command = Command::new(python);
        command.arg(plan.root.join("bench/vision/peer/server.py"));
        command.args(["--http", &http.to_string(), "--tcp", &tcp.to_string()]);
        match detector {
            Detector::Haar => command.args(["--detector", "haar"]),
            Detector::Echo(milliseconds) => {
                command.args(["--detector", "echo", "--milliseconds"]).arg(milliseconds.to_string())
            }
        };
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
        let mut process = place.spawn(command)?;
        let said = || format!("the Django server; {}", last_words(&log));
        place.await_ports(&mut process, &[http, tcp], said)?;
        Ok(Self { process, http, tcp, _folder: folder })
    }

    /// Where it takes images.
    #[must_use]
    pub fn target(&self, host: &str, is_tcp: bool) -> Target {
        Target {
            host: host.to_owned(),
            port: if is_tcp { self.tcp } else { self.http },
            tls: None,
            server_name: None,
            timeout: Duration::from_secs(30),
        }
    }

    /// Processor time that it has used.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu(&self) -> anyhow::Result<Cpu> {
        cpu_seconds(&self.process)
    }
}

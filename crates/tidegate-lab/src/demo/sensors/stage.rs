//! The two nodes of the demonstration: `tidegate node`, configured by files.

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tidegate_api::ApiError;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::{client::Options, process::usage};
use tidegate_message::Code;
use tidegate_netlab::Lab;

use super::{
    devices::{Sent, Topics},
    failed, lab_failed, storage, within,
};
use crate::demo::network::{free, loopback};

/// The flows at the edge: the examples, and the files that they name.
const FLOWS: [(&str, &str); 4] = [
    ("city", include_str!("../../../../../examples/flows/city.toml")),
    ("taxi", include_str!("../../../../../examples/flows/taxi.toml")),
    ("grid", include_str!("../../../../../examples/flows/grid.toml")),
    ("fit", include_str!("../../../../../examples/flows/fit.toml")),
];
const MODELS: [(&str, &str); 5] = [
    (
        "city-airquality.json",
        include_str!("../../../../../examples/flows/models/city-airquality.json"),
    ),
    ("city-sources.txt", include_str!("../../../../../examples/flows/models/city-sources.txt")),
    ("taxi-fare.json", include_str!("../../../../../examples/flows/models/taxi-fare.json")),
    ("taxi-payments.txt", include_str!("../../../../../examples/flows/models/taxi-payments.txt")),
    ("fit-ecg.json", include_str!("../../../../../examples/flows/models/fit-ecg.json")),
];
/// For a node to listen.
const START_MAX: Duration = Duration::from_secs(30);
/// For a node to end, with its archive whole.
const END_MAX: Duration = Duration::from_secs(30);

/// The running nodes; ended when dropped.
#[derive(Debug)]
pub(super) struct Stage {
    /// The edge node and the core node.
    nodes: [Child; 2],
    mqtt: [SocketAddr; 2],
    folder: PathBuf,
}

impl Stage {
    /// Makes certificates and configuration below `folder`, starts both nodes and waits until they listen.
    pub(super) fn set(program: &Path, lab: Option<&Lab>, folder: &Path) -> Result<Self, ApiError> {
        let pki = folder.join("pki");
        let nodes = ["edge", "core"].map(str::to_owned).to_vec();
        pki::init(&pki, &InitRequest { nodes, ..InitRequest::default() }).map_err(|error| {
            ApiError::new(Code::STORAGE_FAILED, "the certificates cannot be made")
                .caused_by(tidegate_message::error_chain(&error))
        })?;
        let written = |error| storage("the configuration cannot be written", error);
        let models = folder.join("flows/models");
        fs::create_dir_all(&models).map_err(written)?;
        for (name, text) in MODELS {
            fs::write(models.join(name), text).map_err(written)?;
        }
        let mut flows = String::new();
        for (name, text) in FLOWS {
            fs::write(folder.join(format!("flows/{name}.toml")), text).map_err(written)?;
            flows += &format!("[flow.{name}]\nfile = \"flows/{name}.toml\"\n\n");
        }
        let (mqtt, link) = match lab {
            Some(_) => ([1883, 1883].map(loopback), "10.79.1.2:7443".parse().expect("an address")),
            None => ([free()?, free()?], free()?),
        };
        let archive = folder.join("archive");
        fs::create_dir(&archive).map_err(written)?;
        let edge = format!(
            "{flows}[uplink.core]\nto = \"{link}\"\ntopics = \"#\"\ncritical = \"alarm/#\"\nnames = false\n\
             transport = \"quic\"\nreconnect_backoff_max = \"1s\"\n\n[link]\nlisten = \"127.0.0.1:{}\"\n",
            free()?.port(),
        );
        let core = format!(
            "[link]\nlisten = \"{link}\"\n\n\
             [sink.archive]\nkind = \"parquet\"\ntopics = \"#\"\nurl = {:?}\nbatch_age = \"5s\"\n",
            archive.display(),
        );
        let start = |at: usize, name: &str, text: &str| -> Result<Child, ApiError> {
            let home = folder.join(name);
            fs::create_dir_all(home.join("data")).map_err(written)?;
            copy(&pki, &home.join("data/pki")).map_err(written)?;
            let config = folder.join(format!("{name}.toml"));
            let text = format!(
                "[node]\nname = \"{name}\"\ndata_dir = {:?}\napi_listen = \"127.0.0.1:0\"\n\n\
                 [mqtt]\ndurability = \"page\"\n\n[mqtt.listener.demo]\nlisten = \"{}\"\n\n{text}",
                home.join("data"),
                mqtt[at],
            );
            fs::write(&config, text).map_err(written)?;
            let log = File::create(folder.join(format!("{name}.log")))
                .map_err(|error| storage("a log cannot be written", error))?;
            let mut command = Command::new(program);
            command.arg("--config").arg(&config).arg("node");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            match lab {
                Some(lab) => lab.exec(name, command).map_err(lab_failed),
                None => command.spawn().map_err(|error| failed("a node cannot be started", error)),
            }
        };
        let nodes = [start(0, "edge", &edge)?, start(1, "core", &core)?];
        let mut stage = Self { nodes, mqtt, folder: folder.to_owned() };
        for (at, name) in ["edge", "core"].into_iter().enumerate() {
            let address = stage.mqtt[at];
            let began = Instant::now();
            while within(lab, name, || Ok(TcpStream::connect(address).is_err()))? {
                let ended = stage.nodes[at].try_wait().map(|status| status.is_some());
                if ended.unwrap_or(true) || began.elapsed() > START_MAX {
                    let text =
                        format!("the node {name} does not start: {}", stage.last_words(name));
                    return Err(ApiError::new(Code::INTERNAL, text));
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(stage)
    }

    pub(super) fn edge_options(&self) -> Options {
        options(self.mqtt[0])
    }

    pub(super) fn core_options(&self) -> Options {
        options(self.mqtt[1])
    }

    /// Processor time that each node has used.
    pub(super) fn used(&self) -> [Duration; 2] {
        [0, 1].map(|at| usage(self.nodes[at].id()).map(|usage| usage.cpu).unwrap_or_default())
    }

    fn last_words(&self, name: &str) -> String {
        let said = fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default();
        let mut last: Vec<&str> = said.lines().rev().take(4).collect();
        last.reverse();
        last.join(" / ")
    }

    /// Ends the nodes and looks whether the archive has each message that was sent and each that flows found, and no other.
    pub(super) fn archive(
        &mut self,
        sent: &Sent,
        raised: &Topics,
    ) -> Result<(&'static str, String, bool), ApiError> {
        self.finish()?;
        let kept = super::archive::read(&self.folder.join("archive"))?;
        let mut topics = Topics::new();
        for (topic, payload) in &kept.rows {
            topics.entry(topic.clone()).or_default().add(payload);
        }
        let all = || sent.topics.iter().flatten().chain(raised);
        let same = all().filter(|(topic, chain)| topics.get(*topic) == Some(chain)).count();
        let count = all().count();
        let text = format!(
            "{} rows of {} topics in {} Parquet files, {same} of {count} topics byte for byte and in order",
            kept.rows.len(),
            topics.len(),
            kept.files,
        );
        Ok(("archive", text, same == count && topics.len() == count))
    }

    /// Asks the nodes to end and waits.
    fn finish(&mut self) -> Result<(), ApiError> {
        for child in &mut self.nodes {
            tidegate_sys::process::terminate(child.id())
                .map_err(|error| failed("a node cannot be ended", error))?;
            let began = Instant::now();
            while child.try_wait().is_ok_and(|status| status.is_none()) {
                if began.elapsed() > END_MAX {
                    return Err(ApiError::new(Code::INTERNAL, "a node does not end"));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Shows what the nodes logged as errors.
    pub(super) fn end(self) {
        for name in ["edge", "core"] {
            let path = self.folder.join(format!("{name}.log"));
            let text = fs::read_to_string(path).unwrap_or_default();
            for line in text.lines().filter(|line| line.contains("ERROR")) {
                println!("{name}: {line}");
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.nodes {
            // A node that has ended already cannot be killed, and need not be.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn options(address: SocketAddr) -> Options {
    Options { host: address.ip().to_string(), port: address.port(), ..Options::default() }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

//! The nodes of the demo: commands of `tidegate`, each in its namespace, configured by a file.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tidegate_api::ApiError;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_message::Code;
use tidegate_netlab::Lab;

use super::{DemoOptions, clip::Clip, lab_failed, storage};

/// Where the application finds the node's API.
const API: &str = "10.77.2.1:7080";
/// Where cameras find the node.
const LINK: &str = "10.77.1.1:7443";

/// The running nodes; ended when dropped.
pub(super) struct Stage {
    node: Child,
    cameras: Vec<(String, Child)>,
    pki: PathBuf,
    logs: PathBuf,
}

/// How the application reaches the node.
pub(super) struct ClientOptions {
    pub(super) endpoint: String,
    pub(super) pki: PathBuf,
}

impl Stage {
    /// Makes certificates and configuration below `work` and starts every node.
    pub(super) fn set(
        lab: &Lab,
        work: &Path,
        options: &DemoOptions,
        clip: &Clip,
    ) -> Result<Self, ApiError> {
        let data = work.join("data");
        let pki = data.join("pki");
        let names: Vec<String> = (1..=options.cameras).map(|n| format!("cam{n}")).collect();
        let request = InitRequest { cameras: names.clone(), ..InitRequest::default() };
        pki::init(&pki, &request).map_err(|error| {
            ApiError::new(Code::STORAGE_FAILED, "the certificates cannot be made")
                .caused_by(tidegate_message::error_chain(&error))
        })?;
        let config = work.join("tidegate.toml");
        fs::write(&config, config_text(&data, &work.join("tables")))
            .map_err(|error| storage("the configuration cannot be written", error))?;
        let program = &options.program;
        let node = start(program, lab, "edge", work, &config, &["node"])?;
        let mut stage = Self { node, cameras: Vec::new(), pki, logs: work.to_owned() };
        let source = clip.source();
        for name in names {
            let arguments = ["camera", "--name", &name, "--source", &source];
            let camera = start(program, lab, &name, work, &config, &arguments)?;
            stage.cameras.push((name, camera));
        }
        Ok(stage)
    }

    pub(super) fn camera_names(&self) -> Vec<String> {
        self.cameras.iter().map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn client_options(&self) -> ClientOptions {
        ClientOptions { endpoint: format!("https://{API}"), pki: self.pki.clone() }
    }

    /// Whether each camera's node still runs.
    pub(super) fn alive(&mut self) -> BTreeMap<String, bool> {
        let alive = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.cameras.iter_mut().map(|(name, child)| (name.clone(), alive(child))).collect()
    }

    /// Ends every node; errors that they logged are shown.
    pub(super) fn end(self) {
        let logs = self.logs.clone();
        drop(self);
        for entry in fs::read_dir(logs).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = fs::read_to_string(&path).unwrap_or_default();
                for line in text.lines().filter(|line| line.contains(" ERROR ")) {
                    println!("{}: {line}", path.file_stem().unwrap_or_default().to_string_lossy());
                }
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let cameras = self.cameras.iter_mut().map(|(_, camera)| camera);
        for child in cameras.chain([&mut self.node]) {
            // A node that has ended already cannot be killed, and need not be.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(
    program: &Path,
    lab: &Lab,
    node: &str,
    work: &Path,
    config: &Path,
    arguments: &[&str],
) -> Result<Child, ApiError> {
    let log = File::create(work.join(format!("{node}.log")))
        .map_err(|error| storage("a log cannot be written", error))?;
    let mut command = Command::new(program);
    command
        .arg("--config")
        .arg(config)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    lab.exec(node, command).map_err(lab_failed)
}

fn config_text(data: &Path, tables: &Path) -> String {
    format!(
        "[node]\nname = \"edge\"\ndata_dir = {data:?}\napi_listen = \"{API}\"\n\n\
         [link]\nlisten = \"{LINK}\"\nedge = \"{LINK}\"\n\n\
         [log]\ndurability = \"memory\"\ncamera_bytes = \"256MiB\"\nstream_bytes = \"64MiB\"\n\n\
         [frames]\ntables_dir = {tables:?}\nframe_bytes_max = \"8MB\"\n"
    )
}

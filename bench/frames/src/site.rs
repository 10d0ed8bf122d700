//! The nodes of a live bench: the user's program, an edge node and cameras, on loopback or each in a namespace of a lab.
//!
//! ```text
//!  cam1 … camN ══ the first medium ══ edge ══ (lan0 ══ app, where the scenario has one)
//! ```
//!
//! Nodes are the commands `tidegate node` and `tidegate camera`, configured by a file as a user's are. The application is the
//! client library on a thread of this process, inside the application's namespace: `app`, else the edge node's own.
//!
//! Always true: every node ends with its [`Site`], by its own handle, before the namespaces go.

use std::{
    fmt::Write as _,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_netlab::{Audit, Lab, Options};
use tidegate_sim::medium::Scenario;
use tidegate_sys::clock::monotonic_nanos;

/// The edge node's name, and that of its namespace.
const EDGE: &str = "edge";
/// The application's namespace, where a scenario has one.
const APP: &str = "app";
const API_PORT: u16 = 7080;
const LINK_PORT: u16 = 7443;

/// The nodes of a site.
#[derive(Clone, Debug)]
pub struct SiteConfig<'a> {
    /// The `tidegate` program.
    pub program: &'a Path,
    /// The source of each camera; they are called `cam1` and so on.
    pub sources: Vec<String>,
    /// Folder of characterization tables, if not the built-in ones.
    pub tables: Option<&'a Path>,
    /// Bound of each camera's log, at least 16 times that of a frame.
    pub camera_log: &'a str,
    /// Bound of a frame.
    pub frame: &'a str,
    /// Whether the application runs on the edge node itself even where the scenario has a node for it.
    pub app_at_edge: bool,
}

/// Running nodes.
pub struct Site {
    node: Child,
    cameras: Vec<(String, Child)>,
    lab: Option<Lab>,
    /// When the medium's schedule began, in nanoseconds of `CLOCK_MONOTONIC`.
    began: i64,
    app: &'static str,
    endpoint: String,
    program: PathBuf,
    work: TempDir,
}

impl Site {
    /// Starts all nodes; with a scenario in its namespaces, else on loopback.
    ///
    /// # Errors
    /// A lab cannot be made here, certificates cannot be made, or a program cannot be started.
    pub fn start(config: &SiteConfig<'_>, scenario: Option<&Scenario>) -> anyhow::Result<Self> {
        let work = tempfile::tempdir().context("making a folder for the nodes")?;
        let names: Vec<String> = (1..=config.sources.len()).map(|n| format!("cam{n}")).collect();
        let request = InitRequest { cameras: names.clone(), ..InitRequest::default() };
        pki::init(&work.path().join("data/pki"), &request).context("making certificates")?;
        let lab = scenario.map(|scenario| Lab::up(scenario, &Options::default())).transpose()?;
        let began = monotonic_nanos();
        let has_app = scenario.is_some_and(|scenario| scenario.nodes().contains(&APP));
        let app = if has_app && !config.app_at_edge { APP } else { EDGE };
        let (api, link) = addresses(lab.as_ref(), app)?;
        let file = work.path().join("tidegate.toml");
        fs::write(&file, config_text(config, &work.path().join("data"), &api, &link))
            .with_context(|| format!("writing {}", file.display()))?;
        let start = |node: &str, arguments: &[&str]| {
            start(lab.as_ref(), config.program, work.path(), node, arguments)
        };
        let node = start(EDGE, &["node"])?;
        let mut site = Self {
            node,
            cameras: Vec::new(),
            lab: None,
            began,
            app,
            endpoint: api,
            program: config.program.to_owned(),
            work,
        };
        for (name, source) in names.iter().zip(&config.sources) {
            // A camera that fails to start ends those that run, with the site.
            let arguments = ["camera", "--name", name, "--source", source];
            let camera =
                self::start(lab.as_ref(), config.program, site.work.path(), name, &arguments)?;
            site.cameras.push((name.clone(), camera));
        }
        site.lab = lab;
        Ok(site)
    }

    /// The cameras' names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.cameras.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Where the application finds the node's API.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("https://{}", self.endpoint)
    }

    /// The folder of the certificates.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.work.path().join("data/pki")
    }

    /// When the medium's schedule began, in nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn began(&self) -> i64 {
        self.began
    }

    /// The lab, unless the nodes are on loopback.
    #[must_use]
    pub fn lab(&self) -> Option<&Lab> {
        self.lab.as_ref()
    }

    /// The process of the edge node, then those of the cameras, with their names.
    #[must_use]
    pub fn processes(&self) -> Vec<(String, u32)> {
        let cameras = self.cameras.iter().map(|(name, child)| (name.clone(), child.id()));
        [(EDGE.to_owned(), self.node.id())].into_iter().chain(cameras).collect()
    }

    /// Does `work` where the application is.
    ///
    /// # Errors
    /// The namespace cannot be entered, or what `work` says.
    pub fn within_app<R: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<R> + Send,
    ) -> anyhow::Result<R> {
        match &self.lab {
            Some(lab) => lab.within(self.app, work)?,
            None => work(),
        }
    }

    /// Starts the program where the application is, with the site's configuration and those arguments; its end is the caller's.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn program(&self, arguments: &[String], output: Stdio) -> anyhow::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.work.path().join("tidegate.toml")).args(arguments);
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        match &self.lab {
            Some(lab) => Ok(lab.exec(self.app, command)?),
            None => command.spawn().context("starting the program"),
        }
    }

    /// Adds to `error` the nodes that have ended, with their last words.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let mut ended = String::new();
        let cameras = self.cameras.iter_mut().map(|(name, child)| (name.as_str(), child));
        for (name, child) in [(EDGE, &mut self.node)].into_iter().chain(cameras) {
            if let Ok(Some(status)) = child.try_wait() {
                let said = fs::read_to_string(self.work.path().join(format!("{name}.log")));
                let said = said.unwrap_or_default();
                let last: Vec<&str> = said.lines().rev().take(4).collect();
                let last: Vec<&str> = last.into_iter().rev().collect();
                let _ = write!(ended, "; {name} ended with {status}: {}", last.join(" / "));
            }
        }
        if ended.is_empty() { error } else { error.context(format!("nodes are gone{ended}")) }
    }

    /// Ends all nodes, then the lab, and returns what it says of the run.
    ///
    /// # Errors
    /// A node ended before its time, or the lab has failed.
    pub fn finish(mut self) -> anyhow::Result<Option<Audit>> {
        let mut gone = Vec::new();
        for (name, child) in &mut self.cameras {
            gone.extend(child.try_wait()?.map(|status| format!("{name} ended with {status}")));
        }
        gone.extend(self.node.try_wait()?.map(|status| format!("{EDGE} ended with {status}")));
        self.end_nodes();
        let audit = self.lab.take().map(Lab::finish).transpose()?;
        if !gone.is_empty() {
            bail!("nodes ended during the run: {}", gone.join(", "));
        }
        Ok(audit)
    }

    fn end_nodes(&mut self) {
        for child in self.cameras.iter_mut().map(|(_, child)| child).chain([&mut self.node]) {
            // A node that has ended already cannot be killed, and need not be.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.end_nodes();
    }
}

/// The `tidegate` program beside this one.
///
/// # Errors
/// There is none.
pub fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("this program cannot find its own file")?;
    let program = own.with_file_name("tidegate");
    ensure!(program.is_file(), "there is no {}; scripts/bench-frames builds it", program.display());
    Ok(program)
}

/// Where the API and the link listen.
fn addresses(lab: Option<&Lab>, app: &str) -> anyhow::Result<(String, String)> {
    let Some(lab) = lab else {
        let free = || -> anyhow::Result<String> {
            let listener = TcpListener::bind("127.0.0.1:0").context("finding a free port")?;
            Ok(listener.local_addr().context("finding a free port")?.to_string())
        };
        return Ok((free()?, free()?));
    };
    let edge = lab.node(EDGE)?.addresses();
    let link = format!("{}:{LINK_PORT}", edge[0].1);
    let api = match (app, edge.get(1)) {
        (APP, Some((_, address))) => format!("{address}:{API_PORT}"),
        _ => format!("127.0.0.1:{API_PORT}"),
    };
    Ok((api, link))
}

fn config_text(config: &SiteConfig<'_>, data: &Path, api: &str, link: &str) -> String {
    let tables = config.tables.map(|tables| format!("tables_dir = {tables:?}\n"));
    format!(
        "[node]\nname = \"{EDGE}\"\ndata_dir = {data:?}\napi_listen = \"{api}\"\n\n\
         [link]\nlisten = \"{link}\"\nedge = \"{link}\"\n\n\
         [log]\ncamera_bytes = \"{}\"\nstream_bytes = \"64MiB\"\n\n\
         [frames]\nframe_bytes_max = \"{}\"\n{}",
        config.camera_log,
        config.frame,
        tables.unwrap_or_default(),
    )
}

fn start(
    lab: Option<&Lab>,
    program: &Path,
    work: &Path,
    node: &str,
    arguments: &[&str],
) -> anyhow::Result<Child> {
    let log = work.join(format!("{node}.log"));
    let log = File::create(&log).with_context(|| format!("writing {}", log.display()))?;
    let mut command = Command::new(program);
    command.arg("--config").arg(work.join("tidegate.toml")).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    match lab {
        Some(lab) => Ok(lab.exec(node, command)?),
        None => command.spawn().with_context(|| format!("starting {}", program.display())),
    }
}

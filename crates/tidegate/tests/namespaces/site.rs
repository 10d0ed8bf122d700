//! An edge node and a camera, each a process in its namespace, and an application inside another.

use std::{
    fs::{self, File},
    future::Future,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use futures::StreamExt;
use tempfile::TempDir;
use tidegate_client::{
    Bounds, Client, Credentials, Delivery, Event, Frame, Instant, SubscribeRequest, Subscription,
};
use tidegate_identity::pki::{self, InitRequest, NODE_SERVER_NAME};
use tidegate_netlab::{Lab, LabError, Options};
use tidegate_sim::medium::Scenario;

use crate::poll_async::poll;

const SCENARIO: &str = r#"
seed = 3
[[medium]]
name = "air0"
kind = "wan"
rate = "50Mbit"
delay = "2ms"
queue = "256KiB"
port = [
  { node = "edge", address = "10.78.1.1/24" },
  { node = "cam1", address = "10.78.1.11/24", default_route = true },
]
[[medium]]
name = "lan0"
kind = "wan"
rate = "1Gbit"
queue = "4MiB"
port = [
  { node = "edge", address = "10.78.2.1/24" },
  { node = "app", address = "10.78.2.2/24", default_route = true },
]
"#;

const SOURCE: &str = "scene:street?size=320x240&fps=10&people=3&seconds=3&seed=1";

/// The processes of one site; all end with it.
pub(crate) struct Site {
    pub(crate) lab: Lab,
    pub(crate) folder: TempDir,
    source: &'static str,
    node: Option<Child>,
    camera: Mutex<Option<Child>>,
}

impl Site {
    /// A running site, or why there can be none here.
    pub(crate) fn up() -> Option<Self> {
        Self::up_with(SCENARIO, SOURCE)
    }

    /// The same on another medium of the same addresses, with a camera of that source.
    pub(crate) fn up_with(scenario: &str, source: &'static str) -> Option<Self> {
        let lab = lab(scenario)?;
        let folder = tempfile::tempdir().expect("a folder");
        let request = InitRequest {
            nodes: ["edge", "pole"].map(str::to_owned).to_vec(),
            cameras: vec!["cam1".into()],
            ..InitRequest::default()
        };
        pki::init(&folder.path().join("data/pki"), &request).expect("certificates");
        let config = format!(
            "[node]\nname = \"edge\"\ndata_dir = {:?}\napi_listen = \"10.78.2.1:7080\"\n\
             [link]\nlisten = \"10.78.1.1:7443\"\nedge = \"10.78.1.1:7443\"\nreconnect_backoff_max = \"1s\"\n\
             [log]\ncamera_bytes = \"128MiB\"\nstream_bytes = \"64MiB\"\n\
             [frames]\nframe_bytes_max = \"4MB\"\n",
            folder.path().join("data")
        );
        fs::write(folder.path().join("tidegate.toml"), config).expect("a configuration");
        let mut site = Self { lab, folder, source, node: None, camera: Mutex::new(None) };
        site.start_node();
        site.start_camera();
        Some(site)
    }

    fn start(&self, node: &str, arguments: &[&str]) -> Child {
        self.start_logging(node, &self.folder.path().join(format!("{node}.log")), arguments)
    }

    fn start_logging(&self, node: &str, log: &Path, arguments: &[&str]) -> Child {
        let log = File::options().create(true).append(true).open(log).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .arg("--config")
            .arg(self.folder.path().join("tidegate.toml"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.lab.exec(node, command).expect("a process starts")
    }

    /// Starts a node next to the camera that holds the certificate of `pole` and is configured by `more`.
    pub(crate) fn start_pole(&self, more: &str) -> Pole {
        let folder = self.folder.path().join("pole");
        let (from, to) = (self.folder.path().join("data/pki"), folder.join("data/pki"));
        fs::create_dir_all(&to).expect("a folder");
        for name in ["ca.pem", "pole.pem", "pole.key"] {
            fs::copy(from.join(name), to.join(name)).expect("a copy");
        }
        let config = folder.join("tidegate.toml");
        let text = format!("[node]\nname = \"pole\"\ndata_dir = {:?}\n{more}", folder.join("data"));
        fs::write(&config, text).expect("a configuration");
        let log = File::create(self.folder.path().join("pole.log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("--config").arg(config).arg("node");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Pole { process: Some(self.lab.exec("cam1", command).expect("a process starts")) }
    }

    pub(crate) fn start_node(&mut self) {
        self.node = Some(self.start("edge", &["node"]));
    }

    pub(crate) fn start_camera(&self) {
        let camera = self.start("cam1", &["camera", "--name", "cam1", "--source", self.source]);
        *self.camera() = Some(camera);
    }

    /// Runs a camera node whose certificate comes from another authority until it gives up; returns its exit status and what it
    /// said.
    pub(crate) fn stranger(&self) -> (Option<i32>, String) {
        let folder = self.folder.path().join("elsewhere");
        let request = InitRequest { cameras: vec!["stranger".into()], ..InitRequest::default() };
        pki::init(&folder.join("pki"), &request).expect("certificates");
        let folder = format!("node.data_dir={}", folder.display());
        let settings = ["--set", &folder, "--set", "link.max_reconnects=1"];
        let camera = ["camera", "--name", "stranger", "--source", SOURCE];
        let log = self.folder.path().join("stranger.log");
        let mut process = self.start_logging("cam1", &log, &[&settings[..], &camera].concat());
        let status = process.wait().expect("its end");
        (status.code(), fs::read_to_string(&log).expect("its log"))
    }

    fn camera(&self) -> MutexGuard<'_, Option<Child>> {
        self.camera.lock().expect("no panic while a camera is started")
    }

    /// Starts `tidegate subscribe` where the application is, which saves what it gets.
    pub(crate) fn start_subscriber(&self, name: &str) -> Subscriber {
        let saved = self.folder.path().join(name);
        let folder = saved.to_str().expect("a folder of plain letters");
        let arguments = ["subscribe", "cam1", "--latency", "2s", "--accuracy", "0.5"];
        let process = self.start("app", &[&arguments[..], &["--save", folder]].concat());
        Subscriber { process: Some(process), saved: saved.join("cam1") }
    }

    pub(crate) fn kill_node(&mut self) {
        kill(self.node.take());
    }

    pub(crate) fn kill_camera(&self) {
        kill(self.camera().take());
    }

    /// Stops the edge node where it stands (`STOP`), or lets it continue (`CONT`).
    pub(crate) fn signal_node(&self, signal: &str) {
        send(signal, self.node.as_ref());
    }

    /// As [`Site::signal_node`], of the camera node.
    pub(crate) fn signal_camera(&self, signal: &str) {
        send(signal, self.camera().as_ref());
    }

    /// Runs an application inside its namespace.
    pub(crate) fn app<T: Send>(&self, work: impl AsyncFnOnce(App) -> T + Send) -> T {
        let pki = self.folder.path().join("data/pki");
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let app = App { client: connect(&pki).await };
                work(app).await
            })
        };
        self.lab.within("app", run).expect("the namespace can be entered")
    }
}

fn send(signal: &str, process: Option<&Child>) {
    let id = process.expect("a running process").id().to_string();
    let told = Command::new("kill").args(["-s", signal, &id]).status();
    assert!(told.expect("a `kill` program").success());
}

/// A node next to the camera; ends when dropped.
pub(crate) struct Pole {
    process: Option<Child>,
}

impl Drop for Pole {
    fn drop(&mut self) {
        kill(self.process.take());
    }
}

/// A process that subscribes; ends when dropped.
pub(crate) struct Subscriber {
    process: Option<Child>,
    saved: PathBuf,
}

impl Subscriber {
    /// How many frames it has saved.
    pub(crate) fn frames(&self) -> usize {
        fs::read_dir(&self.saved).map_or(0, Iterator::count)
    }

    /// Stops the process where it stands (`STOP`), or lets it continue (`CONT`).
    pub(crate) fn signal(&self, signal: &str) {
        send(signal, self.process.as_ref());
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        kill(self.process.take());
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in ["edge", "cam1", "app", "pole"] {
                let log = fs::read_to_string(self.folder.path().join(format!("{node}.log")));
                eprintln!("--- {node}\n{}", log.unwrap_or_default());
            }
        }
        kill(self.camera().take());
        kill(self.node.take());
    }
}

/// A lab of that scenario, or why there can be none here.
pub(crate) fn lab(scenario: &str) -> Option<Lab> {
    let scenario = Scenario::parse(scenario, Path::new("")).expect("the scenario is readable");
    match Lab::up(&scenario, &Options::default()) {
        Ok(lab) => Some(lab),
        Err(error @ LabError::NeedsRoot { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

pub(crate) fn kill(child: Option<Child>) {
    if let Some(mut child) = child {
        // SIGKILL: no goodbye. One that has ended by itself is an error of its own test.
        child.kill().expect("a running process");
        child.wait().expect("its end");
    }
}

async fn connect(pki: &Path) -> Client {
    let file = |name: &str| pki.join(name);
    let credentials =
        Credentials::load(file("ca.pem"), file("application.pem"), file("application.key"))
            .expect("the application's certificate")
            .server_name(NODE_SERVER_NAME);
    let up = poll(Duration::from_secs(60), async || {
        let client = Client::connect("https://10.78.2.1:7080", credentials.clone()).await.ok()?;
        let cameras = client.cameras().await.ok()?;
        let is_there = cameras.iter().any(|camera| camera.online && camera.newest_at.is_some());
        is_there.then_some(client)
    });
    up.await.expect("it comes in time")
}

/// The application's side.
pub(crate) struct App {
    pub(crate) client: Client,
}

impl App {
    pub(crate) async fn subscribe(
        &self,
        change: impl FnOnce(&mut SubscribeRequest),
    ) -> Subscription {
        let mut request =
            SubscribeRequest::new("cam1", Duration::from_secs(2), 0.5).expect("a request");
        change(&mut request);
        self.client.subscribe(request).await.expect("a subscription")
    }

    /// The entries of the camera's log from the first to the last of these. Asked for with another bound, so that no
    /// transfer that
    /// runs already is shared, which may have lost something.
    pub(crate) async fn captured(&self, seen: &[Instant]) -> Vec<Instant> {
        let (first, last) = (seen[0], seen[seen.len() - 1]);
        let past = |request: &mut SubscribeRequest| {
            request.demand.delivery = Delivery::Every;
            request.demand.bounds = Bounds::new(Duration::from_secs(1), 0.5).expect("bounds");
            request.from = Some(first);
            request.to = Some(last + Duration::from_nanos(1));
        };
        let mut subscription = self.subscribe(past).await;
        let mut captured = Vec::new();
        while captured.last() != Some(&last) {
            captured.push(frame(&mut subscription).await.captured_at);
        }
        captured
    }
}

/// The result of the future, within so many seconds.
pub(crate) async fn within<T>(seconds: u64, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), future).await.expect("it comes in time")
}

/// The next frame.
pub(crate) async fn frame(subscription: &mut Subscription) -> Frame {
    let next = async {
        while let Some(event) = subscription.next().await {
            if let Event::Frame(frame) = event.expect("the subscription holds") {
                return frame;
            }
        }
        panic!("the subscription ended");
    };
    within(60, next).await
}

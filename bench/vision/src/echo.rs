//! The endpoints with a detector that does nothing, in one process: what a request costs without a worker.
//!
//! It serves what `[vision]` of a node does, on plain listeners, by the same crate and on a runtime like the node's. The node has no such
//! detector, and needs none.

use std::{
    env,
    fs::File,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use bench_harness::Owned;
use bytes::Bytes;
use tempfile::TempDir;
use tidegate_identity::access::Access;
use tidegate_load::vision::Target;
use tidegate_message::{Detection, FrameSize, Rect};
use tidegate_ports::{DetectError, Looker, Outcome, Request, Times};
use tidegate_vision::{
    Detector, Listener, ListenerSettings, ModelInfo, Models, Protocol, Vision, VisionSettings,
};
use tidegate_wire::NodeId;
use tidegate_workers::{NotLoaded, WorkerError};
use tokio_util::sync::CancellationToken;

use crate::site::{Cpu, Place, cpu_seconds, free_port, last_words};

/// The model that the paths of both servers ask for.
const MODEL: &str = "face";

/// Serves images over HTTP, with WebSocket, and by the persistent protocol until the process is ended.
///
/// # Errors
/// A port is taken.
pub fn serve(http: u16, tcp: u16) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let vision = Vision::with(
            VisionSettings::default(),
            Arc::new(Echo),
            Access::default(),
            stop.clone(),
        );
        let settings = |port: u16, protocol| ListenerSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], port)),
            protocol,
            tls: None,
            user: "bench".to_owned(),
            origins: tidegate_message::origins::Origins::default(),
            connections_max: 1000,
        };
        let http = Listener::bind(settings(http, Protocol::Http)).await.context("HTTP")?;
        let tcp = Listener::bind(settings(tcp, Protocol::Tcp)).await.context("TCP")?;
        tokio::join!(http.serve(vision.clone(), stop.clone()), tcp.serve(vision.clone(), stop));
        Ok(())
    })
}

/// Finds one box in whatever it is given.
#[derive(Debug)]
struct Echo;

#[async_trait]
impl Looker for Echo {
    async fn look(&self, request: Request) -> Result<Outcome, DetectError> {
        let size = request.size.unwrap_or(FrameSize { width: 1, height: 1 });
        match request.model {
            Some(name) if name != MODEL => Err(unknown(name)),
            _ => Ok(Outcome {
                boxes: Rect::new(0.0, 0.0, f64::from(size.width), f64::from(size.height))
                    .map(|rect| Detection { rect, score: 1.0, label: "picture".into() })
                    .into_iter()
                    .collect(),
                classes: Vec::new(),
                poses: Vec::new(),
                size: Some(size),
                times: Times::default(),
            }),
        }
    }
}

#[async_trait]
impl Detector for Echo {
    fn looker(self: Arc<Self>, _: NodeId) -> Arc<dyn Looker> {
        self
    }

    async fn models(&self) -> Result<Models, DetectError> {
        let model = ModelInfo { name: MODEL.to_owned(), ..ModelInfo::default() };
        Ok(Models {
            detector: "echo".to_owned(),
            models: vec![model],
            ready: 1,
            ..Models::default()
        })
    }

    async fn load(&self, _: &str) -> Result<(), NotLoaded> {
        Err(NotLoaded::NoFolder)
    }

    async fn unload(&self, name: &str) -> Result<(), DetectError> {
        Err(unknown(name.to_owned()))
    }

    async fn train(
        &self,
        _: NodeId,
        _: &str,
        _: &str,
        _: Bytes,
    ) -> Result<Option<u64>, DetectError> {
        Err(DetectError::Worker { source: Arc::new(WorkerError::NoProgram) })
    }
}

fn unknown(name: String) -> DetectError {
    DetectError::UnknownModel { name, known: vec![MODEL.to_owned()] }
}

/// These endpoints as a process, which ends when dropped.
#[derive(Debug)]
pub struct Endpoints {
    process: Owned,
    http: u16,
    tcp: u16,
    _folder: TempDir,
}

impl Endpoints {
    /// Starts them and waits until they listen.
    ///
    /// # Errors
    /// They do not listen.
    pub fn start() -> anyhow::Result<Self> {
        let own = env::current_exe().context("this program cannot find its own file")?;
        let folder = tempfile::tempdir().context("making a folder for the endpoints")?;
        let log = folder.path().join("log");
        let out = File::create(&log).context("writing the endpoints' log")?;
        let (http, tcp) = (free_port()?, free_port()?);
        let mut command = Command::new(own);
        command.args(["echo", "--http", &http.to_string(), "--tcp", &tcp.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
        let mut process = Place::Here.spawn(command)?;
        let said = || format!("the endpoints; {}", last_words(&log));
        Place::Here.await_ports(&mut process, &[http, tcp], said)?;
        Ok(Self { process, http, tcp, _folder: folder })
    }

    /// Where they take images.
    #[must_use]
    pub fn target(&self, is_tcp: bool) -> Target {
        Target {
            host: "127.0.0.1".to_owned(),
            port: if is_tcp { self.tcp } else { self.http },
            tls: None,
            server_name: None,
            timeout: Duration::from_secs(30),
        }
    }

    /// Processor time that they have used.
    ///
    /// # Errors
    /// They are gone.
    pub fn cpu(&self) -> anyhow::Result<Cpu> {
        cpu_seconds(&self.process)
    }
}

//! An edge node, cameras and applications on loopback, in one process but over real sockets.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use tempfile::TempDir;
use tidegate_broker::BrokerConfig;
use tidegate_bus::Bus;
use tidegate_camera::camera::{self, CameraError, CameraSettings, DialSettings, Privacy};
use tidegate_client::{
    ApiError, CameraInfo, Client, Credentials, Delivery, Event, Instant, SubscribeRequest,
};
use tidegate_frame::{coordinator::CoordinatorConfig, knob::FrameLimits, transfer::TransferConfig};
use tidegate_identity::{
    access::Access,
    pki::{self, InitRequest, Revocations},
};
use tidegate_link::{
    link::{LinkSettings, Transport},
    roles::Links,
};
use tidegate_log::LogConfig;
use tidegate_process::health::Health;
use tidegate_rpc::{Administration, ServerConfig, server::ALPN};
use tidegate_server::{
    Server,
    settings::{AllAnonymous, ServerSettings},
};
use tidegate_streams::{OwnCamera, Streams, StreamsSettings};
use tidegate_uplinks::{Receivers, UplinkLinks};
use tidegate_web::WebSettings;
use tidegate_wire::{Role, TransferHints};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::poll_async::poll;

/// Waits until the edge node says so of a camera.
pub(crate) async fn until(client: &Client, name: &str, is: impl Fn(&CameraInfo) -> bool) {
    let name = name.parse().expect("a camera name");
    let ask = async || client.camera(&name).await.ok().filter(|info| is(info));
    let said = poll(Duration::from_secs(60), ask).await;
    assert!(said.is_some(), "{:?}", client.camera(&name).await);
}

/// Waits until a camera's log reaches that far back.
pub(crate) async fn until_past(client: &Client, name: &str, span: Duration) {
    until(client, name, |camera| match (camera.oldest_at, camera.newest_at) {
        (Some(oldest), Some(newest)) => newest.since(oldest) >= span,
        _ => false,
    })
    .await;
}

/// Certificates that the world is made with.
pub(crate) const CAMERAS: [&str; 3] = ["cam1", "cam2", "cam3"];

/// A running edge node and the certificates of all who may speak to it.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    /// The edge node's.
    pub(crate) revocations: Arc<Revocations>,
    pub(crate) api: SocketAddr,
    pub(crate) link: SocketAddr,
    /// The cameras of its configuration.
    pub(crate) cameras: watch::Sender<Vec<OwnCamera>>,
    /// The rights at the edge node, its revocations aside.
    access: Access,
    /// Its MQTT broker, if it serves one.
    broker: Option<Server>,
    node: Option<(JoinHandle<()>, CancellationToken)>,
}

/// A running camera node; stops when dropped.
pub(crate) struct CameraNode {
    pub(crate) task: JoinHandle<Result<(), CameraError>>,
    stop: CancellationToken,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::on(Ipv4Addr::LOCALHOST.into()).await
    }

    /// A world whose edge node listens on `address`.
    pub(crate) async fn on(address: IpAddr) -> Self {
        Self::with(address, Access::default(), None).await
    }

    /// A world whose edge node serves MQTT as well, to services of its own alone.
    pub(crate) async fn with_broker(access: Access) -> Self {
        let settings = ServerSettings {
            broker: BrokerConfig::default(),
            listeners: Vec::new(),
            shards: 1,
            authenticator: Arc::new(AllAnonymous),
            authorize: access.authenticator.clone(),
            operators: None,
            journal: None,
            spill: None,
        };
        let broker = Server::start(settings, &Health::default()).expect("a broker");
        Self::with(Ipv4Addr::LOCALHOST.into(), access, Some(broker)).await
    }

    async fn with(address: IpAddr, access: Access, broker: Option<Server>) -> Self {
        let folder = tempfile::tempdir().expect("a folder for certificates");
        let request = InitRequest {
            cameras: CAMERAS.map(str::to_owned).to_vec(),
            applications: vec!["application".into(), "other".into()],
            ..InitRequest::default()
        };
        pki::init(folder.path(), &request).expect("certificates");
        let any = SocketAddr::new(address, 0);
        let revocations = Arc::new(Revocations::none());
        let (cameras, _) = watch::channel(Vec::new());
        let mut world =
            Self { folder, revocations, api: any, link: any, cameras, access, broker, node: None };
        world.start_node().await;
        world
    }

    /// The broker of the edge node.
    pub(crate) fn bus(&self) -> Option<Bus> {
        self.broker.as_ref().map(|broker| broker.connector().into())
    }

    /// Has just these cameras run in the node, by name and source.
    pub(crate) fn configure(&self, cameras: &[(&str, &str)]) {
        let own = |(name, source): &(&str, &str)| OwnCamera {
            settings: options(name),
            source: source.parse().expect("a source"),
            substream_of: name.strip_suffix("-sub").map(|main| main.parse().expect("a name")),
        };
        self.cameras.send_replace(cameras.iter().map(own).collect());
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the edge node where it was before, or on free ports the first time.
    pub(crate) async fn start_node(&mut self) {
        let credentials = pki::load(self.path(), "edge").expect("the node's certificate");
        self.revocations = credentials.revocations().clone();
        let access = Access { revocations: self.revocations.clone(), ..self.access.clone() };
        let (bus, uplinks) = (self.bus(), Arc::new(Receivers::new(1 << 30)));
        if let Some(bus) = &bus {
            uplinks.serve_by(bus.clone(), "edge");
        }
        let links =
            Links::bind(self.link, credentials.clone(), link_settings(), access.audit.clone());
        let mut links = links.await.expect("a listener for links");
        let hosted = options("hosted");
        let frame_bytes_max = hosted.limits.bytes_max as u64;
        let streams = Streams::new(StreamsSettings {
            node: credentials.identity().node,
            stream_log: LogConfig { bytes_max: 64 << 20, segment_bytes: 8 << 20 }.into(),
            hosted,
            hints: TransferHints::default(),
            medium: Some(CoordinatorConfig::default()),
            access: access.clone(),
            cameras: self.cameras.subscribe(),
        });
        let streams = streams.expect("no table is wrong");
        let stop = CancellationToken::new();
        let web = WebSettings {
            access: access.clone(),
            bus: bus.clone(),
            tables: Arc::default(),
            stop: stop.clone(),
        };
        let tls = |made: Result<_, _>| Arc::new(made.expect("the certificate serves"));
        let api = tidegate_rpc::Server::bind(ServerConfig {
            listen: self.api,
            node: credentials.identity().name.clone(),
            frame_bytes_max,
            tls: tls(credentials.server_tls(ALPN)),
            tls_open: tls(credentials.server_tls_open(ALPN)),
            access: access.clone(),
            web: tidegate_web::router(web),
            web_public: tidegate_web::page(),
        });
        let api = api.await.expect("a listener for the API");
        (self.api, self.link) = (api.address(), links.local_address());
        links.serve(Role::Camera, streams.links());
        links.serve(Role::Edge, streams.links());
        links.serve(Role::Uplink, Arc::new(UplinkLinks::new(uplinks, streams.medium())));
        let admin = Arc::new(Administration { access, bus, reloads: None, fabric: None });
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let (served, (), ()) = tokio::join!(
                api.serve(streams.cameras(), admin, stopped.clone()),
                links.run(stopped.clone()),
                streams.run(stopped),
            );
            served.expect("the API serves");
        });
        self.node = Some((task, stop));
    }

    pub(crate) async fn stop_node(&mut self) {
        let (task, stop) = self.node.take().expect("a running node");
        stop.cancel();
        task.await.expect("the node ends without a panic");
    }

    /// Starts a camera node that plays `source`.
    pub(crate) fn camera(&self, name: &str, source: &str) -> CameraNode {
        self.camera_with(name, source, Transport::Quic, self.path())
    }

    pub(crate) fn camera_with(
        &self,
        name: &str,
        source: &str,
        transport: Transport,
        pki: &Path,
    ) -> CameraNode {
        self.camera_of(options(name), source, self.dial(name, transport, pki))
    }

    /// Starts a camera node whose frames are covered.
    pub(crate) fn private_camera(&self, name: &str, source: &str, privacy: Privacy) -> CameraNode {
        let options = CameraSettings { privacy, ..options(name) };
        self.camera_of(options, source, self.dial(name, Transport::Quic, self.path()))
    }

    /// Starts a camera node with changed options.
    pub(crate) fn camera_changed(
        &self,
        name: &str,
        source: &str,
        change: impl FnOnce(CameraSettings) -> CameraSettings,
    ) -> CameraNode {
        let dial = self.dial(name, Transport::Quic, self.path());
        self.camera_of(change(options(name)), source, dial)
    }

    /// Starts a camera node that dials in that way.
    pub(crate) fn camera_dialling(
        &self,
        name: &str,
        source: &str,
        dial: DialSettings,
    ) -> CameraNode {
        self.camera_of(options(name), source, dial)
    }

    fn camera_of(&self, options: CameraSettings, source: &str, dial: DialSettings) -> CameraNode {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let source = source.parse().expect("a source");
        let task = tokio::spawn(async move { camera::run(options, &source, dial, stopped).await });
        CameraNode { task, stop }
    }

    /// How a camera reaches the edge node, with its certificate in `pki`.
    pub(crate) fn dial(&self, name: &str, transport: Transport, pki: &Path) -> DialSettings {
        DialSettings {
            edge: self.link,
            transport,
            credentials: pki::load(pki, name).expect("the camera's certificate"),
            link: link_settings(),
            reconnects_max: None,
            retry_max: Duration::from_secs(1),
        }
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_as("application").await
    }

    pub(crate) async fn client_as(&self, name: &str) -> Client {
        self.try_client_as(name).await.expect("a client")
    }

    pub(crate) async fn try_client_as(&self, name: &str) -> Result<Client, ApiError> {
        let file = |what: String| self.path().join(what);
        let credentials = Credentials::load(
            file("ca.pem".into()),
            file(format!("{name}.pem")),
            file(format!("{name}.key")),
        )
        .expect("the application's certificate");
        Client::connect(&format!("https://{}", self.api), credentials).await
    }

    /// Waits until a camera is there and has captured a frame.
    pub(crate) async fn wait_for_camera(&self, client: &Client, name: &str) {
        until(client, name, |camera| camera.online && camera.newest_at.is_some()).await;
    }
}

impl CameraNode {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the camera ends without a panic").expect("a clean stop");
    }

    /// Ends it without a word, as a power cut would.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

fn options(name: &str) -> CameraSettings {
    CameraSettings {
        name: name.parse().expect("a camera name"),
        size: None,
        frames_per_second: 0.0,
        source: String::new(),
        log: LogConfig { bytes_max: 64 << 20, segment_bytes: 8 << 20 }.into(),
        limits: FrameLimits::default(),
        privacy: Privacy::default(),
        health: Health::default(),
        future_max: Duration::from_secs(1),
        tables: None,
        transfer: TransferConfig::default(),
        frozen_after: None,
    }
}

fn link_settings() -> LinkSettings {
    LinkSettings::default()
}

/// The entries of the camera's log from the first to the last of these. Asked for with another bound, so that no
/// transfer that
/// runs already is shared, which may have lost something.
pub(crate) async fn captured(client: &Client, camera: &str, seen: &[Instant]) -> Vec<Instant> {
    let (first, last) = (seen[0], seen[seen.len() - 1]);
    let mut request = SubscribeRequest::new(camera, Duration::from_secs(1), 0.5).unwrap();
    request.demand.delivery = Delivery::Every;
    request.from = Some(first);
    request.to = Some(last + Duration::from_nanos(1));
    let mut subscription = client.subscribe(request).await.expect("a subscription");
    let mut captured = Vec::new();
    let all = async {
        while let Some(event) = subscription.next().await {
            if let Event::Frame(frame) = event.expect("the subscription holds") {
                captured.push(frame.captured_at);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("the past comes to its end");
    captured
}

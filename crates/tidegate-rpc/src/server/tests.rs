//! The server over real TLS on loopback, in front of a node that is played by the test.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    sync::atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use futures::StreamExt;
use tidegate_api::{
    CameraInfo, Cell, Changes, ClockOffset, EndReason, EndSessions, Event, FeedbackOf, Frame, Left,
    MESSAGE_BYTES_MAX, Member, MembersPage, Original, Outcome, Place, Registration,
    ReloadedConfiguration, SessionInfo, SessionOwner, SessionsPage, Sought, Stages, Standing,
    Started, SubscribeRequest, SubscriptionId, TransferState, UnsubscribeStatus, Verdict,
};
use tidegate_client::{
    Client, ConnectOptions, Credentials, failure, proto::frames_client::FramesClient,
};
use tidegate_identity::{
    access::Access,
    auth::{
        Authenticator, Source, Sources, TokenSource, keys::KeySet, password::DecoyKey,
        scram::Credentials as ScramCredentials, token::TokenConfig,
    },
    pki::{self, InitRequest, NODE_SERVER_NAME},
};
use tidegate_message::{CameraName, ControllerKind, Delivery, Demand, Instant};
use tidegate_ports::Subscription;
use tokio::task::JoinHandle;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity as PemIdentity};

use super::*;
use crate::{EVENTS_BUFFERED, Fabric, FabricDesk, Frames, Identity, memory};

#[path = "../../../tidegate/tests/shared/poll_async.rs"]
mod poll_async;
use poll_async::poll;

mod elsewhere;
mod http;

/// A session that the test plays.
struct Session {
    identity: Identity,
    request: SubscribeRequest,
    events: mpsc::Sender<Result<Event, ApiError>>,
}

/// The nodes of cameras, by the cameras' names.
type Places = Arc<Mutex<BTreeMap<String, Place>>>;

/// A node with the cameras whose names begin with `cam`, but for those that are at other nodes.
struct Node {
    places: Places,
    /// Calls about a camera.
    asked: Arc<AtomicU64>,
    sessions: mpsc::UnboundedSender<Session>,
    published: Mutex<BTreeMap<String, Instant>>,
    ids: AtomicU64,
    demands: Mutex<BTreeMap<SubscriptionId, Demand>>,
    fabric: memory::Fabric,
}

/// A fabric of this node, one that is lost, and one with the camera `cam1`.
fn fabric() -> memory::Fabric {
    let fabric = memory::Fabric::default();
    fabric.set_unsent(Left { unsent: 3, unsent_to: vec!["yard".to_owned()] });
    let member = |digit: &str, name: &str| Member {
        id: digit.repeat(64),
        name: name.to_owned(),
        ..Member::default()
    };
    fabric.add(Member { is_me: true, ..member("b", "edge") });
    fabric.add(Member { standing: Standing::Lost, ..member("a", "gone") });
    let cameras = vec!["cam1".to_owned()];
    fabric.add(Member { is_linked: true, cameras, filters: 1, ..member("c", "yard") });
    fabric.subscribe(&"c".repeat(64), "plant/#");
    fabric.add_cell(Cell { name: "0".to_owned(), east: 180.0, ..Cell::default() });
    fabric
}

fn unknown(what: &str) -> ApiError {
    ApiError::new(Code::CAMERA_UNKNOWN, format!("no camera {what} is registered"))
}

fn name(text: &str) -> CameraName {
    text.parse().unwrap()
}

fn camera_info(camera: &str) -> CameraInfo {
    CameraInfo {
        name: name(camera),
        online: true,
        size: "1920x1080".parse().ok(),
        frames_per_second: 15.0,
        frame_bytes: 400_000,
        oldest_at: Some(Instant::from_millis(1)),
        newest_at: Some(Instant::from_millis(2)),
        log_bytes: 3,
        log_bytes_max: 4,
        transfers: 5,
        subscriptions: 6,
        transport: "quic".to_owned(),
        clock_offset: Some(ClockOffset { offset_nanos: -7, uncertainty: Duration::from_nanos(8) }),
        no_frames: Some("its frames are refused".to_owned()),
        capture_clock: Some("its timestamps leap about".to_owned()),
        substream_of: Some("hall".parse().unwrap()),
        node: Some("yard".to_owned()),
    }
}

fn frame(millis: i64, jpeg: Bytes) -> Event {
    frame_of(1, millis, jpeg)
}

fn frame_of(epoch: u64, millis: i64, jpeg: Bytes) -> Event {
    Event::Frame(Frame {
        captured_at: Instant::from_millis(millis),
        epoch,
        size: "960x540".parse().unwrap(),
        source_size: "1920x1080".parse().ok(),
        original_bytes: 9,
        knobs: "1/2".into(),
        accuracy: 0.97,
        accuracy_kept: true,
        replayed: false,
        stages: Stages { encode: Duration::from_millis(6), ..Stages::default() },
        handed_at: Instant::from_millis(millis),
        jpeg,
    })
}

fn verdict() -> Verdict {
    Verdict {
        camera: name("cam1"),
        transfer: 1,
        captured_at: Instant::from_millis(5),
        outcome: Outcome::Reset,
        sent_bytes: 1000,
        original_bytes: 2000,
        knobs: "1/2".into(),
        row: Some(0),
        accuracy: 0.96,
        accuracy_kept: true,
        stages: Stages::default(),
        bound: Duration::from_millis(100),
        capacity_bytes_per_second: 7,
        reason: Some("capacity fell".into()),
    }
}

impl Node {
    /// Notes a call about a camera, and refuses it where the camera is not here.
    fn ask(&self, camera: &CameraName) -> Result<(), ApiError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.places.lock().unwrap().get(camera.as_str()) {
            Some(place) => Err(ApiError::elsewhere(camera, place.clone())),
            None if camera.as_str().starts_with("cam") => Ok(()),
            None => Err(unknown(camera.as_str())),
        }
    }
}

#[async_trait]
impl Admin for Node {
    async fn sessions(
        &self,
        _: &Identity,
        page: SessionsPage,
    ) -> Result<Vec<SessionInfo>, ApiError> {
        let session = |number: usize| SessionInfo {
            client_id: format!("{}{number}", page.after),
            owner: page
                .owner
                .clone()
                .unwrap_or(SessionOwner { kind: "user".into(), name: "ada".into() }),
            connected: number.is_multiple_of(2),
            subscriptions: 1,
            queued: 2,
            queued_bytes: 3,
            inflight: 4,
            ends_in_s: None,
        };
        Ok((0..page.limit).map(session).collect())
    }

    async fn reload_configuration(&self, _: &Identity) -> Result<ReloadedConfiguration, ApiError> {
        Ok(ReloadedConfiguration {
            exchanged: vec!["mqtt.policy".to_owned()],
            ..ReloadedConfiguration::default()
        })
    }

    fn fabric(&self, identity: &Arc<Identity>) -> Result<FabricDesk, ApiError> {
        let fabric: Arc<dyn Fabric> = Arc::new(self.fabric.clone());
        FabricDesk::open(&Access::default(), identity, Some(&fabric))
    }

    async fn end_sessions(&self, _: &Identity, which: EndSessions) -> Result<u64, ApiError> {
        Ok(which.client_ids.len() as u64 + 10 * u64::from(which.owner.is_some()))
    }
}

#[async_trait]
impl Cameras for Node {
    fn frames(self: Arc<Self>, identity: Arc<Identity>) -> Arc<dyn Frames> {
        Arc::new(Seen { node: self, identity })
    }

    /// With nothing elsewhere.
    fn frames_of_all(self: Arc<Self>, identity: Arc<Identity>) -> Arc<dyn Frames> {
        self.places.lock().unwrap().clear();
        self.frames(identity)
    }

    async fn register(&self, _: &Identity, registration: Registration) -> Result<(), ApiError> {
        let camera = registration.camera.to_string();
        match self.published.lock().unwrap().insert(camera, Instant::MIN) {
            Some(_) => Err(ApiError::new(Code::CAMERA_TAKEN, "another node holds it")),
            None => Ok(()),
        }
    }

    async fn unregister(&self, _: &Identity, camera: &CameraName) -> Result<(), ApiError> {
        let removed = self.published.lock().unwrap().remove(camera.as_str());
        removed.map(|_| ()).ok_or_else(|| unknown(camera.as_str()))
    }

    async fn publish(
        &self,
        _: &Identity,
        camera: &CameraName,
        captured_at: Option<Instant>,
        jpeg: Bytes,
    ) -> Result<Instant, ApiError> {
        let mut published = self.published.lock().unwrap();
        let last = published.get_mut(camera.as_str()).ok_or_else(|| unknown(camera.as_str()))?;
        if !jpeg.starts_with(&[0xff, 0xd8]) {
            return Err(ApiError::new(Code::FRAME_INVALID, "the frame is not a JPEG"));
        }
        let at = captured_at.unwrap_or(*last + Duration::from_millis(1));
        if at <= *last {
            return Err(ApiError::new(Code::FRAME_TIMESTAMP, "not later than the last"));
        }
        *last = at;
        Ok(at)
    }

    async fn update(
        &self,
        _: &Identity,
        id: SubscriptionId,
        changes: Changes,
    ) -> Result<Demand, ApiError> {
        let mut demands = self.demands.lock().unwrap();
        let gone = || ApiError::new(Code::SUBSCRIPTION_UNKNOWN, "no such subscription");
        let demand = demands.get_mut(&id).ok_or_else(gone)?;
        *demand = changes.apply(*demand)?;
        Ok(*demand)
    }

    async fn unsubscribe(
        &self,
        _: &Identity,
        id: SubscriptionId,
    ) -> Result<UnsubscribeStatus, ApiError> {
        let mut demands = self.demands.lock().unwrap();
        let gone = || ApiError::new(Code::SUBSCRIPTION_UNKNOWN, "no such subscription");
        demands.remove(&id).ok_or_else(gone)?;
        let transfer =
            if demands.is_empty() { TransferState::Stopped } else { TransferState::Continues };
        Ok(UnsubscribeStatus { transfer, delivered: 10, missed: 1 })
    }

    async fn feedback(
        &self,
        _: &Identity,
        of: FeedbackOf,
    ) -> Result<mpsc::Receiver<Verdict>, ApiError> {
        match of {
            FeedbackOf::Camera(camera) => self.ask(&camera)?,
            FeedbackOf::Subscription(_) => {}
        }
        let (sender, verdicts) = mpsc::channel(1);
        sender.try_send(verdict()).unwrap();
        Ok(verdicts)
    }
}

/// The frames of the node for one caller.
struct Seen {
    node: Arc<Node>,
    identity: Arc<Identity>,
}

#[async_trait]
impl Frames for Seen {
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError> {
        Ok(vec![camera_info("cam1")])
    }

    async fn camera(&self, camera: &CameraName) -> Result<CameraInfo, ApiError> {
        self.node.ask(camera)?;
        Ok(camera_info(camera.as_str()))
    }

    async fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> Result<Box<dyn Subscription>, ApiError> {
        self.node.ask(&request.camera)?;
        let (sender, events) = mpsc::channel(EVENTS_BUFFERED);
        let id = SubscriptionId(self.node.ids.fetch_add(1, Ordering::Relaxed));
        let started = Started { id, demand: request.demand };
        self.node.demands.lock().unwrap().insert(id, request.demand);
        let session = Session { identity: (*self.identity).clone(), request, events: sender };
        self.node.sessions.send(session).map_err(|_| ApiError::new(Code::INTERNAL, "no test"))?;
        Ok(Box::new(Running { started, events }))
    }

    async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError> {
        self.node.ask(camera)?;
        match captured_at.as_nanos() {
            0..1000 => Ok(Original { captured_at, jpeg: Bytes::from(camera.to_string()) }),
            _ => Err(ApiError::new(Code::FRAME_MISSING, "the log begins later")),
        }
    }
}

struct Running {
    started: Started,
    events: mpsc::Receiver<Result<Event, ApiError>>,
}

#[async_trait]
impl Subscription for Running {
    fn started(&self) -> Started {
        self.started
    }

    async fn next_event(&mut self) -> Option<Result<Event, ApiError>> {
        self.events.recv().await
    }

    async fn update(&self, _: Changes) -> Result<Demand, ApiError> {
        unreachable!("a client changes it by its name")
    }
}

/// Largest image of the detection that the test plays.
const IMAGE_BYTES_MAX: usize = 100_000;

/// Detection that finds a box as wide as the image has bytes. An image of one byte waits until one of two bytes has come.
#[derive(Default)]
struct Looker(tokio::sync::Notify);

#[async_trait]
impl Detection for Looker {
    async fn detect(
        &self,
        identity: &Identity,
        model: &str,
        image: Bytes,
    ) -> Result<proto::Detected, ApiError> {
        match (model, image.len()) {
            ("face", 1) => self.0.notified().await,
            ("face", 2) => self.0.notify_one(),
            ("face", _) => {}
            _ => return Err(ApiError::new(Code::MODEL_UNKNOWN, "there are: face")),
        }
        let label = identity.name().to_owned();
        let found = proto::DetectedBox { right: image.len() as f64, label, ..Default::default() };
        Ok(proto::Detected { model: model.to_owned(), boxes: vec![found], ..Default::default() })
    }
}

const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A site with one running server.
struct Site {
    folder: Arc<tempfile::TempDir>,
    address: SocketAddr,
    places: Places,
    asked: Arc<AtomicU64>,
    /// Where callers have the rights of the user `wall`.
    plain: SocketAddr,
    sessions: mpsc::UnboundedReceiver<Session>,
    stop: CancellationToken,
    served: JoinHandle<Result<(), ServerError>>,
}

impl Site {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let request = InitRequest { cameras: vec!["cam1".to_owned()], ..InitRequest::default() };
        pki::init(folder.path(), &request).unwrap();
        Self::serve(folder.into(), "edge", ANY_PORT, Access::default()).await
    }

    /// A site that authenticates by `sources`.
    async fn with(sources: Sources) -> (Self, Access) {
        let folder = tempfile::tempdir().unwrap();
        pki::init(folder.path(), &InitRequest::default()).unwrap();
        let authenticator = Arc::new(Authenticator::new(sources).unwrap());
        let access = Access { authenticator, ..Access::default() };
        (Self::serve(folder.into(), "edge", ANY_PORT, access.clone()).await, access)
    }

    async fn serve(
        folder: Arc<tempfile::TempDir>,
        name: &str,
        listen: SocketAddr,
        access: Access,
    ) -> Self {
        let credentials = pki::load(folder.path(), "edge").unwrap();
        let config = ServerConfig {
            listen,
            node: name.to_owned(),
            frame_bytes_max: 16 << 20,
            tls: Arc::new(credentials.server_tls(ALPN).unwrap()),
            tls_open: Arc::new(credentials.server_tls_open(ALPN).unwrap()),
            access,
            web: http::paths(),
            web_public: http::public_paths(),
        };
        let mut server = Server::bind(config).await.unwrap();
        server.add_detection(Arc::new(Looker::default()), IMAGE_BYTES_MAX);
        let address = server.address();
        let settings = PlainSettings {
            listen: ANY_PORT,
            user: "wall".to_owned(),
            hosts: vec!["edge.example".to_owned()],
            connections_max: 4,
        };
        let plain = Plain::bind(settings, http::paths(), http::public_paths()).await.unwrap();
        let address_of_plain = plain.address();
        server.add_plain(plain);
        let plain = address_of_plain;
        let (sender, sessions) = mpsc::unbounded_channel();
        let (places, asked) = (Places::default(), Arc::default());
        let node = Node {
            places: Arc::clone(&places),
            asked: Arc::clone(&asked),
            sessions: sender,
            published: Mutex::default(),
            ids: AtomicU64::new(1),
            demands: Mutex::default(),
            fabric: fabric(),
        };
        let stop = CancellationToken::new();
        let served = tokio::spawn({
            let node = Arc::new(node);
            server.serve(node.clone(), node, stop.clone())
        });
        Self { folder, address, places, asked, plain, sessions, stop, served }
    }

    /// Stops the server and starts another one in its place.
    async fn restart(self) -> Self {
        self.stop.cancel();
        self.served.await.unwrap().unwrap();
        Self::serve(self.folder, "edge", self.address, Access::default()).await
    }

    fn endpoint(&self) -> String {
        format!("https://{}", self.address)
    }

    fn credentials(&self) -> Credentials {
        let file = |name: &str| self.folder.path().join(name);
        let files = (file("ca.pem"), file("application.pem"), file("application.key"));
        Credentials::load(files.0, files.1, files.2).unwrap().server_name(NODE_SERVER_NAME)
    }

    /// Credentials that trust the site and prove nothing.
    fn nobody(&self) -> Credentials {
        let authority = std::fs::read(self.folder.path().join("ca.pem")).unwrap();
        Credentials::from_authority(authority).server_name(NODE_SERVER_NAME)
    }

    async fn client(&self) -> Client {
        Client::connect(&self.endpoint(), self.credentials()).await.unwrap()
    }

    fn channel(&self) -> Channel {
        let pem = pki::load(self.folder.path(), "application").unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(pem.authority_pem()))
            .identity(PemIdentity::from_pem(pem.certificate_pem(), pem.key_pem()))
            .domain_name(NODE_SERVER_NAME);
        Endpoint::from_shared(self.endpoint()).unwrap().tls_config(tls).unwrap().connect_lazy()
    }

    /// A client that checks nothing itself.
    fn raw(&self) -> FramesClient<Channel> {
        FramesClient::new(self.channel())
    }

    async fn session(&mut self) -> Session {
        self.sessions.recv().await.expect("the server serves")
    }
}

fn request() -> SubscribeRequest {
    SubscribeRequest::new("cam1", Duration::from_millis(100), 0.95).unwrap()
}

/// The same, of which no frame is left out.
fn every() -> SubscribeRequest {
    let mut every = request();
    every.demand.delivery = Delivery::Every;
    every
}

fn code<T: std::fmt::Debug>(result: Result<T, tonic::Status>) -> Code {
    failure(result.unwrap_err()).code()
}

#[tokio::test]
async fn every_call_reaches_the_node_and_back() {
    let mut site = Site::start().await;
    let client = site.client().await;
    assert_eq!(client.server().node, "edge");
    assert_ne!(client.server().client_id, site.client().await.server().client_id);

    assert_eq!(client.cameras().await.unwrap(), [camera_info("cam1")]);
    assert_eq!(client.camera(&name("cam1")).await.unwrap(), camera_info("cam1"));

    let mut subscription = client.subscribe(request()).await.unwrap();
    let session = site.session().await;
    assert_eq!(session.identity.name(), "application");
    assert_eq!(session.request, request());
    let jpeg = Bytes::from(vec![7; 300_000]);
    session.events.send(Ok(frame(5, jpeg.clone()))).await.unwrap();
    let Event::Frame(got) = subscription.next().await.unwrap().unwrap() else { panic!("no frame") };
    assert_eq!((got.captured_at, &got.jpeg, &*got.knobs), (Instant::from_millis(5), &jpeg, "1/2"));
    assert_eq!(got.stages.encode, Duration::from_millis(6));
    assert!(got.stages.delivery > Duration::ZERO, "the time passed since 1970 is delivery");

    let changes = Changes { controller: Some(ControllerKind::Aimd), ..Changes::default() };
    let demand = subscription.update(changes).await.unwrap();
    assert_eq!(demand, Demand { controller: ControllerKind::Aimd, ..request().demand });
    assert_eq!(subscription.demand(), demand);

    let of = FeedbackOf::Subscription(subscription.id());
    let verdicts: Vec<_> = client.feedback(of).await.unwrap().collect().await;
    assert_eq!(verdicts.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [verdict()]);

    let status = subscription.unsubscribe().await.unwrap();
    assert_eq!(status.transfer, TransferState::Stopped);
    assert_eq!((status.delivered, status.missed), (10, 1));
    session.events.closed().await; // the node learns that there is no subscriber

    let original = client.fetch_original(&name("cam1"), Instant::from_nanos(999)).await.unwrap();
    assert_eq!(original.jpeg, "cam1");
    let missing = client.fetch_original(&name("cam1"), Instant::from_nanos(1000)).await;
    assert_eq!(missing.unwrap_err().code(), Code::FRAME_MISSING);
}

#[tokio::test]
async fn every_call_on_the_fabric_reaches_it_and_back() {
    let site = Site::start().await;
    let client = site.client().await;
    let status = client.fabric().await.unwrap();
    assert_eq!((&*status.name, status.members, status.linked, status.lost), ("edge", 2, 1, 1));
    assert_eq!((&*status.cells[0].name, status.cells[0].east), ("0", 180.0));

    // A page at a time, in order of the identities.
    let mut page = MembersPage { after: String::new(), limit: 2 };
    let mut names = Vec::new();
    while let Some(last) = {
        let members = client.members(page.clone()).await.unwrap();
        assert!(members.len() <= 2);
        names.extend(members.iter().map(|member| member.name.clone()));
        members.last().cloned()
    } {
        page.after = last.id;
    }
    assert_eq!(names, ["gone", "edge", "yard"]);

    let found = client.locate(Sought::topic("plant/a").unwrap()).await.unwrap();
    assert_eq!((&*found[0].name, &*found[0].why), ("yard", "subscribes to plant/#"));
    assert_eq!(client.locate(Sought::topic("other").unwrap()).await.unwrap(), []);
    assert_eq!(client.locate(Sought::Camera(name("cam1"))).await.unwrap()[0].name, "yard");
    let nowhere = client.locate(Sought::Camera(name("cam9"))).await.unwrap_err();
    assert_eq!(nowhere.code(), Code::CAMERA_UNKNOWN);
    let mut raw = tidegate_client::proto::fabric_client::FabricClient::new(site.channel());
    let nothing = raw.locate(proto::LocateRequest { what: None }).await;
    assert_eq!(code(nothing), Code::REQUEST_INVALID);

    for (member, expected) in [
        ("nobody", Code::MEMBER_UNKNOWN),
        ("yard", Code::MEMBER_HERE), // it has a link
        ("edge", Code::MEMBER_HERE), // it is the node itself
    ] {
        let refused = client.forget_member(member).await.unwrap_err();
        assert_eq!(refused.code(), expected, "{member}");
    }
    let forgotten = client.forget_member("aaaaaaaa").await.unwrap();
    assert_eq!(forgotten, ("a".repeat(64), "gone".to_owned()));
    assert_eq!(client.fabric().await.unwrap().lost, 0);
    let left = client.leave_fabric().await.unwrap();
    assert_eq!((left.unsent, left.unsent_to), (3, vec!["yard".to_owned()]));
    assert_eq!(client.fabric().await.unwrap_err().code(), Code::FABRIC_OFF);
}

#[tokio::test]
async fn a_refused_frame_ends_neither_stream_nor_camera() {
    let site = Site::start().await;
    let client = site.client().await;
    let registration =
        Registration { camera: name("phone"), size: None, frames_per_second: Some(30.0) };
    client.register(registration.clone()).await.unwrap();
    let taken = client.register(registration).await.unwrap_err();
    assert_eq!(taken.code(), Code::CAMERA_TAKEN);

    let mut publisher = client.publish(name("phone")).await.unwrap();
    let jpeg = Bytes::from_static(b"\xff\xd8\xff\xd9");
    let at = |millis| Some(Instant::from_millis(millis));
    for (captured_at, jpeg, expected) in [
        (at(10), jpeg.clone(), Ok(10)),
        (at(20), Bytes::from_static(b"GIF89a"), Err(Code::FRAME_INVALID)),
        (at(10), jpeg.clone(), Err(Code::FRAME_TIMESTAMP)),
        (at(30), Bytes::from(vec![0xff; (16 << 20) + 1]), Err(Code::FRAME_TOO_LARGE)),
        (None, jpeg.clone(), Ok(11)),
    ] {
        let result = publisher.publish(captured_at, jpeg).await;
        let result = result.map(|at| at.as_nanos() / 1_000_000).map_err(|error| error.code());
        assert_eq!(result, expected);
    }
    client.unregister(&name("phone")).await.unwrap();
    let gone = publisher.publish(None, jpeg).await.unwrap_err();
    assert_eq!(gone.code(), Code::CAMERA_UNKNOWN, "this one ends the stream");
    let gone = client.unregister(&name("phone")).await.unwrap_err();
    assert_eq!(gone.code(), Code::CAMERA_UNKNOWN);
}

#[tokio::test]
async fn a_stream_of_frames_is_for_one_camera() {
    let site = Site::start().await;
    for (first, second) in [("", ""), ("../x", ""), ("nobody", "")] {
        let frames = [first, second].map(|camera| proto::PublishRequest {
            camera: camera.to_owned(),
            captured_at: None,
            jpeg: Bytes::from_static(b"\xff\xd8"),
        });
        let mut answers =
            site.raw().publish(futures::stream::iter(frames)).await.unwrap().into_inner();
        assert_eq!(code(answers.message().await), Code::CAMERA_UNKNOWN, "{first:?}");
    }
    // Larger than any message: the decoder stops it before it is read.
    let huge = proto::PublishRequest {
        camera: "cam1".to_owned(),
        captured_at: None,
        jpeg: Bytes::from(vec![0; MESSAGE_BYTES_MAX + 1]),
    };
    let mut raw = site.raw().max_encoding_message_size(usize::MAX);
    let mut answers = raw.publish(futures::stream::iter([huge])).await.unwrap().into_inner();
    assert_eq!(code(answers.message().await), Code::FRAME_TOO_LARGE);
}

#[tokio::test]
async fn bad_subscriptions_are_refused_with_their_code() {
    let site = Site::start().await;
    let good = || proto::SubscribeRequest::from_request();
    let with = |change: fn(&mut proto::SubscribeRequest)| {
        let mut request = good();
        change(&mut request);
        request
    };
    fn demand(request: &mut proto::SubscribeRequest) -> &mut proto::Demand {
        request.demand.as_mut().unwrap()
    }
    for (case, expected) in [
        (with(|it| demand(it).latency_nanos = 0), Code::BOUND_INVALID),
        (with(|it| demand(it).latency_nanos = -5), Code::BOUND_INVALID),
        (with(|it| demand(it).latency_nanos = i64::MIN), Code::BOUND_INVALID),
        (with(|it| demand(it).latency_nanos = i64::MAX), Code::BOUND_INVALID),
        (with(|it| demand(it).accuracy = 1.01), Code::BOUND_INVALID),
        (with(|it| demand(it).accuracy = -0.5), Code::BOUND_INVALID),
        (with(|it| demand(it).accuracy = f64::NAN), Code::BOUND_INVALID),
        (with(|it| demand(it).controller = 99), Code::BOUND_INVALID),
        (with(|it| demand(it).delivery = -1), Code::BOUND_INVALID),
        (with(|it| it.demand = None), Code::BOUND_INVALID),
        (with(|it| (it.from, it.to) = (Some(5), Some(4))), Code::RANGE_INVALID),
        (with(|it| (it.from, it.to) = (Some(5), Some(5))), Code::RANGE_INVALID),
        (with(|it| it.to = Some(1)), Code::RANGE_INVALID),
        (with(|it| it.camera = "nobody".into()), Code::CAMERA_UNKNOWN),
        (with(|it| it.camera = String::new()), Code::CAMERA_UNKNOWN),
        (with(|it| it.camera = "../../etc".into()), Code::CAMERA_UNKNOWN),
        (with(|it| it.detector = "../x".into()), Code::TABLE_MISSING),
    ] {
        assert_eq!(code(site.raw().subscribe(case.clone()).await), expected, "{case:?}");
    }

    let update = proto::UpdateSubscriptionRequest {
        subscription_id: 404,
        changes: Some(proto::DemandChanges { accuracy: Some(2.0), ..Default::default() }),
    };
    assert_eq!(code(site.raw().update_subscription(update).await), Code::BOUND_INVALID);
    let update = proto::UpdateSubscriptionRequest { subscription_id: 404, changes: None };
    assert_eq!(code(site.raw().update_subscription(update).await), Code::SUBSCRIPTION_UNKNOWN);
    let unsubscribe = proto::UnsubscribeRequest { subscription_id: 404 };
    assert_eq!(code(site.raw().unsubscribe(unsubscribe).await), Code::SUBSCRIPTION_UNKNOWN);
    let feedback = proto::FeedbackRequest { of: None };
    assert_eq!(code(site.raw().feedback(feedback).await), Code::SUBSCRIPTION_UNKNOWN);
    let info = proto::GetCameraInfoRequest { camera: "nobody".to_owned() };
    assert_eq!(code(site.raw().get_camera_info(info).await), Code::CAMERA_UNKNOWN);
    let register = proto::RegisterRequest {
        camera: "phone".to_owned(),
        size: Some(proto::FrameSize { width: 70_000, height: 1 }),
        frames_per_second: 1.0,
    };
    assert_eq!(code(site.raw().register(register).await), Code::FRAME_INVALID);
}

trait Sample {
    fn from_request() -> Self;
}

impl Sample for proto::SubscribeRequest {
    fn from_request() -> Self {
        request().into()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_does_not_read_holds_little_and_delays_nobody() {
    const FRAMES: i64 = 100;
    let mut site = Site::start().await;
    let client = site.client().await;
    // Both on one connection, where they could get into each other's way most.
    let slow = client.subscribe(every()).await.unwrap();
    let slow_session = site.session().await;
    let fast = client.subscribe(every()).await.unwrap();
    let fast_session = site.session().await;

    let jpeg = Bytes::from(vec![7; 256 << 10]);
    let handed = Arc::new(AtomicU64::new(0));
    let (counted, slow_jpeg) = (handed.clone(), jpeg.clone());
    let pushing = tokio::spawn(async move {
        for millis in 1..=FRAMES {
            slow_session.events.send(Ok(frame(millis, slow_jpeg.clone()))).await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let feeding = async {
        for millis in 1..=FRAMES {
            fast_session.events.send(Ok(frame(millis, jpeg.clone()))).await.unwrap();
        }
        drop(fast_session);
    };
    let reading = fast.take(usize::try_from(FRAMES).unwrap()).count();
    let ((), read) = tokio::join!(feeding, reading);
    assert_eq!(read, 100);

    // The window of 2 MiB, HTTP/2's own buffer, the channel's slot: a dozen frames of the hundred.
    let handed = handed.load(Ordering::Relaxed);
    assert!(handed <= 14, "{handed} frames were taken for a subscriber that reads none");
    pushing.abort();
    drop(slow);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_is_slow_gets_the_newest_frame() {
    const FRAMES: i64 = 100;
    let mut site = Site::start().await;
    let mut slow = site.client().await.subscribe(request()).await.unwrap();
    let session = site.session().await;
    let jpeg = Bytes::from(vec![7; 256 << 10]);
    // It does not read, and none of them is held up: all but those in the buffers on the way have come.
    for millis in 1..=FRAMES {
        session.events.send(Ok(frame(millis, jpeg.clone()))).await.unwrap();
    }
    let (mut seen, mut missed) = (Vec::new(), 0);
    while seen.last() != Some(&Instant::from_millis(FRAMES)) {
        match slow.next().await.unwrap().unwrap() {
            Event::Frame(frame) => seen.push(frame.captured_at),
            Event::Missed(told) => missed += told.count,
            other => panic!("{other:?}"),
        }
    }
    assert!(seen.len() <= 50, "{} frames of 100 were old", seen.len());
    assert_eq!(missed + seen.len() as u64, 100);
}

#[tokio::test]
async fn dropping_a_subscription_ends_its_session() {
    let mut site = Site::start().await;
    let client = site.client().await;
    let subscription = client.subscribe(request()).await.unwrap();
    let session = site.session().await;
    drop(subscription);
    session.events.closed().await;
}

#[tokio::test]
async fn a_subscription_that_is_refused_ends_with_code_and_sentence() {
    let mut site = Site::start().await;
    let mut subscription = site.client().await.subscribe(request()).await.unwrap();
    let session = site.session().await;
    let refused = ApiError::new(Code::LIMIT_REACHED, "this camera serves 64 transfers");
    session.events.send(Err(refused)).await.unwrap();
    let error = subscription.next().await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::LIMIT_REACHED);
    assert_eq!(error.message(), "this camera serves 64 transfers");
    assert!(subscription.next().await.is_none());
}

#[tokio::test]
async fn a_subscription_outlives_the_server_and_repeats_no_frame() {
    let mut site = Site::start().await;
    let options = ConnectOptions { backoff: Duration::from_millis(5), ..ConnectOptions::default() };
    let client = Client::connect_with(&site.endpoint(), site.credentials(), options).await.unwrap();
    let mut subscription = client.subscribe(every()).await.unwrap();
    let session = site.session().await;
    let jpeg = Bytes::from_static(b"\xff\xd8");
    session.events.send(Ok(frame(5, jpeg.clone()))).await.unwrap();
    let event = subscription.next().await.unwrap().unwrap();
    assert!(matches!(event, Event::Frame(_)), "{event:?}");
    let changes = Changes { accuracy: Some(0.9), ..Changes::default() };
    subscription.update(changes).await.unwrap();

    let (event, restarted) = tokio::join!(subscription.next(), site.restart());
    site = restarted;
    let event = event.unwrap().unwrap();
    assert!(
        matches!(&event, Event::CameraOffline(why) if why.contains("the node stops")),
        "{event:?}"
    );
    assert_eq!(subscription.next().await.unwrap().unwrap(), Event::CameraOnline);
    let session = site.session().await;
    assert_eq!(session.request.from, Some(Instant::from_nanos(5_000_001)), "behind the last frame");
    assert_eq!(session.request.demand.bounds.accuracy(), 0.9, "as it was changed");
    // A node that repeats a frame all the same.
    session.events.send(Ok(frame(5, jpeg.clone()))).await.unwrap();
    let (sent, next) = tokio::join!(session.events.send(Ok(frame(6, jpeg))), subscription.next());
    sent.unwrap();
    assert!(
        matches!(next, Some(Ok(Event::Frame(ref frame))) if frame.captured_at == Instant::from_millis(6)),
        "{next:?}"
    );
    session.events.send(Ok(Event::Ended(EndReason::Complete))).await.unwrap();
    let last = subscription.next().await.unwrap().unwrap();
    assert_eq!(last, Event::Ended(EndReason::Complete));
    assert!(subscription.next().await.is_none());
}

#[tokio::test]
async fn a_camera_with_a_clock_set_back_is_followed_over_broken_connections() {
    let mut site = Site::start().await;
    let options = ConnectOptions { backoff: Duration::from_millis(5), ..ConnectOptions::default() };
    let client = Client::connect_with(&site.endpoint(), site.credentials(), options).await.unwrap();
    let mut subscription = client.subscribe(every()).await.unwrap();
    let session = site.session().await;
    let jpeg = Bytes::from_static(b"\xff\xd8");
    for (epoch, millis) in [(1, 1000), (2, 5)] {
        session.events.send(Ok(frame_of(epoch, millis, jpeg.clone()))).await.unwrap();
        let event = subscription.next().await.unwrap().unwrap();
        let Event::Frame(frame) = event else { panic!("{event:?}") };
        assert_eq!((frame.epoch, frame.captured_at), (epoch, Instant::from_millis(millis)));
    }
    let (event, restarted) = tokio::join!(subscription.next(), site.restart());
    site = restarted;
    assert!(matches!(event, Some(Ok(Event::CameraOffline(_)))), "{event:?}");
    assert_eq!(subscription.next().await.unwrap().unwrap(), Event::CameraOnline);
    let session = site.session().await;
    assert_eq!(session.request.from, Some(Instant::from_nanos(5_000_001)));
    assert_eq!(session.request.from_epoch, Some(2), "by the clock of the last frame");
    // Repeated, and so dropped; then the first frame of a third life.
    session.events.send(Ok(frame_of(2, 5, jpeg.clone()))).await.unwrap();
    let (sent, next) =
        tokio::join!(session.events.send(Ok(frame_of(3, 5, jpeg))), subscription.next());
    sent.unwrap();
    assert!(matches!(next, Some(Ok(Event::Frame(ref frame))) if frame.epoch == 3), "{next:?}");
}

#[tokio::test]
async fn without_a_server_the_tries_end() {
    let mut site = Site::start().await;
    let options = ConnectOptions {
        backoff: Duration::from_millis(1),
        max_reconnects: 2,
        ..ConnectOptions::default()
    };
    let client = Client::connect_with(&site.endpoint(), site.credentials(), options).await.unwrap();
    let subscription = client.subscribe(request()).await.unwrap();
    let session = site.session().await;
    site.stop.cancel();
    let (events, served) = tokio::join!(subscription.collect::<Vec<_>>(), site.served);
    served.unwrap().unwrap();
    drop(session);
    assert!(matches!(events[0], Ok(Event::CameraOffline(_))), "{events:?}");
    assert_eq!(events[1].as_ref().unwrap_err().code(), Code::LINK_DOWN);
    assert_eq!(events.len(), 2);
    let options = ConnectOptions { max_reconnects: 0, ..ConnectOptions::default() };
    let endpoint = format!("https://{}", site.address);
    let file = |name: &str| site.folder.path().join(name);
    let credentials =
        Credentials::load(file("ca.pem"), file("application.pem"), file("application.key"))
            .unwrap();
    let refused = Client::connect_with(&endpoint, credentials, options).await.unwrap_err();
    assert_eq!(refused.code(), Code::LINK_DOWN);
    assert!(refused.message().contains(&endpoint), "{refused}");
}

#[tokio::test]
async fn a_stopped_server_says_so_on_every_stream() {
    let mut site = Site::start().await;
    let mut events =
        site.raw().subscribe(proto::SubscribeRequest::from_request()).await.unwrap().into_inner();
    let session = site.session().await;
    site.stop.cancel();
    let mut last = None;
    while let Some(answer) = events.message().await.unwrap() {
        last = answer.event;
    }
    let Some(proto::subscribe_response::Event::Ended(ended)) = last else { panic!("{last:?}") };
    assert_eq!(ended.reason(), proto::ended::Reason::Shutdown);
    session.events.closed().await;
    drop(events);
    site.served.await.unwrap().unwrap();
}

#[tokio::test]
async fn strangers_are_turned_away() {
    let site = Site::start().await;
    let elsewhere = tempfile::tempdir().unwrap();
    pki::init(elsewhere.path(), &InitRequest::default()).unwrap();
    let file = |folder: &tempfile::TempDir, name: &str| folder.path().join(name);
    // One trusts the site but is not of it; the other does not even trust it.
    for authority in [&*site.folder, &elsewhere] {
        let credentials = Credentials::load(
            file(authority, "ca.pem"),
            file(&elsewhere, "application.pem"),
            file(&elsewhere, "application.key"),
        );
        let credentials = credentials.unwrap().server_name(NODE_SERVER_NAME);
        let error = Client::connect(&site.endpoint(), credentials).await.unwrap_err();
        assert_eq!(error.code(), Code::IDENTITY_REFUSED, "{}", error.chain());
    }
    // Without any certificate nothing is answered either.
    let ca = std::fs::read(file(&site.folder, "ca.pem")).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(NODE_SERVER_NAME);
    let endpoint = Endpoint::from_shared(site.endpoint()).unwrap().tls_config(tls).unwrap();
    let mut anonymous = FramesClient::new(endpoint.connect_lazy());
    assert!(anonymous.list_cameras(proto::ListCamerasRequest {}).await.is_err());
    // And the site's own are still served.
    site.client().await.cameras().await.unwrap();
}

/// Where bob's password is `ebb`, and tokens of one issuer are taken.
fn sources(issuer: &Issuer) -> Sources {
    let bob = ScramCredentials::derive(b"ebb", b"salt of bob", 4096).encode();
    let source = |name: &str, text: String| Some(Source { path: name.into(), text: text.into() });
    Sources {
        passwords: source("passwords", format!("bob:{bob}\n")),
        acl: None,
        roles: source("roles", "[user.bob]\nconnections_max = 1\n".to_owned()),
        tokens: Some(TokenSource {
            config: TokenConfig::new("us"),
            keys: Some(issuer.keys()),
            renewed_from: None,
        }),
        allow_anonymous: false,
        administrator: None,
        decoy_key: DecoyKey([1; 32]),
    }
}

/// Gives out tokens signed with Ed25519.
struct Issuer(ring::signature::Ed25519KeyPair);

impl Issuer {
    fn new() -> Self {
        Self(ring::signature::Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap())
    }

    fn keys(&self) -> KeySet {
        use ring::signature::KeyPair as _;
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        let key = serde_json::json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x});
        KeySet::parse(serde_json::json!({ "keys": [key] }).to_string().as_bytes()).unwrap()
    }

    /// One for `name` that expires `seconds` from now.
    fn token(&self, name: &str, seconds: i64) -> String {
        let until = tidegate_identity::auth::now().wall.as_nanos() / 1_000_000_000 + seconds;
        let header = serde_json::json!({"alg": "EdDSA", "kid": "one"});
        let claims = serde_json::json!({"aud": "us", "sub": name, "exp": until});
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

#[tokio::test]
async fn tokens_and_passwords_open_the_api_and_wrong_ones_do_not() {
    let issuer = Issuer::new();
    let (mut site, access) = Site::with(sources(&issuer)).await;
    let certificate = || site.credentials();
    for (credentials, expected) in [
        (site.nobody().token(&issuer.token("eve", 60)).unwrap(), Ok("user eve")),
        (site.nobody().password("bob", b"ebb").unwrap(), Ok("user bob")),
        (certificate(), Ok("application application")),
        (certificate().password("bob", b"ebb").unwrap(), Ok("user bob")), // what comes with the call
        (certificate().password("bob", b"tide").unwrap(), Err("user name or password is wrong")),
        (site.nobody().password("eve", b"ebb").unwrap(), Err("user name or password is wrong")),
        (site.nobody().token(&issuer.token("eve", -90)).unwrap(), Err("the token expired")),
        (certificate().token("a.b.c").unwrap(), Err("the token is not a JWT")),
        (site.nobody(), Err("a certificate of the site, a token or a user name")),
    ] {
        let shown = format!("{credentials:?}");
        assert!(!shown.contains("ebb") && !shown.contains("eyJ"), "{shown}");
        let client = Client::connect(&site.endpoint(), credentials).await;
        match (client, expected) {
            (Ok(client), Ok(who)) => {
                let _subscription = client.subscribe(request()).await.unwrap();
                assert_eq!(site.sessions.recv().await.unwrap().identity.to_string(), who);
            }
            (Err(error), Err(text)) => {
                assert_eq!(error.code(), Code::IDENTITY_REFUSED, "{}", error.chain());
                let chain = error.chain();
                assert!(chain.contains(text) && !chain.contains("tide"), "{chain}");
            }
            (client, expected) => panic!("{expected:?}: {client:?}"),
        }
    }
    // A user that is taken out comes in no more, on a connection that is open as well.
    let bob = site.nobody().password("bob", b"ebb").unwrap();
    let bob = Client::connect(&site.endpoint(), bob).await.unwrap();
    bob.cameras().await.unwrap();
    let without = Sources { passwords: None, ..sources(&issuer) };
    access.authenticator.exchange(access.authenticator.prepare(without).unwrap());
    assert_eq!(bob.cameras().await.unwrap_err().code(), Code::IDENTITY_REFUSED);
}

#[tokio::test]
async fn streams_count_against_the_limit_of_their_user() {
    let issuer = Issuer::new();
    let (mut site, _) = Site::with(sources(&issuer)).await;
    let bob = site.nobody().password("bob", b"ebb").unwrap();
    let bob = Client::connect(&site.endpoint(), bob).await.unwrap();
    let first = bob.subscribe(request()).await.unwrap();
    let session = site.session().await;
    let error = bob.subscribe(request()).await.unwrap_err();
    assert_eq!(error.code(), Code::LIMIT_REACHED, "{}", error.chain());
    let eve = site.nobody().token(&issuer.token("eve", 60)).unwrap();
    let eve = Client::connect(&site.endpoint(), eve).await.unwrap();
    let _hers = eve.subscribe(request()).await.unwrap();
    drop(first);
    session.events.closed().await;
    let again = poll(Duration::from_secs(10), async || bob.subscribe(request()).await.ok()).await;
    again.expect("one gone, another may come");
}

#[tokio::test]
async fn reflection_names_the_service() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let site = Site::start().await;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(site.channel());
    let answers = client.server_reflection_info(futures::stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    for expected in ["Configuration", "Fabric", "Frames", "Sessions"] {
        let expected = &*format!("tidegate.v1.{expected}");
        assert!(list.service.iter().any(|service| service.name == expected), "{list:?}");
    }
}

#[tokio::test]
async fn reflection_says_nothing_to_strangers() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    };
    let issuer = Issuer::new();
    // Where connections come without a certificate.
    let (site, _access) = Site::with(sources(&issuer)).await;
    let ca = std::fs::read(site.folder.path().join("ca.pem")).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(NODE_SERVER_NAME);
    let endpoint = Endpoint::from_shared(site.endpoint()).unwrap().tls_config(tls).unwrap();
    let basic = base64::engine::general_purpose::STANDARD.encode("bob:ebb");
    for (authorization, is_answered) in [
        (None, false),
        (Some(format!("Bearer {}", issuer.token("eve", -90))), false),
        (Some(format!("Basic {basic}")), false),
        (Some("nonsense".to_owned()), false),
        (Some(format!("Bearer {}", issuer.token("eve", 60))), true),
    ] {
        let mut client = ServerReflectionClient::new(endpoint.connect_lazy());
        let asked = ServerReflectionRequest::default();
        let mut request = tonic::Request::new(futures::stream::iter([asked]));
        if let Some(text) = &authorization {
            request.metadata_mut().insert("authorization", text.parse().unwrap());
        }
        let answered = client.server_reflection_info(request).await;
        assert_eq!(answered.is_ok(), is_answered, "{authorization:?}");
    }
}

#[tokio::test]
async fn who_calls_is_found_out_before_the_body_is_read() {
    use tonic::{body::Body, codegen::Service as _, codegen::http};
    let (site, _access) = Site::with(sources(&Issuer::new())).await;
    let ca = std::fs::read(site.folder.path().join("ca.pem")).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(NODE_SERVER_NAME);
    let endpoint = Endpoint::from_shared(site.endpoint()).unwrap().tls_config(tls).unwrap();
    let mut channel = endpoint.connect().await.unwrap();
    // Calls of one message, and of many, whose bodies never come.
    let frames = ["Connect", "Register", "ListCameras", "Publish", "Subscribe"];
    let frames = frames.map(|method| format!("Frames/{method}"));
    let sessions = ["ListSessions", "EndSessions"].map(|method| format!("Sessions/{method}"));
    let configuration = ["Configuration/ReloadConfiguration".to_owned()];
    let fabric = ["GetFabric", "ForgetMember"].map(|method| format!("Fabric/{method}"));
    for method in frames.into_iter().chain(sessions).chain(configuration).chain(fabric) {
        // A name of its own for each, since one with many wrong passwords has to wait.
        let password = format!("Basic {}", STANDARD.encode(format!("{method}:wrong")));
        for authorization in [None, Some("Bearer a.b.c"), Some(password.as_str())] {
            type Frame = hyper::body::Frame<Bytes>;
            let body = futures::stream::pending::<Result<Frame, tonic::Status>>();
            let uri = format!("{}/tidegate.v1.{method}", site.endpoint());
            let mut request = http::Request::post(uri).header("content-type", "application/grpc");
            if let Some(shown) = authorization {
                request = request.header("authorization", shown);
            }
            let body = Body::new(http_body_util::StreamBody::new(body));
            let answered = async {
                std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
                channel.call(request.body(body).unwrap()).await.unwrap()
            };
            let answer = tokio::time::timeout(std::time::Duration::from_secs(20), answered).await;
            let answer = answer.unwrap_or_else(|_| panic!("{method} waits for its body"));
            let status = answer.headers().get("grpc-status").map(|status| status.as_bytes());
            assert_eq!(status, Some(&b"16"[..]), "{method} {authorization:?}");
        }
    }
}

fn image(id: u64, model: &str, bytes: usize) -> proto::DetectRequest {
    proto::DetectRequest { id, model: model.to_owned(), image: vec![7; bytes].into() }
}

#[tokio::test]
async fn images_are_looked_at_and_a_stream_answers_each_as_it_is_there() {
    let site = Site::start().await;
    let channel = site.channel();
    let mut calls = tidegate_client::proto::detect_client::DetectClient::new(channel);
    let answer = calls.detect(image(5, "face", 70_000)).await.unwrap().into_inner();
    let Some(proto::detect_response::Result::Detected(found)) = answer.result else { panic!() };
    assert_eq!((answer.id, found.boxes[0].right), (5, 70_000.0));
    assert_eq!(found.boxes[0].label, "application", "the caller is who the certificate says");
    assert_eq!(code(calls.detect(image(1, "cat", 9)).await), Code::MODEL_UNKNOWN);
    assert_eq!(code(calls.detect(image(1, "", 9)).await), Code::DETECT_INVALID);
    let refused = calls.detect(image(1, "face", IMAGE_BYTES_MAX + (1 << 20))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::OutOfRange, "longer than an image may be");

    // The first waits for the third, and the second fails alone.
    let images = [image(1, "face", 1), image(2, "cat", 9), image(3, "face", 2)];
    let answers = calls.detect_stream(futures::stream::iter(images)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    let mut ids: Vec<u64> = answers.iter().map(|answer| answer.id).collect();
    assert_ne!(ids[0], 1, "none waits for the one before it");
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3]);
    let refused = answers.into_iter().find(|answer| answer.id == 2).unwrap().result;
    let Some(proto::detect_response::Result::Refused(refused)) = refused else { panic!() };
    assert_eq!(refused.code, Code::MODEL_UNKNOWN.as_str());
}

#[tokio::test]
async fn callers_that_may_look_see_the_health_of_the_node() {
    use super::health_stubs::{HealthCheckRequest, HealthCheckResponse};
    let site = Site::start().await;
    let ask = async |channel: Channel, service: &str| {
        let mut calls = tonic::client::Grpc::new(channel);
        calls.ready().await.unwrap();
        let request = Request::new(HealthCheckRequest { service: service.to_owned() });
        let path = hyper::http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let answer: Result<tonic::Response<HealthCheckResponse>, _> =
            calls.unary(request, path, codec).await;
        answer.map(|answer| answer.into_inner().status)
    };
    for service in ["", "tidegate.v1.Frames", "tidegate.v1.Detect"] {
        assert_eq!(ask(site.channel(), service).await.unwrap(), 1, "{service} is serving");
    }
    let unknown = ask(site.channel(), "cats").await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    assert!(unknown.message().contains("tidegate.v1.Frames"), "{unknown:?}");
}

#[tokio::test]
async fn an_image_that_is_looked_at_counts_against_the_limit_of_its_caller() {
    let (mut site, _access) = Site::with(sources(&Issuer::new())).await;
    let bob = site.nobody().password("bob", b"ebb").unwrap();
    let bob = Client::connect(&site.endpoint(), bob).await.unwrap();
    let first = bob.subscribe(request()).await.unwrap();
    let session = site.session().await;
    let channel = http::channel_of_nobody(&site).await;
    let ask = async || {
        let mut calls = tidegate_client::proto::detect_client::DetectClient::new(channel.clone());
        let mut asked = Request::new(image(1, "face", 9));
        let shown = format!("Basic {}", STANDARD.encode("bob:ebb"));
        asked.metadata_mut().insert("authorization", shown.parse().unwrap());
        calls.detect(asked).await
    };
    assert_eq!(code(ask().await), Code::LIMIT_REACHED);
    drop(first);
    session.events.closed().await;
    let again = poll(Duration::from_secs(10), async || ask().await.ok()).await;
    again.expect("one gone, another may come");
    ask().await.expect("the answer ends it");
}

#[tokio::test]
async fn watching_the_health_counts_and_ends_with_the_credentials_of_its_caller() {
    use super::health_stubs::{HealthCheckRequest, HealthCheckResponse};
    let issuer = Issuer::new();
    let roles = Source {
        path: "roles".into(),
        text: "[user.eve]\nconnections_max = 1\n".to_owned().into(),
    };
    let sources = || Sources { roles: Some(roles.clone()), ..sources(&issuer) };
    let (site, access) = Site::with(sources()).await;
    let channel = http::channel_of_nobody(&site).await;
    let watch = async |service: &str| {
        let mut calls = tonic::client::Grpc::new(channel.clone());
        calls.ready().await.unwrap();
        let mut request = Request::new(HealthCheckRequest { service: service.to_owned() });
        let shown = format!("Bearer {}", issuer.token("eve", 60));
        request.metadata_mut().insert("authorization", shown.parse().unwrap());
        let path = hyper::http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Watch");
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let answers: Result<tonic::Response<tonic::Streaming<HealthCheckResponse>>, _> =
            calls.server_streaming(request, path, codec).await;
        answers.map(tonic::Response::into_inner)
    };
    let mut watched = watch("").await.unwrap();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
    assert_eq!(code(watch("").await), Code::LIMIT_REACHED);
    drop(watched);
    // Of a service that there is not, too.
    let again = poll(Duration::from_secs(10), async || watch("cats").await.ok()).await;
    let mut watched = again.expect("one gone, another may come");
    assert_eq!(watched.message().await.unwrap().unwrap().status, 3);
    let without = Sources { tokens: None, ..sources() };
    access.authenticator.exchange(access.authenticator.prepare(without).unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(10), watched.message()).await;
    assert_eq!(code(ended.expect("it ends")), Code::IDENTITY_REFUSED);
}

//! A node and another member over real TLS on loopback, with cameras in memory.

use std::{path::Path, time::Duration};

use tempfile::TempDir;
use tidegate_api::{
    CameraInfo, EndReason, Event, Frame, Missed, MissedWhy, Original, Place, Stages,
    SubscribeRequest,
};
use tidegate_identity::{
    auth::{Admitted, Authenticator, Source, Sources, password::DecoyKey},
    pki::{self, InitRequest, revocation::Reason},
};
use tidegate_message::{Action, IdentityKind, Target};
use tidegate_ports::{Subscription, memory};
use tidegate_rpc::{Admin, Router, Server, ServerConfig, server::ALPN};
use tokio::task::JoinHandle;

use super::*;

#[path = "../../tidegate/tests/shared/poll_async.rs"]
mod poll_async;
use poll_async::poll;

const LONGEST: Duration = Duration::from_secs(30);

/// Cameras in memory, for callers that the rules let see them.
struct Node {
    cameras: memory::Cameras,
    access: Access,
    callers: Mutex<Vec<String>>,
}

impl Node {
    fn new(access: &Access) -> Arc<Self> {
        Arc::new(Self {
            cameras: memory::Cameras::default(),
            access: access.clone(),
            callers: Mutex::default(),
        })
    }
}

struct Guarded {
    node: Arc<Node>,
    identity: Arc<Identity>,
}

impl Guarded {
    fn may(&self, action: Action, camera: &CameraName) -> Result<(), ApiError> {
        self.node.callers.lock().unwrap().push(self.identity.to_string());
        self.node.access.may("api", &self.identity, action, Target::Camera(camera.as_str()))
    }
}

#[async_trait]
impl Frames for Guarded {
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError> {
        let mut cameras = self.node.cameras.cameras().await?;
        cameras.retain(|camera| {
            let target = Target::Camera(camera.name.as_str());
            self.node.access.allows(&self.identity, Action::Frames, target)
        });
        Ok(cameras)
    }

    async fn camera(&self, name: &CameraName) -> Result<CameraInfo, ApiError> {
        self.may(Action::Frames, name)?;
        self.node.cameras.camera(name).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> Result<Box<dyn Subscription>, ApiError> {
        self.may(Action::Frames, &request.camera)?;
        self.node.cameras.subscribe(request).await
    }

    async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError> {
        self.may(Action::FetchOriginal, camera)?;
        self.node.cameras.fetch_original(camera, captured_at).await
    }
}

fn none() -> ApiError {
    ApiError::new(Code::SUBSCRIPTION_UNKNOWN, "no such subscription")
}

#[async_trait]
impl Cameras for Node {
    fn frames(self: Arc<Self>, identity: Arc<Identity>) -> Arc<dyn Frames> {
        Arc::new(Guarded { node: self, identity })
    }

    async fn register(&self, _: &Identity, _: Registration) -> Result<(), ApiError> {
        Err(none())
    }

    async fn unregister(&self, _: &Identity, _: &CameraName) -> Result<(), ApiError> {
        Err(none())
    }

    async fn publish(
        &self,
        _: &Identity,
        _: &CameraName,
        _: Option<Instant>,
        _: Bytes,
    ) -> Result<Instant, ApiError> {
        Err(none())
    }

    async fn update(
        &self,
        _: &Identity,
        _: SubscriptionId,
        changes: Changes,
    ) -> Result<Demand, ApiError> {
        let request = SubscribeRequest::new("cam1", Duration::from_millis(500), 0.9)?;
        changes.apply(request.demand)
    }

    async fn unsubscribe(
        &self,
        _: &Identity,
        _: SubscriptionId,
    ) -> Result<UnsubscribeStatus, ApiError> {
        Err(none())
    }

    async fn feedback(
        &self,
        _: &Identity,
        _: FeedbackOf,
    ) -> Result<mpsc::Receiver<Verdict>, ApiError> {
        Err(none())
    }
}

/// The one other member.
#[derive(Default)]
struct Fabric(Mutex<Option<Member>>);

impl Members for Fabric {
    fn with_camera(&self, camera: &CameraName) -> Option<Member> {
        self.0.lock().unwrap().clone().filter(|_| camera.as_str().starts_with("cam"))
    }

    fn present(&self) -> Vec<Member> {
        self.0.lock().unwrap().clone().into_iter().collect()
    }

    fn find(&self, node: NodeId) -> Option<Member> {
        self.0.lock().unwrap().clone().filter(|member| member.node == node)
    }
}

/// The node `here`, which relays, and the member `yard` with cameras.
struct World {
    folder: TempDir,
    here: Arc<Node>,
    relay: Arc<Relay>,
    fabric: Arc<Fabric>,
    yard: Arc<Node>,
    yard_access: Access,
    served: JoinHandle<()>,
    stop: CancellationToken,
}

fn rules(roles: &str) -> Access {
    let sources = Sources {
        passwords: None,
        acl: None,
        roles: Some(Source { path: "roles.toml".into(), text: roles.to_owned().into() }),
        tokens: None,
        allow_anonymous: false,
        administrator: None,
        decoy_key: DecoyKey([0; 32]),
    };
    let authenticator = Arc::new(Authenticator::new(sources).expect("rules"));
    Access { authenticator, ..Access::default() }
}

fn loaded(folder: &Path, name: &str, access: Access) -> (Credentials, Access) {
    let credentials = pki::load(folder, name).expect("credentials");
    let access = Access { revocations: credentials.revocations().clone(), ..access };
    (credentials, access)
}

impl World {
    async fn new() -> Self {
        Self::with(Access::default(), Access::default()).await
    }

    /// With the rules of `here` and of `yard`.
    async fn with(here_access: Access, yard_access: Access) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let nodes = ["here", "yard"].map(str::to_owned).to_vec();
        pki::init(folder.path(), &InitRequest { nodes, ..InitRequest::default() }).expect("keys");
        let (credentials, here_access) = loaded(folder.path(), "here", here_access);
        let (of_yard, yard_access) = loaded(folder.path(), "yard", yard_access);
        let mut server = Server::bind(ServerConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            node: "yard".to_owned(),
            frame_bytes_max: 1 << 20,
            tls: Arc::new(of_yard.server_tls(ALPN).expect("TLS")),
            tls_open: Arc::new(of_yard.server_tls_open(ALPN).expect("TLS")),
            access: yard_access.clone(),
            web: Router::new(),
            web_public: Router::new(),
        })
        .await
        .expect("a port");
        let asks = credentials.identity().node;
        server.let_members_ask(Arc::new(move |node| node == asks));
        let member = Member {
            node: of_yard.identity().node,
            name: "yard".to_owned(),
            addresses: vec![server.address().to_string()],
            is_doubted: false,
            has_cameras: true,
            round_trip: None,
        };
        let (yard, here) = (Node::new(&yard_access), Node::new(&here_access));
        let place = refusals::place(&member);
        here.cameras.move_to("cam1".parse().unwrap(), place.clone());
        here.cameras.move_to("cam2".parse().unwrap(), place);
        let stop = CancellationToken::new();
        let served = {
            let (yard, stop) = (yard.clone(), stop.clone());
            let admin: Arc<dyn Admin> = Arc::new(tidegate_rpc::Administration {
                access: yard_access.clone(),
                bus: None,
                reloads: None,
                fabric: None,
            });
            tokio::spawn(async move { server.serve(yard, admin, stop).await.expect("served") })
        };
        let fabric = Arc::new(Fabric(Mutex::new(Some(member))));
        let (relay, work) =
            Relay::over(here.clone(), fabric.clone(), &credentials, here_access).expect("a relay");
        tokio::spawn(work.run(stop.clone()));
        Self { folder, here, relay, fabric, yard, yard_access, served, stop }
    }

    /// The frames of all, for a user.
    fn of(&self, user: &str) -> Arc<dyn Frames> {
        self.relay.clone().frames_of_all(identity(user))
    }
}

fn identity(user: &str) -> Arc<Identity> {
    let who = tidegate_message::Identity::new(IdentityKind::User, user, "");
    Arc::new(Identity::of_user(Admitted::by_certificate(who)))
}

fn name(text: &str) -> CameraName {
    text.parse().expect("a name")
}

fn request(camera: &str) -> SubscribeRequest {
    SubscribeRequest::new(camera, Duration::from_millis(500), 0.9).expect("bounds")
}

fn camera(name: &str, online: bool) -> CameraInfo {
    CameraInfo {
        name: name.parse().expect("a name"),
        online,
        size: None,
        frames_per_second: 5.0,
        frame_bytes: 0,
        oldest_at: None,
        newest_at: None,
        log_bytes: 0,
        log_bytes_max: 0,
        transfers: 0,
        subscriptions: 0,
        transport: "local".to_owned(),
        clock_offset: None,
        no_frames: None,
        capture_clock: None,
        substream_of: None,
        node: None,
    }
}

/// A frame that the member handed over so long ago, by a clock that is hours off.
fn frame(millis: i64, ago: Duration) -> Event {
    let its_clock = clock_of_yard() - ago;
    Event::Frame(Frame {
        captured_at: Instant::from_millis(millis),
        epoch: 77,
        size: "960x540".parse().expect("a size"),
        source_size: None,
        original_bytes: 9,
        knobs: "1/2".into(),
        accuracy: 0.97,
        accuracy_kept: true,
        replayed: false,
        stages: Stages { encode: Duration::from_millis(8), ..Stages::default() },
        handed_at: its_clock,
        jpeg: Bytes::from_static(b"jpeg"),
    })
}

fn clock_of_yard() -> Instant {
    tidegate_process::clock::now() + Duration::from_secs(5 * 3600)
}

async fn next(subscription: &mut Box<dyn Subscription>) -> Result<Event, ApiError> {
    let next = tokio::time::timeout(LONGEST, subscription.next_event()).await;
    next.expect("it comes").expect("it runs")
}

#[tokio::test]
async fn frames_come_as_they_were_captured_and_the_bound_counts_to_here() {
    let world = World::new().await;
    let feed = world.yard.cameras.feed(name("cam1"));
    let mut seen = world.of("ada").subscribe(request("cam1")).await.expect("it is relayed");
    let started = seen.started();
    assert!(started.id.0 >= IDS_FROM, "{started:?}");
    assert_eq!(world.yard.callers.lock().unwrap()[..], ["user ada through node here"]);
    feed.send(Ok(frame(1000, Duration::ZERO))).await.expect("it runs");
    let Ok(Event::Frame(first)) = next(&mut seen).await else { panic!("a frame") };
    assert_eq!((first.captured_at, first.epoch), (Instant::from_millis(1000), 77));
    assert_eq!((&*first.jpeg, first.stages.encode), (&b"jpeg"[..], Duration::from_millis(8)));
    let since = tidegate_process::clock::now().since(first.handed_at);
    assert!(since < LONGEST, "it was handed over by the clock of this node");
    // One that was on its way for longer than its bound is not shown.
    feed.send(Ok(frame(2000, Duration::from_secs(2)))).await.expect("it runs");
    let late = next(&mut seen).await.expect("it runs");
    let at = Instant::from_millis(2000);
    assert_eq!(late, Event::Missed(Missed { from: at, to: at, count: 1, why: MissedWhy::Late }));
    // Other bounds are asked for by the viewer, and by the name that it knows.
    let changes = Changes { latency: Some(Duration::from_secs(5)), ..Changes::default() };
    let demand = seen.update(changes).await.expect("in range");
    assert_eq!(demand.bounds.latency(), Duration::from_secs(5));
    feed.send(Ok(frame(3000, Duration::from_secs(2)))).await.expect("it runs");
    let Ok(Event::Frame(old)) = next(&mut seen).await else { panic!("a frame") };
    assert!(old.stages.total() >= Duration::from_secs(2), "{:?}", old.stages);
    let changes = Changes { accuracy: Some(0.5), ..Changes::default() };
    let demand = world.relay.update(&identity("ada"), started.id, changes).await.expect("its own");
    assert_eq!(demand.bounds.accuracy(), 0.5);
    let other = world.relay.update(&identity("bob"), started.id, changes).await;
    assert_eq!(other.expect_err("another's").code(), Code::SUBSCRIPTION_UNKNOWN);
    drop(seen);
    let gone = tokio::time::timeout(LONGEST, feed.closed()).await;
    assert!(gone.is_ok(), "the member's subscription ends with that of the viewer");
    let over = world.relay.update(&identity("ada"), started.id, changes).await;
    assert_eq!(over.expect_err("it is over").code(), Code::SUBSCRIPTION_UNKNOWN);
}

#[tokio::test]
async fn caller_needs_its_right_at_both_nodes_and_this_node_needs_it_there() {
    let roles =
        |users: &str| rules(&format!("[role.see]\nframes = true\nfetch-original = true\n{users}"));
    let here = roles("[user.ada]\nroles = [\"see\"]\n[user.bob]\nroles = [\"see\"]\n");
    let there = roles(
        "[user.ada]\nroles = [\"see\"]\n[user.eve]\nroles = [\"see\"]\n[node.here]\nroles = [\"see\"]\n",
    );
    let world = World::with(here.clone(), there).await;
    let at = Instant::from_millis(5);
    let original = Original { captured_at: at, jpeg: Bytes::from_static(b"whole") };
    world.yard.cameras.keep(name("cam1"), original.clone());
    world.yard.cameras.add(camera("cam1", true));
    let fetched = world.of("ada").fetch_original(&name("cam1"), at).await;
    assert_eq!(fetched.expect("both let her"), original);
    let missing = world.of("ada").fetch_original(&name("cam1"), Instant::EPOCH).await;
    assert_eq!(missing.expect_err("no such frame").code(), Code::FRAME_MISSING);
    for (user, by) in [("bob", "node yard refuses"), ("eve", "user eve may not")] {
        let refused = world.of(user).fetch_original(&name("cam1"), at).await.expect_err(user);
        assert_eq!(refused.code(), Code::ACTION_DENIED, "{user}");
        assert!(refused.chain().contains(by), "{}", refused.chain());
        let subscribed = world.of(user).subscribe(request("cam1")).await;
        assert_eq!(subscribed.err().map(|error| error.code()), Some(Code::ACTION_DENIED), "{user}");
        assert_eq!(world.of(user).cameras().await.expect("a list"), [], "{user}");
    }
    assert_eq!(world.of("ada").cameras().await.expect("a list").len(), 1);
    let world = World::with(here, roles("[user.ada]\nroles = [\"see\"]\n")).await;
    let refused = world.of("ada").fetch_original(&name("cam1"), at).await.expect_err("no right");
    assert!(refused.chain().contains("node here may not"), "{}", refused.chain());
}

#[tokio::test]
async fn what_is_relayed_is_not_relayed_again() {
    let world = World::new().await;
    let place = Place { node: "here".to_owned(), addresses: vec!["192.0.2.1:7080".to_owned()] };
    world.yard.cameras.move_to(name("cam1"), place.clone());
    let refused = world.of("ada").subscribe(request("cam1")).await.err().expect("a loop");
    assert_eq!((refused.code(), refused.place()), (Code::CAMERA_ELSEWHERE, Some(&place)));
    assert!(refused.message().contains("not relayed again"), "{refused}");
    // A member that asks this node for a caller of its own is shown its cameras alone.
    let node = identity("ada");
    let through = Arc::new(Identity::on_behalf(&node, &node.named().unwrap()).unwrap());
    let refused = world.relay.clone().frames_of_all(through).camera(&name("cam2")).await;
    assert_eq!(refused.expect_err("it is elsewhere").code(), Code::CAMERA_ELSEWHERE);
    assert_eq!(world.here.cameras.requests(), []);
}

#[tokio::test]
async fn no_other_node_is_taken_for_the_member() {
    let world = World::new().await;
    let mut member = world.fabric.0.lock().unwrap().clone().expect("a member");
    member.node = NodeId([7; 32]);
    *world.fabric.0.lock().unwrap() = Some(member);
    let refused = world.of("ada").camera(&name("cam1")).await.expect_err("another key");
    assert_eq!(refused.code(), Code::LINK_DOWN);
    assert!(refused.chain().contains("another key"), "{}", refused.chain());
}

#[tokio::test]
async fn streams_end_once_the_member_is_revoked() {
    let world = World::new().await;
    let feed = world.yard.cameras.feed(name("cam1"));
    let mut seen = world.of("ada").subscribe(request("cam1")).await.expect("it is relayed");
    feed.send(Ok(frame(1000, Duration::ZERO))).await.expect("it runs");
    assert!(matches!(next(&mut seen).await, Ok(Event::Frame(_))));
    pki::revoke(world.folder.path(), &["yard".to_owned()], Reason::KeyCompromise).expect("a list");
    assert!(world.relay.access.revocations.refresh().expect("a list"));
    let error = next(&mut seen).await.expect_err("it ends");
    assert!(error.message().contains("node yard"), "{error}");
    assert!(error.message().contains("revoked"), "{error}");
    assert!(seen.next_event().await.is_none(), "nothing follows");
    assert!(tokio::time::timeout(LONGEST, feed.closed()).await.is_ok());
    assert_eq!(world.yard_access.revocations.count(), 0, "the member does not know it");
}

#[tokio::test]
async fn more_than_may_be_is_refused() {
    let world = World::new().await;
    let all = world.relay.places.clone().try_acquire_many_owned(STREAMS_MAX as u32);
    let all = all.expect("none is used");
    let refused = world.of("ada").subscribe(request("cam1")).await.err().expect("no place");
    assert_eq!(refused.code(), Code::LIMIT_REACHED);
    drop(all);
    let _feed = world.yard.cameras.feed(name("cam1"));
    assert!(world.of("ada").subscribe(request("cam1")).await.is_ok());
}

#[tokio::test]
async fn cameras_of_a_silent_member_stay_with_the_reason() {
    let World { here, relay, yard, served, stop, .. } = World::new().await;
    here.cameras.add(camera("hall", true));
    here.cameras.add(camera("cam3", false));
    yard.cameras.add(camera("cam1", true));
    yard.cameras.add(camera("cam3", true));
    let ada = relay.clone().frames_of_all(identity("ada"));
    let seen = |cameras: Vec<CameraInfo>| {
        let seen = cameras.into_iter();
        seen.map(|one| (one.name.to_string(), one.online, one.node)).collect::<Vec<_>>()
    };
    let at_yard = |name: &str, online| (name.to_owned(), online, Some("yard".to_owned()));
    let hall = ("hall".to_owned(), true, None);
    let found = seen(ada.cameras().await.expect("a list"));
    assert_eq!(found, [at_yard("cam1", true), at_yard("cam3", true), hall.clone()]);
    let one = ada.camera(&name("cam1")).await.expect("it is there");
    assert_eq!(one.node.as_deref(), Some("yard"));
    let feed = yard.cameras.feed(name("cam1"));
    let mut live = ada.subscribe(request("cam1")).await.expect("it is relayed");
    stop.cancel();
    served.await.expect("it stops");
    drop(feed);
    // The stream waits for the member, and says so with its name.
    let said = loop {
        match next(&mut live).await {
            Ok(Event::CameraOffline(said)) => break said,
            Ok(Event::Ended(EndReason::Shutdown)) => panic!("it may start again"),
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert!(said.contains("node yard"), "{said}");
    let ask = async || {
        let found = ada.cameras().await.expect("a list");
        let why = found[0].no_frames.clone().unwrap_or_default();
        (why.contains("node yard") && why.contains("does not answer")).then_some(found)
    };
    let found = poll(LONGEST, ask).await.expect("the reason");
    let cam3 = ("cam3".to_owned(), false, None);
    assert_eq!(seen(found), [at_yard("cam1", false), cam3, hall]);
}

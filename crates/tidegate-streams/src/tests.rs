//! A node without sockets: the test is its camera and its application.

use bytes::Bytes;
use tidegate_api::{Changes, Event, FeedbackOf, Place, Registration, SubscribeRequest};
use tidegate_camera::camera::Privacy;
use tidegate_frame::{
    coordinator::CoordinatorConfig, knob::FrameLimits, table::TableSet, transfer::TransferConfig,
};
use tidegate_identity::{
    access::Identity,
    auth::{Admitted, Source, Sources, password::DecoyKey},
    pki::{Kind, PeerIdentity},
};
use tidegate_link::carrier::{self, Incoming};
use tidegate_log::LogConfig;
use tidegate_message::{CameraName, Code, Delivery, FrameSize, IdentityKind, Instant};
use tidegate_ports::Subscription;
use tidegate_process::health::Health;
use tidegate_rpc::Cameras as _;
use tidegate_wire::{
    CameraAnnounce, CameraInfoRequest, FrameHeader, NodeId, Record, StartTransfer,
};

use super::{
    cameras::{Attachment, Camera, Owner},
    entry::{Arrival, Epoch, Meta},
    stream::Stream,
    *,
};

pub(super) const OWNER: Owner = Owner { node: NodeId([1; 32]), certified: true };

struct Rig {
    node: Arc<NodeState>,
    camera: Arc<Camera>,
    link: Attachment,
    application: Identity,
}

pub(super) fn ms(millis: i64) -> Instant {
    Instant::from_millis(millis)
}

pub(super) fn announce() -> CameraAnnounce {
    CameraAnnounce {
        name: "cam1".parse().unwrap(),
        size: None,
        frames_per_second: 0.0,
        source: String::new(),
    }
}

impl Rig {
    fn new() -> Self {
        let log = LogConfig { bytes_max: 1 << 20, segment_bytes: 1 << 16 };
        let hosted = CameraSettings {
            name: "hosted".parse().unwrap(),
            size: None,
            frames_per_second: 0.0,
            source: String::new(),
            log: log.clone().into(),
            limits: FrameLimits::default(),
            privacy: Privacy::default(),
            health: Health::default(),
            future_max: Duration::from_secs(1),
            tables: None,
            transfer: TransferConfig::default(),
            frozen_after: None,
        };
        let (tasks, owner) = tasks::tasks();
        tokio::spawn(owner.run(std::future::pending(), GRACE));
        let shares = Shares::new(
            clock::now(),
            Arc::new(TableSet::builtin()),
            Some(CoordinatorConfig::default()),
        );
        let (hints, stop) = (TransferHints::default(), CancellationToken::new());
        let node =
            NodeState::new(hosted, log.into(), hints, shares, Access::default(), tasks, stop);
        let (camera, link) = node.cameras.attach(announce(), OWNER, 71, "test".to_owned()).unwrap();
        let application = PeerIdentity {
            kind: Kind::Application,
            name: "application".to_owned(),
            node: NodeId([2; 32]),
            serial: "02".parse().unwrap(),
        };
        let application = Identity::of_peer(&application, None);
        Self { node, camera, link, application }
    }

    async fn subscribe(&self, delivery: Delivery, from: Option<Instant>) -> Box<dyn Subscription> {
        let mut request = SubscribeRequest::new("cam1", Duration::from_secs(60), 0.5).unwrap();
        request.demand.delivery = delivery;
        request.from = from;
        self.node.clone().frames(self.application.clone().into()).subscribe(request).await.unwrap()
    }

    /// Lowers the latency bound, so that the subscription moves if it is not alone.
    async fn update(&self, subscription: &dyn Subscription) {
        let changes = Changes { latency: Some(Duration::from_secs(30)), ..Changes::default() };
        subscription.update(changes).await.unwrap();
    }

    /// The next transfer that the camera is asked for.
    fn started(&mut self) -> StartTransfer {
        loop {
            let record = self.link.records.try_recv().expect("a transfer is asked for");
            if let Record::StartTransfer(start) = record {
                return start;
            }
        }
    }

    fn stream(&self, start: &StartTransfer) -> Arc<Stream> {
        self.camera.stream(start.transfer).unwrap()
    }

    fn append(&self, start: &StartTransfer, millis: i64, replayed: bool) {
        append(&self.stream(start), self.link.life, ms(millis), replayed, Duration::ZERO);
    }
}

/// A frame that has come just now, captured `before` that by the node's clock.
pub(super) fn append(stream: &Stream, life: Epoch, at: Instant, replayed: bool, before: Duration) {
    let now = clock::now();
    // Its camera's clock may say anything: only the arrival counts.
    let offset_nanos = now.nanos_since(at) - before.as_nanos() as i64;
    let arrival = Arrival { life, first_at: now, last_at: now, offset_nanos };
    let header = FrameHeader {
        replayed,
        ..FrameHeader::untouched(stream.transfer, at, FrameSize { width: 1, height: 1 }, 4)
    };
    stream.append(at, arrival, &Meta::Frame(header), &Bytes::from_static(b"jpeg")).unwrap();
}

/// The capture times of the next frames, in milliseconds.
async fn frames(subscription: &mut Box<dyn Subscription>, count: usize) -> Vec<i64> {
    let mut times = Vec::new();
    while times.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(60), subscription.next_event());
        match next.await.expect("a frame").expect("it goes on").expect("it holds") {
            Event::Frame(frame) => times.push(frame.captured_at.as_nanos() / 1_000_000),
            Event::Missed(missed) => panic!("{missed:?}"),
            _ => {}
        }
    }
    times
}

#[tokio::test(start_paused = true)]
async fn a_subscription_to_every_frame_moves_to_a_new_stream_without_losing_one() {
    let mut rig = Rig::new();
    let _other = rig.subscribe(Delivery::Every, None).await;
    let old = rig.started();
    let mut moved = rig.subscribe(Delivery::Every, None).await;
    rig.append(&old, 1000, false);
    rig.append(&old, 1100, false);
    rig.update(&*moved).await;
    let new = rig.started();
    assert_eq!((new.from, new.resume_after), (None, Some(ms(1100))));
    // A frame under way comes to both.
    rig.append(&old, 1200, false);
    rig.append(&new, 1200, true);
    rig.append(&new, 1300, false);
    assert_eq!(frames(&mut moved, 4).await, [1000, 1100, 1200, 1300]);
    assert_eq!(rig.camera.streams().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_to_every_frame_joins_only_a_stream_that_reaches_back() {
    let mut rig = Rig::new();
    let _other = rig.subscribe(Delivery::Every, None).await;
    let old = rig.started();
    let mut moved =
        [rig.subscribe(Delivery::Every, None).await, rig.subscribe(Delivery::Every, None).await];
    rig.append(&old, 1000, false);
    rig.update(&*moved[0]).await;
    let new = rig.started();
    rig.append(&new, 1200, false);
    // The new stream begins behind what the second has got.
    rig.update(&*moved[1]).await;
    let own = rig.started();
    assert_eq!(own.resume_after, Some(ms(1000)));
    rig.append(&own, 1100, true);
    assert_eq!(frames(&mut moved[1], 2).await, [1000, 1100]);
    assert_eq!(frames(&mut moved[0], 2).await, [1000, 1200]);
    // By now it reaches back, as seen from a third.
    let mut third = rig.subscribe(Delivery::Every, None).await;
    rig.append(&old, 1300, false);
    rig.append(&new, 1300, false);
    rig.append(&new, 1400, false);
    rig.update(&*third).await;
    assert_eq!(frames(&mut third, 2).await, [1300, 1400]);
    assert_eq!(rig.camera.streams().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_to_the_newest_is_not_shown_old_frames_by_a_move() {
    let mut rig = Rig::new();
    let _other = rig.subscribe(Delivery::Latest, None).await;
    let old = rig.started();
    let mut moved = rig.subscribe(Delivery::Latest, None).await;
    rig.append(&old, 1000, false);
    rig.update(&*moved).await;
    let new = rig.started();
    assert_eq!((new.from, new.resume_after), (None, None));
    rig.append(&new, 1200, false);
    assert_eq!(frames(&mut moved, 2).await, [1000, 1200]);
}

#[tokio::test(start_paused = true)]
async fn a_session_of_the_past_skips_nothing_that_others_left_out() {
    let mut rig = Rig::new();
    let _present = rig.subscribe(Delivery::Latest, None).await;
    let present = rig.started();
    rig.append(&present, 1000, false);
    rig.append(&present, 1200, false);
    let mut past = rig.subscribe(Delivery::Latest, Some(ms(1000))).await;
    let own = rig.started();
    assert_eq!(own.from, Some(ms(1000)));
    for at in [1000, 1100, 1200] {
        rig.append(&own, at, true);
    }
    rig.append(&own, 1300, false);
    rig.append(&present, 1300, false);
    assert_eq!(frames(&mut past, 4).await, [1000, 1100, 1200, 1300]);
    // In the present it reads what others read.
    rig.append(&present, 1400, false);
    assert_eq!(frames(&mut past, 1).await, [1400]);
    assert_eq!(rig.camera.streams().len(), 1);
}

/// A camera in this process that sends more than its carrier holds before it takes its records.
#[tokio::test]
async fn a_full_way_out_does_not_stop_the_way_in() {
    const MANY: usize = 200;
    let Rig { node, camera, link, .. } = Rig::new();
    let (mut camera_end, node_end) = carrier::local();
    let question = || CameraInfoRequest { request: 7 };
    for _ in 0..MANY {
        camera.tell(question()).unwrap();
    }
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move { serve::serve_attached(node, node_end, camera, link, &stop).await }
    });
    let exchange = async {
        for _ in 0..MANY {
            camera_end.send(question().into()).await.unwrap();
        }
        let mut told = 0;
        while told < MANY {
            if let Incoming::Record(Record::CameraInfoRequest(_)) = camera_end.recv().await.unwrap()
            {
                told += 1;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), exchange)
        .await
        .expect("neither waits for the other");
    stop.cancel();
    serving.await.unwrap();
}

/// A node whose roles are these, and an application `application` from another machine.
fn rig_with_roles(roles: &str) -> Rig {
    let mut rig = Rig::new();
    exchange(&rig, Some(roles));
    let peer = PeerIdentity {
        kind: Kind::Application,
        name: "application".to_owned(),
        node: NodeId([2; 32]),
        serial: "02".parse().unwrap(),
    };
    rig.application = Identity::of_peer(&peer, Some([192, 0, 2, 1].into()));
    rig
}

fn exchange(rig: &Rig, roles: Option<&str>) {
    let roles = roles.map(|text| Source { path: "roles".into(), text: text.to_owned().into() });
    let sources = Sources {
        passwords: None,
        acl: None,
        roles,
        tokens: None,
        allow_anonymous: false,
        administrator: None,
        decoy_key: DecoyKey([0; 32]),
    };
    let authenticator = &rig.node.access.authenticator;
    authenticator.exchange(authenticator.prepare(sources).unwrap());
}

fn of_application(rights: &str) -> String {
    format!("[role.r]\n{rights}\n[certificate.application]\nroles = [\"r\"]\n")
}

#[tokio::test]
async fn each_call_checks_its_right() {
    let cam1: CameraName = "cam1".parse().unwrap();
    let registration =
        || Registration { camera: "phone".parse().unwrap(), size: None, frames_per_second: None };
    let request = || SubscribeRequest::new("cam1", Duration::from_secs(60), 0.5).unwrap();
    for (rights, expected) in [
        // cameras seen; info, subscribe, feedback, originals, register, unregister
        ("", [false; 7]),
        ("frames = [\"cam1\"]", [true, true, true, true, false, false, false]),
        ("frames = [\"cam2\"]", [false; 7]),
        ("fetch-original = true", [false, false, false, false, true, false, false]),
        ("publish = [\"camera:phone\"]", [false, false, false, false, false, true, false]),
        ("publish = [\"#\"]", [false; 7]), // topics are no cameras
        ("admin = [\"camera:cam1\"]", [false, false, false, false, false, false, true]),
        ("frames = true\n[role.r.deny]\nframes = [\"cam*\"]", [false; 7]),
    ] {
        let rig = rig_with_roles(&of_application(rights));
        let (node, who) = (&rig.node, &rig.application);
        let seen = node.clone().frames(who.clone().into());
        // It is away, so that it may be unregistered, and does not answer.
        rig.camera.detach(rig.link.id, "gone");
        let allowed = |code: Option<Code>| code != Some(Code::ACTION_DENIED);
        let got = [
            seen.cameras().await.unwrap().len() == 1,
            allowed(seen.camera(&cam1).await.err().map(|e| e.code())),
            allowed(seen.subscribe(request()).await.err().map(|e| e.code())),
            allowed(
                node.feedback(who, FeedbackOf::Camera(cam1.clone())).await.err().map(|e| e.code()),
            ),
            allowed(seen.fetch_original(&cam1, ms(1)).await.err().map(|e| e.code())),
            allowed(node.register(who, registration()).await.err().map(|e| e.code())),
            allowed(node.unregister(who, &cam1).await.err().map(|e| e.code())),
        ];
        assert_eq!(got, expected, "{rights}");
    }
}

#[tokio::test]
async fn unknown_camera_names_none_that_its_caller_may_not_see() {
    let wrong: CameraName = "cam7".parse().unwrap();
    for (rights, is_named) in [
        ("frames = [\"cam1\", \"cam7\"]\nadmin = [\"camera:cam7\"]", true),
        ("frames = [\"cam7\"]\nadmin = [\"camera:cam7\"]", false),
        ("admin = [\"camera:cam7\"]", false),
    ] {
        let rig = rig_with_roles(&of_application(rights));
        let request = SubscribeRequest::new("cam7", Duration::from_secs(60), 0.5).unwrap();
        let seen = rig.node.clone().frames(rig.application.clone().into());
        let errors = [
            seen.camera(&wrong).await.map(drop).unwrap_err(),
            seen.subscribe(request).await.map(drop).unwrap_err(),
            rig.node.unregister(&rig.application, &wrong).await.unwrap_err(),
        ];
        for error in errors {
            let names = error.message().contains("cam1");
            assert!(names == is_named || error.code() == Code::ACTION_DENIED, "{rights}: {error}");
            assert!(is_named || !names, "{rights}: {error}");
        }
    }
}

#[tokio::test]
async fn camera_that_another_node_reaches_is_answered_with_that_node() {
    let rig = rig_with_roles("[anonymous]");
    exchange(&rig, None);
    let place = Place { node: "yard".to_owned(), addresses: vec!["yard.local:7080".to_owned()] };
    let known = place.clone();
    rig.node
        .elsewhere
        .set(Arc::new(move |name: &CameraName| (name.as_str() != "cam9").then(|| known.clone())))
        .ok()
        .expect("it is the first");
    let seen = rig.node.clone().frames(rig.application.clone().into());
    let [cam1, cam7, cam9] =
        ["cam1", "cam7", "cam9"].map(|name| name.parse::<CameraName>().unwrap());
    let subscribe = |name: &str| SubscribeRequest::new(name, Duration::from_secs(60), 0.5).unwrap();
    // One that is here is not looked for.
    seen.camera(&cam1).await.expect("it is here");
    for error in [
        seen.camera(&cam7).await.map(drop).unwrap_err(),
        seen.subscribe(subscribe("cam7")).await.map(drop).unwrap_err(),
        seen.fetch_original(&cam7, Instant::EPOCH).await.map(drop).unwrap_err(),
    ] {
        assert_eq!((error.code(), error.place()), (Code::CAMERA_ELSEWHERE, Some(&place)));
    }
    assert_eq!(seen.camera(&cam9).await.map(drop).unwrap_err().code(), Code::CAMERA_UNKNOWN);
    // Once it is away here, it is where it went; and its name can be freed here all the same.
    rig.camera.detach(rig.link.id, "it has moved");
    let error = seen.subscribe(subscribe("cam1")).await.map(drop).unwrap_err();
    assert_eq!(error.code(), Code::CAMERA_ELSEWHERE);
}

#[tokio::test]
async fn cameras_that_are_reached_are_told_as_they_come_and_go() {
    let rig = rig_with_roles("[anonymous]");
    let mut reached = Reached::new(&rig.node);
    assert_eq!(reached.next().await, ["cam1".parse::<CameraName>().unwrap()]);
    rig.camera.detach(rig.link.id, "gone");
    assert_eq!(reached.next().await, [] as [CameraName; 0]);
}

#[tokio::test]
async fn without_roles_a_camera_that_is_away_is_for_this_machine_to_unregister() {
    let cam1: CameraName = "cam1".parse().unwrap();
    let mut rig = rig_with_roles("[anonymous]");
    exchange(&rig, None);
    rig.camera.detach(rig.link.id, "gone");
    let error = rig.node.unregister(&rig.application, &cam1).await.unwrap_err();
    assert_eq!(error.code(), Code::ACTION_DENIED);
    assert!(error.message().contains("are for this machine"), "{error}");
    let peer = PeerIdentity {
        kind: Kind::Application,
        name: "application".to_owned(),
        node: NodeId([2; 32]),
        serial: "02".parse().unwrap(),
    };
    rig.application = Identity::of_peer(&peer, Some([127, 0, 0, 1].into()));
    rig.node.unregister(&rig.application, &cam1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_taken_away_ends_its_streams() {
    let rig = rig_with_roles(&of_application("frames = true"));
    let mut subscription = rig.subscribe(Delivery::Latest, None).await;
    exchange(&rig, Some(&of_application("frames = [\"other\"]")));
    let told = async {
        loop {
            match subscription.next_event().await {
                Some(Err(error)) => return error,
                Some(Ok(_)) => {}
                None => panic!("it ended without a word"),
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(20), told).await.expect("it ends");
    assert_eq!(error.code(), Code::ACTION_DENIED);
    assert!(rig.camera.streams().is_empty(), "it has no reader any more");
}

#[tokio::test]
async fn a_subscription_is_that_of_its_name_and_kind() {
    let rig = Rig::new();
    let subscription = rig.subscribe(Delivery::Latest, None).await;
    let namesake = tidegate_message::Identity::new(IdentityKind::User, "application", "");
    let namesake = Identity::of_user(Admitted::by_certificate(namesake));
    let error = rig.node.unsubscribe(&namesake, subscription.started().id).await.unwrap_err();
    assert_eq!(error.code(), Code::SUBSCRIPTION_UNKNOWN);
    rig.node.unsubscribe(&rig.application, subscription.started().id).await.unwrap();
}

#[tokio::test]
async fn a_camera_that_somebody_registered_is_for_him_and_administrators_to_unregister() {
    let publisher = "[role.p]\npublish = [\"camera:cam9\"]\n[certificate.owner]\nroles = [\"p\"]\n\
                     [certificate.other]\nroles = [\"p\"]\n";
    let rig = rig_with_roles(&(of_application("admin = [\"camera:cam9\"]") + publisher));
    let identity = |name: &str, key: u8| {
        let peer = PeerIdentity {
            kind: Kind::Application,
            name: name.to_owned(),
            node: NodeId([key; 32]),
            serial: "09".parse().unwrap(),
        };
        Identity::of_peer(&peer, None)
    };
    let (owner, other) = (identity("owner", 8), identity("other", 9));
    let cam9: CameraName = "cam9".parse().unwrap();
    let registration =
        || Registration { camera: cam9.clone(), size: None, frames_per_second: None };
    for taker in [&owner, &rig.application] {
        rig.node.register(&owner, registration()).await.unwrap();
        let error = rig.node.unregister(&other, &cam9).await.unwrap_err();
        assert_eq!(error.code(), Code::ACTION_DENIED, "the right to publish it is not enough");
        rig.node.unregister(taker, &cam9).await.unwrap();
        assert!(rig.node.cameras.named(&cam9, |_| true).is_err(), "its name is free");
    }
    rig.node.register(&other, registration()).await.unwrap();
}

//! Refusals, and that they disturb nothing else.

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt;
use tidegate_camera::camera::CameraError;
use tidegate_client::{
    Changes, Client, Code, ControllerKind, Event, Instant, SubscribeRequest, Subscription,
};
use tidegate_identity::pki::{self, InitRequest, revocation::Reason};
use tidegate_link::link::Transport;
use tokio::time::timeout;

use crate::{
    poll_async::poll,
    world::{World, until},
};

const SCENE: &str = "scene:street?size=320x240&fps=10&people=3&seed=1";

/// Longer than a camera waits before it dials again.
const SILENCE: Duration = Duration::from_secs(1);

fn request(camera: &str) -> SubscribeRequest {
    SubscribeRequest::new(camera, Duration::from_secs(2), 0.5).expect("a request")
}

/// Whether a camera that is offline comes online again within the silence.
async fn returns(client: &Client, name: &str) -> bool {
    let name = name.parse().expect("a camera name");
    let online = async || client.camera(&name).await.expect("its info").online.then_some(());
    poll(SILENCE, online).await.is_some()
}

async fn delivers(subscription: &mut Subscription) {
    let next = async {
        while let Some(event) = subscription.next().await {
            if let Event::Frame(_) = event.expect("the subscription holds") {
                return;
            }
        }
        panic!("the subscription ended");
    };
    timeout(Duration::from_secs(30), next).await.expect("a frame comes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_ask_for_nonsense_name_it() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let mut good = client.subscribe(request("cam1")).await.expect("a subscription");

    let unknown = client.subscribe(request("nobody")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::CAMERA_UNKNOWN);
    assert!(unknown.message().contains("registered are cam1"), "{unknown}");

    let mut reversed = request("cam1");
    (reversed.from, reversed.to) = (Some(Instant::from_millis(2)), Some(Instant::from_millis(1)));
    assert_eq!(client.subscribe(reversed).await.unwrap_err().code(), Code::RANGE_INVALID);

    let zero = Changes { latency: Some(Duration::ZERO), ..Changes::default() };
    assert_eq!(good.update(zero).await.unwrap_err().code(), Code::BOUND_INVALID);
    let above = Changes { accuracy: Some(1.5), ..Changes::default() };
    assert_eq!(good.update(above).await.unwrap_err().code(), Code::BOUND_INVALID);
    delivers(&mut good).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_accuracy_is_told_at_once() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", "scene:street?size=640x480&fps=10&people=3&seed=1");
    world.wait_for_camera(&client, "cam1").await;
    // One millisecond cannot be kept by any setting.
    let request = SubscribeRequest::new("cam1", Duration::from_millis(1), 1.0).unwrap();
    let mut subscription = client.subscribe(request).await.expect("a subscription");
    let told = async {
        while let Some(event) = subscription.next().await {
            if let Event::Infeasible(infeasible) = event.expect("the subscription holds") {
                return infeasible;
            }
        }
        panic!("the subscription ended");
    };
    let infeasible = timeout(Duration::from_secs(20), told).await.expect("word of it");
    assert!(infeasible.sentence.contains("cannot be kept"), "{}", infeasible.sentence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cameras_with_wrong_certificates_disturb_nobody() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let mut good = client.subscribe(request("cam1")).await.expect("a subscription");

    // A stranger: its certificate comes from another authority.
    let elsewhere = tempfile::tempdir().unwrap();
    let names = InitRequest { cameras: vec!["cam1".into(), "cam2".into()], ..Default::default() };
    pki::init(elsewhere.path(), &names).unwrap();
    let stranger = world.camera_with("cam2", SCENE, Transport::Quic, elsewhere.path());
    let comes = poll(SILENCE, async || {
        let cameras = client.cameras().await.expect("the list");
        (cameras.len() != 1).then_some(cameras)
    });
    assert!(comes.await.is_none(), "the first camera, and it alone, is listed");
    assert!(!stranger.task.is_finished(), "it keeps trying");
    stranger.kill();
    delivers(&mut good).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_cannot_take_a_camera_name() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    // The same authority gives out the name a second time, with another key.
    let copy = tempfile::tempdir().unwrap();
    for file in ["ca.pem", "ca.key"] {
        std::fs::copy(world.path().join(file), copy.path().join(file)).unwrap();
    }
    pki::add(copy.path(), pki::Kind::Camera, "cam1", &[], Duration::from_secs(3600)).unwrap();
    let second = world.camera_with("cam1", SCENE, Transport::Quic, copy.path());
    let ended = timeout(Duration::from_secs(20), second.task).await.expect("it gives up");
    match ended.expect("no panic") {
        Err(CameraError::Refused { code, text }) => {
            assert_eq!(code, Some(Code::CAMERA_TAKEN), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let mut good = client.subscribe(request("cam1")).await.expect("a subscription");
    delivers(&mut good).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cameras_certificate_opens_nothing_but_its_own_door() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let stolen = world.client_as("cam2").await;
    let name: tidegate_client::CameraName = "cam1".parse().unwrap();
    let registration =
        tidegate_client::Registration { camera: name.clone(), size: None, frames_per_second: None };
    assert_eq!(stolen.cameras().await.unwrap_err().code(), Code::ACTION_DENIED);
    assert_eq!(stolen.subscribe(request("cam1")).await.unwrap_err().code(), Code::ACTION_DENIED);
    let fetched = stolen.fetch_original(&name, Instant::EPOCH).await;
    assert_eq!(fetched.unwrap_err().code(), Code::ACTION_DENIED);
    assert_eq!(stolen.register(registration).await.unwrap_err().code(), Code::ACTION_DENIED);
    assert_eq!(stolen.unregister(&name).await.unwrap_err().code(), Code::ACTION_DENIED);
    let own = "cam2".parse().unwrap();
    let registration =
        tidegate_client::Registration { camera: own, size: None, frames_per_second: None };
    stolen.register(registration).await.expect("its own name is its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_above_the_cameras_limit_is_refused_with_its_sentence() {
    const TRANSFERS_MAX: u64 = 64;
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", "scene:street?size=320x180&fps=2&people=0&seed=1");
    world.wait_for_camera(&client, "cam1").await;
    let mut served = Vec::new();
    let mut refused = None;
    for stricter in 0..=TRANSFERS_MAX {
        // Each stricter than all before, so that none of their transfers serves it.
        let latency = Duration::from_secs(10) - Duration::from_millis(100 * stricter);
        let mut request = SubscribeRequest::new("cam1", latency, 0.5).unwrap();
        request.demand.controller = ControllerKind::Fixed; // nothing to encode
        let subscription = client.subscribe(request).await.expect("a subscription");
        served.extend(refused.replace(subscription));
    }
    let mut refused = refused.expect("the last one");
    let ended = async {
        loop {
            match refused.next().await.expect("a reason") {
                Ok(Event::Ended(reason)) => panic!("ended: {reason}"),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    let error = timeout(Duration::from_secs(20), ended).await.expect("word of it");
    assert_eq!(error.code(), Code::LIMIT_REACHED, "{error}");
    assert!(error.message().contains("limit of 64 transfers"), "{error}");
    delivers(&mut served[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_camera_node_takes_its_name_from_an_application_that_registered_it() {
    let world = World::new().await;
    let squatter = world.client_as("other").await;
    let name: tidegate_client::CameraName = "cam1".parse().unwrap();
    let registration =
        tidegate_client::Registration { camera: name.clone(), size: None, frames_per_second: None };
    squatter.register(registration.clone()).await.expect("an unused name");
    let client = world.client().await;
    let mut subscription = client.subscribe(request("cam1")).await.expect("a subscription");

    let camera = world.camera("cam1", SCENE);
    delivers(&mut subscription).await;
    assert_eq!(client.camera(&name).await.unwrap().transport, "quic");
    let mut publisher = squatter.publish(name.clone()).await.expect("a call");
    let refused = publisher.publish(None, bytes::Bytes::from_static(b"\xff\xd8")).await;
    assert_eq!(refused.unwrap_err().code(), Code::CAMERA_UNKNOWN);
    let again = squatter.register(registration.clone()).await;
    assert_eq!(again.unwrap_err().code(), Code::CAMERA_TAKEN);
    // Nor while it is away.
    camera.stop().await;
    until(&client, "cam1", |camera| !camera.online).await;
    let again = squatter.register(registration).await;
    assert_eq!(again.unwrap_err().code(), Code::CAMERA_TAKEN);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_client_loses_link_and_streams_and_no_other_does() {
    let world = World::new().await;
    let client = world.client().await;
    let (_camera, _stolen) = (world.camera("cam1", SCENE), world.camera("cam2", SCENE));
    for name in ["cam1", "cam2"] {
        world.wait_for_camera(&client, name).await;
    }
    let other = world.client_as("other").await;
    let mut good = client.subscribe(request("cam1")).await.expect("a subscription");
    let mut shut = other.subscribe(request("cam1")).await.expect("a subscription");
    delivers(&mut shut).await;

    let both = ["cam2".to_owned(), "other".to_owned()];
    pki::revoke(world.path(), &both, Reason::KeyCompromise).expect("the authority is here");
    assert!(world.revocations.refresh().expect("a list"));
    let ended = async {
        loop {
            match shut.next().await.expect("a reason") {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    let error = timeout(Duration::from_secs(20), ended).await.expect("word of it");
    assert_eq!(error.code(), Code::IDENTITY_REVOKED, "{error}");
    assert!(error.message().contains("key-compromise"), "{error}");
    // Neither over the connection that there is, nor over a new one.
    assert_eq!(other.cameras().await.unwrap_err().code(), Code::IDENTITY_REVOKED);
    let again = world.try_client_as("other").await.map(|_| ()).unwrap_err();
    // Data that the client had sent by then may cost it the alert: the connection is reset before it is read.
    let codes = [Code::IDENTITY_REVOKED, Code::LINK_DOWN];
    assert!(codes.contains(&again.code()), "{again}");
    until(&client, "cam2", |camera| !camera.online).await;
    assert!(!returns(&client, "cam2").await, "it does not come again");
    delivers(&mut good).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_camera_leaves_an_edge_node_that_was_revoked() {
    let world = World::new().await;
    let client = world.client().await;
    let dial = world.dial("cam1", Transport::Quic, world.path());
    let revocations = dial.credentials.revocations().clone();
    let camera = world.camera_dialling("cam1", SCENE, dial);
    world.wait_for_camera(&client, "cam1").await;
    pki::revoke(world.path(), &["edge".to_owned()], Reason::Superseded).unwrap();
    assert!(revocations.refresh().expect("a list"));
    until(&client, "cam1", |camera| !camera.online).await;
    assert!(!returns(&client, "cam1").await, "and stays away");
    assert!(!camera.task.is_finished(), "it keeps trying: the list may name another node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_camera_nodes_with_one_certificate_take_turns_and_each_turn_is_told() {
    let world = World::new().await;
    let client = world.client().await;
    let (_one, _other) = (world.camera("cam1", SCENE), world.camera("cam1", SCENE));
    world.wait_for_camera(&client, "cam1").await;
    let mut subscription = client.subscribe(request("cam1")).await.expect("a subscription");
    let told = async {
        let (mut epochs, mut turns) = (BTreeSet::new(), 0);
        while epochs.len() < 2 || turns == 0 {
            match subscription.next().await.expect("it continues").expect("it holds") {
                Event::Frame(frame) => _ = epochs.insert(frame.epoch),
                Event::CameraOnline | Event::CameraOffline(_) => turns += 1,
                Event::Ended(reason) => panic!("ended: {reason:?}"),
                _ => {}
            }
        }
    };
    timeout(Duration::from_secs(60), told).await.expect("frames of both, and word of the turns");
}

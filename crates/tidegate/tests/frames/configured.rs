//! Cameras of a node's own configuration.

use std::{fs, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use tidegate_camera::camera::CameraError;
use tidegate_client::{Code, Event, Instant, Registration, SubscribeRequest, Subscription};
use tokio::time::timeout;

use crate::{
    deliver::world_jpeg,
    poll_async::poll,
    world::{World, until},
};

const HALL: &str = "scene:street?size=320x240&fps=10&people=1&seed=1";
const YARD: &str = "scene:street?size=320x240&fps=10&people=2&seed=2";
const GATE: &str = "scene:street?size=640x360&fps=10&people=2&seed=3";

fn request(camera: &str) -> SubscribeRequest {
    SubscribeRequest::new(camera, Duration::from_secs(5), 0.5).expect("a request")
}

/// The events of a subscription up to the first that `last` holds of, that one included.
async fn up_to(subscription: &mut Subscription, last: impl Fn(&Event) -> bool) -> Vec<Event> {
    let mut events = Vec::new();
    let all = async {
        loop {
            let event = subscription.next().await.expect("it goes on").expect("it holds");
            let is_last = last(&event);
            events.push(event);
            if is_last {
                return;
            }
        }
    };
    timeout(Duration::from_secs(60), all).await.expect("it comes");
    events
}

fn is_frame(event: &Event) -> bool {
    matches!(event, Event::Frame(_))
}

fn is_online(event: &Event) -> bool {
    *event == Event::CameraOnline
}

async fn newest(client: &tidegate_client::Client, camera: &str) -> Option<Instant> {
    client.camera(&camera.parse().expect("a name")).await.expect("it is known").newest_at
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cameras_of_the_configuration_come_change_and_go_and_disturb_no_other() {
    let world = World::new().await;
    let client = world.client().await;
    world.configure(&[("hall", HALL), ("yard", YARD)]);
    world.wait_for_camera(&client, "hall").await;
    world.wait_for_camera(&client, "yard").await;
    let mut hall = client.subscribe(request("hall")).await.expect("a subscription");
    let mut yard = client.subscribe(request("yard")).await.expect("a subscription");
    up_to(&mut hall, is_frame).await;
    up_to(&mut yard, is_frame).await;
    let info = client.camera(&"hall".parse().unwrap()).await.expect("it is known");
    let original = client.fetch_original(&"hall".parse().unwrap(), info.newest_at.unwrap()).await;
    original.expect("it is in the log");

    // One is changed, one is new, and the third is not touched.
    world.configure(&[("hall", HALL), ("yard", GATE), ("gate", GATE)]);
    let events = up_to(&mut yard, is_online).await;
    assert!(events.iter().any(|event| matches!(event, Event::CameraOffline(_))), "{events:?}");
    up_to(&mut yard, is_frame).await;
    until(&client, "yard", |info| info.size.is_some_and(|size| size.width == 640)).await;
    world.wait_for_camera(&client, "gate").await;
    let events = up_to(&mut hall, is_frame).await;
    assert!(!events.iter().any(|event| matches!(event, Event::CameraOffline(_))), "{events:?}");

    // One is gone: its subscription ends, and its name is free.
    world.configure(&[("hall", HALL), ("gate", GATE)]);
    let ended = async { while yard.next().await.is_some_and(|event| event.is_ok()) {} };
    timeout(Duration::from_secs(60), ended).await.expect("the subscription ends");
    let gone = async || {
        let error = client.camera(&"yard".parse().unwrap()).await.err()?;
        (error.code() == Code::CAMERA_UNKNOWN).then_some(())
    };
    assert!(poll(Duration::from_secs(60), gone).await.is_some(), "it is listed");
    let registration =
        Registration { camera: "yard".parse().unwrap(), size: None, frames_per_second: None };
    client.register(registration).await.expect("the name is free");
    let before = newest(&client, "hall").await;
    let later = async || newest(&client, "hall").await.filter(|at| Some(*at) > before);
    assert!(poll(Duration::from_secs(60), later).await.is_some(), "hall stands still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_substream_is_listed_with_its_camera_and_its_name_is_kept() {
    let world = World::new().await;
    let client = world.client().await;
    world.configure(&[("hall", GATE), ("hall-sub", HALL)]);
    world.wait_for_camera(&client, "hall").await;
    world.wait_for_camera(&client, "hall-sub").await;
    let mut both = [
        client.subscribe(request("hall")).await.expect("a subscription"),
        client.subscribe(request("hall-sub")).await.expect("a subscription"),
    ];
    for subscription in &mut both {
        up_to(subscription, is_frame).await;
    }
    let mains: Vec<_> = client
        .cameras()
        .await
        .expect("they are listed")
        .into_iter()
        .map(|camera| (camera.name.to_string(), camera.substream_of.map(|main| main.to_string())))
        .collect();
    let expected = [("hall", None), ("hall-sub", Some("hall"))];
    assert_eq!(mains, expected.map(|(name, main)| (name.to_owned(), main.map(str::to_owned))));
    let name: tidegate_client::CameraName = "hall-sub".parse().unwrap();
    let registration = Registration { camera: name, size: None, frames_per_second: None };
    let error = client.register(registration.clone()).await.expect_err("it is configured");
    assert_eq!(error.code(), Code::CAMERA_TAKEN, "{error}");
    assert!(error.message().contains("take substream out of [camera.hall]"), "{error}");
    // It goes, and its camera is not touched.
    world.configure(&[("hall", GATE)]);
    let freed = async || client.register(registration.clone()).await.ok();
    assert!(poll(Duration::from_secs(60), freed).await.is_some(), "the name is free");
    let [mut hall, _] = both;
    let events = up_to(&mut hall, is_frame).await;
    assert!(!events.iter().any(|event| matches!(event, Event::CameraOffline(_))), "{events:?}");
    let info = client.camera(&registration.camera).await.expect("it is known");
    assert_eq!(info.substream_of, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_configured_camera_is_nobody_elses() {
    let world = World::new().await;
    let client = world.client().await;
    // A camera that is published gives way to the configuration.
    let cam2 =
        Registration { camera: "cam2".parse().unwrap(), size: None, frames_per_second: None };
    client.register(cam2.clone()).await.expect("the name is free");
    world.configure(&[("cam1", HALL), ("cam2", YARD)]);
    world.wait_for_camera(&client, "cam1").await;
    world.wait_for_camera(&client, "cam2").await;
    for camera in ["cam1", "cam2"] {
        let camera: tidegate_client::CameraName = camera.parse().unwrap();
        let registration = Registration { camera: camera.clone(), ..cam2.clone() };
        let error = client.register(registration).await.expect_err("it is configured");
        assert_eq!(error.code(), Code::CAMERA_TAKEN, "{error}");
        assert!(error.message().contains(&format!("[camera.{camera}]")), "{error}");
        let mut publisher = client.publish(camera.clone()).await.expect("a call");
        let jpeg = Bytes::from(world_jpeg());
        publisher.publish(None, jpeg).await.expect_err("nothing was registered");
        client.unregister(&camera).await.expect_err("it stays");
    }
    // Not even of a camera node with a certificate of that name.
    let node = world.camera("cam1", GATE);
    let ended = timeout(Duration::from_secs(60), node.task).await.expect("it is turned away");
    match ended.expect("no panic") {
        Err(CameraError::Refused { code: Some(code), .. }) => assert_eq!(code, Code::CAMERA_TAKEN),
        other => panic!("{other:?}"),
    }
    // One that was there before keeps its name until it is gone.
    let node = world.camera("cam3", GATE);
    world.wait_for_camera(&client, "cam3").await;
    world.configure(&[("cam1", HALL), ("cam2", YARD), ("cam3", HALL)]);
    until(&client, "cam1", |info| info.online).await;
    until(&client, "cam3", |info| info.online && info.transport == "quic").await;
    // Taken out again while its node is there, it is the node's as before.
    let mut cam3 = client.subscribe(request("cam3")).await.expect("a subscription");
    up_to(&mut cam3, is_frame).await;
    world.configure(&[("cam1", HALL), ("cam2", YARD), ("gate", GATE)]);
    until(&client, "gate", |info| info.online).await;
    let info = client.camera(&"cam3".parse().unwrap()).await.expect("it is known");
    assert!(info.online && info.transport == "quic", "{info:?}");
    let events = up_to(&mut cam3, is_frame).await;
    // A busy machine may miss a frame or change knobs; the camera is never away.
    let is_away = |event: &Event| {
        matches!(event, Event::CameraOffline(_) | Event::NoFrames(_) | Event::Ended(_))
    };
    assert!(!events.iter().any(is_away), "its subscription ended or was interrupted");
    world.configure(&[("cam1", HALL), ("cam2", YARD), ("cam3", HALL)]);
    node.stop().await;
    until(&client, "cam3", |info| info.online && info.transport != "quic").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configured_camera_says_why_it_gives_nothing_and_begins_once_its_source_is_there() {
    let world = World::new().await;
    let client = world.client().await;
    let folder = world.path().join("pictures");
    let source = format!("folder:{}?fps=10", folder.display());
    world.configure(&[("hall", &source), ("yard", YARD)]);
    let is_said = |why: Option<&str>| why.is_some_and(|why| why.contains("cannot read"));
    until(&client, "hall", |info| info.online && is_said(info.no_frames.as_deref())).await;
    world.wait_for_camera(&client, "yard").await;
    let mut subscription = client.subscribe(request("hall")).await.expect("a subscription");
    up_to(&mut subscription, |event| matches!(event, Event::NoFrames(_))).await;
    let made = world.path().join("made");
    fs::create_dir(&made).expect("a folder");
    fs::write(made.join("1.jpg"), world_jpeg()).expect("a file");
    fs::rename(made, folder).expect("it is renamed");
    up_to(&mut subscription, is_frame).await;
    // A recording that has ended says so, and what it gave can be fetched.
    let ended = |why: Option<&str>| why == Some("its source has ended after 1 frames");
    until(&client, "hall", |info| info.online && ended(info.no_frames.as_deref())).await;
    let at = newest(&client, "hall").await.expect("a frame");
    client.fetch_original(&"hall".parse().unwrap(), at).await.expect("it is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_picture_is_told_until_another_comes() {
    let world = World::new().await;
    let client = world.client().await;
    let folder = world.path().join("pictures");
    fs::create_dir(&folder).expect("a folder");
    let show = |jpeg: &[u8]| {
        fs::write(world.path().join("new"), jpeg).expect("a file");
        fs::rename(world.path().join("new"), folder.join("1.jpg")).expect("it is renamed");
    };
    show(&world_jpeg());
    let source = format!("folder:{}?fps=20&loop=1", folder.display());
    world.configure(&[("hall", &source)]);
    world.cameras.send_modify(|cameras| {
        cameras[0].settings.frozen_after = Some(Duration::from_secs(1));
    });
    world.wait_for_camera(&client, "hall").await;
    let mut subscription = client.subscribe(request("hall")).await.expect("a subscription");
    let events = up_to(&mut subscription, |event| matches!(event, Event::NoFrames(_))).await;
    let Some(Event::NoFrames(why)) = events.last() else { panic!("it is the last") };
    assert!(why.contains("its picture has been the same for"), "{why}");
    // A subscription that begins now is told, too.
    let mut second = client.subscribe(request("hall")).await.expect("a subscription");
    up_to(&mut second, |event| matches!(event, Event::NoFrames(_))).await;
    // Another comment is no other picture; other pixels are.
    let jpeg = world_jpeg();
    show(&[&jpeg[..2], b"\xff\xfe\0\x05now", &jpeg[2..]].concat());
    let is_said = |why: Option<&str>| why.is_some_and(|why| why.contains("the same"));
    until(&client, "hall", |info| is_said(info.no_frames.as_deref())).await;
    let other = tidegate_frame::knob::Transcoder::new(Default::default());
    show(&smaller(other, &jpeg));
    up_to(&mut subscription, is_online).await;
    up_to(&mut subscription, is_frame).await;
}

/// The same picture with other pixels.
fn smaller(mut transcoder: tidegate_frame::knob::Transcoder, jpeg: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let setting = "q50".parse().expect("a setting");
    transcoder.apply(jpeg, &setting, &mut out).expect("it is a picture");
    out
}

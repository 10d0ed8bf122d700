//! Reports on a camera, and on bounds, that give less than was asked for.

use std::{fs, os::unix::fs::symlink, process::Stdio, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use tidegate_camera::camera::{CameraSettings, Privacy};
use tidegate_client::{
    Client, Event, FrameRate, MissedWhy, Registration, SubscribeRequest, Subscription,
};
use tidegate_frame::{
    knob::FrameLimits,
    privacy::{Cover, Mask},
};
use tokio::{process::Command, time::timeout};

use crate::{
    deliver::world_jpeg,
    world::{World, until},
};

const SCENE: &str = "scene:street?size=320x240&fps=10&people=3&seed=1";

fn request(camera: &str) -> SubscribeRequest {
    SubscribeRequest::new(camera, Duration::from_secs(2), 0.5).expect("a request")
}

/// The first event that `wanted` makes something of.
async fn first<T>(subscription: &mut Subscription, wanted: impl Fn(Event) -> Option<T>) -> T {
    let next = async {
        while let Some(event) = subscription.next().await {
            if let Some(found) = wanted(event.expect("the subscription holds")) {
                return found;
            }
        }
        panic!("the subscription ended");
    };
    timeout(Duration::from_secs(60), next).await.expect("it comes")
}

fn no_frames(event: Event) -> Option<String> {
    match event {
        Event::NoFrames(why) => Some(why.to_string()),
        _ => None,
    }
}

fn frame(event: Event) -> Option<Bytes> {
    match event {
        Event::Frame(frame) => Some(frame.jpeg),
        _ => None,
    }
}

/// Waits until the listed reason why a camera gives no frames fulfils `is_so`.
async fn listed(client: &Client, camera: &str, is_so: impl Fn(Option<&str>) -> bool) {
    until(client, camera, |info| info.online && is_so(info.no_frames.as_deref())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_camera_whose_frames_are_all_refused_is_said_to_give_none_and_why() {
    let world = World::new().await;
    let client = world.client().await;
    let limits = FrameLimits { bytes_max: 1_000, ..FrameLimits::default() };
    let limited = |options: CameraSettings| CameraSettings { limits, ..options };
    let _camera = world.camera_changed("cam1", SCENE, limited);
    let is_refused = |why: Option<&str>| {
        why.is_some_and(|why| why.starts_with("its frames are refused: the frame has"))
    };
    listed(&client, "cam1", is_refused).await;
    let mut subscription = client.subscribe(request("cam1")).await.expect("a subscription");
    let why = first(&mut subscription, no_frames).await;
    assert!(is_refused(Some(&why)), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_camera_gives_frames_again_once_one_is_taken() {
    let world = World::new().await;
    let client = world.client().await;
    let jpeg = Bytes::from(world_jpeg());
    let name: tidegate_client::CameraName = "door".parse().expect("a camera name");
    let registration = Registration { camera: name.clone(), size: None, frames_per_second: None };
    client.register(registration).await.expect("it is registered");
    let mut publisher = client.publish(name).await.expect("a publisher");
    let mut subscription = client.subscribe(request("door")).await.expect("a subscription");
    publisher.publish(None, Bytes::from_static(b"GIF89a")).await.expect_err("it is not a picture");
    let why = first(&mut subscription, no_frames).await;
    assert!(why.starts_with("its frames are refused: the frame is not a JPEG image"), "{why}");
    listed(&client, "door", |why| why.is_some()).await;
    publisher.publish(None, jpeg.clone()).await.expect("it is taken");
    first(&mut subscription, |event| (event == Event::CameraOnline).then_some(())).await;
    // The first may have come before that event.
    publisher.publish(None, jpeg).await.expect("it is taken");
    first(&mut subscription, frame).await;
    listed(&client, "door", |why| why.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_frame_is_missed_as_damaged_and_not_for_its_bounds() {
    let world = World::new().await;
    let client = world.client().await;
    let camera = world.camera("cam2", SCENE);
    world.wait_for_camera(&client, "cam2").await;
    let mut scene = client.subscribe(request("cam2")).await.expect("a subscription");
    let good = first(&mut scene, frame).await;
    camera.stop().await;
    // A hole in the picture data, which is behind the headers and before the end.
    let mut damaged = good.to_vec();
    let middle = damaged.len() / 2;
    damaged.drain(middle..middle + damaged.len() / 4);
    let pictures = world.path().join("pictures");
    fs::create_dir(&pictures).expect("a folder");
    fs::write(pictures.join("1.jpg"), &good).expect("a file");
    fs::write(pictures.join("2.jpg"), &damaged).expect("a file");
    let region = "0.26,0.31,0.64,0.77".parse().expect("a region");
    let masks = [Mask { region, cover: Cover::Fill }].into();
    let privacy = Privacy { masks, ..Privacy::default() };
    let source = format!("folder:{}?fps=10", pictures.display());
    let _camera = world.private_camera("cam1", &source, privacy);
    world.wait_for_camera(&client, "cam1").await;
    let mut subscription = client.subscribe(request("cam1")).await.expect("a subscription");
    let why = first(&mut subscription, |event| match event {
        Event::Missed(missed) if missed.why != MissedWhy::Overtaken => Some(missed.why),
        _ => None,
    });
    assert_eq!(why.await, MissedWhy::Damaged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_frames_come_as_are_asked_for() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let mut request = request("cam1");
    request.demand.frame_rate = FrameRate::new(2.0).ok();
    let mut subscription = client.subscribe(request).await.expect("a subscription");
    let mut at = Vec::new();
    while at.len() < 7 {
        at.push(
            first(&mut subscription, |event| match event {
                Event::Frame(frame) => Some(frame.captured_at),
                Event::Unchanged(marker) => Some(marker.captured_at),
                // Frames that are not wanted are not missed.
                Event::Missed(missed) => panic!("{missed:?}"),
                _ => None,
            })
            .await,
        );
    }
    let took = at[6].since(at[0]).as_secs_f64();
    assert!((2.8..=4.5).contains(&took), "6 intervals of 0.5 s took {took} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_exits_with_6_if_bounds_cannot_be_kept_in_the_end() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let data = world.path().join("data");
    fs::create_dir(&data).expect("a folder");
    symlink(world.path(), data.join("pki")).expect("a link");
    for (latency, status) in [("1ms", 6), ("5s", 0)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .arg("--set")
            .arg(format!("node.data_dir={}", data.display()))
            .args(["subscribe", "cam1", "--latency", latency, "--accuracy", "0.5"])
            .args(["--node", &format!("https://{}", world.api), "--for", "5s"])
            .stdin(Stdio::null());
        let output = command.output();
        let output = timeout(Duration::from_secs(60), output).await.expect("it ends");
        let output = output.expect("the program runs");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(status), "{latency}: {said}");
        assert_eq!(said.contains("within 1 ms cannot be kept"), status == 6, "{latency}: {said}");
    }
}

//! Recovery when a part dies and comes back.

use std::time::Duration;

use futures::StreamExt;
use tidegate_camera::characterize::Probe;
use tidegate_client::{Delivery, Event, Frame, Instant, SubscribeRequest, Subscription};
use tidegate_link::link::Transport;
use tokio::time::{sleep, timeout};

use crate::world::{World, captured, until};

const SCENE: &str = "scene:street?size=320x240&fps=10&people=3&seed=1";

fn request(camera: &str, delivery: Delivery) -> SubscribeRequest {
    let mut request = SubscribeRequest::new(camera, Duration::from_secs(2), 0.5).expect("bounds");
    request.demand.delivery = delivery;
    request
}

/// The next event that `pick` takes.
async fn next<T>(subscription: &mut Subscription, mut pick: impl FnMut(Event) -> Option<T>) -> T {
    let next = async {
        while let Some(event) = subscription.next().await {
            if let Some(picked) = pick(event.expect("the subscription holds")) {
                return picked;
            }
        }
        panic!("the subscription ended");
    };
    timeout(Duration::from_secs(40), next).await.expect("the event comes")
}

async fn frame(subscription: &mut Subscription) -> Frame {
    next(subscription, |event| match event {
        Event::Frame(frame) => Some(frame),
        _ => None,
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_camera_that_dies_and_returns_is_told_and_goes_on() {
    let world = World::new().await;
    let client = world.client().await;
    let camera = world.camera("cam1", SCENE);
    let _other = world.camera("cam2", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    world.wait_for_camera(&client, "cam2").await;
    let mut dying = client.subscribe(request("cam1", Delivery::Latest)).await.unwrap();
    let mut unharmed = client.subscribe(request("cam2", Delivery::Latest)).await.unwrap();
    let before = frame(&mut dying).await.captured_at;
    frame(&mut unharmed).await;

    camera.kill();
    next(&mut dying, |event| matches!(event, Event::CameraOffline(_)).then_some(())).await;
    frame(&mut unharmed).await;
    let _camera = world.camera("cam1", SCENE);
    next(&mut dying, |event| matches!(event, Event::CameraOnline).then_some(())).await;
    assert!(frame(&mut dying).await.captured_at > before);
    frame(&mut unharmed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_frame_of_a_broken_link_is_delivered_afterwards() {
    let mut world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let mut subscription = client.subscribe(request("cam1", Delivery::Every)).await.unwrap();
    let mut seen = vec![frame(&mut subscription).await.captured_at];
    // The edge node restarts; the camera captures on, and the client subscribes again by itself.
    world.stop_node().await;
    sleep(Duration::from_secs(2)).await;
    world.start_node().await;
    let restarted = tidegate_process::clock::now();
    let (mut filled, mut live) = (0, 0);
    while live < 5 {
        let at = frame(&mut subscription).await.captured_at;
        seen.push(at);
        if at < restarted {
            filled += 1;
        } else {
            live += 1;
        }
    }
    assert!(filled >= 5, "{filled} frames of the two seconds without a node");
    assert_eq!(seen, captured(&client, "cam1", &seen).await, "in order, none twice, none missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_leaves_without_a_word_is_forgotten() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let mut kept = client.subscribe(request("cam1", Delivery::Latest)).await.unwrap();
    let gone = world.client_as("other").await;
    let mut dropped = gone.subscribe(request("cam1", Delivery::Latest)).await.unwrap();
    frame(&mut dropped).await;
    drop((dropped, gone));
    until(&client, "cam1", |camera| camera.subscriptions == 1).await;
    frame(&mut kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_does_not_read_delays_nobody() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let other = world.client_as("other").await;
    let stuck = other.subscribe(request("cam1", Delivery::Latest)).await.unwrap();
    let mut reading = client.subscribe(request("cam1", Delivery::Latest)).await.unwrap();
    let mut latest = Instant::EPOCH;
    for _ in 0..30 {
        let frame = frame(&mut reading).await;
        assert!(frame.captured_at > latest);
        latest = frame.captured_at;
        assert!(frame.stages.total() <= Duration::from_secs(2));
    }
    drop(stuck);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_of_the_link_disturbs_no_camera() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let mut subscription =
        client.subscribe(request("cam1", Delivery::Every)).await.expect("a subscription");
    let first = frame(&mut subscription).await;
    for transport in [Transport::Quic, Transport::Tcp] {
        let dial = world.dial("cam1", transport, world.path());
        let probe = Probe::connect(&dial).await.expect("a probe next to the camera");
        for bytes in [10_000, 1_000_000] {
            probe.measure(bytes).await.expect("a frame of no transfer is acknowledged");
        }
    }
    for _ in 0..20 {
        let frame = next(&mut subscription, |event| match event {
            Event::Frame(frame) => Some(frame),
            Event::CameraOffline(why) => panic!("the camera lost its link: {why}"),
            _ => None,
        });
        assert_eq!(frame.await.epoch, first.epoch);
    }
}

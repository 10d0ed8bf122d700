//! Frames that reach the application.

use std::{
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use futures::StreamExt;
use tidegate_client::{
    Changes, Code, Delivery, EndReason, Event, FeedbackOf, Frame, Instant, Outcome, Registration,
    SubscribeRequest, Subscription, TransferState,
};
use tidegate_link::link::Transport;
use tokio::time::timeout;

use crate::world::{World, captured, until_past};

const SCENE: &str = "scene:street?size=320x240&fps=10&people=3&seed=1";

fn request(camera: &str) -> SubscribeRequest {
    SubscribeRequest::new(camera, Duration::from_secs(2), 0.5).expect("a request")
}

async fn next_frame(subscription: &mut Subscription) -> Frame {
    let next = async {
        while let Some(event) = subscription.next().await {
            if let Event::Frame(frame) = event.expect("the subscription holds") {
                return frame;
            }
        }
        panic!("the subscription ended");
    };
    timeout(Duration::from_secs(30), next).await.expect("a frame comes")
}

async fn frames(subscription: &mut Subscription, count: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    while frames.len() < count {
        frames.push(next_frame(subscription).await);
    }
    frames
}

fn is_jpeg(frame: &Frame) -> bool {
    frame.jpeg.starts_with(&[0xff, 0xd8]) && frame.jpeg.ends_with(&[0xff, 0xd9])
}

fn increasing(frames: &[Frame]) -> bool {
    frames.windows(2).all(|pair| pair[0].captured_at < pair[1].captured_at)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_frames_arrive_over_quic_and_tcp() {
    deliver_over_both(World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_frames_arrive_over_ipv6() {
    let address = Ipv6Addr::LOCALHOST.into();
    if let Err(error) = UdpSocket::bind(SocketAddr::new(address, 0)) {
        println!("skipped: no IPv6 here: {error}");
        return;
    }
    deliver_over_both(World::on(address).await).await;
}

async fn deliver_over_both(world: World) {
    let client = world.client().await;
    for (name, transport) in [("cam1", Transport::Quic), ("cam2", Transport::Tcp)] {
        let camera = world.camera_with(name, SCENE, transport, world.path());
        world.wait_for_camera(&client, name).await;
        let mut subscription = client.subscribe(request(name)).await.expect("a subscription");
        let frames = frames(&mut subscription, 10).await;
        assert!(increasing(&frames) && frames.iter().all(is_jpeg));
        let size = "320x240".parse().expect("a size");
        assert!(frames.iter().all(|frame| frame.source_size == Some(size)));
        assert!(frames.iter().all(|f| !f.replayed && f.stages.total() <= Duration::from_secs(2)));
        let info = client.camera(&name.parse().unwrap()).await.expect("the camera's info");
        assert_eq!(info.transport, if transport == Transport::Tcp { "tcp" } else { "quic" });
        assert_eq!((info.transfers, info.subscriptions), (1, 1));
        camera.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_runs_into_future_without_gap_or_duplicate() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    until_past(&client, "cam1", Duration::from_secs(2)).await;
    let mut wanted = request("cam1");
    wanted.from = Some(Instant::EPOCH);
    wanted.demand.delivery = Delivery::Every;
    let mut subscription = client.subscribe(wanted).await.expect("a subscription");
    let frames = frames(&mut subscription, 40).await;
    assert!(frames[0].replayed, "the first comes from the past");
    assert!(!frames[39].replayed, "the last is live");
    let seen: Vec<_> = frames.iter().map(|frame| frame.captured_at).collect();
    assert_eq!(seen, captured(&client, "cam1", &seen).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_from_the_past_share_a_transfer_once_they_have_caught_up() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    until_past(&client, "cam1", Duration::from_secs(1)).await;
    let name = "cam1".parse().unwrap();
    let mut present = request("cam1");
    present.demand.delivery = Delivery::Every;
    let mut past = present.clone();
    past.from = Some(Instant::EPOCH);
    // The first finds nothing to share; the second comes when the first has caught up; the third catches up
    // with both.
    let mut first = client.subscribe(past.clone()).await.expect("a subscription");
    let mut all = vec![next_frame(&mut first).await];
    while all[all.len() - 1].replayed {
        all.push(next_frame(&mut first).await);
    }
    let mut second = client.subscribe(present).await.expect("a subscription");
    next_frame(&mut second).await;
    assert_eq!(client.camera(&name).await.expect("the camera's info").transfers, 1);
    let mut third = client.subscribe(past).await.expect("a subscription");
    let mut frames = Vec::new();
    let shared = async {
        loop {
            frames.push(next_frame(&mut third).await);
            let info = client.camera(&name).await.expect("the camera's info");
            if !frames[frames.len() - 1].replayed && info.transfers == 1 {
                assert_eq!(info.subscriptions, 3);
                return;
            }
        }
    };
    timeout(Duration::from_secs(20), shared).await.expect("it shares their transfer");
    for _ in 0..10 {
        frames.push(next_frame(&mut third).await);
    }
    assert!(increasing(&frames) && frames[0].replayed);
    while all.len() < frames.len() {
        all.push(next_frame(&mut first).await);
    }
    let times = |frames: &[Frame]| -> Vec<Instant> {
        frames.iter().map(|frame| frame.captured_at).collect()
    };
    assert_eq!(times(&frames), times(&all)[..frames.len()], "every frame, and each once");
    next_frame(&mut second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_of_the_past_is_delivered_and_ends() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    until_past(&client, "cam1", Duration::from_secs(1)).await;
    let name = "cam1".parse().unwrap();
    let info = client.camera(&name).await.expect("the camera's info");
    let mut wanted = request("cam1");
    (wanted.from, wanted.to) = (info.oldest_at, info.newest_at);
    // Long over: the range must be delivered all the same.
    until_past(&client, "cam1", Duration::from_secs(4)).await;
    let mut subscription = client.subscribe(wanted.clone()).await.expect("a subscription");
    let mut times = Vec::new();
    let ended = loop {
        match timeout(Duration::from_secs(30), subscription.next()).await.expect("an end") {
            Some(Ok(Event::Frame(frame))) => times.push(frame.captured_at),
            Some(Ok(Event::Ended(reason))) => break reason,
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ended, EndReason::Complete);
    assert_eq!(times.first().copied(), wanted.from);
    assert!(times.iter().all(|&at| at < wanted.to.unwrap()));
    assert!(times.len() >= 4, "{} frames of a second and more", times.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_original_of_a_delivered_frame_can_be_fetched() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let mut subscription = client.subscribe(request("cam1")).await.expect("a subscription");
    let frame = next_frame(&mut subscription).await;
    let name = "cam1".parse().unwrap();
    let original = client.fetch_original(&name, frame.captured_at).await.expect("the original");
    assert_eq!(original.captured_at, frame.captured_at);
    assert_eq!(original.jpeg.len() as u64, frame.original_bytes);
    let elsewhere = frame.captured_at + Duration::from_nanos(1);
    let error = client.fetch_original(&name, elsewhere).await.unwrap_err();
    assert_eq!(error.code(), Code::FRAME_MISSING);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_with_the_same_bounds_share_one_transfer() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let name = "cam1".parse().unwrap();
    let mut first = client.subscribe(request("cam1")).await.expect("a subscription");
    let mut second = client.subscribe(request("cam1")).await.expect("a subscription");
    let looser = SubscribeRequest::new("cam1", Duration::from_secs(3), 0.4).unwrap();
    let mut third = client.subscribe(looser).await.expect("a subscription");
    let stricter = SubscribeRequest::new("cam1", Duration::from_secs(1), 0.5).unwrap();
    let mut fourth = client.subscribe(stricter).await.expect("a subscription");
    for subscription in [&mut first, &mut second, &mut third, &mut fourth] {
        next_frame(subscription).await;
    }
    let info = client.camera(&name).await.expect("the camera's info");
    assert_eq!((info.transfers, info.subscriptions), (2, 4));
    assert_eq!(second.unsubscribe().await.unwrap().transfer, TransferState::Continues);
    assert_eq!(third.unsubscribe().await.unwrap().transfer, TransferState::Continues);
    next_frame(&mut first).await;
    assert_eq!(first.unsubscribe().await.unwrap().transfer, TransferState::Stopped);
    let status = fourth.unsubscribe().await.unwrap();
    assert_eq!(status.transfer, TransferState::Stopped);
    assert!(status.delivered > 0);
    assert_eq!(client.camera(&name).await.unwrap().transfers, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_changes_one_subscription_alone() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    let name = "cam1".parse().unwrap();
    let mut kept = client.subscribe(request("cam1")).await.expect("a subscription");
    let mut changed = client.subscribe(request("cam1")).await.expect("a subscription");
    next_frame(&mut kept).await;
    let last = next_frame(&mut changed).await;
    let changes = Changes { latency: Some(Duration::from_millis(500)), ..Changes::default() };
    let demand = changed.update(changes).await.expect("an update");
    assert_eq!(demand.bounds.latency(), Duration::from_millis(500));
    assert!(next_frame(&mut changed).await.captured_at > last.captured_at);
    next_frame(&mut kept).await;
    assert_eq!(client.camera(&name).await.unwrap().transfers, 2);
    assert_eq!(kept.demand().bounds.latency(), Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_a_subscription_to_every_frame_loses_none() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", "scene:street?size=320x240&fps=30&people=3&seed=1");
    world.wait_for_camera(&client, "cam1").await;
    let mut wanted = request("cam1");
    wanted.demand.delivery = Delivery::Every;
    // With someone else on its stream, the one that changes moves to another.
    let _kept = client.subscribe(wanted.clone()).await.expect("a subscription");
    for round in 0..5 {
        let mut changed = client.subscribe(wanted.clone()).await.expect("a subscription");
        let mut seen = frames(&mut changed, 5).await;
        let changes = Changes { latency: Some(Duration::from_millis(500)), ..Changes::default() };
        changed.update(changes).await.expect("an update");
        seen.extend(frames(&mut changed, 15).await);
        let seen: Vec<_> = seen.iter().map(|frame| frame.captured_at).collect();
        assert_eq!(seen, captured(&client, "cam1", &seen).await, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feedback_says_what_became_of_each_frame() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.camera("cam1", SCENE);
    world.wait_for_camera(&client, "cam1").await;
    // That of the camera is asked for before anybody wants its frames.
    let of = FeedbackOf::Camera("cam1".parse().unwrap());
    let of_camera = client.feedback(of).await.expect("feedback");
    let mut subscription = client.subscribe(request("cam1")).await.expect("a subscription");
    let of = FeedbackOf::Subscription(subscription.id());
    let of_subscription = client.feedback(of).await.expect("feedback");
    let frame = frames(&mut subscription, 5).await.pop().expect("five frames");
    for mut feedback in [of_camera, of_subscription] {
        let verdict = loop {
            let next = timeout(Duration::from_secs(10), feedback.next()).await.expect("a verdict");
            let verdict = next.expect("feedback continues").expect("a verdict");
            if verdict.captured_at == frame.captured_at {
                break verdict;
            }
        };
        assert_eq!(verdict.outcome, Outcome::Kept);
        assert_eq!(verdict.sent_bytes, frame.jpeg.len() as u64);
        assert_eq!(*verdict.knobs, *frame.knobs);
        assert_eq!(verdict.bound, Duration::from_secs(2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_frames_reach_subscribers() {
    let world = World::new().await;
    let publisher_client = world.client_as("other").await;
    let client = world.client().await;
    let camera: tidegate_client::CameraName = "door".parse().unwrap();
    let registration = Registration { camera: camera.clone(), size: None, frames_per_second: None };
    publisher_client.register(registration.clone()).await.expect("a registered camera");
    let mut publisher = publisher_client.publish(camera.clone()).await.expect("a publisher");
    let mut subscription = client.subscribe(request("door")).await.expect("a subscription");
    let jpeg = bytes::Bytes::from(world_jpeg());
    for _ in 0..3 {
        let at = publisher.publish(None, jpeg.clone()).await.expect("a published frame");
        let frame = next_frame(&mut subscription).await;
        assert_eq!(frame.captured_at, at);
    }
    let now = tidegate_process::clock::now();
    let hour = Duration::from_secs(3600);
    let mut huge = jpeg.to_vec();
    huge.resize(17 << 20, 0);
    for (what, at, bad, code) in [
        ("no picture", None, b"GIF89a".to_vec(), Code::FRAME_INVALID),
        ("nothing", None, Vec::new(), Code::FRAME_INVALID),
        ("cut short", None, jpeg[..jpeg.len() / 2].to_vec(), Code::FRAME_INVALID),
        ("too large", None, huge, Code::FRAME_TOO_LARGE),
        ("from the future", Some(now + hour), jpeg.to_vec(), Code::FRAME_TIMESTAMP),
        ("from long ago", Some(now - hour), jpeg.to_vec(), Code::FRAME_TIMESTAMP),
    ] {
        let refused = publisher.publish(at, bad.into()).await.expect_err(what);
        assert_eq!(refused.code(), code, "{what}: {refused}");
        publisher.publish(None, jpeg.clone()).await.expect("the next frame is none the worse");
    }
    let taken = client.register(registration).await.unwrap_err();
    assert_eq!(taken.code(), Code::CAMERA_TAKEN);
    publisher_client.unregister(&camera).await.expect("unregistered");
    let ended = async {
        while let Some(event) = subscription.next().await {
            if let Ok(Event::Ended(reason)) = event {
                return reason;
            }
        }
        panic!("the subscription ends with its reason");
    };
    let reason = timeout(Duration::from_secs(10), ended).await.expect("an end");
    assert_eq!(reason, EndReason::CameraUnregistered);
}

/// A small picture with some texture.
pub(crate) fn world_jpeg() -> Vec<u8> {
    let mut picture = tidegate_jpeg::Packed::default();
    picture.reset(64, 48);
    for (index, sample) in picture.data_mut().iter_mut().enumerate() {
        *sample = u8::try_from((index * 7919) % 251).expect("below 251");
    }
    let mut jpeg = Vec::new();
    let mut codec = tidegate_jpeg::Codec::new();
    codec.encode_bgr(&picture, 80, &mut jpeg).expect("a picture");
    jpeg
}

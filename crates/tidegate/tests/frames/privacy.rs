//! Private parts do not leave the camera's node.

use std::time::Duration;

use futures::StreamExt;
use tidegate_camera::{
    camera::{Originals, Privacy},
    detector::{DetectorKind, DetectorSpec},
};
use tidegate_client::{Client, Event, Instant, SubscribeRequest, Subscription};
use tidegate_frame::privacy::{Cover, Mask, Region};
use tidegate_jpeg::{Codec, Header, Limits, Planes};
use tokio::time::timeout;

use crate::world::World;

const SCENE: &str = "scene:street?size=320x240&fps=10&people=3&seed=1";
/// Of the scene's 320 x 240 pixels, with edges between its blocks.
const REGION: &str = "0.26,0.31,0.64,0.77";

fn masks() -> Privacy {
    let region: Region = REGION.parse().unwrap();
    Privacy { masks: [Mask { region, cover: Cover::Fill }].into(), ..Privacy::default() }
}

/// Lowest and highest luma in the region, and in the whole picture.
fn luma(jpeg: &[u8]) -> [(u8, u8); 2] {
    let header = Header::read(jpeg, &Limits::default()).expect("a JPEG image");
    let mut planes = Planes::default();
    let read = Codec::new().decode_planes(jpeg, &header, 8, false, &mut planes, None);
    let _ = read.expect("a whole image");
    let (width, height, stride, data) = planes.plane(0);
    let span = |left: f32, top: f32, right: f32, bottom: f32| {
        let at = |part: f32, of: usize| (part * of as f32) as usize;
        let rows = at(top, height)..at(bottom, height);
        let columns = at(left, width)..at(right, width);
        let pixels = rows.flat_map(|y| &data[y * stride..][columns.clone()]);
        pixels.fold((255, 0), |(low, high), pixel| (low.min(*pixel), high.max(*pixel)))
    };
    // A pixel of each edge may be of both sides where the frame was scaled.
    [span(0.28, 0.33, 0.62, 0.75), span(0.0, 0.0, 1.0, 1.0)]
}

async fn next(subscription: &mut Subscription) -> (Instant, Vec<u8>) {
    let next = async {
        while let Some(event) = subscription.next().await {
            if let Event::Frame(frame) = event.expect("the subscription holds") {
                return (frame.captured_at, frame.jpeg.to_vec());
            }
        }
        panic!("the subscription ended");
    };
    timeout(Duration::from_secs(60), next).await.expect("a frame comes")
}

async fn subscribe(client: &Client, accuracy: f64) -> Subscription {
    let request = SubscribeRequest::new("cam1", Duration::from_secs(2), accuracy).unwrap();
    client.subscribe(request).await.expect("a subscription")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_frames_and_originals_are_covered() {
    let world = World::new().await;
    let client = world.client().await;
    let _camera = world.private_camera("cam1", SCENE, masks());
    world.wait_for_camera(&client, "cam1").await;
    for accuracy in [0.5, 1.0] {
        let mut subscription = subscribe(&client, accuracy).await;
        for _ in 0..5 {
            let (at, jpeg) = next(&mut subscription).await;
            let original = client.fetch_original(&"cam1".parse().unwrap(), at).await.unwrap();
            for jpeg in [&jpeg[..], &original.jpeg] {
                let [(low, high), whole] = luma(jpeg);
                assert!(low >= 126 && high <= 130, "{low} to {high} in the region");
                assert!(whole.1 - whole.0 > 50, "the rest is still a picture");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn originals_are_as_captured_where_the_camera_says_so() {
    let world = World::new().await;
    let client = world.client().await;
    let clear = Privacy { originals: Originals::Clear, ..masks() };
    let _camera = world.private_camera("cam1", SCENE, clear);
    world.wait_for_camera(&client, "cam1").await;
    let (at, jpeg) = next(&mut subscribe(&client, 0.5).await).await;
    let original = client.fetch_original(&"cam1".parse().unwrap(), at).await.unwrap();
    let [(low, high), _] = luma(&jpeg);
    assert!(high - low <= 4);
    let [(low, high), _] = luma(&original.jpeg);
    assert!(high - low > 20, "the scene has detail everywhere");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_are_covered_whole_while_the_detector_fails() {
    let world = World::new().await;
    let client = world.client().await;
    let nothing = DetectorKind::Command(vec!["/nonexistent/detector".into()]);
    let found = Some((DetectorSpec::new(nothing), Cover::Fill));
    let _camera = world.private_camera("cam1", SCENE, Privacy { found, ..Privacy::default() });
    world.wait_for_camera(&client, "cam1").await;
    let (_, jpeg) = next(&mut subscribe(&client, 0.5).await).await;
    let [_, (low, high)] = luma(&jpeg);
    assert!(low >= 126 && high <= 130, "{low} to {high}");
}

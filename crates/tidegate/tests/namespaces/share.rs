//! One medium for a camera's frames and the batches of sensors next to it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use futures::StreamExt;
use tidegate_client::{Bounds, Event};
use tidegate_load::client::{Client, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::{
    poll::poll,
    site::{App, Site, frame},
};

/// A megabyte a second.
const SCENARIO: &str = r#"
seed = 3
[[medium]]
name = "air0"
kind = "wan"
rate = "8Mbit"
delay = "2ms"
queue = "256KiB"
port = [
  { node = "edge", address = "10.78.1.1/24" },
  { node = "cam1", address = "10.78.1.11/24", default_route = true },
]
[[medium]]
name = "lan0"
kind = "wan"
rate = "1Gbit"
queue = "4MiB"
port = [
  { node = "edge", address = "10.78.2.1/24" },
  { node = "app", address = "10.78.2.2/24", default_route = true },
]
"#;
const SOURCE: &str = "scene:street?size=640x480&fps=5&people=3&seconds=3&seed=1";
const POLE: &str = "[mqtt.listener.main]\nlisten = \"10.78.1.11:1883\"\nallow_anonymous = true\n\
                    [uplink.plant]\nto = \"10.78.1.1:7443\"\ntopics = \"site/#\"\n";
const STATE: &str = "$SYS/broker/uplink/plant/state";
const PATIENCE: Duration = Duration::from_secs(60);
const LATENCY: Duration = Duration::from_millis(500);

fn client(site: &Site) -> Client {
    let options = Options {
        host: "10.78.1.11".to_owned(),
        timeout: Duration::from_secs(10),
        ..Options::default()
    };
    let connect = || {
        let made = site.lab.within("cam1", || Client::connect(options.clone()));
        made.expect("the namespace can be entered")
    };
    poll(PATIENCE, || connect().ok()).unwrap_or_else(|| connect().expect("the broker is up"))
}

/// The uplink's next report: bytes that it may send a second, and bytes that it has sent.
fn state(watcher: &mut Client) -> (u64, u64) {
    let message = watcher.receive(PATIENCE).expect("a connection").expect("a message");
    let state: serde_json::Value = serde_json::from_slice(&message.payload).expect("JSON");
    let of = |key: &str| state[key].as_u64().unwrap_or_else(|| panic!("{key} of {state}"));
    (of("allowed"), of("bytes"))
}

/// Publishes what no codec makes smaller, far more than the medium carries, until `over`.
fn flood(publisher: &mut Client, over: &AtomicBool) {
    let mut word = 1_u64;
    let mut noise = vec![0; 8_000];
    while !over.load(Ordering::Relaxed) {
        for bytes in noise.chunks_exact_mut(8) {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.copy_from_slice(&(word ^ word >> 29).to_le_bytes());
        }
        let message = Outgoing {
            topic: "site/1/noise",
            payload: &noise,
            qos: QoS::AtLeastOnce,
            ..Outgoing::default()
        };
        publisher.publish(&message).expect("it is taken");
        thread::sleep(Duration::from_millis(4));
    }
}

#[test]
fn sensors_that_would_fill_the_medium_keep_to_their_share_beside_frames() {
    let Some(site) = Site::up_with(SCENARIO, SOURCE) else { return };
    let pole = site.start_pole(POLE);
    let (mut publisher, mut watcher) = (client(&site), client(&site));
    let filter = SubscribeFilter {
        filter: STATE.to_owned(),
        maximum_qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    watcher.subscribe(&[filter]).expect("a subscription");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| flood(&mut publisher, &over));
        let watching = scope.spawn(|| {
            // Reported every five seconds: messages between two of them were sent under the limit.
            let until = Instant::now() + PATIENCE;
            let mut before = state(&mut watcher);
            while before.0 == 0 {
                assert!(Instant::now() < until, "no share was reported");
                before = state(&mut watcher);
            }
            let began = Instant::now();
            let (allowed, bytes) = state(&mut watcher);
            (allowed, (bytes - before.1) as f64 / began.elapsed().as_secs_f64())
        });
        let counts = site.app(async |app: App| {
            let bounds = Bounds::new(LATENCY, 0.5).expect("bounds");
            let mut subscription = app.subscribe(|request| request.demand.bounds = bounds).await;
            // Until what may be sent is known and kept.
            for _ in 0..25 {
                frame(&mut subscription).await;
            }
            let (mut came, mut missed) = (0, 0);
            while !watching.is_finished() || came < 50 {
                match subscription.next().await.expect("it continues").expect("it holds") {
                    Event::Frame(_) | Event::Unchanged(_) => came += 1,
                    Event::Missed(_) => missed += 1,
                    _ => {}
                }
            }
            (came, missed)
        });
        over.store(true, Ordering::Relaxed);
        let (allowed, used) = watching.join().expect("it watched");
        println!("allowed {allowed} B/s, used {used:.0} B/s, frames {counts:?}");
        // How many frames were in time is a figure of the machine that runs the medium, and stands in `bench-frames`.
        // A tenth of what a camera sees of a megabyte a second, and no less is used; without a share it would be most of it.
        assert!((20_000..=110_000).contains(&allowed), "{allowed}");
        assert!((0.3 * allowed as f64..250e3).contains(&used), "{used} of {allowed}");
    });
    drop(pole);
}

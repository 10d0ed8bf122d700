//! MQTT over a narrow link that is cut: overtaking, losses, connections.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, ClientError, Message, Options, Outgoing};
use tidegate_netlab::Lab;
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};

use crate::{
    faults::change,
    poll::poll,
    site::{kill, lab},
};

const SCENARIO: &str = r#"
seed = 7
[[medium]]
name = "wan0"
kind = "wan"
rate = "4Mbit"
delay = "10ms"
queue = "64KiB"
port = [
  { node = "broker", address = "10.79.1.1/24" },
  { node = "far", address = "10.79.1.2/24", default_route = true },
]
"#;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker at one end of the link.
struct Site {
    lab: Lab,
    folder: TempDir,
    broker: Option<Child>,
}

impl Site {
    /// A running site, or why there can be none here.
    fn up() -> Option<Self> {
        let lab = lab(SCENARIO)?;
        let folder = tempfile::tempdir().expect("a folder");
        pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
        let config = format!(
            "[node]\ndata_dir = {:?}\napi_listen = \"10.79.1.1:7080\"\n[link]\nlisten = \"10.79.1.1:7443\"\n\
             [mqtt.listener.main]\nlisten = \"10.79.1.1:1883\"\nallow_anonymous = true\n",
            folder.path().join("data")
        );
        let path = folder.path().join("tidegate.toml");
        fs::write(&path, config).expect("a configuration");
        let log = File::create(folder.path().join("broker.log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("--config").arg(&path).arg("node");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let broker = Some(lab.exec("broker", command).expect("a process starts"));
        Some(Self { lab, folder, broker })
    }

    /// A client at `node`, `broker` or `far`; with a name its session is kept.
    fn connect(&self, node: &str, client_id: &str) -> Result<Client, ClientError> {
        let options = Options {
            host: "10.79.1.1".to_owned(),
            client_id: client_id.to_owned(),
            clean_start: client_id.is_empty(),
            session_expiry: (!client_id.is_empty()).then_some(600),
            timeout: Duration::from_secs(10),
            ..Options::default()
        };
        self.lab.within(node, || Client::connect(options)).expect("the namespace can be entered")
    }

    /// The same, tried until the broker is up and the link as well.
    fn client(&self, node: &str, client_id: &str) -> Client {
        let connected = poll(PATIENCE, || self.connect(node, client_id).ok());
        connected.unwrap_or_else(|| self.connect(node, client_id).expect("the broker is up"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("broker.log"));
            eprintln!("--- broker\n{}", log.unwrap_or_default());
        }
        kill(self.broker.take());
    }
}

fn subscribe(client: &mut Client, filter: &str) {
    let filter = SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let reasons = client.subscribe(&[filter]).expect("an answer");
    assert!(reasons.iter().all(|reason| !reason.is_failure()), "{reasons:?}");
}

fn publish(client: &mut Client, topic: &str, payload: &[u8], qos: QoS) {
    let message = Outgoing { topic, payload, qos, ..Outgoing::default() };
    let reason = client.publish(&message).expect("it is acknowledged");
    assert!(!reason.is_failure(), "{topic}: {reason}");
}

fn next(client: &mut Client) -> Message {
    client.receive(PATIENCE).expect("a connection").expect("a message")
}

fn number(message: &Message) -> u32 {
    u32::from_be_bytes(message.payload[..4].try_into().expect("four bytes"))
}

#[test]
fn alarms_overtake_pictures_and_each_topic_keeps_its_order() {
    let Some(site) = Site::up() else { return };
    let mut near = site.client("broker", "");
    let mut far = site.client("far", "");
    subscribe(&mut far, "#");
    // Eight seconds of pictures, then alarms within the first of them.
    let (pictures, alarms) = (20_u32, 10_u32);
    let mut picture = vec![0; 200_000];
    for number in 0..pictures {
        picture[..4].copy_from_slice(&number.to_be_bytes());
        publish(&mut near, "picture", &picture, QoS::AtLeastOnce);
    }
    for number in 0..alarms {
        publish(&mut near, "alarm", &number.to_be_bytes(), QoS::AtLeastOnce);
        thread::sleep(Duration::from_millis(50));
    }
    let mut came: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut before_last_alarm = 0;
    while came.values().map(Vec::len).sum::<usize>() < (pictures + alarms) as usize {
        let message = next(&mut far);
        came.entry(message.topic.to_string()).or_default().push(number(&message));
        if message.topic == "alarm" {
            before_last_alarm = came.get("picture").map_or(0, Vec::len);
        }
    }
    assert_eq!(came["picture"], (0..pictures).collect::<Vec<_>>());
    assert_eq!(came["alarm"], (0..alarms).collect::<Vec<_>>());
    assert!(
        before_last_alarm < 10,
        "the last alarm came behind {before_last_alarm} of 20 pictures"
    );
}

#[test]
fn nothing_acknowledged_is_lost_while_links_are_cut_and_subscribers_die() {
    let Some(site) = Site::up() else { return };
    let mut near = site.client("broker", "");
    let mut far = site.client("far", "kept");
    subscribe(&mut far, "numbers/#");
    let count = 600_u32;
    let is_done = AtomicBool::new(false);
    let came = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                let topic = format!("numbers/{}", number % 3);
                // From 4 bytes to 16 KB, so that the link is busy and some are in flight at each cut.
                let mut payload = number.to_be_bytes().to_vec();
                payload.resize(4 + (number as usize * 7919) % 16_000, 0);
                publish(&mut near, &topic, &payload, QoS::AtLeastOnce);
                thread::sleep(Duration::from_millis(10));
            }
        });
        scope.spawn(|| {
            for _ in 0..4 {
                thread::sleep(Duration::from_millis(1200));
                site.lab.apply(change("wan0 factor=0")).expect("a cut");
                thread::sleep(Duration::from_millis(700));
                site.lab.apply(change("wan0 factor=1")).expect("a mended link");
            }
            is_done.store(true, Ordering::Release);
        });
        // Received, and every now and then the connection is gone with what was on the way.
        let mut came: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let (mut received, mut deaths) = (0_u32, 0);
        let until = Instant::now() + PATIENCE;
        while came.values().map(|numbers| distinct(numbers)).sum::<usize>() < count as usize {
            assert!(Instant::now() < until, "{received} messages came, {came:?}");
            match far.receive(Duration::from_secs(2)) {
                Ok(Some(message)) => {
                    received += 1;
                    came.entry(message.topic.to_string()).or_default().push(number(&message));
                    if received % 97 == 0 && !is_done.load(Ordering::Acquire) {
                        deaths += 1;
                        let former = std::mem::replace(&mut far, site.client("far", "kept"));
                        former.abort();
                        assert!(far.connack().session_present, "the session is kept");
                    }
                }
                Ok(None) => {}
                Err(_) => far = site.client("far", "kept"),
            }
        }
        assert!(deaths > 1, "it lived all the time");
        came
    });
    for (topic, numbers) in came {
        // Some may come again; what is new comes in order.
        let mut highest = None;
        for number in numbers {
            let expected = highest.map_or(number % 3, |highest: u32| highest + 3);
            assert!(number <= expected, "{topic}: {number} came before {expected}");
            highest = highest.max(Some(number));
        }
    }
}

fn distinct(numbers: &[u32]) -> usize {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.len()
}

#[test]
fn qos_2_is_exactly_once_over_a_link_that_is_cut() {
    let Some(site) = Site::up() else { return };
    let mut near = site.client("broker", "");
    let mut far = site.client("far", "");
    subscribe(&mut far, "once");
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200_u32 {
                let mut payload = number.to_be_bytes().to_vec();
                payload.resize(8_000, 1);
                publish(&mut near, "once", &payload, QoS::ExactlyOnce);
            }
        });
        scope.spawn(|| {
            for _ in 0..2 {
                thread::sleep(Duration::from_millis(600));
                site.lab.apply(change("wan0 factor=0")).expect("a cut");
                thread::sleep(Duration::from_millis(1500));
                site.lab.apply(change("wan0 factor=1")).expect("a mended link");
            }
        });
        for expected in 0..200 {
            assert_eq!(number(&next(&mut far)), expected);
        }
    });
    publish(&mut near, "once", &[0xff; 4], QoS::ExactlyOnce);
    assert_eq!(number(&next(&mut far)), u32::MAX, "nothing came twice");
}

#[test]
fn a_session_goes_to_who_connects_last() {
    let Some(site) = Site::up() else { return };
    let mut near = site.client("broker", "");
    let mut first = site.client("far", "wanderer");
    subscribe(&mut first, "news");
    // Cut off, it cannot say farewell; the same client comes from elsewhere.
    site.lab.apply(change("wan0 factor=0")).expect("a cut");
    publish(&mut near, "news", b"0001", QoS::AtLeastOnce);
    let mut second = site.client("broker", "wanderer");
    assert!(second.connack().session_present);
    assert_eq!(next(&mut second).payload, b"0001");
    site.lab.apply(change("wan0 factor=1")).expect("a mended link");
    // Messages sent while it was cut off may still come; then it is notified.
    let told = loop {
        match first.receive(PATIENCE) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it was not notified"),
            Err(error) => break error,
        }
    };
    match told {
        ClientError::Disconnected { reason, .. } => {
            assert_eq!(reason, ReasonCode::SESSION_TAKEN_OVER);
        }
        // Its end may be lost on the way, not the fact.
        ClientError::Closed { .. } | ClientError::Io { .. } => {}
        other => panic!("{other}"),
    }
    publish(&mut near, "news", b"0002", QoS::AtLeastOnce);
    assert_eq!(next(&mut second).payload, b"0002");
}

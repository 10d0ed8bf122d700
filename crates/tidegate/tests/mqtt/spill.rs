//! A subscriber that does not read costs disk and not memory.

use std::{
    fs,
    time::{Duration, Instant},
};

use tidegate_load::client::{Client, Message, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use super::program::{LONGEST, Program, options_of};

/// Bytes of each message.
const BYTES: usize = 500_000;
/// Of all messages held in memory.
const BUDGET: u64 = 16 << 20;

fn mqtt(durability: &str) -> String {
    format!(
        "[mqtt]\ndurability = \"{durability}\"\nshards = 2\npayload_bytes_max = \"16MiB\"\n\
         packet_bytes_max = \"1MiB\"\nqueue_bytes_max = \"4MiB\"\noverflow = \"spill\"\n\
         sys_interval = \"1s\"\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
    )
}

fn client(program: &Program, name: &str) -> Client {
    let options = Options {
        client_id: name.to_owned(),
        clean_start: false,
        session_expiry: Some(3600),
        keep_alive: 0,
        ..options_of(program.address("main"))
    };
    Client::connect(options).expect("it is let in")
}

fn subscribe(client: &mut Client, filter: &str) {
    let filter = SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    client.subscribe(&[filter]).expect("it is granted");
}

fn publish(client: &mut Client, topic: &str, payload: &[u8]) {
    let qos = QoS::AtLeastOnce;
    let (retain, message_expiry) = (false, None);
    let message = Outgoing { topic, payload, qos, retain, message_expiry, user_properties: &[] };
    let reason = client.publish(&message).expect("it is answered");
    assert!(!reason.is_failure(), "{reason:?}");
}

fn payload(number: u32) -> Vec<u8> {
    (0..BYTES as u32 / 4).flat_map(|at| number.wrapping_mul(at + 1).to_le_bytes()).collect()
}

fn next(client: &mut Client) -> Message {
    client.receive(LONGEST).expect("it is connected").expect("a message comes")
}

/// A number that the node tells of itself.
pub(crate) fn told(program: &Program, topic: &str, enough: impl Fn(u64) -> bool) -> u64 {
    let topic = format!("$SYS/broker/{topic}");
    let mut watcher = client(program, "watcher");
    subscribe(&mut watcher, &topic);
    let until = Instant::now() + 2 * LONGEST;
    loop {
        let message = next(&mut watcher);
        let number = String::from_utf8_lossy(&message.payload).parse().expect("a number");
        if message.topic == topic && enough(number) {
            watcher.disconnect().expect("it leaves");
            return number;
        }
        assert!(Instant::now() < until, "{topic} is still {number}");
    }
}

pub(crate) fn bytes_on_disk(program: &Program) -> u64 {
    let files = fs::read_dir(program.path("data/spill")).expect("a folder").flatten();
    files.map(|file| file.metadata().expect("it is there").len()).sum()
}

#[test]
fn a_subscriber_that_does_not_read_costs_disk_and_not_memory() {
    const COUNT: u32 = 200;
    let program = Program::start(&mqtt("memory"));
    let mut stopped = client(&program, "stopped");
    let mut quick = client(&program, "quick");
    subscribe(&mut stopped, "#");
    subscribe(&mut quick, "small");
    let mut publisher = client(&program, "publisher");
    publish(&mut publisher, "small", b"warm");
    assert_eq!(next(&mut quick).payload, b"warm");
    let before = program.resident_bytes();
    let mut delays = Vec::new();
    for number in 0..COUNT {
        publish(&mut publisher, "image", &payload(number));
        let began = Instant::now();
        publish(&mut publisher, "small", &number.to_le_bytes());
        assert_eq!(next(&mut quick).payload, number.to_le_bytes(), "others get theirs");
        delays.push(began.elapsed());
        let grown = program.resident_bytes().saturating_sub(before);
        // The budget, segments that are kept for the next payload (16 MiB), and what is not of messages.
        assert!(grown < BUDGET + (16 << 20) + (32 << 20), "{grown} after {number}");
    }
    delays.sort();
    let delay = |part: usize| delays[(delays.len() - 1) * part / 100];
    println!(
        "small messages next to it: p50 {:?}, p99 {:?}, most {:?}",
        delay(50),
        delay(99),
        delay(100)
    );
    assert!(told(&program, "payload/bytes/maximum", |bytes| bytes > 4 << 20) <= BUDGET);
    told(&program, "spill/messages", |count| count > 150);
    assert!(bytes_on_disk(&program) > 70_000_000, "{}", bytes_on_disk(&program));
    let (mut images, mut smalls) = (0, 0);
    while images < COUNT || smalls < COUNT + 1 {
        let message = next(&mut stopped);
        if message.topic == "image" {
            assert!(message.payload == payload(images), "image {images}");
            images += 1;
        } else {
            smalls += 1;
        }
    }
    assert_eq!(told(&program, "publish/messages/dropped", |_| true), 0);
    told(&program, "spill/bytes", |bytes| bytes <= 16 << 20);
    program.stop();
}

#[test]
fn messages_on_disk_survive_a_kill_by_the_journal() {
    const COUNT: u32 = 80;
    let mut program = Program::start(&mqtt("page"));
    for name in ["one", "two"] {
        let mut absent = client(&program, name);
        subscribe(&mut absent, "image");
        absent.disconnect().expect("it leaves");
    }
    let mut publisher = client(&program, "publisher");
    for number in 0..COUNT {
        publish(&mut publisher, "image", &payload(number));
    }
    assert!(bytes_on_disk(&program) > 25_000_000);
    program = Program::start_in(program.kill(), &mqtt("page"));
    // Not all of it is in memory this time either.
    assert!(told(&program, "payload/bytes", |_| true) <= BUDGET);
    assert!(bytes_on_disk(&program) > 25_000_000);
    for name in ["one", "two"] {
        let mut client = client(&program, name);
        for number in 0..COUNT {
            assert!(next(&mut client).payload == payload(number), "image {number} of {name}");
        }
        assert!(client.receive(Duration::from_millis(300)).expect("it is connected").is_none());
    }
    let folder = program.path("data/spill");
    program.end();
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0);
}

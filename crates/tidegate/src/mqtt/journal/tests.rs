//! From one process to the next, in one.

use std::time::Instant as Stopwatch;

use tidegate_broker::{
    Body, BrokerConfig, ConnectRequest, Incoming, Output, SessionConfig, Shared,
};
use tidegate_message::{AllowAll, Identity};
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, Packet, PacketId, QoS, RetainHandling, Subscribe, SubscribeFilter,
    Version,
};

use super::*;

fn settings(folder: &Path) -> JournalSettings {
    JournalSettings {
        folder: folder.join("log/mqtt"),
        is_on_disk: false,
        bytes_max: 4 << 30,
        commit_delay: Duration::from_millis(10),
    }
}

fn node(shards: usize) -> (Arc<Shared>, Vec<Broker>) {
    let config = BrokerConfig {
        payload_bytes_max: 4 << 30,
        sys_interval: Duration::ZERO,
        ..BrokerConfig::default()
    };
    let now = clock::now();
    let shared = Shared::new(config, shards, Arc::new(AllowAll), now);
    let broker = |shard| Broker::new(shared.clone(), shard, 1, now);
    (shared.clone(), (0..shards).map(broker).collect())
}

/// What shards tell each other, until none has anything to tell.
fn exchange(shards: &mut [Broker]) {
    let mut moved = true;
    while mem::take(&mut moved) {
        for from in 0..shards.len() {
            for to in 0..shards.len() {
                let mut batch = Vec::new();
                if shards[from].poll_peers(to, &mut batch) {
                    moved = true;
                    shards[to].handle_peers(clock::now(), batch);
                }
            }
        }
    }
}

fn session(shared: &Shared, shards: &mut [Broker], name: &str) {
    let now = clock::now();
    let properties =
        ConnectProperties { session_expiry: Some(3600), ..ConnectProperties::default() };
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: false,
        keep_alive: 0,
        client_id: name.to_owned(),
        will: None,
        username: None,
        password: None,
        properties,
    };
    let request = ConnectRequest {
        connect,
        identity: Identity::anonymous(name),
        config: Arc::new(SessionConfig::default()),
        authentication_data: None,
    };
    let shard = &mut shards[shared.shard_of(name)];
    let key = shard.connect(now, request).expect("it is let in");
    let mut subscribe = Vec::new();
    let filter = |filter: String| SubscribeFilter {
        filter,
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    };
    Packet::Subscribe(Subscribe {
        packet_id: PacketId::MIN,
        subscription_id: None,
        user_properties: Vec::new(),
        filters: vec![filter(format!("to/{name}")), filter("to/all".to_owned())],
    })
    .encode(Version::V5, &mut subscribe)
    .expect("it is short");
    assert_eq!(shard.receive(now, key, &subscribe), subscribe.len());
    shard.closed(now, key);
    while let Some(output) = shard.poll_output() {
        assert!(!matches!(output, Output::Auth(..)));
    }
}

fn publish(shard: &mut Broker, topic: &str, payload: &[u8], retain: bool) {
    let topic = topic.into();
    let message = Incoming {
        topic: &topic,
        payload: Body::Read(payload),
        forwarded: &[],
        qos: QoS::AtLeastOnce,
        retain,
        expires: None,
        received: clock::now(),
        publisher: None,
    };
    assert!(shard.publish_internal(clock::now(), message));
}

/// Fills a node, ends it, and lets another begin; how long that took, and what came back.
fn restart(retained: usize, sessions: usize, shards: [usize; 2]) -> Duration {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let (shared, mut before) = node(shards[0]);
    let running = open(&settings, &mut before, clock::now()).expect("a journal");
    for number in 0..sessions {
        session(&shared, &mut before, &format!("client-{number}"));
    }
    for number in 0..retained {
        let at = number % shards[0];
        let topic = format!("site/{}/device/{number}/state", number % 100);
        publish(&mut before[at], &topic, format!("{{\"on\":{number}}}").as_bytes(), true);
        if number % 1_000 == 0 {
            exchange(&mut before);
        }
    }
    for number in 0..sessions.min(1_000) {
        publish(&mut before[0], &format!("to/client-{number}"), b"hello", false);
    }
    publish(&mut before[shards[0] - 1], "to/all", b"to everybody", false);
    exchange(&mut before);
    drop((before, running));
    let (shared, mut after) = node(shards[1]);
    let began = Stopwatch::now();
    let running = open(&settings, &mut after, clock::now()).expect("a journal");
    let took = began.elapsed();
    assert_eq!(shared.retained_count(), retained);
    assert_eq!(shared.subscriptions(), 2 * sessions);
    let reports: Vec<_> = after.iter().flat_map(|shard| shard.sessions(usize::MAX)).collect();
    assert_eq!(reports.len(), sessions);
    let queued: usize = reports.iter().map(|report| report.queued).sum();
    assert_eq!(queued, sessions + sessions.min(1_000));
    let folders: Vec<_> = fs::read_dir(&settings.folder)
        .expect("it is there")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(folders, ["00000002"]);
    drop((after, running));
    took
}

#[test]
fn another_process_goes_on_with_other_shards() {
    for shards in [[1, 1], [2, 3], [3, 1]] {
        restart(500, 40, shards);
    }
}

#[test]
fn a_second_process_is_told_that_the_folder_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let (_, mut shards) = node(1);
    let _running = open(&settings, &mut shards, clock::now()).expect("a journal");
    let (_, mut others) = node(1);
    let error = open(&settings, &mut others, clock::now()).map(drop).expect_err("it is taken");
    assert!(crate::error_chain(&error).contains("log/mqtt"), "{}", crate::error_chain(&error));
}

#[test]
fn a_start_that_did_not_finish_is_as_if_it_had_not_begun() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(folder.path());
    let (shared, mut shards) = node(1);
    let running = open(&settings, &mut shards, clock::now()).expect("a journal");
    session(&shared, &mut shards, "client");
    drop((shards, running));
    let unfinished = generation(&settings.folder, 2, ".new");
    fs::create_dir_all(unfinished.join("000")).expect("a folder");
    let (_, mut shards) = node(2);
    let _running = open(&settings, &mut shards, clock::now()).expect("a journal");
    assert_eq!(shards.iter().map(|shard| shard.statistics().sessions).sum::<u64>(), 1);
    assert!(!unfinished.exists());
}

/// `cargo test --release -p tidegate --lib million -- --ignored --nocapture`
#[test]
#[ignore = "a figure, of a release build"]
fn a_million_retained_messages_and_ten_thousand_sessions_come_back() {
    let took = restart(1_000_000, 10_000, [2, 2]);
    println!("1,000,000 retained messages and 10,000 sessions came back in {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

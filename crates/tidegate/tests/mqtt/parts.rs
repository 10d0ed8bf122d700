//! The node's own parts, bridges, sinks and uplinks, over restarts of this node: of what waits for them nothing is lost, and what is left
//! of those that are gone holds up no publisher.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate_load::client::{Client, ClientError, Options};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};

use super::{
    poll::poll,
    program::{LONGEST, Program, SmallDisk, options_of},
    uplink::{LISTENER, Site, free_address, message},
};

/// First levels of the topics that the parts of a node carry: a bridge, a sink, and an uplink with its two sessions.
const CARRIED: [&str; 4] = ["bridged/t", "sunk/t", "site/t", "site/alarm/t"];

/// A site whose upper node has its broker at a place that stays.
struct World {
    site: Option<Site>,
    core: SocketAddr,
}

impl World {
    fn new() -> Self {
        Self { site: Some(Site::new()), core: free_address() }
    }

    fn folders(&mut self) -> (TempDir, TempDir) {
        let Site { edge, core, .. } = self.site.take().expect("taken once");
        (edge, core)
    }

    fn core(&self) -> String {
        format!("[mqtt.listener.main]\nlisten = \"{}\"\n", self.core)
    }

    /// The lower node's configuration, with filters of the sink; `mqtt` are further keys of `[mqtt]`.
    fn edge(&self, mqtt: &str, sunk: &str) -> String {
        let site = self.site.as_ref().expect("it is asked for before the folders are");
        format!("[mqtt]\n{mqtt}\n{}{}{}", site.uplink(""), self.bridge(), self.sink(sunk))
    }

    fn bridge(&self) -> String {
        format!(
            "[mqtt.bridge.b]\nremote = \"{}\"\ntopics_out = \"bridged/#\"\nreconnect_backoff_max = \"500ms\"\n",
            self.core
        )
    }

    fn sink(&self, topics: &str) -> String {
        format!(
            "[sink.s]\nkind = \"mqtt\"\nurl = \"mqtt://{}\"\ntopics = \"{topics}\"\nbackoff_max = \"500ms\"\n",
            self.core
        )
    }
}

fn client(at: &Program, client_id: &str) -> Result<Client, ClientError> {
    Client::connect(Options {
        client_id: client_id.to_owned(),
        clean_start: false,
        session_expiry: Some(3600),
        ..options_of(at.address("main"))
    })
}

/// The reader at the upper node, whose session outlasts its restarts.
fn reader(core: &Program) -> Client {
    let mut reader = client(core, "reader").expect("it is let in");
    let filters = CARRIED.iter().chain(&["more/t"]).map(|topic| SubscribeFilter {
        filter: (*topic).to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    });
    reader.subscribe(&filters.collect::<Vec<_>>()).expect("it is granted");
    reader
}

fn publish(at: &Program, numbers: std::ops::Range<u32>) {
    let mut publisher = client(at, "publisher").expect("it is let in");
    for number in numbers {
        for topic in CARRIED {
            let reason = publisher.publish(&message(topic, number.to_string().as_bytes()));
            assert!(!reason.expect("it is answered").is_failure(), "{topic} {number}");
        }
    }
}

/// The numbers that come by each topic, until all of these have.
fn assert_come(reader: &mut Client, numbers: std::ops::Range<u32>, when: &str) {
    let mut lacking: BTreeSet<(String, String)> =
        numbers.flat_map(|n| CARRIED.map(|topic| (topic.to_owned(), n.to_string()))).collect();
    let end = Instant::now() + 3 * LONGEST;
    while !lacking.is_empty() {
        assert!(
            Instant::now() < end,
            "{when}: {} are lacking, as {:?}",
            lacking.len(),
            lacking.first()
        );
        if let Some(message) = reader.receive(Duration::from_millis(200)).expect("it is connected")
        {
            let payload = String::from_utf8_lossy(&message.payload).into_owned();
            lacking.remove(&(message.topic, payload));
        }
    }
}

/// The answer of `tidegate sessions`.
fn sessions(at: &Program, api: SocketAddr, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("--config")
        .arg(at.path("tidegate.toml"))
        .arg("sessions")
        .args(arguments)
        .args(["--node", &format!("https://{api}")])
        .output()
        .expect("the program");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The client identifiers of parts that have a session, with the seconds that are left to those that are gone.
fn parts(at: &Program, api: SocketAddr) -> Vec<(String, Option<u64>)> {
    let listed = sessions(at, api, &["list", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let of_parts = listed.as_array().expect("a list").iter();
    let of_parts = of_parts.filter(|session| session["owner_kind"] == "internal");
    let kept = of_parts.map(|session| {
        let id = session["client_id"].as_str().expect("a name").to_owned();
        (id, session["ends_in_s"].as_u64())
    });
    kept.collect()
}

fn until_all(at: &Program, api: SocketAddr, is_so: impl Fn(Option<u64>) -> bool) {
    let are = poll(LONGEST, || {
        let parts = parts(at, api);
        (parts.len() == SESSIONS.len() && parts.iter().all(|(_, left)| is_so(*left))).then_some(())
    });
    assert!(are.is_some(), "{:?}", parts(at, api));
}

const SESSIONS: [&str; 4] =
    ["$node/bridge/b", "$node/sink/s", "$node/uplink/plant/batched", "$node/uplink/plant/critical"];

#[test]
fn what_waits_for_parts_of_a_node_that_restarts_is_handed_on() {
    let mut world = World::new();
    let edge_config = world.edge("durability = \"page\"", "sunk/#");
    let core_config = world.core();
    let (edge, core) = world.folders();
    let core = Program::start_in(core, &core_config);
    drop(reader(&core));
    let mut edge = Program::start_in(edge, &edge_config);
    edge.line_with("node ready");
    // Their destinations are away, and each process of this node takes some messages, however it ends.
    let core = core.stop_and_keep();
    for round in 0..3 {
        publish(&edge, 20 * round..20 * (round + 1));
        let folder = if round == 1 { edge.stop_and_keep() } else { edge.kill() };
        edge = Program::start_in(folder, &edge_config);
    }
    let api = edge.api();
    let left = parts(&edge, api);
    assert_eq!(left, SESSIONS.map(|id| (id.to_owned(), None)), "one session for each");
    let core = Program::start_in(core, &core_config);
    assert_come(&mut reader(&core), 0..60, "after restarts");
}

#[test]
fn a_part_that_is_gone_holds_up_no_publisher_and_comes_back_whole() {
    let mut world = World::new();
    // So few that the bridge's queue fills.
    let small = "durability = \"page\"\nqueue_messages_max = 50\noverflow = \"disconnect\"";
    let edge_config = world.edge(small, "sunk/#");
    let core_config = world.core();
    let none = format!("[mqtt]\n{small}\n{LISTENER}");
    let (edge, core) = world.folders();
    let core = Program::start_in(core, &core_config);
    drop(reader(&core));
    let edge = Program::start_in(edge, &edge_config);
    let api = edge.api();
    let core = core.stop_and_keep();
    publish(&edge, 0..20);
    // A mistake while the node runs, and then one over a restart.
    edge.reload(&none);
    until_all(&edge, api, |left| left.is_some());
    publish(&edge, 20..200);
    let edge = Program::start_in(edge.kill(), &none);
    let api = edge.api();
    until_all(&edge, api, |left| left.is_some_and(|left| left > 70 * 3600));
    publish(&edge, 200..300);
    let listed = sessions(&edge, api, &["list"]);
    assert!(listed.contains("internal sink s") && listed.contains("gone, ends in 7"), "{listed}");
    // It is mended.
    edge.reload(&edge_config);
    until_all(&edge, api, |left| left.is_none());
    let core = Program::start_in(core, &core_config);
    assert_come(&mut reader(&core), 0..300, "after the mistake");

    // The session of a part that does not come back is ended at once, and no other.
    edge.reload(&none);
    let ended = poll(LONGEST, || {
        (sessions(&edge, api, &["end", "$node/sink/s"]) == "1 ended\n").then_some(())
    });
    assert!(ended.is_some(), "{:?}", parts(&edge, api));
    let ids: Vec<String> = parts(&edge, api).into_iter().map(|(id, _)| id).collect();
    assert_eq!(
        ids,
        ["$node/bridge/b", "$node/uplink/plant/batched", "$node/uplink/plant/critical"]
    );
}

/// Publishes until the disk has no room; how many messages were accepted.
fn fill(publisher: &mut Client, topics: &[&str]) -> Vec<(String, u32)> {
    let mut accepted = Vec::new();
    let mut refused = 0;
    for number in 0.. {
        let topic = topics[number as usize % topics.len()];
        let payload = [number.to_string().as_bytes(), &[b' '; 20_000]].concat();
        match publisher.publish(&message(topic, &payload)) {
            Ok(_) => {
                accepted.push((topic.to_owned(), number));
                refused = 0;
            }
            Err(ClientError::Publish { reason: ReasonCode::QUOTA_EXCEEDED, .. }) => {
                refused += 1;
                if refused > 20 {
                    return accepted;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the numbers do not end")
}

#[test]
fn a_node_that_starts_on_a_full_disk_drains() {
    // Whether the sink has other topics after the restart, which finds no room for them.
    for sunk in ["sunk/#", "sunk/+, more/#"] {
        let mut world = World::new();
        let settings =
            "durability = \"page\"\nqueue_bytes_max = \"256MiB\"\npayload_bytes_max = \"512MiB\"";
        let log = "[log]\nmqtt_bytes = \"256MiB\"\n";
        let before = world.edge(settings, "sunk/#") + log;
        let after = world.edge(settings, sunk) + log;
        let core_config = world.core();
        let (edge, core) = world.folders();
        let Some(disk) = SmallDisk::start(&edge, 40) else { return };
        let core = Program::start_in(core, &core_config);
        drop(reader(&core));
        let edge = Program::start_on(&disk, edge, &before);
        edge.line_with("node ready");
        let core = core.stop_and_keep();
        let accepted = fill(&mut client(&edge, "publisher").expect("it is let in"), &CARRIED);
        assert!(accepted.len() > 100, "{} are few", accepted.len());
        let edge = Program::start_on(&disk, edge.kill(), &after);
        let core = Program::start_in(core, &core_config);
        let mut reader = reader(&core);
        let mut lacking: BTreeSet<(String, u32)> = accepted.iter().cloned().collect();
        let end = Instant::now() + 6 * LONGEST;
        while !lacking.is_empty() {
            let count = lacking.len();
            assert!(Instant::now() < end, "{sunk}: {count} of {} are lacking", accepted.len());
            if let Some(message) =
                reader.receive(Duration::from_millis(200)).expect("it is connected")
            {
                let text = String::from_utf8_lossy(&message.payload);
                let number = text.trim_end().parse().expect("a number");
                lacking.remove(&(message.topic, number));
            }
        }
        // And then there is room, for further subscriptions too.
        let mut publisher = client(&edge, "publisher").expect("it is let in");
        let more = if sunk.contains("more") { &["more/t"][..] } else { &[] };
        for topic in CARRIED.iter().chain(more) {
            let came = poll(LONGEST, || {
                // One that comes before the subscription is for none.
                publisher.publish(&message(topic, b"again")).ok()?;
                let message =
                    reader.receive(Duration::from_millis(200)).expect("it is connected")?;
                (message.topic == *topic && message.payload == b"again").then_some(())
            });
            assert!(came.is_some(), "{sunk}: nothing comes of {topic}");
        }
    }
}

//! Nodes that send each other what they get: each message comes to each node as often as there are ways to it, and no more.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, Outgoing};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::{
    program::{LONGEST, Program},
    uplink::{copy, free_address, next, publisher},
};

/// Nodes of one site, `a` first, each with addresses of its own for links and clients.
struct Ring {
    names: Vec<&'static str>,
    folders: Vec<Option<TempDir>>,
    links: Vec<SocketAddr>,
    clients: Vec<SocketAddr>,
}

impl Ring {
    fn new(names: &[&'static str]) -> Self {
        let folders: Vec<TempDir> =
            names.iter().map(|_| tempfile::tempdir().expect("a folder")).collect();
        let nodes = names.iter().map(|name| (*name).to_owned()).collect();
        let first = folders[0].path().join("data/pki");
        pki::init(&first, &InitRequest { nodes, ..InitRequest::default() }).expect("certificates");
        let links: Vec<_> = names.iter().map(|_| free_address()).collect();
        for (place, folder) in folders.iter().enumerate() {
            if place > 0 {
                copy(&first, &folder.path().join("data/pki"));
            }
            let conf = folder.path().join("conf.d");
            fs::create_dir(&conf).expect("a folder");
            let (name, link) = (names[place], links[place]);
            let text = format!("[node]\nname = \"{name}\"\n[link]\nlisten = \"{link}\"\n");
            fs::write(conf.join("site.toml"), text).expect("a file");
        }
        let clients = (101..).zip(names).map(|(number, _)| own_address(number)).collect();
        let folders = folders.into_iter().map(Some).collect();
        Self { names: names.to_vec(), folders, links, clients }
    }

    fn place(&self, name: &str) -> usize {
        self.names.iter().position(|one| *one == name).expect("it is one of them")
    }

    /// A carrier of messages one way, as `KIND FROM TO`.
    fn section(&self, number: usize, kind: &str, from: &str, to: &str) -> (usize, String) {
        let at = self.place(to);
        let (link, client) = (self.links[at], self.clients[at]);
        let text = match kind {
            "uplink" => format!(
                "[uplink.u{number}]\nto = \"{link}\"\ntopics = \"plant/#\"\ncritical = \"plant/alarm/#\"\n"
            ),
            "bridge" => format!(
                "[mqtt.bridge.b{number}]\nremote = \"{client}\"\nversion = \"5\"\ntopics_out = \"plant/#\"\n"
            ),
            // The node named first fetches from the second.
            "fetch" => format!(
                "[mqtt.bridge.f{number}]\nremote = \"{client}\"\nversion = \"5\"\ntopics_in = \"plant/#\"\n"
            ),
            "sink" => format!(
                "[sink.s{number}]\nkind = \"mqtt\"\nurl = \"mqtt://{client}\"\ntopics = \"plant/#\"\nbatch_age = \"20ms\"\n"
            ),
            other => panic!("no kind {other}"),
        };
        (self.place(from), text)
    }

    fn start(mut self, ways: &[(&str, &str, &str)]) -> Vec<Program> {
        let mut texts: Vec<String> = self
            .clients
            .iter()
            .map(|address| {
                format!(
                    "[mqtt]\nsys_interval = \"200ms\"\n[mqtt.listener.main]\nlisten = \"{address}\"\n"
                )
            })
            .collect();
        for (number, (kind, from, to)) in ways.iter().enumerate() {
            let (place, text) = self.section(number, kind, from, to);
            texts[place].push_str(&text);
        }
        let folders: Vec<TempDir> = self.folders.iter_mut().filter_map(Option::take).collect();
        let nodes: Vec<Program> = folders
            .into_iter()
            .zip(&texts)
            .map(|(folder, text)| Program::start_in(folder, text))
            .collect();
        for (node, text) in nodes.iter().zip(&texts) {
            let of = |section: &str| text.matches(section).count();
            for _ in 0..of("[uplink.") + of("[mqtt.bridge.") {
                node.line_with_any(&["uplink up", "bridge up"]);
            }
            let mut states = reader(node, "$SYS/broker/sink/+/state");
            for _ in 0..of("[sink.") {
                next(&mut states);
            }
        }
        nodes
    }
}

fn reader(at: &Program, filter: &str) -> Client {
    let mut client = publisher(at);
    let filter = SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: true,
        retain_handling: RetainHandling::Send,
    };
    client.subscribe(&[filter]).expect("a subscription");
    client
}

/// Of each topic, how often it came.
type Came = BTreeMap<String, u32>;

/// Reads until each of `topics` has come `times`.
fn read(client: &mut Client, topics: &[&str], times: u32, came: &mut Came) {
    let until = Instant::now() + LONGEST;
    while topics.iter().any(|topic| came.get(*topic).copied().unwrap_or(0) < times) {
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "{topics:?} do not come {times} times: {came:?}");
        if let Some(message) = client.receive(left).expect("a connection") {
            *came.entry(message.topic).or_default() += 1;
        }
    }
}

const TOPICS: [&str; 4] = ["plant/kept", "plant/alarm/kept", "plant/value", "plant/alarm/fire"];

#[test]
fn what_goes_round_comes_as_often_as_there_are_ways() {
    // Ways, and how often a message that is published at `a` comes out there and elsewhere.
    for (names, ways, at_first, elsewhere) in [
        (&["a", "b"][..], &[("uplink", "a", "b"), ("uplink", "b", "a")][..], 1, &[1][..]),
        (&["a"], &[("uplink", "a", "a")], 1, &[]),
        (
            &["a", "b", "c"],
            &[("uplink", "a", "b"), ("uplink", "b", "c"), ("uplink", "c", "a")],
            1,
            &[1, 1],
        ),
        // Both ways round: by each neighbour once.
        (
            &["a", "b", "c"],
            &[
                ("uplink", "a", "b"),
                ("uplink", "b", "c"),
                ("uplink", "c", "a"),
                ("uplink", "a", "c"),
                ("uplink", "c", "b"),
                ("uplink", "b", "a"),
            ],
            1,
            &[2, 2],
        ),
        // A bridge or a sink hands what it has to a listener, which asks no one: once more to where it began.
        (&["a", "b"], &[("uplink", "a", "b"), ("bridge", "b", "a")], 2, &[1]),
        (&["a", "b"], &[("bridge", "a", "b"), ("uplink", "b", "a")], 1, &[1]),
        (&["a", "b"], &[("uplink", "a", "b"), ("fetch", "a", "b")], 1, &[1]),
        (&["a", "b"], &[("uplink", "a", "b"), ("sink", "b", "a")], 2, &[1]),
        (&["a", "b"], &[("sink", "a", "b"), ("uplink", "b", "a")], 1, &[1]),
        (
            &["a", "b", "c"],
            &[("uplink", "a", "b"), ("bridge", "b", "c"), ("sink", "c", "a")],
            2,
            &[1, 1],
        ),
        (
            &["a", "b", "c"],
            &[("sink", "a", "b"), ("fetch", "c", "b"), ("uplink", "c", "a")],
            1,
            &[1, 1],
        ),
    ] {
        println!("{ways:?}");
        assert_goes_round(names, ways, at_first, elsewhere);
    }
}

fn assert_goes_round(
    names: &[&'static str],
    ways: &[(&str, &str, &str)],
    at_first: u32,
    elsewhere: &[u32],
) {
    let nodes = Ring::new(names).start(ways);
    let times: Vec<u32> = [at_first].iter().chain(elsewhere).copied().collect();
    let mut readers: Vec<Client> = nodes.iter().map(|node| reader(node, "plant/#")).collect();
    let mut came = vec![Came::new(); nodes.len()];
    let mut writer = publisher(&nodes[0]);
    for topic in TOPICS {
        let retain = topic.ends_with("kept");
        let message =
            Outgoing { topic, payload: b"x", qos: QoS::AtLeastOnce, retain, ..Outgoing::default() };
        writer.publish(&message).expect("it is taken");
    }
    for ((reader, times), came) in readers.iter_mut().zip(&times).zip(&mut came) {
        read(reader, &TOPICS, *times, came);
    }
    // A second and a third follow: a message that went round forever would come again before the third.
    for topic in ["plant/second", "plant/third"] {
        let message =
            Outgoing { topic, payload: b"x", qos: QoS::AtLeastOnce, ..Outgoing::default() };
        writer.publish(&message).expect("it is taken");
        for ((reader, times), came) in readers.iter_mut().zip(&times).zip(&mut came) {
            read(reader, &[topic], *times, came);
        }
    }
    for reader in &mut readers {
        let more = reader.receive(Duration::from_millis(100)).expect("a connection");
        assert!(more.is_none(), "{ways:?}: {more:?} came once more");
    }
    for ((came, times), name) in came.iter().zip(&times).zip(names) {
        assert!(came.values().all(|count| count == times), "{ways:?} at {name}: {came:?}");
    }
    assert_counted(&nodes, ways);
}

/// Somewhere in `$SYS` it is counted.
fn assert_counted(nodes: &[Program], ways: &[(&str, &str, &str)]) {
    let until = Instant::now() + LONGEST;
    let mut readers: Vec<Client> = nodes.iter().map(|node| reader(node, "$SYS/broker/#")).collect();
    loop {
        for reader in &mut readers {
            let Some(message) = reader.receive(Duration::from_millis(50)).expect("a connection")
            else {
                continue;
            };
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            let is_count = message.topic.ends_with("/looped") && text != "0";
            let is_report = text.contains("\"looped\":") && !text.contains("\"looped\":0");
            if is_count || is_report {
                return;
            }
        }
        assert!(Instant::now() < until, "{ways:?}: nothing is counted");
    }
}

#[test]
fn a_message_that_comes_by_two_ways_comes_twice_and_topics_of_each_way_pass() {
    // One down, one up, of different topics; and two ways from one node to the other.
    let ring = Ring::new(&["a", "b"]);
    let link = |at: usize| ring.links[at];
    let up = format!("[uplink.up]\nto = \"{}\"\ntopics = \"up/#\"\n", link(1));
    let again = format!("[uplink.again]\nto = \"{}\"\ntopics = \"up/#\"\n", link(1));
    let down = format!("[uplink.down]\nto = \"{}\"\ntopics = \"down/#\"\n", link(0));
    let main = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
    let mut folders = ring.folders;
    let mut take = |at: usize| folders[at].take().expect("it is there");
    let a = Program::start_in(take(0), &format!("{main}{up}{again}"));
    let b = Program::start_in(take(1), &format!("{main}{down}"));
    a.line_with("uplink up");
    a.line_with("uplink up");
    b.line_with("uplink up");
    let (mut at_a, mut at_b) = (reader(&a, "down/#"), reader(&b, "up/#"));
    let send = |node: &Program, topic: &str| {
        let message =
            Outgoing { topic, payload: b"x", qos: QoS::AtLeastOnce, ..Outgoing::default() };
        publisher(node).publish(&message).expect("it is taken");
    };
    send(&a, "up/1");
    let mut came = Came::new();
    read(&mut at_b, &["up/1"], 2, &mut came);
    // An answer to what came, which a program makes again, goes its own way.
    send(&b, "down/1");
    read(&mut at_a, &["down/1"], 1, &mut came);
    assert_eq!(came.values().copied().collect::<Vec<_>>(), [1, 2]);
}

/// A free port of a loopback address that only this process uses: tests that run next to it take ports of 127.0.0.1.
fn own_address(number: u8) -> SocketAddr {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let address = Ipv4Addr::new(127, high | 1, low, number);
    let socket = TcpListener::bind((address, 0)).expect("a socket");
    socket.local_addr().expect("its address")
}

#[test]
fn lines_that_nodes_send_each_other_over_http_do_not_go_round() {
    for other_way in ["lines", "uplink"] {
        let ring = Ring::new(&["a", "b"]);
        let ways_in = [1, 2].map(own_address);
        let text = |place: usize| {
            let other = 1 - place;
            let (own, there, link) = (ways_in[place], ways_in[other], ring.links[other]);
            let way = match (place, other_way) {
                (0, "uplink") => {
                    format!("[uplink.up]\nto = \"{link}\"\ntopics = \"lines/#\"\n")
                }
                _ => format!(
                    "[sink.http]\nkind = \"influx\"\nurl = \"http://{there}/write\"\nencoding = \"lines\"\n\
                     topics = \"lines/#\"\nbatch_age = \"20ms\"\n"
                ),
            };
            format!(
                "[mqtt]\nsys_interval = \"1s\"\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n\
                 [ingest.http]\nkind = \"http\"\nlisten = \"{own}\"\ntopic = \"lines/{{measurement}}\"\n{way}"
            )
        };
        let texts = [text(0), text(1)];
        let nodes: Vec<Program> = (ring.folders.into_iter().flatten().zip(&texts))
            .map(|(folder, text)| Program::start_in(folder, text))
            .collect();
        for (node, text) in nodes.iter().zip(&texts) {
            if text.contains("[uplink.") {
                node.line_with("uplink up");
            } else {
                next(&mut reader(node, "$SYS/broker/sink/+/state"));
            }
        }
        let mut readers: Vec<Client> = nodes.iter().map(|node| reader(node, "lines/#")).collect();
        let mut writer = publisher(&nodes[0]);
        let mut send = |topic: &str, payload: &str| {
            let payload = payload.as_bytes();
            let message = Outgoing { topic, payload, qos: QoS::AtLeastOnce, ..Outgoing::default() };
            writer.publish(&message).expect("it is taken");
        };
        // It is known that a peer's lines are taken once some were: earlier ones may come round once.
        send("lines/first", "first v=1 5");
        let mut came = Came::new();
        read(&mut readers[1], &["lines/first"], 1, &mut came);
        while let Some(message) =
            readers[0].receive(Duration::from_millis(500)).expect("it is there")
        {
            *came.entry(message.topic).or_default() += 1;
        }
        while readers[1].receive(Duration::from_millis(500)).expect("it is there").is_some() {}
        assert!(came["lines/first"] <= 4, "{came:?}");
        send("lines/second", "second v=1 5");
        send("lines/third", "third v=1 5");
        for reader in &mut readers {
            let mut came = Came::new();
            read(reader, &["lines/second", "lines/third"], 1, &mut came);
            while let Some(message) =
                reader.receive(Duration::from_millis(500)).expect("a connection")
            {
                *came.entry(message.topic).or_default() += 1;
            }
            assert!(came.values().all(|count| *count == 1), "{other_way}: {came:?}");
        }
        assert_counted(&nodes, &[(other_way, "a", "b")]);
    }
}

//! Flows in the broker of a node, behind real sockets and shards.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tidegate::run::FlowOperators;
use tidegate_broker::BrokerConfig;
use tidegate_flow::{EmittedPayload, Flow, Message, Output};
use tidegate_flows::{Flows, Keeper, file::FlowFile};
use tidegate_load::{
    client::{Client, Options, Outgoing},
    sensors::{Generator, Workload},
};
use tidegate_message::{AllowAll, Instant};
use tidegate_process::health::Health;
use tidegate_server::{
    Server,
    settings::{AllAnonymous, ListenerSettings, ServerSettings},
};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::{
    poll::poll,
    program::{Program, options_of},
};

const PATIENCE: Duration = Duration::from_secs(60);
const SYS_INTERVAL: Duration = Duration::from_millis(100);

/// A node with flows, whose state is in a folder.
struct Node {
    server: Server,
    flows: Arc<Flows>,
    _keeper: Keeper,
}

impl Node {
    fn start(shards: usize, file: &Path, state: &Path) -> Self {
        let flows = Flows::new(shards, 7, 11);
        let plan = flows.plan_file(file, None).unwrap_or_else(|error| panic!("{error:?}"));
        flows.commit(plan, Some(state));
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let listener =
            ListenerSettings { anonymous: true, ..ListenerSettings::new("main", listen) };
        let settings = ServerSettings {
            // `$SYS` is said often, so that no one waits for it.
            broker: BrokerConfig { sys_interval: SYS_INTERVAL, ..BrokerConfig::default() },
            listeners: vec![listener],
            shards,
            authenticator: Arc::new(AllAnonymous),
            authorize: Arc::new(AllowAll),
            operators: Some(Arc::new(FlowOperators(flows.clone()))),
            journal: None,
            spill: None,
        };
        let server = Server::start(settings, &Health::default()).expect("it serves");
        let keeper = Keeper::start(flows.clone(), state.to_owned()).expect("a folder");
        Self { server, flows, _keeper: keeper }
    }

    fn client(&self, name: &str) -> Client {
        let options = options_of(self.server.addresses()[0].1);
        Client::connect(Options { client_id: name.to_owned(), ..options }).expect("it is let in")
    }

    fn subscriber(&self, filters: &[&str]) -> Client {
        subscribed(self.client("subscriber"), filters)
    }
}

fn subscribed(mut client: Client, filters: &[&str]) -> Client {
    let filters: Vec<_> = filters
        .iter()
        .map(|filter| SubscribeFilter {
            filter: (*filter).to_owned(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        })
        .collect();
    client.subscribe(&filters).expect("it may");
    client
}

fn publish(client: &mut Client, topic: &str, payload: &[u8]) {
    let message = Outgoing { topic, payload, qos: QoS::AtLeastOnce, ..Outgoing::default() };
    let reason = client.publish(&message).expect("it is acknowledged");
    assert!(!reason.is_failure(), "{topic}: {reason}");
}

fn next(client: &mut Client) -> tidegate_load::client::Message {
    client.receive(PATIENCE).expect("it is connected").expect("a message")
}

fn text(client: &mut Client) -> (String, String) {
    let message = next(client);
    (message.topic, String::from_utf8(message.payload).expect("text"))
}

const COUNTING: &str = r##"
[flow.counting]
topics = ["in/#"]
key = { field = "id" }
forward = "none"
bad = "dead-letter"
parse = { format = "csv", fields = ["id:text", "x"] }

[[flow.counting.step]]
kernel = "count"
into = "n"

[[flow.counting.step]]
kernel = "max"
field = "x"

[[flow.counting.step]]
kernel = "notify"
topic = "out/{field:id}"
payload = "{field:n} {field:x_max}"
"##;

/// A folder with a file of flows, and where their state goes.
fn place(flows: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("flows.toml");
    fs::write(&file, flows).expect("a file");
    let state = folder.path().join("state");
    (folder, file, state)
}

#[test]
fn a_key_has_one_state_whatever_shards_its_messages_come_by() {
    const MESSAGES: usize = 50;
    for shards in [1, 2] {
        let (_folder, file, state) = place(COUNTING);
        let node = Node::start(shards, &file, &state);
        let mut subscriber = node.subscriber(&["out/+"]);
        // Of eight names some live on each shard.
        std::thread::scope(|scope| {
            for name in 0..8 {
                let mut client = node.client(&format!("from-{name}"));
                scope.spawn(move || {
                    for number in 0..MESSAGES {
                        let payload = format!("key{},{name}", number % 3);
                        publish(&mut client, &format!("in/{name}"), payload.as_bytes());
                    }
                });
            }
        });
        let mut counts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for _ in 0..8 * MESSAGES {
            let (topic, payload) = text(&mut subscriber);
            let count = payload.split(' ').next().expect("a count").parse().expect("a number");
            counts.entry(topic).or_default().push(count);
        }
        for (key, of) in [("out/key0", 17), ("out/key1", 17), ("out/key2", 16)] {
            let found = counts.get_mut(key).expect("each key has messages");
            found.sort_unstable();
            assert_eq!(*found, (1..=8 * of).collect::<Vec<u64>>(), "{key}, {shards} shards");
        }
        let stats = &node.flows.stats()[0];
        assert_eq!((stats.1, stats.2.keys), ([0, 0, 8 * MESSAGES as u64], 3));
    }
}

#[test]
fn a_flow_goes_on_after_a_restart_and_begins_anew_without_what_is_damaged() {
    let (_folder, file, state) = place(COUNTING);
    let once = |shards: usize, payload: &str| {
        let node = Node::start(shards, &file, &state);
        let mut subscriber = node.subscriber(&["out/+"]);
        publish(&mut node.client("from"), "in/a", payload.as_bytes());
        text(&mut subscriber).1
    };
    assert_eq!(once(2, "k,5"), "1 5");
    // Other parts, the same keys.
    assert_eq!(once(1, "k,3"), "2 5");
    assert_eq!(once(2, "other,3"), "1 3");
    assert_eq!(once(2, "k,7"), "3 7");
    let path = state.join("counting.state");
    let mut bytes = fs::read(&path).expect("its state is kept");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).expect("a file");
    assert_eq!(once(1, "k,1"), "1 1");
    assert_eq!(fs::read(state.join("counting.state.damaged-0")).expect("put aside"), bytes);
    fs::write(&path, b"TG").expect("a file");
    assert_eq!(once(1, "k,1"), "1 1");
    assert!(state.join("counting.state.damaged-1").exists());
}

/// The content of a file once it is there and differs from `before`.
fn written(path: &Path, before: Option<&[u8]>) -> Vec<u8> {
    let written = poll(PATIENCE, || fs::read(path).ok().filter(|bytes| before != Some(&**bytes)));
    written.unwrap_or_else(|| panic!("{} is not written", path.display()))
}

#[test]
fn a_flow_of_a_node_that_is_killed_goes_on_from_its_state_that_was_written_last() {
    let (_folder, file, _) = place(COUNTING);
    let settings = format!(
        "[mqtt]\ndurability = \"page\"\nshards = 2\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n\
         [flow.counting]\nfile = {file:?}\nstate_interval = \"1s\"\n"
    );
    let connect =
        |node: &Program| Client::connect(options_of(node.address("main"))).expect("it is let in");
    // The result for a message, which its flow has counted by then.
    let once = |node: &Program, payload: &str| {
        let mut subscriber = subscribed(connect(node), &["out/+"]);
        publish(&mut connect(node), "in/a", payload.as_bytes());
        text(&mut subscriber).1
    };
    let node = Program::start(&settings);
    let state = node.path("data/state/flows/counting.state");
    assert_eq!(once(&node, "k,5"), "1 5");
    let first = written(&state, None);
    assert_eq!(once(&node, "k,3"), "2 5");
    written(&state, Some(&first));
    // Without a word: nothing is written at the end.
    let node = Program::start_in(node.kill(), &settings);
    assert_eq!(once(&node, "k,1"), "3 5");
}

#[test]
fn flows_are_exchanged_while_messages_pass_and_keep_what_fits() {
    for shards in [1, 2] {
        let (_folder, file, state) = place(COUNTING);
        let node = Node::start(shards, &file, &state);
        let mut subscriber = node.subscriber(&["out/+", "in/#"]);
        let mut client = node.client("from");
        let exchange = |text: &str| {
            fs::write(&file, text).expect("a file");
            let plan = node.flows.plan_file(&file, None).map_err(|error| error.to_string())?;
            Ok::<_, String>(node.flows.commit(plan, Some(&state)))
        };
        publish(&mut client, "in/a", b"k,9");
        assert_eq!(text(&mut subscriber).1, "1 9");
        assert_eq!(exchange(COUNTING).expect("nothing is wrong"), Vec::<String>::new());
        // The maximum is another now; the count is as it was.
        let windowed = COUNTING.replace("field = \"x\"", "field = \"x\"\nwindow = { sliding = 2 }");
        assert_eq!(exchange(&windowed).expect("nothing is wrong"), ["counting"]);
        publish(&mut client, "in/a", b"k,1");
        assert_eq!(text(&mut subscriber).1, "2 1");
        // A wrong file changes nothing.
        exchange(&windowed.replace("\"max\"", "\"most\"")).expect_err("no such kernel");
        publish(&mut client, "in/a", b"k,2");
        assert_eq!(text(&mut subscriber).1, "3 2");
        // Without it messages continue as they come, and it finds its state when it is back.
        let other = windowed.replace("flow.counting", "flow.other").replace("in/#", "else/#");
        assert_eq!(exchange(&other).expect("nothing is wrong"), ["counting", "other"]);
        publish(&mut client, "in/a", b"k,3");
        assert_eq!(text(&mut subscriber), ("in/a".to_owned(), "k,3".to_owned()));
        exchange(&windowed).expect("nothing is wrong");
        publish(&mut client, "in/a", b"k,4");
        assert_eq!(text(&mut subscriber).1, "4 4");
    }
}

fn property(message: &tidegate_load::client::Message, name: &str) -> Option<String> {
    let found = message.user_properties.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.to_string())
}

/// Dead letters lie where their own flow would read them.
#[test]
fn a_flow_on_all_topics_buries_a_bad_message_once() {
    for (topics, dead, expected) in [
        ("#", "dead/{flow}/{topic}", "dead/burying/plant/a"),
        ("plant/#", "plant/dead/{topic}", "plant/dead/plant/a"),
    ] {
        let flow = format!(
            r#"
[flow.burying]
topics = ["{topics}"]
bad = "dead-letter"
dead_letter_topic = "{dead}"
parse = {{ format = "csv", fields = ["x"] }}
"#
        );
        for shards in [1, 2] {
            let (_folder, file, state) = place(&flow);
            let node = Node::start(shards, &file, &state);
            let mut subscriber = node.subscriber(&["#"]);
            let mut client = node.client("from");
            publish(&mut client, "plant/a", b"no number");
            publish(&mut client, "plant/b", b"1");
            let letter = next(&mut subscriber);
            assert_eq!((&*letter.topic, &*letter.payload), (expected, &b"no number"[..]));
            assert_eq!(property(&letter, "tidegate-flow").as_deref(), Some("burying"));
            assert_eq!(property(&letter, "tidegate-reason").as_deref(), Some("not-a-number"));
            assert_eq!(property(&letter, "tidegate-field").as_deref(), Some("x"));
            // No other came of it.
            assert_eq!(text(&mut subscriber), ("plant/b".to_owned(), "1".to_owned()));
            assert_eq!(node.flows.stats()[0].2.messages, 2);
        }
    }
}

#[test]
fn dead_letters_say_why_and_windows_end_by_the_clock() {
    let windowed = COUNTING
        .replace("kernel = \"count\"", "kernel = \"count\"\nwindow = { tumbling = \"100ms\" }")
        .replace("kernel = \"max\"", "kernel = \"keep\"\npresent = [\"n\"]")
        .replace(
            "field = \"x\"\n\n[[flow.counting.step]]\nkernel = \"notify\"",
            "[[flow.counting.step]]\nkernel = \"notify\"",
        )
        .replace(" {field:x_max}", "");
    let (_folder, file, state) = place(&windowed);
    let node = Node::start(2, &file, &state);
    let mut subscriber = node.subscriber(&["out/+", "dead/#"]);
    let mut client = node.client("from");
    publish(&mut client, "in/a", b"k,no number");
    let dead = next(&mut subscriber);
    assert_eq!((&*dead.topic, &*dead.payload), ("dead/counting/in/a", &b"k,no number"[..]));
    assert_eq!(property(&dead, "tidegate-reason").as_deref(), Some("not-a-number"));
    assert_eq!(property(&dead, "tidegate-field").as_deref(), Some("x"));
    publish(&mut client, "in/a", b"k,1");
    // Nothing more is published, and the window ends.
    assert_eq!(text(&mut subscriber), ("out/k".to_owned(), "1".to_owned()));
}

/// All that is counted of a flow under `$SYS/broker/flows/`: as many as are said, and none of the rest.
fn counts(flow: &str, said: &[(&str, u64)]) -> BTreeMap<String, u64> {
    const NAMES: [&str; 16] = [
        "messages",
        "passed",
        "replaced",
        "dropped",
        "unseen",
        "filtered",
        "emitted",
        "unsent",
        "bad",
        "mended",
        "late",
        "unlearned",
        "keys",
        "evicted",
        "expired",
        "state/bytes",
    ];
    let name = |count: &str| format!("{flow}/{count}");
    let mut counts: BTreeMap<_, _> = NAMES.iter().map(|count| (name(count), 0)).collect();
    counts.extend(said.iter().map(|(count, number)| (name(count), *number)));
    counts
}

/// Reads the topics under `$SYS/broker/flows/` until all that was published is as expected.
fn read_until(
    watcher: &mut Client,
    told: &mut BTreeMap<String, u64>,
    expected: &BTreeMap<String, u64>,
) {
    let until = std::time::Instant::now() + PATIENCE;
    while *told != *expected {
        assert!(std::time::Instant::now() < until, "{told:?} instead of {expected:?}");
        let (topic, text) = text(watcher);
        let name = topic.strip_prefix("$SYS/broker/flows/").expect("nothing else was asked for");
        // Of a flow that is gone nothing is retained.
        if text.is_empty() {
            told.remove(name);
        } else {
            told.insert(name.to_owned(), text.parse().expect("a number"));
        }
    }
}

const MENDING: &str = r#"
[flow.mending]
topics = ["mend/+"]
bad = "last-good"
parse = { format = "csv", fields = ["x"] }

[[flow.mending.step]]
kernel = "average"
field = "x"

[[flow.mending.step]]
kernel = "replace"
payload = "{field:x_average}"
"#;

#[test]
fn results_of_a_flow_are_counted_under_sys_for_as_long_as_it_runs() {
    for shards in [1, 2] {
        let count = "[[flow.counting.step]]\nkernel = \"count\"";
        let filter = "[[flow.counting.step]]\nkernel = \"range-filter\"\nfield = \"x\"\nmax = 100";
        let filtering = COUNTING.replace(count, &format!("{filter}\n\n{count}"));
        assert_ne!(filtering, COUNTING);
        let (_folder, file, state) = place(&format!("{filtering}{MENDING}"));
        // The most that their state may take, which is known before they run.
        let plan = Flows::new(shards, 7, 11).plan_file(&file, None).expect("nothing is wrong");
        let state_bytes =
            |flow: &str| ("state/bytes", plan.state_bytes(flow).expect("it is there"));
        let (counting, mending) = (state_bytes("counting"), state_bytes("mending"));
        assert!(counting.1 > 0 && mending.1 > 0);

        let node = Node::start(shards, &file, &state);
        let (mut watcher, mut told) = (node.subscriber(&["$SYS/broker/flows/#"]), BTreeMap::new());
        let mut expected = counts("counting", &[counting]);
        expected.extend(counts("mending", &[mending]));
        read_until(&mut watcher, &mut told, &expected);

        let mut client = node.client("from");
        // Three are counted by two keys, one is beyond the filter, of two a field is missing or no number.
        for payload in ["a,1", "a,2", "b,5", "c,1000", "d,no number", "e"] {
            publish(&mut client, "in/1", payload.as_bytes());
        }
        // The second has no number, and takes the one before; so would the third, which has none before it.
        for (topic, payload) in [("mend/1", "4"), ("mend/1", "none"), ("mend/2", "none")] {
            publish(&mut client, topic, payload.as_bytes());
        }
        let said = [
            counting,
            ("messages", 6),
            ("dropped", 6),
            ("filtered", 1),
            // Three notices and two dead letters.
            ("emitted", 5),
            ("bad", 2),
            ("bad/missing", 1),
            ("bad/not-a-number", 1),
            ("keys", 2),
        ];
        let mut expected = counts("counting", &said);
        let said = [
            mending,
            ("messages", 3),
            ("passed", 1),
            ("replaced", 2),
            ("bad", 1),
            ("bad/not-a-number", 1),
            ("mended", 1),
            ("keys", 2),
        ];
        let mended = counts("mending", &said);
        expected.extend(mended.clone());
        read_until(&mut watcher, &mut told, &expected);

        // One goes, and with it what was said of it; the other counts on.
        fs::write(&file, MENDING).expect("a file");
        let plan = node.flows.plan_file(&file, None).expect("nothing is wrong");
        assert_eq!(node.flows.commit(plan, Some(&state)), ["counting"]);
        read_until(&mut watcher, &mut told, &mended);
    }
}

/// The messages of an application, some of which its example notifies of.
fn messages(name: &str) -> Vec<(String, Vec<u8>)> {
    let Ok(workload) = name.parse() else {
        // In addition to the four: 64 bytes, the sensor in 4 and the temperature as text at 8.
        let one = |number: u32| {
            let mut payload = vec![b' '; 64];
            payload[..4].copy_from_slice(&(number % 5).to_le_bytes());
            let hot = if number % 97 == 96 { 60.0 } else { 0.0 };
            let celsius = 80.0 + f64::from(number % 7) + hot;
            payload[8..14].copy_from_slice(format!("{celsius:6.2}").as_bytes());
            ("vehicle/oil".to_owned(), payload)
        };
        return (0..1_000).map(one).collect();
    };
    let mut generator = Generator::new(workload, 20, 3).with_odd(NonZeroU64::new(97));
    let mut next = || {
        let (mut topic, mut payload) = (Vec::new(), Vec::new());
        generator.next(&mut topic, &mut payload);
        (String::from_utf8(topic).expect("ASCII"), payload)
    };
    (0..1_000).map(|_| next()).collect()
}

/// The city knows the devices of `tidegate-lab bench sensors --devices 200`.
#[test]
fn the_set_of_the_city_has_the_first_200_devices() {
    let set = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/flows/models/city-sources.txt");
    let set = fs::read_to_string(set).expect("an example");
    let set: BTreeSet<_> = set.lines().collect();
    let mut generator = Generator::new(Workload::City, 200, 1);
    let mut sources = BTreeSet::new();
    for _ in 0..2_000 {
        let mut payload = Vec::new();
        generator.next(&mut Vec::new(), &mut payload);
        let payload = String::from_utf8(payload).expect("ASCII");
        sources.insert(payload.split(',').nth(1).expect("nine fields").to_owned());
    }
    assert_eq!(sources.len(), 200);
    assert!(sources.iter().all(|source| set.contains(&**source)));
    assert_eq!(set.len(), 203, "those, and three of RIoTBench's");
}

/// A node's output for the example applications is that of their flows for the same messages, one after the other.
#[test]
fn the_applications_run_in_a_node() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/flows");
    for (name, shards) in [("city", 2), ("taxi", 1), ("grid", 2), ("fit", 1), ("oil", 2)] {
        let file = examples.join(format!("{name}.toml"));
        let messages = messages(name);
        let mut expected: Vec<(String, Vec<u8>)> = Vec::new();
        for (spec, models) in FlowFile::read(&file, None).expect("an example").flows {
            let mut flow = Flow::compile(&spec, &models).expect("an example");
            let mut output = Output::new();
            // A later time than that of any message.
            let now = Instant::from_millis(4_000_000_000_000);
            for (topic, payload) in &messages {
                assert!(flow.matches(topic), "{name}: {topic}");
                flow.run(now, &[Message { topic, payload }], &mut output);
                expected.extend(output.emissions().map(|emission| {
                    let payload = match emission.payload {
                        EmittedPayload::Made(made) => made.to_vec(),
                        EmittedPayload::Original(_) => payload.clone(),
                    };
                    (emission.topic.to_owned(), payload)
                }));
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let node = Node::start(shards, &file, &folder.path().join("state"));
        let mut subscriber = node.subscriber(&["alarm/#", "dead/#", "city/+/airquality", "end"]);
        let mut client = node.client("devices");
        for (topic, payload) in &messages {
            publish(&mut client, topic, payload);
        }
        publish(&mut client, "end", b"");
        let mut found = Vec::new();
        loop {
            let message = next(&mut subscriber);
            if message.topic == "end" {
                break;
            }
            found.push((message.topic, message.payload));
        }
        let total = node.flows.stats().iter().map(|stats| stats.2.messages).max();
        assert_eq!(total, Some(1_000), "{name}");
        expected.sort();
        found.sort();
        assert_eq!(found.len(), expected.len(), "{name}");
        assert_eq!(found, expected, "{name}");
        let is_alarm = |(topic, _): &(String, Vec<u8>)| topic.starts_with("alarm/");
        assert!(found.iter().any(is_alarm), "{name}: nothing was found");
    }
}

//! Uplinks between two running nodes: messages published at one come out at the other, whichever process is killed in
//! between.

use std::{
    collections::{HashMap, HashSet},
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, Message, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::{
    poll::poll,
    program::{LONGEST, Program, options_of},
    spill::{bytes_on_disk, told},
};

pub(crate) const LISTENER: &str = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
const NAME: &str = "tidegate-id";
/// Says which nodes a message passed.
const PASSED: &str = "tidegate-bridge";

/// Two folders with certificates of one site, and where the upper node's links go.
pub(crate) struct Site {
    pub(crate) edge: TempDir,
    pub(crate) core: TempDir,
    pub(crate) link: SocketAddr,
}

impl Site {
    pub(crate) fn new() -> Self {
        let [edge, core] = ["edge", "core"].map(|_| tempfile::tempdir().expect("a folder"));
        let nodes = ["edge", "core"].map(str::to_owned).to_vec();
        let at_edge = edge.path().join("data/pki");
        pki::init(&at_edge, &InitRequest { nodes, ..InitRequest::default() })
            .expect("certificates");
        copy(&at_edge, &core.path().join("data/pki"));
        let link = free_address();
        let conf = |folder: &TempDir, text: &str| {
            let conf = folder.path().join("conf.d");
            fs::create_dir(&conf).expect("a folder");
            fs::write(conf.join("site.toml"), text).expect("a file");
        };
        conf(&edge, "[node]\nname = \"edge\"\n");
        conf(&core, &format!("[node]\nname = \"core\"\n[link]\nlisten = \"{link}\"\n"));
        Self { edge, core, link }
    }

    pub(crate) fn uplink(&self, more: &str) -> String {
        format!(
            "{LISTENER}[uplink.plant]\nto = \"{}\"\ntopics = \"site/#\"\ncritical = \"site/alarm/#\"\n\
             reconnect_backoff_max = \"500ms\"\n{more}\n",
            self.link
        )
    }
}

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("it is a folder") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

/// An address that is free for UDP and TCP.
pub(crate) fn free_address() -> SocketAddr {
    for _ in 0..16 {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let address = udp.local_addr().expect("its address");
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port is free for both");
}

/// Once its uplink takes messages.
pub(crate) fn carrying(node: Program) -> Program {
    node.line_with("uplink takes messages");
    node
}

fn subscriber(at: &Program, filter: &str) -> Client {
    let options = Options {
        client_id: "reader".to_owned(),
        clean_start: false,
        session_expiry: Some(3600),
        ..options_of(at.address("main"))
    };
    let mut client = Client::connect(options).expect("a connection");
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

pub(crate) fn publisher(at: &Program) -> Client {
    Client::connect(options_of(at.address("main"))).expect("a connection")
}

pub(crate) fn message<'a>(topic: &'a str, payload: &'a [u8]) -> Outgoing<'a> {
    Outgoing { topic, payload, qos: QoS::AtLeastOnce, ..Outgoing::default() }
}

/// Bytes that the uplink has read and were not acknowledged, once they are as many as that.
fn wait_for_held_bytes(at: &Program, bytes_min: u64) {
    const STATE: &str = "$SYS/broker/uplink/plant/state";
    let mut watcher = publisher(at);
    let filter = SubscribeFilter {
        filter: STATE.to_owned(),
        maximum_qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: true,
        retain_handling: RetainHandling::Send,
    };
    watcher.subscribe(&[filter]).expect("a subscription");
    let held = poll(LONGEST, || {
        let state: serde_json::Value =
            serde_json::from_slice(&next(&mut watcher).payload).expect("JSON");
        let held = state["held_bytes"].as_u64().expect("a number");
        (held >= bytes_min).then_some(held)
    });
    assert!(held.is_some(), "fewer than {bytes_min} bytes are held");
}

/// The next message, which must come.
pub(crate) fn next(client: &mut Client) -> Message {
    client.receive(LONGEST).expect("a connection").expect("a message comes")
}

fn name_of(message: &Message) -> &str {
    let found = message.user_properties.iter().find(|(name, _)| name == NAME);
    &found.unwrap_or_else(|| panic!("{message:?} has no name")).1
}

#[test]
fn messages_come_out_as_they_went_in() {
    for transport in ["quic", "tcp"] {
        assert_the_same_comes_out(&format!("transport = \"{transport}\""));
    }
}

#[test]
fn messages_come_out_as_they_went_in_where_batches_are_in_columns() {
    for compression in ["none", "zstd:1", "zstd-stream:3"] {
        let keys = format!("columns = true\ncompression = \"{compression}\"");
        assert_the_same_comes_out(&keys);
        assert_rows_come_out(&keys);
    }
}

/// Messages that differ in every property.
fn assert_the_same_comes_out(keys: &str) {
    let site = Site::new();
    let uplink = site.uplink(keys);
    let core = Program::start_in(site.core, LISTENER);
    let edge = carrying(Program::start_in(site.edge, &uplink));
    let mut reader = subscriber(&core, "#");
    let mut writer = publisher(&edge);
    let properties = [("unit".to_owned(), "°C".to_owned())];
    let binary: Vec<u8> = (0..=255).collect();
    let large = vec![b'x'; 300_000];
    let sent = [
        message("site/1/t", b"21.5,ok"),
        message("site/1/t", b"21.6,ok"),
        message("site/binary", &binary),
        message("site/empty", b""),
        message("site/large", &large),
        Outgoing { retain: true, ..message("site/kept", b"1") },
        Outgoing { message_expiry: Some(600), ..message("site/expiring", b"2") },
        Outgoing { user_properties: &properties, ..message("site/unit", b"3") },
        Outgoing { qos: QoS::AtMostOnce, ..message("site/once", b"4") },
        Outgoing { qos: QoS::ExactlyOnce, ..message("site/exact", b"5") },
        message("elsewhere", b"not carried"),
        message("site/alarm/1", b"hot"),
        message("site/alarm/long", &large),
    ];
    for one in &sent {
        writer.publish(one).expect("it is taken");
    }
    let mut came = HashMap::new();
    for _ in 0..sent.len() - 1 {
        let one = next(&mut reader);
        if one.topic == "site/1/t" && one.payload == b"21.5,ok" {
            continue;
        }
        assert!(came.insert(one.topic.clone(), one).is_none(), "{keys}");
    }
    assert_eq!(reader.receive(Duration::from_millis(200)).expect("a connection"), None);
    for one in &sent[1..] {
        let Some(found) = came.get(one.topic) else {
            assert_eq!(one.topic, "elsewhere");
            continue;
        };
        assert_eq!(found.payload, one.payload, "{}", one.topic);
        assert_eq!(found.retain, one.retain, "{}", one.topic);
        // QoS 2 is carried as 1.
        assert_eq!(found.qos, one.qos.min(QoS::AtLeastOnce), "{}", one.topic);
        assert_eq!(found.message_expiry.is_some(), one.message_expiry.is_some());
        let others: Vec<_> = found
            .user_properties
            .iter()
            .filter(|(name, _)| name != NAME && name != PASSED)
            .collect();
        assert!(others.iter().copied().eq(one.user_properties), "{}", one.topic);
        assert!(name_of(found).starts_with("edge/plant/"), "{found:?}");
    }
    // A later subscriber finds the retained messages.
    let mut late = publisher(&core);
    let filter = SubscribeFilter {
        filter: "site/kept".to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    late.subscribe(&[filter]).expect("a subscription");
    assert_eq!(next(&mut late).payload, b"1");
}

/// Rows of which many stand in one batch, so that there are columns: each as it went in, once, in order of its topic.
fn assert_rows_come_out(keys: &str) {
    const COUNT: u32 = 3_000;
    // The last field is as long as the number says, so that columns are of another length than the rows.
    let row = |number: u32| {
        let (seconds, celsius) = (1_700_000_000 + number, 20 + number % 7);
        let rest = "x".repeat(number as usize % 5);
        format!("{seconds},{celsius}.{},{number},ok{rest}", number % 10)
    };
    let site = Site::new();
    let uplink = site.uplink(keys);
    let core = Program::start_in(site.core, LISTENER);
    let edge = carrying(Program::start_in(site.edge, &uplink));
    let mut reader = subscriber(&core, "site/#");
    let mut writer = publisher(&edge);
    for number in 0..COUNT {
        writer
            .publish(&message(&InTurn::topic(number), row(number).as_bytes()))
            .expect("it is taken");
    }
    let mut came = InTurn::default();
    for _ in 0..COUNT {
        let one = next(&mut reader);
        let text = String::from_utf8(one.payload).expect("text");
        let number = text.split(',').nth(2).and_then(|n| n.parse().ok()).expect("a number");
        assert_eq!(text, row(number), "{keys}");
        came.take(&one.topic, number);
    }
    assert_eq!(reader.receive(Duration::from_millis(200)).expect("a connection"), None);
}

/// How many came of the numbers from 0 on that went out on ten topics in turn.
#[derive(Default)]
struct InTurn([u32; 10]);

impl InTurn {
    fn topic(number: u32) -> String {
        format!("site/{}/n", number % 10)
    }

    /// The next one of its topic, none left out and none twice.
    fn take(&mut self, topic: &str, number: u32) {
        assert_eq!(topic, Self::topic(number));
        let count = &mut self.0[number as usize % 10];
        assert_eq!(number, *count * 10 + number % 10, "{topic}");
        *count += 1;
    }
}

/// Publishes numbers on ten topics, and counts what comes at the other end by topic.
struct Load {
    sent: u32,
    /// Of each topic the numbers that came, and the name that each came with.
    came: HashMap<String, Vec<(u32, String)>>,
}

impl Load {
    fn publish(&mut self, writer: &mut Client, count: u32) {
        for _ in 0..count {
            let topic = format!("site/{}/n", self.sent % 10);
            let payload = format!("{},{},ok", 1_700_000_000 + self.sent, self.sent);
            writer.publish(&message(&topic, payload.as_bytes())).expect("it is taken");
            self.sent += 1;
        }
    }

    fn read(&mut self, reader: &mut Client, wait: Duration) {
        while let Ok(Some(one)) = reader.receive(wait) {
            let text = String::from_utf8(one.payload.clone()).expect("text");
            let number = text.split(',').nth(1).and_then(|n| n.parse().ok()).expect("a number");
            let name = name_of(&one).to_owned();
            self.came.entry(one.topic).or_default().push((number, name));
        }
    }

    /// The numbers that came, each once by its name, in order of each topic.
    fn numbers(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for came in self.came.values() {
            let mut names = HashSet::new();
            let once: Vec<u32> =
                came.iter().filter(|(_, name)| names.insert(name)).map(|(n, _)| *n).collect();
            assert!(once.is_sorted(), "order of a topic: {once:?}");
            all.extend(once);
        }
        all.sort_unstable();
        all
    }

    fn has_all(&self) -> bool {
        self.came.values().map(Vec::len).sum::<usize>() >= self.sent as usize
            && self.numbers().len() >= self.sent as usize
    }
}

#[test]
fn nothing_is_lost_when_the_upper_node_is_killed() {
    let site = Site::new();
    let durable = format!("[mqtt]\ndurability = \"page\"\n{LISTENER}");
    let uplink = site.uplink("");
    let mut core = Program::start_in(site.core, &durable);
    let edge = carrying(Program::start_in(site.edge, &uplink));
    let mut load = Load { sent: 0, came: HashMap::new() };
    let mut writer = publisher(&edge);
    let mut reader = subscriber(&core, "site/#");
    for _ in 0..2 {
        load.publish(&mut writer, 500);
        load.read(&mut reader, Duration::from_millis(20));
        let folder = core.kill();
        load.publish(&mut writer, 500);
        core = Program::start_in(folder, &durable);
        // Its session is still there.
        reader = subscriber(&core, "site/#");
        load.publish(&mut writer, 200);
    }
    let until = Instant::now() + 2 * LONGEST;
    while !load.has_all() {
        assert!(Instant::now() < until, "{} of {}", load.numbers().len(), load.sent);
        load.read(&mut reader, Duration::from_millis(200));
    }
    assert_eq!(load.numbers(), (0..load.sent).collect::<Vec<_>>(), "each once by its name");
}

#[test]
fn nothing_is_lost_when_the_lower_node_is_killed() {
    let site = Site::new();
    let uplink = format!("[mqtt]\ndurability = \"page\"\n{}", site.uplink(""));
    let core = Program::start_in(site.core, LISTENER);
    let mut edge = carrying(Program::start_in(site.edge, &uplink));
    let mut load = Load { sent: 0, came: HashMap::new() };
    let mut reader = subscriber(&core, "site/#");
    for _ in 0..2 {
        let mut writer = publisher(&edge);
        load.publish(&mut writer, 500);
        load.read(&mut reader, Duration::from_millis(20));
        edge = Program::start_in(edge.kill(), &uplink);
    }
    load.publish(&mut publisher(&edge), 100);
    let until = Instant::now() + 2 * LONGEST;
    let numbers = |load: &Load| {
        let mut numbers: Vec<u32> = load.came.values().flatten().map(|(n, _)| *n).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    while numbers(&load).len() < load.sent as usize {
        assert!(Instant::now() < until, "{} of {}", numbers(&load).len(), load.sent);
        load.read(&mut reader, Duration::from_millis(200));
    }
}

/// Bytes that nothing makes shorter, which begin with their number.
fn noise(number: u32, bytes: usize) -> Vec<u8> {
    let mut state = u64::from(number) + 1;
    let mut noise = number.to_le_bytes().to_vec();
    while noise.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

#[test]
fn what_waits_for_an_upper_node_that_is_away_costs_disk_and_not_memory() {
    const COUNT: u32 = 16_000;
    const BYTES: usize = 8_000;
    const PUBLISHED: u64 = COUNT as u64 * BYTES as u64;
    // Of all messages held in memory, an eighth of what is published.
    const BUDGET: u64 = 16 << 20;
    let site = Site::new();
    let uplink = format!(
        "[mqtt]\ndurability = \"memory\"\npayload_bytes_max = \"16MiB\"\npacket_bytes_max = \"1MiB\"\n\
         sys_interval = \"1s\"\n{}",
        site.uplink("queue_bytes_max = \"4MiB\"\nwindow_bytes = \"1MiB\"\n")
    );
    let upper = format!(
        "[mqtt]\ndurability = \"page\"\npayload_bytes_max = \"512MiB\"\nqueue_bytes_max = \"256MiB\"\n{LISTENER}"
    );
    // The reader there has a session that lasts; then the node is away.
    let core = Program::start_in(site.core, &upper);
    drop(subscriber(&core, "site/#"));
    let folder = core.kill();

    let edge = carrying(Program::start_in(site.edge, &uplink));
    let mut writer = publisher(&edge);
    writer.publish(&message("elsewhere", &noise(0, BYTES))).expect("it is taken");
    let before = edge.resident_bytes();
    for number in 0..COUNT {
        writer
            .publish(&message(&InTurn::topic(number), &noise(number, BYTES)))
            .expect("it is taken");
    }
    // The budget, what is kept for the next message, a place for each that is on disk, and what is not of messages.
    let grown = edge.resident_bytes().saturating_sub(before);
    assert!(grown < PUBLISHED / 2, "{grown} of {PUBLISHED}");
    let most = told(&edge, "payload/bytes/maximum", |bytes| bytes > 1 << 20);
    assert!(most <= BUDGET, "{most}");
    told(&edge, "spill/messages", |count| count > u64::from(COUNT) * 3 / 4);
    let on_disk = bytes_on_disk(&edge);
    assert!(on_disk > PUBLISHED * 3 / 4, "{on_disk}");

    let core = Program::start_in(folder, &upper);
    let mut reader = subscriber(&core, "site/#");
    let mut came = InTurn::default();
    for _ in 0..COUNT {
        let one = next(&mut reader);
        let (start, _) = one.payload.split_first_chunk().expect("a number");
        let number = u32::from_le_bytes(*start);
        assert!(one.payload == noise(number, BYTES), "{number} is another one");
        came.take(&one.topic, number);
    }
    assert_eq!(reader.receive(Duration::from_millis(200)).expect("a connection"), None);
    // The lower node has let go of all of it, and lost none.
    told(&edge, "spill/bytes", |bytes| bytes <= 16 << 20);
    assert_eq!(told(&edge, "publish/messages/dropped", |_| true), 0);
    let most = told(&edge, "payload/bytes/maximum", |_| true);
    assert!(most <= BUDGET, "{most}");
}

#[test]
fn the_rules_of_the_upper_node_decide() {
    let site = Site::new();
    let rules = site.core.path().join("roles");
    let text = "[role.plant]\npublish = [\"site/open/#\"]\n[node.edge]\nroles = [\"plant\"]\n\
                [role.reader]\nsubscribe = [\"#\"]\n[anonymous]\nroles = [\"reader\"]\n";
    fs::write(&rules, text).expect("a file");
    let uplink = site.uplink("");
    let core = Program::start_in(
        site.core,
        &format!("[auth]\nroles_file = {rules:?}\n[mqtt]\nallow_anonymous = true\n{LISTENER}"),
    );
    let edge = carrying(Program::start_in(site.edge, &uplink));
    let mut reader = subscriber(&core, "#");
    let mut writer = publisher(&edge);
    for topic in ["site/closed/1", "site/open/1", "site/alarm/1", "site/open/2"] {
        writer.publish(&message(topic, b"1")).expect("it is taken");
    }
    assert_eq!(next(&mut reader).topic, "site/open/1");
    assert_eq!(next(&mut reader).topic, "site/open/2");
    core.line_with("message not published");
}

#[test]
fn messages_too_large_for_the_upper_node_are_named_there_and_hold_up_nothing() {
    let site = Site::new();
    let uplink = site.uplink("");
    let small = "[mqtt]\npayload_bytes_max = \"1MiB\"\npacket_bytes_max = \"512KiB\"\n";
    let core = Program::start_in(site.core, &format!("{small}{LISTENER}"));
    let edge = carrying(Program::start_in(site.edge, &uplink));
    let mut reader = subscriber(&core, "site/#");
    let mut writer = publisher(&edge);
    let huge = vec![b'x'; 2 << 20];
    for lane in ["site/data", "site/alarm"] {
        for (topic, payload) in [("before", &b"1"[..]), ("huge", &huge[..]), ("behind", &b"2"[..])]
        {
            writer.publish(&message(&format!("{lane}/{topic}"), payload)).expect("it is taken");
        }
        assert_eq!(next(&mut reader).topic, format!("{lane}/before"));
        assert_eq!(next(&mut reader).topic, format!("{lane}/behind"));
    }
    let line = core.line_with("refused for good");
    assert!(line.contains("site/data/huge") && line.contains("2097152"), "{line}");
}

#[test]
fn an_uplink_comes_and_goes_by_a_reload() {
    let site = Site::new();
    let uplink = site.uplink("");
    let core = Program::start_in(site.core, LISTENER);
    let edge = Program::start_in(site.edge, LISTENER);
    let mut reader = subscriber(&core, "#");
    let mut writer = publisher(&edge);
    writer.publish(&message("site/a", b"before")).expect("it is taken");
    edge.reload(&uplink);
    edge.line_with("uplink up");
    writer.publish(&message("site/a", b"carried")).expect("it is taken");
    assert_eq!(next(&mut reader).payload, b"carried");
    // A wrong file changes nothing.
    edge.reload(&uplink.replace("site/#", "site/#/x"));
    edge.line_with("stay as they were");
    writer.publish(&message("site/a", b"still")).expect("it is taken");
    assert_eq!(next(&mut reader).payload, b"still");
    // Other topics: the former ones are no longer carried, although the session is the same.
    edge.reload(&uplink.replace("\"site/#\"", "\"other/#\""));
    // The new link may come before the end of the former one is seen.
    core.line_with_any(&["uplink no longer served", "a newer link of the uplink takes over"]);
    edge.line_with("uplink up");
    writer.publish(&message("site/a", b"not any more")).expect("it is taken");
    writer.publish(&message("other/a", b"now")).expect("it is taken");
    assert_eq!(next(&mut reader).payload, b"now");
    edge.reload(LISTENER);
    edge.line_with("uplink started, stopped");
    core.line_with("uplink no longer served");
    writer.publish(&message("site/a", b"after")).expect("it is taken");
    assert_eq!(reader.receive(Duration::from_millis(500)).expect("a connection"), None);
}

#[test]
fn nothing_is_lost_when_other_topics_become_critical_while_messages_wait() {
    const ALARMS: &str = "critical = \"site/alarm/#\"\n";
    const OTHERS: &str = "critical = \"site/1/#\"\n";
    for (before, after) in [("", ALARMS), (ALARMS, OTHERS), (ALARMS, ""), (ALARMS, ALARMS)] {
        for restarts in 0..=2 {
            assert_all_comes_out(before, after, restarts);
        }
    }
}

/// Messages that wait at the lower node when its uplink gets other settings: by a reload, by a restart, or by two, of which the second
/// interrupts the first.
fn assert_all_comes_out(before: &str, after: &str, restarts: u32) {
    const COUNT: u32 = 300;
    const LARGE_BYTES: usize = 12_000;
    let case = format!("{before:?} to {after:?}, restarts: {restarts}");
    let site = Site::new();
    let durable = format!("[mqtt]\ndurability = \"page\"\n{LISTENER}");
    let changes = before != after;
    let [before, after] = [before, after].map(|critical| {
        let uplink = site.uplink("").replace("critical = \"site/alarm/#\"\n", critical);
        format!("[mqtt]\ndurability = \"page\"\n{uplink}")
    });
    // The reader there has a session that lasts; then the node is away.
    let core = Program::start_in(site.core, &durable);
    drop(subscriber(&core, "site/#"));
    let folder = core.kill();
    let publish = |edge: &Program, numbers: Range<u32>| {
        let mut writer = publisher(edge);
        for number in numbers {
            let topic = ["site/alarm/1", "site/1/n"][number as usize % 2];
            // Some wait among the large ones.
            let bytes = if number % 5 == 0 { LARGE_BYTES } else { 8 };
            writer.publish(&message(topic, &noise(number, bytes))).expect("it is taken");
        }
    };
    let mut edge = carrying(Program::start_in(site.edge, &before));
    publish(&edge, 0..COUNT);
    if restarts > 0 {
        edge = carrying(Program::start_in(edge.kill(), &after));
    } else if changes {
        edge.reload(&after);
        edge.line_with("uplink takes messages");
    }
    publish(&edge, COUNT..2 * COUNT);
    if restarts > 1 {
        // All that waits is read, and nothing of it acknowledged.
        wait_for_held_bytes(&edge, u64::from(2 * COUNT / 5) * LARGE_BYTES as u64);
        edge = carrying(Program::start_in(edge.kill(), &after));
    }

    let core = Program::start_in(folder, &durable);
    let mut reader = subscriber(&core, "site/#");
    let (mut came, mut again) = (HashSet::new(), 0);
    let until = Instant::now() + 2 * LONGEST;
    while came.len() < 2 * COUNT as usize {
        assert!(Instant::now() < until, "{} of {}, {case}", came.len(), 2 * COUNT);
        if let Some(one) = reader.receive(Duration::from_millis(200)).expect("a connection") {
            again += usize::from(!came.insert(one.payload));
        }
    }
    // Once all earlier messages were read, each comes once.
    let mut writer = publisher(&edge);
    for try_number in 0.. {
        let payload = format!("later {try_number}");
        writer.publish(&message("site/alarm/1", payload.as_bytes())).expect("it is taken");
        let mut count = 0;
        // The first is waited for, a second is not.
        let patience = |count| if count == 0 { LONGEST } else { Duration::from_millis(500) };
        while let Some(one) = reader.receive(patience(count)).expect("a connection") {
            count += usize::from(one.payload == payload.as_bytes());
            again += usize::from(came.contains(&one.payload));
        }
        assert!((1..=2).contains(&count), "{payload} came {count} times, {case}");
        if count == 1 {
            break;
        }
        assert!(Instant::now() < until, "all comes twice, {case}");
    }
    assert!(changes || again == 0, "{again} came twice, {case}");
}

#[test]
fn alarms_pass_batches_that_the_upper_broker_does_not_take() {
    const DATA: usize = 1200;
    const ALARMS: usize = 2000;
    let site = Site::new();
    let uplink = site.uplink(
        "batch_bytes = \"1MiB\"\nwindow_bytes = \"64MiB\"\nflight_bytes = \"32MiB\"\n\
         queue_bytes_max = \"256MiB\"\n",
    );
    let small = "[mqtt]\noverflow = \"block-publisher\"\nqueue_bytes_max = \"256KiB\"\n";
    let core = Program::start_in(site.core, &format!("{small}{LISTENER}"));
    let edge = carrying(Program::start_in(site.edge, &uplink));
    let subscribed = |client_id: &str, filter: &str| {
        let options =
            Options { client_id: client_id.to_owned(), ..options_of(core.address("main")) };
        let mut client = Client::connect(options).expect("a connection");
        let filter = SubscribeFilter {
            filter: filter.to_owned(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        client.subscribe(&[filter]).expect("a subscription");
        client
    };
    // It is not read until the alarms have come: the upper broker takes no more of it.
    let mut archive = subscribed("archive", "site/data/#");
    let mut guard = subscribed("guard", "site/alarm/#");
    let mut writer = publisher(&edge);
    let mut noise = vec![0; 60_000];
    let mut state = 1_u64;
    for number in 0..DATA {
        for word in noise.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
        noise[..8].copy_from_slice(&number.to_le_bytes());
        writer.publish(&message("site/data/1", &noise)).expect("it is taken");
    }
    for number in 0..ALARMS {
        let payload = number.to_string();
        writer.publish(&message("site/alarm/1", payload.as_bytes())).expect("it is taken");
    }
    for number in 0..ALARMS {
        assert_eq!(next(&mut guard).payload, number.to_string().as_bytes());
    }
    for number in 0..DATA {
        assert_eq!(next(&mut archive).payload[..8], number.to_le_bytes());
    }
}

#[test]
fn an_upper_node_keeps_no_more_than_it_may_and_carries_all_the_same() {
    const TOPICS: u32 = 15_000;
    let site = Site::new();
    // It asks for far more than there is.
    let uplink = site.uplink("topics_max = 16777216\nstate_bytes = \"8GiB\"");
    let another = uplink.split_once("[uplink.plant]").expect("it is there").1;
    let room = "[link]\nuplink_bytes_max = \"1MiB\"\n";
    fs::write(site.core.path().join("conf.d/room.toml"), room).expect("a file");
    let core = Program::start_in(site.core, LISTENER);
    let edge = carrying(Program::start_in(site.edge, &uplink));
    let line = edge.line_with("uplink up");
    assert!(line.contains("plant"), "{line}");
    let mut reader = subscriber(&core, "site/#");
    let mut writer = publisher(&edge);
    let mut came = HashMap::new();
    for round in 0..2_u32 {
        // Far more topics than a megabyte of state tells apart.
        for number in 0..TOPICS {
            let topic = format!("site/{number}/temperature/of/the/hall");
            let payload = format!("{round},{number}");
            let qos = QoS::AtLeastOnce;
            let one =
                Outgoing { topic: &topic, payload: payload.as_bytes(), qos, ..Outgoing::default() };
            writer.publish(&one).expect("it is taken");
        }
        for _ in 0..TOPICS {
            let one = next(&mut reader);
            let text = String::from_utf8(one.payload).expect("text");
            let (of_round, number) = text.split_once(',').expect("two numbers");
            assert_eq!(one.topic, format!("site/{number}/temperature/of/the/hall"));
            assert_eq!(of_round, round.to_string());
            *came.entry(one.topic).or_insert(0) += 1;
        }
    }
    assert!(came.len() == TOPICS as usize && came.values().all(|times| *times == 2));
    let mut watcher = subscriber(&edge, "$SYS/broker/uplink/plant/state");
    // Said every five seconds.
    let evictions = |watcher: &mut Client| {
        let said = next(watcher).payload;
        let state: serde_json::Value = serde_json::from_slice(&said).expect("JSON");
        state["evictions"].as_u64().expect("a number")
    };
    let until = Instant::now() + LONGEST;
    while evictions(&mut watcher) <= u64::from(TOPICS) {
        assert!(Instant::now() < until, "nothing was forgotten");
    }
    // There is nothing left for another one, which is reported.
    edge.reload(&format!("{uplink}[uplink.another]{another}"));
    let line = edge.line_with("uplink down");
    assert!(line.contains("link.uplink_bytes_max") && line.contains("another"), "{line}");
}

#[test]
fn a_node_of_another_site_is_told_that_it_is_one() {
    let site = Site::new();
    let stranger = tempfile::tempdir().expect("a folder");
    pki::init(&stranger.path().join("data/pki"), &InitRequest::default()).expect("certificates");
    let uplink = site.uplink("");
    let core = Program::start_in(site.core, LISTENER);
    let edge = Program::start_in(stranger, &uplink);
    let line = edge.line_with("uplink down");
    assert!(line.contains("identity.refused"), "{line}");
    core.line_with("peer refused");
}

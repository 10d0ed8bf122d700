//! Many nodes as one: what is published at one is received at each, whichever process is killed in between.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    process::Command,
    time::Duration,
};

use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, ClientError, Message, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};

use crate::{
    clients::passwd,
    poll::poll,
    program::{LONGEST, Program, options_of, signal},
    uplink::{copy, free_address, message, next, publisher},
};

pub(crate) const MQTT: &str =
    "[mqtt]\ndurability = \"page\"\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";

/// The folders of a site's nodes, by name, and their links; each has the first one as its seed.
pub(crate) struct Site {
    pub(crate) folders: BTreeMap<String, TempDir>,
    links: BTreeMap<String, SocketAddr>,
}

impl Site {
    pub(crate) fn new(names: &[&str]) -> Self {
        let nodes: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = tempfile::tempdir().expect("a folder");
        pki::init(&made.path().join("pki"), &InitRequest { nodes, ..InitRequest::default() })
            .expect("certificates");
        let links: BTreeMap<String, SocketAddr> =
            names.iter().map(|name| ((*name).to_owned(), free_address())).collect();
        let seed = links[names[0]];
        let folder = |name: &str| {
            let folder = tempfile::tempdir().expect("a folder");
            copy(&made.path().join("pki"), &folder.path().join("data/pki"));
            let conf = folder.path().join("conf.d");
            fs::create_dir(&conf).expect("a folder");
            let (link, api) = (links[name], free_address());
            let text = format!(
                "[node]\nname = \"{name}\"\napi_listen = \"{api}\"\n[link]\nlisten = \"{link}\"\nreconnect_backoff_max = \"500ms\"\n\
                 [fabric]\nenabled = true\nseeds = \"{seed}\"\n"
            );
            fs::write(conf.join("site.toml"), text).expect("a file");
            (name.to_owned(), folder)
        };
        Self { folders: names.iter().map(|name| folder(name)).collect(), links }
    }

    /// The node says no address at which others dial it, as one behind NAT.
    fn hide(&self, name: &str) {
        let file = self.folders[name].path().join("conf.d/site.toml");
        let (text, link) = (fs::read_to_string(&file).expect("a file"), self.links[name]);
        let hidden = text.replace(&link.to_string(), &format!("0.0.0.0:{}", link.port()));
        assert_ne!(hidden, text);
        fs::write(file, hidden).expect("a file");
    }

    /// Another node relays for this one.
    fn relay(&self, name: &str, relay: &str) {
        let file = self.folders[name].path().join("conf.d/site.toml");
        let text = fs::read_to_string(&file).expect("a file");
        fs::write(file, format!("{text}via = {relay:?}\n")).expect("a file");
    }

    fn start(&mut self, name: &str) -> Program {
        self.start_with(name, MQTT)
    }

    pub(crate) fn start_with(&mut self, name: &str, mqtt: &str) -> Program {
        Program::start_in(self.folders.remove(name).expect("it does not run"), mqtt)
    }
}

/// A command of the program with the configuration of a node; what it prints.
fn tidegate(node: &Program, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("--config").arg(node.path("tidegate.toml")).args(arguments);
    let output = command.output().expect("the program");
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).expect("text")),
        false => Err(String::from_utf8(output.stderr).expect("text")),
    }
}

/// Once a node has links to so many others that are all here.
pub(crate) fn linked(node: &Program, others: usize) {
    let found = poll(LONGEST, || {
        let said = tidegate(node, &["fabric", "status", "-o", "json"]).ok()?;
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        (said["linked"] == others && said["doubted"] == 0).then_some(())
    });
    assert!(found.is_some(), "{:?}", tidegate(node, &["fabric", "members"]));
}

/// A client of that node alone: one of the same name at another node is another client.
fn session(at: &Program, name: &str) -> Client {
    let folder = at.path("");
    let node = folder.file_name().and_then(|name| name.to_str()).expect("its folder has a name");
    roaming(at, &format!("{name}{node}"))
}

/// A client that may connect at other nodes.
fn roaming(at: &Program, client_id: &str) -> Client {
    Client::connect(Options {
        client_id: client_id.to_owned(),
        clean_start: false,
        session_expiry: Some(3600),
        ..options_of(at.address("main"))
    })
    .expect("a connection")
}

fn filter(text: &str) -> SubscribeFilter {
    SubscribeFilter {
        filter: text.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: true,
        retain_handling: RetainHandling::Send,
    }
}

/// The next messages until each of these texts has come; how many came in all.
fn all_of(client: &mut Client, texts: &BTreeSet<String>) -> usize {
    let (mut missing, mut count) = (texts.clone(), 0);
    while !missing.is_empty() {
        let Message { payload, .. } = next(client);
        missing.remove(&String::from_utf8(payload).expect("text"));
        count += 1;
    }
    count
}

fn texts(prefix: &str, count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

fn publish(client: &mut Client, topic: &str, texts: &BTreeSet<String>) {
    for text in texts {
        client.publish(&message(topic, text.as_bytes())).expect("it is taken");
    }
}

#[test]
fn message_published_at_one_node_is_received_at_all_once_its_subscriber_has_a_suback() {
    let names = ["one", "two", "three"];
    let mut site = Site::new(&names);
    let nodes = names.map(|name| site.start(name));
    nodes.iter().for_each(|node| linked(node, 2));
    let mut readers: Vec<Client> = nodes.iter().map(|node| session(node, "reader")).collect();
    for reader in &mut readers {
        reader.subscribe(&[filter("rooms/+/celsius"), filter("doors/#")]).expect("granted");
    }
    // At once: no message is missed from then on.
    let mut sent = BTreeSet::new();
    for (node, name) in nodes.iter().zip(names) {
        let texts = texts(name, 20);
        publish(&mut publisher(node), "rooms/1/celsius", &texts);
        sent.extend(texts);
    }
    publish(&mut publisher(&nodes[1]), "windows/1", &texts("unwanted", 3));
    for reader in &mut readers {
        assert_eq!(all_of(reader, &sent), sent.len(), "each once");
        assert_eq!(reader.receive(Duration::from_millis(200)).expect("a connection"), None);
    }
    let where_to = tidegate(&nodes[0], &["fabric", "where", "doors/7"]).expect("it is known");
    assert!(names.iter().all(|name| where_to.contains(name)), "{where_to}");
    // A filter that is over costs nothing any more.
    readers[2].unsubscribe(&["rooms/+/celsius"]).expect("granted");
    let is_over = poll(LONGEST, || {
        let said = tidegate(&nodes[0], &["fabric", "where", "rooms/1/celsius"]).ok()?;
        (!said.contains("three")).then_some(())
    });
    assert!(is_over.is_some(), "the filter goes");
}

#[test]
fn nothing_is_lost_whichever_node_is_killed() {
    let names = ["one", "two", "three"];
    let mut site = Site::new(&names);
    let [one, two, three] = names.map(|name| site.start(name));
    [&one, &two, &three].into_iter().for_each(|node| linked(node, 2));
    let mut reader = session(&two, "reader");
    reader.subscribe(&[filter("a/#")]).expect("granted");
    publish(&mut publisher(&one), "a/1", &texts("before", 50));
    assert_eq!(all_of(&mut reader, &texts("before", 50)), 50);
    // The subscriber's node is killed: what is published meanwhile waits at the publisher's.
    drop(reader);
    let folder = two.kill();
    publish(&mut publisher(&one), "a/1", &texts("meanwhile", 200));
    // And so it does where that one is killed as well, before or after it was carried.
    let one_folder = one.kill();
    site.folders.insert("two".to_owned(), folder);
    let two = site.start("two");
    publish(&mut publisher(&three), "a/2", &texts("elsewhere", 50));
    site.folders.insert("one".to_owned(), one_folder);
    let one = site.start("one");
    let mut reader = session(&two, "reader");
    let mut sent = texts("meanwhile", 200);
    sent.extend(texts("elsewhere", 50));
    all_of(&mut reader, &sent);
    [&one, &two, &three].into_iter().for_each(|node| linked(node, 2));
    publish(&mut publisher(&one), "a/3", &texts("after", 50));
    all_of(&mut reader, &texts("after", 50));
}

/// The next messages of any of these until each of these texts has come; how often each came, and how many each client had.
fn all_of_any(
    clients: &mut [Client],
    texts: &BTreeSet<String>,
) -> (BTreeMap<String, usize>, Vec<usize>) {
    let (mut came, mut shares) = (BTreeMap::new(), vec![0; clients.len()]);
    let all_came = poll(LONGEST, || {
        for (client, share) in clients.iter_mut().zip(&mut shares) {
            while let Some(Message { payload, .. }) =
                client.receive(Duration::from_millis(5)).expect("a connection")
            {
                *came.entry(String::from_utf8(payload).expect("text")).or_insert(0) += 1;
                *share += 1;
            }
        }
        texts.iter().all(|text| came.contains_key(text)).then_some(())
    });
    let missing = texts.iter().filter(|text| !came.contains_key(*text)).count();
    assert!(all_came.is_some(), "{missing} of {} have not come, {shares:?}", texts.len());
    (came, shares)
}

#[test]
fn group_over_three_nodes_gets_each_message_once() {
    const EACH: usize = 300;
    let names = ["one", "two", "three"];
    let mut site = Site::new(&names);
    let nodes = names.map(|name| site.start(name));
    nodes.iter().for_each(|node| linked(node, 2));
    let at = [0, 0, 1, 2];
    let mut workers: Vec<Client> = (at.into_iter().zip(["a", "b", "c", "d"]))
        .map(|(node, name)| session(&nodes[node], name))
        .collect();
    for worker in &mut workers {
        worker.subscribe(&[filter("$share/g/jobs/#")]).expect("granted");
    }
    let mut reader = session(&nodes[1], "reader");
    reader.subscribe(&[filter("jobs/#")]).expect("granted");
    let mut sent = BTreeSet::new();
    for (node, name) in nodes.iter().zip(names) {
        let texts = texts(name, EACH);
        publish(&mut publisher(node), "jobs/1", &texts);
        sent.extend(texts);
    }
    let (came, shares) = all_of_any(&mut workers, &sent);
    assert!(came.values().all(|count| *count == 1), "each once over all: {came:?}");
    assert!(shares.iter().all(|share| *share > EACH / 3), "all take part: {shares:?}");
    assert_eq!(all_of(&mut reader, &sent), sent.len(), "each once beside the group");
    for client in workers.iter_mut().chain([&mut reader]) {
        assert_eq!(client.receive(Duration::from_millis(200)).expect("a connection"), None);
    }
}

#[test]
fn group_loses_nothing_when_the_node_of_a_member_is_killed() {
    let names = ["one", "two", "three"];
    let mut site = Site::new(&names);
    let [one, two, three] = names.map(|name| site.start(name));
    [&one, &two, &three].into_iter().for_each(|node| linked(node, 2));
    let [mut killed, mut other] = [&two, &three].map(|node| session(node, "worker"));
    for worker in [&mut killed, &mut other] {
        worker.subscribe(&[filter("$share/g/jobs")]).expect("granted");
    }
    // The one has not taken what it was sent.
    publish(&mut publisher(&one), "jobs", &texts("before", 100));
    drop(killed);
    let folder = two.kill();
    publish(&mut publisher(&one), "jobs", &texts("meanwhile", 100));
    let is_doubted = poll(LONGEST, || {
        let said = tidegate(&one, &["fabric", "status", "-o", "json"]).ok()?;
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        (said["doubted"] == 1).then_some(())
    });
    assert!(is_doubted.is_some(), "{:?}", tidegate(&one, &["fabric", "members"]));
    // From now on all go to the other, and nothing waits for the one.
    publish(&mut publisher(&one), "jobs", &texts("after", 100));
    let mut workers = vec![other];
    let (mut came, _) = all_of_any(&mut workers, &texts("after", 100));
    site.folders.insert("two".to_owned(), folder);
    let two = site.start("two");
    workers.push(session(&two, "worker"));
    let mut rest = texts("before", 100);
    rest.extend(texts("meanwhile", 100));
    rest.retain(|text| !came.contains_key(text));
    came.extend(all_of_any(&mut workers, &rest).0);
    assert_eq!(came.len(), 300);
}

#[test]
fn node_that_no_other_dials_gets_and_gives_messages() {
    let names = ["core", "mast"];
    let mut site = Site::new(&names);
    site.hide("mast");
    let [core, mut mast] = names.map(|name| site.start(name));
    linked(&core, 1);
    let mut readers = [&core, &mast].map(|node| session(node, "reader"));
    for reader in &mut readers {
        reader.subscribe(&[filter("a/#")]).expect("granted");
    }
    publish(&mut publisher(&core), "a/1", &texts("down", 50));
    publish(&mut publisher(&mast), "a/2", &texts("up", 50));
    let all: BTreeSet<String> = texts("down", 50).into_iter().chain(texts("up", 50)).collect();
    for reader in &mut readers {
        assert_eq!(all_of(reader, &all), all.len(), "each once");
    }
    // It is killed: messages wait at the other one until it fetches them.
    drop(readers);
    let folder = mast.kill();
    publish(&mut publisher(&core), "a/3", &texts("meanwhile", 50));
    site.folders.insert("mast".to_owned(), folder);
    mast = site.start("mast");
    // Those that were read and not acknowledged come again.
    all_of(&mut session(&mast, "reader"), &texts("meanwhile", 50));
    let status = tidegate(&core, &["fabric", "status"]).expect("its state");
    assert!(!status.contains("address"), "the other one is reached: {status}");
}

/// Publishes to be retained, with that quality of service; nothing clears the topic.
fn retain(at: &Program, topic: &str, text: &str, qos: QoS) {
    let retained = Outgoing { retain: true, qos, ..message(topic, text.as_bytes()) };
    let mut client = publisher(at);
    client.publish(&retained).expect("it is taken");
    // Behind it, so that the connection does not end before one of QoS 0 has come.
    client.publish(&message("behind", b"")).expect("it is taken");
}

/// Once these are all the values that a node retains below `state`.
fn retains(at: &Program, expected: &[(&str, &str)]) {
    let values = || {
        let mut client = publisher(at);
        client.subscribe(&[filter("state/#")]).expect("granted");
        let mut values = BTreeMap::new();
        while let Some(message) = client.receive(Duration::from_millis(100)).expect("a connection")
        {
            let names = message.user_properties.iter().map(|(name, _)| &**name);
            assert!(names.into_iter().all(|name| name != "tidegate-retained"), "{message:?}");
            values.insert(message.topic, String::from_utf8(message.payload).expect("text"));
        }
        values
    };
    let of = |(topic, text): &(&str, &str)| ((*topic).to_owned(), (*text).to_owned());
    let expected: BTreeMap<String, String> = expected.iter().map(of).collect();
    let found = poll(LONGEST, || (values() == expected).then_some(()));
    assert!(found.is_some(), "{:?} of {expected:?}", values());
}

#[test]
fn retained_values_of_two_nodes_are_the_newer_ones_after_a_cut() {
    use QoS::{AtLeastOnce, AtMostOnce};
    let names = ["one", "two"];
    let mut site = Site::new(&names);
    let [mut one, mut two] = names.map(|name| site.start(name));
    [&one, &two].into_iter().for_each(|node| linked(node, 1));
    for node in [&one, &two] {
        // Their subscriptions stay, so that each node wants what the other one has.
        session(node, "reader").subscribe(&[filter("state/#")]).expect("granted");
    }
    for (topic, text) in [("state/door", "open"), ("state/lamp", "on"), ("state/pump", "on")] {
        retain(&one, topic, text, AtMostOnce);
    }
    let all = [("state/door", "open"), ("state/lamp", "on"), ("state/pump", "on")];
    [&one, &two].into_iter().for_each(|node| retains(node, &all));
    // Each publishes what the other one does not hear of before it has published itself.
    site.folders.insert("one".to_owned(), one.kill());
    retain(&two, "state/door", "of two", AtLeastOnce);
    retain(&two, "state/lamp", "", AtMostOnce);
    retain(&two, "state/pump", "of two", AtMostOnce);
    site.folders.insert("two".to_owned(), two.kill());
    one = site.start("one");
    retain(&one, "state/door", "of one", AtMostOnce);
    retain(&one, "state/pump", "", AtLeastOnce);
    two = site.start("two");
    [&one, &two].into_iter().for_each(|node| retains(node, &[("state/door", "of one")]));
    retain(&two, "state/door", "", AtLeastOnce);
    retain(&one, "state/lamp", "on", AtMostOnce);
    [&one, &two].into_iter().for_each(|node| retains(node, &[("state/lamp", "on")]));
}

#[test]
fn two_nodes_that_do_not_reach_each_other_exchange_messages_by_their_relay() {
    let names = ["core", "left", "right"];
    let mut site = Site::new(&names);
    for leaf in ["left", "right"] {
        site.hide(leaf);
        site.relay(leaf, "core");
    }
    let [mut core, left, right] = names.map(|name| site.start(name));
    linked(&core, 2);
    [&left, &right].into_iter().for_each(|leaf| linked(leaf, 1));
    let mut readers = [&core, &left, &right].map(|node| session(node, "reader"));
    for reader in &mut readers {
        reader.subscribe(&[filter("a/#")]).expect("granted");
    }
    let mut sent = BTreeSet::new();
    for (node, name) in [&core, &left, &right].into_iter().zip(names) {
        let texts = texts(name, 30);
        publish(&mut publisher(node), "a/1", &texts);
        sent.extend(texts);
    }
    for reader in &mut readers {
        assert_eq!(all_of(reader, &sent), sent.len(), "each once");
    }
    let mut workers = [&core, &left, &right].map(|node| session(node, "worker"));
    for worker in &mut workers {
        worker.subscribe(&[filter("$share/g/jobs")]).expect("granted");
    }
    publish(&mut publisher(&left), "jobs", &texts("job", 60));
    let (came, _) = all_of_any(&mut workers, &texts("job", 60));
    assert!(came.values().all(|count| *count == 1), "each once over all: {came:?}");
    let kept = Outgoing { retain: true, ..message("kept/1", b"by left") };
    publisher(&left).publish(&kept).expect("it is taken");
    // The relay is killed: messages wait for it, whoever they are for.
    let [of_core, _left, mut at_right] = readers;
    drop((of_core, workers));
    let folder = core.kill();
    publish(&mut publisher(&left), "a/2", &texts("meanwhile", 50));
    let is_said = poll(LONGEST, || {
        let status = tidegate(&left, &["fabric", "status"]).expect("its state");
        status.contains("member core, is not reached").then_some(())
    });
    assert!(is_said.is_some(), "{:?}", tidegate(&left, &["fabric", "status"]));
    site.folders.insert("core".to_owned(), folder);
    core = site.start("core");
    all_of(&mut at_right, &texts("meanwhile", 50));
    all_of(&mut session(&core, "reader"), &texts("meanwhile", 50));
    // A value that is retained at one leaf comes to the other with its subscription.
    at_right.subscribe(&[filter("kept/#")]).expect("granted");
    all_of(&mut at_right, &BTreeSet::from(["by left".to_owned()]));
}

#[test]
fn subscription_waits_once_for_a_node_that_hangs() {
    let names = ["one", "two"];
    let mut site = Site::new(&names);
    let often = MQTT.replace("[mqtt]", "[mqtt]\nsys_interval = \"1s\"");
    let [one, two] = names.map(|name| site.start_with(name, &often));
    linked(&one, 1);
    let mut reader = session(&one, "reader");
    signal(two.id(), "STOP");
    for number in 0..5 {
        reader.subscribe(&[filter(&format!("a/{number}"))]).expect("granted");
    }
    signal(two.id(), "CONT");
    linked(&one, 1);
    publish(&mut publisher(&two), "a/3", &texts("late", 10));
    assert_eq!(all_of(&mut reader, &texts("late", 10)), 10);
    // All that have waited are counted by the second report from now on.
    let mut watcher = session(&one, "watcher");
    watcher.subscribe(&[filter("$SYS/broker/fabric/suback/missed")]).expect("granted");
    let reports: Vec<Vec<u8>> = (0..3).map(|_| next(&mut watcher).payload).collect();
    assert_eq!(reports[2], b"1", "waits for a member in vain");
}

/// Once a client's connection has ended, since a newer one has its identifier.
fn taken_over(client: &mut Client) {
    let ended = poll(LONGEST, || match client.receive(Duration::from_millis(100)) {
        Ok(_) => None,
        Err(ClientError::Disconnected { reason, .. }) => Some(reason),
        Err(error) => panic!("{error}"),
    });
    assert_eq!(ended, Some(ReasonCode::SESSION_TAKEN_OVER));
}

#[test]
fn client_that_connects_at_another_node_is_taken_over_and_its_session_waits() {
    let names = ["one", "two"];
    let mut site = Site::new(&names);
    let [one, two] = names.map(|name| site.start(name));
    [&one, &two].into_iter().for_each(|node| linked(node, 1));
    let mut at_one = roaming(&one, "roamer");
    at_one.subscribe(&[filter("a/#")]).expect("granted");
    let mut at_two = roaming(&two, "roamer");
    assert!(!at_two.connack().session_present);
    taken_over(&mut at_one);
    at_two.subscribe(&[filter("b/#")]).expect("granted");
    publish(&mut publisher(&one), "a/1", &texts("waits", 5));
    publish(&mut publisher(&one), "b/1", &texts("comes", 5));
    all_of(&mut at_two, &texts("comes", 5));
    // Back again, it has what waited there.
    let mut at_one = roaming(&one, "roamer");
    taken_over(&mut at_two);
    assert!(at_one.connack().session_present);
    all_of(&mut at_one, &texts("waits", 5));
    // One that wants no session of before ends that of the other node, where it is not connected either.
    drop(at_one);
    let clean = Options { client_id: "roamer".to_owned(), ..options_of(two.address("main")) };
    let clean = Client::connect(clean).expect("a connection");
    let is_gone = poll(LONGEST, || {
        let clients = tidegate(&one, &["sessions", "list", "-o", "json"]).ok()?;
        (!clients.contains("roamer")).then_some(())
    });
    assert!(is_gone.is_some(), "{:?}", tidegate(&one, &["sessions", "list"]));
    drop(clean);
}

#[test]
fn nodes_that_were_cut_off_end_the_older_connection_when_they_meet() {
    let names = ["one", "two"];
    let mut site = Site::new(&names);
    let [one, two] = names.map(|name| site.start(name));
    [&one, &two].into_iter().for_each(|node| linked(node, 1));
    let mut older = roaming(&two, "roamer");
    signal(two.id(), "STOP");
    let is_missed = poll(LONGEST, || {
        let members = tidegate(&one, &["fabric", "members"]).expect("a list");
        members.contains("doubted").then_some(())
    });
    assert!(is_missed.is_some(), "{:?}", tidegate(&one, &["fabric", "members"]));
    let mut newer = roaming(&one, "roamer");
    signal(two.id(), "CONT");
    taken_over(&mut older);
    newer.subscribe(&[filter("a/#")]).expect("granted");
    publish(&mut publisher(&two), "a/1", &texts("lives", 5));
    all_of(&mut newer, &texts("lives", 5));
}

#[test]
fn client_identifier_of_two_users_is_named_at_both_nodes_and_both_stay() {
    let names = ["one", "two"];
    let mut site = Site::new(&names);
    let folder = tempfile::tempdir().expect("a folder");
    let users = folder.path().join("users");
    ["ada", "bob"].into_iter().for_each(|user| passwd(&users, &[user], "tide\n"));
    let mqtt = format!(
        "[mqtt]\npassword_file = {users:?}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
    );
    let [one, two] = names.map(|name| site.start_with(name, &mqtt));
    [&one, &two].into_iter().for_each(|node| linked(node, 1));
    let client = |at: &Program, user: &str| {
        poll(LONGEST, || {
            let options = Options {
                client_id: "panel".to_owned(),
                username: Some(user.to_owned()),
                password: Some(b"tide".to_vec()),
                ..options_of(at.address("main"))
            };
            Client::connect(options).ok()
        })
        .expect("a connection")
    };
    let mut of_ada = client(&one, "ada");
    let mut of_bob = client(&two, "bob");
    for node in [&one, &two] {
        let said = poll(LONGEST, || {
            let said = tidegate(node, &["fabric", "status"]).expect("a status");
            said.contains("the client identifier panel is in use here by user").then_some(said)
        });
        assert!(said.is_some(), "{:?}", tidegate(node, &["fabric", "status"]));
    }
    for client in [&mut of_ada, &mut of_bob] {
        assert_eq!(client.receive(Duration::from_millis(200)).expect("it stays"), None);
    }
    // The same user's other connection takes over, once its identifier is free there.
    of_ada.disconnect().expect("a farewell");
    let _newer = client(&one, "bob");
    taken_over(&mut of_bob);
}

#[test]
fn rules_that_differ_between_members_are_shown_with_them() {
    let names = ["one", "two", "three"];
    let mut site = Site::new(&names);
    let folder = tempfile::tempdir().expect("a folder");
    let mqtt = |name: &str, users: &[&str]| {
        let file = folder.path().join(name);
        users.iter().for_each(|user| passwd(&file, &[user], "tide\n"));
        format!(
            "[mqtt]\npassword_file = {file:?}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
        )
    };
    let one = site.start_with("one", &mqtt("one", &["ada", "bob"]));
    let two = site.start_with("two", &mqtt("two", &["ada"]));
    let three = site.start_with("three", &mqtt("three", &["ada", "bob"]));
    [&one, &two, &three].into_iter().for_each(|node| linked(node, 2));
    let said = tidegate(&one, &["fabric", "diff"]).expect("they are compared");
    let expected = "1 rule differs between 3 members\n\nuser bob\n  two: (none)\n  one, three: may log in by password\n";
    assert_eq!(said, expected);
    assert!(!said.contains('$'), "a hash is a secret");
    // A member that hangs is named, and the others are compared.
    signal(two.id(), "STOP");
    let said = tidegate(&one, &["fabric", "diff"]);
    signal(two.id(), "CONT");
    let said = said.expect("the others are compared");
    assert!(said.starts_with("2 members have the same users, rules and roles\n"), "{said}");
    assert!(said.contains("two was not compared: "), "{said}");
}

#[test]
fn members_are_seen_and_forgotten_by_commands() {
    let names = ["one", "two"];
    let mut site = Site::new(&names);
    let [one, two] = names.map(|name| site.start(name));
    [&one, &two].into_iter().for_each(|node| linked(node, 1));
    let error = tidegate(&one, &["fabric", "forget", "two"]).expect_err("it is here");
    assert!(error.contains("is here"), "{error}");
    let link = site.links["two"].to_string();
    let members = tidegate(&one, &["fabric", "members", "-o", "json"]).expect("a list");
    assert!(members.contains(&link), "{members}");
    two.stop();
    let is_forgotten = poll(LONGEST, || tidegate(&one, &["fabric", "forget", "two"]).ok());
    assert!(is_forgotten.is_some(), "{:?}", tidegate(&one, &["fabric", "members"]));
    // Once its own word is on the disk.
    let is_seen = poll(LONGEST, || {
        let members = tidegate(&one, &["fabric", "members"]).expect("a list");
        members.contains("forgotten").then_some(())
    });
    assert!(is_seen.is_some(), "{:?}", tidegate(&one, &["fabric", "members"]));
}

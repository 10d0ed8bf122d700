//! Uplinks between members of a fabric.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tidegate_broker::BrokerConfig;
use tidegate_bus::{SessionConfig, memory};
use tidegate_message::{Action, Authorize, Decision, Identity, IdentityKind, Target};
use tidegate_uplinks::{Fetching, Reach, Topics, UplinkSettings};
use tokio::sync::Semaphore;

use crate::{
    poll_async::poll,
    world::{LONGEST, Node, Running, Serving, Site, name_of},
};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

fn settings(to: &Node, idle_max: Duration) -> UplinkSettings {
    let session = SessionConfig { queue_messages_max: 1 << 20, ..SessionConfig::default() };
    let retry_max = Duration::from_millis(200);
    UplinkSettings { retry_max, ..UplinkSettings::to_member(to.peer(idle_max), &session) }
}

fn at(serving: &Serving) -> Reach {
    Reach::at([&*serving.address.to_string()])
}

/// Two members, of which the first carries to the second.
struct Pair {
    from: Node,
    to: Node,
    serving: Serving,
    running: Running,
}

impl Pair {
    async fn new(topics: &[&str]) -> Self {
        let site = Site::new(&["one", "two"]);
        let (from, to) = (Node::new(&site, "one"), Node::new(&site, "two"));
        let serving = to.serve(ANY).await;
        let running = from.member(settings(&to, NEVER), Topics::fixed(topics), at(&serving));
        running.held(1).await;
        Self { from, to, serving, running }
    }
}

#[tokio::test]
async fn what_is_published_at_one_member_comes_out_once_at_each_other_one_with_its_name() {
    let site = Site::new(&["one", "two", "three"]);
    let nodes = ["one", "two", "three"].map(|name| Node::new(&site, name));
    let mut servings = Vec::new();
    for node in &nodes {
        servings.push(node.serve(ANY).await);
    }
    let mut running = Vec::new();
    for (from, _) in nodes.iter().enumerate() {
        for (to, serving) in servings.iter().enumerate().filter(|(to, _)| *to != from) {
            let settings = settings(&nodes[to], NEVER);
            let uplink = nodes[from].member(settings, Topics::fixed(["#"]), at(serving));
            uplink.held(1).await;
            running.push(uplink);
        }
    }
    let mut readers = Vec::new();
    for node in &nodes {
        readers.push(node.client("reader", &["#"]).await);
    }
    for (number, node) in nodes.iter().enumerate() {
        let mut sensor = node.client("sensor", &[]).await;
        for round in 0..3 {
            sensor.publish("a", &format!("{number}/{round}")).await;
        }
    }
    for (at, reader) in readers.iter_mut().enumerate() {
        let mut names = BTreeSet::new();
        let mut payloads = Vec::new();
        for _ in 0..9 {
            let message = reader.next().await;
            payloads.push(String::from_utf8(message.payload.clone()).expect("a text"));
            if let Some(name) = name_of(&message) {
                assert!(!name.starts_with(nodes[at].name) && name.contains("/$fabric/"), "{name}");
                names.insert(name);
            }
        }
        assert_eq!(names.len(), 6, "those of others have names: {names:?}");
        for number in 0..3 {
            let own = payloads.iter().filter(|payload| payload.starts_with(&format!("{number}/")));
            let expected = [0, 1, 2].map(|round| format!("{number}/{round}"));
            assert!(own.eq(&expected), "each once and in order: {payloads:?}");
        }
    }
    // Messages that one has brought went to no third: the next message is the next that comes.
    let mut sensor = nodes[0].client("last", &[]).await;
    sensor.publish("a", "last").await;
    for reader in &mut readers {
        assert_eq!(reader.next().await.payload, b"last");
    }
}

/// Has a node fetch what another one, which serves there, has for it.
fn fetch(to: &Node, serving: &Serving, from: &Node, from_serving: &Serving) -> Fetching {
    let receivers = serving.receivers.clone();
    let member = from.credentials.identity().node;
    let fetching = Fetching::start(member, receivers, &to.home(), Duration::from_millis(200));
    fetching.reach(at(from_serving));
    fetching
}

#[tokio::test]
async fn a_member_that_cannot_be_dialled_fetches_what_is_for_it() {
    let site = Site::new(&["one", "two", "three"]);
    let [one, two, three] = ["one", "two", "three"].map(|name| Node::new(&site, name));
    let mut one_serves = one.serve(ANY).await;
    let (two_serves, three_serves) = (two.serve(ANY).await, three.serve(ANY).await);
    // No address leads to the second, and none is for the third.
    let idle_max = Duration::from_millis(300);
    let running = one.member(settings(&two, idle_max), Topics::fixed(["a"]), Reach::default());
    running.held(1).await;
    let mut reader = two.client("reader", &["a"]).await;
    let mut sensor = one.client("sensor", &[]).await;
    sensor.publish("a", "waits").await;
    let fetching = fetch(&two, &two_serves, &one, &one_serves);
    assert_eq!(reader.next().await.payload, b"waits");
    for round in 0..3 {
        // It rests in between, and the next one is fetched over another link.
        poll(LONGEST, async || {
            (running.uplink.report().connects > round && !running.uplink.report().up).then_some(())
        })
        .await
        .expect("it rests");
        sensor.publish("a", &round.to_string()).await;
        assert_eq!(reader.next().await.payload, round.to_string().as_bytes());
    }
    // The one that is fetched from starts again.
    let address = one_serves.address;
    one_serves.kill().await;
    sensor.publish("a", "killed").await;
    one_serves = one.serve(address).await;
    assert_eq!(reader.next().await.payload, b"killed");
    // The one that fetches is away for a while.
    drop(fetching);
    poll(LONGEST, async || (!running.visits.is_visited()).then_some(())).await.expect("it is gone");
    sensor.publish("a", "away").await;
    let _fetching = fetch(&two, &two_serves, &one, &one_serves);
    assert_eq!(reader.next().await.payload, b"away");
    // A node for which nothing is here is turned away, and takes nothing from the one that is.
    let _other = fetch(&three, &three_serves, &one, &one_serves);
    sensor.publish("a", "last").await;
    assert_eq!(reader.next().await.payload, b"last");
}

#[tokio::test]
async fn a_group_over_three_members_gets_each_message_once_whatever_link_is_cut() {
    const EACH: usize = 300;
    const FILTER: &str = "$share/g/jobs/+";
    let site = Site::new(&["one", "two", "three"]);
    let nodes = ["one", "two", "three"].map(|name| Node::new(&site, name));
    let mut servings = Vec::new();
    for node in &nodes {
        servings.push(node.serve(ANY).await);
    }
    let mut running = Vec::new();
    for (from, _) in nodes.iter().enumerate() {
        for (to, serving) in servings.iter().enumerate().filter(|(to, _)| *to != from) {
            // The third has no member of the group, and a reader of its own.
            let filters = if to == 2 { ["jobs/#", "other"] } else { [FILTER, "other"] };
            let settings = settings(&nodes[to], NEVER);
            let uplink = nodes[from].member(settings, Topics::fixed(filters), at(serving));
            uplink.held(1).await;
            running.push(uplink);
        }
    }
    let mut reader = nodes[2].client("reader", &["jobs/#"]).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    for node in &nodes[..2] {
        let mut worker = node.client("worker", &[FILTER]).await;
        let tell = tell.clone();
        tasks.spawn(async move {
            loop {
                let message = worker.next().await;
                let _ = tell.send(String::from_utf8(message.payload).expect("a text"));
            }
        });
    }
    for (number, node) in nodes.iter().enumerate() {
        let mut sensor = node.client("sensor", &[]).await;
        for round in 0..EACH {
            sensor.publish("jobs/1", &format!("{number}/{round}")).await;
            if round == EACH / 2 {
                // The links of one go, and what it knew of them.
                let serving = servings.remove(1);
                let address = serving.address;
                serving.kill().await;
                servings.insert(1, nodes[1].serve(address).await);
            }
        }
    }
    let mut came = BTreeMap::<String, usize>::new();
    while came.len() < 3 * EACH {
        let text = tokio::time::timeout(LONGEST, told.recv()).await;
        *came.entry(text.expect("all come").expect("workers go on")).or_default() += 1;
    }
    // A message that a receiver took before it lost its state, and had not said so, comes again, to any of the group.
    let again = came.values().filter(|count| **count > 1).count();
    assert!(again < EACH, "{again} came again");
    let mut seen = BTreeSet::new();
    while seen.len() < 3 * EACH {
        assert!(seen.insert(reader.next().await.payload), "the reader has each once");
    }
}

#[tokio::test]
async fn a_receiver_that_loses_its_state_gets_again_what_it_had_with_one_name() {
    const MESSAGES: usize = 3_000;
    let Pair { from, to, mut serving, running } = Pair::new(&["#"]).await;
    let mut reader = to.client("reader", &["#"]).await;
    let mut sensor = from.client("sensor", &[]).await;
    // Some are always to come when it is killed.
    let ahead = Arc::new(Semaphore::new(600));
    let may_publish = ahead.clone();
    let publishing = tokio::spawn(async move {
        for number in 0..MESSAGES {
            may_publish.acquire().await.expect("it is open").forget();
            sensor.publish("a", &number.to_string()).await;
        }
    });
    let mut names = BTreeMap::<String, BTreeSet<Option<String>>>::new();
    let (mut received, mut kills) = (0, 0);
    while names.len() < MESSAGES {
        let message = reader.next().await;
        let payload = String::from_utf8(message.payload.clone()).expect("a text");
        if !names.contains_key(&payload) {
            ahead.add_permits(1);
        }
        names.entry(payload).or_default().insert(name_of(&message));
        received += 1;
        if received % 500 == 0 && kills < 5 {
            let address = serving.address;
            serving.kill().await;
            serving = to.serve(address).await;
            kills += 1;
        }
    }
    publishing.await.expect("no panic");
    for (payload, names) in names {
        assert!(names.len() == 1 && !names.contains(&None), "{payload}: {names:?}");
    }
    assert!(kills > 0 && running.uplink.report().connects > 1, "it was killed {kills} times");
}

#[tokio::test]
async fn a_sender_that_starts_over_repeats_nothing_to_a_receiver_that_goes_on() {
    let Pair { from, to, serving, mut running } = Pair::new(&["#"]).await;
    let mut reader = to.client("reader", &["#"]).await;
    let mut sensor = from.client("sensor", &[]).await;
    let (mut number, mut came) = (0, 0);
    // Until a message had come whose acknowledgement had not left.
    while serving.receivers.repeated() == 0 {
        assert!(number < 100_000, "no message came twice");
        for _ in 0..100 {
            sensor.publish("a", &number.to_string()).await;
            number += 1;
        }
        // Some come after those that came before.
        for _ in 0..50 {
            assert_eq!(reader.next().await.payload, came.to_string().as_bytes());
            came += 1;
        }
        drop(running);
        running = from.member(settings(&to, NEVER), Topics::fixed(["#"]), at(&serving));
    }
    sensor.publish("a", &number.to_string()).await;
    for expected in came..=number {
        assert_eq!(reader.next().await.payload, expected.to_string().as_bytes());
    }
}

#[tokio::test]
async fn a_link_goes_when_nothing_is_carried_and_comes_with_the_next_message() {
    let site = Site::new(&["one", "two"]);
    let (from, to) = (Node::new(&site, "one"), Node::new(&site, "two"));
    let serving = to.serve(ANY).await;
    let idle_max = Duration::from_millis(20);
    let running = from.member(settings(&to, idle_max), Topics::fixed(["#"]), at(&serving));
    running.held(1).await;
    let mut reader = to.client("reader", &["#"]).await;
    let mut sensor = from.client("sensor", &[]).await;
    for round in 0..3 {
        let report = running.uplink.report();
        assert_eq!((report.up, report.connects), (false, round));
        for half in ["first", "second"] {
            sensor.publish("a", half).await;
            assert_eq!(reader.next().await.payload, half.as_bytes());
        }
        let rests = poll(LONGEST, async || (!running.uplink.report().up).then_some(()));
        rests.await.expect("its link goes");
        // The link may have gone between both.
        if running.uplink.report().connects > round + 1 {
            return;
        }
    }
}

#[tokio::test]
async fn a_member_that_is_away_is_not_dialled_and_at_once_when_it_is_back() {
    let site = Site::new(&["one", "two"]);
    let (from, to) = (Node::new(&site, "one"), Node::new(&site, "two"));
    // After a first try at an address where nothing listens it would wait for minutes.
    let settings = UplinkSettings { retry_max: NEVER, ..settings(&to, NEVER) };
    let running = from.member(settings, Topics::fixed(["#"]), Reach::at(["127.0.0.1:1"]));
    running.held(1).await;
    let mut sensor = from.client("sensor", &[]).await;
    let mut reader = to.client("reader", &["#"]).await;
    sensor.publish("a", "waits").await;
    running.reach.send_replace(Reach::default());
    let serving = to.serve(ANY).await;
    running.reach.send_replace(at(&serving));
    assert_eq!(reader.next().await.payload, b"waits");
    assert_eq!(running.uplink.report().connects, 1);
}

#[tokio::test]
async fn a_member_that_is_forgotten_leaves_no_session_and_nothing_that_waits() {
    let site = Site::new(&["one", "two"]);
    let (from, to) = (Node::new(&site, "one"), Node::new(&site, "two"));
    let running = from.member(settings(&to, NEVER), Topics::fixed(["#"]), Reach::default());
    running.held(1).await;
    let mut sensor = from.client("sensor", &[]).await;
    sensor.publish("a", "waits").await;
    let bus = from.bus();
    let sessions = async || bus.sessions("", 100, |_, who| who.kind == IdentityKind::Node).await;
    assert_eq!(sessions().await.len(), 1, "no topic is critical");
    running.uplink.forget();
    let none = poll(LONGEST, async || sessions().await.is_empty().then_some(()));
    none.await.expect("its session ends");
}

#[tokio::test]
async fn nothing_is_carried_to_another_node_at_the_address_of_a_member() {
    let site = Site::new(&["one", "two", "three"]);
    let [from, to, other] = ["one", "two", "three"].map(|name| Node::new(&site, name));
    let (serving, wrong) = (to.serve(ANY).await, other.serve(ANY).await);
    let running = from.member(settings(&to, NEVER), Topics::fixed(["#"]), at(&wrong));
    running.held(1).await;
    let mut sensor = from.client("sensor", &[]).await;
    let mut reader = to.client("reader", &["#"]).await;
    let mut reader_of_other = other.client("reader", &["#"]).await;
    sensor.publish("a", "for two").await;
    // The second address is tried where the first is another node's.
    let both = [wrong.address.to_string(), serving.address.to_string()];
    running.reach.send_replace(Reach::at(both.iter().map(|one| &**one)));
    assert_eq!(reader.next().await.payload, b"for two");
    let mut own = other.client("own", &[]).await;
    own.publish("a", "its own").await;
    assert_eq!(reader_of_other.next().await.payload, b"its own");
}

/// Rules by which the node `two` may have nothing in `secret`.
#[derive(Debug)]
struct TwoHasNoSecrets;

impl Authorize for TwoHasNoSecrets {
    fn decide(&self, identity: &Identity, _: Action, target: Target<'_>) -> Decision {
        let is_secret = target.to_string().starts_with("secret");
        Decision { allow: &*identity.name != "two" || !is_secret, rule: "no secrets".into() }
    }

    fn generation(&self) -> u64 {
        0
    }

    fn receives_all(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_member_is_sent_what_it_has_a_right_to_and_the_rest_holds_up_nothing() {
    let site = Site::new(&["one", "two"]);
    let broker = memory::Node::new(BrokerConfig::default(), Arc::new(TwoHasNoSecrets));
    let (from, to) = (Node::with(&site, "one", broker), Node::new(&site, "two"));
    let serving = to.serve(ANY).await;
    let critical = vec!["secret/alarm".to_owned(), "alarm".to_owned()];
    let settings = UplinkSettings { critical, ..settings(&to, NEVER) };
    let topics = Topics::fixed(["secret/#", "#"]);
    let running = from.member(settings, topics, at(&serving));
    running.held(1).await;
    let mut reader = to.client("reader", &["#"]).await;
    let mut sensor = from.client("sensor", &[]).await;
    for topic in ["secret/1", "secret/alarm", "open"] {
        sensor.publish(topic, "").await;
    }
    assert_eq!(reader.next_topic().await, "open");
    sensor.publish("alarm", "").await;
    assert_eq!(reader.next_topic().await, "alarm");
}

#[tokio::test]
async fn topics_that_become_critical_wait_for_messages_that_were_parted_before() {
    let site = Site::new(&["one", "two"]);
    let (from, to) = (Node::new(&site, "one"), Node::new(&site, "two"));
    let begin = |critical: &[&str], reach: Reach| {
        let critical = critical.iter().map(|filter| (*filter).to_owned()).collect();
        let settings = UplinkSettings { critical, ..settings(&to, NEVER) };
        from.member(settings, Topics::fixed(["a", "b", "c"]), reach)
    };
    let mut sensor = from.client("sensor", &[]).await;
    let mut reader = to.client("reader", &["#"]).await;
    let running = begin(&["a"], Reach::default());
    running.held(1).await;
    for topic in ["a", "b", "c", "c"] {
        sensor.publish(topic, "waits").await;
    }
    drop(running);
    let serving = to.serve(ANY).await;
    let mut running = begin(&["b"], at(&serving));
    running.held(1).await;
    for topic in ["a", "b"] {
        sensor.publish(topic, "new").await;
    }
    let mut came = BTreeMap::<(String, Vec<u8>), usize>::new();
    for _ in 0..6 {
        let message = reader.next().await;
        *came.entry((message.topic, message.payload)).or_default() += 1;
    }
    let counts: Vec<usize> = came.values().copied().collect();
    assert_eq!(counts, [1, 1, 1, 1, 2], "each comes once: {came:?}");
    // Once nothing waits, a start takes them over.
    for critical in [["b"], ["c"]] {
        let nothing_waits =
            poll(LONGEST, async || (running.uplink.report().held_bytes == 0).then_some(()));
        nothing_waits.await.expect("all is acknowledged");
        drop(running);
        running = begin(&critical, at(&serving));
        running.held(1).await;
        for topic in ["a", "b", "c"] {
            sensor.publish(topic, critical[0]).await;
        }
        let mut topics = Vec::new();
        for _ in 0..3 {
            topics.push(reader.next_topic().await);
        }
        topics.sort();
        assert_eq!(topics, ["a", "b", "c"]);
    }
}

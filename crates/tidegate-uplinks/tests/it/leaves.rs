//! Uplinks by way of a relay.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tidegate_bus::SessionConfig;
use tidegate_uplinks::{Peer, Reach, Topics, UplinkSettings};

use crate::{
    poll_async::poll,
    world::{LONGEST, Node, Running, Serving, Site, name_of},
};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

/// An uplink between a relay and a leaf, once it carries messages.
async fn carry(
    from: &Node,
    to: &Node,
    is_leaf: bool,
    serving: &Serving,
    topics: &[&str],
) -> Running {
    let peer = Peer { is_leaf, ..to.peer(NEVER) };
    let session = SessionConfig { queue_messages_max: 1 << 20, ..SessionConfig::default() };
    let retry_max = Duration::from_millis(200);
    let settings = UplinkSettings { retry_max, ..UplinkSettings::to_member(peer, &session) };
    let reach = Reach::at([&*serving.address.to_string()]);
    let running = from.member(settings, Topics::fixed(topics), reach);
    running.held(1).await;
    running
}

fn relay_for(serving: &Serving, leaves: &[Node]) {
    for leaf in leaves {
        serving.receivers.set_leaf(leaf.credentials.identity().node, true);
    }
}

#[tokio::test]
async fn what_is_published_at_one_leaf_comes_out_once_at_the_relay_and_at_the_other_leaf() {
    let site = Site::new(&["core", "one", "two"]);
    let core = Node::new(&site, "core");
    let leaves = ["one", "two"].map(|name| Node::new(&site, name));
    let mut core_serves = core.serve(ANY).await;
    relay_for(&core_serves, &leaves);
    let (mut servings, mut running) = (Vec::new(), Vec::new());
    for leaf in &leaves {
        let serving = leaf.serve(ANY).await;
        running.push(carry(leaf, &core, false, &core_serves, &["#"]).await);
        running.push(carry(&core, leaf, true, &serving, &["#"]).await);
        servings.push(serving);
    }
    let nodes = [&core, &leaves[0], &leaves[1]];
    let mut readers = Vec::new();
    for node in nodes {
        readers.push(node.client("reader", &["#"]).await);
    }
    for node in nodes {
        node.client("sensor", &[]).await.publish("a", node.name).await;
    }
    for (reader, at) in readers.iter_mut().zip(nodes) {
        let mut came = BTreeSet::new();
        for _ in 0..3 {
            let message = reader.next().await;
            let text = String::from_utf8(message.payload.clone()).expect("a text");
            // The name is of the node where it was published, wherever it passed.
            if text != at.name {
                let name = name_of(&message).expect("it has a name");
                assert!(name.starts_with(&format!("{text}/$fabric/")), "{name} at {}", at.name);
            }
            came.insert(text);
        }
        assert_eq!(came.len(), 3, "each once at {}: {came:?}", at.name);
    }
    // Messages that were not acknowledged would come again.
    for uplink in running.iter().map(|running| &running.uplink) {
        let is_done = async || (uplink.report().held_bytes == 0).then_some(());
        poll(LONGEST, is_done).await.expect("all is acknowledged");
    }
    // The links of the relay go, and what it knows of them.
    let address = core_serves.address;
    core_serves.kill().await;
    leaves[0].client("last", &[]).await.publish("a", "last").await;
    core_serves = core.serve(address).await;
    relay_for(&core_serves, &leaves);
    // The next is the next: nothing has come twice, or back.
    for reader in &mut readers {
        assert_eq!(reader.next().await.payload, b"last");
    }
    assert!(servings.iter().all(|serving| serving.receivers.looped() == 0), "nothing comes back");
}

#[tokio::test]
async fn a_group_over_two_leaves_and_their_relay_gets_each_message_once() {
    const EACH: usize = 60;
    const FILTER: &str = "$share/g/jobs";
    let site = Site::new(&["core", "one", "two"]);
    let core = Node::new(&site, "core");
    let leaves = ["one", "two"].map(|name| Node::new(&site, name));
    let core_serves = core.serve(ANY).await;
    relay_for(&core_serves, &leaves);
    let (mut servings, mut running) = (Vec::new(), Vec::new());
    for leaf in &leaves {
        let serving = leaf.serve(ANY).await;
        running.push(carry(leaf, &core, false, &core_serves, &[FILTER, "jobs"]).await);
        running.push(carry(&core, leaf, true, &serving, &[FILTER, "jobs"]).await);
        servings.push(serving);
    }
    let nodes = [&core, &leaves[0], &leaves[1]];
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    for (at, node) in nodes.into_iter().enumerate() {
        let mut worker = node.client("worker", &[FILTER]).await;
        let tell = tell.clone();
        tasks.spawn(async move {
            loop {
                let message = worker.next().await;
                let _ = tell.send((at, message.payload));
            }
        });
    }
    for node in nodes {
        let mut sensor = node.client("sensor", &[]).await;
        for round in 0..EACH {
            sensor.publish("jobs", &format!("{}/{round}", node.name)).await;
        }
    }
    let (mut came, mut shares) = (BTreeSet::new(), [0; 3]);
    while came.len() < 3 * EACH {
        let (at, text) = told.recv().await.expect("workers go on");
        assert!(came.insert(text), "each comes once");
        shares[at] += 1;
    }
    assert!(shares.iter().all(|share| *share > 0), "all take part: {shares:?}");
    assert!(told.try_recv().is_err(), "none comes twice");
}

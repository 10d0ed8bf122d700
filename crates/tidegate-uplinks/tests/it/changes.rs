//! Topics that change while an uplink runs, and while it does not.

use std::net::{Ipv4Addr, SocketAddr};

use tidegate_uplinks::{Topics, UplinkSettings};

use crate::{
    poll_async::poll,
    world::{LONGEST, Node, Site, settings},
};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Waits until the session that the uplink reads has these subscriptions.
async fn subscribed(node: &Node, filters: &[&str]) {
    let [batched, _] = UplinkSettings::sessions("up");
    let bus = node.bus();
    let same = poll(LONGEST, async || {
        let mut had = bus.filters(&batched).await;
        had.sort();
        (had.iter().map(|filter| &**filter).collect::<Vec<_>>() == filters).then_some(())
    });
    same.await.unwrap_or_else(|| panic!("its subscriptions are not {filters:?}"));
}

#[tokio::test]
async fn topics_change_on_one_link() {
    let site = Site::new(&["edge", "core"]);
    let (edge, core) = (Node::new(&site, "edge"), Node::new(&site, "core"));
    let serving = core.serve(ANY).await;
    let mut reader = core.client("reader", &["#"]).await;
    let mut sensor = edge.client("sensor", &[]).await;

    let running = edge.uplink(settings(serving.address), Topics::fixed(["a/#"]));
    running.held(1).await;
    sensor.publish("b/early", "").await;
    sensor.publish("a/1", "").await;
    assert_eq!(reader.next_topic().await, "a/1");

    running.set(2, &["a/#", "b/#"]).await;
    sensor.publish("b/2", "").await;
    assert_eq!(reader.next_topic().await, "b/2");

    running.set(3, &["b/#"]).await;
    subscribed(&edge, &["b/#"]).await;
    sensor.publish("a/3", "").await;
    sensor.publish("b/3", "").await;
    assert_eq!(reader.next_topic().await, "b/3");
    assert_eq!(running.uplink.report().connects, 1, "no change takes a link of its own");
}

#[tokio::test]
async fn topics_that_are_new_after_a_start_are_carried_and_others_given_up() {
    let site = Site::new(&["edge", "core"]);
    let (edge, core) = (Node::new(&site, "edge"), Node::new(&site, "core"));
    let serving = core.serve(ANY).await;
    let mut reader = core.client("reader", &["#"]).await;
    let mut sensor = edge.client("sensor", &[]).await;
    let running = edge.uplink(settings(serving.address), Topics::fixed(["a/#", "b/#"]));
    running.held(1).await;
    drop(running);

    for topic in ["a/waits", "b/waits", "c/early"] {
        sensor.publish(topic, "").await;
    }
    let running = edge.uplink(settings(serving.address), Topics::fixed(["b/#", "c/#"]));
    running.held(1).await;
    subscribed(&edge, &["b/#", "c/#"]).await;
    sensor.publish("c/later", "").await;
    for topic in ["b/waits", "c/later"] {
        assert_eq!(reader.next_topic().await, topic);
    }
}

#[tokio::test]
async fn ten_thousand_filters_are_held_whether_or_not_the_other_node_is_there() {
    let site = Site::new(&["edge", "core"]);
    let edge = Node::new(&site, "edge");
    let nothing = "127.0.0.1:1".parse().expect("an address");
    let filters: Vec<String> = (0..10_000).map(|number| format!("site/{number}/#")).collect();
    let filters: Vec<&str> = filters.iter().map(|filter| &**filter).collect();
    let running = edge.uplink(settings(nothing), Topics::fixed(["a"]));
    running.set(2, &filters).await;
    let [batched, _] = UplinkSettings::sessions("up");
    let is_given_up =
        poll(LONGEST, async || (edge.bus().filters(&batched).await.len() == 10_000).then_some(()));
    is_given_up.await.expect("the one from before is given up");
    let changes = edge.bus().filter_changes();
    running.set(3, &filters[1..]).await;
    let one =
        poll(LONGEST, async || (edge.bus().filters(&batched).await.len() == 9_999).then_some(()));
    one.await.expect("one is given up");
    assert_eq!(edge.bus().filter_changes(), changes + 1);
}

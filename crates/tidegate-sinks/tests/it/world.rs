//! The settings of a sink, and clients of its node.

use std::{collections::HashMap, time::Duration};

use tidegate_bus::{
    SessionConfig,
    memory::{Client, Node, Received},
};
use tidegate_sinks::SinkSettings;
use tidegate_wire::mqtt::ForwardedProperties;

use crate::poll::poll;

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn settings(topics: &str) -> SinkSettings {
    SinkSettings {
        name: "test".to_owned(),
        client_id: "sink/test".to_owned(),
        topics: topics.split_whitespace().map(str::to_owned).collect(),
        batch_messages: 100,
        batch_age: Duration::from_millis(20),
        backoff_max: Duration::from_millis(50),
        session: SessionConfig { inflight_max: Some(200), ..SessionConfig::default() },
        ..SinkSettings::default()
    }
}

pub(crate) fn publish(client: &mut Client, topic: &str, payload: &[u8]) {
    let reason = client.publish(topic, payload);
    assert!(!reason.is_failure(), "{topic}: {reason}");
}

pub(crate) fn receive(client: &mut Client) -> Received {
    client.receive(PATIENCE).expect("a message")
}

pub(crate) fn user_properties(message: &Received) -> HashMap<String, String> {
    let properties = ForwardedProperties::decode(&message.forwarded).unwrap().user_properties;
    properties.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let happened = poll(PATIENCE, || is().then_some(()));
    assert!(happened.is_some(), "{what} did not happen within {PATIENCE:?}");
}

/// Waits until the sink is subscribed: its state is published right behind that.
pub(crate) fn ready(node: &Node, name: &str) {
    let mut watcher = node.client("watcher", &[&format!("$SYS/broker/sink/{name}/state")]);
    while receive(&mut watcher).payload != b"1" {}
}

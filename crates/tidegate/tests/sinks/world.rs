//! A broker, clients, and what a sink is made of.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tidegate_broker::{BrokerConfig, SessionConfig};
use tidegate_load::client::{Client, Message, Options, Outgoing};
use tidegate_message::{AllowAll, Authorize};
use tidegate_process::health::Health;
use tidegate_server::{
    Server,
    settings::{AllAnonymous, ListenerSettings, ServerSettings},
};
use tidegate_sinks::SinkSettings;
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::poll::poll;

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn server(broker: BrokerConfig) -> Server {
    server_on((Ipv4Addr::LOCALHOST, 0).into(), broker, Arc::new(AllowAll))
}

pub(crate) fn server_on(
    listen: SocketAddr,
    broker: BrokerConfig,
    authorize: Arc<dyn Authorize>,
) -> Server {
    start(server_settings(listen, broker, authorize))
}

pub(crate) fn start(settings: ServerSettings) -> Server {
    Server::start(settings, &Health::default()).unwrap()
}

/// One listener, where no one is asked who it is, and nothing on disk.
pub(crate) fn server_settings(
    listen: SocketAddr,
    broker: BrokerConfig,
    authorize: Arc<dyn Authorize>,
) -> ServerSettings {
    let mut listener =
        ListenerSettings { anonymous: true, ..ListenerSettings::new("main", listen) };
    Arc::make_mut(&mut listener.sessions.usual).packet_bytes_max = broker.session.packet_bytes_max;
    ServerSettings {
        broker,
        listeners: vec![listener],
        shards: 2,
        authenticator: Arc::new(AllAnonymous),
        authorize,
        operators: None,
        journal: None,
        spill: None,
    }
}

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

pub(crate) fn client(server: &Server, client_id: &str) -> Client {
    client_at(port(server), client_id)
}

pub(crate) fn client_at(port: u16, client_id: &str) -> Client {
    let client_id = client_id.to_owned();
    Client::connect(Options { port, client_id, ..Options::default() }).unwrap()
}

pub(crate) fn port(server: &Server) -> u16 {
    server.addresses()[0].1.port()
}

pub(crate) fn publish(client: &mut Client, topic: &str, payload: &[u8]) {
    let message = Outgoing { topic, payload, qos: QoS::AtLeastOnce, ..Outgoing::default() };
    let reason = client.publish(&message).unwrap();
    assert!(!reason.is_failure(), "{topic}: {reason}");
}

pub(crate) fn subscriber(server: &Server, filter: &str) -> Client {
    subscriber_at(port(server), filter)
}

fn subscriber_at(port: u16, filter: &str) -> Client {
    let mut client = client_at(port, "subscriber");
    let filter = SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: true,
        retain_handling: RetainHandling::Send,
    };
    client.subscribe(&[filter]).unwrap();
    client
}

pub(crate) fn receive(client: &mut Client) -> Message {
    client.receive(PATIENCE).unwrap().expect("a message")
}

pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let happened = poll(PATIENCE, || is().then_some(()));
    assert!(happened.is_some(), "{what} did not happen within {PATIENCE:?}");
}

/// Waits until the sink is subscribed: its state is published right behind that.
pub(crate) fn ready(server: &Server, name: &str) {
    ready_at(port(server), name);
}

pub(crate) fn ready_at(port: u16, name: &str) {
    let mut watcher = subscriber_at(port, &format!("$SYS/broker/sink/{name}/state"));
    while receive(&mut watcher).payload != b"1" {}
}

//! A broker, clients, and what a sink is made of.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tidegate::{
    health::Health,
    mqtt::{
        Server,
        settings::{ListenerSettings, OpenDoors, ServerSettings},
    },
    sink::SinkSettings,
};
use tidegate_broker::{BrokerConfig, SessionConfig};
use tidegate_load::client::{Client, Message, Options, Outgoing};
use tidegate_message::{AllowAll, Authorize};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

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
    let mut listener =
        ListenerSettings { anonymous: true, ..ListenerSettings::new("main", listen) };
    Arc::make_mut(&mut listener.sessions.usual).packet_bytes_max = broker.session.packet_bytes_max;
    let settings = ServerSettings {
        broker,
        listeners: vec![listener],
        shards: 2,
        doors: Arc::new(OpenDoors),
        authorize,
        operators: None,
        journal: None,
        spill: None,
    };
    Server::start(settings, &Health::default()).unwrap()
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
    let address = server.addresses()[0].1;
    let client_id = client_id.to_owned();
    Client::connect(Options { port: address.port(), client_id, ..Options::default() }).unwrap()
}

pub(crate) fn publish(client: &mut Client, topic: &str, payload: &[u8]) {
    let message = Outgoing { topic, payload, qos: QoS::AtLeastOnce, ..Outgoing::default() };
    let reason = client.publish(&message).unwrap();
    assert!(!reason.is_failure(), "{topic}: {reason}");
}

pub(crate) fn subscriber(server: &Server, filter: &str) -> Client {
    let mut client = client(server, "subscriber");
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
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "{what} did not happen within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the sink is subscribed: its state is told right behind that.
pub(crate) fn ready(server: &Server, name: &str) {
    let mut watcher = subscriber(server, &format!("$SYS/broker/sink/{name}/state"));
    while receive(&mut watcher).payload != b"1" {}
}

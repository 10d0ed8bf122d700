//! Listeners over real sockets, in front of a real broker.

mod coap;
mod http;
#[path = "../../../tests/shared/poll.rs"]
mod poll;
mod udp;
mod websocket;

use std::{path::Path, sync::Arc, time::Duration};

use tempfile::TempDir;
use tidegate_api::ApiError;
use tidegate_config::Config;
use tidegate_identity::access::Access;
use tidegate_ingest::IngestReport;
use tidegate_load::client::{Client, Message, Options};
use tidegate_process::health::Health;
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::poll::poll;
use crate::run::{Changes, Node, users};

/// Longer than anything takes.
const LONGEST: Duration = Duration::from_secs(60);

/// A node's MQTT and its ways in.
struct World {
    node: Node,
    _reactor: Runtime,
    folder: TempDir,
}

fn config(folder: &TempDir, text: &str) -> Config {
    let place = folder.path().display();
    let listener = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = true\n";
    let text = format!("[node]\ndata_dir = \"{place}\"\n{text}\n{listener}")
        .replace("$PLACE", &place.to_string());
    Config::parse(Path::new("site.toml"), &text).expect("a configuration")
}

impl World {
    fn new(text: &str) -> Self {
        Self::with_files(text, &[])
    }

    /// With files in the folder that `$PLACE` in `text` stands for.
    fn with_files(text: &str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).expect("a file");
        }
        let (node, reactor) = Self::start(&config(&folder, text)).expect("it serves");
        Self { node, _reactor: reactor, folder }
    }

    fn start(config: &Config) -> Result<(Node, Runtime), ApiError> {
        let authenticator = Arc::new(users::open(config)?);
        let access = Access { authenticator, ..Access::default() };
        let reactor = Runtime::new().expect("a runtime");
        let stop = CancellationToken::new();
        let node = Node::start(config, access, None, Health::default(), stop);
        Ok((reactor.block_on(node)?, reactor))
    }

    /// The error of such a node at its start.
    fn refused(text: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Self::start(&config(&folder, text)).err().expect("it is wrong");
        tidegate_message::error_chain(&error)
    }

    fn reload(&self, text: &str) -> Changes {
        self.node.reload(config(&self.folder, text)).expect("nothing is wrong")
    }

    fn client(&self) -> Client {
        let server = self.node.server().expect("it serves MQTT");
        let (_, address) = &server.addresses()[0];
        let port = address.port();
        Client::connect(Options { port, ..Options::default() }).expect("the broker listens")
    }

    fn subscriber(&self, filter: &str) -> Client {
        let mut client = self.client();
        let filter = SubscribeFilter {
            filter: filter.to_owned(),
            maximum_qos: QoS::ExactlyOnce,
            no_local: false,
            retain_as_published: true,
            retain_handling: RetainHandling::Send,
        };
        let reasons = client.subscribe(&[filter]).expect("it may subscribe");
        assert!(!reasons[0].is_failure());
        client
    }

    fn address(&self) -> std::net::SocketAddr {
        self.node.ingest("x").expect("it is configured").address()
    }

    fn report(&self) -> IngestReport {
        self.node.ingest("x").expect("it is configured").report()
    }

    /// The counters, once they are as `is_so` has them.
    fn report_when(&self, is_so: impl Fn(&IngestReport) -> bool) -> IngestReport {
        let report = poll(LONGEST, || Some(self.report()).filter(&is_so));
        report.unwrap_or_else(|| panic!("{:?}", self.report()))
    }
}

/// The next message, as topic and payload.
fn next(client: &mut Client) -> (String, String) {
    let Message { topic, payload, .. } = message(client);
    (topic, String::from_utf8_lossy(&payload).into_owned())
}

fn message(client: &mut Client) -> Message {
    client.receive(LONGEST).expect("the broker is there").expect("a message comes")
}

fn pair(topic: &str, payload: &str) -> (String, String) {
    (topic.to_owned(), payload.to_owned())
}

#[test]
fn contradictory_configurations_are_refused_with_the_way_out() {
    for (text, part) in [
        ("listen = \"0.0.0.0:0\"", "ingest.x.identity must name the user"),
        ("kind = \"coap\"\nlisten = \"0.0.0.0:0\"", "ingest.x.identity must name the user"),
        ("format = \"topic-payload\"\ntopic = \"a\"", "ingest.x.topic means nothing here"),
        ("topic = \"a/{b}\"", "ingest.x.topic is wrong: {b} is unknown here"),
        ("message_bytes_max = \"70kB\"", "ingest.x.message_bytes_max must be"),
        ("kind = \"http\"\nbody_bytes_max = \"1B\"", "ingest.x.body_bytes_max must be"),
        ("connections_max = 0", "ingest.x.connections_max must be"),
        ("request_timeout = \"1ms\"", "ingest.x.request_timeout must be"),
        ("receive_buffer_bytes = \"1B\"", "ingest.x.receive_buffer_bytes must be"),
        ("listen = \"192.0.2.1:1\"\nidentity = \"u\"", "cannot listen on 192.0.2.1:1"),
    ] {
        let listen = if text.contains("listen") { "" } else { "listen = \"127.0.0.1:0\"\n" };
        let error = World::refused(&format!("[ingest.x]\n{listen}{text}\n"));
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[cfg(feature = "xdp")]
#[test]
fn a_filter_in_the_kernel_that_makes_no_sense_is_refused_with_the_way_out() {
    let fields = "xdp_fields = \"t at 0 length 5 decimals 1\"";
    for (text, part) in [
        ("xdp_keep = \"t > 1\"".to_owned(), "ingest.x.xdp_interface must name"),
        (
            "xdp_interface = \"lo\"".to_owned(),
            "ingest.x.xdp_fields is wrong: a filter has from 1 to",
        ),
        (
            "xdp_interface = \"lo\"\nxdp_fields = \"t\"".to_owned(),
            "ingest.x.xdp_fields is wrong: field \"t\"",
        ),
        (
            format!("xdp_interface = \"lo\"\n{fields}"),
            "ingest.x.xdp_keep is wrong: a filter has from 1 to",
        ),
        (
            format!("xdp_interface = \"lo\"\n{fields}\nxdp_keep = \"t>1\""),
            "ingest.x.xdp_keep is wrong: \"t>1\"",
        ),
        (format!("xdp_interface = \"lo\"\n{fields}\nxdp_keep = \"t > 1000\""), "never holds"),
        (
            format!(
                "xdp_interface = \"lo\"\n{fields}\nxdp_keep = \"t > 1\"\nxdp_payload_bytes = 4"
            ),
            "ingest.x.xdp_payload_bytes is wrong: field \"t\" ends after 5 bytes",
        ),
        (
            "kind = \"coap\"\nxdp_mode = \"native\"".to_owned(),
            "ingest.x.xdp_mode means nothing but for",
        ),
    ] {
        let error = World::refused(&format!("[ingest.x]\nlisten = \"127.0.0.1:0\"\n{text}\n"));
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[cfg(not(feature = "xdp"))]
#[test]
fn a_filter_in_the_kernel_that_was_left_out_of_the_build_says_so() {
    let text = "[ingest.x]\nlisten = \"127.0.0.1:0\"\nxdp_interface = \"lo\"\n";
    let error = World::refused(text);
    assert!(
        error.contains("ingest.x.xdp_interface") && error.contains("--features xdp"),
        "{error}"
    );
}

#[test]
fn a_reload_exchanges_what_it_can_and_names_the_rest() {
    let text =
        |rest: &str| format!("[ingest.x]\nlisten = \"127.0.0.1:0\"\nformat = \"payload\"\n{rest}");
    let world = World::new(&text("topic = \"a\""));
    let mut all = world.subscriber("#");
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"1", world.address()).unwrap();
    assert_eq!(next(&mut all), pair("a", "1"));
    let reloaded = world.reload(&text("topic = \"b\"\nretain = true"));
    assert_eq!(
        reloaded.exchanged,
        ["ingest.x.retain", "ingest.x.topic"]
            .map(str::to_owned)
            .to_vec()
            .into_iter()
            .rev()
            .collect::<Vec<_>>()
    );
    sender.send_to(b"2", world.address()).unwrap();
    assert_eq!(next(&mut all), pair("b", "2"));
    let reloaded = world.reload(&text(
        "topic = \"b\"\nretain = true\nreceive = \"plain\"\n[ingest.y]\nlisten = \"127.0.0.1:0\"",
    ));
    assert_eq!(reloaded.need_restart, ["ingest.x.receive", "ingest.y"]);
    sender.send_to(b"3", world.address()).unwrap();
    assert_eq!(next(&mut all), pair("b", "3"));
}

#[test]
fn counters_are_told_in_sys() {
    let world = World::new(
        "[mqtt]\nsys_interval = \"1s\"\n[ingest.x]\nlisten = \"127.0.0.1:0\"\ntopic = \"a\"\n",
    );
    let mut sys = world.subscriber("$SYS/broker/ingest/x/published");
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"1", world.address()).unwrap();
    while next(&mut sys) != pair("$SYS/broker/ingest/x/published", "1") {}
}

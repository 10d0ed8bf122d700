//! Brokers, clients, and a path between them that can be slow or cut.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tidegate_broker::BrokerConfig;
use tidegate_load::client::{Client, Message, Options, Outgoing};
use tidegate_message::AllowAll;
use tidegate_process::health::Health;
use tidegate_server::{
    Server,
    bridge::{Bridge, BridgeSettings},
    settings::{AllAnonymous, ListenerSettings, Protocol, ServerSettings},
};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter, Version};

use crate::poll::poll;

/// Longest wait for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long to listen for what must not come.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

/// A broker of two shards on that port; 0 for any.
pub(crate) fn broker(port: u16, tls: Option<Arc<rustls::ServerConfig>>) -> Server {
    let listener = ListenerSettings {
        protocol: if tls.is_some() { Protocol::Tls } else { Protocol::Tcp },
        tls,
        anonymous: true,
        ..ListenerSettings::new("main", (Ipv4Addr::LOCALHOST, port).into())
    };
    let settings = ServerSettings {
        broker: BrokerConfig::default(),
        listeners: vec![listener],
        shards: 2,
        authenticator: Arc::new(AllAnonymous),
        authorize: Arc::new(AllowAll),
        operators: None,
        journal: None,
        spill: None,
    };
    Server::start(settings, &Health::default()).unwrap()
}

pub(crate) fn port(server: &Server) -> u16 {
    server.addresses()[0].1.port()
}

/// A bridge from `here` to anyone who listens on `port`.
pub(crate) fn bridge(here: &Server, node: &str, port: u16, settings: BridgeSettings) -> Bridge {
    let settings = BridgeSettings {
        name: format!("{node}-{port}"),
        node: node.to_owned(),
        client_id: format!("{node}.{port}"),
        port,
        backoff_max: Duration::from_millis(500),
        ..settings
    };
    Bridge::start(settings, here.connector()).unwrap()
}

pub(crate) fn topics(out: &str, fetched: &str) -> BridgeSettings {
    let list = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    BridgeSettings { topics_out: list(out), topics_in: list(fetched), ..BridgeSettings::default() }
}

pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let happened = poll(PATIENCE, || is().then_some(()));
    assert!(happened.is_some(), "{what} did not happen within {PATIENCE:?}");
}

pub(crate) fn until_up(bridge: &Bridge, connects: u64) {
    until("a connection of the bridge", || bridge.report().connects >= connects);
}

pub(crate) fn client(port: u16, client_id: &str) -> Client {
    client_of(port, client_id, Version::V5)
}

pub(crate) fn client_of(port: u16, client_id: &str, version: Version) -> Client {
    let options = Options { port, client_id: client_id.to_owned(), version, ..Options::default() };
    Client::connect(options).unwrap()
}

pub(crate) fn subscribe(client: &mut Client, filter: &str) {
    let filter = SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let reasons = client.subscribe(&[filter]).unwrap();
    assert!(reasons.iter().all(|reason| !reason.is_failure()), "{reasons:?}");
}

pub(crate) fn publish(
    client: &mut Client,
    topic: &str,
    payload: &[u8],
    qos: QoS,
    retain: bool,
) -> ReasonCode {
    client.publish(&Outgoing { topic, payload, qos, retain, ..Outgoing::default() }).unwrap()
}

pub(crate) fn receive(client: &mut Client) -> Message {
    client.receive(PATIENCE).unwrap().expect("a message comes in time")
}

pub(crate) fn assert_silent(client: &mut Client) {
    let message = client.receive(SILENCE).unwrap();
    assert!(message.is_none(), "{message:?} came too");
}

/// A path to a port that passes so many bytes a second to the broker, and can be cut.
pub(crate) struct Path {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    sockets: Mutex<Vec<TcpStream>>,
    is_closed: AtomicBool,
    bytes_per_second: AtomicU64,
}

impl Path {
    pub(crate) fn to(port: u16, bytes_per_second: Option<u64>) -> Self {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        if bytes_per_second.is_some() {
            // Little waits where no broker can choose.
            socket.set_recv_buffer_size(8 << 10).unwrap();
        }
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(64).unwrap();
        let listener = TcpListener::from(socket);
        let own_port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            sockets: Mutex::default(),
            is_closed: AtomicBool::new(false),
            bytes_per_second: AtomicU64::new(bytes_per_second.unwrap_or(u64::MAX)),
        });
        let passing = shared.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                if passing.is_closed.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(near) = near else { return };
                let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                let copies = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                passing.sockets.lock().unwrap().extend(copies);
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let limited = passing.clone();
                thread::spawn(move || pass(near, far, Some(&limited.bytes_per_second)));
                thread::spawn(move || pass(far_too, near_too, None));
            }
        });
        Self { port: own_port, shared }
    }

    /// Ends all connections on it.
    pub(crate) fn cut(&self) {
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
        self.cut();
        // Its thread sees it when it accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// A path to a port whose broker takes plain MQTT 3.1.1 alone: 5 is answered, the bridge bit is not even that.
pub(crate) fn old_fashioned(port: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let own_port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for near in listener.incoming() {
            let mut near = near.unwrap();
            // Type, a length of one byte, "MQTT" with its length, level.
            let mut start = [0; 9];
            if near.read_exact(&mut start).is_err() {
                continue;
            }
            match start[8] {
                5 => near.write_all(&[0x20, 2, 0, 1]).unwrap(),
                4 => {
                    let mut far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                    far.write_all(&start).unwrap();
                    let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                    thread::spawn(move || pass(near, far, None));
                    thread::spawn(move || pass(far_too, near_too, None));
                }
                _ => {}
            }
        }
    });
    own_port
}

fn pass(mut from: TcpStream, mut to: TcpStream, bytes_per_second: Option<&AtomicU64>) {
    let mut buffer = [0; 4 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        let rate = bytes_per_second.map_or(u64::MAX, |rate| rate.load(Ordering::Relaxed));
        if rate != u64::MAX {
            thread::sleep(Duration::from_secs_f64(count as f64 / rate as f64));
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

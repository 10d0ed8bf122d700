//! The input of a listener before MQTT begins.

use std::{
    io::{Read as _, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
};

use rustls::{ClientConnection, StreamOwned};
use tidegate_broker::BrokerConfig;
use tidegate_message::AllowAll;
use tidegate_process::health::Health;
use tidegate_server::{
    Server,
    settings::{AllAnonymous, ListenerSettings, ServerSettings},
};

use crate::{
    admission::shows,
    program::{LONGEST, Program},
};

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a stream");
    stream.set_read_timeout(Some(LONGEST)).expect("a stream");
    stream.set_nodelay(true).expect("a stream");
    stream
}

/// CONNECT (3.1.1, clean session) by that name.
fn connect(client: &str) -> Vec<u8> {
    let length = u8::try_from(client.len()).expect("a short name");
    let mut packet = vec![0x10, 12 + length, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, length];
    packet.extend_from_slice(client.as_bytes());
    packet
}

/// The code of CONNACK, or nothing if the connection ended.
fn answer(stream: &mut impl std::io::Read) -> Option<u8> {
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).ok().map(|()| connack[3])
}

#[test]
fn websockets_are_at_the_paths_that_a_listener_names() {
    let listener = |name: &str, paths: &str| {
        format!(
            "[mqtt.listener.{name}]\nlisten = \"127.0.0.1:0\"\nprotocol = \"websocket\"\n{paths}\n"
        )
    };
    let program = Program::start(
        &[
            listener("usual", ""),
            listener("named", "paths = \"/ws/mqtt, /other\""),
            listener("any", "paths = \"*\""),
        ]
        .concat(),
    );
    for (name, target, expected) in [
        ("usual", "/mqtt", "101"),
        ("usual", "/", "101"),
        ("usual", "/?x=1", "101"),
        ("usual", "/ws/mqtt", "404"),
        ("named", "/ws/mqtt", "101"),
        ("named", "/other?x=1", "101"),
        ("named", "/mqtt", "404"),
        ("named", "/", "404"),
        ("any", "/", "101"),
        ("any", "/what/ever", "101"),
    ] {
        let mut stream = dial(program.address(name));
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: node\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("it takes it");
        stream.shutdown(Shutdown::Write).expect("a stream");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(answer.split(' ').nth(1), Some(expected), "{name} {target}: {answer}");
    }
    program.stop();
}

#[test]
fn foreign_page_publishes_and_reads_nothing() {
    let ingest = crate::uplink::free_address();
    let mut node = Program::start(&format!(
        "[mqtt.listener.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"websocket\"\norigins = \"https://dash.example\"\n\
         [mqtt.listener.plain]\nlisten = \"127.0.0.1:0\"\n\
         [ingest.http]\nkind = \"http\"\nlisten = \"{ingest}\"\n"
    ));
    node.line_with("node ready");
    let (web, plain) = (node.address("web"), node.address("plain"));
    let ask = |to: SocketAddr, first: &str, host: &str, origin: &str, more: &str| {
        let mut stream = dial(to);
        let own = stream.local_addr().expect("an address");
        let request = format!("{first} HTTP/1.1\r\nHost: {host}\r\n{origin}{more}\r\n");
        stream.write_all(request.as_bytes()).expect("it takes it");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("an answer");
        (String::from_utf8_lossy(&status[9..]).parse::<u16>().expect("a status"), own)
    };
    let open = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n";
    let post = "Content-Length: 0\r\n";
    for (to, first, more, done) in
        [(web, "GET /mqtt", open, 101), (ingest, "POST /ingest/a", post, 204)]
    {
        let here = to.to_string();
        for (host, origin, status) in [
            (&*here, "".to_owned(), done),
            ("edge.example", "".to_owned(), done),
            (&*here, format!("http://{here}"), done),
            (&*here, format!("https://{here}"), done),
            (&*here, "http://evil.example".to_owned(), 403),
            (&*here, "null".to_owned(), 403),
            ("evil.example", "http://evil.example".to_owned(), 421),
        ] {
            let origin = match origin.is_empty() {
                true => origin,
                false => format!("Origin: {origin}\r\n"),
            };
            let (answered, from) = ask(to, first, host, &origin, more);
            assert_eq!(answered, status, "{first} {host} {origin}");
            if status > 400 {
                let line = node.line_with("refused");
                assert!(line.contains(&format!("address={from} ")), "{line}");
            }
        }
    }
    let (answered, _) =
        ask(web, "GET /mqtt", &web.to_string(), "Origin: https://dash.example\r\n", open);
    assert_eq!(answered, 101, "a page that is named");
    // HTTP where MQTT is spoken.
    let mut stream = dial(plain);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it takes it");
    let from = stream.local_addr().expect("an address");
    let line = node.line_with("it speaks HTTP");
    assert!(line.contains(&format!("address={from} ")), "{line}");
    node.end();
}

const LINE: &str = "PROXY TCP4 192.0.2.7 198.51.100.2 56324 1883\r\n";
/// Of 2001:db8::7, with a field behind the addresses.
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x28\
    \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07\
    \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x08\
    \xdc\x04\x07\x5b\x04\0\x01\0";

#[test]
fn a_load_balancer_says_whose_connection_it_hands_on() {
    let listener = |name: &str, lines: &str| {
        format!(
            "[mqtt.listener.{name}]\nlisten = \"127.0.0.1:0\"\nconnect_timeout = \"2s\"\n{lines}\n"
        )
    };
    let open = "allow_anonymous = true";
    let mut node = Program::start(
        &[
            listener("plain", open),
            listener("v1", &format!("proxy_protocol = \"v1\"\n{open}")),
            listener("v2", &format!("proxy_protocol = \"v2\"\n{open}")),
            listener("any", &format!("proxy_protocol = \"any\"\n{open}")),
            listener("asks", "proxy_protocol = \"any\""),
            listener("tls", &format!("proxy_protocol = \"any\"\nprotocol = \"tls\"\n{open}")),
            listener("web", &format!("proxy_protocol = \"any\"\nprotocol = \"websocket\"\n{open}")),
        ]
        .concat(),
    );
    let unknown = "PROXY UNKNOWN\r\n".as_bytes();
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".as_slice();
    for (number, (listener, header, expected)) in [
        ("v1", LINE.as_bytes(), Some("192.0.2.7:56324 ")),
        ("any", LINE.as_bytes(), Some("192.0.2.7:56324 ")),
        ("v2", BINARY, Some("[2001:db8::7]:56324 ")),
        ("any", BINARY, Some("[2001:db8::7]:56324 ")),
        ("v1", unknown, Some("127.0.0.1:")),
        ("v2", local, Some("127.0.0.1:")),
        // Without one, with one of another version, with one that is wrong, with one that no one asked for.
        ("v1", b"", None),
        ("any", b"", None),
        ("v2", LINE.as_bytes(), None),
        ("v1", BINARY, None),
        ("any", b"PROXY TCP4 192.0.2.7 198.51.100.2 56324 99999\r\n", None),
        ("any", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff", None),
        ("plain", LINE.as_bytes(), None),
        ("plain", BINARY, None),
    ]
    .into_iter()
    .enumerate()
    {
        for is_whole in [true, false] {
            let client = format!("dev-{number}-{is_whole}");
            let mut stream = dial(node.address(listener));
            let bytes = [header, &connect(&client)].concat();
            if is_whole {
                stream.write_all(&bytes).expect("it takes it");
            } else {
                for byte in bytes {
                    // It may be refused in the middle.
                    if stream.write_all(&[byte]).is_err() {
                        break;
                    }
                }
            }
            let code = answer(&mut stream);
            assert_eq!(code, expected.map(|_| 0), "{listener} {header:02x?}");
            match expected {
                Some(address) => {
                    let line = node.line_with(&format!("connected client={client}"));
                    assert!(line.contains(&format!("address={address}")), "{line}");
                }
                None => drop(node.line_with("connection refused")),
            }
        }
    }
    // All clients come from the balancer's address, which proves nothing.
    let mut stream = dial(node.address("asks"));
    stream.write_all(&[LINE.as_bytes(), &connect("asks")].concat()).expect("it takes it");
    assert!(answer(&mut stream).is_some_and(|code| code != 0));
    let line = node.line_with("connection refused client=asks");
    assert!(line.contains("address=192.0.2.7:56324 "), "{line}");

    // TLS and WebSocket behind it, in the same segment and in others.
    for in_one in [true, false] {
        let tls = Arc::new(shows(&node.path("data/pki"), None));
        let mut tls = ClientConnection::new(tls, "localhost".try_into().expect("a name"))
            .expect("a connection");
        let mut hello = LINE.as_bytes().to_vec();
        let mut stream = dial(node.address("tls"));
        if !in_one {
            stream.write_all(&std::mem::take(&mut hello)).expect("it takes it");
        }
        tls.write_tls(&mut hello).expect("a greeting");
        stream.write_all(&hello).expect("it takes it");
        let mut stream = StreamOwned::new(tls, stream);
        let client = format!("tls-{in_one}");
        stream.write_all(&connect(&client)).expect("it takes it");
        assert_eq!(answer(&mut stream), Some(0));
        let line = node.line_with(&format!("connected client={client}"));
        assert!(line.contains("address=192.0.2.7:56324 "), "{line}");
    }
    let mut stream = dial(node.address("web"));
    let request = "GET /mqtt HTTP/1.1\r\nHost: node\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Protocol: mqtt\r\n\r\n";
    stream.write_all(&[BINARY, request.as_bytes()].concat()).expect("it takes it");
    let mut status = [0; 12];
    stream.read_exact(&mut status).expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 101");

    // A client that stops in the middle is not waited for, nor one that sends nothing more.
    let mut stream = dial(node.address("any"));
    stream.write_all(&BINARY[..20]).expect("it takes it");
    stream.shutdown(Shutdown::Write).expect("a stream");
    assert_eq!(answer(&mut stream), None);
    node.line_with("ended within the header");
    let mut stream = dial(node.address("any"));
    stream.write_all(&LINE.as_bytes()[..20]).expect("it takes it");
    assert_eq!(answer(&mut stream), None);
    node.line_with("no CONNECT came within 2s");
    node.end();
}

fn server(listeners: Vec<ListenerSettings>) -> Server {
    let settings = ServerSettings {
        broker: BrokerConfig::default(),
        listeners,
        shards: 2,
        authenticator: Arc::new(AllAnonymous),
        authorize: Arc::new(AllowAll),
        operators: None,
        journal: None,
        spill: None,
    };
    Server::start(settings, &Health::default()).expect("it serves")
}

#[test]
fn a_socket_of_the_file_system_and_a_name_are_served_as_an_address_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mqtt.sock");
    let listener = |name: &str, listen: &str| ListenerSettings {
        listen: listen.parse().expect("where to listen"),
        anonymous: true,
        ..ListenerSettings::new(name, (Ipv4Addr::LOCALHOST, 0).into())
    };
    let unix = format!("unix:{}", path.display());
    let server = server(vec![listener("unix", &unix), listener("name", "localhost:0")]);
    assert_eq!(server.paths(), [("unix".into(), path.clone())]);
    assert!(!server.addresses().is_empty());
    let mut subscribers = Vec::new();
    for (number, (name, address)) in server.addresses().iter().enumerate() {
        assert!(address.ip().is_loopback() && &**name == "name", "{name} {address}");
        let mut stream = dial(*address);
        stream.write_all(&connect(&format!("tcp-{number}"))).expect("it takes it");
        assert_eq!(answer(&mut stream), Some(0));
        stream.write_all(b"\x82\x06\0\x01\0\x01t\0").expect("it takes it");
        let mut suback = [0; 5];
        stream.read_exact(&mut suback).expect("an answer");
        subscribers.push(stream);
    }
    // From several connections, of which each shard has some; large enough for more than one write.
    let payload = "x".repeat(1_000_000);
    for number in 0..4 {
        let mut stream = UnixStream::connect(&path).expect("a stream");
        stream.set_read_timeout(Some(LONGEST)).expect("a stream");
        stream.write_all(&connect(&format!("unix-{number}"))).expect("it takes it");
        assert_eq!(answer(&mut stream), Some(0));
        // PUBLISH with QoS 1, answered with PUBACK.
        let mut publish = vec![0x32, 0xc5, 0x84, 0x3d, 0, 1, b't', 0, 1];
        publish.extend(payload.as_bytes());
        stream.write_all(&publish).expect("it takes it");
        let mut puback = [0; 4];
        stream.read_exact(&mut puback).expect("an answer");
        assert_eq!(puback, [0x40, 2, 0, 1]);
        for subscriber in &mut subscribers {
            let mut message = vec![0; 4 + 3 + payload.len()];
            subscriber.read_exact(&mut message).expect("a message");
            assert!(message.ends_with(payload.as_bytes()));
        }
    }
    // And towards such a client.
    let mut stream = UnixStream::connect(&path).expect("a stream");
    stream.set_read_timeout(Some(LONGEST)).expect("a stream");
    stream.write_all(&connect("unix-reads")).expect("it takes it");
    assert_eq!(answer(&mut stream), Some(0));
    stream.write_all(b"\x82\x06\0\x01\0\x01u\0").expect("it takes it");
    stream.read_exact(&mut [0; 5]).expect("an answer");
    let mut publish = vec![0x30, 0xc3, 0x84, 0x3d, 0, 1, b'u'];
    publish.extend(payload.as_bytes());
    subscribers[0].write_all(&publish).expect("it takes it");
    let mut message = vec![0; publish.len()];
    stream.read_exact(&mut message).expect("a message");
    assert_eq!(message, publish);
    server.stop();
    assert!(!path.exists(), "it is removed");
}

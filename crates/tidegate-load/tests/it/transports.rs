//! The client over every transport.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::AtomicBool,
    time::Duration,
};

use tidegate_load::{
    client::{Client, ClientError, Options, Outgoing},
    command::{CommandError, PubArgs, SubArgs},
    connect::ConnectError,
    url::{PATH, UrlError},
};
use tidegate_wire::{
    mqtt::{FixedHeader, Packet, PublishHead, QoS, ReasonCode, Version},
    websocket::{FrameError, HandshakeError},
};

use crate::{
    client::{Program, filter, parse},
    server::{Certificate, Channel, Server, Transport},
};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn options(transport: Transport, server: &Server, certificate: &Certificate) -> Options {
    Options {
        host: server.address.ip().to_string(),
        port: server.address.port(),
        tls: transport.is_tls().then(|| certificate.client()),
        websocket: transport.is_websocket().then(|| PATH.to_owned()),
        keep_alive: 0,
        ..Options::default()
    }
}

/// A broker for one client: grants what is asked for, acknowledges messages, and sends each back with QoS 0. Returns the packets
/// that it was sent, by their first byte.
pub(crate) fn echo(channel: &mut dyn Channel, bytes_max: usize) -> Vec<u8> {
    let (mut input, mut seen) = (Vec::new(), Vec::new());
    while let Some(bytes) = channel.receive() {
        input.extend_from_slice(&bytes);
        while let Some(header) = FixedHeader::decode(&input, usize::MAX).expect("MQTT")
            && input.len() >= header.packet_bytes()
        {
            let packet: Vec<_> = input.drain(..header.packet_bytes()).collect();
            seen.push(header.first);
            let body = &packet[header.header_bytes..];
            channel.send(&answer(header.first, body), bytes_max);
        }
    }
    assert_eq!(input, b"", "packets come whole");
    seen
}

fn answer(first: u8, body: &[u8]) -> Vec<u8> {
    match Packet::decode(Version::V5, first, body).expect("a packet") {
        Packet::Connect(_) => vec![0x20, 3, 0, 0, 0],
        Packet::Subscribe(_) => vec![0x90, 4, body[0], body[1], 0, 2],
        Packet::Publish(publish) => {
            let mut out = match publish.packet_id.map(|id| id.get().to_be_bytes()) {
                None => vec![],
                Some([high, low]) => vec![0x40, 2, high, low],
            };
            let head = PublishHead {
                dup: false,
                qos: QoS::AtMostOnce,
                retain: false,
                topic: publish.topic,
                packet_id: None,
                topic_alias: None,
                message_expiry: None,
                subscription_ids: &[],
                forwarded: &[],
                payload_bytes: publish.payload.len(),
            };
            head.encode(Version::V5, &mut out);
            out.extend_from_slice(publish.payload);
            out
        }
        Packet::Disconnect(_) => vec![],
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_come_and_go_over_every_transport_however_they_are_cut() {
    let certificate = Certificate::of("127.0.0.1");
    for transport in Transport::ALL {
        for (bytes_max, payload_bytes) in [(1, 300), (7, 3_000), (1 << 20, 300_000)] {
            let note = format!("{transport:?}, {bytes_max}");
            let server = Server::start(transport, &certificate, move |channel| {
                let seen = echo(channel, bytes_max);
                assert_eq!(seen, [0x10, 0x82, 0x32, 0x30, 0x32, 0xE0], "{transport:?}");
            });
            let mut client = Client::connect(options(transport, &server, &certificate)).unwrap();
            let granted = client.subscribe(&[filter("a/#")]).unwrap();
            assert_eq!(granted, [ReasonCode::GRANTED_QOS_2], "{note}");
            let long: Vec<_> = (0..payload_bytes).map(|index| index as u8).collect();
            for (payload, qos) in [
                (&b""[..], QoS::AtLeastOnce),
                (b"text", QoS::AtMostOnce),
                (&long, QoS::AtLeastOnce),
            ] {
                client
                    .publish(&Outgoing { topic: "a/1", payload, qos, ..Outgoing::default() })
                    .unwrap();
                let got = client.receive(PATIENCE).unwrap().expect("it comes back");
                assert_eq!((&*got.topic, &*got.payload), ("a/1", payload), "{note}");
            }
            client.disconnect().unwrap();
            server.join();
        }
    }
}

#[test]
fn a_broker_that_closes_is_told_over_every_transport() {
    let certificate = Certificate::of("127.0.0.1");
    for transport in Transport::ALL {
        for says_so in [true, false] {
            let server = Server::start(transport, &certificate, move |channel| {
                let connect = channel.receive().expect("CONNECT");
                assert_eq!(connect[0], 0x10);
                // In one piece: a pong that the server does not read would take the rest from the client.
                channel.send(&[0x20, 3, 0, 0, 0], 5);
                if says_so {
                    channel.close();
                }
            });
            let mut client = Client::connect(options(transport, &server, &certificate)).unwrap();
            let error = client.receive(PATIENCE).unwrap_err();
            assert!(matches!(error, ClientError::Closed { .. }), "{transport:?}: {error:?}");
            server.join();
        }
    }
}

/// Reads a request, and answers it with `answer`, in which `ACCEPT` stands for what the key asks for.
pub(crate) fn answering(answer: &'static str) -> Server {
    Server::raw(move |mut socket| {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("a request");
            request.extend_from_slice(&byte);
        }
        let request = String::from_utf8(request).expect("a request is text");
        let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
        let key = key.expect("there is a key").as_bytes();
        let accept = tungstenite::handshake::derive_accept_key(key);
        socket.write_all(answer.replace("ACCEPT", &accept).as_bytes()).expect("the client reads");
        until_it_goes(socket);
    })
}

/// Waits for the client's end: closing before might take from it what it has not read.
pub(crate) fn until_it_goes(mut socket: TcpStream) {
    // A client that resets is gone as well.
    let _ = std::io::copy(&mut socket, &mut std::io::sink());
}

const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                         Connection: Upgrade\r\nSec-WebSocket-Accept: ACCEPT\r\n";

#[test]
fn what_is_no_mqtt_over_websocket_is_told_apart() {
    let certificate = Certificate::of("127.0.0.1");
    let with = |lines: &str| -> &'static str { format!("{SWITCHING}{lines}").leak() };
    for (answer, expected) in [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            HandshakeError::Refused { status: 404 },
        ),
        ("HTTP/1.1 200 OK\r\n\r\n<html>", HandshakeError::Refused { status: 200 }),
        ("SSH-2.0-x\r\n\r\n", HandshakeError::NotHttp),
        (with("\r\n"), HandshakeError::NotMqtt),
        (with("Sec-WebSocket-Protocol: chat\r\n\r\n"), HandshakeError::NotMqtt),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
            HandshakeError::NotWebSocket,
        ),
    ] {
        let server = answering(answer);
        let error = Client::connect(options(Transport::WebSocket, &server, &certificate));
        match error {
            Err(ClientError::WebSocket { source, peer }) => {
                assert_eq!(source, expected, "{answer}");
                assert_eq!(peer.to_string(), server.address.to_string());
            }
            other => panic!("{answer}: {other:?}"),
        }
        server.join();
    }
    let text = "Sec-WebSocket-Protocol: mqtt\r\n\r\n\u{1}\u{5}hello"; // the first fragment of a text
    let server = answering(with(text));
    let error = Client::connect(options(Transport::WebSocket, &server, &certificate));
    assert!(matches!(error, Err(ClientError::Frame { source: FrameError::Text, .. })), "{error:?}");
    server.join();
}

#[test]
fn a_certificate_must_be_trusted_and_of_the_host() {
    let other = Certificate::of("other.example");
    for transport in [Transport::Tls, Transport::SecureWebSocket] {
        for (name, trusted, expected) in [
            ("127.0.0.1", false, "UnknownIssuer"),
            ("elsewhere.example", true, "not valid for name"),
        ] {
            let certificate = Certificate::of(name);
            let server = Server::start(transport, &certificate, |channel| {
                assert_eq!(channel.receive(), None, "nothing is said to whom one does not trust");
            });
            let trust = if trusted { &certificate } else { &other };
            let error = Client::connect(options(transport, &server, trust)).unwrap_err();
            let ClientError::Tls { source, .. } = &error else { panic!("{error:?}") };
            let rustls::Error::InvalidCertificate(reason) = source else { panic!("{source:?}") };
            assert!(reason.to_string().contains(expected), "{reason}");
            server.join();
        }
    }
}

#[test]
fn a_broker_without_tls_is_no_broker_with_it() {
    let certificate = Certificate::of("127.0.0.1");
    let server = Server::raw(|mut socket| {
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("the client reads");
        until_it_goes(socket);
    });
    let error = Client::connect(options(Transport::Tls, &server, &certificate)).unwrap_err();
    assert!(matches!(error, ClientError::Tls { .. }), "{error:?}");
    server.join();
}

#[test]
fn a_silent_broker_is_waited_for_no_longer_than_the_timeout() {
    let certificate = Certificate::of("127.0.0.1");
    for (transport, expected) in [
        (Transport::Tcp, "CONNACK"),
        (Transport::Tls, "TLS"),
        (Transport::WebSocket, "a WebSocket"),
    ] {
        let server = Server::raw(until_it_goes);
        let timeout = Duration::from_millis(50);
        let options = Options { timeout, ..options(transport, &server, &certificate) };
        match Client::connect(options) {
            Err(ClientError::TimedOut { wanted, .. }) => assert_eq!(wanted, expected),
            other => panic!("{transport:?}: {other:?}"),
        }
        server.join();
    }
}

#[test]
fn pub_and_sub_reach_every_transport_by_its_url() {
    let certificate = Certificate::of("127.0.0.1");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    std::fs::write(&path, certificate.pem()).unwrap();
    for transport in Transport::ALL {
        let trust = match transport.is_tls() {
            true => format!(" --cafile {}", path.display()),
            false => String::new(),
        };
        let server = Server::start(transport, &certificate, |channel| {
            assert_eq!(echo(channel, 100), [0x10, 0x32, 0xE0]);
        });
        let line = format!("pub --host {}{trust} -t a -m x -q 1", transport.url(server.address));
        match parse(&line) {
            Program::Pub(args) => assert_eq!(args.run(&b""[..]).unwrap(), 1),
            Program::Sub(_) => panic!("not sub"),
        }
        server.join();

        let server = Server::start(transport, &certificate, |channel| {
            let mut message = answer(0x30, b"\0\x01t\0hello");
            channel.receive().expect("CONNECT");
            channel.send(&[0x20, 3, 0, 0, 0], 3);
            let subscribe = channel.receive().expect("SUBSCRIBE");
            let suback = [0x90, 4, subscribe[2], subscribe[3], 0, 0];
            message.splice(..0, suback); // in one frame with it
            channel.send(&message, 1000);
            channel.receive();
        });
        let line = format!("sub --host {}{trust} -t t -C 1", transport.url(server.address));
        let mut output = Vec::new();
        match parse(&line) {
            Program::Sub(args) => args.run(&mut output, &AtomicBool::new(false)).unwrap(),
            Program::Pub(_) => panic!("not pub"),
        };
        assert_eq!(output, b"hello\n");
        server.join();
    }
}

#[test]
fn flags_that_make_no_connection_are_errors() {
    fn connect(line: &str) -> Result<Options, ConnectError> {
        match parse(&format!("sub -t t {line}")) {
            Program::Sub(SubArgs { connect, .. }) | Program::Pub(PubArgs { connect, .. }) => {
                connect.options(Vec::new())
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let cafile = format!("--cafile {}", empty.display());
    assert!(matches!(
        connect("--host mqtts://b"),
        Err(ConnectError::Url(UrlError::NobodyToTrust { .. }))
    ));
    assert!(matches!(
        connect("--host b:1 -p 2"),
        Err(ConnectError::Url(UrlError::TwoPorts { port: 1, other: 2 }))
    ));
    assert!(
        matches!(connect(&cafile), Err(ConnectError::Pem { .. })),
        "no certificate is nobody to trust"
    );
    assert_eq!(connect("--host ws://b/x").unwrap().websocket.as_deref(), Some("/x"));
    let error = CommandError::from(connect("--host wss://b").unwrap_err()).to_string();
    assert!(error.contains("--cafile FILE"), "{error}");
}

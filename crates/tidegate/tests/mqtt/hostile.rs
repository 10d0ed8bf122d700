//! Clients that break the rules: each loses its own connection, no one else notices, and memory stays bounded.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use tidegate_load::client::{Client, Outgoing};
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, FixedHeader, Packet, QoS, ReasonCode, RetainHandling,
    SubscribeFilter, Version,
};

use crate::{
    poll::poll,
    program::{LONGEST, Program, options_of},
};

const LISTENER: &str = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nconnect_timeout = \"1s\"\n";

/// A healthy pair that must not notice anything.
struct Healthy {
    publisher: Client,
    subscriber: Client,
    sent: u32,
}

impl Healthy {
    fn connect(address: SocketAddr) -> Self {
        let options = || options_of(address);
        let mut subscriber = Client::connect(options()).unwrap();
        let filter = SubscribeFilter {
            filter: "healthy/#".to_owned(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        subscriber.subscribe(&[filter]).unwrap();
        Self { publisher: Client::connect(options()).unwrap(), subscriber, sent: 0 }
    }

    fn exchange(&mut self) {
        self.sent += 1;
        let payload = self.sent.to_be_bytes();
        let message = Outgoing {
            qos: QoS::AtLeastOnce,
            topic: "healthy/pair",
            payload: &payload,
            ..Outgoing::default()
        };
        self.publisher.publish(&message).unwrap();
        let received = self.subscriber.receive(LONGEST).unwrap().expect("it arrives");
        assert_eq!(received.payload, payload);
    }
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONGEST)).unwrap();
    stream
}

fn connect_bytes(version: Version) -> Vec<u8> {
    let connect = Connect {
        version,
        bridge: false,
        clean_start: true,
        keep_alive: 0,
        client_id: String::new(),
        will: None,
        username: None,
        password: None,
        properties: ConnectProperties::default(),
    };
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(version, &mut bytes).unwrap();
    bytes
}

/// All that the server says until it closes.
fn last_words(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the server does not close: {error}"),
    }
}

/// The reason of the DISCONNECT among `bytes`, if there is one.
fn disconnect_reason(mut bytes: &[u8]) -> Option<ReasonCode> {
    while let Ok(Some(header)) = FixedHeader::decode(bytes, usize::MAX) {
        let body = &bytes[header.header_bytes..header.packet_bytes()];
        if let Ok(Packet::Disconnect(packet)) = Packet::decode(Version::V5, header.first, body) {
            return Some(packet.reason);
        }
        bytes = &bytes[header.packet_bytes()..];
    }
    None
}

#[test]
fn broken_packets_end_their_own_connection_with_the_reason() {
    let program = Program::start(LISTENER);
    let address = program.address("main");
    let mut healthy = Healthy::connect(address);
    let malformed = Some(ReasonCode::MALFORMED_PACKET);
    let protocol = Some(ReasonCode::PROTOCOL_ERROR);
    for (name, bytes, reason) in [
        ("reserved type 0", &[0x00, 0x00][..], malformed),
        ("length of five bytes", &[0x30, 0xff, 0xff, 0xff, 0xff, 0x01], malformed),
        ("PUBLISH of QoS 3", &[0x36, 0x07, 0, 1, b'a', 0, 1, 0, 0], malformed),
        ("wildcard in a topic", &[0x30, 0x06, 0, 3, b'a', b'/', b'#', 0], malformed),
        ("wrong UTF-8", &[0x30, 0x05, 0, 2, 0xc3, 0x28, 0], malformed),
        ("U+0000", &[0x30, 0x05, 0, 2, b'a', 0, 0], malformed),
        ("SUBSCRIBE with wrong flags", &[0x80, 0x07, 0, 1, 0, 0, 1, b'a', 0], malformed),
        ("SUBSCRIBE without filters", &[0x82, 0x03, 0, 1, 0], protocol),
        ("PUBACK too short", &[0x40, 0x01, 0], malformed),
        ("CONNACK from a client", &[0x20, 0x03, 0, 0, 0], protocol),
        ("PINGRESP from a client", &[0xd0, 0x00], protocol),
        ("alias that was not defined", &[0x30, 0x06, 0, 0, 3, 0x23, 0, 1], protocol),
        (
            "alias over the maximum",
            &[0x30, 0x07, 0, 1, b'a', 3, 0x23, 0xff, 0xff],
            Some(ReasonCode::TOPIC_ALIAS_INVALID),
        ),
        (
            "packet over the maximum",
            &[0x30, 0xff, 0xff, 0xff, 0x7f],
            Some(ReasonCode::PACKET_TOO_LARGE),
        ),
        ("AUTH without a method", &[0xf0, 0x00], protocol),
    ] {
        let mut stream = dial(address);
        stream.write_all(&connect_bytes(Version::V5)).unwrap();
        stream.write_all(bytes).unwrap();
        let said = last_words(&mut stream);
        assert_eq!(disconnect_reason(&said), reason, "{name}: {said:02x?}");
        healthy.exchange();
    }
    // A second CONNECT, and a first packet that is none.
    let mut stream = dial(address);
    stream.write_all(&connect_bytes(Version::V5)).unwrap();
    stream.write_all(&connect_bytes(Version::V5)).unwrap();
    assert_eq!(disconnect_reason(&last_words(&mut stream)), protocol);
    let mut stream = dial(address);
    stream.write_all(&[0xc0, 0x00]).unwrap();
    assert!(last_words(&mut stream).is_empty());
    let mut stream = dial(address);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(last_words(&mut stream).is_empty());
    healthy.exchange();
    program.stop();
}

#[test]
fn connections_that_never_speak_are_closed_in_time() {
    let program = Program::start(LISTENER);
    let address = program.address("main");
    let mut healthy = Healthy::connect(address);
    // The parts that begin behind MQTT take some as well.
    program.line_with("node ready");
    let before = program.resident_bytes();
    // As many as the descriptors of a process let be, 10,000 at most.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let count =
        limit.current.map_or(10_000, |most| (most as usize).saturating_sub(300).min(10_000));
    let mut silent: Vec<TcpStream> = (0..count).map(|_| dial(address)).collect();
    let half = &connect_bytes(Version::V4)[..9];
    for stream in silent.iter_mut().skip(count / 2) {
        // The first may have been closed by now.
        let _ = stream.write_all(half);
    }
    healthy.exchange();
    let began = Instant::now();
    for stream in &mut silent {
        assert!(last_words(stream).is_empty());
    }
    assert!(began.elapsed() < LONGEST);
    let grown = program.resident_bytes().saturating_sub(before);
    assert!(grown < count as u64 * (4 << 10), "{grown} bytes for {count} silent connections");
    healthy.exchange();
    program.stop();
}

#[test]
fn deep_topics_and_many_topics_stay_within_their_bounds() {
    let program =
        Program::start(&format!("[mqtt]\nretained_max = 1000\nidentity_share = 1.0\n{LISTENER}"));
    let address = program.address("main");
    let mut healthy = Healthy::connect(address);
    // 65,536 levels, the most that a topic's length allows.
    let topic = "/".repeat(65_535);
    let mut stream = dial(address);
    stream.write_all(&connect_bytes(Version::V5)).unwrap();
    let message =
        Outgoing { qos: QoS::AtMostOnce, topic: &topic, payload: b"x", ..Outgoing::default() };
    stream.write_all(&publish_bytes(&message)).unwrap();
    assert_eq!(disconnect_reason(&last_words(&mut stream)), Some(ReasonCode::TOPIC_NAME_INVALID));
    // More retained topics than allowed: the publisher learns it, the former ones are kept.
    let mut bomber = Client::connect(options_of(address)).unwrap();
    let mut refused = 0;
    for n in 0..1100 {
        let topic = format!("bomb/{n}");
        let message = Outgoing {
            qos: QoS::AtLeastOnce,
            retain: true,
            topic: &topic,
            payload: b"x",
            ..Outgoing::default()
        };
        match bomber.publish(&message) {
            Ok(_) => {}
            Err(tidegate_load::client::ClientError::Publish { reason, .. }) => {
                assert_eq!(reason, ReasonCode::QUOTA_EXCEEDED);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!((100..200).contains(&refused), "{refused} of 1100 refused, $SYS included");
    healthy.exchange();
    program.stop();
}

fn publish_bytes(message: &Outgoing<'_>) -> Vec<u8> {
    let head = tidegate_wire::mqtt::PublishHead {
        dup: false,
        qos: message.qos,
        retain: message.retain,
        topic: message.topic,
        packet_id: None,
        topic_alias: None,
        message_expiry: None,
        subscription_ids: &[],
        forwarded: &[],
        payload_bytes: message.payload.len(),
    };
    let mut bytes = Vec::new();
    head.encode(Version::V5, &mut bytes);
    bytes.extend_from_slice(message.payload);
    bytes
}

#[test]
fn a_client_that_does_not_read_its_answers_is_not_read_from() {
    let program = Program::start(LISTENER);
    let address = program.address("main");
    let mut healthy = Healthy::connect(address);
    // The parts that begin behind MQTT take some as well.
    program.line_with("node ready");
    let before = program.resident_bytes();
    let mut stream = dial(address);
    stream.write_all(&connect_bytes(Version::V4)).unwrap();
    // PINGREQ until neither kernel nor program takes more of them: without a bound this would never end.
    stream.set_nonblocking(true).unwrap();
    let pings: Vec<u8> = [0xc0, 0x00].repeat(32 << 10);
    let mut sent = 0_usize;
    let mut write = |sent: usize| match stream.write(&pings[sent % 2..]) {
        Ok(count) => Some(count),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    };
    while let Some(count) = poll(Duration::from_secs(1), || write(sent)) {
        sent += count;
        assert!(sent < 64 << 20, "it is read from without end");
    }
    let grown = program.resident_bytes().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes of answers");
    healthy.exchange();
    // Once it reads, each is answered.
    stream.set_nonblocking(false).unwrap();
    // The second half of the last one finds room only while answers are read.
    let mut writer = stream.try_clone().unwrap();
    let rest = vec![0; sent % 2];
    sent += rest.len();
    let rest = thread::spawn(move || writer.write_all(&rest).unwrap());
    let mut answers = vec![0; 4 + sent];
    stream.read_exact(&mut answers).unwrap();
    rest.join().unwrap();
    assert!(answers[4..].chunks(2).all(|answer| answer == [0xd0, 0x00]));
    healthy.exchange();
    program.stop();
}

#[test]
fn packets_that_are_never_whole_stay_within_the_budget() {
    let program = Program::start(&format!(
        "[mqtt]\npayload_bytes_max = \"8MiB\"\npacket_bytes_max = \"4MiB\"\n{LISTENER}"
    ));
    let address = program.address("main");
    let mut healthy = Healthy::connect(address);
    // The parts that begin behind MQTT take some as well.
    program.line_with("node ready");
    let before = program.resident_bytes();
    // A hundred SUBSCRIBEs of 200 KB that lack their last byte: five times the half that such packets may take.
    let mut subscribe = vec![0x82, 0xc0, 0x9a, 0x0c];
    subscribe.resize(200_000, 0);
    let mut streams: Vec<TcpStream> = (0..100).map(|_| dial(address)).collect();
    let mut refused = 0;
    for stream in &mut streams {
        stream.write_all(&connect_bytes(Version::V5)).unwrap();
        // It may be ended before it has sent all.
        let whole = stream.write_all(&subscribe);
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut said = Vec::new();
        let end = stream.read_to_end(&mut said);
        match disconnect_reason(&said) {
            Some(reason) => {
                assert_eq!(reason, ReasonCode::QUOTA_EXCEEDED);
                refused += 1;
            }
            None if whole.is_err()
                || !matches!(&end, Err(e) if e.kind() == ErrorKind::WouldBlock) =>
            {
                refused += 1;
            }
            None => {}
        }
    }
    assert!((70..100).contains(&refused), "{refused} of 100 refused");
    let grown = program.resident_bytes().saturating_sub(before);
    assert!(grown < 12 << 20, "{grown} bytes");
    healthy.exchange();
    drop(streams);
    program.stop();
}

#[test]
fn connects_that_are_never_whole_take_no_memory_from_those_who_are_in() {
    let program = Program::start(&format!(
        "[mqtt]\npayload_bytes_max = \"8MiB\"\npacket_bytes_max = \"4MiB\"\n{LISTENER}"
    ));
    let address = program.address("main");
    let mut client = Client::connect(options_of(address)).unwrap();
    // The parts that begin behind MQTT take some as well.
    program.line_with("node ready");
    let before = program.resident_bytes();
    // CONNECTs of 250 kB that lack their last kilobyte, from no one.
    let mut connect = vec![0x10, 0x90, 0xa1, 0x0f];
    connect.resize(249_000, 0);
    let mut streams: Vec<TcpStream> = (0..200).map(|_| dial(address)).collect();
    for stream in &mut streams {
        // It may be ended before it has sent all.
        let _ = stream.write_all(&connect);
    }
    for _ in 0..10 {
        let payload = vec![b'x'; 100_000];
        let qos = QoS::AtLeastOnce;
        let message = Outgoing { topic: "t", payload: &payload, qos, ..Outgoing::default() };
        assert_eq!(client.publish(&message).unwrap(), ReasonCode::NO_MATCHING_SUBSCRIBERS);
    }
    let grown = program.resident_bytes().saturating_sub(before);
    assert!(grown < 40 << 20, "{grown} bytes");
    drop(streams);
    program.stop();
}

#[test]
fn each_listener_has_its_own_limits() {
    let program = Program::start(&format!(
        "{LISTENER}[mqtt.listener.small]\nlisten = \"127.0.0.1:0\"\npacket_bytes_max = \"2KiB\"\n\
         topic_levels_max = 3\ntopic_bytes_max = \"20B\"\n"
    ));
    let mut healthy = Healthy::connect(program.address("main"));
    let publish = |listener: &str, topic: &str, bytes: usize| {
        let mut stream = dial(program.address(listener));
        stream.write_all(&connect_bytes(Version::V5)).unwrap();
        let payload = vec![1; bytes];
        let message =
            Outgoing { qos: QoS::AtMostOnce, topic, payload: &payload, ..Outgoing::default() };
        stream.write_all(&publish_bytes(&message)).unwrap();
        // A valid session ends with a farewell.
        stream.write_all(&[0xe0, 0x00]).unwrap();
        disconnect_reason(&last_words(&mut stream))
    };
    let long = "a".repeat(21);
    for (topic, bytes, reason) in [
        ("a/b/c", 1000, None),
        ("a/b/c", 3000, Some(ReasonCode::PACKET_TOO_LARGE)),
        ("a/b/c/d", 10, Some(ReasonCode::TOPIC_NAME_INVALID)),
        (&*long, 10, Some(ReasonCode::TOPIC_NAME_INVALID)),
    ] {
        assert_eq!(publish("small", topic, bytes), reason, "{topic}, {bytes} bytes");
        assert_eq!(publish("main", topic, bytes), None, "{topic}, {bytes} bytes");
    }
    healthy.exchange();
    program.stop();
}

#[test]
fn packet_identifiers_that_are_used_twice_confuse_nobody() {
    let program = Program::start(LISTENER);
    let address = program.address("main");
    let mut healthy = Healthy::connect(address);
    let mut subscriber = Client::connect(options_of(address)).unwrap();
    let filter = SubscribeFilter {
        filter: "twice".to_owned(),
        maximum_qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    subscriber.subscribe(&[filter]).unwrap();
    let mut stream = dial(address);
    stream.write_all(&connect_bytes(Version::V4)).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    // Another message under an identifier that is not released yet is taken for the first one again (section 4.3.3).
    let publish = |letter: u8| [0x34, 0x0a, 0, 5, b't', b'w', b'i', b'c', b'e', 0, 7, letter];
    for letter in [b'a', b'b'] {
        stream.write_all(&publish(letter)).unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x50, 0x02, 0, 7]);
    }
    stream.write_all(&[0x62, 0x02, 0, 7]).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x70, 0x02, 0, 7]);
    // Released, it names a new one.
    stream.write_all(&publish(b'c')).unwrap();
    stream.read_exact(&mut answer).unwrap();
    for expected in [b"a", b"c"] {
        let message = subscriber.receive(LONGEST).unwrap().expect("it arrives");
        assert_eq!(message.payload, expected);
    }
    healthy.exchange();
    program.stop();
}

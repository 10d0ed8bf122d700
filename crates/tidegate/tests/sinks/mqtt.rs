//! Sinks of MQTT: at this program's own broker, and at scripted brokers.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use tidegate_broker::{BrokerConfig, SessionConfig};
use tidegate_load::client::Outgoing;
use tidegate_message::{Action, Authorize, Decision, Identity, Target};
use tidegate_sinks::{DestinationSettings, Sink, SinkSettings, mqtt::MqttSettings};
use tidegate_wire::mqtt::{
    AckKind, Connack, Disconnect, FixedHeader, Packet, QoS, ReasonCode, Version, encode_ack,
};

use crate::world::{
    client, port, publish, ready, receive, server, server_on, settings, subscriber, until,
};

fn to(port: u16) -> SinkSettings {
    let destination = MqttSettings {
        host: "127.0.0.1".to_owned(),
        port,
        tls: None,
        client_id: "here.sink.test".to_owned(),
        username: None,
        password: None,
        node: "here".to_owned(),
    };
    SinkSettings {
        destination: DestinationSettings::Mqtt(destination),
        dead_letter: Some("dead".to_owned()),
        ..settings("a/# secret/#")
    }
}

/// No client may publish below `secret/`.
#[derive(Debug)]
struct NoSecrets;

impl Authorize for NoSecrets {
    fn decide(&self, _: &Identity, action: Action, target: Target<'_>) -> Decision {
        match target {
            Target::Topic(topic) if action == Action::Publish && topic.starts_with("secret/") => {
                Decision::deny("no secrets")
            }
            _ => Decision::allow("all else"),
        }
    }

    fn generation(&self) -> u64 {
        0
    }

    fn receives_all(&self) -> bool {
        true
    }
}

#[test]
fn messages_come_with_their_properties_and_what_is_refused_becomes_a_dead_letter() {
    let session = SessionConfig { packet_bytes_max: 2_000, ..SessionConfig::default() };
    let there = BrokerConfig { session, ..BrokerConfig::default() };
    let there = server_on((Ipv4Addr::LOCALHOST, 0).into(), there, Arc::new(NoSecrets));
    let here = server(BrokerConfig::default());
    let mut far = subscriber(&there, "#");
    let sink = Sink::start(to(port(&there)), here.connector().into()).unwrap();
    ready(&here, "test");
    let mut letters = subscriber(&here, "dead");
    let mut publisher = client(&here, "publisher");
    let user_properties = [("k".to_owned(), "v".to_owned())];
    for number in 0..500 {
        let payload = number.to_string();
        let message = Outgoing {
            topic: "a/x",
            payload: payload.as_bytes(),
            qos: QoS::AtLeastOnce,
            message_expiry: Some(1_000),
            user_properties: &user_properties,
            ..Outgoing::default()
        };
        assert!(!publisher.publish(&message).unwrap().is_failure());
        if number == 100 {
            publish(&mut publisher, "secret/x", b"hush");
        }
        if number == 200 {
            publish(&mut publisher, "a/long", &[7; 3_000]);
        }
    }
    for number in 0..500 {
        let message = receive(&mut far);
        assert_eq!(String::from_utf8_lossy(&message.payload), number.to_string());
        let expected = [("k", "v"), ("tidegate-bridge", "out/here")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(message.user_properties, expected);
        assert!(message.message_expiry.is_some_and(|left| (900..=1_000).contains(&left)));
    }
    for (topic, payload, why) in [
        ("secret/x", &b"hush"[..], "Not authorized"),
        ("a/long", &[7; 3_000], "takes 2000 at most"),
    ] {
        let letter = receive(&mut letters);
        assert_eq!(letter.payload, payload);
        let told: HashMap<String, String> = letter.user_properties.into_iter().collect();
        assert_eq!(told["tidegate-topic"], topic);
        assert!(told["tidegate-reason"].contains(why), "{told:?}");
    }
    until("all was settled", || sink.report().dead_lettered == 2);
    let report = sink.stop();
    assert_eq!((report.messages, report.refused, report.failures), (500, 2, 0));
}

#[test]
fn messages_that_passed_this_node_do_not_go_back() {
    let there = server(BrokerConfig::default());
    let here = server(BrokerConfig::default());
    let mut far = subscriber(&there, "#");
    let sink = Sink::start(to(port(&there)), here.connector().into()).unwrap();
    ready(&here, "test");
    let mut publisher = client(&here, "publisher");
    for passed in ["out/here", "out/other"] {
        let message = Outgoing {
            topic: "a/x",
            payload: passed.as_bytes(),
            qos: QoS::AtLeastOnce,
            user_properties: &[("tidegate-bridge".to_owned(), passed.to_owned())],
            ..Outgoing::default()
        };
        assert!(!publisher.publish(&message).unwrap().is_failure());
    }
    assert_eq!(receive(&mut far).payload, b"out/other");
    until("both were settled", || sink.report().messages == 2);
}

#[test]
fn while_the_broker_is_away_messages_wait_and_then_come_in_order() {
    let place = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let here = server(BrokerConfig::default());
    let sink = Sink::start(to(address.port()), here.connector().into()).unwrap();
    ready_when_down(&here);
    let mut publisher = client(&here, "publisher");
    for number in 0..300 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("it was tried", || sink.report().failures >= 2);
    let there = server_on(address, BrokerConfig::default(), Arc::new(tidegate_message::AllowAll));
    let mut far = subscriber(&there, "#");
    let mut expected = 0;
    while expected < 300 {
        let got: usize = String::from_utf8(receive(&mut far).payload).unwrap().parse().unwrap();
        // The subscriber came behind some, perhaps; none is missing after that.
        assert!(got == expected || expected == 0, "{got} instead of {expected}");
        expected = got + 1;
    }
    until("all was taken", || sink.report().messages == 300);
    // It ends, and the sink finds out by the next message.
    drop(far);
    drop(there);
    let there = server_on(address, BrokerConfig::default(), Arc::new(tidegate_message::AllowAll));
    let mut far = subscriber(&there, "#");
    publish(&mut publisher, "a/x", b"again");
    assert_eq!(receive(&mut far).payload, b"again");
    until("it was taken", || sink.report().messages == 301);
}

/// The sink subscribes whether or not its destination is there.
fn ready_when_down(server: &tidegate_server::Server) {
    let mut watcher = subscriber(server, "$SYS/broker/sink/test/state");
    receive(&mut watcher);
}

/// The packets that a broker was sent, and how many connections it had.
#[derive(Debug, Default)]
struct Told {
    payloads: Vec<Vec<u8>>,
    connections: usize,
}

/// A broker that speaks one version, and ends a connection for a message that says `poison`, with a word where that version has one.
fn scripted(version: Version) -> (u16, Arc<Mutex<Told>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let told = Arc::<Mutex<Told>>::default();
    let seen = told.clone();
    thread::spawn(move || {
        for connection in listener.incoming() {
            seen.lock().unwrap().connections += 1;
            let Ok(connection) = connection else { return };
            serve(connection, version, &seen);
        }
    });
    (port, told)
}

fn serve(mut socket: TcpStream, version: Version, told: &Mutex<Told>) {
    let (mut input, mut read) = (Vec::new(), [0; 4096]);
    let mut is_open = false;
    loop {
        let count = socket.read(&mut read).unwrap_or(0);
        if count == 0 {
            return;
        }
        input.extend_from_slice(&read[..count]);
        let mut output = Vec::new();
        while let Some(header) = FixedHeader::decode(&input, 1 << 20).unwrap() {
            if input.len() < header.packet_bytes() {
                break;
            }
            let packet: Vec<u8> = input.drain(..header.packet_bytes()).collect();
            let spoken = if is_open { version } else { Version::V5 };
            match Packet::decode(spoken, packet[0], &packet[header.header_bytes..]).unwrap() {
                Packet::Connect(connect) => {
                    is_open = connect.version == version;
                    let reason = match is_open {
                        true => ReasonCode::SUCCESS,
                        false => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
                    };
                    let properties = Default::default();
                    let connack = Connack { session_present: false, reason, properties };
                    Packet::Connack(Box::new(connack)).encode(version, &mut output).unwrap();
                    if !is_open {
                        let _ = socket.write_all(&output);
                        return;
                    }
                }
                Packet::Publish(publish) if publish.payload == b"poison" => {
                    let reason = ReasonCode::PACKET_TOO_LARGE;
                    let disconnect = Disconnect { reason, ..Disconnect::default() };
                    output.clear();
                    if version == Version::V5 {
                        Packet::Disconnect(disconnect).encode(version, &mut output).unwrap();
                        let _ = socket.write_all(&output);
                    }
                    return;
                }
                Packet::Publish(publish) => {
                    let id = publish.packet_id.unwrap();
                    encode_ack(version, AckKind::Puback, id, ReasonCode::SUCCESS, &mut output);
                    told.lock().unwrap().payloads.push(publish.payload.to_vec());
                }
                _ => return,
            }
        }
        if socket.write_all(&output).is_err() {
            return;
        }
    }
}

#[test]
fn a_message_for_which_the_broker_ends_the_connection_does_not_hold_up_others() {
    for version in [Version::V5, Version::V4] {
        let (port, told) = scripted(version);
        let here = server(BrokerConfig::default());
        let sink = Sink::start(to(port), here.connector().into()).unwrap();
        ready(&here, "test");
        let mut letters = subscriber(&here, "dead");
        let mut publisher = client(&here, "publisher");
        for number in 0..40 {
            let text = if number % 20 == 10 { "poison".to_owned() } else { number.to_string() };
            publish(&mut publisher, "a/x", text.as_bytes());
        }
        for _ in 0..2 {
            assert_eq!(receive(&mut letters).payload, b"poison");
        }
        until("all was settled", || {
            let report = sink.report();
            report.messages == 38 && report.dead_lettered == 2
        });
        let came = told.lock().unwrap().payloads.clone();
        // Some may have come twice, none is missing.
        for number in (0..40).filter(|number| number % 20 != 10) {
            assert!(came.contains(&number.to_string().into_bytes()), "{version:?}: {number}");
        }
    }
}

#[test]
fn a_broker_of_mqtt_3_1_1_is_spoken_to_in_its_version() {
    let (port, told) = scripted(Version::V4);
    let here = server(BrokerConfig::default());
    let sink = Sink::start(to(port), here.connector().into()).unwrap();
    ready(&here, "test");
    let mut publisher = client(&here, "publisher");
    for number in 0..30 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("all was taken", || sink.report().messages == 30);
    let told = told.lock().unwrap();
    let expected: Vec<Vec<u8>> = (0..30).map(|number| number.to_string().into_bytes()).collect();
    assert_eq!(told.payloads, expected);
    assert_eq!((told.connections, sink.report().failures), (2, 0));
}

//! Clauses, one by one; `pair` lets a client and a server lose their connection at every byte.

mod pair;

use super::*;
use crate::mqtt::{ConnackProperties, ConnectProperties, DecodeError, Suback};

const ALL: [Version; 3] = [Version::V3, Version::V4, Version::V5];

fn at(seconds: u64) -> Instant {
    Instant::EPOCH + Duration::from_secs(seconds)
}

fn id(number: u16) -> PacketId {
    PacketId::new(number).expect("not zero")
}

fn ack(number: u16) -> Ack {
    Ack::new(id(number), ReasonCode::SUCCESS)
}

/// A CONNECT whose session outlives the connection.
fn lasting(version: Version) -> Connect {
    let session_expiry = Some(60);
    let properties = ConnectProperties { session_expiry, ..ConnectProperties::default() };
    Connect { clean_start: false, properties, ..Connect::new(version, "one") }
}

fn connack(session_present: bool) -> Connack {
    Connack { session_present, ..Connack::default() }
}

fn limited(properties: ConnackProperties) -> Connack {
    Connack { properties, ..Connack::default() }
}

fn encoded(version: Version, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes).expect("it is short");
    bytes
}

/// Hands one packet to the client; what it says to it, in words.
fn given(client: &mut Client<u64>, packet: &Packet<'_>) -> Result<Vec<String>, ClientError> {
    let bytes = encoded(client.version(), packet);
    let (mut input, mut events) = (&bytes[..], Vec::new());
    while let Some(event) = client.receive(&mut input)? {
        events.push(match event {
            Event::Connected { connack, was_expected } => {
                format!("connected {} {was_expected}", connack.session_present)
            }
            Event::Message(message) => {
                let text = String::from_utf8_lossy(message.payload);
                format!("message {} {text}{}", message.topic, if message.dup { " dup" } else { "" })
            }
            Event::Received { packet_id, reason } => format!("received {packet_id} {reason}"),
            Event::Acknowledged { token, reason, .. } => format!("acknowledged {token} {reason}"),
            Event::Subscribed { token, reasons } => format!("subscribed {token} {reasons:?}"),
            Event::Unsubscribed { token, reasons } => format!("unsubscribed {token} {reasons:?}"),
        });
    }
    assert!(input.is_empty());
    Ok(events)
}

fn happens(client: &mut Client<u64>, packet: &Packet<'_>) -> Vec<String> {
    given(client, packet).expect("it is in place")
}

/// The packets that the client sends, in words.
fn sent(client: &mut Client<u64>, now: Instant) -> Vec<String> {
    let mut bytes = Vec::new();
    client.transmit(now, &mut bytes);
    words(client.version(), &bytes)
}

fn words(version: Version, mut rest: &[u8]) -> Vec<String> {
    let mut packets = Vec::new();
    while let Some(header) = FixedHeader::decode(rest, usize::MAX).expect("a header") {
        let (packet, after) = rest.split_at(header.packet_bytes());
        rest = after;
        packets.push(match Packet::decode(version, packet[0], &packet[header.header_bytes..]) {
            Ok(Packet::Publish(publish)) => format!(
                "publish {} {:?} {} {}{}{}",
                publish.packet_id.map_or(0, NonZeroU16::get),
                publish.topic,
                String::from_utf8_lossy(publish.payload),
                publish.qos as u8,
                publish
                    .properties
                    .topic_alias
                    .map_or(String::new(), |alias| format!(" as {alias}")),
                if publish.dup { " dup" } else { "" }
            ),
            Ok(Packet::Puback(ack)) => format!("puback {} {}", ack.packet_id, ack.reason.0),
            Ok(Packet::Pubrec(ack)) => format!("pubrec {} {}", ack.packet_id, ack.reason.0),
            Ok(Packet::Pubrel(ack)) => format!("pubrel {}", ack.packet_id),
            Ok(Packet::Pubcomp(ack)) => format!("pubcomp {}", ack.packet_id),
            Ok(Packet::Connect(connect)) => format!("connect clean {}", connect.clean_start),
            Ok(Packet::Subscribe(subscribe)) => format!("subscribe {}", subscribe.packet_id),
            Ok(Packet::Unsubscribe(packet)) => format!("unsubscribe {}", packet.packet_id),
            Ok(Packet::Pingreq) => "pingreq".to_owned(),
            Ok(Packet::Disconnect(disconnect)) => format!("disconnect {}", disconnect.reason.0),
            other => panic!("{other:?}"),
        });
    }
    assert!(rest.is_empty());
    packets
}

/// A client that was let in, with nothing to send.
fn connected(config: Config, connect: &Connect, connack: Connack) -> Client<u64> {
    let mut client = Client::new(config);
    client.connect(at(0), connect).expect("it is short");
    happens(&mut client, &Packet::Connack(Box::new(connack)));
    sent(&mut client, at(0));
    client
}

fn reconnect(client: &mut Client<u64>, connect: &Connect, connack: Connack) -> Vec<String> {
    client.closed();
    client.connect(at(0), connect).expect("it is short");
    happens(client, &Packet::Connack(Box::new(connack)))
}

fn publish(
    client: &mut Client<u64>,
    token: u64,
    payload: &str,
    qos: QoS,
) -> Result<Option<PacketId>, PublishError> {
    let payload = payload.as_bytes();
    client.publish(&Publication { topic: "t", payload, qos, ..Publication::default() }, token)
}

fn message(number: u16, qos: QoS, dup: bool) -> Packet<'static> {
    Packet::Publish(Publish {
        dup,
        qos,
        retain: false,
        topic: "t",
        packet_id: PacketId::new(number),
        properties: PublishProperties::NONE,
        payload: b"m",
    })
}

fn filter(filter: &str) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: Default::default(),
    }
}

fn suback(number: u16, reasons: &[ReasonCode]) -> Suback {
    let (reason_string, user_properties) = (None, Vec::new());
    Suback { packet_id: id(number), reason_string, user_properties, reasons: reasons.to_vec() }
}

// ---- messages to the server

#[test]
fn what_was_not_acknowledged_is_sent_again_in_its_order() {
    // MQTT-4.4.0-1, MQTT-4.6.0-1, MQTT-2.2.1-6.
    for version in [Version::V4, Version::V5] {
        let mut client = connected(Config::default(), &lasting(version), connack(false));
        for (token, text, qos) in [
            (10, "a", QoS::AtLeastOnce),
            (11, "b", QoS::ExactlyOnce),
            (12, "c", QoS::ExactlyOnce),
            (13, "d", QoS::AtLeastOnce),
            (14, "e", QoS::AtMostOnce),
        ] {
            publish(&mut client, token, text, qos).expect("there is room");
        }
        assert_eq!(
            sent(&mut client, at(0)),
            [
                "publish 1 \"t\" a 1",
                "publish 2 \"t\" b 2",
                "publish 3 \"t\" c 2",
                "publish 4 \"t\" d 1",
                "publish 0 \"t\" e 0"
            ]
        );
        let done = happens(&mut client, &Packet::Puback(ack(1)));
        assert_eq!(done, ["acknowledged 10 Success (0x00)"]);
        let done = happens(&mut client, &Packet::Pubrec(ack(2)));
        assert_eq!(done, ["received 2 Success (0x00)"]);
        assert_eq!(sent(&mut client, at(0)), ["pubrel 2"]);
        client.closed();
        assert_eq!((client.room(), client.unacknowledged()), (0, 3));
        assert_eq!(
            publish(&mut client, 15, "x", QoS::AtLeastOnce),
            Err(PublishError::NotConnected)
        );
        let done = reconnect(&mut client, &lasting(version), connack(true));
        assert_eq!(done, ["connected true true"]);
        assert_eq!(
            sent(&mut client, at(0)),
            [
                "connect clean false",
                "pubrel 2",
                "publish 3 \"t\" c 2 dup",
                "publish 4 \"t\" d 1 dup"
            ]
        );
        let done = happens(&mut client, &Packet::Pubcomp(ack(2)));
        assert_eq!(done, ["acknowledged 11 Success (0x00)"]);
        publish(&mut client, 15, "f", QoS::AtLeastOnce).expect("there is room");
        assert_eq!(sent(&mut client, at(0)), ["publish 5 \"t\" f 1"], "identifiers go on");
        assert_eq!(client.unacknowledged(), 3);
    }
}

#[test]
fn no_more_is_sent_again_than_the_server_takes_now() {
    // MQTT-3.3.4-9: each connection begins with the full quota.
    let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
    for (token, qos) in
        [(1, QoS::ExactlyOnce), (2, QoS::AtLeastOnce), (3, QoS::AtLeastOnce), (4, QoS::AtLeastOnce)]
    {
        publish(&mut client, token, "x", qos).expect("there is room");
    }
    happens(&mut client, &Packet::Pubrec(ack(1)));
    let two = ConnackProperties { receive_maximum: NonZeroU16::new(2), ..Default::default() };
    reconnect(
        &mut client,
        &lasting(Version::V5),
        Connack { session_present: true, ..limited(two) },
    );
    assert_eq!(
        sent(&mut client, at(0)),
        ["connect clean false", "pubrel 1", "publish 2 \"t\" x 1 dup"]
    );
    assert_eq!(client.room(), 0);
    happens(&mut client, &Packet::Pubcomp(ack(1)));
    assert_eq!(sent(&mut client, at(0)), ["publish 3 \"t\" x 1 dup"]);
    happens(&mut client, &Packet::Puback(ack(3)));
    assert_eq!(sent(&mut client, at(0)), ["publish 4 \"t\" x 1 dup"]);
    assert!(matches!(
        publish(&mut client, 5, "x", QoS::AtLeastOnce),
        Err(PublishError::NoRoom { unacknowledged: 2 })
    ));
    happens(&mut client, &Packet::Puback(ack(2)));
    assert_eq!(client.room(), 1);
}

#[test]
fn what_new_limits_rule_out_is_answered_here() {
    let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
    publish(&mut client, 1, &"x".repeat(100), QoS::AtLeastOnce).expect("there is room");
    publish(&mut client, 2, "x", QoS::ExactlyOnce).expect("there is room");
    publish(&mut client, 3, "x", QoS::AtLeastOnce).expect("there is room");
    let less = ConnackProperties {
        maximum_packet_size: Some(50),
        maximum_qos: Some(QoS::AtLeastOnce),
        ..Default::default()
    };
    let connack = Connack { session_present: true, ..limited(less) };
    let mut done = reconnect(&mut client, &lasting(Version::V5), connack);
    done.sort_unstable();
    assert_eq!(
        done,
        [
            "acknowledged 1 Packet too large (0x95)",
            "acknowledged 2 QoS not supported (0x9b)",
            "connected true true"
        ]
    );
    assert_eq!(sent(&mut client, at(0)), ["connect clean false", "publish 3 \"t\" x 1 dup"]);
    assert_eq!(client.unacknowledged(), 1);
}

#[test]
fn a_window_and_its_identifiers_come_round() {
    let config =
        Config { inflight_max: NonZeroU16::new(3).expect("not zero"), ..Config::default() };
    let mut client = connected(config, &Connect::new(Version::V5, ""), connack(false));
    let mut used = [0; 7];
    for round in 0..20 {
        let mut ids = Vec::new();
        while client.room() > 0 {
            ids.push(
                publish(&mut client, round, "x", QoS::AtLeastOnce).expect("room").expect("id"),
            );
        }
        assert_eq!(ids.len(), 3);
        for id in ids {
            used[usize::from(id.get())] += 1;
            happens(&mut client, &Packet::Puback(Ack::new(id, ReasonCode::SUCCESS)));
        }
    }
    assert_eq!(used, [0, 10, 10, 10, 10, 10, 10]);
}

#[test]
fn identifiers_may_be_taken_from_the_end() {
    let inflight_max = NonZeroU16::new(2).expect("not zero");
    let config = Config { inflight_max, ids_from_the_end: true, ..Config::default() };
    let mut client = connected(config, &lasting(Version::V5), connack(false));
    client.subscribe(vec![filter("a")], None, 1).expect("there is room");
    publish(&mut client, 2, "x", QoS::AtLeastOnce).expect("there is room");
    publish(&mut client, 3, "y", QoS::ExactlyOnce).expect("there is room");
    let before = ["subscribe 65535", "publish 65534 \"t\" x 1", "publish 65533 \"t\" y 2"];
    assert_eq!(sent(&mut client, at(0)), before);
    assert_eq!(client.token(id(65_534)), Some(&2));
    assert_eq!(client.token(id(1)), None);
    let unasked = given(&mut client, &Packet::Puback(ack(1))).expect_err("it has not sent it");
    assert_eq!(unasked, ClientError::Unasked { packet: "PUBACK", id: id(1) });
    reconnect(&mut client, &lasting(Version::V5), connack(true));
    assert_eq!(
        sent(&mut client, at(0))[1..],
        ["publish 65534 \"t\" x 1 dup", "publish 65533 \"t\" y 2 dup"]
    );
    let done = happens(&mut client, &Packet::Puback(ack(65_534)));
    assert_eq!(done, ["acknowledged 2 Success (0x00)"]);
    // The one that never was comes first, then those that are free again.
    for expected in [65_532, 65_535, 65_534] {
        let next = client.unsubscribe(vec!["a".to_owned()], 4).expect("there is room");
        assert_eq!(next, id(expected));
        happens(&mut client, &Packet::Unsuback(suback(expected, &[ReasonCode::SUCCESS])));
    }
}

#[test]
fn refusals_end_an_exchange() {
    let mut client = connected(Config::default(), &Connect::new(Version::V5, ""), connack(false));
    publish(&mut client, 1, "x", QoS::AtLeastOnce).expect("there is room");
    publish(&mut client, 2, "x", QoS::ExactlyOnce).expect("there is room");
    let reason = ReasonCode::QUOTA_EXCEEDED;
    let done = happens(&mut client, &Packet::Puback(Ack { reason, ..ack(1) }));
    assert_eq!(done, ["acknowledged 1 Quota exceeded (0x97)"]);
    let done = happens(&mut client, &Packet::Pubrec(Ack { reason, ..ack(2) }));
    assert_eq!(done, ["acknowledged 2 Quota exceeded (0x97)"]);
    assert_eq!((sent(&mut client, at(0)).len(), client.unacknowledged()), (2, 0));
    // Of a message that the server took, PUBREC says whether anything subscribes.
    publish(&mut client, 3, "x", QoS::ExactlyOnce).expect("there is room");
    let reason = ReasonCode::NO_MATCHING_SUBSCRIBERS;
    happens(&mut client, &Packet::Pubrec(Ack { reason, ..ack(3) }));
    happens(&mut client, &Packet::Pubrec(ack(3)));
    assert_eq!(sent(&mut client, at(0))[1..], ["pubrel 3", "pubrel 3"]);
    let reason = ReasonCode::PACKET_IDENTIFIER_NOT_FOUND;
    let done = happens(&mut client, &Packet::Pubcomp(Ack { reason, ..ack(3) }));
    assert_eq!(done, ["acknowledged 3 No matching subscribers (0x10)"]);
}

#[test]
fn what_the_server_does_not_take_is_not_sent() {
    let limits = ConnackProperties {
        receive_maximum: NonZeroU16::new(1),
        maximum_qos: Some(QoS::AtLeastOnce),
        retain_available: Some(false),
        maximum_packet_size: Some(20),
        wildcard_available: Some(false),
        shared_available: Some(false),
        subscription_ids_available: Some(false),
        ..ConnackProperties::default()
    };
    let connect = Connect::new(Version::V5, "");
    let mut client = connected(Config::default(), &connect, limited(limits));
    let whole = Publication { topic: "t", payload: b"x", ..Publication::default() };
    for (message, expected) in [
        (Publication { topic: "", ..whole }, "\"\" is not a topic name"),
        (Publication { topic: "a/+", ..whole }, "\"a/+\" is not a topic name"),
        (Publication { topic: "a\0", ..whole }, "is not a topic name"),
        (Publication { topic: &"x".repeat(70_000), ..whole }, "is not a topic name"),
        (Publication { qos: QoS::ExactlyOnce, ..whole }, "takes QoS 1 at most"),
        (Publication { retain: true, ..whole }, "retains no messages"),
        (
            Publication { payload: &[0; 15], ..whole },
            "21 bytes is longer than the server takes, 20",
        ),
        (Publication { topic_alias: NonZeroU16::new(1), ..whole }, "topic alias 1 is over"),
    ] {
        let error = client.publish(&message, 0).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    client.publish(&Publication { payload: &[0; 14], ..whole }, 0).expect("20 bytes");
    publish(&mut client, 1, "", QoS::AtLeastOnce).expect("there is room for one");
    let error = publish(&mut client, 1, "", QoS::AtLeastOnce).expect_err("no room").to_string();
    assert!(error.contains("1 messages wait"), "{error}");
    for (filters, subscription_id, expected) in [
        (vec![filter("#")], None, "takes no wildcards, and \"#\""),
        (vec![filter("a"), filter("$share/g/a")], None, "shares no subscriptions"),
        (vec![filter("a")], Some(1), "takes no subscription identifiers"),
        (Vec::new(), None, "cannot be encoded"),
    ] {
        let error = client.subscribe(filters, subscription_id, 0).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(sent(&mut client, at(0)).len(), 2, "nothing else was written");
    assert_eq!(client.request_room(), 64);
}

#[test]
fn an_alias_stands_for_its_topic_on_one_connection() {
    // Section 3.3.2.3.4.
    let limits = ConnackProperties { topic_alias_maximum: 2, ..ConnackProperties::default() };
    let mut client = connected(Config::default(), &lasting(Version::V5), limited(limits.clone()));
    let topic_alias = NonZeroU16::new(2);
    let qos = QoS::AtLeastOnce;
    for topic in ["t", "t", "u"] {
        let message = Publication { topic, payload: b"x", qos, topic_alias, ..Default::default() };
        client.publish(&message, 0).expect("there is room");
    }
    assert_eq!(
        sent(&mut client, at(0)),
        ["publish 1 \"t\" x 1 as 2", "publish 2 \"\" x 1 as 2", "publish 3 \"u\" x 1 as 2"]
    );
    let connack = Connack { session_present: true, ..limited(limits) };
    reconnect(&mut client, &lasting(Version::V5), connack);
    assert_eq!(
        sent(&mut client, at(0))[1..],
        ["publish 1 \"t\" x 1 dup", "publish 2 \"t\" x 1 dup", "publish 3 \"u\" x 1 dup"]
    );
}

#[test]
fn a_caller_may_write_its_messages_itself() {
    let mut client = connected(Config::default(), &Connect::new(Version::V4, ""), connack(false));
    let first = client.begin(QoS::AtLeastOnce, 7).expect("there is room");
    assert_eq!((first, client.output_bytes()), (id(1), 0));
    assert_eq!(happens(&mut client, &Packet::Puback(ack(1))), ["acknowledged 7 Success (0x00)"]);
    client.answer(QoS::AtLeastOnce, id(9), ReasonCode::SUCCESS);
    assert_eq!(sent(&mut client, at(0)), ["puback 9 0"]);
    client.closed();
    assert_eq!(client.begin(QoS::AtLeastOnce, 7), None);
}

// ---- messages from the server

#[test]
fn a_message_of_qos_2_is_given_out_once_over_all_connections() {
    let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
    let first = message(7, QoS::ExactlyOnce, false);
    assert_eq!(happens(&mut client, &first), ["message t m"]);
    reconnect(&mut client, &lasting(Version::V5), connack(true));
    assert!(happens(&mut client, &message(7, QoS::ExactlyOnce, true)).is_empty());
    assert!(happens(&mut client, &Packet::Pubrel(ack(7))).is_empty());
    assert!(happens(&mut client, &Packet::Pubrel(ack(7))).is_empty(), "as after a kill");
    assert_eq!(
        sent(&mut client, at(0)),
        ["connect clean false", "pubrec 7 0", "pubcomp 7", "pubcomp 7"]
    );
    assert_eq!(happens(&mut client, &first), ["message t m"], "the identifier is free");
    let again = message(8, QoS::AtLeastOnce, true);
    for _ in 0..2 {
        assert_eq!(happens(&mut client, &again), ["message t m dup"], "at least once");
    }
}

#[test]
fn a_caller_acknowledges_when_it_has_the_message() {
    let config = Config { acknowledges: false, ..Config::default() };
    let mut client = connected(config, &lasting(Version::V5), connack(false));
    assert_eq!(happens(&mut client, &message(1, QoS::AtLeastOnce, false)), ["message t m"]);
    assert_eq!(happens(&mut client, &message(2, QoS::ExactlyOnce, false)), ["message t m"]);
    assert_eq!(happens(&mut client, &message(3, QoS::ExactlyOnce, false)), ["message t m"]);
    assert!(sent(&mut client, at(0)).is_empty());
    assert!(client.acknowledge(id(1), ReasonCode::SUCCESS));
    assert!(!client.acknowledge(id(1), ReasonCode::SUCCESS), "once");
    assert!(client.acknowledge(id(2), ReasonCode::SUCCESS));
    assert!(!client.acknowledge(id(2), ReasonCode::SUCCESS), "once");
    assert!(!client.acknowledge(id(9), ReasonCode::SUCCESS), "it never came");
    assert_eq!(sent(&mut client, at(0)), ["puback 1 0", "pubrec 2 0"]);
    // 2 was acknowledged and its PUBREC lost; 3 was given out and waits.
    reconnect(&mut client, &lasting(Version::V5), connack(true));
    assert!(!client.acknowledge(id(3), ReasonCode::SUCCESS), "it has not come again");
    for number in [2, 3] {
        assert!(happens(&mut client, &message(number, QoS::ExactlyOnce, true)).is_empty());
    }
    assert_eq!(sent(&mut client, at(0))[1..], ["pubrec 2 0", "pubrec 3 0"]);
    happens(&mut client, &Packet::Pubrel(ack(2)));
    assert_eq!(sent(&mut client, at(0)), ["pubcomp 2"]);
    // A refusal ends the exchange (section 4.3.3).
    assert_eq!(happens(&mut client, &message(4, QoS::ExactlyOnce, false)), ["message t m"]);
    assert!(client.acknowledge(id(4), ReasonCode::QUOTA_EXCEEDED));
    assert_eq!(sent(&mut client, at(0)), ["pubrec 4 151"]);
    assert_eq!(happens(&mut client, &message(4, QoS::ExactlyOnce, false)), ["message t m"]);
}

#[test]
fn a_server_that_sends_more_than_it_may_is_named() {
    let two = NonZeroU16::new(2);
    let properties = ConnectProperties { receive_maximum: two, ..ConnectProperties::default() };
    let connect = Connect { properties, ..Connect::new(Version::V5, "") };
    let config = Config { acknowledges: false, ..Config::default() };
    let mut client = connected(config, &connect, connack(false));
    for number in 1..=2 {
        happens(&mut client, &message(number, QoS::AtLeastOnce, false));
    }
    let error = given(&mut client, &message(3, QoS::AtLeastOnce, false)).expect_err("a third");
    assert_eq!(error, ClientError::ReceiveMaximum { maximum: 2 });
    assert!(!client.is_connected());
    // QoS 2 is open until PUBCOMP, whichever side acknowledges.
    let mut client = connected(Config::default(), &connect, connack(false));
    for number in 1..=2 {
        happens(&mut client, &message(number, QoS::ExactlyOnce, false));
    }
    happens(&mut client, &Packet::Pubrel(ack(1)));
    happens(&mut client, &message(3, QoS::ExactlyOnce, false));
    let error = given(&mut client, &message(4, QoS::ExactlyOnce, false)).expect_err("a third");
    assert_eq!(error, ClientError::ReceiveMaximum { maximum: 2 });
}

#[test]
fn a_servers_alias_stands_for_a_topic_that_it_defined() {
    let properties = ConnectProperties { topic_alias_maximum: 2, ..Default::default() };
    let connect = Connect { properties, ..lasting(Version::V5) };
    let aliased = |topic, alias: &'static [u8]| {
        let properties = PublishProperties { raw: alias, ..PublishProperties::NONE };
        Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: None,
            properties,
            payload: b"m",
        })
    };
    let mut client = connected(Config::default(), &connect, connack(false));
    assert_eq!(happens(&mut client, &aliased("a", &[0x23, 0, 2])), ["message a m"]);
    assert_eq!(happens(&mut client, &aliased("", &[0x23, 0, 2])), ["message a m"]);
    assert_eq!(happens(&mut client, &aliased("b", &[0x23, 0, 2])), ["message b m"]);
    assert_eq!(happens(&mut client, &aliased("", &[0x23, 0, 2])), ["message b m"]);
    for (packet, alias) in [(aliased("", &[0x23, 0, 1]), 1), (aliased("a", &[0x23, 0, 3]), 3)] {
        let mut client = connected(Config::default(), &connect, connack(false));
        let error = given(&mut client, &packet).expect_err("it is unknown");
        assert_eq!(error, ClientError::TopicAlias { alias, maximum: 2 });
    }
    reconnect(&mut client, &connect, connack(true));
    given(&mut client, &aliased("", &[0x23, 0, 2])).expect_err("of the former connection");
}

// ---- sessions and connections

#[test]
fn a_session_that_the_server_lost_is_forgotten_and_told() {
    // MQTT-3.2.2-5.
    let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
    publish(&mut client, 1, "a", QoS::ExactlyOnce).expect("there is room");
    happens(&mut client, &message(7, QoS::ExactlyOnce, false));
    let done = reconnect(&mut client, &lasting(Version::V5), connack(false));
    assert_eq!(done, ["connected false true"]);
    assert_eq!((client.unacknowledged(), sent(&mut client, at(0)).len()), (0, 1));
    let done = happens(&mut client, &message(7, QoS::ExactlyOnce, false));
    assert_eq!(done, ["message t m"], "another exchange");
    // One that ends with its connection expects nothing, and neither does one whose end CONNACK tells.
    let brief = Connect::new(Version::V5, "one");
    let none = ConnackProperties { session_expiry: Some(0), ..ConnackProperties::default() };
    for (connect, first) in [(&brief, connack(false)), (&lasting(Version::V5), limited(none))] {
        let mut client = connected(Config::default(), connect, first);
        publish(&mut client, 1, "a", QoS::AtLeastOnce).expect("there is room");
        assert_eq!(client.tokens().collect::<Vec<_>>(), [&1]);
        let done = reconnect(&mut client, connect, connack(false));
        assert_eq!(done, ["connected false false"]);
        assert_eq!(sent(&mut client, at(0)).len(), 1);
        assert_eq!(client.unacknowledged(), 0);
    }
}

#[test]
fn a_clean_start_forgets_the_session() {
    let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
    publish(&mut client, 1, "a", QoS::AtLeastOnce).expect("there is room");
    let clean = Connect { clean_start: true, ..lasting(Version::V5) };
    assert_eq!(reconnect(&mut client, &clean, connack(false)), ["connected false false"]);
    assert_eq!(client.unacknowledged(), 0);
    client.closed();
    client.connect(at(0), &clean).expect("it is short");
    let error = given(&mut client, &Packet::Connack(Box::new(connack(true))));
    assert_eq!(error, Err(ClientError::SessionPresent));
}

#[test]
fn packets_are_taken_however_they_were_cut() {
    for version in ALL {
        let mut client: Client<u64> = Client::new(Config::default());
        client.connect(at(0), &lasting(version)).expect("it is short");
        let mut bytes = Vec::new();
        for packet in [
            Packet::Connack(Box::default()),
            message(1, QoS::AtLeastOnce, false),
            message(2, QoS::ExactlyOnce, false),
            message(0, QoS::AtMostOnce, false),
        ] {
            bytes.extend(encoded(version, &packet));
        }
        let (mut buffer, mut events) = (ReceiveBuffer::default(), 0);
        for byte in bytes {
            buffer.extend(&[byte]);
            let mut input = buffer.bytes();
            while client.receive(&mut input).expect("it is in place").is_some() {
                events += 1;
            }
            let left = input.len();
            buffer.keep(left);
        }
        assert_eq!((events, buffer.bytes().len()), (4, 0));
    }
}

#[test]
fn what_was_not_asked_for_is_an_error() {
    for (packet, expected) in [
        (Packet::Puback(ack(3)), "PUBACK for packet identifier 3"),
        (Packet::Puback(ack(1)), "PUBACK for packet identifier 1"), // of QoS 2
        (Packet::Pubrec(ack(3)), "PUBREC for packet identifier 3"),
        (Packet::Pubcomp(ack(1)), "PUBCOMP for packet identifier 1"), // PUBREC has not come
        (Packet::Suback(suback(1, &[ReasonCode::SUCCESS])), "SUBACK for packet identifier 1"),
        (Packet::Unsuback(suback(2, &[ReasonCode::SUCCESS])), "UNSUBACK for packet identifier 2"),
        (Packet::Pingreq, "PINGREQ (0xc0) out of place"),
        (Packet::Connack(Box::default()), "CONNACK (0x20) out of place"), // MQTT-3.2.0-2
        (
            Packet::Subscribe(Subscribe {
                packet_id: id(1),
                subscription_id: None,
                user_properties: Vec::new(),
                filters: vec![filter("a")],
            }),
            "SUBSCRIBE (0x82) out of place",
        ),
    ] {
        let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
        publish(&mut client, 1, "a", QoS::ExactlyOnce).expect("there is room");
        client.subscribe(vec![filter("a")], None, 2).expect("there is room");
        let error = given(&mut client, &packet).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!client.is_connected(), "{expected}");
    }
    for packet in [Packet::Pingresp, message(1, QoS::AtLeastOnce, false), Packet::Puback(ack(1))] {
        let mut client: Client<u64> = Client::new(Config::default());
        client.connect(at(0), &lasting(Version::V5)).expect("it is short");
        let error = given(&mut client, &packet).expect_err("too early").to_string();
        assert!(error.contains("before CONNACK"), "{error}");
    }
}

#[test]
fn requests_are_answered_with_what_was_given_with_them() {
    let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
    client.subscribe(vec![filter("a"), filter("b")], Some(5), 1).expect("there is room");
    client.unsubscribe(vec!["c".to_owned()], 2).expect("there is room");
    assert_eq!(sent(&mut client, at(0)), ["subscribe 1", "unsubscribe 2"]);
    let answer = suback(1, &[ReasonCode::GRANTED_QOS_2, ReasonCode::NOT_AUTHORIZED]);
    let done = happens(&mut client, &Packet::Suback(answer));
    assert_eq!(done, ["subscribed 1 [Granted QoS 2 (0x02), Not authorized (0x87)]"]);
    let done = happens(&mut client, &Packet::Unsuback(suback(2, &[ReasonCode::SUCCESS])));
    assert_eq!(done, ["unsubscribed 2 [Success (0x00)]"]);
    // A request ends with its connection: it is the caller's to send it again.
    client.subscribe(vec![filter("a")], None, 3).expect("there is room");
    client.closed();
    assert_eq!(client.tokens().count(), 0);
}

#[test]
fn refusals_and_farewells_say_why() {
    let reason_string = Some("no such client".to_owned());
    let mut client: Client<u64> = Client::new(Config::default());
    client.connect(at(0), &lasting(Version::V5)).expect("it is short");
    let properties =
        ConnackProperties { reason_string: reason_string.clone(), ..Default::default() };
    let reason = ReasonCode::NOT_AUTHORIZED;
    let refusal = Connack { session_present: false, reason, properties };
    let error = given(&mut client, &Packet::Connack(Box::new(refusal))).expect_err("refused");
    assert_eq!(error, ClientError::Refused { reason, reason_string });
    assert_eq!(
        error.to_string(),
        "the server refuses the connection: Not authorized (0x87), \"no such client\""
    );
    let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
    let farewell = Disconnect::new(ReasonCode::SERVER_SHUTTING_DOWN);
    let error = given(&mut client, &Packet::Disconnect(farewell)).expect_err("it ends");
    assert!(matches!(error, ClientError::Disconnected { .. }));
    // Before MQTT 5 a server says none.
    let mut client = connected(Config::default(), &lasting(Version::V4), connack(false));
    let error = given(&mut client, &Packet::Disconnect(Disconnect::default())).expect_err("none");
    assert!(error.to_string().contains("DISCONNECT (0xe0) out of place"), "{error}");
}

#[test]
fn nothing_is_written_after_a_farewell() {
    // MQTT-3.14.4-1.
    let mut client = connected(Config::default(), &lasting(Version::V5), connack(false));
    client.disconnect(Disconnect::new(ReasonCode::DISCONNECT_WITH_WILL)).expect("it is short");
    client.disconnect(Disconnect::default()).expect("it is short");
    assert_eq!(publish(&mut client, 1, "a", QoS::AtMostOnce), Err(PublishError::NotConnected));
    assert_eq!(happens(&mut client, &message(1, QoS::AtLeastOnce, false)), ["message t m"]);
    client.ping();
    assert_eq!(sent(&mut client, at(0)), ["disconnect 4"]);
    assert_eq!(client.poll_timeout(), None);
}

#[test]
fn packets_longer_than_the_client_takes_are_refused() {
    let maximum_packet_size = Some(10);
    let properties = ConnectProperties { maximum_packet_size, ..ConnectProperties::default() };
    let v5 = Connect { properties, ..Connect::new(Version::V5, "") };
    let config = Config { packet_bytes_max: 10, ..Config::default() };
    for (config, connect) in [(Config::default(), v5), (config, Connect::new(Version::V4, ""))] {
        let mut client = connected(config, &connect, connack(false));
        let mut input = &[0x30, 9][..];
        let error = client.receive(&mut input).expect_err("before it has come");
        let wrong = DecodeError::PacketTooLarge { packet_bytes: 11, packet_bytes_max: 10 };
        assert_eq!(error, ClientError::Packet(wrong));
        assert!(!client.is_connected());
    }
}

// ---- time

#[test]
fn a_client_that_says_nothing_pings() {
    for (asked, server, every) in [(60, None, 30), (60, Some(10), 5), (0, Some(20), 10)] {
        let connect = Connect { keep_alive: asked, ..lasting(Version::V5) };
        let limits = ConnackProperties { server_keep_alive: server, ..Default::default() };
        let mut client = connected(Config::default(), &connect, limited(limits));
        assert_eq!(client.poll_timeout(), Some(at(every)));
        client.handle_timeout(at(every - 1)).expect("too early");
        assert!(sent(&mut client, at(1)).is_empty());
        publish(&mut client, 1, "x", QoS::AtMostOnce).expect("it is connected");
        sent(&mut client, at(3));
        assert_eq!(client.poll_timeout(), Some(at(3 + every)), "a message is as good as a ping");
        client.handle_timeout(at(3 + every)).expect("it is only late");
        assert_eq!(client.poll_timeout(), None, "the transport does not take it yet");
        assert_eq!(sent(&mut client, at(100)), ["pingreq"]);
        assert_eq!(client.poll_timeout(), Some(at(110)));
        happens(&mut client, &Packet::Pingresp);
        assert_eq!(client.poll_timeout(), Some(at(100 + every)));
        client.handle_timeout(at(100 + every)).expect("it answered");
        sent(&mut client, at(100 + every));
        let late = at(110 + every);
        let silent = client.handle_timeout(late).expect_err("no answer in 10 s");
        let after = Duration::from_secs(10);
        assert_eq!(silent, ClientError::Silent { wanted: "PINGRESP", after });
    }
    let mut client = connected(Config::default(), &lasting(Version::V4), connack(false));
    assert_eq!(client.poll_timeout(), None, "no keep alive was asked for");
    client.handle_timeout(at(1_000_000)).expect("none");
}

#[test]
fn an_answer_is_not_late_while_the_caller_cannot_have_it() {
    let connect = Connect { keep_alive: 60, ..lasting(Version::V4) };
    let mut client = connected(Config::default(), &connect, connack(false));
    client.postpone(at(20));
    assert_eq!(client.poll_timeout(), Some(at(30)), "no answer is awaited");
    client.handle_timeout(at(30)).expect("in time");
    client.postpone(at(31));
    assert_eq!(client.poll_timeout(), None, "PINGREQ has not left");
    assert_eq!(sent(&mut client, at(35)), ["pingreq"]);
    client.postpone(at(40));
    assert_eq!(client.poll_timeout(), Some(at(50)));
    client.handle_timeout(at(49)).expect("not yet");
    client.handle_timeout(at(50)).expect_err("no answer in 10 s");
}

#[test]
fn a_server_that_does_not_answer_connect_is_silent() {
    let mut client: Client<u64> = Client::new(Config::default());
    assert_eq!(client.poll_timeout(), None);
    client.connect(at(5), &lasting(Version::V5)).expect("it is short");
    sent(&mut client, at(5));
    assert_eq!(client.poll_timeout(), Some(at(15)));
    client.handle_timeout(at(14)).expect("not yet");
    let silent = client.handle_timeout(at(15)).expect_err("now");
    assert!(silent.to_string().contains("did not send CONNACK within 10s"), "{silent}");
}

// ---- memory

#[test]
fn a_message_of_a_session_of_one_connection_allocates_nothing() {
    let mut client = connected(Config::default(), &Connect::new(Version::V5, ""), connack(false));
    let mut out = Vec::with_capacity(1 << 16);
    let puback = |number: PacketId| [0x40, 2, (number.get() >> 8) as u8, number.get() as u8];
    let qos1 = encoded(Version::V5, &message(7, QoS::AtLeastOnce, false));
    let mut turn = |client: &mut Client<u64>| {
        let id = publish(client, 1, "payload", QoS::AtLeastOnce).expect("room").expect("QoS 1");
        let bytes = puback(id);
        let mut input = &bytes[..];
        assert!(client.receive(&mut input).expect("it is asked").is_some());
        let mut input = &qos1[..];
        assert!(matches!(client.receive(&mut input), Ok(Some(Event::Message(_)))));
        out.clear();
        client.transmit(at(0), &mut out);
    };
    for _ in 0..300 {
        turn(&mut client);
    }
    let measured = allocation_counter::measure(|| (0..1_000).for_each(|_| turn(&mut client)));
    assert_eq!(measured.count_total, 0);
}

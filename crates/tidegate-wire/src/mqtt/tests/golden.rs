//! Packets and their bytes, written by hand from the specification.

use std::num::NonZeroU16;

use super::*;

/// `10 0c | 4d51…` as bytes: texts between quotes, all else in hexadecimal.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            bytes.extend_from_slice(part.as_bytes());
        } else {
            let digits = part.split_whitespace();
            bytes.extend(digits.map(|digits| u8::from_str_radix(digits, 16).unwrap()));
        }
    }
    bytes
}

fn user() -> UserProperties {
    vec![("k".to_owned(), "v".to_owned())]
}

#[test]
fn packets_have_these_bytes() {
    use Version::{V3, V4, V5};
    let full = Connect {
        clean_start: false,
        will: Some(Will {
            topic: "w".to_owned(),
            payload: b"gone".to_vec(),
            qos: QoS::AtLeastOnce,
            retain: true,
            delay: 9,
            message_expiry: Some(2),
            forwarded: vec![0x01, 1],
        }),
        username: Some("u".to_owned()),
        password: Some(b"p".to_vec()),
        properties: ConnectProperties {
            session_expiry: Some(0x0102_0304),
            receive_maximum: NonZeroU16::new(20),
            maximum_packet_size: Some(1 << 20),
            topic_alias_maximum: 10,
            request_response_information: true,
            request_problem_information: Some(false),
            user_properties: user(),
            authentication_method: Some("m".to_owned()),
            authentication_data: Some(vec![7]),
        },
        ..connect(V5)
    };
    let old_will = Connect {
        bridge: true,
        will: Some(Will {
            topic: "w".to_owned(),
            payload: b"x".to_vec(),
            qos: QoS::ExactlyOnce,
            retain: false,
            delay: 0,
            message_expiry: None,
            forwarded: Vec::new(),
        }),
        ..connect(V4)
    };
    let connack = Connack {
        session_present: true,
        reason: ReasonCode::SUCCESS,
        properties: ConnackProperties {
            session_expiry: Some(1),
            receive_maximum: NonZeroU16::new(2),
            maximum_qos: Some(QoS::AtLeastOnce),
            retain_available: Some(false),
            maximum_packet_size: Some(3),
            assigned_client_id: Some("a".to_owned()),
            topic_alias_maximum: 4,
            reason_string: Some("r".to_owned()),
            user_properties: user(),
            wildcard_available: Some(true),
            subscription_ids_available: Some(false),
            shared_available: Some(true),
            server_keep_alive: Some(5),
            response_information: Some("i".to_owned()),
            server_reference: Some("s".to_owned()),
            authentication_method: Some("m".to_owned()),
            authentication_data: Some(vec![8]),
        },
    };
    let refused = |reason| {
        Packet::Connack(Box::new(Connack { session_present: false, reason, ..Connack::default() }))
    };
    let publish = Publish {
        dup: true,
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "a/b",
        packet_id: Some(id(10)),
        properties: PublishProperties::NONE,
        payload: b"hi",
    };
    let raw = bytes(
        "01 01 02 00 00 00 3c 23 00 07 08 00 01 'r' 09 00 01 ff 0b 80 01 26 00 01 'k' 00 01 'v'",
    );
    let rich = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        packet_id: None,
        properties: PublishProperties {
            raw: &raw,
            topic_alias: NonZeroU16::new(7),
            message_expiry: Some(60),
            is_utf8: true,
            has_response_topic: true,
            all_forwarded: false,
        },
        ..publish
    };
    let ack = |reason| Ack::new(id(0x1234), reason);
    let told = Ack {
        reason_string: Some("no".to_owned()),
        user_properties: user(),
        ..ack(ReasonCode::NOT_AUTHORIZED)
    };
    let filter = |filter: &str, maximum_qos| SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let subscribe = Subscribe {
        packet_id: id(1),
        subscription_id: None,
        user_properties: Vec::new(),
        filters: vec![filter("a/#", QoS::AtLeastOnce), filter("+", QoS::ExactlyOnce)],
    };
    let optioned = Subscribe {
        subscription_id: Some(128),
        user_properties: user(),
        filters: vec![SubscribeFilter {
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::DoNotSend,
            ..filter("a", QoS::AtLeastOnce)
        }],
        ..subscribe.clone()
    };
    let suback = |reasons: &[u8]| Suback {
        packet_id: id(1),
        reason_string: None,
        user_properties: Vec::new(),
        reasons: reasons.iter().copied().map(ReasonCode).collect(),
    };
    let unsubscribe = Unsubscribe {
        packet_id: id(2),
        user_properties: Vec::new(),
        filters: vec!["a".to_owned(), "b/c".to_owned()],
    };
    let bye = Disconnect {
        reason: ReasonCode::SERVER_MOVED,
        session_expiry: Some(1),
        reason_string: Some("r".to_owned()),
        user_properties: user(),
        server_reference: Some("s".to_owned()),
    };
    let auth = Auth {
        reason: ReasonCode::CONTINUE_AUTHENTICATION,
        method: Some("m".to_owned()),
        data: Some(vec![1, 2]),
        reason_string: None,
        user_properties: user(),
    };
    let boxed = |connect: &Connect| Packet::Connect(Box::new(connect.clone()));
    for (version, packet, expected) in [
        (V3, boxed(&connect(V3)), "10 11 00 06 'MQIsdp' 03 02 00 3c 00 03 'cam'"),
        (V4, boxed(&connect(V4)), "10 0f 00 04 'MQTT' 04 02 00 3c 00 03 'cam'"),
        (V4, boxed(&old_will), "10 15 00 04 'MQTT' 84 16 00 3c 00 03 'cam' 00 01 'w' 00 01 'x'"),
        (V5, boxed(&connect(V5)), "10 10 00 04 'MQTT' 05 02 00 3c 00 00 03 'cam'"),
        (
            V5,
            boxed(&full),
            "10 4f 00 04 'MQTT' 05 ec 00 3c \
             23 11 01 02 03 04 21 00 14 27 00 10 00 00 22 00 0a 19 01 17 00 26 00 01 'k' 00 01 'v' 15 00 01 'm' 16 00 01 07 \
             00 03 'cam' 0c 18 00 00 00 09 02 00 00 00 02 01 01 00 01 'w' 00 04 'gone' 00 01 'u' 00 01 'p'",
        ),
        (V3, refused(ReasonCode::SUCCESS), "20 02 00 00"),
        (V4, refused(ReasonCode::NOT_AUTHORIZED), "20 02 00 05"),
        (V5, refused(ReasonCode::NOT_AUTHORIZED), "20 03 00 87 00"),
        (
            V5,
            Packet::Connack(Box::new(connack)),
            "20 3f 01 00 3c 11 00 00 00 01 21 00 02 24 01 25 00 27 00 00 00 03 12 00 01 'a' 22 00 04 1f 00 01 'r' \
             26 00 01 'k' 00 01 'v' 28 01 29 00 2a 01 13 00 05 1a 00 01 'i' 1c 00 01 's' 15 00 01 'm' 16 00 01 08",
        ),
        (V4, Packet::Publish(publish), "3b 09 00 03 'a/b' 00 0a 'hi'"),
        (V5, Packet::Publish(publish), "3b 0a 00 03 'a/b' 00 0a 00 'hi'"),
        (
            V5,
            Packet::Publish(rich),
            "30 24 00 03 'a/b' 1c 01 01 02 00 00 00 3c 23 00 07 08 00 01 'r' 09 00 01 ff 0b 80 01 26 00 01 'k' 00 01 'v' 'hi'",
        ),
        (V4, Packet::Puback(ack(ReasonCode::SUCCESS)), "40 02 12 34"),
        (V5, Packet::Puback(ack(ReasonCode::NO_MATCHING_SUBSCRIBERS)), "40 03 12 34 10"),
        (V5, Packet::Pubrec(told), "50 10 12 34 87 0c 1f 00 02 'no' 26 00 01 'k' 00 01 'v'"),
        (V4, Packet::Pubrec(ack(ReasonCode::SUCCESS)), "50 02 12 34"),
        (V4, Packet::Pubrel(ack(ReasonCode::SUCCESS)), "62 02 12 34"),
        (V5, Packet::Pubrel(ack(ReasonCode::PACKET_IDENTIFIER_NOT_FOUND)), "62 03 12 34 92"),
        (V4, Packet::Pubcomp(ack(ReasonCode::SUCCESS)), "70 02 12 34"),
        (V4, Packet::Subscribe(subscribe.clone()), "82 0c 00 01 00 03 'a/#' 01 00 01 '+' 02"),
        (V5, Packet::Subscribe(subscribe), "82 0d 00 01 00 00 03 'a/#' 01 00 01 '+' 02"),
        (
            V5,
            Packet::Subscribe(optioned),
            "82 11 00 01 0a 0b 80 01 26 00 01 'k' 00 01 'v' 00 01 'a' 2d",
        ),
        (V4, Packet::Suback(suback(&[0, 1, 2, 0x80])), "90 06 00 01 00 01 02 80"),
        (V5, Packet::Suback(suback(&[0, 0x8f])), "90 05 00 01 00 00 8f"),
        (V4, Packet::Unsubscribe(unsubscribe.clone()), "a2 0a 00 02 00 01 'a' 00 03 'b/c'"),
        (V5, Packet::Unsubscribe(unsubscribe), "a2 0b 00 02 00 00 01 'a' 00 03 'b/c'"),
        (V4, Packet::Unsuback(suback(&[])), "b0 02 00 01"),
        (V5, Packet::Unsuback(suback(&[0x11])), "b0 04 00 01 00 11"),
        (V4, Packet::Pingreq, "c0 00"),
        (V5, Packet::Pingresp, "d0 00"),
        (V4, Packet::Disconnect(Disconnect::default()), "e0 00"),
        (V5, Packet::Disconnect(Disconnect::default()), "e0 00"),
        (V5, Packet::Disconnect(Disconnect::new(ReasonCode::SESSION_TAKEN_OVER)), "e0 01 8e"),
        (
            V5,
            Packet::Disconnect(bye),
            "e0 16 9d 14 11 00 00 00 01 1f 00 01 'r' 26 00 01 'k' 00 01 'v' 1c 00 01 's'",
        ),
        (V5, Packet::Auth(Auth::default()), "f0 00"),
        (V5, Packet::Auth(auth), "f0 12 18 10 15 00 01 'm' 16 00 02 01 02 26 00 01 'k' 00 01 'v'"),
    ] {
        let expected = bytes(expected);
        assert_eq!(encode(version, &packet), expected, "{packet:?} in {version:?}");
        assert_eq!(decode(version, &expected), Ok(packet), "{expected:02x?} in {version:?}");
    }
}

#[test]
fn failures_before_mqtt_5_become_the_code_that_fits_best() {
    for (reason, code) in [
        (ReasonCode::UNSUPPORTED_PROTOCOL_VERSION, 1),
        (ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, 2),
        (ReasonCode::SERVER_BUSY, 3),
        (ReasonCode::BAD_USER_NAME_OR_PASSWORD, 4),
        (ReasonCode::BANNED, 5),
        (ReasonCode::PROTOCOL_ERROR, 3),
    ] {
        let connack = Connack { session_present: true, reason, ..Connack::default() };
        let packet = Packet::Connack(Box::new(connack));
        assert_eq!(encode(Version::V4, &packet), [0x20, 2, 0, code], "{reason}");
    }
    let suback = Suback {
        packet_id: id(1),
        reason_string: None,
        user_properties: Vec::new(),
        reasons: vec![ReasonCode::GRANTED_QOS_1, ReasonCode::NOT_AUTHORIZED],
    };
    assert_eq!(encode(Version::V4, &Packet::Suback(suback)), [0x90, 4, 0, 1, 1, 0x80]);
}

#[test]
fn an_older_server_refuses_mqtt_5_in_its_own_form() {
    let packet = decode(Version::V5, &[0x20, 2, 0, 1]).unwrap();
    let Packet::Connack(connack) = packet else { panic!("{packet:?}") };
    assert_eq!(connack.reason, ReasonCode::UNSUPPORTED_PROTOCOL_VERSION);
}

#[test]
fn fixed_headers_take_the_bytes_they_need() {
    for (input, expected) in [
        (&[][..], None),
        (&[0x30], None),
        (&[0x30, 0x80], None),
        (&[0x30, 0xff, 0xff, 0xff], None),
        (&[0x30, 0], Some((2, 0))),
        (&[0x30, 0x7f, 1], Some((2, 127))),
        (&[0x30, 0x80, 1], Some((3, 128))),
        (&[0x30, 0xff, 0x7f], Some((3, 16_383))),
        (&[0x30, 0x80, 0x80, 1], Some((4, 16_384))),
        (&[0x30, 0xff, 0xff, 0xff, 0x7f], Some((5, 268_435_455))),
    ] {
        let header = FixedHeader::decode(input, usize::MAX).unwrap();
        let expected = expected.map(|(header_bytes, body_bytes)| FixedHeader {
            first: 0x30,
            header_bytes,
            body_bytes,
        });
        assert_eq!(header, expected, "{input:02x?}");
    }
    let too_large = DecodeError::PacketTooLarge { packet_bytes: 12, packet_bytes_max: 11 };
    assert_eq!(FixedHeader::decode(&[0x30, 10], 11), Err(too_large));
    assert!(FixedHeader::decode(&[0x30, 10], 12).is_ok());
}

#[test]
fn texts_and_numbers_that_do_not_fit_are_refused_and_leave_nothing_behind() {
    let mut out = vec![9];
    let long = "x".repeat(65_536);
    let connect =
        Packet::Connect(Box::new(Connect { client_id: long.clone(), ..connect(Version::V4) }));
    let unsubscribe = |filters| {
        Packet::Unsubscribe(Unsubscribe { packet_id: id(1), user_properties: Vec::new(), filters })
    };
    let subscribe = Packet::Subscribe(Subscribe {
        packet_id: id(1),
        subscription_id: Some(268_435_456),
        user_properties: Vec::new(),
        filters: vec![SubscribeFilter {
            filter: "a".to_owned(),
            maximum_qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        }],
    });
    let publish = Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: "a",
        packet_id: None,
        properties: PublishProperties::NONE,
        payload: &[],
    });
    for (packet, version, expected) in [
        (connect, Version::V4, EncodeError::TooLong { field: "client identifier", count: 65_536 }),
        (
            unsubscribe(vec!["a\0".to_owned()]),
            Version::V4,
            EncodeError::NullCharacter { field: "topic filter" },
        ),
        (
            unsubscribe(Vec::new()),
            Version::V4,
            EncodeError::Missing { packet: "UNSUBSCRIBE", field: "a topic filter" },
        ),
        (
            unsubscribe(vec![long[1..].to_owned(); 4_097]),
            Version::V4,
            EncodeError::PacketTooLarge { body_bytes: 2 + 4_097 * 65_537 },
        ),
        (
            subscribe,
            Version::V5,
            EncodeError::OutOfRange { field: "subscription identifier", value: 268_435_456 },
        ),
        (
            publish,
            Version::V4,
            EncodeError::Missing { packet: "PUBLISH", field: "a packet identifier" },
        ),
        (
            Packet::Auth(Auth::default()),
            Version::V4,
            EncodeError::NoSuchPacket { packet: "AUTH", version: Version::V4 },
        ),
    ] {
        assert_eq!(packet.encode(version, &mut out), Err(expected));
        assert_eq!(out, [9]);
    }
}

#[test]
fn a_head_and_its_payload_are_the_packet() {
    let head = PublishHead {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "a/b",
        packet_id: Some(id(10)),
        topic_alias: NonZeroU16::new(7),
        message_expiry: Some(60),
        subscription_ids: &[1, 300],
        forwarded: &[0x01, 1],
        payload_bytes: 200,
    };
    for (version, expected) in [
        (Version::V4, "33 cf 01 00 03 'a/b' 00 0a"),
        (Version::V5, "33 df 01 00 03 'a/b' 00 0a 0f 23 00 07 02 00 00 00 3c 0b 01 0b ac 02 01 01"),
    ] {
        let mut out = Vec::new();
        head.encode(version, &mut out);
        assert_eq!(out, bytes(expected), "{version:?}");
        assert_eq!(head.packet_bytes(version), out.len() + 200);
        out.resize(out.len() + 200, 0);
        let Packet::Publish(publish) = decode(version, &out).unwrap() else { panic!() };
        assert_eq!(publish.topic, "a/b");
        assert_eq!(publish.payload.len(), 200);
    }
}

#[test]
fn properties_of_a_message_are_found_and_forwarded() {
    let raw = bytes(
        "01 01 02 00 00 00 3c 23 00 07 08 00 01 'r' 03 00 01 'c' 09 00 01 ff 0b 80 01 0b 05 26 00 01 'k' 00 01 'v' \
         26 00 01 'k' 00 01 'w'",
    );
    let properties = PublishProperties::decode(&raw).unwrap();
    assert_eq!(properties.response_topic(), Some("r"));
    assert_eq!(properties.content_type(), Some("c"));
    assert_eq!(properties.correlation_data(), Some(&[0xff][..]));
    assert_eq!(properties.subscription_ids().collect::<Vec<_>>(), [128, 5]);
    assert_eq!(properties.user_properties().collect::<Vec<_>>(), [("k", "v"), ("k", "w")]);
    let mut out = Vec::new();
    properties.forwarded(&mut out);
    let forwarded = ForwardedProperties::decode(&out).unwrap();
    let expected = ForwardedProperties {
        is_utf8: true,
        content_type: Some("c"),
        response_topic: Some("r"),
        correlation_data: Some(&[0xff]),
        user_properties: vec![("k", "v"), ("k", "w")],
    };
    assert_eq!(forwarded, expected);
    let mut again = Vec::new();
    forwarded.encode(&mut again).unwrap();
    let properties = PublishProperties::decode(&again).unwrap();
    assert!(properties.all_forwarded);
    out.clear();
    properties.forwarded(&mut out);
    assert_eq!(out, again);
}

#[test]
fn a_known_topic_is_not_validated_again() {
    let body = b"\x00\x03a/bhi";
    let publish = Publish::decode_known(Version::V4, 0x30, body, "a/b").unwrap();
    assert_eq!(publish, Publish::decode(Version::V4, 0x30, body).unwrap());
    let other = Publish::decode_known(Version::V4, 0x30, body, "a/c").unwrap();
    assert_eq!(other.topic, "a/b");
    let odd = Publish::decode_known(Version::V4, 0x30, b"\x00\x03a/+hi", "a/c");
    assert_eq!(odd.unwrap_err().reason(), ReasonCode::MALFORMED_PACKET);
}

#[test]
fn messages_come_and_leave_without_an_allocation() {
    let mut raw = Vec::new();
    ForwardedProperties { content_type: Some("image/jpeg"), ..Default::default() }
        .encode(&mut raw)
        .unwrap();
    for version in [Version::V4, Version::V5] {
        let head = PublishHead {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "site/1/camera/7/frame",
            packet_id: None,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            forwarded: if version == Version::V5 { &raw } else { &[] },
            payload_bytes: 97,
        };
        let mut packet = Vec::new();
        head.encode(version, &mut packet);
        packet.resize(packet.len() + 97, 7);
        let mut out = Vec::with_capacity(packet.len());
        let allocations = allocation_counter::measure(|| {
            let header = FixedHeader::decode(&packet, 1 << 20).unwrap().unwrap();
            let body = &packet[header.header_bytes..];
            let fresh = Publish::decode(version, header.first, body).unwrap();
            let known = Publish::decode_known(version, header.first, body, head.topic).unwrap();
            assert_eq!(fresh, known);
            head.encode(version, &mut out);
            out.extend_from_slice(known.payload);
        });
        assert_eq!(allocations.count_total, 0, "{version:?}");
        assert_eq!(out, packet);
    }
}

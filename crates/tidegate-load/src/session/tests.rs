use tidegate_wire::mqtt::{Ack, Suback};

use super::*;

fn lasting(version: Version) -> Session {
    let client_id = "one".to_owned();
    Session::new(SessionOptions {
        version,
        client_id,
        session_expiry: 60,
        ..SessionOptions::default()
    })
}

/// What a broker that reads everything has been sent, as owned text.
fn sent(session: &mut Session) -> Vec<String> {
    let mut bytes = Vec::new();
    session.poll_transmit(&mut bytes);
    let mut rest = &bytes[..];
    let mut packets = Vec::new();
    while let Some(header) = FixedHeader::decode(rest, usize::MAX).expect("a header") {
        let (packet, after) = rest.split_at(header.packet_bytes());
        rest = after;
        let body = &packet[header.header_bytes..];
        packets.push(match Packet::decode(session.options.version, header.first, body) {
            Ok(Packet::Publish(publish)) => format!(
                "publish {} {} {}{}",
                publish.packet_id.map_or(0, NonZeroU16::get),
                String::from_utf8_lossy(publish.payload),
                publish.qos as u8,
                if publish.dup { " dup" } else { "" }
            ),
            Ok(Packet::Puback(ack)) => format!("puback {}", ack.packet_id),
            Ok(Packet::Pubrec(ack)) => format!("pubrec {}", ack.packet_id),
            Ok(Packet::Pubrel(ack)) => format!("pubrel {}", ack.packet_id),
            Ok(Packet::Pubcomp(ack)) => format!("pubcomp {}", ack.packet_id),
            Ok(Packet::Connect(connect)) => format!("connect clean {}", connect.clean_start),
            Ok(Packet::Subscribe(_)) => "subscribe".to_owned(),
            other => panic!("{other:?}"),
        });
    }
    packets
}

fn told(session: &mut Session, packet: &Packet<'_>) -> Result<(), SessionError> {
    let mut bytes = Vec::new();
    packet.encode(session.options.version, &mut bytes).expect("it is short");
    session.receive(&bytes)
}

fn ack(number: u16) -> Ack {
    Ack::new(PacketId::new(number).expect("not 0"), ReasonCode::SUCCESS)
}

fn welcome(session: &mut Session, session_present: bool) -> Event {
    session.begin();
    let connack = Connack { session_present, ..Connack::default() };
    told(session, &Packet::Connack(Box::new(connack))).expect("it is in place");
    session.poll_event().expect("it is let in")
}

fn message(number: u16, qos: QoS, dup: bool) -> Packet<'static> {
    Packet::Publish(Publish {
        dup,
        qos,
        retain: false,
        topic: "t",
        packet_id: PacketId::new(number),
        properties: tidegate_wire::mqtt::PublishProperties::NONE,
        payload: b"m",
    })
}

#[test]
fn what_was_not_acknowledged_is_sent_again_in_its_order() {
    for version in [Version::V4, Version::V5] {
        let mut session = lasting(version);
        assert_eq!(
            welcome(&mut session, false),
            Event::Connected { session_present: false, was_expected: false }
        );
        for (number, text, qos) in [
            (10, "a", QoS::AtLeastOnce),
            (11, "b", QoS::ExactlyOnce),
            (12, "c", QoS::ExactlyOnce),
            (13, "d", QoS::AtLeastOnce),
        ] {
            session.publish(number, "t", text.as_bytes(), qos, false);
        }
        session.publish(14, "t", b"e", QoS::AtMostOnce, false);
        assert_eq!(
            sent(&mut session),
            [
                "connect clean false",
                "publish 1 a 1",
                "publish 2 b 2",
                "publish 3 c 2",
                "publish 4 d 1",
                "publish 0 e 0"
            ]
        );
        told(&mut session, &Packet::Puback(ack(1))).expect("it was published");
        told(&mut session, &Packet::Pubrec(ack(2))).expect("it was published");
        assert_eq!(
            session.poll_event(),
            Some(Event::Acknowledged { number: 10, reason: ReasonCode::SUCCESS })
        );
        assert_eq!(session.poll_event(), None);
        assert_eq!(sent(&mut session), ["pubrel 2"]);
        session.end();
        assert_eq!(session.room(), 0, "nothing can be sent");
        assert_eq!(
            welcome(&mut session, true),
            Event::Connected { session_present: true, was_expected: true }
        );
        assert_eq!(
            sent(&mut session),
            ["connect clean false", "pubrel 2", "publish 3 c 2 dup", "publish 4 d 1 dup"]
        );
        told(&mut session, &Packet::Pubcomp(ack(2))).expect("it was released");
        assert_eq!(
            session.poll_event(),
            Some(Event::Acknowledged { number: 11, reason: ReasonCode::SUCCESS })
        );
        session.publish(15, "t", b"f", QoS::AtLeastOnce, false);
        assert_eq!(sent(&mut session), ["publish 5 f 1"], "identifiers go on");
        assert_eq!(session.pending(), 3);
    }
}

#[test]
fn a_message_of_qos_2_is_given_out_once_over_all_connections() {
    let mut session = lasting(Version::V5);
    welcome(&mut session, false);
    let first = message(7, QoS::ExactlyOnce, false);
    told(&mut session, &first).expect("it is in place");
    assert!(matches!(session.poll_event(), Some(Event::Message(_))));
    welcome(&mut session, true);
    told(&mut session, &message(7, QoS::ExactlyOnce, true)).expect("it is in place");
    assert_eq!(session.poll_event(), None);
    told(&mut session, &Packet::Pubrel(ack(7))).expect("it is in place");
    told(&mut session, &Packet::Pubrel(ack(7))).expect("as after a kill");
    assert_eq!(sent(&mut session), ["connect clean false", "pubrec 7", "pubcomp 7", "pubcomp 7"]);
    told(&mut session, &first).expect("the identifier is free");
    assert!(matches!(session.poll_event(), Some(Event::Message(_))));
    let again = message(8, QoS::AtLeastOnce, true);
    told(&mut session, &again).expect("it is in place");
    told(&mut session, &again).expect("at least once");
    assert!(matches!(session.poll_event(), Some(Event::Message(Message { dup: true, .. }))));
    assert!(matches!(session.poll_event(), Some(Event::Message(_))));
}

#[test]
fn a_session_that_the_broker_lost_is_forgotten_and_told() {
    let mut session = lasting(Version::V5);
    welcome(&mut session, false);
    session.publish(1, "t", b"a", QoS::ExactlyOnce, false);
    told(&mut session, &message(7, QoS::ExactlyOnce, false)).expect("it is in place");
    assert_eq!(
        welcome(&mut session, false),
        Event::Connected { session_present: false, was_expected: true }
    );
    assert_eq!((session.pending(), sent(&mut session).len()), (0, 1));
    told(&mut session, &message(7, QoS::ExactlyOnce, false)).expect("it is in place");
    assert!(matches!(session.poll_event(), Some(Event::Message(_))), "another exchange");
    // One that ends with its connection expects nothing.
    let mut brief = Session::new(SessionOptions::default());
    welcome(&mut brief, false);
    brief.publish(1, "t", b"a", QoS::AtLeastOnce, false);
    assert_eq!(
        welcome(&mut brief, false),
        Event::Connected { session_present: false, was_expected: false }
    );
    assert_eq!(sent(&mut brief), ["connect clean true"]);
}

#[test]
fn packets_are_taken_however_they_were_cut() {
    let mut session = lasting(Version::V4);
    session.begin();
    let mut bytes = Vec::new();
    for packet in [
        Packet::Connack(Box::default()),
        message(1, QoS::AtLeastOnce, false),
        message(2, QoS::AtLeastOnce, false),
    ] {
        packet.encode(Version::V4, &mut bytes).expect("it is short");
    }
    for byte in bytes {
        session.receive(&[byte]).expect("it is in place");
    }
    assert!(matches!(session.poll_event(), Some(Event::Connected { .. })));
    assert!(matches!(session.poll_event(), Some(Event::Message(_))));
    assert!(matches!(session.poll_event(), Some(Event::Message(_))));
    assert_eq!(session.poll_event(), None);
}

#[test]
fn what_nobody_asked_for_is_an_error() {
    let suback = || Suback {
        packet_id: PacketId::MIN,
        reason_string: None,
        user_properties: Vec::new(),
        reasons: vec![ReasonCode::SUCCESS],
    };
    for (packet, expected) in [
        (Packet::Puback(ack(1)), "PUBACK for 1"),
        (Packet::Pubrec(ack(2)), "PUBREC for 2"),
        (Packet::Pubcomp(ack(3)), "PUBCOMP for 3"), // PUBREC has not come
        (Packet::Suback(suback()), "SUBACK for 1"),
        (Packet::Pingreq, "out of place"),
    ] {
        let mut session = lasting(Version::V5);
        welcome(&mut session, false);
        session.last_id = 2;
        session.publish(1, "t", b"a", QoS::ExactlyOnce, false);
        let error = told(&mut session, &packet).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut session = lasting(Version::V5);
    session.begin();
    let error = told(&mut session, &Packet::Pingresp).expect_err("too early").to_string();
    assert!(error.contains("before CONNACK"), "{error}");
}

#[test]
fn there_is_room_for_as_many_as_the_broker_takes() {
    let mut session = lasting(Version::V5);
    session.begin();
    let mut connack = Connack::default();
    connack.properties.receive_maximum = NonZeroU16::new(2);
    told(&mut session, &Packet::Connack(Box::new(connack))).expect("it is in place");
    session.publish(1, "t", b"a", QoS::AtLeastOnce, false);
    session.publish(2, "t", b"a", QoS::AtLeastOnce, false);
    assert_eq!(session.room(), 0);
    told(&mut session, &Packet::Puback(ack(1))).expect("it was published");
    assert_eq!(session.room(), 1);
    let reason = ReasonCode::QUOTA_EXCEEDED;
    let refused = Ack { reason, ..ack(2) };
    told(&mut session, &Packet::Puback(refused)).expect("it was published");
    assert_eq!(session.room(), 2);
    session.poll_event();
    session.poll_event();
    assert_eq!(session.poll_event(), Some(Event::Acknowledged { number: 2, reason }));
    let goodbye = Disconnect::new(ReasonCode::SERVER_SHUTTING_DOWN);
    told(&mut session, &Packet::Disconnect(goodbye)).expect("it is in place");
    assert_eq!(session.poll_event(), Some(Event::Refused(ReasonCode::SERVER_SHUTTING_DOWN)));
    assert_eq!(session.room(), 0);
}

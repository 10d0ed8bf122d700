//! Errors that end a connection, and the reasons sent (sections 4.13, 2.1.3 and 3.14).

use super::*;
use tidegate_journal::Recovered;

#[test]
fn forbidden_packets_end_the_connection() {
    let malformed = ReasonCode::MALFORMED_PACKET;
    let protocol = ReasonCode::PROTOCOL_ERROR;
    let connect = {
        let mut bytes = Vec::new();
        Packet::Connect(Box::new(v5("again"))).encode(Version::V5, &mut bytes).unwrap();
        bytes
    };
    let encoded = |packet: Packet<'_>| {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        bytes
    };
    let (packet_id, none) = (id(1), Vec::new);
    let subscribe = |text: &str| {
        // One that is none ends it, whatever stands before it.
        let filters = vec![filter("good", AtMostOnce), filter(text, AtMostOnce)];
        let (subscription_id, user_properties) = (None, none());
        encoded(Packet::Subscribe(Subscribe {
            packet_id,
            subscription_id,
            user_properties,
            filters,
        }))
    };
    let unsubscribe = |text: &str| {
        let filters = vec!["good".to_owned(), text.to_owned()];
        encoded(Packet::Unsubscribe(Unsubscribe { packet_id, user_properties: none(), filters }))
    };
    let rows: &[(&str, &[u8], ReasonCode)] = &[
        ("a second CONNECT, MQTT-3.1.0-2", &connect, protocol),
        (
            "a second CONNECT, of an unknown version",
            &[0x10, 7, 0, 4, b'M', b'Q', b'T', b'T', 0xff],
            protocol,
        ),
        ("CONNACK", &[0x20, 3, 0, 0, 0], protocol),
        ("SUBACK", &[0x90, 4, 0, 1, 0, 0], protocol),
        ("UNSUBACK", &[0xb0, 4, 0, 1, 0, 0], protocol),
        ("PINGRESP", &[0xd0, 0], protocol),
        ("type 0", &[0x00, 0], malformed),
        ("PUBACK with flags, MQTT-2.1.3-1", &[0x41, 2, 0, 1], malformed),
        ("PUBREL without its flag, MQTT-3.6.1-1", &[0x60, 2, 0, 1], malformed),
        ("SUBSCRIBE without its flag, MQTT-3.8.1-1", &[0x80, 7, 0, 1, 0, 0, 1, b'a', 0], malformed),
        ("SUBSCRIBE of nothing, MQTT-3.8.3-2", &[0x82, 3, 0, 1, 0], protocol),
        (
            "SUBSCRIBE without identifier, MQTT-2.2.1-3",
            &[0x82, 7, 0, 0, 0, 0, 1, b'a', 0],
            protocol,
        ),
        ("SUBSCRIBE with QoS 3", &[0x82, 7, 0, 1, 0, 0, 1, b'a', 3], protocol),
        (
            "SUBSCRIBE with reserved bits, MQTT-3.8.3-5",
            &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x40],
            malformed,
        ),
        ("SUBSCRIBE with retain handling 3", &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x30], protocol),
        ("UNSUBSCRIBE of nothing, MQTT-3.10.3-2", &[0xa2, 3, 0, 1, 0], protocol),
        ("PUBLISH with QoS 3, MQTT-3.3.1-4", &[0x36, 6, 0, 1, b'a', 0, 1, 0], malformed),
        ("DUP with QoS 0, MQTT-3.3.1-2", &[0x38, 4, 0, 1, b'a', 0], malformed),
        ("a wildcard in a topic, MQTT-3.3.2-2", &[0x30, 4, 0, 1, b'#', 0], malformed),
        ("no topic", &[0x30, 3, 0, 0, 0], protocol),
        ("identifier 0, MQTT-2.2.1-3", &[0x32, 6, 0, 1, b'a', 0, 0, 0], protocol),
        ("U+0000, MQTT-1.5.4-2", &[0x30, 4, 0, 1, 0, 0], malformed),
        ("no UTF-8, MQTT-1.5.4-1", &[0x30, 4, 0, 1, 0xff, 0], malformed),
        ("a subscription identifier, MQTT-3.3.4-6", &[0x30, 6, 0, 1, b'a', 2, 0x0b, 1], protocol),
        ("a property twice", &[0x30, 8, 0, 1, b'a', 4, 1, 0, 1, 0], protocol),
        ("an unknown property", &[0x30, 6, 0, 1, b'a', 2, 0x7f, 0], malformed),
        ("a response topic with a wildcard", &[0x30, 8, 0, 1, b'a', 4, 8, 0, 1, b'#'], protocol),
        ("AUTH without a method, MQTT-4.12.0-7", &[0xf0, 0], protocol),
        ("a length that does not end", &[0x30, 0xff, 0xff, 0xff, 0xff, 1], malformed),
        ("DISCONNECT with flags, MQTT-3.14.1-1", &[0xe1, 0], malformed),
        ("SUBSCRIBE to nothing, MQTT-4.7.3-1", &subscribe(""), malformed),
        ("SUBSCRIBE to part of a level, MQTT-4.7.1-2", &subscribe("ab/+e"), malformed),
        ("SUBSCRIBE to a# , MQTT-4.7.1-1", &subscribe("a#"), malformed),
        ("SUBSCRIBE to #/a, MQTT-4.7.1-1", &subscribe("#/a"), malformed),
        ("SUBSCRIBE without a share name, MQTT-4.8.2-1", &subscribe("$share//x"), malformed),
        ("SUBSCRIBE without a shared filter, MQTT-4.8.2-2", &subscribe("$share/g"), malformed),
        ("SUBSCRIBE with an empty shared filter", &subscribe("$share/g/"), malformed),
        ("SUBSCRIBE with a wildcard as name, MQTT-4.8.2-2", &subscribe("$share/+/p"), malformed),
        ("SUBSCRIBE with a wildcard in a name", &subscribe("$share/a#b/p"), malformed),
        ("SUBSCRIBE to a shared part of a level", &subscribe("$share/g/a#"), malformed),
        ("SUBSCRIBE with a line feed", &subscribe("a\nb"), malformed),
        ("UNSUBSCRIBE of nothing", &unsubscribe(""), malformed),
        ("UNSUBSCRIBE of part of a level", &unsubscribe("ab/+e"), malformed),
        ("UNSUBSCRIBE without a share name", &unsubscribe("$share//x"), malformed),
        ("UNSUBSCRIBE without a shared filter", &unsubscribe("$share/g"), malformed),
        ("UNSUBSCRIBE with a wildcard as name", &unsubscribe("$share/+/p"), malformed),
        ("PUBLISH with a line feed", &[0x30, 6, 0, 3, b'a', b'\n', b'b', 0], malformed),
        ("PUBLISH with U+0001", &[0x30, 4, 0, 1, 1, 0], malformed),
        ("PUBLISH with U+FFFF", &[0x30, 6, 0, 3, 0xef, 0xbf, 0xbf, 0], malformed),
        (
            "PUBLISH with U+0080 and an alias",
            &[0x30, 8, 0, 2, 0xc2, 0x80, 3, 0x23, 0, 1],
            malformed,
        ),
        (
            "No Local on a shared subscription, MQTT-3.8.3-4",
            &[
                0x82, 16, 0, 1, 0, 0, 10, b'$', b's', b'h', b'a', b'r', b'e', b'/', b'g', b'/',
                b'a', 4,
            ],
            protocol,
        ),
    ];
    for (name, bytes, expected) in rows {
        each(|world| {
            let at = world.join(v5("a"));
            world.raw(at, bytes);
            assert_eq!(world.end_reason(at), Some(*expected), "{name}");
            assert_eq!(world.shared.subscriptions(), 0, "{name}");
        });
    }
}

#[test]
fn before_mqtt_5_a_connection_ends_without_a_word() {
    let connect = {
        let mut bytes = Vec::new();
        Packet::Connect(Box::new(v4("again"))).encode(Version::V4, &mut bytes).unwrap();
        bytes
    };
    let rows: &[&[u8]] = &[
        &connect,                              // MQTT-3.1.0-2
        &[0x20, 2, 0, 0],                      // CONNACK
        &[0xf0, 0],                            // AUTH is of MQTT 5
        &[0x80, 6, 0, 1, 0, 1, b'a', 0],       // MQTT-3.8.1-1
        &[0x82, 6, 0, 1, 0, 1, b'a', 3],       // MQTT-3-8.3-4
        &[0x82, 6, 0, 1, 0, 1, b'a', 0b100],   // no options yet
        &[0x82, 2, 0, 1],                      // MQTT-3.8.3-3
        &[0x30, 3, 0, 1, b'+'],                // MQTT-3.3.2-2
        &[0x30, 2, 0, 0],                      // MQTT-4.7.3-1
        &[0x36, 5, 0, 1, b'a', 0, 1],          // MQTT-3.3.1-4
        &[0xc1, 0],                            // MQTT-2.2.2-2
        &[0x82, 5, 0, 1, 0, 0, 0],             // MQTT-4.7.3-1
        &[0x82, 7, 0, 1, 0, 2, b'a', b'#', 0], // MQTT-4.7.1-2 of 3.1.1
        &[0xa2, 4, 0, 1, 0, 0],                // UNSUBSCRIBE alike
        &[0xa2, 6, 0, 1, 0, 2, b'a', b'+'],
    ];
    for bytes in rows {
        each(|world| {
            let at = world.join(v4("a"));
            world.raw(at, bytes);
            assert_eq!(world.end_reason(at), None, "{bytes:02x?}");
            assert!(world.take(at).is_empty());
        });
    }
}

#[test]
fn mqtt_3_1_may_repeat_requests_with_dup() {
    each(|world| {
        let at = world.join(Connect { version: Version::V3, ..v4("a") });
        world.raw(at, &[0x8a, 6, 0, 1, 0, 1, b'a', 1]); // SUBSCRIBE with DUP
        world.raw(at, &[0x6a, 2, 0, 9]); // PUBREL with DUP
        assert_eq!(world.take(at).len(), 2);
        assert!(world.is_open(at));
    });
}

#[test]
fn nothing_behind_an_error_counts() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let p = world.join(v5("p"));
        let good = publish_bytes(message("a", AtMostOnce, "1"), &[]);
        world.raw(p, &[&good[..], &[0x00, 0], &good].concat());
        assert_eq!(world.end_reason(p), Some(ReasonCode::MALFORMED_PACKET));
        assert_eq!(world.messages(s).len(), 1);
        let p = world.join(v5("p"));
        world.raw(p, &[&good[..], &[0xe0, 0], &good].concat()); // MQTT-3.14.4-1
        assert_eq!(world.end_reason(p), None);
        assert_eq!(world.messages(s).len(), 1);
    });
}

#[test]
fn nothing_follows_our_disconnect() {
    // MQTT-3.14.4-1: the world checks it. QoS 0 and 1, small and large messages wait; one packet is half out.
    for room in [0, 5, 50, 5_000, 30_000] {
        each(|world| {
            let s = world.join(kept("s"));
            world.subscribe(s, "#", AtLeastOnce);
            world.room(s, room);
            let p = world.join(v5("p"));
            let large = "x".repeat(20_000);
            for number in 0..10 {
                let text = number.to_string();
                world.publish(p, message("a", AtMostOnce, &text));
                world.publish(p, message("a", AtLeastOnce, &text));
                world.publish(p, message("b", AtLeastOnce, &large));
            }
            world.clients[s.0].room = usize::MAX; // what is to leave at the end can
            world.raw(s, &[0x00, 0]);
            assert_eq!(world.end_reason(s), Some(ReasonCode::MALFORMED_PACKET));
        });
    }
}

#[test]
fn packets_over_our_maximum_are_refused_before_they_have_come() {
    // 3.2.2.3.6: 0x95; before MQTT 5 the connection just ends (3.1.1, section 4.8)
    let few = SessionConfig { packet_bytes_max: 1000, ..refusing() };
    each(|world| {
        for first in [0x30, 0x82, 0xa2] {
            let at = world.join_with(v5("a"), few.clone());
            world.raw(at, &[first, 0xe6, 0x07]); // 998 and a header of 3
            assert_eq!(world.end_reason(at), Some(ReasonCode::PACKET_TOO_LARGE));
            let told = world.clients[at.0].disconnected.clone().unwrap().reason_string.unwrap();
            assert_eq!(told, "packet of 1001 bytes exceeds the limit of 1000");
        }
        let at = world.join_with(v4("a"), few.clone());
        world.raw(at, &[0x30, 0xe6, 0x07]);
        assert_eq!(world.end_reason(at), None);
        let at = world.join_with(v5("a"), few.clone());
        let fits = publish_bytes(message("t", AtMostOnce, &"x".repeat(993)), &[]);
        assert_eq!(fits.len(), 1000);
        world.raw(at, &fits);
        assert!(world.is_open(at));
        // One client's limit does not hold for another.
        let other = world.join(v5("other"));
        world.publish(other, message("t", AtMostOnce, &"x".repeat(100_000)));
        assert!(world.is_open(other));
        // Nor for what this one is sent.
        world.subscribe(at, "t", AtMostOnce);
        world.publish(other, message("t", AtMostOnce, &"x".repeat(100_000)));
        assert_eq!(world.messages(at).len(), 1);
    });
}

/// Two levels and five bytes at most.
fn short_topics() -> SessionConfig {
    SessionConfig { topic_levels_max: 2, topic_bytes_max: 5, ..refusing() }
}

#[test]
fn topics_over_our_limits_are_refused_and_the_limit_is_named() {
    // 3.3.2.1, 4.13: 0x90
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        for (topic, told) in [
            ("a/b/c", "a topic has at most 2 levels here, this one has 3"),
            ("123456", "a topic has at most 5 bytes, this one has 6"),
        ] {
            for size in [1, 100_000] {
                let at = world.join_with(v5("a"), short_topics());
                let bytes = publish_bytes(message(topic, AtMostOnce, &"x".repeat(size)), &[]);
                // A large one is refused before it has come whole.
                world.raw(at, &bytes[..bytes.len().min(1_000)]);
                assert_eq!(world.end_reason(at), Some(ReasonCode::TOPIC_NAME_INVALID), "{topic}");
                let text = world.clients[at.0].disconnected.clone().unwrap().reason_string;
                assert!(text.as_deref().unwrap().starts_with(told), "{text:?}");
            }
            // With an alias, too.
            let at = world.join_with(v5("a"), short_topics());
            world.raw(at, &publish_bytes(message(topic, AtMostOnce, "x"), &[0x23, 0, 1]));
            assert_eq!(world.end_reason(at), Some(ReasonCode::TOPIC_NAME_INVALID), "{topic}");
            // 3.1.1, section 4.8: the connection ends.
            let at = world.join_with(v4("a"), short_topics());
            world.publish(at, message(topic, AtMostOnce, "x"));
            assert_eq!(world.end_reason(at), None);
        }
        let at = world.join_with(v5("a"), short_topics());
        world.publish(at, message("12/45", AtMostOnce, "x"));
        assert!(world.is_open(at));
        assert_eq!(world.messages(s).len(), 1);
    });
}

#[test]
fn wills_over_our_limits_are_refused_at_connect() {
    // 3.2.2.2: 0x90; 3.1.1 has no code for it but "server unavailable" (3.2.2.3)
    each(|world| {
        for topic in ["a/b/c", "123456"] {
            let connect = Connect { will: Some(will(topic, "x")), ..v5("a") };
            let refused = world.try_connect_with(connect, short_topics()).unwrap_err();
            assert_eq!(refused.reason, ReasonCode::TOPIC_NAME_INVALID);
            let connect = Connect { will: Some(will(topic, "x")), ..v4("a") };
            let refused = world.try_connect_with(connect, short_topics()).unwrap_err();
            assert_eq!(refused.connack, [0x20, 2, 0, 3]);
        }
        let connect = Connect { will: Some(will("a/b", "x")), ..v5("a") };
        assert!(world.try_connect_with(connect, short_topics()).is_ok());
    });
}

#[test]
fn filters_over_our_limits_are_refused_alone_and_the_limit_is_named() {
    // 3.9.3: 0x8F; 3.1.1, 3.9.3: 0x80. MQTT-3.1.2-29, MQTT-3.9.2-1: a client that wants no text, or could not take it,
    // gets none.
    let suback = |world: &mut World, at, text: &str| {
        let filters = vec![filter(text, AtMostOnce), filter("a/#", AtMostOnce)];
        let (packet_id, user_properties) = (id(1), Vec::new());
        let packet = Subscribe { packet_id, subscription_id: None, user_properties, filters };
        world.send(at, Packet::Subscribe(packet));
        world.answer(at, |packet| match packet {
            Packet::Suback(suback) => Some(suback.clone()),
            _ => None,
        })
    };
    let invalid = [ReasonCode::TOPIC_FILTER_INVALID, ReasonCode::SUCCESS];
    for (text, told) in [
        ("a/+/c", "a topic has at most 2 levels here, this one has 3"),
        ("123456", "a topic has at most 5 bytes, this one has 6"),
        ("$share/g/a", "a topic has at most 5 bytes, this one has 10"),
    ] {
        each(|world| {
            let at = world.join_with(v5("a"), short_topics());
            let answer = suback(world, at, text);
            assert_eq!(answer.reasons, invalid);
            assert!(answer.reason_string.as_deref().unwrap().starts_with(told), "{answer:?}");
            let mut connect = v5("b");
            connect.properties.request_problem_information = Some(false);
            let at = world.join_with(connect, short_topics());
            let answer = suback(world, at, text);
            assert_eq!((&answer.reasons[..], answer.reason_string), (&invalid[..], None));
            let mut connect = v5("c");
            connect.properties.maximum_packet_size = Some(40);
            let at = world.try_connect_with(connect, short_topics()).unwrap();
            let answer = suback(world, at, text);
            assert_eq!((&answer.reasons[..], answer.reason_string), (&invalid[..], None));
            let at = world.join_with(v4("d"), short_topics());
            let answer = suback(world, at, text);
            assert_eq!(answer.reasons, [ReasonCode::UNSPECIFIED_ERROR, ReasonCode::SUCCESS]);
        });
    }
    each(|world| {
        let levels = SessionConfig { topic_bytes_max: 100, ..short_topics() };
        let at = world.join_with(v5("a"), levels);
        assert_eq!(world.subscribe(at, "$share/g/a/b", AtMostOnce), ReasonCode::SUCCESS);
        let invalid = world.subscribe(at, "$share/g/a/b/c", AtMostOnce);
        assert_eq!(invalid, ReasonCode::TOPIC_FILTER_INVALID);
    });
}

#[test]
fn a_head_without_end_is_not_waited_for() {
    each(|world| {
        let at = world.join(v5("a"));
        // 100 MB of properties that never end: 0x26 is a user property.
        let mut bytes = vec![0x30, 0x80, 0x80, 0x80, 0x7f, 0, 1, b'a', 0x80, 0x80, 0x80, 0x32];
        bytes.resize(crate::CONTROL_BYTES_MAX + 100, 0x26);
        for part in bytes.chunks(10_000) {
            if world.is_open(at) {
                world.raw(at, part);
            }
        }
        assert_eq!(world.end_reason(at), Some(ReasonCode::PACKET_TOO_LARGE));
        // Others than those with filters are short.
        let at = world.join(v5("a"));
        world.raw(at, &[0x40, 0x80, 0x80, 0x80, 0x7f, 0, 1]);
        assert_eq!(world.end_reason(at), Some(ReasonCode::PACKET_TOO_LARGE));
        let few = SessionConfig { packet_bytes_max: 1 << 20, ..refusing() };
        let at = world.join_with(v5("a"), few);
        world.raw(at, &[0x82, 0x80, 0x80, 0x80, 0x7f, 0, 1]);
        assert_eq!(world.end_reason(at), Some(ReasonCode::PACKET_TOO_LARGE));
    });
}

#[test]
fn reason_strings_are_left_out_for_who_does_not_want_them() {
    for (wants, expected) in [(None, true), (Some(true), true), (Some(false), false)] {
        each(|world| {
            let mut connect = v5("a");
            connect.properties.request_problem_information = wants;
            let at = world.join(connect);
            world.raw(at, &[0x00, 0]);
            let told = world.clients[at.0].disconnected.clone().unwrap();
            assert_eq!(told.reason_string.is_some(), expected);
        });
    }
}

#[test]
fn no_bytes_of_a_client_do_harm() {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    let mut valid = Vec::new();
    let packet_id = Some(id(1));
    for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
        let packet_id = packet_id.filter(|_| qos > AtMostOnce);
        let publish = Publish { packet_id, ..retained("a/b", qos, "x") };
        valid.push(publish_bytes(publish, &[0x23, 0, 1, 2, 0, 0, 0, 9]));
        let large = "x".repeat(70_000);
        valid.push(publish_bytes(Publish { payload: large.as_bytes(), ..publish }, &[]));
    }
    let ack = || Ack::new(id(1), ReasonCode::SUCCESS);
    let subscribe = Subscribe {
        packet_id: id(2),
        subscription_id: Some(3),
        user_properties: Vec::new(),
        filters: vec![filter("a/#", ExactlyOnce), filter("$share/g/a/+", AtLeastOnce)],
    };
    let filters = vec!["a/#".to_owned()];
    let unsubscribe = Unsubscribe { packet_id: id(3), user_properties: Vec::new(), filters };
    for packet in [
        Packet::Puback(ack()),
        Packet::Pubrec(ack()),
        Packet::Pubrel(ack()),
        Packet::Pubcomp(ack()),
        Packet::Subscribe(subscribe),
        Packet::Unsubscribe(unsubscribe),
        Packet::Pingreq,
        Packet::Disconnect(Disconnect { session_expiry: Some(7), ..Disconnect::default() }),
    ] {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        valid.push(bytes);
    }
    for seed in 0..150 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        each(|world| {
            for round in 0..10 {
                let connect = if round % 3 == 0 { v4("a") } else { kept("a") };
                let at = world.connect_mute(connect);
                for _ in 0..20 {
                    let mut bytes = valid[random.random_range(0..valid.len())].clone();
                    if random.random_ratio(1, 4) {
                        let place = random.random_range(0..bytes.len().min(30));
                        bytes[place] = random.random();
                    }
                    if world.is_open(at) {
                        world.raw(at, &bytes);
                    }
                }
            }
        });
    }
}

fn users(names: &[&str]) -> std::collections::HashSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_user_is_ended_everywhere_and_no_other() {
    each(|world| {
        let of =
            |user: &str, client: &str| Connect { username: Some(user.to_owned()), ..kept(client) };
        let his: Vec<At> = (0..6).map(|n| world.join(of("his", &format!("h{n}")))).collect();
        let away = world.join(of("his", "away"));
        world.cut(away);
        // A client that only calls itself so, and another user.
        let others = [world.join(v5("his")), world.join(of("hers", "o"))];
        let ended: usize =
            world.shards.iter_mut().map(|shard| shard.kick_users(&users(&["his"]))).sum();
        assert_eq!(ended, his.len());
        assert!(world.shards.iter_mut().all(|shard| shard.kick_users(&users(&[""])) == 0));
        world.pump();
        for at in his {
            assert_eq!(world.end_reason(at), Some(ReasonCode::ADMINISTRATIVE_ACTION));
        }
        assert!(others.iter().all(|at| world.is_open(*at)));
        // He may come again, and finds his session.
        let again = world.connect(of("his", "h0"));
        assert!(world.connack(again).session_present);
    });
}

#[test]
fn an_acknowledgement_of_another_kind_ends_the_connection() {
    // MQTT-4.3.2-4, MQTT-4.3.3-8, MQTT-4.13.1-1; 4.8.0-1 of 3.1.1
    type Answer = fn(&mut World, At, PacketId);
    let puback: Answer = |world, at, id| world.puback(at, id);
    let pubrec: Answer = |world, at, id| world.pubrec(at, id);
    let pubcomp: Answer = |world, at, id| world.pubcomp(at, id);
    for (name, qos, before, wrong) in [
        ("QoS 1, PUBREC", AtLeastOnce, None, pubrec),
        ("QoS 1, PUBCOMP", AtLeastOnce, None, pubcomp),
        ("QoS 2, PUBACK", ExactlyOnce, None, puback),
        ("QoS 2, PUBCOMP before PUBREL", ExactlyOnce, None, pubcomp),
        ("QoS 2, PUBACK after PUBREL", ExactlyOnce, Some(pubrec), puback),
    ] {
        for connect in [kept("s"), Connect { clean_start: false, ..v4("s") }] {
            each(|world| {
                let version = connect.version;
                let s = world.mute(connect.clone());
                world.subscribe(s, "t", ExactlyOnce);
                let p = world.join(v5("p"));
                world.publish(p, message("t", qos, "x"));
                let id = world.messages(s)[0].id.unwrap();
                if let Some(before) = before {
                    before(world, s, id);
                }
                wrong(world, s, id);
                let expected = (version == Version::V5).then_some(ReasonCode::PROTOCOL_ERROR);
                assert_eq!(world.end_reason(s), expected, "{name}");
                // It continues with the next connection.
                let s = world.join(connect.clone());
                let again = world.messages(s);
                assert_eq!(again.len(), usize::from(before.is_none()), "{name}");
                assert!(again.iter().all(|delivery| delivery.dup));
                assert!(world.is_open(s));
                // An unknown identifier has no effect, nor has one that comes twice.
                puback(world, s, id);
                pubcomp(world, s, id);
                assert!(world.is_open(s), "{name}");
            });
        }
    }
    each(|world| {
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        let p = world.join(v5("p"));
        world.publish(p, message("t", ExactlyOnce, "x"));
        let id = world.messages(s)[0].id.unwrap();
        world.pubrec(s, id);
        world.pubrec(s, id);
        world.pubcomp(s, id);
        assert!(world.is_open(s));
    });
}

#[test]
fn topics_with_control_characters_are_let_in_where_that_is_set() {
    let open = SessionConfig { topic_control_characters: true, ..refusing() };
    for topic in ["a\nb", "\u{1}", "a/\u{9f}", "\u{ffff}"] {
        each_with(BrokerConfig { session: open.clone(), ..settings() }, |world| {
            let s = world.join(v5("s"));
            assert_eq!(world.subscribe(s, topic, AtLeastOnce), ReasonCode::GRANTED_QOS_1);
            let connect = Connect { will: Some(will(topic, "w")), ..v5("p") };
            let p = world.join(connect);
            world.publish(p, message(topic, AtLeastOnce, "x"));
            world.cut(p);
            assert_eq!(world.texts(s), ["x", "w"]);
        });
        each(|world| {
            let connect = Connect { will: Some(will(topic, "w")), ..v5("p") };
            let refused = world.try_connect(connect).unwrap_err();
            assert_eq!(refused.reason, ReasonCode::TOPIC_NAME_INVALID);
            let at = world.join(v4("p"));
            world.publish(at, message(topic, AtLeastOnce, "x"));
            assert!(!world.is_open(at));
            // A message that a part of the process carries is refused by itself, so that the rest continues; large
            // ones alike.
            let local = SessionConfig { is_local: true, ..refusing() };
            let at = world.join_with(v5("local"), local);
            for text in ["x", &"x".repeat(100_000)] {
                let id = world.publish(at, message(topic, AtLeastOnce, text)).unwrap();
                assert_eq!(world.accepted(at, id), ReasonCode::NOT_AUTHORIZED);
            }
            assert!(world.is_open(at));
        });
    }
    // Earlier retained ones are not restored: that would lock clients out.
    let mut world = World::keeping(BrokerConfig { session: open, ..settings() }, 1, false);
    let p = world.join(v5("p"));
    world.publish(p, retained("a\n", AtLeastOnce, "x"));
    world.publish(p, retained("b", AtLeastOnce, "x"));
    let recovered = Recovered::join(world.tapes.iter().map(|tape| tape.replay()).collect());
    let shared = Shared::new(settings(), 1, Arc::new(AllowAll), world.now);
    let mut shards = vec![Broker::new(shared.clone(), 0, 1, world.now)];
    Broker::restore_all(&mut shards, world.now, recovered);
    assert_eq!(shared.retained_count(), 1);
}

#[test]
fn features_denied_by_connack_are_refused() {
    // MQTT-3.2.2-9, -11, -12: Maximum QoS; MQTT-3.2.2-13, -14: Retain Available
    let less = SessionConfig { max_qos: AtLeastOnce, retain_available: false, ..refusing() };
    each(|world| {
        let at = world.try_connect_with(v5("a"), less.clone()).unwrap();
        let told = world.connack(at).properties;
        assert_eq!((told.maximum_qos, told.retain_available), (Some(AtLeastOnce), Some(false)));
        assert_eq!(world.subscribe(at, "t", ExactlyOnce), ReasonCode::GRANTED_QOS_1);
        let p = world.join(v5("p"));
        world.publish(p, message("t", ExactlyOnce, "x"));
        assert_eq!(world.messages(at)[0].qos, AtLeastOnce);
        for (qos, retain, size, reason) in [
            (ExactlyOnce, false, 1, ReasonCode::QOS_NOT_SUPPORTED),
            (ExactlyOnce, false, 100_000, ReasonCode::QOS_NOT_SUPPORTED),
            (AtLeastOnce, true, 1, ReasonCode::RETAIN_NOT_SUPPORTED),
            (AtMostOnce, true, 100_000, ReasonCode::RETAIN_NOT_SUPPORTED),
            (AtMostOnce, true, 0, ReasonCode::RETAIN_NOT_SUPPORTED),
        ] {
            let at = world.join_with(v5("a"), less.clone());
            let text = "x".repeat(size);
            world.publish(at, Publish { retain, ..message("t", qos, &text) });
            assert_eq!(world.end_reason(at), Some(reason));
            let old = world.join_with(v4("b"), less.clone());
            world.publish(old, Publish { retain, ..message("t", qos, &text) });
            assert!(!world.is_open(old));
        }
        for (qos, retain, reason) in [
            (ExactlyOnce, false, ReasonCode::QOS_NOT_SUPPORTED),
            (AtMostOnce, true, ReasonCode::RETAIN_NOT_SUPPORTED),
        ] {
            let asked = Will { qos, retain, ..will("t", "x") };
            let connect = Connect { will: Some(asked), ..v5("a") };
            let refused = world.try_connect_with(connect, less.clone()).unwrap_err();
            assert_eq!(refused.reason, reason);
        }
        assert_eq!(world.shared.retained_count(), 0);
        // Nothing of it is said to a part of this process.
        let local = SessionConfig { is_local: true, ..less.clone() };
        let at = world.try_connect_with(v5("local"), local).unwrap();
        assert_eq!(world.connack(at).properties.maximum_qos, None);
        world.publish(at, retained("r", ExactlyOnce, "x"));
        assert!(world.is_open(at));
        // Nor where all is there.
        let at = world.connect(v5("c"));
        let told = world.connack(at).properties;
        assert_eq!((told.maximum_qos, told.retain_available), (None, None));
    });
}

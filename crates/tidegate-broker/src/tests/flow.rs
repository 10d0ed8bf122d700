//! Receive Maximum, Maximum Packet Size and topic aliases (sections 3.3.2.3.4, 4.9 and 3.1.2.11).

use super::*;

#[test]
fn no_more_is_in_flight_than_the_subscriber_takes() {
    // MQTT-3.3.4-9; QoS 0 is not held up by it, order aside
    each(|world| {
        let mut connect = v5("s");
        connect.properties.receive_maximum = NonZeroU16::new(3);
        let s = world.join(connect);
        world.acknowledges(s, false);
        world.subscribe(s, "#", ExactlyOnce);
        let p = world.join(v5("p"));
        for number in 0..10 {
            let qos = if number % 2 == 0 { AtLeastOnce } else { ExactlyOnce };
            world.publish(p, message("t", qos, &number.to_string()));
        }
        let mut seen = Vec::new();
        loop {
            let got = world.messages(s);
            if got.is_empty() {
                break;
            }
            for delivery in got {
                seen.push(delivery.text());
                let id = delivery.id.unwrap();
                if delivery.qos == AtLeastOnce {
                    world.puback(s, id);
                } else {
                    world.pubrec(s, id);
                    world.pubcomp(s, id);
                }
            }
        }
        let expected: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(seen, expected);
    });
}

#[test]
fn a_pubrec_frees_no_place() {
    // 4.9: PUBACK, PUBCOMP and PUBREC with an error do
    each(|world| {
        let mut connect = v5("s");
        connect.properties.receive_maximum = NonZeroU16::new(1);
        let s = world.join(connect);
        world.acknowledges(s, false);
        world.subscribe(s, "#", ExactlyOnce);
        let p = world.join(v5("p"));
        world.publish(p, message("t", ExactlyOnce, "0"));
        world.publish(p, message("t", ExactlyOnce, "1"));
        let first = world.messages(s)[0].id.unwrap();
        world.pubrec(s, first);
        assert!(world.messages(s).is_empty());
        world.pubcomp(s, first);
        assert_eq!(world.texts(s), ["1"]);
    });
}

#[test]
fn a_publisher_that_exceeds_our_receive_maximum_is_disconnected() {
    // MQTT-3.3.4-7: 0x93
    let config = BrokerConfig { receive_maximum: 2, ..settings() };
    each_with(config, |world| {
        let p = world.join(v5("p"));
        world.acknowledges(p, false);
        for _ in 0..2 {
            world.publish(p, message("t", ExactlyOnce, "x"));
        }
        for _ in 0..5 {
            world.publish(p, message("t", AtLeastOnce, "x")); // acknowledged at once
        }
        assert!(world.is_open(p));
        world.publish(p, message("t", ExactlyOnce, "x"));
        assert_eq!(world.end_reason(p), Some(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED));
    });
}

#[test]
fn messages_larger_than_the_subscriber_accepts_are_left_out() {
    // MQTT-3.1.2-24, MQTT-3.1.2-25; at the very byte
    for alias_maximum in [0, 1, 10] {
        for size in 0..40 {
            each(|world| {
                let mut connect = v5("s");
                connect.properties.maximum_packet_size = Some(40);
                connect.properties.topic_alias_maximum = alias_maximum;
                let s = world.join(connect);
                world.subscribe(s, "#", AtLeastOnce);
                let p = world.join(v5("p"));
                let payload = "x".repeat(size);
                // 2 of header, 2 + 5 of topic, 1 of properties: 10 and the payload
                for topic in ["topic", "other"] {
                    world.publish(p, message(topic, AtMostOnce, &payload));
                    let fits = size + 10 <= 40;
                    assert_eq!(
                        world.messages(s).len(),
                        usize::from(fits),
                        "{size} {alias_maximum}"
                    );
                    world.publish(p, message(topic, AtLeastOnce, &payload));
                    let fits = size + 12 <= 40;
                    assert_eq!(
                        world.messages(s).len(),
                        usize::from(fits),
                        "{size} {alias_maximum}"
                    );
                }
                // The one after it comes.
                world.publish(p, message("t", AtLeastOnce, "after"));
                assert_eq!(world.texts(s), ["after"]);
            });
        }
    }
}

#[test]
fn lengths_of_two_bytes_are_counted_too() {
    for size in 100..140 {
        each(|world| {
            let mut connect = v5("s");
            connect.properties.maximum_packet_size = Some(131);
            connect.properties.topic_alias_maximum = 9;
            let s = world.join(connect);
            world.subscribe(s, "#", AtMostOnce);
            let p = world.join(v5("p"));
            world.publish(p, message("topic", AtMostOnce, &"x".repeat(size)));
            let rest = size + 8;
            let fits = rest + if rest < 128 { 2 } else { 3 } <= 131;
            assert_eq!(world.messages(s).len(), usize::from(fits), "{size}");
        });
    }
}

#[test]
fn a_goodbye_fits_into_what_the_client_takes() {
    // MQTT-3.14.2-3: no reason string where it would not
    each(|world| {
        let mut connect = v5("s");
        connect.properties.maximum_packet_size = Some(20);
        let s = world.join(connect.clone());
        let suback = [0x90, 1, 0];
        world.raw(s, &suback);
        assert!(world.end_reason(s).is_some());
        let s = world.join(connect);
        world.raw(s, &[0x30, 5, 0, 3, b'a', b'/', b'#']);
        assert_eq!(world.end_reason(s), Some(ReasonCode::MALFORMED_PACKET));
    });
}

#[test]
fn an_answer_that_is_larger_than_the_client_takes_is_not_sent() {
    // MQTT-3.1.2-24; the world looks at the length of each packet that leaves.
    each(|world| {
        let at = world.connect(v5("c"));
        let connack = Packet::Connack(Box::new(world.connack(at)));
        let mut bytes = Vec::new();
        connack.encode(Version::V5, &mut bytes).unwrap();
        let least = u32::try_from(bytes.len()).unwrap();
        let mut connect = v5("c");
        for size in 1..least {
            connect.properties.maximum_packet_size = Some(size);
            let refused = world.try_connect(connect.clone()).unwrap_err();
            assert_eq!(refused.reason, ReasonCode::PACKET_TOO_LARGE, "{size}");
            assert!(refused.connack.len() <= size as usize, "{size}");
            assert_eq!(refused.connack.is_empty(), size < 5, "{size}");
        }
        assert!(world.is_open(at), "the session was not taken over");
        connect.properties.maximum_packet_size = Some(least);
        let at = world.join(connect);
        let filters = |count| (0..count).map(|n| filter(&n.to_string(), AtMostOnce)).collect();
        // 2 of header, 2 of identifier, 1 of properties
        let fits = least as usize - 5;
        assert_eq!(world.subscribe_to(at, None, filters(fits)).len(), fits);
        let filters = filters(fits + 1);
        let packet_id = world.fresh_id(at);
        let user_properties = Vec::new();
        let subscribe = Subscribe { packet_id, subscription_id: None, user_properties, filters };
        world.send(at, Packet::Subscribe(subscribe));
        assert_eq!(world.end_reason(at), Some(ReasonCode::PACKET_TOO_LARGE));
    });
}

fn aliased(topic: &str, alias: u16, payload: &str) -> Vec<u8> {
    let [high, low] = alias.to_be_bytes();
    publish_bytes(message(topic, AtMostOnce, payload), &[0x23, high, low])
}

#[test]
fn a_publisher_may_use_aliases() {
    // MQTT-3.3.2-12
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let p = world.join(v5("p"));
        world.raw(p, &aliased("a/b", 1, "0"));
        world.raw(p, &aliased("", 1, "1"));
        world.raw(p, &aliased("c", 64, "2"));
        world.raw(p, &aliased("", 64, "3"));
        world.raw(p, &aliased("d", 1, "4")); // defined anew
        world.raw(p, &aliased("", 1, "5"));
        let got: Vec<_> =
            world.messages(s).into_iter().map(|d| (d.topic.clone(), d.text())).collect();
        let expected = [("a/b", "0"), ("a/b", "1"), ("c", "2"), ("c", "3"), ("d", "4"), ("d", "5")];
        let expected = expected.map(|(topic, text)| (topic.to_owned(), text.to_owned()));
        assert_eq!(got, expected);
    });
}

#[test]
fn a_large_message_may_use_an_alias() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let p = world.join(v5("p"));
        let payload = "x".repeat(100_000);
        for part in [aliased("a", 3, &payload), aliased("", 3, &payload)].concat().chunks(10_000) {
            world.raw(p, part);
        }
        let got = world.messages(s);
        assert_eq!(got.len(), 2);
        assert!(got.iter().all(|d| d.topic == "a" && d.text() == payload));
    });
}

#[test]
fn bad_aliases_end_the_connection() {
    for (alias, topic, expected) in [
        (0, "t", ReasonCode::TOPIC_ALIAS_INVALID),  // MQTT-3.3.2-8
        (65, "t", ReasonCode::TOPIC_ALIAS_INVALID), // MQTT-3.3.2-9: over ours
        (5, "", ReasonCode::PROTOCOL_ERROR),        // 3.3.2.3.4: not defined
    ] {
        each(|world| {
            let p = world.join(v5("p"));
            world.raw(p, &aliased(topic, alias, "x"));
            assert_eq!(world.end_reason(p), Some(expected));
        });
    }
}

#[test]
fn aliases_end_with_the_connection() {
    // MQTT-3.3.2-7
    each(|world| {
        let p = world.join(kept("p"));
        world.raw(p, &aliased("t", 1, "x"));
        world.cut(p);
        let p = world.join(kept("p"));
        world.raw(p, &aliased("", 1, "x"));
        assert_eq!(world.end_reason(p), Some(ReasonCode::PROTOCOL_ERROR));
    });
}

#[test]
fn a_subscriber_that_takes_aliases_gets_them() {
    // MQTT-3.1.2-26, -27
    each(|world| {
        let mut connect = kept("s");
        connect.properties.topic_alias_maximum = 2;
        let s = world.join(connect.clone());
        world.subscribe(s, "#", AtLeastOnce);
        let p = world.join(v5("p"));
        let large = "x".repeat(20_000);
        let send = |world: &mut World| {
            for topic in ["first", "second", "third"] {
                world.publish(p, message(topic, AtLeastOnce, "x"));
                world.publish(p, message(topic, AtMostOnce, &large));
            }
        };
        send(world);
        send(world);
        let got = world.messages(s);
        assert_eq!(got.len(), 12);
        for delivery in &got {
            let expected = match &*delivery.topic {
                "first" => Some(1),
                "second" => Some(2),
                _ => None,
            };
            assert_eq!(delivery.alias, expected);
        }
        assert!(got[6..].iter().all(|d| d.topic_was_empty == (d.topic != "third")));
        world.cut(s);
        let s = world.join(connect);
        send(world);
        assert_eq!(world.messages(s).len(), 6); // the world checks that they are defined again
    });
}

#[test]
fn latency_queries_keep_to_the_protocol() {
    // Ours: a QoS 1 message on a topic that the subscriber asked for, whose acknowledgement tells the round trip.
    use tidegate_schedule::{PaperConfig, Policy};
    let policy = Policy::Conservative(PaperConfig::default());
    let config = SessionConfig { policy, ..refusing() };
    each(|world| {
        let s = world.join_with(kept("s"), config.clone());
        world.acknowledges(s, false);
        world.subscribe(s, "latency", AtLeastOnce);
        world.advance(seconds(12));
        let got = world.messages(s);
        assert_eq!(got.len(), 1); // one at a time
        world.puback(s, got[0].id.unwrap());
        world.advance(seconds(6));
        assert_eq!(world.messages(s).len(), 1);
        world.cut(s);
        // It is no message: it is not sent again.
        let s = world.mute(kept("s"));
        world.advance(seconds(60));
        assert!(world.messages(s).is_empty());
        world.cut(s);
        // It is not sent to who takes no such packet, and takes no place of who takes but one.
        let mut connect = kept("s");
        connect.properties.maximum_packet_size = Some(1_000);
        connect.properties.receive_maximum = NonZeroU16::new(1);
        let s = world.join_with(connect, config.clone());
        world.advance(seconds(60));
        assert!(world.messages(s).is_empty());
        let p = world.join(v5("p"));
        world.publish(p, message("latency", AtLeastOnce, "x"));
        assert_eq!(world.texts(s), ["x"]);
    });
}

#[test]
fn a_withheld_message_is_looked_at_when_the_schedule_says() {
    use tidegate_schedule::LinkState;
    let milliseconds = Duration::from_millis;
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "t", AtMostOnce);
        let p = world.join(v5("p"));
        let (shard, key) = (world.clients[s.0].shard, world.clients[s.0].key.unwrap());
        // 4 ms until the kernel has sent what it holds.
        let link =
            LinkState { delivery_rate: 1_000_000, unsent_bytes: 4_000, ..LinkState::default() };
        world.shards[shard].set_link(world.now, key, link);
        world.publish(p, message("t", AtMostOnce, &"x".repeat(20_000)));
        assert_eq!(world.shards[shard].poll_timeout(), Some(world.now + milliseconds(4)));
        world.advance(milliseconds(3));
        world.shards[shard].set_link(world.now, key, LinkState { unsent_bytes: 0, ..link });
        assert!(world.messages(s).is_empty());
        world.advance(milliseconds(1));
        assert_eq!(world.messages(s).len(), 1);
        assert_eq!(world.shards[shard].poll_timeout(), None);
    });
}

/// A world with a subscriber to everything and a publisher, whose path has had 10 Mbit/s for some seconds.
fn warmed(world: &mut World, config: SessionConfig) -> (At, At) {
    let s = world.join_with(v5("s"), config);
    world.subscribe(s, "#", AtMostOnce);
    let p = world.join(v5("p"));
    for second in 0..20 {
        look(world, s, 1_250_000 + second);
        world.publish(p, message("small", AtMostOnce, "s"));
        world.advance(seconds(1));
    }
    world.take(s);
    (s, p)
}

/// The kernel knows that rate.
fn look(world: &mut World, at: At, delivery_rate: u64) {
    let (shard, key) = (world.clients[at.0].shard, world.clients[at.0].key.unwrap());
    let link = tidegate_schedule::LinkState { delivery_rate, ..Default::default() };
    world.shards[shard].set_link(world.now, key, link);
}

fn withheld(world: &World) -> u64 {
    world.shards.iter().map(|shard| shard.statistics().withheld).sum()
}

#[test]
fn a_large_message_is_withheld_in_a_dip_until_its_deadline_at_most() {
    let large = "x".repeat(1_000_000);
    each(|world| {
        let (s, p) = warmed(world, refusing());
        world.publish(p, message("large", AtMostOnce, &large));
        assert_eq!((world.messages(s).len(), withheld(world)), (1, 0), "0.8 s, but as always");
        // A tenth of that, while small messages come; none of them ever waits in a queue.
        let step = Duration::from_millis(200);
        look(world, s, 125_000);
        world.publish(p, message("small", AtMostOnce, "s"));
        world.publish(p, message("large", AtMostOnce, &large));
        for renewed in 1..25 {
            assert_eq!(world.messages(s).len(), 1, "after {:?}", (renewed - 1) * step);
            world.advance(step);
            look(world, s, 125_000 + u64::from(renewed));
            world.publish(p, message("small", AtMostOnce, "s"));
        }
        assert_eq!((world.messages(s).len(), withheld(world)), (1, 0));
        world.advance(step - Duration::from_nanos(1));
        assert!(world.messages(s).is_empty(), "the deadline is not yet over");
        world.advance(Duration::from_nanos(1));
        assert_eq!((world.messages(s).len(), withheld(world)), (1, 1));
        // A dip that is not renewed is believed for a second, then the start itself is the probe.
        look(world, s, 120_000);
        world.publish(p, message("small", AtMostOnce, "s"));
        world.publish(p, message("large", AtMostOnce, &large));
        world.advance(Duration::from_millis(999));
        assert_eq!((world.messages(s).len(), withheld(world)), (1, 1));
        world.advance(Duration::from_millis(1));
        assert_eq!((world.messages(s).len(), withheld(world)), (1, 2));
        // No subscriber is helped where no small message comes.
        world.advance(seconds(9));
        look(world, s, 110_000);
        world.publish(p, message("large", AtMostOnce, &large));
        assert_eq!((world.messages(s).len(), withheld(world)), (1, 2));
    });
}

#[test]
fn small_messages_that_go_at_once_end_with_the_large_one_that_waited() {
    // They are of its share while it waits, and of no share after.
    let large = "x".repeat(20_000);
    each(|world| {
        let (s, p) = warmed(world, refusing());
        world.publish(p, message("large", AtMostOnce, &large));
        for _ in 0..2_000 {
            world.publish(p, message("small", AtMostOnce, &"s".repeat(1_000)));
        }
        world.take(s);
        world.room(s, 0);
        for _ in 0..10 {
            world.publish(p, message("small", AtMostOnce, &"s".repeat(4_000)));
        }
        world.publish(p, message("large", AtMostOnce, &large));
        world.room(s, usize::MAX);
        let sizes: Vec<usize> = world.messages(s).iter().map(|got| got.payload.len()).collect();
        assert_eq!(sizes, [vec![4_000; 10], vec![20_000]].concat());
    });
}

#[test]
fn a_path_is_looked_at_once_a_second_where_large_messages_come() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let p = world.join(v5("p"));
        let (shard, key) = (world.clients[s.0].shard, world.clients[s.0].key.unwrap());
        let wants = |world: &World| world.shards[shard].wants_link(world.now, key);
        world.advance(seconds(60));
        assert!(!wants(world), "no large message came");
        world.publish(p, message("large", AtMostOnce, &"x".repeat(20_000)));
        assert!(!wants(world));
        world.advance(seconds(1));
        assert!(wants(world));
        look(world, s, 1_250_000);
        assert!(!wants(world));
    });
}

/// A session of the paper's conservative policy: threshold_l 0.5 s, T_Q 5 s.
fn conservative() -> SessionConfig {
    let policy = tidegate_schedule::Policy::Conservative(Default::default());
    SessionConfig { policy, ..refusing() }
}

#[test]
fn a_client_without_query_answers_is_judged_by_the_kernel() {
    let large = "x".repeat(1_000_000);
    each(|world| {
        let s = world.join_with(v5("s"), conservative());
        world.subscribe(s, "#", AtMostOnce);
        let p = world.join(v5("p"));
        let (shard, key) = (world.clients[s.0].shard, world.clients[s.0].key.unwrap());
        let wants = |world: &World| world.shards[shard].wants_link(world.now, key);
        let trip = |world: &mut World, milliseconds| {
            let rtt = Duration::from_millis(milliseconds);
            let link = tidegate_schedule::LinkState { rtt, ..Default::default() };
            world.shards[shard].set_link(world.now, key, link);
        };
        assert!(wants(world));
        trip(world, 400);
        assert!(!wants(world), "until the next period");
        world.publish(p, message("large", AtMostOnce, &large));
        assert_eq!((world.messages(s).len(), withheld(world)), (1, 0));
        world.advance(seconds(5));
        assert!(wants(world));
        trip(world, 600);
        world.publish(p, message("large", AtMostOnce, &large));
        assert!(world.messages(s).is_empty());
        world.advance(seconds(4));
        trip(world, 100);
        world.publish(p, message("small", AtMostOnce, "s"));
        assert_eq!(world.messages(s).len(), 1, "the period is not yet over");
        world.advance(seconds(1));
        trip(world, 100);
        world.publish(p, message("small", AtMostOnce, "s"));
        assert_eq!((world.messages(s).len(), withheld(world)), (2, 1));
        // A value that is not renewed is not new: the threshold is exceeded by the latest that was.
        world.advance(seconds(5));
        trip(world, 700);
        trip(world, 700);
        world.publish(p, message("large", AtMostOnce, &large));
        world.advance(seconds(20));
        assert!(world.messages(s).is_empty());
        world.advance(Duration::from_nanos(1));
        assert_eq!((world.messages(s).len(), withheld(world)), (1, 2), "D is over");
    });
}

#[test]
fn a_client_without_query_answers_is_judged_by_its_own_acknowledgements() {
    let large = "x".repeat(1_000_000);
    each(|world| {
        let s = world.join_with(v5("s"), conservative());
        world.acknowledges(s, false);
        world.subscribe(s, "t/#", AtLeastOnce);
        let p = world.join(v5("p"));
        let trip = |world: &mut World, milliseconds| {
            world.publish(p, message("t/small", AtLeastOnce, "s"));
            let got = world.messages(s);
            assert_eq!(got.len(), 1);
            world.advance(Duration::from_millis(milliseconds));
            world.puback(s, got[0].id.unwrap());
        };
        trip(world, 700);
        world.publish(p, message("t/large", AtLeastOnce, &large));
        assert!(world.messages(s).is_empty());
        trip(world, 100);
        assert!(world.messages(s).is_empty(), "the period is not yet over");
        world.advance(seconds(5));
        trip(world, 100);
        let got = world.messages(s);
        assert_eq!((got.len(), withheld(world)), (1, 1));
        // The large one was not timed. The last 16 KiB of the next one are: that takes as long as a query.
        world.puback(s, got[0].id.unwrap());
        world.advance(seconds(5));
        world.publish(p, message("t/large", AtLeastOnce, &large));
        let got = world.messages(s);
        world.advance(Duration::from_millis(600));
        world.puback(s, got[0].id.unwrap());
        world.publish(p, message("t/large", AtLeastOnce, &large));
        assert!(world.messages(s).is_empty());
    });
}

#[test]
fn a_connection_is_flushed_when_its_last_byte_has_left() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        world.room(s, 0);
        let p = world.join(v5("p"));
        world.publish(p, message("small", AtMostOnce, "x"));
        world.publish(p, message("large", AtMostOnce, &"x".repeat(20_000)));
        world.send(s, Packet::Pingreq);
        let (shard, key) = (world.clients[s.0].shard, world.clients[s.0].key.unwrap());
        let mut given = 0;
        while !world.shards[shard].is_flushed(key) {
            assert!(world.clients[s.0].got.len() < 3, "after {given} bytes");
            world.room(s, 97);
            given += 97;
        }
        assert_eq!(world.take(s).len(), 3);
        assert!(given > 20_000);
    });
}

#[test]
fn answers_that_wait_are_counted_and_messages_are_not() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let (shard, key) = (world.clients[s.0].shard, world.clients[s.0].key.unwrap());
        world.room(s, 0);
        for _ in 0..10 {
            world.send(s, Packet::Pingreq);
        }
        assert_eq!(world.shards[shard].answer_bytes(key), 20);
        world.publish(s, message("t", AtLeastOnce, "x")); // PUBACK: 4 bytes
        assert_eq!(world.shards[shard].answer_bytes(key), 24);
        world.room(s, 3);
        assert_eq!(world.shards[shard].answer_bytes(key), 21);
        world.room(s, usize::MAX);
        assert_eq!(world.shards[shard].answer_bytes(key), 0);
        assert_eq!(world.take(s).len(), 12);
        world.cut(s);
        assert_eq!(world.shards[shard].answer_bytes(key), 0);
    });
}

#[test]
fn settings_of_policies_are_checked() {
    use crate::config::PolicyConfigError;
    use tidegate_schedule::*;
    assert_eq!(settings().check_policies(), Ok(()));
    let wild = BrokerConfig { query_topic: "latency/#".into(), ..settings() };
    assert!(matches!(wild.check_policies(), Err(PolicyConfigError::QueryTopic(_))));
    let policy = Policy::Deadline(DeadlineConfig { quantum_bytes: 0, ..DeadlineConfig::default() });
    let session = SessionConfig { policy, ..refusing() };
    let found = BrokerConfig { session, ..settings() }.check_policies();
    assert_eq!(found, Err(PolicyConfigError::Policy(PolicyError::QuantumBytes(0))));
}

#[test]
fn a_session_may_have_more_in_flight() {
    let few = BrokerConfig { inflight_max: 2, inflight_bytes_max: 4, ..settings() };
    each_with(few, |world| {
        let config = SessionConfig {
            inflight_max: Some(5),
            inflight_bytes_max: Some(1 << 20),
            ..refusing()
        };
        let s = world.join_with(v5("inside"), config);
        world.acknowledges(s, false);
        world.subscribe(s, "#", AtLeastOnce);
        let p = world.join(v5("p"));
        for _ in 0..7 {
            world.publish(p, message("t", AtLeastOnce, "four"));
        }
        let got = world.messages(s);
        assert_eq!(got.len(), 5);
        world.puback(s, got[0].id.unwrap());
        world.puback(s, got[1].id.unwrap());
        assert_eq!(world.messages(s).len(), 2);
    });
}

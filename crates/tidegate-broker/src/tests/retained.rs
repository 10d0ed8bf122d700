//! Retained messages (section 3.3.1.3) and what subscriptions get of them (3.8.3.1).

use super::*;
use crate::Overflow;

fn handling(text: &str, retain_handling: RetainHandling) -> Vec<SubscribeFilter> {
    vec![SubscribeFilter { retain_handling, ..filter(text, AtLeastOnce) }]
}

#[test]
fn a_new_subscription_gets_the_last_retained_message_of_each_topic() {
    // MQTT-3.3.1-5, -8; MQTT-3.3.1-9
    for version in [Version::V3, Version::V4, Version::V5] {
        each(|world| {
            let p = world.join(v5("p"));
            for (topic, text) in [("a/1", "old"), ("a/1", "new"), ("a/2", "two"), ("b", "other")] {
                world.publish(p, retained(topic, AtLeastOnce, text));
            }
            world.publish(p, message("a/1", AtLeastOnce, "not retained"));
            let s = world.join(Connect { version, ..v5("s") });
            world.subscribe(s, "a/+", AtMostOnce);
            let mut got = world.messages(s);
            got.sort_by_key(|delivery| delivery.topic.clone());
            let seen: Vec<_> = got.iter().map(|d| (d.text(), d.retain, d.qos)).collect();
            let expected =
                [("new".to_owned(), true, AtMostOnce), ("two".to_owned(), true, AtMostOnce)];
            assert_eq!(seen, expected);
            // One that is published now comes without the flag.
            world.publish(p, retained("a/1", AtLeastOnce, "now"));
            let got = world.messages(s);
            assert_eq!((got.len(), got[0].retain), (1, false));
        });
    }
}

#[test]
fn retain_handling_says_when_retained_messages_are_sent() {
    // MQTT-3.3.1-9, -10, -11
    use RetainHandling::{DoNotSend, Send, SendIfNew};
    each(|world| {
        let p = world.join(v5("p"));
        world.publish(p, retained("a", AtLeastOnce, "x"));
        let s = world.join(kept("s"));
        for (how, expected) in
            [(DoNotSend, 0), (SendIfNew, 0), (Send, 1), (Send, 1), (SendIfNew, 0)]
        {
            world.subscribe_to(s, None, handling("a", how));
            assert_eq!(world.messages(s).len(), expected, "{how:?}");
        }
        world.unsubscribe(s, &["a"]);
        world.subscribe_to(s, None, handling("a", SendIfNew));
        assert_eq!(world.messages(s).len(), 1);
        world.cut(s);
        let s = world.join(kept("s"));
        assert!(world.messages(s).is_empty());
        world.subscribe_to(s, None, handling("a", SendIfNew));
        assert!(world.messages(s).is_empty());
    });
}

#[test]
fn retain_as_published_keeps_the_flag() {
    // MQTT-3.3.1-12, -13
    each(|world| {
        let s = world.join(v5("s"));
        let keeps = SubscribeFilter { retain_as_published: true, ..filter("a", AtMostOnce) };
        world.subscribe_to(s, None, vec![keeps]);
        let t = world.join(v5("t"));
        world.subscribe(t, "a", AtMostOnce);
        let p = world.join(v5("p"));
        world.publish(p, retained("a", AtMostOnce, "x"));
        world.publish(p, message("a", AtMostOnce, "x"));
        let flags = |got: Vec<Delivery>| got.iter().map(|d| d.retain).collect::<Vec<_>>();
        assert_eq!(flags(world.messages(s)), [true, false]);
        assert_eq!(flags(world.messages(t)), [false, false]);
    });
}

#[test]
fn an_empty_payload_forgets_the_retained_message_and_is_delivered() {
    // MQTT-3.3.1-6, -7
    each(|world| {
        let p = world.join(v5("p"));
        let s = world.join(v5("s"));
        world.subscribe(s, "a", AtLeastOnce);
        world.publish(p, retained("a", AtLeastOnce, "x"));
        assert_eq!(world.shared.retained_count(), 1);
        world.publish(p, retained("a", AtLeastOnce, ""));
        assert_eq!(world.shared.retained_count(), 0);
        assert_eq!(world.texts(s), ["x", ""]);
        let late = world.join(v5("late"));
        world.subscribe(late, "a", AtLeastOnce);
        assert!(world.messages(late).is_empty());
    });
}

#[test]
fn a_retained_message_expires() {
    // MQTT-3.3.2-5, -6
    each(|world| {
        let p = world.join(v5("p"));
        let bytes = publish_bytes(retained("a", AtMostOnce, "x"), &[2, 0, 0, 0, 10]);
        world.raw(p, &bytes);
        world.advance(seconds(4));
        let s = world.join(v5("s"));
        world.subscribe(s, "a", AtMostOnce);
        assert_eq!(world.messages(s)[0].expiry, Some(6));
        world.advance(seconds(6));
        world.subscribe(s, "a", AtMostOnce);
        assert!(world.messages(s).is_empty());
        // The last look takes it away.
        assert_eq!((world.shared.retained_count(), world.shared.budget().used()), (0, 0));
    });
}

#[test]
fn expired_ones_do_not_hide_the_others() {
    each(|world| {
        let p = world.join(v5("p"));
        for number in 0..1000 {
            let topic = format!("a/{number:04}");
            world.raw(p, &publish_bytes(retained(&topic, AtMostOnce, "x"), &[2, 0, 0, 0, 10]));
        }
        world.publish(p, retained("a/last", AtMostOnce, "last"));
        world.advance(seconds(10));
        let s = world.join(v5("s"));
        world.subscribe(s, "a/#", AtMostOnce);
        assert_eq!(world.texts(s), ["last"]);
    });
}

/// A retained QoS 1 message that expires after so many seconds.
fn expiring(topic: &str, seconds: u8) -> Vec<u8> {
    let publish = Publish { packet_id: Some(id(1)), ..retained(topic, AtLeastOnce, "x") };
    publish_bytes(publish, &[2, 0, 0, 0, seconds])
}

#[test]
fn expired_messages_give_back_place_and_memory_without_a_look() {
    each_with(BrokerConfig { retained_max: 2, ..settings() }, |world| {
        let p = world.join(v5("p"));
        let retain = |world: &mut World, topic: &str| {
            world.raw(p, &expiring(topic, 10));
            world.accepted(p, id(1))
        };
        let ok = ReasonCode::NO_MATCHING_SUBSCRIBERS;
        for _ in 0..3 {
            assert_eq!((retain(world, "a"), retain(world, "b")), (ok, ok));
            assert_eq!(retain(world, "c"), ReasonCode::QUOTA_EXCEEDED);
            world.advance(seconds(9));
            assert_eq!(world.shared.retained_count(), 2);
            world.advance(seconds(1));
            assert_eq!((world.shared.retained_count(), world.shared.budget().used()), (0, 0));
            assert!(world.shards.iter().all(|shard| shard.timers() == 0));
        }
    });
}

#[test]
fn a_message_in_the_place_of_an_expiring_one_has_its_own_expiry() {
    each(|world| {
        let publishers = ["p", "q", "r"].map(|name| world.join(v5(name)));
        world.raw(publishers[0], &expiring("stays", 10));
        world.publish(publishers[1], retained("stays", AtMostOnce, "x"));
        world.raw(publishers[0], &expiring("cleared", 10));
        world.publish(publishers[1], retained("cleared", AtMostOnce, ""));
        world.publish(publishers[1], retained("cleared", AtMostOnce, "x"));
        world.raw(publishers[0], &expiring("earlier", 20));
        world.raw(publishers[2], &expiring("earlier", 10));
        world.raw(publishers[0], &expiring("later", 10));
        world.raw(publishers[2], &expiring("later", 20));
        world.raw(publishers[2], &expiring("again", 20));
        world.raw(publishers[2], &expiring("again", 20));
        for (second, count) in [(9, 5), (10, 4), (19, 4), (20, 2), (1_000, 2)] {
            world.advance((START + seconds(second)).since(world.now));
            assert_eq!(world.shared.retained_count(), count, "after {second} s");
        }
    });
}

#[test]
fn many_that_expire_at_once_are_forgotten_in_steps() {
    each(|world| {
        let p = world.join(v5("p"));
        for number in 0..1000 {
            world.raw(p, &expiring(&number.to_string(), 10));
        }
        world.advance(seconds(10));
        for left in [744, 488, 232, 0] {
            assert_eq!(world.shared.retained_count(), left);
            world.advance(Duration::from_millis(1));
        }
        assert_eq!(world.shared.budget().used(), 0);
    });
}

#[test]
fn the_count_of_retained_messages_is_true_after_they_expired() {
    let config = BrokerConfig {
        sys_interval: seconds(10),
        session_expiry_max: seconds(3600),
        ..BrokerConfig::default()
    };
    each_with(config, |world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "$SYS/broker/retained messages/count", AtMostOnce);
        world.advance(seconds(1));
        for topic in ["a", "b", "c"] {
            world.raw(s, &expiring(topic, 15));
        }
        world.advance(seconds(30));
        let counts: Vec<u64> = world.texts(s).iter().map(|text| text.parse().unwrap()).collect();
        let [.., with, without, after] = counts[..] else { panic!("{counts:?}") };
        assert_eq!((with, after), (without + 3, without));
    });
}

#[test]
fn too_large_ones_do_not_hide_the_others() {
    each(|world| {
        let p = world.join(v5("p"));
        for number in 0..1000 {
            world.publish(p, retained(&format!("a/{number:04}"), AtMostOnce, &"x".repeat(100)));
        }
        world.publish(p, retained("a/last", AtMostOnce, "last"));
        let mut connect = v5("s");
        connect.properties.maximum_packet_size = Some(100);
        let s = world.join(connect);
        world.subscribe(s, "a/#", AtMostOnce);
        assert_eq!(world.texts(s), ["last"]);
    });
}

#[test]
fn many_and_large_ones_come_all_whatever_the_queue_takes() {
    let config =
        SessionConfig { queue_bytes_max: 50_000, queue_messages_max: 10, ..Default::default() };
    for qos in [AtMostOnce, AtLeastOnce] {
        each(|world| {
            let p = world.join(v5("p"));
            let payload = "x".repeat(20_000);
            for number in 0..100 {
                world.publish(p, retained(&format!("a/{number}"), AtLeastOnce, &payload));
            }
            let mut connect = v5("s");
            connect.properties.receive_maximum = NonZeroU16::new(3);
            let s = world.join_with(connect, config.clone());
            world.subscribe(s, "a/#", qos);
            assert_eq!(world.messages(s).len(), 100);
        });
    }
}

#[test]
fn retained_messages_are_owed_across_connections() {
    each(|world| {
        let p = world.join(v5("p"));
        for number in 0..200 {
            world.publish(p, retained(&format!("a/{number}"), AtLeastOnce, "x"));
        }
        let mut connect = kept("s");
        connect.properties.receive_maximum = NonZeroU16::new(10);
        let s = world.join(connect);
        world.acknowledges(s, false);
        world.subscribe(s, "a/#", AtLeastOnce);
        assert_eq!(world.messages(s).len(), 10);
        world.cut(s);
        let s = world.join(kept("s"));
        assert_eq!(world.messages(s).len(), 200);
    });
}

#[test]
fn no_local_holds_for_retained_messages_too() {
    each(|world| {
        let s = world.join(v5("s"));
        world.publish(s, retained("a", AtMostOnce, "own"));
        let p = world.join(v5("p"));
        world.publish(p, retained("b", AtMostOnce, "other"));
        let no_local = SubscribeFilter { no_local: true, ..filter("#", AtMostOnce) };
        world.subscribe_to(s, Some(3), vec![no_local]);
        let got = world.messages(s);
        assert_eq!((got.len(), got[0].text()), (1, "other".to_owned()));
        assert_eq!(got[0].subscriptions, [3]); // MQTT-3.3.4-3
    });
}

#[test]
fn topics_with_retained_messages_are_limited() {
    let config = BrokerConfig { retained_max: 2, ..settings() };
    each_with(config, |world| {
        let p = world.join(v5("p"));
        let mut code = |topic: &str, text: &str| {
            let id = world.publish(p, retained(topic, AtLeastOnce, text)).unwrap();
            world.accepted(p, id)
        };
        let accepted = ReasonCode::NO_MATCHING_SUBSCRIBERS;
        assert_eq!(code("a", "x"), accepted);
        assert_eq!(code("b", "x"), accepted);
        assert_eq!(code("c", "x"), ReasonCode::QUOTA_EXCEEDED);
        assert_eq!(code("a", "y"), accepted);
        assert_eq!(code("a", ""), accepted);
        assert_eq!(code("c", "x"), accepted);
    });
}

#[test]
fn messages_sent_again_until_accepted_pass_without_being_retained() {
    each_with(BrokerConfig { retained_max: 1, ..settings() }, |world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtLeastOnce);
        let ends = SessionConfig { ends_at_refusal: true, ..settings().session };
        let p = world.join_with(v5("p"), ends);
        for topic in ["a", "b", "c"] {
            let id = world.publish(p, retained(topic, AtLeastOnce, topic)).unwrap();
            assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS, "{topic}");
        }
        assert!(world.is_open(p));
        assert_eq!(world.texts(s), ["a", "b", "c"]);
        assert_eq!(world.shared.retained_count(), 1);
        assert_eq!(world.shared.retained_message(world.now, "a").map(|m| m.payload.len()), Some(1));
    });
}

#[test]
fn no_local_holds_for_the_client_whatever_its_session() {
    // MQTT-3.8.3-3
    each(|world| {
        let s = world.join(v5("s"));
        world.publish(s, retained("a", AtMostOnce, "own"));
        world.cut(s);
        let s = world.join(v5("s"));
        let no_local = SubscribeFilter { no_local: true, ..filter("#", AtMostOnce) };
        world.subscribe_to(s, None, vec![no_local.clone()]);
        assert!(world.messages(s).is_empty());
        let other = world.join(v5("other"));
        world.subscribe_to(other, None, vec![no_local]);
        assert_eq!(world.texts(other), ["own"]);
    });
}

#[test]
fn a_topics_threshold_holds_for_its_retained_message() {
    let topics =
        vec![crate::TopicConfig { filter: "a".into(), large_bytes: Some(100), overflow: None }];
    each_with(BrokerConfig { topics, ..settings() }, |world| {
        let p = world.join(v5("p"));
        let large = "x".repeat(5_000);
        world.publish(p, retained("a", AtMostOnce, &large));
        world.publish(p, retained("b", AtMostOnce, "small"));
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        assert_eq!(world.texts(s), ["small".to_owned(), large]);
    });
}

#[test]
fn a_message_that_is_published_while_a_subscription_gets_what_is_retained_comes_once() {
    for qos in [AtMostOnce, AtLeastOnce] {
        each(|world| {
            let p = world.join(v5("p"));
            for number in 0..1_500 {
                world.publish(p, retained(&format!("a/{number:04}"), AtLeastOnce, "old"));
            }
            let mut connect = kept("s");
            connect.properties.receive_maximum = NonZeroU16::new(10);
            let s = world.join(connect);
            world.acknowledges(s, false);
            world.subscribe(s, "a/#", AtLeastOnce);
            // Before where the scan is, and far behind.
            for topic in ["a/0000", "a/1499", "a/new"] {
                world.publish(p, retained(topic, qos, "new"));
            }
            world.cut(s);
            // While it is away, those of QoS 0 wait for it nowhere else.
            world.publish(p, retained("a/1498", qos, "away"));
            let s = world.join(kept("s"));
            let got = world.messages(s);
            let count = |topic: &str, text: &str| {
                got.iter().filter(|d| &*d.topic == topic && d.text() == text).count()
            };
            assert_eq!(count("a/1498", "away"), 1, "{qos:?}");
            assert_eq!((count("a/1498", "old"), count("a/1497", "old")), (0, 1), "{qos:?}");
            if qos == AtLeastOnce {
                for topic in ["a/0000", "a/1499", "a/new"] {
                    assert_eq!(count(topic, "new"), 1, "{topic}");
                }
                assert_eq!(got.len(), 1_501 + 1, "each but a/0000 has one, and that came anew");
            }
        });
    }
}

#[test]
fn a_message_of_qos_0_that_is_published_while_a_subscription_gets_what_is_retained_comes_once() {
    each(|world| {
        let p = world.join(v5("p"));
        for number in 0..1_500 {
            world.publish(p, retained(&format!("a/{number:04}"), AtLeastOnce, "old"));
        }
        let s = world.join(v5("s"));
        world.room(s, 2_000);
        world.subscribe(s, "a/#", AtLeastOnce);
        world.publish(p, retained("a/1499", AtMostOnce, "new"));
        world.room(s, usize::MAX);
        let texts = world.texts(s);
        assert_eq!(texts.iter().filter(|text| *text == "new").count(), 1);
        assert_eq!(texts.len(), 1_500);
    });
}

/// A kept session that takes ten messages and acknowledges none, and is still owed most of 600 retained ones.
fn owed(world: &mut World, config: SessionConfig) -> (At, At) {
    let p = world.join(v5("p"));
    for number in 0..600 {
        world.publish(p, retained(&format!("a/{number:04}"), AtLeastOnce, "old"));
    }
    let mut connect = kept("s");
    connect.properties.receive_maximum = NonZeroU16::new(10);
    let s = world.join_with(connect, config);
    world.acknowledges(s, false);
    world.subscribe(s, "a/#", AtLeastOnce);
    (p, s)
}

fn texts_of(got: &[Delivery], topic: &str) -> Vec<String> {
    got.iter().filter(|d| &*d.topic == topic).map(Delivery::text).collect()
}

#[test]
fn a_message_that_was_looked_up_is_not_sent_once_another_is_in_its_place() {
    for qos in [AtMostOnce, AtLeastOnce] {
        each(|world| {
            let (p, s) = owed(world, refusing());
            // Looked up, and not yet in the queue.
            world.publish(p, retained("a/0300", qos, "new"));
            world.publish(p, retained("a/0301", qos, ""));
            let mut got = world.messages(s);
            world.acknowledges(s, true);
            for id in got.iter().filter_map(|d| d.id).collect::<Vec<_>>() {
                world.puback(s, id);
            }
            got.extend(world.messages(s));
            assert_eq!(texts_of(&got, "a/0300"), ["new"], "{qos:?}");
            assert_eq!(texts_of(&got, "a/0301"), [""], "{qos:?}");
            assert_eq!(texts_of(&got, "a/0302"), ["old"], "{qos:?}");
            assert_eq!(texts_of(&got, "a/0599"), ["old"], "{qos:?}");
        });
    }
}

#[test]
fn a_message_that_the_queue_dropped_comes_from_what_is_retained() {
    for overflow in [Overflow::Disconnect, Overflow::DropNewest, Overflow::DropOldest] {
        each(|world| {
            let config = SessionConfig { queue_messages_max: 70, overflow, ..Default::default() };
            let (p, s) = owed(world, config);
            // One that takes all, or what this one refuses is not retained.
            let other = world.join(v5("other"));
            world.subscribe(other, "a/#", AtLeastOnce);
            world.cut(s);
            for _ in 0..100 {
                world.publish(p, message("a/x", AtLeastOnce, "x"));
            }
            // One that was looked up already, and one that was not.
            for topic in ["a/0300", "a/0599"] {
                world.publish(p, retained(topic, AtLeastOnce, "new"));
            }
            for _ in 0..100 {
                world.publish(p, message("a/x", AtLeastOnce, "x"));
            }
            let s = world.join(kept("s"));
            let got = world.messages(s);
            for topic in ["a/0300", "a/0599"] {
                let texts = texts_of(&got, topic);
                assert!(!texts.is_empty(), "{overflow:?}: {topic} is lost");
                assert!(texts.iter().all(|text| text == "new"), "{overflow:?}: {topic} is stale");
            }
        });
    }
}

#[test]
fn a_message_of_qos_0_comes_once_where_the_session_came_back_before() {
    each(|world| {
        let (p, s) = owed(world, refusing());
        world.cut(s);
        world.publish(p, retained("a/0598", AtMostOnce, "away"));
        let mut connect = kept("s");
        connect.properties.receive_maximum = NonZeroU16::new(10);
        let s = world.mute(connect);
        world.publish(p, retained("a/0599", AtMostOnce, "new"));
        let mut got = world.messages(s);
        world.acknowledges(s, true);
        for id in got.iter().filter_map(|d| d.id).collect::<Vec<_>>() {
            world.puback(s, id);
        }
        got.extend(world.messages(s));
        assert_eq!(texts_of(&got, "a/0598"), ["away"]);
        assert_eq!(texts_of(&got, "a/0599"), ["new"]);
        assert_eq!(texts_of(&got, "a/0597"), ["old"]);
    });
}

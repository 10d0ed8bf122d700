//! Behaviour when subscribers do not keep up, and when memory ends.

use super::*;
use crate::{Dropped, Overflow, TopicConfig};

fn config(overflow: Overflow, messages: usize) -> SessionConfig {
    SessionConfig { queue_messages_max: messages, overflow, overflow_qos0: overflow, ..refusing() }
}

fn dropped(world: &World) -> Dropped {
    let mut sum = Dropped::default();
    world.shards.iter().for_each(|shard| sum.add(shard.statistics().dropped));
    sum
}

/// Publishes 20 messages to a subscriber that takes none before the end and has room for five, and then lets it take all.
/// The first is in its output, half of it is out.
fn run(world: &mut World, overflow: Overflow, qos: QoS, topics: usize) -> (At, At, Vec<String>) {
    let s = world.join_with(kept("s"), config(overflow, 5));
    world.subscribe(s, "#", ExactlyOnce);
    world.room(s, 1);
    let p = world.join(v5("p"));
    world.publish(p, message("first", qos, &"x".repeat(30_000)));
    for number in 0..20 {
        world.publish(
            p,
            message(&format!("{}", number % topics), qos, &number.to_string().repeat(3_000)),
        );
    }
    world.room(s, usize::MAX);
    let texts = world
        .texts(s)
        .iter()
        .skip(1)
        .map(|text| text.chars().take(text.len() / 3_000).collect())
        .collect();
    (s, p, texts)
}

#[test]
fn each_policy_keeps_what_it_says() {
    use Overflow::{DropNewest, DropOldest, Latest};
    for qos in [AtMostOnce, AtLeastOnce] {
        for (overflow, topics, expected, lost) in [
            (
                DropOldest,
                20,
                &["15", "16", "17", "18", "19"][..],
                Dropped { queue_full: 15, ..Default::default() },
            ),
            (
                DropNewest,
                20,
                &["0", "1", "2", "3", "4"],
                Dropped { queue_full: 15, ..Default::default() },
            ),
            (Latest, 3, &["17", "18", "19"], Dropped { conflated: 17, ..Default::default() }),
            (
                Latest,
                20,
                &["15", "16", "17", "18", "19"],
                Dropped { queue_full: 15, ..Default::default() },
            ),
        ] {
            each(|world| {
                let (_, _, mut texts) = run(world, overflow, qos, topics);
                // Some wait in the output already.
                let lost_here = dropped(world);
                assert_eq!(texts.len() as u64 + lost_here.total(), 20);
                let mut tail = texts.split_off(texts.len().saturating_sub(expected.len()));
                tail.sort(); // a newer one is sent in the place of the older
                if overflow != DropNewest {
                    assert_eq!(tail, expected, "{overflow:?} {qos:?}");
                }
                assert!(
                    lost_here.conflated <= lost.conflated
                        && lost_here.queue_full <= lost.queue_full
                );
            });
        }
    }
}

#[test]
fn a_refused_newest_message_leaves_nothing_behind_under_latest() {
    // A message that finds no place must not be the one that the next replaces.
    each(|world| {
        let config = SessionConfig {
            overflow_qos0: Overflow::Latest,
            overflow: Overflow::DropNewest,
            queue_messages_max: 2,
            ..refusing()
        };
        let keeps = SessionConfig { overflow: Overflow::Disconnect, ..config.clone() };
        let s = world.join_with(kept("s"), keeps);
        world.subscribe(s, "#", AtLeastOnce);
        let p = world.join(v5("p"));
        world.room(s, 1);
        world.publish(p, message("first", AtMostOnce, &"x".repeat(30_000)));
        let filler = "y".repeat(5_000);
        world.publish(p, message("one", AtLeastOnce, &filler));
        world.publish(p, message("two", AtLeastOnce, &filler));
        world.publish(p, message("latest", AtMostOnce, &filler)); // no place
        world.room(s, usize::MAX);
        world.room(s, 1);
        world.publish(p, message("first", AtMostOnce, &"x".repeat(30_000)));
        world.publish(p, message("three", AtLeastOnce, &filler));
        world.publish(p, message("latest", AtMostOnce, &filler));
        world.room(s, usize::MAX);
        let topics: Vec<_> = world.messages(s).into_iter().map(|d| d.topic).collect();
        assert!(topics.contains(&"three".to_owned()), "{topics:?}");
    });
}

#[test]
fn a_subscriber_may_be_disconnected_and_finds_what_waited() {
    each(|world| {
        let (s, _, _) = run(world, Overflow::Disconnect, AtLeastOnce, 20);
        assert!(!world.is_open(s)); // no client could learn why
        let ended: u64 =
            world.shards.iter().map(|shard| shard.statistics().overflow_disconnects).sum();
        assert_eq!(ended, 1);
        let refused: u64 = world.shards.iter().map(|shard| shard.statistics().refused).sum();
        let s = world.join(kept("s"));
        let got = world.messages(s);
        assert!(got.len() >= 6, "{got:?}");
        assert_eq!((got.len() as u64 + refused, dropped(world).total()), (21, 0));
    });
}

#[test]
fn publishers_are_not_read_from_until_half_is_gone() {
    each(|world| {
        let s = world.join_with(v5("s"), config(Overflow::BlockPublisher, 10));
        world.subscribe(s, "#", AtLeastOnce);
        world.room(s, 1);
        let p = world.join(Connect { keep_alive: 10, ..v5("p") });
        let text = "x".repeat(20_000);
        for _ in 0..40 {
            world.publish(p, message("t", AtLeastOnce, &text));
        }
        assert!(world.is_paused(p));
        // Its silence is our doing.
        world.advance(seconds(100));
        assert!(world.is_open(p));
        world.room(s, 60_000);
        assert!(world.is_paused(p));
        world.room(s, usize::MAX);
        assert!(!world.is_paused(p));
        assert_eq!(world.messages(s).len(), 40);
        assert_eq!(dropped(world).total(), 0);
        world.advance(seconds(100));
        assert_eq!(world.end_reason(p), Some(ReasonCode::KEEP_ALIVE_TIMEOUT));
    });
}

#[test]
fn a_publisher_is_let_go_when_the_subscriber_ends() {
    each(|world| {
        let s = world.join_with(v5("s"), config(Overflow::BlockPublisher, 2));
        world.subscribe(s, "#", AtLeastOnce);
        world.room(s, 1);
        let p = world.join(kept("p"));
        for _ in 0..10 {
            world.publish(p, message("t", AtLeastOnce, &"x".repeat(20_000)));
        }
        assert!(world.is_paused(p));
        world.cut(p);
        let p = world.join(kept("p"));
        assert!(world.is_paused(p)); // another connection is of the same publisher
        world.cut(s);
        assert!(!world.is_paused(p));
        world.send(p, Packet::Pingreq);
        assert!(world.take(p).contains(&Other(Packet::Pingresp)));
    });
}

#[test]
fn a_client_that_publishes_to_itself_is_not_blocked_forever() {
    each(|world| {
        let s = world.join_with(v5("s"), config(Overflow::BlockPublisher, 2));
        world.subscribe(s, "#", AtLeastOnce);
        world.room(s, 1);
        for _ in 0..10 {
            world.publish(s, message("t", AtLeastOnce, &"x".repeat(20_000)));
        }
        assert!(!world.is_paused(s));
        assert!(!world.is_open(s));
    });
}

/// Two acknowledged messages may be in flight to it, and two may wait.
fn narrow(name: &str) -> Connect {
    let mut connect = kept(name);
    connect.properties.receive_maximum = NonZeroU16::new(2);
    connect
}

#[test]
fn publishers_that_would_wait_for_each_other_do_not() {
    for count in [2, 3, 5] {
        each(|world| {
            // Each publishes to the next one, and acknowledges only behind what it publishes.
            let clients: Vec<At> = (0..count)
                .map(|number| {
                    let connect = narrow(&format!("c{number}"));
                    let at = world.join_with(connect, config(Overflow::BlockPublisher, 2));
                    world.subscribe(at, &format!("to/{number}"), AtLeastOnce);
                    world.acknowledges(at, false);
                    at
                })
                .collect();
            for (number, at) in clients.iter().enumerate() {
                let topic = format!("to/{}", (number + 1) % count);
                for _ in 0..20 {
                    world.publish(*at, message(&topic, AtLeastOnce, "x"));
                }
            }
            world.advance(seconds(1));
            // The first is in the way of the last.
            let open = clients.iter().map(|at| world.is_open(*at));
            assert_eq!(open.filter(|open| !open).count(), 1);
            assert_eq!(world.end_reason(clients[0]), Some(ReasonCode::QUOTA_EXCEEDED));
            assert_eq!(dropped(world).total(), 0, "acknowledged messages are kept");
            // All others come to their ends: acknowledgements are heard, and so all are released.
            let last = clients[count - 1];
            assert!(!world.is_paused(last));
            for at in clients[1..].iter().rev() {
                for _ in 0..20 {
                    for delivery in world.messages(*at) {
                        world.puback(*at, delivery.id.unwrap());
                    }
                }
                assert!(!world.is_paused(*at));
            }
            // It finds the waiting messages, and no publisher waits any more.
            let first = world.join(narrow("c0"));
            assert!(!world.is_paused(first));
            assert!(!world.messages(first).is_empty());
            world.advance(seconds(1));
            assert!(world.shared.blocked_publishers().is_empty());
        });
    }
}

#[test]
fn a_row_of_publishers_waits_without_a_loss() {
    each(|world| {
        let slow = world.join_with(v5("slow"), config(Overflow::BlockPublisher, 4));
        world.subscribe(slow, "b", AtLeastOnce);
        world.room(slow, 1);
        let middle = world.join_with(narrow("middle"), config(Overflow::BlockPublisher, 2));
        world.subscribe(middle, "a", AtLeastOnce);
        world.acknowledges(middle, false);
        let first = world.join(v5("first"));
        let text = "x".repeat(20_000);
        for _ in 0..20 {
            world.publish(middle, message("b", AtLeastOnce, &text));
            world.publish(first, message("a", AtLeastOnce, &text));
        }
        world.advance(seconds(1_000));
        assert!(world.is_paused(middle) && world.is_paused(first));
        world.room(slow, usize::MAX);
        world.acknowledges(middle, true);
        for delivery in world.take(middle) {
            if let Published(Delivery { id: Some(id), .. }) = delivery {
                world.puback(middle, id);
            }
        }
        assert!(!world.is_paused(middle) && !world.is_paused(first));
        assert_eq!(world.messages(slow).len(), 20);
        assert_eq!(dropped(world).total(), 0);
        assert!(world.shared.blocked_publishers().is_empty());
    });
}

#[test]
fn a_topic_may_have_its_own_policy() {
    let topics = vec![TopicConfig {
        filter: "state/#".into(),
        large_bytes: None,
        overflow: Some(Overflow::Latest),
    }];
    each_with(BrokerConfig { topics, ..settings() }, |world| {
        let s = world.join_with(v5("s"), config(Overflow::DropOldest, 100));
        world.subscribe(s, "#", AtLeastOnce);
        world.room(s, 1);
        let p = world.join(v5("p"));
        world.publish(p, message("first", AtMostOnce, &"x".repeat(30_000)));
        for number in 0..10 {
            let text = format!("{number:<5000}");
            world.publish(p, message("state/a", AtLeastOnce, &text));
            world.publish(p, message("log", AtLeastOnce, &text));
        }
        world.room(s, usize::MAX);
        let got = world.messages(s);
        let of = |topic: &str| {
            got.iter()
                .filter(|d| d.topic == topic)
                .map(|d| d.text().trim().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(of("log").len(), 10);
        assert_eq!(of("state/a").last().unwrap(), "9");
        assert!(of("state/a").len() < 10);
    });
}

#[test]
fn one_message_may_wait_however_large() {
    for overflow in [Overflow::DropOldest, Overflow::Disconnect, Overflow::BlockPublisher] {
        each(|world| {
            let config = SessionConfig { queue_bytes_max: 10_000, ..config(overflow, 10) };
            let s = world.join_with(v5("s"), config);
            world.subscribe(s, "#", AtLeastOnce);
            let p = world.join(v5("p"));
            let text = "x".repeat(300_000);
            for qos in [AtMostOnce, AtLeastOnce] {
                world.publish(p, message("t", qos, &text));
            }
            assert_eq!(world.texts(s), [text.clone(), text]);
        });
    }
}

#[test]
fn nothing_overtakes_a_message_that_was_refused_where_all_are_sent_again() {
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    each_with(config, |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        world.cut(s);
        let ends = SessionConfig { ends_at_refusal: true, ..settings().session };
        let p = world.join_with(v5("p"), ends);
        let text = "x".repeat(30_000);
        let mut accepted = 0;
        while world.is_open(p) {
            assert!(accepted < 40, "there is room for three");
            match world.publish(p, message("t", AtLeastOnce, &text)) {
                Some(id) if world.is_open(p) => {
                    assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
                    accepted += 1;
                }
                _ => {}
            }
        }
        assert_eq!(world.end_reason(p), Some(ReasonCode::QUOTA_EXCEEDED));
        assert!(accepted > 0);
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s).len(), accepted);
    });
}

#[test]
fn a_message_is_refused_when_somebody_must_wait_and_there_is_no_memory() {
    // MQTT 5: 0x97; before it, the connection ends without an acknowledgement
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    each_with(config, |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        let text = "x".repeat(30_000);
        for size in [3_000, 30_000, 90_000] {
            let text = "x".repeat(size);
            let mut codes = Vec::new();
            for _ in 0..40 {
                for qos in [AtLeastOnce, ExactlyOnce] {
                    let id = world.publish(p, message("t", qos, &text)).unwrap();
                    codes.push(world.accepted(p, id));
                }
            }
            assert_eq!(codes.last(), Some(&ReasonCode::QUOTA_EXCEEDED));
        }
        let old = world.join(v4("old"));
        world.publish(old, message("t", AtLeastOnce, &text));
        assert_eq!(world.end_reason(old), None);
        // QoS 0 is only counted.
        world.publish(p, message("t", AtMostOnce, &text));
        // A session that can be handed it at once gets it all the same.
        let quick = world.join(v5("quick"));
        world.subscribe(quick, "other", AtMostOnce);
        world.publish(p, message("other", AtLeastOnce, "x"));
        assert_eq!(world.texts(quick), ["x"]);
        let accepted = world.join(kept("s"));
        assert!(world.messages(accepted).len() > 20);
    });
}

#[test]
fn accepted_messages_are_delivered_though_memory_is_short() {
    let config = BrokerConfig { payload_bytes_max: 50_000, ..settings() };
    each_with(config, |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "#", ExactlyOnce);
        let p = world.join(v5("p"));
        let mut expected = Vec::new();
        for number in 0..300 {
            match number % 60 {
                0 => world.room(s, 1),
                50 => world.room(s, usize::MAX),
                _ => {}
            }
            let text = format!("{number:<3000}");
            let id = world.publish(p, message("t", AtLeastOnce, &text)).unwrap();
            if !world.accepted(p, id).is_failure() {
                expected.push(text);
            }
        }
        world.room(s, usize::MAX);
        assert_eq!(world.texts(s), expected);
        assert!(expected.len() < 300);
    });
}

/// Half a million bytes for what is not whole.
fn a_million() -> BrokerConfig {
    BrokerConfig { payload_bytes_max: 1_000_000, ..settings() }
}

/// A QoS 1 message of MQTT 5 of so many bytes.
fn large(bytes: usize) -> Vec<u8> {
    let text = "x".repeat(bytes);
    publish_bytes(Publish { packet_id: Some(id(1)), ..message("t", AtLeastOnce, &text) }, &[])
}

/// Publishes it in two parts, so that it is not whole at first.
fn accepts(world: &mut World, at: At, bytes: &[u8]) -> ReasonCode {
    world.raw(at, &bytes[..100]);
    world.raw(at, &bytes[100..]);
    world.accepted(at, id(1))
}

#[test]
fn incomplete_packets_take_half_of_the_budget_at_most() {
    let ok = ReasonCode::NO_MATCHING_SUBSCRIBERS;
    each_with(a_million(), |world| {
        let p = world.join(v5("p"));
        let partial = |world: &mut World, bytes| {
            let (shard, key) = world.key_of(p);
            world.shards[shard].charge_partial(key, bytes)
        };
        let first = partial(world, 400_000).unwrap();
        assert_eq!((first.bytes(), world.shared.budget().used()), (400_000, 400_000));
        assert!(partial(world, 100_001).is_none());
        let second = partial(world, 50_000).unwrap();
        assert_eq!(accepts(world, p, &large(70_000)), ReasonCode::QUOTA_EXCEEDED);
        drop((first, second));
        assert_eq!(world.shared.budget().used(), 0);
        assert_eq!(accepts(world, p, &large(70_000)), ok);
        assert_eq!(accepts(world, p, &large(500_001)), ReasonCode::QUOTA_EXCEEDED);
        // Complete messages take from the other half alone.
        world.publish(p, retained("r", AtLeastOnce, &"x".repeat(450_000)));
        assert_eq!(world.shared.retained_count(), 1);
        assert!(partial(world, 500_000).is_some());
        assert!(partial(world, u64::MAX).is_none());
    });
}

#[test]
fn a_stalled_large_message_loses_its_memory_to_others() {
    each_with(a_million(), |world| {
        let stalls = world.join(Connect { keep_alive: 3_600, ..v5("stalls") });
        let other = world.join(v5("other"));
        // It holds the bytes that have come of it.
        world.raw(stalls, &large(400_000)[..390_000]);
        // It keeps the memory while no other needs it.
        world.advance(seconds(3_000));
        assert!(world.is_open(stalls));
        assert_eq!(accepts(world, other, &large(70_000)), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        assert_eq!(accepts(world, other, &large(300_000)), ReasonCode::QUOTA_EXCEEDED);
        world.advance(seconds(29));
        world.raw(stalls, b"x");
        world.advance(seconds(29));
        assert!(world.is_open(stalls));
        world.advance(seconds(1));
        assert_eq!(world.end_reason(stalls), Some(ReasonCode::QUOTA_EXCEEDED));
        assert_eq!(world.shared.budget().used(), 0);
        assert_eq!(accepts(world, other, &large(300_000)), ReasonCode::NO_MATCHING_SUBSCRIBERS);
    });
}

#[test]
fn a_client_that_was_refused_memory_has_none_to_lose() {
    each_with(a_million(), |world| {
        let at = world.join(v5("a"));
        let bytes = large(600_000);
        world.raw(at, &bytes[..100_000]);
        let other = world.join(v5("other"));
        assert_eq!(accepts(world, other, &large(500_001)), ReasonCode::QUOTA_EXCEEDED);
        world.advance(seconds(3_000));
        world.raw(at, &bytes[100_000..]);
        assert_eq!(world.accepted(at, id(1)), ReasonCode::QUOTA_EXCEEDED);
    });
}

#[test]
fn the_shell_may_end_a_connection_and_say_why() {
    each(|world| {
        for (connect, expected) in [(v5("a"), Some(ReasonCode::QUOTA_EXCEEDED)), (v4("b"), None)] {
            let at = world.join(connect);
            let (shard, key) = (world.clients[at.0].shard, world.clients[at.0].key.unwrap());
            world.shards[shard].end(key, ReasonCode::QUOTA_EXCEEDED, "no memory is left");
            world.pump();
            assert_eq!(world.end_reason(at), expected);
        }
    });
}

#[test]
fn outputs_of_stalled_subscribers_are_inside_the_budget() {
    let config = BrokerConfig { payload_bytes_max: 1 << 20, ..settings() };
    each_with(config, |world| {
        let names: Vec<String> = (0..40).map(|number| format!("s{number}")).collect();
        let stalled: Vec<At> = names.iter().map(|name| world.join(v5(name))).collect();
        for &s in &stalled {
            world.subscribe(s, "t", AtMostOnce);
            world.room(s, 0);
        }
        // 40 kB at once, before anything is written, are copied for each: more than the budget.
        let p = world.join(v5("p"));
        let text = "x".repeat(1_000);
        let bytes = publish_bytes(message("t", AtMostOnce, &text), &[]).repeat(40);
        world.raw(p, &bytes);
        let used = world.shared.budget().used();
        assert!(used > 512 << 10, "{used} bytes are counted");
        let ended = stalled.iter().filter(|&&s| !world.is_open(s)).count();
        assert!((10..40).contains(&ended), "{ended} of 40 ended");
        assert!(world.is_open(p), "the publisher is not to blame");
        // A short payload with long properties is not copied in addition.
        let mut long = vec![0x26, 0, 1, b'a'];
        long.extend_from_slice(&60_000_u16.to_be_bytes());
        long.resize(6 + 60_000, b'v');
        world.raw(p, &publish_bytes(message("t", AtMostOnce, ""), &long));
        assert!(world.shared.budget().used() <= world.shared.budget().limit());
        // A client that reads again has it all, and takes nothing more.
        let mut whole = 0;
        for &s in &stalled {
            world.room(s, usize::MAX);
            whole += usize::from(world.messages(s).len() >= 40);
        }
        assert!(whole > 0 && whole <= 40 - ended, "{whole} have all, {ended} ended");
        assert_eq!(world.shared.budget().used(), 0);
    });
}

#[test]
fn topics_are_inside_the_budget() {
    let config = BrokerConfig { payload_bytes_max: 1 << 20, ..settings() };
    each_with(config, |world| {
        let p = world.join(v5("p"));
        let mut refused = 0;
        for number in 0..100 {
            // One byte under a name of 20 kB, which is kept twice.
            let topic = format!("{number:020000}");
            let id = world.publish(p, retained(&topic, AtLeastOnce, "x")).unwrap();
            refused += u32::from(world.accepted(p, id) == ReasonCode::QUOTA_EXCEEDED);
        }
        assert!((70..80).contains(&refused), "{refused} of 100 refused");
    });
}

#[test]
fn publishers_are_let_go_when_what_they_wait_for_is_given_up() {
    let config = BrokerConfig { payload_bytes_max: 1 << 20, ..settings() };
    let mut world = World::new(config, 1);
    // Its queue may be given up for others, but is full for its publisher.
    let mut limits = self::config(Overflow::DropOldest, 1_000);
    limits.queue_bytes_max = 900_000;
    let block = TopicConfig {
        filter: "b".to_owned(),
        large_bytes: None,
        overflow: Some(Overflow::BlockPublisher),
    };
    world.shared.set_topics(vec![block]);
    let s = world.join_with(v5("s"), limits);
    world.subscribe(s, "b", AtMostOnce);
    world.room(s, 1);
    let p = world.join(v5("p"));
    for _ in 0..12 {
        world.publish(p, message("b", AtMostOnce, &"x".repeat(90_000)));
    }
    assert!(world.is_paused(p));
    // Another client keeps a message that needs most of the memory.
    let other = world.join(v5("other"));
    world.publish(other, retained("r", AtMostOnce, &"y".repeat(500_000)));
    assert!(!world.is_paused(p), "the session it waited for is gone");
}

#[test]
fn messages_without_memory_are_counted() {
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    each_with(config, |world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "t", AtMostOnce);
        let p = world.join(v5("p"));
        let kept = "x".repeat(60_000);
        world.publish(p, retained("kept", AtMostOnce, &kept));
        // Longer than what is received whole: the budget says no before it has come.
        let id = world.publish(p, message("t", AtLeastOnce, &"x".repeat(70_000))).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::QUOTA_EXCEEDED);
        let refused = |world: &World| -> u64 {
            world.shards.iter().map(|shard| shard.statistics().refused).sum()
        };
        assert_eq!((refused(world), dropped(world).budget_full), (1, 0));
        // QoS 0 has no answer, on whatever shard the subscriber is.
        world.publish(p, message("t", AtMostOnce, &"x".repeat(50_000)));
        assert_eq!((refused(world), dropped(world).budget_full), (1, 1));
        assert!(world.messages(s).is_empty());
        world.publish(p, retained("kept", AtMostOnce, ""));
    });
}

#[test]
fn waiting_messages_are_dropped_by_their_own_topics_policy_alone() {
    let topics = vec![TopicConfig {
        filter: "telemetry/#".into(),
        large_bytes: None,
        overflow: Some(Overflow::DropOldest),
    }];
    each_with(BrokerConfig { topics, ..settings() }, |world| {
        let limits = SessionConfig { queue_messages_max: 5, ..refusing() };
        let s = world.join_with(kept("s"), limits.clone());
        world.subscribe(s, "#", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        let publish = |world: &mut World, topic: &str, number: usize| {
            let id = world.publish(p, message(topic, AtLeastOnce, &number.to_string())).unwrap();
            assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
        };
        publish(world, "telemetry/a", 0);
        for number in 1..5 {
            publish(world, "alarm", number);
        }
        for number in 5..20 {
            publish(world, "telemetry/a", number);
        }
        assert_eq!(dropped(world), Dropped { queue_full: 15, ..Dropped::default() });
        let s = world.join_with(kept("s"), limits);
        assert_eq!(world.texts(s), ["1", "2", "3", "4", "19"]);
    });
}

#[test]
fn messages_that_a_full_subscriber_refuses_are_not_acknowledged_as_accepted() {
    for is_connected in [false, true] {
        for qos in [AtLeastOnce, ExactlyOnce] {
            each(|world| {
                let limits = config(Overflow::Disconnect, 5);
                let s = world.join_with(kept("s"), limits.clone());
                world.subscribe(s, "t", ExactlyOnce);
                if is_connected {
                    world.acknowledges(s, false);
                    world.room(s, 0);
                } else {
                    world.cut(s);
                }
                let p = world.join(v5("p"));
                let mut accepted = Vec::new();
                let mut refused = 0;
                for number in 0..40 {
                    let text = format!("{number:<5000}");
                    let id = world.publish(p, message("t", qos, &text)).unwrap();
                    match world.accepted(p, id) {
                        ReasonCode::SUCCESS => accepted.push(text),
                        reason => {
                            assert_eq!(reason, ReasonCode::QUOTA_EXCEEDED);
                            refused += 1;
                        }
                    }
                }
                assert!(accepted.len() >= 6 && refused > 20, "{} accepted", accepted.len());
                assert!(is_connected || accepted.len() == 6);
                assert!(!world.is_open(s));
                // An acknowledgement cannot say no before MQTT 5.
                let old = world.join(v4("old"));
                world.publish(old, message("t", qos, "x"));
                assert!(!world.is_open(old));
                assert_eq!(dropped(world).total(), 0);
                let s = world.join_with(kept("s"), limits);
                assert_eq!(world.texts(s), accepted);
                // There is room again.
                let id = world.publish(p, message("t", qos, "again")).unwrap();
                assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
                assert_eq!(world.texts(s), ["again"]);
            });
        }
    }
}

#[test]
fn a_full_subscriber_takes_no_copy_from_another_and_its_publisher_is_told() {
    each(|world| {
        let s = world.join_with(kept("s"), config(Overflow::Disconnect, 5));
        world.subscribe(s, "t", ExactlyOnce);
        world.cut(s);
        let other = world.join(v5("other"));
        world.subscribe(other, "t", ExactlyOnce);
        let p = world.join(v5("p"));
        let publish = |world: &mut World, qos, text: &str| {
            let id = world.publish(p, message("t", qos, text)).unwrap();
            world.accepted(p, id)
        };
        for number in 0..12 {
            let expected =
                if number < 6 { ReasonCode::SUCCESS } else { ReasonCode::QUOTA_EXCEEDED };
            assert_eq!(publish(world, AtLeastOnce, &number.to_string()), expected);
        }
        // A publisher that reads the reason decides what to do: the others have its message.
        assert_eq!(world.messages(other).len(), 12);
        let named: Vec<_> =
            world.shards.iter().flat_map(|shard| shard.sessions(9)).map(|s| s.dropped).collect();
        assert!(named.contains(&Dropped { queue_full: 6, ..Dropped::default() }), "{named:?}");
        // A message that is sent again goes to no session before all have a place, or it would come twice.
        assert_eq!(publish(world, ExactlyOnce, "x"), ReasonCode::QUOTA_EXCEEDED);
        let old = world.join(v4("old"));
        world.publish(old, message("t", AtLeastOnce, "x"));
        assert!(!world.is_open(old));
        assert!(world.messages(other).is_empty());
        // A session whose messages of that QoS may be dropped changes nothing.
        world.unsubscribe(other, &["t"]);
        assert_eq!(publish(world, AtLeastOnce, "x"), ReasonCode::QUOTA_EXCEEDED);
        let drops = world.join_with(kept("drops"), config(Overflow::DropNewest, 1));
        world.subscribe(drops, "t", ExactlyOnce);
        world.cut(drops);
        assert_eq!(publish(world, ExactlyOnce, "x"), ReasonCode::QUOTA_EXCEEDED);
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s), ["0", "1", "2", "3", "4", "5"]);
        for number in 0..3 {
            assert_eq!(publish(world, ExactlyOnce, &number.to_string()), ReasonCode::SUCCESS);
        }
        assert_eq!(world.texts(s), ["0", "1", "2"]);
        let drops = world.join(kept("drops"));
        assert_eq!(world.texts(drops), ["0"]);
    });
}

/// Has publishers on all shards send `count` messages each before any shard learns of another's; the texts that were accepted.
fn burst(
    world: &mut World,
    publishers: &[At],
    qos: QoS,
    count: usize,
    bytes: usize,
) -> Vec<String> {
    let mut sent = Vec::new();
    world.hold_peers = true;
    for number in 0..count {
        for (index, at) in publishers.iter().enumerate() {
            let text = format!("{index}/{number:<bytes$}");
            let id = world.publish(*at, message(&format!("t/{index}"), qos, &text)).unwrap();
            sent.push((*at, id, text));
        }
    }
    world.hold_peers = false;
    world.pump();
    sent.retain(|(at, id, _)| world.accepted(*at, *id) == ReasonCode::SUCCESS);
    sent.into_iter().map(|(.., text)| text).collect()
}

/// The messages that a returning session receives, by text.
fn fetched(world: &mut World, name: &str, limits: &SessionConfig) -> Vec<String> {
    let at = world.join_with(kept(name), limits.clone());
    let mut texts = world.texts(at);
    world.cut(at);
    texts.sort();
    texts
}

#[test]
fn what_is_acknowledged_on_one_shard_is_accepted_on_all() {
    // By count, by bytes, with a disk that takes nothing, for one session and for several that are full at different times.
    let by_count = config(Overflow::Disconnect, 50);
    let by_bytes = SessionConfig { queue_bytes_max: 200_000, ..refusing() };
    let on_disk = config(Overflow::SpillDisconnect, 50);
    for (limits, bytes) in [(by_count, 10), (by_bytes, 20_000), (on_disk, 10)] {
        for qos in [AtLeastOnce, ExactlyOnce] {
            each(|world| {
                let names = ["a", "b", "c"];
                for (index, name) in names.iter().enumerate() {
                    let at = world.join_with(kept(name), limits.clone());
                    world.subscribe(at, "t/#", ExactlyOnce);
                    // One of them has less room than the others.
                    if index == 1 {
                        world.subscribe(at, "early", ExactlyOnce);
                    }
                    world.cut(at);
                }
                let publishers = ["p", "q", "r"].map(|name| world.join(v5(name)));
                for _ in 0..7 {
                    world.publish(publishers[0], message("early", qos, "early")).unwrap();
                }
                let mut accepted = burst(world, &publishers, qos, 40, bytes);
                accepted.sort();
                assert!((5..60).contains(&accepted.len()), "{} accepted", accepted.len());
                for name in names {
                    let mut texts = fetched(world, name, &limits);
                    texts.retain(|text| text != "early");
                    if qos == ExactlyOnce {
                        assert_eq!(texts, accepted, "{name}");
                    } else {
                        let missing = accepted.iter().filter(|text| !texts.contains(text));
                        assert_eq!(missing.count(), 0, "{name}");
                    }
                    assert!(texts.len() <= 51, "{name} holds {}", texts.len());
                }
                // There is room again, for all that a queue has room for.
                let accepted = burst(world, &publishers, qos, 2, bytes);
                assert_eq!(accepted.len(), 6);
            });
        }
    }
}

#[test]
fn a_group_takes_on_other_shards_what_was_acknowledged() {
    let limits = config(Overflow::Disconnect, 10);
    for qos in [AtLeastOnce, ExactlyOnce] {
        each(|world| {
            let names = ["a", "b", "c"];
            for name in names {
                let at = world.join_with(kept(name), limits.clone());
                world.subscribe(at, "$share/g/t/#", ExactlyOnce);
                world.cut(at);
            }
            let publishers = ["p", "q", "r"].map(|name| world.join(v5(name)));
            let mut accepted = burst(world, &publishers, qos, 40, 10);
            accepted.sort();
            // Each member has its ten and one.
            assert_eq!(accepted.len(), 33);
            let mut texts: Vec<String> =
                names.iter().flat_map(|name| fetched(world, name, &limits)).collect();
            texts.sort();
            assert_eq!(texts, accepted);
            assert_eq!(dropped(world).total(), 0);
        });
    }
}

#[test]
fn a_small_queue_takes_bursts_of_other_shards_as_of_its_own() {
    each(|world| {
        let s = world.join_with(kept("s"), config(Overflow::Disconnect, 5));
        world.subscribe(s, "t/#", AtLeastOnce);
        let publishers = ["p", "q", "r"].map(|name| world.join(v5(name)));
        assert_eq!(burst(world, &publishers, AtLeastOnce, 100, 10).len(), 300);
        assert_eq!(world.messages(s).len(), 300);
        assert!(world.is_open(s));
    });
}

#[test]
fn a_place_is_given_back_where_another_session_refuses() {
    let mut world = World::new(settings(), 3);
    let limits = config(Overflow::Disconnect, 20);
    // Each is on a shard of its own, and one is full from the start.
    let [full, free] = ["full", "free"].map(|name| {
        let at = world.join_with(kept(name), limits.clone());
        world.subscribe(at, "t/#", ExactlyOnce);
        at
    });
    world.subscribe(full, "fill", ExactlyOnce);
    world.cut(full);
    world.cut(free);
    let p = world.join(v5("p"));
    for _ in 0..21 {
        world.publish(p, message("fill", ExactlyOnce, "x")).unwrap();
    }
    assert_eq!(burst(&mut world, &[p], ExactlyOnce, 100, 30), [""; 0]);
    // The one that has room has lost none of it.
    let full = world.join_with(kept("full"), limits.clone());
    assert_eq!(world.messages(full).len(), 21);
    world.cut(full);
    assert_eq!(burst(&mut world, &[p], ExactlyOnce, 30, 30).len(), 21);
    world.end();
}

#[test]
fn a_will_reaches_those_that_have_room() {
    each(|world| {
        let s = world.join_with(kept("s"), config(Overflow::Disconnect, 2));
        world.subscribe(s, "w", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        for _ in 0..3 {
            world.publish(p, message("w", AtLeastOnce, "x")).unwrap();
        }
        let other = world.join(v5("other"));
        world.subscribe(other, "w", AtLeastOnce);
        let last = Will { qos: AtLeastOnce, ..will("w", "gone") };
        let dies = world.join(Connect { will: Some(last), ..v5("dies") });
        world.cut(dies);
        assert_eq!(world.texts(other), ["gone"]);
        assert_eq!(dropped(world).queue_full, 1);
    });
}

#[test]
fn a_full_member_of_a_group_is_passed_over() {
    each(|world| {
        let members = ["a", "b"].map(|name| {
            let at = world.join_with(kept(name), config(Overflow::Disconnect, 5));
            world.subscribe(at, "$share/g/t", AtLeastOnce);
            at
        });
        members.iter().for_each(|at| world.cut(*at));
        let p = world.join(v5("p"));
        let reasons: Vec<_> = (0..20)
            .map(|_| {
                let id = world.publish(p, message("t", AtLeastOnce, "x")).unwrap();
                world.accepted(p, id)
            })
            .collect();
        assert_eq!(reasons[..12], [ReasonCode::SUCCESS; 12]);
        assert_eq!(reasons[12..], [ReasonCode::QUOTA_EXCEEDED; 8]);
        assert_eq!(dropped(world).total(), 0);
    });
}

#[test]
fn a_stalled_client_on_one_shard_keeps_no_other_from_memory_on_another() {
    let config = BrokerConfig { payload_bytes_max: 4 << 20, ..settings() };
    let mut world = World::new(config, 3);
    // One after the other on the three shards.
    let [stalled, b, c, flood, to_b, to_c] =
        ["stalled", "b", "c", "flood", "to_b", "to_c"].map(|name| world.join(v5(name)));
    world.subscribe(stalled, "flood", AtMostOnce);
    world.room(stalled, 0);
    world.subscribe(b, "b", AtLeastOnce);
    world.subscribe(c, "c", AtLeastOnce);
    let text = "x".repeat(60_000);
    let flooded = |world: &mut World, count| {
        (0..count).for_each(|_| {
            world.publish(flood, message("flood", AtMostOnce, &text));
        });
    };
    flooded(&mut world, 100);
    assert!(world.shared.budget().used() > (4 << 20) - 100_000);
    let large = "y".repeat(300_000);
    let mut refused = 0;
    for _ in 0..30 {
        // It continues, and takes the room that there is.
        flooded(&mut world, 2);
        for (from, topic) in [(to_b, "b"), (to_c, "c")] {
            let id = world.publish(from, message(topic, AtLeastOnce, &large)).unwrap();
            refused += usize::from(world.accepted(from, id).is_failure());
        }
    }
    assert!(refused <= 30, "{refused} of 60 refused");
    assert_eq!(world.messages(b).len() + world.messages(c).len(), 60 - refused);
    assert!(world.is_open(stalled) && world.is_open(b) && world.is_open(c));
    assert!(dropped(&world).budget_full > 0);
    world.end();
}

#[test]
fn losses_of_a_whole_queue_are_counted() {
    let config = BrokerConfig { payload_bytes_max: 1 << 20, ..settings() };
    let mut world = World::new(config, 1);
    let s = world.join(v5("s"));
    world.subscribe(s, "t", AtLeastOnce);
    world.room(s, 0);
    let p = world.join(v5("p"));
    for _ in 0..10 {
        world.publish(p, message("t", AtLeastOnce, &"x".repeat(60_000)));
    }
    let report = &world.shards[0].sessions(1)[0];
    let (queued, session_ended) = (report.queued as u64, report.inflight as u64);
    world.publish(p, retained("r", AtLeastOnce, &"y".repeat(500_000)));
    assert!(queued > 5 && !world.is_open(s));
    // Messages in flight went with the session.
    let expected = Dropped { budget_full: queued, session_ended, ..Dropped::default() };
    assert_eq!((dropped(&world), session_ended), (expected, 1));
}

/// Fills the memory with what waits for the session of `connect`, which is away; how many wait.
fn fill(world: &mut World, connect: &Connect) -> usize {
    let s = world.join(connect.clone());
    world.subscribe(s, "t", AtLeastOnce);
    world.cut(s);
    let p = world.join(v5("filler"));
    let text = "x".repeat(3_000);
    (0..100)
        .filter(|_| {
            let id = world.publish(p, message("t", AtLeastOnce, &text)).unwrap();
            world.accepted(p, id) == ReasonCode::SUCCESS
        })
        .count()
}

#[test]
fn whose_backlog_fills_the_memory_may_come_with_a_will() {
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    each_with(config, |world| {
        let waiting = fill(world, &kept("s"));
        let large = will("w", &"x".repeat(5_000));
        let other = Connect { will: Some(large.clone()), ..kept("other") };
        assert_eq!(world.try_connect(other).unwrap_err().reason, ReasonCode::QUOTA_EXCEEDED);
        let s = world.join(Connect { will: Some(large), ..kept("s") });
        assert_eq!(world.messages(s).len(), waiting);
        let w = world.join(v5("w"));
        world.subscribe(w, "w", AtMostOnce);
        world.cut(s);
        assert_eq!(world.messages(w).len(), 1);
    });
}

#[test]
fn whose_backlog_fills_the_memory_takes_it_before_it_must_publish_again() {
    // Before MQTT 5 the connection ends where a message is not accepted, and the message comes again with the next.
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    each_with(config, |world| {
        let connect = Connect { clean_start: false, ..v4("old") };
        let waiting = fill(world, &connect);
        let old = world.mute(connect.clone());
        let text = "y".repeat(30_000);
        for _ in 0..3 {
            world.publish(old, retained("r", AtLeastOnce, &text));
        }
        let mut left = waiting;
        while world.is_open(old) {
            for delivery in world.messages(old) {
                if world.is_open(old) {
                    world.puback(old, delivery.id.unwrap());
                    left -= 1;
                }
            }
        }
        assert!(left <= waiting / 2, "{left} of {waiting} are left");
        assert_eq!(world.shared.retained_count(), 0);
        let old = world.join(connect);
        assert_eq!(world.messages(old).len(), left);
        let id = world.publish(old, retained("r", AtLeastOnce, &text)).unwrap();
        assert_eq!(world.accepted(old, id), ReasonCode::SUCCESS);
    });
}

#[test]
fn filters_aliases_and_retained_places_are_inside_the_budget() {
    let config = BrokerConfig { payload_bytes_max: 1 << 20, ..settings() };
    each_with(config, |world| {
        let s = world.join(v5("s"));
        let long = |number: usize| format!("{number:020000}");
        let granted = |reason: &ReasonCode| !reason.is_failure();
        let reasons: Vec<_> =
            (0..100).map(|number| world.subscribe(s, &long(number), AtMostOnce)).collect();
        assert_eq!(reasons.iter().filter(|reason| granted(reason)).count(), 26);
        assert_eq!(reasons.last(), Some(&ReasonCode::QUOTA_EXCEEDED));
        // Short ones are each session's own, and what is given up makes room.
        let other = world.join(v5("other"));
        assert!(granted(&world.subscribe(other, "t", AtMostOnce)));
        assert!(!granted(&world.subscribe(other, &long(0), AtMostOnce)));
        world.unsubscribe(s, &[&long(0)]);
        assert!(granted(&world.subscribe(other, &long(0), AtMostOnce)));
        world.cut(other);
        world.cut(s);
        assert_eq!(world.shared.budget().used(), 0);
        // Aliases of sixty-four topics of 20 kB are more than there is.
        let p = world.join(v5("p"));
        for alias in 1..=64 {
            let topic = long(alias);
            let raw = [0x23, 0, alias as u8];
            world.raw(p, &publish_bytes(message(&topic, AtMostOnce, ""), &raw));
        }
        assert_eq!(world.end_reason(p), Some(ReasonCode::QUOTA_EXCEEDED));
        assert_eq!(world.shared.budget().used(), 0);
        let p = world.join(v5("p"));
        for number in 0..100 {
            world.publish(p, retained(&format!("r/{number:02}"), AtMostOnce, "x"));
        }
        assert!(world.shared.budget().used() >= 100 * 300);
    });
}

#[test]
fn nobody_is_refused_for_a_session_that_was_full_and_away_for_long() {
    for overflow in [Overflow::Disconnect, Overflow::BlockPublisher, Overflow::SpillDisconnect] {
        // Whether it left before it was full.
        for leaves_first in [true, false] {
            let session = SessionConfig { queue_idle_max: seconds(600), ..config(overflow, 10) };
            each_with(BrokerConfig { session, ..settings() }, |world| {
                let mut connect = kept("s");
                connect.properties.receive_maximum = NonZeroU16::new(5);
                let s = world.mute(connect);
                world.subscribe(s, "t", AtLeastOnce);
                if leaves_first {
                    world.cut(s);
                    world.advance(seconds(300));
                }
                let p = world.join(v4("p"));
                let all = |world: &mut World, from: usize| {
                    for number in from..from + 30 {
                        world.publish(p, message("t", AtLeastOnce, &number.to_string()));
                    }
                };
                all(world, 0);
                let holds_up = !world.is_open(p) || world.is_paused(p);
                assert!(holds_up || !leaves_first, "{overflow:?}");
                if world.is_open(s) {
                    world.cut(s);
                }
                world.advance(seconds(if leaves_first { 299 } else { 599 }));
                let again = world.join(v4("again"));
                world.publish(again, message("t", AtLeastOnce, "refused"));
                assert!(!world.is_open(again) || world.is_paused(again), "{overflow:?}");
                world.advance(seconds(1));
                let next = world.join(v4("next"));
                for number in 100..130 {
                    world.publish(next, message("t", AtLeastOnce, &number.to_string()));
                    assert!(world.is_open(next) && !world.is_paused(next), "{overflow:?}");
                }
                // Thirty came for ten places.
                let dropped = dropped(world);
                assert!(dropped.queue_full + dropped.spill_full >= 20, "{dropped:?}");
                // It finds the newest, and is as any other again.
                let s = world.join(kept("s"));
                let got = world.texts(s);
                assert_eq!(got.last().map(String::as_str), Some("129"));
                assert!(got.len() >= 10);
                world.publish(next, message("t", AtLeastOnce, "new"));
                assert_eq!(world.texts(s), ["new"]);
            });
        }
    }
    // Zero is forever.
    let session =
        SessionConfig { queue_idle_max: Duration::ZERO, ..config(Overflow::Disconnect, 10) };
    let mut world = World::new(BrokerConfig { session, ..settings() }, 1);
    let s = world.join(kept("s"));
    world.subscribe(s, "t", AtLeastOnce);
    world.cut(s);
    let p = world.join(v5("p"));
    for _ in 0..11 {
        world.publish(p, message("t", AtLeastOnce, "x"));
    }
    world.advance(seconds(3_500));
    let id = world.publish(p, message("t", AtLeastOnce, "x")).unwrap();
    assert_eq!(world.accepted(p, id), ReasonCode::QUOTA_EXCEEDED);
}

#[test]
fn a_session_that_is_full_without_another_message_is_idle_in_time_too() {
    let session =
        SessionConfig { queue_idle_max: seconds(600), ..config(Overflow::Disconnect, 10) };
    each_with(BrokerConfig { session, ..settings() }, |world| {
        for name in ["a", "b", "c", "d"] {
            // `fuller` is full when the other has as much as may wait: a request to it then has no effect.
            let (full, fuller) = (format!("full{name}"), format!("fuller{name}"));
            for (client, own) in [(&full, "full"), (&fuller, "fuller")] {
                let at = world.join(kept(client));
                world.subscribe(at, &format!("both/{name}"), AtLeastOnce);
                world.subscribe(at, &format!("{own}/{name}"), AtLeastOnce);
                world.cut(at);
            }
            let p = world.join(v5(&format!("p{name}")));
            let send = |world: &mut World, own: &str| {
                let to = format!("{own}/{name}");
                let id = world.publish(p, message(&to, AtLeastOnce, "x")).unwrap();
                world.accepted(p, id)
            };
            while send(world, "fuller") != ReasonCode::QUOTA_EXCEEDED {}
            for _ in 0..10 {
                assert!(!send(world, "full").is_failure());
            }
            assert_eq!(send(world, "both"), ReasonCode::QUOTA_EXCEEDED);
            world.advance(seconds(700));
            for own in ["full", "both", "fuller"] {
                for _ in 0..3 {
                    assert!(!send(world, own).is_failure(), "{own}, {} shards", world.shards.len());
                    world.advance(seconds(60));
                }
            }
        }
    });
}

#[test]
fn a_session_that_was_full_before_a_restart_is_idle_in_time() {
    for overflow in [Overflow::Disconnect, Overflow::BlockPublisher, Overflow::SpillDisconnect] {
        for shards in [1, 3] {
            let session = SessionConfig { queue_idle_max: seconds(600), ..config(overflow, 10) };
            let settings = BrokerConfig { session, ..settings() };
            let mut world = World::keeping(settings, shards, false);
            let s = world.join(kept("s"));
            world.subscribe(s, "t", AtLeastOnce);
            world.cut(s);
            let p = world.join(v4("p"));
            for number in 0..12 {
                world.publish(p, message("t", AtLeastOnce, &number.to_string()));
            }
            world.restart(shards);
            world.advance(seconds(601));
            let p = world.join(v4("q"));
            for number in 20..40 {
                world.publish(p, message("t", AtLeastOnce, &number.to_string()));
                assert!(world.is_open(p) && !world.is_paused(p), "{overflow:?}, {number}");
            }
            let s = world.join(kept("s"));
            assert_eq!(world.texts(s).last().map(String::as_str), Some("39"));
            world.end();
        }
    }
}

#[test]
fn a_session_is_not_full_by_a_message_that_another_refused() {
    // On the shard of the publisher and on others, whichever is asked first.
    for order in [["s", "t", "p"], ["s", "p", "t"], ["p", "s", "t"], ["t", "s", "p"]] {
        each(|world| {
            order.iter().for_each(|name| _ = world.placed(name));
            let limits = SessionConfig { queue_bytes_max: 20_000, ..refusing() };
            for name in ["s", "t"] {
                let at = world.join_with(kept(name), limits.clone());
                world.subscribe(at, name, ExactlyOnce);
                world.subscribe(at, "both", ExactlyOnce);
                world.cut(at);
            }
            let p = world.join(v5("p"));
            let publish = |world: &mut World, topic: &str, bytes: usize| {
                let text = "x".repeat(bytes);
                let id = world.publish(p, message(topic, ExactlyOnce, &text)).unwrap();
                world.accepted(p, id)
            };
            while publish(world, "t", 3_000) == ReasonCode::SUCCESS {}
            // More than half of what may wait for the other does.
            for _ in 0..4 {
                assert_eq!(publish(world, "s", 3_000), ReasonCode::SUCCESS);
            }
            // Larger than what it has left.
            assert_eq!(publish(world, "both", 15_000), ReasonCode::QUOTA_EXCEEDED);
            assert_eq!(publish(world, "s", 100), ReasonCode::SUCCESS, "{order:?}");
        });
    }
}

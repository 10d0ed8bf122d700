//! Messages that a client of this process hands over without packets, and their one acknowledgement.

use super::*;
use crate::{Delivery, Overflow, Publication};

fn publication<'a>(number: u16, topic: &'a str, qos: QoS, payload: &'a str) -> Publication<'a> {
    Publication {
        topic: topic.as_bytes(),
        payload: payload.as_bytes(),
        forwarded: &[],
        qos,
        retain: false,
        message_expiry: None,
        id: id(number),
    }
}

fn through() -> SessionConfig {
    SessionConfig { ends_at_refusal: true, acknowledges_through: true, ..settings().session }
}

impl World {
    /// How many of them were taken before the connection took no more.
    fn hand_over(&mut self, at: At, publications: &[Publication<'_>]) -> usize {
        let client = &self.clients[at.0];
        let (shard, Some(key)) = (client.shard, client.key) else { return 0 };
        let broker = &mut self.shards[shard];
        let taken = broker.receive_publications(self.now, key, publications);
        broker.end_publications(self.now, key);
        self.pump();
        taken
    }

    /// What was acknowledged, in order.
    fn pubacks(&mut self, at: At) -> Vec<(u16, ReasonCode)> {
        let puback = |got| match got {
            Other(Packet::Puback(ack)) => Some((ack.packet_id.get(), ack.reason)),
            _ => None,
        };
        self.take(at).into_iter().filter_map(puback).collect()
    }
}

#[test]
fn what_is_handed_over_is_published_in_order_and_acknowledged_by_its_last() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtLeastOnce);
        let p = world.join_with(v5("p"), through());
        for first in [1, 4] {
            let all = [
                publication(first, "a", AtLeastOnce, "one"),
                publication(first + 1, "b", AtMostOnce, "two"),
                publication(first + 2, "a", ExactlyOnce, "three"),
            ];
            assert_eq!(world.hand_over(p, &all), 3);
            let got: Vec<_> = world.messages(s).iter().map(|d| (d.text(), d.qos)).collect();
            let expected = [("one", AtLeastOnce), ("two", AtMostOnce), ("three", AtLeastOnce)];
            assert_eq!(got, expected.map(|(text, qos)| (text.to_owned(), qos)));
            assert_eq!(world.pubacks(p), [(first + 2, ReasonCode::SUCCESS)]);
        }
        // Of nothing there is nothing to say.
        assert_eq!(world.hand_over(p, &[]), 0);
        assert_eq!(world.pubacks(p), []);
    });
}

#[test]
fn many_topics_at_once_all_find_their_subscribers() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "t/#", AtMostOnce);
        let p = world.join_with(v5("p"), through());
        let topics: Vec<String> = (0..100).map(|n| format!("t/{}", n % 40)).collect();
        for round in 0..2 {
            let all: Vec<_> = topics
                .iter()
                .zip(1..)
                .map(|(topic, number)| publication(100 * round + number, topic, AtLeastOnce, topic))
                .collect();
            assert_eq!(world.hand_over(p, &all), 100);
            assert_eq!(world.texts(s), topics);
            assert_eq!(world.pubacks(p), [(100 * round + 100, ReasonCode::SUCCESS)]);
        }
    });
}

#[test]
fn what_nobody_wants_or_rules_forbid_is_said_of_all() {
    let mut world = World::with_rules(settings(), 1, Arc::new(auth::Rules::default()));
    let p = world.join_with(v5("p"), through());
    let lonely = [publication(1, "a", AtLeastOnce, "x")];
    world.hand_over(p, &lonely);
    assert_eq!(world.pubacks(p), [(1, ReasonCode::NO_MATCHING_SUBSCRIBERS)]);
    let all = [
        publication(2, "a", AtLeastOnce, "x"),
        publication(3, "no/way", AtLeastOnce, "x"),
        publication(4, "a", AtLeastOnce, "x"),
    ];
    assert_eq!(world.hand_over(p, &all), 3);
    let told = world.take(p).into_iter().find_map(|got| match got {
        Other(Packet::Puback(ack)) => Some((ack.packet_id.get(), ack.reason, ack.reason_string)),
        _ => None,
    });
    assert_eq!(told, Some((4, ReasonCode::NOT_AUTHORIZED, Some("no/way".to_owned()))));
    // The next one says nothing of those before.
    assert_eq!(world.hand_over(p, &all[..1]), 1);
    assert_eq!(world.pubacks(p), [(2, ReasonCode::NO_MATCHING_SUBSCRIBERS)]);
    world.end();
}

#[test]
fn what_there_is_no_room_for_ends_it_and_what_came_before_is_acknowledged() {
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    each_with(config, |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.cut(s);
        let p = world.join_with(v5("p"), through());
        let text = "x".repeat(30_000);
        let all: Vec<_> = (1..20).map(|n| publication(n, "t", AtLeastOnce, &text)).collect();
        assert!(world.hand_over(p, &all) < 4, "there is room for three");
        assert_eq!(world.end_reason(p), Some(ReasonCode::QUOTA_EXCEEDED));
        let acknowledged = world.pubacks(p);
        let s = world.join(kept("s"));
        let kept = world.texts(s).len();
        assert!((2..4).contains(&kept));
        // An answer that waits for the disk is lost with the connection.
        let last = (kept as u16, ReasonCode::SUCCESS);
        assert!(acknowledged.is_empty() || acknowledged == [last], "{acknowledged:?}");
        let is_gated = world.tapes.first().is_some_and(|tape| tape.waits());
        assert_eq!(acknowledged.is_empty(), is_gated);
    });
}

#[test]
fn a_topic_that_there_cannot_be_ends_it() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtLeastOnce);
        let p = world.join_with(v5("p"), through());
        let all = [
            publication(1, "a", AtLeastOnce, "x"),
            publication(2, "a/#", AtLeastOnce, "x"),
            publication(3, "a", AtLeastOnce, "x"),
        ];
        assert_eq!(world.hand_over(p, &all), 1);
        assert_eq!(world.end_reason(p), Some(ReasonCode::TOPIC_NAME_INVALID));
        assert_eq!(world.texts(s), ["x"]);
        assert_eq!(world.hand_over(p, &all), 0);
        let q = world.join_with(v5("q"), through());
        let torn = Publication { topic: &[0xc3], ..publication(1, "a", AtLeastOnce, "x") };
        assert_eq!(world.hand_over(q, &[torn]), 0);
        assert_eq!(world.end_reason(q), Some(ReasonCode::TOPIC_NAME_INVALID));
    });
}

#[test]
fn operators_see_what_is_handed_over_and_it_is_acknowledged_after_them() {
    publish::with_operator(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let p = world.join_with(v5("p"), through());
        let all: Vec<_> = (1..)
            .zip(["a", "drop", "replace", "b"])
            .map(|(number, text)| publication(number, "t", AtLeastOnce, text))
            .collect();
        assert_eq!(world.hand_over(p, &all), 4);
        let got: Vec<_> =
            world.messages(s).iter().map(|d| format!("{} {}", d.topic, d.text())).collect();
        assert_eq!(got, ["t a", "elsewhere replaced", "t b"]);
        assert_eq!(world.pubacks(p), [(4, ReasonCode::SUCCESS)]);
    });
}

#[test]
fn behind_what_operators_let_through_and_there_is_no_room_for_nothing_is_accepted() {
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    each_with(config, |world| {
        publish::operate(world);
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.cut(s);
        let live = world.join(v5("live"));
        world.subscribe(live, "u", AtMostOnce);
        let p = world.join_with(v5("p"), through());
        let text = "x".repeat(30_000);
        let before = [publication(1, "u", AtMostOnce, "before")];
        let large = (2..20).map(|n| publication(n, "t", AtLeastOnce, &text));
        let behind = [publication(20, "u", AtMostOnce, "behind")];
        let all: Vec<_> = before.into_iter().chain(large).chain(behind).collect();
        world.hand_over(p, &all);
        assert_eq!(world.end_reason(p), Some(ReasonCode::QUOTA_EXCEEDED));
        // All from the first that was refused comes again, of whatever QoS.
        assert_eq!(world.texts(live), ["before"]);
    });
}

#[test]
fn a_publisher_that_acknowledges_through_may_send_packets_too() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join_with(v5("p"), through());
        let mut bytes = Vec::new();
        for number in 1..=3 {
            let publish = Publish { packet_id: Some(id(number)), ..message("t", AtLeastOnce, "x") };
            bytes.extend(publish_bytes(publish, &[]));
        }
        world.raw(p, &bytes);
        assert_eq!(world.messages(s).len(), 3);
        assert_eq!(world.pubacks(p), [(3, ReasonCode::SUCCESS)]);
    });
}

fn hands_out() -> SessionConfig {
    SessionConfig { hands_out: true, ..settings().session }
}

impl World {
    /// What is handed out to a client now.
    fn deliveries(&mut self, at: At) -> Vec<Delivery> {
        let client = &self.clients[at.0];
        let Some(key) = client.key else { return Vec::new() };
        let mut deliveries = Vec::new();
        self.shards[client.shard].take_deliveries(self.now, key, &mut deliveries);
        deliveries
    }

    fn hold_up(&mut self, at: At, is_held_up: bool) {
        let client = &self.clients[at.0];
        let key = client.key.expect("it is open");
        self.shards[client.shard].hold_up_deliveries(key, is_held_up);
        self.pump();
    }
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.payload.to_contiguous().to_vec()).expect("a text")
}

#[test]
fn messages_are_handed_out_as_they_are_held_and_acknowledged_as_ever() {
    each(|world| {
        let config = SessionConfig { inflight_max: Some(2), ..hands_out() };
        let s = world.join_with(v5("s"), config);
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        let first = world.now;
        for (qos, text) in
            [(AtMostOnce, "a"), (AtLeastOnce, "b"), (ExactlyOnce, "c"), (AtLeastOnce, "d")]
        {
            world.publish(p, message("t", qos, text));
        }
        world.advance(seconds(1));
        let got = world.deliveries(s);
        let told: Vec<_> = got.iter().map(|d| (text(d), d.qos, d.packet_id.is_some())).collect();
        let expected =
            [("a", AtMostOnce, false), ("b", AtLeastOnce, true), ("c", AtLeastOnce, true)];
        assert_eq!(told, expected.map(|(text, qos, has_id)| (text.to_owned(), qos, has_id)));
        assert!(got.iter().all(|d| d.message.received == first && !d.is_repeated));
        assert!(world.deliveries(s).is_empty(), "two are in flight");
        world.puback(s, got[1].packet_id.expect("of QoS 1"));
        let got = world.deliveries(s);
        assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["d"]);
        assert_eq!(got[0].message.received, first);
        // No packet has come but answers.
        assert!(world.messages(s).is_empty());
    });
}

#[test]
fn what_was_handed_out_and_not_acknowledged_comes_again() {
    each(|world| {
        let s = world.join_with(kept("s"), hands_out());
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        for text in ["a", "b", "c"] {
            world.publish(p, message("t", AtLeastOnce, text));
        }
        let got = world.deliveries(s);
        world.puback(s, got[1].packet_id.expect("of QoS 1"));
        // Handed out or not, it is of the connection.
        world.publish(p, message("t", AtLeastOnce, "d"));
        world.cut(s);
        world.publish(p, message("t", AtLeastOnce, "e"));
        let s = world.join_with(kept("s"), hands_out());
        let mut got = world.deliveries(s);
        for delivery in &got {
            world.puback(s, delivery.packet_id.expect("of QoS 1"));
        }
        got.extend(world.deliveries(s));
        let told: Vec<_> = got.iter().map(|d| (text(d), d.is_repeated)).collect();
        let expected = [("a", true), ("c", true), ("d", true), ("e", false)];
        assert_eq!(told, expected.map(|(text, is_repeated)| (text.to_owned(), is_repeated)));
        // To a client that takes packets the same session sends packets.
        world.cut(s);
        world.publish(p, message("t", AtLeastOnce, "f"));
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s).last().map(String::as_str), Some("f"));
    });
}

#[test]
fn what_is_held_up_waits_under_its_policy_and_goes_on_in_order() {
    each(|world| {
        let config = SessionConfig {
            queue_messages_max: 3,
            overflow_qos0: Overflow::DropOldest,
            ..hands_out()
        };
        let s = world.join_with(v5("s"), config);
        world.subscribe(s, "t", AtMostOnce);
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtMostOnce, "0"));
        world.hold_up(s, true);
        for number in 1..=5 {
            world.publish(p, message("t", AtMostOnce, &number.to_string()));
        }
        // What was in the output already, and no more.
        assert_eq!(world.deliveries(s).iter().map(text).collect::<Vec<_>>(), ["0"]);
        // Answers go on.
        world.subscribe(s, "other", AtMostOnce);
        assert!(world.deliveries(s).is_empty());
        world.hold_up(s, false);
        assert_eq!(world.deliveries(s).iter().map(text).collect::<Vec<_>>(), ["3", "4", "5"]);
    });
}

#[test]
fn no_packet_is_too_large_where_there_are_none() {
    each(|world| {
        let mut connect = v5("s");
        connect.properties.maximum_packet_size = Some(200);
        let s = world.join_with(connect, hands_out());
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        let sizes = [10, 1_000, 100_000];
        for size in sizes {
            world.publish(p, message("t", AtLeastOnce, &"x".repeat(size)));
        }
        let got = world.deliveries(s);
        let rest = world.deliveries(s);
        let found: Vec<_> = got.iter().chain(&rest).map(|d| d.message.payload.len()).collect();
        assert_eq!(found, sizes);
    });
}

#[test]
fn many_are_acknowledged_at_once_and_what_is_not_in_flight_is_passed_over() {
    each(|world| {
        let config = SessionConfig { inflight_max: Some(3), ..hands_out() };
        let s = world.join_with(kept("s"), config.clone());
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        for number in 0..8 {
            world.publish(p, message("t", AtLeastOnce, &number.to_string()));
        }
        let settle = |world: &mut World, at: At, ids: &[PacketId]| {
            let client = &world.clients[at.0];
            let key = client.key.expect("it is open");
            world.shards[client.shard].acknowledge_deliveries(world.now, key, ids);
            world.pump();
        };
        let got = world.deliveries(s);
        assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["0", "1", "2"]);
        let ids: Vec<_> = got.iter().filter_map(|delivery| delivery.packet_id).collect();
        // The last first, one that was never given, and one twice.
        settle(world, s, &[ids[2], id(60_000), ids[0], ids[0]]);
        let got = world.deliveries(s);
        assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["3", "4"]);
        world.cut(s);
        let s = world.join_with(kept("s"), config);
        let mut told = Vec::new();
        loop {
            let got = world.deliveries(s);
            if got.is_empty() {
                break;
            }
            let ids: Vec<_> = got.iter().filter_map(|delivery| delivery.packet_id).collect();
            settle(world, s, &ids);
            told.extend(got.iter().map(text));
        }
        assert_eq!(told, ["1", "3", "4", "5", "6", "7"]);
        // Of a connection that is gone nothing is expected.
        let client = &world.clients[s.0];
        let (shard, key) = (client.shard, client.key.expect("it is open"));
        world.cut(s);
        world.shards[shard].acknowledge_deliveries(world.now, key, &[id(1)]);
    });
}

#[test]
fn the_memory_of_what_was_acknowledged_serves_the_next() {
    let mut world = World::new(settings(), 1);
    let s = world.join_with(kept("s"), hands_out());
    world.subscribe(s, "t", AtLeastOnce);
    let p = world.join(v5("p"));
    let mut held = Vec::new();
    let mut places = Vec::new();
    for round in 0..3 {
        for number in 0..4 {
            world.publish(p, message("t", AtLeastOnce, &format!("{round} {number}")));
        }
        let mut got = world.deliveries(s);
        let expected: Vec<_> = (0..4).map(|number| format!("{round} {number}")).collect();
        assert_eq!(got.iter().map(text).collect::<Vec<_>>(), expected);
        places.push(got.iter().map(|d| Arc::as_ptr(&d.message)).collect::<Vec<_>>());
        let ids: Vec<_> = got.iter().filter_map(|delivery| delivery.packet_id).collect();
        // Whoever still holds one has it as it was.
        held.extend(got.pop());
        drop(got);
        ids.iter().for_each(|id| world.puback(s, *id));
        assert_eq!(world.shared.budget().messages(), held.len() as u64);
    }
    let still: Vec<_> = held.iter().map(text).collect();
    assert_eq!(still, ["0 3", "1 3", "2 3"]);
    let again = places[1].iter().filter(|place| places[0].contains(place)).count();
    assert_eq!(again, 3);
    drop(held);
    assert_eq!((world.shared.budget().messages(), world.shared.budget().used()), (0, 0));
}

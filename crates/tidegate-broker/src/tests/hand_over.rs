//! Messages that a client of this process hands over without packets, and their one acknowledgement.

use super::*;
use crate::{
    Acknowledged, Bundle, BundleReader, Delivery, Empties, Handed, Overflow, Publication, Run,
};

pub(super) fn publication<'a>(
    number: u16,
    topic: &'a str,
    qos: QoS,
    payload: &'a str,
) -> Publication<'a> {
    Publication {
        topic: topic.as_bytes(),
        payload: payload.as_bytes(),
        forwarded: &[],
        qos,
        retain: false,
        message_expiry: None,
        group: &[],
        id: id(number),
    }
}

pub(super) fn through() -> SessionConfig {
    SessionConfig { ends_at_refusal: true, acknowledges_through: true, ..settings().session }
}

impl World {
    /// How many of them were taken before the connection took no more.
    pub(super) fn hand_over(&mut self, at: At, publications: &[Publication<'_>]) -> usize {
        let client = &self.clients[at.0];
        let (shard, Some(key)) = (client.shard, client.key) else { return 0 };
        let broker = &mut self.shards[shard];
        let taken = broker.receive_publications(self.now, key, publications);
        broker.end_publications(self.now, key);
        self.pump();
        taken
    }

    /// The acknowledgements, in order.
    pub(super) fn pubacks(&mut self, at: At) -> Vec<(u16, ReasonCode)> {
        let puback = |got| match got {
            Other(Packet::Puback(ack)) => Some((ack.packet_id.get(), ack.reason)),
            _ => None,
        };
        self.take(at).into_iter().filter_map(puback).collect()
    }
}

#[test]
fn a_bundle_is_published_in_order_and_acknowledged_by_its_last_message() {
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
fn results_of_unmatched_and_forbidden_messages_are_said_of_all() {
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
fn a_message_without_room_ends_it_and_earlier_ones_are_acknowledged() {
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
fn a_message_larger_than_all_memory_is_refused_for_good_and_the_rest_is_published() {
    refuses_for_good("x", "huge", |_| {});
}

#[test]
fn so_is_what_has_a_dead_letter_that_is_larger() {
    refuses_for_good("bury", "dead", publish::operate);
}

/// Two messages that begin with `text` are too large; the first topic that is named is `named`.
fn refuses_for_good(text: &str, named: &str, prepare: impl Fn(&mut World)) {
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    each_with(config, |world| {
        prepare(world);
        let s = world.join(kept("s"));
        world.subscribe(s, "#", AtLeastOnce);
        world.cut(s);
        let p = world.join_with(v5("p"), through());
        let huge = text.repeat(100_001);
        let all = [
            publication(1, "a", AtLeastOnce, "before"),
            publication(2, "huge", AtLeastOnce, &huge),
            Publication { retain: true, ..publication(3, "huge/kept", AtLeastOnce, &huge) },
            publication(4, "a", AtLeastOnce, "behind"),
        ];
        assert_eq!(world.hand_over(p, &all), 4);
        let told = world.take(p).into_iter().find_map(|got| match got {
            Other(Packet::Puback(ack)) => {
                Some((ack.packet_id.get(), ack.reason, ack.reason_string))
            }
            _ => None,
        });
        assert_eq!(told, Some((4, ReasonCode::QUOTA_EXCEEDED, Some(named.to_owned()))));
        assert!(world.is_open(p));
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s), ["before", "behind"]);
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
        assert_eq!(world.end_reason(p), Some(ReasonCode::MALFORMED_PACKET));
        assert_eq!(world.texts(s), ["x"]);
        assert_eq!(world.hand_over(p, &all), 0);
        let q = world.join_with(v5("q"), through());
        let torn = Publication { topic: &[0xc3], ..publication(1, "a", AtLeastOnce, "x") };
        assert_eq!(world.hand_over(q, &[torn]), 0);
        assert_eq!(world.end_reason(q), Some(ReasonCode::MALFORMED_PACKET));
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

pub(super) fn hands_out() -> SessionConfig {
    SessionConfig { hands_out: true, ..settings().session }
}

impl World {
    /// The deliveries to a client now.
    fn handed(&mut self, at: At) -> Vec<Handed> {
        let client = &self.clients[at.0];
        let Some(key) = client.key else { return Vec::new() };
        let mut handed = Vec::new();
        self.shards[client.shard].take_deliveries(self.now, key, &mut handed);
        handed
    }

    /// The deliveries to a client now, message by message.
    pub(super) fn deliveries(&mut self, at: At) -> Vec<Delivery> {
        let one = |handed| match handed {
            Handed::One(delivery) => delivery,
            Handed::Run(run) => panic!("{} messages came as one", run.len()),
        };
        self.handed(at).into_iter().map(one).collect()
    }

    /// The deliveries to a client until there are no more, each acknowledged.
    pub(super) fn all_handed(&mut self, at: At) -> Vec<Handed> {
        let mut all = Vec::new();
        loop {
            let got = self.handed(at);
            if got.is_empty() {
                return all;
            }
            self.settle(at, &ids(&got));
            all.extend(got);
        }
    }

    /// A client needs those no more.
    pub(super) fn settle(&mut self, at: At, ids: &[PacketId]) {
        let mut acknowledged = Vec::new();
        ids.iter().for_each(|id| Acknowledged::push(&mut acknowledged, *id));
        let client = &self.clients[at.0];
        let (shard, key) = (client.shard, client.key.expect("it is open"));
        self.shards[shard].acknowledge_deliveries(self.now, key, &acknowledged);
        self.pump();
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
fn messages_that_are_given_back_are_used_again_and_count_no_more() {
    let mut world = World::new(settings(), 1);
    let s = world.join_with(v5("s"), hands_out());
    world.subscribe(s, "t", AtMostOnce);
    let p = world.join(v5("p"));
    let mut given_back = Vec::new();
    let mut places = Vec::new();
    for round in 0..5 {
        world.publish(p, message("t", AtMostOnce, &format!("round {round}")));
        let got = world.deliveries(s);
        assert_eq!(got.iter().map(text).collect::<Vec<_>>(), [format!("round {round}")]);
        assert_eq!(world.shared.budget().messages(), 1);
        given_back.extend(got.into_iter().map(|delivery| delivery.message));
        places.push(Arc::as_ptr(&given_back[0]));
        let shard = world.clients[s.0].shard;
        world.shards[shard].reuse(&mut given_back);
        assert!(given_back.is_empty());
        assert_eq!((world.shared.budget().used(), world.shared.budget().messages()), (0, 0));
    }
    assert!(places.iter().all(|place| *place == places[0]), "it is always the same memory");
}

#[test]
fn messages_that_came_at_once_are_told_apart_by_when_they_came() {
    let mut world = World::keeping(settings(), 1, false);
    let s = world.join_with(kept("s"), hands_out());
    world.subscribe(s, "t", AtLeastOnce);
    let p = world.join(v5("p"));
    for text in ["a", "b", "c"] {
        world.publish(p, message("t", AtLeastOnce, text));
    }
    let received = |got: &[Delivery]| got.iter().map(|d| d.message.received).collect::<Vec<_>>();
    let got = world.deliveries(s);
    let before = received(&got);
    assert!(before.len() == 3 && before.is_sorted_by(|a, b| a < b), "{before:?}");
    // Identifiers begin again at a start, and what is the same message then is seen by this alone.
    world.puback(s, got[0].packet_id.expect("of QoS 1"));
    world.restart(1);
    let s = world.join_with(kept("s"), hands_out());
    assert_eq!(received(&world.deliveries(s)), before[1..]);
    world.end();
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
fn unacknowledged_deliveries_come_again() {
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
fn held_up_deliveries_wait_under_their_policy_and_continue_in_order() {
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
        // The packets that were in the output already, and no more.
        assert_eq!(world.deliveries(s).iter().map(text).collect::<Vec<_>>(), ["0"]);
        // Answers are still sent.
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
        let got = world.deliveries(s);
        assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["0", "1", "2"]);
        let ids: Vec<_> = got.iter().filter_map(|delivery| delivery.packet_id).collect();
        // The last first, one that was never given, and one twice.
        world.settle(s, &[ids[2], id(60_000), ids[0], ids[0]]);
        let got = world.deliveries(s);
        assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["3", "4"]);
        world.cut(s);
        let s = world.join_with(kept("s"), config);
        let told = texts(&world.all_handed(s));
        assert_eq!(told, ["1", "3", "4", "5", "6", "7"]);
        // Of a connection that is gone nothing is expected.
        let client = &world.clients[s.0];
        let (shard, key) = (client.shard, client.key.expect("it is open"));
        world.cut(s);
        let first = Acknowledged { first: id(1), count: 3 };
        world.shards[shard].acknowledge_deliveries(world.now, key, &[first]);
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
        // A reader that still holds one has it unchanged.
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

impl World {
    /// Hands messages over in one piece of memory, which comes back by the second; false if the connection took no more.
    fn hand_over_bundle(
        &mut self,
        at: At,
        publications: &[Publication<'_>],
        empties: &Arc<Empties>,
    ) -> bool {
        let mut bundle = empties.take(&Bundle::default());
        publications.iter().for_each(|publication| bundle.push(publication, |_| {}));
        let mut bundle = BundleReader::new(bundle, empties.clone());
        let client = &self.clients[at.0];
        let (shard, Some(key)) = (client.shard, client.key) else { return false };
        let broker = &mut self.shards[shard];
        let taken = broker.receive_bundle(self.now, key, &mut bundle, usize::MAX);
        broker.end_publications(self.now, key);
        self.pump();
        taken.is_some()
    }
}

/// Texts and identifiers of what was handed out, and how many messages came together.
fn told(handed: &[Handed]) -> (Vec<(String, Option<PacketId>)>, Vec<usize>) {
    let (mut told, mut counts) = (Vec::new(), Vec::new());
    for handed in handed {
        match handed {
            Handed::One(delivery) => {
                told.push((text(delivery), delivery.packet_id));
                counts.push(1);
            }
            Handed::Run(run) => {
                counts.push(run.len());
                let (memory, mut run): (_, Run) = (run.memory(), run.clone());
                while let Some(message) = run.pop() {
                    let payload = memory[message.payload].to_vec();
                    let payload = String::from_utf8(payload).expect("a text");
                    told.push((payload, message.packet_id));
                }
            }
        }
    }
    (told, counts)
}

pub(super) fn texts(handed: &[Handed]) -> Vec<String> {
    told(handed).0.into_iter().map(|(text, _)| text).collect()
}

pub(super) fn ids(handed: &[Handed]) -> Vec<PacketId> {
    told(handed).0.into_iter().filter_map(|(_, id)| id).collect()
}

/// Messages from that number on, of topics that the broker has seen of this publisher: it is asked for routes first.
fn numbered(texts: &[String], first: u16, qos: QoS) -> Vec<Publication<'_>> {
    let topics = ["t/a", "t/b", "t/c"].into_iter().cycle();
    let all = texts.iter().zip(topics).zip(first..);
    all.map(|((text, topic), number)| publication(number, topic, qos, text)).collect()
}

fn some(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// A sink that is there, and a publisher whose topics are known.
fn sink_and_publisher(world: &mut World, config: SessionConfig) -> (At, At) {
    let s = world.join_with(kept("s"), config);
    world.subscribe(s, "t/#", AtLeastOnce);
    let p = world.join_with(v5("p"), through());
    world.hand_over(p, &numbered(&some(3), 1, AtLeastOnce));
    let got = world.handed(s);
    world.settle(s, &ids(&got));
    world.pubacks(p);
    (s, p)
}

#[test]
fn messages_of_a_bundle_go_to_one_client_as_one_and_are_acknowledged_in_any_order() {
    let mut world = World::new(settings(), 1);
    let (s, p) = sink_and_publisher(&mut world, hands_out());
    let empties = Arc::default();
    let texts = some(40);
    for (qos, first) in [(AtLeastOnce, 10), (AtMostOnce, 60)] {
        assert!(world.hand_over_bundle(p, &numbered(&texts, first, qos), &empties));
        assert_eq!(world.pubacks(p), [(first + 39, ReasonCode::SUCCESS)]);
        let got = world.handed(s);
        let (told, counts) = told(&got);
        assert_eq!(counts, [40], "they came as one");
        assert_eq!(
            told.iter().map(|(text, _)| text).collect::<Vec<_>>(),
            texts.iter().collect::<Vec<_>>()
        );
        let report = world.shards[0].sessions(1).remove(0);
        if qos == AtMostOnce {
            assert!(told.iter().all(|(_, id)| id.is_none()));
            continue;
        }
        assert_eq!(report.inflight, 40);
        let ids = ids(&got);
        // The middle, the last, one twice, then the rest, across what is gone.
        world.settle(s, &ids[10..20]);
        world.settle(s, &ids[39..]);
        world.settle(s, &ids[15..16]);
        assert_eq!(world.shards[0].sessions(1)[0].inflight, 29);
        world.puback(s, ids[5]);
        assert_eq!(world.shards[0].sessions(1)[0].inflight, 28);
        world.settle(s, &ids);
        let report = world.shards[0].sessions(1).remove(0);
        assert_eq!((report.inflight, report.inflight_bytes), (0, 0));
    }
    assert_eq!(world.shared.budget().used(), 0, "no part of it is held");
    let statistics = world.shards[0].statistics();
    assert_eq!((statistics.received, statistics.sent), (83, 83));
}

#[test]
fn an_unacknowledged_run_comes_again_message_by_message() {
    let mut world = World::new(settings(), 1);
    let (s, p) = sink_and_publisher(&mut world, hands_out());
    let empties = Arc::default();
    let all = some(40);
    assert!(world.hand_over_bundle(p, &numbered(&all, 10, AtLeastOnce), &empties));
    let got = world.handed(s);
    let before = ids(&got);
    world.settle(s, &before[..10]);
    world.settle(s, &before[20..30]);
    drop(got);
    world.cut(s);
    let report = world.shards[0].sessions(1).remove(0);
    assert_eq!(report.inflight, 20);
    assert!(report.inflight_bytes > 0);
    assert_eq!(world.shared.budget().used(), report.inflight_bytes, "the bundle is let go");
    // A message that comes meanwhile waits behind it.
    assert!(world.hand_over_bundle(p, &numbered(&["new".to_owned()], 60, AtLeastOnce), &empties));
    let s = world.join_with(kept("s"), hands_out());
    let one = |handed: Handed| match handed {
        Handed::One(delivery) => (text(&delivery), delivery.packet_id, delivery.is_repeated),
        Handed::Run(run) => panic!("{} messages came as one", run.len()),
    };
    let found: Vec<_> = world.all_handed(s).into_iter().map(one).collect();
    let (new, again) = found.split_last().expect("something came");
    let expected = (10..20).chain(30..40);
    let expected = expected.map(|at| (all[at].clone(), Some(before[at]), true));
    assert_eq!(again, expected.collect::<Vec<_>>());
    assert_eq!((&*new.0, new.2), ("new", false));
    assert_eq!(world.shared.budget().used(), 0);
}

#[test]
fn a_run_ends_where_a_message_asks_for_more_and_order_is_kept() {
    each(|world| {
        let (s, p) = sink_and_publisher(world, hands_out());
        let other = world.join(v5("other"));
        world.subscribe(other, "u", AtLeastOnce);
        let empties = Arc::default();
        let texts_of = some(100);
        let mut all = numbered(&texts_of, 10, AtLeastOnce);
        all[30].retain = true;
        all[50].message_expiry = Some(60);
        // For two.
        world.subscribe(other, "t/c", AtMostOnce);
        let large = "x".repeat(20_000);
        all[90].payload = large.as_bytes();
        for publication in &mut all[70..80] {
            publication.qos = AtMostOnce;
        }
        assert!(world.hand_over_bundle(p, &all, &empties));
        let found = texts(&world.all_handed(s));
        // Small ones of other topics may overtake a large one.
        for topic in 0..3 {
            let is_of = |text: &String| {
                text.parse::<usize>().map_or(topic == 0, |number| number % 3 == topic)
            };
            let of_topic = |at: &usize| at % 3 == topic;
            let expected = (0..100).filter(of_topic);
            let expected = expected.map(|at| if at == 90 { &large } else { &texts_of[at] });
            let found = found.iter().filter(|text| is_of(text));
            assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
        assert_eq!(world.pubacks(p), [(109, ReasonCode::SUCCESS)]);
        let of_other = (0..100).filter(|at| at % 3 == 2).map(|at| texts_of[at].clone());
        assert_eq!(world.texts(other), of_other.collect::<Vec<_>>());
    });
}

#[test]
fn no_more_go_as_one_than_may_be_in_flight_and_identifiers_go_round() {
    let mut world = World::new(settings(), 1);
    let config = SessionConfig { inflight_max: Some(100), ..hands_out() };
    let (s, p) = sink_and_publisher(&mut world, config);
    let empties = Arc::default();
    let mut open: Vec<PacketId> = Vec::new();
    let mut came = 0;
    let mut as_one = 0;
    for round in 0..2_000 {
        let all = some(60);
        assert!(world.hand_over_bundle(p, &numbered(&all, 10, AtLeastOnce), &empties));
        loop {
            let got = world.handed(s);
            let (told, counts) = told(&got);
            as_one += counts.iter().filter(|count| **count > 1).count();
            for (text, id) in &told {
                assert_eq!(*text, (came % 60).to_string());
                came += 1;
                let id = id.expect("of QoS 1");
                assert!(!open.contains(&id), "{id} is in use, round {round}");
                open.push(id);
            }
            assert!(open.len() <= 100);
            if told.is_empty() {
                break;
            }
            // Some stay open for long.
            let stays = |id: &PacketId| id.get() % 97 == 1 && round % 50 != 0;
            let (stay, done) = open.iter().partition::<Vec<_>, _>(|id| stays(id));
            world.settle(s, &done);
            open = stay;
            if open.len() > 20 {
                let done: Vec<_> = open.drain(..15).collect();
                world.settle(s, &done);
            }
        }
        world.take(p);
    }
    assert_eq!(came, 120_000);
    assert!(as_one > 1_000, "{as_one} came as one");
}

#[test]
fn little_of_a_bundle_does_not_hold_all_of_it() {
    let mut world = World::new(settings(), 1);
    let (s, p) = sink_and_publisher(&mut world, hands_out());
    let empties = Arc::default();
    let all = some(200);
    let mut all = numbered(&all, 10, AtLeastOnce);
    // The others have no subscriber.
    all[2..].iter_mut().for_each(|publication| publication.topic = b"u");
    assert!(world.hand_over_bundle(p, &all, &empties));
    let got = world.deliveries(s);
    let held: u64 = got.iter().map(|delivery| delivery.message.charged()).sum();
    assert_eq!((got.len(), world.shared.budget().used()), (2, held));
}

#[test]
fn where_the_budget_has_no_room_for_a_bundle_messages_go_one_by_one() {
    let config = BrokerConfig { payload_bytes_max: 20_000, ..settings() };
    let mut world = World::new(config, 1);
    let (s, p) = sink_and_publisher(&mut world, hands_out());
    let text = "x".repeat(900);
    let all: Vec<_> = (10..30).map(|n| publication(n, "t/a", AtLeastOnce, &text)).collect();
    let empties = Arc::default();
    // They fit, but not the memory that a vector of their bytes has grown to.
    assert!(world.hand_over_bundle(p, &all[..17], &empties));
    assert!(world.shared.budget().used() <= 20_000);
    let got = world.all_handed(s);
    assert_eq!(told(&got).1, [1; 17], "none came as one");
    assert_eq!(world.shared.budget().refused(), 0, "nothing was refused to anybody");
}

#[test]
fn memory_of_bundles_comes_back_once_it_is_unused() {
    let mut world = World::new(settings(), 1);
    let (s, p) = sink_and_publisher(&mut world, hands_out());
    let empties: Arc<Empties> = Arc::default();
    let all = some(40);
    let mut places = Vec::new();
    for first in [10, 60, 110] {
        assert!(world.hand_over_bundle(p, &numbered(&all, first, AtLeastOnce), &empties));
        let got = world.handed(s);
        world.settle(s, &ids(&got));
        let [Handed::Run(run)] = &got[..] else { panic!("{got:?}") };
        // A reader that still holds a piece of it has it unchanged.
        let memory = run.memory();
        let piece = memory.slice(memory.len() - 2..);
        places.push(memory.as_ptr());
        drop((memory, got));
        assert_eq!(piece, "39");
        assert!(world.shared.budget().used() > 0);
        drop(piece);
        assert_eq!(world.shared.budget().used(), 0);
    }
    assert!(places.iter().all(|place| *place == places[0]), "it is always the same memory");
    empties.forget();
    assert!(world.hand_over_bundle(p, &numbered(&all, 160, AtLeastOnce), &empties));
}

#[test]
fn a_run_whose_identifiers_are_the_last_comes_again_too() {
    let mut world = World::new(settings(), 1);
    let config = SessionConfig { inflight_max: Some(1000), ..hands_out() };
    let (s, p) = sink_and_publisher(&mut world, config);
    let empties = Arc::default();
    let all = some(50);
    let last = loop {
        assert!(world.hand_over_bundle(p, &numbered(&all, 10, AtLeastOnce), &empties));
        world.take(p);
        let got = world.handed(s);
        let ids = ids(&got);
        if ids.contains(&PacketId::MAX) {
            break ids;
        }
        world.settle(s, &ids);
    };
    world.cut(s);
    let s = world.join_with(kept("s"), hands_out());
    let got = world.deliveries(s);
    let again: Vec<_> = got.iter().filter_map(|delivery| delivery.packet_id).collect();
    assert_eq!(again, last);
    assert_eq!(got.iter().map(text).collect::<Vec<_>>(), all);
}

#[test]
fn routes_of_topics_that_share_a_place_are_remembered_beside_each_other() {
    let mut world = World::new(settings(), 1);
    let s = world.join(v5("s"));
    world.subscribe(s, "#", AtMostOnce);
    let p = world.join(v5("p"));
    let topics: Vec<String> = (0..4_000).map(|number| format!("t/{number}")).collect();
    for topic in &topics {
        world.publish(p, message(topic, AtMostOnce, "x"));
    }
    let remembered = topics.iter().filter(|topic| world.shards[0].remembers(topic)).count();
    // 4,000 topics in 8,192 pairs of places: some 150 find both taken by others.
    assert!(remembered > 3_700, "{remembered}");
}

#[test]
fn a_bundle_of_a_peer_goes_to_one_client_as_one_though_other_peers_subscribe() {
    let mut world = World::new(settings(), 1);
    let s = world.join_with(kept("s"), hands_out());
    let other = SessionConfig { is_peer: true, ..hands_out() };
    let other = world.join_with(kept("other"), other);
    for at in [s, other] {
        world.subscribe(at, "t/#", AtLeastOnce);
    }
    let publisher = world.join_with(v5("publisher"), through());
    let peer = SessionConfig { is_peer: true, ..through() };
    let peer = world.join_with(v5("peer"), peer);
    let (texts, empties) = (some(40), Arc::default());
    // In turn, so that the route of each is remembered beside the other's.
    for round in 0..3 {
        for (at, is_peer) in [(publisher, false), (peer, true)] {
            // The first messages of a topic say whom rules let have it.
            world.hand_over(at, &numbered(&some(3), 1, AtLeastOnce));
            for at in [s, other] {
                world.all_handed(at);
            }
            world.pubacks(at);
            assert!(world.hand_over_bundle(at, &numbered(&texts, 10, AtLeastOnce), &empties));
            assert_eq!(world.pubacks(at), [(49, ReasonCode::SUCCESS)], "round {round}");
            let got = world.all_handed(s);
            let (told, counts) = told(&got);
            assert_eq!(told.len(), 40, "round {round}");
            assert_eq!(counts.len() == 1, is_peer, "{counts:?} in round {round}");
            let expected = if is_peer { 0 } else { 40 };
            assert_eq!(ids(&world.all_handed(other)).len(), expected, "round {round}");
        }
    }
}

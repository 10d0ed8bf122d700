//! Retained values over several nodes, each a [`World`]: which one is the newer, and what is cleared.

use std::collections::BTreeSet;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate_message::{ID_PROPERTY, RETAINED_PROPERTY};
use tidegate_wire::mqtt::{
    put_user_property,
    stamp::{Stamp, Stamped},
};

use super::*;
use crate::shared::MARK_AGE;

const HOUR: Duration = Duration::from_secs(3600);

/// Nodes that are one broker.
struct Nodes {
    worlds: Vec<World>,
    /// From the first to the second.
    links: BTreeMap<(usize, usize), Link>,
    /// The filters that each node wants of the others.
    wanted: Vec<BTreeSet<&'static str>>,
    /// Of the sessions that nodes have for others.
    session: SessionConfig,
}

/// By which one node is sent what another one has for it: a session there, and a connection here.
#[derive(Default)]
struct Link {
    ends: Option<(At, At)>,
    had: BTreeSet<&'static str>,
    is_cut: bool,
}

/// The settings of a member.
fn member(number: usize) -> BrokerConfig {
    let session = SessionConfig::default();
    BrokerConfig { member: Some(number as u64), session, ..settings() }
}

fn peer() -> SessionConfig {
    SessionConfig { is_peer: true, ..SessionConfig::default() }
}

impl Nodes {
    /// Nodes whose clocks are so many hours ahead, of one shard, two, three and so on.
    fn of(hours_ahead: &[u64]) -> Self {
        let world = |(number, hours): (usize, &u64)| {
            let mut world = World::keeping(member(number), number % 3 + 1, number % 2 == 1);
            world.advance(HOUR * *hours as u32);
            world
        };
        let worlds: Vec<World> = hours_ahead.iter().enumerate().map(world).collect();
        let count = worlds.len();
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let links = pairs.filter(|(from, to)| from != to).map(|pair| (pair, Link::default()));
        let wanted = vec![BTreeSet::new(); count];
        Self { links: links.collect(), wanted, worlds, session: peer() }
    }

    /// A member's clients subscribe to that.
    fn want(&mut self, node: usize, filters: impl IntoIterator<Item = &'static str>) {
        self.wanted[node] = filters.into_iter().collect();
        self.settle();
    }

    fn publish(&mut self, node: usize, topic: &str, qos: QoS, text: &str) {
        let world = &mut self.worlds[node];
        let client = world.join(v5("publisher"));
        world.publish(client, retained(topic, qos, text));
        world.leave(client);
    }

    /// The links of a node carry nothing, or do again.
    fn cut(&mut self, node: usize, is_cut: bool) {
        for ((from, to), link) in &mut self.links {
            if *from == node || *to == node {
                link.is_cut = is_cut;
            }
        }
        self.settle();
    }

    /// A node ends, and begins again with what its journals have.
    fn restart(&mut self, node: usize) {
        for ((from, to), link) in &mut self.links {
            let Some((reads, writes)) = link.ends.filter(|_| *from == node || *to == node) else {
                continue;
            };
            link.ends = None;
            if *from != node {
                self.worlds[*from].cut(reads);
            }
            if *to != node {
                self.worlds[*to].cut(writes);
            }
        }
        let shards = self.worlds[node].shards.len() % 3 + 1;
        self.worlds[node].restart(shards);
    }

    /// Carries messages until none is left that may be carried.
    fn settle(&mut self) {
        let pairs: Vec<(usize, usize)> = self.links.keys().copied().collect();
        while pairs.iter().fold(false, |moved, (from, to)| self.carry(*from, *to) || moved) {}
    }

    /// Carries what there is for one node at another one; whether there was something.
    fn carry(&mut self, from: usize, to: usize) -> bool {
        let Self { worlds, links, wanted, session } = self;
        let link = links.get_mut(&(from, to)).expect("two nodes have a link");
        if link.is_cut {
            return false;
        }
        let (reads, writes) = *link.ends.get_or_insert_with(|| {
            let there = &mut worlds[from];
            there.answers = false;
            let reads = there.try_connect_with(kept(&format!("to {to}")), session.clone()).unwrap();
            there.answers = true;
            if !there.connack(reads).session_present {
                link.had.clear();
            }
            let writes = worlds[to].join_with(kept(&format!("from {from}")), peer());
            (reads, writes)
        });
        let wanted = &wanted[to];
        for &text in wanted.difference(&link.had) {
            let retain_handling = RetainHandling::SendIfNew;
            let asked = filter(text, AtLeastOnce);
            let asked = SubscribeFilter { retain_as_published: true, retain_handling, ..asked };
            worlds[from].subscribe_to(reads, None, vec![asked]);
        }
        let ended: Vec<&str> = link.had.difference(wanted).copied().collect();
        if !ended.is_empty() {
            worlds[from].unsubscribe(reads, &ended);
        }
        link.had = wanted.clone();
        let came = worlds[from].messages(reads);
        for delivery in &came {
            let Delivery { topic, qos, retain, expiry, forwarded, .. } = delivery;
            let mut raw = forwarded.clone();
            put_user_property(ID_PROPERTY, "some name", &mut raw).unwrap();
            if let Some(seconds) = expiry {
                raw.push(2);
                raw.extend(seconds.to_be_bytes());
            }
            let packet_id = (*qos > AtMostOnce).then(|| worlds[to].fresh_id(writes));
            let publish = Publish { retain: *retain, ..message(topic, *qos, "") };
            let publish = Publish { packet_id, payload: &delivery.payload, ..publish };
            worlds[to].raw(writes, &publish_bytes(publish, &raw));
            if let (Some(sent), Some(id)) = (delivery.id, packet_id) {
                assert!(!worlds[to].accepted(writes, id).is_failure());
                worlds[from].puback(reads, sent);
            }
        }
        !came.is_empty()
    }

    /// The retained values that a client is sent which comes now.
    fn values(&mut self, node: usize) -> BTreeMap<String, String> {
        let world = &mut self.worlds[node];
        let client = world.join(v5("looks"));
        world.subscribe(client, "#", AtLeastOnce);
        let of = |delivery: Delivery| (delivery.topic.clone(), delivery.text());
        let values: BTreeMap<_, _> = world.messages(client).into_iter().map(of).collect();
        world.leave(client);
        assert_eq!(values.len(), world.shared.retained_count());
        values
    }

    /// The value of a topic at each node; empty for none.
    fn value(&mut self, topic: &str) -> Vec<String> {
        let count = self.worlds.len();
        (0..count).map(|node| self.values(node).remove(topic).unwrap_or_default()).collect()
    }

    /// The stamp of what a node knows of a topic.
    fn stamp(&self, node: usize, topic: &str) -> Option<Stamp> {
        self.worlds[node].shared.retained().get(topic).and_then(|kept| kept.stamp)
    }

    fn end(self) {
        self.worlds.into_iter().for_each(|mut world| world.end());
    }
}

#[test]
fn nodes_agree_on_the_newer_value_whichever_comes_last() {
    for (hours, newer) in [([0, 0], "second"), ([0, 5], "second"), ([5, 0], "first")] {
        for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
            let mut nodes = Nodes::of(&hours);
            nodes.want(0, ["t"]);
            nodes.want(1, ["t"]);
            let clients = [0, 1].map(|node| {
                let client = nodes.worlds[node].join(v5("client"));
                nodes.worlds[node].subscribe(client, "t", AtLeastOnce);
                client
            });
            nodes.cut(0, true);
            nodes.publish(0, "t", qos, "first");
            nodes.worlds.iter_mut().for_each(|world| world.advance(seconds(1)));
            nodes.publish(1, "t", qos, "second");
            nodes.cut(0, false);
            assert_eq!(nodes.value("t"), [newer; 2], "{hours:?}");
            // Both are messages as well, and none is lost.
            for (node, client) in clients.into_iter().enumerate() {
                let mut texts = nodes.worlds[node].texts(client);
                texts.sort();
                assert_eq!(texts, ["first", "second"]);
            }
            // A value that is published where the other one is known is newer, whatever the clocks say.
            for (node, text) in [(0, "third"), (1, "fourth"), (0, "fifth")] {
                nodes.publish(node, "t", qos, text);
                nodes.settle();
                assert_eq!(nodes.value("t"), [text; 2], "{hours:?}");
            }
            nodes.publish(0, "t", qos, "");
            nodes.settle();
            assert_eq!(nodes.value("t"), [""; 2], "{hours:?}");
            nodes.end();
        }
    }
}

#[test]
fn a_node_that_subscribes_later_gets_the_newer_value_last_or_alone() {
    let mut nodes = Nodes::of(&[0, 5, 1]);
    for (node, topic, text) in [(1, "a", "old"), (0, "a", "new"), (0, "b", "old"), (1, "b", "new")]
    {
        // Each is known to the node of the next.
        nodes.want(0, ["#"]);
        nodes.want(1, ["#"]);
        nodes.publish(node, topic, AtLeastOnce, text);
        nodes.settle();
        nodes.want(0, []);
        nodes.want(1, []);
    }
    for node in [0, 1] {
        nodes.cut(node, true);
    }
    // Of no node is what another one has published sent by a third, so that these two come from two nodes, in either order.
    nodes.publish(0, "c", AtLeastOnce, "of a clock that is behind");
    nodes.publish(1, "c", AtLeastOnce, "of a clock that is ahead");
    let client = nodes.worlds[2].join(v5("client"));
    nodes.worlds[2].subscribe(client, "#", AtLeastOnce);
    nodes.wanted[2] = ["#"].into();
    for node in [1, 0] {
        nodes.cut(node, false);
    }
    nodes.settle();
    let expected = [("a", "new"), ("b", "new"), ("c", "of a clock that is ahead")];
    let expected = expected.map(|(topic, text)| (topic.to_owned(), text.to_owned()));
    assert_eq!(nodes.values(2), expected.clone().into());
    // The ones that are repeated and older than what is known are no news.
    let of = |delivery: &Delivery| (delivery.topic.clone(), delivery.text());
    let mut last = BTreeMap::new();
    nodes.worlds[2].messages(client).iter().map(of).for_each(|(topic, text)| {
        last.insert(topic, text);
    });
    assert_eq!(last, expected.into());
    nodes.end();
}

#[test]
fn a_value_that_is_cleared_while_a_node_has_no_subscription_goes_there_once_it_has_one() {
    for qos in [AtMostOnce, AtLeastOnce] {
        for restarts in [&[][..], &[0], &[1], &[0, 1]] {
            let mut nodes = Nodes::of(&[0, 0, 0]);
            nodes.want(1, ["t/#"]);
            // The third node has published an older one, and nothing comes to it.
            nodes.publish(2, "t/a", qos, "older");
            nodes.worlds.iter_mut().for_each(|world| world.advance(seconds(1)));
            nodes.publish(0, "t/a", qos, "x");
            nodes.settle();
            assert_eq!(nodes.value("t/a"), ["x", "x", "older"]);
            nodes.want(1, []);
            nodes.publish(0, "t/a", qos, "");
            nodes.settle();
            assert_eq!(nodes.value("t/a"), ["", "x", "older"]);
            restarts.iter().for_each(|node| nodes.restart(*node));
            let client = nodes.worlds[1].join(v5("client"));
            nodes.worlds[1].subscribe(client, "t/+", AtLeastOnce);
            assert_eq!(nodes.worlds[1].texts(client), ["x"]);
            nodes.want(1, ["t/+"]);
            assert_eq!(nodes.value("t/a"), ["", "", "older"]);
            // It is told that there is none any more, and nothing of the one that is older.
            assert_eq!(nodes.worlds[1].texts(client), [""], "{qos:?} {restarts:?}");
            nodes.want(2, ["#"]);
            assert_eq!(nodes.value("t/a"), [""; 3]);
            nodes.end();
        }
    }
}

#[test]
fn marks_are_neither_sent_to_clients_nor_counted_nor_in_the_way_of_values() {
    for shards in [1, 3] {
        let config = BrokerConfig { retained_max: 2, ..member(0) };
        let mut world = World::keeping(config, shards, true);
        let client = world.join(v5("client"));
        for topic in ["a", "b", "c"] {
            world.publish(client, retained(topic, AtLeastOnce, "x"));
            let id = world.publish(client, retained(topic, AtLeastOnce, "")).unwrap();
            assert_eq!(world.accepted(client, id), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        }
        // Of two retained messages one in four, rounded up.
        let marks = |world: &World| (world.shared.mark_count(), world.shared.marks_dropped());
        assert_eq!(marks(&world), (1, 2));
        for topic in ["d", "e"] {
            let id = world.publish(client, retained(topic, AtLeastOnce, "x")).unwrap();
            assert_eq!(world.accepted(client, id), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        }
        assert_eq!(world.shared.retained_count(), 2);
        let id = world.publish(client, retained("f", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(client, id), ReasonCode::QUOTA_EXCEEDED);
        world.subscribe(client, "#", AtLeastOnce);
        assert_eq!(world.texts(client), ["x", "x"]);
        assert!(world.shared.retained_message(world.now, "c").is_none());
        world.restart(world.shards.len() % 3 + 1);
        assert_eq!((world.shared.retained_count(), marks(&world).0), (2, 1));
        world.advance(MARK_AGE + seconds(1));
        assert_eq!((world.shared.retained_count(), marks(&world).0), (2, 0));
        world.end();
    }
}

#[test]
fn a_client_is_sent_no_stamp_and_is_not_believed_one() {
    let (mut others, mut forged) = (Vec::new(), Vec::new());
    put_user_property("a", "1", &mut others).unwrap();
    let stamp = "7fffffffffffffff-ffffffffffffffff";
    put_user_property(RETAINED_PROPERTY, stamp, &mut forged).unwrap();
    let forged = [&forged[..], &others, &forged].concat();
    for (shards, size) in [(1, 1), (3, 1), (1, 50_000), (3, 50_000)] {
        let mut world = World::keeping(member(7), shards, false);
        let (publisher, client) = (world.join(v5("publisher")), world.join(v5("client")));
        let away = world.join(kept("away"));
        for at in [client, away] {
            world.subscribe(at, "t", AtLeastOnce);
        }
        world.cut(away);
        let texts = ["x", "y"].map(|letter| letter.repeat(size));
        for (text, raw) in texts.iter().zip([&forged, &others]) {
            let packet_id = Some(world.fresh_id(publisher));
            let publish = Publish { packet_id, ..retained("t", AtLeastOnce, text) };
            world.raw(publisher, &publish_bytes(publish, raw));
        }
        let (late, away) = (world.join(v5("late")), world.join(kept("away")));
        world.subscribe(late, "t", AtLeastOnce);
        for (at, expected) in [(client, &texts[..]), (away, &texts), (late, &texts[1..])] {
            let got = world.messages(at);
            assert_eq!(got.iter().map(Delivery::text).collect::<Vec<_>>(), expected);
            assert!(got.iter().all(|it| it.forwarded == others), "{got:?}");
        }
        world.end();
    }
}

#[test]
fn what_is_repeated_is_no_news_and_what_was_lost_comes() {
    for qos in [AtMostOnce, AtLeastOnce] {
        let mut nodes = Nodes::of(&[0, 0]);
        nodes.want(1, ["#"]);
        for topic in ["a", "b", "c"] {
            nodes.publish(0, topic, qos, "x");
        }
        nodes.settle();
        let client = nodes.worlds[1].join(v5("client"));
        nodes.worlds[1].subscribe(client, "#", AtLeastOnce);
        assert_eq!(nodes.worlds[1].texts(client).len(), 3);
        nodes.cut(0, true);
        nodes.publish(0, "b", qos, "y");
        nodes.publish(0, "c", qos, "");
        // A message that waits with QoS 0 goes with the process.
        nodes.restart(0);
        nodes.cut(0, false);
        let mut came: Vec<_> = nodes.worlds[1].messages(client);
        came.sort_by(|one, other| one.topic.cmp(&other.topic));
        let came: Vec<_> = came.iter().map(|it| (&*it.topic, it.text())).collect();
        assert_eq!(came, [("b", "y".to_owned()), ("c", String::new())], "{qos:?}");
        let expected = [("a", "x"), ("b", "y")].map(|(one, two)| (one.into(), two.into()));
        assert_eq!(nodes.values(1), expected.into());
        nodes.end();
    }
}

#[test]
fn a_member_whose_messages_were_dropped_gets_the_last_value_of_each_topic() {
    for qos in [AtMostOnce, AtLeastOnce] {
        let mut nodes = Nodes::of(&[0, 0]);
        let overflow = Overflow::DropOldest;
        nodes.session = SessionConfig { queue_messages_max: 10, overflow, ..peer() };
        nodes.want(1, ["#"]);
        let (reads, _) = nodes.links[&(0, 1)].ends.unwrap();
        nodes.cut(0, true);
        nodes.worlds[0].room(reads, 0);
        for number in 0..200 {
            let (topic, text) = (format!("t/{}", number % 100), format!("{number:01000}"));
            nodes.publish(0, &topic, qos, &text);
        }
        nodes.publish(0, "t/7", qos, "");
        assert!(nodes.worlds[0].shards.iter().any(|it| it.statistics().dropped.queue_full > 0));
        nodes.worlds[0].room(reads, usize::MAX);
        nodes.cut(0, false);
        let values = nodes.values(1);
        assert_eq!(values.len(), 99);
        assert_eq!(values, nodes.values(0));
        nodes.end();
    }
}

#[test]
fn a_node_that_has_lost_all_is_sent_it_again() {
    let mut nodes = Nodes::of(&[0, 0]);
    nodes.want(1, ["t/#"]);
    for (topic, qos) in [("t/a", AtMostOnce), ("t/b", AtLeastOnce), ("other", AtLeastOnce)] {
        nodes.publish(0, topic, qos, "x");
    }
    nodes.settle();
    let (reads, _) = nodes.links[&(0, 1)].ends.unwrap();
    let mut empty = World::new(member(1), 2);
    let writes = empty.join_with(kept("from 0"), peer());
    std::mem::replace(&mut nodes.worlds[1], empty).end();
    nodes.links.get_mut(&(0, 1)).unwrap().ends = Some((reads, writes));
    nodes.links.get_mut(&(1, 0)).unwrap().is_cut = true;
    nodes.settle();
    assert_eq!(nodes.values(1).len(), 0);
    let (shard, key) = nodes.worlds[0].key_of(reads);
    let now = nodes.worlds[0].now;
    nodes.worlds[0].shards[shard].repeat_retained(now, key);
    nodes.worlds[0].pump();
    nodes.settle();
    let expected = ["t/a", "t/b"].map(|topic| (topic.to_owned(), "x".to_owned()));
    assert_eq!(nodes.values(1), expected.into());
    nodes.end();
}

#[test]
fn an_older_value_does_not_come_back_in_the_place_of_one_that_expired() {
    let mut nodes = Nodes::of(&[0, 0]);
    nodes.publish(1, "t", AtLeastOnce, "older");
    nodes.worlds.iter_mut().for_each(|world| world.advance(seconds(1)));
    nodes.want(1, ["t"]);
    nodes.cut(0, true);
    let client = nodes.worlds[0].join(v5("client"));
    let bytes = publish_bytes(retained("t", AtMostOnce, "x"), &[2, 0, 0, 0, 10]);
    nodes.worlds[0].raw(client, &bytes);
    for _ in 0..2 {
        nodes.worlds.iter_mut().for_each(|world| world.advance(seconds(10)));
        assert_eq!((nodes.values(0).len(), nodes.worlds[0].shared.mark_count()), (0, 1));
        nodes.restart(0);
    }
    nodes.want(0, ["t"]);
    nodes.cut(0, false);
    assert_eq!(nodes.value("t"), [""; 2]);
    nodes.end();
}

#[test]
fn a_value_of_a_time_before_there_were_other_nodes_is_older_than_all_since_and_known_again() {
    let alone = BrokerConfig { member: None, ..member(0) };
    let mut world = World::keeping(alone, 3, false);
    let publisher = world.join(v5("publisher"));
    for topic in ["a", "b", "c"] {
        world.publish(publisher, retained(topic, AtLeastOnce, "before"));
    }
    world.publish(publisher, retained("c", AtLeastOnce, ""));
    assert_eq!((world.shared.retained_count(), world.shared.mark_count()), (2, 0));
    world.restart_with(member(0), 2);
    let mut nodes = Nodes::of(&[0, 0]);
    nodes.worlds[0].end();
    nodes.worlds[0] = world;
    nodes.publish(1, "a", AtLeastOnce, "new");
    for node in [0, 1] {
        nodes.want(node, ["#"]);
    }
    assert_eq!(nodes.value("a"), ["new"; 2]);
    assert_eq!(nodes.value("b"), ["before"; 2]);
    let client = nodes.worlds[1].join(v5("client"));
    nodes.worlds[1].subscribe(client, "b", AtLeastOnce);
    nodes.restart(0);
    nodes.settle();
    assert_eq!(nodes.worlds[1].texts(client), ["before"], "as a retained one, and no more");
    nodes.publish(0, "b", AtLeastOnce, "");
    nodes.settle();
    assert_eq!(nodes.value("b"), [""; 2]);
    nodes.end();
}

#[test]
fn nodes_that_change_and_clear_values_in_any_order_agree_in_the_end() {
    let seeds = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seeds.map_or(0..40, |seed: u64| seed..seed + 1) {
        try_seed(seed);
    }
}

fn try_seed(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let count = random.random_range(2..=4);
    let hours: Vec<u64> = (0..count).map(|_| random.random_range(0..=12)).collect();
    let mut nodes = Nodes::of(&hours);
    let (topics, filters) = (["t/a", "t/b", "t/c/d"], ["t/a", "t/#", "t/+", "t/c/#"]);
    // The values by their stamps.
    let mut published: BTreeMap<(usize, Stamp), String> = BTreeMap::new();
    for step in 0..random.random_range(10..80) {
        let node = random.random_range(0..count);
        match random.random_range(0..100) {
            0..50 => {
                let at = random.random_range(0..topics.len());
                let qos = [AtMostOnce, AtLeastOnce, ExactlyOnce][random.random_range(0..3)];
                let text =
                    if random.random_range(0..3) == 0 { String::new() } else { step.to_string() };
                let before = nodes.stamp(node, topics[at]);
                nodes.publish(node, topics[at], qos, &text);
                let stamp = nodes.stamp(node, topics[at]).expect("it has one");
                assert!(Some(stamp) > before, "seed {seed}, step {step}: the later cause is newer");
                let former = published.insert((at, stamp), text);
                assert_eq!(former, None, "seed {seed}, step {step}: two have one stamp");
            }
            50..60 => {
                let filters = filters.into_iter().filter(|_| random.random_range(0..2) == 0);
                nodes.wanted[node] = filters.collect();
            }
            60..72 => {
                let is_cut = random.random_range(0..2) == 0;
                nodes.cut(node, is_cut);
            }
            72..82 => nodes.restart(node),
            82..90 => nodes.worlds[node].advance(seconds(random.random_range(0..4000))),
            _ => {
                let other = (node + random.random_range(1..count)) % count;
                nodes.carry(node, other);
            }
        }
    }
    nodes.links.values_mut().for_each(|link| link.is_cut = false);
    nodes.wanted = vec![["t/#"].into(); count];
    nodes.settle();
    let mut expected = BTreeMap::new();
    for (at, topic) in topics.iter().enumerate() {
        let all = published.keys().filter(|(of, _)| *of == at);
        let Some(newest) = all.max_by_key(|(_, stamp)| *stamp) else { continue };
        if !published[newest].is_empty() {
            expected.insert((*topic).to_owned(), published[newest].clone());
        }
    }
    for node in 0..count {
        assert_eq!(nodes.values(node), expected, "seed {seed}, node {node} of {count}");
    }
    nodes.end();
}

#[test]
fn a_leafs_stamp_is_believed_by_its_relay_and_handed_on_to_it() {
    let mut world = World::keeping(member(0), 2, false);
    let leaf = SessionConfig { leaf: std::num::NonZeroU64::new(1), ..SessionConfig::default() };
    let from = world.join_with(kept("from the leaf"), leaf.clone());
    let client = world.join(v5("client"));
    let stamp = |world: &World| world.shared.retained().get("t").and_then(|kept| kept.stamp);
    let publish = |world: &mut World, stamp: Stamp, text: &str| {
        let raw = Stamped { stamp, is_repeated: false }.put(&[]);
        let packet_id = Some(world.fresh_id(from));
        let publish = Publish { retain: true, packet_id, ..message("t", AtLeastOnce, text) };
        world.raw(from, &publish_bytes(publish, &raw));
    };
    world.publish(client, Publish { retain: true, ..message("t", AtLeastOnce, "here") });
    let own = stamp(&world).expect("it is stamped");
    publish(&mut world, Stamp { time: own.time - 1, node: 7 }, "older");
    assert_eq!(stamp(&world), Some(own));
    let newer = Stamp { time: own.time + 1, node: 7 };
    publish(&mut world, newer, "newer");
    assert_eq!(stamp(&world), Some(newer));
    // Another leaf is sent the value with the stamp that its node gave it.
    let leaf = SessionConfig { leaf: std::num::NonZeroU64::new(2), ..leaf };
    let to = world.join_with(kept("$/to/another"), leaf);
    world.subscribe(to, "t", AtLeastOnce);
    let came = world.messages(to);
    assert_eq!(came.len(), 1);
    let stamped = Stamped::of(&came[0].forwarded).expect("it has its stamp");
    assert_eq!((stamped.stamp, came[0].text()), (newer, "newer".to_owned()));
    world.end();
}

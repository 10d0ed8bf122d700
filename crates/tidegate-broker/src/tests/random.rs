//! Clients that come, go, stall and lose packets at random: nothing acknowledged is lost, QoS 2 comes once, the order stays.

use std::collections::{HashSet, VecDeque};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::{Admission, Batch};

/// A publisher that keeps to its side of the protocol.
struct Publisher {
    connect: Connect,
    at: Option<At>,
    count: usize,
    id: u16,
    /// Not acknowledged to the end.
    pending: Vec<Pending>,
    /// Ever published with QoS 1 or 2.
    reliable: Vec<String>,
    /// Told not to have been accepted.
    refused: Vec<String>,
}

struct Pending {
    id: PacketId,
    topic: usize,
    qos: QoS,
    text: String,
    released: bool,
}

/// A subscriber that keeps to its side of the protocol, at its leisure.
struct Subscriber {
    connect: Connect,
    at: Option<At>,
    owed: VecDeque<Packet<'static>>,
    /// QoS 2 identifiers that it has and that were not released.
    received: HashSet<PacketId>,
    texts: Vec<String>,
}

const TOPICS: [&str; 3] = ["t/0", "t/1", "other"];

impl Publisher {
    fn send(&self, world: &mut World, index: usize, dup: bool) {
        let Some(at) = self.at else { return };
        let pending = &self.pending[index];
        if pending.released {
            world.pubrel(at, pending.id);
            return;
        }
        let publish = message(TOPICS[pending.topic], pending.qos, &pending.text);
        world.send(at, Packet::Publish(Publish { dup, packet_id: Some(pending.id), ..publish }));
    }

    fn note(&mut self, world: &mut World) {
        let Some(at) = self.at else { return };
        for got in world.take(at) {
            match got {
                Other(Packet::Puback(ack) | Packet::Pubrec(ack)) if ack.reason.is_failure() => {
                    assert_eq!(ack.reason, ReasonCode::QUOTA_EXCEEDED);
                    let at = self.pending.iter().position(|p| p.id == ack.packet_id);
                    self.refused.extend(at.map(|at| self.pending.remove(at).text));
                }
                Other(Packet::Puback(ack) | Packet::Pubcomp(ack)) => {
                    self.pending.retain(|pending| pending.id != ack.packet_id);
                }
                Other(Packet::Pubrec(ack)) => {
                    for pending in self.pending.iter_mut().filter(|p| p.id == ack.packet_id) {
                        pending.released = true;
                    }
                    world.pubrel(at, ack.packet_id);
                }
                Other(Packet::Connack(_)) => {}
                got => panic!("{got:?}"),
            }
        }
    }

    fn come(&mut self, world: &mut World) {
        if self.at.is_some_and(|at| world.is_open(at)) {
            return;
        }
        self.note(world); // before MQTT 5 a refusal ends the connection
        self.at = Some(world.connect_mute(self.connect.clone()));
        (0..self.pending.len()).for_each(|index| self.send(world, index, true));
    }
}

impl Subscriber {
    fn note(&mut self, world: &mut World) {
        let Some(at) = self.at else { return };
        for got in world.take(at) {
            match got {
                Published(delivery) => {
                    let ack = |id| Ack::new(id, ReasonCode::SUCCESS);
                    let is_new = match (delivery.qos, delivery.id) {
                        (AtLeastOnce, Some(id)) => {
                            self.owed.push_back(Packet::Puback(ack(id)));
                            true
                        }
                        (ExactlyOnce, Some(id)) => {
                            self.owed.push_back(Packet::Pubrec(ack(id)));
                            self.received.insert(id)
                        }
                        _ => true,
                    };
                    if is_new {
                        self.texts.push(delivery.text());
                    }
                }
                Other(Packet::Pubrel(ack)) => {
                    self.received.remove(&ack.packet_id);
                    let ack = Ack::new(ack.packet_id, ReasonCode::SUCCESS);
                    self.owed.push_back(Packet::Pubcomp(ack));
                }
                Other(Packet::Connack(connack)) => assert!(connack.session_present),
                got => panic!("{got:?}"),
            }
        }
    }

    fn answer(&mut self, world: &mut World, most: usize) {
        let Some(at) = self.at else { return };
        for _ in 0..most {
            let Some(packet) = self.owed.pop_front() else { return };
            world.send(at, packet);
        }
    }

    fn come(&mut self, world: &mut World) {
        if self.at.is_none() {
            self.at = Some(world.connect_mute(self.connect.clone()));
            self.owed.clear();
        }
    }

    fn go(&mut self, world: &mut World) {
        if let Some(at) = self.at.take() {
            world.cut(at);
            self.owed.clear();
        }
    }
}

/// Lets everything pass.
#[derive(Debug)]
struct Pass;

impl Admission for Pass {
    fn admit(&mut self, _: Instant, _: &Identity, _: &mut Batch) {}
}

fn run(seed: u64, shards: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    // A third of the nodes have too little memory for all that waits.
    let payload_bytes_max = if seed % 3 == 1 { 300_000 } else { 20 << 20 };
    let mut world = World::new(BrokerConfig { payload_bytes_max, ..settings() }, shards);
    if seed.is_multiple_of(3) {
        for shard in &mut world.shards {
            shard.set_admission(Some(Box::new(Pass)));
        }
    }
    let world = &mut world;
    let mut connect = |name: String| {
        let mut connect = kept(&name);
        if random.random_ratio(1, 3) {
            return Connect { clean_start: false, ..v4(&name) };
        }
        connect.properties.receive_maximum =
            NonZeroU16::new([1, 2, 5, 100][random.random_range(0..4)]);
        connect.properties.topic_alias_maximum = random.random_range(0..3);
        connect
    };
    let mut publishers: Vec<Publisher> = (0..3)
        .map(|n| Publisher {
            connect: connect(format!("p{n}")),
            at: None,
            count: 0,
            id: 0,
            pending: Vec::new(),
            reliable: Vec::new(),
            refused: Vec::new(),
        })
        .collect();
    let mut subscribers: Vec<Subscriber> = (0..3)
        .map(|n| {
            let connect = connect(format!("s{n}"));
            let at = world.mute(connect.clone());
            world.subscribe(at, "t/+", ExactlyOnce);
            world.subscribe(at, "other", ExactlyOnce);
            let (owed, received, texts) = Default::default();
            Subscriber { connect, at: Some(at), owed, received, texts }
        })
        .collect();
    for _ in 0..400 {
        let which = random.random_range(0..3);
        let (publisher, subscriber) = (&mut publishers[which], &mut subscribers[which]);
        match random.random_range(0..20) {
            0..10 => {
                publisher.come(world);
                publisher.note(world);
                let at = publisher.at.unwrap();
                if publisher.pending.len() > 30 {
                    continue;
                }
                let topic = random.random_range(0..TOPICS.len());
                let qos = [AtMostOnce, AtLeastOnce, ExactlyOnce][random.random_range(0..3)];
                let size = [10, 10, 10, 5_000, 12_000, 70_000][random.random_range(0..6)];
                let mut text = format!("{which} {topic} {} {} ", qos as u8, publisher.count);
                text.extend(std::iter::repeat_n(' ', size));
                publisher.count += 1;
                if qos == AtMostOnce {
                    world.publish(at, message(TOPICS[topic], qos, &text));
                    continue;
                }
                publisher.id = publisher.id % 60_000 + 1;
                let id = id(publisher.id);
                publisher.reliable.push(text.clone());
                publisher.pending.push(Pending { id, topic, qos, text, released: false });
                if random.random_ratio(1, 15) {
                    // The connection breaks within the packet.
                    let publish =
                        message(TOPICS[topic], qos, &publisher.pending.last().unwrap().text);
                    let mut bytes = Vec::new();
                    Packet::Publish(Publish { packet_id: Some(id), ..publish })
                        .encode(publisher.connect.version, &mut bytes)
                        .unwrap();
                    world.raw(at, &bytes[..random.random_range(0..bytes.len())]);
                    world.cut(at);
                    publisher.at = None;
                } else {
                    publisher.send(world, publisher.pending.len() - 1, false);
                }
            }
            10 => {
                // With or without having seen the answers.
                if random.random() {
                    publisher.note(world);
                }
                if let Some(at) = publisher.at.take() {
                    world.cut(at);
                }
            }
            11 => {
                if random.random() {
                    subscriber.note(world);
                }
                subscriber.go(world);
            }
            12 => {
                // The former connection is taken over, if it is still there.
                subscriber.note(world);
                subscriber.at = None;
                subscriber.come(world);
            }
            13 => {
                if let Some(at) = subscriber.at {
                    world.room(at, [0, 1, 100, 10_000, usize::MAX][random.random_range(0..5)]);
                }
            }
            14 => world.advance(Duration::from_millis(random.random_range(0..2_000))),
            _ => {
                subscriber.come(world);
                subscriber.note(world);
                subscriber.answer(world, random.random_range(0..10));
            }
        }
    }
    for _ in 0..2_000 {
        let mut is_quiet = true;
        for publisher in &mut publishers {
            publisher.come(world);
            publisher.note(world);
            is_quiet &= publisher.pending.is_empty();
        }
        for subscriber in &mut subscribers {
            subscriber.come(world);
            world.room(subscriber.at.unwrap(), usize::MAX);
            subscriber.note(world);
            is_quiet &= subscriber.owed.is_empty();
            subscriber.answer(world, 1_000);
        }
        world.advance(seconds(1));
        if is_quiet {
            break;
        }
    }
    for (name, subscriber) in subscribers.iter().enumerate() {
        for (which, publisher) in publishers.iter().enumerate() {
            assert!(publisher.pending.is_empty(), "unanswered");
            for topic in 0..TOPICS.len() {
                let of = |qos: u8| -> Vec<usize> {
                    let start = format!("{which} {topic} {qos} ");
                    let texts = subscriber.texts.iter();
                    texts
                        .filter_map(|text| text.strip_prefix(&start)?.trim().parse().ok())
                        .collect()
                };
                let none = of(0);
                assert!(none.is_sorted_by(|a, b| a < b), "QoS 0 at {name}: {none:?}");
                let two = of(2);
                assert!(two.is_sorted_by(|a, b| a < b), "QoS 2 at {name}: {two:?}");
                let mut seen = HashSet::new();
                let one: Vec<usize> =
                    of(1).into_iter().filter(|number| seen.insert(*number)).collect();
                assert!(one.is_sorted(), "QoS 1 at {name}: {one:?}");
            }
        }
        let mut texts = HashSet::new();
        for text in &subscriber.texts {
            let qos = text.split(' ').nth(2).unwrap();
            assert!(texts.insert(text) || qos == "1", "twice at {name}");
        }
        for publisher in &publishers {
            for text in &publisher.reliable {
                let refused = publisher.refused.contains(text);
                let there = texts.contains(text);
                let what = text.trim();
                assert!(there || refused, "{name} lacks {what}");
                // A QoS 1 message may be refused when it comes again.
                let is_once = what.split(' ').nth(2) == Some("2");
                assert!(!(there && refused && is_once), "{what} is refused and at {name}");
            }
        }
    }
    for subscriber in &mut subscribers {
        subscriber.go(world);
    }
    world.end();
}

#[test]
fn whatever_happens_qos_1_comes_at_least_and_qos_2_exactly_once_and_in_order() {
    for seed in 0..40 {
        for shards in [1, 3] {
            println!("seed {seed}, {shards} shards");
            run(seed, shards);
        }
    }
}

#[test]
#[ignore = "takes minutes"]
fn whatever_happens_for_long() {
    for seed in 40..2_000 {
        println!("seed {seed}");
        run(seed, [1, 2, 3][seed as usize % 3]);
    }
}

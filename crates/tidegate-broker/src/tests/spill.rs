//! Messages that find no room in memory wait on disk.

use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

use super::*;
use crate::{
    Dropped, Overflow,
    spill::{SPILLED_BYTES, Spill},
};
use tidegate_schedule::Policy;

fn config(queue_bytes_max: u64) -> SessionConfig {
    SessionConfig {
        queue_bytes_max,
        overflow: Overflow::SpillDisconnect,
        overflow_qos0: Overflow::SpillDisconnect,
        ..refusing()
    }
}

/// Settings of a node whose sessions spill, those that it restores too.
fn node(queue_bytes_max: u64) -> BrokerConfig {
    BrokerConfig { session: config(queue_bytes_max), ..settings() }
}

fn dropped(world: &World) -> Dropped {
    let mut sum = Dropped::default();
    world.shards.iter().for_each(|shard| sum.add(shard.statistics().dropped));
    sum
}

fn sum(world: &World, count: impl Fn(&crate::Statistics) -> u64) -> u64 {
    world.shards.iter().map(|shard| count(&shard.statistics())).sum()
}

/// A text of so many bytes that begins with its number.
fn text(number: usize, bytes: usize) -> String {
    format!("{number:<bytes$}")
}

fn numbers(messages: &[Delivery], topic: &str) -> Vec<usize> {
    let of_topic = messages.iter().filter(|message| message.topic == topic);
    of_topic.map(|message| message.text().trim().parse().expect("a number")).collect()
}

#[test]
fn messages_without_room_wait_on_disk_and_come_back_in_order() {
    for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
        each_with(node(40_000), |world| {
            let slow = [world.join(kept("a")), world.join(kept("b"))];
            for s in slow {
                world.subscribe(s, "#", ExactlyOnce);
                world.room(s, 1);
            }
            let p = world.join(v5("p"));
            for number in 0..300 {
                let bytes = [100, 3_000, 15_000][number % 3];
                let topic = format!("{}", number % 2);
                world.publish(p, message(&topic, qos, &text(number, bytes)));
                // Two queues, what is in flight to each of them, and places on disk.
                let most = 2 * (40_000 + 30_000) + 400 * SPILLED_BYTES;
                assert!(world.shared.budget().used() < most, "{}", world.shared.budget().used());
            }
            assert!(world.is_open(p) && !world.is_paused(p));
            assert!(world.disk.bytes() > 1_000_000, "{}", world.disk.bytes());
            // Once for both of them; where they are on two shards, each may be the first.
            let copies = world.shards.len().min(2) as u64;
            assert!(world.disk.writes() <= 300 * copies, "{}", world.disk.writes());
            assert_eq!(sum(world, |s| s.spilled), world.disk.writes());
            for s in slow {
                world.room(s, usize::MAX);
                let got = world.messages(s);
                for topic in ["0", "1"] {
                    let expected: Vec<usize> =
                        (0..300).filter(|n| (n % 2).to_string() == topic).collect();
                    assert_eq!(numbers(&got, topic), expected, "{qos:?}");
                }
            }
            assert_eq!((world.disk.bytes(), dropped(world).total()), (0, 0));
        });
    }
}

#[test]
fn a_small_message_waits_neither_for_large_ones_on_disk_nor_for_the_disk() {
    each_with(node(60_000), |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "#", AtLeastOnce);
        world.room(s, 1);
        let p = world.join(v5("p"));
        for number in 0..50 {
            world.publish(p, message("image", AtLeastOnce, &text(number, 20_000)));
        }
        assert!(world.disk.bytes() > 800_000);
        // The disk answers nothing from here on.
        world.disk.set_deaf(true);
        world.publish(p, message("alarm", AtLeastOnce, "fire"));
        world.publish(p, message("image", AtLeastOnce, "of the topic of the images"));
        world.room(s, 70_000);
        let got = world.messages(s);
        let place = got.iter().position(|message| message.topic == "alarm").expect("it came");
        assert!(place <= 2, "{got:?}");
        world.disk.set_deaf(false);
        world.room(s, usize::MAX);
        let rest = world.texts(s);
        assert_eq!(rest.last().map(String::as_str), Some("of the topic of the images"));
        assert_eq!(got.len() + rest.len(), 52);
    });
}

#[test]
fn an_absent_subscriber_finds_all_of_it_and_another_connection_goes_on() {
    each_with(node(10_000), |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "#", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        for number in 0..100 {
            world.publish(p, message("t", AtLeastOnce, &text(number, 2_000)));
        }
        // It takes half of it, then another connection comes for the session while some is on its way from the disk.
        let s = world.connect(kept("s"));
        world.room(s, 100_000);
        let mut got = world.messages(s);
        world.disk.set_deaf(true);
        world.room(s, 100_000);
        got.extend(world.messages(s));
        let next = world.connect(kept("s"));
        world.disk.set_deaf(false);
        world.pump();
        got.extend(world.messages(next));
        let mut all = numbers(&got, "t");
        all.dedup(); // sent again, since it was not acknowledged
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert_eq!(dropped(world).total(), 0);
    });
}

#[test]
fn messages_of_a_session_on_disk_go_with_it() {
    each_with(node(10_000), |world| {
        for ends in [0, 1, 2] {
            let s = world.join(if ends == 0 { v5("s") } else { kept("s") });
            world.subscribe(s, "#", AtLeastOnce);
            world.room(s, 1);
            let p = world.join(v5("p"));
            for number in 0..20 {
                world.publish(p, message("t", AtLeastOnce, &text(number, 9_000)));
            }
            assert!(world.disk.bytes() > 100_000);
            match ends {
                0 => world.cut(s),
                1 => drop(world.connect(v5("s"))),
                _ => {
                    world.cut(s);
                    world.advance(seconds(3_601));
                }
            }
            assert_eq!(world.disk.bytes(), 0, "{ends}");
        }
    });
}

#[test]
fn a_message_expires_on_disk_too() {
    each_with(node(10_000), |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "#", AtLeastOnce);
        world.room(s, 1);
        let p = world.join(v5("p"));
        for number in 0..40 {
            // Message Expiry Interval: every second one 5 seconds, the others 500.
            let seconds = if number % 2 == 0 { 5_u32 } else { 500 };
            let raw = [&[2_u8][..], &seconds.to_be_bytes()].concat();
            let text = text(number, 4_000);
            let bytes = publish_bytes(
                Publish { packet_id: Some(id(1)), ..message("t", AtLeastOnce, &text) },
                &raw,
            );
            world.raw(p, &bytes);
        }
        world.advance(seconds(20));
        world.room(s, usize::MAX);
        let got = world.messages(s);
        let left = got.iter().filter(|message| message.expiry != Some(480)).count();
        assert!(left <= 2, "in the output or in flight before it expired: {left}");
        let odd: Vec<usize> =
            numbers(&got, "t").into_iter().filter(|number| number % 2 == 1).collect();
        assert_eq!(odd, (0..40).filter(|number| number % 2 == 1).collect::<Vec<_>>());
        let expired = dropped(world);
        assert_eq!((expired.expired as usize, expired.total() as usize), (20 - left, 20 - left));
    });
}

#[test]
fn where_the_disk_takes_nothing_the_subscriber_is_disconnected_and_publishers_are_told() {
    for fails in [true, false] {
        each_with(node(20_000), |world| {
            let s = world.join(kept("s"));
            world.subscribe(s, "#", AtLeastOnce);
            world.room(s, 1);
            let p = world.join(v5("p"));
            let send = |world: &mut World, number| {
                let id = world.publish(p, message("t", AtLeastOnce, &text(number, 9_000)));
                world.accepted(p, id.expect("it has one"))
            };
            let mut accepted = 0;
            for number in 0..10 {
                accepted += usize::from(send(world, number) == ReasonCode::SUCCESS);
            }
            assert_eq!(accepted, 10);
            let full = world.disk.bytes();
            assert!(full > 20_000);
            if fails {
                world.disk.set_failing(true);
            } else {
                world.disk.set_bytes_max(full + 1);
            }
            // QoS 0 messages are dropped, which changes nothing else.
            world.publish(p, message("t", AtMostOnce, &text(99, 9_000)));
            assert_eq!(dropped(world), Dropped { spill_full: 1, ..Default::default() });
            assert!(world.is_open(s));
            // One that finds no place is kept, as it is acknowledged; then they are refused.
            assert_eq!(send(world, 10), ReasonCode::SUCCESS);
            assert!(!world.is_open(s));
            assert_eq!(send(world, 11), ReasonCode::QUOTA_EXCEEDED);
            assert_eq!(sum(world, |s| s.overflow_disconnects), 1);
            assert!(sum(world, |s| s.spill_failures) >= 2);
            // Once there is room and all of it has come back, it is as before.
            world.disk.set_failing(false);
            world.disk.set_bytes_max(1 << 30);
            let s = world.join(kept("s"));
            let mut got = numbers(&world.messages(s), "t");
            got.dedup();
            assert_eq!(got, (0..11).collect::<Vec<_>>());
            world.room(s, 1);
            for number in 12..30 {
                assert_eq!(send(world, number), ReasonCode::SUCCESS);
            }
            assert!(world.is_open(s) && world.disk.bytes() > 0);
            world.room(s, usize::MAX);
            assert_eq!(numbers(&world.messages(s), "t"), (12..30).collect::<Vec<_>>());
        });
    }
}

#[test]
fn without_a_disk_the_fallback_holds() {
    let mut world = World::new(node(20_000), 1);
    world.shards[0].set_spill(None);
    let s = world.join(kept("s"));
    world.subscribe(s, "#", AtLeastOnce);
    world.room(s, 1);
    let p = world.join(v5("p"));
    for number in 0..10 {
        world.publish(p, message("t", AtLeastOnce, &text(number, 9_000)));
    }
    assert!(!world.is_open(s) && world.is_open(p));
    assert_eq!(world.disk.writes(), 0);
    world.end();
}

#[test]
fn a_backlog_waits_on_disk_after_a_restart_whatever_is_usual_for_sessions() {
    // As of a sink, whose own settings are known once it is back.
    const COUNT: usize = 500;
    let usual = SessionConfig {
        queue_bytes_max: 10_000,
        queue_messages_max: 50,
        overflow: Overflow::Disconnect,
        ..refusing()
    };
    let own = SessionConfig {
        queue_messages_max: 100_000,
        overflow: Overflow::SpillDisconnect,
        ..usual.clone()
    };
    let config = BrokerConfig { session: usual, ..settings() };
    for (shards, is_gated) in [(1, false), (3, true)] {
        let mut world = World::keeping(config.clone(), shards, is_gated);
        world.beyond = 1 << 20;
        let sink = world.join_with(kept("sink"), own.clone());
        world.subscribe(sink, "t/#", AtLeastOnce);
        world.cut(sink);
        let p = world.join_with(v5("p"), own.clone());
        let texts: Vec<String> = (0..COUNT).map(|number| format!("{number:0>66}")).collect();
        for (number, text) in texts.iter().enumerate() {
            let topic = format!("t/{}", number % 3);
            let id = world.publish(p, message(&topic, AtLeastOnce, text)).unwrap();
            assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
        }
        for shards in [2, 1] {
            world.restart(shards);
            let sessions = world.shards.iter().flat_map(|shard| shard.sessions(usize::MAX));
            let report = sessions.max_by_key(|report| report.queued).unwrap();
            assert_eq!(report.queued, COUNT);
            assert!(report.queued_bytes <= 10_000, "{report:?}");
            let used = world.shared.budget().used();
            assert!(used <= 10_000 + COUNT as u64 * SPILLED_BYTES, "{used}");
        }
        let sink = world.join_with(kept("sink"), own.clone());
        assert_eq!(world.texts(sink), texts);
        world.end();
    }
}

#[test]
fn unreadable_messages_on_disk_are_counted_and_the_rest_arrives() {
    each_with(node(10_000), |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "#", AtMostOnce);
        world.room(s, 1);
        let p = world.join(v5("p"));
        for number in 0..20 {
            world.publish(p, message("t", AtMostOnce, &text(number, 9_000)));
        }
        world.disk.set_failing(true);
        world.room(s, 60_000);
        let before = numbers(&world.messages(s), "t");
        world.disk.set_failing(false);
        world.publish(p, message("t", AtMostOnce, &text(20, 9_000)));
        world.room(s, usize::MAX);
        let after = numbers(&world.messages(s), "t");
        assert!(after.contains(&20), "{before:?} {after:?}");
        let lost = dropped(world).spill_lost as usize;
        assert!(lost > 0 && before.len() + after.len() + lost == 21, "{before:?} {after:?}");
        assert!(before.iter().chain(&after).is_sorted());
    });
}

#[test]
fn the_budget_of_the_node_is_kept_and_nothing_is_refused() {
    let config = BrokerConfig { payload_bytes_max: 400_000, ..node(32 << 20) };
    each_with(config, |world| {
        // Their queues have room for all of it, and the node has not.
        for number in 0..6 {
            let s = world.join(kept(&format!("s{number}")));
            world.subscribe(s, &format!("{number}/#"), AtLeastOnce);
            world.cut(s);
        }
        let p = world.join(v5("p"));
        world.beyond = 600 * SPILLED_BYTES;
        for number in 0..600 {
            let topic = format!("{}/t", number % 6);
            let id = world.publish(p, message(&topic, AtLeastOnce, &text(number, 5_000)));
            assert_eq!(world.accepted(p, id.expect("it has one")), ReasonCode::SUCCESS);
        }
        assert!(world.shared.budget().used() < 400_000 + 600 * SPILLED_BYTES);
        for number in 0..6 {
            let s = world.connect(kept(&format!("s{number}")));
            let expected: Vec<usize> = (0..600).filter(|n| n % 6 == number).collect();
            assert_eq!(numbers(&world.messages(s), &format!("{number}/t")), expected);
        }
        assert_eq!((dropped(world).total(), world.disk.bytes()), (0, 0));
    });
}

#[test]
fn the_rest_of_the_memory_goes_to_disk_when_others_need_it() {
    // A session that is restored, or a topic of another policy, may hold much before the node is full.
    let config = BrokerConfig { payload_bytes_max: 400_000, ..node(32 << 20) };
    each_with(config, |world| {
        let spills = world.join(kept("spills"));
        world.subscribe(spills, "a", AtLeastOnce);
        world.cut(spills);
        let stays = SessionConfig { overflow: Overflow::Disconnect, ..config_of(world) };
        let s = world.join_with(kept("stays"), stays);
        world.subscribe(s, "b", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        world.beyond = 100 * SPILLED_BYTES;
        for (topic, count) in [("a", 50), ("b", 70)] {
            for number in 0..count {
                let id = world.publish(p, message(topic, AtLeastOnce, &text(number, 5_000)));
                let accepted = world.accepted(p, id.expect("it has one"));
                // Of another shard memory is asked for, and is there a moment later.
                assert!(
                    accepted == ReasonCode::SUCCESS
                        || (world.shards.len() > 1 && accepted == ReasonCode::QUOTA_EXCEEDED)
                );
            }
        }
        assert!(world.disk.bytes() > 100_000, "{}", world.disk.bytes());
        let s = world.connect(kept("spills"));
        assert_eq!(numbers(&world.messages(s), "a"), (0..50).collect::<Vec<_>>());
        assert_eq!(dropped(world).total(), 0);
    });
}

fn config_of(world: &World) -> SessionConfig {
    world.shared.config().session.clone()
}

#[test]
fn messages_on_disk_survive_the_process_by_the_journal() {
    for (shards, is_gated, checkpoint) in
        [(1, false, false), (3, true, false), (1, true, true), (3, false, true)]
    {
        let mut world = World::keeping(node(10_000), shards, is_gated);
        for name in ["a", "b"] {
            let s = world.join(kept(name));
            world.subscribe(s, "#", ExactlyOnce);
            world.cut(s);
        }
        let p = world.join(kept("p"));
        for number in 0..100 {
            let qos = [AtLeastOnce, ExactlyOnce][number % 2];
            world.publish(p, message("t", qos, &text(number, 2_000)));
        }
        if checkpoint {
            // Some are sent while the journal is written again, and more come.
            for shard in &mut world.shards {
                shard.begin_checkpoint_now();
                shard.checkpoint_some(20);
            }
            let s = world.connect(kept("a"));
            world.room(s, 50_000);
            world.cut(s);
            for number in 100..120 {
                world.publish(p, message("t", AtLeastOnce, &text(number, 2_000)));
            }
            for _ in 0..100 {
                for shard in &mut world.shards {
                    shard.checkpoint_some(20);
                }
                world.pump();
            }
            let done: u64 =
                world.shards.iter().map(|s| s.journal_counts().unwrap().checkpoints).sum();
            assert_eq!(done, 2 * shards as u64, "with the first of each");
        }
        journal::check(&world);
        assert!(world.disk.bytes() > 50_000);
        world.restart(shards % 3 + 1);
        assert!(world.disk.bytes() > 50_000, "restored messages find no room either");
        assert!(world.shared.budget().used() < 60_000 + 240 * SPILLED_BYTES);
        let count = if checkpoint { 120 } else { 100 };
        for name in ["b", "a"] {
            let s = world.connect(kept(name));
            let got = numbers(&world.messages(s), "t");
            assert!(got.is_sorted(), "{name} {got:?}");
            assert_eq!(got.last(), Some(&(count - 1)));
            assert!(name == "a" && checkpoint || got.len() == count, "{name} {}", got.len());
        }
        world.end();
    }
}

#[test]
fn order_holds_and_nothing_is_lost() {
    for seed in 0..60 {
        let mut random = SmallRng::seed_from_u64(seed);
        let shards = random.random_range(1..4);
        let mut node = node(random.random_range(1..60_000));
        node.session.policy =
            [Policy::None, Policy::default()].choose(&mut random).expect("not empty").clone();
        let keeps = random.random_ratio(1, 2);
        let mut world = if keeps {
            World::keeping(node, shards, random.random())
        } else {
            World::new(node, shards)
        };
        let names: Vec<String> = (0..3).map(|number| format!("s{number}")).collect();
        let mut clients: Vec<At> = names.iter().map(|name| world.join(kept(name))).collect();
        let mut got: Vec<Vec<Delivery>> = vec![Vec::new(); names.len()];
        for &s in &clients {
            world.subscribe(s, "#", ExactlyOnce);
        }
        let mut p = world.join(kept("p"));
        let mut sent: Vec<(String, QoS, usize)> = Vec::new();
        for number in 0..300 {
            match random.random_range(0..10) {
                0..6 => {
                    let topic = format!("t{}", random.random_range(0..3));
                    let bytes = *[10, 2_000, 12_000].choose(&mut random).expect("not empty");
                    let qos = *[AtLeastOnce, ExactlyOnce].choose(&mut random).expect("not empty");
                    world.publish(p, message(&topic, qos, &text(number, bytes)));
                    sent.push((topic, qos, number));
                }
                6 => {
                    let at = random.random_range(0..names.len());
                    let room = *[1, 20_000, 200_000].choose(&mut random).expect("not empty");
                    world.room(clients[at], room);
                }
                7 => {
                    let at = random.random_range(0..names.len());
                    if random.random() {
                        world.cut(clients[at]);
                    }
                    got[at].extend(world.messages(clients[at]));
                    clients[at] = world.connect(kept(&names[at]));
                    world.room(clients[at], random.random_range(1..50_000));
                }
                8 => world.disk.set_deaf(random.random()),
                _ if keeps && random.random_ratio(1, 5) => {
                    world.disk.set_deaf(false);
                    world.pump();
                    for (got, client) in got.iter_mut().zip(&clients) {
                        got.extend(world.messages(*client));
                    }
                    world.restart(random.random_range(1..4));
                    clients = names.iter().map(|name| world.connect(kept(name))).collect();
                    p = world.join(kept("p"));
                }
                _ => world.advance(Duration::from_millis(50)),
            }
        }
        world.disk.set_deaf(false);
        for (at, client) in clients.into_iter().enumerate() {
            world.room(client, usize::MAX);
            world.advance(seconds(60));
            got[at].extend(world.messages(client));
            for topic in ["t0", "t1", "t2"] {
                // Messages that may come again do; each first coming is in order, of each QoS where the process ended
                // (4.6.0-6).
                for qos in [&[AtLeastOnce][..], &[ExactlyOnce], &[AtLeastOnce, ExactlyOnce]] {
                    if keeps && qos.len() == 2 {
                        continue;
                    }
                    let of = sent.iter().filter(|(of, q, _)| of == topic && qos.contains(q));
                    let expected: Vec<usize> = of.map(|(.., number)| *number).collect();
                    let mut seen = std::collections::BTreeSet::new();
                    let mut of_qos = got[at].clone();
                    of_qos.retain(|message| qos.contains(&message.qos));
                    let mut first = numbers(&of_qos, topic);
                    first.retain(|number| seen.insert(*number));
                    assert_eq!(first, expected, "seed {seed}, {}, {topic} {qos:?}", names[at]);
                }
            }
        }
        assert_eq!((world.disk.bytes(), dropped(&world).total()), (0, 0), "seed {seed}");
        world.end();
    }
}

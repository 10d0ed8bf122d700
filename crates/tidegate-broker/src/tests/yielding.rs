//! Under `spill` a client that does not read loses its own oldest messages, before anything is refused to anybody else.

use super::*;
use crate::{Dropped, spill::Spill};

fn of(user: &str, connect: Connect) -> Connect {
    Connect { username: Some(user.to_owned()), ..connect }
}

fn spilling(queue_bytes_max: u64, queue_messages_max: usize) -> SessionConfig {
    SessionConfig { queue_bytes_max, queue_messages_max, ..SessionConfig::default() }
}

/// A message of so many bytes that begins with its number.
fn text(number: usize, bytes: usize) -> String {
    format!("{number:<bytes$}")
}

fn numbers(messages: &[Delivery]) -> Vec<usize> {
    messages.iter().map(|message| message.text().trim().parse().expect("a number")).collect()
}

fn dropped(world: &World) -> Dropped {
    let mut sum = Dropped::default();
    world.shards.iter().for_each(|shard| sum.add(shard.statistics().dropped));
    sum
}

#[test]
fn one_that_does_not_read_loses_its_oldest_and_no_publisher_is_refused() {
    const COUNT: usize = 60;
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Bound {
        Messages,
        Disk,
        /// Its room comes back later than messages go.
        LateDisk,
        Failing,
        NoDisk,
    }
    for bound in [Bound::Messages, Bound::Disk, Bound::LateDisk, Bound::Failing, Bound::NoDisk] {
        for is_there in [true, false] {
            let messages = if bound == Bound::Messages { 20 } else { 100_000 };
            let config = BrokerConfig { session: spilling(30_000, messages), ..settings() };
            each_with(config, |world| {
                match bound {
                    Bound::Disk => world.disk.set_bytes_max(100_000),
                    Bound::LateDisk => {
                        world.disk.set_bytes_max(100_000);
                        world.disk.set_late(true);
                    }
                    Bound::Failing => world.disk.set_failing(true),
                    Bound::NoDisk => {
                        world.shards.iter_mut().for_each(|shard| shard.set_spill(None));
                    }
                    Bound::Messages => {}
                }
                let slow = world.join(kept("slow"));
                world.subscribe(slow, "#", AtLeastOnce);
                if is_there {
                    world.room(slow, 1);
                } else {
                    world.cut(slow);
                }
                let reads = world.join(kept("reads"));
                world.subscribe(reads, "#", AtLeastOnce);
                // A publisher of MQTT 3.1.1 is cut where it is refused.
                let p = world.join(v4("p"));
                for number in 0..COUNT {
                    let id = world.publish(p, message("t", AtLeastOnce, &text(number, 9_000)));
                    assert_eq!(world.accepted(p, id.expect("it has one")), ReasonCode::SUCCESS);
                }
                assert!(world.is_open(p) && (!is_there || world.is_open(slow)), "{bound:?}");
                assert_eq!(numbers(&world.messages(reads)), (0..COUNT).collect::<Vec<_>>());
                world.disk.set_failing(false);
                world.disk.set_late(false);
                let slow = if is_there { slow } else { world.join(kept("slow")) };
                world.room(slow, usize::MAX);
                // Messages in flight are never taken back; all else is the newest, without a gap.
                let mut got = numbers(&world.messages(slow));
                got.dedup();
                let begun = got.iter().zip(0..).take_while(|(got, number)| *got == number).count();
                let rest = &got[begun..];
                let expected: Vec<usize> = (COUNT - rest.len()..COUNT).collect();
                assert_eq!(rest, expected, "{bound:?}");
                let least = if bound == Bound::Messages { 18 } else { 2 };
                assert!(rest.len() >= least && got.len() < COUNT, "{bound:?} {got:?}");
                let (lost, dropped) = ((COUNT - got.len()) as u64, dropped(world));
                let counted =
                    if bound == Bound::Messages { dropped.queue_full } else { dropped.spill_full };
                assert_eq!((counted, dropped.total()), (lost, lost), "{bound:?}");
                assert_eq!(
                    world.shards.iter().map(|s| s.statistics().overflow_disconnects).sum::<u64>(),
                    0
                );
                // It has all of what comes from now on.
                world.publish(p, message("t", AtLeastOnce, &text(COUNT, 9_000)));
                assert_eq!(numbers(&world.messages(slow)), [COUNT]);
            });
        }
    }
}

#[test]
fn disk_whose_room_comes_back_late_costs_two_for_one_at_most() {
    let config = BrokerConfig { session: spilling(30_000, 100_000), ..settings() };
    each_with(config, |world| {
        world.disk.set_bytes_max(400_000);
        world.disk.set_late(true);
        let s = world.join(kept("s"));
        world.subscribe(s, "#", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        let send = |world: &mut World, number| {
            world.publish(p, message("t", AtLeastOnce, &text(number, 9_000)));
        };
        // Memory and disk are full, and the oldest of those in memory have turned over.
        (0..60).for_each(|number| send(world, number));
        let before = dropped(world).total();
        (60..65).for_each(|number| send(world, number));
        let lost = dropped(world).total() - before;
        assert!((5..=10).contains(&lost), "{lost}");
        world.disk.set_late(false);
        let s = world.join(kept("s"));
        let got = numbers(&world.messages(s));
        assert!(got.len() > 20 && got.is_sorted() && got.last() == Some(&64), "{got:?}");
    });
}

#[test]
fn one_identity_leaves_room_on_disk_to_others() {
    const LIMIT: u64 = 1 << 20;
    let session = spilling(20_000, 100_000);
    let config = BrokerConfig { identity_share: 0.75, session, ..settings() };
    each_with(config, |world| {
        world.disk.set_bytes_max(LIMIT);
        let p = world.join(of("carol", v5("p")));
        let send = |world: &mut World, topic: &str, number: usize| {
            let id = world.publish(p, message(topic, AtLeastOnce, &text(number, 9_000)));
            assert_eq!(world.accepted(p, id.expect("it has one")), ReasonCode::SUCCESS);
        };
        // Two sessions of one user that wait for the same count once.
        for name in ["ada-1", "ada-2"] {
            let at = world.join(of("ada", kept(name)));
            world.subscribe(at, "a", AtLeastOnce);
            world.cut(at);
        }
        for number in 0..300 {
            send(world, "a", number);
        }
        let copies = world.shards.len().min(2) as u64;
        assert!(world.disk.bytes() > LIMIT / 2 && world.disk.bytes() <= LIMIT / 4 * 3 * copies);
        // Another finds a quarter of it free, and has three quarters of that.
        let bob = world.join(of("bob", kept("bob")));
        world.subscribe(bob, "b", AtLeastOnce);
        world.cut(bob);
        let fits = (LIMIT - world.disk.bytes()) as usize / 4 * 3 / 9_500;
        assert!(copies == 2 || fits >= 15, "{fits}");
        for number in 0..fits {
            send(world, "b", number);
        }
        let bob = world.join(of("bob", kept("bob")));
        assert_eq!(numbers(&world.messages(bob)), (0..fits).collect::<Vec<_>>());
        let mut got = Vec::new();
        for name in ["ada-1", "ada-2"] {
            let at = world.join(of("ada", kept(name)));
            got.push(numbers(&world.messages(at)));
            let newest = 300 - got[got.len() - 1].len()..300;
            assert_eq!(got[got.len() - 1], newest.collect::<Vec<_>>());
        }
        assert_eq!(dropped(world).spill_full as usize, 600 - got[0].len() - got[1].len());
        // All of it is given back.
        assert_eq!(world.disk.bytes(), 0);
        let at = world.join(of("ada", kept("ada-1")));
        world.cut(at);
        for number in 0..fits {
            send(world, "a", number);
        }
        let at = world.join(of("ada", kept("ada-1")));
        assert_eq!(numbers(&world.messages(at)).len(), fits);
    });
}

#[test]
fn a_part_of_the_node_refuses_where_a_client_loses() {
    let config = BrokerConfig { session: spilling(32 << 20, 10), ..settings() };
    each_with(config, |world| {
        world.is_own = true;
        let part = world.join(kept("part"));
        world.is_own = false;
        world.subscribe(part, "t", AtLeastOnce);
        world.cut(part);
        let p = world.join(v5("p"));
        let mut accepted = 0;
        for number in 0..20 {
            let id = world.publish(p, message("t", AtLeastOnce, &text(number, 100)));
            accepted += usize::from(world.accepted(p, id.unwrap()) == ReasonCode::SUCCESS);
        }
        assert!((10..=11).contains(&accepted), "{accepted}");
        world.is_own = true;
        let part = world.join(kept("part"));
        world.is_own = false;
        assert_eq!(numbers(&world.messages(part)), (0..accepted).collect::<Vec<_>>());
    });
}

#[test]
fn a_restored_queue_that_is_longer_than_may_be_loses_one_for_one() {
    let few = BrokerConfig { session: spilling(32 << 20, 10), ..settings() };
    let many = BrokerConfig { session: spilling(32 << 20, 100), ..settings() };
    for shards in [1, 3] {
        let mut world = World::keeping(many.clone(), shards, false);
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        for number in 0..50 {
            world.publish(p, message("t", AtLeastOnce, &text(number, 100)));
        }
        world.restart_with(few.clone(), shards);
        let p = world.join(v5("p"));
        for number in 50..55 {
            let id = world.publish(p, message("t", AtLeastOnce, &text(number, 100)));
            assert_eq!(world.accepted(p, id.unwrap()), ReasonCode::SUCCESS);
        }
        let s = world.join(kept("s"));
        assert_eq!(numbers(&world.messages(s)), (5..55).collect::<Vec<_>>());
        world.end();
    }
}

#[test]
fn memory_of_one_that_cannot_spill_is_given_to_others() {
    // Its queue has room for all of it, and the node has not.
    let config = BrokerConfig {
        payload_bytes_max: 400_000,
        session: spilling(32 << 20, 100_000),
        ..settings()
    };
    each_with(config, |world| {
        world.disk.set_failing(true);
        let s = world.join(kept("s"));
        world.subscribe(s, "s", AtLeastOnce);
        world.cut(s);
        let other = world.join_with(kept("other"), refusing());
        world.subscribe(other, "other", AtLeastOnce);
        world.cut(other);
        let p = world.join(v5("p"));
        for number in 0..200 {
            world.publish(p, message("s", AtLeastOnce, &text(number, 5_000)));
        }
        let mut accepted = 0;
        for number in 0..20 {
            let id = world.publish(p, message("other", AtLeastOnce, &text(number, 5_000)));
            accepted += usize::from(world.accepted(p, id.unwrap()) == ReasonCode::SUCCESS);
        }
        // Another shard is asked for memory, and has it ready for the next.
        assert!(accepted >= 15, "{accepted}");
        let s = world.join(kept("s"));
        let got = numbers(&world.messages(s));
        assert!(!got.is_empty() && got.is_sorted() && got.len() < 200, "{got:?}");
        assert_eq!(got.last(), Some(&199));
    });
}

//! Much that a member of a shared subscription leaves, which goes to others by and by.

use super::{
    shared::{dropped, forget},
    *,
};
use crate::{Overflow, slab::Slab};

const COUNT: usize = 1_000;

fn on_disk() -> BrokerConfig {
    let session = SessionConfig {
        queue_bytes_max: 10_000,
        overflow: Overflow::SpillDisconnect,
        ..refusing()
    };
    BrokerConfig { session, ..settings() }
}

/// Numbers of the messages that came.
fn numbers(world: &mut World, at: At) -> Vec<usize> {
    world.texts(at).iter().map(|text| text.trim().parse().unwrap()).collect()
}

/// Has `first` away, with messages in the group, in its other group and of its own; `second` is a member of both.
fn leave_much(world: &mut World, qos: QoS) -> At {
    world.beyond = 1 << 20;
    let first = world.join(kept("first"));
    for filter in ["$share/g/t", "$share/h/u", "own"] {
        world.subscribe(first, filter, ExactlyOnce);
    }
    world.cut(first);
    let p = world.join(v5("p"));
    world.publish(p, message("own", qos, "-1"));
    for number in 0..COUNT {
        let topic = if number % 3 == 0 { "u" } else { "t" };
        let id = world.publish(p, message(topic, qos, &format!("{number:<200}"))).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
    }
    let second = world.join(kept("second"));
    for filter in ["$share/g/t", "$share/h/u"] {
        world.subscribe(second, filter, ExactlyOnce);
    }
    second
}

fn sessions(world: &World) -> u64 {
    world.shards.iter().map(|shard| shard.statistics().sessions).sum()
}

fn remainders(world: &World) -> usize {
    let count = |sessions: &Slab<crate::session::Session>| {
        sessions.iter().filter(|(_, session)| session.client_id.is_empty()).count()
    };
    world.shards.iter().map(|shard| count(shard.session_slots())).sum()
}

#[test]
fn much_is_handed_on_a_bounded_number_a_turn() {
    for qos in [AtLeastOnce, ExactlyOnce] {
        each(|world| {
            let second = leave_much(world, qos);
            forget(world, "first");
            assert_eq!((sessions(world), remainders(world)), (2, 1));
            let (mut got, mut turns) = (Vec::new(), 0);
            while remainders(world) > 0 {
                world.advance(Duration::from_millis(1));
                let more = numbers(world, second);
                assert!(more.len() <= 512, "{} at once", more.len());
                got.extend(more);
                turns += 1;
                assert!(turns < 100);
            }
            assert!(turns >= 3);
            assert_eq!(got, (0..COUNT).collect::<Vec<_>>());
            let expected = crate::Dropped { session_ended: 1, ..Default::default() };
            assert_eq!(dropped(world), expected, "its own");
        });
    }
}

#[test]
fn no_client_waits_for_the_disk_while_messages_are_handed_on() {
    each_with(on_disk(), |world| {
        let second = leave_much(world, AtLeastOnce);
        assert!(world.disk.bytes() > 100_000);
        world.disk.set_deaf(true);
        forget(world, "first");
        world.advance(seconds(1));
        let mut got = numbers(world, second);
        assert!(got.len() < 100, "{}", got.len());
        // All else continues.
        let p = world.join(v5("p"));
        let s = world.join(v5("s"));
        world.subscribe(s, "other", AtLeastOnce);
        world.publish(p, message("other", AtLeastOnce, "x"));
        assert_eq!(world.texts(s), ["x"]);
        // The client may come again meanwhile, and has nothing of it.
        let again = world.connect(kept("first"));
        assert!(!world.connack(again).session_present);
        world.subscribe(again, "own", AtLeastOnce);
        assert!(world.texts(again).is_empty());
        world.disk.set_deaf(false);
        world.pump();
        world.advance(seconds(1));
        got.extend(numbers(world, second));
        assert_eq!(got, (0..COUNT).collect::<Vec<_>>());
        assert_eq!(dropped(world).total(), 1, "its own");
    });
}

#[test]
fn messages_on_disk_for_a_group_without_members_are_counted_and_not_read() {
    each_with(on_disk(), |world| {
        let second = leave_much(world, AtLeastOnce);
        world.unsubscribe(second, &["$share/g/t"]);
        world.disk.set_deaf(true);
        forget(world, "first");
        let of_group = (0..COUNT).filter(|number| number % 3 != 0).count() as u64;
        assert_eq!(dropped(world).session_ended, of_group + 1);
        world.disk.set_deaf(false);
        world.advance(seconds(1));
        let expected: Vec<usize> = (0..COUNT).filter(|number| number % 3 == 0).collect();
        assert_eq!(numbers(world, second), expected);
        assert_eq!(dropped(world).total(), of_group + 1);
    });
}

#[test]
fn unreadable_messages_on_disk_are_counted() {
    for has_disk in [false, true] {
        let mut world = World::new(on_disk(), 1);
        let second = leave_much(&mut world, AtLeastOnce);
        if has_disk {
            world.disk.set_failing(true);
        } else {
            world.shards[0].set_spill(None);
        }
        forget(&mut world, "first");
        world.advance(seconds(1));
        let got = world.texts(second).len();
        assert!(got < 100 && remainders(&world) == 0);
        assert_eq!(dropped(&world).spill_lost, (COUNT - got) as u64);
        world.end();
    }
}

/// A world whose sessions are written down, by every shard as it goes or later.
fn keeping(config: &BrokerConfig) -> impl Iterator<Item = World> {
    let ways = [(1, false), (3, false), (1, true), (3, true)];
    ways.into_iter().map(|(shards, is_gated)| World::keeping(config.clone(), shards, is_gated))
}

#[test]
fn a_process_that_ends_in_the_middle_loses_nothing_of_it() {
    // However far a checkpoint is when the session ends, and when the process does.
    for config in [settings(), on_disk()] {
        for checkpoint in [None, Some(0), Some(5), Some(400), Some(5_000)] {
            for mut world in keeping(&config) {
                let second = leave_much(&mut world, AtLeastOnce);
                world.cut(second);
                if let Some(records) = checkpoint {
                    world.shards.iter_mut().for_each(Broker::begin_checkpoint_now);
                    world.shards.iter_mut().for_each(|shard| shard.checkpoint_some(records));
                    world.pump();
                }
                world.disk.set_deaf(true);
                forget(&mut world, "first");
                world.advance(Duration::from_millis(1));
                world.disk.set_deaf(false);
                // All of the checkpoint is written, so that what stood before is gone.
                for _ in 0..20 {
                    world.shards.iter_mut().for_each(|shard| shard.checkpoint_some(1_000));
                    world.disk.set_deaf(true);
                    world.pump();
                    world.disk.set_deaf(false);
                }
                assert_eq!(remainders(&world), 1);
                let shards = world.shards.len();
                world.restart(shards);
                assert_eq!((remainders(&world), sessions(&world)), (1, 1));
                // Once more, before it continues.
                world.restart(shards);
                world.advance(seconds(1));
                assert_eq!(remainders(&world), 0);
                let second = world.join(kept("second"));
                let mut got = numbers(&mut world, second);
                got.sort_unstable();
                assert_eq!(got, (0..COUNT).collect::<Vec<_>>(), "{checkpoint:?}");
                journal::check(&world);
                world.end();
            }
        }
    }
}

#[test]
fn messages_of_a_member_that_unsubscribes_are_handed_on_in_turns_too() {
    for restarts in [false, true] {
        for mut world in keeping(&settings()) {
            let mut connect = kept("first");
            connect.properties.receive_maximum = NonZeroU16::new(5);
            let first = world.mute(connect);
            for filter in ["$share/g/t", "$share/h/t", "t"] {
                world.subscribe(first, filter, AtLeastOnce);
            }
            let p = world.join(v5("p"));
            for number in 0..COUNT {
                world.publish(p, message("t", AtLeastOnce, &number.to_string()));
            }
            let second = world.join(kept("second"));
            for filter in ["$share/g/t", "$share/h/t"] {
                world.subscribe(second, filter, AtLeastOnce);
            }
            world.cut(second);
            let begun = world.texts(first).len();
            let reasons = world.unsubscribe(first, &["$share/g/t", "$share/h/t"]);
            assert_eq!(reasons, [ReasonCode::SUCCESS; 2]);
            assert_eq!(remainders(&world), 1);
            if restarts {
                world.advance(Duration::from_millis(1));
                let shards = world.shards.len();
                world.restart(shards);
            }
            world.advance(seconds(1));
            assert_eq!(remainders(&world), 0);
            let second = world.join(kept("second"));
            let got = numbers(&mut world, second);
            let first = world.join(kept("first"));
            let its = numbers(&mut world, first);
            // One copy of its own; of those by groups, what had begun stayed.
            assert_eq!((got.len() + its.len(), begun), (3 * COUNT, 5));
            for number in 0..COUNT {
                let of = |all: &[usize]| all.iter().filter(|n| **n == number).count();
                assert_eq!(of(&got) + of(&its), 3);
            }
            assert_eq!(dropped(&world).total(), 0);
            world.end();
        }
    }
}

#[test]
fn messages_that_wait_for_another_member_expire_and_give_memory_back() {
    each_with(on_disk(), |world| {
        world.beyond = 1 << 20;
        let first = world.join(kept("first"));
        world.subscribe(first, "$share/g/t", AtLeastOnce);
        world.cut(first);
        let p = world.join(v5("p"));
        for number in 0..COUNT {
            let text = format!("{number:<200}");
            let publish = Publish { packet_id: Some(id(1)), ..message("t", AtLeastOnce, &text) };
            // Message Expiry Interval of a second.
            world.raw(p, &publish_bytes(publish, &[2, 0, 0, 0, 1]));
        }
        let second = world.join(kept("second"));
        world.subscribe(second, "$share/g/t", AtLeastOnce);
        world.disk.set_deaf(true);
        forget(world, "first");
        world.advance(seconds(2));
        world.disk.set_deaf(false);
        world.pump();
        let got = world.texts(second).len();
        assert_eq!((remainders(world), dropped(world).expired), (0, (COUNT - got) as u64));
        assert!(got < 100);
    });
}

#[test]
fn an_unsubscription_is_acknowledged_once_all_of_it_is_durable() {
    for (count, qos) in [(10, AtLeastOnce), (COUNT, AtLeastOnce), (10, AtMostOnce)] {
        let mut world = World::keeping(settings(), 1, true);
        let mut connect = kept("first");
        connect.properties.receive_maximum = NonZeroU16::new(1);
        let first = world.mute(connect);
        world.subscribe(first, "$share/g/t", AtLeastOnce);
        world.subscribe(first, "own", AtLeastOnce);
        let p = world.join(v5("p"));
        // One is in flight, and the other in the way of all behind it.
        world.publish(p, message("own", AtLeastOnce, "x"));
        world.publish(p, message("own", AtLeastOnce, "x"));
        for number in 0..count {
            world.publish(p, message("t", qos, &number.to_string()));
        }
        let second = world.join(kept("second"));
        world.subscribe(second, "$share/g/t", AtLeastOnce);
        world.take(first);
        world.flushes = false;
        let filters = vec!["$share/g/t".to_owned()];
        let user_properties = Vec::new();
        let packet_id = id(9);
        world.send(first, Packet::Unsubscribe(Unsubscribe { packet_id, user_properties, filters }));
        assert_eq!(world.take(first), []);
        world.flush_journals();
        let is_answer = |got: &Got| matches!(got, Other(Packet::Unsuback(_)));
        assert!(world.take(first).iter().any(is_answer));
        assert_eq!(world.texts(second).len(), if count < COUNT { count } else { 0 });
        world.flushes = true;
        world.advance(seconds(1));
        world.end();
    }
}

#[test]
fn messages_that_no_member_takes_at_a_restart_are_counted() {
    let mut world = World::keeping(settings(), 3, false);
    let p = world.join(v5("p"));
    let s = world.join(kept("s"));
    world.subscribe(s, "$share/g/t", AtLeastOnce);
    world.hold_peers = true;
    let id = world.publish(p, message("t", AtLeastOnce, "x")).unwrap();
    assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
    forget(&mut world, "s");
    world.hold_peers = false;
    for shard in &mut world.shards {
        // Messages on their way go with the process.
        (0..3).for_each(|other| _ = shard.poll_peers(other, &mut Vec::new()));
    }
    world.restart(3);
    let expected = crate::Dropped { session_ended: 1, ..Default::default() };
    assert_eq!(dropped(&world), expected);
    world.end();
}

//! Expired messages have no place, no bytes and no vote (section 3.3.2.3.3).

use super::*;
use crate::{Dropped, Overflow};

fn dropped(world: &World) -> Dropped {
    let mut sum = Dropped::default();
    world.shards.iter().for_each(|shard| sum.add(shard.statistics().dropped));
    sum
}

fn config(overflow: Overflow) -> SessionConfig {
    SessionConfig { queue_messages_max: 100, overflow, ..refusing() }
}

/// Publishes one that is of worth for so many seconds, under a fresh identifier.
fn publish(world: &mut World, at: At, qos: QoS, text: &str, expiry: u8) -> PacketId {
    let packet_id = world.fresh_id(at);
    let publish = Publish { packet_id: Some(packet_id), ..message("t", qos, text) };
    world.raw(at, &publish_bytes(publish, &[2, 0, 0, 0, expiry]));
    packet_id
}

#[test]
fn a_queue_of_what_has_expired_takes_a_fresh_message() {
    let overflows = [
        Overflow::Disconnect,
        Overflow::DropNewest,
        Overflow::BlockPublisher,
        Overflow::SpillDisconnect,
    ];
    for overflow in overflows {
        for qos in [AtLeastOnce, ExactlyOnce] {
            // Whether the shards' timers are late.
            for is_late in [false, true] {
                each_with(BrokerConfig { session: config(overflow), ..settings() }, |world| {
                    let s = world.join(kept("s"));
                    world.subscribe(s, "t", ExactlyOnce);
                    world.cut(s);
                    let first = world.join(v5("first"));
                    for number in 0..101 {
                        publish(world, first, qos, &number.to_string(), 1);
                    }
                    if is_late && world.shards.len() == 1 {
                        world.now = world.now + seconds(3);
                    } else {
                        world.advance(seconds(3));
                        assert_eq!(world.shared.budget().used(), 0, "{overflow:?}");
                    }
                    assert!(!world.is_paused(first) || is_late);
                    let fresh = world.join(v5("fresh"));
                    let id = world.publish(fresh, message("t", qos, "fresh")).unwrap();
                    assert_eq!(world.accepted(fresh, id), ReasonCode::SUCCESS, "{overflow:?}");
                    let s = world.join(kept("s"));
                    assert_eq!(world.texts(s), ["fresh"]);
                    let dropped = dropped(world);
                    assert_eq!(dropped.expired + dropped.queue_full, 101, "{dropped:?}");
                    assert!(overflow == Overflow::DropNewest || dropped.queue_full == 0);
                });
            }
        }
    }
}

#[test]
fn lasting_messages_keep_their_place_among_expiring_ones() {
    // Every third lasts, some of those that expire do so late; large ones among small ones.
    each_with(BrokerConfig { session: config(Overflow::Disconnect), ..settings() }, |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        let large = |number: usize| format!("{number:<20000}");
        let mut lasting = Vec::new();
        for number in 0..90 {
            let text = if number % 5 == 0 { large(number) } else { number.to_string() };
            if number % 3 == 0 {
                world.publish(p, message("t", AtLeastOnce, &text));
                lasting.push(number.to_string());
            } else {
                publish(world, p, AtLeastOnce, &text, 1 + (number % 7) as u8);
            }
        }
        for second in 1..=8 {
            world.advance(seconds(1));
            let expired = (0..90).filter(|n| n % 3 != 0 && n % 7 < second).count() as u64;
            assert_eq!(dropped(world).expired, expired);
        }
        for number in 90..150 {
            let id = world.publish(p, message("t", AtLeastOnce, &number.to_string())).unwrap();
            assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS, "{number}");
            lasting.push(number.to_string());
        }
        let s = world.join(kept("s"));
        let got: Vec<String> = world.texts(s).iter().map(|t| t.trim().to_owned()).collect();
        assert_eq!(got, lasting);
    });
}

#[test]
fn expired_messages_take_none_of_the_nodes_memory() {
    let config = BrokerConfig { payload_bytes_max: 200_000, ..settings() };
    each_with(config, |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        let text = "x".repeat(3_000);
        let accepted = |world: &mut World, expiry| {
            let sent: Vec<PacketId> =
                (0..100).map(|_| publish(world, p, AtLeastOnce, &text, expiry)).collect();
            sent.into_iter().filter(|id| !world.accepted(p, *id).is_failure()).count()
        };
        let first = accepted(world, 1);
        assert!(first < 100);
        world.advance(seconds(2));
        assert_eq!(world.shared.budget().used(), 0);
        assert_eq!(accepted(world, 100), first);
        assert_eq!(dropped(world).expired, first as u64);
    });
}

#[test]
fn what_expires_on_disk_gives_its_place_back() {
    let session = SessionConfig { queue_bytes_max: 10_000, ..config(Overflow::SpillDisconnect) };
    each_with(BrokerConfig { session, ..settings() }, |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        for _ in 0..90 {
            publish(world, p, AtLeastOnce, &"x".repeat(2_000), 1);
        }
        assert!(world.disk.bytes() > 100_000);
        world.advance(seconds(2));
        assert_eq!((world.disk.bytes(), world.shared.budget().used()), (0, 0));
        assert_eq!(dropped(world).expired, 90);
    });
}

#[test]
fn what_expires_while_the_node_is_down_is_not_there_after() {
    each_with(BrokerConfig { session: config(Overflow::Disconnect), ..settings() }, |world| {
        if world.tapes.is_empty() {
            return;
        }
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        for number in 0..100 {
            publish(world, p, AtLeastOnce, &number.to_string(), if number < 90 { 1 } else { 60 });
        }
        world.now = world.now + seconds(3);
        let shards = world.shards.len();
        world.restart(shards);
        assert_eq!(dropped(world).expired, 90);
        let held: usize = world.shards.iter().flat_map(|s| s.sessions(9)).map(|s| s.queued).sum();
        assert_eq!(held, 10);
        world.advance(seconds(60));
        assert_eq!((dropped(world).expired, world.shared.budget().used()), (100, 0));
    });
}

#[test]
fn a_publisher_does_not_wait_for_what_has_expired() {
    let config = SessionConfig { queue_messages_max: 5, ..config(Overflow::BlockPublisher) };
    each_with(BrokerConfig { session: config, ..settings() }, |world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        for number in 0..10 {
            publish(world, p, AtLeastOnce, &number.to_string(), 1);
        }
        assert!(world.is_paused(p));
        world.advance(seconds(2));
        assert!(!world.is_paused(p));
        let s = world.join(kept("s"));
        world.texts(s);
        world.publish(p, message("t", AtLeastOnce, "fresh"));
        assert_eq!(world.texts(s).last().map(String::as_str), Some("fresh"));
    });
}

#[test]
fn retained_messages_that_have_expired_leave_room_at_once() {
    let config = BrokerConfig { retained_max: 3, ..settings() };
    each_with(config, |world| {
        let p = world.join(v5("p"));
        for topic in ["a", "b", "c"] {
            let publish = retained(topic, AtMostOnce, "x");
            world.raw(p, &publish_bytes(publish, &[2, 0, 0, 0, 1]));
        }
        let full = world.publish(p, retained("d", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(p, full), ReasonCode::QUOTA_EXCEEDED);
        // Before any timer comes.
        world.now = world.now + seconds(2);
        let fresh = world.publish(p, retained("d", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(p, fresh), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        assert_eq!(world.shared.retained_count(), 1);
    });
}

#[test]
fn a_flood_of_what_expires_costs_the_same_however_long_the_queue_is() {
    // Each arrival finds one in the middle of a long queue that has expired. If that moved what lies behind it, this would take minutes.
    let session = SessionConfig { queue_messages_max: 50_000, ..config(Overflow::Disconnect) };
    let mut world = World::new(BrokerConfig { session, ..settings() }, 1);
    let s = world.join(kept("s"));
    world.subscribe(s, "t", AtLeastOnce);
    world.cut(s);
    let p = world.join(v5("p"));
    let mut bytes = Vec::new();
    for number in 0..40_000_u32 {
        let raw = [2, 0, 0, 0, 1 + (number % 200) as u8];
        let publish = Publish { packet_id: Some(id(1)), ..message("t", AtLeastOnce, "x") };
        let raw: &[u8] = if number % 2 == 0 { &[] } else { &raw };
        bytes.extend(publish_bytes(publish, raw));
    }
    world.raw(p, &bytes);
    for _ in 0..201 {
        world.now = world.now + seconds(1);
        world.publish(p, message("t", AtLeastOnce, "y"));
    }
    let report = world.shards[0].sessions(1)[0].clone();
    assert_eq!((report.queued, report.dropped.expired), (20_000 + 201, 20_000));
}

#[test]
fn retained_messages_that_wait_for_a_connection_expire_in_time() {
    each(|world| {
        let p = world.join(v5("p"));
        let text = "x".repeat(30_000);
        for number in 0..10 {
            let publish = retained("", AtMostOnce, &text);
            let topic = format!("t/{number}");
            // Message Expiry Interval of a second.
            world.raw(p, &publish_bytes(Publish { topic: &topic, ..publish }, &[2, 0, 0, 0, 1]));
        }
        let s = world.join(v5("s"));
        world.room(s, 100);
        let packet_id = world.fresh_id(s);
        let filters = vec![filter("t/#", AtLeastOnce)];
        let user_properties = Vec::new();
        world.send(
            s,
            Packet::Subscribe(Subscribe {
                packet_id,
                subscription_id: None,
                user_properties,
                filters,
            }),
        );
        let queued = |world: &World| -> usize {
            let reports = world.shards.iter().flat_map(|shard| shard.sessions(9));
            reports.map(|report| report.queued).sum()
        };
        let before = queued(world);
        assert!(before > 0);
        world.advance(seconds(2));
        let expired: u64 =
            world.shards.iter().map(|shard| shard.statistics().dropped.expired).sum();
        assert_eq!((queued(world), expired), (0, before as u64));
    });
}

//! A disk that messages fill, and what becomes of it once they are delivered.

use super::{
    journal::{SmallDisk, check},
    *,
};

const DISK_BYTES: u64 = 1 << 20;

/// Shards, and whether records are durable only later.
const NODES: [(usize, bool); 4] = [(1, false), (3, false), (1, true), (3, true)];

const NAMES: [&str; 3] = ["s0", "s1", "s2"];

fn on_small_disk(shards: usize, is_gated: bool) -> World {
    let mut config = settings();
    config.payload_bytes_max = 1 << 30;
    config.session.queue_bytes_max = 1 << 30;
    config.session.queue_messages_max = 1_000_000;
    let world = World::keeping(config, shards, is_gated);
    let disk = SmallDisk::new(DISK_BYTES);
    world.tapes.iter().for_each(|tape| tape.put_on(&disk));
    world
}

/// A session for each shard, if there are so many, that is away.
fn sessions(world: &mut World) {
    for name in NAMES {
        let at = world.join(kept(name));
        world.subscribe(at, &format!("t/{name}"), ExactlyOnce);
        world.cut(at);
    }
}

/// Whether a message is accepted.
fn publish(world: &mut World, at: At, message: Publish<'_>) -> bool {
    let id = world.publish(at, message).unwrap();
    while world.flush_journals() {}
    match world.accepted(at, id) {
        ReasonCode::SUCCESS | ReasonCode::NO_MATCHING_SUBSCRIBERS => true,
        ReasonCode::QUOTA_EXCEEDED => false,
        reason => panic!("{reason:?}"),
    }
}

/// Publishes to all sessions until the disk is full; by session, what was accepted.
fn fill(world: &mut World, at: At, bytes: usize, when: &str) -> [Vec<String>; 3] {
    let mut accepted: [Vec<String>; 3] = Default::default();
    for number in 0..100_000 {
        let session = number % 3;
        let text = format!("{number:0bytes$}");
        let topic = format!("t/{}", NAMES[session]);
        let qos = if number % 2 == 0 { AtLeastOnce } else { ExactlyOnce };
        if !publish(world, at, message(&topic, qos, &text)) {
            let count: usize = accepted.iter().map(Vec::len).sum();
            assert!(count * (bytes + 300) > DISK_BYTES as usize / 4, "{when}: {count} are few");
            return accepted;
        }
        accepted[session].push(text);
    }
    panic!("{when}: more than the disk has");
}

/// Those sessions take what waits for them; what that is.
fn take(world: &mut World) -> [Vec<String>; 3] {
    NAMES.map(|name| {
        let at = world.join(kept(name));
        while world.flush_journals() {}
        let texts = world.texts(at);
        world.cut(at);
        texts
    })
}

#[test]
fn a_full_disk_takes_messages_again_once_those_before_were_taken() {
    for (shards, is_gated) in NODES {
        for bytes in [20, 3_000] {
            let mut world = on_small_disk(shards, is_gated);
            sessions(&mut world);
            let p = world.join(v5("p"));
            for round in 0..4 {
                let when =
                    format!("{shards} shards, gated {is_gated}, {bytes} bytes, round {round}");
                let accepted = fill(&mut world, p, bytes, &when);
                assert_eq!(take(&mut world), accepted, "{when}");
                world.advance(seconds(4));
                while world.flush_journals() {}
                world.advance(seconds(4));
                assert!(!world.shared.has_failing_journal(), "{when}");
                check(&world);
            }
            world.restart(shards % 3 + 1);
            assert_eq!(take(&mut world), <[Vec<String>; 3]>::default(), "nothing comes again");
            world.end();
        }
    }
}

#[test]
fn what_was_on_its_way_between_shards_as_the_disk_filled_keeps_none_from_healing() {
    for is_gated in [false, true] {
        let mut world = on_small_disk(3, is_gated);
        sessions(&mut world);
        let publishers = ["p0", "p1", "p2"].map(|name| world.join(v5(name)));
        for round in 0..3 {
            let mut accepted: [Vec<String>; 3] = Default::default();
            let mut refused = false;
            for burst in 0..1_000 {
                // From each shard to each.
                world.hold_peers = true;
                for number in 0..90 {
                    let (from, to) = (number % 3, number / 3 % 3);
                    let text = format!("{burst}-{number:01000}");
                    let topic = format!("t/{}", NAMES[to]);
                    if publish(&mut world, publishers[from], message(&topic, AtLeastOnce, &text)) {
                        accepted[to].push(text);
                    } else {
                        refused = true;
                    }
                }
                world.hold_peers = false;
                world.pump();
                while world.flush_journals() {}
                if refused {
                    break;
                }
            }
            let mut taken = take(&mut world);
            taken.iter_mut().chain(&mut accepted).for_each(|texts| texts.sort_unstable());
            assert_eq!(taken, accepted, "gated {is_gated}, round {round}");
            for _ in 0..5 {
                world.advance(seconds(2));
                while world.flush_journals() {}
            }
            assert!(!world.shared.has_failing_journal(), "gated {is_gated}, round {round}");
            check(&world);
        }
        world.end();
    }
}

#[test]
fn nothing_that_was_accepted_is_lost_where_the_process_ends_while_the_disk_is_full() {
    for (shards, is_gated) in NODES {
        for taken in 0..=3 {
            let mut world = on_small_disk(shards, is_gated);
            sessions(&mut world);
            let p = world.join(v5("p"));
            let when = format!("{shards} shards, gated {is_gated}, {taken} taken");
            let accepted = fill(&mut world, p, 20, &when);
            for name in &NAMES[..taken] {
                let at = world.join(kept(name));
                world.cut(at);
            }
            world.restart(shards);
            for (session, texts) in take(&mut world).into_iter().enumerate() {
                if session >= taken {
                    assert_eq!(texts, accepted[session], "{when}");
                } else {
                    // That they were taken found no room, for some: they come again.
                    assert!(texts.iter().all(|text| accepted[session].contains(text)), "{when}");
                }
            }
            world.end();
        }
    }
}

#[test]
fn retained_messages_that_fill_the_disk_can_be_taken_away_and_others_come() {
    for (shards, is_gated) in NODES {
        let when = format!("{shards} shards, gated {is_gated}");
        let mut world = on_small_disk(shards, is_gated);
        let p = world.join(v5("p"));
        let mut count = 0;
        let payload = "x".repeat(400);
        while publish(&mut world, p, retained(&format!("r/{count}"), AtLeastOnce, &payload)) {
            count += 1;
        }
        assert!(count > 300, "{when}: {count} are few");
        for number in 0..count {
            let topic = format!("r/{number}");
            let mut tries = 0;
            while !publish(&mut world, p, retained(&topic, AtLeastOnce, "")) {
                tries += 1;
                assert!(tries < 5, "{when}: {topic} of {count} cannot be taken away");
                world.advance(seconds(2));
                while world.flush_journals() {}
            }
        }
        world.advance(seconds(4));
        while world.flush_journals() {}
        world.advance(seconds(4));
        assert!(publish(&mut world, p, retained("r/new", AtLeastOnce, &payload)), "{when}");
        check(&world);
        world.restart(shards);
        assert_eq!(world.shared.retained_count(), 1, "{when}");
        world.end();
    }
}

#[test]
fn a_will_that_is_not_to_come_does_not_come_after_a_kill_though_the_disk_is_full() {
    for (shards, is_gated) in NODES {
        for ends in ["goodbye", "published", "resumed", "ended"] {
            let config = settings();
            let mut world = World::keeping(config, shards, is_gated);
            let disk = SmallDisk::new(DISK_BYTES);
            world.tapes.iter().for_each(|tape| tape.put_on(&disk));
            let delay = if ends == "published" { 0 } else { 60 };
            let expiry = if ends == "ended" { 30 } else { 3_600 };
            let properties =
                ConnectProperties { session_expiry: Some(expiry), ..ConnectProperties::default() };
            let connect = || Connect { properties: properties.clone(), ..kept("c") };
            let will = Will { delay, ..will("w", "gone") };
            let at = world.join(Connect { will: Some(will), ..connect() });
            // So much that it is looked whether there is room, and some is held in reserve.
            world.subscribe(at, "t", AtLeastOnce);
            let p = world.join(v5("p"));
            for _ in 0..3 {
                assert!(publish(&mut world, p, message("t", AtLeastOnce, &"x".repeat(30_000))));
            }
            world.advance(seconds(2));
            while world.flush_journals() {}
            if ends != "goodbye" && ends != "published" {
                world.cut(at);
                while world.flush_journals() {}
            }
            *disk.free() = 0;
            match ends {
                "goodbye" => world.leave(at),
                "published" => world.cut(at),
                "resumed" => _ = world.join(connect()),
                _ => world.advance(seconds(40)),
            }
            while world.flush_journals() {}
            world.restart(shards);
            let watcher = world.join(v5("watcher"));
            world.subscribe(watcher, "w", AtMostOnce);
            world.advance(seconds(100));
            assert_eq!(world.texts(watcher), [""; 0], "{shards} shards, gated {is_gated}, {ends}");
            world.end();
        }
    }
}

#[test]
fn a_message_that_is_far_too_large_does_not_have_others_refused_for_long() {
    let mut config = settings();
    config.payload_bytes_max = 1 << 30;
    config.session.queue_bytes_max = 1 << 30;
    let mut world = World::keeping(config, 3, false);
    let disk = SmallDisk::new(4 << 20);
    world.tapes.iter().for_each(|tape| tape.put_on(&disk));
    sessions(&mut world);
    let publishers: Vec<At> = (0..20).map(|n| world.join(v5(&format!("p{n}")))).collect();
    let large = "x".repeat(3 << 20);
    assert!(!publish(&mut world, publishers[0], message("t/s0", AtLeastOnce, &large)));
    world.advance(seconds(3));
    for at in publishers.into_iter().skip(1) {
        assert!(publish(&mut world, at, message("t/s0", AtLeastOnce, "x")));
    }
}

#[test]
fn a_journal_without_room_is_tried_again_without_a_walk_through_what_is_retained() {
    let [few, many] = [10, 10_240].map(|count| {
        let mut world = World::keeping(settings(), 1, false);
        let p = world.join(v5("p"));
        for number in 0..count {
            world.publish(p, retained(&format!("r/{number}"), AtMostOnce, "x"));
        }
        world.advance(seconds(5));
        let disk = SmallDisk::new(64 << 20);
        world.tapes[0].put_on(&disk);
        *disk.free() = 0;
        assert!(!publish(&mut world, p, retained("r/more", AtLeastOnce, &"x".repeat(200_000))));
        world.advance(seconds(5));
        assert!(world.shared.has_failing_journal());
        allocation_counter::measure(|| world.advance(seconds(20))).count_total
    });
    assert!(many < few + 100, "{many} allocations in 20 s, {few} where less is retained");
}

//! The share of one identity, and the memory for announced packets: no client takes the last of the memory from the
//! others.

use super::{auth::Rules, *};
use crate::config::Overflow;

const LIMIT: u64 = 4 << 20;

/// Four megabytes, of which an identity may have three quarters.
fn four_megabytes() -> BrokerConfig {
    BrokerConfig { payload_bytes_max: LIMIT, identity_share: 0.75, ..settings() }
}

fn of(user: &str, connect: Connect) -> Connect {
    Connect { username: Some(user.to_owned()), ..connect }
}

/// The head of a PUBLISH of QoS 1 that announces a payload of so many bytes, with the first `sent` of them.
fn begun(topic: &str, payload: usize, sent: usize) -> Vec<u8> {
    let text = "x".repeat(payload);
    let whole = publish_bytes(
        Publish { packet_id: Some(id(1)), ..message(topic, AtLeastOnce, &text) },
        &[],
    );
    whole[..whole.len() - payload + sent].to_vec()
}

/// Another client publishes 100 kB to a session that is away, and it is taken.
fn others_are_served(world: &mut World) {
    let s = world.join(of("bob", kept("bob-s")));
    world.subscribe(s, "bob/#", AtLeastOnce);
    world.cut(s);
    let p = world.join(of("carol", v5("carol-p")));
    let sent = world.publish(p, message("bob/t", AtLeastOnce, &"y".repeat(100_000))).unwrap();
    assert_eq!(world.accepted(p, sent), ReasonCode::SUCCESS);
    let s = world.join(of("bob", kept("bob-s")));
    assert_eq!(world.messages(s).len(), 1, "acknowledged messages wait");
    world.leave(p);
    world.disconnect(s, Disconnect { session_expiry: Some(0), ..Disconnect::default() });
}

#[test]
fn who_may_not_publish_reserves_no_memory_by_announcing_much() {
    for shards in [1, 3] {
        let mut world = World::with_rules(four_megabytes(), shards, Arc::new(Rules::default()));
        let world = &mut world;
        let attackers: Vec<At> =
            (0..9).map(|n| world.join(of("mallory", v5(&format!("m{n}"))))).collect();
        for at in &attackers {
            world.raw(*at, &begun("no/t", 1_500_000, 90_000));
            assert_eq!(world.shared.budget().used(), 0);
        }
        others_are_served(world);
        // The message is answered once it has come, as a small one is, and the connection stays.
        let rest = "x".repeat(1_500_000 - 90_000);
        world.raw(attackers[0], rest.as_bytes());
        assert_eq!(world.accepted(attackers[0], id(1)), ReasonCode::NOT_AUTHORIZED);
        world.raw(attackers[0], &begun("t", 70_000, 70_000));
        assert_eq!(world.accepted(attackers[0], id(1)), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        world.end();
    }
}

#[test]
fn announced_bytes_are_charged_as_they_come() {
    each_with(four_megabytes(), |world| {
        let p = world.join(of("ada", v5("p")));
        world.raw(p, &begun("t", 1_000_000, 10));
        let used = world.shared.budget().used();
        assert!(used < 70_000, "{used} bytes for ten that came");
        world.raw(p, "x".repeat(500_000).as_bytes());
        let used = world.shared.budget().used();
        assert!((500_000..570_000).contains(&used), "{used} bytes for half a million that came");
        world.raw(p, "x".repeat(500_000 - 10).as_bytes());
        assert_eq!(world.accepted(p, id(1)), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        assert_eq!(world.shared.budget().used(), 0);
    });
}

#[test]
fn packets_of_one_identity_that_are_not_whole_leave_room_to_others() {
    each_with(four_megabytes(), |world| {
        for n in 0..100 {
            let p = world.join(of("mallory", v5(&format!("m{n}"))));
            world.raw(p, &begun("t", 1_000_000, 200_000));
        }
        assert!(world.shared.share_refusals() > 0);
        let other = world.join(of("bob", v5("bob")));
        let bytes = begun("t", 100_000, 100_000);
        world.raw(other, &bytes[..50_000]);
        world.raw(other, &bytes[50_000..]);
        assert_eq!(world.accepted(other, id(1)), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        others_are_served(world);
    });
}

#[test]
fn the_rest_of_a_message_that_finds_no_room_is_passed_over_and_answered() {
    each_with(four_megabytes(), |world| {
        let whole = begun("t", 1_900_000, 1_900_000);
        let [first, second] = ["a1", "a2"].map(|name| world.join(of("ada", v5(name))));
        world.raw(first, &whole[..900_000]);
        // Of a half of two megabytes, three quarters of what others leave, for all connections of one identity together.
        for part in whole.chunks(100_000) {
            world.raw(second, part);
        }
        assert_eq!(world.accepted(second, id(1)), ReasonCode::QUOTA_EXCEEDED);
        // But one packet may always be as large as packets may be.
        world.raw(first, &whole[900_000..]);
        assert_eq!(world.accepted(first, id(1)), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        assert_eq!(world.shared.budget().used(), 0);
    });
}

#[test]
fn retained_messages_of_one_identity_leave_room_to_others() {
    for (version, qos) in [(v5("m"), AtLeastOnce), (v5("m"), ExactlyOnce), (v5("m"), AtMostOnce)] {
        each_with(four_megabytes(), |world| {
            let m = world.join(of("mallory", version.clone()));
            let mut refused = 0;
            for n in 0..100 {
                let text = "x".repeat(60_000);
                let sent = world.publish(m, retained(&format!("m/{n}"), qos, &text));
                if let Some(sent) = sent {
                    match world.accepted(m, sent) {
                        ReasonCode::QUOTA_EXCEEDED => refused += 1,
                        reason => assert_eq!(reason, ReasonCode::NO_MATCHING_SUBSCRIBERS),
                    }
                    world.pubrel(m, sent);
                }
            }
            assert!(qos == AtMostOnce || refused > 40, "{refused} are refused");
            assert!(world.shared.budget().used() <= LIMIT / 4 * 3);
            assert!(world.shared.share_refusals() > 40);
            others_are_served(world);
            // She may exchange and take back her own, and then there is room again.
            let sent = world.publish(m, retained("m/0", AtLeastOnce, &"z".repeat(60_000))).unwrap();
            assert_eq!(world.accepted(m, sent), ReasonCode::NO_MATCHING_SUBSCRIBERS);
            for n in 0..10 {
                world.publish(m, retained(&format!("m/{n}"), AtMostOnce, ""));
            }
            let sent =
                world.publish(m, retained("m/new", AtLeastOnce, &"z".repeat(60_000))).unwrap();
            assert_eq!(world.accepted(m, sent), ReasonCode::NO_MATCHING_SUBSCRIBERS);
        });
    }
}

#[test]
fn the_number_of_retained_messages_is_shared_as_well() {
    each_with(BrokerConfig { retained_max: 100, ..four_megabytes() }, |world| {
        let m = world.join(of("mallory", v5("m")));
        for n in 0..200 {
            world.publish(m, retained(&format!("m/{n}"), AtMostOnce, "x"));
        }
        assert_eq!(world.shared.retained_count(), 75);
        let other = world.join(of("bob", v5("bob")));
        let sent = world.publish(other, retained("bob", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(other, sent), ReasonCode::NO_MATCHING_SUBSCRIBERS);
    });
}

#[test]
fn wills_of_one_identity_leave_room_to_others() {
    each_with(four_megabytes(), |world| {
        let mut refused = 0;
        for n in 0..200 {
            let will = Will { delay: 1_000, ..will("w", &"x".repeat(60_000)) };
            let connect = of("mallory", Connect { will: Some(will), ..kept(&format!("m{n}")) });
            match world.try_connect(connect) {
                Ok(at) => world.cut(at),
                Err(error) => {
                    assert_eq!(error.reason, ReasonCode::QUOTA_EXCEEDED);
                    refused += 1;
                }
            }
        }
        assert!(refused > 100, "{refused}");
        others_are_served(world);
    });
}

/// Mallory leaves sessions behind, each with a filter of its own; so many that all of them could fill the memory.
fn left_behind(world: &mut World, count: usize) {
    for n in 0..count {
        let at = world.join(of("mallory", kept(&format!("m{n}"))));
        world.subscribe(at, &format!("t/{n}"), AtLeastOnce);
        world.cut(at);
    }
}

#[test]
fn sessions_that_one_identity_left_behind_leave_room_to_others() {
    for publisher in ["mallory", "bob"] {
        each_with(four_megabytes(), |world| {
            left_behind(world, 10);
            let p = world.join(of(publisher, v5("p")));
            let mut taken = [0; 10];
            for round in 0..40 {
                for (n, taken) in taken.iter_mut().enumerate() {
                    let text = format!("{round} {}", "x".repeat(30_000));
                    let sent =
                        world.publish(p, message(&format!("t/{n}"), AtLeastOnce, &text)).unwrap();
                    *taken += usize::from(world.accepted(p, sent) == ReasonCode::SUCCESS);
                }
            }
            let used = world.shared.budget().used();
            assert!(used <= LIMIT / 4 * 3, "{used} of {LIMIT} bytes");
            others_are_served(world);
            // Acknowledged messages wait, all of them, and when they are fetched there is room again.
            for (n, taken) in taken.iter().enumerate() {
                let at = world.join(of("mallory", kept(&format!("m{n}"))));
                assert_eq!(world.messages(at).len(), *taken, "session {n}");
                world.cut(at);
            }
            world.advance(seconds(2));
            let sent = world.publish(p, message("t/3", AtLeastOnce, "again")).unwrap();
            assert_eq!(world.accepted(p, sent), ReasonCode::SUCCESS);
        });
    }
}

#[test]
fn ever_more_sessions_that_are_left_behind_hold_no_more() {
    each_with(four_megabytes(), |world| {
        let s = world.join(of("bob", kept("bob-s")));
        world.subscribe(s, "t/#", AtLeastOnce);
        left_behind(world, 400);
        let p = world.join(of("mallory", v5("p")));
        let mut taken = Vec::new();
        for n in 0..400 {
            let text = format!("{n} {}", "x".repeat(30_000));
            let sent = world.publish(p, message(&format!("t/{n}"), AtLeastOnce, &text)).unwrap();
            if world.accepted(p, sent) == ReasonCode::SUCCESS {
                taken.push(n);
            }
        }
        let used = world.shared.budget().used();
        assert!(used <= LIMIT / 4 * 3 && taken.len() > 90, "{used} bytes of {}", taken.len());
        // A client that reads has the messages that could not wait for the others.
        assert_eq!(world.messages(s).len(), 400);
        world.cut(s);
        others_are_served(world);
        for n in 0..400 {
            let at = world.join(of("mallory", kept(&format!("m{n}"))));
            assert_eq!(world.messages(at).len(), usize::from(taken.contains(&n)), "session {n}");
        }
    });
}

#[test]
fn what_was_acknowledged_is_kept_over_a_restart_whatever_the_share_is() {
    for shards in [1, 3] {
        // More than a share holds, in the name of one who has all of the memory, before there are shares.
        let mut world = World::keeping(settings(), shards, false);
        left_behind(&mut world, 10);
        let m = world.join(of("mallory", v5("p")));
        for n in 0..100 {
            let text = format!("{n} {}", "x".repeat(35_000));
            let topic = format!("t/{}", n % 10);
            let sent = world.publish(m, message(&topic, AtLeastOnce, &text)).unwrap();
            assert_eq!(world.accepted(m, sent), ReasonCode::SUCCESS);
        }
        world.restart_with(four_megabytes(), shards);
        let m = world.join(of("mallory", v5("q")));
        let sent = world.publish(m, message("t/3", AtLeastOnce, "one more")).unwrap();
        assert_eq!(world.accepted(m, sent), ReasonCode::QUOTA_EXCEEDED);
        for n in 0..10 {
            let at = world.join(of("mallory", kept(&format!("m{n}"))));
            assert_eq!(world.messages(at).len(), 10, "session {n}");
        }
        others_are_served(&mut world);
        world.end();
    }
}

#[test]
fn members_of_a_group_whose_identity_has_its_share_are_passed_over() {
    each_with(four_megabytes(), |world| {
        left_behind(world, 10);
        for (user, client) in [("mallory", "group-m"), ("bob", "group-b")] {
            let at = world.join(of(user, kept(client)));
            world.subscribe(at, "$share/g/work", AtLeastOnce);
            world.cut(at);
        }
        let p = world.join(of("carol", v5("p")));
        for round in 0..12 {
            for n in 0..10 {
                let text = format!("{round} {}", "x".repeat(30_000));
                world.publish(p, message(&format!("t/{n}"), AtLeastOnce, &text));
            }
        }
        for n in 0..6 {
            let text = format!("{n} {}", "y".repeat(30_000));
            let sent = world.publish(p, message("work", AtLeastOnce, &text)).unwrap();
            assert_eq!(world.accepted(p, sent), ReasonCode::SUCCESS);
        }
        let at = world.join(of("bob", kept("group-b")));
        assert_eq!(world.messages(at).len(), 6);
        let at = world.join(of("mallory", kept("group-m")));
        assert_eq!(world.messages(at).len(), 0);
    });
}

#[test]
fn messages_that_give_way_keep_no_identity_out_of_its_share() {
    for overflow in [Overflow::DropOldest, Overflow::SpillDisconnect] {
        each_with(four_megabytes(), |world| {
            let gives = SessionConfig { overflow, ..refusing() };
            for n in 0..10 {
                let at = world.join_with(of("ada", kept(&format!("a{n}"))), gives.clone());
                world.subscribe(at, &format!("a/{n}"), AtLeastOnce);
                world.cut(at);
            }
            let p = world.join(of("carol", v5("p")));
            for n in 0..200 {
                let text = "x".repeat(60_000);
                world.publish(p, message(&format!("a/{}", n % 10), AtLeastOnce, &text));
            }
            // Her own, too, since it may be had from the others.
            for user in ["ada", "bob"] {
                let s = world.join(of(user, kept(&format!("{user}-s"))));
                world.subscribe(s, &format!("{user}/t"), AtLeastOnce);
                world.cut(s);
                let mut accepted = 0;
                for _ in 0..16 {
                    let text = "y".repeat(50_000);
                    let topic = format!("{user}/t");
                    let sent = world.publish(p, message(&topic, AtLeastOnce, &text)).unwrap();
                    accepted += usize::from(world.accepted(p, sent) == ReasonCode::SUCCESS);
                }
                // Another shard is asked for memory, and has it ready for the next.
                assert!(accepted >= 8, "{accepted} for {user} under {overflow:?}");
                let s = world.join(of(user, kept(&format!("{user}-s"))));
                assert_eq!(world.messages(s).len(), accepted);
            }
        });
    }
}

#[test]
fn connected_clients_that_acknowledge_nothing_leave_room_to_others() {
    each_with(four_megabytes(), |world| {
        let p = world.join(of("bob", v5("p")));
        let clients: Vec<At> = (0..200)
            .map(|n| {
                let at = world.mute(of("mallory", kept(&format!("m{n}"))));
                world.subscribe(at, &format!("t/{n}"), AtLeastOnce);
                at
            })
            .collect();
        let mut accepted = 0;
        for n in 0..200 {
            for _ in 0..2 {
                let text = "x".repeat(20_000);
                let sent =
                    world.publish(p, message(&format!("t/{n}"), AtLeastOnce, &text)).unwrap();
                accepted += usize::from(world.accepted(p, sent) == ReasonCode::SUCCESS);
            }
        }
        let used = world.shared.budget().used();
        assert!(used <= LIMIT / 8 * 7 && accepted > 150, "{used} bytes of {accepted}");
        others_are_served(world);
        // Their acknowledgements make room again.
        for at in &clients {
            for got in world.messages(*at) {
                world.puback(*at, got.id.unwrap());
            }
        }
        let sent = world.publish(p, message("t/199", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(p, sent), ReasonCode::SUCCESS);
    });
}

/// A client that subscribes to a topic and whose system takes nothing.
fn deaf(world: &mut World, user: &str, topic: &str, qos: QoS) -> At {
    let at = world.mute(of(user, v5(&format!("{user}-{topic}"))));
    world.subscribe(at, topic, qos);
    world.room(at, 0);
    at
}

#[test]
fn connected_clients_that_read_nothing_leave_room_to_others() {
    for qos in [AtMostOnce, AtLeastOnce] {
        each_with(four_megabytes(), |world| {
            let clients: Vec<At> =
                (0..20).map(|n| deaf(world, "mallory", &format!("t/{n}"), qos)).collect();
            let p = world.join(of("bob", v5("p")));
            for n in 0..20 {
                world.publish(p, message(&format!("t/{n}"), qos, &"x".repeat(500_000)));
            }
            let used = world.shared.budget().used();
            assert!(used <= LIMIT / 8 * 7, "{used} bytes wait for clients of one user");
            assert!(world.shared.share_refusals() > 0);
            others_are_served(world);
            for at in clients {
                world.cut(at);
            }
            assert_eq!(world.shared.budget().used(), 0);
            // Nothing of it is in the share any more.
            let heaviest = world.shared.heaviest_identities(10);
            assert!(heaviest.iter().all(|(_, held)| held[0] == 0), "{heaviest:?}");
        });
    }
}

#[test]
fn a_client_that_reads_nothing_ends_once_others_lack_the_memory() {
    each_with(four_megabytes(), |world| {
        let p = world.join(of("bob", v5("p")));
        let mut clients = Vec::new();
        // Each is within its share.
        for n in 0..9 {
            let topic = format!("t/{n}");
            clients.push(deaf(world, &format!("user{n}"), &topic, AtMostOnce));
            world.publish(p, message(&topic, AtMostOnce, &"x".repeat(450_000)));
        }
        let reader = world.join(of("ada", v5("reader")));
        world.subscribe(reader, "news", AtLeastOnce);
        assert!(world.shared.budget().used() > LIMIT / 8 * 7);
        // Nothing is lost yet.
        world.advance(seconds(40));
        assert!(clients.iter().all(|at| world.is_open(*at)));
        let s = world.join(of("carol", kept("s")));
        world.subscribe(s, "carol", AtLeastOnce);
        world.cut(s);
        let sent = world.publish(p, message("carol", AtLeastOnce, &"y".repeat(400_000))).unwrap();
        assert_eq!(world.accepted(p, sent), ReasonCode::QUOTA_EXCEEDED);
        // One that takes some of it is slow, and stays.
        let slow = clients.pop().unwrap();
        for _ in 0..8 {
            world.room(slow, 1_000);
            world.advance(seconds(8));
        }
        assert!(world.is_open(slow));
        assert!(clients.iter().all(|at| !world.is_open(*at)), "they took nothing for 30 s");
        let sent = world.publish(p, message("carol", AtLeastOnce, &"y".repeat(400_000))).unwrap();
        assert_eq!(world.accepted(p, sent), ReasonCode::SUCCESS);
    });
}

#[test]
fn answers_that_are_not_read_are_in_the_share() {
    each_with(four_megabytes(), |world| {
        let clients: Vec<At> = (0..100)
            .map(|n| {
                let at = world.mute(of("mallory", v5(&format!("m{n}"))));
                world.room(at, 0);
                at
            })
            .collect();
        let pings = [0xc0, 0].repeat(20_000);
        for at in &clients {
            if world.is_open(*at) {
                world.raw(*at, &pings);
            }
        }
        let used = world.shared.budget().used();
        assert!((LIMIT / 4..=LIMIT / 8 * 7).contains(&used), "{used} bytes of answers");
        others_are_served(world);
    });
}

#[test]
fn sessions_left_behind_do_not_hold_up_clients_of_their_identity_that_read() {
    each_with(four_megabytes(), |world| {
        left_behind(world, 10);
        let s = world.join(of("mallory", kept("reader")));
        world.subscribe(s, "news", AtLeastOnce);
        let p = world.join(of("mallory", v5("p")));
        for n in 0..200 {
            world.publish(p, message(&format!("t/{}", n % 10), AtLeastOnce, &"x".repeat(30_000)));
        }
        for n in 0..40 {
            let text = format!("{n} {}", "y".repeat(50_000));
            let sent = world.publish(p, message("news", AtLeastOnce, &text)).unwrap();
            assert_eq!(world.accepted(p, sent), ReasonCode::SUCCESS);
            assert_eq!(world.messages(s).len(), 1);
        }
    });
}

#[test]
fn sessions_of_an_identity_with_its_share_that_are_away_for_long_hold_up_no_one() {
    let session = SessionConfig { queue_idle_max: seconds(600), ..refusing() };
    each_with(BrokerConfig { session, ..four_megabytes() }, |world| {
        left_behind(world, 40);
        let p = world.join(of("bob", v5("p")));
        let send = |world: &mut World, n: usize| {
            let text = "x".repeat(30_000);
            let sent = world.publish(p, message(&format!("t/{n}"), AtLeastOnce, &text)).unwrap();
            world.accepted(p, sent)
        };
        for n in 0..200 {
            send(world, n % 39);
        }
        assert_eq!(send(world, 39), ReasonCode::QUOTA_EXCEEDED);
        world.advance(seconds(700));
        for n in 0..45 {
            // Where all memory is in use, another shard is asked for some, and has it ready for the next.
            let taken = (0..2).any(|_| send(world, n % 40) == ReasonCode::SUCCESS);
            assert!(taken, "message {n}");
            world.advance(seconds(60));
        }
        others_are_served(world);
    });
}

#[test]
fn a_message_that_is_larger_than_a_share_may_wait_alone() {
    each_with(BrokerConfig { identity_share: 0.1, ..four_megabytes() }, |world| {
        left_behind(world, 2);
        let p = world.join(of("bob", v5("p")));
        let large = "x".repeat(1_000_000);
        for n in 0..3 {
            for (topic, expected) in
                [("t/0", ReasonCode::SUCCESS), ("t/1", ReasonCode::QUOTA_EXCEEDED)]
            {
                let sent = world.publish(p, message(topic, AtLeastOnce, &large)).unwrap();
                assert_eq!(world.accepted(p, sent), expected, "{topic}, {n}");
            }
            let at = world.join(of("mallory", kept("m0")));
            assert_eq!(world.messages(at).len(), 1);
            world.cut(at);
        }
        others_are_served(world);
    });
}

#[test]
fn wills_and_other_messages_that_cannot_be_refused_hold_no_more() {
    each_with(four_megabytes(), |world| {
        left_behind(world, 10);
        for n in 0..200 {
            let will = will(&format!("t/{}", n % 10), &"x".repeat(40_000));
            let at = world.join(of("bob", Connect { will: Some(will), ..v5("w") }));
            world.cut(at);
        }
        let used = world.shared.budget().used();
        assert!(used <= LIMIT / 4 * 3, "{used} of {LIMIT} bytes");
        let dropped: u64 =
            world.shards.iter().map(|shard| shard.statistics().dropped.queue_full).sum();
        assert!(dropped > 100 || used < LIMIT / 2, "{dropped} are counted");
        others_are_served(world);
    });
}

#[test]
fn a_message_for_many_sessions_of_one_identity_counts_once() {
    each_with(four_megabytes(), |world| {
        for n in 0..50 {
            let at = world.join(of("fleet", kept(&format!("d{n}"))));
            world.subscribe(at, "all", AtLeastOnce);
            world.cut(at);
        }
        let p = world.join(of("ada", v5("p")));
        for _ in 0..20 {
            let sent = world.publish(p, message("all", AtLeastOnce, &"x".repeat(100_000))).unwrap();
            assert_eq!(world.accepted(p, sent), ReasonCode::SUCCESS);
        }
        for n in 0..50 {
            let at = world.join(of("fleet", kept(&format!("d{n}"))));
            assert_eq!(world.messages(at).len(), 20);
        }
    });
}

#[test]
fn messages_in_flight_of_sessions_left_behind_count_as_well() {
    each_with(four_megabytes(), |world| {
        let p = world.join(of("bob", v5("p")));
        for n in 0..30 {
            let at = world.mute(of("mallory", kept(&format!("m{n}"))));
            world.subscribe(at, &format!("t/{n}"), AtLeastOnce);
            for _ in 0..2 {
                world.publish(p, message(&format!("t/{n}"), AtLeastOnce, &"x".repeat(50_000)));
            }
            world.cut(at);
        }
        let held = world.shared.heaviest_identities(1);
        assert!(held[0].0.contains("mallory") && held[0].1[0] > 1_000_000, "{held:?}");
        left_behind(world, 1);
        others_are_served(world);
    });
}

#[test]
fn sessions_that_one_identity_may_leave_are_a_share_of_all() {
    each_with(BrokerConfig { sessions_max: 40, ..four_megabytes() }, |world| {
        let mut refused = 0;
        for n in 0..60 {
            match world.try_connect(of("mallory", kept(&format!("m{n}")))) {
                Ok(at) => world.cut(at),
                Err(error) => {
                    assert_eq!(error.reason, ReasonCode::QUOTA_EXCEEDED);
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, 30);
        // Clients with a session may come back, and others may come.
        let at = world.join(of("mallory", kept("m0")));
        world.cut(at);
        others_are_served(world);
    });
}

#[test]
fn filters_and_aliases_count_in_the_share() {
    each_with(four_megabytes(), |world| {
        let mut refused = 0;
        for n in 0..20 {
            let at = world.join(of("mallory", kept(&format!("m{n}"))));
            for f in 0..20 {
                let filter = format!("{n}/{f}/{}", "f".repeat(30_000));
                refused += usize::from(
                    world.subscribe(at, &filter, AtMostOnce) == ReasonCode::QUOTA_EXCEEDED,
                );
            }
        }
        assert!(refused > 200, "{refused}");
        others_are_served(world);
    });
}

#[test]
fn anonymous_clients_are_told_apart_by_address_over_a_restart() {
    for shards in [1, 3] {
        let mut world = World::keeping(four_megabytes(), shards, false);
        let clients = ["192.0.2.1", "192.0.2.2"].map(|address| Some(address.parse().unwrap()));
        for (name, address) in ["a", "b"].into_iter().zip(clients) {
            world.address = address;
            let at = world.join(kept(name));
            world.subscribe(at, name, AtLeastOnce);
            world.cut(at);
        }
        world.address = None;
        let fill = |world: &mut World, topic| {
            let p = world.join(of("carol", v5("p")));
            let sent = world.publish(p, message(topic, AtLeastOnce, &"x".repeat(500_000)));
            world.accepted(p, sent.unwrap())
        };
        while fill(&mut world, "a") == ReasonCode::SUCCESS {}
        for _ in 0..2 {
            world.restart(shards);
            let heaviest = world.shared.heaviest_identities(9);
            assert_eq!(heaviest[0].0, "anonymous clients of 192.0.2.1");
            assert_eq!(fill(&mut world, "a"), ReasonCode::QUOTA_EXCEEDED);
        }
        assert_eq!(fill(&mut world, "b"), ReasonCode::SUCCESS);
        for (name, address) in ["a", "b"].into_iter().zip(clients) {
            world.address = address;
            let at = world.join(kept(name));
            assert!(!world.messages(at).is_empty());
        }
        world.end();
    }
}

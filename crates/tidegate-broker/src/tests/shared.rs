//! Shared subscriptions (section 4.8.2).

use super::*;

#[test]
fn each_message_goes_to_one_member_and_all_take_part() {
    // MQTT-4.8.2-4
    each(|world| {
        let members: Vec<At> = (0..4).map(|n| world.join(v5(&format!("m{n}")))).collect();
        for member in &members {
            world.subscribe(*member, "$share/g/t/+", AtLeastOnce);
        }
        let outsider = world.join(v5("o"));
        world.subscribe(outsider, "t/1", AtMostOnce);
        let other = world.join(v5("other"));
        world.subscribe(other, "$share/h/t/1", AtMostOnce);
        let p = world.join(v5("p"));
        for _ in 0..40 {
            world.publish(p, message("t/1", AtLeastOnce, "x"));
        }
        let counts: Vec<usize> = members.iter().map(|at| world.messages(*at).len()).collect();
        assert_eq!(counts, [10; 4]);
        assert_eq!((world.messages(outsider).len(), world.messages(other).len()), (40, 40));
    });
}

#[test]
fn a_member_that_leaves_gets_nothing_more_and_the_others_get_all() {
    each(|world| {
        let members: Vec<At> = (0..3).map(|n| world.join(v5(&format!("m{n}")))).collect();
        for member in &members {
            world.subscribe(*member, "$share/g/t", AtLeastOnce);
        }
        let p = world.join(v5("p"));
        world.unsubscribe(members[0], &["$share/g/t"]);
        world.cut(members[1]);
        for _ in 0..10 {
            world.publish(p, message("t", AtLeastOnce, "x"));
        }
        assert_eq!(world.messages(members[0]).len(), 0);
        assert_eq!(world.messages(members[2]).len(), 10);
        world.cut(members[2]);
        let id = world.publish(p, message("t", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::NO_MATCHING_SUBSCRIBERS);
    });
}

#[test]
fn a_member_without_a_connection_is_passed_over_while_another_has_one() {
    each(|world| {
        let first = world.join(kept("first"));
        let second = world.join(kept("second"));
        for at in [first, second] {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
        }
        world.cut(first);
        let p = world.join(v5("p"));
        for _ in 0..4 {
            world.publish(p, message("t", AtLeastOnce, "x"));
        }
        assert_eq!(world.messages(second).len(), 4);
        // With all members away it waits for one of them.
        world.cut(second);
        for _ in 0..4 {
            world.publish(p, message("t", AtLeastOnce, "x"));
        }
        let first = world.join(kept("first"));
        let second = world.join(kept("second"));
        assert_eq!(world.messages(first).len() + world.messages(second).len(), 4);
    });
}

#[test]
fn a_shared_subscription_brings_no_retained_messages() {
    // 4.8.2: retained messages are not sent when it is first made
    each(|world| {
        let p = world.join(v5("p"));
        world.publish(p, retained("t", AtLeastOnce, "x"));
        let s = world.join(v5("s"));
        world.subscribe(s, "$share/g/t", AtLeastOnce);
        assert!(world.messages(s).is_empty());
    });
}

#[test]
fn a_members_own_qos_and_identifier_count() {
    // MQTT-4.8.2-3
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe_to(s, Some(9), vec![filter("$share/g/t", AtMostOnce)]);
        world.subscribe_to(s, Some(8), vec![filter("t", AtLeastOnce)]);
        let p = world.join(v5("p"));
        world.publish(p, message("t", ExactlyOnce, "x"));
        let mut got: Vec<_> =
            world.messages(s).into_iter().map(|d| (d.qos, d.subscriptions)).collect();
        got.sort();
        assert_eq!(got, [(AtMostOnce, vec![9]), (AtLeastOnce, vec![8])]); // 4.8.2: one copy each
    });
}

#[test]
fn a_slow_member_does_not_hold_up_the_group() {
    let config = SessionConfig { queue_bytes_max: 4_000, ..refusing() };
    each(|world| {
        let slow = world.join_with(v5("slow"), config.clone());
        let quick = world.join_with(v5("quick"), config.clone());
        for at in [slow, quick] {
            world.subscribe(at, "$share/g/t", AtMostOnce);
        }
        world.room(slow, 0);
        let p = world.join(v5("p"));
        let payload = "x".repeat(1000);
        for _ in 0..100 {
            world.publish(p, message("t", AtMostOnce, &payload));
        }
        assert!(world.messages(quick).len() > 70);
        // Once it is quick again it takes part again.
        world.room(slow, usize::MAX);
        world.take(slow);
        for _ in 0..10 {
            world.publish(p, message("t", AtMostOnce, &payload));
        }
        assert_eq!(world.messages(slow).len(), 5);
    });
}

/// How a member of a shared subscription ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// Its session ends with its connection.
    Leaves,
    Expires,
    StartsClean,
    IsForgotten,
    /// It is no member any more, and its session ends later.
    Unsubscribes,
}

const ENDS: [End; 5] =
    [End::Leaves, End::Expires, End::StartsClean, End::IsForgotten, End::Unsubscribes];

pub(super) fn dropped(world: &World) -> crate::Dropped {
    let mut sum = crate::Dropped::default();
    world.shards.iter().for_each(|shard| sum.add(shard.statistics().dropped));
    sum
}

pub(super) fn forget(world: &mut World, name: &str) {
    let client = world.placed(name);
    let shard = world.shared.shard_of(&client);
    assert!(world.shards[shard].forget(world.now, &client));
    world.pump();
}

/// Ends a member, connected or not, whose session is kept for an hour unless it is to leave.
fn end(world: &mut World, name: &str, at: At, how: End) {
    match how {
        End::Leaves => world.cut(at),
        End::Expires => {
            world.cut(at);
            world.advance(seconds(3601));
        }
        End::StartsClean => {
            let again = world.join(v5(name));
            world.cut(again);
        }
        End::IsForgotten => forget(world, name),
        End::Unsubscribes => {
            world.unsubscribe(at, &["$share/g/t"]);
            forget(world, name);
        }
    }
}

fn member(name: &str, how: End) -> Connect {
    let mut connect = if how == End::Leaves { v5(name) } else { kept(name) };
    connect.properties.receive_maximum = NonZeroU16::new(5);
    connect
}

#[test]
fn what_a_member_that_ends_did_not_acknowledge_is_anothers() {
    // 4.8.2: messages in flight with QoS 1, and those not sent; MQTT-4.8.2-5: not those begun with QoS 2.
    for how in ENDS {
        for qos in [AtLeastOnce, ExactlyOnce] {
            each(|world| {
                let first = world.mute(member("first", how));
                world.subscribe(first, "$share/g/t", ExactlyOnce);
                let p = world.join(v5("p"));
                for number in 0..20 {
                    world.publish(p, message("t", qos, &number.to_string()));
                }
                let sent = world.messages(first);
                assert_eq!(sent.len(), 5);
                if qos == ExactlyOnce {
                    // Every phase: PUBCOMP came, PUBREC came, nothing came.
                    for delivery in &sent[..2] {
                        world.pubrec(first, delivery.id.unwrap());
                    }
                    world.pubcomp(first, sent[0].id.unwrap());
                }
                let sent = sent.len() + world.messages(first).len();
                let second = world.join(kept("second"));
                world.subscribe(second, "$share/g/t", ExactlyOnce);
                end(world, "first", first, how);
                let got = world.messages(second);
                let texts: Vec<String> = got.iter().map(Delivery::text).collect();
                let begun = if qos == ExactlyOnce { sent } else { 0 };
                let mut expected: Vec<String> = (begun..20).map(|n| n.to_string()).collect();
                if how == End::Unsubscribes && qos == AtLeastOnce {
                    // Messages that had begun continued where they were until that ended.
                    expected.rotate_left(5);
                }
                assert_eq!(texts, expected, "{how:?} {qos:?}");
                assert!(got.iter().all(|delivery| !delivery.dup && delivery.qos == qos));
                // Of QoS 2, two had been taken.
                let lost = begun.saturating_sub(2) as u64;
                let expected = crate::Dropped { session_ended: lost, ..Default::default() };
                assert_eq!(dropped(world), expected, "{how:?} {qos:?}");
            });
        }
    }
}

#[test]
fn what_no_member_takes_is_counted() {
    for how in ENDS {
        each(|world| {
            let last = world.mute(member("last", how));
            world.subscribe(last, "$share/g/t", AtLeastOnce);
            let p = world.join(v5("p"));
            for number in 0..20 {
                world.publish(p, message("t", AtLeastOnce, &number.to_string()));
            }
            end(world, "last", last, how);
            let expected = crate::Dropped { session_ended: 20, ..Default::default() };
            assert_eq!(dropped(world), expected, "{how:?}");
        });
    }
    // Messages that wait for a subscriber of its own are counted, too, when its session ends.
    each(|world| {
        let alone = world.mute(member("alone", End::Expires));
        world.subscribe(alone, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        for number in 0..20 {
            world.publish(p, message("t", AtLeastOnce, &number.to_string()));
        }
        world.cut(alone);
        world.advance(seconds(3601));
        assert_eq!(dropped(world).session_ended, 20);
    });
}

#[test]
fn a_member_that_ends_after_a_restart_leaves_what_waits_to_another() {
    for how in [End::Expires, End::StartsClean, End::IsForgotten] {
        each(|world| {
            if world.tapes.is_empty() {
                return;
            }
            let first = world.mute(member("first", how));
            // It also has them for itself.
            world.subscribe(first, "t", AtLeastOnce);
            world.subscribe(first, "$share/g/t", AtLeastOnce);
            let p = world.join(v5("p"));
            for number in 0..10 {
                world.publish(p, message("t", AtLeastOnce, &number.to_string()));
            }
            let second = world.join(kept("second"));
            world.subscribe(second, "$share/g/t", AtLeastOnce);
            world.cut(second);
            world.restart(world.shards.len());
            match how {
                End::Expires => world.advance(seconds(3500)),
                End::StartsClean => {
                    let again = world.join(v5("first"));
                    world.cut(again);
                }
                _ => forget(world, "first"),
            }
            let second = world.join(kept("second"));
            if how == End::Expires {
                world.advance(seconds(200));
            }
            let mut texts = world.texts(second);
            texts.sort();
            assert_eq!(texts, (0..10).map(|n| n.to_string()).collect::<Vec<_>>(), "{how:?}");
            assert_eq!(dropped(world).session_ended, 10, "its own");
        });
    }
}

#[test]
fn messages_on_disk_for_a_member_that_ends_go_to_another() {
    let session = SessionConfig {
        queue_bytes_max: 10_000,
        overflow: crate::Overflow::SpillDisconnect,
        ..refusing()
    };
    each_with(BrokerConfig { session, ..settings() }, |world| {
        let first = world.join(kept("first"));
        world.subscribe(first, "$share/g/t", AtLeastOnce);
        world.cut(first);
        let p = world.join(v5("p"));
        for number in 0..100 {
            world.publish(p, message("t", AtLeastOnce, &format!("{number:<2000}")));
        }
        assert!(world.disk.bytes() > 100_000);
        world.beyond = 1 << 20;
        let second = world.join(kept("second"));
        world.subscribe(second, "$share/g/t", AtLeastOnce);
        world.cut(second);
        forget(world, "first");
        world.advance(seconds(1));
        let second = world.join(kept("second"));
        let texts: Vec<String> =
            world.texts(second).iter().map(|text| text.trim().to_owned()).collect();
        assert_eq!(texts, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(dropped(world).total(), 0);
    });
}

#[test]
fn members_that_are_full_take_what_was_accepted_for_another() {
    let config = SessionConfig { queue_messages_max: 5, ..refusing() };
    each_with(BrokerConfig { session: config, ..settings() }, |world| {
        let members = ["first", "second"].map(|name| world.join(kept(name)));
        for at in members {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
            world.cut(at);
        }
        let p = world.join(v5("p"));
        let mut accepted = Vec::new();
        for number in 0..20 {
            let id = world.publish(p, message("t", AtLeastOnce, &number.to_string())).unwrap();
            if !world.accepted(p, id).is_failure() {
                accepted.push(number.to_string());
            }
        }
        assert_eq!(accepted.len(), 12);
        forget(world, "first");
        let second = world.join(kept("second"));
        let mut texts = world.texts(second);
        texts.sort_by_key(|text| text.parse::<u32>().unwrap());
        assert_eq!(texts, accepted);
        assert_eq!(dropped(world).total(), 0);
    });
}

#[test]
fn messages_on_their_way_to_an_ended_member_go_to_another() {
    // Between two shards: handed to a member there that ends before it arrives.
    let mut world = World::new(settings(), 3);
    let names = ["zero", "one", "two"];
    let members = names.map(|name| world.join(kept(name)));
    let p = world.join(v5("p"));
    world.subscribe(members[1], "$share/g/t", AtLeastOnce);
    let publisher = world.clients[p.0].shard;
    let gone = world.clients[members[1].0].shard;
    assert_ne!(publisher, gone);
    let publish = Publish { packet_id: Some(id(1)), ..message("t", AtLeastOnce, "x") };
    let bytes = publish_bytes(publish, &[]);
    let key = world.clients[p.0].key.unwrap();
    world.shards[publisher].receive(world.now, key, &bytes);
    // It has left the publisher's shard, and the member ends.
    let mut batch = Vec::new();
    assert!(world.shards[publisher].poll_peers(gone, &mut batch));
    world.subscribe(members[2], "$share/g/t", AtLeastOnce);
    forget(&mut world, "one");
    world.shards[gone].handle_peers(world.now, batch);
    world.pump();
    assert_eq!(world.texts(members[2]), ["x"]);
    assert_eq!(dropped(&world).total(), 0);
}

#[test]
fn a_member_that_is_away_and_keeps_nothing_is_passed_over() {
    for qos in [AtLeastOnce, ExactlyOnce] {
        each(|world| {
            let none = world.join(kept("none"));
            world.subscribe(none, "$share/g/t", AtMostOnce);
            let keeps = world.join(kept("keeps"));
            world.subscribe(keeps, "$share/g/t", ExactlyOnce);
            let publishers = ["p", "q", "r"].map(|name| world.join(v5(name)));
            world.cut(none);
            world.cut(keeps);
            let mut sent = Vec::new();
            for number in 0..9 {
                let at = publishers[number % 3];
                let text = number.to_string();
                let id = world.publish(at, message("t", qos, &text)).unwrap();
                assert_eq!(world.accepted(at, id), ReasonCode::SUCCESS);
                sent.push(text);
            }
            let keeps = world.join(kept("keeps"));
            let mut texts = world.texts(keeps);
            texts.sort();
            assert_eq!((texts, dropped(world).total()), (sent, 0));
            // Where there is no other, it is counted; a QoS 0 message is not expected later.
            world.unsubscribe(keeps, &["$share/g/t"]);
            for at in publishers {
                world.publish(at, message("t", qos, "x"));
                world.publish(at, message("t", AtMostOnce, "x"));
            }
            let expected = crate::Dropped { members_away: 3, ..Default::default() };
            assert_eq!(dropped(world), expected);
        });
    }
}

#[test]
fn a_member_that_leaves_while_a_message_comes_is_passed_over_if_it_keeps_nothing() {
    for has_other in [false, true] {
        let mut world = World::new(settings(), 3);
        let p = world.join(v5("p"));
        let none = world.join(kept("none"));
        let keeps = world.join(kept("keeps"));
        world.subscribe(none, "$share/g/t", AtMostOnce);
        world.hold_peers = true;
        world.publish(p, message("t", AtLeastOnce, "x"));
        if has_other {
            world.subscribe(keeps, "$share/g/t", AtLeastOnce);
            world.cut(keeps);
        }
        world.cut(none);
        world.hold_peers = false;
        world.pump();
        let keeps = world.join(kept("keeps"));
        assert_eq!(world.texts(keeps).len(), usize::from(has_other));
        assert_eq!(dropped(&world).members_away, u64::from(!has_other));
        world.end();
    }
}

#[test]
fn messages_of_a_bridge_go_to_a_member_that_is_not_the_bridge() {
    // A bridge of MQTT 3.1.1 has none of its own messages back, by whatever subscription.
    each(|world| {
        let bridge = world.join(Connect { bridge: true, ..v4("bridge") });
        let other = world.join(kept("other"));
        for at in [bridge, other] {
            world.subscribe(at, "$share/g/t", AtLeastOnce);
        }
        for _ in 0..4 {
            world.publish(bridge, message("t", AtLeastOnce, "x"));
        }
        assert_eq!(world.messages(other).len(), 4);
    });
}

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
fn who_leaves_gets_nothing_more_and_the_others_get_all() {
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
        // With nobody there it waits for one of them.
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
    let config = SessionConfig { queue_bytes_max: 4_000, ..SessionConfig::default() };
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

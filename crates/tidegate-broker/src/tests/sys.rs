//! The node's reports on itself.

use tidegate_message::topic_matches;

use super::*;
use crate::message::MESSAGE_OVERHEAD_BYTES;

const BROKER: &str = "$SYS/broker/";

fn telling() -> BrokerConfig {
    let session_expiry_max = seconds(3600); // not for weeks of telling at a test's end
    BrokerConfig { sys_interval: seconds(10), session_expiry_max, ..settings() }
}

/// The last value of each topic under `$SYS/broker/` that came since the last look.
fn told(world: &mut World, at: At) -> BTreeMap<String, String> {
    let name = |d: &Delivery| d.topic.strip_prefix(BROKER).expect("of the broker").to_owned();
    world.messages(at).iter().map(|d| (name(d), d.text())).collect()
}

fn watch(world: &mut World) -> At {
    let watcher = world.join(v5("watcher"));
    world.subscribe(watcher, "$SYS/#", AtMostOnce);
    watcher
}

/// A subscriber of `t` for which three messages of a byte wait, one was dropped, and of which the kernel takes nothing.
fn slow(world: &mut World, name: &str, publisher: At) -> At {
    let config = SessionConfig { queue_messages_max: 3, ..refusing() };
    let slow = world.join_with(v5(name), config);
    world.subscribe(slow, "t", AtMostOnce);
    world.room(slow, 0);
    // The first ones go to the output.
    while world.shards.iter().all(|shard| shard.statistics().dropped.total() == 0) {
        world.publish(publisher, message("t", AtMostOnce, "x"));
    }
    slow
}

#[test]
fn published_sys_topics_are_those_of_the_book() {
    let book = include_str!("../../../../docs/src/mqtt.md");
    let (_, section) = book.split_once("## What the node counts").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names = |row: &'static str| {
        row.split('|').nth(1).expect("a first column").split('`').skip(1).step_by(2)
    };
    let listed: Vec<&str> = rows.flat_map(names).collect();
    each_with(telling(), |world| {
        // Counts of other parts of the node.
        let parts: [(&str, &[&str]); 3] = [
            ("uplinks", &["looped", "repeated"]),
            ("connection/cloud", &["state"]),
            ("logins", &["waiting", "checked", "gave_up", "busy"]),
        ];
        for (prefix, names) in parts {
            let counts: Vec<_> = names.iter().map(|name| (*name, 0)).collect();
            world.shared.tell_in_sys(prefix, move || Some(counts.clone()));
        }
        let p = world.join(v5("p"));
        let watcher = watch(world);
        slow(world, "slow", p);
        world.advance(seconds(20));
        let told = told(world, watcher);
        for topic in told.keys() {
            let count = listed.iter().filter(|filter| topic_matches(filter, topic)).count();
            assert_eq!(count, 1, "{topic} in the book");
        }
        for filter in &listed {
            let is_told = told.keys().any(|topic| topic_matches(filter, topic));
            assert!(is_told, "{filter} is published");
        }
        // The broker's own, those of the parts, and the one that holds something.
        assert_eq!(told.len(), 75 + 7 + 1, "all there are");
    });
}

#[test]
fn counts_are_the_nodes_own() {
    each_with(telling(), |world| {
        let p = world.join(v5("p"));
        let watcher = watch(world);
        let s = world.join(v5("s"));
        world.subscribe(s, "$share/g/t", AtMostOnce);
        world.subscribe(s, "t", AtMostOnce);
        world.publish(p, retained("t", AtMostOnce, "12345"));
        world.advance(seconds(20));
        let before = told(world, watcher);
        world.publish(p, message("t", AtMostOnce, "12345"));
        world.cut(s);
        let late = world.join(kept("late"));
        world.cut(late);
        world.advance(seconds(20));
        let after = told(world, watcher);
        let of =
            |told: &BTreeMap<String, String>, topic: &str| -> u64 { told[topic].parse().unwrap() };
        for (topic, expected) in [
            ("clients/total", 3),
            ("clients/connected", 2),
            ("clients/inactive", 1),
            ("clients/maximum", 3),
            ("connects", 4),
            ("subscriptions/count", 1),
            ("shared_subscriptions/count", 0),
        ] {
            assert_eq!(of(&after, topic), expected, "{topic}");
        }
        assert_eq!(of(&before, "subscriptions/count"), 3);
        assert_eq!(of(&before, "shared_subscriptions/count"), 1);
        // A PUBLISH of 5 bytes to "t": fixed header 2, topic 3, properties 1.
        for (topic, more) in [
            ("publish/messages/received", 1),
            ("publish/bytes/received", 5),
            ("messages/received", 1),
            ("bytes/received", 11),
            ("publish/messages/dropped", 0),
        ] {
            assert_eq!(of(&after, topic) - of(&before, topic), more, "{topic}");
        }
        // Nothing is held but what is retained.
        assert_eq!(after["store/messages/count"], after["retained messages/count"]);
        // The report takes some of it itself.
        let budget = world.shared.budget();
        for (topic, expected) in [
            ("payload/bytes", budget.used()),
            ("store/messages/bytes", budget.used()),
            ("payload/bytes/maximum", budget.peak()),
        ] {
            assert!(of(&after, topic).abs_diff(expected) < 1_000, "{topic}");
        }
    });
}

#[test]
fn the_most_connections_are_those_of_the_node_at_a_time() {
    each_with(telling(), |world| {
        let watcher = watch(world);
        for name in ["a", "b", "c", "d"] {
            let at = world.join(v5(name)); // each on another shard
            world.leave(at);
        }
        world.advance(seconds(20));
        assert_eq!(told(world, watcher)["clients/maximum"], "2");
    });
}

#[test]
fn a_slow_subscriber_is_named_with_what_it_holds_and_lost_as_long_as_it_does() {
    each_with(telling(), |world| {
        let p = world.join(v5("p"));
        let watcher = watch(world);
        let slow = slow(world, "slow", p);
        world.advance(seconds(20));
        let name = world.placed("slow");
        let first = told(world, watcher);
        let held = 3 * (MESSAGE_OVERHEAD_BYTES + 2);
        let dropped = concat!(
            r#"{"queue_full":1,"spill_full":0,"spill_lost":0,"conflated":0,"#,
            r#""budget_full":0,"expired":0,"too_large":0,"not_allowed":0,"session_ended":0,"#,
            r#""members_away":0}"#
        );
        let json = format!(
            r#"{{"client":"{name}","queued":3,"bytes":{held},"bytes_on_disk":0,"inflight":0,"dropped":{dropped}}}"#
        );
        assert_eq!(first["clients/heaviest"], format!("{held} 3 {name}"));
        assert_eq!(first["clients/heaviest/1"], json);
        assert_eq!(
            (&*first["dropped/queue_full"], &*first["publish/messages/dropped"]),
            ("1", "1")
        );
        world.room(slow, usize::MAX);
        world.advance(seconds(20));
        assert_eq!(told(world, watcher)["clients/heaviest/1"], "");
        world.advance(seconds(10));
        assert!(!told(world, watcher).contains_key("clients/heaviest/1"), "it is published once");
        let late = world.join(v5("late"));
        world.subscribe(late, "$SYS/broker/clients/heaviest/+", AtMostOnce);
        assert!(world.messages(late).is_empty());
    });
}

#[test]
fn loads_are_averages_a_minute() {
    each_with(telling(), |world| {
        let p = world.join(v5("p")); // on the shard that tells
        let watcher = watch(world);
        world.advance(seconds(1));
        for _ in 0..6 {
            for _ in 0..10 {
                world.publish(p, message("t", AtMostOnce, "x"));
            }
            world.advance(seconds(10));
        }
        let told = told(world, watcher);
        for (over, expected) in [("1min", "37.93"), ("5min", "10.88"), ("15min", "3.87")] {
            assert_eq!(told[&format!("load/publish/received/{over}")], expected, "{over}");
        }
    });
}

//! The order in which messages leave (section 4.6).

use super::*;

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

#[test]
fn messages_of_a_topic_keep_their_order_whatever_their_size() {
    // MQTT-4.6.0-5, MQTT-4.6.0-6; with all QoS, quick and slow subscribers, narrow and wide windows
    for (window, room) in [(65_535, usize::MAX), (65_535, 0), (2, usize::MAX), (2, 0), (1, 7)] {
        each(|world| {
            let mut connect = v5("s");
            connect.properties.receive_maximum = NonZeroU16::new(window);
            let s = world.join(connect);
            world.subscribe(s, "#", ExactlyOnce);
            world.room(s, room);
            let p = world.join(v5("p"));
            for number in 0..60 {
                let size = [3, 20_000, 3, 3, 5_000, 12_000, 3][number % 7];
                let text = format!("{number:<size$}");
                let topic = ["a", "b"][number / 3 % 2];
                let qos =
                    [AtLeastOnce, AtMostOnce, ExactlyOnce, AtLeastOnce, AtLeastOnce][number % 5];
                world.publish(p, message(topic, qos, &text));
            }
            for _ in 0..2_000 {
                world.room(s, 1_000);
            }
            world.room(s, usize::MAX);
            let got = world.messages(s);
            assert_eq!(got.len(), 60);
            for topic in ["a", "b"] {
                let order: Vec<usize> = got
                    .iter()
                    .filter(|delivery| delivery.topic == topic)
                    .map(|delivery| delivery.text().trim().parse().unwrap())
                    .collect();
                assert!(order.is_sorted(), "{topic} {order:?} window {window} room {room}");
            }
        });
    }
}

#[test]
fn small_messages_overtake_large_ones_of_other_topics() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        world.room(s, 0);
        let p = world.join(v5("p"));
        world.publish(p, message("first", AtMostOnce, &"x".repeat(100_000)));
        world.publish(p, message("large", AtMostOnce, &"x".repeat(100_000)));
        world.publish(p, message("small", AtMostOnce, "x"));
        world.room(s, usize::MAX);
        let topics: Vec<_> = world.messages(s).into_iter().map(|d| d.topic).collect();
        assert_eq!(topics, ["first", "small", "large"]);
    });
}

#[test]
fn acknowledgements_overtake_messages_that_wait() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        world.room(s, 10);
        let p = world.join(v5("p"));
        for text in numbers(100) {
            world.publish(p, message("a", AtMostOnce, &text));
        }
        world.publish(p, message("b", AtMostOnce, &"x".repeat(50_000)));
        world.send(s, Packet::Pingreq);
        world.room(s, usize::MAX);
        let got = world.take(s);
        let place = got.iter().position(|got| *got == Other(Packet::Pingresp)).unwrap();
        assert!(place <= 2, "{place}");
        assert_eq!(got.len(), 102);
    });
}

#[test]
fn messages_that_waited_without_a_connection_go_before_new_ones() {
    each(|world| {
        let p = world.join(v5("p"));
        let mut connect = kept("s");
        connect.properties.receive_maximum = NonZeroU16::new(3);
        let s = world.mute(connect.clone());
        world.subscribe(s, "#", AtLeastOnce);
        for text in &numbers(30)[..10] {
            world.publish(p, message("a", AtLeastOnce, text));
        }
        world.cut(s);
        for text in &numbers(30)[10..20] {
            world.publish(p, message("a", AtLeastOnce, text));
        }
        let s = world.mute(connect);
        for text in &numbers(30)[20..] {
            world.publish(p, message("a", AtLeastOnce, text));
        }
        let mut seen = Vec::new();
        loop {
            let got = world.messages(s);
            if got.is_empty() {
                break;
            }
            for delivery in got {
                seen.push(delivery.text());
                world.puback(s, delivery.id.unwrap());
            }
        }
        assert_eq!(seen, numbers(30));
    });
}

#[test]
fn publishers_are_answered_in_order() {
    // MQTT-4.6.0-2, -3, -4
    each(|world| {
        let p = world.join(v5("p"));
        let ids: Vec<PacketId> =
            (0..20).map(|_| world.publish(p, message("t", ExactlyOnce, "x")).unwrap()).collect();
        let got = world.take(p);
        let order =
            |pick: fn(&Got) -> Option<PacketId>| got.iter().filter_map(pick).collect::<Vec<_>>();
        let recs = order(|got| match got {
            Other(Packet::Pubrec(ack)) => Some(ack.packet_id),
            _ => None,
        });
        let comps = order(|got| match got {
            Other(Packet::Pubcomp(ack)) => Some(ack.packet_id),
            _ => None,
        });
        assert_eq!((&recs, &comps), (&ids, &ids));
    });
}

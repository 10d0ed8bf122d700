//! SUBSCRIBE and UNSUBSCRIBE (sections 3.8 to 3.11), filters (4.7).

use super::*;

#[test]
fn suback_grants_what_was_asked() {
    // MQTT-3.8.4-5, -6, -7; MQTT-3.9.3-1, -2
    let filters = [
        ("a", AtMostOnce, 0x00),
        ("a/+", AtLeastOnce, 0x01),
        ("a/#", ExactlyOnce, 0x02),
        ("/", AtMostOnce, 0x00),
        ("$share/g/a", AtLeastOnce, 0x01),
    ];
    each(|world| {
        for connect in [v5("a"), v4("b"), Connect { version: Version::V3, ..v4("c") }] {
            let at = world.join(connect);
            let asked = filters.map(|(text, qos, _)| filter(text, qos)).to_vec();
            let expected = filters.map(|(_, _, code)| ReasonCode(code));
            assert_eq!(world.subscribe_to(at, None, asked), expected);
        }
    });
}

#[test]
fn unsuback_says_what_there_was() {
    // MQTT-3.10.4-4 to -6, MQTT-3.11.3-1
    each(|world| {
        let at = world.join(v5("a"));
        world.subscribe(at, "a/+", AtMostOnce);
        world.subscribe(at, "$share/g/b", AtMostOnce);
        let none = ReasonCode::NO_SUBSCRIPTION_EXISTED;
        let reasons =
            world.unsubscribe(at, &["a/b", "a/+", "a/+", "$share/g/b", "$share/h/b", "x"]);
        let expected = [none, ReasonCode::SUCCESS, none, ReasonCode::SUCCESS, none, none];
        assert_eq!(reasons, expected); // MQTT-3.10.4-1: compared character by character
        let p = world.join(v5("p"));
        world.publish(p, message("a/b", AtMostOnce, "x"));
        world.publish(p, message("b", AtMostOnce, "x"));
        assert!(world.messages(at).is_empty()); // MQTT-3.10.4-2
        let old = world.join(v4("b"));
        assert!(world.unsubscribe(old, &["a"]).is_empty()); // 3.1.1: MQTT-3.10.4-5
    });
}

#[test]
fn overlapping_subscriptions_give_one_copy_of_the_highest_qos_with_all_identifiers() {
    // MQTT-3.3.4-2, -3, -4, -5
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe_to(s, Some(1), vec![filter("a/#", AtMostOnce)]);
        world.subscribe_to(s, Some(2_000_000), vec![filter("a/+", ExactlyOnce)]);
        world.subscribe_to(s, None, vec![filter("a/b", AtLeastOnce)]);
        world.subscribe_to(s, Some(2_000_000), vec![filter("#", AtMostOnce)]);
        let p = world.join(v5("p"));
        world.publish(p, message("a/b", ExactlyOnce, "x"));
        let got = world.messages(s);
        assert_eq!(got.len(), 1);
        let mut ids = got[0].subscriptions.clone();
        ids.sort_unstable();
        assert_eq!((got[0].qos, ids), (ExactlyOnce, vec![1, 2_000_000, 2_000_000]));
        world.publish(p, message("other", AtLeastOnce, "x"));
        assert_eq!(world.messages(s)[0].subscriptions, [2_000_000]);
    });
}

#[test]
fn the_same_filter_again_replaces_the_subscription() {
    // MQTT-3.8.4-3
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe_to(s, Some(1), vec![filter("a", ExactlyOnce)]);
        world.subscribe_to(s, Some(2), vec![filter("a", AtLeastOnce)]);
        assert_eq!(world.shared.subscriptions(), 1);
        let p = world.join(v5("p"));
        world.publish(p, message("a", ExactlyOnce, "x"));
        let got = world.messages(s);
        assert_eq!((got.len(), got[0].qos), (1, AtLeastOnce));
        assert_eq!(got[0].subscriptions, [2]);
        world.subscribe_to(s, None, vec![filter("a", AtLeastOnce)]);
        world.publish(p, message("a", ExactlyOnce, "x"));
        assert!(world.messages(s)[0].subscriptions.is_empty());
    });
}

#[test]
fn no_local_keeps_a_clients_own_messages_from_it() {
    // MQTT-3.8.3-3
    each(|world| {
        let s = world.join(v5("s"));
        let no_local = |text, qos| SubscribeFilter { no_local: true, ..filter(text, qos) };
        world.subscribe_to(s, Some(1), vec![no_local("a/#", ExactlyOnce)]);
        let p = world.join(v5("p"));
        for at in [s, p] {
            world.publish(at, message("a/b", AtLeastOnce, "x"));
        }
        assert_eq!(world.messages(s).len(), 1);
        // Another subscription without it brings them, with its own QoS and identifier.
        world.subscribe_to(s, Some(2), vec![filter("a/b", AtLeastOnce)]);
        world.publish(s, message("a/b", ExactlyOnce, "x"));
        let got = world.messages(s);
        assert_eq!((got.len(), got[0].qos), (1, AtLeastOnce));
        assert_eq!(got[0].subscriptions, [2]);
    });
}

#[test]
fn wildcards_do_not_match_topics_of_the_server() {
    // MQTT-4.7.2-1
    let config =
        BrokerConfig { sys_interval: seconds(10), session_expiry_max: seconds(3600), ..settings() };
    each_with(config, |world| {
        let all = world.join(v5("all"));
        world.subscribe(all, "#", AtMostOnce);
        world.subscribe(all, "+/broker/uptime", AtMostOnce);
        let sys = world.join(v5("sys"));
        world.subscribe(sys, "$SYS/broker/uptime", AtMostOnce);
        world.advance(seconds(25));
        assert!(world.messages(all).is_empty());
        assert!(world.texts(sys).contains(&"20 seconds".to_owned()));
        // No other client publishes there.
        let p = world.join(v5("p"));
        let id = world.publish(p, message("$SYS/broker/uptime", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::NOT_AUTHORIZED);
        // Other topics with $ have no owner.
        world.subscribe(sys, "$other/#", AtMostOnce);
        world.publish(p, message("$other/a", AtMostOnce, "x"));
        assert_eq!(world.messages(sys).len(), 1);
        assert!(world.messages(all).is_empty());
    });
}

#[test]
fn subscriptions_of_a_session_are_limited() {
    let session = SessionConfig { topic_levels_max: 3, ..refusing() };
    let config = BrokerConfig { subscriptions_max: 2, session, ..settings() };
    each_with(config, |world| {
        let at = world.join(v5("a"));
        let filters = ["a", "b", "c", "a", "1/2/3/4"].map(|text| filter(text, AtMostOnce)).to_vec();
        let (granted, full) = (ReasonCode::SUCCESS, ReasonCode::QUOTA_EXCEEDED);
        let invalid = ReasonCode::TOPIC_FILTER_INVALID;
        assert_eq!(
            world.subscribe_to(at, None, filters),
            [granted, granted, full, granted, invalid]
        );
        world.publish(at, message("1/2/3/4", AtMostOnce, "x"));
        assert_eq!(world.end_reason(at), Some(ReasonCode::TOPIC_NAME_INVALID));
    });
}

#[test]
fn a_subscription_holds_for_the_next_message_of_every_shard() {
    each(|world| {
        let publishers: Vec<At> = (0..6).map(|n| world.join(v5(&format!("p{n}")))).collect();
        for round in 0..3 {
            let s = world.join(v5(&format!("s{round}")));
            for p in &publishers {
                world.publish(*p, message("t", AtMostOnce, "before"));
            }
            world.subscribe(s, "t", AtMostOnce);
            for p in &publishers {
                world.publish(*p, message("t", AtMostOnce, "after"));
            }
            assert_eq!(world.texts(s), ["after"; 6]);
            world.unsubscribe(s, &["t"]);
            world.publish(publishers[0], message("t", AtMostOnce, "late"));
            assert!(world.texts(s).is_empty());
        }
    });
}

#[test]
fn a_subscribe_of_many_filters_is_taken_as_far_as_packets_may_be() {
    // 3.2.2.3.6: the maximum packet size in CONNACK holds for all packets that may be long.
    let config = BrokerConfig { subscriptions_max: 30_000, ..settings() };
    each_with(config, |world| {
        for connect in [v5("a"), v4("b")] {
            let version = connect.version;
            let at = world.join(connect);
            let names: Vec<String> = (0..20_000).map(|n| format!("site/line/{n:06}/+")).collect();
            let filters = names.iter().map(|name| filter(name, AtLeastOnce)).collect();
            let (packet_id, user_properties) = (id(7), Vec::new());
            let packet = Subscribe { packet_id, subscription_id: None, user_properties, filters };
            let mut bytes = Vec::new();
            Packet::Subscribe(packet).encode(version, &mut bytes).unwrap();
            assert!(bytes.len() > crate::CONTROL_BYTES_MAX);
            for part in bytes.chunks(50_000) {
                world.raw(at, part);
            }
            world.advance(seconds(1));
            let reasons = world.answer(at, |packet| match packet {
                Packet::Suback(suback) => Some(suback.reasons.clone()),
                _ => None,
            });
            assert_eq!(reasons, vec![ReasonCode::GRANTED_QOS_1; 20_000]);
            assert_eq!(world.shared.subscriptions(), 20_000);
            let (packet_id, user_properties) = (id(8), Vec::new());
            let packet = Unsubscribe { packet_id, user_properties, filters: names };
            world.send(at, Packet::Unsubscribe(packet));
            world.advance(seconds(1));
            let reasons = world.answer(at, |packet| match packet {
                Packet::Unsuback(unsuback) => Some(unsuback.reasons.clone()),
                _ => None,
            });
            // Before MQTT 5 it has none.
            let count = if version == Version::V5 { 20_000 } else { 0 };
            assert_eq!(reasons, vec![ReasonCode::SUCCESS; count]);
            assert_eq!(world.shared.subscriptions(), 0);
            world.cut(at);
        }
    });
}

#[test]
fn many_filters_hold_up_no_other_client() {
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "t", AtMostOnce);
        let at = world.join(kept("a"));
        let names: Vec<String> = (0..2_000).map(|number| format!("many/{number}")).collect();
        let filters = names.iter().map(|name| filter(name, AtLeastOnce)).collect();
        let (packet_id, user_properties) = (id(7), Vec::new());
        let packet = Subscribe { packet_id, subscription_id: None, user_properties, filters };
        world.send(at, Packet::Subscribe(packet));
        // Packets behind it are taken after it, and others are served meanwhile.
        world.send(at, Packet::Pingreq);
        let some = world.shared.subscriptions();
        assert!((2..=300).contains(&some), "{some}");
        assert_eq!(world.take(at), []);
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtMostOnce, "x"));
        assert_eq!(world.texts(s), ["x"]);
        world.advance(seconds(1));
        let reasons = world.answer(at, |packet| match packet {
            Packet::Suback(suback) => Some(suback.reasons.clone()),
            _ => None,
        });
        assert_eq!(reasons, vec![ReasonCode::GRANTED_QOS_1; 2_000]);
        assert_eq!(world.take(at), [Other(Packet::Pingresp)]);
        assert_eq!(world.shared.subscriptions(), 2_001);

        let (packet_id, user_properties) = (id(8), Vec::new());
        let packet = Unsubscribe { packet_id, user_properties, filters: names };
        world.send(at, Packet::Unsubscribe(packet));
        let some = world.shared.subscriptions();
        assert!((1_500..2_001).contains(&some), "{some}");
        // The connection ends in between; another one to the session is read from.
        world.cut(at);
        let at = world.join(kept("a"));
        assert!(!world.is_paused(at));
        world.send(at, Packet::Pingreq);
        assert_eq!(world.take(at), [Other(Packet::Pingresp)]);
        world.advance(seconds(1));
        assert_eq!(world.shared.subscriptions(), some);
    });
}

#[test]
fn more_filters_than_a_session_may_have_are_not_even_read() {
    let mut world = World::new(settings(), 1);
    for (kind, options) in [(0x82, 1), (0xa2, 0)] {
        let at = world.join(v5("a"));
        let one = [0, 1, b'a', 0];
        let mut body = vec![0, 1, 0];
        (0..200_000).for_each(|_| body.extend(&one[..3 + options]));
        let mut bytes = vec![kind];
        tidegate_wire::mqtt::encode_variable(u32::try_from(body.len()).unwrap(), &mut bytes);
        bytes.extend(body);
        world.raw(at, &bytes);
        assert_eq!(world.end_reason(at), Some(ReasonCode::QUOTA_EXCEEDED));
        // Nor are properties without end.
        let at = world.join(v5("a"));
        let mut body = vec![0, 1, 0x80, 0x80, 0x20];
        body.resize(600_000, 0x26);
        let mut bytes = vec![kind];
        tidegate_wire::mqtt::encode_variable(u32::try_from(body.len()).unwrap(), &mut bytes);
        bytes.extend(body);
        world.raw(at, &bytes);
        assert_eq!(world.end_reason(at), Some(ReasonCode::PACKET_TOO_LARGE));
    }
}

#[test]
fn mqtt_3_1_is_never_told_of_a_failure_that_it_has_no_word_for() {
    // 3.1, section 3.8: a positive acknowledgement, and no subscription; where there is no room, the end of the connection.
    let rules = Arc::new(DenySecrets);
    let config = BrokerConfig { subscriptions_max: 2, ..settings() };
    let mut world = World::with_rules(config, 1, rules);
    let at = world.join(Connect { version: Version::V3, ..v4("a") });
    let filters = ["a", "secret/x"].map(|text| filter(text, AtLeastOnce)).to_vec();
    assert_eq!(world.subscribe_to(at, None, filters), [ReasonCode::GRANTED_QOS_1; 2]);
    assert_eq!(world.shared.subscriptions(), 1);
    for text in ["b", "c"] {
        let packet_id = world.fresh_id(at);
        let filters = vec![filter(text, AtMostOnce)];
        let user_properties = Vec::new();
        let packet = Subscribe { packet_id, subscription_id: None, user_properties, filters };
        world.send(at, Packet::Subscribe(packet));
    }
    assert_eq!(world.end_reason(at), None);
    let old = world.join(v4("b"));
    let refused = world.subscribe(old, "secret/x", AtMostOnce);
    assert_eq!(refused, ReasonCode::UNSPECIFIED_ERROR);
}

/// No client has secret topics.
#[derive(Debug)]
struct DenySecrets;

impl Authorize for DenySecrets {
    fn decide(
        &self,
        _: &Identity,
        _: tidegate_message::Action,
        target: tidegate_message::Target<'_>,
    ) -> tidegate_message::Decision {
        let is_secret = match target {
            tidegate_message::Target::Topic(text) | tidegate_message::Target::Filter(text) => {
                text.starts_with("secret/")
            }
            _ => false,
        };
        tidegate_message::Decision { allow: !is_secret, rule: "secrets".into() }
    }

    fn generation(&self) -> u64 {
        0
    }

    fn receives_all(&self) -> bool {
        false
    }
}

/// The reason of the SUBACK that came, if one did.
fn granted(world: &mut World, at: At) -> Option<ReasonCode> {
    world.take(at).into_iter().find_map(|got| match got {
        Other(Packet::Suback(suback)) => Some(suback.reasons[0]),
        _ => None,
    })
}

fn ask(world: &mut World, at: At, text: &str) {
    let filters = vec![filter(text, AtLeastOnce)];
    let (packet_id, user_properties) = (world.fresh_id(at), Vec::new());
    let packet = Subscribe { packet_id, subscription_id: None, user_properties, filters };
    world.send(at, Packet::Subscribe(packet));
}

#[test]
fn held_suback_leaves_when_it_is_released_or_late() {
    each(|world| {
        let bound = seconds(2);
        world.shards.iter_mut().for_each(|shard| shard.hold_subacks(Some(bound)));
        let (s, p) = (world.join(v5("s")), world.join(v5("p")));
        ask(world, s, "a/#");
        assert_eq!(granted(world, s), None);
        let (shard, number, filters) = world.held.pop().expect("the shell is told");
        assert_eq!(filters, [Arc::from("a/#")]);
        // Messages and other answers do not wait for it.
        world.publish(p, message("a/b", AtLeastOnce, "x"));
        assert_eq!(world.texts(s), ["x"]);
        world.send(s, Packet::Pingreq);
        assert_eq!(world.take(s), [Other(Packet::Pingresp)]);
        world.shards[shard].release_suback(number);
        world.pump();
        assert_eq!(granted(world, s), Some(ReasonCode::GRANTED_QOS_1));
        world.shards[shard].release_suback(number);
        world.advance(bound);
        assert_eq!(world.take(s), []);

        // One that nothing releases leaves after the bound; one of a client that has gone does not.
        let gone = world.join(v5("gone"));
        ask(world, s, "b");
        ask(world, gone, "b");
        world.cut(gone);
        world.advance(bound - Duration::from_millis(1));
        assert_eq!(granted(world, s), None);
        world.advance(Duration::from_millis(1));
        assert_eq!(granted(world, s), Some(ReasonCode::GRANTED_QOS_1));

        // A part of the node, and what is refused, wait for nothing; nor does anything once the shell holds no more.
        world.held.clear();
        world.is_own = true;
        let part = world.join(v5("part"));
        world.is_own = false;
        ask(world, part, "c");
        assert_eq!(granted(world, part), Some(ReasonCode::GRANTED_QOS_1));
        ask(world, s, "d");
        assert_eq!((granted(world, s), world.held.len()), (None, 1));
        world.shards.iter_mut().for_each(|shard| shard.hold_subacks(None));
        world.pump();
        assert_eq!(granted(world, s), Some(ReasonCode::GRANTED_QOS_1));
        ask(world, s, "e");
        assert_eq!(granted(world, s), Some(ReasonCode::GRANTED_QOS_1));
    });
}

#[test]
fn held_subacks_are_bounded() {
    let mut world = World::new(settings(), 1);
    world.shards[0].hold_subacks(Some(seconds(3600)));
    let s = world.join(v5("s"));
    for number in 0..1_030 {
        ask(&mut world, s, &format!("t/{number}"));
    }
    let left = world.take(s).len();
    assert_eq!((left, world.held.len()), (1_030 - 1_024, 1_030));
    world.end();
}

#[test]
fn filters_of_all_sessions_are_given_once() {
    each(|world| {
        let before = world.shared.subscription_changes();
        for (name, filters) in [("a", &["t", "u/#"][..]), ("b", &["u/#"]), ("c", &["$share/g/v"])] {
            let at = world.join(kept(name));
            filters.iter().for_each(|filter| _ = world.subscribe(at, filter, AtLeastOnce));
            world.cut(at);
        }
        let all = |world: &World| {
            let of = |shard: &Broker| shard.all_filters(&|name, _| !name.starts_with('x'));
            let mut all: Vec<Arc<str>> = world.shards.iter().flat_map(of).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        assert_eq!(all(world), ["$share/g/v", "t", "u/#"].map(Arc::from));
        let after = world.shared.subscription_changes();
        assert!(after > before);
        assert_eq!(world.shared.subscription_changes(), after);
        let a = world.join(v5("a"));
        world.cut(a);
        assert_eq!(all(world), ["$share/g/v", "u/#"].map(Arc::from));
        assert!(world.shared.subscription_changes() > after);
    });
}

#[test]
fn groups_that_are_left_in_steps_hand_on_what_waits_though_the_connection_ends() {
    each(|world| {
        let (leaver, other) = (world.join(kept("leaver")), world.join(kept("other")));
        for at in [leaver, other] {
            world.subscribe(at, "$share/g/#", AtLeastOnce);
        }
        let names: Vec<String> = (0..600).map(|number| format!("many/{number}")).collect();
        for part in names.chunks(200) {
            let filters = part.iter().map(|name| filter(name, AtLeastOnce)).collect();
            let (packet_id, user_properties) = (world.fresh_id(leaver), Vec::new());
            let packet = Subscribe { packet_id, subscription_id: None, user_properties, filters };
            world.send(leaver, Packet::Subscribe(packet));
        }
        world.take(leaver);
        world.room(leaver, 1);
        world.cut(other);
        // All wait for the one that is there and does not read.
        let p = world.join(v5("p"));
        let texts: Vec<String> = (0..40).map(|number| format!("{number:<2000}")).collect();
        for text in &texts {
            world.publish(p, message("t", AtLeastOnce, text));
        }
        let filters = std::iter::once("$share/g/#".to_owned()).chain(names).collect();
        let packet = Unsubscribe { packet_id: id(9), user_properties: Vec::new(), filters };
        world.send(leaver, Packet::Unsubscribe(packet));
        // Its connection ends before the last step.
        world.cut(leaver);
        let other = world.join(kept("other"));
        let got = world.texts(other).len();
        let leaver = world.join(kept("leaver"));
        let kept = world.texts(leaver).len();
        assert_eq!(got + kept, texts.len(), "{got} and {kept}");
        assert!(got > 0, "messages that had not begun are the other's");
    });
}

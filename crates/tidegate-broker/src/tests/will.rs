//! Wills (sections 3.1.2.5, 3.1.3.2 and 3.14).

use super::*;

fn with_will(connect: Connect, delay: u32) -> Connect {
    Connect { will: Some(Will { delay, ..will("w", "gone") }), ..connect }
}

fn watch(world: &mut World) -> At {
    let watcher = world.join(v5("watcher"));
    world.subscribe(watcher, "w", ExactlyOnce);
    watcher
}

#[test]
fn a_will_is_published_on_every_end_but_a_plain_goodbye() {
    // MQTT-3.1.2-8, MQTT-3.1.2-10, MQTT-3.14.4-3
    type End = fn(&mut World, At);
    let ends: [(&str, End, usize); 8] = [
        ("cut", |world, at| world.cut(at), 1),
        ("goodbye", |world, at| world.leave(at), 0),
        (
            "goodbye with will",
            |world, at| world.disconnect(at, Disconnect::new(ReasonCode::DISCONNECT_WITH_WILL)),
            1,
        ),
        (
            "goodbye with an error",
            |world, at| world.disconnect(at, Disconnect::new(ReasonCode::UNSPECIFIED_ERROR)),
            1,
        ),
        ("malformed", |world, at| world.raw(at, &[0x00, 0]), 1),
        ("silent", |world, _| world.advance(seconds(60)), 1),
        (
            "taken over",
            |world, _| {
                world.join(v5("c"));
            },
            1,
        ),
        (
            "kicked",
            |world, _| {
                let name = world.placed("c");
                assert!(world.shards.iter_mut().any(|shard| shard.kick(&name)));
                world.pump();
            },
            1,
        ),
    ];
    for (name, end, expected) in ends {
        for connect in [v5("c"), kept("c")] {
            each(|world| {
                let watcher = watch(world);
                let at = world.join(Connect { keep_alive: 30, ..with_will(connect.clone(), 0) });
                end(world, at);
                assert_eq!(world.messages(watcher).len(), expected, "{name}");
                assert!(!world.is_open(at));
            });
        }
    }
}

#[test]
fn a_will_before_mqtt_5_goes_unless_the_client_says_goodbye() {
    // 3.1.1: MQTT-3.1.2-8, MQTT-3.14.4-3
    each(|world| {
        let watcher = watch(world);
        let at = world.join(with_will(v4("c"), 0));
        world.leave(at);
        assert!(world.messages(watcher).is_empty());
        let at = world.join(with_will(v4("c"), 0));
        world.cut(at);
        assert_eq!(world.texts(watcher), ["gone"]);
    });
}

#[test]
fn an_invalid_goodbye_does_not_spare_the_will() {
    each(|world| {
        let watcher = watch(world);
        let at = world.join(with_will(v5("c"), 0));
        world.disconnect(at, Disconnect { session_expiry: Some(5), ..Disconnect::default() });
        assert_eq!(world.end_reason(at), Some(ReasonCode::PROTOCOL_ERROR));
        assert_eq!(world.texts(watcher), ["gone"]);
    });
}

#[test]
fn a_will_waits_for_its_delay_or_the_end_of_the_session() {
    // MQTT-3.1.3-9, 3.1.3.2.2: whichever happens first
    for (delay, expiry, at_second) in [(10, 100, 10), (100, 10, 10), (10, 0, 0), (0, 100, 0)] {
        each(|world| {
            let watcher = watch(world);
            let mut connect = with_will(kept("c"), delay);
            connect.properties.session_expiry = Some(expiry);
            let at = world.join(connect);
            world.cut(at);
            if at_second > 0 {
                world.advance(seconds(at_second) - Duration::from_nanos(1));
                assert!(world.messages(watcher).is_empty(), "{delay} {expiry}");
                world.advance(Duration::from_nanos(1));
            }
            assert_eq!(world.texts(watcher), ["gone"], "{delay} {expiry}");
            world.advance(seconds(1000));
            assert!(world.messages(watcher).is_empty());
        });
    }
}

#[test]
fn a_session_resumed_in_time_cancels_the_delayed_will() {
    // MQTT-3.1.3-9
    each(|world| {
        let watcher = watch(world);
        let at = world.join(with_will(kept("c"), 10));
        world.cut(at);
        world.advance(seconds(9));
        let at = world.join(kept("c"));
        world.advance(seconds(20));
        assert!(world.messages(watcher).is_empty());
        world.cut(at); // the new connection has no will
        world.advance(seconds(20));
        assert!(world.messages(watcher).is_empty());
    });
}

#[test]
fn a_takeover_that_resumes_spares_a_delayed_will_and_one_that_starts_clean_does_not() {
    for (clean_start, expected) in [(false, 0), (true, 1)] {
        each(|world| {
            let watcher = watch(world);
            let _at = world.join(with_will(kept("c"), 10));
            world.join(Connect { clean_start, ..kept("c") });
            assert_eq!(world.messages(watcher).len(), expected);
            world.advance(seconds(20));
            assert!(world.messages(watcher).is_empty());
        });
    }
}

#[test]
fn a_takeover_publishes_a_will_without_a_delay_also_where_the_session_goes_on() {
    // MQTT-3.1.2-8 of both versions, and the comment behind MQTT-3.1.4-3: "If the Will Delay is 0 the Will Message is sent at the
    // close of the existing Network Connection". Before MQTT 5 nothing but DISCONNECT takes a will away.
    for version in [Version::V3, Version::V4, Version::V5] {
        for clean_start in [false, true] {
            each(|world| {
                let watcher = watch(world);
                let connect = Connect { version, clean_start: false, ..kept("c") };
                let connect = match version {
                    Version::V5 => connect,
                    _ => Connect { properties: ConnectProperties::default(), ..connect },
                };
                let old = world.join(with_will(connect.clone(), 0));
                world.subscribe(old, "t", AtLeastOnce);
                let new = world.connect(Connect { clean_start, ..with_will(connect.clone(), 0) });
                let resumed = world.connack(new).session_present;
                assert_eq!(world.texts(watcher), ["gone"], "{version:?}");
                // 3.1 has no word for it.
                assert!(resumed != clean_start || version == Version::V3, "{version:?}");
                // The new connection has one of its own.
                world.cut(new);
                assert_eq!(world.texts(watcher), ["gone"], "{version:?}");
            });
        }
    }
}

#[test]
fn a_clean_start_after_the_end_publishes_the_delayed_will() {
    each(|world| {
        let watcher = watch(world);
        let at = world.join(with_will(kept("c"), 10));
        world.cut(at);
        world.join(v5("c"));
        assert_eq!(world.texts(watcher), ["gone"]); // the session ended
    });
}

#[test]
fn a_will_keeps_its_qos_properties_expiry_and_retain() {
    // MQTT-3.1.2-14, MQTT-3.1.2-15, 3.1.3.2
    each(|world| {
        let watcher = watch(world);
        let mut forwarded = Vec::new();
        ForwardedProperties {
            is_utf8: true,
            content_type: Some("text/plain"),
            response_topic: Some("answers"),
            correlation_data: Some(b"7"),
            user_properties: vec![("a", "1"), ("a", "2")],
        }
        .encode(&mut forwarded)
        .unwrap();
        let will = Will {
            qos: AtLeastOnce,
            retain: true,
            message_expiry: Some(30),
            forwarded: forwarded.clone(),
            ..will("w", "gone")
        };
        let at = world.join(Connect { will: Some(will), ..v5("c") });
        world.cut(at);
        let got = &world.messages(watcher)[0];
        assert_eq!((got.qos, got.retain, got.expiry), (AtLeastOnce, false, Some(30)));
        assert_eq!(got.forwarded, forwarded);
        let late = world.join(v5("late"));
        world.advance(seconds(10));
        world.subscribe(late, "w", AtMostOnce);
        let got = &world.messages(late)[0];
        assert_eq!((got.retain, got.expiry), (true, Some(20)));
    });
}

#[test]
fn a_will_with_an_empty_payload_forgets_the_retained_message() {
    each(|world| {
        let at = world.join(v5("p"));
        world.publish(at, retained("w", AtMostOnce, "x"));
        let connect = Connect { will: Some(Will { retain: true, ..will("w", "") }), ..v5("c") };
        let at = world.join(connect);
        world.cut(at);
        assert_eq!(world.shared.retained_count(), 0);
    });
}

#[test]
fn the_will_of_a_topic_that_is_the_servers_own_is_not_published() {
    each(|world| {
        let watcher = world.join(v5("watcher"));
        world.subscribe(watcher, "$SYS/#", AtMostOnce);
        let at = world.join(Connect { will: Some(will("$SYS/broker/version", "mine")), ..v5("c") });
        world.cut(at);
        assert!(world.messages(watcher).is_empty());
    });
}

#[test]
fn a_will_that_finds_no_memory_is_refused() {
    let config = BrokerConfig { payload_bytes_max: 500, ..settings() };
    each_with(config, |world| {
        let connect = Connect { will: Some(will("w", &"x".repeat(1000))), ..v5("c") };
        assert_eq!(world.try_connect(connect).unwrap_err().reason, ReasonCode::QUOTA_EXCEEDED);
    });
}

#[test]
fn a_bridge_of_another_broker_tells_its_state() {
    // As Mosquitto's bridges do: retained, and "0" as a will.
    each(|world| {
        let watcher = world.join(v5("watcher"));
        world.subscribe(watcher, "$SYS/broker/connection/+/state", AtLeastOnce);
        let topic = "$SYS/broker/connection/site7.cloud/state";
        let connect = Connect {
            will: Some(Will { retain: true, qos: AtLeastOnce, ..will(topic, "0") }),
            bridge: true,
            ..v4("site7.cloud")
        };
        let bridge = world.join(connect);
        world.publish(bridge, retained(topic, AtLeastOnce, "1"));
        world.cut(bridge);
        assert_eq!(world.texts(watcher), ["1", "0"]);
        // Nothing else of the server's.
        let p = world.join(v5("p"));
        for topic in ["$SYS/broker/connection/a/b/state", "$SYS/broker/version", "$SYS/x"] {
            let id = world.publish(p, message(topic, AtLeastOnce, "x")).unwrap();
            assert_eq!(world.accepted(p, id), ReasonCode::NOT_AUTHORIZED, "{topic}");
        }
        // Nor the state of a bridge of this node.
        let own: Arc<str> = "$SYS/broker/connection/own/state".into();
        let state = crate::MessageRef::new(&own, crate::Body::Read(b"1"), world.now);
        let state = crate::MessageRef { retain: true, ..state };
        world.shards[0].publish_internal(world.now, state);
        let id = world.publish(p, retained(&own, AtLeastOnce, "0")).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::NOT_AUTHORIZED);
    });
}

#[test]
fn the_state_of_a_bridge_of_this_node_is_its_own_before_it_was_ever_connected() {
    each(|world| {
        let topic = "$SYS/broker/connection/own/state";
        // Until its remote end answers, a bridge says that it is down by its will alone.
        world.is_own = true;
        let connect =
            Connect { will: Some(Will { retain: true, ..will(topic, "0") }), ..v5("own") };
        let bridge = world.join(connect);
        world.is_own = false;
        world.cut(bridge);
        let p = world.join(v5("p"));
        let id = world.publish(p, retained(topic, AtLeastOnce, "1")).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::NOT_AUTHORIZED);
    });
}

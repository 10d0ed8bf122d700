//! CONNECT and CONNACK (sections 3.1 and 3.2), takeover, keep alive.

use super::*;

#[test]
fn connack_tells_what_the_server_takes() {
    // 3.2.2.3
    let session = SessionConfig { packet_bytes_max: 70_000, ..refusing() };
    let config = BrokerConfig { session, receive_maximum: 9, ..settings() };
    each_with(config, |world| {
        let a = world.connect(v5("a"));
        let connack = world.connack(a);
        assert!(!connack.session_present); // MQTT-3.2.2-2
        assert_eq!(connack.reason, ReasonCode::SUCCESS);
        let properties = connack.properties;
        assert_eq!(properties.maximum_packet_size, Some(70_000));
        assert_eq!(properties.receive_maximum, NonZeroU16::new(9));
        assert_eq!(properties.topic_alias_maximum, 64);
        assert_eq!(properties.assigned_client_id, None);
        assert_eq!(properties.session_expiry, None);
        assert_eq!(properties.server_keep_alive, None);
        let b = world.connect(v4("b"));
        assert_eq!(world.connack(b).reason, ReasonCode::SUCCESS);
    });
}

#[test]
fn an_empty_client_identifier_is_assigned_or_refused() {
    for (connect, expected) in [
        (v5(""), Ok(())),                                   // MQTT-3.1.3-6, MQTT-3.2.2-16
        (Connect { clean_start: false, ..v5("") }, Ok(())), // MQTT 5 has no such rule
        (v4(""), Ok(())),                                   // 3.1.1: MQTT-3.1.3-6
        // 3.1.1: MQTT-3.1.3-8
        (Connect { clean_start: false, ..v4("") }, Err(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID)),
        // 3.1 wants 1 to 23 characters.
        (Connect { version: Version::V3, ..v4("") }, Err(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID)),
    ] {
        each(|world| {
            let version = connect.version;
            let first = world.try_connect(connect.clone());
            match expected {
                Ok(()) => {
                    let (first, second) = (first.unwrap(), world.connect(connect.clone()));
                    let mut assigned = |at| world.connack(at).properties.assigned_client_id;
                    let (first, second) = (assigned(first), assigned(second));
                    if version == Version::V5 {
                        assert!(first.is_some() && second.is_some() && first != second);
                    }
                }
                Err(reason) => {
                    let refused = first.unwrap_err();
                    assert_eq!(refused.reason, reason);
                    // 3.1.1, 3.2.2.3: return code 2
                    assert_eq!(refused.connack, [0x20, 2, 0, 2]);
                }
            }
        });
    }
}

#[test]
fn an_assigned_name_can_be_used_again() {
    each(|world| {
        let mut connect = kept("");
        connect.clean_start = true;
        let at = world.connect(connect);
        let name = world.connack(at).properties.assigned_client_id.unwrap();
        world.subscribe(at, "t", AtLeastOnce);
        world.cut(at);
        world.names.insert(name.clone(), name.clone());
        let at = world.connect(kept(&name));
        assert!(world.connack(at).session_present);
    });
}

#[test]
fn session_present_says_whether_there_is_one() {
    // MQTT-3.1.2-4, MQTT-3.1.2-5, MQTT-3.2.2-2, MQTT-3.2.2-3; 3.1.1: MQTT-3.1.2-6, MQTT-3.2.2-1 to 3
    let clean = |connect: Connect| Connect { clean_start: true, ..connect };
    let unclean = |connect: Connect| Connect { clean_start: false, ..connect };
    for (first, second, expected) in [
        (kept("c"), kept("c"), true),
        (clean(kept("c")), kept("c"), true),
        (kept("c"), clean(kept("c")), false),
        (unclean(v5("c")), kept("c"), false), // an expiry of 0 ends with the connection
        (kept("c"), unclean(v5("c")), true),
        (unclean(v4("c")), unclean(v4("c")), true),
        (v4("c"), unclean(v4("c")), false), // 3.1.1: what began clean ends with the connection
        (unclean(v4("c")), v4("c"), false),
        (unclean(v4("c")), kept("c"), true), // another version finds it too
        (kept("c"), unclean(v4("c")), true),
    ] {
        for cut_first in [true, false] {
            each(|world| {
                let at = world.join(first.clone());
                if cut_first {
                    world.cut(at);
                }
                let at = world.connect(second.clone());
                let present = world.connack(at).session_present;
                assert_eq!(present, expected, "{first:?} then {second:?}");
            });
        }
    }
}

#[test]
fn another_connection_takes_the_session_over() {
    // MQTT-3.1.4-3: DISCONNECT with 0x8E, then the network connection closes
    each(|world| {
        let first = world.join(kept("c"));
        world.subscribe(first, "t", AtLeastOnce);
        let second = world.connect(kept("c"));
        assert!(world.connack(second).session_present);
        assert_eq!(world.end_reason(first), Some(ReasonCode::SESSION_TAKEN_OVER));
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtLeastOnce, "x"));
        assert_eq!(world.texts(second), ["x"]);
        // 3.1.1 says nothing, it closes (MQTT-3.1.4-2)
        let first = world.join(v4("d"));
        let _second = world.join(v4("d"));
        assert_eq!(world.end_reason(first), None);
    });
}

#[test]
fn silence_ends_the_connection_after_one_and_a_half_times_the_keep_alive() {
    // MQTT-3.1.2-22 (3.1.1: MQTT-3.1.2-24)
    each(|world| {
        let a = world.join(Connect { keep_alive: 10, ..v5("a") });
        let b = world.join(Connect { keep_alive: 10, ..v4("b") });
        let c = world.join(v5("c")); // 0: no limit
        world.advance(Duration::from_millis(14_000));
        world.send(b, Packet::Pingreq); // MQTT-3.12.4-1
        assert_eq!(world.take(b), [Other(Packet::Pingresp)]);
        world.advance(Duration::from_millis(999));
        assert!(world.is_open(a));
        world.advance(Duration::from_millis(1));
        assert_eq!(world.end_reason(a), Some(ReasonCode::KEEP_ALIVE_TIMEOUT));
        world.advance(Duration::from_millis(13_999));
        assert!(world.is_open(b));
        world.advance(Duration::from_millis(1));
        assert_eq!(world.end_reason(b), None);
        world.advance(seconds(1_000_000));
        assert!(world.is_open(c));
    });
}

#[test]
fn a_part_of_a_packet_counts_as_life() {
    each(|world| {
        let a = world.join(Connect { keep_alive: 10, ..v5("a") });
        let b = world.join(v5("b"));
        world.subscribe(b, "t", AtMostOnce);
        let payload = "x".repeat(300_000);
        let bytes = publish_bytes(message("t", AtMostOnce, &payload), &[]);
        for part in bytes.chunks(30_000) {
            world.advance(seconds(14));
            world.raw(a, part);
        }
        assert_eq!(world.texts(b), [payload]);
    });
}

#[test]
fn the_server_may_shorten_the_keep_alive() {
    // MQTT-3.1.2-21, MQTT-3.2.2-22
    let config = BrokerConfig { keep_alive_max: 60, ..settings() };
    each_with(config, |world| {
        for (asked, told, ends) in [(0, Some(60), 90), (600, Some(60), 90), (20, None, 30)] {
            let at = world.connect(Connect { keep_alive: asked, ..v5("a") });
            assert_eq!(world.connack(at).properties.server_keep_alive, told);
            world.advance(seconds(ends - 1));
            assert!(world.is_open(at));
            world.advance(seconds(1));
            assert_eq!(world.end_reason(at), Some(ReasonCode::KEEP_ALIVE_TIMEOUT));
        }
    });
}

#[test]
fn a_client_of_this_process_may_be_silent() {
    let session = SessionConfig { is_local: true, ..settings().session };
    let config = BrokerConfig { keep_alive_max: 60, session, ..settings() };
    each_with(config, |world| {
        let at = world.connect(v5("a"));
        assert_eq!(world.connack(at).properties.server_keep_alive, None);
        world.advance(seconds(3600));
        assert!(world.is_open(at));
    });
}

#[test]
fn a_bridge_keeps_retain_and_gets_nothing_of_its_own() {
    each(|world| {
        let bridge = world.join(Connect { bridge: true, ..v4("bridge") });
        let p = world.join(v4("p"));
        world.subscribe(bridge, "#", AtMostOnce);
        world.publish(bridge, message("t", AtMostOnce, "own"));
        world.publish(p, retained("t", AtMostOnce, "other"));
        let got = world.messages(bridge);
        assert_eq!(got.len(), 1);
        assert!(got[0].retain && got[0].text() == "other");
    });
}

#[test]
fn sessions_are_limited_on_all_shards_together() {
    for shards in [1, 3] {
        let config = BrokerConfig { sessions_max: 1, ..settings() };
        let mut world = World::new(config, shards);
        let _a = world.join(v5("a"));
        for other in ["b", "c", "d"] {
            let refused = world.try_connect(v5(other)).unwrap_err();
            assert_eq!(refused.reason, ReasonCode::QUOTA_EXCEEDED);
            assert_eq!(world.try_connect(v4(other)).unwrap_err().connack, [0x20, 2, 0, 3]);
        }
        world.join(v5("a")); // takes its own place
        world.end();
    }
}

#[test]
fn an_administrator_and_a_stop_say_why() {
    each(|world| {
        let a = world.join(v5("a"));
        let b = world.join(v5("b"));
        let name = world.placed("a");
        for shard in &mut world.shards {
            shard.kick(&name);
        }
        world.pump();
        assert_eq!(world.end_reason(a), Some(ReasonCode::ADMINISTRATIVE_ACTION));
        for shard in &mut world.shards {
            shard.shut_down();
        }
        world.pump();
        assert_eq!(world.end_reason(b), Some(ReasonCode::SERVER_SHUTTING_DOWN));
    });
}

#[test]
fn a_keep_alive_over_the_limit_is_refused_where_it_cannot_be_told() {
    // Before MQTT 5 there is no Server Keep Alive; the answer is Mosquitto's, "identifier rejected".
    let config = BrokerConfig { keep_alive_max: 60, ..settings() };
    each_with(config, |world| {
        for version in [Version::V3, Version::V4] {
            for keep_alive in [0, 61, 65_535] {
                let connect = Connect { version, keep_alive, ..v4("a") };
                assert_eq!(world.try_connect(connect).unwrap_err().connack, [0x20, 2, 0, 2]);
            }
            for keep_alive in [1, 60] {
                let connect = Connect { version, keep_alive, ..v4("a") };
                assert!(world.try_connect(connect).is_ok());
            }
        }
    });
}

#[test]
fn versions_that_are_not_spoken_are_refused() {
    let versions = [Version::V3, Version::V4, Version::V5];
    each(|world| {
        for spoken in [&versions[..], &versions[2..], &versions[1..2], &versions[..2]] {
            for version in versions {
                let connect = Connect { version, ..v5("a") };
                let versions = crate::Versions::of(spoken.iter().copied());
                let config = SessionConfig { versions, ..refusing() };
                let found = world.try_connect_with(connect, config);
                assert_eq!(found.is_ok(), spoken.contains(&version), "{spoken:?} {version:?}");
                if let Err(refused) = found {
                    let old = version != Version::V5;
                    assert_eq!(refused.connack[3], if old { 1 } else { 0x84 });
                }
            }
        }
    });
}

#[test]
fn identifiers_are_given_as_the_settings_say() {
    let config = SessionConfig { auto_id_prefix: "site7/".into(), ..refusing() };
    let none = SessionConfig { allow_zero_length_client_id: false, ..refusing() };
    each(|world| {
        let at = world.try_connect_with(v5(""), config.clone()).unwrap();
        let given = world.connack(at).properties.assigned_client_id.unwrap();
        assert!(given.starts_with("site7/"), "{given}");
        let refused = world.try_connect_with(v5(""), none.clone()).unwrap_err();
        assert_eq!(refused.reason, ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
        let refused = world.try_connect_with(v4(""), none.clone()).unwrap_err();
        assert_eq!(refused.connack, [0x20, 2, 0, 2]);
        assert!(world.try_connect_with(v4("a"), none.clone()).is_ok());
    });
}

/// Counts lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<std::sync::atomic::AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn strangers_who_ask_for_sessions_of_others_fill_no_log() {
    let lines = Lines::default();
    let count = lines.0.clone();
    tracing::subscriber::with_default(lines, || {
        for name in ["dev", "$node/sink/archive"] {
            let mut world = World::new(settings(), 1);
            let owned = Connect { username: Some("ada".to_owned()), ..kept("dev") };
            let at = world.join(owned);
            let before = count.load(std::sync::atomic::Ordering::Relaxed);
            for number in 0..1000 {
                let user = format!("stranger {number}");
                let connect = Connect { username: Some(user), ..v5(name) };
                let refused = world.try_connect(connect).expect_err("it is another's");
                assert_eq!(refused.reason, ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
            }
            let written = count.load(std::sync::atomic::Ordering::Relaxed) - before;
            assert_eq!(written, 20, "{name}");
            world.leave(at);
        }
    });
}

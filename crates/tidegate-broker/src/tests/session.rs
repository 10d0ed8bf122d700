//! The state that a session keeps and how long (section 4.1, 3.1.2.11.2, 3.14.2.2.2).

use super::*;

fn expiring(seconds: u32) -> Connect {
    let mut connect = kept("c");
    connect.properties.session_expiry = Some(seconds);
    connect
}

fn is_present(world: &mut World) -> bool {
    let at = world.connect(expiring(1000));
    let present = world.connack(at).session_present;
    world.cut(at);
    present
}

#[test]
fn a_session_outlives_its_connection_by_its_expiry() {
    // MQTT-3.1.2-23
    for (wait, expected) in [(0, true), (9, true), (10, false), (11, false)] {
        each(|world| {
            let at = world.join(expiring(10));
            world.advance(seconds(100)); // only time without a connection counts
            world.cut(at);
            world.advance(seconds(wait));
            assert_eq!(is_present(world), expected, "after {wait} s");
        });
    }
}

#[test]
fn resuming_restarts_the_expiry() {
    each(|world| {
        let at = world.join(expiring(10));
        world.cut(at);
        world.advance(seconds(8));
        let at = world.join(expiring(10));
        world.advance(seconds(8)); // the first end is past
        world.cut(at);
        world.advance(seconds(8));
        assert!(is_present(world));
    });
}

#[test]
fn disconnect_may_change_the_expiry_but_not_raise_it_from_zero() {
    // 3.14.2.2.2
    let leaving = |seconds| Disconnect { session_expiry: Some(seconds), ..Disconnect::default() };
    for (first, then, wait, expected) in
        [(10, 20, 15, true), (10, 20, 20, false), (10, 0, 0, false), (10, 5, 6, false)]
    {
        each(|world| {
            let at = world.join(expiring(first));
            world.disconnect(at, leaving(then));
            assert_eq!(world.end_reason(at), None);
            world.advance(seconds(wait));
            assert_eq!(is_present(world), expected, "{first} then {then}, after {wait} s");
        });
    }
    each(|world| {
        let at = world.join(expiring(0));
        world.disconnect(at, leaving(10));
        assert_eq!(world.end_reason(at), Some(ReasonCode::PROTOCOL_ERROR));
        assert!(!is_present(world));
    });
}

#[test]
fn the_server_cuts_the_expiry_and_says_so() {
    let config = BrokerConfig { session_expiry_max: seconds(100), ..settings() };
    each_with(config, |world| {
        for (asked, told) in [(50, None), (100, None), (101, Some(100)), (u32::MAX, Some(100))] {
            let at = world.connect(expiring(asked));
            assert_eq!(world.connack(at).properties.session_expiry, told, "{asked}");
        }
        let at = world.join(Connect { clean_start: false, ..v4("c") });
        world.cut(at);
        world.advance(seconds(99));
        assert!(is_present(world));
        world.advance(seconds(1000));
        assert!(!is_present(world));
    });
}

#[test]
fn a_session_keeps_subscriptions_and_messages_of_qos_1_and_2() {
    // 4.1; 3.1.1: MQTT-3.1.2-5
    let unclean = Connect { clean_start: false, ..v4("c") };
    for connect in [kept("c"), unclean] {
        each(|world| {
            let at = world.join(connect.clone());
            world.subscribe(at, "t/#", ExactlyOnce);
            world.cut(at);
            let p = world.join(v5("p"));
            for (qos, text) in [
                (AtMostOnce, "lost"),
                (AtLeastOnce, "one"),
                (ExactlyOnce, "two"),
                (AtLeastOnce, "three"),
            ] {
                world.publish(p, message("t/a", qos, text));
            }
            let at = world.connect(connect.clone());
            let got = world.messages(at);
            let qos: Vec<QoS> = got.iter().map(|delivery| delivery.qos).collect();
            let texts: Vec<String> = got.iter().map(Delivery::text).collect();
            assert_eq!(texts, ["one", "two", "three"]);
            assert_eq!(qos, [AtLeastOnce, ExactlyOnce, AtLeastOnce]);
            assert!(got.iter().all(|delivery| !delivery.dup)); // MQTT-3.3.1-1: sent for the first time
            // A clean start forgets the subscription.
            world.cut(at);
            let at = world.connect(Connect { clean_start: true, ..connect.clone() });
            world.publish(p, message("t/a", AtLeastOnce, "four"));
            assert!(world.messages(at).is_empty());
        });
    }
}

#[test]
fn an_expired_session_forgets_what_waits() {
    each(|world| {
        let at = world.join(expiring(10));
        world.subscribe(at, "t", AtLeastOnce);
        world.cut(at);
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtLeastOnce, "x"));
        assert!(world.shared.budget().used() > 0);
        world.advance(seconds(10));
        assert_eq!((world.shared.budget().used(), world.shared.subscriptions()), (0, 0));
        let expired: u64 = world.shards.iter().map(|s| s.statistics().expired_sessions).sum();
        assert_eq!(expired, 1);
    });
}

#[test]
fn a_session_may_change_its_version() {
    each(|world| {
        let at = world.join(kept("c"));
        world.subscribe_to(at, Some(7), vec![filter("t", AtLeastOnce)]);
        world.cut(at);
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtLeastOnce, "old"));
        let at = world.connect(Connect { clean_start: false, ..v4("c") });
        world.acknowledges(at, false);
        world.publish(p, message("t", AtLeastOnce, "new"));
        assert_eq!(world.texts(at), ["old", "new"]);
        world.cut(at);
        let at = world.connect(kept("c"));
        let got = world.messages(at);
        // The first was acknowledged while the client still did.
        assert!(got.iter().all(|delivery| delivery.subscriptions == [7]), "{got:?}");
    });
}

#[test]
fn reconnecting_often_leaves_no_timers_behind() {
    let mut world = World::new(settings(), 1);
    for _ in 0..1000 {
        let at = world.join(kept("c"));
        world.cut(at);
    }
    assert_eq!(world.shards[0].timers(), 1);
    world.end();
}

#[test]
fn ended_sessions_leave_no_timers_behind() {
    let mut world = World::new(settings(), 1);
    let (now, broker) = (world.now, &mut world.shards[0]);
    let mut pass = |connect: Connect| {
        let identity = Identity::anonymous(&connect.client_id);
        let config = Arc::new(refusing());
        let request = ConnectRequest { connect, identity, config, authentication_data: None };
        let key = broker.connect(now, request).expect("the broker accepts");
        broker.closed(now, key);
        broker.timers()
    };
    let patient = |connect| Connect { keep_alive: 65_535, ..connect };
    for number in 0..100_000 {
        assert_eq!(pass(patient(v5(&number.to_string()))), 0);
    }
    // One for the end of the session, one for its will.
    let late = Will { delay: 3_000, ..will("w", "x") };
    for _ in 0..1_000 {
        let connect = Connect { will: Some(late.clone()), ..patient(kept("c")) };
        assert_eq!(pass(Connect { clean_start: true, ..connect.clone() }), 2);
        assert_eq!(pass(connect), 2);
    }
    assert_eq!(pass(v5("c")), 0);
    world.end();
}

#[test]
fn a_connection_has_one_timer_for_its_silence() {
    let mut world = World::new(settings(), 1);
    let at = world.join(Connect { keep_alive: 10, ..v5("c") });
    for _ in 0..100 {
        world.advance(seconds(9));
        world.send(at, Packet::Pingreq);
        assert_eq!(world.shards[0].timers(), 1);
    }
    world.advance(seconds(15));
    assert_eq!(world.end_reason(at), Some(ReasonCode::KEEP_ALIVE_TIMEOUT));
    assert_eq!(world.shards[0].timers(), 0);
}

/// A client of a user that finds its session again.
fn of_user(user: Option<&str>) -> Connect {
    Connect { username: user.map(str::to_owned), ..kept("c") }
}

#[test]
fn a_session_is_never_another_users() {
    for other in [Some("b"), None] {
        for is_connected in [true, false] {
            each(|world| {
                let w = world.join(v5("w"));
                let first = world.join(of_user(Some("a")));
                world.subscribe(first, "t", AtLeastOnce);
                if !is_connected {
                    world.cut(first);
                }
                for clean_start in [true, false] {
                    let refused = world.try_connect(Connect { clean_start, ..of_user(other) });
                    let reason = refused.unwrap_err().reason;
                    assert_eq!(reason, ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
                }
                world.publish(w, message("t", AtLeastOnce, "for a"));
                if is_connected {
                    assert!(world.is_open(first), "no other client has ended it");
                    assert_eq!(world.texts(first), ["for a"]);
                    world.cut(first);
                }
                let again = world.connect(of_user(Some("a")));
                assert!(world.connack(again).session_present);
            });
        }
    }
}

#[test]
fn an_anonymous_session_ends_where_a_user_comes_by_its_name() {
    for is_connected in [true, false] {
        each(|world| {
            let w = world.join(v5("w"));
            world.subscribe(w, "gone", AtMostOnce);
            let late = Will { delay: 100, ..will("gone", "x") };
            let first = world.join(Connect { will: Some(late), ..of_user(None) });
            world.subscribe(first, "t", AtLeastOnce);
            if !is_connected {
                world.cut(first);
                world.publish(w, message("t", AtLeastOnce, "for nobody in particular"));
            }
            let second = world.connect(of_user(Some("b")));
            assert!(!world.connack(second).session_present);
            if is_connected {
                assert_eq!(world.end_reason(first), Some(ReasonCode::SESSION_TAKEN_OVER));
            }
            // MQTT-3.1.2-8: the session ended, so its will does not wait.
            assert_eq!(world.texts(w), ["x"]);
            world.publish(w, message("t", AtLeastOnce, "now"));
            assert!(world.messages(second).is_empty());
            assert_eq!(world.shared.subscriptions(), 1);
        });
    }
}

#[test]
fn sessions_are_listed_with_their_owners_and_ended_with_all_they_have() {
    each(|world| {
        let of = |name: &str, user: &str| Connect { username: Some(user.into()), ..kept(name) };
        let will = Some(will("gone", "x"));
        let here = world.join(Connect { will, ..of("here", "ada") });
        let away = world.join(of("away", "ada"));
        let other = world.join(of("other", "bob"));
        for at in [here, away, other] {
            world.subscribe(at, "t", AtLeastOnce);
        }
        let watcher = world.join(v5("w"));
        world.subscribe(watcher, "gone", AtMostOnce);
        world.cut(away);
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtLeastOnce, "x"));
        let mut listed: Vec<_> = world
            .shards
            .iter()
            .flat_map(|shard| {
                shard.sessions_after("", 10, &|_, who| who.kind == IdentityKind::User)
            })
            .map(|report| {
                (
                    report.client_id.to_string(),
                    report.user.to_string(),
                    report.connected,
                    report.queued,
                )
            })
            .collect();
        listed.sort();
        let row = |name: &str, user: &str, connected, queued| {
            (world.names[name].clone(), user.to_owned(), connected, queued)
        };
        let mut expected = [
            row("here", "ada", true, 0),
            row("away", "ada", false, 1),
            row("other", "bob", true, 0),
        ];
        expected.sort();
        assert_eq!(listed, expected);
        for shard in &world.shards {
            let all = shard.sessions_after("", 10, &|_, _| true);
            for (at, first) in all.iter().enumerate() {
                let behind = shard.sessions_after(&first.client_id, 1, &|_, _| true);
                let next = all.get(at + 1).map(|report| &report.client_id);
                assert_eq!(behind.first().map(|report| &report.client_id), next);
            }
        }

        // No other client has the name until it is free.
        let connect = of("away", "carol");
        let refused = world.try_connect(connect.clone()).expect_err("it is ada's");
        assert_eq!(refused.reason, ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
        assert!(
            !String::from_utf8_lossy(&refused.connack).contains("ada"),
            "the owner is not named"
        );
        let (now, ada) = (world.now, |_: &str, who: &Identity| &*who.name == "ada");
        let ended: usize = world.shards.iter_mut().map(|shard| shard.end_sessions(now, &ada)).sum();
        assert_eq!(ended, 2);
        world.pump();
        assert_eq!(world.end_reason(here), Some(ReasonCode::ADMINISTRATIVE_ACTION));
        assert_eq!(world.texts(watcher), ["x"], "its will");
        assert!(world.is_open(other));
        let away = world.connect(connect);
        assert!(!world.connack(away).session_present);
        world.publish(p, message("t", AtLeastOnce, "y"));
        assert!(world.texts(away).is_empty());
        assert_eq!(world.texts(other), ["x", "y"]);
    });
}

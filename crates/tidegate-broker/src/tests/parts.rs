//! Parts of the node: their sessions while they are away, gone and back, and their names.

use std::collections::HashSet;

use super::{journal::check, *};
use crate::{Dropped, Overflow, PART_GRACE, SessionReport, part_id};

const DAY: Duration = Duration::from_secs(24 * 3600);
const NAMES: [&str; 3] = ["bridge/plant", "sink/archive", "uplink/core/batched"];

fn each_keeping(config: &SessionConfig, mut test: impl FnMut(&mut World)) {
    for (shards, is_gated) in [(1, false), (3, false), (1, true), (3, true)] {
        let config = BrokerConfig { session: config.clone(), ..settings() };
        let mut world = World::keeping(config, shards, is_gated);
        test(&mut world);
        check(&world);
        configure(&mut world, &[]);
        world.advance(PART_GRACE);
        world.end();
    }
}

/// The part of that name connects to its session; whether that was there.
fn part(world: &mut World, name: &str) -> (At, bool) {
    world.is_own = true;
    let properties = ConnectProperties { session_expiry: Some(u32::MAX), ..Default::default() };
    let (kind, name) = name.split_once('/').unwrap();
    let connect = Connect { clean_start: false, properties, ..v5(&part_id(kind, name)) };
    let session = world.shared.config().session.clone();
    let at = world.try_connect_with(connect, SessionConfig { is_local: true, ..session });
    world.is_own = false;
    let at = at.expect("it is let in");
    (at, world.connack(at).session_present)
}

/// The parts of these names are configured, and no others.
fn configure(world: &mut World, names: &[&str]) {
    let ids = names.iter().map(|name| {
        let (kind, name) = name.split_once('/').unwrap();
        world.placed(&part_id(kind, name))
    });
    let ids: HashSet<String> = ids.collect();
    let now = world.now;
    world.shards.iter_mut().for_each(|shard| shard.configure_parts(now, &ids));
    world.pump();
}

/// All parts have a session that is subscribed, and are away.
fn away(world: &mut World) {
    for name in NAMES {
        let (at, was_there) = part(world, name);
        assert!(!was_there, "{name}");
        world.subscribe(at, "t", AtLeastOnce);
        world.cut(at);
    }
    configure(world, &NAMES);
}

fn publish(world: &mut World, at: At, text: &str) -> ReasonCode {
    let id = world.publish(at, message("t", AtLeastOnce, text)).unwrap();
    while world.flush_journals() {}
    world.accepted(at, id)
}

fn reports(world: &World) -> Vec<SessionReport> {
    let mut all: Vec<_> =
        world.shards.iter().flat_map(|shard| shard.sessions_after("", 100, &|_, _| true)).collect();
    all.retain(|report| report.kind == IdentityKind::Internal);
    all
}

fn dropped(world: &World) -> Dropped {
    let mut sum = Dropped::default();
    world.shards.iter().for_each(|shard| sum.add(shard.statistics().dropped));
    sum
}

#[test]
fn a_part_that_is_configured_keeps_its_session_however_long_it_is_away() {
    each_keeping(&refusing(), |world| {
        away(world);
        let p = world.join(v5("p"));
        assert_eq!(publish(world, p, "0"), ReasonCode::SUCCESS);
        // Longer than the sessions of clients may be away.
        world.advance(20 * DAY);
        world.restart(world.shards.len() % 3 + 1);
        configure(world, &NAMES);
        world.advance(20 * DAY);
        for name in NAMES {
            let (at, was_there) = part(world, name);
            assert!(was_there, "{name}");
            assert_eq!(world.texts(at), ["0"], "{name}");
            world.cut(at);
        }
    });
}

#[test]
fn a_part_that_is_gone_refuses_no_publisher_and_ends_when_its_grace_is_over() {
    for overflow in [Overflow::Disconnect, Overflow::BlockPublisher, Overflow::SpillDisconnect] {
        let config = SessionConfig { queue_messages_max: 10, overflow, ..Default::default() };
        let each = |world: &mut World| {
            world.disk.set_bytes_max(0);
            away(world);
            let p = world.join(v5("p"));
            let mut accepted = 0;
            while !world.is_paused(p) && publish(world, p, "before") == ReasonCode::SUCCESS {
                accepted += 1;
                assert!(
                    accepted < 1_000,
                    "{overflow:?}: a part that is away holds back publishers"
                );
            }
            configure(world, &[]);
            for report in reports(world) {
                let left = report.grace_ends.expect("it is gone").since(world.now);
                assert_eq!(left, PART_GRACE, "{}", report.client_id);
            }
            let p = world.join(v5("p"));
            for number in 0..100 {
                assert_eq!(
                    publish(world, p, "after"),
                    ReasonCode::SUCCESS,
                    "{overflow:?} {number}"
                );
            }
            // A part of the grace in each process.
            for wait in [DAY, DAY] {
                world.advance(wait);
                world.restart(world.shards.len());
                configure(world, &[]);
            }
            let waits: usize = reports(world).iter().map(|report| report.queued).sum();
            assert!(waits > 0, "{overflow:?}");
            world.advance(DAY - seconds(1));
            assert_eq!(reports(world).len(), NAMES.len());
            let before = dropped(world).session_ended;
            world.advance(seconds(2));
            assert_eq!(reports(world), []);
            assert_eq!(dropped(world).session_ended - before, waits as u64, "{overflow:?}");
        };
        each_keeping(&config, each);
    }
}

/// Which users are gone.
fn gone_users(world: &mut World, names: &[&str]) {
    let (now, names) = (world.now, names.to_vec());
    for shard in &mut world.shards {
        shard.mark_gone_users(now, &|identity| names.contains(&&*identity.name));
    }
    world.pump();
}

#[test]
fn user_that_is_gone_refuses_no_publisher_and_comes_back_to_what_waits() {
    for overflow in [Overflow::Disconnect, Overflow::BlockPublisher, Overflow::SpillDisconnect] {
        // Whether the user is connected when it goes.
        for is_there in [false, true] {
            let config = SessionConfig { queue_messages_max: 10, overflow, ..Default::default() };
            each_keeping(&config, |world| {
                world.disk.set_bytes_max(0);
                let own = |name: &str| Connect { username: Some(name.to_owned()), ..kept(name) };
                let ats = ["bob", "eve"].map(|name| world.join(own(name)));
                world.subscribe(ats[0], "t", AtLeastOnce);
                world.subscribe(ats[1], "other", AtLeastOnce);
                ats.iter().for_each(|at| world.cut(*at));
                let p = world.join(v5("p"));
                let mut accepted = 0;
                while !world.is_paused(p) && publish(world, p, "before") == ReasonCode::SUCCESS {
                    accepted += 1;
                    assert!(accepted < 1_000, "{overflow:?}: who is away holds back publishers");
                }
                let there = is_there.then(|| world.join(own("bob")));
                gone_users(world, &["bob"]);
                there.into_iter().for_each(|at| world.cut(at));
                let p = world.join(v5("p"));
                let all_are_taken = |world: &mut World, p: At| {
                    for number in 0..100 {
                        let text = number.to_string();
                        let reason = publish(world, p, &text);
                        assert_eq!(reason, ReasonCode::SUCCESS, "{overflow:?} {number}");
                    }
                };
                all_are_taken(world, p);
                // A start marks them again.
                world.restart(world.shards.len());
                gone_users(world, &["bob"]);
                let p = world.join(v5("p"));
                all_are_taken(world, p);
                let sessions =
                    world.shards.iter().flat_map(|s| s.sessions_after("", 9, &|_, _| true));
                assert!(sessions.into_iter().all(|report| report.grace_ends.is_none()));
                gone_users(world, &[]);
                let at = world.connect(own("bob"));
                assert!(world.connack(at).session_present, "{overflow:?}");
                assert_eq!(world.texts(at).last().map(String::as_str), Some("99"), "{overflow:?}");
                world.leave(at);
            });
        }
    }
}

#[test]
fn a_mistake_in_the_configuration_costs_nothing() {
    // Whether the parts are there when they are taken out of the configuration.
    for is_there in [false, true] {
        let config = SessionConfig { queue_bytes_max: 20_000, ..Default::default() };
        each_keeping(&config, |world| {
            away(world);
            let p = world.join(v5("p"));
            let text = |number: usize| format!("{number:01000}");
            assert_eq!(publish(world, p, &text(0)), ReasonCode::SUCCESS);
            let ats: Vec<At> = match is_there {
                true => NAMES.map(|name| part(world, name).0).to_vec(),
                false => Vec::new(),
            };
            let first = if is_there { 1 } else { 0 };
            ats.iter().for_each(|at| assert_eq!(world.texts(*at), [text(0)]));
            configure(world, &[]);
            // They say farewell behind the new configuration.
            ats.iter().for_each(|at| world.cut(*at));
            for number in 1..100 {
                assert_eq!(publish(world, p, &text(number)), ReasonCode::SUCCESS, "{number}");
            }
            world.advance(2 * DAY);
            world.restart(world.shards.len());
            configure(world, &[]);
            let p = world.join(v5("p"));
            for number in 100..200 {
                assert_eq!(publish(world, p, &text(number)), ReasonCode::SUCCESS, "{number}");
            }
            configure(world, &NAMES);
            assert!(reports(world).iter().all(|report| report.grace_ends.is_none()));
            world.advance(10 * DAY);
            for name in NAMES {
                let (at, was_there) = part(world, name);
                assert!(was_there, "{name}");
                let expected: Vec<String> = (first..200).map(text).collect();
                assert_eq!(world.texts(at), expected, "{name}");
                world.cut(at);
            }
        });
    }
}

#[test]
fn an_administrator_ends_what_is_left_of_a_part_and_no_part_that_is_configured() {
    each_keeping(&refusing(), |world| {
        away(world);
        let all = |_: &str, _: &Identity| true;
        let now = world.now;
        let end = |world: &mut World| -> usize {
            world.shards.iter_mut().map(|shard| shard.end_sessions(now, &all)).sum()
        };
        assert_eq!(end(world), 0);
        configure(world, &NAMES[..1]);
        assert_eq!(end(world), 2);
        assert_eq!(reports(world).len(), 1);
    });
}

#[test]
fn clients_are_refused_the_names_of_parts() {
    each(|world| {
        for name in NAMES.into_iter().chain(["ingest/h", "detect/people", "web/detections/1"]) {
            let (kind, name) = name.split_once('/').unwrap();
            let id = part_id(kind, name);
            for connect in [v5(&id), v4(&id), kept(&id)] {
                for username in [None, Some("ada".to_owned())] {
                    let connect = Connect { username, ..connect.clone() };
                    let refused = world.try_connect(connect).expect_err("it is a part's");
                    assert_eq!(refused.reason, ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, "{id}");
                }
            }
            let (at, was_there) = part(world, &id[6..]);
            assert!(!was_there);
            world.leave(at);
        }
        let unlike = world.join(v5("$nodes/sink/archive"));
        assert!(world.is_open(unlike));
        configure(world, &[]);
        world.advance(PART_GRACE);
    });
}

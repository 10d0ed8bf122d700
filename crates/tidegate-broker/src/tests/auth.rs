//! Rules, and authentication on an open connection (section 4.12).

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tidegate_message::{Action, Decision, Target};

use super::*;

/// Only "root" publishes below `no/`, subscribes to `secret`, or receives from `hidden/`; below `members/` members
/// publish.
#[derive(Debug, Default)]
pub(super) struct Rules {
    generation: AtomicU64,
}

impl Authorize for Rules {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        let denied = match (action, target) {
            (Action::Publish, Target::Topic(topic)) => {
                let is_member = identity.groups.iter().any(|group| &**group == "members");
                topic.starts_with("no/") || (topic.starts_with("members/") && !is_member)
            }
            (Action::Subscribe, Target::Filter(filter)) => filter == "secret",
            (Action::Receive, Target::Topic(topic)) => {
                topic.starts_with("hidden/") && &*identity.name != "root"
            }
            _ => false,
        };
        if denied { Decision::deny("a rule") } else { Decision::allow("no rule") }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn receives_all(&self) -> bool {
        false
    }
}

/// All is allowed to all, until a test takes away what is below a level, from all but "root" or from those who are not in
/// its group.
#[derive(Debug, Default)]
struct Taken {
    levels: Mutex<Vec<&'static str>>,
    generation: AtomicU64,
}

impl Taken {
    fn take_away(&self, level: &'static str) {
        self.levels.lock().unwrap().push(level);
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

impl Authorize for Taken {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        let (Action::Receive, Target::Topic(topic)) = (action, target) else {
            return Decision::allow("no rule");
        };
        let level = topic.split('/').next().unwrap();
        let is_taken = self.levels.lock().unwrap().contains(&level) && &*identity.name != "root";
        let is_of_others = level == "members" && !identity.groups.iter().any(|g| &**g == level);
        match is_taken || is_of_others {
            true => Decision::deny("a rule"),
            false => Decision::allow("no rule"),
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn receives_all(&self) -> bool {
        false
    }
}

/// On nodes of one shard and of three, with sessions in memory and written down.
fn with_taken(test: impl Fn(&mut World, &Taken)) {
    with_taken_of(settings(), test);
}

fn with_taken_of(config: BrokerConfig, test: impl Fn(&mut World, &Taken)) {
    for (shards, kept) in [(1, None), (3, None), (1, Some(false)), (3, Some(true))] {
        let rules = Arc::new(Taken::default());
        let mut world = World::with_rules(config.clone(), shards, rules.clone());
        if let Some(is_gated) = kept {
            world = world.written_down(is_gated);
        }
        test(&mut world, &rules);
        if kept.is_some() {
            journal::check(&world);
        }
        world.end();
    }
}

/// Everybody may do everything, until a test takes away that "ada" publishes below a level, and gives it back.
#[derive(Debug, Default)]
struct Silenced {
    level: Mutex<Option<&'static str>>,
    generation: AtomicU64,
}

impl Silenced {
    fn set(&self, level: Option<&'static str>) {
        *self.level.lock().unwrap() = level;
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

impl Authorize for Silenced {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        let level = *self.level.lock().unwrap();
        match (action, target, level) {
            (Action::Publish, Target::Topic(topic), Some(level))
                if topic.starts_with(level) && &*identity.name == "ada" =>
            {
                Decision::deny("a rule")
            }
            _ => Decision::allow("no rule"),
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn receives_all(&self) -> bool {
        true
    }
}

#[test]
fn retained_messages_are_sent_while_their_publisher_may_publish_them() {
    for checks in [true, false] {
        for shards in [1, 3] {
            let rules = Arc::new(Silenced::default());
            let config = BrokerConfig { check_retain_source: checks, ..settings() };
            let mut world = World::with_rules(config, shards, rules.clone()).written_down(false);
            let ada = Connect { username: Some("ada".into()), ..v5("p") };
            let (p, q) = (world.join(ada), world.join(v5("q")));
            for (who, topic) in [(p, "gone/p"), (p, "left/p"), (q, "gone/q")] {
                world.publish(who, retained(topic, AtLeastOnce, "x"));
            }
            let read = |world: &mut World, name: &str| {
                let s = world.join(v5(name));
                world.subscribe(s, "#", AtLeastOnce);
                let mut topics: Vec<String> = world
                    .messages(s)
                    .into_iter()
                    .map(|message| message.topic.to_string())
                    .collect();
                topics.sort();
                topics
            };
            let all = ["gone/p", "gone/q", "left/p"];
            assert_eq!(read(&mut world, "s1"), all);
            let left = if checks { &["gone/q", "left/p"][..] } else { &all };
            rules.set(Some("gone/"));
            assert_eq!(read(&mut world, "s2"), left);
            // Its session need not be there any more, and neither the process.
            world.leave(p);
            assert_eq!(read(&mut world, "s3"), left);
            world.restart(shards);
            assert_eq!(read(&mut world, "s4"), left);
            rules.set(None);
            assert_eq!(read(&mut world, "s5"), all);
            world.end();
        }
    }
}

/// The rules change right after each decision that a client may publish: it may no longer.
#[derive(Debug, Default)]
struct ChangesAfterwards {
    generation: AtomicU64,
    is_changed: AtomicBool,
}

impl Authorize for ChangesAfterwards {
    fn decide(&self, _: &Identity, action: Action, _: Target<'_>) -> Decision {
        if action != Action::Publish {
            return Decision::allow("no rule");
        }
        if self.is_changed.swap(true, Ordering::Relaxed) {
            return Decision::deny("a rule");
        }
        self.generation.fetch_add(1, Ordering::Relaxed);
        Decision::allow("no rule")
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn receives_all(&self) -> bool {
        true
    }
}

#[test]
fn a_retained_message_whose_rule_goes_right_after_the_decision_is_not_sent() {
    let rules = Arc::new(ChangesAfterwards::default());
    let config = BrokerConfig { check_retain_source: true, ..settings() };
    let mut world = World::with_rules(config, 1, rules);
    let p = world.join(v5("p"));
    let id = world.publish(p, retained("a", AtLeastOnce, "x")).unwrap();
    assert_eq!(world.accepted(p, id), ReasonCode::NO_MATCHING_SUBSCRIBERS);
    assert_eq!(world.shared.retained_count(), 1);
    let s = world.join(v5("s"));
    world.subscribe(s, "a", AtLeastOnce);
    assert_eq!(world.texts(s), [""; 0]);
    world.end();
}

#[test]
fn a_retained_will_or_one_that_passed_operators_is_not_sent_once_its_rule_is_gone() {
    for (is_will, operates) in [(false, true), (true, false), (true, true)] {
        let rules = Arc::new(ChangesAfterwards::default());
        let config = BrokerConfig { check_retain_source: true, ..settings() };
        let mut world = World::with_rules(config, 1, rules);
        if operates {
            super::publish::operate(&mut world);
        }
        if is_will {
            let will = Will { retain: true, ..will("a", "x") };
            let p = world.join(Connect { will: Some(will), ..v5("p") });
            world.cut(p);
        } else {
            let p = world.join(v5("p"));
            world.publish(p, retained("a", AtLeastOnce, "x")).unwrap();
        }
        assert_eq!(world.shared.retained_count(), 1, "will {is_will}, operators {operates}");
        let s = world.join(v5("s"));
        world.subscribe(s, "a", AtLeastOnce);
        assert_eq!(world.texts(s), [""; 0], "will {is_will}, operators {operates}");
        world.end();
    }
}

fn not_allowed(world: &World) -> u64 {
    world.shards.iter().map(|shard| shard.statistics().dropped.not_allowed).sum()
}

#[test]
fn what_waits_is_not_sent_once_the_right_to_it_is_gone() {
    // Also where most of it waits on disk.
    let overflow = crate::Overflow::SpillDisconnect;
    let session = SessionConfig { queue_bytes_max: 20_000, overflow, ..refusing() };
    let small = BrokerConfig { session, ..settings() };
    for (config, count) in [(settings(), 6), (small, 40)] {
        with_taken_of(config, |world, rules| {
            let p = world.join(v5("p"));
            let s = world.join(kept("s"));
            world.subscribe(s, "#", ExactlyOnce);
            world.cut(s);
            for number in 0..count {
                let qos = if number % 4 < 2 { AtLeastOnce } else { ExactlyOnce };
                let topic = ["gone/a", "left/a"][number % 2];
                world.publish(p, message(topic, qos, &format!("{number:<3000}")));
            }
            rules.take_away("gone");
            // New messages are refused, and waiting ones are not sent.
            world.publish(p, message("gone/a", AtLeastOnce, "new"));
            let s = world.join(kept("s"));
            let left: Vec<String> =
                (0..count).filter(|n| n % 2 == 1).map(|n| n.to_string()).collect();
            let got = world.texts(s);
            assert_eq!(got.iter().map(|text| text.trim_end()).collect::<Vec<_>>(), left);
            assert_eq!(not_allowed(world), count as u64 / 2);
            // The right to `left` is as good as before.
            world.publish(p, message("left/a", AtLeastOnce, "x"));
            assert_eq!(world.texts(s), ["x"]);
        });
    }
}

#[test]
fn what_was_sent_is_not_sent_again_once_the_right_to_it_is_gone() {
    with_taken(|world, rules| {
        let p = world.join(v5("p"));
        let s = world.mute(kept("s"));
        world.subscribe(s, "#", ExactlyOnce);
        for (topic, qos) in [
            ("gone/a", AtLeastOnce),
            ("left/a", AtLeastOnce),
            ("gone/b", ExactlyOnce),
            ("left/b", ExactlyOnce),
        ] {
            world.publish(p, message(topic, qos, topic));
        }
        assert_eq!(world.texts(s).len(), 4);
        world.cut(s);
        rules.take_away("gone");
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s), ["left/a", "left/b"]);
        assert_eq!(not_allowed(world), 2);
    });
}

#[test]
fn waiting_messages_are_not_sent_to_a_user_that_left_the_group() {
    with_taken(|world, _| {
        let p = world.join(v5("p"));
        let s = world.join(by_method("s"));
        world.send(s, begins(""));
        world.authenticated(s, accept("user", &["members"]));
        world.take(s);
        world.subscribe(s, "#", AtLeastOnce);
        world.publish(p, message("members/a", AtLeastOnce, "before"));
        assert_eq!(world.texts(s), ["before"]);
        world.room(s, 0);
        // More than the output takes.
        let payload = "x".repeat(10_000);
        for _ in 0..20 {
            world.publish(p, message("members/a", AtLeastOnce, &payload));
        }
        world.send(s, begins(""));
        world.authenticated(s, accept("user", &[]));
        world.room(s, usize::MAX);
        let count = world.texts(s).len() as u64;
        assert!(count < 10 && not_allowed(world) == 20 - count, "{count}");
        world.publish(p, message("members/a", AtLeastOnce, "after"));
        assert!(world.texts(s).is_empty());
    });
}

#[test]
fn retained_messages_that_are_owed_are_not_sent_once_the_right_to_them_is_gone() {
    with_taken(|world, rules| {
        let p = world.join(v5("p"));
        let payload = "x".repeat(1_000);
        for number in 0..300 {
            world.publish(p, retained(&format!("gone/{number}"), AtMostOnce, &payload));
        }
        let s = world.join(v5("s"));
        world.room(s, 0);
        world.send(
            s,
            Packet::Subscribe(Subscribe {
                packet_id: id(1),
                subscription_id: None,
                user_properties: Vec::new(),
                filters: vec![filter("#", AtMostOnce)],
            }),
        );
        rules.take_away("gone");
        world.room(s, usize::MAX);
        let count = world.texts(s).len();
        assert!(count < 100, "{count}");
    });
}

#[test]
fn a_shared_subscription_passes_over_a_member_that_lost_its_right() {
    with_taken(|world, rules| {
        let p = world.join(v5("p"));
        let root = |name: &str| Connect { username: Some("root".into()), ..kept(name) };
        let members = [world.join(kept("s")), world.join(kept("t")), world.join(root("r"))];
        for at in members {
            world.subscribe(at, "$share/g/gone/#", AtLeastOnce);
        }
        for _ in 0..6 {
            world.publish(p, message("gone/a", AtLeastOnce, "x"));
        }
        assert_eq!(members.map(|at| world.texts(at).len()), [2, 2, 2]);
        rules.take_away("gone");
        for _ in 0..6 {
            world.publish(p, message("gone/a", AtLeastOnce, "x"));
        }
        assert_eq!(members.map(|at| world.texts(at).len()), [0, 0, 6]);
        // Away or not: it waits for who may have it.
        world.cut(members[2]);
        world.publish(p, message("gone/a", AtLeastOnce, "x"));
        assert_eq!([0, 1].map(|n| world.texts(members[n]).len()), [0, 0]);
        let r = world.join(root("r"));
        assert_eq!(world.texts(r), ["x"]);
    });
}

#[test]
fn rights_that_are_gone_stay_gone_over_a_restart() {
    for (shards, is_gated) in [(1, false), (3, true)] {
        let rules = Arc::new(Taken::default());
        let world = World::with_rules(settings(), shards, rules.clone());
        let mut world = world.written_down(is_gated);
        let p = world.join(v5("p"));
        let s = world.mute(kept("s"));
        world.subscribe(s, "#", ExactlyOnce);
        let r = Connect { username: Some("root".into()), ..kept("r") };
        let at = world.join(r.clone());
        for member in [s, at] {
            world.subscribe(member, "$share/g/gone/#", AtLeastOnce);
        }
        let topics = ["gone/a", "left/a", "gone/b", "left/b"];
        world.publish(p, message("gone/begun", ExactlyOnce, "gone/begun"));
        world.cut(s);
        for topic in topics {
            world.publish(p, message(topic, AtLeastOnce, topic));
        }
        world.cut(at);
        rules.take_away("gone");
        world.restart(shards);
        let p = world.join(v5("p"));
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s), ["left/a", "left/b"]);
        let at = world.join(r);
        world.take(at);
        for topic in topics {
            world.publish(p, message(topic, AtLeastOnce, topic));
        }
        assert_eq!(world.texts(s), ["left/a", "left/b"]);
        assert_eq!(world.texts(at), ["gone/a", "gone/b"]);
        world.end();
    }
}

fn with_rules(test: impl Fn(&mut World)) {
    for shards in [1, 3] {
        let mut world = World::with_rules(settings(), shards, Arc::new(Rules::default()));
        test(&mut world);
        world.end();
    }
}

#[test]
fn a_message_that_is_not_allowed_is_answered_and_forgotten() {
    // MQTT 5: 0x87; 3.1.1: MQTT-3.3.5-2, a positive acknowledgement or none
    with_rules(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", ExactlyOnce);
        for connect in [v5("p"), v4("q")] {
            let expected = match connect.version {
                Version::V5 => ReasonCode::NOT_AUTHORIZED,
                _ => ReasonCode::SUCCESS,
            };
            let p = world.join(connect);
            for size in [1, 100_000] {
                let payload = "x".repeat(size);
                world.publish(p, message("no/a", AtMostOnce, &payload));
                for qos in [AtLeastOnce, ExactlyOnce] {
                    let id = world.publish(p, retained("no/a", qos, &payload)).unwrap();
                    assert_eq!(world.accepted(p, id), expected);
                }
            }
            assert!(world.is_open(p));
        }
        assert!(world.messages(s).is_empty());
        assert_eq!(world.shared.retained_count(), 0);
    });
}

#[test]
fn a_subscription_that_is_not_allowed_fails_alone() {
    with_rules(|world| {
        let s = world.join(v5("s"));
        let filters = vec![filter("secret", AtMostOnce), filter("a", AtMostOnce)];
        let reasons = world.subscribe_to(s, None, filters);
        assert_eq!(reasons, [ReasonCode::NOT_AUTHORIZED, ReasonCode::SUCCESS]);
        assert_eq!(world.subscribe(s, "$share/g/secret", AtMostOnce), ReasonCode::NOT_AUTHORIZED);
    });
}

#[test]
fn forbidden_messages_are_not_received_now_or_retained() {
    with_rules(|world| {
        let p = world.join(v5("p"));
        world.publish(p, retained("hidden/a", AtMostOnce, "retained"));
        let s = world.join(v5("s"));
        let root = world.join(Connect { username: Some("root".into()), ..v5("r") });
        for at in [s, root] {
            world.subscribe(at, "#", AtMostOnce);
        }
        world.publish(p, message("hidden/a", AtMostOnce, "now"));
        assert_eq!(world.texts(root), ["retained", "now"]);
        assert!(world.texts(s).is_empty());
    });
}

#[test]
fn a_user_with_the_client_identifier_of_an_anonymous_one_has_its_own_rights() {
    with_rules(|world| {
        let p = world.join(v5("p"));
        let s = world.join(kept("s"));
        world.subscribe(s, "#", AtMostOnce);
        world.publish(p, message("hidden/a", AtMostOnce, "x"));
        assert!(world.texts(s).is_empty());
        let s = world.join(Connect { username: Some("root".into()), ..kept("s") });
        world.subscribe(s, "#", AtMostOnce);
        world.publish(p, message("hidden/a", AtMostOnce, "x"));
        assert_eq!(world.texts(s), ["x"]);
    });
}

#[test]
fn a_will_that_is_not_allowed_is_not_published() {
    with_rules(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let at = world.join(Connect { will: Some(will("no/a", "x")), ..v5("c") });
        world.cut(at);
        assert!(world.texts(s).is_empty());
    });
}

/// A client that authenticates by the method "M".
fn by_method(name: &str) -> Connect {
    let mut connect = Connect { username: Some("user".into()), ..v5(name) };
    connect.properties.authentication_method = Some("M".into());
    connect
}

fn auth(reason: ReasonCode, method: &str, data: &str) -> Packet<'static> {
    let (method, data) = (Some(method.into()), Some(data.into()));
    Packet::Auth(Auth { reason, method, data, ..Auth::default() })
}

fn begins(data: &str) -> Packet<'static> {
    auth(ReasonCode::REAUTHENTICATE, "M", data)
}

fn goes_on(data: &str) -> Packet<'static> {
    auth(ReasonCode::CONTINUE_AUTHENTICATION, "M", data)
}

fn accept(name: &str, groups: &[&str]) -> AuthAnswer {
    let groups = groups.iter().map(|group| Arc::from(*group)).collect();
    let (kind, name) = (IdentityKind::User, name.into());
    let identity = Identity { kind, name, groups, ..Identity::anonymous("of the exchange") };
    AuthAnswer::Accept { identity, data: Some("end".into()) }
}

#[test]
fn authenticating_again_takes_as_many_steps_as_it_needs() {
    // 4.12.1, MQTT-4.12.0-2, -3, -5
    each(|world| {
        let at = world.connect(by_method("a"));
        assert_eq!(world.connack(at).properties.authentication_method.as_deref(), Some("M"));
        for _ in 0..2 {
            let mut step = begins("first");
            for challenge in ["one", "two", "three"] {
                world.send(at, step.clone());
                assert_eq!(Packet::Auth(world.asked(at)), step);
                assert!(world.take(at).is_empty());
                world.authenticated(at, AuthAnswer::Challenge(challenge.into()));
                assert_eq!(world.take(at), [Other(goes_on(challenge))]);
                step = goes_on(&format!("answer to {challenge}"));
            }
            world.send(at, step.clone());
            assert_eq!(Packet::Auth(world.asked(at)), step);
            world.authenticated(at, accept("user", &[]));
            assert_eq!(world.take(at), [Other(auth(ReasonCode::SUCCESS, "M", "end"))]);
        }
    });
}

#[test]
fn other_packets_flow_while_a_client_authenticates_again() {
    // 4.12.1: "using the previous authentication"
    each(|world| {
        let at = world.join(by_method("a"));
        let works = |world: &mut World| {
            world.send(at, Packet::Pingreq);
            assert_eq!(world.take(at), [Other(Packet::Pingresp)]);
            assert_eq!(world.subscribe(at, "t", ExactlyOnce), ReasonCode::GRANTED_QOS_2);
            world.publish(at, message("t", ExactlyOnce, "x"));
            assert_eq!(world.texts(at), ["x"]);
        };
        world.send(at, begins(""));
        works(world);
        world.authenticated(at, AuthAnswer::Challenge(Vec::new()));
        world.take(at);
        works(world);
        world.send(at, goes_on(""));
        works(world);
    });
}

#[test]
fn authenticating_again_names_the_method_of_connect() {
    // MQTT-4.12.1-1; MQTT-4.12.0-7
    each(|world| {
        let at = world.join(by_method("a"));
        world.send(at, auth(ReasonCode::REAUTHENTICATE, "N", ""));
        assert_eq!(world.end_reason(at), Some(ReasonCode::PROTOCOL_ERROR));
        let at = world.join(by_method("a"));
        world.send(at, begins(""));
        world.authenticated(at, AuthAnswer::Challenge(Vec::new()));
        world.send(at, auth(ReasonCode::CONTINUE_AUTHENTICATION, "N", ""));
        assert_eq!(world.end_reason(at), Some(ReasonCode::PROTOCOL_ERROR));
        let at = world.join(v5("a"));
        world.send(at, begins(""));
        assert_eq!(world.end_reason(at), Some(ReasonCode::PROTOCOL_ERROR));
    });
}

#[test]
fn an_authentication_out_of_turn_is_a_protocol_error() {
    // Sections 3.15.2.1 and 4.12.1. A row is what the client sends at last: at once, while the shell thinks, and while it is
    // the client's turn.
    for (last, errs) in [
        (begins(""), [false, true, true]),
        (goes_on(""), [true, true, false]),
        (auth(ReasonCode::SUCCESS, "M", ""), [true, true, true]),
    ] {
        for (turn, errs) in errs.into_iter().enumerate() {
            each(|world| {
                let at = world.join(by_method("a"));
                if turn > 0 {
                    world.send(at, begins(""));
                }
                if turn > 1 {
                    world.authenticated(at, AuthAnswer::Challenge(Vec::new()));
                }
                world.send(at, last.clone());
                assert_eq!(world.is_open(at), !errs, "{last:?} in turn {turn}");
                if errs {
                    assert_eq!(world.end_reason(at), Some(ReasonCode::PROTOCOL_ERROR));
                }
            });
        }
    }
}

#[test]
fn a_client_that_fails_to_authenticate_again_is_disconnected() {
    // MQTT-4.12.1-2
    each(|world| {
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtMostOnce);
        let at = world.join(Connect { will: Some(will("w", "gone")), ..by_method("a") });
        world.send(at, begins(""));
        world.authenticated(at, AuthAnswer::Refuse(ReasonCode::NOT_AUTHORIZED));
        assert_eq!(world.end_reason(at), Some(ReasonCode::NOT_AUTHORIZED));
        assert_eq!(world.texts(s), ["gone"]);
    });
}

#[test]
fn another_user_has_no_place_in_a_connection() {
    let somebody = Identity { kind: IdentityKind::Certificate, ..Identity::anonymous("a") };
    let somebody = Identity { name: "user".into(), ..somebody };
    for answer in [
        accept("other", &[]),
        AuthAnswer::Accept { identity: Identity::anonymous("a"), data: None },
        AuthAnswer::Accept { identity: somebody, data: None },
    ] {
        each(|world| {
            let at = world.join(by_method("a"));
            world.send(at, begins(""));
            world.authenticated(at, answer.clone());
            assert_eq!(world.end_reason(at), Some(ReasonCode::NOT_AUTHORIZED));
        });
    }
}

#[test]
fn a_client_that_authenticated_again_has_the_rights_of_the_new_groups() {
    with_rules(|world| {
        let at = world.join(by_method("a"));
        let may = |world: &mut World| {
            let id = world.publish(at, message("members/a", AtLeastOnce, "x")).unwrap();
            world.accepted(at, id) != ReasonCode::NOT_AUTHORIZED
        };
        for (groups, expected) in [(&["members"][..], true), (&[], false)] {
            world.send(at, begins(""));
            assert_eq!(may(world), !expected);
            world.authenticated(at, accept("user", groups));
            assert_eq!(may(world), expected);
        }
    });
}

#[test]
fn an_answer_that_is_not_waited_for_is_forgotten() {
    each(|world| {
        let at = world.join(by_method("a"));
        world.authenticated(at, AuthAnswer::Challenge(Vec::new()));
        world.authenticated(at, accept("other", &[]));
        assert!(world.take(at).is_empty());
        world.send(at, begins(""));
        let (shard, key) = (world.clients[at.0].shard, world.clients[at.0].key.unwrap());
        // The session is another connection's now.
        let next = world.join(by_method("a"));
        world.shards[shard].authenticated(key, AuthAnswer::Refuse(ReasonCode::NOT_AUTHORIZED));
        world.pump();
        assert_eq!(world.end_reason(at), Some(ReasonCode::SESSION_TAKEN_OVER));
        assert!(world.is_open(next));
    });
}

#[test]
fn an_auth_that_the_client_could_not_take_is_not_sent() {
    // MQTT-3.1.2-24
    for (maximum, bytes, fits) in
        [(None, 60_000, true), (None, 65_536, false), (Some(100), 90, false)]
    {
        each(|world| {
            let mut connect = by_method("a");
            connect.properties.maximum_packet_size = maximum;
            let at = world.connect(connect);
            world.send(at, begins(""));
            world.authenticated(at, AuthAnswer::Challenge(vec![0; bytes]));
            assert_eq!(world.is_open(at), fits);
            if !fits {
                assert_eq!(world.end_reason(at), Some(ReasonCode::PACKET_TOO_LARGE));
            }
        });
    }
}

/// On all shards, publishers of both kinds: those that get a reason, and those whose connection ends.
fn publishers(world: &mut World) -> Vec<At> {
    let names = ["p", "q", "r", "s", "t", "u"];
    let connect = |(index, name): (usize, &&str)| if index < 3 { v5(name) } else { v4(name) };
    names.iter().enumerate().map(|at| world.join(connect(at))).collect()
}

/// Whether each of them may publish to that topic with QoS 1 and 2.
fn all_are_accepted(world: &mut World, publishers: &[At], topic: &str) -> bool {
    let mut all = true;
    for at in publishers {
        for qos in [AtLeastOnce, ExactlyOnce] {
            if world.is_open(*at) {
                let id = world.publish(*at, message(topic, qos, "x")).unwrap();
                all &= world.is_open(*at) && !world.accepted(*at, id).is_failure();
            } else {
                all = false;
            }
        }
    }
    all
}

/// A session that is away and full, of what it may have.
fn full(world: &mut World, name: &str, filters: &[&str]) {
    let s = world.join(kept(name));
    filters.iter().for_each(|filter| _ = world.subscribe(s, filter, ExactlyOnce));
    world.cut(s);
    let filler = world.join(v5("filler"));
    for _ in 0..100 {
        let id = world.publish(filler, message("left/a", AtLeastOnce, "x")).unwrap();
        if world.accepted(filler, id).is_failure() {
            return;
        }
    }
    panic!("it is never full");
}

fn small_queues() -> BrokerConfig {
    let session = SessionConfig { queue_messages_max: 5, ..refusing() };
    BrokerConfig { session, ..settings() }
}

#[test]
fn a_full_session_has_no_say_over_what_it_may_not_have() {
    with_taken_of(small_queues(), |world, rules| {
        full(world, "bob", &["#"]);
        // Never allowed, and not asked for yet.
        let all = publishers(world);
        assert!(all_are_accepted(world, &all, "members/a"));
        // A message that it may have is refused.
        let id = world.publish(all[0], message("gone/a", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(all[0], id), ReasonCode::QUOTA_EXCEEDED);
        // Not any more once its right is taken away.
        rules.take_away("gone");
        assert!(all_are_accepted(world, &all, "gone/a"));
        let id = world.publish(all[0], message("left/a", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(all[0], id), ReasonCode::QUOTA_EXCEEDED);
        let bob = world.join(kept("bob"));
        assert!(world.messages(bob).iter().all(|delivery| delivery.topic == "left/a"));
    });
}

#[test]
fn messages_that_a_session_may_not_have_take_no_place_of_it() {
    with_taken_of(small_queues(), |world, _| {
        let s = world.join(kept("holder"));
        world.subscribe(s, "#", AtLeastOnce);
        world.cut(s);
        let all = publishers(world);
        world.hold_peers = true;
        for _ in 0..5 {
            for at in &all[..3] {
                let id = world.publish(*at, message("members/a", AtLeastOnce, "x")).unwrap();
                assert_eq!(world.accepted(*at, id), ReasonCode::SUCCESS);
            }
        }
        for number in 0..5 {
            let text = number.to_string();
            let id = world.publish(all[0], message("left/a", AtLeastOnce, &text)).unwrap();
            assert_eq!(world.accepted(all[0], id), ReasonCode::SUCCESS);
        }
        world.hold_peers = false;
        world.pump();
        let s = world.join(kept("holder"));
        assert_eq!(world.texts(s), ["0", "1", "2", "3", "4"]);
    });
}

#[test]
fn a_full_member_of_a_group_has_no_say_over_what_it_may_not_have() {
    with_taken_of(small_queues(), |world, rules| {
        full(world, "bob", &["$share/g/#"]);
        let all = publishers(world);
        assert!(all_are_accepted(world, &all, "members/a"));
        rules.take_away("gone");
        assert!(all_are_accepted(world, &all, "gone/a"));
        // Where another may have it, that one decides, and its place is not given away.
        let root = Connect { username: Some("root".into()), ..kept("root") };
        let at = world.join(root.clone());
        world.subscribe(at, "$share/g/#", ExactlyOnce);
        world.cut(at);
        let mut accepted = Vec::new();
        for number in 0..20 {
            let at = all[number % 3];
            let text = number.to_string();
            let id = world.publish(at, message("gone/a", AtLeastOnce, &text)).unwrap();
            if !world.accepted(at, id).is_failure() {
                accepted.push(text);
            }
        }
        assert_eq!(accepted.len(), 6);
        let at = world.join(root);
        assert_eq!(world.texts(at), accepted);
    });
}

#[test]
fn memory_is_not_wanted_for_a_session_that_may_not_have_the_message() {
    let config = BrokerConfig { payload_bytes_max: 100_000, ..settings() };
    with_taken_of(config, |world, _| {
        let s = world.join(kept("s"));
        world.subscribe(s, "#", AtLeastOnce);
        world.subscribe(s, "$share/g/#", AtLeastOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        let text = "x".repeat(30_000);
        let publish = |world: &mut World, topic: &str| {
            let id = world.publish(p, message(topic, AtLeastOnce, &text)).unwrap();
            world.accepted(p, id)
        };
        for _ in 0..10 {
            publish(world, "left/a");
        }
        assert_eq!(publish(world, "left/a"), ReasonCode::QUOTA_EXCEEDED);
        assert_eq!(publish(world, "members/a"), ReasonCode::SUCCESS);
    });
}

#[test]
fn messages_on_their_way_to_a_member_without_the_right_go_to_another_or_are_counted() {
    for has_other in [false, true] {
        let rules = Arc::new(Taken::default());
        let mut world = World::with_rules(settings(), 3, rules.clone());
        let p = world.join(v5("p"));
        let s = world.join(kept("s"));
        world.subscribe(s, "$share/g/gone/#", AtLeastOnce);
        let root = world.join(Connect { username: Some("root".into()), ..kept("root") });
        world.hold_peers = true;
        let id = world.publish(p, message("gone/a", AtLeastOnce, "x")).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
        if has_other {
            world.subscribe(root, "$share/g/gone/#", AtLeastOnce);
        }
        rules.take_away("gone");
        world.hold_peers = false;
        world.pump();
        assert_eq!(world.texts(root).len(), usize::from(has_other));
        assert_eq!((world.texts(s).len(), not_allowed(&world)), (0, u64::from(!has_other)));
        world.end();
    }
}

#[test]
fn what_waits_for_a_member_that_lost_its_right_is_anothers_or_counted() {
    // In flight and waiting, when it comes back and over a restart.
    for (restarts, has_other) in [(false, false), (false, true), (true, false), (true, true)] {
        with_taken(|world, rules| {
            if restarts && world.tapes.is_empty() {
                return;
            }
            let mut connect = kept("s");
            connect.properties.receive_maximum = NonZeroU16::new(3);
            let s = world.mute(connect);
            world.subscribe(s, "$share/g/gone/#", AtLeastOnce);
            let p = world.join(v5("p"));
            for number in 0..10 {
                world.publish(p, message("gone/a", AtLeastOnce, &number.to_string()));
            }
            assert_eq!(world.texts(s).len(), 3);
            world.cut(s);
            let connect = Connect { username: Some("root".into()), ..kept("root") };
            let root = world.join(connect.clone());
            if has_other {
                world.subscribe(root, "$share/g/gone/#", AtLeastOnce);
            }
            world.cut(root);
            rules.take_away("gone");
            if restarts {
                world.restart(world.shards.len());
            }
            let s = world.join(kept("s"));
            world.advance(seconds(1));
            let root = world.join(connect);
            let mut texts = world.texts(root);
            texts.sort();
            let expected: Vec<String> = (0..10).map(|number| number.to_string()).collect();
            assert_eq!(texts, if has_other { expected } else { Vec::new() });
            let lost = if has_other { 0 } else { 10 };
            assert_eq!((world.texts(s).len(), not_allowed(world)), (0, lost));
        });
    }
}

#[test]
fn what_rules_refuse_is_said_with_its_rule() {
    for shards in [1, 3] {
        let mut world = World::with_rules(settings(), shards, Arc::new(Rules::default()));
        let at = world.join(v5("c"));
        for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
            let denied = |action, target: &str| Denied {
                action,
                target: target.to_owned(),
                rule: "a rule".to_owned(),
            };
            let topic = format!("no/{qos:?}");
            world.publish(at, message(&topic, qos, "x"));
            assert_eq!(std::mem::take(&mut world.denied), [denied(Action::Publish, &topic)]);
            world.subscribe(at, "secret", qos);
            assert_eq!(std::mem::take(&mut world.denied), [denied(Action::Subscribe, "secret")]);
        }
        world.publish(at, message("yes", AtLeastOnce, "x"));
        assert_eq!(world.denied, []);
        world.end();
    }
}

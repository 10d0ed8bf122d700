//! Rules, and authentication on an open connection (section 4.12).

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_message::{Action, Decision, Target};
use tidegate_wire::mqtt::Auth;

use super::*;

/// Nobody publishes below `no/`, subscribes to `secret`, or receives from `hidden/` but "root".
#[derive(Debug, Default)]
struct Rules {
    generation: AtomicU64,
}

impl Authorize for Rules {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        let denied = match (action, target) {
            (Action::Publish, Target::Topic(topic)) => topic.starts_with("no/"),
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
fn what_must_not_be_received_is_not_now_or_retained() {
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
fn another_user_of_a_session_has_his_own_rights() {
    with_rules(|world| {
        let p = world.join(v5("p"));
        let s = world.join(Connect { username: Some("root".into()), ..kept("s") });
        world.subscribe(s, "#", AtMostOnce);
        world.publish(p, message("hidden/a", AtMostOnce, "x"));
        assert_eq!(world.texts(s), ["x"]);
        let s = world.join(kept("s"));
        world.publish(p, message("hidden/a", AtMostOnce, "x"));
        assert!(world.texts(s).is_empty());
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

#[test]
fn authenticating_again_names_the_method_of_connect() {
    // MQTT-4.12.1-1, -2; MQTT-4.12.0-7
    let auth = |method: &str, data: &[u8]| {
        Packet::Auth(Auth {
            reason: ReasonCode::REAUTHENTICATE,
            method: Some(method.into()),
            data: Some(data.to_vec()),
            ..Auth::default()
        })
    };
    each(|world| {
        let mut connect = v5("a");
        connect.properties.authentication_method = Some("M".into());
        let at = world.connect(connect.clone());
        assert_eq!(world.connack(at).properties.authentication_method.as_deref(), Some("M"));
        world.send(at, auth("M", b"right"));
        assert!(
            matches!(&world.take(at)[..], [Other(Packet::Auth(answer))] if answer.reason == ReasonCode::SUCCESS)
        );
        world.send(at, auth("M", b"wrong"));
        assert_eq!(world.end_reason(at), Some(ReasonCode::NOT_AUTHORIZED));
        let at = world.join(connect);
        world.send(at, auth("N", b"right"));
        assert_eq!(world.end_reason(at), Some(ReasonCode::PROTOCOL_ERROR));
        let at = world.join(v5("a"));
        world.send(at, auth("M", b"right"));
        assert_eq!(world.end_reason(at), Some(ReasonCode::PROTOCOL_ERROR));
    });
}

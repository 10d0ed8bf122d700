//! Files in, decisions or a named mistake out.

use std::path::Path;

use proptest::prelude::*;

use super::*;

const FILE: &str = "\
# Who may do what.
[role.viewer]
subscribe = [\"home/#\", \"dev/%c/#\"]
frames = [\"yard-*\", \"gate\"]
[role.viewer.deny]
subscribe = [\"home/safe/#\"]

[role.operator]
publish = [\"home/+/set\", \"users/%u/#\", \"camera:lab-*\"]
fetch-original = [\"camera:yard-1\"]
functions = [\"home/#\"]
admin = [\"camera:lab-*\"]

[role.root]
publish = true
subscribe = true
frames = true
admin = true
functions = true

[role.banned.deny]
publish = true
frames = true

[group.family]
roles = [\"viewer\"]
messages_per_second = 20

[group.staff]
roles = [\"operator\"]
messages_per_second = 50

[user.ada]
groups = [\"family\", \"staff\"]
connections_max = 3

[user.bob]
roles = [\"root\", \"banned\"]

[certificate.counter]
roles = [\"viewer\"]
[node.edge2]
roles = [\"root\"]
bytes_per_second = 1_000_000

[authenticated]
roles = []
connections_max = 10

[anonymous]
roles = [\"viewer\"]
messages_per_second = 1
";

fn roles(text: &str) -> Roles {
    Roles::parse(Path::new("roles.toml"), text).unwrap()
}

/// `user ada`, `certificate counter`, `anonymous`; with groups after colons.
fn identity(text: &str) -> Identity {
    let mut parts = text.split(':');
    let (kind, name) = parts.next().unwrap().split_once(' ').unwrap_or((text, ""));
    let kind = match kind {
        "user" => IdentityKind::User,
        "certificate" => IdentityKind::Certificate,
        "node" => IdentityKind::Node,
        "internal" => IdentityKind::Internal,
        _ => IdentityKind::Anonymous,
    };
    let groups: Vec<Arc<str>> = parts.map(Into::into).collect();
    Identity { groups: groups.into(), ..Identity::new(kind, name, "c") }
}

#[test]
fn rules_decide_and_are_named() {
    use Action::{Admin, FetchOriginal, Frames, Functions, Publish, Receive, Subscribe};
    use Target::{Camera, Filter, Node, Topic};
    let roles = roles(FILE);
    assert_eq!(roles.len(), 18);
    for (who, action, target, allow, rule) in [
        ("anonymous", Receive, Topic("home/x"), true, ":3: role viewer: subscribe home/#"),
        (
            "anonymous",
            Receive,
            Topic("home/safe/x"),
            false,
            ":6: role viewer: deny subscribe home/safe/#",
        ),
        ("anonymous", Subscribe, Filter("home/safe/#"), false, ":6:"),
        ("anonymous", Subscribe, Filter("home/+"), true, ":3:"), // each message is checked
        (
            "anonymous",
            Subscribe,
            Filter("$share/g/dev/c/x"),
            true,
            ":3: role viewer: subscribe dev/%c/#",
        ),
        ("anonymous", Subscribe, Filter("$share/g"), false, ": no rule can be asked"),
        ("anonymous", Subscribe, Filter("dev/d/x"), false, ": no role allows it"),
        ("anonymous", Publish, Topic("home/x"), false, ": no role allows it"),
        ("anonymous", Frames, Camera("yard-1"), true, ":4: role viewer: frames yard-*"),
        ("anonymous", Frames, Camera("gate"), true, ":4: role viewer: frames gate"),
        ("anonymous", Frames, Camera("gate2"), false, ": no role"),
        ("anonymous", FetchOriginal, Camera("yard-1"), false, ": no role"),
        (
            "user ada",
            FetchOriginal,
            Camera("yard-1"),
            true,
            ":10: role operator: fetch-original camera:yard-1",
        ),
        ("user ada", Frames, Camera("yard-7"), true, ":4:"),
        (
            "user ada",
            Publish,
            Topic("home/door/set"),
            true,
            ":9: role operator: publish home/+/set",
        ),
        ("user ada", Publish, Topic("users/ada/x"), true, ":9:"),
        ("user ada", Publish, Topic("users/bob/x"), false, ": no role"),
        ("user ada", Publish, Camera("lab-1"), true, ":9: role operator: publish camera:lab-*"),
        ("user ada", Publish, Camera("yard-1"), false, ": no role"),
        ("user ada", Admin, Camera("lab-9"), true, ":12:"),
        ("user ada", Admin, Node, false, ": no role"), // some cameras are not the node
        ("user ada", Functions, Topic("home/x"), true, ":11:"),
        ("user ada", Functions, Node, false, ": no role"),
        ("user bob", Subscribe, Filter("$SYS/#"), true, ":16: role root: subscribe all"),
        ("user bob", Admin, Node, true, ":18:"),
        ("user bob", Publish, Topic("a"), false, ":22: role banned: deny publish all"), // deny wins
        ("user bob", Frames, Camera("x"), false, ":23:"),
        ("user eve", Frames, Camera("gate"), false, ": no role"),
        ("user eve:family", Frames, Camera("gate"), true, ":4:"), // a token's group
        ("user eve:nobody", Frames, Camera("gate"), false, ": no role"),
        ("user counter", Frames, Camera("gate"), false, ": no role"), // a user is no certificate
        ("certificate counter", Frames, Camera("gate"), true, ":4:"),
        ("node edge2", Admin, Node, true, ":18:"),
        ("certificate edge2", Admin, Node, false, ": no role"),
        ("internal", Admin, Node, true, "this node itself"),
        // Requests outside all rules.
        ("node edge2", Frames, Topic("a"), false, ": no rule can be asked"),
        ("node edge2", Publish, Filter("#"), false, ": no rule can be asked"),
        ("node edge2", Receive, Camera("a"), false, ": no rule can be asked"),
        ("node edge2", Admin, Topic("a"), false, ": no rule can be asked"),
    ] {
        let decision = roles.decide(&identity(who), action, target);
        let case = format!("{who} {action:?} {target:?}: {decision:?}");
        assert_eq!(decision.allow, allow, "{case}");
        let text = decision.rule.strip_prefix("roles.toml").unwrap_or(&decision.rule);
        assert!(text.starts_with(rule), "{case}");
    }
}

#[test]
fn models_are_named_and_are_not_cameras() {
    use Action::{Admin, Detect, Frames};
    use Target::{Camera, Model, Node};
    let roles = roles(
        "[role.r]\ndetect = [\"face\", \"model:street-*\"]\nadmin = [\"model:recognize\"]\n\
         [role.r.deny]\ndetect = [\"street-2\"]\n[anonymous]\nroles = [\"r\"]\n",
    );
    for (action, target, allow, rule) in [
        (Detect, Model("face"), true, ":2: role r: detect face"),
        (Detect, Model("street-1"), true, ":2: role r: detect model:street-*"),
        (Detect, Model("street-2"), false, ":5: role r: deny detect street-2"),
        (Detect, Model("person"), false, ": no role allows it"),
        (Detect, Camera("face"), false, ": no rule can be asked"),
        (Detect, Node, false, ": no rule can be asked"),
        (Frames, Model("face"), false, ": no rule can be asked"),
        (Admin, Model("recognize"), true, ":3: role r: admin model:recognize"),
        (Admin, Model("face"), false, ": no role allows it"),
        (Admin, Camera("recognize"), false, ": no role allows it"),
        (Admin, Node, false, ": no role allows it"), // a model is not the node
    ] {
        let decision = roles.decide(&identity("anonymous"), action, target);
        let case = format!("{action:?} {target:?}: {decision:?}");
        assert_eq!(decision.allow, allow, "{case}");
        assert!(
            decision.rule.strip_prefix("roles.toml").unwrap_or(&decision.rule).starts_with(rule),
            "{case}"
        );
    }
}

#[test]
fn errors_name_line_and_way_out() {
    for (text, expected) in [
        ("[rôle.x]", "roles.toml:2: "),
        ("[roles.x]", "roles.toml:2: there is no section [roles]; choose one of: role.NAME"),
        ("name = 1", "roles.toml:2: name is not a section; begin one such as [role.viewer]"),
        ("[role]\nx = 1", "roles.toml:3: x is not a section"),
        (
            "[role.x]\nread = []",
            "roles.toml:3: role x has no right \"read\"; choose one of: publish subscribe",
        ),
        ("[role.x.deny]\nread = []", "roles.toml:3: role x has no right \"read\""),
        (
            "[role.x]\npublish = \"a\"",
            "roles.toml:3: role.x.publish must be a list of texts, or true",
        ),
        ("[role.x]\npublish = false", "roles.toml:3: role.x.publish must be"),
        ("[role.x]\npublish = [1]", "roles.toml:3: role.x.publish must be"),
        (
            "[role.x]\npublish = [\n\"a\",\n\"a/#/b\"]",
            "roles.toml:5: \"a/#/b\" is not a topic filter",
        ),
        ("[role.x]\npublish = [\"\"]", "is not a topic filter"),
        ("[role.x]\npublish = [\"camera:a b\"]", "\"a b\" is not a camera"),
        ("[role.x]\nframes = [\"\"]", "\"\" is not a camera"),
        ("[role.x]\nadmin = [\"home/#\"]", "admin extends to cameras"),
        ("[role.x]\ndetect = [\"a b\"]", "\"a b\" is not a model"),
        ("[role.x]\nadmin = [\"model:\"]", "\"\" is not a model"),
        (
            "[user.a]\nrole = [\"x\"]",
            "roles.toml:3: [user.a] has no \"role\"; choose one of: roles groups",
        ),
        (
            "[role.y]\n[user.a]\nroles = [\"y\", \"x\"]",
            "roles.toml:4: there is no role \"x\"; defined are: y",
        ),
        ("[user.a]\nroles = \"x\"", "user.a.roles must be a list of names"),
        (
            "[user.a]\ngroups = [\"g\"]",
            "roles.toml:3: there is no group \"g\"; define it by a section [group.g]",
        ),
        ("[group.g]\n[group.h]\ngroups = [\"g\"]", "[group.h] can have roles, and no groups"),
        ("[group.g]\n[anonymous]\ngroups = [\"g\"]", "[anonymous] can have roles, and no groups"),
        ("[user.\"\"]", "is not a valid name"),
        ("[user.a]\nconnections_max = 0", "user.a.connections_max must be a whole number from 1"),
        ("[user.a]\nbytes_per_second = \"1MB\"", "must be a whole number"),
        ("[user.a]\n[user.a]", "roles.toml:3: "),
    ] {
        let error = Roles::parse(Path::new("roles.toml"), &format!("# x\n{text}\n")).unwrap_err();
        let shown = error.to_string();
        assert!(shown.starts_with("roles.toml:") && shown.contains(expected), "{text}: {shown}");
    }
}

#[test]
fn limits_are_those_of_who_is_nearest() {
    let roles = roles(FILE);
    for (who, connections, messages, bytes) in [
        ("user ada", Some(3), Some(50), None), // the wider of two groups
        ("user eve", Some(10), None, None),
        ("user eve:family", Some(10), Some(20), None),
        ("node edge2", Some(10), None, Some(1_000_000)),
        ("anonymous", None, Some(1), None),
        ("internal", None, None, None),
    ] {
        let expected = Limits {
            connections_max: connections,
            messages_per_second: messages,
            bytes_per_second: bytes,
        };
        assert_eq!(roles.limits(&identity(who)), expected, "{who}");
    }
}

#[test]
fn each_message_is_asked_for_whatever_roles_are_left() {
    for text in [
        "[anonymous]",
        "[role.a]\nsubscribe = true\n[role.b]\nsubscribe = [\"#\", \"$SYS/#\"]",
        "[role.a]\nsubscribe = [\"a/#\"]",
        "[role.a]\nsubscribe = true\n[role.a.deny]\nsubscribe = [\"a\"]",
        "[role.a.deny]\npublish = [\"a\"]",
    ] {
        assert!(!roles(text).receives_all(), "{text}");
    }
}

#[test]
fn empty_file_is_refused_and_an_empty_section_allows_nothing() {
    for text in ["", "\n", "# roles\n"] {
        let error = Roles::parse(Path::new("roles.toml"), text).unwrap_err().to_string();
        assert!(error.contains(": the file has no section"), "{error}");
    }
    let roles = roles("[anonymous]\n");
    assert!(roles.is_empty());
    for who in ["anonymous", "user ada", "node edge2"] {
        let who = identity(who);
        assert!(!roles.decide(&who, Action::Publish, Target::Topic("a")).allow);
        assert!(!roles.decide(&who, Action::Frames, Target::Camera("a")).allow);
        assert!(!roles.decide(&who, Action::Admin, Target::Node).allow);
    }
}

#[test]
fn stars_stand_for_any_letters() {
    for (pattern, name, expected) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("*", "", true),
        ("*", "anything", true),
        ("a*", "a", true),
        ("a*b", "ab", true),
        ("a*b", "a", false),
        ("a*a", "a", false), // the two do not share a letter
        ("a*b*c", "axxbyyc", true),
        ("a*b*c", "axxc", false),
        ("a*bc*c", "abcbc", true),
        ("*x*", "axb", true),
        ("*x*", "ab", false),
        ("**", "x", true),
    ] {
        let parsed = NamePattern::parse(pattern).unwrap();
        assert_eq!(parsed.matches(name), expected, "{pattern} {name}");
    }
}

/// The meaning of `*`, in the slow way.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|at| glob(rest, &name[at..])),
        Some((letter, rest)) => name.first() == Some(letter) && glob(rest, &name[1..]),
    }
}

proptest! {
    #[test]
    fn patterns_match_what_their_meaning_says(pattern in "[ab*]{1,8}", name in "[ab]{0,8}") {
        let parsed = NamePattern::parse(&pattern).unwrap();
        prop_assert_eq!(parsed.matches(&name), glob(pattern.as_bytes(), name.as_bytes()));
    }

    #[test]
    fn any_text_ends_without_panic(text in "(\\[(role|user|group|anonymous)\\.[ax]\\]\n|(roles|publish|frames) = (true|\\[\"[a+#/*%c]{0,3}\"\\])\n|.{0,9}\n){0,9}") {
        let _ = Roles::parse(Path::new("roles"), &text);
    }
}

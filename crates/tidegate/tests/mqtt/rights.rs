//! Tokens, roles, limits and the audit log over real sockets and signals.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use tidegate_load::client::{Client, ClientError, Options, Outgoing};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};

use crate::{
    disk::wall_clock_of,
    poll::poll,
    program::{LONGEST, Program, options_of},
};

/// Gives out tokens signed with Ed25519.
struct Issuer(Ed25519KeyPair);

impl Issuer {
    fn new() -> Self {
        Self(Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed"))
    }

    fn keys(&self, id: &str) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"{x}"}}]}}"#)
    }

    /// One for `name` in the group `staff` that expires `seconds` from now.
    fn token(&self, name: &str, seconds: i64) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let until = now.as_secs() as i64 + seconds;
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let header = part(r#"{"alg":"EdDSA","kid":"one"}"#);
        let claims = format!(r#"{{"aud":"us","sub":"{name}","groups":["staff"],"exp":{until}}}"#);
        let signed = format!("{header}.{}", part(&claims));
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes())))
    }
}

const ROLES: &str = "\
[role.operator]
publish = [\"t/#\"]
[group.staff]
roles = [\"operator\"]
[user.bob]
connections_max = 1
messages_per_second = 20
";

/// A node with these roles that takes tokens, and what reloads it.
fn start(folder: tempfile::TempDir, issuer: &Issuer) -> (Program, String) {
    start_with(folder, issuer, &[])
}

fn start_with(
    folder: tempfile::TempDir,
    issuer: &Issuer,
    variables: &[(&str, String)],
) -> (Program, String) {
    let path = |name: &str| folder.path().join(name);
    tidegate_identity::pki::init(&path("data/pki"), &Default::default()).expect("certificates");
    fs::write(path("roles"), ROLES).expect("a file");
    fs::write(path("keys"), issuer.keys("one")).expect("a file");
    let text = format!(
        "[auth]\nroles_file = {:?}\ntoken_keys_file = {:?}\ntoken_audience = \"us\"\ntoken_leeway = \"0s\"\n\
         [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = false\n",
        path("roles"),
        path("keys"),
    );
    (Program::start_with(folder, &text, variables), text)
}

fn connect(program: &Program, user: Option<&str>, password: &str) -> Result<Client, ReasonCode> {
    let options = Options {
        username: user.map(str::to_owned),
        password: Some(password.as_bytes().to_vec()),
        ..options_of(program.address("main"))
    };
    match Client::connect(options) {
        Ok(client) => Ok(client),
        Err(ClientError::Refused { reason, .. }) => Err(reason),
        Err(error) => panic!("{error:?}"),
    }
}

fn publishes(client: &mut Client, topic: &str) -> bool {
    let message = Outgoing { topic, payload: b"x", qos: QoS::AtLeastOnce, ..Outgoing::default() };
    match client.publish(&message) {
        Ok(reason) => !reason.is_failure(),
        Err(ClientError::Publish { reason, .. }) => {
            assert_eq!(reason, ReasonCode::NOT_AUTHORIZED);
            false
        }
        Err(error) => panic!("{error:?}"),
    }
}

fn ends(client: &mut Client) -> ReasonCode {
    match client.receive(LONGEST) {
        Err(ClientError::Disconnected { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

/// The audit log, once all expected lines are in it: no login waits for the disk.
fn audit_log(program: &Program, is_whole: impl Fn(&str) -> bool) -> String {
    let read = || fs::read_to_string(program.path("data/state/audit.log")).unwrap_or_default();
    let whole = poll(LONGEST, || Some(read()).filter(|log| is_whole(log)));
    whole.unwrap_or_else(|| panic!("not whole: {}", read()))
}

#[test]
fn what_the_rules_refuse_is_in_the_log_as_in_the_audit_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    tidegate_identity::pki::init(&path("data/pki"), &Default::default()).expect("certificates");
    fs::write(path("rules"), "topic readwrite open/#\n").expect("a file");
    let text = "[mqtt]\nacl_file = \"rules\"\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
    let program = Program::start_in(folder, text);
    let options = options_of(program.address("main"));
    let options = Options { client_id: "dev-1".to_owned(), ..options };
    let mut client = Client::connect(options).expect("it is let in");
    let message =
        Outgoing { topic: "shut/x", payload: b"1", qos: QoS::AtLeastOnce, ..Outgoing::default() };
    client.publish(&message).expect_err("no rule allows it");
    let line = program.line_with("not allowed by the rules");
    let address =
        line.split_once(" address=\"127.0.0.1:").or(line.split_once(" address=127.0.0.1:"));
    let port = address.expect("where it came from").1;
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    assert_ne!(port.parse::<u16>().expect("a port"), 0, "{line}");
    for expected in ["client=dev-1", "action=\"publish\"", "target=shut/x", "listener=main"] {
        assert!(line.contains(expected), "no {expected} in {line}");
    }
    let audited = audit_log(&program, |log| log.contains("\"target\":\"shut/x\""));
    let entry = audited.lines().find(|line| line.contains("shut/x")).expect("an entry");
    let entry: serde_json::Value = serde_json::from_str(entry).expect("JSON");
    assert_eq!((&entry["client"], &entry["what"]), (&"dev-1".into(), &"publish".into()));
    let rule = entry["rule"].as_str().expect("a rule");
    assert!(line.contains(rule), "no {rule} in {line}");
}

#[test]
fn a_token_ends_with_its_time_by_a_system_clock_that_is_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = folder.path().join("clock");
    fs::write(&clock, "+0").expect("a file");
    let Some(variables) = wall_clock_of(&clock) else {
        return println!("skipped: libfaketime is not installed");
    };
    let issuer = Issuer::new();
    let (program, _) = start_with(folder, &issuer, &variables);
    let mut ada = connect(&program, None, &issuer.token("ada", 3_600)).expect("it is good");
    let mut bob = connect(&program, None, &issuer.token("bob", 10_000)).expect("it is good");
    assert!(publishes(&mut ada, "t/x"));
    fs::write(&clock, "+7200").expect("a file");
    assert_eq!(ends(&mut ada), ReasonCode::NOT_AUTHORIZED);
    assert!(publishes(&mut bob, "t/x"));
    program.stop();
}

#[test]
fn a_token_is_a_password_and_ends_with_its_time() {
    let issuer = Issuer::new();
    let (program, _) = start(tempfile::tempdir().expect("a folder"), &issuer);
    let token = issuer.token("ada", 3600);
    let mut ada = connect(&program, None, &token).expect("the token is good");
    assert!(publishes(&mut ada, "t/x") && !publishes(&mut ada, "u"));
    assert!(connect(&program, Some("ada"), &token).is_ok());
    let bad = ReasonCode::BAD_USER_NAME_OR_PASSWORD;
    for (user, password, expected) in [
        (Some("eve"), &*token, bad),
        (None, &issuer.token("ada", -1), bad),
        (None, &token[..token.len() - 2], bad),
        // There is no password file that could prove a name, so that nothing was proved.
        (Some("ada"), "secret", ReasonCode::NOT_AUTHORIZED),
    ] {
        let refused = connect(&program, user, password).expect_err("it is refused");
        assert_eq!(refused, expected, "{user:?}");
    }
    let mut short = connect(&program, None, &issuer.token("ada", 8)).expect("it still holds");
    assert_eq!(ends(&mut short), ReasonCode::NOT_AUTHORIZED);
    assert!(publishes(&mut ada, "t/x"), "the other one still holds");

    // Those who claimed no name are alike, and written once.
    let log = audit_log(&program, |log| log.matches("\"what\":\"login\"").count() == 2);
    for expected in [
        "\"rule\":\"the token is not accepted: the token is not that of the user name that came with it\"",
        "\"rule\":\"the token is not accepted: the token expired",
        "\"what\":\"publish\"",
        "\"who\":\"user ada\"",
        "no role allows it",
    ] {
        assert!(log.contains(expected), "no {expected} in\n{log}");
    }
    assert!(!log.contains("secret") && !log.contains(&token[..20]), "{log}");
    program.stop();
}

#[test]
fn limits_hold_for_all_connections_of_a_user() {
    let issuer = Issuer::new();
    let (program, _) = start(tempfile::tempdir().expect("a folder"), &issuer);
    let token = issuer.token("bob", 3600);
    let mut bob = connect(&program, None, &token).expect("the token is good");
    let second = connect(&program, None, &token).err();
    assert_eq!(second, Some(ReasonCode::QUOTA_EXCEEDED));
    assert!(
        connect(&program, None, &issuer.token("ada", 60)).is_ok(),
        "another user is not counted"
    );
    let began = Instant::now();
    for _ in 0..60 {
        assert!(publishes(&mut bob, "t/x"));
    }
    // A second's worth at once, and then 20 a second.
    assert!(began.elapsed() > Duration::from_millis(1_500), "{:?}", began.elapsed());
    bob.disconnect().expect("a farewell");
    let until = Instant::now() + LONGEST;
    while connect(&program, None, &token).is_err() {
        assert!(Instant::now() < until, "one gone, another may come");
    }
    program.stop();
}

#[test]
fn a_reload_takes_roles_and_keys_or_leaves_both() {
    let issuer = Issuer::new();
    let (program, text) = start(tempfile::tempdir().expect("a folder"), &issuer);
    let token = issuer.token("ada", 3600);
    let mut ada = connect(&program, None, &token).expect("the token is good");
    assert!(publishes(&mut ada, "t/x") && !publishes(&mut ada, "u"));

    // One of the two is wrong: neither is taken.
    let roles = ROLES.replace("t/#", "u/#");
    for (new_roles, new_keys) in [(&*roles, "nonsense"), ("[role", &*issuer.keys("two"))] {
        fs::write(program.path("roles"), new_roles).expect("a file");
        fs::write(program.path("keys"), new_keys).expect("a file");
        program.reload(&text);
        program.line_with("stay as they were");
        assert!(publishes(&mut ada, "t/x") && !publishes(&mut ada, "u"));
    }

    fs::write(program.path("roles"), &roles).expect("a file");
    fs::write(program.path("keys"), issuer.keys("one")).expect("a file");
    program.reload(&text);
    program.line_with("roles_changed=true");
    assert!(!publishes(&mut ada, "t/x") && publishes(&mut ada, "u"));

    // Another key: a client with a token needs one of the new key, and no other will do.
    fs::write(program.path("keys"), issuer.keys("two")).expect("a file");
    program.reload(&text);
    assert_eq!(ends(&mut ada), ReasonCode::ADMINISTRATIVE_ACTION);
    assert!(connect(&program, None, &token).is_err());

    let reloads = |log: &str, result: &str| {
        let is_one = |line: &&str| line.contains("\"what\":\"reload\"") && line.contains(result);
        log.lines().filter(is_one).count()
    };
    let log =
        audit_log(&program, |log| (reloads(log, "\"done\""), reloads(log, "\"failed\"")) == (2, 2));
    assert!(log.contains("the key set is not JSON"), "it says what was wrong: {log}");
    program.stop();
}

#[test]
fn the_program_explains_its_rules_and_exits_by_them() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("roles"), ROLES).expect("a file");
    for (arguments, status, expected) in [
        ("ada publish t/x --group staff", 0, "allow: roles:2: role operator: publish t/#\n"),
        ("ada publish t/x", 1, "deny: roles: no role allows it\n"),
        ("ada publish t/#", 2, ""),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .current_dir(folder.path())
            .args(["--set", "auth.roles_file=roles", "acl", "check"])
            .args(arguments.split(' '))
            .output()
            .expect("the program");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
    }
}

fn is_there(client: &mut Client, topic: &str) -> bool {
    match client.receive(Duration::from_millis(250)) {
        Ok(Some(message)) => {
            assert_eq!(message.topic, topic);
            true
        }
        Ok(None) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// Whether `reader`, who subscribed to the topic, is sent what `root` publishes to it.
fn receives(root: &mut Client, reader: &mut Client, topic: &str) -> bool {
    assert!(publishes(root, topic));
    is_there(reader, topic)
}

#[test]
fn a_right_that_is_taken_away_ends_the_subscriptions_that_it_allowed() {
    let root = "[role.root]\npublish = true\nsubscribe = true\n[user.root]\nroles = [\"root\"]\n";
    let role = "[role.viewer]\nsubscribe = [\"t/#\"]\n[user.ada]\nroles = [\"viewer\"]\n";
    let acl_root = "user root\ntopic readwrite #\n";
    // The remaining rule is wide or gone: it does not mention ada.
    for (what, before, after, acl_before, acl_after) in [
        ("the role", format!("{root}{role}"), root.to_owned(), "", ""),
        (
            "the member",
            format!("{root}{role}"),
            format!("{root}[role.viewer]\nsubscribe = [\"t/#\"]\n"),
            "",
            "",
        ),
        (
            "its reach",
            format!("{root}{role}"),
            format!("{root}{}", role.replace("t/#", "u/#")),
            "",
            "",
        ),
        (
            "by a deny",
            format!("{root}{role}"),
            format!("{root}{role}[role.viewer.deny]\nsubscribe = [\"t/#\"]\n"),
            "",
            "",
        ),
        (
            "an ACL rule",
            String::new(),
            String::new(),
            "user root\ntopic readwrite #\nuser ada\ntopic read t/#\n",
            acl_root,
        ),
        (
            "an ACL pattern",
            String::new(),
            String::new(),
            "user root\ntopic readwrite #\npattern read t/%u/#\n",
            acl_root,
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        tidegate_identity::pki::init(&path("data/pki"), &Default::default()).expect("certificates");
        let users = ["root", "ada"].map(|user| {
            let hash = tidegate_identity::auth::password::hash(b"word").expect("a hash");
            format!("{user}:{hash}\n")
        });
        fs::write(path("users"), users.concat()).expect("a file");
        let (name, file, changed) = match acl_before {
            "" => ("[auth]\nroles_file", before.clone(), after.clone()),
            _ => ("[mqtt]\nacl_file", acl_before.to_owned(), acl_after.to_owned()),
        };
        let rules = path("rules");
        fs::write(&rules, &file).expect("a file");
        let table = if acl_before.is_empty() { "[mqtt]\n" } else { "" };
        let text = format!(
            "{name} = {rules:?}\n{table}shards = 3\npassword_file = {:?}\ndurability = \"page\"\n\
             [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = false\n",
            path("users")
        );
        let mut program = Program::start_in(folder, &text);
        let reload = |program: &Program, rules_text: &str| {
            fs::write(&rules, rules_text).expect("a file");
            program.reload(&text);
            let is_of = if acl_before.is_empty() { "roles" } else { "rules" };
            program.line_with(&format!(" {is_of}_changed=true"));
        };
        let come = |program: &Program, user: &str, client_id: &str, is_kept: bool| {
            let options = Options {
                username: Some(user.to_owned()),
                password: Some(b"word".to_vec()),
                client_id: client_id.to_owned(),
                clean_start: !is_kept,
                session_expiry: is_kept.then_some(3600),
                ..options_of(program.address("main"))
            };
            Client::connect(options).expect("the password is right")
        };
        let topic = "t/ada/x";
        let mut root = come(&program, "root", "root", false);
        let mut ada = come(&program, "ada", "ada", false);
        let mut away = come(&program, "ada", "away", true);
        for client in [&mut ada, &mut away] {
            let filter = SubscribeFilter {
                filter: "t/ada/#".to_owned(),
                maximum_qos: QoS::AtLeastOnce,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Send,
            };
            let granted = client.subscribe(std::slice::from_ref(&filter)).expect("it is allowed");
            assert!(!granted[0].is_failure());
        }
        assert!(receives(&mut root, &mut ada, topic), "{what}");
        drop(away);
        assert!(receives(&mut root, &mut ada, topic), "{what}: and waits for `away`");

        reload(&program, &changed);
        assert!(!receives(&mut root, &mut ada, topic), "{what}");
        let mut away = come(&program, "ada", "away", true);
        assert!(!is_there(&mut away, topic), "{what}: it waited");
        assert!(!receives(&mut root, &mut away, topic), "{what}: over a reconnect");
        program = Program::start_in(program.kill(), &text);
        let mut root = come(&program, "root", "root", false);
        let mut away = come(&program, "ada", "away", true);
        assert!(!receives(&mut root, &mut away, topic), "{what}: over a restart");
        // It was no more than the right: given back, the subscription is as good as before.
        reload(&program, &file);
        assert!(receives(&mut root, &mut away, topic), "{what}: given back");
        program.stop();
    }
}

fn has_word(line: &str, word: &str) -> bool {
    line.split_whitespace().any(|found| found == word)
}

#[test]
fn sessions_are_listed_ended_and_wait_for_their_owner() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    tidegate_identity::pki::init(&path("data/pki"), &Default::default()).expect("certificates");
    let hash = tidegate_identity::auth::password::hash(b"word").expect("a hash");
    let users = |names: &[&str]| -> String {
        names.iter().map(|name| format!("{name}:{hash}\n")).collect()
    };
    let file = path("users");
    fs::write(&file, users(&["alice", "bob", "carol"])).expect("a file");
    let text = format!(
        "[mqtt]\nshards = 3\npassword_file = {file:?}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = false\n"
    );
    let mut program = Program::start_in(folder, &text);
    let api = program.api();
    let come = |program: &Program, user: &str, client_id: &str| {
        let options = Options {
            username: Some(user.to_owned()),
            password: Some(b"word".to_vec()),
            client_id: client_id.to_owned(),
            clean_start: false,
            session_expiry: Some(3600),
            ..options_of(program.address("main"))
        };
        match Client::connect(options) {
            Ok(client) => Ok(client),
            Err(ClientError::Refused { reason, .. }) => Err(reason),
            Err(error) => panic!("{error:?}"),
        }
    };
    let taken = Some(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
    let sessions = |program: &Program, arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("--config")
            .arg(program.path("tidegate.toml"))
            .arg("sessions")
            .args(arguments)
            .args(["--node", &format!("https://{api}")])
            .output()
            .expect("the program");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &said)
    };
    for client_id in ["dev1", "dev2", "dev3"] {
        drop(come(&program, "alice", client_id).expect("it is hers"));
    }
    let _bob = come(&program, "bob", "dev4").expect("it is his");
    assert_eq!(come(&program, "carol", "dev1").err(), taken);
    let line = program.line_with("CONNECT refused: the session of this client identifier");
    for expected in ["client=dev1", "user=carol", "owner=alice", "tidegate sessions end"] {
        assert!(line.contains(expected), "no {expected} in {line}");
    }

    // An administrator sees whose they are, and ends one.
    let (status, listed) = sessions(&program, &["list", "--owner", "alice", "-o", "json"]);
    assert_eq!(status, Some(0), "{listed}");
    for client_id in ["dev1", "dev2", "dev3"] {
        assert!(listed.contains(&format!("\"client_id\": \"{client_id}\"")), "{listed}");
    }
    assert!(!listed.contains("dev4") && listed.contains("\"owner\": \"alice\""), "{listed}");
    let (_, all) = sessions(&program, &["list"]);
    assert!(all.contains("user bob") && all.contains("away"), "{all}");
    assert_eq!(sessions(&program, &["end", "dev1", "none"]), (Some(0), "1 ended\n".to_owned()));
    drop(come(&program, "carol", "dev1").expect("it is free"));
    audit_log(&program, |log| {
        log.contains("\"what\":\"end-sessions\"") && log.contains("1 ended: dev1, none")
    });

    // Those of a user that is gone wait, over a restart as well, and are no one else's meanwhile.
    fs::write(&file, users(&["bob", "carol"])).expect("a file");
    program.reload(&text);
    let line = program.line_with("users are gone from the password file");
    assert!(line.contains("alice") && has_word(&line, "hours=1"), "{line}");
    assert!(come(&program, "alice", "dev2").is_err(), "she is refused at once");
    assert_eq!(come(&program, "carol", "dev2").err(), taken);
    let folder = program.kill();
    program = Program::start_in(folder, &text);
    let line = program.line_with("users are gone from the password file");
    assert!(line.contains("alice"), "{line}");
    let api = program.api();
    assert_eq!(come(&program, "carol", "dev2").err(), taken);
    // An administrator need not wait, and one that is back has them.
    let node = format!("https://{api}");
    let ended = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("--config")
        .arg(program.path("tidegate.toml"))
        .args(["sessions", "end", "dev2", "--node", &node])
        .status();
    assert!(ended.expect("the program").success());
    drop(come(&program, "carol", "dev2").expect("it is free"));
    fs::write(&file, users(&["alice", "bob", "carol"])).expect("a file");
    program.reload(&text);
    program.line_with("configuration of MQTT reloaded");
    let alice = come(&program, "alice", "dev3").expect("it is hers");
    assert!(alice.connack().session_present, "her session is there");
    assert_eq!(come(&program, "carol", "dev4").err(), taken, "bob is still there");
    program.stop();
}

#[test]
fn file_of_users_that_is_emptied_or_cut_ends_no_session() {
    let folder = tempfile::tempdir().expect("a folder");
    tidegate_identity::pki::init(&folder.path().join("data/pki"), &Default::default())
        .expect("certificates");
    let file = folder.path().join("users");
    let hash = tidegate_identity::auth::password::hash(b"word").expect("a hash");
    let whole: String =
        ["alice", "bob", "carol", "dave"].map(|name| format!("{name}:{hash}\n")).concat();
    fs::write(&file, &whole).expect("a file");
    let text = format!(
        "[mqtt]\nshards = 2\npassword_file = {file:?}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = false\n"
    );
    let program = Program::start_in(folder, &text);
    let come = || {
        let options = Options {
            username: Some("dave".to_owned()),
            password: Some(b"word".to_vec()),
            client_id: "dev".to_owned(),
            clean_start: false,
            session_expiry: Some(3600),
            ..options_of(program.address("main"))
        };
        Client::connect(options)
    };
    drop(come().expect("it is his"));
    for (cut, place, expected) in [
        ("", "users:1: ", "the file has no user"),
        (&whole[..whole.len() - 5], "users:4: ", "the secret is damaged"),
        (&whole[..whole.len() - hash.len() - 3], "users:4: ", "has no `:`"),
    ] {
        fs::write(&file, cut).expect("a file");
        let check = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("--config")
            .arg(program.path("tidegate.toml"))
            .args(["config", "check"])
            .output()
            .expect("the program");
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        assert_eq!(check.status.code(), Some(2), "{said}");
        assert!(said.contains(place) && said.contains(expected), "{said}");
        program.reload(&text);
        let line = program.line_with(expected);
        assert!(line.contains(place), "{line}");
        let dave = come().expect("he is still there");
        assert!(dave.connack().session_present, "{expected}: his session is gone");
    }
    // Cut at the end of a line it is a file with fewer users: that most of them are gone is an error, and their sessions wait longer.
    fs::write(&file, whole.split_inclusive('\n').next().expect("a line")).expect("a file");
    program.reload(&text);
    let line = program.line_with("more than half of the users are gone");
    assert!(has_word(&line, "ERROR") && has_word(&line, "hours=72"), "{line}");
    program.line_with("configuration of MQTT reloaded");
    assert!(come().is_err(), "he is refused at once");
    fs::write(&file, &whole).expect("a file");
    program.reload(&text);
    program.line_with("configuration of MQTT reloaded");
    assert!(come().expect("he is back").connack().session_present, "his session is gone");
    program.stop();
}

#[test]
fn emptied_configuration_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    tidegate_identity::pki::init(&folder.path().join("data/pki"), &Default::default())
        .expect("certificates");
    let text = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
    let program = Program::start_in(folder, text);
    let file = program.path("tidegate.toml");
    let is_served = || {
        drop(Client::connect(options_of(program.address("main"))).expect("it is served as before"));
    };
    for cut in ["", "\n", "\0\0\0\0"] {
        fs::write(&file, cut).expect("a file");
        program.hang_up();
        let line = program.line_with("tidegate.toml is empty");
        assert!(has_word(&line, "ERROR"), "{line}");
        is_served();
        // The power that cut the write has ended the node as well.
        for arguments in [&["node"][..], &["config", "check"]] {
            let start = Command::new(env!("CARGO_BIN_EXE_tidegate"))
                .arg("--config")
                .arg(&file)
                .args(arguments)
                .output()
                .expect("the program");
            let said =
                String::from_utf8_lossy(&start.stdout) + String::from_utf8_lossy(&start.stderr);
            assert_eq!(start.status.code(), Some(2), "{arguments:?}: {said}");
            assert!(said.contains("tidegate.toml is empty"), "{arguments:?}: {said}");
        }
    }
    fs::remove_file(&file).expect("it is there");
    program.hang_up();
    program.line_with("tidegate.toml cannot be read");
    is_served();
    program.reload(text);
    program.line_with("configuration of MQTT reloaded");
    program.stop();
}

//! Foreign clients: mosquitto_pub and mosquitto_sub, and Eclipse Paho over every transport.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    thread,
};

use tidegate_load::client::{Client, ClientError, Options};
use tidegate_wire::mqtt::ReasonCode;

use crate::program::{LONGEST, Program, options_of, signal};

const ONE: &str = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";

fn installed(program: &str) -> bool {
    let found =
        Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = found.is_ok();
    if !is_there {
        println!("skipped: {program} is not installed; scripts/setup installs it");
    }
    is_there
}

#[test]
fn mosquittos_clients_are_served_in_every_version_and_quality() {
    if !installed("mosquitto_sub") || !installed("mosquitto_pub") {
        return;
    }
    let program = Program::start(ONE);
    let port = program.address("main").port().to_string();
    for version in ["mqttv31", "mqttv311", "mqttv5"] {
        for qos in ["0", "1", "2"] {
            let common = ["-h", "127.0.0.1", "-p", &port, "-V", version, "-q", qos];
            // A client that has been sent this has subscribed. Acknowledged, so that it is retained before anybody subscribes,
            // and does
            // not come behind what an earlier round left.
            let retained = Command::new("mosquitto_pub")
                .args(common)
                .args(["-t", "ready", "-m", "1", "-r", "-q", "1"])
                .status();
            assert!(retained.unwrap().success());
            let mut subscriber = Command::new("mosquitto_sub")
                .args(common)
                .args(["-t", "a/+/c", "-t", "ready", "-C", "4", "-W", "15", "-v"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines();
            let mut next = || lines.next().expect("a line before it ends").unwrap();
            assert_eq!(next(), "ready 1", "{version} QoS {qos}");
            // On one connection, since nothing orders what several send.
            let mut publisher = Command::new("mosquitto_pub")
                .args(common)
                .args(["-t", "a/b/c", "-l"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            publisher.stdin.take().unwrap().write_all(b"one\ntwo\nthree\n").unwrap();
            assert!(publisher.wait().unwrap().success(), "{version} QoS {qos}");
            for text in ["one", "two", "three"] {
                assert_eq!(next(), format!("a/b/c {text}"), "{version} QoS {qos}");
            }
            assert!(subscriber.wait().unwrap().success(), "{version} QoS {qos}");
        }
    }
    program.stop();
}

#[test]
fn paho_is_served_over_tcp_tls_and_websockets() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/with-paho");
    let ready = Command::new(&script).args(["-c", "import paho.mqtt"]).output().unwrap();
    if !ready.status.success() {
        let said = String::from_utf8_lossy(&ready.stderr);
        println!(
            "skipped: Eclipse Paho cannot be installed: {}",
            said.lines().last().unwrap_or("")
        );
        return;
    }
    let program = Program::start(
        "[mqtt.listener.plain]\nlisten = \"127.0.0.1:0\"\n\
         [mqtt.listener.secure]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\n\
         [mqtt.listener.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"websocket\"\n\
         [mqtt.listener.secureweb]\nlisten = \"127.0.0.1:0\"\nprotocol = \"secure-websocket\"\n",
    );
    let authority = program.path("data/pki/ca.pem");
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mqtt/foreign.py");
    thread::scope(|scope| {
        for (transport, listener, secure) in [
            ("tcp", "plain", false),
            ("tls", "secure", true),
            ("websockets", "web", false),
            ("websockets-tls", "secureweb", true),
        ] {
            let port = program.address(listener).port().to_string();
            let mut command = Command::new(&script);
            command.arg(&clients).args([transport, &port]);
            if secure {
                command.arg(&authority);
            }
            scope.spawn(move || {
                let Output { status, stdout, stderr } = command.output().unwrap();
                let said = String::from_utf8_lossy(&stdout);
                let failed = String::from_utf8_lossy(&stderr);
                assert!(
                    status.success() && said.ends_with("ok\n"),
                    "{transport}: {said}\n{failed}"
                );
            });
        }
    });
    program.stop();
}

fn options(program: &Program, username: Option<(&str, &str)>) -> Options {
    let mut options = options_of(program.address("main"));
    options.username = username.map(|(name, _)| name.to_owned());
    options.password = username.map(|(_, password)| password.as_bytes().to_owned());
    options
}

fn refusal(program: &Program, username: Option<(&str, &str)>) -> ReasonCode {
    match Client::connect(options(program, username)) {
        Err(ClientError::Refused { reason, .. }) => reason,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("{username:?} was let in"),
    }
}

pub(crate) fn passwd(file: &Path, arguments: &[&str], password: &str) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("passwd")
        .arg(file)
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_name_that_nobody_can_prove_is_no_way_past_a_closed_door() {
    let program = Program::start(&format!("{ONE}allow_anonymous = false\n"));
    assert_eq!(refusal(&program, None), ReasonCode::NOT_AUTHORIZED);
    assert_eq!(refusal(&program, Some(("anybody", "anything"))), ReasonCode::NOT_AUTHORIZED);
    program.stop();
}

#[test]
fn users_and_rules_hold_and_are_read_anew_on_a_hangup() {
    let folder = tempfile::tempdir().unwrap();
    tidegate_identity::pki::init(&folder.path().join("data/pki"), &Default::default()).unwrap();
    let (users, rules) = (folder.path().join("users"), folder.path().join("rules"));
    passwd(&users, &["ada"], "first\n");
    fs::write(&rules, "user ada\ntopic read home/#\ntopic write home/door\n").unwrap();
    let program = Program::start_in(
        folder,
        &format!("[mqtt]\npassword_file = {users:?}\nacl_file = {rules:?}\n{ONE}"),
    );
    assert_eq!(refusal(&program, None), ReasonCode::NOT_AUTHORIZED);
    assert_eq!(refusal(&program, Some(("ada", "wrong"))), ReasonCode::BAD_USER_NAME_OR_PASSWORD);
    assert_eq!(refusal(&program, Some(("bob", "first"))), ReasonCode::BAD_USER_NAME_OR_PASSWORD);
    Client::connect(options(&program, Some(("ada", "first")))).expect("she is a user");

    passwd(&users, &["--scram", "bob"], "second\n");
    fs::write(&rules, "user ada\nno such thing\n").unwrap();
    signal(program.id(), "HUP");
    program.line_with("stay as they were");
    assert_eq!(refusal(&program, Some(("bob", "second"))), ReasonCode::BAD_USER_NAME_OR_PASSWORD);

    fs::write(&rules, "user bob\ntopic readwrite home/#\n").unwrap();
    signal(program.id(), "HUP");
    program.line_with("reloaded");
    Client::connect(options(&program, Some(("bob", "second")))).expect("he is a user now");
    program.stop();
}

#[test]
fn a_reload_exchanges_the_doors_and_ends_who_is_let_in_no_longer() {
    let secure = "[mqtt.listener.secure]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\n";
    let program = Program::start(&format!("{ONE}{secure}"));
    let mut nobody = Client::connect(options(&program, None)).expect("anonymous on loopback");
    let users = program.path("users");
    passwd(&users, &["ada"], "word\n");

    // A password file where there was none: anonymous clients have to go; a shard more has to wait; TLS shows other files.
    let named = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (program.path("other.pem"), program.path("other.key"));
    fs::write(&certificate, named.cert.pem()).unwrap();
    fs::write(&key, named.signing_key.serialize_pem()).unwrap();
    program.reload(&format!(
        "[mqtt]\nshards = 3\npassword_file = {users:?}\n{ONE}{secure}certificate = {certificate:?}\nkey = {key:?}\n"
    ));
    program.line_with("reloaded");
    let line = program.line_with("at the next start");
    assert!(line.contains("mqtt.shards"), "{line}");
    match nobody.receive(LONGEST) {
        Err(ClientError::Disconnected { reason, .. }) => {
            assert_eq!(reason, ReasonCode::ADMINISTRATIVE_ACTION);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(refusal(&program, None), ReasonCode::NOT_AUTHORIZED);
    Client::connect(options(&program, Some(("ada", "word")))).expect("she is a user");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(named.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusting = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let options = Options {
        port: program.address("secure").port(),
        host: "localhost".to_owned(),
        tls: Some(Arc::new(trusting)),
        ..options(&program, Some(("ada", "word")))
    };
    Client::connect(options).expect("the new certificate is shown");
    program.stop();
}

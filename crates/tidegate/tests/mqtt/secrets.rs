//! A secret that stands in a configuration is in nothing that the program says.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
};

use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, Outgoing};
use tidegate_wire::mqtt::QoS;

use crate::{
    poll::poll,
    program::{LONGEST, options_of, signal},
};

/// Each key that may hold a secret, in each form in which users write one; `S` stands for it.
const KEYS: [(&str, &str, &str); 27] = [
    ("auth", "token_keys_url", "https://id.invalid/keys?access=S"),
    ("auth", "token_keys_url", "https://me:S@id.invalid/keys"),
    ("camera.a", "source", "rtsp://me:S@127.0.0.1:9/1"),
    ("camera.a", "source", "http://127.0.0.1:9/1?pwd=S"),
    ("camera.a", "source", "rtsp:me:S@127.0.0.1:9/1"),
    ("camera.a", "substream", "rtsp://me:S@127.0.0.1:9/1"),
    ("detect.a", "command", "look --token S"),
    ("workers", "command", "look --token=S 'a"),
    ("privacy", "detector_command", "look --url http://me:S@127.0.0.1:9/"),
    ("link", "edge", "me:S@127.0.0.1:9"),
    ("link", "edge", "127.0.0.1:S"),
    ("mqtt.bridge.a", "remote", "me:S@127.0.0.1:9"),
    ("mqtt.bridge.a", "remote", "S@127.0.0.1:9"),
    ("mqtt.bridge.a", "username", "S"),
    ("uplink.a", "to", "me:S@127.0.0.1:9"),
    ("sink.a", "url", "postgresql://me:S@127.0.0.1:9/site?sslmode=disable"),
    ("sink.a", "url", "postgresql://127.0.0.1:9/site?password=S&sslmode=disable"),
    ("sink.a", "url", "postgresql://127.0.0.1:9/site?passwort=S"),
    ("sink.a", "url", "host=127.0.0.1 port=9 user=me password='a S'"),
    ("sink.a", "url", "http://127.0.0.1:9/write?u=me&p=S"),
    ("sink.a", "url", "http://me:S@127.0.0.1:9/write"),
    ("sink.a", "url", "kafka://me:S@127.0.0.1:9"),
    ("sink.a", "url", "kafka://127.0.0.1:9,me:S@127.0.0.1:9"),
    ("sink.a", "url", "mqtt://me:S@127.0.0.1:9"),
    ("sink.a", "url", "ftp://me:S@127.0.0.1:9"),
    ("sink.a", "endpoint", "http://me:S@127.0.0.1:9"),
    ("sink.a", "username", "S"),
];

/// The rest of the section that such a key stands in.
fn rest(section: &str, key: &str, value: &str) -> &'static str {
    match (section, key, value.split([':', '=']).next().unwrap_or_default()) {
        ("auth", ..) => "token_audience = \"site\"",
        ("camera.a", "substream", _) => "source = \"scene:street\"",
        ("detect.a", ..) => "cameras = \"*\"",
        ("privacy", ..) => "detector = \"command\"",
        ("mqtt.bridge.a", "username", _) => "remote = \"127.0.0.1:9\"\ntopics_out = \"#\"",
        ("mqtt.bridge.a", ..) => "topics_out = \"#\"",
        ("uplink.a", ..) => "topics = \"#\"",
        ("sink.a", "endpoint", _) => "topics = \"#\"\nkind = \"parquet\"\nurl = \"s3://site/a\"",
        ("sink.a", "username", _) => {
            "topics = \"#\"\nkind = \"mqtt\"\nurl = \"mqtt://127.0.0.1:9\""
        }
        ("sink.a", _, "postgresql" | "host") => "topics = \"#\"\nkind = \"postgres\"",
        ("sink.a", _, "http") => "topics = \"#\"\nkind = \"influx\"",
        ("sink.a", _, "kafka") => "topics = \"#\"\nkind = \"kafka\"",
        ("sink.a", ..) => "topics = \"#\"\nkind = \"mqtt\"",
        _ => "",
    }
}

fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("--config").arg(folder.join("tidegate.toml")).args(arguments);
    command.current_dir(folder).env("TIDEGATE_LOG", "trace").stdin(Stdio::null());
    command
}

/// All that a run of the program says.
fn said(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let output = program(folder, arguments).output().expect("the program");
    let texts =
        [&*output.stdout, &*output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (output.status.success(), texts.concat())
}

/// A node with its log in a file; it ends with this.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn no_output_holds_a_secret_of_the_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    pki::init(&folder.join("data/pki"), &InitRequest::default()).expect("certificates");
    let node = "[node]\ndata_dir = \"data\"\napi_listen = \"127.0.0.1:0\"\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
    let mut accepted = String::new();
    let mut sinks = 0;
    for (number, (section, key, value)) in KEYS.into_iter().enumerate() {
        let secret = format!("s3cret{number}x");
        let value = value.replace('S', &secret);
        let rest = rest(section, key, &value);
        let link = if section == "link" { "" } else { "[link]\n" };
        let text = format!(
            "{node}[{section}]\n{key} = \"{value}\"\n{rest}\n{link}listen = \"127.0.0.1:0\"\n"
        );
        fs::write(folder.join("tidegate.toml"), &text).expect("a file");
        let (is_right, checked) = said(folder, &["config", "check"]);
        let setting = format!("{section}.{key}={value}");
        let broken = format!("{key}={value}");
        let mut all = vec![
            said(folder, &["config"]).1,
            said(folder, &["config", "--output", "json"]).1,
            said(folder, &["config", "check", "--connect"]).1,
            said(folder, &["doctor"]).1,
            said(folder, &["--set", &setting, "config"]).1,
            said(folder, &["--set", &setting, "config", "check"]).1,
            said(folder, &["--set", &broken, "config"]).1,
            checked,
        ];
        if !is_right {
            let (started, told) = said(folder, &["node"]);
            assert!(!started, "{told}");
            all.push(told);
        } else if section == "sink.a" {
            accepted.push_str(&format!("[sink.a{number}]\n{key} = \"{value}\"\n{rest}\n"));
            sinks += 1;
        }
        for told in all {
            assert!(!told.contains(&secret), "{value}: {told}");
        }
    }
    assert!(sinks > 2, "some of them are taken");

    // A node that runs by those that are taken, and whose destinations do not answer.
    let text = format!("{node}[link]\nlisten = \"127.0.0.1:0\"\n{accepted}");
    fs::write(folder.join("tidegate.toml"), text).expect("a file");
    let log = folder.join("node.log");
    let file = File::create(&log).expect("a file");
    let mut node = Node(program(folder, &["node"]).stderr(file).spawn().expect("the program"));
    let read = || fs::read_to_string(&log).expect("the log");
    let serves = || {
        let log = read();
        let (_, address) = log.split_once("listener=main address=")?;
        address.split_whitespace().next()?.parse().ok()
    };
    let address = poll(LONGEST, serves).unwrap_or_else(|| panic!("{}", read()));
    let mut client = Client::connect(options_of(address)).expect("it serves this machine");
    let message =
        Outgoing { topic: "a", payload: b"1", qos: QoS::AtLeastOnce, ..Outgoing::default() };
    // Again and again: a sink may not have subscribed yet.
    let are_down = || {
        assert!(!client.publish(&message).expect("it is answered").is_failure());
        (read().matches("sink down").count() >= sinks).then_some(())
    };
    poll(LONGEST, are_down).unwrap_or_else(|| panic!("{}", read()));
    signal(node.0.id(), "TERM");
    poll(LONGEST, || node.0.try_wait().expect("it is our child")).expect("it ends");
    let told = read();
    assert!(!told.contains("s3cret"), "{told}");
}

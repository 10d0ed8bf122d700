//! `tidegate config check`, and a start and a reload that say the same.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output},
    time::{Instant, SystemTime},
};

use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::Client;

use crate::program::{LONGEST, Program, options_of, signal};

const LISTENER: &str = "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";

/// A folder with certificates, the configuration `text` and what it names.
fn site(text: &str, files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    fs::write(folder.path().join("tidegate.toml"), of(&folder, text)).expect("a file");
    folder
}

/// The text of a configuration in that folder.
fn of(folder: &TempDir, text: &str) -> String {
    of_place(&folder.path().display().to_string(), text)
}

fn of_place(place: &str, text: &str) -> String {
    format!(
        "[node]\ndata_dir = \"{place}/data\"\napi_listen = \"127.0.0.1:0\"\nhealth_listen = \"127.0.0.1:0\"\n[link]\nlisten = \"127.0.0.1:0\"\n{}",
        text.replace("FOLDER", place)
    )
}

fn tidegate(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("--config")
        .arg(folder.join("tidegate.toml"))
        .args(arguments)
        .current_dir(folder)
        .env("TIDEGATE_LOG", "warn")
        .output()
        .expect("the program")
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}

/// All there is below a folder, with when it was written.
fn all_in(folder: &Path) -> Vec<(String, SystemTime)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let written = path.symlink_metadata().expect("it is there").modified();
            found.push((path.display().to_string(), written.expect("it has a time")));
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}

const WRONG: &str = "queue_alowed = \"10ms\"
transport = \"qiuc\"
[mqtt]
acl_file = \"FOLDER/acl\"
password_file = \"FOLDER/users\"
[auth]
roles_file = \"FOLDER/roles\"
[frames]
tables_dir = \"FOLDER/tables\"
[mqtt.listener.main]
listen = \"127.0.0.1:0\"
[mqtt.listener.tls]
listen = \"127.0.0.1:0\"
protocol = \"tls\"
certificate = \"FOLDER/no.pem\"
key = \"FOLDER/no.key\"
connections_max = 0
[mqtt.bridge.cloud]
remote = \"nowhere\"
topics_out = \"a\"
qos = 3
[uplink.up]
to = \"core\"
topics = \"a/#/b\"
[flow.one]
file = \"flow.toml\"
[sink.old]
kind = \"influx\"
topics = \"#\"
[sink.new]
kind = \"influx\"
topics = \"#\"
url = \"http://127.0.0.1:1/write\"
encoding = \"line\"
[ingest.lines]
kind = \"http\"
listen = \"127.0.0.1:7087\"
connections_max = 0
[ingest.more]
kind = \"websocket\"
listen = \"0.0.0.0:7087\"
[log]
at_rest = \"sealed\"
key_file = \"FOLDER/no.key\"
";

const FILES: [(&str, &str); 4] = [
    ("acl", "user ada\nno such line\ntopic reed a\ntopic read a\n"),
    ("users", "ada\n"),
    ("roles", "[role.viewer]\nsubscribee = [\"#\"]\n[usr.x]\nroles = [\"viewer\"]\n"),
    ("flow.toml", "[flow.a]\ntopic = [\"t\"]\nparse = { format = \"csv\", fields = [\"x\"] }\n"),
];

/// How each line begins that `config check` prints of them.
const EXPECTED: [&str; 20] = [
    "FOLDER/tidegate.toml:7: [link] has no \"queue_alowed\"; did you mean \"queue_allowed\"? choose",
    "FOLDER/tidegate.toml:8: link.transport: \"qiuc\" is not a valid transport; did you mean \"quic\"? choose auto, quic or tcp",
    "FOLDER/users:1: ",
    "FOLDER/acl:2: a line begins with user, topic, pattern or #, and not with \"no\"",
    "FOLDER/acl:3: \"reed\" is not an access; did you mean \"read\"? choose one of: read write",
    "FOLDER/roles:2: ",
    "FOLDER/roles:3: there is no section [usr]; did you mean \"user\"? choose one of",
    "FOLDER/tidegate.toml:15: frames.tables_dir: ",
    "FOLDER/tidegate.toml:29: uplink.up.to must be a host and a port",
    "FOLDER/tidegate.toml:30: uplink.up.topics must be of filters",
    "FOLDER/tidegate.toml:21: mqtt.listener.tls.certificate: FOLDER/no.pem cannot be used",
    "FOLDER/tidegate.toml:23: mqtt.listener.tls.connections_max must be at least 1",
    "FOLDER/tidegate.toml:25: mqtt.bridge.cloud.remote must be a host and a port",
    "FOLDER/tidegate.toml:27: mqtt.bridge.cloud.qos must be 0, 1 or 2",
    "FOLDER/tidegate.toml:44: ingest.lines.connections_max must be from 1 to 65536",
    "FOLDER/tidegate.toml:33: sink.old cannot be: ",
    "FOLDER/tidegate.toml:40: sink.new cannot be: encoding is \"line\"; did you mean \"lines\"? choose lines or values",
    "FOLDER/flow.toml:2: unknown field `topic`, did you mean \"topics\"? expected one of",
    "FOLDER/tidegate.toml:47: ingest.more.listen: 0.0.0.0:7087 is where ingest.lines.listen listens already",
    "FOLDER/tidegate.toml:50: warning: the file that log.key_file names gives no key",
];

#[test]
fn every_mistake_is_a_line_and_a_start_and_a_reload_say_the_same() {
    let folder = site(WRONG, &FILES);
    let place = folder.path().display().to_string();
    let before = all_in(folder.path());

    let checked = tidegate(folder.path(), &["config", "check"]);
    assert_eq!(checked.status.code(), Some(2));
    let found = lines(&checked.stdout);
    let text = found.join("\n");
    for expected in EXPECTED {
        let expected = expected.replace("FOLDER", &place);
        assert!(
            found.iter().any(|line| line.starts_with(&expected)),
            "no line begins {expected:?} in\n{text}"
        );
    }
    let is_problem = |line: &&String| !line.contains("warning: ");
    let problems: Vec<&String> = found.iter().filter(is_problem).collect();
    assert_eq!(problems.len(), 19, "{text}");
    let stderr = lines(&checked.stderr);
    assert_eq!(stderr[0], "error: the configuration has 19 mistakes", "{stderr:?}");
    assert_eq!(all_in(folder.path()), before, "a check writes nothing");

    let json = tidegate(folder.path(), &["config", "check", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json.as_array().map(Vec::len), Some(found.len()));
    assert_eq!(
        (json[0]["line"].as_u64(), json[0]["severity"].as_str()),
        (Some(7), Some("problem"))
    );

    // A start refuses it in the same words, and has not begun.
    let started = tidegate(folder.path(), &["node"]);
    assert_eq!(started.status.code(), Some(2));
    let said = lines(&started.stderr);
    for line in &problems {
        assert!(said.contains(&format!("  because: {line}")), "{line}\nis not in\n{said:#?}");
    }
    assert_eq!(all_in(folder.path()), before, "a start that is refused writes nothing");

    // A reload does, too, and what runs continues.
    fs::remove_dir_all(folder.path().join("data")).expect("a folder");
    pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
    let program = Program::start_in(folder, LISTENER);
    let api = program.api();
    fs::write(program.path("tidegate.toml"), of_place(&place, WRONG)).expect("a file");
    signal(program.id(), "HUP");
    for line in &problems {
        program.line_with(line);
    }
    program.line_with("stay as they were");
    let reload = |arguments: &[&str]| {
        let folder = program.path("");
        let node = format!("{api}");
        tidegate(&folder, &[&["config", "reload", "--node", &node], arguments].concat())
    };
    // The node has what is wrong in front of it; the command only needs a certificate.
    let data = format!("node.data_dir={}", program.path("data").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["--set", &data, "config", "reload", "--node", &api.to_string()]);
    let asked = command.current_dir("/").output().expect("the program");
    assert_eq!(asked.status.code(), Some(2), "{asked:?}");
    assert_eq!(lines(&asked.stdout).iter().collect::<Vec<_>>(), problems);
    fs::write(
        program.path("tidegate.toml"),
        of_place(&place, &format!("{LISTENER}[mqtt]\npolicy = \"none\"\n")),
    )
    .expect("a file");
    let asked = reload(&[]);
    assert_eq!(asked.status.code(), Some(0), "{asked:?}");
    assert_eq!(lines(&asked.stdout), ["mqtt.policy was exchanged"]);
    let asked = reload(&["-o", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    assert_eq!(json["exchanged"], serde_json::json!([]));
    Client::connect(options_of(program.address("main"))).expect("it serves as before");
    program.stop();
}

#[test]
fn requirements_of_a_start_are_checked_and_named_with_the_way_out() {
    // Without certificates, or with another authority's, there is no node.
    let folder = site(LISTENER, &[]);
    fs::remove_file(folder.path().join("data/pki/edge.pem")).expect("it was there");
    let checked = tidegate(folder.path(), &["config", "check"]);
    assert_eq!(checked.status.code(), Some(2));
    let found = lines(&checked.stdout);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("edge.pem is missing") && found[0].contains("tidegate init"),
        "{found:?}"
    );

    // A file that is no TOML: each line of it, and nothing that comes of it.
    fs::write(folder.path().join("tidegate.toml"), "[node]\nname = \n[link]\nedge == 1\n")
        .expect("a file");
    let checked = tidegate(folder.path(), &["config", "check"]);
    let found = lines(&checked.stdout);
    assert_eq!((found.len(), checked.status.code()), (2, Some(2)), "{found:?}");
    assert!(
        found[0].contains("tidegate.toml:2: ") && found[1].contains("tidegate.toml:4: "),
        "{found:?}"
    );

    // A file that is not there, and variables and flags, which have no line.
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["--config", "/no/such.toml", "--set", "node.nam=x", "config", "check"])
        .env("TIDEGATE__LINK__TRANSPORT", "tcpp")
        .output()
        .expect("the program");
    let found = lines(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{found:?}");
    for expected in [
        "/no/such.toml cannot be read",
        "--set node.nam: [node] has no \"nam\"; did you mean \"name\"?",
        "TIDEGATE__LINK__TRANSPORT: link.transport: \"tcpp\" is not a valid transport; did you mean \"tcp\"?",
    ] {
        assert!(found.iter().any(|line| line.starts_with(expected)), "{expected} in {found:#?}");
    }
}

#[test]
fn servers_are_reached_within_a_bound_and_only_when_asked_for() {
    let here = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (open, shut) = (here.local_addr().expect("one"), gone.local_addr().expect("one"));
    drop(gone);
    let text = |bridge: &str, sink: &str, tls: bool| {
        format!(
            "{LISTENER}[mqtt.bridge.cloud]\nremote = \"{bridge}\"\ntopics_out = \"a\"\n[sink.db]\nkind = \"influx\"\ntopics = \"#\"\n\
             url = \"{}://{sink}/write\"\n{}[sink.memory]\ntopics = \"a\"\n[uplink.up]\nto = \"{bridge}\"\ntopics = \"b\"\n",
            if tls { "https" } else { "http" },
            if tls { "ca = \"FOLDER/data/pki/ca.pem\"\n" } else { "" }
        )
    };
    let folder = site(&text(&shut.to_string(), &shut.to_string(), false), &[]);
    let before = all_in(folder.path());
    let checked = tidegate(folder.path(), &["config", "check"]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    assert_eq!(lines(&checked.stdout), ["nothing is wrong with the configuration"]);

    let checked = tidegate(folder.path(), &["config", "check", "--connect"]);
    assert_eq!(checked.status.code(), Some(4), "{checked:?}");
    let found = lines(&checked.stdout);
    let place = folder.path().join("tidegate.toml").display().to_string();
    for expected in [
        format!("{place}:10: mqtt.bridge.cloud.remote: not reached: "),
        format!("{place}:15: sink.db.url: not reached: "),
        format!("{place}:19: uplink.up.to: not reached: "),
    ] {
        assert!(found.iter().any(|line| line.starts_with(&expected)), "{expected} in {found:#?}");
    }
    assert_eq!(found.len(), 3, "{found:#?}");
    assert_eq!(all_in(folder.path()), before, "a check writes nothing");

    // A server that takes the connection and says nothing when TLS is begun.
    let text = text(&open.to_string(), &open.to_string(), true);
    let text = text.split_once("[uplink").expect("the last section").0;
    fs::write(folder.path().join("tidegate.toml"), of(&folder, text)).expect("a file");
    let began = Instant::now();
    let checked = tidegate(folder.path(), &["config", "check", "--connect"]);
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    let found = lines(&checked.stdout);
    assert_eq!(found.len(), 1, "the bridge is reached: {found:#?}");
    assert!(found[0].contains("sink.db.url: not reached: no answer within 5 s"), "{found:?}");
    drop(here);
}

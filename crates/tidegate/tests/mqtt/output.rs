//! `-o json`, which every command that prints data takes, and `--node host:port`.

use std::{fs, process::Command};

use serde_json::Value;
use tidegate_load::client::{Client, Options};

use crate::program::{Program, options_of};

#[test]
fn every_command_that_prints_data_prints_json() {
    let folder = tempfile::tempdir().expect("a folder");
    tidegate_identity::pki::init(&folder.path().join("data/pki"), &Default::default())
        .expect("certificates");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let flows = file(
        "flow.toml",
        "[flow.a]\ntopics = [\"t\"]\nparse = { format = \"csv\", fields = [\"x\"] }\n",
    );
    let lines = file("lines", "1\nx\n");
    let trace = file("trace.csv", "a,b\n1,2\n3,4\n");
    let mut program = Program::start_in(folder, "[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n");
    let node = program.api().to_string();
    let broker = program.address("main");
    let _here = Client::connect(Options { client_id: "dev1".to_owned(), ..options_of(broker) })
        .expect("it comes in");
    let (host, port) = (broker.ip().to_string(), broker.port().to_string());
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("--config")
            .arg(program.path("tidegate.toml"))
            .args(arguments)
            .args(["-o", "json"])
            .output()
            .expect("the program");
        (String::from_utf8(output.stdout).expect("text"), output.stderr)
    };
    for (arguments, names) in [
        (&["config"][..], "/mqtt/shards"),
        (&["config", "check"], ""),
        (&["config", "reload", "--node", &node], "/exchanged"),
        (&["doctor"], "/findings"),
        (&["acl", "check", "ada", "publish", "t"], "/allow"),
        (&["cameras", "--node", &node], ""),
        (&["sessions", "list", "--node", &node], "/0/client_id"),
        (&["sessions", "end", "nobody", "--node", &node], "/ended"),
        (&["flow", "check", &flows], "/0/flow"),
        (&["replay", &trace, "-h", &host, "-p", &port, "--speed", "max"], "/messages"),
    ] {
        let (text, said) = run(arguments);
        let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("{arguments:?}: {error} in {text:?}; {}", String::from_utf8_lossy(&said))
        });
        assert!(json.pointer(names).is_some(), "{arguments:?}: no {names} in {text}");
    }
    // A node without a fabric says how it gets one.
    let (text, said) = run(&["fabric", "status", "--node", &node]);
    let said = String::from_utf8(said).expect("text");
    assert!(text.is_empty() && said.contains("code: fabric.off"), "{text} {said}");
    assert!(said.contains("`[fabric]` of its configuration"), "{said}");
    // An object a line where there is no end to wait for.
    let (text, said) = run(&["flow", "run", &flows, "--input", &lines, "--topic", "t"]);
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}")))
        .collect();
    assert!(
        objects.iter().any(|object| object["what"] == "pass" && object["payload"] == "1"),
        "{text}"
    );
    assert!(
        objects.iter().any(|object| object["what"] == "bad" && object["line"] == 2),
        "{text} {}",
        String::from_utf8_lossy(&said)
    );
    // A node is named as everywhere else, and as a URL.
    let (text, _) = run(&["cameras", "--node", &format!("https://{node}")]);
    assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(Value::Array(Vec::new())), "{text}");
    let (text, _) = run(&["revoke", "application"]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["revoked"].as_array().map(Vec::len), Some(1), "{text}");
    program.end();
}

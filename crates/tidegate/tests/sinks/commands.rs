//! `tidegate sinks`, beside a node that does not run and one that does.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

/// Two messages that were refused.
const REFUSED: &str = "\
{\"received\":9,\"topic\":\"a/b\",\"reason\":\"odd\",\"qos\":1,\"payload\":\"aGk=\"}
{\"received\":10,\"topic\":\"a/c\",\"reason\":\"odd\",\"qos\":0,\"payload\":\"/wA=\"}
";

/// A node that is ended with the test.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let ended = self.0.kill().and_then(|()| self.0.wait());
        assert!(ended.is_ok(), "the node was not ended: {ended:?}");
    }
}

/// The program, with a node of MQTT and a sink alone: it needs no certificates.
fn tidegate(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(folder).env_remove("TIDEGATE_CONFIG");
    for setting in [
        &*format!("node.data_dir={}", folder.join("data").display()),
        "node.health_listen=127.0.0.1:0",
        "mqtt.enabled=true",
        "mqtt.listener.main.listen=127.0.0.1:0",
        "sink.x.topics=a/#",
    ] {
        command.args(["--set", setting]);
    }
    command.args(arguments);
    command
}

fn sinks(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let arguments = [&["sinks"], arguments].concat();
    let Output { status, stdout, stderr } = tidegate(folder, &arguments).output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn commands_show_refused_messages_and_a_running_node_takes_them_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let state = folder.join("data/state/sinks");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("x.refused"), REFUSED).unwrap();

    let (status, text) = sinks(folder, &["list", "-o", "json"]);
    assert_eq!(status, Some(0), "{text}");
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&rows[0]["sink"], &rows[0]["refused"]), (&"x".into(), &2.into()), "{text}");
    let (status, text) = sinks(folder, &["refused", "x"]);
    assert_eq!(status, Some(0), "{text}");
    for shown in ["a/b", "odd", "hi", "2 bytes"] {
        assert!(text.contains(shown), "{shown} in {text}");
    }
    let (status, text) = sinks(folder, &["refused", "y"]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("[sink.y]") && text.contains("there are: x"), "{text}");

    // No node runs: they are ready for it, and the command says so.
    let (status, text) = sinks(folder, &["replay", "x", "--wait", "1ms"]);
    assert_eq!(status, Some(4), "{text}");
    assert!(text.contains("x.replay"), "{text}");
    assert!(!state.join("x.refused").exists());

    let node = tidegate(folder, &["node"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _node = Node(node.unwrap());
    let (status, text) = sinks(folder, &["replay", "x", "--wait", "10min"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("given to the destination again; 0 are refused now"), "{text}");
    assert!(!state.join("x.replay").exists());
}

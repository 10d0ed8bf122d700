//! An operator's log: clients that come and go, and why, in lines that no client can forge.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    process::{Command, Stdio},
};

use tidegate_identity::pki::{self, InitRequest};

use crate::program::{LONGEST, Program};

const MQTT: &str = "[mqtt.listener.plain]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = true\n\
                    [mqtt.listener.shut]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = false\n\
                    [mqtt.listener.tls]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tls\"\nconnect_timeout = \"500ms\"\n";

/// Sends CONNECT (3.1.1, clean session) by that name, with a keep alive in seconds, and reads so many bytes of the answer.
fn connect(address: SocketAddr, client: &str, keep_alive: u8, answer: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a stream");
    stream.set_read_timeout(Some(LONGEST)).expect("a stream");
    let length = u8::try_from(client.len()).expect("a short name");
    let mut packet =
        vec![0x10, 12 + length, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, keep_alive, 0, length];
    packet.extend_from_slice(client.as_bytes());
    stream.write_all(&packet).expect("it takes it");
    stream.read_exact(&mut vec![0; answer]).expect("an answer");
    stream
}

#[test]
fn clients_that_come_and_go_and_why_are_in_the_log() {
    let mut node = Program::start(MQTT);
    let plain = node.address("plain");
    let holds = |line: &str, parts: &[&str]| {
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
    };

    let mut first = connect(plain, "dev-1", 0, 4);
    let line = node.line_with("connected client=dev-1");
    holds(
        &line,
        &["user=\"anonymous\"", "address=127.0.0.1", "listener=plain", "version=\"3.1.1\""],
    );
    let second = connect(plain, "dev-1", 0, 4);
    holds(
        &node.line_with("disconnected client=dev-1"),
        &["listener=plain", "another connection uses"],
    );
    let _ = first.read(&mut [0]);
    drop(second);
    holds(&node.line_with("disconnected client=dev-1"), &["without a DISCONNECT"]);

    let mut polite = connect(plain, "dev-2", 0, 4);
    polite.write_all(&[0xe0, 0]).expect("it takes it");
    holds(&node.line_with("disconnected client=dev-2"), &["why=\"the client disconnected\""]);

    let silent = connect(plain, "dev-3", 1, 4);
    let line = node.line_with("disconnected client=dev-3").to_lowercase();
    holds(&line, &["keep alive"]);
    drop(silent);

    let mut wrong = connect(plain, "dev-4", 0, 4);
    wrong.write_all(&[0x10, 2, 0, 0]).expect("it takes it");
    let line = node.line_with("disconnected client=dev-4");
    assert!(!line.contains("why=\"the client"), "a fault of the client's has its name: {line}");

    // Refusals: by the rules, by the protocol, by TLS, by the time.
    drop(connect(node.address("shut"), "dev-5", 0, 4));
    holds(&node.line_with("connection refused client=dev-5"), &["listener=shut", "why="]);
    let mut other = TcpStream::connect(plain).expect("a stream");
    other.write_all(b"\xc0\x00").expect("it takes it");
    holds(
        &node.line_with("the first packet is not a CONNECT"),
        &["connection refused", "listener=plain"],
    );
    let mut other = TcpStream::connect(node.address("tls")).expect("a stream");
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it takes it");
    holds(&node.line_with("connection refused"), &["listener=tls", "address=127.0.0.1", "why="]);
    let slow = TcpStream::connect(node.address("tls")).expect("a stream");
    holds(&node.line_with("connection refused"), &["listener=tls", "no CONNECT came within 500ms"]);
    drop(slow);

    // No letter of a client's begins a line, or steers a terminal.
    let forged = "x\n2026-01-01T00:00:00Z  INFO tidegate: forged\u{1b}[2J\u{9b}31m\u{202e}";
    let stream = connect(plain, forged, 0, 4);
    let line = node.line_with("forged");
    holds(&line, &["connected client=\"x\\n2026", "forged\\u{1b}[2J\\u{9b}31m\\u{202e}"]);
    stream.shutdown(Shutdown::Both).expect("a stream");
    holds(&node.line_with("forged"), &["disconnected client=\"x\\n"]);

    // Nor does one make up a field.
    let stream = connect(plain, "dev-6 user=\"admin\" address=192.0.2.1", 0, 4);
    let line = node.line_with("connected client=");
    holds(
        &line,
        &[
            "client=\"dev-6 user=\\\"admin\\\" address=192.0.2.1\" user=\"anonymous\"",
            " address=127.0.0.1",
        ],
    );
    drop(stream);
    node.line_with("disconnected client=");

    node.end();
    node.line_with("stopping");
    node.line_with("stopped");
}

#[test]
fn a_flood_of_refusals_is_summed_up() {
    let mut node = Program::start(MQTT);
    for number in 0..300 {
        drop(connect(node.address("shut"), &format!("flood-{number}"), 0, 4));
    }
    let stream = connect(node.address("plain"), "dev-1", 0, 4);
    node.line_with("connected client=dev-1");
    drop(stream);
    node.end();
    let line = node.line_with("more clients connected and disconnected");
    let refused = line.split_once("refused=").expect("how many").1.trim();
    let refused: u32 = refused.parse().expect("a number");
    assert!((1..300).contains(&refused), "{line}");
}

#[test]
fn a_log_for_programs_is_an_object_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
    let config = format!(
        "[node]\ndata_dir = {:?}\napi_listen = \"127.0.0.1:0\"\n[link]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
         [mqtt.listener.plain]\nlisten = \"127.0.0.1:0\"\n",
        folder.path().join("data")
    );
    fs::write(folder.path().join("tidegate.toml"), config).expect("a file");
    let mut node = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["--config", "tidegate.toml", "node"])
        .current_dir(folder.path())
        .env_remove("TIDEGATE_LOG")
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut lines = BufReader::new(node.stderr.take().expect("it was asked for")).lines();
    let mut next = |message: &str| {
        for line in lines.by_ref() {
            let line = line.expect("a line");
            let value: serde_json::Value = serde_json::from_str(&line).expect("an object");
            assert!(value["timestamp"].is_string() && value["level"].is_string(), "{line}");
            if value["message"] == message {
                return value;
            }
        }
        panic!("no line with {message}");
    };
    let address = next("MQTT served")["address"].as_str().expect("it is one").to_owned();
    next("node ready");
    let forged = "x\n{\"message\":\"forged\"}\u{9b}";
    let stream = connect(address.parse().expect("an address"), forged, 0, 4);
    assert_eq!(next("connected")["client"], forged);
    drop(stream);
    assert_eq!(next("disconnected")["listener"], "plain");
    let ended = Command::new("kill").args(["-TERM", &node.id().to_string()]).status();
    assert!(ended.expect("a signal").success());
    next("stopping");
    next("stopped");
    assert!(node.wait().expect("it is our child").success());
}

#[test]
fn a_wrong_filter_or_format_ends_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    for (filter, format, word) in [("inof", "text", "inof"), ("info", "xml", "log.format")] {
        let done = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["--set", &format!("log.format={format}"), "config"])
            .current_dir(folder.path())
            .env("TIDEGATE_LOG", filter)
            .output()
            .expect("the program");
        let report = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{report}");
        assert!(report.contains(word), "{report}");
    }
}

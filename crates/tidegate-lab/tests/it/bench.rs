//! Made-up devices, from the real program to a real node.

use std::process::Output;

use crate::node::{Node, lab};

fn output(node: &Node, arguments: &str) -> Output {
    let arguments = arguments.replace("TARGET", &node.broker.to_string());
    lab().args(arguments.split(' ')).output().expect("the program")
}

#[test]
fn what_cannot_be_sent_is_told_with_its_exit_status() {
    let node = Node::start();
    for (arguments, status, expected) in [
        (
            "bench sensors --target TARGET --workload city --devices 0",
            2,
            "0 devices: each workload has from 1 to",
        ),
        ("bench sensors --target 127.0.0.1:1 --connect-timeout 2", 4, "no connection"),
        ("bench vision --server 127.0.0.1:1", 2, "there is no image to send; name files with -f"),
        (
            "bench vision --server 127.0.0.1:1 -f /nonexistent.jpg",
            2,
            "/nonexistent.jpg cannot be read",
        ),
        (
            "bench vision --server 127.0.0.1:1 -f Cargo.toml --tls",
            2,
            "--cafile FILE, or --insecure",
        ),
    ] {
        let output = output(&node, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{arguments}: {said}");
        assert_eq!(output.status.code(), Some(status), "{arguments}: {said}");
    }
}

#[test]
fn what_devices_send_arrives_and_is_verified() {
    let node = Node::start();
    for qos in [0, 1] {
        let arguments = format!(
            "bench sensors --target TARGET --verify --devices 500 --rate 2000 --seconds 1 --connections 3 --qos {qos} --format json"
        );
        let output = output(&node, &arguments);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
        let found = &report["total"]["verification"];
        assert!(report["total"]["sent"].as_u64().is_some_and(|sent| sent > 500), "{said}");
        assert_eq!(found["received"], report["total"]["sent"], "{said}");
        for wrong in ["lost", "duplicated", "out_of_order", "altered"] {
            assert_eq!(found[wrong], 0, "{said}");
        }
    }
    // Nothing arrives at a broker that nothing is sent to.
    let other = Node::start();
    let arguments = format!(
        "bench sensors --target TARGET --to {} --workload grid --rate 500 --seconds 0.2 --drain 0.2",
        other.broker
    );
    let output = output(&node, &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

//! `-o json`, which every command that prints data takes.

use serde_json::Value;

use crate::node::{Node, lab};

#[test]
fn every_command_that_prints_data_prints_json() {
    let node = Node::start();
    let broker = node.broker.to_string();
    let load = format!(
        "bench mqtt --target {broker} --pairs 1 --rate 100 --warm-up 0 --seconds 1 --drain 1"
    );
    for (arguments, names) in
        [("sim mqtt --seeds 1", "/0/rows/0/mean_s"), (&*load, "/total/received")]
    {
        let output = lab().args(arguments.split(' ')).args(["-o", "json"]).output();
        let output = output.expect("the program");
        let text = String::from_utf8(output.stdout).expect("text");
        let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
            let said = String::from_utf8_lossy(&output.stderr);
            panic!("{arguments}: {error} in {text:?}; {said}")
        });
        assert!(json.pointer(names).is_some(), "{arguments}: no {names} in {text}");
    }
}

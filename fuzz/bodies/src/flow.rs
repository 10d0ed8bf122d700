//! Payloads, models and snapshots of flows.

use std::cell::RefCell;

use tidegate_flow::{EmittedPayload, Flow, Message, Model, Models, Node, Output, Spec, Verdict};
use tidegate_message::Instant;

/// All formats in turn, by the first byte of an input.
const FORMATS: [&str; 7] = [
    r#""format":"csv""#,
    r#""format":"csv","header":true"#,
    r#""format":"json""#,
    r#""format":"senml-json""#,
    r#""format":"cbor""#,
    r#""format":"senml-cbor""#,
    r#""format":"fixed""#,
];

/// Every operator with state, each of which makes what JSON must be able to hold.
const FLOW: &str = r#"{
    "topics": ["a"], "bad": "BAD", "forward": "kept", "keys_max": 1024, "key": {"field": "s"},
    "parse": {FORMAT, "fields": [FIELDS]},
    "step": [
        {"kernel": "interpolate", "field": "x", "window": 3},
        {"kernel": "kalman", "field": "x"},
        {"kernel": "average", "field": "x"},
        {"kernel": "min", "field": "x", "into": "a", "window": {"sliding": 3}},
        {"kernel": "max", "field": "x", "into": "b", "window": {"sliding": "3s", "time": "t"}},
        {"kernel": "count", "into": "c", "window": {"tumbling": "3s", "time": "t", "hold": true}},
        {"kernel": "average", "field": "x", "into": "d", "window": {"tumbling": 3}},
        {"kernel": "distinct-count", "field": "s", "precision": 4},
        {"kernel": "second-order-moment", "field": "x", "averages": 8, "groups": 3},
        {"kernel": "sliding-regression", "field": "x", "window": 4, "time": "t"},
        {"kernel": "threshold", "field": "x", "above": 5, "hysteresis": 1, "fires": "change"},
        {"kernel": "bloom-filter", "field": "s", "expected": 20, "learn": true, "keep": "new"},
        {"kernel": "notify", "topic": "out/{field:s}", "fields": ["s", "x", "n", "t", "x_kalman", "x_average", "a", "b", "c", "d",
            "s_distinct", "x_moment", "x_trend", "x_prediction", "x_over", "topic"]},
        {"kernel": "replace", "fields": ["s", "x", "t"], "format": "senml-json"}
    ]
}"#;

const NAMED: &str = r#""s:text", {"name": "x", "optional": true, "aliases": ["y"]}, {"name": "n", "type": "integer", "optional": true},
    {"name": "t", "type": "time", "unit": "ms", "optional": true, "aliases": ["@time"]}"#;
const PLAIN: &str = r#""s:text", {"name": "x", "optional": true}, {"name": "n", "type": "integer", "optional": true},
    {"name": "t", "type": "time", "unit": "ms", "optional": true}"#;
const PLACED: &str = r#"{"name": "s", "type": "text", "at": 0, "length": 4}, {"name": "x", "at": 4, "length": 6, "optional": true},
    {"name": "n", "type": "integer", "at": 10, "as": "u64be", "optional": true},
    {"name": "t", "type": "time", "at": 18, "as": "f64le", "unit": "ms", "optional": true}"#;

fn compile(format: usize, bad: &str) -> Flow {
    let fields = match format {
        0 => PLAIN,
        6 => PLACED,
        _ => NAMED,
    };
    let json =
        FLOW.replace("BAD", bad).replace("FORMAT", FORMATS[format]).replace("FIELDS", fields);
    let spec: Spec = serde_json::from_str(&json).expect("the flow is one");
    Flow::compile(&spec, &Models::new()).expect("the flow compiles")
}

/// Runs payloads, and checks that what comes out is of its form.
fn run(flow: &mut Flow, payloads: &[&[u8]]) {
    let messages: Vec<_> = payloads.iter().map(|payload| Message { topic: "a", payload }).collect();
    let mut output = Output::new();
    flow.run(Instant::from_millis(1_700_000_000_000), &messages, &mut output);
    assert_eq!(output.verdicts().len(), messages.len());
    for verdict in output.verdicts() {
        if let Verdict::Replace(payload) = verdict {
            let pack: serde_json::Value = serde_json::from_slice(payload).expect("SenML is JSON");
            assert!(pack.is_array());
        }
    }
    for emission in output.emissions() {
        match emission.payload {
            EmittedPayload::Made(payload) => {
                let object: serde_json::Value =
                    serde_json::from_slice(payload).expect("published output is JSON");
                assert!(object.is_object());
            }
            EmittedPayload::Original(bad) => {
                assert!(bad.field.is_none_or(|field| flow.field_name(field).is_some()));
            }
        }
        assert!(emission.from < messages.len());
    }
}

/// A byte for the format, then a payload: read or refused, and what is published of it is valid.
pub fn flow_parse(data: &[u8]) {
    thread_local! {
        static FLOWS: RefCell<Vec<Flow>> = RefCell::new(
            (0..FORMATS.len())
                .flat_map(|format| ["dead-letter", "last-good"].map(|bad| compile(format, bad)))
                .collect(),
        );
    }
    let Some((&format, payload)) = data.split_first() else { return };
    FLOWS.with_borrow_mut(|flows| {
        let first = usize::from(format) % FORMATS.len() * 2;
        for flow in &mut flows[first..first + 2] {
            run(flow, &[payload, payload]);
        }
    });
}

/// A model that is read is written and read again to itself, and predicts.
pub fn flow_model(data: &[u8]) {
    let Ok(model) = Model::parse(data) else { return };
    let again = Model::parse(model.to_json().as_bytes()).expect("a written model is read");
    assert_eq!(again, model);
    match model {
        Model::Linear(model) => {
            model.predict(&vec![0.0; model.coefficients.len()]);
        }
        Model::Tree(model) => {
            for value in [f64::MIN, 0.0, f64::MAX] {
                let class = model.predict(&vec![value; model.features.len()]);
                assert!(class.is_some_and(|class| model.classes.iter().any(|c| c == class)));
            }
            assert!(model.nodes.iter().any(|node| matches!(node, Node::Leaf { .. })));
        }
    }
}

/// A snapshot, its checksum corrected: refused, or a state that continues and is written and read again.
pub fn flow_snapshot(data: &[u8]) {
    let mut snapshot = data.to_vec();
    if let Some((body, sum)) = snapshot.split_last_chunk_mut::<4>() {
        *sum = crc32c::crc32c(body).to_le_bytes();
    }
    let mut flow = compile(0, "last-good");
    if flow.restore(&snapshot).is_err() {
        assert_eq!(flow.stats().keys, 0);
        return;
    }
    run(&mut flow, &[b"a,1.5,2,1700000000000", b"b,,x,", b"a,1e300,9,1700000009000", b"c"]);
    let written = flow.snapshot();
    let mut again = compile(0, "last-good");
    let restored = again.restore(&written).expect("a written snapshot is read");
    assert_eq!((restored.keys_left_out, restored.dropped), (0, 0));
}

//! The vectors of the operators of flows (`tidegate-flow/testdata`), as payloads of a fixed layout: a filter agrees with their floats.
//!
//! Decimals of up to 15 digits are floats of their own, so that comparing them as floats is comparing them exactly.

use std::{collections::HashMap, fs, path::PathBuf};

use serde_json::{Value, json};
use tidegate_flow::{Flow, Message, Models, Output, Spec};
use tidegate_message::Instant;

use super::*;
use crate::{Filter, Verdict};

/// 18 digits, nine of them behind the point.
const LENGTH: usize = 19;
const DECIMALS: usize = 9;

fn cases(file: &str) -> Vec<Value> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tidegate-flow/testdata");
    serde_json::from_str(&fs::read_to_string(folder.join(file)).unwrap()).unwrap()
}

/// A plain decimal with all decimals of the layout, which is the same number; none if it is not plain or has more.
fn fixed(text: &str) -> Option<String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_plain = fraction.len() <= DECIMALS && text.parse::<f64>().is_ok();
    let text = format!("{whole}.{fraction:0<DECIMALS$}");
    (is_plain && text.len() <= LENGTH && !text.contains(['e', 'E', 'n', 'N']))
        .then(|| format!("{text:>LENGTH$}"))
}

fn of_layout(keep: &str) -> Filter {
    filter(&format!("x at 0 length {LENGTH} decimals {DECIMALS}"), keep)
}

/// The key and the value of a message of the vectors.
fn parts(message: &Value) -> (&str, &str) {
    message[2].as_str().unwrap().split_once(',').unwrap()
}

#[test]
fn range_filters_agree_with_the_vectors() {
    let mut compared = 0;
    for case in cases("kernels.json") {
        let (name, step) = (case["name"].as_str().unwrap(), &case["spec"]["step"][0]);
        if !name.starts_with("range-filter") {
            continue;
        }
        let keep = match (step["min"].as_f64(), step["max"].as_f64()) {
            (Some(min), Some(max)) => format!("x in {min}..{max}"),
            (Some(min), None) => format!("x >= {min}"),
            (None, Some(max)) => format!("x <= {max}"),
            (None, None) => continue,
        };
        let filter = of_layout(&keep);
        let (messages, expected) = (&case["messages"], &case["expected"]);
        for (message, expected) in
            messages.as_array().unwrap().iter().zip(expected.as_array().unwrap())
        {
            let (_, text) = parts(message);
            let verdict = match fixed(text) {
                Some(payload) => filter.decide(payload.as_bytes()),
                None => continue,
            };
            if text.is_empty() {
                // A missing field is for the flow to judge.
                assert_eq!(verdict, Verdict::Unusual);
                continue;
            }
            let expected = if expected.is_null() { Verdict::Drop } else { Verdict::Keep };
            assert_eq!(verdict, expected, "{name}: {text}");
            compared += 1;
        }
    }
    assert!(compared > 400, "{compared}");
}

#[test]
fn thresholds_agree_with_the_vectors() {
    let mut compared = 0;
    for case in cases("kernels.json") {
        let (name, step) = (case["name"].as_str().unwrap(), &case["spec"]["step"][0]);
        // One with hysteresis has state, and is no filter's.
        if !name.starts_with("threshold") || step["hysteresis"].as_f64().is_some() {
            continue;
        }
        let filter = of_layout(&format!("x > {}", step["above"]));
        let mut was_on: HashMap<&str, bool> = HashMap::new();
        let (messages, expected) = (&case["messages"], &case["expected"]);
        for (message, expected) in
            messages.as_array().unwrap().iter().zip(expected.as_array().unwrap())
        {
            let (key, text) = parts(message);
            if text.is_empty() {
                continue;
            }
            let payload = fixed(text).expect("the vectors are plain");
            let is_on = match filter.decide(payload.as_bytes()) {
                Verdict::Keep => true,
                Verdict::Drop => false,
                Verdict::Unusual => panic!("{text}"),
            };
            let was_on = was_on.insert(key, is_on).unwrap_or(false);
            let fires = match step["fires"].as_str().unwrap() {
                "every" => is_on,
                "rise" => is_on && !was_on,
                "fall" => was_on && !is_on,
                _ => is_on != was_on,
            };
            assert_eq!(expected[0].as_f64(), Some(f64::from(u8::from(fires))), "{name}: {text}");
            compared += 1;
        }
    }
    assert!(compared > 300, "{compared}");
}

/// The decisions of a flow on payloads of `bytes` bytes, read as ASCII.
fn kept_by_flow(bytes: usize, filter: Value, payloads: &[Vec<u8>]) -> Vec<bool> {
    let spec = json!({
        "topics": ["#"],
        "parse": { "format": "fixed", "fields": [{ "name": "x", "at": 0, "length": bytes }] },
        "step": [filter, { "kernel": "notify", "topic": "out", "fields": ["x"] }],
    });
    let spec: Spec = serde_json::from_value(spec).unwrap();
    let mut flow = Flow::compile(&spec, &Models::new()).unwrap();
    let mut kept = Vec::new();
    for payloads in payloads.chunks(256) {
        let messages: Vec<_> =
            payloads.iter().map(|payload| Message { topic: "a", payload }).collect();
        let mut output = Output::new();
        flow.run(Instant::EPOCH, &messages, &mut output);
        let mut found = vec![false; messages.len()];
        output.emissions().for_each(|emission| found[emission.from] = true);
        kept.extend(found);
    }
    kept
}

#[test]
fn odd_numbers_are_read_as_flows_read_them_or_pass() {
    // For each text the layout that it is written in, and the bound right below its value: both readers agree on what
    // they read.
    let mut read = 0;
    for case in cases("numbers.json") {
        let text = case[0].as_str().unwrap();
        let decimals = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let fields = format!("x at 0 length {} decimals {decimals}", text.len());
        let Ok(fields) = parse_fields(&fields) else { continue };
        let FilterSpec { combine, conditions, .. } = spec("", "x >= 1");
        let spec = FilterSpec { fields, combine, conditions, ..spec("", "") };
        let Ok(filter) = spec.compile() else { continue };
        let expected = case[1].as_str().map(|bits| f64::from_bits(bits.parse().unwrap()));
        match (filter.decide(text.as_bytes()), expected) {
            // A text that is not a number passes; so may a number in another notation.
            (Verdict::Unusual, _) => {}
            (verdict, Some(value)) => {
                let expected = if value >= 1.0 { Verdict::Keep } else { Verdict::Drop };
                assert_eq!(verdict, expected, "{text}");
                read += 1;
            }
            (verdict, None) => panic!("{text} is not a number: {verdict:?}"),
        }
    }
    assert!(read > 300, "{read}");
}

#[test]
fn a_filter_keeps_what_a_flow_keeps() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: i64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as i64 % below
    };
    for (length, decimals) in [(5, 0), (6, 1), (8, 3), (16, 7)] {
        let digits = 10_i64.pow(length as u32 - 2 - u32::from(decimals > 0));
        let show = |value: i64| {
            let (unit, sign) = (10_i64.pow(decimals as u32), if value < 0 { "-" } else { "" });
            let (whole, rest) = (value.abs() / unit, value.abs() % unit);
            if decimals == 0 {
                format!("{sign}{whole}")
            } else {
                format!("{sign}{whole}.{rest:0decimals$}")
            }
        };
        let bounds = [-digits / 3, digits / 4];
        let payloads: Vec<Vec<u8>> = (0..2000)
            .map(|turn| {
                let near = bounds[turn % 2] - 1 + next(3);
                let value = if turn % 3 == 0 { near } else { next(2 * digits) - digits };
                format!("{:>length$}", show(value)).into_bytes()
            })
            .collect();
        let [min, max] = bounds.map(show);
        let range = format!(
            "{{\"kernel\": \"range-filter\", \"field\": \"x\", \"min\": {min}, \"max\": {max}}}"
        );
        let kept = kept_by_flow(length, serde_json::from_str(&range).unwrap(), &payloads);
        let filter = filter(
            &format!("x at 0 length {length} decimals {decimals}"),
            &format!("x in {min}..{max}"),
        );
        for (payload, kept) in payloads.iter().zip(kept) {
            let expected = if kept { Verdict::Keep } else { Verdict::Drop };
            assert_eq!(filter.decide(payload), expected, "{}", String::from_utf8_lossy(payload));
        }
    }
}

#[test]
fn binary_fields_are_read_as_flows_read_them() {
    let mut compared = 0;
    for case in cases("formats.json").iter().filter(|case| case["name"] == "fixed") {
        let (messages, expected) = (&case["messages"], &case["expected"]);
        for (message, expected) in
            messages.as_array().unwrap().iter().zip(expected.as_array().unwrap())
        {
            let hex = message[2]["hex"].as_str().unwrap();
            let payload: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            for (index, field) in [(0, "as i16be at 0"), (4, "as i8 at 18"), (5, "as i64be at 19")]
            {
                let value = expected[index].as_f64().unwrap() as i64;
                let fields = format!("x {field}; end as u8 at {}", payload.len() - 1);
                let keeps = |keep: String| match spec(&fields, &keep).compile() {
                    Ok(filter) => filter.decide(&payload) == Verdict::Keep,
                    Err(FilterError::Always { .. }) => true,
                    Err(error) => panic!("{error}"),
                };
                assert!(keeps(format!("x in {value}..{value}")), "{field}: {value}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 150, "{compared}");
}

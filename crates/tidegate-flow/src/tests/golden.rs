//! Every operator, format and solver against `testdata/reference.py`, which knows nothing of this code.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use serde_json::Value;

use super::*;
use crate::{
    Model, Node, Table, hash, number,
    train::{self, LinearTraining, TreeTraining},
};

/// How far a float may be off, relative to what is expected.
const TOLERANCE: f64 = 1e-12;

fn testdata() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn cases(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(testdata().join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn goldens_are_what_the_reference_says() {
    let folder = std::env::temp_dir().join(format!("tidegate-flow-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let made = Command::new("python3").arg(testdata().join("reference.py")).arg(&folder).status();
    match made {
        Err(error) => println!("skipped: python3 does not run here: {error}"),
        Ok(status) => {
            assert!(status.success(), "{status}");
            for file in
                ["kernels.json", "formats.json", "numbers.json", "hashes.json", "training.json"]
            {
                let same = fs::read(folder.join(file)).unwrap()
                    == fs::read(testdata().join(file)).unwrap();
                assert!(same, "{file} is not what reference.py writes; run it again");
            }
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn operators_agree_with_the_reference() {
    for case in cases("kernels.json") {
        check(&case);
    }
}

#[test]
fn formats_agree_with_the_reference() {
    for case in cases("formats.json") {
        check(&case);
    }
}

/// Runs a case's messages, those of one time in one batch, and compares what is published for each, and where.
fn check(case: &Value) {
    let name = case["name"].as_str().unwrap();
    let spec: Spec = serde_json::from_value(case["spec"].clone())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    // The cases' times are no clock's.
    let spec = Spec { ahead_max: Duration::from_secs(u64::from(u32::MAX)), ..spec };
    let mut flow = Flow::compile(&spec, &models(case)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let messages = case["messages"].as_array().unwrap();
    let expected = case["expected"].as_array().unwrap();
    assert_eq!(messages.len(), expected.len(), "{name}");
    let fields: Vec<&str> = case["spec"]["step"].as_array().unwrap().last().unwrap()["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|field| field.as_str().unwrap())
        .collect();
    let tolerance = case["tolerance"].as_f64().unwrap_or(TOLERANCE);
    let mut output = Output::new();
    let mut at = 0;
    while at < messages.len() {
        let now = messages[at][0].as_i64().unwrap();
        let together = messages[at..].iter().take_while(|m| m[0].as_i64() == Some(now)).count();
        let payloads: Vec<Vec<u8>> =
            messages[at..at + together].iter().map(|m| payload(&m[2])).collect();
        let batch: Vec<_> = messages[at..at + together]
            .iter()
            .zip(&payloads)
            .map(|(m, payload)| Message { topic: m[1].as_str().unwrap(), payload })
            .collect();
        flow.run(Instant::from_nanos(now), &batch, &mut output);
        let mut found = vec![Value::Null; together];
        let mut topics = vec![""; together];
        for emission in output.emissions() {
            let EmittedPayload::Made(payload) = emission.payload else { panic!("{name}") };
            found[emission.from] = serde_json::from_slice(payload).unwrap();
            topics[emission.from] = emission.topic;
        }
        for (place, found) in found.iter().enumerate() {
            let (topic, expected_topic) = (topics[place], &case["topics"][at + place]);
            let expected = &expected[at + place];
            let place = format!("{name}, message {}", at + place);
            if let Some(expected_topic) = expected_topic.as_str() {
                assert_eq!(topic, expected_topic, "{place}");
            }
            assert_eq!(found.is_null(), expected.is_null(), "{place}: {found} for {expected}");
            for (index, field) in fields.iter().enumerate().filter(|_| !expected.is_null()) {
                let (found, expected) = (&found[*field], &expected[index]);
                let same = match (found.as_f64(), expected.as_f64()) {
                    (Some(found), Some(expected)) => is_near(found, expected, tolerance),
                    _ => found == expected,
                };
                assert!(same, "{place}, {field}: {found}, expected {expected}");
            }
        }
        at += together;
    }
    let bad = case["bad"].as_u64().unwrap_or(0);
    assert_eq!(flow.stats().bad.iter().sum::<u64>(), bad, "{name}");
}

/// Also where what is left of two large numbers is small: sums of values around 100 are good to 1e-12 of that.
fn is_near(found: f64, expected: f64, tolerance: f64) -> bool {
    (found - expected).abs() <= tolerance * expected.abs().max(1.0)
}

fn payload(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        value => {
            let hex = value["hex"].as_str().unwrap().as_bytes();
            let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
            hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
        }
    }
}

fn models(case: &Value) -> Models {
    let mut models = Models::new();
    let each = |key: &str| case[key].as_object().into_iter().flatten();
    for (name, model) in each("models") {
        models.insert(name, Model::parse(model.to_string().as_bytes()).unwrap());
    }
    for (name, table) in each("tables") {
        models.insert_table(name, Table::parse(table.as_str().unwrap()).unwrap());
    }
    for (name, set) in each("sets") {
        models.insert_set(name, set.as_str().unwrap());
    }
    models
}

#[test]
fn numbers_agree_with_the_reference() {
    for case in cases("numbers.json") {
        let text = case[0].as_str().unwrap();
        let expected = case[1].as_str().map(|bits| f64::from_bits(bits.parse().unwrap()));
        let found = number::parse(text.as_bytes()).ok();
        assert_eq!(found.map(f64::to_bits), expected.map(f64::to_bits), "{text:?}");
    }
}

/// A hash that changes loses what sketches and filters have counted, with a seed as without.
#[test]
fn hashes_agree_with_the_reference() {
    let mut seeds = std::collections::BTreeSet::new();
    for case in cases("hashes.json") {
        let whole = |place: usize| case[place].as_str().unwrap().parse::<u64>().unwrap();
        let seed = whole(0);
        seeds.insert(seed);
        match case[1].as_str() {
            Some(text) => {
                assert_eq!(hash::value(seed, text.as_bytes()), whole(2), "{case}");
                assert_eq!(hash::text(seed, text.as_bytes()), whole(3), "{case}");
            }
            None => {
                let bits = case[1].as_f64().unwrap().to_bits();
                assert_eq!(hash::word(seed, bits), whole(2), "{case}");
            }
        }
    }
    assert!(seeds.len() > 8 && seeds.contains(&0));
}

#[test]
fn training_agrees_with_the_reference() {
    for case in cases("training.json") {
        let csv = case["csv"].as_str().unwrap();
        let features: Vec<String> = serde_json::from_value(case["features"].clone()).unwrap();
        let target = case["target"].as_str().unwrap().to_owned();
        if case["kind"] == "linear" {
            let fit = train::linear(csv, &LinearTraining { target, features, ridge: 0.0 }).unwrap();
            let Model::Linear(model) = fit.model else { panic!("a linear model") };
            // Features lie up to 1e5 from 0, which the intercept makes up for.
            let intercept = case["intercept"].as_f64().unwrap();
            assert!(is_near(model.intercept, intercept, 1e-9), "{} {intercept}", model.intercept);
            for (name, found) in &model.coefficients {
                let expected = case["coefficients"][name].as_f64().unwrap();
                assert!(is_near(*found, expected, 1e-11), "{name}: {found}, expected {expected}");
            }
            continue;
        }
        let depth_max = case["depth_max"].as_u64().unwrap() as u32;
        let leaf_rows_min = case["leaf_rows_min"].as_u64().unwrap() as usize;
        let training = TreeTraining { target, features, depth_max, leaf_rows_min };
        let Model::Tree(model) = train::tree(csv, &training).unwrap().model else {
            panic!("a tree")
        };
        let classes: Vec<String> = serde_json::from_value(case["classes"].clone()).unwrap();
        assert_eq!(model.classes, classes);
        let nodes = case["nodes"].as_array().unwrap();
        assert_eq!(model.nodes.len(), nodes.len());
        for (found, expected) in model.nodes.iter().zip(nodes) {
            match found {
                Node::Leaf { class } => {
                    assert_eq!(u64::from(*class), expected["class"].as_u64().unwrap());
                }
                Node::Split { feature, threshold, left, right } => {
                    assert_eq!(*threshold, expected["threshold"].as_f64().unwrap());
                    for (key, found) in [("feature", feature), ("left", left), ("right", right)] {
                        assert_eq!(u64::from(*found), expected[key].as_u64().unwrap(), "{key}");
                    }
                }
            }
        }
    }
}

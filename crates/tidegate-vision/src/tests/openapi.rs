//! The description of the paths is true: each path is there, and each answer that a test sees is one that it describes.

use std::{collections::BTreeSet, sync::LazyLock};

use serde_json::Value;
use tidegate_rpc::openapi::OPENAPI;

use super::{Echo, Served, client::Reply};

static DESCRIPTION: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(OPENAPI).unwrap());

/// The path of the description that a request is of.
fn template(path: &str) -> Option<&'static str> {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    let is_of = |template: &str| {
        let known: Vec<&str> = template.split('/').collect();
        known.len() == parts.len()
            && known
                .iter()
                .zip(&parts)
                .all(|(known, part)| known == part || known.starts_with('{') && !part.is_empty())
    };
    DESCRIPTION["paths"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .find(|template| is_of(template))
}

/// Checks an answer against the description.
pub(super) fn check(method: &str, path: &str, reply: &Reply) {
    let template = template(path).unwrap_or_else(|| panic!("{path} is not described"));
    let item = &DESCRIPTION["paths"][template];
    let Some(operation) = item.get(method.to_lowercase()) else {
        // The paper's server has a sentence for each other method.
        let is_refused = matches!(reply.status.as_u16(), 400 | 405);
        assert!(is_refused, "{method} {path} is not described and answers {}", reply.status);
        return;
    };
    let status = reply.status.as_str();
    let answer = resolved(&operation["responses"][status]);
    assert!(answer.is_object(), "{method} {path} answers {status}, which is not described");
    let kind = reply.header("content-type").split(';').next().unwrap_or_default();
    let Some(content) = answer.get("content") else {
        assert!(reply.body.is_empty(), "{method} {path} {status} is described without a body");
        return;
    };
    if method == "HEAD" {
        return;
    }
    let described = &content[kind];
    assert!(described.is_object(), "{method} {path} {status} is of {kind}, which is not described");
    if kind == "application/json" {
        let mut wrong = Vec::new();
        validate(&reply.json(), &described["schema"], "", &mut wrong);
        assert!(wrong.is_empty(), "{method} {path} {status}: {wrong:?} in {}", reply.text());
    }
}

/// The part of the description that a reference leads to.
fn resolved(value: &Value) -> &Value {
    match value["$ref"].as_str() {
        Some(reference) => {
            resolved(DESCRIPTION.pointer(&reference[1..]).unwrap_or_else(|| panic!("{reference}")))
        }
        None => value,
    }
}

/// Notes the parts of `value` that are not as `schema` says: types, members, elements and constants.
fn validate(value: &Value, schema: &Value, at: &str, wrong: &mut Vec<String>) {
    let schema = resolved(schema);
    let is_of = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    if let Some(alternatives) = schema["anyOf"].as_array() {
        let fits = |schema: &Value| {
            let mut wrong = Vec::new();
            validate(value, schema, at, &mut wrong);
            wrong.is_empty()
        };
        if !alternatives.iter().any(fits) {
            wrong.push(format!("{at} is none of the {} alternatives", alternatives.len()));
        }
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !kinds.into_iter().any(is_of) {
        wrong.push(format!("{at} is not of type {}", schema["type"]));
    }
    if let Some(constants) = schema["enum"].as_array()
        && !constants.contains(value)
    {
        wrong.push(format!("{at} is none of {constants:?}"));
    }
    if let Some(object) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !object.contains_key(name.as_str().unwrap()) {
                wrong.push(format!("{at} has no {name}"));
            }
        }
        for (name, value) in object {
            match schema["properties"].get(name) {
                Some(schema) => validate(value, schema, &format!("{at}/{name}"), wrong),
                None if schema["properties"].is_object() => {
                    wrong.push(format!("{at}/{name} is not described"));
                }
                None => {}
            }
        }
    }
    for (index, element) in value.as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}/{index}");
        match schema["prefixItems"].get(index) {
            Some(schema) => validate(element, schema, &at, wrong),
            None if schema["items"].is_object() => validate(element, &schema["items"], &at, wrong),
            None if schema["prefixItems"].is_array() => wrong.push(format!("{at} is one too many")),
            None => {}
        }
    }
}

#[test]
fn answers_are_held_against_the_description() {
    for (value, schema, count) in [
        (
            r#"{"a": 1}"#,
            r#"{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}"#,
            0,
        ),
        (
            r#"{"a": 1.5, "b": 1}"#,
            r#"{"type": "object", "properties": {"a": {"type": "integer"}}}"#,
            2,
        ),
        (r#"{}"#, r#"{"type": "object", "required": ["a"]}"#, 1),
        (
            r#"[1, "x", 2]"#,
            r#"{"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}]}"#,
            1,
        ),
        (r#"[1, null]"#, r#"{"type": "array", "items": {"type": ["number", "null"]}}"#, 0),
        (r#""yes""#, r#"{"enum": ["true", "false"]}"#, 1),
        (r#"1"#, r#"{"anyOf": [{"type": "string"}, {"type": "integer"}]}"#, 0),
        (r#"null"#, r#"{"anyOf": [{"type": "string"}, {"type": "integer"}]}"#, 1),
    ] {
        let (value, schema) =
            (serde_json::from_str(value).unwrap(), serde_json::from_str(schema).unwrap());
        let mut wrong = Vec::new();
        validate(&value, &schema, "", &mut wrong);
        assert_eq!(wrong.len(), count, "{value} {schema}: {wrong:?}");
    }
}

#[tokio::test]
async fn every_path_of_the_router_is_described_and_there() {
    let served = Served::new(Echo::usual()).await;
    let sources =
        [include_str!("../lib.rs"), include_str!("../inference.rs"), include_str!("../classic.rs")]
            .concat();
    let mut routes = BTreeSet::new();
    for part in sources.split(".route(\"").skip(1) {
        routes.insert(part.split('"').next().unwrap().to_owned());
    }
    for (path, _) in crate::paper::CALLS {
        routes.extend([format!("{path}/"), format!("/ws{path}/"), format!("/ws{path}")]);
    }
    assert!(routes.len() > 20, "{routes:?}");
    for path in routes {
        let item = DESCRIPTION["paths"][&path].as_object();
        let item = item.unwrap_or_else(|| panic!("{path} is not described"));
        for method in item.keys().filter(|key| *key != "parameters") {
            let path = path.replace("{model}", "face").replace("{subject}", "Ann");
            let path = path.replace("{version}", "1");
            let reply = served.ask(&method.to_uppercase(), &path, "", "").await;
            assert!(
                !matches!(reply.status.as_u16(), 404 | 405) || !reply.body.is_empty(),
                "{method} {path}: {reply:?}"
            );
            assert_ne!(reply.status, 405, "{method} {path}");
        }
    }
}

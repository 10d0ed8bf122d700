//! Each thing that is wrong with a description is named, with its place and its way out.

use super::*;

const SOUND: &str = r##"
topics = ["a/#"]
parse = { format = "csv", fields = ["x", "s:text"] }
step = [{ kernel = "kalman", field = "x" }, { kernel = "notify", topic = "out", fields = ["x"] }]
"##;

fn error_of(toml: &str) -> String {
    Flow::compile(&spec(toml), &Models::new()).expect_err(toml).to_string()
}

#[test]
fn problems_are_named() {
    flow(SOUND);
    for (from, to, expected) in [
        ("[\"a/#\"]", "[]", "flow \"test\": topics is empty; name at least one filter"),
        ("a/#", "a/#/b", "flow \"test\": topics has \"a/#/b\": '#' stands alone as the last level"),
        ("[\"x\", \"s:text\"]", "[]", "flow \"test\", parse: fields is empty"),
        ("\"s:text\"", "\"x\"", "flow \"test\", parse: a field \"x\" is there already"),
        ("\"s:text\"", "\"\"", "flow \"test\", parse: a field is called \"\""),
        (
            "\"s:text\"",
            "{ name = \"s\", at = 3 }",
            "flow \"test\", parse: field \"s\" has at, length and as, which needs fixed",
        ),
        (
            "\"s:text\"",
            "{ name = \"s\", column = 0 }",
            "flow \"test\", parse: field \"s\" stands in column 0 (from 0), as does another",
        ),
        (
            "\"csv\"",
            "\"csv\", delimiter = \"é\"",
            "flow \"test\", parse: delimiter 'é' is not an ASCII",
        ),
        ("\"csv\"", "\"fixed\"", "flow \"test\", parse: field \"x\" needs at"),
        (
            "\"csv\"",
            "\"json\", header = true",
            "flow \"test\", parse: delimiter and header are only for the format Csv",
        ),
        (
            "field = \"x\"",
            "field = \"y\"",
            "flow \"test\", step 1 (kalman): no field \"y\" is known here; there are x, s",
        ),
        (
            "field = \"x\"",
            "field = \"s\"",
            "flow \"test\", step 1 (kalman): field \"s\" must be a number here",
        ),
        (
            "field = \"x\"",
            "field = \"x\", into = \"s\"",
            "flow \"test\", step 1 (kalman): a field \"s\" is there already",
        ),
        (
            "field = \"x\"",
            "field = \"x\", q = -1",
            "flow \"test\", step 1 (kalman): q is -1, and lies between 0 and ",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"average\"",
            "flow \"test\", step 1 (average): it needs field",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"min\", field = \"x\", window = { sliding = 5000 }",
            "flow \"test\", step 1 (min): window is 5000, and lies between 1 and 4096",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"min\", field = \"x\", window = { sliding = \"soon\" }",
            "flow \"test\", step 1 (min): \"soon\" is not an extent",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"min\", field = \"x\", window = { sliding = 5, tumbling = 5 }",
            "flow \"test\", step 1 (min): tumbling and sliding do not go together",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"min\", field = \"x\", alpha = 0.5",
            "flow \"test\", step 1 (min): it needs average for alpha",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"range-filter\", field = \"x\"",
            "flow \"test\", step 1 (range-filter): it needs min, max or both",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"range-filter\", field = \"x\", min = 2, max = 1",
            "flow \"test\", step 1 (range-filter): a min above its max do not go together",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"bloom-filter\", members = \"m\"",
            "flow \"test\", step 1 (bloom-filter): no set \"m\" was loaded; known are none",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"linear-regression\", model = \"m\"",
            "flow \"test\", step 1 (linear-regression): no model \"m\" was loaded",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"annotate\", table = \"m\"",
            "flow \"test\", step 1 (annotate): no table \"m\" was loaded",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"distinct-count\", precision = 17",
            "flow \"test\", step 1 (distinct-count): precision is 17, and lies between 4 and 16",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"string-match\"",
            "flow \"test\", step 1 (string-match): it needs equals, starts_with",
        ),
        (
            "\"kalman\", field = \"x\"",
            "\"threshold\", field = \"x\"",
            "flow \"test\", step 1 (threshold): it needs above, below or both",
        ),
        (
            "\"out\"",
            "\"{field:y}\"",
            "flow \"test\", step 2 (notify): topic: no field \"y\" is known here",
        ),
        (
            "fields = [\"x\"] }]",
            "payload = \"{\" }]",
            "flow \"test\", step 2 (notify): payload: a brace has no partner",
        ),
        (
            "topics",
            "keys_max = 10\ntopics",
            "flow \"test\": keys_max is 10, and lies between 1024 and 268435456",
        ),
        (
            "topics",
            "expire_after = \"1500ms\"\ntopics",
            "flow \"test\": expire_after is counted in whole seconds",
        ),
        (
            "topics",
            "key = { field = \"y\" }\ntopics",
            "flow \"test\": no field \"y\" is known here",
        ),
        (
            "topics",
            "dead_letter_topic = \"{x}\"\ntopics",
            "flow \"test\": dead_letter_topic: {x} stands for nothing",
        ),
    ] {
        assert!(SOUND.contains(from), "{from}");
        let found = error_of(&SOUND.replacen(from, to, 1));
        assert!(found.starts_with(expected), "{from} -> {to}: {found}");
    }
    let nowhere = SOUND
        .replace("topics", "forward = \"none\"\ntopics")
        .replace("\"kalman\", field = \"x\"", "\"replace\", fields = [\"x\"]");
    assert!(error_of(&nowhere).contains("no payload that is replaced goes anywhere"));
}

#[test]
fn unknown_keys_are_errors() {
    for (from, to) in [
        ("topics", "topic = \"a\"\ntopics"),
        ("\"csv\"", "\"csv\", quote = \"x\""),
        ("\"x\", ", "{ name = \"x\", kind = \"text\" }, "),
        ("\"x\", ", "\"x:float\", "),
        ("field = \"x\"", "field = \"x\", gain = 1"),
        ("\"kalman\"", "\"karman\""),
        ("topics", "expire_after = 5\ntopics"),
        ("topics", "message_bytes_max = \"5\"\ntopics"),
    ] {
        let toml = SOUND.replacen(from, to, 1);
        assert!(toml::from_str::<Spec>(&toml).is_err(), "{toml}");
    }
}

#[test]
fn a_flow_knows_its_topics() {
    let flow = flow(SOUND);
    assert!(flow.matches("a/b") && flow.matches("a") && !flow.matches("b"));
    assert_eq!((flow.name(), flow.topics()), ("test", &["a/#".to_owned()][..]));
    assert_eq!(flow.field_name(1), Some("s"));
}

#[test]
fn only_messages_that_filters_keep_continue() {
    let toml = SOUND.replace(
        "{ kernel = \"kalman\", field = \"x\" }",
        "{ kernel = \"range-filter\", field = \"x\", max = 5 }, { kernel = \"replace\", fields = [\"x\"], format = \"csv\" }",
    );
    for (forward, expected) in [("all", ["1", "pass"]), ("kept", ["1", "drop"])] {
        let mut flow = flow(&format!("forward = \"{forward}\"\n{toml}"));
        let outcome = run(&mut flow, Instant::EPOCH, &[("a", b"1,s"), ("a", b"9,s")]);
        assert_eq!(outcome.verdicts, expected, "{forward}");
        assert_eq!(flow.stats().filtered, 1);
    }
}

//! Choices of senders stay within bounds: times, keys, texts, output.

use super::*;
use crate::Reason;

const TIMED: &str = r##"
topics = ["#"]
expire_after = "1h"
parse = { format = "csv", fields = [{ name = "t", type = "time" }, "x"] }
step = [
    { kernel = "count", into = "n", window = { tumbling = "10s", time = "t" } },
    { kernel = "notify", topic = "out", when = "n", payload = "{field:n}" },
]
"##;

fn at(seconds: i64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

#[test]
fn a_time_from_the_future_silences_no_window() {
    for (bad, expected) in [("skip", 1), ("dead-letter", 2)] {
        let mut flow = flow(&format!("bad = \"{bad}\"\n{TIMED}"));
        let now = at(1_000);
        assert!(run(&mut flow, now, &[("a", b"1000,1"), ("a", b"1001,1")]).emissions.is_empty());
        // A year ahead; a minute is still taken for a clock that goes wrong.
        run(&mut flow, now, &[("a", b"31537000,1")]);
        let outcome = run(&mut flow, now, &[("a", b"1011,1")]);
        assert_eq!(outcome.emissions[0].2, "2", "{bad}");
        assert_eq!(flow.stats().bad[Reason::Future as usize], 1);
        assert_eq!(flow.stats().emitted, expected, "{bad}");
        let outcome = run(&mut flow, now, &[("b", b"1060,1"), ("b", b"1061,1"), ("b", b"1055,1")]);
        assert_eq!(outcome.emissions.len(), usize::from(bad == "dead-letter"));
        assert_eq!(flow.stats().bad[Reason::Future as usize], 2);
    }
}

#[test]
fn the_last_good_time_stands_in_for_one_from_the_future() {
    let mut flow = flow(&format!("bad = \"last-good\"\n{TIMED}"));
    let messages: &[(&str, &[u8])] = &[("a", b"1000,1"), ("a", b"9999999,1"), ("a", b"1012,1")];
    let outcome = run(&mut flow, at(1_000), messages);
    assert_eq!((outcome.emissions[0].0, &*outcome.emissions[0].2), (2, "2"));
    assert_eq!(flow.stats().mended, 1);
}

#[test]
fn a_key_that_was_seen_in_the_future_expires_all_the_same() {
    let mut flow = flow(TIMED);
    run(&mut flow, at(1_000_000), &[("a", b"1000,1")]);
    // The clock was set back.
    flow.expire(at(1_000), 10);
    assert_eq!(flow.stats().keys, 1);
    flow.expire(at(1_000 + 3_602), 10);
    assert_eq!(flow.stats().keys, 0);
}

#[test]
fn numbers_that_are_no_longer_exact_are_no_keys() {
    let toml = r##"
topics = ["#"]
key = { field = "id" }
parse = { format = "csv", fields = ["id", "x"] }
step = [{ kernel = "count", into = "n" }, { kernel = "notify", topic = "out", payload = "{field:n}" }]
"##;
    let mut flow = flow(toml);
    let exact = ["9007199254740990,1", "9007199254740991,1", "-9007199254740991,1"];
    assert_eq!(published(&mut flow, &exact), ["1", "1", "1"]);
    // One float for both of them.
    assert!(published(&mut flow, &["9007199254740992,1", "9007199254740993,1"]).is_empty());
    assert_eq!(flow.stats().bad[Reason::Key as usize], 2);
}

#[test]
fn keys_and_filters_count_as_state() {
    let bloom = |expected: u64| {
        format!(
            "topics = [\"#\"]\nstate_bytes_max = \"1MB\"\nparse = {{ format = \"csv\", fields = [\"x\"] }}\n\
             step = [{{ kernel = \"bloom-filter\", field = \"x\", learn = true, expected = {expected} }}]"
        )
    };
    let fits = flow(&bloom(1_000));
    assert_eq!(fits.state_bytes(), (1 + 9_600 / 64) * 8);
    let error = Flow::compile(&spec(&bloom(10_000_000)), &Models::new()).unwrap_err().to_string();
    assert!(
        error.contains("Bloom filters take 11981336 bytes of state, and 1000000 is"),
        "{error}"
    );
    // Keys that do not fit a block are kept apart, and are counted as if all keys were that long.
    let keyed = |bytes: u32| flow(&format!("key_bytes_max = {bytes}\nkeys_max = 1024\n{TIMED}"));
    assert_eq!(keyed(4096).state_bytes() - keyed(48).state_bytes(), 1024 * (4096 + 36));
    let mut flow = keyed(48);
    let long = "k".repeat(49);
    run(&mut flow, at(1_000), &[(&long, b"1000,1"), (&long[1..], b"1000,1")]);
    assert_eq!((flow.stats().keys, flow.stats().bad[Reason::Key as usize]), (1, 1));
}

#[test]
fn a_replacement_without_room_is_not_passed_unchanged() {
    let toml = r##"
topics = ["#"]
message_bytes_max = "8MiB"
bad = "dead-letter"
parse = { format = "csv", fields = ["x:text"] }
step = [
    { kernel = "replace", payload = "{field:x}{field:x}{field:x}" },
]
"##;
    let mut flow = flow(toml);
    let large = vec![b'x'; 6 << 20];
    let outcome = run(&mut flow, at(0), &[("a", b"1"), ("b", &large), ("c", b"2")]);
    assert_eq!(outcome.verdicts, ["111", "drop", "222"]);
    assert_eq!((outcome.emissions[0].0, &*outcome.emissions[0].1), (1, "dead/test/b"));
    assert_eq!(flow.stats().bad[Reason::NoRoom as usize], 1);
    // A notice that finds none is not sent, and is counted; the batch behind it continues.
    let toml = toml.replace("\"replace\",", "\"notify\", topic = \"out\",");
    let mut flow = super::flow(&toml);
    let outcome = run(&mut flow, at(0), &[("a", &large), ("b", b"1")]);
    assert_eq!((outcome.emissions.len(), flow.stats().unsent), (1, 1));
    assert_eq!(outcome.emissions[0].2, "111");
}

#[test]
fn no_flow_publishes_on_topics_of_the_broker_or_on_wildcards() {
    let toml = |topic: &str| {
        format!(
            "topics = [\"#\"]\nparse = {{ format = \"csv\", fields = [\"x:text\"] }}\n\
             step = [{{ kernel = \"notify\", topic = \"{topic}\", payload = \"\" }}]"
        )
    };
    for (topic, expected) in [
        ("$SYS/x", "begins with $ is the broker's own"),
        ("a/#", "'#' stands for many topics"),
        ("a/+/{field:x}", "'+' stands for many topics"),
        ("", "at least one character"),
    ] {
        let error = Flow::compile(&spec(&toml(topic)), &Models::new()).unwrap_err().to_string();
        assert!(error.contains(expected), "{topic}: {error}");
    }
    let mut flow = flow(&toml("{field:x}/y"));
    assert!(run(&mut flow, at(0), &[("a", b"$SYS")]).emissions.is_empty());
    assert_eq!(flow.stats().unsent, 1);
}

#[test]
fn texts_of_senml_have_no_base_value_added() {
    let toml = r##"
topics = ["#"]
parse = { format = "senml-json", fields = ["x", "s:text", "t:text"] }
step = [{ kernel = "notify", topic = "out", payload = "{field:x} {field:s} {field:t}" }]
"##;
    let pack = r#"[{"bv":10,"n":"x","v":1},{"n":"s","vs":"007"},{"n":"t","sv":"5"}]"#;
    assert_eq!(published(&mut flow(toml), &[pack]), ["11 007 5"]);
}

#[test]
fn names_are_found_among_many_and_in_any_order() {
    let fields: Vec<String> = (0..200).map(|n| format!("\"f{n}\"")).collect();
    let toml = format!(
        "topics = [\"#\"]\nparse = {{ format = \"json\", fields = [{}] }}\n\
         step = [{{ kernel = \"notify\", topic = \"out\", payload = \"{{field:f0}} {{field:f77}} {{field:f199}}\" }}]",
        fields.join(",")
    );
    let unknown: Vec<String> = (0..3_000).map(|n| format!("\"u{n}\":0")).collect();
    for order in [1, 7, 199] {
        let members: Vec<String> =
            (0..200).map(|n| n * order % 200).map(|n| format!("\"f{n}\":{n}")).collect();
        let payload = format!("{{{},{}}}", unknown.join(","), members.join(","));
        assert_eq!(published(&mut flow(&toml), &[&payload]), ["0 77 199"], "{order}");
    }
}

#[test]
fn sketches_under_another_seed_are_other_state() {
    let toml = r##"
topics = ["#"]
parse = { format = "csv", fields = ["x"] }
step = [
    { kernel = "distinct-count", field = "x", into = "d" },
    { kernel = "count", into = "n" },
    { kernel = "notify", topic = "out", payload = "{field:d:0} {field:n}" },
]
"##;
    let seeded = |seed: u64| {
        let spec = Spec { sketch_seed: seed, ..spec(toml) };
        Flow::compile(&spec, &Models::new()).unwrap()
    };
    let payloads: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    let mut before = seeded(1);
    assert_eq!(published(&mut before, &payloads)[39], "41 40");
    let mut same = seeded(1);
    assert!(same.restore(&before.snapshot()).unwrap().began_anew.is_empty());
    assert_eq!(published(&mut same, &["39"]), ["41 41"]);
    let mut other = seeded(2);
    let restored = other.restore(&before.snapshot()).unwrap();
    assert_eq!(restored.began_anew, ["step 1 (distinct-count)"]);
    assert_eq!(published(&mut other, &["39"]), ["1 41"]);
}

#[test]
fn parts_of_a_flow_hold_each_key_once_however_many_they_are() {
    let parts = |count: usize| -> Vec<Flow> {
        let spec = Spec {
            hash_seed: 9,
            ..spec(&TIMED.replace("window = { tumbling = \"10s\", time = \"t\" }", ""))
        };
        (0..count).map(|_| Flow::compile(&spec, &Models::new()).unwrap()).collect()
    };
    let topics: Vec<String> = (0..500).map(|n| format!("t/{n}")).collect();
    let feed = |flows: &mut [Flow]| {
        let count = flows.len() as u64;
        let mut hashes = Vec::new();
        let mut found = Vec::new();
        for topic in &topics {
            let message = [Message { topic, payload: b"1000,1" }];
            flows[0].key_hashes(at(1_000), &message, &mut hashes);
            let of = (hashes[0].unwrap() % count) as usize;
            let outcome = run(&mut flows[of], at(1_000), &[(topic, b"1000,1")]);
            found.push(outcome.emissions[0].2.clone());
        }
        found
    };
    let mut four = parts(4);
    assert!(feed(&mut four).iter().all(|count| count == "1"));
    let snapshots: Vec<_> = four.iter().map(Flow::snapshot).collect();
    let snapshots: Vec<&[u8]> = snapshots.iter().map(Vec::as_slice).collect();
    let mut three = parts(3);
    let mut keys = 0;
    for (index, part) in three.iter_mut().enumerate() {
        keys += part.restore_all(&snapshots, |hash| hash % 3 == index as u64).unwrap().keys;
    }
    assert_eq!(keys, 500);
    assert!(feed(&mut three).iter().all(|count| count == "2"));
}

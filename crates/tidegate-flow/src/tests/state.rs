//! State: bounded, forgotten by age, written out and read back.

use super::*;
use crate::{Restored, SnapshotError};

const COUNTING: &str = r##"
topics = ["#"]
keys_max = 2000
parse = { format = "csv", fields = ["x"] }
step = [
    { kernel = "kalman", field = "x" },
    { kernel = "count" },
    { kernel = "average", field = "x", window = { sliding = 3 } },
    { kernel = "bloom-filter", field = "x", expected = 100, learn = true, keep = "new" },
    { kernel = "notify", topic = "out", payload = "{field:message_count} {field:x_average} {field:x_kalman:3}" },
]
"##;

#[test]
fn ten_million_topics_take_no_more_state_than_was_said() {
    let mut flow = flow(
        r##"
topics = ["#"]
keys_max = 100_000
parse = { format = "csv", fields = ["x"] }
step = [{ kernel = "kalman", field = "x" }, { kernel = "count" }]
"##,
    );
    let mut topics = vec![String::new(); 256];
    let mut output = Output::new();
    let mut number = 0_u32;
    while number < 10_000_000 {
        for topic in &mut topics {
            use std::fmt::Write as _;
            topic.clear();
            write!(topic, "meter/{number}").unwrap();
            number += 1;
        }
        let messages: Vec<_> =
            topics.iter().map(|topic| Message { topic, payload: b"1.5" }).collect();
        flow.run(Instant::EPOCH, &messages, &mut output);
    }
    let stats = flow.stats();
    assert_eq!(stats.keys, 100_000);
    assert_eq!(stats.evicted, stats.messages - 100_000);
}

#[test]
fn keys_cleared_for_a_snapshot_without_keys_are_not_found_again() {
    let empty = flow(COUNTING).snapshot();
    let mut flow = flow(COUNTING);
    let mut output = Output::new();
    let one = |flow: &mut Flow, output: &mut Output| {
        flow.run(Instant::EPOCH, &[Message { topic: "a", payload: b"1.5" }], output);
        flow.stats().keys
    };
    assert_eq!(one(&mut flow, &mut output), 1);
    flow.restore(&empty).unwrap();
    assert_eq!(flow.stats().keys, 0);
    assert_eq!(one(&mut flow, &mut output), 1, "it has a place of its own, not that of before");
    flow.run(Instant::EPOCH, &[Message { topic: "b", payload: b"2.5" }], &mut output);
    assert_eq!(flow.stats().keys, 2);
}

#[test]
fn what_is_too_much_state_is_refused_with_the_sum() {
    let toml =
        COUNTING.replace("keys_max = 2000", "keys_max = 1_000_000\nstate_bytes_max = \"64MB\"");
    let error = Flow::compile(&spec(&toml), &Models::new()).unwrap_err().to_string();
    assert_eq!(
        error,
        "flow \"test\": 1000000 keys of 292 bytes take 300388736 bytes of state, and 64000000 is the most; \
         lower keys_max, key_bytes_max or windows, or raise state_bytes_max"
    );
}

#[test]
fn state_expires_by_age() {
    let mut flow = flow(&format!("expire_after = \"10s\"\n{COUNTING}"));
    let mut at = |seconds: i64, payload: &str| {
        let now = Instant::from_nanos(seconds * 1_000_000_000);
        run(&mut flow, now, &[("a", payload.as_bytes())]).emissions[0].2.clone()
    };
    assert_eq!(at(0, "1"), "1 1 1.000");
    assert!(at(10, "2").starts_with("2 1.5"));
    assert_eq!(at(21, "3"), "1 3 3.000");
    assert_eq!(flow.stats().expired, 1);
    flow.expire(Instant::from_nanos(100_000_000_000), 1000);
    assert_eq!((flow.stats().keys, flow.stats().expired), (0, 2));
}

#[test]
fn devices_gather_under_a_parent() {
    let toml = COUNTING.replace("keys_max = 2000", "key = { levels = [0, 1] }");
    let messages: &[(&str, &[u8])] =
        &[("city/n/1", b"1"), ("city/n/2", b"2"), ("city/s/3", b"3"), ("city/n/3", b"6")];
    let outcome = run(&mut flow(&toml), Instant::EPOCH, messages);
    let counts: Vec<_> = outcome.emissions.iter().map(|(_, _, payload)| &payload[..3]).collect();
    assert_eq!(counts, ["1 1", "2 1", "1 3", "3 3"]);
}

#[test]
fn the_hash_of_a_key_is_that_of_its_state() {
    for (key, pairs) in [
        ("\"topic\"", [("a/b", "1", "a/b", "2", true), ("a/b", "1", "a/c", "1", false)]),
        ("{ levels = [0] }", [("a/b", "1", "a/c", "2", true), ("a/b", "1", "b/b", "1", false)]),
        ("{ field = \"x\" }", [("a", "1", "b", "1.0", true), ("a", "1", "a", "2", false)]),
    ] {
        let mut flow = flow(&COUNTING.replace("keys_max = 2000", &format!("key = {key}")));
        for (topic, payload, other_topic, other_payload, same) in pairs {
            let mut hash = |topic: &str, payload: &str| {
                let mut hashes = Vec::new();
                let message = Message { topic, payload: payload.as_bytes() };
                flow.key_hashes(Instant::EPOCH, &[message], &mut hashes);
                hashes[0]
            };
            let hashes = (hash(topic, payload), hash(other_topic, other_payload));
            assert!(hashes.0.is_some());
            assert_eq!(hashes.0 == hashes.1, same, "{key} {topic} {other_topic}");
        }
        assert_eq!(flow.stats().keys, 0);
    }
    let mut flow = flow(&COUNTING.replace("keys_max = 2000", "key = { field = \"x\" }"));
    let mut hashes = Vec::new();
    flow.key_hashes(Instant::EPOCH, &[Message { topic: "a", payload: b"?" }], &mut hashes);
    assert_eq!(hashes, [None]);
}

#[test]
fn a_flow_goes_on_from_its_snapshot() {
    let mut before = flow(COUNTING);
    let long = "t".repeat(100);
    for number in 0..50 {
        let payload = format!("{number}");
        for topic in ["a", "a/b", &long] {
            run(&mut before, Instant::EPOCH, &[(topic, payload.as_bytes())]);
        }
    }
    let snapshot = before.snapshot();
    let mut after = flow(COUNTING);
    let restored = after.restore(&snapshot).unwrap();
    assert_eq!(restored, Restored { keys: 3, ..Restored::default() });
    for (topic, payload) in [("a", "1e3"), (&long, "7.5"), ("new", "8"), ("a", "49")] {
        let message = [(topic, payload.as_bytes())];
        let expected = run(&mut before, Instant::EPOCH, &message);
        assert_eq!(run(&mut after, Instant::EPOCH, &message), expected, "{topic}");
    }
    assert_eq!(after.snapshot(), before.snapshot());
}

#[test]
fn a_changed_flow_keeps_the_state_that_still_fits() {
    let mut before = flow(COUNTING);
    published(&mut before, &["1", "2", "3"]);
    let snapshot = before.snapshot();
    // The window is another, the Kalman filter is gone; the count is as it was.
    let changed = COUNTING
        .replace("{ kernel = \"kalman\", field = \"x\" },", "")
        .replace("sliding = 3", "sliding = 4")
        .replace(" {field:x_kalman:3}", "");
    let mut after = flow(&changed);
    let restored = after.restore(&snapshot).unwrap();
    assert_eq!(
        restored,
        Restored {
            keys: 1,
            keys_left_out: 0,
            began_anew: vec!["step 2 (average)".to_owned()],
            dropped: 2,
        }
    );
    assert_eq!(published(&mut after, &["9"]), ["4 9"]);
    // With another key nothing of its keys fits; the contents of the filter are the flow's own.
    let mut other = flow(&COUNTING.replace("keys_max = 2000", "key = \"none\""));
    let restored = other.restore(&snapshot).unwrap();
    assert_eq!((restored.keys, restored.keys_left_out, restored.began_anew.len()), (0, 1, 3));
    // The 3 was seen before, and is not new.
    let found = published(&mut other, &["3", "9"]);
    assert_eq!((found.len(), &found[0][..3]), (1, "2 6"));
}

#[test]
fn additions_to_a_set_stay_with_learned_entries() {
    let toml = r##"
topics = ["#"]
parse = { format = "csv", fields = ["id:text"] }
step = [
    { kernel = "bloom-filter", field = "id", members = "known", expected = 100, learn = true, keep = "new" },
    { kernel = "notify", topic = "out", payload = "{field:id}" },
]
"##;
    let flow_of = |toml: &str, seed: u64, members: &str| {
        let mut models = Models::new();
        models.insert_set("known", members);
        Flow::compile(&Spec { sketch_seed: seed, ..spec(toml) }, &models).unwrap()
    };
    let learned: Vec<String> = (0..90).map(|number| format!("l{number}")).collect();
    let learned: Vec<&str> = learned.iter().map(String::as_str).collect();
    for seed in [0, 7] {
        let mut before = flow_of(toml, seed, "a\nb");
        assert!(published(&mut before, &learned).len() > 80, "seed {seed}");
        let snapshot = before.snapshot();
        // The same again, and with two members more.
        let mut same = flow_of(toml, seed, "a\nb");
        assert_eq!(same.restore(&snapshot).unwrap(), Restored::default());
        assert_eq!(same.snapshot(), snapshot);
        let mut more = flow_of(toml, seed, "a\nb\nc\nd");
        assert_eq!(more.restore(&snapshot).unwrap(), Restored::default());
        assert_eq!(published(&mut more, &learned), [""; 0], "seed {seed}");
        assert_eq!(published(&mut more, &["a", "b", "c", "d"]), [""; 0], "seed {seed}");
        // There is room for about six.
        let strangers: Vec<String> = (0..50).map(|number| format!("s{number}")).collect();
        let strangers: Vec<&str> = strangers.iter().map(String::as_str).collect();
        let new = published(&mut more, &strangers).len() as u64;
        let taken = new - more.stats().unlearned;
        assert!((1..=14).contains(&taken), "seed {seed}: {taken}");
    }
    // Of another shape, or under another seed, it starts over with its set.
    let snapshot = {
        let mut before = flow_of(toml, 7, "a\nb");
        published(&mut before, &learned);
        before.snapshot()
    };
    for (toml, seed) in [(toml, 8), (&*toml.replace("100", "200"), 7)] {
        let mut after = flow_of(toml, seed, "a\nb");
        let began_anew = vec!["step 1 (bloom-filter)".to_owned()];
        assert_eq!(after.restore(&snapshot).unwrap().began_anew, began_anew);
        assert_eq!(published(&mut after, &["a", "l1", "b"]), ["l1"]);
    }
    // Three members and four have 64 bits each, and 15 places and 11.
    let by_set = toml.replace("expected = 100, ", "");
    let snapshot = flow_of(&by_set, 7, "a\nb\nc").snapshot();
    let mut after = flow_of(&by_set, 7, "a\nb\nc\nd");
    assert_eq!(after.restore(&snapshot).unwrap().began_anew.len(), 1);
    assert_eq!(published(&mut after, &["a", "b", "c", "d"]), [""; 0]);
}

#[test]
fn more_keys_than_are_kept_are_counted() {
    let mut before = flow(COUNTING);
    let topics: Vec<String> = (0..2000).map(|number| format!("t/{number}")).collect();
    for topic in &topics {
        run(&mut before, Instant::EPOCH, &[(topic, b"1")]);
    }
    let mut after = flow(&COUNTING.replace("2000", "1024"));
    let restored = after.restore(&before.snapshot()).unwrap();
    assert_eq!((restored.keys, restored.keys_left_out), (1024, 976));
}

#[test]
fn a_damaged_snapshot_is_refused_and_changes_nothing() {
    let mut before = flow(COUNTING);
    published(&mut before, &["1", "2", "3"]);
    let snapshot = before.snapshot();
    let mut after = flow(COUNTING);
    published(&mut after, &["5"]);
    let untouched = after.snapshot();
    for end in 0..snapshot.len() {
        assert!(after.restore(&snapshot[..end]).is_err(), "{end} bytes");
    }
    for at in 0..snapshot.len() {
        let mut damaged = snapshot.clone();
        damaged[at] ^= 0x10;
        assert!(after.restore(&damaged).is_err(), "byte {at}");
    }
    assert_eq!(after.snapshot(), untouched);
    assert_eq!(after.restore(b"TGFLOWXX and more"), Err(SnapshotError::Magic));
    let mut later = snapshot.clone();
    later[8] = 9;
    assert_eq!(after.restore(&later), Err(SnapshotError::Version { major: 9, features: 0 }));
}

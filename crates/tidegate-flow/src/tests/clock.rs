//! The effects of time without messages.

use super::*;

fn at(millis: i64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// The messages that time alone publishes.
fn ticked(flow: &mut Flow, now: Instant) -> Vec<(String, String)> {
    let mut output = Output::new();
    flow.tick(now, u32::MAX, &mut output);
    assert!(output.emissions().all(|emission| emission.from < output.verdicts().len()));
    let made = output.emissions().map(|emission| match emission.payload {
        EmittedPayload::Made(payload) => {
            (emission.topic.to_owned(), String::from_utf8_lossy(payload).into_owned())
        }
        EmittedPayload::Original(bad) => panic!("{bad:?}"),
    });
    made.collect()
}

const WINDOWED: &str = r##"
topics = ["#"]
parse = { format = "csv", fields = [{ name = "t", type = "time" }, "id:text", "x"] }
step = [
    { kernel = "range-filter", field = "x", max = 100 },
    { kernel = "count", into = "all" },
    { kernel = "average", field = "x", into = "mean", window = { tumbling = "10s" } },
    { kernel = "keep", present = ["mean"] },
    { kernel = "notify", topic = "TOPIC", payload = "{field:mean} {field:all} {field:x}" },
]
"##;

#[test]
fn a_window_ends_without_a_further_message_once() {
    for (key, topic, expected) in [
        ("\"topic\"", "out/{level:1}", "out/b"),
        ("{ levels = [0, 1] }", "{level:0}/{level:1}/mean", "a/b/mean"),
        ("{ field = \"id\" }", "out/{field:id}", "out/dev"),
        ("\"none\"", "out", "out"),
    ] {
        let toml = format!("key = {key}\n{}", WINDOWED.replace("TOPIC", topic));
        let mut flow = flow(&toml);
        assert!(flow.ticks());
        let messages: &[(&str, &[u8])] =
            &[("a/b", b"0,dev,1"), ("a/b", b"0,dev,2"), ("a/b", b"0,dev,600")];
        assert!(run(&mut flow, at(3_000), messages).emissions.is_empty());
        assert!(ticked(&mut flow, at(9_999)).is_empty(), "{key}");
        // The count is what it was: time is no message.
        let ended = vec![(expected.to_owned(), "1.5 2 ".to_owned())];
        assert_eq!(ticked(&mut flow, at(10_000)), ended, "{key}");
        assert!(ticked(&mut flow, at(30_000)).is_empty(), "{key}");
        // The next message begins a window, and has nothing to say of the one before.
        assert!(run(&mut flow, at(31_000), &[("a/b", b"0,dev,5")]).emissions.is_empty());
        assert_eq!(ticked(&mut flow, at(40_000))[0].1, "5 3 ", "{key}");
    }
}

#[test]
fn a_window_by_a_field_ends_once_its_key_was_silent_for_as_long() {
    let toml = WINDOWED
        .replace("{ tumbling = \"10s\" }", "{ tumbling = \"10s\", time = \"t\" }")
        .replace("TOPIC", "out");
    let mut flow = flow(&toml);
    // An old trace, faster than it was.
    run(&mut flow, at(10_000_000), &[("a", b"5000,d,1"), ("a", b"5001,d,3")]);
    assert!(ticked(&mut flow, at(10_009_000)).is_empty());
    assert_eq!(ticked(&mut flow, at(10_011_000)), [("out".to_owned(), "2 2 ".to_owned())]);
    // A message for it now is late, and one for the next is not.
    run(&mut flow, at(10_011_000), &[("a", b"5002,d,1"), ("a", b"5010,d,7")]);
    assert_eq!(flow.stats().late, 1);
    assert_eq!(ticked(&mut flow, at(10_022_000))[0].1, "7 4 ");
}

#[test]
fn values_of_a_message_are_not_made_up_by_time() {
    // The topic of a notice has a level that the key does not say.
    let toml =
        format!("key = {{ field = \"id\" }}\n{}", WINDOWED.replace("TOPIC", "out/{level:0}"));
    let mut flow = flow(&toml);
    assert!(!flow.ticks());
    run(&mut flow, at(0), &[("a", b"0,dev,1")]);
    assert!(ticked(&mut flow, at(20_000)).is_empty());
    // It is said with the next message, as it always was.
    let outcome = run(&mut flow, at(21_000), &[("a", b"0,dev,9")]);
    assert_eq!((&*outcome.emissions[0].1, &*outcome.emissions[0].2), ("out/a", "1 2 9"));
}

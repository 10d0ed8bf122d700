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

/// A float of seconds has steps of 238 ns in these years.
#[test]
fn times_pass_through_to_the_nanosecond() {
    const AT: i64 = 1_700_000_000_123_456_789;
    let of = |format: &str, field: &str| {
        flow(&format!(
            "topics = [\"#\"]\nparse = {{ format = \"{format}\", fields = [{field}] }}\n\
             [[step]]\nkernel = \"notify\"\ntopic = \"out\"\nfields = [\"ts\"]\n\
             [[step]]\nkernel = \"notify\"\ntopic = \"out\"\npayload = \"{{field:ts}} {{field:ts:7}}\"\n"
        ))
    };
    let field = |unit: &str| format!("{{ name = \"ts\", type = \"time\", unit = \"{unit}\" }}");
    let cbor = |head: &[u8], number: i64| [head, &number.to_be_bytes()[..]].concat();
    let senml = "{ name = \"ts\", type = \"time\", from = \"@time\" }, \"v\"".to_owned();
    let fixed =
        "{ name = \"ts\", type = \"time\", unit = \"ns\", at = 0, as = \"i64be\" }".to_owned();
    let ascii = "{ name = \"ts\", type = \"time\", unit = \"ns\", at = 0, length = 19 }".to_owned();
    for (format, field, payload) in [
        ("json", field("ns"), format!("{{\"ts\":{AT}}}").into_bytes()),
        ("json", field("ns"), format!("{{\"ts\":\"{AT}\"}}").into_bytes()),
        ("json", field("s"), b"{\"ts\":1700000000.123456789}".to_vec()),
        ("json", field("us"), b"{\"ts\":1700000000123456.789}".to_vec()),
        ("json", field("ms"), b"{\"ts\":\"2023-11-14T23:13:20.123456789+01:00\"}".to_vec()),
        ("csv", field("ns"), AT.to_string().into_bytes()),
        ("csv", field("ns"), format!("\"{AT}\"").into_bytes()),
        ("cbor", field("ns"), cbor(b"\xa1\x62ts\x1b", AT)),
        ("cbor", field("s"), cbor(b"\xa1\x62ts\xc4\x82\x28\x1b", AT)), // 4([-9, AT])
        ("fixed", fixed, AT.to_be_bytes().to_vec()),
        ("fixed", ascii, AT.to_string().into_bytes()),
        (
            "senml-json",
            senml.clone(),
            b"[{\"bt\":1700000000,\"n\":\"v\",\"v\":1,\"t\":0.123456789}]".to_vec(),
        ),
        (
            "senml-json",
            senml.clone(),
            b"{\"e\":[{\"n\":\"v\",\"v\":1,\"t\":0.023456789}],\"bt\":1700000000.1}".to_vec(),
        ),
        (
            "senml-cbor",
            senml,
            [&cbor(b"\x81\xa3\x22\xc4\x82\x28\x1b", AT)[..], b"\x00\x61v\x02\x01"].concat(),
        ),
    ] {
        let mut flow = of(format, &field);
        let now = Instant::from_nanos(AT);
        let outcome = run(&mut flow, now, &[("a", &payload)]);
        let payloads: Vec<&str> =
            outcome.emissions.iter().map(|(.., payload)| &**payload).collect();
        let expected = ["{\"ts\":1700000000.123456789}", "1700000000.123456789 1700000000.1234568"];
        assert_eq!(payloads, expected, "{format} {field}");
    }
    // A number that is no longer the one that was read, and one that was a float already, are as the float is.
    let mut flow = of("json", &field("ns"));
    let messages = ["{\"ts\":1.7000000001234567e18}", "{\"ts\":1700000000123456789}"];
    assert_eq!(published(&mut flow, &messages)[0], "{\"ts\":1700000000.1234567}");
}

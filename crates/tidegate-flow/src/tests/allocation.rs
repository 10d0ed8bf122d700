//! After warm-up, a message allocates nothing.

use super::*;

#[test]
fn a_batch_allocates_nothing_after_warm_up() {
    for (format, payload) in [
        ("csv", &b"21.5,abc"[..]),
        ("json", br#"{"x":21.5,"s":"a\"bc"}"#),
        ("senml-json", br#"{"e":[{"n":"x","v":"21.5"},{"n":"s","sv":"abc"}],"bt":1422748800000}"#),
        ("cbor", b"\xa2\x61x\x05\x61s\x63abc"),
        // Every second one is bad.
        ("csv", b"x,abc"),
    ] {
        let mut flow = flow(&format!(
            r##"
topics = ["#"]
bad = "dead-letter"
parse = {{ format = "{format}", fields = ["x", "s:text"] }}
key = {{ field = "s" }}
expire_after = "1h"
step = [
    {{ kernel = "kalman", field = "x" }},
    {{ kernel = "average", field = "x", window = {{ sliding = 10 }} }},
    {{ kernel = "max", field = "x", window = {{ sliding = "10s" }} }},
    {{ kernel = "distinct-count", field = "x" }},
    {{ kernel = "bloom-filter", field = "s", expected = 10, learn = true, keep = "known" }},
    {{ kernel = "string-match", field = "s", contains = ["b"] }},
    {{ kernel = "sliding-regression", field = "x" }},
    {{ kernel = "threshold", field = "x", above = 1 }},
    {{ kernel = "notify", topic = "out/{{field:s}}", fields = ["x", "s", "x_trend"], when = "x_over" }},
    {{ kernel = "replace", payload = "{{field:x:2}} {{topic}}" }},
]
"##
        ));
        let messages: Vec<_> = (0..600)
            .map(|index| {
                let payload = if index % 2 == 0 { payload } else { b"1,b" };
                Message { topic: "a/b", payload }
            })
            .collect();
        let mut output = Output::new();
        for second in 0..3 {
            flow.run(Instant::from_nanos(second * 1_000_000_000), &messages, &mut output);
        }
        let counted = allocation_counter::measure(|| {
            flow.run(Instant::from_nanos(4_000_000_000), &messages, &mut output);
        });
        assert!(output.emissions().len() > 0, "{format}");
        assert_eq!(counted.count_total, 0, "{format}");
    }
}

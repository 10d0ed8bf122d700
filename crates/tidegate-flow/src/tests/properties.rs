//! Properties that hold for any messages.

use proptest::prelude::*;

use super::*;

/// Every operator with state, and filters between them.
const ALL: &str = r##"
topics = ["#"]
bad = "last-good"
forward = "kept"
parse = { format = "csv", fields = ["x", { name = "z", optional = true }, { name = "s", type = "text", optional = true }] }
step = [
    { kernel = "range-filter", field = "x", min = -1e6, max = 1e6 },
    { kernel = "interpolate", field = "z", window = 3 },
    { kernel = "kalman", field = "x" },
    { kernel = "average", field = "x" },
    { kernel = "average", field = "x", into = "a", window = { sliding = 4 } },
    { kernel = "min", field = "x", into = "b", window = { sliding = "3s" } },
    { kernel = "max", field = "z", into = "c", window = { tumbling = "2s", hold = true } },
    { kernel = "count", into = "d", window = { tumbling = 3 } },
    { kernel = "distinct-count", field = "s", precision = 4 },
    { kernel = "second-order-moment", field = "x", averages = 8, groups = 3 },
    { kernel = "sliding-regression", field = "x", window = 5 },
    { kernel = "threshold", field = "x", above = 10, hysteresis = 5, fires = "change" },
    { kernel = "notify", topic = "over/{topic}", fields = ["x"], when = "x_over" },
    { kernel = "bloom-filter", field = "x", expected = 50, learn = true, keep = "new" },
    { kernel = "replace", fields = ["x", "z", "s", "x_kalman", "x_average", "a", "b", "c", "d", "s_distinct", "x_moment", "x_trend", "x_prediction"] },
    { kernel = "notify", topic = "all/{topic}", payload = "{field:x_kalman}" },
]
"##;

fn any_payload() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        4 => (-500_i32..500).prop_map(|number| (f64::from(number) / 10.0).to_string()),
        1 => Just(String::new()),
        1 => Just("x".to_owned()),
    ];
    (number.clone(), number, "[a-c]{0,2}").prop_map(|(x, z, s)| format!("{x},{z},{s}"))
}

fn any_messages() -> impl Strategy<Value = Vec<(u8, String)>> {
    prop::collection::vec((0_u8..6, any_payload()), 1..600)
}

const TOPICS: [&str; 6] =
    ["a", "b", "a/b", "long/topic/with/levels/that/does/not/fit/a/block/of/48/bytes", "", "x"];

fn run_all(flow: &mut Flow, at: i64, messages: &[(u8, String)]) -> Outcome {
    let now = Instant::from_millis(at);
    let messages: Vec<_> = messages
        .iter()
        .map(|(topic, payload)| (TOPICS[usize::from(*topic)], payload.as_bytes()))
        .collect();
    run(flow, now, &messages)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_batch_is_as_many_batches_of_one(messages in any_messages()) {
        let (mut whole, mut single) = (flow(ALL), flow(ALL));
        let expected = run_all(&mut whole, 1, &messages);
        let mut found = Outcome::default();
        for (index, message) in messages.iter().enumerate() {
            let one = run_all(&mut single, 1, std::slice::from_ref(message));
            found.verdicts.extend(one.verdicts);
            found.emissions.extend(one.emissions.into_iter().map(|(_, t, p)| (index, t, p)));
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(whole.stats(), single.stats());
        prop_assert_eq!(whole.snapshot(), single.snapshot());
    }

    #[test]
    fn after_a_snapshot_all_goes_on_as_before(
        before in any_messages(),
        after in any_messages(),
        pause in 0_i64..5_000,
    ) {
        let mut lasting = flow(ALL);
        run_all(&mut lasting, 1, &before);
        let mut restored = flow(ALL);
        let what = restored.restore(&lasting.snapshot()).unwrap();
        prop_assert_eq!((what.keys_left_out, what.dropped, what.began_anew.len()), (0, 0, 0));
        let expected = run_all(&mut lasting, 1 + pause, &after);
        prop_assert_eq!(run_all(&mut restored, 1 + pause, &after), expected);
    }

    /// Any words with a right checksum are a state that messages can come to.
    #[test]
    fn no_snapshot_brings_a_flow_down(words in any::<u64>(), messages in any_messages()) {
        let mut flow = flow(ALL);
        run_all(&mut flow, 1, &messages);
        let mut snapshot = flow.snapshot();
        let end = snapshot.len() - 4;
        // All state, behind what describes it and the first key.
        let start = 300.min(end);
        for (index, byte) in snapshot[start..end].iter_mut().enumerate() {
            *byte = (words.rotate_left(index as u32 % 64) & 0xff) as u8;
        }
        let sum = crc32c::crc32c(&snapshot[..end]);
        snapshot[end..].copy_from_slice(&sum.to_le_bytes());
        let _ = flow.restore(&snapshot);
        run_all(&mut flow, 2, &messages);
    }

    #[test]
    fn windows_say_what_a_second_look_says(
        values in prop::collection::vec(-1000_i32..1000, 1..200),
        size in 1_usize..40,
    ) {
        let toml = r##"
topics = ["#"]
parse = { format = "csv", fields = ["x"] }
step = [
    { kernel = "average", field = "x", into = "average", window = { sliding = SIZE } },
    { kernel = "min", field = "x", into = "min", window = { sliding = SIZE } },
    { kernel = "max", field = "x", into = "max", window = { sliding = SIZE } },
    { kernel = "count", field = "x", into = "count", window = { sliding = SIZE } },
    { kernel = "notify", topic = "out", payload = "{field:min} {field:max} {field:count} {field:average:6}" },
]
"##;
        let mut flow = flow(&toml.replace("SIZE", &size.to_string()));
        let payloads: Vec<String> = values.iter().map(i32::to_string).collect();
        let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
        let found = published(&mut flow, &payloads);
        for (index, found) in found.iter().enumerate() {
            let window = &values[(index + 1).saturating_sub(size)..=index];
            let mean = f64::from(window.iter().sum::<i32>()) / window.len() as f64;
            let (min, max) = (window.iter().min().unwrap(), window.iter().max().unwrap());
            let expected = format!("{min} {max} {} {:.6}", window.len(), mean + 0.0);
            let (found_mean, expected_mean) =
                (found.rsplit_once(' ').unwrap(), expected.rsplit_once(' ').unwrap());
            prop_assert_eq!(found_mean.0, expected_mean.0);
            let difference =
                found_mean.1.parse::<f64>().unwrap() - expected_mean.1.parse::<f64>().unwrap();
            prop_assert!(difference.abs() < 2e-6, "{} {}", found, expected);
        }
    }

    #[test]
    fn no_payload_brings_a_flow_down(
        payload in prop::collection::vec(any::<u8>(), 0..200),
        text in "[\\[\\]{}\",:0-9etbnvx\\\\u. \n-]{0,80}",
    ) {
        for format in ["csv", "json", "senml-json", "cbor", "senml-cbor"] {
            let toml = ALL.replace("format = \"csv\"", &format!("format = \"{format}\""));
            let mut flow = flow(&toml);
            for payload in [&payload[..], text.as_bytes()] {
                run(&mut flow, Instant::EPOCH, &[("a", payload), ("a", payload)]);
            }
        }
    }
}

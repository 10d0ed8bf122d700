//! Costs in bytes: figures that a change should not make worse unseen.

use super::*;

/// Bytes a message once all topics are known, without compression, in batches of 100.
fn bytes_each(messages: &[Owned], warm: usize) -> f64 {
    let mut pair = Pair::new(EncoderConfig::default());
    pair.send(&messages[..warm], 100);
    let before = pair.wire_bytes;
    pair.send(&messages[warm..], 100);
    (pair.wire_bytes - before) as f64 / (messages.len() - warm) as f64
}

#[test]
fn a_field_that_does_not_change_costs_nothing() {
    let line =
        |n: usize| (b"t".to_vec(), vec![], format!("constant,{n},7.50,also constant").into_bytes());
    let messages: Vec<_> = (0..2000).map(line).collect();
    let bytes = bytes_each(&messages, 1000);
    assert!(bytes < 2.4, "a counter that is predicted, its number and its mask: {bytes}");
}

#[test]
fn clocks_are_predicted_whether_they_agree_or_have_a_period() {
    for (what, limit) in [("one clock", 2.4), ("a period each", 2.6), ("a counter each", 2.6)] {
        let messages: Vec<_> = (0..20_000u64)
            .map(|n| {
                let (device, round) = (n % 50, n / 50);
                let time = match what {
                    "one clock" => 1_422_748_800_000 + n / 10 * 1000,
                    "a period each" => {
                        1_422_748_800_000 + round * 15_000 + device * device * 7919 % 100_000
                    }
                    _ => device * 100_000 + round,
                };
                (
                    format!("t/{device}").into_bytes(),
                    vec![],
                    format!("{time},x{device}").into_bytes(),
                )
            })
            .collect();
        let bytes = bytes_each(&messages, 10_000);
        assert!(bytes < limit, "{what}: {bytes}");
    }
}

#[test]
fn numbers_without_their_last_zeros_stay_numbers() {
    let messages: Vec<_> = (0..4000i32)
        .map(|n| {
            let value = 200 + n * 7 % 50;
            let text = if value % 10 == 0 {
                format!("{}", value / 10)
            } else {
                format!("{}.{}", value / 10, value % 10)
            };
            (b"t".to_vec(), vec![], format!("{text},steady").into_bytes())
        })
        .collect();
    let bytes = bytes_each(&messages, 2000);
    assert!(bytes < 3.5, "{bytes}");
}

#[test]
fn json_costs_hardly_more_than_the_same_values_as_csv() {
    let value = |n: u32| 200 + n * 7 % 50;
    let csv: Vec<_> = (0..2000)
        .map(|n| (b"t".to_vec(), vec![], format!("{},{}", n, value(n)).into_bytes()))
        .collect();
    let json: Vec<_> = (0..2000)
        .map(|n| {
            let text = format!(
                "{{\"bt\":{n},\"e\":[{{\"n\":\"temperature\",\"u\":\"Cel\",\"v\":\"{}\"}}]}}",
                value(n)
            );
            (b"t".to_vec(), vec![], text.into_bytes())
        })
        .collect();
    let (csv, json) = (bytes_each(&csv, 1000), bytes_each(&json, 1000));
    assert!(json < csv + 0.1, "{json} against {csv}");
}

#[test]
fn a_topic_takes_at_most_a_hundred_bytes_beyond_its_last_message() {
    for kind in Workload::ALL {
        let messages = workload(kind, 20_000, 20_000, Form::Natural);
        let mut pair = Pair::new(EncoderConfig::default());
        pair.send(&messages, 1000);
        let kept: usize = {
            let mut last = std::collections::BTreeMap::new();
            for (topic, attributes, payload) in &messages {
                last.insert(topic, topic.len() + attributes.len() + payload.len());
            }
            last.values().sum()
        };
        for (side, bytes) in
            [("encoder", pair.encoder.memory_bytes()), ("decoder", pair.decoder.memory_bytes())]
        {
            let beyond = (bytes - kept) as f64 / pair.encoder.topics() as f64;
            assert!(beyond < 100.0, "{kind}, {side}: {beyond:.0} B");
        }
    }
}

//! The bytes of batches, so that a change of the format is noticed: old batches are still on their way when a node is exchanged.

use super::*;

/// Batches of [`messages`], of version 1: a line for each, in hexadecimal.
const GOLDEN: &str = include_str!("../../testdata/batches-1.txt");

/// Twelve topics, six rounds, in all layouts that are found by themselves.
fn messages() -> Vec<Owned> {
    let mut messages = Vec::new();
    for round in 0..6u32 {
        for device in 0..2u32 {
            let time = 1_422_748_800_000 + u64::from(round) * 15_000;
            let value = 215 + round * 7 % 11 + device;
            for (kind, payload) in [
                (
                    "csv",
                    format!(
                        "{time},d{device},{}.{},{},7.50",
                        value / 10,
                        value % 10,
                        round * round
                    ),
                ),
                ("json", format!("{{\"bt\":{time},\"e\":[{{\"n\":\"t\",\"v\":\"{value}\"}}]}}")),
                ("line", format!("cpu,host=h{device} load={}.25 {time}", round % 4)),
                ("text", if round % 3 == 2 { "off,0".to_owned() } else { format!("on,{round}") }),
                ("odd", "1,2".repeat(1 + (round % 2) as usize)),
                ("blob", format!("\u{1}{}\u{2}same", "x".repeat(round as usize))),
            ] {
                let topic = format!("site/{kind}/{device}").into_bytes();
                messages.push((topic, vec![1; device as usize], payload.into_bytes()));
            }
        }
    }
    messages
}

#[test]
fn batches_are_those_of_before() {
    let messages = messages();
    let mut made = String::new();
    for columns in [false, true] {
        let mut encoder = Encoder::new(EncoderConfig { columns, ..EncoderConfig::default() }, 3, 1);
        for some in messages.chunks(20) {
            for (topic, attributes, payload) in some {
                encoder.push(Message { topic, attributes, payload }).unwrap();
            }
            let mut batch = Vec::new();
            encoder.finish(&mut batch).unwrap();
            made.extend(batch.iter().map(|byte| format!("{byte:02x}")));
            made.push('\n');
        }
    }
    assert_eq!(made, GOLDEN, "a change of the format needs a new version");
}

#[test]
fn batches_of_before_are_still_read() {
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16);
    let batches = GOLDEN.lines().map(|line| line.as_bytes().chunks(2).map(|it| byte(it).unwrap()));
    let batches: Vec<Vec<u8>> = batches.map(Iterator::collect).collect();
    for batches in batches.chunks(batches.len() / 2) {
        let (mut decoder, mut decoded) =
            (Decoder::new(DecoderConfig::default(), 3), Decoded::default());
        let mut came = Vec::new();
        for batch in batches {
            decoder.decode(batch, &mut decoded).unwrap();
            came.extend(owned(&decoded));
        }
        assert_eq!(came, messages());
    }
}

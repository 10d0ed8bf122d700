//! Payloads that are kept packed, while what their schema knows of them changes.

use super::*;
use crate::{
    batch::{Header, Packing},
    encode::KEPT_BYTES_MAX,
    varint,
};

/// A payload in which the first numbers are those of `seed`, of two digits, and each of the others is `rest`.
fn line(fields: usize, changing: usize, seed: u32, rest: impl Fn(usize) -> String) -> Vec<u8> {
    let changes = |field: usize| {
        let mixed = (seed * 31 + field as u32 + 1).wrapping_mul(2_654_435_761) >> 16;
        (10 + mixed % 90).to_string()
    };
    let text = |field| if field < changing { changes(field) } else { rest(field) };
    (0..fields).map(text).collect::<Vec<_>>().join(",").into_bytes()
}

#[test]
fn slots_that_are_new_leave_packed_payloads_as_they_are() {
    for columns in [false, true] {
        let mut pair = Pair::new(EncoderConfig { columns, ..EncoderConfig::default() });
        let message = |topic: &str, seed, rest: &str| -> Owned {
            let payload = line(20, 2, seed, |_| rest.to_owned());
            (topic.as_bytes().to_vec(), vec![], payload)
        };
        // The schema is dense after so many, and the topic is packed with two numbers.
        pair.send(&(0..300).map(|n| message("a", n, "5")).collect::<Vec<_>>(), 10);
        // Now all fields are numbers.
        pair.send(&[message("b", 1, "6"), message("b", 2, "7")], 1);
        pair.send(&(300..310).map(|n| message("a", n, "5")).collect::<Vec<_>>(), 1);
    }
}

/// A batch with a row that no encoder makes, and no messages.
fn forged(sequence: u64, body: &[u8]) -> Vec<u8> {
    let header = Header {
        epoch: 7,
        sequence,
        messages: 0,
        message_bytes: 0,
        body_bytes: body.len() as u32,
        checksum: crc32c::crc32c(body),
        is_columns: false,
        packing: Packing::Plain,
    };
    let mut batch = Vec::new();
    header.put(&mut batch);
    batch.extend_from_slice(body);
    batch
}

#[test]
fn numbers_that_make_a_payload_too_long_cost_their_topic_and_no_more() {
    let payload = |n: u64| -> Vec<u8> {
        let number = |k: u64| (1_000_000 + n * 7919 + k).to_string();
        let fields = (0..20).map(|k| format!("{},{}", number(k), "x".repeat(195)));
        fields.collect::<Vec<_>>().join(",").into_bytes()
    };
    assert_eq!(payload(0).len(), KEPT_BYTES_MAX - 17);
    let mut pair = Pair::new(EncoderConfig::default());
    pair.send(&(0..300).map(|n| (b"t".to_vec(), vec![], payload(n))).collect::<Vec<_>>(), 10);
    pair.send(&texts("other", &["1,2", "1,3"]), 2);
    let others = (64 + 2 + "other".len() + "1,3".len()) as u64;
    // All twenty slots have tokens, and all numbers have ten digits more.
    let mut body = vec![0, 0xff, 0xff, 0x1f];
    for _ in 0..20 {
        varint::put(&mut body, varint::zigzag(100_000_000_000_000_000));
    }
    let sequence = pair.decoder.sequence();
    let error = pair.decoder.decode(&forged(sequence, &body), &mut pair.decoded).unwrap_err();
    let expected = DecodeError::Record { what: "a payload that is too long to be kept" };
    assert_eq!(error, expected);
    assert_eq!((pair.decoder.topics(), pair.decoder.state_bytes()), (1, others));
    // The encoder goes back there, and what comes next is taken.
    pair.encoder.resume(7, sequence).unwrap();
    let shard = 0;
    pair.decoder.reset_shard(shard);
    pair.encoder.reset_shard(shard);
    pair.send(&[(b"t".to_vec(), vec![], payload(300))], 1);
}

#[test]
fn payloads_of_short_numbers_take_no_more_memory_than_is_counted() {
    let mut pair = Pair::new(EncoderConfig::default());
    let mut round = 0;
    // The numbers have one digit, then nine, so that they are packed, and then one again.
    for (base, step) in [(0, 1), (100_000_000, 7919), (0, 1), (0, 1)] {
        for _ in 0..10 {
            round += 1;
            let messages: Vec<Owned> = (0..100)
                .map(|topic: usize| {
                    let number = |k| base + (round * 3 + topic * 7 + k) % 10 * step;
                    let numbers: Vec<_> = (0..40).map(|k| number(k).to_string()).collect();
                    (format!("t/{topic}").into_bytes(), vec![], numbers.join(",").into_bytes())
                })
                .collect();
            pair.send(&messages, 10);
        }
        let counted = pair.decoder.state_bytes() as usize;
        for bytes in [pair.encoder.memory_bytes(), pair.decoder.memory_bytes()] {
            assert!(bytes <= counted * 9 / 8, "{bytes} bytes, {counted} counted, from {base}");
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[0-9]{1,2}",
        1 => "-?[0-9]{1,12}(\\.[0-9]{1,4})?",
        1 => "[a-z]{0,2}",
        1 => "[\u{80}-\u{ff}]{1,3}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Constants that begin to change once payloads are packed, and numbers that change their length.
    #[test]
    fn fields_that_begin_to_change_come_back(
        fields in 20usize..42,
        changing in 1usize..20,
        later in proptest::collection::vec((0u32..400, 0usize..3, proptest::collection::vec((0usize..42, text()), 0..12)), 0..60),
        per_batch in 1usize..40,
        columns: bool,
    ) {
        let mut others = vec![vec!["5".to_owned(); fields]; 3];
        let mut messages: Vec<Owned> = (0..300)
            .map(|n| (b"t/0".to_vec(), vec![], line(fields, changing, n, |_| "5".to_owned())))
            .collect();
        for (seed, topic, texts) in later {
            for (field, text) in texts {
                others[topic][field % fields] = text;
            }
            let payload = line(fields, changing, seed, |field| others[topic][field].clone());
            messages.push((format!("t/{topic}").into_bytes(), vec![], payload));
        }
        Pair::new(EncoderConfig { columns, ..EncoderConfig::default() }).send(&messages, per_batch);
    }
}

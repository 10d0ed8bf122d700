//! Excess is refused by name, and state without room is forgotten.

use super::*;

fn message(topic: u32, value: u32) -> Owned {
    (format!("devices/{topic}").into_bytes(), vec![], format!("{value},{}", value % 7).into_bytes())
}

#[test]
fn topics_beyond_the_limit_push_out_others_on_both_sides() {
    let config = EncoderConfig { topics_max: 100, ..EncoderConfig::default() };
    let mut pair = Pair::new(config);
    pair.decoder = Decoder::new(DecoderConfig { topics_max: 100, ..DecoderConfig::default() }, 7);
    for round in 0..4 {
        let messages: Vec<_> = (0..1000).map(|topic| message(topic, round)).collect();
        pair.send(&messages, 50);
        assert_eq!((pair.encoder.topics(), pair.decoder.topics()), (100, 100));
    }
    assert_eq!(pair.encoder.counts().evictions, 3900);
}

#[test]
fn used_topics_stay_and_unused_ones_go() {
    let config = EncoderConfig { topics_max: 100, ..EncoderConfig::default() };
    let mut pair = Pair::new(config);
    // Ten topics come every time, hundreds of others once.
    for round in 0..50 {
        let messages: Vec<_> = (0..10)
            .map(|topic| message(topic, round))
            .chain((0..20).map(|one| message(1000 + round * 20 + one, 1)))
            .collect();
        pair.send(&messages, 30);
    }
    let before = pair.encoder.counts().definitions;
    pair.send(&(0..10).map(|topic| message(topic, 99)).collect::<Vec<_>>(), 10);
    assert_eq!(pair.encoder.counts().definitions, before, "the ten are still known");
}

#[test]
fn bytes_of_state_are_kept_within_their_limit() {
    let config = EncoderConfig { state_bytes_max: 20_000, ..EncoderConfig::default() };
    let mut pair = Pair::new(config);
    let decoder = DecoderConfig { state_bytes_max: 20_000, ..DecoderConfig::default() };
    pair.decoder = Decoder::new(decoder, 7);
    for round in 0..5 {
        let messages: Vec<_> = (0..300)
            .map(|topic: u32| {
                let payload = "x".repeat((topic * 31 + round * 17) as usize % 900);
                (format!("t/{topic}").into_bytes(), vec![], payload.into_bytes())
            })
            .collect();
        pair.send(&messages, 5);
        assert!(pair.encoder.state_bytes() <= 20_000, "{}", pair.encoder.state_bytes());
    }
}

#[test]
fn a_batch_that_is_made_of_all_topics_there_may_be_asks_to_be_finished() {
    let config = EncoderConfig { topics_max: 10, ..EncoderConfig::default() };
    let mut encoder = Encoder::new(config, 7, 1);
    for number in 0..10 {
        let (topic, attributes, payload) = message(number, 1);
        encoder
            .push(Message { topic: &topic, attributes: &attributes, payload: &payload })
            .unwrap();
    }
    let (topic, attributes, payload) = message(10, 1);
    let next = Message { topic: &topic, attributes: &attributes, payload: &payload };
    assert_eq!(encoder.push(next), Err(EncodeError::Full));
    encoder.finish(&mut Vec::new()).unwrap();
    encoder.push(next).unwrap();
}

#[test]
fn large_messages_come_back_and_are_not_kept() {
    let mut pair = Pair::new(EncoderConfig::default());
    let large = |byte: u8, len: usize| (b"large".to_vec(), vec![], vec![byte; len]);
    let small = || (b"large".to_vec(), vec![], b"1,2".to_vec());
    pair.send(
        &[large(1, 1 << 20), large(2, 1 << 20), small(), small(), large(3, 5000), small()],
        2,
    );
    assert!(pair.encoder.state_bytes() < 1000);
    let longest = vec![0; PAYLOAD_BYTES_MAX];
    pair.send(&[(b"longest".to_vec(), vec![], longest)], 1);
}

#[test]
fn parts_that_are_too_long_are_named() {
    let mut encoder = Encoder::new(EncoderConfig::default(), 7, 1);
    let long = vec![b'x'; PAYLOAD_BYTES_MAX + 1];
    for (message, what) in [
        (Message { topic: &long[..65_536], attributes: b"", payload: b"" }, "topic"),
        (Message { topic: b"t", attributes: &long[..65_536], payload: b"" }, "attributes"),
        (Message { topic: b"t", attributes: b"", payload: &long }, "payload"),
    ] {
        let error = encoder.push(message).unwrap_err();
        assert!(
            matches!(error, EncodeError::TooLong { what: found, .. } if found == what),
            "{error}"
        );
    }
    assert_eq!(encoder.finish(&mut Vec::new()), None, "nothing was taken");
}

#[test]
fn a_decoder_takes_no_more_than_its_limits() {
    let mut encoder = Encoder::new(
        EncoderConfig { compression: Compression::Zstd(1), ..EncoderConfig::default() },
        7,
        1,
    );
    let payload = vec![0; 1 << 20];
    encoder.push(Message { topic: b"t", attributes: b"", payload: &payload }).unwrap();
    let mut batch = Vec::new();
    encoder.finish(&mut batch).unwrap();
    assert!(batch.len() < 1000, "a megabyte of zeros is {} bytes", batch.len());
    let config = DecoderConfig { body_bytes_max: 1 << 16, ..DecoderConfig::default() };
    let error = Decoder::new(config, 7).decode(&batch, &mut Decoded::default()).unwrap_err();
    assert!(
        matches!(error, DecodeError::Limit { what: "bytes of body", max: 65_536, .. }),
        "{error}"
    );

    let mut encoder = Encoder::new(EncoderConfig::default(), 7, 1);
    for number in 0..20 {
        let (topic, attributes, payload) = message(number, 1);
        encoder
            .push(Message { topic: &topic, attributes: &attributes, payload: &payload })
            .unwrap();
    }
    batch.clear();
    encoder.finish(&mut batch).unwrap();
    let config = DecoderConfig { topics_max: 19, ..DecoderConfig::default() };
    let error = Decoder::new(config, 7).decode(&batch, &mut Decoded::default()).unwrap_err();
    assert!(matches!(error, DecodeError::Limit { what: "topics", found: 20, max: 19 }), "{error}");
}

#[test]
fn a_header_that_claims_four_gigabytes_takes_none() {
    let mut batch = vec![0x10];
    for value in [7u64, 0, 1, u64::from(u32::MAX), u64::from(u32::MAX)] {
        crate::varint::put(&mut batch, value);
    }
    batch.extend_from_slice(&[0; 10]);
    let count = allocation_counter::measure(|| {
        let error = Decoder::new(DecoderConfig::default(), 7)
            .decode(&batch, &mut Decoded::default())
            .unwrap_err();
        assert!(matches!(error, DecodeError::Limit { what: "bytes of messages", .. }), "{error}");
    });
    assert!(count.bytes_max < 10_000, "{count:?}");
}

#[test]
fn a_batch_of_more_new_topics_than_there_is_room_for_is_taken() {
    let config = EncoderConfig { state_bytes_max: 20_000, ..EncoderConfig::default() };
    let mut pair = Pair::new(config);
    let decoder = DecoderConfig { state_bytes_max: 20_000, ..DecoderConfig::default() };
    pair.decoder = Decoder::new(decoder, 7);
    for round in 0..3 {
        let messages: Vec<_> = (0..1000).map(|topic| message(topic, round)).collect();
        pair.send(&messages, 1000);
    }
}

#[test]
fn a_payload_that_was_long_once_does_not_keep_its_room() {
    let mut pair = Pair::new(EncoderConfig { layout: Layout::Opaque, ..EncoderConfig::default() });
    let messages = |payload: &[u8]| -> Vec<Owned> {
        (0..100)
            .map(|topic: u32| (topic.to_le_bytes().to_vec(), vec![], payload.to_vec()))
            .collect()
    };
    pair.send(&messages(&[7; 4096]), 10);
    pair.send(&messages(b"x"), 10);
    for bytes in [pair.encoder.memory_bytes(), pair.decoder.memory_bytes()] {
        assert!(bytes < 100 * 150, "{bytes} bytes for a hundred topics of one byte");
    }
}

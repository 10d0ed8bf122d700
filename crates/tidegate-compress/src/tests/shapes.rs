//! More shapes than there may be schemas: their numbers are used again, and nothing is cut by what they stood for before.

use super::{loss::Link, *};
use crate::{
    batch::{Header, Packing},
    encode::SCHEMAS_MAX,
    varint,
};

/// A payload of one of 10,000 shapes with two numbers far from each other, so that it is short as a row only if it is cut.
fn payload(shape: u32, value: u32) -> Vec<u8> {
    let space = |power: u32| " ".repeat((shape / 10u32.pow(power) % 10) as usize);
    let (first, last) = (value % 90 + 10, value * 7 % 90 + 10);
    let text = format!(
        "{{\"first\":{}{first},\"constant\":{}\"of-thirty-bytes-in-one-field-\",\"other\":{}1,\"last\":{}{last}}}",
        space(0),
        space(1),
        space(2),
        space(3)
    );
    text.into_bytes()
}

fn message(topic: u32, shape: u32, value: u32) -> Owned {
    (format!("t/{topic}").into_bytes(), vec![], payload(shape, value))
}

/// Most bytes of a row that is cut: head, mask and two tokens.
const ROW_BYTES_MAX: usize = 8;

/// Sends a message in a batch of its own; returns how long it is there, without the header.
fn send_alone(pair: &mut Pair, message: &Owned) -> usize {
    let (topic, attributes, payload) = message;
    pair.encoder.push(Message { topic, attributes, payload }).unwrap();
    pair.batch.clear();
    let header = pair.encoder.finish(&mut pair.batch).unwrap();
    pair.decoder.decode(&pair.batch, &mut pair.decoded).unwrap();
    assert_eq!(owned(&pair.decoded), std::slice::from_ref(message));
    header.body_bytes as usize
}

#[test]
fn ten_thousand_shapes_in_turn_are_all_cut() {
    for columns in [false, true] {
        let mut pair = Pair::new(EncoderConfig { columns, ..EncoderConfig::default() });
        for shape in 0..10_000 {
            // The first row brings slots, the second has them.
            send_alone(&mut pair, &message(shape % 5, shape, 1));
            send_alone(&mut pair, &message(shape % 5, shape, 2));
            let bytes = send_alone(&mut pair, &message(shape % 5, shape, 3));
            assert!(bytes <= ROW_BYTES_MAX + 8 * usize::from(columns), "shape {shape}: {bytes}");
        }
        assert_eq!(pair.encoder.state_bytes(), pair.decoder.state_bytes());
    }
}

#[test]
fn shapes_of_topics_that_were_evicted_make_room() {
    let config = EncoderConfig { topics_max: 3, ..EncoderConfig::default() };
    let mut pair = Pair::new(config);
    for shape in 0..10_000 {
        for value in 1..3 {
            send_alone(&mut pair, &message(shape, shape, value));
        }
        let bytes = send_alone(&mut pair, &message(shape, shape, 3));
        assert!(bytes <= ROW_BYTES_MAX, "shape {shape}: {bytes}");
    }
    assert_eq!((pair.encoder.topics(), pair.decoder.topics()), (3, 3));
}

#[test]
fn a_topic_for_whose_shape_there_was_no_schema_gets_one_that_becomes_free() {
    let mut pair = Pair::new(EncoderConfig::default());
    let all = SCHEMAS_MAX as u32;
    pair.send(&(0..all).map(|shape| message(shape, shape, 1)).collect::<Vec<_>>(), 100);
    for value in 1..9 {
        let bytes = send_alone(&mut pair, &message(all, all, value));
        assert!(bytes > 30, "in one piece: {bytes}");
    }
    // The first topic takes on the shape of the second.
    send_alone(&mut pair, &message(0, 1, 1));
    let before = pair.encoder.counts().definitions;
    for value in 1..3 {
        send_alone(&mut pair, &message(all, all, value));
    }
    assert_eq!(pair.encoder.counts().definitions - before, 1);
    assert!(send_alone(&mut pair, &message(all, all, 3)) <= ROW_BYTES_MAX);
    // All others are cut as they were.
    pair.send(&(0..all).map(|shape| message(shape, shape.max(1), 2)).collect::<Vec<_>>(), 100);
    assert_eq!(pair.encoder.counts().definitions - before, 1);
}

/// A batch with a body that no encoder makes, and a checksum that fits the messages that should come of it.
fn forged(sequence: u64, body: &[u8], messages: &[Owned]) -> Vec<u8> {
    let whole: Vec<u8> = messages
        .iter()
        .flat_map(|(topic, attributes, payload)| [topic.as_slice(), attributes, payload].concat())
        .collect();
    let header = Header {
        epoch: 7,
        sequence,
        messages: messages.len() as u32,
        message_bytes: whole.len() as u32,
        body_bytes: body.len() as u32,
        checksum: crc32c::crc32c_append(crc32c::crc32c(&whole), body),
        is_columns: false,
        packing: Packing::Plain,
    };
    let mut batch = Vec::new();
    header.put(&mut batch);
    batch.extend_from_slice(body);
    batch
}

/// The record of a schema of comma-separated fields.
fn csv(id: u8, fields: u8) -> Vec<u8> {
    vec![1, 4, id, 0, b',', fields]
}

/// The record that defines the topic that comes next, or a number again.
fn definition(head: u8, topic: Option<&[u8]>, schema: u8, payload: &[u8]) -> Vec<u8> {
    let mut record = vec![head, u8::from(topic.is_none())];
    if let Some(topic) = topic {
        record.extend_from_slice(&[0, topic.len() as u8]);
        record.extend_from_slice(topic);
    }
    record.extend_from_slice(&[0, schema, 0]);
    varint::put(&mut record, payload.len() as u64);
    record.extend_from_slice(payload);
    record
}

#[test]
fn a_schema_that_is_used_cannot_become_another() {
    let another = DecodeError::Record { what: "a schema that has become another" };
    let first = texts("t", &["1,2"]);
    let define = [csv(1, 2), definition(1, Some(b"t"), 1, b"1,2")].concat();
    let start = || {
        let mut decoder = Decoder::new(DecoderConfig::default(), 7);
        decoder.decode(&forged(0, &define, &first), &mut Decoded::default()).unwrap();
        decoder
    };
    let mut decoded = Decoded::default();
    // A slot, and a row in which it has changed: of the topic as it is, 1,2 and then 1,3.
    let row = [&[1, 5, 1, 1, 0, 1, 0][..], &[0, 1, 2]].concat();
    let second = texts("t", &["1,3"]);

    for fields in [1, 3, 255] {
        let mut decoder = start();
        let body = [csv(1, fields), row.clone()].concat();
        assert_eq!(decoder.decode(&forged(1, &body, &second), &mut decoded), Err(another));
        assert!(decoded.is_empty());
        decoder.decode(&forged(1, &row, &second), &mut decoded).unwrap();
        assert_eq!(owned(&decoded), second, "{fields} fields changed nothing");
    }
    // In the batch in which the topic is defined.
    let mut decoder = Decoder::new(DecoderConfig::default(), 7);
    let body = [define.clone(), csv(1, 3)].concat();
    assert_eq!(decoder.decode(&forged(0, &body, &first), &mut decoded), Err(another));
    assert_eq!((decoder.topics(), decoder.state_bytes()), (0, 0));
    decoder.decode(&forged(0, &define, &first), &mut decoded).unwrap();

    // Without the topic it can, and the topic is not known then.
    let undefine = vec![1, 2];
    let mut decoder = start();
    let body = [undefine.clone(), csv(1, 3), vec![2, 1, 2]].concat();
    let error = decoder.decode(&forged(1, &body, &second), &mut decoded).unwrap_err();
    assert!(matches!(error, DecodeError::UnknownTopic { number: 0 }), "{error}");
    // A topic that was of its shape before is so no more.
    let mut decoder = start();
    let body = [undefine.clone(), csv(1, 3), definition(3, Some(b"t"), 1, b"1,3")].concat();
    let error = decoder.decode(&forged(1, &body, &second), &mut decoded).unwrap_err();
    assert!(matches!(error, DecodeError::Record { .. }), "{error}");
    let mut decoder = start();
    let third = texts("t", &["1,2,3"]);
    let body = [undefine, csv(1, 3), definition(3, Some(b"t"), 1, b"1,2,3")].concat();
    decoder.decode(&forged(1, &body, &third), &mut decoded).unwrap();
    assert_eq!(owned(&decoded), third);
    // A topic that has gone over to another schema holds the first no more.
    let mut decoder = start();
    let body = [csv(2, 3), definition(1, None, 2, b"1,2,3"), csv(1, 4)].concat();
    decoder.decode(&forged(1, &body, &third), &mut decoded).unwrap();
}

/// Numbers of a seed, one after the other.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}

#[test]
fn shapes_that_take_turns_come_back_over_a_link_that_breaks() {
    for seed in 0..60 {
        let mut numbers = Numbers(seed);
        // Few schemas are free for twelve topics, so that a number that has just become free is used again.
        let fillers = SCHEMAS_MAX as u32 - numbers.below(16);
        let config = EncoderConfig {
            columns: seed % 2 == 1,
            topics_max: fillers as usize + if seed % 3 == 0 { 6 } else { 100 },
            body_bytes: if seed % 4 == 0 { 1 } else { 64 << 10 },
            ..EncoderConfig::default()
        };
        let mut link = Link::new(config);
        link.sent = (0..fillers).map(|shape| message(100 + shape, shape, 1)).collect();
        for batch in link.encode(0, 500) {
            link.decode(&batch).unwrap();
        }
        let mut shapes = [0; 12];
        for round in 0..60 {
            for _ in 0..numbers.below(40) {
                let topic = numbers.below(12);
                if numbers.below(3) == 0 {
                    shapes[topic as usize] = numbers.below(10_000);
                }
                link.sent.push(message(topic, shapes[topic as usize], numbers.below(1000)));
            }
            let at = link.received.len();
            let mut batches = link.encode(at, 1 + numbers.below(4) as usize);
            if batches.is_empty() {
                continue;
            }
            // Batches after the first that is lost or damaged are lost as well.
            let len = batches.len();
            let fails = numbers.below(2 * len as u32) as usize;
            let is_damaged = fails < len && numbers.below(2) == 0;
            if is_damaged {
                let place = numbers.below(batches[fails].len() as u32) as usize;
                batches[fails][place] ^= 1 << numbers.below(8);
            }
            let arriving = (fails + usize::from(is_damaged)).min(len);
            let lost_shard = batches[..arriving].iter().find_map(|batch| {
                let error = link.decode(batch).err()?;
                let shard = error.lost_shard();
                assert!(is_damaged || shard.is_some(), "seed {seed}, round {round}: {error}");
                Some(shard)
            });
            if fails < len || lost_shard.is_some() || numbers.below(4) == 0 {
                assert_eq!(link.resume(), link.received.len());
            }
            if let Some(shard) = lost_shard.flatten() {
                link.decoder.reset_shard(shard);
                link.encoder.reset_shard(shard);
            }
        }
        // The end is not sent yet, or was lost.
        link.resume();
        while link.received.len() < link.sent.len() {
            let at = link.received.len();
            for batch in link.encode(at, 3) {
                let Err(error) = link.decode(&batch) else { continue };
                let shard = error.lost_shard().unwrap_or_else(|| panic!("seed {seed}: {error}"));
                link.resume();
                link.decoder.reset_shard(shard);
                link.encoder.reset_shard(shard);
                break;
            }
        }
        assert!(link.received == link.sent, "seed {seed}");
    }
}

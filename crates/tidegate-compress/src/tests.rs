//! The output equals the input, whatever happens in between.

use proptest::prelude::*;
use tidegate_load::sensors::{Form, Generator, Workload};

use crate::{
    BinaryField, BinaryKind, Compression, DecodeError, Decoded, Decoder, DecoderConfig,
    EncodeError, Encoder, EncoderConfig, Layout, Message, PAYLOAD_BYTES_MAX, ResumeError, SHARDS,
};

mod golden;
mod limits;
mod loss;
mod packed;
mod shapes;
mod sizes;

type Owned = (Vec<u8>, Vec<u8>, Vec<u8>);

/// An encoder and a decoder without anything between them.
struct Pair {
    encoder: Encoder,
    decoder: Decoder,
    decoded: Decoded,
    batch: Vec<u8>,
    wire_bytes: usize,
    message_bytes: usize,
}

impl Pair {
    fn new(config: EncoderConfig) -> Self {
        Self {
            encoder: Encoder::new(config, 7, 99),
            decoder: Decoder::new(DecoderConfig::default(), 7),
            decoded: Decoded::default(),
            batch: Vec::new(),
            wire_bytes: 0,
            message_bytes: 0,
        }
    }

    /// Sends messages, `per_batch` in each batch, and checks that they arrive.
    fn send(&mut self, messages: &[Owned], per_batch: usize) {
        for some in messages.chunks(per_batch) {
            for (topic, attributes, payload) in some {
                self.encoder.push(Message { topic, attributes, payload }).unwrap();
                self.message_bytes += topic.len() + attributes.len() + payload.len();
            }
            self.batch.clear();
            self.encoder.finish(&mut self.batch).unwrap();
            self.wire_bytes += self.batch.len();
            self.decoder.decode(&self.batch, &mut self.decoded).unwrap();
            let came: Vec<Owned> = owned(&self.decoded);
            assert_eq!(came, some);
        }
        assert_eq!(
            self.encoder.state_bytes(),
            self.decoder.state_bytes(),
            "both count the same state"
        );
    }

    fn ratio(&self) -> f64 {
        self.message_bytes as f64 / self.wire_bytes as f64
    }
}

fn owned(decoded: &Decoded) -> Vec<Owned> {
    decoded
        .iter()
        .map(|message| (message.topic.into(), message.attributes.into(), message.payload.into()))
        .collect()
}

fn texts(topic: &str, payloads: &[&str]) -> Vec<Owned> {
    payloads
        .iter()
        .map(|payload| (topic.as_bytes().to_vec(), Vec::new(), payload.as_bytes().to_vec()))
        .collect()
}

fn workload(workload: Workload, devices: u64, messages: usize, form: Form) -> Vec<Owned> {
    let mut generator = Generator::new(workload, devices, 1).with_form(form);
    (0..messages)
        .map(|_| {
            let (mut topic, mut payload) = (Vec::new(), Vec::new());
            generator.next(&mut topic, &mut payload);
            (topic, vec![1], payload)
        })
        .collect()
}

fn every_config() -> Vec<EncoderConfig> {
    let compressions = [Compression::None, Compression::Zstd(1), Compression::ZstdStream(3)];
    compressions
        .into_iter()
        .flat_map(|compression| {
            [false, true].map(|columns| EncoderConfig {
                columns,
                compression,
                ..EncoderConfig::default()
            })
        })
        .collect()
}

#[test]
fn messages_of_sensors_come_back_in_every_form() {
    for config in every_config() {
        for kind in Workload::ALL {
            for form in [Form::Natural, Form::Fixed] {
                let mut pair = Pair::new(config.clone());
                pair.send(&workload(kind, 50, 3000, form), 130);
                let least = if form == Form::Natural { 3.0 } else { 1.5 };
                assert!(pair.ratio() > least, "{kind} {form:?} {config:?}: {}", pair.ratio());
            }
        }
    }
}

#[test]
fn odd_numbers_and_odd_shapes_come_back() {
    let payloads = [
        "1,2,3",
        "1,2,4",
        "1,2",
        "1,2,3,4",
        "",
        ",",
        ",,",
        "1,2,3",
        "1e309,NaN,0x10",
        "007,1.10,-0",
        "007,1.1,-0",
        "1.10,1.2,1.25",
        "1.1,1.20,1.3",
        "9999999999999999999999999999999999999999,1,2",
        "1,2,3",
        "-1,-2,-3",
        "+1,2,3",
        "999999999999999999,0,-999999999999999999",
        "-999999999999999999,0,999999999999999999",
        "0.000000000000000001,1,2",
        "{\"v\":1}",
        "{\"v\":2}",
        "{ \"v\":2}",
        "[1,2]",
        "temperature=21.5 17",
        "temperature=21.6 18",
        "\u{0}\u{1}",
        "x",
        "x,y",
        "1,2,3 ",
        " 1,2,3",
        "1;2;3",
        "a\nb",
        "1,2,3",
    ];
    for config in every_config() {
        for batch in [1, 7, 1000] {
            for layout in
                [Layout::Auto, Layout::Csv(b','), Layout::Json, Layout::Line, Layout::Opaque]
            {
                let mut pair = Pair::new(EncoderConfig { layout, ..config.clone() });
                pair.send(&texts("odd", &payloads), batch);
                pair.send(&texts("odd", &payloads), batch);
            }
        }
    }
}

#[test]
fn many_fields_whose_lengths_are_not_kept_come_back() {
    let line = |count: usize, value: usize| {
        (0..count).map(|field| (field * value).to_string()).collect::<Vec<_>>().join(",")
    };
    for count in [40, 41, 56, 57, 255, 256] {
        let payloads: Vec<_> = (0..20).map(|value| line(count, value)).collect();
        let payloads: Vec<_> = payloads.iter().map(String::as_str).collect();
        Pair::new(EncoderConfig::default()).send(&texts("wide", &payloads), 3);
    }
}

#[test]
fn many_fields_of_json_that_become_empty_come_back() {
    for count in [20, 39, 41, 60, 100] {
        let payload = |round: usize| {
            let value = |field: usize| match (field * 7 + round) % 5 {
                0 if round % 4 == 3 => String::new(),
                1 => format!("{}", field * round),
                _ => format!("{field}"),
            };
            let fields: Vec<_> =
                (0..count).map(|field| format!("\"k{field}\":\"{}\"", value(field))).collect();
            format!(
                "{{{},\"t\":\"{}\"}}",
                fields.join(","),
                1_422_748_800_000u64 + round as u64 * 1000
            )
        };
        let messages: Vec<Owned> = (0..400)
            .map(|n| (format!("j/{}", n % 3).into_bytes(), vec![], payload(n / 3).into_bytes()))
            .collect();
        Pair::new(EncoderConfig::default()).send(&messages, 7);
    }
}

#[test]
fn binary_messages_come_back_and_shrink() {
    let field = |kind, width| BinaryField { kind, width, big_endian: false };
    let layout = Layout::Binary(vec![
        field(BinaryKind::Unsigned, 8),
        field(BinaryKind::Bytes, 4),
        field(BinaryKind::Float, 4),
        field(BinaryKind::Signed, 2),
    ]);
    let mut messages = Vec::new();
    for number in 0..2000u64 {
        let mut payload = Vec::new();
        payload.extend_from_slice(&(1_422_748_800_000 + number * 1000).to_le_bytes());
        payload.extend_from_slice(b"abcd");
        payload.extend_from_slice(&(20.0 + (number % 17) as f32 / 10.0).to_le_bytes());
        payload.extend_from_slice(&(-(number as i16 % 5)).to_le_bytes());
        if number == 1000 {
            payload.push(0); // of another length: opaque from here on or defined again
        }
        messages.push((format!("bin/{}", number % 10).into_bytes(), vec![], payload));
    }
    let mut pair = Pair::new(EncoderConfig { layout, ..EncoderConfig::default() });
    pair.send(&messages, 100);
    assert!(pair.ratio() > 3.0, "{}", pair.ratio());
}

#[test]
fn a_layout_is_that_of_the_first_filter_that_matches() {
    let layouts = vec![("a/#".to_owned(), Layout::Opaque), ("+/b".to_owned(), Layout::Csv(b';'))];
    let config = EncoderConfig { layouts, layout: Layout::Csv(b','), ..EncoderConfig::default() };
    let mut messages = Vec::new();
    for number in 0..50 {
        for topic in ["a/b", "c/b", "c/d"] {
            messages.push((
                topic.into(),
                vec![],
                format!("{number};{number},{number}").into_bytes(),
            ));
        }
    }
    Pair::new(config).send(&messages, 10);
}

#[test]
fn attributes_that_change_come_back() {
    let messages: Vec<Owned> = (0..100u8)
        .map(|number| (b"t".to_vec(), vec![number / 10; usize::from(number / 30)], vec![number]))
        .collect();
    Pair::new(EncoderConfig::default()).send(&messages, 9);
}

#[test]
fn nothing_is_allocated_for_a_message_once_all_topics_are_known() {
    let messages = workload(Workload::City, 200, 20_000, Form::Natural);
    let (warm, measured) = messages.split_at(10_000);
    let mut pair = Pair::new(EncoderConfig::default());
    pair.send(warm, 100);
    let (mut batch, mut decoded) = (Vec::with_capacity(1 << 20), std::mem::take(&mut pair.decoded));
    let count = allocation_counter::measure(|| {
        for some in measured.chunks(100) {
            for (topic, attributes, payload) in some {
                pair.encoder.push(Message { topic, attributes, payload }).unwrap();
            }
            batch.clear();
            pair.encoder.finish(&mut batch).unwrap();
            pair.decoder.decode(&batch, &mut decoded).unwrap();
        }
    });
    // A payload that has become longer than ever takes more room.
    assert!(count.count_total < 200, "{count:?} for 10,000 messages");
}

fn message() -> impl Strategy<Value = Owned> {
    let number = prop_oneof![
        "-?[0-9]{1,6}",
        "-?[0-9]{1,3}\\.[0-9]{1,3}",
        Just("21.5".to_owned()),
        "[a-z]{0,4}",
        "[ -~]{0,6}",
    ];
    let csv = proptest::collection::vec(number.clone(), 1..6)
        .prop_map(|fields| fields.join(",").into_bytes());
    let json = proptest::collection::vec(number, 1..4).prop_map(|values| {
        format!("{{\"e\":[\"{}\"],\"bt\":17}}", values.join("\",\"")).into_bytes()
    });
    let payload =
        prop_oneof![4 => csv, 2 => json, 1 => proptest::collection::vec(any::<u8>(), 0..60)];
    let topic = prop_oneof![Just("a"), Just("a/b"), Just("c/long/topic"), Just("")];
    (topic, 0..3u8, payload).prop_map(|(topic, attribute, payload)| {
        (topic.into(), vec![attribute; usize::from(attribute / 2)], payload)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Numbers that change each time, so that they are packed, with clocks among them, and now and then something else.
    #[test]
    fn packed_numbers_come_back_whatever_comes_between(
        odd in proptest::collection::vec((0usize..1500, 0usize..5, "-?[0-9]{1,12}(\\.[0-9]{1,7})?|[a-z,]{0,4}|0[0-9]|-0"), 0..60),
        seed in 0u64..1000,
        per_batch in 1usize..80,
        columns: bool,
        topics in 1usize..6,
    ) {
        let mut rows: Vec<_> = (0..1500u64)
            .map(|n| {
                let number = |k: u64| (n * 7919 + seed * 31 + k * 104_729) % 90_001;
                let (turn, device) = (n / topics as u64, n % topics as u64);
                let row = [
                    format!("{}", 1_422_748_800_000 + n / 10 * 1000),
                    format!("{}", device * 100_000 + turn * 15),
                    format!("{}.{:04}", number(1) / 10_000, number(1) % 10_000),
                    format!("-{}.{}", number(2) + 1, number(2) % 9 + 1),
                    format!("{}", number(3)),
                ];
                (n as usize % topics, row)
            })
            .collect();
        for (row, field, text) in odd {
            rows[row].1[field] = text;
        }
        let messages: Vec<Owned> = rows
            .into_iter()
            .map(|(topic, row)| (format!("t/{topic}").into_bytes(), vec![], row.join(",").into_bytes()))
            .collect();
        Pair::new(EncoderConfig { columns, ..EncoderConfig::default() }).send(&messages, per_batch);
    }
}

proptest! {
    #[test]
    fn any_messages_come_back(
        messages in proptest::collection::vec(message(), 1..120),
        per_batch in 1usize..40,
        columns: bool,
        compression in prop_oneof![Just(Compression::None), Just(Compression::Zstd(1)), Just(Compression::ZstdStream(1))],
    ) {
        let mut pair = Pair::new(EncoderConfig { columns, compression, ..EncoderConfig::default() });
        pair.send(&messages, per_batch);
    }

    #[test]
    fn any_bytes_of_one_topic_come_back(
        payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..30),
        layout in prop_oneof![Just(Layout::Auto), Just(Layout::Json), Just(Layout::Line), any::<u8>().prop_map(Layout::Csv)],
    ) {
        let messages: Vec<Owned> = payloads.into_iter().map(|payload| (b"t".to_vec(), vec![], payload)).collect();
        Pair::new(EncoderConfig { layout, ..EncoderConfig::default() }).send(&messages, 4);
    }
}

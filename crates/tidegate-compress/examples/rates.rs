//! Ratio and speed on made-up messages of sensors: `cargo run --release -p tidegate-compress --example rates -- [WORKLOAD]`.
//!
//! Speeds are messages per second of processor time of one thread, everything included: from bytes that lie in memory to batches, and
//! back. Each figure is the median of five.

use tidegate_compress::{
    Compression, Decoded, Decoder, DecoderConfig, Encoder, EncoderConfig, Message,
};
use tidegate_load::sensors::{Generator, Workload};
use tidegate_sys::clock::thread_cpu_nanos;

struct Messages {
    bytes: Vec<u8>,
    ends: Vec<(u32, u32)>,
}

impl Messages {
    fn new(workload: Workload, devices: u64, count: u64) -> Self {
        let mut generator = Generator::new(workload, devices, 1);
        let mut messages = Self { bytes: Vec::new(), ends: Vec::new() };
        let mut payload = Vec::new();
        for _ in 0..count {
            payload.clear();
            generator.next(&mut messages.bytes, &mut payload);
            let topic_end = messages.bytes.len() as u32;
            messages.bytes.extend_from_slice(&payload);
            messages.ends.push((topic_end, messages.bytes.len() as u32));
        }
        messages
    }

    fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&(topic_end, end)| {
            let message = Message {
                topic: &self.bytes[start..topic_end as usize],
                attributes: &[],
                payload: &self.bytes[topic_end as usize..end as usize],
            };
            start = end as usize;
            message
        })
    }
}

fn main() {
    let only: Option<Workload> =
        std::env::args().nth(1).map(|name| name.parse().unwrap_or_else(|error| panic!("{error}")));
    println!("workload  batch       ratio  bytes each  encode M/s  decode M/s");
    for (workload, devices, rounds) in [
        (Workload::City, 10_700, 40),
        (Workload::Taxi, 50_000, 10),
        (Workload::Grid, 50_000, 20),
        (Workload::Fit, 10_000, 30),
    ] {
        if only.is_some_and(|only| only != workload) {
            continue;
        }
        let messages = Messages::new(workload, devices, devices * rounds);
        for (name, body_bytes, compression, columns) in [
            ("1500", 1470, Compression::None, false),
            ("1500 zstd", 1470, Compression::Zstd(1), false),
            ("64K", 65_536, Compression::None, false),
            ("64K zstd", 65_536, Compression::Zstd(1), false),
            ("64K cols", 65_536, Compression::Zstd(1), true),
        ] {
            let config =
                EncoderConfig { body_bytes, compression, columns, ..EncoderConfig::default() };
            run(workload, name, &config, &messages);
        }
    }
}

fn run(workload: Workload, name: &str, config: &EncoderConfig, messages: &Messages) {
    let (mut encode, mut decode, mut wire) = (Vec::new(), Vec::new(), 0);
    for _ in 0..5 {
        let mut encoder = Encoder::new(config.clone(), 1, 99);
        let mut batches = Vec::with_capacity(messages.bytes.len() / 4);
        let mut ends = Vec::new();
        let before = thread_cpu_nanos();
        for message in messages.iter() {
            encoder.push(message).expect("batches are finished in time");
            if encoder.is_due() {
                encoder.finish(&mut batches);
                ends.push(batches.len());
            }
        }
        encoder.finish(&mut batches);
        ends.push(batches.len());
        let encoded = thread_cpu_nanos();
        let mut decoder = Decoder::new(DecoderConfig::default(), 1);
        let mut decoded = Decoded::default();
        let (mut start, mut bytes) = (0, 0);
        for end in ends {
            decoder
                .decode(&batches[start..end], &mut decoded)
                .expect("what was encoded is decoded");
            bytes += decoded.bytes().len();
            start = end;
        }
        let after = thread_cpu_nanos();
        assert_eq!(bytes, messages.bytes.len());
        let rate = |nanos: i64| messages.ends.len() as f64 * 1e3 / nanos as f64;
        encode.push(rate(encoded - before));
        decode.push(rate(after - encoded));
        wire = batches.len();
    }
    encode.sort_by(f64::total_cmp);
    decode.sort_by(f64::total_cmp);
    println!(
        "{workload:8}  {name:9}  {:6.2}  {:10.2}  {:10.2}  {:10.2}",
        messages.bytes.len() as f64 / wire as f64,
        wire as f64 / messages.ends.len() as f64,
        encode[2],
        decode[2],
    );
}

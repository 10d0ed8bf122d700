//! Ratio and speed of the codec beside general compressors, on one thread.

use bench_harness::{Figure, Report, Target};
use tidegate_compress::{Compression, Decoded, Decoder, DecoderConfig, Encoder, EncoderConfig};
use tidegate_load::sensors::{Form, Workload};
use tidegate_sys::clock::thread_cpu_nanos;

use crate::{
    Plan,
    messages::{FileForm, Messages},
    peers::{self, Made, Peer},
};

/// The target of a workload.
struct Case {
    workload: Workload,
    devices: u64,
    rounds: u64,
    /// Ratio in batches of 1,500 bytes without zstd, and of 64 KiB with zstd-1.
    ratios: [f64; 2],
    /// Million messages a second, encoded and decoded.
    rates: [f64; 2],
}

const CASES: [Case; 4] = [
    Case {
        workload: Workload::City,
        devices: 10_700,
        rounds: 40,
        ratios: [10.0, 16.0],
        rates: [3.0, 6.0],
    },
    Case {
        workload: Workload::Taxi,
        devices: 50_000,
        rounds: 10,
        ratios: [6.5, 20.0],
        rates: [3.0, 6.0],
    },
    // Ten million meters are for the memory's row; their state would not fit beside the messages of twenty rounds.
    Case {
        workload: Workload::Grid,
        devices: 50_000,
        rounds: 20,
        ratios: [6.5, 15.0],
        rates: [3.0, 6.0],
    },
    Case {
        workload: Workload::Fit,
        devices: 10_000,
        rounds: 30,
        ratios: [3.8, 5.0],
        rates: [2.0, 4.0],
    },
];

/// Bytes of a batch as it travels, and of a body of which a batch of that size is made.
const SIZES: [(usize, usize); 2] = [(1500, 1470), (65_536, 65_536)];

/// Ratios, rates and those of the peers.
///
/// # Errors
/// The output of a codec differs from its input.
pub fn codec(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.configuration(
        "codec",
        "natural CSV, arrival in turns with one in ten from any device; rates per second of one thread's processor time, topic \
         lookup included; peers frame each message with two lengths of two bytes",
    );
    for (name, version) in
        [("lz4_flex", "0.11"), ("snap", "1.1"), ("zstd", "1.5 by the crate zstd 0.14")]
    {
        report.version(name, version);
    }
    for case in &CASES {
        // Also in the quick form: with fewer rounds the topics' first messages would be most of the figure.
        let rounds = case.rounds;
        let messages = Messages::made_up(
            case.workload,
            case.devices,
            case.devices * rounds,
            plan.seed,
            Form::Natural,
        );
        let name = format!("{}, {} topics × {rounds}", case.workload, case.devices);
        rows(plan, report, &name, &messages, Some(case))?;
    }
    // Once and no more: most of their topics have one row, and what is played again is told by any codec as what it had before.
    for (workload, file) in [
        (Workload::City, "SYS_sample_data_senml.csv"),
        (Workload::Taxi, "TAXI_sample_data_senml.csv"),
        (Workload::Fit, "FIT_sample_data_senml.csv"),
    ] {
        let path = plan
            .data
            .as_ref()
            .map(|data| data.join("riotbench").join(file))
            .filter(|path| path.exists());
        let Some(path) = path else {
            eprintln!(
                "bench-sensors: riotbench/{file} is not here; --data names the folder of the published rows"
            );
            continue;
        };
        for (form, word) in [(FileForm::Csv, "CSV"), (FileForm::SenMl, "SenML")] {
            let messages = Messages::of_file(&path, form)?;
            let name = format!("{workload}, {} sample rows as {word}", messages.len());
            rows(plan, report, &name, &messages, None)?;
        }
    }
    Ok(())
}

fn rows(
    plan: &Plan,
    report: &mut Report,
    name: &str,
    messages: &Messages,
    case: Option<&Case>,
) -> anyhow::Result<()> {
    for (size, (wire_bytes, body_bytes)) in SIZES.into_iter().enumerate() {
        let compression = if size == 0 { Compression::None } else { Compression::Zstd(1) };
        let config = EncoderConfig { body_bytes, compression, ..EncoderConfig::default() };
        let mut ours = Vec::new();
        let mut theirs: Vec<Vec<Made>> = Peer::ALL.map(|_| Vec::new()).into();
        for _ in 0..plan.runs {
            ours.push(run(&config, messages)?);
            for (peer, made) in Peer::ALL.into_iter().zip(&mut theirs) {
                made.push(peers::run(peer, messages, wire_bytes)?);
            }
        }
        let kind = if size == 0 { "1,500 B rows" } else { "64 KiB rows + zstd-1" };
        for (peer, made) in Peer::ALL.into_iter().zip(&theirs) {
            let figure = Figure::new(format!("{name}: ratio, {kind}"), "×")
                .ours(ours.iter().map(|made| made.ratio))
                .peer(made.iter().map(|made| made.ratio))
                .peer_name(peer.name());
            // One of the rows has the target, the others show what else there is.
            report.figure(match case {
                Some(case) if peer == Peer::ALL[0] => {
                    figure.target(Target::AtLeast(case.ratios[size]))
                }
                _ => figure,
            });
        }
        for (index, what) in ["encode", "decode"].into_iter().enumerate() {
            let of = |made: &Made| if index == 0 { made.encode } else { made.decode };
            let figure = Figure::new(format!("{name}: {what}, {kind}"), "M/s")
                .ours(ours.iter().map(of))
                .peer(theirs[2].iter().map(of))
                .peer_name(Peer::Zstd1.name());
            // The rates are those of the codec; those with zstd behind it stand in rows of their own.
            report.figure(match case {
                Some(case) if size == 0 => figure.target(Target::AtLeast(case.rates[index])),
                _ => figure,
            });
        }
    }
    Ok(())
}

/// Encodes all messages into memory, then decodes them.
///
/// # Errors
/// The output differs from the input.
pub fn run(config: &EncoderConfig, messages: &Messages) -> anyhow::Result<Made> {
    let mut encoder = Encoder::new(config.clone(), 1, 99);
    let mut wire = Vec::with_capacity(messages.bytes() / 3);
    let mut ends = Vec::new();
    let begun = thread_cpu_nanos();
    for message in messages.iter() {
        encoder.push(message)?;
        if encoder.is_due() {
            encoder.finish(&mut wire);
            ends.push(wire.len());
        }
    }
    encoder.finish(&mut wire);
    ends.push(wire.len());
    let encoded = thread_cpu_nanos();
    let mut decoder = Decoder::new(DecoderConfig::default(), 1);
    let mut decoded = Decoded::default();
    let (mut start, mut count, mut bytes) = (0, 0, 0);
    for end in ends {
        // The decoder compares a checksum over all messages with the encoder's.
        decoder.decode(&wire[start..end], &mut decoded)?;
        for message in decoded.iter() {
            bytes += std::hint::black_box(message.topic).len()
                + std::hint::black_box(message.payload).len();
        }
        count += decoded.len();
        start = end;
    }
    let done = thread_cpu_nanos();
    anyhow::ensure!(count == messages.len() && bytes == messages.bytes(), "not all came back");
    let rate = |nanos: i64| messages.len() as f64 * 1e3 / nanos as f64;
    Ok(Made {
        ratio: messages.bytes() as f64 / wire.len() as f64,
        encode: rate(encoded - begun),
        decode: rate(done - encoded),
    })
}

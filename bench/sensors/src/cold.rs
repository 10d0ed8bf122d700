//! Decoding from cold beside Snappy, and the paper's interval between comparisons (figures 10 and 11).

use std::fmt::Write as _;

use bench_comprex::{ComprexConfig, ComprexCounts, ComprexDecoder, ComprexEncoder};
use bench_harness::{Figure, Report, Target, median};
use tidegate_compress::{Decoded, Decoder, DecoderConfig, Encoder, EncoderConfig};
use tidegate_load::sensors::{Form, Workload};
use tidegate_sys::clock::thread_cpu_nanos;

use crate::{Plan, messages::Messages};

/// Messages of one point of the curves.
const WINDOW: usize = 50_000;
/// Topics of each workload.
const DEVICES: u64 = 5_000;
/// Messages stored for a correction in the sweep.
const STORED: u32 = 10;

/// Batches, each with the number of messages that are decoded once it is.
type Batches = Vec<(Batch, usize)>;

/// A batch, and corrections of its messages and of those before, which travel by another queue.
#[derive(Default)]
struct Batch {
    body: Vec<u8>,
    corrections: Vec<u8>,
}

/// The result of encoding with the paper's scheme.
struct Encoded {
    batches: Batches,
    counts: ComprexCounts,
}

/// Rates of decoders over time and over `max_n`.
///
/// # Errors
/// The output differs from the input.
pub fn cold(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let rounds = if plan.quick { 40 } else { 200 };
    report.configuration(
        "cold",
        format!(
            "fixed layouts, {DEVICES} topics of each workload, {rounds} rounds, batches of 1,500 B; comprex: max_store and max_n {STORED}, \
             its corrections decoded as well; Snappy: batches of 1,500 B before compression, each message framed by two lengths"
        ),
    );
    let mut curves = String::from("workload,decoder,messages,million_per_s\n");
    let mut sweep =
        String::from("workload,max_n,decode_million_per_s,lost,corrected,comparisons,ratio\n");
    for workload in Workload::ALL {
        let messages =
            Messages::made_up(workload, DEVICES, DEVICES * rounds, plan.seed, Form::Fixed);
        let Encoded { batches: comprex, counts } =
            comprex_batches(&messages, ComprexConfig { max_n: STORED, ..sweep_config() })?;
        let note = format!(
            "comprex lost {}, corrected {} of {}",
            counts.lost,
            counts.corrected,
            messages.len()
        );
        let rows = row_batches(&messages)?;
        let snappy = snappy_batches(&messages)?;
        let mut warm: [Vec<f64>; 3] = Default::default();
        for run in 0..plan.runs {
            let curve = [comprex_curve(&comprex)?, row_curve(&rows)?, snappy_curve(&snappy)?];
            for (decoder, (points, warm)) in
                ["comprex", "rows", "snappy"].into_iter().zip(curve.iter().zip(&mut warm))
            {
                if run == 0 {
                    for (index, rate) in points.iter().enumerate() {
                        writeln!(
                            curves,
                            "{workload},{decoder},{},{rate:.3}",
                            (index + 1) * WINDOW
                        )?;
                    }
                }
                // Warm is the second half.
                warm.push(median(&points[points.len() / 2..]));
            }
        }
        let [comprex, rows, snappy] = warm;
        for (name, ours) in [("comprex", comprex), ("rows", rows)] {
            let figure = Figure::new(format!("{workload}: decode once warm, {name}"), "M/s")
                .ours(ours)
                .peer(snappy.iter().copied())
                .peer_name("Snappy")
                .target(Target::RatioAtLeast(2.0));
            report.figure(if name == "comprex" { figure.note(note.clone()) } else { figure });
        }
        for max_n in [0, 1, 2, 5, 10, 20, 30, 60, 100, 200, 300] {
            let Encoded { batches, counts } =
                comprex_batches(&messages, ComprexConfig { max_n, ..sweep_config() })?;
            let rate = median(&comprex_curve(&batches)?);
            let wire: usize =
                batches.iter().map(|(batch, _)| batch.body.len() + batch.corrections.len()).sum();
            let ComprexCounts { lost, corrected, comparisons, .. } = counts;
            let ratio = messages.bytes() as f64 / wire as f64;
            writeln!(
                sweep,
                "{workload},{max_n},{rate:.3},{lost},{corrected},{comparisons},{ratio:.2}"
            )?;
            if max_n <= STORED {
                report.figure(
                    Figure::new(
                        format!("{workload}: lost with max_n {max_n}, max_store {STORED}"),
                        "messages",
                    )
                    .ours([lost as f64])
                    .target(Target::Exactly(0.0)),
                );
            }
        }
    }
    report.attach("decode-from-cold.csv", curves);
    report.attach("max-n.csv", sweep);
    Ok(())
}

fn sweep_config() -> ComprexConfig {
    ComprexConfig { max_store: STORED, ..ComprexConfig::default() }
}

fn comprex_batches(messages: &Messages, config: ComprexConfig) -> anyhow::Result<Encoded> {
    let mut encoder = ComprexEncoder::new(config);
    let (mut batches, mut corrections) = (Vec::new(), Vec::new());
    for (index, message) in messages.iter().enumerate() {
        if let Some(body) = encoder.push(message.topic, message.payload)? {
            // Corrections until here are in this batch or before it.
            batches.push((Batch { body, corrections: std::mem::take(&mut corrections) }, index));
        }
        corrections.extend(encoder.take_critical());
    }
    encoder.settle();
    corrections.extend(encoder.take_critical());
    batches.push((Batch { body: encoder.finish(), corrections }, messages.len()));
    Ok(Encoded { batches, counts: encoder.counts() })
}

fn row_batches(messages: &Messages) -> anyhow::Result<Batches> {
    let mut encoder =
        Encoder::new(EncoderConfig { body_bytes: 1470, ..EncoderConfig::default() }, 1, 99);
    let mut batches = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        encoder.push(message)?;
        if encoder.is_due() || index + 1 == messages.len() {
            let mut batch = Batch::default();
            encoder.finish(&mut batch.body);
            batches.push((batch, index + 1));
        }
    }
    Ok(batches)
}

fn snappy_batches(messages: &Messages) -> anyhow::Result<Batches> {
    let mut snappy = snap::raw::Encoder::new();
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        for part in [message.topic, message.payload] {
            batch.extend_from_slice(&(part.len() as u16).to_le_bytes());
            batch.extend_from_slice(part);
        }
        if batch.len() >= 1500 || index + 1 == messages.len() {
            let body = snappy.compress_vec(&batch)?;
            batches.push((Batch { body, ..Batch::default() }, index + 1));
            batch.clear();
        }
    }
    Ok(batches)
}

/// Rates, window by window, of what `decode` does with each batch.
fn curve(
    batches: &Batches,
    mut decode: impl FnMut(&Batch) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    let mut points = Vec::new();
    let (mut from, mut begun) = (0, thread_cpu_nanos());
    for (batch, messages) in batches {
        decode(batch)?;
        if messages - from >= WINDOW {
            let now = thread_cpu_nanos();
            points.push((messages - from) as f64 * 1e3 / (now - begun) as f64);
            (from, begun) = (*messages, thread_cpu_nanos());
        }
    }
    Ok(points)
}

/// Each decoder gives its messages to a log in memory: as an application would read them.
fn comprex_curve(batches: &Batches) -> anyhow::Result<Vec<f64>> {
    let mut decoder = ComprexDecoder::new();
    let mut log = Vec::with_capacity(1 << 16);
    curve(batches, |batch| {
        log.clear();
        decoder.decode_into(&batch.body, &mut log, |_, _, _| {})?;
        decoder.correct(&batch.corrections, |topic, _, payload| {
            log.extend_from_slice(topic);
            log.extend_from_slice(payload);
        })?;
        std::hint::black_box(&log);
        Ok(())
    })
}

fn row_curve(batches: &Batches) -> anyhow::Result<Vec<f64>> {
    let mut decoder = Decoder::new(DecoderConfig::default(), 1);
    let mut decoded = Decoded::default();
    curve(batches, |batch| {
        decoder.decode(&batch.body, &mut decoded)?;
        std::hint::black_box(&decoded);
        Ok(())
    })
}

fn snappy_curve(batches: &Batches) -> anyhow::Result<Vec<f64>> {
    let mut snappy = snap::raw::Decoder::new();
    let mut batch_of = vec![0; 1 << 16];
    let mut log = Vec::with_capacity(1 << 16);
    curve(batches, |batch| {
        log.clear();
        let len = snappy.decompress(&batch.body, &mut batch_of)?;
        let mut rest = &batch_of[..len];
        while let Some((len, after)) = rest.split_first_chunk() {
            let (part, after) = after.split_at(usize::from(u16::from_le_bytes(*len)));
            log.extend_from_slice(part);
            rest = after;
        }
        std::hint::black_box(&log);
        Ok(())
    })
}

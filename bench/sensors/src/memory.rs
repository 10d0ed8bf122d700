//! The memory of ten million topics.

use bench_harness::{Figure, Report, Target};
use tidegate_compress::{Decoded, Decoder, DecoderConfig, Encoder, EncoderConfig};
use tidegate_load::{
    process,
    sensors::{Generator, Workload},
};

use crate::Plan;

const BYTES_MAX: f64 = 3e9;

/// Memory of an encoder and of a decoder that hold all meters of GRID.
///
/// # Errors
/// The output differs from the input.
pub fn memory(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let devices = if plan.quick { 1_000_000 } else { Workload::Grid.devices() };
    report.configuration(
        "memory",
        format!("{devices} topics of GRID, two messages each; memory resident in this process"),
    );
    let mut generator = Generator::new(Workload::Grid, devices, plan.seed);
    let config = EncoderConfig {
        topics_max: devices as usize + 1,
        state_bytes_max: u64::MAX / 2,
        ..EncoderConfig::default()
    };
    let limits = DecoderConfig {
        topics_max: devices as usize + 1,
        state_bytes_max: u64::MAX / 2,
        ..DecoderConfig::default()
    };
    // The generator's own memory is there before anything is measured.
    let (mut topic, mut payload) = (Vec::new(), Vec::new());
    let mut warm = generator.clone();
    for _ in 0..devices {
        topic.clear();
        payload.clear();
        warm.next(&mut topic, &mut payload);
    }
    drop(warm);

    let before = resident()?;
    let mut encoder = Encoder::new(config, 1, 99);
    let mut batches = Vec::new();
    let mut wire_bytes = 0;
    for index in 0..2 * devices {
        topic.clear();
        payload.clear();
        generator.next(&mut topic, &mut payload);
        encoder.push(tidegate_compress::Message {
            topic: &topic,
            attributes: &[],
            payload: &payload,
        })?;
        if encoder.is_due() || index + 1 == 2 * devices {
            let mut batch = Vec::new();
            encoder.finish(&mut batch);
            batch.shrink_to_fit();
            wire_bytes += batch.len();
            batches.push(batch);
        }
    }
    let encoded = resident()?;
    let mut decoder = Decoder::new(limits, 1);
    let mut decoded = Decoded::default();
    let mut count = 0;
    for batch in &batches {
        decoder.decode(batch, &mut decoded)?;
        count += decoded.len() as u64;
    }
    let decoding = resident()?;
    anyhow::ensure!(count == 2 * devices, "{count} messages came back of {}", 2 * devices);
    // One message in ten comes from any device, so a few have not had their turn in two rounds.
    let topics = encoder.topics();
    let share = topics as f64 / Workload::Grid.devices() as f64;
    for (side, bytes) in
        [("encoder", encoded - before - wire_bytes as f64), ("decoder", decoding - encoded)]
    {
        report.figure(
            Figure::new(format!("memory of the {side}, {topics} topics of GRID"), "MB")
                .ours([bytes / 1e6])
                .target(Target::AtMost(BYTES_MAX * share.min(1.0) / 1e6))
                .note(format!("{:.0} B a topic", bytes / topics as f64)),
        );
    }
    Ok(())
}

fn resident() -> anyhow::Result<f64> {
    Ok(process::usage(std::process::id())?.resident_bytes as f64)
}

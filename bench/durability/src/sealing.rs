//! The cost of sealing at the rate of a site: five cameras, 15 frames a second each. The log alone, then the nodes.

mod live;

use bench_harness::{Figure, Report, Target, median};
use tidegate_log::{CommitConfig, Durability, LogConfig, NodeKey, NodeKeys};

use crate::{Plan, Running, process_cpu};

const FRAME_BYTES: usize = 400_000;
const FRAMES_PER_SECOND: f64 = 5.0 * 15.0;
const FRAMES: u32 = 750;
const ADDED_PERCENT_MAX: f64 = 5.0;

/// Processor time of an append, sealed beside clear, and what the difference comes to; then what nodes use and how late frames are.
///
/// # Errors
/// The disk's, or nodes do not start.
pub fn sealing(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.configuration(
        "sealing",
        format!("class page, frames of {FRAME_BYTES} B, ChaCha20-Poly1305, log of 256 MiB, once around before"),
    );
    let frames = if plan.quick { FRAMES / 3 } else { FRAMES };
    let key = NodeKey::generate()?;
    let keys = NodeKeys { current: key, older: Vec::new() };
    let mut taken = [const { Vec::new() }; 2];
    let config = LogConfig { bytes_max: 256 << 20, segment_bytes: 32 << 20 };
    let open = |name: &str, keys| {
        Running::open(&plan.folder.join(name), config.clone(), CommitConfig::default(), keys)
    };
    let mut logs = [open("clear", None)?, open("sealed", Some(keys))?];
    let body: Vec<u8> = (0..FRAME_BYTES).map(|byte| (byte * 31 % 251) as u8).collect();
    for log in &mut logs {
        for _ in 0..FRAMES {
            log.append(Durability::Page, &body)?;
        }
    }
    for _ in 0..plan.runs {
        for (log, taken) in logs.iter_mut().zip(&mut taken) {
            let begun = process_cpu()?;
            for _ in 0..frames {
                log.append(Durability::Page, &body)?;
            }
            let each = process_cpu()?.saturating_sub(begun) / frames;
            taken.push(each.as_secs_f64() * 1e6);
        }
    }
    let [clear, sealed] = taken;
    let added_us = (median(&sealed) - median(&clear)).max(0.0);
    report.figure(
        Figure::new("append of a frame, sealed, processor", "us")
            .ours(sealed)
            .peer(clear)
            .peer_name("in clear text"),
    );
    report.figure(
        Figure::new("sealing at 5 cameras x 15 fps, added, of one core", "%")
            .ours([added_us * FRAMES_PER_SECOND / 1e4])
            .target(Target::AtMost(ADDED_PERCENT_MAX)),
    );
    live::live(plan, report)
}

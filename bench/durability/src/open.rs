//! How long a large log takes to open.

use std::{fs, time::Instant as Stopwatch};

use anyhow::ensure;
use bench_harness::{Figure, Report, Target};
use tidegate_log::{CommitConfig, Durability, LogConfig};
use tidegate_message::Instant;

use crate::{Plan, Running};

/// Bytes of a segment and of an entry.
const SHAPES: [(u64, usize); 2] = [(64 << 20, 100_000), (8 << 20, 1_000)];
const OPEN_S_MAX: f64 = 2.0;

/// Opens 10 GiB (1 with `--quick`) whose pages are not in memory.
///
/// # Errors
/// The disk's, or entries are missing.
pub fn open(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let gib: u64 = if plan.quick { 1 } else { 10 };
    report.configuration(
        "open",
        format!("{gib} GiB, class page, closed in order, page cache dropped before each run"),
    );
    let path = plan.folder.join("open");
    for (segment_bytes, entry_bytes) in SHAPES {
        let config = LogConfig { bytes_max: (gib + 1) << 30, segment_bytes };
        let open = || Running::open(&path, config.clone(), CommitConfig::default(), None);
        let mut log = open()?.keeping();
        let body = vec![0x5a; entry_bytes];
        while log.log().bytes() < gib << 30 {
            log.append(Durability::Page, &body)?;
        }
        let (entries, last) = (log.log().entries(), log.log().last_at());
        drop(log);
        let (mut opened, mut read) = (Vec::new(), Vec::new());
        let mut dropped = true;
        for _ in 0..plan.runs {
            dropped &= drop_cache();
            let begun = Stopwatch::now();
            let log = open()?.keeping();
            opened.push(begun.elapsed().as_secs_f64());
            ensure!(log.log().entries() == entries, "entries are missing");
            let middle = Instant::from_nanos(last.map_or(0, Instant::as_nanos) / 2);
            ensure!(log.log().nearest_before(middle)?.is_some(), "an entry is missing");
            read.push(begun.elapsed().as_secs_f64());
        }
        let name = format!(
            "{gib} GiB, entries of {entry_bytes} B, segments of {} MiB",
            segment_bytes >> 20
        );
        let figure = Figure::new(format!("{name}, opened"), "s").ours(opened);
        let figure = figure.target(Target::AtMost(OPEN_S_MAX));
        report.figure(if dropped {
            figure
        } else {
            figure.note("the page cache could not be dropped")
        });
        report.figure(Figure::new(format!("{name}, first read from its middle"), "s").ours(read));
        fs::remove_dir_all(&path)?;
    }
    Ok(())
}

/// Whether the kernel's page cache is empty now; that takes root.
fn drop_cache() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

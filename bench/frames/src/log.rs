//! The camera log: the cost of an append, and that a range read copies nothing.
//!
//! Two rings of the default size are written once around, which takes their memory page by page from the
//! kernel, and then again, warm. One is fed from a single buffer, as by a source that has just filled it;
//! the other from more buffers than the processor's cache holds, as the worst case next to it.

use std::time::Instant as Stopwatch;

use anyhow::{Context, ensure};
use tidegate_log::{Entry, Log, LogConfig, LogWriter, Memory};
use tidegate_message::{Instant, Position};

/// The measured parameters.
#[derive(Clone, Debug)]
pub struct LogBench {
    /// Size of the frames that are appended, in bytes. The figure's are 1.74 MB.
    pub append_bytes: usize,
    /// Laps around the warm ring that are measured.
    pub warm_laps: usize,
    /// How often the range is read.
    pub range_reads: usize,
    /// Frames of one range. The figure's are 50.
    pub range_frames: usize,
    /// Size of the frames that are read, in bytes. The figure's are 600 KB.
    pub range_frame_bytes: usize,
    /// The ring.
    pub log: LogConfig,
}

impl Default for LogBench {
    fn default() -> Self {
        Self {
            append_bytes: 1_740_000,
            warm_laps: 2,
            range_reads: 200,
            range_frames: 50,
            range_frame_bytes: 600_000,
            log: LogConfig::default(),
        }
    }
}

/// Nanoseconds of every call, in the order they were made.
#[derive(Clone, Debug, Default)]
pub struct LogSamples {
    /// One append each, copy included, while the ring takes its memory from the kernel.
    pub append_first_lap_nanos: Vec<u64>,
    /// One append each, copy included, ring warm, from a buffer that was just filled. The figure.
    pub append_warm_nanos: Vec<u64>,
    /// The same from buffers that no cache holds.
    pub append_warm_uncached_nanos: Vec<u64>,
    /// One read of the whole range each: found, sliced and let go of.
    pub range_read_nanos: Vec<u64>,
    /// Bytes of one range, none of which was copied: [`run`] fails if any was.
    pub range_bytes: u64,
}

/// Runs the bench once: some seconds, and the memory of one ring and its sources.
///
/// # Errors
/// The log failed, or a range read gave a copy.
pub fn run(bench: &LogBench) -> anyhow::Result<LogSamples> {
    let mut samples = LogSamples::default();
    {
        let (mut writer, log) = Log::create(bench.log.clone(), Memory::new())?;
        let hot = [vec![0x5a; bench.append_bytes]];
        samples.append_first_lap_nanos = append_lap(&mut writer, &log, &hot)?;
        for _ in 0..bench.warm_laps {
            samples.append_warm_nanos.extend(append_lap(&mut writer, &log, &hot)?);
        }
        let uncached: Vec<Vec<u8>> =
            (0..128).map(|filler| vec![filler; bench.append_bytes]).collect();
        samples.append_warm_uncached_nanos = append_lap(&mut writer, &log, &uncached)?;
    }
    let (mut writer, log) = Log::create(bench.log.clone(), Memory::new())?;
    let body = vec![0x5a; bench.range_frame_bytes];
    for number in 0..bench.range_frames {
        writer.append(Instant::from_millis(number as i64 * 200), b"", &body)?;
    }
    // Held throughout: a second read of the same entries must give the same addresses.
    let held = read_range(&log)?;
    ensure!(held.len() == bench.range_frames, "the range gave {} frames", held.len());
    samples.range_bytes = held.iter().map(|entry| entry.body.len() as u64).sum();
    for _ in 0..bench.range_reads {
        let watch = Stopwatch::now();
        let read = read_range(&log)?;
        let shared = read.iter().zip(&held).all(|(a, b)| a.body.as_ptr() == b.body.as_ptr());
        drop(read);
        samples.range_read_nanos.push(nanos(watch));
        ensure!(shared, "a range read gave a copy");
    }
    Ok(samples)
}

/// Appends until the ring has gone around once, taking the sources in turn.
fn append_lap(writer: &mut LogWriter, log: &Log, sources: &[Vec<u8>]) -> anyhow::Result<Vec<u64>> {
    let Position(start) = log.end();
    let mut samples = Vec::new();
    for (number, source) in (start..).zip(sources.iter().cycle()) {
        let at = Instant::from_millis(i64::try_from(number)? * 200);
        let watch = Stopwatch::now();
        writer.append(at, b"", source)?;
        samples.push(nanos(watch));
        let oldest = log.end().0 - log.entries();
        if oldest > start || (start == 0 && oldest > 0) {
            break;
        }
    }
    let newest = log.last()?.context("the lap appended entries")?;
    ensure!(newest.body.len() == sources[0].len(), "the newest entry is not what was appended");
    Ok(samples)
}

fn read_range(log: &Log) -> anyhow::Result<Vec<Entry>> {
    Ok(log.range(..).collect::<Result<_, _>>()?)
}

fn nanos(watch: Stopwatch) -> u64 {
    u64::try_from(watch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

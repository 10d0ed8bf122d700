//! Appends of class `page` against a write(2) for each message: wall and processor time, in the steady state of both.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    time::{Duration, Instant as Stopwatch},
};

use bench_harness::{Figure, Report, Target};
use tidegate_log::{CommitConfig, Durability, LogConfig};

use crate::{Plan, Running, process_cpu};

/// Bytes of a message, and messages of a run.
const SIZES: [(usize, u64); 3] = [(100, 400_000), (1_000, 120_000), (10_000, 12_000)];
/// Of both: the log's bound, and the most of what the peer keeps.
const KEPT_BYTES: u64 = 256 << 20;
const SEGMENT_BYTES: u64 = 16 << 20;
/// Before each message: position, length and CRC, as in ours.
const HEAD_BYTES: usize = 32;
const FASTER_MIN: f64 = 5.0;

/// Time of an append, beside the two ways in which others write messages one by one: files that are replaced one after the
/// other, as logs do, and one file that is written over and over, which never leaves the page cache.
///
/// # Errors
/// The disk's.
pub fn append(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.configuration(
        "append",
        format!(
            "class page; log of {} MiB in segments of {} MiB, twice around before the first run; peers write(2) head and body of \
             each message, with a CRC32C, to files of the same size, replaced at the same bound, or to one file that is written \
             over",
            KEPT_BYTES >> 20,
            SEGMENT_BYTES >> 20
        ),
    );
    for (bytes, count) in SIZES {
        let count = if plan.quick { count / 4 } else { count };
        let body = vec![0x5a; bytes];
        let path = plan.folder.join("append");
        let config = LogConfig { bytes_max: KEPT_BYTES, segment_bytes: SEGMENT_BYTES };
        let mut log = Running::open(&path, config, CommitConfig::default(), None)?;
        // Every segment was used before.
        for _ in 0..2 * KEPT_BYTES / (bytes as u64 + 56) {
            log.append(Durability::Page, &body)?;
        }
        let mut rolling = Rolling::new(plan.folder.join("rolling"))?;
        for _ in 0..2 * KEPT_BYTES / (bytes + HEAD_BYTES) as u64 {
            rolling.append(&body)?;
        }
        let mut one = Over::new(plan.folder.join("over"))?;
        one.run(&body, count)?;
        let mut taken = [const { Vec::new() }; 3];
        for _ in 0..plan.runs {
            taken[0].push(took(count, || log.append(Durability::Page, &body).map(drop))?);
            taken[1].push(took(count, || rolling.append(&body))?);
            one.offset = 0;
            taken[2].push(took(count, || one.append(&body))?);
        }
        let [ours, rolled, over] = taken;
        for (peer, name, target) in [
            (rolled, "write(2), files replaced", Some(FASTER_MIN)),
            (over, "write(2), one file over and over", None),
        ] {
            for (what, pick) in [("wall", 0), ("processor", 1)] {
                let of =
                    |taken: &[[f64; 2]]| taken.iter().map(|taken| taken[pick]).collect::<Vec<_>>();
                let figure = Figure::new(format!("append, page, {bytes} B, {what}"), "ns")
                    .ours(of(&ours))
                    .peer(of(&peer))
                    .peer_name(name);
                report.figure(match target {
                    Some(faster) if pick == 0 => figure.target(Target::RatioAtMost(1.0 / faster)),
                    _ => figure,
                });
            }
        }
    }
    Ok(())
}

/// Wall and processor time of each of `count` appends, in ns.
fn took(count: u64, mut append: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<[f64; 2]> {
    let (begun, cpu) = (Stopwatch::now(), process_cpu()?);
    for _ in 0..count {
        append()?;
    }
    let each = |time: Duration| time.as_nanos() as f64 / count as f64;
    Ok([each(begun.elapsed()), each(process_cpu()?.saturating_sub(cpu))])
}

/// The same head as ours has, and the body.
struct Record {
    bytes: Vec<u8>,
    number: u64,
}

impl Record {
    fn next(&mut self, body: &[u8]) -> &[u8] {
        self.number += 1;
        self.bytes.resize(HEAD_BYTES, 0);
        self.bytes.extend_from_slice(body);
        self.bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        let crc = crc32c::crc32c(&self.bytes[4..]);
        self.bytes[..4].copy_from_slice(&crc.to_le_bytes());
        &self.bytes
    }
}

/// One file that is written over and over.
struct Over {
    path: PathBuf,
    file: File,
    offset: u64,
    record: Record,
}

impl Over {
    fn new(path: PathBuf) -> anyhow::Result<Self> {
        let record = Record { bytes: Vec::new(), number: 0 };
        Ok(Self { file: File::create(&path)?, path, offset: 0, record })
    }

    fn run(&mut self, body: &[u8], count: u64) -> anyhow::Result<()> {
        (0..count).try_for_each(|_| self.append(body))
    }

    fn append(&mut self, body: &[u8]) -> anyhow::Result<()> {
        let record = self.record.next(body);
        self.file.write_all_at(record, self.offset)?;
        self.offset += record.len() as u64;
        Ok(())
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("bench-durability: {} stays: {error}", self.path.display());
        }
    }
}

/// A log in plain files, written to message by message; the oldest file goes at the bound.
struct Rolling {
    folder: PathBuf,
    file: Option<(File, u64)>,
    begun: u64,
    record: Record,
}

impl Rolling {
    fn new(folder: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, file: None, begun: 0, record: Record { bytes: Vec::new(), number: 0 } })
    }

    fn append(&mut self, body: &[u8]) -> anyhow::Result<()> {
        let record = self.record.next(body);
        if self.file.as_ref().is_none_or(|(_, used)| *used >= SEGMENT_BYTES) {
            let name = |number: u64| self.folder.join(number.to_string());
            let files_max = KEPT_BYTES / SEGMENT_BYTES;
            if self.begun >= files_max {
                fs::remove_file(name(self.begun - files_max))?;
            }
            self.file = Some((File::create(name(self.begun))?, 0));
            self.begun += 1;
        }
        let (file, used) = self.file.as_mut().expect("it was just opened");
        file.write_all(record)?;
        *used += record.len() as u64;
        Ok(())
    }
}

impl Drop for Rolling {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("bench-durability: {} stays: {error}", self.folder.display());
        }
    }
}

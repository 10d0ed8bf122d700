//! Group commit of class `disk` against one fdatasync(2) for each message.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::Write as _,
    sync::Mutex,
    thread,
    time::{Duration, Instant as Stopwatch},
};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, percentile};
use tidegate_log::{CommitConfig, Durability, LogConfig};

use crate::{Plan, Running};

const PRODUCERS: usize = 64;
const BYTES: usize = 100;
const FASTER_MIN: f64 = 100.0;
/// The configured delay in ms, messages that a producer leaves unanswered, and µs between two of its messages, 0 for none.
const CASES: [(u64, usize, u64); 4] =
    [(10, 4096, 0), (10, 4096, 1280), (20, 4096, 1280), (50, 4096, 1280)];

/// Rate and p99 of group commit, beside a sync for each message on the same disk.
///
/// # Errors
/// The disk's.
pub fn commit(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 2 } else { 5 });
    report.configuration(
        "commit",
        format!(
            "class disk; {PRODUCERS} producers, {BYTES} B, {} s a run; paced: each producer one message in 1280 us, 50,000 a \
             second in all; peer: one producer, write(2) and fdatasync(2) of each message",
            length.as_secs()
        ),
    );
    let mut synced = Vec::new();
    let mut made: Vec<Vec<Made>> = CASES.map(|_| Vec::new()).into();
    for _ in 0..plan.runs {
        synced.push(one_sync_each(plan, length)?);
        for (case, made) in CASES.into_iter().zip(&mut made) {
            made.push(grouped(plan, case, length)?);
        }
    }
    for ((delay, _, pace), made) in CASES.into_iter().zip(&made) {
        let name = format!(
            "group commit, disk, delay {delay} ms, {}",
            if pace == 0 { "flat out" } else { "50,000/s" }
        );
        let rate = Figure::new(format!("{name}, rate"), "1/s")
            .ours(made.iter().map(|made| made.rate))
            .peer(synced.iter().copied())
            .peer_name("one fdatasync each");
        // Paced, the rate is the one that was asked for: its relation to a disk's syncs says more of the disk.
        let rate = if pace == 0 { rate.target(Target::RatioAtLeast(FASTER_MIN)) } else { rate };
        report.figure(rate);
        let p99 =
            Figure::new(format!("{name}, p99"), "ms").ours(made.iter().map(|made| made.p99_ms));
        let late = if pace == 0 { p99 } else { p99.target(Target::AtMost(delay as f64)) };
        let flush = made.iter().map(|made| format!("{:.1}", made.apart_ms)).collect::<Vec<_>>();
        report.figure(
            late.note(format!("ms from flush to flush, mean by run: {}", flush.join(", "))),
        );
    }
    Ok(())
}

struct Made {
    rate: f64,
    p99_ms: f64,
    /// From one flush to the next.
    apart_ms: f64,
}

fn one_sync_each(plan: &Plan, length: Duration) -> anyhow::Result<f64> {
    let path = plan.folder.join("synced");
    let mut file = File::create(&path)?;
    let body = [0x5a; BYTES];
    let begun = Stopwatch::now();
    let mut count = 0_u64;
    while begun.elapsed() < length {
        file.write_all(&body)?;
        file.sync_data()?;
        count += 1;
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    fs::remove_file(path)?;
    Ok(rate)
}

fn grouped(
    plan: &Plan,
    (delay, window, pace): (u64, usize, u64),
    length: Duration,
) -> anyhow::Result<Made> {
    let config = LogConfig { bytes_max: 256 << 20, segment_bytes: 16 << 20 };
    let commit =
        CommitConfig { delay_max: Duration::from_millis(delay), ..CommitConfig::default() };
    let log = Running::open(&plan.folder.join("commit"), config, commit, None)?;
    let commits = log.commits().clone();
    let before = commits.counts();
    let log = Mutex::new(log);
    let begun = Stopwatch::now();
    let produce = || -> anyhow::Result<Vec<f64>> {
        let body = [0x5a; BYTES];
        let (mut taken, mut waiting) = (Vec::new(), VecDeque::new());
        let mut next = Stopwatch::now();
        while begun.elapsed() < length {
            if pace > 0 {
                next += Duration::from_micros(pace);
                thread::sleep(next.saturating_duration_since(Stopwatch::now()));
            }
            let asked = Stopwatch::now();
            let position = {
                let mut log = log.lock().expect("no producer panics");
                log.append(Durability::Disk, &body)?
            };
            waiting.push_back((position, asked));
            if waiting.len() >= window {
                commits.wait(waiting[0].0).context("the disk works")?;
            }
            let now = Stopwatch::now();
            while let Some(&(position, asked)) = waiting.front()
                && commits.poll(position).is_some()
            {
                taken.push((now - asked).as_secs_f64() * 1e3);
                waiting.pop_front();
            }
        }
        Ok(taken)
    };
    let taken: Vec<f64> = thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS).map(|_| scope.spawn(produce)).collect();
        let taken = producers.into_iter().map(|p| p.join().expect("no producer panics"));
        taken.collect::<anyhow::Result<Vec<Vec<f64>>>>()
    })?
    .concat();
    let elapsed = begun.elapsed();
    let flushes = (commits.counts().flushes - before.flushes).max(1);
    Ok(Made {
        rate: taken.len() as f64 / elapsed.as_secs_f64(),
        p99_ms: percentile(&taken, 0.99),
        apart_ms: elapsed.as_secs_f64() * 1e3 / flushes as f64,
    })
}

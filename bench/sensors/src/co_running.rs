//! Whether applications at one edge disturb each other: latency of each alone, and beside the three others.
//!
//! ```text
//!  CITY ─┐
//!  TAXI ─┼─▶ edge, one thread: by the first level of the topic ─▶ that application's flows ── notifications ─▶ subscriber
//!  GRID ─┤                     └─ our codec's batches ─▶ host
//!  FIT ──┘
//! ```

use std::{cell::RefCell, time::Duration};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, percentile};
use tidegate_load::sensors::Workload;

use crate::{
    Plan,
    ways::{
        DEVICES, LOG_BYTES_MAX, ROUNDS, WARM_ROUNDS, Way,
        feed::Feed,
        outcome,
        trial::{Pace, Trial},
    },
};

/// Messages a second of each application.
const RATE: f64 = 50_000.0;
/// How much slower it may be beside others.
const RATIO_MAX: f64 = 1.1;

/// Latencies of one run in us, by application.
type Latencies = Vec<Vec<f64>>;

/// Latency of each application alone and next to the others.
///
/// # Errors
/// A socket or a thread cannot be had.
pub fn co_running(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let time = Duration::from_secs(if plan.quick { 4 } else { 20 });
    report.configuration(
        "co-running",
        format!("{DEVICES} topics and {RATE} messages/s of each application for {time:?}, in random order; way: {}", Way::Ours.name()),
    );
    let groups: Vec<Vec<Workload>> = Workload::ALL
        .into_iter()
        .map(|workload| vec![workload])
        .chain([Workload::ALL.to_vec()])
        .collect();
    let mut feeds = Vec::new();
    for workloads in &groups {
        let feed = Feed::new(workloads, DEVICES, ROUNDS, plan.seed)?;
        feeds.push(RefCell::new(feed));
    }
    let mut contenders: Vec<_> = groups
        .iter()
        .zip(&feeds)
        .map(|(workloads, feed)| move |_: usize| run(workloads, &mut feed.borrow_mut(), time))
        .collect();
    let mut contenders: Vec<&mut dyn FnMut(usize) -> anyhow::Result<Latencies>> =
        contenders.iter_mut().map(|contender| contender as _).collect();
    let runs = bench_harness::interleave(plan.runs, &mut contenders)?;
    let (together, alone) = runs.split_last().context("there are runs")?;
    for (index, (workload, alone)) in Workload::ALL.into_iter().zip(alone).enumerate() {
        for (part, word) in [(0.5, "p50"), (0.99, "p99")] {
            report.figure(
                Figure::new(
                    format!("{workload} beside the others: publish to last notification, {word}"),
                    "us",
                )
                .ours(together.iter().map(|run| percentile(&run[index], part)))
                .peer(alone.iter().map(|run| percentile(&run[0], part)))
                .peer_name("alone")
                .target(Target::RatioAtMost(RATIO_MAX)),
            );
        }
    }
    Ok(())
}

fn run(workloads: &[Workload], feed: &mut Feed, time: Duration) -> anyhow::Result<Latencies> {
    let count = workloads.len() as u64;
    let trial = Trial {
        way: Way::Ours,
        workloads: workloads.to_vec(),
        pace: Pace::Even(RATE * count as f64),
        time,
        warm: WARM_ROUNDS * DEVICES * count,
        messages_max: u64::MAX >> 2,
        log_bytes_max: LOG_BYTES_MAX,
    };
    let outcome = outcome::run(&trial, feed)?;
    anyhow::ensure!(
        outcome.is_stable(),
        "unstable: {} of {} messages and {} of {} notifications were lost",
        outcome.lost,
        outcome.published,
        outcome.notified.saturating_sub(outcome.heard),
        outcome.notified
    );
    Ok(outcome.latencies)
}

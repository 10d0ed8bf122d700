//! The paper's comparison of ways to bring messages from an edge to a host, on two processors: how many come through, and how soon
//! subscribers know.
//!
//! ```text
//!                     EDGE, one thread                              HOST, another
//!  baseline           each message in a datagram ── loopback ─▶ log in memory, flows ── notifications ─▶ subscriber
//!  baseline + batch   1,500 B of messages        ── loopback ─▶ the same
//!  flow               flows ── notifications;  each in a datagram          ─▶ log in memory
//!  flow + batch       flows ── notifications;  1,500 B of messages         ─▶ log in memory
//!  flow + comprex     flows ── notifications;  1,500 B of the paper's code ─▶ decoder, log in memory
//!  ours               flows ── notifications;  64 KiB of our codec's rows  ─▶ decoder, log in memory
//! ```
//!
//! The paper's edge is an FPGA that keeps up with the line. Ours is a processor like the host's, so a stable rate is that of the slower
//! of two, and a row says which; the host's messages per second of its own processor time are what the paper's rates are of.
//!
//! Messages lie in memory beforehand and are due at an even pace; one is published when it is due, whether the edge has time for it or
//! not. Datagrams of one length go by one call (GSO). On loopback the kernel's work for a datagram up to the socket is charged to who
//! sends it: the edge. A notification is received when it lies in the subscriber's socket.

mod critical;
mod edge;
pub mod feed;
mod host;
pub mod outcome;
pub mod packer;
pub mod search;
pub mod trial;
pub mod unpacker;
mod verify;

use std::{
    cell::RefCell,
    fmt::Write as _,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, median, percentile};
use tidegate_load::sensors::Workload;

use self::{
    feed::Feed,
    outcome::Outcome,
    trial::{Pace, Trial},
};
use crate::Plan;

/// Topics of each application, and messages of each on average before they come round again.
pub(crate) const DEVICES: u64 = 5_000;
pub(crate) const ROUNDS: u64 = 40;
/// Messages of each topic before anything is measured.
pub(crate) const WARM_ROUNDS: u64 = 3;
/// Bytes of messages that a host keeps before it starts over.
pub(crate) const LOG_BYTES_MAX: usize = 16 << 20;
/// Of the baseline's stable rate, the load under which latencies are measured.
const LOAD: f64 = 0.7;
/// Rates that are tried, each twice before it counts as too high.
const TRIES: u32 = 5;
const ATTEMPTS: u32 = 2;
/// Rates that are tried for the whole time, as long as that has not passed twice already: where other programs take the processors away,
/// none may hold.
const CONFIRMATIONS: u32 = 8;

/// How messages get from the edge to the host, and where the critical part runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One by one; all is done at the host.
    Baseline,
    /// In batches; all is done at the host.
    BaselineBatch,
    /// The critical part runs at the edge; one by one.
    Flow,
    /// The critical part runs at the edge; in batches.
    FlowBatch,
    /// The critical part runs at the edge; in batches of the paper's code.
    FlowComprex,
    /// The critical part runs at the edge; in batches of our codec.
    Ours,
}

impl Way {
    /// All of them, in the paper's order.
    pub const ALL: [Self; 6] = [
        Self::Baseline,
        Self::BaselineBatch,
        Self::Flow,
        Self::FlowBatch,
        Self::FlowComprex,
        Self::Ours,
    ];

    /// How it is named in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::BaselineBatch => "baseline + batch",
            Self::Flow => "flow",
            Self::FlowBatch => "flow + batch",
            Self::FlowComprex => "flow + comprex",
            Self::Ours => "ours",
        }
    }

    /// Whether the critical part runs at the edge.
    pub fn runs_at_edge(self) -> bool {
        !matches!(self, Self::Baseline | Self::BaselineBatch)
    }

    /// The paper's throughput beside its baseline; ours is to be as high as its highest.
    fn paper(self) -> Option<f64> {
        match self {
            Self::Baseline => None,
            Self::BaselineBatch => Some(1.3),
            Self::Flow => Some(2.1),
            Self::FlowBatch => Some(10.6),
            Self::FlowComprex | Self::Ours => Some(13.5),
        }
    }
}

/// How long each part takes.
#[derive(Clone, Copy, Debug)]
struct Times {
    capacity: Duration,
    probe: Duration,
    confirm: Duration,
    latency: Duration,
}

impl Times {
    fn new(is_quick: bool) -> Self {
        let millis = Duration::from_millis;
        match is_quick {
            true => Self {
                capacity: millis(700),
                probe: millis(500),
                confirm: millis(60_000),
                latency: millis(1200),
            },
            false => Self {
                capacity: millis(3000),
                probe: millis(2000),
                confirm: millis(600_000),
                latency: millis(10_000),
            },
        }
    }
}

/// The findings of one way.
#[derive(Clone, Debug, Default)]
struct Found {
    /// Messages per second of the host's processor time, and per second, as the host takes them, in each run.
    host: Vec<f64>,
    taken: Vec<f64>,
    /// The highest rate that holds for a short time, and for the whole; not a number if there is none.
    stable: f64,
    confirmed: Option<f64>,
    /// The work of both sides at that rate, in short.
    limit: String,
}

/// Throughput and latency of each way, for each application.
///
/// # Errors
/// A socket or a thread cannot be had, or what comes out of a way is not what went in.
pub fn ways(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let times = Times::new(plan.quick);
    let confirmed = if plan.quick { "baseline and ours alone" } else { "every way" };
    report.configuration(
        "ways",
        format!(
            "fixed layouts, {DEVICES} topics of each application, one message in 97 made to notify; loopback, edge and host on a \
             processor each, sockets of {} B; batches of 1,500 B, ours of {} KiB without zstd, {:?} at most; comprex: max_n and \
             max_store 10; stable: {} % lost at most, found by {TRIES} rates of {:?} each, held for {:?} by {confirmed}; latencies at \
             {} % of the baseline's rate for {:?}",
            trial::BUFFER_BYTES,
            64,
            packer::BATCH_AGE,
            100.0 * trial::LOSS_MAX,
            times.probe,
            times.confirm,
            100.0 * LOAD,
            times.latency,
        ),
    );
    let mut latencies = String::from("application,way,run,rate,min,p25,p75,p99,max,count\n");
    for workload in Workload::ALL {
        let mut feed = Feed::new(&[workload], DEVICES, ROUNDS, plan.seed)?;
        verify::verify(workload, &mut feed)?;
        let found = throughput(plan, times, workload, &mut feed)?;
        throughput_rows(plan, report, workload, &found);
        let rate =
            LOAD * found[0].confirmed.filter(|rate| rate.is_finite()).unwrap_or(found[0].stable);
        if rate.is_finite() {
            latency(plan, times, report, workload, rate, &mut feed, &mut latencies)?;
        } else {
            report.figure(
                Figure::new(format!("{workload}: publish to last notification"), "us")
                    .target(Target::AtMost(0.0))
                    .note("not measured: the baseline has no stable rate"),
            );
        }
    }
    report.attach("ways-latency.csv", latencies);
    Ok(())
}

fn trial(workload: Workload, way: Way, pace: Pace, time: Duration) -> Trial {
    Trial {
        way,
        workloads: vec![workload],
        pace,
        time,
        warm: WARM_ROUNDS * DEVICES,
        messages_max: u64::MAX >> 2,
        log_bytes_max: LOG_BYTES_MAX,
    }
}

fn throughput(
    plan: &Plan,
    times: Times,
    workload: Workload,
    feed: &mut Feed,
) -> anyhow::Result<Vec<Found>> {
    let shared = RefCell::new(feed);
    let mut contenders = Way::ALL.map(|way| {
        let shared = &shared;
        move |_| -> anyhow::Result<Outcome> {
            let trial = trial(workload, way, Pace::AsTaken, times.capacity);
            let outcome = outcome::run(&trial, &mut shared.borrow_mut());
            outcome.with_context(|| format!("{workload}, {}", way.name()))
        }
    });
    let mut contenders: Vec<&mut dyn FnMut(usize) -> anyhow::Result<Outcome>> =
        contenders.iter_mut().map(|contender| contender as _).collect();
    let runs = bench_harness::interleave(plan.runs, &mut contenders)?;
    let feed = shared.into_inner();
    let mut all = Vec::new();
    for (way, runs) in Way::ALL.into_iter().zip(&runs) {
        let taken = |run: &Outcome| run.received.taken as f64 / run.sent.seconds;
        let mut found = Found {
            host: runs.iter().map(Outcome::host_rate).collect(),
            taken: runs.iter().map(taken).collect(),
            stable: f64::NAN,
            ..Found::default()
        };
        let capacity = median(&found.taken);
        let mut limit = String::from("no rate holds");
        let mut is_stable = |rate: f64, time: Duration, attempts: u32| -> anyhow::Result<bool> {
            for _ in 0..attempts {
                let outcome = outcome::run(&trial(workload, way, Pace::Even(rate), time), feed)?;
                if outcome.is_stable() {
                    limit = busy(&outcome);
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let stable = search::highest(capacity / 3.0, 1.2 * capacity, TRIES, |rate| {
            is_stable(rate, times.probe, ATTEMPTS)
        })?;
        if let Some(stable) = stable {
            found.stable = stable;
            if !plan.quick || matches!(way, Way::Baseline | Way::Ours) {
                let began = Instant::now();
                let confirmed = search::lowered(stable, CONFIRMATIONS, |rate| {
                    let is_late = began.elapsed() > 2 * times.confirm;
                    Ok::<_, anyhow::Error>(!is_late && is_stable(rate, times.confirm, 1)?)
                })?;
                found.confirmed = Some(confirmed.unwrap_or(f64::NAN));
            }
        }
        found.limit = limit;
        eprintln!(
            "bench-sensors: {workload}, {}: host {:.2} M/s, stable {:.2} M/s, {}",
            way.name(),
            median(&found.host) / 1e6,
            found.confirmed.unwrap_or(found.stable) / 1e6,
            found.limit
        );
        all.push(found);
    }
    Ok(all)
}

fn busy(outcome: &Outcome) -> String {
    let percent = |part: f64| 100.0 * part;
    format!(
        "edge busy {:.0} %, host {:.0} %, lost {:.3} %",
        percent(outcome.sent.busy),
        percent(outcome.host_busy()),
        percent(outcome.lost as f64 / outcome.published as f64),
    )
}

fn throughput_rows(plan: &Plan, report: &mut Report, workload: Workload, found: &[Found]) {
    let millions = |rates: &[f64]| rates.iter().map(|rate| rate / 1e6).collect::<Vec<_>>();
    type Part<'a> = (&'a str, &'a dyn Fn(&Found) -> Vec<f64>);
    let whole = |found: &Found| vec![found.confirmed.unwrap_or(found.stable)];
    let short = |found: &Found| vec![found.stable];
    let host: Part<'_> = ("per CPU-second of the host", &|found| found.host.clone());
    let stable: Part<'_> = match plan.quick {
        true => ("stable for half a second", &short),
        false => ("stable for ten minutes", &whole),
    };
    for (what, part) in [host, stable] {
        for (way, one) in Way::ALL.into_iter().zip(found) {
            let figure = Figure::new(format!("{workload}: {what}, {}", way.name()), "M/s")
                .ours(millions(&part(one)));
            let figure = match way.paper() {
                Some(paper) => figure
                    .peer(millions(&part(&found[0])))
                    .peer_name("baseline")
                    .target(Target::RatioAtLeast(paper)),
                None => figure,
            };
            report.figure(match what == stable.0 {
                true => figure.note(one.limit.clone()),
                false => figure,
            });
        }
        let (best, others) = best_other(found, part);
        report.figure(
            Figure::new(format!("{workload}: {what}, ours beside the best other"), "M/s")
                .ours(millions(&part(&found[Way::ALL.len() - 1])))
                .peer(millions(&others))
                .peer_name(best.name())
                .target(Target::RatioAtLeast(1.0)),
        );
    }
    if plan.quick {
        report.figure(
            Figure::new(format!("{workload}: stable for a minute, ours"), "M/s")
                .ours(millions(&whole(&found[Way::ALL.len() - 1])))
                .peer(millions(&whole(&found[0])))
                .peer_name("baseline")
                .target(Target::RatioAtLeast(Way::Ours.paper().unwrap_or_default())),
        );
    }
}

/// The way other than ours whose median is highest, and its values.
fn best_other(found: &[Found], part: &dyn Fn(&Found) -> Vec<f64>) -> (Way, Vec<f64>) {
    let others = Way::ALL.into_iter().zip(found).filter(|(way, _)| *way != Way::Ours);
    let values = others.map(|(way, found)| (way, part(found)));
    values
        .max_by(|(_, one), (_, other)| {
            // A value that is not a number is no competitor.
            median(one).max(0.0).total_cmp(&median(other).max(0.0))
        })
        .expect("there are others")
}

fn latency(
    plan: &Plan,
    times: Times,
    report: &mut Report,
    workload: Workload,
    rate: f64,
    feed: &mut Feed,
    table: &mut String,
) -> anyhow::Result<()> {
    let mut baseline = Vec::new();
    for way in Way::ALL {
        let mut runs = Vec::new();
        let mut lost = 0.0_f64;
        for run in 0..plan.runs {
            let trial = trial(workload, way, Pace::Even(rate), times.latency);
            let outcome = outcome::run(&trial, feed)?;
            let samples = outcome.latencies.first().context("there is an application")?;
            // Of a trial that was ended there is only the beginning.
            let samples = if outcome.is_hopeless { &[][..] } else { samples };
            lost = lost.max(outcome.lost as f64 / outcome.published as f64);
            let [min, p25, p75, p99, max] = spread(samples);
            let count = samples.len();
            writeln!(
                table,
                "{workload},{},{run},{rate:.0},{min:.1},{p25:.1},{p75:.1},{p99:.1},{max:.1},{count}",
                way.name()
            )?;
            runs.push(spread(samples));
        }
        let column = |index: usize| runs.iter().map(|run| run[index]).collect::<Vec<_>>();
        if way == Way::Baseline {
            baseline = column(3);
        }
        let [min, p25, p75, max] = [0, 1, 2, 4].map(|index| median(&column(index)));
        let figure =
            Figure::new(format!("{workload}: publish to last notification, p99, {}", way.name()), "us")
                .ours(column(3))
                .note(format!(
                    "min {min:.0}, p25 {p25:.0}, p75 {p75:.0}, max {max:.0} us at {rate:.0} messages/s; lost {:.2} %",
                    100.0 * lost
                ));
        report.figure(match way {
            Way::Baseline => figure,
            _ => figure.peer(baseline.iter().copied()).peer_name("baseline"),
        });
    }
    Ok(())
}

/// Least, p25, p75, p99 and greatest.
fn spread(samples: &[f64]) -> [f64; 5] {
    [0.0, 0.25, 0.75, 0.99, 1.0].map(|part| percentile(samples, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_samples_that_occurred() {
        let samples: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        assert_eq!(spread(&samples), [1.0, 250.0, 750.0, 990.0, 1000.0]);
        assert!(spread(&[]).iter().all(|value| value.is_nan()));
    }

    #[test]
    fn the_best_other_is_not_ours_and_has_a_value() {
        let mut found = vec![Found { stable: 1.0, ..Found::default() }; 6];
        found[3].stable = 7.0;
        found[4].stable = f64::NAN;
        found[5].stable = 9.0;
        let (way, values) = best_other(&found, &|found| vec![found.stable]);
        assert_eq!((way, values), (Way::FlowBatch, vec![7.0]));
    }

    #[test]
    fn all_ways_bring_what_was_published() {
        for workload in Workload::ALL {
            let mut feed = Feed::new(&[workload], 200, 12, 1).expect("messages are made");
            verify::verify(workload, &mut feed).expect("all ways bring all");
        }
    }
}

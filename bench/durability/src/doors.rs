//! Attacks without any right on every listener of a running node, while healthy clients continue.
//!
//! ```text
//!  Site: a node process, certificates of every sort, users and roles
//!  Healthy: 200 messages a second with QoS 1, and a caller of the API ──▶ p99 before and during each sort of attempt
//!  Sort ──▶ attempts at an even pace ──▶ how many were refused: all, or the row is short
//! ```
//!
//! Always true: a client with the right proof is accepted, before and after (a listener that refuses all would pass
//! otherwise).

mod attempts;
mod healthy;
mod site;

use std::{
    thread,
    time::{Duration, Instant as Stopwatch},
};

use bench_harness::{Figure, Report, Target, percentile};

use self::{
    attempts::{Attacker, Sort},
    healthy::{Healthy, Samples},
    site::Site,
};
use crate::Plan;

/// Most that attempts may add to the p99 of healthy clients, as a ratio.
const P99_RATIO_MAX: f64 = 1.2;
/// Time for queues to empty between two phases.
const SETTLE: Duration = Duration::from_millis(500);

/// The results of one run of one sort.
#[derive(Default)]
struct Runs {
    refused: Vec<f64>,
    attempts: u32,
    with: Tails,
    without: Tails,
    first_miss: Option<String>,
}

/// p99 in ms, one a run.
#[derive(Default)]
struct Tails {
    messages: Vec<f64>,
    calls: Vec<f64>,
}

impl Tails {
    fn push(&mut self, samples: &Samples) {
        self.messages.push(percentile(&samples.messages_ms, 0.99));
        self.calls.push(percentile(&samples.calls_ms, 0.99));
    }
}

/// Attempts refused, and what they cost those who may come in.
///
/// # Errors
/// The node cannot be started, a healthy client cannot connect, or someone who may come in is refused.
pub fn doors(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let site = Site::start(&plan.folder)?;
    let quiet = Duration::from_secs(if plan.quick { 2 } else { 5 });
    report.configuration(
        "doors",
        format!(
            "one node, its health and API and links and three MQTT listeners; healthy: {} messages/s of QoS 1 with a password, {} \
             calls/s with a certificate; {} s without attempts before each sort; attempts come from a thread that gives way",
            healthy::MESSAGES_PER_SECOND,
            healthy::CALLS_PER_SECOND,
            quiet.as_secs()
        ),
    );
    let attacker = Attacker::new(&site)?;
    attacker.check_that_the_right_ones_come_in()?;
    let healthy = Healthy::start(&site)?;
    let mut sorts: Vec<(Sort, Runs)> =
        Sort::ALL.into_iter().map(|sort| (sort, Runs::default())).collect();
    for run in 0..plan.runs {
        for (sort, runs) in &mut sorts {
            thread::sleep(SETTLE);
            healthy.take();
            thread::sleep(quiet);
            runs.without.push(&healthy.take());
            let begun = Stopwatch::now();
            let tried = elsewhere(|| sort.attempt(&attacker, plan.quick))?;
            runs.with.push(&healthy.take());
            runs.attempts = tried.attempts;
            runs.refused.push(f64::from(tried.refused));
            runs.first_miss = runs.first_miss.take().or(tried.first_miss);
            eprintln!(
                "bench-durability: run {run}, {}: {} of {} refused, {:.1} s",
                sort.name(),
                tried.refused,
                tried.attempts,
                begun.elapsed().as_secs_f64()
            );
        }
    }
    attacker.check_that_the_right_ones_come_in()?;
    let ended = healthy.stop();
    for (sort, runs) in sorts {
        let name = sort.name();
        let figure = Figure::new(format!("{name}: refused of {}", runs.attempts), "")
            .ours(runs.refused)
            .target(Target::Exactly(f64::from(runs.attempts)));
        report.figure(match runs.first_miss {
            Some(miss) => figure.note(miss),
            None => figure,
        });
        for (what, with, without) in [
            ("message, QoS 1", runs.with.messages, runs.without.messages),
            ("call", runs.with.calls, runs.without.calls),
        ] {
            report.figure(
                Figure::new(format!("{name}: p99 of a healthy {what}"), "ms")
                    .ours(with)
                    .peer(without)
                    .peer_name("no attempts")
                    .target(Target::RatioAtMost(P99_RATIO_MAX)),
            );
        }
    }
    let lost = Figure::new("healthy clients: messages lost, foreign ones received, failures", "")
        .ours([(ended.lost + ended.foreign + ended.failures.len() as u64) as f64])
        .target(Target::Exactly(0.0));
    report.figure(match ended.failures.first() {
        Some(first) => lost.note(format!("of {} messages; {first}", ended.sent)),
        None => lost.note(format!("of {} messages", ended.sent)),
    });
    Ok(())
}

/// Does it as if it were another machine's work, as far as that is possible on this one: the attackers' own cost is not to be
/// measured.
fn elsewhere<T: Send>(attempts: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tidegate_sys::sched::give_way()?;
            anyhow::Ok(attempts())
        });
        thread.join().map_err(|_| anyhow::anyhow!("the attempts panicked"))?
    })
}

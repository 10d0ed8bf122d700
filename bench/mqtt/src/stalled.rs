//! 75 subscribers of large messages that never read, and two that do.

use std::{collections::BTreeMap, time::Duration};

use bench_harness::{Figure, Report, Target, percentile};
use tidegate_load::process::reset_peak;
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    broker::{Kind, Programs, Setup},
    traffic::{self, Flow, Outcome, Place, Publisher, Subscriber},
};

const STALLED: usize = 75;
const LARGE_BYTES: usize = 1_000_000;
const LARGE_PERIOD: Duration = Duration::from_millis(100);
const SMALL_PERIOD: Duration = Duration::from_millis(50);
/// The default of `payload_bytes_max`, and what is allowed beside.
const BUDGET_MB: f64 = 268.4;
const BESIDE_MB: f64 = 33.6;
const SMALL_P99_MS: f64 = 20.0;
/// A publisher that waits longer than its period for one acknowledgement has been blocked.
const HELD_UP_MS: f64 = 100.0;
const LARGE: usize = 0;
const SMALL: usize = 1;

/// Peak memory, the healthy small subscriber's latency, and whether the publisher was held up.
///
/// # Errors
/// Ours does not serve.
pub fn stalled(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    report: &mut Report,
) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 8 } else { 30 });
    let runs = if plan.quick { 1 } else { plan.runs };
    let contenders: Vec<Kind> = contenders
        .iter()
        .copied()
        .filter(|kind| !plan.quick || matches!(kind, Kind::Tidegate | Kind::Mosquitto))
        .collect();
    report.configuration(
        "stalled",
        format!(
            "{STALLED} subscribers with QoS 1 that never read, 1 MB each 100 ms with QoS 1 for {} s, one healthy subscriber of \
             the large ones, one of 100 B each 50 ms; peers with their default limits",
            length.as_secs()
        ),
    );
    let mut made: BTreeMap<Kind, Vec<(f64, Outcome)>> = BTreeMap::new();
    for run in 0..runs {
        for turn in 0..contenders.len() {
            let kind = contenders[(run + turn) % contenders.len()];
            match one(programs, kind, length) {
                Ok(outcome) => {
                    let memory = outcome.1.memory.iter();
                    let name =
                        format!("stalled, {}, run {run}, resident MB each 200 ms", kind.name());
                    report.samples(name, memory.map(|(_, bytes)| *bytes as f64 / 1e6));
                    made.entry(kind).or_default().push(outcome);
                }
                Err(error) if kind == Kind::Tidegate => return Err(error),
                Err(error) => eprintln!("bench-mqtt: stalled, {}: {error:#}", kind.name()),
            }
        }
    }
    type Pick = fn(&(f64, Outcome)) -> f64;
    let picks: [(&str, &str, Pick, Target); 4] = [
        ("peak resident", "MB", |made| made.0, Target::AtMost(BUDGET_MB + BESIDE_MB)),
        (
            "healthy small p99",
            "ms",
            |made| percentile(&made.1.ms(SMALL, |_| true), 0.99),
            Target::AtMost(SMALL_P99_MS),
        ),
        (
            "longest hold-up of a publisher",
            "ms",
            |made| made.1.held_up_ms,
            Target::AtMost(HELD_UP_MS),
        ),
        (
            "healthy, messages not arrived",
            "",
            |made| f64::from(made.1.lost(SMALL) + made.1.lost(LARGE)),
            Target::Shown,
        ),
    ];
    for (what, unit, pick, target) in picks {
        for peer in contenders.iter().filter(|kind| **kind != Kind::Tidegate) {
            let of = |kind: Kind| -> Vec<f64> {
                made.get(&kind).into_iter().flatten().map(pick).collect()
            };
            let mut figure =
                Figure::new(format!("{STALLED} stalled, {what}, beside {}", peer.name()), unit)
                    .ours(of(Kind::Tidegate))
                    .peer(of(*peer))
                    .peer_name(peer.name());
            if Some(peer) == contenders.iter().find(|kind| **kind != Kind::Tidegate) {
                figure = figure.target(target);
            }
            let said: Vec<&str> = made
                .get(peer)
                .into_iter()
                .flatten()
                .flat_map(|(_, outcome)| &outcome.failed)
                .map(String::as_str)
                .take(1)
                .collect();
            if !said.is_empty() {
                figure = figure.note(format!("{}: {}", peer.name(), said.join("")));
            }
            report.figure(figure);
        }
    }
    Ok(())
}

/// Peak in MB, and what became of the messages.
fn one(programs: &Programs, kind: Kind, length: Duration) -> anyhow::Result<(f64, Outcome)> {
    let broker = programs.start(kind, &Setup { raised: false, ..Setup::default() })?;
    let place = Place::Beside(None);
    let flow = |name: &str, bytes, period, qos| Flow {
        topic: format!("bench/{name}"),
        bytes,
        period,
        first: Duration::ZERO,
        qos,
    };
    // Connections of their own: what is measured is the broker, not a publisher that is busy with a large message.
    let publishers = [
        flow("large", LARGE_BYTES, LARGE_PERIOD, QoS::AtLeastOnce),
        flow("small", 100, SMALL_PERIOD, QoS::AtLeastOnce),
    ]
    .map(|flow| Publisher { place, flows: vec![flow] });
    let large = [("bench/large", QoS::AtLeastOnce)];
    let mut subscribers: Vec<Subscriber<'_>> = (0..STALLED)
        .map(|_| Subscriber { reads: false, ..Subscriber::new(place, &large) })
        .collect();
    subscribers.push(Subscriber::new(place, &large));
    subscribers.push(Subscriber::new(place, &[("bench/small", QoS::AtLeastOnce)]));
    reset_peak(broker.process())?;
    let drain = Duration::from_secs(3);
    let outcome = traffic::run(&broker, &publishers, &subscribers, length, drain)?;
    let peak = broker.usage()?.resident_peak_bytes;
    Ok((peak as f64 / 1e6, outcome))
}

//! The load of most nodes: few messages a second, each by itself, of one client or a hundred, on as many shards as a node of two
//! processors has.
//!
//! Publisher and subscriber are on two shards as often as not. The time of a message is counted, and the processor's time that it costs,
//! beside mosquitto, which has one thread, and beside a bare [relay](crate::relay), whose cost is the kernel's.

use std::collections::BTreeMap;

use bench_harness::{Figure, Report, Target, Tolerance};
use tidegate_load::{Pace, Report as Load, Topology};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    broker::{Kind, Programs},
    relay::Engine,
    sparse::{Case, Side, load},
};

/// A figure of a load.
type Pick = fn(&Load) -> f64;

/// Shards of ours: those of a node on two processors.
const SHARDS: usize = 2;

fn cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for rate in [100.0, 1_000.0, 5_000.0] {
        for pairs in [1, 100] {
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
                let name = format!("{rate}/s, {pairs} to {pairs}, QoS {}", qos as u8);
                let case = Case {
                    name: "quiet",
                    target: None,
                    topology: Topology::Pairs,
                    publishers: pairs,
                    subscribers: pairs,
                    qos,
                    pace: Pace::Rate(rate),
                };
                cases.push((name, case));
            }
        }
    }
    cases
}

/// Each load with mosquitto, the relay and ours in turn.
///
/// # Errors
/// Ours does not serve.
pub fn quiet(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    report: &mut Report,
) -> anyhow::Result<()> {
    let length = if plan.quick { 1.0 } else { 4.0 };
    report.configuration("quiet, seconds measured after as long a warm-up of at most 1 s", length);
    report.configuration("quiet, shards of ours", SHARDS as f64);
    let peers = [Side::Broker(Kind::Mosquitto), Side::Relay(Engine::Epoll)];
    let has_mosquitto = contenders.contains(&Kind::Mosquitto);
    for (name, case) in cases() {
        let mut sides = vec![Side::Broker(Kind::Tidegate)];
        sides.extend(peers.into_iter().filter(|side| has_mosquitto || *side != peers[0]));
        let mut made: BTreeMap<Side, Vec<Load>> = BTreeMap::new();
        for turn in 0..plan.runs * sides.len() {
            let (run, turn) = (turn / sides.len(), turn % sides.len());
            let side = sides[(run + turn) % sides.len()];
            let load = load(programs, side, &case, length, SHARDS)?;
            let named = |measured: &str| format!("quiet, {name}, {}, {measured}", side.name());
            report.samples(named("p50 us"), [load.total.latency.p50]);
            report.samples(named("p99 us"), [load.total.latency.p99]);
            report.samples(named("lost"), [load.total.lost as f64]);
            report.samples(named("CPU us a message"), [cpu_micros(&load)]);
            made.entry(side).or_default().push(load);
        }
        for peer in &sides[1..] {
            // Beside mosquitto no more than its own; beside the relay, which looks at nothing, three tenths more of its CPU.
            let bounds = match peer {
                Side::Broker(_) => [1.0, 1.0, 1.2],
                Side::Relay(_) => [1.3, 1.3, f64::INFINITY],
            };
            let picks: [(&str, Pick); 3] = [
                ("CPU a message", cpu_micros),
                ("p50", |load| load.total.latency.p50),
                ("p99", |load| load.total.latency.p99),
            ];
            for ((measured, pick), bound) in picks.into_iter().zip(bounds) {
                let of = |side: &Side| -> Vec<f64> {
                    made.get(side).into_iter().flatten().map(pick).collect()
                };
                let figure =
                    Figure::new(format!("quiet, {name}, {measured}, beside {}", peer.name()), "µs")
                        .ours(of(&sides[0]))
                        .peer(of(peer))
                        .peer_name(peer.name());
                report.figure(match bound.is_finite() {
                    true => figure
                        .target(Target::RatioAtMost(bound))
                        .tolerance(Tolerance::Absolute(0.05)),
                    false => figure,
                });
            }
        }
    }
    Ok(())
}

/// The processor's time of a message that was received, in microseconds.
fn cpu_micros(load: &Load) -> f64 {
    load.broker.map_or(f64::NAN, |broker| 1e6 / broker.per_cpu_second)
}

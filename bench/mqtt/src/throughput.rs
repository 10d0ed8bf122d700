//! Messages per second, and per second of the broker's processor time, over loopback.
//!
//! Closed loops: a publisher sends on when half of its window has arrived, so no broker loses messages and none is sent more
//! than it takes. Each load of each run has brokers of its own.

use std::{collections::BTreeMap, sync::atomic::AtomicBool, time::Duration};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target, Tolerance};
use tidegate_load::{Flow, Pace, Report as Load, Spec, Topology, run};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    broker::{Kind, Programs, Setup},
};

const PAYLOAD_BYTES: u32 = 100;

/// One load, with what ours must reach per processor second beside mosquitto's.
struct Case {
    name: &'static str,
    target: f64,
    spec: fn() -> Spec,
}

const CASES: [Case; 4] = [
    Case {
        name: "1→1 QoS 0, 100 B",
        target: 9.5,
        spec: || spec(Topology::Pairs, 1, 1, QoS::AtMostOnce),
    },
    Case {
        name: "1→1 QoS 1, 100 B",
        target: 8.5,
        spec: || spec(Topology::Pairs, 1, 1, QoS::AtLeastOnce),
    },
    Case {
        name: "fan-out 1→100, 100 B",
        target: 10.5,
        spec: || spec(Topology::FanOut, 1, 100, QoS::AtMostOnce),
    },
    Case {
        name: "50×50 pairs, 100 B",
        target: 11.0,
        spec: || spec(Topology::Pairs, 50, 50, QoS::AtMostOnce),
    },
];

fn spec(topology: Topology, publishers: u32, subscribers: u32, qos: QoS) -> Spec {
    let pace = Pace::Window(1000);
    let flow = Flow { payload_bytes: PAYLOAD_BYTES, qos, pace, ..Flow::default() };
    // As they were sent: NATS denies subscriptions with QoS 2.
    Spec {
        topology,
        publishers,
        subscribers,
        flows: vec![flow],
        subscribe_qos: qos,
        ..Spec::default()
    }
}

/// Each load with every contender in turn: per processor second has a target, received per second stands beside.
///
/// # Errors
/// Ours does not serve.
pub fn throughput(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    report: &mut Report,
) -> anyhow::Result<()> {
    let length = if plan.quick { 0.5 } else { 3.0 };
    report.configuration(
        "throughput, seconds measured after as long a warm-up of at most 1 s",
        length,
    );
    report.configuration(
        "throughput, generator",
        "one thread; windows of 1,000 messages, 100 in flight with QoS 1",
    );
    for case in &CASES {
        let mut made: BTreeMap<Kind, Vec<Load>> = BTreeMap::new();
        let mut failed: BTreeMap<Kind, String> = BTreeMap::new();
        for turn in 0..plan.runs * contenders.len() {
            let (run, turn) = (turn / contenders.len(), turn % contenders.len());
            let kind = contenders[(run + turn) % contenders.len()];
            match load(programs, kind, (case.spec)(), length) {
                Ok(load) => {
                    samples(report, case.name, kind, &load);
                    made.entry(kind).or_default().push(load);
                }
                Err(error) if kind == Kind::Tidegate => return Err(error.context(case.name)),
                Err(error) => {
                    failed.insert(kind, format!("{}: {error:#}", kind.name()));
                }
            }
        }
        let per_cpu = |load: &Load| load.broker.map_or(f64::NAN, |broker| broker.per_cpu_second);
        let per_second = |load: &Load| load.total.received_per_second;
        let of = |kind: Kind, pick: &dyn Fn(&Load) -> f64| {
            made.get(&kind).into_iter().flatten().map(pick).collect::<Vec<f64>>()
        };
        for peer in Kind::ALL.into_iter().skip(1) {
            let row = |what: &str, pick: &dyn Fn(&Load) -> f64| {
                let figure =
                    Figure::new(format!("{}, {what}, beside {}", case.name, peer.name()), "/s")
                        .ours(of(Kind::Tidegate, pick))
                        .peer(of(peer, pick))
                        .peer_name(peer.name());
                match failed.get(&peer) {
                    Some(reason) => figure.note(reason),
                    None if !made.contains_key(&peer) => {
                        figure.note(format!("{} is missing", peer.name()))
                    }
                    None => figure,
                }
            };
            let mut first = row("per CPU second", &per_cpu);
            if peer == Kind::Mosquitto {
                first = first.target(Target::RatioAtLeast(case.target));
            }
            report.figure(first);
            report.figure(row("received", &per_second));
        }
    }
    latency(plan, programs, contenders, report)
}

/// One load with a broker of its own.
fn load(programs: &Programs, kind: Kind, mut spec: Spec, length: f64) -> anyhow::Result<Load> {
    let broker = programs.start(kind, &Setup::default())?;
    spec.target = broker.target();
    spec.process = Some(broker.process());
    spec.duration = Duration::from_secs_f64(length);
    spec.warm_up = Duration::from_secs_f64(length.min(1.0));
    let load = run(&spec, &AtomicBool::new(false), |_| ()).context("loading a broker")?;
    ensure!(
        load.failures.is_empty(),
        "connections failed: {:?}; {}",
        load.failures,
        broker.last_words()
    );
    ensure!(load.total.received > 0, "nothing was received; {}", broker.last_words());
    Ok(load)
}

fn samples(report: &mut Report, name: &str, kind: Kind, load: &Load) {
    let named = |what: &str| format!("{name}, {}, {what}", kind.name());
    report.samples(named("received /s"), [load.total.received_per_second]);
    report.samples(named("lost"), [load.total.lost as f64]);
    if let Some(broker) = load.broker {
        report.samples(named("broker CPU s"), [broker.cpu_seconds]);
        report.samples(named("per CPU s"), [broker.per_cpu_second]);
    }
    report.samples(named("generator ns per message"), [load.generator.nanoseconds_per_message]);
}

/// QoS 1 at 1,000 messages a second.
fn latency(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    report: &mut Report,
) -> anyhow::Result<()> {
    let name = "QoS 1, 1,000 msg/s, latency";
    let length = if plan.quick { 1.5 } else { 5.0 };
    let mut made: BTreeMap<Kind, Vec<(f64, f64)>> = BTreeMap::new();
    for turn in 0..plan.runs * contenders.len() {
        let (run, turn) = (turn / contenders.len(), turn % contenders.len());
        let kind = contenders[(run + turn) % contenders.len()];
        let mut spec = spec(Topology::Pairs, 1, 1, QoS::AtLeastOnce);
        spec.flows[0].pace = Pace::Rate(1000.0);
        match load(programs, kind, spec, length) {
            Ok(load) => {
                let latency = load.total.latency;
                report.samples(format!("{name}, {}, p50 us", kind.name()), [latency.p50]);
                report.samples(format!("{name}, {}, p99 us", kind.name()), [latency.p99]);
                made.entry(kind).or_default().push((latency.p50, latency.p99));
            }
            Err(error) if kind == Kind::Tidegate => return Err(error.context(name)),
            Err(error) => eprintln!("bench-mqtt: {name}, {}: {error:#}", kind.name()),
        }
    }
    let of = |kind: Kind, pick: fn(&(f64, f64)) -> f64| {
        made.get(&kind).into_iter().flatten().map(pick).collect::<Vec<f64>>()
    };
    for peer in Kind::ALL.into_iter().skip(1) {
        type Pick = fn(&(f64, f64)) -> f64;
        let picks: [(&str, Pick); 2] = [("p50", |both| both.0), ("p99", |both| both.1)];
        for (what, pick) in picks {
            let mut figure = Figure::new(format!("{name} {what}, beside {}", peer.name()), "µs")
                .ours(of(Kind::Tidegate, pick))
                .peer(of(peer, pick))
                .peer_name(peer.name());
            if peer == Kind::Mosquitto {
                // The difference of two runs of one broker on a quiet machine.
                figure =
                    figure.target(Target::RatioAtMost(1.0)).tolerance(Tolerance::Absolute(0.05));
            }
            report.figure(figure);
        }
    }
    Ok(())
}

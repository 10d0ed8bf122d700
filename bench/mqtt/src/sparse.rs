//! The load that a fleet makes: thousands of connections, each of which sends one message now and then.
//!
//! Where messages come in bursts, one read brings hundreds of them. Here each one costs a read, a write and a share of a wait, for
//! every broker, and little else counts. A bare [relay](crate::relay) is measured for comparison: its cost is the kernel's.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Owned, Report, Target, Tolerance};
use tidegate_load::{Flow, Pace, Report as Load, Spec, Topology, run};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    broker::{Kind, Programs, Setup},
    relay::{self, Engine},
};

/// One load, with what ours must reach per processor second beside mosquitto's.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) target: Option<f64>,
    pub(crate) topology: Topology,
    pub(crate) publishers: u32,
    pub(crate) subscribers: u32,
    pub(crate) qos: QoS,
    pub(crate) pace: Pace,
}

const CASES: [Case; 5] = [
    Case {
        name: "1,000 pairs, 40,000/s, QoS 0",
        target: Some(3.0),
        topology: Topology::Pairs,
        publishers: 1_000,
        subscribers: 1_000,
        qos: QoS::AtMostOnce,
        pace: Pace::Rate(40_000.0),
    },
    Case {
        name: "1,000 pairs, 20,000/s, QoS 1",
        target: Some(4.0),
        topology: Topology::Pairs,
        publishers: 1_000,
        subscribers: 1_000,
        qos: QoS::AtLeastOnce,
        pace: Pace::Rate(20_000.0),
    },
    Case {
        name: "2,000 devices to 1, 40,000/s, QoS 0",
        target: None,
        topology: Topology::FanIn,
        publishers: 2_000,
        subscribers: 1,
        qos: QoS::AtMostOnce,
        pace: Pace::Rate(40_000.0),
    },
    Case {
        name: "2,000 devices to 1, 20,000/s, QoS 1",
        target: None,
        topology: Topology::FanIn,
        publishers: 2_000,
        subscribers: 1,
        qos: QoS::AtLeastOnce,
        pace: Pace::Rate(20_000.0),
    },
    Case {
        name: "50×50 pairs, one by one, QoS 0",
        target: None,
        topology: Topology::Pairs,
        publishers: 50,
        subscribers: 50,
        qos: QoS::AtMostOnce,
        pace: Pace::Window(1),
    },
];

/// Contenders, and the relay, which is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Broker(Kind),
    Relay(Engine),
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Broker(kind) => kind.name(),
            Self::Relay(Engine::Epoll) => "a bare relay (epoll)",
            Self::Relay(Engine::IoUring) => "a bare relay (io_uring)",
        }
    }
}

/// Each load with every contender in turn, and with the relay.
///
/// # Errors
/// Ours does not serve.
pub fn sparse(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    report: &mut Report,
) -> anyhow::Result<()> {
    let length = if plan.quick { 1.0 } else { 4.0 };
    report.configuration("sparse, seconds measured after as long a warm-up of at most 1 s", length);
    report.configuration(
        "sparse, relay",
        "one thread: receives, sends the same bytes to the other end of the pair, looks at nothing; by epoll, and by io_uring with \
         multishot receive and provided buffers",
    );
    for case in &CASES {
        let mut sides: Vec<Side> = contenders.iter().copied().map(Side::Broker).collect();
        if case.topology == Topology::Pairs {
            sides.extend(Engine::ALL.map(Side::Relay));
        }
        let mut made: BTreeMap<Side, Vec<Load>> = BTreeMap::new();
        let mut failed: BTreeMap<Side, String> = BTreeMap::new();
        for turn in 0..plan.runs * sides.len() {
            let (run, turn) = (turn / sides.len(), turn % sides.len());
            let side = sides[(run + turn) % sides.len()];
            match load(programs, side, case, length, 1) {
                Ok(load) => {
                    samples(report, case.name, side, &load);
                    made.entry(side).or_default().push(load);
                }
                Err(error) if side == Side::Broker(Kind::Tidegate) => {
                    return Err(error.context(case.name));
                }
                Err(error) => {
                    failed.insert(side, format!("{}: {error:#}", side.name()));
                }
            }
        }
        figures(case, &made, &failed, report);
    }
    Ok(())
}

fn figures(
    case: &Case,
    made: &BTreeMap<Side, Vec<Load>>,
    failed: &BTreeMap<Side, String>,
    report: &mut Report,
) {
    type Pick = fn(&Load) -> f64;
    let per_cpu: Pick = |load| load.broker.map_or(f64::NAN, |broker| broker.per_cpu_second);
    let p99: Pick = |load| load.total.latency.p99;
    let of = |side: Side, pick: Pick| {
        made.get(&side).into_iter().flatten().map(pick).collect::<Vec<f64>>()
    };
    let ours = Side::Broker(Kind::Tidegate);
    let peers = Kind::ALL.into_iter().skip(1).map(Side::Broker).chain(Engine::ALL.map(Side::Relay));
    for peer in peers {
        if matches!(peer, Side::Relay(_)) && case.topology != Topology::Pairs {
            continue;
        }
        let row = |measured: &str, unit: &str, pick: Pick| {
            let figure =
                Figure::new(format!("{}, {measured}, beside {}", case.name, peer.name()), unit)
                    .ours(of(ours, pick))
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
        let mut messages = row("per CPU second", "/s", per_cpu);
        let mut latency = row("p99", "µs", p99);
        if peer == Side::Broker(Kind::Mosquitto) {
            if let Some(target) = case.target {
                messages = messages.target(Target::RatioAtLeast(target));
            }
            // The difference of two runs of one broker on a quiet machine.
            latency = latency.target(Target::RatioAtMost(1.0)).tolerance(Tolerance::Absolute(0.05));
        }
        report.figure(messages);
        report.figure(latency);
    }
}

/// A load for so many seconds, with so many shards of ours.
pub(crate) fn load(
    programs: &Programs,
    side: Side,
    case: &Case,
    length: f64,
    shards: usize,
) -> anyhow::Result<Load> {
    let flow = Flow { payload_bytes: 100, qos: case.qos, pace: case.pace, ..Flow::default() };
    let mut spec = Spec {
        topology: case.topology,
        publishers: case.publishers,
        subscribers: case.subscribers,
        flows: vec![flow],
        subscribe_qos: case.qos,
        duration: Duration::from_secs_f64(length),
        warm_up: Duration::from_secs_f64(length.min(1.0)),
        ..Spec::default()
    };
    let check = |load: Load, said: &dyn Fn() -> String| -> anyhow::Result<Load> {
        ensure!(load.failures.is_empty(), "connections failed: {:?}; {}", load.failures, said());
        ensure!(load.total.received > 0, "nothing was received; {}", said());
        Ok(load)
    };
    match side {
        Side::Broker(kind) => {
            let broker = programs.start(kind, &Setup { shards, ..Setup::default() })?;
            spec.target = broker.target();
            spec.process = Some(broker.process());
            let load = run(&spec, &AtomicBool::new(false), |_| ()).context("loading a broker")?;
            check(load, &|| broker.last_words())
        }
        Side::Relay(engine) => {
            let own = std::env::current_exe().context("finding this program")?;
            let mut child = Owned::new(
                Command::new(own)
                    .args(["relay", engine.name()])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .context("starting the relay")?,
            );
            spec.target = relay::address_of(&mut child.0)?;
            spec.process = Some(child.0.id());
            let load = run(&spec, &AtomicBool::new(false), |_| ()).context("loading the relay")?;
            check(load, &String::new)
        }
    }
}

fn samples(report: &mut Report, name: &str, side: Side, load: &Load) {
    let named = |measured: &str| format!("sparse, {name}, {}, {measured}", side.name());
    report.samples(named("received /s"), [load.total.received_per_second]);
    report.samples(named("lost"), [load.total.lost as f64]);
    report.samples(named("p50 us"), [load.total.latency.p50]);
    report.samples(named("p99 us"), [load.total.latency.p99]);
    if let Some(broker) = load.broker {
        report.samples(named("broker CPU s"), [broker.cpu_seconds]);
        report.samples(named("per CPU s"), [broker.per_cpu_second]);
    }
}

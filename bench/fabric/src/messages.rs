//! Messages from a client at one node to a client at another: latency, and processor time of all nodes for each message.
//!
//! In bursts a publisher sends on when half of its window of 1,000 messages has arrived. Many devices are 500 publishers that send one message
//! every two seconds each, to one subscriber each. Every load of each run has nodes of its own.

use std::{collections::BTreeMap, sync::atomic::AtomicBool, thread, time::Duration};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target};
use bench_mqtt::broker::Programs;
use tidegate_load::{Flow, Pace, Spec, run};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    peers::Peer,
    site::{Settings, Site},
};

const PAYLOAD_BYTES: u32 = 100;
const TOPICS: &str = "load/#";
/// Of the pairs that send now and then.
const DEVICES: u32 = 500;
const DEVICE_PERIOD: Duration = Duration::from_secs(2);

/// The ways from one node to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Two members, class memory.
    Fabric,
    /// Two members, class page: what JetStream's file store keeps is kept here, too.
    Kept,
    /// Two nodes of ours with a bridge.
    Bridge,
    /// Two mosquittos with a bridge.
    Mosquitto,
    /// Three NATS servers with routes.
    Nats,
}

impl Way {
    const ALL: [Self; 5] = [Self::Fabric, Self::Kept, Self::Bridge, Self::Mosquitto, Self::Nats];

    /// Ours that stands beside it: the one that keeps as much.
    fn ours(self, qos: QoS) -> Self {
        if self == Self::Nats && qos > QoS::AtMostOnce { Self::Kept } else { Self::Fabric }
    }

    fn name(self, qos: QoS) -> &'static str {
        match (self, qos) {
            (Self::Fabric, _) => "fabric",
            (Self::Kept, _) => "fabric, class page",
            (Self::Bridge, _) => "our bridge",
            (Self::Mosquitto, _) => "mosquitto bridge",
            (Self::Nats, QoS::AtMostOnce) => "NATS, three routed",
            (Self::Nats, _) => "JetStream R1, three routed",
        }
    }
}

enum Running {
    Ours(Site),
    Peer(Peer),
}

impl Running {
    fn start(programs: &Programs, way: Way) -> anyhow::Result<Self> {
        Ok(match way {
            Way::Fabric => Self::Ours(Site::start(&Settings::default())?),
            Way::Kept => {
                Self::Ours(Site::start(&Settings { durability: "page", ..Settings::default() })?)
            }
            Way::Bridge => {
                let bridge = Some(TOPICS);
                Self::Ours(Site::start(&Settings {
                    is_fabric: false,
                    bridge,
                    ..Settings::default()
                })?)
            }
            Way::Mosquitto => Self::Peer(Peer::mosquitto(programs, TOPICS)?),
            Way::Nats => Self::Peer(Peer::nats(programs)?),
        })
    }

    fn targets(&self) -> [String; 2] {
        match self {
            Self::Ours(site) => [site.mqtt(0), site.mqtt(1)],
            Self::Peer(peer) => [peer.mqtt()[0], peer.mqtt()[1]],
        }
        .map(|at| at.to_string())
    }

    fn cpu(&self) -> anyhow::Result<Duration> {
        match self {
            Self::Ours(site) => site.cpu(),
            Self::Peer(peer) => peer.cpu(),
        }
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    qos: QoS,
    pace: Pace,
    pairs: u32,
}

const CASES: [Case; 4] = [
    Case { name: "QoS 1, bursts", qos: QoS::AtLeastOnce, pace: Pace::Window(1000), pairs: 1 },
    Case { name: "QoS 0, bursts", qos: QoS::AtMostOnce, pace: Pace::Window(1000), pairs: 1 },
    Case {
        name: "QoS 1, 500 devices, one message each",
        qos: QoS::AtLeastOnce,
        pace: Pace::Every(DEVICE_PERIOD),
        pairs: DEVICES,
    },
    Case {
        name: "QoS 1, one message a millisecond",
        qos: QoS::AtLeastOnce,
        pace: Pace::Rate(1000.0),
        pairs: 1,
    },
];

/// Measured of a load.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Of all nodes for each message that arrived, in µs.
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
    per_second: f64,
}

/// Each load by every way in turn.
///
/// # Errors
/// Ours does not serve, or loses messages.
pub fn messages(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.configuration(
        "messages",
        "100 B, loopback, one shard each; mosquitto without persistence beside our class memory; JetStream in its file store, which is not \
         flushed at each message, beside our class page; processor time of all nodes, for each message that arrived",
    );
    let programs = Programs::find(&plan.root)?;
    for case in &CASES {
        let mut all: BTreeMap<Way, Vec<Measured>> = BTreeMap::new();
        let mut failed: BTreeMap<Way, String> = BTreeMap::new();
        for turn in 0..plan.runs * Way::ALL.len() {
            let (run, turn) = (turn / Way::ALL.len(), turn % Way::ALL.len());
            let way = Way::ALL[(run + turn) % Way::ALL.len()];
            match load(plan, &programs, way, case) {
                Ok(measured) => all.entry(way).or_default().push(measured),
                Err(error) if matches!(way, Way::Fabric | Way::Kept) => {
                    return Err(error.context(case.name));
                }
                Err(error) => {
                    failed.insert(way, format!("{}: {error:#}", way.name(case.qos)));
                }
            }
        }
        rows(case, &all, &failed, report);
    }
    Ok(())
}

fn rows(
    case: &Case,
    all: &BTreeMap<Way, Vec<Measured>>,
    failed: &BTreeMap<Way, String>,
    report: &mut Report,
) {
    let of = |way: Way, pick: fn(&Measured) -> f64| {
        all.get(&way).into_iter().flatten().map(pick).collect::<Vec<f64>>()
    };
    let is_burst = matches!(case.pace, Pace::Window(_));
    if is_burst && case.qos == QoS::AtLeastOnce {
        let figure = Figure::new(format!("{}, CPU of both nodes a message", case.name), "µs");
        let figure = figure.ours(of(Way::Fabric, |one| one.cpu_us));
        report.figure(figure.target(Target::AtMost(3.0)));
    }
    for way in [Way::Bridge, Way::Mosquitto, Way::Nats] {
        let ours = way.ours(case.qos);
        let beside = if ours == Way::Kept { "class page, " } else { "" };
        let name = way.name(case.qos);
        let row = |what: &str, unit: &str, pick: fn(&Measured) -> f64| {
            let figure = Figure::new(format!("{}, {beside}{what}, beside {name}", case.name), unit)
                .ours(of(ours, pick))
                .peer(of(way, pick))
                .peer_name(name);
            match failed.get(&way) {
                Some(reason) => figure.note(reason),
                None => figure,
            }
        };
        let cpu = row("CPU a message", "µs", |one| one.cpu_us);
        let most = match (way, case.qos) {
            _ if !is_burst => None,
            (Way::Mosquitto, QoS::AtLeastOnce) => Some(0.2),
            (Way::Nats, _) => Some(0.7),
            _ => None,
        };
        report.figure(match most {
            Some(most) => cpu.target(Target::RatioAtMost(most)),
            None => cpu,
        });
        if is_burst {
            report.figure(row("received", "/s", |one| one.per_second));
            continue;
        }
        let p50 = row("p50", "µs", |one| one.p50_us);
        let is_asked = way == Way::Bridge && case.pairs == 1;
        report.figure(if is_asked { p50.target(Target::RatioAtMost(1.2)) } else { p50 });
        report.figure(row("p99", "µs", |one| one.p99_us));
    }
}

fn load(plan: &Plan, programs: &Programs, way: Way, case: &Case) -> anyhow::Result<Measured> {
    let running = Running::start(programs, way)?;
    let [target, subscribe_target] = running.targets();
    let length = Duration::from_secs_f64(if plan.quick { 3.0 } else { 8.0 });
    let flow =
        Flow { payload_bytes: PAYLOAD_BYTES, qos: case.qos, pace: case.pace, ..Flow::default() };
    let spec = Spec {
        target,
        subscribe_target: Some(subscribe_target),
        publishers: case.pairs,
        subscribers: case.pairs,
        flows: vec![flow],
        // As they were sent: NATS denies subscriptions with QoS 2.
        subscribe_qos: case.qos,
        warm_up: Duration::ZERO,
        duration: length,
        ..Spec::default()
    };
    // The first load tells the other node of the subscriptions, and warms both.
    let warm = Spec { duration: Duration::from_secs(1), ..spec.clone() };
    run(&warm, &AtomicBool::new(false), |_| ()).context("warming up")?;
    thread::sleep(Duration::from_millis(500));
    let before = running.cpu()?;
    let load = run(&spec, &AtomicBool::new(false), |_| ()).context("loading the nodes")?;
    let cpu = running.cpu()? - before;
    ensure!(load.failures.is_empty(), "connections failed: {:?}", load.failures);
    ensure!(load.total.received > 0, "nothing was received");
    if case.qos == QoS::AtLeastOnce && matches!(way, Way::Fabric | Way::Kept) {
        // Messages that left before the other node knew of the subscription had none.
        ensure!(
            load.total.lost == 0,
            "{} of {} messages were lost",
            load.total.lost,
            load.total.sent
        );
    }
    let latency = load.total.latency;
    Ok(Measured {
        cpu_us: cpu.as_secs_f64() * 1e6 / load.total.received as f64,
        p50_us: latency.p50,
        p99_us: latency.p99,
        per_second: load.total.received_per_second,
    })
}

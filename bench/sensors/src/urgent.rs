//! How long an alarm takes while everything else is carried as well: batched, one by one, or not at all.
//!
//! ```text
//!  probe ─┐                    ┌─▶ subscriber at the edge
//!         ├▶ edge node: flow ──┤
//!  load ──┘     └─ carried up ─┴─▶ core node ─▶ subscriber above
//! ```
//!
//! A probe says when it was sent (`CLOCK_MONOTONIC`), and the alarm that a flow makes of it says so again. The load is 70 % of what one
//! processor of the edge node carries one by one, its flow included, and at most [`RATE_MAX`], which this bench can send next to it; the
//! same in all runs. The probe and the subscribers stand for
//! clients elsewhere: where the system lets them they run in real time, so that what waits for a processor is the nodes alone.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, Tolerance, percentile};
use tidegate_load::{
    client::{Client, Options, Outgoing},
    sensors::Workload,
};
use tidegate_sys::{clock, sched};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    chain::carrier,
    devices::{self, Load},
    node::{Node, Place, Site, reader},
};

const DEVICES: u64 = 1000;
/// Of one processor of the edge node.
const SHARE: f64 = 0.7;
/// Most that the generator makes beside two nodes on two processors.
const RATE_MAX: f64 = 100_000.0;
const PROBES_PER_SECOND: u32 = 200;

const FLOWS: &str = r#"
[flow.probe]
topics = ["probe/#"]
[flow.probe.parse]
format = "csv"
fields = ["sent:text", "value"]
[[flow.probe.step]]
kernel = "threshold"
field = "value"
above = 0.5
[[flow.probe.step]]
kernel = "notify"
when = "value_over"
topic = "alarm/{level:1}"
payload = "{field:sent}"

[flow.city]
topics = ["city/#"]
key = { field = "source" }
keys_max = 65_536
[flow.city.parse]
format = "csv"
fields = [
    { name = "ts", type = "time", unit = "ms" }, "source:text", "longitude", "latitude", "temperature", "humidity", "light",
    "dust", "airquality_raw",
]
[[flow.city.step]]
kernel = "kalman"
field = "temperature"
[[flow.city.step]]
kernel = "average"
field = "temperature_kalman"
into = "average"
[[flow.city.step]]
kernel = "threshold"
field = "temperature"
reference = "average"
above = 3
[[flow.city.step]]
kernel = "notify"
when = "temperature_over"
topic = "hot/{level:1}"
fields = ["source", "temperature", "average"]
"#;

/// How the load is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carried {
    Batched,
    OneByOne,
    Not,
}

/// The latencies of one run in ms, at the edge and above.
#[derive(Clone, Debug, Default)]
struct Run {
    edge: Vec<f64>,
    core: Vec<f64>,
}

/// Latency of alarms.
///
/// # Errors
/// A node cannot be had, or no alarm comes.
pub fn urgent(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let time = Duration::from_secs(if plan.quick { 5 } else { 20 });
    let rate = calibrate(plan)?;
    let clients = if thread::spawn(elsewhere).join().is_ok_and(|is_real_time| is_real_time) {
        "in real time"
    } else {
        "among all other threads"
    };
    report.configuration("urgent", format!("CITY, {rate:.0} messages/s of {DEVICES} devices for {time:?}; {PROBES_PER_SECOND} probes/s; probe and subscribers {clients}"));
    let ways = [Carried::Batched, Carried::OneByOne, Carried::Not];
    let [mut a, mut b, mut c] = ways.map(|carried| {
        move |_| run(plan, carried, rate, time).with_context(|| format!("{carried:?}"))
    });
    let runs = bench_harness::interleave(plan.runs, &mut [&mut a, &mut b, &mut c])?;
    let of = |runs: &[Run], part: fn(&Run) -> &Vec<f64>, p: f64| -> Vec<f64> {
        runs.iter().map(|run| percentile(part(run), p)).collect()
    };
    for (p, word) in [(0.5, "p50"), (0.99, "p99")] {
        let at_edge = |at: usize| of(&runs[at], |run| &run.edge, p);
        let above = |at: usize| of(&runs[at], |run| &run.core, p);
        let beside = |name: &str, at: usize| {
            Figure::new(format!("alarm at the edge, {word}, batching beside {name}"), "ms")
                .ours(at_edge(0))
                .peer(at_edge(at))
                .peer_name(name)
        };
        let one_by_one = beside("one by one", 1);
        report.figure(match word {
            "p99" => {
                one_by_one.target(Target::RatioAtMost(1.0)).tolerance(Tolerance::Relative(0.1))
            }
            _ => one_by_one,
        });
        report.figure(beside("nothing carried", 2));
        let alone = Figure::new(format!("alarm at the edge, {word}"), "ms").ours(at_edge(0));
        report.figure(match word {
            "p99" => alone.target(Target::AtMost(1.0)),
            _ => alone,
        });
        report.figure(
            Figure::new(format!("alarm above, {word}, critical lane beside a bridge"), "ms")
                .ours(above(0))
                .peer(above(1))
                .peer_name("one by one"),
        );
    }
    Ok(())
}

/// Has the calling thread wait for a processor no more than a client on another machine would; whether the system lets it.
pub(crate) fn elsewhere() -> bool {
    sched::real_time(1).is_ok()
}

/// The rate at which a processor of the edge node is busy for its share while it carries one by one.
fn calibrate(plan: &Plan) -> anyhow::Result<f64> {
    let site = Site::new(None)?;
    let (core, edge) = start(&site, Carried::OneByOne)?;
    let load = load(plan, 10_000.0, Duration::from_secs(2));
    let before = edge.usage()?.cpu;
    let sent = devices::publish(site.address(Place::Edge), &load, |_, _| {})?;
    let used = edge.usage()?.cpu - before;
    drop((edge, core));
    Ok((SHARE * sent as f64 / used.as_secs_f64()).min(RATE_MAX))
}

fn load(plan: &Plan, rate: f64, time: Duration) -> Load {
    let (workload, qos) = (Workload::City, QoS::AtMostOnce);
    Load { workload, devices: DEVICES, seed: plan.seed, qos, rate, time }
}

fn start(site: &Site, carried: Carried) -> anyhow::Result<(Node, Node)> {
    let flows = site.path(Place::Edge, "flows.toml");
    fs::write(&flows, FLOWS).with_context(|| format!("writing {}", flows.display()))?;
    let up = match carried {
        Carried::Batched => carrier(site, true, QoS::AtMostOnce) + "critical = \"alarm/#\"\n",
        Carried::OneByOne => carrier(site, false, QoS::AtMostOnce),
        Carried::Not => String::new(),
    };
    let memory = "durability = \"memory\"";
    site.configure(Place::Core, memory, "[sink.log]\nkind = \"memory\"\ntopics = \"#\"\n")?;
    site.configure(Place::Edge, memory, &format!("[flow.urgent]\nfile = \"flows.toml\"\n\n{up}"))?;
    let core = site.start(Place::Core, None)?;
    let mut edge = site.start(Place::Edge, None)?;
    match carried {
        Carried::Batched => edge.wait_for("uplink takes messages")?,
        Carried::OneByOne => edge.wait_for("bridge up")?,
        Carried::Not => {}
    }
    thread::sleep(Duration::from_millis(500));
    Ok((core, edge))
}

fn run(plan: &Plan, carried: Carried, rate: f64, time: Duration) -> anyhow::Result<Run> {
    let site = Site::new(None)?;
    let (core, edge) = start(&site, carried)?;
    let listens = |place: Place| {
        let mut reader = reader(site.address(place), "alarm/#")?;
        Ok::<_, anyhow::Error>(move || -> anyhow::Result<Vec<f64>> {
            elsewhere();
            let until = Instant::now() + time + Duration::from_secs(1);
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let Some(message) = reader.receive(Duration::from_millis(100))? else { continue };
                let text = std::str::from_utf8(&message.payload)?;
                let sent: i64 = text.parse().with_context(|| format!("{text:?} is no time"))?;
                latencies.push((clock::monotonic_nanos() - sent) as f64 / 1e6);
            }
            Ok(latencies)
        })
    };
    let (at_edge, above) = (listens(Place::Edge)?, listens(Place::Core)?);
    let panicked = |_| anyhow::anyhow!("a thread of the bench panicked");
    let result = thread::scope(|scope| {
        let at_edge = scope.spawn(at_edge);
        let above = scope.spawn(above);
        let probing = scope.spawn(|| probe(&site, time));
        devices::publish(site.address(Place::Edge), &load(plan, rate, time), |_, _| {})?;
        let probes = probing.join().map_err(panicked)??;
        let run = Run {
            edge: at_edge.join().map_err(panicked)??,
            core: above.join().map_err(panicked)??,
        };
        anyhow::ensure!(
            run.edge.len() as u64 == probes,
            "{} alarms of {probes} probes came",
            run.edge.len()
        );
        Ok(run)
    });
    drop((edge, core));
    result
}

/// Sends probes at an even pace; returns how many.
fn probe(site: &Site, time: Duration) -> anyhow::Result<u64> {
    let address = site.address(Place::Edge);
    let options =
        Options { host: address.ip().to_string(), port: address.port(), ..Options::default() };
    let mut client = Client::connect(options)?;
    elsewhere();
    let began = Instant::now();
    let period = Duration::from_secs(1) / PROBES_PER_SECOND;
    let mut sent = 0_u32;
    while began.elapsed() < time {
        let topic = format!("probe/{}", sent % 16);
        let payload = format!("{},1", clock::monotonic_nanos());
        client.publish(&Outgoing {
            topic: &topic,
            payload: payload.as_bytes(),
            ..Outgoing::default()
        })?;
        sent += 1;
        thread::sleep((period * sent).saturating_sub(began.elapsed()));
    }
    Ok(u64::from(sent))
}

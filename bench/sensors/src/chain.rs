//! The cost to analytics of a device's message: from an edge node to the memory log of a sink above, compared with one MQTT
//! message each.
//!
//! ```text
//!  ours        devices ─▶ edge node ══ uplink: batches ══▶ core node ─▶ sink's log in memory
//!  unbatched   devices ─▶ edge node ══ uplink: critical ═▶ core node ─▶ sink's log in memory
//!  one by one  devices ─▶ edge node ── bridge: PUBLISH ──▶ core node ─▶ sink's log in memory
//!  mosquitto   devices ────────────── PUBLISH ───────────▶ mosquitto ─▶ a subscriber that counts, not charged
//! ```
//!
//! The figure is processor time of what stands above, per message; idle threads and `$SYS` are in it. Mosquitto's subscriber is not
//! charged, although our sink is.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target};
use tidegate_load::{process::usage, sensors::Workload};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    devices::{self, Counter, Load},
    mosquitto::Mosquitto,
    node::{Node, Place, Site},
};

/// Messages per second by QoS, 1 and 0: three quarters and more of what mosquitto carries on one processor.
const RATES: [(QoS, f64); 2] = [(QoS::AtLeastOnce, 30_000.0), (QoS::AtMostOnce, 60_000.0)];
const DEVICES: u64 = 1000;
/// Longest time for what is under way to arrive.
const SETTLE: Duration = Duration::from_secs(30);

/// How messages go up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ours,
    Unbatched,
    OneByOne,
    Mosquitto,
}

/// One run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Processor time above, in ns per message.
    above: f64,
    /// Processor time of the edge node, in ns per message.
    edge: f64,
}

/// Processor time per message of what stands above.
///
/// # Errors
/// A node or mosquitto cannot be had, or messages are lost.
pub fn chain(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let time = Duration::from_secs(if plan.quick { 4 } else { 10 });
    report.configuration("chain", format!("{RATES:?} messages/s of {DEVICES} devices for {time:?}; MQTT 3.1.1; one shard; [sink.log] of kind memory"));
    let workloads: &[Workload] = if plan.quick { &[Workload::City] } else { &Workload::ALL };
    for (qos, rate) in RATES {
        for workload in workloads {
            let load =
                Load { workload: *workload, devices: DEVICES, seed: plan.seed, qos, rate, time };
            let taken =
                |way: Way| move |_| run(way, &load).with_context(|| format!("{way:?}, {workload}"));
            let ways = [Way::Ours, Way::Unbatched, Way::OneByOne, Way::Mosquitto];
            let [mut a, mut b, mut c, mut d] = ways.map(taken);
            let runs = bench_harness::interleave(plan.runs, &mut [&mut a, &mut b, &mut c, &mut d])?;
            let above = |runs: &[Run]| runs.iter().map(|run| run.above).collect::<Vec<_>>();
            let [ours, unbatched, one_by_one, mosquitto] = &runs[..] else {
                unreachable!("four take turns");
            };
            let median = |runs: &[Run]| {
                bench_harness::median(&runs.iter().map(|run| run.edge).collect::<Vec<_>>())
            };
            let note = format!(
                "the edge node's own: {:.0} ns in batches, {:.0} ns unbatched, {:.0} ns by the bridge",
                median(ours),
                median(unbatched),
                median(one_by_one)
            );
            let name = |peer: &str| {
                format!("{workload}, QoS {}: CPU above per message, beside {peer}", qos as u8)
            };
            report.figure(
                Figure::new(name("mosquitto"), "ns")
                    .ours(above(ours))
                    .peer(above(mosquitto))
                    .peer_name("mosquitto")
                    .target(Target::RatioAtMost(1.0 / 20.0))
                    .note(note),
            );
            for (peer, word, runs) in [
                ("our uplink unbatched", "unbatched", unbatched),
                ("our bridge", "one by one", one_by_one),
            ] {
                report.figure(
                    Figure::new(name(peer), "ns")
                        .ours(above(ours))
                        .peer(above(runs))
                        .peer_name(word)
                        .target(Target::RatioAtMost(1.0 / 8.0)),
                );
            }
        }
    }
    Ok(())
}

fn run(way: Way, load: &Load) -> anyhow::Result<Run> {
    match way {
        Way::Mosquitto => mosquitto(load),
        Way::Ours | Way::Unbatched | Way::OneByOne => nodes(way, load),
    }
}

/// The carrier of messages up from the edge node.
pub(crate) fn carrier(site: &Site, uplink: bool, qos: QoS) -> String {
    match uplink {
        true => format!("[uplink.core]\nto = \"{}\"\ntopics = \"#\"\n", site.link),
        false => format!(
            "[mqtt.bridge.core]\nremote = \"{}\"\ntopics_out = \"#\"\nqos = {}\n",
            site.address(Place::Core),
            qos as u8
        ),
    }
}

fn nodes(way: Way, load: &Load) -> anyhow::Result<Run> {
    let site = Site::new(None)?;
    let uplink = way != Way::OneByOne;
    let mut carrier = carrier(&site, uplink, load.qos);
    if way == Way::Unbatched {
        carrier += "critical = \"#\"\ncritical_bytes_per_second = \"1GiB\"\n";
    }
    site.configure(
        Place::Core,
        "durability = \"memory\"",
        "[sink.log]\nkind = \"memory\"\ntopics = \"#\"\n",
    )?;
    site.configure(Place::Edge, "durability = \"memory\"", &carrier)?;
    let core = site.start(Place::Core, None)?;
    let mut edge = site.start(Place::Edge, None)?;
    match uplink {
        true => edge.wait_for("uplink takes messages")?,
        false => edge.wait_for("bridge up")?,
    }
    thread::sleep(Duration::from_millis(500));
    let before = (core.usage()?.cpu, edge.usage()?.cpu);
    let sent = devices::publish(site.address(Place::Edge), load, |_, _| {})?;
    let taken = wait_for_sink(&core, sent)?;
    let after = (core.usage()?.cpu, edge.usage()?.cpu);
    ensure!(taken == sent, "{taken} of {sent} messages are in the log");
    let per = |time: Duration| time.as_nanos() as f64 / sent as f64;
    Ok(Run { above: per(after.0 - before.0), edge: per(after.1 - before.1) })
}

/// Waits until the sink called `log` has taken so many messages; returns how many it has.
pub(crate) fn wait_for_sink(core: &Node, sent: u64) -> anyhow::Result<u64> {
    let mut reader = core.reader("$SYS/broker/sink/log/report")?;
    let began = Instant::now();
    let mut taken = 0;
    while taken < sent && began.elapsed() < SETTLE {
        let Some(message) = reader.receive(Duration::from_millis(500))? else { continue };
        let said: serde_json::Value =
            serde_json::from_slice(&message.payload).context("a sink's report is JSON")?;
        taken = said["messages"].as_u64().context("a sink's report has a count")?;
    }
    Ok(taken)
}

fn mosquitto(load: &Load) -> anyhow::Result<Run> {
    let broker = Mosquitto::start()?;
    let address = broker.address();
    let mut counter = Counter::subscribe(address, load.qos)?;
    let (count, until) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    thread::scope(|scope| {
        let counting = scope.spawn(|| counter.count(&count, &until));
        let before = usage(broker.process())?.cpu;
        let sent = devices::publish(address, load, |_, _| {});
        until.store(*sent.as_ref().unwrap_or(&0), Relaxed);
        counting.join().map_err(|_| anyhow::anyhow!("the counter panicked"))??;
        let used = usage(broker.process())?.cpu - before;
        let (sent, taken) = (sent?, count.load(Relaxed));
        // QoS 0 may be lost, and is then not paid for.
        ensure!(load.qos == QoS::AtMostOnce || taken == sent, "{taken} of {sent} messages came");
        Ok(Run { above: used.as_nanos() as f64 / taken as f64, edge: 0.0 })
    })
}

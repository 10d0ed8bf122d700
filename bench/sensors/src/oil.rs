//! The paper's oil-anomaly flow: in memory on one thread, and from datagrams to alarms.
//!
//! ```text
//!  readings in memory ─▶ Flow ─▶ notifications, counted
//!  readings, probes ── datagrams over loopback ─▶ listener ─▶ flow ─▶ alarm ─▶ subscriber, over MQTT
//! ```
//!
//! A reading has 64 bytes: the sensor as 4 bytes, little-endian, its oil temperature as 6 ASCII characters at byte 8, and filling. A
//! probe is a reading that is too hot, of a sensor that sent usual ones before; its latency is the time from its send call until the
//! subscriber has its alarm. Load comes one datagram a call, as from devices that know nothing of each other.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicI64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, median, percentile};
use tidegate_flow::{Flow, Message, Models, Output, Specs};
use tidegate_sys::clock;

use crate::{Plan, in_process::InProcess, node::reader, urgent};

/// The flow.
pub(crate) const FLOW: &str = include_str!("../../../examples/flows/oil.toml");
pub(crate) const MESSAGE_BYTES: usize = 64;
/// Sensors in memory.
const SENSORS: u32 = 1_000_000;
/// Messages that are made before the clock runs: more than fit the caches.
const MESSAGES: usize = 1 << 21;
/// Messages that the flow is given at once.
const BATCH: usize = 256;
/// The rate of the paper's FPGA.
const TARGET: f64 = 38.2e6;
/// Sensors that send datagrams.
pub(crate) const SENSORS_OF_LOAD: u32 = 65_536;
/// Datagrams per second beside the probes.
const RATES: [u32; 2] = [0, 100_000];
const PROBES_PER_SECOND: u32 = 200;
/// Usual readings of a sensor before its probe.
const USUAL: usize = 8;
/// The paper's latency, in us.
const PAPER: f64 = 64.0;

/// Messages per second in memory, and latency from datagrams.
///
/// # Errors
/// A node cannot be had, or an alarm does not come.
pub fn oil(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let readings = readings(SENSORS, MESSAGES);
    let rates = (0..plan.runs).map(|_| in_memory(&readings));
    let rates = rates.collect::<anyhow::Result<Vec<_>>>()?;
    report.configuration("oil", format!("{SENSORS} sensors in random order, {MESSAGES} messages of {MESSAGE_BYTES} B, {BATCH} at once; probes {PROBES_PER_SECOND}/s"));
    report.figure(
        Figure::new(format!("oil flow in memory, {SENSORS} sensors"), "messages/s of CPU")
            .ours(rates)
            .target(Target::AtLeast(TARGET)),
    );
    let time = Duration::from_secs(if plan.quick { 2 } else { 10 });
    for rate in RATES {
        let runs = (0..plan.runs).map(|_| from_datagrams(rate, time));
        let runs = runs.collect::<anyhow::Result<Vec<_>>>()?;
        let column = |q: f64| runs.iter().map(|run| percentile(run, q)).collect::<Vec<_>>();
        let [min, p25, p75, p99, max] = [0.0, 0.25, 0.75, 0.99, 1.0].map(|q| median(&column(q)));
        report.figure(
            Figure::new(
                format!("oil flow, datagram to alarm, p50, {rate} datagrams/s beside"),
                "us",
            )
            .ours(column(0.5))
            .peer([PAPER])
            .peer_name("the paper")
            .note(format!(
                "min {min:.0}, p25 {p25:.0}, p75 {p75:.0}, p99 {p99:.0}, max {max:.0} us"
            )),
        );
    }
    Ok(())
}

/// Messages per second of this thread's processor time: the median of the rounds behind the first, which makes the keys.
fn in_memory(readings: &[u8]) -> anyhow::Result<f64> {
    const ROUNDS: u32 = 6;
    let specs: Specs = toml::from_str(FLOW)?;
    let spec = specs.into_flows().next().context("the example has a flow")?;
    let mut flow = Flow::compile(&spec, &Models::new())?;
    let mut now = tidegate_message::Instant::from_millis(1_700_000_000_000);
    let (mut output, mut messages) = (Output::new(), Vec::with_capacity(BATCH));
    let (mut rates, mut notified) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let begun = clock::thread_cpu_nanos();
        for some in readings.chunks(BATCH * MESSAGE_BYTES) {
            let some = some.chunks_exact(MESSAGE_BYTES);
            messages.clear();
            messages.extend(some.map(|payload| Message { topic: "vehicle/oil", payload }));
            flow.run(now, &messages, &mut output);
            notified += output.emissions().len();
        }
        let taken = clock::thread_cpu_nanos() - begun;
        rates.push(MESSAGES as f64 * 1e9 / taken as f64);
        now = now + Duration::from_secs(1);
    }
    let stats = flow.stats();
    anyhow::ensure!(
        notified > 0 && stats.bad.iter().sum::<u64>() == 0,
        "{notified} notifications, and {:?} bad",
        stats.bad
    );
    Ok(median(&rates[1..]))
}

/// Readings of random sensors, one behind another: each sensor has a temperature around which it varies, and one in ten thousand is
/// too hot.
pub(crate) fn readings(sensors: u32, count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut bytes = Vec::with_capacity(count * MESSAGE_BYTES);
    for _ in 0..count {
        let sensor = (random() % u64::from(sensors)) as u32;
        let noise = random() as f64 / f64::from(1_u32 << 31) * 4.0 - 2.0;
        let fault = if random() % 10_000 == 0 { 40.0 } else { 0.0 };
        bytes.extend_from_slice(&reading(sensor, noise + fault));
    }
    bytes
}

/// A reading so far from what is usual for its sensor.
fn reading(sensor: u32, off: f64) -> [u8; MESSAGE_BYTES] {
    let usual = 90.0 + f64::from(sensor.wrapping_mul(2_654_435_761) >> 24) / 10.0;
    let mut bytes = [b' '; MESSAGE_BYTES];
    bytes[..4].copy_from_slice(&sensor.to_le_bytes());
    bytes[8..14].copy_from_slice(format!("{:6.2}", usual + off).as_bytes());
    bytes
}

/// Latencies of alarms in us, while others send `rate` datagrams a second.
fn from_datagrams(rate: u32, time: Duration) -> anyhow::Result<Vec<f64>> {
    let node = InProcess::start(FLOW)?;
    let ingest = node.node.ingest("bench").context("it is configured")?.address();
    let server = node.node.server().context("it serves MQTT")?;
    let (_, broker) = server.addresses().first().context("it has a listener")?;
    let mut alarms = reader(*broker, "alarm/oil/#")?;
    let count = (time.as_secs_f64() * f64::from(PROBES_PER_SECOND)) as u32;
    // When each probe was sent; those of the load may alarm as well, and are not asked for.
    let sent: Vec<AtomicI64> = (0..count).map(|_| AtomicI64::new(0)).collect();
    let usual = socket(ingest)?;
    for _ in 0..USUAL {
        for probe in 0..count {
            usual.send(&reading(SENSORS_OF_LOAD + probe, 0.0))?;
            if probe % 256 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    thread::sleep(Duration::from_millis(200));
    let panicked = |_| anyhow::anyhow!("a thread of the bench panicked");
    thread::scope(|scope| {
        let load = scope.spawn(|| load(ingest, rate, time));
        let probing = scope.spawn(|| probe(ingest, &sent));
        urgent::elsewhere();
        let until = Instant::now() + time + Duration::from_secs(2);
        let mut latencies = Vec::with_capacity(sent.len());
        while latencies.len() < sent.len() && Instant::now() < until {
            let Some(message) = alarms.receive(Duration::from_millis(100))? else { continue };
            let now = clock::monotonic_nanos();
            let sensor = message.topic.rsplit('/').next().and_then(|sensor| sensor.parse().ok());
            let sensor: u32 =
                sensor.with_context(|| format!("{} names a sensor", message.topic))?;
            let probe = sensor.checked_sub(SENSORS_OF_LOAD).and_then(|at| sent.get(at as usize));
            if let Some(probe) = probe {
                latencies.push((now - probe.load(Ordering::Acquire)) as f64 / 1e3);
            }
        }
        load.join().map_err(panicked)??;
        probing.join().map_err(panicked)??;
        anyhow::ensure!(
            latencies.len() == sent.len(),
            "{} alarms of {} probes came",
            latencies.len(),
            sent.len()
        );
        Ok(latencies)
    })
}

fn socket(to: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(to)?;
    Ok(socket)
}

/// Sends readings at an even pace, a millisecond's at a time.
fn load(to: SocketAddr, rate: u32, time: Duration) -> anyhow::Result<()> {
    let socket = socket(to)?;
    let readings = readings(SENSORS_OF_LOAD, 1 << 16);
    let mut readings = readings.chunks_exact(MESSAGE_BYTES).cycle();
    let began = Instant::now();
    let mut sent = 0_u64;
    while rate > 0 && began.elapsed() < time {
        let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        for reading in readings.by_ref().take((due - sent) as usize) {
            socket.send(reading)?;
        }
        sent = due;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Sends a probe of each sensor that has none yet.
fn probe(to: SocketAddr, sent: &[AtomicI64]) -> anyhow::Result<()> {
    let socket = socket(to)?;
    urgent::elsewhere();
    let began = Instant::now();
    let period = Duration::from_secs(1) / PROBES_PER_SECOND;
    for (probe, sent) in (0..).zip(sent) {
        thread::sleep((period * probe).saturating_sub(began.elapsed()));
        sent.store(clock::monotonic_nanos(), Ordering::Release);
        socket.send(&reading(SENSORS_OF_LOAD + probe, 40.0))?;
    }
    Ok(())
}

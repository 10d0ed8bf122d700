//! Results of a run, as a table, as CSV and as JSON.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate_wire::mqtt::Version;

use crate::{
    meter::{self, Counts},
    spec::{Spec, Topology},
    worker::Outcome,
};

/// Results of a run. Counts of messages are of the whole run, with warm-up and drain; rates and latencies of the measured
/// part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The broker.
    pub target: String,
    /// Version of the protocol: 3.1, 3.1.1 or 5.
    pub version: &'static str,
    /// How publishers and subscribers were joined.
    pub topology: Topology,
    /// Publishing connections.
    pub publishers: u32,
    /// Receiving connections.
    pub subscribers: u32,
    /// Subscribers that never read.
    pub stalled: u32,
    /// Connections that only pinged.
    pub idle: u32,
    /// Connections that were there at the end.
    pub connected: u64,
    /// Connections that were not, by reason.
    pub failures: Vec<Failure>,
    /// Whether the run was stopped early.
    pub stopped: bool,
    /// Seconds measured.
    pub seconds: f64,
    /// All flows together.
    pub total: FlowReport,
    /// Each flow.
    pub flows: Vec<FlowReport>,
    /// Messages that were none of this run's.
    pub foreign: u64,
    /// How often a window was opened again after a second in which nothing of it arrived.
    pub window_timeouts: u64,
    /// Processor time that the generator used.
    pub generator: GeneratorUsage,
    /// Processor time and memory that the broker used, if its process was named.
    pub broker: Option<BrokerUsage>,
}

/// Connections that failed for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The reason that the system or the broker gave.
    pub reason: String,
    /// How many.
    pub connections: u64,
}

/// One flow, of all publishers and to all subscribers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowReport {
    /// Its name; `total` for all.
    pub name: String,
    /// Messages written.
    pub sent: u64,
    /// Messages received, each by each of its subscribers, duplicates included.
    pub received: u64,
    /// Exchanges of QoS 1 and 2 that the broker brought to their end.
    pub acknowledged: u64,
    /// Messages that were sent and did not arrive.
    pub lost: u64,
    /// Messages that arrived more than once.
    pub duplicated: u64,
    /// Messages that arrived after a later one.
    pub out_of_order: u64,
    /// Messages sent per second.
    pub sent_per_second: f64,
    /// Messages received per second.
    pub received_per_second: f64,
    /// Bytes of payload received per second.
    pub received_bytes_per_second: f64,
    /// From when a message was meant to leave, or left if its flow has a window, until its last byte was read.
    pub latency: Latency,
}

/// Latencies in microseconds; zeros if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many.
    pub messages: u64,
    /// Shortest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Half are at most this.
    pub p50: f64,
    /// 90 of 100.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// Longest.
    pub max: f64,
}

/// Processor time that the generator used in the measured part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GeneratorUsage {
    /// Processor seconds of its threads.
    pub cpu_seconds: f64,
    /// Processor nanoseconds for each message sent or received.
    pub nanoseconds_per_message: f64,
}

/// Processor time and memory that the broker used in the measured part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BrokerUsage {
    /// Its process.
    pub process: u32,
    /// Processor seconds.
    pub cpu_seconds: f64,
    /// Messages that it delivered for each second of its processor time, or, without subscribers, that it took.
    pub per_cpu_second: f64,
    /// Memory that it held at the end, in bytes.
    pub resident_bytes: u64,
    /// Most that it held since its start, or since its peak was reset, in bytes.
    pub resident_peak_bytes: u64,
}

impl Report {
    pub(crate) fn new(
        spec: &Spec,
        outcomes: Vec<Outcome>,
        failures: Vec<Failure>,
        stopped: bool,
    ) -> Self {
        let mut report = Self {
            target: spec.target.clone(),
            version: match spec.version {
                Version::V3 => "3.1",
                Version::V4 => "3.1.1",
                Version::V5 => "5",
            },
            topology: spec.topology,
            publishers: spec.publishers,
            subscribers: spec.subscribers,
            stalled: spec.stalled,
            idle: spec.idle,
            connected: outcomes.iter().map(|outcome| outcome.connected).sum(),
            failures,
            stopped,
            seconds: 0.0,
            total: FlowReport::new("total", &Sums::new()),
            flows: Vec::new(),
            foreign: outcomes.iter().map(|outcome| outcome.foreign).sum(),
            window_timeouts: outcomes.iter().map(|outcome| outcome.window_timeouts).sum(),
            generator: GeneratorUsage { cpu_seconds: 0.0, nanoseconds_per_message: 0.0 },
            broker: None,
        };
        let mut total = Sums::new();
        for (index, flow) in spec.flows.iter().enumerate() {
            let mut sums = Sums::new();
            outcomes.iter().for_each(|outcome| sums.add(outcome, index));
            report.flows.push(FlowReport::new(&flow.name, &sums));
            total.join(&sums);
        }
        report.total = FlowReport::new("total", &total);
        for outcome in &outcomes {
            if let [begin, end] = &*outcome.marks {
                let seconds = (end.at - begin.at) as f64 / 1e9;
                report.seconds = report.seconds.max(seconds);
                report.generator.cpu_seconds += (end.cpu_nanos - begin.cpu_nanos) as f64 / 1e9;
                if let (Some(process), Some(before), Some(after)) =
                    (spec.process, begin.usage, end.usage)
                {
                    let cpu_seconds = after.cpu.saturating_sub(before.cpu).as_secs_f64();
                    let messages = if spec.subscribers > 0 { total.received } else { total.sent };
                    report.broker = Some(BrokerUsage {
                        process,
                        cpu_seconds,
                        per_cpu_second: ratio(messages, cpu_seconds),
                        resident_bytes: after.resident_bytes,
                        resident_peak_bytes: after.resident_peak_bytes,
                    });
                }
            }
        }
        report.generator.nanoseconds_per_message =
            ratio(report.generator.cpu_seconds * 1e9, total.received + total.sent);
        report
    }

    /// The first line of [`Report::csv`]: names of its columns.
    pub const CSV_HEAD: &str = "target,version,topology,publishers,subscribers,stalled,idle,seconds,flow,sent,received,\
        acknowledged,lost,duplicated,out_of_order,sent_per_second,received_per_second,received_bytes_per_second,\
        latency_p50_us,latency_p90_us,latency_p99_us,latency_p999_us,latency_max_us,latency_mean_us,\
        generator_cpu_seconds,broker_cpu_seconds,broker_per_cpu_second,broker_resident_peak_bytes";

    /// Lines of comma-separated values, one for each flow and, if there are several, one for all. Fields that are not known are
    /// empty.
    pub fn csv(&self) -> String {
        let mut lines = String::new();
        let total = (self.flows.len() > 1).then_some(&self.total);
        for flow in self.flows.iter().chain(total) {
            let topology = match self.topology {
                Topology::Pairs => "pairs",
                Topology::FanIn => "fan-in",
                Topology::FanOut => "fan-out",
            };
            let latency = &flow.latency;
            let (cpu, per, peak) = match &self.broker {
                Some(broker) => (
                    format!("{:.6}", broker.cpu_seconds),
                    format!("{:.1}", broker.per_cpu_second),
                    broker.resident_peak_bytes.to_string(),
                ),
                None => Default::default(),
            };
            lines += &format!(
                "{},{},{topology},{},{},{},{},{:.6},{},{},{},{},{},{},{},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},\
                 {:.1},{:.6},{cpu},{per},{peak}\n",
                self.target,
                self.version,
                self.publishers,
                self.subscribers,
                self.stalled,
                self.idle,
                self.seconds,
                flow.name,
                flow.sent,
                flow.received,
                flow.acknowledged,
                flow.lost,
                flow.duplicated,
                flow.out_of_order,
                flow.sent_per_second,
                flow.received_per_second,
                flow.received_bytes_per_second,
                latency.p50,
                latency.p90,
                latency.p99,
                latency.p999,
                latency.max,
                latency.mean,
                self.generator.cpu_seconds,
            );
        }
        lines
    }
}

/// A table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} · MQTT {} · {} publishers, {} subscribers · {:.2} s measured{}",
            self.target,
            self.version,
            self.publishers,
            self.subscribers,
            self.seconds,
            if self.stopped { " · stopped early" } else { "" }
        )?;
        for failure in &self.failures {
            writeln!(f, "  {} connections failed: {}", failure.connections, failure.reason)?;
        }
        writeln!(
            f,
            "{:<10} {:>11} {:>11} {:>7} {:>6} {:>6} {:>12} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "flow",
            "sent",
            "received",
            "lost",
            "twice",
            "order",
            "received/s",
            "MB/s",
            "p50 µs",
            "p90 µs",
            "p99 µs",
            "p99.9 µs",
            "max µs"
        )?;
        let total = (self.flows.len() > 1).then_some(&self.total);
        for flow in self.flows.iter().chain(total) {
            let latency = &flow.latency;
            writeln!(
                f,
                "{:<10} {:>11} {:>11} {:>7} {:>6} {:>6} {:>12.0} {:>10.2} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0}",
                flow.name,
                flow.sent,
                flow.received,
                flow.lost,
                flow.duplicated,
                flow.out_of_order,
                flow.received_per_second,
                flow.received_bytes_per_second / 1e6,
                latency.p50,
                latency.p90,
                latency.p99,
                latency.p999,
                latency.max
            )?;
        }
        write!(
            f,
            "generator  {:.3} CPU s, {:.0} ns for each message sent or received",
            self.generator.cpu_seconds, self.generator.nanoseconds_per_message
        )?;
        if let Some(broker) = &self.broker {
            write!(
                f,
                "\nbroker     {:.3} CPU s, {:.0} messages per CPU second, {:.1} MB held, {:.1} MB at most",
                broker.cpu_seconds,
                broker.per_cpu_second,
                broker.resident_bytes as f64 / 1e6,
                broker.resident_peak_bytes as f64 / 1e6
            )?;
        }
        Ok(())
    }
}

/// One flow added up over the workers.
struct Sums {
    whole: Counts,
    /// In the measured part.
    sent: f64,
    received: f64,
    sent_per_second: f64,
    received_per_second: f64,
    received_bytes_per_second: f64,
    latencies: Histogram<u64>,
}

impl Sums {
    fn new() -> Self {
        Self {
            whole: Counts::default(),
            sent: 0.0,
            received: 0.0,
            sent_per_second: 0.0,
            received_per_second: 0.0,
            received_bytes_per_second: 0.0,
            latencies: meter::histogram(),
        }
    }

    fn add(&mut self, outcome: &Outcome, flow: usize) {
        let (counts, latencies) = &outcome.flows[flow];
        self.whole.add(counts);
        self.latencies.add(latencies).expect("all histograms have the same bounds");
        if let [begin, end] = &*outcome.marks {
            // Each worker marked its own moments: rates add, spans do not.
            let seconds = (end.at - begin.at) as f64 / 1e9;
            let (before, after) = (&begin.counts[flow], &end.counts[flow]);
            self.sent += (after.sent - before.sent) as f64;
            self.received += (after.received - before.received) as f64;
            self.sent_per_second += ratio((after.sent - before.sent) as f64, seconds);
            self.received_per_second += ratio((after.received - before.received) as f64, seconds);
            self.received_bytes_per_second +=
                ratio((after.received_bytes - before.received_bytes) as f64, seconds);
        }
    }

    fn join(&mut self, other: &Self) {
        self.whole.add(&other.whole);
        self.sent += other.sent;
        self.received += other.received;
        self.sent_per_second += other.sent_per_second;
        self.received_per_second += other.received_per_second;
        self.received_bytes_per_second += other.received_bytes_per_second;
        self.latencies.add(&other.latencies).expect("all histograms have the same bounds");
    }
}

impl FlowReport {
    fn new(name: &str, sums: &Sums) -> Self {
        let counts = &sums.whole;
        Self {
            name: name.to_owned(),
            sent: counts.sent,
            received: counts.received,
            acknowledged: counts.acknowledged,
            lost: counts.due.saturating_sub(counts.received_once()),
            duplicated: counts.duplicated,
            out_of_order: counts.out_of_order,
            sent_per_second: sums.sent_per_second,
            received_per_second: sums.received_per_second,
            received_bytes_per_second: sums.received_bytes_per_second,
            latency: Latency::new(&sums.latencies),
        }
    }
}

impl Latency {
    pub(crate) fn new(nanos: &Histogram<u64>) -> Self {
        if nanos.is_empty() {
            return Self::default();
        }
        let micros = |value: u64| value as f64 / 1e3;
        let at = |quantile| micros(nanos.value_at_quantile(quantile));
        Self {
            messages: nanos.len(),
            min: micros(nanos.min()),
            mean: nanos.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(nanos.max()),
        }
    }
}

/// Zero where there is nothing to divide by.
fn ratio(amount: f64, by: f64) -> f64 {
    if by > 0.0 { amount / by } else { 0.0 }
}

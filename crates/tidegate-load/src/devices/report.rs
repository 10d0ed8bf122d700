//! Messages that devices sent and those that arrived, as a table, as CSV and as JSON.

use std::{fmt, num::NonZeroU64};

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate_wire::mqtt::Version;

use super::{SensorSpec, Sent, verify::Found};
use crate::{
    meter,
    report::{GeneratorUsage, Latency},
    sensors::{Arrival, Form},
};

/// Messages that devices sent, and those of them that arrived.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SensorReport {
    /// The broker that they are connected to.
    pub target: String,
    /// Where arrivals were verified; none if they were not.
    pub verified_at: Option<String>,
    /// Version of the protocol: 3.1, 3.1.1 or 5.
    pub version: &'static str,
    /// Quality of service.
    pub qos: u8,
    /// How numbers were written: natural or fixed.
    pub form: &'static str,
    /// Which device came next: turns or random.
    pub arrival: &'static str,
    /// Of so many messages of each workload one had an odd value; none if no message had.
    pub odd: Option<NonZeroU64>,
    /// Seed of the generators.
    pub seed: u64,
    /// Connections that devices were spread over.
    pub connections: u16,
    /// Messages a second that were asked for.
    pub rate: Option<f64>,
    /// Whether the run was stopped early.
    pub stopped: bool,
    /// From the first message to the last.
    pub seconds: f64,
    /// How late the latest message left, in microseconds; none without a rate.
    pub latest_us: Option<f64>,
    /// Messages of QoS 1 and 2 that the broker took to the end.
    pub acknowledged: u64,
    /// And those that it refused.
    pub refused: u64,
    /// Why it refused the first.
    pub refusal: Option<String>,
    /// Messages that arrived on topics of no device.
    pub foreign: Option<u64>,
    /// How often a window was opened again after a second in which nothing arrived.
    pub window_timeouts: u64,
    /// All workloads together.
    pub total: WorkloadReport,
    /// Each workload.
    pub workloads: Vec<WorkloadReport>,
    /// Processor time of the devices' thread; that of the verifier is not in it.
    pub generator: GeneratorUsage,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadReport {
    /// Its name; `total` for all.
    pub name: &'static str,
    /// Its devices, each with a topic.
    pub devices: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages sent per second.
    pub sent_per_second: f64,
    /// Bytes of topics and payloads sent per second.
    pub sent_bytes_per_second: f64,
    /// Arrivals; none if they were not verified.
    pub verification: Option<Verification>,
}

/// Arrivals of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verification {
    /// Messages that arrived byte for byte, each once.
    pub received: u64,
    /// Bytes of their payloads.
    pub received_bytes: u64,
    /// Messages that were sent and did not arrive.
    pub lost: u64,
    /// Messages that arrived more than once.
    pub duplicated: u64,
    /// Messages that arrived after a later one of their topic.
    pub out_of_order: u64,
    /// Messages that arrived on its topics and had not been sent.
    pub altered: u64,
    /// From when a message was due to its arrival.
    pub latency: Latency,
}

impl SensorReport {
    pub(super) fn new(
        spec: &SensorSpec,
        sent: Sent,
        verified: Option<(Vec<Found>, u64)>,
        stopped: bool,
    ) -> Self {
        let seconds = sent.elapsed.as_secs_f64();
        let (found, foreign) = verified.unzip();
        let one = |name, devices, (messages, bytes): (u64, u64), verification| WorkloadReport {
            name,
            devices,
            sent: messages,
            sent_per_second: ratio(messages as f64, seconds),
            sent_bytes_per_second: ratio(bytes as f64, seconds),
            verification,
        };
        let workloads = spec.workloads.iter().enumerate().map(|(at, workload)| {
            let verification = found.as_ref().map(|found| Verification::new(&found[at..=at]));
            one(workload.name(), spec.devices_of(*workload), sent.counts[at], verification)
        });
        let workloads: Vec<_> = workloads.collect();
        let sum = sent.counts.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let devices = workloads.iter().map(|workload| workload.devices).sum();
        let cpu_seconds = sent.cpu.as_secs_f64();
        Self {
            target: spec.target.clone(),
            verified_at: spec.verify_at.as_ref().map(|(_, name)| name.clone()),
            version: match spec.broker.version {
                Version::V3 => "3.1",
                Version::V4 => "3.1.1",
                Version::V5 => "5",
            },
            qos: spec.qos as u8,
            form: match spec.form {
                Form::Natural => "natural",
                Form::Fixed => "fixed",
            },
            arrival: match spec.arrival {
                Arrival::Turns => "turns",
                Arrival::Random => "random",
            },
            odd: spec.odd,
            seed: spec.seed,
            connections: spec.connections,
            rate: spec.rate,
            stopped,
            seconds,
            latest_us: sent.latest.map(|latest| latest.as_secs_f64() * 1e6),
            acknowledged: sent.acknowledged,
            refused: sent.refused,
            refusal: sent.refusal.map(|reason| reason.to_string()),
            foreign,
            window_timeouts: sent.window_timeouts,
            total: one("total", devices, sum, found.as_ref().map(|all| Verification::new(all))),
            workloads,
            generator: GeneratorUsage {
                cpu_seconds,
                nanoseconds_per_message: ratio(cpu_seconds * 1e9, sum.0 as f64),
            },
        }
    }

    /// Whether something was lost or altered; none if that was not verified.
    pub fn is_whole(&self) -> Option<bool> {
        let verification = self.total.verification.as_ref()?;
        Some(verification.lost == 0 && verification.altered == 0)
    }

    /// The first line of [`SensorReport::csv`]: names of its columns.
    pub const CSV_HEAD: &str = "target,verified_at,version,qos,form,arrival,odd,seed,connections,rate,seconds,workload,devices,sent,\
        sent_per_second,sent_bytes_per_second,received,lost,duplicated,out_of_order,altered,latency_p50_us,latency_p90_us,\
        latency_p99_us,latency_p999_us,latency_max_us,latency_mean_us,latest_us,acknowledged,refused,generator_cpu_seconds";

    /// Lines of comma-separated values, one for each workload and, if there are several, one for all. Fields that are not known
    /// are empty; those from `latest_us` on are of the whole run.
    pub fn csv(&self) -> String {
        let mut lines = String::new();
        for workload in self.rows() {
            let arrived = workload.verification.as_ref().map_or(",".repeat(10), |found| {
                let Latency { p50, p90, p99, p999, max, mean, .. } = found.latency;
                format!(
                    "{},{},{},{},{},{p50:.1},{p90:.1},{p99:.1},{p999:.1},{max:.1},{mean:.1}",
                    found.received, found.lost, found.duplicated, found.out_of_order, found.altered,
                )
            });
            lines += &format!(
                "{},{},{},{},{},{},{},{},{},{},{:.6},{},{},{},{:.1},{:.1},{arrived},{},{},{},{:.6}\n",
                self.target,
                self.verified_at.as_deref().unwrap_or_default(),
                self.version,
                self.qos,
                self.form,
                self.arrival,
                self.odd.map(|odd| odd.to_string()).unwrap_or_default(),
                self.seed,
                self.connections,
                self.rate.map(|rate| rate.to_string()).unwrap_or_default(),
                self.seconds,
                workload.name,
                workload.devices,
                workload.sent,
                workload.sent_per_second,
                workload.sent_bytes_per_second,
                self.latest_us.map(|latest| format!("{latest:.1}")).unwrap_or_default(),
                self.acknowledged,
                self.refused,
                self.generator.cpu_seconds,
            );
        }
        lines
    }

    fn rows(&self) -> impl Iterator<Item = &WorkloadReport> {
        let total = (self.workloads.len() > 1).then_some(&self.total);
        self.workloads.iter().chain(total)
    }
}

/// A table for people.
impl fmt::Display for SensorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} · MQTT {} · QoS {} · {} connections · seed {} · {:.2} s",
            self.target, self.version, self.qos, self.connections, self.seed, self.seconds
        )?;
        if let Some(verified_at) = &self.verified_at {
            write!(f, " · verified at {verified_at}")?;
        }
        writeln!(f, "{}", if self.stopped { " · stopped early" } else { "" })?;
        let names = ["workload", "devices", "sent", "sent/s", "MB/s"];
        write!(
            f,
            "{:<9} {:>10} {:>11} {:>10} {:>8}",
            names[0], names[1], names[2], names[3], names[4]
        )?;
        if self.verified_at.is_some() {
            write!(
                f,
                " {:>11} {:>8} {:>6} {:>6} {:>7}",
                "received", "lost", "twice", "order", "altered"
            )?;
            write!(f, " {:>9} {:>9} {:>9} {:>9}", "p50 µs", "p99 µs", "p99.9 µs", "max µs")?;
        }
        for row in self.rows() {
            write!(
                f,
                "\n{:<9} {:>10} {:>11} {:>10.0} {:>8.2}",
                row.name,
                row.devices,
                row.sent,
                row.sent_per_second,
                row.sent_bytes_per_second / 1e6
            )?;
            if let Some(found) = &row.verification {
                let Verification { received, lost, duplicated, out_of_order, altered, .. } = found;
                write!(
                    f,
                    " {received:>11} {lost:>8} {duplicated:>6} {out_of_order:>6} {altered:>7}"
                )?;
                let Latency { p50, p99, p999, max, .. } = found.latency;
                write!(f, " {p50:>9.0} {p99:>9.0} {p999:>9.0} {max:>9.0}")?;
            }
        }
        if let Some(latest) = self.latest_us {
            write!(f, "\npace       the latest left {:.3} ms after its time", latest / 1e3)?;
        }
        if let Some(reason) = &self.refusal {
            write!(f, "\nrefused    {} messages, the first: {reason}", self.refused)?;
        }
        write!(
            f,
            "\ngenerator  {:.3} CPU s, {:.0} ns for each message sent",
            self.generator.cpu_seconds, self.generator.nanoseconds_per_message
        )
    }
}

impl Verification {
    /// Several workloads together.
    fn new(found: &[Found]) -> Self {
        let mut latencies: Histogram<u64> = meter::histogram();
        for one in found {
            latencies.add(&one.latencies).expect("all histograms have the same bounds");
        }
        let sum = |count: fn(&Found) -> u64| found.iter().map(count).sum();
        Self {
            received: sum(|found| found.received),
            received_bytes: sum(|found| found.received_bytes),
            lost: sum(|found| found.lost),
            duplicated: sum(|found| found.duplicated),
            out_of_order: sum(|found| found.out_of_order),
            altered: sum(|found| found.altered),
            latency: Latency::new(&latencies),
        }
    }
}

/// Zero where there is nothing to divide by.
fn ratio(amount: f64, by: f64) -> f64 {
    if by > 0.0 { amount / by } else { 0.0 }
}

//! Results of a run: in the words of `multi_client.py`, as CSV, and as JSON.

use std::{collections::BTreeMap, fmt, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::spec::{Connection, Counting, VisionSpec};
use crate::meter::histogram;

/// Times in milliseconds; zeros if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// Shortest.
    pub min: f64,
    /// Mean.
    pub avg: f64,
    /// Longest.
    pub max: f64,
    /// Standard deviation of a sample; 0 with fewer than two.
    pub stddev: f64,
    /// Half are at most this.
    pub p50: f64,
    /// 90 of 100.
    pub p90: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
}

/// Outcome of one client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClientReport {
    /// Its full process.
    pub full_process: Times,
    /// Requests that a detector looked at.
    pub answered: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests without an answer.
    pub failed: u64,
    /// Connections that were made again.
    pub reconnects: u64,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VisionReport {
    /// The server.
    pub server: String,
    /// The path.
    pub endpoint: String,
    /// How images were sent.
    pub connection: Connection,
    /// Whether over TLS.
    pub tls: bool,
    /// Whether each request had a connection of its own.
    pub connection_per_request: bool,
    /// Clients.
    pub threads: u32,
    /// How often each sent all images; none if it was a matter of time.
    pub repeats: Option<u32>,
    /// Images.
    pub files: usize,
    /// Bytes of all images together.
    pub image_bytes: usize,
    /// Requests that were due each second; none if each waited for the answer to the last.
    pub rate: Option<f64>,
    /// Seconds that it took.
    pub seconds: f64,
    /// Requests with an answer each second.
    pub answers_per_second: f64,
    /// From before an image was encoded for the wire, or from when it was due, until the whole answer was read.
    pub full_process: Times,
    /// A fresh TCP connect.
    pub network_only: Times,
    /// As the answers say it.
    pub server_processing: Times,
    /// Answers with something found.
    pub found: u64,
    /// Answers with nothing found.
    pub nothing_found: u64,
    /// Requests that the server refused, by its reason.
    pub refused: BTreeMap<String, u64>,
    /// Requests without a usable answer, by the reason.
    pub failed: BTreeMap<String, u64>,
    /// Connections that were made again, because the server had closed the one before.
    pub reconnects: u64,
    /// Mean use of the server's processors in per cent, if it was asked for.
    pub cpu_percent: Option<f64>,
    /// Mean use of the server's memory in per cent, if it was asked for.
    pub memory_percent: Option<f64>,
    /// Whether the run was stopped early.
    pub stopped: bool,
    /// Each client.
    pub clients: Vec<ClientReport>,
    /// Full process of each answer in ms, client by client, if they were kept.
    #[serde(skip)]
    pub full_process_ms: Vec<f64>,
}

impl VisionReport {
    pub(super) fn new(
        spec: &VisionSpec,
        tallies: &[Tally],
        network: &Summary,
        usage: &Usage,
        elapsed: Duration,
        stopped: bool,
    ) -> Self {
        let (mut full, mut server) = (Summary::default(), Summary::default());
        let (mut refused, mut failed) = (BTreeMap::new(), BTreeMap::new());
        let mut times = Vec::new();
        for tally in tallies {
            full.join(&tally.full_process);
            server.join(&tally.server);
            for (all, some) in [(&mut refused, &tally.refused), (&mut failed, &tally.failed)] {
                for (reason, count) in some {
                    *all.entry(reason.clone()).or_default() += count;
                }
            }
            times.extend_from_slice(&tally.times_ms);
        }
        let full_process = full.times();
        let seconds = elapsed.as_secs_f64();
        let client = |tally: &Tally| ClientReport {
            full_process: tally.full_process.times(),
            answered: tally.found + tally.nothing_found,
            refused: tally.refused.values().sum(),
            failed: tally.failed.values().sum(),
            reconnects: tally.reconnects,
        };
        Self {
            server: spec.target.authority(),
            endpoint: spec.endpoint.clone(),
            connection: spec.connection,
            tls: spec.target.tls.is_some(),
            connection_per_request: spec.connection_per_request,
            threads: spec.threads,
            repeats: match spec.counting {
                Counting::Repeats(repeats) => Some(repeats),
                Counting::For(_) => None,
            },
            files: spec.images.len(),
            image_bytes: spec.images.iter().map(|image| image.bytes.len()).sum(),
            rate: spec.rate,
            seconds,
            answers_per_second: full_process.count as f64 / seconds.max(1e-9),
            full_process,
            network_only: network.times(),
            server_processing: server.times(),
            found: tallies.iter().map(|tally| tally.found).sum(),
            nothing_found: tallies.iter().map(|tally| tally.nothing_found).sum(),
            refused,
            failed,
            reconnects: tallies.iter().map(|tally| tally.reconnects).sum(),
            cpu_percent: usage.cpu.mean(),
            memory_percent: usage.memory.mean(),
            stopped,
            clients: tallies.iter().map(client).collect(),
            full_process_ms: times,
        }
    }

    /// Requests that a detector looked at.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.found + self.nothing_found
    }

    /// Whether there were requests, and a detector looked at each.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.answered() > 0 && self.refused.is_empty() && self.failed.is_empty() && !self.stopped
    }

    /// The first line of [`VisionReport::csv`]: names of its columns.
    pub const CSV_HEAD: &str =
        "Server, Full Process, Network Only, Server Time, CPU Util, Mem Util";

    /// The means, in ms and per cent, as one line.
    #[must_use]
    pub fn csv(&self) -> String {
        format!(
            "{}, {:.3}, {:.3}, {:.3}, {:.3}, {:.3}\n",
            self.server,
            self.full_process.avg,
            self.network_only.avg,
            self.server_processing.avg,
            self.cpu_percent.unwrap_or_default(),
            self.memory_percent.unwrap_or_default()
        )
    }
}

impl fmt::Display for VisionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, endpoint, threads, files, .. } = self;
        let way = self.connection.name();
        let title = format!("Grand totals for {server} {endpoint} {way}");
        let line = "=".repeat(title.len());
        let repeated = match self.repeats {
            Some(repeats) => format!("repeated {repeats} times"),
            None => format!("for {:.1} s", self.seconds),
        };
        writeln!(f, "{line}\n{title}")?;
        writeln!(
            f,
            "{threads} threads {repeated} on {files} files. {} total frames. FPS={:.2}\n{line}",
            self.full_process.count, self.answers_per_second
        )?;
        for (name, times, more) in [
            ("Latency Full Process", &self.full_process, true),
            ("Latency Network Only", &self.network_only, false),
            ("Server Processing Time", &self.server_processing, false),
        ] {
            if times.count == 0 {
                continue;
            }
            write!(f, "====> Average {name}={:.3} ms (stddev={:.3})", times.avg, times.stddev)?;
            if more {
                write!(f, " FPS={:.2}", 1e3 / times.avg)?;
            }
            writeln!(f)?;
        }
        for (name, used) in [("CPU", self.cpu_percent), ("Memory", self.memory_percent)] {
            if let Some(used) = used {
                writeln!(f, "====> Average {name} Utilization={used:.1}%")?;
            }
        }
        for (name, times) in [
            ("Full Process Latency", &self.full_process),
            ("Network Only Latency", &self.network_only),
            ("Server Processing Time", &self.server_processing),
        ] {
            if times.count > 0 {
                writeln!(
                    f,
                    "{name}: min/avg/max/stddev = {:.3}/{:.3}/{:.3}/{:.3} ms, p50/p90/p95/p99 = {:.3}/{:.3}/{:.3}/{:.3} ms",
                    times.min,
                    times.avg,
                    times.max,
                    times.stddev,
                    times.p50,
                    times.p90,
                    times.p95,
                    times.p99
                )?;
            }
        }
        for (what, reasons) in [("refused", &self.refused), ("failed", &self.failed)] {
            for (reason, count) in reasons {
                writeln!(f, "{count} requests {what}: {reason}")?;
            }
        }
        if self.nothing_found > 0 {
            writeln!(f, "{} answers with nothing found", self.nothing_found)?;
        }
        if self.reconnects > 0 {
            writeln!(f, "{} connections made again, closed by the server", self.reconnects)?;
        }
        if self.stopped {
            writeln!(f, "stopped early")?;
        }
        write!(f, "\n{}\n{}\n", Self::CSV_HEAD, self.csv())?;
        let passed = if self.is_whole() && self.nothing_found == 0 { "True" } else { "False" };
        write!(f, "TEST_PASS={passed}")
    }
}

/// One client's outcome.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) full_process: Summary,
    pub(super) server: Summary,
    pub(super) found: u64,
    pub(super) nothing_found: u64,
    /// Requests by the reason for which they have no result.
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) failed: BTreeMap<String, u64>,
    pub(super) reconnects: u64,
    pub(super) times_ms: Vec<f64>,
}

/// Use of the server's machine, in per cent.
#[derive(Debug, Default)]
pub(super) struct Usage {
    pub(super) cpu: Summary,
    pub(super) memory: Summary,
}

/// Times as they come, or other values, without a copy of each.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    histogram: Histogram<u64>,
    count: u64,
    mean: f64,
    /// Sum of squared distances from the mean, by Welford's method.
    squares: f64,
    min: f64,
    max: f64,
}

impl Default for Summary {
    fn default() -> Self {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Self { histogram: histogram(), count: 0, mean: 0.0, squares: 0.0, min, max }
    }
}

impl Summary {
    /// Adds a time, in ms.
    pub(super) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(nanos);
        self.add_value(time.as_secs_f64() * 1e3);
    }

    /// Adds a value that is no time, if there is one.
    pub(super) fn add_some(&mut self, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.add_value(value);
        }
    }

    fn add_value(&mut self, value: f64) {
        self.count += 1;
        let distance = value - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (value - self.mean);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds all of another one.
    pub(super) fn join(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.histogram.add(&other.histogram).expect("all have the same bounds");
        let (ours, theirs) = (self.count as f64, other.count as f64);
        let (all, distance) = (ours + theirs, other.mean - self.mean);
        self.squares += other.squares + distance * distance * ours * theirs / all;
        self.mean += distance * theirs / all;
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    fn times(&self) -> Times {
        if self.count == 0 {
            return Times::default();
        }
        // A class of the histogram may end beyond the longest.
        let percentile = |p| (self.histogram.value_at_percentile(p) as f64 / 1e6).min(self.max);
        let variance = self.squares / (self.count - 1).max(1) as f64;
        Times {
            count: self.count,
            min: self.min,
            avg: self.mean,
            max: self.max,
            stddev: variance.sqrt(),
            p50: percentile(50.0),
            p90: percentile(90.0),
            p95: percentile(95.0),
            p99: percentile(99.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(ms: &[u64]) -> Summary {
        let mut summary = Summary::default();
        ms.iter().for_each(|ms| summary.add(Duration::from_millis(*ms)));
        summary
    }

    #[test]
    fn times_are_those_of_the_sample() {
        let times = summary(&[2, 4, 4, 4, 5, 5, 7, 9]).times();
        assert_eq!((times.count, times.min, times.max), (8, 2.0, 9.0));
        assert!((times.avg - 5.0).abs() < 1e-9, "{times:?}");
        assert!((times.stddev - (32.0_f64 / 7.0).sqrt()).abs() < 1e-9, "{times:?}");
        assert!((times.p50 - 4.0).abs() < 0.01 && (times.p99 - 9.0).abs() < 0.01, "{times:?}");
        assert_eq!(summary(&[3]).times().stddev, 0.0);
        assert_eq!(summary(&[]).times(), Times::default());
    }

    #[test]
    fn joined_parts_are_the_whole() {
        let mut joined = summary(&[]);
        for part in [&[1, 20, 3][..], &[], &[400], &[5, 6, 7, 8]] {
            joined.join(&summary(part));
        }
        let (joined, whole) = (joined.times(), summary(&[1, 20, 3, 400, 5, 6, 7, 8]).times());
        assert!((joined.avg - whole.avg).abs() < 1e-9, "{joined:?} {whole:?}");
        assert!((joined.stddev - whole.stddev).abs() < 1e-9, "{joined:?} {whole:?}");
        assert_eq!((joined.count, joined.p95, joined.max), (whole.count, whole.p95, whole.max));
    }
}

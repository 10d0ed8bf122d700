//! Processes and lines that end with the bench, also when it is interrupted.

use std::{
    net::TcpStream,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bench_harness::{Owned, end_on_signals};
use tidegate_load::process::usage;
use tidegate_netlab::{Lab, Options, sweep, sweep_prefix};
use tidegate_sim::medium::Scenario;

/// For a server to listen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest p99 by which a medium may have been late in a run that counts.
const LATE_MAX: Duration = Duration::from_millis(1);
/// The congestion control of TCP on a line: that of most telephones and servers. BBR, some machines' default, spreads an image that follows
/// another after a pause over an eighth of a round trip, whichever server it is for.
pub const CONGESTION: &str = "cubic";
/// The nodes of a line.
pub const SERVER: &str = "server";
/// Where the client is.
pub const CLIENT: &str = "client";
/// The server's address on a line.
pub const ADDRESS: &str = "10.79.1.1";
const CLIENT_ADDRESS: &str = "10.79.1.2";

static LABS: AtomicU32 = AtomicU32::new(0);

/// An error if it has ended by itself.
///
/// # Errors
/// It has, or cannot be looked at.
pub fn check(process: &mut Owned) -> anyhow::Result<()> {
    let ended = process.0.try_wait().context("looking at a process")?;
    ensure!(
        ended.is_none(),
        "it ended by itself, {}",
        ended.map(|s| s.to_string()).unwrap_or_default()
    );
    Ok(())
}

/// Processor time in seconds that a process and the processes below it have used.
///
/// # Errors
/// It is gone.
pub fn cpu_seconds(process: &Owned) -> anyhow::Result<Cpu> {
    let own = usage(process.0.id())?.cpu.as_secs_f64();
    let mut below = 0.0;
    for child in below_of(process.0.id()) {
        // One that ended meanwhile is counted by no one.
        below += usage(child).map_or(0.0, |usage| usage.cpu.as_secs_f64());
    }
    Ok(Cpu { own, below })
}

/// Processor time of a process, and of those that it started.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    /// Its own, in seconds.
    pub own: f64,
    /// Of all below it, in seconds.
    pub below: f64,
}

impl Cpu {
    /// Both together.
    #[must_use]
    pub fn all(self) -> f64 {
        self.own + self.below
    }
}

/// The processes that `process` has started, and those that they have, as far as they run.
fn below_of(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![process];
    while let Some(process) = open.pop() {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for task in tasks.flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            let children = children.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
            for child in children {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}

/// From now on a signal to stop ends all processes and removes all namespaces before this process.
///
/// # Errors
/// Signals cannot be caught, or namespaces that a bench before has left cannot be removed.
pub fn watch_signals() -> anyhow::Result<()> {
    for left in sweep()? {
        eprintln!("bench-vision: removed {left}, left behind by a process that is gone");
    }
    end_on_signals("bench-vision", || {
        if let Err(error) = sweep_prefix(&prefix()) {
            eprintln!("bench-vision: namespaces stay behind: {error}");
        }
    })
}

/// The prefix of the names of this process's namespaces; `sweep` knows them by it once the process is gone.
fn prefix() -> String {
    format!("tglab-{}-", std::process::id())
}

/// A line between a client and a server, wide enough that its delay is all that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// From the client to the server and back, in ms.
    pub round_trip_ms: f64,
    /// Standard deviation of the round trip, in ms.
    pub deviation_ms: f64,
    /// In Mbit/s, each way.
    pub mbit: f64,
}

impl Line {
    /// A line with that round trip alone, of a gigabit.
    #[must_use]
    pub fn of(round_trip_ms: f64) -> Self {
        Self { round_trip_ms, deviation_ms: 0.0, mbit: 1000.0 }
    }

    /// Makes the namespaces and the line.
    ///
    /// # Errors
    /// It takes root.
    pub fn up(&self, seed: u64) -> anyhow::Result<Lab> {
        let scenario = Scenario::parse(&self.text(seed), std::path::Path::new(""))?;
        let lab = up(&scenario)?;
        // By route: a namespace may not choose every algorithm by its sysctl, and the Django server has no setting for it.
        for (node, address) in [(SERVER, ADDRESS), (CLIENT, CLIENT_ADDRESS)] {
            let output = Command::new("ip")
                .args(["-n", lab.node(node)?.namespace(), "route", "replace", "10.79.1.0/24"])
                .args(["dev", "wan0", "proto", "kernel", "scope", "link", "src", address])
                .args(["congctl", CONGESTION])
                .output()
                .context("running ip")?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "choosing {CONGESTION} in {node}: {}", said.trim());
        }
        Ok(lab)
    }

    fn text(&self, seed: u64) -> String {
        let Self { round_trip_ms, deviation_ms, mbit } = self;
        // Each way is delayed evenly by up to j more or less, which deviates by j over the root of 3; two of them by the root of 2 more.
        let jitter_ms = deviation_ms * 1.5_f64.sqrt();
        let delay_ms = round_trip_ms / 2.0;
        format!(
            "seed = {seed}\n\n[[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"{mbit}Mbit\"\ndelay = \"{delay_ms}ms\"\njitter = \
             \"{jitter_ms:.3}ms\"\nqueue = \"4MiB\"\nport = [\n  {{ node = \"{SERVER}\", address = \"{ADDRESS}/24\", default_route \
             = true }},\n  {{ node = \"{CLIENT}\", address = \"{CLIENT_ADDRESS}/24\", default_route = true }},\n]\n"
        )
    }
}

/// Makes the namespaces and media of a scenario, which are removed with the bench.
///
/// # Errors
/// It takes root.
pub fn up(scenario: &Scenario) -> anyhow::Result<Lab> {
    let number = LABS.fetch_add(1, Ordering::Relaxed);
    let options = Options { prefix: Some(format!("{}{number}-", prefix())), ..Options::default() };
    Ok(Lab::up(scenario, &options)?)
}

/// Whether a run on a line may be believed: the emulator kept up.
#[must_use]
pub fn is_valid(audit: &tidegate_netlab::Audit) -> bool {
    audit.lateness.p99 <= LATE_MAX && audit.kernel_dropped == 0
}

/// Where processes run and connections are made: a node of a lab, or loopback.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// This machine as it is.
    Here,
    /// In that node's namespace.
    In(&'a Lab, &'a str),
}

impl Place<'_> {
    /// Starts a process there.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(self, mut command: Command) -> anyhow::Result<Owned> {
        let child = match self {
            Self::Here => {
                let program = command.get_program().to_string_lossy().into_owned();
                command.spawn().with_context(|| format!("starting {program}"))?
            }
            Self::In(lab, node) => lab.exec(node, command)?,
        };
        Ok(Owned::new(child))
    }

    /// Does some work there.
    ///
    /// # Errors
    /// The namespace cannot be entered, or those of the work.
    pub fn within<R: Send>(
        self,
        work: impl FnOnce() -> anyhow::Result<R> + Send,
    ) -> anyhow::Result<R> {
        match self {
            Self::Here => work(),
            Self::In(lab, node) => lab.within(node, work)?,
        }
    }

    /// Waits until something listens there on all of these ports of loopback.
    ///
    /// # Errors
    /// The process ended, or does not listen within a minute; `said` is its log.
    pub fn await_ports(
        self,
        process: &mut Owned,
        ports: &[u16],
        said: impl Fn() -> String,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        for &port in ports {
            loop {
                let listens = || Ok(TcpStream::connect(("127.0.0.1", port)).is_ok());
                if self.within(listens)? {
                    break;
                }
                check(process).with_context(&said)?;
                ensure!(
                    began.elapsed() < PATIENCE,
                    "nothing listens on port {port} within a minute; {}",
                    said()
                );
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

/// A free port of loopback.
///
/// # Errors
/// There is none.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("finding a free port")?;
    Ok(listener.local_addr().context("finding a free port")?.port())
}

/// The last lines of a process's log.
#[must_use]
pub fn last_words(log: &std::path::Path) -> String {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let last: Vec<&str> = said.lines().rev().take(5).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    format!("its last words: {}", last.join(" / "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_scenarios() {
        let line = Line { round_trip_ms: 40.0, deviation_ms: 10.0, mbit: 30.0 };
        let text = line.text(3);
        // 10 ms of two even delays is 12.247 ms to each side.
        assert!(text.contains("delay = \"20ms\"\njitter = \"12.247ms\""), "{text}");
        let scenario = Scenario::parse(&text, std::path::Path::new("")).unwrap();
        assert_eq!(scenario.nodes(), [SERVER, CLIENT]);
    }
}

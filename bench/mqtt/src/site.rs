//! Processes and links that end with the bench, also when it is interrupted.

use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bench_harness::end_on_signals;
use tidegate_netlab::{Lab, Options, sweep, sweep_prefix};
use tidegate_sim::medium::Scenario;

static LABS: AtomicU32 = AtomicU32::new(0);

/// From now on a signal to stop ends all processes and removes all namespaces before this process.
///
/// # Errors
/// Signals cannot be caught, or what a bench before has left cannot be removed.
pub fn watch_signals() -> anyhow::Result<()> {
    for left in sweep()? {
        eprintln!("bench-mqtt: removed {left}, left behind by a process that is gone");
    }
    end_on_signals("bench-mqtt", || {
        if let Err(error) = sweep_prefix(&prefix()) {
            eprintln!("bench-mqtt: namespaces stay behind: {error}");
        }
    })
}

/// The prefix of the names of this process's namespaces; `sweep` knows them by it once the process is gone.
fn prefix() -> String {
    format!("tglab-{}-", std::process::id())
}

/// A full-duplex line between the nodes `broker` and `client`.
#[derive(Clone, Debug)]
pub struct Line {
    /// From the broker to the client, in Mbit/s.
    pub down_mbit: f64,
    /// From the client to the broker, in Mbit/s.
    pub up_mbit: f64,
    /// One way, in ms.
    pub delay_ms: f64,
    /// Loss from the broker to the client, in per cent.
    pub loss_percent: f64,
    /// Bytes of each direction's queue.
    pub queue_bytes: usize,
    /// The changes by second, in lines of a scenario's `step`.
    pub steps: String,
}

impl Line {
    /// Makes the namespaces and the line. TCP of both nodes uses `congestion`.
    ///
    /// # Errors
    /// It takes root.
    pub fn up(&self, congestion: &str, seed: u64) -> anyhow::Result<Lab> {
        let scenario = Scenario::parse(&self.text(seed), std::path::Path::new(""))?;
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let options =
            Options { prefix: Some(format!("{}{number}-", prefix())), ..Options::default() };
        let lab = Lab::up(&scenario, &options)?;
        // By route: a namespace may not choose every algorithm by its sysctl, and no peer has a setting for it.
        for (node, address) in [("broker", BROKER), ("client", CLIENT)] {
            let output = Command::new("ip")
                .args(["-n", lab.node(node)?.namespace(), "route", "replace", "10.78.1.0/24"])
                .args(["dev", "wan0", "proto", "kernel", "scope", "link", "src", address])
                .args(["congctl", congestion])
                .output()
                .context("running ip")?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "choosing {congestion} in {node}: {}", said.trim());
        }
        Ok(lab)
    }

    fn text(&self, seed: u64) -> String {
        let Self { down_mbit, up_mbit, delay_ms, loss_percent, queue_bytes, steps } = self;
        format!(
            "seed = {seed}\n\n[[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"{up_mbit}Mbit\"\ndelay = \"{delay_ms}ms\"\n\
             queue = \"{queue_bytes}B\"\n{steps}port = [\n  {{ node = \"broker\", address = \"10.78.1.1/24\", rate = \
             \"{down_mbit}Mbit\", loss = \"{loss_percent}%\", default_route = true }},\n  {{ node = \"client\", address = \
             \"10.78.1.2/24\", default_route = true }},\n]\n"
        )
    }
}

/// The broker's address on the line.
pub const BROKER: &str = "10.78.1.1";
const CLIENT: &str = "10.78.1.2";

/// Whether a run on a line may be believed: the emulator kept up.
pub fn is_valid(audit: &tidegate_netlab::Audit) -> bool {
    audit.lateness.p99 <= Duration::from_millis(1) && audit.kernel_dropped == 0
}

//! The cost of carrying sensor messages. Each module measures one group and adds its rows to one report.
//!
//! ```text
//!  messages: made up by tidegate-load, or RIoTBench's sample rows ──▶ codec, cold: encoders and decoders in memory, one thread
//!  datagrams over loopback ──▶ udp: what receives them, by itself and in front of a broker; oil: a flow, and its alarms
//!  edge ── datagrams over loopback ──▶ host, a thread each ──▶ ways, co_running: the paper's comparison
//!  devices over MQTT ──▶ two nodes of the program ──▶ chain, urgent, endure: CPU above, alarms, nothing lost
//! ```
//!
//! Rates are messages per second of processor time of the thread that works: other work of the machine then shows in caches alone.

use std::path::PathBuf;

pub mod chain;
pub mod co_running;
pub mod codec;
pub mod cold;
pub mod devices;
pub mod endure;
mod in_process;
pub mod memory;
pub mod messages;
pub mod mosquitto;
pub mod node;
pub mod oil;
pub mod peers;
pub mod udp;
pub mod urgent;
pub mod ways;

/// How often a group measures, and with what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shorter runs.
    pub quick: bool,
    /// Runs that each figure is the median of.
    pub runs: usize,
    /// Seed of the generator.
    pub seed: u64,
    /// Folder with published data, if it is there.
    pub data: Option<PathBuf>,
}

//! Benches of the MQTT broker. Each module measures one group and adds its rows to one report.
//!
//! ```text
//!  programs ─▶ Broker (ours, mosquitto, rumqttd, NATS, mochi), on loopback or in a namespace of a lab
//!                 ▲                                        ▲
//!  tidegate-load ─┘ counts and rates          traffic ─────┘ every message, with its times
//! ```

use std::path::PathBuf;

pub mod broker;
pub mod congestion;
pub mod connects;
pub mod core;
pub mod idle;
pub mod paper;
pub mod quiet;
pub mod relay;
pub mod simulator;
pub mod site;
pub mod sparse;
pub mod stalled;
pub mod throughput;
pub mod traffic;

/// How long and how often a group measures.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shorter runs.
    pub quick: bool,
    /// Runs that each figure is the median of.
    pub runs: usize,
    /// The root of the checkout, where scripts and peers are.
    pub root: PathBuf,
}

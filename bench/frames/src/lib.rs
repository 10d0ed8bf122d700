//! Benches of the frame path. Each module measures one group and gives raw samples; [`figures`] turns them into rows.

use std::path::PathBuf;

pub mod age;
pub mod calibrate;
pub mod clip;
pub mod control;
pub mod fanout;
pub mod figures;
pub mod idle;
pub mod infeasible;
pub mod knobs;
pub mod live;
pub mod log;
pub mod nats;
pub mod score;
pub mod site;
pub mod stages;
pub mod steps;
pub mod watch;
pub mod wifi;

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

/// The calibrated Wi-Fi-like medium, from the root of the checkout.
pub const SCENARIO: &str = "bench/scenarios/wifi-mez.toml";

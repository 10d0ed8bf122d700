//! Images in and answers out, pictures out: each module measures one group and adds its rows to one report.
//!
//! ```text
//!  client ══ a line of a lab, or loopback ══ server: `tidegate node` with its endpoints, or the Django server beside it
//!     └ tidegate-load's `vision`: full process, network only, server time
//!
//!  latency, overhead, clients: both servers in turn      application, mjpeg, cameras, sdk: the program alone
//! ```
//!
//! The Django server has the shape of the one that the paper measures (`peer/server.py`). For the paper's figures both have
//! its detector, Haar's cascade (`peer/haar.py`); where the detector is not the subject it is of this crate: a program ([`worker`]), or one in
//! the server's process ([`echo`]).

use std::path::PathBuf;

pub mod application;
pub mod cameras;
pub mod clients;
pub mod echo;
pub mod images;
pub mod latency;
pub mod mjpeg;
pub mod mjpeg_camera;
pub mod node;
pub mod overhead;
pub mod peer;
pub mod sdk;
pub mod site;
pub mod worker;

/// How often a group measures.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shorter runs.
    pub quick: bool,
    /// Runs that each figure is the median of.
    pub runs: usize,
    /// The checkout, where scripts are.
    pub root: PathBuf,
}

/// The checkout that this bench was built of.
#[must_use]
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

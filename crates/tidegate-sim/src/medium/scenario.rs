//! The content of a scenario: media, their ports, and how they change in time.
//!
//! Always true: a [`Scenario`] that came from [`Scenario::parse`] has at least one medium, every
//! medium at least two ports of distinct nodes, every value in its range, and every name that it
//! mentions exists.

use std::{net::Ipv4Addr, path::Path, time::Duration};

use super::{
    change::Change,
    trace::Trace,
    unit::{Probability, Rate},
};

mod read;

pub use read::{Fault, ScenarioError};

/// Media between the ports of nodes, and how they change in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Seed of all chance in the media.
    pub seed: u64,
    /// The media.
    pub media: Vec<MediumConfig>,
}

impl Scenario {
    /// Reads a scenario file; traces that it names are read relative to its folder.
    ///
    /// # Errors
    /// [`ScenarioError`], with key and line where the text is at fault.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.into(), source })?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads a scenario from text; traces that it names are read relative to `folder`.
    ///
    /// # Errors
    /// [`ScenarioError`], with key and line where the text is at fault.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, ScenarioError> {
        read::scenario(text, folder)
    }

    /// Every port with its medium, in order: the n-th is [`PortId`]`(n)`.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &MediumConfig, &PortConfig)> {
        let ports = self.media.iter().flat_map(|m| m.ports.iter().map(move |port| (m, port)));
        ports.enumerate().map(|(index, (medium, port))| (PortId(index), medium, port))
    }

    /// Names of the nodes, each once, in order of appearance.
    pub fn nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = Vec::new();
        for (_, _, port) in self.ports() {
            if !nodes.contains(&port.node.as_str()) {
                nodes.push(&port.node);
            }
        }
        nodes
    }

    /// The ports of two nodes on the first medium that joins them.
    pub fn path(&self, from: &str, to: &str) -> Option<(PortId, PortId)> {
        let mut first = 0;
        for medium in &self.media {
            let port = |node| medium.ports.iter().position(|port| port.node == node);
            match (port(from), port(to)) {
                (Some(a), Some(b)) if a != b => {
                    return Some((PortId(first + a), PortId(first + b)));
                }
                _ => first += medium.ports.len(),
            }
        }
        None
    }
}

/// A port: its index over all media of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub usize);

/// One medium.
#[derive(Clone, Debug, PartialEq)]
pub struct MediumConfig {
    /// Its name, at most 15 characters: also that of the network device in each node.
    pub name: String,
    /// Its kind, with what only that kind has.
    pub kind: Kind,
    /// Line rate of a WAN or PHY rate of Wi-Fi, for ports that set none.
    pub rate: Rate,
    /// One-way delay, for ports that set none. Default 0.
    pub delay: Duration,
    /// Bytes that each queue holds, the packet being sent included. Default 256 KiB.
    ///
    /// The kernel sees nothing of this queue, so it behaves as a router's: choose it on purpose. At
    /// 20 Mbit/s, 256 KiB are 105 ms.
    pub queue_bytes: usize,
    /// The ports.
    pub ports: Vec<PortConfig>,
    /// Index of the port that packets for addresses of no port go to.
    pub gateway: Option<usize>,
    /// Changes at set times.
    pub steps: Vec<Step>,
    /// Period after which `steps` start over; at least the time of the last step.
    pub steps_period: Option<Duration>,
    /// Random changes.
    pub fade: Option<Fade>,
    /// Recorded changes.
    pub trace: Option<TraceConfig>,
}

/// The kinds of media.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Full duplex; each port's outgoing direction has its own queue and line.
    Wan(WanConfig),
    /// One half-duplex channel for all.
    Wifi(WifiConfig),
}

/// Settings of a WAN alone.
#[derive(Clone, Debug, PartialEq)]
pub struct WanConfig {
    /// Loss at entry, for ports that set none. Default 0.
    pub loss: Probability,
    /// Mean number of packets lost in a row, 1 or more; 1 means independent losses. Default 1.
    pub loss_burst: f64,
    /// Delay varies uniformly by this much either way; order is kept. Default 0.
    pub jitter: Duration,
    /// Bytes that a line which was idle for long lets through at once, as a shaper with a token bucket does. Default 0.
    pub bucket_bytes: usize,
}

/// Settings of Wi-Fi alone.
#[derive(Clone, Debug, PartialEq)]
pub struct WifiConfig {
    /// Probability that one MPDU is not received. Default 0.
    pub error: Probability,
    /// Most MPDUs in one aggregate, 1 to 256. Default 32.
    pub aggregate: usize,
    /// Longest time on air of one aggregate's data. Default 4 ms.
    pub txop: Duration,
    /// How often an MPDU is sent again before it is given up. Default 7.
    pub retries: u8,
    /// Whether each transmission begins with RTS and CTS. Default true.
    pub rts: bool,
    /// Factors on the PHY rate while 1, 2, … stations have packets waiting; the last one holds for
    /// all higher counts. Default `[1]`.
    ///
    /// It stands for what the model leaves out and a crowded channel suffers from: rate fallback after
    /// collisions, hidden stations, foreign networks. It is fitted, not derived.
    pub crowd: Vec<f64>,
}

/// One port of a medium.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// Node that the port belongs to.
    pub node: String,
    /// Address of the port and its prefix length. Default `10.77.MEDIUM.PORT/24`, both from 1.
    pub address: (Ipv4Addr, u8),
    /// Rate of its outgoing direction (WAN) or of its radio (Wi-Fi), if not the medium's.
    pub rate: Option<Rate>,
    /// Delay of its outgoing direction, if not the medium's. WAN only.
    pub delay: Option<Duration>,
    /// Loss of its outgoing direction, if not the medium's. WAN only.
    pub loss: Option<Probability>,
    /// Whether it is behind the access point by wire. Wi-Fi only.
    pub wired: bool,
    /// Whether the node's default route leaves here.
    pub default_route: bool,
    /// Further destinations that leave here, as address and prefix length.
    pub routes: Vec<(Ipv4Addr, u8)>,
}

/// A change at a set time.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// When, since the scenario started.
    pub at: Duration,
    /// The change.
    pub change: Change,
}

/// A factor on the rate that jumps between levels at random times.
#[derive(Clone, Debug, PartialEq)]
pub struct Fade {
    /// The levels; each is as likely as any other at each jump.
    pub levels: Vec<f64>,
    /// Mean time between jumps, exponentially distributed, 1 ms at least.
    pub dwell: Duration,
    /// Whether each port jumps to a level of its own.
    pub per_port: bool,
}

/// A recorded capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceConfig {
    /// Index of the port whose outgoing direction it governs, all if `None`.
    pub port: Option<usize>,
    /// The trace. Opportunities are for a WAN only.
    pub trace: Trace,
}

//! The parameters of one run of one way, and the state that its edge and its host share.

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64},
    time::Duration,
};

use tidegate_load::sensors::Workload;

use super::Way;

/// Bytes of the host's socket and of the subscriber's, as they are asked for.
pub const BUFFER_BYTES: usize = 4 << 20;
/// Of all messages, those that may be lost: the paper's.
pub const LOSS_MAX: f64 = 0.001;

/// How messages come in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many a second, evenly.
    Even(f64),
    /// As the host takes them.
    AsTaken,
}

/// The run.
#[derive(Clone, Debug)]
pub struct Trial {
    /// By which way messages go.
    pub way: Way,
    /// The workloads whose flows run.
    pub workloads: Vec<Workload>,
    /// How they come in.
    pub pace: Pace,
    /// For how long, if there are enough of them.
    pub time: Duration,
    /// Messages that come before, unmeasured.
    pub warm: u64,
    /// Messages that are measured at most.
    pub messages_max: u64,
    /// Bytes of messages that the host keeps.
    pub log_bytes_max: usize,
}

impl Trial {
    /// When a message is published, if the pace says so.
    pub fn due(&self, begin: i64, number: u64) -> Option<i64> {
        match self.pace {
            Pace::Even(rate) => Some(begin + ((number + 1 - self.warm) as f64 * 1e9 / rate) as i64),
            Pace::AsTaken => None,
        }
    }

    /// Messages whose loss makes going on pointless.
    pub fn lost_max(&self) -> u64 {
        match self.pace {
            Pace::Even(rate) => (LOSS_MAX * rate * self.time.as_secs_f64()) as u64,
            Pace::AsTaken => u64::MAX,
        }
    }
}

/// Messages between edge and host besides datagrams: an uplink's answers.
#[derive(Debug, Default)]
pub struct Shared {
    /// Bytes of the host's socket, as it has them.
    pub buffer_bytes: usize,
    /// Whether the host receives.
    pub is_ready: AtomicBool,
    /// When the first message that is measured was published.
    pub begin: AtomicI64,
    /// The number after that of the last message that the host has had.
    pub seen: AtomicU64,
    /// How often the host's codec has started over.
    pub epoch: AtomicU16,
    /// Whether more was lost than may be.
    pub is_hopeless: AtomicBool,
    /// Whether nothing more comes.
    pub is_over: AtomicBool,
}

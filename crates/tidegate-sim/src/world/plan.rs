//! The nodes of a run and all that happens to them, drawn from a seed before it begins.
//!
//! Each fault ends by itself, so that any of them can be taken out of a plan and the rest still makes sense.

use std::{ops::RangeInclusive, time::Duration};

use super::network::Path;
use crate::random::Random;

/// A run.
#[derive(Clone, Debug)]
pub struct Plan<R> {
    /// Chance in the run (jitter, the time of a sync, the bytes that a loss of power leaves) comes of it.
    pub seed: u64,
    /// The clocks of each node; there are as many nodes.
    pub clocks: Vec<ClockPlan>,
    /// The ways between them.
    pub path: Path,
    /// Longest time of a sync.
    pub disk_lag: Duration,
    /// When which fault begins, after the run does.
    pub faults: Vec<(Duration, Fault)>,
    /// When which node is asked for what.
    pub requests: Vec<(Duration, usize, R)>,
}

/// How wrong a node's clocks are.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockPlan {
    /// How far the wall clock is ahead, in nanoseconds.
    pub ahead_nanos: i64,
    /// Nanoseconds that both clocks gain in a millisecond.
    pub drift_ppm: i32,
}

/// Something that goes wrong at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The node.
    pub node: usize,
    /// How long it lasts. Clocks and bytes that are wrong stay so.
    pub time: Duration,
    /// Its kind.
    pub harm: Harm,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nothing gets to that node; the other direction works until its sender learns that the connection is over.
    Cut(usize),
    /// Nodes whose bits differ do not reach each other.
    Split(u64),
    /// Nothing arrives at that node, and then all that was sent does, in its order.
    Hold(usize),
    /// The process is killed: files are as they were written. It begins again after the time.
    Kill,
    /// The machine loses its power: of what was not synced a suffix is gone. It begins again after the time.
    PowerCut,
    /// The process is stopped, and continues later with all that has come meanwhile. Its clocks show how long it was.
    Stop,
    /// The machine sleeps: the same, but the monotonic clock has not moved, and connections end if it is longer than their silence.
    Sleep,
    /// The wall clock is set ahead by so many nanoseconds, or back.
    SetClock(i64),
    /// The clocks gain from now on so many nanoseconds a millisecond.
    Drift(i32),
    /// The disk has room for so many bytes more.
    FillDisk(u64),
    /// Each sync takes up to so much longer.
    SlowDisk(Duration),
    /// A bit of a stored byte flips.
    Damage,
    /// After the time the process is killed, and begins again on what is on the disk now.
    Restore,
}

impl<R> Plan<R> {
    /// Of so many nodes with right clocks, to which nothing happens.
    pub fn quiet(seed: u64, nodes: usize) -> Self {
        Self {
            seed,
            clocks: vec![ClockPlan::default(); nodes],
            path: Path::default(),
            disk_lag: Duration::from_millis(5),
            faults: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// Of as many nodes, with clocks up to twelve hours off, fast and slow ways and disks, and faults of every kind for that time.
    /// Faults that a protocol does not claim to survive are to be taken out of it.
    pub fn draw(seed: u64, nodes: RangeInclusive<usize>, length: Duration) -> Self {
        const HALF_DAY: u64 = 12 * 3_600_000_000_000;
        let random = &mut Random::new(seed, 1);
        let ms = Duration::from_millis;
        let (least, most) = nodes.into_inner();
        let nodes = least + random.below((most - least + 1) as u64) as usize;
        let clock = |_| ClockPlan {
            ahead_nanos: random.below(2 * HALF_DAY) as i64 - HALF_DAY as i64,
            drift_ppm: random.below(401) as i32 - 200,
        };
        let clocks = (0..nodes).map(clock).collect();
        let path = Path {
            delay: ms(*random.choose(&[0, 1, 20, 150])),
            jitter: ms(*random.choose(&[0, 1, 20])),
            rate: *random.choose(&[20_000, 1_000_000, 100_000_000]),
            silence: ms(*random.choose(&[500, 3_000])),
        };
        let disk_lag = ms(*random.choose(&[0, 5, 100]));
        let gap = ms(*random.choose(&[200, 1_000, 5_000]));
        let mut faults = Vec::new();
        let mut at = random.time(2 * gap);
        while at < length {
            faults.push((at, Fault::draw(random, nodes)));
            at += random.time(2 * gap);
        }
        Self { seed, clocks, path, disk_lag, faults, requests: Vec::new() }
    }

    /// Asks some node for something, on the average once in `gap`, for that time.
    pub fn ask(
        &mut self,
        length: Duration,
        gap: Duration,
        mut request: impl FnMut(&mut Random) -> R,
    ) {
        let random = &mut Random::new(self.seed, 2);
        let mut at = random.time(2 * gap);
        while at < length {
            let node = random.below(self.clocks.len() as u64) as usize;
            self.requests.push((at, node, request(random)));
            at += random.time(2 * gap);
        }
    }
}

impl Fault {
    /// Any fault of a world of so many nodes, at least two.
    pub fn draw(random: &mut Random, nodes: usize) -> Self {
        let node = random.below(nodes as u64) as usize;
        let to = (node + 1 + random.below(nodes as u64 - 1) as usize) % nodes;
        let most = *random.choose(&[100, 2_000, 15_000]);
        let time = random.time(Duration::from_millis(most));
        let harm = match random.below(18) {
            0..3 => Harm::Cut(to),
            3 | 4 => Harm::Split(random.bits()),
            5 | 6 => Harm::Hold(to),
            7..9 => Harm::Kill,
            9..11 => Harm::PowerCut,
            11 => Harm::Stop,
            12 => Harm::Sleep,
            13 => {
                let most = *random.choose(&[1_000_000_000, 7_200_000_000_000]);
                Harm::SetClock(random.below(2 * most) as i64 - most as i64)
            }
            14 => Harm::Drift(random.below(1_001) as i32 - 500),
            15 => Harm::FillDisk(*random.choose(&[0, 10, 200])),
            16 => Harm::SlowDisk(Duration::from_millis(most / 4)),
            _ if random.ratio(1, 2) => Harm::Damage,
            _ => Harm::Restore,
        };
        harm.at(node, time)
    }
}

impl Harm {
    /// The fault that has this happen to a node, for that time.
    pub fn at(self, node: usize, time: Duration) -> Fault {
        Fault { node, time, harm: self }
    }

    /// For the trail.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Cut(_) => "is cut off",
            Self::Split(_) => "is split off",
            Self::Hold(_) => "is held up",
            Self::Kill => "is killed",
            Self::PowerCut => "loses power",
            Self::Stop => "stops",
            Self::Sleep => "sleeps",
            Self::SetClock(_) => "has its clock set",
            Self::Drift(_) => "drifts",
            Self::FillDisk(_) => "has a full disk",
            Self::SlowDisk(_) => "has a slow disk",
            Self::Damage => "has a damaged byte",
            Self::Restore => "is backed up",
        }
    }
}

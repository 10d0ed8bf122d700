//! Faults.

use std::time::Duration;

use rand::{RngExt, rngs::SmallRng};

/// One fault of one client, or of its way to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection breaks for both, at any byte.
    Cut,
    /// The client is gone, and is back with its state; the broker learns later of the old connection's end.
    Restart { learns: Duration },
    /// The same, and the client has forgotten all.
    CleanStart { learns: Duration },
    /// The client ends its side and still reads.
    HalfClose,
    /// The client uses another connection at once, and leaves the old one to itself.
    TakeOver { learns: Duration },
    /// Nothing moves in either direction.
    Stall(Duration),
    /// The client does not read.
    Deaf(Duration),
    /// The way becomes slower or faster.
    Rate(u64),
    /// The client says goodbye.
    Leave { keeps_will: bool },
}

impl Fault {
    pub(super) fn draw(random: &mut SmallRng) -> Self {
        let mut time = |most: u64| Duration::from_millis(random.random_range(0..most));
        let (learns, short, long) = (time(20_000), time(3_000), time(40_000));
        match random.random_range(0..12) {
            0..2 => Self::Cut,
            2 => Self::Restart { learns },
            3 => Self::CleanStart { learns: short },
            4 => Self::HalfClose,
            5..7 => Self::TakeOver { learns },
            7 => Self::Stall(short),
            8 => Self::Stall(learns),
            9 => Self::Deaf(long),
            10 => Self::Rate(10_u64.pow(random.random_range(4..7))),
            _ => Self::Leave { keeps_will: random.random() },
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Cut => "is cut off",
            Self::Restart { .. } => "restarts",
            Self::CleanStart { .. } => "starts clean",
            Self::HalfClose => "half closes",
            Self::TakeOver { .. } => "takes over",
            Self::Stall(_) => "stalls",
            Self::Deaf(_) => "does not read",
            Self::Rate(_) => "changes its rate",
            Self::Leave { .. } => "leaves",
        }
    }
}

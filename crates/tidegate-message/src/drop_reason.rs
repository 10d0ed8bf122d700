//! Why a camera does not deliver a frame.

use std::fmt;

/// Why a frame was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropReason {
    /// A newer frame came before it could be sent.
    Overtaken,
    /// It could not have arrived in time.
    Late,
    /// Its deadline came while it was on the way.
    Deadline,
    /// No setting keeps the bounds.
    Infeasible,
    /// No setting keeps the bounds and the subscriber wants nothing then.
    Paused,
    /// The encoder has no room for it, or has ended.
    EncodeFailed,
    /// The link is down.
    LinkDown,
    /// Too many frames wait, or are under way.
    QueueFull,
    /// The camera's log wrapped before it was read.
    LogWrapped,
    /// Its picture is damaged: it cannot be read, or not covered as it must be.
    Damaged,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::Overtaken,
        Self::Late,
        Self::Deadline,
        Self::Infeasible,
        Self::Paused,
        Self::EncodeFailed,
        Self::LinkDown,
        Self::QueueFull,
        Self::LogWrapped,
        Self::Damaged,
    ];

    /// The word used in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Overtaken => "overtaken",
            Self::Late => "late",
            Self::Deadline => "deadline",
            Self::Infeasible => "infeasible",
            Self::Paused => "paused",
            Self::EncodeFailed => "encode failed",
            Self::LinkDown => "link down",
            Self::QueueFull => "queue full",
            Self::LogWrapped => "log wrapped",
            Self::Damaged => "damaged",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

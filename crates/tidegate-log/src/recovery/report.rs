//! A report on what was found in the folder of a log.

use std::{fmt, io};

use tidegate_message::{Instant, Position};

use crate::seal::KeyId;

/// A report on the opening of a log, for the operator.
#[derive(Debug, Default)]
pub struct Report {
    /// Segments that are served.
    pub segments: usize,
    /// Entries that are served, lost ones aside as far as is known.
    pub entries: u64,
    /// Segments that had to be scanned: the last one of every run, and more after a loss of power.
    pub scanned: usize,
    /// Sealed segments that the current node key has taken over from an older one.
    pub rewrapped: usize,
    /// Time of the newest entry ever appended, as far as is known.
    pub last_at: Option<Instant>,
    /// The first entry behind the last segment that is missing whole, without a file of its: those before may have been let go of
    /// with it, and their files be there still.
    pub behind_missing: Option<Position>,
    /// Whether the newest entries are in a segment that was full: the one that was begun after it is missing, unless the process
    /// ended between the two.
    pub ends_finished: bool,
    /// Findings for an operator, in order of the segments.
    pub findings: Vec<Finding>,
}

/// One thing that was found.
#[derive(Debug)]
pub enum Finding {
    /// A file that is none of this log. It was left alone.
    Foreign {
        /// Its name.
        name: String,
    },
    /// A file of our name that is a link, a folder, or open to others' writing. It was left alone, and its entries are missing.
    Untrusted {
        /// Its name.
        name: String,
    },
    /// A file that could not be read. It was left alone, and its entries are missing.
    Unreadable {
        /// Its name.
        name: String,
        /// The error.
        error: io::Error,
    },
    /// A file without anything to be read, or whose entries do not fit those before. It was renamed, and is not looked at again.
    SetAside {
        /// Its name.
        name: String,
        /// The name that it has now, or why it could not be renamed.
        to: io::Result<String>,
        /// The damage.
        why: Damage,
    },
    /// A segment whose header or end was damaged; its entries were found nevertheless.
    Repaired {
        /// Its name.
        name: String,
    },
    /// A segment in which something was changed on purpose: its checksums hold, its seals do not. Only its sealed content is
    /// served.
    Tampered {
        /// Its name.
        name: String,
        /// Entries that are not served for that.
        entries: u64,
    },
    /// A segment that a key has sealed which is not here. It was left alone, and its entries are missing.
    OtherKey {
        /// Its name.
        name: String,
        /// The key.
        key: KeyId,
    },
    /// A segment in clear text in a sealed log. It was left alone, and its entries are missing: they are not
    /// authenticated.
    Clear {
        /// Its name.
        name: String,
    },
    /// A sealed segment that an older node key still opens, because the current one could not take it over. It is served.
    NotRewrapped {
        /// Its name.
        name: String,
        /// The error.
        error: io::Error,
    },
    /// Entries are missing between others.
    Lost {
        /// Position of the first one.
        from: Position,
        /// Position after the last one.
        to: Position,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { name } => {
                write!(f, "{name} is not a file of this log and was left alone")
            }
            Self::Untrusted { name } => write!(
                f,
                "{name} is a link, a folder, or open to others' writing, and was left alone; its entries are missing"
            ),
            Self::Unreadable { name, error } => {
                write!(f, "{name} could not be read: {error}; its entries are missing")
            }
            Self::SetAside { name, to: Ok(to), why } => {
                write!(f, "{name} was renamed to {to}: {}", why.as_str())
            }
            Self::SetAside { name, to: Err(error), why } => {
                write!(f, "{name} could not be renamed ({error}): {}", why.as_str())
            }
            Self::Repaired { name } => {
                write!(f, "header or end of {name} was damaged; its entries were found")
            }
            Self::Tampered { name, entries } => {
                write!(f, "{name} was tampered with: {entries} entries are not served")
            }
            Self::OtherKey { name, key } => write!(
                f,
                "{name} is sealed with the key {key}, which is not here; its entries are missing"
            ),
            Self::Clear { name } => write!(
                f,
                "{name} is in clear text in a sealed log and was left alone; its entries are missing"
            ),
            Self::NotRewrapped { name, error } => write!(
                f,
                "{name} could not be taken over by the current key: {error}; keep the older one"
            ),
            Self::Lost { from, to } => {
                write!(f, "{} entries are missing, from position {from} on", to.0 - from.0)
            }
        }
    }
}

/// The damage to a file that was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// No header and no entry of it proves itself.
    Unreadable,
    /// Its positions or times are not later than those of the segments before.
    OutOfOrder,
    /// It is sealed, and was changed on purpose; or its key is damaged.
    Tampered,
    /// It holds nothing but zeros where entries are missing.
    Zeros,
}

impl Damage {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "nothing in it can be read",
            Self::OutOfOrder => "its entries are not later than those before",
            Self::Tampered => "it was tampered with, or its key is damaged",
            Self::Zeros => "it holds nothing but zeros, and what was in it is lost",
        }
    }
}

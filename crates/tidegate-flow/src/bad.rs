//! Why a message could not be read.

use std::fmt;

use crate::number::NumberError;

/// Why a message could not be read. The field is named by its place in the list of fields; [`crate::Flow::field_name`] has
/// its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad {
    /// The problem.
    pub reason: Reason,
    /// With which field, if with one.
    pub field: Option<u16>,
}

/// Problems of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The payload is longer than `message_bytes_max`.
    TooLong,
    /// The payload is not in the format of the flow.
    Format,
    /// The payload holds more rows than one.
    Rows,
    /// A pack of SenML is of a later version, or has a label that must be understood and is not known.
    Extension,
    /// A field is missing.
    Missing,
    /// A field is no number.
    NotANumber,
    /// A field is a number too large for a float.
    OutOfRange,
    /// A field is no whole number, or one beyond 2^53 either way.
    NotAnInteger,
    /// A field is no time.
    NotATime,
    /// A field is no UTF-8 text.
    NotText,
    /// The key is longer than `key_bytes_max`, a number of 2^53 or more, or the topic has too few levels for it.
    Key,
    /// A time that windows go by lies further ahead than `ahead_max`.
    Future,
    /// The payload that was to take the place of its own finds no room in what one batch may make.
    NoRoom,
}

impl Reason {
    /// All of them, in the order of [`crate::Stats::bad`].
    pub const ALL: [Self; 13] = [
        Self::TooLong,
        Self::Format,
        Self::Rows,
        Self::Extension,
        Self::Missing,
        Self::NotANumber,
        Self::OutOfRange,
        Self::NotAnInteger,
        Self::NotATime,
        Self::NotText,
        Self::Key,
        Self::Future,
        Self::NoRoom,
    ];

    /// Its stable name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::TooLong => "too-long",
            Self::Format => "format",
            Self::Rows => "rows",
            Self::Extension => "extension",
            Self::Missing => "missing",
            Self::NotANumber => "not-a-number",
            Self::OutOfRange => "out-of-range",
            Self::NotAnInteger => "not-an-integer",
            Self::NotATime => "not-a-time",
            Self::NotText => "not-text",
            Self::Key => "key",
            Self::Future => "future",
            Self::NoRoom => "no-room",
        }
    }

    /// Whether a last good number can stand in.
    pub(crate) const fn can_be_mended(self) -> bool {
        matches!(
            self,
            Self::Missing
                | Self::NotANumber
                | Self::OutOfRange
                | Self::NotAnInteger
                | Self::NotATime
                | Self::Future
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the payload is longer than message_bytes_max",
            Self::Format => "the payload is not in the flow's format",
            Self::Rows => "the payload holds more than one row",
            Self::Extension => "the pack is of a SenML version above 10, or a label of it that is not known ends with _; send it as of RFC 8428",
            Self::Missing => "the field is missing",
            Self::NotANumber => "the field is not a decimal number",
            Self::OutOfRange => "the field is too large for a 64-bit float",
            Self::NotAnInteger => "the field is not a whole number of at most 2^53; larger ones can be read as text",
            Self::NotATime => "the field is not a time",
            Self::NotText => "the field is not UTF-8 text",
            Self::Key => "the key is longer than key_bytes_max, a number of 2^53 or more, or the topic has too few levels for it",
            Self::NoRoom => "the new payload, with the other output of the batch, exceeds 16 MiB",
            Self::Future => "the time lies further ahead of this node's clock than ahead_max",
        })
    }
}

impl From<NumberError> for Reason {
    fn from(error: NumberError) -> Self {
        match error {
            NumberError::Form => Self::NotANumber,
            NumberError::Range => Self::OutOfRange,
        }
    }
}

//! Why a line cannot be read.

use super::{FIELDS_MAX, LINE_BYTES_MAX, TAGS_MAX};

/// Why a line cannot be read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct LineError {
    /// Which line, from 1; blank lines and comments count.
    pub line: u64,
    /// Which character of it, from 1.
    pub column: u64,
    /// The problem there, and the valid forms.
    pub problem: LineProblem,
}

/// Problems in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    /// Too many bytes.
    #[error("the line has more than {LINE_BYTES_MAX} bytes; send its fields in several lines")]
    TooLong,
    /// Bytes that are no text.
    #[error("the line is not UTF-8")]
    NotUtf8,
    /// Nothing stands before the tags or fields.
    #[error("the measurement is missing; write measurement,tag=value field=value")]
    NoMeasurement,
    /// The line ends before its fields.
    #[error("the fields are missing; write a blank and field=value after measurement and tags")]
    NoFields,
    /// A tag begins with `=`.
    #[error("the tag has no name; write name=value")]
    NoTagName,
    /// A tag has no `=`, or nothing after it.
    #[error("the tag has no value; write name=value, or leave it out")]
    NoTagValue,
    /// A tag's value has a `=`.
    #[error("the tag's value has a =; write \\= for it")]
    TagEquals,
    /// A tag has the name of one before.
    #[error("a tag of this name stands before it; leave one out")]
    TagRepeated,
    /// Too many tags.
    #[error("the line has more than {TAGS_MAX} tags")]
    TooManyTags,
    /// A field begins with `=`.
    #[error("the field has no name; write name=value")]
    NoFieldName,
    /// A field has no `=`, or nothing after it.
    #[error(
        "the field has no value; write name=21.5, name=21i, name=21u, name=\"text\" or name=true"
    )]
    NoFieldValue,
    /// A field has the name of one before.
    #[error("a field of this name stands before it; leave one out")]
    FieldRepeated,
    /// Too many fields.
    #[error("the line has more than {FIELDS_MAX} fields; send them in several lines")]
    TooManyFields,
    /// A text that is not closed.
    #[error("the text that begins here has no end; write \" after it, and \\\" for quotes in it")]
    TextOpen,
    /// Something stands right behind a text.
    #[error(
        "only a comma, a blank or the end of the line may follow a text; write \\\" for quotes in it"
    )]
    AfterText,
    /// A value that is of no type.
    #[error("the value is neither a number (21.5, 21i, 21u) nor true, false or a \"text\"")]
    Value,
    /// An integer that is too large.
    #[error("the integer is outside of -9223372036854775808i to 9223372036854775807i")]
    IntegerRange,
    /// An unsigned integer that is too large.
    #[error("the unsigned integer is above 18446744073709551615u")]
    UnsignedRange,
    /// A float that is infinite.
    #[error("the number is beyond what 64 bits of floating point hold; write it as a \"text\"")]
    FloatRange,
    /// A timestamp that is no integer.
    #[error("the timestamp is not an integer; write the time since 1970 in the batch's precision")]
    Timestamp,
    /// A timestamp that is too far away.
    #[error("the timestamp is not between 1677 and 2262 in the batch's precision")]
    TimestampRange,
    /// Something follows the timestamp.
    #[error(
        "the timestamp is followed by something; write \\ before blanks in names and quotes around texts"
    )]
    AfterTimestamp,
}

//! Problems of a description.

use std::fmt;

use tidegate_message::TopicError;

use crate::{spec::Format, template::TemplateError};

/// Why a flow was not compiled: which flow, where in it, and what.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("flow {flow:?}{place}: {problem}")]
pub struct CompileError {
    /// Its name.
    pub flow: String,
    /// Where in it.
    pub place: Place,
    /// The problem.
    pub problem: Problem,
}

/// A place in a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The flow itself.
    Flow,
    /// Its `parse`.
    Parse,
    /// One of its steps.
    Step {
        /// Counted from 1.
        number: usize,
        /// Its kernel.
        kernel: &'static str,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flow => Ok(()),
            Self::Parse => f.write_str(", parse"),
            Self::Step { number, kernel } => write!(f, ", step {number} ({kernel})"),
        }
    }
}

/// Problems of a description.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// It has no topic filter.
    #[error("topics is empty; name at least one filter, such as \"city/+/telemetry\"")]
    NoTopics,
    /// A topic filter is none.
    #[error("topics has {filter:?}: {source}")]
    Filter {
        /// The text.
        filter: String,
        /// The error in it.
        source: TopicError,
    },
    /// It reads no field.
    #[error("fields is empty; name at least one")]
    NoFields,
    /// The delimiter of columns is not allowed.
    #[error("delimiter {found:?} is not an ASCII character that can stand between columns")]
    Delimiter {
        /// The delimiter as written.
        found: char,
    },
    /// A key is for another format.
    #[error("{key} are only for the format {format:?}; leave them out")]
    OnlyFor {
        /// Which.
        key: &'static str,
        /// The format.
        format: Format,
    },
    /// Two fields stand in one column.
    #[error(
        "field {field:?} stands in column {column} (from 0), as does another; give each its own"
    )]
    DoubleColumn {
        /// The second one.
        field: String,
        /// The column.
        column: u32,
    },
    /// A key of a field is for something else.
    #[error("field {field:?} has {key}, which needs {needs}; leave it out")]
    FieldKey {
        /// The field.
        field: String,
        /// The key.
        key: &'static str,
        /// Its purpose.
        needs: &'static str,
    },
    /// A field lacks a key.
    #[error("field {field:?} needs {key}")]
    FieldNeeds {
        /// The field.
        field: String,
        /// The key.
        key: &'static str,
    },
    /// A field is called nothing, or too much.
    #[error("a field is called {field:?}; its name has 1 to 128 bytes")]
    FieldName {
        /// The name.
        field: String,
    },
    /// A number is out of its bounds.
    #[error("{key} is {found}, and lies between {min} and {max}")]
    Bound {
        /// The key.
        key: &'static str,
        /// The value found.
        found: f64,
        /// The least it may be.
        min: f64,
        /// The most it may be.
        max: f64,
    },
    /// A number is none, infinite, or a scale of 0.
    #[error("{key} must be a finite number, and a scale not 0")]
    NotFinite {
        /// The key.
        key: &'static str,
    },
    /// A length of time is no whole number of seconds.
    #[error("{key} is counted in whole seconds; write such as \"90s\" or \"1h\"")]
    WholeSeconds {
        /// The key.
        key: &'static str,
    },
    /// A field is not known where it is asked for.
    #[error("no field {field:?} is known here; there are {known}")]
    UnknownField {
        /// The field as written.
        field: String,
        /// Those that there are.
        known: String,
    },
    /// A field is of another kind.
    #[error("field {field:?} must be {wanted} here")]
    WrongKind {
        /// The field.
        field: String,
        /// The required kind.
        wanted: &'static str,
    },
    /// A field of that name is there already.
    #[error("a field {field:?} is there already; give this one another name, with into")]
    Taken {
        /// The name.
        field: String,
    },
    /// A model, table or set is not there.
    #[error("no {kind} {name:?} was loaded; known are {known}")]
    Unknown {
        /// The kind of thing.
        kind: &'static str,
        /// The name as written.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A table lacks a column.
    #[error("table {table:?} has no column {column:?}")]
    NoColumn {
        /// The table.
        table: String,
        /// The column as written.
        column: String,
    },
    /// A table has something else where a number should be.
    #[error(
        "table {table:?}, column {column:?}, row {row}: no decimal number; make it one, or list the column under texts"
    )]
    TableNumber {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The row, from 1, that of the names included.
        row: usize,
    },
    /// A table has more text than a flow names.
    #[error("the texts of tables come to more than 4 GiB")]
    TextTooLarge,
    /// One of several keys is needed.
    #[error("it needs {keys}")]
    Needs {
        /// Which.
        keys: &'static str,
    },
    /// Two keys say contrary things.
    #[error("{keys} do not go together; leave one out")]
    Contrary {
        /// Which.
        keys: &'static str,
    },
    /// A window is of no form.
    #[error(
        "{found:?} is not an extent of a window; write a number of values, or a length of time such as \"1min\""
    )]
    Extent {
        /// The value as written.
        found: String,
    },
    /// A template is none.
    #[error("{key}: {source}")]
    Template {
        /// The key.
        key: &'static str,
        /// The error in it.
        source: TemplateError,
    },
    /// A payload is replaced that goes nowhere.
    #[error(
        "forward is \"none\", so that no payload that is replaced goes anywhere; use notify, or forward \"kept\""
    )]
    NothingForwarded,
    /// The state that the flow keeps apart from its keys does not fit the bound.
    #[error(
        "Bloom filters take {bytes} bytes of state, and {limit} is the most; lower expected, or raise state_bytes_max"
    )]
    SharedTooLarge {
        /// Its bytes.
        bytes: u64,
        /// The bound.
        limit: u64,
    },
    /// The state does not fit its bound.
    #[error(
        "{keys} keys of {key_bytes} bytes take {bytes} bytes of state, and {limit} is the most; lower keys_max, key_bytes_max or windows, or raise state_bytes_max"
    )]
    StateTooLarge {
        /// Its bytes.
        bytes: u64,
        /// The bound.
        limit: u64,
        /// Keys.
        keys: u32,
        /// Bytes of each, its own included.
        key_bytes: u64,
    },
}

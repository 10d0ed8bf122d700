//! InfluxDB's line protocol (version 2), read without copies and written.
//!
//! ```text
//!  weather,site=north,sensor=7 temperature=21.50,open=true 1700000000000000000
//!  measurement, tags           fields                      timestamp
//! ```
//!
//! A [`Batch`] yields its lines one after another, each as a [`Line`] that points into the batch or as a [`LineError`] that says where
//! and what would be right. A bad line costs no other one: reading continues with the line after it.
//!
//! Always true: numbers are checked and kept as they are written, 1.10 as 1.10; reading allocates nothing for a line once the first
//! ones have been read; no bytes reach a panic; output of [`LineWriter`] reads as it was given.
//!
//! Text between quotes may extend over the end of a line, as the protocol has it. A quote that is never closed makes only its own
//! line bad.

mod error;
mod line;
mod scan;
mod value;
mod writer;

pub use error::{LineError, LineProblem};
pub use line::{Batch, FIELDS_MAX, LINE_BYTES_MAX, Line, Precision, TAGS_MAX, UnknownPrecision};
pub use value::{Text, Value};
pub use writer::{FieldValue, LineWriter, WriteError};

#[cfg(test)]
mod tests;

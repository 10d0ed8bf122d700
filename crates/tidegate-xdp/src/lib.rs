//! Filters of datagrams in the kernel: unwanted ones are dropped before they become messages.
//!
//! ```text
//!  FilterSpec ──compile──▶ Filter ──instructions──▶ the kernel, at XDP: judges packets as they come in
//!                             └────────decide──▶ Verdict: the same, in Rust
//! ```
//!
//! A filter knows the datagrams of one port, which have one length and hold numbers at fixed places, and the conditions under which
//! they are kept. It has no state and no floats: a number with two decimals is counted in hundredths, as a whole number of 64 bits,
//! and bounds are brought to that count exactly.
//!
//! Always true: the program and [`Filter::decide`] agree for every packet; only a datagram that is in every part as it should be,
//! and does not meet the conditions, is dropped. Anything unusual passes, and the receiver judges it.

mod assembler;
mod condition;
mod field;
mod filter;
mod packet;
mod program;
#[cfg(test)]
mod tests;

pub use condition::{
    Bound, Combine, Condition, ConditionError, Decimal, DecimalError, parse_conditions,
};
pub use field::{Encoding, Field, FieldError, parse_fields};
pub use filter::{
    CONDITIONS_MAX, Destination, FIELDS_MAX, Filter, FilterError, FilterSpec, PAYLOAD_BYTES_MAX,
    Reach, Verdict,
};
pub use program::COUNTERS;

//! Shared by every bench: a number of interleaved runs, one row per figure, and a folder that lets anyone check it.
//!
//! ```text
//!  interleave(runs, contenders) ──▶ values per run ──▶ Figure ──▶ row: figure | ours | peer | ratio | target | met
//!                                                        │
//!  percentile(samples, q) ─────────▶ raw samples ────────┴──▶ Report ──▶ bench/results/DATE-NAME/{report,samples}.json
//! ```
//!
//! A bench measures, says what it must reach, and hands both to a [`Report`]. The report decides, prints and writes; no bench
//! formats a verdict of its own.
//!
//! Always true:
//! - the value of a row is the median of its runs, and its ratio is the median of the ratios run by run, because two
//!   contenders of one run shared the machine's mood;
//! - a figure that has a target and could not be measured is short, never absent;
//! - a value that is not a number is short;
//! - a tie within the row's tolerance is met.

pub mod children;
pub mod figure;
pub mod machine;
pub mod report;
pub mod statistics;

pub use children::{Owned, end_on_signals};
pub use figure::{Figure, Target, Tolerance, Verdict};
pub use machine::Machine;
pub use report::Report;
pub use statistics::{interleave, median, percentile};

/// Runs that a figure is the median of, unless the bench is asked for another number.
pub const RUNS: usize = 5;

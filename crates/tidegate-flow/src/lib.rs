//! Operators on sensor messages, before they are queued.
//!
//! ```text
//!  Spec ──compile──▶ Flow ◀── Models (models, tables, sets)
//!                     │
//!  messages ─▶ parse ─▶ columns ─▶ operator ─▶ operator ─▶ … ─▶ verdicts, and messages that are published
//!              256 at a time        └──────── state by key, bounded ───────┘
//! ```
//!
//! A flow takes messages in batches and works in columns: each operator is one loop over the rows that are still looked at, so that
//! which operator it is, is asked once for 256 messages, and the misses of all their keys are under way while others are read. A message
//! of 64 bytes costs about 7 ns to read, 2 ns for each operator with state, less for others, and 6 ns for its key; among a million
//! keys 4 ns more (`bench/sensors`, group `oil`).
//!
//! Always true: nothing here reads a clock or does I/O, and after warm-up nothing is allocated for a message; state has a bound that
//! is known when the flow is compiled; no payload, model or snapshot reaches a panic.

mod bad;
mod batch;
mod compile;
mod csv;
mod dead_letter;
mod flow;
mod hash;
mod kernel;
mod keys;
mod message;
mod model;
mod number;
mod parse;
mod snapshot;
mod spec;
mod stats;
mod template;
mod time;
pub mod train;
mod units;

pub use bad::{Bad, Reason};
pub use compile::{CompileError, Place, Problem};
pub use flow::{Flow, State};
pub use message::{Emission, EmittedPayload, Message, Output, Verdict};
pub use model::{
    FEATURES_MAX, LinearModel, MODEL_BYTES_MAX, MODEL_VERSION, Model, ModelError, Models, Node,
    Table, TableError, TreeModel,
};
pub use snapshot::{Restored, Snapshot, SnapshotError};
pub use spec::{
    AggregateSpec, AnnotateSpec, BadPolicy, BloomFilterSpec, DecisionTreeSpec, DistinctCountSpec,
    Encoding, ErrorEstimateSpec, Extent, FieldKind, FieldSpec, Fires, Format, Forward,
    InterpolateSpec, InterpolationMethod, KalmanSpec, KeepSpec, KeepValues, KeySpec,
    LinearRegressionSpec, NotifySpec, ParseSpec, PayloadFormat, RangeFilterSpec, ReplaceSpec,
    SecondOrderMomentSpec, SlidingRegressionSpec, Spec, Specs, StepSpec, StringMatchSpec,
    ThresholdSpec, TimeUnit, WindowSpec,
};
pub use stats::Stats;
pub use template::TemplateError;

#[cfg(test)]
mod tests;

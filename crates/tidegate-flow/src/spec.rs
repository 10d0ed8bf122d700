//! The description of a flow, as plain data: the content of a section `[flow.NAME]` of a configuration.
//!
//! Nothing here is checked but its form; [`crate::Flow::compile`] checks the rest, and says what is wrong with its way out.

mod field;
mod step;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

pub use field::{Encoding, FieldKind, FieldSpec, Format, ParseSpec, TimeUnit};
pub use step::{
    AggregateSpec, AnnotateSpec, BloomFilterSpec, DecisionTreeSpec, DistinctCountSpec,
    ErrorEstimateSpec, Extent, Fires, InterpolateSpec, InterpolationMethod, KalmanSpec, KeepSpec,
    KeepValues, LinearRegressionSpec, NotifySpec, PayloadFormat, RangeFilterSpec, ReplaceSpec,
    SecondOrderMomentSpec, SlidingRegressionSpec, StepSpec, StringMatchSpec, ThresholdSpec,
    WindowSpec,
};

use crate::units;

/// A file of flows: sections `[flow.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Specs {
    /// Each flow by its name.
    #[serde(default)]
    pub flow: BTreeMap<String, Spec>,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name: that of its section.
    #[serde(skip)]
    pub name: String,
    /// Topic filters; a message is this flow's if one of them matches its topic. Messages that the flow published, and messages
    /// derived from them, are for other flows alone.
    pub topics: Vec<String>,
    /// How a payload becomes fields.
    pub parse: ParseSpec,
    /// The key that state is kept by: the topic unless another is given.
    #[serde(default)]
    pub key: KeySpec,
    /// The policy for a message whose fields cannot be read: `skip` unless another is given.
    #[serde(default)]
    pub bad: BadPolicy,
    /// Template of the topic of dead letters: `dead/{flow}/{topic}` unless it is said otherwise.
    #[serde(default = "dead_letter_topic")]
    pub dead_letter_topic: String,
    /// Which messages reach subscribers: `all` unless another is given.
    #[serde(default)]
    pub forward: Forward,
    /// Most keys whose state is kept at a time, 1,024 to 2^28; 65,536 unless it is said otherwise. The key that was not seen
    /// for longest, roughly, makes room for a new one.
    #[serde(default = "keys_max")]
    pub keys_max: u32,
    /// How long a key's state is kept after its last message; forever if nothing is said. Whole seconds.
    #[serde(default, deserialize_with = "units::duration_from")]
    pub expire_after: Option<Duration>,
    /// Longest key that is text, 1 to 4,096 bytes; a message with a longer one is bad. 128 unless it is said otherwise.
    #[serde(default = "key_bytes_max")]
    pub key_bytes_max: u32,
    /// How far a time that windows go by may lie ahead of the node's clock; a message beyond is bad. One minute unless it is said
    /// otherwise.
    #[serde(default = "ahead_max", deserialize_with = "units::time_from")]
    pub ahead_max: Duration,
    /// Longest payload that is read, in bytes; a longer one is bad. 64 KiB unless it is said otherwise.
    #[serde(default = "message_bytes_max", deserialize_with = "units::bytes_from")]
    pub message_bytes_max: u64,
    /// Most memory that state may take, in bytes: `keys_max` keys must fit. 1 GiB unless it is said otherwise.
    #[serde(default = "state_bytes_max", deserialize_with = "units::bytes_from")]
    pub state_bytes_max: u64,
    /// The operators, in order.
    #[serde(default, rename = "step")]
    pub steps: Vec<StepSpec>,
    /// A seed for the hashes of keys. A random number that all shards of a node share keeps a sender from choosing keys that
    /// collide.
    #[serde(skip)]
    pub hash_seed: u64,
    /// A seed for the hashes in sketches and Bloom filters: a random number keeps a sender from choosing values that they mistake for
    /// one another. It is part of their state, so that it must be the same after a restart. 0 is the documented hash.
    #[serde(skip)]
    pub sketch_seed: u64,
}

/// The key that a flow keeps state by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeySpec {
    /// Each topic.
    #[default]
    Topic,
    /// These levels of the topic, counted from 0, so that devices gather under a parent.
    Levels(Vec<u32>),
    /// The value of a field.
    Field(String),
    /// One state for all messages.
    None,
}

/// The policy for a message whose payload or required fields cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadPolicy {
    /// No operator sees it; it is counted by its reason.
    #[default]
    Skip,
    /// As `Skip`, and its payload is published on the dead-letter topic with the reason.
    DeadLetter,
    /// Numbers that are missing or no numbers become the last good ones of the key; without one, as `Skip`.
    LastGood,
}

/// Which messages reach subscribers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forward {
    /// All: the flow looks on and publishes what it finds.
    #[default]
    All,
    /// Those that every filter of the flow keeps. Bad ones are dropped.
    Kept,
    /// None: only what the flow publishes.
    None,
}

impl Specs {
    /// The flows, each with its name.
    pub fn into_flows(self) -> impl Iterator<Item = Spec> {
        self.flow.into_iter().map(|(name, spec)| Spec { name, ..spec })
    }
}

fn dead_letter_topic() -> String {
    "dead/{flow}/{topic}".to_owned()
}

fn keys_max() -> u32 {
    65_536
}

fn key_bytes_max() -> u32 {
    128
}

fn ahead_max() -> Duration {
    Duration::from_secs(60)
}

fn message_bytes_max() -> u64 {
    64 << 10
}

fn state_bytes_max() -> u64 {
    1 << 30
}

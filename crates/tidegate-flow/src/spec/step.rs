//! The operators of a flow, each with its keys.

use serde::{Deserialize, Serialize};

/// One operator. Its formula and what it does with missing values stand in the chapter on flows.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kernel", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each variant's type says what it is")]
pub enum StepSpec {
    RangeFilter(RangeFilterSpec),
    BloomFilter(BloomFilterSpec),
    StringMatch(StringMatchSpec),
    Keep(KeepSpec),
    Annotate(AnnotateSpec),
    Interpolate(InterpolateSpec),
    Kalman(KalmanSpec),
    Average(AggregateSpec),
    Min(AggregateSpec),
    Max(AggregateSpec),
    Count(AggregateSpec),
    DistinctCount(DistinctCountSpec),
    SecondOrderMoment(SecondOrderMomentSpec),
    SlidingRegression(SlidingRegressionSpec),
    LinearRegression(LinearRegressionSpec),
    DecisionTree(DecisionTreeSpec),
    ErrorEstimate(ErrorEstimateSpec),
    Threshold(ThresholdSpec),
    Notify(NotifySpec),
    Replace(ReplaceSpec),
}

impl StepSpec {
    /// The name of its kernel.
    pub const fn kernel(&self) -> &'static str {
        match self {
            Self::RangeFilter(_) => "range-filter",
            Self::BloomFilter(_) => "bloom-filter",
            Self::StringMatch(_) => "string-match",
            Self::Keep(_) => "keep",
            Self::Annotate(_) => "annotate",
            Self::Interpolate(_) => "interpolate",
            Self::Kalman(_) => "kalman",
            Self::Average(_) => "average",
            Self::Min(_) => "min",
            Self::Max(_) => "max",
            Self::Count(_) => "count",
            Self::DistinctCount(_) => "distinct-count",
            Self::SecondOrderMoment(_) => "second-order-moment",
            Self::SlidingRegression(_) => "sliding-regression",
            Self::LinearRegression(_) => "linear-regression",
            Self::DecisionTree(_) => "decision-tree",
            Self::ErrorEstimate(_) => "error-estimate",
            Self::Threshold(_) => "threshold",
            Self::Notify(_) => "notify",
            Self::Replace(_) => "replace",
        }
    }
}

/// Keeps messages whose value lies within bounds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RangeFilterSpec {
    /// The number that is looked at.
    pub field: String,
    /// The least that is kept, itself included; no bound if nothing is said.
    pub min: Option<f64>,
    /// The most that is kept, itself included; no bound if nothing is said.
    pub max: Option<f64>,
    /// Whether messages without a value are kept.
    #[serde(default)]
    pub keep_missing: bool,
}

/// Keeps messages whose value is in a set, or is new to it, as a Bloom filter tells.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BloomFilterSpec {
    /// The field that is looked at, a number or text; the topic if nothing is said.
    pub field: Option<String>,
    /// The set of that name is in it from the beginning.
    pub members: Option<String>,
    /// Values that it is made for; those of `members` if nothing is said.
    pub expected: Option<u64>,
    /// The share of strangers that are taken for members, once it holds `expected`; 0.01 unless it is said otherwise.
    #[serde(default = "false_positive")]
    pub false_positive: f64,
    /// Whether values that are seen are put in, until it holds `expected`.
    #[serde(default)]
    pub learn: bool,
    /// Which values are kept.
    #[serde(default)]
    pub keep: KeepValues,
}

/// Which values a Bloom filter keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeepValues {
    /// Those that are in it.
    #[default]
    Known,
    /// Those that are not.
    New,
}

/// Keeps messages whose text is one of these or has one of these parts; any of them is enough.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StringMatchSpec {
    /// The text that is looked at; the topic if nothing is said.
    pub field: Option<String>,
    /// It is one of these.
    #[serde(default)]
    pub equals: Vec<String>,
    /// It begins with one of these.
    #[serde(default)]
    pub starts_with: Vec<String>,
    /// It ends with one of these.
    #[serde(default)]
    pub ends_with: Vec<String>,
    /// It has one of these in it.
    #[serde(default)]
    pub contains: Vec<String>,
    /// Keeps the others instead.
    #[serde(default)]
    pub invert: bool,
}

/// Keeps messages by what operators before found.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeepSpec {
    /// These fields have values.
    #[serde(default)]
    pub present: Vec<String>,
    /// This number is there and not 0, such as that of a threshold.
    pub when: Option<String>,
}

/// Adds fields from a table of metadata.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AnnotateSpec {
    /// The name of the table.
    pub table: String,
    /// The text that is looked up in the table's first column; the topic if nothing is said.
    pub field: Option<String>,
    /// The level of the topic that is looked up instead, counted from 0.
    pub level: Option<u32>,
    /// Columns of the table that become numbers, under the same names.
    #[serde(default)]
    pub numbers: Vec<String>,
    /// Columns of the table that become text.
    #[serde(default)]
    pub texts: Vec<String>,
    /// Whether messages that the table knows nothing of are kept, their new fields missing.
    #[serde(default = "yes")]
    pub keep_missing: bool,
}

/// Fills in a missing number from the last ones of its key.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct InterpolateSpec {
    /// The number, filled in where it stands.
    pub field: String,
    /// How.
    #[serde(default)]
    pub method: InterpolationMethod,
    /// For `mean`: how many values at most, 1 to 4,096; 10 unless it is said otherwise.
    #[serde(default = "ten")]
    pub window: u32,
}

/// How a missing number is filled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterpolationMethod {
    /// The mean of the last values.
    #[default]
    Mean,
    /// The straight line through the last two values, by the number of the message.
    Linear,
}

/// A scalar Kalman filter.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KalmanSpec {
    /// The measurement.
    pub field: String,
    /// The estimate; `FIELD_kalman` if nothing is said.
    pub into: Option<String>,
    /// Variance of the process between two measurements; 0.125 unless it is said otherwise.
    #[serde(default = "kalman_q")]
    pub q: f64,
    /// Variance of a measurement; 0.32 unless it is said otherwise.
    #[serde(default = "kalman_r")]
    pub r: f64,
    /// Variance of the first estimate; 30 unless it is said otherwise.
    #[serde(default = "kalman_p0")]
    pub p0: f64,
    /// The first estimate; the first measurement if nothing is said.
    pub x0: Option<f64>,
}

/// Average, minimum, maximum or count, since the beginning or over a window.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AggregateSpec {
    /// The number; `count` may do without, and counts messages then.
    pub field: Option<String>,
    /// The result; `FIELD_average` and so on if nothing is said.
    pub into: Option<String>,
    /// Over what; all since the key was first seen if nothing is said.
    pub window: Option<WindowSpec>,
    /// For `average` without a window: the weight of the newest value in an exponentially weighted average, above 0 and at most 1.
    pub alpha: Option<f64>,
}

/// The messages of a key that are taken together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// One window after another: a number of values, or a length of time such as `"1min"`.
    pub tumbling: Option<Extent>,
    /// The last so many values, or the last so long.
    pub sliding: Option<Extent>,
    /// For a sliding length of time: how many steps it moves in, 1 to 64; 6 unless it is said otherwise.
    pub panes: Option<u32>,
    /// The field of type `time` that messages are placed by; when they arrive, if nothing is said.
    pub time: Option<String>,
    /// For a tumbling window: whether the result stands until the next one; it is missing between them otherwise.
    #[serde(default)]
    pub hold: bool,
}

/// How much a window takes in.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Extent {
    /// That many values.
    Count(u32),
    /// That length of time, with its unit.
    Time(String),
}

/// Roughly how many values differ (HyperLogLog).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DistinctCountSpec {
    /// The number or text; the topic if nothing is said.
    pub field: Option<String>,
    /// The estimate; `FIELD_distinct`, or `topic_distinct`, if nothing is said.
    pub into: Option<String>,
    /// 4 to 16: 2^precision bytes for each key, and a standard error of 1.04 / sqrt(2^precision); 10 unless it is said otherwise.
    #[serde(default = "precision")]
    pub precision: u32,
}

/// The second frequency moment of values: the sum of the squares of how often each was seen (Alon, Matias, Szegedy).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SecondOrderMomentSpec {
    /// The number or text; the topic if nothing is said.
    pub field: Option<String>,
    /// The estimate; `FIELD_moment`, or `topic_moment`, if nothing is said.
    pub into: Option<String>,
    /// Counters whose squares are averaged, 1 to 64: the standard error of a group is sqrt(2 / averages); 32 unless it is said
    /// otherwise.
    #[serde(default = "averages")]
    pub averages: u32,
    /// Groups whose median is taken, odd, 1 to 15; 5 unless it is said otherwise.
    #[serde(default = "groups")]
    pub groups: u32,
}

/// The straight line through the last values of a key.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SlidingRegressionSpec {
    /// The number.
    pub field: String,
    /// The field of type `time` that it is plotted against; the number of the message if nothing is said.
    pub time: Option<String>,
    /// Values, 2 to 1,024; 10 unless it is said otherwise.
    #[serde(default = "ten")]
    pub window: u32,
    /// How far ahead the prediction lies, in messages or seconds; 1 unless it is said otherwise.
    #[serde(default = "one")]
    pub ahead: f64,
    /// The slope; `FIELD_trend` if nothing is said.
    pub trend: Option<String>,
    /// The prediction; `FIELD_prediction` if nothing is said.
    pub prediction: Option<String>,
}

/// Predicts a number by a linear model.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinearRegressionSpec {
    /// The name of the model. Its features are fields of the same names.
    pub model: String,
    /// The prediction; `TARGET_prediction` if nothing is said.
    pub into: Option<String>,
}

/// Predicts a class by a tree.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionTreeSpec {
    /// The name of the model. Its features are fields of the same names.
    pub model: String,
    /// The class, as text; `TARGET_class` if nothing is said.
    pub into: Option<String>,
}

/// How far a prediction is from what was observed, relative to an average.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorEstimateSpec {
    /// The number that was observed.
    pub observed: String,
    /// The prediction.
    pub predicted: String,
    /// The average.
    pub average: String,
    /// The error; `OBSERVED_error` if nothing is said.
    pub into: Option<String>,
}

/// Says when a number is too high or too low.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ThresholdSpec {
    /// The number.
    pub field: String,
    /// 1 where it fires, 0 elsewhere; `FIELD_over` if nothing is said.
    pub into: Option<String>,
    /// It is on above this.
    pub above: Option<f64>,
    /// It is on below this.
    pub below: Option<f64>,
    /// A number that `above` or `below` is added to, such as an average.
    pub reference: Option<String>,
    /// How far the number must come back before it is off again; 0 unless it is said otherwise.
    #[serde(default)]
    pub hysteresis: f64,
    /// When it fires.
    #[serde(default)]
    pub fires: Fires,
}

/// When a threshold fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fires {
    /// With every message while it is on.
    #[default]
    Every,
    /// When it turns on.
    Rise,
    /// When it turns off.
    Fall,
    /// When it turns either way.
    Change,
}

/// Publishes a message.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NotifySpec {
    /// Template of the topic.
    pub topic: String,
    /// Template of the payload. Either this or `fields`.
    pub payload: Option<String>,
    /// Fields that the payload has, in the format of `format`.
    #[serde(default)]
    pub fields: Vec<String>,
    /// For `fields`.
    #[serde(default)]
    pub format: PayloadFormat,
    /// Only where this number is there and not 0, such as that of a threshold; for each message if nothing is said.
    pub when: Option<String>,
}

/// Replaces the payload of a message that is forwarded.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceSpec {
    /// Template of the payload. Either this or `fields`.
    pub payload: Option<String>,
    /// Fields that the payload has, in the format of `format`.
    #[serde(default)]
    pub fields: Vec<String>,
    /// For `fields`.
    #[serde(default)]
    pub format: PayloadFormat,
}

/// How fields become a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PayloadFormat {
    /// A JSON object; a missing value is null.
    #[default]
    Json,
    /// A row of values; a missing one is empty.
    Csv,
    /// A pack of SenML records in JSON (RFC 8428); a missing value has no record.
    SenmlJson,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

fn ten() -> u32 {
    10
}

fn false_positive() -> f64 {
    0.01
}

fn kalman_q() -> f64 {
    0.125
}

fn kalman_r() -> f64 {
    0.32
}

fn kalman_p0() -> f64 {
    30.0
}

fn precision() -> u32 {
    10
}

fn averages() -> u32 {
    32
}

fn groups() -> u32 {
    5
}

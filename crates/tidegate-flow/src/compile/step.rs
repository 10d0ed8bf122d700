//! From the description of a step to its operator.

use std::sync::Arc;

use tidegate_message::quantity;

use super::{Compiler, Problem, finite, within};
use crate::{
    batch::{Column, Place, Text},
    hash,
    kernel::{
        Aggregate, Annotate, AnnotateInput, BITS_MAX, Bloom, Distinct, ErrorEstimate, GROUPS_MAX,
        Interpolate, Kalman, Keep, Kernel, Linear, Moment, Notify, Operation, Part, Range, Replace,
        StringMatch, Threshold, Tree, Trend, Window,
    },
    model::Model,
    number,
    spec::{
        AggregateSpec, AnnotateSpec, BloomFilterSpec, DecisionTreeSpec, DistinctCountSpec,
        ErrorEstimateSpec, Extent, InterpolateSpec, KalmanSpec, KeepSpec, LinearRegressionSpec,
        NotifySpec, PayloadFormat, RangeFilterSpec, ReplaceSpec, SecondOrderMomentSpec,
        SlidingRegressionSpec, StepSpec, StringMatchSpec, ThresholdSpec, WindowSpec,
    },
    template::Content,
};

/// Most values of a window that is kept whole.
const WINDOW_MAX: f64 = 4096.0;
const REGRESSION_WINDOW_MAX: f64 = 1024.0;
const PANES_MAX: f64 = 64.0;

impl Compiler<'_> {
    pub(super) fn step(&mut self, spec: &StepSpec) -> Result<Kernel, Problem> {
        Ok(match spec {
            StepSpec::RangeFilter(spec) => Kernel::Range(self.range(spec)?),
            StepSpec::BloomFilter(spec) => Kernel::Bloom(self.bloom(spec)?),
            StepSpec::StringMatch(spec) => Kernel::StringMatch(self.string_match(spec)?),
            StepSpec::Keep(spec) => Kernel::Keep(self.keep(spec)?),
            StepSpec::Annotate(spec) => Kernel::Annotate(self.annotate(spec)?),
            StepSpec::Interpolate(spec) => Kernel::Interpolate(self.interpolate(spec)?),
            StepSpec::Kalman(spec) => Kernel::Kalman(self.kalman(spec)?),
            StepSpec::Average(spec) => {
                Kernel::Aggregate(self.aggregate(spec, Operation::Average, "average")?)
            }
            StepSpec::Min(spec) => {
                Kernel::Aggregate(self.aggregate(spec, Operation::Min, "min")?)
            }
            StepSpec::Max(spec) => {
                Kernel::Aggregate(self.aggregate(spec, Operation::Max, "max")?)
            }
            StepSpec::Count(spec) => {
                Kernel::Aggregate(self.aggregate(spec, Operation::Count, "count")?)
            }
            StepSpec::DistinctCount(spec) => Kernel::Distinct(self.distinct(spec)?),
            StepSpec::SecondOrderMoment(spec) => Kernel::Moment(self.moment(spec)?),
            StepSpec::SlidingRegression(spec) => Kernel::Trend(self.trend(spec)?),
            StepSpec::LinearRegression(spec) => Kernel::Linear(self.linear(spec)?),
            StepSpec::DecisionTree(spec) => Kernel::Tree(self.tree(spec)?),
            StepSpec::ErrorEstimate(spec) => Kernel::ErrorEstimate(self.error_estimate(spec)?),
            StepSpec::Threshold(spec) => Kernel::Threshold(self.threshold(spec)?),
            StepSpec::Notify(spec) => Kernel::Notify(self.notify(spec)?),
            StepSpec::Replace(spec) => Kernel::Replace(self.replace(spec)?),
        })
    }

    fn range(&self, spec: &RangeFilterSpec) -> Result<Range, Problem> {
        if spec.min.is_none() && spec.max.is_none() {
            return Err(Problem::Needs { keys: "min, max or both" });
        }
        let min = spec.min.unwrap_or(f64::NEG_INFINITY);
        let max = spec.max.unwrap_or(f64::INFINITY);
        if min.is_nan() || max.is_nan() {
            return Err(Problem::NotFinite { key: "min and max" });
        }
        if min > max {
            return Err(Problem::Contrary { keys: "a min above its max" });
        }
        let input = self.number(&spec.field)?;
        Ok(Range { input, min, max, keep_missing: spec.keep_missing })
    }

    fn bloom(&self, spec: &BloomFilterSpec) -> Result<Bloom, Problem> {
        let input = self.column_or_topic(spec.field.as_ref())?;
        let members = match &spec.members {
            None => None,
            Some(name) => {
                let sets = &self.models.sets;
                Some(sets.get(name).ok_or_else(|| unknown("set", name, sets.keys()))?)
            }
        };
        let expected = match (spec.expected, members) {
            (Some(expected), _) => expected,
            (None, Some(members)) => (members.len() as u64).max(1),
            (None, None) => return Err(Problem::Needs { keys: "expected, members or both" }),
        };
        if members.is_none() && !spec.learn {
            return Err(Problem::Needs { keys: "members, or learn = true" });
        }
        within("expected", expected as f64, 1.0, BITS_MAX as f64)?;
        // The ends are no filter: all or nothing.
        within("false_positive", spec.false_positive, 1e-9, 0.5)?;
        let (bits, _) = Bloom::size(expected, spec.false_positive);
        within("expected", bits as f64, 1.0, BITS_MAX as f64)?;
        let mut bloom = Bloom::new(input, spec.keep, spec.learn, expected, spec.false_positive);
        for member in members.into_iter().flat_map(|members| members.iter()) {
            bloom.insert(match input {
                Column::Number(_) => {
                    let value =
                        number::parse(member.as_bytes()).map_err(|_| Problem::WrongKind {
                            field: member.clone(),
                            wanted: "a number, as a member",
                        })?;
                    hash::word(self.spec.sketch_seed, (value + 0.0).to_bits())
                }
                _ => hash::value(self.spec.sketch_seed, member.as_bytes()),
            });
        }
        Ok(bloom)
    }

    fn string_match(&self, spec: &StringMatchSpec) -> Result<StringMatch, Problem> {
        let lists = [&spec.equals, &spec.starts_with, &spec.ends_with, &spec.contains];
        if lists.iter().all(|list| list.is_empty()) {
            return Err(Problem::Needs { keys: "equals, starts_with, ends_with or contains" });
        }
        let bytes = |list: &[String]| list.iter().map(|text| text.as_bytes().into()).collect();
        Ok(StringMatch {
            input: self.text_or_topic(spec.field.as_ref())?,
            equals: bytes(&spec.equals),
            starts_with: bytes(&spec.starts_with),
            ends_with: bytes(&spec.ends_with),
            contains: spec.contains.iter().map(|text| Part::new(text.as_bytes())).collect(),
            invert: spec.invert,
        })
    }

    fn keep(&self, spec: &KeepSpec) -> Result<Keep, Problem> {
        if spec.present.is_empty() && spec.when.is_none() {
            return Err(Problem::Needs { keys: "present or when" });
        }
        let present =
            spec.present.iter().map(|name| self.column(name)).collect::<Result<_, _>>()?;
        Ok(Keep { present, when: self.optional_number(spec.when.as_ref())? })
    }

    fn annotate(&mut self, spec: &AnnotateSpec) -> Result<Annotate, Problem> {
        let tables = &self.models.tables;
        let table = tables
            .get(&spec.table)
            .ok_or_else(|| unknown("table", &spec.table, tables.keys()))
            .map(Arc::clone)?;
        let input = match (&spec.field, spec.level) {
            (Some(_), Some(_)) => return Err(Problem::Contrary { keys: "field and level" }),
            (_, Some(level)) => AnnotateInput::Level(level as usize),
            (field, None) => AnnotateInput::Column(self.text_or_topic(field.as_ref())?),
        };
        if spec.numbers.is_empty() && spec.texts.is_empty() && spec.keep_missing {
            return Err(Problem::Needs { keys: "numbers, texts, or keep_missing = false" });
        }
        let no_column = |column: &String| Problem::NoColumn {
            table: spec.table.clone(),
            column: column.clone(),
        };
        let mut numbers = Vec::new();
        for column in &spec.numbers {
            let values = table.column(column).ok_or_else(|| no_column(column))?;
            let values = values.enumerate().map(|(index, text)| match text.trim() {
                "" => Ok(f64::NAN),
                text => number::parse(text.as_bytes()).map_err(|_| Problem::TableNumber {
                    table: spec.table.clone(),
                    column: column.clone(),
                    row: index + 2,
                }),
            });
            let values = values.collect::<Result<Vec<_>, _>>()?;
            numbers.push((self.new_number(column)?, values));
        }
        let mut texts = Vec::new();
        for column in &spec.texts {
            let values = table.column(column).ok_or_else(|| no_column(column))?;
            let values = values.map(|text| self.fixed_text(text)).collect::<Result<Vec<_>, _>>()?;
            let Column::Text(index) = self.new_text(column)? else { continue };
            texts.push((index, values));
        }
        Ok(Annotate { table, input, numbers, texts, keep_missing: spec.keep_missing })
    }

    fn fixed_text(&mut self, text: &str) -> Result<Text, Problem> {
        let start = self.fixed.len();
        self.fixed.extend_from_slice(text.as_bytes());
        if u32::try_from(self.fixed.len()).is_err() {
            return Err(Problem::TextTooLarge);
        }
        Ok(Text::new(Place::Fixed, start, text.len()))
    }

    fn interpolate(&self, spec: &InterpolateSpec) -> Result<Interpolate, Problem> {
        within("window", spec.window, 1.0, WINDOW_MAX)?;
        let input = self.number(&spec.field)?;
        Ok(Interpolate { input, method: spec.method, window: spec.window as usize, at: 0 })
    }

    fn kalman(&mut self, spec: &KalmanSpec) -> Result<Kalman, Problem> {
        for (key, value) in [("q", spec.q), ("r", spec.r), ("p0", spec.p0)] {
            within(key, value, 0.0, f64::MAX)?;
        }
        if spec.q + spec.r == 0.0 {
            return Err(Problem::Needs { keys: "q or r above 0" });
        }
        if let Some(x0) = spec.x0 {
            finite("x0", x0)?;
        }
        let input = self.number(&spec.field)?;
        let into = self.new_number_as(spec.into.as_ref(), &spec.field, "kalman")?;
        Ok(Kalman { input, into, q: spec.q, r: spec.r, p0: spec.p0, x0: spec.x0, at: 0 })
    }

    fn aggregate(
        &mut self,
        spec: &AggregateSpec,
        operation: Operation,
        suffix: &str,
    ) -> Result<Aggregate, Problem> {
        if spec.field.is_none() && operation != Operation::Count {
            return Err(Problem::Needs { keys: "field" });
        }
        let input = self.optional_number(spec.field.as_ref())?;
        let window = match (&spec.window, spec.alpha) {
            (None, None) => Window::Running,
            (Some(window), None) => self.window(window)?,
            (None, Some(alpha)) if operation == Operation::Average => {
                within("alpha", alpha, f64::MIN_POSITIVE, 1.0)?;
                Window::Decay(alpha)
            }
            (None, Some(_)) => return Err(Problem::Needs { keys: "average for alpha" }),
            (Some(_), Some(_)) => return Err(Problem::Contrary { keys: "window and alpha" }),
        };
        let field = spec.field.as_deref().unwrap_or("message");
        let into = self.new_number_as(spec.into.as_ref(), field, suffix)?;
        Ok(Aggregate { operation, input, into, window, at: 0 })
    }

    fn window(&mut self, spec: &WindowSpec) -> Result<Window, Problem> {
        let time = self.clock(spec.time.as_ref())?;
        let count =
            |count: u32| within("window", count, 1.0, WINDOW_MAX).map(|()| u64::from(count));
        let nanos = |text: &str| {
            let time = quantity::duration(text).ok();
            let nanos = time.and_then(|time| i64::try_from(time.as_nanos()).ok());
            nanos
                .filter(|nanos| *nanos > 0)
                .ok_or_else(|| Problem::Extent { found: text.to_owned() })
        };
        let (extent, slides) = match (&spec.tumbling, &spec.sliding) {
            (Some(extent), None) => (extent, false),
            (None, Some(extent)) => (extent, true),
            (None, None) => return Err(Problem::Needs { keys: "tumbling or sliding" }),
            (Some(_), Some(_)) => {
                return Err(Problem::Contrary { keys: "tumbling and sliding" });
            }
        };
        if spec.hold && slides {
            return Err(Problem::Contrary { keys: "sliding and hold" });
        }
        let is_time = matches!(extent, Extent::Time(_));
        if spec.panes.is_some() && !(slides && is_time) {
            return Err(Problem::Needs { keys: "a sliding length of time for panes" });
        }
        if time.is_some() && !is_time {
            return Err(Problem::Needs { keys: "a length of time for time" });
        }
        Ok(match (extent, slides) {
            (Extent::Count(values), true) => Window::SlidingCount { count: count(*values)? },
            // Nothing of it is kept, so that it may be as long as is wished.
            (Extent::Count(values), false) => {
                within("window", *values, 1.0, f64::from(u32::MAX))?;
                Window::TumblingCount { count: u64::from(*values), hold: spec.hold }
            }
            (Extent::Time(text), false) => {
                Window::TumblingTime { nanos: nanos(text)?, time, hold: spec.hold }
            }
            (Extent::Time(text), true) => {
                let panes = spec.panes.unwrap_or(6);
                within("panes", panes, 1.0, PANES_MAX)?;
                let pane_nanos = nanos(text)? / i64::from(panes);
                if pane_nanos == 0 {
                    return Err(Problem::Extent { found: text.clone() });
                }
                Window::SlidingTime { pane_nanos, panes: u64::from(panes), time }
            }
        })
    }

    fn distinct(&mut self, spec: &DistinctCountSpec) -> Result<Distinct, Problem> {
        within("precision", spec.precision, 4.0, 16.0)?;
        let input = self.column_or_topic(spec.field.as_ref())?;
        let field = spec.field.as_deref().unwrap_or("topic");
        let into = self.new_number_as(spec.into.as_ref(), field, "distinct")?;
        Ok(Distinct { input, into, precision: spec.precision, at: 0 })
    }

    fn moment(&mut self, spec: &SecondOrderMomentSpec) -> Result<Moment, Problem> {
        within("averages", spec.averages, 1.0, 64.0)?;
        within("groups", spec.groups, 1.0, GROUPS_MAX as f64)?;
        if spec.groups.is_multiple_of(2) {
            return Err(Problem::Needs { keys: "an odd number of groups, which has a median" });
        }
        let input = self.column_or_topic(spec.field.as_ref())?;
        let field = spec.field.as_deref().unwrap_or("topic");
        let into = self.new_number_as(spec.into.as_ref(), field, "moment")?;
        let (averages, groups) = (spec.averages as usize, spec.groups as usize);
        Ok(Moment { input, into, averages, groups, at: 0 })
    }

    fn trend(&mut self, spec: &SlidingRegressionSpec) -> Result<Trend, Problem> {
        within("window", spec.window, 2.0, REGRESSION_WINDOW_MAX)?;
        let ahead = finite("ahead", spec.ahead)?;
        let input = self.number(&spec.field)?;
        let time = self.clock(spec.time.as_ref())?;
        let slope = self.new_number_as(spec.trend.as_ref(), &spec.field, "trend")?;
        let prediction = self.new_number_as(spec.prediction.as_ref(), &spec.field, "prediction")?;
        let window = spec.window as usize;
        Ok(Trend { input, time, window, ahead, slope, prediction, at: 0 })
    }

    fn linear(&mut self, spec: &LinearRegressionSpec) -> Result<Linear, Problem> {
        let Model::Linear(model) = self.model(&spec.model)? else {
            return Err(Problem::WrongKind { field: spec.model.clone(), wanted: "a linear model" });
        };
        let inputs = model.coefficients.iter().map(|(name, _)| self.number(name));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let into = self.new_number_as(spec.into.as_ref(), &model.target, "prediction")?;
        Ok(Linear { model, inputs, into })
    }

    fn tree(&mut self, spec: &DecisionTreeSpec) -> Result<Tree, Problem> {
        let Model::Tree(model) = self.model(&spec.model)? else {
            return Err(Problem::WrongKind { field: spec.model.clone(), wanted: "a tree" });
        };
        let inputs = model.features.iter().map(|name| self.number(name));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let classes = model.classes.iter().map(|name| self.fixed_text(name));
        let classes = classes.collect::<Result<_, _>>()?;
        let usual = format!("{}_class", model.target);
        let Column::Text(into) = self.new_text(spec.into.as_ref().unwrap_or(&usual))? else {
            return Err(Problem::Taken { field: usual });
        };
        Ok(Tree { model, inputs, into, classes })
    }

    fn model(&self, name: &str) -> Result<Model, Problem> {
        let models = &self.models.models;
        models.get(name).cloned().ok_or_else(|| unknown("model", name, models.keys()))
    }

    fn error_estimate(&mut self, spec: &ErrorEstimateSpec) -> Result<ErrorEstimate, Problem> {
        let observed = self.number(&spec.observed)?;
        let predicted = self.number(&spec.predicted)?;
        let average = self.number(&spec.average)?;
        let into = self.new_number_as(spec.into.as_ref(), &spec.observed, "error")?;
        Ok(ErrorEstimate { observed, predicted, average, into })
    }

    fn threshold(&mut self, spec: &ThresholdSpec) -> Result<Threshold, Problem> {
        if spec.above.is_none() && spec.below.is_none() {
            return Err(Problem::Needs { keys: "above, below or both" });
        }
        for (key, value) in [("above", spec.above), ("below", spec.below)] {
            finite(key, value.unwrap_or(0.0))?;
        }
        within("hysteresis", spec.hysteresis, 0.0, f64::MAX)?;
        let input = self.number(&spec.field)?;
        let reference = self.optional_number(spec.reference.as_ref())?;
        let into = self.new_number_as(spec.into.as_ref(), &spec.field, "over")?;
        Ok(Threshold {
            input,
            into,
            above: spec.above,
            below: spec.below,
            reference,
            hysteresis: spec.hysteresis,
            fires: spec.fires,
            at: 0,
        })
    }

    fn notify(&self, spec: &NotifySpec) -> Result<Notify, Problem> {
        Ok(Notify {
            topic: self.topic("topic", &spec.topic)?,
            content: self.content(spec.payload.as_ref(), &spec.fields, spec.format)?,
            when: self.optional_number(spec.when.as_ref())?,
        })
    }

    fn replace(&self, spec: &ReplaceSpec) -> Result<Replace, Problem> {
        Ok(Replace { content: self.content(spec.payload.as_ref(), &spec.fields, spec.format)? })
    }

    fn content(
        &self,
        payload: Option<&String>,
        fields: &[String],
        format: PayloadFormat,
    ) -> Result<Content, Problem> {
        match payload {
            Some(payload) if fields.is_empty() => {
                let template = self.template("payload", payload)?;
                Ok(Content::Template(template.of_payload()))
            }
            Some(_) => Err(Problem::Contrary { keys: "payload and fields" }),
            None if fields.is_empty() => Err(Problem::Needs { keys: "payload or fields" }),
            None => {
                let named = |name: &String| -> Result<(Box<str>, Column), Problem> {
                    // The topic can stand among fields.
                    let column = self.find(name).or((name == "topic").then_some(Column::Topic));
                    let column = column.map_or_else(|| self.column(name), Ok)?;
                    Ok((name.as_str().into(), column))
                };
                let fields = fields.iter().map(named).collect::<Result<_, Problem>>()?;
                Ok(Content::Fields { format, fields })
            }
        }
    }
}

fn unknown<'a>(kind: &'static str, name: &str, known: impl Iterator<Item = &'a String>) -> Problem {
    let mut known: Vec<&str> = known.map(String::as_str).collect();
    known.sort_unstable();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Problem::Unknown { kind, name: name.to_owned(), known }
}

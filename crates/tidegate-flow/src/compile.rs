//! From a description to a flow that runs: names become places, and everything that could fail later is refused here.

mod error;
mod step;

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tidegate_message::check_topic_filter;

pub use self::error::{CompileError, Place, Problem};
use crate::{
    batch::{Batch, Column},
    flow::{Flow, Key, Step},
    hash,
    kernel::{Ending, Kernel},
    keys::{KEY_BYTES_MAX, KEYS_LIMIT, KEYS_MIN, Keys, Probes},
    model::Models,
    parse::{FIELDS_MAX, Parser, RECORD_TIME},
    spec::{BadPolicy, Encoding, FieldKind, FieldSpec, Format, Forward, KeySpec, Spec, StepSpec},
    stats::Stats,
    template::{Template, TemplateError},
};

/// Most levels of a topic filter.
const FILTER_LEVELS_MAX: usize = 128;
/// Longest payload that can be read: MQTT's.
const MESSAGE_BYTES_LIMIT: u64 = 256 << 20;
/// Most columns of numbers or texts: 2 KiB each.
const COLUMNS_MAX: usize = 4096;

impl Flow {
    /// A flow that does what `spec` says, with the models, tables and sets that it names, and with nothing in its state.
    ///
    /// # Errors
    /// [`CompileError`], with the flow, the step, the field, the bound and the way out.
    pub fn compile(spec: &Spec, models: &Models) -> Result<Self, CompileError> {
        let mut compiler = Compiler {
            spec,
            models,
            place: Place::Flow,
            columns: Vec::new(),
            numbers: 0,
            texts: 0,
            fixed: Vec::new(),
            state_bytes: 0,
            clocks: Vec::new(),
        };
        compiler.compile().map_err(|problem| CompileError {
            flow: spec.name.clone(),
            place: compiler.place,
            problem,
        })
    }
}

struct Compiler<'a> {
    spec: &'a Spec,
    models: &'a Models,
    /// The place being checked.
    place: Place,
    /// The fields that are known so far.
    columns: Vec<(String, Column)>,
    numbers: usize,
    texts: usize,
    /// Text of tables and classes.
    fixed: Vec<u8>,
    /// The bytes of state so far.
    state_bytes: u64,
    /// Columns of times that windows go by, with the place of their field.
    clocks: Vec<(usize, u16)>,
}

impl Compiler<'_> {
    fn compile(&mut self) -> Result<Flow, Problem> {
        let spec = self.spec;
        self.check_flow()?;
        self.place = Place::Parse;
        let parser = self.parser()?;
        self.place = Place::Flow;
        let key = self.key()?;
        // Known before any step, so that no step's field can be meant.
        let dead_letter = self.topic("dead_letter_topic", &spec.dead_letter_topic)?;
        let mut initial = Vec::new();
        let mut mended = Vec::new();
        if spec.bad == BadPolicy::LastGood {
            for field in parser.fields.iter().filter(|field| !field.optional) {
                if let Column::Number(column) = field.column {
                    mended.push((column, initial.len()));
                    initial.push(f64::NAN.to_bits());
                }
            }
        }
        let mut steps = Vec::new();
        for (index, step) in spec.steps.iter().enumerate() {
            self.place = Place::Step { number: index + 1, kernel: step.kernel() };
            let step = self.whole_step(index, step, &mut initial)?;
            steps.push(step);
        }
        self.place = Place::Flow;
        let (endings, ending_from) = endings(&steps, &key);
        let stateful_from = steps.iter().position(|step| step.words > 0).unwrap_or(steps.len());
        self.state_bytes = steps.iter().map(|step| step.kernel.shared_bytes()).sum();
        let times = parser.fields.iter().filter_map(|field| match field.column {
            Column::Number(column) if field.kind == FieldKind::Time => Some(column),
            _ => None,
        });
        let batch = Box::new(Batch::new(self.numbers, self.texts, times));
        let keys = if initial.is_empty() { None } else { Some(self.keys(&key, initial)?) };
        if self.state_bytes > spec.state_bytes_max {
            let (bytes, limit) = (self.state_bytes, spec.state_bytes_max);
            return Err(Problem::SharedTooLarge { bytes, limit });
        }
        Ok(Flow {
            name: spec.name.clone(),
            topics: spec.topics.clone(),
            bad: spec.bad,
            dead_letter,
            forward: spec.forward,
            // Under `last-good` rows are looked at before they are mended.
            key_is_needed: spec.bad != BadPolicy::LastGood
                && matches!(&spec.key, KeySpec::Field(name)
                    if parser.fields.iter().any(|field| field.name == *name && !field.optional)),
            key_is_exact: matches!(&spec.key, KeySpec::Field(name)
                if spec.parse.fields.iter().any(|field| field.name == *name
                    && field.scale.is_none()
                    && field.encoding.is_some_and(Encoding::is_exact))),
            key,
            parser,
            key_fingerprint: fingerprint(&spec.key),
            hash_seed: spec.hash_seed,
            sketch_seed: spec.sketch_seed,
            key_bytes_max: spec.key_bytes_max as usize,
            state_bytes: self.state_bytes,
            clocks: std::mem::take(&mut self.clocks),
            ahead_max: spec.ahead_max.as_secs_f64(),
            keys,
            mended,
            endings,
            ending_from,
            ending_next: 0,
            steps,
            stateful_from,
            fixed: std::mem::take(&mut self.fixed),
            batch,
            probes: Box::new(Probes::new()),
            stats: Stats::default(),
            wall_ahead: 0,
        })
    }

    fn check_flow(&self) -> Result<(), Problem> {
        let spec = self.spec;
        if spec.topics.is_empty() {
            return Err(Problem::NoTopics);
        }
        for filter in &spec.topics {
            check_topic_filter(filter, FILTER_LEVELS_MAX)
                .map_err(|source| Problem::Filter { filter: filter.clone(), source })?;
        }
        within("keys_max", spec.keys_max, f64::from(KEYS_MIN), f64::from(KEYS_LIMIT))?;
        within("key_bytes_max", spec.key_bytes_max, 1.0, KEY_BYTES_MAX as f64)?;
        let longest = MESSAGE_BYTES_LIMIT as f64;
        within("message_bytes_max", spec.message_bytes_max as f64, 1.0, longest)?;
        if let Some(age) = spec.expire_after {
            if age < Duration::from_secs(1) || age.subsec_nanos() != 0 {
                return Err(Problem::WholeSeconds { key: "expire_after" });
            }
            within("expire_after", age.as_secs_f64(), 1.0, f64::from(u32::MAX))?;
        }
        Ok(())
    }

    fn parser(&mut self) -> Result<Parser, Problem> {
        let spec = &self.spec.parse;
        if spec.fields.is_empty() {
            return Err(Problem::NoFields);
        }
        within("fields", spec.fields.len() as f64, 1.0, FIELDS_MAX as f64)?;
        let delimiter = spec.delimiter.unwrap_or(',');
        let is_csv = spec.format == Format::Csv;
        if !delimiter.is_ascii() || matches!(delimiter, '"' | '\r' | '\n') {
            return Err(Problem::Delimiter { found: delimiter });
        }
        if !is_csv && (spec.delimiter.is_some() || spec.header) {
            return Err(Problem::OnlyFor { key: "delimiter and header", format: Format::Csv });
        }
        let mut columns = Vec::new();
        let mut places = Vec::new();
        for (index, field) in spec.fields.iter().enumerate() {
            self.check_field(field, spec.format, spec.header)?;
            if is_csv && !spec.header {
                let place = field.column.unwrap_or(index as u32);
                if places.contains(&place) {
                    return Err(Problem::DoubleColumn { field: field.name.clone(), column: place });
                }
                places.push(place);
            }
            columns.push(match field.kind {
                FieldKind::Text => self.new_text(&field.name)?,
                _ => self.new_number(&field.name).map(Column::Number)?,
            });
        }
        Ok(Parser::new(
            spec.format,
            &spec.fields,
            columns,
            delimiter as u8,
            spec.header,
            self.spec.message_bytes_max as usize,
        ))
    }

    fn check_field(&self, field: &FieldSpec, format: Format, header: bool) -> Result<(), Problem> {
        let name = || field.name.clone();
        let is_fixed = format == Format::Fixed;
        let has_place = field.at.is_some() || field.length.is_some() || field.encoding.is_some();
        if !is_fixed && has_place {
            return Err(Problem::FieldKey {
                field: name(),
                key: "at, length and as",
                needs: "fixed",
            });
        }
        if (format != Format::Csv || header) && field.column.is_some() {
            let needs = "csv without header";
            return Err(Problem::FieldKey { field: name(), key: "column", needs });
        }
        if field.column.is_some_and(|column| column >= 4096) {
            return Err(Problem::Bound { key: "column", found: 4096.0, min: 0.0, max: 4095.0 });
        }
        if (is_fixed || (format == Format::Csv && !header))
            && (field.from.is_some() || !field.aliases.is_empty())
        {
            let needs = "names in payloads: csv with header, json, senml-json, cbor or senml-cbor";
            return Err(Problem::FieldKey { field: name(), key: "from and aliases", needs });
        }
        if field.kind == FieldKind::Text && field.scale.is_some() {
            let needs = "a number";
            return Err(Problem::FieldKey { field: name(), key: "scale", needs });
        }
        if field.scale.is_some_and(|scale| !scale.is_finite() || scale == 0.0) {
            return Err(Problem::NotFinite { key: "scale" });
        }
        let is_senml = matches!(format, Format::SenmlJson | Format::SenmlCbor);
        if field.from.as_deref() == Some(RECORD_TIME) && !is_senml {
            let needs = "senml-json or senml-cbor";
            return Err(Problem::FieldKey { field: name(), key: "from = \"@time\"", needs });
        }
        if !is_fixed {
            return Ok(());
        }
        if field.at.is_none() {
            return Err(Problem::FieldNeeds { field: name(), key: "at" });
        }
        let encoding = field.encoding.unwrap_or(Encoding::Ascii);
        if encoding == Encoding::Ascii && field.length.is_none_or(|length| length == 0) {
            return Err(Problem::FieldNeeds { field: name(), key: "length" });
        }
        if encoding != Encoding::Ascii && (field.length.is_some() || field.kind == FieldKind::Text)
        {
            let needs = "as = \"ascii\"";
            return Err(Problem::FieldKey { field: name(), key: "length and text", needs });
        }
        let end = u64::from(field.at.unwrap_or(0)) + u64::from(field.length.unwrap_or(8));
        within("at", end as f64, 0.0, MESSAGE_BYTES_LIMIT as f64)
    }

    fn key(&mut self) -> Result<Key, Problem> {
        Ok(match &self.spec.key {
            KeySpec::Topic => Key::Topic,
            KeySpec::None => Key::None,
            KeySpec::Levels(levels) => {
                within("levels", levels.len() as f64, 1.0, FILTER_LEVELS_MAX as f64)?;
                for level in levels {
                    within("levels", *level, 0.0, (FILTER_LEVELS_MAX - 1) as f64)?;
                }
                // A column without a name.
                let column = self.texts;
                self.texts += 1;
                Key::Levels(levels.clone(), column)
            }
            KeySpec::Field(name) => Key::Field(self.column(name)?),
        })
    }

    fn keys(&mut self, key: &Key, initial: Vec<u64>) -> Result<Keys, Problem> {
        let spec = self.spec;
        let is_text = !matches!(key, Key::None | Key::Field(Column::Number(_)));
        let capacity = if matches!(key, Key::None) { KEYS_MIN } else { spec.keys_max };
        let stride = Keys::stride(is_text, initial.len());
        let each = stride as u64 * 8;
        let shared = self.state_bytes;
        let each = each + if is_text { Keys::long_bytes(spec.key_bytes_max as usize) } else { 0 };
        let bytes = shared + each * u64::from(capacity) + Keys::slot_bytes(capacity);
        // A row's state is named by 32 bits.
        let words = stride as u64 * u64::from(capacity) + 8;
        if bytes > spec.state_bytes_max || words > u64::from(u32::MAX) {
            return Err(Problem::StateTooLarge {
                bytes,
                limit: spec.state_bytes_max.min(u64::from(u32::MAX) * 8),
                keys: capacity,
                key_bytes: each,
            });
        }
        self.state_bytes = bytes;
        let expire = spec.expire_after.map(|age| age.as_secs() as u32);
        Ok(Keys::new(is_text, initial, capacity, expire, spec.hash_seed))
    }

    fn whole_step(
        &mut self,
        index: usize,
        spec: &StepSpec,
        initial: &mut Vec<u64>,
    ) -> Result<Step, Problem> {
        if self.spec.forward == Forward::None && matches!(spec, StepSpec::Replace(_)) {
            return Err(Problem::NothingForwarded);
        }
        let mut kernel: Kernel = self.step(spec)?;
        let state = kernel.initial();
        let at = initial.len();
        kernel.place(at);
        initial.extend(&state);
        Ok(Step {
            name: format!("step {} ({})", index + 1, spec.kernel()),
            fingerprint: self.step_fingerprint(spec, &kernel),
            kernel,
            at,
            words: state.len(),
        })
    }

    fn step_fingerprint(&self, spec: &StepSpec, kernel: &Kernel) -> u64 {
        // Where hashes are kept, they are others under another seed.
        let seeded = fingerprint(spec) ^ self.spec.sketch_seed;
        match (spec, kernel) {
            // The size of its set says how many places each value has, and `spec` does not.
            (StepSpec::BloomFilter(spec), Kernel::Bloom(kernel)) if spec.expected.is_none() => {
                seeded ^ u64::from(kernel.places)
            }
            (
                StepSpec::BloomFilter(_)
                | StepSpec::DistinctCount(_)
                | StepSpec::SecondOrderMoment(_),
                _,
            ) => seeded,
            _ => fingerprint(spec),
        }
    }

    /// The column of a field.
    fn column(&self, name: &str) -> Result<Column, Problem> {
        self.find(name).ok_or_else(|| Problem::UnknownField {
            field: name.to_owned(),
            known: self
                .columns
                .iter()
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    fn find(&self, name: &str) -> Option<Column> {
        self.columns.iter().find(|(known, _)| known == name).map(|(_, column)| *column)
    }

    /// The column of a number.
    fn number(&self, name: &str) -> Result<usize, Problem> {
        match self.column(name)? {
            Column::Number(index) => Ok(index),
            _ => Err(Problem::WrongKind { field: name.to_owned(), wanted: "a number" }),
        }
    }

    fn optional_number(&self, name: Option<&String>) -> Result<Option<usize>, Problem> {
        name.map(|name| self.number(name)).transpose()
    }

    /// As [`Compiler::optional_number`], for a time that windows go by.
    fn clock(&mut self, name: Option<&String>) -> Result<Option<usize>, Problem> {
        let column = self.optional_number(name)?;
        let fields = &self.spec.parse.fields;
        let field = fields.iter().position(|field| Some(&field.name) == name);
        if let (Some(column), Some(field)) = (column, field)
            && !self.clocks.contains(&(column, field as u16))
        {
            self.clocks.push((column, field as u16));
        }
        Ok(column)
    }

    /// A field, or the topic where none is named.
    fn column_or_topic(&self, name: Option<&String>) -> Result<Column, Problem> {
        name.map_or(Ok(Column::Topic), |name| self.column(name))
    }

    /// A text field, or the topic where none is named.
    fn text_or_topic(&self, name: Option<&String>) -> Result<Column, Problem> {
        match self.column_or_topic(name)? {
            Column::Number(_) => Err(Problem::WrongKind {
                field: name.cloned().unwrap_or_default(),
                wanted: "a text",
            }),
            column => Ok(column),
        }
    }

    fn new_number(&mut self, name: &str) -> Result<usize, Problem> {
        let index = self.numbers;
        self.add(name, Column::Number(index))?;
        self.numbers += 1;
        Ok(index)
    }

    fn new_text(&mut self, name: &str) -> Result<Column, Problem> {
        let column = Column::Text(self.texts);
        self.add(name, column)?;
        self.texts += 1;
        Ok(column)
    }

    /// A name for a new column: `into`, or the field's with a suffix.
    fn new_number_as(
        &mut self,
        into: Option<&String>,
        field: &str,
        suffix: &str,
    ) -> Result<usize, Problem> {
        match into {
            Some(into) => self.new_number(into),
            None => self.new_number(&format!("{field}_{suffix}")),
        }
    }

    fn add(&mut self, name: &str, column: Column) -> Result<(), Problem> {
        if name.is_empty() || name.len() > 128 {
            return Err(Problem::FieldName { field: name.to_owned() });
        }
        if self.find(name).is_some() {
            return Err(Problem::Taken { field: name.to_owned() });
        }
        within("fields", (self.columns.len() + 1) as f64, 0.0, COLUMNS_MAX as f64)?;
        self.columns.push((name.to_owned(), column));
        Ok(())
    }

    fn topic(&self, key: &'static str, text: &str) -> Result<Template, Problem> {
        let template = self.template(key, text)?;
        template.check_topic().map_err(|source| Problem::Template { key, source })?;
        Ok(template)
    }

    fn template(&self, key: &'static str, text: &str) -> Result<Template, Problem> {
        Template::parse(text, &self.spec.name, |name| self.find(name))
            .map_err(|source: TemplateError| Problem::Template { key, source })
    }
}

fn within(key: &'static str, found: impl Into<f64>, min: f64, max: f64) -> Result<(), Problem> {
    let found = found.into();
    if (min..=max).contains(&found) { Ok(()) } else { Err(Problem::Bound { key, found, min, max }) }
}

/// As [`within`], for a number that has no bound but to be one.
fn finite(key: &'static str, found: f64) -> Result<f64, Problem> {
    if found.is_finite() { Ok(found) } else { Err(Problem::NotFinite { key }) }
}

/// The windows that end by the clock, and the step of the first: none where a topic behind them hangs on more than the key.
fn endings(steps: &[Step], key: &Key) -> (Vec<Ending>, usize) {
    let endings: Vec<Ending> = steps.iter().filter_map(|step| step.kernel.ending()).collect();
    let from = steps.iter().position(|step| step.kernel.ending().is_some()).unwrap_or(steps.len());
    let (levels, topic, field) = match key {
        Key::Topic => (0, true, None),
        // From the first on, without a gap: then the key is the beginning of the topic.
        Key::Levels(levels, _) if levels.iter().copied().eq(0..levels.len() as u32) => {
            (levels.len(), false, None)
        }
        Key::Field(column) => (0, false, Some(*column)),
        Key::Levels(..) | Key::None => (0, false, None),
    };
    let is_settled = steps[from..].iter().all(|step| match &step.kernel {
        Kernel::Notify(notify) => notify.topic.is_settled(levels, topic, field),
        _ => true,
    });
    if is_settled { (endings, from) } else { (Vec::new(), from) }
}

/// A description as a number that stays the same from version to version: the hash of its JSON, with names in order and without
/// defaults.
fn fingerprint(spec: &impl Serialize) -> u64 {
    hash::bytes(0, canonical(spec).as_bytes())
}

fn canonical(spec: &impl Serialize) -> String {
    let mut text = String::new();
    let value = serde_json::to_value(spec).expect("a description has names as keys");
    write_canonical(&value, &mut text);
    text
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> =
                members.iter().filter(|(_, value)| !value.is_null()).collect();
            members.sort_by_key(|(name, _)| *name);
            for (place, (name, value)) in members.into_iter().enumerate() {
                out.push(if place == 0 { '{' } else { ',' });
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(elements) => {
            for (place, value) in elements.iter().enumerate() {
                out.push(if place == 0 { '[' } else { ',' });
                write_canonical(value, out);
            }
            out.push(']');
        }
        _ => out.push_str(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// State that was kept under these is found under these: a change of any of them loses state at an update.
    #[test]
    fn descriptions_have_the_fingerprints_of_before() {
        for (step, expected) in [
            (
                "kernel = \"kalman\"\nfield = \"x\"",
                r#"{"field":"x","kernel":"kalman","p0":30.0,"q":0.125,"r":0.32}"#,
            ),
            (
                "kernel = \"average\"\nfield = \"x\"\nwindow = { tumbling = \"1min\", time = \"t\" }",
                r#"{"field":"x","kernel":"average","window":{"hold":false,"time":"t","tumbling":"1min"}}"#,
            ),
            (
                "field = \"x\"\nkernel = \"count\"\nwindow = { sliding = 3 }",
                r#"{"field":"x","kernel":"count","window":{"hold":false,"sliding":3}}"#,
            ),
        ] {
            let spec: StepSpec = toml::from_str(step).unwrap();
            assert_eq!(canonical(&spec), expected, "{step}");
        }
        assert_eq!(canonical(&KeySpec::Levels(vec![0, 1])), r#"{"levels":[0,1]}"#);
        assert_eq!(fingerprint(&KeySpec::Topic), hash::bytes(0, b"\"topic\""));
    }
}

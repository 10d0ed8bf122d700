//! From payloads to columns.
//!
//! ```text
//!  payloads ──▶ csv │ json │ senml │ cbor │ fixed ──▶ Cells of a row ──▶ columns of the batch
//! ```
//!
//! Always true: no payload makes this panic, recurse or allocate by its claims; a row that is read has all its required fields, a
//! row that is not has its reason.

mod cbor;
mod csv;
mod fixed;
mod json;
mod senml;

use std::{fmt, io::Write as _, ops::Range};

use self::{csv::Csv, fixed::Fixed};
use crate::{
    bad::{Bad, Reason},
    batch::{BATCH_MAX, Batch, Column, Place, Text},
    message::Message,
    number::{self, INTEGER_MAX},
    spec::{FieldKind, FieldSpec, Format, TimeUnit},
    time,
};

/// The time of a SenML record, as the source of a field.
pub(crate) const RECORD_TIME: &str = "@time";

/// A format and its fields, checked.
#[derive(Debug)]
pub(crate) struct Parser {
    pub(crate) fields: Vec<Field>,
    names: Names,
    form: Form,
    message_bytes_max: usize,
}

#[derive(Debug)]
enum Form {
    Csv(Csv),
    Json,
    SenmlJson,
    Cbor,
    SenmlCbor,
    Fixed(Fixed),
}

/// A field, checked.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// Its names in payloads, the usual name first.
    names: Vec<Box<[u8]>>,
    pub(crate) kind: FieldKind,
    unit: TimeUnit,
    pub(crate) optional: bool,
    scale: f64,
    pub(crate) column: Column,
}

/// One value of a payload, not yet of any type.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    /// There, and nothing: `null`, or an empty column.
    Missing,
    Number(f64),
    /// A whole number of 64 bits and a sign.
    Integer(i128),
    /// A number, and what it is exactly, times 10^9.
    Exact(f64, i128),
    /// A number or time in text, or text, as it stands in the payload.
    Bytes(&'a [u8]),
    /// The same, in the batch's scratch.
    Scratch(usize, usize),
}

impl Parser {
    /// A parser of `fields`, whose columns are theirs already.
    pub(crate) fn new(
        format: Format,
        specs: &[FieldSpec],
        columns: Vec<Column>,
        delimiter: u8,
        header: bool,
        message_bytes_max: usize,
    ) -> Self {
        let fields = specs.iter().zip(columns).map(|(spec, column)| {
            let usual = spec.from.as_ref().unwrap_or(&spec.name);
            Field {
                name: spec.name.clone(),
                names: std::iter::once(usual)
                    .chain(&spec.aliases)
                    .map(|name| name.as_bytes().into())
                    .collect(),
                kind: spec.kind,
                unit: spec.unit,
                optional: spec.optional,
                scale: spec.scale.unwrap_or(1.0),
                column,
            }
        });
        let form = match format {
            Format::Csv => Form::Csv(Csv::new(specs, delimiter, header)),
            Format::Json => Form::Json,
            Format::SenmlJson => Form::SenmlJson,
            Format::Cbor => Form::Cbor,
            Format::SenmlCbor => Form::SenmlCbor,
            Format::Fixed => Form::Fixed(Fixed::new(specs)),
        };
        let fields: Vec<Field> = fields.collect();
        Self { names: Names::of(&fields), fields, form, message_bytes_max }
    }

    /// Reads a tile of messages, the first of which is row `first`, into the columns of `batch`, and says what is wrong with those
    /// that cannot be read. `now` is in seconds.
    pub(crate) fn run(
        &mut self,
        now: f64,
        messages: &[Message<'_>],
        first: usize,
        batch: &mut Batch,
    ) {
        let rows = first..first + messages.len();
        if let Form::Fixed(fixed) = &self.form {
            // Column after column: each of its loops does one thing.
            let longest = messages.iter().map(|message| message.payload.len()).max();
            if longest.is_some_and(|longest| longest > self.message_bytes_max) {
                for (row, message) in rows.clone().zip(messages) {
                    if message.payload.len() > self.message_bytes_max {
                        batch.spoil(row, Bad { reason: Reason::TooLong, field: None });
                    }
                }
            }
            fixed.run(&self.fields, messages, first, batch);
            return;
        }
        for field in &self.fields {
            match field.column {
                Column::Number(index) => batch.numbers[index][rows.clone()].fill(f64::NAN),
                Column::Text(index) => batch.texts[index][rows.clone()].fill(Text::default()),
                Column::Topic => {}
            }
        }
        for (row, message) in rows.zip(messages) {
            if message.payload.len() > self.message_bytes_max {
                batch.spoil(row, Bad { reason: Reason::TooLong, field: None });
                continue;
            }
            let mut cells = Cells {
                fields: &self.fields,
                names: &self.names,
                payload: message.payload,
                now,
                row,
                batch,
                next: 0,
                set: [0; SET_WORDS],
            };
            // A mark of the order of bytes is no part of a text.
            let text = message.payload.strip_prefix(b"\xef\xbb\xbf").unwrap_or(message.payload);
            let result = match &mut self.form {
                Form::Csv(csv) => csv.read(text, &mut cells),
                Form::Json => json::read_object(text, &mut cells),
                Form::SenmlJson => senml::read_json(text, &mut cells),
                Form::Cbor => cbor::read_map(message.payload, &mut cells),
                Form::SenmlCbor => senml::read_cbor(message.payload, &mut cells),
                Form::Fixed(_) => Ok(()),
            };
            match result {
                Ok(()) => cells.finish(),
                Err(reason) => batch.spoil(row, Bad { reason, field: None }),
            }
        }
    }
}

/// Most fields of a flow.
pub(crate) const FIELDS_MAX: usize = 256;
const SET_WORDS: usize = FIELDS_MAX / 64;

/// The fields of one row, as a format finds them.
struct Cells<'a, 'b> {
    fields: &'a [Field],
    names: &'a Names,
    payload: &'a [u8],
    /// In seconds.
    now: f64,
    row: usize,
    batch: &'b mut Batch,
    /// Where the next name is looked for first: payloads name fields in one order most of the time.
    next: usize,
    /// Fields that have a value, or were said to have none, or a bad one.
    set: [u64; SET_WORDS],
}

/// Fields by their names in payloads, so that a payload of ten thousand unused names costs a look each.
#[derive(Debug)]
struct Names {
    /// A field's place from 1, or 0; open addressing, at most half full.
    slots: Vec<u16>,
}

impl Names {
    fn of(fields: &[Field]) -> Self {
        let count: usize = fields.iter().map(|field| field.names.len()).sum();
        let mut slots = vec![0; (count * 2).next_power_of_two().max(2)];
        for (index, field) in fields.iter().enumerate() {
            for name in &field.names {
                let mut at = Self::hash(b"", name) & (slots.len() - 1);
                while slots[at] != 0 {
                    at = (at + 1) & (slots.len() - 1);
                }
                slots[at] = index as u16 + 1;
            }
        }
        Self { slots }
    }

    /// The first of the fields that are called so.
    fn find(&self, fields: &[Field], prefix: &[u8], name: &[u8]) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut at = Self::hash(prefix, name) & mask;
        while self.slots[at] != 0 {
            let index = usize::from(self.slots[at]) - 1;
            if fields[index].is_called(prefix, name) {
                return Some(index);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// FNV-1a: byte after byte, so that two parts hash as the whole. Its collisions are fixed by the configuration.
    fn hash(prefix: &[u8], name: &[u8]) -> usize {
        let bytes = prefix.iter().chain(name);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        (hash ^ hash >> 32) as usize
    }
}

impl Field {
    fn is_called(&self, prefix: &[u8], name: &[u8]) -> bool {
        self.names.iter().any(|known| {
            known.len() == prefix.len() + name.len()
                && known.starts_with(prefix)
                && known.ends_with(name)
        })
    }
}

impl Cells<'_, '_> {
    /// The field that payloads call `prefix` and `name` in one.
    fn find(&mut self, prefix: &[u8], name: &[u8]) -> Option<usize> {
        let expected = if self.next < self.fields.len() { self.next } else { 0 };
        let found = if self.fields[expected].is_called(prefix, name) {
            Some(expected)
        } else {
            self.names.find(self.fields, prefix, name)
        };
        if let Some(index) = found {
            self.next = index + 1;
        }
        found
    }

    /// Gives field `index` a value; the last of several counts. A problem with it is kept, the first time.
    fn put(&mut self, index: usize, value: Value<'_>) {
        let fields = self.fields;
        let field = &fields[index];
        let result = match field.column {
            Column::Number(column) => {
                let number = self.number(field, value);
                if field.kind == FieldKind::Time {
                    let nanos = self.nanos(field, value);
                    self.batch.set_nanos(column, self.row, nanos);
                }
                let place = &mut self.batch.numbers[column][self.row];
                match number {
                    Ok(value) => *place = value,
                    Err(_) => *place = f64::NAN,
                }
                number.map(|value| !value.is_nan())
            }
            Column::Text(column) => {
                let text = self.text(value);
                if let Ok(text) = text {
                    self.batch.texts[column][self.row] = text;
                }
                text.map(|text| !text.is_missing())
            }
            Column::Topic => Ok(true),
        };
        match result {
            Ok(true) => self.set[index / 64] |= 1 << (index % 64),
            Ok(false) => self.set[index / 64] &= !(1 << (index % 64)),
            Err(reason) => {
                self.set[index / 64] |= 1 << (index % 64);
                self.fail(reason, index);
            }
        }
    }

    /// A number of the field's type; NaN where it is missing.
    fn number(&self, field: &Field, value: Value<'_>) -> Result<f64, Reason> {
        match value {
            Value::Missing => Ok(f64::NAN),
            Value::Number(value) | Value::Exact(value, _) => number_of(field, value),
            Value::Integer(value) => integer_of(field, value),
            Value::Bytes(bytes) => number_in(field, bytes),
            Value::Scratch(start, bytes) => {
                number_in(field, &self.batch.scratch[start..start + bytes])
            }
        }
    }

    /// A time exactly; none where it is missing, or a float already.
    fn nanos(&self, field: &Field, value: Value<'_>) -> Option<i64> {
        match value {
            Value::Missing | Value::Number(_) => None,
            Value::Integer(value) => nanos_of(field, value),
            Value::Exact(_, billionths) => time::nanos_of(billionths, field.unit),
            Value::Bytes(bytes) => time::nanos(bytes, field.unit),
            Value::Scratch(start, bytes) => {
                time::nanos(&self.batch.scratch[start..start + bytes], field.unit)
            }
        }
    }

    fn text(&mut self, value: Value<'_>) -> Result<Text, Reason> {
        match value {
            Value::Missing => Ok(Text::default()),
            // A number where text is expected reads as it is usually written.
            Value::Number(value) | Value::Exact(value, _) => {
                Ok(self.written(format_args!("{value}")))
            }
            Value::Integer(value) => Ok(self.written(format_args!("{value}"))),
            Value::Bytes(bytes) => {
                std::str::from_utf8(bytes).map_err(|_| Reason::NotText)?;
                let start = bytes.as_ptr().addr() - self.payload.as_ptr().addr();
                Ok(Text::new(Place::Payload, start, bytes.len()))
            }
            Value::Scratch(start, bytes) => {
                let text = &self.batch.scratch[start..start + bytes];
                std::str::from_utf8(text).map_err(|_| Reason::NotText)?;
                Ok(Text::new(Place::Scratch, start, bytes))
            }
        }
    }

    fn written(&mut self, text: fmt::Arguments<'_>) -> Text {
        let start = self.batch.scratch.len();
        let _ = self.batch.scratch.write_fmt(text);
        Text::new(Place::Scratch, start, self.batch.scratch.len() - start)
    }

    fn fail(&mut self, reason: Reason, index: usize) {
        fail(self.batch, self.row, reason, index);
    }

    /// Forgets what the row holds and what is wrong with it.
    fn forget(&mut self) {
        for field in self.fields {
            match field.column {
                Column::Number(column) => self.batch.numbers[column][self.row] = f64::NAN,
                Column::Text(column) => self.batch.texts[column][self.row] = Text::default(),
                Column::Topic => {}
            }
        }
        self.set = [0; SET_WORDS];
        self.batch.bad[self.row] = None;
    }

    /// Names the first field that is missing and may not be.
    fn finish(mut self) {
        for index in 0..self.fields.len() {
            if self.set[index / 64] >> (index % 64) & 1 == 0 && !self.fields[index].optional {
                self.fail(Reason::Missing, index);
                return;
            }
        }
    }
}

/// Keeps what is wrong with a row. A problem without remedy outweighs one that can be mended; else the first counts.
fn fail(batch: &mut Batch, row: usize, reason: Reason, field: usize) {
    let is_worse =
        batch.bad[row].is_none_or(|bad| bad.reason.can_be_mended() && !reason.can_be_mended());
    if is_worse {
        batch.spoil(row, Bad { reason, field: Some(field as u16) });
    }
}

/// A number that is one already, as the field's type wants it.
#[inline]
fn number_of(field: &Field, value: f64) -> Result<f64, Reason> {
    if value.is_nan() {
        return Err(Reason::NotANumber);
    }
    let value = match field.kind {
        FieldKind::Time => value / field.unit.per_second(),
        _ => value * field.scale,
    };
    checked(field, value)
}

/// A whole number, as the field's type wants it: the nearest float, of an `integer` no other.
#[inline]
fn integer_of(field: &Field, value: i128) -> Result<f64, Reason> {
    let float = float_of(value);
    if field.kind == FieldKind::Integer && float as i128 != value {
        return Err(Reason::NotAnInteger);
    }
    number_of(field, float)
}

/// A time exactly that is a whole number.
fn nanos_of(field: &Field, value: i128) -> Option<i64> {
    time::nanos_of(value.checked_mul(1_000_000_000)?, field.unit)
}

/// The nearest float. Most whole numbers fit 64 bits, of which it is one instruction.
#[inline]
fn float_of(value: i128) -> f64 {
    i64::try_from(value).map_or_else(|_| value as f64, |value| value as f64)
}

/// A number in text, as the field's type wants it.
#[inline]
fn number_in(field: &Field, bytes: &[u8]) -> Result<f64, Reason> {
    let bytes = bytes.trim_ascii();
    if bytes.is_empty() || bytes == b"null" {
        return Ok(f64::NAN);
    }
    if field.kind == FieldKind::Time {
        return time::parse(bytes, field.unit).map_err(|_| Reason::NotATime);
    }
    let value = number::parse(bytes)?;
    if field.kind == FieldKind::Integer && !number::is_exact_integer(bytes, value) {
        return Err(Reason::NotAnInteger);
    }
    checked(field, value * field.scale)
}

#[inline]
fn checked(field: &Field, value: f64) -> Result<f64, Reason> {
    if !value.is_finite() {
        return Err(Reason::OutOfRange);
    }
    // Through a whole number and back: without its instruction, `fract` is a call.
    let is_whole = value.abs() <= INTEGER_MAX && value as i64 as f64 == value;
    if field.kind == FieldKind::Integer && !is_whole {
        return Err(Reason::NotAnInteger);
    }
    Ok(value)
}

/// A part of the payload as text in it.
fn place_of(payload: &[u8], range: Range<usize>) -> Value<'_> {
    payload.get(range).map_or(Value::Missing, Value::Bytes)
}

// Rows are counted by bytes.
const _: () = assert!(BATCH_MAX == 256);

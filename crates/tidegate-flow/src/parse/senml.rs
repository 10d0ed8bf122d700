//! SenML packs (RFC 8428) in JSON and CBOR, and the form `{"e":[…],"bt":…}` with values as text.
//!
//! A record is a field by its base name and name in one. Its value is `v` plus the base value, or a sum, text, data or a truth; its time, the field
//! `@time`, is `t` plus the base time, each 0 where it is left out, which is now (section 4.5.3); that of the last record which is a field counts. Bases
//! hold from their record on; those next to `e` hold for all records in it. A record that names no field is skipped.
//!
//! A version above 10, versions that differ, and a label that ends with `_`, of which none is known, make the whole pack bad
//! (section 4.4).

use super::{
    Cells, RECORD_TIME, Value,
    cbor::{self, Item},
    float_of,
    json::{Reader, Str},
};
use crate::{
    bad::Reason,
    number::{self, INTEGER_MAX},
    spec::FieldKind,
    time,
};

/// The version of SenML that is known (section 4.1).
const VERSION: f64 = 10.0;

/// Times below this are relative.
const RELATIVE_BELOW: f64 = (1_u64 << 28) as f64;

/// The base values for the records to come.
struct Bases<'a> {
    name: &'a [u8],
    value: f64,
    sum: f64,
    time: Option<Time>,
    /// The version of the pack, from its first record on, which says it or means the one that is known.
    version: Option<f64>,
}

/// One record.
#[derive(Default)]
struct Record<'a> {
    name: &'a [u8],
    value: Option<Value<'a>>,
    /// Whether the value is one that a base value is added to: `v`, and no text, data or truth.
    is_number: bool,
    sum: Option<f64>,
    time: Option<Time>,
    /// The time as text, where it is no number.
    time_text: Option<Value<'a>>,
    /// Whether an array or an object stands where the value should.
    has_wrong_value: bool,
    /// Whether records within it are fields.
    has_fields: bool,
}

/// A time, or a part of one.
#[derive(Clone, Copy, Default)]
struct Time {
    value: f64,
    /// Times 10^9, where that is known exactly.
    billionths: Option<i128>,
}

impl Time {
    const NONE: Self = Self { value: 0.0, billionths: Some(0) };

    fn plus(self, other: Self) -> Self {
        let billionths = self.billionths.zip(other.billionths);
        let billionths = billionths.and_then(|(one, other)| one.checked_add(other));
        Self { value: self.value + other.value, billionths }
    }

    fn of(value: Value<'_>, cells: &Cells<'_, '_>) -> Option<Self> {
        let billionths = match value {
            Value::Missing | Value::Number(_) => None,
            Value::Exact(_, billionths) => Some(billionths),
            Value::Integer(value) => value.checked_mul(1_000_000_000),
            Value::Bytes(bytes) => time::billionths(bytes),
            Value::Scratch(start, bytes) => {
                time::billionths(&cells.batch.scratch[start..start + bytes])
            }
        };
        as_number(value, cells).map(|value| Self { value, billionths })
    }
}

impl Bases<'_> {
    const fn new() -> Self {
        Self { name: b"", value: 0.0, sum: 0.0, time: None, version: None }
    }

    /// A record says the version of its pack.
    fn set_version(&mut self, version: f64) -> Result<(), Reason> {
        check_version(version)?;
        match self.version.replace(version) {
            Some(other) if other != version => Err(Reason::Format),
            _ => Ok(()),
        }
    }
}

impl<'a> Record<'a> {
    fn put(&self, bases: &Bases<'a>, cells: &mut Cells<'_, '_>) {
        let is_field = self.put_value(bases, cells) || self.has_fields;
        // Times count where they are a field's, or the whole pack's.
        if is_field || (self.value.is_none() && self.sum.is_none()) {
            self.put_time(bases, is_field, cells);
        }
    }

    /// Gives the field that it names its value; whether there is one.
    fn put_value(&self, bases: &Bases<'a>, cells: &mut Cells<'_, '_>) -> bool {
        let field = cells.find(bases.name, self.name);
        if let Some(index) = field.filter(|_| self.has_wrong_value) {
            cells.fail(Reason::NotANumber, index);
        } else if let Some(index) = field {
            let number = |value| as_number(value, cells).map(|value| (value, bases.value));
            let sum = match (self.value, self.sum) {
                (Some(value), _) if self.is_number && bases.value != 0.0 => number(value),
                (None, Some(sum)) => Some((sum, bases.sum)),
                _ => None,
            };
            match (sum, self.value) {
                (Some((value, base)), _) => put_sum(index, value, base, cells),
                (None, Some(value)) => cells.put(index, value),
                (None, None) => {}
            }
        }
        field.is_some()
    }

    fn put_time(&self, bases: &Bases<'a>, is_field: bool, cells: &mut Cells<'_, '_>) {
        let text = self.time_text;
        let time = match (self.time, bases.time) {
            (None, None) if !is_field => None,
            (time, base) => Some(time.unwrap_or(Time::NONE).plus(base.unwrap_or(Time::NONE))),
        };
        if (text.is_some() || time.is_some())
            && let Some(index) = cells.find(b"", RECORD_TIME.as_bytes())
        {
            let absolute = |Time { value, billionths }| match billionths {
                // Section 4.5.3: less than 2^28 seconds is said from now on.
                _ if value < RELATIVE_BELOW => {
                    Value::Number((cells.now + value) * cells.fields[index].unit.per_second())
                }
                Some(billionths) => Value::Exact(value, billionths),
                None => Value::Number(value),
            };
            let value = text.or(time.map(absolute));
            cells.put(index, value.unwrap_or(Value::Missing));
        }
    }
}

/// Gives a field a value and its base in one. As an `integer` none of them may be one that others round to.
fn put_sum(index: usize, value: f64, base: f64, cells: &mut Cells<'_, '_>) {
    let sum = value + base;
    let largest = value.abs().max(base.abs()).max(sum.abs());
    if largest >= INTEGER_MAX && cells.fields[index].kind == FieldKind::Integer {
        return cells.fail(Reason::NotAnInteger, index);
    }
    cells.put(index, Value::Number(sum));
}

/// A pack: an array of records, one record, or an object with records under `e`.
pub(super) fn read_json(payload: &[u8], cells: &mut Cells<'_, '_>) -> Result<(), Reason> {
    let mut reader = Reader::new(payload);
    if reader.peek() == Some(b'[') {
        let mut bases = Bases::new();
        reader.array(cells, |reader, cells| json_record(reader, cells, &mut bases))?;
    } else {
        json_object(&mut reader, cells)?;
    }
    reader.end()
}

fn json_record<'a>(
    reader: &mut Reader<'a>,
    cells: &mut Cells<'_, '_>,
    bases: &mut Bases<'a>,
) -> Result<(), Reason> {
    let mut record = Record::default();
    reader.object(cells, |reader, cells, name| {
        json_member(reader, cells, name, &mut record, bases)
    })?;
    bases.version.get_or_insert(VERSION);
    record.put(bases, cells);
    Ok(())
}

/// One record, or what all records under `e` have in common, before them or behind.
fn json_object(reader: &mut Reader<'_>, cells: &mut Cells<'_, '_>) -> Result<(), Reason> {
    let (mut record, mut bases) = (Record::default(), Bases::new());
    let mut entries: Option<Reader<'_>> = None;
    let (mut time, mut is_behind) = (None, false);
    reader.object(cells, |reader, cells, name| {
        if matches!(name, Str::Plain(b"e")) && reader.peek() == Some(b'[') {
            if entries.replace(*reader).is_some() {
                return Err(Reason::Format);
            }
            return json_entries(reader, cells, &bases, &mut time, &mut record.has_fields);
        }
        is_behind |= entries.is_some() && matches!(name, Str::Plain(b"bn" | b"bv" | b"bs"));
        json_member(reader, cells, name, &mut record, &mut bases)
    })?;
    // They were read without a base that stood behind them.
    if let Some(mut entries) = entries.filter(|_| is_behind) {
        cells.forget();
        time = None;
        json_entries(&mut entries, cells, &bases, &mut time, &mut record.has_fields)?;
    }
    record.time = record.time.or(time);
    record.put(&bases, cells);
    Ok(())
}

/// The records under `e`; `time` is that of the last one which is a field, without its base.
fn json_entries<'a>(
    reader: &mut Reader<'a>,
    cells: &mut Cells<'_, '_>,
    bases: &Bases<'a>,
    time: &mut Option<Time>,
    has_fields: &mut bool,
) -> Result<(), Reason> {
    reader.array(cells, |reader, cells| {
        let mut record = Record::default();
        let mut inner = Bases { version: bases.version, ..Bases::new() };
        reader.object(cells, |reader, cells, name| match name {
            // The standard does not say whether it would hold for the records behind it.
            Str::Plain(b"bn" | b"bt" | b"bv" | b"bs") => Err(Reason::Format),
            name => json_member(reader, cells, name, &mut record, &mut inner),
        })?;
        if record.time_text.is_some() {
            return Err(Reason::Format);
        }
        if record.put_value(bases, cells) {
            *has_fields = true;
            *time = record.time;
        }
        Ok(())
    })
}

/// Reads a member of a record, or skips it. A call for each would make reading slower by a fifth.
#[inline(always)]
fn json_member<'a>(
    reader: &mut Reader<'a>,
    cells: &mut Cells<'_, '_>,
    name: Str<'a>,
    record: &mut Record<'a>,
    bases: &mut Bases<'a>,
) -> Result<(), Reason> {
    let name = match name {
        Str::Plain(name) => name,
        Str::Escaped(start, bytes) => {
            check_label(&cells.batch.scratch[start..start + bytes])?;
            return reader.skip();
        }
    };
    match name {
        b"n" => record.name = json_name(reader, cells)?,
        b"bn" => bases.name = json_name(reader, cells)?,
        b"v" | b"vs" | b"sv" | b"vb" | b"vd" => {
            record.is_number = name == b"v";
            record.value = reader.value(cells)?;
            record.has_wrong_value |= record.value.is_none();
        }
        b"s" => record.sum = Some(json_number(reader, cells)?),
        b"bv" => bases.value = json_number(reader, cells)?,
        b"bs" => bases.sum = json_number(reader, cells)?,
        b"bver" => bases.set_version(json_number(reader, cells)?)?,
        b"t" | b"bt" => {
            let value = reader.value(cells)?.ok_or(Reason::Format)?;
            match (Time::of(value, cells), name) {
                (Some(time), b"bt") => bases.time = Some(time),
                (Some(time), _) => record.time = Some(time),
                (None, _) => record.time_text = Some(value),
            }
        }
        _ => {
            check_label(name)?;
            reader.skip()?;
        }
    }
    Ok(())
}

/// A label that is not known: section 4.4 has it passed over unless it ends with `_`.
fn check_label(label: &[u8]) -> Result<(), Reason> {
    if label.ends_with(b"_") { Err(Reason::Extension) } else { Ok(()) }
}

/// A base version: a positive whole number (section 4.1), and no later one than is known (section 4.4).
fn check_version(version: f64) -> Result<(), Reason> {
    match version {
        _ if version > VERSION => Err(Reason::Extension),
        _ if version >= 1.0 && f64::from(version as u8) == version => Ok(()),
        _ => Err(Reason::Format),
    }
}

fn json_name<'a>(reader: &mut Reader<'a>, cells: &mut Cells<'_, '_>) -> Result<&'a [u8], Reason> {
    match reader.string(cells)? {
        Str::Plain(name) => Ok(name),
        // Names of SenML are letters, digits and `-:./_` (section 4.5.1): one with escapes matches no field.
        Str::Escaped(..) => Ok(b"\0"),
    }
}

fn json_number(reader: &mut Reader<'_>, cells: &mut Cells<'_, '_>) -> Result<f64, Reason> {
    let value = reader.value(cells)?.ok_or(Reason::Format)?;
    as_number(value, cells).ok_or(Reason::Format)
}

fn as_number(value: Value<'_>, cells: &Cells<'_, '_>) -> Option<f64> {
    match value {
        Value::Missing => None,
        Value::Number(value) | Value::Exact(value, _) => Some(value),
        Value::Integer(value) => Some(float_of(value)),
        Value::Bytes(bytes) => number::parse(bytes).ok(),
        Value::Scratch(start, bytes) => {
            number::parse(&cells.batch.scratch[start..start + bytes]).ok()
        }
    }
}

/// Labels of SenML in CBOR (RFC 8428, section 6).
mod label {
    pub(super) const BASE_VERSION: i128 = -1;
    pub(super) const BASE_NAME: i128 = -2;
    pub(super) const BASE_TIME: i128 = -3;
    pub(super) const BASE_VALUE: i128 = -5;
    pub(super) const BASE_SUM: i128 = -6;
    pub(super) const NAME: i128 = 0;
    pub(super) const VALUE: i128 = 2;
    pub(super) const STRING_VALUE: i128 = 3;
    pub(super) const BOOLEAN_VALUE: i128 = 4;
    pub(super) const SUM: i128 = 5;
    pub(super) const TIME: i128 = 6;
    pub(super) const DATA_VALUE: i128 = 8;
}

/// A pack in CBOR: an array of maps.
pub(super) fn read_cbor(payload: &[u8], cells: &mut Cells<'_, '_>) -> Result<(), Reason> {
    let mut reader = cbor::Reader::new(payload);
    let mut bases = Bases::new();
    let Item::Array(mut records) = reader.item()? else { return Err(Reason::Format) };
    while reader.more(&mut records)? {
        let Item::Map(mut members) = reader.item()? else { return Err(Reason::Format) };
        let mut record = Record::default();
        while reader.more(&mut members)? {
            let name = match reader.item()? {
                Item::Integer(label) => label,
                // Extensions have names of text.
                Item::Text(label) => {
                    check_label(label)?;
                    reader.skip()?;
                    continue;
                }
                _ => return Err(Reason::Format),
            };
            match name {
                label::NAME => record.name = cbor_text(&mut reader)?,
                label::BASE_NAME => bases.name = cbor_text(&mut reader)?,
                label::VALUE | label::STRING_VALUE | label::BOOLEAN_VALUE | label::DATA_VALUE => {
                    record.is_number = name == label::VALUE;
                    record.value = reader.value()?;
                    record.has_wrong_value |= record.value.is_none();
                }
                label::SUM => record.sum = Some(cbor_number(&mut reader)?),
                label::BASE_VALUE => bases.value = cbor_number(&mut reader)?,
                label::BASE_SUM => bases.sum = cbor_number(&mut reader)?,
                label::BASE_VERSION => bases.set_version(cbor_number(&mut reader)?)?,
                label::TIME => record.time = Some(cbor_time(&mut reader, cells)?),
                label::BASE_TIME => bases.time = Some(cbor_time(&mut reader, cells)?),
                _ => reader.skip()?,
            }
        }
        bases.version.get_or_insert(VERSION);
        record.put(&bases, cells);
    }
    reader.end()
}

fn cbor_text<'a>(reader: &mut cbor::Reader<'a>) -> Result<&'a [u8], Reason> {
    match reader.item()? {
        Item::Text(text) => Ok(text),
        _ => Err(Reason::Format),
    }
}

fn cbor_time(reader: &mut cbor::Reader<'_>, cells: &Cells<'_, '_>) -> Result<Time, Reason> {
    match reader.value()? {
        Some(value @ (Value::Number(_) | Value::Integer(_) | Value::Exact(..))) => {
            Time::of(value, cells).ok_or(Reason::Format)
        }
        _ => Err(Reason::Format),
    }
}

fn cbor_number(reader: &mut cbor::Reader<'_>) -> Result<f64, Reason> {
    match reader.value()? {
        Some(Value::Number(value) | Value::Exact(value, _)) => Ok(value),
        Some(Value::Integer(value)) => Ok(float_of(value)),
        _ => Err(Reason::Format),
    }
}

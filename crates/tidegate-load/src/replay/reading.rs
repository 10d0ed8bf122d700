//! Meaning of the columns of a trace, and one row by that: its time and its topic.

use std::{borrow::Cow, fmt};

use super::{
    Column, Format, Options, Pace, Payload, Recognised, ReplayError, RowFault, Template, TimeUnit,
    csv::{self, Field},
    senml::Pack,
    shown, template,
    time::{self, TimeFault},
};

/// Names that columns of times have, as far as they are looked for.
const TIME_NAMES: [&str; 8] =
    ["time", "timestamp", "ts", "datetime", "date_time", "date", "time_ms", "timestamp_ms"];
/// Names that an error lists.
const LISTED_MAX: usize = 12;

/// How rows of a trace are read.
#[derive(Debug)]
pub(crate) struct Reading {
    format: Format,
    delimiter: u8,
    /// None where times do not matter.
    time: Option<(Source, TimeUnit)>,
    topic: Template,
    /// Where the columns of the topic stand.
    places: Vec<Place>,
    payload: Payload,
}

/// Where the time stands.
#[derive(Clone, Debug)]
enum Source {
    Column(Place),
    /// Before the first comma of RIoTBench's rows.
    First,
    /// In the records of SenML.
    Records,
}

/// A column where it was found.
#[derive(Clone, Debug)]
struct Place {
    column: Column,
    /// In CSV, from 0.
    index: usize,
}

/// A row, taken apart as far as it is needed.
#[derive(Debug)]
pub(crate) struct Parsed<'a> {
    row: &'a [u8],
    fields: &'a [Field],
    pack: Option<Pack>,
}

/// Columns that could be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known(Vec<String>);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.0.iter().take(LISTED_MAX).enumerate() {
            write!(f, "{}{name:?}", if at > 0 { ", " } else { "" })?;
        }
        match self.0.len().saturating_sub(LISTED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The first rows of a trace, with their lines, as far as they have been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning<'a> {
    pub(crate) trace: &'a str,
    pub(crate) rows: &'a [(u64, Vec<u8>)],
    /// There are no more, or no more will be looked at.
    pub(crate) is_all: bool,
}

/// How a trace is written, as its beginning looks: by its first line that is not empty.
pub(crate) fn recognise(beginning: &[u8]) -> Format {
    let text = beginning.trim_ascii_start();
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    if let Some(b'[' | b'{') = line.first() {
        return Format::Senml;
    }
    match split_time(line) {
        Some(_) => Format::Riotbench,
        None => Format::Csv,
    }
}

/// The two parts of a row of RIoTBench's.
fn split_time(row: &[u8]) -> Option<(&[u8], &[u8])> {
    let comma = row.iter().position(|&byte| byte == b',')?;
    let (time, rest) = (&row[..comma], row[comma + 1..].trim_ascii_start());
    rest.starts_with(b"{").then_some((time, rest))
}

impl Reading {
    /// Finds out how rows are read, and whether the first one is a line of names; none if that needs more rows.
    ///
    /// # Errors
    /// `NoColumn`, `NoNames`, `NoTime` and `UnknownUnit` of [`ReplayError`].
    pub(crate) fn begin(
        options: &Options,
        format: Format,
        beginning: Beginning<'_>,
    ) -> Result<Option<(Self, bool)>, ReplayError> {
        let Some((_, first)) = beginning.rows.first() else { return Ok(None) };
        let names = match format {
            Format::Csv => header(options, first),
            Format::Senml | Format::Riotbench => None,
        };
        let has_header = names.is_some();
        let trace = beginning.trace;
        let find = |column: &Column| place(trace, format, names.as_deref(), column);
        let mut reading = Self {
            format,
            delimiter: options.delimiter,
            time: None,
            topic: options.topic.clone(),
            places: options.topic.columns().iter().map(find).collect::<Result<_, _>>()?,
            payload: options.payload,
        };
        let explicit = options.time.as_ref().map(find).transpose()?.map(Source::Column);
        let needs_time = matches!(options.pace, Pace::Own(_)) || explicit.is_some();
        if !needs_time {
            return Ok(Some((reading, has_header)));
        }
        let rows = &beginning.rows[usize::from(has_header)..];
        let source = match explicit.or_else(|| reading.usual(names.as_deref())) {
            Some(source) => Some(source),
            None => rows.iter().find_map(|(_, row)| reading.plausible(row)),
        };
        let Some(source) = source else {
            let no_time = ReplayError::NoTime { trace: trace.to_owned() };
            return if beginning.is_all { Err(no_time) } else { Ok(None) };
        };
        let recognised = || rows.iter().find_map(|(_, row)| reading.recognise(row, &source));
        let Some(unit) = options.time_unit.or_else(recognised) else {
            return match rows.first() {
                Some((line, row)) if beginning.is_all => {
                    Err(reading.unknown_unit(trace, *line, row, &source))
                }
                None if beginning.is_all => Err(ReplayError::NoRow { trace: trace.to_owned() }),
                _ => Ok(None),
            };
        };
        reading.time = Some((source, unit));
        Ok(Some((reading, has_header)))
    }

    /// Format and times, as they were recognised.
    pub(crate) fn recognised(&self, has_header: bool) -> Recognised {
        let name = |source: &Source| match source {
            Source::Column(place) => place.column.to_string(),
            Source::First => "before the comma".to_owned(),
            Source::Records => "of the records".to_owned(),
        };
        let time = self.time.as_ref().map(|(source, unit)| (name(source), *unit));
        Recognised { format: self.format, has_header, time }
    }

    /// Where the time is by format or name.
    fn usual(&self, names: Option<&[String]>) -> Option<Source> {
        match self.format {
            Format::Senml => Some(Source::Records),
            Format::Riotbench => Some(Source::First),
            Format::Csv => {
                let names = names?;
                let is_called =
                    |wanted: &&str| names.iter().position(|name| name.eq_ignore_ascii_case(wanted));
                let index = TIME_NAMES.iter().find_map(is_called)?;
                let column = Column::Name(names[index].as_str().into());
                Some(Source::Column(Place { column, index }))
            }
        }
    }

    /// The first column of a row of CSV that looks like a time.
    fn plausible(&self, row: &[u8]) -> Option<Source> {
        let mut fields = Vec::new();
        csv::split(row, self.delimiter, &mut fields).ok()?;
        let index = fields.iter().position(|field| time::is_plausible(&field.value(row)))?;
        Some(Source::Column(Place { column: Column::Number(index + 1), index }))
    }

    fn recognise(&self, row: &[u8], source: &Source) -> Option<TimeUnit> {
        let mut fields = Vec::new();
        let parsed = self.split(row, &mut fields, true).ok()?;
        match source {
            Source::Records => parsed.pack.as_ref()?.recognise(),
            Source::First => time::recognise(split_time(row)?.0),
            Source::Column(place) => time::recognise(&parsed.value(place).ok()?),
        }
    }

    fn unknown_unit(&self, trace: &str, line: u64, row: &[u8], source: &Source) -> ReplayError {
        let mut fields = Vec::new();
        let trace = trace.to_owned();
        let found = self.split(row, &mut fields, true).and_then(|parsed| match source {
            Source::Column(place) => Ok((place.column.to_string(), shown(&parsed.value(place)?))),
            Source::First => {
                let (time, _) = split_time(row).ok_or(RowFault::NotRiotbench)?;
                Ok(("column 1".to_owned(), shown(time)))
            }
            Source::Records => Err(RowFault::NoRecordTime),
        });
        match found {
            Ok((column, text)) => ReplayError::UnknownUnit { trace, line, column, text },
            Err(fault) => ReplayError::Bad { trace, line, fault },
        }
    }

    /// Takes a row apart.
    ///
    /// # Errors
    /// Any of [`RowFault`] that is of the row as a whole.
    pub(crate) fn parse<'a>(
        &self,
        row: &'a [u8],
        fields: &'a mut Vec<Field>,
    ) -> Result<Parsed<'a>, RowFault> {
        let by_name = matches!(self.time, Some((Source::Column(_) | Source::Records, _)));
        self.split(row, fields, by_name || !self.places.is_empty())
    }

    fn split<'a>(
        &self,
        row: &'a [u8],
        fields: &'a mut Vec<Field>,
        needs_columns: bool,
    ) -> Result<Parsed<'a>, RowFault> {
        fields.clear();
        let mut pack = None;
        match self.format {
            Format::Csv if needs_columns => csv::split(row, self.delimiter, fields)?,
            Format::Senml if needs_columns => pack = Some(Pack::parse(row)?),
            Format::Riotbench => {
                let (_, message) = split_time(row).ok_or(RowFault::NotRiotbench)?;
                if needs_columns {
                    pack = Some(Pack::parse(message)?);
                }
            }
            Format::Csv | Format::Senml => {}
        }
        Ok(Parsed { row, fields, pack })
    }

    /// Its time in nanoseconds; none where times do not matter.
    ///
    /// # Errors
    /// `Missing`, `NotTime`, `TimeRange` and `NoRecordTime` of [`RowFault`].
    pub(crate) fn time(&self, parsed: &Parsed<'_>) -> Result<Option<i64>, RowFault> {
        let Some((source, unit)) = &self.time else { return Ok(None) };
        let read = |column: &dyn fmt::Display, text: &[u8]| {
            let wrong = |fault: TimeFault| RowFault::of_time(column, text, *unit, fault);
            time::parse(text, *unit).map_err(wrong)
        };
        match source {
            Source::Column(place) => read(&place.column, &parsed.value(place)?),
            Source::First => {
                let (text, _) = split_time(parsed.row).ok_or(RowFault::NotRiotbench)?;
                read(&"column 1", text)
            }
            Source::Records => {
                parsed.pack.as_ref().map_or(Err(RowFault::NoRecordTime), |pack| pack.time(*unit))
            }
        }
        .map(Some)
    }

    /// Puts the topic that a device sends the row to into `topic`.
    ///
    /// # Errors
    /// `Missing`, `NotText`, `EmptyTopic` and `LongTopic` of [`RowFault`].
    pub(crate) fn topic(
        &self,
        parsed: &Parsed<'_>,
        device: u32,
        topic: &mut String,
    ) -> Result<(), RowFault> {
        self.topic.fill(device, topic, |at, topic| {
            let place = &self.places[at];
            let value = parsed.value(place)?;
            let not_text = |_| RowFault::NotText { column: place.column.clone() };
            template::push_value(std::str::from_utf8(&value).map_err(not_text)?, topic);
            Ok(())
        })
    }

    /// The part of the row that is sent.
    pub(crate) fn payload<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        match (self.payload, self.format) {
            (Payload::Message, Format::Riotbench) => {
                split_time(row).map_or(row, |(_, message)| message)
            }
            _ => row,
        }
    }
}

impl Parsed<'_> {
    fn value(&self, place: &Place) -> Result<Cow<'_, [u8]>, RowFault> {
        let missing = |columns| RowFault::Missing { column: place.column.clone(), columns };
        let Some(pack) = &self.pack else {
            let field = self.fields.get(place.index);
            return Ok(field.ok_or_else(|| missing(self.fields.len()))?.value(self.row));
        };
        let value = match &place.column {
            Column::Name(name) => pack.by_name(name),
            Column::Number(number) => pack.by_number(*number),
        };
        match value.ok_or_else(|| missing(pack.len()))? {
            Cow::Borrowed(text) => Ok(Cow::Borrowed(text.as_bytes())),
            Cow::Owned(text) => Ok(Cow::Owned(text.into_bytes())),
        }
    }
}

/// The names in the first row of CSV, if it is a line of names.
fn header(options: &Options, row: &[u8]) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    csv::split(row, options.delimiter, &mut fields).ok()?;
    let name = |field: &Field| String::from_utf8_lossy(field.value(row).trim_ascii()).into_owned();
    let names: Vec<_> = fields.iter().map(name).collect();
    let is_value = |name: &String| name.is_empty() || time::recognise(name.as_bytes()).is_some();
    let is_header = options.header.unwrap_or_else(|| !names.iter().any(is_value));
    is_header.then_some(names)
}

fn place(
    trace: &str,
    format: Format,
    names: Option<&[String]>,
    column: &Column,
) -> Result<Place, ReplayError> {
    let index = match (format, column, names) {
        (Format::Csv, Column::Name(wanted), Some(names)) => {
            let found = names.iter().position(|name| **name == **wanted);
            found.ok_or_else(|| ReplayError::NoColumn {
                trace: trace.to_owned(),
                column: column.clone(),
                known: Known(names.to_vec()),
            })?
        }
        (Format::Csv, Column::Name(_), None) => {
            let (trace, column) = (trace.to_owned(), column.clone());
            return Err(ReplayError::NoNames { trace, column });
        }
        (_, Column::Number(number), _) => number.saturating_sub(1),
        // Each row of SenML has names of its own.
        (Format::Senml | Format::Riotbench, Column::Name(_), _) => 0,
    };
    Ok(Place { column: column.clone(), index })
}

//! Batches and their lines.

use std::{borrow::Cow, str::FromStr};

use tidegate_message::Instant;

use super::{
    LineError, LineProblem, Text, Value,
    scan::{
        OF_MEASUREMENT, OF_NAME, blanks_end, is_line_end, lead_end, name_end, text_end, word_end,
    },
};

/// Longest line.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Most tags of a line.
pub const TAGS_MAX: usize = 256;
/// Most fields of a line.
pub const FIELDS_MAX: usize = 512;

/// The lines of a batch, in order; blank lines and comments are left out.
#[derive(Debug)]
pub struct Batch<'a> {
    rest: &'a [u8],
    line: u64,
    precision: Precision,
    /// Names of a line's tags or fields, to find those that stand twice.
    names: Vec<&'a [u8]>,
}

impl<'a> Batch<'a> {
    /// The lines of `bytes`, whose timestamps are in `precision`. A byte order mark before a line is no part of it, on any line:
    /// batches are files that were joined, too.
    pub fn new(bytes: &'a [u8], precision: Precision) -> Self {
        Self { rest: bytes, line: 1, precision, names: Vec::new() }
    }

    /// Reads the line at the beginning of `rest`, which is not blank; returns it and how many bytes it has, without its end.
    fn line(&mut self) -> Result<(Line<'a>, usize), (usize, LineProblem)> {
        // Two bytes more than a line may have: enough to see that it ends, or that it is too long.
        let bytes = &self.rest[..self.rest.len().min(LINE_BYTES_MAX + 2)];
        let read = self.read(bytes);
        let reached = match read {
            Ok((_, end)) => end,
            Err((at, LineProblem::TextOpen)) if text_end(bytes, at + 1).is_none() => bytes.len(),
            Err((at, _)) => at,
        };
        if reached > LINE_BYTES_MAX { Err((0, LineProblem::TooLong)) } else { read }
    }

    fn read(&mut self, bytes: &'a [u8]) -> Result<(Line<'a>, usize), (usize, LineProblem)> {
        let measurement = name_end(bytes, 0, OF_MEASUREMENT);
        if measurement == 0 {
            return Err((0, LineProblem::NoMeasurement));
        }
        let tags = self.tags(bytes, measurement)?;
        let fields = blanks_end(bytes, tags);
        if is_line_end(bytes, fields) {
            return Err((fields, LineProblem::NoFields));
        }
        let fields_end = self.fields(bytes, fields)?;
        let word = blanks_end(bytes, fields_end);
        let word_end = word_end(bytes, word);
        let end = blanks_end(bytes, word_end);
        if !is_line_end(bytes, end) {
            return Err((word_end, LineProblem::AfterTimestamp));
        }
        let text = str::from_utf8(&bytes[..end])
            .map_err(|error| (error.valid_up_to(), LineProblem::NotUtf8))?;
        let timestamp = match &text[word..word_end] {
            "" => None,
            word_text => {
                let timestamp = self.precision.instant(word_text);
                Some(timestamp.map_err(|problem| (word, problem))?)
            }
        };
        let line =
            Line { text, number: self.line, measurement, tags, fields, fields_end, timestamp };
        Ok((line, end))
    }

    /// Checks the tags that begin at `at`, each with a comma before it; returns where they end.
    fn tags(&mut self, bytes: &'a [u8], mut at: usize) -> Result<usize, (usize, LineProblem)> {
        self.names.clear();
        while bytes.get(at) == Some(&b',') {
            let name = at + 1;
            let name_ends = name_end(bytes, name, OF_NAME);
            let is_equals = bytes.get(name_ends) == Some(&b'=');
            if name_ends == name {
                return Err((name, LineProblem::NoTagName));
            }
            let value = name_ends + 1;
            let end = if is_equals { name_end(bytes, value, OF_NAME) } else { value };
            if end == value {
                return Err((name, LineProblem::NoTagValue));
            }
            if bytes.get(end) == Some(&b'=') {
                return Err((end, LineProblem::TagEquals));
            }
            let name = (name, &bytes[name..name_ends]);
            self.add(name, TAGS_MAX, LineProblem::TooManyTags, LineProblem::TagRepeated)?;
            at = end;
        }
        Ok(at)
    }

    /// Checks the fields that begin at `at`; returns where they end.
    fn fields(&mut self, bytes: &'a [u8], mut at: usize) -> Result<usize, (usize, LineProblem)> {
        self.names.clear();
        loop {
            let name = at;
            let name_ends = name_end(bytes, name, OF_NAME);
            if name_ends == name {
                return Err((name, LineProblem::NoFieldName));
            }
            let value = name_ends + 1;
            let is_equals = bytes.get(name_ends) == Some(&b'=');
            let end = match bytes.get(value) {
                Some(b'"') if is_equals => {
                    let end = text_end(bytes, value + 1).ok_or((value, LineProblem::TextOpen))? + 1;
                    if word_end(bytes, end) > end {
                        // A quote that closes it lines below was more likely to open another text.
                        let is_of_line = !bytes[value..end].contains(&b'\n');
                        return Err(match is_of_line {
                            true => (end, LineProblem::AfterText),
                            false => (value, LineProblem::TextOpen),
                        });
                    }
                    end
                }
                Some(_) if is_equals => {
                    let end = word_end(bytes, value);
                    if end == value {
                        return Err((name, LineProblem::NoFieldValue));
                    }
                    let word = str::from_utf8(&bytes[value..end]);
                    let word = word.map_err(|_| (value, LineProblem::Value))?;
                    Value::of_word(word).map_err(|problem| (value, problem))?;
                    end
                }
                _ => return Err((name, LineProblem::NoFieldValue)),
            };
            let name = (name, &bytes[name..name_ends]);
            self.add(name, FIELDS_MAX, LineProblem::TooManyFields, LineProblem::FieldRepeated)?;
            if bytes.get(end) != Some(&b',') {
                return Ok(end);
            }
            at = end + 1;
        }
    }

    fn add(
        &mut self,
        (at, name): (usize, &'a [u8]),
        count_max: usize,
        too_many: LineProblem,
        repeated: LineProblem,
    ) -> Result<(), (usize, LineProblem)> {
        // A name has one way to be written, so that equal names have equal bytes.
        if self.names.contains(&name) {
            return Err((at, repeated));
        }
        if self.names.len() >= count_max {
            return Err((at, too_many));
        }
        self.names.push(name);
        Ok(())
    }

    /// Continues after the end of the line that is at `at` or after it.
    fn skip_line(&mut self, at: usize) {
        let end = self.rest[at..].iter().position(|byte| *byte == b'\n');
        let end = end.map_or(self.rest.len(), |end| at + end + 1);
        self.line += count_lines(&self.rest[..end]);
        self.rest = &self.rest[end..];
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Result<Line<'a>, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let blanks = lead_end(self.rest);
            let begin = self.rest;
            match &begin[blanks..] {
                [] => return None,
                [b'#' | b'\n', ..] | [b'\r'] | [b'\r', b'\n', ..] => self.skip_line(blanks),
                line => {
                    self.rest = line;
                    let item = match self.line() {
                        Ok((line, end)) => {
                            self.skip_line(end);
                            Ok(line)
                        }
                        Err((at, problem)) => {
                            let before = &begin[..blanks + at];
                            let error = LineError {
                                line: self.line + count_lines(before),
                                column: column(before),
                                problem,
                            };
                            self.skip_line(0);
                            Err(error)
                        }
                    };
                    return Some(item);
                }
            }
        }
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Which character of its line comes after `before`.
fn column(before: &[u8]) -> u64 {
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    String::from_utf8_lossy(&before[start..]).chars().count() as u64 + 1
}

/// One line, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    text: &'a str,
    number: u64,
    /// Where each part ends or begins.
    measurement: usize,
    tags: usize,
    fields: usize,
    fields_end: usize,
    timestamp: Option<Instant>,
}

impl<'a> Line<'a> {
    /// All of it, without its end.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Which line of the batch it is, or begins with, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The measurement.
    pub fn measurement(&self) -> Text<'a> {
        Text { raw: &self.text[..self.measurement], escaped: OF_MEASUREMENT }
    }

    /// Names and values of the tags, in their order.
    pub fn tags(&self) -> impl Iterator<Item = (Text<'a>, Text<'a>)> + use<'a> {
        let (text, tags) = (self.text, self.tags);
        let mut at = self.measurement;
        std::iter::from_fn(move || {
            if at >= tags {
                return None;
            }
            let name = at + 1;
            let name_ends = name_end(text.as_bytes(), name, OF_NAME);
            at = name_end(text.as_bytes(), name_ends + 1, OF_NAME);
            let part = |from, to| Text { raw: &text[from..to], escaped: OF_NAME };
            Some((part(name, name_ends), part(name_ends + 1, at)))
        })
    }

    /// The value of one tag.
    pub fn tag(&self, name: &str) -> Option<Text<'a>> {
        self.tags().find(|(found, _)| *found == *name).map(|(_, value)| value)
    }

    /// Names and values of the fields, in their order; at least one.
    pub fn fields(&self) -> impl Iterator<Item = (Text<'a>, Value<'a>)> + use<'a> {
        let (text, fields_end) = (self.text, self.fields_end);
        let mut at = self.fields;
        std::iter::from_fn(move || {
            if at >= fields_end {
                return None;
            }
            let name_ends = name_end(text.as_bytes(), at, OF_NAME);
            let name = Text { raw: &text[at..name_ends], escaped: OF_NAME };
            let (value, end) = Value::at(text, name_ends + 1);
            at = end + 1;
            Some((name, value))
        })
    }

    /// The value of one field.
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        self.fields().find(|(found, _)| *found == *name).map(|(_, value)| value)
    }

    /// When it was measured, if it says so.
    pub fn timestamp(&self) -> Option<Instant> {
        self.timestamp
    }

    /// All of it, without its end, with its time in nanoseconds, which is what a line means that comes without a precision; all else
    /// is as it was written.
    pub fn text_in_nanoseconds(&self, precision: Precision) -> Cow<'a, str> {
        match self.timestamp.filter(|_| precision != Precision::Nanoseconds) {
            None => Cow::Borrowed(self.text),
            Some(timestamp) => {
                let word = blanks_end(self.text.as_bytes(), self.fields_end);
                Cow::Owned(format!("{}{}", &self.text[..word], timestamp.as_nanos()))
            }
        }
    }
}

/// The unit of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// `ns`
    #[default]
    Nanoseconds,
    /// `us`
    Microseconds,
    /// `ms`
    Milliseconds,
    /// `s`
    Seconds,
}

impl Precision {
    /// Nanoseconds in one of them.
    pub fn nanos(self) -> i64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1_000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
        }
    }

    fn instant(self, text: &str) -> Result<Instant, LineProblem> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(LineProblem::Timestamp);
        }
        let count = text.parse::<i64>().ok().and_then(|count| count.checked_mul(self.nanos()));
        count.map(Instant::from_nanos).ok_or(LineProblem::TimestampRange)
    }
}

/// `ns`, `us`, `ms` or `s`.
impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(text: &str) -> Result<Self, UnknownPrecision> {
        match text {
            "ns" => Ok(Self::Nanoseconds),
            "us" => Ok(Self::Microseconds),
            "ms" => Ok(Self::Milliseconds),
            "s" => Ok(Self::Seconds),
            _ => Err(UnknownPrecision),
        }
    }
}

/// A precision is asked for that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a precision is ns, us, ms or s")]
pub struct UnknownPrecision;

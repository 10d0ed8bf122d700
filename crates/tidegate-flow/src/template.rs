//! Topics and payloads that flows make: templates, JSON, CSV and SenML from fields.
//!
//! Always true: a rendered topic is a valid topic name, or is not published; JSON is valid JSON, whatever the fields hold. A template for
//! a payload that begins as a document of JSON does is one: a text between quotes there ends at the quotes of the template.

use std::io::Write as _;

use tidegate_message::check_topic_name;

use crate::{
    batch::{Batch, Column},
    message::{Message, OUTPUT_BYTES_MAX},
    spec::PayloadFormat,
    time,
};

/// Most levels of a topic that is made.
const LEVELS_MAX: usize = 128;

/// Text with places for what a message holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Literal(Box<str>),
    Topic,
    Level(usize),
    Field {
        column: Column,
        decimals: Option<usize>,
    },
    /// Milliseconds since the Unix epoch.
    Now,
    /// One of the others, between the quotes of a JSON text.
    Quoted(Box<Self>),
}

/// The form of a payload.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Template(Template),
    Fields { format: PayloadFormat, fields: Vec<(Box<str>, Column)> },
}

/// The values to fill a template from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) message: &'a Message<'a>,
    pub(crate) row: u8,
    pub(crate) fixed: &'a [u8],
    pub(crate) now_millis: i64,
}

impl Template {
    /// Reads a template: `{topic}`, `{level:N}` (from 0), `{field:NAME}`, `{field:NAME:DECIMALS}`, `{flow}`, `{now}`; `{{` and `}}`
    /// are braces.
    pub(crate) fn parse(
        text: &str,
        flow: &str,
        column_of: impl Fn(&str) -> Option<Column>,
    ) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let found = &rest[at..];
            if let Some(brace) = ["{{", "}}"].into_iter().find(|brace| found.starts_with(brace)) {
                literal.push_str(&brace[..1]);
                rest = &found[2..];
                continue;
            }
            let inside = found.strip_prefix('{').and_then(|found| found.split_once('}'));
            let Some((place, after)) = inside else { return Err(TemplateError::Brace) };
            rest = after;
            if place == "flow" {
                literal.push_str(flow);
                continue;
            }
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal).into()));
            }
            parts.push(Part::parse(place, &column_of)?);
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.into()));
        }
        Ok(Self { parts })
    }

    /// The template of a payload. Where that is JSON, what a place between quotes comes to is escaped (RFC 8259, 7).
    pub(crate) fn of_payload(mut self) -> Self {
        let is_json = matches!(self.parts.first(), Some(Part::Literal(text))
            if text.trim_start().starts_with(['{', '[', '"']));
        let (mut is_quoted, mut is_escaped) = (false, false);
        for part in self.parts.iter_mut().filter(|_| is_json) {
            if let Part::Literal(text) = part {
                for byte in text.bytes() {
                    is_quoted ^= byte == b'"' && !is_escaped;
                    is_escaped = is_quoted && byte == b'\\' && !is_escaped;
                }
            } else if is_quoted {
                let plain = std::mem::replace(part, Part::Now);
                *part = Part::Quoted(Box::new(plain));
            }
        }
        self
    }

    /// Adds what it comes to; false if there is no room for it, with a part of it added.
    pub(crate) fn render(&self, source: &Source<'_>, out: &mut Vec<u8>) -> bool {
        self.parts.iter().all(|part| part.render(source, out))
    }

    /// Adds what it comes to as a topic, or nothing and false if that is none. Wildcards and control characters that fields
    /// bring become `_`.
    pub(crate) fn render_topic(&self, source: &Source<'_>, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for part in &self.parts {
            let part_start = out.len();
            if !part.render(source, out) {
                out.truncate(start);
                return false;
            }
            if matches!(part, Part::Field { .. }) {
                for byte in &mut out[part_start..] {
                    if matches!(byte, b'+' | b'#' | b'/' | 0..=0x1f | 0x7f) {
                        *byte = b'_';
                    }
                }
            }
        }
        let text = std::str::from_utf8(&out[start..]).ok();
        // Topics with `$` are the broker's own.
        let is_topic = text.is_some_and(|text| {
            !text.starts_with('$') && check_topic_name(text, LEVELS_MAX).is_ok()
        });
        if !is_topic {
            out.truncate(start);
        }
        is_topic
    }
}

impl Part {
    fn parse(
        place: &str,
        column_of: impl Fn(&str) -> Option<Column>,
    ) -> Result<Self, TemplateError> {
        let unknown = || TemplateError::Place { place: place.to_owned() };
        match place.split_once(':') {
            None if place == "topic" => Ok(Self::Topic),
            None if place == "now" => Ok(Self::Now),
            Some(("level", number)) => number.parse().map(Self::Level).map_err(|_| unknown()),
            Some(("field", name)) => {
                if let Some(column) = column_of(name) {
                    return Ok(Self::Field { column, decimals: None });
                }
                let (name, decimals) = match name.rsplit_once(':') {
                    Some((name, decimals)) => (name, decimals.parse::<usize>().ok()),
                    None => (name, None),
                };
                let column = column_of(name)
                    .ok_or_else(|| TemplateError::Field { field: name.to_owned() })?;
                match decimals {
                    Some(0..=17) => Ok(Self::Field { column, decimals }),
                    _ => Err(unknown()),
                }
            }
            _ => Err(unknown()),
        }
    }

    /// Adds what it comes to; false if there is no room for it.
    fn render(&self, source: &Source<'_>, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Literal(text) => put(text.as_bytes(), out),
            Self::Topic => put(source.message.topic.as_bytes(), out),
            Self::Level(level) => {
                let level = source.message.topic.split('/').nth(*level).unwrap_or_default();
                put(level.as_bytes(), out)
            }
            Self::Field { column: Column::Number(index), decimals } => {
                source.write_number(*index, *decimals, out);
                has_room(0, out)
            }
            Self::Field { column, .. } => put(source.text(*column).unwrap_or_default(), out),
            Self::Now => {
                let _ = write!(out, "{}", source.now_millis);
                has_room(0, out)
            }
            Self::Quoted(part) => {
                let start = out.len();
                let fits = part.render(source, out);
                if out[start..].iter().any(|byte| escape_of(*byte).is_some()) {
                    let plain = out.split_off(start);
                    escaped(&plain, out);
                }
                fits && has_room(0, out)
            }
        }
    }
}

fn has_room(more: usize, out: &[u8]) -> bool {
    more <= OUTPUT_BYTES_MAX.saturating_sub(out.len())
}

/// Adds `text`, if there is room.
fn put(text: &[u8], out: &mut Vec<u8>) -> bool {
    let fits = has_room(text.len(), out);
    if fits {
        out.extend_from_slice(text);
    }
    fits
}

impl Source<'_> {
    /// Adds a number, of a time the seconds to the nanosecond; false if it is missing.
    fn write_number(&self, index: usize, decimals: Option<usize>, out: &mut Vec<u8>) -> bool {
        let row = usize::from(self.row);
        let value = self.batch.numbers[index][row];
        if value.is_finite() {
            match (self.batch.nanos(index, row), decimals) {
                (Some(nanos), decimals) => time::write(nanos, decimals, out),
                (None, Some(decimals)) => drop(write!(out, "{value:.decimals$}")),
                (None, None) => drop(write!(out, "{value}")),
            }
        }
        value.is_finite()
    }

    fn text(&self, column: Column) -> Option<&[u8]> {
        self.batch.text_of(column, self.row, self.message, self.fixed)
    }
}

impl Content {
    /// Adds the payload; false if there is no room for it, with a part of it added.
    pub(crate) fn render(&self, source: &Source<'_>, out: &mut Vec<u8>) -> bool {
        let Self::Fields { format, fields } = self else {
            let Self::Template(template) = self else { return false };
            return template.render(source, out);
        };
        // Before anything is copied, whatever the fields hold; escapes are looked at behind.
        let texts = fields.iter().filter_map(|(_, column)| source.text(*column));
        if !has_room(texts.map(<[u8]>::len).sum(), out) {
            return false;
        }
        match format {
            PayloadFormat::Json => json(fields, source, out),
            PayloadFormat::Csv => csv(fields, source, out),
            PayloadFormat::SenmlJson => senml(fields, source, out),
        }
        has_room(0, out)
    }
}

fn json(fields: &[(Box<str>, Column)], source: &Source<'_>, out: &mut Vec<u8>) {
    out.push(b'{');
    for (place, (name, column)) in fields.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        json_string(name.as_bytes(), out);
        out.push(b':');
        if !json_value(*column, source, out) {
            out.extend_from_slice(b"null");
        }
    }
    out.push(b'}');
}

/// Adds a number or string, or nothing and false where the field is missing.
fn json_value(column: Column, source: &Source<'_>, out: &mut Vec<u8>) -> bool {
    match column {
        Column::Number(index) => source.write_number(index, None, out),
        _ => match source.text(column) {
            Some(text) => {
                json_string(text, out);
                true
            }
            None => false,
        },
    }
}

fn csv(fields: &[(Box<str>, Column)], source: &Source<'_>, out: &mut Vec<u8>) {
    for (place, (_, column)) in fields.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        match column {
            Column::Number(index) => {
                source.write_number(*index, None, out);
            }
            _ => csv_text(source.text(*column).unwrap_or_default(), out),
        }
    }
}

fn senml(fields: &[(Box<str>, Column)], source: &Source<'_>, out: &mut Vec<u8>) {
    out.push(b'[');
    let start = out.len();
    for (name, column) in fields {
        let record = out.len();
        if record > start {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"n\":");
        json_string(name.as_bytes(), out);
        let key: &[u8] = if matches!(column, Column::Number(_)) { b",\"v\":" } else { b",\"vs\":" };
        out.extend_from_slice(key);
        if json_value(*column, source, out) {
            out.push(b'}');
        } else {
            out.truncate(record);
        }
    }
    out.push(b']');
}

fn json_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    escaped(text, out);
    out.push(b'"');
}

/// Adds a text as it stands between the quotes of JSON.
fn escaped(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match escape_of(byte) {
            Some(Escape::Behind) => out.extend_from_slice(&[b'\\', byte]),
            Some(Escape::Number) => drop(write!(out, "\\u{byte:04x}")),
            None => out.push(byte),
        }
    }
}

/// How a byte is written that cannot stand in a text of JSON.
enum Escape {
    /// Behind a backslash.
    Behind,
    /// By its number.
    Number,
}

fn escape_of(byte: u8) -> Option<Escape> {
    match byte {
        b'"' | b'\\' => Some(Escape::Behind),
        0..=0x1f => Some(Escape::Number),
        _ => None,
    }
}

fn csv_text(text: &[u8], out: &mut Vec<u8>) {
    if !text.iter().any(|byte| matches!(byte, b',' | b'"' | b'\r' | b'\n')) {
        out.extend_from_slice(text);
        return;
    }
    out.push(b'"');
    for &byte in text {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

impl Template {
    /// Whether a key alone says what it comes to: `levels` of the topic from the first on, all of it, or a field.
    pub(crate) fn is_settled(&self, levels: usize, topic: bool, key: Option<Column>) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Literal(_) | Part::Now => true,
            Part::Topic => topic,
            Part::Level(level) => topic || *level < levels,
            Part::Field { column, .. } => Some(*column) == key,
            // Of payloads alone.
            Part::Quoted(_) => false,
        })
    }

    /// Refuses a topic that could never be published.
    pub(crate) fn check_topic(&self) -> Result<(), TemplateError> {
        if let Some(Part::Literal(text)) = self.parts.first()
            && text.starts_with('$')
        {
            return Err(TemplateError::System);
        }
        let literals = self.parts.iter().filter_map(|part| match part {
            Part::Literal(text) => Some(text),
            _ => None,
        });
        for text in literals {
            if let Some(wildcard) = text.chars().find(|c| matches!(c, '+' | '#')) {
                return Err(TemplateError::Wildcard { wildcard });
            }
        }
        if self.parts.is_empty() { Err(TemplateError::Empty) } else { Ok(()) }
    }
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace is left open, or closes nothing.
    #[error("a brace has no partner; for a brace itself, write it twice")]
    Brace,
    /// There is no such place.
    #[error(
        "{{{place}}} stands for nothing; there are {{topic}}, {{level:N}}, {{field:NAME}}, {{field:NAME:DECIMALS}}, {{flow}} and {{now}}"
    )]
    Place {
        /// The text between the braces.
        place: String,
    },
    /// It is a topic, and empty.
    #[error("a topic has at least one character")]
    Empty,
    /// It is a topic of the broker's own.
    #[error("a topic that begins with $ is the broker's own; begin with another character")]
    System,
    /// It is a topic, with a wildcard.
    #[error("{wildcard:?} stands for many topics, and a message has one; leave it out")]
    Wildcard {
        /// Which.
        wildcard: char,
    },
    /// No field of that name is known here.
    #[error("no field {field:?} is known here")]
    Field {
        /// The name.
        field: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Place, Text};

    fn column_of(name: &str) -> Option<Column> {
        match name {
            "t" => Some(Column::Number(0)),
            "none" => Some(Column::Number(1)),
            "s" => Some(Column::Text(0)),
            _ => None,
        }
    }

    /// Topic `a/b`, t = 21.5, s = the payload.
    fn with_source<T>(payload: &str, then: impl FnOnce(&Source<'_>) -> T) -> T {
        let mut batch = Batch::new(2, 1, [].into_iter());
        batch.numbers[0][0] = 21.5;
        batch.texts[0][0] = Text::new(Place::Payload, 0, payload.len());
        let message = Message { topic: "a/b", payload: payload.as_bytes() };
        then(&Source { batch: &batch, message: &message, row: 0, fixed: b"", now_millis: 1234 })
    }

    #[test]
    fn templates_are_filled() {
        for (template, expected) in [
            ("", ""),
            ("{topic}: {field:t} at {now}", "a/b: 21.5 at 1234"),
            ("{level:1}{level:7}", "b"),
            ("{field:t:3} {field:none}|{field:s}", "21.500 |x,\"y\""),
            ("{{{flow}}}", "{oil}"),
        ] {
            let parsed = Template::parse(template, "oil", column_of).unwrap();
            let mut out = Vec::new();
            assert!(with_source("x,\"y\"", |source| parsed.render(source, &mut out)));
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{template:?}");
        }
    }

    #[test]
    fn texts_between_quotes_leave_a_template_of_json_valid() {
        for (template, expected) in [
            (r#"{{"s":"{field:s}","t":{field:t}}}"#, r#"{"s":"\"x\\\u0001\"","t":21.5}"#),
            (r#" ["{topic}","\"{field:s}\"",{now}]"#, r#" ["a/b","\"\"x\\\u0001\"\"",1234]"#),
            (r#""{field:s}""#, r#""\"x\\\u0001\"""#),
            // A text that is JSON itself, and a template that is none.
            ("{{\"s\":{field:s}}}", "{\"s\":\"x\\\u{1}\"}"),
            ("s is \"{field:s}\"", "s is \"\"x\\\u{1}\"\""),
        ] {
            let parsed = Template::parse(template, "", column_of).unwrap().of_payload();
            let mut out = Vec::new();
            assert!(with_source("\"x\\\u{1}\"", |source| parsed.render(source, &mut out)));
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{template:?}");
        }
    }

    #[test]
    fn invalid_templates_are_refused() {
        let place = |place: &str| TemplateError::Place { place: place.to_owned() };
        for (template, expected) in [
            ("{", TemplateError::Brace),
            ("a}", TemplateError::Brace),
            ("{topic", TemplateError::Brace),
            ("{Topic}", place("Topic")),
            ("{level:x}", place("level:x")),
            ("{field:t:99}", place("field:t:99")),
            ("{field:x}", TemplateError::Field { field: "x".to_owned() }),
        ] {
            assert_eq!(Template::parse(template, "", column_of), Err(expected), "{template:?}");
        }
    }

    #[test]
    fn a_topic_is_valid_whatever_fields_hold() {
        let template = Template::parse("alarm/{field:s}", "", column_of).unwrap();
        for (field, expected) in [("x", "alarm/x"), ("#/+\0", "alarm/____"), ("", "alarm/")] {
            let mut out = b"before".to_vec();
            let is_topic = with_source(field, |source| template.render_topic(source, &mut out));
            assert!(is_topic);
            assert_eq!(String::from_utf8(out).unwrap(), format!("before{expected}"), "{field:?}");
        }
        let empty = Template::parse("{field:none}", "", column_of).unwrap();
        let mut out = b"before".to_vec();
        assert!(!with_source("x", |source| empty.render_topic(source, &mut out)));
        assert_eq!(out, b"before");
    }

    #[test]
    fn payloads_are_valid_in_their_format() {
        let fields: Vec<(Box<str>, Column)> = [("t", 0), ("none", 1)]
            .map(|(name, index)| (name.into(), Column::Number(index)))
            .into_iter()
            .chain([("s".into(), Column::Text(0)), ("topic".into(), Column::Topic)])
            .collect();
        for (format, expected) in [
            (PayloadFormat::Json, r#"{"t":21.5,"none":null,"s":"\"\\\u0001,é","topic":"a/b"}"#),
            (PayloadFormat::Csv, "21.5,,\"\"\"\\\u{1},é\",a/b"),
            (
                PayloadFormat::SenmlJson,
                r#"[{"n":"t","v":21.5},{"n":"s","vs":"\"\\\u0001,é"},{"n":"topic","vs":"a/b"}]"#,
            ),
        ] {
            let content = Content::Fields { format, fields: fields.clone() };
            let mut out = Vec::new();
            assert!(with_source("\"\\\u{1},é", |source| content.render(source, &mut out)));
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{format:?}");
        }
    }
}

//! From a row to its topic, by a template.
//!
//! ```text
//!  city/{source}/env   ─▶ city/ci4lr75sl/env
//!  fleet/{device}/{2}  ─▶ fleet/17/north
//! ```
//!
//! Always true: what comes from a trace stays within its level. In a value `/ + # %` and control characters are written as `%2F %2B
//! %23 %25 %0A`, so that no value makes a level more, a wildcard, or the topic of another value.

use std::{fmt, fmt::Write as _, str::FromStr};

use super::RowFault;

/// Longest template.
const TEMPLATE_BYTES_MAX: usize = 1024;
/// Longest topic of MQTT.
const TOPIC_BYTES_MAX: usize = 65_535;

/// A column of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// By its name: in the header line, or in SenML.
    Name(Box<str>),
    /// By its place, from 1.
    Number(usize),
}

/// A topic with places that are filled from a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Device,
    /// By its place among the columns.
    Column(usize),
}

impl Template {
    /// The columns that it names.
    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Whether each device has topics of its own.
    pub(crate) fn names_device(&self) -> bool {
        self.parts.contains(&Part::Device)
    }

    /// Puts the topic into `topic`; `value` appends that of a column, by its place.
    ///
    /// # Errors
    /// Those of `value`; `EmptyTopic` and `LongTopic` of [`RowFault`].
    pub(crate) fn fill(
        &self,
        device: u32,
        topic: &mut String,
        mut value: impl FnMut(usize, &mut String) -> Result<(), RowFault>,
    ) -> Result<(), RowFault> {
        topic.clear();
        for part in &self.parts {
            match part {
                Part::Text(text) => topic.push_str(text),
                // A text takes what is written to it.
                Part::Device => drop(write!(topic, "{device}")),
                Part::Column(place) => value(*place, topic)?,
            }
        }
        match topic.len() {
            0 => Err(RowFault::EmptyTopic),
            bytes if bytes > TOPIC_BYTES_MAX => Err(RowFault::LongTopic { bytes }),
            _ => Ok(()),
        }
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if !(1..=TEMPLATE_BYTES_MAX).contains(&text.len()) {
            return Err(TemplateError::Length { bytes: text.len() });
        }
        let (mut parts, mut columns) = (Vec::new(), Vec::new());
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..];
            if brace.starts_with("{{") || brace.starts_with("}}") {
                literal.push_str(&brace[..1]);
                rest = &brace[2..];
                continue;
            }
            let Some(inside) = brace.strip_prefix('{') else { return Err(TemplateError::Close) };
            let (name, after) = inside.split_once('}').ok_or(TemplateError::Open)?;
            add_text(&mut parts, &mut literal)?;
            if name == "device" {
                parts.push(Part::Device);
            } else {
                let column: Column = name.parse()?;
                let place = columns.iter().position(|other| *other == column);
                parts.push(Part::Column(place.unwrap_or(columns.len())));
                if place.is_none() {
                    columns.push(column);
                }
            }
            rest = after;
        }
        literal.push_str(rest);
        add_text(&mut parts, &mut literal)?;
        Ok(Self { parts, columns })
    }
}

fn add_text(parts: &mut Vec<Part>, literal: &mut String) -> Result<(), TemplateError> {
    let text = std::mem::take(literal);
    if let Some(character) = text.chars().find(|c| matches!(c, '+' | '#') || c.is_control()) {
        return Err(TemplateError::Character { character });
    }
    if !text.is_empty() {
        parts.push(Part::Text(text.into()));
    }
    Ok(())
}

/// Appends a value as (a part of) one level.
pub(crate) fn push_value(value: &str, topic: &mut String) {
    for c in value.chars() {
        if matches!(c, '/' | '+' | '#' | '%') || c.is_control() {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                // A text takes what is written to it.
                let _ = write!(topic, "%{byte:02X}");
            }
        } else {
            topic.push(c);
        }
    }
}

impl FromStr for Column {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if text.is_empty() {
            return Err(TemplateError::NoName);
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self::Name(text.into()));
        }
        let number = text.parse().ok().filter(|&number| number > 0);
        let wrong = || TemplateError::Number { text: text.to_owned() };
        number.map(Self::Number).ok_or_else(wrong)
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "column {name:?}"),
            Self::Number(number) => write!(f, "column {number}"),
        }
    }
}

/// Why a text is no template, or no column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Nothing, or too much.
    #[error("a template has from 1 to {TEMPLATE_BYTES_MAX} bytes, this one has {bytes}")]
    Length {
        /// Bytes it has.
        bytes: usize,
    },
    /// A brace without its other one.
    #[error("a {{ has no }} behind it; {{{{ is a brace itself")]
    Open,
    /// The same the other way round.
    #[error("a }} has no {{ before it; }}}} is a brace itself")]
    Close,
    /// Nothing between braces.
    #[error("no column is named; write its name, its number from 1, or in a topic {{device}}")]
    NoName,
    /// A number that no column has.
    #[error("{text} is not a column: they count from 1")]
    Number {
        /// The text there.
        text: String,
    },
    /// A wildcard, or an invisible character.
    #[error("a topic to publish to has no {character:?}; leave it out")]
    Character {
        /// Which.
        character: char,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_from_rows_and_devices() {
        let row = ["a/b", "7", "", "50%+\n#", "é"];
        for (template, expected) in [
            ("city/{1}/env", Ok("city/a%2Fb/env")),
            ("{device}/{2}{2}", Ok("12/77")),
            ("fixed", Ok("fixed")),
            ("x/{3}/y", Ok("x//y")), // an empty value is an empty level
            ("{4}", Ok("50%25%2B%0A%23")),
            ("{5}/{{x}}", Ok("é/{x}")),
            ("{3}", Err("the topic is empty".to_owned())),
        ] {
            let template: Template = template.parse().unwrap();
            let mut topic = "before".to_owned();
            let filled = template.fill(12, &mut topic, |place, topic| {
                let Column::Number(number) = template.columns()[place] else { panic!() };
                push_value(row[number - 1], topic);
                Ok(())
            });
            assert_eq!(filled.map(|()| &*topic).map_err(|fault| fault.to_string()), expected);
        }
        let long: Template = "{1}".parse().unwrap();
        let filled = long.fill(1, &mut String::new(), |_, topic| {
            push_value(&"/".repeat(30_000), topic);
            Ok(())
        });
        assert!(matches!(filled, Err(RowFault::LongTopic { bytes: 90_000 })), "{filled:?}");
    }

    #[test]
    fn wrong_templates_are_refused_with_the_way_out() {
        let long = "x".repeat(1025);
        for (text, expected) in [
            ("", "1 to 1024"),
            (&*long, "this one has 1025"),
            ("a/{b", "{{ is a brace"),
            ("a}/b", "}} is a brace"),
            ("a/{}", "its number from 1"),
            ("a/{0}", "0 is not a column: they count from 1"),
            ("a/{99999999999999999999}", "count from 1"),
            ("a/+/{1}", "'+'"),
            ("a/#", "'#'"),
            ("a\0", "'\\0'"),
        ] {
            let error = text.parse::<Template>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}

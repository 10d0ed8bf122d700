//! From what came in to a topic, by a template.
//!
//! ```text
//!  udp/{ip}                       ─▶ udp/192.0.2.7
//!  {measurement}/{tags}           ─▶ weather/north/7
//!  line/{measurement}/{tag:site}  ─▶ line/weather/north
//! ```
//!
//! Always true: text from outside stays within its levels. In a value `/ + # %` and U+0000 are written as `%2F %2B %23 %25
//! %00`, so that no value makes a level more, a wildcard, or the topic of another value.

use std::{fmt::Write as _, net::SocketAddr};

use tidegate_wire::line_protocol::Line;

/// Longest template.
const TEMPLATE_BYTES_MAX: usize = 1024;

/// The values that fill a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A datagram: `{ip}`, `{port}`.
    Datagram,
    /// A line: `{measurement}`, `{tags}`, `{tag:NAME}`, `{field}`.
    Line,
}

impl Place {
    /// The template where none is configured.
    pub fn usual(self) -> &'static str {
        match self {
            Self::Datagram => "udp/{ip}",
            Self::Line => "{measurement}/{tags}",
        }
    }
}

/// A topic with places that are filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Ip,
    Port,
    Measurement,
    Tags,
    Tag(Box<str>),
    Field,
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Nothing, or too much.
    #[error("a template has from 1 to {TEMPLATE_BYTES_MAX} bytes, this one has {bytes}")]
    Length {
        /// Bytes it has.
        bytes: usize,
    },
    /// A brace without its other one.
    #[error("a {{ has no }} after it")]
    Open,
    /// A name that stands for nothing.
    #[error("{{{name}}} is unknown here; there are {known}")]
    Unknown {
        /// The text between the braces.
        name: String,
        /// The known names.
        known: &'static str,
    },
    /// A wildcard, or U+0000.
    #[error("a topic has no {character:?}; leave it out")]
    Character {
        /// Which.
        character: char,
    },
}

/// Why a line has no topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the line has no tag {name}, which the listener's topic names; add it")]
pub struct NoTag {
    /// The tag.
    pub name: Box<str>,
}

impl Template {
    /// The template that `text` is.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn parse(text: &str, place: Place) -> Result<Self, TemplateError> {
        if !(1..=TEMPLATE_BYTES_MAX).contains(&text.len()) {
            return Err(TemplateError::Length { bytes: text.len() });
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            Self::add_text(&mut parts, before)?;
            let (name, after) = behind.split_once('}').ok_or(TemplateError::Open)?;
            parts.push(match (place, name) {
                (Place::Datagram, "ip") => Part::Ip,
                (Place::Datagram, "port") => Part::Port,
                (Place::Line, "measurement") => Part::Measurement,
                (Place::Line, "tags") => Part::Tags,
                (Place::Line, "field") => Part::Field,
                (Place::Line, tag) if tag.len() > 4 && tag.starts_with("tag:") => {
                    Part::Tag(tag[4..].into())
                }
                _ => {
                    let known = match place {
                        Place::Datagram => "{ip} and {port}",
                        Place::Line => "{measurement}, {tags}, {tag:NAME} and {field}",
                    };
                    return Err(TemplateError::Unknown { name: name.to_owned(), known });
                }
            });
            rest = after;
        }
        Self::add_text(&mut parts, rest)?;
        Ok(Self { parts })
    }

    fn add_text(parts: &mut Vec<Part>, text: &str) -> Result<(), TemplateError> {
        if let Some(character) = text.chars().find(|c| matches!(c, '+' | '#' | '\0')) {
            return Err(TemplateError::Character { character });
        }
        if !text.is_empty() {
            parts.push(Part::Text(text.into()));
        }
        Ok(())
    }

    /// Whether each sender has its own topic.
    pub fn names_source(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Ip | Part::Port))
    }

    /// Whether each field of a line has its own topic.
    pub fn names_field(&self) -> bool {
        self.parts.contains(&Part::Field)
    }

    /// Appends the topic of a message of `source`; that must be given if the topic [names it](Self::names_source).
    pub fn of_source(&self, source: Option<SocketAddr>, out: &mut String) {
        for part in &self.parts {
            // A text takes what is written to it.
            let _ = match (part, source) {
                (Part::Text(text), _) => out.write_str(text),
                (Part::Ip, Some(source)) => write!(out, "{}", source.ip().to_canonical()),
                (Part::Port, Some(source)) => write!(out, "{}", source.port()),
                (Part::Ip | Part::Port, None)
                | (Part::Measurement | Part::Tags | Part::Tag(_) | Part::Field, _) => Ok(()),
            };
        }
    }

    /// Appends the topic of a line, or of that field of it.
    ///
    /// # Errors
    /// [`NoTag`].
    pub fn of_line(&self, line: &Line<'_>, field: &str, out: &mut String) -> Result<(), NoTag> {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Measurement => push_value(&line.measurement().unescaped(), out),
                Part::Tags => {
                    // Without tags the level goes, with the slash before it.
                    if line.tags().next().is_none() && out.ends_with('/') {
                        out.pop();
                    }
                    for (at, (_, value)) in line.tags().enumerate() {
                        if at > 0 {
                            out.push('/');
                        }
                        push_value(&value.unescaped(), out);
                    }
                }
                Part::Tag(name) => match line.tag(name) {
                    Some(value) => push_value(&value.unescaped(), out),
                    None => return Err(NoTag { name: name.clone() }),
                },
                Part::Field => push_value(field, out),
                Part::Ip | Part::Port => {}
            }
        }
        Ok(())
    }
}

/// Appends a value as (a part of) one level.
pub(crate) fn push_value(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '/' => out.push_str("%2F"),
            '+' => out.push_str("%2B"),
            '#' => out.push_str("%23"),
            '%' => out.push_str("%25"),
            '\0' => out.push_str("%00"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::line_protocol::{Batch, Precision};

    use super::*;

    #[test]
    fn templates_are_filled_from_lines() {
        let line = "wea\\ ther,site=a/b,sensor=7 t=1,u=2";
        for (template, field, expected) in [
            ("{measurement}/{tags}", "", Ok("wea ther/a%2Fb/7")),
            ("x/{tag:sensor}/{field}", "t+", Ok("x/7/t%2B")),
            ("x{measurement}", "", Ok("xwea ther")),
            ("fixed", "", Ok("fixed")),
            ("{tag:none}", "", Err("none")),
        ] {
            let template = Template::parse(template, Place::Line).unwrap();
            let line = Batch::new(line.as_bytes(), Precision::Nanoseconds).next().unwrap().unwrap();
            let mut out = String::new();
            let got = template.of_line(&line, field, &mut out);
            assert_eq!(got.as_ref().map(|()| &*out).map_err(|error| &*error.name), expected);
        }
    }

    #[test]
    fn a_line_without_tags_has_no_level_for_them() {
        let template = Template::parse("{measurement}/{tags}", Place::Line).unwrap();
        let line = Batch::new(b"cpu v=1", Precision::Nanoseconds).next().unwrap().unwrap();
        let mut out = String::new();
        template.of_line(&line, "", &mut out).unwrap();
        assert_eq!(out, "cpu");
    }

    #[test]
    fn templates_are_filled_from_senders() {
        for (source, expected) in [
            ("192.0.2.7:99", "u/192.0.2.7-99"),
            ("[::ffff:192.0.2.7]:1", "u/192.0.2.7-1"),
            ("[2001:db8::1]:2", "u/2001:db8::1-2"),
        ] {
            let mut out = String::new();
            let template = Template::parse("u/{ip}-{port}", Place::Datagram).unwrap();
            template.of_source(Some(source.parse().unwrap()), &mut out);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn wrong_templates_are_refused_with_the_way_out() {
        for (text, place, part) in [
            ("", Place::Line, "1 to 1024"),
            ("a/{b", Place::Line, "no }"),
            ("a/{b}", Place::Line, "{measurement}"),
            ("{measurement}", Place::Datagram, "{ip}"),
            ("{ip}", Place::Line, "{tags}"),
            ("{tag:}", Place::Line, "{tag:NAME}"),
            ("a/+/{ip}", Place::Datagram, "'+'"),
        ] {
            let error = Template::parse(text, place).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

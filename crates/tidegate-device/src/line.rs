//! From a line of InfluxDB's protocol to messages.

use tidegate_message::{Instant, TopicError};
use tidegate_wire::line_protocol::{Line, Precision, Value};

use crate::{MessageLimits, NoTag, Template};

/// Why a line becomes no message.
#[derive(Debug, thiserror::Error)]
pub enum Unmapped {
    /// The line lacks a tag.
    #[error(transparent)]
    NoTag(#[from] NoTag),
    /// A topic that it makes cannot be.
    #[error("the line's topic {topic:?} is not valid")]
    Topic {
        /// The topic.
        topic: String,
        /// Why not.
        source: TopicError,
    },
    /// A payload that it makes is too long.
    #[error(
        "the line's payload has {bytes} bytes, and at most {bytes_max} are taken; send its fields in several lines"
    )]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The most that there may be.
        bytes_max: usize,
    },
}

/// Gives the messages of a line, whose topics are made by `template` in the memory of `topic`, to `take`, as topic and payload: the line as it is, its time in nanoseconds, or the value of each
/// field where the template names fields, with the time that the line says. All of them, or none.
///
/// # Errors
/// [`Unmapped`].
pub fn messages(
    line: &Line<'_>,
    precision: Precision,
    (template, limits): (&Template, &MessageLimits),
    topic: &mut String,
    mut take: impl FnMut(&str, &[u8], Option<Instant>),
) -> Result<(), Unmapped> {
    if !template.names_field() {
        let text = line.text_in_nanoseconds(precision);
        let payload = text.as_bytes();
        topic.clear();
        template.of_line(line, "", topic)?;
        check(limits, topic, payload)?;
        take(topic, payload, None);
        return Ok(());
    }
    for is_checked in [false, true] {
        for (name, value) in line.fields() {
            topic.clear();
            template.of_line(line, &name.unescaped(), topic)?;
            let text;
            let payload = match value {
                Value::Float(text) | Value::Integer(text) | Value::Unsigned(text) => text,
                Value::Boolean(word) if word.starts_with(['t', 'T']) => "true",
                Value::Boolean(_) => "false",
                Value::Text(quoted) => {
                    text = quoted.unescaped();
                    &text
                }
            };
            if is_checked {
                take(topic, payload.as_bytes(), line.timestamp());
            } else {
                check(limits, topic, payload.as_bytes())?;
            }
        }
    }
    Ok(())
}

fn check(limits: &MessageLimits, topic: &str, payload: &[u8]) -> Result<(), Unmapped> {
    let (bytes, bytes_max) = (payload.len(), limits.payload_bytes_max);
    if bytes > bytes_max {
        return Err(Unmapped::TooLarge { bytes, bytes_max });
    }
    limits.check_topic(topic).map_err(|source| Unmapped::Topic { topic: topic.to_owned(), source })
}

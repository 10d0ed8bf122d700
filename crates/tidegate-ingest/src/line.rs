//! From a line of InfluxDB's protocol to messages.

use tidegate_message::{Instant, TopicError};
use tidegate_wire::line_protocol::{Line, Precision, Value};

use super::{IngestSettings, topic::NoTag};

/// Why a line becomes no message.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unmapped {
    #[error(transparent)]
    NoTag(#[from] NoTag),
    #[error("the line's topic {topic:?} is not valid")]
    Topic { topic: String, source: TopicError },
    #[error(
        "the line's payload has {bytes} bytes, and at most {bytes_max} are taken; send its fields in several lines"
    )]
    TooLarge { bytes: usize, bytes_max: usize },
}

/// Gives the messages of a line to `take`, as topic and payload: the line as it is, its time in nanoseconds, or the value of each
/// field where the template names fields, with the time that the line says. All of them, or none.
///
/// # Errors
/// [`Unmapped`].
pub(super) fn messages(
    line: &Line<'_>,
    precision: Precision,
    settings: &IngestSettings,
    topic: &mut String,
    mut take: impl FnMut(&str, &[u8], Option<Instant>),
) -> Result<(), Unmapped> {
    let template = &settings.topic;
    if !template.names_field() {
        let text = line.text_in_nanoseconds(precision);
        let payload = text.as_bytes();
        topic.clear();
        template.of_line(line, "", topic)?;
        check(settings, topic, payload)?;
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
                check(settings, topic, payload.as_bytes())?;
            }
        }
    }
    Ok(())
}

fn check(settings: &IngestSettings, topic: &str, payload: &[u8]) -> Result<(), Unmapped> {
    let (bytes, bytes_max) = (payload.len(), settings.message_bytes_max);
    if bytes > bytes_max {
        return Err(Unmapped::TooLarge { bytes, bytes_max });
    }
    settings
        .check_topic(topic)
        .map_err(|source| Unmapped::Topic { topic: topic.to_owned(), source })
}

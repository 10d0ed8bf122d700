//! Bounds on the messages of devices.

use tidegate_message::{TopicError, check_topic_characters, check_topic_name};

/// Bounds on topic and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// Longest payload, in bytes.
    pub payload_bytes_max: usize,
    /// Most levels of a topic.
    pub topic_levels_max: usize,
    /// Longest topic, in bytes.
    pub topic_bytes_max: usize,
    /// Whether a topic may have control characters.
    pub topic_control_characters: bool,
}

impl MessageLimits {
    /// Whether a message may have that topic, by its form.
    ///
    /// # Errors
    /// [`TopicError`].
    pub fn check_topic(&self, topic: &str) -> Result<(), TopicError> {
        if topic.len() > self.topic_bytes_max {
            return Err(TopicError::TooLong { bytes: topic.len(), limit: self.topic_bytes_max });
        }
        check_topic_name(topic, self.topic_levels_max)?;
        if self.topic_control_characters { Ok(()) } else { check_topic_characters(topic) }
    }
}

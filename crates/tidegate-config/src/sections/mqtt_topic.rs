//! `[mqtt.topic.NAME]`.

use crate::{ByteCount, words::Overflow};

section! {
    /// `[mqtt.topic.NAME]`: settings for the topics of a filter in place of those of listener and user; the first by name.
    MqttTopicSection {
        /// Which topics.
        filter: String = String::new(),
        /// Payloads over this are large. Default none.
        large_bytes: Option<ByteCount> = None,
        /// As in `[mqtt]`, for every QoS. Default none.
        overflow: Option<Overflow> = None,
    }
}

//! `[mqtt.topic.NAME]`.

use crate::config::{ByteCount, words::Overflow};

section! {
    /// `[mqtt.topic.NAME]`: what holds for the topics of a filter instead of what listener and user say; the first by name.
    MqttTopicSection {
        /// Which topics.
        filter: String = String::new(),
        /// Payloads over this are large. Default none.
        large_bytes: Option<ByteCount> = None,
        /// As in `[mqtt]`, for every QoS. Default none.
        overflow: Option<Overflow> = None,
    }
}

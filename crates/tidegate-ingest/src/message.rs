//! A message on its way to this node's broker, or from it.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_message::{Instant, TIME_PROPERTY};
use tidegate_wire::mqtt::{ForwardedProperties, PublishProperties, QoS, put_user_property};

use tidegate_bus::{self as bus, Publication, PublishError, Publisher};

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) topic: Box<str>,
    pub(super) payload: Bytes,
    pub(super) retain: bool,
    /// The media type of the payload; messages of one request share it.
    pub(super) content_type: Option<Arc<str>>,
    /// User properties, encoded, that come first; messages of one request share them.
    pub(super) passed: Bytes,
    /// User properties, encoded.
    pub(super) user: Vec<u8>,
}

impl Message {
    /// Its bytes in addition to its topic, as they travel.
    pub(super) fn bytes(&self) -> usize {
        let content_type = self.content_type.as_deref().map_or(0, str::len);
        self.payload.len() + content_type + self.passed.len() + self.user.len()
    }

    /// Publishes it with QoS 1, with the next batch of `publisher`; its number there.
    ///
    /// # Errors
    /// The broker does not take such a message, or not now.
    pub(super) fn publish(&self, publisher: &mut Publisher) -> Result<u64, PublishError> {
        let mut properties = Vec::new();
        if let Some(content_type) = self.content_type.as_deref() {
            let content_type = ForwardedProperties {
                content_type: Some(content_type),
                ..ForwardedProperties::default()
            };
            content_type.encode(&mut properties).expect("a media type is short");
        }
        properties.extend_from_slice(&self.passed);
        properties.extend_from_slice(&self.user);
        let publication = Publication {
            topic: &self.topic,
            payload: &self.payload,
            qos: QoS::AtLeastOnce,
            retain: self.retain,
            forwarded: &properties,
            ..Publication::default()
        };
        publisher.push(&publication)
    }

    /// One that arrived.
    pub(super) fn of(message: &bus::Message<'_>) -> Self {
        // The broker has decoded them where they came in.
        let properties = PublishProperties::decode(message.forwarded()).unwrap_or_default();
        Self {
            topic: message.topic().into(),
            payload: Bytes::copy_from_slice(&message.payload()),
            retain: message.retain(),
            content_type: properties.content_type().map(Into::into),
            passed: Bytes::new(),
            user: Vec::new(),
        }
    }
}

/// The user properties of a message that was measured then, if it says so, encoded.
pub(super) fn user_properties(at: Option<Instant>) -> Vec<u8> {
    let mut user = Vec::new();
    if let Some(at) = at {
        put_time(at, &mut user);
    }
    user
}

/// Appends the user property that says when a value was measured.
pub(super) fn put_time(at: Instant, user: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    let nanos = digits.format(at.as_nanos());
    put_user_property(TIME_PROPERTY, nanos, user).expect("a number is a short text");
}

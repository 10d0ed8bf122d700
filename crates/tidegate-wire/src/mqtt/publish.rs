//! PUBLISH (section 3.3), the packet of the hot path.
//!
//! ```text
//!  body: topic · packet identifier (QoS 1, 2) · properties (MQTT 5) · payload
//!        └──────────────────── head ────────────────────────────────┘
//! ```
//!
//! Nothing here allocates, but for a reservation in the caller's buffer. Without properties, decoding is one pass over the topic
//! for its characters and one for its UTF-8; [`Publish::decode_known`] replaces both by a comparison.

use std::{num::NonZeroU16, time::Duration};

use tidegate_message::Instant;

use super::{
    DecodeError, EncodeError, PacketId, Publish, PublishProperties, QoS, Version,
    field::Input,
    header::{VARIABLE_MAX, decode_variable, variable, variable_bytes},
    property::{PUBLISH, Properties, Property, id, is_forwarded, spans},
};

impl<'a> Publish<'a> {
    /// The packet whose fixed header begins with `first` and whose body is `body`, whole.
    ///
    /// # Errors
    ///
    /// - `Malformed` for QoS 3, DUP with QoS 0 (not in MQTT 3.1), text that is not UTF-8; `Short` for a cut body.
    /// - `TopicName` for a topic with a wildcard, and for an empty one before MQTT 5.
    /// - `Protocol` for an empty topic without an alias, a packet identifier or subscription identifier of 0; `TopicAlias`.
    /// - `PropertyUnknown`, `PropertyRepeated`.
    #[inline]
    pub fn decode(version: Version, first: u8, body: &'a [u8]) -> Result<Publish<'a>, DecodeError> {
        Self::decode_known(version, first, body, "")
    }

    /// As [`decode`](Self::decode), but a topic equal to `known`, which must be a valid topic name, is not validated again.
    /// The packet then holds `known` itself as its topic.
    ///
    /// # Errors
    ///
    /// Those of [`decode`](Self::decode).
    #[inline]
    pub fn decode_known(
        version: Version,
        first: u8,
        body: &'a [u8],
        known: &'a str,
    ) -> Result<Publish<'a>, DecodeError> {
        let (dup, qos) = delivery(version, first)?;
        let mut input = Input::new(body);
        let topic = input.binary("topic name")?;
        let topic = if topic == known.as_bytes() { known } else { topic_name(topic)? };
        let packet_id = match qos {
            QoS::AtMostOnce => None,
            _ => Some(input.packet_id()?),
        };
        let properties = match version {
            Version::V5 => PublishProperties::take(&mut input)?,
            Version::V3 | Version::V4 => PublishProperties::NONE,
        };
        if topic.is_empty() {
            empty_topic(version, &properties)?;
        }
        let retain = first & 1 != 0;
        Ok(Publish { dup, qos, retain, topic, packet_id, properties, payload: input.rest() })
    }

    /// The part before the payload, of a packet of which only `prefix` has arrived, and how many bytes of the body it takes;
    /// none if `prefix` does not hold it whole. Its payload is what `prefix` holds of it. `body_bytes` is the whole body's
    /// length.
    ///
    /// # Errors
    ///
    /// Those of [`decode`](Self::decode); a head that cannot fit in `body_bytes` is `Short` before it has arrived.
    pub fn decode_head(
        version: Version,
        first: u8,
        prefix: &'a [u8],
        body_bytes: usize,
    ) -> Result<Option<(Publish<'a>, usize)>, DecodeError> {
        let (_, qos) = delivery(version, first)?;
        let prefix = &prefix[..prefix.len().min(body_bytes)];
        let Some(head_bytes) = head_bytes(version, qos, prefix, body_bytes)? else {
            return Ok(None);
        };
        Ok(Some((Self::decode(version, first, prefix)?, head_bytes)))
    }

    pub(super) fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let count = self.topic.len();
        if count > usize::from(u16::MAX) {
            return Err(EncodeError::TooLong { field: "topic name", count });
        }
        if self.topic.as_bytes().contains(&0) {
            return Err(EncodeError::NullCharacter { field: "topic name" });
        }
        if self.qos != QoS::AtMostOnce && self.packet_id.is_none() {
            return Err(EncodeError::Missing { packet: PUBLISH, field: "a packet identifier" });
        }
        let head = PublishHead {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: self.topic,
            packet_id: self.packet_id,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            // All properties, as they came: none is written from the decoded fields.
            forwarded: self.properties.raw,
            payload_bytes: self.payload.len(),
        };
        let body_bytes = head.body_bytes(version);
        if body_bytes > VARIABLE_MAX as usize {
            return Err(EncodeError::PacketTooLarge { body_bytes });
        }
        out.reserve(head.packet_bytes(version));
        head.encode(version, out);
        out.extend_from_slice(self.payload);
        Ok(())
    }
}

/// DUP and quality of service of the first byte.
#[inline]
fn delivery(version: Version, first: u8) -> Result<(bool, QoS), DecodeError> {
    let dup = first & 0b1000 != 0;
    let qos = QoS::of_bits(first >> 1 & 0b11)
        .ok_or(DecodeError::Malformed { field: "quality of service 3", clause: "MQTT-3.3.1-4" })?;
    // MQTT 3.1 has no such rule.
    if dup && qos == QoS::AtMostOnce && version != Version::V3 {
        return Err(DecodeError::Malformed {
            field: "DUP with quality of service 0",
            clause: "MQTT-3.3.1-2",
        });
    }
    Ok((dup, qos))
}

/// A topic name, or nothing.
#[inline]
fn topic_name(bytes: &[u8]) -> Result<&str, DecodeError> {
    let field = "topic name";
    // Without a branch for each byte, so that it runs on vectors.
    let odd = |bad, byte: &u8| bad | (*byte == 0) | (*byte == b'+') | (*byte == b'#');
    if bytes.iter().fold(false, odd) {
        return Err(if bytes.contains(&0) {
            DecodeError::Malformed { field, clause: "MQTT-1.5.4-2" }
        } else {
            DecodeError::TopicName { field, clause: "MQTT-3.3.2-2" }
        });
    }
    std::str::from_utf8(bytes).map_err(|_| DecodeError::Malformed { field, clause: "MQTT-1.5.4-1" })
}

#[cold]
fn empty_topic(version: Version, properties: &PublishProperties<'_>) -> Result<(), DecodeError> {
    if version != Version::V5 {
        return Err(DecodeError::TopicName { field: "topic name", clause: "MQTT-4.7.3-1" });
    }
    if properties.topic_alias.is_none() {
        let what = "topic name is empty and there is no topic alias";
        return Err(DecodeError::Protocol { what, clause: "MQTT 5.0, 3.3.2.1" });
    }
    Ok(())
}

/// How long the head is; none if `prefix` ends before that is known or before the head ends.
fn head_bytes(
    version: Version,
    qos: QoS,
    prefix: &[u8],
    body_bytes: usize,
) -> Result<Option<usize>, DecodeError> {
    // None while bytes up to `end` may still come.
    let within = |end: usize, field| match end {
        _ if end <= prefix.len() => Ok(Some(end)),
        _ if end <= body_bytes => Ok(None),
        _ => Err(DecodeError::Short { field }),
    };
    if within(2, "topic name")?.is_none() {
        return Ok(None);
    }
    let topic_bytes = usize::from(u16::from_be_bytes([prefix[0], prefix[1]]));
    if within(2 + topic_bytes, "topic name")?.is_none() {
        return Ok(None);
    }
    let id_bytes = if qos == QoS::AtMostOnce { 0 } else { 2 };
    let mut end = 2 + topic_bytes + id_bytes;
    if within(end, "packet identifier")?.is_none() {
        return Ok(None);
    }
    if version == Version::V5 {
        let field = "property length";
        let Some((count, length_bytes)) = decode_variable(&prefix[end..], field)? else {
            return within(prefix.len() + 1, field).map(|_| None);
        };
        end += length_bytes + count as usize;
    }
    within(end, "properties")
}

impl<'a> PublishProperties<'a> {
    /// No properties, as in every packet before MQTT 5.
    pub const NONE: Self = Self {
        raw: &[],
        topic_alias: None,
        message_expiry: None,
        is_utf8: false,
        has_response_topic: false,
        all_forwarded: true,
    };

    /// The properties of a PUBLISH, given without their length.
    ///
    /// # Errors
    ///
    /// The errors of [`Publish::decode`] about properties.
    pub fn decode(raw: &'a [u8]) -> Result<Self, DecodeError> {
        let mut found = Self { raw, ..Self::NONE };
        let mut properties = Properties::new(raw, PUBLISH);
        while let Some(property) = properties.next()? {
            match property {
                Property::PayloadFormat(is_utf8) => found.is_utf8 = is_utf8,
                Property::ResponseTopic(_) => found.has_response_topic = true,
                Property::ContentType(_) | Property::CorrelationData(_) | Property::User(..) => {}
                Property::MessageExpiry(seconds) => {
                    found.message_expiry = Some(seconds);
                    found.all_forwarded = false;
                }
                Property::TopicAlias(alias) => {
                    found.topic_alias = Some(alias);
                    found.all_forwarded = false;
                }
                Property::SubscriptionId(_) => found.all_forwarded = false,
                _ => return Err(properties.misplaced()),
            }
        }
        Ok(found)
    }

    #[inline]
    fn take(input: &mut Input<'a>) -> Result<Self, DecodeError> {
        if let [0, left @ ..] = input.rest() {
            *input = Input::new(left);
            return Ok(Self::NONE);
        }
        let count = input.variable("property length")?;
        Self::decode(input.bytes(count as usize, "properties")?)
    }

    /// Response Topic.
    pub fn response_topic(&self) -> Option<&'a str> {
        if self.has_response_topic { text(self.value(id::RESPONSE_TOPIC)?) } else { None }
    }

    /// Correlation Data.
    pub fn correlation_data(&self) -> Option<&'a [u8]> {
        Input::new(self.value(id::CORRELATION_DATA)?).binary("").ok()
    }

    /// Content Type.
    pub fn content_type(&self) -> Option<&'a str> {
        text(self.value(id::CONTENT_TYPE)?)
    }

    /// User properties, in order.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        spans(self.raw).filter(|(id, ..)| *id == id::USER).filter_map(|(_, value, _)| {
            let mut input = Input::new(value);
            Some((input.text("").ok()?, input.text("").ok()?))
        })
    }

    /// Subscription identifiers, which only a server sends.
    pub fn subscription_ids(&self) -> impl Iterator<Item = u32> + use<'a> {
        let raw = if self.all_forwarded { &[] } else { self.raw };
        spans(raw)
            .filter(|(id, ..)| *id == id::SUBSCRIPTION_ID)
            .filter_map(|(_, value, _)| Input::new(value).variable("").ok())
    }

    /// Appends what a server forwards unaltered (section 3.3.2.3), without a length: payload format, content type, response
    /// topic, correlation data and user properties, in the order in which they came.
    pub fn forwarded(&self, out: &mut Vec<u8>) {
        if self.all_forwarded {
            out.extend_from_slice(self.raw);
            return;
        }
        for (id, _, whole) in spans(self.raw) {
            if is_forwarded(id) {
                out.extend_from_slice(whole);
            }
        }
    }

    /// Appends all properties but the user properties of that name, without a length and in the order in which they came.
    pub fn without(&self, name: &str, out: &mut Vec<u8>) {
        for (kind, value, whole) in spans(self.raw) {
            let is_it = kind == id::USER && Input::new(value).text("").is_ok_and(|it| it == name);
            if !is_it {
                out.extend_from_slice(whole);
            }
        }
    }

    /// The last property as it is encoded; empty if there is none.
    pub fn last(&self) -> &'a [u8] {
        spans(self.raw).last().map_or(&[], |(.., whole)| whole)
    }

    fn value(&self, wanted: u8) -> Option<&'a [u8]> {
        spans(self.raw).find(|(id, ..)| *id == wanted).map(|(_, value, _)| value)
    }
}

fn text(value: &[u8]) -> Option<&str> {
    Input::new(value).text("").ok()
}

/// The bytes before the payload of an outgoing PUBLISH.
///
/// Before MQTT 5 the alias, the expiry, the subscription identifiers and the forwarded properties are left out.
#[derive(Clone, Copy, Debug)]
pub struct PublishHead<'a> {
    /// Whether it may have been sent before.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Whether it is, or was, retained.
    pub retain: bool,
    /// Topic name, at most 65,535 bytes; empty if the alias stands for it.
    pub topic: &'a str,
    /// There with QoS 1 and 2; left out with QoS 0.
    pub packet_id: Option<PacketId>,
    /// Topic Alias.
    pub topic_alias: Option<NonZeroU16>,
    /// Message Expiry Interval in seconds.
    pub message_expiry: Option<u32>,
    /// Identifiers of the subscriptions that the message is for, 1 to 268,435,455.
    pub subscription_ids: &'a [u32],
    /// Properties as they are encoded, without a length.
    pub forwarded: &'a [u8],
    /// Length of the payload that follows.
    pub payload_bytes: usize,
}

impl PublishHead<'_> {
    /// Length of the whole packet, payload included.
    #[inline]
    pub fn packet_bytes(&self, version: Version) -> usize {
        let body_bytes = self.body_bytes(version);
        1 + variable_bytes(u32::try_from(body_bytes).unwrap_or(u32::MAX)) + body_bytes
    }

    #[inline]
    fn body_bytes(&self, version: Version) -> usize {
        let id_bytes = if self.qos == QoS::AtMostOnce { 0 } else { 2 };
        let properties_bytes = match version {
            Version::V3 | Version::V4 => 0,
            Version::V5 => {
                let count = self.properties_bytes();
                variable_bytes(u32::try_from(count).unwrap_or(u32::MAX)) + count
            }
        };
        2 + self.topic.len() + id_bytes + properties_bytes + self.payload_bytes
    }

    #[inline]
    fn properties_bytes(&self) -> usize {
        let alias_bytes = if self.topic_alias.is_some() { 3 } else { 0 };
        let expiry_bytes = if self.message_expiry.is_some() { 5 } else { 0 };
        let ids_bytes: usize = self.subscription_ids.iter().map(|id| 1 + variable_bytes(*id)).sum();
        alias_bytes + expiry_bytes + ids_bytes + self.forwarded.len()
    }

    /// Appends the fixed header and all that stands before the payload. Allocates only if `out` has no room for them.
    ///
    /// # Panics
    ///
    /// If the topic is longer than 65,535 bytes, the body than 268,435,455 ([`packet_bytes`](Self::packet_bytes) tells), or
    /// QoS 1 or 2 has no packet identifier.
    #[inline]
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let body_bytes = self.body_bytes(version);
        let length = u32::try_from(body_bytes).expect("a packet is at most 256 MiB");
        let (length, length_bytes) = variable(length);
        let topic_bytes = u16::try_from(self.topic.len()).expect("a topic is at most 65535 bytes");
        out.reserve(1 + length_bytes + body_bytes - self.payload_bytes);
        let flags = u8::from(self.dup) << 3 | (self.qos as u8) << 1 | u8::from(self.retain);
        out.push(0x30 | flags);
        out.extend_from_slice(&length[..length_bytes]);
        out.extend_from_slice(&topic_bytes.to_be_bytes());
        out.extend_from_slice(self.topic.as_bytes());
        if self.qos != QoS::AtMostOnce {
            let packet_id = self.packet_id.expect("QoS 1 and 2 have a packet identifier");
            out.extend_from_slice(&packet_id.get().to_be_bytes());
        }
        if version == Version::V5 {
            self.encode_properties(out);
        }
    }

    #[inline]
    fn encode_properties(&self, out: &mut Vec<u8>) {
        let count = u32::try_from(self.properties_bytes()).expect("a packet is at most 256 MiB");
        let (length, length_bytes) = variable(count);
        out.extend_from_slice(&length[..length_bytes]);
        if let Some(alias) = self.topic_alias {
            let [high, low] = alias.get().to_be_bytes();
            out.extend_from_slice(&[id::TOPIC_ALIAS, high, low]);
        }
        if let Some(seconds) = self.message_expiry {
            out.push(id::MESSAGE_EXPIRY);
            out.extend_from_slice(&seconds.to_be_bytes());
        }
        for subscription_id in self.subscription_ids {
            let (bytes, count) = variable(*subscription_id);
            out.push(id::SUBSCRIPTION_ID);
            out.extend_from_slice(&bytes[..count]);
        }
        out.extend_from_slice(self.forwarded);
    }
}

/// Message Expiry Interval that is left, in whole seconds, rounded up (MQTT 5, 3.3.2.3.3).
#[inline]
pub fn seconds_left(expires: Option<Instant>, now: Instant) -> Option<u32> {
    let left = expires?.since(now);
    let seconds = left.as_secs() + u64::from(left > Duration::from_secs(left.as_secs()));
    Some(u32::try_from(seconds).unwrap_or(u32::MAX))
}

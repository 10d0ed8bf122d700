//! Properties (section 2.2.2).
//!
//! Always true: each value that [`Properties`] yields keeps the rules that concern one property (type, range, U+0000) and stands
//! once if it may stand but once. Which properties a packet may have is that packet's to say.

use std::num::NonZeroU16;

use super::{
    DecodeError, EncodeError, QoS, UserProperties,
    field::{Input, put_binary, put_text, put_u16, put_u32},
    header::{VARIABLE_MAX, decode_variable, encode_variable},
};

/// The identifiers (section 2.2.2.2).
pub(super) mod id {
    pub(crate) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(crate) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
    pub(crate) const CORRELATION_DATA: u8 = 0x09;
    pub(crate) const SUBSCRIPTION_ID: u8 = 0x0b;
    pub(crate) const SESSION_EXPIRY: u8 = 0x11;
    pub(crate) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(crate) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(crate) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(crate) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(crate) const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub(crate) const WILL_DELAY: u8 = 0x18;
    pub(crate) const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub(crate) const RESPONSE_INFORMATION: u8 = 0x1a;
    pub(crate) const SERVER_REFERENCE: u8 = 0x1c;
    pub(crate) const REASON_STRING: u8 = 0x1f;
    pub(crate) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(crate) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(crate) const TOPIC_ALIAS: u8 = 0x23;
    pub(crate) const MAXIMUM_QOS: u8 = 0x24;
    pub(crate) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(crate) const USER: u8 = 0x26;
    pub(crate) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub(crate) const WILDCARD_AVAILABLE: u8 = 0x28;
    pub(crate) const SUBSCRIPTION_IDS_AVAILABLE: u8 = 0x29;
    pub(crate) const SHARED_AVAILABLE: u8 = 0x2a;
}

/// The one packet in which the identifier of a subscription may stand more than once (section 3.3.2.3.8).
pub(super) const PUBLISH: &str = "PUBLISH";

/// One property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Property<'a> {
    PayloadFormat(bool),
    MessageExpiry(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    SubscriptionId(u32),
    SessionExpiry(u32),
    AssignedClientId(&'a str),
    ServerKeepAlive(u16),
    AuthenticationMethod(&'a str),
    AuthenticationData(&'a [u8]),
    RequestProblemInformation(bool),
    WillDelay(u32),
    RequestResponseInformation(bool),
    ResponseInformation(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    ReceiveMaximum(NonZeroU16),
    TopicAliasMaximum(u16),
    TopicAlias(NonZeroU16),
    MaximumQoS(QoS),
    RetainAvailable(bool),
    User(&'a str, &'a str),
    MaximumPacketSize(u32),
    WildcardAvailable(bool),
    SubscriptionIdsAvailable(bool),
    SharedAvailable(bool),
}

/// The properties of a packet while they are decoded.
pub(super) struct Properties<'a> {
    input: Input<'a>,
    packet: &'static str,
    /// A bit for each identifier that was there.
    seen: u64,
    /// Of the property that came last.
    id: u8,
    span: &'a [u8],
}

impl<'a> Properties<'a> {
    /// Takes a length and that many bytes from `input`.
    #[inline]
    pub(super) fn take(
        input: &mut Input<'a>,
        packet: &'static str,
    ) -> Result<Properties<'a>, DecodeError> {
        let count = input.variable("property length")?;
        Ok(Self::new(input.bytes(count as usize, "properties")?, packet))
    }

    pub(super) fn new(raw: &'a [u8], packet: &'static str) -> Self {
        Self { input: Input::new(raw), packet, seen: 0, id: 0, span: &[] }
    }

    pub(super) fn next(&mut self) -> Result<Option<Property<'a>>, DecodeError> {
        let start = self.input.rest();
        let Some(&id) = start.first() else { return Ok(None) };
        // The identifier is of variable length, yet all that are defined have one byte.
        if id > id::SHARED_AVAILABLE {
            return Err(DecodeError::PropertyUnknown { packet: self.packet, id });
        }
        self.input = Input::new(&start[1..]);
        let property = self.property(id)?;
        let may_repeat = id == id::USER || (id == id::SUBSCRIPTION_ID && self.packet == PUBLISH);
        if self.seen & 1 << id != 0 && !may_repeat {
            return Err(DecodeError::PropertyRepeated { packet: self.packet, id });
        }
        self.seen |= 1 << id;
        self.id = id;
        self.span = &start[..start.len() - self.input.rest().len()];
        Ok(Some(property))
    }

    fn property(&mut self, id: u8) -> Result<Property<'a>, DecodeError> {
        let packet = self.packet;
        let input = &mut self.input;
        Ok(match id {
            id::PAYLOAD_FORMAT => {
                Property::PayloadFormat(flag(input, "payload format is neither 0 nor 1")?)
            }
            id::MESSAGE_EXPIRY => Property::MessageExpiry(input.u32_be("message expiry interval")?),
            id::CONTENT_TYPE => Property::ContentType(input.text("content type")?),
            id::RESPONSE_TOPIC => {
                let topic = input.text("response topic")?;
                if topic.is_empty() || topic.contains(['+', '#']) {
                    let what = "response topic is empty or has a wildcard";
                    return Err(DecodeError::Protocol { what, clause: "MQTT-3.3.2-14" });
                }
                Property::ResponseTopic(topic)
            }
            id::CORRELATION_DATA => Property::CorrelationData(input.binary("correlation data")?),
            id::SUBSCRIPTION_ID => match input.variable("subscription identifier")? {
                0 => return Err(zero("subscription identifier is 0", "MQTT 5.0, 3.8.2.1.2")),
                value => Property::SubscriptionId(value),
            },
            id::SESSION_EXPIRY => Property::SessionExpiry(input.u32_be("session expiry interval")?),
            id::ASSIGNED_CLIENT_ID => {
                Property::AssignedClientId(input.text("assigned client identifier")?)
            }
            id::SERVER_KEEP_ALIVE => Property::ServerKeepAlive(input.u16_be("server keep alive")?),
            id::AUTHENTICATION_METHOD => {
                Property::AuthenticationMethod(input.text("authentication method")?)
            }
            id::AUTHENTICATION_DATA => {
                Property::AuthenticationData(input.binary("authentication data")?)
            }
            id::REQUEST_PROBLEM_INFORMATION => Property::RequestProblemInformation(flag(
                input,
                "request problem information is neither 0 nor 1",
            )?),
            id::WILL_DELAY => Property::WillDelay(input.u32_be("will delay interval")?),
            id::REQUEST_RESPONSE_INFORMATION => Property::RequestResponseInformation(flag(
                input,
                "request response information is neither 0 nor 1",
            )?),
            id::RESPONSE_INFORMATION => {
                Property::ResponseInformation(input.text("response information")?)
            }
            id::SERVER_REFERENCE => Property::ServerReference(input.text("server reference")?),
            id::REASON_STRING => Property::ReasonString(input.text("reason string")?),
            id::RECEIVE_MAXIMUM => Property::ReceiveMaximum(
                NonZeroU16::new(input.u16_be("receive maximum")?)
                    .ok_or(zero("receive maximum is 0", "MQTT 5.0, 3.1.2.11.3"))?,
            ),
            id::TOPIC_ALIAS_MAXIMUM => {
                Property::TopicAliasMaximum(input.u16_be("topic alias maximum")?)
            }
            id::TOPIC_ALIAS => Property::TopicAlias(
                NonZeroU16::new(input.u16_be("topic alias")?).ok_or(DecodeError::TopicAlias)?,
            ),
            id::MAXIMUM_QOS => Property::MaximumQoS(
                match flag(input, "maximum quality of service is neither 0 nor 1")? {
                    false => QoS::AtMostOnce,
                    true => QoS::AtLeastOnce,
                },
            ),
            id::RETAIN_AVAILABLE => {
                Property::RetainAvailable(flag(input, "retain available is neither 0 nor 1")?)
            }
            id::USER => {
                Property::User(input.text("user property name")?, input.text("user property")?)
            }
            id::MAXIMUM_PACKET_SIZE => match input.u32_be("maximum packet size")? {
                0 => return Err(zero("maximum packet size is 0", "MQTT 5.0, 3.1.2.11.4")),
                value => Property::MaximumPacketSize(value),
            },
            id::WILDCARD_AVAILABLE => Property::WildcardAvailable(flag(
                input,
                "wildcard subscription available is neither 0 nor 1",
            )?),
            id::SUBSCRIPTION_IDS_AVAILABLE => Property::SubscriptionIdsAvailable(flag(
                input,
                "subscription identifiers available is neither 0 nor 1",
            )?),
            id::SHARED_AVAILABLE => Property::SharedAvailable(flag(
                input,
                "shared subscription available is neither 0 nor 1",
            )?),
            _ => return Err(DecodeError::PropertyUnknown { packet, id }),
        })
    }

    /// The property that came last has no place in this packet.
    pub(super) fn misplaced(&self) -> DecodeError {
        DecodeError::PropertyUnknown { packet: self.packet, id: self.id }
    }

    /// The bytes of the property that came last.
    pub(super) fn span(&self) -> &'a [u8] {
        self.span
    }
}

fn flag(input: &mut Input<'_>, what: &'static str) -> Result<bool, DecodeError> {
    match input.u8("property of one byte")? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Protocol { what, clause: "MQTT 5.0, 4.13" }),
    }
}

fn zero(what: &'static str, clause: &'static str) -> DecodeError {
    DecodeError::Protocol { what, clause }
}

/// Splits validated properties: identifier, value as it is encoded, and the whole; ends early where they are not valid.
pub(super) fn spans(mut raw: &[u8]) -> impl Iterator<Item = (u8, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (&id, value) = raw.split_first()?;
        let count = value_bytes(id, value)?;
        let (whole, left) = raw.split_at_checked(1 + count)?;
        raw = left;
        Some((id, &whole[1..], whole))
    })
}

fn value_bytes(id: u8, value: &[u8]) -> Option<usize> {
    let prefixed = |at: usize| {
        let length = value.get(at..)?.first_chunk()?;
        Some(at + 2 + usize::from(u16::from_be_bytes(*length)))
    };
    match id {
        id::SUBSCRIPTION_ID => Some(decode_variable(value, "").ok()??.1),
        id::MESSAGE_EXPIRY | id::SESSION_EXPIRY | id::WILL_DELAY | id::MAXIMUM_PACKET_SIZE => {
            Some(4)
        }
        id::SERVER_KEEP_ALIVE | id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM | id::TOPIC_ALIAS => {
            Some(2)
        }
        id::CONTENT_TYPE
        | id::RESPONSE_TOPIC
        | id::CORRELATION_DATA
        | id::ASSIGNED_CLIENT_ID
        | id::AUTHENTICATION_METHOD
        | id::AUTHENTICATION_DATA
        | id::RESPONSE_INFORMATION
        | id::SERVER_REFERENCE
        | id::REASON_STRING => prefixed(0),
        id::USER => prefixed(prefixed(0)?),
        _ => Some(1),
    }
}

/// Whether a server forwards that property unaltered (section 3.3.2.3).
pub(super) fn is_forwarded(id: u8) -> bool {
    matches!(
        id,
        id::PAYLOAD_FORMAT
            | id::CONTENT_TYPE
            | id::RESPONSE_TOPIC
            | id::CORRELATION_DATA
            | id::USER
    )
}

/// The properties that a server forwards unaltered with a message (section 3.3.2.3), as
/// [`PublishHead`](super::PublishHead) and [`Will`](super::Will) hold them encoded.
///
/// ```
/// use tidegate_wire::mqtt::ForwardedProperties;
///
/// let mut encoded = Vec::new();
/// ForwardedProperties { content_type: Some("image/jpeg"), ..Default::default() }
///     .encode(&mut encoded)?;
/// assert_eq!(ForwardedProperties::decode(&encoded).unwrap().content_type, Some("image/jpeg"));
/// # Ok::<(), tidegate_wire::mqtt::EncodeError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedProperties<'a> {
    /// Whether Payload Format Indicator says UTF-8.
    pub is_utf8: bool,
    /// Content Type.
    pub content_type: Option<&'a str>,
    /// Response Topic: a topic name without wildcards.
    pub response_topic: Option<&'a str>,
    /// Correlation Data.
    pub correlation_data: Option<&'a [u8]>,
    /// User properties, in order.
    pub user_properties: Vec<(&'a str, &'a str)>,
}

impl<'a> ForwardedProperties<'a> {
    /// Decodes properties without their length.
    ///
    /// # Errors
    ///
    /// Those of [`Publish::decode`](super::Publish::decode), and `PropertyUnknown` for properties that are not forwarded.
    pub fn decode(raw: &'a [u8]) -> Result<Self, DecodeError> {
        let mut properties = Properties::new(raw, PUBLISH);
        let mut forwarded = Self::default();
        while let Some(property) = properties.next()? {
            match property {
                Property::PayloadFormat(is_utf8) => forwarded.is_utf8 = is_utf8,
                Property::ContentType(text) => forwarded.content_type = Some(text),
                Property::ResponseTopic(topic) => forwarded.response_topic = Some(topic),
                Property::CorrelationData(data) => forwarded.correlation_data = Some(data),
                Property::User(name, value) => forwarded.user_properties.push((name, value)),
                _ => return Err(properties.misplaced()),
            }
        }
        Ok(forwarded)
    }

    /// Appends them without their length.
    ///
    /// # Errors
    ///
    /// `TooLong` and `NullCharacter` for a text or the correlation data; `out` then holds a part of them.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.is_utf8 {
            put_byte(id::PAYLOAD_FORMAT, 1, out);
        }
        put_text_property(id::CONTENT_TYPE, self.content_type, "content type", out)?;
        put_text_property(id::RESPONSE_TOPIC, self.response_topic, "response topic", out)?;
        put_data_property(id::CORRELATION_DATA, self.correlation_data, "correlation data", out)?;
        for (name, value) in &self.user_properties {
            put_user_property(name, value, out)?;
        }
        Ok(())
    }
}

pub(super) fn put_byte(id: u8, value: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[id, value]);
}

pub(super) fn put_flag(id: u8, value: Option<bool>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        put_byte(id, u8::from(value), out);
    }
}

pub(super) fn put_two(id: u8, value: Option<u16>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        out.push(id);
        put_u16(value, out);
    }
}

pub(super) fn put_four(id: u8, value: Option<u32>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        out.push(id);
        put_u32(value, out);
    }
}

/// A Maximum Packet Size, which cannot be zero.
pub(super) fn put_maximum_packet_size(
    value: Option<u32>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    if value == Some(0) {
        return Err(EncodeError::OutOfRange { field: "maximum packet size", value: 0 });
    }
    put_four(id::MAXIMUM_PACKET_SIZE, value, out);
    Ok(())
}

pub(super) fn put_subscription_id(
    value: Option<u32>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    match value {
        None => {}
        Some(value @ 1..=VARIABLE_MAX) => {
            out.push(id::SUBSCRIPTION_ID);
            encode_variable(value, out);
        }
        Some(value) => {
            return Err(EncodeError::OutOfRange { field: "subscription identifier", value });
        }
    }
    Ok(())
}

pub(super) fn put_text_property(
    id: u8,
    text: Option<&str>,
    field: &'static str,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let Some(text) = text else { return Ok(()) };
    out.push(id);
    put_text(text, field, out)
}

pub(super) fn put_data_property(
    id: u8,
    data: Option<&[u8]>,
    field: &'static str,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let Some(data) = data else { return Ok(()) };
    out.push(id);
    put_binary(data, field, out)
}

pub(super) fn put_user_properties(
    properties: &UserProperties,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    properties.iter().try_for_each(|(name, value)| put_user_property(name, value, out))
}

/// Appends a User Property (MQTT 5, section 3.3.2.3.7).
///
/// # Errors
///
/// `TooLong` and `NullCharacter` for either text; `out` then holds a part of it.
pub fn put_user_property(name: &str, value: &str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    out.push(id::USER);
    put_text(name, "user property name", out)?;
    put_text(value, "user property", out)
}

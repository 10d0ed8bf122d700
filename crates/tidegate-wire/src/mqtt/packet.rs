//! The control packets (MQTT 5.0, section 3).

use std::{fmt, num::NonZeroU16};

use super::ReasonCode;

/// A version of the protocol, by its level in CONNECT (section 3.1.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// MQTT 3.1, protocol name `MQIsdp`, level 3.
    V3,
    /// MQTT 3.1.1, level 4.
    V4,
    /// MQTT 5.0, level 5.
    V5,
}

/// How often a message may arrive (section 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QoS {
    /// At most once.
    #[default]
    AtMostOnce = 0,
    /// At least once.
    AtLeastOnce = 1,
    /// Exactly once.
    ExactlyOnce = 2,
}

/// Names an exchange of one session in one direction; never zero (section 2.2.1).
pub type PacketId = NonZeroU16;

/// User properties: names and values, in order, names may repeat (section 3.1.2.11.8).
pub type UserProperties = Vec<(String, String)>;

/// One packet. Long or frequent fields are borrowed from the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A client introduces itself.
    Connect(Box<Connect>),
    /// The server's answer.
    Connack(Box<Connack>),
    /// A message.
    Publish(Publish<'a>),
    /// QoS 1: accepted.
    Puback(Ack),
    /// QoS 2, first answer: accepted.
    Pubrec(Ack),
    /// QoS 2, second step: the packet identifier may be freed.
    Pubrel(Ack),
    /// QoS 2, last answer: it is freed.
    Pubcomp(Ack),
    /// A client asks for messages.
    Subscribe(Subscribe),
    /// The server's answer, a code for each filter.
    Suback(Suback),
    /// A client asks for no more.
    Unsubscribe(Unsubscribe),
    /// The server's answer; codes only in MQTT 5.
    Unsuback(Suback),
    /// A client is alive.
    Pingreq,
    /// So is the server.
    Pingresp,
    /// The last packet of a connection.
    Disconnect(Disconnect),
    /// A step of an extended authentication, MQTT 5 only.
    Auth(Auth),
}

/// CONNECT (section 3.1).
#[derive(Clone, PartialEq, Eq)]
pub struct Connect {
    /// The protocol's version.
    pub version: Version,
    /// Bit 7 of the version byte of MQTT 3.1 and 3.1.1: a bridge of Mosquitto's kind, whose messages keep their retain
    /// flag. False in MQTT 5.
    pub bridge: bool,
    /// Clean Start; Clean Session before MQTT 5.
    pub clean_start: bool,
    /// Longest silence of the client, in seconds; 0 for any.
    pub keep_alive: u16,
    /// The client's name; empty asks the server for one.
    pub client_id: String,
    /// The message that is published when the client leaves without DISCONNECT.
    pub will: Option<Will>,
    /// User name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<Vec<u8>>,
    /// MQTT 5's properties; the defaults before it.
    pub properties: ConnectProperties,
}

/// Says nothing of the password.
impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("version", &self.version)
            .field("client_id", &self.client_id)
            .field("clean_start", &self.clean_start)
            .field("keep_alive", &self.keep_alive)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .field("will", &self.will)
            .field("properties", &self.properties)
            .finish_non_exhaustive()
    }
}

/// Properties of CONNECT (section 3.1.2.11). Absent is `None` where absence has a meaning of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectProperties {
    /// Session Expiry Interval in seconds, `u32::MAX` for never; absent is 0.
    pub session_expiry: Option<u32>,
    /// Receive Maximum of the client; absent is 65535.
    pub receive_maximum: Option<NonZeroU16>,
    /// Maximum Packet Size that the client takes, in bytes.
    pub maximum_packet_size: Option<u32>,
    /// Topic aliases that the client takes; absent is 0.
    pub topic_alias_maximum: u16,
    /// Whether CONNACK may carry Response Information.
    pub request_response_information: bool,
    /// Whether reason strings and user properties may be on every packet; absent is true.
    pub request_problem_information: Option<bool>,
    /// User properties.
    pub user_properties: UserProperties,
    /// Authentication Method.
    pub authentication_method: Option<String>,
    /// Authentication Data.
    pub authentication_data: Option<Vec<u8>>,
}

/// The will of a client (sections 3.1.2.5 and 3.1.3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// Quality of service.
    pub qos: QoS,
    /// Whether it is retained.
    pub retain: bool,
    /// Will Delay Interval in seconds.
    pub delay: u32,
    /// Message Expiry Interval in seconds.
    pub message_expiry: Option<u32>,
    /// Properties to forward with it, as they are encoded in PUBLISH, without a length: payload format, content type,
    /// response topic, correlation data, user properties. Validated.
    pub forwarded: Vec<u8>,
}

/// CONNACK (section 3.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connack {
    /// Whether the server kept a session of that client.
    pub session_present: bool,
    /// Success, or why not. Before MQTT 5, encoded as the return code that fits best.
    pub reason: ReasonCode,
    /// MQTT 5's properties.
    pub properties: ConnackProperties,
}

/// Properties of CONNACK (section 3.2.2.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnackProperties {
    /// Session Expiry Interval in use, if it is not the one asked for.
    pub session_expiry: Option<u32>,
    /// Receive Maximum of the server; absent is 65535.
    pub receive_maximum: Option<NonZeroU16>,
    /// Highest QoS of the server; absent is 2.
    pub maximum_qos: Option<QoS>,
    /// Whether messages may be retained; absent is true.
    pub retain_available: Option<bool>,
    /// Maximum Packet Size that the server takes.
    pub maximum_packet_size: Option<u32>,
    /// The name that the server chose.
    pub assigned_client_id: Option<String>,
    /// Topic aliases that the server takes.
    pub topic_alias_maximum: u16,
    /// Why, for people.
    pub reason_string: Option<String>,
    /// User properties.
    pub user_properties: UserProperties,
    /// Whether filters may have wildcards; absent is true.
    pub wildcard_available: Option<bool>,
    /// Whether subscriptions may have identifiers; absent is true.
    pub subscription_ids_available: Option<bool>,
    /// Whether subscriptions may be shared; absent is true.
    pub shared_available: Option<bool>,
    /// Keep Alive in use, if it is not the one asked for.
    pub server_keep_alive: Option<u16>,
    /// Response Information.
    pub response_information: Option<String>,
    /// Another server to use.
    pub server_reference: Option<String>,
    /// Authentication Method.
    pub authentication_method: Option<String>,
    /// Authentication Data.
    pub authentication_data: Option<Vec<u8>>,
}

/// PUBLISH (section 3.3), borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Whether it may have been sent before.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// From a client: whether it is to be retained. From a server: whether it was.
    pub retain: bool,
    /// Topic name, valid; empty only in MQTT 5 with an alias.
    pub topic: &'a str,
    /// There with QoS 1 and 2 alone.
    pub packet_id: Option<PacketId>,
    /// MQTT 5's properties.
    pub properties: PublishProperties<'a>,
    /// The payload, or as much of it as the input holds.
    pub payload: &'a [u8],
}

/// Properties of PUBLISH (section 3.3.2.3), validated and borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishProperties<'a> {
    /// All of them as they stand in the packet, without their length.
    pub raw: &'a [u8],
    /// Topic Alias.
    pub topic_alias: Option<NonZeroU16>,
    /// Message Expiry Interval in seconds.
    pub message_expiry: Option<u32>,
    /// Whether Payload Format Indicator says UTF-8.
    pub is_utf8: bool,
    /// Whether there is a Response Topic.
    pub has_response_topic: bool,
    /// Whether `raw` holds nothing but what is forwarded unaltered: no alias, no expiry, no subscription identifier.
    pub all_forwarded: bool,
}

/// PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Of the exchange.
    pub packet_id: PacketId,
    /// Success before MQTT 5.
    pub reason: ReasonCode,
    /// Why, for people.
    pub reason_string: Option<String>,
    /// User properties.
    pub user_properties: UserProperties,
}

impl Ack {
    /// An answer that is a reason alone.
    pub fn new(packet_id: PacketId, reason: ReasonCode) -> Self {
        Self { packet_id, reason, reason_string: None, user_properties: Vec::new() }
    }
}

/// SUBSCRIBE (section 3.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Of the exchange.
    pub packet_id: PacketId,
    /// Subscription Identifier, 1 to 268,435,455.
    pub subscription_id: Option<u32>,
    /// User properties.
    pub user_properties: UserProperties,
    /// At least one. Each filter is UTF-8 without U+0000; whether it is a valid filter is the broker's to say, so that one
    /// bad filter fails alone.
    pub filters: Vec<SubscribeFilter>,
}

/// One filter of SUBSCRIBE and its options (section 3.8.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeFilter {
    /// The filter as it was sent, with `$share/NAME/` if it is shared.
    pub filter: String,
    /// Most that messages may come with.
    pub maximum_qos: QoS,
    /// Whether the client's own messages do not come back.
    pub no_local: bool,
    /// Whether messages keep their retain flag.
    pub retain_as_published: bool,
    /// Which retained messages are sent.
    pub retain_handling: RetainHandling,
}

/// Which retained messages a subscription is sent (section 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetainHandling {
    /// All that match.
    #[default]
    Send = 0,
    /// All that match, if there was no such subscription.
    SendIfNew = 1,
    /// None.
    DoNotSend = 2,
}

/// SUBACK and UNSUBACK (sections 3.9 and 3.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suback {
    /// Of the exchange.
    pub packet_id: PacketId,
    /// Why, for people.
    pub reason_string: Option<String>,
    /// User properties.
    pub user_properties: UserProperties,
    /// A code for each filter, in order. Before MQTT 5 a failure is 0x80, and UNSUBACK has none.
    pub reasons: Vec<ReasonCode>,
}

/// UNSUBSCRIBE (section 3.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Of the exchange.
    pub packet_id: PacketId,
    /// User properties.
    pub user_properties: UserProperties,
    /// At least one, UTF-8 without U+0000.
    pub filters: Vec<String>,
}

/// DISCONNECT (section 3.14). Before MQTT 5 only a client sends it, and it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disconnect {
    /// Why.
    pub reason: ReasonCode,
    /// Session Expiry Interval in seconds, from a client.
    pub session_expiry: Option<u32>,
    /// Why, for people.
    pub reason_string: Option<String>,
    /// User properties.
    pub user_properties: UserProperties,
    /// Another server to use, from a server.
    pub server_reference: Option<String>,
}

/// AUTH (section 3.15).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// Success, Continue authentication or Re-authenticate.
    pub reason: ReasonCode,
    /// Authentication Method.
    pub method: Option<String>,
    /// Authentication Data.
    pub data: Option<Vec<u8>>,
    /// Why, for people.
    pub reason_string: Option<String>,
    /// User properties.
    pub user_properties: UserProperties,
}

impl Version {
    /// The level in CONNECT.
    pub const fn level(self) -> u8 {
        match self {
            Self::V3 => 3,
            Self::V4 => 4,
            Self::V5 => 5,
        }
    }
}

impl QoS {
    /// The quality of service of two bits; none for 3.
    pub const fn of_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

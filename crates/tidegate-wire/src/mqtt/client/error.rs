//! Why a connection ends, and why a command is not carried out.

use std::{fmt, num::NonZeroU16, time::Duration};

use super::super::{DecodeError, EncodeError, PacketId, QoS, ReasonCode};

/// Why a connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Bytes that are no MQTT packet, or a packet longer than this client takes.
    #[error("the server sent a malformed MQTT packet")]
    Packet(#[from] DecodeError),
    /// CONNACK with a failure.
    #[error("the server refuses the connection: {reason}{}", Said(reason_string))]
    Refused {
        /// Why.
        reason: ReasonCode,
        /// Text for people that the server added.
        reason_string: Option<String>,
    },
    /// DISCONNECT.
    #[error("the server ended the connection: {reason}{}", Said(reason_string))]
    Disconnected {
        /// Why.
        reason: ReasonCode,
        /// Text for people that the server added.
        reason_string: Option<String>,
    },
    /// A packet that a server does not send, or not at this time.
    #[error("the server sent {packet} ({first:#04x}) {}", if *before_connack { "before CONNACK" } else { "out of place" })]
    Unexpected {
        /// Its name.
        packet: &'static str,
        /// Its first byte.
        first: u8,
        /// Whether CONNACK had not come.
        before_connack: bool,
    },
    /// An answer to what was not asked.
    #[error("the server sent {packet} for packet identifier {id}, which does not wait for it")]
    Unasked {
        /// Its name.
        packet: &'static str,
        /// Its packet identifier.
        id: PacketId,
    },
    /// A session where a new one was asked for.
    #[error(
        "the server says that it has a session, and Clean Start asked for a new one (MQTT-3.1.2-4)"
    )]
    SessionPresent,
    /// More messages than CONNECT allows.
    #[error(
        "the server sent more than {maximum} messages without waiting for an acknowledgement (MQTT-3.3.4-9)"
    )]
    ReceiveMaximum {
        /// Receive Maximum of CONNECT.
        maximum: usize,
    },
    /// A topic alias that was not defined, or is over Topic Alias Maximum of CONNECT.
    #[error(
        "the server used topic alias {alias}, which it did not define or which is over {maximum}"
    )]
    TopicAlias {
        /// The alias.
        alias: usize,
        /// Topic Alias Maximum of CONNECT.
        maximum: usize,
    },
    /// An answer did not come in time.
    #[error("the server did not send {wanted} within {after:?}")]
    Silent {
        /// CONNACK or PINGRESP.
        wanted: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
}

/// Text for people that a server adds.
struct Said<'a>(&'a Option<String>);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |text| write!(f, ", \"{text}\""))
    }
}

/// Why a message was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no connection.
    #[error("the client is not connected")]
    NotConnected,
    /// As many messages are under way as the server or the configuration allows.
    #[error("{unacknowledged} messages wait for their acknowledgement, and no more may")]
    NoRoom {
        /// How many.
        unacknowledged: usize,
    },
    /// Not a topic name.
    #[error(
        "{topic:?} is not a topic name: it is empty, longer than 65535 bytes, or has a wildcard or U+0000"
    )]
    Topic {
        /// The topic.
        topic: String,
    },
    /// The packet is longer than the server takes.
    #[error("a packet of {packet_bytes} bytes is longer than the server takes, {maximum}")]
    TooLarge {
        /// Length of the packet.
        packet_bytes: usize,
        /// The server's Maximum Packet Size.
        maximum: usize,
    },
    /// The server does not take that quality of service (MQTT-3.2.2-11).
    #[error("the server takes QoS {} at most, and the message has QoS {}", *maximum as u8, *qos as u8)]
    QoS {
        /// Of the message.
        qos: QoS,
        /// The server's Maximum QoS.
        maximum: QoS,
    },
    /// The server retains nothing (MQTT-3.2.2-14).
    #[error("the server retains no messages")]
    Retain,
    /// An alias that the server does not take (MQTT-3.2.2-17).
    #[error("topic alias {alias} is over the server's maximum, {maximum}")]
    TopicAlias {
        /// The alias.
        alias: NonZeroU16,
        /// The server's Topic Alias Maximum.
        maximum: u16,
    },
}

impl PublishError {
    /// The reason that a server would have given, for callers that pass answers on.
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::NotConnected => ReasonCode::SERVER_UNAVAILABLE,
            Self::NoRoom { .. } => ReasonCode::RECEIVE_MAXIMUM_EXCEEDED,
            Self::Topic { .. } => ReasonCode::TOPIC_NAME_INVALID,
            Self::TooLarge { .. } => ReasonCode::PACKET_TOO_LARGE,
            Self::QoS { .. } => ReasonCode::QOS_NOT_SUPPORTED,
            Self::Retain => ReasonCode::RETAIN_NOT_SUPPORTED,
            Self::TopicAlias { .. } => ReasonCode::TOPIC_ALIAS_INVALID,
        }
    }
}

/// Why a request was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// There is no connection.
    #[error("the client is not connected")]
    NotConnected,
    /// As many requests are under way as the configuration allows.
    #[error("{maximum} requests wait for their answer, and no more may")]
    NoRoom {
        /// How many may.
        maximum: NonZeroU16,
    },
    /// The server has no wildcards (section 3.2.2.3.11).
    #[error("the server takes no wildcards, and {filter:?} has one")]
    Wildcard {
        /// The filter.
        filter: String,
    },
    /// The server has no shared subscriptions (section 3.2.2.3.13).
    #[error("the server shares no subscriptions, and {filter:?} asks for one")]
    Shared {
        /// The filter.
        filter: String,
    },
    /// The server has no subscription identifiers (section 3.2.2.3.12).
    #[error("the server takes no subscription identifiers")]
    SubscriptionId,
    /// No such packet.
    #[error("the request cannot be encoded")]
    Encode(#[from] EncodeError),
}

impl SubscribeError {
    /// The reason that a server would have given, for callers that pass answers on.
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::NotConnected => ReasonCode::SERVER_UNAVAILABLE,
            Self::NoRoom { .. } => ReasonCode::QUOTA_EXCEEDED,
            Self::Wildcard { .. } => ReasonCode::WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
            Self::Shared { .. } => ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
            Self::SubscriptionId => ReasonCode::SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
            Self::Encode(_) => ReasonCode::TOPIC_FILTER_INVALID,
        }
    }
}

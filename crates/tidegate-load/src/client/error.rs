//! Errors between a client and its broker.

use std::{fmt, io, time::Duration};

use tidegate_message::{Code, host::Authority};
use tidegate_wire::{
    mqtt::{
        DecodeError, EncodeError, ReasonCode,
        client::{self as mqtt, PublishError, SubscribeError},
    },
    websocket::{FrameError, HandshakeError},
};

use super::Options;
use crate::layers::LayerError;

/// The broker, in errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Host as it was given.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Peer {
    pub(crate) fn of(options: &Options) -> Self {
        Self { host: options.host.clone(), port: options.port }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Authority(&self.host, self.port).fmt(f)
    }
}

/// Why an operation of a client failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each field is named in the message; `peer` is the broker")]
pub enum ClientError {
    /// The host has no address.
    #[error("{peer}: the address of the host cannot be looked up")]
    Resolve {
        peer: Peer,
        #[source]
        source: io::Error,
    },
    /// No connection.
    #[error("{peer}: no connection")]
    Connect {
        peer: Peer,
        #[source]
        source: io::Error,
    },
    /// The host's name can be in no certificate.
    #[error(
        "{peer}: the host is not allowed as the name of a TLS server: write a DNS name or an IP address"
    )]
    ServerName { peer: Peer },
    /// TLS cannot begin, or ended with an error, such as a certificate that is not trusted.
    #[error("{peer}: TLS failed")]
    Tls {
        peer: Peer,
        #[source]
        source: rustls::Error,
    },
    /// The broker does not open a WebSocket.
    #[error("{peer}: the WebSocket handshake failed")]
    WebSocket {
        peer: Peer,
        #[source]
        source: HandshakeError,
    },
    /// The broker sent what is no frame of a WebSocket.
    #[error("{peer}: the WebSocket broke")]
    Frame {
        peer: Peer,
        #[source]
        source: FrameError,
    },
    /// The masks of a WebSocket must be random.
    #[error("the system gives no random bytes")]
    Random {
        #[source]
        source: getrandom::Error,
    },
    /// The connection broke.
    #[error("{peer}: the connection broke")]
    Io {
        peer: Peer,
        #[source]
        source: io::Error,
    },
    /// The broker closed it without a word.
    #[error("{peer}: the broker closed the connection")]
    Closed { peer: Peer },
    /// The broker refused the connection.
    #[error("{peer}: the broker refuses the connection: {reason}{}", Told(reason_string))]
    Refused { peer: Peer, reason: ReasonCode, reason_string: Option<String> },
    /// The broker ended the connection and said why.
    #[error("{peer}: the broker ended the connection: {reason}{}", Told(reason_string))]
    Disconnected { peer: Peer, reason: ReasonCode, reason_string: Option<String> },
    /// The broker did not take a message.
    #[error("{peer}: the broker refuses the message to {topic}: {reason}")]
    Publish { peer: Peer, topic: String, reason: ReasonCode },
    /// The broker refused a subscription.
    #[error("{peer}: the broker refuses the subscription to {filter}: {reason}")]
    Subscribe { peer: Peer, filter: String, reason: ReasonCode },
    /// An answer did not come in time.
    #[error("{peer}: {wanted} did not come within {timeout:?}")]
    TimedOut { peer: Peer, wanted: &'static str, timeout: Duration },
    /// A ping was not answered.
    #[error("{peer}: the broker does not answer")]
    Silent { peer: Peer },
    /// The broker's bytes are no MQTT.
    #[error("{peer}: the broker sent a malformed MQTT packet")]
    Packet {
        peer: Peer,
        #[source]
        source: DecodeError,
    },
    /// A packet that no broker sends, or not now.
    #[error(
        "{peer}: the broker sent a packet that is not allowed at this time, with the first byte {first:#04x}"
    )]
    Unexpected { peer: Peer, first: u8 },
    /// The broker broke another rule of the protocol.
    #[error("{peer}: the broker broke the protocol")]
    Protocol {
        peer: Peer,
        #[source]
        source: mqtt::ClientError,
    },
    /// CONNACK said that the broker does not take such a message.
    #[error("{peer}: the message cannot be sent")]
    Unsendable {
        peer: Peer,
        #[source]
        source: PublishError,
    },
    /// CONNACK said that the broker has no such subscriptions.
    #[error("{peer}: the subscription cannot be requested")]
    Unsubscribable {
        peer: Peer,
        #[source]
        source: SubscribeError,
    },
    /// More messages came while an answer was waited for than are kept.
    #[error("{peer}: more than {maximum} messages came before an answer")]
    TooManyWaiting { peer: Peer, maximum: usize },
    /// The message is longer than the broker takes.
    #[error("{peer}: a packet of {packet_bytes} bytes is longer than the broker takes, {maximum}")]
    TooLarge { peer: Peer, packet_bytes: usize, maximum: usize },
    /// No topic to publish to.
    #[error("{topic:?} is not a topic to publish to: it is empty, too long, or has a wildcard")]
    Topic { topic: String },
    /// A field that cannot be said in MQTT.
    #[error("the packet cannot be encoded in MQTT")]
    Encode(#[from] EncodeError),
}

impl ClientError {
    /// The code of the failure for the caller of a command.
    pub fn code(&self) -> Code {
        match self {
            Self::Refused { reason, .. }
            | Self::Publish { reason, .. }
            | Self::Subscribe { reason, .. }
            | Self::Disconnected { reason, .. } => refusal_code(*reason),
            Self::ServerName { .. }
            | Self::Topic { .. }
            | Self::TooLarge { .. }
            | Self::Unsendable { .. }
            | Self::Unsubscribable { .. } => Code::CONFIG_INVALID,
            Self::Packet { .. } | Self::Protocol { .. } | Self::Frame { .. } => Code::LINK_PROTOCOL,
            _ => Code::LINK_DOWN,
        }
    }

    pub(crate) fn of_machine(peer: Peer, error: mqtt::ClientError) -> Self {
        match error {
            mqtt::ClientError::Packet(source) => Self::Packet { peer, source },
            mqtt::ClientError::Refused { reason, reason_string } => {
                Self::Refused { peer, reason, reason_string }
            }
            mqtt::ClientError::Disconnected { reason, reason_string } => {
                Self::Disconnected { peer, reason, reason_string }
            }
            mqtt::ClientError::Unexpected { first, .. } => Self::Unexpected { peer, first },
            mqtt::ClientError::Silent { wanted: wanted @ "CONNACK", after: timeout } => {
                Self::TimedOut { peer, wanted, timeout }
            }
            mqtt::ClientError::Silent { .. } => Self::Silent { peer },
            source => Self::Protocol { peer, source },
        }
    }

    pub(crate) fn of_publish(peer: Peer, error: PublishError) -> Self {
        match error {
            PublishError::NotConnected => Self::Closed { peer },
            PublishError::Topic { topic } => Self::Topic { topic },
            PublishError::TooLarge { packet_bytes, maximum } => {
                Self::TooLarge { peer, packet_bytes, maximum }
            }
            source => Self::Unsendable { peer, source },
        }
    }

    pub(crate) fn of_request(peer: Peer, error: SubscribeError) -> Self {
        match error {
            SubscribeError::NotConnected => Self::Closed { peer },
            SubscribeError::Encode(error) => Self::Encode(error),
            source => Self::Unsubscribable { peer, source },
        }
    }

    pub(crate) fn of_layer(peer: Peer, error: LayerError) -> Self {
        match error {
            LayerError::ServerName => Self::ServerName { peer },
            LayerError::Tls(source) => Self::Tls { peer, source },
            LayerError::Records { source } => Self::Io { peer, source },
            LayerError::Opening(source) => Self::WebSocket { peer, source },
            LayerError::Frame(source) => Self::Frame { peer, source },
            LayerError::Random { source } => Self::Random { source },
        }
    }
}

/// The code of a broker's refusal for the caller of a command.
pub fn refusal_code(reason: ReasonCode) -> Code {
    match reason {
        ReasonCode::BAD_USER_NAME_OR_PASSWORD => Code::IDENTITY_REFUSED,
        ReasonCode::NOT_AUTHORIZED => Code::ACTION_DENIED,
        ReasonCode::QUOTA_EXCEEDED | ReasonCode::SERVER_BUSY => Code::LIMIT_REACHED,
        ReasonCode::TOPIC_FILTER_INVALID | ReasonCode::TOPIC_NAME_INVALID => Code::CONFIG_INVALID,
        _ => Code::LINK_DOWN,
    }
}

/// Text for people that a broker adds.
struct Told<'a>(&'a Option<String>);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |text| write!(f, ", \"{text}\""))
    }
}

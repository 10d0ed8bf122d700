//! Reason codes (MQTT 5.0, section 2.4).

use std::fmt;

/// Why an operation ended as it did; from 0x80 on it failed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReasonCode(pub u8);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)+) => {
        impl ReasonCode {
            $($(#[$doc])* pub const $name: Self = Self($value);)+

            /// The code's name in the specification; `"unknown"` for others.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)+
                    _ => "unknown",
                }
            }

            /// Whether the specification knows it.
            pub const fn is_known(self) -> bool {
                matches!(self.0, $($value)|+)
            }
        }
    };
}

reasons! {
    /// Done; also Normal disconnection and Granted QoS 0.
    SUCCESS = 0x00, "Success";
    /// The most that messages come with is QoS 1.
    GRANTED_QOS_1 = 0x01, "Granted QoS 1";
    /// The most that messages come with is QoS 2.
    GRANTED_QOS_2 = 0x02, "Granted QoS 2";
    /// The client goes and wants its will published.
    DISCONNECT_WITH_WILL = 0x04, "Disconnect with Will Message";
    /// Accepted, without a subscriber.
    NO_MATCHING_SUBSCRIBERS = 0x10, "No matching subscribers";
    /// There was no such subscription.
    NO_SUBSCRIPTION_EXISTED = 0x11, "No subscription existed";
    /// Another step follows.
    CONTINUE_AUTHENTICATION = 0x18, "Continue authentication";
    /// The client begins again.
    REAUTHENTICATE = 0x19, "Re-authenticate";
    /// Failed for a reason not given.
    UNSPECIFIED_ERROR = 0x80, "Unspecified error";
    /// The bytes are no packet.
    MALFORMED_PACKET = 0x81, "Malformed Packet";
    /// The packet does not belong here.
    PROTOCOL_ERROR = 0x82, "Protocol Error";
    /// Valid, and not accepted by this server.
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83, "Implementation specific error";
    /// The server does not speak that version.
    UNSUPPORTED_PROTOCOL_VERSION = 0x84, "Unsupported Protocol Version";
    /// The client's name is not accepted.
    CLIENT_IDENTIFIER_NOT_VALID = 0x85, "Client Identifier not valid";
    /// The user name or password is not accepted.
    BAD_USER_NAME_OR_PASSWORD = 0x86, "Bad User Name or Password";
    /// Not allowed.
    NOT_AUTHORIZED = 0x87, "Not authorized";
    /// The server is not there.
    SERVER_UNAVAILABLE = 0x88, "Server unavailable";
    /// The server has too much to do; try later.
    SERVER_BUSY = 0x89, "Server busy";
    /// The client is banned.
    BANNED = 0x8A, "Banned";
    /// The server stops.
    SERVER_SHUTTING_DOWN = 0x8B, "Server shutting down";
    /// The method is not supported, or not the one begun with.
    BAD_AUTHENTICATION_METHOD = 0x8C, "Bad authentication method";
    /// Nothing came for one and a half times the keep alive.
    KEEP_ALIVE_TIMEOUT = 0x8D, "Keep Alive timeout";
    /// Another connection uses the client's name.
    SESSION_TAKEN_OVER = 0x8E, "Session taken over";
    /// Well formed, and not accepted.
    TOPIC_FILTER_INVALID = 0x8F, "Topic Filter invalid";
    /// Well formed, and not accepted.
    TOPIC_NAME_INVALID = 0x90, "Topic Name invalid";
    /// In use already.
    PACKET_IDENTIFIER_IN_USE = 0x91, "Packet Identifier in use";
    /// Not known.
    PACKET_IDENTIFIER_NOT_FOUND = 0x92, "Packet Identifier not found";
    /// More unacknowledged messages than allowed.
    RECEIVE_MAXIMUM_EXCEEDED = 0x93, "Receive Maximum exceeded";
    /// Zero, or over the maximum.
    TOPIC_ALIAS_INVALID = 0x94, "Topic Alias invalid";
    /// Over the Maximum Packet Size.
    PACKET_TOO_LARGE = 0x95, "Packet too large";
    /// Too many messages in a time.
    MESSAGE_RATE_TOO_HIGH = 0x96, "Message rate too high";
    /// A limit of the server is reached.
    QUOTA_EXCEEDED = 0x97, "Quota exceeded";
    /// Closed by an administrator.
    ADMINISTRATIVE_ACTION = 0x98, "Administrative action";
    /// The payload is not what its format says.
    PAYLOAD_FORMAT_INVALID = 0x99, "Payload format invalid";
    /// The server retains nothing.
    RETAIN_NOT_SUPPORTED = 0x9A, "Retain not supported";
    /// Over the Maximum QoS.
    QOS_NOT_SUPPORTED = 0x9B, "QoS not supported";
    /// For now.
    USE_ANOTHER_SERVER = 0x9C, "Use another server";
    /// For good.
    SERVER_MOVED = 0x9D, "Server moved";
    /// The server shares no subscriptions.
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E, "Shared Subscriptions not supported";
    /// Connections come too fast.
    CONNECTION_RATE_EXCEEDED = 0x9F, "Connection rate exceeded";
    /// The connection lasted as long as it may.
    MAXIMUM_CONNECT_TIME = 0xA0, "Maximum connect time";
    /// The server gives no subscription identifiers.
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1, "Subscription Identifiers not supported";
    /// The server has no wildcards.
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2, "Wildcard Subscriptions not supported";
}

impl ReasonCode {
    /// Whether it tells of a failure.
    pub const fn is_failure(self) -> bool {
        self.0 >= 0x80
    }
}

/// Name and value: `Not authorized (0x87)`.
impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#04x})", self.name(), self.0)
    }
}

impl fmt::Debug for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

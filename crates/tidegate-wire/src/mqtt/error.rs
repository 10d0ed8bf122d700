//! Why bytes are no packet, and why a packet has no bytes.

use super::{ReasonCode, Version};

/// Why bytes are no packet. Clauses are those of MQTT 5.0; MQTT 3.1.1 has most of the rules under another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The packet, or its list of properties, ends within a field.
    #[error("packet ends within {field}")]
    Short {
        /// The field.
        field: &'static str,
    },
    /// The packet has bytes after its last field.
    #[error("{packet} has {count} bytes after its last field")]
    Trailing {
        /// The packet.
        packet: &'static str,
        /// How many bytes.
        count: usize,
    },
    /// The fixed header's type is reserved in that version.
    #[error("packet type {packet_type} is reserved in {version:?}")]
    PacketType {
        /// Bits 7 to 4 of the first byte.
        packet_type: u8,
        /// The connection's version.
        version: Version,
    },
    /// The fixed header's flags are not those of its type.
    #[error("{packet} has flags {flags:#06b} (MQTT-2.1.3-1)")]
    Flags {
        /// The packet.
        packet: &'static str,
        /// Bits 3 to 0 of the first byte.
        flags: u8,
    },
    /// A field cannot be parsed.
    #[error("{field} is malformed ({clause})")]
    Malformed {
        /// The field, and what is wrong where that is not plain.
        field: &'static str,
        /// The clause that says so.
        clause: &'static str,
    },
    /// A property is unknown, or has no place in this packet.
    #[error("{packet} has property {id:#04x}, which is not one of its own (MQTT 5.0, 2.2.2.2)")]
    PropertyUnknown {
        /// The packet.
        packet: &'static str,
        /// The property's identifier.
        id: u8,
    },
    /// A property that may stand once stands twice.
    #[error("{packet} has property {id:#04x} twice (MQTT 5.0, 2.2.2.2)")]
    PropertyRepeated {
        /// The packet.
        packet: &'static str,
        /// The property's identifier.
        id: u8,
    },
    /// All fields parse, and one says what it must not.
    #[error("{what} ({clause})")]
    Protocol {
        /// The field.
        what: &'static str,
        /// The clause that forbids it.
        clause: &'static str,
    },
    /// A topic name is empty or has a wildcard.
    #[error("{field} is empty or has a wildcard ({clause})")]
    TopicName {
        /// The field.
        field: &'static str,
        /// The clause that forbids it.
        clause: &'static str,
    },
    /// A topic alias is zero.
    #[error("topic alias is 0 (MQTT-3.3.2-8)")]
    TopicAlias,
    /// The packet is longer than the receiver takes.
    #[error("packet of {packet_bytes} bytes exceeds the limit of {packet_bytes_max}")]
    PacketTooLarge {
        /// The whole packet's length.
        packet_bytes: usize,
        /// The limit.
        packet_bytes_max: usize,
    },
    /// CONNECT asks for a version that is not known.
    #[error("protocol level {level} is not supported (MQTT-3.1.2-2)")]
    UnsupportedVersion {
        /// The level asked for, with bit 7.
        level: u8,
        /// How to say so: as MQTT 5 does if the packet is laid out as its CONNECT is, else as 3.1.1 does (MQTT-3.1.2-2 of both).
        layout: Version,
    },
}

impl DecodeError {
    /// The reason for CONNACK or DISCONNECT.
    pub fn reason(&self) -> ReasonCode {
        match self {
            // Not "Topic Name invalid", which is for one that is well formed and not accepted (3.14.2.1).
            Self::TopicName { .. }
            | Self::Short { .. }
            | Self::Trailing { .. }
            | Self::PacketType { .. }
            | Self::Flags { .. }
            | Self::Malformed { .. }
            | Self::PropertyUnknown { .. } => ReasonCode::MALFORMED_PACKET,
            Self::PropertyRepeated { .. } | Self::Protocol { .. } => ReasonCode::PROTOCOL_ERROR,
            Self::TopicAlias => ReasonCode::TOPIC_ALIAS_INVALID,
            Self::PacketTooLarge { .. } => ReasonCode::PACKET_TOO_LARGE,
            Self::UnsupportedVersion { .. } => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
        }
    }
}

/// Why a packet has no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A text or binary field is longer than its length can say.
    #[error("{field} of {count} bytes exceeds the limit of 65535")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        count: usize,
    },
    /// A text holds U+0000.
    #[error("{field} holds U+0000 (MQTT-1.5.4-2)")]
    NullCharacter {
        /// The field.
        field: &'static str,
    },
    /// The packet is longer than its length can say.
    #[error("packet with {body_bytes} bytes after its header exceeds the limit of 268435455")]
    PacketTooLarge {
        /// Bytes after the fixed header.
        body_bytes: usize,
    },
    /// There is no such packet in that version.
    #[error("{version:?} has no {packet}")]
    NoSuchPacket {
        /// The packet.
        packet: &'static str,
        /// The version asked for.
        version: Version,
    },
    /// A number is outside its range.
    #[error("{field} cannot be {value}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// The number.
        value: u32,
    },
    /// A list that must not be empty is, or a field that another one requires is absent.
    #[error("{packet} lacks {field}")]
    Missing {
        /// The packet.
        packet: &'static str,
        /// The list or field.
        field: &'static str,
    },
}

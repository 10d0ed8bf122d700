//! Why bytes are no message, and why a message has no bytes. Clauses are those of RFC 7252.

use super::{Code, MessageType, OptionNumber};

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The datagram ends within a field.
    #[error("message ends within {field} (RFC 7252, 3)")]
    Short {
        /// The field.
        field: &'static str,
    },
    /// The datagram is longer than UDP carries.
    #[error("message of {bytes} bytes exceeds the limit of {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// Another version of the protocol; such a message is ignored.
    #[error("version {version} is not 1 (RFC 7252, 3)")]
    Version {
        /// Which.
        version: u8,
    },
    /// A token's length is reserved.
    #[error("token of {bytes} bytes exceeds the limit of 8 (RFC 7252, 3)")]
    TokenLength {
        /// The length.
        bytes: u8,
    },
    /// A message with the code 0.00 has bytes after its identifier.
    #[error("empty message has {count} bytes after its message id (RFC 7252, 4.1)")]
    NotEmpty {
        /// How many bytes.
        count: usize,
    },
    /// The code is of a reserved class, or not one that a message of that type carries.
    #[error("{message_type:?} message has code {code} (RFC 7252, 4.2 and 4.3, table 1)")]
    CodeOfType {
        /// The type.
        message_type: MessageType,
        /// The code.
        code: Code,
    },
    /// 15 stands for an option's delta or length, and it is no payload marker.
    #[error("{field} after option {after} is 15, which is reserved (RFC 7252, 3.1)")]
    Reserved {
        /// Delta or length.
        field: &'static str,
        /// The option before, or 0.
        after: u16,
    },
    /// The deltas of options add up to more than any option's number.
    #[error("option number {number} exceeds the limit of 65535 (RFC 7252, 3.1)")]
    OptionNumber {
        /// The sum.
        number: u32,
    },
    /// An option is longer than what is left.
    #[error("option {} of {bytes} bytes goes beyond the end (RFC 7252, 3.1)", .number.0)]
    OptionShort {
        /// The option.
        number: OptionNumber,
        /// The length it claims.
        bytes: usize,
    },
    /// More options than any message needs.
    #[error("message has more than {options_max} options")]
    Options {
        /// The limit.
        options_max: usize,
    },
    /// A payload marker with nothing after it.
    #[error("payload marker without a payload (RFC 7252, 3)")]
    NoPayload,
}

/// Why a message has no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A message with the code 0.00 has a token, options or a payload.
    #[error("empty message has a token, options or a payload (RFC 7252, 4.1)")]
    NotEmpty,
    /// The code is of a reserved class, or not one that a message of that type carries.
    #[error("{message_type:?} message cannot have code {code} (RFC 7252, 4.2 and 4.3, table 1)")]
    CodeOfType {
        /// The type.
        message_type: MessageType,
        /// The code.
        code: Code,
    },
    /// The message is longer than UDP carries.
    #[error("message of {bytes} bytes exceeds the limit of {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// An option comes after one with a higher number.
    #[error("option {} comes after option {after} (RFC 7252, 3.1)", .number.0)]
    OptionOrder {
        /// The option.
        number: OptionNumber,
        /// The one before.
        after: u16,
    },
    /// An option is longer than its length can say, or than its definition allows.
    #[error("option {} of {bytes} bytes exceeds the limit of {bytes_max} (RFC 7252, 5.10)", .number.0)]
    OptionLength {
        /// The option.
        number: OptionNumber,
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// More options than any message needs.
    #[error("message has more than {options_max} options")]
    Options {
        /// The limit.
        options_max: usize,
    },
}

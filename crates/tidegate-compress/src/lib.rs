//! Sensor messages to fewer bytes and back, byte for byte.
//!
//! ```text
//!  message ──▶ Encoder: topic's last message ──▶ fields that differ ──▶ batch ──▶ zstd ──▶ Decoder ──▶ message
//!                       (split into fields)       (as differences)
//! ```
//!
//! An [`Encoder`] and a [`Decoder`] hold each topic's last message. The next one is cut into fields and only those are sent that are
//! not what was predicted: numbers as differences, texts as they are. A topic's first message defines it; after that it is a number.
//! No dictionary, no training, no knowledge of the data: any bytes come back as they were.
//!
//! # State and its limits
//!
//! State is counted alike on both sides: for each topic 64 bytes and those of its name, its attributes, its last payload and one for
//! each field of it if there are at most 40. In memory a payload of which most numbers change each time is kept as these numbers, if they
//! are not much longer than its text, and counts as that would. The encoder decides which topic is forgotten when there are more than
//! either side takes, and says so.
//!
//! # Always true
//!
//! - The output of [`Decoder::decode`] equals the input of [`Encoder::push`], in the same order, or is an error: a checksum over
//!   the messages ensures it.
//! - No bytes make a decoder panic, or take more memory than its limits, those of one batch and some 40 MB for schemas.
//! - State follows from the epoch and its batches alone, so two ends that have the same batches have the same state. An end that has
//!   lost batches says which one it expects; the state that they changed is defined again, and nothing else. One that has lost
//!   topics can say of which shard, which is then defined again.

mod batch;
mod code;
mod decode;
mod encode;
mod form;
mod kept;
mod layout;
mod number;
mod probe;
mod schema;
mod topics;

use tidegate_message::varint;

#[cfg(test)]
mod tests;

pub use crate::{
    batch::{Compression, DecodeError, Header},
    decode::{Decoded, Decoder, DecoderConfig},
    encode::{Counts, EncodeError, Encoder, EncoderConfig, Message, ResumeError},
    layout::{BinaryField, BinaryKind, FIELD_BYTES_MAX, FIELDS_MAX, Layout},
};

/// Longest topic, and longest attributes of a message.
pub const TOPIC_BYTES_MAX: usize = 65_535;

/// Longest payload.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Least bytes of state that a topic counts.
pub const TOPIC_STATE_BYTES_MIN: u64 = kept::OVERHEAD_BYTES;

/// Most messages of a batch.
pub const MESSAGES_MAX: u32 = 65_536;

/// Bytes of messages at which a batch takes no more; one message alone may have more.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Most bytes of the body of a batch before compression: of messages and their control records.
pub const BODY_BYTES_MAX: usize = 17 << 20;

/// Into how many parts the numbers of topics fall, one of which can be reset alone.
pub const SHARDS: usize = 256;

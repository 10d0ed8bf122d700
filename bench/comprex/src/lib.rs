//! The scheme of the paper: static and dynamic regions of bytes, for messages of fixed layout.
//!
//! Oliveira and Gavrilovska, "In-Network Compression for Accelerating IoT Analytics at Scale", section IV. The benches compare
//! `tidegate-compress` with it; no node speaks it.
//!
//! ```text
//!  first five messages   all bytes are dynamic; what never differs becomes static, the rest at most 16 regions
//!  then                  4-byte key of the topic, 16-bit mask of regions that differ from the last message, those regions
//!  every nth message     is compared in its static regions: if they hold, n grows by one, up to `max_n`;
//!                        if not, the stored messages go out in full by the critical queue, and what differed is dynamic
//! ```
//!
//! Between two comparisons a change of a static byte goes unseen and the decoder puts the old byte in its place. The encoder stores
//! what it has sent since the last comparison, up to `max_store` messages; a comparison also looks at these, and if one has changed,
//! they are sent again as a *correction*. With `max_n` ≤ `max_store` all is right in the end. Above, messages that leave the store
//! before a comparison stay wrong if they had changed, and are counted as lost.
//!
//! A batch is a row of records. The first four bytes of each, little endian, are a topic's key (FNV-1a), or one of three marks:
//!
//! | first four bytes | record | content |
//! |---|---|---|
//! | a key | the topic's next message | a 16-bit mask, little endian, and the regions that it names: those that differ from the last message |
//! | `ff ff ff ff` | a message in full | varints of its number within its topic, the length of its topic and that of its payload, and both |
//! | `fe ff ff ff` | regions | key, one byte with their count, of each a varint of where it begins and of where it ends: in order, none empty |
//! | `fd ff ff ff` | a message of a topic that is not kept | as in full, its number 0 |
//!
//! Points that the paper leaves open are decided so: regions with the smallest gaps between them are joined until there are 16; a
//! topic whose key another topic has is sent in full; `n` begins at 0, comparing every message; a change that was taken back before
//! the comparison is found as well.
//!
//! One thing departs from the paper, where a change "resets the metadata for the given topic" and the process starts over: here what was known
//! to be dynamic stays so after a static byte has changed, and the message that goes out in full is all that learning takes. To begin again
//! with five sends most messages of decimals in full forever: each new digit undoes what was learned of the others. [`ComprexConfig::forgets`]
//! does as the paper says. Retained knowledge is forgotten where it costs much: bytes that were the same in many comparisons become static
//! again if regions then are shorter by a quarter of the message, so that one odd message does not spoil its topic.
//!
//! Always true: every message comes out with its topic and, where the topic is kept, its number within it; after [`ComprexEncoder::settle`] and its
//! corrections each is the message that went in, but for those that are counted as lost.

pub use self::{
    decode::{ComprexDecoder, ComprexDecoderConfig},
    encode::{ComprexConfig, ComprexCounts, ComprexEncoder},
};

mod decode;
mod encode;
mod table;

use tidegate_message::varint;

#[cfg(test)]
mod tests;

/// Regions that a mask has bits for.
const REGIONS_MAX: usize = 16;

/// Stands in the place of a key where a message is in full.
const FULL: u32 = u32::MAX;

/// Stands in the place of a key where regions are sent.
const REGIONS: u32 = u32::MAX - 1;

/// Stands in the place of a key where a message is in full whose topic neither end keeps.
const UNKEPT: u32 = u32::MAX - 2;

/// Longest topic and longest payload.
pub const BYTES_MAX: usize = 4096;

/// FNV-1a: the paper does not say which hash.
fn key(topic: &[u8]) -> u32 {
    topic.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A message that cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {bytes} bytes, at most {BYTES_MAX} can be sent")]
pub struct TooLong {
    /// Which part.
    pub what: &'static str,
    /// Its bytes.
    pub bytes: usize,
}

/// Why a batch makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ComprexError {
    /// It ends too early.
    #[error("the batch ends within a part of it")]
    Truncated,
    /// A part is longer than any may be.
    #[error("a topic or a payload is longer than {BYTES_MAX} bytes")]
    Length,
    /// It names a topic that was not sent in full, or of which no regions are known.
    #[error("key {key:#010x} is not known")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// It brings more topics than are taken.
    #[error("more than {max} topics, the most that are taken")]
    Topics {
        /// Most that are taken.
        max: usize,
    },
    /// A topic has more messages than can be counted.
    #[error("a message's number is beyond 64 bits")]
    Number,
    /// Regions are not within the message, or not in order, or a mask names one that there is not.
    #[error("regions that are not within the message")]
    Regions,
}

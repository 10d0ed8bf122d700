//! The outer form of a batch: a header, and the body, compressed or not.
//!
//! ```text
//!  u8       version (upper half), flags (lower half): 1 columns, 2 zstd, 4 the zstd frame continues from the last batch
//!  varint   epoch
//!  varint   sequence
//!  varint   messages
//!  varint   bytes of the messages: topics, attributes and payloads
//!  varint   bytes of the body before zstd
//!  u32      CRC-32C of the messages, one after the other, and of the body as it travels, little endian
//!  ...      body, to the end
//! ```
//!
//! The checksum is of what comes out, so that it finds two sides that have grown apart; and of the body, some of which, and of zstd's own
//! state, is about messages to come.

use zstd::stream::raw::{InBuffer, Operation, OutBuffer};

use crate::{SHARDS, varint};

/// The form of batches that this crate writes, and the only one that it reads.
pub(crate) const VERSION: u8 = 1;

/// Most bytes of a header.
pub(crate) const HEADER_BYTES_MAX: usize = 1 + 5 * 10 + 4;

const FLAG_COLUMNS: u8 = 1;
const FLAG_ZSTD: u8 = 2;
const FLAG_GOES_ON: u8 = 4;

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which life of the encoder it belongs to: state never outlives an epoch.
    pub epoch: u64,
    /// Its place in the epoch, from 0.
    pub sequence: u64,
    /// Messages in it.
    pub messages: u32,
    /// Bytes of their topics, attributes and payloads.
    pub message_bytes: u32,
    /// Bytes of the body before zstd.
    pub body_bytes: u32,
    /// CRC-32C of the messages, one after the other, and of the body as it travels.
    pub checksum: u32,
    /// Whether the body is in columns.
    pub is_columns: bool,
    /// How the body is compressed.
    pub(crate) packing: Packing,
}

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    /// With zstd, in a frame of its own or at the beginning of one.
    Zstd,
    /// With zstd, in the frame of the batch before.
    ZstdGoesOn,
}

impl Header {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let packing = match self.packing {
            Packing::Plain => 0,
            Packing::Zstd => FLAG_ZSTD,
            Packing::ZstdGoesOn => FLAG_ZSTD | FLAG_GOES_ON,
        };
        let columns = if self.is_columns { FLAG_COLUMNS } else { 0 };
        out.push(VERSION << 4 | packing | columns);
        varint::put(out, self.epoch);
        varint::put(out, self.sequence);
        for value in [self.messages, self.message_bytes, self.body_bytes] {
            varint::put(out, u64::from(value));
        }
        out.extend_from_slice(&self.checksum.to_le_bytes());
    }

    /// Takes a header from the front of `bytes`.
    pub(crate) fn take(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        let (&first, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
        *bytes = rest;
        if first >> 4 != VERSION {
            return Err(DecodeError::Version { found: first >> 4 });
        }
        let packing = match first & !(VERSION << 4 | FLAG_COLUMNS) {
            0 => Packing::Plain,
            FLAG_ZSTD => Packing::Zstd,
            flags if flags == FLAG_ZSTD | FLAG_GOES_ON => Packing::ZstdGoesOn,
            flags => return Err(DecodeError::Flags { found: flags }),
        };
        let epoch = varint::take(bytes).ok_or(DecodeError::Truncated)?;
        let sequence = varint::take(bytes).ok_or(DecodeError::Truncated)?;
        let mut numbers = [0; 3];
        for number in &mut numbers {
            let value = varint::take(bytes).ok_or(DecodeError::Truncated)?;
            *number = u32::try_from(value).map_err(|_| DecodeError::Header { value })?;
        }
        let (checksum, rest) = bytes.split_first_chunk().ok_or(DecodeError::Truncated)?;
        *bytes = rest;
        let [messages, message_bytes, body_bytes] = numbers;
        Ok(Self {
            epoch,
            sequence,
            messages,
            message_bytes,
            body_bytes,
            checksum: u32::from_le_bytes(*checksum),
            is_columns: first & FLAG_COLUMNS != 0,
            packing,
        })
    }
}

/// The checksum of messages that come one by one.
///
/// They are gathered first: over a few hundred bytes, most of the time goes to the ends of each part, and the processor's instruction
/// waits for itself; over some thousand, three run side by side.
#[derive(Debug, Default)]
pub(crate) struct Checksum {
    sum: u32,
    pending: Vec<u8>,
}

/// Bytes that are gathered.
const GATHERED_BYTES: usize = 8 << 10;

impl Checksum {
    /// Takes the next bytes.
    #[inline]
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if self.pending.len() + bytes.len() > GATHERED_BYTES {
            return self.add_over(bytes);
        }
        self.pending.extend_from_slice(bytes);
    }

    #[cold]
    fn add_over(&mut self, bytes: &[u8]) {
        self.sum = crc32c::crc32c_append(self.sum, &self.pending);
        self.pending.clear();
        if bytes.len() > GATHERED_BYTES {
            self.sum = crc32c::crc32c_append(self.sum, bytes);
        } else {
            self.pending.extend_from_slice(bytes);
        }
    }

    /// The checksum of all that was taken, and of `last`.
    pub(crate) fn with(&self, last: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c_append(self.sum, &self.pending), last)
    }

    pub(crate) fn clear(&mut self) {
        self.sum = 0;
        self.pending.clear();
    }
}

/// Whether and how bodies are compressed once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Each with zstd at this level, 1 to 19; one that does not shrink stays as it is.
    Zstd(i32),
    /// All in one zstd frame at this level, flushed after each: more is found again, but nothing can be left out.
    ZstdStream(i32),
}

impl Compression {
    /// The same at the next level that there is: higher ones need windows that a decoder refuses.
    pub(crate) fn within_levels(self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Zstd(level) => Self::Zstd(level.clamp(1, 19)),
            Self::ZstdStream(level) => Self::ZstdStream(level.clamp(1, 19)),
        }
    }
}

/// Compresses bodies.
pub(crate) struct Packer {
    compression: Compression,
    single: Option<zstd::bulk::Compressor<'static>>,
    stream: Option<zstd::stream::raw::Encoder<'static>>,
    packed: Vec<u8>,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").field("compression", &self.compression).finish_non_exhaustive()
    }
}

impl Packer {
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, single: None, stream: None, packed: Vec::new() }
    }

    /// The next body begins a frame of its own.
    pub(crate) fn restart(&mut self) {
        self.stream = None;
    }

    /// The body as it travels. It stays what it is where zstd cannot be had or does not help.
    pub(crate) fn pack<'a>(&'a mut self, body: &'a [u8]) -> (Packing, &'a [u8]) {
        match self.compression {
            Compression::None => (Packing::Plain, body),
            Compression::Zstd(level) => {
                if self.single.is_none() {
                    self.single = zstd::bulk::Compressor::new(level).ok();
                }
                let Some(single) = &mut self.single else { return (Packing::Plain, body) };
                self.packed.clear();
                self.packed.reserve(zstd::zstd_safe::compress_bound(body.len()));
                match single.compress_to_buffer(body, &mut self.packed) {
                    Ok(len) if len < body.len() => (Packing::Zstd, &self.packed),
                    _ => (Packing::Plain, body),
                }
            }
            Compression::ZstdStream(level) => {
                let packing =
                    if self.stream.is_some() { Packing::ZstdGoesOn } else { Packing::Zstd };
                if self.stream.is_none() {
                    self.stream = zstd::stream::raw::Encoder::new(level).ok();
                }
                let Some(stream) = &mut self.stream else { return (Packing::Plain, body) };
                self.packed.clear();
                self.packed.reserve(zstd::zstd_safe::compress_bound(body.len()) + 64);
                if flush_into(stream, body, &mut self.packed).is_err() {
                    self.stream = None;
                    return (Packing::Plain, body);
                }
                (packing, &self.packed)
            }
        }
    }
}

fn flush_into(
    stream: &mut zstd::stream::raw::Encoder<'_>,
    body: &[u8],
    packed: &mut Vec<u8>,
) -> std::io::Result<()> {
    let mut input = InBuffer::around(body);
    loop {
        let at = packed.len();
        let mut output = OutBuffer::around_pos(packed, at);
        if input.pos() < body.len() {
            stream.run(&mut input, &mut output)?;
        } else if stream.flush(&mut output)? == 0 {
            return Ok(());
        }
        packed.reserve(64);
    }
}

/// Decompresses bodies.
#[derive(Default)]
pub(crate) struct Unpacker {
    single: Option<zstd::bulk::Decompressor<'static>>,
    stream: Option<zstd::stream::raw::Decoder<'static>>,
    body: Vec<u8>,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

/// Largest window of a zstd frame, as a power of two: a bound on the decoder's memory against any peer.
const WINDOW_LOG_MAX: u32 = 23;

impl Unpacker {
    /// The body that was packed, exactly `header.body_bytes` long, which the caller has found to be within its limit.
    pub(crate) fn unpack<'a>(
        &'a mut self,
        header: &Header,
        packed: &'a [u8],
    ) -> Result<&'a [u8], DecodeError> {
        let len = header.body_bytes as usize;
        if header.packing == Packing::Plain {
            return if packed.len() == len { Ok(packed) } else { Err(DecodeError::BodyLength) };
        }
        self.body.clear();
        self.body.resize(len, 0);
        let result = match header.packing {
            Packing::ZstdGoesOn => match &mut self.stream {
                Some(stream) => run_into(stream, packed, &mut self.body),
                None => return Err(DecodeError::NoFrame),
            },
            _ if is_whole(packed) => {
                if self.single.is_none() {
                    self.single = zstd::bulk::Decompressor::new().ok();
                }
                let single = self.single.as_mut().ok_or(DecodeError::Zstd)?;
                self.stream = None;
                single
                    .decompress_to_buffer(packed, self.body.as_mut_slice())
                    .map(|written| written == len)
                    .map_err(|_| DecodeError::Zstd)
            }
            _ => {
                let mut stream =
                    zstd::stream::raw::Decoder::new().map_err(|_| DecodeError::Zstd)?;
                stream
                    .set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(WINDOW_LOG_MAX))
                    .map_err(|_| DecodeError::Zstd)?;
                let result = run_into(&mut stream, packed, &mut self.body);
                self.stream = Some(stream);
                result
            }
        };
        match result {
            Ok(true) => Ok(&self.body),
            Ok(false) => Err(DecodeError::BodyLength),
            Err(error) => {
                self.stream = None;
                Err(error)
            }
        }
    }
}

/// Whether `packed` is one frame that says how long its content is: one that was made at once, not flushed.
fn is_whole(packed: &[u8]) -> bool {
    matches!(zstd::zstd_safe::get_frame_content_size(packed), Ok(Some(_)))
}

/// Decompresses `packed` into the whole of `body`; false if it is shorter or longer.
fn run_into(
    stream: &mut zstd::stream::raw::Decoder<'_>,
    packed: &[u8],
    body: &mut [u8],
) -> Result<bool, DecodeError> {
    let mut input = InBuffer::around(packed);
    let len = body.len();
    let mut output = OutBuffer::around(body);
    while input.pos() < packed.len() {
        let before = (input.pos(), output.pos());
        stream.run(&mut input, &mut output).map_err(|_| DecodeError::Zstd)?;
        if before == (input.pos(), output.pos()) {
            return Ok(false);
        }
    }
    Ok(output.pos() == len)
}

/// Why a batch was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends too early.
    #[error("the batch ends within a part of it")]
    Truncated,
    /// It is of a version that this decoder does not read.
    #[error("the batch is of version {found}, this decoder reads {}", VERSION)]
    Version {
        /// Its version.
        found: u8,
    },
    /// It has flags that this decoder does not know.
    #[error("the batch has flags {found:#06b}, which are not known")]
    Flags {
        /// The flags.
        found: u8,
    },
    /// A number of its header does not fit.
    #[error("the header says {value}, which is out of range")]
    Header {
        /// The number.
        value: u64,
    },
    /// It belongs to another epoch: one that is over, or one that this decoder has not begun.
    #[error("the batch is of epoch {found}, the decoder is in {current}")]
    Epoch {
        /// The batch's.
        found: u64,
        /// The decoder's.
        current: u64,
    },
    /// It is not the one that comes next: one that was taken already, or one before which others are missing.
    #[error("the batch has number {found}, expected is {expected}")]
    Sequence {
        /// The batch's.
        found: u64,
        /// The decoder's.
        expected: u64,
    },
    /// It has or needs more of something than this decoder takes.
    #[error("{found} {what}, at most {max} are taken")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// Most that are taken.
        max: usize,
    },
    /// Its body is not as long as its header says.
    #[error("the body is not as long as the header says")]
    BodyLength,
    /// Its body is not what zstd wrote.
    #[error("the body cannot be decompressed")]
    Zstd,
    /// Its zstd frame began in a batch that this decoder does not have.
    #[error("the body continues a zstd frame that is not known")]
    NoFrame,
    /// It names a topic that was not defined.
    #[error("topic number {number} is not known")]
    UnknownTopic {
        /// Its number.
        number: u32,
    },
    /// A record of it makes no sense.
    #[error("the batch has {what} that is invalid")]
    Record {
        /// The problem.
        what: &'static str,
    },
    /// The output differs from the input.
    #[error("the messages are not those that were sent: their checksum or their number differs")]
    Mismatch,
}

impl DecodeError {
    /// Whether the decoder is as it was before: the batch belongs to another place, or its header was not understood.
    pub fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::Version { .. }
                | Self::Flags { .. }
                | Self::Header { .. }
                | Self::Epoch { .. }
                | Self::Sequence { .. }
        )
    }

    /// The shard of a topic that the encoder takes for known and the decoder has lost, say with a batch that was damaged; `None` of all
    /// other errors. To go back is enough for what this batch named. If both ends reset the shard as well, no other batch is refused for
    /// a topic of it: [`crate::Decoder::reset_shard`], [`crate::Encoder::reset_shard`].
    pub fn lost_shard(&self) -> Option<u8> {
        match self {
            Self::UnknownTopic { number } => Some((*number as usize % SHARDS) as u8),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_of_parts_is_that_of_the_whole() {
        for lens in [
            &[][..],
            &[5, 0, 300],
            &[GATHERED_BYTES, 1, GATHERED_BYTES - 1, 1, 1],
            &[7, GATHERED_BYTES + 1, 7],
            &[4000; 9],
        ] {
            let (mut checksum, mut whole) = (Checksum::default(), Vec::new());
            checksum.add(b"of the batch before");
            checksum.clear();
            for (index, &len) in lens.iter().enumerate() {
                let part = vec![index as u8; len];
                checksum.add(&part);
                whole.extend_from_slice(&part);
            }
            whole.extend_from_slice(b"body");
            assert_eq!(checksum.with(b"body"), crc32c::crc32c(&whole), "{lens:?}");
        }
    }
}

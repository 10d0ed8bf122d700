//! General compressors, on batches of messages that are framed by two lengths each.

use anyhow::Context as _;
use tidegate_sys::clock::thread_cpu_nanos;

use crate::messages::Messages;

/// A compressor that is given a batch at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// LZ4's block format.
    Lz4,
    /// Snappy's raw format.
    Snappy,
    /// zstd at level 1, a frame for each batch.
    Zstd1,
    /// zstd at level 3, one frame, flushed after each batch.
    ZstdStream3,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lz4, Self::Snappy, Self::Zstd1, Self::ZstdStream3];

    /// How it is named in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "LZ4",
            Self::Snappy => "Snappy",
            Self::Zstd1 => "zstd-1",
            Self::ZstdStream3 => "zstd-3 stream",
        }
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Bytes of topics and payloads for each byte of batches.
    pub ratio: f64,
    /// Million messages encoded in a second of processor time.
    pub encode: f64,
    /// Million messages decoded, each to where its topic and payload begin and end, in a second of processor time.
    pub decode: f64,
}

/// Compresses `messages` in batches of `batch_bytes` and back. Both directions end with messages that can be told apart: framing
/// counts to encoding, finding topics and payloads to decoding.
///
/// # Errors
/// The output differs from the input.
pub fn run(peer: Peer, messages: &Messages, batch_bytes: usize) -> anyhow::Result<Made> {
    let mut encoder = zstd::stream::raw::Encoder::new(3)?;
    let mut decoder = zstd::stream::raw::Decoder::new()?;
    let mut single = zstd::bulk::Compressor::new(1)?;
    let mut snappy = snap::raw::Encoder::new();
    let mut wire = Vec::with_capacity(messages.bytes());
    // Of each batch: where it ends in `wire`, and how long it was.
    let mut batches = Vec::new();
    let mut batch = Vec::with_capacity(batch_bytes + 1024);
    let mut packed = vec![0; 2 * batch_bytes + 4096];

    let begun = thread_cpu_nanos();
    let mut pack = |batch: &mut Vec<u8>, wire: &mut Vec<u8>| -> anyhow::Result<()> {
        let len = match peer {
            Peer::Lz4 => lz4_flex::block::compress_into(batch, &mut packed)?,
            Peer::Snappy => snappy.compress(batch, &mut packed)?,
            Peer::Zstd1 => single.compress_to_buffer(batch, packed.as_mut_slice())?,
            Peer::ZstdStream3 => flushed(&mut encoder, batch, &mut packed)?,
        };
        wire.extend_from_slice(&packed[..len]);
        batches.push((wire.len(), batch.len()));
        batch.clear();
        Ok(())
    };
    for message in messages.iter() {
        for part in [message.topic, message.payload] {
            batch.extend_from_slice(&(part.len() as u16).to_le_bytes());
            batch.extend_from_slice(part);
        }
        if batch.len() >= batch_bytes {
            pack(&mut batch, &mut wire)?;
        }
    }
    if !batch.is_empty() {
        pack(&mut batch, &mut wire)?;
    }
    let encoded = thread_cpu_nanos();
    let mut start = 0;
    let mut unpacked = vec![0; batch_bytes + 70_000];
    let (mut count, mut bytes) = (0, 0);
    let mut unpacker = zstd::bulk::Decompressor::new()?;
    let mut unsnappy = snap::raw::Decoder::new();
    for (end, len) in batches {
        let from = &wire[start..end];
        let written = match peer {
            Peer::Lz4 => lz4_flex::block::decompress_into(from, &mut unpacked)?,
            Peer::Snappy => unsnappy.decompress(from, &mut unpacked)?,
            Peer::Zstd1 => unpacker.decompress_to_buffer(from, unpacked.as_mut_slice())?,
            Peer::ZstdStream3 => run_through(&mut decoder, from, &mut unpacked[..len])?,
        };
        let mut rest = &unpacked[..written];
        while !rest.is_empty() {
            for _ in 0..2 {
                let (len, after) =
                    rest.split_first_chunk().context("a batch ends within a length")?;
                let len = usize::from(u16::from_le_bytes(*len));
                let (part, after) =
                    after.split_at_checked(len).context("a batch ends within a part")?;
                bytes += std::hint::black_box(part).len();
                rest = after;
            }
            count += 1;
        }
        start = end;
    }
    let decoded = thread_cpu_nanos();
    anyhow::ensure!(
        count == messages.len() && bytes == messages.bytes(),
        "{}: not all came back",
        peer.name()
    );
    let rate = |nanos: i64| messages.len() as f64 * 1e3 / nanos as f64;
    Ok(Made {
        ratio: messages.bytes() as f64 / wire.len() as f64,
        encode: rate(encoded - begun),
        decode: rate(decoded - encoded),
    })
}

fn flushed(
    encoder: &mut zstd::stream::raw::Encoder<'_>,
    batch: &[u8],
    packed: &mut [u8],
) -> std::io::Result<usize> {
    use zstd::stream::raw::{InBuffer, Operation as _, OutBuffer};
    let mut input = InBuffer::around(batch);
    let mut output = OutBuffer::around(packed);
    while input.pos() < batch.len() {
        encoder.run(&mut input, &mut output)?;
    }
    while encoder.flush(&mut output)? > 0 {}
    Ok(output.pos())
}

fn run_through(
    decoder: &mut zstd::stream::raw::Decoder<'_>,
    packed: &[u8],
    out: &mut [u8],
) -> std::io::Result<usize> {
    use zstd::stream::raw::{InBuffer, Operation as _, OutBuffer};
    let mut input = InBuffer::around(packed);
    let mut output = OutBuffer::around(out);
    while input.pos() < packed.len() {
        decoder.run(&mut input, &mut output)?;
    }
    Ok(output.pos())
}

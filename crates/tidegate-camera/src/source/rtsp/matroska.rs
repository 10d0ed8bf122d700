//! Coded pictures, with their times, as a decoder reads them from a pipe: the least of Matroska (RFC 9559).
//!
//! Each picture is a cluster of its own whose length is known, so that a reader has a picture as soon as its last byte is there. The
//! pictures keep their start codes, which FFmpeg takes where no other form is announced.

use super::sdp::Coding;

/// Nanoseconds of one step of the times.
pub(super) const STEP_NANOS: i64 = 100_000;

/// The bytes before the first picture.
pub(super) fn head(coding: Coding) -> Vec<u8> {
    let codec: &[u8] = match coding {
        Coding::H264 => b"V_MPEG4/ISO/AVC",
        Coding::H265 => b"V_MPEGH/ISO/HEVC",
        Coding::Mpeg4 => b"V_MPEG4/ISO/ASP",
        Coding::Jpeg => b"V_MJPEG",
    };
    let ebml = [
        element(&[0x42, 0x86], &number(1)),
        element(&[0x42, 0xf7], &number(1)),
        element(&[0x42, 0xf2], &number(4)),
        element(&[0x42, 0xf3], &number(8)),
        element(&[0x42, 0x82], b"matroska"),
        element(&[0x42, 0x87], &number(4)),
        element(&[0x42, 0x85], &number(2)),
    ];
    // The size is the decoder's to find; one that is said here is only a beginning.
    let video = [element(&[0xb0], &number(16)), element(&[0xba], &number(16))].concat();
    let track = [
        element(&[0xd7], &number(1)),
        element(&[0x73, 0xc5], &number(1)),
        element(&[0x83], &number(1)),
        element(&[0x86], codec),
        element(&[0xe0], &video),
    ];
    [
        element(&[0x1a, 0x45, 0xdf, 0xa3], &ebml.concat()),
        // A segment without an end.
        [&[0x18, 0x53, 0x80, 0x67, 0x01][..], &[0xff; 7]].concat(),
        element(
            &[0x15, 0x49, 0xa9, 0x66],
            &element(&[0x2a, 0xd7, 0xb1], &number(STEP_NANOS as u64)),
        ),
        element(&[0x16, 0x54, 0xae, 0x6b], &element(&[0xae], &track.concat())),
    ]
    .concat()
}

/// The bytes before a picture of `bytes` bytes at `step`; the picture follows.
pub(super) fn before(step: u64, is_key: bool, bytes: usize) -> Vec<u8> {
    let time = element(&[0xe7], &number(step));
    // The track, the time within the cluster and the flags.
    let block = [0x81, 0, 0, if is_key { 0x80 } else { 0 }];
    let block_bytes = block.len() + bytes;
    let cluster_bytes = time.len() + 1 + LENGTH_BYTES + block_bytes;
    [
        &[0x1f, 0x43, 0xb6, 0x75][..],
        &length(cluster_bytes),
        &time,
        &[0xa3],
        &length(block_bytes),
        &block,
    ]
    .concat()
}

const LENGTH_BYTES: usize = 8;

fn length(bytes: usize) -> [u8; LENGTH_BYTES] {
    (1 << 56 | bytes as u64).to_be_bytes()
}

fn number(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn element(id: &[u8], content: &[u8]) -> Vec<u8> {
    [id, &length(content.len()), content].concat()
}

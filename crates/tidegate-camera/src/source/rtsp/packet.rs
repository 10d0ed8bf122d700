//! Packets of RTP, and the reports of RTCP, to what they mean (RFC 3550).

use bytes::{Buf, Bytes};

use tidegate_message::Instant;

use crate::source::timeline::SenderReport;

/// An item received.
#[derive(Debug)]
pub(super) enum Received {
    /// A packet of pictures.
    Pictures(Bytes),
    /// A report on their times.
    Report(Bytes),
    /// Anything else: a sign of life.
    Other,
}

/// One packet of pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) marker: bool,
    pub(super) payload_type: u8,
    pub(super) sequence: u16,
    pub(super) timestamp: u32,
    /// Its sender (SSRC), each of which counts its own packets.
    pub(super) source: u32,
    pub(super) payload: Bytes,
}

impl Packet {
    /// Reads a packet; `None` if it is none.
    pub(super) fn parse(mut bytes: Bytes) -> Option<Self> {
        const HEADER: usize = 12;
        if bytes.len() < HEADER || bytes[0] >> 6 != 2 {
            return None;
        }
        let (first, second) = (bytes.get_u8(), bytes.get_u8());
        let (sequence, timestamp) = (bytes.get_u16(), bytes.get_u32());
        let source = bytes.get_u32();
        let sources = 4 * usize::from(first & 0x0f);
        (bytes.len() >= sources).then(|| bytes.advance(sources))?;
        if first & 0x10 != 0 {
            (bytes.len() >= 4).then(|| bytes.advance(2))?;
            let extension = 4 * usize::from(bytes.get_u16());
            (bytes.len() >= extension).then(|| bytes.advance(extension))?;
        }
        if first & 0x20 != 0 {
            let padding = usize::from(*bytes.last()?);
            (padding > 0 && padding <= bytes.len())
                .then(|| bytes.truncate(bytes.len() - padding))?;
        }
        let (marker, payload_type) = (second & 0x80 != 0, second & 0x7f);
        Some(Self { marker, payload_type, sequence, timestamp, source, payload: bytes })
    }
}

/// Seconds from the begin of NTP's time to that of Unix'.
const NTP_TO_UNIX: i64 = 2_208_988_800;

impl SenderReport {
    /// The first sender report of a packet of RTCP, if there is one that says a time.
    pub(super) fn find(mut bytes: &[u8]) -> Option<Self> {
        loop {
            let (header, _) = bytes.split_first_chunk::<4>()?;
            let length = 4 * (usize::from(u16::from_be_bytes([header[2], header[3]])) + 1);
            if header[0] >> 6 != 2 || bytes.len() < length {
                return None;
            }
            if header[1] == 200 && length >= 20 {
                let number = |at: usize| {
                    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
                };
                let (seconds, fraction, timestamp) = (number(8), number(12), number(16));
                // A sender without a clock says zero.
                if seconds == 0 && fraction == 0 {
                    return None;
                }
                let nanos = (u64::from(fraction) * 1_000_000_000) >> 32;
                // NTP's second era begins in 2036.
                let era = if seconds < 1 << 31 { 1_i64 << 32 } else { 0 };
                let seconds = i64::from(seconds) + era - NTP_TO_UNIX;
                let wall = Instant::from_nanos(seconds * 1_000_000_000 + nanos as i64);
                return Some(Self { wall, timestamp });
            }
            bytes = &bytes[length..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_and_others_are_none() {
        let head = [0x80, 0xe0, 0x12, 0x34, 0, 0, 1, 0, 9, 9, 9, 9];
        let with = |first: u8, rest: &[u8]| {
            let mut bytes = head.to_vec();
            bytes[0] = first;
            bytes.extend_from_slice(rest);
            Packet::parse(Bytes::from(bytes))
        };
        let plain = with(0x80, &[1, 2, 3]).unwrap();
        assert_eq!(
            (plain.marker, plain.payload_type, plain.sequence, plain.timestamp),
            (true, 96, 0x1234, 256)
        );
        assert_eq!(&plain.payload[..], [1, 2, 3]);
        assert_eq!(
            &with(0x90, &[0, 0, 0, 1, 7, 7, 7, 7, 5]).unwrap().payload[..],
            [5],
            "extension"
        );
        assert_eq!(&with(0xa0, &[5, 0, 2]).unwrap().payload[..], [5], "padding");
        assert_eq!(
            &with(0x81, &[7, 7, 7, 7, 5]).unwrap().payload[..],
            [5],
            "a contributing source"
        );
        for (first, rest) in
            [(0x40, &[][..]), (0x90, &[0, 0, 0, 9]), (0xa0, &[9]), (0xa0, &[0]), (0x8f, &[1])]
        {
            assert_eq!(with(first, rest), None, "{first:x} {rest:?}");
        }
        assert_eq!(Packet::parse(Bytes::from_static(&[0x80])), None);
    }

    #[test]
    fn a_senders_clock_is_read() {
        let mut report = vec![0x81, 201, 0, 1, 0, 0, 0, 1];
        report.extend([0x80, 200, 0, 6, 0, 0, 0, 1]);
        report.extend((1_700_000_000_u32.wrapping_add(NTP_TO_UNIX as u32)).to_be_bytes());
        report.extend((1_u32 << 31).to_be_bytes());
        report.extend(777_u32.to_be_bytes());
        report.extend([0; 8]);
        let expected =
            SenderReport { wall: Instant::from_millis(1_700_000_000_500), timestamp: 777 };
        assert_eq!(SenderReport::find(&report), Some(expected));
        assert_eq!(SenderReport::find(&report[..12]), None);
        report[16..24].fill(0);
        assert_eq!(SenderReport::find(&report), None, "it has no clock");
    }
}

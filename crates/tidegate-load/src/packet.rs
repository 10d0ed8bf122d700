//! The bytes that the hot path reads and writes itself, because a load generator must cost less than any broker.
//!
//! A decoder that checks everything is right for a broker and for all else that a client receives; here a PUBLISH is only found, its
//! stamp read and its identifier answered.

/// Fixed header of a packet: its first byte, its own length and that of what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) first: u8,
    pub(crate) header_bytes: usize,
    pub(crate) body_bytes: usize,
}

/// Fields before the payload of a PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublishHead {
    /// 0 with QoS 0.
    pub(crate) packet_id: u16,
    /// Where the payload begins in the body.
    pub(crate) payload_at: usize,
}

/// Fields at the beginning of our payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Nanoseconds of the monotonic clock when the message was to leave.
    pub(crate) sent_at: i64,
    /// Publisher, and flow in the lowest byte.
    pub(crate) flow: u32,
    pub(crate) sequence: u32,
}

/// Bytes that are no MQTT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The fixed header at the beginning of `input`; none if it is not all there.
#[inline]
pub(crate) fn header(input: &[u8]) -> Result<Option<Header>, Malformed> {
    let [first, short, ..] = *input else { return Ok(None) };
    if short < 0x80 {
        return Ok(Some(Header { first, header_bytes: 2, body_bytes: usize::from(short) }));
    }
    Ok(variable(&input[1..])?.map(|(body_bytes, bytes)| Header {
        first,
        header_bytes: 1 + bytes,
        body_bytes,
    }))
}

/// A variable byte integer and the bytes it takes.
fn variable(input: &[u8]) -> Result<Option<(usize, usize)>, Malformed> {
    let mut value = 0;
    for (index, &byte) in input.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * index);
        if byte < 0x80 {
            return Ok(Some((value, index + 1)));
        }
    }
    if input.len() >= 4 { Err(Malformed) } else { Ok(None) }
}

/// The head of a PUBLISH whose fixed header was `header`, from as much of its body as `body` holds; none if that is too little.
#[inline]
pub(crate) fn publish_head(
    header: Header,
    v5: bool,
    body: &[u8],
) -> Result<Option<PublishHead>, Malformed> {
    let [high, low, ..] = *body else {
        return if header.body_bytes < 2 { Err(Malformed) } else { Ok(None) };
    };
    let mut at = 2 + usize::from(u16::from_be_bytes([high, low]));
    let mut packet_id = 0;
    if header.first & 0x06 != 0 {
        let Some(&[high, low]) = body.get(at..at + 2) else {
            return if header.body_bytes < at + 2 { Err(Malformed) } else { Ok(None) };
        };
        packet_id = u16::from_be_bytes([high, low]);
        at += 2;
    }
    if v5 {
        let rest = body.get(at..).unwrap_or_default();
        let Some((properties, bytes)) = variable(rest)? else {
            return if header.body_bytes <= at { Err(Malformed) } else { Ok(None) };
        };
        at += bytes + properties;
    }
    if at > header.body_bytes {
        Err(Malformed)
    } else {
        Ok(Some(PublishHead { packet_id, payload_at: at }))
    }
}

impl Stamp {
    pub(crate) const BYTES: usize = 16;

    #[inline]
    pub(crate) fn read(payload: &[u8; Self::BYTES]) -> Self {
        let [sent_at @ .., f0, f1, f2, f3, s0, s1, s2, s3] = *payload;
        Self {
            sent_at: i64::from_le_bytes(sent_at),
            flow: u32::from_le_bytes([f0, f1, f2, f3]),
            sequence: u32::from_le_bytes([s0, s1, s2, s3]),
        }
    }

    #[inline]
    pub(crate) fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.sent_at.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flow.to_le_bytes());
        bytes[12..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_in_part_and_whole() {
        let found =
            |first, header_bytes, body_bytes| Ok(Some(Header { first, header_bytes, body_bytes }));
        for (input, expected) in [
            (&[][..], Ok(None)),
            (&[0x30], Ok(None)),
            (&[0x30, 0x80], Ok(None)),
            (&[0xD0, 0], found(0xD0, 2, 0)),
            (&[0x30, 0x7F, 1], found(0x30, 2, 127)),
            (&[0x30, 0x80, 0x01], found(0x30, 3, 128)),
            (&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], found(0x30, 5, 268_435_455)),
            (&[0x30, 0xFF, 0xFF, 0xFF, 0xFF], Err(Malformed)),
        ] {
            assert_eq!(header(input), expected, "{input:?}");
        }
    }

    #[test]
    fn payloads_are_found_behind_topic_identifier_and_properties() {
        let head = |packet_id, payload_at| Ok(Some(PublishHead { packet_id, payload_at }));
        for (first, v5, body, body_bytes, expected) in [
            (0x30, false, &[0, 1, b't', 9][..], 4, head(0, 3)),
            (0x32, false, &[0, 1, b't', 1, 2, 9], 6, head(258, 5)),
            (0x32, true, &[0, 1, b't', 1, 2, 2, 1, 1, 9], 9, head(258, 8)),
            (0x30, true, &[0, 1, b't'], 9, Ok(None)),
            (0x32, false, &[0, 1, b't'], 9, Ok(None)),
            (0x30, false, &[0, 9, b't'], 3, Err(Malformed)),
            (0x32, false, &[0, 1, b't'], 3, Err(Malformed)),
            (0x30, true, &[0, 1, b't', 5], 4, Err(Malformed)),
        ] {
            let header = Header { first, header_bytes: 2, body_bytes };
            assert_eq!(publish_head(header, v5, body), expected, "{first:#x} {body:?}");
        }
    }

    #[test]
    fn a_stamp_reads_as_it_was_written() {
        let stamp = Stamp { sent_at: 0x0102_0304_0506_0708, flow: 0x0A0B_0C0D, sequence: 77 };
        assert_eq!(Stamp::read(&stamp.bytes()), stamp);
    }
}

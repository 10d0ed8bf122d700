//! The fixed header, and numbers of variable length (sections 1.5.5 and 2.1).

use super::DecodeError;

/// The largest number of variable length, and so the longest body.
pub(super) const VARIABLE_MAX: u32 = 268_435_455;

/// Largest packet that the protocol allows, in bytes: the longest remaining length behind the longest fixed header.
pub const PACKET_BYTES_MAX: u32 = 268_435_455 + 5;

/// A fixed header (section 2.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedHeader {
    /// The first byte: the type in bits 7 to 4, flags below.
    pub first: u8,
    /// Length of the header itself, 2 to 5.
    pub header_bytes: usize,
    /// Length of what follows it: at most 268,435,455.
    pub body_bytes: usize,
}

impl FixedHeader {
    /// The header that `input` begins with; none if more bytes are needed. Neither type nor flags are looked at.
    ///
    /// # Errors
    ///
    /// - `Malformed` for a length of more than four bytes, or of more than it needs.
    /// - `PacketTooLarge` if header and body together exceed `packet_bytes_max`.
    #[inline]
    pub fn decode(
        input: &[u8],
        packet_bytes_max: usize,
    ) -> Result<Option<FixedHeader>, DecodeError> {
        let Some((&first, rest)) = input.split_first() else { return Ok(None) };
        let Some((body_bytes, length_bytes)) = decode_variable(rest, "remaining length")? else {
            return Ok(None);
        };
        let header =
            Self { first, header_bytes: 1 + length_bytes, body_bytes: body_bytes as usize };
        if header.packet_bytes() > packet_bytes_max {
            let packet_bytes = header.packet_bytes();
            return Err(DecodeError::PacketTooLarge { packet_bytes, packet_bytes_max });
        }
        Ok(Some(header))
    }

    /// The type of packet, 0 to 15.
    #[inline]
    pub fn packet_type(&self) -> u8 {
        self.first >> 4
    }

    /// Length of the whole packet.
    #[inline]
    pub fn packet_bytes(&self) -> usize {
        self.header_bytes + self.body_bytes
    }
}

/// A number and its length in bytes; none if `input` ends within it.
#[inline]
pub(super) fn decode_variable(
    input: &[u8],
    field: &'static str,
) -> Result<Option<(u32, usize)>, DecodeError> {
    let mut value = 0;
    for (index, &byte) in input.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                return Err(DecodeError::Malformed { field, clause: "MQTT-1.5.5-1" });
            }
            return Ok(Some((value, index + 1)));
        }
    }
    if input.len() < 4 {
        return Ok(None);
    }
    Err(DecodeError::Malformed { field, clause: "MQTT 5.0, 1.5.5" })
}

/// Appends a number of variable length (section 1.5.5).
///
/// # Panics
///
/// If it exceeds 268,435,455.
#[inline]
pub fn encode_variable(value: u32, out: &mut Vec<u8>) {
    let (bytes, count) = variable(value);
    out.extend_from_slice(&bytes[..count]);
}

/// How many bytes [`encode_variable`] appends: 1 to 4.
#[inline]
pub fn variable_bytes(value: u32) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

/// The bytes of a number, and how many they are.
#[inline]
pub(super) fn variable(mut value: u32) -> ([u8; 4], usize) {
    assert!(value <= VARIABLE_MAX, "a number of variable length has 28 bits");
    let mut bytes = [0; 4];
    let mut count = 0;
    while value >= 0x80 {
        bytes[count] = value as u8 | 0x80;
        value >>= 7;
        count += 1;
    }
    bytes[count] = value as u8;
    (bytes, count + 1)
}

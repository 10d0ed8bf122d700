//! Fields from and to bytes (section 1.5): numbers big endian, lengths before texts.

use std::ops::{Deref, DerefMut};

use tidegate_message::{Reader, Unreadable};

use super::{
    DecodeError, EncodeError, PacketId,
    header::{VARIABLE_MAX, decode_variable, variable},
};

/// The rest of a packet while it is decoded.
#[derive(Clone, Copy)]
pub(super) struct Input<'a>(Reader<'a>);

impl<'a> Deref for Input<'a> {
    type Target = Reader<'a>;

    #[inline]
    fn deref(&self) -> &Reader<'a> {
        &self.0
    }
}

impl DerefMut for Input<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl From<Unreadable> for DecodeError {
    #[inline]
    fn from(Unreadable { field }: Unreadable) -> Self {
        Self::Short { field }
    }
}

impl<'a> Input<'a> {
    #[inline]
    pub(super) fn new(left: &'a [u8]) -> Self {
        Self(Reader::new(left))
    }

    #[inline]
    pub(super) fn variable(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let (value, count) =
            decode_variable(self.rest(), field)?.ok_or(DecodeError::Short { field })?;
        self.bytes(count, field)?;
        Ok(value)
    }

    /// Binary data: a length of two bytes, and that many.
    #[inline]
    pub(super) fn binary(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let count = self.u16_be(field)?;
        Ok(self.bytes(usize::from(count), field)?)
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let bytes = self.binary(field)?;
        if bytes.contains(&0) {
            return Err(DecodeError::Malformed { field, clause: "MQTT-1.5.4-2" });
        }
        std::str::from_utf8(bytes)
            .map_err(|_| DecodeError::Malformed { field, clause: "MQTT-1.5.4-1" })
    }

    #[inline]
    pub(super) fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        PacketId::new(self.u16_be("packet identifier")?)
            .ok_or(DecodeError::Protocol { what: "packet identifier is 0", clause: "MQTT-2.2.1-3" })
    }

    /// Nothing is left of `packet`.
    pub(super) fn end(&self, packet: &'static str) -> Result<(), DecodeError> {
        match self.rest().len() {
            0 => Ok(()),
            count => Err(DecodeError::Trailing { packet, count }),
        }
    }
}

pub(super) fn put_u16(value: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u32(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_binary(
    bytes: &[u8],
    field: &'static str,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let count = bytes.len();
    put_u16(u16::try_from(count).map_err(|_| EncodeError::TooLong { field, count })?, out);
    out.extend_from_slice(bytes);
    Ok(())
}

pub(super) fn put_text(
    text: &str,
    field: &'static str,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    if text.as_bytes().contains(&0) {
        return Err(EncodeError::NullCharacter { field });
    }
    put_binary(text.as_bytes(), field, out)
}

/// Appends what `body` appends, with its length before it.
///
/// The body is written first and moved by the length's few bytes: only packets off the hot path come here.
pub(super) fn put_with_length(
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    body(out)?;
    let body_bytes = out.len() - start;
    let length = u32::try_from(body_bytes).ok().filter(|length| *length <= VARIABLE_MAX);
    let (bytes, count) = variable(length.ok_or(EncodeError::PacketTooLarge { body_bytes })?);
    out.splice(start..start, bytes.into_iter().take(count));
    Ok(())
}

//! Options (RFC 7252 sections 3.1 and 5.10): numbers as deltas, each with a value of its own length.
//!
//! Each list of options has one encoding, so that options which are equal have equal bytes.

use super::{DecodeError, EncodeError};

/// Most options of one message.
pub const OPTIONS_MAX: usize = 128;
/// Longest value that the length of an option can say.
const VALUE_BYTES_MAX: usize = 65_535 + 269;
/// Stands between options and payload.
pub(super) const PAYLOAD_MARKER: u8 = 0xff;

/// An option's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OptionNumber(pub u16);

impl OptionNumber {
    /// Opaque, repeatable.
    pub const IF_MATCH: Self = Self(1);
    /// Text.
    pub const URI_HOST: Self = Self(3);
    /// Opaque, repeatable.
    pub const ETAG: Self = Self(4);
    /// Empty.
    pub const IF_NONE_MATCH: Self = Self(5);
    /// Number (RFC 7641).
    pub const OBSERVE: Self = Self(6);
    /// Number.
    pub const URI_PORT: Self = Self(7);
    /// Text, repeatable.
    pub const LOCATION_PATH: Self = Self(8);
    /// Text, repeatable.
    pub const URI_PATH: Self = Self(11);
    /// Number.
    pub const CONTENT_FORMAT: Self = Self(12);
    /// Number, in seconds.
    pub const MAX_AGE: Self = Self(14);
    /// Text, repeatable.
    pub const URI_QUERY: Self = Self(15);
    /// Number.
    pub const ACCEPT: Self = Self(17);
    /// Text, repeatable.
    pub const LOCATION_QUERY: Self = Self(20);
    /// Number (RFC 7959).
    pub const BLOCK2: Self = Self(23);
    /// Number (RFC 7959).
    pub const BLOCK1: Self = Self(27);
    /// Number, in bytes (RFC 7959).
    pub const SIZE2: Self = Self(28);
    /// Text.
    pub const PROXY_URI: Self = Self(35);
    /// Text.
    pub const PROXY_SCHEME: Self = Self(39);
    /// Number, in bytes.
    pub const SIZE1: Self = Self(60);
    /// Number (RFC 7967).
    pub const NO_RESPONSE: Self = Self(258);

    /// Whether who does not know it must refuse the message (section 5.4.1).
    pub const fn is_critical(self) -> bool {
        self.0 & 1 == 1
    }

    /// Whether a proxy that does not know it must not forward the message (section 5.4.2).
    pub const fn is_unsafe(self) -> bool {
        self.0 & 2 == 2
    }

    /// How long its values are and whether it may stand more than once, if it is one of those above (section 5.10, table 4).
    pub(super) fn definition(self) -> Option<Definition> {
        let definition = |bytes_min, bytes_max, is_repeatable| {
            Some(Definition { bytes_min, bytes_max, is_repeatable })
        };
        match self {
            Self::IF_MATCH => definition(0, 8, true),
            Self::URI_HOST | Self::PROXY_SCHEME => definition(1, 255, false),
            Self::ETAG => definition(1, 8, true),
            Self::IF_NONE_MATCH => definition(0, 0, false),
            Self::OBSERVE | Self::BLOCK1 | Self::BLOCK2 => definition(0, 3, false),
            Self::URI_PORT | Self::CONTENT_FORMAT | Self::ACCEPT => definition(0, 2, false),
            Self::LOCATION_PATH | Self::URI_PATH | Self::URI_QUERY | Self::LOCATION_QUERY => {
                definition(0, 255, true)
            }
            Self::MAX_AGE | Self::SIZE1 | Self::SIZE2 => definition(0, 4, false),
            Self::PROXY_URI => definition(1, 1034, false),
            Self::NO_RESPONSE => definition(0, 1, false),
            _ => None,
        }
    }
}

/// The rules for the values of an option.
#[derive(Clone, Copy)]
pub(super) struct Definition {
    pub(super) bytes_min: usize,
    pub(super) bytes_max: usize,
    pub(super) is_repeatable: bool,
}

/// Options of a message, in ascending order, as they are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options<'a> {
    raw: &'a [u8],
}

impl<'a> Options<'a> {
    /// No options.
    pub const NONE: Self = Self { raw: &[] };

    /// The options at the beginning of `bytes`, and what follows them: a payload marker or nothing.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let mut rest = bytes;
        let mut number = 0;
        let mut count = 0;
        while let Some((&first, after)) = rest.split_first() {
            if first == PAYLOAD_MARKER {
                break;
            }
            rest = after;
            let delta = extended(first >> 4, "option delta", number, &mut rest)?;
            let bytes = extended(first & 0x0f, "option length", number, &mut rest)? as usize;
            let sum = u32::from(number) + delta;
            number = u16::try_from(sum).map_err(|_| DecodeError::OptionNumber { number: sum })?;
            let number = OptionNumber(number);
            rest = rest.get(bytes..).ok_or(DecodeError::OptionShort { number, bytes })?;
            count += 1;
            if count > OPTIONS_MAX {
                return Err(DecodeError::Options { options_max: OPTIONS_MAX });
            }
        }
        Ok((Self { raw: &bytes[..bytes.len() - rest.len()] }, rest))
    }

    /// Numbers and values, in order.
    pub fn iter(self) -> impl Iterator<Item = (OptionNumber, &'a [u8])> + use<'a> {
        let mut rest = self.raw;
        let mut number = 0;
        std::iter::from_fn(move || {
            let (&first, after) = rest.split_first()?;
            rest = after;
            // Decoded or written options have no such error.
            let delta = extended(first >> 4, "option delta", number, &mut rest).ok()?;
            let bytes = extended(first & 0x0f, "option length", number, &mut rest).ok()?;
            let (value, after) = rest.split_at_checked(bytes as usize)?;
            rest = after;
            number = u16::try_from(u32::from(number) + delta).ok()?;
            Some((OptionNumber(number), value))
        })
    }

    /// The values of one option, in order.
    pub fn all(self, number: OptionNumber) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.iter().filter(move |(found, _)| *found == number).map(|(_, value)| value)
    }

    /// The first value of an option.
    pub fn first(self, number: OptionNumber) -> Option<&'a [u8]> {
        self.all(number).next()
    }

    /// The first value of an option as a number, if it is one of at most four bytes.
    pub fn number(self, number: OptionNumber) -> Option<u32> {
        self.first(number).and_then(uint)
    }

    /// Their bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.raw
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.raw.is_empty()
    }
}

/// A delta or a length: four bits, and one or two bytes more where they say so.
fn extended(
    nibble: u8,
    field: &'static str,
    after: u16,
    rest: &mut &[u8],
) -> Result<u32, DecodeError> {
    let (count, least) = match nibble {
        13 => (1, 13),
        14 => (2, 269),
        15 => return Err(DecodeError::Reserved { field, after }),
        value => return Ok(u32::from(value)),
    };
    let (bytes, left) = rest.split_at_checked(count).ok_or(DecodeError::Short { field })?;
    *rest = left;
    Ok(least + bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
}

/// A number (section 3.2): big endian, of at most four bytes; leading zeros are taken, no bytes are 0.
pub(super) fn uint(value: &[u8]) -> Option<u32> {
    (value.len() <= 4).then(|| value.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
}

/// Options as they are written.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OptionList {
    raw: Vec<u8>,
    last: u16,
    count: usize,
}

impl OptionList {
    /// No options yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an option.
    ///
    /// # Errors
    ///
    /// - `OptionOrder` if one with a higher number is there already.
    /// - `OptionLength` if its value is longer than its definition or any length allows.
    /// - `Options` beyond [`OPTIONS_MAX`].
    pub fn push(&mut self, number: OptionNumber, value: &[u8]) -> Result<(), EncodeError> {
        let bytes = value.len();
        let bytes_max = number.definition().map_or(VALUE_BYTES_MAX, |found| found.bytes_max);
        if bytes > bytes_max {
            return Err(EncodeError::OptionLength { number, bytes, bytes_max });
        }
        let after = self.last;
        let delta =
            number.0.checked_sub(after).ok_or(EncodeError::OptionOrder { number, after })?;
        if self.count == OPTIONS_MAX {
            return Err(EncodeError::Options { options_max: OPTIONS_MAX });
        }
        let (delta_nibble, delta_bytes, delta_count) = parts(usize::from(delta));
        let (length_nibble, length_bytes, length_count) = parts(bytes);
        self.raw.push(delta_nibble << 4 | length_nibble);
        self.raw.extend_from_slice(&delta_bytes[..delta_count]);
        self.raw.extend_from_slice(&length_bytes[..length_count]);
        self.raw.extend_from_slice(value);
        self.last = number.0;
        self.count += 1;
        Ok(())
    }

    /// Appends an option whose value is a number, in as few bytes as it needs.
    ///
    /// # Errors
    ///
    /// Those of [`push`](Self::push).
    pub fn push_number(&mut self, number: OptionNumber, value: u32) -> Result<(), EncodeError> {
        let bytes = value.to_be_bytes();
        self.push(number, &bytes[value.leading_zeros() as usize / 8..])
    }

    /// The options as written.
    pub fn as_options(&self) -> Options<'_> {
        Options { raw: &self.raw }
    }

    /// Takes all away, and keeps the room.
    pub fn clear(&mut self) {
        self.raw.clear();
        self.last = 0;
        self.count = 0;
    }
}

/// The four bits for a delta or a length, and the bytes that follow them.
fn parts(value: usize) -> (u8, [u8; 2], usize) {
    match value {
        0..=12 => (value as u8, [0; 2], 0),
        13..=268 => (13, [(value - 13) as u8, 0], 1),
        _ => (14, ((value - 269) as u16).to_be_bytes(), 2),
    }
}

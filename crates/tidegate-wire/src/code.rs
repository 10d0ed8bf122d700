//! Fields to and from bytes: little endian, lengths before texts.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use tidegate_message::{Instant, Reader, Unreadable};

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The record ends within a field.
    #[error("record ends within {field}")]
    Short {
        /// The field.
        field: &'static str,
    },
    /// A field holds a value that it cannot have.
    #[error("{field} is invalid: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The problem.
        reason: String,
    },
    /// The record, a text or a list is longer than its limit.
    #[error("{field} of {count} exceeds the limit of {limit}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        count: u64,
        /// The limit of [`limits`](crate::limits).
        limit: u64,
    },
    /// The kind is unknown and not optional.
    #[error("record kind {kind} is unknown; the peer runs a newer version, update this node")]
    Kind {
        /// The first byte.
        kind: u8,
    },
    /// The first record does not open with our magic.
    #[error("the peer does not speak the node link (magic {magic:02x?})")]
    Magic {
        /// The bytes in its place.
        magic: [u8; 4],
    },
    /// The peer speaks another major version.
    #[error("the peer speaks link version {theirs}, this node {ours}; update the older one")]
    Major {
        /// The peer's major version.
        theirs: u8,
        /// Ours.
        ours: u8,
    },
    /// The peer requires a feature that we do not have.
    #[error("the peer requires link features {bits:#018x} that this node lacks; update this node")]
    Features {
        /// The required bits that are unknown.
        bits: u64,
    },
}

impl DecodeError {
    pub(crate) fn invalid(field: &'static str, reason: impl ToString) -> Self {
        Self::Invalid { field, reason: reason.to_string() }
    }
}

impl From<Unreadable> for DecodeError {
    fn from(Unreadable { field }: Unreadable) -> Self {
        Self::Short { field }
    }
}

/// A value with one encoding.
pub(crate) trait Field: Sized {
    fn put(&self, out: &mut BytesMut);
    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError>;
}

/// The rest of a record while it is decoded.
pub(crate) struct Input<'a> {
    left: Reader<'a>,
    /// The field being decoded, for errors.
    pub(crate) field: &'static str,
}

impl<'a> Input<'a> {
    pub(crate) fn new(left: &'a [u8]) -> Self {
        Self { left: Reader::new(left), field: "kind" }
    }

    /// Whether nothing is left: a peer of an older minor version ends its records earlier.
    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Decodes the field called `name`.
    pub(crate) fn field<T: Field>(&mut self, name: &'static str) -> Result<T, DecodeError> {
        self.field = name;
        T::take(self)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        Ok(self.left.bytes(count, self.field)?)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.left.array(self.field)?)
    }

    /// A text of at most `limit` bytes.
    pub(crate) fn text(&mut self, limit: usize) -> Result<String, DecodeError> {
        let count = usize::from(u16::take(self)?);
        if count > limit {
            let (count, limit) = (count as u64, limit as u64);
            return Err(DecodeError::TooLong { field: self.field, count, limit });
        }
        let bytes = self.bytes(count)?;
        let text = std::str::from_utf8(bytes).map_err(|e| DecodeError::invalid(self.field, e))?;
        Ok(text.to_owned())
    }
}

/// Writes a text, cut at a character boundary if it is longer than `limit` bytes.
pub(crate) fn put_text(text: &str, limit: usize, out: &mut BytesMut) {
    let text = &text[..text.floor_char_boundary(limit)];
    out.put_u16_le(u16::try_from(text.len()).expect("limits of texts are below 64 KiB"));
    out.put_slice(text.as_bytes());
}

macro_rules! numbers {
    ($($type:ty)+) => {$(
        impl Field for $type {
            fn put(&self, out: &mut BytesMut) {
                out.put_slice(&self.to_le_bytes());
            }

            fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
                Ok(Self::from_le_bytes(input.array()?))
            }
        }
    )+};
}

numbers!(u8 u16 u32 u64 i64);

/// Numbers that are not finite are refused.
impl Field for f64 {
    fn put(&self, out: &mut BytesMut) {
        out.put_f64_le(*self);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let value = Self::from_le_bytes(input.array()?);
        if value.is_finite() { Ok(value) } else { Err(DecodeError::invalid(input.field, value)) }
    }
}

impl Field for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            other => {
                Err(DecodeError::invalid(input.field, format!("{other} is not a truth value")))
            }
        }
    }
}

impl Field for String {
    fn put(&self, out: &mut BytesMut) {
        put_text(self, crate::limits::TEXT_BYTES_MAX, out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        input.text(crate::limits::TEXT_BYTES_MAX)
    }
}

impl Field for Instant {
    fn put(&self, out: &mut BytesMut) {
        self.as_nanos().put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        i64::take(input).map(Self::from_nanos)
    }
}

/// Nanoseconds; durations over 584 years are cut to that.
impl Field for Duration {
    fn put(&self, out: &mut BytesMut) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        u64::take(input).map(Self::from_nanos)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut BytesMut) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::take(input)? { Some(T::take(input)?) } else { None })
    }
}

/// Implements [`Field`] for a struct: its fields in the order given.
macro_rules! fields {
    ($type:ident { $($field:ident),+ $(,)? } $(if $check:path)?) => {
        impl $crate::code::Field for $type {
            fn put(&self, out: &mut ::bytes::BytesMut) {
                $($crate::code::Field::put(&self.$field, out);)+
            }

            fn take(input: &mut $crate::code::Input<'_>) -> Result<Self, $crate::code::DecodeError> {
                let taken = Self { $($field: input.field(stringify!($field))?,)+ };
                $($check(&taken)?;)?
                Ok(taken)
            }
        }
    };
}

/// Implements [`Field`] for a choice: each value has one byte.
macro_rules! choice {
    ($type:ident { $($variant:ident = $byte:literal),+ $(,)? }) => {
        impl $crate::code::Field for $type {
            fn put(&self, out: &mut ::bytes::BytesMut) {
                let byte: u8 = match self { $(Self::$variant => $byte,)+ };
                $crate::code::Field::put(&byte, out);
            }

            fn take(input: &mut $crate::code::Input<'_>) -> Result<Self, $crate::code::DecodeError> {
                match <u8 as $crate::code::Field>::take(input)? {
                    $($byte => Ok(Self::$variant),)+
                    other => Err($crate::code::DecodeError::invalid(
                        input.field,
                        format!("{other} names no choice"),
                    )),
                }
            }
        }
    };
}

pub(crate) use {choice, fields};

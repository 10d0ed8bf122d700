//! Fields off the front of bytes. `bytes::BufMut` is what writes them.

use crate::varint;

/// The rest of some bytes while fields are taken off their front, each with its name, for errors.
///
/// [`Unreadable`] where fewer bytes are left than the field needs; they stay where they are then.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// The bytes end within a field, or a number of variable length exceeds 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes end within {field}")]
pub struct Unreadable {
    /// The field.
    pub field: &'static str,
}

macro_rules! numbers {
    ($($name:ident $type:ident $from:ident $doc:literal;)+) => {$(
        #[doc = $doc]
        #[inline]
        pub fn $name(&mut self, field: &'static str) -> Result<$type, Unreadable> {
            Ok($type::$from(self.array(field)?))
        }
    )+};
}

impl<'a> Reader<'a> {
    /// Begins at the front of `rest`.
    #[inline]
    pub fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// The bytes that are not taken yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether all bytes are taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `count` bytes.
    #[inline]
    pub fn bytes(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Unreadable { field })?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Unreadable> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Unreadable { field })?;
        self.rest = rest;
        Ok(*taken)
    }

    /// A number of variable length, as [`varint`] has them.
    #[inline]
    pub fn varint(&mut self, field: &'static str) -> Result<u64, Unreadable> {
        let mut rest = self.rest;
        let value = varint::take(&mut rest).ok_or(Unreadable { field })?;
        self.rest = rest;
        Ok(value)
    }

    numbers! {
        u8 u8 from_le_bytes "A byte.";
        u16_be u16 from_be_bytes "Two bytes, big endian.";
        u32_be u32 from_be_bytes "Four bytes, big endian.";
        u16_le u16 from_le_bytes "Two bytes, little endian.";
        u32_le u32 from_le_bytes "Four bytes, little endian.";
        u64_le u64 from_le_bytes "Eight bytes, little endian.";
        i64_le i64 from_le_bytes "Eight bytes with a sign, little endian.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_in_order_and_one_that_is_cut_is_named_and_stays() {
        let bytes = [7, 1, 2, 1, 2, 3, 4, 0xac, 0x02, 9, 9, 9];
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u8("kind"), Ok(7));
        assert_eq!(reader.u16_be("length"), Ok(0x0102));
        assert_eq!(reader.u32_le("count"), Ok(0x0403_0201));
        assert_eq!(reader.varint("number"), Ok(300));
        assert_eq!(reader.bytes(1, "text"), Ok(&[9][..]));
        assert_eq!(reader.u64_le("key"), Err(Unreadable { field: "key" }));
        assert_eq!(reader.bytes(usize::MAX, "list"), Err(Unreadable { field: "list" }));
        assert_eq!((reader.rest(), reader.is_empty()), (&[9, 9][..], false));
        let mut cut = Reader::new(&[0x80, 0x80]);
        assert_eq!(cut.varint("number"), Err(Unreadable { field: "number" }));
        assert_eq!(cut.rest(), [0x80, 0x80]);
        assert_eq!(cut.bytes(2, "text").map(<[u8]>::len), Ok(2));
        assert!(cut.is_empty());
    }
}

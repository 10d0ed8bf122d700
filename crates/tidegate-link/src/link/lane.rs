//! Records one after another in a stream: a length (u16, little endian), then the record.

use bytes::{Buf, BufMut, BytesMut};
use tidegate_wire::{DecodeError, Record, limits::RECORD_BYTES_MAX};

const LENGTH_BYTES: usize = 2;
const _: () = assert!(RECORD_BYTES_MAX <= u16::MAX as usize);

/// Appends an encoded record.
pub(super) fn put(record: &[u8], out: &mut BytesMut) {
    out.put_u16_le(u16::try_from(record.len()).expect("records are below 64 KiB"));
    out.put_slice(record);
}

/// The head of a stream.
pub(super) enum Head {
    /// Not a whole record yet.
    Part,
    /// A record, which was taken out; `None` for one that may be skipped.
    Record(Option<Record>),
}

/// Takes a record from the head of what has come of a stream.
pub(super) fn take(input: &mut BytesMut) -> Result<Head, DecodeError> {
    let Some(length) = input.first_chunk::<LENGTH_BYTES>() else { return Ok(Head::Part) };
    let length = usize::from(u16::from_le_bytes(*length));
    if length > RECORD_BYTES_MAX {
        let (count, limit) = (length as u64, RECORD_BYTES_MAX as u64);
        return Err(DecodeError::TooLong { field: "record", count, limit });
    }
    if input.len() < LENGTH_BYTES + length {
        return Ok(Head::Part);
    }
    input.advance(LENGTH_BYTES);
    Record::decode(&input.split_to(length)).map(Head::Record)
}

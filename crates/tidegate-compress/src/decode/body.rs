//! The body of a batch that is being read: where its parts are, and what they begin with.

use super::DecodeError;
use crate::{batch::Header, encode::Special, schema::SLOTS_MAX, varint};

/// The records of a body, as they are read.
pub(super) struct Body<'a> {
    pub(super) records: &'a [u8],
    pub(super) masks: &'a [u8],
    /// None in rows.
    pub(super) columns: Option<Vec<&'a [u8]>>,
}

impl<'a> Body<'a> {
    pub(super) fn new(header: &Header, mut bytes: &'a [u8]) -> Result<Self, DecodeError> {
        if !header.is_columns {
            return Ok(Self { records: bytes, masks: &[], columns: None });
        }
        let count = take_len(&mut bytes)?;
        if count > SLOTS_MAX {
            return Err(DecodeError::Limit { what: "columns", found: count, max: SLOTS_MAX });
        }
        let mut lens = Vec::with_capacity(count + 2);
        for _ in 0..count + 2 {
            lens.push(take_len(&mut bytes)?);
        }
        let mut parts = lens.into_iter().map(|len| {
            let (part, rest) = bytes.split_at_checked(len).ok_or(DecodeError::Truncated)?;
            bytes = rest;
            Ok(part)
        });
        let mut part = || parts.next().expect("two lengths were taken in addition to the columns'");
        let (records, masks) = (part()?, part()?);
        let columns = parts.collect::<Result<Vec<_>, _>>()?;
        if !bytes.is_empty() {
            return Err(DecodeError::BodyLength);
        }
        Ok(Self { records, masks, columns: Some(columns) })
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.records.is_empty()
            && self.masks.is_empty()
            && self.columns.iter().flatten().all(|column| column.is_empty())
    }
}

pub(super) fn special(code: u8) -> Result<Special, DecodeError> {
    Ok(match code {
        0 => Special::Define,
        1 => Special::Redefine,
        2 => Special::Undefine,
        3 => Special::Verbatim,
        4 => Special::Schema,
        5 => Special::Slot,
        _ => return Err(DecodeError::Record { what: "a record of an unknown kind" }),
    })
}

#[inline]
pub(super) fn number_after(last: u32, head: u64) -> Result<u32, DecodeError> {
    let delta = varint::unzigzag(head >> 1);
    let number = i64::from(last.wrapping_add(1)).checked_add(delta);
    number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or(DecodeError::Record { what: "a number of a topic" })
}

pub(super) fn take_byte(bytes: &mut &[u8]) -> Result<u8, DecodeError> {
    let (&byte, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
    *bytes = rest;
    Ok(byte)
}

pub(super) fn take_len(bytes: &mut &[u8]) -> Result<usize, DecodeError> {
    let len = varint::take(bytes).ok_or(DecodeError::Truncated)?;
    usize::try_from(len).map_err(|_| DecodeError::Header { value: len })
}

pub(super) fn take_bytes<'a>(bytes: &mut &'a [u8], max: usize) -> Result<&'a [u8], DecodeError> {
    let len = take_len(bytes)?;
    if len > max {
        return Err(DecodeError::Limit { what: "bytes of a part", found: len, max });
    }
    let (part, rest) = bytes.split_at_checked(len).ok_or(DecodeError::Truncated)?;
    *bytes = rest;
    Ok(part)
}

//! Values at fixed places: ASCII columns and binary numbers.

use super::{Field, fail, number_in, number_of};
use crate::{
    bad::Reason,
    batch::{BATCH_MAX, Batch, Column, Place, Text},
    message::Message,
    number,
    spec::{Encoding, FieldKind, FieldSpec},
};

/// Where each field stands, in the order of the fields.
#[derive(Debug)]
pub(super) struct Fixed {
    places: Vec<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    at: usize,
    bytes: usize,
    encoding: Encoding,
}

impl Fixed {
    pub(super) fn new(specs: &[FieldSpec]) -> Self {
        let span = |spec: &FieldSpec| {
            let encoding = spec.encoding.unwrap_or(Encoding::Ascii);
            let bytes = encoding.bytes().or(spec.length).unwrap_or(1);
            Span { at: spec.at.unwrap_or(0) as usize, bytes: bytes as usize, encoding }
        };
        Self { places: specs.iter().map(span).collect() }
    }

    pub(super) fn run(&self, fields: &[Field], messages: &[Message<'_>], batch: &mut Batch) {
        for (index, (field, span)) in fields.iter().zip(&self.places).enumerate() {
            match field.column {
                Column::Number(column) => numbers(field, index, *span, messages, batch, column),
                Column::Text(column) => texts(field, index, *span, messages, batch, column),
                Column::Topic => {}
            }
        }
    }
}

fn numbers(
    field: &Field,
    index: usize,
    span: Span,
    messages: &[Message<'_>],
    batch: &mut Batch,
    column: usize,
) {
    // What must be looked at again, since it is not what such fields hold most of the time.
    let mut odd = [0_u8; BATCH_MAX];
    let mut odd_count = 0;
    let is_plain = field.kind == FieldKind::Number && field.scale == 1.0;
    let out = &mut batch.numbers[column];
    for (row, message) in messages.iter().enumerate() {
        let bytes = message.payload.get(span.at..span.at + span.bytes);
        let value = match (bytes, span.encoding) {
            (Some(bytes), Encoding::Ascii) if is_plain => plain(bytes),
            (Some(bytes), encoding) if encoding != Encoding::Ascii => {
                number_of(field, binary(bytes, encoding)).ok()
            }
            _ => None,
        };
        out[row] = value.unwrap_or(f64::NAN);
        odd[odd_count] = row as u8;
        odd_count += usize::from(value.is_none());
    }
    for &row in &odd[..odd_count] {
        let row = usize::from(row);
        let bytes = messages[row].payload.get(span.at..span.at + span.bytes);
        let value = match (bytes, span.encoding) {
            (None, _) => Ok(f64::NAN),
            (Some(bytes), Encoding::Ascii) => number_in(field, bytes),
            (Some(bytes), encoding) => number_of(field, binary(bytes, encoding)),
        };
        match value {
            Ok(value) if value.is_nan() => {
                if !field.optional {
                    fail(batch, row, Reason::Missing, index);
                }
            }
            Ok(value) => batch.numbers[column][row] = value,
            Err(reason) => fail(batch, row, reason, index),
        }
    }
}

/// A plain decimal that blanks may stand before.
#[inline]
fn plain(bytes: &[u8]) -> Option<f64> {
    let blanks = bytes.iter().take_while(|byte| **byte == b' ').count();
    let bytes = &bytes[blanks..];
    let (value, end) = number::prefix(bytes)?;
    bytes[end..].iter().all(|byte| *byte == b' ').then_some(value)
}

fn texts(
    field: &Field,
    index: usize,
    span: Span,
    messages: &[Message<'_>],
    batch: &mut Batch,
    column: usize,
) {
    for (row, message) in messages.iter().enumerate() {
        let text = match message.payload.get(span.at..span.at + span.bytes) {
            None => Ok(Text::default()),
            Some(bytes) => {
                // Columns are filled up with blanks, or with zeros.
                let kept = bytes.trim_ascii_start();
                let start = span.at + bytes.len() - kept.len();
                let is_filler = |byte: &u8| matches!(byte, b' ' | b'\0');
                let end = kept.iter().rposition(|byte| !is_filler(byte)).map_or(0, |at| at + 1);
                match std::str::from_utf8(&kept[..end]) {
                    Ok("") => Ok(Text::default()),
                    Ok(text) => Ok(Text::new(Place::Payload, start, text.len())),
                    Err(_) => Err(Reason::NotText),
                }
            }
        };
        batch.texts[column][row] = text.unwrap_or_default();
        match text {
            Ok(text) if text.is_missing() && !field.optional => {
                fail(batch, row, Reason::Missing, index);
            }
            Ok(_) => {}
            Err(reason) => fail(batch, row, reason, index),
        }
    }
}

/// The number that `bytes` are; they are as many as `encoding` has.
#[inline]
fn binary(bytes: &[u8], encoding: Encoding) -> f64 {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.try_into().expect("as many bytes as the encoding has")
    }
    match encoding {
        Encoding::Ascii => f64::NAN,
        Encoding::U8 => f64::from(bytes[0]),
        Encoding::I8 => f64::from(bytes[0].cast_signed()),
        Encoding::U16le => f64::from(u16::from_le_bytes(array(bytes))),
        Encoding::U16be => f64::from(u16::from_be_bytes(array(bytes))),
        Encoding::I16le => f64::from(i16::from_le_bytes(array(bytes))),
        Encoding::I16be => f64::from(i16::from_be_bytes(array(bytes))),
        Encoding::U32le => f64::from(u32::from_le_bytes(array(bytes))),
        Encoding::U32be => f64::from(u32::from_be_bytes(array(bytes))),
        Encoding::I32le => f64::from(i32::from_le_bytes(array(bytes))),
        Encoding::I32be => f64::from(i32::from_be_bytes(array(bytes))),
        // Whole numbers above 2^53 round; as `integer` they are refused.
        Encoding::U64le => u64::from_le_bytes(array(bytes)) as f64,
        Encoding::U64be => u64::from_be_bytes(array(bytes)) as f64,
        Encoding::I64le => i64::from_le_bytes(array(bytes)) as f64,
        Encoding::I64be => i64::from_be_bytes(array(bytes)) as f64,
        Encoding::F32le => f64::from(f32::from_le_bytes(array(bytes))),
        Encoding::F32be => f64::from(f32::from_be_bytes(array(bytes))),
        Encoding::F64le => f64::from_le_bytes(array(bytes)),
        Encoding::F64be => f64::from_be_bytes(array(bytes)),
    }
}

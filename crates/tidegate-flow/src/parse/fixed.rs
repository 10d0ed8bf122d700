//! Values at fixed places: ASCII columns and binary numbers.

use super::{Field, fail, integer_of, nanos_of, number_in, number_of};
use crate::{
    bad::Reason,
    batch::{Batch, Column, Place as TextPlace, Rows, TILE, Text},
    message::Message,
    number::{self, INTEGER_MAX},
    spec::{Encoding, FieldKind, FieldSpec},
    time,
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

    /// Field after field of a tile: so few messages that the last field finds what the first brought into the cache.
    pub(super) fn run(
        &self,
        fields: &[Field],
        messages: &[Message<'_>],
        first: usize,
        batch: &mut Batch,
    ) {
        for (index, (field, span)) in fields.iter().zip(&self.places).enumerate() {
            match field.column {
                Column::Number(column) => {
                    numbers(field, index, *span, first, messages, batch, column);
                }
                Column::Text(column) => {
                    texts(field, index, *span, first, messages, batch, column);
                }
                Column::Topic => {}
            }
        }
    }
}

/// `first` is the row of the first message.
fn numbers(
    field: &Field,
    index: usize,
    span: Span,
    first: usize,
    messages: &[Message<'_>],
    batch: &mut Batch,
    column: usize,
) {
    // Values to look at again, since they differ from what such fields hold most of the time.
    let mut odd = Rows::none();
    let out = &mut batch.numbers[column][first..first + messages.len()];
    match span.encoding {
        Encoding::Ascii => ascii(field, span, messages, out, &mut odd),
        encoding => binaries(encoding, span.at, messages, out, &mut odd),
    }
    let is_whole = !matches!(
        span.encoding,
        Encoding::F32le | Encoding::F32be | Encoding::F64le | Encoding::F64be
    );
    let is_done = match span.encoding {
        Encoding::Ascii => true,
        // A whole number of 32 bits needs no check.
        _ => field.scale == 1.0 && field.kind != FieldKind::Time && is_whole && span.bytes <= 4,
    };
    if !is_done {
        odd.fill_all(messages.len());
    }
    for row in odd.iter() {
        let message = &messages[usize::from(row)];
        let row = first + usize::from(row);
        let bytes = message.payload.get(span.at..span.at + span.bytes);
        let value = match (bytes, span.encoding) {
            (None, _) => Ok(f64::NAN),
            (Some(bytes), Encoding::Ascii) => number_in(field, bytes),
            (Some(bytes), encoding) => {
                let value = batch.numbers[column][row];
                // Below, a float is the whole number that it was made of.
                match integer(encoding, bytes).filter(|_| value.abs() >= INTEGER_MAX) {
                    Some(integer) => integer_of(field, integer),
                    None => number_of(field, value),
                }
            }
        };
        if field.kind == FieldKind::Time {
            let nanos = bytes.and_then(|bytes| match span.encoding {
                Encoding::Ascii => time::nanos(bytes, field.unit),
                encoding => nanos_of(field, integer(encoding, bytes)?),
            });
            batch.set_nanos(column, row, nanos);
        }
        batch.numbers[column][row] = value.unwrap_or(f64::NAN);
        match value {
            Ok(value) if value.is_nan() && !field.optional => {
                fail(batch, row, Reason::Missing, index);
            }
            Ok(_) => {}
            Err(reason) => fail(batch, row, reason, index),
        }
    }
}

fn ascii(field: &Field, span: Span, messages: &[Message<'_>], out: &mut [f64], odd: &mut Rows) {
    let is_plain = field.kind == FieldKind::Number && field.scale == 1.0;
    if !is_plain || span.bytes > 8 {
        odd.fill_all(messages.len());
        return;
    }
    let mut words = [0; TILE];
    for (message, word) in messages.iter().zip(&mut words) {
        let bytes = message.payload.get(span.at..).and_then(<[u8]>::first_chunk::<8>);
        // A field that is too short has no number.
        *word = bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    }
    if number::words(&words[..messages.len()], span.bytes, out) {
        return;
    }
    let (mut digits, mut divisors) = ([0; TILE], [1.0; TILE]);
    for (row, (word, place)) in
        words[..messages.len()].iter().zip(digits.iter_mut().zip(&mut divisors)).enumerate()
    {
        match number::word(word.to_le_bytes(), span.bytes) {
            Some(decimal) => (*place.0, *place.1) = (decimal.digits, decimal.divisor),
            None => odd.push(row as u8),
        }
    }
    for ((out, digits), divisor) in out.iter_mut().zip(&digits).zip(&divisors) {
        *out = f64::from(*digits) / divisor;
    }
}

fn texts(
    field: &Field,
    index: usize,
    span: Span,
    first: usize,
    messages: &[Message<'_>],
    batch: &mut Batch,
    column: usize,
) {
    for (row, message) in (first..).zip(messages) {
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
                    Ok(text) => Ok(Text::new(TextPlace::Payload, start, text.len())),
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

/// Reads binary numbers. Which kind they are is asked once.
fn binaries(
    encoding: Encoding,
    at: usize,
    messages: &[Message<'_>],
    out: &mut [f64],
    odd: &mut Rows,
) {
    let mut to = Place { at, messages, out, odd };
    match encoding {
        Encoding::Ascii => {}
        Encoding::U8 => to.read(|bytes: [u8; 1]| f64::from(bytes[0])),
        Encoding::I8 => to.read(|bytes: [u8; 1]| f64::from(bytes[0].cast_signed())),
        Encoding::U16le => to.read(|bytes| f64::from(u16::from_le_bytes(bytes))),
        Encoding::U16be => to.read(|bytes| f64::from(u16::from_be_bytes(bytes))),
        Encoding::I16le => to.read(|bytes| f64::from(i16::from_le_bytes(bytes))),
        Encoding::I16be => to.read(|bytes| f64::from(i16::from_be_bytes(bytes))),
        Encoding::U32le => to.read(|bytes| f64::from(u32::from_le_bytes(bytes))),
        Encoding::U32be => to.read(|bytes| f64::from(u32::from_be_bytes(bytes))),
        Encoding::I32le => to.read(|bytes| f64::from(i32::from_le_bytes(bytes))),
        Encoding::I32be => to.read(|bytes| f64::from(i32::from_be_bytes(bytes))),
        // A number of more than 53 bits rounds; as `integer` it is refused.
        Encoding::U64le => to.read(|bytes| u64::from_le_bytes(bytes) as f64),
        Encoding::U64be => to.read(|bytes| u64::from_be_bytes(bytes) as f64),
        Encoding::I64le => to.read(|bytes| i64::from_le_bytes(bytes) as f64),
        Encoding::I64be => to.read(|bytes| i64::from_be_bytes(bytes) as f64),
        Encoding::F32le => to.read(|bytes| f64::from(f32::from_le_bytes(bytes))),
        Encoding::F32be => to.read(|bytes| f64::from(f32::from_be_bytes(bytes))),
        Encoding::F64le => to.read(f64::from_le_bytes),
        Encoding::F64be => to.read(f64::from_be_bytes),
    }
}

/// A whole number of more bits than a float has.
fn integer(encoding: Encoding, bytes: &[u8]) -> Option<i128> {
    let bytes = bytes.try_into().ok()?;
    Some(match encoding {
        Encoding::U64le => u64::from_le_bytes(bytes).into(),
        Encoding::U64be => u64::from_be_bytes(bytes).into(),
        Encoding::I64le => i64::from_le_bytes(bytes).into(),
        Encoding::I64be => i64::from_be_bytes(bytes).into(),
        _ => return None,
    })
}

struct Place<'a, 'm> {
    at: usize,
    messages: &'a [Message<'m>],
    out: &'a mut [f64],
    odd: &'a mut Rows,
}

impl Place<'_, '_> {
    #[inline]
    fn read<const N: usize>(&mut self, number: impl Fn([u8; N]) -> f64) {
        for (row, (message, out)) in self.messages.iter().zip(&mut *self.out).enumerate() {
            match message.payload.get(self.at..).and_then(<[u8]>::first_chunk::<N>) {
                Some(bytes) => *out = number(*bytes),
                None => self.odd.push(row as u8),
            }
        }
    }
}

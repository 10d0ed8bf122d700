//! Rows: a topic's next payload, made from its last and the changes.

use super::{
    Body, DecodeError, Decoded, Decoder,
    body::{take_bytes, take_len},
};
use crate::{
    code::{NUMBER, format_of},
    encode::{KEPT_BYTES_MAX, OPAQUE},
    form::{self, Form, LENS_MAX, NUMBER_BYTES, Packing},
    kept::{BLOCK_STEP, Kept},
    layout::{Cut, FIELD_BYTES_MAX, Numeral},
    number::TEXT_MAX,
    schema::{self, Predictor, SLOTS_MAX, Schema, Slot, Starts, Token, take_token},
    varint,
};

#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) lens: Vec<u8>,
    pub(super) gaps: Vec<u8>,
    pub(super) payload: Vec<u8>,
    pub(super) packing: Packing,
    starts: Starts,
    old: Vec<u8>,
    values: Values,
}

/// The numbers of a payload.
#[derive(Debug)]
struct Values([i64; LENS_MAX]);

impl Default for Values {
    fn default() -> Self {
        Self([0; LENS_MAX])
    }
}

impl Decoder {
    pub(super) fn row(
        &mut self,
        number: u32,
        body: &mut Body<'_>,
        out: &mut Decoded,
    ) -> Result<(), DecodeError> {
        let kept = self
            .topics
            .get_mut(number as usize)
            .and_then(Option::as_mut)
            .ok_or(DecodeError::UnknownTopic { number })?;
        self.touched.push(number);
        let before = kept.cost();
        let start = out.end() + kept.name_len();
        if kept.schema == OPAQUE {
            out.put(kept.name());
            opaque(kept.form().data, body, out)?;
            is_short(out.end() - start)?;
            kept.set(Form::text(out.since(start), &[]));
        } else {
            let schema = self
                .schemas
                .get_mut(usize::from(kept.schema) - 1)
                .and_then(Option::as_mut)
                .ok_or(DecodeError::Record { what: "a schema that is not known" })?;
            let scratch = &mut self.scratch;
            let mut writer = Writer { bytes: out.room(kept.name_len() + ROW_BYTES), len: 0 };
            writer.copy(kept.whole(), 0, kept.name_len());
            if numbers(kept, schema, body, scratch, &mut writer)? {
                let len = writer.len;
                out.advance(len);
            } else if kept.is_packed() || kept.form().lens.is_empty() || schema.is_dense() {
                cut_again(kept, schema, scratch)?;
                let old = (scratch.old.as_slice(), scratch.old.len());
                fields(schema, body, old, &mut scratch.lens, &mut scratch.starts, &mut writer)?;
                let len = writer.len;
                out.advance(len);
                is_short(out.end() - start)?;
                let form = scratch.packing.form(schema, out.since(start), &scratch.lens);
                let is_miss = schema.is_dense() && (kept.is_packed() || !form.is_packed);
                kept.set(form);
                if is_miss {
                    schema.note_miss();
                }
            } else {
                let old_len = kept.form().data.len();
                // Lengths written before an error are forgotten with the topic.
                let (lens, old) = kept.parts_mut();
                fields(schema, body, (old, old_len), lens, &mut scratch.starts, &mut writer)?;
                let len = writer.len;
                out.advance(len);
                is_short(out.end() - start)?;
                kept.set_text(out.since(start), &[]);
            }
        }
        self.state_bytes = self.state_bytes + kept.cost() - before;
        out.end_message(kept);
        Ok(())
    }
}

#[inline]
fn is_short(len: usize) -> Result<(), DecodeError> {
    if len > KEPT_BYTES_MAX {
        return Err(DecodeError::Record { what: "a payload that is too long to be kept" });
    }
    Ok(())
}

/// Appends the next payload of a topic whose last was `old` and not cut.
fn opaque(old: &[u8], body: &mut Body<'_>, out: &mut Decoded) -> Result<(), DecodeError> {
    let prefix = take_len(&mut body.records)?;
    let suffix = take_len(&mut body.records)?;
    let middle = take_bytes(&mut body.records, KEPT_BYTES_MAX)?;
    if prefix.checked_add(suffix).is_none_or(|both| both > old.len()) {
        return Err(DecodeError::Record { what: "an opaque payload" });
    }
    for part in [&old[..prefix], middle, &old[old.len() - suffix..]] {
        out.put(part);
    }
    Ok(())
}

/// Appends the next payload of a topic of which all that changes are numbers, as it mostly is; returns whether it is so. If not, nothing
/// has changed.
#[inline]
fn numbers(
    kept: &mut Kept,
    schema: &mut Schema,
    body: &mut Body<'_>,
    scratch: &mut Scratch,
    out: &mut Writer<'_>,
) -> Result<bool, DecodeError> {
    let Cut::Csv(separator) = schema.cut else { return Ok(false) };
    if !kept.is_packed() || !schema.is_dense() || body.columns.is_some() {
        return Ok(false);
    }
    let mut records = body.records;
    let mask = schema.take_mask(&mut records).ok_or(DecodeError::Record { what: "a mask" })?;
    let (codes, data) = kept.parts_mut();
    if !schema.fits(codes) {
        return Ok(false);
    }
    let values = &mut scratch.values.0;
    let numbers = usize::from(schema.ranks);
    for (value, bytes) in values[..numbers].iter_mut().zip(data.chunks_exact(NUMBER_BYTES)) {
        *value = i64::from_le_bytes(bytes.try_into().expect("a chunk has eight bytes"));
    }
    if !tell(schema, mask, &mut records, values)? {
        return Ok(false);
    }
    let begin = out.len;
    put_fields(codes, &values[..numbers], &data[NUMBER_BYTES * numbers..], separator, out);
    // Before it counts: a topic that is forgotten takes back what it counted.
    is_short(out.len - begin)?;
    if !kept.is_worth(out.len - begin) {
        out.len = begin;
        return Ok(false);
    }
    let (_, data) = kept.parts_mut();
    let mut watched = schema.watched_mask;
    while watched != 0 {
        let number = watched.trailing_zeros() as usize;
        watched &= watched - 1;
        let slot = &mut schema.slots[number];
        let rank = usize::from(slot.rank);
        let before = data[NUMBER_BYTES * rank..].first_chunk().expect("there is one for each rank");
        slot.note_number(i64::from_le_bytes(*before), values[rank], mask >> number & 1 == 1);
    }
    for (value, bytes) in values[..numbers].iter().zip(data.chunks_exact_mut(NUMBER_BYTES)) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    kept.set_text_len(out.len - begin);
    schema.note_mask(mask);
    body.records = records;
    Ok(true)
}

/// Changes the values of a topic's numbers to those of its next message; returns whether all that changes are numbers.
#[inline]
fn tell(
    schema: &Schema,
    mask: u64,
    records: &mut &[u8],
    values: &mut [i64; LENS_MAX],
) -> Result<bool, DecodeError> {
    let mut told = mask;
    while told != 0 {
        let slot = &schema.slots[told.trailing_zeros() as usize];
        told &= told - 1;
        let token = varint::take(records).ok_or(DecodeError::Truncated)?;
        let Some(value) = values.get_mut(usize::from(slot.rank)) else { return Ok(false) };
        let Some(predicted) = slot.predict_number(*value) else { return Ok(false) };
        // Zero announces a text.
        if token == 0 {
            return Ok(false);
        }
        *value = predicted.wrapping_add(varint::unzigzag(token));
    }
    let mut watched = schema.watched_mask & !mask;
    while watched != 0 {
        let slot = &schema.slots[watched.trailing_zeros() as usize];
        watched &= watched - 1;
        let Some(value) = values.get_mut(usize::from(slot.rank)) else { return Ok(false) };
        let Some(predicted) = slot.predict_number(*value) else { return Ok(false) };
        *value = predicted;
    }
    Ok(true)
}

/// Appends fields with a separator between each two.
#[inline]
fn put_fields(codes: &[u8], values: &[i64], texts: &[u8], separator: u8, out: &mut Writer<'_>) {
    let (mut at, mut len) = (0, out.len);
    let mut values = values.iter();
    for &code in codes {
        if code < NUMBER {
            let end = at + usize::from(code);
            out.len = len;
            out.copy(texts, at, end);
            (at, len) = (end, out.len);
            out.bytes[len] = separator;
        } else {
            let value = *values.next().expect("there is one for each such code");
            let room: &mut [u8; TEXT_MAX] =
                out.bytes[len..].first_chunk_mut().expect("there is room for all fields");
            let printed = format_of(code).print(value, room);
            // No number fills its room.
            room[printed % TEXT_MAX] = separator;
            len = len.wrapping_add(printed);
        }
        len = len.wrapping_add(1);
    }
    // None after the last.
    out.len = len - 1;
}

/// Finds the last payload of a topic and the lengths of its fields.
fn cut_again(kept: &Kept, schema: &Schema, scratch: &mut Scratch) -> Result<(), DecodeError> {
    let form = kept.form();
    if let (true, Cut::Csv(separator)) = (form.is_packed, &schema.cut) {
        form::unpack(*separator, form.lens, form.data, &mut scratch.old, &mut scratch.lens);
        return Ok(());
    }
    scratch.old.clear();
    scratch.old.extend_from_slice(form.data);
    scratch.lens.clear();
    scratch.lens.extend_from_slice(form.lens);
    if form.lens.is_empty()
        && (!schema.cut.split(form.data, &mut scratch.lens, &mut scratch.gaps)
            || *scratch.gaps != *schema.gaps)
    {
        return Err(DecodeError::Record { what: "a payload that cannot be cut" });
    }
    Ok(())
}

/// Appends the next payload of a topic. `old` is the last one and what stands after it, and how long it is; `lens` are the lengths of its
/// fields, which become those of the next.
#[inline]
fn fields(
    schema: &mut Schema,
    body: &mut Body<'_>,
    (old, old_len): (&[u8], usize),
    lens: &mut [u8],
    starts: &mut Starts,
    out: &mut Writer<'_>,
) -> Result<(), DecodeError> {
    let masks = if body.columns.is_some() { &mut body.masks } else { &mut body.records };
    let mask = schema.take_mask(masks).ok_or(DecodeError::Record { what: "a mask" })?;
    schema.note_mask(mask);
    let starts = &mut starts.0;
    schema::starts(&schema.gaps, lens, starts);
    // In rows, tokens are taken from here.
    let mut records = body.records;
    // So much of `old` is in `out`, or what stands there in its place.
    let mut copied = 0;
    // Slots that a token is sent for, and those that are not expected to stay.
    let mut slots = mask | schema.watched_mask;
    while slots != 0 {
        let number = slots.trailing_zeros() as usize;
        slots &= slots - 1;
        let slot = &mut schema.slots[number];
        let len = &mut lens[usize::from(slot.field)];
        let begin = usize::from(starts[usize::from(slot.field)]);
        let end = begin + usize::from(*len);
        out.copy(old, copied, begin);
        copied = end;
        let at = out.len;
        // Most fields are decimals that hold, or do not: for these nothing else need be asked.
        if slot.predictor == Predictor::Hold
            && let Numeral::Decimal(format) = slot.numeral
            && let Some(value) = format.parse_at(old, begin, end)
        {
            let token = match &mut body.columns {
                None => take_token(&mut records, Some(value)),
                Some(columns) => columns.get_mut(number).and_then(|it| take_token(it, Some(value))),
            };
            match token {
                Some(Token::Value(value)) => out.print(Numeral::Decimal(format), value),
                Some(Token::Text(text)) => out.copy(text, 0, text.len()),
                None => return Err(DecodeError::Record { what: "a token" }),
            }
        } else {
            let tokens = match &mut body.columns {
                _ if mask >> number & 1 == 0 => None,
                None => Some(&mut records),
                Some(columns) => match columns.get_mut(number) {
                    None => return Err(DecodeError::Record { what: "a column" }),
                    column => column,
                },
            };
            field(slot, &old[begin..end], tokens, out)?;
        }
        *len = u8::try_from(out.len - at).map_err(|_| DecodeError::Record { what: "a field" })?;
    }
    out.copy(old, copied, old_len);
    if body.columns.is_none() {
        body.records = records;
    }
    Ok(())
}

/// Appends a field that was `before`: the value of its token, or the predicted one if it has none.
fn field(
    slot: &mut Slot,
    before: &[u8],
    tokens: Option<&mut &[u8]>,
    out: &mut Writer<'_>,
) -> Result<(), DecodeError> {
    let at = out.len;
    let prediction = slot.predict(before);
    if let Some(tokens) = tokens {
        let token = take_token(tokens, prediction.value);
        match token.ok_or(DecodeError::Record { what: "a token" })? {
            Token::Value(value) => out.print(slot.numeral, value),
            Token::Text(text) => out.copy(text, 0, text.len()),
        }
        if slot.predictor != Predictor::Hold {
            let after = &out.bytes[at..out.len];
            let value = slot.numeral.parse(after);
            slot.note(before, after, value);
        }
        return Ok(());
    }
    // A predicted value changes nothing that the next prediction is made from.
    match (prediction.text, prediction.value) {
        (None, Some(value)) => out.print(slot.numeral, value),
        (text, _) => {
            let text = text.expect("a prediction without value has a text");
            out.copy(text, 0, text.len());
        }
    }
    if slot.last.text().is_none() && slot.predictor == Predictor::Stream {
        let after = &out.bytes[at..out.len];
        let value = slot.numeral.parse(after);
        slot.note(before, after, value);
    }
    Ok(())
}

/// Bytes that are copied at once: so many cost less than to ask how many they should be.
const STEP: usize = BLOCK_STEP;

/// Room for a payload: each byte of the last once, a text for each slot, and what is written beyond its end.
const ROW_BYTES: usize = KEPT_BYTES_MAX + SLOTS_MAX * FIELD_BYTES_MAX + 2 * TEXT_MAX;

// A printed number is no longer than a text may be.
const _: () = assert!(TEXT_MAX <= FIELD_BYTES_MAX && STEP <= TEXT_MAX);

/// Where a message is put together, with room for the longest.
struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    /// Appends `from[begin..end]`.
    #[inline(always)] // Most parts are short, and the call would be half of what they cost.
    fn copy(&mut self, from: &[u8], begin: usize, end: usize) {
        let to = self.len;
        self.len += end - begin;
        match (from[begin..].first_chunk::<STEP>(), self.bytes[to..].first_chunk_mut::<STEP>()) {
            (Some(from), Some(to)) if end - begin <= STEP => *to = *from,
            _ => copy_on(&from[begin..], &mut self.bytes[to..], end - begin),
        }
    }

    /// Appends a number.
    #[inline]
    fn print(&mut self, numeral: Numeral, value: i64) {
        let to = self.bytes[self.len..].first_chunk_mut::<TEXT_MAX>();
        self.len += numeral.print(value, to.expect("there is room for all slots"));
    }
}

/// Copies `len` bytes, in steps as long as there is room for them.
#[inline(never)]
fn copy_on(from: &[u8], to: &mut [u8], len: usize) {
    let mut at = 0;
    while at < len {
        match (from[at..].first_chunk::<STEP>(), to[at..].first_chunk_mut::<STEP>()) {
            (Some(from), Some(to)) => *to = *from,
            _ => return to[at..len].copy_from_slice(&from[at..len]),
        }
        at += STEP;
    }
}

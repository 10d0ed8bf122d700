//! Rows: the changes of a topic's payload since its last.

use super::{Encoder, body::put_bytes};
use crate::{
    code::{NUMBER, format_of},
    form::{self, LENS_MAX, NUMBER_BYTES, Packing},
    layout::{self, Cut, Numeral},
    number::{Format, WORD, word},
    schema::{self, NO_SLOT, Predictor, SLOTS_MAX, Schema, Starts},
    varint,
};

/// Scratch memory for one message.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) lens: Vec<u8>,
    pub(super) gaps: Vec<u8>,
    pub(super) new_lens: Vec<u8>,
    /// The last payload as text, if it is not kept so.
    pub(super) old: Vec<u8>,
    pub(super) packing: Packing,
    values: Values,
    /// Their differences to the former or the expected values.
    deltas: Values,
    /// Mask and tokens of a row of numbers.
    line: Line,
    starts: Starts,
    places: Places,
    changed: Vec<(u8, u8)>,
    tokens: Vec<u8>,
    /// Slots of the tokens, and where each ends.
    ends: Vec<(u8, u32)>,
}

/// The numbers of a payload.
#[derive(Debug)]
struct Values([i64; LENS_MAX]);

impl Default for Values {
    fn default() -> Self {
        Self([0; LENS_MAX])
    }
}

/// Bytes of tokens of numbers, as many as a payload may have, and what is written beyond the last.
const LINE_BYTES: usize = LENS_MAX * varint::BYTES_MAX + 2;

/// Bytes of a mask.
const MASK_BYTES: usize = 8;

/// Room for a mask and the tokens after it: so that one copy appends both.
#[derive(Debug)]
struct Line([u8; MASK_BYTES + LINE_BYTES]);

impl Default for Line {
    fn default() -> Self {
        Self([0; MASK_BYTES + LINE_BYTES])
    }
}

/// Where the fields of slots stand; of no meaning for those that were not looked at.
#[derive(Debug)]
struct Places([Place; SLOTS_MAX]);

impl Default for Places {
    fn default() -> Self {
        Self([Place::default(); SLOTS_MAX])
    }
}

/// Where a field begins in the last payload and in the new one, and its length in both.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    old: u16,
    new: u16,
    old_len: u8,
    new_len: u8,
}

impl Place {
    #[inline]
    fn before<'a>(&self, old: &'a [u8]) -> &'a [u8] {
        &old[usize::from(self.old)..][..usize::from(self.old_len)]
    }

    #[inline]
    fn after<'a>(&self, new: &'a [u8]) -> &'a [u8] {
        &new[usize::from(self.new)..][..usize::from(self.new_len)]
    }
}

/// How a message compares to its topic's last.
pub(super) enum Row {
    Written,
    /// A field changed that has no slot.
    Slotless(u8),
    /// The skeleton changed.
    Reshaped,
}

impl Encoder {
    /// Writes what changed of a payload that is cut.
    pub(super) fn row(&mut self, number: u32, new: &[u8]) -> Row {
        let kept = self.topics.get(number);
        let id = usize::from(kept.schema);
        let known = &mut self.schemas[id - 1];
        let schema = &mut known.schema;
        let scratch = &mut self.scratch;
        let form = kept.form();
        let (mut old, mut lens) = (form.data, form.lens);
        if let (true, Cut::Csv(separator)) = (form.is_packed, &schema.cut) {
            form::unpack(*separator, lens, old, &mut scratch.old, &mut scratch.lens);
            (old, lens) = (&scratch.old, &scratch.lens);
        } else if lens.is_empty() {
            // A field that has become empty joins the skeleton around it.
            if !schema.cut.split(old, &mut scratch.lens, &mut scratch.gaps)
                || *scratch.gaps != *schema.gaps
            {
                return Row::Reshaped;
            }
            lens = &scratch.lens;
        }
        let places = &mut scratch.places.0;
        let mut found = match differences(schema, old, lens, new, &mut scratch.starts, places) {
            Ok(found) => found,
            Err(row) => return row,
        };
        scratch.changed.clear();
        scratch.tokens.clear();
        scratch.ends.clear();
        let mut mask = 0u64;
        while found != 0 {
            let number = found.trailing_zeros() as u8;
            found &= found - 1;
            let slot = &mut schema.slots[usize::from(number)];
            let place = scratch.places.0[usize::from(number)];
            if place.new_len != place.old_len {
                scratch.changed.push((slot.field, place.new_len));
            }
            // Most fields are decimals that hold, or do not: for these nothing else need be asked.
            let (before, after) = (usize::from(place.old), usize::from(place.new));
            if let (Predictor::Hold, Numeral::Decimal(format)) = (slot.predictor, slot.numeral)
                && let Some(value) = format.parse_at(new, after, after + usize::from(place.new_len))
                && let Some(before) =
                    format.parse_at(old, before, before + usize::from(place.old_len))
            {
                let delta = varint::zigzag(value.wrapping_sub(before));
                if delta == 0 {
                    continue;
                }
                varint::put(&mut scratch.tokens, delta);
            } else {
                let (before, after) = (place.before(old), place.after(new));
                if slot.is_expected(after) {
                    // As in the last message of any topic: there is nothing to say, and nothing to note.
                    continue;
                }
                let value = slot.numeral.parse(after);
                let prediction = slot.predict(before);
                let is_as_predicted = prediction.is(after, value);
                if !is_as_predicted {
                    schema::put_token(&mut scratch.tokens, prediction.value, after, value);
                }
                if !is_as_predicted && value.is_none() {
                    let (misses, patience) = &mut known.misses[usize::from(number)];
                    *misses += 1;
                    if *misses > *patience {
                        *patience = patience.saturating_mul(2);
                        *misses = 0;
                        if let Some(numeral) = widened(slot.numeral, before, after) {
                            self.changes.push((kept.schema, slot.field, numeral, slot.predictor));
                        }
                    }
                }
                if slot.predictor != Predictor::Hold {
                    slot.note(before, after, value);
                }
                if is_as_predicted {
                    continue;
                }
            }
            mask |= 1 << number;
            if self.config.columns {
                scratch.ends.push((number, scratch.tokens.len() as u32));
            }
        }
        if let Some((slot, predictor)) = known.probe.look(schema, old, lens, new, &scratch.changed)
        {
            let slot = &schema.slots[usize::from(slot)];
            self.changes.push((kept.schema, slot.field, slot.numeral, predictor));
        }
        let (bytes, len) = schema.mask_bytes(mask);
        self.put_head(number, None);
        self.body.put_row(
            &bytes[..len],
            &self.scratch.tokens,
            &self.scratch.ends,
            self.config.columns,
        );
        let schema = &mut self.schemas[id - 1].schema;
        schema.note_mask(mask);
        let kept = self.topics.get_mut(number);
        let before = kept.cost();
        if schema.is_dense() || kept.is_packed() {
            let scratch = &mut self.scratch;
            if !kept.is_packed() && !kept.form().lens.is_empty() {
                scratch.lens.clear();
                scratch.lens.extend_from_slice(kept.form().lens);
            }
            for &(field, len) in &scratch.changed {
                scratch.lens[usize::from(field)] = len;
            }
            let form = scratch.packing.form(schema, new, &scratch.lens);
            let is_miss = schema.is_dense() && (kept.is_packed() || !form.is_packed);
            kept.set(form);
            if is_miss {
                schema.note_miss();
            }
        } else {
            kept.set_text(new, &self.scratch.changed);
        }
        self.topics.recount(number, before);
        Row::Written
    }

    /// The same for a payload of which all that changes are numbers; returns whether it is so. If not, nothing has changed.
    pub(super) fn numbers(&mut self, number: u32, new: &[u8]) -> bool {
        let kept = self.topics.get_mut(number);
        let id = kept.schema;
        let known = &mut self.schemas[usize::from(id) - 1];
        let schema = &mut known.schema;
        let Cut::Csv(separator) = schema.cut else { return false };
        if !kept.is_packed() || !schema.is_dense() || !kept.is_worth(new.len()) {
            return false;
        }
        let scratch = &mut self.scratch;
        let cost = kept.cost();
        let (codes, data) = kept.parts_mut();
        // A row packed before a slot was added has fewer numbers.
        if !schema.fits(codes) {
            return false;
        }
        let (numbers, texts) = data.split_at_mut(NUMBER_BYTES * usize::from(schema.ranks));
        let values = &mut scratch.values.0;
        let is_number = |field: &u8| {
            let slot = &schema.slots[usize::from(schema.slot_of(usize::from(*field)))];
            slot.rank != NO_SLOT && slot.predict_number(0).is_some()
        };
        if !schema.watched.iter().all(is_number)
            || !find_values(codes, texts, separator, new, values)
        {
            return false;
        }
        if !known.probe.passes() {
            let (old, lens) = (&mut scratch.old, &mut scratch.lens);
            form::unpack_parts(separator, codes, numbers, texts, old, lens);
            scratch.changed.clear();
            let new_lens = new.split(|byte| *byte == separator).map(<[u8]>::len);
            for (field, (&len, new_len)) in scratch.lens.iter().zip(new_lens).enumerate() {
                if new_len != usize::from(len) {
                    scratch.changed.push((field as u8, new_len as u8));
                }
            }
            let (lens, changed) = (&scratch.lens, &scratch.changed);
            if let Some((slot, predictor)) =
                known.probe.look(schema, &scratch.old, lens, new, changed)
            {
                let slot = &schema.slots[usize::from(slot)];
                self.changes.push((id, slot.field, slot.numeral, predictor));
            }
        }
        // The difference of each number to the last; where it is not expected to stay, to the expected one.
        let values = &values[..usize::from(schema.ranks)];
        let deltas = &mut scratch.deltas.0;
        for ((delta, &value), number) in
            deltas.iter_mut().zip(values).zip(numbers.chunks_exact_mut(NUMBER_BYTES))
        {
            let number: &mut [u8; NUMBER_BYTES] =
                number.try_into().expect("a number has eight bytes");
            *delta = value.wrapping_sub(i64::from_le_bytes(*number));
            *number = value.to_le_bytes();
        }
        let mut watched = schema.watched_mask;
        while watched != 0 {
            let slot = &mut schema.slots[watched.trailing_zeros() as usize];
            watched &= watched - 1;
            let rank = usize::from(slot.rank);
            let before = values[rank].wrapping_sub(deltas[rank]);
            let predicted =
                slot.predict_number(before).expect("a watched slot was found to be a number");
            deltas[rank] = values[rank].wrapping_sub(predicted);
            slot.note_number(before, values[rank], deltas[rank] != 0);
        }
        let line = &mut scratch.line.0;
        let mut end = MASK_BYTES;
        scratch.ends.clear();
        let mut mask = 0;
        for (&delta, &slot) in deltas.iter().zip(schema.slots_by_rank()) {
            let token = varint::zigzag(delta);
            mask |= u64::from(token != 0) << slot;
            // Nothing is written for zero.
            end = varint::put_at(line, end, token);
            if self.config.columns && token != 0 {
                scratch.ends.push((slot, (end - MASK_BYTES) as u32));
            }
        }
        schema.note_mask(mask);
        kept.set_text_len(new.len());
        let (bytes, len) = schema.mask_bytes(mask);
        self.topics.recount(number, cost);
        self.put_head(number, None);
        if self.config.columns {
            let tokens = &self.scratch.line.0[MASK_BYTES..end];
            self.body.put_row(&bytes[..len], tokens, &self.scratch.ends, true);
        } else {
            let line = &mut self.scratch.line.0;
            let begin = MASK_BYTES - len;
            line[begin..MASK_BYTES].copy_from_slice(&bytes[..len]);
            self.body.records.extend_from_slice(&line[begin..end]);
        }
        true
    }

    pub(super) fn put_opaque(&mut self, number: u32, new: &[u8]) {
        self.put_head(number, None);
        let kept = self.topics.touch(number, self.sequence);
        let old = kept.payload();
        let prefix = in_common(old, new);
        let suffix = old[prefix..].iter().rev().zip(new[prefix..].iter().rev());
        let suffix = suffix.take_while(|(one, other)| one == other).count();
        let records = &mut self.body.records;
        varint::put(records, prefix as u64);
        varint::put(records, suffix as u64);
        put_bytes(records, &new[prefix..new.len() - suffix]);
        let before = kept.cost();
        kept.set_text(new, &[]);
        self.topics.recount(number, before);
        self.counts.rows += 1;
    }
}

/// Finds the values of the numbers of `new`; returns whether all else is as in the last payload.
#[inline]
fn find_values(
    codes: &[u8],
    mut texts: &[u8],
    separator: u8,
    new: &[u8],
    values: &mut [i64; LENS_MAX],
) -> bool {
    let separators = u64::from_le_bytes([separator; WORD]);
    let (mut begin, mut rank) = (0, 0);
    for &code in codes {
        // One separator stands before each field but the first.
        if begin > new.len() {
            return false;
        }
        let first = word(new, begin);
        let len = layout::field_len(new, begin, first, separators);
        if code < NUMBER {
            if len != usize::from(code) || in_common(&texts[..len], &new[begin..][..len]) != len {
                return false;
            }
            texts = &texts[len..];
        } else {
            let format = format_of(code);
            let value = if len <= WORD {
                format.parse_word(first, len)
            } else {
                format.parse(&new[begin..][..len])
            };
            let Some(value) = value else { return false };
            values[rank] = value;
            rank += 1;
        }
        begin += len + 1;
    }
    begin == new.len() + 1
}

/// Compares two payloads, skeleton and all: finds the slots that differ and those that are not expected to stay.
fn differences(
    schema: &Schema,
    old: &[u8],
    lens: &[u8],
    new: &[u8],
    starts: &mut Starts,
    places: &mut [Place; SLOTS_MAX],
) -> Result<u64, Row> {
    schema::starts(&schema.gaps, lens, &mut starts.0);
    let starts = &starts.0[..lens.len()];
    let mut found = 0;
    // `at` is in `old`, and `at + shift` in `new`: all before them has been compared.
    let (mut at, mut shift, mut field) = (0, 0isize, 0);
    let mut watched = schema.watched.as_slice();
    loop {
        let stop =
            watched.first().map_or(old.len(), |field| usize::from(starts[usize::from(*field)]));
        at += in_common(&old[at..stop], &new[at.wrapping_add_signed(shift)..]);
        if at == stop
            && let [first, rest @ ..] = watched
        {
            field = usize::from(*first);
            watched = rest;
        } else if at == old.len() && at.wrapping_add_signed(shift) == new.len() {
            return Ok(found);
        } else {
            // Where nothing stands between two fields, the second begins where the first ends.
            let ends_before = |field: usize| {
                let end = usize::from(starts[field]) + usize::from(lens[field]);
                end < at || (end == at && schema.gaps[field + 1] == 0 && field + 1 < lens.len())
            };
            while field < lens.len() && ends_before(field) {
                field += 1;
            }
            if field == lens.len() || usize::from(starts[field]) > at {
                return Err(Row::Reshaped);
            }
        }
        let begin = usize::from(starts[field]);
        let end = begin + usize::from(lens[field]);
        let new_begin = begin.wrapping_add_signed(shift);
        let new_end = schema.cut.end(new, new_begin, at.wrapping_add_signed(shift), field);
        let (Ok(new_len), true) = (u8::try_from(new_end - new_begin), new_end <= new.len()) else {
            return Err(Row::Reshaped);
        };
        let number = schema.slot_of(field);
        if number == NO_SLOT {
            return Err(Row::Slotless(field as u8));
        }
        places[usize::from(number)] =
            Place { old: begin as u16, new: new_begin as u16, old_len: lens[field], new_len };
        found |= 1 << number;
        at = end;
        shift = new_end as isize - end as isize;
        field += 1;
    }
}

fn widened(numeral: Numeral, before: &[u8], after: &[u8]) -> Option<Numeral> {
    let format = match numeral {
        Numeral::Decimal(format) => format.widened(after),
        Numeral::None => Format::of_both(before, after),
        Numeral::Binary(_) => None,
    }?;
    (numeral != Numeral::Decimal(format)).then_some(Numeral::Decimal(format))
}

/// How many bytes both have in common at their beginning.
#[inline]
pub(super) fn in_common(one: &[u8], other: &[u8]) -> usize {
    let mut at = 0;
    for (one, other) in one.chunks_exact(8).zip(other.chunks_exact(8)) {
        let one = u64::from_le_bytes(one.try_into().expect("a chunk has eight bytes"));
        let other = u64::from_le_bytes(other.try_into().expect("a chunk has eight bytes"));
        if one != other {
            return at + ((one ^ other).trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + one[at..].iter().zip(&other[at..]).take_while(|(one, other)| one == other).count()
}

//! The schemas of a decoder, as its encoder tells of them.

use super::{
    DecodeError, Decoder,
    body::{take_byte, take_len},
};
use crate::{
    encode::SCHEMAS_MAX,
    layout::{BinaryField, BinaryKind, Cut, FIELDS_MAX, Numeral, Runs},
    number::{DIGITS_MAX, Format},
    schema::{NO_SLOT, Predictor, SLOTS_MAX, Schema},
    varint,
};

impl Decoder {
    pub(super) fn take_schema(&mut self, records: &mut &[u8]) -> Result<(), DecodeError> {
        let id = varint::take(records).ok_or(DecodeError::Truncated)?;
        let id = usize::try_from(id).unwrap_or(usize::MAX);
        let mut schema = take_cut(records)?;
        if id == 0 || id > SCHEMAS_MAX {
            return Err(DecodeError::Limit { what: "schemas", found: id, max: SCHEMAS_MAX });
        }
        if self.schemas.len() < id {
            self.schemas.resize_with(id, || None);
        }
        let place = &mut self.schemas[id - 1];
        if let Some(old) = place {
            let is_other = (&old.cut, &old.gaps) != (&schema.cut, &schema.gaps);
            if is_other && old.topics > 0 {
                return Err(DecodeError::Record { what: "a schema that has become another" });
            }
            schema.topics = old.topics;
        } else {
            self.brought.push(id - 1);
        }
        *place = Some(schema);
        Ok(())
    }

    pub(super) fn take_slot(&mut self, records: &mut &[u8]) -> Result<(), DecodeError> {
        let wrong = DecodeError::Record { what: "a slot" };
        let id = varint::take(records).ok_or(DecodeError::Truncated)?;
        let id = usize::try_from(id).unwrap_or(usize::MAX);
        let (&[field, predictor, kind, decimals], rest) =
            records.split_first_chunk().ok_or(DecodeError::Truncated)?;
        *records = rest;
        let place = id.checked_sub(1).and_then(|id| self.schemas.get_mut(id));
        let schema = place.and_then(Option::as_mut).ok_or(wrong)?;
        if usize::from(field) >= schema.fields() || usize::from(decimals) > DIGITS_MAX {
            return Err(wrong);
        }
        if schema.slots.len() == SLOTS_MAX && schema.slot_of(usize::from(field)) == NO_SLOT {
            return Err(DecodeError::Limit { what: "slots", found: SLOTS_MAX + 1, max: SLOTS_MAX });
        }
        let predictor = Predictor::of(predictor).ok_or(wrong)?;
        let numeral = match (schema.cut.numeral(usize::from(field)), kind) {
            (Some(numeral), 0) => numeral,
            (None, 0) => Numeral::None,
            (None, 1) => Numeral::Decimal(Format { decimals, trimmed: false }),
            (None, 2) => Numeral::Decimal(Format { decimals, trimmed: true }),
            _ => return Err(wrong),
        };
        schema.set_slot(field, numeral, predictor);
        Ok(())
    }
}

fn take_cut(records: &mut &[u8]) -> Result<Schema, DecodeError> {
    let kind = take_byte(records)?;
    let separator = if kind == 0 { take_byte(records)? } else { 0 };
    let fields = take_len(records)?;
    if fields == 0 || fields > FIELDS_MAX {
        return Err(DecodeError::Limit { what: "fields", found: fields, max: FIELDS_MAX });
    }
    let mut take = |len: usize| {
        let (part, rest) = records.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        *records = rest;
        Ok(part)
    };
    let (cut, gaps) = match kind {
        0 => {
            let mut gaps = vec![1; fields + 1];
            (gaps[0], gaps[fields]) = (0, 0);
            (Cut::Csv(separator), gaps)
        }
        1 => (Cut::Runs(Runs::Json), take(fields + 1)?.to_vec()),
        2 => (Cut::Runs(Runs::Line), take(fields + 1)?.to_vec()),
        3 => {
            let parts = take(2 * fields)?.chunks_exact(2).map(|part| {
                let kind = match part[0] & 3 {
                    0 => BinaryKind::Unsigned,
                    1 => BinaryKind::Signed,
                    2 => BinaryKind::Float,
                    _ => BinaryKind::Bytes,
                };
                let field = BinaryField { kind, width: part[1], big_endian: part[0] & 4 != 0 };
                (field.is_valid() && part[0] < 8)
                    .then_some(field)
                    .ok_or(DecodeError::Record { what: "a binary field" })
            });
            let parts = parts.collect::<Result<Box<[_]>, _>>()?;
            (Cut::Binary(parts), vec![0; fields + 1])
        }
        _ => return Err(DecodeError::Record { what: "a schema of an unknown kind" }),
    };
    Ok(Schema::new(cut, gaps.into()))
}

/// Makes a payload from its differences to the schema's prototype.
pub(super) fn take_against(
    schema: &Schema,
    records: &mut &[u8],
    payload: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let wrong = DecodeError::Record { what: "a definition" };
    let lens = schema.prototype_lens.as_slice();
    if lens.is_empty() {
        return Err(wrong);
    }
    let (mask, rest) =
        records.split_at_checked(lens.len().div_ceil(8)).ok_or(DecodeError::Truncated)?;
    *records = rest;
    payload.clear();
    // Bytes before `at` were looked at; bytes before `copied` are in the payload, or their replacement is.
    let (mut at, mut copied) = (0, 0);
    for (field, (&old_len, &gap)) in lens.iter().zip(&schema.gaps).enumerate() {
        let begin = at + usize::from(gap);
        at = begin + usize::from(old_len);
        if mask[field / 8] >> (field % 8) & 1 == 0 {
            continue;
        }
        let lengths = take_byte(records)?;
        let prefix = usize::from(lengths >> 4);
        let mut len = lengths & 15;
        if len == 15 {
            len = take_byte(records)?;
        }
        let (text, rest) =
            records.split_at_checked(usize::from(len)).ok_or(DecodeError::Truncated)?;
        *records = rest;
        if prefix > usize::from(old_len) {
            return Err(wrong);
        }
        payload.extend_from_slice(&schema.prototype[copied..begin + prefix]);
        payload.extend_from_slice(text);
        copied = at;
    }
    payload.extend_from_slice(&schema.prototype[copied..]);
    Ok(())
}

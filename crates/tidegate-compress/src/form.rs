//! The form in which a payload is kept: as it is, or with its numbers as integers.
//!
//! ```text
//!  text      12.5,x,-3         lens 4 1 2     as it came
//!  packed    [125] [-3] x      codes          CSV without its separators: its numbers, eight bytes each, and then its texts
//! ```
//!
//! A code is the length of a text, or says how a number is printed. So what is kept needs no schema to be read again, whatever has become
//! of the schema since, and a number need not be parsed when the next one comes.

use crate::{
    code::{NUMBER, code_of, format_of},
    layout::{Cut, Numeral},
    number::TEXT_MAX,
    schema::Schema,
};

/// Most fields whose lengths are kept; those of a payload with more are found again when they are needed.
pub(crate) const LENS_MAX: usize = 40;

/// Bytes of a number.
pub(crate) const NUMBER_BYTES: usize = size_of::<i64>();

/// Most bytes that codes and data may take beyond the payload as text: as many as its lengths might take, so that a packed topic needs no
/// more memory than is counted for one that is not.
const BEYOND_TEXT_BYTES_MAX: usize = LENS_MAX;

/// Whether a payload is short enough when it is packed.
#[inline]
pub(crate) fn is_worth(codes: usize, data: usize, text_len: usize) -> bool {
    codes + data <= text_len + BEYOND_TEXT_BYTES_MAX
}

/// A payload as it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form<'a> {
    /// Lengths of fields, or their codes; none if they are not kept.
    pub(crate) lens: &'a [u8],
    pub(crate) data: &'a [u8],
    /// Bytes of the payload as text.
    pub(crate) text_len: usize,
    pub(crate) is_packed: bool,
}

impl<'a> Form<'a> {
    /// As it is.
    pub(crate) fn text(payload: &'a [u8], lens: &'a [u8]) -> Self {
        let lens = if lens.len() <= LENS_MAX { lens } else { &[] };
        Self { lens, data: payload, text_len: payload.len(), is_packed: false }
    }
}

/// Where payloads are packed.
#[derive(Debug, Default)]
pub(crate) struct Packing {
    codes: Vec<u8>,
    data: Vec<u8>,
    texts: Vec<u8>,
}

impl Packing {
    /// The form of a payload that `schema` cuts into fields of the lengths `lens`: packed, if it is CSV in which most numbers change each
    /// time, each decimal slot holds one, and the numbers are not much longer than their texts.
    pub(crate) fn form<'a>(
        &'a mut self,
        schema: &Schema,
        payload: &'a [u8],
        lens: &'a [u8],
    ) -> Form<'a> {
        if !schema.is_dense() || lens.len() > LENS_MAX || !matches!(schema.cut, Cut::Csv(_)) {
            return Form::text(payload, lens);
        }
        for part in [&mut self.codes, &mut self.data, &mut self.texts] {
            part.clear();
        }
        let mut at = 0;
        for (&len, &number) in lens.iter().zip(schema.slots_of()) {
            let text = &payload[at..at + usize::from(len)];
            at += text.len() + 1;
            let numeral = schema.slots.get(usize::from(number)).map(|slot| slot.numeral);
            if let Some(Numeral::Decimal(format)) = numeral {
                let Some(value) = format.parse(text) else { return Form::text(payload, lens) };
                self.codes.push(code_of(format));
                self.data.extend_from_slice(&value.to_le_bytes());
            } else if len < NUMBER {
                self.codes.push(len);
                self.texts.extend_from_slice(text);
            } else {
                return Form::text(payload, lens);
            }
        }
        self.data.extend_from_slice(&self.texts);
        if !is_worth(self.codes.len(), self.data.len(), payload.len()) {
            return Form::text(payload, lens);
        }
        Form { lens: &self.codes, data: &self.data, text_len: payload.len(), is_packed: true }
    }
}

/// Finds the payload, and the lengths of its fields, of which `codes` and `data` are the packed form.
pub(crate) fn unpack(
    separator: u8,
    codes: &[u8],
    data: &[u8],
    payload: &mut Vec<u8>,
    lens: &mut Vec<u8>,
) {
    let numbers = codes.iter().filter(|code| **code >= NUMBER).count();
    let (numbers, texts) = data.split_at(NUMBER_BYTES * numbers);
    unpack_parts(separator, codes, numbers, texts, payload, lens);
}

/// The same of numbers and of texts, after which others may stand.
pub(crate) fn unpack_parts(
    separator: u8,
    codes: &[u8],
    numbers: &[u8],
    mut texts: &[u8],
    payload: &mut Vec<u8>,
    lens: &mut Vec<u8>,
) {
    payload.clear();
    lens.clear();
    let mut numbers = numbers.chunks_exact(NUMBER_BYTES);
    let mut printed = [0; TEXT_MAX];
    for &code in codes {
        if !lens.is_empty() {
            payload.push(separator);
        }
        let text = if code < NUMBER {
            let (text, rest) = texts.split_at(usize::from(code));
            texts = rest;
            text
        } else {
            let value = numbers.next().expect("there is one for each such code");
            let value = i64::from_le_bytes(value.try_into().expect("a chunk has eight bytes"));
            let len = format_of(code).print(value, &mut printed);
            &printed[..len]
        };
        payload.extend_from_slice(text);
        lens.push(text.len() as u8);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        number::Format,
        schema::{NO_SLOT, Predictor},
    };

    proptest! {
        #[test]
        fn packed_payloads_are_unpacked(
            fields in proptest::collection::vec(("-?[0-9]{1,3}(\\.[0-9]{1,2})?|[a-z]{0,3}", 0u8..4), 1..45),
        ) {
            let payload = fields.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(",");
            let lens: Vec<_> = fields.iter().map(|(text, _)| text.len() as u8).collect();
            let mut gaps = vec![1; lens.len() + 1];
            (gaps[0], gaps[lens.len()]) = (0, 0);
            let mut schema = Schema::new(Cut::Csv(b','), gaps.into());
            for (field, (text, kind)) in fields.iter().enumerate() {
                let format = Format::of_both(text.as_bytes(), text.as_bytes());
                if let (Some(format), 0..2) = (format, kind) {
                    schema.set_slot(field as u8, Numeral::Decimal(format), Predictor::Hold);
                }
            }
            for _ in 0..1000 {
                schema.note_mask(u64::MAX);
            }
            let mut packing = Packing::default();
            let form = packing.form(&schema, payload.as_bytes(), &lens);
            let texts = lens.iter().zip(schema.slots_of()).filter(|(_, slot)| **slot == NO_SLOT);
            let texts: usize = texts.map(|(len, _)| usize::from(*len)).sum();
            let packed = lens.len() + NUMBER_BYTES * usize::from(schema.ranks) + texts;
            let is_worth = schema.ranks > 0 && packed <= payload.len() + 40;
            prop_assert_eq!(form.is_packed, lens.len() <= LENS_MAX && is_worth);
            prop_assert_eq!(form.text_len, payload.len());
            if form.is_packed {
                let (mut text, mut found) = (Vec::new(), Vec::new());
                unpack(b',', form.lens, form.data, &mut text, &mut found);
                prop_assert_eq!((text.as_slice(), found), (payload.as_bytes(), lens));
            }
        }
    }
}

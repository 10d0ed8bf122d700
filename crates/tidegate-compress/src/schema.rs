//! The common properties of topics whose payloads are cut alike: which fields change, how they are predicted, how their numbers
//! are written.
//!
//! Encoder and decoder each hold one [`Schema`] for each shape, and change it by the same records, in the same order. A field that
//! never changed has no *slot*: it costs nothing, not even a bit. A slot is a bit in the mask of each row, and a token where the
//! field is not what was predicted.
//!
//! # Predictors
//!
//! | predictor | a field is expected to be | good for |
//! |---|---|---|
//! | hold | what it was in the topic's last message | measurements |
//! | step | that, and what the slot last changed by in any topic | counters, clocks of devices with one period |
//! | stream | what it was in the last message of any topic | clocks that agree |

use crate::{
    code::{NUMBER, code_of},
    layout::{Cut, FIELDS_MAX, Numeral},
    number::TEXT_MAX,
    varint,
};

/// Most fields of one schema that change; a payload in which another does is carried as it stands.
pub(crate) const SLOTS_MAX: usize = 56;

/// Slots whose bits stand in the first byte of a mask that has more than one; its highest bit says whether more bytes follow.
const SLOTS_FIRST: usize = 7;

/// Most bytes of a text that the stream predictor holds.
const STREAM_BYTES_MAX: usize = 32;

/// No slot, where a slot's number is asked for.
pub(crate) const NO_SLOT: u8 = u8::MAX;

/// The common properties of payloads of one shape.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    pub(crate) cut: Cut,
    /// Lengths of the skeleton before each field, and after the last.
    pub(crate) gaps: Box<[u8]>,
    /// In the order of their fields, which is that of their bits and tokens.
    pub(crate) slots: Vec<Slot>,
    /// Fields that must be looked at in every message, in order: those that are not expected to stay.
    pub(crate) watched: Vec<u8>,
    /// The bits of those.
    pub(crate) watched_mask: u64,
    /// Slots of decimal numbers.
    pub(crate) ranks: u8,
    /// The slots of decimal numbers, in their order.
    slots_by_rank: Vec<u8>,
    /// With which code each field is packed that is a number, 0 for the others.
    codes: Box<[u8]>,
    /// The bits of decimal slots that hold.
    held_mask: u64,
    density: Density,
    /// The slot of each field, or [`NO_SLOT`].
    slot_of: Box<[u8]>,
    /// The last payload that was defined, against which the next definition is written. Empty if there is none.
    pub(crate) prototype: Vec<u8>,
    /// Lengths of the prototype's fields.
    pub(crate) prototype_lens: Vec<u8>,
    /// Topics that are kept whose payloads are cut by it: as long as there is one, its number stands for no other schema.
    pub(crate) topics: u32,
}

/// The share of the decimal slots that tokens are sent for, as seen in one row of many. Each end has its own; the other sees nothing of
/// it.
#[derive(Clone, Copy, Debug, Default)]
struct Density {
    rows: u32,
    looks: u32,
    /// Slots with a token, and all there were.
    told: u32,
    slots: u32,
    /// Payloads that were no better for being packed.
    missed: u32,
    /// Verdicts to let pass before the next, and how many it was the last time.
    wait: u32,
    patience: u32,
    is_high: bool,
}

impl Density {
    /// Rows from one look to the next.
    const PERIOD: u32 = 16;
    /// Looks after which a verdict is given.
    const LOOKS: u32 = 16;
    /// Misses between two verdicts after which packing is given up for a while.
    const MISSES: u32 = Self::PERIOD * Self::LOOKS / 8;

    #[cold]
    fn note(&mut self, told: u64, slots: u64) {
        self.looks += 1;
        self.told += told.count_ones();
        self.slots += slots.count_ones();
        if self.looks < Self::LOOKS {
            return;
        }
        // Once packed, it stays so until it is clearly not worth it.
        let least = if self.is_high { self.slots / 2 } else { self.slots * 5 / 8 };
        self.is_high = self.told > least && self.wait == 0;
        self.wait = self.wait.saturating_sub(1);
        (self.looks, self.told, self.slots, self.missed) = (0, 0, 0, 0);
    }

    fn miss(&mut self) {
        self.missed += 1;
        if self.missed > Self::MISSES {
            self.patience = (2 * self.patience).clamp(8, 1 << 20);
            (self.wait, self.missed, self.is_high) = (self.patience, 0, false);
        }
    }
}

/// A field that changes.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) field: u8,
    pub(crate) numeral: Numeral,
    /// Its place among the slots of decimal numbers, or [`NO_SLOT`].
    pub(crate) rank: u8,
    pub(crate) predictor: Predictor,
    /// The field in the last message of any topic, for [`Predictor::Stream`].
    pub(crate) last: Last,
    /// The last change of the field in any topic, for [`Predictor::Step`].
    pub(crate) step: i64,
}

/// How the next value of a field is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Predictor {
    Hold,
    Step,
    Stream,
}

/// A short text and its value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    text: [u8; STREAM_BYTES_MAX],
    len: u8,
    /// Whether there is one.
    known: bool,
    pub(crate) value: Option<i64>,
}

impl Last {
    /// The text, if there is one.
    #[inline]
    pub(crate) fn text(&self) -> Option<&[u8]> {
        self.known.then(|| &self.text[..usize::from(self.len)])
    }

    /// Takes `text`, or nothing if it is too long.
    #[inline]
    pub(crate) fn set(&mut self, text: &[u8], value: Option<i64>) {
        self.known = text.len() <= STREAM_BYTES_MAX;
        if self.known {
            self.text[..text.len()].copy_from_slice(text);
            self.len = text.len() as u8;
            self.value = value;
        }
    }
}

impl Predictor {
    pub(crate) const ALL: [Self; 3] = [Self::Hold, Self::Step, Self::Stream];

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl Schema {
    /// A schema in which no field is known to change.
    pub(crate) fn new(cut: Cut, gaps: Box<[u8]>) -> Self {
        let fields = gaps.len() - 1;
        Self {
            cut,
            gaps,
            slots: Vec::new(),
            watched: Vec::new(),
            watched_mask: 0,
            ranks: 0,
            slots_by_rank: Vec::new(),
            codes: vec![0; fields].into(),
            held_mask: 0,
            density: Density::default(),
            slot_of: vec![NO_SLOT; fields].into(),
            prototype: Vec::new(),
            prototype_lens: Vec::new(),
            topics: 0,
        }
    }

    pub(crate) fn fields(&self) -> usize {
        self.slot_of.len()
    }

    /// The number of the slot of `field`, or [`NO_SLOT`].
    #[inline]
    pub(crate) fn slot_of(&self, field: usize) -> u8 {
        self.slot_of[field]
    }

    /// The numbers of the slots of all fields, each of which may be [`NO_SLOT`].
    #[inline]
    pub(crate) fn slots_of(&self) -> &[u8] {
        &self.slot_of
    }

    /// The numbers of the slots of decimal numbers, in the order of their ranks.
    #[inline]
    pub(crate) fn slots_by_rank(&self) -> &[u8] {
        &self.slots_by_rank
    }

    /// Whether a payload that was packed with `codes` has its numbers where slots are for them now, and in their formats.
    #[inline]
    pub(crate) fn fits(&self, codes: &[u8]) -> bool {
        let fits = |(&code, &own): (&u8, &u8)| (code == own) | ((own == 0) & (code < NUMBER));
        // All of them, though the first that does not fit would do: many are then compared at once.
        codes.iter().zip(&self.codes).fold(true, |all, codes| all & fits(codes))
    }

    /// Whether payloads are better packed than kept as text: where most numbers change each time.
    #[inline]
    pub(crate) fn is_dense(&self) -> bool {
        self.density.is_high
    }

    /// Records which slots had a token.
    #[inline]
    pub(crate) fn note_mask(&mut self, mask: u64) {
        self.density.rows = self.density.rows.wrapping_add(1);
        // Nothing else is packed.
        if self.density.rows.is_multiple_of(Density::PERIOD) && matches!(self.cut, Cut::Csv(_)) {
            self.density.note(mask & self.held_mask, self.held_mask);
        }
    }

    /// Records that a payload could not be packed, or one that was packed is text from now on.
    pub(crate) fn note_miss(&mut self) {
        self.density.miss();
    }

    /// Sets what the slot of `field` is, which may be new.
    ///
    /// Its statistics are forgotten: predictions start over on both sides.
    pub(crate) fn set_slot(&mut self, field: u8, numeral: Numeral, predictor: Predictor) {
        let last = Last::default();
        let slot = Slot { field, numeral, rank: NO_SLOT, predictor, last, step: 0 };
        match self.slots.binary_search_by_key(&field, |slot| slot.field) {
            Ok(number) => self.slots[number] = slot,
            Err(number) => self.slots.insert(number, slot),
        }
        self.watched.clear();
        (self.watched_mask, self.held_mask) = (0, 0);
        self.slots_by_rank.clear();
        let mut rank = 0;
        for (number, slot) in self.slots.iter_mut().enumerate() {
            slot.rank = NO_SLOT;
            self.codes[usize::from(slot.field)] = 0;
            if let Numeral::Decimal(format) = slot.numeral {
                self.codes[usize::from(slot.field)] = code_of(format);
                slot.rank = rank;
                rank += 1;
                self.slots_by_rank.push(number as u8);
            }
            self.slot_of[usize::from(slot.field)] = number as u8;
            if slot.predictor != Predictor::Hold {
                self.watched.push(slot.field);
                self.watched_mask |= 1 << number;
            } else if slot.rank != NO_SLOT {
                self.held_mask |= 1 << number;
            }
        }
        self.ranks = rank;
    }

    /// Notes a payload that was defined: the next definition is written against it, and it is the last of the stream.
    pub(crate) fn defined(&mut self, payload: &[u8], lens: &[u8]) {
        self.prototype.clear();
        self.prototype.extend_from_slice(payload);
        self.prototype_lens.clear();
        self.prototype_lens.extend_from_slice(lens);
        for &field in &self.watched {
            let slot = &mut self.slots[usize::from(self.slot_of[usize::from(field)])];
            if slot.predictor == Predictor::Stream {
                let start = start(&self.gaps, lens, usize::from(field));
                let text = &payload[start..start + usize::from(lens[usize::from(field)])];
                slot.last.set(text, slot.numeral.parse(text));
            }
        }
    }

    /// Bytes of a mask in which all slots have a bit.
    #[inline]
    pub(crate) fn mask_bytes_max(&self) -> usize {
        let slots = self.slots.len();
        if slots <= 8 { usize::from(slots > 0) } else { 1 + (slots - SLOTS_FIRST).div_ceil(8) }
    }

    /// The bytes of `mask`, and how many they are.
    #[inline]
    pub(crate) fn mask_bytes(&self, mask: u64) -> ([u8; 8], usize) {
        let slots = self.slots.len();
        if slots <= 8 {
            return (mask.to_le_bytes(), usize::from(slots > 0));
        }
        let (first, rest) = (mask & 0x7f, mask >> SLOTS_FIRST);
        if rest == 0 {
            return (first.to_le_bytes(), 1);
        }
        ((first | 0x80 | rest << 8).to_le_bytes(), self.mask_bytes_max())
    }

    /// Takes a mask from the front of `bytes`; `None` if they end within it or a bit has no slot.
    #[inline]
    pub(crate) fn take_mask(&self, bytes: &mut &[u8]) -> Option<u64> {
        let slots = self.slots.len();
        if slots == 0 {
            return Some(0);
        }
        let (&first, rest) = bytes.split_first()?;
        *bytes = rest;
        let mut mask = u64::from(first);
        if slots > 8 {
            mask &= 0x7f;
            if first & 0x80 != 0 {
                let len = self.mask_bytes_max() - 1;
                let (more, rest) = bytes.split_at_checked(len)?;
                *bytes = rest;
                let mut whole = [0; 8];
                whole[..len].copy_from_slice(more);
                mask |= u64::from_le_bytes(whole) << SLOTS_FIRST;
            }
        }
        (mask >> slots == 0).then_some(mask)
    }
}

impl Slot {
    /// Whether the field is predicted from the stream and is what it was there.
    #[inline]
    pub(crate) fn is_expected(&self, new: &[u8]) -> bool {
        self.predictor == Predictor::Stream && self.last.text() == Some(new)
    }

    /// The prediction for a field whose text was `old` in the topic's last message.
    #[inline]
    pub(crate) fn predict<'a>(&'a self, old: &'a [u8]) -> Prediction<'a> {
        match self.predictor {
            Predictor::Hold => Prediction { text: Some(old), value: self.numeral.parse(old) },
            Predictor::Step => match self.numeral.parse(old) {
                Some(value) => {
                    Prediction { text: None, value: Some(value.wrapping_add(self.step)) }
                }
                None => Prediction { text: Some(old), value: None },
            },
            Predictor::Stream => match self.last.text() {
                Some(text) => Prediction { text: Some(text), value: self.last.value },
                None => Prediction { text: Some(old), value: self.numeral.parse(old) },
            },
        }
    }

    /// The prediction for a field whose value was `old` in the topic's last message; `None` if it is a text.
    #[inline]
    pub(crate) fn predict_number(&self, old: i64) -> Option<i64> {
        match self.predictor {
            Predictor::Hold => Some(old),
            Predictor::Step => Some(old.wrapping_add(self.step)),
            Predictor::Stream if self.last.known => self.last.value,
            Predictor::Stream => Some(old),
        }
    }

    /// Records that the value went from `old` to `new`, sent as a token or as predicted.
    #[inline]
    pub(crate) fn note_number(&mut self, old: i64, new: i64, is_told: bool) {
        match self.predictor {
            Predictor::Hold => {}
            Predictor::Step => self.step = new.wrapping_sub(old),
            Predictor::Stream => {
                if is_told || !self.last.known {
                    let mut text = [0; TEXT_MAX];
                    let len = self.numeral.print(new, &mut text);
                    self.last.set(&text[..len], Some(new));
                }
            }
        }
    }

    /// Notes that the field went from `old` to `new`, of which `value` is the value if it is a number.
    #[inline]
    pub(crate) fn note(&mut self, old: &[u8], new: &[u8], value: Option<i64>) {
        match self.predictor {
            Predictor::Hold => {}
            Predictor::Step => {
                if let (Some(old), Some(new)) = (self.numeral.parse(old), value) {
                    self.step = new.wrapping_sub(old);
                }
            }
            Predictor::Stream => self.last.set(new, value),
        }
    }
}

/// The predicted value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction<'a> {
    /// As text; `None` if it must be printed from its value.
    pub(crate) text: Option<&'a [u8]>,
    /// As a number, if it is one.
    pub(crate) value: Option<i64>,
}

impl Prediction<'_> {
    /// Whether `new`, of which `value` is the value, is what was predicted.
    #[inline]
    pub(crate) fn is(self, new: &[u8], value: Option<i64>) -> bool {
        match self.text {
            Some(text) => text == new,
            None => value.is_some() && value == self.value,
        }
    }
}

/// Writes the token of a field that is not what was predicted.
#[inline]
pub(crate) fn put_token(out: &mut Vec<u8>, predicted: Option<i64>, new: &[u8], value: Option<i64>) {
    if let Some(predicted) = predicted {
        if let Some(value) = value {
            // Never zero: equal numbers have equal texts, and equal texts need no token.
            varint::put(out, varint::zigzag(value.wrapping_sub(predicted)));
            return;
        }
        out.push(0);
    }
    varint::put(out, new.len() as u64);
    out.extend_from_slice(new);
}

/// A field as a token says it is.
pub(crate) enum Token<'a> {
    Value(i64),
    Text(&'a [u8]),
}

/// Takes the token of a field from the front of `bytes`; `None` if it is none.
#[inline]
pub(crate) fn take_token<'a>(bytes: &mut &'a [u8], predicted: Option<i64>) -> Option<Token<'a>> {
    if let Some(predicted) = predicted {
        let delta = varint::take(bytes)?;
        if delta != 0 {
            return Some(Token::Value(predicted.wrapping_add(varint::unzigzag(delta))));
        }
    }
    let len = usize::try_from(varint::take(bytes)?).ok()?;
    if len > crate::layout::FIELD_BYTES_MAX {
        return None;
    }
    let (text, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(Token::Text(text))
}

/// Where each field of a payload begins.
#[derive(Clone, Debug)]
pub(crate) struct Starts(pub(crate) Box<[u16; FIELDS_MAX + 1]>);

impl Default for Starts {
    fn default() -> Self {
        Self(Box::new([0; FIELDS_MAX + 1]))
    }
}

/// Finds where each field begins, in a payload of at most 4,096 bytes.
#[inline]
pub(crate) fn starts(gaps: &[u8], lens: &[u8], starts: &mut [u16; FIELDS_MAX + 1]) {
    let mut start = u16::from(gaps[0]);
    for ((place, len), gap) in starts.iter_mut().zip(lens).zip(&gaps[1..]) {
        *place = start;
        start = start.wrapping_add(u16::from(*len)).wrapping_add(u16::from(*gap));
    }
}

/// Where `field` begins.
pub(crate) fn start(gaps: &[u8], lens: &[u8], field: usize) -> usize {
    let before = lens[..field].iter().map(|len| usize::from(*len)).sum::<usize>();
    before + gaps[..=field].iter().map(|len| usize::from(*len)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(slots: usize) -> Schema {
        let mut schema = Schema::new(Cut::Csv(b','), vec![0; 61].into());
        for number in 0..slots {
            schema.set_slot(number as u8, Numeral::None, Predictor::Hold);
        }
        schema
    }

    #[test]
    fn a_mask_comes_back_in_the_bytes_that_were_told() {
        for (slots, mask, len) in [
            (0, 0, 0),
            (1, 1, 1),
            (8, 0xff, 1),
            (9, 0x7f, 1),
            (9, 0x80, 2),
            (15, 0x7fff, 2),
            (16, 0x7f, 1),
            (16, 0x8000, 3),
            (SLOTS_MAX, (1 << SLOTS_MAX) - 1, 8),
        ] {
            let schema = schema(slots);
            let (bytes, found) = schema.mask_bytes(mask);
            assert_eq!(found, len, "{slots} slots, {mask:x}");
            assert_eq!(schema.take_mask(&mut &bytes[..found]), Some(mask), "{slots} slots");
            if found > 0 {
                assert_eq!(schema.take_mask(&mut &bytes[..found - 1]), None, "{slots} slots");
            }
        }
    }

    #[test]
    fn a_bit_without_a_slot_is_refused() {
        assert_eq!(schema(3).take_mask(&mut &[0b1000][..]), None);
        assert_eq!(schema(9).take_mask(&mut &[0x80, 0b100][..]), None);
    }
}

//! The schemas of an encoder: which one a payload has, which of its fields have slots, and the records that define both for
//! the decoder.

use super::{Encoder, KEPT_BYTES_MAX, Message, OPAQUE, SCHEMAS_MAX, Special};
use crate::{
    form,
    layout::{BinaryKind, Cut, Layout, Numeral, Runs},
    number::Format,
    probe::Probe,
    schema::{self, Last, Predictor, SLOTS_MAX, Schema},
    varint,
};

/// A schema as the encoder knows it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) schema: Schema,
    /// Whether the decoder has it, as of the batches it has.
    pub(super) is_announced: bool,
    /// Whether its number stood for another schema before, by which topics may be cut that are vacant at the decoder.
    is_reused: bool,
    /// Whether it waits among those whose number may be used again.
    is_unused: bool,
    pub(super) probe: Probe,
    /// For each slot, fields that should have been numbers and were not, and how many of them lead to a wider format.
    pub(super) misses: Vec<(u32, u32)>,
}

impl Known {
    fn new((cut, gaps): (Cut, Box<[u8]>), is_reused: bool) -> Self {
        Self {
            schema: Schema::new(cut, gaps),
            is_announced: false,
            is_reused,
            is_unused: false,
            probe: Probe::default(),
            misses: Vec::new(),
        }
    }
}

/// The form in which a payload is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Cut, by the schema of this number.
    Cut(u16),
    /// In one piece.
    Opaque,
    /// In one piece, until a schema is free.
    Waiting,
}

impl Shape {
    /// The number of its schema.
    pub(super) fn schema(self) -> u16 {
        match self {
            Self::Cut(id) => id,
            Self::Opaque | Self::Waiting => OPAQUE,
        }
    }
}

impl Encoder {
    /// The shape of a message's payload, its schema announced; the lengths of its fields are then in `scratch.new_lens` if it is cut.
    pub(super) fn shape(&mut self, message: &Message<'_>) -> Shape {
        let payload = message.payload;
        if payload.len() > KEPT_BYTES_MAX {
            return Shape::Opaque;
        }
        let Some(cut) = self.layout_of(message.topic).cut(payload) else { return Shape::Opaque };
        let scratch = &mut self.scratch;
        if !cut.split(payload, &mut scratch.new_lens, &mut scratch.gaps) {
            return Shape::Opaque;
        }
        // Most payloads have the shape of the one that was defined before: its schema is found without a look at all.
        let last = &self.schemas.get(usize::from(self.last_shape).wrapping_sub(1));
        let is_last =
            last.is_some_and(|last| last.schema.cut == cut && *last.schema.gaps == *scratch.gaps);
        if is_last && self.schemas[usize::from(self.last_shape) - 1].is_announced {
            return Shape::Cut(self.last_shape);
        }
        let key = (cut, scratch.gaps.as_slice().into());
        let id = match self.shapes.get(&key) {
            Some(&id) => id,
            None => match self.new_schema(key) {
                Some(id) => id,
                None => return Shape::Waiting,
            },
        };
        if !self.is_announced(id) {
            return Shape::Waiting;
        }
        self.last_shape = id;
        Shape::Cut(id)
    }

    /// Gives a shape that has none a schema; `None` if all numbers are used. One by which no topic is cut here is used again: neither is
    /// one at the decoder, which goes through the same states, once nothing is vacant there.
    fn new_schema(&mut self, shape: (Cut, Box<[u8]>)) -> Option<u16> {
        let id = if self.schemas.len() < SCHEMAS_MAX {
            self.schemas.push(Known::new(shape.clone(), false));
            self.schemas.len() as u16
        } else if self.vacant.is_empty() {
            let id = self.unused()?;
            let place = &mut self.schemas[usize::from(id) - 1];
            let old = std::mem::replace(place, Known::new(shape.clone(), true)).schema;
            self.shapes.remove(&(old.cut, old.gaps));
            id
        } else {
            return None;
        };
        self.shapes.insert(shape, id);
        Some(id)
    }

    /// The schema that has been without topics for longest, by and large: one that was used meanwhile does not lose its place.
    fn unused(&mut self) -> Option<u16> {
        while let Some(id) = self.unused.pop_front() {
            let known = &mut self.schemas[usize::from(id) - 1];
            known.is_unused = false;
            if known.schema.topics == 0 {
                return Some(id);
            }
        }
        None
    }

    /// Notes that one topic more is cut by a schema.
    pub(super) fn retain(&mut self, id: u16) {
        if id != OPAQUE {
            self.schemas[usize::from(id) - 1].schema.topics += 1;
        }
    }

    /// Notes that one topic less is cut by a schema.
    pub(super) fn release(&mut self, id: u16) {
        if id == OPAQUE {
            return;
        }
        let known = &mut self.schemas[usize::from(id) - 1];
        known.schema.topics -= 1;
        if known.schema.topics == 0 && !known.is_unused {
            known.is_unused = true;
            self.unused.push_back(id);
        }
    }

    /// Sees to it that the decoder has a schema; returns whether it can have it.
    #[inline]
    pub(super) fn is_announced(&mut self, id: u16) -> bool {
        let known = &self.schemas[usize::from(id) - 1];
        if known.is_announced {
            return true;
        }
        if known.is_reused && !self.vacant.is_empty() {
            return false;
        }
        self.announce(id);
        true
    }

    pub(super) fn layout_of(&self, topic: &[u8]) -> &Layout {
        let Ok(topic) = std::str::from_utf8(topic) else { return &self.config.layout };
        self.config
            .layouts
            .iter()
            .find(|(filter, _)| tidegate_message::topic_matches(filter, topic))
            .map_or(&self.config.layout, |(_, layout)| layout)
    }

    /// Defines a schema for the decoder, which starts over on both sides.
    fn announce(&mut self, id: u16) {
        self.put_special(Special::Schema);
        let known = &mut self.schemas[usize::from(id) - 1];
        known.is_announced = true;
        let schema = &mut known.schema;
        schema.prototype.clear();
        schema.prototype_lens.clear();
        let records = &mut self.body.records;
        varint::put(records, u64::from(id));
        put_cut(records, schema);
        for number in 0..schema.slots.len() {
            let slot = &mut schema.slots[number];
            (slot.last, slot.step) = (Last::default(), 0);
        }
        for number in 0..self.schemas[usize::from(id) - 1].schema.slots.len() {
            self.put_slot(id, number as u8);
        }
    }

    /// Gives a field a slot whose value goes from what the topic's last payload has to what `new` has there. Returns whether there was
    /// room for one.
    pub(super) fn add_slot(&mut self, number: u32, field: u8, new: &[u8]) -> bool {
        let kept = self.topics.get(number);
        let id = kept.schema;
        let schema = &self.schemas[usize::from(id) - 1].schema;
        if schema.slots.len() == SLOTS_MAX {
            return false;
        }
        let scratch = &mut self.scratch;
        let form = kept.form();
        let mut old = form.data;
        if let (true, Cut::Csv(separator)) = (form.is_packed, &schema.cut) {
            form::unpack(*separator, form.lens, old, &mut scratch.old, &mut scratch.lens);
            old = &scratch.old;
        }
        let mut text = |payload: &[u8]| {
            let index = usize::from(field);
            if !schema.cut.split(payload, &mut scratch.lens, &mut scratch.gaps) {
                return None;
            }
            let len = usize::from(*scratch.lens.get(index)?);
            let start = schema::start(&scratch.gaps, &scratch.lens, index);
            Some(payload[start..start + len].to_vec())
        };
        let numeral = schema.cut.numeral(usize::from(field)).unwrap_or_else(|| {
            match (text(old), text(new)) {
                (Some(old), Some(new)) => {
                    Format::of_both(&old, &new).map_or(Numeral::None, Numeral::Decimal)
                }
                _ => Numeral::None,
            }
        });
        let known = &mut self.schemas[usize::from(id) - 1];
        known.schema.set_slot(field, numeral, Predictor::Hold);
        let number = known.schema.slot_of(usize::from(field));
        known.misses.insert(usize::from(number), (0, 1));
        known.probe.add_slot(usize::from(number));
        self.put_slot(id, number);
        true
    }

    pub(super) fn change_slot(
        &mut self,
        id: u16,
        field: u8,
        numeral: Numeral,
        predictor: Predictor,
    ) {
        let known = &mut self.schemas[usize::from(id) - 1];
        known.schema.set_slot(field, numeral, predictor);
        let number = known.schema.slot_of(usize::from(field));
        known.probe.change_slot(usize::from(number));
        if known.is_announced {
            self.put_slot(id, number);
        }
    }

    pub(super) fn put_slot(&mut self, id: u16, number: u8) {
        let slot = &self.schemas[usize::from(id) - 1].schema.slots[usize::from(number)];
        let (kind, decimals) = match slot.numeral {
            Numeral::None | Numeral::Binary(_) => (0, 0),
            Numeral::Decimal(format) => (1 + u8::from(format.trimmed), format.decimals),
        };
        let rest = [slot.field, slot.predictor.code(), kind, decimals];
        self.put_special(Special::Slot);
        varint::put(&mut self.body.records, u64::from(id));
        self.body.records.extend_from_slice(&rest);
    }
}

fn put_cut(out: &mut Vec<u8>, schema: &Schema) {
    let fields = schema.fields() as u64;
    match &schema.cut {
        Cut::Csv(separator) => {
            out.extend_from_slice(&[0, *separator]);
            varint::put(out, fields);
        }
        Cut::Runs(runs) => {
            out.push(match runs {
                Runs::Json => 1,
                Runs::Line => 2,
            });
            varint::put(out, fields);
            out.extend_from_slice(&schema.gaps);
        }
        Cut::Binary(fields_of) => {
            out.push(3);
            varint::put(out, fields);
            for field in fields_of {
                let kind = match field.kind {
                    BinaryKind::Unsigned => 0,
                    BinaryKind::Signed => 1,
                    BinaryKind::Float => 2,
                    BinaryKind::Bytes => 3,
                };
                out.extend_from_slice(&[kind | u8::from(field.big_endian) << 2, field.width]);
            }
        }
    }
}

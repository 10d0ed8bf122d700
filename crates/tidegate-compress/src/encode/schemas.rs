//! The schemas of an encoder: which one a payload has, which of its fields have slots, and what the decoder is told of both.

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
    pub(super) probe: Probe,
    /// For each slot, fields that should have been numbers and were not, and how many of them lead to a wider format.
    pub(super) misses: Vec<(u32, u32)>,
}

impl Encoder {
    /// The schema of a message's payload, announced; the lengths of its fields are then in `scratch.new_lens` if it is cut.
    pub(super) fn shape(&mut self, message: &Message<'_>) -> (u16, bool) {
        let payload = message.payload;
        if payload.len() > KEPT_BYTES_MAX {
            return (OPAQUE, false);
        }
        let Some(cut) = self.layout_of(message.topic).cut(payload) else { return (OPAQUE, false) };
        let scratch = &mut self.scratch;
        if !cut.split(payload, &mut scratch.new_lens, &mut scratch.gaps) {
            return (OPAQUE, false);
        }
        // Most payloads have the shape of the one that was defined before: its schema is found without a look at all.
        let last = &self.schemas.get(usize::from(self.last_shape).wrapping_sub(1));
        let is_last =
            last.is_some_and(|last| last.schema.cut == cut && *last.schema.gaps == *scratch.gaps);
        if is_last && self.schemas[usize::from(self.last_shape) - 1].is_announced {
            return (self.last_shape, true);
        }
        let key = (cut, scratch.gaps.as_slice().into());
        let id = match self.shapes.get(&key) {
            Some(&id) => id,
            None if self.schemas.len() == SCHEMAS_MAX => return (OPAQUE, false),
            None => {
                let schema = Schema::new(key.0.clone(), key.1.clone());
                self.schemas.push(Known {
                    schema,
                    is_announced: false,
                    probe: Probe::default(),
                    misses: Vec::new(),
                });
                let id = self.schemas.len() as u16;
                self.shapes.insert(key, id);
                id
            }
        };
        if !self.schemas[usize::from(id) - 1].is_announced {
            self.announce(id);
        }
        self.last_shape = id;
        (id, true)
    }

    pub(super) fn layout_of(&self, topic: &[u8]) -> &Layout {
        let Ok(topic) = std::str::from_utf8(topic) else { return &self.config.layout };
        self.config
            .layouts
            .iter()
            .find(|(filter, _)| tidegate_message::topic_matches(filter, topic))
            .map_or(&self.config.layout, |(_, layout)| layout)
    }

    /// Tells the decoder of a schema, which begins anew on both sides.
    pub(super) fn announce(&mut self, id: u16) {
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
        if known.is_announced {
            let number = known.schema.slot_of(usize::from(field));
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

//! Definitions: a topic and a whole payload, written against what was defined before.

use super::{
    EncodeError, Encoder, KEPT_BYTES_MAX, Message, OPAQUE, Special, body::put_bytes,
    row::in_common, schemas::Shape,
};
use crate::{form::Form, kept::Kept, schema::Schema, varint};

impl Encoder {
    /// Defines a topic that has no number.
    pub(super) fn define(&mut self, hash: u32, message: &Message<'_>) -> Result<(), EncodeError> {
        while self.topics.len() >= self.config.topics_max {
            if !self.evict() {
                return Err(EncodeError::Full);
            }
        }
        let shape = self.shape(message);
        let kept = self.kept(message, shape);
        let number = self.topics.insert(hash, kept, self.sequence);
        self.retain(shape.schema());
        self.put_definition(number, message, shape, Some(message.topic));
        Ok(())
    }

    fn kept(&mut self, message: &Message<'_>, shape: Shape) -> Kept {
        let payload = kept_part(message.payload);
        let form = if let Shape::Cut(id) = shape {
            let schema = &self.schemas[usize::from(id) - 1].schema;
            self.scratch.packing.form(schema, payload, &self.scratch.new_lens)
        } else {
            Form::text(payload, &[])
        };
        Kept::new(message.topic, message.attributes, shape.schema(), form)
    }

    /// Defines a topic that has a number, with its name if the decoder may not know that.
    pub(super) fn define_again(&mut self, number: u32, message: &Message<'_>, with_topic: bool) {
        // Until the record that follows, the decoder cuts the topic as it was: it holds its schema while another is found.
        let before = self.topics.get(number).schema;
        let shape = self.shape(message);
        let kept = self.kept(message, shape);
        self.topics.replace(number, kept);
        self.retain(shape.schema());
        self.release(before);
        self.put_definition(number, message, shape, with_topic.then_some(message.topic));
    }

    pub(super) fn put_definition(
        &mut self,
        number: u32,
        message: &Message<'_>,
        shape: Shape,
        topic: Option<&[u8]>,
    ) {
        self.counts.definitions += 1;
        if shape == Shape::Waiting {
            self.topics.set_waiting(number);
        }
        match topic {
            Some(topic) => {
                self.put_head(number, Some(Special::Define));
                let prefix = in_common(&self.last_topic, topic);
                let records = &mut self.body.records;
                varint::put(records, prefix as u64);
                put_bytes(records, &topic[prefix..]);
                self.last_topic.clear();
                self.last_topic.extend_from_slice(topic);
            }
            None => self.put_head(number, Some(Special::Redefine)),
        }
        put_bytes(&mut self.body.records, message.attributes);
        self.put_payload(shape.schema(), message.payload);
    }

    /// `varint` schema; then, of an opaque payload, `varint` length and bytes. Of one that is cut: 0, `varint` length and bytes; or 1, a
    /// bit for each field that differs from the schema's prototype, and for each of these a byte with the length that both have in
    /// common (upper half) and the length of the rest (lower half; 15 for a byte of its own that follows), and the rest.
    pub(super) fn put_payload(&mut self, id: u16, payload: &[u8]) {
        let records = &mut self.body.records;
        varint::put(records, u64::from(id));
        if id == OPAQUE {
            return put_bytes(records, payload);
        }
        let schema = &mut self.schemas[usize::from(id) - 1].schema;
        let lens = self.scratch.new_lens.as_slice();
        let start = records.len();
        if schema.prototype.is_empty() || !put_against(records, schema, payload, lens) {
            records.truncate(start);
            records.push(0);
            put_bytes(records, payload);
        }
        schema.defined(payload, lens);
    }
}

/// A payload as it is kept: not at all if it is too long.
fn kept_part(payload: &[u8]) -> &[u8] {
    if payload.len() <= KEPT_BYTES_MAX { payload } else { &[] }
}

/// Writes a payload as what differs from the schema's prototype; false if their skeletons differ, with something left in `out`.
fn put_against(out: &mut Vec<u8>, schema: &Schema, payload: &[u8], lens: &[u8]) -> bool {
    out.push(1);
    let mask = out.len();
    out.resize(mask + lens.len().div_ceil(8), 0);
    let (mut old_at, mut at) = (0, 0);
    for (field, ((&old_len, &len), &gap)) in
        schema.prototype_lens.iter().zip(lens).zip(&schema.gaps).enumerate()
    {
        let (old_len, len, gap) = (usize::from(old_len), usize::from(len), usize::from(gap));
        let skeleton = &payload[at..at + gap];
        if in_common(&schema.prototype[old_at..old_at + gap], skeleton) < gap {
            return false;
        }
        (old_at, at) = (old_at + gap, at + gap);
        let (old, new) = (&schema.prototype[old_at..old_at + old_len], &payload[at..at + len]);
        let prefix = in_common(old, new);
        if prefix < old_len.max(len) {
            out[mask + field / 8] |= 1 << (field % 8);
            let prefix = prefix.min(15);
            let rest = &new[prefix..];
            let short = rest.len().min(15);
            out.push((prefix << 4 | short) as u8);
            if short == 15 {
                out.push(rest.len() as u8);
            }
            out.extend_from_slice(rest);
        }
        (old_at, at) = (old_at + old_len, at + len);
    }
    schema.prototype[old_at..] == payload[at..]
}

//! From messages to batches.
//!
//! # A body
//!
//! A body is a row of records. Each begins with `varint(zigzag(number - (last number + 1)) << 1 | special)`, where `number` is that
//! of a topic. What is not special is the topic's next message, changed from its last:
//!
//! ```text
//!  a payload that is cut:   mask of the schema's slots, a token for each bit that is set, in the order of fields
//!  an opaque payload:       varint bytes in common at the beginning, varint at the end, varint length of the rest, the rest
//! ```
//!
//! A special record goes on with one byte, [`Special`]. A token is `varint(zigzag(difference))` of two numbers, never zero; or zero,
//! `varint(length)` and the text, where the prediction is a number and the field is not; or the latter two alone, where it is not.
//!
//! # Columns
//!
//! In columns the same bytes stand in another order: all records without masks and tokens, then all masks, then the tokens of the
//! first slot of all schemas, of the second, and so on; `varint(columns)` and the length of each stand before them.
//!
//! # Always true
//!
//! The state of both sides is a function of the epoch and of the batches from its first on. A batch changes nothing of a topic that
//! it does not name; so, if a batch is lost, what it and those after it named is defined again, and nothing else.

use std::collections::HashMap;

use crate::{
    MESSAGE_BYTES_MAX, MESSAGES_MAX, PAYLOAD_BYTES_MAX, TOPIC_BYTES_MAX,
    batch::{self, Compression, Header, Packer},
    kept::Kept,
    layout::{BinaryKind, Cut, FIELDS_MAX, Layout, Numeral, Runs},
    number::Format,
    probe::Probe,
    schema::{self, Last, NO_SLOT, Predictor, SLOTS_MAX, Schema},
    topics::Topics,
    varint,
};

/// Longest payload that is kept to compare the topic's next one with; longer ones travel as they are.
pub(crate) const KEPT_BYTES_MAX: usize = 4096;

/// Most schemas of one epoch; payloads of further shapes are opaque.
pub(crate) const SCHEMAS_MAX: usize = 4096;

/// The number that stands for "in one piece" among schemas.
pub(crate) const OPAQUE: u16 = 0;

/// What a record is that is no ordinary message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Special {
    /// Gives the number a topic: `varint` bytes in common with the topic defined before in this batch, `varint` length and the rest of
    /// the topic; then as [`Special::Redefine`].
    Define = 0,
    /// `varint` length and attributes, then the whole payload: see [`Encoder`]'s `put_payload`.
    Redefine = 1,
    /// The number has no topic any more.
    Undefine = 2,
    /// `varint` length and a payload that is not kept.
    Verbatim = 3,
    /// A schema: `varint` number, kind, `varint` fields, what the kind needs. It begins anew.
    Schema = 4,
    /// The slot of a field: `varint` number of the schema, field, predictor, kind of number, decimals.
    Slot = 5,
}

/// A message to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Topic, at most 65,535 bytes.
    pub topic: &'a [u8],
    /// What else belongs to the message and seldom changes from one to the next of a topic, in a form of the caller's own; at most
    /// 65,535 bytes.
    pub attributes: &'a [u8],
    /// Payload, at most [`PAYLOAD_BYTES_MAX`] bytes.
    pub payload: &'a [u8],
}

/// How an encoder works.
#[derive(Clone, Debug)]
pub struct EncoderConfig {
    /// How payloads are cut whose topic no rule names.
    pub layout: Layout,
    /// Filters of topics and how their payloads are cut; the first that matches holds.
    pub layouts: Vec<(String, Layout)>,
    /// Whether the tokens of one field stand together: better for zstd on large batches, of no use without.
    pub columns: bool,
    /// How bodies are compressed once more.
    pub compression: Compression,
    /// Bytes of a body at which [`Encoder::is_due`]; 64 KiB.
    pub body_bytes: usize,
    /// Most topics that are known at once, 1 to 2³²-2; 2²⁰. The decoder must hold as many.
    pub topics_max: usize,
    /// Most bytes of state, as [`crate`] counts them; 256 MiB. The decoder must hold as many.
    pub state_bytes_max: u64,
}

impl Default for EncoderConfig {
    fn default() -> Self {
        Self {
            layout: Layout::Auto,
            layouts: Vec::new(),
            columns: false,
            compression: Compression::None,
            body_bytes: 64 << 10,
            topics_max: 1 << 20,
            state_bytes_max: 256 << 20,
        }
    }
}

/// Turns messages into batches that a [`crate::Decoder`] turns back, byte for byte and in order.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    epoch: u64,
    /// Of the batch that is being filled.
    sequence: u64,
    topics: Topics,
    /// From number 1 on: [`OPAQUE`] has no schema.
    schemas: Vec<Known>,
    shapes: HashMap<(Cut, Box<[u8]>), u16>,
    /// Slots that are to be changed before the next message: schema, field, how.
    changes: Vec<(u16, u8, Numeral, Predictor)>,
    /// Numbers under which the decoder may have a topic that does not count here any more; the lowest last.
    vacant: Vec<u32>,
    body: Body,
    packer: Packer,
    messages: u32,
    message_bytes: u32,
    checksum: u32,
    /// The number after which the next record counts.
    last_number: u32,
    /// The topic that this batch defined last.
    last_topic: Vec<u8>,
    counts: Counts,
    scratch: Scratch,
}

/// A schema as the encoder knows it.
#[derive(Debug)]
struct Known {
    schema: Schema,
    /// Whether the decoder has it, as of the batches it has.
    is_announced: bool,
    probe: Probe,
    /// For each slot, fields that should have been numbers and were not, and how many of them lead to a wider format.
    misses: Vec<(u32, u32)>,
}

/// What an encoder has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were sent as changes.
    pub rows: u64,
    /// Topics that were sent in full: new, forgotten, lost or of another shape than before.
    pub definitions: u64,
    /// Payloads that were sent as they are.
    pub verbatim: u64,
    /// Topics that were forgotten for want of room.
    pub evictions: u64,
}

#[derive(Debug, Default)]
struct Body {
    /// Records; in rows, their masks and tokens as well.
    records: Vec<u8>,
    masks: Vec<u8>,
    columns: Vec<Vec<u8>>,
    /// Bytes in `masks` and `columns`.
    column_bytes: usize,
    whole: Vec<u8>,
}

/// What one message needs for a moment.
#[derive(Debug, Default)]
struct Scratch {
    lens: Vec<u8>,
    gaps: Vec<u8>,
    new_lens: Vec<u8>,
    starts: Starts,
    changed: Vec<(u8, u8)>,
    tokens: Vec<u8>,
    /// Slots of the tokens, and where each ends.
    ends: Vec<(u8, u32)>,
    undo: Vec<(u8, Last, i64)>,
}

/// Where each field of a payload begins.
#[derive(Debug)]
struct Starts(Box<[u16; FIELDS_MAX]>);

impl Default for Starts {
    fn default() -> Self {
        Self(Box::new([0; FIELDS_MAX]))
    }
}

/// How a message compares to its topic's last.
enum Row {
    Written,
    /// A field changed that has no slot.
    Slotless(u8),
    /// The skeleton changed.
    Reshaped,
}

impl Encoder {
    /// An encoder whose first batch is number 0 of `epoch`. `seed` should be hard to guess.
    pub fn new(config: EncoderConfig, epoch: u64, seed: u64) -> Self {
        Self {
            packer: Packer::new(config.compression.within_levels()),
            config,
            epoch,
            sequence: 0,
            topics: Topics::new(seed),
            schemas: Vec::new(),
            shapes: HashMap::new(),
            changes: Vec::new(),
            vacant: Vec::new(),
            body: Body::default(),
            messages: 0,
            message_bytes: 0,
            checksum: 0,
            last_number: u32::MAX,
            last_topic: Vec::new(),
            counts: Counts::default(),
            scratch: Scratch::default(),
        }
    }

    /// Adds a message to the batch that is being filled.
    ///
    /// # Errors
    ///
    /// [`EncodeError`]; no message was then added.
    pub fn push(&mut self, message: Message<'_>) -> Result<(), EncodeError> {
        let bytes = self.check(&message)?;
        while let Some((schema, field, numeral, predictor)) = self.changes.pop() {
            self.change_slot(schema, field, numeral, predictor);
        }
        while let Some(number) = self.vacant.pop() {
            if !self.topics.is_defined(number) {
                self.put_head(number, Some(Special::Undefine));
            }
        }
        let hash = self.topics.hash(message.topic);
        match self.topics.find(hash, message.topic) {
            Some(number) => self.push_known(number, &message),
            None => self.define(hash, &message)?,
        }
        self.checksum = crc32c::crc32c_append(self.checksum, message.topic);
        if !message.attributes.is_empty() {
            self.checksum = crc32c::crc32c_append(self.checksum, message.attributes);
        }
        self.checksum = crc32c::crc32c_append(self.checksum, message.payload);
        self.messages += 1;
        self.message_bytes += bytes;
        if self.topics.state_bytes() > self.config.state_bytes_max {
            self.evict_to(self.config.state_bytes_max);
        }
        Ok(())
    }

    fn check(&self, message: &Message<'_>) -> Result<u32, EncodeError> {
        for (what, bytes, max) in [
            ("topic", message.topic.len(), TOPIC_BYTES_MAX),
            ("attributes", message.attributes.len(), TOPIC_BYTES_MAX),
            ("payload", message.payload.len(), PAYLOAD_BYTES_MAX),
        ] {
            if bytes > max {
                return Err(EncodeError::TooLong { what, bytes, max });
            }
        }
        let bytes = message.topic.len() + message.attributes.len() + message.payload.len();
        // A token may be longer than its field, but not by more than a length and an escape for each two bytes.
        let is_long = self.body_bytes() + 2 * bytes + 64 > MESSAGE_BYTES_MAX && self.messages > 0;
        if is_long
            || self.messages == MESSAGES_MAX
            || self.message_bytes as usize + bytes > MESSAGE_BYTES_MAX && self.messages > 0
        {
            return Err(EncodeError::Full);
        }
        Ok(bytes as u32)
    }

    fn push_known(&mut self, number: u32, message: &Message<'_>) {
        let sequence = self.sequence;
        let is_defined = self.topics.is_defined(number);
        let kept = self.topics.touch(number, sequence);
        if !is_defined {
            return self.define_again(number, message, true);
        }
        if kept.attributes() != message.attributes {
            return self.define_again(number, message, false);
        }
        let schema = kept.schema;
        if message.payload.len() > KEPT_BYTES_MAX {
            self.put_head(number, Some(Special::Verbatim));
            put_bytes(&mut self.body.records, message.payload);
            self.counts.verbatim += 1;
            return;
        }
        if schema == OPAQUE {
            // Nothing was there from which a layout could have been found.
            if kept.payload().is_empty() && !message.payload.is_empty() {
                return self.define_again(number, message, false);
            }
            return self.put_opaque(number, message.payload);
        }
        if !self.schemas[usize::from(schema) - 1].is_announced {
            self.announce(schema);
        }
        loop {
            match self.row(number, message.payload) {
                Row::Written => {
                    self.counts.rows += 1;
                    return;
                }
                Row::Reshaped => return self.define_again(number, message, false),
                Row::Slotless(field) => {
                    // With no room for another slot, what changes there is told by a definition.
                    if !self.add_slot(number, field, message.payload) {
                        return self.define_again(number, message, false);
                    }
                }
            }
        }
    }

    /// Writes what changed of a payload that is cut.
    fn row(&mut self, number: u32, new: &[u8]) -> Row {
        let kept = self.topics.get(number);
        let known = &mut self.schemas[usize::from(kept.schema) - 1];
        let schema = &mut known.schema;
        let scratch = &mut self.scratch;
        let old = kept.payload();
        let mut lens = kept.lens();
        if lens.is_empty() {
            // A field that has become empty joins the skeleton around it.
            if !schema.cut.split(old, &mut scratch.lens, &mut scratch.gaps)
                || *scratch.gaps != *schema.gaps
            {
                return Row::Reshaped;
            }
            lens = &scratch.lens;
        }
        let mut start = u16::from(schema.gaps[0]);
        for ((place, len), gap) in scratch.starts.0.iter_mut().zip(lens).zip(&schema.gaps[1..]) {
            *place = start;
            // A payload that is kept has at most 4,096 bytes.
            start += u16::from(*len) + u16::from(*gap);
        }
        let starts = &scratch.starts.0[..lens.len()];
        scratch.changed.clear();
        scratch.tokens.clear();
        scratch.ends.clear();
        scratch.undo.clear();

        let mut mask = 0u64;
        // `at` is in `old`, and `at + shift` in `new`: all before them has been compared.
        let (mut at, mut shift, mut field) = (0, 0isize, 0);
        let mut watched = schema.watched.as_slice();
        let verdict = loop {
            let stop =
                watched.first().map_or(old.len(), |field| usize::from(starts[usize::from(*field)]));
            at += in_common(&old[at..stop], &new[at.wrapping_add_signed(shift)..]);
            if at == stop
                && let [first, rest @ ..] = watched
            {
                field = usize::from(*first);
                watched = rest;
            } else if at == old.len() && at.wrapping_add_signed(shift) == new.len() {
                break Row::Written;
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
                    break Row::Reshaped;
                }
            }
            let begin = usize::from(starts[field]);
            let end = begin + usize::from(lens[field]);
            let new_begin = begin.wrapping_add_signed(shift);
            let new_end = schema.cut.end(new, new_begin, at.wrapping_add_signed(shift), field);
            let (Ok(new_len), true) = (u8::try_from(new_end - new_begin), new_end <= new.len())
            else {
                break Row::Reshaped;
            };
            let number = schema.slot_of(field);
            if number == NO_SLOT {
                break Row::Slotless(field as u8);
            }
            let (before, after) = (&old[begin..end], &new[new_begin..new_end]);
            let slot = &mut schema.slots[usize::from(number)];
            if slot.is_expected(after) {
                // As in the last message of any topic: there is nothing to say, and nothing to note.
                if new_len != lens[field] {
                    scratch.changed.push((field as u8, new_len));
                }
                at = end;
                shift = new_end as isize - end as isize;
                field += 1;
                continue;
            }
            let value = slot.numeral.parse(after);
            let prediction = slot.predict(before);
            // What holds is looked at only where it differs, unless it is the skeleton after it that does.
            let is_as_predicted = match slot.predictor {
                Predictor::Hold => at == end && new_len == lens[field],
                Predictor::Step | Predictor::Stream => prediction.is(after, value),
            };
            if !is_as_predicted {
                mask |= 1 << number;
                schema::put_token(&mut scratch.tokens, prediction.value, after, value);
                if value.is_none() {
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
                if self.config.columns {
                    scratch.ends.push((number, scratch.tokens.len() as u32));
                }
            }
            if slot.predictor != Predictor::Hold {
                scratch.undo.push((number, slot.last, slot.step));
                slot.note(before, after, value);
            }
            if new_len != lens[field] {
                scratch.changed.push((field as u8, new_len));
            }
            at = end;
            shift = new_end as isize - end as isize;
            field += 1;
        };
        if !matches!(verdict, Row::Written) {
            for (number, last, step) in scratch.undo.drain(..) {
                let slot = &mut schema.slots[usize::from(number)];
                (slot.last, slot.step) = (last, step);
            }
            return verdict;
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
        let kept = self.topics.touch(number, self.sequence);
        let before = kept.cost();
        let lens = kept.lens_mut();
        if !lens.is_empty() {
            for &(field, len) in &self.scratch.changed {
                lens[usize::from(field)] = len;
            }
        }
        kept.set_payload(new);
        self.topics.recount(number, before);
        Row::Written
    }

    fn put_opaque(&mut self, number: u32, new: &[u8]) {
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
        kept.set_payload(new);
        self.topics.recount(number, before);
        self.counts.rows += 1;
    }

    /// Gives a field a slot whose value goes from what the topic's last payload has to what `new` has there. Returns whether there was
    /// room for one.
    fn add_slot(&mut self, number: u32, field: u8, new: &[u8]) -> bool {
        let kept = self.topics.get(number);
        let id = kept.schema;
        let schema = &self.schemas[usize::from(id) - 1].schema;
        if schema.slots.len() == SLOTS_MAX {
            return false;
        }
        let scratch = &mut self.scratch;
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
            match (text(kept.payload()), text(new)) {
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

    fn change_slot(&mut self, id: u16, field: u8, numeral: Numeral, predictor: Predictor) {
        let known = &mut self.schemas[usize::from(id) - 1];
        known.schema.set_slot(field, numeral, predictor);
        if known.is_announced {
            let number = known.schema.slot_of(usize::from(field));
            self.put_slot(id, number);
        }
    }

    fn put_slot(&mut self, id: u16, number: u8) {
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

    /// Tells the decoder of a schema, which begins anew on both sides.
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

    /// Defines a topic that has no number.
    fn define(&mut self, hash: u32, message: &Message<'_>) -> Result<(), EncodeError> {
        while self.topics.len() >= self.config.topics_max {
            let number = self.topics.evict(self.sequence).ok_or(EncodeError::Full)?;
            self.put_head(number, Some(Special::Undefine));
            self.counts.evictions += 1;
        }
        let (schema, lens_known) = self.shape(message);
        let lens = if lens_known { self.scratch.new_lens.as_slice() } else { &[] };
        let kept =
            Kept::new(message.topic, message.attributes, schema, lens, kept_part(message.payload));
        let number = self.topics.insert(hash, kept, self.sequence);
        self.put_definition(number, message, schema, Some(message.topic));
        Ok(())
    }

    /// Defines a topic that has a number, with its name if the decoder may not know that.
    fn define_again(&mut self, number: u32, message: &Message<'_>, with_topic: bool) {
        let (schema, lens_known) = self.shape(message);
        let lens = if lens_known { self.scratch.new_lens.as_slice() } else { &[] };
        let kept =
            Kept::new(message.topic, message.attributes, schema, lens, kept_part(message.payload));
        self.topics.replace(number, kept);
        self.put_definition(number, message, schema, with_topic.then_some(message.topic));
    }

    /// The schema of a message's payload, announced; the lengths of its fields are then in `scratch.new_lens` if it is cut.
    fn shape(&mut self, message: &Message<'_>) -> (u16, bool) {
        let payload = message.payload;
        if payload.len() > KEPT_BYTES_MAX {
            return (OPAQUE, false);
        }
        let Some(cut) = self.layout_of(message.topic).cut(payload) else { return (OPAQUE, false) };
        let scratch = &mut self.scratch;
        if !cut.split(payload, &mut scratch.new_lens, &mut scratch.gaps) {
            return (OPAQUE, false);
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
        (id, true)
    }

    fn layout_of(&self, topic: &[u8]) -> &Layout {
        let Ok(topic) = std::str::from_utf8(topic) else { return &self.config.layout };
        self.config
            .layouts
            .iter()
            .find(|(filter, _)| tidegate_message::topic_matches(filter, topic))
            .map_or(&self.config.layout, |(_, layout)| layout)
    }

    fn put_definition(
        &mut self,
        number: u32,
        message: &Message<'_>,
        schema: u16,
        topic: Option<&[u8]>,
    ) {
        self.counts.definitions += 1;
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
        self.put_payload(schema, message.payload);
    }

    /// `varint` schema; then, of an opaque payload, `varint` length and bytes. Of one that is cut: 0, `varint` length and bytes; or 1, a
    /// bit for each field that differs from the schema's prototype, and for each of these a byte with the length that both have in
    /// common (upper half) and the length of the rest (lower half; 15 for a byte of its own that follows), and the rest.
    fn put_payload(&mut self, id: u16, payload: &[u8]) {
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

    fn evict_to(&mut self, state_bytes: u64) {
        while self.topics.state_bytes() > state_bytes {
            let Some(number) = self.topics.evict(self.sequence) else { return };
            self.put_head(number, Some(Special::Undefine));
            self.counts.evictions += 1;
        }
    }

    #[inline]
    fn put_head(&mut self, number: u32, special: Option<Special>) {
        let expected = self.last_number.wrapping_add(1);
        let delta = i64::from(number) - i64::from(expected);
        let records = &mut self.body.records;
        varint::put(records, varint::zigzag(delta) << 1 | u64::from(special.is_some()));
        if let Some(special) = special {
            records.push(special as u8);
        }
        self.last_number = number;
    }

    fn put_special(&mut self, special: Special) {
        self.body.records.extend_from_slice(&[1, special as u8]);
    }

    /// Bytes of the batch that is being filled, before compression and without its header.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.body.records.len() + self.body.column_bytes
    }

    /// Messages in the batch that is being filled.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Whether the batch that is being filled has reached the size that is configured.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.body_bytes() >= self.config.body_bytes
    }

    /// Ends the batch that is being filled and appends it to `out`; `None` if it holds no message.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Option<Header> {
        if self.messages == 0 {
            return None;
        }
        let body = if self.config.columns { self.body.columns() } else { &self.body.records };
        let (packing, packed) = self.packer.pack(body);
        let header = Header {
            epoch: self.epoch,
            sequence: self.sequence,
            messages: self.messages,
            message_bytes: self.message_bytes,
            body_bytes: body.len() as u32,
            checksum: crc32c::crc32c_append(self.checksum, packed),
            is_columns: self.config.columns,
            packing,
        };
        out.reserve(batch::HEADER_BYTES_MAX + packed.len());
        header.put(out);
        out.extend_from_slice(packed);
        self.sequence += 1;
        self.clear_batch();
        Some(header)
    }

    fn clear_batch(&mut self) {
        self.body.clear();
        (self.messages, self.message_bytes, self.checksum) = (0, 0, 0);
        self.last_number = u32::MAX;
        self.last_topic.clear();
    }

    /// Goes back to where the decoder is, which has all batches of this epoch before `sequence` and none from there on. The batch that
    /// is being filled is given up; its messages and those of the batches that are lost must be pushed again.
    ///
    /// Topics that only batches before `sequence` named are still known; the others are defined again when they come.
    ///
    /// The numbers from `sequence` on are used again for other batches. Nothing that was sent before must reach the decoder after this:
    /// go back once for each connection, when it begins, and not for each batch that was refused.
    ///
    /// # Errors
    ///
    /// [`ResumeError::Epoch`] and [`ResumeError::Sequence`]: the decoder's state is not of this encoder. Use [`Encoder::restart`].
    pub fn resume(&mut self, epoch: u64, sequence: u64) -> Result<(), ResumeError> {
        if epoch != self.epoch {
            return Err(ResumeError::Epoch { asked: epoch, current: self.epoch });
        }
        if sequence > self.sequence {
            return Err(ResumeError::Sequence { asked: sequence, next: self.sequence });
        }
        self.topics.undefine_since(sequence);
        self.topics.undefined(&mut self.vacant);
        self.sequence = sequence;
        self.forget_schemas();
        Ok(())
    }

    /// Notes that the decoder has lost the topics whose numbers are `shard` modulo [`crate::SHARDS`]: they are defined again when they
    /// come. The batch that is being filled must be empty.
    pub fn reset_shard(&mut self, shard: u8) {
        self.topics.undefine_shard(shard);
    }

    /// Begins a new epoch, in which nothing is known. The batch that is being filled is given up; its messages must be pushed again.
    pub fn restart(&mut self, epoch: u64, seed: u64) {
        let config = self.config.clone();
        let counts = self.counts;
        *self = Self::new(config, epoch, seed);
        self.counts = counts;
    }

    fn forget_schemas(&mut self) {
        for known in &mut self.schemas {
            known.is_announced = false;
        }
        self.packer.restart();
        self.clear_batch();
    }

    /// How it works.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of the batch that is being filled.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Topics that are known.
    pub fn topics(&self) -> usize {
        self.topics.len()
    }

    /// Bytes of state, as [`crate`] counts them.
    pub fn state_bytes(&self) -> u64 {
        self.topics.state_bytes()
    }

    /// Bytes of memory that the topics have touched, the allocator's own aside. Walks all of them.
    pub fn memory_bytes(&self) -> usize {
        self.topics.memory_bytes()
    }

    /// What was done since the encoder was made.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

impl Body {
    #[inline]
    fn put_row(&mut self, mask: &[u8], tokens: &[u8], ends: &[(u8, u32)], columns: bool) {
        if !columns {
            self.records.extend_from_slice(mask);
            self.records.extend_from_slice(tokens);
            return;
        }
        self.masks.extend_from_slice(mask);
        let mut start = 0;
        for &(slot, end) in ends {
            let slot = usize::from(slot);
            if self.columns.len() <= slot {
                self.columns.resize_with(slot + 1, Vec::new);
            }
            self.columns[slot].extend_from_slice(&tokens[start..end as usize]);
            start = end as usize;
        }
        self.column_bytes += mask.len() + tokens.len();
    }

    /// All of it, in columns.
    fn columns(&mut self) -> &[u8] {
        self.whole.clear();
        let used =
            self.columns.iter().rposition(|column| !column.is_empty()).map_or(0, |last| last + 1);
        varint::put(&mut self.whole, used as u64);
        for column in [&self.records, &self.masks].into_iter().chain(&self.columns[..used]) {
            varint::put(&mut self.whole, column.len() as u64);
        }
        for column in [&self.records, &self.masks].into_iter().chain(&self.columns[..used]) {
            self.whole.extend_from_slice(column);
        }
        &self.whole
    }

    fn clear(&mut self) {
        self.records.clear();
        self.masks.clear();
        for column in &mut self.columns {
            column.clear();
        }
        self.column_bytes = 0;
    }
}

/// A payload as it is kept: not at all if it is too long.
fn kept_part(payload: &[u8]) -> &[u8] {
    if payload.len() <= KEPT_BYTES_MAX { payload } else { &[] }
}

fn widened(numeral: Numeral, before: &[u8], after: &[u8]) -> Option<Numeral> {
    let format = match numeral {
        Numeral::Decimal(format) => format.widened(after),
        Numeral::None => Format::of_both(before, after),
        Numeral::Binary(_) => None,
    }?;
    (numeral != Numeral::Decimal(format)).then_some(Numeral::Decimal(format))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
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
        if schema.prototype[old_at..old_at + gap] != payload[at..at + gap] {
            return false;
        }
        (old_at, at) = (old_at + gap, at + gap);
        let (old, new) = (&schema.prototype[old_at..old_at + old_len], &payload[at..at + len]);
        if old != new {
            out[mask + field / 8] |= 1 << (field % 8);
            let prefix = in_common(old, new).min(15);
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

/// How many bytes both have in common at their beginning.
#[inline]
fn in_common(one: &[u8], other: &[u8]) -> usize {
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

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A part of it is too long.
    #[error("{what} of {bytes} bytes, at most {max} can be sent")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its bytes.
        bytes: usize,
        /// Most bytes that it may have.
        max: usize,
    },
    /// The batch takes no more, or each topic that could be forgotten for this one is in it: finish it and push the message again.
    #[error("the batch is full")]
    Full,
}

/// Why an encoder cannot go on where a decoder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// The decoder has another epoch.
    #[error("the decoder is in epoch {asked}, the encoder in {current}")]
    Epoch {
        /// The decoder's.
        asked: u64,
        /// The encoder's.
        current: u64,
    },
    /// The decoder says that it has batches that were never sent.
    #[error("the decoder waits for batch {asked}, but {next} is the next")]
    Sequence {
        /// The decoder's next.
        asked: u64,
        /// The encoder's next.
        next: u64,
    },
}

//! From batches to messages. What a batch looks like is said in `encode.rs` and `batch.rs`.

use crate::{
    MESSAGE_BYTES_MAX, MESSAGES_MAX, PAYLOAD_BYTES_MAX, TOPIC_BYTES_MAX,
    batch::{Header, Unpacker},
    encode::{KEPT_BYTES_MAX, OPAQUE, SCHEMAS_MAX, Special},
    kept::{COST_BEYOND_BYTES_MAX, Kept},
    layout::{BinaryField, BinaryKind, Cut, FIELDS_MAX, Numeral, Runs},
    number::{DIGITS_MAX, Format, TEXT_MAX},
    schema::{NO_SLOT, Predictor, SLOTS_MAX, Schema, Token, take_token},
    varint,
};

/// What a decoder holds at most. A peer that sends more gets an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// Most topics; 2²⁰.
    pub topics_max: usize,
    /// Most bytes of state, as [`crate`] counts them; 256 MiB. A batch may go over it by its own messages.
    pub state_bytes_max: u64,
    /// Most bytes of the body of a batch before compression; 17 MiB.
    pub body_bytes_max: usize,
}

impl Default for DecoderConfig {
    fn default() -> Self {
        Self { topics_max: 1 << 20, state_bytes_max: 256 << 20, body_bytes_max: 17 << 20 }
    }
}

/// Turns the batches of one encoder back into messages.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    epoch: u64,
    /// The batch that is expected.
    sequence: u64,
    topics: Vec<Option<Kept>>,
    /// From number 1 on.
    schemas: Vec<Option<Schema>>,
    state_bytes: u64,
    unpacker: Unpacker,
    /// Topics that the current batch has named.
    touched: Vec<u32>,
    /// Schemas that the current batch has brought.
    brought: Vec<usize>,
    last_topic: Vec<u8>,
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct Scratch {
    lens: Vec<u8>,
    gaps: Vec<u8>,
    payload: Vec<u8>,
    row: RowBytes,
}

/// The messages of a batch, one after the other in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct Decoded {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    end: u32,
    topic_len: u16,
    attributes_len: u16,
}

impl Decoded {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The messages, in the order in which they were pushed.
    pub fn iter(&self) -> impl Iterator<Item = crate::Message<'_>> {
        let mut start = 0;
        self.spans.iter().map(move |span| {
            let whole = &self.bytes[start..span.end as usize];
            start = span.end as usize;
            let (topic, rest) = whole.split_at(usize::from(span.topic_len));
            let (attributes, payload) = rest.split_at(usize::from(span.attributes_len));
            crate::Message { topic, attributes, payload }
        })
    }

    /// All bytes: of each message its topic, its attributes and its payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    /// Compares what came out of `packed` with what its header says.
    fn check(&self, header: &Header, packed: &[u8]) -> Result<(), DecodeError> {
        let is_whole = self.spans.len() == header.messages as usize
            && self.bytes.len() == header.message_bytes as usize
            && crc32c::crc32c_append(crc32c::crc32c(&self.bytes), packed) == header.checksum;
        if is_whole { Ok(()) } else { Err(DecodeError::Mismatch) }
    }
}

/// The records of a body, as they are read.
struct Body<'a> {
    records: &'a [u8],
    masks: &'a [u8],
    /// None in rows.
    columns: Option<Vec<&'a [u8]>>,
}

impl Decoder {
    /// A decoder for the encoder of `epoch`, which has had no batch of it.
    pub fn new(config: DecoderConfig, epoch: u64) -> Self {
        Self {
            config,
            epoch,
            sequence: 0,
            topics: Vec::new(),
            schemas: Vec::new(),
            state_bytes: 0,
            unpacker: Unpacker::default(),
            touched: Vec::new(),
            brought: Vec::new(),
            last_topic: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Takes the next batch; `out` is cleared and gets its messages.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]; `out` is then empty. Unless [`DecodeError::is_harmless`], the topics that the batch named are forgotten: the
    /// encoder must go back to [`Decoder::sequence`] with [`crate::Encoder::resume`], or begin a new epoch.
    pub fn decode(&mut self, mut batch: &[u8], out: &mut Decoded) -> Result<Header, DecodeError> {
        out.clear();
        let header = Header::take(&mut batch)?;
        self.check(&header)?;
        // Taken out, so that the body may be borrowed from it while topics change.
        let mut unpacker = std::mem::take(&mut self.unpacker);
        self.touched.clear();
        self.brought.clear();
        self.last_topic.clear();
        let result = unpacker
            .unpack(&header, batch)
            .and_then(|body| self.body(&header, body, out))
            .and_then(|()| out.check(&header, batch));
        self.unpacker = unpacker;
        if let Err(error) = result {
            self.forget_touched();
            out.clear();
            return Err(error);
        }
        self.sequence += 1;
        Ok(header)
    }

    fn check(&self, header: &Header) -> Result<(), DecodeError> {
        if header.epoch != self.epoch {
            return Err(DecodeError::Epoch { found: header.epoch, current: self.epoch });
        }
        if header.sequence != self.sequence {
            return Err(DecodeError::Sequence { found: header.sequence, expected: self.sequence });
        }
        let body_max = self.config.body_bytes_max;
        for (what, found, max) in [
            ("messages", header.messages as usize, MESSAGES_MAX as usize),
            // One message may be as long as it likes.
            ("bytes of messages", header.message_bytes as usize, MESSAGE_BYTES_MAX + LONGEST),
            ("bytes of body", header.body_bytes as usize, body_max),
        ] {
            if found > max {
                return Err(DecodeError::Limit { what, found, max });
            }
        }
        Ok(())
    }

    fn body(&mut self, header: &Header, body: &[u8], out: &mut Decoded) -> Result<(), DecodeError> {
        let mut body = Body::new(header, body)?;
        out.bytes.reserve(header.message_bytes as usize);
        out.spans.reserve(header.messages as usize);
        let mut last_number = u32::MAX;
        while !body.records.is_empty() {
            let head = varint::take(&mut body.records).ok_or(DecodeError::Truncated)?;
            if head & 1 == 0 {
                let number = number_after(last_number, head)?;
                last_number = number;
                self.row(number, &mut body, out)?;
            } else {
                let code = take_byte(&mut body.records)?;
                if matches!(special(code)?, Special::Schema | Special::Slot) {
                    if special(code)? == Special::Schema {
                        self.take_schema(&mut body.records)?;
                    } else {
                        self.take_slot(&mut body.records)?;
                    }
                    continue;
                }
                let number = number_after(last_number, head)?;
                last_number = number;
                match special(code)? {
                    Special::Define => self.define(number, &mut body.records, out)?,
                    Special::Redefine => self.redefine(number, &mut body.records, out)?,
                    Special::Undefine => self.undefine(number),
                    _ => self.verbatim(number, &mut body.records, out)?,
                }
            }
            let is_within = out.bytes.len() <= header.message_bytes as usize
                && out.spans.len() <= header.messages as usize;
            if !is_within {
                return Err(DecodeError::Mismatch);
            }
        }
        if !body.is_used_up() {
            return Err(DecodeError::Mismatch);
        }
        // Topics of this batch could not make room for each other.
        let own =
            u64::from(header.message_bytes) + u64::from(header.messages) * COST_BEYOND_BYTES_MAX;
        let state_max = self.config.state_bytes_max.saturating_add(own);
        if self.state_bytes > state_max {
            let (found, max) = (self.state_bytes as usize, state_max as usize);
            return Err(DecodeError::Limit { what: "bytes of state", found, max });
        }
        Ok(())
    }

    fn row(
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
        out.bytes.extend_from_slice(kept.name());
        let start = out.bytes.len();
        if kept.schema == OPAQUE {
            let prefix = take_len(&mut body.records)?;
            let suffix = take_len(&mut body.records)?;
            let middle = take_bytes(&mut body.records, KEPT_BYTES_MAX)?;
            let old = kept.payload();
            if prefix.checked_add(suffix).is_none_or(|both| both > old.len()) {
                return Err(DecodeError::Record { what: "an opaque payload" });
            }
            out.bytes.extend_from_slice(&old[..prefix]);
            out.bytes.extend_from_slice(middle);
            out.bytes.extend_from_slice(&old[old.len() - suffix..]);
        } else {
            let schema = self
                .schemas
                .get_mut(usize::from(kept.schema) - 1)
                .and_then(Option::as_mut)
                .ok_or(DecodeError::Record { what: "a schema that is not known" })?;
            let len = fields(kept, schema, body, &mut self.scratch)?;
            out.bytes.extend_from_slice(&self.scratch.row.0[..len]);
        }
        if out.bytes.len() - start > KEPT_BYTES_MAX {
            return Err(DecodeError::Record { what: "a payload that is too long to be kept" });
        }
        kept.set_payload(&out.bytes[start..]);
        self.state_bytes = self.state_bytes + kept.cost() - before;
        out.spans.push(Span {
            end: out.bytes.len() as u32,
            topic_len: kept.topic_len(),
            attributes_len: kept.attributes_len(),
        });
        Ok(())
    }

    fn define(
        &mut self,
        number: u32,
        records: &mut &[u8],
        out: &mut Decoded,
    ) -> Result<(), DecodeError> {
        let index = number as usize;
        // After a loss numbers come in the order in which their topics are used, not one after the other.
        if index >= self.config.topics_max {
            let max = self.config.topics_max;
            return Err(DecodeError::Limit { what: "topics", found: index + 1, max });
        }
        let prefix = take_len(records)?;
        let rest = take_bytes(records, TOPIC_BYTES_MAX)?;
        if prefix > self.last_topic.len() || prefix + rest.len() > TOPIC_BYTES_MAX {
            return Err(DecodeError::Record { what: "a topic" });
        }
        self.last_topic.truncate(prefix);
        self.last_topic.extend_from_slice(rest);
        if index >= self.topics.len() {
            self.topics.resize_with(index + 1, || None);
        }
        let topic = std::mem::take(&mut self.last_topic);
        let result = self.take_definition(number, &topic, records, out);
        self.last_topic = topic;
        result
    }

    fn redefine(
        &mut self,
        number: u32,
        records: &mut &[u8],
        out: &mut Decoded,
    ) -> Result<(), DecodeError> {
        let kept = self.topics.get(number as usize).and_then(Option::as_ref);
        let topic = kept.ok_or(DecodeError::UnknownTopic { number })?.topic().to_vec();
        self.take_definition(number, &topic, records, out)
    }

    fn take_definition(
        &mut self,
        number: u32,
        topic: &[u8],
        records: &mut &[u8],
        out: &mut Decoded,
    ) -> Result<(), DecodeError> {
        self.touched.push(number);
        let attributes = take_bytes(records, TOPIC_BYTES_MAX)?;
        out.bytes.extend_from_slice(topic);
        out.bytes.extend_from_slice(attributes);
        let start = out.bytes.len();
        let id = varint::take(records).ok_or(DecodeError::Truncated)?;
        let scratch = &mut self.scratch;
        scratch.lens.clear();
        if id == u64::from(OPAQUE) {
            out.bytes.extend_from_slice(take_bytes(records, PAYLOAD_BYTES_MAX)?);
        } else {
            let schema = usize::try_from(id)
                .ok()
                .and_then(|id| self.schemas.get_mut(id - 1))
                .and_then(Option::as_mut)
                .ok_or(DecodeError::Record { what: "a schema that is not known" })?;
            if take_byte(records)? == 0 {
                out.bytes.extend_from_slice(take_bytes(records, KEPT_BYTES_MAX)?);
            } else {
                take_against(schema, records, &mut scratch.payload)?;
                out.bytes.extend_from_slice(&scratch.payload);
            }
            let payload = &out.bytes[start..];
            if payload.len() > KEPT_BYTES_MAX
                || !schema.cut.split(payload, &mut scratch.lens, &mut scratch.gaps)
                || *scratch.gaps != *schema.gaps
            {
                return Err(DecodeError::Record {
                    what: "a payload of another shape than its schema",
                });
            }
            schema.defined(payload, &scratch.lens);
        }
        let payload = &out.bytes[start..];
        let keeps = payload.len() <= KEPT_BYTES_MAX;
        let kept = Kept::new(
            topic,
            attributes,
            id as u16,
            &scratch.lens,
            if keeps { payload } else { &[] },
        );
        self.state_bytes += kept.cost();
        out.spans.push(Span {
            end: out.bytes.len() as u32,
            topic_len: kept.topic_len(),
            attributes_len: kept.attributes_len(),
        });
        let place = &mut self.topics[number as usize];
        self.state_bytes -= place.as_ref().map_or(0, Kept::cost);
        *place = Some(kept);
        Ok(())
    }

    fn undefine(&mut self, number: u32) {
        if let Some(place) = self.topics.get_mut(number as usize)
            && let Some(kept) = place.take()
        {
            self.state_bytes -= kept.cost();
        }
    }

    fn verbatim(
        &mut self,
        number: u32,
        records: &mut &[u8],
        out: &mut Decoded,
    ) -> Result<(), DecodeError> {
        let kept = self.topics.get(number as usize).and_then(Option::as_ref);
        let kept = kept.ok_or(DecodeError::UnknownTopic { number })?;
        self.touched.push(number);
        out.bytes.extend_from_slice(kept.name());
        out.bytes.extend_from_slice(take_bytes(records, PAYLOAD_BYTES_MAX)?);
        out.spans.push(Span {
            end: out.bytes.len() as u32,
            topic_len: kept.topic_len(),
            attributes_len: kept.attributes_len(),
        });
        Ok(())
    }

    fn take_schema(&mut self, records: &mut &[u8]) -> Result<(), DecodeError> {
        let id = varint::take(records).ok_or(DecodeError::Truncated)?;
        let id = usize::try_from(id).unwrap_or(usize::MAX);
        let schema = take_cut(records)?;
        if id == 0 || id > SCHEMAS_MAX {
            return Err(DecodeError::Limit { what: "schemas", found: id, max: SCHEMAS_MAX });
        }
        if self.schemas.len() < id {
            self.schemas.resize_with(id, || None);
        }
        let place = &mut self.schemas[id - 1];
        // Topics that are kept have been cut by it.
        if place.as_ref().is_some_and(|old| (&old.cut, &old.gaps) != (&schema.cut, &schema.gaps)) {
            return Err(DecodeError::Record { what: "a schema that has become another" });
        }
        if place.is_none() {
            self.brought.push(id - 1);
        }
        *place = Some(schema);
        Ok(())
    }

    fn take_slot(&mut self, records: &mut &[u8]) -> Result<(), DecodeError> {
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

    /// What a batch named that broke off is not what the encoder thinks. Of schemas that were there before, it says all again.
    fn forget_touched(&mut self) {
        while let Some(number) = self.touched.pop() {
            self.undefine(number);
        }
        while let Some(schema) = self.brought.pop() {
            self.schemas[schema] = None;
        }
    }

    /// Forgets everything, for the encoder of `epoch`.
    pub fn restart(&mut self, epoch: u64) {
        *self = Self::new(self.config, epoch);
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The batch that is expected: all before it were taken.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes of state, as [`crate`] counts them.
    pub fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// Topics that are known.
    pub fn topics(&self) -> usize {
        self.topics.iter().flatten().count()
    }

    /// Bytes of memory that the topics have touched, the allocator's own aside. Walks all of them.
    pub fn memory_bytes(&self) -> usize {
        self.topics.len() * size_of::<Option<Kept>>()
            + self.topics.iter().flatten().map(Kept::block_bytes).sum::<usize>()
    }
}

/// Longest message: its three parts at their longest.
const LONGEST: usize = PAYLOAD_BYTES_MAX + 2 * TOPIC_BYTES_MAX;

/// Puts together the next payload of a topic whose payloads are cut; returns its length in `scratch.payload`.
fn fields(
    kept: &mut Kept,
    schema: &mut Schema,
    body: &mut Body<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    let masks = if body.columns.is_some() { &mut body.masks } else { &mut body.records };
    let mask = schema.take_mask(masks).ok_or(DecodeError::Record { what: "a mask" })?;
    scratch.lens.clear();
    if kept.lens().is_empty() {
        if !schema.cut.split(kept.payload(), &mut scratch.lens, &mut scratch.gaps)
            || *scratch.gaps != *schema.gaps
        {
            return Err(DecodeError::Record { what: "a payload that cannot be cut" });
        }
    } else {
        scratch.lens.extend_from_slice(kept.lens());
    }
    let lens = scratch.lens.as_mut_slice();
    let mut out = Writer { bytes: &mut scratch.row.0, len: 0 };
    let old = kept.payload();
    // `copied` bytes of `old` are in `out`, or what stands there in their place; `begin` is where `field` begins.
    let (mut copied, mut field, mut begin) = (0, 0, usize::from(schema.gaps[0]));
    // Slots that are told of, and those that are not expected to stay.
    let mut slots = mask | schema.watched_mask;
    while slots != 0 {
        let number = slots.trailing_zeros() as usize;
        slots &= slots - 1;
        let slot = &mut schema.slots[number];
        let is_told = mask >> number & 1 == 1;
        let target = usize::from(slot.field);
        while field < target {
            begin += usize::from(lens[field]) + usize::from(schema.gaps[field + 1]);
            field += 1;
        }
        let end = begin + usize::from(lens[field]);
        let before = &old[begin..end];
        out.copy(old, copied, begin)?;
        let at = out.len;
        if is_told {
            let tokens = match &mut body.columns {
                Some(columns) => {
                    columns.get_mut(number).ok_or(DecodeError::Record { what: "a column" })?
                }
                None => &mut body.records,
            };
            let prediction = slot.predict(before);
            let token = take_token(tokens, prediction.value);
            match token.ok_or(DecodeError::Record { what: "a token" })? {
                Token::Value(value) => out.print(slot.numeral, value)?,
                Token::Text(text) => out.copy(text, 0, text.len())?,
            }
            if slot.predictor != Predictor::Hold {
                let after = &out.bytes[at..out.len];
                let value = slot.numeral.parse(after);
                slot.note(before, after, value);
            }
        } else {
            // What was predicted changes nothing of what the next prediction is made from.
            let prediction = slot.predict(before);
            match (prediction.text, prediction.value) {
                (None, Some(value)) => out.print(slot.numeral, value)?,
                (text, _) => {
                    let text = text.expect("a prediction without value has a text");
                    out.copy(text, 0, text.len())?;
                }
            }
            if slot.last.text().is_none() && slot.predictor == Predictor::Stream {
                let after = &out.bytes[at..out.len];
                let value = slot.numeral.parse(after);
                slot.note(before, after, value);
            }
        }
        // The next field begins after what the last one was.
        let len =
            u8::try_from(out.len - at).map_err(|_| DecodeError::Record { what: "a field" })?;
        begin = end + usize::from(schema.gaps[field + 1]);
        lens[field] = len;
        field += 1;
        copied = end;
    }
    out.copy(old, copied, old.len())?;
    let len = out.len;
    let kept_lens = kept.lens_mut();
    if !kept_lens.is_empty() {
        kept_lens.copy_from_slice(lens);
    }
    Ok(len)
}

/// Room for a payload that is kept, and for what is copied beyond its end.
const ROW_BYTES: usize = KEPT_BYTES_MAX + 2 * STEP;

/// Bytes that are copied at once: so many cost less than to ask how many they should be.
const STEP: usize = TEXT_MAX;

#[derive(Debug)]
struct RowBytes(Box<[u8; ROW_BYTES]>);

impl Default for RowBytes {
    fn default() -> Self {
        Self(Box::new([0; ROW_BYTES]))
    }
}

/// Where a payload is put together.
struct Writer<'a> {
    bytes: &'a mut [u8; ROW_BYTES],
    len: usize,
}

impl Writer<'_> {
    /// Appends `from[begin..end]`.
    #[inline]
    fn copy(&mut self, from: &[u8], begin: usize, end: usize) -> Result<(), DecodeError> {
        let len = end - begin;
        if self.len + len > KEPT_BYTES_MAX {
            return Err(DecodeError::Record { what: "a payload that is too long to be kept" });
        }
        let to = &mut self.bytes[self.len..];
        match (from[begin..].first_chunk::<STEP>(), to.first_chunk_mut::<STEP>()) {
            (Some(from), Some(to)) if len <= STEP => *to = *from,
            _ => to[..len].copy_from_slice(&from[begin..end]),
        }
        self.len += len;
        Ok(())
    }

    /// Appends a number.
    #[inline]
    fn print(&mut self, numeral: Numeral, value: i64) -> Result<(), DecodeError> {
        let to = self.bytes[self.len..].first_chunk_mut::<TEXT_MAX>();
        self.len += numeral.print(value, to.expect("there is room beyond what is kept"));
        if self.len > KEPT_BYTES_MAX {
            return Err(DecodeError::Record { what: "a payload that is too long to be kept" });
        }
        Ok(())
    }
}

impl<'a> Body<'a> {
    fn new(header: &Header, mut bytes: &'a [u8]) -> Result<Self, DecodeError> {
        if !header.is_columns {
            return Ok(Self { records: bytes, masks: &[], columns: None });
        }
        let count = take_len(&mut bytes)?;
        if count > SLOTS_MAX {
            return Err(DecodeError::Limit { what: "columns", found: count, max: SLOTS_MAX });
        }
        let mut lens = Vec::with_capacity(count + 2);
        for _ in 0..count + 2 {
            lens.push(take_len(&mut bytes)?);
        }
        let mut parts = lens.into_iter().map(|len| {
            let (part, rest) = bytes.split_at_checked(len).ok_or(DecodeError::Truncated)?;
            bytes = rest;
            Ok(part)
        });
        let mut part = || parts.next().expect("two lengths were taken beside the columns'");
        let (records, masks) = (part()?, part()?);
        let columns = parts.collect::<Result<Vec<_>, _>>()?;
        if !bytes.is_empty() {
            return Err(DecodeError::BodyLength);
        }
        Ok(Self { records, masks, columns: Some(columns) })
    }

    fn is_used_up(&self) -> bool {
        self.records.is_empty()
            && self.masks.is_empty()
            && self.columns.iter().flatten().all(|column| column.is_empty())
    }
}

fn special(code: u8) -> Result<Special, DecodeError> {
    Ok(match code {
        0 => Special::Define,
        1 => Special::Redefine,
        2 => Special::Undefine,
        3 => Special::Verbatim,
        4 => Special::Schema,
        5 => Special::Slot,
        _ => return Err(DecodeError::Record { what: "a record of an unknown kind" }),
    })
}

#[inline]
fn number_after(last: u32, head: u64) -> Result<u32, DecodeError> {
    let delta = varint::unzigzag(head >> 1);
    let number = i64::from(last.wrapping_add(1)).checked_add(delta);
    number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or(DecodeError::Record { what: "a number of a topic" })
}

fn take_byte(bytes: &mut &[u8]) -> Result<u8, DecodeError> {
    let (&byte, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
    *bytes = rest;
    Ok(byte)
}

fn take_len(bytes: &mut &[u8]) -> Result<usize, DecodeError> {
    let len = varint::take(bytes).ok_or(DecodeError::Truncated)?;
    usize::try_from(len).map_err(|_| DecodeError::Header { value: len })
}

fn take_bytes<'a>(bytes: &mut &'a [u8], max: usize) -> Result<&'a [u8], DecodeError> {
    let len = take_len(bytes)?;
    if len > max {
        return Err(DecodeError::Limit { what: "bytes of a part", found: len, max });
    }
    let (part, rest) = bytes.split_at_checked(len).ok_or(DecodeError::Truncated)?;
    *bytes = rest;
    Ok(part)
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

/// Puts together a payload that is told by what differs from the schema's prototype.
fn take_against(
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
    let mut at = 0;
    for (field, (&len, &gap)) in lens.iter().zip(&schema.gaps).enumerate() {
        let (begin, end) = (at + usize::from(gap), at + usize::from(gap) + usize::from(len));
        payload.extend_from_slice(&schema.prototype[at..begin]);
        let old = &schema.prototype[begin..end];
        if mask[field / 8] >> (field % 8) & 1 == 1 {
            let lengths = take_byte(records)?;
            let prefix = usize::from(lengths >> 4);
            let mut len = lengths & 15;
            if len == 15 {
                len = take_byte(records)?;
            }
            let (text, rest) =
                records.split_at_checked(usize::from(len)).ok_or(DecodeError::Truncated)?;
            *records = rest;
            payload.extend_from_slice(old.get(..prefix).ok_or(wrong)?);
            payload.extend_from_slice(text);
        } else {
            payload.extend_from_slice(old);
        }
        at = end;
    }
    payload.extend_from_slice(&schema.prototype[at..]);
    Ok(())
}

/// Why a batch was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends too early.
    #[error("the batch ends within a part of it")]
    Truncated,
    /// It is of a version that this decoder does not read.
    #[error("the batch is of version {found}, this decoder reads {}", crate::batch::VERSION)]
    Version {
        /// Its version.
        found: u8,
    },
    /// It has flags that this decoder does not know.
    #[error("the batch has flags {found:#06b}, which are not known")]
    Flags {
        /// The flags.
        found: u8,
    },
    /// A number of its header does not fit.
    #[error("the header says {value}, which is out of range")]
    Header {
        /// The number.
        value: u64,
    },
    /// It belongs to another epoch: one that is over, or one that this decoder has not begun.
    #[error("the batch is of epoch {found}, the decoder is in {current}")]
    Epoch {
        /// The batch's.
        found: u64,
        /// The decoder's.
        current: u64,
    },
    /// It is not the one that comes next: one that was taken already, or one before which others are missing.
    #[error("the batch has number {found}, expected is {expected}")]
    Sequence {
        /// The batch's.
        found: u64,
        /// The decoder's.
        expected: u64,
    },
    /// It has or needs more of something than this decoder takes.
    #[error("{found} {what}, at most {max} are taken")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// Most that are taken.
        max: usize,
    },
    /// Its body is not as long as its header says.
    #[error("the body is not as long as the header says")]
    BodyLength,
    /// Its body is not what zstd wrote.
    #[error("the body cannot be decompressed")]
    Zstd,
    /// Its zstd frame began in a batch that this decoder does not have.
    #[error("the body goes on from a zstd frame that is not known")]
    NoFrame,
    /// It names a topic that was not defined.
    #[error("topic number {number} is not known")]
    UnknownTopic {
        /// Its number.
        number: u32,
    },
    /// A record of it makes no sense.
    #[error("the batch has {what} that makes no sense")]
    Record {
        /// What is wrong.
        what: &'static str,
    },
    /// What came out is not what went in.
    #[error("the messages are not those that were sent: their checksum or their number differs")]
    Mismatch,
}

impl DecodeError {
    /// Whether the decoder is as it was before: the batch belongs to another place, or its header was not understood.
    pub fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::Version { .. }
                | Self::Flags { .. }
                | Self::Header { .. }
                | Self::Epoch { .. }
                | Self::Sequence { .. }
        )
    }
}

//! From batches to messages. The format of a batch is described in `encode.rs` and `batch.rs`.

pub use self::decoded::Decoded;
use self::{
    body::{Body, number_after, special, take_byte, take_bytes, take_len},
    row::Scratch,
    schemas::take_against,
};
use crate::{
    BODY_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGES_MAX, PAYLOAD_BYTES_MAX, SHARDS, TOPIC_BYTES_MAX,
    batch::{DecodeError, Header, Unpacker},
    encode::{KEPT_BYTES_MAX, OPAQUE, Special},
    form::Form,
    kept::{COST_BEYOND_BYTES_MAX, Kept},
    schema::Schema,
    varint,
};

mod body;
mod decoded;
mod row;
mod schemas;

/// Limits of a decoder's memory. A peer that sends more gets an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// Most topics; 2²⁰.
    pub topics_max: usize,
    /// Most bytes of state, as [`crate`] counts them; 256 MiB. A batch may go over it by its own messages.
    pub state_bytes_max: u64,
    /// Most bytes of the body of a batch before compression; [`BODY_BYTES_MAX`].
    pub body_bytes_max: usize,
}

impl Default for DecoderConfig {
    fn default() -> Self {
        Self { topics_max: 1 << 20, state_bytes_max: 256 << 20, body_bytes_max: BODY_BYTES_MAX }
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
    /// encoder must go back to [`Decoder::sequence`] with [`crate::Encoder::resume`], or begin a new epoch. A damaged batch may have named
    /// topics that the one that was sent does not: a later batch that names these is refused, with [`DecodeError::lost_shard`].
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
        out.reserve(header.messages as usize);
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
            if !out.is_within(header) {
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
        out.put(topic);
        out.put(attributes);
        let start = out.end();
        let id = varint::take(records).ok_or(DecodeError::Truncated)?;
        let scratch = &mut self.scratch;
        scratch.lens.clear();
        if id == u64::from(OPAQUE) {
            out.put(take_bytes(records, PAYLOAD_BYTES_MAX)?);
        } else {
            let schema = usize::try_from(id)
                .ok()
                .and_then(|id| self.schemas.get_mut(id - 1))
                .and_then(Option::as_mut)
                .ok_or(DecodeError::Record { what: "a schema that is not known" })?;
            if take_byte(records)? == 0 {
                out.put(take_bytes(records, KEPT_BYTES_MAX)?);
            } else {
                take_against(schema, records, &mut scratch.payload)?;
                out.put(&scratch.payload);
            }
            let payload = out.since(start);
            if payload.len() > KEPT_BYTES_MAX
                || !schema.cut.split(payload, &mut scratch.lens, &mut scratch.gaps)
                || *scratch.gaps != *schema.gaps
            {
                return Err(DecodeError::Record {
                    what: "a payload of another shape than its schema",
                });
            }
            schema.defined(payload, &scratch.lens);
            schema.topics += 1;
        }
        let payload = out.since(start);
        let schema = self.schemas.get(usize::from(id as u16).wrapping_sub(1));
        let schema = schema.and_then(Option::as_ref).filter(|_| payload.len() <= KEPT_BYTES_MAX);
        let form = match schema {
            Some(schema) => self.scratch.packing.form(schema, payload, &self.scratch.lens),
            None if payload.len() > KEPT_BYTES_MAX => Form::text(&[], &[]),
            None => Form::text(payload, &[]),
        };
        let kept = Kept::new(topic, attributes, id as u16, form);
        self.state_bytes += kept.cost();
        out.end_message(&kept);
        if let Some(kept) = self.topics[number as usize].replace(kept) {
            self.note_forgotten(&kept);
        }
        Ok(())
    }

    fn undefine(&mut self, number: u32) {
        if let Some(kept) = self.topics.get_mut(number as usize).and_then(Option::take) {
            self.note_forgotten(&kept);
        }
    }

    fn note_forgotten(&mut self, kept: &Kept) {
        self.state_bytes -= kept.cost();
        if kept.schema != OPAQUE {
            let schema = self.schemas[usize::from(kept.schema) - 1].as_mut();
            schema.expect("a schema stays while topics are cut by it").topics -= 1;
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
        out.put(kept.name());
        out.put(take_bytes(records, PAYLOAD_BYTES_MAX)?);
        out.end_message(kept);
        Ok(())
    }

    /// Entries named by a batch that broke off differ from what the encoder assumes. Of schemas that were there before, it
    /// says all again.
    fn forget_touched(&mut self) {
        while let Some(number) = self.touched.pop() {
            self.undefine(number);
        }
        while let Some(schema) = self.brought.pop() {
            self.schemas[schema] = None;
        }
    }

    /// Forgets the topics whose numbers are `shard` modulo [`SHARDS`], and no others. The encoder must go back to [`Decoder::sequence`]
    /// with [`crate::Encoder::resume`], and then do the same with [`crate::Encoder::reset_shard`]. Walks all topics of the shard.
    pub fn reset_shard(&mut self, shard: u8) {
        for index in (usize::from(shard)..self.topics.len()).step_by(SHARDS) {
            self.undefine(index as u32);
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

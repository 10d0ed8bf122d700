//! From messages to batches.
//!
//! # A body
//!
//! A body is a row of records. Each begins with `varint(zigzag(number - (last number + 1)) << 1 | special)`, where `number` is that
//! of a topic. A record that is not special is the topic's next message, changed from its last:
//!
//! ```text
//!  a payload that is cut:   mask of the schema's slots, a token for each bit that is set, in the order of fields
//!  an opaque payload:       varint bytes in common at the beginning, varint at the end, varint length of the rest, the rest
//! ```
//!
//! A special record continues with one byte, [`Special`]. A token is `varint(zigzag(difference))` of two numbers, never zero; or
//! zero, `varint(length)` and the text, where the prediction is a number and the field is not; or the latter two alone, where it is
//! not.
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

use std::collections::{HashMap, VecDeque};

pub(crate) use self::body::Special;
use self::{
    body::{Body, put_bytes},
    row::{Row, Scratch},
    schemas::Known,
};
use crate::{
    BODY_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGES_MAX, PAYLOAD_BYTES_MAX, TOPIC_BYTES_MAX,
    batch::{self, Checksum, Compression, Header, Packer},
    layout::{Cut, Layout, Numeral},
    schema::Predictor,
    topics::Topics,
    varint,
};

mod body;
mod definition;
mod row;
mod schemas;

/// Longest payload that is kept to compare the topic's next one with; longer ones travel as they are.
pub(crate) const KEPT_BYTES_MAX: usize = 4096;

/// Most schemas at a time; while topics are cut by all of them, payloads of further shapes are opaque.
pub(crate) const SCHEMAS_MAX: usize = 4096;

/// The number that stands for "in one piece" among schemas.
pub(crate) const OPAQUE: u16 = 0;

/// A message to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Topic, at most 65,535 bytes.
    pub topic: &'a [u8],
    /// Other properties of the message that seldom change from one to the next of a topic, in a form of the caller's own; at most
    /// 65,535 bytes.
    pub attributes: &'a [u8],
    /// Payload, at most [`PAYLOAD_BYTES_MAX`] bytes.
    pub payload: &'a [u8],
}

/// How an encoder works.
#[derive(Clone, Debug, PartialEq)]
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
    /// Schemas whose numbers may be used again, and some that have got topics since.
    unused: VecDeque<u16>,
    /// The schema of the topic that was defined last, or [`OPAQUE`].
    last_shape: u16,
    /// Slots that are to be changed before the next message: schema, field, how.
    changes: Vec<(u16, u8, Numeral, Predictor)>,
    /// Numbers under which the decoder may have a topic that does not count here any more; the lowest last.
    vacant: Vec<u32>,
    /// Most that those may count at the decoder.
    vacant_bytes_max: u64,
    /// Most that was counted here at the end of a batch of this epoch.
    state_bytes_peak: u64,
    body: Body,
    packer: Packer,
    messages: u32,
    message_bytes: u32,
    checksum: Checksum,
    /// The number after which the next record counts.
    last_number: u32,
    /// The topic that this batch defined last.
    last_topic: Vec<u8>,
    counts: Counts,
    scratch: Scratch,
}

/// Counts of an encoder since it was made.
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
            unused: VecDeque::new(),
            last_shape: OPAQUE,
            changes: Vec::new(),
            vacant: Vec::new(),
            vacant_bytes_max: 0,
            state_bytes_peak: 0,
            body: Body::default(),
            messages: 0,
            message_bytes: 0,
            checksum: Checksum::default(),
            last_number: u32::MAX,
            last_topic: Vec::new(),
            counts: Counts::default(),
            scratch: Scratch::default(),
        }
    }

    /// From now on holds at most that many bytes of state: the excess is forgotten with the next message.
    pub fn limit_state(&mut self, bytes_max: u64) {
        self.config.state_bytes_max = bytes_max;
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
        if !self.vacant.is_empty() {
            self.put_vacant(&message);
        }
        // Devices tend to take turns: the next message is often of the topic with the next number.
        let next = self.last_number.wrapping_add(1);
        if self.topics.is_topic(next, message.topic) {
            self.push_known(next, &message);
        } else {
            let hash = self.topics.hash(message.topic);
            match self.topics.find(hash, message.topic) {
                Some(number) => self.push_known(number, &message),
                None => self.define(hash, &message)?,
            }
        }
        self.checksum.add(message.topic);
        if !message.attributes.is_empty() {
            self.checksum.add(message.attributes);
        }
        self.checksum.add(message.payload);
        self.messages += 1;
        self.message_bytes += bytes;
        if self.topics.state_bytes() > self.config.state_bytes_max {
            self.evict_to(self.config.state_bytes_max);
        }
        Ok(())
    }

    /// Undefines what is vacant. As long as the decoder has room for all that it may hold, this fills half a batch at most, and
    /// continues in the next; after that only the new message is left room for. So it is once schemas may change under their numbers: a
    /// vacant topic at the decoder may still be cut by their old meaning.
    fn put_vacant(&mut self, message: &Message<'_>) {
        let has_room = self.schemas.len() < SCHEMAS_MAX
            && self.topics.state_bytes() + self.vacant_bytes_max <= self.config.state_bytes_max;
        let end = BODY_BYTES_MAX - record_bytes_max(message);
        let end = if has_room { end.min(self.config.body_bytes / 2) } else { end };
        while self.body_bytes() <= end
            && let Some(number) = self.vacant.pop()
        {
            if !self.topics.is_defined(number) {
                self.put_head(number, Some(Special::Undefine));
            }
        }
        if self.vacant.is_empty() {
            self.vacant_bytes_max = 0;
        }
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
            if self.topics.is_waiting(number) && !self.unused.is_empty() && self.vacant.is_empty() {
                return self.define_again(number, message, false);
            }
            return self.put_opaque(number, message.payload);
        }
        if !self.is_announced(schema) {
            return self.define_again(number, message, false);
        }
        if self.numbers(number, message.payload) {
            self.counts.rows += 1;
            return;
        }
        loop {
            match self.row(number, message.payload) {
                Row::Written => {
                    self.counts.rows += 1;
                    return;
                }
                Row::Reshaped => return self.define_again(number, message, false),
                Row::Slotless(field) => {
                    // With no room for another slot, a change there is sent as a definition.
                    if !self.add_slot(number, field, message.payload) {
                        return self.define_again(number, message, false);
                    }
                }
            }
        }
    }

    fn evict_to(&mut self, state_bytes: u64) {
        // For a message that leaves no room for more, its length is how far the decoder lets its state exceed the limit: the rest goes
        // with the next.
        while self.topics.state_bytes() > state_bytes && self.body_bytes() < BODY_BYTES_MAX - 16 {
            if !self.evict() {
                return;
            }
        }
    }

    /// Forgets a topic; returns whether there was one that this batch has not used.
    fn evict(&mut self) -> bool {
        let Some((number, schema)) = self.topics.evict(self.sequence) else { return false };
        self.release(schema);
        self.put_head(number, Some(Special::Undefine));
        self.counts.evictions += 1;
        true
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
            checksum: self.checksum.with(packed),
            is_columns: self.config.columns,
            packing,
        };
        out.reserve(batch::HEADER_BYTES_MAX + packed.len());
        header.put(out);
        out.extend_from_slice(packed);
        self.state_bytes_peak = self.state_bytes_peak.max(self.topics.state_bytes());
        self.sequence += 1;
        self.clear_batch();
        Some(header)
    }

    fn clear_batch(&mut self) {
        self.body.clear();
        self.checksum.clear();
        (self.messages, self.message_bytes) = (0, 0);
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
        // Topics that were vacant and not yet reported may be there in addition to newer ones.
        self.vacant_bytes_max += self.state_bytes_peak;
        self.topics.undefined(&mut self.vacant);
        self.sequence = sequence;
        self.forget_schemas();
        Ok(())
    }

    /// Notes that the decoder has lost the topics whose numbers are `shard` modulo [`crate::SHARDS`]: they are defined again when they
    /// come, and no others. The batch that is being filled must be empty, and no batch on its way to the decoder: call
    /// [`Encoder::resume`] before. The decoder's part is [`crate::Decoder::reset_shard`].
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

    /// Counts since the encoder was made.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// Most bytes of the records that one message brings, those aside that undefine others.
fn record_bytes_max(message: &Message<'_>) -> usize {
    let name = message.topic.len() + message.attributes.len();
    let payload = message.payload.len();
    // One that is cut may bring a schema with all its slots, and have tokens that are longer than their fields.
    if payload > KEPT_BYTES_MAX { name + payload + 64 } else { name + 2 * payload + KEPT_BYTES_MAX }
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

/// Why an encoder cannot continue from the state of a decoder.
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

//! The state of the receiving end of an uplink: the messages that came, and the state that the next batch builds on. Without
//! I/O.
//!
//! Always true: of one life of an uplink each number comes out once and in order, whatever connections come and go; a batch that
//! cannot be read costs the connection, not the messages: the sender still has them.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;
use tidegate_compress::{
    BODY_BYTES_MAX, DecodeError, Decoded, Decoder, DecoderConfig, MESSAGES_MAX, Message,
    TOPIC_STATE_BYTES_MIN,
};
use tidegate_wire::{CriticalPart, Resume, SensorBatch, UplinkOpen, UplinkReady};

use crate::{
    FABRIC,
    critical::critical_message,
    origin::{self, Origin},
    outgoing::FLIGHT_BATCHES_MAX,
};

/// Most topics that an uplink may ask for.
pub const TOPICS_MAX: u32 = 16 << 20;
/// Limits of one uplink: as much state as [`Incoming::open`] is given, and the topics that fit in it.
pub const LIMITS: DecoderConfig = DecoderConfig {
    topics_max: TOPICS_MAX as usize,
    state_bytes_max: u64::MAX,
    body_bytes_max: BODY_BYTES_MAX,
};
/// Batches that may wait, for one that they have overtaken or for the broker: more than an uplink has under way.
pub const AHEAD_MAX: usize = FLIGHT_BATCHES_MAX + 16;
/// Bytes of the batches of [`AHEAD_MAX`].
pub const AHEAD_BYTES_MAX: usize = 64 << 20;
/// Longest critical message in one piece: the longest payload, topic and attributes.
pub const CRITICAL_BYTES_MAX: usize = (16 << 20) + 2 * 65_535 + 4 + origin::BYTES;
/// Of memory for parts of critical messages, what is kept between two of them.
const PART_BYTES_KEPT: usize = 64 << 10;

/// The receiving half of an uplink.
#[derive(Debug)]
pub struct Incoming {
    limits: DecoderConfig,
    /// Most bytes of state of this life.
    state_bytes_max: u64,
    /// None before the first [`Incoming::open`].
    life: Option<u64>,
    names_messages: bool,
    /// Whether each message says by what it is known again.
    has_origins: bool,
    decoder: Decoder,
    /// Whether the decoder's state is of this life.
    is_begun: bool,
    next: Option<u64>,
    critical_next: Option<u64>,
    /// Batches by their place that came and were not asked for.
    ahead: BTreeMap<u64, (SensorBatch, Bytes)>,
    ahead_bytes: usize,
    /// The messages of one batch, the number of the first, and how many were given out.
    decoded: Decoded,
    decoded_first: u64,
    /// Of each of those, where they have any.
    origins: Vec<Option<Origin>>,
    given: usize,
    part: Vec<u8>,
    /// The number of that message.
    part_of: Option<u64>,
}

/// Messages that came for the first time.
pub struct Fresh<'a> {
    /// Number of the first.
    pub first: u64,
    decoded: &'a Decoded,
    origins: &'a [Option<Origin>],
    range: Range<usize>,
}

impl<'a> Fresh<'a> {
    /// The messages, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Message<'a>> + use<'a> {
        self.decoded.iter().skip(self.range.start).take(self.range.len())
    }

    /// By what each of them is known again; none for QoS 0, and where the sender does not say it.
    pub fn origins(&self) -> impl Iterator<Item = Option<Origin>> + use<'a> {
        let said = self.origins.get(self.range.clone()).unwrap_or_default();
        said.iter().copied().chain(std::iter::repeat(None)).take(self.range.len())
    }
}

/// How a sender broke the protocol, or what it sent was damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IncomingError {
    /// A batch is none.
    #[error("batch {sequence} of epoch {epoch} cannot be read")]
    Decode {
        /// The epoch of its state.
        epoch: u64,
        /// Its place in that epoch.
        sequence: u64,
        /// Why.
        #[source]
        source: DecodeError,
    },
    /// A batch of a member of the fabric does not say of each message by what it is known again.
    #[error("batch {sequence} of epoch {epoch} does not say where its messages come from")]
    Origins {
        /// The epoch of its state.
        epoch: u64,
        /// Its place in that epoch.
        sequence: u64,
    },
    /// Messages were left out.
    #[error("message {expected} is missing: the next one is {found}")]
    Gap {
        /// The number that follows the last message that came.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// More batches came ahead of one than may wait.
    #[error("batch {sequence} came, but {expected} is expected and {AHEAD_MAX} wait for it")]
    TooFar {
        /// The place of the batch.
        sequence: u64,
        /// The place of the one that is missing.
        expected: u64,
    },
    /// A batch came twice.
    #[error(
        "batch {sequence} of epoch {epoch} came again: batch {expected} of epoch {current} is expected"
    )]
    Replayed {
        /// Its epoch.
        epoch: u64,
        /// Its place.
        sequence: u64,
        /// The present epoch.
        current: u64,
        /// The place that is next.
        expected: u64,
    },
    /// The numbers are used up.
    #[error("there are no message numbers left after {number}")]
    Numbers {
        /// The last one.
        number: u64,
    },
    /// A critical message is none, or its parts are mixed with those of another.
    #[error("critical message {number} is not valid")]
    Critical {
        /// Its number.
        number: u64,
    },
    /// A critical message is too long.
    #[error("critical message {number} exceeds the limit of {CRITICAL_BYTES_MAX} bytes")]
    CriticalTooLong {
        /// Its number.
        number: u64,
    },
    /// The sender asks for more state than a node keeps.
    #[error(
        "{asked} {what} asked for, a node keeps at most {max} of an uplink: lower its topics_max"
    )]
    Room {
        /// Of which kind.
        what: &'static str,
        /// How much.
        asked: u64,
        /// The most that there is.
        max: u64,
    },
}

impl Incoming {
    /// The limits for one uplink.
    pub fn new(limits: DecoderConfig) -> Self {
        Self {
            limits,
            state_bytes_max: 0,
            life: None,
            names_messages: false,
            has_origins: false,
            decoder: Decoder::new(limits, 0),
            is_begun: false,
            next: None,
            critical_next: None,
            ahead: BTreeMap::new(),
            ahead_bytes: 0,
            decoded: Decoded::default(),
            decoded_first: 0,
            origins: Vec::new(),
            given: 0,
            part: Vec::new(),
            part_of: None,
        }
    }

    /// Whether that life continues from the state here.
    pub fn knows(&self, open: &UplinkOpen) -> bool {
        self.life == Some(open.life)
    }

    /// A connection begins, of a life that is [known](Incoming::knows) or may have `state_bytes_max`. Returns the answer.
    ///
    /// # Errors
    /// [`IncomingError::Room`].
    pub fn open(
        &mut self,
        open: &UplinkOpen,
        state_bytes_max: u64,
    ) -> Result<UplinkReady, IncomingError> {
        let (asked, max) = (open.topics_max, self.limits.topics_max as u64);
        if asked > max {
            return Err(IncomingError::Room { what: "topics", asked, max });
        }
        self.ahead.clear();
        self.ahead_bytes = 0;
        self.part.clear();
        self.part_of = None;
        self.has_origins = open.name == FABRIC;
        self.names_messages = open.names_messages || self.has_origins;
        if !self.knows(open) {
            self.life = Some(open.life);
            self.state_bytes_max =
                state_bytes_max.min(open.state_bytes_max).min(self.limits.state_bytes_max);
            let limits = DecoderConfig {
                topics_max: topics_max(asked, self.state_bytes_max),
                state_bytes_max: self.state_bytes_max,
                ..self.limits
            };
            self.decoder = Decoder::new(limits, 0);
            self.is_begun = false;
            self.given = self.decoded.len();
            (self.next, self.critical_next) = (None, None);
        }
        let (epoch, sequence) = (self.decoder.epoch(), self.decoder.sequence());
        Ok(UplinkReady {
            resume: self.is_begun.then_some(Resume { epoch, sequence }),
            next: self.next,
            critical_next: self.critical_next,
            state_bytes_max: self.state_bytes_max,
        })
    }

    /// Whether messages are to be published with their names.
    pub fn names_messages(&self) -> bool {
        self.names_messages
    }

    /// Topics that are known, and bytes of state.
    pub fn state(&self) -> (usize, u64) {
        (self.decoder.topics(), self.decoder.state_bytes())
    }

    /// A batch came; [`Incoming::poll`] has what can be read now.
    ///
    /// # Errors
    /// [`IncomingError::TooFar`] and [`IncomingError::Replayed`]: the connection must end.
    pub fn batch(&mut self, record: SensorBatch, body: Bytes) -> Result<(), IncomingError> {
        let expected = self.expected(record.epoch);
        let SensorBatch { epoch, sequence, .. } = record;
        let current = self.decoder.epoch();
        // No link brings a batch twice; later ones would wait forever.
        let is_old = sequence < expected || self.is_begun && epoch < current;
        if is_old || self.ahead.contains_key(&sequence) {
            return Err(IncomingError::Replayed { epoch, sequence, current, expected });
        }
        let is_full = self.ahead.len() >= AHEAD_MAX || self.ahead_bytes >= AHEAD_BYTES_MAX;
        if is_full && record.sequence != expected {
            return Err(IncomingError::TooFar { sequence: record.sequence, expected });
        }
        self.ahead_bytes += body.len();
        self.ahead.insert(record.sequence, (record, body));
        Ok(())
    }

    /// Whether as many batches wait as may, though the next of them can be read: no more should come before it was.
    pub fn is_full(&self) -> bool {
        let is_full = self.ahead.len() >= AHEAD_MAX || self.ahead_bytes >= AHEAD_BYTES_MAX;
        let next = self.ahead.first_key_value();
        is_full && next.is_some_and(|(at, (record, _))| *at == self.expected(record.epoch))
    }

    /// Whether a batch waits that can be read, and the bytes of all that wait.
    pub fn waiting(&self) -> (bool, u64) {
        let next = self.ahead.first_key_value();
        let is_next = next.is_some_and(|(at, (record, _))| *at == self.expected(record.epoch));
        (is_next || self.given < self.decoded.len(), self.ahead_bytes as u64)
    }

    /// Batches that wait to be read.
    pub fn batches(&self) -> usize {
        self.ahead.len()
    }

    /// Bytes of a critical message that has not come whole.
    pub fn part_bytes(&self) -> usize {
        self.part.len()
    }

    /// The place of the next batch, if it is of that epoch.
    fn expected(&self, epoch: u64) -> u64 {
        let goes_on = self.is_begun && epoch == self.decoder.epoch();
        if goes_on { self.decoder.sequence() } else { 0 }
    }

    /// About `about` messages that came for the first time, fewer than twice as many, all of one batch; none if the next batch has not
    /// come.
    ///
    /// # Errors
    /// [`IncomingError::Decode`] and [`IncomingError::Gap`]: the connection must end.
    pub fn poll(&mut self, about: usize) -> Result<Option<Fresh<'_>>, IncomingError> {
        while self.given == self.decoded.len() {
            if !self.decode_next()? {
                return Ok(None);
            }
        }
        let left = self.decoded.len() - self.given;
        // In pieces of one size: a short one at the end would cost as much as a long one.
        let pieces = (left / about).max(1);
        let range = self.given..self.given + left.div_ceil(pieces);
        self.given = range.end;
        let first = self.decoded_first + range.start as u64;
        let origins = if self.has_origins { &self.origins[..] } else { &[] };
        Ok(Some(Fresh { first, decoded: &self.decoded, origins, range }))
    }

    /// Reads the next batch; false if it has not come.
    fn decode_next(&mut self) -> Result<bool, IncomingError> {
        let Some(entry) = self.ahead.first_entry() else { return Ok(false) };
        let (SensorBatch { first, epoch, sequence }, _) = *entry.get();
        if sequence != self.expected(epoch) {
            return Ok(false);
        }
        let (_, (_, body)) = self.ahead.pop_first().expect("it was looked at");
        self.ahead_bytes -= body.len();
        if let Some(expected) = self.next.filter(|expected| *expected < first) {
            return Err(IncomingError::Gap { expected, found: first });
        }
        if !self.is_begun || epoch != self.decoder.epoch() {
            self.decoder.restart(epoch);
            self.is_begun = true;
        }
        let mut body = body;
        if self.has_origins {
            let batch = origin::split_all(&body, &mut self.origins);
            body = batch.ok_or(IncomingError::Origins { epoch, sequence })?;
        }
        let decoded = self.decoder.decode(&body, &mut self.decoded);
        // Of one that cannot be read, nothing is given out.
        self.given = self.decoded.len();
        decoded.map_err(|source| IncomingError::Decode { epoch, sequence, source })?;
        if self.has_origins && self.origins.len() != self.decoded.len() {
            return Err(IncomingError::Origins { epoch, sequence });
        }
        self.decoded_first = first;
        let came = self.next.map_or(0, |next| next - first);
        self.given = usize::try_from(came).unwrap_or(usize::MAX).min(self.decoded.len());
        let Some(end) = first.checked_add(self.decoded.len() as u64) else {
            self.given = self.decoded.len();
            return Err(IncomingError::Numbers { number: first });
        };
        self.next = Some(self.next.unwrap_or(first).max(end));
        Ok(true)
    }

    /// A critical message, or a part of one, came: calls `publish` with its number, itself and by what it is known again, if it is whole
    /// and new.
    ///
    /// # Errors
    /// [`IncomingError`]: the connection must end.
    pub fn critical(
        &mut self,
        part: &CriticalPart,
        publish: impl FnOnce(u64, Message<'_>, Option<Origin>),
    ) -> Result<(), IncomingError> {
        let number = part.number;
        if let Some(expected) = self.critical_next.filter(|expected| *expected < number) {
            return Err(IncomingError::Gap { expected, found: number });
        }
        let Some(next) = number.checked_add(1) else {
            return Err(IncomingError::Numbers { number });
        };
        if self.part_of.is_some_and(|of| of != number) {
            return Err(IncomingError::Critical { number });
        }
        if self.part.len() + part.bytes.len() > CRITICAL_BYTES_MAX {
            return Err(IncomingError::CriticalTooLong { number });
        }
        if part.more || !self.part.is_empty() {
            self.part.extend_from_slice(&part.bytes);
        }
        self.part_of = part.more.then_some(number);
        if part.more {
            return Ok(());
        }
        let whole = if self.part.is_empty() { &part.bytes[..] } else { &self.part[..] };
        let (whole, origin) = match self.has_origins {
            true => origin::split(whole).ok_or(IncomingError::Critical { number })?,
            false => (whole, None),
        };
        let message = critical_message(whole).ok_or(IncomingError::Critical { number })?;
        if self.critical_next.is_none_or(|next| next == number) {
            self.critical_next = Some(next);
            publish(number, message, origin);
        }
        self.part.clear();
        // Memory for a long one is not kept forever.
        self.part.shrink_to(PART_BYTES_KEPT);
        Ok(())
    }
}

/// Topics that a decoder may be sent, of those that were asked for.
///
/// Its table is as long as the highest number that it was sent, and a peer may begin with that one. An honest encoder numbers topics
/// densely, and holds those that fit in the state in addition to the topics of one batch; a table of as many takes half of the bytes
/// of that state.
fn topics_max(asked: u64, state_bytes_max: u64) -> usize {
    let held = state_bytes_max / TOPIC_STATE_BYTES_MIN + u64::from(MESSAGES_MAX);
    usize::try_from(asked.min(held)).unwrap_or(usize::MAX)
}

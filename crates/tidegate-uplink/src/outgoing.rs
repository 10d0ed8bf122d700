//! The batched part of an uplink: messages taken from a session, encoded late, held until they are acknowledged.
//! Without I/O.
//!
//! ```text
//!  take ─▶ Window ─▶ Encoder ─▶ poll_batch          connected: continues where the receiver is
//!            │  numbers ≥ next    (one batch open)  acknowledge: lets go
//!            └─ held until acknowledged
//! ```
//!
//! Always true: a message is released only when the receiver says that it was published there; a message sent again has the number that
//! it had; messages are encoded only while there is a connection with room, so that the order of waiting ones is chosen by the broker,
//! not here. A message that has expired and was never sent goes no further.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use tidegate_compress::{
    Counts, EncodeError, Encoder, EncoderConfig, Message, PAYLOAD_BYTES_MAX, TOPIC_BYTES_MAX,
};
use tidegate_message::Instant;
use tidegate_wire::{Resume, SensorBatch, Share, UplinkReady, mqtt::PacketId};

use crate::{
    origin::{self, Origin},
    window::Window,
};

/// Batches that may be under way, beyond which the next waits: the receiver holds as many while its broker takes none.
pub(crate) const FLIGHT_BATCHES_MAX: usize = 48;

/// When batches are closed and how much is under way.
#[derive(Clone, Debug)]
pub struct OutgoingConfig {
    /// Longest time that a message waits for others.
    pub batch_age: Duration,
    /// Time without a further message after which a batch waits no longer.
    pub batch_idle: Duration,
    /// Bytes of messages that are read and not acknowledged, beyond which no more are wanted.
    pub window_bytes_max: usize,
    /// Bytes of batches under way, beyond which the next waits. One may always be.
    pub flight_bytes_max: usize,
    /// The codec.
    pub encoder: EncoderConfig,
    /// Whether each message says by what it is known again, as [`Incoming`](crate::Incoming) expects it of members of the fabric.
    pub has_origins: bool,
}

/// A batch that was sent and is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Number of the message after its last.
    end: u64,
    bytes: usize,
}

/// The sending half of an uplink's batches.
#[derive(Debug)]
pub(crate) struct Outgoing {
    config: OutgoingConfig,
    encoder: Encoder,
    window: Window,
    /// Number of the first message of the open batch.
    batch_first: u64,
    /// Number of the message that is encoded next.
    next: u64,
    /// No message of that number or above was ever sent: those may still be taken out.
    never_sent: u64,
    /// To be acknowledged, since they expired before they were sent.
    expired: Vec<PacketId>,
    /// When the oldest message that is not sent was taken.
    waits_since: Option<Instant>,
    taken_at: Instant,
    flight: VecDeque<Flight>,
    flight_bytes: usize,
    /// Batches of this connection that are acknowledged, and those that are said to have come.
    finished: u64,
    came: u64,
    is_up: bool,
    /// Of a medium that it shares with cameras.
    share: Option<Allowance>,
    sent: Sent,
    /// Hard to guess.
    seed: u64,
}

/// The allowance of batches on a medium.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    bytes_per_second: f64,
    until: Instant,
    /// When the batches that went are paid for.
    paid_at: Instant,
}

/// Counts of messages sent in this life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) batches: u64,
    /// Messages, those that were sent again each time.
    pub(crate) messages: u64,
    /// Their topics, attributes and payloads.
    pub(crate) message_bytes: u64,
    /// The batches.
    pub(crate) bytes: u64,
    /// Connections on which the state could not continue.
    pub(crate) epochs: u64,
    /// Messages that expired before they were sent.
    pub(crate) expired: u64,
}

/// Why a message cannot be sent in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {bytes} bytes, an uplink carries at most {max}")]
pub struct TooLong {
    what: &'static str,
    bytes: usize,
    max: usize,
}

/// A peer acknowledged or expects messages that were never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// It acknowledged too much.
    #[error("messages below {asked} are acknowledged, but only those below {sent} were sent")]
    Acknowledged {
        /// Messages below this number.
        asked: u64,
        /// Only those below this one.
        sent: u64,
    },
    /// It received too much.
    #[error("the peer reports {asked} batches as received, but {sent} were sent")]
    Came {
        /// So many batches.
        asked: u64,
        /// Only so many.
        sent: u64,
    },
    /// It expects a message that is acknowledged or was not sent.
    #[error("message {asked} is expected, but only those from {first} to {next} can be sent")]
    Expected {
        /// The number that it expects.
        asked: u64,
        /// The first that is not acknowledged.
        first: u64,
        /// The first that was not sent.
        next: u64,
    },
}

impl Outgoing {
    /// `seed` should be hard to guess.
    pub(crate) fn new(config: OutgoingConfig, seed: u64) -> Self {
        Self {
            encoder: Encoder::new(config.encoder.clone(), 0, seed),
            config,
            window: Window::default(),
            batch_first: 0,
            next: 0,
            never_sent: 0,
            expired: Vec::new(),
            waits_since: None,
            taken_at: Instant::EPOCH,
            flight: VecDeque::new(),
            flight_bytes: 0,
            finished: 0,
            came: 0,
            is_up: false,
            share: None,
            sent: Sent::default(),
            seed,
        }
    }

    /// Whether further messages should wait where they are.
    pub(crate) fn is_full(&self) -> bool {
        self.window.bytes() >= self.config.window_bytes_max
    }

    /// Bytes of the messages that are held, with what holds them.
    pub(crate) fn held_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// Takes a message, to be acknowledged by the identifier of `origin`.
    ///
    /// # Errors
    /// [`TooLong`]; it was then not taken.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        message: Message<'_>,
        origin: Option<Origin>,
    ) -> Result<(), TooLong> {
        Self::check(&message)?;
        self.window.push(now, message, origin);
        self.waits_since.get_or_insert(now);
        self.taken_at = now;
        Ok(())
    }

    /// Whether a message's parts are within the limits of the codec.
    ///
    /// # Errors
    /// [`TooLong`].
    pub(crate) fn check(message: &Message<'_>) -> Result<(), TooLong> {
        for (what, bytes, max) in [
            ("topic", message.topic.len(), TOPIC_BYTES_MAX),
            ("properties", message.attributes.len(), TOPIC_BYTES_MAX),
            ("payload", message.payload.len(), PAYLOAD_BYTES_MAX),
        ] {
            if bytes > max {
                return Err(TooLong { what, bytes, max });
            }
        }
        Ok(())
    }

    /// A connection begins, whose receiver has that much of this life.
    ///
    /// # Errors
    /// [`ProtocolError`] if it expects what was never sent or is gone.
    pub(crate) fn connected(
        &mut self,
        now: Instant,
        ready: &UplinkReady,
        seed: u64,
    ) -> Result<(), ProtocolError> {
        let (first, next) = (self.window.first(), self.batch_first);
        let at = match ready.next {
            None => first,
            Some(at) if (first..=next).contains(&at) => at,
            Some(asked) => return Err(ProtocolError::Expected { asked, first, next }),
        };
        let state_bytes_max = self.config.encoder.state_bytes_max.min(ready.state_bytes_max);
        self.encoder.limit_state(state_bytes_max);
        let resumed = ready.resume.filter(|_| ready.next.is_some());
        let goes_on = resumed
            .is_some_and(|Resume { epoch, sequence }| self.encoder.resume(epoch, sequence).is_ok());
        if !goes_on {
            self.encoder.restart(self.encoder.epoch() + 1, seed);
            self.sent.epochs += 1;
        }
        self.seed = seed;
        self.flight.clear();
        self.flight_bytes = 0;
        (self.finished, self.came) = (0, 0);
        (self.next, self.batch_first) = (at, at);
        self.waits_since = (at < self.window.end()).then_some(now);
        self.is_up = true;
        self.share = None;
        Ok(())
    }

    /// From now on, and for as long as it says, batches use no more of the medium than that.
    pub(crate) fn share(&mut self, now: Instant, share: Share) {
        let bytes_per_second = share.bytes_per_second as f64;
        // Bytes that are not paid for yet are paid for at the new rate.
        let owed = self.share.map_or(0.0, |before| {
            before.paid_at.since(now).as_secs_f64() * before.bytes_per_second
        });
        self.share = (share.bytes_per_second > 0).then(|| Allowance {
            bytes_per_second,
            until: now + share.valid_for,
            paid_at: now + Duration::from_secs_f64(owed / bytes_per_second),
        });
    }

    /// Bytes a second that batches may use now; none without limit.
    pub(crate) fn allowed(&self, now: Instant) -> Option<u64> {
        let share = self.share.filter(|share| now < share.until)?;
        Some(share.bytes_per_second as u64)
    }

    /// When the next batch may go by the share.
    fn allowed_at(&self) -> Option<Instant> {
        self.share.map(|share| share.paid_at.min(share.until))
    }

    /// The connection is gone. Messages under way wait for the next.
    pub(crate) fn disconnected(&mut self) {
        self.is_up = false;
    }

    /// The connection is given up for want of messages, and the receiver forgets the state: lets go of it here, too.
    pub(crate) fn rest(&mut self) {
        self.disconnected();
        self.window.forget_spare();
        self.encoder.restart(self.encoder.epoch() + 1, self.seed);
        self.flight = VecDeque::new();
    }

    /// So many batches of this connection have come where they were sent to. Gives the bytes of those that are new.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub(crate) fn arrived(&mut self, batches: u64) -> Result<usize, ProtocolError> {
        let sent = self.finished + self.flight.len() as u64;
        if batches > sent {
            return Err(ProtocolError::Came { asked: batches, sent });
        }
        let place = |at: u64| (at.max(self.finished) - self.finished) as usize;
        let news = place(self.came)..place(batches.max(self.came));
        self.came = self.came.max(batches);
        Ok(self.flight.range(news).map(|flight| flight.bytes).sum())
    }

    /// Whether batches wait for the link: some have not come, or could be sent.
    pub(crate) fn waits_for_link(&self, now: Instant) -> bool {
        let sent = self.finished + self.flight.len() as u64;
        let may_go = self.has_room() && self.allowed_at().is_none_or(|at| at <= now);
        self.came < sent || may_go && self.batch_first < self.window.end()
    }

    /// The receiver has published all messages below `next`: calls `acknowledge` for those that are owed it.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub(crate) fn acknowledge(
        &mut self,
        next: u64,
        acknowledge: impl FnMut(PacketId),
    ) -> Result<(), ProtocolError> {
        if next > self.batch_first {
            return Err(ProtocolError::Acknowledged { asked: next, sent: self.batch_first });
        }
        self.window.release(next, acknowledge);
        while let Some(flight) = self.flight.front().filter(|flight| flight.end <= next) {
            self.flight_bytes -= flight.bytes;
            self.flight.pop_front();
            self.finished += 1;
        }
        Ok(())
    }

    /// The next batch, if one is due and there is room on the way.
    pub(crate) fn poll_batch(&mut self, now: Instant) -> Option<(SensorBatch, Bytes)> {
        // Bytes sent without a limit owe nothing to the next.
        self.share = self.share.filter(|share| now < share.until);
        if !self.has_room() || self.allowed_at().is_some_and(|at| now < at) {
            return None;
        }
        let is_full = self.fill(now);
        let is_due = is_full || self.due_at().is_some_and(|due| due <= now);
        if !is_due || self.encoder.messages() == 0 {
            return None;
        }
        let mut bytes = Vec::new();
        let header = self.encoder.finish(&mut bytes)?;
        let first = std::mem::replace(&mut self.batch_first, self.next);
        if self.config.has_origins {
            let numbers = first..self.next;
            origin::put_all(numbers.map(|number| self.window.origin(number)), &mut bytes);
        }
        self.never_sent = self.never_sent.max(self.next);
        // Messages that stay behind came after those that went, and have waited less than that.
        self.waits_since = (self.next < self.window.end()).then_some(now);
        self.flight.push_back(Flight { end: self.next, bytes: bytes.len() });
        self.flight_bytes += bytes.len();
        if let Some(share) = &mut self.share {
            let takes = Duration::from_secs_f64(bytes.len() as f64 / share.bytes_per_second);
            share.paid_at = share.paid_at.max(now) + takes;
        }
        self.sent.batches += 1;
        self.sent.messages += u64::from(header.messages);
        self.sent.message_bytes += u64::from(header.message_bytes);
        self.sent.bytes += bytes.len() as u64;
        let record = SensorBatch { first, epoch: header.epoch, sequence: header.sequence };
        Some((record, bytes.into()))
    }

    fn has_room(&self) -> bool {
        let is_short = self.flight_bytes < self.config.flight_bytes_max;
        self.is_up && (self.flight.is_empty() || is_short && self.flight.len() < FLIGHT_BATCHES_MAX)
    }

    /// Number of the first message that is not acknowledged.
    pub(crate) fn first(&self) -> u64 {
        self.window.first()
    }

    /// Number of the next message that is taken, as long as none before it expires.
    pub(crate) fn end(&self) -> u64 {
        self.window.end()
    }

    /// The message of that number, as long as it is not acknowledged.
    #[cfg(test)]
    pub(crate) fn get(&self, number: u64) -> Option<Message<'_>> {
        self.window.get(number)
    }

    /// Calls `acknowledge` for messages that are owed it since they expired before they were ever sent.
    pub(crate) fn expired(&mut self, acknowledge: impl FnMut(PacketId)) {
        self.expired.drain(..).for_each(acknowledge);
    }

    /// Encodes what there is, up to one batch; whether that is full.
    fn fill(&mut self, now: Instant) -> bool {
        while !self.encoder.is_due() {
            // A message that the receiver may have heard of keeps its number, and says that it has no time left.
            if !self.window.age(self.next, now) && self.next >= self.never_sent {
                let count = self.window.remove_expired(self.next, now, &mut self.expired);
                self.sent.expired += count as u64;
                self.window.age(self.next, now);
            }
            let Some(message) = self.window.get(self.next) else {
                if self.encoder.messages() == 0 {
                    self.waits_since = None;
                }
                return false;
            };
            match self.encoder.push(message) {
                Ok(()) => self.next += 1,
                Err(EncodeError::Full) => return true,
                Err(error) => unreachable!("its parts were measured when it was taken: {error}"),
            }
        }
        true
    }

    fn due_at(&self) -> Option<Instant> {
        let oldest = self.waits_since? + self.config.batch_age;
        Some(oldest.min(self.taken_at + self.config.batch_idle))
    }

    /// When to ask for a batch again, if nothing else happens.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = self.due_at().filter(|_| self.has_room())?;
        Some(self.allowed_at().map_or(due, |at| due.max(at)))
    }

    /// Counts of messages sent in this life.
    pub(crate) fn sent(&self) -> Sent {
        self.sent
    }

    /// The counts of the codec.
    pub(crate) fn codec(&self) -> Counts {
        self.encoder.counts()
    }
}

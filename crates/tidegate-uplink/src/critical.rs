//! The urgent part of an uplink: critical messages, each by itself, before all batches, within a cap. Without I/O.
//!
//! A token bucket bounds how much of them is sent a second. While batches wait for the link as well, they keep a tenth of it: for each
//! byte of a batch that has come, nine of critical messages may go ([`CREDIT_BYTES`] ahead). Batches that wait for the other node's
//! broker hold nothing back.
//!
//! Always true: messages keep their order; each is let go only when the receiver says that it was published there.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidegate_compress::Message;
use tidegate_message::Instant;
use tidegate_wire::{CriticalPart, limits::CRITICAL_PART_BYTES_MAX, mqtt::PacketId};

use crate::{
    origin::{self, Origin},
    outgoing::ProtocolError,
    window::Window,
};

/// How far critical messages may get ahead of their nine tenths while batches wait.
const CREDIT_BYTES: i64 = 256 << 10;
/// Bytes of critical messages that are read and not acknowledged, beyond which no more are wanted.
const WINDOW_BYTES_MAX: usize = 1 << 20;
/// Bytes of them under way, beyond which the next waits. One may always be.
const FLIGHT_BYTES_MAX: u64 = 256 << 10;

/// The sending half of an uplink's critical messages.
#[derive(Debug)]
pub struct Critical {
    window: Window,
    /// Number of the message that is sent next.
    next: u64,
    /// No message of that number or above was ever sent: those may still be taken out.
    never_sent: u64,
    /// To be acknowledged, since they expired before they were sent.
    expired: Vec<PacketId>,
    expired_messages: u64,
    /// Its parts that have not gone.
    rest: Bytes,
    /// Bytes sent and acknowledged, of all messages so far.
    sent_bytes: u64,
    acknowledged_bytes: u64,
    cap: Bucket,
    /// The allowance while batches wait.
    credit: i64,
    is_up: bool,
    /// Whether each message says by what it is known again.
    has_origins: bool,
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    bytes_per_second: u64,
    /// May be below zero after a long message: later ones wait the longer.
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A second's worth may go at once.
    fn refill(&mut self, now: Instant) {
        let rate = self.bytes_per_second as f64;
        let since = now.since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * rate).min(rate);
        self.at = self.at.max(now);
    }

    /// When there is something in it.
    fn ready_at(&self) -> Instant {
        if self.tokens > 0.0 {
            return self.at;
        }
        // A byte more, for what rounding takes.
        let wait = (1.0 - self.tokens) / self.bytes_per_second as f64;
        self.at + Duration::from_secs_f64(wait)
    }
}

impl Critical {
    /// At most `bytes_per_second` are sent, at least 1. `has_origins` as [`Incoming`](crate::Incoming) expects them.
    pub fn new(now: Instant, bytes_per_second: u64, has_origins: bool) -> Self {
        Self {
            window: Window::default(),
            next: 0,
            never_sent: 0,
            expired: Vec::new(),
            expired_messages: 0,
            rest: Bytes::new(),
            sent_bytes: 0,
            acknowledged_bytes: 0,
            cap: Bucket { bytes_per_second, tokens: bytes_per_second as f64, at: now },
            credit: CREDIT_BYTES,
            is_up: false,
            has_origins,
        }
    }

    /// Whether further messages should wait where they are.
    pub fn is_full(&self) -> bool {
        self.window.bytes() >= WINDOW_BYTES_MAX
    }

    /// Bytes of the messages that are held, with what holds them.
    pub fn held_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// Messages that were sent, those that were sent again once.
    pub fn sent(&self) -> u64 {
        self.next
    }

    /// Messages that expired before they were sent.
    pub fn expired_messages(&self) -> u64 {
        self.expired_messages
    }

    /// Takes a message whose parts are within the limits of the codec.
    pub fn take(&mut self, now: Instant, message: Message<'_>, origin: Option<Origin>) {
        self.window.push(now, message, origin);
    }

    /// Number of the first message that is not acknowledged.
    pub fn first(&self) -> u64 {
        self.window.first()
    }

    /// Number of the next message that is taken, as long as none before it expires.
    pub fn end(&self) -> u64 {
        self.window.end()
    }

    /// Calls `acknowledge` for messages that are owed it since they expired before they were ever sent.
    pub fn expired(&mut self, acknowledge: impl FnMut(PacketId)) {
        self.expired.drain(..).for_each(acknowledge);
    }

    /// A connection begins, whose receiver expects that message; none if it has heard of none.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub fn connected(&mut self, next: Option<u64>) -> Result<(), ProtocolError> {
        let first = self.window.first();
        let at = match next {
            None => first,
            Some(at) if (first..=self.next).contains(&at) => at,
            Some(asked) => return Err(ProtocolError::Expected { asked, first, next: self.next }),
        };
        (self.next, self.rest) = (at, Bytes::new());
        self.sent_bytes = self.acknowledged_bytes;
        self.credit = CREDIT_BYTES;
        self.is_up = true;
        Ok(())
    }

    /// The connection is gone. Messages under way wait for the next.
    pub fn disconnected(&mut self) {
        self.is_up = false;
    }

    /// The receiver has published all below `next`.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub fn acknowledge(
        &mut self,
        next: u64,
        acknowledge: impl FnMut(PacketId),
    ) -> Result<(), ProtocolError> {
        if next > self.next {
            return Err(ProtocolError::Acknowledged { asked: next, sent: self.next });
        }
        for number in self.window.first()..next {
            let bytes = self.window.get(number).map_or(0, |message| self.wire_bytes(&message));
            self.acknowledged_bytes += bytes as u64;
        }
        self.sent_bytes = self.sent_bytes.max(self.acknowledged_bytes);
        self.window.release(next, acknowledge);
        Ok(())
    }

    /// Batches of so many bytes have come; whether more wait for the link.
    pub fn batches(&mut self, arrived_bytes: usize, wait: bool) {
        let earned = i64::try_from(arrived_bytes).unwrap_or(i64::MAX).saturating_mul(9);
        self.credit = match wait {
            true => self.credit.saturating_add(earned).min(CREDIT_BYTES),
            false => CREDIT_BYTES,
        };
    }

    /// The next message or part of one, if it may go now.
    pub fn poll_part(&mut self, now: Instant) -> Option<CriticalPart> {
        if !self.is_up {
            return None;
        }
        if self.rest.is_empty() {
            self.cap.refill(now);
            if !self.may_begin() || self.cap.tokens <= 0.0 {
                return None;
            }
            // A message that the receiver may have heard of keeps its number, and says that it has no time left.
            if !self.window.age(self.next, now) && self.next >= self.never_sent {
                let count = self.window.remove_expired(self.next, now, &mut self.expired);
                self.expired_messages += count as u64;
                self.window.age(self.next, now);
            }
            let message = self.window.get(self.next)?;
            self.never_sent = self.never_sent.max(self.next + 1);
            self.rest = put(&message, self.has_origins.then(|| self.window.origin(self.next)));
            let bytes = self.rest.len();
            self.sent_bytes += bytes as u64;
            self.cap.tokens -= bytes as f64;
            self.credit -= bytes as i64;
        }
        let bytes = self.rest.split_to(self.rest.len().min(CRITICAL_PART_BYTES_MAX));
        let (number, more) = (self.next, !self.rest.is_empty());
        if !more {
            self.next += 1;
        }
        Some(CriticalPart { number, more, bytes })
    }

    fn wire_bytes(&self, message: &Message<'_>) -> usize {
        wire_bytes(message) + if self.has_origins { origin::BYTES } else { 0 }
    }

    /// The link is given up for want of messages: lets go of memory that is kept for those to come.
    pub fn rest(&mut self) {
        self.disconnected();
        self.window.forget_spare();
    }

    /// Whether another message may go, as far as the link and the other node are concerned.
    fn may_begin(&self) -> bool {
        self.credit > 0 && self.sent_bytes - self.acknowledged_bytes < FLIGHT_BYTES_MAX
    }

    /// When to ask for a message again, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.is_up && self.may_begin() && self.next < self.window.end();
        waits.then(|| self.cap.ready_at())
    }
}

fn wire_bytes(message: &Message<'_>) -> usize {
    4 + message.topic.len() + message.attributes.len() + message.payload.len()
}

/// A message in one piece: u16 length of topic, u16 of attributes, little endian; topic, attributes, payload; by what it is known again,
/// where that is said.
fn put(message: &Message<'_>, origin: Option<Option<Origin>>) -> Bytes {
    let mut out = BytesMut::with_capacity(wire_bytes(message) + origin::BYTES);
    for length in [message.topic.len(), message.attributes.len()] {
        let length = u16::try_from(length).expect("a window holds no longer ones");
        out.extend_from_slice(&length.to_le_bytes());
    }
    for part in [message.topic, message.attributes, message.payload] {
        out.extend_from_slice(part);
    }
    if let Some(origin) = origin {
        out.extend_from_slice(&origin::put(origin));
    }
    out.freeze()
}

/// The critical message that all of its parts together are: topic, attributes, payload; none if they are none.
pub fn critical_message(whole: &[u8]) -> Option<Message<'_>> {
    let (topic_len, rest) = whole.split_first_chunk()?;
    let (attributes_len, rest) = rest.split_first_chunk()?;
    let (topic, rest) = rest.split_at_checked(u16::from_le_bytes(*topic_len).into())?;
    let (attributes, payload) =
        rest.split_at_checked(u16::from_le_bytes(*attributes_len).into())?;
    Some(Message { topic, attributes, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn critical(bytes_per_second: u64) -> Critical {
        let mut critical = Critical::new(Instant::EPOCH, bytes_per_second, false);
        critical.connected(None).expect("it expects nothing");
        critical
    }

    fn origin(id: u8) -> Option<Origin> {
        PacketId::new(id.into()).map(|id| Origin { received: Instant::EPOCH, id })
    }

    fn message(payload: &[u8]) -> Message<'_> {
        Message { topic: b"alarm", attributes: b"\x01", payload }
    }

    #[test]
    fn long_messages_travel_in_parts_and_come_out_whole() {
        let mut critical = critical(1 << 30);
        let payload: Vec<u8> = (0..40_000_u32).map(|at| at as u8).collect();
        critical.take(Instant::EPOCH, message(&payload), None);
        critical.take(Instant::EPOCH, message(b"short"), None);
        let mut whole = Vec::new();
        loop {
            let part = critical.poll_part(Instant::EPOCH).expect("it goes");
            assert_eq!(part.number, 0);
            whole.extend_from_slice(&part.bytes);
            if !part.more {
                break;
            }
            assert_eq!(part.bytes.len(), CRITICAL_PART_BYTES_MAX);
        }
        assert_eq!(critical_message(&whole), Some(message(&payload)));
        let last = critical.poll_part(Instant::EPOCH).expect("it goes");
        assert_eq!((last.number, last.more), (1, false));
        assert_eq!(critical.poll_part(Instant::EPOCH), None);
        for cut in 0..10 {
            assert_eq!(critical_message(&whole[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn a_second_takes_no_more_than_the_cap() {
        let mut critical = critical(10_000);
        let mut sent = 0;
        for millis in 0..10_000 {
            let now = Instant::EPOCH + Duration::from_millis(millis);
            while !critical.is_full() {
                critical.take(Instant::EPOCH, message(&[7; 90]), None);
            }
            while let Some(part) = critical.poll_part(now) {
                sent += part.bytes.len();
                critical.acknowledge(part.number + 1, |_| ()).expect("it was sent");
            }
            let due = critical.poll_timeout().expect("more wait");
            assert!(due > now, "it says when to ask again");
        }
        // A second's worth at once, and one each second.
        assert!((109_000..=110_200).contains(&sent), "{sent}");
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_is_waited_for_and_not_asked_again() {
        let mut critical = critical(1 << 30);
        while !critical.is_full() {
            critical.take(Instant::EPOCH, message(&[7; 990]), None);
        }
        let (mut bytes, mut last) = (0, 0);
        while let Some(part) = critical.poll_part(Instant::EPOCH) {
            bytes += part.bytes.len();
            last = part.number;
        }
        assert!((FLIGHT_BYTES_MAX as usize..FLIGHT_BYTES_MAX as usize + 1000).contains(&bytes));
        assert_eq!(critical.poll_timeout(), None, "time changes nothing");
        critical.acknowledge(last, |_| ()).expect("they were sent");
        critical.batches(0, false);
        assert!(critical.poll_timeout().is_some());
    }

    #[test]
    fn batches_that_wait_keep_a_tenth() {
        let mut critical = critical(1 << 30);
        let (mut sent, mut arrived) = (0_usize, 0_usize);
        for _ in 0..1_000 {
            while !critical.is_full() {
                critical.take(Instant::EPOCH, message(&[7; 990]), None);
            }
            while let Some(part) = critical.poll_part(Instant::EPOCH) {
                sent += part.bytes.len();
                critical.acknowledge(part.number + 1, |_| ()).expect("it was sent");
            }
            critical.batches(10_000, true);
            arrived += 10_000;
        }
        let share = arrived as f64 / (sent + arrived) as f64;
        assert!((0.09..0.11).contains(&share), "{share}");
        // Without batches nothing is held back.
        critical.batches(0, false);
        assert!(critical.poll_part(Instant::EPOCH).is_some());
    }

    #[test]
    fn messages_that_expire_before_they_are_sent_go_no_further() {
        let mut critical = critical(1 << 30);
        let at = |seconds| Instant::EPOCH + Duration::from_secs(seconds);
        // QoS 1; two expire in 10 seconds.
        let expires = [0b1001_u8, 10, 0, 0, 0];
        for (number, attributes) in [(1_u8, &expires[..]), (2, &expires[..]), (3, &b"\x01"[..])] {
            let message = Message { topic: b"alarm", attributes, payload: &[number] };
            critical.take(at(0), message, origin(number));
        }
        let part = critical.poll_part(at(4)).expect("it goes");
        let whole = critical_message(&part.bytes).expect("a message");
        assert_eq!((whole.payload, whole.attributes), (&[1][..], &[0b1001, 6, 0, 0, 0][..]));
        critical.disconnected();
        critical.connected(None).expect("it expects nothing");
        let mut sent = Vec::new();
        while let Some(part) = critical.poll_part(at(3600)) {
            let whole = critical_message(&part.bytes).expect("a message");
            sent.push((part.number, whole.payload[0], whole.attributes.to_vec()));
        }
        // The first may have come; it keeps its number and has no time left. The second never left.
        assert_eq!(sent, [(0_u64, 1_u8, vec![0b1001_u8, 0, 0, 0, 0]), (1, 3, vec![1])]);
        let mut owed = Vec::new();
        critical.expired(|id| owed.push(id.get()));
        assert_eq!(owed, [2]);
        critical.acknowledge(2, |id| owed.push(id.get())).expect("they were sent");
        assert_eq!((owed, critical.held_bytes()), (vec![2, 1, 3], 0));
    }

    #[test]
    fn unacknowledged_messages_are_sent_again() {
        let mut critical = critical(1 << 30);
        for number in 0..10_u8 {
            critical.take(Instant::EPOCH, message(&[number]), origin(number + 1));
        }
        while critical.poll_part(Instant::EPOCH).is_some() {}
        let mut owed = Vec::new();
        critical.acknowledge(4, |id| owed.push(id.get())).expect("they were sent");
        assert_eq!(owed, [1, 2, 3, 4]);
        critical.disconnected();
        assert_eq!(critical.poll_part(Instant::EPOCH), None);
        critical.connected(Some(7)).expect("it has some that it did not acknowledge");
        assert_eq!(critical.poll_part(Instant::EPOCH).map(|part| part.number), Some(7));
        let error = critical.acknowledge(11, |_| ()).expect_err("it was not sent");
        assert_eq!(error, ProtocolError::Acknowledged { asked: 11, sent: 8 });
        critical.disconnected();
        let error = critical.connected(Some(2)).expect_err("it is gone");
        assert_eq!(error, ProtocolError::Expected { asked: 2, first: 4, next: 8 });
    }
}

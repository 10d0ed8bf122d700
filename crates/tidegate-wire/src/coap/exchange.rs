//! Which requests have been seen, so that a copy is answered again and not handed on again (RFC 7252 sections 4.2, 4.3 and 4.5).
//!
//! ```text
//!  begin ─▶ New ─▶ Pending ──┬─▶ Acknowledged ─────────┐
//!             copies: Again  └─▶ Done, Silent, forgotten ◀── lifetime
//! ```
//!
//! Little is kept of a request: the reply to a copy is made again from its result and from the copy's own token.
//!
//! Where the table is full, the oldest confirmable requests are forgotten if their senders have sent them for the last time (after
//! MAX_TRANSMIT_SPAN), and any non-confirmable one. If there are none, a confirmable request is refused before anything is done, and a
//! non-confirmable one is taken without being remembered: its copies are rare, and losing it would be worse than having it twice.
//!
//! A message with an identifier that was used for other bytes is a new message: identifiers of a fast sender come round before
//! their lifetime ends, and copies are equal to the last byte.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hasher as _},
};

use tidegate_message::Instant;

use super::{Block, Code, Transmission, slab::Key};

/// A peer and an identifier of its messages.
pub(super) type ExchangeKey = (Key, u16);

#[derive(Debug)]
pub(super) struct Exchanges {
    known: HashMap<ExchangeKey, Exchange>,
    /// When they began, in order.
    confirmable: VecDeque<(Instant, ExchangeKey)>,
    others: VecDeque<(Instant, ExchangeKey)>,
    exchanges_max: usize,
    transmission: Transmission,
}

#[derive(Debug)]
struct Exchange {
    begun: Instant,
    fingerprint: u32,
    state: State,
}

/// How to treat a copy.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// Nothing: the first one is not answered yet.
    Pending,
    /// Nothing: it asks for no acknowledgement.
    Silent,
    /// Acknowledge it: its response travels by itself.
    Acknowledged,
    /// Say the same again.
    Done(Outcome),
}

/// A response that can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) code: Code,
    pub(super) block1: Option<Block>,
    pub(super) size1: Option<u32>,
    pub(super) max_age: Option<u32>,
    pub(super) diagnostic: &'static str,
}

impl Outcome {
    pub(super) fn new(code: Code, diagnostic: &'static str) -> Self {
        Self { code, block1: None, size1: None, max_age: None, diagnostic }
    }
}

/// The relation of a message to those before it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Begin {
    /// The first of its kind.
    New,
    /// The first of its kind, and there is no room to remember it.
    Unremembered,
    /// A copy.
    Again(State),
    /// There is no room to know it by.
    Full,
}

impl Exchanges {
    pub(super) fn new(exchanges_max: usize, transmission: Transmission) -> Self {
        Self {
            known: HashMap::new(),
            confirmable: VecDeque::new(),
            others: VecDeque::new(),
            exchanges_max,
            transmission,
        }
    }

    /// How many are remembered, and how much room they take.
    pub(super) fn len(&self) -> usize {
        self.confirmable.len() + self.others.len()
    }

    pub(super) fn begin(
        &mut self,
        now: Instant,
        key: ExchangeKey,
        fingerprint: u32,
        is_confirmable: bool,
    ) -> Begin {
        self.expire(now);
        if let Some(known) = self.known.get(&key)
            && known.fingerprint == fingerprint
        {
            return Begin::Again(known.state);
        }
        if self.len() >= self.exchanges_max && !self.make_room(now) {
            return if is_confirmable { Begin::Full } else { Begin::Unremembered };
        }
        self.known.insert(key, Exchange { begun: now, fingerprint, state: State::Pending });
        let order = if is_confirmable { &mut self.confirmable } else { &mut self.others };
        order.push_back((now, key));
        Begin::New
    }

    /// Sets how copies are treated from now on; no effect if it is forgotten, or its identifier is another's by now.
    pub(super) fn set(&mut self, key: ExchangeKey, fingerprint: u32, state: State) {
        if let Some(known) = self.known.get_mut(&key).filter(|it| it.fingerprint == fingerprint) {
            known.state = state;
        }
    }

    /// A copy is a request of its own from now on.
    pub(super) fn forget(&mut self, key: ExchangeKey, fingerprint: u32) {
        if self.known.get(&key).is_some_and(|known| known.fingerprint == fingerprint) {
            self.known.remove(&key);
        }
    }

    fn expire(&mut self, now: Instant) {
        for (order, lifetime) in [
            (&mut self.confirmable, self.transmission.exchange_lifetime()),
            (&mut self.others, self.transmission.non_lifetime()),
        ] {
            while let Some(&(begun, key)) = order.front()
                && now.since(begun) >= lifetime
            {
                order.pop_front();
                drop_begun(&mut self.known, key, begun);
            }
        }
    }

    fn make_room(&mut self, now: Instant) -> bool {
        let span = self.transmission.transmit_span();
        let front = match self.confirmable.front() {
            Some((begun, _)) if now.since(*begun) >= span => self.confirmable.pop_front(),
            _ => self.others.pop_front(),
        };
        if let Some((begun, key)) = front {
            drop_begun(&mut self.known, key, begun);
        }
        front.is_some()
    }
}

fn drop_begun(known: &mut HashMap<ExchangeKey, Exchange>, key: ExchangeKey, begun: Instant) {
    // Its identifier may be another's by now.
    if known.get(&key).is_some_and(|found| found.begun == begun) {
        known.remove(&key);
    }
}

/// Tells messages apart that have one identifier.
pub(super) fn fingerprint(datagram: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write(datagram);
    hasher.finish() as u32
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(id: u16) -> ExchangeKey {
        (Key::from_bits(7), id)
    }

    fn at(seconds: i64) -> Instant {
        Instant::from_millis(1000 * seconds)
    }

    #[test]
    fn copies_are_known_for_their_lifetime() {
        for (is_confirmable, seconds) in [(true, 247), (false, 145)] {
            let mut exchanges = Exchanges::new(10, Transmission::default());
            assert!(matches!(exchanges.begin(at(0), key(1), 5, is_confirmable), Begin::New));
            exchanges.set(key(1), 5, State::Silent);
            let last = at(seconds) - Duration::from_nanos(1);
            let again = exchanges.begin(last, key(1), 5, is_confirmable);
            assert!(matches!(again, Begin::Again(State::Silent)), "{again:?}");
            assert!(matches!(exchanges.begin(at(seconds), key(1), 5, is_confirmable), Begin::New));
            assert_eq!(exchanges.len(), 1);
        }
    }

    #[test]
    fn other_bytes_under_a_used_identifier_are_a_new_message() {
        let mut exchanges = Exchanges::new(10, Transmission::default());
        exchanges.begin(at(0), key(1), 5, true);
        assert!(matches!(exchanges.begin(at(1), key(1), 6, true), Begin::New));
        exchanges.set(key(1), 5, State::Silent); // too late
        assert!(matches!(exchanges.begin(at(2), key(1), 6, true), Begin::Again(State::Pending)));
        // The end of the first one's lifetime is not that of the second.
        assert!(matches!(exchanges.begin(at(247), key(1), 6, true), Begin::Again(_)));
        assert!(matches!(exchanges.begin(at(248), key(1), 6, true), Begin::New));
    }

    #[test]
    fn a_full_table_forgets_what_is_sent_no_more() {
        let mut exchanges = Exchanges::new(3, Transmission::default());
        exchanges.begin(at(0), key(1), 0, true);
        exchanges.begin(at(1), key(2), 0, false);
        exchanges.begin(at(2), key(3), 0, true);
        // The non-confirmable one goes first while senders may still send the others.
        assert!(matches!(exchanges.begin(at(3), key(4), 0, true), Begin::New));
        assert!(matches!(exchanges.begin(at(3), key(5), 0, true), Begin::Full));
        assert!(matches!(exchanges.begin(at(3), key(6), 0, false), Begin::Unremembered));
        assert!(matches!(exchanges.begin(at(44), key(1), 0, true), Begin::Again(_)));
        assert!(matches!(exchanges.begin(at(45), key(5), 0, true), Begin::New));
        assert!(matches!(exchanges.begin(at(46), key(1), 0, true), Begin::Full));
        assert_eq!(exchanges.len(), 3);
    }
}

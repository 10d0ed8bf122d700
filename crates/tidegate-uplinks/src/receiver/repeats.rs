//! Messages of another member of the fabric that were published here of late, so that one that comes again is not published twice.
//!
//! While an uplink goes on, numbers see to that. They start over with each process of its node, and when the state here is given up; the
//! messages that come then may have been published before, and are known again by their [`Origin`].
//!
//! Always true: only messages that this node's broker has taken are passed over; at most [`RECENT_MAX`] are kept, which is more than a
//! member has under way. They are lost with this process: a message that comes again then is published twice, with one name.

use std::collections::{HashSet, VecDeque};

use tidegate_uplink::Origin;

/// Messages that are kept, about 16 bytes each. A member has 4 MiB under way, and holds some 130 bytes for the shortest.
const RECENT_MAX: usize = 32 << 10;

/// The messages of one session of another member.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// Handed to the broker, in order, of QoS 0 as well.
    under_way: VecDeque<Option<Origin>>,
    /// How many the broker has answered.
    answered: u64,
    /// Taken by the broker.
    recent: VecDeque<Origin>,
    /// Those that were when numbers started over, while messages may come again.
    known: HashSet<Origin>,
    /// For how many more messages.
    looks_left: usize,
    /// Of those under way, how many were handed over before numbers started over.
    before: usize,
}

impl Repeats {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.recent.is_empty()
    }

    /// Numbers start over, on a new connection to the broker or on the same.
    pub(super) fn begin(&mut self) {
        self.known = self.recent.iter().copied().collect();
        self.before = self.under_way.len();
        // A session sends what was under way before all that came later.
        self.looks_left = 2 * RECENT_MAX;
    }

    /// Whether that message was published before.
    pub(super) fn has(&mut self, origin: Origin) -> bool {
        if self.known.is_empty() {
            return false;
        }
        let has = self.known.contains(&origin);
        self.looks_left -= 1;
        if self.looks_left == 0 {
            self.known = HashSet::new();
        }
        has
    }

    /// A message is handed to the broker.
    pub(super) fn hand_over(&mut self, origin: Option<Origin>) {
        self.under_way.push_back(origin);
    }

    /// The broker has answered so many messages in all that were handed to it over this connection.
    pub(super) fn acknowledged(&mut self, count: u64) {
        let new = usize::try_from(count.saturating_sub(self.answered)).unwrap_or(usize::MAX);
        for taken in self.under_way.drain(..new.min(self.under_way.len())) {
            if self.before > 0 {
                self.before -= 1;
                self.known.extend(taken);
            }
            self.recent.extend(taken);
        }
        self.recent.drain(..self.recent.len().saturating_sub(RECENT_MAX));
        self.answered = count;
    }

    /// The same behind a connection to the broker that is gone: what was under way may not have been taken.
    pub(super) fn disconnected(self) -> Self {
        Self { under_way: VecDeque::new(), answered: 0, before: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::Instant;
    use tidegate_wire::mqtt::PacketId;

    use super::*;

    fn origin(nanos: i64) -> Origin {
        Origin { received: Instant::from_nanos(nanos), id: PacketId::MIN }
    }

    #[test]
    fn a_message_is_known_again_once_the_broker_has_taken_it_and_numbers_started_over() {
        let mut repeats = Repeats::default();
        for one in [Some(origin(1)), None, Some(origin(2)), Some(origin(3))] {
            repeats.hand_over(one);
        }
        repeats.acknowledged(3);
        assert!(!repeats.has(origin(1)), "a number tells it while the uplink goes on");
        repeats.begin();
        assert!(repeats.has(origin(1)) && repeats.has(origin(2)));
        assert!(!repeats.has(origin(3)), "it may not have been taken");
        repeats.acknowledged(4);
        assert!(repeats.has(origin(3)));
        // One that was never taken comes over another connection, and is published.
        repeats.hand_over(Some(origin(4)));
        let mut repeats = repeats.disconnected();
        repeats.begin();
        assert!(!repeats.has(origin(4)) && repeats.has(origin(3)));
        repeats.hand_over(Some(origin(4)));
        repeats.acknowledged(1);
        repeats.begin();
        assert!(repeats.has(origin(4)));
    }

    #[test]
    fn memory_is_bounded_and_given_back() {
        let mut repeats = Repeats::default();
        for number in 0..3 * RECENT_MAX {
            repeats.hand_over(Some(origin(number as i64)));
            repeats.acknowledged(number as u64 + 1);
        }
        assert_eq!(repeats.recent.len(), RECENT_MAX);
        repeats.begin();
        assert!(!repeats.has(origin(0)) && repeats.has(origin(3 * RECENT_MAX as i64 - 1)));
        for _ in 0..2 * RECENT_MAX {
            repeats.has(origin(-1));
        }
        assert!(repeats.known.is_empty());
    }
}

//! The publishers that wait for subscribers' queues, under [`Overflow::BlockPublisher`](crate::Overflow).
//!
//! A waiting publisher is not read from, so that it acknowledges nothing, and its own queue need not move. A circle of those
//! would wait forever.
//!
//! Always true: no publisher waits for itself, directly or through others.

use std::collections::{HashMap, HashSet};

use crate::session_state::SessionKey;

/// The publishers that wait, of all shards, each with whom it waits for.
#[derive(Debug, Default)]
pub(crate) struct BlockedPublishers {
    by_publisher: HashMap<SessionKey, Vec<SessionKey>>,
}

impl BlockedPublishers {
    /// Lets `publisher` wait for `subscriber`; false if it would wait for itself.
    pub(crate) fn insert(&mut self, publisher: SessionKey, subscriber: SessionKey) -> bool {
        if self.waits_for(subscriber, publisher) {
            return false;
        }
        self.by_publisher.entry(publisher).or_default().push(subscriber);
        true
    }

    /// Ends the wait of `publisher` for `subscriber`.
    pub(crate) fn remove(&mut self, publisher: SessionKey, subscriber: SessionKey) {
        if let Some(subscribers) = self.by_publisher.get_mut(&publisher) {
            subscribers.retain(|key| *key != subscriber);
            if subscribers.is_empty() {
                self.by_publisher.remove(&publisher);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_publisher.is_empty()
    }

    /// Whether `session` is `wanted` or waits for it, directly or through others.
    fn waits_for(&self, session: SessionKey, wanted: SessionKey) -> bool {
        let (mut seen, mut open) = (HashSet::new(), vec![session]);
        while let Some(session) = open.pop() {
            if session == wanted {
                return true;
            }
            if seen.insert(session) {
                open.extend(self.by_publisher.get(&session).into_iter().flatten());
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Key;

    #[test]
    fn no_circle_of_any_length_closes() {
        let key = |slot| SessionKey::new((slot % 3) as u8, Key { slot, use_count: 1 });
        let mut blocked = BlockedPublishers::default();
        assert!(!blocked.insert(key(0), key(0)));
        for slot in 0..10 {
            assert!(blocked.insert(key(slot), key(slot + 1)));
            assert!(blocked.insert(key(slot), key(100 + slot))); // a side way
            for before in 0..=slot {
                assert!(!blocked.insert(key(slot + 1), key(before)), "{slot} {before}");
            }
        }
        blocked.remove(key(5), key(6));
        assert!(blocked.insert(key(10), key(0)));
        assert!(!blocked.insert(key(5), key(6)));
    }
}

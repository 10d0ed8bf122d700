//! When the sender is told which batches came and which messages were published.
//!
//! Each word is a packet, and wakes up the sender's thread and its broker's, as the broker's answer before it does this node's thread. So a
//! message that came by itself waits for others, and only where much is under way is each answer looked at as it comes.

use std::time::Duration;

use tidegate_message::Instant;

/// Longest wait of a word for what follows.
const AFTER: Duration = Duration::from_millis(20);
/// Batches, and bytes of them, that came since the last word, from which on there is much: a quarter of the batches that a sender has under way, and
/// far fewer bytes.
const BATCHES_MAX: u32 = 12;
const BYTES_MAX: usize = 128 << 10;

/// Counts what came since the last word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word {
    batches: u32,
    bytes: usize,
    due_at: Option<Instant>,
}

impl Word {
    /// A batch of that many bytes came.
    pub(super) fn came(&mut self, bytes: usize) {
        self.batches += 1;
        self.bytes += bytes;
    }

    /// Whether the sender waits for a word soon.
    pub(super) fn has_much(&self) -> bool {
        self.batches >= BATCHES_MAX || self.bytes >= BYTES_MAX
    }

    /// When it is time for a word, whatever follows; none while there is nothing to say.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// The sender was told. `is_all` if it knows all from now on, and no answer of the broker is to come.
    pub(super) fn said(&mut self, now: Instant, is_all: bool) {
        *self = Self { due_at: (!is_all).then(|| now + AFTER), ..Self::default() };
    }

    /// Something is to be said that was not.
    pub(super) fn waits(&mut self, now: Instant) {
        self.due_at.get_or_insert(now + AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_due_soon_behind_the_first_that_came_and_at_once_where_much_came() {
        let at = |ms: i64| Instant::from_millis(1_000 + ms);
        let mut word = Word::default();
        assert_eq!((word.due_at(), word.has_much()), (None, false));
        // Those that follow put it off no further.
        for ms in [0, 5, 19] {
            word.came(100);
            word.waits(at(ms));
            assert_eq!((word.due_at(), word.has_much()), (Some(at(20)), false));
        }
        // An answer is still to come.
        word.said(at(20), false);
        assert_eq!(word.due_at(), Some(at(40)));
        word.said(at(40), true);
        assert_eq!(word.due_at(), None);
        (0..BATCHES_MAX).for_each(|_| word.came(100));
        assert!(word.has_much());
        word.said(at(41), true);
        word.came(BYTES_MAX);
        assert!(word.has_much());
    }
}

//! How often something may happen that a peer causes: a bucket of tokens, by one number.

use std::time::Duration;

use tidegate_message::Instant;

/// A bucket of tokens, which holds some at first and gets another after each while.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    every: Duration,
    /// The time in which an empty bucket is full.
    depth: Duration,
    /// When it is full.
    full_at: Instant,
}

impl Pace {
    /// `most` at once, and one more `every` while.
    pub fn new(every: Duration, most: u32) -> Self {
        Self { every, depth: every * most, full_at: Instant::MIN }
    }

    /// Whether a token is there.
    pub(super) fn has_room(&self, now: Instant) -> bool {
        self.full_at.max(now).since(now) + self.every <= self.depth
    }

    /// Takes so many tokens, whether they are there or not; how long it takes until they would have been.
    pub fn take(&mut self, now: Instant, count: u32) -> Duration {
        self.full_at = self.full_at.max(now) + self.every * count;
        self.full_at.since(now).saturating_sub(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_pass_at_once_and_then_one_each_while() {
        let at = |millis: i64| Instant::from_millis(millis);
        let mut pace = Pace::new(Duration::from_millis(100), 3);
        assert_eq!([1, 1, 1].map(|count| pace.take(at(0), count)), [Duration::ZERO; 3]);
        assert!(!pace.has_room(at(0)) && !pace.has_room(at(99)) && pace.has_room(at(100)));
        assert_eq!(pace.take(at(0), 2), Duration::from_millis(200));
        assert_eq!(pace.take(at(200), 1), Duration::from_millis(100));
        // It is never more than full.
        assert_eq!(pace.take(at(60_000), 4), Duration::from_millis(100));
    }
}

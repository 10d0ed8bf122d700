//! When a line is written about messages that go no further: about the first of each span of time, with how many there were since.

use std::time::Duration;

use tidegate_message::Instant;

/// From one line to the next.
const EVERY: Duration = Duration::from_secs(10);

/// Lines of one kind.
#[derive(Debug)]
pub(super) struct Telling {
    untold: u64,
    every: Duration,
    tells_at: Instant,
}

impl Default for Telling {
    fn default() -> Self {
        Self::every(EVERY)
    }
}

impl Telling {
    /// Lines with that much time between them, at least.
    pub(super) fn every(every: Duration) -> Self {
        Self { untold: 0, every, tells_at: Instant::MIN }
    }

    /// There is one more: of how many a line is to be written now, if one is.
    pub(super) fn more(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        if now < self.tells_at {
            return None;
        }
        self.tells_at = now + self.every;
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_span_is_told_with_those_since() {
        let mut telling = Telling::default();
        let at = |seconds| Instant::EPOCH + Duration::from_secs(seconds);
        for (seconds, expected) in
            [(0, Some(1)), (1, None), (9, None), (10, Some(3)), (19, None), (60, Some(2))]
        {
            assert_eq!(telling.more(at(seconds)), expected, "{seconds}");
        }
    }
}

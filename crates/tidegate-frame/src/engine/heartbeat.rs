//! Reports that a camera is alive while its source gives nothing: a subscriber that waits for frames could not know.

use std::time::Duration;

use tidegate_message::Instant;

use super::HEARTBEAT;

/// Soonest after a capture that nothing is news.
const SOONEST: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    captured_at: Option<Instant>,
    /// Between two captures, smoothed; a pause counts as one heartbeat at most.
    interval: Duration,
    due: Option<Instant>,
}

impl Heartbeat {
    /// A frame was captured.
    pub(super) fn captured(&mut self, now: Instant, at: Instant) {
        if let Some(last) = self.captured_at.replace(at) {
            let gap = at.since(last).min(HEARTBEAT);
            self.interval =
                if self.interval.is_zero() { gap } else { self.interval * 3 / 4 + gap / 4 };
            self.due = Some(now + (self.interval * 3 / 2).max(SOONEST));
        }
    }

    /// When the next is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether one is due now.
    pub(super) fn beat(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = Some(now + HEARTBEAT);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_beats_while_nothing_is_captured() {
        let ms = Instant::from_millis;
        let mut heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.due(), None);
        for frame in 0..10 {
            heartbeat.captured(ms(frame * 200 + 5), ms(frame * 200));
            assert!(!heartbeat.beat(ms(frame * 200 + 199)));
        }
        assert_eq!(heartbeat.due(), Some(ms(1_805 + 300)));
        assert!(heartbeat.beat(ms(2_105)) && !heartbeat.beat(ms(2_106)));
        assert_eq!(heartbeat.due(), Some(ms(2_105) + HEARTBEAT));
        // After a long pause it is soon as patient as before.
        heartbeat.captured(ms(60_000), ms(60_000));
        assert!(heartbeat.due() < Some(ms(60_500)));
    }
}

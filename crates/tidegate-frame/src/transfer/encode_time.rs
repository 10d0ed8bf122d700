//! How long encoding a frame takes.

use std::time::Duration;

/// Longest time that is believed.
const ENCODE_MAX: Duration = Duration::from_secs(1);

/// Mean and mean deviation, smoothed as those of round trips are (RFC 6298, section 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct EncodeTime {
    mean: Duration,
    deviation: Duration,
}

impl EncodeTime {
    /// The assumption before anything was measured.
    pub(super) fn new(first: Duration) -> Self {
        Self { mean: first, deviation: Duration::ZERO }
    }

    /// Takes in that an encoding took that long.
    pub(super) fn learn(&mut self, took: Duration) {
        let took = took.min(ENCODE_MAX);
        self.deviation = (self.deviation * 3 + took.abs_diff(self.mean)) / 4;
        self.mean = (self.mean * 7 + took) / 8;
    }

    /// A time that an encoding seldom exceeds: one that was slow is an accident, several are the rule.
    pub(super) fn usual_max(self) -> Duration {
        self.mean + self.deviation * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_encoding_is_an_accident_and_several_are_the_rule() {
        let ms = Duration::from_millis;
        let mut time = EncodeTime::new(ms(10));
        (0..20).for_each(|_| time.learn(ms(8)));
        assert!(time.usual_max() < ms(10), "{time:?}");
        time.learn(ms(60));
        assert!((ms(10)..ms(45)).contains(&time.usual_max()), "{time:?}");
        (0..8).for_each(|_| time.learn(ms(8)));
        assert!(time.usual_max() < ms(20), "{time:?}");
        (0..8).for_each(|_| time.learn(ms(60)));
        assert!(time.usual_max() >= ms(60), "{time:?}");
        time.learn(Duration::MAX);
        assert!(time.usual_max() < ms(2000), "{time:?}");
    }
}

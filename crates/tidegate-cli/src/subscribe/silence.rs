//! The clock of a stream of pictures: a stream that the node has stopped sending looks like one in which nothing happens.

use std::time::{Duration, Instant};

/// A stream is silent after that time without a picture, or after so many times the usual time between two.
const AFTER: Duration = Duration::from_millis(1500);
const TIMES: f64 = 2.5;
const USUAL_MAX: Duration = Duration::from_secs(60);

/// Says how long no picture has come.
///
/// The usual time between two pictures is the shorter of the last two times, or that which is asked for, if it is longer.
pub(super) struct Silence {
    since: Instant,
    heard: bool,
    gaps: [Duration; 2],
    told: u64,
}

impl Silence {
    /// Counts from `now` on.
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, heard: false, gaps: [Duration::ZERO; 2], told: 0 }
    }

    #[cfg(test)]
    pub(super) const fn since(&self) -> Instant {
        self.since
    }

    /// A picture came, or the word that it is unchanged.
    pub(super) fn heard(&mut self, now: Instant) {
        if self.heard {
            self.gaps = [self.gaps[1], now.saturating_duration_since(self.since)];
        }
        self.heard = true;
        self.begin(now);
    }

    /// Pictures are to come from `now` on.
    pub(super) const fn begin(&mut self, now: Instant) {
        self.since = now;
        self.told = 0;
    }

    /// Whole seconds without a picture; none while that is usual. `interval` is the time between two that is asked for.
    pub(super) fn seconds(&self, now: Instant, interval: Option<Duration>) -> Option<u64> {
        let silent = now.saturating_duration_since(self.since);
        let shorter = self.gaps[0].min(self.gaps[1]);
        let usual = interval.unwrap_or_default().max(shorter).min(USUAL_MAX);
        let is_silent = silent >= AFTER.max(usual.mul_f64(TIMES));
        is_silent.then(|| silent.as_secs_f64().round() as u64)
    }

    /// The same, each number once, and whether it is the first.
    pub(super) fn tell(&mut self, now: Instant, interval: Option<Duration>) -> Option<(u64, bool)> {
        let seconds = self.seconds(now, interval).filter(|seconds| *seconds != self.told)?;
        let is_first = self.told == 0;
        self.told = seconds;
        Some((seconds, is_first))
    }
}

/// The same words in all that shows or hands over live pictures.
pub(super) fn no_picture(seconds: u64) -> String {
    format!("no picture for {seconds} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_silent_when_its_usual_time_is_over() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let mut silence = Silence::new(begin);
        for (millis, expected) in
            [(1499, None), (1500, Some(2)), (2500, Some(3)), (90_000, Some(90))]
        {
            assert_eq!(silence.seconds(at(millis), None), expected, "{millis}");
        }
        assert_eq!(silence.tell(at(1500), None), Some((2, true)));
        assert_eq!(silence.tell(at(1600), None), None);
        assert_eq!(silence.tell(at(2500), None), Some((3, false)));
        // One that is asked for a picture in ten seconds, and a camera of one in four.
        let interval = Some(Duration::from_secs(10));
        assert_eq!(silence.seconds(at(24_999), interval), None);
        assert_eq!(silence.seconds(at(25_000), interval), Some(25));
        for millis in [0, 4000, 8000] {
            silence.heard(at(millis));
        }
        assert_eq!(silence.seconds(at(17_999), None), None);
        assert_eq!(silence.seconds(at(18_000), None), Some(10));
        // An outage is no usual time.
        silence.heard(at(100_000));
        assert_eq!(silence.seconds(at(110_000), None), Some(10));
        assert_eq!(no_picture(10), "no picture for 10 s");
    }
}

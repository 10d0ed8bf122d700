//! Times of another member, counted from this one's.

use std::time::Duration;

use tidegate_message::Instant;

/// Two clocks that part by less from one link to the next go at different paces; by more, and one of the two stood still.
const DRIFT_MAX: Duration = Duration::from_secs(10);
/// Times that a clock stood still which are known; before the first of them all is counted as then.
const STOPS_MAX: usize = 4;

/// The time at a member.
#[derive(Debug)]
pub(super) struct Frame {
    /// The process whose time it is.
    process: u64,
    /// From which time there on, and by how many nanoseconds this node is ahead; in order.
    spans: Vec<(Instant, i64)>,
}

impl Frame {
    pub(super) fn new(process: u64) -> Self {
        Self { process, spans: Vec::new() }
    }

    /// It was `there` at the member when it is `here` now.
    pub(super) fn linked(&mut self, process: u64, there: Instant, here: Instant) {
        if process != self.process {
            *self = Self::new(process);
        }
        let ahead = here.nanos_since(there);
        match self.spans.last_mut() {
            Some((_, last)) if Duration::from_nanos(ahead.abs_diff(*last)) <= DRIFT_MAX => {
                *last = ahead;
            }
            _ => {
                if self.spans.len() >= STOPS_MAX {
                    self.spans.remove(0);
                }
                self.spans.push((there, ahead));
            }
        }
    }

    /// The time here when it was `there` at the member, which is heard of `now`.
    ///
    /// The way of the first record is in the times that count from it, and a busy node may have taken long to read it. Each time
    /// that is heard of was before now, so that a shorter way shows.
    pub(super) fn heard(&mut self, there: Instant, now: Instant) -> Instant {
        let at = self.spans.iter().rposition(|(from, _)| *from <= there).unwrap_or(0);
        let most = now.nanos_since(there);
        let ahead = self.spans.get_mut(at).map_or(most, |(_, ahead)| {
            *ahead = most.min(*ahead);
            *ahead
        });
        Instant::from_nanos(there.as_nanos().saturating_add(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn times_of_before_a_clock_stood_still_are_counted_as_before() {
        let mut frame = Frame::new(1);
        frame.linked(1, at(1000), at(50));
        assert_eq!(frame.heard(at(990), at(900_000)), at(40));
        // It goes a little faster.
        frame.linked(1, at(1103), at(150));
        assert_eq!(frame.heard(at(1100), at(900_000)), at(147));
        // The other one slept for 500 s.
        frame.linked(1, at(1203), at(750));
        let cases = [(1100, 147), (1202, 249), (1203, 750), (1300, 847)];
        for (there, here) in cases {
            assert_eq!(frame.heard(at(there), at(900_000)), at(here), "{there}");
        }
        // Another process has another time.
        frame.linked(2, at(5), at(800));
        assert_eq!(frame.heard(at(4), at(900_000)), at(799));
    }

    #[test]
    fn no_time_is_too_late_or_too_early() {
        let mut frame = Frame::new(1);
        for there in [Instant::MIN, Instant::MAX, at(0)] {
            for here in [Instant::MIN, Instant::MAX, at(0)] {
                frame.linked(1, there, here);
                frame.heard(Instant::MIN, here);
                frame.heard(Instant::MAX, here);
            }
        }
        assert!(frame.spans.len() <= STOPS_MAX);
    }

    #[test]
    fn what_is_heard_of_was_before_however_long_the_first_record_took() {
        let mut frame = Frame::new(1);
        // It was on its way for 30 s.
        frame.linked(1, at(1000), at(80));
        assert_eq!(frame.heard(at(1020), at(71)), at(71), "it did not begin later");
        // A claim that took a second shows the rest.
        assert_eq!(frame.heard(at(1010), at(500)), at(61));
        assert_eq!(frame.heard(at(1200), at(250)), at(250), "the shortest way stands");
    }
}

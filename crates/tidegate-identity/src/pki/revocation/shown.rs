//! When a line of the log is written about a revoked certificate that is shown again and again.

use std::{collections::HashMap, time::Duration};

use tidegate_message::Instant;

/// Certificates that are told apart. Their owners cannot make others: an authority has signed each.
const CERTIFICATES_MAX: usize = 256;
/// From the first line about one to the next, then twice that, and so on.
const DISTANCE_FIRST: Duration = Duration::from_secs(10);
/// The longest distance.
const DISTANCE_MAX: Duration = Duration::from_secs(3600);

/// The lines about each certificate: their owner may be a machine that tries for as long as it runs.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By their serial numbers.
    of: HashMap<Box<[u8]>, Line>,
}

#[derive(Debug)]
struct Line {
    due: Instant,
    distance: Duration,
    untold: u64,
}

impl Lines {
    /// A certificate was shown; if a line is due, how many times it was since the last.
    pub(super) fn add(&mut self, now: Instant, serial: &[u8]) -> Option<u64> {
        if self.of.len() >= CERTIFICATES_MAX && !self.of.contains_key(serial) {
            // The one that was told of longest ago begins again, if it comes.
            let oldest = self.of.iter().min_by_key(|(_, line)| line.due);
            if let Some(oldest) = oldest.map(|(serial, _)| serial.clone()) {
                self.of.remove(&oldest);
            }
        }
        let first = Line { due: now, distance: DISTANCE_FIRST, untold: 0 };
        let line = self.of.entry(serial.into()).or_insert(first);
        line.untold += 1;
        if now < line.due {
            return None;
        }
        line.due = now + line.distance;
        line.distance = (line.distance * 2).min(DISTANCE_MAX);
        Some(std::mem::take(&mut line.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_that_is_shown_for_days_takes_a_line_an_hour() {
        let serial = |number: u16| number.to_be_bytes();
        let at = |seconds: u64| Instant::EPOCH + Duration::from_secs(seconds);
        let mut lines = Lines::default();
        let told: Vec<u64> =
            (0..86_400).filter_map(|second| lines.add(at(second), &serial(1))).collect();
        assert_eq!(told[..4], [1, 10, 20, 40]);
        assert!((30..40).contains(&told.len()), "{} lines in a day", told.len());
        // Each has its own, and there is a bound.
        for number in 2..2_000 {
            assert_eq!(lines.add(at(86_400), &serial(number)), Some(1));
        }
        assert_eq!(lines.of.len(), CERTIFICATES_MAX);
    }
}

//! Capacity traces: when a link could deliver, or at what rate, as recorded elsewhere.

use std::{sync::Arc, time::Duration};

use super::unit::Rate;

/// A capacity trace.
///
/// It repeats from its beginning when it ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Trace {
    /// Delivery opportunities of [`OPPORTUNITY_BYTES`] each, as Mahimahi records them.
    Opportunities(Opportunities),
    /// A rate that holds from each time to the next.
    Rates(Rates),
}

/// Bytes that one delivery opportunity carries.
pub const OPPORTUNITY_BYTES: usize = 1500;

/// Delivery opportunities in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Opportunities {
    offsets: Arc<[Duration]>,
    period: Duration,
}

impl Opportunities {
    /// Reads the Mahimahi packet-delivery format: one line per opportunity, a whole number of
    /// milliseconds since the start, never falling. The last line is the period of repetition.
    ///
    /// # Errors
    /// [`TraceError`] with the line.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut offsets: Vec<Duration> = Vec::new();
        for (line, text) in numbered(text) {
            let millis = text.parse::<u32>().map_err(|_| TraceError::Millis { line })?;
            let offset = Duration::from_millis(millis.into());
            if offsets.last().is_some_and(|&last| offset < last) {
                return Err(TraceError::Backwards { line });
            }
            offsets.push(offset);
        }
        match offsets.last() {
            Some(&period) if !period.is_zero() => Ok(Self { offsets: offsets.into(), period }),
            _ => Err(TraceError::Empty),
        }
    }

    /// The `index`-th opportunity, counted on over all repetitions, as an offset from the start.
    pub(crate) fn offset(&self, index: u64) -> Duration {
        let count = self.offsets.len() as u64;
        let lap = u32::try_from(index / count).unwrap_or(u32::MAX);
        self.period.saturating_mul(lap) + self.offsets[(index % count) as usize]
    }

    /// The index of the first opportunity at or after `offset` from the start.
    pub(crate) fn first_from(&self, offset: Duration) -> u64 {
        let count = self.offsets.len() as u64;
        // The last opportunity of a lap falls on the start of the next: step one lap back.
        let lap = (offset.as_nanos() / self.period.as_nanos()).saturating_sub(1) as u64;
        let mut base = lap * count;
        while self.offset(base + count - 1) < offset {
            base += count;
        }
        let start = self.offset(base).saturating_sub(self.offsets[0]);
        base + self.offsets.partition_point(|&at| start + at < offset) as u64
    }

    /// Mean rate over one repetition.
    pub fn mean(&self) -> Rate {
        let bits = (self.offsets.len() * OPPORTUNITY_BYTES * 8) as f64;
        Rate((bits / self.period.as_secs_f64()).round() as u64)
    }
}

/// A rate that changes in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// From when which rate holds, rising in time, the first at zero.
    pub changes: Vec<(Duration, Rate)>,
    /// When the trace starts over: the time of the last line, whose rate is not used.
    pub period: Duration,
}

impl Rates {
    /// Reads lines of `seconds rate`, separated by a comma or blanks, the rate in Mbit/s. The first
    /// line is at zero and the last one only marks the end.
    ///
    /// # Errors
    /// [`TraceError`] with the line.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut changes: Vec<(Duration, Rate)> = Vec::new();
        for (line, text) in numbered(text) {
            let mut fields = text.split([',', ' ', '\t']).filter(|field| !field.is_empty());
            let mut field = |max: f64| {
                let value = fields.next().and_then(|field| field.parse::<f64>().ok());
                value.filter(|value| (0.0..=max).contains(value)).ok_or(TraceError::Pair { line })
            };
            let at = Duration::from_secs_f64(field(1e6)?);
            let rate = Rate((field(1e6)? * 1e6).round() as u64);
            if fields.next().is_some() {
                return Err(TraceError::Pair { line });
            }
            match changes.last() {
                None if !at.is_zero() => return Err(TraceError::Start { line }),
                Some(&(last, _)) if at <= last => return Err(TraceError::Backwards { line }),
                _ => changes.push((at, rate)),
            }
        }
        match changes.pop() {
            Some((period, _)) if !changes.is_empty() => Ok(Self { changes, period }),
            _ => Err(TraceError::Empty),
        }
    }
}

/// Lines that are neither blank nor a comment, with their number from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Why a text is no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line of a delivery trace that is no whole number.
    #[error("line {line} is not a whole number of milliseconds")]
    Millis {
        /// The line, from 1.
        line: usize,
    },
    /// A line of a rate trace that is no pair.
    #[error("line {line} is not a pair of seconds and Mbit/s, both from 0 to 1000000")]
    Pair {
        /// The line, from 1.
        line: usize,
    },
    /// Times that fall, or stand still where they may not.
    #[error("line {line} is not later than the one before")]
    Backwards {
        /// The line, from 1.
        line: usize,
    },
    /// A rate trace that does not begin at zero.
    #[error("line {line} is the first and must be at 0 seconds")]
    Start {
        /// The line, from 1.
        line: usize,
    },
    /// Too little to repeat.
    #[error("the trace has no span of time to repeat: it needs a last line later than its first")]
    Empty,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opportunities_repeat_and_are_found_by_time() {
        let trace = Opportunities::parse("1\n1\n5\n10\n").unwrap();
        let offsets: Vec<u128> = (0..9).map(|index| trace.offset(index).as_millis()).collect();
        assert_eq!(offsets, [1, 1, 5, 10, 11, 11, 15, 20, 21]);
        for millis in 0..45_u64 {
            let offset = Duration::from_millis(millis);
            let expected = (0..).find(|&index| trace.offset(index) >= offset).unwrap();
            assert_eq!(trace.first_from(offset), expected, "at {millis} ms");
        }
        assert_eq!(trace.mean(), Rate(4_800_000));
    }

    #[test]
    fn bad_traces_name_the_line() {
        for (text, error) in [
            ("1\nx\n", TraceError::Millis { line: 2 }),
            ("5\n\n4\n", TraceError::Backwards { line: 3 }),
            ("", TraceError::Empty),
            ("0\n0\n", TraceError::Empty),
        ] {
            assert_eq!(Opportunities::parse(text), Err(error), "{text:?}");
        }
        for (text, error) in [
            ("0 10\n1 nan\n", TraceError::Pair { line: 2 }),
            ("0 10 3\n", TraceError::Pair { line: 1 }),
            ("1 10\n", TraceError::Start { line: 1 }),
            ("0 10\n0 20\n", TraceError::Backwards { line: 2 }),
            ("0 10\n", TraceError::Empty),
        ] {
            assert_eq!(Rates::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn rates_hold_until_the_next_line() {
        let rates = Rates::parse("# made by hand\n0, 200\n1.5 20\n2\t0\n").unwrap();
        let changes =
            vec![(Duration::ZERO, Rate::mbit(200)), (Duration::from_millis(1500), Rate::mbit(20))];
        assert_eq!(rates, Rates { changes, period: Duration::from_secs(2) });
    }
}

//! The highest value of late, and the usual one.

use std::time::Duration;

use tidegate_message::Instant;

/// Highest value within at least the last `span` and at most twice that, in two buckets: enough to know
/// what is usual, without a queue of samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowedMax {
    from: Option<Instant>,
    current: u64,
    before: u64,
}

impl WindowedMax {
    pub(crate) fn push(&mut self, now: Instant, value: u64, span: Duration) {
        let from = *self.from.get_or_insert(now);
        let age = now.since(from);
        if age >= span {
            self.before = if age >= span.saturating_mul(2) { 0 } else { self.current };
            self.current = 0;
            self.from = Some(now);
        }
        self.current = self.current.max(value);
    }

    pub(crate) fn max(&self) -> u64 {
        self.current.max(self.before)
    }
}

/// How often a value is looked at for [`SlowMedian`].
pub(crate) const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// Values that the median is of: half a minute and more.
const SAMPLES: usize = 31;
/// Values before there is a median.
const SAMPLES_MIN: usize = 3;

/// Median of the latest values, one a second, each counted only if it differs from the one before: a value
/// that is not renewed is not new. Zero is no value.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlowMedian {
    values: [u64; SAMPLES],
    taken: usize,
    last: Option<(Instant, u64)>,
    median: Option<u64>,
}

impl SlowMedian {
    pub(crate) fn push(&mut self, now: Instant, value: u64) {
        let news =
            self.last.is_none_or(|(at, before)| value != before && now.since(at) >= SAMPLE_PERIOD);
        if value == 0 || !news {
            return;
        }
        self.last = Some((now, value));
        self.values[self.taken % SAMPLES] = value;
        self.taken = self.taken.wrapping_add(1);
        if self.taken >= SAMPLES_MIN {
            let mut sorted = self.values;
            let known = &mut sorted[..self.taken.min(SAMPLES)];
            known.sort_unstable();
            self.median = Some(known[(known.len() - 1) / 2]);
        }
    }

    pub(crate) fn get(&self) -> Option<u64> {
        self.median
    }
}

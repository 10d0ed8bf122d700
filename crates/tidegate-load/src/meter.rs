//! Counts and latencies of one flow in one worker.

use hdrhistogram::Histogram;

/// Counts of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Messages written.
    pub(crate) sent: u64,
    /// How often those are to be received.
    pub(crate) due: u64,
    /// Exchanges of QoS 1 and 2 that ended.
    pub(crate) acknowledged: u64,
    /// Messages received, duplicates included.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    pub(crate) duplicated: u64,
    pub(crate) out_of_order: u64,
}

/// Counts and latencies.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) counts: Counts,
    latencies: Histogram<u64>,
    /// Latency of the last messages and how many they were: messages of one batch were often stamped together.
    run: (u64, u64),
}

impl Counts {
    /// Different messages received, each as often as there are subscribers to it.
    pub(crate) fn received_once(&self) -> u64 {
        self.received - self.duplicated
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.due += other.due;
        self.acknowledged += other.acknowledged;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.duplicated += other.duplicated;
        self.out_of_order += other.out_of_order;
    }
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { counts: Counts::default(), latencies: histogram(), run: (0, 0) }
    }

    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        if self.run.0 == nanos {
            self.run.1 += 1;
            return;
        }
        self.flush();
        self.run = (nanos, 1);
    }

    pub(crate) fn finish(mut self) -> (Counts, Histogram<u64>) {
        self.flush();
        (self.counts, self.latencies)
    }

    fn flush(&mut self) {
        let (value, count) = self.run;
        if count > 0 {
            self.latencies.saturating_record_n(value, count);
        }
    }
}

/// Nanoseconds from 128 ns to an hour, to a thousandth.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(128, 3_600_000_000_000, 3).expect("these bounds are valid")
}

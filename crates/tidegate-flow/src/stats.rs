//! Counts of a flow.

use crate::bad::Reason;

/// Counts of a flow since it was compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages that came.
    pub messages: u64,
    /// Messages that could not be read, by [`Reason::ALL`]; those that were mended are not among them.
    pub bad: [u64; Reason::ALL.len()],
    /// Messages in which a last good number stands in.
    pub mended: u64,
    /// Messages that a filter did not keep.
    pub filtered: u64,
    /// Messages that were published, dead letters included.
    pub emitted: u64,
    /// Messages that were not, since their topic came to no valid one or the batch published too much.
    pub unsent: u64,
    /// Values that came after their window.
    pub late: u64,
    /// Values that a Bloom filter did not learn, since it is full.
    pub unlearned: u64,
    /// Keys that state is kept of now.
    pub keys: u32,
    /// Keys that made room for others.
    pub evicted: u64,
    /// Keys that were forgotten for their age.
    pub expired: u64,
}

impl Stats {
    /// The sums of the counts of two instances of one flow.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        for (sum, count) in self.bad.iter_mut().zip(other.bad) {
            *sum += count;
        }
        self.messages += other.messages;
        self.mended += other.mended;
        self.filtered += other.filtered;
        self.emitted += other.emitted;
        self.unsent += other.unsent;
        self.late += other.late;
        self.unlearned += other.unlearned;
        self.keys += other.keys;
        self.evicted += other.evicted;
        self.expired += other.expired;
        self
    }
}

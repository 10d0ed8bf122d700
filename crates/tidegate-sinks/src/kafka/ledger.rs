//! The state of a partition: where the batch under way begins, and the records that lay there before this sink wrote.
//!
//! ```text
//!  offsets ─▶ │ what lay there at the first look │ batches that were taken │ of the batch under way, as far as it was written │
//!                                                                          ▲ next
//! ```
//!
//! A batch that is tried again is looked for from `next` on. All of ours that lies there is of this batch, so that no message of a
//! batch before is taken for one that is like it. Among what lay there at the first look only those are looked for that may have been
//! handed over before that: messages that come again, and those with a name, which an uplink may send again.
//!
//! Always true: records that a try found and wrote count once its whole batch is taken; the next try begins where that one
//! began.

use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

use crate::Record;

/// By what a record is known.
pub(super) type Mark = [u8; 16];
/// Records of a part of a partition: how often each is there.
pub(super) type Tail = HashMap<Mark, u32>;

/// The state of a partition, which survives connections.
#[derive(Debug)]
pub(super) struct Ledger {
    /// All batches that were taken lie before this offset, and nothing of the one under way does.
    next: i64,
    /// Records that lay there at the first look and were not met again.
    before: Tail,
    /// Those of them that this try met.
    used: Tail,
    /// Where the batch under way ends, as far as this try knows.
    reached: Option<i64>,
}

impl Ledger {
    /// At the first look the partition ends at `end`, and `before` are its last records.
    pub(super) fn new(end: i64, before: Tail) -> Self {
        Self { next: end, before, used: Tail::new(), reached: None }
    }

    /// Where to look for what an earlier try wrote.
    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// A try begins, and one that failed is forgotten.
    pub(super) fn begin(&mut self) {
        self.used.clear();
        self.reached = None;
    }

    /// Whether that message is there: among what lay there at the first look, if it may be, or among what lies from
    /// [`Ledger::next`] on. It is one less there then.
    pub(super) fn has(&mut self, record: &Record, since: &mut Tail) -> bool {
        let may_be_before = (record.is_repeated || record.id.is_some()) && !self.before.is_empty();
        if since.is_empty() && !may_be_before {
            return false;
        }
        let mark = mark(record);
        // Where each try looks first, the same messages are found each time.
        (may_be_before && self.takes_before(mark)) || takes(since, mark)
    }

    fn takes_before(&mut self, mark: Mark) -> bool {
        let Some(count) = self.before.get(&mark) else { return false };
        let used = self.used.entry(mark).or_default();
        let is_left = *used < *count;
        *used += u32::from(is_left);
        is_left
    }

    /// All that is known of the batch under way lies before `end`.
    pub(super) fn reach(&mut self, end: i64) {
        self.reached = Some(end);
    }

    /// The whole batch was taken.
    pub(super) fn commit(&mut self) {
        for (mark, used) in self.used.drain() {
            let count = self.before.get_mut(&mark).expect("it was met there");
            *count -= used;
            if *count == 0 {
                self.before.remove(&mark);
            }
        }
        self.next = self.reached.take().unwrap_or(self.next);
    }
}

/// Whether that was there; it is one less then.
fn takes(tail: &mut Tail, mark: Mark) -> bool {
    let Some(count) = tail.get_mut(&mark) else { return false };
    *count -= 1;
    if *count == 0 {
        tail.remove(&mark);
    }
    true
}

/// By what a message is known: key, value, and its name or else the time at which it was received.
pub(super) fn mark(record: &Record) -> Mark {
    let received = record.time.as_nanos().to_string();
    // A message that an uplink sends again comes at another time.
    let which = record.id.as_deref().unwrap_or(&received);
    digest(record.topic.as_bytes(), &record.payload, which.as_bytes())
}

/// The mark of these parts.
pub(super) fn digest(key: &[u8], value: &[u8], which: &[u8]) -> Mark {
    let mut digest = Sha256::new();
    for part in [key, value, which] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize()[..16].try_into().expect("a digest is longer than a mark")
}

#[cfg(test)]
mod tests {
    use tidegate_message::Instant;

    use super::*;

    /// A partition: the marks of its records, by offset.
    #[derive(Default)]
    struct Partition(Vec<Mark>);

    impl Partition {
        fn since(&self, offset: i64) -> Tail {
            let mut tail = Tail::new();
            for mark in &self.0[offset as usize..] {
                *tail.entry(*mark).or_default() += 1;
            }
            tail
        }

        fn end(&self) -> i64 {
            self.0.len() as i64
        }

        /// One try, of which so many messages are written before the connection breaks; all where none is said. How many were
        /// not there.
        fn deliver(
            &mut self,
            ledger: &mut Ledger,
            is_retry: bool,
            batch: &[Record],
            breaks_after: Option<usize>,
        ) -> usize {
            ledger.begin();
            let mut since = Tail::new();
            if is_retry {
                since = self.since(ledger.next());
                ledger.reach(self.end());
            }
            let missing: Vec<Mark> =
                batch.iter().filter(|record| !ledger.has(record, &mut since)).map(mark).collect();
            self.0.extend(&missing[..breaks_after.unwrap_or(missing.len())]);
            if breaks_after.is_none() {
                if !missing.is_empty() {
                    ledger.reach(self.end());
                }
                ledger.commit();
            }
            missing.len()
        }
    }

    fn record(payload: &str) -> Record {
        Record::new("a", payload.to_owned(), Instant::from_nanos(7))
    }

    fn repeated(payload: &str) -> Record {
        Record { is_repeated: true, ..record(payload) }
    }

    fn named(id: &str) -> Record {
        Record { id: Some(id.into()), ..record("x") }
    }

    #[test]
    fn messages_that_are_alike_in_two_batches_are_two() {
        let (mut partition, mut ledger) = (Partition::default(), Ledger::new(0, Tail::new()));
        let batch = [record("x")];
        assert_eq!(partition.deliver(&mut ledger, false, &batch, None), 1);
        assert_eq!(ledger.next(), 1);
        // The second is not there, whatever the first left; nor is it after a try of which nothing was written.
        assert_eq!(partition.deliver(&mut ledger, false, &batch, Some(0)), 1);
        assert_eq!(partition.deliver(&mut ledger, true, &batch, None), 1);
        assert_eq!((partition.0.len(), ledger.next()), (2, 2));
    }

    #[test]
    fn a_try_goes_on_behind_what_the_one_before_it_wrote() {
        let (mut partition, mut ledger) = (Partition::default(), Ledger::new(0, Tail::new()));
        let batch = ["x", "y", "x", "z"].map(record);
        assert_eq!(partition.deliver(&mut ledger, false, &batch, Some(2)), 4);
        assert_eq!(partition.deliver(&mut ledger, true, &batch, Some(1)), 2);
        assert_eq!(ledger.next(), 0, "a batch counts as a whole");
        assert_eq!(partition.deliver(&mut ledger, true, &batch, None), 1);
        assert_eq!(partition.0, batch.each_ref().map(mark));
        // All was written, and only the answer was lost.
        assert_eq!(partition.deliver(&mut ledger, false, &batch, Some(4)), 4);
        assert_eq!(partition.deliver(&mut ledger, true, &batch, None), 0);
        assert_eq!((partition.0.len(), ledger.next()), (8, 8));
    }

    #[test]
    fn earlier_records_are_met_by_messages_that_may_have_been_handed_over_before() {
        for (lies, comes, expected) in [
            (record("x"), record("x"), 1), // new: whatever is like it
            (record("x"), repeated("x"), 0),
            (record("y"), repeated("x"), 1),
            (named("n/up/1/5"), named("n/up/1/5"), 0), // an uplink sent it again
            (named("n/up/1/5"), named("n/up/1/6"), 1),
        ] {
            let mut partition = Partition(vec![mark(&lies)]);
            let mut ledger = Ledger::new(1, partition.since(0));
            let missing = partition.deliver(&mut ledger, false, std::slice::from_ref(&comes), None);
            assert_eq!(missing, expected, "{lies:?} there, {comes:?} comes");
        }
    }

    #[test]
    fn earlier_records_met_by_a_try_are_met_by_the_next_try_and_no_later_batch() {
        let mut partition = Partition(vec![mark(&record("x"))]);
        let mut ledger = Ledger::new(1, partition.since(0));
        let batch = [repeated("x"), record("x"), repeated("x")];
        assert_eq!(partition.deliver(&mut ledger, false, &batch, Some(1)), 2);
        assert_eq!(partition.deliver(&mut ledger, true, &batch, None), 1);
        assert_eq!(partition.0.len(), 3);
        assert_eq!(partition.deliver(&mut ledger, false, &batch[..1], None), 1);
    }
}

//! The records of a bucket at one of its owners, and the numbers of all that it has ever had.
//!
//! A record is named by its [`Dot`]. A dot that the [`Clock`] has and whose record is not there was deleted; one that it does not have was
//! never seen. So a delete leaves nothing behind but its mark in the clock, however long a replica is away (observed-remove sets without
//! tombstones: Bieniusa and others, 2012).
//!
//! Always true: the clock has the dot of each record. Contents that were read from a disk in part have a clock of what is there and nothing
//! else ([`Contents::damaged`]): a clock that outlives its records deletes the good copies of others.

use std::collections::BTreeMap;

use crate::view::MemberId;

/// The name of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dot {
    /// The member that took it from its producer.
    pub origin: MemberId,
    /// Drawn by chance at each start of that process, so that no number is used twice, whatever its disk has.
    pub start: u64,
    /// From one, in steps of one, for each bucket.
    pub number: u64,
}

/// A set of dots, as closed intervals of numbers by origin and start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(BTreeMap<(MemberId, u64), Vec<(u64, u64)>>);

impl Clock {
    /// Whether it has the dot.
    pub fn has(&self, dot: Dot) -> bool {
        let intervals = self.0.get(&(dot.origin, dot.start)).map_or(&[][..], Vec::as_slice);
        // They are sorted and apart.
        let at = intervals.partition_point(|(first, _)| *first <= dot.number);
        intervals[..at].last().is_some_and(|(_, last)| dot.number <= *last)
    }

    /// Has that dot from now on.
    pub fn add(&mut self, dot: Dot) {
        self.add_all(dot.origin, dot.start, (dot.number, dot.number));
    }

    /// Has all that the other has.
    pub fn merge(&mut self, other: &Self) {
        for (origin, start, interval) in other.intervals() {
            self.add_all(origin, start, interval);
        }
    }

    /// Origin, start, and first and last number of each interval.
    pub fn intervals(&self) -> impl Iterator<Item = (MemberId, u64, (u64, u64))> {
        let of_start = |(&(origin, start), intervals)| {
            let intervals: &Vec<(u64, u64)> = intervals;
            intervals.iter().map(move |interval| (origin, start, *interval))
        };
        self.0.iter().flat_map(of_start)
    }

    /// Has those numbers, the last included.
    pub fn add_all(&mut self, origin: MemberId, start: u64, (mut first, mut last): (u64, u64)) {
        let intervals = self.0.entry((origin, start)).or_default();
        // Those that overlap or touch become one with it.
        intervals.retain(|(from, to)| {
            let is_apart = to.saturating_add(1) < first || last.saturating_add(1) < *from;
            if !is_apart {
                (first, last) = (first.min(*from), last.max(*to));
            }
            is_apart
        });
        let at = intervals.partition_point(|(from, _)| *from < first);
        intervals.insert(at, (first, last));
    }
}

/// A change of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<R> {
    /// A new record.
    Put(Dot, R),
    /// Those records are no longer there.
    Delete(Vec<Dot>),
}

/// Records and clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents<R> {
    records: BTreeMap<Dot, R>,
    clock: Clock,
}

impl<R> Default for Contents<R> {
    fn default() -> Self {
        Self { records: BTreeMap::new(), clock: Clock::default() }
    }
}

impl<R: Clone> Contents<R> {
    /// As they were written.
    pub fn new(records: BTreeMap<Dot, R>, mut clock: Clock) -> Self {
        records.keys().for_each(|dot| clock.add(*dot));
        Self { records, clock }
    }

    /// Those of a bucket of which some part could not be read.
    pub fn damaged(readable: BTreeMap<Dot, R>) -> Self {
        Self::new(readable, Clock::default())
    }

    /// The records.
    pub fn records(&self) -> &BTreeMap<Dot, R> {
        &self.records
    }

    /// The dots of all records that it has or has had.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Makes the change. One that was made before, or comes after the delete of its record, changes nothing.
    pub fn apply(&mut self, change: &Change<R>) {
        match change {
            Change::Put(dot, record) => {
                if !self.clock.has(*dot) {
                    self.clock.add(*dot);
                    self.records.insert(*dot, record.clone());
                }
            }
            Change::Delete(dots) => {
                for dot in dots {
                    self.clock.add(*dot);
                    self.records.remove(dot);
                }
            }
        }
    }

    /// Has all that either has; a record that one of them has had and has no more is in neither afterwards.
    pub fn merge(&mut self, other: &Self) {
        let deleted = |dot: &Dot| other.clock.has(*dot) && !other.records.contains_key(dot);
        self.records.retain(|dot, _| !deleted(dot));
        for (dot, record) in &other.records {
            if !self.clock.has(*dot) {
                self.records.insert(*dot, record.clone());
            }
        }
        self.clock.merge(&other.clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(number: u64) -> Dot {
        Dot { origin: MemberId(1), start: 7, number }
    }

    #[test]
    fn intervals_close_in_any_order() {
        let mut clock = Clock::default();
        for number in [5, 1, 3, 9, 2, 4, 3] {
            clock.add(dot(number));
        }
        let intervals: Vec<_> = clock.intervals().map(|(.., interval)| interval).collect();
        assert_eq!(intervals, [(1, 5), (9, 9)]);
        assert!(clock.has(dot(4)) && !clock.has(dot(6)) && !clock.has(Dot { start: 8, ..dot(4) }));
        clock.add_all(MemberId(1), 7, (4, 8));
        assert_eq!(clock.intervals().map(|(.., interval)| interval).collect::<Vec<_>>(), [(1, 9)]);
    }

    #[test]
    fn delete_wins_in_any_order_of_arrival() {
        let (put, delete) = (Change::Put(dot(1), "a"), Change::Delete(vec![dot(1)]));
        let mut first = Contents::default();
        first.apply(&put);
        let with_record = first.clone();
        first.apply(&delete);
        let mut second = Contents::default();
        second.apply(&delete);
        second.apply(&put);
        assert_eq!((first.records().len(), &second), (0, &first));
        let (mut one, mut other) = (with_record.clone(), first.clone());
        one.merge(&first);
        other.merge(&with_record);
        assert_eq!((&one, &other), (&first, &first));
    }

    #[test]
    fn damaged_contents_delete_nothing_elsewhere() {
        let mut whole = Contents::default();
        whole.apply(&Change::Put(dot(1), "a"));
        whole.apply(&Change::Put(dot(2), "b"));
        let mut damaged = Contents::damaged(BTreeMap::from([(dot(2), "b")]));
        let mut kept = whole.clone();
        kept.merge(&damaged);
        damaged.merge(&whole);
        assert_eq!((&kept, &damaged), (&whole, &whole));
    }
}

//! Sets of numbers, as intervals.

/// A set of numbers: intervals in their order, both ends included, none of which overlaps the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intervals(Vec<(u64, u64)>);

/// How much of an interval lies in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    None,
    Part,
    Whole,
}

impl Intervals {
    /// The numbers of all those intervals.
    pub(crate) fn of(intervals: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut given: Vec<_> = intervals.into_iter().collect();
        given.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(given.len());
        for (low, high) in given {
            match joined.last_mut() {
                Some((_, last)) if low <= last.saturating_add(1) => *last = high.max(*last),
                _ => joined.push((low, high)),
            }
        }
        Self(joined)
    }

    /// All numbers from 0 to that one.
    pub(crate) fn up_to(most: u64) -> Self {
        Self(vec![(0, most)])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many numbers there are.
    pub(crate) fn count(&self) -> u128 {
        self.iter().map(|(low, high)| u128::from(high - low) + 1).sum()
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.overlap(number, number) == Overlap::Whole
    }

    /// How much of an interval lies in the set.
    pub(crate) fn overlap(&self, low: u64, high: u64) -> Overlap {
        let at = self.0.partition_point(|(_, last)| *last < low);
        match self.0.get(at) {
            Some(&(first, last)) if first <= low && high <= last => Overlap::Whole,
            Some(&(first, _)) if first <= high => Overlap::Part,
            _ => Overlap::None,
        }
    }

    /// The numbers of both.
    pub(crate) fn intersect(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(&&(low, high)), Some(&&(from, to))) = (left.peek(), right.peek()) {
            if low.max(from) <= high.min(to) {
                both.push((low.max(from), high.min(to)));
            }
            if high < to {
                left.next()
            } else {
                right.next()
            };
        }
        Self(both)
    }

    /// Each interval by what a function that never falls makes of its ends.
    pub(crate) fn map(&self, function: impl Fn(u64) -> u64) -> Self {
        Self::of(self.iter().map(|(low, high)| (function(low), function(high))))
    }

    /// The same numbers, and those of the smallest gaps, so that there are at most so many intervals, and at least one is allowed.
    pub(crate) fn at_most(self, most: usize) -> Self {
        let surplus = self.0.len().saturating_sub(most.max(1));
        if surplus == 0 {
            return self;
        }
        let gap = |at: usize| (self.0[at + 1].0 - self.0[at].1, at);
        let mut gaps: Vec<_> = (0..self.0.len() - 1).map(gap).collect();
        gaps.sort_unstable();
        let filled = gaps[..surplus].iter().map(|(_, at)| (self.0[*at].0, self.0[at + 1].1));
        Self::of(self.iter().chain(filled))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn numbers(set: &Intervals) -> Vec<u64> {
        set.iter().flat_map(|(low, high)| low..=high).collect()
    }

    fn some() -> impl Strategy<Value = Intervals> {
        vec((0_u64..60, 0_u64..6), 0..8)
            .prop_map(|given| Intervals::of(given.into_iter().map(|(low, more)| (low, low + more))))
    }

    #[test]
    fn the_ends_of_all_numbers_are_joined() {
        let all = Intervals::of([(1, u64::MAX), (0, 0), (u64::MAX, u64::MAX)]);
        assert_eq!(all, Intervals::up_to(u64::MAX));
        assert_eq!(all.count(), 1 << 64);
    }

    proptest! {
        #[test]
        fn sets_are_what_their_numbers_are(one in some(), other in some(), low in 0_u64..70, more in 0_u64..9) {
            let (all, theirs) = (numbers(&one), numbers(&other));
            let both: Vec<u64> = all.iter().copied().filter(|it| theirs.contains(it)).collect();
            prop_assert_eq!(numbers(&one.intersect(&other)), both);
            prop_assert_eq!(one.count(), all.len() as u128);
            let inside = (low..=low + more).filter(|it| all.contains(it)).count() as u64;
            let expected = match inside {
                0 => Overlap::None,
                _ if inside == more + 1 => Overlap::Whole,
                _ => Overlap::Part,
            };
            prop_assert_eq!(one.overlap(low, low + more), expected);
        }

        #[test]
        fn fewer_intervals_have_all_numbers(one in some(), most in 0_usize..5) {
            let fewer = one.clone().at_most(most);
            prop_assert!(fewer.iter().count() <= most.max(1));
            prop_assert!(numbers(&one).into_iter().all(|it| fewer.has(it)));
            let is_apart = |pair: &[(u64, u64)]| pair[0].1 + 1 < pair[1].0;
            prop_assert!(fewer.0.windows(2).all(is_apart));
        }
    }
}

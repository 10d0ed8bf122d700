//! Amounts by holder, and who holds most: strangers choose how many holders there are, so that no call looks through all of them.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// How much each holder has. A holder with nothing is not kept.
#[derive(Clone, Debug)]
pub struct Heaviest<K> {
    amounts: HashMap<K, usize>,
    by_amount: BTreeSet<(usize, K)>,
}

impl<K> Default for Heaviest<K> {
    fn default() -> Self {
        Self { amounts: HashMap::new(), by_amount: BTreeSet::new() }
    }
}

impl<K: Copy + Eq + Hash + Ord> Heaviest<K> {
    /// The amount that the holder has; 0 if it is not kept.
    pub fn of(&self, holder: &K) -> usize {
        self.amounts.get(holder).copied().unwrap_or(0)
    }

    /// It holds so much more.
    pub fn add(&mut self, holder: K, amount: usize) {
        self.set(holder, self.of(&holder).saturating_add(amount));
    }

    /// It holds so much less, down to nothing.
    pub fn subtract(&mut self, holder: K, amount: usize) {
        self.set(holder, self.of(&holder).saturating_sub(amount));
    }

    fn set(&mut self, holder: K, amount: usize) {
        let former = if amount == 0 {
            self.amounts.remove(&holder)
        } else {
            self.amounts.insert(holder, amount)
        };
        if let Some(former) = former {
            self.by_amount.remove(&(former, holder));
        }
        if amount > 0 {
            self.by_amount.insert((amount, holder));
        }
    }

    /// The holder with the largest amount.
    pub fn first(&self) -> Option<K> {
        self.by_amount.last().map(|(_, holder)| *holder)
    }

    /// The holder with the largest amount apart from this one, and that amount.
    pub fn first_but(&self, holder: &K) -> Option<(K, usize)> {
        let others = self.by_amount.iter().rev().filter(|(_, other)| other != holder);
        others.take(1).map(|(amount, other)| (*other, *amount)).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_holds_most_is_found_as_amounts_change() {
        let mut held = Heaviest::default();
        assert_eq!((held.first(), held.first_but(&1)), (None, None));
        for (holder, amount) in [(1, 5), (2, 7), (3, 1), (1, 3)] {
            held.add(holder, amount);
        }
        assert_eq!((held.first(), held.first_but(&1)), (Some(1), Some((2, 7))));
        held.subtract(1, 2);
        assert_eq!((held.of(&1), held.first()), (6, Some(2)));
        held.subtract(2, 100);
        assert_eq!((held.of(&2), held.first()), (0, Some(1)), "nothing is left of it");
        held.subtract(1, 6);
        held.subtract(3, 1);
        assert_eq!((held.first(), held.amounts.len(), held.by_amount.len()), (None, 0, 0));
    }
}

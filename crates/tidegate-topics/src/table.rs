//! A hash map that grows in parts.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

use crate::hash::Seeded;

/// A hash map in `PARTS` parts, each of which grows by itself: no insert moves more than one part,
/// where one map of a million entries would move them all and stand still for tens of milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Table<K, V> {
    parts: Box<[HashMap<K, V, Seeded>]>,
    seeded: Seeded,
}

const PARTS: usize = 64;

impl<K: Hash + Eq, V> Table<K, V> {
    pub(crate) fn new(seeded: Seeded) -> Self {
        let part = || HashMap::with_hasher(seeded.clone());
        Self { parts: (0..PARTS).map(|_| part()).collect(), seeded }
    }

    pub(crate) fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.parts[self.part(key)].get(key)
    }

    pub(crate) fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let part = self.part(key);
        self.parts[part].get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        let part = self.part(&key);
        self.parts[part].insert(key, value);
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let part = self.part(key);
        self.parts[part].remove(key);
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(HashMap::len).sum()
    }

    /// Bytes of the tables: one of control for each entry, and an eighth of the places is room.
    pub(crate) fn bytes(&self) -> usize {
        let capacity: usize = self.parts.iter().map(HashMap::capacity).sum();
        capacity * 8 / 7 * (size_of::<(K, V)>() + 1)
    }

    fn part<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        // Bits from the middle: a part uses the lowest for places and the highest as marks.
        (self.seeded.hash_one(key) >> 40) as usize % PARTS
    }
}

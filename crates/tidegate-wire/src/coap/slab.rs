//! Values at places of their own, and keys that outlive them without harm.

use std::ops::{Index, IndexMut};

/// A place, and how often it had been filled when it was filled with this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    place: u32,
    generation: u32,
}

impl Key {
    /// As one number.
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self { place: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Values by key.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, value: T) -> Key {
        let Some(place) = self.free.pop() else {
            let place = u32::try_from(self.places.len()).expect("limits are far below 2^32");
            self.places.push((0, Some(value)));
            return Key { place, generation: 0 };
        };
        let (generation, slot) = &mut self.places[place as usize];
        *slot = Some(value);
        Key { place, generation: *generation }
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        let (generation, slot) = self.places.get(key.place as usize)?;
        slot.as_ref().filter(|_| *generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, slot) = self.places.get_mut(key.place as usize)?;
        slot.as_mut().filter(|_| *generation == key.generation)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let (generation, slot) = self.places.get_mut(key.place as usize)?;
        if *generation != key.generation {
            return None;
        }
        let value = slot.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(key.place);
        Some(value)
    }

    /// The key and the value at a place, in the order of places; none where it is free.
    pub(super) fn at_mut(&mut self, place: usize) -> Option<(Key, &mut T)> {
        let (generation, slot) = self.places.get_mut(place)?;
        let key = Key { place: place as u32, generation: *generation };
        slot.as_mut().map(|value| (key, value))
    }

    /// How many places there are, free ones too.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }
}

impl<T> Index<Key> for Slab<T> {
    type Output = T;

    fn index(&self, key: Key) -> &T {
        self.get(key).expect("the key's value is there")
    }
}

impl<T> IndexMut<Key> for Slab<T> {
    fn index_mut(&mut self, key: Key) -> &mut T {
        self.get_mut(key).expect("the key's value is there")
    }
}

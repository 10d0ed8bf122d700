//! Slots that are used again, with keys that are not.

/// Values in slots. A key names a slot and how often it was used, so that a key of a former value finds nothing.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    use_count: u32,
    value: Option<T>,
}

/// A slot and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The slot.
    pub slot: u32,
    /// Which use of the slot; only its low 24 bits are kept in a session's key.
    pub use_count: u32,
}

/// Uses of a slot that can be distinguished.
pub(crate) const USES: u32 = 1 << 24;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { use_count: 0, value: None });
            u32::try_from(self.slots.len() - 1)
                .expect("descriptors and sessions are fewer than 2^32")
        });
        let entry = &mut self.slots[slot as usize];
        entry.use_count = (entry.use_count + 1) % USES;
        entry.value = Some(value);
        Key { slot, use_count: entry.use_count }
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.slot as usize)?;
        if slot.use_count == key.use_count { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        if slot.use_count == key.use_count { slot.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        if slot.use_count != key.use_count {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push(key.slot);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(slot, entry)| {
            let key = Key { slot: slot as u32, use_count: entry.use_count };
            entry.value.as_ref().map(|value| (key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_former_value_finds_nothing() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!((second.slot, slab.get(first), slab.len()), (first.slot, None, 1));
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'b'));
    }
}

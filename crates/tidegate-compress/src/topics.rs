//! The encoder's topics: found by name, numbered densely, forgotten when there is no more room.
//!
//! Numbers are given in the order in which topics come and are used again after a topic was forgotten. Which topic goes is the
//! clock's choice (second chance): one that was used since the hand last came by stays for another round, so that what goes was
//! not used for at least as long.

use crate::{form::Form, kept::Kept};

/// Topics by name and by number.
#[derive(Debug)]
pub(crate) struct Topics {
    /// Hash and number plus one of each topic, at its hash or the next free place after it; 0 where there is none.
    index: Box<[u64]>,
    entries: Vec<Kept>,
    /// Numbers that no topic has.
    free: Vec<u32>,
    hand: u32,
    seed: u64,
    state_bytes: u64,
}

/// Of [`Kept::flags`]: the decoder knows what is kept, as of the batches it has.
const DEFINED: u8 = 1;

/// Of [`Kept::flags`]: it was used since the hand last came by.
const USED: u8 = 2;

/// Of [`Kept::flags`]: the number has no topic.
const FREE: u8 = 4;

/// Of [`Kept::flags`]: its payload is kept in one piece only because no schema was free.
const WAITING: u8 = 8;

/// Places of the smallest index.
const INDEX_MIN: usize = 64;

impl Topics {
    /// None. `seed` should be hard to guess, so that a sender cannot choose topics that fall on one place.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            index: vec![0; INDEX_MIN].into(),
            entries: Vec::new(),
            free: Vec::new(),
            hand: 0,
            seed,
            state_bytes: 0,
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Their cost against the limit of state.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// Bytes of memory that all of this has touched, the allocator's own aside.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.len() * size_of::<u64>()
            + self.entries.len() * size_of::<Kept>()
            + self.free.capacity() * size_of::<u32>()
            + self.entries.iter().map(Kept::block_bytes).sum::<usize>()
    }

    /// The hash of a topic.
    #[inline]
    pub(crate) fn hash(&self, topic: &[u8]) -> u32 {
        hash(self.seed, topic) as u32
    }

    /// The number of `topic`.
    #[inline]
    pub(crate) fn find(&self, hash: u32, topic: &[u8]) -> Option<u32> {
        let mask = self.index.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let place = self.index[at];
            if place == 0 {
                return None;
            }
            if (place >> 32) as u32 == hash {
                let number = place as u32 - 1;
                if self.entries[number as usize].topic() == topic {
                    return Some(number);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Whether `topic` has this number.
    #[inline]
    pub(crate) fn is_topic(&self, number: u32, topic: &[u8]) -> bool {
        let entry = self.entries.get(number as usize);
        entry.is_some_and(|entry| entry.topic() == topic && entry.flags & FREE == 0)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Kept {
        &self.entries[number as usize]
    }

    /// The topic `number`, which has been touched.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Kept {
        &mut self.entries[number as usize]
    }

    /// The topic `number`, which is used by this.
    #[inline]
    pub(crate) fn touch(&mut self, number: u32, batch: u64) -> &mut Kept {
        let kept = &mut self.entries[number as usize];
        kept.flags |= USED;
        kept.batch = batch as u32;
        kept
    }

    /// Whether the decoder knows what is kept of a topic, as of the batches it has.
    #[inline]
    pub(crate) fn is_defined(&self, number: u32) -> bool {
        self.entries[number as usize].flags & DEFINED != 0
    }

    /// Whether a topic's payload is kept in one piece only because no schema was free.
    #[inline]
    pub(crate) fn is_waiting(&self, number: u32) -> bool {
        self.entries[number as usize].flags & WAITING != 0
    }

    /// Notes that no schema was free for what is kept of a topic, until that is exchanged.
    pub(crate) fn set_waiting(&mut self, number: u32) {
        self.entries[number as usize].flags |= WAITING;
    }

    /// Gives a topic that has none a number.
    pub(crate) fn insert(&mut self, hash: u32, mut kept: Kept, batch: u64) -> u32 {
        if (self.entries.len() + 1) * 4 > self.index.len() * 3 {
            self.rehash();
        }
        self.state_bytes += kept.cost();
        (kept.batch, kept.flags) = (batch as u32, DEFINED | USED);
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = kept;
                number
            }
            None => {
                self.entries.push(kept);
                (self.entries.len() - 1) as u32
            }
        };
        put(&mut self.index, hash, number);
        number
    }

    /// Puts the numbers into `out` of which the decoder may hold something else, the lowest last.
    pub(crate) fn undefined(&self, out: &mut Vec<u32>) {
        out.clear();
        let numbers = (0..self.entries.len() as u32).rev();
        out.extend(numbers.filter(|number| !self.is_defined(*number)));
    }

    /// Exchanges what is kept of a topic that has a number; its name stays.
    pub(crate) fn replace(&mut self, number: u32, mut kept: Kept) {
        let place = &mut self.entries[number as usize];
        self.state_bytes = self.state_bytes + kept.cost() - place.cost();
        (kept.batch, kept.flags) = (place.batch, DEFINED | USED);
        *place = kept;
    }

    /// Notes that what a topic counts has changed from `before`.
    #[inline]
    pub(crate) fn recount(&mut self, number: u32, before: u64) {
        self.state_bytes = self.state_bytes + self.entries[number as usize].cost() - before;
    }

    /// Chooses a topic to forget and forgets it: one that `batch` has not used. Returns its number, which the next new topic gets, and
    /// its schema's, or `None` if there is no such topic.
    pub(crate) fn evict(&mut self, batch: u64) -> Option<(u32, u16)> {
        // Twice around: once to take their second chance, once to find one without.
        for _ in 0..2 * self.entries.len() {
            let number = self.hand;
            self.hand = (self.hand + 1) % self.entries.len() as u32;
            let entry = &mut self.entries[number as usize];
            if entry.flags & FREE != 0 || entry.batch == batch as u32 {
                continue;
            }
            if entry.flags & USED != 0 {
                entry.flags &= !USED;
                continue;
            }
            let schema = entry.schema;
            self.remove(number);
            return Some((number, schema));
        }
        None
    }

    fn remove(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        self.state_bytes -= entry.cost();
        let hash = hash(self.seed, entry.topic()) as u32;
        *entry = Kept::new(&[], &[], 0, Form::text(&[], &[]));
        entry.flags = FREE;
        self.free.push(number);
        let mask = self.index.len() - 1;
        let mut hole = hash as usize & mask;
        while self.index[hole] as u32 != number + 1 {
            hole = (hole + 1) & mask;
        }
        // Those after it move up as far as their own hash allows, so that no search ends before them.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let next = self.index[at];
            if next == 0 {
                break;
            }
            let home = (next >> 32) as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.index[hole] = next;
                hole = at;
            }
        }
        self.index[hole] = 0;
    }

    fn rehash(&mut self) {
        let mut index = vec![0; self.index.len() * 2].into_boxed_slice();
        for place in self.index.iter().filter(|place| **place != 0) {
            put(&mut index, (place >> 32) as u32, *place as u32 - 1);
        }
        self.index = index;
    }

    /// Notes that the decoder does not know what batches from `batch` on have changed.
    ///
    /// A topic that was not used for 2³¹ batches counts as changed: it is defined once more, and nothing is wrong.
    pub(crate) fn undefine_since(&mut self, batch: u64) {
        for entry in &mut self.entries {
            if entry.batch.wrapping_sub(batch as u32) as i32 >= 0 {
                // It is not of the batch that comes next under that number, and the first to go.
                entry.flags &= !(DEFINED | USED);
                entry.batch = (batch as u32).wrapping_sub(1);
            }
        }
    }

    /// Notes that the decoder knows nothing of the topics whose numbers are in `shard`, out of [`crate::SHARDS`].
    pub(crate) fn undefine_shard(&mut self, shard: u8) {
        for entry in self.entries.iter_mut().skip(usize::from(shard)).step_by(crate::SHARDS) {
            entry.flags &= !DEFINED;
        }
    }
}

fn put(index: &mut [u64], hash: u32, number: u32) {
    let mask = index.len() - 1;
    let mut at = hash as usize & mask;
    while index[at] != 0 {
        at = (at + 1) & mask;
    }
    index[at] = u64::from(hash) << 32 | u64::from(number + 1);
}

/// Eight bytes at a time, multiplied by a secret into twice their width and folded.
#[inline]
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |one: u64, other: u64| {
        let product = u128::from(one) * u128::from(other);
        product as u64 ^ (product >> 64) as u64
    };
    let mut state = seed ^ (bytes.len() as u64).wrapping_mul(ODD);
    let mut words = bytes.chunks_exact(8);
    for word in words.by_ref() {
        let word = u64::from_le_bytes(word.try_into().expect("a chunk has eight bytes"));
        state = fold(state ^ word, seed | 1) ^ state.rotate_left(23);
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    let state = fold(state ^ u64::from_le_bytes(last), seed.rotate_left(32) | 1);
    let state = fold(state, ODD);
    state ^ state >> 32
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn kept(topic: &str) -> Kept {
        Kept::new(topic.as_bytes(), b"", 0, Form::text(topic.as_bytes(), &[]))
    }

    fn insert(topics: &mut Topics, topic: &str, batch: u64) -> u32 {
        let hash = topics.hash(topic.as_bytes());
        topics.insert(hash, kept(topic), batch)
    }

    fn find(topics: &Topics, topic: &str) -> Option<u32> {
        topics.find(topics.hash(topic.as_bytes()), topic.as_bytes())
    }

    #[test]
    fn unused_topics_go_first() {
        let mut topics = Topics::new(1);
        let numbers = ["a", "b", "c"].map(|topic| insert(&mut topics, topic, 1));
        topics.evict(2).expect("all have had their second chance");
        assert_eq!(find(&topics, "a"), None);
        topics.touch(numbers[1], 2);
        assert_eq!(topics.evict(3), Some((numbers[2], 0)), "b was used since");
        assert_eq!(insert(&mut topics, "d", 3), numbers[2], "its number is used again");
        assert_eq!(topics.len(), 2);
    }

    #[test]
    fn topics_of_this_batch_stay() {
        let mut topics = Topics::new(1);
        insert(&mut topics, "a", 7);
        assert_eq!(topics.evict(7), None);
        assert_eq!(topics.evict(8), Some((0, 0)));
        assert_eq!(topics.state_bytes(), 0);
    }

    #[test]
    fn the_decoder_is_told_again_what_it_does_not_know() {
        let mut topics = Topics::new(1);
        for (topic, batch) in [("a", 1), ("b", 2), ("c", 3)] {
            insert(&mut topics, topic, batch);
        }
        topics.undefine_since(2);
        assert_eq!([0, 1, 2].map(|number| topics.is_defined(number)), [true, false, false]);
        topics.undefine_shard(0);
        assert!(!topics.is_defined(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Against a map, and so full that places collide.
        #[test]
        fn topics_are_found_by_name_whatever_came_and_went(steps in proptest::collection::vec((0u32..80, any::<bool>()), 1..400), seed: u64) {
            let mut topics = Topics::new(seed);
            let mut model = BTreeMap::new();
            for (batch, (name, evicts)) in steps.into_iter().enumerate() {
                let topic = format!("t/{name}");
                if evicts {
                    if let Some((number, _)) = topics.evict(batch as u64) {
                        model.retain(|_, known| *known != number);
                    }
                } else {
                    model.entry(topic).or_insert_with_key(|topic| insert(&mut topics, topic, batch as u64));
                }
                prop_assert_eq!(topics.len(), model.len());
                prop_assert_eq!(model.values().collect::<BTreeSet<_>>().len(), model.len());
                for (topic, number) in &model {
                    prop_assert_eq!(find(&topics, topic), Some(*number));
                }
                let cost = model.keys().map(|topic| kept(topic).cost()).sum::<u64>();
                prop_assert_eq!(topics.state_bytes(), cost);
            }
        }
    }
}

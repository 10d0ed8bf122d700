//! State by key: one open-addressing table, and one block of words for each key.
//!
//! ```text
//!  key ──hash──▶ slots, in lines of 16: tag │ block     words: block 0 │ block 1 │ …
//!            (a full one continues in the next; half empty)     ▲
//!                                                              └ identity │ meta │ key bytes │ state of every kernel
//! ```
//!
//! With a million keys the slots and blocks lie far outside the caches, and a message that waits for its own two misses in turn takes
//! longer than all its arithmetic. So a batch is resolved in passes: slots are asked for as soon as their hash is known, long before
//! they are looked at, blocks as soon as their number is. A line of slots is one miss, and is looked at in one go: where in it a key
//! stands, no processor can guess. Half empty, one in a thousand keys stands in another line than its own. Both vectors are allocated
//! whole at the start, as zeros that the kernel backs with (large) pages when they are first written, so that nothing is ever moved or
//! hashed again.
//!
//! Always true: an occupied block has exactly one slot, no slot names a free block; a group of slots is full if a key went by it; a
//! block that a row of the batch at hand resolved to is not given to another key; keys are distinguished by all their bytes, not by
//! their hash.

use std::ops::{Deref, DerefMut, Range};

use tidegate_sys::{
    memory,
    vector::{Work, wide},
};

use crate::{
    batch::{BATCH_MAX, Numbers, Rows},
    hash,
};

/// Fewest keys that a table is made for: a batch must fit into it several times.
pub(crate) const KEYS_MIN: u32 = 1024;
/// Most keys that a table is made for.
pub(crate) const KEYS_LIMIT: u32 = 1 << 28;
/// Longest key.
pub(crate) const KEY_BYTES_MAX: usize = 4096;

/// Words of a block before the state: identity and meta, and the key where it is text.
const NUMBER_HEADER: usize = 2;
const TEXT_HEADER: usize = 8;
/// Bytes of a text key that lie in its block. Longer keys are kept apart.
const INLINE_BYTES: usize = (TEXT_HEADER - NUMBER_HEADER) * 8;
const LINE_BYTES: usize = 64;
/// Words of a cache line.
const LINE: usize = LINE_BYTES / size_of::<u64>();

/// Slots of a cache line, which are looked at in one go.
const GROUP: usize = LINE_BYTES / size_of::<u32>();
/// With fewer, more than one in a hundred keys would have the tag of another in its group.
const TAG_BITS_MIN: u32 = 10;
/// How many rows before its turn a line is brought near that is on its way already.
const AHEAD: usize = 8;

const META_OCCUPIED: u64 = 1 << 15;
/// Touched since the hand came by.
const META_REFERENCED: u64 = 1 << 14;
const META_LENGTH: u64 = META_REFERENCED - 1;
const _: () = assert!((KEY_BYTES_MAX as u64) < META_LENGTH);
const _: () = assert!(KEYS_MIN as usize >= 2 * BATCH_MAX);

/// State by key.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Number of the block, from 1, and above it some bits of the hash.
    slots: Words<u32>,
    /// The upper bits of a hash are the group of slots that is its home.
    shift: u32,
    /// Bits of a slot that are the block's number; the others are the tag's.
    number_mask: u32,
    words: Words<u64>,
    stride: usize,
    header: usize,
    /// State of a new key.
    initial: Vec<u64>,
    capacity: u32,
    /// Blocks that were ever used; those beyond were not.
    used: u32,
    /// First free block below `used`, from 1; the next stands where its identity was.
    free: u32,
    live: u32,
    /// Where the clock's hand stands.
    hand: u32,
    /// Where the search for expired keys stands.
    sweep: u32,
    /// Number of the batch.
    stamp: u16,
    expire_seconds: Option<u32>,
    seed: u64,
    /// Bytes of keys that are longer than fits a block.
    long: Vec<Box<[u8]>>,
    long_free: Vec<u32>,
    pub(crate) evicted: u64,
    pub(crate) expired: u64,
}

/// Zeros that begin with a cache line, in large pages where there are many.
#[derive(Debug)]
struct Words<T> {
    words: Vec<T>,
    /// Where they begin. The vector is never moved, so that this holds.
    offset: usize,
    count: usize,
}

impl<T> Words<T> {
    /// `zeros` has room for `count` and a line. It comes from the allocator as zeros, and is not written to.
    fn aligned(zeros: Vec<T>, count: usize) -> Self {
        let room = zeros.len() - count;
        let offset = zeros.as_ptr().align_offset(LINE_BYTES).min(room);
        memory::prefer_large_pages(&zeros);
        Self { words: zeros, offset, count }
    }
}

impl<T> Deref for Words<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.words[self.offset..self.offset + self.count]
    }
}

impl<T> DerefMut for Words<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.words[self.offset..self.offset + self.count]
    }
}

/// Keys of a batch.
#[derive(Debug)]
pub(crate) struct Probes {
    pub(crate) hashes: [u64; BATCH_MAX],
    /// Of a number its bits, of a text its hash.
    pub(crate) identities: [u64; BATCH_MAX],
}

impl Probes {
    pub(crate) const fn new() -> Self {
        Self { hashes: [0; BATCH_MAX], identities: [0; BATCH_MAX] }
    }

    /// Of keys that are numbers.
    pub(crate) fn hash_numbers(&mut self, seed: u64, numbers: &Numbers, rows: Range<usize>) {
        let (hashes, identities) =
            (&mut self.hashes[rows.clone()], &mut self.identities[rows.clone()]);
        wide(HashNumbers { seed, numbers: &numbers[rows], hashes, identities });
    }
}

impl Keys {
    /// Words that a key takes in all, with `state` words for kernels.
    pub(crate) fn stride(is_text: bool, state: usize) -> usize {
        let whole = state + if is_text { TEXT_HEADER } else { NUMBER_HEADER };
        // A block that fits a line shall lie in one.
        if whole <= LINE { whole.next_power_of_two() } else { whole.next_multiple_of(LINE) }
    }

    /// Bytes of the slots of a table for that many keys: at most half of them are taken.
    pub(crate) fn slot_bytes(capacity: u32) -> u64 {
        Self::slot_count(capacity) as u64 * size_of::<u32>() as u64
    }

    /// Bytes outside its block that a key of text may take: those that do not fit the block, where they are kept, and the allocator's
    /// overhead.
    pub(crate) fn long_bytes(key_bytes_max: usize) -> u64 {
        let beside = size_of::<Box<[u8]>>() + size_of::<u32>() + 16;
        if key_bytes_max > INLINE_BYTES { (key_bytes_max + beside) as u64 } else { 0 }
    }

    fn slot_count(capacity: u32) -> usize {
        (capacity as usize * 2).next_power_of_two()
    }

    pub(crate) fn new(
        is_text: bool,
        initial: Vec<u64>,
        capacity: u32,
        expire_seconds: Option<u32>,
        seed: u64,
    ) -> Self {
        let stride = Self::stride(is_text, initial.len());
        let slot_count = Self::slot_count(capacity);
        let word_count = stride * capacity as usize;
        Self {
            slots: Words::aligned(vec![0; slot_count + LINE_BYTES / size_of::<u32>()], slot_count),
            shift: 64 - (slot_count / GROUP).trailing_zeros(),
            number_mask: (capacity + 1).next_power_of_two() - 1,
            words: Words::aligned(vec![0; word_count + LINE], word_count),
            stride,
            header: if is_text { TEXT_HEADER } else { NUMBER_HEADER },
            initial,
            capacity,
            used: 0,
            free: 0,
            live: 0,
            hand: 0,
            sweep: 0,
            stamp: 0,
            expire_seconds,
            seed,
            long: Vec::new(),
            long_free: Vec::new(),
            evicted: 0,
            expired: 0,
        }
    }

    /// Whether keys are forgotten for their age.
    pub(crate) fn expires(&self) -> bool {
        self.expire_seconds.is_some()
    }

    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    pub(crate) fn is_text(&self) -> bool {
        self.header == TEXT_HEADER
    }

    /// All words; those of a row's state begin where [`Keys::resolve`] said.
    #[inline]
    pub(crate) fn words(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Finds the state of each row's key, or makes it, and writes to `states`, where its block was written by [`Keys::locate`], where
    /// it begins. `text` has the bytes of a row's key where keys are text. `now` is in seconds.
    pub(crate) fn resolve<'a>(
        &mut self,
        now: u32,
        rows: &Rows,
        probes: &Probes,
        text: impl Fn(u8) -> &'a [u8],
        states: &mut [u32; BATCH_MAX],
    ) {
        self.stamp = self.stamp.wrapping_add(1);
        self.sweep(now, rows.len() as u32 / 16 + 1);
        let missed = if self.is_text() {
            self.resolve_known::<true, _>(now, rows, probes, &text, states)
        } else {
            self.resolve_known::<false, _>(now, rows, probes, &text, states)
        };
        for row in missed.iter() {
            let index = usize::from(row);
            let (hash, identity) = (probes.hashes[index], probes.identities[index]);
            let key = if self.is_text() { text(row) } else { &[] };
            states[index] = match self.find(hash, identity, key) {
                Some(block) => self.touch(block, now),
                None => self.insert(hash, identity, key, now),
            };
        }
    }

    /// Finds the state of keys that are there already, and returns the rows of others. Those are marked first, so that no new key of
    /// this batch takes their place.
    fn resolve_known<'a, const TEXT: bool, F: Fn(u8) -> &'a [u8]>(
        &mut self,
        now: u32,
        rows: &Rows,
        probes: &Probes,
        text: &F,
        states: &mut [u32; BATCH_MAX],
    ) -> Rows {
        let header = if TEXT { TEXT_HEADER } else { NUMBER_HEADER };
        let meta = self.meta(now);
        let expire = self.expire_seconds.unwrap_or(u32::MAX);
        let (words, long) = (&mut self.words[..], &self.long[..]);
        let mut missed = Rows::none();
        let rows = rows.as_slice();
        for (place, row) in rows.iter().enumerate() {
            if let Some(next) = rows.get(place + AHEAD) {
                let base = states[usize::from(*next)] as usize;
                memory::prefetch(words, base);
                if TEXT {
                    memory::prefetch(words, base + TEXT_HEADER);
                }
            }
            let index = usize::from(*row);
            let base = states[index] as usize;
            let Some(&[identity, old]) = words.get(base..base + 2) else {
                missed.push(*row);
                continue;
            };
            let age = now.saturating_sub((old >> 32) as u32);
            let is_it = (identity == probes.identities[index])
                & (old & META_OCCUPIED != 0)
                & (age <= expire);
            if is_it && (!TEXT || is_key(words, long, base, text(*row))) {
                words[base + 1] = meta | (old & META_LENGTH);
                states[index] = (base + header) as u32;
            } else {
                missed.push(*row);
            }
        }
        missed
    }

    /// Asks for the slots of keys that are `next` to be located, and for the blocks of those in `rows`, which are to be resolved soon.
    /// By turns, so that memory is asked for one after the other.
    ///
    /// Writes to `blocks` where they begin: that of a slot with the hash's tag, and block 0 where there is none, which is no worse to
    /// read. Whether it is the key's is not known before [`Keys::resolve`], and keys that stand in another group are looked for there.
    pub(crate) fn locate(
        &self,
        rows: &[u8],
        next: &[u8],
        probes: &Probes,
        blocks: &mut [u32; BATCH_MAX],
    ) {
        wide(Locate { keys: self, rows, next, probes, blocks });
    }

    /// The group of slots that a key's is in as long as there is room.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    #[inline]
    fn group(&self, group: usize) -> &[u32] {
        &self.slots[group * GROUP..(group + 1) * GROUP]
    }

    /// The group behind.
    #[inline]
    fn after(&self, group: usize) -> usize {
        (group + 1) & (self.slots.len() / GROUP - 1)
    }

    /// The block, from 0, in a slot that is taken.
    #[inline]
    fn block(&self, slot: u32) -> u32 {
        (slot & self.number_mask).wrapping_sub(1)
    }

    /// The hash of the key that a block belongs to.
    fn hash_of(&self, block: u32) -> u64 {
        let identity = self.words[self.base(block)];
        if self.is_text() { identity } else { hash::word(self.seed, identity) }
    }

    #[inline]
    fn base(&self, block: u32) -> usize {
        block as usize * self.stride
    }

    /// Whether `block` is that of the key.
    #[inline]
    fn holds<'a>(&self, block: u32, identity: u64, key: impl FnOnce() -> &'a [u8]) -> bool {
        let base = self.base(block);
        self.words[base] == identity
            && (!self.is_text() || is_key(&self.words, &self.long, base, key()))
    }

    /// The key's block, its tag shared by others or not.
    fn find(&self, hash: u64, identity: u64, key: &[u8]) -> Option<u32> {
        let mut group = self.home(hash);
        loop {
            let slots = self.group(group);
            for slot in slots.iter().filter(|slot| **slot != 0) {
                let block = self.block(*slot);
                let is_tag = (slot ^ hash as u32) & !self.number_mask == 0;
                if is_tag && self.holds(block, identity, || key) {
                    return Some(block);
                }
            }
            if slots.contains(&0) {
                return None;
            }
            group = self.after(group);
        }
    }

    /// Marks a block as used now, and returns where its state begins; expired state starts over.
    #[inline]
    fn touch(&mut self, block: u32, now: u32) -> u32 {
        let base = self.base(block);
        let meta = self.words[base + 1];
        if self.is_expired(meta, now) {
            self.expired += 1;
            let state = base + self.header;
            self.words[state..state + self.initial.len()].copy_from_slice(&self.initial);
        }
        let length = meta & META_LENGTH;
        self.words[base + 1] = self.meta(now) | length;
        (base + self.header) as u32
    }

    #[inline]
    fn meta(&self, now: u32) -> u64 {
        u64::from(now) << 32 | u64::from(self.stamp) << 16 | META_OCCUPIED | META_REFERENCED
    }

    #[inline]
    fn is_expired(&self, meta: u64, now: u32) -> bool {
        let age = now.saturating_sub((meta >> 32) as u32);
        self.expire_seconds.is_some_and(|expire| age > expire)
    }

    fn insert(&mut self, hash: u64, identity: u64, key: &[u8], now: u32) -> u32 {
        let block = self.claim();
        let base = self.base(block);
        self.words[base] = identity;
        self.words[base + 1] = self.meta(now) | key.len() as u64;
        if key.len() > INLINE_BYTES {
            self.words[base + NUMBER_HEADER] = u64::from(self.keep_long(key));
        } else if self.is_text() {
            let place = &mut self.words[base + NUMBER_HEADER..base + TEXT_HEADER];
            for (word, chunk) in place.iter_mut().zip(key.chunks(8)) {
                *word = last_word(chunk);
            }
        }
        let state = base + self.header;
        self.words[state..state + self.initial.len()].copy_from_slice(&self.initial);
        let mut group = self.home(hash);
        let free = loop {
            if let Some(place) = self.group(group).iter().position(|slot| *slot == 0) {
                break group * GROUP + place;
            }
            group = self.after(group);
        };
        self.slots[free] = hash as u32 & !self.number_mask | (block + 1);
        self.live += 1;
        state as u32
    }

    fn keep_long(&mut self, key: &[u8]) -> u32 {
        match self.long_free.pop() {
            Some(place) => {
                self.long[place as usize] = key.into();
                place
            }
            None => {
                self.long.push(key.into());
                self.long.len() as u32 - 1
            }
        }
    }

    /// A block that belongs to no key: a free one, a new one, or that of a key which was not used for long.
    fn claim(&mut self) -> u32 {
        if self.free == 0 && self.used < self.capacity {
            self.used += 1;
            return self.used - 1;
        }
        if self.free == 0 {
            let block = self.least_used();
            self.remove(block);
            self.evicted += 1;
        }
        let block = self.free - 1;
        self.free = self.words[self.base(block)] as u32;
        block
    }

    /// Goes round as the hand of a clock: blocks touched since it last came by are passed over once. At most a batch of blocks is
    /// held by this batch, and there are more, so it ends in its second round.
    fn least_used(&mut self) -> u32 {
        loop {
            let block = self.hand;
            self.hand = if block + 1 == self.used { 0 } else { block + 1 };
            let at = self.base(block) + 1;
            let meta = self.words[at];
            if (meta >> 16) as u16 == self.stamp {
                continue;
            }
            if meta & META_REFERENCED == 0 {
                return block;
            }
            self.words[at] = meta & !META_REFERENCED;
        }
    }

    /// Looks at the next `count` blocks for expired ones.
    fn sweep(&mut self, now: u32, count: u32) {
        if self.expire_seconds.is_none() {
            return;
        }
        for _ in 0..count.min(self.used) {
            let block = if self.sweep < self.used { self.sweep } else { 0 };
            self.sweep = block + 1;
            let at = self.base(block) + 1;
            // Prefetches the blocks that the next call looks at.
            memory::prefetch_many(&self.words, at + count as usize * self.stride);
            let meta = self.words[at];
            if meta & META_OCCUPIED == 0 {
                continue;
            }
            if self.is_expired(meta, now) {
                self.remove(block);
                self.expired += 1;
            } else if (meta >> 32) as u32 > now {
                // The clock was set back, or a snapshot is from another: the key would be kept until it comes round.
                self.words[at] = u64::from(now) << 32 | meta & u64::from(u32::MAX);
            }
        }
    }

    /// Removes expired keys among the next `count` blocks, for callers without messages.
    pub(crate) fn expire(&mut self, now: u32, count: u32) {
        self.sweep(now, count);
    }

    fn remove(&mut self, block: u32) {
        let base = self.base(block);
        let mut group = self.home(self.hash_of(block));
        let mut hole = loop {
            let is_it = |slot: &u32| *slot != 0 && self.block(*slot) == block;
            if let Some(place) = self.group(group).iter().position(is_it) {
                break group * GROUP + place;
            }
            group = self.after(group);
        };
        self.slots[hole] = 0;
        // A key that found no room there moves up, and leaves a hole where others may have found none.
        while let Some(next) = self.gone_by(hole) {
            self.slots[hole] = std::mem::take(&mut self.slots[next]);
            hole = next;
        }
        if self.words[base + 1] & META_LENGTH > INLINE_BYTES as u64 {
            let place = self.words[base + NUMBER_HEADER] as u32;
            self.long[place as usize] = Box::default();
            self.long_free.push(place);
        }
        self.words[base] = u64::from(self.free);
        self.words[base + 1] = 0;
        self.free = block + 1;
        self.live -= 1;
    }

    /// A slot behind the group of `hole` whose key would stand in that group, had there been room.
    fn gone_by(&self, hole: usize) -> Option<usize> {
        let mask = self.slots.len() / GROUP - 1;
        let group = hole / GROUP;
        // No key goes past a group that has another free slot.
        if self.group(group).iter().filter(|slot| **slot == 0).count() > 1 {
            return None;
        }
        let mut next = self.after(group);
        loop {
            let went_by = |slot: &u32| {
                if *slot == 0 {
                    return false;
                }
                let home = self.home(self.hash_of(self.block(*slot)));
                next.wrapping_sub(home) & mask >= next.wrapping_sub(group) & mask
            };
            let slots = self.group(next);
            if let Some(place) = slots.iter().position(went_by) {
                return Some(next * GROUP + place);
            }
            if slots.contains(&0) {
                return None;
            }
            next = self.after(next);
        }
    }

    /// Blocks that were ever used: those that keys may be in.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// The key's state of a block that a key is in: where it begins, and the second of its last use.
    pub(crate) fn occupied(&self, block: u32) -> Option<(usize, u32)> {
        let base = self.base(block);
        let meta = self.words[base + 1];
        (meta & META_OCCUPIED != 0).then(|| (base + self.header, (meta >> 32) as u32))
    }

    /// Each key of these blocks with the second of its last use and its state.
    pub(crate) fn entries(&self, blocks: Range<u32>) -> impl Iterator<Item = Entry<'_>> {
        let is_taken = |block: &u32| self.words[self.base(*block) + 1] & META_OCCUPIED != 0;
        blocks.filter(is_taken).map(|block| {
            let base = self.base(block);
            let meta = self.words[base + 1];
            let length = (meta & META_LENGTH) as usize;
            let state = base + self.header;
            let mut key = Vec::with_capacity(length);
            if length > INLINE_BYTES {
                key.extend_from_slice(&self.long[self.words[base + NUMBER_HEADER] as usize]);
            } else if self.is_text() {
                for word in &self.words[base + NUMBER_HEADER..base + TEXT_HEADER] {
                    key.extend_from_slice(&word.to_le_bytes());
                }
                key.truncate(length);
            } else {
                key.extend_from_slice(&self.words[base].to_le_bytes());
            }
            let seen = (meta >> 32) as u32;
            Entry { key, seen, state: &self.words[state..state + self.initial.len()] }
        })
    }

    /// The hash of a key of a snapshot; none if it is none of this table's.
    pub(crate) fn hash_of_key(&self, key: &[u8]) -> Option<u64> {
        match self.is_text() {
            true => Some(hash::text(self.seed, key)),
            false => {
                key.try_into().ok().map(|bits| hash::word(self.seed, u64::from_le_bytes(bits)))
            }
        }
    }

    /// Puts in a key from a snapshot, and returns its state, which is that of a new key.
    pub(crate) fn restore(&mut self, key: &[u8], seen: u32) -> Option<&mut [u64]> {
        let (hash, identity, key): (u64, u64, &[u8]) = if self.is_text() {
            let hash = hash::text(self.seed, key);
            (hash, hash, key)
        } else {
            let bits = u64::from_le_bytes(key.try_into().ok()?);
            (hash::word(self.seed, bits), bits, &[])
        };
        if key.len() > KEY_BYTES_MAX || self.find(hash, identity, key).is_some() {
            return None;
        }
        // A batch of its own each, so that nothing of it is held.
        self.stamp = self.stamp.wrapping_add(1);
        let state = self.insert(hash, identity, key, seen) as usize;
        Some(&mut self.words[state..state + self.initial.len()])
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(0);
        self.long.clear();
        self.long_free.clear();
        // A slot that is empty reads the first block, and slots with the same tag may read any: none must be believed.
        for block in 0..self.used.max(1) {
            let base = self.base(block);
            if let Some(meta) = self.words.get_mut(base + 1) {
                *meta = 0;
            }
        }
        (self.used, self.free, self.live, self.hand, self.sweep) = (0, 0, 0, 0, 0);
    }
}

/// Whether the block that begins at `base` is that of a key of text.
#[inline]
fn is_key(words: &[u64], long: &[Box<[u8]>], base: usize, key: &[u8]) -> bool {
    let Some([_, meta, stored @ ..]) = words.get(base..base + TEXT_HEADER) else { return false };
    if meta & META_LENGTH != key.len() as u64 {
        return false;
    }
    if key.len() > INLINE_BYTES {
        return *long[stored[0] as usize] == *key;
    }
    let (whole, rest) = key.as_chunks::<8>();
    let same = whole.iter().zip(stored).all(|(a, b)| u64::from_le_bytes(*a) == *b);
    same && (rest.is_empty() || stored[whole.len()] == last_word(rest))
}

/// [`Probes::hash_numbers`] at work.
struct HashNumbers<'a> {
    seed: u64,
    numbers: &'a [f64],
    hashes: &'a mut [u64],
    identities: &'a mut [u64],
}

impl Work for HashNumbers<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let to = self.hashes.iter_mut().zip(self.identities);
        for (number, (hash, identity)) in self.numbers.iter().zip(to) {
            // Both zeros are one key.
            *identity = (number + 0.0).to_bits();
            *hash = hash::word(self.seed, *identity);
        }
    }
}

/// [`Keys::locate`] at work.
struct Locate<'a> {
    keys: &'a Keys,
    rows: &'a [u8],
    next: &'a [u8],
    probes: &'a Probes,
    blocks: &'a mut [u32; BATCH_MAX],
}

impl Work for Locate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { keys, rows, next, probes, blocks } = self;
        let (slots, words) = (&keys.slots[..], &keys.words[..]);
        let (groups, _) = slots.as_chunks::<GROUP>();
        let (number_mask, stride) = (keys.number_mask, keys.stride as u32);
        let is_text = keys.is_text();
        // So many blocks that a tag has few bits, and several keys of a group the same.
        let is_coarse = number_mask.leading_zeros() < TAG_BITS_MIN;
        let home = |row: u8| keys.home(probes.hashes[usize::from(row)]);
        for (index, row) in rows.iter().enumerate() {
            if let Some(next) = next.get(index) {
                memory::prefetch_many(slots, home(*next) * GROUP);
            }
            let hash = probes.hashes[usize::from(*row)];
            let group = groups.get(keys.home(hash)).unwrap_or(&[0; GROUP]);
            let is_it = |slot: u32| (slot ^ hash as u32) & !number_mask == 0;
            // All slots of a group, without a branch: where in it the key is, no processor can guess. Should several have the tag, they
            // make a number that is no block or a wrong one, which is seen when the key is resolved.
            let mut slot =
                group.iter().fold(0, |slot, one| slot | if is_it(*one) { *one } else { 0 });
            if is_coarse {
                for one in group.iter().filter(|one| **one != 0 && is_it(**one)) {
                    slot = *one;
                    memory::prefetch_many(words, keys.base(keys.block(slot)));
                }
            }
            let number = slot & number_mask;
            let number = if number <= keys.used { number } else { 0 };
            let base = number.saturating_sub(1).wrapping_mul(stride);
            blocks[usize::from(*row)] = base;
            memory::prefetch_many(words, base as usize);
            if is_text {
                // The line behind, where the state begins.
                memory::prefetch_many(words, base as usize + TEXT_HEADER);
            }
        }
        for next in next.iter().skip(rows.len()) {
            memory::prefetch_many(slots, home(*next) * GROUP);
        }
    }
}

/// A key with its state, for a snapshot.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    /// Text, or the 8 bytes of a number.
    pub(crate) key: Vec<u8>,
    /// The second of its last use.
    pub(crate) seen: u32,
    pub(crate) state: &'a [u64],
}

/// Up to 8 bytes as a word, little-endian, filled up with zeros.
#[inline]
fn last_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests;

//! The memory that the uplinks served by a node may keep, all together.
//!
//! The codec's state of each is reserved when it opens: at most an eighth of what is left, so that something is left for the next.
//! Memory of batches that wait for the broker is counted as it comes.
//!
//! Always true: the sum of the reservations is at most the whole.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Least state that an uplink is served with: of some thousand topics.
const STATE_BYTES_MIN: u64 = 1 << 20;
/// Of what is left, one uplink gets at most this part.
const PART: u64 = 8;

/// Bytes of all uplinks.
#[derive(Debug)]
pub struct Budget {
    bytes_max: u64,
    reserved: AtomicU64,
    waiting: AtomicU64,
}

impl Budget {
    /// All together take at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, reserved: AtomicU64::new(0), waiting: AtomicU64::new(0) })
    }

    /// The most that all together take.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Room for as much state as is asked for, or less; none if there is too little to be of use.
    pub fn reserve(self: &Arc<Self>, asked: u64) -> Option<Reservation> {
        let mut bytes = 0;
        let taken = self.reserved.fetch_update(Relaxed, Relaxed, |reserved| {
            let left = self.bytes_max.saturating_sub(reserved);
            let least = asked.min(STATE_BYTES_MIN);
            bytes = asked.min((left / PART).max(least));
            (bytes <= left).then(|| reserved + bytes)
        });
        taken.ok()?;
        Some(Reservation { budget: self.clone(), bytes, waiting: 0 })
    }

    /// Whether what is reserved and what waits take all there is.
    pub fn is_full(&self) -> bool {
        self.reserved.load(Relaxed).saturating_add(self.waiting.load(Relaxed)) >= self.bytes_max
    }
}

/// The reservation of one uplink, given back when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
    waiting: u64,
}

impl Reservation {
    /// Bytes of state.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// So many bytes of its batches wait now.
    pub fn wait(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.waiting, bytes);
        // Wraps where it falls.
        self.budget.waiting.fetch_add(bytes.wrapping_sub(before), Relaxed);
    }

    /// Whether the uplinks of the node have no room for more that waits.
    pub fn is_full(&self) -> bool {
        self.budget.is_full()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.wait(0);
        self.budget.reserved.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_a_part_of_what_is_left_until_too_little_is() {
        const MIB: u64 = 1 << 20;
        let budget = Budget::new(64 * MIB);
        let first = budget.reserve(256 * MIB).expect("there is room");
        let second = budget.reserve(256 * MIB).expect("there is room");
        assert_eq!((first.bytes(), second.bytes()), (8 * MIB, 7 * MIB));
        let small = budget.reserve(1000).expect("there is room");
        assert_eq!(small.bytes(), 1000, "no more than it asks for");
        let others: Vec<_> = std::iter::from_fn(|| budget.reserve(256 * MIB)).collect();
        assert!(others.len() > 12, "{}", others.len());
        assert!(others.iter().all(|one| one.bytes() >= MIB));
        let sum: u64 = others.iter().chain([&first, &second, &small]).map(|one| one.bytes()).sum();
        assert!(sum <= 64 * MIB && sum > 63 * MIB, "{sum}");
        drop(first);
        assert_eq!(
            budget.reserve(8 * MIB).map(|one| one.bytes()),
            Some(MIB.max((64 * MIB - sum + 8 * MIB) / 8))
        );
        drop((second, small, others));
        assert_eq!(budget.reserve(256 * MIB).map(|one| one.bytes()), Some(8 * MIB));
        assert_eq!(budget.reserved.load(Relaxed), 0);
    }

    #[test]
    fn what_waits_counts_until_it_no_longer_does() {
        let budget = Budget::new(8 << 20);
        let mut one = budget.reserve(1 << 20).expect("there is room");
        let mut other = budget.reserve(1 << 20).expect("there is room");
        one.wait(4 << 20);
        other.wait(1 << 20);
        assert!(!one.is_full());
        other.wait(2 << 20);
        assert!(one.is_full() && other.is_full());
        one.wait(0);
        assert!(!other.is_full());
        one.wait(6 << 20);
        drop(one);
        assert!(!other.is_full());
        assert_eq!(budget.waiting.load(Relaxed), 2 << 20);
    }
}

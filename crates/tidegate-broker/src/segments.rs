//! Memory that large payloads are received into.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

/// Bytes of a segment.
pub(crate) const SEGMENT_BYTES: usize = 64 << 10;
/// Segments that are kept for the next payload: 16 MiB outside the budget.
const KEPT: usize = 256;

/// Segments of one size, reused for later payloads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

/// A segment that is being filled.
#[derive(Debug)]
pub(crate) struct Segment {
    bytes: Box<[u8]>,
    filled: usize,
    /// Where it goes back to; none if it is of another size.
    pool: Option<Segments>,
}

impl Segments {
    /// A segment for the next of `left` bytes: of the usual size, or of theirs if they are few.
    pub(crate) fn take(&self, left: usize) -> Segment {
        if left < SEGMENT_BYTES {
            return Segment { bytes: vec![0; left].into(), filled: 0, pool: None };
        }
        let kept = self.free.lock().expect("no panic while it is held").pop();
        let bytes = kept.unwrap_or_else(|| vec![0; SEGMENT_BYTES].into());
        Segment { bytes, filled: 0, pool: Some(self.clone()) }
    }
}

impl Segment {
    /// Copies as much of `input` as there is room for; how much that was.
    pub(crate) fn fill(&mut self, input: &[u8]) -> usize {
        let count = input.len().min(self.bytes.len() - self.filled);
        self.bytes[self.filled..self.filled + count].copy_from_slice(&input[..count]);
        self.filled += count;
        count
    }

    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.bytes.len()
    }

    /// The bytes that were filled in, shared; the last who lets go of them gives the segment back.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Segment {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            let mut free = pool.free.lock().expect("no panic while it is held");
            if free.len() < KEPT {
                free.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_comes_back_when_the_last_reader_lets_go() {
        let pool = Segments::default();
        let mut segment = pool.take(SEGMENT_BYTES + 5);
        assert_eq!(segment.fill(&[7; SEGMENT_BYTES + 5]), SEGMENT_BYTES);
        assert!(segment.is_full());
        let first = segment.freeze();
        let second = first.slice(10..20);
        drop(first);
        assert_eq!((&*second, pool.free.lock().unwrap().len()), (&[7; 10][..], 0));
        drop(second);
        assert_eq!(pool.free.lock().unwrap().len(), 1);
        let small = pool.take(5);
        assert!(!small.is_full());
        drop(small);
        assert_eq!(pool.free.lock().unwrap().len(), 1);
    }
}

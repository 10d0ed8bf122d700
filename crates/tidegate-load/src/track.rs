//! Which numbers of a sequence arrived, from a small memory of the last ones.

/// Order of an arrival, as its number shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Its first arrival, after all that arrived before.
    InOrder,
    /// Its first arrival, after a later one.
    OutOfOrder,
    /// It had arrived.
    Duplicate,
}

/// The last 64 numbers of one sequence to one receiver.
///
/// A number from further back than those counts as a duplicate: a broker that sends a message again does so from the beginning of
/// what is unacknowledged, and one that overtakes by 64 messages of one publisher breaks the order of the protocol anyway.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sequence {
    /// One past the highest that arrived.
    next: u32,
    /// Bit `i`: `next - 1 - i` arrived.
    seen: u64,
}

impl Sequence {
    #[inline]
    pub(crate) fn observe(&mut self, number: u32) -> Arrival {
        let ahead = number.wrapping_sub(self.next);
        if ahead < u32::MAX / 2 {
            self.seen = match ahead {
                0 => self.seen << 1 | 1,
                1..63 => self.seen << (ahead + 1) | 1,
                _ => 1,
            };
            self.next = number.wrapping_add(1);
            return Arrival::InOrder;
        }
        let behind = self.next.wrapping_sub(number) - 1;
        if behind >= 64 || self.seen & (1 << behind) != 0 {
            return Arrival::Duplicate;
        }
        self.seen |= 1 << behind;
        Arrival::OutOfOrder
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrival::*, *};

    #[test]
    fn numbers_are_told_apart() {
        for (numbers, last) in [
            (&[0][..], InOrder),
            (&[0, 1, 2, 2], Duplicate),
            (&[0, 3, 1], OutOfOrder),
            (&[0, 3, 1, 1], Duplicate),
            (&[0, 63, 0], Duplicate),
            (&[1, 63, 0], OutOfOrder), // the oldest that is remembered
            (&[0, 64, 0], Duplicate),  // forgotten
            (&[7, 200, 199], OutOfOrder),
        ] {
            let mut sequence = Sequence::default();
            let arrivals: Vec<_> = numbers.iter().map(|&number| sequence.observe(number)).collect();
            assert_eq!(arrivals.last(), Some(&last), "{numbers:?}");
        }
    }

    #[test]
    fn numbers_may_wrap() {
        let mut sequence = Sequence { next: u32::MAX, seen: 1 };
        assert_eq!(sequence.observe(u32::MAX), InOrder);
        assert_eq!(sequence.observe(0), InOrder);
        assert_eq!(sequence.observe(u32::MAX), Duplicate);
    }
}

//! The Hilbert curve of one to eight dimensions, and the parts of it that cover a set of points.
//!
//! The curve goes once through every point of a cube, each time to a neighbour. It is followed a bit of the index at a time: each bit
//! halves the part of the cube that is left along one axis, so that the points whose indices begin with the same bits are a box, whatever the
//! number of dimensions. A point's index and the cover of a set come of the same steps. The states and their changes are those of Hamilton
//! and Rau-Chaplin 2008, "Compact Hilbert indices: space-filling curves for domains with unequal side lengths".

use std::collections::VecDeque;

use crate::intervals::{Intervals, Overlap};

/// Most dimensions of a curve.
pub(crate) const DIMENSIONS_MAX: usize = 8;

/// A curve through a cube of so many dimensions and so many bits in each, 64 bits in all at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Curve {
    dimensions: u32,
    bits: u32,
}

/// The points whose indices begin with the same bits: a box.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Bits of the index that are known, from the highest one.
    depth: u32,
    index: u64,
    /// Its lowest corner.
    low: [u64; DIMENSIONS_MAX],
    /// Where the curve enters the cube that is being halved, a bit for each axis.
    entry: u32,
    /// The axis along which it leaves that cube.
    direction: u32,
    /// The bits of the index that halved that cube so far, and how many more will.
    digit: u32,
    left: u32,
    /// The bit of the coordinates that halves that cube.
    place: u32,
    /// Axes on which all of it is wanted, a bit each.
    wanted: u32,
}

impl Curve {
    /// The curve with all bits that an index of 64 bits has room for.
    pub(crate) fn of(dimensions: usize) -> Self {
        assert!((1..=DIMENSIONS_MAX).contains(&dimensions), "a space has checked its dimensions");
        let dimensions = dimensions as u32;
        Self { dimensions, bits: u64::BITS / dimensions }
    }

    /// The largest coordinate.
    pub(crate) fn coordinate_max(self) -> u64 {
        u64::MAX >> (u64::BITS - self.bits)
    }

    /// The index of a point, in the highest bits of a number.
    pub(crate) fn index(self, point: &[u64]) -> u64 {
        let mut part = self.whole();
        while part.depth < self.depth() {
            let half = (point[self.axis(&part)] >> part.place & 1) as u32;
            let bit = self.bit(&part, half);
            self.halve(&mut part, bit);
        }
        part.index
    }

    /// Ranges of indices with all points that have a coordinate of the set on each axis.
    ///
    /// The curve is followed to `depth` bits, from the coarsest parts to the finest, and at most `parts_max` of its parts are looked at;
    /// those that are left then are taken whole.
    pub(crate) fn cover(self, sets: &[Intervals], depth: u32, parts_max: usize) -> Intervals {
        if sets.iter().any(Intervals::is_empty) {
            return Intervals::default();
        }
        let all = (1 << self.dimensions) - 1;
        let mut whole = self.whole();
        for (axis, set) in sets.iter().enumerate() {
            let is_all = set.overlap(0, self.coordinate_max()) == Overlap::Whole;
            whole.wanted |= u32::from(is_all) << axis;
        }
        let (mut waiting, mut looked_at) = (VecDeque::from([whole]), 0);
        let mut ranges = Vec::new();
        while let Some(part) = waiting.pop_front() {
            if part.wanted == all
                || part.depth == depth.min(self.depth())
                || looked_at + 2 > parts_max
            {
                ranges
                    .push((part.index, part.index | u64::MAX.checked_shr(part.depth).unwrap_or(0)));
                continue;
            }
            looked_at += 2;
            for bit in [0, 1] {
                let mut half = part;
                let axis = self.halve(&mut half, bit);
                if half.wanted >> axis & 1 == 0 {
                    let (low, side) = (half.low[axis], (1_u64 << part.place) - 1);
                    match sets[axis].overlap(low, low + side) {
                        Overlap::None => continue,
                        Overlap::Part => {}
                        Overlap::Whole => half.wanted |= 1 << axis,
                    }
                }
                waiting.push_back(half);
            }
        }
        Intervals::of(ranges)
    }

    /// Bits of an index.
    fn depth(self) -> u32 {
        self.dimensions * self.bits
    }

    fn whole(self) -> Part {
        Part {
            depth: 0,
            index: 0,
            low: [0; DIMENSIONS_MAX],
            entry: 0,
            direction: 0,
            digit: 0,
            left: self.dimensions,
            place: self.bits - 1,
            wanted: 0,
        }
    }

    /// The axis along which a part is halved next.
    fn axis(self, part: &Part) -> usize {
        let axis = part.left + part.direction;
        (if axis < self.dimensions { axis } else { axis - self.dimensions }) as usize
    }

    /// The bit of the index of a half along that axis, 0 the lower one; and the half of a bit: each is the other's inverse.
    fn bit(self, part: &Part, half: u32) -> u32 {
        // The Gray code of the digit, as the curve lies in this cube. Before the first bit the digit is 0.
        half ^ (part.digit & 1) ^ (part.entry >> self.axis(part) & 1)
    }

    /// Makes of a part the half of it whose indices go on with that bit, and says along which axis it was halved.
    fn halve(self, part: &mut Part, bit: u32) -> usize {
        let (axis, half) = (self.axis(part), self.bit(part, bit));
        part.low[axis] |= u64::from(half) << part.place;
        part.index |= u64::from(bit) << (u64::BITS - 1 - part.depth);
        part.digit = part.digit << 1 | bit;
        part.depth += 1;
        part.left -= 1;
        if part.left == 0 && part.place > 0 {
            self.enter(part);
        }
        axis
    }

    /// Goes on to the cube that the digit names.
    fn enter(self, part: &mut Part) {
        let digit = part.digit;
        let before = digit.saturating_sub(1);
        let corner = (before & !1) ^ ((before & !1) >> 1);
        let trailing = match digit {
            0 => 0,
            _ if digit.is_multiple_of(2) => before.trailing_ones(),
            _ => digit.trailing_ones(),
        };
        part.entry ^= self.turned(corner, part.direction + 1);
        part.direction = (part.direction + trailing + 1) % self.dimensions;
        (part.digit, part.left, part.place) = (0, self.dimensions, part.place - 1);
    }

    /// The bits of the axes, each moved up by so many axes.
    fn turned(self, axes: u32, by: u32) -> u32 {
        let by = by % self.dimensions;
        (axes << by | axes >> (self.dimensions - by)) & ((1 << self.dimensions) - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// All points of a curve, in the order of their indices.
    fn walk(curve: Curve) -> Vec<(u64, Vec<u64>)> {
        let side = curve.coordinate_max() + 1;
        let count = side.pow(curve.dimensions);
        let point = |number: u64| -> Vec<u64> {
            (0..curve.dimensions).map(|axis| number / side.pow(axis) % side).collect()
        };
        let mut points: Vec<_> =
            (0..count).map(point).map(|point| (curve.index(&point), point)).collect();
        points.sort_unstable();
        points
    }

    #[test]
    fn each_point_has_one_index_and_the_next_one_is_a_neighbour() {
        for (dimensions, bits) in
            [(1, 6), (2, 1), (2, 5), (3, 1), (3, 4), (4, 3), (5, 2), (6, 2), (7, 2), (8, 1), (8, 2)]
        {
            let points = walk(Curve { dimensions, bits });
            for (number, (index, _)) in (0..).zip(&points) {
                assert_eq!(*index >> (64 - dimensions * bits), number, "{dimensions}, {bits}");
            }
            for pair in points.windows(2) {
                let apart =
                    pair[0].1.iter().zip(&pair[1].1).map(|(one, other)| one.abs_diff(*other));
                assert_eq!(apart.sum::<u64>(), 1, "{dimensions}, {bits}: {pair:?}");
            }
        }
    }

    /// They were computed a second time by another program.
    #[test]
    fn numbers_of_points_stay_what_they_are() {
        for (point, expected) in [
            (&[0x0123_4567_89AB_CDEF][..], 0x0123_4567_89AB_CDEF),
            (&[0, 0], 0),
            (&[u64::from(u32::MAX), 0], u64::MAX),
            (&[1, 2, 3], 0x64),
            (&[0x1234, 0x5678, 0x9ABC, 0xDEF0], 0x4822_A6E2_024C_4EE8),
            (&[1, 2, 3, 4, 5, 6, 7, 255], 0x7F01_7F01_7F83_2B7B),
        ] {
            let index = Curve::of(point.len()).index(point);
            assert_eq!(index, expected, "{point:?}: {index:#x}");
        }
    }

    proptest! {
        #[test]
        fn a_cover_has_all_points_and_with_room_no_others(
            dimensions in 1_u32..=4, sets in vec(vec((0_u64..8, 0_u64..4), 1..3), 4), parts_max in 0_usize..200
        ) {
            let curve = Curve { dimensions, bits: 3 };
            let sets: Vec<_> = sets[..dimensions as usize]
                .iter()
                .map(|given| Intervals::of(given.iter().map(|(low, more)| (*low, low + more))))
                .collect();
            let few = curve.cover(&sets, 64, parts_max);
            let all = curve.cover(&sets, 64, usize::MAX);
            for (index, point) in walk(curve) {
                let is_wanted = point.iter().zip(&sets).all(|(at, set)| set.has(*at));
                prop_assert_eq!(all.has(index), is_wanted);
                prop_assert!(!is_wanted || few.has(index));
            }
        }
    }
}

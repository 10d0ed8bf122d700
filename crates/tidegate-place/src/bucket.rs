//! Buckets: fixed parts of place and index.

use tidegate_message::GeoPoint;

/// A fixed part of all data, which no change of the members splits.
///
/// It has a square of the earth, and the highest 16 bits of an index; data without a place have buckets of their own. Sizes are chosen so:
///
/// - *The square* is one of 2¹⁴ × 2¹⁴: 0.022° of longitude by 0.011° of latitude, 2.4 by 1.2 km at the equator. Nodes along a road are a
///   few hundred metres to some kilometres apart, so that cells of three can part there. A finer square would make the buckets of what
///   moves change more often, and split nodes of one site, which reach each other equally well.
/// - *The index* makes 65,536 buckets of each square. A bucket without data costs nothing. Were data in all of them, the shares of 1,000 equal
///   members would have a standard deviation of 7 % at three owners, and of 12 % at one. Data of many squares come near that. Data without a
///   place, or of one site in one square, do not: in the default [`Space`](crate::Space) they spread as in some 800 equal buckets, so that shares
///   of 64 members deviate by 16 % at three owners, and a thousand members share such data unevenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(u64);

impl Bucket {
    pub(crate) const INDEX_BITS: u32 = 16;
    /// Set in a bucket that has a place.
    const HAS_PLACE: u64 = 1 << (Self::INDEX_BITS + Square::BITS);

    /// The bucket of data at a place and an index, of which the highest bits count: a Hilbert index over the whole of 64 bits.
    pub fn of(place: Option<GeoPoint>, index: u64) -> Self {
        let part = index >> (u64::BITS - Self::INDEX_BITS);
        Self::join(place.map(Square::of), part as u16)
    }

    /// The bucket of a square, or of data without a place, and a part of the index.
    pub(crate) fn join(square: Option<Square>, part: u16) -> Self {
        let square = square.map(|square| Self::HAS_PLACE | u64::from(square.0) << Self::INDEX_BITS);
        Self(u64::from(part) | square.unwrap_or(0))
    }

    /// A number for the bucket, the same in every release; buckets of one square follow each other.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The bucket of that number; none if no bucket has it.
    pub fn from_u64(number: u64) -> Option<Self> {
        let most = match number & Self::HAS_PLACE {
            0 => (1 << Self::INDEX_BITS) - 1,
            _ => 2 * Self::HAS_PLACE - 1,
        };
        (number <= most).then_some(Self(number))
    }

    /// Its part of the index.
    pub(crate) fn part(self) -> u16 {
        self.0 as u16
    }

    /// Its square of the earth; none for data without a place.
    pub(crate) fn square(self) -> Option<Square> {
        let square = (self.0 & (Self::HAS_PLACE - 1)) >> Self::INDEX_BITS;
        (self.0 & Self::HAS_PLACE != 0).then_some(Square(square as u32))
    }
}

/// A square of the earth at the fixed depth: its cuts from the coarsest to the finest, in turn one by longitude (1 is east) and one by
/// latitude (1 is north). This is the order of Morton, and the digits are those of a quadkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Square(pub(crate) u32);

impl Square {
    /// Cuts by longitude, and as many by latitude.
    pub(crate) const DEPTH: u32 = 14;
    /// Cuts in all.
    pub(crate) const BITS: u32 = 2 * Self::DEPTH;

    /// The square that has a point. The north pole is in the northernmost row; −180° is the western end, and 180° the same meridian.
    pub(crate) fn of(point: GeoPoint) -> Self {
        Self::at(Self::column(point.longitude_steps()), Self::row(point.latitude_steps()))
    }

    /// The column of squares, from the west, that has a longitude in steps of 10⁻⁷ degrees; of 180° the easternmost one.
    pub(crate) fn column(longitude_steps: i32) -> u32 {
        Self::stripe(longitude_steps, GeoPoint::LONGITUDE_STEPS_MAX)
    }

    /// The row of squares, from the south, that has a latitude in steps of 10⁻⁷ degrees.
    pub(crate) fn row(latitude_steps: i32) -> u32 {
        Self::stripe(latitude_steps, GeoPoint::LATITUDE_STEPS_MAX)
    }

    fn stripe(steps: i32, most: i32) -> u32 {
        let (steps, most) = (i64::from(steps), i64::from(most));
        (((steps + most) << Self::DEPTH) / (2 * most)).min((1 << Self::DEPTH) - 1) as u32
    }

    /// The square in a column and a row.
    pub(crate) fn at(column: u32, row: u32) -> Self {
        let cuts = (0..Self::DEPTH).rev().flat_map(|bit| [column >> bit & 1, row >> bit & 1]);
        Self(cuts.fold(0, |code, bit| code << 1 | bit))
    }

    /// Its column and its row.
    pub(crate) fn column_and_row(self) -> (u32, u32) {
        // Cuts in turn by longitude and latitude, the finest of all squares last.
        let halves = |(column, row), bit| {
            (column << 1 | self.0 >> (2 * bit + 1) & 1, row << 1 | self.0 >> (2 * bit) & 1)
        };
        (0..Self::DEPTH).rev().fold((0, 0), halves)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(latitude: f64, longitude: f64) -> GeoPoint {
        GeoPoint::new(latitude, longitude).expect("a point")
    }

    #[test]
    fn corners_of_the_earth_have_squares() {
        let all = (1 << Square::BITS) - 1;
        let north = 0x555_5555;
        for (point, expected, note) in [
            (at(-89.999_999, -180.0), 0, "the south-western corner"),
            (at(89.999_999, 179.999_999), all, "the north-eastern corner"),
            (at(89.999_999, 180.0), north, "180° is the western end"),
            (at(90.0, 5.0), Square::of(at(89.999_999, 0.0)).0, "the north pole, at 0°"),
            (at(-90.0, 5.0), Square::of(at(-89.999_999, 0.0)).0, "the south pole, at 0°"),
            (at(0.0, 0.0), 3 << 26, "east and north of both first cuts"),
            (at(-0.000_000_1, -0.000_000_1), all ^ (3 << 26), "west and south of them"),
        ] {
            assert_eq!(Square::of(point).0, expected, "{note}: {point}");
        }
    }

    #[test]
    fn numbers_of_buckets_stay_what_they_are() {
        let amsterdam = Some(at(52.3731, 4.8922));
        for (place, index, expected) in [
            (None, 0, 0),
            (None, u64::MAX, 0xFFFF),
            (None, 0x1234_5678_9ABC_DEF0, 0x1234),
            (amsterdam, 0, 0x1D04_E3FD_0000),
            (amsterdam, u64::MAX, 0x1D04_E3FD_FFFF),
        ] {
            let bucket = Bucket::of(place, index);
            assert_eq!(bucket.to_u64(), expected, "{place:?}, {index:#x}: {:#x}", bucket.to_u64());
        }
    }

    #[test]
    fn no_bucket_has_a_number_beyond_them() {
        for number in [1 << 16, (1 << 44) - 1, 1 << 45, (1 << 45) + 1, u64::MAX] {
            assert_eq!(Bucket::from_u64(number), None, "{number:#x}");
        }
    }

    proptest! {
        #[test]
        fn buckets_are_read_back(latitude: i32, longitude: i32, index: u64, has_place: bool) {
            let point = GeoPoint::from_steps(latitude % 900_000_001, longitude % 1_800_000_001);
            let bucket = Bucket::of(point.filter(|_| has_place), index);
            prop_assert_eq!(Bucket::from_u64(bucket.to_u64()), Some(bucket));
            prop_assert_eq!(bucket.square().is_some(), has_place);
        }
    }
}

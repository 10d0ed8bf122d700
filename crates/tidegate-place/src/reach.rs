//! The buckets that an interest reaches: squares of the earth, and parts of the index.
//!
//! A node that asks has three ways, by the number of buckets. Few are listed, and each has its owners ([`Reach::buckets`],
//! [`Places::owners`](crate::Places::owners)). For many of them, and for an interest in any place, it asks the members that may own one
//! ([`Places::members_of`](crate::Places::members_of)), and each of those finds by [`Reach::has`] which of the buckets that it holds are meant.

use tidegate_message::{
    Area, GeoBox, GeoPoint, Interest,
    attribute::{LATITUDE_NAME, LONGITUDE_NAME},
    interest::{Condition, ValueCondition},
};

use crate::{
    bucket::{Bucket, Square},
    intervals::{Intervals, Overlap},
};

/// The buckets that may have profiles which an interest matches: all of those, and maybe others.
///
/// A bucket is one square and one part of the index. A reach has some squares and some parts, and so every bucket that is one of those squares and
/// one of those parts. Its squares are those in some columns and some rows; or all of the earth, and then data without a place are reached as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Anywhere, and without a place as well, if none.
    squares: Option<Squares>,
    parts: Intervals,
}

impl Reach {
    /// `ranges` are of the index.
    pub(crate) fn of(squares: Option<Squares>, ranges: &Intervals) -> Self {
        let parts = ranges.map(|index| index >> (u64::BITS - Bucket::INDEX_BITS));
        Self { squares, parts }
    }

    /// Whether a bucket is among them: a member asks this of each bucket that it holds. It takes two searches of a few intervals.
    pub fn has(&self, bucket: Bucket) -> bool {
        let has_square = match (&self.squares, bucket.square()) {
            (None, _) => true,
            (Some(squares), Some(square)) => squares.has(square),
            (Some(_), None) => false,
        };
        has_square && self.parts.has(bucket.part().into())
    }

    /// Whether they lie anywhere on the earth and without a place: any member may own some of them.
    pub fn is_anywhere(&self) -> bool {
        self.squares.is_none()
    }

    /// How many there are.
    pub fn count(&self) -> u128 {
        let squares = self.squares.as_ref().map_or((1 << Square::BITS) + 1, Squares::count);
        squares * self.parts.count()
    }

    /// Whether a square in one of those columns and rows is among them.
    pub(crate) fn overlaps(&self, columns: (u64, u64), rows: (u64, u64)) -> bool {
        let has_one = |set: &Intervals, (low, high)| set.overlap(low, high) != Overlap::None;
        let is_in =
            |squares: &Squares| has_one(&squares.columns, columns) && has_one(&squares.rows, rows);
        !self.parts.is_empty() && self.squares.as_ref().is_none_or(is_in)
    }

    /// All of them, in the order of their numbers, if there are at most so many.
    pub fn buckets(&self, most: usize) -> Buckets {
        let count = self.count();
        if count == 0 {
            return Buckets::Few(Vec::new());
        }
        let Some(squares) = &self.squares else { return Buckets::Anywhere };
        if count > most as u128 {
            return Buckets::Many;
        }
        let numbers = |set: &Intervals| -> Vec<u64> {
            set.iter().flat_map(|(low, high)| low..=high).collect()
        };
        let parts = numbers(&self.parts);
        let mut buckets = Vec::new();
        for column in numbers(&squares.columns) {
            for row in numbers(&squares.rows) {
                let square = Square::at(column as u32, row as u32);
                buckets.extend(parts.iter().map(|part| Bucket::join(Some(square), *part as u16)));
            }
        }
        buckets.sort_unstable();
        Buckets::Few(buckets)
    }
}

/// The buckets of a reach, as a list if that is short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// Those; none if the interest matches no profile.
    Few(Vec<Bucket>),
    /// More than were allowed, in an area.
    Many,
    /// Those of the whole earth and of data without a place: at least one of each.
    Anywhere,
}

/// Squares of the earth: all that lie in one of some columns and one of some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Squares {
    pub(crate) columns: Intervals,
    pub(crate) rows: Intervals,
}

impl Squares {
    const LAST: u64 = (1 << Square::DEPTH) - 1;

    /// Squares with all places that an interest matches; none if it asks for no place, and so matches profiles without one as well.
    pub(crate) fn of(interest: &Interest) -> Option<Self> {
        let mut found = None;
        for condition in interest.conditions() {
            let own = match condition {
                Condition::Place(area) => Self::of_area(*area),
                Condition::Pair { name, wanted } if &**name == LATITUDE_NAME => {
                    let rows = of_degrees(wanted, GeoPoint::LATITUDE_STEPS_MAX, Square::row);
                    Self { columns: Intervals::up_to(Self::LAST), rows }
                }
                Condition::Pair { name, wanted } if &**name == LONGITUDE_NAME => {
                    let most = GeoPoint::LONGITUDE_STEPS_MAX;
                    let columns = of_degrees(wanted, most, Square::column);
                    Self { columns, rows: Intervals::up_to(Self::LAST) }
                }
                Condition::Pair { .. } | Condition::Name(_) => continue,
            };
            found = Some(match found {
                None => own,
                Some(Self { columns, rows }) => Self {
                    columns: own.columns.intersect(&columns),
                    rows: own.rows.intersect(&rows),
                },
            });
        }
        found
    }

    fn of_area(area: Area) -> Self {
        let bounds: GeoBox = area.bounds();
        let (south, north) = bounds.latitude_steps();
        let (west, east) = bounds.longitude_steps();
        let column = |steps| u64::from(Square::column(steps));
        // The meridian of 180° is that of −180°, and a pole has the longitude 0.
        let date_line = (east == GeoPoint::LONGITUDE_STEPS_MAX).then_some((0, 0));
        let pole = bounds.has_a_pole().then_some((column(0), column(0)));
        let sides = match west <= east {
            true => vec![(column(west), column(east))],
            false => vec![(column(west), Self::LAST), (0, column(east))],
        };
        Self {
            columns: Intervals::of(sides.into_iter().chain(date_line).chain(pole)),
            rows: Intervals::of([(Square::row(south).into(), Square::row(north).into())]),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.columns.is_empty() || self.rows.is_empty()
    }

    fn has(&self, square: Square) -> bool {
        let (column, row) = square.column_and_row();
        self.columns.has(column.into()) && self.rows.has(row.into())
    }

    fn count(&self) -> u128 {
        self.columns.count() * self.rows.count()
    }
}

/// The columns or rows with the degrees that satisfy a condition, a step more on each side; `most` is the largest number of steps.
fn of_degrees(wanted: &ValueCondition, most: i32, stripe: impl Fn(i32) -> u32) -> Intervals {
    let most = f64::from(most);
    // Degrees are compared as floats, and places are whole steps: a step more is enough for what rounding loses.
    let at = |steps: f64| u64::from(stripe(steps.round().clamp(-most, most) as i32));
    let steps = wanted.degrees().into_iter();
    let steps = steps
        .map(|range| (range.start() * GeoPoint::STEPS - 1.0, range.end() * GeoPoint::STEPS + 1.0));
    let steps = steps.filter(|(low, high)| *low <= most + 1.0 && *high >= -most - 1.0);
    Intervals::of(steps.map(|(low, high)| (at(low), at(high))))
}

/// The square's column or row of a point, for a dimension of a space.
pub(crate) fn column_and_row(point: GeoPoint) -> (u64, u64) {
    let (column, row) = Square::of(point).column_and_row();
    (column.into(), row.into())
}

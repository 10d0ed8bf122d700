//! The buckets that an interest reaches: squares of the earth, and parts of the index.

use tidegate_message::{
    Area, GeoBox, GeoPoint, Interest,
    attribute::{LATITUDE_NAME, LONGITUDE_NAME},
    interest::{Condition, ValueCondition},
};

use crate::{
    bucket::{Bucket, Square},
    intervals::Intervals,
};

/// The buckets that may have profiles which an interest matches: all of those, and maybe others.
///
/// They are all pairs of a square, of those in some columns and rows or anywhere, and a part of the index.
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

    /// Whether a bucket is among them.
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

    /// All of them, in the order of their numbers; none if there are more than `most`, or they lie anywhere.
    pub fn buckets(&self, most: usize) -> Option<Vec<Bucket>> {
        let count = self.count();
        if count == 0 {
            return Some(Vec::new());
        }
        let squares = self.squares.as_ref().filter(|_| count <= most as u128)?;
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
        Some(buckets)
    }
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
                    let rows = of_degrees(wanted, 90, |steps| Square::row(steps).into());
                    Self { columns: Intervals::up_to(Self::LAST), rows }
                }
                Condition::Pair { name, wanted } if &**name == LONGITUDE_NAME => {
                    let columns = of_degrees(wanted, 180, |steps| Square::column(steps).into());
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
        let date_line = (east == 1_800_000_000).then_some((0, 0));
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

    fn has(&self, square: Square) -> bool {
        let (column, row) = square.column_and_row();
        self.columns.has(column.into()) && self.rows.has(row.into())
    }

    fn count(&self) -> u128 {
        self.columns.count() * self.rows.count()
    }
}

/// The columns or rows with the degrees that a wanted value takes, a step more on each side.
fn of_degrees(wanted: &ValueCondition, most: i32, stripe: impl Fn(i32) -> u64) -> Intervals {
    let degrees = f64::from(most);
    let steps = |it: f64, more: f64| (it.clamp(-degrees, degrees) * 1e7 + more).round() as i32;
    let most = most * 10_000_000;
    let within = |it: i32| it.clamp(-most, most);
    let ranges = wanted.numbers().into_iter();
    let ranges = ranges.filter(|range| *range.start() <= degrees && *range.end() >= -degrees);
    Intervals::of(ranges.map(|range| {
        (stripe(within(steps(*range.start(), -1.0))), stripe(within(steps(*range.end(), 1.0))))
    }))
}

/// The square's column or row of a point, for a dimension of a space.
pub(crate) fn column_and_row(point: GeoPoint) -> (u64, u64) {
    let (column, row) = Square::of(point).column_and_row();
    (column.into(), row.into())
}

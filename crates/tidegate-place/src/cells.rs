//! The tree of cells: which members are nearest to a square, and the parts of the earth that come of it.

use crate::{
    bucket::Square,
    member::{Member, MemberId},
    reach::Reach,
};

/// A part of the earth whose buckets have the same members to be owned by.
///
/// It has at least `replicas` members, and no half of it has as many; or it has fewer, and is joined to its neighbour, the other half of
/// what it was cut from. Cells do not overlap, and together they are the earth.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    part: Part,
    members: &'a [Member],
    neighbours: &'a [Member],
}

impl Cell<'_> {
    /// Where it is.
    pub fn bounds(&self) -> Bounds {
        self.part.bounds()
    }

    /// Whether an interest reaches a square of it.
    pub(crate) fn is_reached(&self, reach: &Reach) -> bool {
        let (columns, rows) = self.part.columns_and_rows();
        reach.overlaps(columns, rows)
    }

    /// The members that are in it.
    pub fn members(&self) -> impl ExactSizeIterator<Item = MemberId> {
        self.members.iter().map(|member| member.id)
    }

    /// The members of its neighbour, which own its buckets as well since it has fewer than `replicas` of its own; none otherwise. Of the
    /// one cell that there is where fewer have a position than `replicas`, these are members without a position.
    pub fn neighbours(&self) -> impl ExactSizeIterator<Item = MemberId> {
        self.neighbours.iter().map(|member| member.id)
    }
}

/// The sides of a part of the earth, in degrees, for maps. They are no points: a [`GeoPoint`](tidegate_message::GeoPoint) has neither
/// 180° as another meridian than −180° nor a longitude at a pole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The southern side, which belongs to it.
    pub south: f64,
    /// The western side, which belongs to it.
    pub west: f64,
    /// The northern side, which belongs to its neighbour, or is the pole.
    pub north: f64,
    /// The eastern side, which belongs to its neighbour; 180 is the meridian of −180.
    pub east: f64,
}

/// The members around a square.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    pub(crate) cell: Cell<'a>,
    /// Fewer than `replicas`, all of which are nearer than the others.
    pub(crate) near: &'a [Member],
    /// Equally near ones, of which as many own as are missing.
    pub(crate) far: &'a [Member],
}

/// The members and the cell around a square, by the members that have a position, in the order of their squares. `others` stand in.
pub(crate) fn around<'a>(
    square: Square,
    positioned: &'a [Member],
    others: &'a [Member],
    replicas: usize,
) -> Around<'a> {
    if positioned.len() < replicas {
        return Around { cell: whole(positioned, others), near: positioned, far: others };
    }
    let (mut part, mut members) = (Part::EARTH, positioned);
    while let Some(halves) = part.halves() {
        let [first, second] = halves.map(|half| half.of(members));
        let (half, near, far) = match halves[1].has(square) {
            false => (halves[0], first, second),
            true => (halves[1], second, first),
        };
        if near.len() >= replicas {
            (part, members) = (half, near);
            continue;
        }
        let cell = match far.len() >= replicas {
            true => Cell { part: half, members: near, neighbours: far },
            false => Cell { part, members, neighbours: &[] },
        };
        return Around { cell, near, far };
    }
    Around { cell: Cell { part, members, neighbours: &[] }, near: &[], far: members }
}

/// All cells, from south-west to north-east in the order of their squares.
pub(crate) fn cells<'a>(
    positioned: &'a [Member],
    others: &'a [Member],
    replicas: usize,
) -> Vec<Cell<'a>> {
    if positioned.len() < replicas {
        return vec![whole(positioned, others)];
    }
    let mut cells = Vec::new();
    let mut parts = vec![(Part::EARTH, positioned)];
    while let Some((part, members)) = parts.pop() {
        let halves = part.halves().map(|halves| halves.map(|half| (half, half.of(members))));
        match halves.filter(|halves| halves.iter().any(|(_, of)| of.len() >= replicas)) {
            None => cells.push(Cell { part, members, neighbours: &[] }),
            Some([one, other]) => {
                for ((half, members), (_, neighbours)) in [(other, one), (one, other)] {
                    match members.len() >= replicas {
                        true => parts.push((half, members)),
                        false => cells.push(Cell { part: half, members, neighbours }),
                    }
                }
            }
        }
    }
    cells.sort_unstable_by_key(|cell| cell.part.first);
    cells
}

fn whole<'a>(members: &'a [Member], neighbours: &'a [Member]) -> Cell<'a> {
    Cell { part: Part::EARTH, members, neighbours }
}

/// The squares that have their first cuts in common.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The south-western one of them.
    first: Square,
    cuts: u32,
}

impl Part {
    const EARTH: Self = Self { first: Square(0), cuts: 0 };

    /// The southern and the northern half, or the western and the eastern one; none of a single square.
    fn halves(self) -> Option<[Self; 2]> {
        let cuts = self.cuts + 1;
        let second = Square(self.first.0 | 1_u32 << Square::BITS.checked_sub(cuts)?);
        Some([Self { cuts, ..self }, Self { first: second, cuts }])
    }

    fn has(self, square: Square) -> bool {
        (square.0 ^ self.first.0) >> (Square::BITS - self.cuts) == 0
    }

    /// The members that are in it, of those that are in what it was cut from.
    fn of(self, members: &[Member]) -> &[Member] {
        let is_before = |member: &Member| member.square < Some(self.first);
        let rest = &members[members.partition_point(is_before)..];
        &rest[..rest.partition_point(|member| member.square.is_some_and(|square| self.has(square)))]
    }

    /// Its columns and its rows of squares, the first and the last one.
    fn columns_and_rows(self) -> ((u64, u64), (u64, u64)) {
        let (column, row) = self.first.column_and_row();
        let from = |first: u32, cuts: u32| {
            let first = u64::from(first);
            (first, first + (1 << (Square::DEPTH - cuts)) - 1)
        };
        (from(column, self.cuts.div_ceil(2)), from(row, self.cuts / 2))
    }

    fn bounds(self) -> Bounds {
        let (column, row) = self.first.column_and_row();
        let side = |cuts: u32| f64::from(1_u32 << (Square::DEPTH - cuts));
        let whole = side(0);
        let longitude = |column: f64| column / whole * 360.0 - 180.0;
        let latitude = |row: f64| row / whole * 180.0 - 90.0;
        let [column, row] = [column, row].map(f64::from);
        Bounds {
            south: latitude(row),
            west: longitude(column),
            north: latitude(row + side(self.cuts / 2)),
            east: longitude(column + side(self.cuts.div_ceil(2))),
        }
    }
}

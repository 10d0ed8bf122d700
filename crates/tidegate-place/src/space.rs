//! Spaces of keywords: an index of profiles, and the ranges of it that an interest reaches (R-Pulsar, section IV-B).
//!
//! ```text
//!  Profile ──▶ a coordinate for each dimension ─────▶ Hilbert curve ──▶ a point of the index ──▶ Bucket
//!  Interest ─▶ a set of coordinates for each one ───▶ Hilbert curve ──▶ ranges of the index ───▶ Reach
//! ```
//!
//! A profile has one point, so that its data have one bucket. The place of a profile is the bucket's square and needs no dimension. Attributes
//! that no dimension holds are compared where the data are, which costs nothing but the way there.
//!
//! Always true: where an interest matches a profile, the profile's point lies in the interest's ranges, and its bucket in the interest's reach,
//! however few ranges were allowed. Other profiles may lie there as well, since matching decides where the data are.
//!
//! # Decisions
//!
//! - *The dimension of an attribute depends on its own name alone.* An interest names some of a profile's attributes and knows nothing of
//!   the others. Were the first keyword of a profile the first dimension, in whatever order, an interest in `LiDAR` could not tell whether
//!   `Drone` comes before it, and would have to look at every keyword up to its own. As it is, it looks at its own coordinate of its own
//!   dimension, and at those for several.
//! - *Several names or values of one dimension* have coordinates of their own, and every interest that asks for something in that dimension
//!   reaches all of those too. Had such a profile a point for each value, each of its data would have as many buckets, and owners of each. Among
//!   those coordinates a profile lies by a hash of all its names and values. Most profiles have several names of each half, so that with one
//!   coordinate for them data would spread as in some 40 parts of the index, and be on their owners.
//! - *Nothing* is a coordinate as well, far from those for several: an interest that asks for something in a dimension leaves out nearly all
//!   profiles that have nothing there.
//! - *Names keep their order, values of the default space do not.* Beginnings of names are asked for. Of values there are 32 parts in the
//!   index: temperatures of a room, or the names of a thousand sensors, would all be in the same one, and so would be their data on the same few
//!   members. By a hash they are in all of them. A dimension that is declared for an attribute keeps the order of its values.
//! - *A dimension that an interest leaves open multiplies the parts of the index that it reaches*, and of the data it reaches more than of the
//!   parts, since it reaches all profiles with several names of its half. Percent, with two populations of a site: profiles of four to seven usual
//!   names (1), and of two or three (2).
//!
//! | space | interest | of the parts | of the data (1) | of the data (2) | matched (1), (2) |
//! |---|---|---|---|---|---|
//! | default | one name | 15 | 89 | 46 | 3.7, 3.7 |
//! | default | two names, one of each half | 2.3 | 75 | 2.8 | 1.1, 0.4 |
//! | default | one pair | 7.9 | 92 | 62 | 3.6, 3.6 |
//! | default | two pairs, one of each half | 1.1 | 78 | 12 | 0, 0 |
//! | declared for both attributes | two pairs | 0.04 | 0.6 | 0.2 | 0.02, 0 |
//!
//!   So the default space spreads data and finds them, and it leaves out little: members own parts by chance, so that without a place an interest
//!   reaches all members of a fabric of 64. With a place it reaches the members around that place alone. A space that is declared for the
//!   attributes that interests name leaves out nearly all. Ten thousand data of (1) are in 1,734 parts of the default space and spread as evenly as
//!   in 836 equal ones.

use std::{fmt, ops::RangeInclusive};

use tidegate_message::{
    AttributeError, Interest, Profile,
    attribute::{Item, is_of_the_place},
    interest::{Condition, Keyword, ValueCondition},
    profile::Attribute,
};

use crate::{
    bucket::{Bucket, Square},
    encoding,
    hilbert::{self, Curve},
    intervals::Intervals,
    reach::{self, Reach, Squares},
    rendezvous,
};

/// The version of the codes and of the curve: members with another one have other points.
const CODES: u64 = 2;

/// An index of profiles by one to eight dimensions. All members of a fabric have to use the same one, and compare its
/// [`Space::hash`].
///
/// The default needs no declaration. It has three dimensions of 21 bits: the names of attributes, with a value or without, in two halves,
/// and the values of all attributes.
///
/// ```
/// use tidegate_place::Space;
///
/// let space = Space::default();
/// let drone = "Drone, LiDAR, rate = 30fps".parse()?;
/// let interest = "Drone, Li*".parse()?;
/// let point = space.point(&drone);
/// assert!(space.ranges(&interest, 16).iter().any(|range| range.contains(&point)));
/// assert!(space.reach(&interest).has(space.bucket(&drone)));
/// # Ok::<(), tidegate_message::AttributeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    dimensions: Box<[Dimension]>,
    curve: Curve,
}

/// A dimension of a space.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// The names of attributes, with a value or without, in one of two halves.
    Names(Half),
    /// The values of all attributes, by a hash. An interest reaches less of it by a value or a list, and by nothing else.
    Values,
    /// The values of the attribute of that name, in their order: numbers before texts.
    Value(Box<str>),
    /// The row of squares that the place lies in, as a bucket has them.
    Latitude,
    /// The column of squares that the place lies in.
    Longitude,
}

/// One of two halves of all names, by the bits of the first byte: so the beginning of a name is enough to know its half, and of letters that
/// follow each other about as many are in one as in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// Names whose first byte has an even number of one bits.
    Even,
    /// Names whose first byte has an odd number of one bits.
    Odd,
}

/// The values of a profile in a dimension.
enum Held {
    Nothing,
    /// One value, by its code.
    One(u64),
    /// Several, by a hash of the profile or of the values.
    Several(u64),
}

/// The coordinates of a dimension: 0 for nothing, some for one value, and the last ones for several.
///
/// Every interest in the dimension reaches those for several. Were they next to nothing, the first part of the index would have both, and so each
/// interest would reach all profiles without anything here.
#[derive(Clone, Copy)]
struct Coordinates {
    one: Zone,
    several: Zone,
}

/// Coordinates next to each other.
#[derive(Clone, Copy)]
struct Zone {
    first: u64,
    count: u128,
}

impl Space {
    /// Most dimensions of a space.
    pub const DIMENSIONS_MAX: usize = hilbert::DIMENSIONS_MAX;
    /// Parts of the curve that are looked at for the ranges of an interest: each is a few comparisons, a millisecond in all.
    pub const PARTS_MAX: usize = 16_384;

    /// The space of those dimensions, each of which has 64 bits divided by their number.
    ///
    /// # Errors
    /// [`SpaceError`].
    pub fn new(dimensions: &[Dimension]) -> Result<Self, SpaceError> {
        if dimensions.is_empty() || dimensions.len() > Self::DIMENSIONS_MAX {
            let most = Self::DIMENSIONS_MAX;
            return Err(SpaceError::Dimensions { count: dimensions.len(), most });
        }
        for (number, dimension) in dimensions.iter().enumerate() {
            if dimensions[..number].contains(dimension) {
                return Err(SpaceError::Twice { dimension: dimension.clone() });
            }
            if let Dimension::Value(name) = dimension {
                // Profiles refuse names that are none; those of the place have dimensions of their own.
                Profile::new(vec![Attribute::keyword(name)], None)
                    .map_err(|source| SpaceError::Name { source })?;
            }
        }
        Ok(Self { dimensions: dimensions.into(), curve: Curve::of(dimensions.len()) })
    }

    /// The dimensions, in their order.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// The point of a profile in the index, over the whole of 64 bits.
    pub fn point(&self, profile: &Profile) -> u64 {
        let mut point = [0; Self::DIMENSIONS_MAX];
        for (at, dimension) in point.iter_mut().zip(&self.dimensions) {
            *at = dimension.coordinates(self.curve).of(&dimension.held(profile));
        }
        self.curve.index(&point)
    }

    /// Ranges of the index that have the points of all profiles which the interest matches.
    ///
    /// They are in order, do not touch each other, and are at most `most` (one, if that is 0); none if no profile can match. The curve is followed
    /// from coarse to fine, and [`Space::PARTS_MAX`] of its parts are looked at.
    pub fn ranges(&self, interest: &Interest, most: usize) -> Vec<RangeInclusive<u64>> {
        let cover = self.cover(interest, u64::BITS).at_most(most);
        cover.iter().map(|(low, high)| low..=high).collect()
    }

    /// A hash of the dimensions in their order and of the version of the codes: members of a fabric compare it.
    pub fn hash(&self) -> u64 {
        let text = |text: &str| rendezvous::hash_of_bytes(0, text.as_bytes());
        self.dimensions.iter().fold(rendezvous::join(0, CODES), |hash, dimension| {
            let (kind, name) = match dimension {
                Dimension::Names(Half::Even) => (0, 0),
                Dimension::Names(Half::Odd) => (1, 0),
                Dimension::Values => (2, 0),
                Dimension::Value(name) => (3, text(name)),
                Dimension::Latitude => (4, 0),
                Dimension::Longitude => (5, 0),
            };
            rendezvous::join(rendezvous::join(hash, kind), name)
        })
    }

    /// The bucket of a profile: of its place and its point.
    pub fn bucket(&self, profile: &Profile) -> Bucket {
        Bucket::of(profile.place(), self.point(profile))
    }

    /// The buckets of all profiles which the interest matches.
    pub fn reach(&self, interest: &Interest) -> Reach {
        Reach::of(Squares::of(interest), &self.cover(interest, Bucket::INDEX_BITS))
    }

    fn cover(&self, interest: &Interest, depth: u32) -> Intervals {
        let squares = Squares::of(interest);
        if squares.as_ref().is_some_and(Squares::is_empty) {
            return Intervals::default();
        }
        let sets = self.dimensions.iter().map(|dimension| {
            let asked = dimension.asked(interest, squares.as_ref());
            dimension.coordinates(self.curve).set(asked)
        });
        self.curve.cover(&sets.collect::<Vec<_>>(), depth, Self::PARTS_MAX)
    }
}

/// Names in two halves, and values.
impl Default for Space {
    fn default() -> Self {
        let dimensions =
            [Dimension::Names(Half::Even), Dimension::Names(Half::Odd), Dimension::Values];
        Self { curve: Curve::of(dimensions.len()), dimensions: dimensions.into() }
    }
}

impl Dimension {
    fn coordinates(&self, curve: Curve) -> Coordinates {
        let all = u128::from(curve.coordinate_max()) + 1;
        let several = match self {
            Self::Names(_) => all / 8,
            Self::Values => all / 2,
            Self::Value(_) => all / 64,
            Self::Latitude | Self::Longitude => 0,
        };
        let zone = |first: u128, count| Zone { first: first as u64, count };
        Coordinates { one: zone(1, all - 1 - several), several: zone(all - several, several) }
    }

    /// The values of a profile here.
    fn held(&self, profile: &Profile) -> Held {
        match self {
            Self::Names(half) => {
                let names = profile.attributes().iter().map(|attribute| &*attribute.name);
                let mut names = names.filter(|name| Half::of_name(name) == *half);
                match (names.next(), names.next()) {
                    (None, _) => Held::Nothing,
                    (Some(name), None) => Held::One(encoding::text(name)),
                    (Some(_), Some(_)) => Held::Several(half.hash_of(profile)),
                }
            }
            Self::Values => Held::of_values(profile.attributes().iter(), hash),
            Self::Value(name) => {
                Held::of_values(profile.attribute(name).into_iter(), encoding::value)
            }
            Self::Latitude => profile.place().map_or(Held::Nothing, |place| {
                Held::One(reach::column_and_row(place).1 << (u64::BITS - Square::DEPTH))
            }),
            Self::Longitude => profile.place().map_or(Held::Nothing, |place| {
                Held::One(reach::column_and_row(place).0 << (u64::BITS - Square::DEPTH))
            }),
        }
    }

    /// Codes that include that of each profile which the interest matches and which has one value in this dimension; none if the interest asks
    /// for nothing in it. `squares` are the interest's.
    fn asked(&self, interest: &Interest, squares: Option<&Squares>) -> Option<Intervals> {
        let stripes = |set: &Intervals| set.map(|stripe| stripe << (u64::BITS - Square::DEPTH));
        let conditions = interest.conditions().iter();
        let codes = |condition| self.codes(condition);
        match self {
            Self::Latitude => squares.map(|squares| stripes(&squares.rows)),
            Self::Longitude => squares.map(|squares| stripes(&squares.columns)),
            Self::Names(_) | Self::Values | Self::Value(_) => {
                conditions.filter_map(codes).reduce(|one, other| one.intersect(&other))
            }
        }
    }

    /// The same for one condition.
    fn codes(&self, condition: &Condition) -> Option<Intervals> {
        let exactly = |name| {
            let code = encoding::text(name);
            Intervals::of([(code, code)])
        };
        match (self, condition) {
            (_, Condition::Pair { name, .. }) if is_of_the_place(name) => None,
            (Self::Names(half), Condition::Pair { name, .. })
            | (Self::Names(half), Condition::Name(Keyword::Exactly(name))) => {
                (Half::of_name(name) == *half).then(|| exactly(name))
            }
            (Self::Names(half), Condition::Name(Keyword::Prefix(prefix))) => {
                let codes = || Intervals::of([encoding::texts_that_begin_with(prefix)]);
                (Half::of_name(prefix) == *half).then(codes)
            }
            (Self::Values, Condition::Pair { wanted, .. }) => Some(match wanted {
                ValueCondition::Exactly(item) => Intervals::of([(hash(item), hash(item))]),
                ValueCondition::OneOf(items) => {
                    Intervals::of(items.iter().map(|it| (hash(it), hash(it))))
                }
                _ => Intervals::up_to(u64::MAX),
            }),
            (Self::Value(own), Condition::Pair { name, wanted }) => {
                (name == own).then(|| encoding::values(wanted))
            }
            _ => None,
        }
    }
}

/// As an operator reads it.
impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Names(Half::Even) => f.write_str("the even half of the names"),
            Self::Names(Half::Odd) => f.write_str("the odd half of the names"),
            Self::Values => f.write_str("the values of all attributes"),
            Self::Value(name) => write!(f, "the values of {name}"),
            Self::Latitude => f.write_str("the latitude"),
            Self::Longitude => f.write_str("the longitude"),
        }
    }
}

impl Half {
    /// The half of a name, or of all names that begin so.
    fn of_name(name: &str) -> Self {
        let first = name.bytes().next().unwrap_or(0);
        if first.count_ones().is_multiple_of(2) { Self::Even } else { Self::Odd }
    }

    /// A hash of all names and values of a profile, and another one for each half: a profile that has several names of both halves is anywhere
    /// in the square of both.
    fn hash_of(self, profile: &Profile) -> u64 {
        let seed = match self {
            Self::Even => 0,
            Self::Odd => 1,
        };
        profile.attributes().iter().fold(seed, |joined, attribute| {
            let joined = rendezvous::hash_of_bytes(joined, attribute.name.as_bytes());
            attribute.values.iter().fold(joined, |joined, it| rendezvous::join(joined, hash(it)))
        })
    }
}

/// A value by a hash, the same in every release.
fn hash(item: &Item) -> u64 {
    match item {
        Item::Number(number) => {
            let value = rendezvous::join(0, number.value().to_bits());
            rendezvous::hash_of_bytes(value, number.unit().as_bytes())
        }
        Item::Text(text) => rendezvous::hash_of_bytes(1, text.as_bytes()),
    }
}

impl Held {
    /// The values of those attributes, one by its code.
    fn of_values<'a>(
        attributes: impl Iterator<Item = &'a Attribute>,
        code: impl Fn(&Item) -> u64,
    ) -> Self {
        let mut values = attributes.flat_map(|attribute| &attribute.values);
        match (values.next(), values.next()) {
            (None, _) => Self::Nothing,
            (Some(value), None) => Self::One(code(value)),
            (Some(one), Some(two)) => {
                let join = |joined, item| rendezvous::join(joined, hash(item));
                Self::Several([one, two].into_iter().chain(values).fold(0, join))
            }
        }
    }
}

impl Coordinates {
    /// The coordinate of a profile.
    fn of(&self, held: &Held) -> u64 {
        match held {
            Held::Nothing => 0,
            Held::One(code) => self.one.at(*code),
            Held::Several(hash) => self.several.at(*hash),
        }
    }

    /// Coordinates of profiles, by the codes that an interest asks for.
    fn set(&self, asked: Option<Intervals>) -> Intervals {
        let several = (self.several.count > 0).then(|| (self.several.first, self.several.last()));
        let Some(codes) = asked else {
            return Intervals::up_to(several.map_or(self.one.last(), |(_, last)| last));
        };
        let one = codes.map(|code| self.one.at(code));
        Intervals::of(one.iter().chain(several))
    }
}

impl Zone {
    /// The coordinate at a fraction of 2⁶⁴.
    fn at(self, fraction: u64) -> u64 {
        self.first + ((u128::from(fraction) * self.count) >> u64::BITS) as u64
    }

    fn last(self) -> u64 {
        self.at(u64::MAX)
    }
}

/// Why dimensions are no space.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpaceError {
    /// No dimension, or too many.
    #[error(
        "a space has 1 to {most} dimensions, this one has {count}; attributes without one are found all the same"
    )]
    Dimensions {
        /// How many were found.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A dimension that is there twice.
    #[error("a space has each dimension once, this one has {dimension} twice; leave one out")]
    Twice {
        /// The dimension.
        dimension: Dimension,
    },
    /// A name that no attribute has.
    #[error("a dimension for the values of an attribute has a name that no attribute has")]
    Name {
        /// The reason that no attribute has it.
        source: AttributeError,
    },
}

#[cfg(test)]
mod tests;

//! A member: where it is, and how much it takes.

use std::{
    fmt::{self, Write},
    num::NonZero,
};

use tidegate_message::GeoPoint;

use crate::{
    bucket::{Bucket, Square},
    rendezvous::Seed,
};

/// The key of a member: that of its node, the hash of its public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub [u8; 32]);

/// Hexadecimal digits.
impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemberId(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_char(')')
    }
}

/// Where a member is and how much it takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which member.
    pub id: MemberId,
    /// Where it is; none if that is not known.
    pub position: Option<GeoPoint>,
    /// Whether it moves. Then it is in no cell.
    pub is_mobile: bool,
    /// Members of one zone fail together. One whose zone is empty is a zone of its own.
    pub zone: String,
    /// How much it takes.
    pub weight: Weight,
}

/// A member's share of what equally near members own, in hundredths of a usual one's: from 1 to 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZero<u16>);

impl Weight {
    /// The least.
    pub const MIN: Self = Self(NonZero::<u16>::MIN);
    /// The most.
    pub const MAX: Self = Self(NonZero::new(10_000).expect("it is not 0"));

    /// So many hundredths; none outside of [`Weight::MIN`] and [`Weight::MAX`].
    pub fn of_hundredths(hundredths: u16) -> Option<Self> {
        NonZero::new(hundredths).map(Self).filter(|weight| *weight <= Self::MAX)
    }

    /// Hundredths of a usual one.
    pub fn hundredths(self) -> u16 {
        self.0.get()
    }
}

/// A usual one: 100 hundredths.
impl Default for Weight {
    fn default() -> Self {
        Self(const { NonZero::new(100).expect("it is not 0") })
    }
}

/// A member, as far as owners depend on it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) id: MemberId,
    /// That of its position, of a stationary one.
    pub(crate) square: Option<Square>,
    /// Equal where members fail together.
    pub(crate) zone: u32,
    seed: Seed,
    weight: Weight,
}

impl Member {
    pub(crate) fn of(place: &Place, zone: u32) -> Self {
        let position = place.position.filter(|_| !place.is_mobile);
        let (square, seed) = (position.map(Square::of), Seed::of(&place.id.0));
        Self { id: place.id, square, zone, seed, weight: place.weight }
    }

    /// Of two that are equally near a bucket, the one with the lower cost comes first.
    pub(crate) fn cost(&self, bucket: Bucket) -> u64 {
        self.seed.cost(self.weight.0, bucket)
    }
}

//! The places of all members, and the owners that come of them.

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeMap,
};

use tidegate_message::GeoPoint;

use crate::{
    ALGORITHM,
    bucket::{Bucket, Square},
    cells::{self, Cell},
    member::{Member, MemberId, Place},
    reach::Reach,
    rendezvous,
};

/// The places of all members that are there, and so the owners of every bucket.
///
/// ```
/// use tidegate_place::{Bucket, MemberId, Place, Places, Weight};
///
/// let member = |number, position: &str| Place {
///     id: MemberId([number; 32]),
///     position: position.parse().ok(),
///     is_mobile: false,
///     zone: String::new(),
///     weight: Weight::default(),
/// };
/// let members = [
///     member(1, "52.37, 4.89"),
///     member(2, "52.37, 4.90"),
///     member(3, "-33.87, 151.21"),
///     member(4, "-33.86, 151.20"),
/// ];
/// let places = Places::of(&members, 2);
/// let mut owners = places.owners(Bucket::of("52.36, 4.88".parse().ok(), 0));
/// owners.sort_unstable();
/// assert_eq!(owners, [1, 2].map(|number| MemberId([number; 32])));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Places {
    replicas: usize,
    /// Stationary members that have a position, by their squares.
    positioned: Vec<Member>,
    /// Stationary ones that have none; mobile ones if there is no stationary one.
    others: Vec<Member>,
    hash: u64,
}

impl Places {
    /// The places of those members that are there: lost ones are not among them. Each bucket has so many owners, at least one.
    ///
    /// The order of the members does not matter. An identity is there once: of two places that it has, the lesser by their order counts.
    pub fn of(members: &[Place], replicas: usize) -> Self {
        let replicas = replicas.max(1);
        let mut places: Vec<&Place> = members.iter().collect();
        places.sort_unstable();
        places.dedup_by_key(|place| place.id);
        let hash = hash_of(&places, replicas);
        let are_all_mobile = places.iter().all(|place| place.is_mobile);
        let mut zones = BTreeMap::new();
        let (mut positioned, mut others) = (Vec::new(), Vec::new());
        for (number, place) in (0..).zip(places) {
            if place.is_mobile && !are_all_mobile {
                continue;
            }
            // The first member of a zone gives it its number.
            let zone = match place.zone.as_str() {
                "" => number,
                name => *zones.entry(name).or_insert(number),
            };
            let member = Member::of(place, zone);
            let list = if member.square.is_some() { &mut positioned } else { &mut others };
            list.push(member);
        }
        positioned.sort_unstable_by_key(|member| (member.square, member.id));
        Self { replicas, positioned, others, hash }
    }

    /// The owners of a bucket, the first one first: as many as there are replicas, or all members if there are fewer.
    pub fn owners(&self, bucket: Bucket) -> Vec<MemberId> {
        let Some(square) = bucket.square() else {
            let all = self.positioned.iter().chain(&self.others);
            return self.choose(&[], all, bucket);
        };
        let around = cells::around(square, &self.positioned, &self.others, self.replicas);
        let mut near: Vec<&Member> = around.near.iter().collect();
        near.sort_by_cached_key(|member| {
            let cuts = member.square.map(|own| (own.0 ^ square.0).leading_zeros());
            (Reverse(cuts), member.cost(bucket), member.id)
        });
        self.choose(&near, around.far.iter(), bucket)
    }

    /// Those that are nearer, and of the others as many as are missing, distinct zones first.
    fn choose<'a>(
        &self,
        near: &[&Member],
        far: impl Iterator<Item = &'a Member>,
        bucket: Bucket,
    ) -> Vec<MemberId> {
        let is_shared = |member: &Member| near.iter().any(|other| other.zone == member.zone);
        let mut left: Vec<Candidate<'_>> = far
            .map(|member| Candidate {
                has_zone_of_an_owner: is_shared(member),
                cost: member.cost(bucket),
                member,
            })
            .collect();
        let mut chosen = Vec::new();
        while near.len() + chosen.len() < self.replicas {
            let next = left.iter().enumerate().min_by(|(_, one), (_, other)| one.order(other));
            let Some((next, _)) = next else { break };
            let next = left.swap_remove(next);
            for candidate in &mut left {
                candidate.has_zone_of_an_owner |= candidate.member.zone == next.member.zone;
            }
            chosen.push(next);
        }
        // By their costs alone, whatever their zones: so the order of those that stay is the same when one goes.
        chosen.sort_unstable_by_key(|candidate| (candidate.cost, candidate.member.id));
        let chosen = chosen.iter().map(|candidate| candidate.member.id);
        near.iter().map(|member| member.id).chain(chosen).collect()
    }

    /// Members that may own a bucket of a reach, in the order of their numbers: all that do, and maybe others. None if it reaches no bucket.
    ///
    /// Owners of a square are members of its cell or neighbours of that, so that a reach in an area has those of the cells there. Without an area
    /// they are all members that own anything.
    pub fn members_of(&self, reach: &Reach) -> Vec<MemberId> {
        let mut members = Vec::new();
        for cell in self.cells().iter().filter(|cell| cell.is_reached(reach)) {
            members.extend(cell.members().chain(cell.neighbours()));
        }
        if reach.is_anywhere() && !members.is_empty() {
            members.extend(self.others.iter().map(|member| member.id));
        }
        members.sort_unstable();
        members.dedup();
        members
    }

    /// The cell that has a point.
    pub fn cell(&self, point: GeoPoint) -> Cell<'_> {
        cells::around(Square::of(point), &self.positioned, &self.others, self.replicas).cell
    }

    /// All cells: at least one, which is the whole earth.
    pub fn cells(&self) -> Vec<Cell<'_>> {
        cells::cells(&self.positioned, &self.others, self.replicas)
    }

    /// A hash of all that owners depend on: the members' places, the number of replicas, and the version of the algorithm.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

struct Candidate<'a> {
    has_zone_of_an_owner: bool,
    cost: u64,
    member: &'a Member,
}

impl Candidate<'_> {
    fn order(&self, other: &Self) -> Ordering {
        let order = (self.has_zone_of_an_owner, self.cost);
        let theirs = (other.has_zone_of_an_owner, other.cost);
        order.cmp(&theirs).then_with(|| self.member.id.cmp(&other.member.id))
    }
}

fn hash_of(places: &[&Place], replicas: usize) -> u64 {
    let head = [u64::from(ALGORITHM), replicas as u64, places.len() as u64];
    places.iter().fold(head.into_iter().fold(0, rendezvous::join), |hash, place| {
        let position = place.position.map_or(0, |point| {
            let steps = [point.latitude_steps(), point.longitude_steps()];
            1 + (u64::from(steps[0].cast_unsigned()) << 32 | u64::from(steps[1].cast_unsigned()))
        });
        let rest = [position, u64::from(place.is_mobile), u64::from(place.weight.hundredths())];
        let hash = rendezvous::hash_of_bytes(hash, &place.id.0);
        let hash = rest.into_iter().fold(hash, rendezvous::join);
        rendezvous::hash_of_bytes(hash, place.zone.as_bytes())
    })
}

#[cfg(test)]
mod tests;

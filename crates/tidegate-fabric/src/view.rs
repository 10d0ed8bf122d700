//! Members by their records, and the owners of a bucket.
//!
//! A record says that its member is here, or that others have lost it. Each has a number; of two the higher wins, so that records that
//! arrive in any order, by any way and any number of times come to the same. The records together are a view. Views of nodes that know
//! of different events differ, and their union is later than both.

use std::collections::{BTreeMap, btree_map::Entry};

/// A node of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// A fixed part of all records, which no change of the members splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(pub u64);

/// The record of a member. The later of two is the greater: by number, at the same number one that says lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Standing {
    /// Raised by the member alone.
    pub number: u64,
    /// Whether others have lost it. The member answers with the next number.
    pub is_lost: bool,
    /// Drawn by chance whenever the member may have lost something of what it held: an owner counts for a view if the view has its start.
    pub start: u64,
}

/// The records of all members that a node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View(BTreeMap<MemberId, Standing>);

impl View {
    /// The records.
    pub fn standings(&self) -> impl Iterator<Item = (MemberId, Standing)> {
        self.0.iter().map(|(member, standing)| (*member, *standing))
    }

    /// A member's record.
    pub fn standing(&self, member: MemberId) -> Option<Standing> {
        self.0.get(&member).copied()
    }

    /// Knows of a record, unless it knows of a later one.
    pub fn learn(&mut self, member: MemberId, standing: Standing) {
        match self.0.entry(member) {
            Entry::Vacant(entry) => drop(entry.insert(standing)),
            Entry::Occupied(mut entry) => {
                let known = *entry.get();
                entry.insert(known.max(standing));
            }
        }
    }

    /// Knows of all that the other knows of.
    pub fn merge(&mut self, other: &Self) {
        other.standings().for_each(|(member, standing)| self.learn(member, standing));
    }

    /// Whether it is the other or later.
    pub fn includes(&self, other: &Self) -> bool {
        other.standings().all(|(member, theirs)| self.standing(member) >= Some(theirs))
    }

    /// A member is lost, by the word of an observer.
    pub fn lose(&mut self, member: MemberId) {
        if let Some(standing) = self.0.get_mut(&member) {
            standing.is_lost = true;
        }
    }

    /// The members that are here.
    pub fn present(&self) -> impl Iterator<Item = MemberId> {
        self.standings().filter(|(_, standing)| !standing.is_lost).map(|(member, _)| member)
    }

    /// The members that own a bucket, at most so many: those with the highest hashes (rendezvous hashing, Thaler and Ravishankar 1998), so
    /// that a member that goes moves its own buckets and no others.
    pub fn owners(&self, bucket: Bucket, replicas: usize) -> Vec<MemberId> {
        let mut by_weight: Vec<(u64, MemberId)> =
            self.present().map(|member| (weight(member, bucket), member)).collect();
        by_weight.sort_unstable_by(|one, other| other.cmp(one));
        by_weight.into_iter().take(replicas).map(|(_, member)| member).collect()
    }
}

impl FromIterator<(MemberId, Standing)> for View {
    fn from_iter<I: IntoIterator<Item = (MemberId, Standing)>>(standings: I) -> Self {
        let mut view = Self::default();
        standings.into_iter().for_each(|(member, standing)| view.learn(member, standing));
        view
    }
}

fn weight(member: MemberId, bucket: Bucket) -> u64 {
    mix(mix(member.0) ^ bucket.0)
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014): written out, so that no release places buckets differently.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(members: u64) -> View {
        (0..members).map(|member| (MemberId(member), Standing::default())).collect()
    }

    #[test]
    fn records_come_to_the_same_in_any_order() {
        let [mut one, mut other] = [of(4), of(4)];
        one.lose(MemberId(0));
        one.lose(MemberId(1));
        other.learn(MemberId(1), Standing { number: 1, is_lost: false, start: 7 });
        other.lose(MemberId(2));
        assert!(!one.includes(&other) && !other.includes(&one), "two forks");
        let (mut union, mut same) = (one.clone(), other.clone());
        union.merge(&other);
        same.merge(&one);
        assert_eq!(union, same);
        assert!(union.includes(&one) && union.includes(&other), "later than both");
        assert_eq!(union.present().collect::<Vec<_>>(), [1, 3].map(MemberId));
    }

    #[test]
    fn loss_moves_buckets_of_the_lost_alone() {
        let (before, mut after) = (of(7), of(7));
        after.lose(MemberId(3));
        let mut owned = [0; 7];
        for bucket in (0..2_000).map(Bucket) {
            let (was, is) = (before.owners(bucket, 3), after.owners(bucket, 3));
            was.iter().for_each(|owner| owned[owner.0 as usize] += 1);
            let kept: Vec<_> = was.iter().filter(|owner| **owner != MemberId(3)).collect();
            assert_eq!(kept, is.iter().take(kept.len()).collect::<Vec<_>>(), "{bucket:?}");
        }
        // 2,000 × 3 / 7 each; a standard deviation is 22.
        assert!(owned.iter().all(|count| (747..967).contains(count)), "{owned:?}");
    }
}

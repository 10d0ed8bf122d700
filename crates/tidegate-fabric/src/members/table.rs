//! The records that a node holds, and what they come to.
//!
//! Always true: the standing of a member follows from the records alone, in whatever order they came, but for members whose loss this
//! node has seen proved by records that are gone since: those stay lost at that number, and are listed ([`Table::is_unproved`]).

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    ops::Bound,
};

use bytes::Bytes;
use tidegate_message::{CameraName, Instant};
use tidegate_wire::{Absence, AbsenceKind, MemberRecord, NodeId, SharedKey, SharedKind};

use super::{Pace, Refusal, limits::*, mix};
use crate::view::{MemberId, Standing, View};

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// It is here.
    Here,
    /// It is missed: by this node, or by the word of a member that is here. Nothing follows from it yet.
    Doubted,
    /// It is lost at its number. It is dialled for ever, and comes back by the next number.
    Lost,
    /// A person has forgotten it. It is not dialled, and comes back by the next number.
    Forgotten,
    /// It has left by its own word.
    Left,
}

impl Presence {
    /// Whether it owns nothing any more.
    pub fn is_gone(self) -> bool {
        !matches!(self, Self::Here | Self::Doubted)
    }
}

/// A record as it was sealed.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) version: u64,
    pub(super) bytes: Bytes,
}

/// A member's record, and what this node makes of it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) record: MemberRecord,
    /// As the records say: here or gone.
    standing: Presence,
    /// The number at which it was gone, and how, whatever records there are now.
    gone_at: Option<(u64, Presence)>,
    /// The last standing that the shell was given.
    pub(super) shown: Presence,
    /// Whether the doubts of this node in that record were answered.
    pub(super) is_answered: bool,
    /// How often records of it are taken over, and when one was not for that.
    pace: Pace,
    pub(super) hurried_at: Option<Instant>,
}

impl Held {
    pub(super) fn standing(&self) -> Presence {
        self.standing
    }
}

/// All records.
#[derive(Debug, Default)]
pub(super) struct Table {
    me: Option<NodeId>,
    members: BTreeMap<NodeId, Held>,
    cameras: BTreeMap<NodeId, Vec<CameraName>>,
    shared: BTreeMap<SharedKey, Shared>,
    names: BTreeSet<(String, NodeId)>,
    /// By the member that is missed, the words of others.
    words: BTreeMap<NodeId, BTreeMap<NodeId, Absence>>,
    hash: u64,
    bytes: usize,
    /// Members that are gone, of them those that are lost or forgotten; this node is not among them.
    gone: usize,
    lost: usize,
}

impl Table {
    pub(super) fn new(me: NodeId) -> Self {
        Self { me: Some(me), ..Self::default() }
    }

    // ---- records

    /// The same at any two nodes that hold the same versions of the same records.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn shared(&self, key: SharedKey) -> Option<&Shared> {
        self.shared.get(&key)
    }

    /// All records behind that one, in the order of lists.
    pub(super) fn shared_after(
        &self,
        key: Option<SharedKey>,
    ) -> btree_map::Range<'_, SharedKey, Shared> {
        self.shared.range((key.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
    }

    /// Whether the record is newer than the one that is held.
    pub(super) fn check_is_newer(&self, key: SharedKey, version: u64) -> Result<(), Refusal> {
        match self.shared.get(&key) {
            Some(held) if held.version >= version => {
                Err(Refusal::Old { found: version, held: held.version })
            }
            _ => Ok(()),
        }
    }

    /// Whether the record of a member is later than the one that is held: by its number, as views are, then by its start and version. They
    /// agree but for a member whose folder was restored and that has since written more often than it had before.
    pub(super) fn check_is_later(&self, record: &MemberRecord) -> Result<(), Refusal> {
        let order = |record: &MemberRecord| (record.number, record.start, record.version);
        match self.members.get(&record.node) {
            Some(held) if order(&held.record) >= order(record) => {
                Err(Refusal::Old { found: record.version, held: held.record.version })
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, key: SharedKey, shared: Shared) {
        self.bytes += shared.bytes.len();
        self.hash = self.hash.wrapping_add(hash_of(key, shared.version));
        if let Some(old) = self.shared.insert(key, shared) {
            self.bytes -= old.bytes.len();
            self.hash = self.hash.wrapping_sub(hash_of(key, old.version));
        }
    }

    fn take(&mut self, key: SharedKey) {
        if let Some(old) = self.shared.remove(&key) {
            self.bytes -= old.bytes.len();
            self.hash = self.hash.wrapping_sub(hash_of(key, old.version));
        }
    }

    fn check_room(&self, key: SharedKey, bytes: usize) -> Result<(), Refusal> {
        let held = self.shared.get(&key).map_or(0, |held| held.bytes.len());
        if self.bytes - held + bytes > BYTES_MAX {
            return Err(Refusal::TooLarge { most: BYTES_MAX });
        }
        Ok(())
    }

    /// Takes a list over.
    pub(super) fn put_revocations(
        &mut self,
        authority: NodeId,
        shared: Shared,
    ) -> Result<(), Refusal> {
        let key = SharedKey { of: authority, kind: SharedKind::Revocations };
        self.check_is_newer(key, shared.version)?;
        let is_list = |key: &&SharedKey| key.kind == SharedKind::Revocations;
        if !self.shared.contains_key(&key)
            && self.shared.keys().filter(is_list).count() >= LISTS_MAX
        {
            return Err(Refusal::TooManyLists { most: LISTS_MAX });
        }
        self.put(key, shared);
        Ok(())
    }

    /// Takes the cameras at a member over.
    pub(super) fn put_cameras(
        &mut self,
        node: NodeId,
        mut cameras: Vec<CameraName>,
        shared: Shared,
    ) -> Result<(), Refusal> {
        let key = SharedKey { of: node, kind: SharedKind::Cameras };
        self.check_is_newer(key, shared.version)?;
        if !self.members.contains_key(&node) {
            return Err(Refusal::NoMember);
        }
        self.check_room(key, shared.bytes.len())?;
        cameras.sort_unstable();
        self.cameras.insert(node, cameras);
        self.put(key, shared);
        Ok(())
    }

    // ---- members

    pub(super) fn members(&self) -> impl Iterator<Item = (NodeId, &Held)> {
        self.members.iter().map(|(node, held)| (*node, held))
    }

    pub(super) fn member(&self, node: NodeId) -> Option<&Held> {
        self.members.get(&node)
    }

    pub(super) fn member_mut(&mut self, node: NodeId) -> Option<&mut Held> {
        self.members.get_mut(&node)
    }

    /// Whether a record of a member may be taken over so soon behind others of it. Asked before its seal is looked at.
    pub(super) fn check_pace(&mut self, now: Instant, node: NodeId) -> Result<(), Refusal> {
        match self.members.get_mut(&node) {
            Some(held) if !held.pace.has_room(now) => {
                held.hurried_at = Some(now);
                Err(Refusal::TooOften)
            }
            _ => Ok(()),
        }
    }

    /// A record of a member was taken over.
    pub(super) fn note_pace(&mut self, now: Instant, node: NodeId) {
        if let Some(held) = self.members.get_mut(&node) {
            held.pace.take(now, 1);
        }
    }

    /// The members of that name, by their keys.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = NodeId> {
        let all = (name.to_owned(), NodeId([0; 32]))..=(name.to_owned(), NodeId([255; 32]));
        self.names.range(all).map(|(_, node)| *node)
    }

    pub(super) fn cameras(&self, node: NodeId) -> &[CameraName] {
        self.cameras.get(&node).map_or(&[], Vec::as_slice)
    }

    pub(super) fn present(&self) -> usize {
        self.members.len() - self.gone
    }

    pub(super) fn gone(&self) -> usize {
        self.gone
    }

    /// The words of others about a member, whatever number they are about.
    pub(super) fn words(&self, node: NodeId) -> impl Iterator<Item = (NodeId, Absence)> {
        self.words.get(&node).into_iter().flatten().map(|(observer, word)| (*observer, *word))
    }

    /// How many members that are here miss a member at its number, besides `me`; a word that it is lost counts whoever says it.
    pub(super) fn missed_by(&self, node: NodeId, me: NodeId) -> usize {
        let Some(held) = self.members.get(&node) else { return 0 };
        let counts = |(observer, word): &(NodeId, Absence)| {
            *observer != me
                && word.number == held.record.number
                && (word.kind > AbsenceKind::Doubted || self.is_here(*observer))
        };
        self.words(node).filter(counts).count()
    }

    fn is_here(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|held| !held.standing.is_gone())
    }

    /// Takes a member's record over. Returns the members that may stand differently now, that one among them.
    pub(super) fn put_member(
        &mut self,
        record: MemberRecord,
        shared: Shared,
    ) -> Result<Vec<NodeId>, Refusal> {
        let node = record.node;
        let key = SharedKey { of: node, kind: SharedKind::Member };
        self.check_is_later(&record)?;
        // There is always a place for this node itself.
        if Some(node) != self.me {
            self.check_room(key, shared.bytes.len())?;
            if !self.members.contains_key(&node) {
                self.check_place(&record)?;
            }
        }
        let absences = record.absences.clone();
        let name = (record.name.clone(), node);
        let mut affected = match self.members.get_mut(&node) {
            Some(held) => {
                let old = std::mem::replace(&mut held.record, record);
                if old.name != name.0 {
                    self.names.remove(&(old.name, node));
                }
                held.is_answered = false;
                old.absences.iter().map(|word| word.node).collect()
            }
            None => {
                let standing = Presence::Here;
                let (gone_at, is_answered) = (None, false);
                let shown = standing;
                let pace = Pace::new(RECORD_EVERY, RECORDS_AT_ONCE);
                let held =
                    Held { record, standing, gone_at, shown, is_answered, pace, hurried_at: None };
                self.members.insert(node, held);
                Vec::new()
            }
        };
        self.names.insert(name);
        self.put(key, shared);
        self.unsay(node, &affected);
        for word in absences {
            self.words.entry(word.node).or_default().insert(node, word);
            affected.push(word.node);
        }
        affected.push(node);
        affected.sort_unstable();
        affected.dedup();
        affected.iter().for_each(|node| self.judge(*node));
        Ok(affected)
    }

    /// Whether a member that is not known finds a place.
    fn check_place(&self, record: &MemberRecord) -> Result<(), Refusal> {
        let Some(gone) = self.gone_by_records(record) else {
            return match self.present() < PRESENT_MAX {
                true => Ok(()),
                false => Err(Refusal::TooMany { most: PRESENT_MAX }),
            };
        };
        // It would be the first to be dropped.
        let is_lost = gone != Presence::Left;
        let only_lost = is_lost && self.lost >= LOST_MAX;
        let is_full = only_lost || self.gone >= GONE_MAX;
        let is_older = |oldest| (record.written, record.node) < oldest;
        if is_full && self.oldest_gone(only_lost).is_some_and(is_older) {
            return Err(Refusal::LongGone);
        }
        Ok(())
    }

    /// The words of a member about those are over.
    fn unsay(&mut self, observer: NodeId, about: &[NodeId]) {
        for node in about {
            if let Some(words) = self.words.get_mut(node) {
                words.remove(&observer);
                if words.is_empty() {
                    self.words.remove(node);
                }
            }
        }
    }

    /// Whether a member with that record is gone, by what it and others say.
    fn gone_by_records(&self, record: &MemberRecord) -> Option<Presence> {
        if record.has_left {
            return Some(Presence::Left);
        }
        let (mut lost, mut is_lost) = (0, false);
        for (observer, word) in self.words(record.node) {
            if word.number != record.number || observer == record.node {
                continue;
            }
            match word.kind {
                AbsenceKind::Forgotten => return Some(Presence::Forgotten),
                AbsenceKind::LostByOnly => is_lost = true,
                AbsenceKind::Lost => lost += 1,
                AbsenceKind::Doubted => {}
            }
        }
        (is_lost || lost >= WORDS_MIN).then_some(Presence::Lost)
    }

    fn judge(&mut self, node: NodeId) {
        let Some(held) = self.members.get(&node) else { return };
        let proved = self.gone_by_records(&held.record);
        let number = held.record.number;
        let is_me = Some(node) == self.me;
        let Some(held) = self.members.get_mut(&node) else { return };
        let before = held.standing;
        if let Some(gone) = proved {
            held.gone_at = Some((number, gone));
        }
        let is_kept =
            |at: &(u64, Presence)| at.0 == number && (proved.is_some() || at.1 != Presence::Left);
        held.standing = held.gone_at.filter(is_kept).map_or(Presence::Here, |(_, gone)| gone);
        let after = held.standing;
        if !is_me {
            self.gone = self.gone + usize::from(after.is_gone()) - usize::from(before.is_gone());
            let is_lost = |standing| matches!(standing, Presence::Lost | Presence::Forgotten);
            self.lost = self.lost + usize::from(is_lost(after)) - usize::from(is_lost(before));
        }
    }

    /// Whether a member is gone and the records that said so are no longer there.
    pub(super) fn is_unproved(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|held| {
            held.standing.is_gone() && self.gone_by_records(&held.record).is_none()
        })
    }

    // ---- gone members

    fn oldest_gone(&self, only_lost: bool) -> Option<(u64, NodeId)> {
        let is_it = |(node, held): &(&NodeId, &Held)| {
            let is_lost = matches!(held.standing, Presence::Lost | Presence::Forgotten);
            Some(**node) != self.me && if only_lost { is_lost } else { held.standing.is_gone() }
        };
        self.members.iter().filter(is_it).map(|(node, held)| (held.record.written, *node)).min()
    }

    /// The gone member that is to be dropped next, if there are too many: the one with the oldest record, then the lowest. Nodes with the
    /// same records drop the same.
    pub(super) fn surplus(&self) -> Option<NodeId> {
        let too_many_lost = self.lost > LOST_MAX;
        if !too_many_lost && self.gone <= GONE_MAX {
            return None;
        }
        self.oldest_gone(too_many_lost).map(|(_, node)| node)
    }

    /// Nothing of a member is held any more. Returns the members that may stand differently now.
    pub(super) fn drop_member(&mut self, node: NodeId) -> Vec<NodeId> {
        self.take(SharedKey { of: node, kind: SharedKind::Cameras });
        self.take(SharedKey { of: node, kind: SharedKind::Member });
        self.cameras.remove(&node);
        let Some(held) = self.members.remove(&node) else { return Vec::new() };
        self.names.remove(&(held.record.name, node));
        self.gone -= usize::from(held.standing.is_gone());
        self.lost -= usize::from(matches!(held.standing, Presence::Lost | Presence::Forgotten));
        let affected: Vec<NodeId> = held.record.absences.iter().map(|word| word.node).collect();
        self.unsay(node, &affected);
        affected.iter().for_each(|node| self.judge(*node));
        affected
    }

    // ---- what it comes to

    /// The view of the rule.
    pub(super) fn view(&self) -> View {
        self.standings().map(|(node, standing)| (MemberId::from(node), standing)).collect()
    }

    fn standings(&self) -> impl Iterator<Item = (NodeId, Standing)> {
        self.members.iter().map(|(node, held)| {
            let MemberRecord { number, start, .. } = held.record;
            (*node, Standing { number, is_lost: held.standing.is_gone(), start })
        })
    }

    /// The same at any two nodes that know of the same members, with the same numbers, starts and losses, and compute places by that
    /// version of the algorithm.
    pub(super) fn view_hash(&self, algorithm: u8) -> u64 {
        self.standings().fold(mix(u64::from(algorithm)), |hash, (node, standing)| {
            let hash = mix_node(hash, node);
            let hash = mix(hash ^ standing.number);
            mix(mix(hash ^ standing.start) ^ u64::from(standing.is_lost))
        })
    }
}

impl From<NodeId> for MemberId {
    /// By the first eight bytes of the hash of its key. A second key with the same ones takes 2⁶⁴ tries.
    fn from(NodeId([a, b, c, d, e, f, g, h, ..]): NodeId) -> Self {
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

fn hash_of(key: SharedKey, version: u64) -> u64 {
    mix(mix_node(mix(version), key.of) ^ key.kind as u64)
}

fn mix_node(hash: u64, NodeId(bytes): NodeId) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(hash, |hash, word| mix(hash ^ u64::from_le_bytes(*word)))
}

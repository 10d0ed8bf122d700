//! The records of this node itself: their numbers, its words about others, and what becomes of them if another process has its key.

use std::{collections::BTreeSet, time::Duration};

use tidegate_message::{Backoff, CameraName, Instant};
use tidegate_wire::{Absence, AbsenceKind, MemberRecord, NodeId, limits::ABSENCES_MAX};

use super::{
    Presence,
    limits::*,
    saved::SavedOwn,
    table::{Shared, Table},
};

/// The bits of a version that are drawn for each process, so that two with one key write no two records of one version.
const LOW_BITS: u32 = 16;

#[derive(Debug)]
pub(super) struct Own {
    low: u64,
    pub(super) start: u64,
    pub(super) number: u64,
    /// The version of the last record that this node wrote or saw of itself, of any kind.
    version: u64,
    pub(super) has_left: bool,
    /// Lost and forgotten members, oldest first.
    words: Vec<Absence>,
    /// Members that are doubted, from the next record on and in the last one.
    pub(super) doubts: BTreeSet<NodeId>,
    pub(super) said_doubts: BTreeSet<NodeId>,
    pub(super) cameras: Vec<CameraName>,
    pub(super) cameras_version: u64,
    writes_cameras: bool,
    write_at: Option<Instant>,
    written_at: Option<Instant>,
    hold_until: Option<Instant>,
    pub(super) pending: Option<Pending>,
    /// When doubts about this node are to be answered.
    pub(super) answer_at: Option<Instant>,
    others: Others,
}

/// Records that are sent once they are saved.
#[derive(Debug)]
pub(super) struct Pending {
    /// The save that has them.
    pub(super) ticket: Option<u64>,
    pub(super) record: MemberRecord,
    pub(super) shared: Shared,
    pub(super) cameras: Option<Shared>,
}

/// Records of this node that it did not write.
#[derive(Debug)]
struct Others {
    since: Option<Instant>,
    count: u32,
    /// Whether this node has written since the last one.
    is_answered: bool,
    backoff: Backoff,
}

/// The process that wrote a record of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Its own, or an older one.
    Own,
    /// One that this process does not know of.
    Foreign {
        /// Whether it is the first, and whether another process is known to live from this one on.
        is_first: bool,
        is_same_key: bool,
    },
}

impl Own {
    pub(super) fn new(saved: Option<SavedOwn>, draw: u64, start: u64) -> Self {
        let saved = saved.unwrap_or(SavedOwn { start, number: 1, ..SavedOwn::default() });
        Self {
            low: draw & ((1 << LOW_BITS) - 1),
            start: saved.start,
            // A member that has left comes back by the next number.
            number: saved.number + u64::from(saved.has_left),
            version: saved.version,
            has_left: false,
            words: saved.words,
            doubts: BTreeSet::new(),
            said_doubts: BTreeSet::new(),
            cameras: Vec::new(),
            cameras_version: 0,
            writes_cameras: false,
            write_at: None,
            written_at: None,
            hold_until: None,
            pending: None,
            answer_at: None,
            others: Others {
                since: None,
                count: 0,
                is_answered: true,
                backoff: Backoff::with_jitter(SAME_KEY_WAIT, SAME_KEY_WAIT_MAX, draw),
            },
        }
    }

    pub(super) fn saved(&self) -> SavedOwn {
        SavedOwn {
            start: self.start,
            number: self.number,
            version: self.version,
            has_left: self.has_left,
            words: self.words.clone(),
        }
    }

    // ---- when it is written

    /// A record is to be written: at once, or a while after the last one.
    pub(super) fn want_write(&mut self, now: Instant, is_urgent: bool) {
        let at = self.written_at.filter(|_| !is_urgent).map_or(now, |at| now.max(at + OWN_GAP));
        self.write_at = Some(self.write_at.map_or(at, |other| other.min(at)));
    }

    /// The cameras are to be written with the next record.
    pub(super) fn want_cameras(&mut self, now: Instant) {
        self.writes_cameras = true;
        self.want_write(now, false);
    }

    pub(super) fn writes_at(&self) -> Option<Instant> {
        let at = self.write_at.filter(|_| self.pending.is_none())?;
        Some(self.hold_until.map_or(at, |hold| hold.max(at)))
    }

    /// Whether all that is to be written has been.
    pub(super) fn is_written(&self) -> bool {
        self.write_at.is_none() && self.pending.is_none()
    }

    /// It is written now. Returns whether the cameras are too.
    pub(super) fn begins_write(&mut self, now: Instant) -> bool {
        self.write_at = None;
        self.written_at = Some(now);
        self.others.is_answered = true;
        std::mem::take(&mut self.writes_cameras)
    }

    /// The version of the next record.
    pub(super) fn next_version(&mut self) -> u64 {
        self.version = ((self.version >> LOW_BITS) + 1) << LOW_BITS | self.low;
        self.version
    }

    // ---- numbers

    /// The member takes the next number: others have lost it at the one before, or places change.
    pub(super) fn raise(&mut self, now: Instant) {
        self.number += 1;
        self.want_write(now, true);
    }

    /// A record of this node was seen that may be of another process.
    pub(super) fn see(&mut self, now: Instant, record: &MemberRecord, start: u64) -> Seen {
        let is_later = (record.number, record.start) > (self.number, self.start);
        if record.version <= self.version && !is_later {
            return Seen::Own;
        }
        self.version = self.version.max(record.version);
        self.number = self.number.max(record.number) + 1;
        self.start = start;
        for word in &record.absences {
            let is_known = self
                .words
                .iter()
                .any(|known| known.node == word.node && known.number >= word.number);
            if word.kind > AbsenceKind::Doubted && !is_known {
                self.put_word(*word);
            }
        }
        if self.others.since.is_none_or(|since| now.since(since) > SAME_KEY_WITHIN) {
            self.others.backoff.reset();
            self.others.count = 0;
        }
        self.others.since = Some(now);
        if self.others.is_answered {
            self.others.is_answered = false;
            self.others.count += 1;
            // The first is of a former process. One that lives answers as this one does: without a wait they would go on for ever.
            let wait = match self.others.count {
                1 => Duration::ZERO,
                _ => self.others.backoff.next_wait(),
            };
            self.hold_until = Some(now + wait);
            self.want_write(now, true);
            let count = self.others.count;
            return Seen::Foreign { is_first: count == 1, is_same_key: count == SAME_KEY_AFTER };
        }
        Seen::Foreign { is_first: false, is_same_key: false }
    }

    /// When another process with this node's key counts as ended, if it is not seen again.
    pub(super) fn same_key_until(&self) -> Option<Instant> {
        let since = self.others.since.filter(|_| self.others.count >= SAME_KEY_AFTER);
        since.map(|since| since + SAME_KEY_WITHIN)
    }

    /// Whether another process that had this node's key counts as ended from now on.
    pub(super) fn ends_same_key(&mut self, now: Instant) -> bool {
        let is_over = self.same_key_until().is_some_and(|until| until <= now);
        if is_over {
            self.others.count = 0;
            self.others.backoff.reset();
        }
        is_over
    }

    /// Cameras of this node were seen.
    pub(super) fn see_cameras(&mut self, now: Instant, version: u64) {
        if version > self.cameras_version {
            self.version = self.version.max(version);
            self.want_cameras(now);
        }
    }

    // ---- words

    /// The word about a member at that number.
    pub(super) fn word(&self, node: NodeId, number: u64) -> Option<AbsenceKind> {
        let is_it = |word: &&Absence| word.node == node && word.number == number;
        self.words.iter().find(is_it).map(|word| word.kind)
    }

    /// How many words are about members that are not lost yet.
    pub(super) fn waiting(&self, table: &Table) -> usize {
        let waits = |word: &&Absence| {
            table
                .member(word.node)
                .is_some_and(|held| held.record.number == word.number && !held.standing().is_gone())
        };
        self.words.iter().filter(waits).count()
    }

    /// Says a word, which is never withdrawn at that number. Whether there is room for it.
    pub(super) fn say(&mut self, now: Instant, table: &Table, word: Absence) -> bool {
        if self.word(word.node, word.number).is_some_and(|said| said >= word.kind) {
            return true;
        }
        self.words.retain(|said| said.node != word.node);
        if self.words.len() >= ABSENCES_MAX {
            self.words.retain(|said| table.member(said.node).is_some());
        }
        if self.words.len() >= ABSENCES_MAX && word.kind < AbsenceKind::Forgotten {
            return false;
        }
        self.put_word(word);
        self.want_write(now, false);
        true
    }

    fn put_word(&mut self, word: Absence) {
        self.words.retain(|said| said.node != word.node);
        if self.words.len() >= ABSENCES_MAX {
            self.words.remove(0);
        }
        self.words.push(word);
    }

    /// Words about members that have come back, or have left, are over.
    pub(super) fn prune(&mut self, table: &Table) {
        self.words.retain(|word| {
            table.member(word.node).is_none_or(|held| {
                held.record.number <= word.number && held.standing() != Presence::Left
            })
        });
    }

    /// The words withdrawn about a member, which no node may do.
    #[cfg(any(test, feature = "sabotage"))]
    pub(super) fn withdraw(&mut self, node: NodeId) {
        self.words.retain(|said| said.node != node);
    }

    /// All words and, for as long as there is room, all doubts.
    pub(super) fn absences(&mut self, table: &Table) -> Vec<Absence> {
        self.prune(table);
        if self.words.len() + self.doubts.len() > ABSENCES_MAX {
            self.words.retain(|word| table.member(word.node).is_some());
        }
        let mut absences = self.words.clone();
        self.said_doubts.clear();
        for node in &self.doubts {
            let Some(number) = table.member(*node).map(|held| held.record.number) else { continue };
            if absences.len() < ABSENCES_MAX && self.word(*node, number).is_none() {
                absences.push(Absence { node: *node, number, kind: AbsenceKind::Doubted });
                self.said_doubts.insert(*node);
            }
        }
        absences
    }
}

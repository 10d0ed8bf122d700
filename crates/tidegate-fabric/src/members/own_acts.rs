//! This node as a member: the records that it writes of itself, and the acts of its operator.

use bytes::Bytes;
use tidegate_message::{CameraName, Instant};
use tidegate_wire::{
    Absence, AbsenceKind, MINOR, MemberCameras, MemberRecord, NodeId, SharedKey, SharedKind,
};

#[cfg(any(test, feature = "sabotage"))]
use super::Sabotage;
use super::{
    ALGORITHM, ForgetError, MemberSettings, Members, OwnSettings, Refusal, limits::*, link::Link,
    mix, own::Pending, table::Shared,
};

impl Members {
    /// Others have words about this node.
    pub(super) fn look_at_words(&mut self, now: Instant) {
        let me = self.settings.me;
        #[cfg(any(test, feature = "sabotage"))]
        if self.has(Sabotage::NumberStays) {
            return;
        }
        let number = self.own.number;
        let about = |word: &Absence| word.number == number;
        let is_lost =
            self.table.words(me).any(|(_, word)| about(&word) && word.kind > AbsenceKind::Doubted);
        if is_lost && !self.own.has_left {
            self.own.raise(now);
        } else if self.own.answer_at.is_none() && self.unanswered().next().is_some() {
            self.own.answer_at = Some(now + ANSWERED_AFTER);
        }
    }

    /// Members that doubt this node, have no link to it, and were not answered.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = NodeId> {
        let number = self.own.number;
        self.table.words(self.settings.me).filter_map(move |(observer, word)| {
            let held = self.table.member(observer)?;
            let is_open = word.number == number && !held.is_answered && !held.standing().is_gone();
            (is_open && !self.linked.contains_key(&observer)).then_some(observer)
        })
    }

    pub(super) fn answer(&mut self, now: Instant) {
        #[cfg(any(test, feature = "sabotage"))]
        if self.has(Sabotage::DoubtsAreSilent) {
            return;
        }
        let observers: Vec<NodeId> = self.unanswered().collect();
        if !observers.is_empty() {
            self.own.want_write(now, false);
        }
        for observer in observers {
            if let Some(held) = self.table.member_mut(observer) {
                held.is_answered = true;
            }
        }
    }

    /// Writes this node's record, if it is to be.
    pub(super) fn write(&mut self, now: Instant) {
        if self.own.writes_at().is_none_or(|at| at > now) {
            return;
        }
        let writes_cameras = self.own.begins_write(now);
        let version = self.own.next_version();
        let record = self.record(now, version);
        let shared = Shared { version, bytes: self.seal.seal(&record.to_bytes()).to_bytes() };
        let cameras = writes_cameras.then(|| {
            let version = self.own.next_version();
            let cameras = self.own.cameras.clone();
            let cameras = MemberCameras { node: self.settings.me, version, cameras };
            Shared { version, bytes: self.seal.seal(&cameras.to_bytes()).to_bytes() }
        });
        self.own.pending = Some(Pending { ticket: None, record, shared, cameras });
        self.saves.must = true;
        #[cfg(any(test, feature = "sabotage"))]
        if self.has(Sabotage::UnsavedLeave) {
            self.publish(now);
        }
    }

    pub(super) fn record(&mut self, now: Instant, version: u64) -> MemberRecord {
        let absences = self.own.absences(&self.table);
        let MemberSettings { me, name, own, .. } = &self.settings;
        MemberRecord {
            node: *me,
            version,
            name: name.clone(),
            start: self.own.start,
            number: self.own.number,
            has_left: self.own.has_left,
            minor: MINOR,
            algorithm: ALGORITHM,
            addresses: own.addresses.clone(),
            api_addresses: own.api_addresses.clone(),
            position: own.position,
            is_mobile: own.is_mobile,
            zone: own.zone.clone(),
            weight: own.weight.clamp(1, WEIGHT_MAX),
            written: self.wall_seconds + now.since(self.began).as_secs(),
            absences,
            via: own.via.clone(),
        }
    }

    /// The record of this node that was saved is sent.
    pub(super) fn publish(&mut self, now: Instant) {
        let Some(Pending { record, shared, cameras, .. }) = self.own.pending.take() else { return };
        let of = record.node;
        // It is newer, and there is always a place for it.
        if let Ok(affected) = self.table.put_member(record, shared) {
            self.spread(SharedKey { of, kind: SharedKind::Member }, None);
            self.settle(now, affected);
        }
        if let Some(cameras) = cameras {
            self.own.cameras_version = cameras.version;
            let names = self.own.cameras.clone();
            if self.table.put_cameras(of, names, cameras).is_ok() {
                self.spread(SharedKey { of, kind: SharedKind::Cameras }, None);
            }
        }
        self.write(now);
    }

    /// The cameras at this node; the first [`CAMERAS_MAX`](tidegate_wire::limits::CAMERAS_MAX) count.
    pub fn set_cameras(&mut self, now: Instant, cameras: Vec<CameraName>) {
        self.watch_advance(now);
        let mut cameras = cameras;
        cameras.sort_unstable();
        cameras.dedup();
        cameras.truncate(tidegate_wire::limits::CAMERAS_MAX);
        if self.own.cameras != cameras {
            self.own.cameras = cameras;
            self.own.want_cameras(now);
        }
        self.write(now);
    }

    /// The part of its own record that may change while it runs.
    pub fn own_settings(&self) -> &OwnSettings {
        &self.settings.own
    }

    /// This node says otherwise of itself. Its number rises if places depend on what is different.
    pub fn set_own(&mut self, now: Instant, own: OwnSettings) {
        self.watch_advance(now);
        let old = std::mem::replace(&mut self.settings.own, own);
        let new = &self.settings.own;
        let is_placed = |own: &OwnSettings| {
            let position = own.position.filter(|_| !own.is_mobile);
            (position, own.is_mobile, own.zone.clone(), own.weight)
        };
        if is_placed(&old) != is_placed(new) {
            self.own.raise(now);
        } else if old != *new {
            self.own.want_write(now, false);
        }
        self.write(now);
    }

    /// This node may have lost something of what it held: it takes a new start and the next number.
    pub fn renew(&mut self, now: Instant) {
        self.watch_advance(now);
        self.draw = mix(self.draw);
        self.own.start = self.draw;
        self.own.raise(now);
        self.write(now);
    }

    /// A list of revoked certificates that this node has. Members on it are out, and the list spreads.
    ///
    /// # Errors
    /// [`Refusal`]: it is not newer than the one that is held, or not right.
    pub fn set_revocations(
        &mut self,
        now: Instant,
        authority: NodeId,
        list: Bytes,
    ) -> Result<(), Refusal> {
        self.watch_advance(now);
        self.learn_revocations(now, authority, None, list)?;
        self.spread(SharedKey { of: authority, kind: SharedKind::Revocations }, None);
        self.records_changed(now);
        self.write(now);
        Ok(())
    }

    /// This node leaves: it says so, and dials no more. Links are to be ended once [`Members::is_leave_spread`].
    pub fn leave(&mut self, now: Instant) {
        self.watch_advance(now);
        if !self.own.has_left {
            self.own.has_left = true;
            self.dials.clear();
            self.own.want_write(now, true);
            self.write(now);
        }
    }

    /// Whether this node has left and has sent its word on all links that there are.
    pub fn is_leave_spread(&self) -> bool {
        let key = SharedKey { of: self.settings.me, kind: SharedKind::Member };
        let is_sent = |link: &Link| link.was_sent(key);
        self.own.has_left && self.own.is_written() && self.links.values().all(is_sent)
    }

    /// A member is not to be waited for any more, by the word of a person.
    ///
    /// # Errors
    /// [`ForgetError`]
    pub fn forget(&mut self, now: Instant, node: NodeId) -> Result<(), ForgetError> {
        self.watch_advance(now);
        if node == self.settings.me {
            return Err(ForgetError::Myself(node));
        }
        let number = self.table.member(node).ok_or(ForgetError::Unknown(node))?.record.number;
        if self.linked.contains_key(&node) {
            return Err(ForgetError::Linked(node));
        }
        let kind = AbsenceKind::Forgotten;
        self.own.say(now, &self.table, Absence { node, number, kind });
        self.write(now);
        Ok(())
    }
}

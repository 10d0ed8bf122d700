//! Records of others: which are taken over, and what they change.

use bytes::Bytes;
use tidegate_message::Instant;
use tidegate_wire::{MemberCameras, MemberRecord, NodeId, Sealed, SharedKey, SharedKind};

use super::mix;
use super::{
    Event, Members, Presence, Refusal, SealError, Target, limits::*, miss::Miss, own::Seen, spread,
    table::Shared,
};

impl Members {
    pub(super) fn learn(
        &mut self,
        now: Instant,
        key: SharedKey,
        version: u64,
        bytes: Bytes,
    ) -> Result<(), Refusal> {
        check_range("version", version, 0, NUMBER_MAX)?;
        if key.kind == SharedKind::Revocations {
            return self.learn_revocations(now, key.of, Some(version), bytes);
        }
        let sealed = Sealed::of_bytes(&bytes)?;
        let agrees = |field, is_equal: bool| {
            if is_equal { Ok(()) } else { Err(Refusal::Contradicts { field }) }
        };
        let shared = Shared { version, bytes };
        if key.kind == SharedKind::Cameras {
            self.table.check_pace(now, key.of)?;
            let signer = self.seal.open(&sealed)?;
            let MemberCameras { node, version: inner, cameras } =
                MemberCameras::of_bytes(&sealed.bytes)?;
            agrees("node", node == key.of && node == signer.node)?;
            agrees("version", inner == version)?;
            if node == self.settings.me {
                self.own.see_cameras(now, version);
                return Err(Refusal::Old { found: 0, held: self.own.cameras_version });
            }
            self.table.put_cameras(node, cameras, shared)?;
            self.table.note_pace(now, node);
            self.event(Event::Cameras(node));
            return Ok(());
        }
        let record = MemberRecord::of_bytes(&sealed.bytes)?;
        agrees("node", record.node == key.of)?;
        agrees("version", record.version == version)?;
        check_range("weight", record.weight.into(), 1, WEIGHT_MAX.into())?;
        check_range("number", record.number, 0, NUMBER_MAX)?;
        let is_me = record.node == self.settings.me;
        if !is_me {
            // Before the signature is looked at, which costs more than all the rest.
            self.table.check_is_later(&record)?;
            self.table.check_pace(now, record.node)?;
        }
        let signer = self.seal.open(&sealed)?;
        agrees("node", record.node == signer.node)?;
        agrees("name", record.name == signer.name)?;
        if is_me {
            return self.see(now, &record);
        }
        self.learn_member(now, record, shared)
    }

    pub(super) fn learn_member(
        &mut self,
        now: Instant,
        record: MemberRecord,
        shared: Shared,
    ) -> Result<(), Refusal> {
        let node = record.node;
        let old = self.table.member(node).map(|held| held.record.clone());
        let new = record.clone();
        let affected = self.table.put_member(record, shared)?;
        self.table.note_pace(now, node);
        let standing = self.table.member(node).map_or(Presence::Here, |held| held.standing());
        let counted = self.watch.counted();
        match &old {
            None => {
                if !standing.is_gone() {
                    self.event(Event::Joined(node));
                    if !self.linked.contains_key(&node) {
                        self.miss(now, node, self.quiet(node));
                    }
                }
                self.want_dial(now, node);
            }
            Some(old) => {
                if is_other(old, &new) {
                    self.event(Event::Changed(node));
                }
                let is_answer = match self.misses.get(&node) {
                    Some(Miss::Away { since, .. }) => {
                        new.number > old.number || counted >= *since + ANSWER_LATE
                    }
                    _ => false,
                };
                if is_answer {
                    self.miss(now, node, self.quiet(node));
                    if self.own.doubts.remove(&node) {
                        self.own.want_write(now, false);
                    }
                }
                if old.addresses != new.addresses {
                    self.want_dial(now, node);
                }
            }
        }
        if old.is_none_or(|old| old.name != new.name) {
            self.look_for_name(node, &new.name);
        }
        self.settle(now, affected);
        Ok(())
    }

    pub(super) fn look_for_name(&mut self, node: NodeId, name: &str) {
        let is_here = |other: &NodeId| {
            *other != node
                && self.table.member(*other).is_some_and(|held| !held.standing().is_gone())
        };
        let others: Vec<NodeId> = self.table.named(name).filter(is_here).collect();
        for other in others {
            let nodes = [node.min(other), node.max(other)];
            self.event(Event::SameName { name: name.to_owned(), nodes });
        }
    }

    /// A record of this node has come of a peer.
    pub(super) fn see(&mut self, now: Instant, record: &MemberRecord) -> Result<(), Refusal> {
        self.draw = mix(self.draw);
        let held = self.own.saved().version;
        match self.own.see(now, record, self.draw) {
            Seen::Own => {}
            Seen::Foreign { is_first, is_same_key } => {
                if is_first {
                    self.event(Event::Restored);
                }
                if is_same_key {
                    self.event(Event::SameKey);
                }
            }
        }
        // It is not taken over: the next of this process follows.
        Err(Refusal::Old { found: 0, held })
    }

    pub(super) fn learn_revocations(
        &mut self,
        now: Instant,
        authority: NodeId,
        version: Option<u64>,
        list: Bytes,
    ) -> Result<(), Refusal> {
        let found = self.seal.revoke(authority, &list)?;
        if version.is_some_and(|version| version != found) {
            return Err(Refusal::Contradicts { field: "version" });
        }
        check_range("version", found, 0, NUMBER_MAX)?;
        self.table.put_revocations(authority, Shared { version: found, bytes: list.clone() })?;
        self.event(Event::Revocations { authority, list });
        self.open_again(now);
        Ok(())
    }

    /// Drops all whose certificate is revoked by now.
    pub(super) fn open_again(&mut self, now: Instant) {
        let mut revoked = Vec::new();
        for (node, _) in self.table.members() {
            let key = SharedKey { of: node, kind: SharedKind::Member };
            let Some(shared) = self.table.shared(key) else { continue };
            let Ok(sealed) = Sealed::of_bytes(&shared.bytes) else { continue };
            if node != self.settings.me && self.seal.open(&sealed) == Err(SealError::Revoked) {
                revoked.push(node);
            }
        }
        for node in revoked {
            let affected = self.drop_member(now, node, Event::Revoked(node));
            self.settle(now, affected);
        }
    }

    /// Nothing of a member is held any more. Returns the members that may stand differently now.
    pub(super) fn drop_member(&mut self, now: Instant, node: NodeId, event: Event) -> Vec<NodeId> {
        self.misses.remove(&node);
        self.unproved.remove(&node);
        self.own.doubts.remove(&node);
        self.dials.forget(Target::Member(node));
        self.event(event);
        self.records_changed(now);
        self.table.drop_member(node)
    }

    /// Members may stand differently now.
    pub(super) fn settle(&mut self, now: Instant, nodes: Vec<NodeId>) {
        let mut nodes = nodes;
        loop {
            while let Some(node) = nodes.pop() {
                if node == self.settings.me {
                    self.look_at_words(now);
                } else if self.show(now, node)
                    && let Some(held) = self.table.member(node)
                {
                    // The doubts of members that are here count, and no others.
                    nodes.extend(held.record.absences.iter().map(|word| word.node));
                }
            }
            let Some(node) = self.table.surplus() else { break };
            nodes = self.drop_member(now, node, Event::Dropped(node));
        }
    }

    pub(super) fn presence(&self, node: NodeId) -> Option<Presence> {
        let standing = self.table.member(node)?.standing();
        let is_away = matches!(self.misses.get(&node), Some(Miss::Away { .. }));
        let is_doubted = standing == Presence::Here
            && (is_away || self.table.missed_by(node, self.settings.me) > 0);
        Some(if is_doubted { Presence::Doubted } else { standing })
    }

    /// Gives the shell how a member stands, if it is another than before. Whether it is gone now and was not, or the other way round.
    pub(super) fn show(&mut self, now: Instant, node: NodeId) -> bool {
        let Some(presence) = self.presence(node) else { return false };
        if self.table.is_unproved(node) {
            let at = self.watch.counted() + spread(self.settings.me, node);
            self.unproved.entry(node).or_insert(at);
            self.tick_within(now, TICK);
        }
        let Some(held) = self.table.member_mut(node) else { return false };
        let before = std::mem::replace(&mut held.shown, presence);
        if before == presence {
            return false;
        }
        self.event(match presence {
            Presence::Here => Event::Returned(node),
            Presence::Doubted if before.is_gone() => Event::Returned(node),
            Presence::Doubted => Event::Doubted(node),
            Presence::Lost => Event::Lost(node),
            Presence::Forgotten => Event::Forgotten(node),
            Presence::Left => Event::Left(node),
        });
        if presence.is_gone() {
            self.misses.remove(&node);
            if self.own.doubts.remove(&node) {
                self.own.want_write(now, false);
            }
            if presence != Presence::Lost {
                self.dials.forget(Target::Member(node));
            }
        } else if before.is_gone() {
            if !self.linked.contains_key(&node) {
                self.miss(now, node, self.quiet(node));
            }
            self.dials.forget(Target::Member(node));
            self.want_dial(now, node);
        }
        before.is_gone() != presence.is_gone()
    }
}

fn check_range(field: &'static str, found: u64, least: u64, most: u64) -> Result<(), Refusal> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(Refusal::Range { field, found, least, most }),
    }
}

/// Whether a record says more than that its member lives, or misses others.
fn is_other(old: &MemberRecord, new: &MemberRecord) -> bool {
    let said = |record: &MemberRecord| MemberRecord {
        version: 0,
        written: 0,
        absences: Vec::new(),
        ..record.clone()
    };
    said(old) != said(new)
}

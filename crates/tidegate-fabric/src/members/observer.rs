//! This node as an observer: time that it counts, and the words that come of it.

use std::time::Duration;

use tidegate_message::Instant;
use tidegate_wire::{Absence, AbsenceKind, NodeId};

use super::{
    Event, Members, Presence,
    limits::*,
    link::Link,
    miss::{Miss, Word},
    spread,
};

impl Members {
    /// When [`Members::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let lists = self.links.values().filter_map(Link::poll_timeout).min();
        let hash = (!self.links.is_empty()).then_some(self.hash_at);
        let own = [
            self.own.writes_at(),
            self.own.answer_at,
            self.own.same_key_until(),
            self.saves.records_at,
        ];
        [lists, hash, self.tick_at, self.dials.poll_timeout()]
            .into_iter()
            .chain(own)
            .flatten()
            .min()
    }

    /// The time of [`Members::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.watch_advance(now);
        for link in self.links.values_mut() {
            self.counts.lists += u64::from(link.handle_timeout(now));
        }
        if self.hash_at <= now {
            self.hash_at = now + HASH_EVERY;
            self.links.values_mut().for_each(Link::say_hash);
        }
        if self.own.answer_at.take_if(|at| *at <= now).is_some() {
            self.answer(now);
        }
        if self.own.ends_same_key(now) {
            self.event(Event::SameKeyOver);
        }
        if self.saves.records_at.take_if(|at| *at <= now).is_some() {
            self.saves.records = true;
        }
        if self.tick_at.is_some_and(|at| at <= now) {
            self.tick(now);
        }
        self.write(now);
    }

    pub(super) fn watch_advance(&mut self, now: Instant) {
        self.watch.advance(now);
    }

    /// Judges all that are missed.
    pub(super) fn tick(&mut self, now: Instant) {
        self.tick_at = None;
        if self.own.has_left {
            return;
        }
        let (me, counted) = (self.settings.me, self.watch.counted());
        let mut changed = Vec::new();
        // Where many are missed at once, observers say so in one order: with words for different members, none would be lost.
        let is_many = self.own.waiting(&self.table) >= MANY;
        for (node, miss) in &mut self.misses {
            let Some(number) = self.table.member(*node).map(|held| held.record.number) else {
                continue;
            };
            let was_away = matches!(miss, Miss::Away { .. });
            let others = self.table.missed_by(*node, me);
            let spread = if is_many { SPREAD } else { spread(me, *node) };
            let doubts = self.own.said_doubts.contains(node);
            let word = miss.judge(counted, spread, others, doubts);
            if word == Word::Loses && self.own.word(*node, number).is_none() {
                let is_only = self.table.present() <= 2;
                let kind = if is_only { AbsenceKind::LostByOnly } else { AbsenceKind::Lost };
                self.own.say(now, &self.table, Absence { node: *node, number, kind });
            }
            let is_doubt = word != Word::Nothing;
            let was_doubt = self.own.doubts.contains(node);
            if is_doubt && !was_doubt {
                self.own.doubts.insert(*node);
                self.own.want_write(now, false);
            } else if !is_doubt && was_doubt {
                self.own.doubts.remove(node);
                self.own.want_write(now, false);
            }
            if was_away != matches!(miss, Miss::Away { .. }) {
                changed.push(*node);
            }
        }
        self.say_again(now);
        let is_away = |miss: &Miss| matches!(miss, Miss::Away { .. });
        if self.misses.values().any(is_away) || !self.unproved.is_empty() {
            self.tick_within(now, TICK);
        } else if !self.misses.is_empty() {
            self.tick_within(now, STEP_MAX);
        }
        self.settle(now, changed);
    }

    /// Says the words that have vanished.
    pub(super) fn say_again(&mut self, now: Instant) {
        let counted = self.watch.counted();
        let due: Vec<NodeId> =
            self.unproved.iter().filter(|(_, at)| **at <= counted).map(|(node, _)| *node).collect();
        for node in due {
            self.unproved.remove(&node);
            let Some(held) = self.table.member(node) else { continue };
            if self.table.is_unproved(node) {
                let kind = match held.standing() {
                    Presence::Forgotten => AbsenceKind::Forgotten,
                    _ => AbsenceKind::LostByOnly,
                };
                let word = Absence { node, number: held.record.number, kind };
                self.own.say(now, &self.table, word);
            }
        }
    }

    /// Time is counted from now on, after that wait at the latest.
    pub(super) fn tick_within(&mut self, now: Instant, wait: Duration) {
        let at = now + wait;
        self.tick_at = Some(self.tick_at.map_or(at, |other| other.min(at)));
    }

    pub(super) fn miss(&mut self, now: Instant, node: NodeId, miss: Miss) {
        self.misses.insert(node, miss);
        // Longer steps than `STEP_MAX` would not count.
        let wait = if matches!(miss, Miss::Away { .. }) { TICK } else { STEP_MAX };
        self.tick_within(now, wait);
    }

    /// A member without a link that this node does not miss.
    pub(super) fn quiet(&self, node: NodeId) -> Miss {
        Miss::quiet(self.watch.counted(), spread(self.settings.me, node))
    }
}

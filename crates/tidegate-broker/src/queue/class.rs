//! The messages of one class, in order, and how far they are in memory.
//!
//! ```text
//!  front ▶ memory memory memory │ disk disk memory disk … ◀ new ones
//!                               └ near
//! ```
//!
//! A message that has expired in the middle leaves a mark in its place until the front comes there, or half of all places
//! are marks.
//!
//! Always true: all before `near` is in memory or a mark, the first is no mark, and a message at `near`, if there is one, is on disk. Messages that came under
//! another policy may be in memory behind that.

use std::{collections::VecDeque, sync::Arc};

use super::{Held, Ids, Queued};
use crate::{config::Overflow, message::Message, spill::Spilled};

/// Places that a queue keeps when it is empty.
const KEPT_PLACES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Class {
    pub(super) waiting: VecDeque<Queued>,
    near: usize,
    /// Places of what has expired.
    gone: usize,
    /// Bytes of what is before it.
    near_bytes: u64,
    /// Some of what is on disk was asked for and has not come.
    pub(super) is_fetching: bool,
}

impl Class {
    /// Messages that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() - self.gone
    }

    pub(super) fn near_bytes(&self) -> u64 {
        self.near_bytes
    }

    pub(super) fn has_spilled(&self) -> bool {
        self.near < self.waiting.len()
    }

    /// The first, if it is in memory.
    pub(super) fn first(&self) -> Option<&Queued> {
        self.waiting.front().filter(|_| self.near > 0)
    }

    pub(super) fn push(&mut self, queued: Queued) {
        self.waiting.push_back(queued);
        self.advance();
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Queued> {
        let queued = self.waiting.remove(at)?;
        if at < self.near {
            self.near -= 1;
            self.near_bytes -= queued.message.charged();
        }
        self.advance();
        self.trim();
        self.give_back();
        Some(queued)
    }

    /// Places of a backlog that has gone are no longer held.
    fn give_back(&mut self) {
        let places = self.waiting.capacity();
        if places > KEPT_PLACES && self.waiting.len() < places / 4 {
            self.waiting.shrink_to(places / 2);
        }
    }

    /// Takes out all that `goes`, in order.
    pub(super) fn take_if(&mut self, goes: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        if !self.waiting.iter().any(&goes) {
            return Vec::new();
        }
        let (taken, mut left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|queued| goes(queued));
        left.retain(|queued| !queued.message.is_gone());
        self.waiting = left;
        (self.gone, self.near, self.near_bytes) = (0, 0, 0);
        self.advance();
        taken.into()
    }

    /// Takes out what has expired.
    pub(super) fn lapse(&mut self, at: usize) -> Queued {
        if at == 0 || at + 1 == self.waiting.len() {
            return self.remove(at).expect("the caller found it");
        }
        let queued = &self.waiting[at];
        let mark = Queued {
            message: Held::Gone(queued.message.topic().clone()),
            qos: queued.qos,
            retain: false,
            ids: Ids::None,
            since: queued.since,
            // One that nothing drops.
            overflow: Overflow::Disconnect,
            group: None,
            number: 0,
            sequence: queued.sequence,
            after: 0,
        };
        let queued = std::mem::replace(&mut self.waiting[at], mark);
        self.gone += 1;
        if at < self.near {
            self.near_bytes -= queued.message.charged();
        }
        self.advance();
        queued
    }

    /// Clears marks away, if they are many.
    pub(super) fn tidy(&mut self) {
        if self.gone > self.len() + super::OLD_ENTRIES / 2 {
            self.waiting.retain(|queued| !queued.message.is_gone());
            (self.gone, self.near, self.near_bytes) = (0, 0, 0);
            self.advance();
        }
    }

    /// No mark is first.
    fn trim(&mut self) {
        while self.waiting.pop_front_if(|queued| queued.message.is_gone()).is_some() {
            self.near -= 1;
            self.gone -= 1;
        }
    }

    /// Puts a message in the place of another, which it gives.
    pub(super) fn exchange(&mut self, at: usize, queued: Queued) -> Queued {
        if at < self.near {
            // Finds again how far it is in memory.
            let behind = self.waiting.range(at..self.near);
            self.near_bytes -= behind.map(|queued| queued.message.charged()).sum::<u64>();
            self.near = at;
        }
        let former = std::mem::replace(&mut self.waiting[at], queued);
        self.advance();
        former
    }

    fn advance(&mut self) {
        while let Some(queued) = self.waiting.get(self.near)
            && !matches!(queued.message, Held::Disk(_))
        {
            self.near_bytes += queued.message.charged();
            self.near += 1;
        }
    }

    /// The newest before what is on disk that may go there.
    pub(super) fn newest_spillable(&self) -> Option<(usize, &Arc<Message>)> {
        let near = self.waiting.range(..self.near).enumerate().rev();
        near.filter(|(_, queued)| queued.overflow.spills())
            .find_map(|(at, queued)| Some((at, queued.message.memory()?)))
    }

    /// The first on disk, and where it stands.
    pub(super) fn first_spilled(&self) -> Option<(usize, &Arc<Spilled>)> {
        match &self.waiting.get(self.near)?.message {
            Held::Disk(spilled) => Some((self.near, spilled)),
            Held::Memory(_) | Held::Gone(_) => None,
        }
    }

    /// See [`Queue::want`](super::Queue::want).
    pub(super) fn want(&mut self, bytes_max: u64, count_max: usize) -> Vec<Arc<Spilled>> {
        let mut wanted = Vec::new();
        let mut bytes = self.near_bytes;
        if self.is_fetching || bytes > bytes_max / 2 {
            return wanted;
        }
        for queued in self.waiting.range(self.near..) {
            let Held::Disk(spilled) = &queued.message else { continue };
            bytes += spilled.charged;
            // One may always come back.
            if bytes > bytes_max && !(self.near == 0 && wanted.is_empty()) {
                break;
            }
            wanted.push(spilled.clone());
            if wanted.len() == count_max {
                break;
            }
        }
        self.is_fetching = !wanted.is_empty();
        wanted
    }
}

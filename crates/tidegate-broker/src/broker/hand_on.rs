//! Messages that a member of shared subscriptions leaves go to other members (section 4.8.2).
//!
//! ```text
//!  a session ends, or leaves its groups ─▶ few messages, all in memory ─▶ to others, at once
//!                                     └─▶ a remainder: STEP a turn, what is on disk is read meanwhile ─▶ to others
//! ```
//!
//! A remainder is a session without a client: it has no name, no subscriptions and no connection, and holds what it is left until
//! others have it. So its messages are inside the budget, may go to disk and come back, expire, and are in the journal as those of
//! any session are.
//!
//! Always true: in the journal each message waits for its former session, for a remainder or for another member at any time; for two
//! of them where a process ends in between.

use std::{sync::Arc, time::Duration};

use tidegate_journal::{Opened, Record};
use tidegate_message::{Identity, IdentityKind, Instant};
use tidegate_wire::mqtt::Version;

use super::{
    Broker,
    journal_writer::{done, waiting},
    spill::{FETCH_BYTES, FETCH_MESSAGES},
};
use crate::{
    queue::{Held, Queued},
    session::Session,
    slab::Key,
    spill::{Spilled, Wanted, WantedBy},
    timers::Timer,
};

/// Messages, and about how many bytes of them, that are handed on in one turn, and the least time to the next.
const STEP: usize = 256;
const STEP_BYTES: u64 = 1 << 20;
const PAUSE: Duration = Duration::from_millis(1);

impl Session {
    /// Whether it is what a session has left, which has no client any more.
    pub(super) fn is_remainder(&self) -> bool {
        self.client_id.is_empty()
    }
}

impl Broker {
    /// Hands on what a session has left that has ended, and writes that it has.
    ///
    /// The messages are in the journal under its number, `session`, which stays until all of them have gone.
    pub(super) fn hand_on_ended(&mut self, now: Instant, session: u64, left: Vec<Queued>) {
        let routes = self.shared.routes();
        let has_members =
            |queued: &Queued| queued.group.as_ref().is_some_and(|name| routes.has_group(name));
        let (left, lost): (Vec<_>, Vec<_>) = left.into_iter().partition(has_members);
        drop(routes);
        self.statistics.dropped.session_ended += lost.len() as u64;
        if is_little(&left) {
            // Before it is written that it ended: until then it is the one that has them.
            if self.hand_on(now, left) {
                self.write(session, || Record::Ended { session });
            } else {
                // In the journal it keeps what it has left, until others are known to have it.
                self.write_remainder(session);
            }
            return;
        }
        self.begin_remainder(now, session, left);
        if let Some(keeper) = &mut self.keeper {
            lost.iter().for_each(|queued| keeper.done(session, queued.number));
        }
    }

    /// Hands on the messages that waited for a session that has left shared subscriptions and continues.
    pub(super) fn hand_on_of(&mut self, now: Instant, key: Key, left: Vec<Queued>) {
        let own = self.session_key(key);
        let numbers: Vec<u64> = left.iter().map(|queued| queued.number).collect();
        let mut is_written = true;
        if is_little(&left) {
            is_written = self.hand_on(now, left);
        } else {
            let is_kept = self.sessions.get(key).is_some_and(|session| session.number > 0);
            if is_kept {
                self.numbers.session += 1;
            }
            let number = if is_kept { self.numbers.session } else { 0 };
            let remainder = self.begin_remainder(now, number, left);
            if let Some(session) = self.sessions.get(remainder)
                && let Some(keeper) = self.keeper.as_mut().filter(|_| is_kept)
            {
                for queued in session.queue.iter().filter(|queued| queued.number > 0) {
                    let waiting = waiting(number, queued, None);
                    let record = Record::Queued { number: queued.number, waiting };
                    is_written &= keeper.append(&record).is_some();
                }
            }
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        for number in numbers.into_iter().filter(|_| is_written) {
            done(&mut self.keeper, session, number);
        }
        let behind = session.note_behind(&self.shared);
        let released = if behind { Vec::new() } else { std::mem::take(&mut session.blocks) };
        self.release(released, own);
        // Other records were begun and ended meanwhile.
        self.depend_on_all();
    }

    /// Hands on a message that came for a session by a shared subscription, and that it must not have any more.
    pub(super) fn pass_on(&mut self, now: Instant, key: Key, queued: Queued) {
        let number = queued.number;
        let is_written = self.hand_on(now, vec![queued]);
        if let Some(session) = self.sessions.get_mut(key).filter(|_| is_written) {
            done(&mut self.keeper, session, number);
        }
    }

    /// Keeps what was left, under that number in the journal, until others have it.
    fn begin_remainder(&mut self, now: Instant, number: u64, left: Vec<Queued>) -> Key {
        let key = self.insert_remainder(now, number);
        let session = self.sessions.get_mut(key).expect("just entered");
        left.into_iter().for_each(|queued| session.queue.push(queued, false));
        self.write_remainder(number);
        self.checkpoint_also(key);
        self.note_remainder(key);
        key
    }

    /// Writes that all that is left of a session is messages for shared subscriptions.
    fn write_remainder(&mut self, number: u64) {
        self.write(number, || {
            Record::Opened(Opened {
                session: number,
                client_id: Arc::from(""),
                kind: IdentityKind::Anonymous,
                user: Arc::from(""),
                groups: Vec::new(),
                version: Version::V5,
                expiry: None,
                will: None,
                from: None,
                overflow: None,
                is_peer: false,
            })
        });
    }

    /// An empty remainder.
    pub(super) fn insert_remainder(&mut self, now: Instant, number: u64) -> Key {
        let config = Arc::new(self.shared.config().session.clone());
        let (name, nobody) = (Arc::from(""), Identity::anonymous(""));
        let key = self.insert_session(&name, nobody, config, Version::V5);
        let session = self.sessions.get_mut(key).expect("just entered");
        session.number = number;
        session.expiry = None;
        self.remainders += 1;
        self.timers.set(now, Timer::HandOn(key));
        key
    }

    /// A remainder has messages.
    pub(super) fn note_remainder(&mut self, key: Key) {
        let session = self.sessions.get_mut(key).expect("the caller has entered it");
        if let Some(gives) = self.reclaim_heap.note(key, session) {
            self.shared.note_gives(self.shard, gives);
        }
        self.watch_lapse(key);
    }

    /// Hands on some of what a remainder has.
    pub(super) fn hand_on_more(&mut self, now: Instant, key: Key) {
        let own = self.session_key(key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        let is_over = |spilled: &Spilled| spilled.is_lost() || spilled.is_expired(now);
        for queued in session.queue.take_up(false, FETCH_BYTES, is_over) {
            let is_lost = matches!(&queued.message, Held::Disk(spilled) if spilled.is_lost());
            let dropped = &mut self.statistics.dropped;
            *(if is_lost { &mut dropped.spill_lost } else { &mut dropped.expired }) += 1;
            done(&mut self.keeper, session, queued.number);
        }
        let (mut left, mut bytes) = (Vec::new(), 0);
        while left.len() < STEP && bytes < STEP_BYTES && session.queue.small().is_some() {
            let queued = session.queue.pop_small().expect("it was just there");
            bytes += queued.message.charged();
            left.push(queued);
        }
        let numbers: Vec<u64> = left.iter().map(|queued| queued.number).collect();
        let is_written = self.hand_on(now, left);
        let session = self.sessions.get_mut(key).expect("only this ends the session");
        for number in numbers.into_iter().filter(|_| is_written) {
            done(&mut self.keeper, session, number);
        }
        if session.queue.is_empty() {
            return self.end_remainder(key);
        }
        if session.queue.small().is_none() {
            // It comes back by and by.
            let messages = session.queue.want(false, FETCH_BYTES, FETCH_MESSAGES);
            if messages.is_empty() {
                // It is asked for.
                return;
            }
            if let Some(disk) = &self.spilling.disk {
                disk.read(self.shard, Wanted { by: WantedBy::Queue(own, false), messages });
                return;
            }
            messages.iter().for_each(|spilled| spilled.lose());
            session.queue.end_fetch(false);
        }
        self.timers.set(now + PAUSE, Timer::HandOn(key));
    }

    fn end_remainder(&mut self, key: Key) {
        let Some(session) = self.sessions.remove(key) else { return };
        self.remainders -= 1;
        self.timers.cancel(session.lapses_at, Timer::Lapse(key));
        self.shared.forget_full(&session.state);
        let number = session.number;
        // A message of another shard that is in no record here waits there, until all live state is written again.
        if self.keeper.as_ref().is_none_or(|keeper| !keeper.lacking.is_relied_on()) {
            self.write(number, || Record::Ended { session: number });
        }
    }

    /// Hands messages on that a member of shared subscriptions leaves, which is a member no more; those without another member
    /// are counted as dropped. All of them are in memory.
    ///
    /// They were accepted: a member takes them however much waits for it, unless its policy drops. Whether the journal had room for
    /// who has them now.
    fn hand_on(&mut self, now: Instant, left: Vec<Queued>) -> bool {
        let mut is_written = true;
        let was = std::mem::replace(&mut self.promised, true);
        for queued in left {
            let name = queued.group.clone().expect("it came by a shared subscription");
            let message = queued.begun().clone();
            if message.is_expired(now) {
                self.statistics.dropped.expired += 1;
                continue;
            }
            self.begin_record(None);
            let mut held = Some(message.clone());
            let borrowed = message.borrowed();
            self.deliver_to_another(now, &name, &borrowed, &mut held);
            is_written &= self.end_record(&borrowed, held.as_ref());
        }
        self.promised = was;
        is_written
    }
}

/// Whether all of it may be handed on at once.
fn is_little(left: &[Queued]) -> bool {
    let is_here = left.iter().all(|queued| queued.message.memory().is_some());
    is_here
        && left.len() <= STEP
        && left.iter().map(|queued| queued.message.charged()).sum::<u64>() <= 8 * STEP_BYTES
}

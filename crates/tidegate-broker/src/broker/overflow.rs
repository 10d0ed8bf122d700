//! A message that waits in a subscriber's queue, and the policy that decides where the queue is full.

use std::sync::Arc;

use tidegate_journal::Waiting;
use tidegate_message::Instant;
use tidegate_wire::mqtt::{QoS, ReasonCode};

use super::{
    Broker,
    journal_writer::done,
    spill::{Room, fallback},
};
use crate::{
    config::Overflow,
    dropped::Dropped,
    message::{Message, MessageRef},
    queue::{Held, Ids, Queued},
    routes::{Route, Target},
    session::Session,
    slab::Key,
};

impl Broker {
    /// Lets a message wait for one subscriber, under the policy of its queue.
    #[expect(clippy::too_many_arguments, reason = "all of one delivery, known where it is called")]
    #[cold]
    pub(super) fn queue(
        &mut self,
        now: Instant,
        key: Key,
        route: &Route,
        target: &Target,
        message: &MessageRef<'_>,
        held: &mut Option<Arc<Message>>,
        qos: QoS,
        retain: bool,
    ) {
        let Some(held) = self.held_to_wait(message, held) else {
            if let Some(session) = self.sessions.get_mut(key) {
                session.dropped.budget_full += 1;
            }
            self.statistics.dropped.budget_full += 1;
            return;
        };
        let Some(session) = self.sessions.get(key) else { return };
        let ids = target.ids(message.publisher);
        let overflow = overflow(session, qos, route);
        let mut queued = Queued::new(Held::Memory(held), qos, retain, Ids::of(ids), now, overflow);
        queued.group = target.group.clone();
        let session = if qos > QoS::AtMostOnce { session.number } else { 0 };
        if session > 0 {
            queued.number = Self::message_number(&mut self.keeper, &mut self.numbers, session);
        }
        let number = queued.number;
        self.lapse(now, key);
        if self.enqueue(key, queued, route) && session > 0 {
            let (ids, group) = (ids.to_vec(), target.group.clone());
            let waiting = Waiting { session, again: 0, qos, retain, ids, begun: None, group };
            Self::note_waiting(&mut self.keeper, number, waiting);
        }
    }

    /// Puts a message into a session's queue, under the policy that holds there; false if that drops it.
    pub(super) fn enqueue(&mut self, key: Key, mut queued: Queued, route: &Route) -> bool {
        let own = self.session_key(key);
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let config = session.config.clone();
        let publisher = queued.message.memory().and_then(|message| message.publisher);
        let is_large = session.is_large(queued.payload_bytes(), route.large_bytes);
        if queued.overflow == Overflow::Latest {
            match session.queue.replace(queued) {
                Err(new) => queued = new,
                Ok(former) => {
                    done(&mut self.keeper, session, former.number);
                    session.dropped.conflated += 1;
                    self.statistics.dropped.conflated += 1;
                    session.note_behind(&self.shared);
                    self.watch_lapse(key);
                    return true;
                }
            }
        }
        let bytes = queued.message.charged();
        // An acknowledged message is kept: its publisher's shard checked the share before.
        let is_over_share = !self.promised && session.is_over_share(&self.shared, &queued, bytes);
        if is_over_share {
            session.account.iter().for_each(|account| self.shared.note_over_share(account));
        }
        if is_over_share
            || !self.promised
                && !session.is_idle
                && queued.qos > QoS::AtMostOnce
                && session.is_reserved(&queued, bytes)
        {
            session.dropped.queue_full += 1;
            self.statistics.dropped.queue_full += 1;
            return false;
        }
        let mut is_left = false;
        let mut is_placed = false;
        if queued.overflow.spills() {
            let mut room = Room::default();
            loop {
                let placed =
                    self.spilling.place(&self.shared, session, &mut queued, is_large, room);
                let Err(no_place) = placed else {
                    is_placed = true;
                    break;
                };
                if queued.overflow == Overflow::SpillDisconnect {
                    (queued.overflow, is_left) = (fallback(queued.qos), true);
                    break;
                }
                room.refuse(&no_place);
                let dropped = session.queue.drop_yielding(room.is_memory_alone());
                no_place.count(&mut session.dropped);
                no_place.count(&mut self.statistics.dropped);
                // All that waits is under policies that keep it.
                let Some(dropped) = dropped else { return false };
                done(&mut self.keeper, session, dropped.number);
                session.note_losing(&no_place);
            }
        }
        // One may always wait, or what is larger than all that may could never be sent.
        while !is_placed
            && queued.message.memory().is_some()
            && !session.queue.is_empty()
            && (session.queue.bytes() + bytes > config.queue_bytes_max
                || session.queue.len() >= config.queue_messages_max)
        {
            let goes_on = session.is_idle && !queued.overflow.yields();
            let gone = match queued.overflow {
                _ if goes_on => {
                    let gone = session.queue.drop_oldest_if(|_| true);
                    if let Some(gone) = &gone {
                        done(&mut self.keeper, session, gone.number);
                    }
                    gone.is_some()
                }
                Overflow::DropOldest | Overflow::Latest => {
                    let gone = session.queue.drop_oldest();
                    if let Some(gone) = &gone {
                        done(&mut self.keeper, session, gone.number);
                    }
                    gone.is_some()
                }
                Overflow::DropNewest | Overflow::Spill | Overflow::SpillDisconnect => false,
                // It had a place when it was accepted.
                Overflow::Disconnect if session.is_full && self.promised => break,
                Overflow::Disconnect if session.is_full => false,
                Overflow::Disconnect => {
                    // A message without a place is kept all the same: it is acknowledged.
                    session.is_full = true;
                    self.shared.note_full(&session.state);
                    let connection = session.connection.filter(|key| {
                        self.connections.get(*key).is_some_and(|connection| !connection.is_closing)
                    });
                    if let Some(connection) = connection {
                        tracing::warn!(client = %session.client_id, bytes = session.queue.bytes(), messages = session.queue.len(),
                            "client disconnected: its queue is full");
                        self.statistics.overflow_disconnects += 1;
                        let text = "too many messages wait for this client";
                        self.disconnect(connection, ReasonCode::QUOTA_EXCEEDED, Some(text));
                    }
                    break;
                }
                Overflow::BlockPublisher => {
                    let blocks = publisher.filter(|publisher| !session.blocks.contains(publisher));
                    if let Some(publisher) = blocks {
                        if !self.shared.blocked_publishers().insert(publisher, own) {
                            // A client that is not read from cannot acknowledge: the whole circle would wait forever.
                            queued.overflow = Overflow::Disconnect;
                            continue;
                        }
                        session.blocks.push(publisher);
                        self.tell_publisher(publisher, true);
                    }
                    break;
                }
            };
            let count = |dropped: &mut Dropped| {
                *(if is_left { &mut dropped.spill_full } else { &mut dropped.queue_full }) += 1;
            };
            count(&mut session.dropped);
            count(&mut self.statistics.dropped);
            if !gone {
                return false;
            }
        }
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let expires = queued.message.expires().is_some();
        session.queue.push(queued, is_large);
        let is_behind = session.note_behind(&self.shared);
        // Its identity may come to have its share.
        let is_away = session.connection.is_none() && session.idles_at.is_none();
        if let Some(gives) = self.reclaim_heap.note(key, session) {
            self.shared.note_gives(self.shard, gives);
            self.reclaim_heap.tidy(&self.sessions);
        }
        if expires {
            self.watch_lapse(key);
        }
        if is_behind || is_away {
            self.watch_idle(key);
        }
        let session = self.sessions.get(key).expect("looked up above");
        if let Some(at) = session.connection {
            self.mark_dirty(at);
        }
        true
    }
}

/// The policy for a message to a session that is full.
pub(super) fn overflow(session: &Session, qos: QoS, route: &Route) -> Overflow {
    let overflow = route.overflow.unwrap_or_else(|| session.config.overflow_of(qos));
    overflow.for_part(session.state.is_part())
}

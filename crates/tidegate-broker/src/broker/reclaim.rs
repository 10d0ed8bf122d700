//! Memory of the node's budget for messages that are held, and sessions that give some back.

use std::sync::Arc;

use tidegate_wire::mqtt::{QoS, ReasonCode};

use super::{Broker, Peer, journal_writer::done};
use crate::{
    budget::Charge,
    message::{Message, MessageRef},
    slab::Key,
};

/// Sessions that are asked to give memory back for one message.
const RECLAIMS_MAX: usize = 8;

impl Broker {
    /// The message, held; none and counted if there is no room for it.
    pub(super) fn held(
        &mut self,
        message: &MessageRef<'_>,
        held: &mut Option<Arc<Message>>,
    ) -> Option<Arc<Message>> {
        if held.is_none() {
            *held = self.hold(message);
        }
        held.clone()
    }

    /// The message, held for a subscriber that must wait; none and counted if there is no room for it and it may be lost.
    pub(super) fn held_to_wait(
        &mut self,
        message: &MessageRef<'_>,
        held: &mut Option<Arc<Message>>,
    ) -> Option<Arc<Message>> {
        if self.held(message, held).is_none() && self.promised && message.qos > QoS::AtMostOnce {
            // Other shards took what was there when it was accepted.
            let charge = self.shared.budget().charge_beyond(message.charge_bytes());
            *held = Some(self.message_pool.hold(message, charge));
        }
        held.clone()
    }

    pub(super) fn hold(&mut self, message: &MessageRef<'_>) -> Option<Arc<Message>> {
        self.charge(message.charge_bytes()).map(|charge| self.message_pool.hold(message, charge))
    }

    pub(super) fn has_room(&self, message: &MessageRef<'_>) -> bool {
        let budget = self.shared.budget();
        budget.used().saturating_add(message.charge_bytes()) <= budget.limit()
    }

    /// Takes bytes from the node's budget; if there are none, those sessions that hold most give some back, as their policies
    /// allow: at once if they are of this shard, else for those who come next.
    pub(super) fn charge(&mut self, bytes: u64) -> Option<Charge> {
        let budget = self.shared.budget().clone();
        for _ in 0..RECLAIMS_MAX {
            if let Some(charge) = budget.charge(bytes) {
                return Some(charge);
            }
            if bytes > budget.limit() || !self.make_room(bytes) {
                return None;
            }
        }
        budget.charge(bytes)
    }

    /// Makes room, unless that is for another shard to do, which is asked to.
    fn make_room(&mut self, bytes: u64) -> bool {
        let others = (0..self.shared.shards()).filter(|shard| *shard != self.shard);
        let most = others.max_by_key(|shard| self.shared.gives(*shard));
        // Both are known to within a half.
        if let Some(shard) = most
            && self.shared.gives(shard) / 2 > self.shared.gives(self.shard)
        {
            if !self.shared.ask(shard, true) {
                self.peers[shard].push(Peer::Reclaim(bytes));
            }
            return false;
        }
        self.reclaim(bytes) > 0
    }

    /// Gives memory back for another shard: more than that asked for, or it would have to ask for every message.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.shared.ask(self.shard, false);
        let mut wanted = bytes.max(self.shared.budget().limit() / 16);
        for _ in 0..RECLAIMS_MAX {
            let freed = self.reclaim(wanted);
            wanted = wanted.saturating_sub(freed);
            if freed == 0 || wanted == 0 {
                break;
            }
        }
    }

    /// Makes the session that could give most give `bytes` back, or end; how many it gave.
    fn reclaim(&mut self, bytes: u64) -> u64 {
        let freed = self
            .reclaim_heap
            .first(&mut self.sessions)
            .map_or(0, |(_, key)| self.reclaim_from(key, bytes));
        let first = self.reclaim_heap.first(&mut self.sessions);
        self.shared.set_gives(self.shard, first.map_or(0, |(gives, _)| gives));
        freed
    }

    fn reclaim_from(&mut self, key: Key, bytes: u64) -> u64 {
        let own = self.session_key(key);
        let session = self.sessions.get_mut(key).expect("just found");
        let mut freed = 0;
        if session.queue.spillable_bytes() > 0 {
            freed = self.spilling.give(&self.shared, session, bytes);
        }
        while freed < bytes {
            // Those on disk free no memory.
            let (is_idle, cannot_spill) = (session.is_idle, session.cannot_spill);
            let dropped = match is_idle || cannot_spill {
                true => session.queue.drop_oldest_if(|queued| {
                    queued.message.memory().is_some() && (is_idle || queued.overflow.yields())
                }),
                false => session.queue.drop_oldest(),
            };
            let Some(dropped) = dropped else { break };
            done(&mut self.keeper, session, dropped.number);
            freed += dropped.message.charged();
            session.dropped.budget_full += 1;
            self.statistics.dropped.budget_full += 1;
        }
        let ends = freed == 0 && !session.is_kept();
        let connection = session.connection.filter(|_| ends);
        if ends {
            freed = session.queue.bytes();
            let count = session.queue.len() as u64;
            session.dropped.budget_full += count;
            self.statistics.dropped.budget_full += count;
            session.queue = Default::default();
            self.statistics.overflow_disconnects += 1;
            tracing::warn!(client = %session.client_id, "client disconnected: it holds most of the node's memory");
        }
        let behind = session.note_behind(&self.shared);
        let blocks = if behind { Vec::new() } else { std::mem::take(&mut session.blocks) };
        if let Some(connection) = connection {
            let text = "the node's memory is full, and most of it waits for this client";
            self.disconnect(connection, ReasonCode::QUOTA_EXCEEDED, Some(text));
        }
        self.release(blocks, own);
        freed
    }
}

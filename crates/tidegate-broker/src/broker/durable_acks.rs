//! Holds back whatever depends on durability: acknowledgements, messages to other shards, and the first sending of a QoS 2
//! message.
//!
//! A connection to a session that is written down says nothing before all that was written until it came is durable: CONNACK
//! itself promises a session or the end of one, and what the session has in flight or has received may be written and not yet
//! durable. So a packet that is sent again needs no record of its own to wait for.
//!
//! Where records are durable at once, nothing waits here.
//!
//! Always true: an acknowledgement leaves by `Broker::promise` alone; answers to one connection leave in the order in which they
//! were given, and messages to another shard do.

use tidegate_journal::Record;
use tidegate_message::Position;
use tidegate_wire::mqtt::{PacketId, ReasonCode, Version};

use super::{
    Broker, Peer,
    journal_writer::{Keeper, Owed},
    mark_dirty,
};
use crate::{connection::Resend, session::Session, slab::Key};

/// The journal has no room for what has to be written first.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoRoom;

impl Broker {
    #[cold]
    pub(super) fn send_after_disk(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        let after = keeper.recorded.filter(|position| !keeper.is_durable(*position));
        for (shard, peer) in keeper.sending.drain(..) {
            let later = &mut keeper.peers_later[shard];
            match (after, later.back()) {
                (None, None) => self.peers[shard].push(peer),
                // Nothing overtakes what waits.
                (after, last) => {
                    let last = last.map(|(position, _)| *position);
                    let position = after.or(last).expect("one of them is there");
                    later.push_back((position, peer));
                }
            }
        }
    }

    /// Lets a connection say nothing until what is written of its session is durable. `before` is the last record from before it
    /// came: a session that is not written down waits for one by which its predecessor ended.
    pub(super) fn open_after_disk(&mut self, key: Key, session: Key, before: Option<Position>) {
        let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.is_gated) else { return };
        let is_written = self.sessions.get(session).is_some_and(|session| session.number > 0);
        let last = keeper.last.filter(|last| !keeper.is_durable(*last));
        let after = last.filter(|last| is_written || before.is_none_or(|before| before < *last));
        if let (Some(after), Some(connection)) = (after, self.connections.get_mut(key)) {
            connection.opens_after = Some(after);
            keeper.connections_later.push_back((after, key));
        }
    }

    /// Gives an answer that is a promise: at once, or when what it depends on is durable.
    #[inline]
    pub(super) fn promise(&mut self, key: Key, encode: impl FnOnce(Version, &mut Vec<u8>)) {
        if self.keeper.as_ref().is_some_and(|keeper| keeper.is_gated) {
            self.promise_later(key, encode);
        } else {
            self.answer(key, encode);
        }
    }

    #[cold]
    fn promise_later(&mut self, key: Key, encode: impl FnOnce(Version, &mut Vec<u8>)) {
        let Some(keeper) = &mut self.keeper else { return };
        let Some(connection) = self.connections.get_mut(key) else { return };
        let after = keeper.recorded.take().filter(|position| !keeper.is_durable(*position));
        let after = after.or_else(|| {
            // In order, behind those that wait.
            keeper.owed.back().filter(|_| connection.owed > 0).map(|owed| owed.after)
        });
        let Some(after) = after else { return self.answer(key, encode) };
        let mut packet = Vec::new();
        encode(connection.version, &mut packet);
        connection.owed += 1;
        keeper.owed.push_back(Owed { after, key, packet });
    }

    /// Makes the next answer depend on all that was written so far.
    pub(super) fn depend_on_all(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.recorded = keeper.last;
        }
    }

    /// Records are durable up to the position that the journal reports: releases all that waited for them. To be called when
    /// the journal's durable position has moved, and once it has failed.
    pub fn durable(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.durable = keeper.journal.durable();
        if let Some(error) = keeper.journal.failure() {
            // Appended records are no worse off than in class `page`; no more is promised.
            keeper.fail(&error);
            keeper.is_gated = false;
            keeper.durable = Position(u64::MAX);
            self.disconnect_owed();
        }
        self.pass_durable();
        self.end_checkpoint();
    }

    /// Another journal takes the place of this one: answers that wait for it are never given, so that their clients are disconnected;
    /// messages on their way to others, and connections that wait to send, continue.
    pub(super) fn end_waits(&mut self) {
        self.disconnect_owed();
        let Some(keeper) = &mut self.keeper else { return };
        for (peers, later) in self.peers.iter_mut().zip(&mut keeper.peers_later) {
            peers.extend(later.drain(..).map(|(_, peer)| peer));
        }
        for (_, key) in keeper.connections_later.drain(..) {
            if let Some(connection) = self.connections.get_mut(key) {
                mark_dirty(key, connection, &mut self.dirty);
            }
        }
    }

    fn disconnect_owed(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        let mut keys: Vec<Key> =
            std::mem::take(&mut keeper.owed).into_iter().map(|owed| owed.key).collect();
        let opens = self.connections.iter().filter(|(_, c)| c.opens_after.is_some());
        keys.extend(opens.map(|(key, _)| key));
        for key in keys {
            let text = "the disk failed before your message was safe on it";
            self.disconnect(key, ReasonCode::QUOTA_EXCEEDED, Some(text));
        }
    }

    fn pass_durable(&mut self) {
        loop {
            let Some(keeper) = &mut self.keeper else { return };
            let durable = keeper.durable;
            let Some(Owed { key, packet, .. }) =
                keeper.owed.pop_front_if(|owed| owed.after < durable)
            else {
                break;
            };
            if let Some(connection) = self.connections.get_mut(key) {
                connection.owed -= 1;
                self.answer(key, |_, out| out.extend_from_slice(&packet));
            }
        }
        let Some(keeper) = &mut self.keeper else { return };
        let durable = keeper.durable;
        while let Some((_, shard, number)) =
            keeper.seen_later.pop_front_if(|(after, ..)| *after < durable)
        {
            keeper.told[shard] = number;
            self.peers[shard].push(Peer::Seen(self.shard, number));
        }
        for (peers, later) in self.peers.iter_mut().zip(&mut keeper.peers_later) {
            while let Some((_, peer)) = later.pop_front_if(|(after, _)| *after < durable) {
                peers.push(peer);
            }
        }
        while let Some((_, key)) =
            keeper.connections_later.pop_front_if(|(after, _)| *after < durable)
        {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.opens_after.take_if(|after| *after < durable);
                mark_dirty(key, connection, &mut self.dirty);
            }
        }
    }

    /// Tells the other shards what of theirs is written here.
    pub(super) fn tell_seen(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        for shard in 0..keeper.seen.len() {
            // Up to what found no room: that is here, but in no record.
            let number = keeper.seen[shard].min(keeper.lacking.lowest(shard) - 1);
            if number <= keeper.told[shard] {
                continue;
            }
            match keeper.last.filter(|_| keeper.is_gated) {
                Some(position) if !keeper.is_durable(position) => {
                    let last = keeper.seen_later.iter().rev().find(|(_, to, _)| *to == shard);
                    if last.is_none_or(|(_, _, last)| *last < number) {
                        keeper.seen_later.push_back((position, shard, number));
                    }
                }
                _ => {
                    keeper.told[shard] = number;
                    self.peers[shard].push(Peer::Seen(self.shard, number));
                }
            }
        }
    }

    /// Another shard has all that was sent there up to that number.
    pub(super) fn confirmed(&mut self, shard: usize, number: u64) {
        let Some(keeper) = &mut self.keeper else { return };
        let sent = &mut keeper.unconfirmed[shard];
        while let Some(sent) = sent.pop_front_if(|sent| sent.number <= number) {
            keeper.unconfirmed_bytes -= sent.bytes();
        }
        keeper.append(&Record::Confirmed { shard: shard as u8, number });
    }

    /// Writes that a QoS 2 message is to be sent under that identifier; the record it has to wait for, if it must not
    /// leave at once.
    ///
    /// # Errors
    /// There is no room for that. It must not leave: after a restart the identifier would be given to another message, which the client
    /// would take for this one.
    pub(super) fn write_begun(
        keeper: &mut Option<Box<Keeper>>,
        session: &Session,
        connection: Key,
        number: u64,
        id: PacketId,
    ) -> Result<Option<Resend>, NoRoom> {
        let keeper = keeper.as_mut().filter(|_| session.number > 0 && number > 0);
        let Some(keeper) = keeper else { return Ok(None) };
        if keeper.lacking.has_message(number) {
            // That it has begun would say nothing without it.
            return Err(NoRoom);
        }
        let record = Record::Begun { session: session.number, number, id };
        let after = keeper.append(&record).ok_or(NoRoom)?;
        if !keeper.is_gated || keeper.is_durable(after) {
            return Ok(None);
        }
        keeper.connections_later.push_back((after, connection));
        Ok(Some(Resend { id, is_repeated: false, after: Some(after) }))
    }

    /// Writes that a QoS 1 message is sent under that identifier, so that the next process sends it again under that and says that it
    /// does (MQTT-4.4.0-1, MQTT-3.3.1-1). It waits for nothing: after a loss of power that took the record, it is as if it had
    /// never been sent, which for QoS 1 costs a flag.
    pub(super) fn write_first_sent(
        keeper: &mut Option<Box<Keeper>>,
        session: &Session,
        number: u64,
        id: PacketId,
    ) {
        if let Some(keeper) = keeper.as_mut().filter(|_| session.number > 0 && number > 0)
            && !keeper.lacking.has_message(number)
        {
            keeper.append_spare(&Record::Begun { session: session.number, number, id });
        }
    }

    /// Whether what waits for the disk may be sent.
    pub(super) fn may_send(keeper: Option<&Keeper>, resend: &Resend) -> bool {
        resend.after.is_none_or(|after| keeper.is_none_or(|keeper| keeper.is_durable(after)))
    }
}

//! Messages of queues go to disk and come back.
//!
//! Writes happen at once; reads are asked for and come later, so that no connection waits for the disk but the one whose messages
//! are there.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_message::Instant;
use tidegate_wire::mqtt::QoS;

use super::{Broker, journal_writer::done, mark_dirty};
use crate::{
    config::Overflow,
    dropped::Dropped,
    message::Message,
    queue::{Held, Queue, Queued},
    session::Session,
    shared::Shared,
    slab::Key,
    spill::{NoPlace, Spill, SpillError, Spilled, Spilling, Wanted, WantedBy},
};

/// Bytes of each class of a queue that are to be in memory while more is on disk: enough to send while the next is
/// read.
pub(super) const FETCH_BYTES: u64 = 1 << 20;
/// Messages that are asked for at once.
pub(super) const FETCH_MESSAGES: usize = 256;
/// Bytes that a session gives at least when memory is wanted back, so that not every message asks.
const GIVE_BYTES: u64 = 256 << 10;

/// The session or checkpoint that reads messages from disk.
enum Reader {
    Checkpoint,
    Connection(Key),
    Remainder(Key),
}

impl Broker {
    /// Lets messages under [`Overflow::Spill`] or [`Overflow::SpillDisconnect`] wait on `disk` where they find no room in memory; without one they are as that
    /// says of a disk that takes nothing.
    pub fn set_spill(&mut self, disk: Option<Arc<dyn Spill>>) {
        self.spilling.disk = disk;
    }

    /// Has what waits on disk for a connection brought back, as far as it may be sent soon.
    #[inline]
    pub(super) fn fetch(&mut self, now: Instant, key: Key) {
        let Some(connection) = self.connections.get(key) else { return };
        let Some(session_key) = connection.session.filter(|_| !connection.is_closing) else {
            return;
        };
        if self.sessions.get(session_key).is_some_and(|session| session.queue.spilled() > 0) {
            self.fetch_more(now, key, session_key);
        }
    }

    #[cold]
    fn fetch_more(&mut self, now: Instant, key: Key, session_key: Key) {
        let own = self.session_key(session_key);
        let session = self.sessions.get_mut(session_key).expect("looked up by the caller");
        for is_large in [false, true] {
            let is_over = |spilled: &Spilled| spilled.is_lost() || spilled.is_expired(now);
            for queued in session.queue.take_up(is_large, FETCH_BYTES, is_over) {
                let is_lost = matches!(&queued.message, Held::Disk(spilled) if spilled.is_lost());
                let count = |dropped: &mut Dropped| {
                    *(if is_lost { &mut dropped.spill_lost } else { &mut dropped.expired }) += 1;
                };
                count(&mut session.dropped);
                count(&mut self.statistics.dropped);
                done(&mut self.keeper, session, queued.number);
            }
            let bytes_max = if self.spilling.is_called_for() { 0 } else { FETCH_BYTES };
            let messages = session.queue.want(is_large, bytes_max, FETCH_MESSAGES);
            if let Some(disk) = self.spilling.disk.as_ref().filter(|_| !messages.is_empty()) {
                disk.read(self.shard, Wanted { by: WantedBy::Queue(own, is_large), messages });
            }
        }
        let behind = session.note_behind(&self.shared);
        let released = if behind { Vec::new() } else { std::mem::take(&mut session.blocks) };
        if let Some(gives) = self.reclaim_heap.note(session_key, session) {
            self.shared.note_gives(self.shard, gives);
        }
        self.release(released, own);
        self.end_drained(key);
    }

    /// The results of reading `wanted`, one for each message in order.
    pub fn handle_fetched(
        &mut self,
        now: Instant,
        wanted: Wanted,
        answers: Vec<Result<Bytes, SpillError>>,
    ) {
        let Wanted { by, messages } = wanted;
        let (is_starved, reader) = match by {
            WantedBy::Checkpoint => (true, Reader::Checkpoint),
            WantedBy::Queue(own, is_large) => {
                let Some(session) = self.sessions.get_mut(own.key()) else { return };
                session.queue.end_fetch(is_large);
                let reader = match session.connection {
                    Some(connection) => Reader::Connection(connection),
                    None if session.is_remainder() => Reader::Remainder(own.key()),
                    // A session that left meanwhile asks again when it returns.
                    None => return,
                };
                (session.queue.is_starved(is_large), reader)
            }
        };
        // Held until they are taken up.
        let mut held: Vec<Arc<Message>> = Vec::new();
        for (spilled, answer) in messages.iter().zip(answers) {
            if let Some(message) = spilled.in_memory() {
                held.push(message);
                continue;
            }
            let beyond = is_starved && held.is_empty();
            match self.bring_back(spilled, answer, beyond) {
                Some(message) => held.push(message),
                None if spilled.is_lost() => {}
                // There is no memory now.
                None => break,
            }
        }
        match reader {
            Reader::Connection(key) => {
                self.fetch(now, key);
                if let Some(connection) = self.connections.get_mut(key) {
                    mark_dirty(key, connection, &mut self.dirty);
                }
            }
            Reader::Remainder(key) => self.hand_on_more(now, key),
            Reader::Checkpoint => self.fetched_for_checkpoint(held),
        }
    }

    /// A message from what was read of it; none if it is lost, or if there is no memory and it may not go beyond that.
    pub(super) fn bring_back(
        &mut self,
        spilled: &Arc<Spilled>,
        answer: Result<Bytes, SpillError>,
        beyond: bool,
    ) -> Option<Arc<Message>> {
        let message = match answer {
            Ok(bytes) => {
                let budget = self.shared.budget();
                let charge = match budget.charge(spilled.charged) {
                    Some(charge) => charge,
                    None if beyond => budget.charge_beyond(spilled.charged),
                    None => return None,
                };
                spilled.restored(&bytes, charge)
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(code = %error.code(), %error, cause, topic = %spilled.topic,
                    "a message that waited on disk cannot be read");
                None
            }
        };
        if message.is_none() {
            self.spilling.counts.failures += 1;
            spilled.lose();
        }
        message
    }
}

impl Spilling {
    /// Finds a place for a message under [`Overflow::Spill`] or [`Overflow::SpillDisconnect`] that is to be put into a session's queue,
    /// from which others may have made `room`: in memory, where it is, or on disk.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn place(
        &mut self,
        shared: &Shared,
        session: &mut Session,
        queued: &mut Queued,
        is_large: bool,
        room: Room,
    ) -> Result<(), NoPlace> {
        let account = session.account.clone();
        let (queue, config) = (&mut session.queue, &session.config);
        let bytes = queued.message.charged();
        let is_over =
            |queue: &Queue| !queue.is_empty() && queue.bytes() + bytes > config.queue_bytes_max;
        // One for one: a queue that was restored, or whose settings have changed, may be longer, and loses no more for that.
        if !queue.is_empty() && queue.len() >= config.queue_messages_max && !room.is_one_gone {
            return Err(NoPlace::Messages);
        }
        let is_large = queue.goes_to_large(queued.message.topic(), is_large);
        let is_pressed = !queue.is_empty() && self.is_called_for();
        // One that was disconnected takes up the disk again once nothing of it is there.
        let is_kept_off = session.is_full && queued.overflow == Overflow::SpillDisconnect;
        if is_kept_off || !(queue.has_spilled(is_large) || is_over(queue) || is_pressed) {
            return if is_over(queue) { Err(NoPlace::Disconnected) } else { Ok(()) };
        }
        if !is_large && !queue.has_spilled(false) && !is_pressed {
            // Large ones make way, so that a small one does not wait for the disk as well.
            let mut write = |m: &_| self.write_for(shared, account.as_ref(), m);
            while is_over(queue) && matches!(queue.evict(true, &mut write), Some(Ok(_))) {}
            if !is_over(queue) {
                return Ok(());
            }
        }
        // One that a session leaves to another may be there already.
        let Some(message) = queued.message.memory() else { return Ok(()) };
        if room.is_memory_alone() && is_over(queue) {
            return Err(NoPlace::Memory);
        } else if room.is_memory_alone() {
            return Ok(());
        }
        match self.write_for(shared, account.as_ref(), message) {
            Ok(spilled) => {
                queued.message = Held::Disk(spilled);
                session.cannot_spill = false;
                Ok(())
            }
            Err(error) if is_over(queue) => Err(error.into()),
            Err(_) => Ok(()),
        }
    }

    /// Finds a place for a message of an earlier process at the end of a session's queue: on disk where its session, or the node, has
    /// its part of the memory, whatever the policy and however many wait. It was promised, and neither its client nor that one's
    /// settings are known before it comes; so it is held in memory only where the disk takes nothing.
    pub(super) fn place_restored(&mut self, session: &Session, queued: &mut Queued) {
        let (queue, bytes) = (&session.queue, queued.message.charged());
        let is_over = queue.bytes() + bytes > session.config.queue_bytes_max;
        let must_go = queue.has_spilled(false) || is_over || self.is_called_for();
        if !queue.is_empty()
            && must_go
            && let Some(Ok(spilled)) = queued.message.memory().map(|message| self.write(message))
        {
            queued.message = Held::Disk(spilled);
        }
    }

    /// Sends so many bytes of what waits for a session to disk, the newest first; how many it were.
    pub(super) fn give(&mut self, shared: &Shared, session: &mut Session, bytes: u64) -> u64 {
        let account = session.account.clone();
        let mut write = |m: &_| self.write_for(shared, account.as_ref(), m);
        let mut given = 0;
        while given < bytes.max(GIVE_BYTES) && !session.cannot_spill {
            let evicted = [true, false]
                .into_iter()
                .find_map(|is_large| session.queue.evict(is_large, &mut write));
            match evicted {
                Some(Ok(bytes)) => given += bytes,
                Some(Err(_)) => session.cannot_spill = true,
                None => break,
            }
        }
        given
    }
}

/// The room that messages which leave a queue make for another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// One has gone.
    is_one_gone: bool,
    /// How often the disk took nothing.
    disk_failures: u32,
}

impl Room {
    /// There was no place for that reason, and one goes.
    pub(super) fn refuse(&mut self, cause: &NoPlace) {
        self.is_one_gone = true;
        let is_of_disk =
            matches!(cause, NoPlace::Disk(error) if !matches!(error, SpillError::Share { .. }));
        self.disk_failures += u32::from(is_of_disk);
    }

    /// The disk takes nothing although the oldest has gone: its room comes back later, by files and not by messages. So some of those in
    /// memory have to go, and the queue loses two for one at most.
    pub(super) fn is_memory_alone(self) -> bool {
        self.disk_failures > 1
    }
}

/// The policy for a message that was to wait on disk and cannot.
pub(super) fn fallback(qos: QoS) -> Overflow {
    if qos == QoS::AtMostOnce { Overflow::DropNewest } else { Overflow::Disconnect }
}

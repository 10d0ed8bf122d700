//! Writing the live state again, so that the journal may release older records.
//!
//! A bounded number of records a turn, interleaved with normal work. Records written while this runs are valid whichever of
//! the two comes first: a session's part repeats its state, and changes apply to it whether they stand before or after.
//!
//! Always true: a message is written once, for all its subscribers; one that came after the checkpoint began is not written
//! again.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_message::{Instant, Payload, Position};
use tidegate_wire::mqtt::{PacketId, QoS};

use super::{
    Broker,
    journal_writer::{self, Keeper, closed, message_record, opened, waiting},
    spill::{FETCH_BYTES, FETCH_MESSAGES},
};
use crate::{
    inflight::Awaits,
    journal::{Record, RetainedAs, Sent, StoredMessage},
    message::Message,
    queue::{Held, Queued},
    slab::Key,
    spill::{Spilled, Wanted, WantedBy},
    timers::Timer,
};

/// A journal below this is let be.
const LEAST_BYTES: u64 = 16 << 20;
/// Records of one turn, and the time to the next.
const STEP: usize = 512;
const PAUSE: Duration = Duration::from_millis(1);
/// A journal that takes nothing is tried again this often.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// How far a checkpoint is.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Where it began; the journal lets go of what stands before.
    start: Position,
    /// Messages up to this number were there before.
    last: u64,
    /// By shard, the last that had come from there.
    seen: Vec<u64>,
    /// Of those messages, the ones that are written.
    written: HashSet<u64>,
    /// Whether what is on disk is waited for: before the node runs.
    waits: bool,
    /// Whether a part of it is being read from disk, which the next step waits for.
    is_fetching: bool,
    fetched: Vec<Arc<Message>>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Sessions that are to be written, the last first.
    Sessions(Vec<Key>),
    /// The messages that wait for a session, and how many of them are written.
    Queue(Vec<Key>, Key, HashSet<u64>),
    /// Retained messages after that topic.
    Retained(Option<String>),
    Sent,
    /// All that came from other shards before is written, up to there: that it is here may be said once that is durable.
    Seen(Option<Position>),
    /// All is written, up to there.
    Written(Option<Position>),
}

impl Broker {
    /// Begins to write the live state again if the journal has grown to twice its size after the last time, or refuses writes.
    pub(super) fn watch_journal(&mut self, now: Instant) {
        let Some(keeper) = &mut self.keeper else { return };
        if !keeper.is_watched && (keeper.may_recover() || keeper.is_large()) {
            keeper.is_watched = true;
            self.timers.set(now, Timer::Journal);
        }
    }

    /// The work of [`Timer::Journal`].
    pub(super) fn go_on_with_journal(&mut self, now: Instant) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.is_watched = false;
        // Room may come of a checkpoint, else of the disk.
        let is_failing = keeper.may_recover() && !keeper.ensure(keeper.wanted.max(1));
        if keeper.checkpoint.is_none() && keeper.is_large() {
            self.begin_checkpoint(false);
        }
        let goes_on = self.checkpoint_step(STEP);
        if !goes_on {
            self.end_checkpoint();
        }
        // One that found no room is begun again, and not at once.
        let waits = |keeper: &&mut Box<Keeper>| goes_on || is_failing || keeper.is_large();
        if let Some(keeper) = self.keeper.as_mut().filter(waits) {
            keeper.is_watched = true;
            let pause = if goes_on { PAUSE } else { RETRY };
            self.timers.set(now + pause, Timer::Journal);
        }
    }

    pub(super) fn begin_checkpoint(&mut self, waits: bool) {
        let keys = self.sessions.iter().map(|(key, _)| key).collect();
        let Some(keeper) = &mut self.keeper else { return };
        keeper.lacking.begin_checkpoint();
        keeper.checkpoint = Some(Checkpoint {
            start: keeper.journal.end(),
            last: self.numbers.message,
            seen: keeper.seen.clone(),
            written: HashSet::new(),
            waits,
            is_fetching: false,
            fetched: Vec::new(),
            stage: Stage::Sessions(keys),
        });
    }

    /// Has a checkpoint that is under way write a session, too, whose messages it may not have written yet.
    pub(super) fn checkpoint_also(&mut self, key: Key) {
        let checkpoint = self.keeper.as_mut().and_then(|keeper| keeper.checkpoint.as_mut());
        match checkpoint.map(|checkpoint| &mut checkpoint.stage) {
            Some(Stage::Sessions(keys) | Stage::Queue(keys, ..)) => keys.push(key),
            // Then all that waited before is written.
            Some(Stage::Retained(_) | Stage::Sent | Stage::Seen(_) | Stage::Written(_)) | None => {}
        }
    }

    /// Writes some of it; false once all is written, or nothing can be.
    pub(super) fn checkpoint_step(&mut self, records: usize) -> bool {
        let Some(keeper) = &mut self.keeper else { return false };
        let Some(mut checkpoint) =
            keeper.checkpoint.take_if(|checkpoint| checkpoint.is_under_way())
        else {
            return false;
        };
        // Older records are released then, and this record alone says what came from other shards: it is durable before anything else is.
        if keeper.is_gated && !checkpoint.waits && keeper.durable < checkpoint.start {
            keeper.checkpoint = Some(checkpoint);
            return true;
        }
        let failures = keeper.counts.failures;
        let until = keeper.counts.records.saturating_add(records as u64);
        let mut goes_on = true;
        while goes_on
            && !checkpoint.is_fetching
            && self.keeper.as_ref().is_some_and(|keeper| keeper.counts.records < until)
        {
            checkpoint.stage = self.write_stage(&mut checkpoint, until);
            let keeper = self.keeper.as_mut().expect("looked at above");
            if keeper.counts.failures > failures {
                // It is begun again when there is room.
                return false;
            }
            goes_on = checkpoint.is_under_way();
        }
        let keeper = self.keeper.as_mut().expect("looked at above");
        keeper.checkpoint = Some(checkpoint);
        goes_on
    }

    /// Lets go of what stood before, once what stands for it is durable.
    pub(super) fn end_checkpoint(&mut self) {
        self.write_seen();
        let Some(keeper) = &mut self.keeper else { return };
        let Some(Checkpoint { stage: Stage::Written(last), start, .. }) = &keeper.checkpoint else {
            return;
        };
        if last.is_some_and(|last| last >= keeper.journal.durable()) {
            return;
        }
        let start = *start;
        keeper.checkpoint = None;
        if let Err(error) = keeper.journal.release(start) {
            tracing::warn!(code = %error.code(), %error, "the journal of the MQTT sessions cannot let go of what is old");
        }
        keeper.checkpoint_bytes = keeper.journal.bytes();
        keeper.counts.checkpoints += 1;
        keeper.lacking.end_checkpoint();
        self.tell_seen();
    }

    /// Says what had come from other shards when the checkpoint began, once all of that is durable: were this durable before it, the
    /// loss of power would leave what neither shard has.
    fn write_seen(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        let Some(Checkpoint { stage: Stage::Seen(last), seen, .. }) = &keeper.checkpoint else {
            return;
        };
        if last.is_some_and(|last| last >= keeper.journal.durable()) {
            return;
        }
        let seen = seen.clone();
        for (shard, number) in seen.into_iter().enumerate().filter(|(_, number)| *number > 0) {
            let record = Record::Seen { shard: shard as u8, number, and_before: true };
            if keeper.append(&record).is_none() {
                // It is begun again when there is room.
                keeper.checkpoint = None;
                return;
            }
        }
        let last = keeper.last_record();
        if let Some(checkpoint) = &mut keeper.checkpoint {
            checkpoint.stage = Stage::Written(last);
        }
    }

    /// Begins one, unless one is under way.
    #[cfg(test)]
    pub(crate) fn begin_checkpoint_now(&mut self) {
        if self.keeper.as_ref().is_some_and(|keeper| keeper.checkpoint.is_none()) {
            self.begin_checkpoint(false);
        }
    }

    /// Goes on with it by about so many records.
    #[cfg(test)]
    pub(crate) fn checkpoint_some(&mut self, records: usize) {
        if !self.checkpoint_step(records) {
            self.end_checkpoint();
        }
    }

    fn write_stage(&mut self, checkpoint: &mut Checkpoint, until: u64) -> Stage {
        let stage = std::mem::replace(&mut checkpoint.stage, Stage::Sent);
        match stage {
            Stage::Sessions(mut keys) => match keys.pop() {
                Some(key) => {
                    self.write_session(key);
                    Stage::Queue(keys, key, HashSet::new())
                }
                None => Stage::Retained(None),
            },
            Stage::Queue(keys, key, mut written) => {
                if self.write_queue(checkpoint, key, &mut written, until) {
                    Stage::Sessions(keys)
                } else {
                    Stage::Queue(keys, key, written)
                }
            }
            Stage::Retained(after) => match self.write_all_retained(after) {
                Some(last) => Stage::Retained(Some(last)),
                None => Stage::Sent,
            },
            Stage::Sent => self.write_sent(),
            written @ (Stage::Seen(_) | Stage::Written(_)) => written,
        }
    }

    /// All of a session but its messages.
    fn write_session(&mut self, key: Key) {
        let Some(keeper) = &mut self.keeper else { return };
        let Some(session) = self.sessions.get(key).filter(|session| session.number > 0) else {
            return;
        };
        let number = session.number;
        let connection = session.connection.and_then(|key| self.connections.get(key));
        let will = connection.and_then(|connection| connection.will.as_deref());
        keeper.append(&opened(session, will));
        if connection.is_none() {
            keeper.append(&closed(session));
        }
        for (filter, options) in &session.subscriptions {
            let (filter, options) = ((&**filter).into(), (*options).into());
            keeper.append(&Record::Subscribed { session: number, filter, options });
        }
        for &id in &session.received {
            keeper.append(&Record::Noted { session: number, id });
        }
    }

    /// The messages that wait for a session, then those in flight, to which some may have moved meanwhile; false if there is
    /// more.
    fn write_queue(
        &mut self,
        checkpoint: &mut Checkpoint,
        key: Key,
        written: &mut HashSet<u64>,
        until: u64,
    ) -> bool {
        let Some(keeper) = &mut self.keeper else { return true };
        let Some(session) = self.sessions.get(key).filter(|session| session.number > 0) else {
            return true;
        };
        let was_there = |queued: &&Queued| queued.number > 0 && queued.number <= checkpoint.last;
        let left: Vec<&Queued> = session.queue.iter().filter(was_there).collect();
        for (at, queued) in left.iter().enumerate() {
            if keeper.counts.records >= until {
                return false;
            }
            if written.contains(&queued.number) {
                continue;
            }
            let message = match &queued.message {
                Held::Memory(message) => Some(message.clone()),
                Held::Disk(spilled) => spilled.in_memory(),
                Held::Gone(_) => None,
            };
            if message.is_none() && checkpoint.is_new(queued.number) {
                let wanted = checkpoint.wanted(&left[at..]);
                if !wanted.is_empty() {
                    self.fetch_for_checkpoint(checkpoint, wanted);
                    return false;
                }
            }
            written.insert(queued.number);
            checkpoint.write_waiting(keeper, session.number, queued, message.as_deref(), None);
        }
        let number = session.number;
        for entry in session.inflight.entries() {
            match &entry.kept {
                Some(queued) if queued.number > 0 => {
                    let begun = (queued.qos == QoS::ExactlyOnce).then_some(entry.id);
                    let message = Some(&**queued.begun());
                    checkpoint.write_waiting(keeper, number, queued, message, begun);
                }
                None if entry.awaits == Awaits::Pubcomp => {
                    keeper.append(&Record::Accepted { session: number, id: entry.id });
                }
                _ => {}
            }
        }
        true
    }

    /// Has messages read: when the node runs, by and by; before, at once.
    fn fetch_for_checkpoint(&mut self, checkpoint: &mut Checkpoint, messages: Vec<Arc<Spilled>>) {
        checkpoint.fetched.clear();
        let Some(disk) = self.spilling.disk.clone() else {
            return messages.iter().for_each(|spilled| spilled.lose());
        };
        if !checkpoint.waits {
            checkpoint.is_fetching = true;
            disk.read(self.shard, Wanted { by: WantedBy::Checkpoint, messages });
            return;
        }
        for spilled in messages {
            let answer = disk.read_now(spilled.place());
            checkpoint.fetched.extend(self.bring_back(&spilled, answer, true));
        }
    }

    /// The requested messages are read, or lost.
    pub(super) fn fetched_for_checkpoint(&mut self, messages: Vec<Arc<Message>>) {
        if let Some(checkpoint) = self.keeper.as_mut().and_then(|keeper| keeper.checkpoint.as_mut())
        {
            checkpoint.is_fetching = false;
            checkpoint.fetched = messages;
        }
    }

    fn write_all_retained(&mut self, after: Option<String>) -> Option<String> {
        let keeper = self.keeper.as_mut()?;
        let mut found = Vec::new();
        let last = self.shared.retained().walk(after.as_deref(), STEP, |kept| {
            if journal_writer::is_written(&kept.message.topic) {
                found.push((kept.message.clone(), kept.sequence, kept.client.clone()));
            }
        });
        found.retain(|(message, ..)| self.shared.owner_of(&message.topic) == self.shard);
        for (message, sequence, client) in found {
            let retained = Some(RetainedAs { sequence, client });
            let record = StoredMessage { retained, ..(&*message).into() };
            keeper.append(&Record::Message(record));
        }
        last
    }

    /// Messages that no other shard has confirmed.
    fn write_sent(&mut self) -> Stage {
        let Some(keeper) = &mut self.keeper else { return Stage::Seen(None) };
        let mut records = Vec::new();
        for (shard, unconfirmed) in keeper.unconfirmed.iter().enumerate() {
            for entry in unconfirmed {
                let sent = vec![(shard as u8, entry.number, entry.sent.clone())];
                let record = match &entry.message {
                    Some(message) => StoredMessage { sent, ..(&**message).into() },
                    None => cleared(&entry.topic, sent),
                };
                records.push(Record::Message(record));
            }
        }
        for record in records {
            keeper.append(&record);
        }
        Stage::Seen(keeper.last_record())
    }
}

impl Keeper {
    /// Whether it takes nothing, which may change.
    fn may_recover(&self) -> bool {
        self.is_failing && self.journal.failure().is_none()
    }

    /// Whether most of the journal is old; where it takes nothing, some of it is enough, and what it lacks is to be made up for.
    fn is_large(&self) -> bool {
        let bytes = self.checkpoint_bytes;
        let most = if self.is_failing { bytes + bytes / 4 } else { (2 * bytes).max(LEAST_BYTES) };
        self.checkpoint.is_none() && (self.lacking.is_any() || self.journal.bytes() > most)
    }
}

impl Checkpoint {
    /// Whether there is more to write now.
    fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Seen(_) | Stage::Written(_))
    }

    fn write_waiting(
        &mut self,
        keeper: &mut Keeper,
        session: u64,
        queued: &Queued,
        message: Option<&Message>,
        begun: Option<PacketId>,
    ) {
        let number = queued.number;
        let waiting = waiting(session, queued, begun);
        let record = match message {
            Some(message) if self.is_new(number) => {
                let origin = keeper.lacking.origin_of(number);
                message_record(message, number, origin, waiting)
            }
            // The disk has lost it.
            None if self.is_new(number) => return,
            _ => Record::Queued { number, waiting },
        };
        self.written.insert(number);
        keeper.append(&record);
    }

    /// Whether the message of that number is to be written.
    fn is_new(&self, number: u64) -> bool {
        number <= self.last && !self.written.contains(&number)
    }

    /// The next messages to read, of which the first is on disk: none if that is lost.
    fn wanted(&self, left: &[&Queued]) -> Vec<Arc<Spilled>> {
        let mut bytes = 0;
        let on_disk = left.iter().filter(|queued| self.is_new(queued.number));
        let on_disk = on_disk.filter_map(|queued| match &queued.message {
            Held::Disk(spilled) if spilled.in_memory().is_none() => Some(spilled.clone()),
            _ => None,
        });
        let fits = |spilled: &Arc<Spilled>| {
            let is_first = bytes == 0;
            bytes += spilled.charged;
            !spilled.is_lost() && (is_first || bytes <= FETCH_BYTES)
        };
        on_disk.take_while(fits).take(FETCH_MESSAGES).collect()
    }
}

/// The empty message that clears a topic.
fn cleared(topic: &Arc<str>, sent: Vec<(u8, u64, Sent)>) -> StoredMessage {
    StoredMessage {
        number: 0,
        origin: None,
        noted: None,
        retained: None,
        waiting: Vec::new(),
        sent,
        qos: QoS::AtMostOnce,
        retain: true,
        expires: None,
        received: Instant::EPOCH,
        topic: topic.clone(),
        forwarded: Bytes::new(),
        payload: Payload::default(),
    }
}

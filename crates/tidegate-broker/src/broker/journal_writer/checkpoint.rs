//! Writing the live state again, so that the journal may release older records.
//!
//! A bounded number of records a turn, interleaved with normal work. Records written while this runs are valid whichever of
//! the two comes first: a session's part repeats its state, and changes apply to it whether they stand before or after.
//!
//! A journal without room, its own or that of the disk, takes nothing until messages that waited were received, or others freed the disk.
//! For that case each journal holds room in reserve for the state that no subscriber takes away (sessions, retained messages, messages
//! that other shards do not have in their journals yet), for the records by which exchanges of QoS 2 and wills end, and somewhat more; a
//! promise is given only while it does. A record that clears a retained message, or takes an exchange of QoS 2 or a will to its end, may
//! use the reserve: it makes more room than it takes. So once all that waited is delivered, the rest finds room there, and all older records go. Where one
//! journal has no room, all shards look, for they share the disk.
//!
//! Otherwise a checkpoint begins only where all of it finds room, as far as that is known: a half-written one would take room and free none.
//!
//! Records that found no room are made up for by a checkpoint, too, between two marks: after the second one no record before the first
//! counts ([`Record::Checkpoint`]).
//!
//! Always true: a message is written once, for all its subscribers; one that came after the checkpoint began is not written again.
//! Messages of other shards are said to be here after they are durable, and the second mark is written after all between the two is.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_journal::{RECORD_ADDS, Record, RetainedAs, Sent, Source, StoredMessage, user_bytes};
use tidegate_message::{Instant, Payload, Position};
use tidegate_wire::mqtt::{PacketId, QoS};

use super::{
    super::{
        Broker, Peer,
        spill::{FETCH_BYTES, FETCH_MESSAGES},
    },
    EXCHANGE_BYTES, Keeper, Reserved, SLACK_BYTES, closed, message_record, opened, waiting,
};
use crate::{
    inflight::Awaits,
    message::Message,
    queue::{Held, Queued},
    retained::is_written,
    slab::Key,
    spill::{Spilled, Wanted, WantedBy},
    timers::Timer,
};

/// A journal up to this is let be, unless it is small.
const LEAST_BYTES: u64 = 16 << 20;
/// A journal that may hold less than this is small: it is written again once it is over this part of its limit and has grown by the other
/// since the last checkpoint. A larger one is let be until it has doubled, or each growth by an eighth would cost all that is in it.
const SMALL_BYTES_MAX: u64 = 8 * LEAST_BYTES;
const SMALL_PART: u64 = 4;
const SMALL_SINCE_PART: u64 = 8;
/// Once all of it found no room, the live state is looked through again when the journal's bytes, or those that are free, changed by this
/// part, or at every eighth time that it is due, which are a [`RETRY`] apart: large messages that are delivered change neither.
const CHANGED_PART: u64 = 16;
const LOOKS_SKIPPED: u32 = 7;
/// Records of one turn, and the time to the next.
const STEP: usize = 512;
const PAUSE: Duration = Duration::from_millis(1);
/// Where there is no room, a checkpoint is to let go of this much more than it writes, and of an eighth of that.
const GAIN_BYTES: u64 = 16 << 10;
const GAIN_PART: u64 = 8;
/// The records that room is reserved for are counted again once so many bytes of them were written as were counted, or this many. Where
/// they are more than [`LEAST_BYTES`], the next checkpoint counts them.
const RESERVED_BYTES_MIN: u64 = 1 << 20;
/// A journal that takes nothing is tried again this often.
pub(in crate::broker) const RETRY: Duration = Duration::from_secs(1);

/// How far a checkpoint is.
#[derive(Debug)]
pub(in crate::broker) struct Checkpoint {
    /// Where it began; the journal lets go of what stands before.
    start: Position,
    /// Messages up to this number were there before.
    last: u64,
    /// By shard, the last that had come from there.
    seen: Vec<u64>,
    /// Whether no record before it counts once it is complete.
    replaces: bool,
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
    /// Begins to write the live state again if the journal has grown enough since the last time ([`let_be_bytes`]), or refuses writes.
    pub(in crate::broker) fn watch_journal(&mut self, now: Instant) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.look_for_room();
        if self.wants_look_at_journal() {
            self.look_at_journal(now);
        }
    }

    /// Whether the journal is to be looked at, and no timer is set for that.
    pub(in crate::broker) fn wants_look_at_journal(&self) -> bool {
        let is_wanted =
            |keeper: &Keeper| keeper.may_recover() || keeper.is_due() || keeper.is_to_be_counted();
        self.keeper.as_ref().is_some_and(|keeper| !keeper.is_watched && is_wanted(keeper))
    }

    /// Has [`Timer::Journal`] come, unless it is to.
    pub(in crate::broker) fn look_at_journal(&mut self, now: Instant) {
        if let Some(keeper) = self.keeper.as_mut().filter(|keeper| !keeper.is_watched) {
            keeper.is_watched = true;
            self.timers.set(now, Timer::Journal);
        }
    }

    /// The work of [`Timer::Journal`].
    pub(in crate::broker) fn go_on_with_journal(&mut self, now: Instant) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.is_watched = false;
        // Room may come of a checkpoint, of that of another shard, else of the disk.
        let is_failing =
            keeper.may_recover() && (keeper.checkpoint.is_some() || !keeper.try_again());
        if is_failing && keeper.checkpoint.is_none() && !keeper.has_room {
            self.give_up_gone();
            self.ask_for_room();
        }
        if self.should_write_again() {
            self.begin_checkpoint(false);
        }
        let goes_on = self.checkpoint_step(STEP);
        if !goes_on {
            self.end_checkpoint();
        }
        let waits = is_failing || self.wants_look_at_journal();
        if let Some(keeper) = self.keeper.as_mut().filter(|_| goes_on || waits) {
            keeper.is_watched = true;
            let pause = if goes_on { PAUSE } else { RETRY };
            self.timers.set(now + pause, Timer::Journal);
        }
    }

    /// Has the other shards let go of what they can.
    fn ask_for_room(&mut self) {
        for (shard, peers) in self.peers.iter_mut().enumerate() {
            if shard != self.shard {
                peers.push(Peer::GiveWay);
            }
        }
    }

    /// The journal of another shard has, or had, no room.
    pub(in crate::broker) fn asked_for_room(&mut self, now: Instant) {
        self.give_up_gone();
        if let Some(keeper) = &mut self.keeper {
            keeper.is_short = true;
            self.look_at_journal(now);
        }
    }

    /// Whether a checkpoint is to begin now.
    fn should_write_again(&mut self) -> bool {
        let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.may_be_written()) else {
            return false;
        };
        // One that only lacks records has room for them now.
        let lacks_room =
            if keeper.is_failing { !keeper.has_room } else { self.shared.has_failing_journal() };
        let is_short = std::mem::take(&mut keeper.is_short) || lacks_room;
        if is_short {
            keeper.journal.give_way();
        }
        if is_short || keeper.is_to_be_counted() {
            self.count_reserved();
        }
        let Some(keeper) = &mut self.keeper else { return false };
        if is_short {
            // Some of it is for records that come meanwhile.
            let room = keeper.journal.room().saturating_sub(SLACK_BYTES / 8);
            let bytes = keeper.journal.bytes().saturating_sub(GAIN_BYTES);
            let most = (bytes / (GAIN_PART + 1) * GAIN_PART).min(room);
            if self.live_bytes(most) <= most {
                if let Some(keeper) = &mut self.keeper {
                    keeper.is_short = true;
                }
                return true;
            }
        }
        let Some(keeper) = &mut self.keeper else { return false };
        let has_room = !is_short || (keeper.is_failing && keeper.has_room);
        if !has_room || !keeper.is_due() {
            return false;
        }
        // A half-written one would leave less room than before.
        let (bytes, free) = (keeper.journal.bytes(), keeper.journal.free());
        let is_skipped = keeper.no_room.as_mut().is_some_and(|refused| refused.skips(bytes, free));
        if is_skipped && !keeper.lacking.is_any() {
            return false;
        }
        let mut fits = self.live_bytes(free) <= free;
        if !fits {
            self.count_reserved();
            fits = self.live_bytes(free) <= free;
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.no_room = (!fits).then_some(NoRoom { bytes, free, skipped: 0 });
        }
        fits
    }

    pub(in crate::broker) fn begin_checkpoint(&mut self, waits: bool) {
        let keys = self.sessions.iter().map(|(key, _)| key).collect();
        let Some(keeper) = &mut self.keeper else { return };
        keeper.use_reserve(keeper.is_short);
        let start = keeper.journal.end();
        let replaces = keeper.lacking.is_any();
        if replaces && keeper.repeat(&Record::Checkpoint { is_complete: false }).is_none() {
            return keeper.use_reserve(false);
        }
        keeper.lacking.begin_checkpoint();
        keeper.reserved.add(std::mem::take(&mut keeper.reserved_since));
        keeper.checkpoint = Some(Checkpoint {
            start,
            replaces,
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
    pub(in crate::broker) fn checkpoint_also(&mut self, key: Key) {
        let checkpoint = self.keeper.as_mut().and_then(|keeper| keeper.checkpoint.as_mut());
        match checkpoint.map(|checkpoint| &mut checkpoint.stage) {
            Some(Stage::Sessions(keys) | Stage::Queue(keys, ..)) => keys.push(key),
            // Then all that waited before is written.
            Some(Stage::Retained(_) | Stage::Sent | Stage::Seen(_) | Stage::Written(_)) | None => {}
        }
    }

    /// Writes some of it; false once all is written, or nothing can be.
    pub(in crate::broker) fn checkpoint_step(&mut self, records: usize) -> bool {
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
                keeper.give_up_checkpoint();
                return false;
            }
            goes_on = checkpoint.is_under_way();
        }
        let keeper = self.keeper.as_mut().expect("looked at above");
        keeper.checkpoint = Some(checkpoint);
        goes_on
    }

    /// Lets go of what stood before, once what stands for it is durable.
    pub(in crate::broker) fn end_checkpoint(&mut self) {
        self.write_seen();
        let Some(keeper) = &mut self.keeper else { return };
        let durable = keeper.journal.durable();
        let is_durable = |last: Option<Position>| last.is_none_or(|last| last < durable);
        let Some(mut checkpoint) = keeper.checkpoint.take_if(
            |checkpoint| matches!(checkpoint.stage, Stage::Written(last) if is_durable(last)),
        ) else {
            return;
        };
        if std::mem::take(&mut checkpoint.replaces) {
            // Not before all that stands for the older records is durable: the power may spare the one and not the other.
            let Some(last) = keeper.repeat(&Record::Checkpoint { is_complete: true }) else {
                return keeper.give_up_checkpoint();
            };
            checkpoint.stage = Stage::Written(Some(last));
            if keeper.is_gated {
                keeper.checkpoint = Some(checkpoint);
                return;
            }
        }
        keeper.use_reserve(false);
        keeper.reserved = std::mem::take(&mut keeper.reserved_since);
        if let Err(error) = keeper.journal.release(checkpoint.start) {
            tracing::warn!(code = %error.code(), %error, "the journal of the MQTT sessions cannot release its old records");
        }
        keeper.checkpoint_bytes = keeper.journal.bytes();
        keeper.counts.checkpoints += 1;
        keeper.is_short = false;
        keeper.lacking.end_checkpoint();
        keeper.tell_lacking();
        let was_failing = keeper.is_failing;
        self.tell_seen();
        if was_failing {
            // Their journals may let go of what is confirmed now.
            self.ask_for_room();
        }
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
            if keeper.repeat(&record).is_none() {
                // It is begun again when there is room.
                return keeper.give_up_checkpoint();
            }
        }
        let last = keeper.last_record();
        if let Some(checkpoint) = &mut keeper.checkpoint {
            checkpoint.stage = Stage::Written(last);
        }
    }

    /// Counts the records that room is reserved for.
    fn count_reserved(&mut self) {
        let reserved = self.to_reserve();
        if let Some(keeper) = &mut self.keeper {
            (keeper.reserved, keeper.reserved_since) = (reserved, Reserved::default());
        }
    }

    /// Bytes of the records that room is reserved for: about, and not less.
    fn to_reserve(&self) -> Reserved {
        let of_text = |text: &str| RECORD_ADDS + text.len() as u64;
        let mut reserved = Reserved::default();
        let bytes = &mut reserved.lasting;
        for (_, session) in self.sessions.iter().filter(|(_, session)| session.number > 0) {
            // It is opened, and closed.
            *bytes += 2 * RECORD_ADDS + of_text(&session.client_id);
            *bytes += user_bytes(&session.identity.name, &session.identity.groups);
            let connection = session.connection.and_then(|key| self.connections.get(key));
            let will = connection.and_then(|connection| connection.will.as_deref());
            let will = will.or(session.will.as_ref().map(|(will, _)| &**will));
            *bytes += will.map_or(0, |will| will.message.record_bytes());
            *bytes += session.subscriptions.keys().map(|filter| of_text(filter)).sum::<u64>();
            *bytes += RECORD_ADDS * session.received.len() as u64;
            let is_twice = |queued: &&Queued| queued.qos == QoS::ExactlyOnce && queued.number > 0;
            let begun = session.inflight.entries().filter(|entry| entry.awaits != Awaits::Puback);
            let exchanges = session.queue.iter().filter(is_twice).count() + begun.count();
            reserved.exchanges += EXCHANGE_BYTES * exchanges as u64;
            reserved.exchanges += RECORD_ADDS * session.received.len() as u64;
            reserved.exchanges += RECORD_ADDS * u64::from(session.will_is_written);
        }
        *bytes += self.shared.retained().record_bytes(self.shard);
        reserved
    }

    /// Bytes of the records of a checkpoint, once [`Broker::count_reserved`] has counted: about, and not less; or more than `most`.
    fn live_bytes(&self, most: u64) -> u64 {
        let Some(keeper) = &self.keeper else { return 0 };
        let mut bytes = keeper.reserved.lasting + keeper.reserved_since.lasting;
        bytes += keeper.unconfirmed_bytes;
        // Its marks, and what came from each shard.
        bytes += (2 + keeper.seen.len() as u64) * RECORD_ADDS;
        let mut known = HashSet::new();
        for (_, session) in self.sessions.iter().filter(|(_, session)| session.number > 0) {
            let inflight = session.inflight.entries().map(|entry| entry.kept.as_deref());
            for queued in session.queue.iter().map(Some).chain(inflight) {
                bytes += match queued {
                    Some(queued) if queued.number == 0 => 0,
                    Some(queued) if known.insert(queued.number) => match &queued.message {
                        Held::Memory(message) => message.record_bytes(),
                        Held::Disk(spilled) => RECORD_ADDS + spilled.charged,
                        Held::Gone(_) => 0,
                    },
                    _ => RECORD_ADDS,
                };
                bytes += queued.map_or(0, |queued| 8 * queued.ids.as_slice().len() as u64);
                if bytes > most {
                    return bytes;
                }
            }
        }
        bytes
    }

    /// Writes what the journal had no room for, if it has now: to end with. Messages that wait on disk are waited for.
    pub fn finish_journal(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        // One that was begun before may lack what came since.
        keeper.checkpoint = None;
        keeper.use_reserve(false);
        if !keeper.lacking.is_any() || keeper.journal.flush().is_err() {
            return;
        }
        keeper.try_again();
        if !self.should_write_again() {
            return;
        }
        self.begin_checkpoint(true);
        while self.checkpoint_step(STEP) {}
        // The live state, then what came from other shards, then the mark.
        for _ in 0..3 {
            let Some(keeper) = &mut self.keeper else { return };
            if keeper.checkpoint.is_none() || keeper.journal.flush().is_err() {
                return;
            }
            self.end_checkpoint();
        }
    }

    /// Begins one, unless one is under way.
    #[cfg(test)]
    pub(crate) fn begin_checkpoint_now(&mut self) {
        if self.keeper.as_ref().is_some_and(|keeper| keeper.checkpoint.is_none()) {
            self.begin_checkpoint(false);
        }
    }

    /// Continues it by about so many records.
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
        let Some(session) = self.sessions.get_mut(key).filter(|session| session.number > 0) else {
            return;
        };
        let number = session.number;
        let connection = session.connection.and_then(|key| self.connections.get(key));
        let will = connection.and_then(|connection| connection.will.as_deref());
        let mut written = keeper.repeat(&opened(session, will));
        if connection.is_none() {
            written = written.and(keeper.repeat(&closed(session)));
        }
        if written.is_some() {
            session.will_is_written = will.is_some() || session.will.is_some();
        }
        for (filter, options) in &session.subscriptions {
            let (filter, options) = ((&**filter).into(), (*options).into());
            keeper.repeat(&Record::Subscribed { session: number, filter, options });
        }
        for &id in &session.received {
            keeper.repeat(&Record::Noted { session: number, id });
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
                    let message = Some(&**queued.begun());
                    checkpoint.write_waiting(keeper, number, queued, message, Some(entry.id));
                }
                None if entry.awaits == Awaits::Pubcomp => {
                    keeper.repeat(&Record::Accepted { session: number, id: entry.id });
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
    pub(in crate::broker) fn fetched_for_checkpoint(&mut self, messages: Vec<Arc<Message>>) {
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
            if is_written(&kept.message.topic) {
                let source = kept.source.as_deref().map(Source::from);
                let (sequence, client) = (kept.sequence, kept.client.clone());
                found.push((kept.message.clone(), RetainedAs { sequence, client, source }));
            }
        });
        found.retain(|(message, ..)| self.shared.owner_of(&message.topic) == self.shard);
        for (message, retained) in found {
            let record = StoredMessage { retained: Some(retained), ..(&*message).into() };
            keeper.repeat(&Record::Message(record));
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
            keeper.repeat(&record);
        }
        Stage::Seen(keeper.last_record())
    }
}

impl Keeper {
    /// Whether it takes nothing, which may change.
    fn may_recover(&self) -> bool {
        self.is_failing && self.journal.failure().is_none()
    }

    /// Whether a checkpoint may be begun.
    fn may_be_written(&self) -> bool {
        self.checkpoint.is_none() && self.journal.failure().is_none()
    }

    /// Whether most of the journal is old, or much of a small one: half of it may be held in reserve, and what is written again needs room
    /// beside what it stands for. A small one of which sessions and retained messages alone take about a fifth still refuses messages
    /// before it is written again: its reserve is that large.
    fn is_large(&self) -> bool {
        self.journal.bytes() > let_be_bytes(self.checkpoint_bytes, self.journal.bytes_max())
    }

    /// Whether a checkpoint is to begin once there is room.
    fn is_due(&self) -> bool {
        self.may_be_written() && (self.is_large() || self.lacking.is_any())
    }

    /// Whether much less room may be to be reserved by now than was counted.
    fn is_to_be_counted(&self) -> bool {
        let counted = self.reserved.bytes();
        let is_grown = self.reserved_since.bytes() > counted.max(RESERVED_BYTES_MIN);
        self.checkpoint.is_none() && is_grown && counted <= LEAST_BYTES
    }

    /// Ends a checkpoint that found no room for all.
    fn give_up_checkpoint(&mut self) {
        self.checkpoint = None;
        self.use_reserve(false);
    }
}

/// All of the live state found no room in the journal.
#[derive(Clone, Copy, Debug)]
pub(in crate::broker) struct NoRoom {
    bytes: u64,
    free: u64,
    /// Looks that were left out since.
    skipped: u32,
}

impl NoRoom {
    /// Whether to leave a look out: with so many bytes in the journal and so many free, it most likely finds no room either.
    fn skips(&mut self, bytes: u64, free: u64) -> bool {
        let is_near = |then: u64, now: u64| then.abs_diff(now) <= then / CHANGED_PART;
        self.skipped += 1;
        self.skipped <= LOOKS_SKIPPED && is_near(self.bytes, bytes) && is_near(self.free, free)
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
        keeper.repeat(&record);
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

/// Bytes up to which a journal is let be that had so many after the last checkpoint, and may hold so many.
fn let_be_bytes(checkpoint_bytes: u64, bytes_max: u64) -> u64 {
    let usual = (2 * checkpoint_bytes).max(LEAST_BYTES);
    if bytes_max >= SMALL_BYTES_MAX {
        return usual;
    }
    let since = checkpoint_bytes.saturating_add(bytes_max / SMALL_SINCE_PART);
    usual.min(since.max(bytes_max / SMALL_PART))
}

/// The empty message that clears a topic.
pub(in crate::broker) fn cleared(topic: &Arc<str>, sent: Vec<(u8, u64, Sent)>) -> StoredMessage {
    StoredMessage {
        number: 0,
        origin: None,
        noted: None,
        retained: None,
        waiting: Vec::new(),
        sent,
        qos: QoS::AtMostOnce,
        retain: true,
        is_from_peer: false,
        expires: None,
        received: Instant::EPOCH,
        topic: topic.clone(),
        forwarded: Bytes::new(),
        payload: Payload::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_let_be_until_it_has_doubled_and_a_small_one_for_less() {
        const MIB: u64 = 1 << 20;
        for (checkpoint, most, expected) in [
            (0, 2048, 16),
            (10, 2048, 20),
            (200, 1024, 400), // over an eighth of its limit
            (400, 1024, 800),
            (100, 128, 200),
            // Small ones.
            (0, 32, 8),
            (8, 32, 12),
            (12, 32, 16),
            (0, 127, 16),
        ] {
            let bytes = let_be_bytes(checkpoint * MIB, most * MIB);
            assert_eq!(bytes, expected * MIB, "{checkpoint} of {most} MiB");
        }
        assert_eq!(let_be_bytes(0, u64::MAX), LEAST_BYTES);
    }
}

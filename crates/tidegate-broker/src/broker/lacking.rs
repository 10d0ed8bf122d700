//! Records that a journal lacks, since it had no room for them.
//!
//! ```text
//!  record ─▶ no room ─▶ lacking: nothing more is promised, and other shards keep what they sent
//!                          └─▶ all live state is written again ─▶ durable ─▶ lacking no more
//! ```
//!
//! A later record may find room again, since it is small or since room was made: it must not stand for those before it.
//!
//! Always true: what came from another shard is confirmed only if a durable record here says so, its own or those of a checkpoint.

use std::collections::HashMap;

use tidegate_journal::Record;

/// Records that are lacking, and since when.
#[derive(Debug)]
pub(super) struct Lacking {
    /// Since the last checkpoint began.
    since: Lacks,
    /// Before that: written again once that checkpoint is durable.
    before: Lacks,
}

/// A shard, and the number under which it sent something.
type Origin = (u8, u64);

#[derive(Debug)]
struct Lacks {
    is_any: bool,
    /// Something that a session, or another shard, relies on.
    is_relied_on: bool,
    /// By shard, the lowest number of what came from there; [`u64::MAX`] if all of it is written.
    lowest: Vec<u64>,
    /// By its number here, where a message came from that waits for a session; none if from a publisher of this shard.
    messages: HashMap<u64, Option<Origin>>,
}

impl Lacking {
    /// Nothing, on a node of so many shards.
    pub(super) fn new(shards: usize) -> Self {
        Self { since: Lacks::new(shards), before: Lacks::new(shards) }
    }

    /// A record found no room.
    pub(super) fn note(&mut self, record: &Record) {
        self.since.is_any = true;
        self.since.is_relied_on |= is_relied_on(record);
    }

    /// All records are lacking.
    pub(super) fn note_all(&mut self) {
        (self.since.is_any, self.since.is_relied_on) = (true, true);
    }

    /// The record of what came, from a publisher or from another shard, found no room.
    pub(super) fn note_arrival(&mut self, record: &Record) {
        let origin = match record {
            Record::Message(message) => message.origin,
            Record::Seen { shard, number, .. } => Some((*shard, *number)),
            _ => None,
        };
        if let Some((shard, number)) = origin {
            let lowest = &mut self.since.lowest[usize::from(shard)];
            *lowest = number.min(*lowest);
        }
        if let Record::Message(message) = record {
            let again = message.waiting.iter().map(|waiting| waiting.again);
            let numbers = again.chain([message.number]).filter(|number| *number > 0);
            self.since.messages.extend(numbers.map(|number| (number, origin)));
        }
    }

    /// Where a message of that number came from, if no record says so yet.
    pub(super) fn origin_of(&self, number: u64) -> Option<Origin> {
        self.before.messages.get(&number).copied().flatten()
    }

    /// Whether the message of that number, which waits for a session, is in no record yet.
    pub(super) fn has_message(&self, number: u64) -> bool {
        self.since.messages.contains_key(&number) || self.before.messages.contains_key(&number)
    }

    /// Whether something is lacking that no checkpoint under way has made up for, so that another one is due.
    pub(super) fn is_any(&self) -> bool {
        self.since.is_any || self.before.is_any
    }

    /// Whether something is lacking that is lost at a restart, with what is promised from now on.
    pub(super) fn is_relied_on(&self) -> bool {
        self.since.is_relied_on || self.before.is_relied_on
    }

    /// Below this number, all that came from a shard is written.
    pub(super) fn lowest(&self, shard: usize) -> u64 {
        self.since.lowest[shard].min(self.before.lowest[shard])
    }

    /// Everything in that state is going to be written again. A checkpoint that was begun before may have been given up.
    pub(super) fn begin_checkpoint(&mut self) {
        let Lacks { is_any, is_relied_on, lowest, messages } = &mut self.since;
        self.before.messages.extend(messages.drain());
        self.before.is_any |= std::mem::take(is_any);
        self.before.is_relied_on |= std::mem::take(is_relied_on);
        for (before, since) in self.before.lowest.iter_mut().zip(lowest) {
            *before = std::mem::replace(since, u64::MAX).min(*before);
        }
    }

    /// It is written and durable.
    pub(super) fn end_checkpoint(&mut self) {
        (self.before.is_any, self.before.is_relied_on) = (false, false);
        self.before.lowest.fill(u64::MAX);
        self.before.messages = HashMap::new();
    }
}

impl Lacks {
    fn new(shards: usize) -> Self {
        let lowest = vec![u64::MAX; shards];
        Self { is_any: false, is_relied_on: false, lowest, messages: HashMap::new() }
    }
}

/// Whether something is lost at a restart if the record is not there, rather than comes again.
fn is_relied_on(record: &Record) -> bool {
    match record {
        Record::Opened(_)
        | Record::Subscribed { .. }
        | Record::Message(_)
        | Record::Queued { .. }
        // It would stay with the other shard for ever.
        | Record::Seen { .. } => true,
        Record::Closed { .. }
        | Record::Ended { .. }
        | Record::Unsubscribed { .. }
        | Record::Begun { .. }
        | Record::Accepted { .. }
        | Record::Done { .. }
        | Record::Completed { .. }
        | Record::Noted { .. }
        | Record::Released { .. }
        | Record::Confirmed { .. }
        | Record::Checkpoint { .. } => false,
    }
}

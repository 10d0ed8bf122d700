//! Retained messages of a node, and which of them expire when.
//!
//! Always true: a message that expires has its place in the order of expiry for as long as it is retained, and no longer.

use std::{collections::BTreeSet, ops::Deref, sync::Arc};

use tidegate_journal::user_bytes;
use tidegate_message::{Identity, Instant};
use tidegate_topics::Retained;
use tidegate_wire::mqtt::stamp::Stamp;

use crate::{accounts::Account, message::Message};

/// Retained messages, with those that expire in order, and marks of topics that were cleared.
#[derive(Debug, Default)]
pub(crate) struct Expiring {
    messages: Retained<Kept>,
    order: BTreeSet<(Instant, Arc<str>)>,
    /// Those of `order` that are marks.
    marks: BTreeSet<(Instant, Arc<str>)>,
    /// Bytes that the marks take from the budget.
    mark_bytes: u64,
    /// By shard, bytes of the records of those that its journal has.
    record_bytes: Vec<u64>,
}

/// A retained message; or a mark, which has no payload: nothing is retained since that stamp.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) message: Arc<Message>,
    /// None where the node is by itself, or was when it was published.
    pub(crate) stamp: Option<Stamp>,
    /// Of two messages of one topic, the later one has the greater.
    pub(crate) sequence: u64,
    /// The client that published it, whose sessions may come and go: it has its own back by its name (MQTT-3.8.3-3).
    pub(crate) client: Option<Arc<str>>,
    /// The publisher, whose right to publish it still counts; none of the node itself, and where a former version wrote it down.
    pub(crate) source: Option<Arc<Identity>>,
    /// The generation of the rules by which its publisher was allowed, or an earlier one; none of those of an earlier process.
    pub(crate) allowed_by: Option<u64>,
    /// The generation of the routes by which it went to subscribers: those whose subscriptions are older, unless it was dropped on the way.
    pub(crate) routed_by: u64,
    /// The shard whose journal has it; none where no journal is to.
    pub(crate) owner: Option<usize>,
    /// In whose share it counts.
    pub(crate) account: Option<Arc<Account>>,
}

/// Whether a topic's retained message is written down: each process publishes `$SYS` itself.
pub(crate) fn is_written(topic: &str) -> bool {
    !topic.starts_with("$SYS/")
}

impl Kept {
    /// One of which no more is known.
    pub(crate) fn of(message: Arc<Message>, stamp: Option<Stamp>) -> Self {
        Self {
            message,
            stamp,
            sequence: 0,
            client: None,
            source: None,
            allowed_by: None,
            routed_by: 0,
            owner: None,
            account: None,
        }
    }

    /// Whether it stands for a value that was cleared.
    pub(crate) fn is_mark(&self) -> bool {
        self.message.payload.is_empty()
    }

    /// When it is forgotten by itself.
    fn expiry(&self) -> Option<(Instant, Arc<str>)> {
        self.message.expires.map(|at| (at, self.message.topic.clone()))
    }

    /// Bytes of its record in a journal: about, and not less.
    fn record_bytes(&self) -> u64 {
        let client = self.client.as_deref().map_or(0, str::len) as u64;
        let source = self.source.as_deref();
        let source = source.map_or(0, |source| user_bytes(&source.name, &source.groups));
        self.message.record_bytes() + client + source
    }

    fn begin(&self) {
        if let Some(account) = &self.account {
            self.message.hold_for(account);
            account.add_retained();
        }
    }

    /// It is retained no more.
    fn end(self) -> Arc<Message> {
        if let Some(account) = &self.account {
            self.message.release_for(account);
            account.subtract_retained();
        }
        self.message
    }
}

impl Deref for Expiring {
    type Target = Retained<Kept>;

    fn deref(&self) -> &Self::Target {
        &self.messages
    }
}

impl Expiring {
    /// Keeps a message for its topic.
    pub(crate) fn insert(&mut self, kept: Kept) {
        let (expiry, topic) = (kept.expiry(), kept.message.topic.clone());
        let (is_mark, charged) = (kept.is_mark(), kept.message.charged());
        kept.begin();
        if let Some(owner) = kept.owner {
            if self.record_bytes.len() <= owner {
                self.record_bytes.resize(owner + 1, 0);
            }
            self.record_bytes[owner] += kept.record_bytes();
        }
        if let Some(former) = self.messages.insert(&topic, kept) {
            let former = self.end(former);
            self.forget_expiry(&former);
        }
        if is_mark {
            self.mark_bytes += charged;
            self.marks.extend(expiry.clone());
        }
        self.order.extend(expiry);
    }

    /// Retained messages, without marks.
    pub(crate) fn values(&self) -> usize {
        self.messages.len() - self.marks.len()
    }

    /// Marks of topics that were cleared.
    pub(crate) fn marks(&self) -> usize {
        self.marks.len()
    }

    /// Takes out the oldest mark if there are more of them than that, or of more bytes.
    pub(crate) fn take_mark_beyond(
        &mut self,
        count_max: usize,
        bytes_max: u64,
    ) -> Option<Arc<Message>> {
        if self.marks.len() <= count_max && self.mark_bytes <= bytes_max {
            return None;
        }
        let (_, topic) = self.marks.first()?.clone();
        let oldest = self.messages.remove(&topic).map(|oldest| self.end(oldest))?;
        self.forget_expiry(&oldest);
        Some(oldest)
    }

    /// Forgets the message of a topic; false if there was none.
    pub(crate) fn remove(&mut self, topic: &str) -> bool {
        let Some(former) = self.messages.remove(topic) else { return false };
        let former = self.end(former);
        self.forget_expiry(&former);
        true
    }

    /// Calls `each` with the messages of the next `limit` topics after `topic`. Returns the last of them; nothing once all were
    /// seen.
    pub(crate) fn walk(
        &self,
        after: Option<&str>,
        limit: usize,
        each: impl FnMut(&Kept),
    ) -> Option<String> {
        self.messages.walk(after, limit, each)
    }

    /// When the first one expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes out those that have expired, at most `limit`, with their stamps.
    pub(crate) fn take_expired(
        &mut self,
        now: Instant,
        limit: usize,
    ) -> Vec<(Option<Stamp>, Arc<Message>)> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && self.next_expiry().is_some_and(|at| at <= now)
            && let Some((_, topic)) = self.order.pop_first()
        {
            if let Some(former) = self.messages.remove(&topic) {
                taken.push((former.stamp, self.end(former)));
            }
        }
        taken
    }

    /// Bytes of the records of those that the journal of that shard has: about, and not less.
    pub(crate) fn record_bytes(&self, shard: usize) -> u64 {
        self.record_bytes.get(shard).copied().unwrap_or(0)
    }

    /// It is retained no more.
    fn end(&mut self, former: Kept) -> Arc<Message> {
        if former.is_mark() {
            self.mark_bytes -= former.message.charged();
            former.expiry().iter().for_each(|it| _ = self.marks.remove(it));
        }
        if let Some(owner) = former.owner {
            self.record_bytes[owner] -= former.record_bytes();
        }
        former.end()
    }

    fn forget_expiry(&mut self, message: &Message) {
        if let Some(at) = message.expires {
            self.order.remove(&(at, message.topic.clone()));
        }
    }
}

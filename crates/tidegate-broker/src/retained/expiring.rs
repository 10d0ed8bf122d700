//! Retained messages of a node, and which of them expire when.
//!
//! Always true: a message that expires has its place in the order of expiry for as long as it is retained, and no longer.

use std::{collections::BTreeSet, ops::Deref, sync::Arc};

use tidegate_message::{Identity, Instant};

use super::Retained;
use crate::{accounts::Account, message::Message};

/// Retained messages, with those that expire in order.
#[derive(Debug, Default)]
pub(crate) struct Expiring {
    messages: Retained<Kept>,
    order: BTreeSet<(Instant, Arc<str>)>,
}

/// A retained message.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) message: Arc<Message>,
    /// Of two messages of one topic, the later one has the greater.
    pub(crate) sequence: u64,
    /// The client that published it, whose sessions may come and go: it has its own back by its name (MQTT-3.8.3-3).
    pub(crate) client: Option<Arc<str>>,
    /// The publisher, whose right to publish it still counts; none of the node itself, and where a former version wrote it down.
    pub(crate) source: Option<Arc<Identity>>,
    /// The generation of the rules by which it was published; none of those of an earlier process.
    pub(crate) allowed_by: Option<u64>,
    /// In whose share it counts.
    pub(crate) account: Option<Arc<Account>>,
}

impl Kept {
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
        let message = &kept.message;
        let expiry = message.expires.map(|at| (at, message.topic.clone()));
        let topic = message.topic.clone();
        kept.begin();
        if let Some(former) = self.messages.insert(&topic, kept) {
            self.forget_expiry(&former.end());
        }
        self.order.extend(expiry);
    }

    /// Forgets the message of a topic; false if there was none.
    pub(crate) fn remove(&mut self, topic: &str) -> bool {
        let Some(former) = self.messages.remove(topic) else { return false };
        self.forget_expiry(&former.end());
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

    /// Takes out those that have expired, at most `limit`.
    pub(crate) fn take_expired(&mut self, now: Instant, limit: usize) -> Vec<Arc<Message>> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && self.next_expiry().is_some_and(|at| at <= now)
            && let Some((_, topic)) = self.order.pop_first()
        {
            taken.extend(self.messages.remove(&topic).map(Kept::end));
        }
        taken
    }

    fn forget_expiry(&mut self, message: &Message) {
        if let Some(at) = message.expires {
            self.order.remove(&(at, message.topic.clone()));
        }
    }
}

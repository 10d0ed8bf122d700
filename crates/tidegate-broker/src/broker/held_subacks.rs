//! SUBACKs that wait until the shell lets them go, so that a service can carry a subscription elsewhere before its client relies on it.
//!
//! A client that publishes to another node as soon as it has its SUBACK expects the message. The service that tells other nodes of
//! subscriptions has the SUBACK held, and releases it once they know; the bound is for nodes that do not answer.
//!
//! Always true: a SUBACK leaves at the latest after the bound, and no more than [`HELD_MAX`] wait; messages by the subscription, and
//! answers to other packets, do not wait for it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tidegate_message::{IdentityKind, Instant};
use tidegate_wire::mqtt::{Suback, SubscribeFilter};

use super::{Broker, Output};
use crate::{slab::Key, timers::Timer};

/// SUBACKs that wait at a shard: the oldest leaves where another comes.
const HELD_MAX: usize = 1024;

/// The SUBACKs of a shard that wait.
#[derive(Debug, Default)]
pub(super) struct HeldSubacks {
    /// How long each may.
    bound: Option<Duration>,
    /// By the number that the shell releases them by, oldest first.
    waiting: BTreeMap<u64, (Key, Instant, Suback)>,
    last: u64,
}

impl Broker {
    /// Holds SUBACKs of clients from now on, each until [`Broker::release_suback`] but at most for `bound`; the shell learns of each by
    /// [`Output::Subscribed`]. With none they leave at once, also those that wait.
    pub fn hold_subacks(&mut self, bound: Option<Duration>) {
        self.held_subacks.bound = bound;
        if bound.is_none() {
            let all: Vec<u64> = self.held_subacks.waiting.keys().copied().collect();
            all.into_iter().for_each(|number| self.release_suback(number));
        }
    }

    /// Lets a SUBACK go; nothing if it has gone already.
    pub fn release_suback(&mut self, number: u64) {
        let Some((key, at, suback)) = self.held_subacks.waiting.remove(&number) else { return };
        self.timers.cancel(Some(at), Timer::Suback(number));
        let connection = self.connections.get(key);
        let Some(connection) = connection.filter(|connection| !connection.is_closing) else {
            return;
        };
        if let Some(session) = connection.session
            && self.sessions.get(session).is_some_and(|session| session.number > 0)
        {
            // Records of others came meanwhile.
            self.depend_on_all();
        }
        self.give_suback(key, suback);
    }

    /// Gives a client the answer to its subscriptions, or has it wait.
    pub(super) fn hold_suback(
        &mut self,
        now: Instant,
        key: Key,
        asked: &[SubscribeFilter],
        suback: Suback,
    ) {
        let session = self.connections.get(key).and_then(|connection| connection.session);
        let session = session.and_then(|session| self.sessions.get(session));
        let is_part = session.is_none_or(|session| {
            let config = &session.config;
            let is_of_member = config.is_peer || config.leaf.is_some();
            is_of_member || session.identity.kind == IdentityKind::Internal
        });
        let granted = asked.iter().zip(&suback.reasons).filter(|(_, reason)| !reason.is_failure());
        let filters: Vec<Arc<str>> =
            granted.map(|(asked, _)| Arc::from(asked.filter.as_str())).collect();
        let Some(bound) = self.held_subacks.bound.filter(|_| !is_part && !filters.is_empty())
        else {
            return self.give_suback(key, suback);
        };
        if self.held_subacks.waiting.len() >= HELD_MAX
            && let Some((&oldest, _)) = self.held_subacks.waiting.first_key_value()
        {
            self.release_suback(oldest);
        }
        let (held, at) = (&mut self.held_subacks, now + bound);
        held.last += 1;
        held.waiting.insert(held.last, (key, at, suback));
        self.timers.set(at, Timer::Suback(held.last));
        self.outputs.push_back(Output::Subscribed(key, held.last, filters));
    }
}

//! How far one member has been told of the clients here.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use tidegate_message::Instant;
use tidegate_wire::{ClientClaim, ClientClaims, ClientRoom, ClientVerdict};

use super::{Client, DISPUTES_MAX};

/// A member that is linked.
#[derive(Debug)]
pub(super) struct Peer {
    /// When it was linked.
    since: Instant,
    /// How many clients it was told that there are, once it was.
    greeted: Option<u32>,
    /// How many it has.
    heard: Option<u32>,
    /// All clients are told, those from this one on next.
    telling: Option<Bound<Arc<str>>>,
    /// Clients to be told. They are clients here, each once.
    fresh: BTreeSet<Arc<str>>,
    /// Verdicts to be told, each on a client that is here as well.
    verdicts: BTreeMap<Arc<str>, ClientVerdict>,
    /// Clients that another identity has at that member.
    disputes: BTreeSet<Arc<str>>,
    /// Those that have left since, to be told. They were disputes.
    left: BTreeSet<Arc<str>>,
}

impl Peer {
    pub(super) fn new(since: Instant) -> Self {
        Self {
            since,
            greeted: None,
            heard: None,
            telling: None,
            fresh: BTreeSet::new(),
            verdicts: BTreeMap::new(),
            disputes: BTreeSet::new(),
            left: BTreeSet::new(),
        }
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// How many clients it is to be told first; none if it has been told.
    pub(super) fn greet(&mut self, count: u32) -> Option<u32> {
        let is_first = self.greeted.is_none();
        is_first.then(|| *self.greeted.insert(count))
    }

    pub(super) fn heard(&mut self, count: u32) {
        self.heard = Some(count);
    }

    /// Begins to tell all clients, if both have said how many they have, and it is for this node to tell: it has fewer, or as many and
    /// `is_lower`.
    pub(super) fn compare(&mut self, is_lower: bool) {
        let (Some(ours), Some(theirs)) = (self.greeted, self.heard) else { return };
        if ours < theirs || (ours == theirs && is_lower) {
            self.telling = Some(Bound::Unbounded);
        }
    }

    pub(super) fn tell(&mut self, client: Arc<str>) {
        self.fresh.insert(client);
    }

    pub(super) fn rule(&mut self, client: &Arc<str>, verdict: ClientVerdict) {
        self.verdicts.insert(client.clone(), verdict);
    }

    /// Notes a dispute; whether it was none before.
    pub(super) fn dispute(&mut self, client: &Arc<str>) -> bool {
        self.left.remove(client);
        self.disputes.len() < DISPUTES_MAX && self.disputes.insert(client.clone())
    }

    /// The client of that member is gone.
    pub(super) fn end_dispute(&mut self, client: &str) {
        self.disputes.remove(client);
    }

    /// The client here is gone.
    pub(super) fn leave_dispute(&mut self, client: &str) {
        self.left.extend(self.disputes.take(client));
    }

    pub(super) fn disputes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.disputes.iter()
    }

    /// The record that it is sent next.
    pub(super) fn next(&mut self, own: &BTreeMap<Arc<str>, Client>) -> Option<ClientClaims> {
        if !self.is_heard() {
            return None;
        }
        let (mut record, mut room) = (ClientClaims::default(), ClientRoom::default());
        while let Some(client) = self.left.first() {
            if !room.take(client.len()) {
                return Some(record);
            }
            record.ended.extend(self.left.pop_first().map(|client| client.to_string()));
        }
        while let Some(entry) = self.verdicts.first_entry() {
            if !room.take(entry.get().client.len() + entry.get().owner.name.len()) {
                return Some(record);
            }
            record.verdicts.push(entry.remove());
        }
        while let Some(client) = self.fresh.first() {
            if let Some(client) = own.get(client) {
                if !room.take(client.client.len() + client.owner.len()) {
                    return Some(record);
                }
                record.claims.push(claim(client));
            }
            self.fresh.pop_first();
        }
        if let Some(behind) = self.telling.take() {
            for (id, client) in own.range::<Arc<str>, _>((behind, Bound::Unbounded)) {
                if !client.is_connected {
                    continue;
                }
                if !room.take(client.client.len() + client.owner.len()) {
                    self.telling = Some(Bound::Included(id.clone()));
                    break;
                }
                record.claims.push(claim(client));
            }
        }
        (!record.is_empty()).then_some(record)
    }
}

fn claim(client: &Client) -> ClientClaim {
    ClientClaim {
        client: client.client.to_string(),
        owner: client.owner(),
        began: client.began,
        is_clean: client.is_clean,
        is_connected: client.is_connected,
    }
}

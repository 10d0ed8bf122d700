//! Subscriptions that wait until the members that are reached send what matches them.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tidegate_message::Instant;
use tidegate_wire::NodeId;

/// Longest wait of a subscription.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Most subscriptions that wait: the oldest is released where another comes.
const WAITS_MAX: usize = 4096;

/// Subscriptions that wait, each with a `T` that releases it when it is dropped.
#[derive(Debug)]
pub struct Waiting<T> {
    /// In the order of their ends.
    waits: VecDeque<Wait<T>>,
    peers: BTreeMap<NodeId, Peer>,
    /// Times that a member was waited for in vain.
    missed: u64,
}

#[derive(Debug)]
struct Wait<T> {
    generation: u64,
    until: Instant,
    _releases: T,
}

#[derive(Debug)]
struct Peer {
    /// The generation that it holds.
    held: u64,
    /// The generation at which it missed a wait: it is not waited for until it holds that one.
    missed: Option<u64>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { waits: VecDeque::new(), peers: BTreeMap::new(), missed: 0 }
    }
}

impl<T> Waiting<T> {
    /// Times that a member was waited for in vain.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Members that are linked and do not answer: subscriptions do not wait for them.
    pub fn silent(&self) -> impl Iterator<Item = NodeId> {
        let silent = self.peers.iter().filter(|(_, peer)| peer.missed.is_some());
        silent.map(|(node, _)| *node)
    }

    /// A member is reached.
    pub fn linked(&mut self, peer: NodeId) {
        self.peers.insert(peer, Peer { held: 0, missed: None });
    }

    /// A member is gone: what waits for no other is released.
    pub fn unlinked(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
        self.release();
    }

    /// A member holds all filters up to a generation.
    pub fn held(&mut self, peer: NodeId, generation: u64) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.held = peer.held.max(generation);
            peer.missed.take_if(|missed| *missed <= peer.held);
        }
        self.release();
    }

    /// A subscription waits until members hold that generation; it is released at once if they do.
    pub fn wait(&mut self, now: Instant, generation: u64, releases: T) {
        if !self.is_held(generation) {
            if self.waits.len() >= WAITS_MAX {
                self.waits.pop_front();
            }
            self.waits.push_back(Wait { generation, until: now + WAIT_MAX, _releases: releases });
        }
    }

    /// When [`Waiting::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waits.front().map(|wait| wait.until)
    }

    /// Releases those that have waited for the longest time that one may.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(wait) = self.waits.pop_front_if(|wait| wait.until <= now) {
            for peer in self.peers.values_mut() {
                if peer.missed.is_none() && peer.held < wait.generation {
                    peer.missed = Some(wait.generation);
                    self.missed += 1;
                }
            }
        }
        self.release();
    }

    fn is_held(&self, generation: u64) -> bool {
        self.peers.values().all(|peer| peer.missed.is_some() || peer.held >= generation)
    }

    fn release(&mut self) {
        let least = self.peers.values().filter(|peer| peer.missed.is_none()).map(|peer| peer.held);
        let least = least.min().unwrap_or(u64::MAX);
        self.waits.retain(|wait| wait.generation > least);
    }
}

//! Peers, and what is under way to each of them.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    ops::{Index, IndexMut},
    time::Duration,
};

use tidegate_message::Instant;

use super::{
    assembly::Assembly,
    slab::{Key, Slab},
    transmission::{Backoff, Random},
};

/// A peer that has not shown that it is where it says is sent at most this many times the bytes that it has sent.
const AMPLIFICATION_MAX: u64 = 3;
/// The part of that left for pings: four bytes, sent five times.
pub(super) const PING_RESERVE: u64 = 20;
/// How many places are looked at for one that can be given to another peer.
const EVICTION_STEPS: usize = 64;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) last_heard: Instant,
    received_bytes: u64,
    sent_bytes: u64,
    /// Whether it has answered a message that only its address could have received, or need not.
    pub(super) is_validated: bool,
    next_id: u16,
    /// Smoothed round trip time, once a confirmable message was acknowledged at the first attempt.
    pub(super) round_trip: Option<Duration>,
    /// The one confirmable message that waits for its acknowledgement (NSTART is 1).
    pub(super) in_flight: Option<InFlight>,
    /// Responses that travel by themselves and have not left.
    pub(super) waiting: VecDeque<Vec<u8>>,
    /// Requests that the shell has not answered.
    pub(super) open: usize,
    pub(super) assemblies: Vec<Assembly>,
    pub(super) observers: Vec<Key>,
    /// Observers whose newest state has not been sent, in the order in which it came.
    pub(super) behind: VecDeque<Key>,
    /// Before this no notification leaves that is not confirmable.
    pub(super) next_notification: Instant,
    /// Its entry among the timers.
    pub(super) due: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) id: u16,
    pub(super) purpose: Purpose,
    pub(super) datagram: Vec<u8>,
    pub(super) backoff: Backoff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To see that the peer is where it says.
    Ping,
    /// A response that travels by itself.
    Response,
    /// A notification of this observer.
    Notification(Key),
}

impl Peer {
    pub(super) fn heard(&mut self, now: Instant, bytes: usize) {
        self.last_heard = now;
        self.received_bytes = self.received_bytes.saturating_add(bytes as u64);
    }

    /// Whether so many bytes may be sent, and as many after them as are reserved; they are counted then.
    pub(super) fn charge(&mut self, bytes: usize, reserve: u64) -> bool {
        if self.is_validated {
            return true;
        }
        let sent = self.sent_bytes.saturating_add(bytes as u64);
        let most = self.received_bytes.saturating_mul(AMPLIFICATION_MAX);
        let may = sent.saturating_add(reserve) <= most;
        if may {
            self.sent_bytes = sent;
        }
        may
    }

    pub(super) fn next_id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// One round trip took so long.
    pub(super) fn measured(&mut self, time: Duration) {
        self.round_trip = Some(match self.round_trip {
            Some(smoothed) => (7 * smoothed + time) / 8,
            None => time,
        });
    }

    fn is_idle(&self, now: Instant, idle_after: Duration) -> bool {
        self.in_flight.is_none()
            && self.waiting.is_empty()
            && self.open == 0
            && self.assemblies.is_empty()
            && self.observers.is_empty()
            // Until then its confirmable messages may be sent again, and would no longer be known.
            && now.since(self.last_heard) >= idle_after
    }
}

#[derive(Debug)]
pub(super) struct Peers {
    peers: Slab<Peer>,
    by_address: HashMap<SocketAddr, Key>,
    peers_max: usize,
    hand: usize,
}

impl Peers {
    pub(super) fn new(peers_max: usize) -> Self {
        Self { peers: Slab::new(), by_address: HashMap::new(), peers_max, hand: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn find(&self, address: SocketAddr) -> Option<Key> {
        self.by_address.get(&address).copied()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Peer> {
        self.peers.get(key)
    }

    /// The peer at an address, known or new; none if all places are taken by peers that something is under way with, or that were
    /// heard of less than `idle_after` ago.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        address: SocketAddr,
        idle_after: Duration,
        is_validated: bool,
        random: &mut Random,
    ) -> Option<Key> {
        if let Some(key) = self.find(address) {
            return Some(key);
        }
        if self.peers.len() >= self.peers_max && !self.evict(now, idle_after) {
            return None;
        }
        let key = self.peers.insert(Peer {
            address,
            last_heard: now,
            received_bytes: 0,
            sent_bytes: 0,
            is_validated,
            // It cannot be foreseen elsewhere.
            next_id: random.next_u16(),
            round_trip: None,
            in_flight: None,
            waiting: VecDeque::new(),
            open: 0,
            assemblies: Vec::new(),
            observers: Vec::new(),
            behind: VecDeque::new(),
            next_notification: now,
            due: None,
        });
        self.by_address.insert(address, key);
        Some(key)
    }

    /// Takes away the first idle peer that a hand finds on its way round.
    fn evict(&mut self, now: Instant, idle_after: Duration) -> bool {
        for _ in 0..EVICTION_STEPS {
            self.hand = (self.hand + 1) % self.peers.places().max(1);
            let Some((key, peer)) = self.peers.at_mut(self.hand) else { continue };
            if peer.is_idle(now, idle_after) {
                let address = peer.address;
                self.peers.remove(key);
                self.by_address.remove(&address);
                return true;
            }
        }
        false
    }
}

impl Index<Key> for Peers {
    type Output = Peer;

    fn index(&self, key: Key) -> &Peer {
        &self.peers[key]
    }
}

impl IndexMut<Key> for Peers {
    fn index_mut(&mut self, key: Key) -> &mut Peer {
        &mut self.peers[key]
    }
}

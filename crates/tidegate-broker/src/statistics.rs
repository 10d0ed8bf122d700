//! Counts and states that a broker reports.

use std::sync::Arc;

use tidegate_message::{IdentityKind, Instant};

use crate::dropped::Dropped;

/// Counts of a shard, or of a node. Messages are PUBLISH packets; bytes are of their payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections now.
    pub connections: u64,
    /// Most connections of the node at a time, also in the counts of one shard.
    pub connections_peak: u64,
    /// Sessions now, with and without connection.
    pub sessions: u64,
    /// Connections that were accepted.
    pub connects: u64,
    /// Sessions that ended by their expiry.
    pub expired_sessions: u64,
    /// Messages received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Messages handed to subscribers' connections.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets of all kinds received.
    pub packets_received: u64,
    /// Packets of all kinds that were sent.
    pub packets_sent: u64,
    /// Bytes received after CONNECT, without those of TLS and WebSocket.
    pub stream_bytes_received: u64,
    /// Bytes sent, without those of TLS and WebSocket.
    pub stream_bytes_sent: u64,
    /// Messages that were refused: not allowed, no room.
    pub refused: u64,
    /// Messages that did not reach a subscriber.
    pub dropped: Dropped,
    /// Messages of operators that came from too many messages.
    pub hops_exceeded: u64,
    /// Subscribers that were disconnected because their queue was full.
    pub overflow_disconnects: u64,
    /// Large messages that had to wait for the schedule.
    pub withheld: u64,
    /// Messages that were put on disk because they found no room in memory, each once however many wait for it.
    pub spilled: u64,
    /// Messages that the disk did not take or give back.
    pub spill_failures: u64,
    /// Records of what is to outlive the process that could not be written.
    pub journal_failures: u64,
    /// Messages that were refused, among others, because they could not be kept.
    pub journal_refused: u64,
}

impl Statistics {
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.connections += other.connections;
        self.connections_peak = self.connections_peak.max(other.connections_peak);
        self.sessions += other.sessions;
        self.connects += other.connects;
        self.expired_sessions += other.expired_sessions;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.packets_received += other.packets_received;
        self.packets_sent += other.packets_sent;
        self.stream_bytes_received += other.stream_bytes_received;
        self.stream_bytes_sent += other.stream_bytes_sent;
        self.refused += other.refused;
        self.dropped.add(other.dropped);
        self.hops_exceeded += other.hops_exceeded;
        self.overflow_disconnects += other.overflow_disconnects;
        self.withheld += other.withheld;
        self.spilled += other.spilled;
        self.spill_failures += other.spill_failures;
        self.journal_failures += other.journal_failures;
        self.journal_refused += other.journal_refused;
        self
    }
}

/// The state of a session, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionReport {
    /// The client's name.
    pub client_id: Arc<str>,
    /// How its owner proved who it is.
    pub kind: IdentityKind,
    /// Its user.
    pub user: Arc<str>,
    /// Whether it is connected.
    pub connected: bool,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Messages that wait.
    pub queued: usize,
    /// Bytes of those in memory, each message counted whole.
    pub queued_bytes: u64,
    /// Messages of them that are on disk.
    pub spilled: usize,
    /// Their bytes, each message counted whole.
    pub spilled_bytes: u64,
    /// Messages in flight.
    pub inflight: usize,
    /// Bytes of messages kept for another try.
    pub inflight_bytes: u64,
    /// Messages that did not reach it.
    pub dropped: Dropped,
    /// When it ends, since it is of a part of the node that is no longer configured, or for a member of the fabric that is not known.
    pub grace_ends: Option<Instant>,
}

impl SessionReport {
    /// Bytes of messages that are held in memory for it.
    pub fn held_bytes(&self) -> u64 {
        self.queued_bytes + self.inflight_bytes
    }
}

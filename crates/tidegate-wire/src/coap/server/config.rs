//! Where a server's bounds are, and what it has counted.

use std::time::Duration;

use crate::coap::{Block, Link, Transmission};

/// Where the bounds are. The defaults suit tens of thousands of devices that publish about once a second.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Times of retransmission; as the devices have them.
    pub transmission: Transmission,
    /// Most peers that are known at a time (65,536). A new peer when all are in use is answered 5.03.
    pub peers_max: usize,
    /// Most requests that are remembered to know their copies (450,000, 56 MB when all are in use, and 70 for a moment before). Those of the last 45 s must find
    /// room, so this divided by 45 is how many confirmable requests a second are taken for long: 10,000.
    pub exchanges_max: usize,
    /// Most requests that the shell has not answered (4096).
    pub open_max: usize,
    /// The same, for one peer (64).
    pub open_per_peer_max: usize,
    /// Longest payload, whole (256 KiB). A longer one is refused by 4.13 with Size1.
    pub payload_bytes_max: usize,
    /// Most bytes of payloads that arrive in blocks or wait for an answer (16 MiB).
    pub held_bytes_max: usize,
    /// Most payloads that one peer sends in blocks at a time (2).
    pub assemblies_per_peer_max: usize,
    /// How long a next block may take (93 s, after which a client has given up).
    pub assembly_timeout: Duration,
    /// Most observations (16,384).
    pub observers_max: usize,
    /// Most observations of one peer (64). Beyond both, a request to follow is answered as one to read.
    pub observers_per_peer_max: usize,
    /// Largest block that is sent is `16 << size_exponent` bytes (6, 1024 bytes).
    pub size_exponent: u8,
    /// Longest path (1024).
    pub path_bytes_max: usize,
    /// Most levels of a path (64).
    pub path_levels_max: usize,
    /// How long an acknowledgement waits for the shell's answer (500 ms), less than any device's ACK_TIMEOUT.
    pub separate_after: Duration,
    /// How long the shell may take to answer (30 s); then it is 5.04.
    pub answer_timeout: Duration,
    /// When a peer that was answered 5.03 for want of room may try again (5 s).
    pub retry_after: Duration,
    /// Whether peers must show where they are before they are sent more than three times what they sent (true). False is for
    /// networks where no one can send with another's address.
    pub validates_peers: bool,
    /// The links in `/.well-known/core`.
    pub links: Vec<Link>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let transmission = Transmission::default();
        Self {
            transmission,
            peers_max: 65_536,
            exchanges_max: 450_000,
            open_max: 4096,
            open_per_peer_max: 64,
            payload_bytes_max: 256 << 10,
            held_bytes_max: 16 << 20,
            assemblies_per_peer_max: 2,
            assembly_timeout: transmission.transmit_wait(),
            observers_max: 16_384,
            observers_per_peer_max: 64,
            size_exponent: Block::SIZE_EXPONENT_MAX,
            path_bytes_max: 1024,
            path_levels_max: 64,
            separate_after: Duration::from_millis(500),
            answer_timeout: Duration::from_secs(30),
            retry_after: Duration::from_secs(5),
            validates_peers: true,
            links: Vec::new(),
        }
    }
}

/// Counts since the server began, and what it holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Datagrams that arrived.
    pub received: u64,
    /// Datagrams that left.
    pub sent: u64,
    /// Datagrams that are no message.
    pub malformed: u64,
    /// Requests that cannot be served, by their code or options.
    pub refused: u64,
    /// Copies of requests that had arrived before.
    pub duplicates: u64,
    /// Requests that were answered 5.03 for want of room.
    pub busy: u64,
    /// Requests that the shell did not answer in time.
    pub unanswered: u64,
    /// Payloads in blocks that were not finished.
    pub abandoned: u64,
    /// Confirmable messages sent again.
    pub retransmitted: u64,
    /// Confirmable messages that were never acknowledged.
    pub timed_out: u64,
    /// Notifications that left.
    pub notified: u64,
    /// States that a newer one replaced before they were sent, for each observer.
    pub superseded: u64,
    /// Peers that are known.
    pub peers: usize,
    /// Requests that are remembered.
    pub exchanges: usize,
    /// Observations.
    pub observers: usize,
    /// Requests that the shell has not answered.
    pub open: usize,
    /// Bytes of payloads that arrive in blocks or wait for an answer.
    pub held_bytes: usize,
}

//! The queues and counters that both kinds of media share.

use std::{collections::VecDeque, time::Duration};

use tidegate_message::Instant;

use super::PacketRef;

/// Counts in one direction so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that entered, dropped ones included.
    pub in_packets: u64,
    /// Their bytes.
    pub in_bytes: u64,
    /// Packets that left, delivered or handed to the access point.
    pub out_packets: u64,
    /// Their bytes.
    pub out_bytes: u64,
    /// Packets lost at random.
    pub dropped_loss: u64,
    /// Packets that found the queue full.
    pub dropped_queue: u64,
    /// Wi-Fi packets given up after their retries.
    pub dropped_retry: u64,
    /// Wi-Fi MPDUs sent in vain.
    pub retries: u64,
    /// Transmissions lost because another station began in the same slot.
    pub collisions: u64,
    /// Time that the line or channel was busy with this direction, collisions left out.
    pub busy: Duration,
}

/// Packets under way that arrive in the order they were pushed.
#[derive(Debug)]
pub(super) struct Pipeline<T> {
    packets: VecDeque<(Instant, usize, PacketRef<T>)>,
    last_due: Instant,
}

impl<T> Pipeline<T> {
    pub(super) fn new() -> Self {
        Self { packets: VecDeque::new(), last_due: Instant::MIN }
    }

    /// Adds a packet for `port`, due at the given time but never before the one pushed before it.
    pub(super) fn push(&mut self, due: Instant, port: usize, packet: PacketRef<T>) {
        self.last_due = self.last_due.max(due);
        self.packets.push_back((self.last_due, port, packet));
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.packets.front().map(|(due, ..)| *due)
    }

    /// Delivers what is due.
    pub(super) fn drain(
        &mut self,
        at: Instant,
        mut deliver: impl FnMut(usize, PacketRef<T>, Instant),
    ) {
        while self.next_due().is_some_and(|due| due <= at) {
            let (due, port, packet) = self.packets.pop_front().expect("a packet is due");
            deliver(port, packet, due);
        }
    }
}

/// The earlier of two times that may not be.
pub(super) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

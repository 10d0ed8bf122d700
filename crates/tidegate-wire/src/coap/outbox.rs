//! Datagrams that wait for the socket, in one buffer that is used again.

use std::{collections::VecDeque, net::SocketAddr};

/// A datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit<'a> {
    /// To whom.
    pub peer: SocketAddr,
    /// Its bytes.
    pub datagram: &'a [u8],
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    read: usize,
    waiting: VecDeque<(SocketAddr, usize)>,
}

impl Outbox {
    pub(super) fn push(&mut self, peer: SocketAddr, datagram: &[u8]) {
        if self.waiting.is_empty() {
            self.bytes.clear();
            self.read = 0;
        }
        self.bytes.extend_from_slice(datagram);
        self.waiting.push_back((peer, datagram.len()));
    }

    pub(super) fn pop(&mut self) -> Option<Transmit<'_>> {
        let (peer, count) = self.waiting.pop_front()?;
        let start = self.read;
        self.read += count;
        Some(Transmit { peer, datagram: &self.bytes[start..self.read] })
    }
}

//! Memory for input that clients send before CONNACK, when their identity is not known yet.
//!
//! It is apart from the node's budget: input of strangers takes nothing from authenticated clients. Where it is full, the
//! largest of the address that holds most goes, so that no CONNECT is refused for others that were begun and not ended.
//!
//! Always true: the held bytes are at most the limit; a connection holds at most one packet, which its reader bounds.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use tidegate_auth::heaviest::Heaviest;

/// Bytes that all shards of a node hold of it together.
pub(super) const LOBBY_BYTES: usize = 16 << 20;

/// The part that a shard holds.
#[derive(Debug)]
pub(super) struct Lobby {
    limit: usize,
    used: usize,
    held: HashMap<usize, (Option<IpAddr>, usize)>,
    by_address: Heaviest<Option<IpAddr>>,
    /// Address, bytes and slot: the largest of an address is its last.
    largest: BTreeSet<(Option<IpAddr>, usize, usize)>,
}

/// How to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It is held.
    Held,
    /// The connection of that slot is to go, which may be the one that asks; then ask again.
    After(usize),
}

impl Lobby {
    /// Room for `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            used: 0,
            held: HashMap::new(),
            by_address: Heaviest::default(),
            largest: BTreeSet::new(),
        }
    }

    /// Holds `bytes` for a connection, in place of what it held.
    pub(super) fn hold(&mut self, slot: usize, address: Option<IpAddr>, bytes: usize) -> Room {
        self.release(slot);
        if bytes == 0 {
            return Room::Held;
        }
        if self.used + bytes > self.limit {
            let own = self.by_address.of(&address) + bytes;
            let most = self.by_address.first_but(&address).filter(|(_, held)| *held > own);
            let of = most.map_or(address, |(other, _)| other);
            let of_it = self.largest.range((of, 0, 0)..=(of, usize::MAX, usize::MAX));
            return match of_it.last() {
                Some((_, held, at)) if of != address || *held > bytes => Room::After(*at),
                _ => Room::After(slot),
            };
        }
        self.used += bytes;
        self.held.insert(slot, (address, bytes));
        self.by_address.add(address, bytes);
        self.largest.insert((address, bytes, slot));
        Room::Held
    }

    /// A connection holds nothing any more.
    pub(super) fn release(&mut self, slot: usize) {
        let Some((address, bytes)) = self.held.remove(&slot) else { return };
        self.used -= bytes;
        self.by_address.subtract(address, bytes);
        self.largest.remove(&(address, bytes, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> Option<IpAddr> {
        Some([192, 0, 2, number].into())
    }

    #[test]
    fn the_largest_of_the_address_with_most_goes() {
        let mut lobby = Lobby::new(1_000);
        for (slot, bytes) in [(1, 300), (2, 400), (3, 200)] {
            assert_eq!(lobby.hold(slot, address(1), bytes), Room::Held);
        }
        assert_eq!(lobby.hold(4, address(2), 50), Room::Held);
        assert_eq!(lobby.hold(5, address(3), 100), Room::After(2));
        lobby.release(2);
        assert_eq!(lobby.hold(5, address(3), 100), Room::Held);
        // The connection that holds most makes room for itself.
        assert_eq!(lobby.hold(6, address(1), 400), Room::After(6));
        assert_eq!(lobby.hold(6, address(1), 250), Room::Held);
        assert_eq!(lobby.hold(7, address(1), 200), Room::After(1));
        // More of what is held takes the place of it.
        assert_eq!(lobby.hold(4, address(2), 100), Room::Held);
        for slot in 0..9 {
            lobby.release(slot);
        }
        assert_eq!((lobby.used, lobby.largest.len()), (0, 0));
    }

    #[test]
    fn strangers_keep_nobody_out() {
        let mut lobby = Lobby::new(1 << 20);
        let mut slots: Vec<usize> = Vec::new();
        for slot in 0..541 {
            while let Room::After(gone) = lobby.hold(slot, address(1), 250_000) {
                lobby.release(gone);
                slots.retain(|other| *other != gone);
                if gone == slot {
                    break;
                }
            }
            slots.push(slot);
        }
        let honest = 1_000;
        while let Room::After(gone) = lobby.hold(honest, address(2), 200_000) {
            assert_ne!(gone, honest);
            lobby.release(gone);
        }
        assert!(lobby.used <= 1 << 20);
    }
}

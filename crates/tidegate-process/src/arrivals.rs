//! Peers that are being let in: how many at a time, and of which address.
//!
//! A peer that has not shown who it is costs a socket, memory and a slot. Slots are bounded; where they are all taken, or those of one
//! address, the one that has taken longest gives way to the newcomer, of the address that has most. An honest handshake is over
//! after a few round trips, one that says nothing lasts until its deadline: so what goes is what says nothing.
//!
//! Always true: at most so many are under way, and of one address; a newcomer always gets a slot.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use tidegate_auth::heaviest::Heaviest;
use tidegate_message::{Instant, LogLimiter};
use tokio::task::{AbortHandle, JoinError, JoinSet};

use crate::descriptors::Front;

/// Handshakes under way, each with what ends it.
#[derive(Debug)]
pub struct Arrivals<T> {
    all_max: usize,
    address_max: usize,
    /// By number, which counts up.
    under_way: BTreeMap<u64, (IpAddr, T)>,
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
    counts: Heaviest<IpAddr>,
    next: u64,
}

impl<T> Arrivals<T> {
    /// At most `all_max` at a time, of one address `address_max`; both at least 1.
    pub fn new(all_max: usize, address_max: usize) -> Self {
        Self {
            all_max: all_max.max(1),
            address_max: address_max.max(1),
            under_way: BTreeMap::new(),
            by_address: HashMap::new(),
            counts: Heaviest::default(),
            next: 0,
        }
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The number that the next one has.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// One more from `address`, ended by `handle`. Gives the one that gives way to it, if one has to.
    pub fn begin(&mut self, address: IpAddr, handle: T) -> Option<T> {
        let address = network(address);
        let own = self.by_address.get(&address).map_or(0, BTreeSet::len);
        let gone = if own >= self.address_max {
            self.end_oldest(address)
        } else if self.under_way.len() >= self.all_max {
            self.give_way()
        } else {
            None
        };
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number, (address, handle));
        self.by_address.entry(address).or_default().insert(number);
        self.counts.add(address, 1);
        gone
    }

    /// The one that has taken longest.
    pub fn oldest(&self) -> Option<&T> {
        self.under_way.values().next().map(|(_, handle)| handle)
    }

    /// Ends the one that has taken longest, of the address that has most; none if none is under way.
    pub fn give_way(&mut self) -> Option<T> {
        self.end_oldest(self.counts.first()?)
    }

    fn end_oldest(&mut self, address: IpAddr) -> Option<T> {
        let oldest = self.by_address.get(&address)?.first().copied()?;
        self.end(oldest)
    }

    /// One is over; gives what would have ended it, if it was under way.
    pub fn end(&mut self, number: u64) -> Option<T> {
        let (address, handle) = self.under_way.remove(&number)?;
        self.counts.subtract(address, 1);
        if let Some(numbers) = self.by_address.get_mut(&address) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_address.remove(&address);
            }
        }
        Some(handle)
    }
}

impl Arrivals<AbortHandle> {
    /// The task of one is over, which gives its number.
    pub fn over(&mut self, ended: Result<u64, JoinError>) {
        match ended {
            Ok(number) => drop(self.end(number)),
            // It gave way.
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(%error, "a handshake broke; this is a bug"),
        }
    }

    /// Takes what a newcomer needs; where there is none left, those that have taken longest give theirs back first. Of `tasks` each is
    /// an arrival's. None if it is all with others than those.
    pub async fn take<D>(
        &mut self,
        tasks: &mut JoinSet<u64>,
        mut take: impl FnMut() -> Option<D>,
    ) -> Option<D> {
        loop {
            if let Some(taken) = take() {
                return Some(taken);
            }
            let gone = self.give_way()?;
            tracing::debug!("the handshake that took longest gives way");
            gone.abort();
            // Its resources are given back with its end, which an abort only asks for.
            while !gone.is_finished()
                && let Some(ended) = tasks.join_next().await
            {
                self.over(ended);
            }
        }
    }
}

/// Peers for whom there was no place or no descriptor: a line for the first, and then how many, now and again.
#[derive(Debug, Default)]
pub struct TurnedAway(LogLimiter);

impl TurnedAway {
    /// One more from `address` at `front`; returns of how many a line was written, if one was.
    pub fn one(&self, now: Instant, address: SocketAddr, front: Front) -> Option<u64> {
        let connections = self.0.add(now, 1)?;
        let front = front.word();
        tracing::warn!(%address, connections, front, "connections were refused: the places for them, or those of their address, or the descriptors are all in use");
        Some(connections)
    }
}

/// The network that is counted as one host: an address of IPv4, 64 bits of IPv6.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    #[test]
    fn the_slowest_of_the_address_with_most_gives_way() {
        let mut arrivals = Arrivals::new(6, 3);
        for (from, name, gone) in [
            (1, "a", None),
            (1, "b", None),
            (1, "c", None),
            (1, "d", Some("a")), // all of its address are taken
            (2, "e", None),
            (3, "f", None),
            (4, "g", None),
            (5, "h", Some("b")), // all are taken
        ] {
            assert_eq!(arrivals.begin(address(from), name), gone, "{name}");
        }
        assert_eq!(arrivals.len(), 6);
        assert_eq!(arrivals.end(2), Some("c"));
        assert_eq!(arrivals.end(2), None);
        assert_eq!(arrivals.begin(address(5), "i"), None);
        for number in 0..arrivals.next() {
            arrivals.end(number);
        }
        assert_eq!((arrivals.len(), arrivals.by_address.len()), (0, 0));
    }

    #[test]
    fn peers_that_say_nothing_shut_nobody_out() {
        // 200 a second from one address, each until its deadline of three seconds; a handshake takes 100 ms.
        for honest in [address(1), address(2)] {
            let mut arrivals = Arrivals::new(1024, 256);
            let (mut ends, mut turned_away) = (BTreeSet::new(), 0);
            for millis in 0..10_000_u64 {
                while let Some((at, number)) = ends.first().copied()
                    && at <= millis
                {
                    ends.remove(&(at, number));
                    arrivals.end(number);
                }
                let mut begin = |from, lasts| {
                    let number = arrivals.next();
                    ends.insert((millis + lasts, number));
                    arrivals.begin(from, lasts)
                };
                let mut gone = Vec::new();
                if millis % 5 == 0 {
                    gone.extend(begin(address(1), 3_000));
                }
                if millis % 50 == 0 {
                    gone.extend(begin(honest, 100));
                }
                turned_away += gone.iter().filter(|lasts| **lasts == 100).count();
            }
            assert_eq!(turned_away, 0, "{honest}");
        }
    }

    #[test]
    fn a_host_with_many_addresses_of_ipv6_is_one() {
        let mut arrivals = Arrivals::new(9, 1);
        assert_eq!(arrivals.begin("2001:db8::1".parse().unwrap(), 1), None);
        assert_eq!(arrivals.begin("2001:db8::2:3".parse().unwrap(), 2), Some(1));
        assert_eq!(arrivals.begin("::ffff:192.0.2.1".parse().unwrap(), 3), None);
        assert_eq!(arrivals.begin("192.0.2.1".parse().unwrap(), 4), Some(3));
    }

    #[test]
    fn peers_that_are_turned_away_are_summed_up() {
        let turned_away = TurnedAway::default();
        let address = ([192, 0, 2, 1], 7000).into();
        for (seconds, told) in [(0, Some(1)), (1, None), (2, None), (10, Some(3)), (11, None)] {
            let now = Instant::from_millis(1000 * seconds);
            assert_eq!(turned_away.one(now, address, Front::Link), told);
        }
    }
}

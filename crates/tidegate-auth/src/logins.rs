//! Logins that wait to be checked: which one is next, when more come than can be hashed.
//!
//! ```text
//!  push ─▶ by address: fresh ─┐  newest first
//!                      again ─┴─▶ in turn ─▶ addresses in turn ─▶ pop
//! ```
//!
//! A check takes tens of milliseconds by design, and who waits gives up after some seconds. In the order of arrival, the
//! check would always go to the login that waited longest: under load every check is of a client that is about to hang up,
//! or has. So the newest login goes first, which still has all its patience; a client that hangs up is taken out, and comes
//! again as new. As long as more wait than can be checked, each check accepts a client, and a fleet of any size is connected
//! after its number of checks.
//!
//! Of one address, clients that disconnected before (`again`) and those that did not (`fresh`) take turns, so that a newcomer does not wait
//! behind a fleet that keeps coming back, nor the fleet behind made-up names. Addresses take turns as well, and those that
//! have had no turn of late take every second one: many addresses cannot make one that comes for the first time wait for its turn among
//! all of them.
//!
//! Always true: at most [`WAITING_MAX`] wait; beyond that the address with most loses its oldest, which is reported; a login that
//! is handed out was not cancelled, and its time is not over.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::{BuildHasher as _, Hash, RandomState},
    net::IpAddr,
    time::Duration,
};

use tidegate_message::Instant;

use crate::{attempts::network, heaviest::Heaviest};

/// Logins that wait at most.
pub const WAITING_MAX: usize = 16_384;
/// Names that gave up, and addresses that had a turn, remembered of each; twice as many for a while.
const REMEMBERED_MAX: usize = 16_384;
/// How long it is remembered that a client gave up.
const GAVE_UP: Duration = Duration::from_secs(60);
/// How long an address that had a turn is none that comes for the first time.
const HAD_TURN: Duration = Duration::from_millis(500);

/// Names a login that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Logins that wait, with what is to be done for each.
#[derive(Debug)]
pub struct Logins<T> {
    entries: HashMap<Ticket, Entry<T>>,
    flows: HashMap<Option<IpAddr>, Flow>,
    /// How many wait of each address.
    waiting: Heaviest<Option<IpAddr>>,
    /// Addresses that have had no turn of late, the newest last, each with the number of its place; one whose flow has another number, or
    /// none, is gone.
    new: Vec<(Option<IpAddr>, u64)>,
    /// The others, by turn.
    old: VecDeque<(Option<IpAddr>, u64)>,
    places: u64,
    /// Whether the next turn is of one that had turns before.
    is_turn_of_old: bool,
    /// Clients that gave up, by a hash of address and name, and when.
    gave_up: HashMap<u64, Instant>,
    /// Addresses that had a turn, and when.
    had_turn: HashMap<Option<IpAddr>, Instant>,
    next: u64,
    hasher: RandomState,
    waiting_max: usize,
}

#[derive(Debug)]
struct Entry<T> {
    item: T,
    address: Option<IpAddr>,
    name: u64,
    is_again: bool,
    until: Instant,
}

/// The waiting logins of one address.
#[derive(Debug, Default)]
struct Flow {
    fresh: BTreeSet<Ticket>,
    again: BTreeSet<Ticket>,
    is_turn_of_again: bool,
    /// Of its entry in a list.
    place: u64,
}

impl Flow {
    fn len(&self) -> usize {
        self.fresh.len() + self.again.len()
    }

    /// The newest of the lane whose turn it is.
    fn next(&mut self) -> Option<Ticket> {
        let first_again = self.is_turn_of_again;
        self.is_turn_of_again = !first_again;
        let (first, second) = match first_again {
            true => (&mut self.again, &mut self.fresh),
            false => (&mut self.fresh, &mut self.again),
        };
        first.pop_last().or_else(|| second.pop_last())
    }

    fn oldest(&self) -> Option<Ticket> {
        self.fresh.first().into_iter().chain(self.again.first()).min().copied()
    }
}

impl<T> Default for Logins<T> {
    fn default() -> Self {
        Self::with_room(WAITING_MAX)
    }
}

impl<T> Logins<T> {
    /// Of which at most `waiting_max` wait.
    pub fn with_room(waiting_max: usize) -> Self {
        Self {
            entries: HashMap::new(),
            flows: HashMap::new(),
            waiting: Heaviest::default(),
            new: Vec::new(),
            old: VecDeque::new(),
            places: 0,
            is_turn_of_old: false,
            gave_up: HashMap::new(),
            had_turn: HashMap::new(),
            next: 0,
            hasher: RandomState::new(),
            waiting_max: waiting_max.max(1),
        }
    }

    /// A login of `user` from `address`, which is of no use from `until` on. Gives its name, and the login that is dropped for it,
    /// if one is.
    pub fn push(
        &mut self,
        now: Instant,
        address: Option<IpAddr>,
        user: &str,
        until: Instant,
        item: T,
    ) -> (Ticket, Option<T>) {
        let gone = (self.entries.len() >= self.waiting_max).then(|| self.make_room(now)).flatten();
        let address = address.map(network);
        let name = self.hasher.hash_one((address, user));
        let is_again = self.gave_up.get(&name).is_some_and(|at| now < *at + GAVE_UP);
        let ticket = Ticket(self.next);
        self.next += 1;
        let had_turn = self.had_turn.get(&address).is_some_and(|at| now < *at + HAD_TURN);
        let flow = self.flows.entry(address).or_insert_with(|| {
            self.places += 1;
            let place = self.places;
            if had_turn {
                self.old.push_back((address, place));
            } else {
                self.new.push((address, place));
            }
            Flow { place, ..Flow::default() }
        });
        self.waiting.add(address, 1);
        if is_again {
            flow.again.insert(ticket)
        } else {
            flow.fresh.insert(ticket)
        };
        self.entries.insert(ticket, Entry { item, address, name, is_again, until });
        self.compact();
        (ticket, gone)
    }

    /// Takes out a login whose client has disconnected; returns its work if it still waited.
    pub fn cancel(&mut self, now: Instant, ticket: Ticket) -> Option<T> {
        let entry = self.entries.remove(&ticket)?;
        if let Some(flow) = self.flows.get_mut(&entry.address) {
            if entry.is_again {
                flow.again.remove(&ticket)
            } else {
                flow.fresh.remove(&ticket)
            };
            if flow.len() == 0 {
                self.flows.remove(&entry.address);
            }
        }
        self.waiting.subtract(entry.address, 1);
        self.note_gave_up(now, entry.name);
        Some(entry.item)
    }

    /// The next one; none if none waits. Those whose time is over are passed over, and given to `late`.
    pub fn pop(&mut self, now: Instant, mut late: impl FnMut(T)) -> Option<T> {
        loop {
            let address = self.next_address()?;
            let flow = self.flows.get_mut(&address).expect("an address in a list has a flow");
            let ticket = flow.next().expect("an empty flow is in no list");
            let is_empty = flow.len() == 0;
            self.places += 1;
            flow.place = self.places;
            self.waiting.subtract(address, 1);
            remember(&mut self.had_turn, address, now, HAD_TURN);
            if is_empty {
                self.flows.remove(&address);
            } else {
                self.old.push_back((address, self.places));
            }
            let entry = self.entries.remove(&ticket).expect("a flow names what waits");
            if now < entry.until {
                self.gave_up.remove(&entry.name);
                return Some(entry.item);
            }
            self.note_gave_up(now, entry.name);
            late(entry.item);
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no login waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The address whose turn it is, taken out of its list.
    fn next_address(&mut self) -> Option<Option<IpAddr>> {
        let of_old = self.is_turn_of_old;
        self.is_turn_of_old = !of_old;
        loop {
            let (address, place) = match of_old {
                true => self.old.pop_front().or_else(|| self.new.pop()),
                false => self.new.pop().or_else(|| self.old.pop_front()),
            }?;
            if self.flows.get(&address).is_some_and(|flow| flow.place == place) {
                return Some(address);
            }
        }
    }

    /// Takes places of addresses that are gone out of the lists, once they are more than half.
    fn compact(&mut self) {
        if self.new.len() + self.old.len() > 2 * self.flows.len() + 64 {
            let flows = &self.flows;
            let is_there = |(address, place): &(Option<IpAddr>, u64)| {
                flows.get(address).is_some_and(|flow| flow.place == *place)
            };
            self.new.retain(is_there);
            self.old.retain(is_there);
        }
    }

    fn make_room(&mut self, now: Instant) -> Option<T> {
        let most = self.waiting.first()?;
        let oldest = self.flows.get(&most)?.oldest()?;
        self.cancel(now, oldest)
    }

    fn note_gave_up(&mut self, now: Instant, name: u64) {
        remember(&mut self.gave_up, name, now, GAVE_UP);
    }
}

/// Notes `key` for as long as `lasts`.
fn remember<K: Eq + Hash>(all: &mut HashMap<K, Instant>, key: K, now: Instant, lasts: Duration) {
    if all.len() >= 2 * REMEMBERED_MAX {
        all.retain(|_, at| now < *at + lasts);
        if all.len() >= REMEMBERED_MAX {
            // They are so many that the memory distinguishes nothing.
            all.clear();
        }
    }
    all.insert(key, now);
}

#[cfg(test)]
mod tests;

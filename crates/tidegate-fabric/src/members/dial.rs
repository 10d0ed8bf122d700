//! Dialling: seeds and members without a link, for ever, with waits that grow.
//!
//! A dial to an address behind which nothing is lasts for seconds, and there may be hundreds. So targets are of one of three lanes, the more
//! likely to be reached before the others, and each lane leaves some of the dials that may be made at a time to the ones before it:
//!
//! ```text
//!  seeds, members that had a link to this process ──▶ likely   16 of 16 dials
//!  members and found nodes that are new here ────────▶ new      12
//!  members that were dialled in vain again and again ▶ vain     8
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tidegate_message::{Backoff, Instant};
use tidegate_wire::NodeId;

use super::{limits::*, mix};

/// Which node is to be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// The seed of that index in the settings, whichever node answers there.
    Seed(usize),
    /// A member.
    Member(NodeId),
    /// A node that a local network has named, whichever node answers there.
    Found(NodeId),
}

/// An order to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Names it to [`Members::handle_linked`](super::Members::handle_linked) and
    /// [`Members::handle_dial_failed`](super::Members::handle_dial_failed), one of which follows.
    pub target: Target,
    /// Host and port of each address, to be tried in this order.
    pub addresses: Vec<String>,
    /// For the other end, which is to know it as well.
    pub number: DialNumber,
}

/// A dial among those of its node, by which both ends of two links know alike which is the newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DialNumber {
    /// Tells the process that dialled from one before it. Drawn.
    pub process: u32,
    /// Greater than that of its dials before.
    pub count: u32,
}

impl DialNumber {
    /// Whether the same process has dialled the other one later. Of two processes of one node, the end at which a link comes later knows which
    /// of them is over.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.process == other.process && self.count < other.count
    }
}

impl From<DialNumber> for u64 {
    fn from(DialNumber { process, count }: DialNumber) -> Self {
        Self::from(process) << 32 | Self::from(count)
    }
}

impl From<u64> for DialNumber {
    fn from(number: u64) -> Self {
        let [process, count] = [number >> 32, number].map(|it| it as u32);
        Self { process, count }
    }
}

#[derive(Debug)]
pub(super) struct Dials {
    retry_max: Duration,
    draw: u64,
    targets: BTreeMap<Target, State>,
    /// By lane, as is the number of dials that are being made.
    due: [BTreeSet<(Instant, Target)>; LANES],
    in_flight: [usize; LANES],
}

/// How likely a target is to be reached, the most likely ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Likely,
    New,
    Vain,
}

const LANES: usize = 3;

#[derive(Debug)]
struct State {
    backoff: Backoff,
    wait: Wait,
    /// Of a seed, the node that answered there last.
    peer: Option<NodeId>,
    /// Whether this process had a link to it.
    was_linked: bool,
    /// Dials in a row that came to none.
    failures: u32,
}

impl State {
    fn lane(&self, target: Target) -> Lane {
        match target {
            Target::Seed(_) => Lane::Likely,
            _ if self.failures >= VAIN_AFTER => Lane::Vain,
            _ if self.was_linked => Lane::Likely,
            Target::Member(_) | Target::Found(_) => Lane::New,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Until(Instant, Lane),
    Dialling(Lane),
    /// There is no need to.
    Rest,
}

impl Dials {
    pub(super) fn new(retry_max: Duration, draw: u64) -> Self {
        let (targets, due, in_flight) = Default::default();
        Self { retry_max, draw, targets, due, in_flight }
    }

    /// The target is to be dialled at that time, unless it is anyway.
    pub(super) fn want(&mut self, target: Target, at: Instant) {
        if self.state(target).wait == Wait::Rest {
            self.wait_until(target, at);
        }
    }

    /// The target is to be dialled as rarely as one that could not be reached for long.
    pub(super) fn want_rarely(&mut self, target: Target, now: Instant) {
        let (retry_max, seed) = (self.retry_max, self.seed(target));
        let state = self.state(target);
        if state.wait == Wait::Rest {
            state.backoff = Backoff::with_jitter(retry_max, retry_max, seed);
            state.failures = VAIN_AFTER;
            let at = now + state.backoff.next_wait();
            self.wait_until(target, at);
        }
    }

    /// The target is not dialled any more.
    pub(super) fn forget(&mut self, target: Target) {
        if self.targets.contains_key(&target) {
            self.set(target, Wait::Rest);
            self.targets.remove(&target);
        }
    }

    /// Chance, of the target.
    fn seed(&self, target: Target) -> u64 {
        let target = match target {
            Target::Seed(index) => index as u64,
            Target::Member(NodeId(bytes)) | Target::Found(NodeId(bytes)) => {
                u64::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default())
            }
        };
        mix(self.draw ^ target)
    }

    fn state(&mut self, target: Target) -> &mut State {
        let (retry_max, seed) = (self.retry_max, self.seed(target));
        self.targets.entry(target).or_insert_with(|| State {
            backoff: Backoff::with_jitter(RETRY_FIRST, retry_max, seed),
            wait: Wait::Rest,
            peer: None,
            was_linked: false,
            failures: 0,
        })
    }

    fn wait_until(&mut self, target: Target, at: Instant) {
        let lane = self.state(target).lane(target);
        self.set(target, Wait::Until(at, lane));
    }

    fn set(&mut self, target: Target, wait: Wait) {
        let state = self.state(target);
        let old = std::mem::replace(&mut state.wait, wait);
        match old {
            Wait::Until(at, lane) => drop(self.due[lane as usize].remove(&(at, target))),
            Wait::Dialling(lane) => self.in_flight[lane as usize] -= 1,
            Wait::Rest => {}
        }
        match wait {
            Wait::Until(at, lane) => drop(self.due[lane as usize].insert((at, target))),
            Wait::Dialling(lane) => self.in_flight[lane as usize] += 1,
            Wait::Rest => {}
        }
    }

    /// Whether a target of that lane may be dialled while those are that are being dialled.
    fn has_room(&self, lane: Lane) -> bool {
        let all: usize = self.in_flight.iter().sum();
        let alike: usize = self.in_flight[lane as usize..].iter().sum();
        all < DIALS_MAX && alike < DIALS_OF_LANES[lane as usize]
    }

    fn open_lanes(&self) -> impl Iterator<Item = Lane> {
        [Lane::Likely, Lane::New, Lane::Vain].into_iter().filter(|lane| self.has_room(*lane))
    }

    /// When the next one is to be dialled.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let first = |lane: Lane| Some(self.due[lane as usize].first()?.0);
        self.open_lanes().filter_map(first).min()
    }

    /// The next one that is to be dialled now.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Target> {
        let first = |lane: Lane| {
            let (_, target) = self.due[lane as usize].first().filter(|(at, _)| *at <= now)?;
            Some((lane, *target))
        };
        let (lane, target) = self.open_lanes().find_map(first)?;
        self.set(target, Wait::Dialling(lane));
        Some(target)
    }

    /// It did not come to a link, or to one that this node keeps.
    pub(super) fn handle_failed(&mut self, now: Instant, target: Target) {
        if let Some(state) = self.targets.get_mut(&target)
            && matches!(state.wait, Wait::Dialling(_))
        {
            state.failures = state.failures.saturating_add(1);
            let at = now + state.backoff.next_wait();
            self.wait_until(target, at);
        }
    }

    /// The other end does not take this node in, and is unlikely to soon.
    pub(super) fn handle_refused(&mut self, now: Instant, target: Target) {
        if let Some(state) = self.targets.get_mut(&target)
            && matches!(state.wait, Wait::Dialling(_))
        {
            let at = now + state.backoff.next_wait().max(REVOKED_RETRY);
            self.wait_until(target, at);
        }
    }

    /// There is no need to dial it.
    pub(super) fn rest(&mut self, target: Target) {
        if self.targets.contains_key(&target) {
            self.set(target, Wait::Rest);
        }
    }

    /// There is a link to that node.
    pub(super) fn handle_linked(&mut self, peer: NodeId, by: Option<Target>) {
        if let Some(by @ Target::Seed(_)) = by {
            self.state(by).peer = Some(peer);
        }
        if let Some(state) = self.targets.get_mut(&Target::Member(peer)) {
            state.failures = 0;
        }
        self.rest(Target::Member(peer));
        self.forget(Target::Found(peer));
        if let Some(by @ Target::Found(_)) = by {
            self.forget(by);
        }
        self.seeds_of(peer).into_iter().for_each(|seed| self.set(seed, Wait::Rest));
    }

    /// The link to that node is over. Whether it held for so long that the node is dialled at once.
    pub(super) fn handle_unlinked(
        &mut self,
        now: Instant,
        peer: NodeId,
        held: bool,
        has_addresses: bool,
    ) {
        let member = has_addresses.then_some(Target::Member(peer));
        for target in self.seeds_of(peer).into_iter().chain(member) {
            let state = self.state(target);
            state.was_linked = true;
            if held {
                state.backoff.reset();
            }
            let wait = state.backoff.next_wait();
            self.wait_until(target, now + wait);
        }
    }

    fn seeds_of(&self, peer: NodeId) -> Vec<Target> {
        let is_it = |(target, state): &(&Target, &State)| {
            matches!(target, Target::Seed(_)) && state.peer == Some(peer)
        };
        self.targets.iter().filter(is_it).map(|(target, _)| *target).collect()
    }

    pub(super) fn clear(&mut self) {
        self.targets.clear();
        (self.due, self.in_flight) = Default::default();
    }
}

//! Connections between nodes, as TCP and QUIC give them: messages in order, late, until the connection breaks.
//!
//! ```text
//!  dial ─▶ Begin to both ends ─▶ Linked          cut: all in flight is lost, and the connection with it
//!  send ─▶ way (rate, delay, order) ─▶ Message   each end learns of a broken connection after `silence`
//!  kill ─▶ End behind what was sent ─▶ Unlinked  hold: nothing arrives for a while, then all of it in order
//! ```
//!
//! Always true: the messages that arrive of one connection are a prefix of those that were sent on it; each connection that began at an
//! end ends there, once: when it was ended by the other end, has lost something, or is superseded by a newer one.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tidegate_message::Instant;

/// The way from any node to any other.
#[derive(Clone, Debug)]
pub struct Path {
    /// Time from one node to another.
    pub delay: Duration,
    /// Each message takes up to so much longer, which delays those behind it.
    pub jitter: Duration,
    /// Bytes a second of each direction.
    pub rate: u64,
    /// How long after a connection has lost something its ends learn that it is over.
    pub silence: Duration,
}

impl Default for Path {
    /// 1 ms, as much again of jitter, 10 MB/s, 3 s of silence.
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self { delay: ms(1), jitter: ms(1), rate: 10_000_000, silence: ms(3_000) }
    }
}

/// The parts of a connection, in the order in which they are sent.
#[derive(Debug)]
pub(super) enum Part<M> {
    Begin,
    Message(M),
    End,
}

/// The next thing that arrives at a node.
#[derive(Debug)]
pub(super) enum Arrival<M> {
    Linked { supersedes: bool },
    Message(M),
    Unlinked,
}

/// A try to connect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dial {
    pub(super) connection: u64,
    /// In either direction.
    pub(super) is_cut: bool,
    /// When the peer and the node are to look for what arrived.
    pub(super) looks: Option<[Instant; 2]>,
}

/// One direction between two nodes.
#[derive(Debug)]
struct Way<M> {
    in_flight: VecDeque<Parcel<M>>,
    busy_until: Instant,
    last_due: Instant,
    held_until: Instant,
    /// Cuts that last.
    cuts: u32,
    /// Connections up to this number have lost something on it.
    gap: u64,
}

#[derive(Debug)]
struct Parcel<M> {
    /// When its last byte has left the sender, and when it arrives.
    left: Instant,
    due: Instant,
    connection: u64,
    part: Part<M>,
}

#[derive(Debug)]
pub(super) struct Network<M> {
    path: Path,
    ways: BTreeMap<(usize, usize), Way<M>>,
    /// By a node and its peer, the connection that the node has.
    ends: BTreeMap<(usize, usize), u64>,
    /// By a node and its peer, the connection that it tries to have.
    dials: BTreeMap<(usize, usize), u64>,
    /// By node, the connections up to this number are of a former process.
    former: Vec<u64>,
    count: u64,
}

impl<M> Network<M> {
    pub(super) fn new(path: Path, nodes: usize) -> Self {
        let (ways, ends, dials) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { path, ways, ends, dials, former: vec![0; nodes], count: 0 }
    }

    pub(super) fn silence(&self) -> Duration {
        self.path.silence
    }

    /// The number of the newest connection.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn is_linked(&self, node: usize, peer: usize) -> bool {
        self.ends.contains_key(&(node, peer))
    }

    /// The peers that a node has a connection to.
    pub(super) fn peers(&self, node: usize) -> impl Iterator<Item = usize> {
        self.ends.range((node, 0)..=(node, usize::MAX)).map(|(&(_, peer), _)| peer)
    }

    fn way(&mut self, from: usize, to: usize) -> &mut Way<M> {
        self.ways.entry((from, to)).or_insert_with(|| Way {
            in_flight: VecDeque::new(),
            busy_until: Instant::MIN,
            last_due: Instant::MIN,
            held_until: Instant::MIN,
            cuts: 0,
            gap: 0,
        })
    }

    /// Begins to connect to a peer that answers or does not. Nothing if there is a connection or a try.
    pub(super) fn dial(
        &mut self,
        now: Instant,
        node: usize,
        peer: usize,
        answers: bool,
        jitter: Duration,
    ) -> Option<Dial> {
        if self.is_linked(node, peer) || self.dials.contains_key(&(node, peer)) {
            return None;
        }
        self.count += 1;
        let connection = self.count;
        self.dials.insert((node, peer), connection);
        let is_cut = self.way(node, peer).cuts > 0 || self.way(peer, node).cuts > 0;
        let mut begin = |from, to| self.push(now, (from, to), connection, Part::Begin, 0, jitter);
        let looks = (answers && !is_cut).then(|| [begin(node, peer), begin(peer, node)]);
        Some(Dial { connection, is_cut, looks })
    }

    /// A try is given up, if it still is one; whether it was.
    pub(super) fn give_up(&mut self, node: usize, peer: usize, connection: u64) -> bool {
        let is_tried = self.dials.get(&(node, peer)) == Some(&connection);
        if is_tried {
            self.dials.remove(&(node, peer));
        }
        is_tried
    }

    /// Sends on the connection that the node has. Returns when the peer is to look; nothing where it is lost: there is no connection,
    /// or it has lost something before.
    pub(super) fn send(
        &mut self,
        now: Instant,
        node: usize,
        peer: usize,
        (message, bytes): (M, usize),
        jitter: Duration,
    ) -> Option<Instant> {
        let connection = *self.ends.get(&(node, peer))?;
        let part = Part::Message(message);
        let is_whole = connection > self.way(node, peer).gap;
        is_whole.then(|| self.push(now, (node, peer), connection, part, bytes, jitter))
    }

    fn push(
        &mut self,
        now: Instant,
        (from, to): (usize, usize),
        connection: u64,
        part: Part<M>,
        bytes: usize,
        jitter: Duration,
    ) -> Instant {
        let Path { delay, rate, .. } = self.path;
        let way = self.way(from, to);
        let left =
            way.busy_until.max(now) + Duration::from_nanos(bytes as u64 * 1_000_000_000 / rate);
        let due = way.last_due.max(left + delay + jitter);
        (way.busy_until, way.last_due) = (left, due);
        way.in_flight.push_back(Parcel { left, due, connection, part });
        due.max(way.held_until)
    }

    /// The next that has arrived at `to`. Or else when to look again, if something is on the way.
    pub(super) fn arrive(
        &mut self,
        now: Instant,
        from: usize,
        to: usize,
    ) -> Result<Arrival<M>, Option<Instant>> {
        loop {
            let way = self.way(from, to);
            let Some(first) = way.in_flight.front() else { return Err(None) };
            let due = first.due.max(way.held_until);
            if due > now {
                return Err(Some(due));
            }
            let Some(Parcel { connection, part, .. }) = way.in_flight.pop_front() else {
                return Err(None);
            };
            let end = (to, from);
            let is_current = self.ends.get(&end) == Some(&connection);
            match part {
                Part::Begin if connection > self.former[to] => {
                    self.dials.remove(&end);
                    let supersedes = self.ends.insert(end, connection).is_some();
                    return Ok(Arrival::Linked { supersedes });
                }
                Part::Message(message) if is_current => return Ok(Arrival::Message(message)),
                Part::End if is_current => {
                    self.ends.remove(&end);
                    return Ok(Arrival::Unlinked);
                }
                // Of a connection that this end has no more.
                _ => {}
            }
        }
    }

    /// Ends the node's end of a connection behind what it has sent, or of one that it tries to have. Returns when the peer is to look.
    pub(super) fn hang_up(&mut self, now: Instant, node: usize, peer: usize) -> Option<Instant> {
        let tried = self.dials.remove(&(node, peer));
        if let Some(tried) = tried {
            let is_of_try = |parcel: &Parcel<M>| parcel.connection == tried;
            self.way(peer, node).in_flight.retain(|parcel| !is_of_try(parcel));
        }
        let connection = self.ends.remove(&(node, peer)).or(tried)?;
        let is_whole = connection > self.way(node, peer).gap;
        is_whole.then(|| self.push(now, (node, peer), connection, Part::End, 0, Duration::ZERO))
    }

    /// The node's process has ended: it has no connections and tries for none.
    pub(super) fn forget(&mut self, node: usize) {
        self.former[node] = self.count;
        self.ends.retain(|(owner, _), _| *owner != node);
        self.dials.retain(|(owner, _), _| *owner != node);
    }

    /// The node sends nothing more of what has not left it.
    pub(super) fn silence_of(&mut self, now: Instant, node: usize) {
        let count = self.count;
        let ways = self.ways.range_mut((node, 0)..=(node, usize::MAX));
        for (_, way) in ways {
            way.in_flight.retain(|parcel| parcel.left <= now);
            way.busy_until = way.busy_until.min(now);
            way.gap = count;
        }
    }

    /// All that is on the way is lost, and with it what the connections of now send there later. Returns the number up to which
    /// connections are broken.
    pub(super) fn lose(&mut self, now: Instant, from: usize, to: usize) -> u64 {
        let count = self.count;
        let way = self.way(from, to);
        way.in_flight.clear();
        way.busy_until = way.busy_until.min(now);
        way.gap = count;
        count
    }

    pub(super) fn cut(&mut self, from: usize, to: usize) {
        self.way(from, to).cuts += 1;
    }

    pub(super) fn mend(&mut self, from: usize, to: usize) {
        let way = self.way(from, to);
        way.cuts = way.cuts.saturating_sub(1);
    }

    /// Nothing arrives before `until`.
    pub(super) fn hold(&mut self, from: usize, to: usize, until: Instant) {
        let way = self.way(from, to);
        way.held_until = way.held_until.max(until);
    }

    /// Every cut and hold ends. Returns the ways that are to be looked at.
    pub(super) fn heal(&mut self) -> Vec<(usize, usize)> {
        for way in self.ways.values_mut() {
            (way.cuts, way.held_until) = (0, Instant::MIN);
        }
        self.ways.keys().copied().collect()
    }

    /// The node learns that its connection is over, if it is one of those up to `broken`; whether it was.
    pub(super) fn notice(&mut self, node: usize, peer: usize, broken: u64) -> bool {
        let is_over = self.ends.get(&(node, peer)).is_some_and(|connection| *connection <= broken);
        if is_over {
            self.ends.remove(&(node, peer));
        }
        is_over
    }
}

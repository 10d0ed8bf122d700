//! Client identifiers that are in use at two members: the newer connection stays, as at one node.
//!
//! ```text
//!  THIS NODE                                                 │ ANOTHER MEMBER
//!  connected, left, ended ─▶ Clients ─ ClientClaim ──────────┼─▶ Clients: in use here, too?
//!  Taken: end it ◀────────── Clients ◀─ ClientClaim, verdict ┼───┘
//! ```
//!
//! Each member tells the others of a client when it connects. Two that link compare all: the one that has fewer clients tells them. Of two
//! members the one whose identity is lower gives the verdict, so that there is one, whatever is on its way: it ends its own client, or says
//! which one the other is to end.
//!
//! **Newer** is the connection that began later. No clock of day decides that: a member tells its time when it links, and the other counts
//! from there, so that it knows how long ago a connection began; one that it hears of did not begin later than that. So a connection is newer
//! than each that its node had heard of when it began, and only of two that begin within the time of a record may either pass for it. Where one of the two processes stood still for a time, its machine asleep,
//! times of before are counted as before.
//!
//! **The identity** decides as at one node: a client may take the place of one of the same identity, and of one that showed none. The identifier
//! of another identity is in dispute: both clients stay, and are named.
//!
//! Always true: of two clients of one identifier, whose members are linked and have compared them, one stays, unless they are in dispute; a
//! session that waits for its client ends only where a newer connection wanted none of before; what is kept for a member is no more than the
//! clients here, [`DISPUTES_MAX`] disputes and a few times.

mod frame;
mod peer;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tidegate_message::Instant;
use tidegate_wire::{
    ClientClaim, ClientClaims, ClientOwner, ClientVerdict, ClientsHere, NodeId, OwnerKind, Record,
    limits::TEXT_BYTES_MAX,
};

use self::{frame::Frame, peer::Peer};

/// Disputes with one member that are known: later ones are not named.
pub const DISPUTES_MAX: usize = 1024;
/// Members whose times are known while they are not linked.
const FRAMES_MAX: usize = 4096;

/// A client of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its identifier.
    pub client: Arc<str>,
    /// How it showed whose it is.
    pub kind: OwnerKind,
    /// The name of that user or certificate.
    pub owner: Arc<str>,
    /// When it connected last.
    pub began: Instant,
    /// Whether it wanted no session of before.
    pub is_clean: bool,
    /// Whether it is connected; otherwise its session waits for it.
    pub is_connected: bool,
}

impl Client {
    fn is_of(&self, owner: &ClientOwner) -> bool {
        self.kind == owner.kind && *self.owner == *owner.name
    }

    fn owner(&self) -> ClientOwner {
        ClientOwner { kind: self.kind, name: self.owner.to_string() }
    }
}

/// News for this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// A newer connection is at another member.
    Taken {
        /// The client here.
        client: Arc<str>,
        /// Which connection of it.
        began: Instant,
        /// Whether its session ends as well.
        ends_session: bool,
        /// Where the newer connection is.
        by: NodeId,
        /// Whether both were there before the two members had a link.
        is_met: bool,
    },
    /// A client here and one at another member have one identifier and two identities.
    Disputed {
        /// The client here.
        client: Arc<str>,
        /// Where the other one is.
        with: NodeId,
    },
}

/// Why a link is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientsError {
    /// Clients, and no time that theirs could be counted from.
    #[error("clients were told before the time at that member")]
    NoTime,
    /// Of the two, this node gives verdicts.
    #[error("a verdict on a client came from a member that gives none to this one")]
    Verdict,
}

/// The clients of this node, and how far each member has been told.
#[derive(Debug)]
pub struct Clients {
    me: NodeId,
    /// Drawn by chance when the process began.
    process: u64,
    own: BTreeMap<Arc<str>, Client>,
    connected: u32,
    peers: BTreeMap<NodeId, Peer>,
    /// Times at members, also while they are not linked.
    frames: BTreeMap<NodeId, Frame>,
    events: VecDeque<ClientEvent>,
}

impl Clients {
    /// Of a node without clients; `process` is drawn by chance whenever it starts.
    pub fn new(me: NodeId, process: u64) -> Self {
        Self {
            me,
            process,
            own: BTreeMap::new(),
            connected: 0,
            peers: BTreeMap::new(),
            frames: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }

    /// A client has connected. Identifiers and names of more than [`TEXT_BYTES_MAX`] bytes are this node's own.
    pub fn connected(&mut self, client: Client) {
        if client.client.len().max(client.owner.len()) > TEXT_BYTES_MAX {
            return;
        }
        self.ended(&client.client.clone());
        if client.is_connected {
            self.connected += 1;
            for peer in self.peers.values_mut() {
                peer.tell(client.client.clone());
            }
        }
        self.own.insert(client.client.clone(), client);
    }

    /// A connection of a client is over, and its session waits for it.
    pub fn left(&mut self, client: &str, began: Instant) {
        if let Some(own) = self.own.get_mut(client)
            && own.is_connected
            && own.began == began
        {
            own.is_connected = false;
            self.connected -= 1;
            self.end_disputes(client);
        }
    }

    /// The session of a client is over.
    pub fn ended(&mut self, client: &str) {
        let Some(own) = self.own.remove(client) else { return };
        if own.is_connected {
            self.connected -= 1;
            self.end_disputes(client);
        }
    }

    /// These are all clients: some that came or went may not have been told.
    pub fn set(&mut self, clients: Vec<Client>) {
        let mut gone = std::mem::take(&mut self.own);
        self.connected = 0;
        for client in clients {
            match gone.remove(&client.client) {
                Some(own) if own == client => {
                    self.connected += u32::from(own.is_connected);
                    self.own.insert(own.client.clone(), own);
                }
                had => {
                    if had.is_some_and(|had| had.is_connected) {
                        self.end_disputes(&client.client);
                    }
                    self.connected(client);
                }
            }
        }
        gone.into_keys().for_each(|client| self.end_disputes(&client));
    }

    /// A member is reached.
    pub fn linked(&mut self, now: Instant, node: NodeId) {
        self.peers.insert(node, Peer::new(now));
    }

    /// A member is gone.
    pub fn unlinked(&mut self, node: NodeId) {
        self.peers.remove(&node);
    }

    /// The first word of a member.
    pub fn handle_here(&mut self, now: Instant, node: NodeId, here: ClientsHere) {
        let ClientsHere { process, now: there, count } = here;
        // One that says it again is not told all again.
        if self.peers.get(&node).is_none_or(Peer::is_heard) {
            return;
        }
        if self.frames.len() >= FRAMES_MAX && !self.frames.contains_key(&node) {
            let is_away = |other: &&NodeId| !self.peers.contains_key(other);
            let away = self.frames.keys().find(is_away).copied();
            away.into_iter().for_each(|away| drop(self.frames.remove(&away)));
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let frame = self.frames.entry(node).or_insert_with(|| Frame::new(process));
        frame.linked(process, there, now);
        peer.heard(count);
        peer.compare(self.me < node);
    }

    /// Clients of a member, and verdicts.
    ///
    /// # Errors
    /// [`ClientsError`]: the link is to be ended.
    pub fn handle_claims(
        &mut self,
        now: Instant,
        node: NodeId,
        record: ClientClaims,
    ) -> Result<(), ClientsError> {
        let ClientClaims { claims, verdicts, ended } = record;
        let Some(peer) = self.peers.get_mut(&node) else { return Ok(()) };
        if !peer.is_heard() {
            return Err(ClientsError::NoTime);
        }
        if !verdicts.is_empty() && self.me < node {
            return Err(ClientsError::Verdict);
        }
        // In the order in which they were so: a client that is over, then those that are there.
        ended.iter().for_each(|client| peer.end_dispute(client));
        for verdict in verdicts {
            self.obey(node, &verdict);
        }
        for claim in claims {
            self.judge(now, node, &claim);
        }
        Ok(())
    }

    fn obey(&mut self, node: NodeId, verdict: &ClientVerdict) {
        let own = self.own.get(&*verdict.client);
        // A connection that began since has been told, and has a verdict of its own.
        let Some(own) = own.filter(|own| own.began == verdict.began) else { return };
        let client = own.client.clone();
        if verdict.is_disputed {
            self.dispute(node, &client);
        } else {
            self.outdone(node, &client, &verdict.owner, verdict.is_clean, verdict.is_met);
        }
    }

    fn judge(&mut self, now: Instant, node: NodeId, claim: &ClientClaim) {
        let (Some(peer), Some(frame)) = (self.peers.get_mut(&node), self.frames.get_mut(&node))
        else {
            return;
        };
        let began = frame.heard(claim.began, now);
        let Some(own) = self.own.get(&*claim.client) else { return };
        // A session that waits is of interest to a client that wants none.
        let concerns = |one: (bool, bool), other: (bool, bool)| one.0 && (other.0 || one.1);
        let (ours, theirs) =
            ((own.is_connected, own.is_clean), (claim.is_connected, claim.is_clean));
        if !concerns(ours, theirs) && !concerns(theirs, ours) {
            return;
        }
        let client = own.client.clone();
        if node < self.me {
            // It judges, by the times of both.
            return peer.tell(client);
        }
        let is_met = own.began < peer.since() && began < peer.since();
        let is_newer = own.began > began;
        let may = |former: OwnerKind| former == OwnerKind::Anonymous || own.is_of(&claim.owner);
        let is_disputed = !may(if is_newer { claim.owner.kind } else { own.kind });
        if is_disputed && !(own.is_connected && claim.is_connected) {
            return;
        }
        if is_disputed || (is_newer && concerns(ours, theirs)) {
            let (began, owner, is_clean) = (claim.began, own.owner(), own.is_clean);
            peer.rule(
                &client,
                ClientVerdict {
                    client: claim.client.clone(),
                    began,
                    owner,
                    is_clean,
                    is_disputed,
                    is_met,
                },
            );
        }
        if is_disputed {
            self.dispute(node, &client);
        } else if !is_newer && concerns(theirs, ours) {
            self.outdone(node, &client, &claim.owner, claim.is_clean, is_met);
        }
    }

    /// A client here has a newer connection there.
    fn outdone(
        &mut self,
        node: NodeId,
        client: &Arc<str>,
        by: &ClientOwner,
        is_clean: bool,
        is_met: bool,
    ) {
        let Some(own) = self.own.get_mut(client) else { return };
        let is_same = own.is_of(by);
        if !is_same && own.kind != OwnerKind::Anonymous {
            // It is not that one's to end, whatever the other member says.
            return if own.is_connected {
                self.dispute(node, client);
            };
        }
        // Messages that wait for one identity are not for another.
        let ends_session = is_clean || !is_same;
        let (began, was_connected) = (own.began, own.is_connected);
        if !was_connected && !ends_session {
            return;
        }
        self.events.push_back(ClientEvent::Taken {
            client: client.clone(),
            began,
            ends_session,
            by: node,
            is_met,
        });
        match ends_session {
            true => self.ended(client),
            false => self.left(client, began),
        }
    }

    fn dispute(&mut self, node: NodeId, client: &Arc<str>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.dispute(client) {
            self.events.push_back(ClientEvent::Disputed { client: client.clone(), with: node });
        }
    }

    fn end_disputes(&mut self, client: &str) {
        self.peers.values_mut().for_each(|peer| peer.leave_dispute(client));
    }

    /// The next record for a member; none if it has been told all.
    pub fn poll_transmit(&mut self, now: Instant, node: NodeId) -> Option<Record> {
        let peer = self.peers.get_mut(&node)?;
        if let Some(count) = peer.greet(self.connected) {
            peer.compare(self.me < node);
            return Some(ClientsHere { process: self.process, now, count }.into());
        }
        peer.next(&self.own).map(Record::from)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Clients here whose identifier another identity uses at another member.
    pub fn disputes(&self) -> impl Iterator<Item = (&Client, NodeId)> {
        let of = |(node, peer): (&NodeId, &'_ Peer)| {
            let (node, clients) = (*node, peer.disputes());
            clients.map(move |client| (client.clone(), node)).collect::<Vec<_>>()
        };
        let all = self.peers.iter().flat_map(of);
        all.filter_map(|(client, node)| Some((self.own.get(&client)?, node)))
    }
}

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tidegate_wire::{NodeId, Record, Sealed};

use super::super::*;

pub(super) fn id(node: usize) -> NodeId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&mix(node as u64 + 1).to_be_bytes());
    bytes[8..16].copy_from_slice(&(node as u64).to_be_bytes());
    NodeId(bytes)
}

pub(super) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A seal that anybody could break, and that says all that a right one does: certificates are names, signatures are hashes.
pub(super) struct Paper {
    pub(super) me: NodeId,
    pub(super) name: String,
    pub(super) revoked: BTreeSet<NodeId>,
}

impl Paper {
    pub(super) fn new(me: NodeId, name: &str) -> Self {
        Self { me, name: name.to_owned(), revoked: BTreeSet::new() }
    }

    fn sign(node: NodeId, bytes: &[u8]) -> [u8; 8] {
        let start = mix(u64::from(node.0[0]) << 8 | u64::from(node.0[15]));
        bytes.iter().fold(start, |hash, byte| mix(hash ^ u64::from(*byte))).to_le_bytes()
    }

    /// A list of that version.
    pub(super) fn list(version: u64, nodes: &[usize]) -> Bytes {
        let mut list = version.to_le_bytes().to_vec();
        nodes.iter().for_each(|node| list.extend_from_slice(&id(*node).0));
        list.into()
    }
}

impl Seal for Paper {
    fn seal(&mut self, bytes: &[u8]) -> Sealed {
        let certificate = [&self.me.0[..], self.name.as_bytes()].concat().into();
        let signature = Bytes::copy_from_slice(&Self::sign(self.me, bytes));
        Sealed { certificate, signature, bytes: Bytes::copy_from_slice(bytes) }
    }

    fn open(&mut self, sealed: &Sealed) -> Result<Signer, SealError> {
        let (node, name) = sealed.certificate.split_first_chunk().ok_or(SealError::Unreadable)?;
        let node = NodeId(*node);
        if sealed.signature[..] != Self::sign(node, &sealed.bytes) {
            return Err(SealError::Signature);
        }
        if self.revoked.contains(&node) {
            return Err(SealError::Revoked);
        }
        let name = String::from_utf8(name.to_vec()).map_err(|_| SealError::Unreadable)?;
        if name.starts_with("foreign") {
            return Err(SealError::Foreign);
        }
        Ok(Signer { node, name })
    }

    fn revoke(&mut self, _: NodeId, list: &[u8]) -> Result<u64, SealError> {
        let (version, nodes) = list.split_first_chunk().ok_or(SealError::Unreadable)?;
        let (nodes, _) = nodes.as_chunks::<32>();
        self.revoked = nodes.iter().copied().map(NodeId).collect();
        Ok(u64::from_le_bytes(*version))
    }
}

pub(super) fn settings(node: usize, seeds: &[usize]) -> MemberSettings {
    let address = |node: &usize| format!("node-{node}:7");
    MemberSettings {
        me: id(node),
        name: format!("node-{node}"),
        seeds: seeds.iter().map(address).collect(),
        retry_max: secs(4),
        own: OwnSettings { addresses: vec![address(&node)], ..OwnSettings::default() },
    }
}

/// Members and the links between them.
pub(super) struct Mesh {
    pub(super) now: Instant,
    pub(super) nodes: BTreeMap<usize, Members>,
    pub(super) saved: BTreeMap<usize, (Bytes, Option<Bytes>)>,
    pub(super) events: Vec<(usize, Event)>,
    /// Pairs, the lower first, that do not reach each other.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// By address, the node.
    by_address: BTreeMap<String, usize>,
    /// The two ends of each connection.
    ends: BTreeMap<(usize, LinkId), (usize, LinkId)>,
    pub(super) bytes: u64,
    pub(super) records: u64,
    draws: u64,
}

impl Mesh {
    pub(super) fn new() -> Self {
        Self {
            now: Instant::from_millis(1_000),
            nodes: BTreeMap::new(),
            saved: BTreeMap::new(),
            events: Vec::new(),
            cut: BTreeSet::new(),
            by_address: BTreeMap::new(),
            ends: BTreeMap::new(),
            bytes: 0,
            records: 0,
            draws: 0,
        }
    }

    /// So many that know the first, linked and quiet.
    pub(super) fn of(nodes: usize) -> Self {
        let mut mesh = Self::new();
        (0..nodes).for_each(|node| mesh.start(node, &[0]));
        mesh.run_for(secs(5));
        mesh
    }

    pub(super) fn start(&mut self, node: usize, seeds: &[usize]) {
        self.start_as(node, settings(node, seeds));
    }

    /// Begins with what a former process saved.
    pub(super) fn start_as(&mut self, node: usize, settings: MemberSettings) {
        self.draws += 1;
        let seal = Box::new(Paper::new(settings.me, &settings.name));
        let saved = self.saved.get(&node).map(|(own, records)| {
            Saved::of_bytes(own, records.as_deref()).expect("the files are whole")
        });
        self.by_address.extend(settings.own.addresses.iter().map(|it| (it.clone(), node)));
        let wall = 1_700_000_000 + node as u64;
        let members = Members::new(self.now, settings, seal, saved, self.draws, wall);
        self.nodes.insert(node, members);
        self.pump();
    }

    /// The process ends without a word.
    pub(super) fn kill(&mut self, node: usize) {
        self.nodes.remove(&node);
        let ends = self.ends.clone();
        for ((one, _), (other, link)) in ends {
            if one == node {
                self.end(other, link);
            }
        }
        self.pump();
    }

    /// A node ends its end of a link, and the other learns of it.
    fn end(&mut self, node: usize, link: LinkId) {
        let other = self.ends.remove(&(node, link));
        if let Some(members) = self.nodes.get_mut(&node) {
            members.handle_unlinked(self.now, link);
        }
        if let Some((other, their)) = other
            && self.ends.remove(&(other, their)).is_some()
            && let Some(members) = self.nodes.get_mut(&other)
        {
            members.handle_unlinked(self.now, their);
        }
    }

    pub(super) fn cut(&mut self, one: usize, other: usize) {
        self.cut.insert((one.min(other), one.max(other)));
        let ends = self.ends.clone();
        for ((from, link), (to, _)) in ends {
            if (from, to) == (one, other) {
                self.end(from, link);
            }
        }
        self.pump();
    }

    /// No node of one side reaches one of the other.
    pub(super) fn split(&mut self, one: &[usize], other: &[usize]) {
        one.iter().for_each(|a| other.iter().for_each(|b| self.cut(*a, *b)));
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.pump();
        loop {
            let due = self.nodes.values().filter_map(Members::poll_timeout).min();
            match due {
                Some(due) if due <= end => {
                    self.now = self.now.max(due);
                    for members in self.nodes.values_mut() {
                        if members.poll_timeout().is_some_and(|at| at <= self.now) {
                            members.handle_timeout(self.now);
                        }
                    }
                    self.pump();
                }
                _ => break,
            }
        }
        self.now = end;
    }

    /// Carries all that there is to be carried.
    pub(super) fn pump(&mut self) {
        loop {
            let mut is_still = true;
            let nodes: Vec<usize> = self.nodes.keys().copied().collect();
            for node in nodes {
                is_still &= !self.pump_one(node);
            }
            if is_still {
                return;
            }
        }
    }

    fn pump_one(&mut self, node: usize) -> bool {
        let now = self.now;
        let members = self.nodes.get_mut(&node).expect("it runs");
        let mut has_moved = false;
        while let Some(Save { ticket, own, records }) = members.poll_save() {
            let before = self.saved.remove(&node).and_then(|(_, records)| records);
            self.saved.insert(node, (own, records.or(before)));
            members.handle_saved(now, ticket);
            has_moved = true;
        }
        while let Some(event) = members.poll_event() {
            self.events.push((node, event));
        }
        let mut dials = Vec::new();
        while let Some(dial) = members.poll_dial(now) {
            dials.push(dial);
        }
        let links: Vec<LinkId> = members.links().map(|(link, _)| link).collect();
        let mut sent = Vec::new();
        for link in links {
            while let Some(record) = members.poll_transmit(link) {
                sent.push((link, record));
            }
        }
        has_moved |= !dials.is_empty() || !sent.is_empty();
        for (link, record) in sent {
            let mut out = bytes::BytesMut::new();
            record.encode(&mut out);
            self.bytes += out.len() as u64;
            self.records += 1;
            let Some((to, their)) = self.ends.get(&(node, link)).copied() else { continue };
            let record = Record::decode(&out).expect("it was encoded").expect("it is known");
            let to = self.nodes.get_mut(&to).expect("its links end with it");
            to.handle_record(now, their, record).expect("members keep to the protocol");
        }
        for dial in dials {
            self.dial(node, dial);
        }
        has_moved
    }

    fn dial(&mut self, node: usize, dial: Dial) {
        let now = self.now;
        let reached = dial.addresses.iter().find_map(|address| {
            let to = *self.by_address.get(address)?;
            let is_cut = self.cut.contains(&(node.min(to), node.max(to)));
            (self.nodes.contains_key(&to) && !is_cut).then_some(to)
        });
        let Some(to) = reached else {
            let members = self.nodes.get_mut(&node).expect("it runs");
            return members.handle_dial_failed(now, dial.target);
        };
        let peer = |node: &Members| node.settings.me;
        let (me, them) = (peer(&self.nodes[&node]), peer(&self.nodes[&to]));
        let here = self.nodes.get_mut(&node).expect("it runs");
        let Ok(here) = here.handle_linked(now, them, Some(dial.target), dial.number) else {
            return;
        };
        let there = self.nodes.get_mut(&to).expect("it runs");
        let there = there.handle_linked(now, me, None, dial.number);
        let Ok(there) = there else {
            // Two processes with one key: the other one has the link that stays.
            let here_is = self.nodes.get_mut(&node).expect("it runs");
            return here_is.handle_unlinked(now, here.link);
        };
        for (node, ends) in [(node, here.ends), (to, there.ends)] {
            if let Some(ended) = ends
                && let Some((other, their)) = self.ends.remove(&(node, ended))
            {
                self.ends.remove(&(other, their));
                self.nodes.get_mut(&other).expect("it runs").handle_unlinked(now, their);
            }
        }
        self.ends.insert((node, here.link), (to, there.link));
        self.ends.insert((to, there.link), (node, here.link));
    }

    /// How `of` stands at `at`.
    pub(super) fn presence(&self, at: usize, of: usize) -> Option<Presence> {
        self.nodes[&at].member(id(of)).map(|view| view.presence)
    }

    /// All members that run have the same records and one view, and see each other as here.
    #[track_caller]
    pub(super) fn assert_equal(&self) {
        let (first, members) = self.nodes.first_key_value().expect("one runs");
        for (node, other) in &self.nodes {
            assert_eq!(other.view(), members.view(), "views of {node} and {first}");
            assert_eq!(other.view_hash(), members.view_hash(), "views of {node} and {first}");
            assert_eq!(other.table.hash(), members.table.hash(), "records of {node} and {first}");
            for peer in self.nodes.keys() {
                assert_eq!(self.presence(*node, *peer), Some(Presence::Here), "{peer} at {node}");
            }
        }
    }

    pub(super) fn has_event(&self, node: usize, event: &Event) -> bool {
        self.events.iter().any(|(at, it)| *at == node && it == event)
    }
}

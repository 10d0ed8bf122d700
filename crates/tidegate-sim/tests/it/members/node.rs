//! A node that is nothing but a member: its links, its two files, and the facts for the oracle.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tidegate_fabric::{
    View,
    members::{
        DialNumber, Event, LinkId, MemberSettings, Members, OwnSettings, Presence, Sabotage, Save,
        Saved, Seal, SealError, Signer, Target,
    },
};
use tidegate_message::Instant;
use tidegate_sim::world::{Input, Mark, Message, Node, Process};
use tidegate_wire::{Absence, AbsenceKind, NodeId, Record, Sealed};

const OWN: &str = "own";
const RECORDS: &str = "records";
/// A full disk is tried again after this.
const RETRY: Duration = Duration::from_millis(500);

pub(super) struct Setup {
    pub(super) sabotage: Option<Sabotage>,
    pub(super) retry_max: Duration,
}

/// An encoded record.
pub(super) struct Say(Bytes);

impl Message for Say {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Say {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Record::decode(&self.0) {
            Ok(Some(Record::SharedPart(part))) => {
                write!(f, "{:?} of {:?}, version {}", part.key.kind, part.key.of, part.version)
            }
            Ok(Some(record)) => write!(f, "{record:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// A node says otherwise of itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Cameras(u8),
    Zone(u8),
}

/// Facts for the oracle.
#[derive(Debug)]
pub(super) enum Seen {
    /// A member is lost at this node.
    Lost(NodeId),
    /// A record of this node is newer than its files: it was restored.
    Restored,
    /// A mistake that a node sees by itself.
    Mistake(String),
}

pub(super) fn id(node: usize) -> NodeId {
    let [high, low] = u16::try_from(node + 1).expect("there are fewer").to_be_bytes();
    let mut id = [low; 32];
    id[31] = low.wrapping_add(high);
    NodeId(id)
}

fn name(NodeId([low, .., last]): NodeId) -> String {
    format!("node-{}", u16::from_be_bytes([last.wrapping_sub(low), low]))
}

/// All certificates are right, and no key is foreign: that others are refused is for other tests.
struct Trusting(NodeId);

impl Seal for Trusting {
    fn seal(&mut self, bytes: &[u8]) -> Sealed {
        let certificate = Bytes::copy_from_slice(&self.0.0);
        Sealed { certificate, signature: Bytes::new(), bytes: Bytes::copy_from_slice(bytes) }
    }

    fn open(&mut self, sealed: &Sealed) -> Result<Signer, SealError> {
        let node = sealed.certificate.first_chunk().ok_or(SealError::Unreadable)?;
        Ok(Signer { node: NodeId(*node), name: name(NodeId(*node)) })
    }

    fn revoke(&mut self, _: NodeId, _: &[u8]) -> Result<u64, SealError> {
        Err(SealError::Foreign)
    }
}

pub(super) struct Member {
    members: Members,
    own: OwnSettings,
    links: BTreeMap<usize, LinkId>,
    dialling: BTreeMap<usize, (Target, DialNumber)>,
    saving: VecDeque<(Mark, u64)>,
    retry_at: Option<Instant>,
    view: View,
    number: u64,
    said: Vec<Absence>,
}

impl Member {
    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    /// Does all that there is to be done.
    fn act(&mut self, node: &mut Node<'_, Self>) {
        let now = node.now();
        loop {
            let mut is_still = true;
            while let Some(save) = self.members.poll_save() {
                self.save(node, save);
                is_still = false;
            }
            while let Some(event) = self.members.poll_event() {
                match event {
                    Event::Lost(lost) => node.report(Seen::Lost(lost)),
                    Event::Restored => node.report(Seen::Restored),
                    Event::SameKey | Event::Missed | Event::Revoked(_) => {
                        node.report(Seen::Mistake(format!("{event:?}")));
                    }
                    _ => {}
                }
            }
            while let Some(dial) = self.members.poll_dial(now) {
                is_still = false;
                let peer: Option<usize> = dial.addresses.first().and_then(|it| it.parse().ok());
                match peer.filter(|peer| *peer != node.me() && !self.dialling.contains_key(peer)) {
                    Some(peer) if !node.is_linked(peer) => {
                        self.dialling.insert(peer, (dial.target, dial.number));
                        node.dial(peer);
                    }
                    _ => self.members.handle_dial_failed(now, dial.target),
                }
            }
            for (peer, link) in &self.links {
                while let Some(record) = self.members.poll_transmit(*link) {
                    let mut out = BytesMut::new();
                    record.encode(&mut out);
                    node.send(*peer, Say(out.freeze()));
                    is_still = false;
                }
            }
            if is_still {
                break;
            }
        }
        self.look(node);
    }

    fn save(&mut self, node: &mut Node<'_, Self>, save: Save) {
        let Save { ticket, own, records } = save;
        let with_sum = |bytes: &Bytes| [&sum(bytes).to_le_bytes()[..], bytes].concat();
        let disk = node.disk();
        let mut is_full = disk.replace(OWN, &with_sum(&own)).is_err();
        if let Some(records) = records {
            is_full |= disk.replace(RECORDS, &with_sum(&records)).is_err();
        }
        if is_full {
            self.retry_at = Some(node.now() + RETRY);
        } else {
            let mark = node.sync();
            self.saving.push_back((mark, ticket));
        }
    }

    /// Looks for mistakes that show here.
    fn look(&mut self, node: &mut Node<'_, Self>) {
        let view = self.members.view();
        if !view.includes(&self.view) {
            node.report(Seen::Mistake("a view is not later than the one before".to_owned()));
        }
        let number = self.members.number();
        if number < self.number {
            node.report(Seen::Mistake("a number falls".to_owned()));
        }
        let said = self.members.member(id(node.me())).map(|own| own.record.absences.clone());
        let said = said.unwrap_or_default();
        for word in &self.said {
            let is_over = self.members.member(word.node).is_none_or(|view| {
                view.record.number > word.number || view.presence == Presence::Left
            });
            let is_kept = said.iter().any(|it| it.node == word.node && it.kind >= word.kind);
            if word.kind > AbsenceKind::Doubted && !is_over && !is_kept {
                node.report(Seen::Mistake("a word is withdrawn at its number".to_owned()));
            }
        }
        (self.view, self.number, self.said) = (view, number, said);
    }
}

impl Process for Member {
    type Setup = Setup;
    type Message = Say;
    type Request = Request;
    type Report = Seen;

    fn begin(setup: &Setup, node: &mut Node<'_, Self>) -> Self {
        let me = node.me();
        let read = |node: &mut Node<'_, Self>, name| {
            let (found, bytes) = node.disk().read(name)?.split_first_chunk()?;
            (u64::from_le_bytes(*found) == sum(bytes)).then(|| bytes.to_vec())
        };
        let (own, records) = (read(node, OWN), read(node, RECORDS));
        let saved = own
            .map(|own| Saved::of_bytes(&own, records.as_deref()).expect("its checksum is right"));
        let own = OwnSettings { addresses: vec![me.to_string()], ..OwnSettings::default() };
        let settings = MemberSettings {
            me: id(me),
            name: name(id(me)),
            seeds: vec!["0".to_owned(), "1".to_owned()],
            retry_max: setup.retry_max,
            own: own.clone(),
        };
        let wall = u64::try_from(node.wall().as_nanos()).unwrap_or(0) / 1_000_000_000;
        let (now, draw) = (node.now(), node.random().bits());
        let mut members =
            Members::new(now, settings, Box::new(Trusting(id(me))), saved, draw, wall);
        setup.sabotage.into_iter().for_each(|sabotage| members.sabotage(sabotage));
        let mut member = Self {
            view: members.view(),
            number: members.number(),
            members,
            own,
            links: BTreeMap::new(),
            dialling: BTreeMap::new(),
            saving: VecDeque::new(),
            retry_at: None,
            said: Vec::new(),
        };
        member.act(node);
        member
    }

    fn handle(&mut self, node: &mut Node<'_, Self>, input: Input<Say, Request>) {
        let now = node.now();
        match input {
            Input::Linked(peer) => {
                let dialled = self.dialling.remove(&peer);
                // Two nodes have one connection at a time here.
                let number = dialled.map(|(_, number)| number).unwrap_or_default();
                let by = dialled.map(|(target, _)| target);
                match self.members.handle_linked(now, id(peer), by, number) {
                    Ok(taken) => drop(self.links.insert(peer, taken.link)),
                    Err(_) => node.hang_up(peer),
                }
            }
            Input::Unlinked(peer) => {
                if let Some(link) = self.links.remove(&peer) {
                    self.members.handle_unlinked(now, link);
                } else if let Some((target, _)) = self.dialling.remove(&peer) {
                    self.members.handle_dial_failed(now, target);
                }
            }
            Input::Message(peer, Say(bytes)) => {
                let record = Record::decode(&bytes).expect("it was encoded").expect("it is known");
                if let Some(link) = self.links.get(&peer)
                    && let Err(error) = self.members.handle_record(now, *link, record)
                {
                    node.report(Seen::Mistake(error.to_string()));
                }
            }
            Input::Request(Request::Cameras(count)) => {
                let name = |index| format!("camera-{index}").parse().expect("a name");
                self.members.set_cameras(now, (0..count).map(name).collect());
            }
            Input::Request(Request::Zone(zone)) => {
                self.own.zone = zone.to_string();
                self.members.set_own(now, self.own.clone());
            }
            Input::Synced(mark) => {
                while let Some((_, ticket)) = self.saving.pop_front_if(|(at, _)| *at <= mark) {
                    self.members.handle_saved(now, ticket);
                }
            }
            Input::Timeout => {
                self.members.handle_timeout(now);
                if self.retry_at.take_if(|at| *at <= now).is_some() {
                    let save = self.members.last_save();
                    self.save(node, save);
                }
            }
        }
        self.act(node);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.members.poll_timeout().into_iter().chain(self.retry_at).min()
    }
}

/// A checksum that no single bit escapes.
fn sum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

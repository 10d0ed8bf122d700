//! Members of a fabric: which nodes there are, where they are and which of them are gone, the same at all nodes, without a leader.
//!
//! ```text
//!  own record ─ sealed, saved ─▶ Table of records ─▶ standings ─▶ View, events
//!  SharedPart of a link ─ opened ─▶    │   ▲
//!                                      ▼   └─ words: whom a member misses, in its own record
//!             each Link: keys that its peer lacks ─▶ SharedPart; hash and lists ─▶ MemberDigest
//! ```
//!
//! **Records spread** as they were sealed, byte for byte: a relay cannot change them, and fields that only a later version knows pass. A
//! record that is newly learnt is sent on to all other links at once. On a new link, and every [`limits::HASH_EVERY`], two nodes compare
//! a hash of all that they hold; where it differs both list, and each sends what the other lacks.
//!
//! **Absence is a word in the record of the observer.** A member is lost once two say so of it at its number, or one of whom it was the
//! only other member, or a person has forgotten it. Words about a lost member are never withdrawn at that number, so that a view only
//! grows; the member answers with the next number. A word that would vanish (its observer's record is dropped, or revoked) is said again
//! by a member that knows it. A *doubt* is withdrawn when the link is there again, and asks a question before anything is lost: the member
//! that any way of others reaches answers with a newer record (see `miss.rs`). So members that cannot reach each other do not lose
//! each other, and nothing is lost while it is heard of.
//!
//! **Numbers.** Of two records of a member the later one has the higher number, then the greater start, then the higher version, so that
//! the order of records is the one of views. The number rises when others have lost it, when it comes back after it left, when
//! it has a new start, or when a place depends on what changed. No record leaves before it was saved ([`Members::poll_save`]): one of this
//! node that is newer than it ever wrote shows a folder that was restored, lost, or copied.
//!
//! **Bounds.** [`limits::PRESENT_MAX`] members are here at the most. Of those that are gone the ones with the oldest records are dropped,
//! by one rule at all nodes; a record that would be dropped at once is refused. Nothing is queued for a link but the keys that its peer
//! lacks. Wall clocks decide which gone record is the oldest, and nothing else.

mod dial;
mod event;
mod found;
mod learn;
pub mod limits;
mod link;
mod miss;
mod observer;
mod own;
mod own_acts;
mod pace;
mod relay;
mod saved;
mod seal;
mod table;

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::{CameraName, GeoPoint, Instant};
use tidegate_wire::{MemberRecord, NodeId, Record, SharedKey, SharedKind};

use self::{
    dial::Dials,
    found::Found,
    limits::*,
    link::Link,
    miss::{Miss, Watch},
    own::{Own, Pending},
    table::Table,
};
pub use self::{
    dial::{Dial, DialNumber, Target},
    event::{Counts, Event, ForgetError, MemberError, Refusal, TurnedAway},
    pace::Pace,
    relay::{Passage, RelayError},
    saved::{Save, Saved, SavedError},
    seal::{Seal, SealError, Signer},
    table::Presence,
};
use crate::view::View;

/// The version of the algorithm by which places are computed: nodes with another one are in another view. It is that of `tidegate-place`,
/// as the shell which joins the two asserts.
pub const ALGORITHM: u8 = 1;

/// The node itself, and the nodes that it dials.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberSettings {
    /// The hash of its key.
    pub me: NodeId,
    /// The name in its certificate.
    pub name: String,
    /// Host and port of members that are dialled whether they are known or not. Its own address does no harm.
    pub seeds: Vec<String>,
    /// The longest wait before a node that cannot be reached is dialled again.
    pub retry_max: Duration,
    /// The rest, which may change.
    pub own: OwnSettings,
}

/// The part of a node's record that may change while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnSettings {
    /// Where other members dial it, host and port each; the first eight count.
    pub addresses: Vec<String>,
    /// Where applications find its API, host and port each; the first eight count.
    pub api_addresses: Vec<String>,
    /// Where it is.
    pub position: Option<GeoPoint>,
    /// Whether it moves: then it owns nothing by its place.
    pub is_mobile: bool,
    /// Nodes of one zone fail together.
    pub zone: String,
    /// Its share of what members own, in hundredths of that of a usual one, from 1 to [`limits::WEIGHT_MAX`].
    pub weight: u16,
    /// The name of the member that relays its messages to all others, and theirs to it; empty for none.
    pub via: String,
}

impl Default for OwnSettings {
    /// Without addresses, position and relay, stationary, and of the usual weight.
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            api_addresses: Vec::new(),
            position: None,
            is_mobile: false,
            zone: String::new(),
            weight: 100,
            via: String::new(),
        }
    }
}

/// A link, from when it was taken until it ends. No two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u64);

/// A link that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its name.
    pub link: LinkId,
    /// The link to the same node in whose place it is. The shell ends that one; nothing that comes of it counts any more.
    pub ends: Option<LinkId>,
}

/// A member as this node knows it.
#[derive(Clone, Copy, Debug)]
pub struct MemberView<'a> {
    /// Its record.
    pub record: &'a MemberRecord,
    /// How it stands.
    pub presence: Presence,
    /// Whether this node has a link to it.
    pub is_linked: bool,
    /// Whether it is this node.
    pub is_me: bool,
    /// The cameras at it, in order.
    pub cameras: &'a [CameraName],
    /// How many other members miss it.
    pub missed_by: usize,
}

/// Mistakes that a member must not make, for tests which show that they are found.
#[cfg(any(test, feature = "sabotage"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A member that is lost keeps its number.
    NumberStays,
    /// A word is withdrawn when the link is there again.
    WordsAreWithdrawn,
    /// Records leave before they are saved.
    UnsavedLeave,
    /// Doubts are not answered.
    DoubtsAreSilent,
}

/// The members of a fabric, as one of them knows them.
///
/// The shell calls a `handle_…` for all that happens, and afterwards asks each `poll_…` until it has nothing more; `now` is of a
/// monotonic clock.
pub struct Members {
    settings: MemberSettings,
    seal: Box<dyn Seal + Send>,
    watch: Watch,
    began: Instant,
    wall_seconds: u64,
    draw: u64,
    own: Own,
    table: Table,
    links: BTreeMap<LinkId, Link>,
    linked: BTreeMap<NodeId, LinkId>,
    last_link: u64,
    last_dial: DialNumber,
    dials: Dials,
    found: Found,
    /// Members that are not gone and have no link.
    misses: BTreeMap<NodeId, Miss>,
    /// Gone members whose words have vanished, and when they are said again.
    unproved: BTreeMap<NodeId, Duration>,
    hash_at: Instant,
    tick_at: Option<Instant>,
    events: VecDeque<Event>,
    saves: Saves,
    counts: Counts,
    #[cfg(any(test, feature = "sabotage"))]
    sabotage: Option<Sabotage>,
}

#[derive(Debug, Default)]
struct Saves {
    last: u64,
    must: bool,
    /// When the records of others are to be saved, if they have changed, and whether they are to be now.
    records_at: Option<Instant>,
    records: bool,
    saved_at: Option<Instant>,
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { settings, counts, .. } = self;
        f.debug_struct("Members").field("me", &settings.me).field("counts", counts).finish()
    }
}

impl Members {
    /// Begins with what a former process saved; without that, with a new start. `draw` is 64 bits of chance; `wall_seconds` are those since
    /// 1970 by the clock on the wall.
    pub fn new(
        now: Instant,
        settings: MemberSettings,
        seal: Box<dyn Seal + Send>,
        saved: Option<Saved>,
        draw: u64,
        wall_seconds: u64,
    ) -> Self {
        let Saved { own, records } = saved.clone().unwrap_or_default();
        let own = saved.map(|_| own);
        let mut members = Self {
            own: Own::new(own, mix(draw), mix(draw ^ 1)),
            watch: Watch::new(now),
            began: now,
            wall_seconds,
            draw: mix(draw ^ 2),
            table: Table::new(settings.me),
            links: BTreeMap::new(),
            linked: BTreeMap::new(),
            last_link: 0,
            last_dial: DialNumber { process: (mix(draw ^ 4) >> 32) as u32, count: 0 },
            dials: Dials::new(settings.retry_max, mix(draw ^ 3)),
            found: Found::default(),
            misses: BTreeMap::new(),
            unproved: BTreeMap::new(),
            hash_at: now + HASH_EVERY,
            tick_at: None,
            events: VecDeque::new(),
            saves: Saves::default(),
            counts: Counts::default(),
            seal,
            settings,
            #[cfg(any(test, feature = "sabotage"))]
            sabotage: None,
        };
        members.load(now, records);
        for seed in 0..members.settings.seeds.len() {
            members.dials.want(Target::Seed(seed), now);
        }
        members.own.want_write(now, true);
        members.write(now);
        members
    }

    fn load(&mut self, now: Instant, records: Vec<saved::SavedRecord>) {
        let (mut records, mut revoked) = (records, Vec::new());
        // Lists of revoked certificates first, then members, then what is said of them.
        records.sort_by_key(|record| (record.key.kind != SharedKind::Revocations, record.key.kind));
        for saved::SavedRecord { key, version, bytes } in records {
            if key.of == self.settings.me {
                continue;
            }
            // One that is refused for another reason is not missed: its certificate has ended, and a newer record may come.
            let learnt = self.learn(now, key, version, bytes);
            if learnt == Err(SealError::Revoked.into()) && key.kind == SharedKind::Member {
                revoked.push(key.of);
            }
        }
        let nodes: Vec<NodeId> = self.misses.keys().copied().collect();
        for node in nodes {
            // A former process had links to them.
            self.miss(now, node, Miss::away(self.watch.counted()));
        }
        self.events.clear();
        self.saves.records_at = None;
        for node in revoked {
            // They were while this node was down, and are told of once.
            self.event(Event::Revoked(node));
            self.records_changed(now);
        }
    }

    // ---- links

    /// There is a connection to a member, whose handshake is done: this node dialled it `by` an order of [`Members::poll_dial`], or the
    /// other one did, and `number` is that of the dial. Of two connections between the same two nodes the one that the lower of them dialled
    /// stays, and of two that the same one dialled the newer by its number, in whatever order each end learns of them: so both keep the same.
    ///
    /// # Errors
    /// [`TurnedAway`]: the shell ends it.
    pub fn handle_linked(
        &mut self,
        now: Instant,
        peer: NodeId,
        by: Option<Target>,
        number: DialNumber,
    ) -> Result<Taken, TurnedAway> {
        self.watch_advance(now);
        if peer == self.settings.me {
            by.into_iter().for_each(|by| self.dials.rest(by));
            return Err(TurnedAway::Myself);
        }
        if self.own.has_left {
            return Err(TurnedAway::Leaving);
        }
        if let Some(by @ Target::Member(whom)) = by
            && whom != peer
        {
            self.dials.handle_failed(now, by);
        }
        self.dials.handle_linked(peer, by);
        let is_ours = by.is_some();
        let old = self.linked.get(&peer).copied();
        if let Some(old) = old.and_then(|old| self.links.get(&old)) {
            let lower_is_me = self.settings.me < peer;
            let yields = match old.is_ours == is_ours {
                true => number.is_before(old.number),
                false => is_ours != lower_is_me,
            };
            if yields {
                return Err(TurnedAway::HasLink);
            }
        }
        self.last_link += 1;
        let link = LinkId(self.last_link);
        if let Some(old) = old {
            self.links.remove(&old);
        }
        self.links.insert(link, Link::new(now, peer, is_ours, number));
        self.linked.insert(peer, link);
        self.misses.remove(&peer);
        if self.own.doubts.remove(&peer) {
            self.own.want_write(now, false);
        }
        #[cfg(any(test, feature = "sabotage"))]
        if self.has(Sabotage::WordsAreWithdrawn) {
            self.own.withdraw(peer);
            self.own.want_write(now, false);
        }
        self.settle(now, vec![peer]);
        self.write(now);
        Ok(Taken { link, ends: old })
    }

    /// A link has ended. One in whose place there is another, or that was turned away, changes nothing.
    pub fn handle_unlinked(&mut self, now: Instant, link: LinkId) {
        self.watch_advance(now);
        let Some(Link { peer, since, .. }) = self.links.remove(&link) else { return };
        self.linked.remove(&peer);
        let standing = self.table.member(peer).map(|held| held.standing());
        if standing.is_some_and(|standing| !standing.is_gone()) {
            self.miss(now, peer, Miss::away(self.watch.counted()));
        }
        if !self.own.has_left {
            let held = now.since(since) >= LINK_HOLDS;
            self.dials.handle_unlinked(now, peer, held, self.is_dialled(peer));
        }
        self.settle(now, vec![peer]);
        self.write(now);
    }

    /// A record has come of a link.
    ///
    /// # Errors
    /// [`MemberError`]: the peer breaks the protocol, and the link is to be ended. A record that is refused is counted, and is none.
    pub fn handle_record(
        &mut self,
        now: Instant,
        link: LinkId,
        record: Record,
    ) -> Result<(), MemberError> {
        self.watch_advance(now);
        let from = self.links.get_mut(&link).ok_or(MemberError::NoLink)?;
        match record {
            Record::MemberDigest(digest) => {
                from.handle_digest(now, &self.table, &digest)?;
                self.counts.lists += u64::from(from.handle_timeout(now));
            }
            Record::SharedPart(part) => {
                if let Some((key, version, bytes)) = from.handle_part(&self.table, part)? {
                    self.handle_shared(now, link, key, version, bytes);
                }
            }
            other => return Err(MemberError::Unexpected { found: other.name() }),
        }
        self.write(now);
        Ok(())
    }

    fn handle_shared(
        &mut self,
        now: Instant,
        link: LinkId,
        key: SharedKey,
        version: u64,
        bytes: Option<Bytes>,
    ) {
        let Some(bytes) = bytes else {
            self.counts.old += 1;
            return;
        };
        match self.learn(now, key, version, bytes) {
            Ok(()) => {
                self.counts.taken += 1;
                if let Some(from) = self.links.get_mut(&link) {
                    from.has_gained();
                }
                self.spread(key, Some(link));
                self.records_changed(now);
            }
            Err(Refusal::Old { found, held }) => {
                self.counts.old += 1;
                // The peer takes it for newer, by its version, and is to have the later one.
                if found > held
                    && let Some(from) = self.links.get_mut(&link)
                {
                    from.lacks(key);
                }
            }
            Err(refusal) => {
                self.counts.refused += 1;
                self.counts.revoked += u64::from(refusal == Refusal::Seal(SealError::Revoked));
                self.counts.too_often += u64::from(refusal == Refusal::TooOften);
                self.counts.no_room += u64::from(matches!(
                    refusal,
                    Refusal::TooMany { .. }
                        | Refusal::TooLarge { .. }
                        | Refusal::TooManyLists { .. }
                ));
            }
        }
    }

    /// The next record for a link, to be asked for when the link has room: nothing waits for it but the keys of what its peer lacks.
    pub fn poll_transmit(&mut self, link: LinkId) -> Option<Record> {
        self.links.get_mut(&link)?.poll_transmit(&self.table)
    }

    /// All links, with their peers.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, NodeId)> {
        self.links.iter().map(|(link, Link { peer, .. })| (*link, *peer))
    }

    /// All links but that one are to send that record.
    fn spread(&mut self, key: SharedKey, but: Option<LinkId>) {
        for (link, to) in &mut self.links {
            if Some(*link) != but {
                to.lacks(key);
            }
        }
    }

    // ---- dialling

    /// The next node that is to be dialled now, at most [`limits::DIALS_MAX`] at a time.
    pub fn poll_dial(&mut self, now: Instant) -> Option<Dial> {
        loop {
            let target = self.dials.poll(now)?;
            let addresses = match target {
                Target::Seed(seed) => vec![self.settings.seeds[seed].clone()],
                Target::Member(node)
                    if self.is_dialled(node) && !self.linked.contains_key(&node) =>
                {
                    let held = self.table.member(node);
                    held.map(|held| held.record.addresses.clone()).unwrap_or_default()
                }
                Target::Found(node) if !self.linked.contains_key(&node) => {
                    let at = self.found.at(now, node);
                    at.map(|at| at.to_string()).into_iter().collect()
                }
                Target::Member(_) | Target::Found(_) => Vec::new(),
            };
            if addresses.is_empty() {
                match target {
                    Target::Found(_) => self.dials.forget(target),
                    Target::Seed(_) | Target::Member(_) => self.dials.rest(target),
                }
                continue;
            }
            self.last_dial.count = self.last_dial.count.wrapping_add(1);
            return Some(Dial { target, addresses, number: self.last_dial });
        }
    }

    /// A dial came to no connection. It is tried again, for ever.
    pub fn handle_dial_failed(&mut self, now: Instant, target: Target) {
        self.watch_advance(now);
        self.dials.handle_failed(now, target);
    }

    /// A dial was refused since the certificate of this node is revoked. It is tried again, rarely.
    pub fn handle_dial_refused(&mut self, now: Instant, target: Target) {
        self.watch_advance(now);
        self.dials.handle_refused(now, target);
    }

    /// The local network has named a node that may be a member, with the address of its links. It is dialled unless it has a link, and as long as
    /// it is named again within [`limits::FOUND_FOR`]. Whether that is news: this node should name itself, too, for the other may be
    /// new. Of more than [`limits::FOUND_OF_HOST_MAX`] at one host, or [`limits::FOUND_MAX`] in all, those that came last are left out.
    pub fn handle_found(&mut self, now: Instant, node: NodeId, at: SocketAddr) -> bool {
        if node == self.settings.me || self.own.has_left {
            return false;
        }
        let Some(is_news) = self.found.name(now, node, at) else { return false };
        if !self.linked.contains_key(&node) {
            let wait = if self.settings.me < node { Duration::ZERO } else { HIGHER_WAITS };
            self.dials.want(Target::Found(node), now + wait);
        }
        is_news
    }

    /// Where the local network has named a node, if it has of late.
    pub fn found_at(&self, now: Instant, node: NodeId) -> Option<SocketAddr> {
        self.found.at(now, node)
    }

    fn is_dialled(&self, node: NodeId) -> bool {
        let is_wanted = |presence| !matches!(presence, Presence::Left | Presence::Forgotten);
        self.table
            .member(node)
            .is_some_and(|held| is_wanted(held.standing()) && !held.record.addresses.is_empty())
    }

    fn want_dial(&mut self, now: Instant, node: NodeId) {
        if !self.own.has_left && !self.linked.contains_key(&node) && self.is_dialled(node) {
            if self.table.member(node).is_some_and(|held| held.standing().is_gone()) {
                return self.dials.want_rarely(Target::Member(node), now);
            }
            let wait = if self.settings.me < node { Duration::ZERO } else { HIGHER_WAITS };
            self.dials.want(Target::Member(node), now + wait);
        }
    }

    // ---- files

    /// A state that is to be written, and synced, before the records that it has are sent: [`Members::handle_saved`] says that it is.
    pub fn poll_save(&mut self) -> Option<Save> {
        let has_records = std::mem::take(&mut self.saves.records);
        if !std::mem::take(&mut self.saves.must) && !has_records {
            return None;
        }
        Some(self.save(has_records))
    }

    /// The whole state, to be written at the end of the process.
    pub fn last_save(&mut self) -> Save {
        self.save(true)
    }

    fn save(&mut self, has_records: bool) -> Save {
        self.saves.last += 1;
        let ticket = self.saves.last;
        if let Some(pending) = &mut self.own.pending {
            pending.ticket = Some(ticket);
        }
        let me = self.settings.me;
        let records = has_records.then(|| {
            let others = self.table.shared_after(None).filter(|(key, _)| key.of != me);
            saved::records_to_bytes(
                others.map(|(key, shared)| (*key, shared.version, &shared.bytes)),
            )
        });
        Save { ticket, own: self.own.saved().to_bytes(), records }
    }

    /// That state is on the disk. A shell whose disk fails may say so all the same: then the node may later come again as one that was
    /// restored.
    pub fn handle_saved(&mut self, now: Instant, ticket: u64) {
        self.watch_advance(now);
        let is_saved = |pending: &Pending| pending.ticket.is_some_and(|own| own <= ticket);
        if self.own.pending.as_ref().is_some_and(is_saved) {
            self.publish(now);
        }
    }

    fn records_changed(&mut self, now: Instant) {
        if self.saves.records_at.is_none() {
            // Most changes do not come alone.
            let at = self
                .saves
                .saved_at
                .map_or(now + SAVED_AFTER, |at| (now + SAVED_AFTER).max(at + SAVE_EVERY));
            self.saves.records_at = Some(at);
            self.saves.saved_at = Some(at);
        }
    }

    // ---- events and answers

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn event(&mut self, event: Event) {
        // A shell that does not ask loses events, and learns that it did.
        match self.events.len() {
            EVENTS_MAX.. => {}
            len if len + 1 == EVENTS_MAX => self.events.push_back(Event::Missed),
            _ => self.events.push_back(event),
        }
    }

    /// All members that are known, this node among them, by their keys.
    pub fn members(&self) -> impl Iterator<Item = MemberView<'_>> {
        self.table.members().filter_map(|(node, _)| self.member(node))
    }

    /// A member, if it is known.
    pub fn member(&self, node: NodeId) -> Option<MemberView<'_>> {
        let held = self.table.member(node)?;
        Some(MemberView {
            record: &held.record,
            presence: self.presence(node)?,
            is_linked: self.linked.contains_key(&node),
            is_me: node == self.settings.me,
            cameras: self.table.cameras(node),
            missed_by: self.table.missed_by(node, self.settings.me),
        })
    }

    /// Names that several members which are not gone have, and those members, by their keys: one of them took the name of another.
    pub fn same_names(&self) -> BTreeMap<&str, Vec<NodeId>> {
        let mut by_name = BTreeMap::<&str, Vec<NodeId>>::new();
        for (node, held) in self.table.members().filter(|(_, held)| !held.standing().is_gone()) {
            by_name.entry(&held.record.name).or_default().push(node);
        }
        by_name.retain(|_, nodes| nodes.len() > 1);
        by_name
    }

    /// Members that write records more often than others take them over, within the last [`limits::HURRIED_FOR`].
    pub fn hurried(&self, now: Instant) -> impl Iterator<Item = NodeId> {
        let is_it =
            move |held: &table::Held| held.hurried_at.is_some_and(|at| now.since(at) < HURRIED_FOR);
        self.table.members().filter(move |(_, held)| is_it(held)).map(|(node, _)| node)
    }

    /// The link to a member, if there is one.
    pub fn link_to(&self, node: NodeId) -> Option<LinkId> {
        self.linked.get(&node).copied()
    }

    /// The members at which there is a camera of that name, those that are here first.
    pub fn where_camera(&self, camera: &CameraName) -> Vec<&MemberRecord> {
        let has = |view: &MemberView<'_>| {
            !view.presence.is_gone() && view.cameras.binary_search(camera).is_ok()
        };
        let mut found: Vec<MemberView<'_>> = self.members().filter(has).collect();
        found.sort_by_key(|view| view.presence);
        found.into_iter().map(|view| view.record).collect()
    }

    /// The view that the records come to.
    pub fn view(&self) -> View {
        self.table.view()
    }

    /// The same at all nodes that have the same view and compute places by the same version of the algorithm.
    pub fn view_hash(&self) -> u64 {
        self.table.view_hash(ALGORITHM)
    }

    /// This node's number: it never falls.
    pub fn number(&self) -> u64 {
        self.own.number
    }

    /// This node's start.
    pub fn start(&self) -> u64 {
        self.own.start
    }

    /// Numbers for people.
    pub fn counts(&self) -> Counts {
        Counts {
            present: self.table.present(),
            gone: self.table.gone(),
            links: self.links.len(),
            bytes: self.table.bytes(),
            ..self.counts
        }
    }

    /// Makes a mistake from now on.
    #[cfg(any(test, feature = "sabotage"))]
    pub fn sabotage(&mut self, sabotage: Sabotage) {
        self.sabotage = Some(sabotage);
    }

    #[cfg(any(test, feature = "sabotage"))]
    fn has(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }
}
/// A time below [`SPREAD`], of an observer and a member.
fn spread(observer: NodeId, member: NodeId) -> Duration {
    let bits = |NodeId(bytes): NodeId| {
        u64::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default())
    };
    let drawn = mix(mix(bits(observer)) ^ bits(member));
    SPREAD.mul_f64((drawn >> 40) as f64 / (1_u64 << 24) as f64)
}

/// The output function of SplitMix64, as for places.
fn mix(value: u64) -> u64 {
    crate::view::mix(value)
}

#[cfg(test)]
mod tests;

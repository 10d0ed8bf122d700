//! From the records of journals back to what they say.
//!
//! A record may be missing where the disk or the power failed; the remaining ones are taken as they are. Records repeated
//! at a checkpoint come again, and change nothing that is known.
//!
//! Always true: no bytes lead to a panic; a session is there only if a record says whose it is.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::{Identity, IdentityKind, Instant, topic_matches};
use tidegate_wire::mqtt::{PacketId, QoS};

use crate::record::{
    CameFrom, Opened, Options, Record, RecordError, RetainedAs, Sent, Source, StoredMessage,
    StoredWill, Waiting,
};

/// The state that one journal describes, read record by record.
#[derive(Debug, Default)]
pub struct Replay {
    sessions: BTreeMap<u64, Session>,
    messages: HashMap<u64, Arc<StoredMessage>>,
    /// By number, what went to other shards.
    sent: BTreeMap<u64, (u8, Sent, Arc<StoredMessage>)>,
    seen: HashMap<u8, Seen>,
    /// By shard and the number there, the number here of what came; once something is handed over.
    arrived: Option<HashMap<u8, BTreeMap<u64, u64>>>,
    /// Of what is handed over, by number, the number before which it stands.
    places: HashMap<u64, u64>,
    /// By topic.
    retained: HashMap<Arc<str>, Retained>,
    /// Records that were read, to order later ones after earlier ones.
    records: u64,
    /// The records since a checkpoint began after which no earlier one counts.
    since: Option<Box<Replay>>,
    /// Nanoseconds that the clock of the process that wrote it was behind.
    behind: i64,
}

#[derive(Debug)]
struct Retained {
    how: RetainedAs,
    message: Arc<StoredMessage>,
    /// When it was read, by records: messages lie in memory in that order, and at a checkpoint are written in that of topics.
    read: u64,
}

#[derive(Debug, Default)]
struct Seen {
    before: u64,
    numbers: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Session {
    opened: Option<Opened>,
    closed: Option<Closed>,
    subscriptions: BTreeMap<Box<str>, Options>,
    /// By the message's number.
    waiting: BTreeMap<u64, Entry>,
    /// Of exchanges that have begun, the messages.
    begun: HashMap<PacketId, u64>,
    /// Identifiers that await PUBCOMP, and when PUBREC came.
    accepted: Vec<(PacketId, u64)>,
    received: Vec<PacketId>,
}

#[derive(Clone, Debug)]
struct Closed {
    expiry: Option<Duration>,
    ends_at: Option<Instant>,
    will: Option<(StoredWill, Instant)>,
}

#[derive(Clone, Debug)]
struct Entry {
    waiting: Waiting,
    /// When it began, by records.
    began: u64,
}

impl Replay {
    /// The state of one journal whose writer had a clock that was so many nanoseconds behind, or ahead if it is negative: a machine that
    /// starts in 1970 gets the time later.
    pub fn of_clock_behind(nanos: i64) -> Self {
        Self { behind: nanos, ..Self::default() }
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// The bytes are none; they are passed over.
    pub fn read(&mut self, bytes: &Bytes) -> Result<(), RecordError> {
        let mut record = Record::decode(bytes)?;
        record.shift(self.behind);
        self.apply(record);
        Ok(())
    }

    /// Takes the next record.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Checkpoint { is_complete: false } => {
                // So that later messages can still be distinguished from earlier ones.
                let since = Self { records: self.records, behind: self.behind, ..Self::default() };
                self.since = Some(Box::new(since));
                return;
            }
            Record::Checkpoint { is_complete: true } => {
                // Where the beginning is damaged, all is taken as it is.
                if let Some(since) = self.since.take() {
                    *self = *since;
                }
                return;
            }
            _ => {}
        }
        if let Some(since) = &mut self.since {
            since.apply(record.clone());
        }
        self.records += 1;
        let now = self.records;
        match record {
            Record::Opened(opened) => {
                let session = self.session(opened.session);
                session.closed = None;
                if opened.client_id.is_empty() {
                    session.leave();
                }
                session.opened = Some(opened);
            }
            Record::Closed { session, expiry, ends_at, will } => {
                self.session(session).closed = Some(Closed { expiry, ends_at, will });
            }
            Record::Ended { session } => drop(self.sessions.remove(&session)),
            Record::Subscribed { session, filter, options } => {
                self.session(session).subscriptions.insert(filter, options);
            }
            Record::Unsubscribed { session, filter } => {
                self.session(session).subscriptions.remove(&filter);
            }
            Record::Message(message) => self.message(message, now),
            Record::Queued { number, waiting } => self.wait(number, waiting, now),
            Record::Begun { session, number, id } => {
                let session = self.session(session);
                session.free(id, number);
                if let Some(entry) = session.waiting.get_mut(&number) {
                    entry.waiting.begun = Some(id);
                    entry.began = now;
                    session.begun.insert(id, number);
                }
            }
            Record::Accepted { session, id } => {
                let session = self.session(session);
                if let Some(number) = session.begun.remove(&id) {
                    session.waiting.remove(&number);
                }
                session.accepted.retain(|(other, _)| *other != id);
                session.accepted.push((id, now));
            }
            Record::Done { session, number } => {
                let session = self.session(session);
                let done = session.waiting.remove(&number);
                if let Some(id) = done.and_then(|entry| entry.waiting.begun) {
                    session.forget(id, number);
                }
            }
            Record::Completed { session, id } => {
                self.session(session).accepted.retain(|(other, _)| *other != id);
            }
            Record::Noted { session, id } => self.note(session, id),
            Record::Released { session, id } => {
                self.session(session).received.retain(|other| *other != id);
            }
            Record::Seen { shard, number, and_before } => {
                let seen = self.seen.entry(shard).or_default();
                if and_before {
                    seen.before = seen.before.max(number);
                    seen.numbers = seen.numbers.split_off(&(number.saturating_add(1)));
                } else {
                    seen.numbers.insert(number);
                }
            }
            Record::Confirmed { shard, number } => {
                self.sent.retain(|sent, (to, ..)| *to != shard || *sent > number);
            }
            Record::Checkpoint { .. } => unreachable!("they were looked at above"),
        }
    }

    fn session(&mut self, number: u64) -> &mut Session {
        // Its opening may come later: at a checkpoint, all of it is written again.
        self.sessions.entry(number).or_default()
    }

    fn message(&mut self, mut message: StoredMessage, now: u64) {
        let waiting = std::mem::take(&mut message.waiting);
        let sent = std::mem::take(&mut message.sent);
        if let Some((shard, number)) = message.origin {
            self.seen.entry(shard).or_default().numbers.insert(number);
        }
        if let Some((session, id)) = message.noted {
            self.note(session, id);
        }
        let retained = message.retained.take();
        let (number, message) = (message.number, Arc::new(message));
        if let Some(retained) = retained {
            self.retain(retained, &message);
        }
        for (shard, number, sent) in sent {
            self.sent.insert(number, (shard, sent, message.clone()));
        }
        if !waiting.is_empty() {
            // A record that a checkpoint writes again does not say where its message came from.
            let known = self.messages.get(&number);
            if message.origin.is_some() || known.is_none_or(|known| known.origin.is_none()) {
                self.messages.insert(number, message);
            }
        }
        for waiting in waiting {
            if waiting.again > 0 {
                let message = self.messages[&number].clone();
                self.messages.insert(waiting.again, message);
            }
            self.wait(number, waiting, now);
        }
    }

    fn note(&mut self, session: u64, id: PacketId) {
        let received = &mut self.session(session).received;
        if !received.contains(&id) {
            received.push(id);
        }
    }

    fn wait(&mut self, number: u64, waiting: Waiting, now: u64) {
        let number = if waiting.again > 0 { waiting.again } else { number };
        let session = self.session(waiting.session);
        if let Some(id) = waiting.begun {
            session.free(id, number);
            session.begun.insert(id, number);
        }
        session.waiting.insert(number, Entry { waiting, began: now });
    }

    fn retain(&mut self, retained: RetainedAs, message: &Arc<StoredMessage>) {
        let message = message.clone();
        let (topic, read) = (message.topic.clone(), self.records);
        keep_latest(&mut self.retained, topic, Retained { how: retained, message, read });
    }

    /// Of two sessions of a client the later one counts: the end of the former one found no room. Messages that it left for others go to
    /// them.
    fn end_former_sessions(&mut self) {
        let mut known = HashSet::new();
        for session in self.sessions.values_mut().rev() {
            let client = session.opened.as_mut().map(|opened| &mut opened.client_id);
            let Some(client) = client.filter(|client| !client.is_empty()) else { continue };
            if !known.insert(client.clone()) {
                *client = Arc::from("");
                session.leave();
            }
        }
    }

    fn has_seen(&self, shard: u8, number: u64) -> bool {
        let seen = self.seen.get(&shard);
        seen.is_some_and(|seen| number <= seen.before || seen.numbers.contains(&number))
    }

    /// The number of what its shard sent next and is here: of what arrives in one turn, a journal that has found no room for some may have
    /// found it for the next.
    fn place_of(&mut self, message: &StoredMessage) -> Option<u64> {
        let (shard, number) = message.origin?;
        let Self { arrived, messages, .. } = self;
        let arrived = arrived.get_or_insert_with(|| {
            let mut arrived: HashMap<u8, BTreeMap<u64, u64>> = HashMap::new();
            for (&place, message) in messages.iter().filter(|(number, _)| **number < HANDED_OVER) {
                if let Some((shard, number)) = message.origin {
                    let of_shard = arrived.entry(shard).or_default();
                    of_shard
                        .entry(number)
                        .and_modify(|known| *known = place.min(*known))
                        .or_insert(place);
                }
            }
            arrived
        });
        arrived.get(&shard)?.range(number..).next().map(|(_, place)| *place)
    }

    /// The place in the order of a message of that number.
    fn order(&self, number: u64) -> Order {
        match self.places.get(&number) {
            Some(next) => Order(*next, number),
            None => Order(number, u64::MAX),
        }
    }

    /// Hands a message over that another shard has sent and this one does not have; whether a session takes it. Where a peer published
    /// it, no peer session does, unless it is for a shared subscription that has no other member.
    fn take_over(&mut self, number: u64, sent: &Sent, message: &Arc<StoredMessage>) -> bool {
        let (mut takers, mut peers) = (Vec::new(), Vec::new());
        for (&key, session) in &self.sessions {
            let Some(opened) = &session.opened else { continue };
            let is_second_hop = opened.is_peer && message.is_from_peer;
            if is_second_hop && !matches!(sent, Sent::Group(_)) {
                continue;
            }
            let is_for_it = |filter: &str| match sent {
                Sent::Group(name) => *filter == **name,
                _ => !filter.starts_with("$share/") && topic_matches(filter, &message.topic),
            };
            let subscriptions = session.subscriptions.iter();
            let found: Vec<&Options> = subscriptions
                .filter(|(filter, _)| is_for_it(filter))
                .map(|(_, options)| options)
                .collect();
            let Some(most) = found.iter().map(|options| options.qos).max() else { continue };
            let qos = message.qos.min(most);
            if qos > QoS::AtMostOnce {
                let takers = if is_second_hop { &mut peers } else { &mut takers };
                takers.push(Waiting {
                    session: key,
                    again: 0,
                    qos,
                    retain: message.retain && found.iter().any(|o| o.retain_as_published),
                    ids: found.iter().map(|options| options.id).filter(|id| *id != 0).collect(),
                    begun: None,
                    group: match sent {
                        Sent::Group(name) => Some((&**name).into()),
                        _ => None,
                    },
                });
            }
        }
        if let Sent::Group(_) = sent {
            takers.append(&mut peers);
            takers.truncate(1);
        }
        if takers.is_empty() {
            return false;
        }
        if let Some(place) = self.place_of(message) {
            self.places.insert(number, place);
        }
        self.messages.insert(number, message.clone());
        for waiting in takers {
            self.wait(number, waiting, u64::MAX);
        }
        true
    }
}

impl Session {
    /// A message is sent with that identifier: the exchange before is complete, although that may have found no room.
    fn free(&mut self, id: PacketId, number: u64) {
        self.accepted.retain(|(other, _)| *other != id);
        if let Some(former) = self.begun.remove(&id).filter(|former| *former != number) {
            self.waiting.remove(&former);
        }
    }

    /// The exchange of a message is over.
    fn forget(&mut self, id: PacketId, number: u64) {
        // The identifier may be another message's by now.
        if self.begun.get(&id) == Some(&number) {
            self.begun.remove(&id);
        }
    }

    /// It has ended. Messages that came by shared subscriptions and may be another member's wait until one has them: those that were
    /// begun with QoS 2 may not (MQTT-4.8.2-5).
    fn leave(&mut self) {
        let Self { subscriptions, waiting, begun, accepted, received, .. } = self;
        subscriptions.clear();
        waiting.retain(|_, Entry { waiting, .. }| {
            let was_begun = waiting.begun.take().is_some();
            waiting.group.is_some() && !(was_begun && waiting.qos == QoS::ExactlyOnce)
        });
        begun.clear();
        accepted.clear();
        received.clear();
    }
}

/// Messages that are handed over have numbers from here on, above those of all that has arrived.
const HANDED_OVER: u64 = u64::MAX / 2;

/// Of two retained messages of a topic the one of the higher number stays.
fn keep_latest(all: &mut HashMap<Arc<str>, Retained>, topic: Arc<str>, retained: Retained) {
    match all.entry(topic) {
        hash_map::Entry::Vacant(vacant) => {
            vacant.insert(retained);
        }
        hash_map::Entry::Occupied(mut known)
            if known.get().how.sequence <= retained.how.sequence =>
        {
            known.insert(retained);
        }
        hash_map::Entry::Occupied(_) => {}
    }
}

/// The state that all journals of a node describe together.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The sessions.
    pub sessions: Vec<RecoveredSession>,
    /// The retained messages, and those without payload that cleared a topic and have properties.
    pub retained: Vec<RecoveredRetained>,
    /// Counts of the records found.
    pub found: Found,
}

/// Counts of the records found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Sessions.
    pub sessions: usize,
    /// Retained messages.
    pub retained: usize,
    /// Messages that wait or are in flight, each for each session.
    pub waiting: usize,
    /// Messages that were on their way between two shards.
    pub handed_over: usize,
    /// Messages on their way for a shared subscription that has no member any more.
    pub unclaimed: usize,
    /// Entries without an owner: the record that named it is lost.
    pub lost: usize,
}

/// A session as it was.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredSession {
    /// Its owner.
    pub opened: Opened,
    /// How long it outlives its connection; none forever.
    pub expiry: Option<Duration>,
    /// When it ends. None if never by itself, or if it was connected.
    pub ends_at: Option<Instant>,
    /// Whether it was connected.
    pub was_connected: bool,
    /// A will that waits, and when that ends.
    pub will: Option<(StoredWill, Instant)>,
    /// Its subscriptions.
    pub subscriptions: Vec<(Box<str>, Options)>,
    /// Exchanges in the order in which they began: with their message, or PUBREC came.
    pub inflight: Vec<(PacketId, Option<RecoveredQueued>)>,
    /// The waiting messages, in order.
    pub queue: Vec<RecoveredQueued>,
    /// QoS 2 identifiers that were received and not released.
    pub received: Vec<PacketId>,
}

/// Where a message stands among those of its journal.
///
/// The number that it has there; or for what was handed over, the number before which it stands, and its own among what stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u64, u64);

/// A message that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredQueued {
    /// The message; shared by those who wait for the same.
    pub message: Arc<StoredMessage>,
    /// The journal that had it, and its place in the order there.
    pub journal: usize,
    /// See `journal`.
    pub order: Order,
    /// With which quality of service it is sent.
    pub qos: QoS,
    /// With which retain flag.
    pub retain: bool,
    /// Subscription identifiers.
    pub ids: Vec<u32>,
    /// The shared subscription that it came by.
    pub group: Option<Arc<str>>,
}

/// A retained message.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredRetained {
    /// The message.
    pub message: Arc<StoredMessage>,
    /// The client that published it.
    pub client: Option<Arc<str>>,
    /// The publisher whose right was asked for, if that was written down.
    pub source: Option<Source>,
}

impl RecoveredSession {
    /// Whether it has ended, and what waits is to go to other members of shared subscriptions: then it has no client.
    pub fn is_remainder(&self) -> bool {
        self.opened.client_id.is_empty()
    }

    /// Whether nothing says which anonymous client has it.
    pub fn is_of_somebody(&self) -> bool {
        self.opened.kind == IdentityKind::Anonymous && self.opened.from.is_none()
    }

    /// Its owner.
    pub fn identity(&self) -> Identity {
        let Opened { kind, user, groups, client_id, from, .. } = &self.opened;
        Identity {
            kind: *kind,
            name: user.clone(),
            groups: groups.as_slice().into(),
            client: client_id.clone(),
            // Of the connection, which is gone: but it tells one anonymous client from another.
            address: match from {
                Some(CameFrom::Address(address)) => Some(*address),
                Some(CameFrom::Machine) | None => None,
            },
            until: None,
        }
    }
}

impl Recovered {
    /// Joins what the journals of all shards say, in the order of the shards.
    pub fn join(mut replays: Vec<Replay>) -> Self {
        let mut recovered = Self::default();
        replays.iter_mut().for_each(Replay::end_former_sessions);
        recovered.hand_over(&mut replays);
        // A topic is its shard's, unless there were more or fewer shards once. Half the work of a start with a million retained
        // messages is to wait for memory: they are gone through in the order in which they lie there, not in that of a table.
        let mut all: HashMap<Arc<str>, Retained> = HashMap::new();
        for replay in &mut replays {
            if all.is_empty() {
                all = std::mem::take(&mut replay.retained);
                continue;
            }
            for (topic, retained) in replay.retained.drain() {
                keep_latest(&mut all, topic, retained);
            }
        }
        // An empty one clears its topic; that with properties is kept to say so.
        let is_kept = |retained: &Retained| {
            let Retained { message, .. } = retained;
            !(message.payload.is_empty() && message.forwarded.is_empty())
        };
        let mut kept: Vec<Retained> = all.into_values().filter(is_kept).collect();
        kept.sort_unstable_by_key(|retained| retained.read);
        recovered.retained = kept
            .into_iter()
            .map(|Retained { how: RetainedAs { client, source, .. }, message, .. }| {
                RecoveredRetained { message, client, source }
            })
            .collect();
        for (journal, mut replay) in replays.into_iter().enumerate() {
            let sessions = std::mem::take(&mut replay.sessions);
            for session in sessions.into_values() {
                recovered.session(journal, session, &replay);
            }
        }
        let of_clients = recovered.sessions.iter().filter(|session| !session.is_remainder());
        recovered.found.sessions = of_clients.count();
        let has_value = |retained: &&RecoveredRetained| !retained.message.payload.is_empty();
        recovered.found.retained = recovered.retained.iter().filter(has_value).count();
        recovered
    }

    /// Messages that were on their way between two shards arrive.
    fn hand_over(&mut self, replays: &mut [Replay]) {
        let mut next = HANDED_OVER;
        for from in 0..replays.len() {
            let sent = std::mem::take(&mut replays[from].sent);
            for (number, (to, sent, message)) in sent {
                let Some(replay) = replays.get_mut(usize::from(to)) else { continue };
                if replay.has_seen(from as u8, number) {
                    continue;
                }
                self.found.handed_over += 1;
                if let Sent::Retained(retained) = sent {
                    replay.retain(retained, &message);
                } else {
                    let origin = Some((from as u8, number));
                    let message = Arc::new(StoredMessage { origin, ..(*message).clone() });
                    next += 1;
                    if !replay.take_over(next, &sent, &message) && matches!(sent, Sent::Group(_)) {
                        // Its member has ended: another one may be anywhere.
                        let mut others = replays.iter_mut();
                        let is_taken = others.any(|other| other.take_over(next, &sent, &message));
                        self.found.unclaimed += usize::from(!is_taken);
                    }
                }
            }
        }
    }

    fn session(&mut self, journal: usize, session: Session, replay: &Replay) {
        let Session { opened, closed, subscriptions, waiting, accepted, received, .. } = session;
        let Some(opened) = opened else {
            self.found.lost += 1;
            return;
        };
        let mut inflight: Vec<(u64, PacketId, Option<RecoveredQueued>)> =
            accepted.into_iter().map(|(id, at)| (at, id, None)).collect();
        let mut queue = Vec::new();
        for (number, Entry { waiting, began }) in waiting {
            let Some(message) = replay.messages.get(&number) else {
                self.found.lost += 1;
                continue;
            };
            self.found.waiting += 1;
            let Waiting { qos, retain, ids, begun, group, .. } = waiting;
            let (message, order) = (message.clone(), replay.order(number));
            let queued = RecoveredQueued { message, journal, order, qos, retain, ids, group };
            match begun {
                Some(id) => inflight.push((began, id, Some(queued))),
                None => queue.push(queued),
            }
        }
        queue.sort_by_key(|queued| queued.order);
        inflight.sort_by_key(|(at, ..)| *at);
        let was_connected = closed.is_none();
        let closed = closed.unwrap_or(Closed { expiry: opened.expiry, ends_at: None, will: None });
        self.sessions.push(RecoveredSession {
            opened,
            expiry: closed.expiry,
            ends_at: closed.ends_at,
            was_connected,
            will: closed.will,
            subscriptions: subscriptions.into_iter().collect(),
            inflight: inflight.into_iter().map(|(_, id, queued)| (id, queued)).collect(),
            queue,
            received,
        });
    }
}

//! State that outlives the process, and a power failure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
};

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidegate_message::{Payload, Position};

use super::*;
use crate::{
    Overflow,
    inflight::Awaits,
    queue::{Held, Queued},
};
use tidegate_journal::{Journal, JournalError, Options, Recovered, Replay, Source};

/// A journal in memory. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tape {
    state: Arc<Mutex<TapeState>>,
}

#[derive(Debug, Default)]
struct TapeState {
    /// None for those that were let go of.
    records: Vec<Option<Bytes>>,
    durable: usize,
    is_gated: bool,
    is_full: bool,
    /// Not even what must be appended all the same finds room.
    is_shut: bool,
    has_failed: bool,
    /// Bytes of the records that are kept, and that it may hold, if they are bounded: then a large record finds no room where a small
    /// one does.
    bytes: u64,
    bytes_max: Option<usize>,
    /// Whether it says that it is bounded.
    says_bytes_max: bool,
    disk: Option<SmallDisk>,
    /// Bytes that it holds in reserve on that, and that it is asked for.
    reserve: u64,
    wanted: u64,
    may_use_reserve: bool,
}

/// A disk that several tapes share: bytes that are free.
#[derive(Clone, Debug)]
pub(crate) struct SmallDisk(Arc<Mutex<u64>>);

impl SmallDisk {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(bytes)))
    }

    pub(crate) fn free(&self) -> MutexGuard<'_, u64> {
        self.0.lock().unwrap()
    }

    /// Takes so many bytes, if there are as many.
    fn take(&self, bytes: u64) -> bool {
        let mut free = self.free();
        let left = free.checked_sub(bytes);
        *free = left.unwrap_or(*free);
        left.is_some()
    }
}

impl TapeState {
    /// Bytes that a record takes on the disk.
    fn cost(record: &Bytes) -> u64 {
        record.len() as u64 + 100
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes_max.is_none_or(|most| self.bytes as usize + bytes <= most)
    }

    /// Finds room for a record on the disk, if it is on one.
    fn place(&mut self, record: &Bytes) -> bool {
        let Some(disk) = &self.disk else { return true };
        let cost = Self::cost(record);
        if disk.take(cost) {
            return true;
        }
        let left = self.reserve.checked_sub(cost).filter(|_| self.may_use_reserve);
        self.reserve = left.unwrap_or(self.reserve);
        left.is_some()
    }
}

impl Tape {
    pub(crate) fn new(is_gated: bool) -> Self {
        let state = TapeState { is_gated, ..TapeState::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Whether records are durable only later.
    pub(crate) fn waits(&self) -> bool {
        self.state().is_gated
    }

    fn state(&self) -> MutexGuard<'_, TapeState> {
        self.state.lock().unwrap()
    }

    /// Has room for so many bytes more, and then for none; for all that comes if that is none.
    fn limit(&self, bytes: Option<usize>) {
        let mut state = self.state();
        state.bytes_max = bytes.map(|bytes| state.bytes as usize + bytes);
    }

    /// Makes all durable; whether that changed anything.
    pub(crate) fn flush(&self) -> bool {
        let mut state = self.state();
        let moves = state.durable < state.records.len();
        state.durable = state.records.len();
        moves
    }

    /// It is on that disk from now on, with what it has.
    pub(super) fn put_on(&self, disk: &SmallDisk) {
        let mut state = self.state();
        let cost = state.records.iter().flatten().map(TapeState::cost).sum();
        assert!(disk.take(cost), "it fits");
        state.disk = Some(disk.clone());
    }

    pub(super) fn replay(&self) -> Replay {
        let mut replay = Replay::default();
        for record in self.state().records.iter().flatten() {
            replay.read(record).expect("a written record can be read");
        }
        replay
    }
}

impl Journal for Tape {
    fn ensure(&mut self, bytes: usize) -> Result<(), JournalError> {
        let mut state = self.state();
        let lacks = state.wanted.saturating_sub(state.reserve);
        let is_held = state.disk.as_ref().is_none_or(|disk| disk.take(lacks));
        if is_held && state.disk.is_some() {
            state.reserve += lacks;
        }
        let has_room = state.disk.as_ref().is_none_or(|disk| *disk.free() >= bytes as u64);
        drop(state);
        if is_held && has_room { self.ensure_last(bytes) } else { Err(full()) }
    }

    fn ensure_last(&mut self, bytes: usize) -> Result<(), JournalError> {
        let state = self.state();
        let left = state.disk.as_ref().map(|disk| *disk.free() + state.reserve);
        let has_room = left.is_none_or(|left| left >= bytes as u64);
        let has_room = has_room && state.has_room(bytes);
        if state.is_full || state.is_shut || state.has_failed || !has_room {
            return Err(full());
        }
        Ok(())
    }

    fn room(&mut self) -> u64 {
        let state = self.state();
        if state.disk.is_some() { state.reserve } else { u64::MAX }
    }

    fn free(&mut self) -> u64 {
        let state = self.state();
        let left = state.disk.as_ref().map_or(u64::MAX, |disk| *disk.free());
        left.min(state.bytes_max.map_or(u64::MAX, |most| (most as u64).saturating_sub(state.bytes)))
    }

    fn use_reserve(&mut self, may: bool) {
        self.state().may_use_reserve = may;
    }

    fn want_reserve(&mut self, bytes: u64) {
        let mut state = self.state();
        state.wanted = bytes;
        let surplus = state.reserve.saturating_sub(bytes);
        if let Some(disk) = state.disk.clone() {
            *disk.free() += surplus;
            state.reserve -= surplus;
        }
    }

    fn append(&mut self, head: &[u8], payload: &Payload) -> Result<Position, JournalError> {
        let mut state = self.state();
        let record = Bytes::from([head, &payload.to_contiguous()].concat());
        if state.is_shut || !state.has_room(record.len()) || !state.place(&record) {
            return Err(full());
        }
        state.bytes += record.len() as u64;
        state.records.push(Some(record));
        if !state.is_gated {
            state.durable = state.records.len();
        }
        Ok(Position(state.records.len() as u64 - 1))
    }

    fn end(&self) -> Position {
        Position(self.state().records.len() as u64)
    }

    fn durable(&self) -> Position {
        Position(self.state().durable as u64)
    }

    fn failure(&self) -> Option<JournalError> {
        self.state().has_failed.then(|| JournalError::Failed(Arc::new(std::fmt::Error)))
    }

    fn is_gated(&self) -> bool {
        self.state().is_gated
    }

    fn release(&mut self, position: Position) -> Result<(), JournalError> {
        let mut state = self.state();
        // By segments, so that some of what stood before stays.
        let end = (position.0 as usize).saturating_sub(3);
        let gone: Vec<Bytes> = state.records[..end].iter_mut().filter_map(Option::take).collect();
        state.bytes -= gone.iter().map(|record| record.len() as u64).sum::<u64>();
        if let Some(disk) = &state.disk {
            *disk.free() += gone.iter().map(TapeState::cost).sum::<u64>();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        Tape::flush(self);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn bytes_max(&self) -> u64 {
        let state = self.state();
        let bytes_max = state.bytes_max.filter(|_| state.says_bytes_max);
        bytes_max.map_or(u64::MAX, |bytes_max| bytes_max as u64)
    }
}

fn full() -> JournalError {
    JournalError::Full(Arc::new(std::fmt::Error))
}

/// The part of a session that outlives the process.
#[derive(Debug, PartialEq)]
struct Kept {
    subscriptions: BTreeMap<String, Options>,
    /// Payloads of what waits, in order; with how it is sent.
    waits: Vec<(Vec<u8>, QoS, bool, Vec<u32>)>,
    /// Exchanges with their payloads.
    exchanges: Vec<(PacketId, Option<Vec<u8>>)>,
    received: BTreeSet<PacketId>,
    expiry: Option<Duration>,
    ends_at: Option<Instant>,
    will: Option<(String, Instant)>,
}

/// The live state, and the state in the journals.
fn both(world: &World) -> [BTreeMap<String, Kept>; 2] {
    let mut live = BTreeMap::new();
    for shard in &world.shards {
        for (_, session) in shard.session_slots().iter().filter(|(_, s)| s.number > 0) {
            let mut waits: Vec<&Queued> = session.queue.iter().collect();
            waits.retain(|queued| queued.number > 0);
            waits.sort_by_key(|queued| queued.number);
            let bytes = |queued: &Queued| match &queued.message {
                Held::Memory(message) => message.payload.to_contiguous().to_vec(),
                Held::Disk(spilled) => spilled.payload_on_disk(),
                Held::Gone(_) => unreachable!("it is not among what waits"),
            };
            let wait = |queued: &&Queued| {
                (bytes(queued), queued.qos, queued.retain, queued.ids.as_slice().to_vec())
            };
            let exchanges = session.inflight.entries().filter_map(|entry| match &entry.kept {
                Some(queued) if queued.number > 0 => Some((entry.id, Some(bytes(queued)))),
                None if entry.awaits == Awaits::Pubcomp => Some((entry.id, None)),
                _ => None,
            });
            let subscriptions = session.subscriptions.iter();
            let kept = Kept {
                subscriptions: subscriptions.map(|(f, o)| (f.to_string(), (*o).into())).collect(),
                waits: waits.iter().map(wait).collect(),
                exchanges: exchanges.collect(),
                received: session.received.iter().copied().collect(),
                expiry: session.expiry,
                ends_at: session.ends_at.filter(|_| session.connection.is_none()),
                will: session.will.as_ref().map(|(w, at)| (w.message.topic.to_string(), *at)),
            };
            live.insert(session.client_id.to_string(), kept);
        }
    }
    let recovered = recovered(world);
    assert_eq!(recovered.found.handed_over, 0, "all has arrived");
    assert_eq!(recovered.found.lost, 0);
    let bytes = |q: &tidegate_journal::RecoveredQueued| q.message.payload.to_contiguous().to_vec();
    let told = recovered.sessions.iter().map(|session| {
        let kept = Kept {
            subscriptions: session
                .subscriptions
                .iter()
                .map(|(filter, options)| (filter.to_string(), *options))
                .collect(),
            waits: session
                .queue
                .iter()
                .map(|queued| (bytes(queued), queued.qos, queued.retain, queued.ids.clone()))
                .collect(),
            exchanges: session
                .inflight
                .iter()
                .map(|(id, queued)| (*id, queued.as_ref().map(bytes)))
                .collect(),
            received: session.received.iter().copied().collect(),
            expiry: session.expiry,
            ends_at: session.ends_at,
            will: session.will.as_ref().map(|(will, at)| (will.topic.to_string(), *at)),
        };
        (session.opened.client_id.to_string(), kept)
    });
    [live, told.collect()]
}

fn recovered(world: &World) -> Recovered {
    Recovered::join(world.tapes.iter().map(Tape::replay).collect())
}

/// That the journals say what is so.
pub(crate) fn check(world: &World) {
    let [live, told] = both(world);
    assert_eq!(told, live);
    let mut retained = BTreeMap::new();
    world.shared.retained().walk(None, usize::MAX, |kept| {
        if !kept.message.topic.starts_with("$SYS/") && !kept.message.is_expired(world.now) {
            let payload = kept.message.payload.to_contiguous().to_vec();
            retained.insert(
                kept.message.topic.to_string(),
                (payload, kept.client.clone(), kept.source.as_deref().map(Source::from)),
            );
        }
    });
    let told = recovered(world).retained.into_iter().filter_map(|retained| {
        let message = retained.message;
        let is_expired = message.expires.is_some_and(|at| at <= world.now);
        let payload = message.payload.to_contiguous().to_vec();
        (!is_expired)
            .then(|| (message.topic.to_string(), (payload, retained.client, retained.source)))
    });
    assert_eq!(told.collect::<BTreeMap<_, _>>(), retained);
}

impl World {
    /// A world whose sessions are written down.
    pub(crate) fn keeping(config: BrokerConfig, shards: usize, is_gated: bool) -> Self {
        Self::new(config, shards).written_down(is_gated)
    }

    /// The same world, whose sessions are written down from now on.
    pub(crate) fn written_down(mut self, is_gated: bool) -> Self {
        let world = &mut self;
        let shards = world.shards.len();
        world.tapes = (0..shards).map(|_| Tape::new(is_gated)).collect();
        for (shard, tape) in world.shards.iter_mut().zip(&world.tapes) {
            shard.keep(Box::new(tape.clone()));
        }
        self
    }

    /// The process ends, and another begins with what the journals have and as many shards as that.
    pub(crate) fn restart(&mut self, shards: usize) {
        self.restart_with(self.shared.config().clone(), shards);
    }

    /// The same, with other settings.
    pub(crate) fn restart_with(&mut self, config: BrokerConfig, shards: usize) {
        let recovered = recovered(self);
        let is_gated = self.tapes[0].state().is_gated;
        self.shared = Shared::new(config, shards, self.rules.clone(), self.now);
        // Messages on disk went with the process.
        self.disk = Arc::new(SimulatedSpill::new(1 << 30));
        let broker = |shard| {
            let mut broker = Broker::new(self.shared.clone(), shard, 8, self.now);
            broker.set_spill(Some(self.disk.clone()));
            broker
        };
        self.shards = (0..shards).map(broker).collect();
        for client in &mut self.clients {
            client.key = None;
        }
        Broker::restore_all(&mut self.shards, self.now, recovered);
        self.tapes = (0..shards).map(|_| Tape::new(is_gated)).collect();
        for (shard, tape) in self.shards.iter_mut().zip(&self.tapes) {
            shard.keep(Box::new(tape.clone()));
        }
        self.pump();
        check(self);
    }
}

/// On nodes of one shard and of three, where records are durable at once and where they are later.
fn each_keeping(mut test: impl FnMut(&mut World)) {
    for (shards, is_gated) in [(1, false), (3, false), (1, true), (3, true)] {
        let mut world = World::keeping(settings(), shards, is_gated);
        test(&mut world);
        check(&world);
        let shards = world.shards.len() % 3 + 1;
        world.restart(shards);
        world.end();
    }
}

#[test]
fn what_waits_for_a_session_survives_a_restart_in_order() {
    each_keeping(|world| {
        let s = world.join(kept("s"));
        world.subscribe_to(s, Some(9), vec![filter("t/#", ExactlyOnce)]);
        let other = world.join(kept("other"));
        world.subscribe(other, "t/1", AtLeastOnce);
        world.cut(s);
        world.cut(other);
        let p = world.join(v5("p"));
        for (number, qos) in [(0, AtLeastOnce), (1, ExactlyOnce), (2, AtMostOnce), (3, AtLeastOnce)]
        {
            let topic = format!("t/{}", number % 2);
            world.publish(p, message(&topic, qos, &format!("{number}")));
        }
        check(world);
        world.restart(world.shards.len());
        let s = world.connect(kept("s"));
        assert!(world.connack(s).session_present);
        let got = world.messages(s);
        let texts: Vec<String> = got.iter().map(Delivery::text).collect();
        assert_eq!(texts, ["0", "1", "3"]);
        assert_eq!(got[0].subscriptions, [9]);
        let other = world.join(kept("other"));
        assert_eq!(world.texts(other), ["1", "3"]);
        // The subscriptions are there, too.
        let p = world.join(v5("p"));
        world.publish(p, message("t/1", AtLeastOnce, "new"));
        assert_eq!((world.texts(s), world.texts(other)), (vec!["new".into()], vec!["new".into()]));
        // And nothing comes again.
        check(world);
        world.restart(world.shards.len());
        for name in ["s", "other"] {
            let at = world.join(kept(name));
            assert_eq!(world.texts(at), [""; 0]);
        }
    });
}

#[test]
fn an_exchange_of_qos_2_goes_on_where_it_was() {
    each_keeping(|world| {
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        let p = world.join(v5("p"));
        for text in ["one", "two", "three"] {
            world.publish(p, message("t", ExactlyOnce, text));
        }
        let got = world.messages(s);
        let ids: Vec<PacketId> = got.iter().map(|delivery| delivery.id.unwrap()).collect();
        assert_eq!(got.len(), 3);
        world.pubrec(s, ids[1]);
        world.take(s);
        world.restart(world.shards.len());
        // As it came, each with its identifier; of the second only PUBREL.
        let s = world.mute(kept("s"));
        let got = world.take(s);
        // Answers overtake.
        let [Other(Packet::Pubrel(two)), Published(one), Published(three)] = &got[..] else {
            panic!("{got:?}");
        };
        assert_eq!((one.id, one.dup, one.text()), (Some(ids[0]), true, "one".into()));
        assert_eq!((three.id, three.dup), (Some(ids[2]), true));
        assert_eq!(two.packet_id, ids[1]);
        world.pubcomp(s, ids[1]);
        world.pubrec(s, ids[0]);
        world.pubcomp(s, ids[0]);
        world.restart(world.shards.len());
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s), ["three"]);
    });
}

#[test]
fn a_qos_2_message_is_published_once_whoever_restarts() {
    each_keeping(|world| {
        let s = world.join(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        world.cut(s);
        let p = world.mute(kept("p"));
        let publish = Publish { packet_id: Some(id(5)), ..message("t", ExactlyOnce, "once") };
        world.send(p, Packet::Publish(publish));
        assert_eq!(world.accepted(p, id(5)), ReasonCode::SUCCESS);
        world.restart(world.shards.len());
        let p = world.mute(kept("p"));
        world.send(p, Packet::Publish(Publish { dup: true, ..publish }));
        assert_eq!(world.accepted(p, id(5)), ReasonCode::SUCCESS);
        world.pubrel(p, id(5));
        world.restart(world.shards.len());
        // Its identifier is free again.
        let p = world.mute(kept("p"));
        world.send(p, Packet::Publish(Publish { payload: b"again", ..publish }));
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s), ["once", "again"]);
    });
}

#[test]
fn retained_messages_and_wills_survive() {
    each_keeping(|world| {
        let p = world.join(v5("p"));
        for (topic, text) in [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")] {
            world.publish(p, retained(topic, AtMostOnce, text));
        }
        world.publish(p, retained("b", AtLeastOnce, ""));
        let mut connect = kept("w");
        connect.will = Some(Will { delay: 60, ..will("will", "gone") });
        let w = world.join(connect.clone());
        world.cut(w);
        connect.client_id = "v".into();
        let _v = world.join(connect);
        world.advance(seconds(20));
        world.restart(world.shards.len());
        let s = world.join(v5("s"));
        world.subscribe(s, "#", AtLeastOnce);
        let mut texts = world.texts(s);
        texts.sort();
        assert_eq!(texts, ["3", "4"]);
        world.advance(seconds(41));
        assert_eq!(world.texts(s), ["gone"], "of whom was away since before");
        world.advance(seconds(20));
        assert_eq!(world.texts(s), ["gone"], "of whom the restart has parted");
    });
}

#[test]
fn what_waits_under_a_topic_with_control_characters_does_not_outlive_the_permission() {
    for shards in [1, 3] {
        for (allowed, expected) in [(true, &["1", "2", "3", "4"][..]), (false, &["2", "4"])] {
            let session = SessionConfig { topic_control_characters: true, ..settings().session };
            let config = BrokerConfig { session, ..settings() };
            let mut world = World::keeping(config.clone(), shards, false);
            let s = world.mute(kept("s"));
            world.subscribe(s, "#", ExactlyOnce);
            let p = world.join(v5("p"));
            world.publish(p, message("t/\u{1}", ExactlyOnce, "1"));
            world.publish(p, message("t/2", ExactlyOnce, "2"));
            assert_eq!(world.messages(s).len(), 2);
            world.cut(s);
            world.publish(p, message("t/\u{7f}", AtLeastOnce, "3"));
            world.publish(p, message("t/2", AtLeastOnce, "4"));
            let later = if allowed { config } else { settings() };
            world.restart_with(later, shards);
            let dropped = world.shards.iter().map(|shard| shard.statistics().dropped.not_allowed);
            assert_eq!(dropped.sum::<u64>(), 4 - expected.len() as u64);
            let s = world.join(kept("s"));
            assert_eq!(world.texts(s), expected);
            world.end();
        }
    }
}

#[test]
fn sessions_that_end_with_their_connection_are_not_written_down() {
    for is_gated in [false, true] {
        let mut world = World::keeping(settings(), 3, is_gated);
        let s = world.join(v5("s"));
        world.subscribe(s, "t", ExactlyOnce);
        let p = world.join(v5("p"));
        for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
            world.publish(p, message("t", qos, "x"));
        }
        assert_eq!(world.texts(s).len(), 3);
        assert!(world.tapes.iter().all(|tape| tape.state().records.is_empty()));
        world.end();
    }
}

#[test]
fn nothing_is_promised_before_it_is_durable() {
    for shards in [1, 3] {
        let mut world = World::keeping(settings(), shards, true);
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        let p = world.mute(kept("p"));
        world.flushes = false;
        let publish = |id, qos| {
            let packet_id = Some(id);
            Packet::Publish(Publish { packet_id, ..message("t", qos, "x") })
        };
        world.send(p, publish(id(1), AtLeastOnce));
        world.send(p, publish(id(2), ExactlyOnce));
        world.send(p, Packet::Pingreq);
        // A ping is no promise.
        assert_eq!(world.take(p), [Other(Packet::Pingresp)]);
        world.flush_journals();
        let acks = world.take(p);
        assert!(
            matches!(acks[..], [Other(Packet::Puback(_)), Other(Packet::Pubrec(_))]),
            "{acks:?}"
        );
        while world.flush_journals() {}
        let got = world.messages(s);
        assert_eq!(got.len(), 2, "{got:?}");
        let id2 = got.iter().find(|delivery| delivery.qos == ExactlyOnce).unwrap().id.unwrap();
        world.pubrec(s, id2);
        assert_eq!(world.take(s), []);
        world.pubrel(p, id(2));
        assert_eq!(world.take(p), []);
        while world.flush_journals() {}
        assert!(matches!(world.take(s)[..], [Other(Packet::Pubrel(_))]));
        assert!(matches!(world.take(p)[..], [Other(Packet::Pubcomp(_))]));
        world.flushes = true;
        world.end();
    }
}

/// The kind of a packet that depends on records: all that a server sends but PINGRESP, DISCONNECT, AUTH, and PUBLISH below QoS 2.
fn kind(got: &Got) -> Option<&'static str> {
    match got {
        Published(delivery) => (delivery.qos == ExactlyOnce).then_some("PUBLISH"),
        Other(packet) => match packet {
            Packet::Connack(_) => Some("CONNACK"),
            Packet::Puback(_) => Some("PUBACK"),
            Packet::Pubrec(_) => Some("PUBREC"),
            Packet::Pubrel(_) => Some("PUBREL"),
            Packet::Pubcomp(_) => Some("PUBCOMP"),
            Packet::Suback(_) => Some("SUBACK"),
            Packet::Unsuback(_) => Some("UNSUBACK"),
            Packet::Pingresp | Packet::Disconnect(_) | Packet::Auth(_) => None,
            packet => panic!("a server does not send {packet:?}"),
        },
    }
}

/// How a client comes to be owed a packet: by its connection, by the same packet again, or by another connection to its session.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comes {
    First,
    Again,
    Resumed,
    TakenOver,
}

#[test]
fn each_acknowledgement_waits_for_what_it_promises() {
    use Comes::{Again, First, Resumed, TakenOver};
    fn subscribe(world: &mut World, at: At) {
        let asked = vec![filter("t", ExactlyOnce)];
        let (subscription_id, user_properties) = (None, Vec::new());
        let packet =
            Subscribe { packet_id: id(9), subscription_id, user_properties, filters: asked };
        world.send(at, Packet::Subscribe(packet));
    }
    fn unsubscribe(world: &mut World, at: At) {
        let (filters, user_properties) = (vec!["t".to_owned()], Vec::new());
        world.send(
            at,
            Packet::Unsubscribe(Unsubscribe { packet_id: id(9), user_properties, filters }),
        );
    }
    fn publish(world: &mut World, at: At, qos: QoS, retain: bool) {
        let packet_id = Some(id(9));
        let publish = Publish { packet_id, retain, ..message("t", qos, "x") };
        world.send(at, Packet::Publish(publish));
    }
    // The first steps of a client happen while all becomes durable, the last while nothing does.
    type Act = fn(&mut World, At);
    let nothing: Act = |_, _| {};
    let ways: [(&str, &[Comes], Act, Act); 10] = [
        ("CONNACK", &[First, Resumed, TakenOver], nothing, nothing),
        ("SUBACK", &[First, Again, Resumed, TakenOver], nothing, subscribe),
        ("UNSUBACK", &[First, Again, Resumed, TakenOver], subscribe, unsubscribe),
        ("PUBACK", &[First, Again, Resumed, TakenOver], nothing, |world, at| {
            publish(world, at, AtLeastOnce, false);
        }),
        ("PUBACK", &[First, Again, Resumed, TakenOver], nothing, |world, at| {
            publish(world, at, AtLeastOnce, true);
        }),
        ("PUBREC", &[First, Again, Resumed, TakenOver], nothing, |world, at| {
            publish(world, at, ExactlyOnce, false);
        }),
        (
            "PUBCOMP",
            &[First, Again, Resumed, TakenOver],
            |world, at| publish(world, at, ExactlyOnce, false),
            |world, at| world.pubrel(at, id(9)),
        ),
        // Here the client is the subscriber, too.
        (
            "PUBREL",
            &[First, Again, Resumed, TakenOver],
            |world, at| {
                subscribe(world, at);
                publish(world, at, ExactlyOnce, false);
            },
            |world, at| world.pubrec(at, id(1)),
        ),
        ("PUBLISH", &[First, Resumed, TakenOver], subscribe, |world, at| {
            publish(world, at, ExactlyOnce, false);
        }),
        // The identifier of one that was sent already.
        (
            "PUBLISH",
            &[Resumed, TakenOver],
            |world, at| {
                subscribe(world, at);
                publish(world, at, ExactlyOnce, false);
            },
            nothing,
        ),
    ];
    for shards in [1, 3] {
        for (expected, comes, before, last) in &ways {
            for comes in *comes {
                let mut world = World::keeping(settings(), shards, true);
                let other = world.join(kept("other"));
                world.subscribe(other, "t", AtLeastOnce);
                let is_new = *expected == "CONNACK" && *comes == First;
                let mut at = if is_new { other } else { world.mute(kept("c")) };
                before(&mut world, at);
                world.take(at);
                world.flushes = false;
                if is_new {
                    at = world.connect_mute(kept("c"));
                } else {
                    last(&mut world, at);
                }
                let about = format!("{expected}, {comes:?}, {shards} shards");
                assert_eq!(world.take(at).iter().find_map(kind), None, "{about}: at once");
                if *comes == Resumed {
                    world.cut(at);
                }
                if *comes != First {
                    if *comes != Again {
                        at = world.connect_mute(kept("c"));
                    }
                    if *expected != "PUBREL" || *comes == Again {
                        last(&mut world, at);
                    }
                    assert_eq!(world.take(at).iter().find_map(kind), None, "{about}");
                }
                while world.flush_journals() {}
                let got = world.take(at);
                assert!(got.iter().any(|got| kind(got) == Some(expected)), "{about}: {got:?}");
                let is_first = matches!(got[0], Other(Packet::Connack(_)));
                assert_eq!(is_first, matches!(comes, Resumed | TakenOver) || is_new, "{about}");
                world.flushes = true;
                world.end();
            }
        }
    }
}

#[test]
fn a_session_that_was_forgotten_is_gone_before_its_client_knows() {
    // After a loss of power in between, what it had received and not released would be taken for what comes next.
    for expiry in [0, 3600] {
        let mut world = World::keeping(settings(), 1, true);
        let c = world.mute(kept("c"));
        world.cut(c);
        world.flushes = false;
        let mut connect = Connect { clean_start: true, ..kept("c") };
        connect.properties.session_expiry = Some(expiry);
        let c = world.connect_mute(connect);
        world.send(c, Packet::Pingreq);
        assert_eq!(world.take(c), [], "CONNACK comes first (MQTT-3.2.0-1)");
        while world.flush_journals() {}
        let got = world.take(c);
        assert!(matches!(got[..], [Other(Packet::Connack(_)), Other(Packet::Pingresp)]), "{got:?}");
        world.flushes = true;
        world.end();
    }
}

#[test]
fn a_session_that_ends_with_its_connection_waits_for_no_disk() {
    let mut world = World::keeping(settings(), 1, true);
    let s = world.join(kept("s"));
    world.subscribe(s, "t", AtLeastOnce);
    let p = world.join(v5("p"));
    world.flushes = false;
    world.publish(p, message("t", AtLeastOnce, "x"));
    let c = world.connect(v5("c"));
    assert!(!world.connack(c).session_present);
    world.flushes = true;
    world.end();
}

#[test]
fn who_is_disconnected_before_its_connack_hears_nothing() {
    // MQTT-3.14.0-1
    for ends in ["is kicked", "is taken over", "the disk fails"] {
        let mut world = World::keeping(settings(), 1, true);
        world.flushes = false;
        let c = world.connect_mute(kept("c"));
        match ends {
            "is kicked" => {
                let name = world.placed("c");
                assert!(world.shards[0].kick(&name));
                world.pump();
            }
            "is taken over" => drop(world.connect_mute(kept("c"))),
            _ => {
                world.tapes[0].state().has_failed = true;
                world.flush_journals();
            }
        }
        assert!(!world.is_open(c), "{ends}");
        assert_eq!(world.take(c), [], "{ends}");
        world.flushes = true;
        world.end();
    }
}

#[test]
fn an_exchange_of_qos_1_goes_on_where_it_was() {
    // MQTT-4.4.0-1: with its identifier; MQTT-3.3.1-3: what was not sent says that it was not.
    for sends in ["at once", "from its queue"] {
        for restarts in [1, 2] {
            each_keeping(|world| {
                let mut connect = kept("s");
                connect.properties.receive_maximum = NonZeroU16::new(2);
                let mut s = world.mute(connect.clone());
                world.subscribe(s, "t", AtLeastOnce);
                let p = world.join(v5("p"));
                if sends == "from its queue" {
                    world.cut(s);
                }
                for text in ["zero", "one", "two", "three", "four"] {
                    world.publish(p, message("t", AtLeastOnce, text));
                }
                if sends == "from its queue" {
                    s = world.mute(connect);
                }
                let first = world.messages(s);
                assert_eq!(first.len(), 2, "{first:?}");
                world.puback(s, first[0].id.unwrap());
                let next = world.messages(s);
                let begun = [first[1].id, next[0].id];
                assert_eq!(next.len(), 1, "{next:?}");
                for _ in 0..restarts {
                    world.restart(world.shards.len());
                }
                let s = world.join(kept("s"));
                let got = world.messages(s);
                let told: Vec<_> = got.iter().map(|got| (got.text(), got.dup)).collect();
                let expected = [("one", true), ("two", true), ("three", false), ("four", false)];
                assert_eq!(told, expected.map(|(text, dup)| (text.to_owned(), dup)), "{sends}");
                assert_eq!([got[0].id, got[1].id], begun, "{sends}");
            });
        }
    }
}

#[test]
fn what_was_never_sent_is_no_repetition() {
    // MQTT-3.3.1-3
    for qos in [AtLeastOnce, ExactlyOnce] {
        for restarts in [1, 3] {
            each_keeping(|world| {
                let s = world.mute(kept("s"));
                world.subscribe(s, "t", ExactlyOnce);
                world.cut(s);
                let p = world.join(v5("p"));
                world.publish(p, message("t", qos, "x"));
                for _ in 0..restarts {
                    world.restart(world.shards.len());
                }
                let s = world.mute(kept("s"));
                assert!(!world.messages(s)[0].dup, "{qos:?}");
                world.cut(s);
                let s = world.join(kept("s"));
                assert!(world.messages(s)[0].dup, "{qos:?}");
            });
        }
    }
    // It waited for the disk when its connection broke.
    let mut world = World::keeping(settings(), 1, true);
    let s = world.mute(kept("s"));
    world.subscribe(s, "t", ExactlyOnce);
    let p = world.join(v5("p"));
    world.flushes = false;
    world.publish(p, message("t", ExactlyOnce, "x"));
    world.cut(s);
    let s = world.connect_mute(kept("s"));
    while world.flush_journals() {}
    let got = world.messages(s);
    assert_eq!((got.len(), got[0].dup), (1, false));
    world.flushes = true;
    world.end();
}

#[test]
fn what_a_member_leaves_after_a_restart_is_no_repetition_to_another() {
    each_keeping(|world| {
        let one = world.mute(kept("one"));
        world.subscribe(one, "$share/g/t", AtLeastOnce);
        let p = world.join(v5("p"));
        world.publish(p, message("t", AtLeastOnce, "x"));
        assert_eq!(world.messages(one).len(), 1);
        world.restart(world.shards.len());
        let two = world.join(v5("two"));
        world.subscribe(two, "$share/g/t", AtLeastOnce);
        let mut connect = kept("one");
        connect.clean_start = true;
        world.join(connect);
        let got = world.messages(two);
        assert_eq!((got.len(), got[0].dup), (1, false));
    });
}

#[test]
fn a_message_in_flight_is_sent_again_though_it_expired_before_a_restart() {
    // MQTT-4.4.0-1; MQTT-3.3.2-5 is of those whose delivery had not begun.
    for qos in [AtLeastOnce, ExactlyOnce] {
        each_keeping(|world| {
            let mut connect = kept("s");
            connect.properties.receive_maximum = NonZeroU16::new(1);
            let s = world.mute(connect);
            world.subscribe(s, "t", ExactlyOnce);
            let p = world.join(v5("p"));
            for text in ["begun", "waits"] {
                let packet_id = Some(world.fresh_id(p));
                let publish = Publish { packet_id, ..message("t", qos, text) };
                // Message Expiry Interval, 10 s.
                world.raw(p, &publish_bytes(publish, &[2, 0, 0, 0, 10]));
            }
            let first = world.messages(s);
            world.advance(seconds(20));
            world.restart(world.shards.len());
            world.advance(seconds(20));
            let s = world.join(kept("s"));
            let got = world.messages(s);
            assert_eq!(got.len(), 1, "{got:?}");
            assert_eq!((got[0].text(), got[0].dup, got[0].id), ("begun".into(), true, first[0].id));
            assert_eq!(got[0].expiry, Some(0));
        });
    }
}

#[test]
fn a_full_journal_refuses_what_is_to_be_kept_and_nothing_else() {
    for shards in [1, 3] {
        let mut world = World::keeping(settings(), shards, false);
        let s = world.join(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        let fleeting = world.join(v5("f"));
        world.subscribe(fleeting, "u", ExactlyOnce);
        let p = world.join(v5("p"));
        for tape in &world.tapes {
            tape.state().is_full = true;
        }
        for qos in [AtLeastOnce, ExactlyOnce] {
            let id = world.publish(p, message("t", qos, "x")).unwrap();
            let got = world.take(p);
            let [Other(Packet::Puback(ack) | Packet::Pubrec(ack))] = &got[..] else {
                panic!("{got:?}");
            };
            assert_eq!((ack.packet_id, ack.reason), (id, ReasonCode::QUOTA_EXCEEDED));
            assert!(ack.reason_string.as_deref().unwrap().contains("disk"), "{ack:?}");
        }
        assert_eq!(world.texts(s), [""; 0]);
        let refused: u64 =
            world.shards.iter().map(|shard| shard.journal_counts().unwrap().refused).sum();
        assert_eq!(refused, 2);
        let id = world.publish(p, message("u", AtLeastOnce, "y")).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
        assert_eq!(world.texts(fleeting), ["y"]);
        for tape in &world.tapes {
            tape.state().is_full = false;
        }
        world.advance(seconds(2));
        let id = world.publish(p, message("t", AtLeastOnce, "z")).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
        assert_eq!(world.texts(s), ["z"]);
        check(&world);
        world.end();
    }
}

impl World {
    /// A turn of each shard, in which it looks at its journal, and the next seconds.
    fn turn(&mut self) {
        for shard in &mut self.shards {
            shard.handle_timeout(self.now);
        }
        self.advance(seconds(2));
    }
}

/// A session on one shard, and a publisher on another, whose first message is too large for what the session's journal has room for,
/// while the second one fits. Which of them are retained.
fn lacking_the_first(is_gated: bool, retains: bool) -> World {
    lacking_the_first_of(is_gated, retains, AtLeastOnce)
}

fn lacking_the_first_of(is_gated: bool, retains: bool, qos: QoS) -> World {
    let mut world = World::keeping(settings(), 3, is_gated);
    let s = world.join(kept("s"));
    world.subscribe(s, "t/#", ExactlyOnce);
    world.cut(s);
    let p = world.join(v5("p"));
    world.hold_peers = true;
    let large = format!("large{}", "x".repeat(60_000));
    for (topic, text) in [("t/1", &*large), ("t/2", "small")] {
        let message = Publish { retain: retains, ..message(topic, qos, text) };
        let id = world.publish(p, message).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
    }
    for tape in &world.tapes {
        tape.limit(Some(20_000));
    }
    world.hold_peers = false;
    world.pump();
    world
}

fn starts(texts: &[String]) -> Vec<&str> {
    texts.iter().map(|text| &text[..text.len().min(5)]).collect()
}

#[test]
fn what_another_shard_finds_no_room_for_is_kept_where_it_came_from() {
    for is_gated in [false, true] {
        for retains in [false, true] {
            let mut world = lacking_the_first(is_gated, retains);
            let failures =
                world.shards.iter().map(|shard| shard.journal_counts().unwrap().failures);
            assert!(failures.sum::<u64>() > 0);
            world.restart(3);
            let s = world.join(kept("s"));
            assert_eq!(starts(&world.texts(s)), ["large", "small"], "{is_gated} {retains}");
            if retains {
                let r = world.join(v5("r"));
                world.subscribe(r, "t/#", AtLeastOnce);
                let mut texts = world.texts(r);
                texts.sort();
                assert_eq!(starts(&texts), ["large", "small"], "{is_gated}");
            }
        }
    }
}

#[test]
fn what_was_handed_over_keeps_its_place_over_all_restarts() {
    for is_gated in [false, true] {
        for shards in [1, 2, 3] {
            let mut world = lacking_the_first(is_gated, false);
            for _ in 0..3 {
                world.restart(shards);
            }
            let s = world.join(kept("s"));
            assert_eq!(starts(&world.texts(s)), ["large", "small"], "{is_gated} {shards}");
        }
    }
}

#[test]
fn what_a_journal_lacks_is_made_up_for_before_more_is_promised() {
    for is_gated in [false, true] {
        let mut world = lacking_the_first(is_gated, false);
        let p = world.join(v5("p"));
        // Small ones would fit, but who takes them is not known to be there after a restart.
        let refused = world.publish(p, message("t/3", AtLeastOnce, "refused")).unwrap();
        assert_eq!(world.accepted(p, refused), ReasonCode::QUOTA_EXCEEDED);
        world.turn();
        let refused = world.publish(p, message("t/3", AtLeastOnce, "refused")).unwrap();
        assert_eq!(world.accepted(p, refused), ReasonCode::QUOTA_EXCEEDED);
        world.tapes.iter().for_each(|tape| tape.limit(None));
        world.turn();
        let third = world.publish(p, message("t/3", AtLeastOnce, "third")).unwrap();
        assert_eq!(world.accepted(p, third), ReasonCode::SUCCESS);
        // Nothing is on its way between shards any more.
        check(&world);
        world.restart(3);
        let s = world.join(kept("s"));
        assert_eq!(starts(&world.texts(s)), ["large", "small", "third"]);
        world.end();
    }
}

#[test]
fn what_a_checkpoint_says_of_other_shards_is_durable_after_what_they_sent() {
    let mut world = World::keeping(settings(), 3, true);
    let s = world.join(kept("s"));
    world.subscribe(s, "t", ExactlyOnce);
    world.cut(s);
    let p = world.join(v5("p"));
    world.flushes = false;
    let waits = world.publish(p, message("t", AtLeastOnce, "x")).unwrap();
    while world.tapes[1].flush() {
        world.shards[1].durable();
        world.pump();
    }
    assert_eq!(world.accepted(p, waits), ReasonCode::SUCCESS);
    world.shards[0].begin_checkpoint_now();
    for _ in 0..3 {
        world.shards[0].checkpoint_some(1_000);
    }
    // The power goes; of what was not said to be durable the disk has the last record alone.
    let mut state = world.tapes[0].state();
    let (durable, last) = (state.durable, state.records.len() - 1);
    state.records[durable..last].fill(None);
    drop(state);
    world.restart(3);
    world.flushes = true;
    let s = world.join(kept("s"));
    assert_eq!(world.texts(s), ["x"]);
}

#[test]
fn a_subscription_that_finds_no_room_is_not_granted() {
    for version in [Version::V4, Version::V5] {
        let mut world = World::keeping(settings(), 1, false);
        let s = world.join(Connect { version, ..kept("s") });
        assert_eq!(world.subscribe(s, "a", AtLeastOnce), ReasonCode::GRANTED_QOS_1);
        world.tapes[0].limit(Some(0));
        let refused =
            if version == Version::V5 { ReasonCode::QUOTA_EXCEEDED } else { ReasonCode(0x80) };
        assert_eq!(world.subscribe(s, "b", AtLeastOnce), refused);
        assert_eq!(world.subscribe(s, "a", ExactlyOnce), refused);
        // It has that one, also after the connection has ended.
        assert_eq!(world.subscribe(s, "a", AtLeastOnce), ReasonCode::GRANTED_QOS_1);
        world.cut(s);
        let s = world.join(Connect { version, ..kept("s") });
        assert_eq!(world.subscribe(s, "a", AtLeastOnce), ReasonCode::GRANTED_QOS_1);
        // Clients without a kept session are not concerned.
        let fleeting = world.join(v5("f"));
        assert_eq!(world.subscribe(fleeting, "b", AtLeastOnce), ReasonCode::GRANTED_QOS_1);
        world.tapes[0].limit(None);
        world.turn();
        assert_eq!(world.subscribe(s, "b", AtLeastOnce), ReasonCode::GRANTED_QOS_1);
        check(&world);
        world.restart(1);
        world.end();
    }
}

#[test]
fn an_identifier_that_is_in_no_record_is_not_used() {
    for (shards, is_gated) in [(1, false), (3, false), (1, true), (3, true)] {
        let mut world = World::keeping(settings(), shards, is_gated);
        let s = world.mute(kept("s"));
        world.subscribe(s, "t", ExactlyOnce);
        world.cut(s);
        let p = world.join(v5("p"));
        world.publish(p, message("t", ExactlyOnce, "waits"));
        world.tapes.iter().for_each(|tape| tape.limit(Some(0)));
        let s = world.mute(kept("s"));
        // After a restart, the client would take another message with that identifier for this one.
        assert_eq!(world.messages(s), []);
        world.turn();
        assert_eq!(world.messages(s), []);
        world.tapes.iter().for_each(|tape| tape.limit(None));
        world.turn();
        let [first] = &world.messages(s)[..] else { panic!("it comes once there is room") };
        let first = first.id;
        world.restart(shards);
        let s = world.mute(kept("s"));
        let again = world.messages(s);
        assert_eq!((again[0].id, again[0].dup), (first, true));
        // Nor is one released before that can be written: a message that came with it would be taken for the one before.
        let publish = Publish { packet_id: Some(id(5)), ..message("u", ExactlyOnce, "x") };
        let q = world.mute(kept("q"));
        world.send(q, Packet::Publish(publish));
        world.take(q);
        world.tapes.iter().for_each(|tape| tape.limit(Some(0)));
        world.pubrel(q, id(5));
        assert!(!world.take(q).iter().any(|got| matches!(got, Other(Packet::Pubcomp(_)))));
        assert_eq!(world.end_reason(q), Some(ReasonCode::QUOTA_EXCEEDED));
        world.tapes.iter().for_each(|tape| tape.limit(None));
        let q = world.mute(kept("q"));
        world.pubrel(q, id(5));
        assert!(
            matches!(&world.take(q)[..], [Other(Packet::Pubcomp(ack))] if !ack.reason.is_failure())
        );
        world.turn();
        world.end();
    }
}

#[test]
fn a_message_that_is_in_no_record_is_begun_under_no_identifier() {
    for is_gated in [false, true] {
        let mut world = lacking_the_first_of(is_gated, false, ExactlyOnce);
        let s = world.mute(kept("s"));
        // After a restart it would come under another one, and the client would take the next message with this one for it.
        let is_large = |got: &Delivery| got.text().starts_with("large");
        assert!(!world.messages(s).iter().any(is_large), "gated {is_gated}");
        world.turn();
        assert!(!world.messages(s).iter().any(is_large), "gated {is_gated}");
        world.tapes.iter().for_each(|tape| tape.limit(None));
        world.turn();
        world.turn();
        assert!(world.messages(s).iter().any(is_large), "gated {is_gated}");
        world.end();
    }
}

#[test]
fn what_a_member_leaves_stays_its_own_until_another_has_it_written_down() {
    for shards in [1, 3] {
        let mut world = World::keeping(settings(), shards, false);
        for name in ["a", "b"] {
            let at = world.join(kept(name));
            world.subscribe(at, "$share/g/t", AtLeastOnce);
            world.cut(at);
        }
        let p = world.join(v5("p"));
        let text = "x".repeat(10_000);
        for _ in 0..4 {
            let id = world.publish(p, message("t", AtLeastOnce, &text)).unwrap();
            assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
        }
        world.tapes.iter().for_each(|tape| tape.limit(Some(2_000)));
        // It ends, and another one of its name begins.
        let a = world.join(Connect { clean_start: true, ..kept("a") });
        world.cut(a);
        world.restart(shards);
        let a = world.connect(kept("a"));
        world.connack(a);
        assert_eq!(world.texts(a), [""; 0]);
        world.turn();
        let b = world.join(kept("b"));
        assert_eq!(world.texts(b).len(), 4, "{shards} shards");
        world.end();
    }
}

#[test]
fn what_found_no_room_is_written_once_there_is_some_or_at_the_end() {
    for shards in [1, 3] {
        for ends in [false, true] {
            let mut world = World::keeping(settings(), shards, false);
            let s = world.join(kept("s"));
            world.subscribe(s, "t", ExactlyOnce);
            world.cut(s);
            let p = world.join(v5("p"));
            for (qos, text) in [(AtLeastOnce, "1"), (AtLeastOnce, "2"), (AtLeastOnce, "3")] {
                world.publish(p, message("t", qos, text)).unwrap();
            }
            for tape in &world.tapes {
                tape.state().is_shut = true;
            }
            // That they were delivered cannot be written down.
            let s = world.join(kept("s"));
            assert_eq!(world.texts(s), ["1", "2", "3"]);
            for tape in &world.tapes {
                tape.state().is_shut = false;
            }
            if ends {
                world.shards.iter_mut().for_each(Broker::finish_journal);
            } else {
                world.advance(seconds(2));
            }
            check(&world);
            world.end();
        }
    }
}

#[test]
fn a_message_whose_dead_letter_cannot_be_kept_is_refused() {
    for shards in [1, 3] {
        let mut world = World::keeping(settings(), shards, false);
        publish::operate(&mut world);
        let s = world.join(kept("s"));
        world.subscribe(s, "dead", ExactlyOnce);
        let p = world.join(v5("p"));
        for tape in &world.tapes {
            tape.state().is_full = true;
        }
        for qos in [AtLeastOnce, ExactlyOnce] {
            let id = world.publish(p, message("t", qos, "bury")).unwrap();
            assert_eq!(world.accepted(p, id), ReasonCode::QUOTA_EXCEEDED);
        }
        assert_eq!(world.texts(s), [""; 0]);
        for tape in &world.tapes {
            tape.state().is_full = false;
        }
        world.advance(seconds(2));
        for qos in [AtLeastOnce, ExactlyOnce] {
            let id = world.publish(p, message("t", qos, "bury")).unwrap();
            assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
            assert_eq!(world.texts(s), ["bury"]);
        }
        check(&world);
        world.end();
    }
}

#[test]
fn dead_letters_of_a_qos_2_message_are_published_once_whoever_restarts() {
    each_keeping(|world| {
        publish::operate(world);
        let s = world.join(kept("s"));
        world.subscribe(s, "dead", ExactlyOnce);
        world.cut(s);
        let p = world.mute(kept("p"));
        let bury = Publish { packet_id: Some(id(5)), ..message("t", ExactlyOnce, "bury!") };
        world.send(p, Packet::Publish(bury));
        assert_eq!(world.accepted(p, id(5)), ReasonCode::SUCCESS);
        world.restart(world.shards.len());
        publish::operate(world);
        let p = world.mute(kept("p"));
        world.send(p, Packet::Publish(Publish { dup: true, ..bury }));
        assert_eq!(world.accepted(p, id(5)), ReasonCode::SUCCESS);
        let s = world.join(kept("s"));
        assert_eq!(world.texts(s), ["bury!", "bury!"]);
    });
}

#[test]
fn a_disk_that_fails_ends_who_waits_for_it_and_the_node_goes_on() {
    let mut world = World::keeping(settings(), 1, true);
    let s = world.join(kept("s"));
    world.subscribe(s, "t", AtLeastOnce);
    let p = world.join(v5("p"));
    world.flushes = false;
    let waits = world.publish(p, message("t", AtLeastOnce, "x")).unwrap();
    world.tapes[0].state().has_failed = true;
    world.flush_journals();
    assert_eq!(world.end_reason(p), Some(ReasonCode::QUOTA_EXCEEDED), "{waits} is not promised");
    let p = world.join(v5("p"));
    let id = world.publish(p, message("t", AtLeastOnce, "y")).unwrap();
    assert_eq!(world.accepted(p, id), ReasonCode::QUOTA_EXCEEDED);
    world.publish(p, message("t", AtMostOnce, "z"));
    assert!(world.texts(s).contains(&"z".to_owned()));
    world.end();
}

#[test]
fn a_journal_that_takes_the_place_of_another_ends_all_waits() {
    let mut world = World::keeping(settings(), 1, true);
    let s = world.join(kept("s"));
    world.subscribe(s, "t", AtLeastOnce);
    let p = world.join(v5("p"));
    world.flushes = false;
    world.publish(p, message("t", AtLeastOnce, "x")).unwrap();
    world.tapes[0] = Tape::new(true);
    let next = Box::new(world.tapes[0].clone());
    world.shards[0].keep(next);
    world.flushes = true;
    world.flush_journals();
    assert_eq!(world.end_reason(p), Some(ReasonCode::QUOTA_EXCEEDED));
    let p = world.join(v5("p"));
    let id = world.publish(p, message("t", AtLeastOnce, "y")).unwrap();
    assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS);
    assert!(world.texts(s).contains(&"y".to_owned()));
    world.end();
}

/// Clients act at random; the journals always agree with the live state, also during a checkpoint.
#[test]
fn the_journals_say_what_is_so_whatever_happens() {
    for seed in 0..150 {
        let mut random = SmallRng::seed_from_u64(seed);
        let is_gated = random.random();
        let shards = random.random_range(1..4);
        let config = BrokerConfig {
            session: SessionConfig {
                queue_messages_max: [3, 100_000][random.random_range(0..2)],
                overflow: [Overflow::DropOldest, Overflow::DropNewest, Overflow::Latest]
                    [random.random_range(0..3)],
                ..refusing()
            },
            ..settings()
        };
        let mut world = World::keeping(config, shards, is_gated);
        let names = ["a", "b", "c", "d"];
        let mut at: Vec<Option<At>> = vec![None; names.len()];
        for step in 0..120 {
            let who = random.random_range(0..names.len());
            let topic = ["t/0", "t/1", "r/0"][random.random_range(0..3)];
            let qos = [AtMostOnce, AtLeastOnce, ExactlyOnce][random.random_range(0..3)];
            let open = at[who].filter(|at| world.is_open(*at));
            let text = format!("{step}");
            match (random.random_range(0..14), open) {
                (0, _) => {
                    let next = random.random_range(1..4);
                    world.restart(next);
                }
                (1, Some(open)) => world.cut(open),
                (2, Some(open)) => world.disconnect(open, Disconnect::default()),
                (3, Some(open)) => {
                    let filter = ["t/#", "t/1", "$share/g/t/0"][random.random_range(0..3)];
                    world.subscribe(open, filter, qos);
                }
                (4, Some(open)) => drop(world.unsubscribe(open, &["t/#"])),
                (5, Some(open)) => world.acknowledges(open, random.random()),
                (6, _) => world.advance(seconds(random.random_range(0..40))),
                (7, _) => {
                    for shard in &mut world.shards {
                        shard.begin_checkpoint_now();
                    }
                }
                (8, _) => {
                    for shard in &mut world.shards {
                        shard.checkpoint_some(random.random_range(1..6));
                    }
                    world.pump();
                }
                (9, Some(open)) => {
                    let text = if random.random() { &*text } else { "" };
                    world.publish(open, retained("r/0", qos, text));
                }
                (_, Some(open)) => {
                    world.publish(open, message(topic, qos, &text));
                }
                (_, None) => {
                    let mut connect = kept(names[who]);
                    connect.clean_start = random.random_ratio(1, 6);
                    connect.properties.session_expiry =
                        [Some(30), Some(3600), Some(0)][random.random_range(0..3)];
                    connect.will = random.random_ratio(1, 3).then(|| Will {
                        delay: random.random_range(0..50),
                        qos,
                        ..will(topic, &text)
                    });
                    let open = if random.random() {
                        world.connect(connect)
                    } else {
                        world.connect_mute(connect)
                    };
                    at[who] = Some(open);
                }
            }
            let told = std::panic::AssertUnwindSafe(|| check(&world));
            if let Err(panic) = std::panic::catch_unwind(told) {
                eprintln!("seed {seed}, step {step}");
                std::panic::resume_unwind(panic);
            }
        }
        world.end();
    }
}

#[test]
fn messages_sent_again_after_restarts_say_so() {
    // MQTT-3.3.1-1, MQTT-3.3.1-3: whatever it was sent by, and however the connection had ended.
    for sends in ["at once", "from its queue", "retained", "shared", "large"] {
        for (leaves, restarts, takes) in
            [(false, 1, false), (true, 1, false), (false, 2, false), (true, 3, true)]
        {
            for qos in [AtLeastOnce, ExactlyOnce] {
                each_keeping(|world| {
                    let p = world.join(v5("p"));
                    let text = "x".repeat(if sends == "large" { 100_000 } else { 1 });
                    if sends == "retained" {
                        world.publish(p, retained("t", qos, &text));
                    }
                    let s = world.mute(kept("s"));
                    let filter = if sends == "shared" { "$share/g/t" } else { "t" };
                    world.subscribe(s, filter, ExactlyOnce);
                    let mut s = s;
                    if sends == "from its queue" {
                        world.cut(s);
                    }
                    if sends != "retained" {
                        world.publish(p, message("t", qos, &text));
                    }
                    if sends == "from its queue" {
                        s = world.mute(kept("s"));
                    }
                    let first = world.messages(s);
                    assert_eq!((first.len(), first[0].dup), (1, false), "{sends}");
                    if leaves {
                        world.cut(s);
                    }
                    for _ in 0..restarts {
                        let shards = world.shards.len();
                        world.restart(shards);
                        if takes {
                            let s = world.mute(kept("s"));
                            assert!(world.messages(s)[0].dup, "{sends} {qos:?}");
                        }
                    }
                    let s = world.join(kept("s"));
                    let again = world.messages(s);
                    assert_eq!((again.len(), again[0].dup), (1, true), "{sends} {qos:?}");
                });
            }
        }
    }
}

#[test]
fn a_small_journal_is_written_again_before_it_is_full() {
    for is_gated in [false, true] {
        let mut world = World::keeping(settings(), 1, is_gated);
        world.tapes[0].limit(Some(1 << 20));
        world.tapes[0].state().says_bytes_max = true;
        let s = world.join(kept("s"));
        world.subscribe(s, "t", AtLeastOnce);
        let p = world.join(v5("p"));
        let payload = "x".repeat(1_000);
        for number in 0..4_000 {
            let id = world.publish(p, message("t", AtLeastOnce, &payload)).unwrap();
            while world.flush_journals() {}
            assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS, "gated {is_gated}, {number}");
            world.advance(Duration::from_millis(1));
        }
        let written = world.shards[0].journal_counts().unwrap();
        assert!((4..200).contains(&written.checkpoints), "{written:?}");
        check(&world);
        assert_eq!(world.messages(s).len(), 4_000);
        world.end();
    }
}

#[test]
fn a_journal_whose_state_finds_no_room_twice_is_not_looked_through_each_second() {
    let mut world = World::keeping(settings(), 1, false);
    world.tapes[0].limit(Some(1 << 20));
    world.tapes[0].state().says_bytes_max = true;
    let s = world.join(kept("s"));
    world.subscribe(s, "t", AtLeastOnce);
    world.cut(s);
    let p = world.join(v5("p"));
    let payload = "x".repeat(1_000);
    for number in 0..600 {
        let id = world.publish(p, message("t", AtLeastOnce, &payload)).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS, "{number}");
    }
    world.advance(seconds(5));
    let counts = world.shards[0].journal_counts().unwrap();
    let looks = allocation_counter::measure(|| world.advance(seconds(20))).count_total;
    assert!(looks < 100, "{looks} allocations in 20 s");
    assert_eq!(world.shards[0].journal_counts().unwrap().checkpoints, counts.checkpoints);
    // Once most of it is taken, the journal is written again as it grows.
    let s = world.join(kept("s"));
    assert_eq!(world.messages(s).len(), 600);
    for number in 0..600 {
        let id = world.publish(p, message("t", AtLeastOnce, &payload)).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS, "{number}, written again");
        world.advance(Duration::from_millis(10));
    }
    assert_eq!(world.messages(s).len(), 600);
    assert!(world.shards[0].journal_counts().unwrap().checkpoints > counts.checkpoints);
    world.end();
}

#[test]
fn a_journal_whose_state_found_no_room_is_written_again_once_large_messages_are_taken() {
    let mut world = World::keeping(settings(), 1, false);
    world.tapes[0].limit(Some(1 << 20));
    world.tapes[0].state().says_bytes_max = true;
    let s = world.join(kept("s"));
    world.subscribe(s, "t", AtLeastOnce);
    world.cut(s);
    let p = world.join(v5("p"));
    let payload = "x".repeat(100_000);
    for number in 0..7 {
        let id = world.publish(p, message("t", AtLeastOnce, &payload)).unwrap();
        assert_eq!(world.accepted(p, id), ReasonCode::SUCCESS, "{number}");
    }
    world.advance(seconds(5));
    let counts = world.shards[0].journal_counts().unwrap();
    // Seven small records say that they are taken, which is far below a sixteenth of the journal.
    let s = world.join(kept("s"));
    assert_eq!(world.messages(s).len(), 7);
    world.advance(seconds(10));
    assert!(world.shards[0].journal_counts().unwrap().checkpoints > counts.checkpoints);
    world.end();
}

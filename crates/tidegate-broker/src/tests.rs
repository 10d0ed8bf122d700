//! The broker as its clients see it: bytes in, bytes out, by the clauses of MQTT 3.1.1 and 5.0.
//!
//! A [`World`] is a node of some shards, its clients, and a clock that stands still until a test moves it. It checks at every
//! step what must hold in every test: packets decode, none is larger than the client takes or comes after DISCONNECT, no
//! more are in flight than the client takes, aliases are defined before they are used, the budget is kept.

mod allocation;
mod auth;
mod clients;
mod connect;
mod contract;
mod errors;
mod expiry;
mod flow;
mod full_disk;
mod hand_on;
mod hand_over;
mod journal;
mod leaves;
mod ordering;
mod overflow;
mod parts;
mod peers;
mod properties;
mod publish;
mod qos;
mod retained;
mod session;
mod shared;
mod shares;
mod spill;
mod stamps;
mod subscribe;
mod sys;
mod will;
mod yielding;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    io::IoSlice,
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use tidegate_message::{AllowAll, Authorize, Identity, IdentityKind, Instant};
use tidegate_wire::mqtt::{
    Ack, Auth, Connack, Connect, ConnectProperties, Disconnect, FixedHeader, ForwardedProperties,
    Packet, PacketId, Publish, PublishProperties, QoS, ReasonCode, RetainHandling, Subscribe,
    SubscribeFilter, Unsubscribe, Version, Will,
};

use crate::{
    AuthAnswer, Broker, BrokerConfig, ClientChange, ConnectRequest, ConnectionKey, Denied, Output,
    Overflow, Peer, Refused, SLICES_MAX, SessionConfig, Shared,
    spill::{Spill, simulated::SimulatedSpill},
};

pub(crate) use self::Got::{Other, Published};
pub(crate) use QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};

/// A node and its clients.
pub(crate) struct World {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shards: Vec<Broker>,
    pub(crate) now: Instant,
    clients: Vec<Client>,
    /// Client identifiers by the names that tests use: placed on the shards in turn, so that a run can be repeated.
    names: BTreeMap<String, String>,
    rules: Arc<dyn Authorize>,
    /// From where clients connect.
    pub(crate) address: Option<IpAddr>,
    /// Whether clients that connect answer by themselves.
    answers: bool,
    /// Whether who connects is a part of this program.
    pub(crate) is_own: bool,
    /// Actions that rules refused, as the log is to say it.
    pub(crate) denied: Vec<Denied>,
    /// SUBACKs that wait: shard, number and filters.
    pub(crate) held: Vec<(usize, u64, Vec<Arc<str>>)>,
    /// Clients that came and went: shard, number and change.
    pub(crate) changes: Vec<(usize, u64, ClientChange)>,
    /// By shard, its journal, if sessions are written down.
    tapes: Vec<journal::Tape>,
    /// Whether what is written becomes durable by itself, once nothing else moves.
    flushes: bool,
    /// Whether shards do not hear of each other for now.
    pub(crate) hold_peers: bool,
    /// Where messages wait that find no room in memory.
    pub(crate) disk: Arc<SimulatedSpill>,
    /// Bytes that may be held beyond the budget: places on disk, and a message for each session that has more there.
    pub(crate) beyond: u64,
}

/// One network connection of a client.
struct Client {
    version: Version,
    shard: usize,
    /// None once it is closed.
    key: Option<ConnectionKey>,
    /// Bytes that the broker has not taken.
    input: Vec<u8>,
    /// Bytes that are no whole packet yet.
    output: Vec<u8>,
    got: Vec<Got>,
    /// Bytes that the kernel still takes.
    room: usize,
    blocked: bool,
    paused: bool,
    acknowledges: bool,
    next_id: u16,
    packet_bytes_max: usize,
    receive_maximum: usize,
    alias_maximum: u16,
    aliases: HashMap<u16, String>,
    /// QoS 1 and 2 messages that it has not acknowledged.
    open: Vec<PacketId>,
    disconnected: Option<Disconnect>,
    /// Steps of its authentication that wait for the shell.
    asked: Vec<Auth>,
}

/// Names a connection of a [`World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct At(usize);

/// A packet that a client received.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Got {
    Published(Delivery),
    Other(Packet<'static>),
}

/// A PUBLISH that a client received, its topic written out.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Delivery {
    pub(crate) topic: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) qos: QoS,
    pub(crate) dup: bool,
    pub(crate) retain: bool,
    pub(crate) id: Option<PacketId>,
    pub(crate) expiry: Option<u32>,
    pub(crate) subscriptions: Vec<u32>,
    /// Properties that were forwarded, encoded.
    pub(crate) forwarded: Vec<u8>,
    pub(crate) alias: Option<u16>,
    pub(crate) topic_was_empty: bool,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, qos, dup, id, .. } = self;
        let start: String = self.text().chars().take(20).collect();
        write!(f, "{topic} {start:?} ({}) {qos:?} dup {dup} id {id:?}", self.payload.len())
    }
}

impl Delivery {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// The start of the world's clock.
pub(crate) const START: Instant = Instant::from_millis(1_700_000_000_000);

pub(crate) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Settings of tests: no `$SYS`, and each identity may have all, so that the bounds of the node are what is met.
pub(crate) fn settings() -> BrokerConfig {
    BrokerConfig {
        sys_interval: Duration::ZERO,
        identity_share: 1.0,
        session: refusing(),
        ..BrokerConfig::default()
    }
}

/// The usual settings of sessions, but for the policy of full queues: most tests are of what it does to others.
pub(crate) fn refusing() -> SessionConfig {
    SessionConfig { overflow: Overflow::Disconnect, ..SessionConfig::default() }
}

/// Runs a test on a node of one shard and on one of three, and looks at the end whether all memory is given back.
pub(crate) fn each(test: impl FnMut(&mut World)) {
    each_with(settings(), test);
}

pub(crate) fn each_with(config: BrokerConfig, mut test: impl FnMut(&mut World)) {
    for shards in [1, 3] {
        let mut world = World::new(config.clone(), shards);
        test(&mut world);
        world.end();
    }
    // The same with sessions that are written down, where that is durable at once and where it is later.
    for (shards, is_gated) in [(1, false), (3, false), (1, true), (3, true)] {
        let mut world = World::keeping(config.clone(), shards, is_gated);
        test(&mut world);
        journal::check(&world);
        world.end();
    }
}

/// A CONNECT of MQTT 5 with Clean Start.
pub(crate) fn v5(client_id: &str) -> Connect {
    Connect {
        version: Version::V5,
        bridge: false,
        clean_start: true,
        keep_alive: 0,
        client_id: client_id.to_owned(),
        will: None,
        username: None,
        password: None,
        properties: ConnectProperties::default(),
    }
}

/// A CONNECT of MQTT 3.1.1 with Clean Session.
pub(crate) fn v4(client_id: &str) -> Connect {
    Connect { version: Version::V4, ..v5(client_id) }
}

/// A CONNECT of MQTT 5 that finds its session again.
pub(crate) fn kept(client_id: &str) -> Connect {
    let properties = ConnectProperties { session_expiry: Some(3600), ..Default::default() };
    Connect { clean_start: false, properties, ..v5(client_id) }
}

pub(crate) fn will(topic: &str, payload: &str) -> Will {
    Will {
        topic: topic.to_owned(),
        payload: payload.into(),
        qos: AtMostOnce,
        retain: false,
        delay: 0,
        message_expiry: None,
        forwarded: Vec::new(),
    }
}

pub(crate) fn filter(filter: &str, maximum_qos: QoS) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}

pub(crate) fn message<'a>(topic: &'a str, qos: QoS, payload: &'a str) -> Publish<'a> {
    Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: None,
        properties: PublishProperties::NONE,
        payload: payload.as_bytes(),
    }
}

pub(crate) fn retained<'a>(topic: &'a str, qos: QoS, payload: &'a str) -> Publish<'a> {
    Publish { retain: true, ..message(topic, qos, payload) }
}

/// A PUBLISH packet of MQTT 5 with those properties as they are encoded.
pub(crate) fn publish_bytes(publish: Publish<'_>, raw: &[u8]) -> Vec<u8> {
    let properties = PublishProperties { raw, ..PublishProperties::NONE };
    let mut bytes = Vec::new();
    Packet::Publish(Publish { properties, ..publish }).encode(Version::V5, &mut bytes).unwrap();
    bytes
}

pub(crate) fn id(value: u16) -> PacketId {
    NonZeroU16::new(value).unwrap()
}

impl World {
    pub(crate) fn new(config: BrokerConfig, shards: usize) -> Self {
        Self::with_rules(config, shards, Arc::new(AllowAll))
    }

    pub(crate) fn with_rules(
        config: BrokerConfig,
        shards: usize,
        rules: Arc<dyn Authorize>,
    ) -> Self {
        let shared = Shared::new(config, shards, rules.clone(), START);
        let disk = Arc::new(SimulatedSpill::new(1 << 30));
        let broker = |shard| {
            let mut broker = Broker::new(shared.clone(), shard, 7, START);
            broker.set_spill(Some(disk.clone()));
            broker
        };
        Self {
            shards: (0..shards).map(broker).collect(),
            shared,
            now: START,
            rules,
            clients: Vec::new(),
            names: BTreeMap::new(),
            address: None,
            answers: true,
            is_own: false,
            denied: Vec::new(),
            held: Vec::new(),
            changes: Vec::new(),
            tapes: Vec::new(),
            flushes: true,
            hold_peers: false,
            beyond: 0,
            disk,
        }
    }

    /// The client identifier that stands for `name`.
    pub(crate) fn placed(&mut self, name: &str) -> String {
        let wanted = self.names.len() % self.shards.len();
        let shared = &self.shared;
        let place = || {
            let mut tried = (0..).map(|number| format!("{name}~{number}"));
            tried.find(|id| shared.shard_of(id) == wanted).expect("there are names enough")
        };
        self.names.entry(name.to_owned()).or_insert_with(place).clone()
    }

    // ---- connections

    pub(crate) fn connect(&mut self, connect: Connect) -> At {
        self.try_connect(connect).expect("the broker accepts")
    }

    /// Connects and takes the CONNACK away.
    pub(crate) fn join(&mut self, connect: Connect) -> At {
        let at = self.connect(connect);
        self.connack(at);
        at
    }

    /// Connects a client that acknowledges nothing by itself.
    pub(crate) fn connect_mute(&mut self, connect: Connect) -> At {
        self.answers = false;
        let at = self.connect(connect);
        self.answers = true;
        at
    }

    /// The same, and takes the CONNACK away.
    pub(crate) fn mute(&mut self, connect: Connect) -> At {
        let at = self.connect_mute(connect);
        self.connack(at);
        at
    }

    pub(crate) fn try_connect(&mut self, connect: Connect) -> Result<At, Refused> {
        let config = self.shared.config().session.clone();
        self.try_connect_with(connect, config)
    }

    pub(crate) fn join_with(&mut self, connect: Connect, config: SessionConfig) -> At {
        let at = self.try_connect_with(connect, config).expect("the broker accepts");
        self.connack(at);
        at
    }

    pub(crate) fn try_connect_with(
        &mut self,
        mut connect: Connect,
        config: SessionConfig,
    ) -> Result<At, Refused> {
        let shard = if connect.client_id.is_empty() {
            0
        } else {
            connect.client_id = self.placed(&connect.client_id);
            self.shared.shard_of(&connect.client_id)
        };
        // Through the codec, as it would come.
        let mut bytes = Vec::new();
        Packet::Connect(Box::new(connect)).encode(Version::V5, &mut bytes).unwrap();
        let header = FixedHeader::decode(&bytes, usize::MAX).unwrap().unwrap();
        let connect = Connect::decode(&bytes[header.header_bytes..]).unwrap();
        let asked = connect.properties.clone();
        let version = connect.version;
        let anonymous = Identity::anonymous(&connect.client_id);
        let mut identity = Identity { address: self.address, ..anonymous };
        if let Some(user) = &connect.username {
            identity =
                Identity { kind: IdentityKind::User, name: user.as_str().into(), ..identity };
        }
        if self.is_own {
            identity.kind = IdentityKind::Internal;
        }
        let config = Arc::new(config);
        let request = ConnectRequest { connect, identity, config, authentication_data: None };
        let key = self.shards[shard].connect(self.now, request)?;
        self.clients.push(Client {
            version,
            shard,
            key: Some(key),
            input: Vec::new(),
            output: Vec::new(),
            got: Vec::new(),
            room: usize::MAX,
            blocked: false,
            paused: false,
            acknowledges: self.answers,
            next_id: 1,
            packet_bytes_max: asked.maximum_packet_size.map_or(usize::MAX, |bytes| bytes as usize),
            receive_maximum: asked.receive_maximum.map_or(65_535, |count| count.get().into()),
            alias_maximum: asked.topic_alias_maximum,
            aliases: HashMap::new(),
            open: Vec::new(),
            disconnected: None,
            asked: Vec::new(),
        });
        self.pump();
        Ok(At(self.clients.len() - 1))
    }

    /// The network connection breaks.
    pub(crate) fn cut(&mut self, at: At) {
        self.close(at);
        self.pump();
    }

    fn close(&mut self, at: At) {
        let client = &mut self.clients[at.0];
        if let Some(key) = client.key.take() {
            self.shards[client.shard].closed(self.now, key);
        }
    }

    /// Where the broker has an open connection: its shard, and its name there.
    pub(crate) fn key_of(&self, at: At) -> (usize, ConnectionKey) {
        let client = &self.clients[at.0];
        (client.shard, client.key.expect("it is open"))
    }

    pub(crate) fn is_open(&self, at: At) -> bool {
        self.clients[at.0].key.is_some()
    }

    pub(crate) fn is_paused(&self, at: At) -> bool {
        self.clients[at.0].paused
    }

    /// Why the broker ended the connection, if it said so; it must have ended.
    pub(crate) fn end_reason(&self, at: At) -> Option<ReasonCode> {
        assert!(!self.is_open(at), "the connection is open");
        self.clients[at.0].disconnected.as_ref().map(|packet| packet.reason)
    }

    /// The last authentication that the shell was asked for.
    pub(crate) fn asked(&mut self, at: At) -> Auth {
        self.clients[at.0].asked.pop().expect("a step of an authentication")
    }

    /// The shell's answer to it.
    pub(crate) fn authenticated(&mut self, at: At, answer: AuthAnswer) {
        let client = &self.clients[at.0];
        self.shards[client.shard].authenticated(client.key.expect("it is open"), answer);
        self.pump();
    }

    /// Whether the client answers QoS 1 and 2 messages by itself; it does at first.
    pub(crate) fn acknowledges(&mut self, at: At, does: bool) {
        self.clients[at.0].acknowledges = does;
    }

    /// The kernel takes so many bytes more, and then none.
    pub(crate) fn room(&mut self, at: At, bytes: usize) {
        let client = &mut self.clients[at.0];
        client.room = bytes;
        if client.blocked && bytes > 0 {
            client.blocked = false;
            let (shard, key) = (client.shard, client.key);
            if let Some(key) = key {
                self.shards[shard].writable(key);
            }
        }
        self.pump();
    }

    // ---- packets

    pub(crate) fn raw(&mut self, at: At, bytes: &[u8]) {
        self.clients[at.0].input.extend_from_slice(bytes);
        self.pump();
    }

    pub(crate) fn send(&mut self, at: At, packet: Packet<'_>) {
        let client = &mut self.clients[at.0];
        client.put(&packet);
        self.pump();
    }

    pub(crate) fn fresh_id(&mut self, at: At) -> PacketId {
        let client = &mut self.clients[at.0];
        let id = id(client.next_id);
        client.next_id = client.next_id % 60_000 + 1;
        id
    }

    /// Publishes under a fresh packet identifier, if the message needs one.
    pub(crate) fn publish(&mut self, at: At, publish: Publish<'_>) -> Option<PacketId> {
        let packet_id = (publish.qos > AtMostOnce).then(|| self.fresh_id(at));
        self.send(at, Packet::Publish(Publish { packet_id, ..publish }));
        packet_id
    }

    pub(crate) fn subscribe(&mut self, at: At, text: &str, qos: QoS) -> ReasonCode {
        self.subscribe_to(at, None, vec![filter(text, qos)])[0]
    }

    /// Subscribes, and takes the SUBACK away.
    pub(crate) fn subscribe_to(
        &mut self,
        at: At,
        subscription_id: Option<u32>,
        filters: Vec<SubscribeFilter>,
    ) -> Vec<ReasonCode> {
        let packet_id = self.fresh_id(at);
        let user_properties = Vec::new();
        self.send(
            at,
            Packet::Subscribe(Subscribe { packet_id, subscription_id, user_properties, filters }),
        );
        self.answer(at, |packet| match packet {
            Packet::Suback(suback) if suback.packet_id == packet_id => Some(suback.reasons.clone()),
            _ => None,
        })
    }

    pub(crate) fn unsubscribe(&mut self, at: At, filters: &[&str]) -> Vec<ReasonCode> {
        let packet_id = self.fresh_id(at);
        let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
        let packet = Unsubscribe { packet_id, user_properties: Vec::new(), filters };
        self.send(at, Packet::Unsubscribe(packet));
        self.answer(at, |packet| match packet {
            Packet::Unsuback(unsuback) if unsuback.packet_id == packet_id => {
                Some(unsuback.reasons.clone())
            }
            _ => None,
        })
    }

    pub(crate) fn disconnect(&mut self, at: At, packet: Disconnect) {
        self.send(at, Packet::Disconnect(packet));
    }

    /// An ordinary goodbye.
    pub(crate) fn leave(&mut self, at: At) {
        self.disconnect(at, Disconnect::default());
        assert!(!self.is_open(at));
    }

    /// Takes away the first packet of which `pick` makes something.
    fn answer<T>(&mut self, at: At, pick: impl Fn(&Packet<'static>) -> Option<T>) -> T {
        let got = &mut self.clients[at.0].got;
        let found = got.iter().enumerate().find_map(|(place, got)| match got {
            Other(packet) => pick(packet).map(|picked| (place, picked)),
            Published(_) => None,
        });
        let (place, picked) = found.unwrap_or_else(|| panic!("no such answer in {got:?}"));
        got.remove(place);
        picked
    }

    pub(crate) fn connack(&mut self, at: At) -> Connack {
        self.answer(at, |packet| match packet {
            Packet::Connack(connack) => Some((**connack).clone()),
            _ => None,
        })
    }

    /// The reason of the PUBACK or PUBREC for that packet identifier.
    pub(crate) fn accepted(&mut self, at: At, id: PacketId) -> ReasonCode {
        self.answer(at, |packet| match packet {
            Packet::Puback(ack) | Packet::Pubrec(ack) if ack.packet_id == id => Some(ack.reason),
            _ => None,
        })
    }

    /// All that came since the last look.
    pub(crate) fn take(&mut self, at: At) -> Vec<Got> {
        std::mem::take(&mut self.clients[at.0].got)
    }

    /// The messages among it.
    pub(crate) fn messages(&mut self, at: At) -> Vec<Delivery> {
        let message = |got| match got {
            Published(delivery) => Some(delivery),
            Other(_) => None,
        };
        self.take(at).into_iter().filter_map(message).collect()
    }

    /// Their payloads.
    pub(crate) fn texts(&mut self, at: At) -> Vec<String> {
        self.messages(at).iter().map(Delivery::text).collect()
    }

    pub(crate) fn puback(&mut self, at: At, id: PacketId) {
        self.send(at, Packet::Puback(Ack::new(id, ReasonCode::SUCCESS)));
    }

    pub(crate) fn pubrec(&mut self, at: At, id: PacketId) {
        self.send(at, Packet::Pubrec(Ack::new(id, ReasonCode::SUCCESS)));
    }

    pub(crate) fn pubrel(&mut self, at: At, id: PacketId) {
        self.send(at, Packet::Pubrel(Ack::new(id, ReasonCode::SUCCESS)));
    }

    pub(crate) fn pubcomp(&mut self, at: At, id: PacketId) {
        self.send(at, Packet::Pubcomp(Ack::new(id, ReasonCode::SUCCESS)));
    }

    // ---- time

    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            let next = self.shards.iter().filter_map(Broker::poll_timeout).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            for shard in &mut self.shards {
                shard.handle_timeout(self.now);
            }
            self.pump();
        }
        self.now = end;
        self.pump();
    }

    /// All go, all sessions and retained messages end; nothing may be held then.
    pub(crate) fn end(&mut self) {
        for at in 0..self.clients.len() {
            self.close(At(at));
        }
        self.pump();
        self.advance(2 * self.shared.config().session_expiry_max);
        let sessions: u64 = self.shards.iter().map(|shard| shard.statistics().sessions).sum();
        assert_eq!(sessions, 0, "sessions that do not expire");
        let mut topics = Vec::new();
        self.shared.retained().matches("#", |topic, _| topics.push(topic.to_owned()));
        self.shared.retained().matches("$SYS/#", |topic, _| topics.push(topic.to_owned()));
        for topic in topics {
            self.shared.retained().remove(&topic);
        }
        assert_eq!(self.shared.budget().used(), 0, "bytes that were not given back");
        let held = self.shared.heaviest_identities(usize::MAX);
        assert_eq!(held, [], "bytes still counted for identities");
        assert_eq!(self.disk.bytes(), 0, "messages on disk without a session");
        assert_eq!(self.shared.subscriptions(), 0, "subscriptions without a session");
        assert!(!self.shared.some_full(), "sessions that are full and gone");
        assert!(self.shared.blocked_publishers().is_empty(), "publishers that wait for no session");
        if self.shared.config().sys_interval.is_zero() {
            // The longest expiry of what was retained.
            self.advance(Duration::from_secs(u32::MAX.into()));
            let timers: usize = self.shards.iter().map(Broker::timers).sum();
            assert_eq!(timers, 0, "timers of what has ended");
        }
    }

    // ---- what a shell does

    /// Runs until nothing moves any more.
    pub(crate) fn pump(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..self.clients.len() {
                moved |= self.feed(at);
            }
            for shard in 0..self.shards.len() {
                moved |= self.flush_all(shard);
            }
            if let Some((shard, wanted, answers)) = self.disk.answer() {
                moved = true;
                self.shards[shard].handle_fetched(self.now, wanted, answers);
            }
            self.check();
            if !(moved || self.flushes && self.flush_tapes()) {
                return;
            }
        }
    }

    /// Makes durable what is written so far, and tells the shards; whether there was something.
    fn flush_tapes(&mut self) -> bool {
        let mut moved = false;
        for (shard, tape) in self.shards.iter_mut().zip(&self.tapes) {
            if tape.flush() {
                moved = true;
                shard.durable();
            }
        }
        moved
    }

    /// The same, and all that follows from it until it waits again.
    pub(crate) fn flush_journals(&mut self) -> bool {
        let moved = self.flush_tapes();
        self.pump();
        moved
    }

    fn check(&self) {
        let budget = self.shared.budget();
        assert!(budget.used() <= budget.limit() + self.beyond, "the budget is exceeded");
    }

    fn feed(&mut self, at: usize) -> bool {
        let client = &mut self.clients[at];
        let Some(key) = client.key else { return false };
        if client.paused || client.input.is_empty() {
            return false;
        }
        let taken = self.shards[client.shard].receive(self.now, key, &client.input);
        client.input.drain(..taken);
        let has_filters = matches!(client.input.first().map(|first| first >> 4), Some(8 | 10));
        assert!(
            client.input.len() <= crate::CONTROL_BYTES_MAX || has_filters,
            "too much is left: {}",
            client.input.len()
        );
        taken > 0
    }

    fn flush_all(&mut self, shard: usize) -> bool {
        let mut moved = false;
        while let Some(key) = self.shards[shard].poll_dirty() {
            assert!(self.at(shard, key).is_some(), "a key that has ended has nothing to send");
            moved |= self.flush(shard, key);
        }
        while let Some(output) = self.shards[shard].poll_output() {
            moved = true;
            self.output(shard, output);
        }
        for other in 0..self.shards.len() {
            let mut batch: Vec<Peer> = Vec::new();
            if !self.hold_peers && self.shards[shard].poll_peers(other, &mut batch) {
                moved = true;
                self.shards[other].handle_peers(self.now, batch);
            }
        }
        moved
    }

    fn at(&self, shard: usize, key: ConnectionKey) -> Option<usize> {
        self.clients.iter().rposition(|client| client.shard == shard && client.key == Some(key))
    }

    fn flush(&mut self, shard: usize, key: ConnectionKey) -> bool {
        let Some(at) = self.at(shard, key) else { return false };
        let mut moved = false;
        loop {
            let client = &mut self.clients[at];
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.shards[shard].transmit(self.now, key, &mut slices);
            if count == 0 {
                return moved;
            }
            let (mut offered, mut written) = (0, 0);
            for slice in &slices[..count] {
                assert!(!slice.is_empty());
                offered += slice.len();
                let part = slice.len().min(client.room);
                client.room -= if client.room == usize::MAX { 0 } else { part };
                client.output.extend_from_slice(&slice[..part]);
                written += part;
            }
            assert!(offered <= crate::WRITE_BYTES_MAX);
            client.blocked = written < offered;
            let blocked = client.blocked;
            self.shards[shard].transmitted(self.now, key, written, blocked);
            self.clients[at].decode();
            moved |= written > 0;
            if blocked {
                return moved;
            }
        }
    }

    fn output(&mut self, shard: usize, output: Output) {
        match output {
            Output::Close(key) => {
                self.flush(shard, key);
                if let Some(at) = self.at(shard, key) {
                    self.close(At(at));
                }
            }
            Output::Pause(key) => {
                if let Some(at) = self.at(shard, key) {
                    self.clients[at].paused = true;
                }
            }
            Output::Resume(key) => {
                if let Some(at) = self.at(shard, key) {
                    self.clients[at].paused = false;
                }
            }
            Output::Auth(key, auth) => {
                let at = self.at(shard, key).expect("a closed connection gets no request");
                self.clients[at].asked.push(*auth);
            }
            Output::Denied(key, denied) => {
                self.at(shard, key).expect("a closed connection asks for nothing");
                self.denied.push(*denied);
            }
            Output::Subscribed(key, number, filters) => {
                self.at(shard, key).expect("a closed connection asks for nothing");
                self.held.push((shard, number, filters));
            }
            Output::Client(number, change) => self.changes.push((shard, number, change)),
        }
    }
}

impl Client {
    /// Decodes what came, checks what always holds and answers.
    fn decode(&mut self) {
        let output = std::mem::take(&mut self.output);
        let mut rest = &output[..];
        while let Some(header) = FixedHeader::decode(rest, usize::MAX).expect("a header") {
            let Some(packet) = rest.get(..header.packet_bytes()) else { break };
            rest = &rest[header.packet_bytes()..];
            assert!(self.disconnected.is_none(), "a packet after DISCONNECT (MQTT-3.14.4-1)");
            assert!(packet.len() <= self.packet_bytes_max, "too large (MQTT-3.1.2-24)");
            let body = &packet[header.header_bytes..];
            let packet = Packet::decode(self.version, header.first, body).expect("it decodes");
            let got = match packet {
                Packet::Publish(publish) => Published(self.delivered(&publish)),
                Packet::Connack(packet) => Other(Packet::Connack(packet)),
                Packet::Puback(packet) => Other(Packet::Puback(packet)),
                Packet::Pubrec(packet) => Other(Packet::Pubrec(packet)),
                Packet::Pubrel(packet) => Other(Packet::Pubrel(packet)),
                Packet::Pubcomp(packet) => Other(Packet::Pubcomp(packet)),
                Packet::Suback(packet) => Other(Packet::Suback(packet)),
                Packet::Unsuback(packet) => Other(Packet::Unsuback(packet)),
                Packet::Pingresp => Other(Packet::Pingresp),
                Packet::Disconnect(packet) => {
                    assert_eq!(
                        self.version,
                        Version::V5,
                        "servers say no DISCONNECT before MQTT 5"
                    );
                    self.disconnected = Some(packet.clone());
                    Other(Packet::Disconnect(packet))
                }
                Packet::Auth(packet) => Other(Packet::Auth(packet)),
                packet => panic!("a server does not send {packet:?}"),
            };
            if self.acknowledges {
                self.acknowledge(&got);
            }
            self.got.push(got);
        }
        self.output = rest.to_vec();
    }

    fn delivered(&mut self, publish: &Publish<'_>) -> Delivery {
        let properties = &publish.properties;
        let alias = properties.topic_alias.map(NonZeroU16::get);
        let mut topic = publish.topic.to_owned();
        if let Some(alias) = alias {
            assert!(alias <= self.alias_maximum, "MQTT-3.1.2-26");
            if topic.is_empty() {
                topic = self.aliases.get(&alias).expect("an alias that was defined").clone();
            } else {
                self.aliases.insert(alias, topic.clone());
            }
        }
        if let Some(id) = publish.packet_id {
            assert!(!self.open.contains(&id), "identifier {id} is in use (MQTT-2.2.1-4)");
            self.open.push(id);
            assert!(self.open.len() <= self.receive_maximum, "MQTT-3.3.4-9");
        }
        let mut forwarded = Vec::new();
        properties.forwarded(&mut forwarded);
        Delivery {
            topic,
            payload: publish.payload.to_vec(),
            qos: publish.qos,
            dup: publish.dup,
            retain: publish.retain,
            id: publish.packet_id,
            expiry: properties.message_expiry,
            subscriptions: properties.subscription_ids().collect(),
            forwarded,
            alias,
            topic_was_empty: publish.topic.is_empty(),
        }
    }

    fn acknowledge(&mut self, got: &Got) {
        let ack = |id| Ack::new(id, ReasonCode::SUCCESS);
        let answer = match got {
            Published(Delivery { qos: AtLeastOnce, id: Some(id), .. }) => Packet::Puback(ack(*id)),
            Published(Delivery { qos: ExactlyOnce, id: Some(id), .. }) => Packet::Pubrec(ack(*id)),
            Other(Packet::Pubrel(pubrel)) => Packet::Pubcomp(ack(pubrel.packet_id)),
            Other(Packet::Pubrec(pubrec)) if !pubrec.reason.is_failure() => {
                Packet::Pubrel(ack(pubrec.packet_id))
            }
            _ => return,
        };
        self.put(&answer);
    }

    fn put(&mut self, packet: &Packet<'_>) {
        packet.encode(self.version, &mut self.input).unwrap();
        match packet {
            Packet::Puback(ack) | Packet::Pubcomp(ack) => {
                self.open.retain(|id| *id != ack.packet_id);
            }
            Packet::Pubrec(ack) if ack.reason.is_failure() => {
                self.open.retain(|id| *id != ack.packet_id);
            }
            _ => {}
        }
    }
}

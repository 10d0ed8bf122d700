//! One shard: sessions and connections, driven by events and asked for output.

mod accept;
mod authenticate;
mod clients;
mod connect;
mod conversation;
mod deliver;
mod due;
mod durable_acks;
mod hand_on;
mod held_subacks;
mod journal_writer;
mod known_routes;
mod lacking;
mod outgoing;
mod overflow;
mod parts;
mod publish;
mod receive;
mod reclaim;
mod restore;
mod runs;
mod shares;
mod spill;
mod subscribe;
mod sys;
mod transmit;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use tidegate_journal::RetainedAs;
use tidegate_message::{Action, Identity, IdentityKind, Instant, LogLimiter, topic_matches};
use tidegate_wire::mqtt::{Auth, Disconnect, Packet, ReasonCode, Version};

pub use self::{
    authenticate::AuthAnswer,
    clients::{ClientChange, ClientState},
    connect::{ConnectRequest, Refused},
    parts::{PART_GRACE, PART_PREFIX, part_id},
    receive::CONTROL_BYTES_MAX,
    runs::Acknowledged,
    transmit::WRITE_BYTES_MAX,
};
use crate::{
    admission::{Admission, Batch},
    connection::{Connection, Ended},
    message::Message,
    message_pool::MessagePool,
    outbox::Buffers,
    reclaim_heap::ReclaimHeap,
    routes::Route,
    session::Session,
    session_state::{SessionKey, SessionState},
    shared::Shared,
    slab::{Key, Slab},
    spill::Spilling,
    statistics::{SessionReport, Statistics},
    timers::{Timer, Timers},
};

/// Names a connection of one shard; never used again.
pub type ConnectionKey = Key;

/// One shard of a node, without I/O and without a clock.
///
/// Its methods are of six kinds:
///
/// | kind | methods |
/// |---|---|
/// | before all others, in this order | [`new`](Self::new); [`set_spill`](Self::set_spill) and [`set_admission`](Self::set_admission); [`restore_all`](Self::restore_all); [`keep`](Self::keep), [`flush_journal`](Self::flush_journal), which come again where another journal takes the place of one that failed |
/// | events of a connection | [`connect`](Self::connect) makes its key; [`receive`](Self::receive), with a [`charge_partial`](Self::charge_partial) for bytes that the caller keeps, or of a service [`receive_bundle`](Self::receive_bundle), then [`end_publications`](Self::end_publications), and [`acknowledge_deliveries`](Self::acknowledge_deliveries), [`hold_up_deliveries`](Self::hold_up_deliveries), [`reuse`](Self::reuse), [`repeat_retained`](Self::repeat_retained); [`authenticated`](Self::authenticated), [`set_link`](Self::set_link) where [`wants_link`](Self::wants_link), [`writable`](Self::writable), [`rests_until`](Self::rests_until); [`closed`](Self::closed) is the last |
/// | events of the node | [`handle_peers`](Self::handle_peers), [`handle_fetched`](Self::handle_fetched), [`durable`](Self::durable), [`publish_internal`](Self::publish_internal), [`hold_subacks`](Self::hold_subacks), [`release_suback`](Self::release_suback), [`announce_clients`](Self::announce_clients), [`taken_over`](Self::taken_over); of operators `kick…`, `end…`, [`forget`](Self::forget), [`configure_parts`](Self::configure_parts), [`mark_gone_users`](Self::mark_gone_users), [`shut_down`](Self::shut_down) |
/// | time | [`handle_timeout`](Self::handle_timeout), once [`poll_timeout`](Self::poll_timeout) has passed |
/// | output | [`poll_dirty`](Self::poll_dirty), and for each key [`transmit`](Self::transmit) with [`transmitted`](Self::transmitted), or [`take_deliveries`](Self::take_deliveries); [`poll_output`](Self::poll_output); [`poll_peers`](Self::poll_peers) |
/// | questions, which change nothing | [`statistics`](Self::statistics), [`sessions`](Self::sessions), [`filters`](Self::filters), [`clients`](Self::clients), [`is_flushed`](Self::is_flushed), … |
///
/// The caller gives it events and the time in turns. After each turn it takes the output in the order of that row, until there is no more, for
/// an output may make another connection dirty; then it waits for the next event, until `poll_timeout` at the longest. `now` does not go
/// back. Every key of `connect` ends with one `closed`, after the one [`Output::Close`] that may ask for it or without; an output may still name
/// a key that has ended, and a method that is given one changes nothing. A message is with the sessions of this shard at once, and with those of
/// another one after its `handle_peers`; an answer that promises more than memory leaves after `durable`.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    shard: usize,
    sessions: Slab<Session>,
    /// Of them, what sessions have left that have ended.
    remainders: usize,
    by_client: HashMap<Arc<str>, Key>,
    reclaim_heap: ReclaimHeap,
    connections: Slab<Connection>,
    buffers: Buffers,
    message_pool: MessagePool,
    dirty: VecDeque<Key>,
    outputs: VecDeque<Output>,
    /// By shard, what goes there.
    peers: Vec<Vec<Peer>>,
    timers: Timers,
    /// When retained messages expire, the first of those that this shard knows of.
    retained_at: Option<Instant>,
    routes: known_routes::KnownRoutes,
    admission: Option<Box<dyn Admission>>,
    /// None where nothing outlives the process.
    keeper: Option<Box<journal_writer::Keeper>>,
    /// Of each shared subscription, in order, the member that the message that is being handed out goes to, if there is one that
    /// may have it and is reached.
    turns: Vec<Option<usize>>,
    /// Sessions that are full by the message that is being handed out, which is to be their last.
    marked: Vec<Arc<SessionState>>,
    /// Whether all sessions that the message that is being handed out goes to have accepted it, so that none may lose it.
    promised: bool,
    /// The generation of the rules that allowed the message which is being published, where its route was made later.
    decided_by: u64,
    spilling: Spilling,
    numbers: journal_writer::Numbers,
    batch: Batch,
    /// The answers owed for the drafts of `batch`, in order.
    pending: Vec<publish::Pending>,
    /// A packet without subscriber-specific parts, encoded once for many subscribers.
    scratch: Vec<u8>,
    /// Whether it was said that there are too many retained messages.
    told_unretained: bool,
    /// Messages that are too large to be ever held, of which no line was written yet, and when one may be.
    too_large: LogLimiter,
    /// Lines about clients that name themselves like a part of the node.
    named_as_part: LogLimiter,
    held_subacks: held_subacks::HeldSubacks,
    announced: clients::Announced,
    /// Clients that were refused the session of another owner.
    others_sessions: LogLimiter,
    statistics: Statistics,
    sys: sys::Sys,
    /// Part of assigned client identifiers, so that those of two shards and starts differ.
    seed: u64,
    assigned: u64,
}

/// Requests to the shell, apart from flushing.
#[derive(Debug)]
pub enum Output {
    /// Flush, then close the connection; the shell must tell [`Broker::closed`].
    Close(ConnectionKey),
    /// Read nothing more from it, for now.
    Pause(ConnectionKey),
    /// Read from it again, what is left of its input first.
    Resume(ConnectionKey),
    /// A step of an authentication that began after CONNECT; the shell answers with [`Broker::authenticated`].
    Auth(ConnectionKey, Box<Auth>),
    /// Rules refused what it asked for: for the log.
    Denied(ConnectionKey, Box<Denied>),
    /// A client has subscribed to these, and its SUBACK waits for [`Broker::release_suback`].
    Subscribed(ConnectionKey, u64, Vec<Arc<str>>),
    /// A change of the clients, and its number.
    Client(u64, ClientChange),
}

/// An action that rules do not allow a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The action.
    pub action: Action,
    /// On which topic or filter.
    pub target: String,
    /// The rule that decided, as the audit log names it.
    pub rule: String,
}

/// A message between shards.
#[derive(Debug)]
pub enum Peer {
    /// A message for subscribers there.
    #[doc(hidden)]
    Message(Arc<Message>, RouteHandle, Promised, Option<PeerOrigin>),
    /// A message for one member of a shared subscription there.
    #[doc(hidden)]
    Member(Arc<Message>, RouteHandle, usize, usize, Promised, Option<PeerOrigin>),
    /// The retained message of a topic that the shard owns, or none any more.
    #[doc(hidden)]
    Retained(Arc<str>, Option<Arc<Message>>, Box<RetainedAs>, PeerOrigin),
    /// The shard of that number has in its journal what came from here, up to that message.
    Seen(usize, u64),
    /// The connection of that session is not to be read from.
    Pause(SessionKey),
    /// One reason less not to read from it.
    Resume(SessionKey),
    /// So many bytes of memory are wanted back from the sessions there.
    Reclaim(u64),
    /// The journal of the shard that says so has no room: others are to let go of what is old in theirs.
    GiveWay,
}

impl Peer {
    /// The deliveries that it brings to that shard; one, if it is no message.
    pub fn deliveries(&self, shard: usize) -> usize {
        match self {
            Self::Message(_, route, ..) => route.0.on(shard).len(),
            _ => 1,
        }
    }
}

/// Whether the publisher of a message between shards gets an acknowledgement, so that a place is reserved for it.
#[derive(Clone, Copy, Debug)]
pub struct Promised(bool);

/// A route between shards, opaque to others.
#[derive(Clone, Debug)]
pub struct RouteHandle(Arc<Route>);

/// Names a message between shards that is written to a journal; opaque to others.
#[derive(Clone, Copy, Debug)]
pub struct PeerOrigin(journal_writer::Origin);

impl Broker {
    /// The shard number `shard` of the node; `seed` makes the names that it gives to clients its own.
    pub fn new(shared: Arc<Shared>, shard: usize, seed: u64, now: Instant) -> Self {
        assert!(shard < shared.shards(), "a shard of the node");
        let mut timers = Timers::default();
        if !shared.config().sys_interval.is_zero() {
            timers.set(now, Timer::Sys);
        }
        Self {
            shard,
            sessions: Slab::default(),
            remainders: 0,
            by_client: HashMap::new(),
            reclaim_heap: ReclaimHeap::default(),
            connections: Slab::default(),
            buffers: Buffers::default(),
            message_pool: MessagePool::default(),
            dirty: VecDeque::new(),
            outputs: VecDeque::new(),
            peers: (0..shared.shards()).map(|_| Vec::new()).collect(),
            timers,
            retained_at: None,
            routes: Default::default(),
            admission: None,
            keeper: None,
            turns: Vec::new(),
            marked: Vec::new(),
            promised: false,
            decided_by: u64::MAX,
            held_subacks: held_subacks::HeldSubacks::default(),
            announced: clients::Announced::default(),
            spilling: Spilling::new(shared.budget().clone()),
            numbers: journal_writer::Numbers::default(),
            batch: Batch::default(),
            pending: Vec::new(),
            scratch: Vec::new(),
            told_unretained: false,
            too_large: LogLimiter::default(),
            named_as_part: LogLimiter::of_strangers(),
            others_sessions: LogLimiter::of_strangers(),
            statistics: Statistics::default(),
            sys: sys::Sys::new(now),
            seed,
            assigned: 0,
            shared,
        }
    }

    /// Puts operators before routing; none takes them away.
    pub fn set_admission(&mut self, admission: Option<Box<dyn Admission>>) {
        self.admission = admission;
    }

    /// The state that all shards share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A connection that has something to send and may; ask until there is none.
    #[inline]
    pub fn poll_dirty(&mut self) -> Option<ConnectionKey> {
        loop {
            let key = self.dirty.pop_front()?;
            if let Some(connection) = self.connections.get_mut(key) {
                connection.is_dirty = false;
                return Some(key);
            }
        }
    }

    /// Something for the shell to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Appends the messages for another shard to `batch`; false if there is none.
    pub fn poll_peers(&mut self, shard: usize, batch: &mut Vec<Peer>) -> bool {
        batch.append(&mut self.peers[shard]);
        !batch.is_empty()
    }

    /// Handles the messages of another shard.
    pub fn handle_peers(&mut self, now: Instant, batch: impl IntoIterator<Item = Peer>) {
        for peer in batch {
            match peer {
                Peer::Message(message, RouteHandle(route), Promised(promised), origin) => {
                    self.begin_record(origin.map(|origin| origin.0));
                    self.promised = promised;
                    self.deliver_held(now, &route, message);
                }
                Peer::Member(message, RouteHandle(route), group, member, promised, origin) => {
                    self.begin_record(origin.map(|origin| origin.0));
                    self.promised = promised.0;
                    self.deliver_member(now, &route, group, member, &message);
                }
                Peer::Retained(topic, message, retained, origin) => {
                    self.begin_record(Some(origin.0));
                    self.write_retained(now, &topic, message.as_ref(), *retained);
                }
                Peer::Seen(shard, number) => self.confirmed(shard, number),
                Peer::Pause(session) => self.pause(session),
                Peer::Resume(session) => self.resume(session),
                Peer::Reclaim(bytes) => self.give_back(bytes),
                Peer::GiveWay => self.asked_for_room(now),
            }
        }
        self.tell_seen();
        if let Some(keeper) = &mut self.keeper {
            keeper.look_for_room();
        }
    }

    /// When [`Broker::handle_timeout`] is to be called, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let admission = self.admission.as_ref().and_then(|admission| admission.poll_timeout());
        // At once, if the journal is to be looked at.
        let journal = self.wants_look_at_journal().then_some(Instant::EPOCH);
        self.timers.next().into_iter().chain(admission).chain(journal).min()
    }

    /// All sessions, for tests.
    #[cfg(test)]
    pub(crate) fn session_slots(&self) -> &Slab<Session> {
        &self.sessions
    }

    /// Whether the route of a topic is remembered.
    #[cfg(test)]
    pub(crate) fn remembers(&self, topic: &str) -> bool {
        self.routes.place(topic.as_bytes(), crate::reach::Reach::All).is_some()
    }

    /// How many timers are set.
    #[cfg(test)]
    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Counts of this shard.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            connections: self.connections.len() as u64,
            connections_peak: self.shared.connections_peak(),
            sessions: (self.sessions.len() - self.remainders) as u64,
            spilled: self.spilling.counts.written,
            spill_failures: self.spilling.counts.failures,
            journal_failures: self.keeper.as_ref().map_or(0, |keeper| keeper.counts.failures),
            journal_refused: self.keeper.as_ref().map_or(0, |keeper| keeper.counts.refused),
            ..self.statistics
        }
    }

    /// Bytes of answers that wait for the client to read them. A shell that reads no more while they are many keeps a client
    /// that never reads from filling memory.
    pub fn answer_bytes(&self, key: ConnectionKey) -> usize {
        self.connections.get(key).map_or(0, |connection| connection.outbox.control_bytes())
    }

    /// Whether [`Broker::poll_dirty`] has something.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// How many it has at most.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// The shell does not read from the connection before that time, so that it is not taken for silent until then.
    pub fn rests_until(&mut self, key: ConnectionKey, at: Instant) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.last_heard = connection.last_heard.max(at);
        }
    }

    /// Ends the connections of some users on request; how many.
    pub fn kick_users(&mut self, users: &HashSet<String>) -> usize {
        let is_his = |session: &Session| {
            session.identity.kind != IdentityKind::Anonymous
                && users.contains(&*session.identity.name)
        };
        let keys: Vec<Key> = self
            .sessions
            .iter()
            .filter(|(_, session)| is_his(session))
            .filter_map(|(_, session)| session.connection)
            .collect();
        for key in &keys {
            self.disconnect(
                *key,
                ReasonCode::ADMINISTRATIVE_ACTION,
                Some("ended by an administrator"),
            );
        }
        keys.len()
    }

    /// Messages received so far.
    pub fn received(&self) -> u64 {
        self.statistics.received
    }

    /// The state of each session, those that hold most first, at most `limit`.
    pub fn sessions(&self, limit: usize) -> Vec<SessionReport> {
        let held = |session: &Session| session.queue.bytes() + session.inflight.kept_bytes();
        let of_clients = self.sessions.iter().filter(|(_, session)| !session.is_remainder());
        let mut keys: Vec<(u64, Key)> =
            of_clients.map(|(key, session)| (held(session), key)).collect();
        keys.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        keys.truncate(limit);
        let sessions = keys.into_iter().filter_map(|(_, key)| self.sessions.get(key));
        sessions.map(Self::report_of).collect()
    }

    /// The sessions of clients behind `after`, in order of their identifiers, that `which` is true of; at most `limit`.
    pub fn sessions_after(
        &self,
        after: &str,
        limit: usize,
        which: &dyn Fn(&str, &Identity) -> bool,
    ) -> Vec<SessionReport> {
        let is_meant = |session: &&Session| {
            &*session.client_id > after && which(&session.client_id, &session.identity)
        };
        let mut sessions: Vec<_> =
            self.sessions.iter().map(|(_, session)| session).filter(is_meant).collect();
        sessions.sort_unstable_by(|one, other| one.client_id.cmp(&other.client_id));
        sessions.into_iter().take(limit).map(Self::report_of).collect()
    }

    fn report_of(session: &Session) -> SessionReport {
        SessionReport {
            client_id: session.client_id.clone(),
            kind: session.identity.kind,
            user: session.identity.name.clone(),
            connected: session.connection.is_some(),
            subscriptions: session.subscriptions.len(),
            queued: session.queue.len(),
            queued_bytes: session.queue.bytes(),
            spilled: session.queue.spilled(),
            spilled_bytes: session.queue.spilled_bytes(),
            inflight: session.inflight.len(),
            inflight_bytes: session.inflight.kept_bytes(),
            dropped: session.dropped,
            grace_ends: session.ends_at.filter(|_| session.is_gone && session.has_grace()),
        }
    }

    fn mark_dirty(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key) {
            mark_dirty(key, connection, &mut self.dirty);
        }
    }

    /// Ends a connection from this side: tells why where the version can, then closes once that has left.
    fn disconnect(&mut self, key: Key, reason: ReasonCode, text: Option<&str>) {
        self.acknowledge_through(key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_closing {
            return;
        }
        connection.is_closing = true;
        let ended = Ended { is_by_client: false, reason, text: text.map(Into::into) };
        connection.ended = Some(Box::new(ended));
        connection.receiving = None;
        if connection.opens_after.take().is_some() {
            // A server says no DISCONNECT before its CONNACK (MQTT-3.14.0-1).
            connection.outbox.clear(&mut self.buffers);
        } else if connection.version == Version::V5 {
            let mut packet = Disconnect::new(reason);
            packet.reason_string =
                text.filter(|_| connection.problem_information).map(str::to_owned);
            // Nothing may follow a DISCONNECT (MQTT-3.14.4-1).
            connection.outbox.forget_unbegun(&mut self.buffers);
            let out = connection.outbox.control(&mut self.buffers);
            let start = out.len();
            let mut encode = |packet| {
                out.truncate(start);
                Packet::Disconnect(packet)
                    .encode(Version::V5, out)
                    .expect("our reasons are short texts");
                out.len() - start
            };
            if encode(packet) > connection.packet_bytes_max as usize {
                encode(Disconnect::new(reason)); // MQTT-3.14.2-3
            }
            self.statistics.packets_sent += 1;
        }
        mark_dirty(key, connection, &mut self.dirty);
        self.outputs.push_back(Output::Close(key));
    }

    /// Ends a connection for a reason of the shell's, such as that there is no memory for what comes in.
    pub fn end(&mut self, key: ConnectionKey, reason: ReasonCode, text: &str) {
        self.disconnect(key, reason, Some(text));
    }

    /// Why a connection ends, until it is [closed](Self::closed); none if neither side said so.
    pub fn why_ended(&self, key: ConnectionKey) -> Option<&Ended> {
        self.connections.get(key)?.ended.as_deref()
    }

    /// Ends the session of a client that does not come again, and its connection, if it is here; its waiting messages are
    /// dropped.
    pub fn forget(&mut self, now: Instant, client_id: &str) -> bool {
        let Some(&key) = self.by_client.get(client_id) else { return false };
        self.take_over(now, key, true, connect::OTHER_CONNECTION);
        if self.by_client.contains_key(client_id) {
            self.end_session(now, key);
        }
        true
    }

    /// The filters of a client's session; none if it has no session here.
    pub fn filters(&self, client_id: &str) -> Vec<Arc<str>> {
        let session = self.by_client.get(client_id).and_then(|key| self.sessions.get(*key));
        session.map_or_else(Vec::new, |session| session.subscriptions.keys().cloned().collect())
    }

    /// The filters of the sessions here that `which` is true of, by their client identifier and whose they are: each once, in no order.
    pub fn all_filters(&self, which: &dyn Fn(&str, &Identity) -> bool) -> Vec<Arc<str>> {
        let sessions = self.sessions.iter().map(|(_, session)| session);
        let meant = sessions.filter(|session| which(&session.client_id, &session.identity));
        let all: std::collections::HashSet<&Arc<str>> =
            meant.flat_map(|session| session.subscriptions.keys()).collect();
        all.into_iter().cloned().collect()
    }

    /// Ends the connection of the client, if it has one here, on request.
    pub fn kick(&mut self, client_id: &str) -> bool {
        let session = self.by_client.get(client_id).and_then(|key| self.sessions.get(*key));
        let Some(key) = session.and_then(|session| session.connection) else { return false };
        self.disconnect(key, ReasonCode::ADMINISTRATIVE_ACTION, Some("ended by an administrator"));
        true
    }

    /// Ends all connections because the node stops.
    pub fn shut_down(&mut self) {
        let keys: Vec<Key> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.disconnect(key, ReasonCode::SERVER_SHUTTING_DOWN, Some("the server stops"));
        }
    }

    fn pause(&mut self, session: SessionKey) {
        if let Some(session) = self.sessions.get_mut(session.key()) {
            session.blocked_by += 1;
            if let (1, Some(connection)) = (session.blocked_by, session.connection) {
                self.outputs.push_back(Output::Pause(connection));
            }
        }
    }

    fn resume(&mut self, session: SessionKey) {
        if let Some(session) = self.sessions.get_mut(session.key()) {
            session.blocked_by = session.blocked_by.saturating_sub(1);
            if let (0, Some(connection)) = (session.blocked_by, session.connection) {
                self.outputs.push_back(Output::Resume(connection));
            }
        }
    }

    /// Lets publishers go that waited for `subscriber`.
    fn release(&mut self, publishers: Vec<SessionKey>, subscriber: SessionKey) {
        for publisher in publishers {
            self.shared.blocked_publishers().remove(publisher, subscriber);
            self.tell_publisher(publisher, false);
        }
    }

    /// Sends a pause or its end to the shard of `session`.
    fn tell_publisher(&mut self, session: SessionKey, pause: bool) {
        if session.shard() == self.shard {
            if pause { self.pause(session) } else { self.resume(session) }
        } else {
            let peer = if pause { Peer::Pause(session) } else { Peer::Resume(session) };
            self.peers[session.shard()].push(peer);
        }
    }

    fn session_key(&self, key: Key) -> SessionKey {
        SessionKey::new(self.shard as u8, key)
    }

    /// Whether a subscription of `session` to the query topic would be QoS 1 or more.
    fn answers_queries(&self, session: &Session) -> bool {
        let topic = &self.shared.config().query_topic;
        session.subscriptions.iter().any(|(filter, subscription)| {
            subscription.qos > tidegate_wire::mqtt::QoS::AtMostOnce
                && crate::routes::shared(filter).is_none()
                && topic_matches(filter, topic)
        })
    }
}

/// Puts a connection among those to be flushed, unless it is there or blocked.
fn mark_dirty(key: Key, connection: &mut Connection, dirty: &mut VecDeque<Key>) {
    if !connection.is_dirty && !connection.is_blocked {
        connection.is_dirty = true;
        dirty.push_back(key);
    }
}

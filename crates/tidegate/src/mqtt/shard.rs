//! One thread that serves connections: it reads all there is, hands it to the broker, then writes to each connection that has
//! something to send, once a turn.
//!
//! ```text
//!  accept ─▶ opening (TLS, WebSocket, CONNECT) ─▶ doors ─▶ the shard of the client's name ─▶ open ─▶ closing
//! ```
//!
//! Always true: no connection holds up another for longer than one read of [`READ_BYTES`] and one write of
//! `WRITE_BYTES_MAX`; a connection that ends takes nothing with it but its session's promises.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, IoSlice},
    net::IpAddr,
    os::fd::{AsFd, AsRawFd as _},
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};
use tidegate_broker::{
    AuthAnswer, Broker, CONTROL_BYTES_MAX, ConnectRequest, ConnectionKey, Output, Peer, Refused,
    SLICES_MAX, SessionConfig, Shared, WRITE_BYTES_MAX, schedule::LinkState,
};
use tidegate_message::{Identity, IdentityKind, Instant, Proof, Refusal};
use tidegate_wire::mqtt::{Auth, Connect, DecodeError, FixedHeader, Packet, ReasonCode, Version};

use super::{
    inbox::Inbox,
    settings::{Authenticate, ListenerSettings, Scram, SessionSettings},
    transport::{ReadOutcome, Transport},
};
use crate::clock;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Reads of one connection in one turn, before others have theirs.
const READS_MAX: usize = 4;
/// Bytes of answers that wait for a client before it is read from no more.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Writes to one connection in one turn.
const WRITES_MAX: usize = 16;
/// What is left of a packet in the read buffer may stay there for the next read, up to this.
const LEFT_BYTES: usize = 4 << 10;
/// How long a connection that is closed from here may take to read what it was told.
const LINGER: Duration = Duration::from_secs(2);
/// What the kernel may hold unsent before it stops asking for more.
const UNSENT_BYTES: u32 = WRITE_BYTES_MAX as u32;

const WAKER: Token = Token(0);
/// Tokens from here on are listeners, as many as there are, then connections.
const FIRST: usize = 1;

/// A listener and how many it serves.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) settings: ListenerSettings,
    pub(super) sessions: RwLock<SessionSettings>,
    pub(super) connections: AtomicUsize,
}

impl Listener {
    pub(super) fn new(settings: ListenerSettings) -> Self {
        let sessions = RwLock::new(settings.sessions.clone());
        Self { settings, sessions, connections: AtomicUsize::new(0) }
    }

    /// Largest packet of a client whose user has no limit of its own.
    fn packet_bytes_max(&self) -> usize {
        let sessions = self.sessions.read().expect("no panic while they are exchanged");
        sessions.usual.packet_bytes_max as usize
    }

    fn session_of(&self, identity: &Identity, connect: &Connect) -> Arc<SessionConfig> {
        let sessions = self.sessions.read().expect("no panic while they are exchanged");
        sessions.session_of(identity, connect)
    }
}

/// What other threads tell a shard.
#[derive(Debug)]
pub(super) enum Note {
    /// A connection that was accepted.
    Accepted(TcpStream, Arc<Listener>),
    /// A client whose session lives here.
    Welcome(Box<Connection>, Box<ConnectRequest>),
    /// What the doors said of a connection that is opening here.
    Answered(ConnectionId, Result<Identity, Refusal>),
    /// What another shard has for sessions here.
    Peers(Vec<Peer>),
    /// Ends the connections of a user.
    KickUser(Arc<str>),
    /// Ends all connections, then the shard.
    Stop,
}

/// A question for the doors, answered on their thread.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) proof: Proof,
    pub(super) shard: usize,
    pub(super) connection: ConnectionId,
    /// Nobody waits for the answer after that.
    pub(super) until: Instant,
}

/// A slot and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId {
    slot: usize,
    use_count: u64,
}

/// A connection as the shell sees it.
#[derive(Debug)]
pub(super) struct Connection {
    transport: Transport,
    listener: Arc<Listener>,
    peer: Option<IpAddr>,
    stage: Stage,
    /// Bytes that are no whole packet yet.
    left: Vec<u8>,
    /// Whether the socket may have more to read.
    is_readable: bool,
    /// In the list of connections to be read.
    is_queued: bool,
    /// Not to be read from, for the sake of a subscriber.
    is_paused: bool,
    /// Closed once what the broker had to say has left.
    is_ending: bool,
    /// With a publish rate, when all that it sent so far would have been sent at that rate.
    earned_at: Instant,
    /// Not to be read from before, with a publish rate.
    rests_until: Option<Instant>,
}

#[derive(Debug)]
enum Stage {
    /// CONNECT has not come whole.
    Opening,
    /// An authentication exchange is under way.
    Exchanging(Box<Connect>, Option<Scram>),
    /// The doors are being asked.
    Waiting(Box<Connect>),
    Open(ConnectionKey),
    /// What it was told is on its way; what it sends is read and forgotten.
    Closing,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.listener.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a shard is made of.
pub(super) struct ShardParts {
    pub(super) shard: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) poll: Poll,
    pub(super) inboxes: Arc<[Arc<Inbox<Note>>]>,
    /// On the first shard alone.
    pub(super) listeners: Vec<(TcpListener, Arc<Listener>)>,
    pub(super) doors: Arc<dyn Authenticate>,
    pub(super) questions: mpsc::SyncSender<Question>,
    pub(super) seed: u64,
}

/// The state of the thread.
pub(super) struct Shard {
    broker: Broker,
    parts: ShardParts,
    slots: Vec<Option<Box<Connection>>>,
    uses: Vec<u64>,
    free: Vec<usize>,
    /// By the slot of the broker's key, the slot here.
    by_key: Vec<usize>,
    /// Connections to be read though the kernel says nothing new of them.
    queued: VecDeque<usize>,
    /// When connections that are opening or closing are given up, soonest first for each cause.
    openings: VecDeque<(Instant, ConnectionId)>,
    closings: VecDeque<(Instant, ConnectionId)>,
    /// Connections that published faster than they may, by when they are read again.
    resting: BTreeMap<(Instant, usize), ConnectionId>,
    buffer: Vec<u8>,
    notes: Vec<Note>,
    peers: Vec<Peer>,
    /// Where the next accepted connection goes.
    turn: usize,
    stops: Option<Instant>,
    /// Tokens are kept apart from those of listeners, even after these are gone.
    listeners_max: usize,
    /// Listening goes on then, after descriptors ran out.
    accepts_at: Option<Instant>,
}

impl Shard {
    pub(super) fn new(parts: ShardParts) -> io::Result<Self> {
        let broker = Broker::new(parts.shared.clone(), parts.shard, parts.seed, clock::now());
        let mut shard = Self {
            broker,
            slots: Vec::new(),
            uses: Vec::new(),
            free: Vec::new(),
            by_key: Vec::new(),
            queued: VecDeque::new(),
            openings: VecDeque::new(),
            closings: VecDeque::new(),
            resting: BTreeMap::new(),
            buffer: vec![0; LEFT_BYTES + READ_BYTES],
            notes: Vec::new(),
            peers: Vec::new(),
            turn: 0,
            stops: None,
            listeners_max: parts.listeners.len(),
            accepts_at: None,
            parts,
        };
        let registry = shard.parts.poll.registry();
        for (at, (socket, _)) in shard.parts.listeners.iter_mut().enumerate() {
            registry.register(socket, Token(FIRST + at), Interest::READABLE)?;
        }
        Ok(shard)
    }

    /// Serves until it is told to stop.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            let timeout = self.timeout();
            match self.parts.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let now = clock::now();
            for event in &events {
                self.handle_event(now, event);
            }
            self.read_queued(now);
            self.give_up(now);
            self.broker.handle_timeout(now);
            self.flush_all(now);
            if self.stops.is_some_and(|at| at <= now || self.is_idle()) {
                return Ok(());
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.queued.is_empty() || self.broker.has_dirty() {
            return Some(Duration::ZERO);
        }
        let first = |times: &VecDeque<(Instant, ConnectionId)>| times.front().map(|(at, _)| *at);
        let next = [
            self.broker.poll_timeout(),
            first(&self.openings),
            first(&self.closings),
            self.resting.keys().next().map(|(at, _)| *at),
            self.accepts_at,
            self.stops,
        ]
        .into_iter()
        .flatten()
        .min()?;
        // The poll counts in milliseconds and may be early by one.
        Some(next.since(clock::now()) + Duration::from_micros(500))
    }

    fn handle_event(&mut self, now: Instant, event: &mio::event::Event) {
        if event.token() == WAKER {
            let mut notes = std::mem::take(&mut self.notes);
            self.parts.inboxes[self.parts.shard].take(&mut notes);
            for note in notes.drain(..) {
                self.handle_note(now, note);
            }
            self.notes = notes;
            return;
        }
        let at = event.token().0 - FIRST;
        if at < self.listeners_max {
            self.accept(now, at);
            return;
        }
        let slot = at - self.listeners_max;
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            connection.is_readable = true;
            self.read(now, slot);
        }
        if event.is_writable() {
            self.write_again(now, slot);
        }
    }

    fn handle_note(&mut self, now: Instant, note: Note) {
        match note {
            Note::Accepted(socket, listener) => self.open(now, socket, listener),
            Note::Welcome(connection, request) => {
                let Some(slot) = self.place(connection) else { return };
                self.welcome(now, slot, *request);
            }
            Note::Answered(id, answer) => {
                let Some(connection) = self.connection(id) else { return };
                let Stage::Waiting(_) = connection.stage else { return };
                let stage = std::mem::replace(&mut connection.stage, Stage::Opening);
                let Stage::Waiting(connect) = stage else { unreachable!("looked at above") };
                self.answered(now, id.slot, connect, answer, None);
            }
            Note::Peers(batch) => self.broker.handle_peers(now, batch),
            Note::KickUser(user) => {
                self.broker.kick_user(&user);
            }
            Note::Stop => {
                self.stops = Some(now + LINGER);
                let registry = self.parts.poll.registry();
                for (mut socket, listener) in self.parts.listeners.drain(..) {
                    if let Err(error) = registry.deregister(&mut socket) {
                        tracing::debug!(%error, listener = %listener.settings.name, "listener not taken out");
                    }
                }
                self.broker.shut_down();
            }
        }
    }

    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        if self.uses.get(id.slot) != Some(&id.use_count) {
            return None;
        }
        self.slots[id.slot].as_deref_mut()
    }

    fn id(&self, slot: usize) -> ConnectionId {
        ConnectionId { slot, use_count: self.uses[slot] }
    }

    fn token(&self, slot: usize) -> Token {
        Token(FIRST + self.listeners_max + slot)
    }

    // ---- beginnings

    fn accept(&mut self, now: Instant, at: usize) {
        let shards = self.parts.inboxes.len();
        loop {
            let Some((socket, listener)) = self.parts.listeners.get(at) else { return };
            let accepted = socket.accept();
            let listener = listener.clone();
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    // Out of descriptors or memory: those that wait are taken when there are some again.
                    tracing::warn!(%error, listener = %listener.settings.name, "connections cannot be accepted now");
                    self.accepts_at = Some(now + Duration::from_millis(100));
                    return;
                }
            };
            let count = listener.connections.fetch_add(1, Ordering::Relaxed);
            if count >= listener.settings.connections_max {
                listener.connections.fetch_sub(1, Ordering::Relaxed);
                tracing::debug!(listener = %listener.settings.name, count, "connection refused: as many as allowed are there");
                continue;
            }
            let shard = self.turn % shards;
            self.turn = self.turn.wrapping_add(1);
            if shard == self.parts.shard {
                self.open(now, socket, listener);
            } else {
                self.parts.inboxes[shard].put([Note::Accepted(socket, listener)]);
            }
        }
    }

    /// Takes up an accepted connection, which counts at its listener.
    fn open(&mut self, now: Instant, socket: TcpStream, listener: Arc<Listener>) {
        let settings = &listener.settings;
        let options = socket2::SockRef::from(&socket);
        let set = options
            .set_tcp_nodelay(true)
            .and_then(|()| options.set_tcp_notsent_lowat(UNSENT_BYTES))
            .and_then(|()| match &settings.tcp_congestion {
                Some(name) => options.set_tcp_congestion(name.as_bytes()),
                None => Ok(()),
            });
        if let Err(error) = set {
            tracing::warn!(%error, listener = %settings.name, "socket options cannot be set");
        }
        let peer = socket.peer_addr().ok().map(|address| address.ip());
        let transport =
            Transport::new(socket, settings.tls.clone(), settings.protocol.is_websocket());
        let transport = match transport {
            Ok(transport) => transport,
            Err(error) => {
                listener.connections.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!(%error, listener = %listener.settings.name, "TLS cannot be begun");
                return;
            }
        };
        let timeout = settings.connect_timeout;
        let connection = Connection {
            transport,
            listener,
            peer,
            stage: Stage::Opening,
            left: Vec::new(),
            is_readable: false,
            is_queued: false,
            is_paused: false,
            is_ending: false,
            earned_at: now,
            rests_until: None,
        };
        let Some(slot) = self.place(Box::new(connection)) else { return };
        let id = self.id(slot);
        let at = self.openings.partition_point(|(at, _)| *at <= now + timeout);
        self.openings.insert(at, (now + timeout, id));
    }

    /// Gives a connection a slot and listens to its socket.
    fn place(&mut self, mut connection: Box<Connection>) -> Option<usize> {
        connection.is_queued = false;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.uses.push(0);
            self.slots.len() - 1
        });
        let token = self.token(slot);
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) =
            self.parts.poll.registry().register(connection.transport.socket(), token, both)
        {
            tracing::warn!(%error, "a connection cannot be listened to");
            self.free.push(slot);
            return None;
        }
        self.uses[slot] += 1;
        self.slots[slot] = Some(connection);
        Some(slot)
    }

    /// Takes a connection out of its slot, for another shard or for good.
    fn displace(&mut self, slot: usize) -> Option<Box<Connection>> {
        let mut connection = self.slots[slot].take()?;
        if let Err(error) = self.parts.poll.registry().deregister(connection.transport.socket()) {
            tracing::debug!(%error, "a socket was not listened to");
        }
        self.uses[slot] += 1;
        self.free.push(slot);
        Some(connection)
    }

    /// What came before a connection is open; false if more is needed or the connection went.
    fn opening(&mut self, now: Instant, slot: usize) -> bool {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return false };
        if !matches!(connection.stage, Stage::Opening | Stage::Exchanging(..)) {
            return false;
        }
        // Whose it is, nobody knows yet: the usual limit holds.
        let max = connection.listener.packet_bytes_max().min(CONTROL_BYTES_MAX);
        let header = match FixedHeader::decode(&connection.left, max) {
            Ok(Some(header)) if connection.left.len() >= header.packet_bytes() => header,
            Ok(_) => return false,
            Err(error) => {
                self.reject(now, slot, &error);
                return false;
            }
        };
        let body = &connection.left[header.header_bytes..header.packet_bytes()];
        match std::mem::replace(&mut connection.stage, Stage::Opening) {
            Stage::Opening => {
                // MQTT-3.1.0-1
                if header.packet_type() != 1 {
                    tracing::debug!(peer = ?connection.peer, "the first packet is no CONNECT");
                    self.drop_connection(now, slot);
                    return false;
                }
                let connect = match Packet::decode(Version::V5, header.first, body) {
                    Ok(Packet::Connect(connect)) => connect,
                    Ok(_) => unreachable!("the type was looked at"),
                    Err(error) => {
                        self.reject(now, slot, &error);
                        return false;
                    }
                };
                connection.left.drain(..header.packet_bytes());
                self.introduced(now, slot, connect);
            }
            Stage::Exchanging(connect, scram) => {
                let auth = match Packet::decode(Version::V5, header.first, body) {
                    Ok(Packet::Auth(auth)) => auth,
                    // MQTT-4.12.0-4
                    Ok(_) => {
                        self.refuse(now, slot, &connect, ReasonCode::PROTOCOL_ERROR);
                        return false;
                    }
                    Err(error) => {
                        self.reject(now, slot, &error);
                        return false;
                    }
                };
                connection.left.drain(..header.packet_bytes());
                self.exchanged(now, slot, connect, scram, &auth);
            }
            other => {
                connection.stage = other;
                return false;
            }
        }
        true
    }

    /// A CONNECT that cannot be read. Who speaks another version is told so (MQTT-3.1.2-2).
    fn reject(&mut self, now: Instant, slot: usize, error: &DecodeError) {
        tracing::debug!(slot, %error, "CONNECT refused");
        let reason = error.reason();
        if reason == ReasonCode::UNSUPPORTED_PROTOCOL_VERSION {
            let connack = Refused::new(Version::V4, reason, "").connack;
            self.say_and_close(now, slot, &connack);
        } else {
            self.drop_connection(now, slot);
        }
    }

    fn refuse(&mut self, now: Instant, slot: usize, connect: &Connect, reason: ReasonCode) {
        tracing::debug!(client = %connect.client_id, %reason, "CONNECT refused");
        let connack = Refused::new(connect.version, reason, "").connack;
        self.say_and_close(now, slot, &connack);
    }

    /// CONNECT came: who is it?
    fn introduced(&mut self, now: Instant, slot: usize, mut connect: Box<Connect>) {
        let id = self.id(slot);
        let connection = self.slots[slot].as_deref_mut().expect("it just spoke");
        if let Some(method) = &connect.properties.authentication_method {
            if method != SCRAM {
                self.refuse(now, slot, &connect, ReasonCode::BAD_AUTHENTICATION_METHOD);
                return;
            }
            let first = connect.properties.authentication_data.take().unwrap_or_default();
            let proof = Proof {
                client: connect.client_id.clone(),
                address: connection.peer,
                ..Proof::default()
            };
            match self.parts.doors.clone().scram(proof, &first) {
                Ok(scram) => {
                    let challenge = Packet::Auth(challenge(&scram.challenge));
                    connection.stage = Stage::Exchanging(connect, Some(scram));
                    let mut out = Vec::new();
                    challenge.encode(Version::V5, &mut out).expect("a challenge is short");
                    self.say(now, slot, &out);
                }
                Err(refusal) => self.refuse(now, slot, &connect, reason_of(refusal)),
            }
            return;
        }
        if let Some(identity) = &connection.listener.settings.identity {
            let identity =
                Identity { client: connect.client_id.as_str().into(), ..identity.clone() };
            return self.answered(now, slot, connect, Ok(identity), None);
        }
        let proof = Proof {
            username: connect.username.clone(),
            password: connect.password.take(),
            certificate: connection.transport.certificate(),
            client: connect.client_id.clone(),
            address: connection.peer,
        };
        let proves_nothing = proof.username.is_none() && proof.certificate.is_none();
        if proves_nothing && !connection.listener.settings.anonymous {
            let refusal = Err(Refusal::ProofRequired);
            return self.answered(now, slot, connect, refusal, None);
        }
        if !self.parts.doors.is_slow(&proof) {
            let answer = self.parts.doors.authenticate(&proof);
            return self.answered(now, slot, connect, answer, None);
        }
        let until = now + connection.listener.settings.connect_timeout;
        let question = Question { proof, shard: self.parts.shard, connection: id, until };
        match self.parts.questions.try_send(question) {
            Ok(()) => connection.stage = Stage::Waiting(connect),
            // More ask than can be answered.
            Err(_) => self.refuse(now, slot, &connect, ReasonCode::SERVER_BUSY),
        }
    }

    fn exchanged(
        &mut self,
        now: Instant,
        slot: usize,
        connect: Box<Connect>,
        scram: Option<Scram>,
        auth: &Auth,
    ) {
        let is_next = auth.reason == ReasonCode::CONTINUE_AUTHENTICATION
            && auth.method.as_deref() == Some(SCRAM);
        let Some(scram) = scram.filter(|_| is_next) else {
            return self.refuse(now, slot, &connect, ReasonCode::PROTOCOL_ERROR);
        };
        match (scram.finish)(auth.data.as_deref().unwrap_or_default()) {
            Ok((identity, data)) => self.answered(now, slot, connect, Ok(identity), Some(data)),
            Err(refusal) => self.answered(now, slot, connect, Err(refusal), None),
        }
    }

    /// The doors have said who it is.
    fn answered(
        &mut self,
        now: Instant,
        slot: usize,
        connect: Box<Connect>,
        answer: Result<Identity, Refusal>,
        data: Option<Vec<u8>>,
    ) {
        let identity = match answer {
            Ok(identity) => identity,
            Err(refusal) => {
                tracing::info!(client = %connect.client_id, %refusal, "connection refused");
                return self.refuse(now, slot, &connect, reason_of(refusal));
            }
        };
        let Some(connection) = self.slots[slot].as_deref() else { return };
        // A name that nobody could prove makes nobody somebody.
        if identity.kind == IdentityKind::Anonymous && !connection.listener.settings.anonymous {
            tracing::info!(client = %connect.client_id, "connection refused: nothing was proved");
            return self.refuse(now, slot, &connect, reason_of(Refusal::ProofRequired));
        }
        let home = if connect.client_id.is_empty() {
            self.parts.shard
        } else {
            self.parts.shared.shard_of(&connect.client_id)
        };
        let config = connection.listener.session_of(&identity, &connect);
        let request =
            ConnectRequest { connect: *connect, identity, config, authentication_data: data };
        if home == self.parts.shard {
            self.welcome(now, slot, request);
        } else if let Some(connection) = self.displace(slot) {
            self.parts.inboxes[home].put([Note::Welcome(connection, Box::new(request))]);
        }
    }

    /// The client's session is here.
    fn welcome(&mut self, now: Instant, slot: usize, request: ConnectRequest) {
        if self.stops.is_some() {
            let reason = ReasonCode::SERVER_SHUTTING_DOWN;
            let refused = Refused::new(request.connect.version, reason, "");
            return self.say_and_close(now, slot, &refused.connack);
        }
        match self.broker.connect(now, request) {
            Err(refused) => self.say_and_close(now, slot, &refused.connack),
            Ok(key) => {
                let at = key.slot as usize;
                if self.by_key.len() <= at {
                    self.by_key.resize(at + 1, usize::MAX);
                }
                self.by_key[at] = slot;
                let connection = self.slots[slot].as_deref_mut().expect("it was just answered");
                connection.stage = Stage::Open(key);
                connection.is_readable = true;
                // What came behind CONNECT.
                self.received_left(now, slot, key);
                self.queue(slot);
            }
        }
    }

    // ---- reading

    fn queue(&mut self, slot: usize) {
        if let Some(connection) = self.slots[slot].as_deref_mut()
            && !connection.is_queued
        {
            connection.is_queued = true;
            self.queued.push_back(slot);
        }
    }

    fn read_queued(&mut self, now: Instant) {
        for _ in 0..self.queued.len() {
            let Some(slot) = self.queued.pop_front() else { return };
            if let Some(connection) = self.slots[slot].as_deref_mut() {
                connection.is_queued = false;
                self.read(now, slot);
            }
        }
    }

    fn read(&mut self, now: Instant, slot: usize) {
        for _ in 0..READS_MAX {
            let Some(connection) = self.slots[slot].as_deref_mut() else { return };
            if !connection.is_readable || connection.is_paused || connection.rests_until.is_some() {
                return;
            }
            // Who does not read what it is answered is not read from; writable, the socket brings it back here. What comes
            // behind CONNECT waits until the doors have answered.
            let waits = match &connection.stage {
                Stage::Open(key) => self.broker.answer_bytes(*key) > ANSWER_BYTES_MAX,
                Stage::Waiting(_) => true,
                Stage::Opening | Stage::Exchanging(..) | Stage::Closing => false,
            };
            if waits || (!connection.transport.is_plain() && !connection.transport.is_clear()) {
                return;
            }
            // What is left of a packet goes before what is read, so that the packet is whole in one place.
            let left = connection.left.len();
            let start = if left <= LEFT_BYTES { LEFT_BYTES - left } else { LEFT_BYTES };
            if left <= LEFT_BYTES {
                self.buffer[start..LEFT_BYTES].copy_from_slice(&connection.left);
            }
            let count = match connection.transport.read(&mut self.buffer[LEFT_BYTES..]) {
                Ok(ReadOutcome::Bytes(count)) => count,
                Ok(ReadOutcome::WouldBlock) => {
                    connection.is_readable = false;
                    return;
                }
                Ok(ReadOutcome::End) => return self.ended(now, slot),
                Err(error) => {
                    tracing::debug!(%error, peer = ?connection.peer, "connection broke");
                    return self.ended(now, slot);
                }
            };
            let received = self.broker.received();
            match &connection.stage {
                Stage::Open(key) => {
                    let key = *key;
                    if left <= LEFT_BYTES {
                        connection.left.clear();
                        let input = &self.buffer[start..LEFT_BYTES + count];
                        let taken = self.broker.receive(now, key, input);
                        let rest = &input[taken..];
                        if !rest.is_empty() {
                            connection.left.extend_from_slice(rest);
                        } else if connection.left.capacity() > LEFT_BYTES {
                            connection.left = Vec::new();
                        }
                    } else {
                        let read = &self.buffer[LEFT_BYTES..LEFT_BYTES + count];
                        connection.left.extend_from_slice(read);
                        self.received_left(now, slot, key);
                    }
                    self.rest(now, slot, self.broker.received() - received);
                }
                Stage::Closing => {}
                Stage::Opening | Stage::Exchanging(..) | Stage::Waiting(_) => {
                    let read = &self.buffer[LEFT_BYTES..LEFT_BYTES + count];
                    if connection.left.len() + count > CONTROL_BYTES_MAX {
                        tracing::debug!(peer = ?connection.peer, "too much came before CONNACK");
                        return self.drop_connection(now, slot);
                    }
                    connection.left.extend_from_slice(read);
                    while self.opening(now, slot) {}
                }
            }
        }
        // The others first.
        self.queue(slot);
    }

    /// Lets a publisher that sends faster than its listener allows wait for what it sent too early.
    fn rest(&mut self, now: Instant, slot: usize, messages: u64) {
        let id = self.id(slot);
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        let Some(rate) = connection.listener.settings.publish_rate_max else { return };
        let second = Duration::from_secs(1);
        let earned = connection.earned_at.max(now - second);
        let nanos = messages.saturating_mul(1_000_000_000) / u64::from(rate.get());
        connection.earned_at = earned + Duration::from_nanos(nanos);
        if connection.earned_at > now {
            connection.rests_until = Some(connection.earned_at);
            if let Stage::Open(key) = connection.stage {
                self.broker.rests_until(key, connection.earned_at);
            }
            self.resting.insert((connection.earned_at, slot), id);
        }
    }

    fn received_left(&mut self, now: Instant, slot: usize, key: ConnectionKey) {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        if connection.left.is_empty() {
            return;
        }
        let taken = self.broker.receive(now, key, &connection.left);
        connection.left.drain(..taken);
        if connection.left.is_empty() {
            connection.left = Vec::new();
        }
    }

    /// The peer is gone, or sends no more.
    fn ended(&mut self, now: Instant, slot: usize) {
        self.drop_connection(now, slot);
    }

    // ---- writing

    fn flush_all(&mut self, now: Instant) {
        // Once each: who takes all that it is given has its next turn after the others' reads.
        for _ in 0..self.broker.dirty_count() {
            let Some(key) = self.broker.poll_dirty() else { break };
            if let Some(&slot) = self.by_key.get(key.slot as usize) {
                self.flush(now, slot, key);
                self.end_if_flushed(now, slot, key);
            }
        }
        while let Some(output) = self.broker.poll_output() {
            self.handle_output(now, output);
        }
        for shard in 0..self.parts.inboxes.len() {
            if self.broker.poll_peers(shard, &mut self.peers) {
                let batch = std::mem::take(&mut self.peers);
                self.parts.inboxes[shard].put([Note::Peers(batch)]);
            }
        }
    }

    /// Writes what a connection has to send, as much as it takes.
    fn flush(&mut self, now: Instant, slot: usize, key: ConnectionKey) {
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_deref_mut) else {
            return;
        };
        if !matches!(connection.stage, Stage::Open(open) if open == key) {
            return;
        }
        for _ in 0..WRITES_MAX {
            if !connection.transport.is_clear() {
                match connection.transport.flush() {
                    Ok(true) => {}
                    Ok(false) => return self.broker.transmitted(now, key, 0, true),
                    Err(error) => return self.broke(now, slot, &error),
                }
            }
            if self.broker.wants_link(key) {
                self.broker.set_link(key, link_state(connection.transport.socket()));
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.broker.transmit(now, key, &mut slices);
            if count == 0 {
                return;
            }
            match connection.transport.write(&slices[..count]) {
                Ok((written, more)) => {
                    self.broker.transmitted(now, key, written, !more);
                    if !more {
                        return;
                    }
                }
                Err(error) => return self.broke(now, slot, &error),
            }
        }
        // The others first.
        self.broker.writable(key);
    }

    fn broke(&mut self, now: Instant, slot: usize, error: &io::Error) {
        tracing::debug!(%error, slot, "connection broke");
        self.drop_connection(now, slot);
    }

    fn write_again(&mut self, now: Instant, slot: usize) {
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_deref_mut) else {
            return;
        };
        match connection.transport.flush() {
            Ok(false) => {}
            Ok(true) => {
                match connection.stage {
                    Stage::Open(key) => self.broker.writable(key),
                    Stage::Closing => connection.transport.end(),
                    _ => {}
                }
                // It may not have been read from, for want of room for answers.
                if connection.is_readable {
                    self.queue(slot);
                }
            }
            Err(error) => self.broke(now, slot, &error),
        }
    }

    /// Sends bytes before the connection is open.
    fn say(&mut self, now: Instant, slot: usize, bytes: &[u8]) {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        // A few bytes into an empty buffer of the kernel; who does not take them is not worth waiting for.
        if let Err(error) = connection.transport.write(&[IoSlice::new(bytes)]) {
            self.broke(now, slot, &error);
        }
    }

    // ---- ends

    fn say_and_close(&mut self, now: Instant, slot: usize, bytes: &[u8]) {
        self.say(now, slot, bytes);
        self.begin_closing(now, slot);
    }

    fn handle_output(&mut self, now: Instant, output: Output) {
        let slot_of = |by_key: &[usize], key: ConnectionKey| by_key.get(key.slot as usize).copied();
        match output {
            Output::Close(key) => {
                let Some(slot) = slot_of(&self.by_key, key) else { return };
                if self.is_open(slot, key) {
                    let id = self.id(slot);
                    self.closings.push_back((now + LINGER, id));
                    if let Some(connection) = self.slots[slot].as_deref_mut() {
                        connection.is_ending = true;
                    }
                    self.flush(now, slot, key);
                    self.end_if_flushed(now, slot, key);
                }
            }
            Output::Pause(key) => {
                if let Some(slot) = slot_of(&self.by_key, key)
                    && self.is_open(slot, key)
                    && let Some(connection) = self.slots[slot].as_deref_mut()
                {
                    connection.is_paused = true;
                }
            }
            Output::Resume(key) => {
                if let Some(slot) = slot_of(&self.by_key, key)
                    && self.is_open(slot, key)
                    && let Some(connection) = self.slots[slot].as_deref_mut()
                {
                    connection.is_paused = false;
                    self.queue(slot);
                }
            }
            Output::Auth(key, _) => {
                // Another exchange on an open connection is refused; the client may connect anew.
                self.broker.authenticated(key, AuthAnswer::Refuse(ReasonCode::NOT_AUTHORIZED));
            }
        }
    }

    /// A connection that the broker has ended lasts until what it was told has left, or for [`LINGER`].
    fn end_if_flushed(&mut self, now: Instant, slot: usize, key: ConnectionKey) {
        if !self.is_open(slot, key) || !self.broker.is_flushed(key) {
            return;
        }
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        if connection.is_ending && connection.transport.is_clear() {
            self.broker.closed(now, key);
            self.begin_closing(now, slot);
        }
    }

    fn is_open(&self, slot: usize, key: ConnectionKey) -> bool {
        let connection = self.slots.get(slot).and_then(Option::as_deref);
        connection.is_some_and(|c| matches!(c.stage, Stage::Open(open) if open == key))
    }

    /// Lets the peer read what it was told, then closes.
    fn begin_closing(&mut self, now: Instant, slot: usize) {
        let id = self.id(slot);
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        connection.stage = Stage::Closing;
        connection.is_paused = false;
        connection.rests_until = None;
        connection.left = Vec::new();
        connection.transport.end();
        self.closings.push_back((now + LINGER, id));
        self.queue(slot);
    }

    /// Ends a connection at once.
    fn drop_connection(&mut self, now: Instant, slot: usize) {
        if let Some(connection) = self.displace(slot)
            && let Stage::Open(key) = connection.stage
        {
            self.broker.closed(now, key);
        }
    }

    /// Ends connections that took too long to open or to close.
    fn give_up(&mut self, now: Instant) {
        while let Some((_, id)) = self.openings.pop_front_if(|(at, _)| *at <= now) {
            let Some(connection) = self.connection(id) else { continue };
            if !matches!(connection.stage, Stage::Open(_) | Stage::Closing) {
                tracing::debug!(peer = ?connection.peer, "no CONNECT came in time");
                self.drop_connection(now, id.slot);
            }
        }
        while let Some((_, id)) = self.closings.pop_front_if(|(at, _)| *at <= now) {
            if self.connection(id).is_some() {
                self.drop_connection(now, id.slot);
            }
        }
        while let Some(entry) = self.resting.first_entry()
            && entry.key().0 <= now
        {
            let id = entry.remove();
            if let Some(connection) = self.connection(id) {
                connection.rests_until = None;
                self.queue(id.slot);
            }
        }
        if self.accepts_at.is_some_and(|at| at <= now) {
            self.accepts_at = None;
            for at in 0..self.parts.listeners.len() {
                self.accept(now, at);
            }
        }
    }
}

/// The one method of extended authentication.
const SCRAM: &str = "SCRAM-SHA-256";

fn challenge(data: &[u8]) -> Auth {
    Auth {
        reason: ReasonCode::CONTINUE_AUTHENTICATION,
        method: Some(SCRAM.to_owned()),
        data: Some(data.to_owned()),
        ..Auth::default()
    }
}

fn reason_of(refusal: Refusal) -> ReasonCode {
    match refusal {
        Refusal::BadCredentials => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        Refusal::ProofRequired => ReasonCode::NOT_AUTHORIZED,
        Refusal::TooMany => ReasonCode::CONNECTION_RATE_EXCEEDED,
    }
}

/// What the kernel knows of a connection.
fn link_state(socket: &TcpStream) -> LinkState {
    match tidegate_sys::net::tcp_info(socket.as_fd()) {
        Ok(info) => LinkState {
            rtt: info.rtt,
            rtt_min: info.rtt_min,
            delivery_rate: info.delivery_rate,
            unsent_bytes: u64::from(info.unsent_bytes),
            in_flight_bytes: u64::from(info.in_flight) * u64::from(info.segment_bytes),
        },
        Err(error) => {
            tracing::debug!(%error, socket = socket.as_raw_fd(), "the kernel tells nothing of a connection");
            LinkState::default()
        }
    }
}

//! One thread that serves connections: it reads all there is, hands it to the broker, then writes to each connection that has
//! something to send, once a turn.
//!
//! ```text
//!  accept ─▶ opening (TLS, WebSocket, CONNECT) ─▶ authentication ─▶ the shard of the client identifier ─▶ open ─▶ closing
//! ```
//!
//! Always true: no connection holds up another for longer than some reads of [`READ_BYTES`] and some writes of
//! `WRITE_BYTES_MAX`; a connection that ends takes nothing with it but its session's promises.

mod authentication;
mod closing;
mod lobby;
mod open;
mod opening;
mod visits;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt, io,
    net::{IpAddr, SocketAddr},
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::Bytes;
use mio::{Events, Interest, Poll, Registry, Token, net::TcpStream};
use rustls_pki_types::UnixTime;
use tidegate_broker::{
    Acknowledged, Broker, BundleReader, ClientChange, ClientState, ConnectRequest, ConnectionKey,
    Handed, Message, Output, PartialCharge, Peer, SessionReport, Shared,
    spill::{SpillError, Wanted},
};
use tidegate_bus::{
    ClientWatcher, HeldSubscription, IsMeant,
    pipe::{PipeId, ServerEnd},
};
use tidegate_identity::{
    auth::{checks::Waiting, limits::Lease},
    pki::known::Known,
};
use tidegate_journal::Journal;
use tidegate_message::{Identity, Instant, Refusal};
use tidegate_process::{arrivals::Arrivals, clock, descriptors::Descriptor, health::Pulse};
use tidegate_wire::{
    mqtt::{Connect, ReasonCode},
    proxy::Source,
};
use tokio::sync::{mpsc as mpsc_async, oneshot};

use self::{
    lobby::{LOBBY_BYTES, Lobby},
    visits::{Visitor, Visits},
};
use super::{
    inbox::Inbox,
    journal::Written,
    listen::Acceptor,
    settings::{Authenticate, ListenerSettings, Scram},
    transport::Transport,
};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// The rest of a packet in the read buffer may stay there for the next read, up to this.
const LEFT_BYTES: usize = 4 << 10;
/// How long a connection that is closed from here may take to read its last packets.
const LINGER: Duration = Duration::from_secs(2);

/// Connections of a node, and of one address, of which no CONNECT has come; beyond it the one that takes longest gives way.
const OPENINGS_MAX: usize = 32_768;
const OPENINGS_OF_ADDRESS_MAX: usize = 16_384;

const WAKER: Token = Token(0);
/// Tokens from here on are listeners, as many as there are, then connections.
const FIRST: usize = 1;

/// A listener and how many it serves.
#[derive(Debug)]
pub(super) struct Listener {
    settings: RwLock<Arc<ListenerSettings>>,
    pub(super) connections: AtomicUsize,
    /// For the one connection of a part of this program.
    is_local: bool,
}

impl Listener {
    pub(super) fn new(settings: ListenerSettings) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        Self { settings, connections: AtomicUsize::new(0), is_local: false }
    }

    /// For one connection of a part of this program, which is there already.
    pub(super) fn local(settings: ListenerSettings) -> Self {
        Self { connections: AtomicUsize::new(1), is_local: true, ..Self::new(settings) }
    }

    /// The settings for clients that come now.
    pub(super) fn settings(&self) -> Arc<ListenerSettings> {
        self.settings.read().expect("no panic while they are exchanged").clone()
    }

    /// Other settings for clients that come from now on, but for what the socket was made with.
    pub(super) fn exchange(&self, new: ListenerSettings) {
        let mut settings = self.settings.write().expect("no panic while they are exchanged");
        let same = new.protocol.is_secure() == settings.protocol.is_secure();
        *settings = Arc::new(ListenerSettings {
            // Anonymous access decided for another address may be too much for this one.
            anonymous: new.anonymous
                && (settings.anonymous
                    || (new.listen == settings.listen && new.protocol == settings.protocol)),
            listen: settings.listen.clone(),
            socket_mode: settings.socket_mode,
            protocol: settings.protocol,
            tls: if same { new.tls } else { settings.tls.clone() },
            known: if same { new.known } else { settings.known.clone() },
            ..new
        });
    }
}

/// Commands and messages from other threads to a shard.
#[derive(Debug)]
pub(super) enum ShardCommand {
    /// A connection that was accepted, and its right to be; none of a part of this program.
    Accepted(TcpStream, Arc<Listener>, Option<Descriptor>),
    /// The connection of a part of this program whose session lives here.
    Attached(ServerEnd, Arc<Listener>),
    /// A client whose session lives here.
    Welcome(Box<Connection>, Box<ConnectRequest>),
    /// The result of authenticating a connection that is opening here; none if there are more than can be checked.
    Answered(ConnectionId, Option<Result<Identity, Refusal>>),
    /// A part of this program that is connected here has left something.
    Inside(PipeId),
    /// Messages of another shard for sessions here.
    Peers(Vec<Peer>),
    /// More of the journal is durable, or nothing will be any more.
    Durable,
    /// Keeps that journal from now on, writes all that is so to it, and says whether it could.
    Keep(Box<dyn Journal>, mpsc::SyncSender<Written>),
    /// The results of reading messages that wait on disk.
    Fetched(Wanted, Vec<Result<Bytes, SpillError>>),
    /// Ends the connections of some users.
    KickUsers(Arc<HashSet<String>>),
    /// Ends the session of a client.
    Forget(Box<str>),
    /// Ends the sessions of some clients, and says how many there were.
    EndSessions(Which, Option<oneshot::Sender<usize>>),
    /// Those parts of the node are configured, by client identifier, and no others.
    Parts(Arc<HashSet<String>>),
    /// The users that this is true of are gone, and no others.
    GoneUsers(Which),
    /// The members of the fabric that this is true of are not known, and says once they are marked.
    UnknownMembers(Which, oneshot::Sender<()>),
    /// Asks for the sessions behind that client identifier, at most so many.
    Sessions(Which, Box<str>, usize, oneshot::Sender<Vec<SessionReport>>),
    /// Asks for the filters of a client's session.
    Filters(Box<str>, oneshot::Sender<Vec<Arc<str>>>),
    /// Holds SUBACKs of clients for so long at most, or no longer.
    HoldSubacks(Option<Duration>),
    /// Lets one go.
    ReleaseSuback(u64),
    /// Asks for the filters of some sessions.
    AllFilters(Which, oneshot::Sender<Vec<Arc<str>>>),
    /// Says of clients that they come and go, or no longer.
    AnnounceClients(bool),
    /// Asks for all clients, and up to which change.
    Clients(oneshot::Sender<ShardClients>),
    /// Ends the connection of a client that began then, and its session where it is so.
    TakenOver(Box<str>, Instant, bool),
    /// Ends the connections of those who proved nothing where that is no longer enough.
    KickAnonymous,
    /// Ends connections that were authenticated by a token.
    KickTokens,
    /// Ends the connections of those whose certificate was revoked.
    KickRevoked,
    /// Ends the connections of those whose certificate their listener takes no longer.
    KickUnknown,
    /// Ends all connections, then the shard.
    Stop,
}

/// The clients of a shard, of that number, and up to which change.
pub(super) type ShardClients = (usize, (u64, Vec<ClientState>));

/// Which sessions are meant.
#[derive(Clone)]
pub(super) struct Which(pub(super) IsMeant);

impl fmt::Debug for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Which")
    }
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
    /// The listener's, of when it introduced itself.
    settings: Arc<ListenerSettings>,
    peer: Option<SocketAddr>,
    stage: Stage,
    /// Bytes that are no whole packet yet.
    left: Vec<u8>,
    /// Their part of the node's budget, if they are many and it is open.
    left_charge: Option<PartialCharge>,
    /// Bytes of its CONNECT, while it is not open.
    connect_bytes: usize,
    /// Its number among those of whom no CONNECT has come.
    arrival: Option<u64>,
    _descriptor: Option<Descriptor>,
    /// Messages that a part of this program handed over and that are not published yet.
    bundles: VecDeque<BundleReader>,
    /// Whether the socket may have more to read.
    is_readable: bool,
    /// The peer sends no more, or the socket failed: the end is yet to be read, and the kernel does not speak of it again.
    has_hung_up: bool,
    /// In the list of connections to be read.
    is_queued: bool,
    /// Not to be read from, for the sake of a subscriber.
    is_paused: bool,
    /// Closed once what the broker had to say has left.
    is_ending: bool,
    /// With a publish rate, when all that it sent so far would have been sent at that rate.
    earned_at: Instant,
    /// The exchange by which an open connection proves again whose it is.
    scram: Option<Scram>,
    /// The generation of the rules when its identity was checked.
    generation: u64,
    /// Whether it proved nothing.
    is_anonymous: bool,
    /// By what its certificate was taken, if it was asked for one.
    known: Option<Arc<Known>>,
    /// Not to be read from before, with a publish rate.
    rests_until: Option<Instant>,
    /// The lease on its identity's limits, once that is known.
    lease: Option<Lease>,
    /// When the token that it showed expires, by the wall clock.
    expires_at: Option<Instant>,
    /// The client for the log, once it is connected; none for parts of this program.
    visitor: Option<Box<Visitor>>,
}

impl Connection {
    /// The peer's address without its port.
    fn address(&self) -> Option<IpAddr> {
        self.peer.map(|peer| peer.ip())
    }

    /// Takes the address that a load balancer named, if it just did.
    #[inline]
    fn learn_peer(&mut self) -> bool {
        match self.transport.take_source() {
            None | Some(Source::Connection) => return false,
            Some(Source::Client(address)) => self.peer = Some(address),
            Some(Source::Unix) => self.peer = None,
        }
        true
    }

    /// Whether the client's certificate, or that it showed none, would not let it in any more: its authority, or its fingerprint, was
    /// taken out of the listener's settings since. Certificates are looked at again only if something was taken out.
    fn is_unknown(&mut self) -> bool {
        let now = self.listener.settings();
        let is_unknown = match (&self.known, &now.known) {
            (None, None) => false,
            (Some(former), Some(now)) if Arc::ptr_eq(former, now) || now.takes_all_of(former) => {
                false
            }
            (_, Some(now)) => !now.still_takes(self.transport.peer_certificates(), UnixTime::now()),
            (Some(_), None) => !self.transport.peer_certificates().is_empty(),
        };
        if !is_unknown {
            self.known.clone_from(&now.known);
        }
        is_unknown
    }

    /// Whether the client's certificate is on a list that its listener goes by now.
    fn is_revoked(&self) -> bool {
        let Some(certificate) = self.transport.peer_certificate() else { return false };
        let lists = &self.listener.settings().revocations;
        lists.iter().any(|lists| lists.find(certificate).is_some())
    }
}

#[derive(Debug)]
enum Stage {
    /// CONNECT has not come whole.
    Opening,
    /// An authentication exchange is under way.
    Exchanging(Box<Connect>, Option<Scram>),
    /// It is being authenticated, as long as it waits.
    Waiting(Box<Connect>, Waiting),
    Open(ConnectionKey),
    /// Its last packets are on their way; its input is read and dropped.
    Closing,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.listener.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The parts of a shard.
pub(super) struct ShardParts {
    pub(super) shard: usize,
    pub(super) shared: Arc<Shared>,
    /// Of its thread's poll.
    pub(super) registry: Registry,
    pub(super) inboxes: Arc<[Arc<Inbox<ShardCommand>>]>,
    /// On the first shard alone.
    pub(super) listeners: Vec<(Acceptor, Arc<Listener>)>,
    pub(super) authenticator: Arc<dyn Authenticate>,
    pub(super) holder: Arc<Holder>,
    pub(super) watcher: Arc<Watcher>,
    pub(super) pulse: Pulse,
}

/// The service that SUBACKs wait for, if there is one.
#[derive(Debug, Default)]
pub(super) struct Holder(Mutex<Option<mpsc_async::Sender<HeldSubscription>>>);

impl Holder {
    fn holder(&self) -> MutexGuard<'_, Option<mpsc_async::Sender<HeldSubscription>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, holder: mpsc_async::Sender<HeldSubscription>) {
        *self.holder() = Some(holder);
    }

    /// Forgets the service if it is gone; whether it was.
    pub(super) fn end_if_gone(&self) -> bool {
        let mut holder = self.holder();
        let is_gone = holder.as_ref().is_some_and(mpsc_async::Sender::is_closed);
        if is_gone {
            *holder = None;
        }
        is_gone
    }

    /// Tells the service of a SUBACK of that shard; whether it knows.
    fn tell(&self, shard: usize, number: u64, filters: Vec<Arc<str>>) -> bool {
        let number = (shard as u64) << SHARD_SHIFT | number;
        self.holder().as_ref().is_some_and(|holder| holder.try_send((number, filters)).is_ok())
    }
}

/// The service that is told of clients, if there is one.
#[derive(Debug, Default)]
pub(super) struct Watcher(Mutex<Option<ClientWatcher>>);

impl Watcher {
    fn watcher(&self) -> MutexGuard<'_, Option<ClientWatcher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, watcher: ClientWatcher) {
        *self.watcher() = Some(watcher);
    }

    /// Forgets the service if it is gone; whether it was.
    pub(super) fn end_if_gone(&self) -> bool {
        self.watcher().take_if(|watcher| watcher.is_gone()).is_some()
    }

    fn tell(&self, shard: usize, number: u64, change: ClientChange) {
        if let Some(watcher) = &*self.watcher() {
            watcher.tell(shard, number, change);
        }
    }
}

/// The shard of a SUBACK that waits, and its number there.
pub(super) fn shard_of_suback(number: u64) -> (usize, u64) {
    ((number >> SHARD_SHIFT) as usize, number & ((1 << SHARD_SHIFT) - 1))
}

/// Numbers of SUBACKs have their shard above this.
const SHARD_SHIFT: u32 = 56;

/// The shards of a server, each locked by whichever thread does its work; none once it has ended.
///
/// A shard has a thread, which waits for its sockets. A message for a subscriber on a shard whose thread sleeps would cost a system
/// call to wake it, and the time until it runs. So the thread that has the message, once its own work is done, does the little that the
/// other has to do: it locks the other, which it never waits for. On a node that has little to do one thread does all of it in turn; on
/// a busy one no thread sleeps, and each does its own.
pub(super) type Shards = Arc<[Mutex<Option<Shard>>]>;

/// Tokens of connections have the low bits of their slot's count of uses above this.
const TOKEN_SHIFT: u32 = usize::BITS / 8 * 5;
const USES_TOLD: usize = 1 << (usize::BITS / 4);
/// Deliveries of a shard that sleeps beyond which it is woken: they are worth a thread of their own.
pub(super) const HELPED_MAX: usize = 16;
/// Time for which one thread helps others before it looks at its own sockets again.
const HELP_MAX: Duration = Duration::from_micros(50);
/// A thread that is lent and was needed for longer is not lent for the next messages: they have many subscribers.
const LENT_MAX: Duration = Duration::from_micros(200);
/// A thread whose socket had something for it within this time was hardly waiting, and after so many such turns in a row it has enough
/// to do itself: it wakes others.
const HARDLY: Duration = Duration::from_micros(10);
const BUSY_TURNS: u32 = 4;

/// How much later than at the time of something to do a thread looks: the poll counts in milliseconds and may be early by one.
const LATE: Duration = Duration::from_micros(500);

/// The state of a shard.
pub(super) struct Shard {
    broker: Broker,
    /// Shards that sleep and were left something: this thread wakes them, or does their work.
    asleep: Vec<usize>,
    /// Until when its thread waits for the kernel, if nothing else comes.
    waits_until: Instant,
    parts: ShardParts,
    slots: Vec<Option<Box<Connection>>>,
    uses: Vec<u64>,
    free: Vec<usize>,
    /// By the slot of the broker's key, the slot here.
    by_key: Vec<usize>,
    /// Slots of connections from inside the program.
    inside: HashMap<PipeId, usize>,
    /// Connections to be read though the kernel says nothing new of them.
    queued: VecDeque<usize>,
    /// When connections that are opening or closing are given up, soonest first for each cause.
    openings: VecDeque<(Instant, ConnectionId)>,
    closings: VecDeque<(Instant, ConnectionId)>,
    /// Connections that published faster than they may, by when they are read again.
    resting: BTreeMap<(Instant, usize), ConnectionId>,
    /// Connections that end when their token expires, by the wall clock.
    expiring: BTreeMap<(Instant, usize), ConnectionKey>,
    buffer: Vec<u8>,
    commands: Vec<ShardCommand>,
    peers: Vec<Peer>,
    handed: Vec<Handed>,
    settled: Vec<Acknowledged>,
    used: Vec<Arc<Message>>,
    visits: Visits,
    /// Input held of connections that are not open.
    lobby: Lobby,
    /// Connections of which no CONNECT has come.
    arrivals: Arrivals<ConnectionId>,
    /// Where the next accepted connection goes.
    turn: usize,
    stops: Option<Instant>,
    /// Tokens are kept apart from those of listeners, even after these are gone.
    listeners_max: usize,
    /// Listening continues then, after descriptors ran out.
    accepts_at: Option<Instant>,
}

/// How much work messages from another shard are here: about one for each delivery.
fn weight(shard: usize, batch: &[Peer]) -> usize {
    batch.iter().map(|peer| peer.deliveries(shard)).sum()
}

/// Lends other threads to shards: the one that leaves something at a shard that sleeps does the little that the shard has to do.
#[derive(Clone, Debug)]
pub(super) struct Lending {
    shards: Weak<[Mutex<Option<Shard>>]>,
    inboxes: Arc<[Arc<Inbox<ShardCommand>>]>,
}

impl Lending {
    pub(super) fn new(shards: &Shards, inboxes: &Arc<[Arc<Inbox<ShardCommand>>]>) -> Self {
        Self { shards: Arc::downgrade(shards), inboxes: inboxes.clone() }
    }

    /// Does the work of a shard that sleeps and was left something, or wakes it. True if the work took so long that its thread is to be woken for the next.
    pub(super) fn help(&self, number: usize) -> bool {
        let Some(shards) = self.shards.upgrade() else { return false };
        let (began, mut asleep) = (clock::now(), vec![number]);
        help(&shards, &self.inboxes, &mut asleep, began);
        asleep.into_iter().for_each(|number| self.inboxes[number].wake());
        clock::now().since(began) > LENT_MAX
    }
}

/// The thread of a shard. If it ends by a panic, its shard ends with it, and those that it was to wake are.
struct Thread<'a> {
    shards: &'a Shards,
    number: usize,
    inboxes: &'a [Arc<Inbox<ShardCommand>>],
    asleep: Vec<usize>,
}

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        self.wake_all();
        let mut own = self.shards[self.number].lock().unwrap_or_else(PoisonError::into_inner);
        drop(own.take());
    }
}

/// The thread of a shard, until that has ended.
///
/// # Errors
/// The system's, where it does not wait.
pub(super) fn run(
    shards: &Shards,
    number: usize,
    mut poll: Poll,
    inboxes: &[Arc<Inbox<ShardCommand>>],
) -> io::Result<()> {
    let mut events = Events::with_capacity(1024);
    let mut thread = Thread { shards, number, inboxes, asleep: Vec::new() };
    let mut busy_turns = 0;
    loop {
        let (now, wait) = match &mut *locked(&shards[number]) {
            Some(shard) => shard.wait(),
            None => return Ok(()),
        };
        match poll.poll(&mut events, Some(wait)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        let woken = clock::now();
        busy_turns = if woken.since(now) < HARDLY { busy_turns + 1 } else { 0 };
        let mut own = locked(&shards[number]);
        let Some(shard) = own.as_mut() else { return Ok(()) };
        let has_ended = shard.work(&events);
        thread.asleep.append(&mut shard.asleep);
        if has_ended {
            *own = None;
        }
        drop(own);
        if busy_turns < BUSY_TURNS {
            thread.help(woken);
        }
        thread.wake_all();
    }
}

/// Does the work of shards that sleep, or wakes them; some may be left.
fn help(
    shards: &Shards,
    inboxes: &[Arc<Inbox<ShardCommand>>],
    asleep: &mut Vec<usize>,
    began: Instant,
) {
    while let Some(number) = asleep.pop() {
        // One that is locked is at work, or about to be.
        let Ok(mut other) = shards[number].try_lock() else {
            inboxes[number].wake();
            continue;
        };
        let Some(shard) = other.as_mut() else { continue };
        // A fault of its ends that shard, as it would on its own thread, and not this one's.
        let worked = panic::catch_unwind(AssertUnwindSafe(|| shard.work_for()));
        asleep.append(&mut shard.asleep);
        if worked.is_err() {
            tracing::error!(shard = number, "a shard of the MQTT server ended: its work panicked");
            *other = None;
        }
        let sleeps_on = worked.unwrap_or(false);
        drop(other);
        if !sleeps_on {
            inboxes[number].wake();
        }
        if clock::now().since(began) > HELP_MAX {
            return;
        }
    }
}

impl Thread<'_> {
    fn help(&mut self, began: Instant) {
        help(self.shards, self.inboxes, &mut self.asleep, began);
    }

    fn wake_all(&mut self) {
        self.asleep.drain(..).for_each(|number| self.inboxes[number].wake());
    }
}

/// # Panics
/// If the thread that had it last panicked in the middle of its work: what it left cannot be relied on.
fn locked(shard: &Mutex<Option<Shard>>) -> MutexGuard<'_, Option<Shard>> {
    shard.lock().expect("a shard whose work ended in a panic does not continue")
}

impl Shard {
    pub(super) fn new(parts: ShardParts, broker: Broker) -> io::Result<Self> {
        let mut shard = Self {
            broker,
            asleep: Vec::new(),
            waits_until: clock::now(),
            slots: Vec::new(),
            uses: Vec::new(),
            free: Vec::new(),
            by_key: Vec::new(),
            inside: HashMap::new(),
            queued: VecDeque::new(),
            openings: VecDeque::new(),
            closings: VecDeque::new(),
            resting: BTreeMap::new(),
            expiring: BTreeMap::new(),
            buffer: vec![0; LEFT_BYTES + READ_BYTES],
            commands: Vec::new(),
            peers: Vec::new(),
            handed: Vec::new(),
            settled: Vec::new(),
            used: Vec::new(),
            visits: Visits::default(),
            lobby: Lobby::new((LOBBY_BYTES / parts.inboxes.len().max(1)).max(1 << 20)),
            arrivals: Arrivals::new(
                OPENINGS_MAX / parts.inboxes.len().max(1),
                OPENINGS_OF_ADDRESS_MAX / parts.inboxes.len().max(1),
            ),
            turn: 0,
            stops: None,
            listeners_max: parts.listeners.len(),
            accepts_at: None,
            parts,
        };
        let registry = &shard.parts.registry;
        for (at, (socket, _)) in shard.parts.listeners.iter_mut().enumerate() {
            registry.register(socket, Token(FIRST + at), Interest::READABLE)?;
        }
        Ok(shard)
    }

    /// The time, and how long its thread may wait for the kernel from then on; nothing if there is something to do.
    fn wait(&mut self) -> (Instant, Duration) {
        let now = clock::now();
        let mut wait = Duration::ZERO;
        if !self.has_work() && self.inbox().may_sleep() {
            let beat_within = self.parts.pulse.sleep_max();
            let until_next = self.next_time().map(|at| at.since(now) + LATE);
            wait = until_next.map_or(beat_within, |until| until.min(beat_within));
        }
        self.waits_until = now + wait;
        (now, wait)
    }

    fn inbox(&self) -> &Inbox<ShardCommand> {
        &self.parts.inboxes[self.parts.shard]
    }

    /// All that there is to do now; whether the shard has ended.
    fn work(&mut self, events: &Events) -> bool {
        let now = clock::now();
        self.handle_notes(now);
        for event in events {
            self.handle_event(now, event);
        }
        self.read_queued(now);
        self.give_up(now);
        self.broker.handle_timeout(now);
        self.flush_all(now);
        self.parts.pulse.beat();
        let has_ended = self.stops.is_some_and(|at| at <= now || self.is_idle());
        if has_ended {
            self.visits.sum_up(now, true);
            self.broker.finish_journal();
        }
        has_ended
    }

    /// The work that another thread does for this shard, whose own one sleeps; whether that one may sleep on. Only messages of other
    /// shards and of parts of the program, and few of them: all else waits for its thread.
    fn work_for(&mut self) -> bool {
        self.take_notes();
        let weight_of = |command: &ShardCommand| match command {
            ShardCommand::Peers(batch) => weight(self.parts.shard, batch),
            // That of one which is gone is nothing.
            ShardCommand::Inside(id) => {
                self.inside_end(*id).map_or(0, |end| end.messages().unwrap_or(usize::MAX))
            }
            _ => usize::MAX,
        };
        let all = self.commands.iter().map(weight_of);
        if all.fold(0, usize::saturating_add) > HELPED_MAX {
            return false;
        }
        let now = clock::now();
        self.handle_notes(now);
        self.flush_all(now);
        // It waits until a time that may have come closer.
        let is_sooner = self.next_time().is_some_and(|at| at + LATE < self.waits_until);
        !self.has_work() && !is_sooner && self.stops.is_none() && self.inbox().may_sleep()
    }

    fn is_idle(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Whether there is something to do at once.
    fn has_work(&self) -> bool {
        !self.queued.is_empty() || self.broker.has_dirty() || !self.commands.is_empty()
    }

    /// When there is something to do, if nothing comes before.
    fn next_time(&self) -> Option<Instant> {
        let first = |times: &VecDeque<(Instant, ConnectionId)>| times.front().map(|(at, _)| *at);
        [
            self.broker.poll_timeout(),
            first(&self.openings),
            first(&self.closings),
            self.resting.keys().next().map(|(at, _)| *at),
            self.expiring.keys().next().map(|(at, _)| clock::from_wall(*at).min(*at)),
            self.accepts_at,
            self.stops,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes the notes that came, behind those that were taken before and not handled.
    fn take_notes(&mut self) {
        if self.commands.is_empty() {
            self.parts.inboxes[self.parts.shard].take(&mut self.commands);
        } else {
            let mut more = Vec::new();
            self.parts.inboxes[self.parts.shard].take(&mut more);
            self.commands.append(&mut more);
        }
    }

    fn handle_notes(&mut self, now: Instant) {
        self.take_notes();
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain(..) {
            self.handle_command(now, command);
        }
        self.commands = commands;
    }

    fn handle_event(&mut self, now: Instant, event: &mio::event::Event) {
        if event.token() == WAKER {
            return;
        }
        let at = (event.token().0 & ((1 << TOKEN_SHIFT) - 1)) - FIRST;
        if at < self.listeners_max {
            self.accept(now, at);
            return;
        }
        let slot = at - self.listeners_max;
        if slot >= self.slots.len() || self.token(slot) != event.token() {
            return;
        }
        let Some(connection) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            connection.is_readable = true;
            connection.has_hung_up |= event.is_read_closed() || event.is_error();
            self.read(now, slot);
            if event.is_read_closed() || event.is_error() {
                self.leave_line(now, slot, event.is_error() || event.is_write_closed());
            }
        }
        if event.is_writable() {
            self.write_again(now, slot);
        }
    }

    fn handle_command(&mut self, now: Instant, command: ShardCommand) {
        match command {
            ShardCommand::Accepted(socket, listener, descriptor) => {
                self.open(now, socket, listener, descriptor);
            }
            ShardCommand::Attached(end, listener) => self.attach(now, end, listener),
            ShardCommand::Welcome(connection, request) => {
                let Some(slot) = self.place(connection) else { return };
                self.welcome(now, slot, *request);
            }
            ShardCommand::Answered(id, answer) => {
                let Some(connection) = self.connection(id) else { return };
                let Stage::Waiting(..) = connection.stage else { return };
                let stage = std::mem::replace(&mut connection.stage, Stage::Opening);
                let Stage::Waiting(connect, waiting) = stage else {
                    unreachable!("looked at above")
                };
                drop(waiting);
                match answer {
                    Some(answer) => self.answered(now, id.slot, connect, answer, None),
                    None => self.refuse(now, id.slot, &connect, ReasonCode::SERVER_BUSY),
                }
            }
            ShardCommand::Inside(id) => self.look_inside(now, id),
            ShardCommand::Peers(batch) => self.broker.handle_peers(now, batch),
            ShardCommand::Durable => self.broker.durable(),
            ShardCommand::Keep(journal, written) => {
                self.broker.keep(journal);
                // The caller may have given up.
                let _ = written.send(self.broker.flush_journal());
            }
            ShardCommand::Fetched(wanted, answers) => {
                self.broker.handle_fetched(now, wanted, answers);
            }
            ShardCommand::KickUsers(users) => {
                self.broker.kick_users(&users);
            }
            ShardCommand::Forget(client_id) => {
                self.broker.forget(now, &client_id);
            }
            ShardCommand::EndSessions(which, answer) => {
                let ended = self.broker.end_sessions(now, &*which.0);
                if ended > 0 {
                    tracing::info!(
                        ended,
                        "sessions ended by an administrator, or because their owner is gone"
                    );
                }
                // There may be no asking side.
                let _ = answer.map(|answer| answer.send(ended));
            }
            ShardCommand::Parts(configured) => self.broker.configure_parts(now, &configured),
            ShardCommand::GoneUsers(which) => {
                self.broker.mark_gone_users(now, &|identity| which.0("", identity));
            }
            ShardCommand::UnknownMembers(which, answer) => {
                self.broker.mark_unknown_members(now, &*which.0);
                // There may be no asking side.
                let _ = answer.send(());
            }
            ShardCommand::Sessions(which, after, limit, answer) => {
                // The asking side may have given up.
                let _ = answer.send(self.broker.sessions_after(&after, limit, &*which.0));
            }
            ShardCommand::Filters(client_id, answer) => {
                // The asking side may have given up.
                let _ = answer.send(self.broker.filters(&client_id));
            }
            ShardCommand::HoldSubacks(bound) => self.broker.hold_subacks(bound),
            ShardCommand::ReleaseSuback(number) => self.broker.release_suback(number),
            ShardCommand::AllFilters(which, answer) => {
                // The asking side may have given up.
                let _ = answer.send(self.broker.all_filters(&*which.0));
            }
            ShardCommand::AnnounceClients(is_wanted) => self.broker.announce_clients(is_wanted),
            ShardCommand::Clients(answer) => {
                // The asking side may have given up.
                let _ = answer.send((self.parts.shard, self.broker.clients()));
            }
            ShardCommand::TakenOver(client_id, began, ends_session) => {
                self.broker.taken_over(now, &client_id, began, ends_session);
            }
            ShardCommand::KickAnonymous => self.kick_anonymous(),
            ShardCommand::KickTokens => self.kick_tokens(),
            ShardCommand::KickRevoked => self.kick_revoked(),
            ShardCommand::KickUnknown => self.kick_unknown(),
            ShardCommand::Stop => {
                self.stops = Some(now + LINGER);
                let registry = &self.parts.registry;
                for (mut socket, listener) in self.parts.listeners.drain(..) {
                    if let Err(error) = registry.deregister(&mut socket) {
                        tracing::debug!(%error, listener = %listener.settings().name, "listener not taken out");
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

    /// Of the use of a slot, since an event of the one before may be on its way.
    fn token(&self, slot: usize) -> Token {
        let use_count = self.uses[slot] as usize & (USES_TOLD - 1);
        Token((FIRST + self.listeners_max + slot) | use_count << TOKEN_SHIFT)
    }

    /// Gives a connection a slot and listens to its socket.
    fn place(&mut self, mut connection: Box<Connection>) -> Option<usize> {
        connection.is_queued = false;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.uses.push(0);
            self.slots.len() - 1
        });
        self.uses[slot] += 1;
        let token = self.token(slot);
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Some(end) = connection.transport.as_inside() {
            self.inside.insert(end.id(), slot);
        } else if let Some(socket) = connection.transport.socket()
            && let Err(error) = self.parts.registry.register(socket, token, both)
        {
            tracing::warn!(%error, "a connection's socket cannot be registered");
            self.free.push(slot);
            return None;
        }
        self.slots[slot] = Some(connection);
        Some(slot)
    }

    /// Takes a connection out of its slot, for another shard or for good.
    fn displace(&mut self, slot: usize) -> Option<Box<Connection>> {
        let mut connection = self.slots[slot].take()?;
        self.lobby.release(slot);
        if let Some(number) = connection.arrival.take() {
            self.arrivals.end(number);
        }
        if let Some(at) = connection.expires_at {
            self.expiring.remove(&(at, slot));
        }
        if let Some(end) = connection.transport.as_inside() {
            self.inside.remove(&end.id());
        } else if let Some(socket) = connection.transport.socket()
            && let Err(error) = self.parts.registry.deregister(socket)
        {
            tracing::debug!(%error, "a socket was not listened to");
        }
        self.uses[slot] += 1;
        self.free.push(slot);
        Some(connection)
    }

    fn queue(&mut self, slot: usize) {
        if let Some(connection) = self.slots[slot].as_deref_mut()
            && !connection.is_queued
        {
            connection.is_queued = true;
            self.queued.push_back(slot);
        }
    }

    fn flush_all(&mut self, now: Instant) {
        // Once each: a connection that takes all that it is given has its next turn after the others' reads.
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
                let is_little = weight(shard, &batch) <= HELPED_MAX;
                let inbox = &self.parts.inboxes[shard];
                if inbox.leave([ShardCommand::Peers(batch)]) {
                    if is_little { self.asleep.push(shard) } else { inbox.wake() }
                }
            }
        }
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
                    // Packets that came behind one that took long.
                    self.received_left(now, slot, key);
                    self.charge_left(now, slot);
                    self.queue(slot);
                }
            }
            Output::Subscribed(_, number, filters) => {
                if !self.parts.holder.tell(self.parts.shard, number, filters) {
                    self.broker.release_suback(number);
                }
            }
            Output::Client(number, change) => {
                self.parts.watcher.tell(self.parts.shard, number, change);
            }
            Output::Auth(key, auth) => self.reauthenticate(key, &auth),
            Output::Denied(key, denied) => {
                let Some(slot) = slot_of(&self.by_key, key) else { return };
                if self.is_open(slot, key)
                    && let Some(connection) = self.slots[slot].as_deref()
                    && let Some(visitor) = &connection.visitor
                {
                    let (peer, listener) = (connection.peer, &connection.settings);
                    self.visits.denied(now, visitor, peer, listener, &denied);
                }
            }
        }
    }

    fn is_open(&self, slot: usize, key: ConnectionKey) -> bool {
        let connection = self.slots.get(slot).and_then(Option::as_deref);
        connection.is_some_and(|c| matches!(c.stage, Stage::Open(open) if open == key))
    }
}

/// Largest packet that the client takes (MQTT-3.1.2-24).
fn packet_bytes_max(connect: &Connect) -> usize {
    connect.properties.maximum_packet_size.map_or(usize::MAX, |bytes| bytes as usize)
}

#[cfg(test)]
mod tests;

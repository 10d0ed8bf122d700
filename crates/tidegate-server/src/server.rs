//! The threads of an MQTT server.

use std::{
    collections::HashSet,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, TryRecvError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use mio::{Poll, Token};
use tidegate_broker::{Broker, Message, SessionConfig, SessionReport, Shared};
use tidegate_bus::{
    Arrival, ClientList, ClientWatcher, Counts, HeldSubscription, Host, IsMeant, Later,
    pipe::{self, ClientEnd},
};
use tidegate_identity::{auth::checks::checks, pki::Revocations};
use tidegate_journal::{Journal, JournalError};
use tidegate_message::{Identity, Instant};
use tidegate_process::{
    clock,
    health::{Health, Pulse},
    random::random_bytes,
};
use tidegate_sys::folder::Folder;
use tokio::sync::{mpsc as mpsc_async, oneshot};

use super::{
    inbox::{Inbox, waker},
    journal::{self, JournalStartError, Written},
    listen::{self, Acceptor, ListenAddress, SocketFile},
    memory,
    settings::{ListenerSettings, ServerSettings, SessionSettings},
    shard::{
        self, HELPED_MAX, Holder, Lending, Listener, Shard, ShardCommand, ShardParts, Shards,
        Watcher, Which, shard_of_suback,
    },
    spill::DiskSpill,
};

/// A shard's loop comes round at least so often, or it hangs.
const PULSE: Duration = Duration::from_secs(20);
/// A thread that waits for a shard looks this often whether the server stops.
const ANSWER_LOOK: Duration = Duration::from_millis(100);
/// Times that the thread of a service is not lent to a shard behind one that took long, at the least and at the most.
const UNLENT_MIN: u32 = 64;
const UNLENT_MAX: u32 = 1 << 16;
/// Bytes that a connection from inside the program may have in the kernel, each way of its pair; the kernel doubles it.
pub const LOCAL_BYTES: usize = 32 << 10;

/// A running MQTT server; it stops on request, or when dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    inboxes: Arc<[Arc<Inbox<ShardCommand>>]>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<(Arc<str>, SocketAddr)>,
    paths: Vec<(Arc<str>, PathBuf)>,
    files: Vec<SocketFile>,
    listeners: Vec<Arc<Listener>>,
    /// Of the shards: one that has ended is missed.
    pulses: Vec<Pulse>,
    /// Where messages wait on disk.
    spill: Option<Arc<DiskSpill>>,
    /// The service that SUBACKs wait for.
    holder: Arc<Holder>,
    /// The service that is told of clients.
    watcher: Arc<Watcher>,
    /// Lends threads of services to shards, once there are those.
    lending: Option<Lending>,
    /// Of threads that do something now and then: they end when it is dropped.
    waiting: Vec<mpsc::Sender<()>>,
}

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}; free it or set `listen` in [mqtt.listener.{listener}]")]
    Listen {
        /// The listener.
        listener: Arc<str>,
        /// Where.
        address: ListenAddress,
        /// The system's error.
        source: io::Error,
    },
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalStartError),
    /// The system gives no threads or descriptors.
    #[error("the threads of the MQTT server cannot be started")]
    Start(#[source] io::Error),
}

impl Server {
    /// Listens and serves; each shard is a pulse of `health`.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(settings: ServerSettings, health: &Health) -> Result<Self, ServerError> {
        let ServerSettings {
            broker,
            listeners,
            shards,
            authenticator,
            authorize,
            operators,
            journal,
            spill,
        } = settings;
        let Listening { mut sockets, listeners, addresses, paths, files } = listen(listeners)?;
        let shared = Shared::new(broker, shards, authorize, clock::now());
        let mut polls = Vec::new();
        let mut inboxes = Vec::new();
        for _ in 0..shards {
            let poll = Poll::new().map_err(ServerError::Start)?;
            let waker = waker(&poll, Token(0)).map_err(ServerError::Start)?;
            inboxes.push(Arc::new(Inbox::new(waker)));
            polls.push(poll);
        }
        let inboxes: Arc<[Arc<Inbox<ShardCommand>>]> = inboxes.into();
        shared.tell_in_sys("logins", || Some(checks().counts()));
        let mut server = Self {
            shared: shared.clone(),
            inboxes: inboxes.clone(),
            threads: Vec::new(),
            addresses,
            paths,
            files,
            listeners,
            pulses: Vec::new(),
            spill: None,
            holder: Arc::default(),
            watcher: Arc::default(),
            lending: None,
            waiting: Vec::new(),
        };
        let seed = u64::from_ne_bytes(random_bytes().map_err(ServerError::Start)?);
        let now = clock::now();
        let mut brokers: Vec<Broker> =
            (0..shards).map(|shard| Broker::new(shared.clone(), shard, seed, now)).collect();
        let reader = spill.map(|settings| {
            let (disk, reader) = DiskSpill::open(settings);
            for broker in &mut brokers {
                broker.set_spill(Some(disk.clone()));
            }
            server.spill = Some(disk);
            reader
        });
        let journals = match &journal {
            Some(settings) => Some(journal::open(settings, &mut brokers, now)?),
            None => None,
        };
        if journals.is_some() {
            let shared = Arc::downgrade(&shared);
            health.check("MQTT journal", move || {
                Some(match shared.upgrade()?.has_failing_journal() {
                    true => {
                        Err("its disk refuses writes: messages that are to be kept are refused"
                            .to_owned())
                    }
                    false => Ok(()),
                })
            });
        }
        let mut all = Vec::new();
        let mut threads = Vec::new();
        for ((shard, poll), mut broker) in polls.into_iter().enumerate().zip(brokers) {
            let admission = operators.as_ref().and_then(|operators| operators.admission(shard));
            broker.set_admission(admission);
            let pulse = health.pulse(format!("MQTT shard {shard}"), PULSE);
            server.pulses.push(pulse.clone());
            let parts = ShardParts {
                shard,
                shared: shared.clone(),
                registry: poll.registry().try_clone().map_err(ServerError::Start)?,
                inboxes: inboxes.clone(),
                listeners: if shard == 0 { std::mem::take(&mut sockets) } else { Vec::new() },
                authenticator: authenticator.clone(),
                holder: server.holder.clone(),
                watcher: server.watcher.clone(),
                pulse,
            };
            let shard = Shard::new(parts, broker).map_err(ServerError::Start)?;
            all.push(Mutex::new(Some(shard)));
            threads.push(poll);
        }
        let all: Shards = all.into();
        server.lending = Some(Lending::new(&all, &inboxes));
        for (shard, poll) in threads.into_iter().enumerate() {
            let (all, inboxes) = (all.clone(), inboxes.clone());
            server.spawn(format!("mqtt-{shard}"), move || {
                if let Err(error) = shard::run(&all, shard, poll, &inboxes) {
                    tracing::error!(%error, shard, "a shard of the MQTT server ended");
                }
            })?;
        }
        if let Some(reader) = reader {
            let inboxes = inboxes.clone();
            server.spawn("mqtt-spill".to_owned(), move || reader.run(&inboxes))?;
        }
        if let Some(journals) = journals {
            server.keep(journals)?;
        }
        let (stop, stopped) = mpsc::channel();
        server.waiting.push(stop);
        let budget = shared.budget().clone();
        server.spawn("mqtt-memory".to_owned(), move || memory::run(&budget, &stopped))?;
        Ok(server)
    }

    /// Runs the flushers of the journals, and has the shards notified.
    fn keep(&mut self, journals: journal::Running) -> Result<(), ServerError> {
        let clock_keeper = journals.clock;
        let (stop, stopped) = mpsc::channel();
        self.waiting.push(stop);
        self.spawn("mqtt-clock".to_owned(), move || clock_keeper.run(&stopped))?;
        if let Some(later) = journals.later {
            return self.keep_later(later, journals.folder);
        }
        let folder = Arc::new(journals.folder);
        for (shard, (flusher, commits)) in journals.flushers.into_iter().enumerate() {
            let (inbox, folder) = (self.inboxes[shard].clone(), folder.clone());
            commits.on_change(move || inbox.put([ShardCommand::Durable]));
            self.spawn(format!("mqtt-log-{shard}"), move || {
                flusher.run(clock::now);
                // The lock of all of them ends with the last.
                drop(folder);
            })?;
        }
        Ok(())
    }

    /// Has the shards keep journals as soon as the disk takes them.
    fn keep_later(&mut self, later: journal::Later, folder: Folder) -> Result<(), ServerError> {
        let (stop, stopped) = mpsc::channel();
        self.waiting.push(stop);
        let inboxes = self.inboxes.clone();
        self.spawn("mqtt-journals".to_owned(), move || {
            // Locked as long as there are shards.
            let _locked = folder;
            let hand = |journals: Vec<Box<dyn Journal>>| {
                let asked: Vec<_> = journals
                    .into_iter()
                    .zip(inboxes.iter())
                    .map(|(journal, inbox)| {
                        let (answer, answered) = mpsc::sync_channel(1);
                        inbox.put([ShardCommand::Keep(journal, answer)]);
                        answered
                    })
                    .collect();
                asked.iter().map(|answered| answer_of(answered, &stopped)).collect()
            };
            let Some(flushers) = later.run(inboxes.len(), &stopped, hand) else { return };
            thread::scope(|scope| {
                for ((flusher, commits), inbox) in flushers.into_iter().zip(inboxes.iter()) {
                    let told = inbox.clone();
                    commits.on_change(move || told.put([ShardCommand::Durable]));
                    inbox.put([ShardCommand::Durable]);
                    scope.spawn(move || flusher.run(clock::now));
                }
            });
        })
    }

    fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServerError> {
        let thread = thread::Builder::new().name(name).spawn(work).map_err(ServerError::Start)?;
        self.threads.push(thread);
        Ok(())
    }

    /// The sockets of the file system where listeners listen, by name.
    pub fn paths(&self) -> &[(Arc<str>, PathBuf)] {
        &self.paths
    }

    /// Where each listener listens in a network, by name; one may have several addresses, all of one port.
    pub fn addresses(&self) -> &[(Arc<str>, SocketAddr)] {
        &self.addresses
    }

    /// The state that all shards share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A factory of connections from inside the program.
    pub fn connector(&self) -> Connector {
        Connector {
            shared: self.shared.clone(),
            holder: self.holder.clone(),
            watcher: self.watcher.clone(),
            inboxes: self.inboxes.clone(),
            lending: self.lending.clone(),
        }
    }

    /// Exchanges the settings of listeners that there are already, by name, and the exceptions by topic, for clients that
    /// connect from now on. The set of listeners, their addresses and their protocols stay.
    pub fn reload(&self, settings: &ServerSettings) {
        self.shared.set_topics(settings.broker.topics.clone());
        for listener in &self.listeners {
            let name = listener.settings().name.clone();
            if let Some(new) = settings.listeners.iter().find(|new| new.name == name) {
                listener.exchange(new.clone());
            }
        }
        for inbox in self.inboxes.iter() {
            inbox.put([
                ShardCommand::KickAnonymous,
                ShardCommand::KickRevoked,
                ShardCommand::KickUnknown,
            ]);
        }
    }

    /// Ends the connections of users: those who hold a name that is no longer theirs.
    pub fn kick_users(&self, users: HashSet<String>) {
        let users = Arc::new(users);
        for inbox in self.inboxes.iter() {
            inbox.put([ShardCommand::KickUsers(users.clone())]);
        }
    }

    /// Ends the sessions of clients that `which` is true of, of their identifier and of whose they are.
    pub fn end_sessions(&self, which: impl Fn(&str, &Identity) -> bool + Send + Sync + 'static) {
        let which = Which(Arc::new(which));
        for inbox in self.inboxes.iter() {
            inbox.put([ShardCommand::EndSessions(which.clone(), None)]);
        }
    }

    /// The parts of the node with these client identifiers are configured, and no others: sessions that earlier ones left behind are
    /// kept for [`PART_GRACE`](tidegate_broker::PART_GRACE), then ended.
    pub fn configure_parts(&self, configured: HashSet<String>) {
        let configured = Arc::new(configured);
        for inbox in self.inboxes.iter() {
            inbox.put([ShardCommand::Parts(configured.clone())]);
        }
    }

    /// The users that `is_gone` is true of are no longer known, and all others are: the sessions of those that are gone refuse no
    /// publisher, until they are back or [ended](Self::end_sessions).
    pub fn mark_gone_users(&self, is_gone: impl Fn(&Identity) -> bool + Send + Sync + 'static) {
        let which = Which(Arc::new(move |_: &str, identity: &Identity| is_gone(identity)));
        for inbox in self.inboxes.iter() {
            inbox.put([ShardCommand::GoneUsers(which.clone())]);
        }
    }

    /// Ends connections that were authenticated by a token: their clients connect again with one that is accepted now.
    pub fn kick_tokens(&self) {
        for inbox in self.inboxes.iter() {
            inbox.put([ShardCommand::KickTokens]);
        }
    }

    /// Reads the revocation lists of listeners that were rewritten. Whether others are in use now; a file that cannot be
    /// used is reported, and changes nothing.
    pub fn refresh_revocations(&self, refresh: &dyn Fn(&Revocations) -> bool) -> bool {
        let mut changed = false;
        for listener in &self.listeners {
            for lists in &listener.settings().revocations {
                changed |= refresh(lists);
            }
        }
        changed
    }

    /// Ends the connections of those whose certificate was revoked.
    pub fn kick_revoked(&self) {
        for inbox in self.inboxes.iter() {
            inbox.put([ShardCommand::KickRevoked]);
        }
    }

    /// Ends the session of a client that does not come again.
    pub fn forget(&self, client_id: &str) {
        self.connector().forget(client_id);
    }

    /// Tells every client that the server stops, and waits until all threads have ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        for inbox in self.inboxes.iter() {
            inbox.put([ShardCommand::Stop]);
        }
        self.waiting.clear();
        if let Some(spill) = &self.spill {
            spill.stop();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the MQTT server panicked");
            }
        }
        self.files.clear();
        if let Some(spill) = self.spill.take() {
            spill.clear();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes connections to a server from inside the program.
#[derive(Clone, Debug)]
pub struct Connector {
    shared: Arc<Shared>,
    holder: Arc<Holder>,
    watcher: Arc<Watcher>,
    inboxes: Arc<[Arc<Inbox<ShardCommand>>]>,
    lending: Option<Lending>,
}

impl Connector {
    /// The client identifiers of all sessions whose owner `which` is true of; none if a shard has stopped, and they are not all known.
    pub async fn client_ids(
        &self,
        which: impl Fn(&Identity) -> bool + Send + Sync + 'static,
    ) -> Option<HashSet<String>> {
        let which = Which(Arc::new(move |_: &str, identity: &Identity| which(identity)));
        let ask = |answer| ShardCommand::Sessions(which.clone(), "".into(), usize::MAX, answer);
        let answers = self.ask_all(ask).await;
        let is_whole = answers.len() == self.inboxes.len();
        let reports = answers.into_iter().flatten();
        is_whole.then(|| reports.map(|session| session.client_id.to_string()).collect())
    }

    /// The answers of all shards to a command; one that has stopped gives none.
    fn ask_all<T: Send + 'static>(
        &self,
        command: impl Fn(oneshot::Sender<T>) -> ShardCommand,
    ) -> Later<'static, Vec<T>> {
        let ask = |inbox: &Arc<Inbox<ShardCommand>>| {
            let (answer, answered) = oneshot::channel();
            inbox.put([command(answer)]);
            answered
        };
        let asked: Vec<_> = self.inboxes.iter().map(ask).collect();
        Box::pin(async move {
            let mut answers = Vec::new();
            for answered in asked {
                answers.extend(answered.await);
            }
            answers
        })
    }

    /// A loopback connection as `identity` for a client that sends packets to the broker; messages for it wait under `session`. Little of it
    /// waits in the kernel
    /// ([`LOCAL_BYTES`]): until the other end reads it, the broker can still choose what goes first.
    ///
    /// # Errors
    /// The system's, if it gives no sockets.
    pub fn open(
        &self,
        name: &str,
        identity: Identity,
        session: SessionConfig,
    ) -> io::Result<std::net::TcpStream> {
        let socket = || {
            let tcp = Some(socket2::Protocol::TCP);
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, tcp)
        };
        let loopback = socket()?;
        // Accepted sockets inherit it.
        loopback.set_send_buffer_size(LOCAL_BYTES)?;
        loopback.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        loopback.listen(16)?;
        let loopback = std::net::TcpListener::from(loopback);
        let near = socket()?;
        // Before it connects, for the window that it opens with.
        near.set_recv_buffer_size(LOCAL_BYTES)?;
        near.connect(&loopback.local_addr()?.into())?;
        let near = std::net::TcpStream::from(near);
        let far = loop {
            let (far, address) = loopback.accept()?;
            // Any other process that found the port is refused.
            if address == near.local_addr()? {
                break far;
            }
        };
        far.set_nonblocking(true)?;
        near.set_nodelay(true)?;
        let listener = local_listener(name, identity, session, loopback.local_addr()?);
        self.inboxes[0].put([ShardCommand::Accepted(
            mio::net::TcpStream::from_std(far),
            listener,
            None,
        )]);
        Ok(near)
    }
}

impl Host for Connector {
    fn attach(&self, arrival: Arrival, connect: &[u8]) -> (ClientEnd, usize) {
        let Arrival { name, identity, session, client_id, lends_thread } = arrival;
        let home = self.shared.shard_of(&client_id);
        let inbox = &self.inboxes[home];
        let shard = inbox.clone();
        let lending = self.lending.clone().filter(|_| lends_thread);
        // The shard is woken for so many next times, since the thread was needed for long; and for twice as many where it is so again.
        let (unlent, next_unlent) = (AtomicU32::new(0), AtomicU32::new(UNLENT_MIN));
        let (near, far) = pipe::pair(move |id, messages| {
            if !shard.leave([ShardCommand::Inside(id)]) {
                return;
            }
            let is_lent = messages.is_some_and(|messages| messages <= HELPED_MAX)
                && unlent.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err();
            match lending.as_ref().filter(|_| is_lent) {
                Some(lending) if lending.help(home) => {
                    let count = next_unlent.load(Relaxed);
                    unlent.store(count, Relaxed);
                    next_unlent.store(UNLENT_MAX.min(2 * count), Relaxed);
                }
                Some(_) => next_unlent.store(UNLENT_MIN, Relaxed),
                None => shard.wake(),
            }
        });
        let written = near.write(connect);
        let nowhere = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = local_listener(&name, identity, session, nowhere);
        inbox.put([ShardCommand::Attached(far, listener)]);
        (near, written)
    }

    fn forget(&self, client_id: &str) {
        let home = self.shared.shard_of(client_id);
        self.inboxes[home].put([ShardCommand::Forget(client_id.into())]);
    }

    fn filters<'a>(&'a self, client_id: &'a str) -> Later<'a, Vec<Arc<str>>> {
        let (answer, filters) = oneshot::channel();
        let home = self.shared.shard_of(client_id);
        self.inboxes[home].put([ShardCommand::Filters(client_id.into(), answer)]);
        Box::pin(async move { filters.await.unwrap_or_default() })
    }

    fn end_sessions(&self, which: IsMeant) -> Later<'_, usize> {
        let which = Which(which);
        let asked = self.ask_all(|answer| ShardCommand::EndSessions(which.clone(), Some(answer)));
        // A shard that has stopped has no sessions.
        Box::pin(async move { asked.await.into_iter().sum() })
    }

    fn mark_unknown_members(&self, which: IsMeant) -> Later<'_, ()> {
        let which = Which(which);
        let asked = self.ask_all(|answer| ShardCommand::UnknownMembers(which.clone(), answer));
        Box::pin(async move { drop(asked.await) })
    }

    fn sessions<'a>(
        &'a self,
        after: &'a str,
        limit: usize,
        which: IsMeant,
    ) -> Later<'a, Vec<SessionReport>> {
        let which = Which(which);
        let ask = |answer| ShardCommand::Sessions(which.clone(), after.into(), limit, answer);
        let asked = self.ask_all(ask);
        Box::pin(async move {
            let mut all = asked.await.concat();
            all.sort_unstable_by(|one, other| one.client_id.cmp(&other.client_id));
            all.truncate(limit);
            all
        })
    }

    fn retained_message(&self, now: Instant, topic: &str) -> Option<Arc<Message>> {
        self.shared.retained_message(now, topic)
    }

    fn filter_changes(&self) -> u64 {
        self.shared.subscription_changes()
    }

    fn all_filters(&self, which: IsMeant) -> Later<'_, Vec<Arc<str>>> {
        let which = Which(which);
        let asked = self.ask_all(|answer| ShardCommand::AllFilters(which.clone(), answer));
        Box::pin(async move {
            let mut all = asked.await.concat();
            all.sort_unstable();
            all.dedup();
            all
        })
    }

    fn hold(&self, bound: Duration, holder: mpsc_async::Sender<HeldSubscription>) {
        // Before the shards hold: a SUBACK without a holder leaves at once.
        self.holder.set(holder);
        self.inboxes.iter().for_each(|inbox| inbox.put([ShardCommand::HoldSubacks(Some(bound))]));
    }

    fn end_hold(&self) {
        if self.holder.end_if_gone() {
            self.inboxes.iter().for_each(|inbox| inbox.put([ShardCommand::HoldSubacks(None)]));
        }
    }

    fn release(&self, number: u64) {
        let (shard, number) = shard_of_suback(number);
        if let Some(inbox) = self.inboxes.get(shard) {
            inbox.put([ShardCommand::ReleaseSuback(number)]);
        }
    }

    fn watch(&self, watcher: ClientWatcher) {
        // Before the shards tell.
        self.watcher.set(watcher);
        self.inboxes.iter().for_each(|inbox| inbox.put([ShardCommand::AnnounceClients(true)]));
    }

    fn end_watch(&self) {
        if self.watcher.end_if_gone() {
            self.inboxes.iter().for_each(|inbox| inbox.put([ShardCommand::AnnounceClients(false)]));
        }
    }

    fn clients(&self) -> Later<'_, ClientList> {
        let asked = self.ask_all(ShardCommand::Clients);
        Box::pin(async move { asked.await.into_iter().collect() })
    }

    fn taken_over(&self, client_id: &str, began: Instant, ends_session: bool) {
        let home = self.shared.shard_of(client_id);
        self.inboxes[home].put([ShardCommand::TakenOver(client_id.into(), began, ends_session)]);
    }

    fn tell_in_sys(&self, prefix: String, counts: Counts) {
        self.shared.tell_in_sys(prefix, counts);
    }
}

/// For one connection of a part of this program.
fn local_listener(
    name: &str,
    identity: Identity,
    session: SessionConfig,
    address: SocketAddr,
) -> Arc<Listener> {
    let usual = Arc::new(SessionConfig { is_local: true, ..session });
    Arc::new(Listener::local(ListenerSettings {
        connections_max: 1,
        anonymous: true,
        identity: Some(identity),
        sessions: SessionSettings { usual, ..SessionSettings::default() },
        ..ListenerSettings::new(name, address)
    }))
}

/// Whether a shard has written all to the journal that it was handed. One that ends while the server stops never answers.
fn answer_of(answered: &Receiver<Written>, stopped: &Receiver<()>) -> Written {
    loop {
        match answered.recv_timeout(ANSWER_LOOK) {
            Ok(written) => return written,
            Err(RecvTimeoutError::Timeout) if stopped.try_recv() == Err(TryRecvError::Empty) => {}
            Err(_) => {
                let stopped = io::Error::other("the MQTT server stops");
                return Err(JournalError::Failed(Arc::new(stopped)));
            }
        }
    }
}

/// The sockets that all listeners listen on.
#[derive(Default)]
struct Listening {
    sockets: Vec<(Acceptor, Arc<Listener>)>,
    listeners: Vec<Arc<Listener>>,
    addresses: Vec<(Arc<str>, SocketAddr)>,
    paths: Vec<(Arc<str>, PathBuf)>,
    files: Vec<SocketFile>,
}

fn listen(listeners: Vec<ListenerSettings>) -> Result<Listening, ServerError> {
    let mut resolved = Vec::new();
    for listener in listeners {
        let found = super::listen::resolve(&listener.listen).map_err(|source| {
            let (listener, address) = (listener.name.clone(), listener.listen.clone());
            ServerError::Listen { listener, address, source }
        })?;
        resolved.push((listener, found));
    }
    let all: Vec<SocketAddr> = resolved.iter().flat_map(|(_, found)| found).copied().collect();
    let mut listening = Listening::default();
    for (settings, addresses) in resolved {
        let name = settings.name.clone();
        let failed = |address: ListenAddress, source| {
            let listener = name.clone();
            ServerError::Listen { listener, address, source }
        };
        let (address, mode) = (settings.listen.clone(), settings.socket_mode);
        let listener = Arc::new(Listener::new(settings));
        listening.listeners.push(listener.clone());
        if let ListenAddress::Unix(path) = &address {
            let (socket, file) =
                SocketFile::listen(path, mode).map_err(|source| failed(address.clone(), source))?;
            listening.sockets.push((Acceptor::Unix(socket), listener));
            listening.paths.push((name, path.clone()));
            listening.files.push(file);
            continue;
        }
        let sockets = listen::listen(&addresses, &all)
            .map_err(|(address, source)| failed(address.into(), source))?;
        for (socket, at) in sockets {
            listening.sockets.push((Acceptor::Tcp(socket), listener.clone()));
            listening.addresses.push((name.clone(), at));
        }
    }
    Ok(listening)
}

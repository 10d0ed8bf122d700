//! A node's broker in memory: for tests of services, without sockets, threads and the program.
//!
//! ```text
//!  Bus ─▶ pipe ─▶ Node (a lock) ─▶ Broker, one shard ─▶ pipe ─▶ Deliveries
//! ```
//!
//! The broker is the real one, with one shard. It works on the thread of whoever leaves something for it, at once, so that an answer is
//! there before the call that asked for it returns.

use std::{
    collections::HashMap,
    fmt,
    io::IoSlice,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tidegate_broker::{
    Acknowledged, Broker, BrokerConfig, BundleReader, ConnectRequest, ConnectionKey, Handed,
    Message, Output, SLICES_MAX, SessionConfig, SessionReport, Shared,
    spill::simulated::SimulatedSpill,
};
use tidegate_message::{AllowAll, Authorize, Identity, Instant};
use tidegate_process::clock;
use tidegate_wire::mqtt::{Connect, FixedHeader, QoS, ReasonCode};
use tokio::sync::mpsc;

use crate::{
    Arrival, Attachment, Bus, ClientList, ClientWatcher, Counts, Deliveries, HeldSubscription,
    Host, IsMeant, Later, Publication, Publisher, block,
    pipe::{self, ClientEnd, PipeId, ServerEnd},
};

/// Longest CONNECT of a service: its will and its properties.
const CONNECT_BYTES_MAX: usize = 1 << 20;
/// Bytes of messages that wait on the simulated disk.
pub const DISK_BYTES: u64 = 1 << 30;
/// Work of the broker that is due so soon is done at once.
const STEP: Duration = Duration::from_millis(2);
/// Longest wait of a [`Client`] for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The broker and its connections.
#[derive(Debug)]
pub struct Node(Arc<Work>);

#[derive(Debug)]
struct Work {
    shared: Arc<Shared>,
    /// Where messages wait that find no room in memory.
    disk: Arc<SimulatedSpill>,
    state: Mutex<State>,
}

struct State {
    broker: Broker,
    disk: Arc<SimulatedSpill>,
    connections: HashMap<PipeId, Connection>,
    by_key: HashMap<ConnectionKey, PipeId>,
    acknowledged: Vec<Acknowledged>,
    holder: Option<mpsc::Sender<HeldSubscription>>,
    watcher: Option<ClientWatcher>,
    used: Vec<Arc<Message>>,
    handed: Vec<Handed>,
}

struct Connection {
    end: ServerEnd,
    stage: Stage,
    input: Vec<u8>,
    /// Its publisher waits for a subscriber that is full.
    is_paused: bool,
    bundles: Vec<BundleReader>,
}

enum Stage {
    /// Its CONNECT is to come.
    Opening(Box<(Identity, SessionConfig)>),
    Open(ConnectionKey),
    /// The broker has ended it, and its last packets are to be read.
    Ending(ConnectionKey),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new(BrokerConfig::default(), Arc::new(AllowAll))
    }
}

impl Node {
    /// A broker with these settings, whose rights `authorize` decides.
    pub fn new(config: BrokerConfig, authorize: Arc<dyn Authorize>) -> Self {
        let now = clock::now();
        let shared = Shared::new(config, 1, authorize, now);
        let disk = Arc::new(SimulatedSpill::new(DISK_BYTES));
        let mut broker = Broker::new(shared.clone(), 0, 0, now);
        broker.set_spill(Some(disk.clone()));
        let state = State {
            broker,
            disk: disk.clone(),
            connections: HashMap::new(),
            by_key: HashMap::new(),
            acknowledged: Vec::new(),
            holder: None,
            watcher: None,
            used: Vec::new(),
            handed: Vec::new(),
        };
        Self(Arc::new(Work { shared, disk, state: Mutex::new(state) }))
    }

    /// The bus of this node.
    pub fn bus(&self) -> Bus {
        Bus::from(Self(self.0.clone()))
    }

    /// State that all shards share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The disk on which messages wait that find no room in memory, of [`DISK_BYTES`].
    pub fn disk(&self) -> &SimulatedSpill {
        &self.0.disk
    }

    /// A client that subscribes to these filters.
    ///
    /// # Panics
    /// It is not let in, or may not subscribe.
    pub fn client(&self, name: &str, filters: &[&str]) -> Client {
        let attachment = Attachment::new(Identity::anonymous(name), name);
        let attachment = filters.iter().fold(attachment, |all, filter| all.subscribe(*filter));
        let attached = self.bus().attach_blocking(attachment).expect("the client is let in");
        Client { publisher: attached.publisher, deliveries: attached.deliveries }
    }

    /// Ends all connections, as a node that stops does; later ones are refused.
    pub fn stop(&self) {
        self.0.turn(|state, now| {
            state.broker.shut_down();
            state.flush(now);
        });
    }

    /// Does what is due by now, such as `$SYS` and the ends of sessions. So does each call of a service.
    pub fn tick(&self) {
        self.0.turn(|state, now| state.flush(now));
    }
}

/// A client of a node in memory, for a thread.
#[derive(Debug)]
pub struct Client {
    publisher: Publisher,
    deliveries: Deliveries,
}

/// A message that a [`Client`] received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// Properties that are forwarded unaltered, encoded as in PUBLISH without their length.
    pub forwarded: Vec<u8>,
}

impl Client {
    /// Publishes with QoS 1; the broker's answer.
    ///
    /// # Panics
    /// It gives none.
    pub fn publish(&mut self, topic: &str, payload: &[u8]) -> ReasonCode {
        let qos = QoS::AtLeastOnce;
        self.send(&Publication { topic, payload, qos, ..Publication::default() })
    }

    /// The same with all that a message may have.
    ///
    /// # Panics
    /// As [`Client::publish`].
    pub fn send(&mut self, message: &Publication<'_>) -> ReasonCode {
        let number = self.publisher.push(message).expect("there is room");
        self.publisher.flush();
        loop {
            match self.publisher.next_answer().expect("the broker is there") {
                Some(answer) if answer.numbers.contains(&number) => return answer.reason,
                Some(_) => {}
                None => self.publisher.answered_within(PATIENCE).expect("it is answered"),
            }
        }
    }

    /// The next message, if one comes within `limit`; it is acknowledged.
    ///
    /// # Panics
    /// The broker has ended the connection.
    pub fn receive(&mut self, limit: Duration) -> Option<Received> {
        loop {
            if let Some(message) = self.deliveries.next_message().expect("the broker is there") {
                let received = Received {
                    topic: message.topic().to_owned(),
                    payload: message.payload().into_owned(),
                    forwarded: message.forwarded().to_vec(),
                };
                let id = message.packet_id();
                self.deliveries.acknowledge(id);
                self.deliveries.settle();
                return Some(received);
            }
            block::on(limit, self.deliveries.ready())?.expect("the broker is there");
        }
    }
}

impl Work {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn<T>(&self, work: impl FnOnce(&mut State, Instant) -> T) -> T {
        work(&mut self.state(), clock::now())
    }

    /// A client has left something.
    fn look(&self, id: PipeId) {
        self.turn(|state, now| {
            state.look(now, id);
            state.flush(now);
        });
    }
}

impl State {
    fn look(&mut self, now: Instant, id: PipeId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let left = connection.end.look(&mut self.acknowledged, &mut self.used);
        self.broker.reuse(&mut self.used);
        let acknowledged = mem::take(&mut self.acknowledged);
        if let Stage::Open(key) = connection.stage {
            self.broker.acknowledge_deliveries(now, key, &acknowledged);
            if left.takes_deliveries {
                self.broker.hold_up_deliveries(key, false);
            }
            if left.takes_packets {
                self.broker.writable(key);
            }
            if let Some(is_away) = left.is_away {
                self.broker.set_away(key, is_away);
            }
            if left.repeats_retained {
                self.broker.repeat_retained(now, key);
            }
        }
        let empties = connection.end.empties();
        let bundles = left.bundles.into_iter();
        connection.bundles.extend(bundles.map(|it| BundleReader::new(it, empties.clone())));
        self.read(now, id);
    }

    /// Messages and packets of a client, unless it has to wait.
    fn read(&mut self, now: Instant, id: PipeId) {
        let Some(connection) = self.connections.get_mut(&id).filter(|it| !it.is_paused) else {
            return;
        };
        if let Stage::Open(key) = connection.stage {
            for bundle in &mut connection.bundles {
                while !bundle.is_empty() {
                    // The connection is about to end, and what is left with it.
                    let Some(_) = self.broker.receive_bundle(now, key, bundle, usize::MAX) else {
                        break;
                    };
                }
            }
            connection.bundles.clear();
            self.broker.end_publications(now, key);
        }
        let mut buffer = [0; 4 << 10];
        let is_over = loop {
            match connection.end.read(&mut buffer) {
                Ok(0) => break true,
                Ok(count) => connection.input.extend_from_slice(&buffer[..count]),
                // There are no others: nothing more for now.
                Err(_) => break false,
            }
        };
        if let Stage::Opening(..) = connection.stage {
            self.open(now, id);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Stage::Open(key) = connection.stage {
            let taken = self.broker.receive(now, key, &connection.input);
            connection.input.drain(..taken);
        }
        if is_over {
            self.end(now, id);
        }
    }

    /// CONNECT, once it is whole.
    fn open(&mut self, now: Instant, id: PipeId) {
        let connection = self.connections.get_mut(&id).expect("the caller looked");
        let Ok(header) = FixedHeader::decode(&connection.input, CONNECT_BYTES_MAX) else {
            return self.end(now, id);
        };
        let Some(header) = header else { return };
        let Some(packet) = connection.input.get(..header.packet_bytes()) else { return };
        let Ok(connect) = Connect::decode(&packet[header.header_bytes..]) else {
            return self.end(now, id);
        };
        connection.input.drain(..header.packet_bytes());
        let Stage::Opening(arrival) = &connection.stage else { return };
        let (identity, session) = &**arrival;
        let request = ConnectRequest {
            connect,
            identity: identity.clone(),
            config: Arc::new(SessionConfig { is_local: true, ..session.clone() }),
            authentication_data: None,
        };
        match self.broker.connect(now, request) {
            Ok(key) => {
                connection.stage = Stage::Open(key);
                self.by_key.insert(key, id);
            }
            Err(refused) => {
                // A client that has asked for nothing yet has room for this.
                let _ = connection.end.write_vectored(&[IoSlice::new(&refused.connack)]);
                self.end(now, id);
            }
        }
    }

    fn end(&mut self, now: Instant, id: PipeId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Stage::Open(key) | Stage::Ending(key) = connection.stage {
            self.by_key.remove(&key);
            self.broker.closed(now, key);
        }
    }

    /// Hands connections all that the broker has for them.
    fn flush(&mut self, mut now: Instant) {
        loop {
            // Steps that the broker takes a millisecond apart, for the sake of others, are taken at once.
            while let Some(at) = self.broker.poll_timeout().filter(|at| *at <= now + STEP) {
                now = now.max(at);
                self.broker.handle_timeout(now);
            }
            while let Some((_, wanted, answers)) = self.disk.answer() {
                self.broker.handle_fetched(now, wanted, answers);
            }
            while let Some(key) = self.broker.poll_dirty() {
                self.write(now, key);
            }
            let Some(output) = self.broker.poll_output() else {
                if self.broker.has_dirty() {
                    continue;
                }
                return;
            };
            match output {
                Output::Close(key) => self.close(now, key),
                Output::Pause(key) => {
                    if let Some(id) = self.by_key.get(&key)
                        && let Some(connection) = self.connections.get_mut(id)
                    {
                        connection.is_paused = true;
                    }
                }
                Output::Resume(key) => {
                    if let Some(&id) = self.by_key.get(&key)
                        && let Some(connection) = self.connections.get_mut(&id)
                    {
                        connection.is_paused = false;
                        self.read(now, id);
                    }
                }
                Output::Subscribed(_, number, filters) => {
                    let holder = self.holder.as_ref();
                    let is_told = holder.is_some_and(|it| it.try_send((number, filters)).is_ok());
                    if !is_told {
                        self.broker.release_suback(number);
                    }
                }
                Output::Client(number, change) => {
                    self.watcher.iter().for_each(|it| it.tell(0, number, change.clone()));
                }
                // Services prove nothing, and what is denied to them is in their answers.
                Output::Auth(..) | Output::Denied(..) => {}
            }
        }
    }

    /// Writes what a connection is to get, as much as it takes.
    fn write(&mut self, now: Instant, key: ConnectionKey) {
        let Some(id) = self.by_key.get(&key) else { return };
        let Some(connection) = self.connections.get(id) else { return };
        loop {
            self.broker.take_deliveries(now, key, &mut self.handed);
            if self.handed.is_empty() {
                break;
            }
            if !connection.end.put(&mut self.handed) {
                self.broker.hold_up_deliveries(key, true);
                break;
            }
        }
        loop {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.broker.transmit(now, key, &mut slices);
            if count == 0 {
                break;
            }
            let Ok(written) = connection.end.write_vectored(&slices[..count]) else {
                self.broker.transmitted(now, key, 0, true);
                break;
            };
            self.broker.transmitted(now, key, written, false);
        }
        if matches!(connection.stage, Stage::Ending(_)) && self.broker.is_flushed(key) {
            let id = *id;
            self.end(now, id);
        }
    }

    /// The broker ends a connection, after its last packets.
    fn close(&mut self, now: Instant, key: ConnectionKey) {
        let Some(id) = self.by_key.get(&key) else { return };
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.stage = Stage::Ending(key);
        self.write(now, key);
    }
}

impl Host for Node {
    fn attach(&self, arrival: Arrival, connect: &[u8]) -> (ClientEnd, usize) {
        let Arrival { identity, session, .. } = arrival;
        let work: Weak<Work> = Arc::downgrade(&self.0);
        let (near, far) = pipe::pair(move |id, _| {
            if let Some(work) = work.upgrade() {
                work.look(id);
            }
        });
        let written = near.write(connect);
        let id = far.id();
        let connection = Connection {
            end: far,
            stage: Stage::Opening(Box::new((identity, session))),
            input: Vec::new(),
            is_paused: false,
            bundles: Vec::new(),
        };
        self.0.state().connections.insert(id, connection);
        self.0.look(id);
        (near, written)
    }

    fn forget(&self, client_id: &str) {
        self.0.turn(|state, now| {
            state.broker.forget(now, client_id);
            state.flush(now);
        });
    }

    fn filters<'a>(&'a self, client_id: &'a str) -> Later<'a, Vec<Arc<str>>> {
        let filters = self.0.state().broker.filters(client_id);
        Box::pin(std::future::ready(filters))
    }

    fn end_sessions(&self, which: IsMeant) -> Later<'_, usize> {
        let ended = self.0.turn(|state, now| {
            let ended = state.broker.end_sessions(now, &*which);
            state.flush(now);
            ended
        });
        Box::pin(std::future::ready(ended))
    }

    fn mark_unknown_members(&self, which: IsMeant) -> Later<'_, ()> {
        self.0.turn(|state, now| state.broker.mark_unknown_members(now, &*which));
        Box::pin(std::future::ready(()))
    }

    fn sessions<'a>(
        &'a self,
        after: &'a str,
        limit: usize,
        which: IsMeant,
    ) -> Later<'a, Vec<SessionReport>> {
        let mut sessions = self.0.state().broker.sessions_after(after, limit, &*which);
        sessions.sort_unstable_by(|one, other| one.client_id.cmp(&other.client_id));
        Box::pin(std::future::ready(sessions))
    }

    fn retained_message(&self, now: Instant, topic: &str) -> Option<Arc<Message>> {
        self.0.shared.retained_message(now, topic)
    }

    fn filter_changes(&self) -> u64 {
        self.0.shared.subscription_changes()
    }

    fn all_filters(&self, which: IsMeant) -> Later<'_, Vec<Arc<str>>> {
        let mut filters = self.0.state().broker.all_filters(&*which);
        filters.sort_unstable();
        Box::pin(std::future::ready(filters))
    }

    fn hold(&self, bound: Duration, holder: mpsc::Sender<HeldSubscription>) {
        let mut state = self.0.state();
        state.broker.hold_subacks(Some(bound));
        state.holder = Some(holder);
    }

    fn end_hold(&self) {
        self.0.turn(|state, now| {
            if state.holder.as_ref().is_some_and(mpsc::Sender::is_closed) {
                state.holder = None;
                state.broker.hold_subacks(None);
                state.flush(now);
            }
        });
    }

    fn release(&self, number: u64) {
        self.0.turn(|state, now| {
            state.broker.release_suback(number);
            state.flush(now);
        });
    }

    fn watch(&self, watcher: ClientWatcher) {
        let mut state = self.0.state();
        state.watcher = Some(watcher);
        state.broker.announce_clients(true);
    }

    fn end_watch(&self) {
        let mut state = self.0.state();
        if state.watcher.take_if(|watcher| watcher.is_gone()).is_some() {
            state.broker.announce_clients(false);
        }
    }

    fn clients(&self) -> Later<'_, ClientList> {
        let list = std::iter::once((0, self.0.state().broker.clients())).collect();
        Box::pin(std::future::ready(list))
    }

    fn taken_over(&self, client_id: &str, began: Instant, ends_session: bool) {
        self.0.turn(|state, now| {
            state.broker.taken_over(now, client_id, began, ends_session);
            state.flush(now);
        });
    }

    fn tell_in_sys(&self, prefix: String, counts: Counts) {
        self.0.shared.tell_in_sys(prefix, counts);
    }
}

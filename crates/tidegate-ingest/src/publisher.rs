//! Takes the messages of tasks: a task that has the connection to the broker.
//!
//! ```text
//!  request ─▶ publish(messages) ─▶ a channel ─▶ Client ─▶ broker
//!          ◀─ a reason for each ◀──────────────────────────┘
//! ```
//!
//! Always true: a message is answered when the broker has taken it, which is on disk where that is asked of it; messages of one
//! call arrive in their order; a connection that breaks is opened again, and callers that waited for an answer learn of it.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use tidegate_broker::SessionConfig;
use tidegate_message::{Backoff, Identity, IdentityKind};
use tidegate_process::clock;
use tidegate_server::server::Connector;
use tidegate_wire::mqtt::{
    Connect, Disconnect, EncodeError, QoS, ReasonCode, RetainHandling, SubscribeFilter, Version,
    client::{self, Client, ClientError, Config, ReceiveBuffer, SendBuffer, SubscribeError},
};
use tokio::{
    net::TcpStream,
    sync::{mpsc, mpsc::error::TrySendError, oneshot},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::message::Message;

/// Calls that wait for the connection; a caller that finds as many waits.
const CALLS_MAX: usize = 1024;
/// Messages from the broker that wait for who follows them; then the connection is not read from, and the broker's queue holds
/// them by its own rules.
const ARRIVED_MAX: usize = 1024;
/// Exchanges that are open at a time.
const WINDOW: NonZeroU16 = NonZeroU16::new(1024).expect("not zero");
/// Bytes that are encoded ahead of the socket.
const OUTPUT_BYTES: usize = 256 << 10;
const READ_BYTES: usize = 16 << 10;
/// Waits between two tries to connect.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(200);

/// The broker is not there: it stops, or the connection broke before it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker did not answer; send it again")]
pub(super) struct Unanswered;

/// The broker's answers to the messages of a call, once it has answered all.
pub(super) type Answered = oneshot::Receiver<Vec<ReasonCode>>;

/// Hands messages to the broker. Clones use the same connection.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    calls: mpsc::Sender<Call>,
}

#[derive(Debug)]
enum Call {
    Publish { messages: Vec<Message>, answer: oneshot::Sender<Vec<ReasonCode>> },
    Subscribe { filter: String, answer: oneshot::Sender<Vec<ReasonCode>> },
    Unsubscribe { filter: String },
}

impl Publisher {
    /// Publishes them in their order; returns the broker's answer to each.
    ///
    /// # Errors
    /// [`Unanswered`]: some of them may have been taken.
    ///
    /// # Cancel safety
    /// Not cancel safe: messages handed on are published, and their answers lost.
    pub(super) async fn publish(
        &self,
        messages: Vec<Message>,
    ) -> Result<Vec<ReasonCode>, Unanswered> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let (answer, answered) = oneshot::channel();
        let call = Call::Publish { messages, answer };
        self.calls.send(call).await.map_err(|_| Unanswered)?;
        answered.await.map_err(|_| Unanswered)
    }

    /// Publishes them, if there is room on the way now.
    pub(super) fn try_publish(&self, messages: Vec<Message>) -> Option<Answered> {
        let (answer, answered) = oneshot::channel();
        self.calls.try_send(Call::Publish { messages, answer }).is_ok().then_some(answered)
    }

    /// Asks for the messages of a topic, and for what is retained there; the answer is the broker's.
    ///
    /// # Errors
    /// The topic back, if there is no room on the way now.
    pub(super) fn try_subscribe(&self, filter: String) -> Result<Answered, String> {
        let (answer, answered) = oneshot::channel();
        self.try_send(Call::Subscribe { filter, answer }).map(|()| answered)
    }

    /// Asks for them no more.
    ///
    /// # Errors
    /// The topic back, if there is no room on the way now.
    pub(super) fn try_unsubscribe(&self, filter: String) -> Result<(), String> {
        self.try_send(Call::Unsubscribe { filter })
    }

    fn try_send(&self, call: Call) -> Result<(), String> {
        match self.calls.try_send(call) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(
                Call::Subscribe { filter, .. } | Call::Unsubscribe { filter },
            )) => Err(filter),
            // Without the task there are no subscriptions to report.
            Err(_) => Ok(()),
        }
    }
}

/// The task behind publishers.
#[derive(Debug)]
pub(super) struct PublisherTask {
    pub(super) connector: Connector,
    /// Of the listener, for logs and the client's name.
    pub(super) name: Arc<str>,
    /// As whom the broker sees it; the node itself where each message was allowed before.
    pub(super) identity: Option<Identity>,
    pub(super) session: SessionConfig,
    calls: mpsc::Receiver<Call>,
    arrived: mpsc::Sender<Message>,
    followed: BTreeSet<String>,
}

/// The answers to one call that are waited for.
#[derive(Debug)]
struct Waiting {
    reasons: Vec<ReasonCode>,
    left: usize,
    answer: Option<oneshot::Sender<Vec<ReasonCode>>>,
}

/// Which message of which call.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    call: u64,
    at: usize,
}

/// Calls whose messages are on their way.
#[derive(Debug, Default)]
struct Calls {
    /// The oldest first, the number of which is `first`.
    waiting: VecDeque<Waiting>,
    first: u64,
    /// Requests that are not encoded yet.
    unsent: VecDeque<(Ticket, Unsent)>,
}

#[derive(Debug)]
enum Unsent {
    Message(Message),
    Subscribe(String),
    Unsubscribe(String),
}

impl PublisherTask {
    /// A task, what hands messages to it, and what arrives by its subscriptions.
    pub(super) fn new(
        connector: Connector,
        name: Arc<str>,
        identity: Option<Identity>,
        session: SessionConfig,
    ) -> (Self, Publisher, mpsc::Receiver<Message>) {
        let (sender, calls) = mpsc::channel(CALLS_MAX);
        let (arrived, arrivals) = mpsc::channel(ARRIVED_MAX);
        let followed = BTreeSet::new();
        let task = Self { connector, name, identity, session, calls, arrived, followed };
        (task, Publisher { calls: sender }, arrivals)
    }

    /// Serves until `stop`; by then each message handed on has been answered, or reported as unanswered.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut retry = RETRY;
        while !stop.is_cancelled() {
            match self.serve(&stop).await {
                Ok(()) => return,
                Err(error) => {
                    let error = tidegate_message::error_chain(&error);
                    tracing::warn!(ingest = %self.name, %error, "no connection to the broker");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(retry.next_wait()) => {}
            }
        }
    }

    async fn serve(&mut self, stop: &CancellationToken) -> Result<(), Broken> {
        let client_id = format!("ingest/{}", self.name);
        let identity = self.identity.clone();
        let identity = identity
            .unwrap_or_else(|| Identity::new(IdentityKind::Internal, &client_id, &client_id));
        let socket = self.connector.open(&client_id, identity, self.session.clone())?;
        socket.set_nonblocking(true)?;
        let socket = TcpStream::from_std(socket)?;
        let mut connection = Connection::new(&self.session);
        connection.client.connect(clock::now(), &Connect::new(Version::V5, client_id))?;
        let mut calls = Calls::default();
        // Former observations continue; the newest state of each comes again.
        calls.queue(self.followed.iter().cloned().map(Unsent::Subscribe).collect(), None);
        loop {
            // Little is held of who is not in yet.
            calls.send(&mut connection);
            connection.output.fill(&mut connection.client, clock::now());
            // Each is cancel safe: readiness is asked, and looked at again; a permit that is dropped is given back.
            let may_read = self.arrived.capacity() > 0;
            tokio::select! {
                () = stop.cancelled() => {
                    connection.client.disconnect(Disconnect::default())?;
                    let farewell = async {
                        while connection.waiting_bytes() > 0 {
                            socket.writable().await?;
                            connection.write(&socket)?;
                        }
                        Ok::<(), Broken>(())
                    };
                    // A caller that does not hear it sees the connection end.
                    let _ = tokio::time::timeout(FAREWELL, farewell).await;
                    return Ok(());
                }
                call = self.calls.recv(), if calls.unsent.is_empty() && connection.waiting_bytes() < OUTPUT_BYTES => {
                    match call {
                        Some(call) => calls.begin(call, &mut self.followed),
                        None => return Ok(()),
                    }
                }
                ready = socket.writable(), if !connection.output.is_empty() => {
                    ready?;
                    connection.write(&socket)?;
                }
                permit = self.arrived.reserve(), if !may_read => match permit {
                    Ok(permit) => drop(permit),
                    Err(_) => return Ok(()),
                },
                ready = socket.readable(), if may_read => {
                    ready?;
                    connection.read(&socket)?;
                    let Connection { client, input, .. } = &mut connection;
                    let mut bytes = input.bytes();
                    while let Some(event) = client.receive(&mut bytes)? {
                        match event {
                            client::Event::Acknowledged { token, reason, .. } => {
                                calls.answered(token, reason);
                            }
                            client::Event::Subscribed { token, reasons }
                            | client::Event::Unsubscribed { token, reasons } => {
                                let reason = reasons.first().copied();
                                let reason = reason.unwrap_or(ReasonCode::UNSPECIFIED_ERROR);
                                calls.answered(token, reason);
                            }
                            // Waits where more came at once than there was room for.
                            client::Event::Message(message) => {
                                if self.arrived.send(Message::of(&message)).await.is_err() {
                                    return Ok(());
                                }
                            }
                            client::Event::Connected { .. } | client::Event::Received { .. } => {}
                        }
                    }
                    let left = bytes.len();
                    input.keep(left);
                }
            }
        }
    }
}

/// The connection to the broker, without its socket.
#[derive(Debug)]
struct Connection {
    client: Client<Ticket>,
    input: ReceiveBuffer,
    output: SendBuffer,
}

impl Connection {
    fn new(session: &SessionConfig) -> Self {
        let packet_bytes_max = session.packet_bytes_max;
        let config = Config { inflight_max: WINDOW, packet_bytes_max, ..Config::default() };
        let (input, output) = (ReceiveBuffer::default(), SendBuffer::default());
        Self { client: Client::new(config), input, output }
    }

    /// Bytes that are encoded and not the kernel's.
    fn waiting_bytes(&self) -> usize {
        self.client.output_bytes() + self.output.bytes().len()
    }

    fn write(&mut self, socket: &TcpStream) -> io::Result<()> {
        self.output.fill(&mut self.client, clock::now());
        match socket.try_write(self.output.bytes()) {
            Ok(count) => self.output.wrote(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn read(&mut self, socket: &TcpStream) -> Result<(), Broken> {
        let spare = self.input.spare();
        spare.reserve(READ_BYTES);
        match socket.try_read_buf(spare) {
            Ok(0) => Err(Broken::Closed),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn subscribe(&mut self, filter: String, ticket: Ticket) -> Result<(), SubscribeError> {
        let filter = SubscribeFilter {
            filter,
            maximum_qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        self.client.subscribe(vec![filter], None, ticket).map(drop)
    }
}

impl Calls {
    /// Queues what a call asks for, and notes which topics are followed.
    fn begin(&mut self, call: Call, followed: &mut BTreeSet<String>) {
        match call {
            Call::Publish { messages, answer } => {
                self.queue(messages.into_iter().map(Unsent::Message).collect(), Some(answer));
            }
            Call::Subscribe { filter, answer } => {
                followed.insert(filter.clone());
                self.queue(vec![Unsent::Subscribe(filter)], Some(answer));
            }
            Call::Unsubscribe { filter } => {
                followed.remove(&filter);
                self.queue(vec![Unsent::Unsubscribe(filter)], None);
            }
        }
    }

    fn queue(&mut self, asked: Vec<Unsent>, answer: Option<oneshot::Sender<Vec<ReasonCode>>>) {
        if asked.is_empty() {
            return;
        }
        let call = self.first + self.waiting.len() as u64;
        let left = asked.len();
        let tickets = (0..left).map(|at| Ticket { call, at });
        self.unsent.extend(tickets.zip(asked));
        let reasons = vec![ReasonCode::UNSPECIFIED_ERROR; left];
        self.waiting.push_back(Waiting { reasons, left, answer });
    }

    fn send(&mut self, connection: &mut Connection) {
        while connection.client.room().min(connection.client.request_room()) > 0
            && connection.waiting_bytes() < OUTPUT_BYTES
            && let Some((ticket, unsent)) = self.unsent.pop_front()
        {
            let client = &mut connection.client;
            let refused = match unsent {
                Unsent::Message(message) => {
                    message.publish(client, ticket).map_err(|error| error.reason())
                }
                Unsent::Subscribe(filter) => {
                    connection.subscribe(filter, ticket).map_err(|error| error.reason())
                }
                Unsent::Unsubscribe(filter) => {
                    let asked = client.unsubscribe(vec![filter], ticket);
                    asked.map(drop).map_err(|error| error.reason())
                }
            };
            if let Err(reason) = refused {
                self.answered(ticket, reason);
            }
        }
    }

    fn answered(&mut self, ticket: Ticket, reason: ReasonCode) {
        let at = usize::try_from(ticket.call - self.first).expect("it is one of those that wait");
        let waiting = &mut self.waiting[at];
        waiting.reasons[ticket.at] = reason;
        waiting.left -= 1;
        if waiting.left == 0
            && let Some(answer) = waiting.answer.take()
        {
            // The caller may have gone.
            let _ = answer.send(std::mem::take(&mut waiting.reasons));
        }
        while self.waiting.front().is_some_and(|first| first.left == 0) {
            self.waiting.pop_front();
            self.first += 1;
        }
    }
}

/// Why the connection to the broker ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("its socket failed")]
    Io(#[from] io::Error),
    #[error("the broker closed it")]
    Closed,
    #[error("a packet for the broker cannot be written")]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Protocol(#[from] ClientError),
}

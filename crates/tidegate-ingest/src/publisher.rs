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
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tidegate_bus::{
    Attached, Attachment, Bus, BusError, Deliveries, Publisher as BusPublisher, RequestAnswer,
    SessionConfig, part_id,
};
use tidegate_message::{Backoff, Identity, IdentityKind};
use tidegate_wire::mqtt::{QoS, ReasonCode, RetainHandling, SubscribeFilter};
use tokio::{
    sync::{mpsc, mpsc::error::TrySendError, oneshot},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::message::Message;

/// Calls that wait for the connection; a caller that finds as many waits.
const CALLS_MAX: usize = 1024;
/// Messages from the broker that wait for who follows them; then no more are taken, and the broker's queue holds
/// them by its own rules.
const ARRIVED_MAX: usize = 1024;
/// Messages that the broker has not answered.
const WINDOW: u64 = 1024;
/// Waits between two tries to connect.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

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
    pub(super) bus: Bus,
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
    /// Messages and requests that are not published, or asked for, yet.
    unsent: VecDeque<(Ticket, Unsent)>,
    /// Those that are and that the broker has not answered, by their numbers at the bus.
    messages: BTreeMap<u64, Ticket>,
    requests: BTreeMap<u64, Ticket>,
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
        bus: Bus,
        name: Arc<str>,
        identity: Option<Identity>,
        session: SessionConfig,
    ) -> (Self, Publisher, mpsc::Receiver<Message>) {
        let (sender, calls) = mpsc::channel(CALLS_MAX);
        let (arrived, arrivals) = mpsc::channel(ARRIVED_MAX);
        let followed = BTreeSet::new();
        let task = Self { bus, name, identity, session, calls, arrived, followed };
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

    async fn serve(&mut self, stop: &CancellationToken) -> Result<(), BusError> {
        let client_id = part_id("ingest", &self.name);
        let identity = self.identity.clone();
        let identity = identity
            .unwrap_or_else(|| Identity::new(IdentityKind::Internal, &client_id, &client_id));
        let session = self.session.clone();
        let attachment = Attachment { session, ..Attachment::new(identity, client_id) };
        let attached = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            attached = self.bus.attach(attachment) => attached?,
        };
        let Attached { mut publisher, mut deliveries, .. } = attached;
        let mut calls = Calls::default();
        // Former observations continue; the newest state of each comes again.
        calls.queue(self.followed.iter().cloned().map(Unsent::Subscribe).collect(), None);
        loop {
            calls.send(&mut publisher, &mut deliveries)?;
            // Each is cancel safe: what is there is looked at again; a permit that is dropped is given back.
            let may_take = self.arrived.capacity() > 0;
            tokio::select! {
                () = stop.cancelled() => return publisher.detach(ReasonCode::SUCCESS),
                call = self.calls.recv(), if calls.unsent.is_empty() => match call {
                    Some(call) => calls.begin(call, &mut self.followed),
                    None => return Ok(()),
                },
                permit = self.arrived.reserve(), if !may_take => match permit {
                    Ok(permit) => drop(permit),
                    Err(_) => return Ok(()),
                },
                answered = publisher.answered() => answered?,
                ready = deliveries.ready(), if may_take => ready?,
            }
            while let Some(answer) = publisher.next_answer()? {
                calls.published(answer.numbers.start, answer.reason);
            }
            while let Some(RequestAnswer { request, reasons }) = deliveries.next_answer()? {
                let reason = reasons.first().copied().unwrap_or(ReasonCode::UNSPECIFIED_ERROR);
                calls.asked(request, reason);
            }
            while self.arrived.capacity() > 0
                && let Some(message) = deliveries.next_message()?
            {
                if self.arrived.try_send(Message::of(&message)).is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// The newest state of a topic and what comes after it, once each.
fn followed(filter: String) -> SubscribeFilter {
    SubscribeFilter {
        filter,
        maximum_qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
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

    /// Publishes and asks for what there is room for.
    fn send(
        &mut self,
        publisher: &mut BusPublisher,
        deliveries: &mut Deliveries,
    ) -> Result<(), BusError> {
        while publisher.open() < WINDOW
            && publisher.has_room()
            && deliveries.request_room() > 0
            && let Some((ticket, unsent)) = self.unsent.pop_front()
        {
            match unsent {
                Unsent::Message(message) => match message.publish(publisher) {
                    Ok(number) => drop(self.messages.insert(number, ticket)),
                    Err(error) => self.answered(ticket, error.reason()),
                },
                Unsent::Subscribe(filter) => {
                    publisher.flush();
                    self.ask(deliveries.subscribe(vec![followed(filter)]), ticket)?;
                }
                Unsent::Unsubscribe(filter) => {
                    publisher.flush();
                    self.ask(deliveries.unsubscribe(vec![filter]), ticket)?;
                }
            }
        }
        publisher.flush();
        Ok(())
    }

    fn ask(&mut self, asked: Result<u64, BusError>, ticket: Ticket) -> Result<(), BusError> {
        match asked {
            Ok(request) => drop(self.requests.insert(request, ticket)),
            Err(BusError::Subscribe(error)) => self.answered(ticket, error.reason()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The broker's answer to a message.
    fn published(&mut self, number: u64, reason: ReasonCode) {
        if let Some(ticket) = self.messages.remove(&number) {
            self.answered(ticket, reason);
        }
    }

    /// The broker's answer to a request.
    fn asked(&mut self, request: u64, reason: ReasonCode) {
        if let Some(ticket) = self.requests.remove(&request) {
            self.answered(ticket, reason);
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

//! The bus: how a service of this program reaches the node's broker, and the only way that it needs.
//!
//! ```text
//!  Bus::attach(identity, client identifier, filters, limits)
//!     ├─▶ Publisher ── batches ──▶ shard of the session ─▶ routes, queues, journal, other shards
//!     │       ◀── an Answer for each message, or one for many ──┘
//!     └─▶ Deliveries ◀── messages as the broker holds them ── queue of the session
//!             └── acknowledgements, many at a time ──▶
//! ```
//!
//! A service is a client like any other: it has an identity, whose rights are asked for each topic that it publishes to and each filter
//! that it subscribes to; a session, with its budget, overflow policy, quality of service and journal, which ends with the connection or
//! outlives it; and a client identifier, whose newer connection takes the session over. The difference is the way: no socket is
//! opened, and messages are not encoded as packets. SUBSCRIBE, UNSUBSCRIBE, DISCONNECT and their answers, which are few, are packets in
//! memory, made and read by the one MQTT client of this house ([`tidegate_wire::mqtt::client`]).
//!
//! A batch costs one lock and, if the shard sleeps, one wake-up; deliveries come the same way back, as many as there are.
//!
//! # Always true
//!
//! - An answer comes when all that the broker promises is true: with a journal, once the message is on disk; for QoS 1, once every
//!   session that it is for has accepted it.
//! - Messages of one publisher are published in their order, before a [`Publisher::detach`] that follows them.
//! - Memory is bounded by the slow side: messages that were published and not answered by [`OPEN_MAX`] and [`OPEN_BYTES_MAX`],
//!   deliveries that a service does not take by 256 KiB; the rest waits in the broker, on the terms of its session.
//! - A service that is let in no longer, or whose session another connection takes over, learns why by a [`BusError`].

pub mod block;
mod clients;
mod deliveries;
mod exchanges;
mod host;
mod line;
pub mod memory;
pub mod pipe;
mod publisher;
mod subscriptions;

use std::{num::NonZeroU16, sync::Arc, time::Duration};

// Services need nothing else of the broker.
use tidegate_broker::Message as HeldMessage;
pub use tidegate_broker::{
    Bundle, ClientChange, ClientState, Delivery, Overflow, Publication as BundledPublication,
    SessionConfig, SessionReport, message::seconds_left, part_id,
};
use tidegate_message::Identity;
use tidegate_process::clock;
pub use tidegate_wire::mqtt::client::{Publication, PublishError};
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, EncodeError, PacketId, QoS, ReasonCode, RetainHandling,
    SubscribeFilter, Version, Will,
    client::{ClientError, SubscribeError},
};

use self::line::Line;
pub use self::{
    clients::{ClientList, ClientWatch, ClientWatcher, Watched},
    deliveries::{Deliveries, Message, RequestAnswer},
    host::{Arrival, Counts, HeldSubscription, Host, IsMeant, Later},
    publisher::{Answer, OPEN_BYTES_MAX, OPEN_MAX, Publisher},
    subscriptions::{Filters, Subscription, Subscriptions},
};

/// Longest wait for the broker to let a service in and to answer its subscriptions.
const PATIENCE: Duration = Duration::from_secs(10);

/// The node's broker, for services of this program. Clones are of the same broker.
#[derive(Clone, Debug)]
pub struct Bus {
    host: Arc<dyn Host>,
}

impl<H: Host + 'static> From<H> for Bus {
    fn from(host: H) -> Self {
        Self { host: Arc::new(host) }
    }
}

/// A service that attaches to the bus: who it is, what it wants and within which limits.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// For logs. Default the client identifier.
    pub name: String,
    /// As whom rules judge it.
    pub identity: Identity,
    /// Its session goes by it: of [`part_id`], so that no client from outside can take it.
    pub client_id: String,
    /// The filters that it subscribes to. Default none.
    pub filters: Vec<SubscribeFilter>,
    /// Whether subscriptions to other filters, of an earlier start, end first. Default false.
    pub ends_others: bool,
    /// The limits of its session, and how its messages are answered: each by itself, or, with
    /// [`acknowledges_through`](SessionConfig::acknowledges_through) and [`ends_at_refusal`](SessionConfig::ends_at_refusal), many by one
    /// [`Answer`].
    pub session: SessionConfig,
    /// How long the session outlives the connection, in seconds; 0 ends it, `u32::MAX` keeps it for good. Default 0.
    pub session_expiry: u32,
    /// Messages of QoS 1 that may be delivered and not acknowledged. Default 65,535; bytes are bounded by the session.
    pub receive_maximum: Option<NonZeroU16>,
    /// Whether few messages are published on the thread that hands them over, where that of the broker sleeps: it need not be woken up, which costs
    /// more than they do. That thread then holds no lock, and can spare the time that few messages take, usually some 50 µs. Default false.
    pub lends_thread: bool,
    /// Published when the connection ends in another way than by [`Publisher::detach`] with success. Default none.
    pub will: Option<Will>,
}

impl Attachment {
    /// A service whose session ends with its connection, under the usual limits, and that subscribes to nothing.
    pub fn new(identity: Identity, client_id: impl Into<String>) -> Self {
        let client_id = client_id.into();
        Self {
            name: client_id.clone(),
            identity,
            client_id,
            filters: Vec::new(),
            ends_others: false,
            session: SessionConfig::default(),
            session_expiry: 0,
            receive_maximum: None,
            lends_thread: false,
            will: None,
        }
    }

    /// The same with a subscription: QoS 1 at most, without what it publishes itself, with retained messages when it is new.
    #[must_use]
    pub fn subscribe(mut self, filter: impl Into<String>) -> Self {
        self.filters.push(filter_of(filter));
        self
    }

    fn connect(&self) -> Connect {
        Connect {
            clean_start: self.session_expiry == 0,
            will: self.will.clone(),
            properties: ConnectProperties {
                session_expiry: Some(self.session_expiry),
                receive_maximum: self.receive_maximum,
                maximum_packet_size: Some(line::PACKET_BYTES_MAX),
                ..ConnectProperties::default()
            },
            ..Connect::new(Version::V5, self.client_id.clone())
        }
    }
}

/// The subscription of a service: QoS 1 at most, without what it publishes itself unless it is a shared one (MQTT-3.8.3-4), retain flags as
/// they were published, retained messages once, when it is new.
pub fn filter_of(filter: impl Into<String>) -> SubscribeFilter {
    let filter = filter.into();
    SubscribeFilter {
        no_local: !filter.starts_with("$share/"),
        filter,
        maximum_qos: QoS::AtLeastOnce,
        retain_as_published: true,
        retain_handling: RetainHandling::SendIfNew,
    }
}

/// A service that is attached. It is detached when both halves are dropped.
#[derive(Debug)]
pub struct Attached {
    /// For messages to the broker.
    pub publisher: Publisher,
    /// For messages from it.
    pub deliveries: Deliveries,
    /// Whether the session was there before.
    pub was_there: bool,
}

/// Why a service is not attached, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// The broker does not let it in.
    #[error("this node's broker refuses the connection: {0}")]
    Refused(ReasonCode),
    /// It may not subscribe to one of its filters.
    #[error("this node's broker refuses the subscription to {filter:?}: {reason}")]
    Subscription {
        /// To which filter.
        filter: String,
        /// Why.
        reason: ReasonCode,
    },
    /// It may not publish there, or its message finds no room.
    #[error("this node's broker refuses the message to {topic:?}: {reason}")]
    Message {
        /// To which topic.
        topic: String,
        /// Why.
        reason: ReasonCode,
    },
    /// A message that cannot be published, or not now.
    #[error("a message for this node's broker cannot be published")]
    Publish(#[from] PublishError),
    /// The broker ended the connection.
    #[error("this node's broker ended the connection: {reason}")]
    Disconnected {
        /// Why.
        reason: ReasonCode,
        /// More for people.
        text: Option<String>,
    },
    /// The broker ended the connection without a reason: it has stopped.
    #[error("this node's broker closed the connection")]
    Closed,
    /// The broker did not answer in time.
    #[error("this node's broker did not answer within {} s", PATIENCE.as_secs())]
    Silent,
    /// An answer to a message that was not published.
    #[error("this node's broker answered message {0}, which was not published")]
    Stray(PacketId),
    /// The broker's packets are not those of a server.
    #[error("this node's broker broke the protocol")]
    Protocol(#[source] ClientError),
    /// CONNECT or DISCONNECT cannot be encoded.
    #[error("a packet for this node's broker cannot be encoded")]
    Encode(#[from] EncodeError),
    /// A subscription cannot be asked for.
    #[error("this node's broker cannot be asked for a subscription")]
    Subscribe(#[from] SubscribeError),
}

impl From<ClientError> for BusError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused { reason, .. } => Self::Refused(reason),
            ClientError::Disconnected { reason, reason_string: text } => {
                Self::Disconnected { reason, text }
            }
            error => Self::Protocol(error),
        }
    }
}

impl Bus {
    /// Attaches a service, which is let in and subscribed by then. Where the broker has no room for a subscription that the session did not
    /// have, [`Deliveries::ready`] asks again until it has: what waits in the session needs no room to be delivered.
    ///
    /// # Errors
    /// [`BusError`]: what it has no right to is named.
    pub async fn attach(&self, attachment: Attachment) -> Result<Attached, BusError> {
        let attached = tokio::time::timeout(PATIENCE, self.attach_without_limit(attachment));
        attached.await.map_err(|_| BusError::Silent)?
    }

    /// The same for a thread that has no tasks.
    ///
    /// # Errors
    /// As [`Bus::attach`].
    pub fn attach_blocking(&self, attachment: Attachment) -> Result<Attached, BusError> {
        block::on(PATIENCE, self.attach_without_limit(attachment)).ok_or(BusError::Silent)?
    }

    async fn attach_without_limit(&self, attachment: Attachment) -> Result<Attached, BusError> {
        let connect = attachment.connect();
        let Attachment {
            name,
            identity,
            client_id,
            filters,
            ends_others,
            session,
            lends_thread,
            ..
        } = attachment;
        let is_through = session.acknowledges_through && session.ends_at_refusal;
        let session = SessionConfig { hands_out: true, ..session };
        let line = Line::open(&connect, |bytes| {
            let (name, client_id) = (name.clone(), client_id.clone());
            self.host.attach(Arrival { name, identity, session, client_id, lends_thread }, bytes)
        })?;
        let was_there = line.greet().await?;
        if was_there && ends_others {
            let mut others = self.host.filters(&client_id).await;
            others.retain(|had| !filters.iter().any(|asked| asked.filter == **had));
            if !others.is_empty() {
                let request =
                    line.unsubscribe(others.iter().map(|had| had.to_string()).collect())?;
                line.answer(request).await?;
            }
        }
        let mut lacking = Vec::new();
        if !filters.is_empty() {
            let request = line.subscribe(filters.clone())?;
            let reasons = line.answer(request).await?;
            for (asked, reason) in filters.into_iter().zip(reasons) {
                if was_there && reason == ReasonCode::QUOTA_EXCEEDED {
                    tracing::warn!(client = %client_id, filter = %asked.filter, %reason,
                        "no room for a subscription of a part of this node: it takes what waits, and asks again");
                    lacking.push(asked);
                } else if reason.is_failure() {
                    return Err(BusError::Subscription { filter: asked.filter, reason });
                }
            }
        }
        let line = Arc::new(line);
        let publisher = Publisher::new(line.clone(), is_through);
        Ok(Attached { publisher, deliveries: Deliveries::new(line, lacking), was_there })
    }

    /// Ends the session of a service that does not come again.
    pub fn forget(&self, client_id: &str) {
        self.host.forget(client_id);
    }

    /// The filters of a client's session; none if it has no session, or the broker has ended.
    pub async fn filters(&self, client_id: &str) -> Vec<Arc<str>> {
        self.host.filters(client_id).await
    }

    /// Ends the sessions of clients that `which` is true of, of their identifier and of whose they are; how many there were.
    pub async fn end_sessions(
        &self,
        which: impl Fn(&str, &Identity) -> bool + Send + Sync + 'static,
    ) -> usize {
        self.host.end_sessions(Arc::new(which)).await
    }

    /// Members of the fabric whose sessions `is_unknown` is true of are not known here, and all others are. The session of an unknown one
    /// refuses no publisher, and ends after the time for which sessions of parts are kept that are gone, unless its member comes.
    pub async fn mark_unknown_members(
        &self,
        is_unknown: impl Fn(&str, &Identity) -> bool + Send + Sync + 'static,
    ) {
        self.host.mark_unknown_members(Arc::new(is_unknown)).await;
    }

    /// The sessions behind the client identifier `after` that `which` is true of, of their identifier and of whose they are, in order; at
    /// most `limit`.
    pub async fn sessions(
        &self,
        after: &str,
        limit: usize,
        which: impl Fn(&str, &Identity) -> bool + Send + Sync + 'static,
    ) -> Vec<SessionReport> {
        self.host.sessions(after, limit, Arc::new(which)).await
    }

    /// The retained message of a topic, if there is one that has not expired. The caller asks the rules whether it may be seen.
    pub fn retained_message(&self, topic: &str) -> Option<Arc<HeldMessage>> {
        self.host.retained_message(clock::now(), topic)
    }

    /// Publishes what `counts` gives in `$SYS/broker/PREFIX/`, each with its name, until it gives nothing.
    pub fn tell_in_sys(
        &self,
        prefix: impl Into<String>,
        counts: impl Fn() -> Option<Vec<(&'static str, u64)>> + Send + Sync + 'static,
    ) {
        self.host.tell_in_sys(prefix.into(), Box::new(counts));
    }
}

//! The trait of whoever has a node's broker: the MQTT server, or [`memory`](crate::memory).

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use tidegate_broker::{Message, SessionConfig, SessionReport};
use tidegate_message::{Identity, Instant};
use tokio::sync::mpsc;

use crate::{ClientList, ClientWatcher, pipe::ClientEnd};

/// An answer that comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whether a session is meant, by its client identifier and whose it is.
pub type IsMeant = Arc<dyn Fn(&str, &Identity) -> bool + Send + Sync>;

/// Counts of a service, each with its name; none once the service is gone.
pub type Counts = Box<dyn Fn() -> Option<Vec<(&'static str, u64)>> + Send + Sync>;

/// A service that comes to the broker.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// For logs.
    pub name: String,
    /// As whom rules judge it.
    pub identity: Identity,
    /// Under which messages for it wait.
    pub session: SessionConfig,
    /// Its session goes by it.
    pub client_id: String,
    /// Whether it lends its thread to the shard, see [`Attachment::lends_thread`](crate::Attachment::lends_thread).
    pub lends_thread: bool,
}

/// A SUBACK that waits: the number that releases it, and the filters that were granted.
pub type HeldSubscription = (u64, Vec<Arc<str>>);

/// Has a node's broker. A port: services know nothing else of who implements it.
pub trait Host: Send + Sync + fmt::Debug {
    /// A connection of a service for the session of its client identifier, without a socket; it waits for CONNECT, whose first bytes are
    /// `connect`. With how many of those it took.
    fn attach(&self, arrival: Arrival, connect: &[u8]) -> (ClientEnd, usize);

    /// Ends the session of a client that does not come again.
    fn forget(&self, client_id: &str);

    /// The filters of a client's session; none if it has no session, or the broker has ended.
    fn filters<'a>(&'a self, client_id: &'a str) -> Later<'a, Vec<Arc<str>>>;

    /// Ends the sessions of clients that are meant; how many there were.
    fn end_sessions(&self, which: IsMeant) -> Later<'_, usize>;

    /// Members of the fabric whose sessions are meant are not known, and all others are.
    fn mark_unknown_members(&self, which: IsMeant) -> Later<'_, ()>;

    /// The sessions behind the client identifier `after` that are meant, in order; at most `limit`.
    fn sessions<'a>(
        &'a self,
        after: &'a str,
        limit: usize,
        which: IsMeant,
    ) -> Later<'a, Vec<SessionReport>>;

    /// The retained message of a topic, if there is one that has not expired. Rules are not asked.
    fn retained_message(&self, now: Instant, topic: &str) -> Option<Arc<Message>>;

    /// Counts changes of the sessions' filters: while it stays, they are the same.
    fn filter_changes(&self) -> u64;

    /// The filters of all sessions that are meant, each once, in order.
    fn all_filters(&self, which: IsMeant) -> Later<'_, Vec<Arc<str>>>;

    /// Holds the SUBACKs of clients from now on, each until [`Host::release`] but at most for `bound`, and tells `holder` of each. The latest holder alone is told. One that is gone, or does not keep up, holds none.
    fn hold(&self, bound: Duration, holder: mpsc::Sender<HeldSubscription>);

    /// Holds none any more, if the latest holder is gone.
    fn end_hold(&self);

    /// Lets a SUBACK go.
    fn release(&self, number: u64);

    /// Tells `watcher` of clients that come and go from now on, and no other.
    fn watch(&self, watcher: ClientWatcher);

    /// Tells of none any more, if the latest watcher is gone.
    fn end_watch(&self);

    /// All clients that have a session, those that belong to this node alone aside.
    fn clients(&self) -> Later<'_, ClientList>;

    /// Ends the connection of a client that began then, and its session where `ends_session`: a newer one is at another node.
    fn taken_over(&self, client_id: &str, began: Instant, ends_session: bool);

    /// Publishes `counts` in `$SYS/broker/PREFIX/` from now on.
    fn tell_in_sys(&self, prefix: String, counts: Counts);
}

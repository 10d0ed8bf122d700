//! The filters of a node's clients, for a service that carries them elsewhere.

use std::{sync::Arc, time::Duration};

use tidegate_message::Identity;
use tokio::sync::mpsc;

use crate::{Bus, HeldSubscription, Host};

/// Subscriptions that a service is told of and has not taken: beyond them SUBACKs leave at once.
const UNTAKEN_MAX: usize = 1024;

/// The filters that sessions have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// While [`Bus::filter_changes`] gives this, they are these.
    pub changes: u64,
    /// Each once, in order.
    pub filters: Vec<Arc<str>>,
}

/// Subscriptions of clients, while their SUBACKs wait. Dropped, it holds no more.
#[derive(Debug)]
pub struct Subscriptions {
    host: Arc<dyn Host>,
    coming: mpsc::Receiver<HeldSubscription>,
}

/// A subscription whose SUBACK leaves when this is dropped, or the bound has passed.
#[derive(Debug)]
pub struct Subscription {
    /// The filters that were granted.
    pub filters: Vec<Arc<str>>,
    number: u64,
    host: Arc<dyn Host>,
}

impl Bus {
    /// Counts changes of the filters of sessions: while it stays, they are the same. It may count a change that is none.
    pub fn filter_changes(&self) -> u64 {
        self.host.filter_changes()
    }

    /// The filters of all sessions that `which` is true of, of their client identifier and of whose they are. Those of peer sessions are of
    /// clients elsewhere.
    pub async fn filters_of(
        &self,
        which: impl Fn(&str, &Identity) -> bool + Send + Sync + 'static,
    ) -> Filters {
        let changes = self.filter_changes();
        // One that comes meanwhile may be among them, and changes the count.
        let filters = self.host.all_filters(Arc::new(which)).await;
        Filters { changes, filters }
    }

    /// Has the SUBACK of each client wait until its [`Subscription`] is dropped, for `bound` at most, from now on. One service can; a
    /// later one takes its place.
    pub fn hold_subscriptions(&self, bound: Duration) -> Subscriptions {
        let (holder, coming) = mpsc::channel(UNTAKEN_MAX);
        self.host.hold(bound, holder);
        Subscriptions { host: self.host.clone(), coming }
    }
}

impl Subscriptions {
    /// The next subscription; none once the broker has ended, or another service holds.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Subscription> {
        let (number, filters) = self.coming.recv().await?;
        Some(Subscription { filters, number, host: self.host.clone() })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.host.release(self.number);
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        // Those that were not taken leave at once.
        self.coming.close();
        while let Ok((number, _)) = self.coming.try_recv() {
            self.host.release(number);
        }
        self.host.end_hold();
    }
}

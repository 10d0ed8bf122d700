//! Uplinks to members that cannot be dialled: the member dials, and this node sends over the link that it is given.
//!
//! ```text
//!  the member: Fetching ── dials, role `Fetch` ──▶ FetchLinks ─▶ Visits ─▶ the sender, as if it had dialled
//!                  ▲ Receivers::fetch ◀── UplinkOpen, batches ────────────────┘
//! ```
//!
//! A node behind NAT or in a mobile network has no address that others reach. It dials each member a second time and leaves the link there;
//! from [`UplinkOpen`](tidegate_wire::UplinkOpen) on all is as on a link that the sender dialled.
//!
//! Always true: a member has one link that waits, the newest; one that nothing takes costs its keep-alive and no state.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidegate_api::ApiError;
use tidegate_identity::{access::Identity, pki::Kind};
use tidegate_link::{
    introduce::{self, Unwelcome},
    link::{Link, Transport},
    roles::{Serve, Serving, Visit},
};
use tidegate_message::{Backoff, Code};
use tidegate_process::clock;
use tidegate_wire::{NodeId, Role};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Home, Reach, Receivers};

/// The first wait before a member is dialled again.
const RETRY_FIRST: Duration = Duration::from_millis(250);

/// The link by which another member fetches what is for it, if it has made one.
#[derive(Clone, Default)]
pub struct Visits(Arc<Inner>);

#[derive(Default)]
struct Inner {
    link: Mutex<Waiting>,
    /// A link has come, or is over.
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    /// One that nothing has taken.
    link: Option<Link>,
    /// Links that are there, taken or not.
    count: usize,
}

impl fmt::Debug for Visits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visits").field("count", &self.inner().count).finish_non_exhaustive()
    }
}

impl Visits {
    fn inner(&self) -> MutexGuard<'_, Waiting> {
        self.0.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the member has a link here.
    pub fn is_visited(&self) -> bool {
        self.inner().count > 0
    }

    /// Whether one waits to be used.
    pub(crate) fn has_waiting(&self) -> bool {
        self.inner().link.as_ref().is_some_and(|link| link.down().is_none())
    }

    /// The link that waits.
    pub(crate) fn take(&self) -> Option<Link> {
        self.inner().link.take().filter(|link| link.down().is_none())
    }

    /// Waits until a link has come or is over.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn news(&self) {
        self.0.news.notified().await;
    }

    /// A link has come, and is there until what this returns is dropped.
    fn came(&self, link: Link) -> Visited {
        let mut inner = self.inner();
        inner.count += 1;
        if let Some(former) = inner.link.replace(link) {
            former.close(0, "a newer link of the member waits in its place");
        }
        drop(inner);
        self.0.news.notify_one();
        Visited(self.clone())
    }
}

struct Visited(Visits);

impl Drop for Visited {
    fn drop(&mut self) {
        let mut inner = self.0.inner();
        inner.count -= 1;
        // One that was taken is the sender's, which sees its end.
        inner.link.take_if(|link| link.down().is_some());
        drop(inner);
        self.0.0.news.notify_one();
    }
}

/// Serves the links of the role `Fetch`.
#[derive(Debug, Default)]
pub struct FetchLinks {
    visits: Mutex<HashMap<NodeId, Visits>>,
}

impl FetchLinks {
    /// The links of that member, which are turned away before.
    pub fn of(&self, node: NodeId) -> Visits {
        self.visits().entry(node).or_default().clone()
    }

    /// The member's links are turned away from now on.
    pub fn forget(&self, node: NodeId) {
        if let Some(visits) = self.visits().remove(&node)
            && let Some(link) = visits.take()
        {
            link.close(0, "nothing is for this member any more");
        }
    }

    fn visits(&self) -> MutexGuard<'_, HashMap<NodeId, Visits>> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn visited(&self, visit: Visit) -> Result<(), ApiError> {
        let peer = visit.peer();
        let visits = self.visits().get(&peer.node).cloned();
        let Some(visits) = visits.filter(|_| peer.kind == Kind::Node) else {
            let text = format!("{peer} is no member for which this node has messages");
            return visit.turn_away(ApiError::new(Code::IDENTITY_REFUSED, text)).await;
        };
        visit.welcome().await?;
        let _visited = visits.came(visit.link.clone());
        let serving = async {
            tokio::select! {
                _ = visit.link.closed() => {}
                () = visit.stop.cancelled() => visit.link.close(0, "the node stops"),
            }
            Ok(())
        };
        visit.unless_revoked(serving).await
    }
}

impl Serve for FetchLinks {
    fn serve(self: Arc<Self>, visit: Visit) -> Serving {
        Box::pin(async move { self.visited(visit).await })
    }
}

/// Fetches what one other member has for this node, until it is dropped.
#[derive(Debug)]
pub struct Fetching {
    at: watch::Sender<Reach>,
    _stop: DropGuard,
}

impl Fetching {
    /// Begins to, from a member that is dialled at each of [`Fetching::reach`].
    pub fn start(
        member: NodeId,
        receivers: Arc<Receivers>,
        home: &Home,
        retry_max: Duration,
    ) -> Self {
        let (at, new_at) = watch::channel(Reach::default());
        let stop = CancellationToken::new();
        let fetcher =
            Fetcher { member, receivers, home: home.clone(), retry_max, stop: stop.clone() };
        tokio::spawn(async move {
            let stop = fetcher.stop.clone();
            tokio::select! {
                () = fetcher.run(new_at) => {}
                () = stop.cancelled() => {}
            }
        });
        Self { at, _stop: stop.drop_guard() }
    }

    /// Where the member is dialled; nowhere while it is away.
    pub fn reach(&self, reach: Reach) {
        self.at.send_if_modified(|at| {
            let is_other = *at != reach;
            *at = reach;
            is_other
        });
    }
}

struct Fetcher {
    member: NodeId,
    receivers: Arc<Receivers>,
    home: Home,
    retry_max: Duration,
    stop: CancellationToken,
}

impl Fetcher {
    async fn run(self, mut at: watch::Receiver<Reach>) {
        let seed = u64::from_le_bytes(self.member.0.first_chunk().copied().unwrap_or_default());
        let mut backoff =
            Backoff::with_jitter(RETRY_FIRST.min(self.retry_max), self.retry_max, seed);
        let mut said = String::new();
        loop {
            let addresses = at.borrow_and_update().addresses.clone();
            if addresses.is_empty() {
                if at.changed().await.is_err() {
                    return;
                }
                backoff.reset();
                continue;
            }
            let began = clock::now();
            let mut why = String::new();
            for address in &*addresses {
                match self.fetch(address).await {
                    Ok(()) => why.clear(),
                    Err(error) => why = error,
                }
                if why.is_empty() {
                    break;
                }
            }
            if !why.is_empty() && why != said {
                tracing::warn!(member = %self.member, why, "messages of a member are not fetched; it is dialled again");
            }
            said = why;
            if clock::now().since(began) > self.retry_max {
                backoff.reset();
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_wait()) => {}
                changed = at.changed() => match changed {
                    Ok(()) => {}
                    Err(_) => return,
                }
            }
        }
    }

    /// One link, to its end.
    async fn fetch(&self, address: &str) -> Result<(), String> {
        let Home { credentials, link, .. } = &self.home;
        let role = (Role::Fetch, 0);
        let visit = introduce::visit(address, credentials, link.clone(), Transport::Tcp, role);
        let said = |error: &Unwelcome| tidegate_message::error_chain(error);
        let (link, _) = visit.await.map_err(|error| said(&error))?;
        let found = link.peer().clone();
        if found.node != self.member {
            link.close(0, "another member was dialled");
            return Err(format!("at {address} is {found}, whose key is not that of the member"));
        }
        let identity = Identity::of_peer(&found, Some(link.peer_address().ip()));
        let fetched = tokio::select! {
            fetched = self.receivers.fetch(&link, &identity, &self.stop) => fetched,
            revoked = credentials.revocations().revoked(&found.serial) => {
                let text = format!("the certificate of {found} was revoked: {}", revoked.reason);
                Err(ApiError::new(Code::IDENTITY_REVOKED, text))
            }
        };
        match fetched {
            Ok(()) => link.close(0, "a newer link has taken over"),
            Err(error) => {
                link.close(1, &error.chain());
                // Links end with the nodes at their ends.
                if error.code() != Code::LINK_DOWN {
                    return Err(error.chain());
                }
            }
        }
        Ok(())
    }
}

//! Frames of cameras that other members of the fabric have, for callers that do not go there themselves: the page, players, programs.
//!
//! ```text
//!  caller ─▶ Through: asks this node's cameras first ── here ────────────────────────────▶ its frames
//!                 └── elsewhere ─▶ Connections (one to a member, by this node's certificate) ─▶ the member's API
//!                                    └ on behalf of the caller ──────────────────────────────────┘
//! ```
//!
//! A caller is asked for its right here first, by whoever has the cameras of this node, and again each second while frames come. The member is
//! told on whose behalf this node asks, and decides by its own rules what that caller and this node may see.
//!
//! Always true: what is relayed is not relayed again, since a member serves such a call with its own cameras alone; the key of a member that
//! is asked is the one of its record, and its certificate is not revoked; at most [`STREAMS_MAX`] streams are relayed at a time; a viewer
//! that is slow holds one live frame here, or, where it wants each frame, the stream; capture times and epochs are the camera's.

mod connections;
mod listings;
mod refusals;
mod stream;
mod through;
mod way;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use tidegate_api::{
    ApiError, Changes, FeedbackOf, Registration, SubscriptionId, UnsubscribeStatus, Verdict,
};
use tidegate_identity::{
    access::{Access, Identity},
    pki::{Credentials, PkiError},
};
use tidegate_message::{CameraName, Code, Demand, Instant};
use tidegate_process::tasks::{self, Tasks};
use tidegate_rpc::{Cameras, Frames};
use tidegate_wire::NodeId;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use self::{connections::Connections, listings::Listings, stream::Stream, through::Through};

/// Streams and originals that are relayed at a time.
pub const STREAMS_MAX: usize = 256;
/// Verdicts on their way to a reader; more are dropped.
const VERDICTS_MAX: usize = 256;
/// How long tasks may take to end after a stop.
const GRACE: Duration = Duration::from_secs(1);
/// Subscriptions that are relayed are named from here on, those of this node's own cameras from 1: numbers that JSON holds exactly.
const IDS_FROM: u64 = 1 << 52;

/// Another member of the fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its key.
    pub node: NodeId,
    /// Its name, as in its certificate.
    pub name: String,
    /// The addresses of its API, `host:port`, the best first.
    pub addresses: Vec<String>,
    /// Whether it is missed: then it is not waited for.
    pub is_doubted: bool,
    /// Whether it reaches cameras now.
    pub has_cameras: bool,
    /// Round trip on the link to it, where there is one.
    pub round_trip: Option<Duration>,
}

/// The other members, as this node sees them now.
pub trait Members: Send + Sync + 'static {
    /// The one at which a camera is; none for a camera of this node, and for one that is nowhere.
    fn with_camera(&self, camera: &CameraName) -> Option<Member>;

    /// All that are not gone.
    fn present(&self) -> Vec<Member>;

    /// The one with that key; none for a node that has left, was forgotten or revoked, or is not known.
    fn find(&self, node: NodeId) -> Option<Member>;
}

/// The cameras of all members.
pub struct Relay {
    here: Arc<dyn Cameras>,
    members: Arc<dyn Members>,
    access: Access,
    connections: Connections,
    listings: Listings,
    places: Arc<Semaphore>,
    running: Mutex<Running>,
    tasks: Tasks,
}

#[derive(Default)]
struct Running {
    granted: u64,
    streams: HashMap<SubscriptionId, Arc<Stream>>,
}

/// The tasks of a relay, which run while this does.
pub struct Work(tasks::Owner);

impl Work {
    /// Runs them until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        self.0.run(stop.cancelled(), GRACE).await;
    }
}

impl Relay {
    /// The cameras of this node, and through it those of `members`, which it asks by its certificate.
    ///
    /// # Errors
    /// [`PkiError::Tls`] if the TLS library refuses the certificate.
    pub fn over(
        here: Arc<dyn Cameras>,
        members: Arc<dyn Members>,
        credentials: &Credentials,
        access: Access,
    ) -> Result<(Arc<Self>, Work), PkiError> {
        let (tasks, owner) = tasks::tasks();
        let relay = Self {
            here,
            connections: Connections::new(credentials, members.clone())?,
            members,
            access,
            listings: Listings::default(),
            places: Arc::new(Semaphore::new(STREAMS_MAX)),
            running: Mutex::default(),
            tasks,
        };
        Ok((Arc::new(relay), Work(owner)))
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // Whole between two lines of its holders, none of which panics.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream that has ended.
    fn forget(&self, id: SubscriptionId) {
        self.running().streams.remove(&id);
    }

    /// The stream of that name, if it is this caller's; none for one that is not relayed.
    fn stream(
        &self,
        identity: &Identity,
        id: SubscriptionId,
    ) -> Result<Option<Arc<Stream>>, ApiError> {
        if id.0 < IDS_FROM {
            return Ok(None);
        }
        // Another's subscription is as unknown as none.
        let known = self.running().streams.get(&id).cloned();
        let own = known.filter(|stream| stream.identity.is(identity));
        own.map(Some).ok_or_else(|| {
            let text = format!("you have no subscription {id}; it may have ended");
            ApiError::new(Code::SUBSCRIPTION_UNKNOWN, text)
        })
    }
}

#[async_trait]
impl Cameras for Relay {
    fn frames(self: Arc<Self>, identity: Arc<Identity>) -> Arc<dyn Frames> {
        self.here.clone().frames(identity)
    }

    fn frames_of_all(self: Arc<Self>, identity: Arc<Identity>) -> Arc<dyn Frames> {
        let here = self.here.clone().frames(identity.clone());
        // One hop: a member has its own cameras shown, and no others.
        match identity.through {
            Some(_) => here,
            None => Arc::new(Through { relay: self, here, identity }),
        }
    }

    async fn register(
        &self,
        identity: &Identity,
        registration: Registration,
    ) -> Result<(), ApiError> {
        self.here.register(identity, registration).await
    }

    async fn unregister(&self, identity: &Identity, camera: &CameraName) -> Result<(), ApiError> {
        self.here.unregister(identity, camera).await
    }

    async fn publish(
        &self,
        identity: &Identity,
        camera: &CameraName,
        captured_at: Option<Instant>,
        jpeg: Bytes,
    ) -> Result<Instant, ApiError> {
        self.here.publish(identity, camera, captured_at, jpeg).await
    }

    async fn update(
        &self,
        identity: &Identity,
        id: SubscriptionId,
        changes: Changes,
    ) -> Result<Demand, ApiError> {
        match self.stream(identity, id)? {
            Some(stream) => stream.update(changes).await,
            None => self.here.update(identity, id, changes).await,
        }
    }

    async fn unsubscribe(
        &self,
        identity: &Identity,
        id: SubscriptionId,
    ) -> Result<UnsubscribeStatus, ApiError> {
        match self.stream(identity, id)? {
            Some(stream) => stream.unsubscribe().await,
            None => self.here.unsubscribe(identity, id).await,
        }
    }

    async fn feedback(
        &self,
        identity: &Identity,
        of: FeedbackOf,
    ) -> Result<mpsc::Receiver<Verdict>, ApiError> {
        let stream = match &of {
            FeedbackOf::Subscription(id) => self.stream(identity, *id)?,
            FeedbackOf::Camera(_) => None,
        };
        let Some(stream) = stream else { return self.here.feedback(identity, of).await };
        let mut verdicts = stream.feedback().await?;
        let (sender, receiver) = mpsc::channel(VERDICTS_MAX);
        self.tasks.spawn("relayed feedback", async move {
            loop {
                let verdict = tokio::select! {
                    verdict = verdicts.next() => verdict,
                    () = sender.closed() => return,
                };
                // It ends with its subscription, and where its connection breaks; a reader that is too slow loses some.
                let Some(Ok(verdict)) = verdict else { return };
                let _ = sender.try_send(stream.judged(verdict));
            }
        });
        Ok(receiver)
    }
}

#[cfg(test)]
mod tests;

//! The API of an edge node: gRPC, and the way in of other requests of HTTP on the same port.
//!
//! ```text
//!  TLS connection ──▶ server ──checked request──▶ Cameras (implemented by `tidegate-streams`), Admin
//!  (identity)            ◀──── events, bounded ──────┘                                     └─▶ Fabric (its members)
//! ```
//!
//! [`Cameras`] is what a node's cameras can do (a caller reads them by [`Frames`]), and [`Admin`] what operators may do with the node
//! and with the [`Fabric`] that it is a member of, in plain Rust; [`server`] speaks `tidegate.v1` in front of it. Requests reach an
//! implementation checked, and identities come from certificates that TLS has verified, or from passwords and tokens that came with the
//! call.
//!
//! Always true: no call holds more than [`EVENTS_BUFFERED`] events for a client that does not read; a
//! frame's bytes are copied once for each subscriber, into the HTTP/2 stream; a failed call says its
//! stable code.

mod admin;
mod fabric;
mod failure;
pub mod memory;
pub mod openapi;
pub mod server;
pub mod unread;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_api::{
    ApiError, Changes, FeedbackOf, Registration, SubscriptionId, UnsubscribeStatus, Verdict, proto,
};
use tidegate_message::{CameraName, Demand, Instant};
use tokio::sync::mpsc;

pub use self::{
    admin::{Admin, Administration, Reloads},
    fabric::{Fabric, FabricDesk},
    failure::{BodyError, Failure},
    server::{BodyBound, IsMember, Plain, PlainSettings, Server, ServerConfig, ServerError},
};
pub use axum::Router;
pub use tidegate_identity::access::Identity;
pub use tidegate_ports::Frames;

/// Events between a session and its call. A session that offers `latest` waits for room before it reads
/// its log, so that what it hands over is the newest; with one slot a slow reader has one event waiting
/// here, one in HTTP/2's buffer and what its window allows.
pub const EVENTS_BUFFERED: usize = 1;

/// The cameras of a node for the clients of its API.
///
/// Each method is given the caller and refuses a forbidden action with
/// [`Code::ACTION_DENIED`](tidegate_message::Code::ACTION_DENIED).
#[async_trait]
pub trait Cameras: Send + Sync + 'static {
    /// The frames that a caller may read at this node.
    fn frames(self: Arc<Self>, identity: Arc<Identity>) -> Arc<dyn Frames>;

    /// The same and, through this node, those that it may read at other members of the fabric: for callers that do not go there themselves.
    fn frames_of_all(self: Arc<Self>, identity: Arc<Identity>) -> Arc<dyn Frames> {
        self.frames(identity)
    }

    /// Makes a camera whose frames `identity` will publish; `CAMERA_TAKEN` if another live one holds the
    /// name.
    async fn register(
        &self,
        identity: &Identity,
        registration: Registration,
    ) -> Result<(), ApiError>;

    /// Takes a camera back; its subscriptions end with [`EndReason::CameraUnregistered`](tidegate_api::EndReason::CameraUnregistered).
    async fn unregister(&self, identity: &Identity, camera: &CameraName) -> Result<(), ApiError>;

    /// Appends one frame to a registered camera's log and returns its capture time; the time of the call if
    /// none is given. `FRAME_INVALID`, `FRAME_TOO_LARGE` and `FRAME_TIMESTAMP` refuse the frame and nothing
    /// else; every other failure ends the publisher's stream.
    async fn publish(
        &self,
        identity: &Identity,
        camera: &CameraName,
        captured_at: Option<Instant>,
        jpeg: Bytes,
    ) -> Result<Instant, ApiError>;

    /// Changes the demand of a running subscription and returns it; `SUBSCRIPTION_UNKNOWN` if it is not
    /// this identity's.
    async fn update(
        &self,
        identity: &Identity,
        id: SubscriptionId,
        changes: Changes,
    ) -> Result<Demand, ApiError>;

    /// Ends a subscription; its events end with [`EndReason::Unsubscribed`](tidegate_api::EndReason::Unsubscribed).
    async fn unsubscribe(
        &self,
        identity: &Identity,
        id: SubscriptionId,
    ) -> Result<UnsubscribeStatus, ApiError>;

    /// Verdicts from now on. Those that the reader is too slow for are dropped.
    async fn feedback(
        &self,
        identity: &Identity,
        of: FeedbackOf,
    ) -> Result<mpsc::Receiver<Verdict>, ApiError>;
}

/// Looks at images for the clients of the API.
#[async_trait]
pub trait Detection: Send + Sync + 'static {
    /// Has a model look at an image, JPEG or PNG. Refuses a caller without the right with
    /// [`Code::ACTION_DENIED`](tidegate_message::Code::ACTION_DENIED), and a model that there is not with
    /// [`Code::MODEL_UNKNOWN`](tidegate_message::Code::MODEL_UNKNOWN). A call that is dropped is not looked at any more.
    async fn detect(
        &self,
        identity: &Identity,
        model: &str,
        image: Bytes,
    ) -> Result<proto::Detected, ApiError>;
}

//! The port by which frames come: the cameras of a node, wherever that node is.

use async_trait::async_trait;
use tidegate_api::{ApiError, CameraInfo, Changes, Event, Original, SubscribeRequest};
use tidegate_message::{CameraName, Instant};

/// The frames of a node: its own, or those of another one by its API.
#[async_trait]
pub trait Frames: Send + Sync + 'static {
    /// The cameras that there are.
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError>;

    /// Subscribes to the frames of one camera.
    async fn subscribe(&self, request: SubscribeRequest)
    -> Result<Box<dyn Subscription>, ApiError>;

    /// The frame captured at exactly `captured_at`, untouched.
    async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError>;
}

/// A subscription that runs, and ends when it is dropped.
#[async_trait]
pub trait Subscription: Send + Sync {
    /// The next event; none after the last.
    ///
    /// # Cancel safety
    /// It must be cancel safe: no event is lost with a call that is dropped.
    async fn next(&mut self) -> Option<Result<Event, ApiError>>;

    /// Changes its demand.
    async fn update(&self, changes: Changes) -> Result<(), ApiError>;
}

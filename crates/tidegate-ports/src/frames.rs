//! The port by which frames are read: the cameras of a node, wherever that node is.

use async_trait::async_trait;
use tidegate_api::{ApiError, CameraInfo, Changes, Event, Original, Started, SubscribeRequest};
use tidegate_message::{CameraName, Demand, Instant};

/// The frames that one caller may read.
///
/// A camera that another node serves is refused with [`ApiError::elsewhere`], which names that node and its addresses. All methods refuse
/// what the caller may not do with [`Code::ACTION_DENIED`](tidegate_message::Code::ACTION_DENIED), and a camera that there is not with
/// [`Code::CAMERA_UNKNOWN`](tidegate_message::Code::CAMERA_UNKNOWN).
#[async_trait]
pub trait Frames: Send + Sync + 'static {
    /// The cameras that the caller may see, in order of their names.
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError>;

    /// One camera.
    async fn camera(&self, name: &CameraName) -> Result<CameraInfo, ApiError>;

    /// Subscribes to the frames of one camera.
    async fn subscribe(&self, request: SubscribeRequest)
    -> Result<Box<dyn Subscription>, ApiError>;

    /// The frame captured at exactly `captured_at`, untouched;
    /// [`Code::FRAME_MISSING`](tidegate_message::Code::FRAME_MISSING) if the log does not hold it.
    async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError>;
}

/// A subscription that runs, and ends when it is dropped.
#[async_trait]
pub trait Subscription: Send + Sync {
    /// Its name, and the demand on every frame as of the last [`update`](Self::update) by this value.
    fn started(&self) -> Started;

    /// The next event; none after [`Event::Ended`] or a failure.
    ///
    /// # Cancel safety
    /// No event is lost with a call that is dropped.
    async fn next_event(&mut self) -> Option<Result<Event, ApiError>>;

    /// Changes its demand, and returns it.
    async fn update(&self, changes: Changes) -> Result<Demand, ApiError>;
}

//! Async client of the Tidegate API, and the types that API speaks.
//!
//! An application names what every frame must keep and reads a stream of events:
//!
//! ```no_run
//! use futures::StreamExt;
//! use tidegate_client::{Client, Credentials, Event, SubscribeRequest};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let credentials = Credentials::load("pki/ca.pem", "pki/app.pem", "pki/app.key")?;
//! let client = Client::connect("https://127.0.0.1:7080", credentials).await?;
//!
//! // Within 100 ms of capture, with at least 95 % of the detector's accuracy.
//! let request = SubscribeRequest::new("cam1", std::time::Duration::from_millis(100), 0.95)?;
//! let mut events = client.subscribe(request).await?;
//! while let Some(event) = events.next().await {
//!     match event? {
//!         Event::Frame(frame) => println!("{} {} bytes", frame.captured_at, frame.jpeg.len()),
//!         Event::Infeasible(what) => println!("{}", what.sentence),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The types are shared with the server: requests, events and verdicts are plain Rust, checked once in
//! `convert`, so that neither side handles a value that the other could not have meant.
//!
//! Always true: every failure is an [`ApiError`] with a stable [`Code`]; a frame's bytes are shared, never
//! copied, after they left the socket; dropping a [`Subscription`] ends it.

mod camera;
mod client;
mod configuration;
mod convert;
mod credentials;
mod error;
mod event;
mod publisher;
mod request;
mod session;
mod subscription;
mod verdict;

pub use camera::{CameraInfo, ClockOffset, Original, ServerInfo};
pub use client::{Client, ConnectOptions};
pub use configuration::ReloadedConfiguration;
pub use credentials::Credentials;
pub use error::{ApiError, CODE_METADATA, exit_status, grpc_code};
pub use event::{
    EndReason, Event, Frame, Infeasible, KnobsChanged, Missed, MissedWhy, Stages, Unchanged,
};
pub use publisher::Publisher;
pub use request::{
    Changes, FeedbackOf, Registration, Started, SubscribeRequest, SubscriptionId, TransferState,
    UnsubscribeStatus,
};
pub use session::{
    EndSessions, SESSIONS_BYTES_MAX, SESSIONS_MAX, SessionInfo, SessionOwner, SessionsPage,
};
pub use subscription::{Feedback, Subscription};
pub use verdict::{Outcome, Verdict};

pub use tidegate_message::{
    AdaptationProfile, Bounds, CameraName, Code, ControllerKind, Delivery, Demand, FrameRate,
    FrameSize, Instant, WhenInfeasible,
};

/// The generated messages and stubs of package `tidegate.v1`; see `proto/` for their meaning.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("tidegate.v1");

    /// The descriptors of the package, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("tidegate.v1");
}

/// Largest message that either side accepts: the largest frame and room for what stands beside it.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

//! Async client of the Tidegate API.
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
//! The types of requests, events and verdicts are those of `tidegate-api`, which the server shares.
//!
//! Always true: every failure is an [`ApiError`] with a stable [`Code`]; a frame's bytes are shared, never
//! copied, after they left the socket; dropping a [`Subscription`] ends it; credentials go to no node whose certificate the first connection
//! would not take.

mod client;
mod credentials;
mod detection;
mod dial;
mod elsewhere;
mod frames;
mod newest;
mod publisher;
mod status;
mod subscription;

pub use client::{Client, ConnectOptions};
pub use credentials::Credentials;
pub use detection::{DetectConnection, DetectStream};
pub use dial::{Dial, Io};
pub use publisher::Publisher;
pub use status::{failure, grpc_code};
pub use subscription::{Feedback, Subscription, SubscriptionHandle};

pub use tidegate_api::{
    ApiError, CODE_METADATA, CameraInfo, Cell, Changes, ClockOffset, EndReason, EndSessions, Event,
    FabricStatus, FeedbackOf, Frame, Infeasible, KnobsChanged, Left, Located, MEMBERS_MAX,
    MESSAGE_BYTES_MAX, Member, MembersPage, Missed, MissedWhy, Original, Outcome, Registration,
    ReloadedConfiguration, Rule, SESSIONS_BYTES_MAX, SESSIONS_MAX, ServerInfo, SessionInfo,
    SessionOwner, SessionsPage, Sought, Stages, Standing, Started, SubscribeRequest,
    SubscriptionId, TransferState, Unchanged, UnsubscribeStatus, Verdict, exit_status,
};
pub use tidegate_message::{
    AdaptationProfile, Bounds, CameraName, Code, ControllerKind, Delivery, Demand, FrameRate,
    FrameSize, Instant, WhenInfeasible,
};

/// The generated messages and the stubs of clients of package `tidegate.v1`; see `proto/` for their meaning.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod proto {
    pub use tidegate_api::proto::*;

    tonic::include_proto!("tidegate.v1");
}

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

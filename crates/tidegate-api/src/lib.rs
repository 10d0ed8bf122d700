//! The types of the Tidegate API: what a client asks for, what a node answers, what happens in between, and why a call failed.
//!
//! ```text
//!  proto (generated) ◀──convert──▶ requests, events, verdicts, cameras, sessions, members: plain Rust, checked
//! ```
//!
//! Client and server share them, and so does whatever prints or serialises them. Each value is checked once, in `convert`, so that
//! neither side handles one that the other could not have meant. The calls themselves are generated where they are made
//! (`tidegate-client`) and where they are answered (`tidegate`): nothing here knows a transport.
//!
//! Always true: every failure is an [`ApiError`] with a stable [`Code`](tidegate_message::Code); the bytes of a frame are shared
//! between its message and its type, never copied.

pub mod boxes;
mod camera;
mod configuration;
mod convert;
mod error;
mod event;
mod fabric;
pub mod json;
mod request;
mod session;
mod verdict;

pub use camera::{CameraInfo, ClockOffset, Original, ServerInfo};
pub use configuration::ReloadedConfiguration;
pub use error::{
    ADDRESS_METADATA, ApiError, BEHALF_METADATA, CODE_METADATA, NODE_METADATA, Place,
    RELAY_METADATA, exit_status, grpc_status, http_status,
};
pub use event::{
    EndReason, Event, Frame, Infeasible, KnobsChanged, Missed, MissedWhy, Stages, Unchanged,
};
pub use fabric::{
    Cell, FabricStatus, Left, Located, MEMBERS_BYTES_MAX, MEMBERS_MAX, MEMBERS_USUAL, Member,
    MembersPage, Rule, Sought, Standing,
};
pub use request::{
    Changes, FeedbackOf, Registration, Started, SubscribeRequest, SubscriptionId, TransferState,
    UnsubscribeStatus,
};
pub use session::{
    EndSessions, SESSIONS_BYTES_MAX, SESSIONS_MAX, SessionInfo, SessionOwner, SessionsPage,
};
pub use verdict::{Outcome, Verdict};

/// The generated messages of package `tidegate.v1`; see `proto/` for their meaning.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/tidegate.v1.rs"));

    /// The descriptors of the package, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/tidegate.v1.bin"));
}

/// Largest message that either side accepts: the largest frame and room for its other fields.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

//! Both ends of an uplink: messages published at one node are published at another one as well, compact, urgent ones first, none
//! lost. State machines; links, sessions of brokers and clocks are the caller's.
//!
//! ```text
//!  NODE AT THE EDGE: UplinkSession                          │ NODE ABOVE
//!  session "critical" ─▶ Critical ─ at once ────────┐       │
//!                                                   ├─ link ─▶ Incoming ─▶ its broker, Progress
//!  session "batched" ──▶ Outgoing ─ batches ────────┘       │                  │
//!        ▲                                                  │                  │
//!        └────────────── acknowledged ◀─────────────────────┼──────────────────┘
//! ```
//!
//! Records are those of the node link (`tidegate-wire`), batches those of the sensor codec (`tidegate-compress`).
//!
//! Always true: a message is acknowledged to its session only after the node above has reported it as published, or when it is not to be
//! carried at all; of one [session](UplinkSession) each number comes out of one [`Incoming`] once and in order, whatever links come
//! and go; no bytes of a peer lead to a panic, and memory for them is bounded.

mod budget;
mod critical;
pub mod hand_over;
mod incoming;
pub mod layouts;
mod message;
mod origin;
mod outgoing;
mod progress;
mod session;
mod topics;
mod window;

pub use budget::{Budget, Reservation};
pub use critical::{Critical, critical_message};
pub use incoming::{
    AHEAD_BYTES_MAX, AHEAD_MAX, CRITICAL_BYTES_MAX, Fresh, Incoming, IncomingError, LIMITS,
    TOPICS_MAX,
};
pub use message::{Attributes, AttributesError};
pub use origin::Origin;
pub use outgoing::{OutgoingConfig, ProtocolError, TooLong};
pub use progress::Progress;
pub use session::{
    Blocked, Command, Counts, Feed, Member, SenderConfig, Subscriptions, Taken, UplinkSession,
};
pub use topics::{NotGranted, Topics};

/// The name of the uplinks by which the members of a fabric carry messages to each other, which no other has.
pub const FABRIC: &str = "$fabric";

#[cfg(test)]
mod tests;

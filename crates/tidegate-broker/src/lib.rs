//! MQTT sessions, routes, queues and schedules, without I/O.
//!
//! ```text
//!  bytes ─▶ Broker::receive ─▶ admission ─▶ route ─▶ outbox (small and not behind: copied once)
//!                                             │        └────────▶ Broker::transmit ─▶ bytes
//!                                             ├─▶ queue of references ─▶ schedule ──┘
//!                                             └─▶ other shards (Broker::poll_peers)
//! ```
//!
//! A node has one [`Shared`] and, for each core of the processor, one [`Broker`]: a shard. A session lives on the shard
//! that its client identifier names ([`Shared::shard_of`]), and so does its connection.
//!
//! Always true: a payload is held once, however many subscribers wait for it; the bytes held for payloads never exceed [`BrokerConfig::payload_bytes_max`], but for the needs
//! of a restart and of the disk ([`Budget`]); messages of one publisher and topic leave in the order in which they came; acknowledgements overtake messages that have not
//! begun to leave; a message in flight is never dropped; bytes of a peer end at most its own connection.

mod accounts;
pub mod admission;
mod blocked_publishers;
mod broker;
pub mod budget;
mod bundle;
pub mod config;
mod connection;
mod dropped;
mod inflight;
pub mod message;
mod message_pool;
mod outbox;
mod queue;
mod reach;
mod reclaim_heap;
mod retained;
mod routes;
mod scans;
mod segments;
mod session;
mod session_state;
mod shared;
mod slab;
pub mod spill;
mod stamp;
mod statistics;
mod subscription;
#[cfg(test)]
mod tests;
mod timers;

pub use admission::{Admission, Batch, Draft, Verdict};
pub use broker::{
    Acknowledged, AuthAnswer, Broker, CONTROL_BYTES_MAX, ClientChange, ClientState, ConnectRequest,
    ConnectionKey, Denied, Output, PART_GRACE, PART_PREFIX, Peer, PeerOrigin, Refused,
    WRITE_BYTES_MAX, part_id,
};
pub use budget::{Budget, PartialCharge};
pub use bundle::{Bundle, BundleReader, Empties, Publication, Run, RunMessage};
pub use config::{BrokerConfig, Overflow, SessionConfig, TopicConfig, Versions};
pub use connection::Ended;
pub use dropped::Dropped;
pub use message::{Body, Message, MessageRef};
pub use outbox::{Delivery, Handed, SLICES_MAX};

pub use session_state::SessionKey;
pub use shared::Shared;
pub use statistics::{SessionReport, Statistics};

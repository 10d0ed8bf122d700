//! The MQTT broker of a node: threads, sockets and settings around [`tidegate_broker`].
//!
//! ```text
//!  listener ─▶ shard 0..n (epoll) ─▶ transport (TCP, TLS, WebSocket) ─▶ Broker ─▶ transport ─▶ subscriber
//!                  │                                                      │
//!                  └─▶ doors: who is it, on a thread of its own           └─▶ other shards, in batches
//!  journal: what must outlive the process; each shard has one, and a thread that makes it durable
//!  spill: messages that find no room in memory, on disk; a thread reads them
//!  bridge (a thread each) ◀─▶ a session here, a session at a remote broker
//! ```

pub mod bridge;
pub mod bundle;
pub mod certificate;
mod configure;
pub mod deliveries;
mod doors;
pub mod import;
mod inbox;
pub mod journal;
pub mod listen;
pub mod local;
pub mod server;
pub mod service;
pub mod settings;
mod shard;
pub mod spill;
mod transport;

pub use bridge::Bridge;
pub(crate) use bridge::RemoteTls;
pub(crate) use configure::{
    authorities, bridges, broker, host_and_port, node_of_paths, numbered_node, problems,
    usual_session,
};
pub use server::{Server, ServerError};
pub use service::Service;

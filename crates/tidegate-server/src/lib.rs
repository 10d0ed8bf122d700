//! The MQTT broker of a node: threads, sockets and settings around [`tidegate_broker`].
//!
//! ```text
//!  listener ─▶ shard 0..n (epoll) ─▶ transport (TCP, TLS, WebSocket) ─▶ Broker ─▶ transport ─▶ subscriber
//!                  │                                                      │
//!                  └─▶ authentication, on a thread of its own            └─▶ other shards, in batches
//!  bus (`tidegate_bus`) ◀─▶ shard: a connection without a socket
//!  journal: what must outlive the process; each shard has one, and a thread that makes it durable
//!  spill: messages that find no room in memory, on disk; a thread reads them
//!  memory: what a backlog has taken goes back to the system
//!  bridge (a thread each) ◀─▶ a session here, a session at a remote broker
//! ```

pub mod bridge;
pub mod certificate;
mod inbox;
pub mod journal;
pub mod listen;
mod memory;
pub mod server;
pub mod settings;
mod shard;
pub mod spill;
mod transport;

pub use bridge::Bridge;
pub use server::{Server, ServerError};

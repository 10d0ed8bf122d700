//! A node's MQTT broker and its clients, in virtual time.
//!
//! ```text
//!  client ─▶ pipe ─▶ site (what a shell does) ─▶ Broker of the shard ─▶ other shards, later
//!     ▲                                              │
//!     └────────────── pipe, as a kernel fills it ◀───┘        oracle: what must be true of it
//! ```
//!
//! The shards are those of the live system, and the packets go through its codec; modelled here are the clients, TCP with its
//! buffers and what its kernel tells, and the time between shards. A seed draws the node's settings, its clients and their
//! faults: connections cut at any byte, half closed, stalled, taken over while the old one drains; clients that do not read,
//! come back with their state or without; queues and budgets too small for what is sent; operators that drop, replace and emit;
//! nodes whose process is killed or whose power goes, and that continue with what their journals have.
//!
//! Always checked: QoS 1 comes at least once and QoS 2 exactly once to anyone who subscribed all the while, unless its loss is
//! counted; nothing comes that was not published, asked for or accepted; messages of a publisher and topic come first in their
//! order; what was in flight is sent again, in order; what was accepted before a crash comes after it, and
//! what a session was promised, it has; the budget is kept at every step; when faults have ended and all
//! are back, everything owed arrives, and nothing of it comes again after another crash; when all have gone nothing is held. The same seed gives the same run.

mod client;
mod crash;
mod faults;
mod link;
mod operators;
mod oracle;
mod plan;
mod shell;
mod site;
mod tape;

pub use site::{Outcome, run, run_filling, run_overflowing, run_spilling};
pub use tape::Tape;

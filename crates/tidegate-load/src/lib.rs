//! Load and simple clients of MQTT.
//!
//! ```text
//!            ┌─ worker ─ epoll ─┬─ publishers ──▶ broker ──▶ subscribers ─┐
//!  Spec ─run─┤                  └─ stalled, idle                          ├─▶ Report: counts, latencies, CPU seconds
//!            └─ worker …         stamp · flow · sequence in each payload ─┘
//! ```
//!
//! [`run`] drives thousands of connections from a few threads and counts every message. [`client`] is one blocking connection,
//! for the command line and for tests. Both are sockets around [`tidegate_wire::mqtt::client`].
//! [`process`] reads what another process has used, so that a broker's rate can be told per second of its own processor time.
//!
//! [`sensors`] makes up the messages of four published applications of sensors, [`devices`] sends them and verifies
//! what arrives; [`replay`] plays the messages of a trace. [`camera`] is a network camera whose pictures show their age. [`vision`]
//! sends images to a detector and times the answers.
//!
//! All reach a broker over TCP, TLS, WebSocket or the last in the second, as its [`url`] says.
//!
//! A message of 100 bytes costs the generator some 20 ns to send and 20 ns to receive while bytes come in large reads, as
//! `examples/relay.rs` shows. A broker that writes messages one by one makes it read them one by one, at 1 to 4 µs each, most of it
//! in the kernel: still less than such a broker spends itself.
//!
//! Always true:
//! - the hot path over TCP allocates nothing for a message, reads the clock once per batch and makes a system call per 64 KiB at most,
//!   unless the broker itself sends in smaller pieces;
//! - with a rate or a period, latency is counted from when a message was meant to leave, however late it did;
//! - what is lost, duplicated or out of order is counted over the whole run, rates and latencies over the measured part.

mod connection;
mod flow;
mod greeting;
mod layers;
mod layout;
mod meter;
mod outlet;
mod packet;
mod run;
mod shared;
mod socket;
mod track;
mod worker;

pub mod args;
pub mod camera;
pub mod client;
pub mod command;
pub mod connect;
pub mod devices;
pub mod flag;
pub mod process;
pub mod replay;
pub mod report;
pub mod sensors;
pub mod spec;
pub mod url;
pub mod vision;

pub use report::Report;
pub use run::{LoadError, Phase, Progress, run};
pub use spec::{Flow, Pace, Spec, Topology};

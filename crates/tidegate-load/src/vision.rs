//! Load of a server that looks at images: many clients send images, wait for the answers, and measure.
//!
//! ```text
//!         ┌─ thread ─ Dialogue ─ Link ──image──▶ server (HTTP, WebSocket, gRPC, or the persistent TCP protocol)
//!  Spec ──┤                       ◀─answer─┘
//!         ├─ thread …                 full process, server time ─┐
//!         └─ a TCP connect now and then       network only ──────┴─▶ Report, in the words of multi_client.py
//! ```
//!
//! The shapes are those of the MobiledgeX computer vision server and of our own `/v1/detect`; the three times are those of its
//! `multi_client.py`:
//!
//! - **full process**: from before an image is encoded for the wire until the whole answer is read. On a connection that is kept,
//!   opening it is not part of it; with a connection for each request it is;
//! - **network only**: a fresh TCP connect, on a thread of its own meanwhile;
//! - **server time**: as the answer says it.
//!
//! Always true:
//! - one request of a connection is on its way at a time;
//! - with a rate, a request is due at its moment whether the one before it was answered or not, and its latency is counted from
//!   then, however late it left;
//! - a request that was refused or failed is counted by its reason, and its time is in no latency.

pub mod args;
pub mod images;
pub mod link;
pub mod report;

mod answer;
mod call;
mod dialogue;
mod endpoint;
mod http;
mod run;
mod spec;

pub use images::{Image, ImageError};
pub use link::{Link, LinkError, Target};
pub use report::VisionReport;
pub use run::{THREADS_MAX, VisionError, run};
pub use spec::{Connection, Counting, VisionSpec};

//! Real processes in network namespaces: state that survives the death of each, and a cut link.
//!
//! Needs root and TUN devices; says so and passes as skipped without them.

mod faults;
mod mqtt;
#[path = "../shared/poll.rs"]
mod poll;
#[path = "../shared/poll_async.rs"]
mod poll_async;
mod share;
mod site;
#[cfg(feature = "xdp")]
mod xdp;

//! The node link over real sockets, on loopback and behind a modelled bottleneck.

mod bottleneck;
mod ends;
mod frames;
mod peers;
#[path = "../shared/poll_async.rs"]
mod poll_async;
mod relay;
mod support;
